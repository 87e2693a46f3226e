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
use crate::modes::shared::table::{self, Fate, WriteOutcome};
use crate::plan::step::Action;
use crate::ports::{PortErrorKind, Tables};

/// Writes the changes of a table, with the entries to add or to delete, and notes in `observed` what the kernel has then. A table that was
/// just read is changed only as it was read: nothing is written if another program has changed it since.
///
/// A table that is made or made again gets all entries that are known to be in the kernel, and the new ones. Costs O(entries that
/// change) otherwise.
pub(in crate::modes::ipvs) fn write(
    layout: &Layout,
    change: Option<&TableChange>,
    (action, entries): (Action, Entries),
    observed: &mut Observed,
    tables: &mut dyn Tables,
) -> WriteOutcome<(SetKind, Element)> {
    let family = layout.family;
    let of = |kind| SetKey::new(family, kind);
    let (mut delete, mut add) = (Entries::new(), Entries::new());
    *(if action == Action::Delete { &mut delete } else { &mut add }) = entries;
    let exclusive = [SetKind::LoadBalancerSourceCidr, SetKind::SplitMark];
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
    let (changes, mut written) = table::write(changes, family, (&mut basis, &again), tables);
    observed.basis = basis;
    let EntryChanges { delete, add, .. } = changes.into_owned();
    written.refused.retain(|((kind, element), action, error)| {
        let is_gone = *action == Action::Delete && error.kind() == PortErrorKind::NotFound;
        if is_gone {
            note_gone(observed, of(*kind), element);
        }
        !is_gone
    });
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
