//! Load-balancing annotations of a Service.

use std::num::NonZeroU32;
use std::sync::Arc;

use ipvs::model::{ForwardingMethod, Scheduler, SchedulerFlags};

use super::{Abilities, Annotation, Node, Rejection, Reporter, ZoneWeights, forwarding, weights};
use crate::objects::{IpvsDefaultsObject, StringMap};

/// Load balancing among a Service's endpoints, if it differs from the configuration. In IPVS mode the configuration can
/// set the same values for Services without annotations
/// ([`IpvsConfig::defaults`](crate::config::IpvsConfig::defaults)).
///
/// [`Annotation`](super::Annotation) lists them. If both names exist the first one counts. An invalid value is reported
/// and the configuration applies. An unknown annotation that begins with `proxier/` is reported, too.
///
/// `docs/policy.md` of the repository describes what each mode does with them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balancing {
    /// The scheduler.
    pub scheduler: Option<Scheduler>,
    /// Flags of the scheduler. `None`: its default flags.
    pub scheduler_flags: Option<SchedulerFlags>,
    /// Persistence: seconds that a client stays with its endpoint after its last connection.
    pub persistence_secs: Option<u32>,
    /// The weights of endpoints by zone. `None`: all equal.
    pub zone_weights: Option<ZoneWeights>,
    /// How packets for external addresses reach endpoints. `None`: masquerading.
    pub forwarding: Option<ForwardingMethod>,
    /// Connections of an endpoint, per address, above which it gets no new ones until it has less than three quarters
    /// of them. `None`: no limit.
    pub max_connections: Option<NonZeroU32>,
    /// Drain time: seconds that a removed endpoint may keep connections; 0: it loses them at once.
    pub drain_secs: Option<u32>,
    /// The annotation or configuration field that sets `forwarding`.
    pub(crate) forwarding_asked_by: &'static str,
}

const PREFIX: &str = "proxier/";

/// How endpoints share connections in modes other than IPVS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// At random or in rotation.
    Evenly,
    /// By a hash of the client's address, and its port if `port`.
    ByClient { port: bool },
}

fn path(name: &str) -> String {
    format!("metadata.annotations[{name}]")
}

/// Reports annotations with this project's prefix that nothing reads: a misspelled name, or one for another kind of
/// object.
fn report_unknown(annotations: &StringMap, report: &mut Reporter<'_>) {
    for (name, value) in annotations.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
        let is_read = Annotation::ALL.iter().any(|annotation| annotation.name == name);
        let reason = match name {
            weights::OF_ADDRESSES => "EndpointSlices have it, not Services; ignored",
            Node::WEIGHT => "Nodes have it, not Services; ignored",
            _ if is_read => continue,
            _ => "no annotation of this name is read; ignored",
        };
        report.reject(path(name), value, reason);
    }
}

/// Reports all policy annotations at once, in a mode without policy.
fn report_ignored(annotations: &StringMap, report: &mut Reporter<'_>) {
    let asked = Annotation::ALL.iter().filter_map(|annotation| Balancing::asked_by(annotation, annotations));
    let names: Vec<&str> = asked.collect();
    if !names.is_empty() {
        let (kind, key) = (report.kind, report.key.clone());
        let (field, value) = ("metadata.annotations".to_owned(), names.join(", "));
        report.rejections.push(Rejection { kind, key, field, value, reason: Abilities::IGNORED });
    }
}

/// The annotations of one Service, or the configuration's defaults.
struct Annotations<'a, 'r> {
    all: &'a StringMap,
    is_configuration: bool,
    report: &'a mut Reporter<'r>,
}

impl<'a> Annotations<'a, '_> {
    /// The name under which it is set, and its trimmed value.
    fn get(&self, annotation: &Annotation) -> Option<(&'static str, &'a str)> {
        annotation.names().find_map(|name| Some((name, self.all.get(name)?.trim())))
    }

    fn reject(&mut self, annotation: &Annotation, value: &str, reason: &'static str) {
        let name = self.get(annotation).map_or(annotation.name, |(name, _)| name);
        let path = if self.is_configuration { annotation.field.to_owned() } else { path(name) };
        self.report.reject(path, value, reason);
    }
}

impl Balancing {
    /// How endpoints share connections with this scheduler in modes other than IPVS.
    pub(crate) fn sharing(&self) -> Sharing {
        match self.scheduler {
            Some(scheduler @ (Scheduler::SourceHashing | Scheduler::MaglevHashing)) => {
                let usual = (scheduler == Scheduler::MaglevHashing).then_some(SchedulerFlags::MH_PORT);
                let flags = self.scheduler_flags.or(usual).unwrap_or_default();
                // Both schedulers use the same bit.
                Sharing::ByClient { port: flags.contains(SchedulerFlags::MH_PORT) }
            }
            _ => Sharing::Evenly,
        }
    }

