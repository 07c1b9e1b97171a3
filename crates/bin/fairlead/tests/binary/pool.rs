//! A whole pool by `fairlead up`, as a person would run it.

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// A pool needs a second or two; a busy machine many more.
const LIMIT: Duration = Duration::from_secs(100);

fn fairlead() -> Command {
    Command::new(env!("CARGO_BIN_EXE_fairlead"))
}

/// `up`, killed with all its daemons when dropped: they are tied to it.
struct Up {
    child: Child,
    dir: PathBuf,
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for `look` to see something.
fn until<T>(what: &str, dir: &Path, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(began.elapsed() < LIMIT, "{what}: not seen in time\n{}", logs(dir));
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn logs(dir: &Path) -> String {
    let Ok(entries) = std::fs::read_dir(dir.join("logs")) else {
        return String::new();
    };
    let mut text = String::new();
    for path in entries.flatten().map(|e| e.path()) {
        let log = std::fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(15)..].join("\n");
        text.push_str(&format!("--- {}\n{tail}\n", path.display()));
    }
    text
}

impl Up {
    fn start(dir: &Path) -> Self {
        let child = fairlead()
            .args(["up", "--ports", "auto", "--relays", "2", "--dir"])
            .arg(dir)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut up = Self {
            child,
            dir: dir.to_owned(),
        };
        until("pool.json", dir, || {
            if let Some(status) = up.child.try_wait().unwrap() {
                let mut text = String::new();
                up.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
                panic!("up ended: {status}\n{text}\n{}", logs(dir));
            }
            // One that was killed left its file behind.
            let text = std::fs::read(dir.join("pool.json")).ok()?;
            let file: Value = serde_json::from_slice(&text).unwrap();
            (file["up_pid"] == up.child.id()).then_some(())
        });
        up
    }

    fn file(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.dir.join("pool.json")).unwrap()).unwrap()
    }

    fn number(&self, pointer: &str) -> i64 {
        self.file().pointer(pointer).unwrap().as_i64().unwrap()
    }

    fn text(&self, pointer: &str) -> String {
        self.file().pointer(pointer).unwrap().as_str().unwrap().to_owned()
    }

    /// Sends bytes through the built-in service and takes them back, to the end.
    fn echo(&self, payload: &[u8]) -> Option<Vec<u8>> {
        let mut stream = TcpStream::connect(self.text("/links/0/listen")).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut writer = stream.try_clone().unwrap();
        let sent = payload.to_vec();
        let send = std::thread::spawn(move || {
            let done = writer.write_all(&sent).is_ok();
            let _ = writer.shutdown(Shutdown::Write);
            done
        });
        let mut back = Vec::new();
        let read = stream.read_to_end(&mut back);
        (send.join().unwrap() && read.is_ok()).then_some(back)
    }

    fn cli(&self, arguments: &[&str]) -> Output {
        fairlead()
            .args(arguments)
            .env(
                "FAIRLEAD_CONTROL",
                self.text("/control/url").trim_start_matches("https://"),
            )
            .env("FAIRLEAD_CA_FILE", self.text("/control/ca_file"))
            .env("FAIRLEAD_TOKEN_FILE", self.text("/control/admin_token_file"))
            .output()
            .unwrap()
    }

    fn kill9(&self, pointer: &str) {
        let old = self.number(pointer);
        signal("-KILL", old);
        until(pointer, &self.dir, || {
            let new = self.number(pointer);
            (new != old && alive(new)).then_some(())
        });
    }

    /// Ctrl-C, and the end of every daemon.
    fn interrupt(mut self) -> ExitStatus {
        let pids = self.pids();
        signal("-INT", i64::from(self.child.id()));
        let status = self.child.wait().unwrap();
        for (what, pid) in pids {
            assert!(!alive(pid), "{what} ({pid}) is left behind");
        }
        status
    }

    fn pids(&self) -> Vec<(String, i64)> {
        let file = self.file();
        let mut pids = vec![("control".to_owned(), file["control"]["pid"].as_i64().unwrap())];
        for relay in file["relays"].as_array().unwrap() {
            for key in ["supervisor_pid", "worker_pid"] {
                pids.push((format!("{} {key}", relay["name"]), relay[key].as_i64().unwrap()));
            }
        }
        for node in file["nodes"].as_array().unwrap() {
            pids.push((node["name"].to_string(), node["pid"].as_i64().unwrap()));
        }
        pids
    }
}

