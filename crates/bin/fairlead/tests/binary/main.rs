//! The binary, run as a person runs it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod enrol;
mod pool;
mod reference;
mod worker;
