//! State that IPVS has to hold for [`Desired`]: virtual servers, addresses on the dummy device, and entries of sets.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use ipset::{Element, IpSpan, Ports};
use ipvs::model::{Persistence, RealServerConfig, Scheduler, SchedulerFlags, VirtualServerConfig};
use ipvs::{Operation, RealServerKey, VirtualServer, VirtualServerKey};

use crate::config::Config;
use crate::modes::ipvs::drain::Policy;
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::plan::Plan;
use crate::modes::ipvs::servers::RealServers;
use crate::modes::ipvs::sets::{SetKey, SetKind};
use crate::modes::ipvs::split::{self, Marks};
use crate::modes::ipvs::{guards, lower};
use crate::net::{EndpointKey, Family, FrontendKey, Network, Protocol};
use crate::pack::pack;
use crate::service::{Compiled, Frontend, NodeFacts, Roles};
use crate::service::{Desired, Follower};
use crate::snapshot::{Balancing, ObjectKey, Store, TrafficPolicy};

/// Use of a firewall mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Marking {
    /// A list of endpoints of its own for clients outside ([`Config::splits_local`]).
    Split,
    /// One list for all addresses of a node port ([`Config::shares_node_ports`]).
    Shared,
}

/// Firewall mark that the configuration asks for, and a Service does not get. The Service is served without.
///
/// Prints on one line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Unmarked {
    /// The Service.
    pub service: ObjectKey,
    /// The mark that it does not get.
    pub marking: Marking,
    /// Frontends without it; never empty.
    pub frontends: Vec<FrontendKey>,
    /// Reason.
    pub reason: &'static str,
}

impl fmt::Display for Unmarked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unmarked { service, marking, frontends, reason } = self;
        let first = frontends.first().map(ToString::to_string).unwrap_or_default();
        let more = match frontends.len() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count.saturating_sub(1)),
        };
        let (what, instead) = match marking {
            Marking::Split => ("ipvs.markSplit", "pods and this node get local endpoints too"),
            Marking::Shared => ("ipvs.markNodePorts", "each address of the node has a virtual server"),
        };
        write!(f, "Service {service}: {what} not for {first}{more}: {reason}; {instead}")
    }
}

/// State that IPVS has to hold, kept up to date at O(changed Services).
///
/// Services share: two may use one load-balancer address with different ports, and one pod may be in many. Shared objects are
/// counted and go when their last user goes.
///
/// Two values with the same Services compare equal, however they were built.
///
/// ```
/// use std::time::Duration;
/// use ipvs::{Scheduler, VirtualServer, VirtualServerKey};
/// use proxier_core::config::Config;
/// use proxier_core::modes::ipvs::sets::{SetKey, SetKind};
/// use proxier_core::modes::ipvs::wanted::Wanted;
/// use proxier_core::net::{EndpointKey, Family};
/// use proxier_core::service::NodeFacts;
/// use proxier_core::snapshot::{Balancing, FrontendSpec, HostAddresses, Node, ObjectKey, Roles, Store};
///
/// let endpoints = [7, 8].map(|last| EndpointKey::new([10, 244, 1, last].into(), 80));
/// let mut web = FrontendSpec::new("TCP 203.0.113.7:80".parse()?, endpoints);
/// web.roles = Roles::LOAD_BALANCER;
/// web.source_ranges = Some(vec!["198.51.100.0/24".parse()?]);
/// let mut balancing = Balancing::default();
/// (balancing.scheduler, balancing.drain_secs) = (Some(Scheduler::LeastConnection), Some(30));
/// web.balancing = Some(balancing.into());
/// let mut store = Store::new("node-a");
/// store.upsert_frontends(&ObjectKey::new("agent", "web"), [web]);
///
/// let facts = NodeFacts::new(&Config::default(), &Node::new("node-a"), &HostAddresses::default());
/// let mut wanted = Wanted::build(&store, &facts);
/// let key: VirtualServerKey = "TCP 203.0.113.7:80".parse()?;
/// let server = wanted.server(&key).ok_or("not wanted")?;
/// assert_eq!(server.virtual_server(), VirtualServer::new(key, Scheduler::LeastConnection));
/// assert_eq!(wanted.servers().count(), 1);
/// assert!(wanted.has_real_server(&key, &"10.244.1.8:80".parse()?));
/// assert_eq!(wanted.owner(&key), Some(&ObjectKey::new("agent", "web")));
/// assert_eq!(wanted.drain_time(&key), Some(Duration::from_secs(30)));
/// // On the dummy device or by a route, unless another interface has it.
/// assert!(wanted.has_address("203.0.113.7".parse()?) && !wanted.is_elsewhere("203.0.113.7".parse()?));
///
/// // What rules match: the source ranges, and that this node is in none of them.
/// let ranges = SetKey::new(Family::V4, SetKind::LoadBalancerSourceCidr);
/// let entries: Vec<String> = wanted.entries(ranges).map(ToString::to_string).collect();
/// assert_eq!(entries, ["203.0.113.7,tcp:80,198.51.100.0/24"]);
/// assert!(wanted.sets().any(|set| set == ranges));
/// assert!(wanted.barred_from_node().eq([key]));
///
/// // Every Service is compiled again, as after a change of node facts; nothing differs.
/// assert!(wanted.refresh_all(&store, &facts).is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    desired: Desired,
    index: Index,
}

