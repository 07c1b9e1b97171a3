//! Relays that take legs and carry nothing more of them, or never let them go.

use super::relay::Hostile;
use super::tricks::Trick;
use super::{Scene, finish, round, sha256};
use crate::config::StreamHold;
use crate::metrics::StreamRole;
use crate::tests::pool::{PATIENCE, eventually};
use crate::tests::traffic::{echo, pattern};
use fairlead_model::RefusalCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// New streams until the relay was asked first by some of them.
const ASKED_BY: u64 = 12;

/// R-NOD-02, R-STR-05, I8: a relay that takes the first leg of a new stream, lets the publisher answer it or
/// answers in its name, and carries nothing more: the application is served through the other relay
/// within its hold, whether it speaks first or not, and the target is dialled once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_silent_first_leg_is_replaced_within_the_hold() {
    let mut scene = Scene::start().await;
    for trick in [Trick::StallsFirstLegs, Trick::KeepsFirstLegs] {
        let what = format!("{trick:?}");
        scene.plays_all(trick);
        let before = scene.counts().1;
        let mut longest = Duration::ZERO;
        for n in 0..ASKED_BY {
            if n % 2 == 0 {
                longest = longest.max(scene.new_stream(&what, n).await);
            } else {
                // One that says nothing before its target is there.
                let started = Instant::now();
                let mut quiet = scene.connect().await;
                let (accepted, connected) = (scene.accepted.clone(), scene.connected);
                eventually("the target to be dialled", || {
                    accepted.load(Ordering::Relaxed) == connected
                })
                .await;
                longest = longest.max(started.elapsed());
                round(&mut quiet, n, 10_000).await;
            }
            if scene.counts().1 >= before + 4 {
                break;
            }
        }
        assert!(scene.counts().1 > before, "{what}: it did nothing");
        scene.all_dialled_once(&what);
        println!("{what}: longest {longest:?}");
    }
}

/// R-STR-05, I5, I8: the first leg of a stream that was attached through another relay comes after all:
/// while the stream lives it is not taken, after its end it is refused, and no target is dialled for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_first_leg_that_comes_late_reaches_no_target() {
    let mut scene = Scene::start().await;
    scene.plays_all(Trick::KeepsFirstLegs);
    let (mut played, mut refused) = (0, 0);
    for n in 0..ASKED_BY {
        let mut live = scene.connect().await;
        round(&mut live, n, 100_000).await;
        let (answered, legs) = scene.hostiles[0].ring().play_kept().await;
        assert_eq!(answered, 0, "a publisher's word on a leg of before");
        round(&mut live, n + 1, 100_000).await;
        let rest = tokio::time::timeout(PATIENCE, finish(live)).await.unwrap();
        assert_eq!(rest.unwrap(), 0, "more than was sent");
        played += legs;

        scene.new_stream("before its leg comes", n).await;
        eventually("the stream to be forgotten", || {
            scene.pool.beta.started.live.len() == 0
        })
        .await;
        let (answered, legs) = scene.hostiles[0].ring().play_kept().await;
        assert_eq!(answered, legs, "a stream that has ended is told so");
        refused += legs;
        if played > 1 && refused > 1 {
            break;
        }
    }
    assert!(played > 0 && refused > 0, "it did nothing: {played}, {refused}");
    scene.all_dialled_once("late legs");
    eventually("the refusals to be counted", || {
        let code = RefusalCode::UnknownStream;
        scene.pool.beta.refused(StreamRole::Publisher, code) == refused as u64
    })
    .await;
}

/// A stream beside, whose bytes show all the time that its relay carries: nothing asks the path then.
struct Neighbour {
    stop: oneshot::Sender<()>,
    task: JoinHandle<TcpStream>,
}

impl Neighbour {
    fn start(mut socket: TcpStream) -> Self {
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            while stopped.try_recv().is_err() {
                round(&mut socket, 9, 500).await;
            }
            socket
        });
        Self { stop, task }
    }

    async fn stop(self) -> TcpStream {
        self.stop.send(()).unwrap();
        self.task.await.unwrap()
    }
}

