//! Tests of frames, machines and registry.

mod frames;
mod machines;
mod registrations;
