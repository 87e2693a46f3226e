//! Plan of a pass, as a value. It is made by functions on values: `order` puts the differences in order, `whole` adds
//! operations for rules, draining and flows, `drift` finds those that repair foreign changes.

mod drift;
mod order;
mod whole;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipset::Element;
use ipvs::model::TimeoutsUpdate;
use ipvs::{Operation, RealServerKey, VirtualServerKey};

use crate::config::KernelNames;
use crate::modes::ipvs::guards::{self, Layout, TableChange};
use crate::modes::ipvs::rules::{Capabilities, RuleChanges};
use crate::modes::ipvs::sets::SetKey;
use crate::net::{Family, FrontendKey, Network};
use crate::ports::LocalRoute;

pub use order::plan;
pub(super) use whole::{Planned, whole};

/// Plan of a pass, stage by stage, in the order of the fields. A value: nothing happens before
/// [`apply`](crate::modes::ipvs::apply::apply()).
///
/// The order is make before break. Sets and rules come before the virtual servers that need them, so that no connection
/// misses its masquerading. A virtual server has its real servers before its address is bound: until then packets to the
/// address do not end here, and no other program of this host can answer instead. Operations that need none of the rules to
/// restore go before them, so that a program that holds the lock of iptables delays nothing else. Routes come after the rules, which
/// guard the networks that they make local. Deletions go in reverse; a
/// virtual server goes before its entries and its address, which after a crash show that it is this proxy's.
///
/// Within a stage `default/kubernetes` comes first, then cluster DNS.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Plan {
    /// Names of the device and the sets.
    pub names: KernelNames,
    /// Variant of the sets and the rules: with [`guards::Kind::Nft`] `create_sets`, `rules` and `relax` are empty, and the entries of a
    /// family are added with its table in one transaction, and deleted in another.
    pub guards: guards::Kind,
    /// Layout of each family's table, with [`guards::Kind::Nft`].
    pub layouts: BTreeMap<Family, Layout>,
    /// Create the dummy device.
    pub create_device: bool,
    /// Timeouts to set.
    pub timeouts: Option<TimeoutsUpdate>,
    /// Sets to create.
    pub create_sets: Vec<SetKey>,
    /// Tables of nf_tables to make or to mend, at most one change for each family.
    pub tables: Vec<TableChange>,
    /// Entries to add.
    pub add_entries: BTreeMap<SetKey, Vec<Element>>,
    /// Virtual servers of marks, and real servers of these, to add or to change. The entries that give packets these marks
    /// ([`LocalSplit`](crate::modes::ipvs::sets::SetKind::LocalSplit)) are added only then, if the virtual server is there.
    pub serve_split: Vec<Operation>,
    /// Virtual and real servers to add or change that need no rules of this pass; empty unless rules are to be restored or
    /// put off.
    pub serve_first: Vec<Operation>,
    /// Their addresses to bind to the dummy device.
    pub bind_first: Vec<IpAddr>,
    /// Real servers to drain or delete before the rules; empty unless rules are to be restored or put off.
    pub retire_first: Vec<Operation>,
    /// Rules to restore, at most one change for each family.
    pub rules: Vec<RulesChange>,
    /// Families whose rules have to change but are not tried in this pass: they could not be read, or failed a moment ago.
    pub rules_put_off: BTreeSet<Family>,
    /// Virtual servers in `serve` whose source ranges need rules that are not there yet. One is not made when the rules of
    /// its family are put off or fail: any client could use it.
    pub guarded: BTreeSet<VirtualServerKey>,
    /// Virtual and real servers to add or to change.
    pub serve: Vec<Operation>,
    /// Addresses to bind to the dummy device.
    pub bind: Vec<IpAddr>,
    /// Local routes to make, or to give another source; those of whole networks first.
    pub add_routes: Vec<LocalRoute>,
    /// Networks in `add_routes` whose guard is not there yet: the rules that refuse what no Service serves. One is not made
    /// local when the rules of its family are put off or fail: programs that listen on all addresses would answer there.
    pub guarded_networks: BTreeSet<Network>,
    /// Chains of tables that are written only now: those that take connections from rules that served before.
    pub last_tables: Vec<TableChange>,
    /// Real servers to drain or to delete, and virtual servers to delete.
    pub retire: Vec<Operation>,
    /// The same of marks. The entries that give packets these marks are deleted just before.
    pub retire_split: Vec<Operation>,
    /// Entries to delete, the last set first.
    pub delete_entries: BTreeMap<SetKey, Vec<Element>>,
    /// Rules to restore that only lose something, such as the jump to a firewall whose last load balancer went. They wait
    /// until what they guard is gone.
    pub relax: Vec<RulesChange>,
    /// Addresses to remove from the dummy device. One that a Service still has stays until a route makes it local.
    pub unbind: Vec<IpAddr>,
    /// Local routes to delete. One stays while a Service's address in it is local in no other way.
    pub delete_routes: Vec<Network>,
    /// Delete the dummy device once no address is on it: routes bind instead.
    pub delete_device: bool,
    /// Real servers that drain already, unknown to this process: no operation, but they are watched from now on.
    pub adopt_drains: Vec<(VirtualServerKey, RealServerKey)>,
    /// The Frontends of the marks in this plan.
    pub split: BTreeMap<VirtualServerKey, FrontendKey>,
}

/// Rules to restore.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RulesChange {
    /// Address family.
    pub family: Family,
    /// Changes of the proxy's chains and jumps, nothing else.
    pub changes: RuleChanges,
    /// The same without optional matches, tried in this order when the kernel refuses the first: only then is it certain
    /// whether the kernel has them.
    pub without: Vec<(Capabilities, RuleChanges)>,
}

