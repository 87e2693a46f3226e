//! Selects the variant that serves.

use std::fmt;

use iptables::TableName;

use super::nft;
use crate::config::{Config, RulesBy};
use crate::modes::shared::by_default::{Known, drops};
use crate::modes::shared::nft::{is_ours, may_have_iptables};
use crate::net::Family;
use crate::ports::{PortError, PortErrorKind, Ports, Result, SetKey, SetKind};
use crate::service::NodeFacts;
use crate::snapshot::{HostAddresses, Node};

/// The variant that serves, and why.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Choice {
    /// The variant; never [`RulesBy::Auto`].
    pub by: RulesBy,
    /// The observation that decided; `None` if the configuration did.
    pub reason: Option<String>,
    /// Whether the kernel supports the table, by family, if it was asked.
    pub tried: Vec<(Family, Result<()>)>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rules by {}", self.by)?;
        self.reason.iter().try_for_each(|reason| write!(f, ": {reason}"))
    }
}

/// Selects the variant if the configuration leaves it open ([`RulesBy::Auto`]). It is iptables rules and ipsets, as in
/// kube-proxy:
/// * if iptables' table filter drops by default, by policy or a last rule, because an nf_tables table cannot accept
///   what another program's table drops;
/// * if the chains and sets of kube-proxy's IPVS mode exist and no table of this mode, so that a migration is seamless;
/// * if the kernel does not support the table for any family.
///
/// Otherwise it is an nf_tables table. If iptables has no tables, this starts none of its programs. `prepare` runs
/// before the kernel is asked whether it supports the table, and may load modules.
pub fn choose(config: &Config, ports: &mut Ports<'_>, prepare: impl FnOnce()) -> Choice {
    if config.ipvs.rules != RulesBy::Auto {
        return Choice { by: config.ipvs.rules, reason: None, tried: Vec::new() };
    }
    let of = |by, reason, tried| Choice { by, reason: Some(reason), tried };
    let serves = |family| is_ours(&nft::table(family, &config.names), ports.tables) == Ok(true);
    let is_there = config.families.iter().any(serves);
    if let Some(reason) = why_iptables(config, is_there, ports) {
        return of(RulesBy::Iptables, reason, Vec::new());
    }
    prepare();
    let facts = NodeFacts::new(config, &Node::new(""), &HostAddresses::default());
    let tried = nft::trials(config.families.iter(), &facts, ports.tables);
    let refused =
        |(family, outcome): &(Family, Result<()>)| outcome.as_ref().err().map(|error| format!("{family}: {error}"));
    let refused: Vec<String> = tried.iter().filter_map(refused).collect();
    let (by, reason) = if refused.len() == tried.len() {
        (RulesBy::Iptables, format!("nf_tables cannot guard virtual servers: {}", refused.join("; ")))
    } else if is_there {
        (RulesBy::Nftables, "the table of an earlier process exists".to_owned())
    } else {
        let reason = "iptables has no table filter that drops by default, and no chains of IPVS mode";
        (RulesBy::Nftables, reason.to_owned())
    };
    of(by, reason, tried)
}

/// Why this node needs iptables rules; `None` if it does not. `is_there`: a table of this mode exists.
fn why_iptables(config: &Config, is_there: bool, ports: &mut Ports<'_>) -> Option<String> {
    let prefix = config.names.prefix;
    let has_device = ports.links.has_device(config.names.device.as_str()) == Ok(true);
    let services = format!("{prefix}SERVICES");
    let (mut has_programs, mut has_chains) = (false, false);
    for family in config.families.iter() {
        if !may_have_iptables(family, ports) {
            continue;
        }
        match ports.rules.dump(family) {
            Ok(dump) => {
                let filter = dump.table(&TableName::FILTER);
                let drops = |chain: &&str| filter.is_some_and(|filter| drops(filter, chain, &Known::FIRST));
                if let Some(chain) = ["FORWARD", "INPUT"].into_iter().find(drops) {
                    return Some(format!("chain {chain} of iptables' table filter ({family}) drops by default"));
                }
                has_programs = true;
                has_chains |= dump.has_chain(&TableName::NAT, &services);
            }
            Err(error) if error.kind() == PortErrorKind::Unavailable || is_there => {}
            // Unknown chains may be chains that matter.
            Err(error) => return Some(format!("rules of iptables ({family}) exist and cannot be listed: {error}")),
        }
    }
    if is_there || !(has_chains || has_device) {
        return None;
    }
    if has_chains && has_device {
        return Some(format!("chain {services} and device {} exist, as in IPVS mode", config.names.device));
    }
    let mut has_set = |family| {
        let set = SetKey::new(family, SetKind::ClusterIp).named(prefix);
        ports.sets.entries(set).is_ok_and(|entries| entries.is_some()).then(|| set.name())
    };
    let set = config.families.iter().find_map(&mut has_set)?;
    let lacks = |error: PortError| error.kind() == PortErrorKind::Unavailable;
    has_programs |= !config.families.iter().all(|family| ports.rules.has_random_fully(family).is_err_and(lacks));
    has_programs.then(|| format!("set {set} exists, as in IPVS mode"))
}
