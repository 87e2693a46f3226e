//! State of a table in the kernel, in the words of IPVS mode.

use std::collections::{BTreeMap, BTreeSet};

use ipset::Element;
use nftables::{TableKey, TableSnapshot};

use super::element::decode;
use super::layout::Layout;
use crate::config::Config;
use crate::modes::ipvs::sets::SetKind;
use crate::modes::shared::nft::is_ours;
use crate::modes::shared::table::{Layout as _, Shape};
use crate::net::Family;
use crate::plan::report::Unread;
use crate::ports::{PortError, PortErrorKind, Tables};

/// A family's table as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::modes::ipvs) struct TableContents {
    /// Entries by set, for every set that is there.
    pub(in crate::modes::ipvs) entries: BTreeMap<SetKind, BTreeSet<Element>>,
    pub(super) shape: Shape,
    /// There are foreign sets or elements.
    has_others: bool,
}

impl TableContents {
    /// Reads a snapshot; `None` when the table is foreign.
    fn new(snapshot: TableSnapshot, family: Family) -> Option<Self> {
        let (shape, elements) = Shape::read(snapshot)?;
        let mut found = TableContents { shape, ..TableContents::default() };
        for (name, elements) in elements {
            let Some(kind) = SetKind::ALL_OF_NFT.into_iter().find(|kind| kind.nft_name() == name) else {
                found.has_others = true;
                continue;
            };
            let entries = found.entries.entry(kind).or_default();
            for element in elements {
                match decode(kind, family, &element) {
                    Some(element) => drop(entries.insert(element)),
                    None => found.has_others = true,
                }
            }
        }
        Some(found)
    }

    /// Whether the table cannot be mended, only made again.
    pub(super) fn is_other(&self, layout: &Layout) -> bool {
        let chains = layout.chains();
        let is_wanted = |name: &String| chains.iter().any(|(chain, _)| chain.key.name.as_str() == name);
        self.has_others || !self.shape.chains.keys().all(is_wanted) || self.shape.is_other(layout)
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
) -> Result<Option<TableContents>, Unread> {
    match tables.read(table) {
        Ok(snapshot) => Ok(snapshot.and_then(|snapshot| TableContents::new(snapshot, family))),
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
    match is_ours(&table, tables) {
        Err(error) if matches!(error.kind(), PortErrorKind::Unavailable | PortErrorKind::NotFound) => Ok(false),
        answer => answer,
    }
}
