//! Servers that behave well or badly in a known way: what a publisher dials.

use crate::verified;
use anyhow::{Context, Result};
use socket2::{Domain, SockRef, Socket, Type};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

/// Outcomes that nobody has fetched yet: more than any test opens connections.
const OUTCOMES_KEPT: usize = 10_000;

/// What a target does with each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behaviour {
    /// Sends back what it gets, and the end of the stream too.
    Echo,
    /// Reads to the end, checks it against `question`, and only then answers `len` bytes of `answer` (F-01).
    AnswerAfterEof {
        /// The seed of what it expects.
        question: u64,
        /// The seed of what it says.
        answer: u64,
        /// How many bytes it says.
        len: u64,
    },
    /// Sends `len` bytes of `seed`, half-closes, and goes on reading to the end (F-01).
    CloseFirst {
        /// The seed of what it sends.
        seed: u64,
        /// How many bytes.
        len: u64,
        /// The seed of what it expects.
        question: u64,
    },
    /// Sends `len` bytes of `seed`, then resets the connection (F-02).
    BytesThenReset {
        /// The seed of what it sends.
        seed: u64,
        /// How many bytes.
        len: u64,
    },
    /// Sends `len` bytes of `seed` and closes at once (F-02).
    BytesThenClose {
        /// The seed of what it sends.
        seed: u64,
        /// How many bytes.
        len: u64,
    },
    /// Sends `send` and expects `expect`, `len` bytes each, at once.
    BothWays {
        /// The seed of what it sends.
        send: u64,
        /// The seed of what it expects.
        expect: u64,
        /// How many bytes each way.
        len: u64,
    },
    /// Sends the endless stream of `seed` (F-03).
    Push {
        /// The seed of what it sends.
        seed: u64,
    },
    /// Accepts, and neither reads nor writes.
    Silent,
}

/// How one connection of a target went.
#[derive(Debug)]
pub struct Outcome {
    /// How many bytes the target read, all of them as expected.
    pub received: u64,
    /// What went wrong; `None` when all went as the behaviour has it.
    pub error: Option<anyhow::Error>,
}

/// A running target. Dropped, it closes all its connections and its port.
#[derive(Debug)]
pub struct Target {
    address: String,
    socket: Option<SocketAddr>,
    outcomes: Mutex<mpsc::Receiver<Outcome>>,
    accepted: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
    /// The sockets that keep a full accept queue full.
    _held: Vec<Socket>,
}

impl Target {
    /// A target on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start(behaviour: Behaviour) -> Result<Self> {
        Self::start_on(([127, 0, 0, 1], 0).into(), behaviour).await
    }

    /// A target on a given address.
    ///
    /// # Errors
    /// When it is taken.
    pub async fn start_on(address: SocketAddr, behaviour: Behaviour) -> Result<Self> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket
            .bind(&address.into())
            .with_context(|| format!("cannot bind {address}"))?;
        // Tests open hundreds of connections at once: none is to be lost in the accept queue.
        socket.listen(4096)?;
        Self::start_with(socket.into(), behaviour)
    }

    /// A target on a host of its own, at a free port of its 127.0.0.1; served from here.
    ///
    /// # Errors
    /// When the host cannot be entered.
    pub fn start_in(host: &crate::Host, behaviour: Behaviour) -> Result<Self> {
        let listener = host.run(|| std::net::TcpListener::bind(("127.0.0.1", 0)))??;
        listener.set_nonblocking(true)?;
        Self::start_with(listener, behaviour)
    }

    fn start_with(listener: std::net::TcpListener, behaviour: Behaviour) -> Result<Self> {
        let listener = TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let (tell, outcomes) = mpsc::channel(OUTCOMES_KEPT);
        let accepted = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&accepted);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                let tell = tell.clone();
                connections.spawn(async move {
                    let _ = stream.set_nodelay(true);
                    let _ = tell.try_send(serve(stream, behaviour).await);
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address: address.to_string(),
            socket: Some(address),
            outcomes: Mutex::new(outcomes),
            accepted,
            _tasks: tasks,
            _held: Vec::new(),
        })
    }

    /// An echo target.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn echo() -> Result<Self> {
        Self::start(Behaviour::Echo).await
    }

    /// An echo target on a Unix socket.
    ///
    /// # Errors
    /// When the path is taken or too long.
    pub async fn unix_echo(path: &Path) -> Result<Self> {
        let listener = UnixListener::bind(path).with_context(|| format!("{}", path.display()))?;
        let (tell, outcomes) = mpsc::channel(OUTCOMES_KEPT);
        let accepted = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&accepted);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                let tell = tell.clone();
                connections.spawn(async move {
                    let (mut read, mut write) = stream.split();
                    let _ = tell.try_send(outcome(echo(&mut read, &mut write).await));
                });
            }
        });
        let address = format!("unix:{}", PathBuf::from(path).display());
        let outcomes = Mutex::new(outcomes);
        Ok(Self {
            address,
            socket: None,
            outcomes,
            accepted,
            _tasks: tasks,
            _held: Vec::new(),
        })
    }

    /// A port that answers no SYN: its accept queue is full and stays so (F-08, host blackholed).
    ///
    /// # Errors
    /// When no port is free.
    pub fn blackhole() -> Result<Self> {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
        listener.listen(0)?;
        let address = listener.local_addr()?;
        let mut held = vec![listener];
        // A backlog of 0 lets one connection in, and the kernel completes one or two more.
        for _ in 0..4 {
            let filler = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            let _ = filler.connect_timeout(&address, Duration::from_millis(50));
            held.push(filler);
        }
        let socket = address.as_socket().context("no IP address")?;
        let (_, outcomes) = mpsc::channel(1);
        Ok(Self {
            address: socket.to_string(),
            socket: Some(socket),
            outcomes: Mutex::new(outcomes),
            accepted: Arc::default(),
            _tasks: JoinSet::new(),
            _held: held,
        })
    }

    /// The address as a link's target takes it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The TCP address.
    ///
    /// # Errors
    /// When the target is a Unix socket.
    pub fn socket(&self) -> Result<SocketAddr> {
        self.socket.context("a Unix socket has no address")
    }

    /// How many connections it has accepted.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// How the next connection that ended went.
    ///
    /// # Errors
    /// When none ends within `limit`.
    pub async fn outcome(&self, limit: Duration) -> Result<Outcome> {
        let mut outcomes = self.outcomes.lock().await;
        tokio::time::timeout(limit, outcomes.recv())
            .await
            .with_context(|| format!("no connection of the target ended within {limit:?}"))?
            .context("the target has ended")
    }
}

