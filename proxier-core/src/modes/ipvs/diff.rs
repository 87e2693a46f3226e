//! Compares the desired state with the observed one. Pure. The result has no order; a plan decides when and how each
//! change is made.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipset::Element;
use ipvs::model::{Protocol, VirtualServerConfig};
use ipvs::{RealServer, RealServerKey, VirtualServerKey};

use crate::config::{Config, RulesBy};
use crate::modes::ipvs::index::Changed;
use crate::modes::ipvs::observed::{Observed, ObservedServer};
use crate::modes::ipvs::servers::RealServers;
use crate::modes::ipvs::sets::{SetKey, SetKind};
use crate::modes::ipvs::split;
use crate::modes::ipvs::wanted::{Wanted, WantedServer};
use crate::net::{Family, FrontendKey, Network};
use crate::safeguard::{Kernel, Loss};
use crate::snapshot::is_usable_by_service;

/// Change to a virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VirtualServerChange {
    /// Create the virtual server.
    Add {
        /// Its configuration.
        config: VirtualServerConfig,
        /// Its real servers; the list is shared with the desired one.
        real_servers: RealServers,
    },
    /// Change the existing virtual server in place.
    Update {
        /// Its configuration, if that differs.
        config: Option<VirtualServerConfig>,
        /// Missing real servers.
        add: Vec<RealServer>,
        /// Existing real servers with another weight, method or limits, including draining ones that are desired again.
        set: Vec<RealServer>,
        /// Real servers that are no longer desired. A plan may let them drain first.
        remove: Vec<RealServerKey>,
    },
    /// Delete the virtual server.
    Delete,
}

/// Changes that the kernel needs.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Changes {
    /// Missing sets.
    pub create_sets: BTreeSet<SetKey>,
    /// Missing entries.
    pub add_entries: BTreeSet<(SetKey, Element)>,
    /// Entries that are no longer desired.
    pub delete_entries: BTreeSet<(SetKey, Element)>,
    /// Addresses that the dummy device lacks.
    pub add_addresses: BTreeSet<IpAddr>,
    /// Addresses of the dummy device that are no longer desired.
    pub delete_addresses: BTreeSet<IpAddr>,
    /// Local routes that are missing or have another source. [`diff`] does not find them, because they depend on the
    /// node ([`Routes`](super::binding::Routes)).
    pub add_routes: BTreeMap<Network, Option<IpAddr>>,
    /// Local routes that are no longer desired.
    pub delete_routes: BTreeSet<Network>,
    /// Virtual servers.
    pub virtual_servers: BTreeMap<VirtualServerKey, VirtualServerChange>,
}

impl Changes {
    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        *self == Changes::default()
    }
}

/// Objects to compare.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// Everything.
    All,
    /// Only what changed: costs O(changed). A missing set is created if it gets an entry.
    Changed(&'a Changed),
}

/// Compares the objects of a scope.
///
/// Families that are not configured are not changed. An undesired virtual server is deleted only if it is this proxy's
/// ([`Observed::owns`]) and outside of [`exclude_cidrs`](crate::config::IpvsConfig::exclude_cidrs); [`foreign`] lists
/// the others. Everything on the dummy device is this proxy's, except addresses that no Service can have, such as its
/// link-local one. If addresses are bound by routes ([`Config::binds_by_routes`]), the device has none.
pub fn diff(wanted: &Wanted<'_>, observed: &Observed, scope: Scope<'_>, config: &Config) -> Changes {
    let mut diff = Diff { wanted, observed, config, changes: Changes::default() };
    match scope {
        Scope::All => diff.all(),
        Scope::Changed(changed) => {
            changed.entries.iter().for_each(|(set, element)| diff.entry(*set, element));
            changed.addresses.union(&changed.elsewhere).for_each(|address| diff.address(*address));
            for key in &changed.virtual_servers {
                match wanted.server(key) {
                    Some(server) => diff.server(server),
                    None => diff.unwanted(*key),
                }
            }
        }
    }
    diff.keep_records();
    diff.changes
}

/// Virtual servers that are neither desired nor this proxy's to delete. Sorted.
pub fn foreign<'a>(
    wanted: &'a Wanted<'a>,
    observed: &'a Observed,
    config: &'a Config,
) -> impl Iterator<Item = VirtualServerKey> + 'a {
    let keys = observed.virtual_servers.keys().copied();
    keys.filter(|key| !wanted.has_server(key) && !may_delete(key, observed, config))
}

