//! `fairlead enrol`: this host joins a pool with a one-shot token (R-ENR-01 to R-ENR-04).
//!
//! The key is made here and stays here; only a signing request travels, over TLS whose CA is
//! pinned. The member's folder is built beside its place and moved there in one step, so that
//! whatever fails leaves nothing behind. Only where the control plane may have taken the token is
//! the key kept there: the same command with the same token then goes on with it.

mod error;
mod install;
mod staging;

use crate::cli::daemon::{Enrol, EnrolMember};
use crate::exit::Failure;
use crate::faults::{Faults, SettingsError};
use crate::rest::{RestClient, RestError};
use crate::table;
use crate::tls::{Anchor, ControlVerifier};
use crate::token;
use error::EnrolError;
use fairlead_admin::json::{EnrolRequest, EnrolResponse};
use fairlead_host::rng::Token;
use fairlead_host::{Clock, SystemClock};
use fairlead_model::{ApiCode, CaPin, HostPort, ListenAddress};
use install::Material;
use staging::Staging;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A request whose answer was lost is sent again with the same key, which the control plane takes
/// as the same enrolment (R-ENR-02).
const ATTEMPTS_MAX: u32 = 4;
/// Pause before each further attempt.
const ATTEMPT_PAUSE: Duration = Duration::from_secs(1);
/// Folder of the host's key: others may look, only its owner reads the key.
const HOST_FOLDER_MODE: u32 = 0o755;

/// What is asked for, checked.
#[derive(Debug)]
struct Request {
    role: Role,
    control: HostPort,
    pin: CaPin,
    dir: PathBuf,
    token_file: String,
    host_key_file: PathBuf,
    /// Relays only; without one, every address and the port of the advertised address.
    listen: Option<SocketAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Relay,
    Node,
}

impl Role {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Node => "node",
        }
    }

    /// The daemon that a member of this role runs.
    const fn daemon(self) -> &'static str {
        match self {
            Self::Relay => "supervisor",
            Self::Node => "node",
        }
    }
}

/// Enrols this host.
pub(crate) async fn run(flags: &Enrol) -> Result<(), Failure> {
    let request = check(flags)?;
    let enrolled = enrol(&request).await?;
    table::line(&format!(
        "enrolled as {} {} ({}) in {dir}\nnext: fairlead run {} --dir {dir}",
        request.role.as_str(),
        enrolled.name,
        enrolled.id,
        request.role.daemon(),
        dir = request.dir.display()
    ));
    Ok(())
}

fn check(flags: &Enrol) -> Result<Request, SettingsError> {
    let mut faults = Faults::default();
    let (role, member, listen) = match flags {
        Enrol::Relay(relay) => {
            let listen = relay.listen.as_deref();
            let listen = listen.and_then(|l| faults.take("--listen", ListenAddress::requested(l)));
            (Role::Relay, &relay.member, listen.map(|l| l.0))
        }
        Enrol::Node(node) => (Role::Node, &node.member, None),
    };
    let value = check_member(role, member, listen, &mut faults);
    faults.finish(value)
}

fn check_member(
    role: Role,
    member: &EnrolMember,
    listen: Option<SocketAddr>,
    faults: &mut Faults,
) -> Option<Request> {
    let control = faults.take("--control", HostPort::parse_control(&member.control));
    let pin = faults.parse("--ca-pin", &member.ca_pin);
    if member.dir.file_name().is_none() {
        faults.add("--dir", "is not a folder's name");
    }
    Some(Request {
        role,
        control: control?,
        pin: pin?,
        dir: member.dir.clone(),
        token_file: member.token_file.clone(),
        host_key_file: member.host_key_file.clone().unwrap_or_else(host_key_file),
        listen,
    })
}

/// The host's key stands outside every member's folder, since it tells this host from a copy of
/// such a folder.
fn host_key_file() -> PathBuf {
    if rustix::process::geteuid().is_root() {
        return PathBuf::from("/var/lib/fairlead/host.key");
    }
    crate::profile::state_folder().join("host.key")
}

