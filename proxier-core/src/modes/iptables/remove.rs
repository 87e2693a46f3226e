//! Removes all rules of iptables mode.

use iptables::{Chain, ChainName, Dump, Edit, Rule, TableName, Transaction};
use nftables::TableKey;

use super::apply::incomparable;
use super::diff::{Incomparable, cleanup_but};
use super::settings::COUNTERS;
use super::{names, observed};
use crate::modes::shared::chains::Removal;
use crate::modes::shared::cleaned::{Cleaned, IsKept};
use crate::modes::shared::nft::name;
use crate::modes::shared::served::ServedFrontends;
use crate::net::Family;
use crate::plan::report::Unread;
use crate::plan::step::{Action, Part};
use crate::ports::Ports;
use crate::service::NodeFacts;

/// Removes the chains and jumps of both families that this mode, or a kube-proxy in iptables or userspace mode, has made, and
/// nothing else ([`cleanup`](super::cleanup)). A family without programs or tables has none of them.
///
/// `net.ipv4.conf.all.route_localnet` stays, and so does the rule in the kubelet's chain that guards loopback addresses.
#[cfg(feature = "testing")]
pub fn remove(ports: &mut Ports<'_>) -> Cleaned {
    remove_but(&|_table, _chain| false, ports)
}

/// Frontends that the rules of both families serve.
pub(crate) fn served(facts: &NodeFacts, ports: &mut Ports<'_>) -> ServedFrontends {
    let mut served = ServedFrontends::default();
    for family in Family::ALL {
        // IPVS mode has no such chain.
        let nat = TableKey { family: family.into(), name: name(TableName::NAT.as_str()) };
        let has_chains = ports.tables.has_chain(&nat, names::NODE_PORTS).unwrap_or(false);
        // No program is started where there is nothing.
        if !has_chains && ports.rules.has_tables(family) == Some(false) {
            continue;
        }
        let what = || format!("rules of {}", family.name());
        match ports.rules.dump(family) {
            Ok(dump) => {
                let addresses: Vec<_> = facts.node_port_addresses(family).collect();
                served.frontends.extend(observed::served(&dump, family, &addresses));
            }
            // A cleanup can do without programs.
            Err(error) if has_chains => served.unread.push(Unread::new(what(), error)),
            Err(error) => served.miss(what(), error),
        }
    }
    served
}

/// As [`remove`], but for the chains that are kept.
pub(crate) fn remove_but(is_kept: IsKept<'_>, ports: &mut Ports<'_>) -> Cleaned {
    let may_go = |table: &TableName, chain: &str| {
        (names::is_ours(table, chain) && !is_kept(table, chain)) || is_portal(table, chain) || chain == names::CANARY
    };
    let mut cleaned = in_both_families(&may_go, &|dump| everything(dump, is_kept), ports);
    match ports.rules.delete_counters(&COUNTERS) {
        Ok(0) => {}
        Ok(count) => cleaned.applied.count(Part::Rules, Action::Delete, count),
        Err(error) => cleaned.miss("counters of packets", error),
    }
    cleaned
}

/// Removes the chains of a kube-proxy in userspace mode, and nothing else.
pub(crate) fn remove_portals(ports: &mut Ports<'_>) -> Cleaned {
    let portals_of = |dump: &Dump| {
        let mut transaction = Transaction::new();
        portals(dump, &mut transaction);
        Ok(transaction)
    };
    in_both_families(&is_portal, &portals_of, ports)
}

fn in_both_families(
    may_go: IsKept<'_>,
    edits: &dyn Fn(&Dump) -> Result<Transaction, Incomparable>,
    ports: &mut Ports<'_>,
) -> Cleaned {
    let mut cleaned = Cleaned::default();
    let edits = |dump: &Dump| edits(dump).map_err(|error| incomparable(&error));
    Removal { may_go, edits: &edits }.carry_out(&Family::ALL, ports, &mut cleaned);
    cleaned
}

fn is_portal(table: &TableName, chain: &str) -> bool {
    names::PORTALS_JUMPS.iter().any(|(of, _, to, _)| of == table && *to == chain)
}

fn everything(dump: &Dump, is_kept: IsKept<'_>) -> Result<Transaction, Incomparable> {
    let mut transaction = cleanup_but(dump, is_kept)?;
    portals(dump, &mut transaction);
    let canary = ChainName::new(names::CANARY)?;
    for table in names::TABLES {
        let Some(there) = dump.table(&table).filter(|there| there.chain(names::CANARY).is_some()) else { continue };
        if there.references(names::CANARY).next().is_none() {
            let edits = transaction.table(table);
            edits.edit(Edit::Flush(canary.clone())).edit(Edit::DeleteChain(canary.clone()));
        }
    }
    Ok(transaction)
}

/// Removes the chains of kube-proxy's userspace mode; one to which a foreign rule jumps is emptied. They lead to ports of a
/// process that has ended.
fn portals(dump: &Dump, transaction: &mut Transaction) {
    for (table, from, to, comment) in names::PORTALS_JUMPS {
        let Some(there) = dump.table(&table) else { continue };
        let Some(chain) = there.chain(to) else { continue };
        let is_ours = |(chain, rule): &(&Chain, &Rule)| chain.name == *from && rule.comment() == Some(comment);
        let (ours, others): (Vec<_>, Vec<_>) = there.references(to).partition(is_ours);
        let edits = transaction.table(table);
        for (chain, rule) in ours {
            edits.edit(Edit::Delete(chain.name.clone(), rule.clone()));
        }
        edits.edit(Edit::Flush(chain.name.clone()));
        if others.is_empty() {
            edits.edit(Edit::DeleteChain(chain.name.clone()));
        }
    }
}
