//! The settings that apply to a Service, and where each comes from, for `explain`.

use std::collections::BTreeSet;

use proxier_core::config::{Binding, MayAskFor, Topology};
use proxier_core::engine::Reconciler;
use proxier_core::modes::Kind;
use proxier_core::modes::ipvs as ipvs_mode;
use proxier_core::objects::{ServiceObject, ServiceSpec};
use proxier_core::service::Frontend;
use proxier_core::snapshot::{Annotation, Balancing, Roles, Service, TrafficPolicy};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(super) struct Policy {
    pub(super) what: &'static str,
    pub(super) value: String,
    pub(super) from: String,
}

impl Policy {
    fn new(what: &'static str, value: impl Into<String>, from: impl Into<String>) -> Self {
        Policy { what, value: value.into(), from: from.into() }
    }
}

/// The settings that apply to a Service. `owned`: its Frontends.
pub(super) fn policies(
    service: &Service,
    object: Option<&ServiceObject>,
    owned: &[&Frontend],
    proxier: &Reconciler,
) -> Vec<Policy> {
    let config = proxier.facts().config();
    let given = |field: &str, text: fn(&ServiceSpec) -> &Option<String>| {
        let text = object.and_then(|object| text(&object.spec).as_deref()).unwrap_or_default();
        if text.is_empty() { "default".to_owned() } else { format!("spec.{field}") }
    };
    let internal = given("internalTrafficPolicy", |spec| &spec.internal_traffic_policy);
    let external = given("externalTrafficPolicy", |spec| &spec.external_traffic_policy);
    let mut policies = vec![
        Policy::new("internal traffic policy", policy_name(service.internal_policy), internal),
        Policy::new("external traffic policy", policy_name(service.external_policy), external),
    ];
    let of_service = match service.affinity_secs {
        Some(secs) => Policy::new("session affinity", format!("{secs} s"), "spec.sessionAffinity"),
        None => Policy::new("session affinity", "none", given("sessionAffinity", |spec| &spec.session_affinity)),
    };
    let counts = config.ipvs.balancing(service.balancing.as_ref(), service.affinity_secs.is_some());
    let question = PolicyQuestion {
        service,
        object,
        owned,
        proxier,
        said: service.balancing.as_deref().cloned().unwrap_or_default(),
        defaults: config.ipvs.defaults.as_deref().cloned().unwrap_or_default(),
        counts: counts.as_deref().cloned().unwrap_or_default(),
    };
    policies.push(affinity(&question, of_service));
    match proxier.mode() {
        Kind::Ipvs => policies.extend(of_ipvs(&question)),
        Kind::Nftables => {
            policies.extend([choice(&question), weights(&question)]);
            policies.extend(question.said.drain_secs.map(|_| drain(&question)));
        }
        // Policy annotations are ignored.
        mode => policies.push(Policy::new("choice of endpoints", mode.facts().choice, "default")),
    }
    let (value, from) = match (config.topology, service.topology_annotation) {
        (Topology::Hints, _) => ("used where every ready endpoint has them", "default"),
        (Topology::AnnotatedHints, true) => ("used where every ready endpoint has them", "annotation of the Service"),
        (Topology::AnnotatedHints, false) => ("not used", "no annotation of the Service"),
    };
    policies.push(Policy::new("topology hints", value, from));
    policies
}

pub(super) fn policy_name(policy: TrafficPolicy) -> &'static str {
    if policy == TrafficPolicy::Local { "Local" } else { "Cluster" }
}

/// The Service in question, and the objects that decide about it.
struct PolicyQuestion<'a> {
    service: &'a Service,
    object: Option<&'a ServiceObject>,
    owned: &'a [&'a Frontend],
    proxier: &'a Reconciler,
    /// Values of the annotations, allowed or not.
    said: Balancing,
    /// Values of the configuration.
    defaults: Balancing,
    /// Values in effect.
    counts: Balancing,
}

impl PolicyQuestion<'_> {
    /// The setting of an annotation, and where it comes from.
    fn policy(&self, annotation: &Annotation, value: impl Into<String>) -> Policy {
        Policy::new(annotation.title, value, self.from(annotation))
    }

    /// Where an annotation's setting comes from.
    fn from(&self, annotation: &Annotation) -> String {
        let is_ipvs = self.proxier.mode().facts().has_virtual_servers;
        let is_scheduler = is_ipvs && annotation.name == Annotation::SCHEDULER.name;
        let is_field = is_scheduler || annotation.is_set(&self.defaults);
        let base = if is_field { format!("configuration {}", annotation.field) } else { "default".to_owned() };
        if !annotation.is_set(&self.said) {
            return base;
        }
        let annotations = self.object.map(|object| &object.metadata.annotations);
        let name = annotations.and_then(|all| Balancing::asked_by(annotation, all)).unwrap_or(annotation.name);
        if self.proxier.facts().config().ipvs.may_ask_for.contains(annotation.needs) {
            format!("annotation {name}")
        } else {
            format!("{base}; annotation {name} is not allowed")
        }
    }
}

/// How long clients stay with their endpoints. `of_service`: by the Service's own field.
fn affinity(asked: &PolicyQuestion<'_>, of_service: Policy) -> Policy {
    let from = asked.from(Annotation::PERSISTENCE);
    match asked.counts.persistence_secs {
        Some(secs) => Policy::new(Annotation::PERSISTENCE.title, format!("{secs} s"), from),
        None if from.contains("not allowed") => {
            let reason = from.split_once("; ").map_or("", |(_, reason)| reason).to_owned();
            Policy { from: format!("{}; {reason}", of_service.from), ..of_service }
        }
        None => of_service,
    }
}

