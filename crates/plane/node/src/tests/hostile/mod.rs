//! A relay of the pool that lies, beside an honest one (R-STR-05, R-STR-06): nothing is accepted that
//! an honest pair did not send, no target is dialled without a grant, and applications notice nothing
//! but a delay.

mod relay;
mod tricks;

use super::pool::{PATIENCE, Pool};
use super::traffic::{exchange, pattern};
use fairlead_model::RefusalCode;
use relay::Hostile;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
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
    hostile: Hostile,
    accepted: Arc<AtomicUsize>,
    connected: usize,
}

impl Scene {
    async fn start() -> Self {
        let (target, accepted) = counting_echo().await;
        let mut pool = Pool::start(1, &[target]).await;
        let hostile = Hostile::start(&pool.authority).await;
        pool.strangers.push(hostile.listed());
        pool.publish().await;
        pool.ready().await;
        Self {
            pool,
            hostile,
            accepted,
            connected: 0,
        }
    }

    /// New streams while the relay plays a trick, and one that was carried by it before.
    async fn plays(&mut self, trick: Trick) {
        self.plays_to(trick, 3).await;
    }

    /// The same with `fresh` new streams.
    async fn plays_to(&mut self, trick: Trick, fresh: u64) {
        self.hostile.plays(Trick::Honest);
        self.pool.consumed_through = Some(vec![self.hostile.id]);
        self.pool.publish().await;
        let mut live = self.pool.connect(0).await;
        self.connected += 1;
        round(&mut live, 0, 1_000).await;
        self.pool.consumed_through = None;
        self.pool.publish().await;
        self.hostile.plays(trick);
        let before = self.hostile.counts();
        let mut longest = Duration::ZERO;
        for n in 1..4 {
            let started = Instant::now();
            round(&mut live, n, 150_000).await;
            longest = longest.max(started.elapsed());
        }
        for n in 0..fresh {
            let started = Instant::now();
            let bytes = pattern(n, 200_000);
            let socket = self.pool.connect(0).await;
            self.connected += 1;
            let answer = tokio::time::timeout(PATIENCE, exchange(socket, &bytes))
                .await
                .unwrap_or_else(|_| panic!("{trick:?}: an exchange that takes for ever"))
                .unwrap_or_else(|e| panic!("{trick:?}: an application noticed: {e}"));
            assert!(sha256(&answer) == sha256(&bytes), "{trick:?}: other bytes");
            longest = longest.max(started.elapsed());
        }
        let rest = tokio::time::timeout(PATIENCE, finish(live)).await.unwrap();
        assert_eq!(rest.unwrap(), 0, "{trick:?}: more than was sent");
        let accepted = self.accepted.load(Ordering::Relaxed);
        assert_eq!(accepted, self.connected, "{trick:?}: targets dialled for nobody");
        assert!(longest < DELAY_MAX, "{trick:?}: {longest:?}");
        let after = self.hostile.counts();
        assert!(after.1 > before.1, "{trick:?}: it did nothing");
        println!(
            "{trick:?}: longest {longest:?}, legs {}, deeds {}",
            after.0 - before.0,
            after.1 - before.1
        );
    }
}

fn sha256(bytes: &[u8]) -> fairlead_trust::PolicyRoot {
    fairlead_trust::PolicyRoot::of(bytes)
}

/// Says something and hears it back.
async fn round(socket: &mut tokio::net::TcpStream, seed: u64, length: usize) {
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

async fn finish(mut socket: tokio::net::TcpStream) -> std::io::Result<usize> {
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
    assert!(scene.hostile.counts().1 > 0, "it did nothing");
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
    scene.pool.consumed_through = Some(vec![scene.hostile.id, honest]);
    scene.hostile.plays(Trick::MisdirectsHandshakes);
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
    assert!(scene.hostile.counts().1 > 0, "it did nothing");
}

/// R-STR-05: who answers in the publisher's name, or carries nothing, is left for the honest
/// relay.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn who_does_not_carry_is_left() {
    let mut scene = Scene::start().await;
    scene.plays(Trick::AnswersForThePublisher).await;
    // A new stream that such a relay takes and does not carry fails with the hold of connections.
    scene.plays_to(Trick::Stalls, 0).await;
    assert!(scene.hostile.counts().1 > 0, "it did nothing");
}

/// R-STR-05: a relay's word ends no stream: "unknown stream", "unknown association", "overloaded".
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
    assert!(scene.hostile.counts().1 > 0, "it did nothing");
}
