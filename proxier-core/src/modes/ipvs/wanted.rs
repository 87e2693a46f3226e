//! The state that IPVS must have for [`Desired`]: virtual servers, addresses on the dummy device, and set entries. Counts
//! those that Frontends and Services share, and tracks changes since the last write.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ipset::Element;
use ipvs::model::{Persistence, Scheduler, SchedulerFlags, VirtualServerConfig};
use ipvs::{RealServerKey, VirtualServer, VirtualServerKey};

use super::drain::{Drains, Policy};
use super::lower::{RealServers, Server, entries_of_mark, exposure, frontend_entries, service_entries};
use super::observed::Observed;
use super::split::{self, Marks};
use crate::config::{Config, RulesBy, usual_flags};
use crate::modes::shared::frontends::{count, toggle};
use crate::net::{EndpointKey, FrontendKey, Network, Protocol};
use crate::pack::{Gather as _, pack, put};
use crate::ports::SetKey;
use crate::service::{Compiled, Desired, Frontend, FrontendObserver, Indexed};
use crate::snapshot::ObjectKey;
use crate::time::Moment;

/// Objects that Frontends and Services share, counted, and removed with their last user: two Services may use one
/// load-balancer address with different ports, and one pod may be in many. An update costs O(changed Services).
///
/// Two values with the same Services compare equal, regardless of how they were built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// The configuration of a virtual server without affinity.
    server: VirtualServerConfig,
    addresses: BTreeMap<IpAddr, usize>,
    elsewhere: BTreeMap<IpAddr, usize>,
    sets: BTreeMap<SetKey, BTreeMap<Element, usize>>,
    barred: BTreeSet<VirtualServerKey>,
    by_table: bool,
    /// Whether Frontends are split where possible ([`split`]).
    splits: bool,
    pub(super) marks: Marks,
    unmarked: BTreeSet<FrontendKey>,
}

/// The objects for which the kernel may have to change: not those that an update left unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Virtual servers that are new, removed, or have another configuration or other real servers. One that several
    /// Services claim may be in here unchanged when more than one of them was refreshed at once.
    pub virtual_servers: BTreeSet<VirtualServerKey>,
    pub addresses: BTreeSet<IpAddr>,
    /// Addresses that another interface got or lost, or that Services started or stopped requesting.
    pub elsewhere: BTreeSet<IpAddr>,
    pub entries: BTreeSet<(SetKey, Element)>,
    /// Anything may have changed, and nothing is recorded: before the first comparison, which is of everything.
    pub is_all: bool,
}

/// For a comparison of everything.
pub static EVERYTHING: LazyLock<Changed> = LazyLock::new(|| Changed { is_all: true, ..Changed::default() });

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    pub index: Index,
    pub changed: Changed,
}

impl Recorded {
    pub fn new(config: &Config) -> Self {
        Recorded { index: Index::new(config), changed: EVERYTHING.clone() }
    }

    fn entry(&mut self, (set, element): (SetKey, Element), adds: bool) {
        if self.index.count_entry(set, &element, adds) && !self.changed.is_all {
            toggle(&mut self.changed.entries, (set, element));
        }
    }
}

