//! Builds the pool in the ordinary way: the control plane first, then members by the REST
//! interface and `fairlead enrol`, then links, until all is ready.

use super::daemon::{Daemons, Stage};
use super::error::UpError;
use super::layout::{Addresses, Layout};
use super::plan::{CONSUMER, DEMO_LINK, LinkPlan, PUBLISHER, Plan};
use super::pool_file::PoolFile;
use super::progress::Progress;
use crate::profile;
use crate::rest::{RestClient, RestError};
use fairlead_admin::json;
use fairlead_control::ControlFolder;
use fairlead_host::member::MemberFolder;
use fairlead_model::{ApiCode, ListenAddress, ServiceClass, TargetAddress};
use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// How long the control plane may take to answer first: keys, store, certificates.
const CONTROL_LIMIT: Duration = Duration::from_secs(30);
/// How long members and links may take to be ready after that.
const READY_LIMIT: Duration = Duration::from_secs(90);
/// Pause between looks.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// All that is needed to build a pool.
#[derive(Debug)]
pub(super) struct Builder<'a> {
    pub(super) plan: &'a Plan,
    pub(super) layout: &'a Layout,
    pub(super) addresses: &'a Addresses,
    pub(super) daemons: &'a Daemons,
    pub(super) progress: &'a Progress,
}

