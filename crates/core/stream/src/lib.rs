//! Resumable streams and their sealed records: end to end between two node daemons, over legs that
//! come and go (ARCHITECTURE.md, Streams).
//!
//! [`Stream`] is a pure machine. It is given application bytes, leg bytes and the time; it gives
//! back application bytes, sealed leg bytes, events and the next time it wants to be called. It has
//! no socket, no clock and no randomness: the caller brings salts. A relay between two such machines
//! sees ciphertext and sizes only (R-STR-06).
//!
//! - [`StreamSecret`] derives the keys of each leg and direction; [`record`] seals and opens by the
//!   record rules of TLS 1.3; [`frame`] is what stands inside a record.
//! - Sent bytes are kept as plaintext by offset until the far daemon acknowledged them, and sealed
//!   anew on the next leg, so no nonce can repeat.
//! - Invariants I1 to I10 of ARCHITECTURE.md, Streams, are asserted where they hold, and checked after
//!   every event by the simulator in `tests/sim`.

mod attach;
mod budget;
mod config;
mod event;
pub mod frame;
mod leg;
mod number;
pub mod record;
mod recv;
mod rtt;
mod secret;
mod send;
mod stream;
mod window;

pub use budget::{Budget, STREAM_FLOOR, Share};
pub use config::Config;
pub use event::{End, Event, LegFault, OpenLegError, ResetCode};
pub use frame::{GRANT_BYTES_MAX, SALT_BYTES};
pub use leg::{AttachKind, LegName, LegPath};
pub use number::NumberWindow;
pub use secret::{Direction, StreamSecret};
pub use stream::{GrantTooLong, Progress, Stream, TRANSMIT_BATCH};
pub use window::INITIAL_WINDOW;

#[cfg(test)]
mod tests;
