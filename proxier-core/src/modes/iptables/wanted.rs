//! State that iptables has to have for [`Desired`], kept up to date at O(changed Services).

use std::collections::BTreeMap;
use std::sync::Arc;

use iptables::{Chain, Error, Rule};

use super::lines::{self, Line, Shared};
use super::observed::{Keep, Place};
use super::service;
use super::settings::{Options, Settings};
use super::tables::{self, TableChain};
use crate::net::{Family, FrontendKey};
use crate::service::{Compiled, Desired, Follower, Frontend, NodeFacts, Port};
use crate::snapshot::{ObjectKey, Store};

/// State that iptables has to have.
///
/// No rules are kept: those of a Service are made from its compiled form, when they are asked for. Two values with the same
/// Services, node facts and options compare equal, however they were built.
///
/// ```
/// use iptables::Dump;
/// use proxier_core::config::{Config, NodePortAddresses};
/// use proxier_core::modes::iptables::{Options, Wanted, changes};
/// use proxier_core::net::{EndpointKey, Family};
/// use proxier_core::service::NodeFacts;
/// use proxier_core::snapshot::{FrontendSpec, HostAddresses, Node, ObjectKey, Store};
///
/// let mut store = Store::new("node-a");
/// let endpoint = EndpointKey::new([10, 244, 1, 7].into(), 8080);
/// let web = ObjectKey::new("agent", "web");
/// store.upsert_frontends(&web, [FrontendSpec::new("TCP 10.96.0.10:80".parse()?, [endpoint])]);
/// let mut config = Config::default();
/// let facts = NodeFacts::new(&config, &Node::new("node-a"), &HostAddresses::default());
/// let mut wanted = Wanted::build(&store, &facts, Options::default());
/// assert_eq!(Vec::from_iter(wanted.families()), [Family::V4, Family::V6]);
/// assert!(wanted.has_comments(Family::V4)); // not in a large cluster
/// assert!(wanted.settings(Family::V4).is_some_and(|settings| settings.options.localhost_node_ports));
///
/// // All rules, as the program reads them.
/// let text = changes(&wanted, &Dump::default(), Family::V4)?.to_restore_text()?;
/// assert!(text.contains("-j DNAT --to-destination 10.244.1.7:8080\n"), "{text}");
///
/// // One Service changes; then a setting on which all rules depend.
/// let changed = store.delete_frontends(&web);
/// let changed = wanted.refresh(&store, &facts, &changed);
/// assert!(changed.services().eq([&web]) && !changed.is_everything());
/// config.node_port_addresses = NodePortAddresses::Primary;
/// let facts = NodeFacts::new(&config, &Node::new("node-a"), &HostAddresses::default());
/// assert!(wanted.refresh_all(&store, &facts, Options::default()).is_everything());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    desired: Desired,
    settings: Vec<Settings>,
    /// Number of endpoints that the ports of a family have together; only families that have any.
    endpoints: BTreeMap<Family, usize>,
}

/// Changes not yet written, each with its state before. May include some that were undone; these make no edits.
///
/// Keeps the old state, so that a failed write and later changes merge into one step from the kernel's state to the wanted one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    services: BTreeMap<ObjectKey, Before>,
    frontends: BTreeMap<FrontendKey, Option<Frontend>>,
    everything: bool,
}

/// Parts of a Service that have chains, or lines that belong to no address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Before {
    ports: Vec<Arc<Port>>,
    health_check: Option<u16>,
}

impl Before {
    fn of(compiled: Option<&Compiled>) -> Self {
        compiled.map_or_else(Before::default, |compiled| Before {
            ports: compiled.ports.clone(),
            health_check: health_check(compiled),
        })
    }
}

fn health_check(compiled: &Compiled) -> Option<u16> {
    compiled.health_check.map(|check| check.port)
}

impl Changed {
    /// Whether the kernel has nothing to follow.
    pub fn is_empty(&self) -> bool {
        *self == Changed::default()
    }

    /// Whether all rules have to be compared with the kernel's ([`changes`](super::diff::changes)), since settings changed on
    /// which all depend.
    pub fn is_everything(&self) -> bool {
        self.everything
    }

