//! A relay that speaks hop as every other, with a certificate of the installation, and lies.

use super::tricks::{Tamper, Trick};
use crate::tests::authority::Authority;
use crate::tests::pool::{ALPHA, BETA};
use bytes::Bytes;
use fairlead_hop::frame::{Answer, Frame, Incoming, LegKind, Open, Refusal};
use fairlead_hop::{RelayControl, RelayEvent};
use fairlead_host::member::{MemberFolder, MemberRole};
use fairlead_model::{
    AssociationId, EndpointId, Identity, LegEpoch, NodeId, PolicyEpoch, ProcessBootId, RefusalCode, RelayId,
    Revision, StreamNumber,
};
use fairlead_transport::{
    Carrier, Leg, LegCode, LegRecv, LegSend, Listener, ListenerConfig, MemberTls, ResetKey, TlsMaterial,
};
use fairlead_trust::NodeRelay;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;

/// Bytes of each leg that are remembered to be played again.
const RECORD_BYTES_MAX: usize = 64 * 1024;

pub(super) struct Hostile {
    pub(super) id: RelayId,
    address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
    _dir: tempfile::TempDir,
}

struct Shared {
    id: RelayId,
    trick: Mutex<Trick>,
    carriers: Mutex<BTreeMap<NodeId, Carrier>>,
    opens: AtomicUsize,
    done: AtomicUsize,
    recorded: Mutex<Vec<(Open, Vec<u8>)>>,
}

impl Hostile {
    pub(super) async fn start(authority: &Authority) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let id = RelayId::from_bytes([0x66; 16]);
        let path = dir.path().join("hostile");
        authority.enrol(&path, MemberRole::Relay(id), None);
        let folder = MemberFolder::new(path);
        let material = TlsMaterial {
            chain_pem: &folder.cert_chain_pem().unwrap(),
            key_pem: &folder.key().unwrap(),
            roots_pem: &folder.ca_pem().unwrap(),
            domain: "pool.test".parse().unwrap(),
        };
        let tls = Arc::new(MemberTls::new(&material, Identity::Relay(id)).unwrap());
        let config = ListenerConfig::new("127.0.0.1:0".parse().unwrap(), ResetKey::from_bytes([6; 32]));
        let listener = Listener::bind(config, tls).unwrap();
        let address = listener.local_address().unwrap();
        let shared = Arc::new(Shared {
            id,
            trick: Mutex::new(Trick::Honest),
            carriers: Mutex::default(),
            opens: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            recorded: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(listener, shared.clone()));
        Self {
            id,
            address,
            shared,
            _tasks: tasks,
            _dir: dir,
        }
    }

    /// As policies name it.
    pub(super) fn listed(&self) -> NodeRelay {
        NodeRelay {
            relay: self.id,
            name: "hostile".parse().unwrap(),
            address: self.address.into(),
            failure_domain: "elsewhere".parse().unwrap(),
        }
    }

    pub(super) fn plays(&self, trick: Trick) {
        *self.shared.trick.lock().unwrap() = trick;
    }

    /// How many legs it was asked for, and how often it did what it does.
    pub(super) fn counts(&self) -> (usize, usize) {
        let count = |n: &AtomicUsize| n.load(Ordering::Relaxed);
        (count(&self.shared.opens), count(&self.shared.done))
    }
}

async fn listen(listener: Listener, shared: Arc<Shared>) {
    let mut sessions = JoinSet::new();
    while let Some(arriving) = listener.accept().await {
        let shared = shared.clone();
        sessions.spawn(async move {
            if let Ok(carrier) = arriving.finish().await {
                session(shared, carrier).await;
            }
        });
    }
}

async fn session(shared: Arc<Shared>, carrier: Carrier) {
    let Identity::Node(node) = carrier.peer() else {
        return;
    };
    let Ok(mut control) = carrier.accept_leg().await else {
        return;
    };
    shared.carriers.lock().unwrap().insert(node, carrier.clone());
    let mut machine = RelayControl::new(shared.id, ProcessBootId::from_bytes([6; 16]), 4_096);
    let mut legs = JoinSet::new();
    loop {
        tokio::select! {
            frame = control.recv.read_frame() => {
                let Ok(Some(frame)) = frame else { return };
                if let Some(RelayEvent::Register(register)) = machine.handle_frame(frame).unwrap() {
                    machine.registered(register).unwrap();
                }
                while let Some(frame) = machine.poll_transmit() {
                    if control.send.write_frame(&frame).await.is_err() {
                        return;
                    }
                }
            }
            leg = carrier.accept_leg() => {
                let Ok(leg) = leg else { return };
                legs.spawn(serve(shared.clone(), node, leg));
            }
        }
    }
}

