//! The reconciler: takes objects, and brings the kernel to serve them.

pub mod backoff;
mod committed;
mod first;
mod node_weights;
pub mod report;
pub mod safeguard;
pub mod schedule;
mod service_cidrs;
pub mod step;
pub mod totals;

pub use first::ServedFirst;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use ::ipvs::VirtualServerKey;

use crate::config::{Config, MayAskFor, RulesBy};
use crate::modes::ipvs::drain::Drains;
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::wanted::{Unmarked, Wanted};
use crate::modes::shared::host;
use crate::modes::shared::sysctls::HostSettings;
use crate::modes::{self, Mode, Pass, Plan, Prepared, Refreshed, iptables, ipvs, nftables, userspace};
use crate::net::{FrontendKey, Network};
use crate::objects::{EndpointSliceObject, NodeObject, ServiceObject};
use crate::ports::{Links, Ports, Tables};
use crate::reconciler::committed::{Committed, Noting};
use crate::reconciler::node_weights::NodeWeights;
use crate::reconciler::report::{Refused, Report, Unread};
use crate::reconciler::safeguard::{MassRemoval, Safeguard};
use crate::reconciler::schedule::{Limits, Moment, Schedule};
use crate::reconciler::service_cidrs::ServiceCidrs;
use crate::reconciler::totals::Totals;
use crate::service::{Desired, Neighbour, NodeFacts, User, is_reachable};
use crate::snapshot::{EndpointSlice, FrontendSpec, HostAddresses, Node, ObjectKey, ObjectKind, Rejection, Store};

/// How a [`Reconciler`] works.
///
/// ```
/// use std::time::Duration;
/// use proxier_core::config::{LocalTraffic, NamePrefix};
/// use proxier_core::modes::Kind;
/// use proxier_core::reconciler::{Options, Reconciler};
///
/// // An agent beside kube-proxy: names of its own, pods by the cluster's network.
/// let mut options = Options::default();
/// options.mode = Kind::Nftables;
/// options.config.names.table = "agent".parse()?;
/// options.config.names.prefix = NamePrefix::new("AGENT-")?;
/// options.config.local_traffic = LocalTraffic::ClusterCidrs(vec!["10.244.0.0/16".parse()?]);
/// options.host.conntrack_max = Some(262_144);
/// // At most five passes a second, and everything is read again every five minutes.
/// options.limits.min_interval = Duration::from_millis(200);
/// options.limits.max_interval = Duration::from_secs(300);
/// options.mass_removal.patience = None; // a list that became empty has to be confirmed
/// options.seed = 7; // from the node's name, say
/// let proxier = Reconciler::new("node-a", options, Duration::ZERO);
/// assert_eq!(proxier.table_name().as_deref(), Some("agent"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// How Services are compiled.
    pub config: Config,
    /// Settings of the host.
    pub host: HostSettings,
    /// Which part of the kernel serves Services.
    pub mode: modes::Kind,
    /// Settings of IPVS mode.
    pub ipvs: ipvs::Options,
    /// Settings of iptables mode; restricted further by what the iptables programs report.
    pub iptables: iptables::Options,
    /// Settings of userspace mode.
    pub userspace: userspace::Options,
    /// How often passes run.
    pub limits: Limits,
    /// When deletions are held back.
    pub mass_removal: MassRemoval,
    /// How long node ports are still served on an address that this host has lost. Default 10 s: a DHCP client, a
    /// restarting network manager or an administrator takes an address away and gives it back, and connections survive.
    /// With 0 they end at once. An address that is missing when the first pass finds node ports on it gets the same time.
    pub address_grace: Duration,
    /// Keeps the nodes of a cluster from retrying together: any number that differs from node to node.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            config: Config::default(),
            host: HostSettings::default(),
            mode: modes::Kind::default(),
            ipvs: ipvs::Options::default(),
            iptables: iptables::Options::default(),
            userspace: userspace::Options::default(),
            limits: Limits::default(),
            mass_removal: MassRemoval::default(),
            address_grace: Duration::from_secs(10),
            seed: 0,
        }
    }
}

