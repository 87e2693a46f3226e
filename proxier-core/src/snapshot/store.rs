//! Services and slices, and the Service of each slice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::slice::Shape;
use super::{Abilities, Balancing, EndpointSlice, FrontendSpec, ObjectKey, ObjectKind, Rejection, Service};
use crate::objects::{EndpointSliceObject, ServiceObject};
use crate::pack::pack;

/// The checked Services and EndpointSlices of a cluster, as seen from one node.
///
/// Each change costs O(the object), regardless of the number of objects, and returns the Services to compile again:
/// none if the object has not changed.
///
/// Objects can be looked up by Service. An object with impossible parts is stored without them.
#[derive(Clone, Debug, Default)]
pub struct Store {
    node_name: String,
    keeps_nodes: bool,
    /// The shapes of slices, each stored once: most slices have one of a few.
    shapes: BTreeSet<Arc<Shape>>,
    /// The policies that the mode supports.
    abilities: Abilities,
    /// Whether a Service has requested a drain time.
    has_drains: bool,
    /// Boxed, since a map allocates room for more values than it has.
    services: BTreeMap<ObjectKey, Box<Service>>,
    /// Slices by Service, each list sorted by slice key. Most Services have one.
    slices: BTreeMap<ObjectKey, Vec<EndpointSlice>>,
    /// The Service of each slice.
    owners: BTreeMap<ObjectKey, ObjectKey>,
    /// Frontends provided by agents.
    frontends: BTreeMap<ObjectKey, Box<[FrontendSpec]>>,
    /// Number of calls that changed them.
    asked: u64,
    rejections: BTreeMap<(ObjectKind, ObjectKey), Vec<Rejection>>,
    /// Objects whose current content cannot be read: why, and the Service of a slice, if known.
    unreadable: BTreeMap<(ObjectKind, ObjectKey), (String, Option<ObjectKey>)>,
}

impl Store {
    /// Creates an empty store for the node with this name, as in `nodeName` of local endpoints, for a mode that
    /// supports all policies.
    pub fn new(node_name: &str) -> Self {
        Store { node_name: node_name.to_owned(), ..Store::default() }
    }

    /// The same for a mode that supports these policies; others are reported. `keeps_nodes`: stores on which nodes
    /// endpoints are, for nodes' weights ([`NodeFacts::set_node_weights`](crate::service::NodeFacts::set_node_weights)).
    /// This takes memory for each slice.
    pub(crate) fn of_mode(node_name: &str, abilities: Abilities, keeps_nodes: bool) -> Self {
        Store { keeps_nodes, abilities, ..Store::new(node_name) }
    }

    /// Releases memory; see [`Desired::compact`](crate::service::Desired::compact).
    pub fn compact(&mut self) {
        pack(&mut self.services);
        pack(&mut self.slices);
        pack(&mut self.owners);
    }

    /// Whether a Service has requested a drain time since the store exists.
    pub(crate) fn has_drains(&self) -> bool {
        self.has_drains
    }

    /// Adds or replaces a Service. A Service without anything to program is removed.
    pub fn upsert_service(&mut self, object: &ServiceObject) -> Vec<ObjectKey> {
        let mut rejections = Vec::new();
        let key = self.shared(ObjectKey::of(&object.metadata));
        let checked = Service::check(object, self.abilities, &mut rejections);
        // Rejections are reported by passes.
        let is_news = self.note(ObjectKind::Service, &key, rejections);
        let changed = match checked {
            Some(service) if self.service(&key) == Some(&service) => is_news,
            Some(mut service) => {
                service.key = key.clone();
                self.has_drains |= drains(service.balancing.as_deref());
                self.services.insert(key.clone(), Box::new(service));
                true
            }
            None => self.services.remove(&key).is_some() || is_news,
        };
        changed.then_some(key).into_iter().collect()
    }

    /// Removes a Service. Its slices stay until they are deleted themselves, in case it returns.
    pub fn delete_service(&mut self, key: &ObjectKey) -> Vec<ObjectKey> {
        self.note(ObjectKind::Service, key, Vec::new());
        self.services.remove(key).map(|service| service.key).into_iter().collect()
    }

    /// See [`Reconciler::upsert_frontends`](crate::engine::Reconciler::upsert_frontends).
    pub fn upsert_frontends(
        &mut self,
        key: &ObjectKey,
        frontends: impl IntoIterator<Item = FrontendSpec>,
    ) -> Vec<ObjectKey> {
        let mut rejections = Vec::new();
        let mut checked = FrontendSpec::check(key, frontends, self.abilities, &mut rejections);
        self.note(ObjectKind::Frontends, key, rejections);
        let known = self.frontends.get(key).map(Box::as_ref).unwrap_or_default();
        for spec in &mut checked {
            let before =
                known.binary_search_by(|known| known.key.cmp(&spec.key)).ok().and_then(|place| known.get(place));
            spec.asked = before.map_or(self.asked, |before| before.asked);
        }
        if self.frontends.contains_key(key) && *known == *checked {
            return Vec::new();
        }
        self.asked = self.asked.saturating_add(1);
        self.has_drains |= checked.iter().any(|spec| drains(spec.balancing.as_deref()));
        self.frontends.insert(key.clone(), checked.into());
        vec![key.clone()]
    }

