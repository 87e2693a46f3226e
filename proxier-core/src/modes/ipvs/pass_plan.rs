//! Completes the plan of a pass. Functions on values.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use ipvs::{Operation, VirtualServerKey};

use super::binding::Routes;
use super::plan::{Phase, Plan};
use crate::modes::ipvs::guards::nft::Tables;
use crate::modes::ipvs::guards::{Guards, Programs};
use crate::modes::ipvs::state::Mode;
use crate::modes::ipvs::wanted::Wanted;
use crate::modes::ipvs::{reading, rules};
use crate::modes::shared::flows::to_forget;
use crate::modes::{Pass, Work};
use crate::net::{Family, FrontendKey, Network};
use crate::pack::Gather as _;
use crate::plan::operation::Operation as PlanOperation;
use crate::plan::report::Report;
use crate::ports::UdpServices;
use crate::snapshot::is_usable_by_service;

/// Completes a plan by device, tables and the order of its operations, from tracked values; reads and changes nothing.
/// Reports other programs' changes.
pub(super) fn complete(mode: &Mode, pass: Pass<'_>, routes: Option<&Routes>, plan: &mut Plan, report: &mut Report) {
    let Some(observed) = &mode.observed else { return };
    let wanted = &mode.wanted(pass.desired);
    let of_marks = [Phase::Prepare, Phase::RetireMarks].into_iter().filter_map(|phase| plan.stages.get(&phase));
    let keys = of_marks.flat_map(|stage| &stage.servers).map(Operation::virtual_server);
    plan.split = keys.filter_map(|key| Some((key, wanted.frontend_key(&key)?))).gather();
    plan.names = mode.names.clone();
    if pass.full {
        let has_device = reading::has_device(pass.host, &mode.names);
        plan.stage(Phase::Prepare).device = !has_device && !mode.by_routes;
        let clean = plan.stage(Phase::Clean);
        clean.device = has_device && mode.by_routes && {
            let going: BTreeSet<IpAddr> = clean.addresses.iter().copied().gather();
            observed.addresses.iter().all(|address| going.contains(address) || !is_usable_by_service(*address))
        };
    }
    match &mode.guards {
        Guards::Programs(programs) => order_by_rules(mode, programs, routes, pass, plan),
        Guards::Nft(tables) => plan_tables(wanted, tables, routes, pass.full, plan),
    }
    report.drift = Vec::new();
    if pass.tells_drift {
        let foreign = plan.operations().filter(|operation| is_foreign(operation, mode, plan));
        report.drift = foreign.map(|operation| operation.step(&pass.names)).collect();
    }
}

/// The UDP flows to forget after a plan that is not complete yet. Real servers that drain answer, and those that will,
/// unless the plan deletes them.
pub(super) fn flows_to_forget(mode: &Mode, pass: &Pass<'_>, plan: &Plan) -> UdpServices {
    let wanted = mode.wanted(pass.desired);
    let (mut drained, mut gone, mut differing) = (BTreeMap::<_, Vec<_>>::new(), BTreeSet::new(), BTreeSet::new());
    for (phase, stage) in &plan.stages {
        for operation in &stage.servers {
            match operation {
                Operation::UpdateVirtualServer(_) => continue,
                Operation::UpdateRealServer(..) if phase.adds() => continue,
                Operation::UpdateRealServer(key, real) => {
                    drained.entry(*key).or_default().push(real.key);
                    continue;
                }
                Operation::DeleteVirtualServer(key) => drop(gone.insert((*key, None))),
                Operation::DeleteRealServer(key, real) => drop(gone.insert((*key, Some(*real)))),
                _ => {}
            }
            if pass.full {
                differing.extend(wanted.frontend_key(&operation.virtual_server()));
            }
        }
    }
    for (key, real) in &plan.adopt_drains {
        drained.entry(*key).or_default().push(*real);
    }
    let draining = |frontend: &FrontendKey| {
        let servers = wanted.index.marks.server(frontend).into_iter().chain([VirtualServerKey::from(*frontend)]);
        let mut all = BTreeSet::new();
        for key in servers.filter(|key| !gone.contains(&(*key, None))) {
            let reals = mode.drains.draining(&key).chain(drained.get(&key).into_iter().flatten().copied());
            let reals = reals.filter(|real| !gone.contains(&(key, Some(*real))));
            all.extend(reals.map(|real| SocketAddr::new(real.addr, real.port)));
        }
        all
    };
    to_forget(pass, |_| true, draining, differing.iter(), &BTreeSet::new())
}

