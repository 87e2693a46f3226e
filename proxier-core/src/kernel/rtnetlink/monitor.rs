//! Reports changes of devices, addresses and default routes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use netlink_batch::{Connection, ErrorKind, Listener, Protocol, WireError};

use super::address::{self, RTM_DELADDR, RTM_NEWADDR};
use super::link::{self, Link, RTM_DELLINK, RTM_NEWLINK};
use super::open;
use super::route::{self, RTM_DELROUTE, RTM_NEWROUTE};
use crate::kernel::error::netlink;
use crate::pack::Gather as _;
use crate::ports::{Result, RouteOwner};

/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_IFADDR`, `RTNLGRP_IPV6_ROUTE`
/// (linux/rtnetlink.h).
const GROUPS: [u32; 5] = [1, 5, 7, 9, 11];
/// Room for several thousand unread changes.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Most datagrams in one call, so that it ends even in a flood of them.
const AT_ONCE: usize = 100_000;

/// How a device or address changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Presence {
    /// The device or address exists: it is new or, for a device, changed.
    Present,
    /// The device or address was removed.
    Gone,
}

/// Changes since the last call. Only the last change of each object is kept.
///
/// Includes changes by this process.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Changes {
    /// The kernel dropped some changes. Assume that everything changed.
    pub overflowed: bool,
    /// Devices by name.
    pub devices: BTreeMap<String, Presence>,
    /// A default route was added, changed or removed.
    pub default_routes: bool,
    /// A local route with which IPVS or userspace mode makes addresses local was removed ([`RouteOwner`]).
    pub bound_routes: bool,
    /// Addresses by the name of their device.
    pub addresses: BTreeMap<String, BTreeMap<IpAddr, Presence>>,
    /// Addresses that a device had at some time since the last call, even if they were removed again.
    pub came: BTreeSet<IpAddr>,
}

impl Changes {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        let Changes { overflowed, default_routes, bound_routes, devices, addresses, came: _ } = self;
        !overflowed && !default_routes && !bound_routes && devices.is_empty() && addresses.is_empty()
    }
}

/// Listens for changes of devices, addresses and default routes of both families in one network namespace.
///
/// Open it before you read the addresses, to miss nothing. Wait until its descriptor is readable, then call
/// [`drain`](Monitor::drain).
#[derive(Debug)]
pub struct Monitor {
    listener: Listener,
    connection: Connection,
    /// Names by index: messages about addresses only contain the index.
    names: BTreeMap<u32, String>,
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl AsRawFd for Monitor {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Monitor {
    /// Starts to listen in the calling thread's network namespace. Needs no privilege.
    ///
    /// # Errors
    /// If the kernel refuses the socket, or the devices could not be read.
    pub fn open() -> Result<Self> {
        let failed = |error| netlink(&error, "listening for changes of addresses").0;
        let mut listener = Listener::open(Protocol::Route, &GROUPS).map_err(failed)?;
        // A smaller buffer loses changes, and reports that.
        listener.set_receive_buffer(RECEIVE_BUFFER).map_err(failed)?;
        let mut monitor = Monitor { listener, connection: open().map_err(failed)?, names: BTreeMap::new() };
        monitor.learn_names()?;
        Ok(monitor)
    }

    fn learn_names(&mut self) -> Result<()> {
        let links = link::list(&mut self.connection).map_err(|error| netlink(&error, "listing devices").0)?;
        self.names = links.into_iter().map(|link| (link.index, link.name)).gather();
        Ok(())
    }

    /// Returns the changes so far, without waiting.
    ///
    /// # Errors
    /// If the socket failed: open another one, and assume that everything changed.
    pub fn drain(&mut self) -> Result<Changes> {
        let mut changes = Changes::default();
        for _ in 0..AT_ONCE {
            let names = &mut self.names;
            let heard = self.listener.wait(Duration::ZERO, |kind, payload| note(kind, payload, names, &mut changes));
            match heard {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) if matches!(error.kind(), ErrorKind::StateUnknown | ErrorKind::Malformed(_)) => {
                    changes.overflowed = true;
                    self.learn_names()?;
                }
                Err(error) => return Err(netlink(&error, "hearing of changes of addresses").0),
            }
        }
        Ok(changes)
    }
}

/// Adds what one message reports to the changes and to the devices' names.
fn note(kind: u16, payload: &[u8], names: &mut BTreeMap<u32, String>, changes: &mut Changes) -> Result<(), WireError> {
    match kind {
        RTM_NEWLINK | RTM_DELLINK => note_link(link::read(payload)?, kind == RTM_DELLINK, names, changes),
        RTM_NEWADDR | RTM_DELADDR => {
            let Some(assigned) = address::read(payload)? else { return Ok(()) };
            let change = if kind == RTM_NEWADDR { Presence::Present } else { Presence::Gone };
            if change == Presence::Present {
                changes.came.insert(assigned.address);
            }
            match names.get(&assigned.device) {
                Some(name) => drop(changes.addresses.entry(name.clone()).or_default().insert(assigned.address, change)),
                None => changes.overflowed = true,
            }
        }
        RTM_NEWROUTE | RTM_DELROUTE => {
            changes.default_routes |= route::is_default(payload);
            let is_of = |owner: RouteOwner| route::is_local_of(payload, owner.number());
            changes.bound_routes |= kind == RTM_DELROUTE && RouteOwner::ALL.into_iter().any(is_of);
        }
        _ => {}
    }
    Ok(())
}

fn note_link(link: Link, gone: bool, names: &mut BTreeMap<u32, String>, changes: &mut Changes) {
    if link.is_bridge_port() {
        // A port that leaves its bridge is "deleted" there but still exists.
        return;
    }
    if gone {
        names.remove(&link.index);
        changes.devices.insert(link.name, Presence::Gone);
        return;
    }
    if let Some(old) = names.insert(link.index, link.name.clone()).filter(|old| *old != link.name) {
        changes.devices.insert(old, Presence::Gone);
    }
    changes.devices.insert(link.name, Presence::Present);
}
