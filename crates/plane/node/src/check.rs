//! Tries a route's path anew, on an admin's request (R-UI-04).
//!
//! Old sessions and long streams can hide that nothing new is admitted. So everything is made for
//! the check alone: a hop session to the relay, an association with the publisher, one stream to the
//! target, which is closed as soon as it is connected, and one that the publisher's daemon sends
//! back. The relay's verdict, the grant and the publisher's own check are the ordinary ones.
//!
//! Which stream is sent back says its number, [`StreamKind::Check`]: the stream's secret is drawn
//! from it, so no relay can turn an application's stream into a check, or the reverse.

use crate::association::{Associations, StreamKind};
use crate::consumer::Consumer;
use crate::driver::{Driver, Further, Mover, Near, Outcome};
use crate::metrics::NodeMetrics;
use crate::old_runs::OldRuns;
use crate::open::{Opening, Unanswered};
use crate::paths::Paths;
use crate::relays::Relays;
use crate::session::{self, SessionContext, SessionEnd};
use crate::socket::EndSocket;
use crate::view::View;
use bytes::Bytes;
use fairlead_host::rng;
use fairlead_model::{BootCounter, Identity, RefusalCode, RelayId, RouteId};
use fairlead_rpc::pb;
use fairlead_telemetry::{Metrics, RateLimitedLog, chain};
use fairlead_transport::MemberTls;
use fairlead_trust::{Consumption, NodeRelay};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Bytes that are sent and come back: several records, and more than a socket buffers at once.
const BYTES: usize = 256 * 1024;
/// The most that a publisher sends back in one check.
pub(crate) const ECHO_BYTES_MAX: u64 = 1024 * 1024;
/// How long a publisher serves one check.
pub(crate) const ECHO_MAX: Duration = Duration::from_secs(20);
/// How long the hop session may take.
const SESSION_MAX: Duration = Duration::from_secs(7);
/// How long the target may take: the publisher dials it for 5 s.
const TARGET_MAX: Duration = Duration::from_secs(7);
/// How long the bytes may take.
const ECHO_WAIT_MAX: Duration = Duration::from_secs(7);
/// How long the check's session and streams may take to end in order.
const END_MAX: Duration = Duration::from_secs(1);

/// What tries paths.
#[derive(Debug)]
pub(crate) struct PathChecker {
    pub(crate) sessions: Arc<SessionContext>,
    pub(crate) consumer: Arc<Consumer>,
    pub(crate) tls: Arc<MemberTls>,
    pub(crate) boot: BootCounter,
    pub(crate) old_runs: OldRuns,
    /// Where handshakes run.
    pub(crate) tasks: TaskTracker,
}