fn signal(signal: &str, pid: i64) {
    let status = Command::new("kill")
        .args([signal, &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success(), "kill {signal} {pid}");
}

fn alive(pid: i64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn payload() -> Vec<u8> {
    (0..3_000_000u32)
        .map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()[3])
        .collect()
}

/// The pool comes up, carries bytes, heals, refuses a twin, stops whole, and goes on later.
#[test]
fn a_pool_carries_bytes_heals_and_stops() {
    let dir = tempfile::Builder::new().prefix("fl").tempdir().unwrap();
    let payload = payload();
    let up = Up::start(dir.path());
    assert!(
        up.echo(&payload) == Some(payload.clone()),
        "echo\n{}",
        logs(dir.path())
    );

    // A twin is refused, naming the holder.
    let twin = fairlead()
        .args(["up", "--ports", "auto", "--dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&twin.stderr).into_owned();
    assert_eq!(twin.status.code(), Some(4), "{text}");
    assert!(text.contains(&format!("process {}", up.child.id())), "{text}");

    // The CLI sees it.
    let relays = up.cli(&["relay", "ls", "--json"]);
    let relays: Value = serde_json::from_slice(&relays.stdout).unwrap();
    assert_eq!(relays["items"].as_array().unwrap().len(), 3);
    assert!(
        relays["items"]
            .as_array()
            .unwrap()
            .iter()
            .all(|r| r["state"] == "ready"),
        "{relays}"
    );
    let missing = up.cli(&["link", "show", "nothing"]);
    assert_eq!(missing.status.code(), Some(64), "{missing:?}");

    // A supervisor that dies leaves its worker, and the next one adopts it.
    let worker = up.number("/relays/1/worker_pid");
    up.kill9("/relays/1/supervisor_pid");
    up.kill9("/control/pid");
    assert_eq!(up.number("/relays/1/worker_pid"), worker);
    assert!(alive(worker));
    assert!(
        up.echo(&payload) == Some(payload.clone()),
        "after kills\n{}",
        logs(dir.path())
    );
    up.kill9("/relays/0/worker_pid");
    up.kill9("/nodes/1/pid");
    until("an echo after the kills", dir.path(), || {
        (up.echo(b"back").as_deref() == Some(b"back")).then_some(())
    });

    // Stopped and started again, it is the same pool.
    let id = up.text("/relays/2/id");
    let listen = up.text("/links/0/listen");
    let status = up.interrupt();
    assert!(status.success(), "{status}");
    assert!(!dir.path().join("pool.json").exists());
    let up = Up::start(dir.path());
    assert_eq!(
        (up.text("/relays/2/id"), up.text("/links/0/listen")),
        (id, listen)
    );
    assert!(
        up.echo(&payload) == Some(payload),
        "second run\n{}",
        logs(dir.path())
    );

    // Killed, it takes everything with it.
    let pids = up.pids();
    drop(up);
    until("the end of all daemons", dir.path(), || {
        pids.iter().all(|(_, pid)| !alive(*pid)).then_some(())
    });
}

/// `up`, killed or interrupted at any instant of its first runs, comes up whole the next time.
#[test]
fn a_first_run_that_is_cut_short_is_gone_on_with() {
    // Instants spread over a first run, from before its lock to after its first members.
    let cuts = [
        ("-KILL", 20),
        ("-INT", 300),
        ("-KILL", 450),
        ("-KILL", 600),
        ("-INT", 700),
        ("-KILL", 900),
    ];
    for cuts in cuts.chunks(3) {
        let dir = tempfile::Builder::new().prefix("fl").tempdir().unwrap();
        for (how, after_ms) in cuts {
            let mut child = fairlead()
                .args(["up", "--ports", "auto", "--relays", "2", "--dir"])
                .arg(dir.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            // The instant is what is tested; there is no event to wait for.
            std::thread::sleep(Duration::from_millis(*after_ms));
            signal(how, i64::from(child.id()));
            child.wait().unwrap();
        }
        let up = Up::start(dir.path());
        assert!(up.echo(b"whole").as_deref() == Some(b"whole"), "{cuts:?}");
        assert!(up.interrupt().success());
    }
}

/// What an admin adds beside the pool holds its next start up no more than a moment; a demo link
/// that was removed stays away.
#[test]
fn what_an_admin_added_or_removed_holds_no_start_up() {
    let dir = tempfile::Builder::new().prefix("fl").tempdir().unwrap();
    let up = Up::start(dir.path());
    assert!(up.cli(&["node", "add", "delta"]).status.success());
    assert!(up.cli(&["link", "rm", "demo"]).status.success());
    assert!(up.interrupt().success());
    let up = Up::start(dir.path());
    assert_eq!(up.file()["links"].as_array().unwrap().len(), 0, "{}", up.file());
    assert!(up.interrupt().success());
}
