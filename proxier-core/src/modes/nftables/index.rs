//! Counts chains and elements that Frontends share, assigns slots to endpoints, and tracks changes since the tables
//! were written.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nftables::{Element, Set};

use super::layout::Layout;
use super::lower::{Item, SetName, Treatment, concat, lower, sorted};
use super::observed::Observed;
use super::pick::{Clients, Pick, SharedChain};
use super::slots::{HeldSlots, Slots};
use crate::modes::shared::frontends::{count, toggle};
use crate::modes::shared::table::{ChainRules, Layout as _, Shape};
use crate::net::{Family, FrontendKey};
use crate::pack::{Gather as _, pack, put};
use crate::service::{Changes, Compiled, Desired, Frontend, Roles};

/// An update costs O(changed Services). Elements are not stored: those of a Frontend follow from it ([`lower`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// Number of Frontends and Services that need each, without cluster IPs.
    needs: BTreeMap<Need, usize>,
    /// The same of cluster IPs, which are as many as Services and smaller than other needs.
    cluster_ips: BTreeMap<IpAddr, usize>,
    /// Of Frontends for which they are not simply the positions of endpoints in the list.
    slots: BTreeMap<FrontendKey, Slots>,
    /// As last written, of Frontends that changed since.
    written: BTreeMap<FrontendKey, Slots>,
    /// Number of rules for slots of session affinity ([`SharedChain::slot_rules`]), in both families.
    slot_rules: u32,
    /// Frontends whose session affinity is not applied for that reason.
    pub(super) over_limit: BTreeSet<FrontendKey>,
    /// Whether some of these rules were removed since those Frontends were last tried.
    has_new_room: bool,
    /// Needs that appeared or disappeared since the last write. Empty before the first, which writes all of them.
    pub(super) changed: BTreeSet<Need>,
    is_written: bool,
}

/// A chain or element that several Frontends and Services need.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Need {
    Chain(Family, SharedChain),
    ClusterIp(IpAddr),
    /// The address of an endpoint on this node.
    Hairpin(IpAddr),
    /// A set of clients that slots remember.
    Clients(Family, Clients),
}

impl Need {
    pub(super) fn family(&self) -> Family {
        match self {
            Need::Chain(family, _) | Need::Clients(family, _) => *family,
            Need::ClusterIp(address) | Need::Hairpin(address) => Family::of(*address),
        }
    }

    pub(super) fn chain(&self) -> Option<&SharedChain> {
        if let Need::Chain(_, chain) = self { Some(chain) } else { None }
    }

    /// Its set, unless every table has it.
    pub(super) fn set(&self, layout: &Layout) -> Option<Set> {
        match self {
            Need::Chain(_, chain) => layout.entering_set(chain),
            Need::Clients(_, clients) => Some(layout.clients_set(*clients)),
            Need::ClusterIp(_) | Need::Hairpin(_) => None,
        }
    }

    /// Its element; `None` for a chain or a set.
    pub(super) fn item(&self) -> Option<Item> {
        match *self {
            Need::Chain(..) | Need::Clients(..) => None,
            Need::ClusterIp(address) => Some((SetName::ClusterIps, Element::value(address))),
            Need::Hairpin(address) => {
                Some((SetName::Hairpins, Element::value(concat(&[address.into(), address.into()]))))
            }
        }
    }
}

fn needs(frontend: &Frontend, slots: &Slots) -> impl Iterator<Item = Need> + use<> {
    let family = frontend.key.family();
    let chains = Treatment::from_frontend(frontend, slots).chains();
    let cluster_ip = frontend.roles.contains(Roles::CLUSTER_IP).then_some(Need::ClusterIp(frontend.key.address));
    let of_chain = move |chain: SharedChain| {
        let clients = chain.clients().map(|clients| Need::Clients(family, clients));
        [Need::Chain(family, chain)].into_iter().chain(clients)
    };
    chains.into_iter().flat_map(of_chain).chain(cluster_ip)
}

/// The Frontends of a family that a table must have: all, or those that changed.
pub(super) fn frontends<'a>(
    desired: &'a Desired,
    family: Family,
    changes: Option<&'a Changes>,
) -> impl Iterator<Item = &'a Frontend> {
    let all = changes.is_none().then(|| desired.frontends()).into_iter().flatten();
    let changed = changes.into_iter().flat_map(|changes| changes.differing(desired)).filter_map(|(_, after)| after);
    all.chain(changed).filter(move |frontend| frontend.key.family() == family)
}