/// The reconciler of one node: keeps what is wanted, knows what the kernel holds, and brings the kernel to what is wanted.
///
/// A state machine: it acts only when called, and gets the time as `now`. Objects go in as they change; [`Reconciler::pass`]
/// programs them. A pass for changes costs O(changed objects); a full pass reads the kernel: at the start, every
/// [`Limits::max_interval`], after a failure and on request.
///
/// Before [`Reconciler::start`] nothing is changed: half a list of Services would delete the other half.
///
/// ```
/// use std::time::Duration;
/// use proxier_core::fake::FakeKernel;
/// use proxier_core::modes::Kind;
/// use proxier_core::objects::{EndpointSliceObject, ServiceObject};
/// use proxier_core::reconciler::{Options, Reconciler};
/// use proxier_core::snapshot::ObjectKey;
///
/// let service: ServiceObject = serde_json::from_str(r#"{
///     "metadata": {"namespace": "demo", "name": "web"},
///     "spec": {"clusterIP": "10.96.0.10", "ports": [{"name": "http", "port": 80}]}
/// }"#)?;
/// let mut slice: EndpointSliceObject = serde_json::from_str(r#"{
///     "metadata": {"namespace": "demo", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
///     "addressType": "IPv4",
///     "ports": [{"name": "http", "port": 8080}],
///     "endpoints": [{"addresses": ["10.244.1.7"]}]
/// }"#)?;
///
/// let (mut kernel, mut now) = (FakeKernel::new(), Duration::ZERO);
/// let mut proxier = Reconciler::new("node-a", Options::default(), now);
/// assert_eq!((proxier.node_name(), proxier.mode()), ("node-a", Kind::Ipvs));
/// proxier.replace_objects([&service], [&slice], now);
/// assert_eq!(proxier.next_wake(), None); // the lists may not be complete
/// proxier.start(now);
/// let report = proxier.pass(&|| now, &mut kernel.ports()).ok_or("not due")?;
/// assert!(report.full && report.is_done());
/// assert_eq!(kernel.state().ipvs, "-A -t 10.96.0.10:80 -s rr\n-a -t 10.96.0.10:80 -r 10.244.1.7:8080 -m -w 1\n");
/// proxier.compact(); // the memory that a first list of many objects took
///
/// // An endpoint is added: one operation, and nothing is read.
/// now += Duration::from_secs(5);
/// slice.endpoints.push(slice.endpoints[0].clone());
/// slice.endpoints[1].addresses = vec!["10.244.1.8".into()];
/// assert!(proxier.upsert_slice(&slice, now));
/// let report = proxier.pass(&|| now, &mut kernel.ports()).ok_or("not due")?;
/// assert_eq!((report.full, report.writes()), (false, 1));
/// assert!(!proxier.upsert_slice(&slice, now)); // the same again
///
/// now += Duration::from_secs(5);
/// proxier.delete_service(&ObjectKey::new("demo", "web"), now);
/// proxier.delete_slice(&ObjectKey::new("demo", "web-1"), now);
/// proxier.pass(&|| now, &mut kernel.ports());
/// assert_eq!(kernel.state().ipvs, "");
/// assert_eq!(proxier.next_wake(), Some(Duration::from_secs(30))); // the next full pass
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[expect(clippy::struct_excessive_bools, reason = "each is one question about the past, and none excludes another")]
#[derive(Debug)]
pub struct Reconciler {
    options: Options,
    store: Store,
    node: Node,
    node_rejections: Vec<Rejection>,
    node_weights: NodeWeights,
    service_cidrs: ServiceCidrs,
    host: HostAddresses,
    facts: NodeFacts,
    /// Services to compile again.
    pending: BTreeSet<ObjectKey>,
    /// The addresses or default routes of the host may have changed.
    host_stale: bool,
    /// Addresses that the host has lost, with the time when each is given up.
    absent: BTreeMap<IpAddr, Moment>,
    /// The default routes have been read.
    knows_gateways: bool,
    /// The addresses on which an earlier process served node ports have been checked.
    knows_served: bool,
    mode: Mode,
    safeguard: Safeguard,
    schedule: Schedule,
    started: bool,
    /// The first stage of a cold start has been tried.
    tried_first: bool,
    /// A full pass has succeeded.
    settled: bool,
    totals: Totals,
    /// Own transactions of nf_tables.
    committed: Committed,
}

impl Reconciler {
    /// How long the first pass waits for the lock of iptables: 5 s, as kube-proxy does.
    pub const FIRST_LOCK_WAIT: Duration = Duration::from_secs(5);
    /// How long later passes wait for it: 1 s, the least that the programs allow. They retry after a growing pause.
    pub const SHORT_LOCK_WAIT: Duration = Duration::from_secs(1);

    /// The reconciler of the node of this name (`nodeName` of endpoints). `now` is the origin of its time.
    pub fn new(node_name: &str, options: Options, now: Moment) -> Self {
        let node = Node::new(node_name);
        let host = HostAddresses::default();
        let facts = NodeFacts::new(&options.config, &node, &host);
        let mut store = Store::new(node_name).with_relays(options.mode == modes::Kind::Userspace);
        if options.config.lets(MayAskFor::NODE_WEIGHTS) {
            store = store.keep_nodes();
        }
        Reconciler {
            store,
            node_rejections: Vec::new(),
            node_weights: NodeWeights::default(),
            service_cidrs: ServiceCidrs::new(&options),
            node,
            host,
            pending: BTreeSet::new(),
            host_stale: true,
            absent: BTreeMap::new(),
            knows_gateways: false,
            knows_served: false,
            mode: match options.mode {
                modes::Kind::Ipvs => {
                    Mode::Ipvs(Box::new(ipvs::Mode::new(&options.config, &options.ipvs, options.seed)))
                }
                modes::Kind::Nftables => Mode::Nftables(Box::new(nftables::Mode::new(&options.config))),
                modes::Kind::Iptables => {
                    let mut allowed = options.iptables;
                    allowed.drop_invalid &= !options.host.tcp_be_liberal;
                    Mode::Iptables(Box::new(iptables::Mode::new(&facts, allowed, options.seed)))
                }
                modes::Kind::Userspace => Mode::Userspace(Box::new(userspace::Mode::new(&options.userspace))),
            },
            facts,
            safeguard: Safeguard::new(options.mass_removal),
            schedule: Schedule::new(options.limits, options.seed, now),
            started: false,
            tried_first: false,
            settled: false,
            totals: Totals::default(),
            committed: Committed::default(),
            options,
        }
    }

