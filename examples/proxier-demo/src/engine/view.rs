//! The state of the kernel's thread, for the status page.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ipvs::VirtualServerKey;
use proxier_core::modes::Names;
use proxier_core::modes::ipvs::Draining;
use proxier_core::service::Frontend;
use proxier_core::snapshot::{ObjectKey, ObjectKind};

use crate::engine::{Engine, Kernel};
use crate::message::Begun;
use crate::message::view::{DrainView, HeldView, ServiceView, UnreadableView, View};

/// An unreadable object and the reason.
pub(crate) fn unreadable_line((kind, key, reason): (ObjectKind, &ObjectKey, &str)) -> String {
    format!("{}: {reason}", format_args!("{kind} {key}").to_string().trim_end())
}

impl<K: Kernel> Engine<K> {
    /// Connections and UDP flows that userspace mode has started; empty in the other modes.
    pub(crate) fn begun(&mut self) -> Vec<Begun> {
        let begun = self.kernel().ports().relays.begun();
        let names = Names::new(self.proxier().store(), self.proxier().desired());
        begun.into_iter().map(|(key, count)| (key, names.service_of(&key), count)).collect()
    }

    /// The current state. O(Frontends), a few milliseconds for ten thousand Services.
    pub(crate) fn view(&mut self) -> View {
        let begun = self.kernel().ports().relays.begun();
        let (proxier, now) = (self.proxier(), self.now());
        let (store, desired) = (proxier.store(), proxier.desired());
        let names = Names::new(store, desired);
        let lost: BTreeSet<_> = desired.conflicts().map(|conflict| (conflict.key, conflict.refused)).collect();
        let services = desired.all_compiled().map(|compiled| ServiceView {
            key: compiled.service.clone(),
            ports: store.service(&compiled.service).map(|service| service.ports.clone()).unwrap_or_default(),
            frontends: {
                let owned = |frontend: &&Arc<Frontend>| !lost.contains(&(frontend.key, &compiled.service));
                compiled.frontends().iter().filter(owned).cloned().collect()
            },
        });
        let drain = |draining: Draining| DrainView {
            virtual_server: match (draining.virtual_server, proxier.frontend_of(&draining.virtual_server)) {
                (VirtualServerKey::Fwmark { .. }, Some(frontend)) => format!("{frontend}, clients outside"),
                (key, _) => key.to_string(),
            },
            real_server: draining.real.to_string(),
            since: now.saturating_sub(draining.since),
            left: draining.deadline.map(|deadline| deadline.saturating_sub(now)),
            connections: draining.connections,
        };
        let held = proxier.held();
        let may_have = desired.frontends().filter(|frontend| frontend.can_split());
        let marks = may_have.filter_map(|frontend| Some((frontend.key, proxier.split(&frontend.key)?))).collect();
        View {
            marks,
            begun,
            node: proxier.node_name().to_owned(),
            mode: proxier.mode(),
            services: services.collect(),
            drains: proxier.draining().map(drain).collect(),
            rejected: proxier.rejections().map(ToString::to_string).collect(),
            refused: proxier.refused().collect(),
            unreadable: store
                .unreadable()
                .map(|(kind, key, reason)| {
                    let noted = self.unreadable_since.get(&(kind, key.clone()));
                    let since = noted.map_or(Duration::ZERO, |noted| now.saturating_sub(*noted));
                    UnreadableView { text: unreadable_line((kind, key, reason)), since }
                })
                .collect(),
            held: held
                .map(|(key, since)| {
                    let left = proxier.held_until(&key, since).map(|until| until.saturating_sub(now));
                    HeldView { key, service: names.service_of(&key), since: now.saturating_sub(since), left }
                })
                .collect(),
        }
    }
}
