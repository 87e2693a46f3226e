//! Meaning of Services: what the files of `../scenarios` cannot say, and what differs from kube-proxy only here.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proxier_core::config::{NodePortAddresses, ReservedPort, Topology, User};
use proxier_core::modes::ipvs::wanted::Recorded;
use proxier_core::net::Family;
use proxier_core::objects::{EndpointSliceObject, ServiceObject};
use proxier_core::service::{Indexed, endpoint_decisions, why_left_out};
use proxier_core::snapshot::{ObjectKey, ObjectKind, Store};
use serde_json::{Value, json};

use crate::node::checked;
use crate::universe::facts;
use crate::world::{World, cluster_ip, endpoint};

const WEB: &str = "TCP 10.96.0.1:80";

/// `spec` with these fields added.
fn with(mut spec: Value, more: Value) -> Value {
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

/// An address may pass to a pod on another node before its former pod is gone. With `publishNotReadyAddresses` that one
/// stays ready.
#[test]
fn a_pod_whose_address_runs_elsewhere_is_not_counted_here() {
    let spec = with(
        cluster_ip("10.96.0.1"),
        json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000}),
    );
    let former = json!({"addresses": ["10.244.1.1"], "nodeName": "node-a", "conditions": {"ready": true, "serving": true, "terminating": true}});
    for (name, endpoints, here) in [
        ("both in one", json!([former, endpoint("10.244.1.1", "node-b")]), 0),
        ("the other order", json!([endpoint("10.244.1.1", "node-b"), former]), 0),
        ("alone", json!([former]), 1),
        ("two pods", json!([former, endpoint("10.244.1.1", "node-b"), endpoint("10.244.1.2", "node-a")]), 1),
    ] {
        let mut world = World::new();
        world.service("web", spec.clone());
        world.slice("web-1", "web", endpoints);
        let wanted = world.wanted();
        let local = &wanted.desired().frontend(&WEB.parse().unwrap()).unwrap().local;
        let check = wanted.desired().health_checks().next().unwrap().1;
        assert_eq!((local.len(), check.local_endpoints.v4), (here, Some(here)), "{name}");
    }
}

