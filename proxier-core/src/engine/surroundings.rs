//! What surrounds the Services: this host's addresses and gateways, other proxies on it, API servers, and the cluster's
//! Nodes and networks of cluster IPs. The node facts follow from them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use super::pass::Run;
use super::state::Reconciler;
use crate::config::{Neighbour, OtherProxies, User};
use crate::modes::served_by_others;
use crate::modes::shared::networks;
use crate::net::{FrontendKey, Network, is_reachable};
use crate::objects::NodeObject;
use crate::pack::Gather as _;
use crate::plan::report::Unread;
use crate::ports::{Links, Tables};
use crate::snapshot::{EndpointSlice, HostAddresses, Node, ObjectKey, Rejection};
use crate::time::Moment;

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
        true
    }

    /// Removes a Node. Returns whether it had a weight or addresses.
    pub(super) fn delete(&mut self, name: &str) -> bool {
        self.rejections.remove(name);
        let had_addresses = self.addresses.remove(name).is_some();
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
}

impl Reconciler {
    /// Reads the host's addresses and gateways. The pass becomes full if the mode's device or routes differ.
    pub(super) fn read_host(&mut self, run: &mut Run<'_, '_>) {
        match networks::read_host(run.ports.links) {
            Ok(host) => {
                run.report.full |= self.take_host(host, run.now);
                run.report.full = run.report.full || self.mode.routes_differ(run.ports.routes);
            }
            Err(error) => run.report.unread.push(error),
        }
        run.report.unread.extend(self.read_gateways(run.ports.links));
        self.take_other_proxies(run.report.full, run.ports.tables);
    }

    /// Takes what other proxies on this node serve: it is left alone and reported. Services that ask for what changed
    /// are compiled again. What is known stays where tables cannot be read.
    fn take_other_proxies(&mut self, is_full: bool, tables: &mut dyn Tables) {
        let (names, known) = (&self.options.config.names, self.options.config.reserved.other_proxies.clone());
        let mut frontends = known.frontends.clone();
        if is_full && let Ok(served) = served_by_others(&self.facts, tables) {
            let serves = |key: &FrontendKey| self.mode.kernel().is_some_and(|kernel| kernel.serves(key).is_some());
            let theirs = served.into_iter().filter(|(key, table)| !serves(key) || **table < *names.table.as_str());
            let by = |table: String| format!("another proxy (table {table})").into();
            frontends = theirs.map(|(key, table)| (key, by(table))).gather();
        }
        let addresses = networks::of_other_proxies(&self.host.addresses, names);
        let held = Arc::new(OtherProxies { addresses, frontends });
        if held != known {
            self.options.config.reserved.other_proxies = held.clone();
            self.facts.config.reserved.other_proxies = held.clone();
            let changed = held.changed(&known);
            self.backlog.services.extend(self.desired.services_at(|address| changed.contains(address)).cloned());
        }
    }

    /// Stores the host's addresses. Returns whether the mode's device differs from its tracked state.
    pub(super) fn take_host(&mut self, host: HostAddresses, now: Moment) -> bool {
        if let Some(fast_path) = &mut self.add_ons.fast_path {
            fast_path.host_changed();
        }
        self.host.take(host, &self.options.config.names, self.options.address_grace, now);
        self.refresh_facts();
        self.mode.device_differs(&self.host.addresses)
    }

    /// Handles an address on which an earlier process served node ports, and which this host lacks at the first reading
    /// of the kernel. It gets the same time to come back as one lost later.
    pub(super) fn adopt(&mut self, run: &mut Run<'_, '_>) {
        if !run.report.unread.is_empty() || !self.mode.knows_kernel() {
            return;
        }
        self.host.knows_served = true;
        let now = run.now;
        let until = now.saturating_add(self.options.address_grace);
        let mut missing = self.mode.served_node_addresses(self.options.config.families);
        missing.retain(|address| until > now && is_reachable(*address) && !self.facts.is_here(*address));
        if !missing.is_empty() {
            self.host.absent.extend(missing.into_iter().map(|address| (address, until)));
            self.refresh_facts();
            self.refresh_desired(now);
        }
    }

    /// Reads the gateways of the default routes. Keeps the known ones if they cannot be read. A family without a
    /// default route at the moment keeps its gateway, because the route will return.
    pub(super) fn read_gateways(&mut self, links: &mut dyn Links) -> Option<Unread> {
        match links.gateways() {
            Ok(mut found) => {
                self.host.knows_gateways = true;
                let reserved = &mut self.options.config.reserved;
                let known = reserved.neighbours().filter(|(user, _)| **user == User::Gateway);
                let missing = |of: &IpAddr| found.iter().all(|new| new.is_ipv4() != of.is_ipv4());
                let kept: Vec<IpAddr> = known.map(|(_, neighbour)| neighbour.address).filter(missing).collect();
                found.extend(kept);
                if reserved.set_neighbours(User::Gateway, found.into_iter().map(Neighbour::new)) {
                    self.refresh_facts();
                }
                None
            }
            Err(_) if self.host.knows_gateways => None,
            Err(error) => Some(Unread::new("default routes", error)),
        }
    }

    /// Uses the endpoints of `default/kubernetes` as API servers. While it has none, keeps the earlier ones.
    pub(super) fn find_api_servers(&mut self) {
        let kubernetes = ObjectKey::new("default", "kubernetes");
        let ports = |slice: &EndpointSlice| -> Vec<u16> { slice.ports().iter().map(|port| port.port).collect() };
        let servers: Vec<Neighbour> = self
            .store
            .slices_of(&kubernetes)
            .flat_map(|slice| slice.endpoints.iter().map(move |endpoint| (endpoint.address, ports(slice))))
            .flat_map(|(address, ports)| ports.into_iter().map(move |port| Neighbour::tcp(address, port)))
            .collect();
        if !servers.is_empty() && self.options.config.reserved.set_neighbours(User::ApiServerEndpoint, servers) {
            self.refresh_facts();
        }
    }

    /// Applies changed weights and addresses of the cluster's Nodes. Services that request an address which a Node got
    /// or lost are recompiled; all of them for a changed weight. Costs O(Nodes + Frontends).
    pub(super) fn take_cluster_nodes(&mut self) {
        self.backlog.nodes_changed = false;
        let nodes = Arc::new(self.cluster.nodes.by_address(&self.cluster.node.name));
        self.options.config.reserved.nodes = nodes.clone();
        let before = std::mem::replace(&mut self.facts.config.reserved.nodes, nodes.clone());
        let differs = |address: &IpAddr| before.get(address) != nodes.get(address);
        self.backlog.services.extend(self.desired.services_at(differs).cloned());
        self.refresh_facts();
    }
}
