//! Node ports on loopback addresses in nftables mode. This process listens there for TCP and passes connections on.
//! Without `route_localnet` the kernel sends no packet from a loopback address to an endpoint, and for IPv6 it never
//! does. Rules refuse other protocols.
//!
//! A listener is open while its Service port has endpoints. If one cannot be opened because another program uses the
//! port, this is reported, counted, and retried in full passes, and nothing else fails. Connections end with this
//! process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::config::Config;
use crate::modes::shared::listeners::{ListenerChange, lower};
use crate::modes::{Kind, Pass, nftables};
use crate::net::{Family, FrontendKey, Protocol};
use crate::pack::Gather as _;
use crate::plan::operation::Operation;
use crate::plan::report::{Applied, Lack, Report};
use crate::plan::step::Names;
use crate::ports::{Listener, PortError, PortErrorKind, Ports, Settings};
use crate::service::{Desired, Frontend};

/// Whether connections to a Frontend of nftables mode end in this process.
pub(crate) fn is_relayed(key: &FrontendKey) -> bool {
    key.address.is_loopback() && key.protocol == Protocol::Tcp
}

/// The state of node ports on loopback addresses in nftables mode
/// ([`Reconciler::localhost_node_ports`](crate::engine::Reconciler::localhost_node_ports)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalhostNodePorts {
    /// Open listeners, by family.
    pub listeners: BTreeMap<Family, u64>,
    /// Failed attempts to open a listener since the process started, by family.
    pub creation_failures: BTreeMap<Family, u64>,
    /// UDP and SCTP packets that rules refused since the table has had these rules, as of the last full pass.
    pub rejected: BTreeMap<(Family, Protocol), u64>,
}

/// The listener of a Frontend, if it accepts clients. All clients are this node. Endpoints are used in rotation, except
/// those with weight 0.
fn listener(desired: &Desired, key: &FrontendKey) -> Option<Listener> {
    let frontend: &Frontend = desired.frontend(key)?;
    let owner = desired.owner(key).map(ToString::to_string).unwrap_or_default();
    let mut listener = Listener { group: format!("{owner} {key}").into(), ..lower(frontend)? };
    listener.inside = listener.inside.iter().filter(|endpoint| frontend.takes(&[**endpoint])).copied().collect();
    listener.outside = Arc::clone(&listener.inside);
    Some(listener).filter(Listener::serves_anybody)
}

impl LocalhostNodePorts {
    /// `None` where no node ports are served on loopback addresses by this process.
    pub(crate) fn new(mode: Kind, config: &Config) -> Option<Self> {
        let asked = &config.node_port_addresses;
        let is_named = Family::ALL.into_iter().any(|family| asked.names_localhost(family));
        (mode == Kind::Nftables && is_named).then(Self::default)
    }

    /// The changes to the desired listeners: all in a full pass, otherwise those of changed Frontends.
    pub(crate) fn plan(&mut self, pass: &Pass<'_>, report: &mut Report, ports: &mut Ports<'_>) -> Vec<ListenerChange> {
        if !pass.families().any(|family| pass.facts.serves_localhost(family)) {
            return Vec::new();
        }
        report.notices.extend(ports.relays.notices());
        let changed = pass.changes.frontends().map(|(key, _)| key);
        let all = pass.desired.frontends().map(|frontend| &frontend.key).filter(|_| pass.full);
        let mut keys: BTreeSet<FrontendKey> = changed.chain(all).filter(|key| is_relayed(key)).copied().gather();
        if keys.is_empty() && !pass.full {
            return Vec::new();
        }
        let there = ports.relays.listeners();
        if pass.full {
            keys.extend(there.keys());
            self.rejected = nftables::rejected_at_localhost(pass.facts, ports.tables);
        }
        let elsewhere = ports.relays.elsewhere().unwrap_or_default();
        let change = |key: FrontendKey| {
            let (wanted, there) = (listener(pass.desired, &key), there.get(&key));
            let is_open_elsewhere = wanted.is_some() && there.is_none() && elsewhere.contains(&key);
            let is_same = wanted.as_ref() == there || is_open_elsewhere;
            ListenerChange::new(key, wanted, there.is_some()).filter(|_| !is_same)
        };
        keys.into_iter().filter_map(change).collect()
    }

    pub(crate) fn apply(
        &mut self,
        changes: &[ListenerChange],
        names: &Names<'_>,
        applied: &mut Applied,
        ports: &mut Ports<'_>,
    ) {
        if changes.is_empty() {
            return;
        }
        if let Err(error) = ports.relays.configure(&Settings::default()) {
            applied.lacks.push(Lack::new("node ports on loopback addresses are not served", error));
            return;
        }
        let others = applied.failures.len();
        let outcomes = applied.carry_out(changes.iter().map(ListenerChange::operation), names, ports);
        // Whatever the reason, it affects only this port.
        for failure in applied.failures.iter_mut().skip(others) {
            failure.error = PortError::new(PortErrorKind::Other, &failure.error);
        }
        for (operation, _) in outcomes.into_iter().filter(|(_, is_done)| !is_done) {
            if let Operation::Listener(_, key, _) = operation {
                let failures = self.creation_failures.entry(key.family()).or_default();
                *failures = failures.saturating_add(1);
            }
        }
        let open = ports.relays.listeners();
        let of = |family| open.keys().filter(|key| key.family() == family).count();
        let count = |family| (family, u64::try_from(of(family)).unwrap_or(u64::MAX));
        self.listeners = Family::ALL.map(count).into();
    }
}