fn may_delete(key: &VirtualServerKey, observed: &Observed, config: &Config) -> bool {
    let addr = key.addr().or_else(|| observed.frontend_of_mark(key).map(|frontend| frontend.address));
    let excluded = addr.is_some_and(|addr| config.ipvs.exclude_cidrs.iter().any(|network| network.contains(&addr)));
    in_scope(config, key.family().into()) && !excluded && observed.owns(key)
}

fn in_scope(config: &Config, family: Family) -> bool {
    config.families.iter().any(|configured| configured == family)
}

struct Diff<'a> {
    wanted: &'a Wanted<'a>,
    observed: &'a Observed,
    config: &'a Config,
    changes: Changes,
}

impl Diff<'_> {
    fn all(&mut self) {
        let (wanted, observed, config) = (self.wanted, self.observed, self.config);
        let by_table = config.ipvs.rules == RulesBy::Nftables;
        let kinds = if by_table { SetKind::ALL_OF_NFT.as_slice() } else { &SetKind::ALL };
        let of_family = |family| kinds.iter().map(move |kind| SetKey::new(family, *kind));
        for set in config.families.iter().flat_map(of_family) {
            match observed.sets.get(&set) {
                // Nearly always equal: one walk instead of two lookups for each entry.
                Some(there) if there.iter().eq(wanted.entries(set)) => {}
                Some(there) => there.iter().chain(wanted.entries(set)).for_each(|element| self.entry(set, element)),
                None => {
                    if !config.makes_only_needed_rules() || wanted.entries(set).next().is_some() {
                        self.changes.create_sets.insert(set);
                    }
                    self.changes.add_entries.extend(wanted.entries(set).map(|element| (set, element.clone())));
                }
            }
        }
        let as_wanted = !config.binds_by_routes() && wanted.addresses().eq(observed.addresses.iter().copied());
        if !as_wanted {
            wanted.addresses().chain(observed.addresses.iter().copied()).for_each(|address| self.address(address));
        }
        wanted.servers().for_each(|server| self.server(server));
        let unwanted = observed.virtual_servers.keys().filter(|key| !wanted.has_server(key));
        unwanted.for_each(|key| self.unwanted(*key));
    }

    fn entry(&mut self, set: SetKey, element: &Element) {
        if !in_scope(self.config, set.family) {
            return;
        }
        let wanted = self.wanted.has_entry(set, element);
        let entries = self.observed.sets.get(&set);
        let there = entries.is_some_and(|entries| entries.contains(element));
        if wanted && !there {
            if entries.is_none() {
                self.changes.create_sets.insert(set);
            }
            self.changes.add_entries.insert((set, element.clone()));
        } else if there && !wanted {
            self.changes.delete_entries.insert((set, element.clone()));
        }
    }

    fn address(&mut self, address: IpAddr) {
        if !in_scope(self.config, Family::of(address)) || !is_usable_by_service(address) {
            return;
        }
        let by_routes = self.config.binds_by_routes();
        let wanted = self.wanted.has_address(address) && !by_routes;
        let there = self.observed.addresses.contains(&address);
        if wanted && !there {
            self.changes.add_addresses.insert(address);
        } else if there && !wanted && (by_routes || !self.wanted.is_elsewhere(address)) {
            self.changes.delete_addresses.insert(address);
        }
    }

    fn server(&mut self, wanted: WantedServer) {
        if !in_scope(self.config, wanted.key.family().into()) {
            return;
        }
        let key = wanted.key;
        let change = match self.observed.virtual_servers.get(&key) {
            Some(there) => update(&wanted, there),
            None => Some(VirtualServerChange::Add { config: wanted.config, real_servers: wanted.real_servers }),
        };
        self.changes.virtual_servers.extend(change.map(|change| (key, change)));
    }

    fn unwanted(&mut self, key: VirtualServerKey) {
        let Some(there) = self.observed.virtual_servers.get(&key) else { return };
        if !may_delete(&key, self.observed, self.config) {
            return;
        }
        let change = if self.is_split_no_more(&key) && !there.real_servers.is_empty() {
            let remove = there.real_servers.iter().map(|real| real.key).collect();
            VirtualServerChange::Update { config: None, add: Vec::new(), set: Vec::new(), remove }
        } else {
            VirtualServerChange::Delete
        };
        self.changes.virtual_servers.insert(key, change);
        // While a left-over node port exists, it is recorded as this proxy's: the set may have its port with other
        // addresses from now on.
        if self.observed.is_left_behind(&key)
            && let Some(entry) = Observed::served_entry(&key)
        {
            self.changes.add_entries.insert(entry.clone());
            self.changes.delete_entries.insert(entry);
        }
    }

    /// Whether this virtual server belongs to the mark of a Frontend that is still served but no longer split, or of a
    /// node port at any address. Connections through it continue. iptables rules do not know the mark, so it would
    /// never be removed with those.
    fn is_split_no_more(&self, key: &VirtualServerKey) -> bool {
        let is_mark = matches!(key, VirtualServerKey::Fwmark { .. });
        is_mark && self.config.ipvs.rules == RulesBy::Nftables && self.wanted.is_drained(key)
    }

    /// A record stays as long as its virtual server, since it shows that this is the proxy's own.
    fn keep_records(&mut self) {
        let (wanted, observed) = (self.wanted, self.observed);
        let Changes { delete_entries, virtual_servers, .. } = &mut self.changes;
        delete_entries.retain(|(set, element)| {
            let is_record = set.kind == SetKind::SplitMark;
            !is_record
                || split::server_of(element).is_none_or(|server| {
                    let goes = virtual_servers.get(&server) == Some(&VirtualServerChange::Delete);
                    // One without a Frontend was replaced by another mark: a map has one for each.
                    goes || !observed.virtual_servers.contains_key(&server) || wanted.frontend_key(&server).is_none()
                })
        });
    }
}

