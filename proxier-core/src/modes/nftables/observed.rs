//! A table in the kernel in this mode's terms: what it contains, and what it serves.

use std::collections::BTreeMap;

use nftables::{ChainKey, Element, ElementData, ElementKey, Expression, TableSnapshot, Verdict};

use super::layout::{Layout, NOT_RELAYED, REJECT_LOCALHOST, chain, table};
use super::lower::{SetName, place, sorted, with};
use super::pick::{Pick, most_of, slot_at};
use super::slots::HeldSlots;
use crate::config::KernelNames;
use crate::modes::inspection::{Inspection, ServedFrontend, TrafficCounters};
use crate::modes::shared::nft::{OWNED, address, leading_frontend, made_by_others};
use crate::modes::shared::table::Shape;
use crate::net::{EndpointKey, Family, FrontendKey, Protocol};
use crate::pack::Gather as _;
use crate::ports::{PortError, PortErrorKind, Result, Tables};
use crate::service::NodeFacts;

#[derive(Debug, Default, PartialEq)]
pub(super) struct Observed {
    /// Elements by set, sorted by key, without sets of slots, which rules write and which never count as drift.
    pub(super) elements: BTreeMap<SetName, Vec<Element>>,
    pub(super) shape: Shape,
    /// The table can only be created again.
    pub(super) is_other: bool,
}

impl Observed {
    /// Converts a snapshot; `None` if the table is another program's.
    pub(super) fn read(snapshot: TableSnapshot, layout: &Layout) -> Option<Self> {
        let (shape, elements) = Shape::read(snapshot)?;
        let is_other = shape.is_other(layout);
        let elements = elements.into_iter().filter_map(|(name, elements)| {
            let set = SetName::by_name(&name)?;
            let bare = |Element { key, data, .. }| {
                let mut element = Element::new(key);
                element.data = data;
                element
            };
            Some((set, sorted(elements.into_iter().map(bare).collect())))
        });
        Some(Observed { elements: elements.gather(), shape, is_other })
    }

    pub(super) fn of(&self, set: SetName) -> &[Element] {
        self.elements.get(&set).map(Vec::as_slice).unwrap_or_default()
    }

    /// The slots of a Frontend's endpoints, and the capacity of the chain that chooses among them. `picked`: the chains
    /// that Frontends enter through their sets ([`Observed::picked`]), by key.
    pub(super) fn slots(&self, frontend: &FrontendKey, picked: &BTreeMap<&ElementKey, Pick>) -> HeldSlots {
        let mut held = HeldSlots::default();
        let (key, family) = (ElementKey::Value(with(frontend, &[])), frontend.family());
        let endpoints = self.of(SetName::Endpoints);
        let first = endpoints.partition_point(|element| element.key < key);
        for element in endpoints.iter().skip(first) {
            let Some((_, rest)) = split(&element.key, family).filter(|(of, _)| of == frontend) else { break };
            let place = rest.first_chunk::<4>().map(|bytes| slot_at(u32::from_ne_bytes(*bytes)));
            if let (Some((is_local, slot)), Some(ElementData::Value(data))) = (place, &element.data)
                && let Some(endpoint) = endpoint(data.as_bytes(), family)
            {
                held.of_mut(is_local).slots.entry(endpoint).or_default().insert(slot);
            }
        }
        if held.cluster.slots.is_empty() && held.local.slots.is_empty() {
            return held;
        }
        let services = self.of(SetName::Services);
        let service = place(services, &key).and_then(|place| services.get(place));
        if let Some(ElementData::Verdict(Verdict::Goto(chain))) = service.and_then(|element| element.data.as_ref()) {
            for is_local in [false, true] {
                held.of_mut(is_local).most = most_of(chain.as_str(), is_local);
            }
        }
        if let Some(pick) = picked.get(&key) {
            held.of_mut(pick.is_local).most = Some(pick.most);
        }
        held
    }

    pub(super) fn picked(&self) -> impl Iterator<Item = (&ElementKey, Pick)> {
        let sets = self.elements.iter().filter_map(|(set, elements)| match set {
            SetName::Picked(pick) => Some((*pick, elements)),
            _ => None,
        });
        sets.flat_map(|(pick, elements)| elements.iter().map(move |element| (&element.key, pick)))
    }

    /// The Frontends that it serves, and whether they have endpoints.
    pub(super) fn frontends(&self, family: Family) -> BTreeMap<FrontendKey, bool> {
        let keys = |set: SetName| self.of(set).iter().filter_map(move |element| frontend_of(set, &element.key, family));
        let without = keys(SetName::Rejected).chain(keys(SetName::Dropped)).map(|key| (key, false));
        let mut served: BTreeMap<FrontendKey, bool> = without.gather();
        let picked = self.picked().filter_map(|(key, _)| split(key, family)).map(|(key, _)| key);
        served.extend(keys(SetName::Services).chain(picked).map(|key| (key, true)));
        served
    }
}

