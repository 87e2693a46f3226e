//! What the tables have to hold for [`Desired`], and what changed since they were written.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::lower::{Item, SetName, Treatment, concat, lower};
use super::pick::Pick;
use crate::net::{Family, FrontendKey};
use crate::pack::pack;
use crate::service::{Compiled, Desired, Follower, Frontend, NodeFacts, Roles};
use crate::snapshot::{ObjectKey, Store};

/// What the tables have to hold, kept up to date at O(changed Services).
///
/// Elements are not kept: those of a Frontend follow from it ([`lower`]). What Frontends share is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    desired: Desired,
    shared: Shared,
}

/// What several Frontends and Services need.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// A chain that chooses an endpoint.
    Chain(Family, Pick),
    /// A cluster IP.
    ClusterIp(IpAddr),
    /// The address of an endpoint on this node.
    Hairpin(IpAddr),
}

impl Need {
    pub(super) fn family(&self) -> Family {
        match self {
            Need::Chain(family, _) => *family,
            Need::ClusterIp(address) | Need::Hairpin(address) => Family::of(*address),
        }
    }

    /// Its element, if that is what it is.
    pub(super) fn item(&self) -> Option<Item> {
        match *self {
            Need::Chain(..) => None,
            Need::ClusterIp(address) => Some(Item::new(SetName::ClusterIps, address.into())),
            Need::Hairpin(address) => Some(Item::new(SetName::Hairpins, concat(&[address.into(), address.into()]))),
        }
    }
}

/// How many need something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Shared {
    needs: BTreeMap<Need, usize>,
}

impl Shared {
    /// Whether it is new.
    fn count(&mut self, need: Need) -> bool {
        let count = self.needs.entry(need).or_default();
        *count = count.saturating_add(1);
        *count == 1
    }

    /// Whether nobody needs it any more.
    fn uncount(&mut self, need: Need) -> bool {
        let Entry::Occupied(mut count) = self.needs.entry(need) else { return false };
        *count.get_mut() = count.get().saturating_sub(1);
        let is_last = *count.get() == 0;
        if is_last {
            count.remove();
        }
        is_last
    }
}

/// What differs from what was written last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Frontends, each as it was when it was written; `None` when it was not there.
    pub(super) frontends: BTreeMap<FrontendKey, Option<Frontend>>,
    /// What is needed now and was not, or the other way round.
    pub(super) needs: BTreeSet<Need>,
}

/// What a refresh changed, for those who are no mode.
#[derive(Debug, Default)]
pub(super) struct Refreshed {
    pub(super) frontends: Vec<FrontendKey>,
    pub(super) health_checks: bool,
}

struct Following<'a> {
    shared: &'a mut Shared,
    changed: &'a mut Changed,
    refreshed: Refreshed,
}

impl Following<'_> {
    fn add(&mut self, need: Need) {
        if self.shared.count(need.clone()) {
            self.toggle(need);
        }
    }

    fn remove(&mut self, need: Need) {
        if self.shared.uncount(need.clone()) {
            self.toggle(need);
        }
    }

    /// What changes twice has not changed.
    fn toggle(&mut self, need: Need) {
        if !self.changed.needs.remove(&need) {
            self.changed.needs.insert(need);
        }
    }
}

impl Follower for Following<'_> {
    fn service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        self.refreshed.health_checks |=
            before.and_then(|old| old.health_check) != after.and_then(|new| new.health_check);
        let addresses =
            |of: &Compiled| -> BTreeSet<IpAddr> { of.hairpins.iter().map(|(_, endpoint)| endpoint.address).collect() };
        // Add first, then remove, so that the count of what stays never reaches zero.
        for address in after.map(addresses).unwrap_or_default() {
            self.add(Need::Hairpin(address));
        }
        for address in before.map(addresses).unwrap_or_default() {
            self.remove(Need::Hairpin(address));
        }
    }

    fn frontend(&mut self, before: Option<&Frontend>, after: Option<&Frontend>) {
        let Some(key) = after.or(before).map(|frontend| frontend.key) else { return };
        self.changed.frontends.entry(key).or_insert_with(|| before.cloned());
        self.refreshed.frontends.push(key);
        for need in after.into_iter().flat_map(needs) {
            self.add(need);
        }
        for need in before.into_iter().flat_map(needs) {
            self.remove(need);
        }
    }
}

fn needs(frontend: &Frontend) -> impl Iterator<Item = Need> {
    let family = frontend.key.family();
    let picks: Vec<Pick> = Treatment::of(frontend).picks().collect();
    let cluster_ip = frontend.roles.contains(Roles::CLUSTER_IP).then_some(Need::ClusterIp(frontend.key.address));
    picks.into_iter().map(move |pick| Need::Chain(family, pick)).chain(cluster_ip)
}

impl Wanted {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the Services mean.
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// Compiles these Services again, and records what differs from what was written.
    pub(super) fn refresh<'a>(
        &mut self,
        store: &Store,
        facts: &NodeFacts,
        services: impl IntoIterator<Item = &'a ObjectKey>,
        changed: &mut Changed,
    ) -> Refreshed {
        let mut following = Following { shared: &mut self.shared, changed, refreshed: Refreshed::default() };
        self.desired.refresh(store, facts, services, &mut following);
        following.refreshed
    }

    /// The chains that choose endpoints in a family.
    pub fn picks(&self, family: Family) -> impl Iterator<Item = Pick> {
        self.shared.needs.keys().filter_map(move |need| match need {
            Need::Chain(of, pick) if *of == family => Some(*pick),
            _ => None,
        })
    }

    pub(super) fn is_needed(&self, need: &Need) -> bool {
        self.shared.needs.contains_key(need)
    }

    /// All elements of a family, but for those that rules write.
    pub fn items(&self, family: Family) -> impl Iterator<Item = Item> {
        let frontends = self.desired.frontends().filter(move |frontend| frontend.key.family() == family);
        let shared = self.shared.needs.keys().filter(move |need| need.family() == family).filter_map(Need::item);
        frontends.flat_map(lower).chain(shared)
    }

    /// Reduces memory by rebuilding everything; call it after a large change.
    pub(super) fn compact(&mut self) {
        self.desired.compact();
        pack(&mut self.shared.needs);
    }
}
