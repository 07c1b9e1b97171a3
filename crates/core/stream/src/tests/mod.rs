//! The machine's behaviours one by one, with two ends in a small world of their own; `tests/sim`
//! drives it under everything at once.

mod behaviour;
mod sim;