/// A pass reports it, so one must follow, even if the object means the same without what is rejected.
#[test]
fn an_object_whose_faults_change_has_changed() {
    let mut store = Store::new("node-a");
    let metadata = |annotations: Value| json!({"namespace": "demo", "name": "web", "annotations": annotations, "labels": {"kubernetes.io/service-name": "web"}});
    let mut service = |annotations: Value| {
        let object =
            json!({"metadata": metadata(annotations), "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 80}]}});
        store.upsert_service(&serde_json::from_value(object).unwrap()).len()
    };
    let typo = || json!({"proxier/scheduler": "wrrr"});
    let changed =
        [json!({}), json!({}), typo(), typo(), json!({"proxier/scheduler": "rrr"}), json!({})].map(&mut service);
    assert_eq!(changed, [1, 0, 1, 0, 1, 1]);
    let mut slice = |annotations: Value| {
        let object = json!({"metadata": metadata(annotations), "addressType": "IPv4", "endpoints": [endpoint("10.244.1.1", "node-b")]});
        store.upsert_slice(&serde_json::from_value(object).unwrap()).len()
    };
    let typo = || json!({"proxier/weights": "10.244.1.1=many"});
    assert_eq!([json!({}), typo(), typo(), json!({})].map(&mut slice), [1, 1, 0, 1]);
    // A Service of which nothing is left.
    let object = json!({"metadata": {"namespace": "demo", "name": "bad"}, "spec": {"clusterIP": "10.96.0.2", "ports": [{"port": 70000}]}});
    let object: ServiceObject = serde_json::from_value(object).unwrap();
    assert_eq!([(); 2].map(|()| store.upsert_service(&object).len()), [1, 0]);
}

/// Objects from before dual stack have one of the two lists only.
#[test]
fn families_without_a_list_of_cluster_ips_mean_the_one_there_is() {
    let mut world = World::new();
    world.service("web", with(cluster_ip("10.96.0.1"), json!({"ipFamilies": ["IPv4"]})));
    assert_eq!(world.frontends(), [WEB]);
    world.service("web", with(cluster_ip("10.96.0.1"), json!({"clusterIPs": ["10.96.0.1", "fd00::1"]})));
    assert_eq!(world.frontends(), [WEB]);
    let twice = json!({"clusterIPs": ["10.96.0.1", "10.96.0.2"], "ipFamilies": ["IPv4", "IPv4"]});
    world.service("web", with(cluster_ip("10.96.0.1"), twice));
    assert_eq!(world.frontends(), [WEB]);
    assert_eq!(world.rejected(ObjectKind::Service, "web"), ["spec.clusterIPs[1]"]);
}

/// The words of `explain` for an endpoint that is meant for another zone.
#[test]
fn a_reason_names_the_annotation_only_where_it_decides() {
    let reason = |topology: Topology, annotations: Value| -> String {
        let mut world = World::new();
        world.config.topology = topology;
        let metadata = json!({"namespace": "demo", "name": "web", "annotations": annotations});
        world.service_object(json!({"metadata": metadata, "spec": cluster_ip("10.96.0.1")}));
        let hinted =
            |address: &str, zone: &str| json!({"addresses": [address], "hints": {"forZones": [{"name": zone}]}});
        world.slice("web-1", "web", json!([hinted("10.244.1.1", "zone-a"), hinted("10.244.1.2", "zone-b")]));
        let web = world.store.service(&ObjectKey::new("demo", "web")).unwrap();
        let slices = world.store.slices_of(&web.key);
        let decisions = endpoint_decisions(web, slices, &web.ports[0], Family::V4, &world.facts());
        decisions.iter().map(|one| one.reason(web, &world.facts())).collect::<Vec<_>>().join("; ")
    };
    let asked = json!({"service.kubernetes.io/topology-mode": "Auto"});
    let meant = "it is ready; hints: others are meant for this node or its zone (zone-a), this one for zone zone-b";
    assert_eq!(reason(Topology::Hints, json!({})), meant);
    assert_eq!(reason(Topology::Hints, asked.clone()), meant);
    assert_eq!(reason(Topology::AnnotatedHints, json!({})), "it is ready; it is ready");
    assert_eq!(reason(Topology::AnnotatedHints, asked), format!("{meant}, and the Service asks for hints"));
}

#[test]
fn where_node_ports_are_asked_for() {
    let served = |asked: &[&str], bind_address: &str| -> Vec<String> {
        let mut world = World::new();
        let rejections;
        (world.config, rejections) = checked(json!({"nodePortAddresses": asked, "bindAddress": bind_address}));
        assert!(rejections.is_empty(), "{rejections:?}");
        let addresses = ["192.168.0.10", "192.168.0.20", "2001:db8:1::10", "2001:db8:1::20", "127.0.0.1", "::1"];
        let addresses = addresses.map(|text| text.parse().unwrap());
        world.host.interfaces = BTreeMap::from([("eth0".to_owned(), addresses.into())]);
        let facts = world.facts();
        Family::ALL
            .into_iter()
            .flat_map(|family| facts.node_port_addresses(family).collect::<Vec<_>>())
            .map(|of| of.to_string())
            .collect()
    };
    let all = ["192.168.0.10", "192.168.0.20", "2001:db8:1::10", "2001:db8:1::20"];
    let [first, second, first_v6, second_v6] = all;
    for (asked, expected) in [
        (&[][..], &all[..]),
        (&["all"], &all),
        (&["all", "localhost"], &all),
        (&["all", "primary", "10.0.0.0/8"], &all),
        (&["primary"], &[first, first_v6]),
        (&["primary", "localhost"], &[first, first_v6]),
        (&["primary", "10.0.0.0/8"], &[first, first_v6]),
        (&["192.168.0.20/32", "primary"], &[first, second, first_v6]),
        (&["primary", "2001:db8::/32"], &[first, first_v6, second_v6]),
        (&["localhost"], &[]),
        (&["localhost", "192.168.0.20/32"], &[second]),
        (&["192.168.0.20/32"], &[second, first_v6, second_v6]),
    ] {
        assert_eq!(served(asked, "0.0.0.0"), expected, "{asked:?}");
    }
    // The node's primary address is the configured one, if other hosts can reach it.
    for (bound, expected) in [
        ("", [first, first_v6]),
        ("0.0.0.0", [first, first_v6]),
        ("::", [first, first_v6]),
        ("127.0.0.1", [first, first_v6]),
        (second, [second, first_v6]),
        (second_v6, [first, second_v6]),
    ] {
        assert_eq!(served(&["primary"], bound), expected, "{bound}");
    }
}

#[test]
fn primary_in_a_family_without_an_address_serves_none() {
    let mut world = World::new();
    let addresses = ["192.168.0.10", "2001:db8:1::10"].map(|text| text.parse().unwrap());
    world.host.interfaces = BTreeMap::from([("eth0".to_owned(), addresses.into())]);
    world.node.addresses = vec![addresses[0]];
    world.config.node_port_addresses = NodePortAddresses::Primary;
    let facts = world.facts();
    assert_eq!(facts.node_port_addresses(Family::V4).collect::<Vec<_>>(), [addresses[0]]);
    assert_eq!(facts.node_port_addresses(Family::V6).count(), 0);
    assert!(facts.health_checks_open_on(Family::V6).is_nowhere());
}

#[test]
fn external_ips_are_left_out_without_their_feature_gate() {
    for gate in [true, false] {
        let mut world = World::new();
        world.config = checked(json!({"featureGates": {"AllowServiceExternalIPs": gate}})).0;
        let spec = json!({"type": "LoadBalancer", "externalIPs": ["203.0.113.1", "203.0.113.2"],
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.2"}]}}});
        world.service("web", with(cluster_ip("10.96.0.1"), spec));
        let external: &[&str] = if gate { &["TCP 203.0.113.1:80"] } else { &[] };
        assert_eq!(world.frontends(), [&["TCP 10.96.0.1:80"], external, &["TCP 203.0.113.2:80"]].concat());
        let said: Vec<String> = world.wanted().desired().refused().map(ToString::to_string).collect();
        let expected = "Service demo/web: spec.externalIPs 203.0.113.1,203.0.113.2: not served: the feature gate AllowServiceExternalIPs is false";
        assert_eq!(said, Vec::from_iter((!gate).then_some(expected)));
        let why = |key: &str| why_left_out(&world.store, &world.facts(), &key.parse().unwrap()).is_some();
        assert_eq!((why("TCP 203.0.113.1:80"), why("TCP 203.0.113.1:81")), (!gate, false));
    }
}

/// Ports, addresses and endpoints multiply: small objects could take all memory of each node.
#[test]
fn a_service_that_is_too_large_is_served_in_part_and_reported() {
    let mut world = World::new();
    let ports: Vec<_> = (1..=200).map(|port| json!({"name": format!("p{port}"), "port": port})).collect();
    let endpoints: Vec<_> =
        (0..1000).map(|n| endpoint(&format!("10.244.{}.{}", n / 250, n % 250 + 1), "node-b")).collect();
    let spec = json!({"clusterIP": "10.96.0.1", "ports": ports,
        "externalIPs": ["203.0.113.1", "203.0.113.2", "203.0.113.3", "203.0.113.4"]});
    world.service("large", spec.clone());
    let labels = json!({"kubernetes.io/service-name": "large"});
    let metadata = json!({"namespace": "demo", "name": "large-1", "labels": labels});
    let slice = json!({"metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": endpoints});
    world.slice_object(slice);
    world.service("web", cluster_ip("10.96.0.2"));
    // 524,288 / (5 addresses × (1000 endpoints + 1)) = 104 ports.
    assert_eq!(world.frontends().len(), 104 * 5 + 1);
    let wanted = world.wanted();
    let said: Vec<String> = wanted.desired().refused().map(ToString::to_string).collect();
    assert!(said.len() == 1 && said[0].contains("spec.ports TCP 105: this port and those after it"), "{said:?}");
    let ranges: Vec<_> = (0..=104).map(|n| format!("198.51.{n}.0/24")).collect();
    world.service("large", with(spec, json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ranges})));
    // 524,288 / (5 addresses × (1000 endpoints + 105 ranges + 1)) = 94 ports.
    assert_eq!(world.frontends().len(), 94 * 5 + 1);
}

#[test]
fn problems_of_an_object_are_kept_up_to_a_number() {
    let mut world = World::new();
    let metadata = json!({"namespace": "demo", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"},
        "annotations": {"proxier/weights": format!("{} 10.244.1.1=7", "x,".repeat(100_000))}});
    let endpoints = json!([endpoint("10.244.1.1", "node-b"), endpoint("10.244.1.2", "node-b")]);
    let ports = json!([{"name": "p", "port": 8080}]);
    world.slice_object(json!({"metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": endpoints}));
    assert_eq!(world.rejected(ObjectKind::EndpointSlice, "web-1").len(), 100);
    let slice = world.store.slices_of(&ObjectKey::new("demo", "web")).next().unwrap();
    assert!(slice.has_weights());
}

#[test]
fn only_the_service_of_the_api_server_may_have_its_place() {
    for (namespace, name, is_served) in [
        ("default", "kubernetes", true),
        ("default", "web", false),
        ("demo", "kubernetes", false),
        ("demo", "web", false),
    ] {
        let mut world = World::new();
        world.config.reserved.reserve(ReservedPort::tcp([10, 96, 0, 1].into(), 443), User::ApiServer);
        let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]});
        world.service_object(json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec}));
        assert_eq!(
            world.frontends() == ["TCP 10.96.0.1:443"],
            is_served,
            "{namespace}/{name}: {:?}",
            world.frontends()
        );
    }
}

