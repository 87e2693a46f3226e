//! Contents of a table for one address and port, and what it serves.

use std::collections::BTreeMap;

use nftables::{ChainKey, ElementData, ElementKey, Expression, TableSnapshot};

use super::layout::{Layout, NOT_RELAYED, REJECT_LOCALHOST, chain, table, table_name};
use super::lower::SetName;
use super::observed::{Observed, address, endpoint, frontend_of, split};
use super::pick::slot_at;
use crate::config::KernelNames;
use crate::modes::ServedFrontend;
use crate::modes::inspect::{Inspection, TrafficCounters};
use crate::net::{Family, FrontendKey, Protocol};
use crate::ports::{PortError, Tables};
use crate::service::NodeFacts;

/// The elements about an address and port. Which slots endpoints have does not matter, nor which chain picks one: both depend on
/// what was there before. Connections are counted where the configuration says so.
///
/// # Errors
/// The table could not be read.
pub(in crate::modes) fn inspect(
    key: &FrontendKey,
    names: &KernelNames,
    tables: &mut dyn Tables,
) -> Result<Inspection, PortError> {
    let snapshot = tables.read(&table(key.family(), &table_name(names)))?;
    Ok(snapshot.map(|snapshot| inspect_table(&snapshot, key)).unwrap_or_default())
}

/// All Frontends of both families' tables, with the endpoints that their chains choose among.
///
/// # Errors
/// A table could not be read. One that is foreign serves nothing.
pub(in crate::modes) fn list_frontends(
    facts: &NodeFacts,
    tables: &mut dyn Tables,
) -> Result<BTreeMap<FrontendKey, ServedFrontend>, PortError> {
    let mut all: BTreeMap<FrontendKey, ServedFrontend> = BTreeMap::new();
    for family in Family::ALL {
        let layout = Layout::new(family, &table_name(&facts.config().names), facts, false);
        let snapshot = tables.read(layout.table())?;
        let counts = snapshot.iter().flat_map(|snapshot| counts(snapshot, family));
        let counts: Vec<(FrontendKey, u64)> = counts.collect();
        let Some(observed) = snapshot.and_then(|snapshot| Observed::read(snapshot, &layout)) else { continue };
        for key in observed.frontends(family).into_keys() {
            all.entry(key).or_default().add(None);
        }
        for (key, data) in observed.elements.get(&SetName::Endpoints).into_iter().flatten() {
            if let (Some((key, _)), Some(ElementData::Value(value))) = (split(key, family), data) {
                all.entry(key).or_default().add(endpoint(value.as_bytes(), family));
            }
        }
        for (key, packets) in counts {
            let connections = &mut all.entry(key).or_default().connections;
            *connections = Some(connections.unwrap_or_default().saturating_add(packets));
        }
    }
    Ok(all)
}

/// Packets to node ports at loopback addresses that were refused since the table has the rules for that, by family and protocol. None where there
/// are no such rules, or they cannot be read.
pub(in crate::modes) fn rejected_at_localhost(
    facts: &NodeFacts,
    tables: &mut dyn Tables,
) -> BTreeMap<(Family, Protocol), u64> {
    let mut all = BTreeMap::new();
    for family in Family::ALL.into_iter().filter(|family| facts.serves_localhost(*family)) {
        let table = table(family, &table_name(&facts.config().names));
        let chain = ChainKey { table, name: chain(REJECT_LOCALHOST) };
        let rules = tables.rules(&chain).unwrap_or_default();
        for (protocol, observed) in NOT_RELAYED.into_iter().zip(rules) {
            all.extend(packets(&observed.rule.expressions).map(|packets| ((family, protocol), packets)));
        }
    }
    all
}

fn packets(expressions: &[Expression]) -> Option<u64> {
    expressions.iter().find_map(|expression| match expression {
        Expression::Counter { packets, .. } => Some(*packets),
        _ => None,
    })
}

/// Packets that elements of Frontends have counted: the first ones of connections.
fn counts(snapshot: &TableSnapshot, family: Family) -> impl Iterator<Item = (FrontendKey, u64)> {
    let of_frontends = snapshot.sets.iter().filter_map(|contents| {
        let set = SetName::by_name(contents.set.set.key.name.as_str()).filter(|set| set.leads_on())?;
        Some((set, &contents.elements))
    });
    of_frontends.flat_map(move |(set, elements)| {
        elements.iter().filter_map(move |element| {
            let packets = packets(&element.extras().expressions)?;
            Some((frontend_of(set, &element.key, family)?, packets))
        })
    })
}

fn inspect_table(snapshot: &TableSnapshot, key: &FrontendKey) -> Inspection {
    let mut inspection = Inspection::default();
    let counted = counts(snapshot, key.family()).filter(|(of, _)| of == key).map(|(_, packets)| packets);
    let connections = counted.reduce(u64::saturating_add);
    inspection.counters = connections.map(|connections| TrafficCounters { connections, packets: None });
    let mut sources = 0_usize;
    for contents in &snapshot.sets {
        let name = contents.set.set.key.name.as_str();
        let Some(set) = SetName::by_name(name) else { continue };
        for element in &contents.elements {
            if set == SetName::ClusterIps {
                let value = match &element.key {
                    ElementKey::Value(value) => address(value.as_bytes(), key.family()),
                    _ => None,
                };
                if value.is_some_and(|(address, _)| address == key.address) {
                    inspection.parts.insert(format!("set {name}: {}", key.address), String::new());
                }
                continue;
            }
            if frontend_of(set, &element.key, key.family()) != Some(*key) {
                continue;
            }
            match set {
                SetName::Endpoints => {
                    let place = split(&element.key, key.family()).and_then(|(_, rest)| rest.first_chunk::<4>());
                    let is_local = place.is_some_and(|bytes| slot_at(u32::from_ne_bytes(*bytes)).0);
                    let Some(ElementData::Value(value)) = &element.data else { continue };
                    let Some(endpoint) = endpoint(value.as_bytes(), key.family()) else { continue };
                    let whose = if is_local { "local endpoint" } else { "endpoint" };
                    inspection.parts.insert(format!("map {name}: {whose} {endpoint}"), String::new());
                }
                SetName::Picked(_) => drop(inspection.parts.insert(format!("services: {key}"), String::new())),
                SetName::Allowed => sources = sources.saturating_add(1),
                SetName::Services | SetName::Guarded | SetName::Rejected | SetName::Dropped => {
                    inspection.parts.insert(format!("{name}: {key}"), String::new());
                }
                SetName::Draws | SetName::ClusterIps | SetName::Hairpins => {}
            }
        }
    }
    if sources > 0 {
        inspection.parts.insert(format!("set allowed: sources of {key}"), sources.to_string());
    }
    inspection
}
