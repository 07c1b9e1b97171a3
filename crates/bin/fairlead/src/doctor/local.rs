//! Checks on a member's own host, by its folder: with the control plane dead as well.

use super::TCP_SHUT;
use super::port;
use super::report::{Report, Subject};
use crate::rest::RestClient;
use crate::tls::{Anchor, ControlVerifier};
use fairlead_control::ControlFolder;
use fairlead_host::member::{self, MemberConfig, MemberFolder, MemberRole, RuntimeInfo};
use fairlead_host::{Clock, SystemClock};
use fairlead_telemetry::chain;
use fairlead_trust::certificate;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::error::Error;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Room that a member's folder should have: its state files many times over.
const FREE_MIN: u64 = 64 << 20;
/// A certificate that has less left should have been renewed a week ago.
const CERTIFICATE_LEFT_MIN: Duration = Duration::from_secs(5 * 86_400);
/// Greatest page of metrics that is read.
const METRICS_LEN_MAX: usize = 4 << 20;
/// How long a daemon may take to give its metrics.
const METRICS_MAX: Duration = Duration::from_secs(5);

/// Without a session.
const SESSIONLESS: &str = "until it has one, no change reaches it: what it holds is used until it ends";
/// A node's metric of its session.
const CONTROL_CONNECTED: &str = "fairlead_control_connected";

pub(crate) async fn check(dir: &Path) -> Report {
    let mut report = Report::default();
    let folder = MemberFolder::new(dir.to_owned());
    let config = match folder.load() {
        Ok(config) => config,
        Err(error) => {
            let found = chain(&error);
            report
                .on(dir.display().to_string())
                .failed("folder", found, unreadable(dir, &error));
            return report;
        }
    };
    let role = match config.role {
        MemberRole::Relay(_) => "relay",
        MemberRole::Node(_) => "node",
    };
    let mut subject = report.on(format!("{role} {}", config.name));
    subject.ok("folder", dir.display().to_string());
    secrets(&mut subject, &folder);
    room(&mut subject, dir);
    certificate_end(&mut subject, &folder);
    let (daemon, run) = match config.role {
        MemberRole::Relay(_) => ("supervisor", "supervisor"),
        MemberRole::Node(_) => ("node daemon", "node"),
    };
    let runtime = running(
        &mut subject,
        daemon,
        folder.read_runtime(),
        &format!(
            "start its service, or `fairlead run {run} --dir {}`",
            dir.display()
        ),
    );
    let answers = control_plane(&mut subject, &folder, &config).await;
    session(&mut subject, &folder, runtime.as_ref(), answers);
    match config.role {
        MemberRole::Relay(_) => {
            let advice = "the supervisor starts it: its log says why it ends";
            let runtime = member::read_runtime(&folder.worker_dir().join("runtime.json"));
            let worker = running(&mut subject, "worker", runtime, advice);
            listener(&mut subject, worker.as_ref()).await;
            metrics(&mut subject, worker.as_ref(), &["lease", "hop_sessions"], answers).await;
        }
        MemberRole::Node(_) => {
            metrics(
                &mut subject,
                runtime.as_ref(),
                &["hop_connected", "control_connected"],
                answers,
            )
            .await;
        }
    }
    report
}

