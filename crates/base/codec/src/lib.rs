//! Bounded readers and writers for frames.
//!
//! One value has one encoding: integers are big-endian and fixed in width, lengths are minimal
//! varints, booleans are 0 or 1. Every variable part is read with the most its caller allows, so a
//! frame can never ask for more memory than its own bytes. Nothing here panics, whatever the input.

mod read;
mod write;

pub use read::{ReadError, Reader};
pub use write::{WriteError, Writer, varint_len};

/// Most bytes of a varint: ten groups of seven bits hold 64 bits.
const VARINT_BYTES_MAX: usize = 10;

#[cfg(test)]
mod tests;
