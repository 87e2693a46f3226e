//! Compares the desired state with the observed one: the one function for full passes and for changes, which differ in
//! what they compare. Pure. The result is a plan, in which each operation has its phase.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipset::Element;
use ipvs::model::{Protocol, VirtualServer, Weight};
use ipvs::{Operation, RealServerKey, VirtualServerKey};

use crate::config::{Config, RulesBy};
use crate::modes::ipvs::drain::Drains;
use crate::modes::ipvs::lower::Server;
use crate::modes::ipvs::observed::{Observed, entry_of};
use crate::modes::ipvs::plan::{Phase, Plan, Stage};
use crate::modes::ipvs::split;
use crate::modes::ipvs::wanted::{Changed, Wanted};
use crate::net::{Family, FrontendKey, Network};
use crate::pack::Gather as _;
use crate::plan::step::Action;
use crate::ports::{SetKey, SetKind};
use crate::safeguard::{Kernel, Loss};
use crate::snapshot::{ObjectKey, is_usable_by_service};

/// The operations that bring what changed to the desired state, without device, timeouts, routes, tables, rules and
/// names. Costs O(changed). Families that are not configured are not changed.
///
/// An undesired virtual server is deleted only if it is this proxy's ([`Observed::owns`]) and outside of
/// [`exclude_cidrs`](crate::config::IpvsConfig::exclude_cidrs). Everything on the dummy device is this proxy's, except
/// addresses that no Service can have, such as its link-local one. An undesired real server drains if its protocol does
/// ([`Policy`](crate::modes::ipvs::drain::Policy)), or if its TCP or UDP endpoint serves although others are selected.
/// One that is already draining is left to [`Drains`].
pub fn diff(wanted: &Wanted<'_>, observed: &Observed, drains: &Drains, changed: &Changed, config: &Config) -> Plan {
    let (plan, serve, first) = (Plan::default(), BTreeMap::new(), BTreeSet::new());
    let mut diff = Diff { wanted, observed, drains, config, plan, serve, first };
    if changed.is_all {
        diff.all();
    }
    changed.entries.iter().for_each(|(set, element)| diff.entry(*set, element));
    changed.addresses.union(&changed.elsewhere).for_each(|address| diff.address(*address));
    for key in &changed.virtual_servers {
        match wanted.server(key) {
            Some(server) => diff.server(*key, &server),
            None => diff.unwanted(*key),
        }
    }
    diff.into_plan()
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
    config.families.has(key.family().into()) && !excluded && observed.owns(key)
}

