//! Dialling a relay.

use crate::carrier::{Carrier, CarrierEnd};
use crate::closing::Closing;
use crate::config::{CarrierConfig, bind_udp, dialler_endpoint};
use crate::tls::{IdentityMismatch, MemberTls, NO_NAME, Peer, TlsError, VerifyFault};
use fairlead_model::address::Host;
use fairlead_model::{HostPort, Identity};
use futures_util::stream::{FuturesUnordered, StreamExt};
use quinn::crypto::rustls::QuicClientConfig;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout_at};

/// The whole of one dial (ARCHITECTURE.md, Hop sessions and legs).
const DIAL_DEADLINE: Duration = Duration::from_secs(10);
/// The next address is tried beside the ones before after this (RFC 8305's connection attempt
/// delay, 250 ms).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// When all addresses are being tried, each is tried anew after this, beside the attempts that
/// hang: QUIC's own retransmission backs off to seconds, and a relay that listens again should be
/// found within a second where only UDP passes (R-NOD-01; else [`crate::Knock`] finds it sooner).
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Most addresses of one name.
const ADDRESSES_MAX: usize = 8;
/// Most attempts of one dial; one every [`RETRY_DELAY`] until the deadline, and the first round.
const ATTEMPTS_MAX: usize = 28;
/// How long closing waits for the peers to be told.
const CLOSE_WAIT: Duration = Duration::from_millis(500);

/// A daemon's way to its relays: one UDP socket for all its carriers.
#[derive(Debug)]
pub struct Dialler {
    endpoint: quinn::Endpoint,
    tls: Arc<MemberTls>,
    transport: Arc<quinn::TransportConfig>,
    closing: Closing,
    legs_max: u32,
}

