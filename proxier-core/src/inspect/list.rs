//! Lists all Frontends that a kernel serves, with their endpoints. Only reads.

use std::collections::BTreeMap;

use crate::modes::inspection::ServedFrontend;
use crate::modes::localhost_relay::is_relayed;
use crate::modes::{Kind, iptables, nftables};
use crate::net::{Family, FrontendKey};
use crate::pack::Gather as _;
use crate::ports::{Listener, PortError, PortErrorKind, Ports, Result, RouteOwner};
use crate::service::{Desired, NodeFacts};

/// Reads the Frontends that a mode serves. In iptables mode a node port is at address 0.0.0.0 or `::`, because its
/// rules are for every address of the node.
///
/// # Errors
/// The state could not be read completely. [`Unavailable`](PortErrorKind::Unavailable) in IPVS mode, whose virtual
/// servers [`Ipvs::snapshot`](crate::ports::Ipvs::snapshot) returns.
pub fn list_frontends(
    mode: Kind,
    facts: &NodeFacts,
    desired: &Desired,
    ports: &mut Ports<'_>,
) -> Result<BTreeMap<FrontendKey, ServedFrontend>> {
    let mut all = BTreeMap::new();
    match mode {
        Kind::Nftables => {
            all = nftables::list_frontends(facts, ports.tables)?;
            all.extend(sockets(desired, ports)?.into_iter().filter(|(key, _)| is_relayed(key)));
        }
        Kind::Iptables => {
            for family in Family::ALL {
                all.extend(iptables::list_frontends(&ports.rules.dump(family)?, family));
            }
        }
        Kind::Userspace => all = sockets(desired, ports)?,
        Kind::Ipvs => {
            return Err(PortError::new(PortErrorKind::Unavailable, "in IPVS mode virtual servers are what is served"));
        }
    }
    Ok(all)
}

/// The listeners of this process; for another process, the sockets that serve Services.
fn sockets(desired: &Desired, ports: &mut Ports<'_>) -> Result<BTreeMap<FrontendKey, ServedFrontend>> {
    let Some(elsewhere) = ports.relays.elsewhere() else {
        let listeners = ports.relays.listeners().into_values();
        let endpoints = |listener: &Listener| {
            let lists = [Some(&listener.inside), Some(&listener.outside), listener.unselected.as_ref()];
            Some(lists.into_iter().flatten().flat_map(|list| list.iter().copied()).gather())
        };
        let begun = ports.relays.begun();
        let served = |listener: &Listener| ServedFrontend {
            endpoints: endpoints(listener),
            connections: begun.get(&listener.key).copied(),
        };
        return Ok(listeners.map(|listener| (listener.key, served(&listener))).gather());
    };
    let networks = ports.routes.networks(RouteOwner::Userspace)?;
    let is_service = |key: &FrontendKey| {
        desired.frontend(key).is_some() || networks.keys().any(|network| network.contains(&key.address))
    };
    Ok(elsewhere.into_iter().filter(is_service).map(|key| (key, ServedFrontend::default())).gather())
}
