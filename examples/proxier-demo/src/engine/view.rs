//! The state of the kernel's thread, for the status page.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ipvs::VirtualServerKey;
use proxier_core::modes::ipvs::Draining;
use proxier_core::net::FrontendKey;
use proxier_core::plan::report::Refused;
use proxier_core::service::{Frontend, Names};
use proxier_core::snapshot::{ObjectKey, ObjectKind};
use serde_json::json;

use crate::engine::{Engine, Kernel};
use crate::gather::Gather as _;
use crate::message::Begun;
use crate::message::view::{ServiceView, View, listed};

pub(crate) fn unreadable_line((kind, key, reason): (ObjectKind, &ObjectKey, &str)) -> String {
    format!("{}: {reason}", format_args!("{kind} {key}").to_string().trim_end())
}

impl<K: Kernel> Engine<K> {
    /// Connections and UDP flows that userspace mode has started; empty in the other modes.
    pub(crate) fn begun(&mut self) -> Vec<Begun> {
        let begun = self.kernel().ports().relays.begun();
        let names = Names::new(self.proxier().store(), self.proxier().desired());
        begun.into_iter().map(|(key, count)| (key, names.service_of(&key).unwrap_or_default(), count)).collect()
    }

    /// The current state. O(Frontends), a few milliseconds for ten thousand Services.
    pub(crate) fn view(&mut self) -> View {
        let begun = self.kernel().ports().relays.begun();
        let (proxier, now) = (self.proxier(), self.now());
        let (store, desired) = (proxier.store(), proxier.desired());
        let names = Names::new(store, desired);
        let lost: BTreeSet<_> = desired.conflicts().map(|conflict| (conflict.key, conflict.refused)).gather();
        let services = desired.all_compiled().map(|compiled| ServiceView {
            key: compiled.service.clone(),
            ports: store.service(&compiled.service).map(|service| service.ports.clone()).unwrap_or_default(),
            frontends: {
                let owned = |frontend: &&Arc<Frontend>| !lost.contains(&(frontend.key, &compiled.service));
                compiled.frontends().iter().filter(owned).cloned().collect()
            },
        });
        let drain = |draining: Draining| {
            let virtual_server = match (draining.virtual_server, proxier.frontend_of(&draining.virtual_server)) {
                (VirtualServerKey::Fwmark { .. }, Some(frontend)) => format!("{frontend}, clients outside"),
                (key, _) => key.to_string(),
            };
            json!({
                "virtualServer": virtual_server,
                "realServer": draining.real.to_string(),
                "seconds": now.saturating_sub(draining.since).as_secs(),
                "secondsLeft": draining.deadline.map(|deadline| deadline.saturating_sub(now).as_secs()),
                "connections": draining.connections,
            })
        };
        let refused = |refused: Refused| {
            let endpoint = refused.endpoint.map(|endpoint| endpoint.to_string());
            let (frontend, service, reason) = (refused.key.to_string(), refused.service, refused.reason);
            json!({"frontend": frontend, "service": service, "endpoint": endpoint, "reason": reason})
        };
        let unreadable = |(kind, key, reason): (ObjectKind, &ObjectKey, &str)| {
            let since = self.unreadable_since.get(&(kind, key.clone())).copied().unwrap_or(now);
            json!({"text": unreadable_line((kind, key, reason)), "seconds": now.saturating_sub(since).as_secs()})
        };
        let held = |(key, since): (FrontendKey, Duration)| {
            // Without a time it is removed only when that is confirmed.
            let left = proxier.held_until(&key, since).map(|until| until.saturating_sub(now).as_secs());
            let (service, seconds) = (names.service_of(&key), now.saturating_sub(since).as_secs());
            json!({"frontend": key.to_string(), "service": service, "seconds": seconds, "secondsLeft": left})
        };
        let lists = json!({
            "draining": listed(proxier.draining(), drain),
            "rejected": listed(proxier.rejections(), |of| of.to_string().into()),
            "refused": listed(proxier.refused(), refused),
            "unreadable": listed(store.unreadable(), unreadable),
            "heldBack": listed(proxier.held(), held),
        });
        let may_have = desired.frontends().filter(|frontend| frontend.can_split());
        let marks = may_have.filter_map(|frontend| Some((frontend.key, proxier.split(&frontend.key)?))).gather();
        View {
            marks,
            begun,
            node: proxier.node_name().to_owned(),
            mode: proxier.mode(),
            services: services.collect(),
            lists,
        }
    }
}