/// Objects that Frontends and Services have in common, counted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Index {
    defaults: Defaults,
    addresses: BTreeMap<IpAddr, usize>,
    elsewhere: BTreeMap<IpAddr, usize>,
    sets: BTreeMap<SetKey, BTreeMap<Element, usize>>,
    barred: BTreeSet<VirtualServerKey>,
    by: guards::Kind,
    /// Frontends that need no entry have none.
    only_needed: bool,
    /// Frontends that can be are split ([`split`]).
    splits: bool,
    /// Node ports that can be are shared.
    shares: bool,
    marks: Marks,
    /// Frontends that would be split or shared, and are not.
    unmarked: BTreeSet<FrontendKey>,
    /// The addresses of each node port.
    node_ports: BTreeMap<FrontendKey, BTreeSet<IpAddr>>,
}

/// A virtual server as it has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WantedServer {
    /// Key of the virtual server.
    pub key: VirtualServerKey,
    /// Its configuration.
    pub config: VirtualServerConfig,
    /// Its real servers.
    pub real_servers: RealServers,
}

impl WantedServer {
    /// The virtual server.
    pub fn virtual_server(&self) -> VirtualServer {
        VirtualServer { key: self.key, config: self.config }
    }
}

/// Changes of an update, by name: objects where the kernel may have to follow.
///
/// An object that an update left as it was is not in here, even if its Service was compiled again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changed {
    /// Virtual servers that are new, gone, or have another configuration or other real servers. One that several Services
    /// claim may be in here unchanged when more than one of them was refreshed at once.
    pub virtual_servers: BTreeSet<VirtualServerKey>,
    /// Addresses on the dummy device that are new or gone.
    pub addresses: BTreeSet<IpAddr>,
    /// Addresses that another interface got or lost, or that Services newly ask for or no longer do; see
    /// [`Wanted::is_elsewhere`].
    pub elsewhere: BTreeSet<IpAddr>,
    /// Entries that are new or gone.
    pub entries: BTreeSet<(SetKey, Element)>,
    /// Services whose health check is new, gone or different.
    pub health_checks: BTreeSet<ObjectKey>,
}

impl Changed {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        *self == Changed::default()
    }

    /// Adds what a later update changed. Something that changed back stays in here: it is to be checked, and may not
    /// differ.
    pub fn extend(&mut self, later: Changed) {
        let Changed { virtual_servers, addresses, elsewhere, entries, health_checks } = later;
        self.virtual_servers.extend(virtual_servers);
        self.addresses.extend(addresses);
        self.elsewhere.extend(elsewhere);
        self.entries.extend(entries);
        self.health_checks.extend(health_checks);
    }
}

/// Inserts the value if missing, else removes it: what changes twice has not changed.
fn toggle<T: Ord>(set: &mut BTreeSet<T>, value: T) {
    if !set.remove(&value) {
        set.insert(value);
    }
}

/// Record of changes; `None` when it is not needed, since recording costs as much as changing.
struct Notes<'a>(Option<&'a mut Changed>);

impl Notes<'_> {
    fn virtual_server(&mut self, key: VirtualServerKey) {
        if let Some(changed) = &mut self.0 {
            changed.virtual_servers.insert(key);
        }
    }

    fn address(&mut self, address: IpAddr) {
        if let Some(changed) = &mut self.0 {
            toggle(&mut changed.addresses, address);
        }
    }

    fn elsewhere(&mut self, address: IpAddr) {
        if let Some(changed) = &mut self.0 {
            toggle(&mut changed.elsewhere, address);
        }
    }

    fn entry(&mut self, set: SetKey, element: &Element) {
        if let Some(changed) = &mut self.0 {
            toggle(&mut changed.entries, (set, element.clone()));
        }
    }

    fn health_check(&mut self, service: &ObjectKey) {
        if let Some(changed) = &mut self.0 {
            changed.health_checks.insert(service.clone());
        }
    }
}

/// Keeps the index in step with [`Desired`].
struct Following<'a> {
    index: &'a mut Index,
    notes: Notes<'a>,
}

