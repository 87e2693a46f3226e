//! Frontends that other modes serve, read before their objects are removed ([`cleanup`](super::cleanup)).

use super::shared::served::ServedFrontends;
use super::{Kind, iptables, ipvs, nftables};
use crate::config::{KernelNames, RulesBy};
use crate::ports::Ports;
use crate::service::NodeFacts;

/// Reads the Frontends that other modes than this one serve, of this proxy or of a kube-proxy; costs little where these have no objects.
/// Userspace mode leaves none once its process has ended. iptables mode and IPVS mode with rules of iptables have chains of the
/// same names; virtual servers of either variant count, since it does not matter which one guarded them.
pub(crate) fn served(facts: &NodeFacts, mode: Kind, ports: &mut Ports<'_>) -> ServedFrontends {
    let mut served = ServedFrontends::default();
    // As in a cleanup: the remaining modes have no names of their own.
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
    if mode != Kind::Iptables && is_alone {
        let has_chains = mode == Kind::Ipvs && facts.config().ipvs.rules != RulesBy::Nftables;
        served.extend(iptables::served(facts, ports).replaced_if(has_chains));
    }
    served
}
