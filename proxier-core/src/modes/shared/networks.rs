//! Addresses and networks of this node: its own, those of its pods, and those of Services that routes make local.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::config::{InterfaceName, KernelNames, LocalTraffic};
use crate::modes::shared::cleaned::Cleaned;
use crate::net::{Family, Network};
use crate::pack::Gather as _;
use crate::plan::operation::Operation;
use crate::plan::report::Unread;
use crate::plan::step::{Action, Names};
use crate::ports::{Links, LocalRoute, Ports, RouteOwner};
use crate::service::NodeFacts;
pub(crate) use crate::service::PodTraffic;
use crate::snapshot::HostAddresses;

pub(crate) fn read_host(links: &mut dyn Links) -> Result<HostAddresses, Unread> {
    links.addresses().map_err(|error| Unread::new("addresses", error))
}

/// The addresses on the devices of other proxies, each with the proxy in words. An address that this proxy's device has
/// too is the other's if that has the smaller name.
pub(crate) fn of_other_proxies(host: &HostAddresses, names: &KernelNames) -> BTreeMap<IpAddr, Arc<str>> {
    let own = names.device.as_str();
    let mut others =
        host.interfaces.iter().filter(|(device, _)| names.is_of_a_proxy(device) && *device != own).peekable();
    // Without another proxy, the many addresses of the own device are not gone through.
    let beside = others.peek().and_then(|_| host.interfaces.get(own));
    let bound: BTreeSet<IpAddr> = beside.into_iter().flatten().map(IpAddr::to_canonical).collect();
    let addresses = others.flat_map(|(device, addresses)| {
        let by: Arc<str> = format!("another proxy (device {device})").into();
        addresses.iter().map(IpAddr::to_canonical).map(move |address| (device, address, by.clone()))
    });
    let is_theirs = |device: &str, address: &IpAddr| !bound.contains(address) || device < own;
    addresses.filter(|(device, address, _)| is_theirs(device, address)).map(|(_, address, by)| (address, by)).gather()
}

/// The addresses of interfaces other than proxies' devices.
pub fn other_addresses<'a>(host: &'a HostAddresses, names: &'a KernelNames) -> impl Iterator<Item = IpAddr> + 'a {
    let others = host.interfaces.iter().filter(|(interface, _)| !names.is_of_a_proxy(interface));
    others.flat_map(|(_, addresses)| addresses).map(IpAddr::to_canonical)
}

impl PodTraffic {
    fn matching(&self) -> Option<[String; 2]> {
        let (option, value) = match self {
            PodTraffic::Unknown => return None,
            PodTraffic::Network(network) => ("-s", network.to_string()),
            PodTraffic::Interface(name) => ("-i", name.to_string()),
            // A prefix of maximum length matches only the name itself.
            PodTraffic::Prefix(name) if name.as_str().len() == InterfaceName::MAX_LEN => ("-i", name.to_string()),
            PodTraffic::Prefix(name) => ("-i", format!("{name}+")),
        };
        Some([option.to_owned(), value])
    }

    /// The arguments of iptables that match pod traffic; `None` if it cannot be detected.
    pub(crate) fn inside(&self) -> Option<Vec<String>> {
        self.matching().map(Vec::from)
    }

    /// The arguments of iptables that match all other traffic; `None` if it cannot be detected, or there is none.
    pub(crate) fn outside(&self) -> Option<Vec<String>> {
        let is_all = matches!(self, PodTraffic::Network(network) if network.prefix_len() == 0);
        let matching = self.matching().filter(|_| !is_all)?;
        Some(std::iter::once("!".to_owned()).chain(matching).collect())
    }
}

/// Why a network is not made local as a whole. Prints as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unusable {
    /// The network.
    pub network: Network,
    /// The obstacle in the network, in words.
    pub holds: String,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unusable { network, holds } = self;
        write!(
            f,
            "{network}, a network of cluster IPs (ServiceCIDR, serviceCIDRs), is not the Services' alone: it has {holds}; \
             each Service's address in it gets a route of its own instead"
        )
    }
}

/// Networks of the configured families that can be local as a whole, and those that cannot. A network cannot if it
/// contains pods, or an address of the node, a gateway, the API server or another host that the node must reach. These
/// would be cut off. A neighbour's address that is also a Service's, such as cluster DNS, does not matter; `is_wanted`
/// returns whether an address is a Service's.
pub(crate) fn usable(
    networks: &[Network],
    is_wanted: &dyn Fn(IpAddr) -> bool,
    facts: &NodeFacts,
) -> (BTreeSet<Network>, Vec<Unusable>) {
    let (mut usable, mut unusable) = (BTreeSet::new(), Vec::new());
    let families = facts.config().families;
    let is_served = |network: &&Network| families.has(Family::of(network.addr()));
    for network in networks.iter().filter(is_served) {
        match obstacle(network, is_wanted, facts) {
            Some(holds) => unusable.push(Unusable { network: *network, holds }),
            None => drop(usable.insert(network.trunc())),
        }
    }
    (usable, unusable)
}

/// The first use of this network other than by Services.
fn obstacle(network: &Network, is_wanted: &dyn Fn(IpAddr) -> bool, facts: &NodeFacts) -> Option<String> {
    let config = facts.config();
    if let Some(own) = facts.own_addresses().find(|address| network.contains(address)) {
        return Some(format!("{own}, an address of this node"));
    }
    let mut neighbours = config.reserved.neighbours();
    let is_in = |address: &IpAddr| network.contains(address) && !is_wanted(*address);
    if let Some((user, neighbour)) = neighbours.find(|(_, neighbour)| is_in(&neighbour.address)) {
        return Some(format!("{}, the address of {user}", neighbour.address));
    }
    let mut nodes =
        config.reserved.nodes.range(network.network()..).take_while(|(address, _)| network.contains(*address));
    if let Some((address, name)) = nodes.find(|(address, _)| is_in(address)) {
        return Some(format!("{address}, the address of Node {name}"));
    }
    let of_cluster = match &config.local_traffic {
        LocalTraffic::ClusterCidrs(networks) => &networks[..],
        _ => &[],
    };
    let mut pods = of_cluster.iter().copied().chain(facts.pod_cidrs());
    pods.find(|pods| network.contains(pods)).map(|pods| format!("{pods}, a network of pods"))
}

/// The separate route that an address needs: none within the networks that are local as a whole.
pub(crate) fn network_of<'a>(address: IpAddr, whole: impl IntoIterator<Item = &'a Network>) -> Option<Network> {
    let is_covered = whole.into_iter().any(|network| network.contains(&address));
    (!is_covered).then(|| Network::from(address))
}

pub(crate) fn delete_routes(owner: RouteOwner, ports: &mut Ports<'_>, cleaned: &mut Cleaned) {
    match ports.routes.networks(owner) {
        Ok(networks) => {
            let all = networks.into_keys().map(LocalRoute::new);
            let all = all.map(|route| Operation::Route(Action::Delete, owner, route));
            cleaned.applied.carry_out(all, &Names::NONE, ports);
        }
        Err(error) => cleaned.miss("local routes", error),
    }
}
