//! `show --watch`: virtual servers in the kernel and how busy they are, repeatedly.

use std::collections::{BTreeMap, HashSet};
use std::process::ExitCode;
use std::time::Duration;

use ipvs::VirtualServerKey;
use proxier_core::kernel::KernelPorts;
use proxier_core::modes::select::RequestedMode;
use proxier_core::modes::{Kind, Names};
use proxier_core::net::FrontendKey;
use proxier_core::ports::PortErrorKind;
use proxier_core::service::Desired;
use proxier_core::snapshot::{HostAddresses, Store};
use tokio::time::Instant;

use super::board;
use super::rates::{History, Reading, ServerRates, View};
use super::terminal::Screen;
use super::{ServiceIndex, failed, marks, service_of, services};
use crate::proxier_demo::engine::kernel;
use crate::proxier_demo::engine::signals::Signals;
use crate::proxier_demo::problem::Problem;
use crate::proxier_demo::settings::cli::{Configured, Output};

/// Shortest time before Services are read again, after virtual servers without a name have appeared.
const NAMES_AGAIN: Duration = Duration::from_secs(30);

/// Prints all virtual servers with their rates, busiest first, at each interval, until SIGINT or SIGTERM, or until nobody reads. A terminal shows as
/// many as fit; anything else gets a block, or a JSON object, for each reading.
pub async fn watch(configured: &Configured, output: Output, every: Duration) -> ExitCode {
    if let RequestedMode::Mode(mode) = configured.settings.asked
        && let Some(reason) = lacks_rates(mode)
    {
        return failed(&Problem::new("show --watch", reason));
    }
    let (mut kernel, mut signals) = match (kernel::open(), Signals::listen()) {
        (Ok(kernel), Ok(signals)) => (kernel, signals),
        (Err(problem), _) => return failed(&problem),
        (_, Err(error)) => return failed(&Problem::new("signals", error.to_string())),
    };
    let host = match kernel.ports().links.addresses() {
        Ok(host) => host,
        Err(error) => return failed(&Problem::new("", error.to_string())),
    };
    tokio::select! {
        biased;
        () = signals.end() => ExitCode::SUCCESS,
        ended = refresh(configured, output, every, (&mut kernel, &host)) => match ended {
            WatchEnd::Unread => ExitCode::SUCCESS,
            WatchEnd::Failed(problem) => failed(&problem),
        },
    }
}

/// Reason why the watch ends by itself.
enum WatchEnd {
    /// Standard output has no reader any more.
    Unread,
    Failed(Problem),
}

impl From<std::io::Error> for WatchEnd {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => WatchEnd::Unread,
            _ => WatchEnd::Failed(Problem::new("standard output", error.to_string())),
        }
    }
}

async fn refresh(
    configured: &Configured,
    output: Output,
    every: Duration,
    kernel: (&mut KernelPorts, &HostAddresses),
) -> WatchEnd {
    match refreshes(configured, output, every, kernel).await {
        Ok(never) => match never {},
        Err(ended) => ended,
    }
}

async fn refreshes(
    configured: &Configured,
    output: Output,
    every: Duration,
    (kernel, host): (&mut KernelPorts, &HostAddresses),
) -> Result<std::convert::Infallible, WatchEnd> {
    let mut named = ServiceNames::new(services(configured, host, true).await, marks(configured, kernel));
    let mut ticks = tokio::time::interval(every);
    // A slow reading does not make the next ones come faster.
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (begun, mut history) = (Instant::now(), History::default());
    let screen = match output {
        Output::Text => Some(Screen::enter()?),
        Output::Json => None,
    };
    loop {
        ticks.tick().await;
        let Some(reading) = read(kernel)? else { continue };
        let elapsed = begun.elapsed();
        let view = history.compare(reading, elapsed);
        if named.lack(&view) {
            // The screen shows something else by now, so a source that cannot be read is no longer mentioned.
            named = ServiceNames::new(services(configured, host, false).await, marks(configured, kernel));
            named.accept(&view);
        }
        let names = named.names();
        let service = |key: &VirtualServerKey| service_of(&names, key);
        match &screen {
            Some(screen) => screen.draw(&board::lines(&view, &service, screen.size()))?,
            None => line(&board::json(&view, &service, elapsed.as_secs_f64()))?,
        }
    }
}

/// Counters of all virtual servers. `None`: other programs kept changing the table; the next reading shows it.
fn read(kernel: &mut KernelPorts) -> Result<Option<Vec<Reading>>, WatchEnd> {
    match kernel.ports().ipvs.snapshot() {
        Ok(snapshot) => {
            let reading = snapshot.entries.into_iter().map(|entry| (entry.virtual_server, entry.real_servers));
            Ok(Some(reading.collect()))
        }
        Err(error) if error.kind() == PortErrorKind::Busy => Ok(None),
        Err(error) => Err(WatchEnd::Failed(Problem::new("show --watch", error.to_string()))),
    }
}

/// Prints one JSON object as one line.
fn line(value: &serde_json::Value) -> std::io::Result<()> {
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}")?;
    out.flush()
}

/// The Services as they were read last.
struct ServiceNames {
    store: Store,
    desired: Desired,
    marks: BTreeMap<VirtualServerKey, FrontendKey>,
    since: Instant,
    /// Virtual servers without a name: foreign ones, or the source cannot be read.
    nameless: HashSet<VirtualServerKey>,
}

impl ServiceNames {
    fn new((store, desired): (Store, Desired), marks: BTreeMap<VirtualServerKey, FrontendKey>) -> Self {
        ServiceNames { store, desired, marks, since: Instant::now(), nameless: HashSet::new() }
    }

    fn names(&self) -> ServiceIndex<'_> {
        ServiceIndex { names: Names::new(&self.store, &self.desired), marks: self.marks.clone() }
    }

    /// Whether Services should be read again: a virtual server has come that none of them names.
    fn lack(&self, view: &View) -> bool {
        self.since.elapsed() >= NAMES_AGAIN && self.unnamed(view).any(|key| !self.nameless.contains(&key))
    }

    /// Accepts that virtual servers without a name have none.
    fn accept(&mut self, view: &View) {
        self.nameless = self.unnamed(view).collect();
    }

    fn unnamed<'a>(&'a self, view: &'a View) -> impl Iterator<Item = VirtualServerKey> + 'a {
        let keys = view.servers.iter().map(ServerRates::key);
        let names = self.names();
        keys.filter(move |key| service_of(&names, key).is_none())
    }
}

/// Reason why a mode has nothing to watch, and the command that shows its connections instead. `None`: the mode has rates.
fn lacks_rates(mode: Kind) -> Option<String> {
    let instead = match mode {
        Kind::Ipvs => return None,
        Kind::Nftables => {
            "nftables.countConnections counts connections for show and trace --live; conntrack -L lists them"
        }
        Kind::Iptables => "its rules count the first packets of connections: iptables-save -c -t nat",
        Kind::Userspace => "connections are sockets of the process: ss -tnp lists them",
        _ => "nothing else counts",
    };
    Some(format!("rates are counters of IPVS, and mode {mode} has no virtual servers: {instead}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_modes_say_what_they_lack() {
        assert_eq!(lacks_rates(Kind::Ipvs), None);
        for mode in Kind::ALL.into_iter().filter(|mode| *mode != Kind::Ipvs) {
            assert!(lacks_rates(mode).unwrap().contains(mode.name()), "{mode}");
        }
    }
}
