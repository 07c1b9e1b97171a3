//! A whole control plane in this process, served over real TLS, with supervisors and node daemons
//! that speak gRPC as the real ones do and judge what they get with `trust`.

#![allow(
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    reason = "tests"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod copies;
mod enrolment;
mod fixture;
mod links;
mod loss;
mod outage;
mod removal;
mod restart;
mod roles;
