//! The fault kit: everything that end-to-end tests and benchmarks need to run the real binary, to
//! hurt it and to measure what it did.
//!
//! - [`Pool`] starts `fairlead up` and drives it through `pool.json`, the REST interface and the CLI;
//! - [`process`] kills, stops, limits and reads processes; [`memory`] searches their memory;
//! - [`verified`] makes and checks byte streams of which every offset is known;
//! - [`Target`] is a server that answers, half-closes, resets, sleeps or never accepts;
//! - [`attack`] opens thousands of connections from as many addresses and sends what no peer should;
//! - [`Postgres`] is a PostgreSQL server of its own, for one test;
//! - [`Browser`] is a real browser;
//! - [`Host`] is a host in a network namespace of its own, [`Wire`] joins two of them with delay,
//!   jitter, loss, rate and cuts;
//! - [`Estate`] is a pool whose every member is on such a host; [`Ends`] and [`PingPong`] hold both
//!   ends of a stream.
//!
//! Cleaning up never depends on a destructor: what outlives a thread (processes, folders) is held by
//! a [`Warden`], which acts when the test's process is gone, however it went; namespaces end with
//! the process that holds them, which ends when its standard input closes.

pub mod attack;
pub mod binary;
pub mod browser;
pub mod cgroup;
pub mod ends;
pub mod estate;
pub mod memory;
pub mod metrics;
pub mod net;
pub mod openmetrics;
pub mod ping_pong;
pub mod pool;
pub mod postgres;
pub mod process;
pub mod target;
pub mod verified;
pub mod wait;
pub mod warden;

pub use browser::Browser;
pub use ends::Ends;
pub use estate::Estate;
pub use net::{Host, Weather, Wire};
pub use ping_pong::PingPong;
pub use pool::{Answer, Pool, PoolBuilder, PoolFile, Rest, Role};
pub use postgres::{Postgres, Workload};
pub use target::Target;
pub use warden::Warden;
