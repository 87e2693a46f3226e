//! Objects that a list lacks although no event reported their deletion.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::mass::MassRemoval;
use crate::net::FrontendKey;
use crate::pack::Gather as _;
use crate::pack::put;
use crate::service::{Desired, Frontend, NodeFacts, Roles, compile};
use crate::snapshot::{ObjectKey, ObjectKind, Store};
use crate::time::Moment;

pub(crate) type Object = (ObjectKind, ObjectKey);

/// Services and EndpointSlices that are missing from a list. The [`Store`] keeps them until they are judged, and longer
/// while they are in doubt, so they are served as if they existed and follow other changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct MissingObjects {
    /// Not judged yet.
    new: BTreeSet<Object>,
    /// In doubt, each with its start.
    doubted: BTreeMap<Object, Moment>,
    /// Confirmed; the next pass deletes them.
    meant: BTreeSet<Object>,
    /// Kinds that are being listed again: missing objects may be in the rest of the list.
    listing: BTreeSet<ObjectKind>,
    /// Frontends that exist, or have endpoints, only because of objects in doubt, each with its start.
    held: BTreeMap<FrontendKey, Moment>,
}

/// What is lost if objects are removed.
#[derive(Default)]
struct Loss {
    /// Frontends that would be removed or lose their last endpoint.
    all: BTreeSet<FrontendKey>,
    /// Number of Frontends that would be removed.
    gone: usize,
    /// Number of Frontends that would lose all endpoints.
    unserved: usize,
}

impl MissingObjects {
    pub(crate) fn lose(&mut self, object: Object) {
        if !self.doubted.contains_key(&object) && !self.meant.contains(&object) {
            self.new.insert(object);
        }
    }

    /// Records that an event reported this object as existing or deleted. Returns whether it was missing before.
    pub(crate) fn note_found(&mut self, object: &Object) -> bool {
        let known = [self.new.remove(object), self.meant.remove(object), self.doubted.remove(object).is_some()];
        known.contains(&true)
    }

    /// A new list of this kind begins or ends. While one is incomplete, nothing of its kind has been missing long
    /// enough.
    pub(crate) fn set_listing(&mut self, kind: ObjectKind, listing: bool) {
        put(&mut self.listing, kind, listing);
    }

    fn is_lost(&self, object: &Object) -> bool {
        self.new.contains(object) || self.meant.contains(object) || self.doubted.contains_key(object)
    }

    pub(crate) fn confirm(&mut self) {
        self.meant.extend(std::mem::take(&mut self.doubted).into_keys());
        self.held.clear();
    }

    pub(crate) fn held(&self) -> &BTreeMap<FrontendKey, Moment> {
        &self.held
    }

    /// Returns the objects to delete now: those whose loss is small, was confirmed, or has lasted.
    ///
    /// Free while nothing is missing; otherwise O(missing objects), and O(all Frontends) for new ones.
    pub(crate) fn judge(
        &mut self,
        settings: &MassRemoval,
        store: &Store,
        desired: &Desired,
        facts: &NodeFacts,
        now: Moment,
    ) -> BTreeSet<Object> {
        let mut gone = std::mem::take(&mut self.meant);
        if self.new.is_empty() && self.doubted.is_empty() {
            self.held.clear();
            return gone;
        }
        gone.extend(self.take_replaced(store, desired));
        let is_over = |since: Moment| settings.patience.is_some_and(|patience| since.saturating_add(patience) <= now);
        let over: Vec<Object> = self
            .doubted
            .iter()
            .filter(|((kind, _), since)| is_over(**since) && !self.listing.contains(kind))
            .map(|(object, _)| object.clone())
            .collect();
        for object in over {
            self.doubted.remove(&object);
            gone.insert(object);
        }
        let new = std::mem::take(&mut self.new);
        if !new.is_empty() {
            // Count the doubted objects too; otherwise later ones would each seem few.
            let missing: BTreeSet<&Object> = self.doubted.keys().chain(&new).gather();
            let loss = loss(&missing, store, desired, facts);
            let all = desired.frontends().count();
            let served = desired.frontends().filter(|frontend| is_served(frontend)).count();
            let too_much = settings.is_too_much(loss.gone, all, all.saturating_sub(loss.gone))
                || settings.is_too_much(loss.unserved, served, served.saturating_sub(loss.unserved));
            if too_much {
                self.doubted.extend(new.into_iter().map(|object| (object, now)));
            } else {
                gone.extend(new);
            }
        }
        self.hold(store, desired, facts, now);
        gone
    }

