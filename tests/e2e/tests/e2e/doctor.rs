//! What an operator asks first: `status`, `doctor`, watched reads, completions, man pages (R-UI-04); and
//! a cloned identity, found and kept out (R-ENR-10).

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Pool, Role, Target, verified, wait};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::net::TcpStream;

/// Bytes that a check sends and compares.
const VERIFIED: &str = "262144 bytes verified";
/// Streams that stand before a copy comes.
const STREAMS: u64 = 6;
/// How long one of them may take for an exchange.
const CARRIED_WITHIN: Duration = Duration::from_secs(20);

fn checks(report: &Value) -> Result<&Vec<Value>> {
    report
        .get("checks")
        .and_then(Value::as_array)
        .context("no checks")
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// R-UI-04: a whole pool is checked with new sessions and new tunnels whose bytes are compared, through
/// each relay; a target that is away is told from a path that is broken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_opens_new_tunnels_and_tells_path_from_target() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("db", echo.address())?
        .start()
        .await?;
    let answer = pool.cli(&["doctor", "--json"])?;
    let report: Value = serde_json::from_str(&answer.stdout).with_context(|| format!("{answer:?}"))?;
    ensure!(answer.code == Some(0), "{answer:?}");
    let tunnels: Vec<&Value> = checks(&report)?
        .iter()
        .filter(|c| text(c, "check") == "tunnel")
        .collect();
    for relay in ["local", "relay-1"] {
        let through = format!("link db through {relay}:");
        let tunnel = tunnels.iter().find(|c| text(c, "found").starts_with(&through));
        let tunnel = tunnel.with_context(|| format!("no tunnel through {relay}: {report}"))?;
        ensure!(
            text(tunnel, "outcome") == "ok" && text(tunnel, "found").contains(VERIFIED),
            "{tunnel}"
        );
        ensure!(
            text(tunnel, "found").contains("the target accepts connections"),
            "{tunnel}"
        );
    }
    for check in [
        "worker",
        "certificate",
        "policy",
        "lease",
        "address",
        "udp",
        "nodes",
    ] {
        let of = |c: &&Value| text(c, "check") == check && text(c, "subject") == "relay relay-1";
        let found = checks(&report)?
            .iter()
            .find(of)
            .with_context(|| format!("no {check}: {report}"))?;
        ensure!(text(found, "outcome") == "ok", "{found}");
    }
    // The path stands, its target does not.
    let dead = fairlead_testkit::target::closed_port()?.to_string();
    let listen = fairlead_testkit::target::closed_port()?.to_string();
    let add = [
        "link", "add", "dead", "--from", "alpha", "--to", "beta", "--target", &dead, "--listen", &listen,
    ];
    pool.cli(&add)?.ok()?;
    wait::until("the new link is ready", Duration::from_secs(20), || async {
        let shown = pool
            .cli(&["link", "show", "dead", "--json"])
            .and_then(|a| a.json())
            .map_err(|e| e.to_string())?;
        if text(&shown, "state") == "ready" {
            Ok(())
        } else {
            Err(shown.to_string())
        }
    })
    .await?;
    let answer = pool.cli(&["doctor", "dead"])?;
    ensure!(
        answer.stdout.contains(VERIFIED) && answer.stdout.contains("TARGET_REFUSED"),
        "{answer:?}"
    );
    // Right after a change: what is on its way is waited for, and no failure.
    let (target, listen) = (
        echo.address().to_string(),
        fairlead_testkit::target::closed_port()?.to_string(),
    );
    let add = [
        "link", "add", "soon", "--from", "alpha", "--to", "beta", "--target", &target, "--listen", &listen,
    ];
    pool.cli(&add)?.ok()?;
    let answer = pool.cli(&["doctor", "soon"])?;
    ensure!(
        answer.code == Some(0) && answer.stdout.contains(VERIFIED),
        "{answer:?}"
    );
    // A name that is nearly one.
    let answer = pool.cli(&["doctor", "dbb"])?;
    ensure!(
        answer.code == Some(64) && answer.stderr.contains("did you mean `db`?"),
        "{answer:?}"
    );
    // On the member's own host, by its folder.
    let dir = pool.dir().join("nodes/alpha").display().to_string();
    let answer = pool.cli(&["doctor", "--dir", &dir])?.ok()?;
    ensure!(
        answer.stdout.contains("node daemon runs") && answer.stdout.contains("answers and proves itself"),
        "{answer:?}"
    );
    // A consumer that is gone cannot try anything.
    let _held = fairlead_testkit::process::stop(pool.pid(Role::Node("alpha"))?)?;
    let answer = pool.cli(&["doctor", "db", "--json"])?;
    ensure!(answer.code == Some(1), "{answer:?}");
    Ok(())
}

