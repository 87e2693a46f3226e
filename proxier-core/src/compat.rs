//! Reads iptables rules from nf_tables, as iptables-nft stores them: chains, and the targets of rules. Other matches
//! are ignored.

use iptables::{Chain, ChainName, Policy, Rule, Table, TableName};
use nftables::{ChainKey, Expression, InvalidValue, ObservedRule, TableKey, Verdict};

use crate::net::Family;
use crate::ports::{PortError, PortErrorKind, Result, Tables};

/// Stands for chains with a name that no iptables program could write.
const FOREIGN: &str = "of-nft";

/// The nf_tables table in which iptables-nft stores a table.
pub(crate) fn table_key(family: Family, table: &TableName) -> Result<TableKey> {
    TableKey::new(family.into(), table.as_str()).map_err(invalid)
}

pub(crate) fn chain_key(table: &TableKey, chain: &ChainName) -> Result<ChainKey> {
    table.chain(chain.as_str()).map_err(invalid)
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn invalid(error: InvalidValue) -> PortError {
    PortError::from_error(PortErrorKind::Invalid, &error)
}

/// Reads a table. Chains selected by `is_read` have their rules, as [`rule`] returns them; each other chain has one
/// rule without a target. `None` if the table does not exist.
pub(crate) fn read(
    key: &TableKey,
    table: &TableName,
    is_read: &dyn Fn(&str) -> bool,
    tables: &mut dyn Tables,
) -> Result<Option<Table>> {
    let chains = tables.chains(key)?;
    if chains.is_empty() {
        return Ok(None);
    }
    let mut read = Table::new(table.clone());
    for observed in chains {
        let of_table = &observed.chain.key;
        let rules: Vec<Rule> = if is_read(of_table.name.as_str()) {
            tables.rules(of_table)?.iter().filter_map(rule).collect()
        } else {
            Rule::builder().comment("not read").build().into_iter().collect()
        };
        let name = ChainName::new(of_table.name.as_str()).or_else(|_not_of_iptables| ChainName::new(FOREIGN));
        let name = name.map_err(|error| PortError::from_error(PortErrorKind::Invalid, &error))?;
        if let Some(there) = read.chain_mut(name.as_str()) {
            there.rules.extend(rules);
            continue;
        }
        let chain = Chain::new(name).with_rules(rules);
        let policy = observed.chain.base.map(|base| match base.policy {
            nftables::Policy::Drop => Policy::Drop,
            nftables::Policy::Accept => Policy::Accept,
        });
        read.insert(policy.into_iter().fold(chain, Chain::with_policy));
    }
    Ok(Some(read))
}

/// Target and comment of a rule, and whether it is only for new connections, which is all that a mode's jumps contain.
/// A rule that does not jump to a chain has no target. `None` for a rule that no iptables program could write.
pub(crate) fn rule(observed: &ObservedRule) -> Option<Rule> {
    let (mut comment, mut is_for_new, mut target) = (observed.rule.comment.clone(), false, Vec::new());
    for expression in &observed.rule.expressions {
        match expression {
            Expression::Verdict(Verdict::Jump(chain)) => target = vec!["-j", chain.as_str()],
            Expression::Verdict(Verdict::Goto(chain)) => target = vec!["-g", chain.as_str()],
            Expression::Other(other) => match other.iptables_match() {
                Some(("comment", text)) => {
                    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
                    comment = Some(String::from_utf8_lossy(text).into_owned());
                }
                Some(("conntrack", _)) => is_for_new = true,
                _ => {}
            },
            _ => {}
        }
    }
    let state = if is_for_new { &["-m", "conntrack", "--ctstate", "NEW"][..] } else { &[] };
    let rule = Rule::builder().args(state);
    let commented = comment.map(|comment| rule.clone().comment(&comment).args(&target).build());
    commented.and_then(Result::ok).or_else(|| rule.args(&target).build().ok())
}
