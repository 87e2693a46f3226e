//! Services on this node, independent of any kernel part: Frontends with their endpoints and owners.

mod changes;
mod desired;
mod endpoint_decision;
mod endpoints;
mod facts;
mod frontend;
mod indexed;
mod port;
mod reserved;
mod sharing;
mod trace;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::config::MayAskFor;
use crate::net::{ByFamily, EndpointKey, Family, FrontendKey, Protocol};
use crate::snapshot::{
    Annotation, Balancing, CreationTime, EndpointSlice, FrontendSpec, MethodName, OTHER_PORT, ObjectKey, ObjectKind,
    Rejection, Reporter, Service, ServicePort, Store, TrafficPolicy,
};
use endpoints::{Candidate, Choice, Resting, choose, count_ready_local, gather, weigh};

pub(crate) use crate::snapshot::Roles;
pub(crate) use changes::ServiceBefore;
pub use desired::{Conflict, Desired, Names};
pub use endpoint_decision::{EndpointDecision, endpoint_decisions};
pub(crate) use facts::PodTraffic;
pub use facts::{NodeFacts, OpenOn};
pub use frontend::Frontend;
pub(crate) use port::Port;
pub use reserved::Rejected;
pub use trace::{Packet, Reached, Trace, Verdict};
pub(crate) use trace::{PacketRules, Treatment, trace};

/// Types with which modes follow Services, for this crate, its tests and its benches.
#[doc(hidden)]
pub use {changes::Changes, desired::FrontendObserver, indexed::Indexed};

/// The port on which a node reports to load balancers whether a Service has endpoints here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port.
    pub port: u16,
    /// Ready endpoints on this node, by family. The answer over a family is "healthy" if there are any. Terminating ones,
    /// and those with weight 0, do not count. `None` if the Service does not have the family; nothing listens then.
    pub local_endpoints: ByFamily<Option<usize>>,
}

/// Numbers of ports of a Service with policy `Local` and endpoints, but none on this node (metric
/// `sync_proxy_rules_no_local_endpoints_total`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoLocalEndpoints {
    /// Number of ports with `internalTrafficPolicy: Local`.
    pub internal: ByFamily<u16>,
    /// Number of ports with `externalTrafficPolicy: Local` that are reachable from outside.
    pub external: ByFamily<u16>,
}

impl NoLocalEndpoints {
    fn note(&mut self, family: Family, is_internal: bool, is_external: bool) {
        for (counts, is_one) in [(&mut self.internal, is_internal), (&mut self.external, is_external)] {
            let count = counts.of_mut(family);
            *count = count.saturating_add(u16::from(is_one));
        }
    }
}

/// A Service, compiled for this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The Service.
    pub service: ObjectKey,
    /// Creation time of the Service, which decides between Services that claim one Frontend.
    pub(crate) created: CreationTime,
    /// Frontends of the Service, sorted by key. Most have one.
    pub(crate) frontends: SmallVec<[Arc<Frontend>; 1]>,
    /// Its ports, once per family, in the order of the object, if they were requested
    /// ([`FrontendObserver::needs_ports`]). Each Frontend of an agent is its own port.
    pub(crate) ports: Vec<Arc<Port>>,
    /// Numbers of ports without local endpoints, for the metric.
    pub(crate) no_local_endpoints: NoLocalEndpoints,
    extras: Option<Box<Extras>>,
}

/// Properties that few Services have; boxed to keep [`Compiled`] small.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extras {
    /// Its endpoints on this node, in any state: connections that they open to their own Service may return to them.
    pub(crate) hairpins: BTreeSet<(Protocol, EndpointKey)>,
    health_check: Option<HealthCheck>,
    /// The families in which its health-check port is open on an address of this node.
    pub(crate) health_check_open_in: Vec<Family>,
    /// Frontends that it does not get because the address or port is reserved ([`Config`](crate::config::Config)).
    pub(crate) rejected: BTreeSet<Rejected>,
    /// Annotations that are impossible with its endpoints, external IPs that the configuration disables, and ports of
    /// Services that are too large.
    pub(crate) refused: Vec<Rejection>,
    /// When an agent began to ask for each of its Frontends; sorted. Empty for Services.
    asked: Vec<(FrontendKey, CreationTime)>,
}

