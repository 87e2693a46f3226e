//! The host's own addresses, gateways and API servers: read, compared with the known ones, and waited for.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::Reconciler;
use crate::config::{Neighbour, User};
use crate::modes::shared::networks;
use crate::net::is_reachable;
use crate::plan::report::Unread;
use crate::ports::Links;
use crate::snapshot::{EndpointSlice, HostAddresses, ObjectKey};
use crate::time::Moment;

impl Reconciler {
    /// Takes the host's addresses; returns whether the mode's device differs from its known state.
    pub(super) fn take_host(&mut self, host: HostAddresses, now: Moment) -> bool {
        self.host_stale = false;
        self.fast_path.host_changed();
        let before = std::mem::replace(&mut self.host, host);
        let names = &self.options.config.names;
        let there: BTreeSet<IpAddr> = networks::other_addresses(&self.host, names).collect();
        self.absent.retain(|address, _| !there.contains(address));
        let until = now.saturating_add(self.options.address_grace);
        for lost in networks::other_addresses(&before, names).filter(|address| !there.contains(address)) {
            if until > now && is_reachable(lost) {
                self.absent.entry(lost).or_insert(until);
            }
        }
        self.refresh_facts();
        self.mode.device_differs(&self.host)
    }

    /// Gives an address on which an earlier process served node ports, and which this host lacks at the first reading of the kernel, the
    /// same time to come back as one lost later. Returns whether there is one.
    pub(super) fn take_served(&mut self, now: Moment) -> bool {
        if self.knows_served || !self.mode.knows_kernel() {
            return false;
        }
        self.knows_served = true;
        let until = now.saturating_add(self.options.address_grace);
        let served = self.mode.served_node_addresses(self.options.config.families);
        let missing: BTreeSet<IpAddr> = served
            .into_iter()
            .filter(|address| until > now && is_reachable(*address) && !self.facts.is_here(*address))
            .collect();
        self.absent.extend(missing.iter().map(|address| (*address, until)));
        if !missing.is_empty() {
            self.refresh_facts();
        }
        !missing.is_empty()
    }

    /// Drops addresses that have been lost for long enough.
    pub(super) fn give_up_absent(&mut self, now: Moment) {
        let before = self.absent.len();
        self.absent.retain(|_, until| *until > now);
        if self.absent.len() != before {
            self.refresh_facts();
        }
    }

    /// Reads the gateways of the default routes. Keeps the known ones if they cannot be read; and a family without a
    /// default route at the moment keeps its gateway, since the route will come back to it.
    pub(super) fn read_gateways(&mut self, links: &mut dyn Links) -> Option<Unread> {
        match links.gateways() {
            Ok(mut found) => {
                self.knows_gateways = true;
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
            Err(_) if self.knows_gateways => None,
            Err(error) => Some(Unread::new("default routes", error)),
        }
    }

    /// Takes the weights and addresses of the cluster's Nodes. Services that ask for an address which a Node got or lost are compiled
    /// again; all of them for a changed weight. Costs O(Nodes + Frontends), only when the addresses of a Node changed.
    pub(super) fn take_cluster_nodes(&mut self) {
        let changed = self.cluster_nodes.take_changed();
        if changed.addresses {
            let nodes = Arc::new(self.cluster_nodes.by_address(&self.node.name));
            self.options.config.reserved.set_nodes(nodes.clone());
            let before = self.facts.config.reserved.set_nodes(nodes.clone());
            let differs = |address: &IpAddr| before.get(address) != nodes.get(address);
            self.pending.extend(self.desired.services_at(differs).cloned());
        }
        if changed.weights {
            self.refresh_facts();
        }
    }

    /// Takes the endpoints of `default/kubernetes` as API servers. While it has none, keeps the earlier ones.
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
}
