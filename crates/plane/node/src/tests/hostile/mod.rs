//! A relay of the pool that lies, beside an honest one (R-STR-05, R-STR-06): nothing is accepted that
//! an honest pair did not send, no target is dialled without a grant, and applications notice nothing
//! but a delay.

mod collusion;
mod copies;
mod opens;
mod refusals;
mod relay;
mod ring;
mod squats;
mod stalls;
mod tricks;

use super::pool::{PATIENCE, Pool};
use super::traffic::{exchange, pattern};
use crate::config::StreamHold;
use fairlead_model::{RefusalCode, RelayId};
use relay::Hostile;
use ring::Ring;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tricks::{How, Trick};

/// Longest delay that a lying relay may cause to one exchange, on a busy machine.
const DELAY_MAX: Duration = Duration::from_secs(12);

/// An echo that counts its connections: each is one that a consumer's application made.
async fn counting_echo() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let count = Arc::new(AtomicUsize::new(0));
    let accepted = count.clone();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            accepted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let (mut read, mut write) = socket.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    (address, count)
}

struct Scene {
    pool: Pool,
    /// They collude, if there are several.
    hostiles: Vec<Hostile>,
    accepted: Arc<AtomicUsize>,
    connected: usize,
}

impl Scene {
    async fn start() -> Self {
        Self::start_with(1, &[]).await
    }

    /// An honest relay and `hostiles` others. The first link leads to the counting echo, further ones to
    /// `targets`.
    async fn start_with(hostiles: u8, targets: &[String]) -> Self {
        Self::start_with_hold(hostiles, targets, StreamHold::DEFAULT).await
    }

    /// The same, with streams held for `hold`.
    async fn start_with_hold(hostiles: u8, targets: &[String], hold: StreamHold) -> Self {
        let (target, accepted) = counting_echo().await;
        let mut pool = Pool::start_with_hold(1, &[&[target], targets].concat(), hold).await;
        let ring = Arc::<Ring>::default();
        let mut started = Vec::new();
        for n in 0..hostiles {
            let hostile = Hostile::start_in(&pool.authority, 0x66 + n, ring.clone()).await;
            pool.strangers.push(hostile.listed());
            started.push(hostile);
        }
        pool.publish().await;
        pool.ready().await;
        Self {
            pool,
            hostiles: started,
            accepted,
            connected: 0,
        }
    }

    fn plays_all(&self, trick: Trick) {
        for hostile in &self.hostiles {
            hostile.plays(trick);
        }
    }

    /// How many legs the liars were asked for, and how often they did what they do.
    fn counts(&self) -> (usize, usize) {
        let counts = self.hostiles.iter().map(Hostile::counts);
        counts.fold((0, 0), |sum, n| (sum.0 + n.0, sum.1 + n.1))
    }

    /// Streams go through these relays only; through all, if `None`.
    async fn through(&mut self, relays: Option<&[RelayId]>) {
        self.pool.consumed_through = relays.map(<[_]>::to_vec);
        self.pool.publish().await;
    }

    /// A stream through `relays` that has carried bytes.
    async fn stream_through(&mut self, relays: &[RelayId]) -> TcpStream {
        self.through(Some(relays)).await;
        let mut live = self.connect().await;
        round(&mut live, 0, 1_000).await;
        live
    }

    async fn connect(&mut self) -> TcpStream {
        self.connected += 1;
        self.pool.connect(0).await
    }

    /// A new stream from its first byte to its end; `what` names it where it fails. How long it took.
    async fn new_stream(&mut self, what: &str, seed: u64) -> Duration {
        let started = Instant::now();
        let bytes = pattern(seed, 200_000);
        let socket = self.connect().await;
        let answer = tokio::time::timeout(PATIENCE, exchange(socket, &bytes))
            .await
            .unwrap_or_else(|_| panic!("{what}: an exchange that takes for ever"))
            .unwrap_or_else(|e| panic!("{what}: an application noticed: {e}"));
        assert!(sha256(&answer) == sha256(&bytes), "{what}: other bytes");
        started.elapsed()
    }

    /// Each connection of an application had one target, and nobody else had any.
    fn all_dialled_once(&self, what: &str) {
        let accepted = self.accepted.load(Ordering::Relaxed);
        assert_eq!(accepted, self.connected, "{what}: targets dialled for nobody");
    }

    /// New streams while the relay plays a trick, and one that was carried by it before.
    async fn plays(&mut self, trick: Trick) {
        self.plays_to(trick, 3).await;
    }

