//! The admin's interface: REST with an OpenAPI document, over the control plane's verbs, and the
//! console, a page that uses it.
//!
//! A request passes, in this order: security headers and deadline, the Host allow-list, the
//! route, its query's names, the token or session and its scope, the body's shape with all of its
//! faults, and only then a verb. Every answer of the interface is JSON, errors included, except
//! `/v1/events`.

mod access;
mod board;
mod body;
mod console;
mod events;
mod guard;
pub mod json;
mod limit;
mod openapi;
mod origin;
mod query;
mod refused;
mod routes;
mod session;
mod verdict;
mod warning;

#[cfg(test)]
mod tests;

use axum::Router;
use fairlead_control::Control;
use std::sync::Arc;

/// What the handlers share.
#[derive(Debug, Clone)]
struct Admin {
    control: Control,
    access: Arc<access::Access>,
    events: Arc<events::Events>,
}

/// The REST interface of a control plane, to be served on its TLS port.
///
/// Requests are expected to carry `Extension<fairlead_control::PeerAddress>`; those without one
/// share one limit of failed logins.
pub fn router(control: Control) -> Router {
    let hosts = guard::Hosts::new(control.advertised());
    let admin = Admin {
        control,
        access: Arc::default(),
        events: Arc::default(),
    };
    guard::guarded(routes::router(admin), hosts)
}
