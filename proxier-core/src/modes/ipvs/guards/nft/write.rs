//! Writes a family's table: one transaction, repeated without the entries that the kernel refuses.

use std::collections::BTreeSet;

use ipset::Element;

use super::basis::Outcome;
use super::change::{Entries, Fate, TableChange, in_the_way, transaction};
use super::layout::Layout;
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::sets::{SetKey, SetKind};
use crate::modes::shared::nft::{CHECKS, is_of_an_element, is_of_the_state, made_by_others, search};
use crate::plan::step::Action;
use crate::ports::{NotCommitted, PortError, PortErrorKind, Tables};

/// Number of entries of one transaction that may be refused before the whole is given up.
const PATIENCE: usize = 16;

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
pub(in crate::modes::ipvs) struct Written {
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
) -> Written {
    let family = layout.family();
    let of = |kind| SetKey::new(family, kind);
    let mut written = Written {
        added: add.values().map(Vec::len).sum(),
        deleted: delete.values().map(Vec::len).sum(),
        ..Written::default()
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
    let mut checks = CHECKS;
    loop {
        let mut outgoing = transaction(layout, change, &delete, &add);
        if outgoing.transaction.is_empty() {
            break;
        }
        let NotCommitted { error, refused } = match observed.basis.commit(family, &mut outgoing.transaction, tables) {
            Outcome::Committed => break,
            Outcome::Refused(refused) => refused,
            Outcome::Changed(NotCommitted { error, .. }) => {
                written.is_surprise = true;
                written.failed = Some(error);
                return written;
            }
        };
        let entry =
            refused.filter(|_| written.refused.len() < PATIENCE).and_then(|(operation, element)| match element {
                Some(element) => outgoing.entry_at(operation, element),
                None if is_of_an_element(&error) => {
                    let (kind, suspects) = outgoing.entries_of(operation)?;
                    let tried = |without: &[Element]| passes(layout, change, (&delete, &add), (kind, without), tables);
                    search(suspects.to_vec(), &mut checks, tried).map(|element| (kind, element))
                }
                None => None,
            });
        let Some((kind, element)) = entry else {
            // Nothing was changed: the transaction is one.
            written.is_surprise = is_of_the_state(&error);
            let is_theirs = error.kind() == PortErrorKind::AlreadyExists
                && change.is_some_and(|change| change.fate == Fate::Make)
                && refused.is_some_and(|(operation, _)| operation == 0);
            written.failed = Some(if is_theirs {
                PortError::new(error.kind(), format_args!("{error}: {}", made_by_others(layout.table())))
            } else {
                error
            });
            return written;
        };
        let set = of(kind);
        if leave_out(&mut delete, kind, &element) {
            if error.kind() == PortErrorKind::NotFound {
                // Gone already.
                written.is_surprise = true;
                note_gone(observed, set, &element);
            } else {
                written.deleted = written.deleted.saturating_sub(1);
                written.refused.push(Refused { set, action: Action::Delete, element, error });
            }
        } else {
            leave_out(&mut add, kind, &element);
            written.added = written.added.saturating_sub(1);
            written.refused.push(Refused { set, action: Action::Add, element, error });
        }
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

/// Whether the kernel takes all but these entries of a set; `None` when it refuses something else.
fn passes(
    layout: &Layout,
    change: Option<&TableChange>,
    (delete, add): (&Entries, &Entries),
    (kind, without): (SetKind, &[Element]),
    tables: &mut dyn Tables,
) -> Option<bool> {
    let without: BTreeSet<&Element> = without.iter().collect();
    let (mut delete, mut add) = (delete.clone(), add.clone());
    for entries in [&mut delete, &mut add] {
        entries.entry(kind).or_default().retain(|element| !without.contains(element));
    }
    let outgoing = transaction(layout, change, &delete, &add);
    match tables.check(&outgoing.transaction) {
        Ok(()) => Some(true),
        // The kernel goes on after a refusal, and the first one counts: of another set it says that this one passed.
        Err(NotCommitted { refused: Some((operation, _)), .. }) => {
            Some(outgoing.entries_of(operation).is_none_or(|(of, _)| of != kind))
        }
        Err(_) => None,
    }
}

/// Whether it was among them.
fn leave_out(entries: &mut Entries, kind: SetKind, element: &Element) -> bool {
    let Some(elements) = entries.get_mut(&kind) else { return false };
    let before = elements.len();
    elements.retain(|of| of != element);
    elements.len() < before
}

fn note_gone(observed: &mut Observed, set: SetKey, element: &Element) {
    if let Some(elements) = observed.sets.get_mut(&set) {
        elements.remove(element);
    }
}