    /// Removes the Frontends under this name.
    pub fn delete_frontends(&mut self, key: &ObjectKey) -> Vec<ObjectKey> {
        self.note(ObjectKind::Frontends, key, Vec::new());
        self.frontends.remove_entry(key).map(|(key, _)| key).into_iter().collect()
    }

    /// Adds or replaces a slice. If its label now names another Service, both are returned.
    pub fn upsert_slice(&mut self, object: &EndpointSliceObject) -> Vec<ObjectKey> {
        let mut rejections = Vec::new();
        let key = ObjectKey::of(&object.metadata);
        let checked = EndpointSlice::check(object, &self.node_name, self.keeps_nodes, self.abilities, &mut rejections);
        let is_news = self.note(ObjectKind::EndpointSlice, &key, rejections);
        let Some(mut slice) = checked else { return self.remove_slice(&key) };
        self.share_shape(&mut slice);
        let mut changed = Vec::new();
        let known = self.owners.get_key_value(&key);
        if let Some((key, service)) = known.filter(|(_, service)| **service == slice.service) {
            (slice.key, slice.service) = (key.clone(), service.clone());
        } else {
            if known.is_some() {
                changed.extend(self.remove_slice(&key));
            }
            slice.service = self.shared(slice.service);
        }
        let (key, service) = (slice.key.clone(), slice.service.clone());
        let slices = self.slices.entry(service.clone()).or_default();
        match slices.binary_search_by(|known| known.key.cmp(&key)) {
            Ok(place) => match slices.get_mut(place) {
                Some(known) if *known != slice => {
                    let before = std::mem::replace(known, slice);
                    self.forget_shape(&before);
                }
                _ if !is_news => return changed,
                _ => {}
            },
            Err(place) => {
                slices.reserve_exact(1);
                slices.insert(place, slice);
            }
        }
        self.owners.insert(key, service.clone());
        changed.extend(self.services.contains_key(&service).then_some(service));
        changed
    }

    /// Removes a slice.
    pub fn delete_slice(&mut self, key: &ObjectKey) -> Vec<ObjectKey> {
        self.note(ObjectKind::EndpointSlice, key, Vec::new());
        self.remove_slice(key)
    }

    fn remove_slice(&mut self, key: &ObjectKey) -> Vec<ObjectKey> {
        let Some(service) = self.owners.remove(key) else { return Vec::new() };
        if let Some(slices) = self.slices.get_mut(&service) {
            let gone = slices.extract_if(.., |slice| slice.key == *key).next();
            if slices.is_empty() {
                self.slices.remove(&service);
            }
            if let Some(gone) = gone {
                self.forget_shape(&gone);
            }
        }
        self.services.contains_key(&service).then_some(service).into_iter().collect()
    }

    /// The same key, sharing memory with the stored key of this Service.
    fn shared(&self, key: ObjectKey) -> ObjectKey {
        let service = self.services.get_key_value(&key).map(|(known, _)| known);
        service.or_else(|| self.slices.get_key_value(&key).map(|(known, _)| known)).cloned().unwrap_or(key)
    }

    /// Makes slices with equal content share it. Slices with node names rarely have an equal.
    fn share_shape(&mut self, slice: &mut EndpointSlice) {
        if self.keeps_nodes {
            return;
        }
        match self.shapes.get(&slice.shape) {
            Some(known) => slice.shape = known.clone(),
            None => drop(self.shapes.insert(slice.shape.clone())),
        }
    }

    /// Removes the shape of a slice that was removed, unless others have it.
    fn forget_shape(&mut self, slice: &EndpointSlice) {
        // One reference is here, one there.
        if Arc::strong_count(&slice.shape) == 2 {
            self.shapes.remove(&slice.shape);
        }
    }

    /// See [`Reconciler::note_unreadable`](crate::engine::Reconciler::note_unreadable).
    pub(crate) fn note_unreadable(
        &mut self,
        object: (ObjectKind, ObjectKey),
        reason: &str,
        service: Option<ObjectKey>,
    ) {
        self.unreadable.insert(object, (reason.to_owned(), service));
    }

    /// Records that an object can be read, or was deleted. Returns whether it was unreadable before.
    pub(crate) fn note_readable(&mut self, kind: ObjectKind, key: &ObjectKey) -> bool {
        !self.unreadable.is_empty() && self.unreadable.remove(&(kind, key.clone())).is_some()
    }

    /// Objects whose current content cannot be read, and why.
    pub fn unreadable(&self) -> impl Iterator<Item = (ObjectKind, &ObjectKey, &str)> {
        self.unreadable.iter().map(|((kind, key), (reason, _))| (*kind, key, reason.as_str()))
    }

