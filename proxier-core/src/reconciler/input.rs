//! Input of the reconciler: objects, Frontends, the node, its neighbours, and changes on the host or in its tables.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use super::Reconciler;
use super::own_transactions::RecordingTables;
use crate::config::MayAskFor;
use crate::config::{Neighbour, User};
use crate::net::Network;
use crate::objects::{EndpointSliceObject, NodeObject, ServiceObject};
use crate::ports::Tables;
use crate::snapshot::{FrontendSpec, Node, ObjectKey, ObjectKind};
use crate::time::Moment;

/// Two proxies, or a proxy and a person, that undo each other's work have everything compared no more often.
const BETWEEN_FOREIGN_CHANGES: Duration = Duration::from_secs(1);

impl Reconciler {
    /// Takes a new or changed Service.
    pub fn upsert_service(&mut self, object: &ServiceObject, now: Moment) {
        self.totals.service_changes = self.totals.service_changes.saturating_add(1);
        self.note_found(ObjectKind::Service, &ObjectKey::of(&object.metadata), now);
        let changed = self.store.upsert_service(object);
        if let [service] = changed.as_slice()
            && self.store.slices_of(service).next().is_none()
        {
            self.schedule.request_incomplete(now);
            self.pending.extend(changed);
        } else {
            self.enqueue(changed, now);
        }
    }

    /// Removes a Service after its deletion was reported. For one that is merely missing from a list, call [`Reconciler::lose_service`].
    pub fn delete_service(&mut self, key: &ObjectKey, now: Moment) {
        self.totals.service_changes = self.totals.service_changes.saturating_add(1);
        self.note_found(ObjectKind::Service, key, now);
        // Its slices are deleted with it; do not wait for those that are missing.
        let slices = self.store.slices_of(key).map(|slice| &slice.key);
        let missing: Vec<ObjectKey> =
            slices.filter(|slice| self.safeguard.is_lost(ObjectKind::EndpointSlice, slice)).cloned().collect();
        for slice in missing {
            self.safeguard.note_found(ObjectKind::EndpointSlice, &slice);
            self.store.delete_slice(&slice);
        }
        let changed = self.store.delete_service(key);
        self.enqueue(changed, now);
    }

    /// Notes that a list lacks a Service whose deletion was not reported: the next pass removes it, unless too many go at once
    /// ([`safeguard`](crate::safeguard)).
    pub fn lose_service(&mut self, key: &ObjectKey, now: Moment) {
        self.totals.service_changes = self.totals.service_changes.saturating_add(1);
        if self.store.service(key).is_some() {
            self.safeguard.lose(ObjectKind::Service, key.clone());
            self.schedule.request(now);
        } else {
            self.store.delete_service(key);
        }
    }

    /// Takes the Frontends that an agent with a source of truth of its own asks for under this name, in place of the earlier
    /// ones: no Kubernetes objects are needed. A Service of this name goes first. What cannot be served is left out and
    /// reported ([`Reconciler::rejections`]).
    ///
    /// The safeguard does not hold back Frontends that are taken away here: [`MassRemoval`](crate::safeguard::MassRemoval) is about lists that lack
    /// objects.
    ///
    /// ```
    /// use std::time::Duration;
    /// use proxier_core::net::EndpointKey;
    /// use proxier_core::reconciler::{Options, Reconciler};
    /// use proxier_core::snapshot::{FrontendSpec, ObjectKey};
    ///
    /// let now = Duration::ZERO;
    /// let mut proxier = Reconciler::new("node-a", Options::default(), now);
    /// let endpoint = EndpointKey::new([10, 244, 1, 7].into(), 8080);
    /// let web = FrontendSpec::new("TCP 10.96.0.10:80".parse()?, [endpoint]);
    /// proxier.upsert_frontends(&ObjectKey::new("agent", "web"), [web], now);
    /// proxier.start(now);
    /// // From here on as with Kubernetes objects: call Reconciler::pass when Reconciler::next_wake says so.
    /// assert_eq!(proxier.next_wake(), Some(now));
    /// # Ok::<(), proxier_core::net::InvalidFrontendKey>(())
    /// ```
    pub fn upsert_frontends(
        &mut self,
        key: &ObjectKey,
        frontends: impl IntoIterator<Item = FrontendSpec>,
        now: Moment,
    ) {
        self.totals.service_changes = self.totals.service_changes.saturating_add(1);
        let changed = self.store.upsert_frontends(key, frontends);
        self.enqueue(changed, now);
    }

