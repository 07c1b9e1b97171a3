//! Enrolment against a real control plane: each failure its own words and exit code, and nothing
//! left behind.

use serde_json::Value;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The control plane makes its keys first; a busy machine takes its time.
const LIMIT: Duration = Duration::from_secs(60);

struct Control {
    child: Child,
    dir: tempfile::TempDir,
    address: String,
}

impl Drop for Control {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fairlead() -> Command {
    Command::new(env!("CARGO_BIN_EXE_fairlead"))
}

impl Control {
    fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("fl").tempdir().unwrap();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let address = free.to_string();
        let child = fairlead()
            .args([
                "run",
                "control",
                "--lab",
                "--listen",
                &address,
                "--advertise",
                &address,
                "--dir",
            ])
            .arg(dir.path().join("control"))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let control = Self { child, dir, address };
        let began = Instant::now();
        while !control.cli(&["status", "--json"]).status.success() {
            assert!(began.elapsed() < LIMIT, "no control plane in time");
            std::thread::sleep(Duration::from_millis(50));
        }
        control
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = fairlead();
        command
            .args(arguments)
            .env("FAIRLEAD_CONTROL", &self.address)
            .env("FAIRLEAD_CA_FILE", self.path("control/ca.pem"))
            .env("FAIRLEAD_TOKEN_FILE", self.path("control/admin.token"));
        command
    }

