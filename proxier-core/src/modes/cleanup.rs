//! What modes have left: the Frontends that it serves, and its removal.

use ::iptables::{Backend, TableName};

pub use super::shared::localhost::kept_for_the_kubelet;
use super::{Kind, fast_path, iptables, ipvs, nftables, userspace};
use crate::config::{Config, KernelNames, RulesBy};
use crate::modes::shared::chains::{Found, unreadable};
use crate::modes::shared::cleaned::{Cleaned, ServedFrontends};
use crate::modes::shared::localhost;
use crate::ports::Ports;
use crate::service::NodeFacts;

/// Removes everything that this proxy, or a kube-proxy in any of its modes, has created, and nothing else. It cleans
/// both families, with any configuration. With `kept`, objects of that mode stay, so that a node can change its mode:
/// the new mode serves before the old one is removed. Of IPVS mode, the configured back end that guards its virtual
/// servers stays ([`RulesBy`]), and objects of the other back end are removed.
///
/// The tables of kube-proxy's nftables mode are always removed: their endpoints would soon be out of date. They are
/// recognized by their comment and chains; a table with that name but without these stays and is listed in
/// [`Cleaned::left`]. A running kube-proxy creates them again, so stop it first. The chains of its userspace mode are
/// removed too, since they point to ports of a process that has ended.
///
/// IPVS mode's chains and iptables mode's share names (`KUBE-SERVICES`, `KUBE-POSTROUTING` and more). Those of `kept`
/// stay with the jumps to them, in the back end of iptables that it uses
/// ([`Rules::used_backend`](crate::ports::Rules::used_backend)). All others are removed from both back ends, since
/// packets meet the rules of either. Chains of iptables mode, local routes and kube-proxy's tables have no [names of
/// their own](KernelNames): a proxy with names other than kube-proxy's leaves them alone.
///
/// Connections through virtual servers end. All others continue, since connection tracking has their endpoints, unless
/// the last chain of type nat is removed: Linux then translates no packets (`nf_nat_unregister_fn`). Values below
/// `/proc/sys` stay, because their earlier values are unknown. Only `route_localnet` is set back to 0, unless the
/// kubelet's chain protects loopback addresses from other hosts.
///
/// If a part cannot be read or removed, it stays and the rest continues; repeat the cleanup then. Missing objects, and
/// parts that the kernel does not have, count as removed.
pub fn cleanup(config: &Config, kept: Option<Kind>, ports: &mut Ports<'_>) -> Cleaned {
    let mut cleaned = clean(config, kept, ports);
    if config.names == KernelNames::default() {
        nftables::cleanup_kube_proxy(ports, &mut cleaned);
    }
    cleaned
}

/// As [`cleanup`], on the way back to a kube-proxy that serves in this mode already: everything that such a kube-proxy
/// has stays. In iptables and IPVS mode these are the objects that it shares with this proxy, in nftables mode its own
/// tables, and in any other mode nothing.
pub fn cleanup_beside_kube_proxy(config: &Config, mode: Kind, ports: &mut Ports<'_>) -> Cleaned {
    match mode {
        Kind::Nftables => clean(config, None, ports),
        Kind::Ipvs => {
            let mut config = config.clone();
            config.ipvs.rules = RulesBy::Iptables;
            let mut cleaned = Cleaned::default();
            if ipvs::cleanup::cleanup_beside_kube_proxy(&config, ports, &mut cleaned) {
                cleaned.extend(cleanup(&config, Some(mode), ports));
            }
            cleaned
        }
        Kind::Iptables => {
            let mut cleaned = cleanup(config, Some(mode), ports);
            // This proxy's iptables mode may have one, but no kube-proxy has.
            fast_path::cleanup(config, ports.tables, &mut cleaned);
            cleaned
        }
        Kind::Userspace => cleanup(config, None, ports),
    }
}

