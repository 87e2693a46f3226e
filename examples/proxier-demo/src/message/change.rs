//! What a source of Services reports: single changes, and when the initial list is complete.

use std::collections::BTreeMap;

use proxier_core::net::Network;
use proxier_core::objects::{EndpointSliceObject, NodeObject, ServiceObject};
use proxier_core::snapshot::{Node, ObjectKey, ObjectKind};

use crate::problem::Problem;

/// A change of the input.
///
/// Objects come one at a time, so that no buffer holds a cluster's objects at once. The receiver puts each into a
/// [`Store`](proxier_core::snapshot::Store), and compiles at [`Synced`](Change::Synced). Before that the initial list
/// is incomplete, and nothing may be deleted from the kernel.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Change {
    /// A new or changed Service, possibly unchanged.
    UpsertService(Box<ServiceObject>),
    DeleteService(ObjectKey),
    /// Services or EndpointSlices are missing from a new list, or from all files, without a reported deletion. They come
    /// together, so that the receiver sees their number: one by one, each would look like a small loss.
    Lost(ObjectKind, Vec<ObjectKey>),
    UpsertSlice(Box<EndpointSliceObject>),
    DeleteSlice(ObjectKey),
    /// A new list of this kind begins. Objects that were missing may still appear until [`Listed`](Change::Listed).
    Listing(ObjectKind),
    /// The list of this kind is complete.
    Listed(ObjectKind),
    /// This node's Node object is new or changed.
    Node(Box<NodeState>),
    /// This node's Node object was deleted.
    NodeGone,
    /// A Node of the cluster, new or changed, with only the fields for its weight and addresses.
    ClusterNode(Box<NodeObject>),
    /// A Node of the cluster was deleted; its name.
    ClusterNodeGone(String),
    /// A ServiceCIDR, by name, new or changed: the networks from which the cluster allocates cluster IPs.
    ServiceCidr(String, Vec<Network>),
    /// A ServiceCIDR was deleted; its name. No Service has an address of it any more.
    ServiceCidrGone(String),
    /// The initial list is complete. Sent once.
    Synced,
    /// An object, or a file, cannot be read; its last readable content is kept. To be logged and counted.
    Unreadable(Box<Unreadable>),
    /// An unreadable object was deleted, or can be read again, and nothing else is known of it.
    Readable(ObjectKind, ObjectKey),
}

/// An object, or a part of a file, that cannot be read.
#[derive(Clone, Debug, PartialEq)]
pub struct Unreadable {
    /// Kind and name, which is empty if it cannot be read either; `None`: everything could be read, but not all of it
    /// counts.
    pub object: Option<(ObjectKind, ObjectKey)>,
    /// The Service of an EndpointSlice, if readable.
    pub service: Option<ObjectKey>,
    pub problem: Problem,
}

impl Change {
    /// Reduces a Node of the cluster to its weight and addresses.
    pub(crate) fn cluster_node(object: NodeObject) -> Self {
        let mut object = NodeObject { metadata: object.metadata, status: object.status, ..NodeObject::default() };
        object.metadata.labels.retain(|name, _| name == Node::WEIGHT);
        object.metadata.annotations.retain(|name, _| name == Node::WEIGHT);
        Change::ClusterNode(Box::new(object))
    }
}

/// Merges the deletions of each kind into one change, since they were inferred rather than reported.
pub(crate) fn unannounced(changes: impl IntoIterator<Item = Change>) -> Vec<Change> {
    let (mut lost, mut others) = (BTreeMap::<ObjectKind, Vec<ObjectKey>>::new(), Vec::new());
    for change in changes {
        match change {
            Change::DeleteService(key) => lost.entry(ObjectKind::Service).or_default().push(key),
            Change::DeleteSlice(key) => lost.entry(ObjectKind::EndpointSlice).or_default().push(key),
            other => others.push(other),
        }
    }
    lost.into_iter().map(|(kind, keys)| Change::Lost(kind, keys)).chain(others).collect()
}

/// A Node, and state that its [`NodeObject`] does not have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeState {
    /// Labels, addresses, networks.
    pub object: NodeObject,
    /// Whether the Node is being deleted, or a cluster autoscaler is about to delete it (taint
    /// `ToBeDeletedByClusterAutoscaler`). Load balancers should open no new connections here.
    pub leaving: bool,
}

/// The input at one moment, for `plan` and `--once`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    pub services: BTreeMap<ObjectKey, Box<ServiceObject>>,
    pub slices: BTreeMap<ObjectKey, Box<EndpointSliceObject>>,
    pub node: Option<NodeState>,
    /// Nodes of the cluster by name, for their weights and addresses.
    pub cluster_nodes: BTreeMap<String, NodeObject>,
    pub service_cidrs: BTreeMap<String, Vec<Network>>,
    /// Objects and files that could not be read.
    pub unreadable: Vec<Unreadable>,
}

impl Snapshot {
    /// Applies one change. Costs O(the change), regardless of the number of objects.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::UpsertService(object) => drop(self.services.insert(ObjectKey::of(&object.metadata), object)),
            Change::DeleteService(key) => drop(self.services.remove(&key)),
            Change::Lost(ObjectKind::Service, keys) => keys.iter().for_each(|key| drop(self.services.remove(key))),
            Change::UpsertSlice(object) => drop(self.slices.insert(ObjectKey::of(&object.metadata), object)),
            Change::DeleteSlice(key) => drop(self.slices.remove(&key)),
            Change::Lost(_, keys) => keys.iter().for_each(|key| drop(self.slices.remove(key))),
            Change::Node(node) => self.node = Some(*node),
            Change::NodeGone => self.node = None,
            Change::ClusterNode(object) => {
                self.cluster_nodes.insert(object.metadata.name.clone(), *object);
            }
            Change::ClusterNodeGone(name) => drop(self.cluster_nodes.remove(&name)),
            Change::ServiceCidr(name, networks) => drop(self.service_cidrs.insert(name, networks)),
            Change::ServiceCidrGone(name) => drop(self.service_cidrs.remove(&name)),
            Change::Unreadable(unreadable) => self.unreadable.push(*unreadable),
            Change::Readable(kind, key) => self.unreadable.retain(|of| of.object != Some((kind, key.clone()))),
            Change::Listing(_) | Change::Listed(_) | Change::Synced => {}
        }
    }
}
