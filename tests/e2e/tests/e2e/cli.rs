//! The CLI as an admin uses it: links, settings, tokens, audit, login; JSON and exit codes (R-UI-02).

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Answer, Pool, Target, target, verified, wait};
use serde_json::Value;
use std::time::Duration;

const REFUSED: i32 = 2;
const CONFLICT: i32 = 4;
const UNAVAILABLE: i32 = 5;
const USAGE: i32 = 64;

/// Where nothing has the name: one exit, whatever the verb.
const UNKNOWN: &[&[&str]] = &[
    &["relay", "show", "nobody"],
    &["relay", "token", "nobody"],
    &["relay", "rm", "nobody"],
    &["node", "show", "nobody"],
    &["node", "token", "nobody"],
    &["node", "rm", "nobody"],
    &["link", "show", "nobody"],
    &["link", "rm", "nobody"],
    &["settings", "get", "nobody"],
    &["settings", "set", "nobody", "1"],
    &["token", "rm", "nobody"],
    &["doctor", "nobody"],
];

/// Where a guard says no.
const GUARDED: &[&[&str]] = &[
    &["node", "rm", "alpha"],
    &["node", "token", "alpha"],
    &["relay", "rm", "relay-1"],
    &["relay", "token", "relay-1"],
    &["relay", "rm", "local"],
    &["token", "rm", "first"],
];

/// Where the name or the address is another's.
const TAKEN: &[&[&str]] = &[
    &["node", "add", "alpha"],
    &["token", "add", "first"],
    &[
        "relay",
        "add",
        "relay-1",
        "--address",
        "r.example",
        "--failure-domain",
        "r",
    ],
    &[
        "relay",
        "add",
        "other",
        "--address",
        "r.example",
        "--failure-domain",
        "r",
        "--local",
    ],
];

fn code(answer: &Answer, wanted: i32) -> Result<()> {
    ensure!(answer.code == Some(wanted), "wanted exit {wanted}: {answer:?}");
    Ok(())
}

/// R-UI-02, R-UI-05, R-POL-01: everything by the CLI, `--json` on reads, stable exit codes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cli_manages_links_settings_tokens_and_shows_the_log() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("first", echo.address())?
        .start()
        .await?;
    links(&pool, &echo).await?;
    settings(&pool)?;
    tokens(&pool).await?;
    members_and_log(&pool)?;
    login(&pool)
}

async fn links(pool: &Pool, echo: &Target) -> Result<()> {
    let address = target::closed_port()?;
    let listen = address.to_string();
    let add = |name: &str| {
        let target = echo.address();
        let to = [
            "--target",
            target,
            "--listen",
            listen.as_str(),
            "--class",
            "database",
        ];
        pool.cli(&[&["link", "add", name, "--from", "alpha", "--to", "beta"], &to[..]].concat())
    };
    add("db")?.ok()?;
    wait::until("the new link", Duration::from_secs(10), || {
        verified::echo_once(address, 1, 1000)
    })
    .await?;
    // The name is taken; then another name on the same address.
    code(&add("db")?, CONFLICT)?;
    let taken = add("db2")?;
    code(&taken, CONFLICT)?;
    ensure!(
        taken.stderr.contains(&listen) && taken.stderr.contains("db"),
        "{}",
        taken.stderr
    );

    let list = pool.cli(&["link", "ls", "--json"])?.json()?;
    let items = list
        .get("items")
        .or(Some(&list))
        .and_then(Value::as_array)
        .context("no list")?
        .clone();
    ensure!(items.len() == 2, "{list}");
    let shown = pool.cli(&["link", "show", "db", "--json"])?.json()?;
    ensure!(
        shown.get("class").and_then(Value::as_str) == Some("database"),
        "{shown}"
    );
    ensure!(pool.cli(&["link", "ls"])?.ok()?.stdout.contains("db"));

    let mut live = tokio::net::TcpStream::connect(listen.as_str()).await?;
    verified::echo_on(&mut live, 2, 1000).await?;
    pool.cli(&["link", "rm", "db"])?.ok()?;
    code(&pool.cli(&["link", "show", "db"])?, USAGE)?;
    wait::until("the listener closes", Duration::from_secs(5), || async {
        match tokio::net::TcpStream::connect(listen.as_str()).await {
            Ok(_) => Err("it still listens"),
            Err(_) => Ok(()),
        }
    })
    .await?;
    Ok(())
}

