//! State of a table in the kernel, in the words of this mode.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nftables::{ElementData, ElementKey, Rule, Set, SetFlags, TableSnapshot, Verdict};

use super::layout::{ARRIVING_GUARD, CLIENTS_BY_DEFAULT, Layout, OWNED, localhost_guard};
use super::lower::SetName;
use super::pick::{most_of, slot_at};
use super::slots::Held;
use crate::net::{EndpointKey, Family, FrontendKey, Protocol};

/// A family's table as it was read.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Observed {
    /// Elements by set, without sets of slots: rules write those, and they never count as drift.
    pub(super) elements: BTreeMap<SetName, BTreeMap<ElementKey, Option<ElementData>>>,
    /// Rules by chain.
    pub(super) chains: BTreeMap<String, Vec<Rule>>,
    /// Sets that are none of [`SetName`], but for anonymous ones, which go with their rules.
    pub(super) other_sets: BTreeMap<String, Set>,
    /// The table has flags (`dormant`: no chain sees packets), or other base chains or another set than the layout: it can only be made again.
    pub(super) is_other: bool,
}

impl Observed {
    /// Reads a snapshot; `None` when the table is foreign.
    pub(super) fn read(snapshot: TableSnapshot, layout: &Layout) -> Option<Self> {
        let mut observed = Observed::default();
        for chain in &snapshot.chains {
            observed.chains.insert(chain.chain.key.name.as_str().to_owned(), Vec::new());
        }
        if !observed.chains.contains_key(OWNED) {
            return None;
        }
        observed.is_other = snapshot.table.table.flags != layout.to_table().flags;
        for (chain, _) in layout.chains() {
            let found = snapshot.chains.iter().find(|found| found.chain.key == chain.key);
            // A missing chain can be added to the table, one of another kind not be changed.
            observed.is_other |= found.is_some_and(|found| found.chain.base != chain.base);
        }
        for rule in snapshot.rules {
            if let Some(rules) = observed.chains.get_mut(rule.chain.name.as_str()) {
                rules.push(rule.rule);
            }
        }
        let mut there = BTreeSet::new();
        for contents in snapshot.sets {
            let name = contents.set.set.key.name.as_str();
            let Some(set) = SetName::ALL.into_iter().find(|set| set.as_str() == name) else {
                if !contents.set.set.flags.contains(SetFlags::ANONYMOUS) {
                    observed.other_sets.insert(name.to_owned(), contents.set.set);
                }
                continue;
            };
            let wanted = layout.set(set);
            observed.is_other |= !is_kind_of(&contents.set.set, &wanted);
            there.insert(set);
            let elements = contents.elements.into_iter().map(|element| (element.key, element.data));
            observed.elements.insert(set, elements.collect());
        }
        // Rules name sets: a table without one of them has other rules too.
        observed.is_other |= there.len() != SetName::ALL.len();
        Some(observed)
    }

    /// Whether the table keeps other hosts off programs that listen at loopback addresses.
    pub(super) fn guards_localhost(&self) -> bool {
        self.chains.get(ARRIVING_GUARD).is_some_and(|rules| rules.contains(&localhost_guard()))
    }

