//! The node on which the proxy runs: its Node object, and the addresses of the host.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{ObjectKey, ObjectKind, Rejection, Reporter, is_usable_by_service, parse_address, parse_network, weights};
use crate::net::{Family, Network};
use crate::objects::{Metadata, NodeObject};

/// A checked Node object.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Node {
    /// Name of the Node. Endpoints with this `nodeName` are local.
    pub name: String,
    /// Zone of the Node (label `topology.kubernetes.io/zone`), if not empty.
    pub zone: Option<String>,
    /// Its addresses, at most one per family: internal ones before external ones.
    pub addresses: Vec<IpAddr>,
    /// Networks of its pods.
    pub pod_cidrs: Vec<Network>,
}

impl Node {
    /// The annotation, otherwise label, of a Node with the weight of its endpoints.
    pub const WEIGHT: &str = "proxier/weight";

    /// The weight of a node's endpoints, by annotation or label `proxier/weight`, 0 to 65535. `None` if it is not set,
    /// or if the value is invalid, which is reported.
    pub(crate) fn weight(object: &NodeObject, rejections: &mut Vec<Rejection>) -> Option<u16> {
        let Metadata { name, labels, annotations, .. } = &object.metadata;
        let annotated = annotations.get(Self::WEIGHT).map(|text| ("annotations", text));
        let (place, text) = annotated.or_else(|| Some(("labels", labels.get(Self::WEIGHT)?)))?;
        let weight = weights::parse(text);
        if weight.is_none() {
            let report = &mut Reporter { kind: ObjectKind::Node, key: &ObjectKey::new("", name), rejections };
            report.reject(format!("metadata.{place}[{}]", Self::WEIGHT), text, "not a weight, 0 to 65535; 1 counts");
        }
        weight
    }

    /// Creates a node of which only the name is known.
    pub fn new(name: &str) -> Self {
        Node { name: name.to_owned(), ..Node::default() }
    }

    /// Checks a Node object. Ignores and reports impossible values; the rest counts.
    pub fn check(object: &NodeObject, rejections: &mut Vec<Rejection>) -> Self {
        let key = &ObjectKey::new("", &object.metadata.name);
        let report = &mut Reporter { kind: ObjectKind::Node, key, rejections };
        let mut node = Node::new(&object.metadata.name);
        let zone = object.metadata.labels.get("topology.kubernetes.io/zone");
        node.zone = zone.filter(|zone| !zone.is_empty()).map(str::to_owned);
        for wanted in ["InternalIP", "ExternalIP"] {
            for (index, address) in object.status.addresses.iter().enumerate() {
                if address.address_type != wanted {
                    continue;
                }
                match parse_address(&address.address).filter(|address| !address.is_unspecified()) {
                    Some(address) if node.address(Family::of(address)).is_none() => node.addresses.push(address),
                    Some(_) => {}
                    None => report.reject(
                        format!("status.addresses[{index}].address"),
                        &address.address,
                        "not an address; left out",
                    ),
                }
            }
        }
        let listed = &object.spec.pod_cidrs;
        let cidrs = if listed.is_empty() { object.spec.pod_cidr.as_slice() } else { listed };
        node.pod_cidrs = report.read_all("spec.podCIDRs", cidrs, parse_network, "not a network; left out");
        node
    }

    /// All addresses of a Node, internal and external, of which it may have several per family. Invalid host addresses
    /// are ignored.
    pub(crate) fn all_addresses(object: &NodeObject) -> Vec<IpAddr> {
        let is_ip = |kind: &str| matches!(kind, "InternalIP" | "ExternalIP");
        let listed = object.status.addresses.iter().filter(|address| is_ip(&address.address_type));
        let addresses = listed.filter_map(|address| parse_address(&address.address));
        addresses.filter(|address| is_usable_by_service(*address)).collect()
    }

    pub(crate) fn address(&self, family: Family) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| Family::of(*address) == family)
    }
}

/// The addresses of this host by interface, as in the kernel. They decide where node ports are served and which
/// external addresses are bound to the dummy device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostAddresses {
    /// Addresses by interface name. The dummy device's may be included; they are ignored.
    pub interfaces: BTreeMap<String, Vec<IpAddr>>,
}