    fn cli(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.cli(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn pin(&self) -> String {
        self.json(&["status", "--json"])["ca_pin"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    fn token(&self, arguments: &[&str]) -> String {
        self.json(arguments)["token"].as_str().unwrap().to_owned()
    }

    /// Enrols into `dir`; exit code and what was said.
    fn enrol(&self, role: &str, control: &str, pin: &str, token: &str, dir: &Path) -> (i32, String) {
        let mut child = fairlead()
            .args(["enrol", role, "--control", control, "--ca-pin", pin, "--dir"])
            .arg(dir)
            .arg("--host-key-file")
            .arg(self.path("host.key"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // One that fails before it reads the token closes the pipe.
        let _ = child.stdin.take().unwrap().write_all(token.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), text)
    }
}

/// R-ENR-01, R-ENR-02: a pinned CA and a token that works once; whatever fails says so, has its
/// own exit code and leaves nothing.
#[test]
fn each_failure_has_its_exit_code_and_leaves_nothing() {
    let control = Control::start();
    let pin = control.pin();
    let token = control.token(&["node", "add", "alpha", "--json"]);
    let dir = control.path("alpha");
    let nothing_left = |what: &str| {
        let left: Vec<_> = std::fs::read_dir(control.dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .filter(|name| name != "control" && name != "host.key")
            .collect();
        assert!(left.is_empty(), "{what} left {left:?}");
    };
    let other_pin = format!("sha256:{}", "ab".repeat(32));
    let closed = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let at = control.address.as_str();
    let unknown = "A".repeat(43);
    for (what, role, to, with_pin, with_token, code, says) in [
        ("another pin", "node", at, &other_pin, &token, 10, "sha256:abab"),
        (
            "no control plane",
            "node",
            &closed,
            &pin,
            &token,
            5,
            "cannot be reached",
        ),
        (
            "an unknown token",
            "node",
            at,
            &pin,
            &unknown,
            13,
            "TOKEN_UNKNOWN",
        ),
        (
            "a node's token for a relay",
            "relay",
            at,
            &pin,
            &token,
            13,
            "TOKEN_OTHER_MEMBER",
        ),
        ("no token", "node", at, &pin, &String::new(), 64, "no token"),
    ] {
        let (exit, text) = control.enrol(role, to, with_pin, with_token, &dir);
        assert_eq!(exit, code, "{what}: {text}");
        assert!(text.contains(says), "{what}: {text}");
        assert!(!text.contains(&token), "{what} shows the token");
        nothing_left(what);
    }

    let (exit, text) = control.enrol("node", at, &pin, &token, &dir);
    assert_eq!(exit, 0, "{text}");
    assert!(dir.join("member.json").exists() && dir.join("identity/key.pem").exists());
    let (exit, text) = control.enrol("node", at, &pin, &token, &control.path("beta"));
    assert_eq!(exit, 11, "{text}");
    assert!(!control.path("beta").exists());
    // The folder is a member's, whoever asks for it.
    for role in ["node", "relay"] {
        let (exit, text) = control.enrol(role, at, &pin, &token, &dir);
        assert_eq!(exit, 4, "{text}");
        assert!(text.contains("already enrolled as node alpha"), "{text}");
    }
}

/// R-ENR-04 holds outside lab mode only; two relays of one host are told apart in it.
#[test]
fn a_lab_takes_several_relays_on_one_host() {
    let control = Control::start();
    let pin = control.pin();
    for name in ["one", "two"] {
        let address = format!("{name}.example");
        let domain = format!("host={name}");
        let token = control.token(&[
            "relay",
            "add",
            name,
            "--address",
            &address,
            "--failure-domain",
            &domain,
            "--json",
        ]);
        let (exit, text) = control.enrol("relay", &control.address, &pin, &token, &control.path(name));
        assert_eq!(exit, 0, "{text}");
    }
    let taken = control.cli(&[
        "relay",
        "add",
        "one",
        "--address",
        "x.example",
        "--failure-domain",
        "h",
    ]);
    assert_eq!(taken.status.code(), Some(4), "{taken:?}");
    let bad = control.cli(&[
        "link", "add", "Bad", "--from", "a", "--to", "b", "--target", "::1:5", "--listen", "h:1",
    ]);
    let text = String::from_utf8(bad.stderr).unwrap();
    assert_eq!(bad.status.code(), Some(64), "{text}");
    for place in ["NAME:", "--target:", "--listen:"] {
        assert!(text.contains(place), "{place} {text}");
    }
}

/// R-ENR-02: what this host cannot do is found before the token is spent; the token works after it.
#[test]
fn a_folder_that_cannot_be_made_spends_no_token() {
    let control = Control::start();
    let pin = control.pin();
    let token = control.token(&["node", "add", "alpha", "--json"]);
    let file = control.path("file");
    std::fs::write(&file, "").unwrap();
    let (exit, text) = control.enrol("node", &control.address, &pin, &token, &file.join("alpha"));
    assert_eq!(exit, 1, "{text}");
    assert!(text.contains("--dir"), "{text}");
    let (exit, text) = control.enrol("node", &control.address, &pin, &token, &control.path("alpha"));
    assert_eq!(exit, 0, "{text}");
    assert!(text.contains("next: fairlead run node --dir "), "{text}");
}

/// R-ENR-02: an enrolment that was killed after the control plane's commit goes on with its key.
#[test]
fn an_enrolment_that_was_cut_short_goes_on_with_its_token() {
    let control = Control::start();
    let pin = control.pin();
    let token = control.token(&["node", "add", "alpha", "--json"]);
    let dir = control.path("alpha");
    let enrol = || control.enrol("node", &control.address, &pin, &token, &dir);
    assert_eq!(enrol().0, 0);
    // As if it had been killed just before its last step.
    std::fs::remove_file(dir.join("member.json")).unwrap();
    std::fs::rename(&dir, control.path(".alpha.enrol")).unwrap();
    let (exit, text) = enrol();
    assert_eq!(exit, 0, "{text}");
    assert!(dir.join("member.json").exists() && !control.path(".alpha.enrol").exists());
    // With another key, the token is used.
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(enrol().0, 11);
}

/// A relay that is not on port 9443 listens where it is advertised.
#[test]
fn a_relay_listens_on_the_port_of_its_address() {
    let control = Control::start();
    let pin = control.pin();
    let add = [
        "relay",
        "add",
        "one",
        "--address",
        "one.example:19443",
        "--failure-domain",
        "h",
        "--json",
    ];
    let token = control.token(&add);
    let dir = control.path("one");
    let (exit, text) = control.enrol("relay", &control.address, &pin, &token, &dir);
    assert_eq!(exit, 0, "{text}");
    let member = std::fs::read_to_string(dir.join("member.json")).unwrap();
    assert!(member.contains("\"[::]:19443\""), "{member}");
}

/// R-UI-02: what cannot be printed is an error; a reader that has enough is none.
#[test]
fn an_answer_that_cannot_be_printed_is_an_error() {
    let control = Control::start();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let run = |stdout: Stdio| {
        let mut command = control.command(&["audit", "ls"]);
        command.stdout(stdout).stderr(Stdio::piped()).output().unwrap()
    };
    let output = run(full.into());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard output"));
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = run(writer.into());
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// What is not there is said with what is; nothing is asked for by an empty name.
#[test]
fn names_that_are_not_there_are_answered_with_those_that_are() {
    let control = Control::start();
    control.json(&["node", "add", "alpha", "--json"]);
    for (arguments, code, says) in [
        (&["node", "show", "nope"][..], 64, "alpha"),
        (&["node", "show", ""], 64, "which node"),
        (&["settings", "get", "policy.leese"], 64, "policy.lease"),
        (&["settings", "set", "policy.lease"], 64, "KEY=VALUE"),
        (&["audit", "ls", "--limit", "5000"], 64, "`5000`"),
        (&["audit", "ls", "--last", "-5"], 64, "`-5`"),
    ] {
        let output = control.cli(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(says), "{arguments:?}: {text}");
    }
    let nope = control.cli(&["settings", "get", "nope"]);
    let text = String::from_utf8_lossy(&nope.stderr).into_owned();
    assert_eq!(text.matches("grant.lifetime").count(), 1, "{text}");
    assert!(
        control
            .cli(&["settings", "set", "policy.lease=48h"])
            .status
            .success()
    );
    let last = control.cli(&["audit", "ls", "--last", "1"]);
    let last = String::from_utf8(last.stdout).unwrap();
    assert!(
        last.contains("policy.lease") && last.lines().count() == 2,
        "{last}"
    );
}

/// A pool without a relay is not said to need nothing; a file that is no token is named as such.
#[test]
fn an_empty_pool_and_a_wrong_token_file_are_said_so() {
    let control = Control::start();
    let status = control.json(&["status", "--json"]);
    assert!(status["warnings"].is_array(), "{status}");
    let status = control.cli(&["status"]);
    let text = String::from_utf8(status.stdout).unwrap();
    assert!(text.contains("no relay yet: fairlead relay add"), "{text}");
    assert!(!text.contains("nothing needs attention"), "{text}");
    let mut other = control.command(&["status"]);
    let output = other
        .env("FAIRLEAD_TOKEN_FILE", control.path("control/ca.pem"))
        .output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(64), "{text}");
    assert!(text.contains("ca.pem does not hold a token"), "{text}");
}

/// R-ENR-02: a typing error is taken back, a lost token replaced; one's own admin token is not
/// revoked by accident.
#[test]
fn members_and_tokens_are_taken_back() {
    let control = Control::start();
    let pin = control.pin();
    let lost = control.token(&["node", "add", "alhpa", "--json"]);
    let shown = control.cli(&["node", "token", "alhpa"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(
        shown.contains("has a new token") && shown.contains("fairlead run node"),
        "{shown}"
    );
    let (exit, text) = control.enrol("node", &control.address, &pin, &lost, &control.path("a"));
    assert_eq!(exit, 13, "{text}");
    assert!(control.cli(&["node", "rm", "alhpa"]).status.success());
    assert_eq!(control.cli(&["node", "show", "alhpa"]).status.code(), Some(64));
    let add = [
        "relay",
        "add",
        "r",
        "--address",
        "r.example",
        "--failure-domain",
        "h",
    ];
    for arguments in [
        &add[..],
        &["relay", "rm", "r"],
        &add[..],
        &["relay", "token", "r"],
    ] {
        let output = control.cli(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
    let own = control.cli(&["token", "rm", "first"]);
    assert_eq!(own.status.code(), Some(2), "{own:?}");
    assert!(control.cli(&["status"]).status.success());
}

/// A daemon without its member says what makes one.
#[test]
fn a_daemon_without_a_member_says_to_enrol() {
    let dir = tempfile::tempdir().unwrap();
    for (role, member) in [("supervisor", "relay"), ("worker", "relay"), ("node", "node")] {
        for path in [dir.path().join("none"), dir.path().to_owned()] {
            let output = fairlead()
                .args(["run", role, "--dir"])
                .arg(path)
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(64), "{text}");
            assert!(text.contains(&format!("fairlead enrol {member}")), "{text}");
        }
    }
}

/// A port that another process has is said with its name, the one for metrics as well; a folder that holds
/// something else is not made a control plane's.
#[test]
fn what_a_control_plane_may_not_have_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let run = |dir: &std::path::Path, metrics: &str| {
        let arguments = [
            "run",
            "control",
            "--listen",
            "127.0.0.1:0",
            "--advertise",
            "127.0.0.1:1",
        ];
        let answer = fairlead()
            .args(arguments)
            .args(["--metrics", metrics, "--dir"])
            .arg(dir)
            .output()
            .unwrap();
        let text = String::from_utf8(answer.stderr).unwrap();
        (answer.status.code(), text)
    };
    let (code, text) = run(&dir.path().join("new"), &taken);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains(&format!("{taken}/tcp is taken by ")), "{text}");
    std::fs::write(dir.path().join("passwd"), "x").unwrap();
    let (code, text) = run(dir.path(), "127.0.0.1:0");
    assert_eq!(code, Some(64), "{text}");
    assert!(text.contains("(passwd)"), "{text}");
}
