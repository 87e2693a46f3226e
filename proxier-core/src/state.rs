//! What has to be programmed for all Services together.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipset::Element;
use ipvs::VirtualServerKey;

use crate::compile::{Compiled, Frontend, HealthCheck, NoLocalEndpoints, NodeFacts, Roles, compile};
use crate::pack::pack;
use crate::safeguard::Rejected;
use crate::sets::SetKey;
use crate::snapshot::{Created, ObjectKey, Store};

/// What has to be programmed, kept up to date at O(changed Services).
///
/// Services share: two may use one load-balancer address with different ports, and one pod may be in many. What is shared
/// is counted and goes when its last user goes. One protocol, address and port has one owner, with its entries and address.
/// Of Services that claim the same one, the Service whose cluster IP it is gets it: the API server gives a cluster IP to
/// one Service, while anybody who may write Services can name any external IP, also another Service's address
/// (CVE-2020-8554). Then node ports, load balancers' addresses and external IPs follow; of equals the older one, then the
/// first by name. See [`Desired::conflicts`].
///
/// Two values with the same Services compare equal, however they were built.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Boxed, since a map keeps room for more values than it has.
    services: BTreeMap<ObjectKey, Box<Compiled>>,
    claims: BTreeMap<VirtualServerKey, Claims>,
    addresses: BTreeMap<IpAddr, usize>,
    elsewhere: BTreeMap<IpAddr, usize>,
    sets: BTreeMap<SetKey, BTreeMap<Element, usize>>,
    barred: BTreeSet<VirtualServerKey>,
}

/// A Service's claim to a Frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    created: Created,
    service: ObjectKey,
    frontend: Arc<Frontend>,
}

impl Claim {
    /// Sorts the owner first.
    fn rank(&self) -> (u8, Created, &ObjectKey) {
        let strength = [Roles::CLUSTER_IP, Roles::NODE_PORT, Roles::LOAD_BALANCER];
        let weaker = strength.iter().take_while(|role| !self.frontend.roles.contains(**role)).count();
        (u8::try_from(weaker).unwrap_or(u8::MAX), self.created, &self.service)
    }
}

/// The Services that claim a Frontend, the owner first. Nearly always one.
type Claims = Vec<Claim>;

/// What an update changed, by name: where the kernel may have to follow.
///
/// Anything that an update left as it was is not in here, even if its Service was compiled again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changed {
    /// Virtual servers that are new, gone, or have another configuration or other real servers. One that several Services
    /// claim may be in here unchanged when more than one of them was refreshed at once.
    pub virtual_servers: BTreeSet<VirtualServerKey>,
    /// Addresses on the dummy device that are new or gone.
    pub addresses: BTreeSet<IpAddr>,
    /// Addresses that another interface got or lost, or that Services newly ask for or no longer do; see
    /// [`Desired::is_elsewhere`].
    pub elsewhere: BTreeSet<IpAddr>,
    /// Entries that are new or gone.
    pub entries: BTreeSet<(SetKey, Element)>,
    /// Services whose health check is new, gone or different.
    pub health_checks: BTreeSet<ObjectKey>,
}

impl Changed {
    /// Whether the kernel has nothing to follow.
    pub fn is_empty(&self) -> bool {
        *self == Changed::default()
    }

    /// Adds what a later update changed. Something that changed back stays in here: it is to be checked, and may not
    /// differ.
    pub fn extend(&mut self, later: Changed) {
        let Changed { virtual_servers, addresses, elsewhere, entries, health_checks } = later;
        self.virtual_servers.extend(virtual_servers);
        self.addresses.extend(addresses);
        self.elsewhere.extend(elsewhere);
        self.entries.extend(entries);
        self.health_checks.extend(health_checks);
    }
}

/// Inserts the value if missing, else removes it: what changes twice has not changed.
fn toggle<T: Ord>(set: &mut BTreeSet<T>, value: T) {
    if !set.remove(&value) {
        set.insert(value);
    }
}

