//! A whole control plane in this process, served over real TLS, with supervisors and node daemons
//! that speak gRPC as the real ones do and judge what they get with `trust`.

#![allow(missing_docs, reason = "tests")]

mod enrolment;
mod fixture;
mod links;
mod outage;
mod restart;
mod roles;