    /// Takes a new or changed Service.
    pub fn upsert_service(&mut self, object: &ServiceObject, now: Moment) {
        self.totals.service_changes = self.totals.service_changes.saturating_add(1);
        self.found(ObjectKind::Service, &ObjectKey::of(&object.metadata), now);
        let changed = self.store.upsert_service(object);
        self.enqueue(changed, now);
    }

    /// Removes a Service that somebody deleted. For one that is merely missing from a list, call [`Reconciler::lose_service`].
    pub fn delete_service(&mut self, key: &ObjectKey, now: Moment) {
        self.totals.service_changes = self.totals.service_changes.saturating_add(1);
        self.found(ObjectKind::Service, key, now);
        // Its slices are deleted with it; do not wait for those that are missing.
        let slices = self.store.slices_of(key).map(|slice| &slice.key);
        let missing: Vec<ObjectKey> =
            slices.filter(|slice| self.safeguard.is_lost(ObjectKind::EndpointSlice, slice)).cloned().collect();
        for slice in missing {
            self.safeguard.found(ObjectKind::EndpointSlice, &slice);
            self.store.delete_slice(&slice);
        }
        let changed = self.store.delete_service(key);
        self.enqueue(changed, now);
    }

    /// A list lacks a Service, and nobody reported it as deleted: the next pass removes it, unless too many go at once
    /// ([`Safeguard`]).
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
    /// The safeguard does not hold back Frontends that are taken away here: [`MassRemoval`] is about lists that lack
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

    /// The list is complete: all its objects, and what it lacks, were handed in.
    pub fn list_ends(&mut self, kind: ObjectKind) {
        self.safeguard.list_ends(kind);
    }

    /// Takes a new or changed EndpointSlice. Returns whether it differs in anything that counts.
    pub fn upsert_slice(&mut self, object: &EndpointSliceObject, now: Moment) -> bool {
        self.totals.endpoint_changes = self.totals.endpoint_changes.saturating_add(1);
        self.found(ObjectKind::EndpointSlice, &ObjectKey::of(&object.metadata), now);
        let changed = self.store.upsert_slice(object);
        let differs = !changed.is_empty();
        self.enqueue(changed, now);
        differs
    }

    /// Removes an EndpointSlice that somebody deleted. For one that is merely missing from a list, call
    /// [`Reconciler::lose_slice`].
    pub fn delete_slice(&mut self, key: &ObjectKey, now: Moment) {
        self.totals.endpoint_changes = self.totals.endpoint_changes.saturating_add(1);
        self.found(ObjectKind::EndpointSlice, key, now);
        let changed = self.store.delete_slice(key);
        self.enqueue(changed, now);
    }

    /// A list lacks an EndpointSlice, and nobody reported it as deleted: the next pass removes its endpoints, unless too
    /// many Services would lose their last endpoint at once ([`Safeguard`]).
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

    /// An object is not missing any more, even if unchanged: that may release what is held back.
    fn found(&mut self, kind: ObjectKind, key: &ObjectKey, now: Moment) {
        if self.safeguard.found(kind, key) {
            self.schedule.request(now);
        }
    }

    /// Confirms what is held back ([`Safeguard`]): the next pass deletes it. Returns how many virtual servers that affects.
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
        self.safeguard.confirm()
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

