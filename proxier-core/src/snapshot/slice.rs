//! An EndpointSlice with every value checked.

use bitflags::bitflags;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::weights;
use super::{Abilities, ObjectKey, ObjectKind, Rejection, Reporter, check_port, is_usable, parse_address};
use crate::net::{Family, Protocol};
use crate::objects::{EndpointObject, EndpointPortObject, EndpointSliceObject};

bitflags! {
    /// Properties of an endpoint as seen from this node.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) struct EndpointFlags: u8 {
        const READY = 1;
        /// Accepts connections unless it terminates.
        const SERVING = 2;
        const TERMINATING = 4;
        const LOCAL = 8;
        const NODE_HINTS = 16;
        const HINTED_HERE = 32;
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EndpointPort {
    pub(crate) name: Box<str>,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
}

/// An endpoint. Kept small, since these are the most numerous objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub(crate) address: IpAddr,
    pub(crate) flags: EndpointFlags,
    /// Index of its location in the slice, from 1; see [`EndpointSlice::zones_of`].
    location: Option<NonZeroU16>,
}

/// An EndpointSlice: endpoints of one Service and one family.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointSlice {
    /// Namespace and name of the slice.
    pub key: ObjectKey,
    /// The Service that its label names.
    #[doc(hidden)]
    pub service: ObjectKey,
    pub(crate) family: Family,
    /// The endpoints, in the object's order.
    #[doc(hidden)]
    pub endpoints: Box<[Endpoint]>,
    /// The rest, which many slices share.
    pub(super) shape: Arc<Shape>,
}

/// Content of a slice without its endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Shape {
    /// Sorted.
    ports: Vec<EndpointPort>,
    /// Nodes and zones of the endpoints, and the zones and nodes for which they are meant.
    locations: Vec<Location>,
    weights: Box<[(IpAddr, u16)]>,
}

const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";

impl EndpointSlice {
    /// Checks a slice as seen from the node of this name. `None` if there is nothing to program: it belongs to no
    /// Service or a headless one, or has names instead of addresses. Its Service decides whether another proxy serves
    /// it.
    ///
    /// Ignores and reports impossible values; the rest counts. `keeps_nodes`: stores the nodes of endpoints, which
    /// takes memory. `abilities`: the policies that the mode supports.
    pub(super) fn check(
        object: &EndpointSliceObject,
        node_name: &str,
        keeps_nodes: bool,
        abilities: Abilities,
        rejections: &mut Vec<Rejection>,
    ) -> Option<Self> {
        let key = ObjectKey::of(&object.metadata);
        let report = &mut Reporter { kind: ObjectKind::EndpointSlice, key: &key, rejections };
        let labels = &object.metadata.labels;
        if labels.get(HEADLESS_LABEL).is_some() {
            return None;
        }
        let service = labels.get(SERVICE_NAME_LABEL).filter(|name| !name.is_empty())?;
        let service = ObjectKey::new(key.namespace(), service);
        let family = match object.address_type.as_str() {
            "IPv4" => Family::V4,
            "IPv6" => Family::V6,
            "FQDN" => return None,
            other => {
                report.reject("addressType", other, "not IPv4, IPv6 or FQDN; the slice is left out");
                return None;
            }
        };
        let ports = check_ports(&object.ports, report);
        let mut endpoints = Vec::with_capacity(object.endpoints.len());
        let mut shape = Shape { ports, ..Shape::default() };
        for (index, endpoint) in object.endpoints.iter().enumerate() {
            let field = || format!("endpoints[{index}].addresses[0]");
            let Some(text) = endpoint.addresses.first() else {
                report.reject(format!("endpoints[{index}].addresses"), "", "empty; the endpoint is left out");
                continue;
            };
            let Some(address) = parse_address(text).filter(|address| is_usable(*address)) else {
                report.reject(field(), text, "not an address an endpoint can have; the endpoint is left out");
                continue;
            };
            if Family::of(address) != family {
                report.reject(field(), text, "not of the slice's addressType; the endpoint is left out");
                continue;
            }
            let location = shape.add_location(endpoint, keeps_nodes);
            endpoints.push(Endpoint { address, flags: flags_of(endpoint, node_name), location });
        }
        let asked = object.metadata.annotations.get(weights::OF_ADDRESSES);
        shape.weights = asked.map(|text| weights::of_addresses(text, abilities, report)).unwrap_or_default();
        Some(EndpointSlice { key, service, family, endpoints: endpoints.into(), shape: Arc::new(shape) })
    }

