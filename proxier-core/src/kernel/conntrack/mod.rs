//! Tracked connections over nfnetlink. Kernel: net/netfilter/nf_conntrack_netlink.c.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use netlink_batch::header::NfGenHeader;
use netlink_batch::{Attrs, Be16, Be32, Connection, Encoder, Errno, Error, Protocol as Netlink, WireError, attrs};

use super::lazy::Lazy;
use crate::net::{Family, Protocol};
use crate::ports::{Conntrack, PortError, Result, UdpServices};

/// `NFNL_SUBSYS_CTNETLINK` in the upper byte, `IPCTNL_MSG_CT_*` in the lower.
const CT_GET: u16 = 0x0101;
const CT_DELETE: u16 = 0x0102;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_UDP: u8 = 17;

/// `CTA_FILTER_F_CTA_PROTO_NUM` (net/netfilter/nf_internals.h; libnetfilter_conntrack uses it too): only the protocol
/// of the tuple is compared.
const BY_PROTOCOL: u32 = 1 << 3;

attrs! {
    /// Inside `CTA_TUPLE_IP`.
    "CTA_IP_",
    pub enum IpAttr<'a> {
        V4_SRC = 1 => V4Source([u8; 4]),
        V4_DST = 2 => V4Destination([u8; 4]),
        V6_SRC = 3 => V6Source([u8; 16]),
        V6_DST = 4 => V6Destination([u8; 16]),
    }
}

attrs! {
    /// Inside `CTA_TUPLE_PROTO`.
    "CTA_PROTO_",
    pub enum ProtoAttr<'a> {
        NUM = 1 => Number(u8),
        SRC_PORT = 2 => SourcePort(Be16),
        DST_PORT = 3 => DestinationPort(Be16),
    }
}

attrs! {
    /// One direction of a connection.
    "CTA_TUPLE_",
    pub enum TupleAttr<'a> {
        IP = 1 => Ip(Attrs<'a, IpAttr<'a>>),
        PROTO = 2 => Proto(Attrs<'a, ProtoAttr<'a>>),
    }
}

attrs! {
    /// Inside `CTA_FILTER`.
    "CTA_FILTER_",
    pub enum FilterAttr<'a> {
        ORIG_FLAGS = 1 => OriginalFlags(u32),
    }
}

attrs! {
    /// A tracked connection.
    "CTA_",
    pub enum FlowAttr<'a> {
        TUPLE_ORIG = 1 => Original(Attrs<'a, TupleAttr<'a>>),
        TUPLE_REPLY = 2 => Reply(Attrs<'a, TupleAttr<'a>>),
        /// Tells it from a later connection with the same addresses.
        ID = 12 => Id(Be32),
        /// Zone of both directions; absent for the default zone.
        ZONE = 18 => Zone(Be16),
        /// Filter of a listing; since Linux 5.8, ignored by older kernels.
        FILTER = 25 => Filter(Attrs<'a, FilterAttr<'a>>),
    }
}

/// One direction of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tuple {
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    protocol: Option<u8>,
    source_port: u16,
    destination_port: u16,
}

impl Tuple {
    fn read(attributes: Attrs<'_, TupleAttr<'_>>) -> Result<Self, WireError> {
        let mut tuple = Tuple::default();
        for attr in attributes.iter() {
            match attr? {
                TupleAttr::Ip(addresses) => {
                    for attr in addresses.iter() {
                        match attr? {
                            IpAttr::V4Source(octets) => tuple.source = Some(octets.into()),
                            IpAttr::V4Destination(octets) => tuple.destination = Some(octets.into()),
                            IpAttr::V6Source(octets) => tuple.source = Some(octets.into()),
                            IpAttr::V6Destination(octets) => tuple.destination = Some(octets.into()),
                            IpAttr::Unknown(_) => {}
                        }
                    }
                }
                TupleAttr::Proto(ports) => {
                    for attr in ports.iter() {
                        match attr? {
                            ProtoAttr::Number(number) => tuple.protocol = Some(number),
                            ProtoAttr::SourcePort(Be16(port)) => tuple.source_port = port,
                            ProtoAttr::DestinationPort(Be16(port)) => tuple.destination_port = port,
                            ProtoAttr::Unknown(_) => {}
                        }
                    }
                }
                TupleAttr::Unknown(_) => {}
            }
        }
        Ok(tuple)
    }

    fn source(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.source?, self.source_port))
    }

    fn destination(&self) -> Option<SocketAddr> {
        Some(SocketAddr::new(self.destination?, self.destination_port))
    }
}

/// A flow to delete: the attributes needed for its deletion.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Deletion {
    destination: SocketAddr,
    /// `CTA_TUPLE_ORIG` as written by the kernel, with a zone only if it is of this direction.
    original: Box<[u8]>,
    id: Option<u32>,
    zone: Option<u16>,
}

