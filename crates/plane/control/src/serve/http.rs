//! The bounds of HTTP on the port: one place for every limit that hyper and h2 would choose for us.
//!
//! Which version a connection speaks is agreed in its TLS handshake, so nobody waits for first bytes
//! that tell it.

use hyper_util::rt::{TokioExecutor, TokioTimer};
use hyper_util::server::conn::auto;
use std::time::Duration;

/// Serves one connection.
pub(super) type Server = auto::Builder<TokioExecutor>;

/// How long the head of an HTTP/1.1 request may take, idle time between two requests included.
const HEAD_WAIT_MAX: Duration = Duration::from_secs(30);
/// Headers of one HTTP/1.1 request: browsers send some 20.
const HEADERS_MAX: usize = 64;
/// Head of an HTTP/1.1 request, and what is buffered of its answer.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// HTTP/2 keepalive: a host that vanished is seen after 15 s.
const PING_EVERY: Duration = Duration::from_secs(5);
const PING_WAIT_MAX: Duration = Duration::from_secs(10);
/// Streams of one HTTP/2 connection: a session and a renewal need two, a browser's page some 20.
const STREAMS_MAX: u32 = 64;
/// Decoded headers of one request, which also bounds CONTINUATION frames: beyond it the stream is
/// refused, and far beyond it the connection.
const HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// Streams that the peer has reset before they were taken up (CVE-2023-44487): one more ends the
/// connection.
const RESET_BEFORE_TAKEN_MAX: usize = 20;
/// Streams that were reset here for a fault of the peer: one more ends the connection.
const RESET_FOR_FAULTS_MAX: usize = 64;
/// Bytes that one stream, and all of a connection, may send before somebody reads them. The greatest
/// body of REST is 64 KiB.
const REST_STREAM_WINDOW: u32 = 64 * 1024;
const REST_WINDOW: u32 = 128 * 1024;
/// The same for members: a status is at most 1 MiB.
const MEMBER_STREAM_WINDOW: u32 = 256 * 1024;
const MEMBER_WINDOW: u32 = 512 * 1024;
/// Frames of HTTP/2, the protocol's least.
const FRAME_BYTES_MAX: u32 = 16 * 1024;
/// Bytes of one answer that wait for the peer.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// gRPC of members.
pub(super) fn member_server() -> Server {
    let mut server = auto::Builder::new(TokioExecutor::new()).http2_only();
    bound_h2(&mut server, MEMBER_STREAM_WINDOW, MEMBER_WINDOW);
    server
}

/// REST of anyone.
pub(super) fn rest_server(is_h2: bool) -> Server {
    let server = auto::Builder::new(TokioExecutor::new());
    if is_h2 {
        let mut server = server.http2_only();
        bound_h2(&mut server, REST_STREAM_WINDOW, REST_WINDOW);
        return server;
    }
    let mut server = server.http1_only();
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT_MAX)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    server
}

fn bound_h2(server: &mut Server, stream_window: u32, window: u32) {
    server
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_WAIT_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_LIST_BYTES_MAX)
        .max_pending_accept_reset_streams(RESET_BEFORE_TAKEN_MAX)
        .max_local_error_reset_streams(RESET_FOR_FAULTS_MAX)
        .initial_stream_window_size(stream_window)
        .initial_connection_window_size(window)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buf_size(SEND_BUFFER_BYTES);
}
