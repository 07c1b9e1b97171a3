//! Byte streams of which every offset is known: a seed and an offset give the byte, so that a
//! receiver finds the first byte that is wrong, missing or there twice, and where.

use anyhow::{Context, Result, bail};
use sha2::{Digest as _, Sha256};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// One write and one read: as large as a socket buffer takes at once.
const CHUNK: usize = 64 * 1024;

/// An endless stream of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    seed: u64,
}

impl Pattern {
    /// The stream of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Fills `buffer` with the bytes from `offset` on.
    pub fn fill(&self, offset: u64, buffer: &mut [u8]) {
        let mut at = offset;
        let mut rest = buffer;
        while !rest.is_empty() {
            let word = self.word(at / 8).to_le_bytes();
            let from = word.get((at % 8) as usize..).unwrap_or_default();
            let count = from.len().min(rest.len());
            let (now, later) = rest.split_at_mut(count);
            now.copy_from_slice(from.get(..count).unwrap_or_default());
            rest = later;
            at += count as u64;
        }
    }

    /// The bytes from `offset` on.
    #[must_use]
    pub fn bytes(&self, offset: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.fill(offset, &mut bytes);
        bytes
    }

    /// A mixing of seed and position (the finisher of splitmix64): neighbours differ in half their bits.
    const fn word(&self, index: u64) -> u64 {
        let mut z = self
            .seed
            .wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// What came in, all of it as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// How many bytes.
    pub bytes: u64,
    /// Their SHA-256.
    pub sha256: [u8; 32],
    /// The longest time between two reads.
    pub longest_gap: Duration,
}

/// Writes the first `len` bytes of a seed's stream and returns their SHA-256. Leaves `to` open.
///
/// # Errors
/// When a write fails, with the offset.
pub async fn send(to: &mut (impl AsyncWrite + Unpin), seed: u64, len: u64) -> Result<[u8; 32]> {
    let (pattern, mut hash, mut buffer) = (Pattern::new(seed), Sha256::new(), vec![0; CHUNK]);
    let mut offset = 0;
    while offset < len {
        let count = usize::try_from(len - offset).unwrap_or(CHUNK).min(CHUNK);
        let chunk = buffer.get_mut(..count).context("chunk")?;
        pattern.fill(offset, chunk);
        hash.update(&*chunk);
        to.write_all(chunk)
            .await
            .with_context(|| format!("write at offset {offset}"))?;
        offset += count as u64;
    }
    to.flush().await.context("flush")?;
    Ok(hash.finalize().into())
}

/// Reads `len` bytes and checks each against the seed's stream. Does not look for the end.
///
/// # Errors
/// At the first wrong byte, an early end, or a failed read, with the offset.
pub async fn receive(from: &mut (impl AsyncRead + Unpin), seed: u64, len: u64) -> Result<Received> {
    receive_on(from, seed, 0, len).await
}

/// Goes on with [`receive`] from offset `start` up to offset `len`.
///
/// # Errors
/// As [`receive`].
pub async fn receive_on(
    from: &mut (impl AsyncRead + Unpin),
    seed: u64,
    start: u64,
    len: u64,
) -> Result<Received> {
    let mut check = Check::new(seed);
    check.offset = start;
    let mut buffer = vec![0; CHUNK];
    while check.offset < len {
        let want = usize::try_from(len - check.offset).unwrap_or(CHUNK).min(CHUNK);
        let space = buffer.get_mut(..want).context("chunk")?;
        let read = from
            .read(space)
            .await
            .with_context(|| format!("read at offset {}", check.offset))?;
        if read == 0 {
            bail!("end of stream at offset {} of {len}", check.offset);
        }
        check.take(space.get(..read).context("read")?)?;
    }
    Ok(check.finish())
}

/// [`receive`], then the end of the stream and nothing before it.
///
/// # Errors
/// As [`receive`]; also when more follows, or an error where the end should be.
pub async fn receive_to_end(from: &mut (impl AsyncRead + Unpin), seed: u64, len: u64) -> Result<Received> {
    let received = receive(from, seed, len).await?;
    let mut one = [0];
    match from.read(&mut one).await.context("at the end of the stream")? {
        0 => Ok(received),
        _ => bail!("bytes follow offset {len}"),
    }
}

/// Reads until end or error, checking what comes; returns how much came and the error if one ended it.
///
/// # Errors
/// At a wrong byte.
pub async fn receive_what_comes(
    from: &mut (impl AsyncRead + Unpin),
    seed: u64,
) -> Result<(Received, Option<std::io::Error>)> {
    let mut check = Check::new(seed);
    let mut buffer = vec![0; CHUNK];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) => return Ok((check.finish(), None)),
            Ok(read) => check.take(buffer.get(..read).context("read")?)?,
            Err(error) => return Ok((check.finish(), Some(error))),
        }
    }
}

