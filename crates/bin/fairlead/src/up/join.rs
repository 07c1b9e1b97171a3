//! Brings a member into the pool, whatever an earlier run that was cut short has left.
//!
//! `up` can be killed at any instant of its first run. Each step leaves what the next run needs:
//! a member that was added gets a new token while it has not enrolled; its token is on disk before
//! `enrol` has it, and `enrol`'s key before the control plane has the request, so that an enrolment
//! whose end nobody saw is asked for again by the same token and key (R-ENR-02).

use super::build::Builder;
use super::daemon::Stage;
use super::error::UpError;
use crate::exit::Exit;
use crate::rest::{RestClient, RestError};
use fairlead_admin::json;
use fairlead_host::file::{self, FileError};
use fairlead_host::member::MemberFolder;
use fairlead_host::rng::Token;
use fairlead_host::secret;
use fairlead_model::ApiCode;
use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

/// A token has 43 characters.
const TOKEN_LEN_MAX: usize = 256;

/// A member that is to join.
struct Joining<'a, B> {
    role: &'static str,
    /// Its kind in paths of the REST interface.
    kind: &'static str,
    name: &'a str,
    dir: &'a Path,
    body: B,
    /// More flags of `enrol`.
    more: &'a [OsString],
}

impl Builder<'_> {
    pub(super) async fn relay(&self, client: &RestClient, pin: &str, name: &str) -> Result<(), UpError> {
        let dir = self.layout.relay(name);
        let listen = self.addresses.relay(name)?.to_string();
        let joining = Joining {
            role: "relay",
            kind: "relays",
            name,
            dir: &dir,
            body: json::AddRelay {
                name: name.to_owned(),
                address: listen.clone(),
                failure_domain: Some(format!("host={name}")),
                local: name == "local",
            },
            more: &["--listen".into(), listen.into()],
        };
        self.join(client, pin, &joining).await?;
        let more = ["--worker-metrics".into(), "127.0.0.1:0".into()];
        self.daemons.start(name, Stage::Edge, "supervisor", &dir, &more);
        Ok(())
    }

    pub(super) async fn node(&self, client: &RestClient, pin: &str, name: &str) -> Result<(), UpError> {
        let dir = self.layout.node(name);
        let joining = Joining {
            role: "node",
            kind: "nodes",
            name,
            dir: &dir,
            body: json::AddNode {
                name: name.to_owned(),
            },
            more: &[],
        };
        self.join(client, pin, &joining).await?;
        self.daemons
            .start(name, Stage::Edge, "node", &dir, &self.plan.node);
        Ok(())
    }

    async fn join<B: Serialize>(
        &self,
        client: &RestClient,
        pin: &str,
        joining: &Joining<'_, B>,
    ) -> Result<(), UpError> {
        let begun = Begun::of(joining.dir);
        if !MemberFolder::new(joining.dir.to_owned()).is_enrolled() {
            let finished = match begun.token()? {
                Some(token) => match self.enrol(pin, joining, token.expose()).await {
                    Ok(()) => true,
                    // That token is of no use: a newer one has taken its place, say.
                    Err(UpError::Enrol { status, .. }) if is_about_token(status.code()) => false,
                    Err(error) => return Err(error),
                },
                None => false,
            };
            if !finished {
                let token = Token::from_text(self.token(client, joining).await?);
                begun.save(&token)?;
                self.enrol(pin, joining, token.expose()).await?;
            }
        }
        Ok(begun.end()?)
    }

    /// Adds the member. One that was added by a run that was cut short gets a new token; one whose
    /// folder is gone is added anew.
    async fn token<B: Serialize>(
        &self,
        client: &RestClient,
        joining: &Joining<'_, B>,
    ) -> Result<String, RestError> {
        let all = format!("/v1/{}", joining.kind);
        let one = format!("{all}/{}", joining.name);
        let added: Result<json::Issued, RestError> = client.post(&all, &joining.body).await;
        if !is_api(&added, ApiCode::NameTaken) {
            return added.map(|issued| issued.token);
        }
        let again: Result<json::Issued, RestError> =
            client.post(&format!("{one}/token"), &serde_json::json!({})).await;
        if !is_api(&again, ApiCode::HasConnected) {
            return again.map(|issued| issued.token);
        }
        let removed: Result<serde_json::Value, RestError> = client.delete(&one).await;
        removed?;
        let anew: json::Issued = client.post(&all, &joining.body).await?;
        Ok(anew.token)
    }

    /// Runs `fairlead enrol`, as an admin would on the member's host.
    async fn enrol<B>(&self, pin: &str, joining: &Joining<'_, B>, token: &str) -> Result<(), UpError> {
        let who = format!("{} {}", joining.role, joining.name);
        self.progress.live(&format!("enrolling {who}"));
        let failed = |source| UpError::Spawn {
            what: format!("the enrolment of {who}"),
            source,
        };
        let mut child = Command::new(self.daemons.program())
            .args(["enrol", joining.role, "--dir"])
            .arg(joining.dir)
            .args(["--control", &self.addresses.control.to_string(), "--ca-pin", pin])
            .arg("--host-key-file")
            .arg(self.layout.host_key())
            .args(joining.more)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C is `up`'s to hear.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // One that ended without reading says why.
            let _ = stdin.write_all(token.as_bytes()).await;
        }
        let output = child.wait_with_output().await.map_err(failed)?;
        if output.status.success() {
            self.progress.say(&format!("{who} enrolled"));
            return Ok(());
        }
        Err(UpError::Enrol {
            name: who,
            status: output.status,
            output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }
}

fn is_api<T>(result: &Result<T, RestError>, wanted: ApiCode) -> bool {
    matches!(result, Err(RestError::Api { code, .. }) if *code == wanted)
}

/// Whether `enrol` ended for its token's sake.
fn is_about_token(code: Option<i32>) -> bool {
    [
        Exit::TokenUsed,
        Exit::TokenExpired,
        Exit::TokenUnknown,
        Exit::TokenOtherHost,
    ]
    .iter()
    .any(|exit| code == Some(i32::from(exit.number())))
}

/// The token of an enrolment that has begun, beside the member's folder.
struct Begun(PathBuf);

impl Begun {
    fn of(dir: &Path) -> Self {
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        Self(dir.with_file_name(format!(".{name}.token")))
    }

    fn token(&self) -> Result<Option<Token>, FileError> {
        if !self.0.exists() {
            return Ok(None);
        }
        let bytes = secret::read(&self.0, TOKEN_LEN_MAX)?;
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        Ok((!text.is_empty()).then(|| Token::from_text(text)))
    }

    fn save(&self, token: &Token) -> Result<(), FileError> {
        secret::write(&self.0, token.expose().as_bytes())
    }

    fn end(&self) -> Result<(), FileError> {
        match self.0.exists() {
            true => file::remove(&self.0),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_begun_enrolments_token_lies_beside_the_folder_until_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let begun = Begun::of(&dir.path().join("alpha"));
        assert!(begun.token().unwrap().is_none());
        begun.end().unwrap();
        begun.save(&Token::from_text("secret".to_owned())).unwrap();
        assert_eq!(begun.token().unwrap().unwrap().expose(), "secret");
        begun.end().unwrap();
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
    }

    #[test]
    fn only_ends_about_the_token_ask_for_a_new_one() {
        assert!(is_about_token(Some(11)) && is_about_token(Some(13)));
        assert!(!is_about_token(Some(5)) && !is_about_token(None));
    }
}
