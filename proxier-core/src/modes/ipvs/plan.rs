//! The plan of a pass. [`diff`](super::diff::diff) finds the operations, and `pass_plan` completes and orders them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipset::Element;
use ipvs::model::TimeoutsUpdate;
use ipvs::{Operation as ServerOperation, RealServerKey, VirtualServerKey};

use crate::config::KernelNames;
use crate::modes::Work;
use crate::modes::ipvs::guards::{Layout, TableChange};
use crate::modes::ipvs::rules::{Capabilities, Inputs, RuleChanges};
use crate::net::{Family, FrontendKey, Network};
use crate::pack::Gather as _;
use crate::plan::operation::{Operation, SetIn, Whole};
use crate::plan::step::{Action, Part, Step};
use crate::ports::{LocalRoute, RouteOwner, SetKey};

/// The plan of a pass: operations, stage by stage.
///
/// The order is make before break. Sets and rules come before the virtual servers that need them, so that every
/// connection is masqueraded. Addresses are bound last: until then packets to them do not end here, so no other program
/// on this host can answer. Operations that do not depend on rules come before them, so that a program that holds the
/// iptables lock delays nothing else. Deletions go in reverse; a virtual server is deleted before its entries and its
/// address, which identify it as this proxy's after a crash.
///
/// Within a stage `default/kubernetes` comes first, then cluster DNS.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub names: Arc<KernelNames>,
    /// Layout of each family's table, if tables guard. Then no stage has sets or rules, and the entries of a family are
    /// added with its table in one transaction, and deleted in another. Otherwise none.
    pub layouts: BTreeMap<Family, Arc<Layout>>,
    /// The inputs of the rules that the kernel has after this plan, if they were read for it.
    pub inputs: BTreeMap<Family, Inputs>,
    pub stages: BTreeMap<Phase, Stage>,
    /// Families whose rules must change but are not tried in this pass, because they could not be read or failed a
    /// moment ago.
    pub rules_put_off: BTreeSet<Family>,
    /// Virtual servers to create whose source ranges need rules of this plan. Without these any client could use them.
    pub guarded: BTreeSet<VirtualServerKey>,
    /// Networks to make local that rules of this plan guard. Without these, programs that listen on all addresses would
    /// answer there.
    pub guarded_networks: BTreeSet<Network>,
    /// Real servers that are already draining, unknown to this process. They need no operation, but are tracked from
    /// now on.
    pub adopt_drains: Vec<(VirtualServerKey, RealServerKey)>,
    /// The Frontends of the marks in this plan.
    pub split: BTreeMap<VirtualServerKey, FrontendKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Device, timeouts, sets, tables, entries; virtual servers of marks.
    Prepare,
    /// Entries that give packets marks, if their virtual servers exist. Virtual servers and addresses that need no
    /// rules of this pass, if it has rules.
    ServeUnguarded,
    /// Real servers to drain or delete before the rules, if there are any.
    RetireUnguarded,
    /// Rules; virtual servers to create or change, with addresses and routes.
    Serve,
    /// Chains of tables that take over connections from rules that served before. Virtual and real servers that are no
    /// longer desired.
    Retire,
    /// Entries that give packets marks, then the virtual servers of these marks.
    RetireMarks,
    /// Entries; rules that are only reduced, such as the jump to a firewall whose last load balancer was deleted;
    /// addresses, routes and the device. One of these stays while a virtual server that could not be deleted needs it.
    Clean,
}

impl Phase {
    pub fn adds(self) -> bool {
        self < Phase::Retire
    }

    pub(super) fn action(self) -> Action {
        if self.adds() { Action::Add } else { Action::Delete }
    }
}

/// The operations of a phase, in the order of the fields. The [`Phase`] decides whether something is added or deleted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stage {
    /// The dummy device. It is deleted last, once it has no addresses because routes bind them.
    pub device: bool,
    pub timeouts: Option<TimeoutsUpdate>,
    pub sets: BTreeSet<SetKey>,
    /// nf_tables tables to create or repair, at most one change for each family.
    pub tables: Vec<TableChange>,
    /// Entries; those of the last set are deleted first.
    pub entries: BTreeMap<SetKey, BTreeSet<Element>>,
    /// Rules to restore, at most one change for each family.
    pub rules: Vec<RulesChange>,
    pub servers: Vec<ServerOperation>,
    /// Addresses of the dummy device. One that a Service still has is not deleted before a route makes it local.
    pub addresses: Vec<IpAddr>,
    /// Local routes to create or to change, whole networks first. One is not deleted while it alone makes a Service's
    /// address in it local.
    pub routes: Vec<LocalRoute>,
}

