//! Binding by routes: which networks are local as a whole, which addresses individually, and the differences from the
//! kernel. Pure.
//!
//! How a local route on `lo` differs from an address on the dummy device:
//!
//! * A network that is local as a whole takes packets to all its addresses. So rules refuse new connections to addresses
//!   and ports that no Service serves ([`Inputs::guarded_networks`](super::rules::Inputs::guarded_networks)), where a
//!   program that listens on all addresses of this host would answer. The rules are written before the route. A port in
//!   the sets counts as served. So until its virtual server is created, such a program answers there. An address with a
//!   route of its own waits for its virtual server.
//! * ARP: with `arp_ignore` 0 the kernel answers for every address of a local route on every interface, as it does for
//!   the dummy device's addresses (net/ipv4/arp.c, `arp_process`). For a whole network that is too much. With 1
//!   (`ipvs.strictARP`) it answers only for addresses that the interface itself has (`arp_ignore`,
//!   `inet_confirm_addr`), so for none of these. IPv6: neighbour advertisements are sent only for an interface's own
//!   addresses (net/ipv6/ndisc.c, `ndisc_recv_ns`), so never for these. A program that announces load balancers'
//!   addresses can do so with either binding.
//! * Incoming packets with such a source are dropped, as with any address of this host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::observed::{Observed, is_single};
use super::wanted::{Changed, Wanted};
use crate::config::Config;
pub use crate::modes::shared::networks::Unusable;
use crate::modes::shared::networks::{network_of, usable};
use crate::net::{Family, Network};
use crate::ports::LocalRoute;
use crate::service::NodeFacts;
use crate::snapshot::is_usable_by_service;

/// Networks that must be local without any address being bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Whether addresses are bound by routes at all.
    pub is_on: bool,
    pub whole: BTreeSet<Network>,
    /// Networks of cluster IPs that cannot be made local.
    pub unusable: Vec<Unusable>,
    /// The sources of this host's own packets, at most one of each family.
    sources: Vec<IpAddr>,
}

impl Routes {
    /// Networks for this node. A network cannot be local as a whole if it has an address of the node, a gateway, the
    /// API server or another host that the node needs. Neither can a network of pods. `is_wanted` returns whether an
    /// address is a Service's.
    pub fn new(is_wanted: &dyn Fn(IpAddr) -> bool, facts: &NodeFacts) -> Self {
        let config = facts.config();
        if !config.binds_by_routes() {
            return Self::default();
        }
        let of_node = |family| facts.node_address(family).filter(|address| facts.is_on_interface(*address));
        let (whole, unusable) = usable(facts.service_cidrs_or(&config.ipvs.service_cidrs), is_wanted, facts);
        Routes { is_on: true, whole, unusable, sources: config.families.iter().filter_map(of_node).collect() }
    }

    fn source(&self, network: &Network) -> Option<IpAddr> {
        let family = Family::of(network.addr());
        self.sources.iter().copied().find(|source| Family::of(*source) == family)
    }

    fn wants(&self, network: &Network, wanted: &Wanted<'_>, config: &Config) -> bool {
        let address = network.addr();
        self.whole.contains(network)
            || (is_single(network)
                && wanted.has_address(address)
                && config.families.has(Family::of(address))
                && is_usable_by_service(address)
                && self.is_on
                && network_of(address, &self.whole).is_some())
    }

    pub(crate) fn differ_in_whole(&self, observed: &Observed) -> bool {
        let there = observed.routes.whole.iter().map(|(network, source)| (*network, *source));
        !self.whole.iter().map(|network| (*network, self.source(network))).eq(there)
    }

    /// The routes to add and to delete for what changed. Those of families that are not configured are not changed.
    pub(crate) fn diff(
        &self,
        wanted: &Wanted<'_>,
        observed: &Observed,
        changed: &Changed,
        config: &Config,
    ) -> [Vec<LocalRoute>; 2] {
        let (mut add, mut delete) = (BTreeMap::new(), BTreeSet::new());
        let mut compare = |network: Network| {
            let source = self.source(&network);
            if self.wants(&network, wanted, config) {
                if !observed.routes.is(&network, source) {
                    add.insert(network, source);
                }
            } else if observed.routes.has(&network) && config.families.has(Family::of(network.addr())) {
                // Another interface got the address later: see [`Wanted::is_elsewhere`].
                let stays = self.is_on && is_single(&network) && wanted.is_elsewhere(network.addr());
                delete.extend((!stays).then_some(network));
            }
        };
        if changed.is_all {
            wanted.addresses().map(Network::from).for_each(&mut compare);
            observed.routes.iter().map(|(network, _)| network).chain(&self.whole).copied().for_each(&mut compare);
        }
        changed.addresses.union(&changed.elsewhere).copied().map(Network::from).for_each(compare);
        let add = add.into_iter().map(|(network, source)| LocalRoute { network, source });
        let (single, whole): (Vec<_>, Vec<_>) = add.partition(|route| is_single(&route.network));
        [[whole, single].concat(), delete.into_iter().map(LocalRoute::new).collect()]
    }
}
