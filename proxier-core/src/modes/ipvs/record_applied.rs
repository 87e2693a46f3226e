//! Updates the mode's state after a plan was applied.

use ipvs::VirtualServerKey;

use super::apply::Effects;
use super::guards::Guards;
use super::index::Changed;
use super::mode::Mode;
use super::plan::Plan;
use super::rules;
use crate::modes::shared::retry::RulesRetry;
use crate::ports::PortErrorKind;
use crate::time::Moment;

impl Mode {
    /// Notes which virtual servers are this proxy's now, and which have to be served yet.
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

    /// Notes which rules or layouts the kernel has, what it has shown to lack, and when to try again. `skipped`: families that are not in
    /// the plan may have changed.
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
        // Do not try again what this kernel has shown to lack.
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
            // Without the lock, or when skipped, nothing changed. After another failure one table may be as wanted and
            // another not.
            if !matches!(kind, PortErrorKind::Busy | PortErrorKind::Skipped) {
                programs.rules.remove(&family);
            }
            let seed = self.seed;
            let retry = programs.retry.entry(family).or_insert_with(|| RulesRetry::new(seed));
            retry.failed(clock());
        }
    }
}