    /// Changes of one family: those of all Services, and those of the family's own addresses.
    pub(super) fn of_family(&self, family: Family) -> Self {
        let frontends = self.frontends.iter().filter(|(key, _)| key.family() == family);
        Changed {
            services: self.services.clone(),
            frontends: frontends.map(|(key, before)| (*key, before.clone())).collect(),
            everything: self.everything,
        }
    }

    /// Adds what a later update changed.
    pub fn extend(&mut self, later: Changed) {
        if self.is_empty() {
            *self = later;
            return;
        }
        self.everything |= later.everything;
        for (key, before) in later.services {
            self.services.entry(key).or_insert(before);
        }
        for (key, before) in later.frontends {
            self.frontends.entry(key).or_insert(before);
        }
    }

    /// The Frontends that may have changed, each as it was; `None` when it was not there.
    pub(super) fn frontends_before(&self) -> impl Iterator<Item = (&FrontendKey, Option<&Frontend>)> {
        self.frontends.iter().map(|(key, before)| (key, before.as_ref()))
    }

    /// The Services whose chains may have changed.
    pub fn services(&self) -> impl Iterator<Item = &ObjectKey> {
        self.services.keys()
    }

    /// The addresses and ports whose lines may have changed.
    pub fn frontends(&self) -> impl Iterator<Item = &FrontendKey> {
        self.frontends.keys()
    }
}

/// Keeps the counts in step with [`Desired`], and records changes if they are needed.
struct Following<'a> {
    endpoints: &'a mut BTreeMap<Family, usize>,
    changed: Option<&'a mut Changed>,
    /// Whether a health check is new, gone or different.
    health_checks: bool,
}

impl Follower for Following<'_> {
    fn needs_ports(&self) -> bool {
        true
    }

    fn service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        let ports = |compiled: Option<&Compiled>| compiled.map(|compiled| compiled.ports.clone()).unwrap_or_default();
        for port in ports(after) {
            let count = self.endpoints.entry(port.family).or_default();
            *count = count.saturating_add(endpoints_of(&port));
        }
        for port in ports(before) {
            let count = self.endpoints.entry(port.family).or_default();
            *count = count.saturating_sub(endpoints_of(&port));
        }
        self.endpoints.retain(|_, count| *count > 0);
        self.health_checks |= before.and_then(|old| old.health_check) != after.and_then(|new| new.health_check);
        if let (Some(changed), Some(compiled)) = (&mut self.changed, after.or(before)) {
            let (before, after) = (Before::of(before), Before::of(after));
            if before != after {
                changed.services.entry(compiled.service.clone()).or_insert(before);
            }
        }
    }

    fn frontend(&mut self, before: Option<&Frontend>, after: Option<&Frontend>) {
        if let (Some(changed), Some(frontend)) = (&mut self.changed, after.or(before)) {
            changed.frontends.entry(frontend.key).or_insert_with(|| before.cloned());
        }
    }
}

fn endpoints_of(port: &Port) -> usize {
    port.cluster.len().max(port.local.len())
}

/// Effects of a change on one family: chains of Service ports as they were and as they are, and lines likewise.
#[derive(Debug, Default)]
pub(super) struct Steps {
    pub(super) chains_before: Vec<Chain>,
    pub(super) chains: Vec<Chain>,
    pub(super) lines_before: Vec<Line>,
    pub(super) lines: Vec<Line>,
}

impl Wanted {
    /// With more endpoints than this in a family, rules about endpoints have no comments: they are most of the text.
    /// kube-proxy calls it large-cluster mode.
    pub const MAX_COMMENTED_ENDPOINTS: usize = 1000;

    /// Empty state, without Services.
    pub fn new(facts: &NodeFacts, options: Options) -> Self {
        Wanted { desired: Desired::new(), settings: settings(facts, options), endpoints: BTreeMap::new() }
    }

    /// Everything in the store.
    pub fn build(store: &Store, facts: &NodeFacts, options: Options) -> Self {
        let mut wanted = Wanted::new(facts, options);
        let services = store.services().map(|service| &service.key).chain(store.frontend_keys());
        let mut follower = Following { endpoints: &mut wanted.endpoints, changed: None, health_checks: false };
        wanted.desired.refresh(store, facts, services, &mut follower);
        wanted
    }