impl Extras {
    const NONE: Extras = Extras {
        hairpins: BTreeSet::new(),
        health_check: None,
        health_check_open_in: Vec::new(),
        rejected: BTreeSet::new(),
        refused: Vec::new(),
        asked: Vec::new(),
    };
}

impl Compiled {
    fn empty(service: ObjectKey, created: CreationTime) -> Self {
        Compiled {
            service,
            created,
            frontends: SmallVec::new(),
            ports: Vec::new(),
            no_local_endpoints: NoLocalEndpoints::default(),
            extras: None,
        }
    }

    fn with(mut self, extras: Extras) -> Self {
        self.extras = (extras != Extras::NONE).then(|| Box::new(extras));
        self
    }

    pub(crate) fn extras(&self) -> &Extras {
        static NONE: Extras = Extras::NONE;
        self.extras.as_deref().unwrap_or(&NONE)
    }

    pub(crate) fn health_check(&self) -> Option<HealthCheck> {
        self.extras().health_check
    }

    /// Rank of its claim to this Frontend among equal claims; the least goes first.
    pub(crate) fn created(&self, key: &FrontendKey) -> CreationTime {
        let asked = &self.extras().asked;
        let place = asked.binary_search_by(|(of, _)| of.cmp(key)).ok();
        place.and_then(|place| asked.get(place)).map_or(self.created, |(_, created)| *created)
    }

    /// Frontends of the Service, sorted by key.
    pub fn frontends(&self) -> &[Arc<Frontend>] {
        &self.frontends
    }

    pub(crate) fn frontend(&self, key: &FrontendKey) -> Option<&Arc<Frontend>> {
        let place = self.frontends.binary_search_by(|frontend| frontend.key.cmp(key)).ok()?;
        self.frontends.get(place)
    }
}

/// Why clients do not stay with their endpoints ([`NodeFacts::most_with_affinity`]).
pub(crate) const TOO_MANY_TO_STAY: &str =
    "clients do not stay with their endpoints: there are more than nftables mode can do it for (4,096)";

/// The same if other Services have left no room ([`Desired::without_affinity`]).
pub(crate) const NO_ROOM_TO_STAY: &str = "clients do not stay with their endpoints: Services with session affinity have 16,384 rules already, \
                                          as many as a node may have; fewer endpoints and fewer different times help";

/// Why a Service does not get its external IPs
/// ([`Config::without_external_ips`](crate::config::Config::without_external_ips)).
const WITHOUT_EXTERNAL_IPS: &str = "not served: the feature gate AllowServiceExternalIPs is false";

/// Most endpoints and source ranges of a Service in a family, each counted for every address and port at which it is
/// served; an address and port counts as one more, and a node port once. In a mode with slots these count instead of
/// endpoints. An object of a megabyte may ask for 50 million, which is more memory than a node has.
const MOST_IN_A_SERVICE: usize = 1 << 19;

/// Why a Service port, and those after it, are not served.
const TOO_LARGE: &str = "this port and those after it are not served: a Service may have 524288 endpoints and source ranges in a \
                         family, counted for each address and port; in nftables mode weights, sh and mh count an endpoint several times";

/// Why this address and port has no Frontend, if a Service claims it by an external IP that is disabled
/// ([`Config::without_external_ips`](crate::config::Config::without_external_ips)). O(Services).
pub fn why_left_out(store: &Store, facts: &NodeFacts, key: &FrontendKey) -> Option<String> {
    let mut services = store.services().filter(|_| facts.config.without_external_ips);
    let asks = |service: &&Service| {
        let is_port = |port: &ServicePort| (port.protocol, port.port) == (key.protocol, key.port);
        service.external_ips.contains(&key.address) && service.ports.iter().any(is_port)
    };
    let service = services.find(asks)?;
    Some(format!("Service {} has it by an external IP, {WITHOUT_EXTERNAL_IPS}", service.key))
}