impl Follower for Following<'_> {
    fn service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        if before.and_then(|old| old.health_check) != after.and_then(|new| new.health_check)
            && let Some(compiled) = after.or(before)
        {
            self.notes.health_check(&compiled.service);
        }
        let only_needed = self.index.only_needed;
        let entries = |compiled: &Compiled| service_entries(compiled, only_needed);
        let (before, after) = (before.map(entries), after.map(entries));
        let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
        for (set, element) in after.difference(&before) {
            self.index.count_entry(*set, element.clone(), &mut self.notes);
        }
        for (set, element) in before.difference(&after) {
            self.index.uncount_entry(*set, element, &mut self.notes);
        }
    }

    fn frontend(&mut self, before: Option<&Frontend>, after: Option<&Frontend>) {
        let Some(frontend) = after.or(before).map(|frontend| frontend.key) else { return };
        let key = VirtualServerKey::from(frontend);
        let Following { index, notes } = self;
        let mark_before = before.and_then(|before| index.mark_of(before));
        if let Some(place) = after.and_then(|after| index.marked_place(after)) {
            index.marks.give(place);
        }
        let mark_after = after.and_then(|after| index.mark_of(after));
        index.note_unmarked(&frontend, after);
        let has_node_port = |of: Option<&Frontend>| of.is_some_and(|of| of.roles.contains(Roles::NODE_PORT));
        let node_port = split::node_port_of(&frontend);
        match (has_node_port(before), has_node_port(after)) {
            (false, true) => drop(index.node_ports.entry(node_port).or_default().insert(frontend.address)),
            (true, false) => {
                if let Entry::Occupied(mut addresses) = index.node_ports.entry(node_port) {
                    addresses.get_mut().remove(&frontend.address);
                    if addresses.get().is_empty() {
                        addresses.remove();
                    }
                }
            }
            _ => {}
        }
        let before_it = before.map(|before| Programmed::of(before, mark_before));
        if before_it != after.map(|after| Programmed::of(after, mark_after)) {
            notes.virtual_server(key);
            // Also one that drains.
            let marks = [index.marks.server(&frontend), index.marks.server(&node_port)];
            marks.into_iter().flatten().for_each(|mark| notes.virtual_server(mark));
        }
        let is_barred = |frontend: Option<&Frontend>| frontend.is_some_and(Frontend::is_barred_from_node);
        match (is_barred(before), is_barred(after)) {
            (false, true) => drop(index.barred.insert(key)),
            (true, false) => drop(index.barred.remove(&key)),
            _ => {}
        }
        // Add first, then remove, so that the count of what stays never reaches zero.
        if let Some(frontend) = after {
            let address = frontend.key.address;
            if frontend.is_virtual() && count(&mut index.addresses, address) {
                notes.address(address);
            }
            if frontend.is_elsewhere() && count(&mut index.elsewhere, address) {
                notes.elsewhere(address);
            }
            for (set, element) in index.entries_of(frontend, mark_after) {
                index.count_entry(set, element, notes);
            }
        }
        if let Some(frontend) = before {
            let address = frontend.key.address;
            if frontend.is_virtual() && uncount(&mut index.addresses, &address) {
                notes.address(address);
            }
            if frontend.is_elsewhere() && uncount(&mut index.elsewhere, &address) {
                notes.elsewhere(address);
            }
            for (set, element) in index.entries_of(frontend, mark_before) {
                index.uncount_entry(set, &element, notes);
            }
        }
    }
}

/// Inputs of a virtual server and its real servers.
#[derive(PartialEq, Eq)]
struct Programmed<'a> {
    affinity_secs: Option<u32>,
    balancing: Option<&'a Balancing>,
    returns_directly: bool,
    endpoints: &'a [EndpointKey],
    /// Endpoints for clients outside, if these have a list of their own.
    outside: Option<&'a [EndpointKey]>,
    /// The virtual server of its mark.
    mark: Option<VirtualServerKey>,
    weights: Option<&'a [(EndpointKey, u16)]>,
    /// Endpoints that may be among the real servers until their flows end.
    unselected: Option<&'a [EndpointKey]>,
}

impl<'a> Programmed<'a> {
    fn of(frontend: &'a Frontend, mark: Option<VirtualServerKey>) -> Self {
        let is_split = mark.is_some() && frontend.can_split();
        Programmed {
            mark,
            affinity_secs: frontend.affinity_secs,
            balancing: frontend.balancing.as_deref(),
            returns_directly: frontend.returns_directly,
            endpoints: if is_split { &frontend.cluster } else { frontend.endpoints() },
            outside: is_split.then_some(&*frontend.local),
            weights: frontend.weights.as_deref(),
            unselected: frontend.unselected.as_deref(),
        }
    }
}

/// Entries of a Service that belong to no Frontend: hairpins and the health check. `only_needed`: hairpins only if a Frontend has entries.
fn service_entries(compiled: &Compiled, only_needed: bool) -> BTreeSet<(SetKey, Element)> {
    let is_needed = !only_needed || compiled.frontends.iter().any(|frontend| needs_entries(frontend));
    let hairpins = compiled.hairpins.iter().filter(|_| is_needed).map(|(protocol, endpoint)| {
        let set = SetKey::new(Family::of(endpoint.address), SetKind::LoopBack);
        let host = IpSpan::host(endpoint.address);
        (set, Element::IpPortIp(host, Ports::port((*protocol).into(), endpoint.port), host))
    });
    let port = compiled.health_check.map(|check| Element::Port(check.port.into()));
    let open_in = compiled.health_check_open_in.iter();
    let checks = open_in.filter_map(|family| Some((SetKey::new(*family, SetKind::HealthCheckNodePort), port.clone()?)));
    hairpins.chain(checks).collect()
}

