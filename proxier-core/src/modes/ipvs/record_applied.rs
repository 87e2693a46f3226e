//! What the mode tracks of its own objects: after a plan was applied, and after another program deleted the sets, or
//! the nf_tables table, that recorded them (`nft flush ruleset`).

use std::collections::{BTreeMap, BTreeSet};

use ipset::Element;
use ipvs::VirtualServerKey;

use super::apply::Effects;
use super::guards::Guards;
use super::index::Changed;
use super::mode::Mode;
use super::plan::Plan;
use super::rules;
use crate::backoff::RulesRetry;
use crate::config::Config;
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::sets::{SetKey, SetKind};
use crate::modes::ipvs::split;
use crate::ports::PortErrorKind;
use crate::time::Moment;

impl Mode {
    /// Records which virtual servers are this proxy's now, and which must still be served.
    pub(super) fn note_virtual_servers(&mut self, plan: &Plan) {
        self.recorded.changed = Changed::default();
        let Some(observed) = &self.observed else { return };
        self.unmade.retain(|key| !observed.virtual_servers.contains_key(key));
        // Virtual servers that wait for rules or entries are served by the pass that writes those.
        for key in plan.guarded.iter().filter(|key| !observed.virtual_servers.contains_key(key)) {
            self.recorded.changed.virtual_servers.insert(*key);
            if let VirtualServerKey::Address { addr, .. } = key {
                self.recorded.changed.addresses.insert(*addr);
            }
        }
    }

    /// Records which rules or layouts the kernel has, what it turned out to lack, and when to retry. `skipped`:
    /// families that are not in the plan may have changed.
    pub(super) fn note_guards(
        &mut self,
        plan: &mut Plan,
        effects: &Effects,
        skipped: bool,
        clock: &dyn Fn() -> Moment,
    ) {
        let programs = match &mut self.guards {
            Guards::Programs(programs) => programs,
            Guards::Nft(tables) => {
                tables.forget_found();
                tables.written = std::mem::take(&mut plan.layouts);
                tables.written.retain(|family, _| !effects.unwritten.contains_key(family));
                return;
            }
        };
        programs.rules.retain(|family, _| !skipped || plan.inputs.contains_key(family));
        // Do not retry what this kernel turned out to lack.
        for (family, capabilities) in &effects.reduced {
            let known = programs.capabilities;
            programs.capabilities =
                known.both(rules::Capabilities { random_fully: known.random_fully, ..*capabilities });
            if let Some(taken) = plan.inputs.get_mut(family) {
                taken.capabilities = *capabilities;
            }
        }
        for (family, inputs) in std::mem::take(&mut plan.inputs) {
            let Some(kind) = effects.unwritten.get(&family) else {
                programs.rules.insert(family, inputs);
                programs.retry.remove(&family);
                continue;
            };
            // If the lock was not available, or it was skipped, nothing changed. After another failure one table may be
            // as desired and another not.
            if !matches!(kind, PortErrorKind::Busy | PortErrorKind::Skipped) {
                programs.rules.remove(&family);
            }
            let seed = self.seed;
            let retry = programs.retry.entry(family).or_insert_with(|| RulesRetry::new(seed));
            retry.failed(clock());
        }
    }
}

/// The last tracked contents of the sets.
#[derive(Debug, Default)]
pub(super) struct RememberedSets(BTreeMap<SetKey, BTreeSet<Element>>);

impl RememberedSets {
    /// Keeps the tracked records before they are dropped or read again.
    pub(super) fn remember(&mut self, known: Option<Observed>) {
        let Some(Observed { sets, before, .. }) = known else { return };
        self.0 = before;
        for (set, elements) in sets {
            self.0.entry(set).or_default().extend(elements);
        }
    }

    /// Adds the deleted sets to those that were read. They identify this proxy's virtual servers, like those of the
    /// other variant of [`guards`](super::guards).
    pub(super) fn restore_into(&mut self, observed: &mut Observed) {
        for (set, elements) in std::mem::take(&mut self.0) {
            if !observed.sets.contains_key(&set) && !elements.is_empty() {
                observed.before.entry(set).or_default().extend(elements);
            }
        }
    }
}

/// Recognizes virtual servers of marks whose records were deleted with their table, for a process that has just started
/// or a cleanup.
pub(super) fn recall_marks(observed: &mut Observed, config: &Config) {
    if observed.addresses.is_empty() && observed.routes.is_empty() {
        return;
    }
    let recorded: BTreeSet<VirtualServerKey> = observed.records().filter_map(split::server_of).collect();
    let has_table = |key: &VirtualServerKey| {
        let set = SetKey::new(key.family().into(), SetKind::SplitMark);
        observed.sets.contains_key(&set) || observed.before.contains_key(&set)
    };
    let of_marks = observed.virtual_servers.keys().filter(|key| key.addr().is_none());
    let lost = of_marks.filter(|key| !recorded.contains(key) && !has_table(key)).copied().collect::<BTreeSet<_>>();
    if lost.is_empty() {
        return;
    }
    let marks = (config.ipvs.mark_range, config.masquerade_bit);
    for (place, mark) in split::recall(marks, &lost, &observed.virtual_servers) {
        let (set, element) = split::record(&place, mark);
        observed.before.entry(set).or_default().insert(element);
    }
}
