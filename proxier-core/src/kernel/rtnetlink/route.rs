//! Local routes: make every address of a network local to this host, without binding any.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink_batch::header::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_batch::{Attrs, BatchReport, Connection, Errno, Error, WireError, attrs};

use super::{AF_UNSPEC, family_of, get_address, kind_of, open, put_address, split, with_advice};
use crate::kernel::lazy::Lazy;
use crate::net::Network;
use crate::ports::{ItemFailures, LocalNetworks, LocalRoute, PortErrorKind, Result, RouteOwner};

pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;

/// `RT_TABLE_LOCAL`: searched before every other table.
const TABLE_LOCAL: u8 = 255;
/// `LOOPBACK_IFINDEX`: `lo` has this index in every network namespace (`loopback_net_init`).
const LOOPBACK: u32 = 1;
/// `RT_SCOPE_HOST`.
const SCOPE_HOST: u8 = 254;
/// `RTN_UNICAST`.
const UNICAST: u8 = 1;
/// `RTN_LOCAL`.
const LOCAL: u8 = 2;
/// The longest prefix of a default route: `::/0`, but also `2000::/3`, which is all of IPv6 in use, or the two halves
/// that a VPN adds.
const DEFAULT_PREFIX: u8 = 3;

attrs! {
    /// A route.
    "RTA_",
    pub enum RouteAttr<'a> {
        /// Network of the route; absent for all addresses.
        DST = 1 => Destination(&'a [u8]),
        OIF = 4 => Device(u32),
        GATEWAY = 5 => Gateway(&'a [u8]),
        /// The metric: of several routes for one network, the lowest is used.
        PRIORITY = 6 => Priority(u32),
        PREFSRC = 7 => Source(&'a [u8]),
        /// Several next hops, each a `struct rtnexthop` with attributes.
        MULTIPATH = 9 => Multipath(&'a [u8]),
        /// A gateway of the other family: `struct rtvia`, Linux 5.2.
        VIA = 18 => Via(&'a [u8]),
    }
}

/// Networks that are local as a whole ("AnyIP"), by routes that only this project creates: `ip route add local
/// 10.96.0.0/12 dev lo`.
///
/// The owner's number is also the route's metric, so that it can coexist with another program's route and with the
/// kernel's own for a bound address. Other programs' routes are neither listed nor deleted.
#[derive(Debug)]
#[doc(hidden)]
pub struct RoutesPort {
    connection: Lazy<Connection, Error>,
}

struct FoundRoute {
    device: u32,
    network: Network,
    source: Option<IpAddr>,
}

impl Default for RoutesPort {
    /// Opens a socket at first use, in the calling thread's network namespace.
    fn default() -> Self {
        RoutesPort { connection: Lazy::new(open) }
    }
}

/// `struct rtmsg`.
fn header(family: u8, length: u8, protocol: u8) -> [u8; 12] {
    [family, length, 0, 0, TABLE_LOCAL, protocol, SCOPE_HOST, LOCAL, 0, 0, 0, 0]
}

/// Whether a message is about a local route of this owner.
pub(super) fn is_local_of(payload: &[u8], protocol: u8) -> bool {
    split::<12>(payload).is_ok_and(|(&[_, _, _, _, table, maker, _, kind, ..], _)| {
        (table, maker, kind) == (TABLE_LOCAL, protocol, LOCAL)
    })
}

/// Decodes a route of the local table if `maker` created it.
fn read(payload: &[u8], maker: u8) -> Result<Option<FoundRoute>, WireError> {
    let (header, attributes) = split::<12>(payload)?;
    let &[family, length, _, _, table, protocol, _, kind, ..] = header;
    if (table, protocol, kind) != (TABLE_LOCAL, maker, LOCAL) {
        return Ok(None);
    }
    let (mut device, mut destination, mut source) = (0, None, None);
    for attr in Attrs::<RouteAttr<'_>>::new(attributes).iter() {
        match attr? {
            RouteAttr::Destination(bytes) => destination = get_address(bytes),
            RouteAttr::Device(index) => device = index,
            RouteAttr::Source(bytes) => source = get_address(bytes),
            _ => {}
        }
    }
    let everything = if family == super::AF_INET { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let network = Network::new(destination.unwrap_or(everything), length);
    let value = |_| WireError::Value { attribute: "RTA_DST".to_owned(), value: format!("{destination:?}/{length}") };
    Ok(Some(FoundRoute { device, network: network.map_err(value)?, source }))
}

/// Whether a message is about a default route with a next hop.
pub(super) fn is_default(payload: &[u8]) -> bool {
    split::<12>(payload)
        .is_ok_and(|(&[_, length, _, _, _, _, _, kind, ..], _)| length <= DEFAULT_PREFIX && kind == UNICAST)
}

/// Collects the gateways from these attributes.
fn read_gateways(attributes: &[u8], found: &mut BTreeSet<IpAddr>) -> Result<(), WireError> {
    for attr in Attrs::<RouteAttr<'_>>::new(attributes).iter() {
        match attr? {
            RouteAttr::Gateway(bytes) => found.extend(get_address(bytes)),
            // `rtvia_family`, then the address.
            RouteAttr::Via(bytes) => found.extend(bytes.get(2..).and_then(get_address)),
            RouteAttr::Multipath(mut ways) => {
                // `struct rtnexthop`: length, flags, hops, device. Its attributes are within the length.
                while let Some((length, _)) = ways.split_first_chunk::<2>() {
                    let length = usize::from(u16::from_ne_bytes(*length));
                    let Some(way) = ways.get(..length).filter(|way| way.len() >= NEXT_HOP) else { break };
                    read_gateways(way.get(NEXT_HOP..).unwrap_or_default(), found)?;
                    ways = ways.get(length.next_multiple_of(4)..).unwrap_or_default();
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// `sizeof(struct rtnexthop)`.
const NEXT_HOP: usize = 8;

/// The gateways of the default routes of both families in all tables.
pub(super) fn gateways(connection: &mut Connection) -> Result<BTreeSet<IpAddr>, Error> {
    let read = |payload: &[u8]| {
        let mut found = BTreeSet::new();
        if is_default(payload) {
            read_gateways(split::<12>(payload)?.1, &mut found)?;
        }
        Ok(found)
    };
    // Routes of both families, in all tables, of all programs.
    let dump = connection.dump(RTM_GETROUTE, 0, &[AF_UNSPEC; 12], |_| {}, read)?;
    Ok(dump.items.into_iter().flatten().collect())
}

fn list(connection: &mut Connection, protocol: u8) -> Result<Vec<FoundRoute>, Error> {
    let asked = header(AF_UNSPEC, 0, protocol);
    let dump = connection.dump(RTM_GETROUTE, 0, &asked, |_| {}, |payload| read(payload, protocol))?;
    Ok(dump.items.into_iter().flatten().collect())
}

impl RoutesPort {
    fn write(
        &mut self,
        (owner, kind): (RouteOwner, u16),
        routes: &[LocalRoute],
        doing: &str,
        classify: impl Fn(Errno) -> Option<PortErrorKind>,
    ) -> ItemFailures {
        let send = |connection: &mut Connection| send(connection, kind, owner.number(), routes);
        let name = |place: usize| {
            routes.get(place).map_or_else(String::new, |of| {
                let source = of.source.map_or_else(String::new, |source| format!(" src {source}"));
                format!("{doing} {}{source}", of.network)
            })
        };
        self.connection.batch(routes.len(), send, name, classify)
    }
}

impl LocalNetworks for RoutesPort {
    fn networks(&mut self, owner: RouteOwner) -> Result<BTreeMap<Network, Option<IpAddr>>> {
        let routes = self.connection.call("listing local routes", |connection| list(connection, owner.number()))?;
        Ok(routes.into_iter().filter(|of| of.device == LOOPBACK).map(|of| (of.network, of.source)).collect())
    }

    fn add(&mut self, owner: RouteOwner, routes: &[LocalRoute]) -> ItemFailures {
        let failures = self.write((owner, RTM_NEWROUTE), routes, "adding local route", |errno| {
            (errno != Errno::EEXIST).then(|| kind_of(errno))
        });
        with_advice(failures, "lo")
    }

    fn delete(&mut self, owner: RouteOwner, networks: &[Network]) -> ItemFailures {
        let routes: Vec<_> = networks.iter().copied().map(LocalRoute::new).collect();
        self.write((owner, RTM_DELROUTE), &routes, "deleting local route", |errno| {
            (errno != Errno::ESRCH).then(|| kind_of(errno))
        })
    }
}

fn send(connection: &mut Connection, kind: u16, maker: u8, routes: &[LocalRoute]) -> BatchReport {
    let is_new = kind == RTM_NEWROUTE;
    // Replaces the route with the same network and metric: the maker's own.
    let flags = if is_new { NLM_F_CREATE | NLM_F_REPLACE } else { 0 };
    let mut batch = connection.batch();
    for of in routes {
        let network = of.network.network();
        batch.push(kind, flags, &header(family_of(network), of.network.prefix_len(), maker), |out| {
            put_address(out, RouteAttr::DST, network);
            out.attr(RouteAttr::OIF, &LOOPBACK);
            // Network and maker are enough to delete.
            if is_new {
                out.attr(RouteAttr::PRIORITY, &u32::from(maker));
            }
            if let Some(source) = of.source {
                put_address(out, RouteAttr::PREFSRC, source);
            }
        });
    }
    batch.finish()
}
