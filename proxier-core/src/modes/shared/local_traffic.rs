//! Detection of traffic of this node's pods, as every mode sees it.

use crate::config::{InterfaceName, LocalTraffic};
use crate::net::{Family, Network};
use crate::service::NodeFacts;

/// Detection of a family's traffic of this node's pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodTraffic {
    /// Local pod traffic is not detected.
    Unknown,
    /// Sources in this network.
    Network(Network),
    /// Packets that come in by this device.
    Interface(InterfaceName),
    /// Packets that come in by a device whose name begins so.
    Prefix(InterfaceName),
}

impl PodTraffic {
    /// Detection as configured ([`LocalTraffic`]), for a family.
    pub(crate) fn from_facts(facts: &NodeFacts, family: Family) -> Self {
        let network = match &facts.config().local_traffic {
            LocalTraffic::ClusterCidrs(networks) => {
                networks.iter().copied().find(|network| Family::of(network.addr()) == family)
            }
            LocalTraffic::NodeCidr => facts.pod_cidr(family),
            LocalTraffic::BridgeInterface(name) => return PodTraffic::Interface(name.clone()),
            LocalTraffic::InterfaceNamePrefix(name) => return PodTraffic::Prefix(name.clone()),
        };
        network.map_or(PodTraffic::Unknown, PodTraffic::Network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::snapshot::{HostAddresses, Node};

    #[test]
    fn each_family_has_its_own_network() {
        let mut config = Config::default();
        let mut of = |local: LocalTraffic| {
            config.local_traffic = local;
            let facts = NodeFacts::new(&config, &Node::new("node-a"), &HostAddresses::default());
            Family::ALL.map(|family| PodTraffic::from_facts(&facts, family))
        };
        let network: Network = "fd00:10:244::/56".parse().unwrap();
        let only_v6 = [PodTraffic::Unknown, PodTraffic::Network(network)];
        assert_eq!(of(LocalTraffic::ClusterCidrs(vec![network])), only_v6);
        assert_eq!(of(LocalTraffic::NodeCidr), [PodTraffic::Unknown, PodTraffic::Unknown]);
        let name = InterfaceName::new("cni0").unwrap();
        let both = PodTraffic::Interface(name.clone());
        assert_eq!(of(LocalTraffic::BridgeInterface(name.clone())), [both.clone(), both]);
        let both = PodTraffic::Prefix(name.clone());
        assert_eq!(of(LocalTraffic::InterfaceNamePrefix(name)), [both.clone(), both]);
    }
}
