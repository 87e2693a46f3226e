//! Addresses of devices. Kernel: net/ipv4/devinet.c, `inet_rtm_newaddr`, `inet_rtm_deladdr`; net/ipv6/addrconf.c,
//! `inet6_rtm_newaddr`, `inet6_rtm_deladdr`.

use std::net::IpAddr;

use netlink_batch::header::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_batch::{Attrs, BatchReport, Connection, Error, WireError, attrs};

use super::{AF_INET, AF_INET6, AF_UNSPEC, family_of, get_address, number, put_address, split};

pub(super) const RTM_NEWADDR: u16 = 20;
pub(super) const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;

/// `IFA_F_NODAD`: no duplicate address detection, so usable at once.
const NO_DUPLICATE_DETECTION: u32 = 0x02;
/// `IFA_F_NOPREFIXROUTE`: no prefix route in addition to the local route. Without it, a deletion makes the kernel
/// search all addresses of the device for another one in the same network (`check_cleanup_prefix_route`).
const NO_PREFIX_ROUTE: u32 = 0x200;

attrs! {
    /// An address of a device.
    "IFA_",
    pub enum AddressAttr<'a> {
        /// The address, or the peer's on a point-to-point device.
        ADDRESS = 1 => Address(&'a [u8]),
        /// The address, if it differs from the peer's. IPv4 always has it.
        LOCAL = 2 => Local(&'a [u8]),
        /// `IFA_F_*`; the header only holds the first eight.
        FLAGS = 8 => Flags(u32),
    }
}

/// An address that a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AssignedAddress {
    pub(super) device: u32,
    pub(super) address: IpAddr,
    pub(super) prefix: u8,
}

/// `struct ifaddrmsg`.
fn header(family: u8, prefix: u8, device: u32) -> [u8; 8] {
    let [a, b, c, d] = device.to_ne_bytes();
    [family, prefix, 0, 0, a, b, c, d]
}

/// Decodes an address from the bytes behind the message header; `None` for families other than IP.
pub(super) fn read(payload: &[u8]) -> Result<Option<AssignedAddress>, WireError> {
    let (header, attributes) = split::<8>(payload)?;
    let &[family, prefix, ..] = header;
    if family != AF_INET && family != AF_INET6 {
        return Ok(None);
    }
    let (mut local, mut address) = (None, None);
    for attr in Attrs::<AddressAttr<'_>>::new(attributes).iter() {
        match attr? {
            AddressAttr::Local(bytes) => local = get_address(bytes),
            AddressAttr::Address(bytes) => address = get_address(bytes),
            AddressAttr::Flags(_) | AddressAttr::Unknown(_) => {}
        }
    }
    let missing = || WireError::Missing { attribute: "IFA_LOCAL".to_owned() };
    let address = local.or(address).ok_or_else(missing)?;
    Ok(Some(AssignedAddress { device: number(header, 4), address, prefix }))
}

pub(super) fn list(connection: &mut Connection) -> Result<Vec<AssignedAddress>, Error> {
    let dump = connection.dump(RTM_GETADDR, 0, &header(AF_UNSPEC, 0, 0), |_| {}, read)?;
    Ok(dump.items.into_iter().flatten().collect())
}

/// Adds addresses as `/32` or `/128`. The kernel refuses an existing one with `EEXIST`.
pub(super) fn add(connection: &mut Connection, device: u32, addresses: &[IpAddr]) -> BatchReport {
    let mut batch = connection.batch();
    for &address in addresses {
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        batch.push(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &header(family_of(address), prefix, device), |out| {
            put_address(out, AddressAttr::LOCAL, address);
            put_address(out, AddressAttr::ADDRESS, address);
            if address.is_ipv6() {
                out.attr(AddressAttr::FLAGS, &(NO_DUPLICATE_DETECTION | NO_PREFIX_ROUTE));
            }
        });
    }
    batch.finish()
}

/// Deletes addresses. IPv4 ones may have any prefix length; for IPv6 the kernel compares it.
pub(super) fn delete(connection: &mut Connection, device: u32, addresses: &[(IpAddr, u8)]) -> BatchReport {
    let mut batch = connection.batch();
    for &(address, prefix) in addresses {
        batch.push(RTM_DELADDR, 0, &header(family_of(address), prefix, device), |out| {
            put_address(out, AddressAttr::LOCAL, address);
            if address.is_ipv6() {
                put_address(out, AddressAttr::ADDRESS, address);
            }
        });
    }
    batch.finish()
}