/// Sends `len` bytes to a server that echoes, checks what comes back, and closes.
///
/// # Errors
/// When connecting, sending or receiving fails, or a byte is wrong.
pub async fn echo_once(address: SocketAddr, seed: u64, len: u64) -> Result<()> {
    let mut stream = TcpStream::connect(address).await.context("connect")?;
    echo_on(&mut stream, seed, len).await
}

/// [`echo_once`] on an open connection, which it leaves open.
///
/// # Errors
/// When sending or receiving fails, or a byte is wrong.
pub async fn echo_on(stream: &mut TcpStream, seed: u64, len: u64) -> Result<()> {
    let (mut read, mut write) = stream.split();
    let (sent, received) = tokio::try_join!(send(&mut write, seed, len), receive(&mut read, seed, len))?;
    if sent != received.sha256 {
        bail!("the hashes differ");
    }
    Ok(())
}

struct Check {
    pattern: Pattern,
    hash: Sha256,
    expected: Vec<u8>,
    offset: u64,
    last: Instant,
    longest_gap: Duration,
}

impl Check {
    fn new(seed: u64) -> Self {
        let pattern = Pattern::new(seed);
        let expected = vec![0; CHUNK];
        let (hash, last) = (Sha256::new(), Instant::now());
        Self {
            pattern,
            hash,
            expected,
            offset: 0,
            last,
            longest_gap: Duration::ZERO,
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        self.longest_gap = self.longest_gap.max(self.last.elapsed());
        self.last = Instant::now();
        let expected = self
            .expected
            .get_mut(..bytes.len())
            .context("a read of more than a chunk")?;
        self.pattern.fill(self.offset, expected);
        if expected != bytes {
            let at = expected.iter().zip(bytes).take_while(|(a, b)| a == b).count();
            bail!("wrong byte at offset {}", self.offset + at as u64);
        }
        self.hash.update(bytes);
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn finish(self) -> Received {
        let sha256 = self.hash.finalize().into();
        Received {
            bytes: self.offset,
            sha256,
            longest_gap: self.longest_gap,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_depends_on_seed_and_offset_only() {
        let whole = Pattern::new(7).bytes(0, 1000);
        for (from, count) in [(0, 1), (1, 7), (3, 50), (8, 8), (991, 9)] {
            assert_eq!(
                Pattern::new(7).bytes(from as u64, count),
                &whole[from..from + count]
            );
        }
        assert_ne!(Pattern::new(8).bytes(0, 1000), whole);
    }

    #[tokio::test]
    async fn a_sound_stream_passes_and_each_fault_is_found_with_its_offset() {
        let good = Pattern::new(3).bytes(0, 200_000);
        let sound = receive_to_end(&mut &good[..], 3, 200_000).await.unwrap();
        let mut out = Vec::new();
        assert_eq!(send(&mut out, 3, 200_000).await.unwrap(), sound.sha256);
        assert_eq!(out, good);

        let mut flipped = good.clone();
        flipped[131_073] ^= 1;
        let mut doubled = good.clone();
        doubled.splice(70_000..70_000, good[69_990..70_000].iter().copied());
        for (bytes, fault) in [
            (&flipped[..], "wrong byte at offset 131073"),
            (&doubled[..], "wrong byte at offset 70000"),
            (&good[..150_000], "end of stream at offset 150000"),
        ] {
            let mut input = bytes;
            let error = receive_to_end(&mut input, 3, 200_000).await.unwrap_err();
            assert!(format!("{error:#}").contains(fault), "{error:#}");
        }
        let error = receive_to_end(&mut &good[..], 3, 100_000).await.unwrap_err();
        assert!(
            error.to_string().contains("bytes follow offset 100000"),
            "{error:#}"
        );
    }
}