fn settings(pool: &Pool) -> Result<()> {
    let get = || pool.cli(&["settings", "get", "policy.lease", "--json"])?.json();
    ensure!(get()?.to_string().contains("72h"), "{}", get()?);
    pool.cli(&["settings", "set", "policy.lease", "48h"])?.ok()?;
    ensure!(get()?.to_string().contains("48h"), "{}", get()?);
    for (bad, allowed) in [
        ("59m", "1h to 168h"),
        ("169h", "1h to 168h"),
        ("48", "unit"),
        ("soon", "72h"),
        ("", "72h"),
    ] {
        let answer = pool.cli(&["settings", "set", "policy.lease", bad])?;
        code(&answer, USAGE)?;
        ensure!(answer.stderr.contains(allowed), "{bad}: {}", answer.stderr);
    }
    ensure!(get()?.to_string().contains("48h"), "a refused value was kept");
    let unknown = pool.cli(&["settings", "set", "policy.leese", "48h"])?;
    ensure!(
        unknown.code != Some(0) && unknown.stderr.contains("policy.leese"),
        "{unknown:?}"
    );
    let all = pool.cli(&["settings", "ls", "--json"])?.json()?.to_string();
    for key in [
        "policy.lease",
        "grant.lifetime",
        "placement.spread",
        "enrolment.token-lifetime",
    ] {
        ensure!(all.contains(key), "{all}");
    }
    Ok(())
}

/// A read token reads and changes nothing; a revoked one does nothing.
async fn tokens(pool: &Pool) -> Result<()> {
    let made = pool
        .cli(&["token", "add", "watcher", "--scope", "read", "--json"])?
        .json()?;
    let secret = made
        .get("secret")
        .and_then(Value::as_str)
        .context("no secret")?
        .to_owned();
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("token");
    std::fs::write(&file, &secret)?;
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let environment = [("FAIRLEAD_TOKEN_FILE", file.to_str().context("path")?)];
    let watcher = |arguments: &[&str]| pool.cli_with(arguments, "", &environment);
    watcher(&["link", "ls", "--json"])?.json()?;
    code(&watcher(&["link", "rm", "first"])?, REFUSED)?;
    code(&watcher(&["settings", "set", "policy.lease", "72h"])?, REFUSED)?;
    let listed = pool.cli(&["token", "ls", "--json"])?.json()?.to_string();
    ensure!(
        listed.contains("watcher") && !listed.contains(&secret),
        "a list shows a secret"
    );
    pool.cli(&["token", "rm", "watcher"])?.ok()?;
    code(&watcher(&["link", "ls", "--json"])?, REFUSED)?;
    let (status, _) = pool
        .rest()?
        .with_token("nobody")
        .send(reqwest::Method::GET, "/v1/links", None)
        .await?;
    ensure!(status == 401, "{status}");
    Ok(())
}

fn members_and_log(pool: &Pool) -> Result<()> {
    let relays = pool.cli(&["relay", "ls", "--json"])?.json()?.to_string();
    ensure!(
        relays.contains("local") && relays.contains("relay-1") && relays.contains("ready"),
        "{relays}"
    );
    ensure!(
        pool.cli(&["relay", "show", "local", "--json"])?
            .json()?
            .to_string()
            .contains("local")
    );
    let nodes = pool.cli(&["node", "ls", "--json"])?.json()?.to_string();
    ensure!(nodes.contains("alpha") && nodes.contains("beta"), "{nodes}");
    ensure!(
        pool.cli(&["node", "show", "alpha", "--json"])?
            .json()?
            .to_string()
            .contains("alpha")
    );
    let log = pool
        .cli(&["audit", "ls", "--limit", "1000", "--json"])?
        .json()?
        .to_string();
    for word in ["\"db\"", "watcher", "policy.lease", "48h"] {
        ensure!(log.contains(word.trim_matches('"')), "the log lacks {word}");
    }
    Ok(())
}

/// `login` writes a profile that the next command finds; nobody else can read it.
fn login(pool: &Pool) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let home = folder.path().to_str().context("path")?;
    let control = pool.file()?.control;
    let token = std::fs::read_to_string(&control.admin_token_file)?;
    let ca = control.ca_file.to_str().context("path")?;
    let environment = [("HOME", home), ("XDG_CONFIG_HOME", home)];
    let run = |arguments: &[&str], input: &str| fairlead_testkit::pool::run(arguments, input, &environment);
    let nobody = run(&["link", "ls"], "")?;
    ensure!(nobody.code != Some(0), "{nobody:?}");
    let address = pool.control_address()?.to_string();
    let done = run(
        &["login", "--control", &address, "--ca-file", ca, "--json"],
        &token,
    )?
    .json()?;
    ensure!(
        done.get("name").and_then(Value::as_str) == Some("first"),
        "{done}"
    );
    ensure!(
        run(&["link", "ls", "--json"], "")?
            .json()?
            .to_string()
            .contains("first")
    );
    let closed = target::closed_port()?.to_string();
    let answer = run(&["link", "ls", "--control", &closed], "")?;
    code(&answer, UNAVAILABLE)?;
    ensure!(answer.stderr.contains(&closed), "{}", answer.stderr);
    Ok(())
}