fn update(server: &WantedServer, observed: &ObservedServer) -> Option<VirtualServerChange> {
    let config = (server.config != observed.config).then_some(server.config);
    if config.is_none() && server.real_servers.is_same(&observed.real_servers) {
        return None;
    }
    let (mut add, mut set, mut remove) = (Vec::new(), Vec::new(), Vec::new());
    let (ours, theirs) = (&server.real_servers, &observed.real_servers);
    let all_usual = ours.are_usual() && theirs.are_usual();
    // Both are sorted, so one pass with one comparison per step is enough.
    let (mut wanted, mut found) = (&**ours.keys(), &**theirs.keys());
    while let ([key, later @ ..], [there, others @ ..]) = (wanted, found) {
        match key.cmp(there) {
            Ordering::Less => {
                add.push(ours.real_server(*key));
                wanted = later;
            }
            Ordering::Greater => {
                remove.push((*there).into());
                found = others;
            }
            Ordering::Equal => {
                if !all_usual && ours.real_server(*key) != theirs.real_server(*key) {
                    set.push(ours.real_server(*key));
                }
                (wanted, found) = (later, others);
            }
        }
    }
    add.extend(wanted.iter().map(|key| ours.real_server(*key)));
    remove.extend(found.iter().map(|there| RealServerKey::from(*there)));
    Some(VirtualServerChange::Update { config, add, set, remove })
}

impl Observed {
    /// Records changes as made.
    pub fn apply(&mut self, changes: &Changes) {
        for set in &changes.create_sets {
            self.sets.entry(*set).or_default();
        }
        for (set, element) in &changes.add_entries {
            self.sets.entry(*set).or_default().insert(element.clone());
        }
        for (set, element) in &changes.delete_entries {
            if let Some(elements) = self.sets.get_mut(set) {
                elements.remove(element);
            }
        }
        self.addresses.extend(&changes.add_addresses);
        for address in &changes.delete_addresses {
            self.addresses.remove(address);
        }
        for (network, source) in &changes.add_routes {
            self.routes.insert(*network, *source);
        }
        for network in &changes.delete_routes {
            self.routes.remove(network);
        }
        for (key, change) in &changes.virtual_servers {
            self.apply_virtual_server(*key, change);
        }
    }

    fn apply_virtual_server(&mut self, key: VirtualServerKey, change: &VirtualServerChange) {
        match change {
            VirtualServerChange::Add { config, real_servers } => {
                let server = ObservedServer { config: *config, real_servers: real_servers.clone() };
                self.virtual_servers.insert(key, server);
            }
            VirtualServerChange::Delete => {
                self.virtual_servers.remove(&key);
            }
            VirtualServerChange::Update { config, add, set, remove } => {
                let Some(server) = self.virtual_servers.get_mut(&key) else { return };
                server.config = config.unwrap_or(server.config);
                let stays = |of: &RealServer| !remove.contains(&of.key) && set.iter().all(|new| new.key != of.key);
                let mut real_servers: Vec<RealServer> = server.real_servers.iter().filter(stays).collect();
                real_servers.extend(add.iter().chain(set));
                server.real_servers = RealServers::new(real_servers, None);
            }
        }
    }
}

/// Frontends that these changes remove. The virtual server of a mark does not count: its Frontend has another.
pub fn losing(changes: &Changes) -> impl Iterator<Item = (FrontendKey, Loss)> {
    changes.virtual_servers.iter().filter_map(|(key, change)| {
        let loss = match change {
            VirtualServerChange::Delete => Some(Loss::Everything),
            VirtualServerChange::Update { remove, .. } if !remove.is_empty() => Some(Loss::Endpoints),
            _ => None,
        };
        Some((FrontendKey::try_from(*key).ok()?, loss?))
    })
}

