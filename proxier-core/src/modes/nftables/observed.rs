//! What a table of the kernel holds, in the words of this mode.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nftables::{ElementData, ElementKey, Rule, TableSnapshot};

use super::layout::{Layout, OWNED};
use super::lower::SetName;
use crate::net::{Family, FrontendKey, Protocol};

/// A family's table as it was read.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// Elements by set. Those that rules write are not read into it.
    pub(super) elements: BTreeMap<SetName, BTreeMap<ElementKey, Option<ElementData>>>,
    /// Rules by chain.
    pub(super) chains: BTreeMap<String, Vec<Rule>>,
    /// Base chains differ from ours, or a set does: the table cannot be mended, only made again.
    pub(super) is_other: bool,
}

impl Observed {
    /// Reads a snapshot; `None` when the table is somebody else's.
    pub(super) fn read(snapshot: TableSnapshot, layout: &Layout) -> Option<Self> {
        let mut observed = Observed::default();
        for chain in &snapshot.chains {
            observed.chains.insert(chain.chain.key.name.as_str().to_owned(), Vec::new());
        }
        if !observed.chains.contains_key(OWNED) {
            return None;
        }
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
                // Anonymous sets go with their rules.
                continue;
            };
            let wanted = layout.set(set);
            let found = &contents.set.set;
            observed.is_other |= found.key_type != wanted.key_type
                || found.data != wanted.data
                || found.all_flags() != wanted.all_flags()
                || found.size != wanted.size;
            there.insert(set);
            if !set.is_written_by_rules() {
                let elements = contents.elements.into_iter().map(|element| (element.key, element.data));
                observed.elements.insert(set, elements.collect());
            }
        }
        // Rules name sets: a table without one of them has other rules too.
        observed.is_other |= there.len() != SetName::ALL.len();
        Some(observed)
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
    if matches!(set, SetName::ClusterIps | SetName::Hairpins | SetName::Affinity) {
        return None;
    }
    let (ElementKey::Value(value) | ElementKey::Range(value, _)) = key else { return None };
    let bytes = value.as_bytes();
    let (address, rest) = match family {
        Family::V4 => {
            let (address, rest) = bytes.split_first_chunk::<4>()?;
            (IpAddr::V4(Ipv4Addr::from(*address)), rest)
        }
        Family::V6 => {
            let (address, rest) = bytes.split_first_chunk::<16>()?;
            (IpAddr::V6(Ipv6Addr::from(*address)), rest)
        }
    };
    let (protocol, rest) = rest.split_first_chunk::<4>()?;
    let protocol = match protocol.first()? {
        6 => Protocol::Tcp,
        17 => Protocol::Udp,
        132 => Protocol::Sctp,
        _ => return None,
    };
    let port = u16::from_be_bytes(*rest.first_chunk::<2>()?);
    Some(FrontendKey::new(protocol, address, port))
}