/// Whether a Frontend is masqueraded, guarded, or recorded as this proxy's by entries. Otherwise its bound address records that.
pub(crate) fn needs_entries(frontend: &Frontend) -> bool {
    let is_node_port = frontend.roles.contains(Roles::NODE_PORT);
    !frontend.returns_directly || frontend.source_ranges.is_some() || is_node_port || !frontend.is_virtual()
}

/// The entries that a Frontend has in the sets. A table of nf_tables takes no networks that overlap, and has a set of those that
/// this node may not use. `mark`: the virtual server of its mark, if it is split or shared.
pub(crate) fn frontend_entries(
    frontend: &Frontend,
    by: guards::Kind,
    mark: Option<VirtualServerKey>,
) -> Vec<(SetKey, Element)> {
    let FrontendKey { protocol, address, port } = frontend.key;
    let host = IpSpan::host(address);
    let ports = Ports::port(protocol.into(), port);
    let at = Element::IpPort(host, ports);
    let local = frontend.policy == TrafficPolicy::Local;
    // The source stays: the endpoint is on this node, or answers the client by itself.
    let keeps_source = local || frontend.returns_directly;
    let family = Family::of(address);
    let mut list = Vec::new();
    let mut add = |kind, element| list.push((SetKey::new(family, kind), element));
    if frontend.roles.contains(Roles::CLUSTER_IP) {
        add(SetKind::ClusterIp, at.clone());
    }
    if frontend.roles.contains(Roles::EXTERNAL_IP) {
        add(if keeps_source { SetKind::ExternalIpLocal } else { SetKind::ExternalIp }, at.clone());
    }
    if frontend.roles.contains(Roles::LOAD_BALANCER) {
        add(SetKind::LoadBalancer, at.clone());
        if keeps_source {
            add(SetKind::LoadBalancerLocal, at.clone());
        }
        if let Some(ranges) = &frontend.source_ranges {
            add(SetKind::LoadBalancerFirewall, at.clone());
            let ranges = match by {
                guards::Kind::Programs => ranges.to_vec(),
                guards::Kind::Nft => Network::aggregate(&ranges.to_vec()),
            };
            for range in ranges {
                add(SetKind::LoadBalancerSourceCidr, Element::IpPortIp(host, ports, lower::span(range)));
            }
            if frontend.node_may_use {
                add(SetKind::LoadBalancerSourceIp, Element::IpPortIp(host, ports, host));
            } else if by == guards::Kind::Nft {
                add(SetKind::LoadBalancerNotNode, Element::IpPortIp(host, ports, host));
            }
        }
    }
    if frontend.roles.contains(Roles::NODE_PORT) {
        let (all, local_only, element) = match protocol {
            Protocol::Tcp => (SetKind::NodePortTcp, SetKind::NodePortLocalTcp, Element::Port(port.into())),
            Protocol::Udp => (SetKind::NodePortUdp, SetKind::NodePortLocalUdp, Element::Port(port.into())),
            Protocol::Sctp => (SetKind::NodePortSctp, SetKind::NodePortLocalSctp, at.clone()),
        };
        if local {
            add(local_only, element.clone());
        }
        add(all, element);
        // A shared one has no virtual server of its address.
        let is_shared = mark.is_some() && frontend.can_share();
        if protocol != Protocol::Sctp && !is_shared {
            add(SetKind::NodePortServed, at);
        }
    }
    if frontend.is_virtual() {
        add(SetKind::IpvsIps, Element::Ip(host));
    }
    if let Some(VirtualServerKey::Fwmark { mark, .. }) = mark {
        list.extend(entries_of_mark(frontend, mark));
    }
    list
}

fn entries_of_mark(frontend: &Frontend, mark: NonZeroU32) -> [(SetKey, Element); 2] {
    if frontend.can_share() {
        let node_port = split::node_port_of(&frontend.key);
        [split::shared_entry(&frontend.key, mark), split::record(&node_port, mark)]
    } else {
        [split::active_entry(&frontend.key), split::record(&frontend.key, mark)]
    }
}

impl Index {
    fn entries_of(&self, frontend: &Frontend, mark: Option<VirtualServerKey>) -> Vec<(SetKey, Element)> {
        if self.only_needed && !needs_entries(frontend) {
            return Vec::new();
        }
        frontend_entries(frontend, self.by, mark)
    }

    fn count_entry(&mut self, set: SetKey, element: Element, notes: &mut Notes<'_>) {
        match self.sets.entry(set).or_default().entry(element) {
            Entry::Occupied(mut count) => *count.get_mut() = count.get().saturating_add(1),
            Entry::Vacant(place) => {
                notes.entry(set, place.key());
                place.insert(1);
            }
        }
    }