impl FrontendObserver for Recorded {
    fn service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        let [before, after] = [before, after].map(|of| of.map(service_entries).unwrap_or_default());
        after.difference(&before).cloned().for_each(|entry| self.entry(entry, true));
        before.difference(&after).cloned().for_each(|entry| self.entry(entry, false));
    }

    /// Applies a change of a Frontend. What stays is added before it is removed, so that its count never reaches zero.
    fn frontend(&mut self, before: Option<&Arc<Frontend>>, after: Option<&Arc<Frontend>>) {
        let Recorded { index, changed } = self;
        let [before, after] = [before, after].map(|of| of.map(|frontend| &**frontend));
        let Some(frontend) = after.or(before).map(|frontend| frontend.key) else { return };
        let key = VirtualServerKey::from(frontend);
        let is_all = changed.is_all;
        let servers = |index: &Index, of: Option<&Frontend>| {
            let (mark, of) = (index.marks.server(&frontend), of.filter(|_| !is_all));
            let servers = [Some(key), mark].map(|key| index.lower(key?, of?));
            // Endpoints that are not selected may be among the real servers until their flows end.
            (servers, of.and_then(|of| of.unselected.clone()))
        };
        let mark_before = before.and_then(|before| index.mark_of(before));
        let servers_before = servers(index, before);
        if after.is_some_and(|after| index.splits(after)) {
            index.marks.give(frontend);
        }
        let mark_after = after.and_then(|after| index.mark_of(after));
        index.note_unmarked(&frontend, after);
        if servers_before != servers(index, after) {
            // Also one that drains.
            let mark = index.marks.server(&frontend);
            changed.virtual_servers.extend(mark.into_iter().chain([key]));
        }
        let of = [(before, mark_before), (after, mark_after)];
        let [old, new] = of.map(|(of, mark)| Some((mark, exposure(of?, index.by_table, mark.is_some()))));
        if old == new {
            return;
        }
        put(&mut index.barred, key, after.is_some_and(Frontend::is_barred_from_node));
        for (frontend, mark, adds) in [(after, mark_after, true), (before, mark_before, false)] {
            let Some(frontend) = frontend else { continue };
            let (Recorded { index, changed }, address) = (&mut *self, frontend.key.address);
            if frontend.is_virtual() && count(&mut index.addresses, &address, adds) && !is_all {
                toggle(&mut changed.addresses, address);
            }
            if frontend.is_elsewhere() && count(&mut index.elsewhere, &address, adds) && !is_all {
                toggle(&mut changed.elsewhere, address);
            }
            for entry in frontend_entries(frontend, self.index.by_table, mark) {
                self.entry(entry, adds);
            }
        }
    }
}

impl Index {
    pub fn new(config: &Config) -> Self {
        Index {
            server: VirtualServerConfig::new(config.ipvs.scheduler)
                .with_scheduler_flags(usual_flags(config.ipvs.scheduler)),
            addresses: BTreeMap::new(),
            elsewhere: BTreeMap::new(),
            sets: BTreeMap::new(),
            barred: BTreeSet::new(),
            by_table: config.ipvs.rules == RulesBy::Nftables,
            splits: config.splits_local(),
            marks: Marks::new(config.ipvs.mark_range),
            unmarked: BTreeSet::new(),
        }
    }

    pub fn wanted<'a>(&'a self, desired: &'a Desired) -> Wanted<'a> {
        Wanted { desired, index: self }
    }

    pub fn compact(&mut self) {
        pack(&mut self.addresses);
        pack(&mut self.elsewhere);
        self.sets.values_mut().for_each(pack);
    }

    /// Takes over the marks that Frontends have in the kernel. Call it before a comparison of everything.
    pub(crate) fn settle_marks(&mut self, desired: &Desired, observed: &Observed) {
        let recorded: Vec<_> = observed.records().filter_map(split::recorded).collect();
        if recorded.is_empty() && !self.splits {
            return;
        }
        let ours: BTreeSet<_> = observed.records().filter_map(split::server_of).gather();
        let of_marks = observed.virtual_servers.keys().filter(|key| key.addr().is_none());
        let others = of_marks.filter(|key| !ours.contains(key)).copied().gather();
        let marked = desired.frontends().filter(|frontend| self.splits(frontend));
        let marked: Vec<_> = marked.map(|frontend| (frontend, self.marks.server(&frontend.key))).collect();
        let places: Vec<FrontendKey> = marked.iter().map(|(frontend, _)| frontend.key).collect();
        self.marks.settle(recorded, others, &places);
        for (frontend, before) in marked {
            for (server, adds) in [(self.marks.server(&frontend.key), true), (before, false)] {
                let Some(VirtualServerKey::Fwmark { mark, .. }) = server else { continue };
                for (set, element) in entries_of_mark(frontend, mark) {
                    self.count_entry(set, &element, adds);
                }
            }
            self.note_unmarked(&frontend.key, Some(frontend));
        }
    }

