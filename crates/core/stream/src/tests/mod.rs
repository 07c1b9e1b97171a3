//! The machine's behaviours one by one, with two ends in a small world of their own, and a model of the
//! attach; `tests/sim` drives the machine under everything at once.

mod attaches;
mod behaviour;
mod budget;
mod model;
mod sim;
