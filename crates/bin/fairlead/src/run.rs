//! Starts one daemon: checked settings, logging, signals, then the plane's own loop.

use crate::cli::daemon::{Run, Worker as WorkerFlags};
use crate::exit::{Exit, Failing, Failure};
use crate::ports::{self, PortError, Protocol};
use crate::settings::{Common, ControlSettings, NodeSettings, SupervisorSettings, WorkerSettings};
use fairlead_control::{Control, ControlFolder, OpenError};
use fairlead_host::member::{self, RuntimeInfo};
use fairlead_host::{Shutdown, SystemClock};
use fairlead_node::NodeError;
use fairlead_supervisor::{SupervisorConfig, SupervisorError, WorkerCommand};
use fairlead_telemetry::{Health, Metrics};
use fairlead_worker::{BindError, WorkerError};
use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Version of this program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// How long a daemon may take to stop before it is ended from within: longer than a worker's
/// grace under its supervisor (8 s), shorter than systemd's 90 s.
const STOP_GRACE: Duration = Duration::from_secs(20);
/// Connections that wait to be accepted, the kernel's own bound (net.core.somaxconn). One that finds
/// no place there is taken for open by its end and unknown to ours, which then cannot close it.
const CONTROL_BACKLOG: u32 = 4096;

/// Why a daemon could not start, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("the async runtime cannot be built")]
    Runtime(#[source] io::Error),
    #[error("signals cannot be watched")]
    Signals(#[source] io::Error),
    #[error("the program's own path is unknown")]
    Program(#[source] io::Error),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error(transparent)]
    Metrics(#[from] fairlead_telemetry::ServeError),
    #[error("the control plane cannot start")]
    ControlOpen(#[source] OpenError),
    #[error("the control plane ended")]
    Control(#[source] fairlead_control::ServeError),
    #[error("the supervisor cannot start")]
    Supervisor(#[source] SupervisorError),
    #[error("the worker ended")]
    Worker(#[source] WorkerError),
    #[error("the node daemon cannot start")]
    Node(#[source] NodeError),
    #[error("the daemon did not stop within {} s and was ended", STOP_GRACE.as_secs())]
    StopTimeout,
}

impl Failing for RunError {
    fn exit(&self) -> Exit {
        match self {
            Self::Port(error) => error.exit(),
            Self::ControlOpen(OpenError::Lock(lock))
            | Self::Supervisor(SupervisorError::Lock(lock))
            | Self::Worker(WorkerError::Locked(lock))
            | Self::Node(NodeError::Lock(lock)) => Exit::of_lock(lock),
            Self::ControlOpen(
                OpenError::Store(fairlead_store::OpenError::OtherBackend { .. }) | OpenError::NotEmpty { .. },
            ) => Exit::Usage,
            Self::Metrics(_)
            | Self::ControlOpen(_)
            | Self::Control(_)
            | Self::Supervisor(_)
            | Self::Worker(_)
            | Self::Node(_) => Exit::of_system(self),
            Self::Runtime(_) | Self::Signals(_) | Self::Program(_) | Self::StopTimeout => Exit::Failed,
        }
    }
}

/// Keeps keys and tokens out of core dumps and from debuggers of the same user: a daemon has its key, the
/// CLI an admin's token, `enrol` a new key and its token. The limit alone would not do: the kernel does
/// not hold a dump that goes to a program against it (core(5)).
pub(crate) fn keep_memory_private() {
    use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    // Neither fails for a process's own sake, and nothing else depends on them.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let _ = setrlimit(Resource::Core, none);
}

/// Runs the daemon until it is told to stop.
pub(crate) fn run(daemon: &Run) -> Result<(), Failure> {
    match daemon {
        Run::Control(flags) => {
            let settings = ControlSettings::check(flags)?;
            let common = settings.common.clone();
            block_on(&common, |cancel| control(settings, cancel))?;
        }
        Run::Supervisor(flags) => {
            let settings = SupervisorSettings::check(flags)?;
            settings.common.check_member("relay")?;
            let config = supervisor_config(&settings)?;
            block_on(&settings.common, |cancel| async {
                fairlead_supervisor::run(config, cancel)
                    .await
                    .map_err(RunError::Supervisor)
            })?;
        }
        Run::Worker(flags) => {
            worker(flags).inspect_err(|failure| {
                if std::env::var_os(fairlead_supervisor::SUPERVISED).is_some() {
                    tell_supervisor(failure.as_error(), io::stdout().lock());
                }
            })?;
        }
        Run::Node(flags) => {
            let settings = NodeSettings::check(flags)?;
            settings.common.check_member("node")?;
            let config = fairlead_node::NodeConfig {
                dir: settings.common.dir.clone(),
                metrics: settings.common.metrics,
                hold: settings.stream_hold,
                memory: settings.stream_memory,
                version: VERSION,
            };
            block_on(&settings.common, |cancel| async {
                fairlead_node::run(config, cancel).await.map_err(RunError::Node)
            })?;
        }
    }
    Ok(())
}

fn worker(flags: &WorkerFlags) -> Result<(), Failure> {
    let settings = WorkerSettings::check(flags)?;
    settings.common.check_member("relay")?;
    let config = fairlead_worker::WorkerConfig {
        dir: settings.common.dir.clone(),
        listen: settings.listen,
        metrics: settings.common.metrics,
        version: VERSION,
    };
    block_on(&settings.common, |cancel| async {
        fairlead_worker::run(config, cancel).await.map_err(worker_error)
    })?;
    Ok(())
}

/// A worker's standard output is its supervisor's: why it ends goes to the control plane from there. Its
/// log has it too.
fn tell_supervisor(error: &(dyn std::error::Error + 'static), mut output: impl io::Write) {
    // A supervisor that is gone needs none.
    let _ = writeln!(output, "{}", fairlead_telemetry::chain(error)).and_then(|()| output.flush());
}

/// A port that is taken is said with who has it, here and beyond this host.
fn worker_error(error: WorkerError) -> RunError {
    match error {
        WorkerError::Bind(BindError::Bind { address, source }) => {
            ports::explain(address, Protocol::Udp, source).into()
        }
        WorkerError::Bind(BindError::BindTcp { address, source }) => {
            ports::explain(address, Protocol::Tcp, source).into()
        }
        error => RunError::Worker(error),
    }
}

/// The same of the address for metrics, whichever daemon was to serve it.
fn metrics_error(error: RunError) -> RunError {
    match error {
        RunError::Metrics(source)
        | RunError::Supervisor(SupervisorError::Metrics { source, .. })
        | RunError::Worker(WorkerError::Metrics(source))
        | RunError::Node(NodeError::Metrics(source)) => {
            let (address, source) = source.into_parts();
            ports::explain(address, Protocol::Tcp, source).into()
        }
        error => error,
    }
}

/// Runs `daemon` with a token that signals and the tie cancel.
fn block_on<F>(common: &Common, daemon: impl FnOnce(CancellationToken) -> F) -> Result<(), RunError>
where
    F: Future<Output = Result<(), RunError>>,
{
    crate::init_log(common.log_format, "info");
    match fairlead_host::descriptors::raise_limit() {
        Ok(limit) => tracing::info!(limit, "descriptors that this process may open"),
        Err(error) => tracing::warn!(%error, "the limit of descriptors stays as it is"),
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(RunError::Runtime)?;
    let result = runtime.block_on(async {
        let shutdown = Shutdown::install().map_err(RunError::Signals)?;
        let cancel = shutdown.token();
        let mut tasks = JoinSet::new();
        if let Some(tie) = common.tie {
            let cancel = cancel.clone();
            tasks.spawn(async move {
                tie.ended().await;
                tracing::info!("the process this daemon is tied to has ended: stopping");
                cancel.cancel();
            });
        }
        let overdue = async {
            cancel.cancelled().await;
            tokio::time::sleep(STOP_GRACE).await;
        };
        // Boxed: the daemons' futures are large, and this thread's stack holds them all.
        let daemon = Box::pin(daemon(cancel.clone()));
        tokio::select! {
            result = daemon => result.map_err(metrics_error),
            () = overdue => Err(RunError::StopTimeout),
        }
    });
    // A blocking task that hangs (a name lookup, say) must not hold the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(CONTROL_BACKLOG)
}

async fn control(settings: ControlSettings, cancel: CancellationToken) -> Result<(), RunError> {
    let listener = bind(settings.listen).map_err(|e| ports::explain(settings.listen, Protocol::Tcp, e))?;
    let metrics = Metrics::new("control");
    let served = match settings.common.metrics {
        Some(address) => Some(
            fairlead_telemetry::serve(
                address,
                metrics.clone(),
                Arc::new(|| Health::Ready),
                cancel.clone(),
            )
            .await?,
        ),
        None => None,
    };
    let config = fairlead_control::ControlSettings {
        dir: settings.common.dir.clone(),
        advertise: settings.advertise,
        lab: settings.lab,
        store: settings.store,
        metrics: Some(metrics),
    };
    let control = Control::open(config, Arc::new(SystemClock::new()))
        .await
        .map_err(RunError::ControlOpen)?;
    let info = RuntimeInfo {
        pid: std::process::id(),
        metrics_url: served.as_ref().map(fairlead_telemetry::Served::url),
        listen: listener.local_addr().ok().map(|a| a.to_string()),
    };
    let folder = ControlFolder::new(settings.common.dir);
    let _announced = member::announce(folder.runtime_path(), info.clone());
    let rest = fairlead_admin::router(control.clone());
    tracing::info!(
        listen = info.listen.as_deref().unwrap_or_default(),
        advertised = %control.advertised(),
        ca_file = %folder.ca_path().display(),
        admin_token_file = %folder.admin_token_path().display(),
        "the control plane serves; log in with these files, on this host or copied to yours"
    );
    fairlead_host::notify_ready();
    let result = fairlead_control::serve(control, rest, listener, cancel)
        .await
        .map_err(RunError::Control);
    if let Some(served) = served {
        served.join().await;
    }
    result
}

fn supervisor_config(settings: &SupervisorSettings) -> Result<SupervisorConfig, RunError> {
    let program = std::env::current_exe().map_err(RunError::Program)?;
    let mut arguments: Vec<OsString> = ["run", "worker", "--dir"].map(OsString::from).into();
    arguments.push(settings.common.dir.clone().into());
    arguments.push("--log-format".into());
    arguments.push(settings.common.log_format.to_string().into());
    if let Some(metrics) = settings.worker_metrics {
        arguments.push("--metrics".into());
        arguments.push(metrics.to_string().into());
    }
    if let Some(tie) = settings.common.tie {
        arguments.push("--until-exit-of".into());
        arguments.push(tie.to_string().into());
    }
    Ok(SupervisorConfig {
        dir: settings.common.dir.clone(),
        worker: WorkerCommand { program, arguments },
        metrics: settings.common.metrics,
        version: VERSION,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Why a worker ends goes to its supervisor with the cause; a supervisor that is gone hears nothing,
    /// and harms nothing.
    #[test]
    fn a_worker_says_why_it_ends() {
        let taken = io::Error::from(io::ErrorKind::AddrInUse);
        let error = RunError::Signals(taken);
        let mut said = Vec::new();
        tell_supervisor(&error, &mut said);
        assert_eq!(said, b"signals cannot be watched: address in use\n");
        let (gone, pipe) = io::pipe().unwrap();
        drop(gone);
        tell_supervisor(&error, pipe);
    }

    /// A worker whose port is taken says who has it, and the exit is that of a conflict.
    #[test]
    fn a_worker_names_who_has_its_port() {
        let holder = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = holder.local_addr().unwrap();
        let source = std::net::UdpSocket::bind(address).unwrap_err();
        let error = worker_error(WorkerError::Bind(BindError::Bind { address, source }));
        assert_eq!(error.exit(), Exit::Conflict);
        let own = format!("(pid {})", std::process::id());
        let text = error.to_string();
        assert!(
            text.contains(&address.to_string()) && text.contains(&own),
            "{text}"
        );
    }
}