/// Where changes are recorded; nowhere when nobody asks, since recording costs as much as changing.
struct Notes<'a>(Option<&'a mut Changed>);

impl Notes<'_> {
    fn virtual_server(&mut self, key: VirtualServerKey) {
        if let Some(changed) = &mut self.0 {
            changed.virtual_servers.insert(key);
        }
    }

    fn address(&mut self, address: IpAddr) {
        if let Some(changed) = &mut self.0 {
            toggle(&mut changed.addresses, address);
        }
    }

    fn elsewhere(&mut self, address: IpAddr) {
        if let Some(changed) = &mut self.0 {
            toggle(&mut changed.elsewhere, address);
        }
    }

    fn entry(&mut self, set: SetKey, element: &Element) {
        if let Some(changed) = &mut self.0 {
            toggle(&mut changed.entries, (set, element.clone()));
        }
    }

    fn health_check(&mut self, service: &ObjectKey) {
        if let Some(changed) = &mut self.0 {
            changed.health_checks.insert(service.clone());
        }
    }
}

/// A Frontend that a Service claims and does not get.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Conflict<'a> {
    /// The address, protocol and port.
    pub key: VirtualServerKey,
    /// The Service that has it.
    pub owner: &'a ObjectKey,
    /// The Service that does not get it.
    pub refused: &'a ObjectKey,
}

impl Desired {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Everything in the store.
    pub fn build(store: &Store, facts: &NodeFacts) -> Self {
        let mut desired = Desired::new();
        for service in store.services() {
            let compiled = compile(service, store.slices_of(&service.key), facts);
            desired.replace(&service.key, Some(compiled), &mut Notes(None));
        }
        desired
    }

