//! UDP flows and the endpoints that serve them.

use std::net::SocketAddr;

use proxier_core::net::Family;
use proxier_core::objects::EndpointSliceObject;
use serde_json::{Value, json};
use testkit::witness::{Conversation, Transport, ask};

use super::clients::LIMIT;
use super::cluster::Cluster;
use super::net::{self, FAMILIES, Net};
use super::objects::{self, A, HERE, R, Vip};

/// Slices of a Service with pods a and r; `other`: fields of r.
fn slices(service: &str, other: &Value) -> [EndpointSliceObject; 2] {
    objects::slices(service, &[A, R]).map(|slice| {
        let mut object = serde_json::to_value(&slice).unwrap();
        object["endpoints"][0]["hints"] = json!({ "forNodes": [{ "name": HERE }] });
        for (field, value) in other.as_object().into_iter().flatten() {
            object["endpoints"][1][field] = value.clone();
        }
        serde_json::from_value(object).unwrap()
    })
}

/// Flows of the Service `web` with pods a and r stay at r while it serves, even if it is not selected. Once it does
/// not, they go to a. A new process in place of the one that made them changes nothing.
pub(crate) fn flows_stay_while_their_endpoint_serves(net: &Net, cluster: &mut Cluster, again: impl Fn() -> Cluster) {
    let all = FAMILIES.into_iter().flat_map(|family| Vip::ALL.map(|vip| vip.of(10, family))).flat_map(|to| [to; 3]);
    let open = |to: SocketAddr| {
        let from = Some(net::CLIENT.of(Family::of(to.ip())));
        let mut flow = Conversation::open(Transport::Udp, from, to, LIMIT).unwrap();
        let name = flow.ask().unwrap_or_else(|error| panic!("{to}: {error}")).name;
        (to, flow, name)
    };
    let mut flows: Vec<(SocketAddr, Conversation, String)> = net.client.run_in(|| all.map(open).collect()).unwrap();
    assert!(["a", "r"].iter().all(|one| flows.iter().any(|(_, _, name)| name == one)));
    let cluster_wide = json!({});
    let local =
        json!({ "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local", "healthCheckNodePort": 32_000 });
    let stopping = json!({ "conditions": { "ready": false, "serving": true, "terminating": true } });
    let turns = [
        (&cluster_wide, stopping),
        (&local, json!({})),
        (&cluster_wide, json!({ "hints": { "forNodes": [{ "name": "x" }] } })),
    ];
    for (more, other) in &turns {
        let publish = |cluster: &mut Cluster| {
            cluster.service(&objects::service("web", 10, more));
            for slice in &slices("web", other) {
                cluster.slice(slice);
            }
            cluster.settle();
        };
        publish(cluster);
        let mut hold = |when: &str| {
            for (to, flow, held) in &mut flows {
                let answer = flow.ask().unwrap_or_else(|error| panic!("{to}, {more} {other}, {when}: {error}"));
                assert_eq!(answer.name, *held, "{to}, {more} {other}, {when}");
            }
        };
        hold("changed");
        let (to, from) = (Vip::ClusterIp.of(10, FAMILIES[0]), Some(net::CLIENT.of(FAMILIES[0])));
        for _ in 0..2 {
            let new = net.client.run_in(|| ask(Transport::Udp, from, to, LIMIT)).unwrap();
            assert_eq!(new.unwrap().name, "a", "a new flow, {more} {other}");
        }
        *cluster = again();
        publish(cluster);
        hold("by the next process");
    }
    for slice in &slices("web", &json!({ "conditions": { "ready": false, "serving": false, "terminating": true } })) {
        cluster.slice(slice);
    }
    cluster.settle();
    for (to, flow, held) in &mut flows {
        // The kernel's record of the old flow may end with the first question.
        let answer = flow.ask().or_else(|_| flow.ask()).unwrap_or_else(|error| panic!("{to}, held by {held}: {error}"));
        assert_eq!(answer.name, "a", "{to}, held by {held}");
    }
}
