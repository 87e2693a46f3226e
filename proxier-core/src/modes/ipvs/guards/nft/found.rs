//! State of a table in the kernel, in the words of IPVS mode.

use std::collections::{BTreeMap, BTreeSet};

use ipset::Element;
use nftables::{Rule, Set, SetFlags, TableFlags, TableKey, TableSnapshot};

use super::element::decode;
use super::layout::Layout;
use crate::config::Config;
use crate::modes::ipvs::sets::SetKind;
use crate::modes::shared::nft::OWNED;
use crate::net::Family;
use crate::plan::report::Unread;
use crate::ports::{PortError, PortErrorKind, Tables};

/// A family's table as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::modes::ipvs) struct Found {
    /// Entries by set, for every set that is there.
    pub(in crate::modes::ipvs) entries: BTreeMap<SetKind, BTreeSet<Element>>,
    /// Flags of the table.
    flags: TableFlags,
    /// The sets as they are.
    sets: BTreeMap<SetKind, Set>,
    /// Chains as they are, with their rules.
    chains: BTreeMap<String, (nftables::Chain, Vec<Rule>)>,
    /// There are foreign sets or elements.
    has_others: bool,
}

impl Found {
    /// Reads a snapshot; `None` when the table is foreign.
    fn new(snapshot: TableSnapshot, family: Family) -> Option<Self> {
        let mut found = Found { flags: snapshot.table.table.flags, ..Found::default() };
        for chain in snapshot.chains {
            found.chains.insert(chain.chain.key.name.as_str().to_owned(), (chain.chain, Vec::new()));
        }
        if !found.chains.contains_key(OWNED) {
            return None;
        }
        for rule in snapshot.rules {
            if let Some((_, rules)) = found.chains.get_mut(rule.chain.name.as_str()) {
                rules.push(rule.rule);
            }
        }
        for contents in snapshot.sets {
            let set = contents.set.set;
            let kind = SetKind::ALL_OF_NFT.into_iter().find(|kind| kind.nft_name() == set.key.name.as_str());
            let Some(kind) = kind else {
                // Anonymous sets go with their rules, which differ from own ones.
                found.has_others |= !set.flags.contains(SetFlags::ANONYMOUS);
                continue;
            };
            let entries = found.entries.entry(kind).or_default();
            for element in contents.elements {
                match decode(kind, family, &element) {
                    Some(element) => drop(entries.insert(element)),
                    None => found.has_others = true,
                }
            }
            found.sets.insert(kind, set);
        }
        Some(found)
    }

    /// Whether the table cannot be mended, only made again: it has flags (`dormant`: no chain sees packets), another set or base chain than the
    /// layout, or foreign contents.
    pub(super) fn is_other(&self, layout: &Layout) -> bool {
        let is_kind_of = |found: &Set, wanted: &Set| {
            found.key_type == wanted.key_type && found.data == wanted.data && found.all_flags() == wanted.all_flags()
        };
        let has_set = |kind: SetKind| self.sets.get(&kind).is_some_and(|found| is_kind_of(found, &layout.set(kind)));
        let chains = layout.chains();
        let is_wanted = |name: &String| chains.iter().any(|(chain, _)| chain.key.name.as_str() == name);
        // A missing chain can be added, one of another kind not be changed.
        let is_other = |chain: &nftables::Chain| self.chain(chain).is_some_and(|(found, _)| found.base != chain.base);
        self.has_others
            || self.flags != layout.to_table().flags
            || !SetKind::ALL_OF_NFT.into_iter().all(has_set)
            || !self.chains.keys().all(is_wanted)
            || chains.iter().any(|(chain, _)| is_other(chain))
    }

    /// A chain as it is.
    pub(super) fn chain(&self, wanted: &nftables::Chain) -> Option<&(nftables::Chain, Vec<Rule>)> {
        self.chains.get(wanted.key.name.as_str())
    }
}

/// Reads the table of a family; `None` when there is none, or a foreign one.
///
/// # Errors
/// The table could not be read.
pub(in crate::modes::ipvs) fn read(
    table: &TableKey,
    family: Family,
    tables: &mut dyn Tables,
) -> Result<Option<Found>, Unread> {
    match tables.read(table) {
        Ok(snapshot) => Ok(snapshot.and_then(|snapshot| Found::new(snapshot, family))),
        Err(error) => Err(Unread::new(format_args!("table {table}"), error)),
    }
}

/// Whether a family is served by nftables mode, which has not been cleaned up yet.
///
/// # Errors
/// The kernel could not be asked.
pub(in crate::modes::ipvs) fn has_nftables_mode(
    family: Family,
    config: &Config,
    tables: &mut dyn Tables,
) -> Result<bool, PortError> {
    let name = crate::modes::shared::nft::name(config.names.table.as_str());
    let table = nftables::TableKey { family: family.into(), name };
    match tables.has_chain(&table, OWNED) {
        Err(error) if matches!(error.kind(), PortErrorKind::Unavailable | PortErrorKind::NotFound) => Ok(false),
        answer => answer,
    }
}
