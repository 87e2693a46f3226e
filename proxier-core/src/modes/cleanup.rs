//! Removes the objects that modes have made: of all modes, or of those that do not serve any more.

use super::{Kind, fast_path, iptables, ipvs, nftables, userspace};
use crate::config::{Config, KernelNames, RulesBy};
use crate::modes::shared::chains::unreadable;
use crate::modes::shared::cleaned::Cleaned;
use crate::modes::shared::localhost;
use crate::ports::Ports;

/// Removes everything that this proxy, or a kube-proxy in any of its modes, has made, and nothing else: both families, with any
/// configuration. With `kept`, objects of that mode stay, so that a node can change its mode: the new mode serves before the
/// old one goes; of IPVS mode, the configured back end that guards its virtual servers stays ([`RulesBy`]), and objects of the other back
/// end go.
///
/// The tables of kube-proxy's nftables mode (`ip kube-proxy`, `ip6 kube-proxy`) always go: no mode of this proxy uses them,
/// and the endpoints that they choose would be out of date soon. They are known by their comment and chains; a table of that name without
/// these stays, and is named in [`Cleaned::left`]. While a kube-proxy runs it makes
/// them again: stop it first. So do the chains of its userspace mode (`KUBE-PORTALS-…`, `KUBE-NODEPORT-…`), which lead to ports of a
/// process that has ended.
///
/// IPVS mode's chains and iptables mode's share names (`KUBE-SERVICES`, `KUBE-POSTROUTING` and more): those of `kept` stay with
/// the jumps to them. Chains of iptables mode, local routes and kube-proxy's tables have no [names of their own](KernelNames): a
/// proxy with names other than kube-proxy's leaves them alone.
///
/// Connections through virtual servers end with these, and those that a process passed on ended with it; all further ones go on, since
/// connection tracking knows their endpoints, unless the last chain of type nat goes: Linux translates no packet then
/// (`nf_nat_unregister_fn`). Values below `/proc/sys` stay: their earlier values are not known. Only
/// `route_localnet` is set back to 0 before nftables mode's table goes, where that is all that guards loopback addresses.
///
/// A part that cannot be read or removed stays, and the rest goes on; repeat the cleanup then. A missing object counts as
/// done, and so does a kernel that has no such part.
pub fn cleanup(config: &Config, kept: Option<Kind>, ports: &mut Ports<'_>) -> Cleaned {
    let prefix = config.names.prefix;
    let by_nft = config.ipvs.rules == RulesBy::Nftables;
    let is_kept = |table: &::iptables::TableName, chain: &str| match kept {
        Some(Kind::Ipvs) => !by_nft && ipvs::rules::has_chain(prefix, table, chain),
        Some(Kind::Iptables) => iptables::names::is_ours(table, chain),
        _ => false,
    };
    let mut cleaned = Cleaned::default();
    cleaned.extend(match kept {
        Some(Kind::Ipvs) => ipvs::cleanup::cleanup_other_guards(config, &is_kept, ports),
        _ => ipvs::cleanup::cleanup_but(config, &is_kept, ports),
    });
    if kept != Some(Kind::Nftables) {
        cleaned.extend(nftables::cleanup(config, ports));
    }
    let is_alone = config.names == KernelNames::default();
    if !kept.is_some_and(|kept| kept.facts().translates_packets) {
        cleaned.extend(fast_path::cleanup(config, ports.tables));
    }
    if is_alone {
        cleaned.extend(nftables::cleanup_kube_proxy(ports));
        cleaned.extend(match kept {
            Some(Kind::Iptables) => iptables::remove_portals(ports),
            _ => iptables::remove_but(&is_kept, ports),
        });
        cleaned.left.extend(unreadable(ports));
        if kept != Some(Kind::Userspace) {
            cleaned.extend(userspace::cleanup(ports));
        }
    }
    cleaned
}

/// The chain of the kubelet that [`cleanup`] leaves, in words, if it is there: iptables mode makes it where it is missing, as kube-proxy does. Only
/// reads.
pub fn kept_for_the_kubelet(ports: &mut Ports<'_>) -> Option<String> {
    localhost::kept(ports)
}

/// Objects that [`cleanup`] would leave since they may be foreign, or no program here can read them, each with advice. Only reads.
pub fn leftovers(ports: &mut Ports<'_>) -> Vec<String> {
    let mut left = nftables::unrecognised_tables(ports);
    left.extend(unreadable(ports));
    left
}
