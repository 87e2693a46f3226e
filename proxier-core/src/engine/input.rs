//! Input of the reconciler: objects, Frontends, the node, its neighbours, and changes on the host or in its tables.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::own_transactions::RecordingTables;
use super::state::Reconciler;
use crate::config::{MayAskFor, Neighbour, User};
use crate::net::Network;
use crate::objects::{EndpointSliceObject, NodeObject, ServiceObject};
use crate::pack::Gather as _;
use crate::ports::Tables;
use crate::snapshot::{FrontendSpec, Node, ObjectKey, ObjectKind};
use crate::time::Moment;

impl Reconciler {
    /// Adds or updates a Service.
    pub fn upsert_service(&mut self, object: &ServiceObject, now: Moment) {
        self.note_found(ObjectKind::Service, &ObjectKey::of(&object.metadata), now);
        let changed = self.store.upsert_service(object);
        if let [service] = changed.as_slice()
            && self.store.slices_of(service).next().is_none()
        {
            self.schedule.request_incomplete(now);
            self.backlog.services.extend(changed);
        } else {
            self.enqueue(changed, now);
        }
    }

    /// Removes a Service whose deletion was reported. If it is merely missing from a list, call [`Reconciler::lose`].
    pub fn delete_service(&mut self, key: &ObjectKey, now: Moment) {
        self.note_found(ObjectKind::Service, key, now);
        // Its slices are deleted with it, so do not wait for those that are missing.
        let slices = self.store.slices_of(key).map(|slice| &slice.key);
        let slices: Vec<_> = slices.map(|slice| (ObjectKind::EndpointSlice, slice.clone())).collect();
        for slice in slices {
            if self.safeguards.own.lost.note_found(&slice) {
                self.store.delete_slice(&slice.1);
            }
        }
        let changed = self.store.delete_service(key);
        self.enqueue(changed, now);
    }

    /// Records that a list lacks a Service or an EndpointSlice, and its deletion was not reported. The next pass removes
    /// it, unless too many Services, or last endpoints of Services, would go at once ([`safeguard`](crate::safeguard)).
    pub fn lose(&mut self, kind: ObjectKind, key: &ObjectKey, now: Moment) {
        self.totals.count_change(kind);
        self.note_readable(kind, key, now);
        let is_service = kind == ObjectKind::Service;
        let is_known = match kind {
            ObjectKind::Service => self.store.service(key).is_some(),
            _ => self.store.service_of_slice(key).is_some(),
        };
        if is_known {
            self.safeguards.own.lost.lose((kind, key.clone()));
            self.schedule.request(now);
        } else if is_service {
            self.store.delete_service(key);
        } else {
            self.store.delete_slice(key);
        }
    }

    /// Records that an object cannot be read, and why. What was read of it before stays. If nothing was read, what an
    /// earlier process left in the kernel and no other object explains stays, because it may belong to that object.
    /// This ends when the object can be read or is deleted, or when an operator confirms it
    /// ([`Reconciler::confirm_removal`]).
    ///
    /// The name in `key` is empty if it cannot be read either; [`Reconciler::note_readable`] revokes that. `service`:
    /// the one that an EndpointSlice belongs to, if readable.
    pub fn note_unreadable(&mut self, kind: ObjectKind, key: &ObjectKey, reason: &str, service: Option<ObjectKey>) {
        self.store.note_unreadable((kind, key.clone()), reason, service);
    }

    /// Records that an object can be read or was deleted, if nothing else must be done about it.
    pub fn note_readable(&mut self, kind: ObjectKind, key: &ObjectKey, now: Moment) {
        if self.store.note_readable(kind, key) && self.held().next().is_some() {
            self.schedule.request_full(now);
        }
    }

    /// Sets the Frontends that an agent with its own source of truth registers under this name, replacing earlier ones.
    /// No Kubernetes objects are needed. A Service with this name takes precedence. What cannot be served is left out
    /// and reported ([`Reconciler::rejections`]).
    ///
    /// Several names may ask for the same protocol, address and port. A Service that has it takes precedence, as
    /// [`Desired`](crate::service::Desired) says. Among agents, the first call that asks for it keeps it, until a call
    /// under that name no longer asks. The kernel does not record names: after a restart the order of the calls decides
    /// again, so make them in the same order.
    ///
    /// The safeguard does not hold back the removal of such Frontends: [`MassRemoval`](crate::safeguard::MassRemoval)
    /// is about lists that lack objects.
    pub fn upsert_frontends(
        &mut self,
        key: &ObjectKey,
        frontends: impl IntoIterator<Item = FrontendSpec>,
        now: Moment,
    ) {
        self.totals.count_change(ObjectKind::Frontends);
        let changed = self.store.upsert_frontends(key, frontends);
        self.enqueue(changed, now);
    }

