//! Tests of frames, machines and registry.

mod frames;
mod liveness;
mod machines;
mod registrations;