/// What stopped a path: a stable code, and words.
type Stopped = (&'static str, String);

/// One check on its way.
struct Path {
    consumption: Consumption,
    relays: Relays,
    associations: Arc<Associations>,
    metrics: NodeMetrics,
}

impl PathChecker {
    /// Tries the path; the report says how far it came. Ends within the sum of the limits above.
    pub(crate) async fn run(self: Arc<Self>, check: pb::PathCheck) -> pb::PathReport {
        let mut report = pb::PathReport {
            check_id: check.check_id.clone(),
            ..pb::PathReport::default()
        };
        if let Err((code, detail)) = self.check(&check, &mut report).await {
            report.failed = code.to_owned();
            report.detail = detail;
        }
        tracing::info!(
            failed = report.failed,
            target = report.target,
            session_us = report.session_us,
            "a path was tried"
        );
        report
    }

    async fn check(&self, check: &pb::PathCheck, report: &mut pb::PathReport) -> Result<(), Stopped> {
        let (consumption, relay) = self.find(check)?;
        let relays = Relays::new(Arc::new(Notify::new()));
        relays.add(relay.relay);
        let consumer = &self.consumer;
        // What a check does and finds is its report: the daemon's sessions and streams are no others for it.
        let metrics = NodeMetrics::new(&Metrics::new("check"));
        let path = Path {
            consumption,
            relays: relays.clone(),
            associations: Arc::new(Associations::new(
                self.tls.clone(),
                self.boot,
                consumer.clock.clone(),
                self.old_runs.clone(),
                metrics.clone(),
                self.tasks.clone(),
            )),
            metrics: metrics.clone(),
        };
        let context = SessionContext {
            dialler: self.sessions.dialler.clone(),
            relays,
            publisher: self.sessions.publisher.clone(),
            clock: self.sessions.clock.clone(),
            metrics,
            boot: self.sessions.boot,
            process_boot: self.sessions.process_boot,
            software: self.sessions.software,
            session_numbers: AtomicU32::new(0),
            only_quic: RateLimitedLog::new(session::LOG_EVERY),
            streams: self.sessions.streams.clone(),
        };
        // It registers nothing: the daemon's own sessions do.
        let (_publishes_nothing, view) = watch::channel(Arc::new(View::default()));
        let number = self.sessions.session_numbers.fetch_add(1, Ordering::Relaxed);
        let (cancel, mut established) = (CancellationToken::new(), false);
        let session = async {
            let dial = context.dialler.dial(&relay.address, Identity::Relay(relay.relay));
            match dial.await {
                Err(error) => SessionEnd::Dial(error),
                Ok(carrier) => {
                    let established = &mut established;
                    session::one_session(&context, &relay, number, carrier, view, &cancel, established).await
                }
            }
        };
        tokio::pin!(session);
        let result = tokio::select! {
            end = &mut session => Err(("NO_SESSION", chain(&end))),
            result = self.through(&path, relay.relay, report) => result,
        };
        cancel.cancel();
        if result
            .as_ref()
            .err()
            .is_none_or(|(code, _)| *code != "NO_SESSION")
        {
            let _ = tokio::time::timeout(END_MAX, session).await;
        }
        result
    }

    fn find(&self, check: &pb::PathCheck) -> Result<(Consumption, NodeRelay), Stopped> {
        let view = self.consumer.view.borrow().clone();
        let route = RouteId::from_slice(&check.route_id);
        let consumption = route.and_then(|route| view.consumption(route));
        let no_route = || {
            (
                RefusalCode::UnknownRoute.as_str(),
                "it is not in this node's policy".to_owned(),
            )
        };
        let consumption = consumption.ok_or_else(no_route)?;
        let relay = RelayId::from_slice(&check.relay_id);
        let relays = view.policy().into_iter().flat_map(|p| &p.relays);
        let relay = relays.into_iter().find(|r| Some(r.relay) == relay);
        let relay = relay.ok_or_else(|| ("UNKNOWN_RELAY", "it is not in this node's policy".to_owned()))?;
        Ok((consumption.clone(), relay.clone()))
    }

    /// What goes through the new session, once it is up.
    async fn through(&self, path: &Path, relay: RelayId, report: &mut pb::PathReport) -> Result<(), Stopped> {
        let began = Instant::now();
        let mut sessions = path.relays.subscribe();
        let up = sessions.wait_for(|sessions| sessions.contains_key(&relay));
        match tokio::time::timeout(SESSION_MAX, up).await {
            Ok(Ok(_)) => report.session_us = micros(began),
            Ok(Err(_)) | Err(_) => {
                let text = format!("no hop session within {} s", SESSION_MAX.as_secs());
                return Err(("NO_SESSION", text));
            }
        }
        // The target first: the publisher takes lower stream numbers only before higher ones.
        report.target = match self.target(path).await {
            Ok(()) => "CONNECTED".to_owned(),
            Err((code, _)) => code.to_owned(),
        };
        self.echo(path, report).await
    }

    /// Opens a stream to the target, and ends it when the target is connected.
    async fn target(&self, path: &Path) -> Result<(), Stopped> {
        let (near, far) = tcp_pair().await.map_err(local)?;
        let far = EndSocket::tcp(far).map_err(local)?;
        let (connected, is_connected) = oneshot::channel();
        let stream = self.stream(path, StreamKind::Service, near, connected);
        tokio::pin!(stream);
        let connected = async {
            match tokio::time::timeout(TARGET_MAX, is_connected).await {
                Ok(Ok(())) => Ok(()),
                // The stream ended without; its outcome says why.
                Ok(Err(_)) => std::future::pending().await,
                Err(_) => Err(silent(TARGET_MAX)),
            }
        };
        let result = tokio::select! {
            biased;
            result = connected => result,
            outcome = &mut stream => return Err(outcome),
        };
        // Both ends are told by a reset; a half-close would leave the target time to talk.
        far.reset();
        let _ = tokio::time::timeout(END_MAX, stream).await;
        result
    }

    /// Sends bytes to the publisher's daemon and compares what comes back.
    async fn echo(&self, path: &Path, report: &mut pb::PathReport) -> Result<(), Stopped> {
        let (near, mut far) = tcp_pair().await.map_err(local)?;
        let (connected, _) = oneshot::channel();
        let stream = self.stream(path, StreamKind::Check, near, connected);
        tokio::pin!(stream);
        let began = Instant::now();
        let sent = Bytes::from(pattern());
        let compared = async {
            let (mut from, mut to) = far.split();
            let write = async {
                to.write_all(&sent).await?;
                to.shutdown().await
            };
            let read = async {
                let (mut buffer, mut at) = (vec![0; 16 * 1024], 0);
                loop {
                    let count = from.read(&mut buffer).await?;
                    let back = buffer.get(..count).unwrap_or_default();
                    if count == 0 {
                        return Ok(at == sent.len());
                    }
                    if sent.get(at..at + count) != Some(back) {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                    if at == 0 {
                        report.tunnel_us = micros(began);
                    }
                    at += count;
                    report.bytes_verified = at as u64;
                }
            };
            let (_, whole): (io::Result<()>, io::Result<bool>) = tokio::join!(write, read);
            whole
        };
        tokio::pin!(compared);
        let mut ended = None;
        let limit = began + ECHO_WAIT_MAX;
        let result = loop {
            tokio::select! {
                biased;
                result = &mut compared => break result,
                outcome = &mut stream, if ended.is_none() => ended = Some(outcome),
                () = tokio::time::sleep_until(limit) => return Err(silent(ECHO_WAIT_MAX)),
            }
        };
        if ended.is_none() {
            ended = tokio::time::timeout(END_MAX, stream).await.ok();
        }
        match (result, ended) {
            (Ok(true), _) => Ok(()),
            (Err(error), _) if error.kind() == io::ErrorKind::InvalidData => {
                Err(("CORRUPT", "other bytes came back than were sent".to_owned()))
            }
            // How the stream ended says more than how its socket did.
            (Ok(false) | Err(_), Some(outcome)) => Err(outcome),
            (Ok(false), None) => Err(("TRUNCATED", "fewer bytes came back than were sent".to_owned())),
            (Err(error), None) => Err(local(error)),
        }
    }

    /// Opens a stream and runs it to its end; how it ended.
    async fn stream(
        &self,
        path: &Path,
        kind: StreamKind,
        near: TcpStream,
        connected: oneshot::Sender<()>,
    ) -> Stopped {
        let socket = match EndSocket::tcp(near) {
            Ok(socket) => socket,
            Err(error) => return local(error),
        };
        let shared = &self.consumer;
        let consumer = Arc::new(Consumer {
            view: shared.view.clone(),
            relays: path.relays.clone(),
            associations: path.associations.clone(),
            live: shared.live.clone(),
            clock: shared.clock.clone(),
            metrics: path.metrics.clone(),
            paths: Paths::new(shared.clock.mono()),
            stream_config: shared.stream_config,
            headroom: shared.headroom.clone(),
            turn: AtomicUsize::new(0),
            unanswered: Unanswered::default(),
            kind,
            listeners: shared.listeners.clone(),
        });
        let opened = Opening::new(&consumer, &path.consumption, &socket, Instant::now())
            .run()
            .await;
        let opened = match opened {
            Ok(opened) => opened,
            Err(failure) => return (failure.as_str(), failure.message().to_owned()),
        };
        let mover = Mover::new(
            consumer.clone(),
            path.consumption.route,
            path.consumption.publisher,
            opened.association,
            opened.number,
            &opened.leg,
        );
        let driver = Driver::new(
            opened.stream,
            Near::Joined(socket),
            opened.leg,
            Further::Mover(Box::new(mover)),
            opened.guard,
            consumer.clock.clone(),
            consumer.metrics.clone(),
        )
        .with_taken(opened.taken)
        .on_connected(Box::new(move || {
            let _ = connected.send(());
        }));
        let outcome: Outcome = driver.run().await;
        outcome.failure()
    }
}

/// Two ends of a TCP connection on this host: unlike a socket pair's, an end can be reset.
async fn tcp_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let near = TcpStream::connect(listener.local_addr()?).await?;
    let ours = near.local_addr()?;
    loop {
        let (far, peer) = listener.accept().await?;
        if peer == ours {
            return Ok((near, far));
        }
    }
}

/// Bytes that are unlike any other check's.
fn pattern() -> Vec<u8> {
    let seed = rng::bytes::<32>();
    let mut state = u64::from_le_bytes(seed.first_chunk::<8>().copied().unwrap_or_default()) | 1;
    let mut bytes = Vec::with_capacity(BYTES);
    while bytes.len() < BYTES {
        // xorshift64 (Marsaglia, 2003): cheap, and never the same twice in a row.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

fn local(error: io::Error) -> Stopped {
    ("LOCAL", format!("on the consumer's host: {error}"))
}

fn silent(limit: Duration) -> Stopped {
    ("NO_ANSWER", format!("no answer within {} s", limit.as_secs()))
}

fn micros(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros())
        .unwrap_or(u32::MAX)
        .max(1)
}
