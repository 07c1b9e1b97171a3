//! A full disk under each folder of state: live tunnels are untouched, the error names file and
//! reason, nothing is half written, and all goes on by itself once there is room; also where the
//! process was killed in the middle of it.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Pool, Rest, Role, Target, Warden, binary, process, target, verified, wait};
use reqwest::Method;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tokio::net::TcpStream;

/// Each folder's disk.
const DISK_BYTES: u64 = 24 << 20;
const CONTROL: &str = "control";
const LOCAL: &str = "relays/local";
const ALPHA: &str = "nodes/alpha";
const BETA: &str = "nodes/beta";
/// Links whose policy takes some pages.
const MANY_LINKS: u32 = 40;
/// What recovers by itself does within this: a daemon that cannot start tries again after at most
/// ten seconds.
const BACK_LIMIT: Duration = Duration::from_secs(30);

struct Bench {
    pool: Pool,
    rest: Rest,
    target: Target,
    live: Vec<TcpStream>,
    links: u32,
}

impl Bench {
    async fn start() -> Result<Self> {
        let target = Target::echo().await?;
        let mut pool = Pool::builder()
            .relays(1)
            .to("echo", target.address())?
            .start()
            .await?;
        pool.stop(Duration::from_secs(20)).await?;
        pool.set_small_disks(&[CONTROL, LOCAL, ALPHA, BETA], DISK_BYTES);
        pool.start_again().await?;
        pool.until_echo("echo", BACK_LIMIT).await?;
        let mut live = Vec::new();
        for number in 0..10 {
            let mut stream = TcpStream::connect(pool.listen("echo")?).await?;
            verified::echo_on(&mut stream, number, 1000).await?;
            live.push(stream);
        }
        // The folders are on disks of their own, which only the pool sees.
        ensure!(
            std::fs::read(pool.dir().join(CONTROL).join("runtime.json")).is_err() || {
                use std::os::unix::fs::MetadataExt as _;
                std::fs::metadata(pool.inside(CONTROL))?.dev() != std::fs::metadata(pool.dir())?.dev()
            }
        );
        let mut file = pool.file()?;
        file.control.ca_file = pool.inside(CONTROL).join("ca.pem");
        file.control.admin_token_file = pool.inside(CONTROL).join("admin.token");
        let rest = Rest::new(&file)?;
        Ok(Self {
            pool,
            rest,
            target,
            live,
            links: 0,
        })
    }

    async fn live_untouched(&mut self) -> Result<()> {
        for (number, stream) in self.live.iter_mut().enumerate() {
            let echo = verified::echo_on(stream, number as u64, 20_000);
            tokio::time::timeout(Duration::from_secs(20), echo)
                .await
                .with_context(|| format!("live tunnel {number} stalls"))??;
        }
        Ok(())
    }

    /// Asks for another link; its listen address, and the answer.
    async fn ask_for_link(&mut self) -> Result<(SocketAddr, u16, Value)> {
        self.links += 1;
        let listen = target::closed_port()?;
        let body = json!({"name": format!("more-{}", self.links), "from": "alpha", "to": "beta",
                          "target": self.target.address(), "listen": listen.to_string()});
        let (status, answer) = self.rest.send(Method::POST, "/v1/links", Some(&body)).await?;
        Ok((listen, status, answer))
    }

    async fn link(&mut self) -> Result<SocketAddr> {
        let (listen, status, answer) = self.ask_for_link().await?;
        ensure!(status < 300, "{status} {answer}");
        Ok(listen)
    }

    /// So many that what members keep no longer fits into the room of what it replaces. The last one's
    /// listen address.
    async fn many_links(&mut self) -> Result<SocketAddr> {
        for _ in 0..MANY_LINKS {
            self.link().await?;
        }
        self.link().await
    }

    /// A new link gets to every member and carries bytes.
    async fn all_is_well(&mut self) -> Result<()> {
        let (listen, _) = wait::until("a link is taken", BACK_LIMIT, || {
            // Each try is a link of another name.
            self.links += 1;
            let number = self.links;
            let (rest, to) = (self.rest.clone(), self.target.address().to_owned());
            async move {
                let listen = target::closed_port()?;
                let body = json!({"name": format!("more-{number}"), "from": "alpha", "to": "beta",
                                  "target": to, "listen": listen.to_string()});
                let (status, answer) = rest.send(Method::POST, "/v1/links", Some(&body)).await?;
                ensure!(status < 300, "{status} {answer}");
                anyhow::Ok(listen)
            }
        })
        .await?;
        let ((), took) = wait::until("the link echoes", BACK_LIMIT, || {
            verified::echo_once(listen, 1, 1000)
        })
        .await?;
        println!("a new link carries bytes {took:.1?} after it was taken");
        self.live_untouched().await
    }

