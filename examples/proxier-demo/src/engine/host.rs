//! Watches the host's addresses, devices, default routes and local routes.

use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use proxier_core::kernel::{Change, Changes, Monitor};
use tokio::sync::mpsc;

use crate::message::{Control, Message};

/// Reports changed addresses, devices and default routes, and our own local routes that were removed. If it fails, full
/// passes still find the changes. `new_devices`: also new and changed devices, for the fast path and connection
/// synchronisation.
pub(crate) fn watch(messages: mpsc::Sender<Message>, new_devices: bool) {
    let mut monitor = match Monitor::open() {
        Ok(monitor) => monitor,
        Err(error) => {
            tracing::warn!("changes of addresses are noticed only at full passes: {error}");
            return;
        }
    };
    let work = move || loop {
        let mut ready = [PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                tracing::warn!("changes of addresses are noticed only at full passes: {error}");
                return;
            }
        }
        let mut came = Vec::new();
        let relevant = match monitor.drain() {
            Ok(changes) => {
                let of_routes = changes.default_routes || changes.bound_routes;
                let of_devices = gone(&changes) || new_devices && !changes.devices.is_empty();
                let relevant = changes.overflowed || of_routes || !changes.addresses.is_empty() || of_devices;
                came.extend(changes.came);
                relevant
            }
            Err(error) => {
                tracing::warn!("changes of addresses cannot be read: {error}");
                // Do not spin if the error persists.
                std::thread::sleep(Duration::from_secs(1));
                true
            }
        };
        if relevant && messages.blocking_send(Message::Control(Control::HostChanged(came))).is_err() {
            return;
        }
    };
    if let Err(error) = std::thread::Builder::new().name("host".to_owned()).spawn(work) {
        tracing::warn!("changes of addresses are noticed only at full passes: {error}");
    }
}

fn gone(changes: &Changes) -> bool {
    changes.devices.values().any(|change| *change == Change::Gone)
}