/// Compiles a Service with its slices, which may be in any order.
///
/// A Service without endpoints still has its Frontends, so that clients are refused rather than left waiting.
pub(crate) fn compile<'a>(
    service: &Service,
    slices: impl IntoIterator<Item = &'a EndpointSlice>,
    facts: &NodeFacts,
    with_ports: bool,
) -> Compiled {
    let slices: Vec<&EndpointSlice> = slices.into_iter().collect();
    let mut compiled = Compiled::empty(service.key.clone(), service.created);
    let mut extras = Extras::NONE;
    let mut frontends = BTreeMap::new();
    let (asked, ipvs) = (service.balancing.as_ref(), &facts.config.ipvs);
    let has_policy = asked.is_some() || ipvs.defaults.is_some();
    let balancing = has_policy.then(|| ipvs.balancing(asked, service.affinity_secs.is_some())).flatten();
    let balancing = balancing.as_ref();
    if facts.config.without_external_ips && !service.external_ips.is_empty() {
        let addresses: Vec<String> = service.external_ips.iter().map(ToString::to_string).collect();
        let rejections = &mut extras.refused;
        let mut report = Reporter { kind: ObjectKind::Service, key: &service.key, rejections };
        report.reject("spec.externalIPs", addresses.join(","), WITHOUT_EXTERNAL_IPS);
    }
    for family in facts.config.families.iter() {
        let Some(cluster_ip) = service.cluster_ip(family) else { continue };
        let (mut resting, mut size) = (Resting::default(), 0_usize);
        let ranges = service.source_ranges.of(family).as_deref().map_or(0, <[_]>::len);
        for port in &service.ports {
            let candidates = gather(&slices, port, family);
            let weights = weigh(&slices, balancing.map(|of| &**of), port, family, facts);
            let mut rows = table(service, port, cluster_ip, facts);
            let addresses = rows.iter().map(Row::asked).sum::<usize>();
            let endpoints = if facts.has_slots && (weights.is_some() || balancing.is_some()) {
                let endpoints: Vec<EndpointKey> = candidates.iter().map(Candidate::key).collect();
                sharing::count_slots(&endpoints, weights.as_deref(), balancing.map(|of| &**of))
            } else {
                candidates.len()
            };
            let each = endpoints.saturating_add(ranges).saturating_add(1);
            size = size.saturating_add(addresses.saturating_mul(each));
            if size > MOST_IN_A_SERVICE {
                let rejections = &mut extras.refused;
                let mut report = Reporter { kind: ObjectKind::Service, key: &service.key, rejections };
                report.reject("spec.ports", format_args!("{} {}", port.protocol, port.port), TOO_LARGE);
                break;
            }
            let drains = balancing.is_some_and(|of| of.drain_secs.is_some());
            let choice = choose(&candidates, service, port.protocol, drains, facts);
            let local = candidates.iter().filter(|candidate| candidate.is_local());
            extras.hairpins.extend(local.map(|candidate| (port.protocol, candidate.key())));
            let context = Context { service, port, facts, balancing };
            let is_elsewhere_only = choice.is_elsewhere_only(&candidates);
            let (mut internal, mut external) = (false, false);
            for row in &mut rows {
                row.leave_out_reserved(&context, &choice, &mut extras.rejected);
                let lacks_local = if row.role == Roles::CLUSTER_IP { &mut internal } else { &mut external };
                *lacks_local |= is_elsewhere_only && row.needs_local();
            }
            compiled.no_local_endpoints.note(family, internal, external);
            if service.health_check_node_port.is_some() {
                resting.note(&candidates, weights.as_deref());
            }
            let common = with_ports.then(|| Arc::new(Port::new(&context, &rows, family, &choice)));
            let asked = AnnotationRequests {
                weights,
                affinity_secs: context.affinity_secs(&choice, &mut extras.refused),
                returns_directly: context.returns_directly(&rows, &choice, &mut extras.refused),
            };
            for (row, address) in rows.iter().flat_map(|row| row.addresses.iter().map(move |address| (row, *address))) {
                let new = row.frontend(address, &choice, &asked, common.as_ref(), &context);
                match frontends.entry(new.key) {
                    // Listed twice, for example as external IP and as load-balancer address.
                    Entry::Occupied(mut known) => merge(known.get_mut(), &new),
                    Entry::Vacant(place) => {
                        place.insert(new);
                    }
                }
            }
            compiled.ports.extend(common);
        }
        if let Some(port) = service.health_check_node_port {
            if !facts.health_checks_open_on(family).is_nowhere() {
                extras.health_check_open_in.push(family);
            }
            let none = HealthCheck { port, local_endpoints: ByFamily::default() };
            let check = extras.health_check.get_or_insert(none);
            let ready = count_ready_local(&slices, family, |address| !resting.has(address));
            *check.local_endpoints.of_mut(family) = Some(ready);
        }
    }
    compiled.frontends = frontends.into_values().map(Arc::new).collect();
    compiled.with(extras)
}

