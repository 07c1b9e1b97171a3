//! Builds the pool in the ordinary way: the control plane first, then members by the REST
//! interface and `fairlead enrol`, then links, until all is ready.

use super::daemon::{Daemons, Stage};
use super::error::UpError;
use super::layout::{Addresses, Layout};
use super::plan::{CONSUMER, DEMO_LINK, LinkPlan, PUBLISHER, Plan};
use super::pool_file::PoolFile;
use super::progress::Progress;
use super::ready::lines;
use crate::profile;
use crate::rest::RestClient;
use fairlead_admin::json;
use fairlead_control::ControlFolder;
use fairlead_model::{ListenAddress, ServiceClass, TargetAddress};
use std::ffi::OsString;
use std::time::{Duration, Instant};

/// How long the control plane may take to answer first: keys, store, certificates.
const CONTROL_LIMIT: Duration = Duration::from_secs(30);
/// Pause between looks.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// So many refusals of the admin token in a row are meant: a control plane at its first start may
/// write the file anew once.
const REFUSALS_MAX: u32 = 5;

/// Why the control plane does not serve this run yet.
#[derive(Debug, PartialEq, Eq)]
enum NotYet {
    /// It does not take the admin token.
    Refused,
    /// The pool was ready once, and the admin token's file is no longer there.
    TokenGone,
    /// Anything else, in words.
    Because(String),
}

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
    /// Builds the pool; a client of its control plane, and what is not ready but not this run's.
    pub(super) async fn build(&self) -> Result<(RestClient, Vec<String>), UpError> {
        let client = self.control().await?;
        let status: json::Status = client.get("/v1/status").await?;
        for name in self.plan.relay_names() {
            self.relay(&client, &status.ca_pin, &name).await?;
        }
        for name in [CONSUMER, PUBLISHER] {
            self.node(&client, &status.ca_pin, name).await?;
        }
        self.links(&client).await?;
        let others = self.ready(&client).await?;
        self.layout.settle()?;
        Ok((client, others))
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
        let mut refusals = 0;
        loop {
            self.daemons.check()?;
            let why = match self.try_control(&folder).await {
                Ok(client) => {
                    self.progress
                        .say(&format!("control plane listens on {}", self.addresses.control));
                    return Ok(client);
                }
                Err(NotYet::Refused) => {
                    refusals += 1;
                    if refusals >= REFUSALS_MAX {
                        return Err(UpError::Revoked(folder.admin_token_path()));
                    }
                    "it refuses the admin token".to_owned()
                }
                Err(NotYet::TokenGone) => return Err(UpError::TokenGone(folder.admin_token_path())),
                Err(NotYet::Because(why)) => why,
            };
            if began.elapsed() > CONTROL_LIMIT {
                return Err(self.not_ready(CONTROL_LIMIT, &[format!("the control plane: {why}")]));
            }
            self.progress.live("waiting for the control plane");
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    async fn try_control(&self, folder: &ControlFolder) -> Result<RestClient, NotYet> {
        let (ca, token) = (folder.ca_path(), folder.admin_token_path());
        files(folder, self.layout.is_settled())?;
        let client = profile::client_of(self.addresses.control.into(), &ca, &token)
            .map_err(|e| NotYet::Because(UpError::client(&e).to_string()))?;
        match client.get::<json::Status>("/v1/status").await {
            Ok(_) => Ok(client),
            Err(error) if error.is_refused_token() => Err(NotYet::Refused),
            Err(error) => Err(NotYet::Because(fairlead_telemetry::chain(&error))),
        }
    }

    /// The links that are wished for, given those that are there.
    fn wanted(&self, present: &[json::Link]) -> Result<Vec<LinkPlan>, UpError> {
        let mut links = self.plan.links.clone();
        // Without a wish the built-in service is published, once: who has links of their own or has
        // removed it does not get it again.
        let has = |demo: bool| present.iter().any(|link| (link.name == DEMO_LINK) == demo);
        let first = !self.layout.is_settled() && !has(false);
        if self.plan.demo || (self.plan.links.is_empty() && (first || has(true))) {
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
        let wanted = self.wanted(&present.items)?;
        for link in &present.items {
            let same_name = wanted.iter().find(|w| w.name.as_str() == link.name);
            match same_name {
                Some(wish) if is_same(link, wish) => continue,
                Some(_) => self.progress.say(&format!(
                    "link {} was {} on {}, to {} of {} ({}): it is replaced",
                    link.name, link.listen, link.from.name, link.target, link.to.name, link.class
                )),
                // The service behind it runs only when it is asked for.
                None if link.name == DEMO_LINK => self
                    .progress
                    .say("link demo is removed: its service runs without --link, or with --demo"),
                None => continue,
            }
            let _: json::Link = client.delete(&format!("/v1/links/{}", link.name)).await?;
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
            let _: json::Link = client
                .post("/v1/links", &body)
                .await
                .map_err(|source| UpError::Link {
                    name: body.name.clone(),
                    source,
                })?;
            self.progress.say(&format!(
                "link {}: {} on alpha, to {} of beta",
                wish.name, wish.listen, wish.target
            ));
        }
        Ok(())
    }

    /// What a person needs to know of the running pool.
    pub(super) fn banner(&self, file: &PoolFile, others: &[String]) {
        let say = |text: &str| self.progress.say(text);
        say(&format!(
            "  console    {}/  (log in with the token in {})",
            file.control.url,
            file.control.admin_token_file.display()
        ));
        say(&format!(
            "  API        {}  (REST; described at /v1/openapi.json)",
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
        if file.links.iter().any(|link| link.name == DEMO_LINK) {
            say(&format!(
                "  try        connect to {}, with nc say: what you send comes back",
                self.addresses.demo_listen
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
        if !others.is_empty() {
            say(&format!("not ready, and not waited for:{}", lines(others)));
        }
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

/// Looks for the files that the control plane makes at its first start. `settled`: the pool has been ready.
fn files(folder: &ControlFolder, settled: bool) -> Result<(), NotYet> {
    let token = folder.admin_token_path();
    for file in [&folder.ca_path(), &token] {
        if !file.exists() {
            return Err(match settled && *file == token {
                true => NotYet::TokenGone,
                false => NotYet::Because(format!("it has not made {} yet", file.display())),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The admin token is made once: one that is gone later is not waited for.
    #[test]
    fn a_token_that_is_gone_is_told_from_one_that_is_to_come() {
        let dir = tempfile::tempdir().unwrap();
        let folder = ControlFolder::new(dir.path());
        let not_yet = |settled| match files(&folder, settled).unwrap_err() {
            NotYet::Because(why) => why,
            other => panic!("{other:?}"),
        };
        assert!(not_yet(false).contains("ca.pem") && not_yet(true).contains("ca.pem"));
        std::fs::write(folder.ca_path(), "").unwrap();
        assert!(not_yet(false).contains("admin.token"));
        assert_eq!(files(&folder, true), Err(NotYet::TokenGone));
        let told = UpError::TokenGone(folder.admin_token_path()).to_string();
        for words in ["admin.token is missing", "admin:system", "begin anew"] {
            assert!(told.contains(words), "{told}");
        }
        std::fs::write(folder.admin_token_path(), "").unwrap();
        assert_eq!(files(&folder, true), Ok(()));
    }
}
