//! Foreign changes in the kernel.

use ipvs::Operation;

use super::{Plan, Planned};
use crate::config::KernelNames;
use crate::modes::Pass;
use crate::modes::ipvs::guards::Guards;
use crate::modes::ipvs::mode::Mode;
use crate::modes::ipvs::sets::SetKey;
use crate::modes::shared::names::Names;
use crate::net::Network;
use crate::plan::step::{Action, Step};
use crate::ports::LocalRoute;

/// Foreign changes: operations on objects that the input did not change.
pub(super) fn drift(mode: &Mode, pass: Pass<'_>, plan: &Plan, planned: &Planned) -> Vec<Step> {
    let changed = mode.changed();
    let names = Names::new(pass.store, pass.desired);
    let KernelNames { device, prefix, .. } = &plan.names;
    let name_of = |set: &SetKey| plan.guards.name_of(*set, &plan.names);
    let mut drift = Vec::new();
    drift.extend(plan.create_device.then(|| Step::device(device)));
    drift.extend(plan.timeouts.iter().map(Step::timeouts));
    drift.extend(plan.create_sets.iter().map(|set| Step::create_set(set.named(*prefix))));
    for (action, entries) in [(Action::Add, &plan.add_entries), (Action::Delete, &plan.delete_entries)] {
        for (set, elements) in entries {
            let others = elements.iter().filter(|element| !changed.entries.contains(&(*set, (*element).clone())));
            drift.extend(others.map(|element| Step::entry_of(*set, action, name_of(set), element)));
        }
    }
    match &mode.guards {
        Guards::Programs(programs) => {
            for change in plan.rules.iter().chain(&plan.relax) {
                let same = programs.rules.get(&change.family) == planned.inputs.get(&change.family);
                drift.extend(same.then(|| Step::rules(change)));
            }
        }
        Guards::Nft(tables) => {
            for change in plan.tables.iter().chain(&plan.last_tables) {
                let same = tables.written.get(&change.layout.family()) == Some(&change.layout);
                drift.extend(same.then(|| change.step()));
            }
        }
    }
    for (action, addresses) in
        [(Action::Add, &plan.bind_first), (Action::Add, &plan.bind), (Action::Delete, &plan.unbind)]
    {
        let others = addresses
            .iter()
            .filter(|address| !changed.addresses.contains(address) && !changed.elsewhere.contains(address));
        drift.extend(others.map(|address| Step::address(action, *address, device)));
    }
    drift.extend(plan.delete_device.then(|| Step::delete_device(device)));
    // The node's own addresses decide on the remaining networks.
    let is_input =
        |network: &Network| [&changed.addresses, &changed.elsewhere].iter().any(|of| of.contains(&network.addr()));
    let (added, deleted) = (&plan.add_routes, &plan.delete_routes);
    if !mode.new_facts {
        let added = added.iter().filter(|route| !is_input(&route.network));
        drift.extend(added.map(|route| Step::route(Action::Add, route)));
        let deleted = deleted.iter().filter(|network| !is_input(network)).map(|network| LocalRoute::new(*network));
        drift.extend(deleted.map(|route| Step::route(Action::Delete, &route)));
    }
    let stages =
        [&plan.serve_split, &plan.serve_first, &plan.retire_first, &plan.serve, &plan.retire, &plan.retire_split];
    for operation in stages.into_iter().flatten() {
        let key = operation.virtual_server();
        let ended = matches!(operation, Operation::DeleteRealServer(key, real) if mode.drains.is_draining(key, real));
        if !ended && !changed.virtual_servers.contains(&key) {
            drift.push(Step::operation(operation, mode.wanted(pass.desired).place_of(&key), &names));
        }
    }
    drift
}
