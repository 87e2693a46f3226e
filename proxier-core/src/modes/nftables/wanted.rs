//! State that the tables have to hold for [`Desired`], and changes since they were written.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::lower::{Item, SetName, Treatment, concat, lower};
use super::pick::SharedChain;
use super::slots::{Held, Slots};
use crate::modes::Refreshed;
use crate::net::{Family, FrontendKey};
use crate::pack::pack;
use crate::service::{Compiled, Desired, Follower, Frontend, NodeFacts, Roles};
use crate::snapshot::{ObjectKey, Store};

/// State that the tables have to hold, kept up to date at O(changed Services).
///
/// Elements are not kept: those of a Frontend follow from it ([`lower`]). Chains and elements that Frontends share are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    desired: Desired,
    shared: Shared,
    /// Slots of endpoints, of Frontends where they are not simply their places in the list.
    slots: BTreeMap<FrontendKey, Slots>,
}

/// Chain or element that several Frontends and Services need.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    /// A chain, and what goes with it.
    Chain(Family, SharedChain),
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

    /// Its element; `None` for a chain.
    pub(super) fn item(&self) -> Option<Item> {
        match *self {
            Need::Chain(..) => None,
            Need::ClusterIp(address) => Some(Item::new(SetName::ClusterIps, address.into())),
            Need::Hairpin(address) => Some(Item::new(SetName::Hairpins, concat(&[address.into(), address.into()]))),
        }
    }
}

/// Number of Frontends and Services that need each.
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

    /// Takes one user away. Returns whether it was the last.
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

/// Differences from the last write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// Frontends, each as it was when it was written, with the slots of its endpoints; `None` when it was not there.
    pub(super) frontends: BTreeMap<FrontendKey, Option<(Frontend, Slots)>>,
    /// Needs that appeared or disappeared since the last write.
    pub(super) needs: BTreeSet<Need>,
}

struct Following<'a> {
    shared: &'a mut Shared,
    slots: &'a mut BTreeMap<FrontendKey, Slots>,
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

    /// A second change undoes the first.
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
        let old = self.slots.remove(&key).unwrap_or_default();
        let written = self.changed.frontends.entry(key);
        let written = written.or_insert_with(|| before.map(|before| (before.clone(), old.clone())));
        // By what was written: an endpoint that was away in the meantime only has its slot as before.
        let held = written.as_ref().map(|(frontend, slots)| Held::of(frontend, slots)).unwrap_or_default();
        let new = after.map(|after| Slots::keeping(&held, after)).unwrap_or_default();
        self.refreshed.frontends.push(key);
        for need in after.into_iter().flat_map(|after| needs(after, &new)) {
            self.add(need);
        }
        for need in before.into_iter().flat_map(|before| needs(before, &old)) {
            self.remove(need);
        }
        if new != Slots::default() {
            self.slots.insert(key, new);
        }
    }
}

fn needs(frontend: &Frontend, slots: &Slots) -> impl Iterator<Item = Need> + use<> {
    let family = frontend.key.family();
    let chains = Treatment::of(frontend, slots).chains();
    let cluster_ip = frontend.roles.contains(Roles::CLUSTER_IP).then_some(Need::ClusterIp(frontend.key.address));
    chains.into_iter().map(move |chain| Need::Chain(family, chain)).chain(cluster_ip)
}

impl Wanted {
    /// Empty state, without Services.
    pub fn new() -> Self {
        Self::default()
    }

    /// Frontends of all Services.
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// Compiles these Services again, and records differences from the last write.
    pub(super) fn refresh<'a>(
        &mut self,
        store: &Store,
        facts: &NodeFacts,
        services: impl IntoIterator<Item = &'a ObjectKey>,
        changed: &mut Changed,
    ) -> Refreshed {
        let (shared, slots) = (&mut self.shared, &mut self.slots);
        let mut following = Following { shared, slots, changed, refreshed: Refreshed::default() };
        self.desired.refresh(store, facts, services, &mut following);
        following.refreshed
    }

    /// Gives endpoints the slots that they have in the kernel, where these can be kept.
    pub(super) fn adopt(&mut self, family: Family, mut held: BTreeMap<FrontendKey, Held>) {
        for frontend in self.desired.frontends().filter(|frontend| frontend.key.family() == family) {
            let key = frontend.key;
            let none = Slots::default();
            let old = self.slots.get(&key).unwrap_or(&none);
            let new = Slots::keeping(&held.remove(&key).unwrap_or_default().in_turn(old), frontend);
            if new == *old {
                continue;
            }
            for need in needs(frontend, &new) {
                self.shared.count(need);
            }
            for need in needs(frontend, old) {
                self.shared.uncount(need);
            }
            if new == none {
                self.slots.remove(&key);
            } else {
                self.slots.insert(key, new);
            }
        }
    }

    /// The chains of a family that Frontends share.
    pub fn chains(&self, family: Family) -> impl Iterator<Item = SharedChain> {
        // They come first in the order of needs, and are few; cluster IPs are as many as Services.
        let all = self.shared.needs.keys().map_while(|need| match need {
            Need::Chain(of, chain) => Some((of, chain)),
            Need::ClusterIp(_) | Need::Hairpin(_) => None,
        });
        all.filter(move |(of, _)| **of == family).map(|(_, chain)| *chain)
    }

    pub(super) fn is_needed(&self, need: &Need) -> bool {
        self.shared.needs.contains_key(need)
    }

    /// The elements of a Frontend.
    pub(super) fn lower(&self, frontend: &Frontend) -> Vec<Item> {
        self.slots.get(&frontend.key).map_or_else(|| lower(frontend, &Slots::default()), |slots| lower(frontend, slots))
    }

    /// All elements of a family, but for clients, which rules write.
    pub fn items(&self, family: Family) -> impl Iterator<Item = Item> {
        let frontends = self.desired.frontends().filter(move |frontend| frontend.key.family() == family);
        let shared = self.shared.needs.keys().filter(move |need| need.family() == family).filter_map(Need::item);
        frontends.flat_map(|frontend| self.lower(frontend)).chain(shared)
    }

    /// Reduces memory by rebuilding everything; call it after a large change.
    pub(super) fn compact(&mut self) {
        self.desired.compact();
        pack(&mut self.shared.needs);
        pack(&mut self.slots);
    }
}
