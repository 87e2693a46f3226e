//! Userspace mode: what it needs from this process, and how it ends.

use std::io;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use proxier_core::kernel::{KernelOptions, KernelPorts};
use proxier_core::net::{Family, FrontendKey, Protocol};
use proxier_core::ports::{Listener, PortError, PortErrorKind, RouteOwner};
use tokio::sync::{mpsc, oneshot};

use crate::engine::lock::Lock;
use crate::engine::sockets;
use crate::message::Message;
use crate::problem::Problem;
use crate::settings::Settings;

/// Raises this process's limit of open files: two per connection, and one per health-check port and family. Returns
/// the limit.
pub(crate) fn raise_open_files() -> u64 {
    let Ok((now, most)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    match setrlimit(Resource::RLIMIT_NOFILE, most, most) {
        Ok(()) => most,
        Err(_) => now,
    }
}

/// Tells the kernel ports on which sockets the running proxy listens, if one runs.
pub(crate) fn read_running_sockets(kernel: &mut KernelPorts) -> Result<(), Problem> {
    let unknown =
        |error| Problem::new("", format!("the process that runs here cannot be found ({error}); ask as root"));
    let Some(process) = Lock::holder().map_err(unknown)? else { return Ok(()) };
    match sockets::listened_on(process) {
        Ok(listening) => kernel.set_elsewhere(listening),
        // The process has ended.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            let reason = format!("its sockets cannot be read ({error}); ask as root");
            return Err(Problem::new(format!("process {process}"), reason));
        }
    }
    Ok(())
}

/// Results of trying the mode's requirements, by family.
type Attempts = Vec<(Family, Result<(), PortError>)>;

/// The lowest TCP port: if the process may listen on it, it may listen on all.
const LOWEST_PORT: u16 = 1;

/// Whether this process can listen, including on ports below 1024, and make addresses local, by family.
pub(crate) fn attempt(settings: &Settings, kernel: &mut KernelPorts) -> Result<Attempts, PortError> {
    kernel.ports().routes.networks(RouteOwner::Userspace)?;
    let mut trial = KernelPorts::open(&KernelOptions::default())?;
    let relays = trial.ports().relays;
    let try_family = |family: Family| {
        let key = FrontendKey::new(Protocol::Tcp, family.localhost(), LOWEST_PORT);
        let outcome = relays.serve(&Listener::new(key, "trial"));
        relays.close(&key);
        match outcome {
            // Another program has the port, so its family exists; the kernel checks capabilities first.
            Err(error) if error.kind() == PortErrorKind::AlreadyExists => (family, Ok(())),
            outcome => (family, outcome),
        }
    };
    Ok(settings.core.families.iter().map(try_family).collect())
}

/// Stops listening, and lets connections finish for a while, or until `hurry`.
pub(crate) async fn finish(messages: &mpsc::Sender<Message>, patience: Duration, hurry: impl Future<Output = ()>) {
    let (done, left) = oneshot::channel();
    tracing::info!("ending: connections have {} s to finish", patience.as_secs_f64());
    if messages.send(Message::Finish(patience, done)).await.is_err() {
        return;
    }
    tokio::select! {
        left = left => match left {
            Ok(0) => tracing::info!("all connections have ended; routes stay"),
            Ok(left) => tracing::warn!("{left} connections are cut; routes stay"),
            Err(_gone) => tracing::error!("the kernel's thread has ended"),
        },
        () = hurry => tracing::warn!("a second signal: open connections are cut"),
    }
}
