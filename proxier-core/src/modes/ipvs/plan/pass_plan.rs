//! The plan of a pass: all operations, with the findings of planning. Functions on values.

use std::collections::{BTreeMap, BTreeSet};

use ipvs::model::Weight;
use ipvs::{Operation, VirtualServerKey};

use super::{Phase, Plan, RulesChange, plan};
use crate::modes::ipvs::diff::Changes;
use crate::modes::ipvs::drain::Verdicts;
use crate::modes::ipvs::guards::nft::Tables;
use crate::modes::ipvs::guards::{Guards, Programs};
use crate::modes::ipvs::reading::{self, PassInputs};
use crate::modes::ipvs::state::{Differences, Mode};
use crate::modes::ipvs::wanted::Wanted;
use crate::modes::ipvs::{rules, udp};
use crate::modes::shared::flows::answering_at;
use crate::modes::{Pass, Work};
use crate::net::{Family, FrontendKey, Network};
use crate::plan::operation::Operation as PlanOperation;
use crate::plan::report::Unread;
use crate::plan::step::Step;
use crate::ports::{PortError, UdpServices};
use crate::snapshot::is_usable_by_service;

/// The plan of a pass, with the findings of planning.
#[derive(Debug, Default)]
pub(crate) struct PassPlan {
    pub(crate) plan: Plan,
    pub(crate) forget: UdpServices,
    /// Rules that could not be compared.
    pub(crate) unread: Vec<Unread>,
    /// Other programs' changes; known only if the last pass succeeded.
    pub(crate) drift: Vec<Step>,
}

/// Builds the plan of a pass from tracked values; reads and changes nothing. `None` if the kernel's state is unknown.
pub(crate) fn build_plan(
    mode: &Mode,
    pass: Pass<'_>,
    differences: Differences,
    readings: &PassInputs,
    verdicts: &[(VirtualServerKey, Verdicts)],
) -> Option<PassPlan> {
    let observed = mode.observed.as_ref()?;
    let wanted = &mode.wanted(pass.desired);
    let Differences { changes, kept } = differences;
    let forget = flows_to_forget(mode, pass, &changes);
    let mut plan = plan(changes, wanted, observed, &mode.drains);
    plan.split = split_servers(wanted, &plan);
    plan.names.clone_from(&mode.names);
    let has_device = reading::has_device(pass.host, &mode.names);
    let prepare = plan.stage(Phase::Prepare);
    prepare.device = pass.full && !has_device && !mode.by_routes();
    prepare.timeouts = readings.timeouts;
    let clean = plan.stage(Phase::Clean);
    clean.device = pass.full && has_device && mode.by_routes() && {
        let going: BTreeSet<_> = clean.addresses.iter().collect();
        observed.addresses.iter().all(|address| going.contains(address) || !is_usable_by_service(*address))
    };
    plan.rules_put_off.clone_from(&readings.rules_put_off);
    plan_drains(wanted, pass.full, &mut plan, readings, verdicts);
    let mut planned = PassPlan { forget, ..PassPlan::default() };
    match &mode.guards {
        Guards::Programs(programs) => {
            for (family, new, dump) in &readings.rules {
                match plan_rules(programs, *family, new, dump, &mut plan) {
                    Ok(()) => drop(plan.inputs.insert(*family, new.clone())),
                    Err(error) => {
                        plan.rules_put_off.insert(*family);
                        planned.unread.push(error);
                    }
                }
            }
            order_by_rules(mode, programs, pass, &mut plan, &kept);
        }
        Guards::Nft(tables) => {
            plan.layouts = tables.layouts(&pass, wanted, observed);
            plan_tables(wanted, tables, pass.full, &mut plan);
        }
    }
    if pass.tells_drift() {
        planned.drift = drift(mode, pass, &plan);
    }
    planned.plan = plan;
    Some(planned)
}

/// The Frontends of the marks in a plan.
fn split_servers(wanted: &Wanted<'_>, plan: &Plan) -> BTreeMap<VirtualServerKey, FrontendKey> {
    let stages = [Phase::Prepare, Phase::RetireMarks].into_iter().filter_map(|phase| plan.stages.get(&phase));
    let keys = stages.flat_map(|stage| &stage.servers).map(Operation::virtual_server);
    keys.filter_map(|key| Some((key, wanted.frontend_key(&key)?))).collect()
}