struct Diff<'a> {
    wanted: &'a Wanted<'a>,
    observed: &'a Observed,
    drains: &'a Drains,
    config: &'a Config,
    plan: Plan,
    /// Operations on virtual servers that are served, by [`Rank`].
    serve: BTreeMap<Rank, Vec<Operation>>,
    /// Addresses of the Services that a node needs first.
    first: BTreeSet<IpAddr>,
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
                    self.plan.stage(Phase::Prepare).sets.insert(set);
                    wanted.entries(set).for_each(|element| self.plan.entry(Action::Add, set, element.clone()));
                }
            }
        }
        let as_wanted = !config.binds_by_routes() && wanted.addresses().eq(observed.addresses.iter().copied());
        if !as_wanted {
            let unwanted = observed.addresses.iter().copied().filter(|address| !wanted.has_address(*address));
            wanted.addresses().chain(unwanted).for_each(|address| self.address(address));
        }
        wanted.servers().for_each(|(key, server)| self.server(key, &server));
        let unwanted = observed.virtual_servers.keys().filter(|key| !wanted.has_server(key));
        unwanted.for_each(|key| self.unwanted(*key));
    }

    fn entry(&mut self, set: SetKey, element: &Element) {
        if !self.config.families.has(set.family) {
            return;
        }
        let wanted = self.wanted.has_entry(set, element);
        let entries = self.observed.sets.get(&set);
        let there = entries.is_some_and(|entries| entries.contains(element));
        if wanted && !there {
            if entries.is_none() {
                self.plan.stage(Phase::Prepare).sets.insert(set);
            }
            self.plan.entry(Action::Add, set, element.clone());
        } else if there && !wanted {
            self.plan.entry(Action::Delete, set, element.clone());
        }
    }

    fn address(&mut self, address: IpAddr) {
        if !self.config.families.has(Family::of(address)) || !is_usable_by_service(address) {
            return;
        }
        let by_routes = self.config.binds_by_routes();
        let wanted = self.wanted.has_address(address) && !by_routes;
        let there = self.observed.addresses.contains(&address);
        if wanted && !there {
            self.plan.stage(Phase::Serve).addresses.push(address);
        } else if there && !wanted && (by_routes || !self.wanted.is_elsewhere(address)) {
            self.plan.stage(Phase::Clean).addresses.push(address);
        }
    }

    fn server(&mut self, key: VirtualServerKey, wanted: &Server) {
        if !self.config.families.has(key.family().into()) {
            return;
        }
        let there = self.observed.virtual_servers.get(&key);
        let is_config_same = there.is_some_and(|there| there.config == wanted.config);
        if is_config_same && there.is_some_and(|there| wanted.real_servers.is_same(&there.real_servers)) {
            return;
        }
        let serve = match (rank(self.wanted.owner(&key), &key), key) {
            (_, VirtualServerKey::Fwmark { .. }) => &mut self.plan.stage(Phase::Prepare).servers,
            (rank, VirtualServerKey::Address { addr, .. }) => {
                if rank != Rank::Other {
                    self.first.insert(addr);
                }
                self.serve.entry(rank).or_default()
            }
        };
        let server = VirtualServer { key, config: wanted.config };
        let Some(there) = there else {
            serve.push(Operation::AddVirtualServer(server));
            serve.extend(wanted.real_servers.iter().map(|real| Operation::AddRealServer(key, real)));
            return;
        };
        serve.extend((!is_config_same).then_some(Operation::UpdateVirtualServer(server)));
        for real in real_servers(key, (wanted, there), serve) {
            self.retire(key, real, there);
        }
    }

    /// Lets an undesired real server drain, or deletes it.
    fn retire(&mut self, key: VirtualServerKey, real: RealServerKey, there: &Server) {
        let drained =
            there.real_servers.get(&real).filter(|_| self.wanted.lets_drain(&key, &real, self.drains.policy()));
        match drained {
            Some(server) if server.config.weight != Weight::DRAIN => {
                self.plan.retire_from(&key).push(Operation::UpdateRealServer(key, server.with_weight(Weight::DRAIN)));
            }
            Some(_) if self.drains.is_draining(&key, &real) => {}
            Some(_) => self.plan.adopt_drains.push((key, real)),
            None => self.plan.retire_from(&key).push(Operation::DeleteRealServer(key, real)),
        }
    }

    fn unwanted(&mut self, key: VirtualServerKey) {
        let Some(there) = self.observed.virtual_servers.get(&key) else { return };
        if !may_delete(&key, self.observed, self.config) {
            return;
        }
        // The mark's Frontend is still served but no longer split: connections through it continue. iptables rules do not
        // know the mark, so it would never be removed with those.
        let is_mark = matches!(key, VirtualServerKey::Fwmark { .. });
        let drains = is_mark && self.config.ipvs.rules == RulesBy::Nftables && self.wanted.frontend(&key).is_some();
        if drains && !there.real_servers.is_empty() {
            there.real_servers.iter().for_each(|real| self.retire(key, real.key, there));
        } else {
            self.plan.retire_from(&key).push(Operation::DeleteVirtualServer(key));
        }
        // While a left-over node port exists, it is recorded as this proxy's: the set may have its port with other
        // addresses from now on.
        if self.observed.is_left_behind(&key)
            && let Some((set, element)) = entry_of(&key, SetKind::NodePortServed)
        {
            self.plan.entry(Action::Add, set, element.clone());
            self.plan.entry(Action::Delete, set, element);
        }
    }

    fn into_plan(self) -> Plan {
        let Diff { wanted, observed, mut plan, serve, first, .. } = self;
        // A record stays as long as its virtual server, since it shows that this is the proxy's own.
        let deleted = plan.deleted_servers();
        let clean = plan.stage(Phase::Clean);
        for (_, records) in clean.entries.iter_mut().filter(|(set, _)| set.kind == SetKind::SplitMark) {
            records.retain(|record| {
                // One without a Frontend was replaced by another mark: a map has one for each.
                let may_go = |server: VirtualServerKey| {
                    deleted.contains(&server)
                        || !observed.virtual_servers.contains_key(&server)
                        || wanted.frontend_key(&server).is_none()
                };
                split::server_of(record).is_none_or(may_go)
            });
        }
        for phase in [Phase::Retire, Phase::RetireMarks] {
            plan.stage(phase).servers.sort_by_key(Operation::virtual_server);
        }
        let stage = plan.stage(Phase::Serve);
        stage.servers = serve.into_values().flatten().collect();
        let addresses = std::mem::take(&mut stage.addresses);
        let (early, late): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|address| first.contains(address));
        stage.addresses = [early, late].concat();
        plan.stages.retain(|_, stage| *stage != Stage::default());
        plan
    }
}

