//! Both ends of a stream in the hands of one test: it is the application at the consumer and the
//! target at the publisher.

use crate::Host;
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// From the connect to the accept at the far end: held connections wait 3 s (R-NOD-02), a restarting
/// publisher is waited for 15 s (R-ADM-03).
const OPEN_LIMIT: Duration = Duration::from_secs(30);

/// A target that hands out its connections.
#[derive(Debug)]
pub struct Ends {
    listener: TcpListener,
    address: SocketAddr,
}

impl Ends {
    /// Listens on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn listen() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// Listens on a free port of a host's 127.0.0.1.
    ///
    /// # Errors
    /// When the host cannot be entered.
    pub fn listen_in(host: &Host) -> Result<Self> {
        let listener = host.run(|| std::net::TcpListener::bind(("127.0.0.1", 0)))??;
        listener.set_nonblocking(true)?;
        let (address, listener) = (listener.local_addr()?, TcpListener::from_std(listener)?);
        Ok(Self { listener, address })
    }

    /// The address as a link's target takes it.
    #[must_use]
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Connects through a link and returns the application's end and the target's.
    ///
    /// # Errors
    /// When the link does not open. One at a time: ends are not told apart.
    pub async fn open(&self, link: SocketAddr) -> Result<(TcpStream, TcpStream)> {
        let near = TcpStream::connect(link).await.context("connect")?;
        self.accepted(near).await
    }

    /// [`Ends::open`] from a host of its own.
    ///
    /// # Errors
    /// As [`Ends::open`].
    pub async fn open_from(&self, host: &Host, link: SocketAddr) -> Result<(TcpStream, TcpStream)> {
        self.accepted(host.connect(link)?).await
    }

    async fn accepted(&self, near: TcpStream) -> Result<(TcpStream, TcpStream)> {
        let far = tokio::time::timeout(OPEN_LIMIT, self.listener.accept()).await;
        let (far, _) = far.context("the target was not dialled")??;
        for end in [&near, &far] {
            end.set_nodelay(true)?;
        }
        Ok((near, far))
    }
}