impl RulesChange {
    /// A change of one family's rules.
    pub fn new(family: Family, changes: RuleChanges) -> Self {
        RulesChange { family, changes, without: Vec::new() }
    }
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        let Plan {
            names: _,
            guards: _,
            layouts: _,
            tables,
            last_tables,
            create_device,
            timeouts,
            create_sets,
            add_entries,
            serve_split,
            serve_first,
            bind_first,
            retire_first,
            rules,
            rules_put_off: _,
            guarded: _,
            serve,
            bind,
            add_routes,
            guarded_networks: _,
            retire,
            retire_split,
            delete_entries,
            relax,
            unbind,
            delete_routes,
            delete_device,
            adopt_drains: _,
            split: _,
        } = self;
        !create_device
            && timeouts.is_none()
            && create_sets.is_empty()
            && tables.is_empty()
            && last_tables.is_empty()
            && add_entries.is_empty()
            && serve_split.is_empty()
            && serve_first.is_empty()
            && bind_first.is_empty()
            && retire_first.is_empty()
            && rules.is_empty()
            && serve.is_empty()
            && bind.is_empty()
            && add_routes.is_empty()
            && retire.is_empty()
            && retire_split.is_empty()
            && delete_entries.is_empty()
            && relax.is_empty()
            && unbind.is_empty()
            && delete_routes.is_empty()
            && !delete_device
    }

    /// Stage for operations on a virtual server that take something away.
    fn retire_from(&mut self, key: &VirtualServerKey) -> &mut Vec<Operation> {
        match key {
            VirtualServerKey::Address { .. } => &mut self.retire,
            VirtualServerKey::Fwmark { .. } => &mut self.retire_split,
        }
    }

    /// Moves operations that need not wait for rules before them. `needs_rules` says whether a virtual server needs them
    /// before it is added, `is_there` whether it exists. Nothing moves when rules are neither to be restored nor put off.
    pub(crate) fn put_rules_last(
        &mut self,
        needs_rules: impl Fn(&VirtualServerKey) -> bool,
        is_there: impl Fn(&VirtualServerKey) -> bool,
    ) {
        if self.rules.is_empty() && self.rules_put_off.is_empty() {
            return;
        }
        let waits = |key: &VirtualServerKey| !is_there(key) && needs_rules(key);
        let (later, first): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.serve).into_iter().partition(|operation| waits(&operation.virtual_server()));
        (self.serve, self.serve_first) = (later, first);
        let address_of = |key: VirtualServerKey| match key {
            VirtualServerKey::Address { addr, .. } => Some(addr),
            VirtualServerKey::Fwmark { .. } => None,
        };
        let waiting: BTreeSet<IpAddr> =
            self.serve.iter().filter_map(|operation| address_of(operation.virtual_server())).collect();
        let (later, first): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.bind).into_iter().partition(|address| waiting.contains(address));
        (self.bind, self.bind_first) = (later, first);
        // A virtual server goes only after its replacement is there.
        let (later, first): (Vec<_>, Vec<_>) = std::mem::take(&mut self.retire)
            .into_iter()
            .partition(|operation| matches!(operation, Operation::DeleteVirtualServer(_)));
        (self.retire, self.retire_first) = (later, first);
    }
}

#[cfg(test)]
mod tests {
    use ipset::IpSpan;

    use super::*;
    use crate::config::Config;
    use crate::modes::ipvs::sets::SetKind;
    use crate::service::NodeFacts;
    use crate::snapshot::{HostAddresses, Node};

    #[test]
    fn a_plan_is_empty_when_no_stage_has_anything_to_do() {
        let address = IpAddr::from([192, 0, 2, 1]);
        let set = SetKey::new(Family::V4, SetKind::IpvsIps);
        let key: VirtualServerKey = "TCP 192.0.2.1:80".parse().unwrap();
        let operations = || vec![Operation::DeleteVirtualServer(key)];
        let entries = || BTreeMap::from([(set, vec![Element::Ip(IpSpan::host(address))])]);
        let rules = || vec![RulesChange::new(Family::V4, RuleChanges::default())];
        let facts = NodeFacts::new(&Config::default(), &Node::new("node-a"), &HostAddresses::default());
        let layout = Layout::new(Family::V4, &facts, true);
        let tables = || TableChange::compared(&layout, None).into_iter().flatten().collect::<Vec<_>>();
        let nothing = Plan::default;
        let plans = vec![
            Plan { create_device: true, ..nothing() },
            Plan { timeouts: Some(TimeoutsUpdate::default()), ..nothing() },
            Plan { create_sets: vec![set], ..nothing() },
            Plan { tables: tables(), ..nothing() },
            Plan { add_entries: entries(), ..nothing() },
            Plan { serve_split: operations(), ..nothing() },
            Plan { serve_first: operations(), ..nothing() },
            Plan { bind_first: vec![address], ..nothing() },
            Plan { retire_first: operations(), ..nothing() },
            Plan { rules: rules(), ..nothing() },
            Plan { serve: operations(), ..nothing() },
            Plan { bind: vec![address], ..nothing() },
            Plan { add_routes: vec![LocalRoute::new(address.into())], ..nothing() },
            Plan { last_tables: tables(), ..nothing() },
            Plan { retire: operations(), ..nothing() },
            Plan { retire_split: operations(), ..nothing() },
            Plan { delete_entries: entries(), ..nothing() },
            Plan { relax: rules(), ..nothing() },
            Plan { unbind: vec![address], ..nothing() },
            Plan { delete_routes: vec![address.into()], ..nothing() },
            Plan { delete_device: true, ..nothing() },
        ];
        for plan in plans {
            assert!(!plan.is_empty(), "{plan:#?}");
        }
        assert!(nothing().is_empty());
    }
}