/// What became of one address.
#[derive(Debug, thiserror::Error)]
pub enum AttemptError {
    /// The host has no route to it, or no such address family.
    #[error("it cannot be reached from this host")]
    Unusable(#[source] quinn::ConnectError),
    /// The carrier was not made.
    #[error(transparent)]
    Ended(CarrierEnd),
    /// The peer proved to be somebody else.
    #[error(transparent)]
    Identity(IdentityMismatch),
    /// The peer's certificate is not valid here.
    #[error("{0}")]
    Certificate(String),
    /// No answer by the deadline.
    #[error("no answer within {} s", DIAL_DEADLINE.as_secs())]
    NoAnswer,
}

/// Why a dial failed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name does not resolve.
    #[error("cannot resolve {address}")]
    Unresolved {
        /// What was dialled.
        address: HostPort,
        /// The resolver's reason.
        #[source]
        source: io::Error,
    },
    /// The name has no address.
    #[error("{0} has no address")]
    NoAddress(HostPort),
    /// This end cannot set up its TLS.
    #[error("cannot set up TLS")]
    Tls(#[source] TlsError),
    /// No UDP socket.
    #[error("cannot open a UDP socket")]
    Socket(#[source] io::Error),
    /// Every address failed.
    #[error("cannot connect to {address}: {}", describe(.attempts))]
    Failed {
        /// What was dialled.
        address: HostPort,
        /// Each address that was tried, and why it failed.
        attempts: Vec<(SocketAddr, AttemptError)>,
    },
}

impl DialError {
    /// The peer's identity, where it proved to be another than the expected one.
    #[must_use]
    pub fn identity(&self) -> Option<IdentityMismatch> {
        match self {
            Self::Failed { attempts, .. } => attempts.iter().find_map(|(_, error)| match error {
                AttemptError::Identity(mismatch) => Some(*mismatch),
                AttemptError::Unusable(_)
                | AttemptError::Ended(_)
                | AttemptError::Certificate(_)
                | AttemptError::NoAnswer => None,
            }),
            Self::Unresolved { .. } | Self::NoAddress(_) | Self::Tls(_) | Self::Socket(_) => None,
        }
    }
}

fn describe(attempts: &[(SocketAddr, AttemptError)]) -> String {
    let words: Vec<String> = attempts
        .iter()
        .map(|(address, error)| format!("{address}: {error}"))
        .collect();
    words.join("; ")
}

impl Dialler {
    /// Opens the daemon's socket. Needs a tokio runtime.
    ///
    /// # Errors
    /// No UDP socket can be had.
    pub fn new(tls: Arc<MemberTls>, config: &CarrierConfig) -> Result<Self, DialError> {
        // One socket for both families; a host without IPv6 gets an IPv4 one.
        let socket = bind_udp((Ipv6Addr::UNSPECIFIED, 0).into())
            .or_else(|_| bind_udp((Ipv4Addr::UNSPECIFIED, 0).into()))
            .map_err(DialError::Socket)?;
        let closing = Closing::default();
        let endpoint = quinn::Endpoint::new(dialler_endpoint(), None, socket, Arc::new(quinn::TokioRuntime))
            .map_err(DialError::Socket)?;
        Ok(Self {
            endpoint,
            tls,
            transport: Arc::new(config.quic(&closing)),
            closing,
            legs_max: config.legs_max,
        })
    }

    /// Makes a carrier to `expect` at `address`, whose name is resolved at each call; all its
    /// addresses are tried, for 10 s at most. Cancel-safe.
    ///
    /// The peer may still refuse this end's certificate after that: a first answer on the carrier
    /// is the proof that it has not.
    ///
    /// # Errors
    /// Says for each address what became of it.
    pub async fn dial(&self, address: &HostPort, expect: Identity) -> Result<Carrier, DialError> {
        let deadline = Instant::now() + DIAL_DEADLINE;
        let addresses = resolve(address, deadline).await?;
        let mut failures: Vec<(SocketAddr, AttemptError)> = Vec::new();
        let mut running = FuturesUnordered::new();
        let mut planned = addresses.iter().copied().cycle();
        let mut started = 0;
        let mut next_start = Instant::now();
        loop {
            let may_start = started < ATTEMPTS_MAX && next_start < deadline;
            tokio::select! {
                biased;
                Some((tried, outcome)) = running.next(), if !running.is_empty() => match outcome {
                    Ok(carrier) => return Ok(carrier),
                    Err(error) => {
                        let final_here = matches!(
                            error,
                            AttemptError::Identity(_) | AttemptError::Certificate(_) | AttemptError::Unusable(_)
                        );
                        record(&mut failures, tried, error);
                        // Certain of every address: waiting changes nothing.
                        if final_here && failures.len() == addresses.len() && running.is_empty() {
                            break;
                        }
                        if started < addresses.len() {
                            next_start = Instant::now();
                        }
                    }
                },
                () = sleep_until(next_start), if may_start => {
                    if let Some(to) = planned.next() {
                        running.push(self.attempt(to, expect));
                    }
                    started += 1;
                    next_start = Instant::now()
                        + if started < addresses.len() { ATTEMPT_DELAY } else { RETRY_DELAY };
                }
                () = sleep_until(deadline) => break,
            }
        }
        drop(running);
        for tried in addresses {
            if !failures.iter().any(|(failed, _)| *failed == tried) {
                failures.push((tried, AttemptError::NoAnswer));
            }
        }
        Err(DialError::Failed {
            address: address.clone(),
            attempts: failures,
        })
    }

    /// The TLS that the dialler uses.
    #[must_use]
    pub const fn tls(&self) -> &Arc<MemberTls> {
        &self.tls
    }

    /// Closes every carrier and waits a moment for the peers to hear of it.
    pub async fn close(&self) {
        self.closing.begin();
        self.endpoint
            .close(crate::LegCode::CANCELLED.0.try_into().unwrap_or_default(), b"bye");
        let _ = tokio::time::timeout(CLOSE_WAIT, self.endpoint.wait_idle()).await;
    }

    async fn attempt(&self, to: SocketAddr, expect: Identity) -> (SocketAddr, Result<Carrier, AttemptError>) {
        (to, self.try_attempt(to, expect).await)
    }

    async fn try_attempt(&self, to: SocketAddr, expect: Identity) -> Result<Carrier, AttemptError> {
        let setup = |error: &dyn std::fmt::Display| AttemptError::Certificate(error.to_string());
        let (tls, verifier) = self
            .tls
            .client_config(Peer::Exactly(expect), fairlead_hop::ALPN)
            .map_err(|error| setup(&error))?;
        let quic = QuicClientConfig::try_from(tls).map_err(|error| setup(&error))?;
        let mut config = quinn::ClientConfig::new(Arc::new(quic));
        config.transport_config(Arc::clone(&self.transport));
        let connection = self
            .endpoint
            .connect_with(config, to, NO_NAME)
            .map_err(AttemptError::Unusable)?
            .await;
        match (connection, verifier.take_fault()) {
            (Ok(connection), _) => Ok(Carrier::new(connection, expect, self.legs_max)),
            (Err(_), Some(VerifyFault::Mismatch(mismatch))) => Err(AttemptError::Identity(mismatch)),
            (Err(_), Some(fault @ (VerifyFault::Chain(_) | VerifyFault::NoIdentity(_)))) => {
                Err(AttemptError::Certificate(fault.to_string()))
            }
            (Err(error), None) => Err(AttemptError::Ended(error.into())),
        }
    }
}

/// Keeps one failure per address: the latest, since attempts are repeated.
fn record(failures: &mut Vec<(SocketAddr, AttemptError)>, address: SocketAddr, error: AttemptError) {
    match failures.iter_mut().find(|(failed, _)| *failed == address) {
        Some(entry) => entry.1 = error,
        None => failures.push((address, error)),
    }
}

pub(crate) async fn resolve(address: &HostPort, deadline: Instant) -> Result<Vec<SocketAddr>, DialError> {
    let name = match address.host() {
        Host::Ip(ip) => return Ok(vec![SocketAddr::new(*ip, address.port())]),
        Host::Dns(name) => name.as_str(),
    };
    let unresolved = |source| DialError::Unresolved {
        address: address.clone(),
        source,
    };
    let found = timeout_at(deadline, tokio::net::lookup_host((name, address.port())))
        .await
        .map_err(|_| unresolved(io::ErrorKind::TimedOut.into()))?
        .map_err(unresolved)?;
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for found in found {
        if addresses.len() < ADDRESSES_MAX && !addresses.contains(&found) {
            addresses.push(found);
        }
    }
    if addresses.is_empty() {
        return Err(DialError::NoAddress(address.clone()));
    }
    Ok(addresses)
}