    /// Counts or uncounts an entry. Returns whether it is the first, or was the last.
    fn count_entry(&mut self, set: SetKey, element: &Element, adds: bool) -> bool {
        let elements = self.sets.entry(set).or_default();
        let has_changed = count(elements, element, adds);
        if elements.is_empty() {
            self.sets.remove(&set);
        }
        has_changed
    }

    /// One of a Frontend's virtual servers, if it has that one.
    pub(super) fn lower(&self, key: VirtualServerKey, frontend: &Frontend) -> Option<Server> {
        let real_servers = RealServers::of_frontend(frontend, self.endpoints(&key, frontend)?.clone());
        Some(Server { config: self.config(frontend), real_servers })
    }

    fn config(&self, frontend: &Frontend) -> VirtualServerConfig {
        let mut config = self.server;
        config.persistence = frontend.affinity_secs.map(Persistence::new);
        if let Some(weights) = &frontend.weights {
            let asked = frontend.balancing.as_ref();
            let is_free = asked.is_none_or(|asked| asked.scheduler.is_none() && asked.scheduler_flags.is_none());
            if is_free && weights.iter().any(|(_, weight)| *weight > 1) {
                // The same scheduler with weights, if it supports only weight 0.
                config.scheduler = match config.scheduler {
                    Scheduler::RoundRobin => Scheduler::WeightedRoundRobin,
                    Scheduler::LeastConnection => Scheduler::WeightedLeastConnection,
                    other => other,
                };
            }
        }
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
        config
    }

    fn splits(&self, frontend: &Frontend) -> bool {
        self.splits && frontend.can_split()
    }

    /// Records whether a Frontend lacks a mark that it should have.
    fn note_unmarked(&mut self, key: &FrontendKey, frontend: Option<&Frontend>) {
        if !self.splits {
            return;
        }
        let is_unmarked = frontend.is_some_and(|frontend| self.why_unmarked(frontend).is_some());
        put(&mut self.unmarked, *key, is_unmarked);
    }

    /// Reason why a Frontend that the configuration asks to split is not split.
    fn why_unmarked(&self, frontend: &Frontend) -> Option<&'static str> {
        if !self.splits || !frontend.would_split() || self.mark_of(frontend).is_some() {
            return None;
        }
        Some(if frontend.keeps_clients() {
            "clients stay with their endpoints, and such a virtual server of a firewall mark does not translate ports"
        } else if frontend.returns_directly {
            "endpoints answer clients by themselves"
        } else {
            "ipvs.markRange has no mark left"
        })
    }

    fn mark_of(&self, frontend: &Frontend) -> Option<VirtualServerKey> {
        self.marks.server(&frontend.key).filter(|_| self.splits(frontend))
    }

    /// The endpoints of one of a Frontend's virtual servers, if it has that one.
    pub(super) fn endpoints<'a>(
        &self,
        key: &VirtualServerKey,
        frontend: &'a Frontend,
    ) -> Option<&'a Arc<[EndpointKey]>> {
        // The usual case, asked for each virtual server of each full pass.
        if !self.splits {
            return key.addr().is_some().then(|| frontend.endpoints());
        }
        match (key, self.mark_of(frontend)) {
            (VirtualServerKey::Fwmark { .. }, mark) if mark != Some(*key) => None,
            (VirtualServerKey::Fwmark { .. }, _) => Some(&frontend.local),
            (_, Some(_)) => Some(&frontend.cluster),
            (_, None) => Some(frontend.endpoints()),
        }
    }
}

/// A firewall mark that the configuration requests ([`Config::splits_local`](crate::config::Config::splits_local)) and
/// a Service does not get. The Service is served without it. Prints on one line.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MarkUnavailable {
    /// The Service.
    pub service: ObjectKey,
    /// The Frontends without it; never empty.
    pub frontends: Vec<FrontendKey>,
    /// Reason.
    pub reason: &'static str,
}