fn flows_to_forget(mode: &Mode, pass: Pass<'_>, changes: &Changes) -> UdpServices {
    let wanted = &mode.wanted(pass.desired);
    let mut flows = udp::stale(changes, wanted, &mode.drains);
    if let Some(left) = pass.sweep {
        let left = left.iter().map(|place| (*place, answering_at(*place, None)));
        for (place, answering) in udp::all(wanted, &mode.drains).into_iter().chain(left) {
            flows.entry(place).or_insert(answering);
        }
    }
    for place in pass.unforgotten {
        let key = udp::virtual_server(*place);
        flows.entry(*place).or_insert_with(|| udp::answering(&key, wanted, &mode.drains));
    }
    flows
}

/// Adds the operations for draining real servers.
fn plan_drains(
    wanted: &Wanted<'_>,
    full: bool,
    plan: &mut Plan,
    readings: &PassInputs,
    verdicts: &[(VirtualServerKey, Verdicts)],
) {
    let listed: BTreeMap<_, _> = readings.draining.iter().map(|(key, listed)| (*key, listed)).collect();
    // Real servers of a mark that is not used any more drain, too.
    for (key, verdicts) in verdicts.iter().filter(|(key, _)| wanted.is_drained(key)) {
        let key = *key;
        let finished = verdicts.finished.iter().filter(|finished| !wanted.has_real_server(&key, &finished.real));
        let finished: Vec<_> = finished.map(|finished| Operation::DeleteRealServer(key, finished.real)).collect();
        plan.retire_from(&key).extend(finished);
        // A full pass has already compared the weights.
        let listed = listed.get(&key).into_iter().flat_map(|listed| listed.iter().flatten());
        for server in listed.filter(|_| !full).map(|listed| listed.server) {
            if verdicts.takes_connections.contains(&server.key) && !wanted.has_real_server(&key, &server.key) {
                let drained = server.with_weight(Weight::DRAIN);
                plan.retire_from(&key).push(Operation::UpdateRealServer(key, drained));
            }
        }
    }
}

/// Adds the changes of tables, which are written with their entries; sets have no separate operations.
fn plan_tables(wanted: &Wanted<'_>, tables: &Tables, full: bool, plan: &mut Plan) {
    let [first, last] = tables.changes(&plan.layouts, full);
    let changing: BTreeSet<Family> = first.iter().map(|change| change.layout.family).collect();
    let prepare = plan.stage(Phase::Prepare);
    prepare.sets.clear();
    prepare.tables = first;
    plan.stage(Phase::Retire).tables = last;
    plan.guarded = added_with_ranges(wanted, plan, |family| changing.contains(family));
    let new = |family: Family| plan.layouts.get(&family).map(|layout| &layout.guarded_networks);
    let before = |family: Family| tables.written.get(&family).map(|layout| &layout.guarded_networks);
    plan.guarded_networks = without_guard(plan, new, before);
}

/// Networks that become local and that `new` guards, but not `before`.
fn without_guard<'a>(
    plan: &Plan,
    new: impl Fn(Family) -> Option<&'a BTreeSet<Network>>,
    before: impl Fn(Family) -> Option<&'a BTreeSet<Network>>,
) -> BTreeSet<Network> {
    let routes = plan.stages.get(&Phase::Serve).into_iter().flat_map(|serve| &serve.routes);
    let networks = routes.map(|route| route.network);
    let has = |guarded: Option<&BTreeSet<Network>>, of: &Network| guarded.is_some_and(|networks| networks.contains(of));
    let lacks_guard = |network: &Network| {
        let family = Family::of(network.addr());
        has(new(family), network) && !has(before(family), network)
    };
    networks.filter(lacks_guard).collect()
}

/// Virtual servers with source ranges to add, of these families.
fn added_with_ranges(wanted: &Wanted<'_>, plan: &Plan, of: impl Fn(&Family) -> bool) -> BTreeSet<VirtualServerKey> {
    let operations = [Phase::Prepare, Phase::Serve].iter().filter_map(|phase| plan.stages.get(phase));
    let added = operations.flat_map(|stage| &stage.servers).filter_map(|operation| match operation {
        Operation::AddVirtualServer(server) => Some(server.key),
        _ => None,
    });
    let has_ranges =
        |key: &VirtualServerKey| wanted.frontend(key).is_some_and(|frontend| frontend.source_ranges.is_some());
    added.filter(|key| of(&key.family().into()) && has_ranges(key)).collect()
}