/// As [`cleanup`], but keeps the tables of a kube-proxy in nftables mode.
fn clean(config: &Config, kept: Option<Kind>, ports: &mut Ports<'_>) -> Cleaned {
    let serving = Serving::new(config, kept, ports);
    let is_kept = |backend, table: &TableName, chain: &str| serving.has_chain(backend, table, chain);
    let mut cleaned = Cleaned::default();
    if kept != Some(Kind::Iptables) {
        // Before the rules are removed that may have guarded it.
        localhost::cleanup(ports, &mut cleaned);
    }
    match kept {
        Some(Kind::Ipvs) => ipvs::cleanup::cleanup_other_guards(config, &is_kept, ports, &mut cleaned),
        _ => cleaned.extend(ipvs::cleanup::cleanup(config, &is_kept, ports)),
    }
    if kept != Some(Kind::Nftables) {
        nftables::cleanup(config, ports, &mut cleaned);
    }
    let is_alone = config.names == KernelNames::default();
    if !kept.is_some_and(|kept| kept.facts().translates_packets) {
        fast_path::cleanup(config, ports.tables, &mut cleaned);
    }
    if is_alone {
        iptables::removal(&is_kept).carry_out(ports, &mut cleaned);
        if kept != Some(Kind::Iptables) {
            iptables::remove_counters(ports, &mut cleaned);
        }
        cleaned.left.extend(unreadable(ports));
        if kept != Some(Kind::Userspace) {
            cleaned.extend(userspace::cleanup(ports));
        }
    }
    cleaned
}

/// The mode that serves, and the iptables back end with its rules.
pub(crate) struct Serving<'a> {
    config: &'a Config,
    mode: Option<Kind>,
    /// `None`: unknown, or the mode has no iptables rules.
    backend: Option<Backend>,
}

impl<'a> Serving<'a> {
    pub(crate) fn new(config: &'a Config, mode: Option<Kind>, ports: &mut Ports<'_>) -> Self {
        let backend = if has_rules(config, mode) { ports.rules.used_backend() } else { None };
        Serving { config, mode, backend }
    }

    /// Whether the mode's rules are, or may be, in this back end.
    pub(crate) fn uses(&self, backend: Backend) -> bool {
        has_rules(self.config, self.mode) && self.backend.is_none_or(|used| used == backend)
    }

    /// Whether the mode has, or may have, a chain with this name in this back end.
    fn has_chain(&self, backend: Backend, table: &TableName, chain: &str) -> bool {
        self.uses(backend)
            && match self.mode {
                Some(Kind::Iptables) => iptables::names::is_ours(table, chain) || chain == iptables::names::CANARY,
                _ => ipvs::rules::has_chain(self.config.names.prefix, table, chain),
            }
    }
}

fn has_rules(config: &Config, mode: Option<Kind>) -> bool {
    mode.is_some_and(|mode| mode.needs_rule_programs(config))
}

/// Other objects next to a mode, each with advice. These are iptables chains that [`cleanup`] removes once the mode
/// serves, or at once without a mode. They are also objects that it leaves, because they may be another program's or no
/// program here can read them. Both back ends, both families. Only reads.
pub fn leftovers(config: &Config, kept: Option<Kind>, ports: &mut Ports<'_>) -> Vec<String> {
    let serving = Serving::new(config, kept, ports);
    let is_kept = |backend, table: &TableName, chain: &str| serving.has_chain(backend, table, chain);
    let mut found = Found::default();
    ipvs::cleanup::removal(config.names.prefix, &is_kept).find(ports, &mut found);
    // The remaining modes have no configurable names.
    if config.names == KernelNames::default() {
        iptables::removal(&is_kept).find(ports, &mut found);
    }
    let mut left: Vec<String> = found.sentences().collect();
    left.extend(nftables::unrecognised_tables(ports));
    left.extend(unreadable(ports));
    left
}

/// Reads the Frontends that other modes serve, of this proxy or a kube-proxy. Costs little if these have no objects.
/// Userspace mode leaves none once its process has ended.
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
        let serving = Serving::new(facts.config(), Some(mode), ports);
        // The mode itself has the rules in the back end that it uses.
        for backend in Backend::ALL.into_iter().filter(|backend| mode != Kind::Iptables || !serving.uses(*backend)) {
            served.extend(iptables::served(facts, backend, ports).replaced_if(serving.uses(backend)));
        }
    }
    served
}