/// R-STR-01, R-STR-02: a relay that carries all streams but one, and of that one only the FIN was on its
/// way: the FIN is missed, and the stream ends in order through the other relay.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_swallowed_fin_is_missed() {
    let mut scene = Scene::start().await;
    let liar = scene.hostiles[0].id;
    let mut quiet = scene.stream_through(&[liar]).await;
    let number = scene.hostiles[0].latest();
    let neighbour = Neighbour::start(scene.stream_through(&[liar]).await);
    scene.through(None).await;
    scene.plays_all(Trick::StallsStream(number));
    quiet.shutdown().await.unwrap();
    let mut rest = Vec::new();
    let end = tokio::time::timeout(PATIENCE, quiet.read_to_end(&mut rest)).await;
    assert_eq!(end.expect("the FIN arrives").unwrap(), 0);
    assert!(scene.counts().1 > 0, "it did nothing");
    finish(neighbour.stop().await).await.unwrap();
    scene.all_dialled_once("a swallowed FIN");
}

/// A target that reads nothing until it is told to, then all; it answers with the hash.
async fn sleeper() -> (String, oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (wake, woken) = oneshot::channel();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        woken.await.unwrap();
        let mut all = Vec::new();
        socket.read_to_end(&mut all).await.unwrap();
        socket.write_all(&sha256(&all).0).await.unwrap();
    });
    (address, wake)
}

/// R-STR-01, R-STR-04: the window of a full stream opens again and the relay swallows that word, of this
/// stream alone: the writer asks, hears nothing, and goes on through the other relay.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_swallowed_window_is_asked_for() {
    const BLOCK: usize = 64 * 1024;
    let (target, wake) = sleeper().await;
    let mut scene = Scene::start_with(1, &[target, echo().await]).await;
    scene.through(Some(&[scene.hostiles[0].id])).await;
    let (mut answers, mut writer) = scene.pool.connect(1).await.into_split();
    let bytes = pattern(3, 64 << 20);
    let mut written = 0;
    // Until the window and every buffer on the way are full.
    let full = Duration::from_secs(1);
    while let Ok(n) = tokio::time::timeout(full, writer.write(&bytes[written..][..BLOCK])).await {
        written += n.unwrap();
    }
    let number = scene.hostiles[0].latest();
    let mut beside = scene.pool.connect(2).await;
    round(&mut beside, 1, 500).await;
    let neighbour = Neighbour::start(beside);
    scene.through(None).await;
    scene.plays_all(Trick::StallsStream(number));
    wake.send(()).unwrap();
    let total = written + (1 << 20);
    let exchanged = async {
        writer.write_all(&bytes[written..total]).await.unwrap();
        writer.shutdown().await.unwrap();
        let mut hash = Vec::new();
        answers.read_to_end(&mut hash).await.unwrap();
        hash
    };
    let hash = tokio::time::timeout(PATIENCE, exchanged).await;
    assert_eq!(hash.expect("the window opens"), sha256(&bytes[..total]).0);
    assert!(scene.counts().1 > 0, "it did nothing");
    finish(neighbour.stop().await).await.unwrap();
}

/// A target that says a byte of so many, and the rest when it is told to.
pub(super) async fn speaker(bytes: usize) -> (String, oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (start, started) = oneshot::channel();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let said = pattern(4, bytes);
        socket.write_all(&said[..1]).await.unwrap();
        started.await.unwrap();
        socket.write_all(&said[1..]).await.unwrap();
        socket.shutdown().await.unwrap();
    });
    (address, start)
}

/// What it says.
const SPOKEN: usize = 3 << 20;

