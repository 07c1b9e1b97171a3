//! A real worker on 127.0.0.1 between QUIC nodes of the tests' own.

mod admission;
mod control_stream;
mod lifecycle;
mod liveness;
mod memory;
pub(crate) mod pool;
mod tunnels;
