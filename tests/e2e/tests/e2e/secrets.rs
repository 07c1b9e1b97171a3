//! Secrets stay where they belong: in files of mode 0600 and in the memory of their process (issue 4;
//! R-ENR-02, R-ENR-03). A whole run, with enrolments, tokens, links, traffic and restarts, is searched
//! afterwards: logs, command lines, environments, files that others may read.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Pool, Role, Target, process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Files that hold nothing but a secret.
const SECRET_FILES: [&str; 4] = ["key.pem", "host.key", "reset.key", "admin.token"];

fn files(dir: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files(&entry.path(), found)?;
        } else if entry.file_type()?.is_file() {
            found.push(entry.path());
        }
    }
    Ok(())
}

/// The forms that a secret may show itself in.
fn forms(name: &str, bytes: &[u8], secrets: &mut BTreeMap<String, Vec<u8>>) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        // PEM: each whole line of base64 by itself; a token: its one line.
        for (number, line) in text.lines().enumerate() {
            if line.len() >= 16 && !line.starts_with("-----") {
                secrets.insert(format!("{name}, line {number}"), line.as_bytes().to_vec());
            }
        }
    } else if bytes.len() >= 16 {
        // Raw keys: as they are, and as people print them.
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        secrets.insert(format!("{name}, hexadecimal"), hex.into_bytes());
        secrets.insert(name.to_owned(), bytes.to_vec());
    }
}

fn holds(text: &[u8], secret: &[u8]) -> bool {
    text.windows(secret.len()).any(|window| window == secret)
}

fn clean(what: &str, text: &[u8], secrets: &BTreeMap<String, Vec<u8>>) -> Result<()> {
    for (name, secret) in secrets {
        ensure!(!holds(text, secret), "{what} holds a secret: {name}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_leaves_its_file() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("db", echo.address())?
        .start()
        .await?;
    let mut secrets = BTreeMap::new();
    for arguments in [
        &["node", "add", "gamma", "--json"][..],
        &["token", "add", "dash", "--json"][..],
    ] {
        let issued = pool.cli(arguments)?.json()?;
        let secret = issued
            .get("token")
            .filter(|t| t.is_string())
            .or(issued.get("secret"));
        let secret = secret.and_then(Value::as_str).context("no secret")?;
        secrets.insert(arguments.join(" "), secret.as_bytes().to_vec());
    }
    pool.until_echo("db", Duration::from_secs(10)).await?;
    for role in [
        Role::Control,
        Role::Node("alpha"),
        Role::Supervisor("local"),
        Role::Worker("relay-1"),
    ] {
        let old = pool.kill9(role)?;
        pool.back(role, old).await?;
    }
    pool.until_echo("db", Duration::from_secs(20)).await?;

    let mut all = Vec::new();
    files(pool.dir(), &mut all)?;
    for path in &all {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if SECRET_FILES.contains(&name) || name.ends_with(".key.pem") {
            forms(&path.display().to_string(), &std::fs::read(path)?, &mut secrets);
            let mode = std::fs::metadata(path)?.permissions().mode() & 0o777;
            ensure!(mode == 0o600, "{}: mode {mode:o}", path.display());
        }
    }
    // CA, policy and grant keys, the admin's token, and a key of each of four members at least.
    ensure!(secrets.len() >= 12, "only {} secrets are known", secrets.len());
    let control = secrets.iter().filter(|(name, _)| name.contains("control/keys"));
    ensure!(
        control.count() >= 3,
        "the control plane's keys are not among them"
    );

    let mut readable = 0;
    for path in &all {
        let mode = std::fs::metadata(path)?.permissions().mode();
        if mode & 0o077 != 0 || path.starts_with(pool.dir().join("logs")) {
            readable += 1;
            clean(&path.display().to_string(), &std::fs::read(path)?, &secrets)?;
        }
    }
    let dir = pool.dir().display().to_string();
    let processes = process::with_argument(&dir);
    ensure!(processes.len() >= 8, "only {} processes", processes.len());
    for pid in &processes {
        for part in ["cmdline", "environ"] {
            let text = std::fs::read(format!("/proc/{pid}/{part}"))?;
            clean(&format!("{part} of process {pid}"), &text, &secrets)?;
        }
    }
    println!(
        "{} secrets, {readable} readable files, {} processes",
        secrets.len(),
        processes.len()
    );
    // The search can find: a log line with a token in it would be seen.
    let one = secrets.values().next().context("no secret")?;
    ensure!(clean("a log", &[b"token=", &one[..], b"\n"].concat(), &secrets).is_err());

    // No process leaves its memory on disk when it dies; `up` has an admin's token.
    let worker = pool.pid(Role::Worker("local"))?;
    let daemons = [worker, pool.pid(Role::Control)?, pool.pid(Role::Node("beta"))?];
    for pid in daemons.into_iter().chain([pool.up_pid()]) {
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
        let core = limits
            .lines()
            .find(|l| l.starts_with("Max core file size"))
            .context("no limit")?;
        let values: Vec<&str> = core.split_whitespace().skip(4).take(2).collect();
        ensure!(values == ["0", "0"], "{core}");
    }
    let folder = std::fs::read_link(format!("/proc/{worker}/cwd"))?;
    let cores = |folder: &Path| -> Result<usize> {
        let names = std::fs::read_dir(folder)?.filter_map(|e| e.ok()?.file_name().into_string().ok());
        Ok(names.filter(|n| n.starts_with("core")).count())
    };
    let before = cores(&folder)?;
    std::process::Command::new("kill")
        .args(["-ABRT", &worker.to_string()])
        .status()?;
    pool.back(Role::Worker("local"), worker).await?;
    ensure!(cores(&folder)? == before, "a core dump in {}", folder.display());
    Ok(())
}
