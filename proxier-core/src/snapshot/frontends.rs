//! Frontends that an agent asks for by itself, without Kubernetes objects.

use std::sync::Arc;

use bitflags::bitflags;

use super::{Balancing, ObjectKey, ObjectKind, Rejection, Reporter, TrafficPolicy, is_usable, is_usable_by_service};
use crate::net::{EndpointKey, Family, FrontendKey, Network};

bitflags! {
    /// What kind of address of its Service a Frontend has.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Roles: u8 {
        /// Cluster IP: masqueraded only where the configuration says so.
        const CLUSTER_IP = 1;
        /// External IP: masqueraded, unless the policy is `Local`.
        const EXTERNAL_IP = 2;
        /// Address of a load balancer: as an external IP, and may have source ranges.
        const LOAD_BALANCER = 4;
        /// Address of this host, with a node port. Never bound to the dummy device.
        const NODE_PORT = 8;
    }
}

/// A Frontend with its endpoints, from an agent with a source of truth of its own
/// ([`Reconciler::upsert_frontends`](crate::reconciler::Reconciler::upsert_frontends)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrontendSpec {
    /// Protocol, address and port.
    pub key: FrontendKey,
    /// What kind of address this is. Default: a cluster IP.
    pub roles: Roles,
    /// Which endpoints get its traffic: `Cluster` (default) all, `Local` those on this node.
    pub policy: TrafficPolicy,
    /// The endpoints on all nodes.
    pub cluster: Vec<EndpointKey>,
    /// The endpoints on this node.
    pub local: Vec<EndpointKey>,
    /// How long a client stays with its endpoint, in seconds, 1 to 86,400. Default `None`: each connection is for itself.
    pub affinity_secs: Option<u32>,
    /// How connections are shared out, where that differs from the configuration. Default `None`: nowhere.
    pub balancing: Option<Arc<Balancing>>,
    /// The networks that may connect; default `None` for everybody. For addresses of load balancers only.
    pub source_ranges: Option<Vec<Network>>,
}

impl FrontendSpec {
    /// These endpoints behind this address and port, as a cluster IP.
    pub fn new(key: FrontendKey, endpoints: impl IntoIterator<Item = EndpointKey>) -> Self {
        FrontendSpec {
            key,
            roles: Roles::CLUSTER_IP,
            policy: TrafficPolicy::Cluster,
            cluster: endpoints.into_iter().collect(),
            local: Vec::new(),
            affinity_secs: None,
            balancing: None,
            source_ranges: None,
        }
    }

    /// Leaves out what cannot be served, and reports it; sorts the rest by key.
    pub(super) fn check(
        key: &ObjectKey,
        specs: impl IntoIterator<Item = FrontendSpec>,
        rejections: &mut Vec<Rejection>,
    ) -> Vec<FrontendSpec> {
        let mut report = Reporter::new(ObjectKind::Frontends, key.clone(), rejections);
        let mut checked: Vec<FrontendSpec> = Vec::new();
        for (index, mut spec) in specs.into_iter().enumerate() {
            spec.key.address = spec.key.address.to_canonical();
            let field = format!("[{index}]");
            let wrong = if !is_usable_by_service(spec.key.address) || spec.key.port == 0 {
                Some("not an address and port a Service can have; the Frontend is left out")
            } else if spec.source_ranges.is_some() && !spec.roles.contains(Roles::LOAD_BALANCER) {
                // A restriction that would not hold must not open access.
                Some("source ranges need the role of a load balancer; the Frontend is left out")
            } else if checked.iter().any(|earlier| earlier.key == spec.key) {
                Some("named twice; the first counts")
            } else {
                None
            };
            if let Some(wrong) = wrong {
                report.reject(field, spec.key, wrong);
                continue;
            }
            if spec.roles.is_empty() {
                spec.roles = Roles::CLUSTER_IP;
            }
            if let Some(secs) = spec.affinity_secs.filter(|secs| !(1..=86_400).contains(secs)) {
                report.reject(format!("{field}.affinity_secs"), secs, "not 1 to 86400 seconds; no affinity");
                spec.affinity_secs = None;
            }
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
            checked.push(spec);
        }
        checked.sort_unstable_by_key(|spec| spec.key);
        checked
    }
}