/// A cluster has each name many times, and names take memory: each is kept once, in any order of arrival.
#[test]
fn names_are_kept_once() {
    let ready = |address: &str| json!([endpoint(address, "node-a")]);
    for slices_first in [false, true] {
        let mut world = World::new();
        for number in 1..=3 {
            let name = format!("s{number}");
            let slice = |world: &mut World| {
                for part in 1..=2 {
                    world.slice(&format!("{name}-{part}"), &name, ready(&format!("10.244.{part}.{number}")));
                }
            };
            if slices_first {
                slice(&mut world);
            }
            world.service(&name, cluster_ip(&format!("10.96.0.{number}")));
            // The same again, and changed.
            slice(&mut world);
            world.service(&name, cluster_ip(&format!("10.96.1.{number}")));
        }
        let is_same = |a: &ObjectKey, b: &ObjectKey| std::ptr::eq(a.name(), b.name());
        for service in world.store.services() {
            assert_eq!(world.store.slices_of(&service.key).count(), 2);
            for slice in world.store.slices_of(&service.key) {
                let owner = world.store.service_of_slice(&slice.key).unwrap();
                for key in [&slice.service, owner] {
                    assert!(is_same(key, &service.key), "{} {}", slice.key, service.key);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Texts that no API server accepts do no harm, and every object prints and reads back.
    #[test]
    fn noise_is_left_out(
        texts in proptest::collection::vec("[0-9a-f:./ %Z-]{0,12}|(?s).{0,80}|10\\.0\\.[0-9]{1,3}\\.1(/[0-9]{1,2})?", 10),
        numbers in proptest::collection::vec(any::<i64>(), 5),
    ) {
        let service = json!({
            "metadata": {"namespace": texts[0], "name": texts[1], "creationTimestamp": texts[2]},
            "spec": {
                "clusterIP": texts[3], "clusterIPs": [texts[3], texts[4]], "ipFamilies": ["IPv4", texts[5]], "type": texts[6],
                "externalIPs": [texts[4], texts[7]], "loadBalancerSourceRanges": texts,
                "ports": [{"name": texts[8], "port": numbers[0], "nodePort": numbers[1], "protocol": texts[9]}, {"port": 80}],
                "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": numbers[2]}},
                "externalTrafficPolicy": texts[9], "healthCheckNodePort": numbers[3],
            },
            "status": {"loadBalancer": {"ingress": [{"ip": texts[3], "ipMode": texts[5]}, {"ip": texts[4]}]}},
        });
        let slice = json!({
            "metadata": {"namespace": texts[0], "name": "s", "labels": {"kubernetes.io/service-name": texts[1]}},
            "addressType": "IPv4",
            "ports": [{"name": "", "port": numbers[4]}, {"name": "", "port": 80}],
            "endpoints": [{"addresses": [texts[7]], "nodeName": "node-a"}, {"addresses": ["10.0.0.1"], "nodeName": texts[8]}],
        });
        let service: ServiceObject = serde_json::from_value(service).unwrap();
        let slice: EndpointSliceObject = serde_json::from_value(slice).unwrap();
        let again: ServiceObject = serde_json::from_str(&serde_json::to_string(&service).unwrap()).unwrap();
        prop_assert_eq!(&again, &service);
        let mut store = Store::new("node-a");
        store.upsert_service(&service);
        store.upsert_slice(&slice);
        let all = Indexed::build(&store, &facts(), Recorded::new(facts().config()));
        for rejection in store.rejections() {
            prop_assert_eq!(rejection.to_string().lines().count(), 1, "{}", rejection);
        }
        // A Service with a usable cluster IP serves its one valid port.
        let served = all.desired.frontends().filter(|frontend| frontend.key.port == 80).count();
        prop_assert!(served >= store.services().map(|service| service.cluster_ips.len()).sum::<usize>());
    }
}

/// Source ranges let the node in by its primary address.
#[test]
fn the_bind_address_is_the_nodes_for_source_ranges() {
    for (bound, node_may) in [("0.0.0.0", true), ("192.168.7.7", false)] {
        let mut world = World::new();
        world.config.node_address =
            [bound.parse().unwrap()].into_iter().find(|of: &std::net::IpAddr| !of.is_unspecified());
        let spec = json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ["192.168.0.0/24"],
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}}});
        world.service("web", with(cluster_ip("10.96.0.1"), spec));
        let frontend = world.wanted().desired().frontend(&"TCP 203.0.113.1:80".parse().unwrap()).unwrap();
        assert_eq!(frontend.node_may_use, node_may, "{bound}");
    }
}