/// Compiles an agent's Frontends. Each is its own port, if ports are requested.
pub(crate) fn compile_frontends(
    key: &ObjectKey,
    specs: &[FrontendSpec],
    facts: &NodeFacts,
    with_ports: bool,
) -> Compiled {
    let mut compiled = Compiled::empty(key.clone(), CreationTime::UNKNOWN);
    let mut extras = Extras::NONE;
    let reserved = &facts.config.reserved;
    for spec in specs.iter().filter(|spec| facts.config.families.has(spec.key.family())) {
        let refusal = reserved
            .refuses(&spec.key, facts)
            .or_else(|| reserved.refuses_address(&spec.key, spec.roles, &spec.cluster, facts));
        if let Some(refusal) = refusal {
            extras.rejected.insert(refusal);
            continue;
        }
        extras.asked.push((spec.key, spec.created()));
        extras.hairpins.extend(spec.local.iter().map(|endpoint| (spec.key.protocol, *endpoint)));
        if spec.policy == TrafficPolicy::Local && spec.local.is_empty() && !spec.cluster.is_empty() {
            let is_internal = spec.roles == Roles::CLUSTER_IP;
            compiled.no_local_endpoints.note(spec.key.family(), is_internal, !is_internal);
        }
        let ranges = spec.source_ranges.as_deref();
        let node_may_use = facts.is_node_in(ranges, spec.key.family());
        let balancing = facts.config.ipvs.balancing(spec.balancing.as_ref(), spec.affinity_secs.is_some());
        let mut affinity_secs = affinity_of(balancing.as_ref(), spec.affinity_secs);
        if let Some(secs) = affinity_secs.take_if(|_| !facts.lets_stay(&spec.cluster, &spec.local)) {
            let mut report = Reporter { kind: ObjectKind::Frontends, key, rejections: &mut extras.refused };
            report.reject(format!("{}.affinity_secs", spec.key), format_args!("{secs} s"), TOO_MANY_TO_STAY);
        }
        let weighs = !spec.weights.is_empty() && facts.config.lets(MayAskFor::WEIGHTS);
        let weights: Option<Arc<[(EndpointKey, u16)]>> = weighs.then(|| spec.weights.as_slice().into());
        let port = with_ports.then(|| Arc::new(Port::of_agent(key, spec, node_may_use)));
        compiled.ports.extend(port.clone());
        compiled.frontends.push(Arc::new(Frontend {
            key: spec.key,
            roles: spec.roles,
            policy: spec.policy,
            cluster: spec.cluster.as_slice().into(),
            local: spec.local.as_slice().into(),
            unselected: None,
            falls_back: false,
            affinity_secs,
            returns_directly: balancing.as_ref().is_some_and(|of| of.returning().is_some())
                && spec.why_only_masqueraded().is_none(),
            balancing,
            weights,
            on_interface: facts.is_on_interface(spec.key.address),
            source_ranges: ranges.map(Into::into),
            node_may_use,
            port,
        }));
    }
    compiled.with(extras)
}

