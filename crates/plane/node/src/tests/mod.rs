//! Two node daemons and a real worker in one process, with policies signed by the test and no
//! control plane at all (R-GEN-04).

pub(crate) mod authority;
mod copies;
mod endings;
mod hostile;
mod liveness;
mod lives;
mod many;
mod memory;
mod moves;
mod pool;
mod recovery;
mod refusals;
mod starved;
mod traffic;
mod wire;