    /// Removes the missing Services whose cluster IP or a node port another Service has now, and their missing slices.
    /// The API server gives each of these to one Service, so they were deleted. If they were held back, the new Service
    /// could not be served, because the older one owns what both claim.
    fn take_replaced(&mut self, store: &Store, desired: &Desired) -> Vec<Object> {
        let missing = || self.new.iter().chain(self.doubted.keys());
        let is_there = |service: &ObjectKey| {
            store.service(service).is_some() && !self.is_lost(&(ObjectKind::Service, service.clone()))
        };
        let is_taken = |frontend: &Arc<Frontend>| {
            let only_one = frontend.roles & (Roles::CLUSTER_IP | Roles::NODE_PORT);
            let mut others = desired.claimants(&frontend.key);
            others.any(|(other, roles)| roles.intersects(only_one) && is_there(other))
        };
        let is_replaced = |service: &ObjectKey| {
            let compiled = desired.compiled(service);
            compiled.is_some_and(|compiled| compiled.frontends.iter().any(is_taken))
        };
        let mut replaced = Vec::new();
        for (_, service) in missing().filter(|(kind, key)| *kind == ObjectKind::Service && is_replaced(key)) {
            let slices = store.slices_of(service).map(|slice| (ObjectKind::EndpointSlice, slice.key.clone()));
            replaced.push((ObjectKind::Service, service.clone()));
            replaced.extend(slices.filter(|slice| self.is_lost(slice)));
        }
        for object in &replaced {
            self.new.remove(object);
            self.doubted.remove(object);
        }
        replaced
    }

    /// Finds the Frontends that only exist because of doubted objects.
    fn hold(&mut self, store: &Store, desired: &Desired, facts: &NodeFacts, now: Moment) {
        let missing: BTreeSet<&Object> = self.doubted.keys().gather();
        let held = loss(&missing, store, desired, facts).all;
        let before = std::mem::take(&mut self.held);
        self.held = held.into_iter().map(|key| (key, before.get(&key).copied().unwrap_or(now))).gather();
    }
}

fn is_served(frontend: &Frontend) -> bool {
    !frontend.endpoints().is_empty()
}

fn loss(missing: &BTreeSet<&Object>, store: &Store, desired: &Desired, facts: &NodeFacts) -> Loss {
    let of_slice = |key: &ObjectKey| store.service_of_slice(key).cloned();
    let services: BTreeSet<ObjectKey> = missing
        .iter()
        .filter_map(|(kind, key)| if *kind == ObjectKind::Service { Some(key.clone()) } else { of_slice(key) })
        .gather();
    let mut loss = Loss::default();
    for key in services {
        let Some(compiled) = desired.compiled(&key) else { continue };
        let is_missing = |kind, key: &ObjectKey| missing.contains(&(kind, key.clone()));
        let rest = store.service(&key).filter(|_| !is_missing(ObjectKind::Service, &key)).map(|service| {
            let slices = store.slices_of(&key).filter(|slice| !is_missing(ObjectKind::EndpointSlice, &slice.key));
            compile(service, slices, facts, false)
        });
        for frontend in &compiled.frontends {
            let name = frontend.key;
            if desired.owner(&name) != Some(&key) {
                continue;
            }
            let after = rest.as_ref().and_then(|rest| rest.frontend(&name));
            let loses_last = is_served(frontend) && after.is_none_or(|after| !is_served(after));
            loss.gone = loss.gone.saturating_add(after.is_none().into());
            loss.unserved = loss.unserved.saturating_add(loses_last.into());
            if after.is_none() || loses_last {
                loss.all.insert(name);
            }
        }
    }
    loss
}