    /// Removes the Frontends under this name.
    ///
    /// ```
    /// use std::time::Duration;
    /// use proxier_core::fake::FakeKernel;
    /// use proxier_core::modes::Kind;
    /// use proxier_core::net::EndpointKey;
    /// use proxier_core::reconciler::{Options, Reconciler};
    /// use proxier_core::snapshot::{FrontendSpec, ObjectKey};
    ///
    /// let (mut kernel, now) = (FakeKernel::new(), Duration::ZERO);
    /// let mut options = Options::default();
    /// options.mode = Kind::Nftables;
    /// let mut proxier = Reconciler::new("node-a", options, now);
    /// let (web, endpoint) = (ObjectKey::new("agent", "web"), EndpointKey::new([10, 244, 1, 7].into(), 8080));
    /// proxier.upsert_frontends(&web, [FrontendSpec::new("TCP 10.96.0.10:80".parse()?, [endpoint])], now);
    /// proxier.start(now);
    /// proxier.pass(&|| now, &mut kernel.ports());
    /// assert!(kernel.state().tables["ip proxier"].contains("10.96.0.10"));
    ///
    /// proxier.delete_frontends(&web, now);
    /// proxier.pass(&|| now, &mut kernel.ports());
    /// assert!(!kernel.state().tables["ip proxier"].contains("10.96.0.10"));
    /// # Ok::<(), proxier_core::net::InvalidFrontendKey>(())
    /// ```
    pub fn delete_frontends(&mut self, key: &ObjectKey, now: Moment) {
        self.totals.service_changes = self.totals.service_changes.saturating_add(1);
        let changed = self.store.delete_frontends(key);
        self.enqueue(changed, now);
    }

    /// A new list of Services or EndpointSlices begins, since the earlier one cannot be followed any more. Until
    /// [`Reconciler::list_ends`], no missing object counts as gone, however long it has been missing.
    pub fn list_begins(&mut self, kind: ObjectKind) {
        self.safeguard.list_begins(kind);
    }

    /// The list is complete: all its objects, and all objects that it lacks, were handed in.
    pub fn list_ends(&mut self, kind: ObjectKind) {
        self.safeguard.list_ends(kind);
    }

    /// Takes a new or changed EndpointSlice. Returns whether it differs in anything that counts.
    pub fn upsert_slice(&mut self, object: &EndpointSliceObject, now: Moment) -> bool {
        self.totals.endpoint_changes = self.totals.endpoint_changes.saturating_add(1);
        self.note_found(ObjectKind::EndpointSlice, &ObjectKey::of(&object.metadata), now);
        let changed = self.store.upsert_slice(object);
        let differs = !changed.is_empty();
        self.enqueue(changed, now);
        differs
    }

    /// Removes an EndpointSlice after its deletion was reported. For one that is merely missing from a list, call
    /// [`Reconciler::lose_slice`].
    pub fn delete_slice(&mut self, key: &ObjectKey, now: Moment) {
        self.totals.endpoint_changes = self.totals.endpoint_changes.saturating_add(1);
        self.note_found(ObjectKind::EndpointSlice, key, now);
        let changed = self.store.delete_slice(key);
        self.enqueue(changed, now);
    }

