//! Removes all rules of iptables mode.

use iptables::{Backend, Chain, ChainName, Dump, Edit, Rule, TableName, Transaction};
use nftables::TableKey;

use super::settings::COUNTERS;
use super::{diff, names, observed};
use crate::modes::shared::chains::Removal;
use crate::modes::shared::cleaned::{Cleaned, IsKept, IsKeptIn, ServedFrontends};
use crate::modes::shared::nft::name;
use crate::net::Family;
use crate::plan::report::Unread;
use crate::plan::step::{Action, Part};
use crate::ports::{Ports, Result};
use crate::service::NodeFacts;

/// Frontends that the rules of both families serve, in this back end.
pub(crate) fn served(facts: &NodeFacts, backend: Backend, ports: &mut Ports<'_>) -> ServedFrontends {
    let mut served = ServedFrontends::default();
    for family in Family::ALL {
        // IPVS mode has no such chain.
        let nat = TableKey { family: family.into(), name: name(TableName::NAT.as_str()) };
        let has_chains =
            backend == Backend::NfTables && ports.tables.has_chain(&nat, names::NODE_PORTS).unwrap_or(false);
        // Starts no program if there is nothing.
        if !has_chains && ports.rules.has_tables(family) == Some(false) {
            continue;
        }
        let what = || format!("rules of {}", family.name());
        match ports.rules.dump_of(backend, family) {
            Ok(dump) => {
                let addresses: Vec<_> = facts.node_port_addresses(family).collect();
                served.frontends.extend(observed::served(&dump, family, &addresses));
            }
            // A cleanup works without programs.
            Err(error) if has_chains => served.unread.push(Unread::new(what(), error)),
            Err(error) => served.miss(what(), error),
        }
    }
    served
}

pub(crate) fn remove_counters(ports: &mut Ports<'_>, cleaned: &mut Cleaned) {
    match ports.rules.delete_counters(&COUNTERS) {
        Ok(0) => {}
        Ok(count) => cleaned.applied.count(Part::Rules, Action::Delete, count),
        Err(error) => cleaned.miss("counters of packets", error),
    }
}

/// The removal of the chains and jumps of both families that this mode, or a kube-proxy in iptables or userspace mode, has
/// created, except the kept chains.
pub(crate) fn removal(is_kept: IsKeptIn<'_>) -> Removal<'_> {
    let may_go = move |backend, table: &TableName, chain: &str| {
        let is_of_a_mode = names::is_ours(table, chain) || chain == names::CANARY;
        is_of_a_mode && !is_kept(backend, table, chain) || is_portal(table, chain)
    };
    let edits = move |backend, dump: &Dump| cleanup(dump, &|table, chain| is_kept(backend, table, chain));
    Removal { may_go: Box::new(may_go), edits: Box::new(edits) }
}

fn is_portal(table: &TableName, chain: &str) -> bool {
    names::PORTALS_JUMPS.iter().any(|(of, _, to, _)| of == table && *to == chain)
}

/// Removes all own rules: chains and jumps of this proxy, or of a kube-proxy in iptables or userspace mode, except the kept
/// chains and the jumps to them.
///
/// If another program's rule jumps to a chain, the chain cannot be deleted. It is emptied and stays, except
/// `KUBE-MARK-MASQ`, which keeps its rules, because container runtimes use it. `KUBE-FIREWALL` is the kubelet's and
/// stays.
pub fn cleanup(dump: &Dump, is_kept: IsKept<'_>) -> Result<Transaction> {
    let mut transaction = diff::remove(dump, is_kept)?;
    portals(dump, &mut transaction);
    let canary = ChainName::new(names::CANARY)?;
    for table in names::TABLES {
        let Some(there) = dump.table(&table).filter(|there| there.chain(names::CANARY).is_some()) else { continue };
        if !is_kept(&table, names::CANARY) && there.references(names::CANARY).next().is_none() {
            let edits = transaction.table(table);
            edits.edit(Edit::Flush(canary.clone())).edit(Edit::DeleteChain(canary.clone()));
        }
    }
    Ok(transaction)
}

/// Removes the chains of kube-proxy's userspace mode, which point to ports of a process that has ended. A chain to
/// which another program's rule jumps is emptied.
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
