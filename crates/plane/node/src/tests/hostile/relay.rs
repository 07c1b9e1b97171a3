//! A relay that speaks hop as every other, with a certificate of the pool, and lies.

use super::ring::{Recording, Ring, incoming};
use super::tricks::{Drops, Tamper, Trick};
use crate::probe::is_probe;
use crate::tests::authority::Authority;
use crate::tests::pool::{ALPHA, BETA};
use bytes::Bytes;
use fairlead_hop::frame::{Answer, Frame, Incoming, LegKind, Open, Refusal};
use fairlead_hop::{RelayControl, RelayEvent};
use fairlead_host::member::{MemberFolder, MemberRole};
use fairlead_model::{
    AssociationId, Identity, LegEpoch, NodeId, ProcessBootId, RefusalCode, RelayId, RouteId, StreamNumber,
};
use fairlead_transport::{
    Carrier, Leg, LegCode, LegRecv, LegSend, Listener, ListenerConfig, MemberTls, ResetKey, TlsMaterial,
};
use fairlead_trust::NodeRelay;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Streams ahead of which it tells the publisher.
pub(super) const SQUATTED: u64 = 8;

pub(super) struct Hostile {
    pub(super) id: RelayId,
    address: SocketAddr,
    shared: Arc<Shared>,
    _tasks: JoinSet<()>,
    _dir: tempfile::TempDir,
}

struct Shared {
    id: RelayId,
    trick: watch::Sender<Trick>,
    ring: Arc<Ring>,
    opens: AtomicUsize,
    done: AtomicUsize,
    /// How many legs of new streams, and of resumed ones, it has refused.
    refused: [AtomicUsize; 2],
    /// Directions of legs whose end it keeps to itself at this moment.
    held_open: AtomicUsize,
    /// The stream whose leg it was asked for last.
    latest: AtomicU64,
    /// Legs at the publisher on which it says nothing.
    silent: Mutex<Vec<Leg>>,
}

