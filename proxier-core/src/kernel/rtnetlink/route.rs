//! Local routes: make every address of a network this host's, without binding any.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipset::IpSpan;
use netlink_batch::header::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_batch::{Attrs, BatchReport, Connection, Errno, Error, WireError, attrs};

use super::{AF_UNSPEC, family_of, get_address, link, open, put_address, split};
use crate::kernel::error::{all, batch, errno_kind, netlink};
use crate::kernel::lazy::Lazy;
use crate::ports::{ItemFailure, ItemFailures, PortError, PortErrorKind};

pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;

/// `RT_TABLE_LOCAL`: searched before every other table.
const TABLE_LOCAL: u8 = 255;
/// `RTPROT_STATIC`: made by an administrator, as against those that the kernel makes for each bound address.
const STATIC: u8 = 4;
/// `RT_SCOPE_HOST`.
const SCOPE_HOST: u8 = 254;
/// `RTN_UNICAST`.
const UNICAST: u8 = 1;
/// `RTN_LOCAL`.
const LOCAL: u8 = 2;
/// The longest prefix of a default route: `::/0`, but also `2000::/3`, which is all of IPv6 in use, or the two halves that
/// a VPN writes.
const DEFAULT_PREFIX: u8 = 3;

attrs! {
    /// A route.
    "RTA_",
    pub enum RouteAttr<'a> {
        /// Network of the route; missing for all addresses.
        DST = 1 => Destination(&'a [u8]),
        /// The device.
        OIF = 4 => Device(u32),
        /// The gateway.
        GATEWAY = 5 => Gateway(&'a [u8]),
        /// The metric: of several routes for one network, the lowest counts.
        PRIORITY = 6 => Priority(u32),
        /// The source that this host's own packets get.
        PREFSRC = 7 => Source(&'a [u8]),
        /// Several ways, each a `struct rtnexthop` with attributes of its own.
        MULTIPATH = 9 => Multipath(&'a [u8]),
        /// A gateway of the other family: `struct rtvia`, Linux 5.2.
        VIA = 18 => Via(&'a [u8]),
    }
}

/// Networks that are local as a whole ("AnyIP"): `ip route add local 10.96.0.0/12 dev lo`.
///
/// Not part of a pass: a second way to receive packets for Services, which costs the same for any number of addresses. The
/// route also takes packets to other hosts' addresses in its network, so the network must be the Services' alone.
///
/// ```no_run
/// use proxier_core::kernel::LocalRoutes;
///
/// let network: ipset::IpSpan = "10.96.0.0/12".parse()?;
/// let mut routes = LocalRoutes::of_protocol(200); // others' routes are neither listed nor deleted
/// let failures = routes.add_with_source("lo", &[(network, Some("192.0.2.10".parse()?))]);
/// for failure in failures {
///     eprintln!("{}", failure.error);
/// }
/// assert_eq!(routes.list_with_source("lo")?, [(network, Some("192.0.2.10".parse()?))]);
/// routes.delete("lo", &[network]);
/// assert_eq!(routes.list("lo")?, []);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LocalRoutes {
    connection: Lazy<Connection, Error>,
    maker: Maker,
}

/// Identity of a program that makes routes.
#[derive(Clone, Copy, Debug)]
struct Maker {
    /// `RTPROT_*`.
    protocol: u8,
    /// The metric; `None` for the kernel's default, which foreign routes have too.
    metric: Option<u32>,
}

/// A local route as the kernel has it.
struct FoundRoute {
    device: u32,
    network: IpSpan,
    source: Option<IpAddr>,
}

impl fmt::Debug for LocalRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalRoutes").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl Default for LocalRoutes {
    fn default() -> Self {
        Self::new()
    }
}

/// `struct rtmsg`.
fn header(family: u8, length: u8, protocol: u8) -> [u8; 12] {
    [family, length, 0, 0, TABLE_LOCAL, protocol, SCOPE_HOST, LOCAL, 0, 0, 0, 0]
}

/// Whether a message is about a local route of this maker.
pub(super) fn is_local_of(payload: &[u8], protocol: u8) -> bool {
    split::<12>(payload).is_ok_and(|(&[_, _, _, _, table, maker, _, kind, ..], _)| {
        (table, maker, kind) == (TABLE_LOCAL, protocol, LOCAL)
    })
}

/// A route of the local table, if it was made by `maker`.
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
    let network = IpSpan::network(destination.unwrap_or(everything), length);
    let value = |_| WireError::Value { attribute: "RTA_DST".to_owned(), value: format!("{destination:?}/{length}") };
    Ok(Some(FoundRoute { device, network: network.map_err(value)?, source }))
}

/// Whether a message is about a default route that leads somewhere.
pub(super) fn is_default(payload: &[u8]) -> bool {
    split::<12>(payload)
        .is_ok_and(|(&[_, length, _, _, _, _, _, kind, ..], _)| length <= DEFAULT_PREFIX && kind == UNICAST)
}

/// Collects the gateways in these attributes.
fn read_gateways(attributes: &[u8], found: &mut BTreeSet<IpAddr>) -> Result<(), WireError> {
    for attr in Attrs::<RouteAttr<'_>>::new(attributes).iter() {
        match attr? {
            RouteAttr::Gateway(bytes) => found.extend(get_address(bytes)),
            // `rtvia_family`, then the address.
            RouteAttr::Via(bytes) => found.extend(bytes.get(2..).and_then(get_address)),
            RouteAttr::Multipath(mut ways) => {
                // `struct rtnexthop`: length, flags, hops, device; its attributes are within the length.
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

/// The gateways of the default routes of both families, of all tables.
pub(super) fn gateways(connection: &mut Connection) -> Result<BTreeSet<IpAddr>, Error> {
    let read = |payload: &[u8]| {
        let mut found = BTreeSet::new();
        if is_default(payload) {
            read_gateways(split::<12>(payload)?.1, &mut found)?;
        }
        Ok(found)
    };
    // Routes of both families, in all tables, own and foreign.
    let dump = connection.dump(RTM_GETROUTE, 0, &[AF_UNSPEC; 12], |_| {}, read)?;
    Ok(dump.items.into_iter().flatten().collect())
}

fn list(connection: &mut Connection, protocol: u8) -> Result<Vec<FoundRoute>, Error> {
    let asked = header(AF_UNSPEC, 0, protocol);
    let dump = connection.dump(RTM_GETROUTE, 0, &asked, |_| {}, |payload| read(payload, protocol))?;
    Ok(dump.items.into_iter().flatten().collect())
}

impl LocalRoutes {
    /// Opens a socket when it is first needed, in the network namespace of the calling thread.
    pub fn new() -> Self {
        LocalRoutes { connection: Lazy::new(open), maker: Maker { protocol: STATIC, metric: None } }
    }

    /// As [`LocalRoutes::new`], for routes with a number of their own (`proto` of `ip route`; `RTPROT_*` above 4): foreign
    /// routes are neither listed nor deleted. The number is their metric too, so that such a route can stand beside another program's, and
    /// beside the one that the kernel makes for a bound address.
    pub fn of_protocol(protocol: u8) -> Self {
        LocalRoutes { connection: Lazy::new(open), maker: Maker { protocol, metric: Some(protocol.into()) } }
    }

    fn call<T>(&mut self, doing: &str, ask: impl FnOnce(&mut Connection) -> Result<T, Error>) -> Result<T, PortError> {
        let answer = self.connection.get().and_then(ask);
        answer.map_err(|error| {
            let (error, fatal) = netlink(&error, doing);
            if fatal {
                self.connection.close();
            }
            error
        })
    }

    fn index(&mut self, device: &str) -> Result<u32, PortError> {
        let doing = format!("looking device {device} up");
        let found = self.call(&doing, |connection| link::get(connection, device))?;
        let missing = || PortError::new(PortErrorKind::NotFound, format!("{doing}: there is no such device"));
        Ok(found.ok_or_else(missing)?.index)
    }

    fn write(
        &mut self,
        device: &str,
        networks: &[(IpSpan, Option<IpAddr>)],
        kind: u16,
        doing: &str,
        classify: impl Fn(Errno) -> Option<PortErrorKind>,
    ) -> ItemFailures {
        let index = match self.index(device) {
            Ok(index) => index,
            Err(error) => return all(networks.len(), &error),
        };
        let mut impossible = Vec::new();
        let mut places = Vec::new();
        let mut possible = Vec::new();
        for (place, (network, source)) in networks.iter().enumerate() {
            match network.prefix() {
                Some(length) => {
                    places.push(place);
                    possible.push(NewRoute { network: network.first(), length, source: *source });
                }
                None => impossible.push(ItemFailure {
                    index: place,
                    error: PortError::new(PortErrorKind::Invalid, format!("{doing} {network}: it is not one network")),
                }),
            }
        }
        let report = match self.connection.get() {
            Ok(connection) => send(connection, (kind, self.maker), index, &possible),
            Err(error) => return all(networks.len(), &netlink(&error, doing).0),
        };
        if report.stopped.is_some() {
            self.connection.close();
        }
        let name = |place: usize| {
            possible.get(place).map_or_else(String::new, |of| {
                let source = of.source.map_or_else(String::new, |source| format!(" src {source}"));
                format!("{doing} {}/{}{source}", of.network, of.length)
            })
        };
        let refused = batch(report, name, classify).into_iter();
        let refused = refused
            .filter_map(|failure| Some(ItemFailure { index: *places.get(failure.index)?, error: failure.error }));
        let mut failures: ItemFailures = impossible.into_iter().chain(refused).collect();
        failures.sort_by_key(|failure| failure.index);
        failures
    }

    /// Makes networks local; one that is already counts as done.
    pub fn add(&mut self, device: &str, networks: &[IpSpan]) -> ItemFailures {
        let networks: Vec<_> = networks.iter().map(|network| (*network, None)).collect();
        self.add_with_source(device, &networks)
    }

    /// As [`LocalRoutes::add`], with the source that this host's own packets get. A route that this maker has already gets the
    /// new source in one step, if it has a [number of its own](LocalRoutes::of_protocol); otherwise it stays as it is.
    pub fn add_with_source(&mut self, device: &str, networks: &[(IpSpan, Option<IpAddr>)]) -> ItemFailures {
        self.write(device, networks, RTM_NEWROUTE, "adding local route", |errno| {
            (errno != Errno::EEXIST).then(|| errno_kind(errno.0))
        })
    }

    /// Deletes such routes; one that is not there counts as done.
    pub fn delete(&mut self, device: &str, networks: &[IpSpan]) -> ItemFailures {
        let networks: Vec<_> = networks.iter().map(|network| (*network, None)).collect();
        self.write(device, &networks, RTM_DELROUTE, "deleting local route", |errno| {
            (errno != Errno::ESRCH).then(|| errno_kind(errno.0))
        })
    }

    /// The networks that were made local on a device by routes of this kind; not the addresses bound to it.
    ///
    /// # Errors
    /// [`PortErrorKind::NotFound`] without the device; when the routes could not be read as a whole.
    pub fn list(&mut self, device: &str) -> Result<Vec<IpSpan>, PortError> {
        Ok(self.list_with_source(device)?.into_iter().map(|(network, _)| network).collect())
    }

    /// As [`LocalRoutes::list`], with the source of each.
    ///
    /// # Errors
    /// As [`LocalRoutes::list`].
    pub fn list_with_source(&mut self, device: &str) -> Result<Vec<(IpSpan, Option<IpAddr>)>, PortError> {
        let index = self.index(device)?;
        let protocol = self.maker.protocol;
        let routes = self.call("listing local routes", |connection| list(connection, protocol))?;
        Ok(routes.into_iter().filter(|of| of.device == index).map(|of| (of.network, of.source)).collect())
    }
}

/// A route to write.
struct NewRoute {
    network: IpAddr,
    length: u8,
    source: Option<IpAddr>,
}

fn send(connection: &mut Connection, what: (u16, Maker), device: u32, routes: &[NewRoute]) -> BatchReport {
    let (kind, maker) = what;
    let flags = match maker.metric {
        _ if kind != RTM_NEWROUTE => 0,
        // Replaces the one with the same network and metric: the maker's own.
        Some(_) => NLM_F_CREATE | NLM_F_REPLACE,
        None => NLM_F_CREATE | NLM_F_EXCL,
    };
    let mut batch = connection.batch();
    for of in routes {
        batch.push(kind, flags, &header(family_of(of.network), of.length, maker.protocol), |out| {
            put_address(out, RouteAttr::DST, of.network);
            out.attr(RouteAttr::OIF, &device);
            // To delete, network and maker are enough.
            if let Some(metric) = maker.metric.filter(|_| kind == RTM_NEWROUTE) {
                out.attr(RouteAttr::PRIORITY, &metric);
            }
            if let Some(source) = of.source {
                put_address(out, RouteAttr::PREFSRC, source);
            }
        });
    }
    batch.finish()
}
