//! Removes the tables of this mode, and those that a kube-proxy in nftables mode has left. Also lists what they serve.

use std::collections::{BTreeMap, BTreeSet};

use nftables::{Element, ElementData, ElementKey, Expression, Register, TableKey, TableSnapshot, Verdict};

use super::layout::{Layout, table};
use super::observed::{endpoint, read, split};
use crate::config::Config;
use crate::modes::shared::cleaned::{Cleaned, ServedFrontends};
use crate::modes::shared::nft::{COMMENT as OF_SERVICES, OWNED, is_ours, name, protocol_and_port, remove_table};
use crate::net::{EndpointKey, Family, FrontendKey};
use crate::pack::Gather as _;
use crate::ports::{PortError, PortErrorKind, Ports, Result, Tables};
use crate::service::NodeFacts;

pub(crate) fn served(facts: &NodeFacts, ports: &mut Ports<'_>) -> ServedFrontends {
    let mut served = ServedFrontends::default();
    for family in Family::ALL {
        let layout = Layout::new(family, facts);
        match read(ports.tables, &layout) {
            Ok(observed) => {
                let frontends = observed.iter().flat_map(|observed| observed.frontends(family));
                frontends.for_each(|(key, has_endpoints)| served.add(key, has_endpoints));
            }
            // The table is another program's.
            Err(error) if error.kind() == PortErrorKind::AlreadyExists => {}
            Err(error) => served.miss(format_args!("table {}", layout.table), error),
        }
    }
    served
}

/// The Frontends that tables of other proxies serve, in nftables mode with other names, and the name of the table.
pub(crate) fn served_by_others(facts: &NodeFacts, tables: &mut dyn Tables) -> Result<BTreeMap<FrontendKey, String>> {
    let own = &facts.config().names.table;
    let mut served = BTreeMap::new();
    let listed = match tables.list() {
        Err(error) if error.kind() == PortErrorKind::Unavailable => Vec::new(),
        listed => listed?,
    };
    for key in listed.into_iter().filter(|key| key.name.as_str() != own.as_str()) {
        let Some(family) = Family::ALL.into_iter().find(|family| key.family == (*family).into()) else { continue };
        let is_one = match tables.table(&key)?.map(|table| table.comment) {
            Some(Some(comment)) => &*comment == OF_SERVICES,
            Some(None) => tables.has_chain(&key, OWNED)?,
            None => false,
        };
        if !is_one {
            continue;
        }
        let layout = Layout::of_table(key, family, facts);
        if let Some(observed) = read(tables, &layout)? {
            let name = layout.table.name.as_str();
            served.extend(observed.frontends(family).into_keys().map(|frontend| (frontend, name.to_owned())));
        }
    }
    Ok(served)
}

/// Removes the tables of both families that this mode has created.
pub(crate) fn cleanup(config: &Config, ports: &mut Ports<'_>, cleaned: &mut Cleaned) {
    for family in Family::ALL {
        remove_table(&table(family, &config.names), is_ours, ports.tables, cleaned);
    }
}

const TABLE: &str = "kube-proxy";

/// The comment of its tables. Kernels from 5.10 store it; kube-proxy's nftables mode needs a newer one.
const COMMENT: &str = "rules for kube-proxy";

/// Chains that its tables have in every release from 1.29 to 1.36, with any Services. Source: kubernetes,
/// pkg/proxy/nftables/proxier.go, `setupNFTables`.
const CHAINS: [&str; 5] = ["nat-prerouting", "nat-output", "nat-postrouting", "services", "masquerading"];

/// Removes the tables of both families that a kube-proxy in nftables mode has left. A table with that name but without
/// its comment or one of its chains may be another program's, and is listed among the tables that are
/// [left](Cleaned::left).
pub(crate) fn cleanup_kube_proxy(ports: &mut Ports<'_>, cleaned: &mut Cleaned) {
    for table in tables() {
        let mut lack = None;
        let is_kube_proxys = |table: &TableKey, tables: &mut dyn Tables| {
            lack = lack_of(table, tables)?;
            Ok(lack.is_none())
        };
        remove_table(&table, is_kube_proxys, ports.tables, cleaned);
        cleaned.left.extend(lack.map(|lack| unrecognised(&table, &lack)));
    }
}

/// The tables with that name that a cleanup leaves, each with what to do.
pub(crate) fn unrecognised_tables(ports: &mut Ports<'_>) -> Vec<String> {
    let lacking = |table: TableKey| Some(unrecognised(&table, &lack_of(&table, ports.tables).ok()??));
    tables().filter_map(lacking).collect()
}

fn tables() -> impl Iterator<Item = TableKey> {
    Family::ALL.into_iter().map(|family| TableKey { family: family.into(), name: name(TABLE) })
}

/// The Frontends and endpoints of the tables that a kube-proxy in nftables mode has left, recognized by their comment
/// and chains; `None` if there are none. A node port is at address 0.0.0.0 or `::`.
///
/// # Errors
/// A table could not be read.
pub fn list_kube_proxy(of_kernel: &mut dyn Tables) -> Result<Option<BTreeMap<FrontendKey, BTreeSet<EndpointKey>>>> {
    let mut all = None;
    for (family, table) in Family::ALL.into_iter().zip(tables()) {
        if let Some(found) = kube_proxys(&table, of_kernel)? {
            note_endpoints(&found, family, all.get_or_insert_with(BTreeMap::new));
        }
    }
    Ok(all)
}