async fn serve(shared: Arc<Shared>, consumer: NodeId, mut leg: Leg) {
    let Ok(Some(Frame::Open(open))) = leg.recv.read_frame().await else {
        return;
    };
    shared.opens.fetch_add(1, Ordering::Relaxed);
    let trick = *shared.trick.lock().unwrap();
    match trick {
        Trick::Refuses(code) => {
            shared.did();
            let refused = Frame::Answer(Answer::Refused(Refusal::from(code)));
            if leg.send.write_frame(&refused).await.is_ok() {
                leg.send.finish();
                let _ = leg.send.drained().await;
            }
        }
        Trick::WithholdsFirstLegs if open.kind == LegKind::Stream && !open.resume => {
            shared.withhold(consumer, &open, &mut leg.recv).await;
            let refused = Frame::Answer(Answer::Refused(Refusal::from(RefusalCode::Internal)));
            if leg.send.write_frame(&refused).await.is_ok() {
                leg.send.finish();
                let _ = leg.send.drained().await;
            }
        }
        Trick::AnswersForThePublisher if open.kind == LegKind::Stream => {
            shared.did();
            let _ = leg.send.write_frame(&Frame::Answer(Answer::Ok)).await;
            // A salt, and what looks like a record.
            let mut lie = vec![7; 16];
            lie.extend_from_slice(&[23, 3, 3, 0, 40]);
            lie.extend_from_slice(&[9; 40]);
            let _ = leg.send.write_all(&lie).await;
            swallow(leg.recv).await;
        }
        Trick::Honest
        | Trick::Tampers(_)
        | Trick::Stalls
        | Trick::AnswersForThePublisher
        | Trick::Invents
        | Trick::Replays
        | Trick::MisnamesStreams
        | Trick::MisstatesResumes
        | Trick::WithholdsFirstLegs
        | Trick::MisdirectsHandshakes => forward(shared, consumer, open, leg, trick).await,
    }
}

async fn swallow(mut recv: LegRecv) {
    let mut chunks = [const { Bytes::new() }; 16];
    while let Ok(Some(_)) = recv.read_chunks(&mut chunks).await {}
}

fn incoming(open: &Open, consumer: NodeId) -> Incoming {
    Incoming {
        kind: open.kind,
        association: open.association,
        route: open.route,
        stream: open.stream,
        epoch: open.epoch,
        resume: open.resume,
        endpoint: EndpointId::from_bytes(open.route.to_bytes()),
        consumer,
        policy: (PolicyEpoch(1), Revision(1_000)),
    }
}

async fn forward(shared: Arc<Shared>, consumer: NodeId, open: Open, mut leg: Leg, trick: Trick) {
    let mut claims = incoming(&open, consumer);
    let mut to = BETA;
    match trick {
        Trick::MisdirectsHandshakes if open.kind == LegKind::Pair => {
            shared.did();
            to = ALPHA;
        }
        Trick::MisnamesStreams if open.kind == LegKind::Stream => {
            shared.did();
            claims.stream = StreamNumber(open.stream.0 + 1);
        }
        Trick::MisstatesResumes if open.kind == LegKind::Stream => {
            shared.did();
            claims.resume = !open.resume;
        }
        Trick::Invents => shared.invent(claims).await,
        Trick::Replays => shared.replay(consumer).await,
        _ => {}
    }
    let Some(mut far) = shared.leg_to(to, claims).await else {
        leg.abort(LegCode::from(RefusalCode::NotRegistered));
        return;
    };
    let Ok(Some(answer)) = far.recv.read_frame().await else {
        return;
    };
    let refused = matches!(answer, Frame::Answer(Answer::Refused(_)));
    if leg.send.write_frame(&answer).await.is_err() || refused {
        leg.send.finish();
        return;
    }
    let Leg {
        send: near_send,
        recv: near_recv,
    } = leg;
    let Leg {
        send: far_send,
        recv: far_recv,
    } = far;
    let stream = open.kind == LegKind::Stream;
    let record = stream.then_some(&open);
    tokio::join!(
        pipe(&shared, near_recv, far_send, stream, record),
        pipe(&shared, far_recv, near_send, stream, None),
    );
}