    fn uncount_entry(&mut self, set: SetKey, element: &Element, notes: &mut Notes<'_>) {
        let Some(elements) = self.sets.get_mut(&set) else { return };
        if uncount(elements, element) {
            notes.entry(set, element);
        }
        if elements.is_empty() {
            self.sets.remove(&set);
        }
    }

    fn config(&self, frontend: &Frontend) -> VirtualServerConfig {
        let mut config = self.defaults.server;
        config.persistence = frontend.affinity_secs.map(Persistence::new);
        let Some(asked) = &frontend.balancing else { return config };
        if let Some(scheduler) = asked.scheduler {
            config.scheduler = scheduler;
            config.scheduler_flags = usual_flags(scheduler);
        }
        if let Some(flags) = asked.scheduler_flags {
            // Without its fallback, this scheduler loses new connections while a real server drains.
            let needed = usual_flags(config.scheduler) & SchedulerFlags::MH_FALLBACK;
            config.scheduler_flags = flags | needed;
        }
        config.persistence = asked.persistence_secs.map(Persistence::new).or(config.persistence);
        let granularity = match frontend.key.family() {
            Family::V4 => asked.granularity_v4,
            Family::V6 => asked.granularity_v6,
        };
        if let (Some(persistence), Some(granularity)) = (&mut config.persistence, granularity) {
            persistence.granularity = granularity;
        }
        config.one_packet = asked.one_packet == Some(true) && frontend.key.protocol == Protocol::Udp;
        config
    }

    /// Address and port whose packets get the Frontend's mark, if it has one.
    fn marked_place(&self, frontend: &Frontend) -> Option<FrontendKey> {
        let splits = self.splits && frontend.can_split();
        let shares = self.shares && frontend.can_share();
        shares.then(|| split::node_port_of(&frontend.key)).or(splits.then_some(frontend.key))
    }

    /// Notes whether a Frontend lacks a mark that it would have.
    fn note_unmarked(&mut self, key: &FrontendKey, frontend: Option<&Frontend>) {
        if !self.splits && !self.shares {
            return;
        }
        if frontend.is_some_and(|frontend| self.why_unmarked(frontend).is_some()) {
            self.unmarked.insert(*key);
        } else {
            self.unmarked.remove(key);
        }
    }

    /// Reason why a Frontend that the configuration would have split or shared is not.
    fn why_unmarked(&self, frontend: &Frontend) -> Option<(Marking, &'static str)> {
        let marking = if self.splits && frontend.would_split() {
            Marking::Split
        } else if self.shares && frontend.would_share() {
            Marking::Shared
        } else {
            return None;
        };
        if self.mark_of(frontend).is_some() {
            return None;
        }
        let reason = match marking {
            _ if frontend.keeps_clients() => {
                "clients stay with their endpoints, and such a virtual server of a firewall mark does not translate ports"
            }
            _ if frontend.returns_directly => "endpoints answer clients by themselves",
            Marking::Shared if frontend.key.protocol == Protocol::Sctp => "it is of SCTP",
            _ => "ipvs.markRange has no mark left",
        };
        Some((marking, reason))
    }

    /// The virtual server of a Frontend's mark, if it is split or shared.
    fn mark_of(&self, frontend: &Frontend) -> Option<VirtualServerKey> {
        self.marks.server(&self.marked_place(frontend)?)
    }

    fn is_shared(&self, frontend: &Frontend) -> bool {
        frontend.can_share() && self.mark_of(frontend).is_some()
    }

    /// The endpoints of one of a Frontend's virtual servers, if it has that one.
    fn endpoints<'a>(&self, key: &VirtualServerKey, frontend: &'a Frontend) -> Option<&'a Arc<[EndpointKey]>> {
        // Nearly everywhere, and asked for each virtual server of each full pass.
        if !self.splits && !self.shares {
            return key.addr().is_some().then(|| frontend.endpoints());
        }
        match (key, self.mark_of(frontend)) {
            (VirtualServerKey::Fwmark { .. }, mark) if mark != Some(*key) => None,
            (VirtualServerKey::Fwmark { .. }, _) if frontend.can_share() => Some(frontend.endpoints()),
            (VirtualServerKey::Fwmark { .. }, _) => Some(&frontend.local),
            (_, Some(_)) if frontend.can_share() => None,
            (_, Some(_)) => Some(&frontend.cluster),
            (_, None) => Some(frontend.endpoints()),
        }
    }
}

fn real_servers(frontend: &Frontend, keys: Arc<[EndpointKey]>) -> RealServers {
    let mut config = RealServerConfig::default();
    if let Some(asked) = &frontend.balancing {
        config.forwarding_method = asked.forwarding.filter(|_| frontend.returns_directly).unwrap_or_default();
        config.thresholds = asked.thresholds;
    }
    RealServers::weighted(keys, config, frontend.weights.as_deref().unwrap_or_default())
}

/// Configuration that all virtual servers have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Defaults {
    /// A virtual server without affinity.
    server: VirtualServerConfig,
}

