//! The cluster around this node: its Node object, the other Nodes with their weights and addresses, and the networks of
//! cluster IPs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::net::Network;
use crate::objects::NodeObject;
use crate::snapshot::{Node, Rejection};

/// What the cluster's objects contain about this node and the others.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) node: Node,
    /// Unusable values of this node's own object.
    pub(super) rejections: Vec<Rejection>,
    pub(super) nodes: ClusterNodes,
    /// Networks of cluster IPs that the cluster declares.
    pub(super) service_cidrs: Arc<[Network]>,
}

impl Cluster {
    pub(super) fn new(node_name: &str) -> Self {
        Cluster {
            node: Node::new(node_name),
            rejections: Vec::new(),
            nodes: ClusterNodes::default(),
            service_cidrs: Arc::default(),
        }
    }

    /// Unusable values of all Nodes.
    pub(super) fn rejections(&self) -> impl Iterator<Item = &Rejection> {
        self.rejections.iter().chain(self.nodes.rejections.values().flatten())
    }
}

/// Weights and addresses of Nodes by name, updated one Node at a time.
#[derive(Debug, Default)]
pub(super) struct ClusterNodes {
    /// Weights other than 1.
    weights: Arc<BTreeMap<Box<str>, u16>>,
    rejections: BTreeMap<Box<str>, Vec<Rejection>>,
    addresses: BTreeMap<Arc<str>, Box<[IpAddr]>>,
    /// Differences since [`ClusterNodes::take_changed`].
    changed: NodeChanges,
}

/// Differences between two states of the cluster's Nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeChanges {
    pub(super) weights: bool,
    pub(super) addresses: bool,
}

impl ClusterNodes {
    /// Updates the weight of a new or changed Node. Returns whether it changed.
    pub(super) fn upsert_weight(&mut self, object: &NodeObject) -> bool {
        let name = &*object.metadata.name;
        let mut rejections = Vec::new();
        let weight = Node::weight(object, &mut rejections).filter(|weight| *weight != 1);
        if rejections.is_empty() {
            self.rejections.remove(name);
        } else {
            self.rejections.insert(name.into(), rejections);
        }
        self.set_weight(name, weight)
    }

    /// Updates the addresses of a new or changed Node. Returns whether they changed.
    pub(super) fn upsert_addresses(&mut self, object: &NodeObject) -> bool {
        let name = &*object.metadata.name;
        let addresses = Node::all_addresses(object);
        if self.addresses.get(name).map(|known| &**known).unwrap_or_default() == addresses {
            return false;
        }
        self.addresses.insert(name.into(), addresses.into());
        self.changed.addresses = true;
        true
    }

    /// Removes a Node. Returns whether it had a weight or addresses.
    pub(super) fn delete(&mut self, name: &str) -> bool {
        self.rejections.remove(name);
        let had_addresses = self.addresses.remove(name).is_some();
        self.changed.addresses |= had_addresses;
        self.set_weight(name, None) || had_addresses
    }

    fn set_weight(&mut self, name: &str, weight: Option<u16>) -> bool {
        if self.weights.get(name).copied() == weight {
            return false;
        }
        let weights = Arc::make_mut(&mut self.weights);
        match weight {
            Some(weight) => weights.insert(name.into(), weight),
            None => weights.remove(name),
        };
        self.changed.weights = true;
        true
    }

    /// All weights other than 1.
    pub(super) fn weights(&self) -> &Arc<BTreeMap<Box<str>, u16>> {
        &self.weights
    }

    /// The addresses of all Nodes except this one. If two Nodes have the same address, the first by name.
    pub(super) fn by_address(&self, own: &str) -> BTreeMap<IpAddr, Arc<str>> {
        let mut nodes = BTreeMap::new();
        for (name, addresses) in self.addresses.iter().filter(|(name, _)| ***name != *own) {
            for address in addresses {
                nodes.entry(*address).or_insert_with(|| name.clone());
            }
        }
        nodes
    }

    /// Differences since the last call.
    pub(super) fn take_changed(&mut self) -> NodeChanges {
        std::mem::take(&mut self.changed)
    }
}
