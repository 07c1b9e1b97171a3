//! Why the control plane cannot be asked: what is wrong with its address, or with what answers there.

use crate::doctor::port;
use crate::doctor::report::Report;
use crate::rest::RestError;
use crate::tls::ControlCertError;
use fairlead_model::HostPort;
use fairlead_model::address::Host;
use std::io;
use std::net::SocketAddr;

/// For whoever has no control plane to ask.
const WITHOUT_IT: &str = "on a member's host, `fairlead doctor --dir` and its folder, such as /var/lib/fairlead/node, checks without it";

/// How an address answers.
#[derive(Debug)]
enum Address {
    /// Its name does not resolve here.
    Unresolved(io::Error),
    /// No connection is made to any of its addresses; the first one's reason.
    Shut(SocketAddr, io::Error),
    /// Something accepts connections.
    Open,
}

/// Says why it cannot be asked. `place` is where its address was given.
pub(super) async fn failed(report: &mut Report, control: &HostPort, place: &str, error: &RestError) {
    let address = match error {
        RestError::Unreachable { .. } => look(control).await,
        // It answered.
        RestError::Certificate { .. }
        | RestError::Api { .. }
        | RestError::Answer { .. }
        | RestError::Tls(_) => Address::Open,
    };
    let (found, advice) = said(control, place, &address, error);
    let mut subject = report.on("control plane");
    subject.failed("reach", found, &format!("{advice}; {WITHOUT_IT}"));
}

async fn look(control: &HostPort) -> Address {
    let addresses = match port::resolve(control).await {
        Ok(addresses) => addresses,
        Err(error) => return Address::Unresolved(error),
    };
    let mut shut = None;
    for address in addresses {
        match port::tcp(address).await {
            Ok(()) => return Address::Open,
            Err(error) => {
                shut.get_or_insert((address, error));
            }
        }
    }
    shut.map_or(Address::Open, |(address, error)| Address::Shut(address, error))
}

/// What is wrong, and what to do.
fn said(control: &HostPort, place: &str, address: &Address, error: &RestError) -> (String, String) {
    match address {
        Address::Unresolved(error) => (
            format!(
                "{control}: this machine cannot resolve the name `{}`: {error}",
                name(control)
            ),
            format!("is it spelt right? It is from {place}; if it is, mend its DNS entry"),
        ),
        Address::Shut(at, error) if error.kind() == io::ErrorKind::ConnectionRefused => (
            format!(
                "{control}: nothing listens on TCP port {} of {}",
                at.port(),
                at.ip()
            ),
            format!(
                "see that the control plane runs there (`systemctl status fairlead-control`), and that host and port \
                 are right: they are from {place}"
            ),
        ),
        Address::Shut(at, error) => (
            format!("{control}: {at} cannot be connected to: {error}"),
            format!(
                "see that its host is up and that TCP port {} is open to this machine, and that the address is right: \
                 it is from {place}",
                at.port()
            ),
        ),
        Address::Open => {
            let advice = match error {
                RestError::Certificate { error, .. } => not_trusted(error),
                RestError::Api { .. } if error.is_refused_token() => {
                    "--token-file is no token of this control plane: `fairlead login` with one of its own"
                }
                RestError::Api { .. } => "the control plane says no: its log may say more",
                RestError::Unreachable { .. } | RestError::Answer { .. } | RestError::Tls(_) => {
                    "something listens there that does not answer as a Fairlead control plane: see that host and port \
                     are right, and whether it is busy or hung"
                }
            };
            let found = fairlead_telemetry::chain(error);
            (found, format!("{advice}; the address is from {place}"))
        }
    }
}

/// What to do where what answers is not trusted.
const fn not_trusted(error: &ControlCertError) -> &'static str {
    match error {
        ControlCertError::Leaf(_) => {
            "that port is a member's, such as a relay's: the control plane listens on 8443, unless its settings say \
             otherwise"
        }
        ControlCertError::Clock { .. } => "set the clock that is wrong, and keep it right",
        ControlCertError::Pin { .. } | ControlCertError::Issuer { .. } | ControlCertError::Chain(_) => {
            "the address, or --ca-file, is another pool's: give those of one"
        }
    }
}

fn name(control: &HostPort) -> String {
    match control.host() {
        Host::Dns(name) => name.as_str().to_owned(),
        Host::Ip(ip) => ip.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Outcome;

    fn unreachable(control: &HostPort) -> RestError {
        RestError::Unreachable {
            control: control.clone(),
            reason: "it did not answer in time".to_owned(),
        }
    }

    async fn first_line(control: &str) -> (String, String) {
        let control: HostPort = control.parse().unwrap();
        let mut report = Report::default();
        failed(&mut report, &control, "--control", &unreachable(&control)).await;
        let check = report.checks()[0].clone();
        assert_eq!(check.outcome, Outcome::Failed);
        assert!(check.advice.contains("doctor --dir"), "{check:?}");
        (check.found, check.advice)
    }

    /// A relay's port is not the control plane of another pool.
    #[test]
    fn who_answers_is_told_from_who_should() {
        let control: HostPort = "10.0.0.1:9443".parse().unwrap();
        let told = |error: ControlCertError| {
            let error = RestError::Certificate {
                control: control.clone(),
                error: Box::new(error),
            };
            said(&control, "--control", &Address::Open, &error).1
        };
        let member = told(ControlCertError::Leaf("no identity".to_owned()));
        assert!(
            member.contains("a relay's") && member.contains("from --control"),
            "{member}"
        );
        let issuer = told(ControlCertError::Issuer {
            presented: "sha256:00".to_owned(),
        });
        assert!(issuer.contains("another pool's"), "{issuer}");
    }

    /// R-UI-04: the first line says what is wrong with the address, and what to do about that.
    #[tokio::test]
    async fn a_mistyped_address_is_what_the_first_line_is_about() {
        // RFC 6761: no such name, ever.
        let (found, advice) = first_line("contrl.invalid:8443").await;
        assert!(
            found.starts_with("contrl.invalid:8443: this machine cannot resolve the name `contrl.invalid`"),
            "{found}"
        );
        assert!(
            advice.contains("spelt right?") && advice.contains("--control"),
            "{advice}"
        );
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (found, advice) = first_line(&address.to_string()).await;
        assert!(found.contains("did not answer in time"), "{found}");
        assert!(advice.starts_with("something listens there"), "{advice}");
        drop(listener);
        let (found, advice) = first_line(&address.to_string()).await;
        let port = address.port();
        assert_eq!(
            found,
            format!("{address}: nothing listens on TCP port {port} of 127.0.0.1")
        );
        assert!(advice.contains("control plane runs there"), "{advice}");
    }
}
