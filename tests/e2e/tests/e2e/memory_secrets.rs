//! A secret is in the memory of those processes that have business with it, and of no other (R-ENR-03): an
//! admin's token in no member's daemon, a private key in its owner's processes only. What a memory dump of
//! a process that was broken into gives away is what that process had to have.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::memory::{self, Marker};
use fairlead_testkit::{Pool, Role, Target, binary, pool, wait};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A secret: the forms that it may show itself in, and the processes that may have it.
struct Secret {
    forms: Vec<Marker>,
    of: BTreeSet<String>,
}

struct Search<'a> {
    pool: &'a Pool,
    secrets: BTreeMap<String, Secret>,
}

impl Search<'_> {
    fn add(&mut self, name: &str, forms: Vec<Marker>, of: &[&str]) {
        let of = of.iter().map(|&name| name.to_owned()).collect();
        self.secrets.insert(name.to_owned(), Secret { forms, of });
    }

    fn key(&mut self, path: &str, of: &[&str]) -> Result<()> {
        let pem = std::fs::read_to_string(self.pool.dir().join(path))?;
        let forms = memory::key_markers(&pem).with_context(|| path.to_owned())?;
        self.add(path, forms, of);
        Ok(())
    }

    /// The secrets that a process has, by name.
    fn found_in(&self, pid: u32) -> Result<BTreeSet<&str>> {
        let forms = self
            .secrets
            .iter()
            .flat_map(|(name, s)| s.forms.iter().map(move |f| (name, f)));
        let (names, markers): (Vec<&String>, Vec<Marker>) = forms.map(|(name, form)| (name, *form)).unzip();
        let search = memory::search(pid, &markers)?;
        ensure!(
            search.bytes > 1_000_000,
            "only {} bytes of {pid} were searched",
            search.bytes
        );
        let name = |place: &usize| names.get(*place).map(|name| name.as_str());
        Ok(search.found.keys().filter_map(name).collect())
    }
}

/// A process that is ended when the test is.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_holds_its_own_secrets_and_no_others() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = Pool::builder()
        .relays(1)
        .to("db", echo.address())?
        .start()
        .await?;
    let mut search = Search {
        pool: &pool,
        secrets: BTreeMap::new(),
    };

    // A member that is enrolled by hand, so that its token is known.
    let issued = pool.cli(&["node", "add", "gamma", "--json"])?.json()?;
    let text = |value: &Value, key: &str| {
        value
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let dir = pool.dir().join("nodes/gamma");
    let folder = dir.display().to_string();
    let command = text(&issued, "install_command").replace("/var/lib/fairlead/node", &folder);
    let host_key = pool.dir().join("gamma.key").display().to_string();
    let command = format!("{command} --host-key-file {host_key}");
    pool::run_printed(&command, &text(&issued, "token"))?.ok()?;
    let mut gamma = Command::new(binary::fairlead()?);
    gamma
        .args(["run", "node", "--dir", &folder])
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let gamma = Daemon(gamma.spawn()?);
    wait::until("gamma is ready", Duration::from_secs(20), || async {
        let shown = pool.cli(&["node", "show", "gamma", "--json"])?.json()?;
        ensure!(text(&shown, "state") == "ready", "{shown}");
        Ok(())
    })
    .await?;
    let dash = pool
        .cli(&["token", "add", "dash", "--scope", "admin:system", "--json"])?
        .json()?;
    pool.until_echo("db", Duration::from_secs(10)).await?;

    let admin = std::fs::read(pool.file()?.control.admin_token_file)?;
    search.add("admin.token", vec![memory::marker(&admin)?], &["control", "up"]);
    search.add(
        "dash's token",
        vec![memory::marker(text(&dash, "secret").as_bytes())?],
        &["control"],
    );
    search.add(
        "gamma's token",
        vec![memory::marker(text(&issued, "token").as_bytes())?],
        &["control"],
    );
    for name in ["ca", "policy", "grant"] {
        search.key(&format!("control/keys/{name}.key.pem"), &["control"])?;
    }
    for name in ["alpha", "beta", "gamma"] {
        search.key(
            &format!("nodes/{name}/identity/key.pem"),
            &[&*format!("node {name}")],
        )?;
    }
    for name in ["local", "relay-1"] {
        let (supervisor, worker) = (format!("supervisor {name}"), format!("worker {name}"));
        search.key(
            &format!("relays/{name}/identity/key.pem"),
            &[&supervisor, &worker],
        )?;
        let path = format!("relays/{name}/worker/reset.key");
        let reset = memory::marker(&std::fs::read(pool.dir().join(&path))?)?;
        search.add(&path, vec![reset], &[&worker]);
    }

    let mut processes = vec![
        ("up".to_owned(), pool.up_pid()),
        ("node gamma".to_owned(), gamma.0.id()),
    ];
    processes.push(("control".to_owned(), pool.pid(Role::Control)?));
    for name in ["local", "relay-1"] {
        processes.push((format!("supervisor {name}"), pool.pid(Role::Supervisor(name))?));
        processes.push((format!("worker {name}"), pool.pid(Role::Worker(name))?));
    }
    for name in ["alpha", "beta"] {
        processes.push((format!("node {name}"), pool.pid(Role::Node(name))?));
    }
    let mut seen = BTreeSet::new();
    for (process, pid) in &processes {
        let found = search.found_in(*pid)?;
        println!("{process}: {found:?}");
        for name in found {
            let secret = search.secrets.get(name).context("unknown")?;
            ensure!(secret.of.contains(process), "{process} holds {name}");
            seen.insert((process.as_str(), name));
        }
    }
    // The search finds what must be there: each member's key in its own daemons, and the like.
    for (process, name) in [
        ("up", "admin.token"),
        ("control", "control/keys/policy.key.pem"),
        ("node alpha", "nodes/alpha/identity/key.pem"),
        ("node gamma", "nodes/gamma/identity/key.pem"),
        ("worker relay-1", "relays/relay-1/identity/key.pem"),
        ("supervisor local", "relays/local/identity/key.pem"),
    ] {
        ensure!(
            seen.contains(&(process, name)),
            "{name} was not found in {process}: {seen:?}"
        );
    }
    Ok(())
}
