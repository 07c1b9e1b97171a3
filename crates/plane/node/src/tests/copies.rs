//! A consumer's folder that was copied (R-ENR-10).

use super::pool::{BETA, PATIENCE, Pool, eventually};
use super::traffic::{echo, pattern};
use crate::association::{Associations, PairRequest};
use crate::identity::IdentityKeeper;
use crate::metrics::StreamRole;
use fairlead_model::{BootCounter, RefusalCode};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

/// Long streams of the original.
const STREAMS: u64 = 6;
/// Bytes that each sends at once.
const BLOCK: usize = 4096;
/// For how long the copy is watched: it came ten times a second, and may come twice a minute.
const WATCHED: Duration = Duration::from_secs(4);

/// Sends blocks and verifies their echo until stopped, then EOF; gives how many there were.
async fn talk(mut socket: TcpStream, seed: u64, stopped: watch::Receiver<bool>) -> u64 {
    let mut answer = vec![0; BLOCK];
    let mut blocks = 0;
    while !*stopped.borrow() {
        let block = pattern(seed + STREAMS * blocks, BLOCK);
        socket.write_all(&block).await.unwrap();
        socket.read_exact(&mut answer).await.unwrap();
        assert!(answer == block, "stream {seed}, block {blocks}");
        blocks += 1;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    socket.shutdown().await.unwrap();
    assert_eq!(socket.read(&mut answer).await.unwrap(), 0, "stream {seed}");
    blocks
}

/// Proves to beta a run of alpha that is later than any, as a copy does in the moment before it is sent away.
async fn prove_a_later_run(pool: &Pool) {
    let folder = pool.alpha.folder();
    let member = folder.load().unwrap();
    let (identity, _) = IdentityKeeper::load(folder, &member).unwrap();
    let started = &pool.alpha.started;
    let later = Arc::new(Associations::new(
        identity.tls(),
        BootCounter(u64::MAX),
        started.clock.clone(),
        started.old_runs.clone(),
        started.metrics.clone(),
        TaskTracker::new(),
    ));
    let sessions = started.relays.sessions();
    let request = PairRequest {
        publisher: BETA,
        route: pool.links[0].route,
        grant: pool.grant(&pool.links[0]),
        session: sessions.values().next().unwrap().clone(),
        unknown: None,
    };
    later.get(&request).await.unwrap();
}

/// R-ENR-10, R-STR-01: the first start of a copy proves a later run to the publisher and takes the
/// original's sessions for a moment. None of the original's streams ends by that; and the copy, once it is
/// known, does not come again for 15 s, though it is greeted before it is sent away.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_copy_ends_no_stream_and_waits() {
    let pool = Pool::start(2, &[echo().await]).await;
    let (stop, stopped) = watch::channel(false);
    let mut talks = JoinSet::new();
    for seed in 0..STREAMS {
        talks.spawn(talk(pool.connect(0).await, seed, stopped.clone()));
    }
    let carried = || pool.beta.started.live.len() as u64;
    eventually("the streams to be carried", || carried() == STREAMS).await;
    let associations = &pool.beta.started.metrics.associations;
    let accepted = || associations.get_or_create(&StreamRole::Publisher.into()).get();
    assert_eq!(accepted(), 1);
    let sessions = |copy: &super::pool::Node| -> Vec<u64> {
        let relays = pool
            .workers
            .iter()
            .map(|w| format!("relay-{}", w.id.to_bytes()[0]));
        relays
            .map(|name| copy.started.metrics.hop_session_count(&name))
            .collect()
    };
    prove_a_later_run(&pool).await;
    eventually("the later run to be known", || accepted() > 1).await;
    let mut copy = pool.alpha.start_copy().await;
    eventually("each relay to greet the copy", || {
        sessions(&copy).iter().all(|count| *count > 0)
    })
    .await;
    eventually("the original to be back", || {
        pool.alpha.started.relays.sessions().len() == 2
    })
    .await;
    eventually("what an earlier run left to be ended", || {
        pool.beta.started.old_runs.len() == 0
    })
    .await;
    assert_eq!(carried(), STREAMS);

    // Another start of the copy is refused at once.
    copy.kill_and_restart().await;
    // Greeted or not: the word may be there before the greeting is.
    let told = RefusalCode::IdentityInUse.message();
    eventually("each relay to send the copy away", || {
        let reach = copy.started.relays.reach();
        reach.len() == 2 && reach.iter().all(|(_, reach)| reach.error.contains(told))
    })
    .await;
    tokio::time::sleep(WATCHED).await;
    let came = sessions(&copy);
    println!("sessions of the copy at each relay: {came:?}");
    assert!(came.iter().all(|count| *count <= 1), "{came:?}");
    assert_eq!(carried(), STREAMS);

    stop.send_replace(true);
    let mut blocks = 0;
    while let Some(talk) = tokio::time::timeout(PATIENCE, talks.join_next()).await.unwrap() {
        blocks += talk.unwrap();
    }
    println!("{blocks} blocks were verified");
    copy.stop().await;
}
