//! Reads the Frontends that other modes serve, before their objects are removed ([`cleanup`](super::cleanup)).

use std::collections::BTreeMap;

use ::iptables::Backend;

use super::cleanup::Serving;
use super::shared::cleaned::ServedFrontends;
use super::{Kind, iptables, ipvs, nftables};
use crate::config::KernelNames;
use crate::net::FrontendKey;
use crate::ports::{PortError, Ports, Tables};
use crate::service::NodeFacts;

/// The Frontends that tables of other proxies serve, proxies of this kind with other names, and the name of the table.
///
/// # Errors
/// Tables could not be listed or read.
pub(crate) fn served_by_other_proxies(
    facts: &NodeFacts,
    tables: &mut dyn Tables,
) -> Result<BTreeMap<FrontendKey, String>, PortError> {
    nftables::served_by_others(facts, tables)
}

/// Reads the Frontends that other modes serve, of this proxy or a kube-proxy. Costs little if these have no objects.
/// Userspace mode leaves none once its process has ended. iptables mode and IPVS mode with iptables rules have chains
/// with the same names. Virtual servers of either variant count, regardless of which one guarded them.
pub(crate) fn served(facts: &NodeFacts, mode: Kind, ports: &mut Ports<'_>) -> ServedFrontends {
    let mut served = ServedFrontends::default();
    // As in a cleanup: the remaining modes have no configurable names.
    let is_alone = facts.config().names == KernelNames::default();
    if mode != Kind::Ipvs {
        served.extend(ipvs::cleanup::served(facts.config(), ports).replaced_if(mode == Kind::Iptables));
    }
    if mode != Kind::Nftables {
        served.extend(nftables::served(facts, ports));
    }
    if is_alone {
        served.extend(nftables::served_by_kube_proxy(facts, ports));
    }
    if is_alone {
        let serving = Serving::new(facts.config(), Some(mode), ports);
        // The mode itself has the rules in the back end that it uses.
        for backend in Backend::ALL.into_iter().filter(|backend| mode != Kind::Iptables || !serving.uses(*backend)) {
            served.extend(iptables::served(facts, backend, ports).replaced_if(serving.uses(backend)));
        }
    }
    served
}