impl Stage {
    pub(super) fn first_operations<'a>(&'a self, phase: Phase, plan: &'a Plan) -> impl Iterator<Item = Operation<'a>> {
        let KernelNames { device, prefix, .. } = &*plan.names;
        let action = phase.action();
        let entries = move |(set, elements): (&'a SetKey, &'a BTreeSet<Element>)| {
            let set = plan.set_in(*set);
            elements.iter().map(move |element| Operation::Entry(action, set, element))
        };
        let mut sets: Vec<_> = self.entries.iter().collect();
        if !phase.adds() {
            sets.reverse();
        }
        let device = (self.device && phase.adds()).then_some(Operation::Device(action, device));
        device
            .into_iter()
            .chain(self.timeouts.iter().map(Operation::Timeouts))
            .chain(self.sets.iter().map(|set| Operation::Set(Action::Add, set.named(*prefix))))
            .chain(self.tables.iter().map(|change| Operation::Whole(change)))
            .chain(sets.into_iter().flat_map(entries))
            .chain(self.rules.iter().map(|change| Operation::Whole(change)))
    }

    pub(super) fn last_operations<'a>(&'a self, phase: Phase, plan: &'a Plan) -> impl Iterator<Item = Operation<'a>> {
        let (action, device) = (phase.action(), &plan.names.device);
        let addresses = self.addresses.iter().map(move |address| Operation::Address(action, *address, device));
        let routes = self.routes.iter().map(move |route| Operation::Route(action, RouteOwner::Ipvs, *route));
        let device = (self.device && !phase.adds()).then_some(Operation::Device(action, device));
        addresses.chain(routes).chain(device)
    }

    pub(super) fn retain_entries(&mut self, stays: impl Fn(SetKey, &Element) -> bool) {
        self.entries.iter_mut().for_each(|(set, elements)| elements.retain(|element| stays(*set, element)));
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct RulesChange {
    pub family: Family,
    pub changes: RuleChanges,
    /// The same without optional matches, tried in this order if the kernel refuses the first. Only then is it certain
    /// whether the kernel supports them.
    pub without: Vec<(Capabilities, RuleChanges)>,
}

impl Plan {
    pub fn is_empty(&self) -> bool {
        self.operations().next().is_none()
    }

    pub(super) fn set_in(&self, set: SetKey) -> SetIn<'_> {
        SetIn(set.named(self.names.prefix), self.layouts.get(&set.family).map(|layout| &layout.table))
    }

    pub(super) fn server<'a>(&self, operation: &'a ServerOperation) -> Operation<'a> {
        let key = operation.virtual_server();
        let frontend = FrontendKey::try_from(key).ok().or_else(|| self.split.get(&key).copied());
        Operation::Server(operation, frontend)
    }

    pub(crate) fn stage(&mut self, phase: Phase) -> &mut Stage {
        self.stages.entry(phase).or_default()
    }

    pub(super) fn entry(&mut self, action: Action, set: SetKey, element: Element) {
        let phase = match (action, set.kind.gives_marks()) {
            (Action::Delete, true) => Phase::RetireMarks,
            (Action::Delete, false) => Phase::Clean,
            (_, true) => Phase::ServeUnguarded,
            (_, false) => Phase::Prepare,
        };
        self.stage(phase).entries.entry(set).or_default().insert(element);
    }

    pub(super) fn deleted_entries(&self) -> impl Iterator<Item = (SetKey, &Element)> {
        let stages = self.stages.iter().filter(|(phase, _)| !phase.adds());
        let sets = stages.flat_map(|(_, stage)| &stage.entries);
        sets.flat_map(|(set, elements)| elements.iter().map(|element| (*set, element)))
    }

    pub(super) fn deleted_servers(&self) -> BTreeSet<VirtualServerKey> {
        let operations = self.stages.values().flat_map(|stage| &stage.servers);
        let deleted = operations.filter_map(|operation| match operation {
            ServerOperation::DeleteVirtualServer(key) => Some(*key),
            _ => None,
        });
        deleted.gather()
    }

    /// The stage for operations that remove something from a virtual server.
    pub(super) fn retire_from(&mut self, key: &VirtualServerKey) -> &mut Vec<ServerOperation> {
        let phase = if key.addr().is_some() { Phase::Retire } else { Phase::RetireMarks };
        &mut self.stage(phase).servers
    }

    /// Moves operations that need not wait for rules before them. `needs_rules` tells whether a virtual server needs
    /// them before it is added, `is_there` whether it exists. Nothing moves if rules are neither restored nor
    /// postponed.
    pub(crate) fn move_unguarded_operations_first(
        &mut self,
        needs_rules: impl Fn(&VirtualServerKey) -> bool,
        is_there: impl Fn(&VirtualServerKey) -> bool,
    ) {
        if self.stage(Phase::Serve).rules.is_empty() && self.rules_put_off.is_empty() {
            return;
        }
        let waits = |key: &VirtualServerKey| !is_there(key) && needs_rules(key);
        let serve = self.stage(Phase::Serve);
        let servers = serve.servers.extract_if(.., |operation| !waits(&operation.virtual_server())).collect();
        let waiting = serve.servers.iter().filter_map(|operation| operation.virtual_server().addr());
        let waiting: BTreeSet<IpAddr> = waiting.collect();
        let addresses = serve.addresses.extract_if(.., |address| !waiting.contains(address)).collect();
        let unguarded = self.stage(Phase::ServeUnguarded);
        (unguarded.servers, unguarded.addresses) = (servers, addresses);
        // A virtual server is deleted only after its replacement exists.
        let may_go_first = |of: &mut ServerOperation| !matches!(of, ServerOperation::DeleteVirtualServer(_));
        let first = self.stage(Phase::Retire).servers.extract_if(.., may_go_first).collect();
        self.stage(Phase::RetireUnguarded).servers = first;
    }
}

