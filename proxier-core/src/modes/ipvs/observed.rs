//! The kernel's state as IPVS mode sees it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU32;

use ipset::{Element, IpSpan, Ports, SetType};
use ipvs::{RealServerKey, VirtualServerKey};

use crate::config::Config;
use crate::modes::ipvs::lower::Server;
use crate::modes::ipvs::split;
use crate::net::{Family, FrontendKey, Network, Protocol};
use crate::pack::{Gather as _, pack};
use crate::ports::{SetKey, SetKind, place_of};

/// The entries of sets that exist.
pub type Contents = BTreeMap<SetKey, BTreeSet<Element>>;

/// The kernel's state: all virtual servers of any program, but only own addresses and sets. An empty part means that
/// the kernel was read and has nothing, so a failed read must not end up here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    pub virtual_servers: BTreeMap<VirtualServerKey, Server>,
    pub addresses: BTreeSet<IpAddr>,
    pub routes: BoundRoutes,
    /// Addresses of this host's other interfaces.
    pub host_addresses: BTreeSet<IpAddr>,
    pub sets: Contents,
    /// Virtual servers that are this proxy's regardless of addresses and sets, and no longer desired: this process
    /// wanted them, or found them recorded as its own. Not read from the kernel.
    pub ours: BTreeSet<VirtualServerKey>,
    /// The sets of the variant of [`guards`](crate::modes::ipvs::guards) that served before, until they are taken over.
    /// They too identify this proxy's virtual servers.
    pub before: Contents,
    /// Whether no earlier state is known: a process starts, or this is a cleanup. Not read from the kernel.
    pub(crate) is_first: bool,
}

/// The entries that record marks of Frontends.
pub(crate) fn records(contents: &Contents) -> impl Iterator<Item = &Element> {
    contents.iter().filter(|(set, _)| set.kind == SetKind::SplitMark).flat_map(|(_, elements)| elements)
}

/// The entry of a virtual server's address, protocol and port in a set of such entries, or of these with the address as
/// source too; `None` for one of a mark.
pub(super) fn entry_of(key: &VirtualServerKey, kind: SetKind) -> Option<(SetKey, Element)> {
    let frontend = FrontendKey::try_from(*key).ok()?;
    let (host, ports) = place_of(&frontend);
    let is_of_source = kind.set_type() == SetType::HashIpPortIp;
    let element = if is_of_source { Element::IpPortIp(host, ports, host) } else { Element::IpPort(host, ports) };
    Some((SetKey::new(frontend.family(), kind), element))
}

/// The sets that together contain the address, protocol and port of every virtual server of this proxy. An entry in any
/// of them identifies one.
const MARKING: [SetKind; 6] = [
    SetKind::ClusterIp,
    SetKind::ExternalIp,
    SetKind::ExternalIpLocal,
    SetKind::LoadBalancer,
    SetKind::NodePortServed,
    SetKind::NodePortSctp,
];

impl Observed {
    pub fn has_entry(&self, set: SetKey, element: &Element) -> bool {
        self.sets.get(&set).is_some_and(|elements| elements.contains(element))
    }

    pub(super) fn remove_entry(&mut self, set: SetKey, element: &Element) {
        if let Some(elements) = self.sets.get_mut(&set) {
            elements.remove(element);
        }
    }

    fn of(&self, set: SetKey) -> impl Iterator<Item = &BTreeSet<Element>> {
        [&self.sets, &self.before].into_iter().filter_map(move |sets| sets.get(&set))
    }

