//! How streams end: half-close, FIN and RST keep their meaning (R-STR-02), without a relay's loss.

use anyhow::{Context, Result, bail, ensure};
use fairlead_testkit::target::{self, Behaviour};
use fairlead_testkit::{Ends, Pool, Role, Target, verified, wait};
use std::io::ErrorKind;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(20);

/// One pool with a link to each target; returns the open connections' pool.
async fn pool_to(targets: &[(&str, &Target)]) -> Result<Pool> {
    let mut builder = Pool::builder().relays(1);
    for (name, target) in targets {
        builder = builder.to(name, target.address())?;
    }
    builder.start().await
}

async fn connect(pool: &Pool, link: &str) -> Result<TcpStream> {
    TcpStream::connect(pool.listen(link)?).await.context("connect")
}

/// F-01: a question of 1 MiB and its end, then the answer and its end, in order, without a timer; and
/// the same when the target closes its way first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_close_keeps_its_meaning_from_either_side() -> Result<()> {
    let answers = Behaviour::AnswerAfterEof {
        question: 1,
        answer: 2,
        len: MIB,
    };
    let asks = Behaviour::CloseFirst {
        seed: 3,
        len: MIB,
        question: 4,
    };
    let (answering, closing) = (Target::start(answers).await?, Target::start(asks).await?);
    let pool = pool_to(&[("answer", &answering), ("close", &closing)]).await?;

    for round in 0..5 {
        let mut stream = connect(&pool, "answer").await?;
        verified::send(&mut stream, 1, MIB).await?;
        stream.shutdown().await?;
        let answer = verified::receive_to_end(&mut stream, 2, MIB);
        tokio::time::timeout(LIMIT, answer)
            .await
            .with_context(|| format!("round {round}"))??;
        let outcome = answering.outcome(LIMIT).await?;
        ensure!(
            outcome.error.is_none() && outcome.received == MIB,
            "round {round}: {outcome:?}"
        );

        // The target has closed its way; ours goes on for as long as we like.
        let mut stream = connect(&pool, "close").await?;
        let theirs = verified::receive_to_end(&mut stream, 3, MIB);
        tokio::time::timeout(LIMIT, theirs)
            .await
            .with_context(|| format!("round {round}"))??;
        verified::send(&mut stream, 4, 3 * MIB).await?;
        stream.shutdown().await?;
        let outcome = closing.outcome(LIMIT).await?;
        ensure!(
            outcome.error.is_none() && outcome.received == 3 * MIB,
            "round {round}: {outcome:?}"
        );
    }
    // An empty question and an end at once are a question too.
    let mut stream = connect(&pool, "answer").await?;
    stream.shutdown().await?;
    tokio::time::timeout(LIMIT, verified::receive_to_end(&mut stream, 2, MIB)).await??;
    Ok(())
}

/// F-02: a target that resets gives an error after what could be had, never a clean end; one that
/// closes at once loses nothing, however slow the reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_is_an_error_and_a_close_loses_nothing() -> Result<()> {
    let resets = Target::start(Behaviour::BytesThenReset {
        seed: 5,
        len: 100_000,
    })
    .await?;
    let closes = Target::start(Behaviour::BytesThenClose {
        seed: 6,
        len: 2 * MIB,
    })
    .await?;
    let pool = pool_to(&[("reset", &resets), ("close", &closes)]).await?;
    for round in 0..10 {
        let mut stream = connect(&pool, "reset").await?;
        let all = verified::receive_what_comes(&mut stream, 5);
        let (received, error) = tokio::time::timeout(LIMIT, all).await??;
        let Some(error) = error else {
            bail!(
                "round {round}: a clean end after {} bytes of a reset stream",
                received.bytes
            );
        };
        ensure!(
            error.kind() == ErrorKind::ConnectionReset,
            "round {round}: {error}"
        );
        ensure!(received.bytes <= 100_000);
    }

    let mut stream = connect(&pool, "close").await?;
    let mut offset = 0;
    let mut piece = vec![0; 32 * 1024];
    loop {
        let read = tokio::time::timeout(LIMIT, stream.read(&mut piece)).await??;
        if read == 0 {
            break;
        }
        let expected = verified::Pattern::new(6).bytes(offset, read);
        ensure!(
            piece.get(..read) == Some(&expected[..]),
            "wrong bytes at offset {offset}"
        );
        offset += read as u64;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ensure!(offset == 2 * MIB, "{offset} bytes of {}", 2 * MIB);
    Ok(())
}

/// R-STR-02: an application's reset reaches the target as a reset; a full close reaches it as an end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_applications_reset_and_close_reach_the_target() -> Result<()> {
    let echo = Target::echo().await?;
    let pool = pool_to(&[("echo", &echo)]).await?;
    for round in 0..10 {
        let mut stream = connect(&pool, "echo").await?;
        verified::echo_on(&mut stream, round, 1000).await?;
        target::reset_on_close(&stream)?;
        drop(stream);
        let outcome = echo.outcome(LIMIT).await?;
        let error = outcome
            .error
            .with_context(|| format!("round {round}: a clean end where a reset was"))?;
        let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        ensure!(
            kind == Some(ErrorKind::ConnectionReset),
            "round {round}: {error:#}"
        );

        let mut stream = connect(&pool, "echo").await?;
        verified::echo_on(&mut stream, round, 1000).await?;
        drop(stream);
        let outcome = echo.outcome(LIMIT).await?;
        ensure!(
            outcome.error.is_none() && outcome.received == 1000,
            "round {round}: {outcome:?}"
        );
    }
    Ok(())
}