fn kube_proxys(table: &TableKey, tables: &mut dyn Tables) -> Result<Option<TableSnapshot>> {
    match lack_of(table, tables) {
        Ok(None) => tables.read(table),
        Ok(Some(_)) => Ok(None),
        Err(error) if error.kind() == PortErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The Frontends of such a table, whether they have endpoints, and the element of each. Node ports are at 0.0.0.0 or
/// `::`.
fn frontends(table: &TableSnapshot, family: Family) -> impl Iterator<Item = (FrontendKey, bool, &Element)> {
    table.sets.iter().flat_map(move |contents| {
        let kind = match contents.set.set.key.name.as_str() {
            "service-ips" => Some((false, true)),
            "no-endpoint-services" => Some((false, false)),
            "service-nodeports" => Some((true, true)),
            "no-endpoint-nodeports" => Some((true, false)),
            _ => None,
        };
        let elements = kind.into_iter().flat_map(|kind| contents.elements.iter().map(move |element| (kind, element)));
        elements.filter_map(move |((is_node_port, has_endpoints), element)| {
            let ElementKey::Value(value) = &element.key else { return None };
            let key = if is_node_port {
                let (protocol, port, _) = protocol_and_port(value.as_bytes())?;
                FrontendKey::new(protocol, family.unspecified(), port)
            } else {
                split(&element.key, family)?.0
            };
            Some((key, has_endpoints, element))
        })
    })
}

/// Adds the Frontends of a table with the endpoints at the end of their chains.
fn note_endpoints(table: &TableSnapshot, family: Family, all: &mut BTreeMap<FrontendKey, BTreeSet<EndpointKey>>) {
    let sets: BTreeMap<&str, &[Element]> =
        table.sets.iter().map(|contents| (contents.set.set.key.name.as_str(), contents.elements.as_slice())).gather();
    let mut rules: BTreeMap<&str, Vec<&Expression>> = BTreeMap::new();
    for rule in &table.rules {
        rules.entry(rule.chain.name.as_str()).or_default().extend(&rule.rule.expressions);
    }
    for (key, _, element) in frontends(table, family) {
        let endpoints = all.entry(key).or_default();
        let mut open: Vec<&str> = element.data.as_ref().and_then(chain_of).into_iter().collect();
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        while let Some(chain) = open.pop().filter(|chain| seen.insert(chain)) {
            let mut registers: BTreeMap<Register, &[u8]> = BTreeMap::new();
            for expression in rules.get(chain).into_iter().flatten() {
                match expression {
                    Expression::Verdict(Verdict::Goto(to) | Verdict::Jump(to)) => open.push(to.as_str()),
                    // A client with affinity goes to a chain of its endpoint.
                    Expression::Immediate { register, value } => {
                        registers.insert(*register, value.as_bytes());
                    }
                    Expression::Nat { address: Some(address), port: Some(port), .. } => {
                        let place = [address, port].map(|of| registers.get(&of.first).copied().unwrap_or_default());
                        endpoints.extend(endpoint(&place.concat(), family));
                    }
                    Expression::Lookup { set, .. } => {
                        let data = sets.get(set.name.as_str()).into_iter().flat_map(|elements| elements.iter());
                        for data in data.filter_map(|element| element.data.as_ref()) {
                            open.extend(chain_of(data));
                            if let ElementData::Value(value) = data {
                                endpoints.extend(endpoint(value.as_bytes(), family));
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
    }
}

fn chain_of(data: &ElementData) -> Option<&str> {
    match data {
        ElementData::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain)) => Some(chain.as_str()),
        _ => None,
    }
}

pub(crate) fn served_by_kube_proxy(facts: &NodeFacts, ports: &mut Ports<'_>) -> ServedFrontends {
    let mut served = ServedFrontends::default();
    for (family, table) in Family::ALL.into_iter().zip(tables()) {
        match kube_proxys(&table, ports.tables) {
            Ok(found) => {
                for (key, has_endpoints, _) in found.iter().flat_map(|found| frontends(found, family)) {
                    let of_node = facts.node_port_addresses(family).filter(|_| key.address.is_unspecified());
                    let own = [key.address].into_iter().filter(|address| !address.is_unspecified());
                    own.chain(of_node).for_each(|address| served.add(FrontendKey { address, ..key }, has_endpoints));
                }
            }
            Err(error) => served.miss(format_args!("table {table}"), error),
        }
    }
    served
}

/// The first object that all of kube-proxy's tables have and this one lacks. Fails without the table.
fn lack_of(table: &TableKey, tables: &mut dyn Tables) -> Result<Option<String>> {
    let Some(found) = tables.table(table)? else {
        return Err(PortError::new(PortErrorKind::NotFound, format_args!("no table {table}")));
    };
    if found.comment.as_deref() != Some(COMMENT) {
        return Ok(Some(format!("the comment \"{COMMENT}\"")));
    }
    for chain in CHAINS {
        if !tables.has_chain(table, chain)? {
            return Ok(Some(format!("chain {chain}")));
        }
    }
    Ok(None)
}

fn unrecognised(table: &TableKey, lack: &str) -> String {
    format!(
        "table {table} stays: it lacks {lack}, which every kube-proxy's table has; if a kube-proxy made it, it still answers for \
         deleted Services and drops by old source ranges: remove it with 'nft delete table {table}'"
    )
}
