//! iptables rules of IPVS mode: their inputs, how they are compiled, and the changes that the kernel needs.
//!
//! Rules stay the same until a set gains its first entry or loses its last one: Services only change the sets.
//!
//! # Own chains and rules
//!
//! The chains of kube-proxy's IPVS mode by name, in nat and filter, and the jumps to them in built-in chains that have
//! its comments. Names have the [configured prefix](crate::config::NamePrefix), shown here as kube-proxy's. An own
//! chain has exactly this proxy's rules. No other chain or rule is changed, and nothing of the kubelet's
//! (`KUBE-FIREWALL`, `KUBE-MARK-DROP`, `KUBE-IPTABLES-HINT`, `KUBE-KUBELET-CANARY`). Chains that only kube-proxy's
//! iptables mode has (`KUBE-SVC-…`, and `KUBE-SERVICES` in filter) stay too; `kube-proxy --cleanup` removes them.
//!
//! # Differences from kube-proxy
//!
//! * `KUBE-IPVS-FILTER` returns for `KUBE-EXTERNAL-IP-LOCAL` (as from 1.30). Without that, external addresses of
//!   Services with `externalTrafficPolicy: Local` are rejected.
//! * `KUBE-IPVS-OUT-FILTER` exists (as from 1.29). It stops a program on this node that is in none of a load balancer's
//!   source ranges, although its packets have the load balancer's address as their source.
//! * Jumps have an order: source ranges are checked before marked packets are accepted.
//! * If chain INPUT of table filter drops by default, `KUBE-NODE-PORT` accepts traffic to Services there, after source
//!   ranges were checked. With kube-proxy none reaches IPVS.
//! * Protocol names are in lower case, which iptables accepts without `/etc/protocols`.
//!
//! As with kube-proxy, traffic with a loopback source uses no Service. The sets of TCP and UDP node ports hold ports
//! without addresses. So a packet to such a port of any address of this host is masqueraded when it leaves again.

mod changes;
mod inputs;
mod names;
mod tables;

use iptables::{Chain, ChainName, Dump, Error, Rule, TableName};

use crate::config::NamePrefix;
use crate::modes::shared::chains::OwnJump;
use crate::modes::shared::cleaned::IsKept;
use crate::ports::Result;
use changes::Ours;

pub use changes::RuleChanges;
pub use inputs::{Capabilities, Inputs};
pub(crate) use names::is_ours as has_chain;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    prefix: NamePrefix,
    chains: [(TableName, Vec<Chain>); 2],
    /// The jumps from built-in chains, by table and chain, in the order of their rules.
    jumps: Vec<OwnJump>,
}

pub fn compile(inputs: &Inputs) -> Result<Rules, Error> {
    let chains = |rows: Vec<tables::Rows>| -> Result<Vec<Chain>, Error> {
        let made = rows.into_iter().map(|(name, rows)| {
            let mut chain = Chain::new(ChainName::new(inputs.chain(name))?);
            chain.rules = tables::build(rows)?;
            Ok(chain)
        });
        made.collect()
    };
    let jump = |(table, from, to, comment): &(TableName, &str, &str, &str)| -> Result<OwnJump, Error> {
        let rule = Rule::builder().comment(comment).target(&inputs.chain(to)).build()?;
        Ok(OwnJump { table: table.clone(), from: ChainName::new(*from)?, rule, is_anywhere: false })
    };
    let jumps = names::JUMPS.iter().map(jump).collect::<Result<Vec<_>, _>>()?;
    Ok(Rules {
        prefix: inputs.prefix,
        chains: [(TableName::NAT, chains(tables::nat(inputs))?), (TableName::FILTER, chains(tables::filter(inputs))?)],
        jumps,
    })
}

impl Rules {
    /// The chains of a table, in the order in which they are written; empty for tables other than nat and filter.
    pub fn chains(&self, table: &TableName) -> &[Chain] {
        self.chains.iter().find(|(of, _)| of == table).map_or(&[], |(_, chains)| chains)
    }

    /// The changes after which the kernel has these rules; empty if it already does. The sets must exist before the
    /// transaction is restored. Fails if a table could not be shown.
    pub fn changes(&self, observed: &Dump) -> Result<RuleChanges> {
        changes::compare(Some(self), Ours { prefix: self.prefix, is_kept: &|_table, _chain| false }, observed)
    }
}

/// Removes chains and jumps of a proxy with this prefix, or with [`NamePrefix::KUBE`] of a kube-proxy in IPVS mode. The
/// kept chains stay with the jumps to them. Sets can be destroyed after this, not before.
pub fn cleanup(observed: &Dump, prefix: NamePrefix, is_kept: IsKept<'_>) -> Result<RuleChanges> {
    changes::compare(None, Ours { prefix, is_kept }, observed)
}
