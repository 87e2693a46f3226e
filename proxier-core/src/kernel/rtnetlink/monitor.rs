//! Reports changes of devices, addresses and default routes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use netlink_batch::{Connection, Message, Messages};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recvfrom, setsockopt, socket, sockopt,
};

use super::address::{self, RTM_DELADDR, RTM_NEWADDR};
use super::link::{self, Link, RTM_DELLINK, RTM_NEWLINK};
use super::open;
use super::route::{self, RTM_DELROUTE, RTM_NEWROUTE};
use crate::kernel::error::{errno_kind, netlink};
use crate::ports::{PortError, RouteOwner};

/// `RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR | RTMGRP_IPV4_ROUTE | RTMGRP_IPV6_ROUTE` (linux/rtnetlink.h).
const GROUPS: u32 = 0x1 | 0x10 | 0x100 | 0x40 | 0x400;
/// Room for several thousand unread changes.
const RECEIVE_BUFFER: usize = 4 << 20;
/// Enough for one datagram.
const DATAGRAM: usize = 64 << 10;
/// Most datagrams in one call, so that it ends even in a flood of them.
const AT_ONCE: usize = 100_000;

/// How a device or address changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
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
    pub devices: BTreeMap<String, Change>,
    /// A default route was added, changed or removed.
    pub default_routes: bool,
    /// A local route with which IPVS mode binds addresses was removed ([`RouteOwner::Ipvs`]).
    pub bound_routes: bool,
    /// Addresses by the name of their device.
    pub addresses: BTreeMap<String, BTreeMap<IpAddr, Change>>,
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
///
/// A monitor stays in the network namespace of the thread that opened it. For another one, open it on a thread that has
/// entered it.
pub struct Monitor {
    socket: OwnedFd,
    connection: Connection,
    /// Names by index: messages about addresses only contain the index.
    names: BTreeMap<u32, String>,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Monitor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Monitor").field("socket", &self.socket).field("names", &self.names).finish_non_exhaustive()
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Monitor {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.socket.as_raw_fd()
    }
}

fn failed(doing: &str, errno: Errno) -> PortError {
    let number = io::Error::from(errno).raw_os_error().unwrap_or_default();
    PortError::new(errno_kind(number), format!("{doing}: {errno}"))
}

impl Monitor {
    /// Starts to listen in the calling thread's network namespace. Needs no privilege.
    ///
    /// # Errors
    /// If the kernel refuses the socket, or the devices could not be read.
    pub fn open() -> Result<Self, PortError> {
        const DOING: &str = "listening for changes of addresses";
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)
            .map_err(|errno| failed(DOING, errno))?;
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            // Without CAP_NET_ADMIN the kernel grants at most net.core.rmem_max.
            setsockopt(&socket, sockopt::RcvBuf, &RECEIVE_BUFFER).map_err(|errno| failed(DOING, errno))?;
        }
        bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS)).map_err(|errno| failed(DOING, errno))?;
        let connection = open().map_err(|error| netlink(&error, DOING).0)?;
        let mut monitor = Monitor { socket, connection, names: BTreeMap::new(), buffer: vec![0; DATAGRAM] };
        monitor.learn_names()?;
        Ok(monitor)
    }

    fn learn_names(&mut self) -> Result<(), PortError> {
        let links = link::list(&mut self.connection).map_err(|error| netlink(&error, "listing devices").0)?;
        self.names = links.into_iter().map(|link| (link.index, link.name)).collect();
        Ok(())
    }

    /// Returns the changes so far, without waiting.
    ///
    /// # Errors
    /// If the socket failed: open another one, and assume that everything changed.
    pub fn drain(&mut self) -> Result<Changes, PortError> {
        let mut changes = Changes::default();
        for _ in 0..AT_ONCE {
            match recvfrom::<NetlinkAddr>(self.socket.as_raw_fd(), &mut self.buffer) {
                // Only accept messages from the kernel.
                Ok((length, Some(sender))) if sender.pid() == 0 => self.read_datagram(length, &mut changes),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                Err(Errno::ENOBUFS) => {
                    changes.overflowed = true;
                    self.learn_names()?;
                }
                Err(errno) => return Err(failed("hearing of changes of addresses", errno)),
            }
        }
        Ok(changes)
    }

    fn read_datagram(&mut self, length: usize, changes: &mut Changes) {
        let buffer = std::mem::take(&mut self.buffer);
        // A datagram that fills the buffer may have been truncated.
        changes.overflowed |= length >= buffer.len();
        for message in Messages::new(buffer.get(..length).unwrap_or(&buffer)) {
            match message {
                Ok(message) => self.note(&message, changes),
                Err(_) => changes.overflowed = true,
            }
        }
        self.buffer = buffer;
    }

    fn note(&mut self, message: &Message<'_>, changes: &mut Changes) {
        match message.header.kind {
            kind @ (RTM_NEWLINK | RTM_DELLINK) => match link::read(message.payload) {
                Ok(link) => self.note_link(link, kind == RTM_DELLINK, changes),
                Err(_) => changes.overflowed = true,
            },
            kind @ (RTM_NEWADDR | RTM_DELADDR) => {
                let change = if kind == RTM_NEWADDR { Change::Present } else { Change::Gone };
                let Ok(assigned) = address::read(message.payload) else {
                    changes.overflowed = true;
                    return;
                };
                let Some(assigned) = assigned else { return };
                if change == Change::Present {
                    changes.came.insert(assigned.address);
                }
                match self.names.get(&assigned.device) {
                    Some(name) => {
                        changes.addresses.entry(name.clone()).or_default().insert(assigned.address, change);
                    }
                    None => changes.overflowed = true,
                }
            }
            kind @ (RTM_NEWROUTE | RTM_DELROUTE) => {
                changes.default_routes |= route::is_default(message.payload);
                let is_bound = kind == RTM_DELROUTE && route::is_local_of(message.payload, RouteOwner::Ipvs.number());
                changes.bound_routes |= is_bound;
            }
            _ => {}
        }
    }

    fn note_link(&mut self, link: Link, gone: bool, changes: &mut Changes) {
        if link.is_bridge_port() {
            // A port that leaves its bridge is "deleted" there but still exists.
            return;
        }
        if gone {
            self.names.remove(&link.index);
            changes.devices.insert(link.name, Change::Gone);
            return;
        }
        if let Some(old) = self.names.insert(link.index, link.name.clone()).filter(|old| *old != link.name) {
            changes.devices.insert(old, Change::Gone);
        }
        changes.devices.insert(link.name, Change::Present);
    }
}