impl Work for Plan {
    fn is_empty(&self) -> bool {
        Plan::is_empty(self)
    }

    fn operations(&self) -> Box<dyn Iterator<Item = Operation<'_>> + '_> {
        Box::new(self.stages.iter().flat_map(|(phase, stage)| {
            let servers = stage.servers.iter().map(|operation| self.server(operation));
            stage.first_operations(*phase, self).chain(servers).chain(stage.last_operations(*phase, self))
        }))
    }

    /// Whether rules of iptables mode serve all Services.
    fn takes_over(&self) -> bool {
        let serve = self.stages.get(&Phase::Serve);
        serve.is_some_and(|serve| serve.rules.iter().any(|change| change.changes.replace_iptables_mode()))
    }
}

impl Whole for RulesChange {
    fn step(&self) -> Step {
        let step = Step::new(Action::Change, Part::Rules, self.family.name());
        let step = step.with(format_args!("{} lines differ", self.changes.lines.len()));
        Step { lines: self.changes.lines.clone(), ..step }
    }
}

#[cfg(test)]
mod tests {
    use ipset::IpSpan;

    use super::*;
    use crate::ports::SetKind;

    #[test]
    fn deletions_go_in_reverse() {
        let sets = [SetKind::LoopBack, SetKind::IpvsIps].map(|kind| SetKey::new(Family::V4, kind));
        let element = Element::Ip(IpSpan::host([192, 0, 2, 1].into()));
        let entries = sets.map(|set| (set, BTreeSet::from([element.clone()])));
        let mut plan = Plan::default();
        for phase in [Phase::Prepare, Phase::Clean] {
            *plan.stage(phase) = Stage { device: true, entries: entries.clone().into(), ..Stage::default() };
        }
        let name = |operation: Operation<'_>| match operation {
            Operation::Device(action, _) => format!("{action:?} device"),
            Operation::Entry(action, set, _) => format!("{action:?} {:?}", set.0.key.kind),
            other => format!("{other:?}"),
        };
        let made = ["Add device", "Add LoopBack", "Add IpvsIps"];
        let gone = ["Delete IpvsIps", "Delete LoopBack", "Delete device"];
        assert_eq!(plan.operations().map(name).collect::<Vec<_>>(), [made, gone].concat());
        assert!(!plan.is_empty());
        assert!(Plan::default().is_empty());
    }
}
