//! Waits for a ClientHello in the kernel.

use rustix::io::ioctl_fionread;
use rustix::net::{RecvFlags, recv};
use std::io;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// A TLS record's type and length stand in its first bytes.
const RECORD_HEAD_LEN: usize = 5;
/// The type of a record that carries a handshake.
const HANDSHAKE: u8 = 22;
/// A ClientHello with X25519MLKEM768 is some 1,400 bytes; the TLS session takes a longer one as it comes.
const RECORD_LEN_MAX: u64 = 4 * 1024;

/// Waits until the first record has come whole, or can be none of a handshake, and leaves it in the
/// kernel: who says nothing, or too little, costs this process no TLS session. Cancel-safe.
///
/// # Errors
/// The peer closed before it had said as much, or the connection failed.
pub(super) async fn first_record(tcp: &TcpStream) -> io::Result<()> {
    loop {
        let is_closed = tcp.ready(Interest::READABLE).await?.is_read_closed();
        // Too little counts as nothing: the next byte that comes wakes this end again.
        match tcp.try_io(Interest::READABLE, || whole(tcp, is_closed)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            ended => return ended,
        }
    }
}

fn whole(tcp: &TcpStream, is_closed: bool) -> io::Result<()> {
    let mut head = [0; RECORD_HEAD_LEN];
    let peeked = recv(tcp, head.as_mut_slice(), RecvFlags::PEEK | RecvFlags::DONTWAIT)?.0;
    let [kind, _, _, high, low] = head;
    if peeked == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let is_whole = peeked == RECORD_HEAD_LEN && {
        let length = u64::from(u16::from_be_bytes([high, low]));
        length > RECORD_LEN_MAX || ioctl_fionread(tcp)? >= length + RECORD_HEAD_LEN as u64
    };
    if kind != HANDSHAKE || is_whole {
        Ok(())
    } else if is_closed {
        Err(io::ErrorKind::UnexpectedEof.into())
    } else {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    /// Both ends of a fresh connection.
    async fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        far.set_nodelay(true).unwrap();
        (listener.accept().await.unwrap().0, far)
    }

    /// How many bytes of `said`, one after the other, are enough.
    async fn enough(said: &[u8]) -> Option<usize> {
        let (near, mut far) = connected().await;
        for (n, byte) in (1..).zip(said) {
            far.write_all(&[*byte]).await.unwrap();
            while ioctl_fionread(&near).unwrap() < n {
                tokio::task::yield_now().await;
            }
            match whole(&near, false) {
                Ok(()) => {
                    assert_eq!(ioctl_fionread(&near).unwrap(), n, "something was taken");
                    return usize::try_from(n).ok();
                }
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
            }
        }
        None
    }

    /// F-10: a whole record is enough, all but one byte of it is not; what is no handshake, or too long,
    /// is judged by the TLS session at once.
    #[tokio::test]
    async fn a_record_is_waited_for_whole() {
        let record = [&[HANDSHAKE, 3, 1, 0, 9][..], &[7; 9]].concat();
        assert_eq!(enough(&record).await, Some(record.len()));
        assert_eq!(enough(&record[..record.len() - 1]).await, None);
        assert_eq!(enough(b"GET").await, Some(1));
        assert_eq!(
            enough(&[HANDSHAKE, 3, 1, 0xff, 0xff, 0]).await,
            Some(RECORD_HEAD_LEN)
        );
    }

    /// Each part that comes wakes the wait, and the last one ends it.
    #[tokio::test]
    async fn a_record_in_parts_is_noticed() {
        let (near, mut far) = connected().await;
        let parts = async {
            for part in [&[HANDSHAKE][..], &[3, 1, 0], &[4, 7, 7], &[7, 7]] {
                far.write_all(part).await.unwrap();
                // On its way before the next one: the wait has seen too little each time.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let wait = timeout(Duration::from_secs(5), first_record(&near));
        tokio::join!(parts, wait).1.unwrap().unwrap();
    }

    /// A peer that leaves in the middle is seen to have left, and so is one that said nothing.
    #[tokio::test]
    async fn a_peer_that_leaves_is_not_waited_for() {
        for said in [&[][..], &[HANDSHAKE], &[HANDSHAKE, 3, 1, 0, 9, 7]] {
            let (near, mut far) = connected().await;
            far.write_all(said).await.unwrap();
            drop(far);
            let ended = timeout(Duration::from_secs(5), first_record(&near))
                .await
                .unwrap();
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
