//! `fairlead doctor`: everything about a pool, a member or a link in one place, measured anew
//! (R-UI-04).
//!
//! Each check is one line: ok, a warning, failed, or not measured, with what to do. What the control
//! plane was told by members is held against what is measured for the occasion: the relay's port
//! from this machine, and a new hop session with new tunnels by the link's consumer.

mod local;
mod pool;
mod port;
mod report;

use crate::cli::verbs::Doctor;
use crate::exit::{Exit, Failure};

/// What a relay whose TCP port does not answer costs: only liveness connections go there.
const TCP_SHUT: &str =
    "tunnels go over UDP and work without it; nodes notice a dead relay later. Open the port for TCP too";

/// Runs the checks, prints them, and says by the exit how they went.
pub(crate) async fn run(flags: &Doctor) -> Result<Exit, Failure> {
    let report = match &flags.dir {
        Some(dir) => local::check(dir).await,
        None => pool::check(flags).await?,
    };
    report.print(flags.connection.json);
    Ok(report.exit())
}
