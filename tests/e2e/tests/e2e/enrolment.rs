//! Enrolment: what goes wrong has its own message and exit code, and leaves nothing behind.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Answer, Pool, Warden, binary, pool, process, target, wait};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const PIN_MISMATCH: i32 = 10;
const TOKEN_USED: i32 = 11;
const TOKEN_EXPIRED: i32 = 12;
const TOKEN_UNKNOWN: i32 = 13;
const CLOCK_SKEW: i32 = 14;
const HOST_HAS_RELAY: i32 = 15;
const TOKEN_OTHER_HOST: i32 = 16;
const UNREACHABLE: i32 = 5;
const USAGE: i32 = 64;

/// Runs the rest as if on a host with other ids: arguments are a file with one, and the command.
const ANOTHER_HOST: &str = r#"
set -e
for place in /etc/machine-id /sys/class/dmi/id/product_uuid; do
    if [ -e "$place" ]; then mount --bind "$1" "$place"; fi
done
shift
exec "$@"
"#;

const DAY_MS: i64 = 86_400_000;

/// A member that was added: its one-shot token, and the pin of the CA.
struct Issued {
    token: String,
    pin: String,
    command: String,
}

fn issued(answer: &Value) -> Result<Issued> {
    let text = |key: &str| {
        answer
            .get(key)
            .and_then(Value::as_str)
            .with_context(|| format!("no `{key}`: {answer}"))
    };
    let command = text("install_command")?;
    let (_, pin) = command
        .split_once("--ca-pin ")
        .context("the install command pins no CA")?;
    let pin = pin
        .split([' ', '\'', '"', '\n'])
        .next()
        .unwrap_or_default()
        .to_owned();
    ensure!(pin.starts_with("sha256:") && pin.len() == 71, "{command}");
    let token = text("token")?.to_owned();
    // The token travels by standard input, never in an argument.
    ensure!(command.starts_with("fairlead enrol "), "{command}");
    ensure!(!command.contains(&token), "the command holds the token");
    let command = command.to_owned();
    Ok(Issued { token, pin, command })
}

/// One attempt to enrol a node.
struct Attempt<'a> {
    control: &'a str,
    pin: &'a str,
    token: &'a str,
    offset_ms: i64,
}

impl Attempt<'_> {
    fn run(&self, role: &str, dir: &Path) -> Result<Answer> {
        let dir = dir.to_str().context("path")?;
        let arguments = [
            "enrol",
            role,
            "--control",
            self.control,
            "--ca-pin",
            self.pin,
            "--dir",
            dir,
        ];
        let offset = self.offset_ms.to_string();
        let environment = [("FAIRLEAD_TEST_WALL_OFFSET_MS", offset.as_str())];
        pool::run(&arguments, self.token, &environment)
    }

    /// Runs, and holds the answer against exit code and words; the folder must not be there after it.
    fn fails(&self, dir: &Path, code: i32, words: &[&str]) -> Result<()> {
        let answer = self.run("node", dir)?;
        ensure!(answer.code == Some(code), "wanted exit {code}: {answer:?}");
        for word in words {
            ensure!(
                answer.stderr.contains(word),
                "the message lacks `{word}`: {}",
                answer.stderr
            );
        }
        ensure!(!answer.stderr.contains(self.token), "the message holds the token");
        ensure!(left_behind(dir).is_empty(), "left behind: {:?}", left_behind(dir));
        Ok(())
    }
}

fn left_behind(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.path())
        .collect()
}