/// Completions and man pages are ones: the shell and troff take them. Flags before the verb, and
/// reads that are repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_line_is_a_good_citizen() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(0)
        .to("db", echo.address())?
        .start()
        .await?;
    let scratch = pool.dir().join("scratch");
    std::fs::create_dir_all(&scratch)?;
    let completions = scratch.join("fairlead.bash");
    std::fs::write(&completions, pool.cli(&["completions", "bash"])?.ok()?.stdout)?;
    let checked = Command::new("bash").arg("-n").arg(&completions).output()?;
    ensure!(
        checked.status.success() && checked.stderr.is_empty(),
        "{checked:?}"
    );
    for (shell, word) in [("zsh", "#compdef fairlead"), ("fish", "complete -c fairlead")] {
        let text = pool.cli(&["completions", shell])?.ok()?.stdout;
        ensure!(
            text.contains(word),
            "{shell}: {}",
            text.chars().take(200).collect::<String>()
        );
    }
    let pages = scratch.join("man");
    pool.cli(&["man", "--dir", &pages.display().to_string()])?.ok()?;
    let mut count = 0;
    for page in std::fs::read_dir(&pages)? {
        let page = page?.path();
        count += 1;
        if Path::new("/usr/bin/man").exists() {
            let shown = Command::new("man")
                .args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"])
                .arg(&page)
                .stdout(Stdio::null())
                .output()?;
            ensure!(
                shown.stderr.is_empty(),
                "{}: {}",
                page.display(),
                String::from_utf8_lossy(&shown.stderr)
            );
        }
    }
    ensure!(count > 30, "only {count} pages");
    let file = pool.file()?;
    let (url, token, ca) = (
        &file.control.url,
        &file.control.admin_token_file,
        &file.control.ca_file,
    );
    let address = url.trim_start_matches("https://");
    let (token, ca) = (token.display().to_string(), ca.display().to_string());
    let before = [
        "--token-file",
        &token,
        "--control",
        address,
        "--ca-file",
        &ca,
        "--json",
        "relay",
        "ls",
    ];
    fairlead_testkit::pool::run(&before, "", &[])?.json()?;
    // A watched read goes on, and prints only what has changed.
    let mut watched = Command::new(fairlead_testkit::binary::fairlead()?)
        .args([
            "link",
            "ls",
            "--json",
            "--watch=500ms",
            "--control",
            address,
            "--token-file",
            &token,
            "--ca-file",
            &ca,
        ])
        .stdout(Stdio::piped())
        .spawn()?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    pool.cli(&["link", "rm", "db"])?.ok()?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    watched.kill()?;
    let shown = String::from_utf8(watched.wait_with_output()?.stdout)?;
    let lines: Vec<&str> = shown.lines().collect();
    ensure!(lines.len() >= 2, "{shown}");
    ensure!(lines.first().is_some_and(|l| l.contains("\"db\"")), "{shown}");
    ensure!(lines.last().is_some_and(|l| !l.contains("\"db\"")), "{shown}");
    Ok(())
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

/// R-ENR-10: beta's folder is copied and both run. The copy is kept out of control plane and relays,
/// does not come at the speed of the network, and the log, the audit log and `status` name both; the
/// streams that were open go on, and so do new tunnels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copied_folder_is_found_and_kept_out() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("db", echo.address())?
        .start()
        .await?;
    let mut streams = Vec::new();
    for seed in 0..STREAMS {
        let mut stream = TcpStream::connect(pool.listen("db")?).await?;
        verified::echo_on(&mut stream, seed, 1_000).await?;
        streams.push(stream);
    }
    let copy = pool.dir().join("copy-of-beta");
    copy_folder(&pool.dir().join("nodes/beta"), &copy)?;
    let log = std::fs::File::create(pool.dir().join("logs/copy.log"))?;
    let mut thief = Command::new(fairlead_testkit::binary::fairlead()?)
        .args(["run", "node", "--dir"])
        .arg(&copy)
        .stderr(log)
        .spawn()?;
    let found = wait::until("both are named", Duration::from_secs(40), || async {
        let shown = pool
            .cli(&["node", "show", "beta", "--json"])
            .and_then(|a| a.json())
            .map_err(|e| e.to_string())?;
        match shown.get("copies").filter(|c| !c.is_null()) {
            Some(_) => Ok(()),
            None => Err(format!("no copies: {shown}")),
        }
    })
    .await;
    let sessions_before = pool
        .relay_count("local", "fairlead_hop_sessions_accepted_total")
        .await
        .unwrap_or(0.0);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let sessions_after = pool
        .relay_count("local", "fairlead_hop_sessions_accepted_total")
        .await
        .unwrap_or(0.0);
    let status = pool.cli(&["status"]);
    let audit = pool.cli(&["audit", "ls", "--json", "--last", "50"]);
    let open = pool.until_echo("db", Duration::from_secs(10)).await;
    let mut carried = Ok(());
    for (seed, stream) in (STREAMS..).zip(&mut streams) {
        let echoed = tokio::time::timeout(CARRIED_WITHIN, verified::echo_on(stream, seed, 100_000)).await;
        carried = carried.and(echoed.context("a stream that stands still").flatten());
    }
    thief.kill()?;
    thief.wait()?;
    found?;
    let opened = sessions_after - sessions_before;
    println!("hop sessions at one relay in 10 s: {opened}");
    ensure!(opened <= 6.0, "the copies take turns: {opened} sessions in 10 s");
    let status = status?.ok()?;
    ensure!(
        status.stdout.contains("node beta") && status.stdout.contains("Two processes use the key"),
        "{status:?}"
    );
    let audit = audit?.ok()?;
    ensure!(
        audit.stdout.matches("member.identity.cloned").count() == 1,
        "{audit:?}"
    );
    open?;
    carried.context("the streams that were open before the copy came")
}
