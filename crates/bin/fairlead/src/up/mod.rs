//! `fairlead up`: a whole pool on one machine, as real processes that enrol in the ordinary way.
//!
//! It plays the service manager: daemons that die are started again. It knows of the pool only
//! what an admin can see: the REST interface, and the runtime files of the daemons. Everything it
//! starts is tied to it, so that the pool ends when it does, however it ends.

mod build;
mod daemon;
mod demo;
mod error;
mod join;
mod layout;
mod plan;
mod pool_file;
mod progress;
mod ready;
mod watch;

use crate::cli::pool::Up;
use crate::exit::Failure;
use build::Builder;
use daemon::Daemons;
use demo::Figures;
use error::UpError;
use fairlead_host::{FolderLock, Shutdown};
use layout::{Addresses, Layout};
use plan::Plan;
use progress::Progress;
use std::time::Instant;

/// Runs the pool until Ctrl-C or SIGTERM.
pub(crate) async fn run(flags: &Up) -> Result<(), Failure> {
    let plan = Plan::check(flags)?;
    Ok(run_plan(&plan).await?)
}

async fn run_plan(plan: &Plan) -> Result<(), UpError> {
    let shutdown = Shutdown::install().map_err(UpError::Signals)?;
    let layout = Layout::new(&plan.dir);
    let existed = plan.dir.exists();
    layout.create()?;
    let _lock = FolderLock::acquire(&plan.dir).map_err(UpError::lock)?;
    let progress = Progress::new();
    progress.say(&format!(
        "fairlead {}: a pool in {}",
        crate::run::VERSION,
        plan.dir.display()
    ));
    pool_file::remove(&layout)?;
    daemon::await_leftovers(&plan.dir, &progress).await;
    let chosen = Addresses::load_or_choose(&layout, plan);
    let free = chosen.and_then(|addresses| addresses.check_free(plan).map(|()| addresses));
    let addresses = free.inspect_err(|_| layout.undo(existed))?;
    layout.rotate_logs()?;

    let began = Instant::now();
    let stop = shutdown.token();
    let mut daemons = Daemons::new(&layout, plan.log_format)?;
    let figures = Figures::default();
    let result = tokio::select! {
        result = serve(plan, &layout, &addresses, &daemons, &progress, began, &figures) => result,
        () = stop.cancelled() => Ok(()),
    };
    if let Some(totals) = figures.totals() {
        progress.say(&totals);
    }
    progress.say("stopping");
    daemons.stop(&layout).await;
    let removed = pool_file::remove(&layout);
    if result.is_ok() {
        progress.say("stopped");
    }
    result.and(removed)
}

async fn serve(
    plan: &Plan,
    layout: &Layout,
    addresses: &Addresses,
    daemons: &Daemons,
    progress: &Progress,
    began: Instant,
    figures: &Figures,
) -> Result<(), UpError> {
    let echo = demo::Echo::start(&layout.demo_socket(), plan.needs_echo())?;
    let builder = Builder {
        plan,
        layout,
        addresses,
        daemons,
        progress,
    };
    // Already served while the pool is built: a person who is fast finds it there.
    let (client, others) = tokio::select! {
        built = builder.build() => built?,
        () = echo.serve() => return Ok(()),
    };
    let watch = watch::Watch {
        layout,
        addresses,
        daemons,
        progress,
        client,
        relays: plan.relay_names(),
    };
    let first = watch.first_file().await?;
    let seconds = began.elapsed().as_secs_f64();
    progress.say(&format!(
        "the pool is ready after {seconds:.1} s; Ctrl-C stops it"
    ));
    builder.banner(&first, &others);
    let relays = plan.relay_names();
    let demo = async {
        match plan.demo {
            true => demo::show(addresses.demo_listen, &relays, layout, progress, figures).await,
            false => std::future::pending().await,
        }
    };
    tokio::select! {
        result = watch.keep(first) => result,
        () = demo => Ok(()),
        () = echo.serve() => Ok(()),
    }
}