    fn log(&self, name: &str) -> Result<String> {
        let path = self.pool.dir().join("logs").join(format!("{name}.log"));
        std::fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// The log names what could not be written, and says why.
    async fn log_says(&self, name: &str, words: &[&str]) -> Result<()> {
        wait::until(
            &format!("the log of {name} says {words:?}"),
            BACK_LIMIT,
            || async {
                let log = self.log(name)?;
                let said = log
                    .lines()
                    .find(|line| words.iter().all(|word| line.contains(word)));
                println!("{name}: {}", said.unwrap_or("-"));
                said.map(|_| ()).context("not said")
            },
        )
        .await?;
        Ok(())
    }
}

/// The control plane refuses changes with a reason, forgets nothing and half-does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_on_a_full_disk_refuses_and_recovers() -> Result<()> {
    let mut bench = Bench::start().await?;
    let before = bench.rest.get("/v1/links").await?;
    bench.pool.fill_disk(CONTROL)?;
    let (_, status, answer) = bench.ask_for_link().await?;
    println!("{status} {answer}");
    let text = answer.to_string();
    ensure!(
        status == 503
            && ["disk is full", "control/store", "make room"]
                .iter()
                .all(|w| text.contains(w)),
        "{status} {answer}"
    );
    bench
        .log_says(
            "control",
            &["a commit failed", "fewer than 1024 KiB are free", "control/store"],
        )
        .await?;
    ensure!(
        bench.rest.get("/v1/links").await? == before,
        "half a link is there"
    );
    bench.live_untouched().await?;
    bench.pool.until_echo("echo", BACK_LIMIT).await?;
    // A node that restarts meanwhile gets its session.
    let old = bench.pool.kill9(Role::Node("alpha"))?;
    bench.live.clear();
    bench.pool.back(Role::Node("alpha"), old).await?;
    bench.pool.until_echo("echo", BACK_LIMIT).await?;
    bench.pool.free_disk(CONTROL)?;
    bench.all_is_well().await?;

    // Killed while it is full: it comes back when there is room, with all that it had acknowledged.
    let before = bench.rest.get("/v1/links").await?;
    bench.pool.fill_disk(CONTROL)?;
    let (_, status, _) = bench.ask_for_link().await?;
    ensure!(status == 503, "{status}");
    bench.pool.kill9(Role::Control)?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    bench.live_untouched().await?;
    bench.pool.free_disk(CONTROL)?;
    wait::until("the control plane is back", BACK_LIMIT, || {
        bench.rest.get("/v1/links")
    })
    .await?;
    let links = |value: &Value| {
        value
            .pointer("/links")
            .or(Some(value))
            .and_then(Value::as_array)
            .map(Vec::len)
    };
    let after = bench.rest.get("/v1/links").await?;
    ensure!(links(&after) == links(&before), "{after}\n{before}");
    bench.all_is_well().await
}

/// A worker that cannot write a policy refuses it, says why, and takes it when there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_on_a_full_disk_keeps_its_policy_and_recovers() -> Result<()> {
    let mut bench = Bench::start().await?;
    bench.pool.fill_disk(LOCAL)?;
    let listen = bench.many_links().await?;
    bench.log_says("local", &["policy.state"]).await?;
    bench.live_untouched().await?;
    bench.pool.free_disk(LOCAL)?;
    wait::until("the relay has the policy", BACK_LIMIT, || async {
        let relays = bench.rest.get("/v1/relays").await?;
        let waits = relays.to_string().contains("No space left");
        ensure!(!waits, "{relays}");
        verified::echo_once(listen, 1, 1000).await
    })
    .await?;
    bench.all_is_well().await?;

    bench.pool.fill_disk(LOCAL)?;
    bench.link().await?;
    let worker = bench.pool.kill9(Role::Worker("local"))?;
    let supervisor = bench.pool.kill9(Role::Supervisor("local"))?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    bench.live_untouched().await?;
    bench.pool.free_disk(LOCAL)?;
    bench.pool.back(Role::Supervisor("local"), supervisor).await?;
    wait::until("the worker is back", BACK_LIMIT, || async {
        let pid = bench.pool.pid(Role::Worker("local"))?;
        ensure!(pid != worker && process::alive(pid), "pid {pid}, was {worker}");
        Ok(())
    })
    .await?;
    bench.all_is_well().await
}