/// Carries one direction, by the trick of the moment.
async fn pipe(shared: &Shared, mut from: LegRecv, mut to: LegSend, sealed: bool, record: Option<&Open>) {
    let mut tamper = Tamper::default();
    let mut seen = Vec::new();
    loop {
        let mut chunks = [const { Bytes::new() }; 16];
        let n = match from.read_chunks(&mut chunks).await {
            Ok(Some(n)) => n,
            Ok(None) => {
                to.finish();
                let _ = to.drained().await;
                break;
            }
            Err(_) => {
                to.reset(LegCode::CANCELLED);
                break;
            }
        };
        for chunk in chunks.into_iter().take(n) {
            if seen.len() < RECORD_BYTES_MAX {
                seen.extend_from_slice(&chunk);
            }
            let trick = *shared.trick.lock().unwrap();
            let out = match trick {
                Trick::Stalls if sealed => Vec::new(),
                Trick::Tampers(how) if sealed => tamper.apply(how, chunk),
                _ => vec![chunk],
            };
            if trick == Trick::Stalls || tamper.take_done() {
                shared.did();
            }
            for piece in out {
                if to.write_all(&piece).await.is_err() {
                    from.stop(LegCode::CANCELLED);
                    return;
                }
            }
        }
    }
    if let Some(open) = record {
        shared.recorded.lock().unwrap().push((open.clone(), seen));
    }
}

impl Shared {
    fn did(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    async fn leg_to(&self, node: NodeId, claims: Incoming) -> Option<Leg> {
        let carrier = self.carriers.lock().unwrap().get(&node).cloned()?;
        let mut leg = carrier.open_leg().await.ok()?;
        leg.send.write_frame(&Frame::Incoming(claims)).await.ok()?;
        Some(leg)
    }

    /// Legs that nobody opened: with made-up claims, and with those of a live stream.
    async fn invent(&self, stolen: Incoming) {
        self.did();
        let made_up = Incoming {
            association: AssociationId::from_bytes([1; 16]),
            consumer: NodeId::from_bytes([2; 16]),
            ..stolen
        };
        let next = Incoming {
            epoch: LegEpoch(stolen.epoch.0 + 1),
            ..stolen
        };
        let other = Incoming {
            stream: StreamNumber(stolen.stream.0 + 500),
            resume: false,
            ..stolen
        };
        for claims in [made_up, stolen, next, other] {
            if let Some(mut leg) = self.leg_to(BETA, claims).await {
                let _ = leg.send.write_all(&[0x17; 3_000]).await;
                leg.send.finish();
            }
        }
    }

    /// Plays what a consumer sends first as if its stream had been attached before, until the
    /// publisher has answered under seal.
    async fn withhold(&self, consumer: NodeId, open: &Open, from: &mut LegRecv) {
        let claims = Incoming {
            resume: true,
            ..incoming(open, consumer)
        };
        let Some(mut leg) = self.leg_to(BETA, claims).await else {
            return;
        };
        let answer = async {
            let ok = leg.recv.read_frame().await;
            assert!(matches!(ok, Ok(Some(Frame::Answer(Answer::Ok)))), "{ok:?}");
            let mut chunks = [const { Bytes::new() }; 16];
            leg.recv.read_chunks(&mut chunks).await
        };
        let carry = async {
            loop {
                let mut chunks = [const { Bytes::new() }; 16];
                let Ok(Some(n)) = from.read_chunks(&mut chunks).await else {
                    return std::future::pending::<()>().await;
                };
                for chunk in chunks.into_iter().take(n) {
                    let _ = leg.send.write_all(&chunk).await;
                }
            }
        };
        tokio::select! {
            answered = answer => {
                if matches!(answered, Ok(Some(_))) {
                    self.did();
                }
            }
            () = carry => {}
        }
    }

    /// What consumers once sent, again: as it was, as another epoch, and as if it were new.
    async fn replay(&self, consumer: NodeId) {
        let recorded = self.recorded.lock().unwrap().clone();
        for (open, bytes) in recorded.iter().rev().take(3) {
            self.did();
            let as_it_was = incoming(open, consumer);
            let later = Incoming {
                epoch: LegEpoch(open.epoch.0 + 1),
                ..as_it_was
            };
            let new = Incoming {
                resume: false,
                ..as_it_was
            };
            for claims in [as_it_was, later, new] {
                if let Some(mut leg) = self.leg_to(BETA, claims).await {
                    let _ = leg.send.write_all(bytes).await;
                    leg.send.finish();
                }
            }
        }
    }
}