    /// The unreadable objects of a Service: itself, and the slices that are known to name it.
    pub fn unreadable_of(&self, service: &ObjectKey) -> impl Iterator<Item = (ObjectKind, &ObjectKey, &str)> {
        let is_of = move |kind: ObjectKind, key: &ObjectKey, of: Option<&ObjectKey>| match kind {
            ObjectKind::Service => key == service,
            _ => of.or_else(|| self.owners.get(key)) == Some(service),
        };
        let of = self.unreadable.iter().filter(move |((kind, key), (_, of))| is_of(*kind, key, of.as_ref()));
        of.map(|((kind, key), (reason, _))| (*kind, key, reason.as_str()))
    }

    pub(crate) fn lacks_service(&self) -> bool {
        let is_unknown = |(kind, key): &(ObjectKind, ObjectKey)| match kind {
            ObjectKind::Service => !self.services.contains_key(key),
            kind => *kind == ObjectKind::File,
        };
        self.unreadable.keys().any(is_unknown)
    }

    /// The Services of slices of which nothing else could be read; `None` stands for any Service.
    pub(crate) fn services_lacking_slices(&self) -> impl Iterator<Item = Option<&ObjectKey>> {
        let of_slices = self.unreadable.iter().filter(|((kind, key), _)| match kind {
            ObjectKind::EndpointSlice => !self.owners.contains_key(key),
            kind => *kind == ObjectKind::File,
        });
        of_slices.map(|(_, (_, service))| service.as_ref())
    }

    /// Records what is rejected of an object. Returns whether that is new.
    fn note(&mut self, kind: ObjectKind, key: &ObjectKey, rejections: Vec<Rejection>) -> bool {
        let id = (kind, key.clone());
        if rejections.is_empty() {
            return self.rejections.remove(&id).is_some();
        }
        let is_news = self.rejections.get(&id) != Some(&rejections);
        self.rejections.insert(id, rejections);
        is_news
    }

    /// Known Services and slices, including those with nothing to program if part of them was rejected.
    #[doc(hidden)]
    pub fn keys(&self) -> BTreeSet<(ObjectKind, ObjectKey)> {
        let services = self.services.keys().map(|key| (ObjectKind::Service, key.clone()));
        let slices = self.owners.keys().map(|key| (ObjectKind::EndpointSlice, key.clone()));
        let rejected = self.rejections.keys().filter(|(kind, _)| *kind != ObjectKind::Frontends);
        services.chain(slices).chain(rejected.cloned()).collect()
    }

    /// The name of the node from which the cluster is seen.
    pub(crate) fn node_name(&self) -> &str {
        &self.node_name
    }

    /// A Service.
    pub fn service(&self, key: &ObjectKey) -> Option<&Service> {
        self.services.get(key).map(Box::as_ref)
    }

    /// All Services, sorted by key.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values().map(Box::as_ref)
    }

    pub(crate) fn frontends_of(&self, key: &ObjectKey) -> Option<&[FrontendSpec]> {
        self.frontends.get(key).map(Box::as_ref)
    }

    pub(crate) fn frontend_keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.frontends.keys()
    }

    /// The slices of a Service, sorted by name.
    pub fn slices_of(&self, key: &ObjectKey) -> impl Iterator<Item = &EndpointSlice> + Clone {
        self.slices.get(key).into_iter().flatten()
    }

    /// The Service of a slice.
    pub fn service_of_slice(&self, slice: &ObjectKey) -> Option<&ObjectKey> {
        self.owners.get(slice)
    }

    /// Ignored values of the current objects, by object.
    pub fn rejections(&self) -> impl Iterator<Item = &Rejection> {
        self.rejections.values().flatten()
    }
}

fn drains(asked: Option<&Balancing>) -> bool {
    asked.is_some_and(|asked| asked.drain_secs.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Annotations may change for months.
    #[test]
    fn a_shape_without_slices_is_forgotten() {
        let slice = |name: &str, port: u16| -> EndpointSliceObject {
            serde_json::from_value(json!({
                "metadata": {"namespace": "demo", "name": name, "labels": {"kubernetes.io/service-name": "web"}},
                "addressType": "IPv4", "ports": [{"name": "p", "port": port}], "endpoints": [{"addresses": ["10.244.0.1"]}],
            }))
            .unwrap()
        };
        let mut store = Store::new("node-a");
        for (name, port, shapes) in [("a", 80, 1), ("b", 80, 1), ("c", 81, 2), ("a", 82, 3), ("b", 82, 2), ("b", 82, 2)]
        {
            store.upsert_slice(&slice(name, port));
            assert_eq!(store.shapes.len(), shapes, "{name} {port}");
        }
        for (name, shapes) in [("c", 1), ("a", 1), ("b", 0)] {
            store.delete_slice(&ObjectKey::new("demo", name));
            assert_eq!(store.shapes.len(), shapes, "{name}");
        }
    }
}