    fn has_or_had_entry(&self, set: SetKey, element: &Element) -> bool {
        self.of(set).any(|elements| elements.contains(element))
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = &Element> {
        [&self.sets, &self.before].into_iter().flat_map(records)
    }

    /// The Frontend of the mark whose virtual server this is, as recorded. Costs O(records).
    pub(crate) fn frontend_of_mark(&self, key: &VirtualServerKey) -> Option<FrontendKey> {
        self.records().filter_map(split::marked).find(|(_, server)| server == key).map(|(frontend, _)| frontend)
    }

    fn served(&self, family: Family) -> impl Iterator<Item = &Element> {
        self.of(SetKey::new(family, SetKind::NodePortServed)).flatten()
    }

    /// Whether a virtual server is this proxy's, made by it or by one with the same sets. Then its address, protocol
    /// and port are in a set, or it is in [`ours`](Observed::ours), or its firewall mark is recorded
    /// ([`SetKind::SplitMark`]). Entries are added before it and deleted after it, so no state file is needed.
    ///
    /// If no set has its address, it is also this proxy's if the address is on the dummy device or has its own route:
    /// another program destroyed a set, or kube-proxy ended before it wrote its sets. A route of a whole network proves
    /// nothing, unless the set of cluster IPs is missing when a process starts or cleans up. No other program can serve
    /// in such a network, because the proxy's rules guard it.
    ///
    /// kube-proxy stores node ports without addresses. Their virtual servers are recognized at the addresses that this
    /// host has now: the node port is in their set, and in this proxy's set with no address at all.
    pub fn owns(&self, key: &VirtualServerKey) -> bool {
        let VirtualServerKey::Address { addr, .. } = *key else {
            return self.ours.contains(key) || self.frontend_of_mark(key).is_some();
        };
        // In a network of cluster IPs that we have made local as a whole, if the record of which is lost.
        let has_record = self.of(SetKey::new(Family::of(addr), SetKind::ClusterIp)).next().is_some();
        let is_in_network = || self.routes.whole.keys().any(|network| network.contains(&addr));
        let has_route = || self.routes.has(&Network::from(addr)) || (self.is_first && !has_record && is_in_network());
        let is_bound = || self.addresses.contains(&addr) || has_route();
        let entries = || MARKING.into_iter().filter_map(|kind| entry_of(key, kind));
        let marked = || entries().any(|(set, element)| self.has_or_had_entry(set, &element));
        self.ours.contains(key) || marked() || self.is_left_behind(key) || (is_bound() && !self.sets_know(addr))
    }

    fn sets_know(&self, addr: IpAddr) -> bool {
        let host = IpSpan::host(addr);
        // TCP has the lowest number of the protocols that Services have.
        let least = Element::IpPort(host, Ports::port(ipset::Protocol::TCP, 0));
        let is_of_address = |elements: &BTreeSet<Element>| {
            let next = elements.range(&least..).next();
            matches!(next, Some(Element::IpPort(span, _)) if *span == host)
        };
        MARKING.into_iter().any(|kind| self.of(SetKey::new(Family::of(addr), kind)).any(is_of_address))
    }

    /// Whether a virtual server is for a node port of a process that did not record its address.
    pub(crate) fn is_left_behind(&self, key: &VirtualServerKey) -> bool {
        let Ok(frontend) = FrontendKey::try_from(*key) else { return false };
        // The bitmaps have no addresses.
        let bitmap = match frontend.protocol {
            Protocol::Tcp => SetKind::NodePortTcp,
            Protocol::Udp => SetKind::NodePortUdp,
            Protocol::Sctp => return false,
        };
        let (_, ports) = place_of(&frontend);
        self.host_addresses.contains(&frontend.address)
            && self.has_or_had_entry(SetKey::new(frontend.family(), bitmap), &Element::Port(frontend.port.into()))
            && !self.served(frontend.family()).any(|element| matches!(element, Element::IpPort(_, of) if *of == ports))
    }

    /// The addresses of a family on which this proxy serves node ports, or served them, as recorded in the kernel. An
    /// address appears once for each port.
    pub(crate) fn node_port_addresses(&self, family: Family) -> impl Iterator<Item = IpAddr> {
        self.served(family).filter_map(|element| match element {
            Element::IpPort(span, _) => Some(span.first()),
            _ => None,
        })
    }

    /// A virtual server's entry in a set of this kind, if it exists.
    pub(crate) fn entry(&self, key: &VirtualServerKey, kind: SetKind) -> Option<(SetKey, Element)> {
        entry_of(key, kind).filter(|(set, element)| self.has_entry(*set, element))
    }

    /// Recognizes virtual servers of marks whose records were deleted with their table, for a process that has just
    /// started or a cleanup.
    pub(super) fn recall_marks(&mut self, config: &Config) {
        if self.addresses.is_empty() && self.routes.is_empty() {
            return;
        }
        let recorded: BTreeSet<VirtualServerKey> = self.records().filter_map(split::server_of).gather();
        let has_table =
            |key: &VirtualServerKey| self.of(SetKey::new(key.family().into(), SetKind::SplitMark)).next().is_some();
        let of_marks = self.virtual_servers.keys().filter(|key| key.addr().is_none());
        let lost = of_marks.filter(|key| !recorded.contains(key) && !has_table(key)).copied().gather::<BTreeSet<_>>();
        if lost.is_empty() {
            return;
        }
        for (place, mark) in recall(config, &lost, &self.virtual_servers) {
            let (set, element) = split::record(&place, mark);
            self.before.entry(set).or_default().insert(element);
        }
    }

    pub fn compact(&mut self) {
        pack(&mut self.virtual_servers);
        pack(&mut self.addresses);
        pack(&mut self.routes.singles);
        pack(&mut self.host_addresses);
        self.sets.values_mut().for_each(pack);
    }
}

/// Number of a Frontend's first choices by which it is recognized.
const RECOGNISED_BY: usize = 16;

/// Frontends of virtual servers of marks whose records are lost, found by their marks alone: a mark follows from the
/// place, and a place has at most one. Places are those of virtual servers of addresses. If several have a mark of one
/// place, the one counts that shares an endpoint with a virtual server of an address, or none.
fn recall(
    config: &Config,
    lost: &BTreeSet<VirtualServerKey>,
    servers: &BTreeMap<VirtualServerKey, Server>,
) -> Vec<(FrontendKey, NonZeroU32)> {
    let mut marks = split::Marks::new(config.ipvs.mark_range);
    let places = servers.keys().filter_map(|key| FrontendKey::try_from(*key).ok());
    // Few candidates have one of these marks.
    let ways = places.flat_map(|place| {
        let candidates = marks.candidates(&place).take(RECOGNISED_BY);
        let servers = candidates.map(move |mark| (place, mark, split::key(place.family(), mark)));
        servers.filter(|(_, _, server)| lost.contains(server))
    });
    let ways: Vec<_> = ways.collect();
    let of_addresses = servers.iter().filter(|(key, _)| key.addr().is_some());
    let endpoints: BTreeSet<RealServerKey> =
        of_addresses.flat_map(|(_, server)| server.real_servers.iter()).map(|real| real.key).gather();
    let is_likely = |server: &VirtualServerKey| {
        let reals = servers.get(server).map(|server| &server.real_servers);
        reals.is_none_or(|reals| reals.is_empty() || reals.iter().any(|real| endpoints.contains(&real.key)))
    };
    for likely in [true, false] {
        for (place, mark, server) in &ways {
            if is_likely(server) == likely && marks.is_free(server) && !marks.of.contains_key(place) {
                marks.insert(*place, *mark);
            }
        }
    }
    marks.of.into_iter().collect()
}

pub(super) fn is_single(network: &Network) -> bool {
    network.prefix_len() == network.max_prefix_len()
}

/// The local routes in the kernel, with their sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BoundRoutes {
    /// Networks of more than one address: few.
    pub(super) whole: BTreeMap<Network, Option<IpAddr>>,
    singles: BTreeMap<Network, Option<IpAddr>>,
}

