//! Writes nf_tables tables with the entries of their sets.

use std::collections::BTreeMap;

use ipset::Element;

use super::{Run, needed, not_without_virtual_server};
use crate::modes::ipvs::guards::nft::{Entries, write};
use crate::modes::ipvs::guards::{Layout, TableChange};
use crate::modes::ipvs::plan::{Phase, Stage};
use crate::modes::ipvs::sets::{SetKey, SetKind};
use crate::modes::ipvs::split;
use crate::modes::shared::table::WriteOutcome;
use crate::net::Family;
use crate::plan::operation::{Operation, Whole};
use crate::plan::step::{Action, Part, Step};
use crate::ports::{PortError, Tables};

impl Run<'_, '_> {
    /// Creates and repairs tables, and adds or deletes their entries, in one transaction per family.
    pub(super) fn write_tables(&mut self, phase: Phase, stage: &Stage, tables: &mut dyn Tables) {
        let mut all: BTreeMap<Family, Entries> = BTreeMap::new();
        for (set, elements) in &stage.entries {
            let mut elements = elements.clone();
            if set.kind.gives_marks() && phase.adds() {
                elements.retain(|element| self.may_give_mark(*set, element));
            } else if !phase.adds() {
                elements.retain(|element| self.may_delete(*set, element));
            }
            if !elements.is_empty() {
                all.entry(set.family).or_default().insert(set.kind, elements);
            }
        }
        for layout in self.plan.layouts.values() {
            let family = layout.family;
            let change = stage.tables.iter().find(|change| change.layout.family == family);
            let entries = all.remove(&family).unwrap_or_default();
            let lacks_table = phase <= Phase::Retire && self.unguarded.contains(&family);
            if lacks_table || (change.is_none() && entries.is_empty()) {
                continue;
            }
            let count = entries.values().map(Vec::len).sum();
            let written = write(layout, change, (phase.action(), entries), (self.observed, &mut self.basis), tables);
            self.note_written(layout, (phase, change), count, written);
        }
    }

    /// Whether packets may get a mark, which must have a virtual server.
    fn may_give_mark(&mut self, set: SetKey, element: &Element) -> bool {
        let server = split::frontend_of(element).and_then(|frontend| self.wanted.split(&frontend));
        let Some(server) = server else { return false };
        let is_served = self.observed.virtual_servers.contains_key(&server);
        if !is_served {
            self.fail_entry(set, Action::Add, element, not_without_virtual_server(&server));
        }
        is_served
    }

    /// Whether an entry may be deleted: no virtual server needs it. One that stood in the way of another was deleted
    /// with that one.
    fn may_delete(&mut self, set: SetKey, element: &Element) -> bool {
        if !self.needs.entry(set, element) {
            return self.observed.has_entry(set, element);
        }
        self.fail_entry(set, Action::Delete, element, needed());
        false
    }

    fn fail_entry(&mut self, set: SetKey, action: Action, element: &Element, why: PortError) {
        let entry = Operation::Entry(action, self.plan.set_in(set), element);
        self.applied.fail(entry.step(self.names), why);
    }

    fn note_written(
        &mut self,
        layout: &Layout,
        (phase, change): (Phase, Option<&TableChange>),
        count: usize,
        written: WriteOutcome<(SetKind, Element)>,
    ) {
        self.effects.surprises = self.effects.surprises.saturating_add(written.is_surprise.into());
        if let Some(error) = written.failed {
            let entries =
                || Step::new(Action::Change, Part::Table, &layout.table).with(format_args!("{count} entries"));
            self.effects.unwritten.insert(layout.family, error.kind());
            self.applied.fail(change.map_or_else(entries, TableChange::step), error);
            self.unguarded.extend((phase == Phase::Prepare).then_some(layout.family));
            return;
        }
        if let Some(step) = change.map(TableChange::step) {
            self.applied.count(step.part, step.action, 1);
        }
        // Entries that conflict with new ones were not requested.
        let refused = written.refused.iter().filter(|(_, action, _)| *action == phase.action());
        self.applied.count(Part::Entry, phase.action(), count.saturating_sub(refused.count()));
        for ((kind, element), action, error) in written.refused {
            self.fail_entry(SetKey::new(layout.family, kind), action, &element, error);
        }
    }
}