/// Largest number of rules for slots of session affinity. It limits what Services cost a node by many endpoints, each
/// with a different time. Services beyond are served without affinity
/// ([`NO_ROOM_TO_STAY`](crate::service::NO_ROOM_TO_STAY)).
const MOST_SLOT_RULES: u32 = 1 << 14;

fn slot_rules(need: &Need) -> u32 {
    match need {
        Need::Chain(_, chain) => chain.slot_rules(),
        Need::ClusterIp(_) | Need::Hairpin(_) | Need::Clients(..) => 0,
    }
}

impl Index {
    /// Counts one more user of a need, or one less. Returns whether it is the first, or was the last.
    fn count(&mut self, need: &Need, adds: bool) -> bool {
        let has_changed = match need {
            Need::ClusterIp(address) => count(&mut self.cluster_ips, address, adds),
            need => count(&mut self.needs, need, adds),
        };
        let (all, rules) = (self.slot_rules, if has_changed { slot_rules(need) } else { 0 });
        self.slot_rules = if adds { all.saturating_add(rules) } else { all.saturating_sub(rules) };
        self.has_new_room |= rules > 0 && !adds;
        has_changed
    }

    fn has(&self, need: &Need) -> bool {
        match need {
            Need::ClusterIp(address) => self.cluster_ips.contains_key(address),
            need => self.needs.contains_key(need),
        }
    }

    /// The same, and records the change.
    fn follow_need(&mut self, need: Need, adds: bool) {
        if self.count(&need, adds) && self.is_written {
            toggle(&mut self.changed, need);
        }
    }

    /// The slots of a Frontend, without affinity if its chains would be too many.
    fn slots_within_limit(&self, held: &HeldSlots, frontend: &Frontend) -> Slots {
        let slots = Slots::keeping(held, frontend, false);
        if frontend.affinity_secs.is_none() {
            return slots;
        }
        let new: BTreeSet<Need> = needs(frontend, &slots).filter(|need| !self.has(need)).gather();
        let rules = new.iter().map(slot_rules).fold(self.slot_rules, u32::saturating_add);
        let is_over = rules > MOST_SLOT_RULES && rules > self.slot_rules;
        if is_over { Slots::keeping(held, frontend, true) } else { slots }
    }