/// Adds the change of a family's rules, if any.
fn plan_rules(
    programs: &Programs,
    family: Family,
    inputs: &rules::Inputs,
    dump: &iptables::Dump,
    plan: &mut Plan,
) -> Result<(), Unread> {
    let changes = |inputs: &rules::Inputs| {
        let changes = rules::compile(inputs).map_err(PortError::from).and_then(|rules| rules.changes(dump));
        changes.map_err(|error| Unread::new(format_args!("rules of {}", family.name()), error))
    };
    let all = changes(inputs)?;
    if all.is_empty() {
        return Ok(());
    }
    let mut change = RulesChange::new(family, all);
    for capabilities in inputs.capabilities.reduced() {
        let changes = changes(&rules::Inputs { capabilities, ..inputs.clone() })?;
        // Skip it if the reduced rules are the same, because the kernel would refuse them again.
        if changes != change.changes {
            change.without.push((capabilities, changes));
        }
    }
    let late = programs.rules.get(&family).is_some_and(|written| inputs.only_relaxes(written));
    plan.stage(if late { Phase::Clean } else { Phase::Serve }).rules.push(change);
    Ok(())
}

/// Moves operations that need no rules before them, and records which virtual servers must not be served without rules.
fn order_by_rules(mode: &Mode, programs: &Programs, pass: Pass<'_>, plan: &mut Plan, kept: &rules::Kept) {
    let wanted = &mode.wanted(pass.desired);
    let rules = plan.stages.get(&Phase::Serve).map_or(&[][..], |serve| &serve.rules);
    let changing = |family: &Family| rules.iter().any(|change| change.family == *family);
    // Once for each family: the inputs contain every guarded load balancer.
    let compared: BTreeMap<Family, (rules::Inputs, Option<&rules::Inputs>)> = pass
        .families()
        .filter(|family| plan.rules_put_off.contains(family) || changing(family))
        .map(|family| {
            let made = || programs.inputs(family, (wanted, pass.facts), programs.capabilities, kept);
            let mut new = plan.inputs.get(&family).cloned().unwrap_or_else(made);
            // If rules differ although their inputs do not, another program changed them in an unknown way.
            let before = programs.rules.get(&family).filter(|before| **before != new);
            // The programs are asked for their capabilities only when rules are compiled.
            if let Some(before) = before {
                new.capabilities = before.capabilities;
            }
            (family, (new, before))
        })
        .collect();
    // Taken over from iptables mode, whose rules serve until they are replaced. So everything must exist before.
    let taken_over: BTreeSet<Family> =
        rules.iter().filter(|change| change.changes.replace_iptables_mode()).map(|change| change.family).collect();
    let needs = |key: &VirtualServerKey| {
        if taken_over.contains(&key.family().into()) {
            return false;
        }
        let (Some(frontend), Some((new, before))) = (wanted.frontend(key), compared.get(&key.family().into())) else {
            return false;
        };
        new.are_needed_by(frontend, *before)
    };
    let is_there = |key: &VirtualServerKey| {
        mode.observed.as_ref().is_some_and(|observed| observed.virtual_servers.contains_key(key))
    };
    plan.move_unguarded_operations_first(needs, is_there);
    if compared.is_empty() {
        return;
    }
    let new = |family: Family| compared.get(&family).map(|(new, _)| &new.guarded_networks);
    let before = |family: Family| compared.get(&family).and_then(|(_, before)| Some(&(*before)?.guarded_networks));
    plan.guarded_networks = without_guard(plan, new, before);
    plan.guarded = added_with_ranges(wanted, plan, |family| compared.contains_key(family));
}

/// Other programs' changes: operations on objects that the input did not change.
pub(super) fn drift(mode: &Mode, pass: Pass<'_>, plan: &Plan) -> Vec<Step> {
    let foreign = plan.operations().filter(|operation| is_foreign(operation, mode, plan));
    foreign.map(|operation| operation.step(&pass.names)).collect()
}

fn is_foreign(operation: &PlanOperation<'_>, mode: &Mode, plan: &Plan) -> bool {
    let changed = mode.changed();
    let is_input = |address| changed.addresses.contains(address) || changed.elsewhere.contains(address);
    match *operation {
        PlanOperation::Entry(_, set, element) => !changed.entries.contains(&(set.0.key, element.clone())),
        PlanOperation::Whole(change) => change.step().family().is_some_and(|family| match &mode.guards {
            Guards::Programs(known) => known.rules.get(&family) == plan.inputs.get(&family),
            Guards::Nft(known) => known.written.get(&family) == plan.layouts.get(&family),
        }),
        PlanOperation::Address(_, address, _) => !is_input(&address),
        // The node's own addresses decide about whole networks.
        PlanOperation::Route(_, _, route) => !mode.new_facts && !is_input(&route.network.addr()),
        PlanOperation::Server(operation, _) => {
            let key = operation.virtual_server();
            let is_over =
                matches!(operation, Operation::DeleteRealServer(key, real) if mode.drains.is_draining(key, real));
            !is_over && !changed.virtual_servers.contains(&key)
        }
        _ => true,
    }
}