impl Defaults {
    fn new(config: &Config) -> Self {
        let server = VirtualServerConfig::new(config.ipvs.scheduler);
        Defaults { server: server.with_scheduler_flags(usual_flags(config.ipvs.scheduler)) }
    }
}

/// The flags of a scheduler unless others are configured.
pub(super) fn usual_flags(scheduler: Scheduler) -> SchedulerFlags {
    match scheduler {
        Scheduler::MaglevHashing => SchedulerFlags::MH_PORT | SchedulerFlags::MH_FALLBACK,
        _ => SchedulerFlags::empty(),
    }
}

impl Wanted {
    /// Empty state, without Services.
    pub fn new(config: &Config) -> Self {
        let index = Index {
            defaults: Defaults::new(config),
            addresses: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            sets: BTreeMap::new(),
            barred: BTreeSet::new(),
            by: config.ipvs.rules.into(),
            only_needed: config.makes_only_needed_rules(),
            splits: config.splits_local(),
            shares: config.shares_node_ports(),
            marks: Marks::new(config.ipvs.mark_range, config.masquerade_bit),
            unmarked: BTreeSet::new(),
            node_ports: BTreeMap::new(),
        };
        Wanted { desired: Desired::new(), index }
    }

    /// Everything in the store.
    pub fn build(store: &Store, facts: &NodeFacts) -> Self {
        let mut wanted = Wanted::new(facts.config());
        let services = store.services().map(|service| &service.key).chain(store.frontend_keys());
        let mut follower = Following { index: &mut wanted.index, notes: Notes(None) };
        wanted.desired.refresh(store, facts, services, &mut follower);
        wanted
    }