    pub(crate) fn ports(&self) -> &[EndpointPort] {
        &self.shape.ports
    }

    /// The numbers of the ports with this name and protocol. Searched for, since a Service and its slices may have tens
    /// of thousands of ports.
    pub(crate) fn numbers_of(&self, name: &str, protocol: Protocol) -> impl Iterator<Item = u16> {
        let first = self.ports().partition_point(|port| (&*port.name, port.protocol) < (name, protocol));
        let found = self.ports().iter().skip(first);
        found.take_while(move |port| *port.name == *name && port.protocol == protocol).map(|port| port.port)
    }

    /// The annotation that sets the weights of a slice's endpoints.
    pub const WEIGHTS: &str = weights::OF_ADDRESSES;

    /// The zones for which an endpoint of this slice is meant; `None` if it has no zone hints.
    pub(crate) fn zones_of(&self, endpoint: &Endpoint) -> Option<&[Box<str>]> {
        self.location_of(endpoint).map(|location| &*location.hints).filter(|zones| !zones.is_empty())
    }

    pub(crate) fn zone_of(&self, endpoint: &Endpoint) -> Option<&str> {
        self.location_of(endpoint)?.zone.as_deref()
    }

    /// The node of an endpoint of this slice, if stored ([`Store::of_mode`](super::Store::of_mode)).
    pub(crate) fn node_of(&self, endpoint: &Endpoint) -> Option<&str> {
        self.location_of(endpoint)?.node.as_deref()
    }

    /// Whether endpoints have their own weights.
    pub fn has_weights(&self) -> bool {
        !self.shape.weights.is_empty()
    }

    pub(crate) fn weight_of(&self, endpoint: &Endpoint) -> Option<u16> {
        let weights = &self.shape.weights;
        let found = weights.binary_search_by_key(&endpoint.address, |(address, _)| *address).ok()?;
        weights.get(found).map(|(_, weight)| *weight)
    }

    fn location_of(&self, endpoint: &Endpoint) -> Option<&Location> {
        self.shape.locations.get(usize::from(endpoint.location?.get()).checked_sub(1)?)
    }
}

fn check_ports(objects: &[EndpointPortObject], report: &mut Reporter<'_>) -> Vec<EndpointPort> {
    let mut ports = Vec::with_capacity(objects.len());
    for (index, object) in objects.iter().enumerate() {
        // Absent means "all ports" in the API. No slice of a Service has that.
        let Some(number) = object.port else { continue };
        // An API server writes the default, but files may omit it.
        let name = object.name.as_deref().unwrap_or_default();
        let field = |name: &str| format!("ports[{index}].{name}");
        let Some(protocol) = Protocol::check(object.protocol.as_deref()) else {
            let text = object.protocol.as_deref().unwrap_or_default();
            report.reject(field("protocol"), text, "not TCP, UDP or SCTP; the port is left out");
            continue;
        };
        match check_port(number) {
            Some(port) => ports.push(EndpointPort { name: name.into(), protocol, port }),
            None => report.reject(field("port"), number, "not a port (1 to 65535); the port is left out"),
        }
    }
    ports.sort_unstable();
    ports
}