/// A node that cannot write its policy goes on by the one it has, says why, and takes the new one
/// when there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_on_a_full_disk_keeps_its_policy_and_recovers() -> Result<()> {
    let mut bench = Bench::start().await?;
    for folder in [ALPHA, BETA] {
        bench.pool.fill_disk(folder)?;
    }
    let listen = bench.many_links().await?;
    bench.log_says("alpha", &["node.state"]).await?;
    bench.live_untouched().await?;
    verified::echo_once(bench.pool.listen("echo")?, 2, 1000).await?;
    for folder in [ALPHA, BETA] {
        bench.pool.free_disk(folder)?;
    }
    wait::until("the link echoes", BACK_LIMIT, || {
        verified::echo_once(listen, 1, 1000)
    })
    .await?;
    bench.all_is_well().await?;

    // Killed while it is full: it comes back by what fits, at the latest when there is room.
    bench.pool.fill_disk(ALPHA)?;
    bench.live.clear();
    bench.pool.kill9(Role::Node("alpha"))?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    bench.pool.free_disk(ALPHA)?;
    bench.pool.until_echo("echo", BACK_LIMIT).await?;
    bench.all_is_well().await
}

/// Gives the folder a tmpfs, and each folder named of it one more, then runs the rest. Arguments: size,
/// folder, how many of its folders, their names, the command.
const ON_SMALL_DISKS: &str = r#"
set -e
size=$1; dir=$2; count=$3; shift 3
mount -t tmpfs -o "size=$size,mode=0700" none "$dir"
while [ "$count" -gt 0 ]; do
    mkdir -m 0700 "$dir/$1"
    mount -t tmpfs -o "size=$size,mode=0700" none "$dir/$1"
    shift; count=$((count - 1))
done
exec "$@"
"#;

/// `fairlead up` with its folder on a small disk, and some folders of it on others, which nobody else sees.
struct SmallUp {
    child: Child,
    dir: PathBuf,
    out: PathBuf,
    _outside: tempfile::TempDir,
    _warden: Warden,
}

impl SmallUp {
    fn start(bytes: u64, apart: &[&str]) -> Result<Self> {
        let outside = tempfile::Builder::new().prefix("flo-").tempdir()?;
        let dir = tempfile::Builder::new().prefix("flu-").tempdir()?.keep();
        let warden = Warden::over(&dir)?;
        let out = outside.path().join("up.out");
        let file = std::fs::File::create(&out)?;
        let mut command = Command::new("unshare");
        command
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                ON_SMALL_DISKS,
                "sh",
            ])
            .arg(bytes.to_string())
            .arg(&dir)
            .arg(apart.len().to_string())
            .args(apart)
            .arg(binary::fairlead()?)
            .args(["up", "--relays", "0", "--ports", "auto", "--dir"])
            .arg(&dir);
        command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        Ok(Self {
            child: command.spawn()?,
            dir,
            out,
            _outside: outside,
            _warden: warden,
        })
    }

    fn said(&self) -> Result<String> {
        Ok(std::fs::read_to_string(&self.out)?)
    }

    /// A file of the folder, as its processes see it.
    fn inside(&self, name: &str) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.child.id()));
        root.join(self.dir.strip_prefix("/").unwrap_or(&self.dir))
            .join(name)
    }

    fn pool(&self) -> Result<Value> {
        Ok(serde_json::from_slice(&std::fs::read(self.inside("pool.json"))?)?)
    }

    /// The number at a place of `pool.json`.
    fn pid(&self, place: &str) -> Result<u32> {
        let pid = self
            .pool()?
            .pointer(place)
            .and_then(Value::as_u64)
            .context("no pid")?;
        Ok(u32::try_from(pid)?)
    }
}

