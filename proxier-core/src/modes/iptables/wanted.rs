//! What iptables has to have for [`Desired`], kept up to date at O(changed Services).

use std::collections::BTreeMap;
use std::sync::Arc;

use iptables::{Chain, Error, Rule};

use super::lines::{self, Line, Shared};
use super::service;
use super::settings::{Options, Settings};
use super::tables::{self, TableChain};
use crate::net::{Family, FrontendKey};
use crate::service::{Compiled, Desired, Follower, Frontend, NodeFacts, Port};
use crate::snapshot::{ObjectKey, Store};

/// What iptables has to have.
///
/// No rules are kept: those of a Service are made of what it means, when they are asked for. Two values with the same
/// Services, node facts and options compare equal, however they were built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    desired: Desired,
    settings: Vec<Settings>,
    /// How many endpoints the ports of a family have together; only families that have any.
    endpoints: BTreeMap<Family, usize>,
}

/// Where the kernel may have to follow: what changed, as it was before. Something that changed back may be in here too; it
/// makes no edits.
///
/// What it was is kept, not what it is: a change that could not be written is extended with the next ones, and then leads
/// from what the kernel has to what is wanted by then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    services: BTreeMap<ObjectKey, Before>,
    frontends: BTreeMap<FrontendKey, Option<Frontend>>,
    everything: bool,
}

/// Of a Service, what has chains, and lines that belong to no address.
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

    /// Adds what a later update changed.
    pub fn extend(&mut self, later: Changed) {
        self.everything |= later.everything;
        for (key, before) in later.services {
            self.services.entry(key).or_insert(before);
        }
        for (key, before) in later.frontends {
            self.frontends.entry(key).or_insert(before);
        }
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

/// Keeps the counts in step with [`Desired`], and records what changes unless nobody asks.
struct Following<'a> {
    endpoints: &'a mut BTreeMap<Family, usize>,
    changed: Option<&'a mut Changed>,
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

/// What a change means for one family: chains of Service ports as they were and as they are, and lines likewise.
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

    /// Nothing.
    pub fn new(facts: &NodeFacts, options: Options) -> Self {
        Wanted { desired: Desired::new(), settings: settings(facts, options), endpoints: BTreeMap::new() }
    }

    /// Everything in the store.
    pub fn build(store: &Store, facts: &NodeFacts, options: Options) -> Self {
        let mut wanted = Wanted::new(facts, options);
        let services = store.services().map(|service| &service.key).chain(store.frontend_keys());
        let mut follower = Following { endpoints: &mut wanted.endpoints, changed: None };
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
        let mut changed = Changed::default();
        let mut follower = Following { endpoints: &mut self.endpoints, changed: Some(&mut changed) };
        self.desired.refresh(store, facts, services, &mut follower);
        changed
    }

    /// Compiles every Service again: after the node facts or options have changed, or with another store.
    pub fn refresh_all(&mut self, store: &Store, facts: &NodeFacts, options: Options) -> Changed {
        let all = self.desired.services_with(store);
        let mut changed = self.refresh(store, facts, &all);
        let settings = settings(facts, options);
        changed.everything = settings != self.settings;
        self.settings = settings;
        changed
    }

    /// Reduces memory by rebuilding everything; call it after a large change.
    pub fn compact(&mut self) {
        self.desired.compact();
    }

    /// What the Services mean, without the words of iptables.
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// The families that are served.
    pub fn families(&self) -> impl Iterator<Item = Family> {
        self.settings.iter().map(|settings| settings.family)
    }

    /// What rules of a family depend on besides Services; `None` for a family that is not served.
    pub fn settings(&self, family: Family) -> Option<&Settings> {
        self.settings.iter().find(|settings| settings.family == family)
    }

    /// Whether rules about endpoints have comments.
    pub fn has_comments(&self, family: Family) -> bool {
        self.endpoints.get(&family).is_none_or(|endpoints| *endpoints <= Wanted::MAX_COMMENTED_ENDPOINTS)
    }

    fn ports(&self, family: Family) -> impl Iterator<Item = (&Compiled, &Port)> {
        let all =
            self.desired.all_compiled().flat_map(|compiled| compiled.ports.iter().map(move |port| (compiled, port)));
        all.map(|(compiled, port)| (compiled, &**port)).filter(move |(_, port)| port.family == family)
    }

    /// The chains of Service ports and endpoints of a family, made one Service port after the other.
    pub(super) fn service_chains(&self, family: Family) -> impl Iterator<Item = Result<Vec<Chain>, Error>> {
        let settings = self.settings(family);
        let comments = self.has_comments(family);
        let ports = self.ports(family).filter_map(move |(_, port)| Some((port, settings?)));
        ports.map(move |(port, settings)| service::chains(port, settings, comments))
    }

    /// The chains that all Services share, and those that depend on none, in the order in which they are written.
    pub(super) fn shared_chains(&self, family: Family) -> Result<Vec<TableChain>, Error> {
        let Some(settings) = self.settings(family) else { return Ok(Vec::new()) };
        let mut rules = self.shared_rules(family)?;
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
    fn shared_rules(&self, family: Family) -> Result<BTreeMap<Shared, Vec<Rule>>, Error> {
        let mut sorted = Vec::new();
        for frontend in self.desired.frontends().filter(|frontend| frontend.key.family() == family) {
            let Some(port) = frontend.port.as_deref() else { continue };
            let place = (&port.name, port.protocol, frontend.roles, Some(frontend.key));
            sorted.extend(lines::of_frontend(frontend)?.into_iter().map(|line| (place, line)));
        }
        for (compiled, port) in self.ports(family) {
            let place = (&port.name, port.protocol, crate::service::Roles::NODE_PORT, None);
            sorted.extend(lines::of_port(port, health_check(compiled))?.into_iter().map(|line| (place, line)));
        }
        sorted.sort_by_key(|(place, _)| *place);
        let mut rules: BTreeMap<Shared, Vec<Rule>> = BTreeMap::new();
        for (_, line) in sorted {
            rules.entry(line.chain).or_default().push(line.rule);
        }
        Ok(rules)
    }

    /// What a change means for a family. Costs O(what changed).
    pub(super) fn steps(&self, changed: &Changed, family: Family) -> Result<Steps, Error> {
        let mut steps = Steps::default();
        let Some(settings) = self.settings(family) else { return Ok(steps) };
        let comments = self.has_comments(family);
        for (key, before) in &changed.services {
            let now = Before::of(self.desired.compiled(key));
            let of_family = |service: &Before, chains: &mut Vec<Chain>, lines: &mut Vec<Line>| -> Result<(), Error> {
                for port in service.ports.iter().filter(|port| port.family == family) {
                    chains.extend(service::chains(port, settings, comments)?);
                    lines.extend(lines::of_port(port, service.health_check)?);
                }
                Ok(())
            };
            of_family(before, &mut steps.chains_before, &mut steps.lines_before)?;
            of_family(&now, &mut steps.chains, &mut steps.lines)?;
        }
        for (key, before) in changed.frontends.iter().filter(|(key, _)| key.family() == family) {
            steps.lines_before.extend(lines_of(before.as_ref())?);
            steps.lines.extend(lines_of(self.desired.frontend(key))?);
        }
        Ok(steps)
    }
}

fn lines_of(frontend: Option<&Frontend>) -> Result<Vec<Line>, Error> {
    frontend.map_or_else(|| Ok(Vec::new()), lines::of_frontend)
}

fn settings(facts: &NodeFacts, options: Options) -> Vec<Settings> {
    facts.config().families.iter().map(|family| Settings::new(family, facts, options)).collect()
}
