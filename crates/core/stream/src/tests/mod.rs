//! The machine against a reference model, in a simulator with its own clock.

mod behaviour;
mod sim;
mod simulated;