    /// Applies a change of a Service. What stays is added before it is removed, so that its count never reaches zero.
    pub(super) fn follow_service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        let addresses = |of: &Compiled| -> BTreeSet<IpAddr> {
            of.extras().hairpins.iter().map(|(_, endpoint)| endpoint.address).collect()
        };
        for (of, adds) in [(after, true), (before, false)] {
            for address in of.map(addresses).unwrap_or_default() {
                self.follow_need(Need::Hairpin(address), adds);
            }
        }
    }

    pub(super) fn follow(&mut self, written: Option<&Frontend>, before: Option<&Frontend>, after: Option<&Frontend>) {
        let Some(key) = after.or(before).map(|frontend| frontend.key) else { return };
        let old = self.slots.remove(&key).unwrap_or_default();
        // By what was written: an endpoint that was absent in the meantime only has its slot as before.
        let held = written.map(|written| {
            let slots = self.written.entry(key).or_insert_with(|| old.clone());
            HeldSlots::from_frontend(written, slots)
        });
        let new = after.map(|after| self.slots_within_limit(&held.unwrap_or_default(), after)).unwrap_or_default();
        self.replace(key, (before, &old), (after, new));
    }

    fn replace(
        &mut self,
        key: FrontendKey,
        (before, old): (Option<&Frontend>, &Slots),
        (after, new): (Option<&Frontend>, Slots),
    ) {
        if new.is_over_limit != old.is_over_limit {
            put(&mut self.over_limit, key, new.is_over_limit);
        }
        for (frontend, slots, adds) in [(after, &new, true), (before, old, false)] {
            for need in frontend.into_iter().flat_map(|frontend| needs(frontend, slots)) {
                self.follow_need(need, adds);
            }
        }
        if new != Slots::default() {
            self.slots.insert(key, new);
        }
    }

    pub(super) fn may_admit(&self) -> bool {
        self.has_new_room && !self.over_limit.is_empty()
    }

    /// Applies session affinity to Frontends that waited for room, and returns them. They have not changed themselves,
    /// so only a comparison with the kernel's tables writes them.
    pub(super) fn admit(&mut self, desired: &Desired) -> BTreeSet<FrontendKey> {
        if !std::mem::take(&mut self.has_new_room) {
            return BTreeSet::new();
        }
        let waiting = self.over_limit.clone();
        for frontend in waiting.iter().filter_map(|key| desired.frontend(key)) {
            let old = self.slots.remove(&frontend.key).unwrap_or_default();
            let new = self.slots_within_limit(&HeldSlots::from_frontend(frontend, &old), frontend);
            self.replace(frontend.key, (Some(frontend), &old), (Some(frontend), new));
        }
        waiting.difference(&self.over_limit).copied().gather()
    }

    pub(super) fn confirm(&mut self, family: Family) {
        self.is_written = true;
        self.written.retain(|key, _| key.family() != family);
        self.changed.retain(|need| need.family() != family);
    }

    /// Gives endpoints the slots that they have in the kernel, if these can be kept.
    pub(super) fn adopt(&mut self, desired: &Desired, family: Family, observed: &Observed) {
        let picked = observed.picked().gather();
        for frontend in desired.frontends().filter(|frontend| frontend.key.family() == family) {
            let key = frontend.key;
            let old = self.slots.remove(&key).unwrap_or_default();
            let held = observed.slots(&key, &picked).in_turn(&old);
            let new = Slots::keeping(&held, frontend, old.is_over_limit);
            for (slots, adds) in [(&new, true), (&old, false)].into_iter().filter(|_| new != old) {
                for need in needs(frontend, slots) {
                    self.count(&need, adds);
                }
            }
            if new != Slots::default() {
                self.slots.insert(key, new);
            }
        }
    }

    pub(super) fn chains(&self, family: Family) -> impl Iterator<Item = SharedChain> {
        // Chains come first in the order of needs and are few, while hairpins may be many.
        let all = self.needs.keys().map_while(|need| match need {
            Need::Chain(of, chain) => Some((of, chain)),
            Need::ClusterIp(_) | Need::Hairpin(_) | Need::Clients(..) => None,
        });
        all.filter(move |(of, _)| **of == family).map(|(_, chain)| *chain)
    }

    pub(super) fn entered_by_set(&self, family: Family) -> impl Iterator<Item = Pick> {
        self.chains(family).filter_map(|chain| chain.entered_by_set())
    }

    /// The chains that every table has; with `changed`, those that differ because of changes since the last write.
    pub(super) fn fixed_chains(&self, layout: &Layout, changed: bool) -> Vec<ChainRules> {
        let family = layout.family;
        let services = || layout.services(self.entered_by_set(family));
        if changed {
            let mut needs = self.changed.iter().filter(|need| need.family() == family).filter_map(Need::chain);
            return needs.any(|chain| chain.entered_by_set().is_some()).then(services).into_iter().collect();
        }
        let services = services();
        let fixed = layout.chains().into_iter();
        fixed.map(|chain| if chain.0 == services.0 { services.clone() } else { chain }).collect()
    }

    /// The needs of a family: all, or those that appeared since the last write.
    pub(super) fn needs(&self, family: Family, changed: bool) -> impl Iterator<Item = Need> {
        let cluster_ips = || self.cluster_ips.keys().copied().map(Need::ClusterIp);
        let all = (!changed).then(|| self.needs.keys().cloned().chain(cluster_ips())).into_iter().flatten();
        let new = changed.then(|| self.changed.iter().filter(|need| self.has(need)).cloned()).into_iter().flatten();
        all.chain(new).filter(move |need| need.family() == family)
    }

    /// What changed, as last written, in the form of a table that was read.
    pub(super) fn written(&self, layout: &Layout, desired: &Desired, changes: &Changes) -> Observed {
        let family = layout.family;
        let (mut elements, mut shape): (BTreeMap<SetName, Vec<_>>, _) = (BTreeMap::new(), Shape::default());
        let before = changes.differing(desired).filter_map(|(before, _)| before);
        let before = before.filter(|frontend| frontend.key.family() == family);
        let gone = self.changed.iter().filter(|need| need.family() == family && !self.has(need));
        for need in gone.clone() {
            let chain = need.chain().map(ToString::to_string);
            let chain = chain.map(|name| (name.clone(), layout.regular(&name, Vec::new())));
            shape.chains.extend(chain);
            shape.sets.extend(need.set(layout).map(|set| (set.key.name.as_str().to_owned(), set)));
        }
        let none = Slots::default();
        let items = before.flat_map(|frontend| lower(frontend, self.written.get(&frontend.key).unwrap_or(&none)));
        let items = items.chain(gone.filter_map(Need::item));
        for (set, element) in items {
            elements.entry(set).or_default().push(element);
        }
        let elements = elements.into_iter().map(|(set, elements)| (set, sorted(elements))).gather();
        Observed { elements, shape, is_other: false }
    }

    pub(super) fn lower(&self, frontend: &Frontend) -> Vec<Item> {
        lower(frontend, self.slots.get(&frontend.key).unwrap_or(&Slots::default()))
    }

    /// Whether connections to a Frontend are sent to an endpoint.
    pub(super) fn leads_on(&self, frontend: &Frontend) -> bool {
        let none = Slots::default();
        Treatment::from_frontend(frontend, self.slots.get(&frontend.key).unwrap_or(&none)).picks().next().is_some()
    }

    pub(super) fn compact(&mut self) {
        pack(&mut self.needs);
        pack(&mut self.cluster_ips);
        pack(&mut self.slots);
    }
}