/// Compiles the Service of this key, otherwise the agent's Frontends under it; `None` if the store has neither.
pub(crate) fn compile_from(store: &Store, key: &ObjectKey, facts: &NodeFacts, with_ports: bool) -> Option<Compiled> {
    let service = store.service(key).map(|service| compile(service, store.slices_of(key), facts, with_ports));
    service.or_else(|| store.frontends_of(key).map(|specs| compile_frontends(key, specs, facts, with_ports)))
}

/// A row of the table of Frontends: addresses that are treated alike.
struct Row {
    role: Roles,
    addresses: Vec<IpAddr>,
    port: u16,
    policy: TrafficPolicy,
}

/// Values that all Frontends of a Service port share.
struct Context<'a> {
    service: &'a Service,
    port: &'a ServicePort,
    facts: &'a NodeFacts,
    balancing: Option<&'a Arc<Balancing>>,
}

impl Context<'_> {
    /// Whether endpoints reply directly to clients of external addresses. Records why not, if the Service requests it.
    fn returns_directly(&self, rows: &[Row], choice: &Choice, refused: &mut Vec<Rejection>) -> bool {
        let Some(asked) = self.balancing else { return false };
        let Some(method) = asked.returning() else { return false };
        if !rows.iter().any(|row| row.is_external() && !row.addresses.is_empty()) {
            return false;
        }
        let ServicePort { protocol, port, .. } = *self.port;
        let Some(other) = choice.cluster.iter().chain(&*choice.local).find(|endpoint| endpoint.port != port) else {
            return true;
        };
        let value = format_args!("{} for {protocol} {port}, endpoint {other}", MethodName(method));
        let mut report = Reporter { kind: ObjectKind::Service, key: &self.service.key, rejections: refused };
        report.reject(asked.forwarding_field(), value, OTHER_PORT);
        false
    }

    /// Seconds that a client stays with its endpoint. Records if there are too many endpoints for that.
    fn affinity_secs(&self, choice: &Choice, refused: &mut Vec<Rejection>) -> Option<u32> {
        let secs = affinity_of(self.balancing, self.service.affinity_secs)?;
        if self.facts.lets_stay(&choice.cluster, &choice.local) {
            return Some(secs);
        }
        let field =
            if self.service.affinity_secs.is_some() { "spec.sessionAffinity" } else { Annotation::PERSISTENCE.name };
        if refused.iter().all(|known| known.field != field) {
            let mut report = Reporter { kind: ObjectKind::Service, key: &self.service.key, rejections: refused };
            report.reject(field, format_args!("{secs} s"), TOO_MANY_TO_STAY);
        }
        None
    }
}

/// What a Service's annotations request, in one family, for a port with these endpoints.
struct AnnotationRequests {
    affinity_secs: Option<u32>,
    weights: Option<Arc<[(EndpointKey, u16)]>>,
    returns_directly: bool,
}

