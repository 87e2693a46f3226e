//! Objects of the oracle corpus, where the same names mean other things in each scenario, and random events with them.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use proptest::prelude::*;
use proptest::sample::Index;
use proxier_core::config::Config;
use proxier_core::objects::{EndpointSliceObject, ServiceObject};
use proxier_core::service::NodeFacts;
use proxier_core::snapshot::{HostAddresses, Node as NodeOfCluster, ObjectKey};
use serde_json::Value;

use crate::corpus::unpack;
use crate::node::Node;

struct Universe {
    services: Vec<ServiceObject>,
    slices: Vec<EndpointSliceObject>,
}

fn universe() -> &'static Universe {
    static UNIVERSE: OnceLock<Universe> = OnceLock::new();
    UNIVERSE.get_or_init(|| {
        let text = unpack(include_bytes!("../../oracle/corpus.jsonl.gz"));
        let mut universe = Universe { services: Vec::new(), slices: Vec::new() };
        for line in text.lines() {
            let mut scenario: Value = serde_json::from_str(line).unwrap();
            let mut take = |field: &str| scenario[field].take();
            universe.services.extend(serde_json::from_value::<Vec<ServiceObject>>(take("services")).unwrap());
            universe.slices.extend(serde_json::from_value::<Vec<EndpointSliceObject>>(take("endpointSlices")).unwrap());
        }
        // Services named s1 have a creation time, so they win an address and port that several claim.
        for service in &mut universe.services {
            service.metadata.creation_timestamp =
                (service.metadata.name == "s1").then(|| "2024-01-01T00:00:00Z".to_owned());
        }
        universe
    })
}

pub(crate) fn facts() -> NodeFacts {
    let mut node = NodeOfCluster::new("node-a");
    node.zone = Some("zone-a".into());
    node.addresses = vec!["192.168.0.10".parse().unwrap(), "2001:db8:1::10".parse().unwrap()];
    let interfaces = BTreeMap::from([("eth0".to_owned(), node.addresses.clone())]);
    NodeFacts::new(&Config::default(), &node, &HostAddresses { interfaces })
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Service(Index),
    Slice(Index),
    DeleteService(Index),
    DeleteSlice(Index),
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => any::<Index>().prop_map(Event::Service),
        6 => any::<Index>().prop_map(Event::Slice),
        1 => any::<Index>().prop_map(Event::DeleteService),
        1 => any::<Index>().prop_map(Event::DeleteSlice),
    ]
}

pub(crate) fn events() -> impl Strategy<Value = Vec<Event>> {
    proptest::collection::vec(event(), 1..60)
}

impl Node {
    pub(crate) fn happens(&mut self, event: &Event) {
        let Universe { services, slices } = universe();
        let now = self.now;
        match event {
            Event::Service(index) => self.proxier.upsert_service(index.get(services), now),
            Event::Slice(index) => _ = self.proxier.upsert_slice(index.get(slices), now),
            Event::DeleteService(index) => {
                self.proxier.delete_service(&ObjectKey::of(&index.get(services).metadata), now);
            }
            Event::DeleteSlice(index) => self.proxier.delete_slice(&ObjectKey::of(&index.get(slices).metadata), now),
        }
    }
}