fn flags_of(endpoint: &EndpointObject, node_name: &str) -> EndpointFlags {
    let conditions = &endpoint.conditions;
    let for_nodes = endpoint.hints.as_ref().map_or(&[][..], |hints| &hints.for_nodes);
    let mut flags = EndpointFlags::empty();
    flags.set(EndpointFlags::READY, conditions.ready.unwrap_or(true));
    flags.set(EndpointFlags::SERVING, conditions.serving.unwrap_or(true));
    flags.set(EndpointFlags::TERMINATING, conditions.terminating.unwrap_or(false));
    flags.set(EndpointFlags::LOCAL, endpoint.node_name.as_deref() == Some(node_name));
    flags.set(EndpointFlags::NODE_HINTS, !for_nodes.is_empty());
    flags.set(EndpointFlags::HINTED_HERE, for_nodes.iter().any(|node| node.name == node_name));
    flags
}

/// Node and zone of an endpoint, and the zones for which it is meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Location {
    hints: Box<[Box<str>]>,
    zone: Option<Box<str>>,
    node: Option<Box<str>>,
}

impl Shape {
    /// The index of an endpoint's location, from 1: most endpoints share one. Beyond 65,535 locations an endpoint has
    /// none.
    fn add_location(&mut self, endpoint: &EndpointObject, keeps_nodes: bool) -> Option<NonZeroU16> {
        let hints = endpoint.hints.as_ref().map_or(&[][..], |hints| &hints.for_zones);
        let zone = endpoint.zone.as_deref().filter(|zone| !zone.is_empty());
        let node = endpoint.node_name.as_deref().filter(|node| keeps_nodes && !node.is_empty());
        if hints.is_empty() && zone.is_none() && node.is_none() {
            return None;
        }
        let same = |location: &Location| {
            let hinted = location.hints.iter().map(|zone| &**zone).eq(hints.iter().map(|zone| &*zone.name));
            hinted && location.zone.as_deref() == zone && location.node.as_deref() == node
        };
        let number = |location: usize| u16::try_from(location.checked_add(1)?).ok().and_then(NonZeroU16::new);
        // Searches only the first few, since a duplicate only costs memory.
        if let Some(known) = self.locations.iter().take(16).position(same) {
            return number(known);
        }
        let number = number(self.locations.len())?;
        self.locations.push(Location {
            hints: hints.iter().map(|zone| zone.name.as_str().into()).collect(),
            zone: zone.map(Box::from),
            node: node.map(Box::from),
        });
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Endpoint;
    use crate::snapshot::{Abilities, ObjectKey, Store};

    /// Endpoints share a location only if zone, hints and node are all equal.
    #[test]
    fn each_endpoint_has_its_own_zone_hints_and_node() {
        let locations = [
            ("zone-a", "zone-a", "node-1"),
            ("zone-b", "zone-a", "node-1"),
            ("zone-a", "zone-b", "node-1"),
            ("zone-a", "zone-a", "node-2"),
            ("zone-a", "zone-a", "node-1"),
        ];
        let endpoints: Vec<_> = (1..)
            .zip(locations)
            .map(|(number, (zone, hint, node))| {
                json!({"addresses": [format!("10.244.0.{number}")], "zone": zone, "nodeName": node,
                    "hints": {"forZones": [{"name": hint}]}})
            })
            .collect();
        let object = json!({
            "metadata": {"namespace": "demo", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": [{"name": "p", "port": 80}], "endpoints": endpoints,
        });
        let mut store = Store::of_mode("node-a", Abilities::default(), true);
        store.upsert_slice(&serde_json::from_value(object).unwrap());
        let slice = store.slices_of(&ObjectKey::new("demo", "web")).next().unwrap();
        let of = |of: &Endpoint| Some((slice.zone_of(of)?, &**slice.zones_of(of)?.first()?, slice.node_of(of)?));
        let found: Vec<_> = slice.endpoints.iter().filter_map(of).collect();
        assert_eq!(found, locations);
    }
}