impl Kernel for Observed {
    fn serves(&self, key: &FrontendKey) -> Option<bool> {
        self.virtual_servers.get(&(*key).into()).map(|there| !there.real_servers.is_empty())
    }
}

/// Removes held-back deletions from the changes: those of virtual servers, their real servers, and the addresses and
/// entries that they need. Desired virtual servers still follow their endpoints.
///
/// These changes do not include iptables rules. Rules that guard what is held back must stay too:
/// [`Kept`](crate::modes::ipvs::rules::Kept) lists them.
pub fn hold(held: &BTreeSet<FrontendKey>, changes: &mut Changes, observed: &Observed) {
    let mut needs = Needs::default();
    let marks: BTreeMap<FrontendKey, VirtualServerKey> =
        observed.records().filter_map(|record| Some((split::recorded(record)?.0, split::server_of(record)?))).collect();
    let of_mark = |frontend: &FrontendKey| marks.get(frontend).copied();
    let all = |frontend: FrontendKey| [Some(frontend.into()), of_mark(&frontend)].into_iter().flatten();
    for key in held.iter().copied().flat_map(all) {
        needs.add(&key, observed);
        match changes.virtual_servers.get_mut(&key) {
            Some(VirtualServerChange::Delete) => drop(changes.virtual_servers.remove(&key)),
            Some(VirtualServerChange::Update { config, add, set, remove }) => {
                remove.clear();
                if config.is_none() && add.is_empty() && set.is_empty() {
                    changes.virtual_servers.remove(&key);
                }
            }
            _ => {}
        }
    }
    changes.delete_addresses.retain(|address| !needs.address(address));
    changes.delete_routes.retain(|network| !needs.any_in(network));
    changes.delete_entries.retain(|(set, element)| !needs.entry(*set, element));
    // Connections to it would be rejected although it keeps its real servers.
    changes.add_entries.retain(|(set, element)| set.kind != SetKind::NoEndpoint || !needs.entry(*set, element));
}

/// Addresses and entries that must stay as long as some virtual servers do. They identify these as this proxy's, guard
/// them (source ranges), or are the hairpin entries of their real servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs {
    addresses: BTreeSet<IpAddr>,
    /// Protocol, address and port of virtual servers and their real servers.
    endpoints: BTreeSet<(u8, IpAddr, u16)>,
    node_ports: BTreeSet<(Family, u16)>,
    /// Virtual servers of marks.
    marks: BTreeSet<VirtualServerKey>,
}

impl Needs {
    /// Adds a virtual server as read from the kernel.
    pub(crate) fn add(&mut self, key: &VirtualServerKey, observed: &Observed) {
        let protocol = match *key {
            VirtualServerKey::Address { protocol, addr, port } => {
                self.addresses.insert(addr);
                self.node_ports.insert((Family::of(addr), port));
                self.endpoints.insert((protocol.number(), addr, port));
                protocol
            }
            VirtualServerKey::Fwmark { .. } => {
                self.marks.insert(*key);
                let Some(frontend) = observed.frontend_of_mark(key) else { return };
                frontend.protocol.into()
            }
        };
        let server = observed.virtual_servers.get(key);
        for real in server.into_iter().flat_map(|server| server.real_servers.iter()) {
            self.endpoints.insert((protocol.number(), real.key.addr, real.key.port));
        }
    }

    /// Whether one of them needs this address.
    pub(crate) fn address(&self, address: &IpAddr) -> bool {
        self.addresses.contains(address)
    }

    /// Whether one of them needs an address of this network.
    pub(crate) fn any_in(&self, network: &Network) -> bool {
        self.addresses.range(network.network()..=network.broadcast()).next().is_some()
    }

    /// Whether one of them needs this entry.
    pub(crate) fn entry(&self, set: SetKey, element: &Element) -> bool {
        if set.kind.has_marks() && split::server_of(element).is_some_and(|key| self.marks.contains(&key)) {
            return true;
        }
        match element {
            Element::Ip(span) => self.addresses.contains(&span.first()),
            Element::IpPort(span, ports) | Element::IpPortIp(span, ports, _) => {
                let protocol = Protocol::from(ports.protocol().number());
                self.endpoints.contains(&(protocol.number(), span.first(), ports.ports().first()))
            }
            Element::Port(ports) => self.node_ports.contains(&(set.family, ports.first())),
            _ => false,
        }
    }
}
