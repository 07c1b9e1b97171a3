//! QUIC handshakes that begin and do not go on, from many addresses.

use super::{source, tls};
use anyhow::{Context, Result};
use bytes::BytesMut;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{ClientConfig, Connection, DatagramEvent, Endpoint, EndpointConfig};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;
use tokio::task::JoinSet;

/// The greatest payload of UDP over IPv4.
const DATAGRAM_LEN_MAX: usize = 65_507;

/// How far a client goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Far {
    /// One byte of nonsense.
    OneByte,
    /// The hello but for its last packet.
    AlmostHello,
    /// The whole hello, and after a Retry once more: then nothing.
    Hello,
    /// The same, each datagram as large as UDP has them.
    Oversized,
}

/// Begins `count` handshakes with `to`, each from an address of its own, going as far as `far` has it
/// in turn, and waits at most `patience` for answers. Returns how many were answered at all.
///
/// # Errors
/// When a socket cannot be had.
pub async fn half_handshakes(
    to: SocketAddr,
    server_name: &str,
    count: usize,
    far: &[Far],
    patience: Duration,
) -> Result<usize> {
    let tls = tls::client(&[b"fairlead/1"], None)?;
    let crypto = Arc::new(QuicClientConfig::try_from(tls)?);
    let mut clients = JoinSet::new();
    let opening = Arc::new(tokio::sync::Semaphore::new(super::OPENING_MAX));
    for number in 0..count {
        let config = ClientConfig::new(crypto.clone());
        let far = *far.get(number % far.len().max(1)).context("how far?")?;
        let name = server_name.to_owned();
        let opening = opening.clone();
        clients.spawn(async move {
            let turn = opening.acquire_owned().await?;
            let socket = UdpSocket::bind((source(number), 0)).await?;
            let mut client = HalfClient::new(socket, config, to, &name)?;
            client.send(far).await?;
            drop(turn);
            anyhow::Ok(client.answered(far, patience).await)
        });
    }
    let mut answered = 0;
    while let Some(client) = clients.join_next().await {
        answered += usize::from(client??);
    }
    Ok(answered)
}

struct HalfClient {
    socket: UdpSocket,
    endpoint: Endpoint,
    connection: Connection,
    to: SocketAddr,
}

impl HalfClient {
    fn new(socket: UdpSocket, config: ClientConfig, to: SocketAddr, name: &str) -> Result<Self> {
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, true, None);
        let (_, connection) = endpoint.connect(Instant::now(), config, to, name)?;
        Ok(Self {
            socket,
            endpoint,
            connection,
            to,
        })
    }

    async fn send(&mut self, far: Far) -> Result<()> {
        let mut packets = Vec::new();
        loop {
            let mut packet = Vec::new();
            if self
                .connection
                .poll_transmit(Instant::now(), 1, &mut packet)
                .is_none()
            {
                break;
            }
            packets.push(packet);
        }
        match far {
            Far::OneByte => packets = vec![vec![0xc3]],
            Far::AlmostHello => packets.truncate(packets.len().saturating_sub(1).max(1)),
            Far::Hello => {}
            Far::Oversized => packets
                .iter_mut()
                .for_each(|packet| packet.resize(DATAGRAM_LEN_MAX, 0)),
        }
        for packet in packets {
            self.socket.send_to(&packet, self.to).await?;
        }
        Ok(())
    }

    /// Waits for answers; follows a Retry and nothing else.
    async fn answered(&mut self, far: Far, patience: Duration) -> bool {
        let mut buffer = vec![0; 2048];
        let mut answered = false;
        let deadline = tokio::time::Instant::now() + patience;
        while let Ok(Ok((length, _))) =
            tokio::time::timeout_at(deadline, self.socket.recv_from(&mut buffer)).await
        {
            let is_first = !std::mem::replace(&mut answered, true);
            if !is_first || !matches!(far, Far::Hello | Far::Oversized) {
                continue;
            }
            let data = BytesMut::from(buffer.get(..length).unwrap_or_default());
            let event = self
                .endpoint
                .handle(Instant::now(), self.to, None, None, data, &mut Vec::new());
            if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
                self.connection.handle_event(event);
                let _ = self.send(far).await;
            }
        }
        answered
    }
}