/// Returns those that are no longer desired.
fn real_servers(
    key: VirtualServerKey,
    (wanted, observed): (&Server, &Server),
    serve: &mut Vec<Operation>,
) -> Vec<RealServerKey> {
    let (mut update, mut remove) = (Vec::new(), Vec::new());
    let (ours, theirs) = (&wanted.real_servers, &observed.real_servers);
    let all_usual = ours.are_usual() && theirs.are_usual();
    // Both are sorted, so one pass with one comparison per step is enough.
    let (mut wanted, mut found) = (&**ours.keys(), &**theirs.keys());
    let add = |key_of| Operation::AddRealServer(key, ours.real_server(key_of));
    while let ([real, later @ ..], [there, others @ ..]) = (wanted, found) {
        match real.cmp(there) {
            Ordering::Less => {
                serve.push(add(*real));
                wanted = later;
            }
            Ordering::Greater => {
                remove.push((*there).into());
                found = others;
            }
            Ordering::Equal => {
                if !all_usual && ours.real_server(*real) != theirs.real_server(*real) {
                    update.push(Operation::UpdateRealServer(key, ours.real_server(*real)));
                }
                (wanted, found) = (later, others);
            }
        }
    }
    serve.extend(wanted.iter().map(|real| add(*real)));
    serve.append(&mut update);
    remove.extend(found.iter().map(|there| RealServerKey::from(*there)));
    remove
}

/// What a node needs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Kubernetes,
    Dns,
    Other,
}

fn rank(owner: Option<&ObjectKey>, key: &VirtualServerKey) -> Rank {
    let Some(owner) = owner else { return Rank::Other };
    match (owner.namespace(), key) {
        ("default", _) if owner.name() == "kubernetes" => Rank::Kubernetes,
        ("kube-system", VirtualServerKey::Address { port: 53, protocol: Protocol::Tcp | Protocol::Udp, .. }) => {
            Rank::Dns
        }
        _ => Rank::Other,
    }
}

/// Frontends that a plan removes, or whose endpoints it does. The virtual server of a mark does not count: its Frontend
/// has another.
pub(crate) fn losing(plan: &Plan) -> impl Iterator<Item = (FrontendKey, Loss)> {
    let retired = plan.stages.get(&Phase::Retire).into_iter().flat_map(|stage| &stage.servers);
    let losses = retired.map(|operation| match operation {
        Operation::DeleteVirtualServer(key) => (*key, Loss::Everything),
        other => (other.virtual_server(), Loss::Endpoints),
    });
    let drained = plan.adopt_drains.iter().map(|(key, _)| (*key, Loss::Endpoints));
    losses.chain(drained).filter_map(|(key, loss)| Some((FrontendKey::try_from(key).ok()?, loss)))
}