/// R-ENR-01, R-ENR-02, R-ENR-03, R-POL-05: each fault its own code and message, nothing left behind;
/// none of them spends the token, which then works once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_failed_enrolment_has_its_own_code_and_leaves_nothing() -> Result<()> {
    let pool = Pool::builder().relays(0).start().await?;
    let folder = tempfile::tempdir()?;
    let dir = |name: &str| folder.path().join(name);
    let control = pool.control_address()?.to_string();
    let Issued { token, pin, .. } = issued(&pool.cli(&["node", "add", "gamma", "--json"])?.json()?)?;
    let good = Attempt {
        control: &control,
        pin: &pin,
        token: &token,
        offset_ms: 0,
    };

    let other_pin = format!("sha256:{}", "0".repeat(64));
    Attempt {
        pin: &other_pin,
        ..good
    }
    .fails(&dir("pin"), PIN_MISMATCH, &[&other_pin, &pin])?;

    let nobody = target::closed_port()?.to_string();
    Attempt {
        control: &nobody,
        ..good
    }
    .fails(&dir("address"), UNREACHABLE, &[&nobody])?;
    let unresolved = "no-such-host.invalid:8443";
    Attempt {
        control: unresolved,
        ..good
    }
    .fails(&dir("name"), UNREACHABLE, &["no-such-host.invalid"])?;

    let stranger = "A".repeat(token.len());
    Attempt {
        token: &stranger,
        ..good
    }
    .fails(&dir("unknown"), TOKEN_UNKNOWN, &["token"])?;

    for offset_ms in [DAY_MS, -DAY_MS] {
        let skewed = Attempt { offset_ms, ..good };
        skewed.fails(&dir("clock"), CLOCK_SKEW, &["clock differs by"])?;
    }
    // Half a minute is within what is tolerated.
    let first = Attempt {
        offset_ms: 30_000,
        ..good
    }
    .run("node", &dir("gamma"))?
    .ok()?;
    ensure!(dir("gamma").join("member.json").exists(), "{first:?}");
    let nodes = pool.cli(&["node", "ls", "--json"])?.json()?.to_string();
    ensure!(nodes.contains("gamma"), "{nodes}");

    good.fails(&dir("again"), TOKEN_USED, &["used"])?;
    Ok(())
}

/// R-ENR-01: the one-shot command does what it says, run by a shell as it is printed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_install_command_enrols() -> Result<()> {
    let pool = Pool::builder().relays(0).start().await?;
    let folder = tempfile::tempdir()?;
    let Issued { command, token, .. } = issued(&pool.cli(&["node", "add", "delta", "--json"])?.json()?)?;
    let dir = folder.path().join("node");
    let command = command.replace("/var/lib/fairlead/node", dir.to_str().context("path")?);
    ensure!(command.contains(dir.to_str().context("path")?), "{command}");
    pool::run_printed(&command, &token)?.ok()?;
    let key = std::fs::metadata(dir.join("identity/key.pem"))?;
    ensure!(
        std::os::unix::fs::PermissionsExt::mode(&key.permissions()) & 0o077 == 0,
        "others read the key"
    );
    ensure!(
        pool.cli(&["node", "show", "delta", "--json"])?
            .json()?
            .to_string()
            .contains("delta")
    );
    Ok(())
}

/// R-ENR-02: a token that has expired says so, and enrols nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_token_is_refused() -> Result<()> {
    let mut pool = Pool::builder().relays(0).start().await?;
    pool.cli(&["settings", "set", "enrolment.token-lifetime", "5m"])?
        .ok()?;
    let Issued { token, pin, .. } = issued(&pool.cli(&["node", "add", "late", "--json"])?.json()?)?;
    ensure!(pool.stop(Duration::from_secs(20)).await?.success());
    // Ten minutes later, by the wall clock of every process.
    let offset_ms = 600_000;
    pool.set_env("FAIRLEAD_TEST_WALL_OFFSET_MS", &offset_ms.to_string());
    pool.start_again().await?;
    let control = pool.control_address()?.to_string();
    let folder = tempfile::tempdir()?;
    let attempt = Attempt {
        control: &control,
        pin: &pin,
        token: &token,
        offset_ms,
    };
    attempt.fails(&folder.path().join("late"), TOKEN_EXPIRED, &["expired"])
}

