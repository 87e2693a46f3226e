//! What the mode tracks of its own objects: after a plan was applied, and after another program deleted the sets, or
//! the nf_tables table, that recorded them (`nft flush ruleset`).

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use ipvs::{RealServerKey, VirtualServerKey};

use super::apply::Effects;
use super::guards::Guards;
use super::index::Changed;
use super::plan::Plan;
use super::rules;
use super::state::Mode;
use crate::backoff::RulesRetry;
use crate::config::Config;
use crate::modes::ipvs::observed::{Observed, ObservedServer};
use crate::modes::ipvs::sets::{SetKey, SetKind};
use crate::modes::ipvs::split;
use crate::net::FrontendKey;
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
    for (place, mark) in recall(config, &lost, &observed.virtual_servers) {
        let (set, element) = split::record(&place, mark);
        observed.before.entry(set).or_default().insert(element);
    }
}

/// Number of a Frontend's first choices by which it is recognized.
const RECOGNISED_BY: usize = 16;

/// Frontends of virtual servers of marks whose records are lost, found by their marks alone: a mark follows from the
/// place, and a place has at most one. Places are those of virtual servers of addresses. If several have a mark of one
/// place, the one counts that shares an endpoint with a virtual server of an address, or none.
fn recall(
    config: &Config,
    lost: &BTreeSet<VirtualServerKey>,
    servers: &BTreeMap<VirtualServerKey, ObservedServer>,
) -> Vec<(FrontendKey, NonZeroU32)> {
    let mut marks = split::Marks::new(config.ipvs.mark_range, config.masquerade_bit);
    let places = servers.keys().filter_map(|key| FrontendKey::try_from(*key).ok());
    // Few candidates have one of these marks.
    let ways = places.filter_map(|place| {
        let candidates = marks.candidates(&place).take(RECOGNISED_BY);
        let there: Vec<NonZeroU32> =
            candidates.filter(|mark| lost.contains(&split::key(place.family(), *mark))).collect();
        (!there.is_empty()).then_some((place, there))
    });
    let ways: Vec<(FrontendKey, Vec<NonZeroU32>)> = ways.collect();
    if ways.is_empty() {
        return Vec::new();
    }
    let of_addresses = servers.iter().filter(|(key, _)| key.addr().is_some());
    let endpoints: BTreeSet<RealServerKey> =
        of_addresses.flat_map(|(_, server)| server.real_servers.iter()).map(|real| real.key).collect();
    let is_likely = |server: &VirtualServerKey| {
        let reals = servers.get(server).map(|server| &server.real_servers);
        reals.is_none_or(|reals| reals.is_empty() || reals.iter().any(|real| endpoints.contains(&real.key)))
    };
    for likely in [true, false] {
        for (place, there) in &ways {
            let it = |mark: &&NonZeroU32| {
                let server = split::key(place.family(), **mark);
                is_likely(&server) == likely && marks.is_free(&server)
            };
            if let (false, Some(mark)) = (marks.of.contains_key(place), there.iter().find(it)) {
                marks.insert(*place, *mark);
            }
        }
    }
    marks.of.into_iter().collect()
}