/// Tables are written with their entries: sets have no separate operations.
fn plan_tables(wanted: &Wanted<'_>, tables: &Tables, routes: Option<&Routes>, full: bool, plan: &mut Plan) {
    let [first, last] = tables.changes(&plan.layouts, full);
    let families = first.iter().map(|change| change.layout.family);
    let networks = |family| tables.written.get(&family).map(|layout| &layout.guarded_networks);
    let changing = families.map(|family| (family, networks(family))).gather();
    let prepare = plan.stage(Phase::Prepare);
    prepare.sets.clear();
    prepare.tables = first;
    plan.stage(Phase::Retire).tables = last;
    note_guarded(wanted, routes, &changing, plan);
}

/// Records what must not be served before the rules of these families: new virtual servers with source ranges, and new
/// networks that the present rules, if known, do not guard.
fn note_guarded(
    wanted: &Wanted<'_>,
    routes: Option<&Routes>,
    changing: &BTreeMap<Family, Option<&BTreeSet<Network>>>,
    plan: &mut Plan,
) {
    let lacks_guard = |network: &Network| {
        let guarded = changing.get(&Family::of(network.addr()));
        routes.is_some_and(|routes| routes.whole.contains(network))
            && guarded.is_some_and(|guarded| guarded.is_none_or(|guarded| !guarded.contains(network)))
    };
    let routes = plan.stages.get(&Phase::Serve).into_iter().flat_map(|serve| &serve.routes);
    plan.guarded_networks = routes.map(|route| route.network).filter(lacks_guard).gather();
    let stages = [Phase::Prepare, Phase::Serve].iter().filter_map(|phase| plan.stages.get(phase));
    let added = stages.flat_map(|stage| &stage.servers).filter_map(|operation| match operation {
        Operation::AddVirtualServer(server) => Some(server.key),
        _ => None,
    });
    let has_ranges =
        |key: &VirtualServerKey| wanted.frontend(key).is_some_and(|frontend| frontend.source_ranges.is_some());
    plan.guarded = added.filter(|key| changing.contains_key(&key.family().into()) && has_ranges(key)).gather();
}

/// Moves operations that need no rules before them, and records which virtual servers must not be served without rules.
fn order_by_rules(mode: &Mode, programs: &Programs, routes: Option<&Routes>, pass: Pass<'_>, plan: &mut Plan) {
    let wanted = &mode.wanted(pass.desired);
    let rules = plan.stages.get(&Phase::Serve).map_or(&[][..], |serve| &serve.rules);
    let changing = |family: &Family| rules.iter().any(|change| change.family == *family);
    // Once for each family: the inputs contain every guarded load balancer.
    let compared: BTreeMap<Family, (rules::Inputs, Option<&rules::Inputs>)> = pass
        .families()
        .filter(|family| plan.rules_put_off.contains(family) || changing(family))
        .map(|family| {
            let made = || reading::inputs(mode, programs, pass, family, plan);
            let mut new = plan.inputs.get(&family).cloned().unwrap_or_else(made);
            // If rules differ although their inputs do not, another program changed them in an unknown way.
            let before = programs.rules.get(&family).filter(|before| **before != new);
            // The programs are asked for their capabilities only when rules are compiled.
            if let Some(before) = before {
                new.capabilities = before.capabilities;
            }
            (family, (new, before))
        })
        .gather();
    // Taken over from iptables mode, whose rules serve until they are replaced. So everything must exist before.
    let taken_over: BTreeSet<Family> =
        rules.iter().filter(|change| change.changes.replace_iptables_mode()).map(|change| change.family).gather();
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
    let networks =
        compared.iter().map(|(family, (_, before))| (*family, before.map(|before| &before.guarded_networks)));
    note_guarded(wanted, routes, &networks.gather(), plan);
}

/// Whether another program changed the object of an operation: the input did not.
fn is_foreign(operation: &PlanOperation<'_>, mode: &Mode, plan: &Plan) -> bool {
    let changed = &mode.recorded.changed;
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