    /// Notes that a list lacks an EndpointSlice whose deletion was not reported: the next pass removes its endpoints, unless too
    /// many Services would lose their last endpoint at once ([`safeguard`](crate::safeguard)).
    ///
    /// ```
    /// use std::time::Duration;
    /// use proxier_core::objects::EndpointSliceObject;
    /// use proxier_core::reconciler::{Options, Reconciler};
    /// use proxier_core::snapshot::ObjectKey;
    ///
    /// let slice: EndpointSliceObject = serde_json::from_str(r#"{
    ///     "metadata": {"namespace": "demo", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
    ///     "addressType": "IPv4"
    /// }"#)?;
    /// let (now, key) = (Duration::ZERO, ObjectKey::new("demo", "web-1"));
    /// let mut proxier = Reconciler::new("node-a", Options::default(), now);
    /// proxier.upsert_slice(&slice, now);
    /// proxier.lose_slice(&key, now);
    /// assert!(proxier.store().service_of_slice(&key).is_some()); // kept until a pass has judged it
    /// proxier.delete_slice(&key, now);
    /// assert_eq!(proxier.store().service_of_slice(&key), None); // an event is believed
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lose_slice(&mut self, key: &ObjectKey, now: Moment) {
        self.totals.endpoint_changes = self.totals.endpoint_changes.saturating_add(1);
        if self.store.service_of_slice(key).is_some() {
            self.safeguard.lose(ObjectKind::EndpointSlice, key.clone());
            self.schedule.request(now);
        } else {
            self.store.delete_slice(key);
        }
    }

    /// Notes that an object is not missing any more, even if unchanged: that may release deletions that are held back.
    pub(super) fn note_found(&mut self, kind: ObjectKind, key: &ObjectKey, now: Moment) {
        if self.safeguard.note_found(kind, key) {
            self.schedule.request(now);
        }
    }

