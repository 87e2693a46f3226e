//! Writes tables of nf_tables with the entries of their sets.

use std::collections::BTreeMap;

use ipset::Element;
use ipvs::model::Weight;

use super::{Run, skipped};
use crate::modes::ipvs::guards::nft::{Entries, Refused, Written, write};
use crate::modes::ipvs::guards::{Layout, TableChange};
use crate::modes::ipvs::held::Needs;
use crate::modes::ipvs::plan::Plan;
use crate::modes::ipvs::servers::RealServers;
use crate::modes::ipvs::sets::{SetKey, SetKind};
use crate::modes::ipvs::split;
use crate::net::{Family, FrontendKey};
use crate::plan::step::{Action, Part, Step};
use crate::ports::Tables;

fn by_family(entries: &BTreeMap<SetKey, Vec<Element>>) -> BTreeMap<Family, Entries> {
    let mut all: BTreeMap<Family, Entries> = BTreeMap::new();
    for (set, elements) in entries {
        all.entry(set.family).or_default().insert(set.kind, elements.clone());
    }
    all
}

impl Run<'_, '_> {
    /// Makes and mends tables, and adds entries: one transaction a family. Those that give packets marks come later.
    pub(super) fn add_to_tables(&mut self, plan: &Plan, tables: &mut dyn Tables) {
        let mut add = by_family(&plan.add_entries);
        for entries in add.values_mut() {
            entries.retain(|kind, _| !kind.gives_marks());
        }
        for layout in plan.layouts.values() {
            let family = layout.family();
            let change = plan.tables.iter().find(|change| change.layout.family() == family);
            let entries = add.remove(&family).unwrap_or_default();
            if change.is_none() && entries.is_empty() {
                continue;
            }
            let written = write(layout, change, (&Entries::new(), &entries), self.observed, tables);
            if !self.note_written(layout, change, &entries, written) {
                self.unguarded.insert(family);
            }
        }
    }

    /// Gives packets their marks, where these have virtual servers: one transaction a family.
    pub(super) fn start_splitting(&mut self, plan: &Plan, tables: &mut dyn Tables) {
        for (family, mut entries) in by_family(&plan.add_entries) {
            entries.retain(|kind, _| kind.gives_marks());
            let Some(layout) = plan.layouts.get(&family).filter(|_| !self.unguarded.contains(&family)) else {
                continue;
            };
            let (wanted, there) = (self.wanted, &self.observed.virtual_servers);
            for (kind, elements) in &mut entries {
                let name = self.by.name_of(SetKey::new(family, *kind), self.kernel);
                elements.retain(|element| {
                    let server = match kind {
                        SetKind::NodePortMark => split::server_of(element),
                        _ => split::frontend_of(element).and_then(|frontend| wanted.split(&frontend)),
                    };
                    let is_served = server.is_some_and(|server| there.contains_key(&server));
                    if let Some(server) = server.filter(|_| !is_served) {
                        let step = Step::entry(Action::Add, &name, element);
                        self.applied.fail(step, skipped::not_without_virtual_server(&server));
                    }
                    is_served
                });
            }
            if entries.values().any(|elements| !elements.is_empty()) {
                let written = write(layout, None, (&Entries::new(), &entries), self.observed, tables);
                self.note_written(layout, None, &entries, written);
            }
        }
    }

    /// Deletes the entries that give packets marks, except those that virtual servers need: one transaction a family.
    pub(super) fn stop_splitting(&mut self, plan: &Plan, needs: &Needs, tables: &mut dyn Tables) {
        self.delete_some_from_tables(plan, needs, SetKind::gives_marks, tables);
    }

    /// Deletes the other entries.
    pub(super) fn delete_from_tables(&mut self, plan: &Plan, needs: &Needs, tables: &mut dyn Tables) {
        self.delete_some_from_tables(plan, needs, |kind| !kind.gives_marks(), tables);
    }

    fn delete_some_from_tables(
        &mut self,
        plan: &Plan,
        needs: &Needs,
        which: impl Fn(SetKind) -> bool,
        tables: &mut dyn Tables,
    ) {
        for (family, mut entries) in by_family(&plan.delete_entries) {
            entries.retain(|kind, _| which(*kind));
            if entries.is_empty() {
                continue;
            }
            let Some(layout) = plan.layouts.get(&family) else { continue };
            for (kind, elements) in &mut entries {
                let set = SetKey::new(family, *kind);
                let name = self.by.name_of(set, self.kernel);
                elements.retain(|element| {
                    if let Some(place) = self.lacks_own(set, element) {
                        let step = Step::entry_of(set, Action::Delete, &name, element);
                        self.applied.fail(step, skipped::not_without_own(&place));
                        return false;
                    }
                    let is_needed = needs.entry(set, element);
                    if is_needed {
                        self.applied.fail(Step::entry_of(set, Action::Delete, &name, element), skipped::needed());
                    }
                    // One that stood in the way of another went with that one.
                    !is_needed && self.observed.has_entry(set, element)
                });
            }
            let written = write(layout, None, (&entries, &Entries::new()), self.observed, tables);
            self.note_written(layout, None, &entries, written);
        }
    }

    /// The node port that an entry gives a mark, if it is to have a virtual server of its own, and that does not serve yet.
    fn lacks_own(&self, set: SetKey, element: &Element) -> Option<FrontendKey> {
        let (place, _) = split::recorded(element).filter(|_| set.kind == SetKind::NodePortMark)?;
        let own = self.wanted.server(&place.into())?;
        let serves = |real_servers: &RealServers| real_servers.iter().any(|real| real.config.weight != Weight::DRAIN);
        let there = self.observed.virtual_servers.get(&own.key);
        let is_ready = there.is_some_and(|there| serves(&there.real_servers) || !serves(&own.real_servers));
        (!is_ready).then_some(place)
    }

    /// Writes the chains that are written last.
    pub(super) fn write_last(&mut self, changes: &[TableChange], tables: &mut dyn Tables) {
        for change in changes {
            if self.unguarded.contains(&change.layout.family()) {
                continue;
            }
            let nothing = Entries::new();
            let written = write(&change.layout, Some(change), (&nothing, &nothing), self.observed, tables);
            self.note_written(&change.layout, Some(change), &nothing, written);
        }
    }

    /// Notes an outcome; returns whether the transaction was committed.
    fn note_written(
        &mut self,
        layout: &Layout,
        change: Option<&TableChange>,
        entries: &Entries,
        written: Written,
    ) -> bool {
        self.effects.surprises = self.effects.surprises.saturating_add(written.is_surprise.into());
        if let Some(error) = written.failed {
            let count = entries.values().map(Vec::len).sum::<usize>();
            let entries =
                || Step::new(Action::Change, Part::Table, layout.table()).with(format_args!("{count} entries"));
            self.applied.fail(change.map_or_else(entries, TableChange::step), error);
            self.effects.unwritten.insert(layout.family());
            return false;
        }
        if let Some(step) = change.map(TableChange::step) {
            self.applied.count(step.part, step.action, 1);
        }
        self.applied.count(Part::Entry, Action::Add, written.added);
        self.applied.count(Part::Entry, Action::Delete, written.deleted);
        for Refused { set, action, element, error } in written.refused {
            let name = self.by.name_of(set, self.kernel);
            self.applied.fail(Step::entry_of(set, action, name, &element), error);
        }
        true
    }
}