impl BoundRoutes {
    pub fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.singles.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Network, Option<IpAddr>)> {
        self.whole.iter().chain(&self.singles).map(|(network, source)| (network, *source))
    }

    pub fn has(&self, network: &Network) -> bool {
        self.of_length(network).contains_key(network)
    }

    pub(crate) fn has_family(&self, family: Family) -> bool {
        // Sorted by family.
        let ends = [&self.whole, &self.singles].map(|routes| [routes.keys().next(), routes.keys().next_back()]);
        ends.as_flattened().iter().flatten().any(|network| Family::of(network.addr()) == family)
    }

    /// Whether an address is local because of a route other than the one for this network.
    pub(crate) fn cover(&self, address: IpAddr, but: Option<&Network>) -> bool {
        let is_other = |network: &Network| Some(network) != but;
        let single = Network::from(address);
        (self.singles.contains_key(&single) && is_other(&single))
            || self.whole.keys().any(|network| network.contains(&address) && is_other(network))
    }

    pub(crate) fn insert(&mut self, network: Network, source: Option<IpAddr>) {
        let routes = if is_single(&network) { &mut self.singles } else { &mut self.whole };
        routes.insert(network, source);
    }

    pub(crate) fn remove(&mut self, network: &Network) {
        self.whole.remove(network);
        self.singles.remove(network);
    }

    fn of_length(&self, network: &Network) -> &BTreeMap<Network, Option<IpAddr>> {
        if is_single(network) { &self.singles } else { &self.whole }
    }

    pub(super) fn is(&self, network: &Network, source: Option<IpAddr>) -> bool {
        self.of_length(network).get(network) == Some(&source)
    }
}

impl FromIterator<(Network, Option<IpAddr>)> for BoundRoutes {
    fn from_iter<I: IntoIterator<Item = (Network, Option<IpAddr>)>>(routes: I) -> Self {
        let (singles, whole) = routes.into_iter().partition(|(network, _)| is_single(network));
        BoundRoutes { whole, singles }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_of_a_family_are_found_among_both_kinds() {
        for (networks, has) in [
            ("", [false, false]),
            ("10.96.0.0/12", [true, false]),
            ("203.0.113.7/32", [true, false]),
            ("fd00::/112", [false, true]),
            ("2001:db8::1/128", [false, true]),
            ("203.0.113.7/32 2001:db8::1/128", [true, true]),
        ] {
            let routes = networks.split_whitespace().map(|network| (network.parse().unwrap(), None));
            let routes: BoundRoutes = routes.collect();
            assert_eq!(Family::ALL.map(|family| routes.has_family(family)), has, "{networks}");
        }
    }
}
