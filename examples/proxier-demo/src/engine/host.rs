//! Watches the host's addresses, devices, default routes and local routes.

use std::fmt::Display;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use proxier_core::kernel::{Monitor, Presence};
use tokio::sync::mpsc;

use crate::message::Message;

/// Reports changed addresses, devices and default routes, and our own local routes that were removed. If it fails, full
/// passes still find the changes. `new_devices`: also new and changed devices, for the fast path and connection
/// synchronisation.
pub(crate) fn watch(messages: mpsc::Sender<Message>, new_devices: bool) {
    let mut monitor = match Monitor::open() {
        Ok(monitor) => monitor,
        Err(error) => return late(&error),
    };
    let work = move || loop {
        if let Err(error) = wait_for(&monitor) {
            return late(&error);
        }
        let mut came = Vec::new();
        let relevant = match monitor.drain() {
            Ok(changes) => {
                let of_routes = changes.default_routes || changes.bound_routes;
                let of_devices = changes.devices.values().any(|change| new_devices || *change == Presence::Gone);
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
        if relevant && messages.blocking_send(Message::HostChanged(came)).is_err() {
            return;
        }
    };
    if let Err(error) = std::thread::Builder::new().name("host".to_owned()).spawn(work) {
        late(&error);
    }
}

fn late(error: &dyn Display) {
    tracing::warn!("changes of addresses are noticed only at full passes: {error}");
}

pub(super) fn wait_for(of: &impl AsFd) -> nix::Result<()> {
    match poll(&mut [PollFd::new(of.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error),
    }
}
