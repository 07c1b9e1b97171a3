//! The service that everything is measured against: it echoes, or moves bytes each way and counts.
//!
//! A connection starts with one command byte. `E`: echo until EOF. `S` and a big-endian `u32` of
//! milliseconds: send for that long, read until EOF, then send the count of what was read (`u64`) and
//! close.

use anyhow::Result;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of one read or write: what a database or a copy tool uses at most.
pub(super) const CHUNK_BYTES: usize = 128 * 1024;
/// Stack of a connection's thread; it holds no large array.
const STACK_BYTES: usize = 64 * 1024;

/// Starts the service on a free port; it runs until the process ends.
pub(super) fn start() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            // A connection that fails shows at the load generator, which counts.
            let serve = move || drop(serve(socket));
            let started = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(serve);
            if let Err(error) = started {
                eprintln!("bench: the service has no thread for a connection: {error}");
            }
        }
    });
    Ok(address)
}

fn serve(mut socket: TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let mut command = [0];
    socket.read_exact(&mut command)?;
    if &command == b"E" {
        return echo(&mut socket);
    }
    let mut milliseconds = [0; 4];
    socket.read_exact(&mut milliseconds)?;
    let time = Duration::from_millis(u32::from_be_bytes(milliseconds).into());
    let mut writing = socket.try_clone()?;
    let sender = std::thread::spawn(move || send_for(&mut writing, time));
    let count = read_to_end(&mut socket)?;
    sender.join().map_err(|_| std::io::ErrorKind::Other)??;
    socket.write_all(&count.to_be_bytes())
}

fn echo(socket: &mut TcpStream) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match socket.read(&mut buffer)? {
            0 => return Ok(()),
            n => socket.write_all(buffer.get(..n).unwrap_or_default())?,
        }
    }
}

/// Writes for `time`.
pub(super) fn send_for(socket: &mut TcpStream, time: Duration) -> std::io::Result<()> {
    let chunk = vec![0x5a; CHUNK_BYTES];
    let end = Instant::now() + time;
    while Instant::now() < end {
        socket.write_all(&chunk)?;
    }
    Ok(())
}

/// Reads until EOF and counts.
pub(super) fn read_to_end(socket: &mut TcpStream) -> std::io::Result<u64> {
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut count = 0;
    loop {
        match socket.read(&mut buffer)? {
            0 => return Ok(count),
            n => count += n as u64,
        }
    }
}