    /// Removes the Frontends under this name.
    pub fn delete_frontends(&mut self, key: &ObjectKey, now: Moment) {
        self.totals.count_change(ObjectKind::Frontends);
        let changed = self.store.delete_frontends(key);
        self.enqueue(changed, now);
    }

    /// A new list of Services or EndpointSlices begins, because the earlier one can no longer be watched. Until
    /// [`Reconciler::list_ends`], missing objects are not removed, however long they have been missing.
    pub fn list_begins(&mut self, kind: ObjectKind) {
        self.safeguards.own.lost.set_listing(kind, true);
    }

    /// The list is complete: all its objects, and all objects that it lacks, have been reported.
    pub fn list_ends(&mut self, kind: ObjectKind) {
        self.safeguards.own.lost.set_listing(kind, false);
    }

    /// Adds or updates an EndpointSlice. Returns whether it differs in anything that is used.
    pub fn upsert_slice(&mut self, object: &EndpointSliceObject, now: Moment) -> bool {
        self.note_found(ObjectKind::EndpointSlice, &ObjectKey::of(&object.metadata), now);
        let changed = self.store.upsert_slice(object);
        let differs = !changed.is_empty();
        self.enqueue(changed, now);
        differs
    }

    /// Removes an EndpointSlice whose deletion was reported. If it is merely missing from a list, call
    /// [`Reconciler::lose`].
    pub fn delete_slice(&mut self, key: &ObjectKey, now: Moment) {
        self.note_found(ObjectKind::EndpointSlice, key, now);
        let changed = self.store.delete_slice(key);
        self.enqueue(changed, now);
    }

    /// Counts an event. A missing object that it concerns, even if unchanged, may release deletions that are held back.
    fn note_found(&mut self, kind: ObjectKind, key: &ObjectKey, now: Moment) {
        self.totals.count_change(kind);
        self.note_readable(kind, key, now);
        if self.safeguards.own.lost.note_found(&(kind, key.clone())) {
            self.schedule.request(now);
        }
    }

    /// Confirms the deletions that are held back ([`safeguard`](crate::safeguard)), so that the next pass makes them.
    /// Returns the number of virtual servers affected.
    pub fn confirm_removal(&mut self, now: Moment) -> usize {
        self.schedule.request_full(now);
        self.safeguards.own.confirm().saturating_add(self.safeguards.others.confirm())
    }

