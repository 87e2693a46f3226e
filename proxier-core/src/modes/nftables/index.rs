//! Chains and elements that Frontends share, slots of endpoints, and changes since the tables were written.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::lower::{Item, SetName, Treatment, concat, lower};
use super::pick::SharedChain;
use super::slots::{HeldSlots, Slots};
use crate::modes::shared::counts::{count, uncount};
use crate::net::{Family, FrontendKey};
use crate::pack::pack;
use crate::service::{Compiled, Desired, Frontend, Roles};

/// Chains and elements that Frontends share, counted, and the slots of endpoints; kept up to date at O(changed Services).
///
/// Elements are not kept: those of a Frontend follow from it ([`lower`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// Number of Frontends and Services that need each.
    needs: BTreeMap<Need, usize>,
    /// Slots of endpoints, of Frontends where they are not simply their places in the list.
    slots: BTreeMap<FrontendKey, Slots>,
    /// Slots as they were written, of Frontends that changed since.
    written: BTreeMap<FrontendKey, Slots>,
    /// Needs that appeared or disappeared since the last write.
    pub(super) changed: BTreeSet<Need>,
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

fn needs(frontend: &Frontend, slots: &Slots) -> impl Iterator<Item = Need> + use<> {
    let family = frontend.key.family();
    let chains = Treatment::from_frontend(frontend, slots).chains();
    let cluster_ip = frontend.roles.contains(Roles::CLUSTER_IP).then_some(Need::ClusterIp(frontend.key.address));
    chains.into_iter().map(move |chain| Need::Chain(family, chain)).chain(cluster_ip)
}

impl Index {
    fn add(&mut self, need: Need) {
        if count(&mut self.needs, need.clone()) {
            self.toggle(need);
        }
    }

    fn remove(&mut self, need: Need) {
        if uncount(&mut self.needs, &need) {
            self.toggle(need);
        }
    }

    /// A second change undoes the first.
    fn toggle(&mut self, need: Need) {
        if !self.changed.remove(&need) {
            self.changed.insert(need);
        }
    }

    /// Follows a Service. What stays is added before it is removed, so that its count never reaches zero.
    pub(super) fn follow_service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        let addresses = |of: &Compiled| -> BTreeSet<IpAddr> {
            of.extras().hairpins.iter().map(|(_, endpoint)| endpoint.address).collect()
        };
        for address in after.map(addresses).unwrap_or_default() {
            self.add(Need::Hairpin(address));
        }
        for address in before.map(addresses).unwrap_or_default() {
            self.remove(Need::Hairpin(address));
        }
    }

    /// Follows a Frontend. `written`: as it was written last.
    pub(super) fn follow(&mut self, written: Option<&Frontend>, before: Option<&Frontend>, after: Option<&Frontend>) {
        let Some(key) = after.or(before).map(|frontend| frontend.key) else { return };
        let old = self.slots.remove(&key).unwrap_or_default();
        // By what was written: an endpoint that was away in the meantime only has its slot as before.
        let slots = self.written.entry(key).or_insert_with(|| old.clone());
        let held = written.map(|written| HeldSlots::from_frontend(written, slots)).unwrap_or_default();
        let new = after.map(|after| Slots::keeping(&held, after)).unwrap_or_default();
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

    /// A family's table has been written.
    pub(super) fn confirm(&mut self, family: Family) {
        self.written.retain(|key, _| key.family() != family);
        self.changed.retain(|need| need.family() != family);
    }

    /// Gives endpoints the slots that they have in the kernel, where these can be kept.
    pub(super) fn adopt(&mut self, desired: &Desired, family: Family, mut held: BTreeMap<FrontendKey, HeldSlots>) {
        for frontend in desired.frontends().filter(|frontend| frontend.key.family() == family) {
            let key = frontend.key;
            let none = Slots::default();
            let old = self.slots.get(&key).unwrap_or(&none);
            let new = Slots::keeping(&held.remove(&key).unwrap_or_default().in_turn(old), frontend);
            if new == *old {
                continue;
            }
            for need in needs(frontend, &new) {
                count(&mut self.needs, need);
            }
            for need in needs(frontend, old) {
                uncount(&mut self.needs, &need);
            }
            if new == none {
                self.slots.remove(&key);
            } else {
                self.slots.insert(key, new);
            }
        }
    }

    /// The chains of a family that Frontends share.
    pub(super) fn chains(&self, family: Family) -> impl Iterator<Item = SharedChain> {
        // They come first in the order of needs, and are few; cluster IPs are as many as Services.
        let all = self.needs.keys().map_while(|need| match need {
            Need::Chain(of, chain) => Some((of, chain)),
            Need::ClusterIp(_) | Need::Hairpin(_) => None,
        });
        all.filter(move |(of, _)| **of == family).map(|(_, chain)| *chain)
    }

    pub(super) fn is_needed(&self, need: &Need) -> bool {
        self.needs.contains_key(need)
    }

    /// The elements of a Frontend.
    pub(super) fn lower(&self, frontend: &Frontend) -> Vec<Item> {
        self.slots.get(&frontend.key).map_or_else(|| lower(frontend, &Slots::default()), |slots| lower(frontend, slots))
    }

    /// The elements of a Frontend as it was written.
    pub(super) fn lower_written(&self, frontend: &Frontend) -> Vec<Item> {
        lower(frontend, self.written.get(&frontend.key).unwrap_or(&Slots::default()))
    }

    /// All elements of a family, but for clients, which rules write.
    pub(super) fn items(&self, desired: &Desired, family: Family) -> impl Iterator<Item = Item> {
        let frontends = desired.frontends().filter(move |frontend| frontend.key.family() == family);
        let shared = self.needs.keys().filter(move |need| need.family() == family).filter_map(Need::item);
        frontends.flat_map(|frontend| self.lower(frontend)).chain(shared)
    }

    /// Reduces memory by rebuilding everything; call it after a large change.
    pub(super) fn compact(&mut self) {
        pack(&mut self.needs);
        pack(&mut self.slots);
    }
}