impl Drop for SmallUp {
    fn drop(&mut self) {
        eprintln!("{}", self.said().unwrap_or_default());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The pool's own files are on one disk, what its daemons keep is on others.
const DAEMONS: &[&str] = &["control", "relays", "nodes", "logs"];

/// A pool that is ready and carries bytes, and where its link listens.
async fn ready(apart: &[&str]) -> Result<(SmallUp, SocketAddr)> {
    let up = SmallUp::start(DISK_BYTES, apart)?;
    let (pool, _) = wait::until("the pool is ready", Duration::from_secs(60), || async {
        up.pool()
    })
    .await?;
    let listen = pool
        .pointer("/links/0/listen")
        .and_then(Value::as_str)
        .context("no link")?;
    let listen: SocketAddr = listen.parse()?;
    verified::echo_once(listen, 1, 1000).await?;
    Ok((up, listen))
}

/// The file names another process for beta than `old`, which lives, and the link carries bytes.
async fn until_true_again(up: &SmallUp, listen: SocketAddr, old: u32) -> Result<()> {
    wait::until("the file is true again", BACK_LIMIT, || async {
        let pid = up.pid("/nodes/1/pid")?;
        ensure!(pid != old && process::alive(pid), "pid {pid}, was {old}");
        verified::echo_once(listen, 2, 1000).await
    })
    .await?;
    Ok(())
}

/// Waits until `up` has said it.
async fn until_said(up: &SmallUp, words: &str) -> Result<()> {
    wait::until(&format!("`up` says {words:?}"), BACK_LIMIT, || async {
        let said = up.said()?;
        ensure!(said.contains(words), "{said}");
        Ok(())
    })
    .await?;
    Ok(())
}

/// `up` that cannot write `pool.json` goes on, says once which file and what to do, and the file is true
/// again when there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn up_on_a_full_disk_goes_on_and_says_so() -> Result<()> {
    let (up, listen) = ready(DAEMONS).await?;
    let ballast = up.inside("ballast");
    fairlead_testkit::pool::fill_up(&ballast)?;
    let old = up.pid("/nodes/1/pid")?;
    process::kill9(old)?;
    // The node's own disk has room: it is back, and `up` would write its number.
    until_said(&up, "beta runs as process").await?;
    until_said(&up, "the pool goes on, but ").await?;
    let said = up.said()?;
    let line = said.lines().find(|line| line.contains("the pool goes on, but "));
    let line = line.context("not said")?;
    let file = up.dir.join("pool.json").display().to_string();
    for words in [file.as_str(), "make room", "No space left on device"] {
        ensure!(line.contains(words), "{words}: {line}");
    }
    wait::until("the link carries bytes meanwhile", BACK_LIMIT, || {
        verified::echo_once(listen, 2, 1000)
    })
    .await?;
    ensure!(up.pid("/nodes/1/pid")? == old, "the file was written");
    std::fs::remove_file(ballast)?;
    until_true_again(&up, listen, old).await?;
    let said = up.said()?;
    ensure!(said.matches("the pool goes on, but").count() == 1, "{said}");
    Ok(())
}

/// A node that cannot write its boot count when it starts ends, and its log says which file and what to
/// do; `up` says that it ends, starts it again and again, and has it back when there is room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_starts_on_a_full_disk_is_back_when_there_is_room() -> Result<()> {
    let (up, listen) = ready(DAEMONS).await?;
    let ballast = up.inside("nodes/ballast");
    fairlead_testkit::pool::fill_up(&ballast)?;
    let old = up.pid("/nodes/1/pid")?;
    process::kill9(old)?;
    until_said(&up, "beta ended (exit code 1)").await?;
    let log = std::fs::read_to_string(up.inside("logs/beta.log"))?;
    let file = up.dir.join("nodes/beta/boot.state").display().to_string();
    let words = [file.as_str(), "make room", "No space left on device"];
    let is_told = log.lines().any(|line| words.iter().all(|w| line.contains(w)));
    ensure!(is_told, "{log}");
    // `up` itself has room, and is kept from nothing.
    ensure!(!up.said()?.contains("the pool goes on, but"), "{}", up.said()?);
    std::fs::remove_file(ballast)?;
    until_true_again(&up, listen, old).await?;
    Ok(())
}

/// A first start that does not fit on its disk ends with the reason, and leaves no process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn up_that_does_not_fit_on_its_disk_says_why() -> Result<()> {
    let mut up = SmallUp::start(256 * 1024, &[])?;
    let (status, _) = wait::until("`up` ends", Duration::from_secs(60), || {
        let ended = up.child.try_wait();
        async { ended?.context("it runs") }
    })
    .await?;
    let said = up.said()?;
    ensure!(status.code() == Some(1), "{status}: {said}");
    ensure!(
        said.contains("No space left on device") || said.contains("disk is full"),
        "{said}"
    );
    let inside = format!("{}/", up.dir.display());
    ensure!(
        process::with_argument(&inside).is_empty(),
        "processes are left: {said}"
    );
    Ok(())
}