/// R-ENR-04: outside the laboratory, a host holds one relay; the second is refused with its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_holds_one_relay() -> Result<()> {
    let folder = tempfile::Builder::new().prefix("flc-").tempdir()?.keep();
    let _warden = Warden::over(&folder)?;
    let dir = folder.join("control");
    let address = target::closed_port()?.to_string();
    let log = std::fs::File::create(folder.join("control.log"))?;
    let mut control = Command::new(binary::fairlead()?)
        .args([
            "run",
            "control",
            "--listen",
            &address,
            "--advertise",
            &address,
            "--dir",
        ])
        .arg(&dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()?;
    let token_file = dir.join("admin.token");
    let ca_file = dir.join("ca.pem");
    let admin = |arguments: &[&str]| -> Result<Answer> {
        let files = [
            ("FAIRLEAD_TOKEN_FILE", &token_file),
            ("FAIRLEAD_CA_FILE", &ca_file),
        ];
        let mut environment = vec![("FAIRLEAD_CONTROL", address.as_str())];
        for (key, file) in files {
            environment.push((key, file.to_str().context("path")?));
        }
        pool::run(arguments, "", &environment)
    };
    wait::until("the control plane serves", Duration::from_secs(20), || async {
        admin(&["relay", "ls", "--json"])?.ok().map(drop)
    })
    .await?;

    // R-ENR-01: an address that no other host reaches is refused by its field, outside of a lab.
    let near = admin(&[
        "relay",
        "add",
        "first",
        "--address",
        "127.0.0.1",
        "--failure-domain",
        "h",
    ])?;
    let told = "address: `127.0.0.1` is reached from its own host only";
    ensure!(near.code == Some(USAGE) && near.stderr.contains(told), "{near:?}");

    let host_key = folder.join("host.key");
    let enrol = |name: &str, port: u16| -> Result<Answer> {
        let relay = format!("192.0.2.1:{port}");
        let add = [
            "relay",
            "add",
            name,
            "--address",
            &relay,
            "--failure-domain",
            name,
            "--json",
        ];
        let Issued { token, pin, .. } = issued(&admin(&add)?.json()?)?;
        let (dir, key) = (folder.join(name), host_key.to_str().context("path")?);
        let arguments = [
            "enrol",
            "relay",
            "--control",
            &address,
            "--ca-pin",
            &pin,
            "--host-key-file",
            key,
            "--dir",
        ];
        let arguments = [&arguments[..], &[dir.to_str().context("path")?]].concat();
        pool::run(&arguments, &token, &[])
    };
    enrol("first", 19443)?.ok()?;
    let second = enrol("second", 19444)?;
    ensure!(second.code == Some(HOST_HAS_RELAY), "{second:?}");
    ensure!(
        second.stderr.contains("first"),
        "the message names no relay: {}",
        second.stderr
    );
    ensure!(left_behind(&folder.join("second")).is_empty());
    process::terminate(control.id())?;
    ensure!(control.wait()?.success(), "the control plane did not end cleanly");
    Ok(())
}

/// R-ENR-02: a token that one host has used enrols no other; the second one is told so, by its exit too,
/// and keeps nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_one_host_enrols_no_other() -> Result<()> {
    let pool = Pool::builder().relays(0).start().await?;
    let folder = tempfile::tempdir()?;
    let control = pool.control_address()?.to_string();
    let Issued { token, pin, .. } = issued(&pool.cli(&["node", "add", "gamma", "--json"])?.json()?)?;
    let attempt = Attempt {
        control: &control,
        pin: &pin,
        token: &token,
        offset_ms: 0,
    };
    attempt.run("node", &folder.path().join("gamma"))?.ok()?;

    let id = folder.path().join("id");
    std::fs::write(&id, "00000000000000000000000000000001\n")?;
    let dir = folder.path().join("delta");
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            ANOTHER_HOST,
            "sh",
        ])
        .arg(&id)
        .arg(binary::fairlead()?)
        .args([
            "enrol",
            "node",
            "--control",
            &control,
            "--ca-pin",
            &pin,
            "--host-key-file",
        ])
        .arg(folder.path().join("other.key"))
        .arg("--dir")
        .arg(&dir);
    let answer = pool::run_command(command, &token)?;
    ensure!(answer.code == Some(TOKEN_OTHER_HOST), "{answer:?}");
    ensure!(answer.stderr.contains("another host"), "{answer:?}");
    ensure!(!answer.stderr.contains(&token) && !dir.exists(), "{answer:?}");
    Ok(())
}
