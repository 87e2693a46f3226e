//! State that iptables has to have for [`Desired`].

use std::collections::BTreeMap;

use iptables::{Chain, Error, Rule};

use super::lines::{self, Line, SharedChain};
use super::observed::{Keep, LineSubject};
use super::service;
use super::settings::{IptablesOptions, Settings, TableChain, fixed, last_lines};
use crate::net::{Family, FrontendKey};
use crate::service::{Changes, Compiled, Desired, FrontendObserver, Indexed, NodeFacts, Port, ServiceBefore};
use crate::snapshot::ObjectKey;

/// What rules depend on besides [`Desired`]. An update costs O(changed Services).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    settings: Vec<Settings>,
    /// Total number of endpoints of a family's ports. Families without any are left out.
    endpoints: BTreeMap<Family, usize>,
}

/// State that iptables has to have. No rules are stored: those of a Service are built on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    desired: &'a Desired,
    index: &'a Index,
}

fn health_check(compiled: &Compiled) -> Option<u16> {
    compiled.health_check().map(|check| check.port)
}

impl Index {
    /// Creates an index without Services.
    pub fn new(facts: &NodeFacts, options: IptablesOptions) -> Self {
        Index { settings: settings(facts, options), endpoints: BTreeMap::new() }
    }

    /// The rules for these Frontends.
    pub fn wanted<'a>(&'a self, desired: &'a Desired) -> Wanted<'a> {
        Wanted { desired, index: self }
    }

    /// Recomputes what rules depend on besides Services. Returns whether it differs; if so, all rules must be compared
    /// with the kernel's ([`changes`](super::diff::changes)).
    pub fn set_settings(&mut self, facts: &NodeFacts, options: IptablesOptions) -> bool {
        let settings = settings(facts, options);
        let differs = settings != self.settings;
        self.settings = settings;
        differs
    }

    pub(super) fn families(&self) -> impl Iterator<Item = Family> {
        self.settings.iter().map(|settings| settings.family)
    }

    /// What a family's rules depend on besides Services; `None` for a family that is not served.
    pub(super) fn settings(&self, family: Family) -> Option<&Settings> {
        self.settings.iter().find(|settings| settings.family == family)
    }
}

impl FrontendObserver for Index {
    fn needs_ports(&self) -> bool {
        true
    }

    fn service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        for port in after.into_iter().flat_map(|compiled| &compiled.ports) {
            let count = self.endpoints.entry(port.family).or_default();
            *count = count.saturating_add(endpoints_of(port));
        }
        for port in before.into_iter().flat_map(|compiled| &compiled.ports) {
            let count = self.endpoints.entry(port.family).or_default();
            *count = count.saturating_sub(endpoints_of(port));
        }
        self.endpoints.retain(|_, count| *count > 0);
    }
}

impl Indexed<Index> {
    /// State that iptables has to have.
    pub fn wanted(&self) -> Wanted<'_> {
        self.index.wanted(&self.desired)
    }
}

fn endpoints_of(port: &Port) -> usize {
    port.cluster.len().max(port.local.len())
}

/// Chains of Service ports in one family, and lines in shared chains.
#[derive(Debug, Default)]
pub(super) struct ServiceRules {
    pub(super) chains: Vec<Chain>,
    pub(super) lines: Vec<Line>,
}

impl<'a> Wanted<'a> {
    /// Number of endpoints in a family above which rules about endpoints have no comments, which would be most of the
    /// text. kube-proxy calls it large-cluster mode.
    pub const MAX_COMMENTED_ENDPOINTS: usize = 1000;