#[cfg(test)]
#[allow(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "numbers are small, and tests stop at the first surprise"
)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use super::*;
    use crate::config::Config;
    use crate::net::EndpointKey;
    use crate::service::{NodeFacts, compile_frontends};
    use crate::snapshot::{FrontendSpec, HostAddresses, Node, ObjectKey};

    /// A Frontend with session affinity and its own timeout.
    fn frontend(number: u8, endpoints: u32) -> Arc<Frontend> {
        let facts = NodeFacts::new(&Config::default(), &Node::new("node-a"), &HostAddresses::default());
        let first = u32::from(Ipv4Addr::new(10, 244, 0, 1));
        let endpoints = (0..endpoints).map(|n| EndpointKey::new(Ipv4Addr::from(first + n).into(), 8080));
        let key = FrontendKey::new(crate::net::Protocol::Tcp, [10, 96, 0, number].into(), 80);
        let mut spec = FrontendSpec::new(key, endpoints);
        spec.affinity_secs = Some(1000 + u32::from(number));
        Arc::clone(&compile_frontends(&ObjectKey::new("demo", "web"), &[spec], &facts, false).frontends()[0])
    }

    #[test]
    fn session_affinity_has_a_bounded_number_of_rules() {
        let mut index = Index::default();
        // A slot is a chain, and each of 1,024 slots has rules in the chain that chooses: eight of these are the limit.
        let all: Vec<Arc<Frontend>> = (0..10).map(|number| frontend(number, 600)).collect();
        for one in &all {
            index.follow(None, None, Some(one));
        }
        assert_eq!(index.slot_rules, MOST_SLOT_RULES);
        assert_eq!(index.over_limit, all[8..].iter().map(|one| one.key).collect());
        let chains = index.chains(Family::V4).count();
        // Further ones are served without.
        let draws = index.lower(&all[9]).into_iter().filter(|(set, _)| *set == SetName::Draws).count();
        assert_eq!((chains, draws), (8 * 1025 + 1, 0));
        // A full pass has nothing to try, before there is room again.
        assert!(!index.may_admit());
        // Those that fit are not affected.
        let few = frontend(20, 600);
        index.follow(None, Some(&all[0]), None);
        index.follow(None, None, Some(&few));
        assert!(!index.over_limit.contains(&few.key) && index.slot_rules == MOST_SLOT_RULES);
        index.follow(None, None, Some(&frontend(21, 2)));
        assert_eq!(index.over_limit.len(), 3);
        assert!(index.may_admit());
        for one in all[1..].iter().chain([&few, &frontend(21, 2)]) {
            index.follow(None, Some(one), None);
        }
        assert_eq!((index.slot_rules, index.over_limit.len(), index.needs.len() + index.cluster_ips.len()), (0, 0, 0));
    }
}
