//! Devices, addresses and local routes: the parts of `NETLINK_ROUTE` that a proxy needs.
//!
//! Kernel: net/core/rtnetlink.c, net/ipv4/devinet.c, net/ipv6/addrconf.c, net/ipv4/fib_frontend.c, net/ipv6/route.c.

mod address;
mod link;
mod monitor;
mod port;
mod route;

use std::net::IpAddr;

use netlink_batch::{Connection, Encoder, Errno, Error, Protocol, WireError};

pub use monitor::{Changes, Monitor, Presence};
pub use port::LinksPort;
pub use route::RoutesPort;

use crate::kernel::error::errno_kind;
use crate::ports::{ItemFailures, PortError, PortErrorKind};

const AF_UNSPEC: u8 = 0;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

fn family_of(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

/// Appends an address as an attribute; the length depends on the family.
fn put_address(out: &mut Encoder, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => out.attr(kind, &address.octets()),
        IpAddr::V6(address) => out.attr(kind, &address.octets()),
    }
}

/// Reads an address by its length.
fn get_address(payload: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(payload) {
        return Some(IpAddr::from(octets));
    }
    <[u8; 16]>::try_from(payload).ok().map(IpAddr::from)
}

/// Splits the bytes behind the message header into a fixed header and attributes.
fn split<const LENGTH: usize>(payload: &[u8]) -> Result<(&[u8; LENGTH], &[u8]), WireError> {
    payload.split_first_chunk().ok_or(WireError::Message { offset: 0, available: payload.len() })
}

/// Reads four bytes of a fixed header as a number in host order.
fn number(header: &[u8], at: usize) -> u32 {
    let bytes = header.get(at..).and_then(|rest| rest.first_chunk::<4>());
    bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn kind_of(errno: Errno) -> PortErrorKind {
    match errno {
        // IPv6 is disabled on the device (net.ipv6.conf.*.disable_ipv6), which no privilege overrides.
        Errno::EACCES => PortErrorKind::Unavailable,
        errno => errno_kind(errno.0),
    }
}

/// Says what to do where a device has no IPv6: by the kernel's answer, a permission is missing.
fn with_advice(mut failures: ItemFailures, device: &str) -> ItemFailures {
    for error in failures.values_mut().filter(|error| error.kind() == PortErrorKind::Unavailable) {
        let message = format!(
            "{error}; device {device} has no IPv6: set net.ipv6.conf.{device}.disable_ipv6 to 0, or no Service is served by IPv6"
        );
        *error = PortError::new(PortErrorKind::Unavailable, message);
    }
    failures
}

fn open() -> Result<Connection, Error> {
    Connection::open(Protocol::Route)
}