    /// Compiles these Services again; those that are no longer in the store are removed.
    ///
    /// With other node facts or options than before, use [`Wanted::refresh_all`].
    pub fn refresh<'a>(
        &mut self,
        store: &Store,
        facts: &NodeFacts,
        services: impl IntoIterator<Item = &'a ObjectKey>,
    ) -> Changed {
        self.follow(store, facts, services).0
    }

    /// As [`Wanted::refresh`]. Returns too whether a health check is new, gone or different.
    pub(super) fn follow<'a>(
        &mut self,
        store: &Store,
        facts: &NodeFacts,
        services: impl IntoIterator<Item = &'a ObjectKey>,
    ) -> (Changed, bool) {
        let mut changed = Changed::default();
        let endpoints = &mut self.endpoints;
        let mut follower = Following { endpoints, changed: Some(&mut changed), health_checks: false };
        self.desired.refresh(store, facts, services, &mut follower);
        let health_checks = follower.health_checks;
        (changed, health_checks)
    }

    /// Computes again what rules depend on besides Services. Returns what changed: nothing, or everything.
    pub(super) fn set_settings(&mut self, facts: &NodeFacts, options: Options) -> Changed {
        let settings = settings(facts, options);
        let everything = settings != self.settings;
        self.settings = settings;
        Changed { everything, ..Changed::default() }
    }

    /// Compiles every Service again: after the node facts or options have changed, or with another store.
    pub fn refresh_all(&mut self, store: &Store, facts: &NodeFacts, options: Options) -> Changed {
        let all = self.desired.services_with(store);
        let mut changed = self.refresh(store, facts, &all);
        changed.extend(self.set_settings(facts, options));
        changed
    }

    /// Reduces memory by rebuilding everything; call it after a large change.
    pub fn compact(&mut self) {
        self.desired.compact();
    }

    /// Frontends of all Services, without the words of iptables.
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// The families that are served.
    pub fn families(&self) -> impl Iterator<Item = Family> {
        self.settings.iter().map(|settings| settings.family)
    }

    /// Inputs of a family's rules besides Services; `None` for a family that is not served.
    pub fn settings(&self, family: Family) -> Option<&Settings> {
        self.settings.iter().find(|settings| settings.family == family)
    }

    /// Whether rules about endpoints have comments.
    pub fn has_comments(&self, family: Family) -> bool {
        self.endpoints.get(&family).is_none_or(|endpoints| *endpoints <= Wanted::MAX_COMMENTED_ENDPOINTS)
    }

    /// The ports of a family, each with its Service.
    pub(super) fn ports(&self, family: Family) -> impl Iterator<Item = (&Compiled, &Port)> {
        let all =
            self.desired.all_compiled().flat_map(|compiled| compiled.ports.iter().map(move |port| (compiled, port)));
        all.map(|(compiled, port)| (compiled, &**port)).filter(move |(_, port)| port.family == family)
    }

    /// The chains of a Service port and of its endpoints; none if its family is not served.
    pub(super) fn port_chains(&self, port: &Port) -> Result<Vec<Chain>, Error> {
        let Some(settings) = self.settings(port.family) else { return Ok(Vec::new()) };
        service::chains(port, settings, self.has_comments(port.family))
    }

    /// Subjects of a Service's lines in a family.
    pub(super) fn places_of(&self, service: &ObjectKey, family: Family) -> Vec<Place> {
        let Some(compiled) = self.desired.compiled(service) else { return Vec::new() };
        let keys = compiled.frontends.iter().map(|frontend| frontend.key).filter(|key| key.family() == family);
        let owned = keys.filter(|key| self.desired.owner(key) == Some(service)).map(Place::Address);
        let ports = compiled.ports.iter().filter(|port| port.family == family);
        let node_ports = ports.filter_map(|port| Some(Place::NodePort(port.protocol, port.node_port?)));
        let check = health_check(compiled).map(Place::HealthCheck);
        owned.chain(node_ports).chain(check).collect()
    }

    /// The chains that all Services share, without the lines of places that stay as they are, and the chains that depend on no
    /// Service, in the order in which they are written.
    pub(super) fn shared_chains(&self, family: Family, keep: &Keep) -> Result<Vec<TableChain>, Error> {
        let Some(settings) = self.settings(family) else { return Ok(Vec::new()) };
        let mut rules = self.shared_rules(family, keep)?;
        rules.entry(Shared::Services).or_default().extend(tables::last_lines(settings)?);
        let mut chains = Vec::new();
        for shared in Shared::ALL {
            let mut chain = Chain::new(shared.name()?);
            chain.rules = rules.remove(&shared).unwrap_or_default();
            chains.push((shared.table(), chain));
        }
        chains.extend(tables::fixed(settings)?);
        Ok(chains)
    }

    /// The lines of all Services by chain, sorted by Service and port, then as kube-proxy has them: cluster IP, external IPs,
    /// load balancers, node port.
    fn shared_rules(&self, family: Family, keep: &Keep) -> Result<BTreeMap<Shared, Vec<Rule>>, Error> {
        let mut sorted = Vec::new();
        let Some(Settings { options, .. }) = self.settings(family) else { return Ok(BTreeMap::new()) };
        let is_left =
            |key: &FrontendKey| self.desired.owner(key).is_some_and(|of| keep.has_place(&Place::Address(*key), of));
        let is_written = |key: &FrontendKey| key.family() == family && !is_left(key);
        for frontend in self.desired.frontends().filter(|frontend| is_written(&frontend.key)) {
            let Some(port) = frontend.port.as_deref() else { continue };
            let place = (&port.name, port.protocol, frontend.roles, Some(frontend.key));
            sorted.extend(lines::of_frontend(frontend, *options)?.into_iter().map(|line| (place, line)));
        }
        for (compiled, port) in self.ports(family) {
            let place = (&port.name, port.protocol, crate::service::Roles::NODE_PORT, None);
            let is_left = |place| keep.has_place(&place, &compiled.service);
            let check = health_check(compiled).filter(|check| !is_left(Place::HealthCheck(*check)));
            let is_kept = |number| is_left(Place::NodePort(port.protocol, number));
            let lines = lines::of_port(port, check, *options)?.into_iter();
            let lines = lines.filter(|line| line.chain == Shared::HealthChecks || !port.node_port.is_some_and(is_kept));
            sorted.extend(lines.map(|line| (place, line)));
        }
        sorted.sort_by_key(|(place, _)| *place);
        let mut rules: BTreeMap<Shared, Vec<Rule>> = BTreeMap::new();
        for (_, line) in sorted {
            rules.entry(line.chain).or_default().push(line.rule);
        }
        Ok(rules)
    }

    /// Effects of a change on a family. Costs O(changed Services and Frontends).
    pub(super) fn steps(&self, changed: &Changed, family: Family) -> Result<Steps, Error> {
        let mut steps = Steps::default();
        let Some(settings) = self.settings(family) else { return Ok(steps) };
        let comments = self.has_comments(family);
        for (key, before) in &changed.services {
            let now = Before::of(self.desired.compiled(key));
            let of_family = |service: &Before, chains: &mut Vec<Chain>, lines: &mut Vec<Line>| -> Result<(), Error> {
                for port in service.ports.iter().filter(|port| port.family == family) {
                    chains.extend(service::chains(port, settings, comments)?);
                    lines.extend(lines::of_port(port, service.health_check, settings.options)?);
                }
                Ok(())
            };
            of_family(before, &mut steps.chains_before, &mut steps.lines_before)?;
            of_family(&now, &mut steps.chains, &mut steps.lines)?;
        }
        for (key, before) in changed.frontends.iter().filter(|(key, _)| key.family() == family) {
            steps.lines_before.extend(lines_of(before.as_ref(), settings.options)?);
            steps.lines.extend(lines_of(self.desired.frontend(key), settings.options)?);
        }
        Ok(steps)
    }
}

fn lines_of(frontend: Option<&Frontend>, options: Options) -> Result<Vec<Line>, Error> {
    frontend.map_or_else(|| Ok(Vec::new()), |frontend| lines::of_frontend(frontend, options))
}

fn settings(facts: &NodeFacts, options: Options) -> Vec<Settings> {
    facts.config().families.iter().map(|family| Settings::new(family, facts, options)).collect()
}
