//! Which variant serves.

use super::nft;
use crate::config::{Config, RulesBy};
use crate::modes::ipvs::sets::{SetKey, SetKind};
use crate::net::Family;
use crate::ports::{PortError, PortErrorKind, Ports, Tables};
use crate::service::NodeFacts;
use crate::snapshot::{HostAddresses, Node};

/// What serves where the configuration leaves it open ([`RulesBy::Auto`]): rules of iptables, as kube-proxy has them, if a family
/// has its programs and the kernel has ipsets; else nf_tables, if the kernel takes what this mode writes for a family.
///
/// Programs come first because their rules can do what a table of nf_tables cannot: accept a packet that another firewall's
/// default drops. A node that has kube-proxy's chains keeps them.
///
/// ```
/// use proxier_core::config::{Config, RulesBy};
/// use proxier_core::fake::FakeKernel;
/// use proxier_core::modes::ipvs::guards::{choose, trial};
/// use proxier_core::net::Family;
/// use proxier_core::service::NodeFacts;
/// use proxier_core::snapshot::{HostAddresses, Node};
///
/// let mut config = Config::default();
/// assert_eq!(choose(&config, &mut FakeKernel::new().ports()), RulesBy::Iptables);
/// // What is asked for is not probed, so an agent that needs it asks the kernel first.
/// config.ipvs.rules = RulesBy::Nftables;
/// assert_eq!(choose(&config, &mut FakeKernel::new().ports()), RulesBy::Nftables);
/// let facts = NodeFacts::new(&config, &Node::new("node-a"), &HostAddresses::default());
/// assert_eq!(trial(Family::V4, &facts, FakeKernel::new().ports().tables), Ok(()));
/// ```
pub fn choose(config: &Config, ports: &mut Ports<'_>) -> RulesBy {
    if config.ipvs.rules != RulesBy::Auto {
        return config.ipvs.rules;
    }
    let lacks = |error: PortError| error.kind() == PortErrorKind::Unavailable;
    let lacks_programs = config.families.iter().all(|family| ports.rules.has_random_fully(family).is_err_and(lacks));
    let family = config.families.iter().next().unwrap_or(Family::V4);
    let set = SetKey::new(family, SetKind::ClusterIp).named(config.names.prefix);
    if !lacks_programs && !ports.sets.entries(set).is_err_and(lacks) {
        return RulesBy::Iptables;
    }
    let facts = NodeFacts::new(config, &Node::new(""), &HostAddresses::default());
    let can = config.families.iter().any(|family| trial(family, &facts, ports.tables).is_ok());
    if can { RulesBy::Nftables } else { RulesBy::Iptables }
}

/// Has the kernel check a family's table with every set, chain and rule that IPVS mode writes there, and make none of it. The
/// kernel loads the modules that it needs for that.
///
/// # Errors
/// What the kernel cannot do: nf_tables, the family, or a kind of chain, set or expression, which the message names.
pub fn trial(family: Family, facts: &NodeFacts, tables: &mut dyn Tables) -> Result<(), PortError> {
    nft::trial(family, facts, tables)
}
