//! Watches this host's addresses, devices and routes, and this proxy's nf_tables tables. If that fails, full passes still
//! find the changes.

use std::error::Error;
use std::os::fd::AsFd;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use proxier_core::kernel::{Monitor, Presence, TableChanges, TableMonitor};
use tokio::sync::mpsc;

use crate::message::Message;

/// Transactions that follow each other within this time are reported together. It is short, because source ranges of
/// IPVS mode are open until the report is handled, if their table was deleted.
const PAUSE: Duration = Duration::from_millis(20);

/// Reports changed addresses, devices and default routes, and our own local routes that were removed. `new_devices`: also
/// new and changed devices, for the fast path and connection synchronisation.
pub(crate) fn watch_host(messages: mpsc::Sender<Message>, new_devices: bool) {
    let opened = Monitor::open();
    follow("host", "changes of addresses are noticed only at full passes", move || {
        let mut monitor = opened?;
        loop {
            wait_for(&monitor)?;
            let came = match monitor.drain() {
                Ok(changes) => {
                    let of_routes = changes.default_routes || changes.bound_routes;
                    let of_devices = changes.devices.values().any(|change| new_devices || *change == Presence::Gone);
                    if !changes.overflowed && !of_routes && changes.addresses.is_empty() && !of_devices {
                        continue;
                    }
                    changes.came.into_iter().collect()
                }
                Err(error) => {
                    tracing::warn!("changes of addresses cannot be read: {error}");
                    // Do not spin if the error persists.
                    thread::sleep(Duration::from_secs(1));
                    Vec::new()
                }
            };
            if messages.blocking_send(Message::HostChanged(came)).is_err() {
                return Ok(());
            }
        }
    });
}

/// Reports writes to the tables of this name, once the returned sender is dropped. While something listens, the kernel
/// makes a message of each element, which doubles the time of a large first pass.
pub(crate) fn watch_tables(table: String, messages: mpsc::Sender<Message>) -> Sender<()> {
    let (compared, begin) = channel();
    let late = format!("cannot monitor table {table}, so changes by other programs are noticed only at full passes");
    follow("tables", &late, move || {
        let _gone = begin.recv();
        let mut monitor = TableMonitor::open(&table)?;
        // Earlier writes are known by their generation.
        let mut changes = TableChanges::default();
        changes.lost = true;
        loop {
            if !changes.is_empty() {
                if messages.blocking_send(Message::TablesChanged(changes)).is_err() {
                    return Ok(());
                }
                thread::sleep(PAUSE);
            }
            wait_for(&monitor)?;
            changes = monitor.drain()?;
        }
    });
    compared
}

/// Does this on its own thread. Its failure is logged: `late` says when changes are noticed then.
fn follow(name: &str, late: &str, work: impl FnOnce() -> Result<(), Box<dyn Error>> + Send + 'static) {
    let of_thread = late.to_owned();
    let work = move || work().unwrap_or_else(|error| tracing::warn!("{of_thread}: {error}"));
    if let Err(error) = thread::Builder::new().name(name.to_owned()).spawn(work) {
        tracing::warn!("{late}: {error}");
    }
}

fn wait_for(of: &impl AsFd) -> nix::Result<()> {
    match poll(&mut [PollFd::new(of.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error),
    }
}