    /// How modes other than IPVS choose the endpoint of a new client, in words, unless at random or in rotation.
    pub fn choice(&self) -> Option<&'static str> {
        match self.sharing() {
            Sharing::Evenly => None,
            Sharing::ByClient { port: false } => Some("by the client's address"),
            Sharing::ByClient { port: true } => Some("by the client's address and port"),
        }
    }

    /// Whether no scheduler is set, or one that rotates endpoints.
    pub(crate) fn asks_for_turns(&self) -> bool {
        matches!(self.scheduler, None | Some(Scheduler::RoundRobin | Scheduler::WeightedRoundRobin))
    }

    /// Whether the scheduler uses weights, not only 0.
    pub(crate) fn knows_weights(&self) -> bool {
        !matches!(self.scheduler, Some(Scheduler::RoundRobin | Scheduler::LeastConnection))
    }

    /// Whether a Service's annotation of this name is one of these.
    pub fn is_annotation(name: &str) -> bool {
        name.starts_with(PREFIX) || Annotation::ALL.iter().any(|annotation| annotation.names().any(|of| of == name))
    }

    /// The name under which this annotation is set: its own, otherwise kube-router's.
    pub fn asked_by(annotation: &Annotation, annotations: &StringMap) -> Option<&'static str> {
        annotation.names().find(|name| annotations.get(name).is_some())
    }

    /// Parses the annotations of a Service. `None`: nothing differs from the configuration.
    pub(super) fn check(
        annotations: &StringMap,
        has_affinity: bool,
        abilities: Abilities,
        report: &mut Reporter<'_>,
    ) -> Option<Arc<Self>> {
        // Most Services have none.
        if !annotations.iter().any(|(name, _)| Balancing::is_annotation(name)) {
            return None;
        }
        report_unknown(annotations, report);
        if abilities == Abilities::None {
            report_ignored(annotations, report);
            return None;
        }
        let mut given = Annotations { all: annotations, is_configuration: false, report };
        let mut balancing = Balancing::read(&mut given);
        for (annotation, reason) in abilities.limit(&mut balancing, has_affinity) {
            if let Some((_, value)) = given.get(annotation) {
                given.reject(annotation, value, reason);
            }
        }
        (balancing != Balancing::default()).then(|| Arc::new(balancing))
    }

    /// Parses the configuration's defaults for Services without such annotations. `None`: there are none.
    pub(crate) fn check_defaults(object: &IpvsDefaultsObject, report: &mut Reporter<'_>) -> Option<Arc<Self>> {
        let value = |of: &&'static Annotation| Some((of.name.to_owned(), (of.default)(object)?));
        let all: StringMap = Annotation::ALL.iter().filter_map(value).collect();
        let mut given = Annotations { all: &all, is_configuration: true, report };
        let mut balancing = Balancing::read(&mut given);
        if balancing.forwarding.is_some() {
            balancing.forwarding_asked_by = Annotation::FORWARDING.field;
        }
        (balancing != Balancing::default()).then(|| Arc::new(balancing))
    }

    /// The method by which endpoints reply to clients directly, if one is set.
    pub(crate) fn returning(&self) -> Option<ForwardingMethod> {
        self.forwarding.filter(|method| *method != ForwardingMethod::Masquerade)
    }

    /// The name of [`Balancing::forwarding`] in annotations: `direct-route`, `gue:6080`.
    pub fn forwarding_name(&self) -> Option<String> {
        self.forwarding.map(|method| forwarding::MethodName(method).to_string())
    }

    pub(crate) fn forwarding_field(&self) -> String {
        match self.forwarding_asked_by {
            field if field == Annotation::FORWARDING.field => field.to_owned(),
            annotation => path(annotation),
        }
    }

    fn read(given: &mut Annotations<'_, '_>) -> Self {
        let mut balancing = Balancing::default();
        for annotation in Annotation::ALL {
            if let Some((_, value)) = given.get(annotation) {
                let mut reject = |value: &str, reason| given.reject(annotation, value, reason);
                (annotation.parse)(&mut balancing, value, &mut reject);
            }
        }
        let asked_by = given.get(Annotation::FORWARDING).filter(|_| balancing.forwarding.is_some());
        balancing.forwarding_asked_by = asked_by.map(|(name, _)| name).unwrap_or_default();
        balancing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_of_other_programs_are_ignored() {
        for (name, is_one) in [
            ("proxier/scheduler", true),
            ("kube-router.io/service.scheduler", true),
            ("kube-router.io/service.dsr", true),
            ("kube-router.io/service.hairpin", false),
            ("example.com/proxier/scheduler", false),
        ] {
            assert_eq!(Balancing::is_annotation(name), is_one, "{name}");
        }
    }

    #[test]
    fn our_annotation_overrides_that_of_kube_router() {
        let (own, theirs) = ("proxier/scheduler", "kube-router.io/service.scheduler");
        let asked = |names: &[&str]| {
            let annotations = names.iter().map(|name| ((*name).to_owned(), "rr".to_owned())).collect();
            Balancing::asked_by(Annotation::SCHEDULER, &annotations)
        };
        assert_eq!(asked(&[theirs, own]), Some(own));
        assert_eq!(asked(&[theirs]), Some(theirs));
        assert_eq!(asked(&["proxier/drain-seconds", "kube-router.io/service.dsr"]), None);
    }
}
