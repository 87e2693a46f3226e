//! Writes what masquerades and guards: tables of nf_tables with the entries of their sets, or rules of iptables.

use std::collections::BTreeMap;
use std::slice;

use ipset::Element;
use ipvs::VirtualServerKey;

use super::{Run, not_without_set, skipped};
use crate::modes::ipvs::guards::TableChange;
use crate::modes::ipvs::guards::nft::{Entries, write};
use crate::modes::ipvs::plan::{Phase, RulesChange, Stage};
use crate::net::Family;
use crate::plan::operation::{Operation, Whole};
use crate::plan::report::Lack;
use crate::plan::step::{Action, Part, Step};
use crate::ports::{PortError, PortErrorKind, Result, Rules, SetKey, SetKind, Tables};

impl<'a> Run<'a, '_> {
    /// Creates and repairs tables, and adds or deletes their entries, in one transaction per family.
    pub(super) fn write_tables(&mut self, phase: Phase, stage: &'a Stage, tables: &mut dyn Tables) {
        let mut all: BTreeMap<Family, Entries> = BTreeMap::new();
        for (set, elements) in &stage.entries {
            let of = self.plan.set_in(*set);
            let is_possible = |element: &&Element| self.is_possible(&Operation::Entry(phase.action(), of, element));
            let possible: Vec<Element> = elements.iter().filter(is_possible).cloned().collect();
            if !possible.is_empty() {
                all.entry(set.family).or_default().insert(set.kind, possible);
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
            let count: usize = entries.values().map(Vec::len).sum();
            let basis = self.basis.get_or_insert_default();
            let written = write(layout, change, (phase.action(), entries), (self.observed, basis), tables);
            self.effects.is_surprised |= written.is_surprise;
            if let Some(error) = written.failed {
                let entries =
                    || Step::new(Action::Change, Part::Table, &layout.table).with(format_args!("{count} entries"));
                self.effects.unwritten.insert(layout.family, error.kind());
                self.applied.fail(change.map_or_else(entries, TableChange::step), error);
                self.unguarded.extend((phase == Phase::Prepare).then_some(layout.family));
                continue;
            }
            if let Some(step) = change.map(TableChange::step) {
                self.applied.count(step.part, step.action, 1);
            }
            // Entries that conflict with new ones were not requested.
            let refused = written.refused.iter().filter(|(_, action, _)| *action == phase.action());
            self.applied.count(Part::Entry, phase.action(), count.saturating_sub(refused.count()));
            for ((kind, element), action, error) in written.refused {
                let set = self.plan.set_in(SetKey::new(layout.family, kind));
                self.applied.fail(Operation::Entry(action, set, &element).step(self.names), error);
            }
        }
    }

    /// Restores rules, except those that still guard a virtual server that could not be deleted.
    pub(super) fn restore(&mut self, changes: &'a [RulesChange], rules: &mut dyn Rules) {
        self.unguarded.extend(changes.iter().map(|change| change.family));
        let mut possible = Vec::new();
        for change in changes {
            // No rule refers to this proxy's own set.
            let is_referred = |set: &&SetKey| set.family == change.family && set.kind.is_of_kube_proxy();
            let is_guarded = |key: &&VirtualServerKey| {
                Family::from(key.family()) == change.family
                    && self.observed.entry(key, SetKind::LoadBalancerFirewall).is_some()
            };
            let why = if let Some(set) = self.missing.iter().find(is_referred) {
                not_without_set(set.named(self.plan.names.prefix))
            } else if let Some(key) = self.left.iter().find(is_guarded) {
                skipped(format_args!("stay, because they guard virtual server {key}, which could not be deleted"))
            } else {
                possible.push(change);
                continue;
            };
            self.effects.unwritten.insert(change.family, why.kind());
            self.applied.fail(change.step(), why);
        }
        if possible.is_empty() {
            return;
        }
        let transactions: Vec<_> =
            possible.iter().map(|change| (change.family, slice::from_ref(&change.changes.transaction))).collect();
        for (change, outcome) in possible.into_iter().zip(rules.restore_families(&transactions)) {
            let outcome = outcome.or_else(|error| self.restore_without(change, error, rules));
            match &outcome {
                Ok(()) => drop(self.unguarded.remove(&change.family)),
                Err(error) => drop(self.effects.unwritten.insert(change.family, error.kind())),
            }
            self.applied.note(change.step(), outcome);
        }
    }

    /// Retries refused rules without optional matches that the kernel may lack.
    fn restore_without(&mut self, change: &RulesChange, refused: PortError, rules: &mut dyn Rules) -> Result<()> {
        // Errors of other kinds do not mean that the kernel would refuse the same again.
        let lacks =
            matches!(refused.kind(), PortErrorKind::NotFound | PortErrorKind::Unavailable | PortErrorKind::Invalid);
        // Another program may have removed a chain meanwhile, so the same is written again first.
        if refused.kind() == PortErrorKind::NotFound
            && rules.restore(change.family, &change.changes.transaction).is_ok()
        {
            return Ok(());
        }
        let mut others = change.without.iter().filter(|_| lacks);
        let taken = others.find(|(_, changes)| rules.restore(change.family, &changes.transaction).is_ok());
        let Some((capabilities, _)) = taken else { return Err(refused) };
        self.effects.reduced.push((change.family, *capabilities));
        self.applied.lacks.push(Lack::new(capabilities.lost(), refused));
        Ok(())
    }
}
