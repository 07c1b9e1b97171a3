//! REST over the control plane.

pub mod json;