impl fmt::Display for MarkUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MarkUnavailable { service, frontends, reason } = self;
        let first = frontends.first().map(ToString::to_string).unwrap_or_default();
        let more = match frontends.len() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count.saturating_sub(1)),
        };
        let instead = "pods and this node get local endpoints too";
        write!(f, "Service {service}: ipvs.markSplit not for {first}{more}: {reason}; {instead}")
    }
}

/// The state that IPVS must have: [`Desired`] with its [`Index`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    pub(super) desired: &'a Desired,
    pub(super) index: &'a Index,
}

impl Indexed<Recorded> {
    pub fn wanted(&self) -> Wanted<'_> {
        self.index.index.wanted(&self.desired)
    }
}

impl<'a> Wanted<'a> {
    pub fn desired(self) -> &'a Desired {
        self.desired
    }

    pub fn servers(self) -> impl Iterator<Item = (VirtualServerKey, Server)> {
        let of_address = move |frontend: &Frontend| {
            let key = frontend.key.into();
            Some((key, self.index.lower(key, frontend)?))
        };
        let of_mark = move |(key, _): (&VirtualServerKey, _)| Some((*key, self.server(key)?));
        self.desired.frontends().filter_map(of_address).chain(self.index.marks.iter().filter_map(of_mark))
    }

    pub fn server(self, key: &VirtualServerKey) -> Option<Server> {
        self.index.lower(*key, self.frontend(key)?)
    }

    /// The Frontend that a virtual server serves, or served with its mark before it was no longer split.
    pub fn frontend(self, key: &VirtualServerKey) -> Option<&'a Frontend> {
        self.desired.frontend(&self.frontend_key(key)?)
    }

    /// The Frontend of a virtual server, desired or not.
    pub fn frontend_key(self, key: &VirtualServerKey) -> Option<FrontendKey> {
        FrontendKey::try_from(*key).ok().or_else(|| self.index.marks.frontend_key(key))
    }

    /// The endpoints that are a virtual server's real servers, sorted; `None` if it is not desired.
    pub fn endpoints(self, key: &VirtualServerKey) -> Option<&'a Arc<[EndpointKey]>> {
        self.index.endpoints(key, self.frontend(key)?)
    }

    /// The virtual server of outside clients, if separate.
    pub fn split(self, frontend: &FrontendKey) -> Option<VirtualServerKey> {
        self.index.mark_of(self.desired.frontend(frontend)?)
    }

    /// Services that the configuration asks to split, and why they are not. Costs O(such Frontends).
    pub fn unmarked(self) -> impl Iterator<Item = MarkUnavailable> {
        let mut all: BTreeMap<(ObjectKey, &'static str), Vec<FrontendKey>> = BTreeMap::new();
        for key in &self.index.unmarked {
            let why = self.desired.frontend(key).and_then(|frontend| self.index.why_unmarked(frontend));
            if let (Some(reason), Some(owner)) = (why, self.desired.owner(key)) {
                all.entry((owner.clone(), reason)).or_default().push(*key);
            }
        }
        all.into_iter().map(|((service, reason), frontends)| MarkUnavailable { service, frontends, reason })
    }

    pub fn marked(self) -> usize {
        self.index.marks.iter().filter(|(key, _)| self.has_server(key)).count()
    }

    /// The same with the configured scheduler, if that is another.
    pub(super) fn with_usual_scheduler(self, of: &VirtualServer) -> Option<VirtualServer> {
        let mut usual = *of;
        let config = &mut usual.config;
        (config.scheduler, config.scheduler_flags) = (self.index.server.scheduler, self.index.server.scheduler_flags);
        (config.scheduler != of.config.scheduler).then_some(usual)
    }

    pub fn has_server(self, key: &VirtualServerKey) -> bool {
        self.endpoints(key).is_some()
    }

    pub fn has_real_server(self, key: &VirtualServerKey, real: &RealServerKey) -> bool {
        self.endpoints(key).is_some_and(|endpoints| endpoints.binary_search(&(*real).into()).is_ok())
    }

    /// The drain time of this virtual server's real servers, if its Service sets one.
    pub fn drain_time(self, key: &VirtualServerKey) -> Option<Duration> {
        let asked = self.frontend(key)?.balancing.as_ref()?.drain_secs?;
        Some(Duration::from_secs(asked.into()))
    }

    /// Whether a real server that this virtual server loses drains: according to the policy, and while its endpoint
    /// serves.
    pub(crate) fn lets_drain(self, key: &VirtualServerKey, real: &RealServerKey, policy: &Policy) -> bool {
        let deadline = self.drain_time(key).or(policy.deadline);
        let drains = |frontend: FrontendKey| policy.protocols.contains(&frontend.protocol.into());
        self.frontend_key(key).is_some_and(|frontend| drains(frontend) && deadline != Some(Duration::ZERO))
            || self.keeps_flows_of(key, real)
    }

    /// Whether a TCP or UDP real server keeps its connections because its endpoint serves, selected or not. Not in an
    /// undesired virtual server, such as that of a mark.
    pub(crate) fn keeps_flows_of(self, key: &VirtualServerKey, real: &RealServerKey) -> bool {
        let is_wanted = |frontend: &&Frontend| self.index.endpoints(key, frontend).is_some();
        let frontend = self.frontend(key).filter(|frontend| frontend.key.protocol != Protocol::Sctp).filter(is_wanted);
        frontend.is_some_and(|frontend| frontend.keeps_flows_of(&(*real).into()))
    }

    pub(crate) fn time_drains(self, key: &VirtualServerKey, drains: &mut Drains, now: Moment) {
        drains.follow(key, || self.drain_time(key), |real| self.keeps_flows_of(key, real), now);
    }

    pub fn owner(self, key: &VirtualServerKey) -> Option<&'a ObjectKey> {
        self.desired.owner(&self.frontend_key(key)?)
    }

    /// The addresses to bind to the dummy device or by routes; sorted.
    pub fn addresses(self) -> impl Iterator<Item = IpAddr> {
        self.index.addresses.keys().copied()
    }

    pub(crate) fn addresses_in(self, network: &Network) -> impl Iterator<Item = IpAddr> {
        self.index.addresses.range(network.network()..=network.broadcast()).map(|(address, _)| *address)
    }

    pub fn has_address(self, address: IpAddr) -> bool {
        self.index.addresses.contains_key(&address)
    }

    /// Whether an address is served that another interface has. Such an address is not bound to the dummy device: set
    /// `KUBE-IPVS-IPS` would close all its other ports, for the node's own programs too. One that is bound already,
    /// because the other interface got it later, stays bound. Addresses move between nodes (keepalived, kube-vip), and
    /// the binding is needed again as soon as the other interface loses the address.
    pub fn is_elsewhere(self, address: IpAddr) -> bool {
        self.index.elsewhere.contains_key(&address)
    }

    /// Sorted.
    pub fn entries(self, set: SetKey) -> impl Iterator<Item = &'a Element> {
        self.index.sets.get(&set).into_iter().flat_map(BTreeMap::keys)
    }

    pub fn has_entry(self, set: SetKey, element: &Element) -> bool {
        self.index.sets.get(&set).is_some_and(|elements| elements.contains_key(element))
    }

    /// The sets that are not empty.
    pub fn sets(self) -> impl Iterator<Item = SetKey> {
        self.index.sets.keys().copied()
    }

    /// Virtual servers to which this node's own traffic must be dropped, sorted; see [`Frontend::is_barred_from_node`].
    pub fn barred_from_node(self) -> impl Iterator<Item = VirtualServerKey> {
        self.index.barred.iter().copied()
    }
}