/// F-01, R-STR-02: the carrying worker is killed between the question's end and the answer: the answer
/// and its end arrive whole, from either side, without a timer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_close_outlives_its_relay() -> Result<()> {
    let ends = Ends::listen().await?;
    let pool = Pool::builder()
        .relays(2)
        .to("ends", &ends.address())?
        .start()
        .await?;
    for consumer_asks in [true, false, true] {
        let (near, far) = ends.open(pool.listen("ends")?).await?;
        let (mut asks, mut answers) = if consumer_asks { (near, far) } else { (far, near) };
        let question = async {
            verified::send(&mut asks, 11, MIB).await?;
            asks.shutdown().await?;
            anyhow::Ok(())
        };
        tokio::try_join!(question, verified::receive_to_end(&mut answers, 11, MIB))?;
        kill_the_carrier(&pool).await?;
        let answer = async {
            verified::send(&mut answers, 12, MIB).await?;
            answers.shutdown().await?;
            anyhow::Ok(())
        };
        let both = async { tokio::try_join!(answer, verified::receive_to_end(&mut asks, 12, MIB)) };
        tokio::time::timeout(LIMIT, both)
            .await
            .with_context(|| format!("the consumer asks: {consumer_asks}"))??;
    }
    Ok(())
}

/// F-02: the target has sent all and reset or closed, the reader has not read, and the carrying worker
/// dies: a reset is an error after what could be had, a close loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_outlives_its_relay() -> Result<()> {
    let ends = Ends::listen().await?;
    let pool = Pool::builder()
        .relays(2)
        .to("ends", &ends.address())?
        .start()
        .await?;
    // More than sockets take, so that bytes and the end behind them are still on their way.
    const LEN: u64 = 8 * MIB;
    for resets in [true, false] {
        let (mut near, mut far) = ends.open(pool.listen("ends")?).await?;
        let sending = tokio::spawn(async move {
            verified::send(&mut far, 13, LEN).await?;
            if resets {
                target::reset_on_close(&far)?;
            }
            anyhow::Ok(())
        });
        let first = verified::receive(&mut near, 13, MIB).await?;
        ensure!(first.bytes == MIB);
        kill_the_carrier(&pool).await?;
        let mut offset = MIB;
        let mut piece = vec![0; 64 * 1024];
        let end = async {
            loop {
                match near.read(&mut piece).await {
                    Ok(0) => return Ok(None),
                    Ok(read) => {
                        let expected = verified::Pattern::new(13).bytes(offset, read);
                        ensure!(piece.get(..read) == Some(&expected[..]), "wrong at {offset}");
                        offset += read as u64;
                    }
                    Err(error) => return Ok(Some(error)),
                }
            }
        };
        let end = tokio::time::timeout(LIMIT, end).await??;
        sending.await??;
        match end {
            Some(error) => ensure!(resets && error.kind() == ErrorKind::ConnectionReset, "{error}"),
            None => ensure!(!resets && offset == LEN, "a clean end after {offset} bytes"),
        }
    }
    Ok(())
}

/// Kills the worker that holds the most tunnels: the stream's, where only one is open.
async fn kill_the_carrier(pool: &Pool) -> Result<()> {
    let mut most = (String::new(), -1.0);
    for relay in pool.file()?.relays {
        let tunnels = pool.relay_count(&relay.name, "fairlead_live_tunnels").await?;
        if tunnels > most.1 {
            most = (relay.name, tunnels);
        }
    }
    let old = pool.kill9(Role::Worker(&most.0))?;
    pool.back(Role::Worker(&most.0), old).await?;
    Ok(())
}

/// R-STR-02: a node's daemon is killed in the middle of a download, or while a target waits: who is cut off
/// reads an error, and never a clean end, on either side.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_daemon_is_no_clean_end() -> Result<()> {
    let sends = Target::start(Behaviour::BytesThenClose {
        seed: 15,
        len: 64 * MIB,
    })
    .await?;
    let echo = Target::echo().await?;
    let pool = pool_to(&[("send", &sends), ("echo", &echo)]).await?;
    for round in 0..3 {
        let (mut stream, _) = wait::until("the download begins", LIMIT, || async {
            let mut stream = connect(&pool, "send").await?;
            verified::receive(&mut stream, 15, MIB).await?;
            anyhow::Ok(stream)
        })
        .await?;
        let old = pool.kill9(Role::Node("alpha"))?;
        let rest = tokio::time::timeout(LIMIT, async {
            let mut bytes = vec![0; 64 * 1024];
            loop {
                match stream.read(&mut bytes).await {
                    Ok(0) => break None,
                    Ok(_) => {}
                    Err(error) => break Some(error.kind()),
                }
            }
        });
        let end = rest.await?;
        ensure!(
            end == Some(ErrorKind::ConnectionReset),
            "round {round}: the download ended with {end:?}"
        );
        pool.back(Role::Node("alpha"), old).await?;

        let (_stream, _) = wait::until("the target answers", LIMIT, || async {
            let mut stream = connect(&pool, "echo").await?;
            verified::echo_on(&mut stream, round, 1000).await?;
            anyhow::Ok(stream)
        })
        .await?;
        let old = pool.kill9(Role::Node("beta"))?;
        let outcome = echo.outcome(LIMIT).await?;
        let error = outcome
            .error
            .with_context(|| format!("round {round}: the target read a clean end"))?;
        let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        ensure!(
            kind == Some(ErrorKind::ConnectionReset),
            "round {round}: {error:#}"
        );
        pool.back(Role::Node("beta"), old).await?;
    }
    Ok(())
}