pub(super) fn read(tables: &mut dyn Tables, layout: &Layout) -> Result<Option<Observed>> {
    let Some(snapshot) = tables.read(&layout.table)? else { return Ok(None) };
    let observed = Observed::read(snapshot, layout);
    observed.map(Some).ok_or_else(|| {
        let table = &layout.table;
        let what = format!("it has neither chain {} nor its comment: {}", OWNED, made_by_others(table));
        PortError::new(PortErrorKind::AlreadyExists, what)
    })
}

/// The Frontend that an element belongs to; `None` for shared elements.
pub(super) fn frontend_of(set: SetName, key: &ElementKey, family: Family) -> Option<FrontendKey> {
    if matches!(set, SetName::ClusterIps | SetName::Hairpins) {
        return None;
    }
    split(key, family).map(|(key, _)| key)
}

pub(super) fn endpoint(bytes: &[u8], family: Family) -> Option<EndpointKey> {
    let (address, rest) = address(bytes, family)?;
    Some(EndpointKey::new(address, u16::from_be_bytes(*rest.first_chunk::<2>()?)))
}

pub(super) fn split(key: &ElementKey, family: Family) -> Option<(FrontendKey, &[u8])> {
    leading_frontend(key.ends()?.0.as_bytes(), family)
}

/// The elements about an address and port. The slots of endpoints and the selecting chain do not matter, because both
/// depend on earlier states. Connections are counted if the configuration requests it.
pub(crate) fn inspect(key: &FrontendKey, names: &KernelNames, tables: &mut dyn Tables) -> Result<Inspection> {
    let snapshot = tables.read(&table(key.family(), names))?;
    Ok(snapshot.map(|snapshot| inspect_table(&snapshot, key)).unwrap_or_default())
}

/// All Frontends of both families' tables, with the endpoints that their chains select from.
pub(crate) fn list_frontends(
    facts: &NodeFacts,
    tables: &mut dyn Tables,
) -> Result<BTreeMap<FrontendKey, ServedFrontend>> {
    let mut all: BTreeMap<FrontendKey, ServedFrontend> = BTreeMap::new();
    for family in Family::ALL {
        let layout = Layout::new(family, facts);
        let snapshot = tables.read(&layout.table)?;
        let counts = snapshot.iter().flat_map(|snapshot| counts(snapshot, family));
        let counts: Vec<(FrontendKey, u64)> = counts.collect();
        let Some(observed) = snapshot.and_then(|snapshot| Observed::read(snapshot, &layout)) else { continue };
        for key in observed.frontends(family).into_keys() {
            all.entry(key).or_default().add(None);
        }
        for element in observed.of(SetName::Endpoints) {
            if let (Some((key, _)), Some(ElementData::Value(value))) = (split(&element.key, family), &element.data) {
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

/// Packets to node ports at loopback addresses that were refused since the table has the rules for that, by family and
/// protocol. None if there are no such rules, or they cannot be read.
pub(crate) fn rejected_at_localhost(facts: &NodeFacts, tables: &mut dyn Tables) -> BTreeMap<(Family, Protocol), u64> {
    let mut all = BTreeMap::new();
    for family in Family::ALL.into_iter().filter(|family| facts.serves_localhost(*family)) {
        let table = table(family, &facts.config().names);
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

/// The first packets of connections.
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
            let is_it = match set {
                SetName::ClusterIps => element.key == ElementKey::Value(key.address.into()),
                set => frontend_of(set, &element.key, key.family()) == Some(*key),
            };
            if !is_it {
                continue;
            }
            let part = match set {
                SetName::ClusterIps => format!("set {name}: {}", key.address),
                SetName::Endpoints => {
                    let place = split(&element.key, key.family()).and_then(|(_, rest)| rest.first_chunk::<4>());
                    let is_local = place.is_some_and(|bytes| slot_at(u32::from_ne_bytes(*bytes)).0);
                    let Some(ElementData::Value(value)) = &element.data else { continue };
                    let Some(endpoint) = endpoint(value.as_bytes(), key.family()) else { continue };
                    let whose = if is_local { "local endpoint" } else { "endpoint" };
                    format!("map {name}: {whose} {endpoint}")
                }
                SetName::Picked(_) => format!("services: {key}"),
                SetName::Services | SetName::Guarded | SetName::Rejected | SetName::Dropped => format!("{name}: {key}"),
                SetName::Allowed => {
                    sources = sources.saturating_add(1);
                    continue;
                }
                SetName::Draws | SetName::Hairpins => continue,
            };
            inspection.parts.insert(part, String::new());
        }
    }
    if sources > 0 {
        inspection.parts.insert(format!("set allowed: sources of {key}"), sources.to_string());
    }
    inspection
}