    /// The Frontends of all Services, independent of iptables.
    pub fn desired(self) -> &'a Desired {
        self.desired
    }

    /// What a family's rules depend on besides Services; `None` for a family that is not served.
    pub fn settings(self, family: Family) -> Option<&'a Settings> {
        self.index.settings(family)
    }

    /// Whether rules about endpoints have comments.
    pub fn has_comments(self, family: Family) -> bool {
        self.index.endpoints.get(&family).is_none_or(|endpoints| *endpoints <= Self::MAX_COMMENTED_ENDPOINTS)
    }

    pub(super) fn ports(self, family: Family) -> impl Iterator<Item = (&'a Compiled, &'a Port)> {
        let all =
            self.desired.all_compiled().flat_map(|compiled| compiled.ports.iter().map(move |port| (compiled, port)));
        all.map(|(compiled, port)| (compiled, &**port)).filter(move |(_, port)| port.family == family)
    }

    /// The chains of a Service port and its endpoints; none if its family is not served.
    pub(super) fn port_chains(self, port: &Port) -> Result<Vec<Chain>, Error> {
        let Some(settings) = self.settings(port.family) else { return Ok(Vec::new()) };
        service::chains(port, settings, self.has_comments(port.family))
    }

    /// The Service of a Frontend that has endpoints.
    pub(super) fn served_owner(self, key: &FrontendKey) -> Option<&'a ObjectKey> {
        self.desired.frontend(key).filter(|frontend| !frontend.endpoints().is_empty())?;
        self.desired.owner(key)
    }

    pub(super) fn lines_of(self, service: &ObjectKey, family: Family) -> Vec<LineSubject> {
        let Some(compiled) = self.desired.compiled(service) else { return Vec::new() };
        let keys = compiled.frontends.iter().map(|frontend| frontend.key).filter(|key| key.family() == family);
        let owned = keys.filter(|key| self.desired.owner(key) == Some(service)).map(LineSubject::Address);
        let ports = compiled.ports.iter().filter(|port| port.family == family);
        let node_ports = ports.filter_map(|port| Some(LineSubject::NodePort(port.protocol, port.node_port?)));
        let check = health_check(compiled).map(LineSubject::HealthCheck);
        owned.chain(node_ports).chain(check).collect()
    }

    /// The chains that all Services share, without the lines of places that stay unchanged. Then the chains that depend
    /// on no Service, in the order in which they are written.
    pub(super) fn shared_chains(self, family: Family, keep: &Keep) -> Result<Vec<TableChain>, Error> {
        let Some(settings) = self.settings(family) else { return Ok(Vec::new()) };
        let mut rules = self.shared_rules(family, keep)?;
        rules.entry(SharedChain::Services).or_default().extend(last_lines(settings)?);
        let mut chains = Vec::new();
        for shared in SharedChain::ALL {
            let mut chain = Chain::new(shared.name()?);
            chain.rules = rules.remove(&shared).unwrap_or_default();
            chains.push((shared.table(), chain));
        }
        chains.extend(fixed(settings)?);
        Ok(chains)
    }

    /// The lines of all Services by chain, sorted by Service and port, then in kube-proxy's order: cluster IP, external
    /// IPs, load balancers, node port.
    fn shared_rules(self, family: Family, keep: &Keep) -> Result<BTreeMap<SharedChain, Vec<Rule>>, Error> {
        let mut sorted = Vec::new();
        let Some(Settings { options, .. }) = self.settings(family) else { return Ok(BTreeMap::new()) };
        let is_left = |key: &FrontendKey| {
            self.desired.owner(key).is_some_and(|of| keep.keeps_line(&LineSubject::Address(*key), of))
        };
        let is_written = |key: &FrontendKey| key.family() == family && !is_left(key);
        for frontend in self.desired.frontends().filter(|frontend| is_written(&frontend.key)) {
            let Some(port) = frontend.port.as_deref() else { continue };
            let place = (&port.name, port.protocol, frontend.roles, Some(frontend.key));
            sorted.extend(lines::of_frontend(frontend, *options)?.into_iter().map(|line| (place, line)));
        }
        for (compiled, port) in self.ports(family) {
            let place = (&port.name, port.protocol, crate::service::Roles::NODE_PORT, None);
            let is_left = |place| keep.keeps_line(&place, &compiled.service);
            let check = health_check(compiled).filter(|check| !is_left(LineSubject::HealthCheck(*check)));
            let is_kept = |number| is_left(LineSubject::NodePort(port.protocol, number));
            let lines = lines::of_port(port, check, *options)?.into_iter();
            let lines =
                lines.filter(|line| line.chain == SharedChain::HealthChecks || !port.node_port.is_some_and(is_kept));
            sorted.extend(lines.map(|line| (place, line)));
        }
        sorted.sort_by_key(|(place, _)| *place);
        let mut rules: BTreeMap<SharedChain, Vec<Rule>> = BTreeMap::new();
        for (_, line) in sorted {
            rules.entry(line.chain).or_default().push(line.rule);
        }
        Ok(rules)
    }

    /// What changes concern in a family, as written and as desired. Costs O(changed Services and Frontends).
    pub(super) fn changed(self, changes: &Changes, family: Family) -> Result<[ServiceRules; 2], Error> {
        let [mut before, mut after] = <[ServiceRules; 2]>::default();
        let Some(settings) = self.settings(family) else { return Ok([before, after]) };
        let comments = self.has_comments(family);
        let add = |service: &ServiceBefore, rules: &mut ServiceRules| -> Result<(), Error> {
            for port in &service.ports {
                rules.chains.extend(service::chains(port, settings, comments)?);
                rules.lines.extend(lines::of_port(port, service.health_check, settings.options)?);
            }
            Ok(())
        };
        for (key, written) in changes.services_before(family) {
            add(written, &mut before)?;
            add(&ServiceBefore::from_compiled(self.desired.compiled(key), family), &mut after)?;
        }
        for (key, written) in changes.frontends().filter(|(key, _)| key.family() == family) {
            for (frontend, rules) in [(written, &mut before), (self.desired.frontend(key), &mut after)] {
                if let Some(frontend) = frontend {
                    rules.lines.extend(lines::of_frontend(frontend, settings.options)?);
                }
            }
        }
        Ok([before, after])
    }
}

fn settings(facts: &NodeFacts, options: IptablesOptions) -> Vec<Settings> {
    facts.config().families.iter().map(|family| Settings::new(family, facts, options)).collect()
}