async fn enrol(request: &Request) -> Result<EnrolResponse, EnrolError> {
    // Everything that may fail on this host comes before the token is spent.
    install::check_place(&request.dir)?;
    let mut staging = Staging::open(&request.dir)?;
    let token = token::read(&request.token_file)?;
    let result = spend(request, &token, &mut staging).await;
    if let Err(error) = &result {
        match error {
            // The token was spent with another key than the one kept here.
            EnrolError::Rest(RestError::Api {
                code: ApiCode::TokenUsed | ApiCode::TokenOtherHost,
                ..
            }) => staging.forget(),
            _ if staging.is_kept() => table::complain(&format!(
                "fairlead: {} keeps what was begun: the same command with the same token goes on with it",
                staging.path().display()
            )),
            _ => {}
        }
    }
    result
}

async fn spend(request: &Request, token: &Token, staging: &mut Staging) -> Result<EnrolResponse, EnrolError> {
    if let Some(parent) = request.host_key_file.parent().filter(|p| !p.exists()) {
        fairlead_host::file::make_folder(parent, HOST_FOLDER_MODE).map_err(EnrolError::Host)?;
    }
    let fingerprint = fairlead_host::fingerprint(&request.host_key_file).map_err(EnrolError::Host)?;
    let key = staging.key()?;
    let csr_pem = rcgen::CertificateParams::default()
        .serialize_request(&key)
        .and_then(|csr| csr.pem())
        .map_err(|e| EnrolError::Key(e.to_string()))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let verifier = ControlVerifier::new(Anchor::Pin(request.pin), clock.clone());
    let client = RestClient::new(request.control.clone(), verifier, None)?;
    let body = EnrolRequest {
        token: token.expose().to_owned(),
        role: request.role.as_str().to_owned(),
        csr_pem,
        version: crate::run::VERSION.to_owned(),
        host_fingerprint: fingerprint.parts().clone(),
        wall_clock: table::time_exact(clock.wall()),
        listen: request.listen.map(|l| l.to_string()),
    };
    let response = match post(&client, &body).await {
        Ok(response) => response,
        Err(error) => {
            // It may have arrived, and its answer got lost.
            if !matches!(error, RestError::Api { .. }) && matches!(client.verifier().outcome(), Some(Ok(_))) {
                staging.keep();
            }
            return Err(error.into());
        }
    };
    staging.keep();
    let seen = client
        .verifier()
        .outcome()
        .and_then(Result::ok)
        .ok_or_else(|| EnrolError::Answer("it came without a verified certificate".to_owned()))?;
    let material = Material {
        role: request.role,
        control: request.control.clone(),
        pin: request.pin,
        listen: request.listen,
        key: &key,
        response: &response,
        seen: &seen,
    };
    install::write(staging.path(), &material)?;
    staging.put_in_place()?;
    Ok(response)
}

/// Sends the request, again if the answer was lost on its way.
async fn post(client: &RestClient, body: &EnrolRequest) -> Result<EnrolResponse, RestError> {
    let mut attempt = 1;
    loop {
        match client.post("/v1/enrol", body).await {
            // A handshake took place: the request may have arrived.
            Err(RestError::Unreachable { .. })
                if attempt < ATTEMPTS_MAX && client.verifier().outcome().is_some() =>
            {
                attempt += 1;
                tokio::time::sleep(ATTEMPT_PAUSE).await;
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn request(arguments: &[&str]) -> Result<Request, SettingsError> {
        let line = ["fairlead", "enrol"].iter().chain(arguments);
        match Cli::try_parse_from(line).unwrap().command {
            Command::Enrol(flags) => check(&flags),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn all_faults_are_listed_together() {
        let error = request(&[
            "relay",
            "--control",
            "a b",
            "--ca-pin",
            "sha1:0",
            "--dir",
            "/",
            "--listen",
            "host:1",
        ])
        .unwrap_err();
        let places: Vec<_> = error.faults().iter().map(|f| f.place.as_str()).collect();
        assert_eq!(places, ["--listen", "--control", "--ca-pin", "--dir"]);
    }

    #[test]
    fn addresses_take_ipv6_literals_with_and_without_port() {
        let pin = format!("sha256:{}", "ab".repeat(32));
        for (text, want) in [
            ("2001:db8::1", "[2001:db8::1]:8443"),
            ("[2001:db8::1]:1", "[2001:db8::1]:1"),
            ("control.example", "control.example:8443"),
        ] {
            let request = request(&["node", "--control", text, "--ca-pin", &pin, "--dir", "d"]).unwrap();
            assert_eq!(request.control.to_string(), want);
            assert_eq!(request.role, Role::Node);
        }
    }
}