/// The table that decides on which addresses and port a Service port is served in a family, and by which policy.
fn table(service: &Service, port: &ServicePort, cluster_ip: IpAddr, facts: &NodeFacts) -> [Row; 4] {
    let family = Family::of(cluster_ip);
    let of_family = |addresses: &[IpAddr]| -> Vec<IpAddr> {
        addresses.iter().copied().filter(|address| Family::of(*address) == family).collect()
    };
    let on_node = port.node_port.map(|_| facts.node_port_addresses(family).collect());
    let external_ips = if facts.config.without_external_ips { &[] } else { &service.external_ips[..] };
    let row = |role, addresses, port, policy| Row { role, addresses, port, policy };
    let (internal, external) = (service.internal_policy, service.external_policy);
    [
        row(Roles::CLUSTER_IP, vec![cluster_ip], port.port, internal),
        row(Roles::EXTERNAL_IP, of_family(external_ips), port.port, external),
        row(Roles::LOAD_BALANCER, of_family(&service.load_balancer_ips), port.port, external),
        row(Roles::NODE_PORT, on_node.unwrap_or_default(), port.node_port.unwrap_or_default(), external),
    ]
}

impl Row {
    /// Removes addresses that are reserved, at this port or altogether.
    fn leave_out_reserved(&mut self, context: &Context<'_>, choice: &Choice, rejected: &mut BTreeSet<Rejected>) {
        let (facts, protocol, port, role) = (context.facts, context.port.protocol, self.port, self.role);
        if self.role == Roles::CLUSTER_IP && context.service.key.is_kubernetes() {
            return;
        }
        self.addresses.retain(|address| {
            let key = FrontendKey::new(protocol, *address, port);
            let reserved = &facts.config.reserved;
            let refusal =
                reserved.refuses(&key, facts).or_else(|| reserved.refuses_address(&key, role, &choice.cluster, facts));
            let is_free = refusal.is_none();
            rejected.extend(refusal);
            is_free
        });
    }

    fn needs_local(&self) -> bool {
        self.policy == TrafficPolicy::Local && !self.addresses.is_empty()
    }

    /// Number of addresses that the Service asks for. How many a node has is not its doing.
    fn asked(&self) -> usize {
        let most = if self.role == Roles::NODE_PORT { 1 } else { usize::MAX };
        self.addresses.len().min(most)
    }

    fn is_external(&self) -> bool {
        self.role == Roles::EXTERNAL_IP || self.role == Roles::LOAD_BALANCER
    }

    fn frontend(
        &self,
        address: IpAddr,
        choice: &Choice,
        asked: &AnnotationRequests,
        common: Option<&Arc<Port>>,
        context: &Context<'_>,
    ) -> Frontend {
        let (service, facts) = (context.service, context.facts);
        let family = Family::of(address);
        let ranges = service.source_ranges.of(family).as_ref().filter(|_| self.role == Roles::LOAD_BALANCER);
        Frontend {
            key: FrontendKey::new(context.port.protocol, address, self.port),
            roles: self.role,
            policy: self.policy,
            cluster: choice.cluster.clone(),
            local: choice.local.clone(),
            unselected: choice.unselected.clone(),
            falls_back: self.role != Roles::CLUSTER_IP,
            affinity_secs: asked.affinity_secs,
            balancing: context.balancing.cloned(),
            weights: asked.weights.clone(),
            returns_directly: asked.returns_directly && self.is_external(),
            on_interface: facts.is_on_interface(address),
            source_ranges: ranges.cloned(),
            node_may_use: facts.is_node_in(ranges.map(|ranges| &**ranges), family),
            port: common.cloned(),
        }
    }
}

/// Seconds that a client stays with its endpoint: from the policy, otherwise from the Service's own field.
fn affinity_of(balancing: Option<&Arc<Balancing>>, own: Option<u32>) -> Option<u32> {
    balancing.and_then(|balancing| balancing.persistence_secs).or(own)
}

/// Merges what a later row has for the address. The earlier row decides the policy; source ranges, which restrict, come
/// from either.
fn merge(known: &mut Frontend, new: &Frontend) {
    known.roles = known.roles | new.roles;
    known.returns_directly &= new.returns_directly;
    if known.source_ranges.is_none() {
        known.source_ranges.clone_from(&new.source_ranges);
        known.node_may_use = new.node_may_use;
    }
}