/// R-STR-01: an application only reads, and the relay stalls its stream's leg alone in both directions while it
/// carries others: nothing of the consumer's is on its way, and what the publisher asks for is swallowed. The
/// leg is asked in its turn, and the stream goes on through the other relay.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reader_whose_leg_alone_stalls_goes_on() {
    let (target, start) = speaker(SPOKEN).await;
    let mut scene = Scene::start_with(1, &[target, echo().await]).await;
    scene.through(Some(&[scene.hostiles[0].id])).await;
    let mut reader = scene.pool.connect(1).await;
    let mut all = vec![0; 1];
    reader.read_exact(&mut all).await.unwrap();
    let number = scene.hostiles[0].latest();
    let mut beside = scene.pool.connect(2).await;
    round(&mut beside, 1, 500).await;
    let neighbour = Neighbour::start(beside);
    scene.through(None).await;
    scene.plays_all(Trick::StallsStream(number));
    let stalled = Instant::now();
    start.send(()).unwrap();
    let read = tokio::time::timeout(PATIENCE, reader.read_to_end(&mut all)).await;
    assert_eq!(read.expect("the stream goes on").unwrap(), SPOKEN - 1);
    assert!(sha256(&all) == sha256(&pattern(4, SPOKEN)), "other bytes");
    println!("a stalled reader: all after {:?}", stalled.elapsed());
    assert!(scene.counts().1 > 0, "it did nothing");
    finish(neighbour.stop().await).await.unwrap();
}

/// R-STR-01, R-STR-04: nothing of a stream is acknowledged for a whole hold, on a leg that stays open. The leg is
/// given up; the next ones have their own time, and the stream goes on with the first that carries.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_stood_still_for_a_hold_goes_on_with_the_next_leg() {
    const BYTES: usize = 100_000;
    let hold = StreamHold::of_test(Duration::from_secs(8));
    let mut scene = Scene::start_with_hold(1, &[], hold).await;
    scene.through(Some(&[scene.hostiles[0].id])).await;
    let mut stream = scene.pool.connect(0).await;
    round(&mut stream, 1, 500).await;
    scene.plays_all(Trick::StallsStream(scene.hostiles[0].latest()));
    let legs = scene.counts().0;
    let bytes = pattern(5, BYTES);
    stream.write_all(&bytes).await.unwrap();
    eventually("the leg to be given up, and others tried", || {
        scene.counts().0 > legs
    })
    .await;
    scene.plays_all(Trick::Honest);
    let mut echoed = vec![0; BYTES];
    let read = tokio::time::timeout(PATIENCE, stream.read_exact(&mut echoed)).await;
    read.expect("the stream goes on").unwrap();
    assert!(echoed == bytes, "other bytes");
}

/// Waits until the relay has kept ends of legs to itself, and then until nobody waits for them any more.
async fn lets_go(hostile: &Hostile, deeds_before: usize) {
    eventually("the end of a leg to be kept", || {
        hostile.counts().1 >= deeds_before + 2
    })
    .await;
    eventually("the leg to be given up", || hostile.held_open() == 0).await;
}

/// R-STR-04, R-STR-05: a relay that passes no end of a leg on keeps neither an ended stream in the daemons, nor
/// the leg that a live one has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leg_that_is_kept_open_is_given_up() {
    let mut scene = Scene::start().await;
    let (liar, honest) = (scene.hostiles[0].id, scene.pool.workers[0].id);
    // The stream has ended, and its leg does not.
    let ending = scene.stream_through(&[liar]).await;
    scene.plays_all(Trick::KeepsLegsOpen);
    let before = scene.counts().1;
    assert_eq!(finish(ending).await.unwrap(), 0);
    lets_go(&scene.hostiles[0], before).await;
    eventually("the stream to be forgotten", || {
        let nodes = [&scene.pool.alpha, &scene.pool.beta];
        nodes.iter().all(|node| node.started.live.len() == 0)
    })
    .await;
    // The leg was left for another one, and the stream lives.
    scene.plays_all(Trick::Honest);
    let mut moving = scene.stream_through(&[liar]).await;
    scene.plays_all(Trick::KeepsLegsOpen);
    let before = scene.counts().1;
    scene.through(Some(&[honest])).await;
    lets_go(&scene.hostiles[0], before).await;
    round(&mut moving, 2, 100_000).await;
    assert_eq!(finish(moving).await.unwrap(), 0);
    scene.all_dialled_once("legs kept open");
}