    /// Confirms the deletions that are held back ([`safeguard`](crate::safeguard)): the next pass makes them. Returns the number
    /// of virtual servers affected.
    ///
    /// ```
    /// use std::time::Duration;
    /// use proxier_core::fake::FakeKernel;
    /// use proxier_core::objects::ServiceObject;
    /// use proxier_core::reconciler::{Options, Reconciler};
    /// use proxier_core::snapshot::ObjectKind;
    ///
    /// let services: Vec<ServiceObject> = (1..=20)
    ///     .map(|number| {
    ///         serde_json::from_value(serde_json::json!({
    ///             "metadata": {"namespace": "demo", "name": format!("web-{number}")},
    ///             "spec": {"clusterIP": format!("10.96.0.{number}"), "ports": [{"port": 80}]}
    ///         }))
    ///     })
    ///     .collect::<Result<_, _>>()?;
    /// let (mut kernel, mut now) = (FakeKernel::new(), Duration::ZERO);
    /// let mut proxier = Reconciler::new("node-a", Options::default(), now);
    /// proxier.replace_objects(&services, [], now);
    /// proxier.start(now);
    /// proxier.pass(&|| now, &mut kernel.ports());
    ///
    /// // A new list of Services is empty: all of them stay, and somebody has to look.
    /// now += Duration::from_secs(1);
    /// proxier.list_begins(ObjectKind::Service);
    /// let known: Vec<_> = proxier.store().services().map(|service| service.key.clone()).collect();
    /// known.iter().for_each(|key| proxier.lose_service(key, now));
    /// proxier.list_ends(ObjectKind::Service);
    /// let report = proxier.pass(&|| now, &mut kernel.ports()).ok_or("not due")?;
    /// assert!(report.stopped.is_some_and(|why| why.starts_with("20 of 20 virtual servers would go")));
    /// assert_eq!(proxier.safeguard().held().count(), 20);
    ///
    /// // An operator says that it is true.
    /// assert_eq!(proxier.confirm_removal(now), 20);
    /// proxier.pass(&|| now, &mut kernel.ports());
    /// assert_eq!(kernel.state().ipvs, "");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn confirm_removal(&mut self, now: Moment) -> usize {
        self.schedule.request_full(now);
        self.safeguard.confirm().saturating_add(self.others.confirm())
    }

    /// Replaces everything known by complete lists: objects in neither are missing; unchanged ones cost nothing.
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
            match kind {
                ObjectKind::Service => self.lose_service(&key, now),
                _ => self.lose_slice(&key, now),
            }
        }
    }

    /// Takes the Node object of this node.
    ///
    /// ```
    /// use std::time::Duration;
    /// use proxier_core::net::Family;
    /// use proxier_core::objects::NodeObject;
    /// use proxier_core::reconciler::{Options, Reconciler};
    ///
    /// let node: NodeObject = serde_json::from_str(r#"{
    ///     "metadata": {"name": "node-a"}, "spec": {"podCIDRs": ["10.244.1.0/24", "10.244.1.0/33"]}
    /// }"#)?;
    /// let mut proxier = Reconciler::new("node-a", Options::default(), Duration::ZERO);
    /// proxier.set_node(&node, Duration::ZERO);
    /// assert_eq!(proxier.facts().pod_cidr(Family::V4), Some("10.244.1.0/24".parse()?));
    /// let said: Vec<String> = proxier.rejections().map(ToString::to_string).collect();
    /// assert_eq!(said, ["Node node-a: spec.podCIDRs[1] 10.244.1.0/33: not a network; left out"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_node(&mut self, object: &NodeObject, now: Moment) {
        self.node_rejections.clear();
        let node = Node::check(object, &mut self.node_rejections);
        if node != self.node {
            self.node = node;
            self.refresh_facts();
            self.schedule.request(now);
        }
    }

    /// Takes a Node of the cluster, for two things; one that changes something for a Service lets the next pass compile every Service:
    ///
    /// * In modes that make addresses local (IPVS, userspace), no external IP or load-balancer address that is another Node's is served
    ///   here: it stays that Node's ([`Reserved`](crate::config::Reserved)).
    /// * The weight that its endpoints have by it ([`Node::WEIGHT`]), if the configuration lets annotations decide it
    ///   ([`MayAskFor::NODE_WEIGHTS`](crate::config::MayAskFor::NODE_WEIGHTS)).
    ///
    /// ```
    /// use std::time::Duration;
    /// use proxier_core::config::MayAskFor;
    /// use proxier_core::fake::FakeKernel;
    /// use proxier_core::objects::NodeObject;
    /// use proxier_core::reconciler::{Options, Reconciler};
    ///
    /// let node: NodeObject = serde_json::from_str(r#"{"metadata": {"name": "node-b", "labels": {"proxier/weight": "3"}}}"#)?;
    /// let (mut kernel, now) = (FakeKernel::new(), Duration::ZERO);
    /// let mut options = Options::default();
    /// options.config.ipvs.may_ask_for = MayAskFor::all();
    /// let mut proxier = Reconciler::new("node-a", options, now);
    /// proxier.upsert_cluster_node(&node, now);
    /// proxier.start(now);
    /// proxier.pass(&|| now, &mut kernel.ports());
    ///
    /// proxier.delete_cluster_node("node-b", now);
    /// proxier.pass(&|| now, &mut kernel.ports());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upsert_cluster_node(&mut self, object: &NodeObject, now: Moment) {
        let weight = self.options.config.lets(MayAskFor::NODE_WEIGHTS) && self.cluster_nodes.upsert_weight(object);
        if self.mode().facts().makes_addresses_local && self.cluster_nodes.upsert_addresses(object) || weight {
            self.schedule.request(now);
        }
    }

    /// Forgets a Node of the cluster: its endpoints have weight 1 by it, and its addresses are free.
    pub fn delete_cluster_node(&mut self, name: &str, now: Moment) {
        if self.cluster_nodes.delete(name) {
            self.schedule.request(now);
        }
    }

    /// Sets the networks of cluster IPs that the cluster itself names (ServiceCIDR objects), in place of the earlier ones. They
    /// count instead of those of the configuration ([`IpvsConfig::service_cidrs`](crate::config::IpvsConfig::service_cidrs),
    /// [`userspace::Options::service_cidrs`](crate::modes::userspace::Options::service_cidrs)); none at all: those of the configuration count.
    /// Ignored where addresses are not made local by routes.
    ///
    /// The next pass makes new networks local as a whole. Addresses in a network that went get routes of their own before its
    /// route goes, so connections stay.
    ///
    /// ```
    /// use std::time::Duration;
    /// use proxier_core::config::Binding;
    /// use proxier_core::fake::FakeKernel;
    /// use proxier_core::ports::LocalRoute;
    /// use proxier_core::reconciler::{Options, Reconciler};
    ///
    /// let (mut kernel, now) = (FakeKernel::new(), Duration::ZERO);
    /// let mut options = Options::default();
    /// options.config.ipvs.binding = Binding::Routes;
    /// let mut proxier = Reconciler::new("node-a", options, now);
    /// proxier.set_service_cidrs(["10.96.0.0/12".parse()?], now);
    /// proxier.start(now);
    /// proxier.pass(&|| now, &mut kernel.ports());
    /// let routes: Vec<LocalRoute> = kernel.state().routes.into_iter().map(|(_, route)| route).collect();
    /// assert_eq!(routes, [LocalRoute::new("10.96.0.0/12".parse()?)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_service_cidrs(&mut self, networks: impl IntoIterator<Item = Network>, now: Moment) {
        let networks = networks.into_iter().filter(|network| network.prefix_len() > 0).map(|network| network.trunc());
        let networks: BTreeSet<Network> = networks.collect();
        let networks: Vec<Network> = networks.into_iter().collect();
        if *networks != *self.service_cidrs {
            self.service_cidrs = networks.into();
            self.refresh_facts();
            self.schedule.request(now);
        }
    }

    /// Sets the neighbours of a kind, which this node has to reach, in place of the earlier ones: no Service may take their
    /// addresses ([`Reserved`](crate::config::Reserved)). Gateways and the endpoints of `default/kubernetes` are found
    /// without this.
    ///
    /// ```
    /// use std::time::Duration;
    /// use proxier_core::fake::FakeKernel;
    /// use proxier_core::net::EndpointKey;
    /// use proxier_core::reconciler::{Options, Reconciler};
    /// use proxier_core::config::{Neighbour, User};
    /// use proxier_core::snapshot::{FrontendSpec, ObjectKey, Roles};
    ///
    /// let now = Duration::ZERO;
    /// let mut proxier = Reconciler::new("node-a", Options::default(), now);
    /// proxier.set_neighbours(User::NameServer, [Neighbour::new("192.0.2.53".parse()?)], now);
    /// let endpoint = EndpointKey::new([10, 244, 1, 7].into(), 8080);
    /// let mut web = FrontendSpec::new("TCP 192.0.2.53:80".parse()?, [endpoint]);
    /// web.roles = Roles::EXTERNAL_IP;
    /// proxier.upsert_frontends(&ObjectKey::new("agent", "web"), [web], now);
    /// proxier.start(now);
    /// proxier.pass(&|| now, &mut FakeKernel::new().ports());
    /// let refused = proxier.refused().next().ok_or("served")?;
    /// assert_eq!((refused.service.as_str(), refused.key.to_string().as_str()), ("agent/web", "TCP 192.0.2.53:80"));
    /// assert!(refused.reason.starts_with("a name server of this node has that address"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_neighbours(&mut self, user: User, neighbours: impl IntoIterator<Item = Neighbour>, now: Moment) {
        if self.options.config.reserved.set_neighbours(user, neighbours) {
            self.refresh_facts();
            self.schedule.request(now);
        }
    }

    /// An address, a default route or a device of this host changed: the next pass reads them again.
    ///
    /// ```
    /// use std::net::IpAddr;
    /// use std::time::Duration;
    /// use proxier_core::fake::FakeKernel;
    /// use proxier_core::net::Family;
    /// use proxier_core::reconciler::{Options, Reconciler};
    ///
    /// let node: IpAddr = "192.0.2.10".parse()?;
    /// let (mut kernel, mut now) = (FakeKernel::new(), Duration::ZERO);
    /// kernel.set_interface("eth0", &[node]);
    /// let mut proxier = Reconciler::new("node-a", Options::default(), now);
    /// proxier.start(now);
    /// proxier.pass(&|| now, &mut kernel.ports());
    ///
    /// // A DHCP client takes the address away: node ports stay on it for the address grace of 10 s.
    /// kernel.set_interface("eth0", &[]);
    /// proxier.host_changed(now);
    /// proxier.pass(&|| now, &mut kernel.ports());
    /// assert!(!proxier.facts().is_on_interface(node));
    /// assert_eq!(proxier.next_wake(), Some(Duration::from_secs(10)));
    ///
    /// // It was back for a moment, as a monitor of addresses saw: the time begins anew.
    /// now += Duration::from_secs(8);
    /// proxier.addresses_seen([node], now);
    /// assert_eq!(proxier.next_wake(), Some(Duration::from_secs(18)));
    /// now += Duration::from_secs(10);
    /// proxier.pass(&|| now, &mut kernel.ports());
    /// assert_eq!(proxier.facts().node_port_addresses(Family::V4).count(), 0);
    ///
    /// // A process that ends after one pass cannot wait.
    /// proxier.set_address_grace(Duration::ZERO);
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn host_changed(&mut self, now: Moment) {
        self.host_stale = true;
        self.schedule.request(now);
    }

    /// Changes [`Options::address_grace`](super::Options::address_grace): to 0 for a process that makes one pass only and ends before the time is over.
    pub fn set_address_grace(&mut self, grace: Duration) {
        self.options.address_grace = grace;
    }

    /// Notes addresses seen on an interface of this host. One that is gone again when the next pass reads them gets
    /// the full time to come back ([`Options::address_grace`](super::Options::address_grace)): a pass may take longer than the address stays away.
    pub fn addresses_seen(&mut self, addresses: impl IntoIterator<Item = IpAddr>, now: Moment) {
        let until = now.saturating_add(self.options.address_grace);
        for address in addresses {
            if let Some(absent) = self.absent.get_mut(&address) {
                *absent = until;
            }
        }
    }

    /// The next pass reads the kernel again, and runs as soon as allowed.
    pub fn request_full(&mut self, now: Moment) {
        self.schedule.request_full(now);
    }

    /// The name of the tables of nf_tables that this proxy writes, for [`TableMonitor`](crate::kernel::TableMonitor): in
    /// nftables mode, and in IPVS mode with [rules by nftables](crate::config::RulesBy::Nftables). `None` otherwise.
    pub fn table_name(&self) -> Option<String> {
        self.mode.kind().table_name(&self.options.config)
    }

    /// Reports the generations of the rule set that wrote to the tables of [this name](Reconciler::table_name); `lost`: some may be
    /// missing. If one is not this proxy's own, the next pass compares everything, at most once a second; the table of IPVS mode, without
    /// which source ranges are open, is put back now. Has no effect before the tables have been read.
    ///
    /// Returns whether it does. Call it between passes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use nftables::{TableKey, Transaction};
    /// use proxier_core::fake::FakeKernel;
    /// use proxier_core::modes::Kind;
    /// use proxier_core::reconciler::{Options, Reconciler};
    ///
    /// let (mut kernel, now) = (FakeKernel::new(), Duration::ZERO);
    /// let mut options = Options::default();
    /// options.mode = Kind::Nftables;
    /// let mut proxier = Reconciler::new("node-a", options, now);
    /// assert_eq!(proxier.table_name().as_deref(), Some("proxier")); // what to monitor
    /// proxier.start(now);
    /// proxier.pass(&|| now, &mut kernel.ports());
    ///
    /// let own = kernel.ports().tables.generation()?;
    /// assert!(!proxier.tables_changed(&[own], false, kernel.ports().tables, now));
    /// // Somebody runs nft: the next pass is a full one.
    /// let mut transaction = Transaction::new();
    /// transaction.delete_table(&TableKey::new(nftables::Family::Ip, "proxier")?);
    /// kernel.nftables().commit(&transaction)?;
    /// let theirs = kernel.ports().tables.generation()?;
    /// assert!(proxier.tables_changed(&[theirs], false, kernel.ports().tables, now));
    /// assert!(proxier.pass(&|| now, &mut kernel.ports()).is_some_and(|report| report.full));
    /// assert!(kernel.state().tables.contains_key("ip proxier"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tables_changed(&mut self, generations: &[u32], lost: bool, tables: &mut dyn Tables, now: Moment) -> bool {
        let differs = self.own_transactions.differs(generations, lost, tables) && self.mode.has_read_tables();
        if differs {
            let tables = &mut RecordingTables::new(tables, &mut self.own_transactions);
            self.mode.restore_tables(tables);
            let last = self.compared_tables_at;
            let at =
                last.map_or(
                    now,
                    |last| if now < last { last } else { now.max(last.saturating_add(BETWEEN_FOREIGN_CHANGES)) },
                );
            self.compared_tables_at = Some(at);
            self.schedule.request_full_at(at);
        }
        differs
    }

    pub(super) fn enqueue(&mut self, services: Vec<ObjectKey>, now: Moment) {
        if !services.is_empty() {
            self.pending.extend(services);
            self.schedule.request(now);
        }
    }
}