    /// The same with `fresh` new streams.
    async fn plays_to(&mut self, trick: Trick, fresh: u64) {
        self.plays_all(Trick::Honest);
        let liars: Vec<RelayId> = self.hostiles.iter().map(|h| h.id).collect();
        let mut live = self.stream_through(&liars).await;
        self.through(None).await;
        self.plays_all(trick);
        let what = format!("{trick:?}");
        let before = self.counts();
        let mut longest = Duration::ZERO;
        for n in 1..4 {
            let started = Instant::now();
            round(&mut live, n, 150_000).await;
            longest = longest.max(started.elapsed());
        }
        for n in 0..fresh {
            longest = longest.max(self.new_stream(&what, n).await);
        }
        let rest = tokio::time::timeout(PATIENCE, finish(live)).await.unwrap();
        assert_eq!(rest.unwrap(), 0, "{what}: more than was sent");
        self.all_dialled_once(&what);
        assert!(longest < DELAY_MAX, "{what}: {longest:?}");
        let after = self.counts();
        assert!(after.1 > before.1, "{what}: it did nothing");
        println!(
            "{what}: longest {longest:?}, legs {}, deeds {}",
            after.0 - before.0,
            after.1 - before.1
        );
    }
}

fn sha256(bytes: &[u8]) -> fairlead_trust::PolicyRoot {
    fairlead_trust::PolicyRoot::of(bytes)
}

/// Says something and hears it back.
async fn round(socket: &mut TcpStream, seed: u64, length: usize) {
    let bytes = pattern(seed + 50, length);
    let (mut read, mut write) = socket.split();
    let mut answer = vec![0; length];
    let (sent, heard) = tokio::time::timeout(PATIENCE, async {
        tokio::join!(write.write_all(&bytes), read.read_exact(&mut answer))
    })
    .await
    .expect("a live stream goes on");
    sent.unwrap();
    heard.unwrap();
    assert!(sha256(&answer) == sha256(&bytes), "a live stream's bytes");
}

async fn finish(mut socket: TcpStream) -> std::io::Result<usize> {
    socket.shutdown().await?;
    socket.read_to_end(&mut Vec::new()).await
}

/// R-STR-05, R-STR-06: bytes that are flipped, dropped, doubled, swapped, injected or cut end the leg and
/// not the stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_tampered_with_is_not_accepted() {
    let mut scene = Scene::start().await;
    for how in [
        How::Flips,
        How::Drops,
        How::Doubles,
        How::Swaps,
        How::Injects,
        How::Cuts,
    ] {
        scene.plays(Trick::Tampers(how)).await;
    }
}

/// R-STR-05: legs that nobody opened, legs played again and legs under another name reach no target.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_nobody_opened_reaches_no_target() {
    let mut scene = Scene::start().await;
    for trick in [Trick::Invents, Trick::Replays, Trick::MisnamesStreams] {
        scene.plays(trick).await;
    }
    assert!(scene.counts().1 > 0, "it did nothing");
}

/// R-STR-05: whether a stream is resumed is the consumer's sealed word. A relay that says otherwise, or
/// plays a first leg that it withheld as a resume, ends no stream and has no target dialled twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_relays_word_on_resumption_ends_no_stream() {
    let mut scene = Scene::start().await;
    for trick in [Trick::MisstatesResumes, Trick::WithholdsFirstLegs] {
        scene.plays(trick).await;
    }
}

/// R-STR-05, R-STR-06: a handshake that is brought to another node makes no association with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_misdirected_handshake_makes_no_association() {
    let mut scene = Scene::start().await;
    let honest = scene.pool.workers[0].id;
    scene.pool.consumed_through = Some(vec![scene.hostiles[0].id, honest]);
    scene.plays_all(Trick::MisdirectsHandshakes);
    scene.pool.beta.kill_and_restart().await;
    scene.pool.publish().await;
    scene.pool.ready().await;
    for n in 0..3 {
        let bytes = pattern(n, 10_000);
        let socket = scene.pool.connect(0).await;
        let answer = tokio::time::timeout(PATIENCE, exchange(socket, &bytes))
            .await
            .unwrap();
        assert!(sha256(&answer.unwrap()) == sha256(&bytes));
    }
    assert_eq!(scene.accepted.load(Ordering::Relaxed), 3);
    assert!(scene.counts().1 > 0, "it did nothing");
}

/// R-STR-05: who answers in the publisher's name, or carries nothing, is left for the honest
/// relay.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_does_not_carry_is_left() {
    let mut scene = Scene::start().await;
    scene.plays(Trick::AnswersForThePublisher).await;
    scene.plays(Trick::Stalls).await;
}

/// R-STR-05: a relay that refuses everything, associations and probes included, ends no stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_relays_word_ends_no_stream() {
    let mut scene = Scene::start().await;
    let codes = [
        RefusalCode::UnknownStream,
        RefusalCode::UnknownAssociation,
        RefusalCode::Revoked,
        RefusalCode::BadGrant,
        RefusalCode::NotRegistered,
        RefusalCode::PublisherOverloaded,
        RefusalCode::LeaseEnded,
        RefusalCode::Internal,
    ];
    for code in codes {
        scene.plays(Trick::Refuses(code)).await;
    }
    assert!(scene.counts().1 > 0, "it did nothing");
}
