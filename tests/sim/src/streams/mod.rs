//! Pairs of streams over legs through relays.

mod application;
mod check;
mod daemon;
mod end;
mod faults;
mod legs;
mod plan;
mod world;

use crate::Transcript;

/// Runs the world of `seed` to its end.
///
/// # Panics
/// An invariant does not hold, or a stream that nothing has ended does not come to its end.
pub fn run(seed: u64, transcript: &mut Transcript) {
    world::World::new(seed, transcript).run();
}
