//! A real worker on 127.0.0.1 between QUIC nodes of the tests' own.

mod admission;
mod lifecycle;
mod liveness;
mod pool;
mod tunnels;