impl Builder<'_> {
    /// Builds the pool; a client of its control plane.
    pub(super) async fn build(&self) -> Result<RestClient, UpError> {
        let client = self.control().await?;
        let status: json::Status = client.get("/v1/status").await?;
        for name in self.plan.relay_names() {
            self.relay(&client, &status.ca_pin, &name).await?;
        }
        for name in [CONSUMER, PUBLISHER] {
            self.node(&client, &status.ca_pin, name).await?;
        }
        self.links(&client).await?;
        self.ready(&client).await?;
        Ok(client)
    }

    async fn control(&self) -> Result<RestClient, UpError> {
        let address = self.addresses.control.to_string();
        let mut more: Vec<OsString> = vec!["--listen".into(), address.clone().into()];
        more.extend(["--advertise".into(), address.into(), "--lab".into()]);
        more.extend(["--store".into(), self.plan.store.to_string().into()]);
        let dir = self.layout.control();
        self.daemons.start("control", Stage::Core, "control", &dir, &more);
        let folder = ControlFolder::new(&dir);
        let began = Instant::now();
        loop {
            self.daemons.check()?;
            let why = match self.try_control(&folder).await {
                Ok(client) => {
                    self.progress
                        .say(&format!("control plane listens on {}", self.addresses.control));
                    return Ok(client);
                }
                Err(why) => why,
            };
            if began.elapsed() > CONTROL_LIMIT {
                return Err(self.not_ready(CONTROL_LIMIT, &[format!("the control plane: {why}")]));
            }
            self.progress.live("waiting for the control plane");
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    async fn try_control(&self, folder: &ControlFolder) -> Result<RestClient, String> {
        let (ca, token) = (folder.ca_path(), folder.admin_token_path());
        if !(ca.exists() && token.exists()) {
            return Err("it has not made its keys yet".to_owned());
        }
        let client = profile::client_of(self.addresses.control.into(), &ca, &token)
            .map_err(|e| UpError::client(&e).to_string())?;
        match client.get::<json::Status>("/v1/status").await {
            Ok(_) => Ok(client),
            Err(error) => Err(fairlead_telemetry::chain(&error)),
        }
    }

    async fn relay(&self, client: &RestClient, pin: &str, name: &str) -> Result<(), UpError> {
        let dir = self.layout.relay(name);
        let listen = self.addresses.relay(name)?;
        if !MemberFolder::new(dir.clone()).is_enrolled() {
            let body = json::AddRelay {
                name: name.to_owned(),
                address: listen.to_string(),
                failure_domain: Some(format!("host={name}")),
                local: name == "local",
            };
            let token = self.token(client, "relays", name, &body).await?;
            let more = ["--listen".into(), listen.to_string().into()];
            self.enrol("relay", name, pin, &dir, &more, &token).await?;
        }
        let more = ["--worker-metrics".into(), "127.0.0.1:0".into()];
        self.daemons.start(name, Stage::Edge, "supervisor", &dir, &more);
        Ok(())
    }

    async fn node(&self, client: &RestClient, pin: &str, name: &str) -> Result<(), UpError> {
        let dir = self.layout.node(name);
        if !MemberFolder::new(dir.clone()).is_enrolled() {
            let body = json::AddNode {
                name: name.to_owned(),
            };
            let token = self.token(client, "nodes", name, &body).await?;
            self.enrol("node", name, pin, &dir, &[], &token).await?;
        }
        self.daemons.start(name, Stage::Edge, "node", &dir, &[]);
        Ok(())
    }

    /// Adds the member; one that was added by a run that was cut short gets a new token.
    async fn token<B: serde::Serialize>(
        &self,
        client: &RestClient,
        kind: &str,
        name: &str,
        body: &B,
    ) -> Result<String, UpError> {
        let added: Result<json::Issued, RestError> = client.post(&format!("/v1/{kind}"), body).await;
        let issued = match added {
            Err(RestError::Api {
                code: ApiCode::NameTaken,
                ..
            }) => {
                let path = format!("/v1/{kind}/{name}/token");
                client.post(&path, &serde_json::json!({})).await?
            }
            other => other?,
        };
        Ok(issued.token)
    }

    /// Runs `fairlead enrol`, as an admin would on the member's host.
    async fn enrol(
        &self,
        role: &str,
        name: &str,
        pin: &str,
        dir: &Path,
        more: &[OsString],
        token: &str,
    ) -> Result<(), UpError> {
        self.progress.live(&format!("enrolling {role} {name}"));
        let failed = |source| UpError::Spawn {
            what: format!("the enrolment of {role} {name}"),
            source,
        };
        let mut child = Command::new(self.daemons.program())
            .args(["enrol", role, "--control", &self.addresses.control.to_string()])
            .args(["--ca-pin", pin, "--dir"])
            .arg(dir)
            .arg("--host-key-file")
            .arg(self.layout.host_key())
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(token.as_bytes()).await.map_err(failed)?;
        }
        let output = child.wait_with_output().await.map_err(failed)?;
        if output.status.success() {
            self.progress.say(&format!("{role} {name} enrolled"));
            return Ok(());
        }
        Err(UpError::Enrol {
            name: name.to_owned(),
            status: output.status,
            output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }

    /// The links that are wished for.
    fn wanted(&self) -> Result<Vec<LinkPlan>, UpError> {
        let mut links = self.plan.links.clone();
        if self.plan.needs_echo() {
            links.push(LinkPlan {
                name: DEMO_LINK.parse().map_err(|e| UpError::Client(format!("{e}")))?,
                listen: ListenAddress(self.addresses.demo_listen),
                target: TargetAddress::Unix(self.layout.demo_socket()),
                class: ServiceClass::Standard,
            });
        }
        Ok(links)
    }

    async fn links(&self, client: &RestClient) -> Result<(), UpError> {
        let present: json::List<json::Link> = client.get("/v1/links").await?;
        let wanted = self.wanted()?;
        for link in &present.items {
            let same_name = wanted.iter().find(|w| w.name.as_str() == link.name);
            let stale = match same_name {
                Some(wish) => !is_same(link, wish),
                // The service behind it runs only when it is asked for.
                None => link.name == DEMO_LINK,
            };
            if stale {
                let _: json::Link = client.delete(&format!("/v1/links/{}", link.name)).await?;
            }
        }
        for wish in &wanted {
            if present.items.iter().any(|link| is_same(link, wish)) {
                continue;
            }
            let body = json::AddLink {
                name: wish.name.to_string(),
                from: CONSUMER.to_owned(),
                to: PUBLISHER.to_owned(),
                target: wish.target.to_string(),
                listen: wish.listen.to_string(),
                class: Some(wish.class.to_string()),
            };
            let _: json::Link = client.post("/v1/links", &body).await?;
            self.progress.say(&format!(
                "link {}: {} on alpha, to {} of beta",
                wish.name, wish.listen, wish.target
            ));
        }
        Ok(())
    }

    /// Waits until every member that this pool runs, and every link between them, is ready. What an
    /// admin added beside them may be waiting for a host that nobody has turned on.
    async fn ready(&self, client: &RestClient) -> Result<(), UpError> {
        let began = Instant::now();
        loop {
            self.daemons.check()?;
            let waiting = match self.waiting(client).await {
                Ok(waiting) if waiting.is_empty() => return Ok(()),
                Ok(waiting) => waiting,
                Err(error) => vec![fairlead_telemetry::chain(&error)],
            };
            if began.elapsed() > READY_LIMIT {
                return Err(self.not_ready(READY_LIMIT, &waiting));
            }
            let first = waiting.first().map_or("", String::as_str);
            let more = match waiting.len() {
                0 | 1 => String::new(),
                n => format!(" (and {} more)", n - 1),
            };
            self.progress.live(&format!("waiting for {first}{more}"));
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    async fn waiting(&self, client: &RestClient) -> Result<Vec<String>, RestError> {
        let relays: json::List<json::Relay> = client.get("/v1/relays").await?;
        let nodes: json::List<json::Node> = client.get("/v1/nodes").await?;
        let links: json::List<json::Link> = client.get("/v1/links").await?;
        let mine = self.plan.relay_names();
        let relays = relays.items.iter().filter(|r| mine.contains(&r.name));
        let runs = |node: &str| node == CONSUMER || node == PUBLISHER;
        let mut waiting: Vec<String> = relays
            .filter(|r| r.state != "ready")
            .map(|r| format!("relay {}: {} {}", r.name, r.state, r.state_reason))
            .collect();
        waiting.extend(
            nodes
                .items
                .iter()
                .filter(|n| runs(&n.name) && n.state != "ready")
                .map(|n| format!("node {}: {} {}", n.name, n.state, n.state_reason)),
        );
        waiting.extend(
            links
                .items
                .iter()
                .filter(|l| runs(&l.from.name) && runs(&l.to.name) && l.state != "ready")
                .map(|l| format!("link {}: {} {}", l.name, l.state, l.waiting_for.join("; "))),
        );
        Ok(waiting)
    }

    fn not_ready(&self, limit: Duration, waiting: &[String]) -> UpError {
        UpError::NotReady {
            seconds: limit.as_secs(),
            waiting: waiting.iter().map(|w| format!("\n  {w}")).collect(),
            logs: self.layout.logs(),
        }
    }

    /// What a person needs to know of the running pool.
    pub(super) fn banner(&self, file: &PoolFile) {
        let say = |text: &str| self.progress.say(text);
        say(&format!(
            "  console    {}  (REST; described at /v1/openapi.json)",
            file.control.url
        ));
        for relay in &file.relays {
            say(&format!("  relay      {} on {}", relay.name, relay.address));
        }
        for link in &file.links {
            say(&format!(
                "  link       {}: {} on {}, to {} of {} ({})",
                link.name, link.listen, link.consumer, link.target, link.publisher, link.class
            ));
        }
        if self.plan.needs_echo() {
            let at = self.addresses.demo_listen;
            say(&format!(
                "  try        nc {} {}  (what you type comes back)",
                at.ip(),
                at.port()
            ));
        }
        say("  to administer it from another shell:");
        say(&format!(
            "    export FAIRLEAD_CONTROL={} FAIRLEAD_CA_FILE={} FAIRLEAD_TOKEN_FILE={}",
            self.addresses.control,
            file.control.ca_file.display(),
            file.control.admin_token_file.display()
        ));
        say(&format!("    {} link ls", self.daemons.program().display()));
        say(&format!("  pool file  {}", self.layout.pool_file().display()));
    }
}

fn is_same(link: &json::Link, wish: &LinkPlan) -> bool {
    link.name == wish.name.as_str()
        && link.listen == wish.listen.to_string()
        && link.target == wish.target.to_string()
        && link.class == wish.class.as_str()
        && link.from.name == CONSUMER
        && link.to.name == PUBLISHER
}
