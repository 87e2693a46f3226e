//! Contents of a table for one address and port.

use nftables::{ElementData, ElementKey, TableSnapshot, Verdict};

use super::layout::{table, table_name};
use super::lower::SetName;
use super::observed::{address, endpoint, frontend_of, split};
use super::pick::slot_at;
use crate::config::KernelNames;
use crate::modes::look::Held;
use crate::net::FrontendKey;
use crate::ports::{PortError, Tables};

/// The elements about an address and port. Which slots endpoints have does not matter, nor which chain picks one: both depend on
/// what was there before. The maps count nothing.
///
/// # Errors
/// The table could not be read.
pub(in crate::modes) fn look(
    key: &FrontendKey,
    names: &KernelNames,
    tables: &mut dyn Tables,
) -> Result<Held, PortError> {
    let snapshot = tables.read(&table(key.family(), &table_name(names)))?;
    Ok(snapshot.map(|snapshot| of(&snapshot, key)).unwrap_or_default())
}

fn of(snapshot: &TableSnapshot, key: &FrontendKey) -> Held {
    let mut held = Held::default();
    let mut sources = 0_usize;
    for contents in &snapshot.sets {
        let name = contents.set.set.key.name.as_str();
        let Some(set) = SetName::ALL.into_iter().find(|set| set.as_str() == name) else { continue };
        for element in &contents.elements {
            if set == SetName::ClusterIps {
                let value = match &element.key {
                    ElementKey::Value(value) => address(value.as_bytes(), key.family()),
                    _ => None,
                };
                if value.is_some_and(|(address, _)| address == key.address) {
                    held.parts.insert(format!("set {name}: {}", key.address), String::new());
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
                    held.parts.insert(format!("map {name}: {whose} {endpoint}"), String::new());
                }
                SetName::NoEndpoints => {
                    let verdict = match &element.data {
                        Some(ElementData::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain))) => {
                            chain.as_str().to_owned()
                        }
                        Some(ElementData::Verdict(Verdict::Drop)) => "drop".to_owned(),
                        _ => String::new(),
                    };
                    held.parts.insert(format!("map {name}: {key}"), verdict);
                }
                SetName::Allowed => sources = sources.saturating_add(1),
                SetName::Services | SetName::Guarded => {
                    held.parts.insert(format!("{name}: {key}"), String::new());
                }
                SetName::Draws | SetName::ClusterIps | SetName::Hairpins => {}
            }
        }
    }
    if sources > 0 {
        held.parts.insert(format!("set allowed: sources of {key}"), sources.to_string());
    }
    held
}