/// The flow, if it has this protocol and its endpoint no longer exists.
fn doomed(payload: &[u8], protocol: u8, services: &UdpServices) -> Result<Option<Deletion>, WireError> {
    let available = payload.len();
    let (_, attributes) = NfGenHeader::split(payload).ok_or(WireError::Message { offset: 0, available })?;
    let (mut original, mut reply, mut id, mut zone) = (None, None, None, None);
    for attr in Attrs::<FlowAttr<'_>>::new(attributes).iter() {
        match attr? {
            FlowAttr::Original(tuple) => original = Some(tuple),
            FlowAttr::Reply(tuple) => reply = Some(tuple),
            FlowAttr::Id(Be32(number)) => id = Some(number),
            FlowAttr::Zone(Be16(number)) => zone = Some(number),
            FlowAttr::Filter(_) | FlowAttr::Unknown(_) => {}
        }
    }
    let (Some(original), Some(reply)) = (original, reply) else { return Ok(None) };
    let sent = Tuple::read(original)?;
    // Kernels before 5.8 list all protocols.
    if sent.protocol != Some(protocol) {
        return Ok(None);
    }
    let endpoints = sent.destination().and_then(|destination| Some((destination, services.get(&destination)?)));
    let (Some((destination, endpoints)), Some(answers)) = (endpoints, Tuple::read(reply)?.source()) else {
        return Ok(None);
    };
    let gone = !endpoints.contains(&answers);
    Ok(gone.then(|| Deletion { destination, original: original.as_bytes().into(), id, zone }))
}

fn header(family: u8) -> [u8; NfGenHeader::LENGTH] {
    NfGenHeader { family, version: 0, resource: 0 }.to_bytes()
}

/// Lists the flows of a family and a protocol, and returns those to delete.
fn list(
    connection: &mut Connection,
    (family, protocol): (u8, u8),
    services: &UdpServices,
    filtered: bool,
) -> Result<Vec<Deletion>, Error> {
    let found = RefCell::new(Vec::new());
    connection.dump(
        CT_GET,
        0,
        &header(family),
        |out| {
            // Called for each attempt: discard results of an earlier one.
            found.borrow_mut().clear();
            if filtered {
                out.nest(FlowAttr::TUPLE_ORIG, |out| {
                    out.nest(TupleAttr::PROTO, |out| out.attr(ProtoAttr::NUM, &protocol));
                });
                out.nest(FlowAttr::FILTER, |out| out.attr(FilterAttr::ORIG_FLAGS, &BY_PROTOCOL));
            }
        },
        |payload| {
            found.borrow_mut().extend(doomed(payload, protocol, services)?);
            Ok(())
        },
    )?;
    Ok(found.into_inner())
}

fn put(out: &mut Encoder, flow: &Deletion) {
    out.nest(FlowAttr::TUPLE_ORIG, |out| out.bytes(&flow.original));
    if let Some(id) = flow.id {
        out.attr(FlowAttr::ID, &Be32(id));
    }
    if let Some(zone) = flow.zone {
        out.attr(FlowAttr::ZONE, &Be16(zone));
    }
}

/// Deletes tracked connections over nfnetlink.
///
/// Its memory grows with the number of flows to delete, not with the kernel's table.
#[doc(hidden)]
#[derive(Debug)]
pub struct ConntrackPort {
    connection: Lazy<Connection, Error>,
}

impl Default for ConntrackPort {
    /// Opens a socket at first use, in the network namespace of the calling thread.
    fn default() -> Self {
        ConntrackPort { connection: Lazy::new(|| Connection::open(Netlink::Netfilter)) }
    }
}

impl ConntrackPort {
    /// The flows of a family to delete. Lists nothing if `services` has no address of the family.
    fn find(&mut self, family: u8, protocol: u8, services: &UdpServices) -> Result<Vec<Deletion>> {
        const DOING: &str = "listing tracked connections";
        if services.keys().all(|destination| destination.is_ipv4() != (family == AF_INET)) {
            return Ok(Vec::new());
        }
        let refused = |error: &Error| error.kernel().map(|refusal| refusal.errno);
        let attempt = |connection: &mut Connection| match list(connection, (family, protocol), services, true) {
            // The kernel supports filters, but not this one.
            Err(error) if matches!(refused(&error), Some(Errno::EINVAL | Errno::EOPNOTSUPP)) => {
                list(connection, (family, protocol), services, false)
            }
            listed => listed,
        };
        self.connection.call_subsystem(DOING, "; load module nf_conntrack_netlink", attempt)
    }

    /// Deletes flows. Those that have already ended count as deleted.
    fn delete(&mut self, family: u8, flows: &[Deletion]) -> Result<()> {
        const DOING: &str = "deleting tracked connections";
        let send = |connection: &mut Connection| {
            let mut writer = connection.batch();
            for flow in flows {
                writer.push(CT_DELETE, 0, &header(family), |out| put(out, flow));
            }
            writer.finish()
        };
        let classify = |errno: Errno| (errno != Errno::ENOENT).then(|| super::error::errno_kind(errno.0));
        let failures = self.connection.batch(flows.len(), send, |_| DOING.to_owned(), classify);
        match failures.values().next() {
            None => Ok(()),
            Some(first) => {
                let message = format!("{first} ({} of {})", failures.len(), flows.len());
                Err(PortError::new(first.kind(), message))
            }
        }
    }
}

impl Conntrack for ConntrackPort {
    fn forget_flows(&mut self, protocol: Protocol, family: Family, services: &UdpServices) -> Result<usize> {
        let family = if family == Family::V4 { AF_INET } else { AF_INET6 };
        let flows = self.find(family, ipvs::model::Protocol::from(protocol).number(), services)?;
        if !flows.is_empty() {
            self.delete(family, &flows)?;
        }
        Ok(flows.len())
    }

    fn find_udp(&mut self, services: &UdpServices) -> Result<BTreeSet<SocketAddr>> {
        let mut found = BTreeSet::new();
        for family in [AF_INET, AF_INET6] {
            found.extend(self.find(family, IPPROTO_UDP, services)?.iter().map(|flow| flow.destination));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