    /// Takes a Node of the cluster, for the weight that its endpoints have by it ([`Node::weight`]). Ignored unless the configuration
    /// lets annotations decide it ([`MayAskFor::NODE_WEIGHTS`](crate::config::MayAskFor::NODE_WEIGHTS)). When a weight changed, the
    /// next pass compiles every Service again.
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
    /// options.config.ipvs.may_ask_for |= MayAskFor::NODE_WEIGHTS;
    /// let mut proxier = Reconciler::new("node-a", options, now);
    /// proxier.upsert_node_weight(&node, now);
    /// proxier.start(now);
    /// proxier.pass(&|| now, &mut kernel.ports());
    /// assert_eq!(proxier.facts().node_weights().get("node-b"), Some(&3));
    ///
    /// proxier.delete_node_weight("node-b", now);
    /// proxier.pass(&|| now, &mut kernel.ports());
    /// assert_eq!(proxier.facts().node_weights().get("node-b"), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn upsert_node_weight(&mut self, object: &NodeObject, now: Moment) {
        if self.options.config.lets(MayAskFor::NODE_WEIGHTS) && self.node_weights.upsert(object) {
            self.schedule.request(now);
        }
    }

    /// Forgets a Node of the cluster: its endpoints have weight 1 by it.
    pub fn delete_node_weight(&mut self, name: &str, now: Moment) {
        if self.node_weights.delete(name) {
            self.schedule.request(now);
        }
    }

    /// Sets the networks of cluster IPs that the cluster itself names (ServiceCIDR objects), in place of the earlier ones. They
    /// count instead of those of the configuration ([`IpvsConfig::service_cidrs`](crate::config::IpvsConfig::service_cidrs),
    /// [`userspace::Options::service_cidrs`]); none at all: those of the configuration count. Ignored where addresses are not made
    /// local by routes.
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
        if !self.service_cidrs.set(networks) {
            return;
        }
        match &mut self.mode {
            Mode::Ipvs(_) if self.options.config.binds_by_routes() => {
                self.options.config.ipvs.service_cidrs = self.service_cidrs.of_ipvs();
                self.refresh_facts();
                self.schedule.request(now);
            }
            Mode::Userspace(mode) => {
                mode.set_service_cidrs(self.service_cidrs.of_userspace());
                self.schedule.request_full(now);
            }
            Mode::Ipvs(_) | Mode::Nftables(_) | Mode::Iptables(_) => {}
        }
    }

    /// The lists are complete: passes may begin, and a full one is due. Earlier requests count as made now.
    pub fn start(&mut self, now: Moment) {
        if !self.started {
            self.started = true;
            self.schedule = Schedule::new(self.options.limits, self.options.seed, now);
        }
    }

    /// Sets the neighbours of a kind, which this node has to reach, in place of the earlier ones: no Service may take their
    /// addresses ([`Reserved`](crate::service::Reserved)). Gateways and the endpoints of `default/kubernetes` are found
    /// without this.
    ///
    /// ```
    /// use std::time::Duration;
    /// use proxier_core::fake::FakeKernel;
    /// use proxier_core::net::EndpointKey;
    /// use proxier_core::reconciler::{Options, Reconciler};
    /// use proxier_core::service::{Neighbour, User};
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
    /// assert!(proxier.facts().is_here(node) && !proxier.facts().is_on_interface(node));
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

    /// Changes [`Options::address_grace`]: to 0 for a process that makes one pass only and ends before the time is over.
    pub fn set_address_grace(&mut self, grace: Duration) {
        self.options.address_grace = grace;
    }

    /// These addresses were seen on an interface of this host. One that is gone again when the next pass reads them gets
    /// the full time to come back ([`Options::address_grace`]): a pass may take longer than the address stays away.
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
    /// [nftables mode](modes::Kind::Nftables), and in IPVS mode with [rules by nftables](RulesBy::Nftables). `None` otherwise.
    pub fn table_name(&self) -> Option<String> {
        let config = &self.options.config;
        match self.mode.kind() {
            modes::Kind::Nftables => Some(config.names.table.to_string()),
            modes::Kind::Ipvs if config.ipvs.rules == RulesBy::Nftables => Some(config.names.ipvs_table().to_string()),
            _ => None,
        }
    }

    /// Reports the generations of the rule set that wrote to the tables of [this name](Reconciler::table_name); `lost`: some may be
    /// missing. If one is not this proxy's own, the next pass compares everything. Has no effect before the tables have been read.
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
        let differs = self.committed.differs(generations, lost, tables) && self.mode.has_read_tables();
        if differs {
            self.schedule.request_full(now);
        }
        differs
    }

    fn enqueue(&mut self, services: Vec<ObjectKey>, now: Moment) {
        if !services.is_empty() {
            self.pending.extend(services);
            self.schedule.request(now);
        }
    }

    /// Computes the node facts again, and compiles every Service if they differ.
    fn refresh_facts(&mut self) {
        let absent = self.absent.keys().copied();
        let mut facts = NodeFacts::with_absent(&self.options.config, &self.node, &self.host, absent);
        facts.set_node_weights(self.node_weights.all().clone());
        if facts != self.facts {
            self.facts = facts;
            self.mode.facts_changed();
            self.pending.extend(self.store.services().map(|service| service.key.clone()));
            self.pending.extend(self.store.frontend_keys().cloned());
        }
    }

    /// When [`Reconciler::pass`] has something to do; in the past: now. `None` before [`Reconciler::start`].
    pub fn next_wake(&self) -> Option<Moment> {
        let next = self.schedule.next().filter(|_| self.started)?;
        let looks = [self.mode.next_wake(), self.next_loss()].into_iter().flatten();
        Some(looks.map(|look| look.max(self.schedule.earliest())).fold(next.at, Moment::min))
    }

    /// When the next lost address is given up.
    fn next_loss(&self) -> Option<Moment> {
        self.absent.values().min().copied()
    }

    /// Runs the pass that is due. `None` if none is.
    ///
    /// `clock` returns the time, on the scale of the other methods; it is read again when the pass ends, since pauses count
    /// from there.
    pub fn pass(&mut self, clock: &dyn Fn() -> Moment, ports: &mut Ports<'_>) -> Option<Report> {
        if !self.started {
            return None;
        }
        let now = clock();
        let is_due = |at: Option<Moment>| at.is_some_and(|at| at <= now);
        if is_due(self.mode.next_wake()) || is_due(self.next_loss()) {
            self.schedule.request(now);
        }
        let pass = self.schedule.start(now)?;
        let mut committed = std::mem::take(&mut self.committed);
        let mut tables = Noting::new(ports.tables, &mut committed);
        let mut ports = Ports {
            ipvs: ports.ipvs,
            sets: ports.sets,
            rules: ports.rules,
            links: ports.links,
            sysctls: ports.sysctls,
            tables: &mut tables,
            conntrack: ports.conntrack,
            routes: ports.routes,
            relays: ports.relays,
        };
        let report = self.make(pass, now, clock, &mut ports);
        self.committed = committed;
        Some(report)
    }

    /// Makes a pass.
    fn make(&mut self, pass: schedule::Pass, now: Moment, clock: &dyn Fn() -> Moment, ports: &mut Ports<'_>) -> Report {
        let mut report = Report::default();
        let first = self.serve_first(now, clock, ports);
        if let Some(prepared) = self.prepare(pass, now, &mut report, ports) {
            // A running process retries soon, and must not delay anything else meanwhile.
            ports.rules.set_lock_wait(if self.settled { Self::SHORT_LOCK_WAIT } else { Self::FIRST_LOCK_WAIT });
            if self.mode.carry_out(prepared, &self.store, &mut report, clock, ports) {
                self.schedule.request_full(now);
            }
        }
        if let Some((first, before)) = first {
            report.applied.add(before.applied);
            report.served_first = Some(first);
        }
        let end = clock();
        self.settled |= report.full && !report.has_failed() && report.stopped.is_none();
        if report.has_failed() || report.applied.failures.is_empty() {
            self.schedule.done(end, !report.has_failed());
        } else {
            self.schedule.done_but_for_objects(end);
        }
        self.totals.add(&report, end);
        report
    }

    /// What a full pass would do now, without doing it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use proxier_core::fake::FakeKernel;
    /// use proxier_core::modes::shared::names::Names;
    /// use proxier_core::objects::ServiceObject;
    /// use proxier_core::reconciler::{Options, Reconciler};
    ///
    /// let service: ServiceObject = serde_json::from_str(r#"{
    ///     "metadata": {"namespace": "demo", "name": "web"},
    ///     "spec": {"clusterIP": "10.96.0.10", "ports": [{"name": "http", "port": 80}]}
    /// }"#)?;
    /// let (mut kernel, now) = (FakeKernel::new(), Duration::ZERO);
    /// let mut proxier = Reconciler::new("node-a", Options::default(), now);
    /// proxier.upsert_service(&service, now);
    /// let (plan, report) = proxier.preview(now, &mut kernel.ports());
    /// assert!(report.unread.is_empty() && !plan.is_empty());
    /// let names = Names::new(proxier.store(), proxier.desired());
    /// let steps: Vec<String> = plan.steps(&names).map(|step| step.to_string()).collect();
    /// assert!(steps.contains(&"+ virtual server TCP 10.96.0.10:80 rr  (demo/web:http)".to_owned()), "{steps:#?}");
    /// assert_eq!(kernel.writes().total(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn preview(&mut self, now: Moment, ports: &mut Ports<'_>) -> (Plan, Report) {
        let (before, safeguard) = (self.mode.before_preview(), self.safeguard.clone());
        let mut report = Report::default();
        let prepared = self.prepare(schedule::Pass::Full, now, &mut report, ports);
        self.mode.after_preview(before);
        self.safeguard = safeguard;
        self.schedule.request_full(now);
        (prepared.map(Prepared::into_plan).unwrap_or_default(), report)
    }

    /// Compiles what changed, reads what has to be read, and makes the plan; `None` when the kernel could not be read.
    fn prepare(
        &mut self,
        pass: schedule::Pass,
        now: Moment,
        report: &mut Report,
        ports: &mut Ports<'_>,
    ) -> Option<Prepared> {
        report.full = pass == schedule::Pass::Full || !self.mode.knows_kernel();
        if report.full || self.host_stale {
            match host::read_host(ports.links) {
                Ok(host) => {
                    report.full |= self.take_host(host, now);
                    report.full = report.full || self.mode.routes_differ(ports.routes);
                }
                Err(error) => report.unread.push(error),
            }
            report.unread.extend(self.read_gateways(ports.links));
        }
        self.give_up_absent(now);
        self.find_api_servers();
        if self.node_weights.take_changed() {
            self.refresh_facts();
        }
        let refreshed = self.refresh_desired(now);
        report.health_checks_changed = report.full || refreshed.health_checks;
        // The safeguard has judged missing objects; everything else that goes was deleted by events. Before the first
        // comparison nothing is known to go.
        if self.safeguard.has_compared() {
            self.safeguard.believe(refreshed.frontends);
        }
        if report.full && report.unread.is_empty() {
            let read = self.mode.read(&self.host, &self.facts, ports);
            report.unread.extend(read.err().into_iter().flatten());
        }
        if !report.unread.is_empty() {
            // Once the kernel can be read, compare everything.
            self.mode.forget_kernel();
            return None;
        }
        if self.take_served(now) {
            self.refresh_desired(now);
        }
        if report.full {
            report.refused = self.refused().collect();
        }
        let pass = Pass {
            store: &self.store,
            facts: &self.facts,
            host: &self.host,
            settings: &self.options.host,
            full: report.full,
            settled: self.settled,
            failing: self.schedule.is_failing(),
            now,
        };
        self.mode.prepare(pass, &mut self.safeguard, report, ports)
    }

    /// Compiles changed objects, and removes missing objects that the safeguard takes for gone.
    fn refresh_desired(&mut self, now: Moment) -> Refreshed {
        let pending = std::mem::take(&mut self.pending);
        let mut refreshed = self.mode.refresh(&self.store, &self.facts, &pending);
        let mut services = BTreeSet::new();
        for (kind, key) in self.safeguard.judge(&self.store, self.mode.desired(), &self.facts, now) {
            services.extend(match kind {
                ObjectKind::Service => self.store.delete_service(&key),
                _ => self.store.delete_slice(&key),
            });
        }
        if !services.is_empty() {
            refreshed.extend(self.mode.refresh(&self.store, &self.facts, &services));
        }
        refreshed
    }

    /// Takes the host's addresses; returns whether the mode's device differs from what is known.
    fn take_host(&mut self, host: HostAddresses, now: Moment) -> bool {
        self.host_stale = false;
        let before = std::mem::replace(&mut self.host, host);
        let names = &self.options.config.names;
        let there: BTreeSet<IpAddr> = host::other_addresses(&self.host, names).collect();
        self.absent.retain(|address, _| !there.contains(address));
        let until = now.saturating_add(self.options.address_grace);
        for lost in host::other_addresses(&before, names).filter(|address| !there.contains(address)) {
            if until > now && is_reachable(lost) {
                self.absent.entry(lost).or_insert(until);
            }
        }
        self.refresh_facts();
        self.mode.device_differs(&self.host)
    }

    /// At the first reading of the kernel: an address on which an earlier process served node ports, and which this host
    /// lacks now, gets the same time to come back as one lost later. Returns whether there is one.
    fn take_served(&mut self, now: Moment) -> bool {
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
    fn give_up_absent(&mut self, now: Moment) {
        let before = self.absent.len();
        self.absent.retain(|_, until| *until > now);
        if self.absent.len() != before {
            self.refresh_facts();
        }
    }

    /// Reads the gateways of the default routes. Keeps the known ones if they cannot be read; and a family without a
    /// default route at the moment keeps its gateway, since the route will come back to it.
    fn read_gateways(&mut self, links: &mut dyn Links) -> Option<Unread> {
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

    /// Takes the endpoints of `default/kubernetes` as API servers. While it has none, keeps the earlier ones.
    fn find_api_servers(&mut self) {
        let kubernetes = ObjectKey::new("default", "kubernetes");
        let ports = |slice: &EndpointSlice| -> Vec<u16> { slice.ports.iter().map(|port| port.port).collect() };
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

    /// Reduces memory by rebuilding everything that is kept; call it after the first pass.
    pub fn compact(&mut self) {
        self.store.compact();
        self.mode.compact();
    }

    /// The name of the node.
    pub fn node_name(&self) -> &str {
        self.store.node_name()
    }

    /// The objects.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What the Services mean, as of the last pass.
    pub fn desired(&self) -> &Desired {
        self.mode.desired()
    }

    /// What IPVS has to hold for that; `None` in other modes.
    pub fn wanted(&self) -> Option<&Wanted> {
        match &self.mode {
            Mode::Ipvs(mode) => Some(mode.wanted()),
            Mode::Nftables(_) | Mode::Iptables(_) | Mode::Userspace(_) => None,
        }
    }

    /// What IPVS holds, as far as is known; `None` in other modes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ipvs::VirtualServerKey;
    /// use proxier_core::fake::FakeKernel;
    /// use proxier_core::net::EndpointKey;
    /// use proxier_core::reconciler::{Options, Reconciler};
    /// use proxier_core::snapshot::{FrontendSpec, ObjectKey};
    ///
    /// let (mut kernel, mut now) = (FakeKernel::new(), Duration::ZERO);
    /// let mut proxier = Reconciler::new("node-a", Options::default(), now);
    /// let web = ObjectKey::new("agent", "web");
    /// let with = |endpoints: &[u8]| -> Result<FrontendSpec, proxier_core::net::InvalidFrontendKey> {
    ///     let endpoints = endpoints.iter().map(|last| EndpointKey::new([10, 244, 1, *last].into(), 8080));
    ///     Ok(FrontendSpec::new("TCP 10.96.0.10:80".parse()?, endpoints))
    /// };
    /// proxier.upsert_frontends(&web, [with(&[7, 8])?], now);
    /// proxier.start(now);
    /// proxier.pass(&|| now, &mut kernel.ports());
    /// let key: VirtualServerKey = "TCP 10.96.0.10:80".parse()?;
    /// let real = "10.244.1.8:8080".parse()?;
    /// assert!(proxier.observed().is_some_and(|observed| observed.owns(&key)));
    /// assert_eq!(proxier.frontend_of(&key), Some("TCP 10.96.0.10:80".parse()?));
    ///
    /// // An endpoint leaves while a client is connected: it drains, wanted no more but still there.
    /// kernel.set_connections(&key, &real, 1, 0);
    /// now += Duration::from_secs(1);
    /// proxier.upsert_frontends(&web, [with(&[7])?], now);
    /// let report = proxier.pass(&|| now, &mut kernel.ports()).ok_or("not due")?;
    /// assert_eq!(report.draining, 1);
    /// assert!(proxier.drains().is_some_and(|drains| drains.is_draining(&key, &real)));
    /// assert!(proxier.wanted().is_some_and(|wanted| !wanted.has_real_server(&key, &real)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn observed(&self) -> Option<&Observed> {
        match &self.mode {
            Mode::Ipvs(mode) => mode.observed(),
            Mode::Nftables(_) | Mode::Iptables(_) | Mode::Userspace(_) => None,
        }
    }

    /// The node facts: what compiling needs besides the Services.
    pub fn facts(&self) -> &NodeFacts {
        &self.facts
    }

    /// Which part of the kernel serves.
    pub fn mode(&self) -> modes::Kind {
        self.mode.kind()
    }

    /// The safeguard: holds deletions back when there are too many at once.
    pub fn safeguard(&self) -> &Safeguard {
        &self.safeguard
    }

    /// Real servers that drain; `None` in modes in which connections end by themselves.
    pub fn drains(&self) -> Option<&Drains> {
        match &self.mode {
            Mode::Ipvs(mode) => Some(mode.drains()),
            Mode::Nftables(_) | Mode::Iptables(_) | Mode::Userspace(_) => None,
        }
    }

    /// The virtual server, by firewall mark, that serves outside clients of a Frontend, if it has one of its own
    /// ([`Config::splits_local`](crate::config::Config::splits_local)).
    pub fn split(&self, frontend: &FrontendKey) -> Option<VirtualServerKey> {
        match &self.mode {
            Mode::Ipvs(mode) => mode.wanted().split(frontend),
            Mode::Nftables(_) | Mode::Iptables(_) | Mode::Userspace(_) => None,
        }
    }

    /// The virtual server of a firewall mark that a node port has in common with this node's other addresses, in place of one of its own
    /// ([`Config::shares_node_ports`](crate::config::Config::shares_node_ports)).
    ///
    /// ```
    /// use std::time::Duration;
    /// use ipvs::VirtualServerKey;
    /// use proxier_core::config::RulesBy;
    /// use proxier_core::fake::FakeKernel;
    /// use proxier_core::net::EndpointKey;
    /// use proxier_core::reconciler::{Options, Reconciler};
    /// use proxier_core::snapshot::{FrontendSpec, ObjectKey, Roles, TrafficPolicy};
    ///
    /// let now = Duration::ZERO;
    /// let mut options = Options::default();
    /// options.config.ipvs.rules = RulesBy::Nftables;
    /// (options.config.ipvs.mark_split, options.config.ipvs.mark_node_ports) = (true, true);
    /// let mut proxier = Reconciler::new("node-a", options, now);
    /// let endpoint = EndpointKey::new([10, 244, 1, 7].into(), 8080);
    /// let mut node_port = FrontendSpec::new("TCP 192.0.2.10:30080".parse()?, [endpoint]);
    /// node_port.roles = Roles::NODE_PORT;
    /// let mut external = FrontendSpec::new("TCP 203.0.113.7:80".parse()?, [endpoint]);
    /// (external.roles, external.policy) = (Roles::EXTERNAL_IP, TrafficPolicy::Local);
    /// proxier.upsert_frontends(&ObjectKey::new("agent", "web"), [node_port, external], now);
    /// proxier.start(now);
    /// proxier.pass(&|| now, &mut FakeKernel::new().ports());
    ///
    /// // For all addresses of this node, so it is recorded at address 0.
    /// let shared = proxier.shared(&"TCP 192.0.2.10:30080".parse()?).ok_or("not shared")?;
    /// assert!(matches!(shared, VirtualServerKey::Fwmark { .. }));
    /// assert_eq!(proxier.frontend_of(&shared), Some("TCP 0.0.0.0:30080".parse()?));
    /// // For clients outside, beside the virtual server of the address.
    /// let split = proxier.split(&"TCP 203.0.113.7:80".parse()?).ok_or("not split")?;
    /// assert_eq!(proxier.frontend_of(&split), Some("TCP 203.0.113.7:80".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shared(&self, frontend: &FrontendKey) -> Option<VirtualServerKey> {
        match &self.mode {
            Mode::Ipvs(mode) => mode.wanted().shared(frontend),
            Mode::Nftables(_) | Mode::Iptables(_) | Mode::Userspace(_) => None,
        }
    }

    /// Which Services IPVS mode serves without the firewall marks that the configuration asks for
    /// ([`Config::splits_local`](crate::config::Config::splits_local),
    /// [`Config::shares_node_ports`](crate::config::Config::shares_node_ports)), and why. Costs O(such Frontends).
    ///
    /// ```
    /// use std::time::Duration;
    /// use proxier_core::config::RulesBy;
    /// use proxier_core::fake::FakeKernel;
    /// use proxier_core::net::EndpointKey;
    /// use proxier_core::reconciler::{Options, Reconciler};
    /// use proxier_core::snapshot::{FrontendSpec, ObjectKey, Roles, TrafficPolicy};
    ///
    /// let now = Duration::ZERO;
    /// let mut options = Options::default();
    /// (options.config.ipvs.rules, options.config.ipvs.mark_split) = (RulesBy::Nftables, true);
    /// let mut proxier = Reconciler::new("node-a", options, now);
    /// let endpoint = EndpointKey::new([10, 244, 1, 7].into(), 8080);
    /// let mut external = FrontendSpec::new("TCP 203.0.113.7:80".parse()?, [endpoint]);
    /// (external.roles, external.policy, external.affinity_secs) = (Roles::EXTERNAL_IP, TrafficPolicy::Local, Some(60));
    /// proxier.upsert_frontends(&ObjectKey::new("agent", "web"), [external], now);
    /// proxier.start(now);
    /// proxier.pass(&|| now, &mut FakeKernel::new().ports());
    /// let said: Vec<String> = proxier.unmarked().map(|unmarked| unmarked.to_string()).collect();
    /// assert!(said[0].starts_with("Service agent/web: ipvs.markSplit not for TCP 203.0.113.7:80: clients stay"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unmarked(&self) -> impl Iterator<Item = Unmarked> {
        self.wanted().into_iter().flat_map(Wanted::unmarked)
    }

    /// Which Frontend a virtual server is for, wanted or not; a shared node port has address 0; `None` for one of a firewall mark that is none of ours.
    pub fn frontend_of(&self, server: &VirtualServerKey) -> Option<FrontendKey> {
        match &self.mode {
            Mode::Ipvs(mode) => mode.wanted().frontend_key(server),
            Mode::Nftables(_) | Mode::Iptables(_) | Mode::Userspace(_) => FrontendKey::try_from(*server).ok(),
        }
    }

    /// Since when something is wanted that the kernel does not have; `None` when it has everything, and before
    /// [`Reconciler::start`], when nothing is wanted yet. Health checks use this (`/healthz`).
    ///
    /// ```
    /// use std::time::Duration;
    /// use proxier_core::fake::{Call, FakeKernel, Fault};
    /// use proxier_core::ports::PortErrorKind;
    /// use proxier_core::reconciler::{Options, Reconciler};
    ///
    /// let (mut kernel, now) = (FakeKernel::new(), Duration::from_secs(7));
    /// let mut proxier = Reconciler::new("node-a", Options::default(), now);
    /// assert_eq!(proxier.pending_since(), None);
    /// proxier.start(now);
    /// kernel.fail(Fault::new(Call::IpvsSnapshot, PortErrorKind::Busy));
    /// let report = proxier.pass(&|| now, &mut kernel.ports()).ok_or("not due")?;
    /// assert!(report.has_failed());
    /// assert_eq!(proxier.pending_since(), Some(now)); // /healthz fails when that is long ago
    /// assert_eq!((proxier.schedule().failures(), proxier.totals().failed_passes), (1, 1));
    ///
    /// // It is tried again after a pause, or at once on request.
    /// proxier.request_full(now);
    /// proxier.pass(&|| now, &mut kernel.ports());
    /// assert_eq!(proxier.pending_since(), None);
    /// assert_eq!((proxier.totals().full_passes, proxier.totals().last_success), (2, Some(now)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pending_since(&self) -> Option<Moment> {
        self.schedule.pending_since().filter(|_| self.started)
    }

    /// When passes run.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Counters over all passes.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Frontends that Services ask for and do not get: their address or port is reserved, or another Service owns it.
    pub fn refused(&self) -> impl Iterator<Item = Refused> {
        let desired = self.desired();
        let reserved = desired.rejected().map(|(service, refusal)| Refused {
            service: service.to_string(),
            key: refusal.key,
            reason: refusal.reason(),
        });
        let claimed = desired.conflicts().map(|conflict| Refused {
            service: conflict.refused.to_string(),
            key: conflict.key,
            reason: format!("{} had it first", conflict.owner),
        });
        reserved.chain(claimed)
    }

    /// What was left out of the current objects: of Services and slices, then of Nodes, then what annotations ask for that
    /// cannot be with the endpoints there are.
    pub fn rejections(&self) -> impl Iterator<Item = &Rejection> {
        let of_nodes = self.node_rejections.iter().chain(self.node_weights.rejections());
        self.store.rejections().chain(of_nodes).chain(self.desired().refused())
    }
}
