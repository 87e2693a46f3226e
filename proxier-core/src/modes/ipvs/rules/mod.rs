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

mod inputs;
mod names;
mod tables;

use std::fmt;
use std::slice::from_ref;

use iptables::{Chain, ChainName, Dump, Edit, Error, Rule, TableName, Transaction};

use crate::config::NamePrefix;
use crate::modes::shared::chains::{Comparison, OwnChains, OwnJump};
use crate::modes::shared::cleaned::IsKept;
use crate::ports::Result;

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
        compare(Some(self), Ours { prefix: self.prefix, is_kept: &|_table, _chain| false }, observed)
    }
}

/// Removes chains and jumps of a proxy with this prefix, or with [`NamePrefix::KUBE`] of a kube-proxy in IPVS mode. The
/// kept chains stay with the jumps to them. Sets can be destroyed after this, not before.
pub fn cleanup(observed: &Dump, prefix: NamePrefix, is_kept: IsKept<'_>) -> Result<RuleChanges> {
    compare(None, Ours { prefix, is_kept }, observed)
}

const ADDED: char = '+';
const REMOVED: char = '-';

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleChanges {
    /// The input of `iptables-restore --noflush`; empty if nothing changes.
    pub transaction: Transaction,
    /// The added and removed lines of `iptables-save`: `+ nat -A KUBE-SERVICES …`.
    pub lines: Vec<String>,
}

impl RuleChanges {
    pub fn is_empty(&self) -> bool {
        self.transaction.is_empty()
    }

    /// Whether rules of iptables mode are replaced. Until then they send connections to endpoints, and guard load
    /// balancers.
    pub(crate) fn replace_iptables_mode(&self) -> bool {
        self.lines.iter().any(|line| line.starts_with("- nat ") && line.ends_with(" -j KUBE-NODEPORTS"))
    }

    /// A transaction on these tables, with the lines that it adds and removes.
    fn new(transaction: Transaction, observed: &Dump) -> Self {
        let mut changes = RuleChanges::default();
        for table in transaction.tables() {
            let there = |chain: &ChainName| observed.table(table.name())?.chain(chain.as_str());
            for edit in table.edits() {
                let rules_of = |chain| there(chain).map_or(&[][..], |there| &there.rules);
                let (chain, old, new) = match edit {
                    Edit::Replace(chain, rules) => {
                        if there(chain).is_none() {
                            changes.line(ADDED, table.name(), format_args!(":{chain}"));
                        }
                        (chain, rules_of(chain), &rules[..])
                    }
                    Edit::Insert(chain, _, rule) => (chain, &[][..], from_ref(rule)),
                    Edit::Delete(chain, rule) => (chain, from_ref(rule), &[][..]),
                    Edit::Flush(chain) => (chain, rules_of(chain), &[][..]),
                    Edit::DeleteChain(chain) => {
                        changes.line(REMOVED, table.name(), format_args!(":{chain}"));
                        continue;
                    }
                    _ => continue,
                };
                changes.rules(table.name(), chain, old, new);
            }
        }
        RuleChanges { transaction, ..changes }
    }

    fn line(&mut self, sign: char, table: &TableName, line: impl fmt::Display) {
        self.lines.push(format!("{sign} {table} {line}"));
    }

    /// Records how one list of rules becomes another; the common start and end stay.
    fn rules(&mut self, table: &TableName, chain: &ChainName, old: &[Rule], new: &[Rule]) {
        let same = |(a, b): &(&Rule, &Rule)| a.same_as(b);
        let head = old.iter().zip(new).take_while(same).count();
        let (old, new) = (old.get(head..).unwrap_or_default(), new.get(head..).unwrap_or_default());
        let tail = old.iter().rev().zip(new.iter().rev()).take_while(same).count();
        let but_tail = |list: &'_ [Rule]| list.len().saturating_sub(tail);
        for (sign, rules) in [(REMOVED, old), (ADDED, new)] {
            for rule in rules.iter().take(but_tail(rules)) {
                self.line(sign, table, format_args!("-A {chain} {}", rule.arguments()));
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Ours<'a> {
    prefix: NamePrefix,
    /// Selects chains that belong to another mode.
    is_kept: IsKept<'a>,
}

impl OwnChains for Ours<'_> {
    const TABLES: [TableName; 2] = names::TABLES;

    fn has_chain(&self, table: &TableName, chain: &str) -> bool {
        names::is_ours(self.prefix, table, chain) && !(self.is_kept)(table, chain)
    }

    fn has_jump(&self, table: &TableName, rule: &Rule) -> bool {
        let is_kept = rule.target().is_some_and(|target| (self.is_kept)(table, target));
        names::is_jump_of_ours(self.prefix, table, rule) && !is_kept
    }

    fn mark(&self) -> String {
        format!("{}{}", self.prefix, names::MARK_MASQ)
    }
}

/// The changes that turn the dump into these rules, or remove all own ones if there are none.
fn compare(desired: Option<&Rules>, ours: Ours<'_>, observed: &Dump) -> Result<RuleChanges> {
    let mut comparison = Comparison::new(observed, ours);
    comparison.check_readable()?;
    for table in names::TABLES {
        for chain in desired.map_or(&[][..], |rules| rules.chains(&table)) {
            comparison.chain(&table, chain.clone());
        }
    }
    comparison.jumps(desired.map_or(&[][..], |rules| &rules.jumps));
    comparison.remove_others();
    Ok(RuleChanges::new(comparison.transaction, observed))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The changes that a cleanup of these tables makes.
    fn removed(tables: &str) -> RuleChanges {
        cleanup(&Dump::parse(tables).unwrap(), NamePrefix::KUBE, &|_, _| false).unwrap()
    }

    /// A jump in another program's chain is that program's, with any comment.
    #[test]
    fn jumps_are_ours_in_built_in_chains_only() {
        let of = |from: &str| -> Vec<String> {
            let jump = format!("-A {from} -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES");
            let chains = ":PREROUTING ACCEPT [0:0]\n:MINE - [0:0]\n:KUBE-SERVICES - [0:0]";
            removed(&format!("*nat\n{chains}\n{jump}\nCOMMIT\n")).lines
        };
        assert_eq!(of("MINE"), [""; 0]);
        assert!(of("PREROUTING").iter().any(|line| line.starts_with("- nat -A PREROUTING")), "{:?}", of("PREROUTING"));
    }

    /// Until the jump to its node ports is removed, iptables mode sends connections to endpoints.
    #[test]
    fn rules_of_iptables_mode_are_recognized_by_their_node_ports() {
        let nat = |rule: &str| format!("*nat\n:KUBE-SERVICES - [0:0]\n-A KUBE-SERVICES {rule}\nCOMMIT\n");
        let filter = |rule: &str| format!("*filter\n:KUBE-FORWARD - [0:0]\n-A KUBE-FORWARD {rule}\nCOMMIT\n");
        let node_ports = "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS";
        assert!(removed(&nat(node_ports)).replace_iptables_mode());
        assert!(!removed(&nat("-m addrtype --dst-type LOCAL -j KUBE-NODE-PORT")).replace_iptables_mode());
        assert!(!removed(&filter(node_ports)).replace_iptables_mode(), "health checks");
        let mut added = RuleChanges::default();
        added.line(ADDED, &TableName::NAT, format_args!("-A KUBE-SERVICES {node_ports}"));
        assert!(!added.replace_iptables_mode());
    }
}