/// How a new client gets its endpoint, outside of IPVS mode.
fn choice(asked: &PolicyQuestion<'_>) -> Policy {
    let usual = asked.proxier.mode().facts().choice;
    let from = asked.from(Annotation::SCHEDULER);
    let value = match asked.counts.scheduler {
        Some(scheduler) => format!("{scheduler}: {}", asked.counts.choice().unwrap_or(usual)),
        None => usual.to_owned(),
    };
    Policy::new("choice of endpoints", value, from)
}

fn of_ipvs(asked: &PolicyQuestion<'_>) -> Vec<Policy> {
    let PolicyQuestion { owned, proxier, counts, .. } = asked;
    let config = proxier.facts().config();
    let scheduler = counts.scheduler.unwrap_or(config.ipvs.scheduler);
    let server = owned.iter().find_map(|frontend| proxier.virtual_server(&frontend.key));
    let flags = server.map(|server| server.scheduler_flags.names(scheduler).join(",")).unwrap_or_default();
    let from = asked.from(Annotation::SCHEDULER_FLAGS);
    let from = if counts.scheduler_flags.is_none() && from.starts_with("configuration") {
        format!("default; {from} go with ipvs.scheduler")
    } else {
        from
    };
    vec![
        asked.policy(Annotation::SCHEDULER, scheduler.to_string()),
        Policy::new(Annotation::SCHEDULER_FLAGS.title, if flags.is_empty() { "none" } else { &flags }, from),
        weights(asked),
        forwarding(asked),
        asked.policy(
            Annotation::MAX_CONNECTIONS,
            counts.max_connections.map_or_else(|| "none".to_owned(), |most| format!("at most {most}")),
        ),
        drain(asked),
        binding(proxier),
        mark_split(asked),
    ]
}

/// How long removed endpoints keep their connections.
fn drain(asked: &PolicyQuestion<'_>) -> Policy {
    let usual = ipvs_mode::Policy::default().deadline.filter(|_| asked.proxier.mode().facts().has_virtual_servers);
    let value = match asked.counts.drain_secs.map(u64::from).or(usual.map(|time| time.as_secs())) {
        Some(secs) => format!("{secs} s"),
        None => "as always in this mode".to_owned(),
    };
    asked.policy(Annotation::DRAIN, value)
}

fn weights(asked: &PolicyQuestion<'_>) -> Policy {
    let PolicyQuestion { service, proxier, counts, .. } = asked;
    let (store, facts) = (proxier.store(), proxier.facts());
    let (mut values, mut from) = (Vec::new(), Vec::new());
    let slices: BTreeSet<String> =
        store.slices_of(&service.key).filter(|slice| slice.has_weights()).map(|slice| slice.key.to_string()).collect();
    if !slices.is_empty() {
        let name = format!("annotation proxier/weights of {}", Vec::from_iter(slices).join(", "));
        if facts.config().ipvs.may_ask_for.contains(MayAskFor::WEIGHTS) {
            values.push("by endpoint".to_owned());
            from.push(name);
        } else {
            from.push(format!("{name} is not allowed"));
        }
    }
    let by_zone = asked.from(Annotation::ZONE_WEIGHTS);
    if let Some(zones) = &counts.zone_weights {
        values.push(format!("by zone: {zones}"));
    }
    if by_zone != "default" {
        from.push(by_zone);
    }
    if !facts.node_weights().is_empty() {
        values.push("by node".to_owned());
        from.push("annotation or label proxier/weight of Nodes".to_owned());
    }
    let or = |list: Vec<String>, nothing: &str| if list.is_empty() { nothing.to_owned() } else { list.join("; ") };
    Policy::new(Annotation::ZONE_WEIGHTS.title, or(values, "all the same"), or(from, "default"))
}

fn forwarding(asked: &PolicyQuestion<'_>) -> Policy {
    let is_external = |frontend: &&&Frontend| frontend.roles.intersects(Roles::EXTERNAL_IP | Roles::LOAD_BALANCER);
    let external: Vec<_> = asked.owned.iter().filter(is_external).collect();
    let direct = external.iter().filter(|frontend| frontend.returns_directly).count();
    let value = match asked.counts.forwarding_name() {
        None => "masquerade".to_owned(),
        Some(name) if name == "masquerade" => name,
        Some(name) => {
            format!("{name} at {direct} of {} external addresses and ports, masquerade elsewhere", external.len())
        }
    };
    asked.policy(Annotation::FORWARDING, value)
}

fn binding(proxier: &Reconciler) -> Policy {
    let config = proxier.facts().config();
    let value =
        if config.binds_by_routes() { "by routes".to_owned() } else { format!("addresses of {}", config.names.device) };
    let from = if config.ipvs.binding == Binding::Routes { "configuration ipvs.binding" } else { "default" };
    Policy::new("binding", value, from)
}

fn mark_split(asked: &PolicyQuestion<'_>) -> Policy {
    let PolicyQuestion { service, owned, proxier, .. } = asked;
    let config = proxier.facts().config();
    let what = "mark split";
    if !config.ipvs.mark_split {
        return Policy::new(what, "no", "default");
    }
    let from = "configuration ipvs.markSplit";
    if !config.splits_local() {
        return Policy::new(what, "no: needs ipvs.rules: nftables", from);
    }
    let mut parts = Vec::new();
    match owned.iter().filter(|frontend| proxier.split(&frontend.key).is_some()).count() {
        0 => {}
        count => parts.push(format!("yes, at {count} addresses and ports")),
    }
    let unmarked = proxier.unmarked().filter(|of| of.service == service.key);
    parts.extend(unmarked.map(|of| format!("not at {} addresses and ports: {}", of.frontends.len(), of.reason)));
    let nothing = "nothing to split: no external address or node port with policy Local";
    Policy::new(what, if parts.is_empty() { nothing.to_owned() } else { parts.join("; ") }, from)
}