/// Places where this node's own programs answer. Another node's kubelet is not ours to guard.
#[test]
fn reserved_places_are_refused() {
    let mut world = World::new();
    let has = |world: &World, key: &str| world.wanted().frontend(&key.parse().unwrap()).is_some();
    for (address, port, user) in [
        ("192.168.0.10", 10250, "the kubelet"),
        ("192.168.0.10", 10256, "this proxy's health checks"),
        ("192.168.0.10", 10249, "this proxy's metrics"),
        ("192.168.0.10", 443, ""),
        ("192.168.0.77", 10250, ""),
    ] {
        let ports = json!({"externalIPs": [address], "ports": [{"name": "http", "port": port}]});
        world.service("web", with(cluster_ip("10.96.0.9"), ports));
        let (key, wanted) = (format!("TCP {address}:{port}"), world.wanted());
        let refused: Vec<String> = wanted.desired().rejected().map(|(_, refusal)| refusal.to_string()).collect();
        let expected = (!user.is_empty()).then(|| format!("{key}: {user} answers there"));
        assert_eq!(refused, Vec::from_iter(expected));
        assert_eq!(has(&world, &key), user.is_empty(), "{key}");
        assert!(has(&world, &format!("TCP 10.96.0.9:{port}")), "the rest of the Service is served");
    }
}