/// R-UI-02: the exits are those of one table, whatever the command; a folder and an address that another
/// process has are conflicts; the flags of the connection may stand before the verb.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_command_ends_as_the_table_of_exits_says() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("db", echo.address())?
        .start()
        .await?;
    for (commands, exit) in [(UNKNOWN, USAGE), (GUARDED, REFUSED), (TAKEN, CONFLICT)] {
        for arguments in commands {
            code(&pool.cli(arguments)?, exit).with_context(|| format!("{arguments:?}"))?;
        }
    }

    let file = pool.file()?;
    let run = |arguments: &[&str]| fairlead_testkit::pool::run(arguments, "", &[]);
    let inside = |path: &str| pool.dir().join(path).display().to_string();
    let (root, control) = (inside(""), inside("control"));
    let (relay, node) = (inside("relays/local"), inside("nodes/alpha"));
    let held = [
        (vec!["up", "--ports", "auto", "--dir", &root], pool.up_pid()),
        (
            vec![
                "run",
                "control",
                "--listen",
                "127.0.0.1:0",
                "--advertise",
                "c:1",
                "--dir",
                &control,
            ],
            file.control.pid,
        ),
        (
            vec!["run", "supervisor", "--dir", &relay],
            file.relay("local")?.supervisor_pid,
        ),
        (
            vec!["run", "worker", "--dir", &relay],
            file.relay("local")?.worker_pid,
        ),
        (vec!["run", "node", "--dir", &node], file.node("alpha")?.pid),
    ];
    for (arguments, holder) in held {
        let answer = run(&arguments)?;
        code(&answer, CONFLICT)?;
        ensure!(answer.stderr.contains(&format!("process {holder}")), "{answer:?}");
    }
    let new = tempfile::tempdir()?;
    let dir = new.path().display().to_string();
    let taken = file.control.url.trim_start_matches("https://");
    for flag in ["--listen", "--metrics"] {
        let mut arguments = vec!["run", "control", "--advertise", "c:1", "--dir", &dir, flag, taken];
        if flag == "--metrics" {
            arguments.extend(["--listen", "127.0.0.1:0"]);
        }
        let answer = run(&arguments)?;
        code(&answer, CONFLICT)?;
        ensure!(answer.stderr.contains(taken), "{answer:?}");
    }

    let (ca, token) = (
        file.control.ca_file.display(),
        file.control.admin_token_file.display(),
    );
    let flags = format!("--control {taken} --ca-file {ca} --token-file {token} --json");
    let before: Vec<&str> = flags.split(' ').chain(["relay", "ls"]).collect();
    let after: Vec<&str> = ["relay", "ls"].into_iter().chain(flags.split(' ')).collect();
    let between: Vec<&str> = ["relay"]
        .into_iter()
        .chain(flags.split(' '))
        .chain(["ls"])
        .collect();
    for arguments in [before, after, between] {
        let relays = run(&arguments)?.json()?;
        ensure!(relays.to_string().contains("relay-1"), "{arguments:?}: {relays}");
    }
    Ok(())
}

/// R-UI-02: whatever is changed or removed is printed with `--json` as `show` prints it: the object itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changing_commands_print_the_object_as_json() -> Result<()> {
    let pool = Pool::builder().relays(0).start().await?;
    let json = |line: &str| {
        let arguments: Vec<&str> = line.split(' ').chain(["--json"]).collect();
        pool.cli(&arguments)?.json().with_context(|| line.to_owned())
    };
    let listen = target::closed_port()?;
    for (line, key, value) in [
        ("node add gamma", "name", "gamma"),
        ("node token gamma", "name", "gamma"),
        ("node rm gamma", "name", "gamma"),
        ("relay add r --address r.example --failure-domain r", "name", "r"),
        ("relay token r", "name", "r"),
        ("relay rm r", "name", "r"),
        (
            &*format!("link add web --from alpha --to beta --target 127.0.0.1:1 --listen {listen}"),
            "name",
            "web",
        ),
        ("link rm web", "name", "web"),
        ("settings set policy.lease 48h", "key", "policy.lease"),
        ("token add dash", "name", "dash"),
        ("token rm dash", "name", "dash"),
    ] {
        let printed = json(line)?;
        // A new token's secret stands beside the token, whose `show` never has it.
        let object = printed.get("token").filter(|t| t.is_object()).unwrap_or(&printed);
        ensure!(
            object.get(key).and_then(Value::as_str) == Some(value),
            "{line}: {printed}"
        );
        ensure!(
            key == "key" || object.get("id").is_some_and(Value::is_string),
            "{line}: {printed}"
        );
    }
    Ok(())
}
