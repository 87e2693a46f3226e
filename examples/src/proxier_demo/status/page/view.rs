//! What the kernel's thread knows, at one moment. Made on request only, from values that are shared and not copied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ipvs::VirtualServerKey;
use proxier_core::modes::Kind;
use proxier_core::modes::ipvs::drain::Drains;
use proxier_core::modes::shared::names::Names;
use proxier_core::modes::userspace::{NO_SCTP, lower};
use proxier_core::net::FrontendKey;
use proxier_core::service::Frontend;
use proxier_core::snapshot::{ObjectKey, ServicePort};

use crate::proxier_demo::engine::{Engine, Kernel};

/// How many lines of a list are shown; all of them are counted.
const LINES: usize = 100;

/// The first lines of a list, and how many there are.
#[derive(Clone, Debug)]
pub(crate) struct Lines<T> {
    pub(crate) count: usize,
    pub(crate) first: Vec<T>,
}

impl<T> FromIterator<T> for Lines<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut lines = Lines { count: 0, first: Vec::new() };
        for line in all {
            if lines.count < LINES {
                lines.first.push(line);
            }
            lines.count = lines.count.saturating_add(1);
        }
        lines
    }
}

/// A Service and the Frontends that it owns.
#[derive(Clone, Debug)]
pub(crate) struct ServiceView {
    pub(crate) key: ObjectKey,
    /// For the names of ports.
    pub(crate) ports: Vec<ServicePort>,
    pub(crate) frontends: Vec<Arc<Frontend>>,
}

/// A Frontend that a Service asks for and does not get.
#[derive(Clone, Debug)]
pub(crate) struct RefusedView {
    pub(crate) key: FrontendKey,
    pub(crate) service: String,
    pub(crate) reason: String,
}

/// A real server that drains.
#[derive(Clone, Debug)]
pub(crate) struct DrainView {
    pub(crate) virtual_server: String,
    pub(crate) real_server: String,
    pub(crate) since: Duration,
    /// Until it goes whatever connections it has.
    pub(crate) left: Option<Duration>,
    pub(crate) connections: Option<u64>,
}

/// A Frontend that stays although it, or its last endpoint, should go.
#[derive(Clone, Debug)]
pub(crate) struct HeldView {
    pub(crate) key: FrontendKey,
    pub(crate) service: Option<String>,
    pub(crate) since: Duration,
}

/// Everything that the status page shows of the reconciler.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) node: String,
    pub(crate) mode: Kind,
    /// Sorted by name.
    pub(crate) services: Vec<ServiceView>,
    pub(crate) drains: Lines<DrainView>,
    pub(crate) rejected: Lines<String>,
    pub(crate) refused: Lines<RefusedView>,
    pub(crate) held: Lines<HeldView>,
    /// Virtual servers of marks by their Frontends: those that only clients outside get, and those of shared node ports.
    pub(crate) marks: BTreeMap<FrontendKey, VirtualServerKey>,
}

impl View {
    /// Costs O(Frontends), a few milliseconds for ten thousand Services.
    pub(crate) fn of(engine: &Engine<impl Kernel>) -> Self {
        let (proxier, now) = (engine.proxier(), engine.now());
        let (store, desired) = (proxier.store(), proxier.desired());
        let names = Names::new(store, desired);
        let lost: BTreeSet<_> = desired.conflicts().map(|conflict| (conflict.key, conflict.refused)).collect();
        let services = desired.all_compiled().map(|compiled| ServiceView {
            key: compiled.service.clone(),
            ports: store.service(&compiled.service).map(|service| service.ports.clone()).unwrap_or_default(),
            frontends: {
                let owned = |frontend: &&Arc<Frontend>| !lost.contains(&(frontend.key, &compiled.service));
                compiled.frontends.iter().filter(owned).cloned().collect()
            },
        });
        let drain = |draining: proxier_core::modes::ipvs::drain::Draining| DrainView {
            virtual_server: match (draining.virtual_server, proxier.frontend_of(&draining.virtual_server)) {
                (VirtualServerKey::Fwmark { .. }, Some(frontend)) if frontend.address.is_unspecified() => {
                    format!("{frontend}, every address of the node")
                }
                (VirtualServerKey::Fwmark { .. }, Some(frontend)) => format!("{frontend}, clients outside"),
                (key, _) => key.to_string(),
            },
            real_server: draining.real.to_string(),
            since: now.saturating_sub(draining.since),
            left: draining.deadline.map(|deadline| deadline.saturating_sub(now)),
            connections: draining.connections,
        };
        let refused = proxier.refused();
        let refused =
            refused.map(|refused| RefusedView { key: refused.key, service: refused.service, reason: refused.reason });
        let is_unserved = |frontend: &&Frontend| proxier.mode() == Kind::Userspace && lower(frontend).is_none();
        let unserved = desired.frontends().filter(is_unserved).map(|frontend| RefusedView {
            key: frontend.key,
            service: names.service_of(&frontend.key).unwrap_or_default(),
            reason: NO_SCTP.to_owned(),
        });
        let held = proxier.safeguard().held();
        let mark = |key: &FrontendKey| proxier.split(key).or_else(|| proxier.shared(key));
        let may_have = desired.frontends().filter(|frontend| frontend.can_split() || frontend.can_share());
        let marks = may_have.filter_map(|frontend| Some((frontend.key, mark(&frontend.key)?))).collect();
        View {
            marks,
            node: proxier.node_name().to_owned(),
            mode: proxier.mode(),
            services: services.collect(),
            drains: proxier.drains().into_iter().flat_map(Drains::iter).map(drain).collect(),
            rejected: proxier.rejections().map(ToString::to_string).collect(),
            refused: refused.chain(unserved).collect(),
            held: held
                .map(|(key, since)| HeldView { key, service: names.service_of(&key), since: now.saturating_sub(since) })
                .collect(),
        }
    }
}