/// What to do where the folder cannot be read.
fn unreadable(dir: &Path, error: &(dyn Error + 'static)) -> &'static str {
    let denied = std::iter::successors(Some(error), |e| (**e).source())
        .filter_map(|e| e.downcast_ref::<io::Error>())
        .any(|e| e.kind() == io::ErrorKind::PermissionDenied);
    if denied {
        "run this as the user that owns the folder, or as root"
    } else if ControlFolder::new(dir).admin_token_path().exists() {
        "this is a control plane's folder: `fairlead doctor` without --dir checks the pool"
    } else {
        "give the folder that `fairlead enrol` made"
    }
}

fn secrets(subject: &mut Subject<'_>, folder: &MemberFolder) {
    let mut open = Vec::new();
    for path in [folder.key_path(), folder.host_key_path()] {
        if let Ok(data) = std::fs::metadata(&path)
            && data.permissions().mode() & 0o077 != 0
        {
            open.push(path.display().to_string());
        }
    }
    if open.is_empty() {
        subject.ok("secrets", "readable by their owner only");
    } else {
        let found = format!("others may read {}", open.join(", "));
        subject.failed(
            "secrets",
            found,
            "chmod 600 them; if others had access, add the member anew",
        );
    }
}

fn room(subject: &mut Subject<'_>, dir: &Path) {
    match rustix::fs::statvfs(dir) {
        Ok(stat) => {
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let found = format!("{} MiB free", free >> 20);
            if free < FREE_MIN {
                let advice = "make room: policies and grants that cannot be kept are refused";
                subject.warning("store", found, advice);
            } else {
                subject.ok("store", found);
            }
        }
        Err(error) => subject.unmeasured("store", error.to_string(), ""),
    }
}

fn certificate_end(subject: &mut Subject<'_>, folder: &MemberFolder) {
    let end = folder.cert_chain_pem().map_err(|e| chain(&e)).and_then(|pem| {
        let leaf = CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|e| e.to_string())?;
        certificate::validity_of(&leaf).map_err(|e| e.to_string())
    });
    match end {
        Err(error) => subject.failed(
            "certificate",
            error,
            "add the member anew: its identity cannot be read",
        ),
        Ok(validity) => {
            let left = validity.not_after.since(SystemClock::new().wall());
            let found = format!("{} days left", left.as_secs() / 86_400);
            if left.is_zero() {
                subject.failed(
                    "certificate",
                    "it has ended",
                    "let the daemon reach the control plane",
                );
            } else if left < CERTIFICATE_LEFT_MIN {
                let advice = "it is renewed with 12 days left as a rule: the daemon's log says why not";
                subject.warning("certificate", found, advice);
            } else {
                subject.ok("certificate", found);
            }
        }
    }
}

/// Whether the process of a runtime file lives.
fn running(
    subject: &mut Subject<'_>,
    what: &str,
    runtime: Result<Option<RuntimeInfo>, member::MemberError>,
    advice: &str,
) -> Option<RuntimeInfo> {
    match runtime {
        Ok(Some(runtime)) if Path::new(&format!("/proc/{}", runtime.pid)).exists() => {
            subject.ok("process", format!("{what} runs, pid {}", runtime.pid));
            Some(runtime)
        }
        Ok(Some(runtime)) => {
            subject.failed(
                "process",
                format!("{what} ended, its pid was {}", runtime.pid),
                advice,
            );
            None
        }
        Ok(None) => {
            subject.failed("process", format!("{what} does not run"), advice);
            None
        }
        Err(error) => {
            subject.unmeasured("process", format!("{what}: {}", chain(&error)), "");
            None
        }
    }
}

/// Whether the control plane answers.
async fn control_plane(subject: &mut Subject<'_>, folder: &MemberFolder, config: &MemberConfig) -> bool {
    let client = folder.ca_pem().map_err(|e| chain(&e)).and_then(|pem| {
        let cas = CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| e.to_string())?;
        let verifier = ControlVerifier::new(Anchor::Certificates(cas), Arc::new(SystemClock::new()));
        RestClient::new(config.control.clone(), verifier, None).map_err(|e| chain(&e))
    });
    let answered = match client {
        Ok(client) => client
            .get::<serde_json::Value>("/healthz")
            .await
            .map_err(|e| chain(&e)),
        Err(error) => Err(error),
    };
    match answered {
        Ok(_) => {
            subject.ok("control", format!("{} answers and proves itself", config.control));
            return true;
        }
        Err(error) => subject.warning(
            "control",
            error,
            "what is admitted goes on until the lease ends; changes wait. See that the control plane runs and \
             this host reaches it over TCP",
        ),
    }
    false
}

/// Whether the running daemon has a session with the control plane, in its own words. None is a fault where
/// the control plane answers this host.
fn session(subject: &mut Subject<'_>, folder: &MemberFolder, runtime: Option<&RuntimeInfo>, answers: bool) {
    let Some(runtime) = runtime else {
        return;
    };
    let told = match folder.read_control_session() {
        Ok(told) => told.filter(|told| told.pid == runtime.pid),
        Err(error) => {
            subject.unmeasured("session", chain(&error), "");
            return;
        }
    };
    match told.map(|told| told.missing) {
        None => {
            let advice = "its log says why it has no session; look again in some seconds";
            subject.unmeasured("session", "the daemon has not told yet", advice);
        }
        Some(None) => subject.ok("session", "the daemon is connected to the control plane"),
        Some(Some(reason)) => {
            let found = format!("the daemon has no session with the control plane: {reason}");
            if answers {
                subject.failed("session", found, SESSIONLESS);
            } else {
                subject.warning("session", found, SESSIONLESS);
            }
        }
    }
}

