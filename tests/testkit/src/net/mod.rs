//! Hosts and wires: network namespaces, and links between them whose weather a test makes.

mod host;
mod queue;
mod tun;
mod wire;

pub use host::Host;
pub use wire::{Side, Weather, Wire, WireCounts};

#[cfg(test)]
mod tests;