    /// Compiles these Services again; those that are no longer in the store are removed.
    pub fn refresh<'a>(
        &mut self,
        store: &Store,
        facts: &NodeFacts,
        services: impl IntoIterator<Item = &'a ObjectKey>,
    ) -> Changed {
        let mut changed = Changed::default();
        let defaults = Defaults::new(facts.config());
        if defaults != self.index.defaults {
            self.index.defaults = defaults;
            changed
                .virtual_servers
                .extend(self.desired.frontends().map(|frontend| VirtualServerKey::from(frontend.key)));
            changed.virtual_servers.extend(self.index.marks.iter().map(|(server, _)| *server));
        }
        let mut follower = Following { index: &mut self.index, notes: Notes(Some(&mut changed)) };
        self.desired.refresh(store, facts, services, &mut follower);
        changed
    }

    /// Compiles every Service again: after the node facts have changed, or with another store.
    pub fn refresh_all(&mut self, store: &Store, facts: &NodeFacts) -> Changed {
        let all = self.desired.services_with(store);
        self.refresh(store, facts, &all)
    }

    /// Reduces memory by rebuilding everything; call it after a large change.
    pub fn compact(&mut self) {
        self.desired.compact();
        pack(&mut self.index.addresses);
        pack(&mut self.index.elsewhere);
        pack(&mut self.index.node_ports);
        self.index.sets.values_mut().for_each(pack);
    }

    /// Frontends of all Services, without the words of IPVS.
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// All virtual servers, sorted.
    pub fn servers(&self) -> impl Iterator<Item = WantedServer> {
        let of_addresses = self.desired.frontends().filter_map(|frontend| self.lower(frontend.key.into(), frontend));
        of_addresses.chain(self.index.marks.iter().filter_map(|(key, _)| self.server(key)))
    }

    /// A virtual server.
    pub fn server(&self, key: &VirtualServerKey) -> Option<WantedServer> {
        self.lower(*key, self.frontend(key)?)
    }

    fn lower(&self, key: VirtualServerKey, frontend: &Frontend) -> Option<WantedServer> {
        let endpoints = self.index.endpoints(&key, frontend)?.clone();
        let real_servers = real_servers(frontend, endpoints);
        Some(WantedServer { key, config: self.index.config(frontend), real_servers })
    }

    /// The Frontend that a virtual server serves, or served: by its mark before it was no longer split. Of a shared node port it is that
    /// of any address.
    pub fn frontend(&self, key: &VirtualServerKey) -> Option<&Frontend> {
        let place = self.frontend_key(key)?;
        if let Some(frontend) = self.desired.frontend(&place) {
            return Some(frontend);
        }
        let frontends = || self.places(&place).filter_map(|place| self.desired.frontend(&place));
        frontends().find(|frontend| self.index.is_shared(frontend)).or_else(|| frontends().next())
    }

    /// A Frontend that a virtual server is for, wanted or not; of a shared node port one of those that share it, while there are any.
    pub(crate) fn place_of(&self, key: &VirtualServerKey) -> Option<FrontendKey> {
        self.frontend(key).map(|frontend| frontend.key).or_else(|| self.frontend_key(key))
    }

    /// The Frontends of a node port at address 0, at the addresses of the node; of any other place, that Frontend.
    pub(crate) fn places(&self, place: &FrontendKey) -> impl Iterator<Item = FrontendKey> {
        let of_node_port = self.index.node_ports.get(place).filter(|_| place.address.is_unspecified());
        let addresses = of_node_port.into_iter().flatten();
        let itself = of_node_port.is_none().then_some(*place);
        let place = *place;
        addresses.map(move |address| FrontendKey { address: *address, ..place }).chain(itself)
    }

    /// Whether a place has its virtual server in common with other addresses of the node, and none of its own.
    pub(crate) fn is_shared(&self, place: &FrontendKey) -> bool {
        self.desired.frontend(place).is_some_and(|frontend| self.index.is_shared(frontend))
    }

    /// Frontend of a virtual server, wanted or not; a node port at address 0 if it is shared.
    pub fn frontend_key(&self, key: &VirtualServerKey) -> Option<FrontendKey> {
        FrontendKey::try_from(*key).ok().or_else(|| self.index.marks.place(key))
    }

    /// The endpoints that are a virtual server's real servers, sorted; `None` when it is not wanted.
    pub fn endpoints(&self, key: &VirtualServerKey) -> Option<&Arc<[EndpointKey]>> {
        self.index.endpoints(key, self.frontend(key)?)
    }

    /// The virtual server that clients outside get, if it is another one than that of the address.
    pub fn split(&self, frontend: &FrontendKey) -> Option<VirtualServerKey> {
        let frontend = self.desired.frontend(frontend).filter(|frontend| frontend.can_split())?;
        self.index.mark_of(frontend)
    }

    /// The virtual server that a node port has in common with the other addresses of the node, in place of one of its address.
    pub fn shared(&self, frontend: &FrontendKey) -> Option<VirtualServerKey> {
        let frontend = self.desired.frontend(frontend).filter(|frontend| frontend.can_share())?;
        self.index.mark_of(frontend)
    }

    /// Services that the configuration would have split or shared, and the reasons why they are not. Costs O(such Frontends).
    pub fn unmarked(&self) -> impl Iterator<Item = Unmarked> {
        let mut all: BTreeMap<(ObjectKey, Marking, &'static str), Vec<FrontendKey>> = BTreeMap::new();
        for key in &self.index.unmarked {
            let why = self.desired.frontend(key).and_then(|frontend| self.index.why_unmarked(frontend));
            if let (Some((marking, reason)), Some(owner)) = (why, self.desired.owner(key)) {
                all.entry((owner.clone(), marking, reason)).or_default().push(*key);
            }
        }
        all.into_iter().map(|((service, marking, reason), frontends)| Unmarked { service, marking, frontends, reason })
    }

    /// Number of Frontends that are split, and number of node ports that are shared.
    pub fn marked(&self) -> (usize, usize) {
        let wanted = self.index.marks.iter().filter(|(key, _)| self.has_server(key));
        let (shared, split): (Vec<_>, Vec<_>) = wanted.partition(|(_, place)| place.address.is_unspecified());
        (split.len(), shared.len())
    }

    /// The virtual servers of the marks that a Frontend has or had, as itself and as a node port.
    pub(crate) fn marks_of(&self, frontend: &FrontendKey) -> impl Iterator<Item = VirtualServerKey> {
        [*frontend, split::node_port_of(frontend)].into_iter().filter_map(|place| self.index.marks.server(&place))
    }

    /// The Frontends of the marks in a plan.
    pub(crate) fn split_servers(&self, plan: &Plan) -> BTreeMap<VirtualServerKey, FrontendKey> {
        let operations = plan.serve_split.iter().chain(&plan.retire_split).map(Operation::virtual_server);
        operations.filter_map(|key| Some((key, self.place_of(&key)?))).collect()
    }

    /// Takes over which marks Frontends have in the kernel. Call it before a comparison of everything.
    pub(crate) fn settle_marks(&mut self, observed: &Observed) {
        let recorded: Vec<_> = observed.records().filter_map(split::recorded).collect();
        if recorded.is_empty() && !self.index.splits && !self.index.shares {
            return;
        }
        let ours: BTreeSet<_> = observed.records().filter_map(split::server_of).collect();
        let of_marks = observed.virtual_servers.keys().filter(|key| key.addr().is_none());
        let others = of_marks.filter(|key| !ours.contains(key)).copied().collect();
        let marked = self.desired.frontends().filter_map(|of| Some((of, self.index.marked_place(of)?)));
        let marked: Vec<(&Frontend, FrontendKey)> = marked.collect();
        let places: BTreeSet<FrontendKey> = marked.iter().map(|(_, place)| *place).collect();
        let before: Vec<_> = marked.iter().map(|(_, place)| self.index.marks.server(place)).collect();
        self.index.marks.settle(recorded, others, &Vec::from_iter(places));
        for ((frontend, place), before) in marked.iter().zip(before) {
            let after = self.index.marks.server(place);
            if before == after {
                continue;
            }
            let entries = |server| match server {
                Some(VirtualServerKey::Fwmark { mark, .. }) => entries_of_mark(frontend, mark).to_vec(),
                _ => Vec::new(),
            };
            let notes = &mut Notes(None);
            for (set, element) in entries(after) {
                self.index.count_entry(set, element, notes);
            }
            for (set, element) in entries(before) {
                self.index.uncount_entry(set, &element, notes);
            }
        }
        for (frontend, _) in &marked {
            self.index.note_unmarked(&frontend.key, Some(frontend));
        }
    }

    /// Whether a virtual server is wanted.
    pub fn has_server(&self, key: &VirtualServerKey) -> bool {
        self.endpoints(key).is_some()
    }

    /// Whether a virtual server with this real server is wanted.
    pub fn has_real_server(&self, key: &VirtualServerKey, real: &RealServerKey) -> bool {
        self.endpoints(key).is_some_and(|endpoints| endpoints.binary_search(&(*real).into()).is_ok())
    }

    /// Drain time of this virtual server's real servers, where its Service sets one.
    pub fn drain_time(&self, key: &VirtualServerKey) -> Option<Duration> {
        let asked = self.frontend(key)?.balancing.as_ref()?.drain_secs?;
        Some(Duration::from_secs(asked.into()))
    }

    /// Whether a real server that this virtual server loses drains: as the policy says, and one of UDP as long as its endpoint serves.
    pub(crate) fn lets_drain(&self, key: &VirtualServerKey, real: &RealServerKey, policy: &Policy) -> bool {
        let deadline = self.drain_time(key).or(policy.deadline);
        self.frontend_key(key).is_some_and(|frontend| policy.drains_by(frontend.protocol.into(), deadline))
            || self.keeps_flows_of(key, real)
    }

    /// Whether a real server of UDP is to keep its flows: its endpoint serves, selected or not. Not in a virtual server that is
    /// not wanted any more, such as that of a mark.
    pub(crate) fn keeps_flows_of(&self, key: &VirtualServerKey, real: &RealServerKey) -> bool {
        let is_wanted = |frontend: &&Frontend| self.index.endpoints(key, frontend).is_some();
        let frontend = self.frontend(key).filter(|frontend| frontend.key.udp().is_some()).filter(is_wanted);
        frontend.is_some_and(|frontend| frontend.keeps_flows_of(&(*real).into()))
    }

    /// The Service a virtual server belongs to.
    pub fn owner(&self, key: &VirtualServerKey) -> Option<&ObjectKey> {
        self.desired.owner(&self.place_of(key)?)
    }

    /// Addresses to be bound to the dummy device, or by routes ([`Routes`](super::binding::Routes)); sorted.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.index.addresses.keys().copied()
    }

    /// Addresses of [`Wanted::addresses`] that are in this network.
    pub(crate) fn addresses_in(&self, network: &Network) -> impl Iterator<Item = IpAddr> {
        self.index.addresses.range(network.network()..=network.broadcast()).map(|(address, _)| *address)
    }

    /// Whether an address has to be bound, to the dummy device or by a route.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.index.addresses.contains_key(&address)
    }

    /// Whether an address is served that another interface has. Such an address is not bound to the dummy device: set
    /// `KUBE-IPVS-IPS` would close all its other ports, for the node's own programs too. One that is bound already,
    /// because the other interface got it later, stays bound: addresses move between nodes (keepalived, kube-vip), and
    /// the binding is needed again as soon as the other interface loses the address.
    pub fn is_elsewhere(&self, address: IpAddr) -> bool {
        self.index.elsewhere.contains_key(&address)
    }

    /// The entries of a set, sorted; none for a set that has to be empty.
    pub fn entries(&self, set: SetKey) -> impl Iterator<Item = &Element> {
        self.index.sets.get(&set).into_iter().flat_map(BTreeMap::keys)
    }

    /// Whether a set has to have an entry.
    pub fn has_entry(&self, set: SetKey, element: &Element) -> bool {
        self.index.sets.get(&set).is_some_and(|elements| elements.contains_key(element))
    }

    /// The sets that are not empty: rules depend on this.
    pub fn sets(&self) -> impl Iterator<Item = SetKey> {
        self.index.sets.keys().copied()
    }

    /// Virtual servers for which this node's own traffic has to be dropped, sorted; see [`Frontend::is_barred_from_node`].
    pub fn barred_from_node(&self) -> impl Iterator<Item = VirtualServerKey> {
        self.index.barred.iter().copied()
    }
}

/// Increments a count, and returns whether it is the first.
fn count<K: Ord>(counts: &mut BTreeMap<K, usize>, key: K) -> bool {
    let count = counts.entry(key).or_default();
    *count = count.saturating_add(1);
    *count == 1
}

/// Decrements a count, and returns whether none is left.
fn uncount<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) -> bool {
    let Some(count) = counts.get_mut(key) else { return false };
    *count = count.saturating_sub(1);
    let gone = *count == 0;
    if gone {
        counts.remove(key);
    }
    gone
}