async fn listener(subject: &mut Subject<'_>, worker: Option<&RuntimeInfo>) {
    let address: Option<SocketAddr> = worker
        .and_then(|w| w.listen.as_ref())
        .and_then(|text| text.parse().ok());
    let Some(address) = address else {
        subject.unmeasured("udp", "the worker says no address", "");
        return;
    };
    let near = if address.ip().is_unspecified() {
        let ip: IpAddr = match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        SocketAddr::new(ip, address.port())
    } else {
        address
    };
    match port::quic(near).await {
        Ok(Some(_)) => subject.ok("udp", format!("{address} answers QUIC on this host")),
        Ok(None) => subject.failed(
            "udp",
            format!("{address} does not answer"),
            "a firewall on this host drops UDP",
        ),
        Err(error) => subject.failed(
            "udp",
            format!("{address}: {error}"),
            "the worker does not listen there",
        ),
    }
    match port::tcp(near).await {
        Ok(()) => subject.ok("tcp", format!("{near} accepts connections")),
        Err(error) => subject.warning("tcp", format!("{near}: {error}"), TCP_SHUT),
    }
}

/// The daemon's own words: the metrics whose names hold one of `names`. `answers`: as for its session.
async fn metrics(subject: &mut Subject<'_>, runtime: Option<&RuntimeInfo>, names: &[&str], answers: bool) {
    let Some(runtime) = runtime else {
        return;
    };
    let Some(url) = &runtime.metrics_url else {
        let advice = "run it with --metrics 127.0.0.1:0 to see here what it is connected to";
        subject.unmeasured("metrics", "it serves none", advice);
        return;
    };
    match fetch(url).await {
        Err(error) => subject.failed(
            "metrics",
            format!("{url}: {error}"),
            "the process does not answer: its log, or a stack dump, says more",
        ),
        Ok(text) => {
            let wanted = text
                .lines()
                .filter(|l| !l.starts_with('#') && names.iter().any(|name| l.contains(name)));
            for line in wanted.take(32) {
                match (is_sessionless(line), answers) {
                    (true, true) => subject.failed("metrics", line, SESSIONLESS),
                    (true, false) => subject.warning("metrics", line, SESSIONLESS),
                    (false, _) => subject.ok("metrics", line),
                }
            }
        }
    }
}

/// Whether a line of metrics says that there is no session.
fn is_sessionless(line: &str) -> bool {
    line.rsplit_once(' ')
        .is_some_and(|(name, value)| name.starts_with(CONTROL_CONNECTED) && value == "0")
}

async fn fetch(url: &str) -> Result<String, String> {
    let client = reqwest::Client::builder()
        .no_proxy()
        .timeout(METRICS_MAX)
        .build()
        .map_err(|e| e.to_string())?;
    let mut response = client.get(url).send().await.map_err(|e| e.to_string())?;
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|e| e.to_string())? {
        if bytes.len() + chunk.len() > METRICS_LEN_MAX {
            return Err("it is too long".to_owned());
        }
        bytes.extend_from_slice(&chunk);
    }
    String::from_utf8(bytes).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fairlead_host::FileError;

    /// A daemon without a session is a fault where the control plane answers, with its own reason; what a
    /// process before it told counts for nothing.
    #[tokio::test]
    async fn a_daemon_without_a_session_is_not_well() {
        let dir = tempfile::tempdir().unwrap();
        let folder = MemberFolder::new(dir.path().to_owned());
        let runtime = |pid| RuntimeInfo {
            pid,
            metrics_url: None,
            listen: None,
        };
        let own = runtime(std::process::id());
        let said = |runtime: &RuntimeInfo, answers| {
            let mut report = Report::default();
            session(&mut report.on("node alpha"), &folder, Some(runtime), answers);
            format!("{:?}", report.checks())
        };
        assert!(said(&own, true).contains("not told yet"));
        let teller = folder.session_teller();
        teller.tell(Some("it was removed".to_owned())).await;
        let found = said(&own, true);
        assert!(
            found.contains("Failed") && found.contains("it was removed"),
            "{found}"
        );
        assert!(said(&own, false).contains("Warning"));
        assert!(said(&runtime(1), true).contains("not told yet"));
        teller.tell(None).await;
        assert!(said(&own, true).contains("is connected"));
        assert!(is_sessionless("fairlead_control_connected 0"));
        assert!(is_sessionless("fairlead_control_connected{node=\"a\"} 0"));
        assert!(!is_sessionless("fairlead_control_connected 1"));
    }

    /// Another user's folder is not said to be a wrong one.
    #[test]
    fn a_folder_that_may_not_be_read_is_told_from_a_wrong_one() {
        let error = |kind: io::ErrorKind| {
            member::MemberError::from(FileError::Io {
                action: "read",
                path: "/d/member.json".into(),
                source: kind.into(),
            })
        };
        let dir = tempfile::tempdir().unwrap();
        let said = |kind| unreadable(dir.path(), &error(kind));
        assert!(said(io::ErrorKind::PermissionDenied).contains("the user that owns"));
        assert!(said(io::ErrorKind::NotFound).contains("fairlead enrol"));
        std::fs::write(dir.path().join("admin.token"), "x").unwrap();
        assert!(said(io::ErrorKind::NotFound).contains("control plane's folder"));
    }
}
