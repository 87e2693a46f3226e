//! Frontends provided by an agent, without Kubernetes objects.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{
    Abilities, Balancing, CreationTime, MethodName, ObjectKey, ObjectKind, Rejection, Reporter, TrafficPolicy,
    is_usable, is_usable_by_service,
};
use crate::flags::flags;
use crate::net::{EndpointKey, Family, FrontendKey, Network};

flags! {
    /// Roles of a Frontend's address in its Service.
    pub struct Roles(u8) {
        /// Cluster IP: masqueraded only if configured.
        const CLUSTER_IP = 1;
        /// External IP: masqueraded, unless the policy is `Local`.
        const EXTERNAL_IP = 2;
        /// Address of a load balancer: like an external IP, and may have source ranges.
        const LOAD_BALANCER = 4;
        /// Address of this host with a node port. Never bound to the dummy device.
        const NODE_PORT = 8;
    }
}

/// Why direct return is refused: only masquerading can rewrite ports.
pub(crate) const OTHER_PORT: &str =
    "an endpoint's port differs from the Service's, which only masquerading rewrites; masquerade counts";

/// A Frontend with its endpoints, from an agent with its own source of truth
/// ([`Reconciler::upsert_frontends`](crate::engine::Reconciler::upsert_frontends)).
#[derive(Clone, Debug, PartialEq)]
pub struct FrontendSpec {
    /// Protocol, address and port.
    pub key: FrontendKey,
    /// Roles of this address. Default: a cluster IP.
    pub roles: Roles,
    /// Which endpoints get traffic: all of them with `Cluster` (default), those on this node with `Local`.
    pub policy: TrafficPolicy,
    /// The endpoints on all nodes.
    pub cluster: Vec<EndpointKey>,
    /// The endpoints on this node.
    pub local: Vec<EndpointKey>,
    /// Session affinity: seconds that a client stays with its endpoint, 1 to 86,400. Default `None`: no affinity.
    pub affinity_secs: Option<u32>,
    /// Load-balancing settings that differ from the configuration. Default `None`.
    pub balancing: Option<Arc<Balancing>>,
    /// Weights of endpoints, 0 to 65535, by address and port; missing ones have 1. Default none. If a weight is above
    /// 1, a configured scheduler `rr` or `lc`, which only distinguishes 0, becomes `wrr` or `wlc`. A scheduler set in
    /// [`balancing`](FrontendSpec::balancing), or one that has flags there, is kept.
    pub weights: Vec<(EndpointKey, u16)>,
    /// The networks that may connect; default `None` for all clients. Only for load-balancer addresses.
    pub source_ranges: Option<Vec<Network>>,
    /// Number of the agent's call that began to ask for this key; later calls that ask for it again keep the number.
    pub(crate) asked: u64,
}

impl FrontendSpec {
    /// A cluster IP with these endpoints.
    pub fn new(key: FrontendKey, endpoints: impl IntoIterator<Item = EndpointKey>) -> Self {
        FrontendSpec {
            key,
            roles: Roles::CLUSTER_IP,
            policy: TrafficPolicy::Cluster,
            cluster: endpoints.into_iter().collect(),
            local: Vec::new(),
            affinity_secs: None,
            balancing: None,
            weights: Vec::new(),
            source_ranges: None,
            asked: 0,
        }
    }

    pub(crate) fn created(&self) -> CreationTime {
        CreationTime::of_agent(self.asked)
    }

    /// Why its packets can only be forwarded by masquerading; see [`Balancing`].
    pub(crate) fn why_only_masqueraded(&self) -> Option<&'static str> {
        let has_other_port = |endpoint: &EndpointKey| endpoint.port != self.key.port;
        if self.roles.intersects(Roles::CLUSTER_IP | Roles::NODE_PORT) {
            Some("for external and load-balancer addresses only; masquerade counts")
        } else if self.cluster.iter().chain(&self.local).any(has_other_port) {
            Some(OTHER_PORT)
        } else {
            None
        }
    }

    /// Removes and reports what cannot be served; sorts the rest by key.
    pub(super) fn check(
        key: &ObjectKey,
        specs: impl IntoIterator<Item = FrontendSpec>,
        abilities: Abilities,
        rejections: &mut Vec<Rejection>,
    ) -> Vec<FrontendSpec> {
        let mut report = Reporter { kind: ObjectKind::Frontends, key, rejections };
        let (mut checked, mut named) = (Vec::new(), BTreeSet::new());
        for (index, mut spec) in specs.into_iter().enumerate() {
            spec.key.address = spec.key.address.to_canonical();
            let field = format!("[{index}]");
            let wrong = if !is_usable_by_service(spec.key.address) || spec.key.port == 0 {
                Some("not an address and port a Service can have; the Frontend is left out")
            } else if spec.source_ranges.is_some() && !spec.roles.contains(Roles::LOAD_BALANCER) {
                // A restriction that would have no effect must not open access.
                Some("source ranges need the role of a load balancer; the Frontend is left out")
            } else if !named.insert(spec.key) {
                Some("named twice; the first counts")
            } else {
                None
            };
            if let Some(wrong) = wrong {
                report.reject(field, spec.key, wrong);
                continue;
            }
            if spec.roles == Roles::empty() {
                spec.roles = Roles::CLUSTER_IP;
            }
            if let Some(secs) = spec.affinity_secs.filter(|secs| !(1..=86_400).contains(secs)) {
                report.reject(format!("{field}.affinity_secs"), secs, "not 1 to 86400 seconds; no affinity");
                spec.affinity_secs = None;
            }
            if abilities == Abilities::None && (spec.balancing.is_some() || !spec.weights.is_empty()) {
                report.reject(field.clone(), "balancing, weights", Abilities::IGNORED);
                (spec.balancing, spec.weights) = (None, Vec::new());
            }
            let weighed = spec.weights.iter_mut().map(|(endpoint, _)| endpoint);
            let endpoints = spec.cluster.iter_mut().chain(&mut spec.local).chain(weighed);
            endpoints.for_each(|endpoint| endpoint.address = endpoint.address.to_canonical());
            spec.weights.sort_by_key(|(endpoint, _)| *endpoint);
            spec.weights.dedup_by_key(|(endpoint, _)| *endpoint);
            let family = spec.key.family();
            for (list, name) in [(&mut spec.cluster, "cluster"), (&mut spec.local, "local")] {
                list.retain(|endpoint| {
                    let fits = Family::of(endpoint.address) == family;
                    let good = fits && is_usable(endpoint.address) && endpoint.port != 0;
                    if !good {
                        let reason = "not an endpoint that this Frontend can have; the endpoint is left out";
                        report.reject(format!("{field}.{name}"), endpoint, reason);
                    }
                    good
                });
                list.sort_unstable();
                list.dedup();
            }
            if let Some(balancing) = &mut spec.balancing {
                let mut limited = (**balancing).clone();
                for (annotation, reason) in abilities.limit(&mut limited, spec.affinity_secs.is_some()) {
                    report.reject(format!("{field}.balancing"), annotation.name, reason);
                }
                if limited != **balancing {
                    *balancing = Arc::new(limited);
                }
            }
            if let Some(method) = spec.balancing.as_ref().and_then(|balancing| balancing.returning())
                && let Some(reason) = spec.why_only_masqueraded()
            {
                report.reject(format!("{field}.balancing.forwarding"), MethodName(method), reason);
                Arc::make_mut(spec.balancing.get_or_insert_default()).forwarding = None;
            }
            checked.push(spec);
        }
        checked.sort_unstable_by_key(|spec: &FrontendSpec| spec.key);
        checked
    }
}