impl Hostile {
    /// A relay that colludes with all others of its ring.
    pub(super) async fn start_in(authority: &Authority, number: u8, ring: Arc<Ring>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let id = RelayId::from_bytes([number; 16]);
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
            trick: watch::Sender::new(Trick::Honest),
            ring,
            opens: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            refused: Default::default(),
            held_open: AtomicUsize::new(0),
            latest: AtomicU64::new(0),
            silent: Mutex::default(),
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
            name: format!("hostile-{}", self.id.to_bytes()[0]).parse().unwrap(),
            address: self.address.into(),
            failure_domain: "elsewhere".parse().unwrap(),
        }
    }

    pub(super) fn plays(&self, trick: Trick) {
        self.shared.trick.send_replace(trick);
    }

    pub(super) fn ring(&self) -> &Arc<Ring> {
        &self.shared.ring
    }

    /// How many legs it was asked for, and how often it did what it does.
    pub(super) fn counts(&self) -> (usize, usize) {
        let count = |n: &AtomicUsize| n.load(Ordering::Relaxed);
        (count(&self.shared.opens), count(&self.shared.done))
    }

    /// How many legs of new streams, and of resumed ones, it has refused.
    pub(super) fn refused(&self) -> (usize, usize) {
        let [new, resumed] = &self.shared.refused;
        (new.load(Ordering::Relaxed), resumed.load(Ordering::Relaxed))
    }

    /// Directions of legs whose end it keeps to itself, until the other side has given up.
    pub(super) fn held_open(&self) -> usize {
        self.shared.held_open.load(Ordering::Relaxed)
    }

    /// The stream whose leg it was asked for last.
    pub(super) fn latest(&self) -> StreamNumber {
        StreamNumber(self.shared.latest.load(Ordering::Relaxed))
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
    shared.ring.joined(shared.id, node, carrier.clone());
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
    let of_stream = open.kind == LegKind::Stream && !is_probe(open.stream);
    if of_stream {
        shared.latest.store(open.stream.0, Ordering::Relaxed);
    }
    let first = of_stream && !open.resume;
    let trick = *shared.trick.borrow();
    match trick {
        Trick::Refuses(code) => shared.refuse(leg, &open, Refusal::from(code)).await,
        Trick::RefusesStreams(refusal) if of_stream => shared.refuse(leg, &open, refusal).await,
        Trick::WithholdsFirstLegs if open.kind == LegKind::Stream && !open.resume => {
            shared.withhold(consumer, &open, &mut leg.recv).await;
            answer(leg, Answer::Refused(Refusal::from(RefusalCode::Internal))).await;
        }
        Trick::AnswersForThePublisher if open.kind == LegKind::Stream => {
            shared.did();
            let _ = leg.send.write_frame(&Frame::Answer(Answer::Ok)).await;
            // A salt, and what looks like a record.
            let mut lie = vec![7; 16];
            lie.extend_from_slice(&[23, 3, 3, 0, 40]);
            lie.extend_from_slice(&[9; 40]);
            let _ = leg.send.write_all(&lie).await;
            hear(leg.recv, None).await;
        }
        Trick::KeepsFirstLegs if first => {
            shared.did();
            let recording = Recording::new(shared.id, consumer, &open);
            shared.ring.keep(recording.clone());
            let _ = leg.send.write_frame(&Frame::Answer(Answer::Ok)).await;
            hear(leg.recv, Some(&recording)).await;
        }
        Trick::DeniesAssociations if open.kind == LegKind::Stream => {
            let denial = Refusal::from(RefusalCode::UnknownAssociation);
            shared.refuse(leg, &open, denial).await;
        }
        Trick::DeniesAssociations => {
            shared.did();
            hear(leg.recv, None).await;
        }
        Trick::CutsLegs => leg.abort(LegCode::from(RefusalCode::Internal)),
        Trick::SwallowsOpens if first => shared.swallow(leg).await,
        Trick::SwallowsLegs => shared.swallow(leg).await,
        Trick::HoldsOpens if first => {
            shared.did();
            // An error is the end of the relay.
            let mut tricks = shared.trick.subscribe();
            let _ = tricks.wait_for(|trick| *trick != Trick::HoldsOpens).await;
            forward(shared, consumer, open, leg, Trick::Honest).await;
        }
        Trick::Honest
        | Trick::SwallowsOpens
        | Trick::HoldsOpens
        | Trick::StallsAnswers
        | Trick::Tampers(_)
        | Trick::Stalls
        | Trick::AnswersForThePublisher
        | Trick::Invents
        | Trick::Replays
        | Trick::MisnamesStreams
        | Trick::MisstatesResumes
        | Trick::WithholdsFirstLegs
        | Trick::MisdirectsHandshakes
        | Trick::StallsFirstLegs
        | Trick::KeepsFirstLegs
        | Trick::StallsStream(_)
        | Trick::KeepsLegsOpen
        | Trick::RefusesStreams(_)
        | Trick::ReplaysFriends
        | Trick::SwapsLegs
        | Trick::TeesLegs
        | Trick::SquatsNames
        | Trick::SquatsEpochs
        | Trick::Drips
        | Trick::TradesRecords => forward(shared, consumer, open, leg, trick).await,
    }
}

/// Answers and closes the leg in order.
async fn answer(mut leg: Leg, answer: Answer) {
    if leg.send.write_frame(&Frame::Answer(answer)).await.is_ok() {
        leg.send.finish();
        let _ = leg.send.drained().await;
    }
}

/// Takes what is said and carries nothing.
async fn hear(mut recv: LegRecv, recording: Option<&Recording>) {
    let mut chunks = [const { Bytes::new() }; 16];
    while let Ok(Some(n)) = recv.read_chunks(&mut chunks).await {
        for chunk in chunks.iter().take(n) {
            if let Some(recording) = recording {
                recording.hear(chunk);
            }
        }
    }
}