/// A free port of 127.0.0.1, below those that the kernel gives to outgoing connections: connecting
/// to it is refused, and a daemon can be told to listen on it.
///
/// # Errors
/// When no port is free.
pub fn closed_port() -> Result<SocketAddr> {
    let mut random = fastrand::Rng::new();
    for _ in 0..1000 {
        let address = SocketAddr::from(([127, 0, 0, 1], random.u16(12_000..30_000)));
        if std::net::TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    anyhow::bail!("no free port")
}

/// Makes the next close of the socket a reset.
///
/// # Errors
/// When the option is refused.
pub fn reset_on_close(stream: &TcpStream) -> Result<()> {
    Ok(SockRef::from(stream).set_linger(Some(Duration::ZERO))?)
}

fn outcome(result: Result<u64>) -> Outcome {
    match result {
        Ok(received) => Outcome {
            received,
            error: None,
        },
        Err(error) => Outcome {
            received: 0,
            error: Some(error),
        },
    }
}

async fn echo(read: &mut (impl AsyncRead + Unpin), write: &mut (impl AsyncWrite + Unpin)) -> Result<u64> {
    let mut buffer = vec![0; 64 * 1024];
    let mut total = 0;
    loop {
        let count = read.read(&mut buffer).await?;
        if count == 0 {
            write.shutdown().await?;
            return Ok(total);
        }
        write.write_all(buffer.get(..count).context("read")?).await?;
        total += count as u64;
    }
}

async fn serve(mut stream: TcpStream, behaviour: Behaviour) -> Outcome {
    let (mut read, mut write) = stream.split();
    outcome(match behaviour {
        Behaviour::Echo => echo(&mut read, &mut write).await,
        Behaviour::AnswerAfterEof {
            question,
            answer,
            len,
        } => {
            async {
                let received = read_to_end(&mut read, question).await?;
                verified::send(&mut write, answer, len).await?;
                write.shutdown().await?;
                Ok(received)
            }
            .await
        }
        Behaviour::CloseFirst { seed, len, question } => {
            async {
                verified::send(&mut write, seed, len).await?;
                write.shutdown().await?;
                read_to_end(&mut read, question).await
            }
            .await
        }
        Behaviour::BytesThenReset { seed, len } => {
            async {
                verified::send(&mut write, seed, len).await?;
                reset_on_close(write.as_ref())?;
                Ok(0)
            }
            .await
        }
        Behaviour::BytesThenClose { seed, len } => verified::send(&mut write, seed, len).await.map(|_| 0),
        Behaviour::BothWays { send, expect, len } => {
            async {
                let sending = async {
                    verified::send(&mut write, send, len).await?;
                    write.shutdown().await.context("shutdown")
                };
                let (_, received) =
                    tokio::try_join!(sending, verified::receive_to_end(&mut read, expect, len))?;
                Ok(received.bytes)
            }
            .await
        }
        Behaviour::Push { seed } => verified::send(&mut write, seed, u64::MAX).await.map(|_| 0),
        Behaviour::Silent => std::future::pending().await,
    })
}

async fn read_to_end(read: &mut (impl AsyncRead + Unpin), seed: u64) -> Result<u64> {
    let (received, error) = verified::receive_what_comes(read, seed).await?;
    match error {
        None => Ok(received.bytes),
        Some(error) => Err(error).with_context(|| format!("after {} bytes", received.bytes)),
    }
}

#[cfg(test)]
mod tests;
