//! Trying a relay from outside: a real handshake and the echo of a full-size frame.

use crate::dial::{DialError, Dialler};
use crate::leg::{FrameReadError, FrameWriteError, Leg};
use bytes::Bytes;
use fairlead_hop::frame::{Frame, Hello, PING_PADDING_MAX, Ping};
use fairlead_model::{HostPort, Identity, ProcessBootId, RefusalCode, RelayId, SessionId};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Time for greeting and echo, after the carrier is there.
const ECHO_DEADLINE: Duration = Duration::from_secs(5);

/// What a probe saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeReport {
    /// Round trip of the full-size frame.
    pub rtt: Duration,
    /// The address that answered.
    pub address: SocketAddr,
}

/// Why a relay counts as unreachable.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No carrier.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The relay ended the session, or broke the protocol.
    #[error("the relay ended the probe")]
    Read(#[from] FrameReadError),
    /// The carrier failed.
    #[error("the connection failed during the probe")]
    Write(#[from] FrameWriteError),
    /// The control stream could not be opened, or ended.
    #[error("the relay closed the connection")]
    Closed,
    /// The relay said no.
    #[error("the relay refused the probe: {0}")]
    Refused(RefusalCode),
    /// Another frame, or other bytes than were sent.
    #[error("the relay answered the probe with something else ({0})")]
    Wrong(&'static str),
    /// The port answers and data does not pass (F-11).
    #[error("no echo of a full-size frame within {} s: small packets pass, large ones may not", ECHO_DEADLINE.as_secs())]
    NoEcho,
}

/// Tries the relay `expect` at `address` (R-ENR-07, R-RCH-03).
///
/// # Errors
/// Says how far it came.
pub async fn probe(
    dialler: &Dialler,
    address: &HostPort,
    expect: RelayId,
) -> Result<ProbeReport, ProbeError> {
    let carrier = dialler.dial(address, Identity::Relay(expect)).await?;
    let address = carrier.remote_address();
    let outcome = tokio::time::timeout(ECHO_DEADLINE, async {
        let control = carrier.open_leg().await.map_err(|_| ProbeError::Closed)?;
        echo(control).await
    })
    .await
    .unwrap_or(Err(ProbeError::NoEcho));
    carrier.close(RefusalCode::MemberLeft);
    outcome.map(|rtt| ProbeReport { rtt, address })
}

async fn echo(mut control: Leg) -> Result<Duration, ProbeError> {
    // Bytes that no path compresses and no stale answer has; not a secret.
    let seed = u64::try_from(
        std::time::SystemTime::UNIX_EPOCH
            .elapsed()
            .unwrap_or_default()
            .as_nanos(),
    )
    .unwrap_or(u64::MAX);
    control
        .send
        .write_frame(&Frame::Hello(Hello {
            version_min: fairlead_hop::VERSION,
            version_max: fairlead_hop::VERSION,
            session: SessionId::from_bytes(u128::from(seed).to_be_bytes()),
            process_boot: ProcessBootId::from_bytes([0; 16]),
            software: "probe".to_owned(),
            capabilities: Vec::new(),
        }))
        .await?;
    match control.recv.read_frame().await? {
        Some(Frame::HelloOk(_)) => {}
        Some(Frame::Close(code)) => return Err(ProbeError::Refused(code)),
        Some(other) => return Err(ProbeError::Wrong(other.name())),
        None => return Err(ProbeError::Closed),
    }
    let sent = Instant::now();
    let ping = Ping {
        number: seed,
        padding: noise(seed),
    };
    control.send.write_frame(&Frame::Ping(ping.clone())).await?;
    match control.recv.read_frame().await? {
        Some(Frame::Pong(pong)) if pong == ping => Ok(sent.elapsed()),
        Some(Frame::Close(code)) => Err(ProbeError::Refused(code)),
        Some(other) => Err(ProbeError::Wrong(other.name())),
        None => Err(ProbeError::Closed),
    }
}

/// A full frame of xorshift64* noise.
fn noise(seed: u64) -> Bytes {
    let mut state = seed | 1;
    (0..PING_PADDING_MAX)
        .map(|_| {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            u8::try_from(state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 56).unwrap_or(0)
        })
        .collect()
}