impl Kernel for Observed {
    fn serves(&self, key: &FrontendKey) -> Option<bool> {
        self.virtual_servers.get(&(*key).into()).map(|there| !there.real_servers.is_empty())
    }
}

/// Removes held-back deletions from a plan: those of virtual servers, their real servers, and the addresses and entries
/// that they need. [`Inputs::keep`](crate::modes::ipvs::rules::Inputs) keeps the rules that guard these.
pub(crate) fn hold(held: &BTreeSet<FrontendKey>, plan: &mut Plan, observed: &Observed) {
    let mut needs = Needs::default();
    let marks: BTreeMap<FrontendKey, VirtualServerKey> = observed.records().filter_map(split::marked).gather();
    let all = held.iter().flat_map(|key| [Some((*key).into()), marks.get(key).copied()]);
    let all: BTreeSet<VirtualServerKey> = all.flatten().gather();
    for key in &all {
        needs.add(key, observed);
    }
    for (phase, stage) in &mut plan.stages {
        if phase.adds() {
            // Connections to it would be rejected although it keeps its real servers.
            stage.retain_entries(|set, element| set.kind != SetKind::NoEndpoint || !needs.entry(set, element));
            continue;
        }
        stage.servers.retain(|operation| !all.contains(&operation.virtual_server()));
        stage.addresses.retain(|address| !needs.address(address));
        stage.routes.retain(|route| !needs.any_in(&route.network));
        stage.retain_entries(|set, element| !needs.entry(set, element));
    }
    plan.adopt_drains.retain(|(key, _)| !all.contains(key));
}

/// Addresses and entries that must stay as long as some virtual servers do. They identify these as this proxy's, guard
/// them (source ranges), or are the hairpin entries of their real servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs {
    addresses: BTreeSet<IpAddr>,
    /// Protocol, address and port of virtual servers and their real servers.
    endpoints: BTreeSet<(u8, IpAddr, u16)>,
    node_ports: BTreeSet<(Family, u16)>,
    marks: BTreeSet<VirtualServerKey>,
}

impl Needs {
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

    pub(crate) fn address(&self, address: &IpAddr) -> bool {
        self.addresses.contains(address)
    }

    pub(crate) fn any_in(&self, network: &Network) -> bool {
        self.addresses.range(network.network()..=network.broadcast()).next().is_some()
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything else on a node waits for the API server's address, and then for DNS.
    #[test]
    fn the_api_server_is_first_and_cluster_dns_second() {
        let of = |namespace: &str, name: &str, key: &str| {
            rank(Some(&ObjectKey::new(namespace, name)), &key.parse().unwrap())
        };
        assert_eq!(of("default", "kubernetes", "TCP 10.96.0.1:443"), Rank::Kubernetes);
        assert_eq!(of("default", "web", "TCP 10.96.0.2:443"), Rank::Other);
        assert_eq!(of("demo", "kubernetes", "TCP 10.96.0.3:443"), Rank::Other);
        for key in ["UDP 10.96.0.10:53", "TCP 10.96.0.10:53"] {
            assert_eq!(of("kube-system", "kube-dns", key), Rank::Dns, "{key}");
            assert_eq!(of("demo", "dns", key), Rank::Other, "{key}");
        }
        assert_eq!(of("kube-system", "kube-dns", "TCP 10.96.0.10:9153"), Rank::Other, "metrics");
        assert_eq!(rank(None, &"UDP 10.96.0.10:53".parse().unwrap()), Rank::Other);
    }
}
