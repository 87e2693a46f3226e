//! Networks of cluster IPs: which of them can be local as a whole.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use crate::config::LocalTraffic;
use crate::net::{Family, Network};
use crate::service::NodeFacts;

/// Reason why a network is not made local as a whole. Prints as a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unusable {
    /// The network.
    pub network: Network,
    /// Obstacle in the network, in words.
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

/// Networks of the configured families that can be local as a whole, and those that cannot. A network cannot that has an address of the
/// node, of a gateway, of the API server or of another host that the node has to reach, or a network of pods: these would be cut off.
/// A neighbour's address that is a Service's, such as cluster DNS, is no obstacle; `is_wanted` says whether one is.
pub(crate) fn usable(
    networks: &[Network],
    is_wanted: &dyn Fn(IpAddr) -> bool,
    facts: &NodeFacts,
) -> (BTreeSet<Network>, Vec<Unusable>) {
    let (mut usable, mut unusable) = (BTreeSet::new(), Vec::new());
    let families = facts.config().families;
    let is_served = |network: &&Network| families.iter().any(|family| family == Family::of(network.addr()));
    for network in networks.iter().filter(is_served) {
        match obstacle(network, is_wanted, facts) {
            Some(holds) => unusable.push(Unusable { network: *network, holds }),
            None => drop(usable.insert(network.trunc())),
        }
    }
    (usable, unusable)
}

/// The first use of this network by anything but Services.
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
        config.reserved.nodes().range(network.network()..).take_while(|(address, _)| network.contains(*address));
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