    /// Replaces all objects by complete lists. Objects in neither list are missing; unchanged ones cost nothing.
    pub fn replace_objects<'a>(
        &mut self,
        services: impl IntoIterator<Item = &'a ServiceObject>,
        slices: impl IntoIterator<Item = &'a EndpointSliceObject>,
        now: Moment,
    ) {
        let mut gone = self.store.keys();
        for object in services {
            gone.remove(&(ObjectKind::Service, ObjectKey::of(&object.metadata)));
            self.upsert_service(object, now);
        }
        for object in slices {
            gone.remove(&(ObjectKind::EndpointSlice, ObjectKey::of(&object.metadata)));
            self.upsert_slice(object, now);
        }
        for (kind, key) in gone {
            self.lose(kind, &key, now);
        }
    }

    /// Updates this node's Node object.
    pub fn set_node(&mut self, object: &NodeObject, now: Moment) {
        self.note_readable(ObjectKind::Node, &ObjectKey::new("", &object.metadata.name), now);
        self.cluster.rejections.clear();
        let node = Node::check(object, &mut self.cluster.rejections);
        if node != self.cluster.node {
            self.cluster.node = node;
            self.refresh_facts();
            self.schedule.request(now);
        }
    }

    /// Adds or updates a Node of the cluster. A change that affects a Service makes the next pass compile every
    /// Service. It has two uses:
    ///
    /// * In modes that make addresses local (IPVS, userspace), external IPs and load-balancer addresses of other Nodes
    ///   are not served here, so that they remain those Nodes' ([`Reserved`](crate::config::Reserved)).
    /// * It sets the weight of the Node's endpoints ([`Node::WEIGHT`]), if the configuration permits it
    ///   ([`MayAskFor::NODE_WEIGHTS`](crate::config::MayAskFor::NODE_WEIGHTS)).
    pub fn upsert_cluster_node(&mut self, object: &NodeObject, now: Moment) {
        self.note_readable(ObjectKind::Node, &ObjectKey::new("", &object.metadata.name), now);
        let weight = self.options.config.lets(MayAskFor::NODE_WEIGHTS) && self.cluster.nodes.upsert_weight(object);
        if self.mode().facts().makes_addresses_local && self.cluster.nodes.upsert_addresses(object) || weight {
            self.backlog.nodes_changed = true;
            self.schedule.request(now);
        }
    }

    /// Removes a Node of the cluster. Its endpoints get node weight 1, and its addresses may be used.
    pub fn delete_cluster_node(&mut self, name: &str, now: Moment) {
        self.note_readable(ObjectKind::Node, &ObjectKey::new("", name), now);
        if self.cluster.nodes.delete(name) {
            self.backlog.nodes_changed = true;
            self.schedule.request(now);
        }
    }

    /// Sets the networks of cluster IPs that the cluster itself declares (ServiceCIDR objects), replacing earlier ones.
    /// They override the configured ones ([`IpvsConfig::service_cidrs`](crate::config::IpvsConfig::service_cidrs),
    /// [`UserspaceOptions::service_cidrs`](crate::modes::userspace::UserspaceOptions::service_cidrs)), which apply if
    /// there are none. Ignored if routes do not make addresses local.
    ///
    /// The next pass makes new networks local as a whole. Addresses in a removed network get their own routes before
    /// its route is deleted, so connections continue.
    pub fn set_service_cidrs(&mut self, networks: impl IntoIterator<Item = Network>, now: Moment) {
        let networks = networks.into_iter().filter(|network| network.prefix_len() > 0).map(|network| network.trunc());
        let networks: BTreeSet<Network> = networks.gather();
        let networks: Vec<Network> = networks.into_iter().collect();
        if *networks != *self.cluster.service_cidrs {
            self.cluster.service_cidrs = networks.into();
            self.refresh_facts();
            self.schedule.request(now);
        }
    }

    /// Sets the neighbours of a kind that this node must reach, replacing earlier ones. No Service may use their
    /// addresses ([`Reserved`](crate::config::Reserved)). Gateways and the endpoints of `default/kubernetes` are found
    /// without this.
    pub fn set_neighbours(&mut self, user: User, neighbours: impl IntoIterator<Item = Neighbour>, now: Moment) {
        if self.options.config.reserved.set_neighbours(user, neighbours) {
            self.refresh_facts();
            self.schedule.request(now);
        }
    }

    /// Records that an address, a default route or a device of this host changed. The next pass reads them again.
    pub fn host_changed(&mut self, now: Moment) {
        self.host.is_stale = true;
        self.schedule.request(now);
    }

    /// Changes [`Options::address_grace`](super::Options::address_grace); set it to 0 for a process that makes only one
    /// pass and ends before the time is over.
    pub fn set_address_grace(&mut self, grace: Duration) {
        self.options.address_grace = grace;
    }

    /// Records addresses seen on an interface of this host. One that is missing when the next pass reads them gets the
    /// full time to return ([`Options::address_grace`](super::Options::address_grace)). A pass may take longer than the
    /// address is missing.
    pub fn addresses_seen(&mut self, addresses: impl IntoIterator<Item = IpAddr>, now: Moment) {
        let until = now.saturating_add(self.options.address_grace);
        for address in addresses {
            if let Some(absent) = self.host.absent.get_mut(&address) {
                *absent = until;
            }
        }
    }

    /// Makes the next pass read the kernel again, and run as soon as allowed.
    pub fn request_full(&mut self, now: Moment) {
        self.schedule.request_full(now);
    }

    /// The name of the nf_tables tables that this proxy writes, for [`TableMonitor`](crate::kernel::TableMonitor): in
    /// nftables mode, and in IPVS mode with [rules by nftables](crate::config::RulesBy::Nftables). `None` otherwise.
    pub fn table_name(&self) -> Option<String> {
        self.mode.kind().table_name(&self.options.config)
    }

    /// Reports the generations of the rule set that wrote to the tables with [this name](Reconciler::table_name).
    /// `lost`: some may be missing. If one is not this proxy's own, the next pass compares everything, at most once a
    /// second. The table of IPVS mode, without which source ranges are open, is restored now. Has no effect before the
    /// tables have been read.
    ///
    /// Returns whether everything will be compared. Call it between passes.
    pub fn tables_changed(&mut self, generations: &[u32], lost: bool, tables: &mut dyn Tables, now: Moment) -> bool {
        let differs = self.tables.transactions.differs(generations, lost, tables) && self.mode.has_read_tables();
        if differs {
            self.mode.restore_tables(&mut RecordingTables::new(tables, &mut self.tables.transactions));
            self.schedule.request_full_at(self.tables.compare_at(now));
        }
        differs
    }

    pub(super) fn enqueue(&mut self, services: Vec<ObjectKey>, now: Moment) {
        if !services.is_empty() {
            self.backlog.services.extend(services);
            self.schedule.request(now);
        }
    }
}