    /// The slots of endpoints, and for how many the chain is that chooses among them, by Frontend.
    pub(super) fn slots(&self, family: Family) -> BTreeMap<FrontendKey, Held> {
        let mut all: BTreeMap<FrontendKey, Held> = BTreeMap::new();
        for (key, data) in self.elements.get(&SetName::Endpoints).into_iter().flatten() {
            let (Some((frontend, rest)), Some(ElementData::Value(data))) = (split(key, family), data) else { continue };
            let place = rest.first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes));
            let (Some((is_local, slot)), Some(endpoint)) = (place.map(slot_at), endpoint(data.as_bytes(), family))
            else {
                continue;
            };
            let held = all.entry(frontend).or_default();
            // Of an endpoint in two slots the lower one counts.
            let lowest = held.of_mut(is_local).slots.entry(endpoint).or_insert(slot);
            *lowest = slot.min(*lowest);
        }
        for (key, data) in self.elements.get(&SetName::Services).into_iter().flatten() {
            let (Some((frontend, _)), Some(ElementData::Verdict(Verdict::Goto(chain)))) = (split(key, family), data)
            else {
                continue;
            };
            for is_local in [false, true] {
                if let (Some(held), Some(most)) = (all.get_mut(&frontend), most_of(chain.as_str(), is_local)) {
                    held.of_mut(is_local).most = Some(most);
                }
            }
        }
        all
    }

    /// The Frontends that it serves, with whether there is an endpoint behind them.
    pub(super) fn frontends(&self, family: Family) -> BTreeMap<FrontendKey, bool> {
        let keys = |set: SetName| {
            let elements = self.elements.get(&set).into_iter().flat_map(BTreeMap::keys);
            elements.filter_map(move |key| frontend_of(set, key, family))
        };
        let mut served: BTreeMap<FrontendKey, bool> = keys(SetName::NoEndpoints).map(|key| (key, false)).collect();
        served.extend(keys(SetName::Services).map(|key| (key, true)));
        served
    }
}

/// The Frontend that an element belongs to; `None` for those that several share.
pub(super) fn frontend_of(set: SetName, key: &ElementKey, family: Family) -> Option<FrontendKey> {
    if matches!(set, SetName::ClusterIps | SetName::Hairpins) {
        return None;
    }
    split(key, family).map(|(key, _)| key)
}

/// Whether a set is of this kind.
pub(super) fn is_kind_of(found: &Set, wanted: &Set) -> bool {
    found.key_type == wanted.key_type
        && found.data == wanted.data
        && found.all_flags() == wanted.all_flags()
        && (found.size == wanted.size || wanted.size.is_none() && found.size == Some(CLIENTS_BY_DEFAULT))
}

pub(super) fn address(bytes: &[u8], family: Family) -> Option<(IpAddr, &[u8])> {
    Some(match family {
        Family::V4 => {
            let (address, rest) = bytes.split_first_chunk::<4>()?;
            (IpAddr::V4(Ipv4Addr::from(*address)), rest)
        }
        Family::V6 => {
            let (address, rest) = bytes.split_first_chunk::<16>()?;
            (IpAddr::V6(Ipv6Addr::from(*address)), rest)
        }
    })
}

pub(super) fn endpoint(bytes: &[u8], family: Family) -> Option<EndpointKey> {
    let (address, rest) = address(bytes, family)?;
    Some(EndpointKey::new(address, u16::from_be_bytes(*rest.first_chunk::<2>()?)))
}

/// The Frontend at the beginning of a key, and the rest of the key.
pub(super) fn split(key: &ElementKey, family: Family) -> Option<(FrontendKey, &[u8])> {
    let (ElementKey::Value(value) | ElementKey::Range(value, _)) = key else { return None };
    let (address, rest) = address(value.as_bytes(), family)?;
    let (protocol, port, rest) = protocol_and_port(rest)?;
    Some((FrontendKey::new(protocol, address, port), rest))
}

/// The protocol and port at the beginning of this part of a key, and the rest of the key.
pub(super) fn protocol_and_port(bytes: &[u8]) -> Option<(Protocol, u16, &[u8])> {
    let (protocol, rest) = bytes.split_first_chunk::<4>()?;
    let protocol = match protocol.first()? {
        6 => Protocol::Tcp,
        17 => Protocol::Udp,
        132 => Protocol::Sctp,
        _ => return None,
    };
    // Each field fills whole words.
    let (port, rest) = match rest.split_first_chunk::<4>() {
        Some(([high, low, ..], rest)) => ([*high, *low], rest),
        None => (*rest.first_chunk::<2>()?, <&[u8]>::default()),
    };
    Some((protocol, u16::from_be_bytes(port), rest))
}
