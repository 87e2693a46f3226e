//! Writes a family's table with its entries.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use ipset::Element;

use super::change::{Entries, EntryChanges, TableChange, in_the_way};
use super::contents::read;
use super::layout::Layout;
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::sets::{SetKey, SetKind};
use crate::modes::shared::table::{self, Fate};
use crate::plan::step::Action;
use crate::ports::{PortError, PortErrorKind, Tables};

/// An entry that the kernel refused.
#[derive(Debug)]
pub(in crate::modes::ipvs) struct Refused {
    pub(in crate::modes::ipvs) set: SetKey,
    pub(in crate::modes::ipvs) action: Action,
    pub(in crate::modes::ipvs) element: Element,
    pub(in crate::modes::ipvs) error: PortError,
}

/// Result of a transaction.
#[derive(Debug, Default)]
pub(in crate::modes::ipvs) struct WriteOutcome {
    /// Failure of the whole, if so; the numbers are meaningless then.
    pub(in crate::modes::ipvs) failed: Option<PortError>,
    /// Entries that were left out of it.
    pub(in crate::modes::ipvs) refused: Vec<Refused>,
    /// The kernel contradicted its known state.
    pub(in crate::modes::ipvs) is_surprise: bool,
    /// Number of entries added, of those asked for.
    pub(in crate::modes::ipvs) added: usize,
    /// Number of entries deleted, of those asked for.
    pub(in crate::modes::ipvs) deleted: usize,
}

/// Writes the changes of a table, with the entries to delete and to add, and notes in `observed` what the kernel has then. A table that was
/// just read is changed only as it was read: nothing is written if another program has changed it since.
///
/// A table that is made or made again gets all entries that are known to be in the kernel, and the new ones. Costs O(entries that
/// change) otherwise.
pub(in crate::modes::ipvs) fn write(
    layout: &Layout,
    change: Option<&TableChange>,
    (delete, add): (&Entries, &Entries),
    observed: &mut Observed,
    tables: &mut dyn Tables,
) -> WriteOutcome {
    let family = layout.family;
    let of = |kind| SetKey::new(family, kind);
    let mut written = WriteOutcome {
        added: add.values().map(Vec::len).sum(),
        deleted: delete.values().map(Vec::len).sum(),
        ..WriteOutcome::default()
    };
    let (mut delete, mut add) = (delete.clone(), add.clone());
    let exclusive = [SetKind::LoadBalancerSourceCidr, SetKind::SplitMark, SetKind::NodePortMark];
    for (kind, elements) in add.iter().filter(|(kind, _)| exclusive.contains(kind)) {
        let displaced =
            observed.sets.get(&of(*kind)).map(|there| in_the_way(*kind, there, elements)).unwrap_or_default();
        delete.entry(*kind).or_default().extend(displaced);
    }
    let is_new = change.is_some_and(|change| change.fate != Fate::Keep);
    if is_new {
        for (set, there) in observed.sets.iter().filter(|(set, _)| set.family == family) {
            let gone = delete.remove(&set.kind).unwrap_or_default();
            let new = add.entry(set.kind).or_default();
            new.extend(there.iter().filter(|element| !gone.contains(element)).cloned());
            new.sort_unstable();
            new.dedup();
        }
        delete.clear();
    }
    let changes: Cow<'_, EntryChanges<'_>> = Cow::Owned(EntryChanges { layout, change, delete, add });
    let mut basis = std::mem::take(&mut observed.basis);
    let again = |tables: &mut dyn Tables| read(&layout.table, family, tables).ok().map(|found| found.map(Arc::new));
    let (changes, outcome) = table::write(changes, family, (&mut basis, &again), tables);
    observed.basis = basis;
    written.is_surprise = outcome.is_surprise;
    written.failed = outcome.failed;
    let EntryChanges { delete, add, .. } = changes.into_owned();
    for ((kind, element), action, error) in outcome.refused {
        let set = of(kind);
        match action {
            // Gone already.
            Action::Delete if error.kind() == PortErrorKind::NotFound => note_gone(observed, set, &element),
            Action::Delete => {
                written.deleted = written.deleted.saturating_sub(1);
                written.refused.push(Refused { set, action, element, error });
            }
            _ => {
                written.added = written.added.saturating_sub(1);
                written.refused.push(Refused { set, action, element, error });
            }
        }
    }
    if written.failed.is_some() {
        return written;
    }
    if is_new {
        observed.sets.retain(|set, _| set.family != family);
        observed.sets.extend(SetKey::all_of_nft(family).map(|set| (set, BTreeSet::new())));
    }
    for (kind, elements) in &delete {
        for element in elements {
            note_gone(observed, of(*kind), element);
        }
    }
    for (kind, elements) in add {
        observed.sets.entry(of(kind)).or_default().extend(elements);
    }
    written
}

fn note_gone(observed: &mut Observed, set: SetKey, element: &Element) {
    if let Some(elements) = observed.sets.get_mut(&set) {
        elements.remove(element);
    }
}
