//! `show --watch`: virtual servers in the kernel, or Frontends of the other modes, and how busy they are, repeatedly.

use std::collections::HashSet;
use std::process::ExitCode;
use std::time::Duration;

use ipvs::VirtualServerKey;
use proxier_core::kernel::KernelPorts;
use proxier_core::ports::PortErrorKind;
use proxier_core::snapshot::HostAddresses;
use tokio::time::Instant;

use super::frontends::{FrontendView, Frontends};
use super::rates::History;
use super::terminal::{Screen, write};
use super::{Picture, Services};
use crate::engine::kernel;
use crate::engine::signals::EndSignals;
use crate::output::Output;
use crate::problem::{Problem, Stopped};
use crate::settings::cli::Configured;

/// Shortest time until Services are read again after virtual servers without a name have appeared.
const NAMES_AGAIN: Duration = Duration::from_secs(30);

/// Prints all virtual servers or Frontends with their rates, busiest first, at each interval, until SIGINT or SIGTERM,
/// or until standard output is closed. A terminal shows as many as fit. Other outputs get a block, or a JSON object,
/// per read.
pub async fn watch(configured: &Configured, every: Duration) -> Result<ExitCode, Stopped> {
    let mut kernel = kernel::open()?;
    // Not SIGHUP: without its terminal, this ends as other programs do.
    let mut signals = EndSignals::listen().map_err(|error| Problem::new("signals", error.to_string()))?;
    let host = kernel.ports().links.addresses()?;
    tokio::select! {
        biased;
        () = signals.asked() => Ok(ExitCode::SUCCESS),
        ended = refresh(configured, every, &mut kernel, &host) => match ended {
            Ok(never) => match never {},
            Err(None) => Ok(ExitCode::SUCCESS),
            Err(Some(problem)) => Err(problem.into()),
        },
    }
}

/// The problem of standard output, unless it merely has no reader any more.
#[expect(clippy::needless_pass_by_value, reason = "the form of `map_err`")]
fn not_written(error: std::io::Error) -> Option<Problem> {
    let is_unread = error.kind() == std::io::ErrorKind::BrokenPipe;
    (!is_unread).then(|| Problem::new("standard output", error.to_string()))
}

/// Ends with a problem, or when standard output has no reader any more.
async fn refresh(
    configured: &Configured,
    every: Duration,
    kernel: &mut KernelPorts,
    host: &HostAddresses,
) -> Result<std::convert::Infallible, Option<Problem>> {
    let mut services = Services::read(configured, (kernel, host), true).await;
    // Virtual servers without a name belong to another program, or the source cannot be read.
    let (mut since, mut nameless) = (Instant::now(), HashSet::new());
    let mut ticks = tokio::time::interval(every);
    // A slow read does not make the next ones come faster.
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let begun = Instant::now();
    // The mode that serves now. If it changes, `run` is restarted, and so must this be.
    let other = Frontends::read(configured, kernel, (&services.desired, host))?;
    let (mode, mut history) = (other.map(|other| other.mode), History::default());
    let screen = match configured.output {
        Output::Text => Some(Screen::enter().await.map_err(not_written)?),
        Output::Json => None,
    };
    loop {
        ticks.tick().await;
        let at = begun.elapsed();
        let picture: Box<dyn Picture> = if let Some(mode) = mode {
            let read = Frontends::of_mode(mode, configured, kernel, (&services.desired, host))?;
            Box::new(FrontendView::new(read, &mut history, at))
        } else {
            match kernel.ports().ipvs.snapshot() {
                Ok(snapshot) => {
                    let entries = snapshot.entries.into_iter();
                    let reading = entries.map(|entry| (entry.virtual_server, entry.real_servers)).collect();
                    Box::new(history.compare(reading, at))
                }
                // Other programs kept changing the table; the next read shows it.
                Err(error) if error.kind() == PortErrorKind::Busy => continue,
                Err(error) => return Err(Some(Problem::new("show --watch", error.to_string()))),
            }
        };
        let unnamed = |services: &Services| -> HashSet<_> {
            picture.keys().into_iter().filter(|key| services.name(key).is_none()).collect()
        };
        if since.elapsed() >= NAMES_AGAIN && !unnamed(&services).is_subset(&nameless) {
            // The screen shows something else by now, so an unreadable source is not reported again.
            services = Services::read(configured, (kernel, host), false).await;
            (since, nameless) = (Instant::now(), unnamed(&services));
        }
        let name = |key: &VirtualServerKey| services.name(key);
        if let Some(screen) = &screen {
            screen.draw(&picture.lines(&name, screen.size())).await.map_err(not_written)?;
        } else {
            let mut value = picture.json(&name);
            value["elapsedSeconds"] = at.as_secs_f64().into();
            write(format!("{value}\n")).await.map_err(not_written)?;
        }
    }
}