async fn forward(shared: Arc<Shared>, consumer: NodeId, open: Open, mut leg: Leg, trick: Trick) {
    let mut claims = incoming(&open, consumer);
    let (mut to, mut through) = (BETA, shared.id);
    let stream = open.kind == LegKind::Stream;
    match trick {
        Trick::MisdirectsHandshakes if !stream => {
            shared.did();
            to = ALPHA;
        }
        Trick::MisnamesStreams if stream => {
            shared.did();
            claims.stream = StreamNumber(open.stream.0 + 1);
        }
        Trick::MisstatesResumes if stream => {
            shared.did();
            claims.resume = !open.resume;
        }
        Trick::SwapsLegs if stream => {
            shared.did();
            through = shared.ring.friend(shared.id, BETA).unwrap();
        }
        Trick::Invents => shared.invent(claims).await,
        Trick::SquatsNames if stream && !is_probe(open.stream) => shared.squat_names(claims).await,
        Trick::Replays => shared.replay(|relay| relay == shared.id).await,
        Trick::ReplaysFriends => shared.replay(|relay| relay != shared.id).await,
        _ => {}
    }
    let tees = if trick == Trick::TeesLegs && stream {
        shared.tees(claims).await
    } else {
        Vec::new()
    };
    let Some(mut far) = shared.ring.leg_to(through, to, claims).await else {
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
    if trick == Trick::StallsFirstLegs && stream && !is_probe(open.stream) && !open.resume {
        shared.did();
        tokio::join!(hear(leg.recv, None), hear(far.recv, None));
        return;
    }
    if trick == Trick::StallsAnswers && stream && !is_probe(open.stream) && !open.resume {
        shared.did();
        let Leg { send, recv } = leg;
        tokio::join!(
            pipe(&shared, recv, far.send, None, None, Vec::new()),
            hear(far.recv, None)
        );
        drop(send);
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
    let number = stream.then_some(open.stream);
    let recording = Recording::new(shared.id, consumer, &open);
    if stream {
        shared.ring.record(recording.clone());
    }
    tokio::join!(
        pipe(&shared, near_recv, far_send, number, Some(&recording), tees),
        pipe(&shared, far_recv, near_send, number, None, Vec::new()),
    );
}

/// Carries one direction, by the trick of the moment. `number`: of the stream, where the bytes are
/// sealed.
async fn pipe(
    shared: &Shared,
    mut from: LegRecv,
    mut to: LegSend,
    number: Option<StreamNumber>,
    recording: Option<&Recording>,
    mut tees: Vec<Leg>,
) {
    let mut tamper = Tamper::default();
    let mut tricks = shared.trick.subscribe();
    let mut switched = shared.trick.subscribe();
    let mut squats = false;
    let sealed = number.is_some();
    let mut drops = Drops::new();
    loop {
        let mut chunks = [const { Bytes::new() }; 16];
        let read = tokio::select! {
            read = from.read_chunks(&mut chunks) => read,
            byte = drops.next(), if sealed && recording.is_none() && *shared.trick.borrow() == Trick::Drips => {
                shared.did();
                if to.write_all(&[byte]).await.is_err() {
                    from.stop(LegCode::CANCELLED);
                    return;
                }
                continue;
            }
            () = changed(&mut switched) => continue,
            () = cut(&mut tricks), if sealed => {
                shared.did();
                from.stop(LegCode::CANCELLED);
                return to.reset(LegCode::CANCELLED);
            }
        };
        let n = match read {
            Ok(Some(n)) => n,
            Ok(None) if sealed && *shared.trick.borrow() == Trick::KeepsLegsOpen => {
                shared.did();
                shared.held_open.fetch_add(1, Ordering::Relaxed);
                let _ = to.drained().await;
                shared.held_open.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            Ok(None) => {
                to.finish();
                let _ = to.drained().await;
                return;
            }
            Err(_) => return to.reset(LegCode::CANCELLED),
        };
        for chunk in chunks.into_iter().take(n) {
            if let Some(recording) = recording {
                recording.hear(&chunk);
            }
            for tee in &mut tees {
                let _ = tee.send.write_all(&chunk).await;
            }
            let trick = *shared.trick.borrow();
            let stalls = sealed
                && (matches!(trick, Trick::Stalls | Trick::SquatsEpochs)
                    || (trick == Trick::Drips && recording.is_none())
                    || number.map(Trick::StallsStream) == Some(trick));
            if trick == Trick::SquatsEpochs
                && !std::mem::replace(&mut squats, true)
                && let Some(recording) = recording.filter(|_| sealed)
            {
                shared.squat_epoch(recording).await;
            }
            let out = match trick {
                _ if stalls => Vec::new(),
                Trick::Tampers(how) if sealed => tamper.apply(how, chunk),
                Trick::TradesRecords if sealed && tamper.trades() => {
                    let (chunk, traded) = shared.ring.trade(shared.id, chunk);
                    shared.did_if(traded);
                    vec![chunk]
                }
                _ => vec![chunk],
            };
            shared.did_if(stalls || tamper.take_done());
            for piece in out {
                if to.write_all(&piece).await.is_err() {
                    from.stop(LegCode::CANCELLED);
                    return;
                }
            }
        }
    }
}

/// Waits for another trick.
async fn changed(tricks: &mut watch::Receiver<Trick>) {
    if tricks.changed().await.is_err() {
        // The end of the relay.
        std::future::pending::<()>().await;
    }
}

/// Waits until legs are to end.
async fn cut(tricks: &mut watch::Receiver<Trick>) {
    // An error is the end of the relay.
    let _ = tricks.wait_for(|trick| *trick == Trick::CutsLegs).await;
}

impl Shared {
    fn did(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    fn did_if(&self, something: bool) {
        self.done.fetch_add(usize::from(something), Ordering::Relaxed);
    }

    /// Keeps a leg until the other side has given it up.
    async fn swallow(&self, leg: Leg) {
        self.did();
        self.held_open.fetch_add(1, Ordering::Relaxed);
        let Leg { send, recv } = leg;
        hear(recv, None).await;
        drop(send);
        self.held_open.fetch_sub(1, Ordering::Relaxed);
    }

    async fn refuse(&self, leg: Leg, open: &Open, refusal: Refusal) {
        self.did();
        self.refused[usize::from(open.resume)].fetch_add(1, Ordering::Relaxed);
        answer(leg, Answer::Refused(refusal)).await;
    }

    /// Tells the publisher of a leg that nobody opened, and keeps it.
    async fn squat(&self, claims: Incoming) {
        self.did();
        let mut leg = self.leg_to(BETA, claims).await.unwrap();
        // It is there before what comes next.
        let answer = leg.recv.read_frame().await;
        assert!(
            matches!(answer, Ok(Some(Frame::Answer(Answer::Ok)))),
            "{answer:?}"
        );
        self.silent.lock().unwrap().push(leg);
    }

    /// The streams that follow: odd ones under another route, even ones under their own.
    async fn squat_names(&self, claims: Incoming) {
        for ahead in 1..=SQUATTED {
            let route = match ahead % 2 {
                0 => claims.route,
                _ => RouteId::from_bytes([0xee; 16]),
            };
            let stream = StreamNumber(claims.stream.0 + ahead);
            self.squat(Incoming {
                stream,
                route,
                ..claims
            })
            .await;
        }
    }

    /// The leg that follows.
    async fn squat_epoch(&self, recording: &Recording) {
        let claims = incoming(&recording.open, recording.consumer);
        let epoch = LegEpoch(claims.epoch.0 + 1);
        let resume = true;
        self.squat(Incoming {
            epoch,
            resume,
            ..claims
        })
        .await;
    }

    async fn leg_to(&self, node: NodeId, claims: Incoming) -> Option<Leg> {
        self.ring.leg_to(self.id, node, claims).await
    }

    /// Another relay's legs for the same stream: as this one's, and as its next.
    async fn tees(&self, claims: Incoming) -> Vec<Leg> {
        let friend = self.ring.friend(self.id, BETA).unwrap();
        let next = Incoming {
            epoch: LegEpoch(claims.epoch.0 + 1),
            ..claims
        };
        let mut tees = Vec::new();
        for claims in [claims, next] {
            self.did();
            tees.extend(self.ring.leg_to(friend, BETA, claims).await);
        }
        tees
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

    /// What consumers said on legs of `wanted` relays, again: as it was, as another epoch, and as if it
    /// were new.
    async fn replay(&self, wanted: impl Fn(RelayId) -> bool) {
        for recording in self.ring.recorded(wanted) {
            self.did();
            let as_it_was = incoming(&recording.open, recording.consumer);
            let later = Incoming {
                epoch: LegEpoch(as_it_was.epoch.0 + 1),
                ..as_it_was
            };
            let new = Incoming {
                resume: false,
                ..as_it_was
            };
            for claims in [as_it_was, later, new] {
                if let Some(mut leg) = self.leg_to(BETA, claims).await {
                    let _ = leg.send.write_all(&recording.said()).await;
                    leg.send.finish();
                }
            }
        }
    }
}
