//! The admin's interface: REST with an OpenAPI document, over the control plane's verbs.
//!
//! A request passes, in this order: security headers and deadline, the Host allow-list, the
//! route, the token and its scope, the body's shape with all of its faults, and only then a verb.
//! Every answer is JSON, errors included.

pub mod json;