    /// Compiles these Services again; those that are no longer in the store are removed.
    pub fn refresh<'a>(
        &mut self,
        store: &Store,
        facts: &NodeFacts,
        services: impl IntoIterator<Item = &'a ObjectKey>,
    ) -> Changed {
        let mut changed = Changed::default();
        for key in services {
            let compiled = store.service(key).map(|service| compile(service, store.slices_of(key), facts));
            self.replace(key, compiled, &mut Notes(Some(&mut changed)));
        }
        changed
    }

    /// Compiles every Service again: after the node facts have changed, or with another store.
    pub fn refresh_all(&mut self, store: &Store, facts: &NodeFacts) -> Changed {
        let mut all: BTreeSet<ObjectKey> = self.services.keys().cloned().collect();
        all.extend(store.services().map(|service| service.key.clone()));
        self.refresh(store, facts, &all)
    }

    /// Replaces what was compiled for a Service; `None` removes it.
    pub fn update(&mut self, key: &ObjectKey, compiled: Option<Compiled>) -> Changed {
        let mut changed = Changed::default();
        self.replace(key, compiled, &mut Notes(Some(&mut changed)));
        changed
    }

    fn replace(&mut self, key: &ObjectKey, compiled: Option<Compiled>, notes: &mut Notes<'_>) {
        let old = self.services.remove(key);
        let compiled = compiled.map(Box::new);
        if old == compiled {
            self.services.extend(old.map(|old| (key.clone(), old)));
            return;
        }
        if old.as_ref().and_then(|old| old.health_check) != compiled.as_ref().and_then(|new| new.health_check) {
            notes.health_check(key);
        }
        let no_entries = BTreeSet::new();
        let old_entries = old.as_ref().map_or(&no_entries, |old| &old.entries);
        let new_entries = compiled.as_ref().map_or(&no_entries, |new| &new.entries);
        for (set, element) in new_entries.difference(old_entries) {
            self.count_entry(*set, element.clone(), notes);
        }
        for (set, element) in old_entries.difference(new_entries) {
            self.uncount_entry(*set, element, notes);
        }
        let claim_of = |of: &Option<Box<Compiled>>, frontend: &VirtualServerKey| {
            let compiled = of.as_ref()?;
            let frontend = compiled.frontend(frontend)?.clone();
            Some(Claim { created: compiled.created, service: key.clone(), frontend })
        };
        for frontend in old.iter().flat_map(|old| &old.frontends) {
            let frontend = frontend.key();
            let (before, after) = (claim_of(&old, &frontend), claim_of(&compiled, &frontend));
            if before != after {
                self.claim(frontend, key, after, notes);
            }
        }
        for frontend in compiled.iter().flat_map(|new| &new.frontends) {
            let frontend = frontend.key();
            if old.as_ref().is_none_or(|old| old.frontend(&frontend).is_none()) {
                self.claim(frontend, key, claim_of(&compiled, &frontend), notes);
            }
        }
        self.services.extend(compiled.map(|new| (key.clone(), new)));
    }

    /// Changes one Service's claim to a Frontend, and updates what follows if the owner's Frontend changes.
    fn claim(&mut self, key: VirtualServerKey, service: &ObjectKey, new: Option<Claim>, notes: &mut Notes<'_>) {
        let claims = self.claims.entry(key).or_default();
        let owned = |claims: &Claims| claims.first().map(|claim| claim.frontend.clone());
        let before = owned(claims);
        claims.retain(|claim| claim.service != *service);
        if let Some(new) = new {
            let place = claims.partition_point(|claim| claim.rank() < new.rank());
            claims.reserve_exact(1);
            claims.insert(place, new);
        }
        let after = owned(claims);
        if claims.is_empty() {
            self.claims.remove(&key);
        }
        if before == after {
            return;
        }
        let programmed = |frontend: &Arc<Frontend>| (frontend.config, frontend.real_servers.clone());
        if before.as_ref().map(programmed) != after.as_ref().map(programmed) {
            notes.virtual_server(key);
        }
        let barred = |frontend: &Option<Arc<Frontend>>| frontend.as_ref().is_some_and(|of| of.is_barred_from_node());
        match (barred(&before), barred(&after)) {
            (false, true) => drop(self.barred.insert(key)),
            (true, false) => drop(self.barred.remove(&key)),
            _ => {}
        }
        // Add first, then remove, so that the count of what stays never reaches zero.
        if let Some(frontend) = after {
            if frontend.bound {
                let count = self.addresses.entry(frontend.address).or_default();
                *count = count.saturating_add(1);
                if *count == 1 {
                    notes.address(frontend.address);
                }
            }
            if frontend.is_elsewhere() {
                let count = self.elsewhere.entry(frontend.address).or_default();
                *count = count.saturating_add(1);
                if *count == 1 {
                    notes.elsewhere(frontend.address);
                }
            }
            for (set, element) in frontend.entries() {
                self.count_entry(set, element, notes);
            }
        }
        if let Some(frontend) = before {
            if frontend.bound && uncount(&mut self.addresses, &frontend.address) {
                notes.address(frontend.address);
            }
            if frontend.is_elsewhere() && uncount(&mut self.elsewhere, &frontend.address) {
                notes.elsewhere(frontend.address);
            }
            for (set, element) in frontend.entries() {
                self.uncount_entry(set, &element, notes);
            }
        }
    }

    fn count_entry(&mut self, set: SetKey, element: Element, notes: &mut Notes<'_>) {
        match self.sets.entry(set).or_default().entry(element) {
            Entry::Occupied(mut count) => *count.get_mut() = count.get().saturating_add(1),
            Entry::Vacant(place) => {
                notes.entry(set, place.key());
                place.insert(1);
            }
        }
    }

    fn uncount_entry(&mut self, set: SetKey, element: &Element, notes: &mut Notes<'_>) {
        let Some(elements) = self.sets.get_mut(&set) else { return };
        if uncount(elements, element) {
            notes.entry(set, element);
        }
        if elements.is_empty() {
            self.sets.remove(&set);
        }
    }

    /// Reduces memory by rebuilding everything; call it after a large change.
    pub fn compact(&mut self) {
        pack(&mut self.services);
        pack(&mut self.claims);
        pack(&mut self.addresses);
        pack(&mut self.elsewhere);
        self.sets.values_mut().for_each(pack);
    }

    /// All virtual servers, each as its owner wants it.
    pub fn frontends(&self) -> impl Iterator<Item = &Frontend> {
        self.claims.values().filter_map(|claims| claims.first()).map(|claim| &*claim.frontend)
    }

    /// A virtual server, as its owner wants it.
    pub fn frontend(&self, key: &VirtualServerKey) -> Option<&Frontend> {
        self.claims.get(key)?.first().map(|claim| &*claim.frontend)
    }

    /// The Service a virtual server belongs to.
    pub fn owner(&self, key: &VirtualServerKey) -> Option<&ObjectKey> {
        self.claims.get(key)?.first().map(|claim| &claim.service)
    }

    /// Addresses to be bound to the dummy device, sorted.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.keys().copied()
    }

    /// Whether an address has to be bound to the dummy device.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }

    /// Whether an address is served that another interface has. Such an address is not bound to the dummy device; one that
    /// is bound already, because the other interface got it later, stays bound. Addresses move between nodes (keepalived,
    /// kube-vip), and the binding is needed again as soon as the other interface loses the address.
    pub fn is_elsewhere(&self, address: IpAddr) -> bool {
        self.elsewhere.contains_key(&address)
    }

    /// The entries of a set, sorted; none for a set that has to be empty.
    pub fn entries(&self, set: SetKey) -> impl Iterator<Item = &Element> {
        self.sets.get(&set).into_iter().flat_map(BTreeMap::keys)
    }

    /// Whether a set has to have an entry.
    pub fn has_entry(&self, set: SetKey, element: &Element) -> bool {
        self.sets.get(&set).is_some_and(|elements| elements.contains_key(element))
    }

    /// The sets that are not empty: rules depend on this.
    pub fn sets(&self) -> impl Iterator<Item = SetKey> {
        self.sets.keys().copied()
    }

    /// Virtual servers for which this node's own traffic has to be dropped, sorted; see [`Frontend::is_barred_from_node`].
    pub fn barred_from_node(&self) -> impl Iterator<Item = VirtualServerKey> {
        self.barred.iter().copied()
    }

    /// Health checks by Service.
    pub fn health_checks(&self) -> impl Iterator<Item = (&ObjectKey, HealthCheck)> {
        self.services.iter().filter_map(|(key, compiled)| Some((key, compiled.health_check?)))
    }

    /// The health check of a Service.
    pub fn health_check(&self, service: &ObjectKey) -> Option<HealthCheck> {
        self.services.get(service)?.health_check
    }

    /// Services whose endpoints are all on other nodes, though a policy says `Local`.
    pub fn no_local_endpoints(&self) -> impl Iterator<Item = (&ObjectKey, NoLocalEndpoints)> {
        let missing = self.services.iter().map(|(key, compiled)| (key, compiled.no_local_endpoints));
        missing.filter(|(_, missing)| *missing != NoLocalEndpoints::default())
    }

    /// Virtual servers that are not made because their address or port is reserved, with the Services that ask for them.
    pub fn rejected(&self) -> impl Iterator<Item = (&ObjectKey, &Rejected)> {
        self.services.iter().flat_map(|(key, compiled)| compiled.rejected.iter().map(move |refusal| (key, refusal)))
    }

    /// Claims of Services that do not own the Frontend.
    pub fn conflicts(&self) -> impl Iterator<Item = Conflict<'_>> {
        self.claims.iter().flat_map(|(key, claims)| {
            let mut services = claims.iter().map(|claim| &claim.service);
            let owner = services.next();
            services.filter_map(move |refused| Some(Conflict { key: *key, owner: owner?, refused }))
        })
    }

    /// What was compiled for one Service.
    pub fn compiled(&self, service: &ObjectKey) -> Option<&Compiled> {
        self.services.get(service).map(Box::as_ref)
    }
}

/// Decrements a count, and returns whether none is left.
fn uncount<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) -> bool {
    let Some(count) = counts.get_mut(key) else { return false };
    *count = count.saturating_sub(1);
    let gone = *count == 0;
    if gone {
        counts.remove(key);
    }
    gone
}
