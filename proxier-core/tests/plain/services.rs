//! Meaning of Services, case by case: cases for which the corpus has no scenario, or in which this crate differs from kube-proxy 1.28.

use std::collections::BTreeMap;
use std::sync::Arc;

use proxier_core::config::{Config, LocalFallback, NodePortAddresses, Topology};
use proxier_core::config::{ReservedPort, User};
use proxier_core::modes::ipvs::index::Index;
use proxier_core::modes::ipvs::sets::SetKind;
use proxier_core::net::{ByFamily, Family};
use proxier_core::service::{Indexed, OpenOn, consider, why_left_out};
use proxier_core::snapshot::{ObjectKey, ObjectKind};
use serde_json::{Value, json};

use crate::world::{World, cluster_ip, endpoint, stopping};

const WEB: &str = "TCP 10.96.0.1:80";

/// `spec` with these fields added.
fn with(mut spec: Value, more: Value) -> Value {
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    spec
}

#[test]
fn services_without_anything_to_program() {
    let mut world = World::new();
    let ignored = [
        json!({"clusterIP": "None", "ports": [{"port": 80}]}),
        json!({"clusterIP": "", "ports": [{"port": 80}]}),
        json!({"ports": [{"port": 80}]}),
        json!({"type": "ExternalName", "clusterIP": "10.96.0.1", "ports": [{"port": 80}]}),
    ];
    for spec in ignored {
        // Something was served, and goes.
        world.service("web", cluster_ip("10.96.0.1"));
        assert_eq!(world.frontends(), [WEB]);
        world.service("web", spec);
        assert_eq!(world.frontends(), [""; 0]);
        assert_eq!(world.addresses(), [""; 0]);
    }
    world.service("web", cluster_ip("10.96.0.1"));
    assert_eq!(world.frontends(), [WEB]);
    let labels = json!({"service.kubernetes.io/service-proxy-name": ""});
    let metadata = json!({"namespace": "demo", "name": "web", "labels": labels});
    world.service_object(json!({"metadata": metadata, "spec": cluster_ip("10.96.0.1")}));
    assert_eq!(world.frontends(), [""; 0]);
    assert_eq!(world.store.rejections().count(), 0);
}

/// Whether another proxy serves a Service is for the Service to say: its slices may still have the label, or not yet.
#[test]
fn slices_of_headless_services_do_not_count() {
    for (label, counts) in
        [("service.kubernetes.io/headless", false), ("service.kubernetes.io/service-proxy-name", true)]
    {
        let mut world = World::new();
        world.service("web", cluster_ip("10.96.0.1"));
        world.slice("web-1", "web", json!([endpoint("10.244.0.1", "node-b")]));
        assert_eq!(world.servers(WEB), ["10.244.0.1:8080"]);
        world.slice_object(json!({
            "metadata": {"namespace": "demo", "name": "web-1", "labels": {"kubernetes.io/service-name": "web", label: ""}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": [endpoint("10.244.0.1", "node-b")],
        }));
        assert_eq!(!world.servers(WEB).is_empty(), counts, "{label}");
    }
}

#[test]
fn an_impossible_field_stops_nothing_else() {
    let mut world = World::new();
    let ports = json!([
        {"name": "a", "port": 70000},
        {"name": "b", "port": 0},
        {"name": "c", "port": 81, "protocol": "ICMP"},
        {"name": "d", "port": 82, "nodePort": -1},
        {"name": "http", "port": 80, "protocol": null},
        {"name": "e", "port": 80},
    ]);
    let ingress = json!([{"ip": "nonsense"}, {"ip": "198.51.100.1", "ipMode": "Magic"}, {"ip": "198.51.100.2"}, {"hostname": "lb"}]);
    world.service(
        "web",
        json!({
            "type": "LoadBalancer", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1", "10.96.0.2"],
            "ipFamilies": ["IPv4", "IPv4", "IPv4"], "ports": ports,
            "externalIPs": ["127.0.0.1", "0.0.0.0", "224.0.0.1", "203.0.113.1"],
            "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Nearby", "healthCheckNodePort": 123_456,
            "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}},
            "status": {"loadBalancer": {"ingress": ingress}},
        }),
    );
    let rejected = world.rejected(ObjectKind::Service, "web");
    let expected = [
        "spec.clusterIPs[1]",
        "spec.clusterIPs[2]",
        "spec.externalIPs[0]",
        "spec.externalIPs[1]",
        "spec.externalIPs[2]",
        "status.loadBalancer.ingress[0].ip",
        "status.loadBalancer.ingress[1].ipMode",
        "spec.ports[0].port",
        "spec.ports[1].port",
        "spec.ports[2].protocol",
        "spec.ports[3].nodePort",
        "spec.ports[5].port",
        "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
        "spec.internalTrafficPolicy",
        "spec.healthCheckNodePort",
    ];
    let sorted =
        |fields: &[&str]| fields.iter().map(|field| (*field).to_owned()).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(sorted(&rejected), sorted(&expected));
    let text = world.store.rejections().map(ToString::to_string).find(|text| text.contains("70000")).unwrap();
    assert_eq!(text, "Service demo/web: spec.ports[0].port 70000: not a port (1 to 65535); the port is left out");
    let expected = [
        "TCP 10.96.0.1:80",
        "TCP 10.96.0.1:82",
        "TCP 198.51.100.2:80",
        "TCP 198.51.100.2:82",
        "TCP 203.0.113.1:80",
        "TCP 203.0.113.1:82",
    ];
    assert_eq!(world.frontends(), expected);

    world.slice_object(json!({
        "metadata": {"namespace": "demo", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 99999}, {"name": "http", "port": 8080}, {"name": "http"}, {"port": 1}],
        "endpoints": [
            endpoint("fd00::1", "b"), endpoint("10.244.0.999", "b"), endpoint("127.0.0.1", "b"), {"addresses": []},
            endpoint("10.244.0.5", "b"),
        ],
    }));
    let expected = [
        "ports[0].port",
        "endpoints[0].addresses[0]",
        "endpoints[1].addresses[0]",
        "endpoints[2].addresses[0]",
        "endpoints[3].addresses",
    ];
    assert_eq!(world.rejected(ObjectKind::EndpointSlice, "web-1"), expected);
    assert_eq!(world.servers(WEB), ["10.244.0.5:8080"]);

    // Nothing remains of the deleted objects.
    world.delete_service("web");
    world.store.delete_slice(&ObjectKey::new("demo", "web-1"));
    assert_eq!(world.store.rejections().count(), 0);
}

/// kube-proxy gives the cluster IP the whole cluster's endpoints as soon as the Service has a node port.
#[test]
fn internal_policy_local_never_leaves_the_node() {
    let mut world = World::new();
    let ports = json!([{"name": "http", "port": 80, "nodePort": 30080}]);
    let spec = json!({"type": "NodePort", "internalTrafficPolicy": "Local", "ports": ports});
    world.service("web", with(cluster_ip("10.96.0.1"), spec));
    world.slice("web-1", "web", json!([endpoint("10.244.1.1", "node-b")]));
    assert_eq!(world.servers(WEB), [""; 0]);
    assert_eq!(world.servers("TCP 192.168.0.10:30080"), ["10.244.1.1:8080"]);
    let missing: Vec<_> = world.wanted().desired().no_local_endpoints().collect();
    assert!(matches!(missing[..], [(_, missing)] if (missing.internal.v4, missing.external.v4) == (1, 0)));

    world.slice("web-2", "web", json!([endpoint("10.244.0.1", "node-a")]));
    assert_eq!(world.servers(WEB), ["10.244.0.1:8080"]);
    assert_eq!(world.servers("TCP 192.168.0.10:30080"), ["10.244.0.1:8080", "10.244.1.1:8080"]);
    assert_eq!(world.wanted().desired().no_local_endpoints().count(), 0);
}

#[test]
fn external_policy_local_falls_back_unless_told_to_refuse() {
    let mut world = World::new();
    let spec = json!({"externalIPs": ["203.0.113.1"], "externalTrafficPolicy": "Local"});
    world.service("web", with(cluster_ip("10.96.0.1"), spec));
    world.slice("web-1", "web", json!([endpoint("10.244.1.1", "node-b")]));
    assert_eq!(world.servers("TCP 203.0.113.1:80"), ["10.244.1.1:8080"]);
    assert_eq!(world.set(SetKind::ExternalIpLocal), ["203.0.113.1,tcp:80"]);
    assert_eq!(world.set(SetKind::ExternalIp), [""; 0]);

    world.config.local_fallback = LocalFallback::Refuse;
    let changed = world.refresh_all();
    assert_eq!(Vec::from_iter(&changed.virtual_servers), [&"TCP 203.0.113.1:80".parse().unwrap()]);
    assert_eq!(world.servers("TCP 203.0.113.1:80"), [""; 0]);
    assert_eq!(world.servers(WEB), ["10.244.1.1:8080"]);
    let missing = world.wanted().desired().no_local_endpoints().next().unwrap().1;
    assert_eq!((missing.external, missing.internal), (ByFamily { v4: 1, v6: 0 }, ByFamily::default()));
}

#[test]
fn stopping_endpoints_are_the_last_resort() {
    let mut world = World::new();
    world.service("web", cluster_ip("10.96.0.1"));
    let unready = json!({"addresses": ["10.244.1.3"], "conditions": {"ready": false, "serving": false}});
    world.slice("web-1", "web", json!([stopping("10.244.1.1", "node-b"), unready]));
    assert_eq!(world.servers(WEB), ["10.244.1.1:8080"]);
    world.slice("web-2", "web", json!([endpoint("10.244.1.2", "node-b")]));
    assert_eq!(world.servers(WEB), ["10.244.1.2:8080"]);
    // publishNotReadyAddresses: ready although it is stopping.
    let published =
        json!({"addresses": ["10.244.1.1"], "conditions": {"ready": true, "serving": false, "terminating": true}});
    world.slice("web-1", "web", json!([published]));
    assert_eq!(world.servers(WEB), ["10.244.1.1:8080", "10.244.1.2:8080"]);
}

/// The winner depends on the order of a map with kube-proxy 1.28.
#[test]
fn an_endpoint_in_two_slices_counts_once_and_as_it_runs() {
    for (stopped, runs) in [("a", "b"), ("b", "a")] {
        let mut world = World::new();
        world.service("web", cluster_ip("10.96.0.1"));
        world.slice(stopped, "web", json!([stopping("10.244.1.1", "node-b"), endpoint("10.244.1.2", "node-b")]));
        assert_eq!(world.servers(WEB), ["10.244.1.2:8080"]);
        world.slice(runs, "web", json!([endpoint("10.244.1.1", "node-b")]));
        assert_eq!(world.servers(WEB), ["10.244.1.1:8080", "10.244.1.2:8080"]);
        // The endpoint is not ready yet in one slice, and ready in the other.
        let starting = json!({"addresses": ["10.244.1.1"], "nodeName": "node-b", "conditions": {"ready": false, "serving": false}});
        world.slice(stopped, "web", json!([starting, endpoint("10.244.1.2", "node-b")]));
        assert_eq!(world.servers(WEB), ["10.244.1.1:8080", "10.244.1.2:8080"]);
    }
}

/// Objects from before dual stack have one of the two lists only.
#[test]
fn families_without_a_list_of_cluster_ips_mean_the_one_there_is() {
    let mut world = World::new();
    world.service("web", with(cluster_ip("10.96.0.1"), json!({"ipFamilies": ["IPv4"]})));
    assert_eq!(world.frontends(), [WEB]);
    world.service("web", with(cluster_ip("10.96.0.1"), json!({"clusterIPs": ["10.96.0.1", "fd00::1"]})));
    assert_eq!(world.frontends(), [WEB]);
}

#[test]
fn the_same_object_again_changes_nothing() {
    let mut world = World::new();
    let object = json!({"metadata": {"namespace": "demo", "name": "web"}, "spec": cluster_ip("10.96.0.1")});
    assert_eq!(world.store.upsert_service(&serde_json::from_value(object.clone()).unwrap()).len(), 1);
    assert!(world.store.upsert_service(&serde_json::from_value(object).unwrap()).is_empty());
}

/// The words of `explain` for an endpoint that is meant for another zone.
#[test]
fn a_reason_names_the_annotation_only_where_it_decides() {
    let reason = |topology: Topology, annotations: Value| -> String {
        let mut world = World::new();
        world.config.topology = topology;
        let metadata = json!({"namespace": "demo", "name": "web", "annotations": annotations});
        world.service_object(json!({"metadata": metadata, "spec": cluster_ip("10.96.0.1")}));
        let endpoints = json!([hinted("10.244.1.1", "zone-a", None), hinted("10.244.1.2", "zone-b", None)]);
        world.slice("web-1", "web", endpoints);
        let web = world.store.service(&ObjectKey::new("demo", "web")).unwrap();
        let slices = world.store.slices_of(&web.key);
        let considered = consider(web, slices, &web.ports[0], Family::V4, &world.facts());
        considered.iter().map(|one| one.reason(web, &world.facts())).collect::<Vec<_>>().join("; ")
    };
    let asked = json!({"service.kubernetes.io/topology-mode": "Auto"});
    let meant = "it is ready; hints: others are meant for this node or its zone (zone-a), this one for zone zone-b";
    assert_eq!(reason(Topology::Hints, json!({})), meant);
    assert_eq!(reason(Topology::Hints, asked.clone()), meant);
    assert_eq!(reason(Topology::AnnotatedHints, json!({})), "it is ready; it is ready");
    assert_eq!(reason(Topology::AnnotatedHints, asked), format!("{meant}, and the Service asks for hints"));
}

fn hinted(address: &str, zone: &str, node: Option<&str>) -> Value {
    let nodes: Vec<Value> = node.iter().map(|name| json!({"name": name})).collect();
    json!({"addresses": [address], "hints": {"forZones": [{"name": zone}], "forNodes": nodes}})
}

#[test]
fn hints_keep_traffic_near() {
    let mut world = World::new();
    world.service("web", cluster_ip("10.96.0.1"));
    let zones = json!([hinted("10.244.0.1", "zone-a", None), hinted("10.244.0.2", "zone-b", None)]);
    world.slice("web-1", "web", zones);
    assert_eq!(world.servers(WEB), ["10.244.0.1:8080"]);

    // One endpoint has no hint: hints are incomplete, and none counts.
    world.slice("web-2", "web", json!([endpoint("10.244.0.3", "node-b")]));
    assert_eq!(world.servers(WEB).len(), 3);

    // Node hints come first, if all endpoints have them and one is for this node.
    let nodes = json!([
        hinted("10.244.0.1", "zone-a", Some("node-c")),
        hinted("10.244.0.2", "zone-b", Some("node-a")),
        hinted("10.244.0.3", "zone-a", Some("node-b")),
    ]);
    world.slice("web-1", "web", nodes);
    world.slice("web-2", "web", json!([]));
    assert_eq!(world.servers(WEB), ["10.244.0.2:8080"]);

    // Without a zone, this node ignores zone hints; in the old mode they need an annotation.
    world.slice("web-1", "web", json!([hinted("10.244.0.1", "zone-a", None), hinted("10.244.0.2", "zone-b", None)]));
    world.config.topology = Topology::AnnotatedHints;
    world.refresh_all();
    assert_eq!(world.servers(WEB).len(), 2);
    let annotated = |mode: &str| json!({"namespace": "demo", "name": "web", "annotations": {"service.kubernetes.io/topology-mode": mode}});
    world.service_object(json!({"metadata": annotated("aUto"), "spec": cluster_ip("10.96.0.1")}));
    assert_eq!(world.servers(WEB), ["10.244.0.1:8080"]);
    world.service_object(json!({"metadata": annotated("disabled"), "spec": cluster_ip("10.96.0.1")}));
    assert_eq!(world.servers(WEB).len(), 2);
    world.config.topology = Topology::Hints;
    world.node.zone = None;
    world.refresh_all();
    assert_eq!(world.servers(WEB).len(), 2);
}

fn balanced(ranges: Value) -> Value {
    json!({
        "type": "LoadBalancer", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"],
        "ipFamilies": ["IPv4", "IPv6"], "ports": [{"name": "http", "port": 80}], "loadBalancerSourceRanges": ranges,
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.1"}, {"ip": "2001:db8:f::1"}]}},
    })
}

#[test]
fn source_ranges() {
    let mut world = World::new();
    world.service("web", balanced(json!([" 10.1.2.3/8 ", "2001:db8::/32"])));
    assert_eq!(world.set(SetKind::LoadBalancerFirewall), ["198.51.100.1,tcp:80", "2001:db8:f::1,tcp:80"]);
    let cidrs = ["198.51.100.1,tcp:80,10.0.0.0/8", "2001:db8:f::1,tcp:80,2001:db8::/32"];
    assert_eq!(world.set(SetKind::LoadBalancerSourceCidr), cidrs);
    // The range includes the node's IPv6 address, but not its IPv4 address.
    assert_eq!(world.set(SetKind::LoadBalancerSourceIp), ["2001:db8:f::1,tcp:80,2001:db8:f::1"]);
    let barred = world.wanted().desired().frontends().filter(|frontend| frontend.is_barred_from_node());
    assert_eq!(barred.map(|frontend| frontend.key.to_string()).collect::<Vec<_>>(), ["TCP 198.51.100.1:80"]);

    // A range of everything lifts the restriction; kube-proxy locks everybody out.
    world.service("web", balanced(json!(["10.0.0.0/8", "0.0.0.0/0", "2001:db8:9::/64"])));
    assert_eq!(world.set(SetKind::LoadBalancerFirewall), ["2001:db8:f::1,tcp:80"]);

    // A range that cannot be read lets no client in.
    world.service("web", balanced(json!(["10.0.0.0-10.0.0.9"])));
    assert_eq!(world.set(SetKind::LoadBalancerFirewall).len(), 2);
    assert_eq!(world.set(SetKind::LoadBalancerSourceCidr), [""; 0]);
    assert_eq!(world.rejected(ObjectKind::Service, "web"), ["spec.loadBalancerSourceRanges[0]"]);

    world.service("web", balanced(json!([])));
    assert_eq!(world.set(SetKind::LoadBalancerFirewall), [""; 0]);
    assert_eq!(world.set(SetKind::LoadBalancer).len(), 2);
}

#[test]
fn node_ports_are_served_on_addresses_of_the_host_only() {
    let mut world = World::new();
    let ports = json!([{"name": "http", "port": 80, "nodePort": 30080}, {"name": "s", "port": 81, "nodePort": 30081, "protocol": "SCTP"}]);
    world.service("web", with(cluster_ip("10.96.0.1"), json!({"type": "NodePort", "ports": ports})));
    let served =
        |world: &World| -> Vec<String> { world.frontends().into_iter().filter(|key| key.contains(":3008")).collect() };
    // Not on loopback, link-local or the dummy device's addresses.
    assert_eq!(served(&world), ["TCP 192.168.0.10:30080", "SCTP 192.168.0.10:30081"]);
    assert_eq!(world.set(SetKind::NodePortTcp), ["30080"]);
    assert_eq!(world.set(SetKind::NodePortSctp), ["192.168.0.10,sctp:30081"]);
    assert_eq!(world.addresses(), ["10.96.0.1"]);

    world.config.node_port_addresses = NodePortAddresses::Within(vec!["10.0.0.0/8".parse().unwrap()]);
    world.refresh_all();
    assert_eq!(served(&world), [""; 0]);
    assert_eq!(world.set(SetKind::NodePortTcp), [""; 0]);

    world.config.node_port_addresses = NodePortAddresses::Primary;
    world.host.interfaces = BTreeMap::new();
    world.refresh_all();
    assert_eq!(served(&world).len(), 2);
}

#[test]
fn where_node_ports_are_asked_for() {
    let served = |asked: &[&str], bind_address: &str| -> Vec<String> {
        let mut world = World::new();
        let object = json!({"nodePortAddresses": asked, "bindAddress": bind_address});
        let mut rejections = Vec::new();
        world.config = Config::check(&serde_json::from_value(object).unwrap(), &mut rejections);
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

#[test]
fn external_ips_are_left_out_without_their_feature_gate() {
    for gate in [true, false] {
        let mut world = World::new();
        let object = json!({"featureGates": {"AllowServiceExternalIPs": gate}});
        world.config = Config::check(&serde_json::from_value(object).unwrap(), &mut Vec::new());
        let spec = json!({"type": "LoadBalancer", "externalIPs": ["203.0.113.1", "203.0.113.2"],
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.2"}]}}});
        world.service("web", with(cluster_ip("10.96.0.1"), spec));
        let external: &[&str] = if gate { &["TCP 203.0.113.1:80"] } else { &[] };
        assert_eq!(world.frontends(), [&[WEB], external, &["TCP 203.0.113.2:80"]].concat());
        let said: Vec<String> = world.wanted().desired().refused().map(ToString::to_string).collect();
        let expected = "Service demo/web: spec.externalIPs 203.0.113.1,203.0.113.2: not served: the feature gate AllowServiceExternalIPs is false";
        assert_eq!(said, Vec::from_iter((!gate).then_some(expected)));
        let why = |key: &str| why_left_out(&world.store, &world.facts(), &key.parse().unwrap()).is_some();
        assert_eq!((why("TCP 203.0.113.1:80"), why("TCP 203.0.113.1:81")), (!gate, false));
    }
}

#[test]
fn an_address_of_the_host_is_served_and_not_bound() {
    let mut world = World::new();
    let spec = json!({"externalIPs": ["192.168.0.10", "203.0.113.1"]});
    world.service("web", with(cluster_ip("10.96.0.1"), spec));
    assert_eq!(world.frontends(), [WEB, "TCP 192.168.0.10:80", "TCP 203.0.113.1:80"]);
    assert_eq!(world.addresses(), ["10.96.0.1", "203.0.113.1"]);
    assert_eq!(world.set(SetKind::IpvsIps), ["10.96.0.1", "203.0.113.1"]);
    assert_eq!(world.set(SetKind::ExternalIp).len(), 2);
}

#[test]
fn external_ip_and_load_balancer_ip_may_be_one() {
    let mut world = World::new();
    let mut spec = balanced(json!(["10.0.0.0/8"]));
    spec["externalIPs"] = json!(["198.51.100.1", "198.51.100.1"]);
    world.service("web", spec);
    assert_eq!(world.set(SetKind::ExternalIp), ["198.51.100.1,tcp:80"]);
    assert_eq!(world.set(SetKind::LoadBalancer), ["198.51.100.1,tcp:80", "2001:db8:f::1,tcp:80"]);
    assert_eq!(world.set(SetKind::LoadBalancerFirewall), ["198.51.100.1,tcp:80"]);
}

#[test]
fn the_older_service_gets_a_contested_address() {
    let mut world = World::new();
    let service = |name: &str, created: &str, cluster: &str, local: &str| {
        let spec = json!({
            "type": "LoadBalancer", "clusterIP": cluster, "ports": [{"name": "http", "port": 80}],
            "externalIPs": ["203.0.113.1"], "externalTrafficPolicy": local, "healthCheckNodePort": 30001,
        });
        json!({"metadata": {"namespace": "demo", "name": name, "creationTimestamp": created}, "spec": spec})
    };
    world.service_object(service("a-younger", "2025-01-01T00:00:00Z", "10.96.0.1", "Local"));
    world.slice("a-1", "a-younger", json!([endpoint("10.244.0.1", "node-a")]));
    assert_eq!(world.servers("TCP 203.0.113.1:80"), ["10.244.0.1:8080"]);
    assert_eq!(world.set(SetKind::ExternalIpLocal), ["203.0.113.1,tcp:80"]);

    let changed = world.service_object(service("b-older", "2024-01-01T00:00:00Z", "10.96.0.2", "Cluster"));
    assert!(changed.virtual_servers.contains(&"TCP 203.0.113.1:80".parse().unwrap()));
    assert!(!changed.addresses.contains(&"203.0.113.1".parse().unwrap()));
    assert_eq!(world.servers("TCP 203.0.113.1:80"), [""; 0]);
    // Entries of the losing Service would contradict the virtual server.
    assert_eq!(world.set(SetKind::ExternalIpLocal), [""; 0]);
    assert_eq!(world.set(SetKind::ExternalIp), ["203.0.113.1,tcp:80"]);
    let conflicts: Vec<_> = world
        .wanted()
        .desired()
        .conflicts()
        .map(|conflict| (conflict.owner.to_string(), conflict.refused.to_string()))
        .collect();
    assert_eq!(conflicts, [("demo/b-older".to_owned(), "demo/a-younger".to_owned())]);

    world.delete_service("b-older");
    assert_eq!(world.servers("TCP 203.0.113.1:80"), ["10.244.0.1:8080"]);
    assert_eq!(world.set(SetKind::ExternalIp), [""; 0]);
    assert_eq!(world.wanted().desired().conflicts().count(), 0);
}

#[test]
fn a_shared_address_stays_until_its_last_service_goes() {
    let mut world = World::new();
    let service = |cluster: &str, port: u16| {
        let ingress = json!([{"ip": "198.51.100.1"}]);
        json!({
            "type": "LoadBalancer", "clusterIP": cluster, "ports": [{"name": "http", "port": port}],
            "status": {"loadBalancer": {"ingress": ingress}},
        })
    };
    let shared = "198.51.100.1".parse().unwrap();
    assert!(world.service("a", service("10.96.0.1", 80)).addresses.contains(&shared));
    assert!(!world.service("b", service("10.96.0.2", 443)).addresses.contains(&shared));
    assert!(!world.delete_service("a").addresses.contains(&shared));
    assert_eq!(world.addresses(), ["10.96.0.2", "198.51.100.1"]);
    assert_eq!(world.set(SetKind::LoadBalancer), ["198.51.100.1,tcp:443"]);
    assert!(world.delete_service("b").addresses.contains(&shared));
    let nothing = Indexed::new(Index::new(&world.config));
    assert_eq!(world.wanted(), nothing.wanted());
}

#[test]
fn health_checks_count_each_family_by_itself() {
    let mut world = World::new();
    let mut spec = balanced(json!([]));
    spec["externalTrafficPolicy"] = json!("Local");
    spec["healthCheckNodePort"] = json!(30001);
    world.service("web", spec);
    let v4 =
        json!([endpoint("10.244.0.1", "node-a"), stopping("10.244.0.2", "node-a"), endpoint("10.244.1.1", "node-b")]);
    world.slice("v4", "web", v4);
    world.slice("v6", "web", json!([endpoint("fd00:244::1", "node-a")]));
    let key = ObjectKey::new("demo", "web");
    let health = world.wanted().desired().health_check(&key).unwrap();
    assert_eq!((health.port, health.v4, health.v6), (30001, Some(1), Some(1)));
    assert_eq!(world.set(SetKind::HealthCheckNodePort), ["30001", "30001"]);
    assert_eq!(
        world.facts().health_checks_open_on(Family::V4),
        OpenOn::All,
        "also on addresses that the host gets later"
    );
    world.slice("v4-2", "web", json!([endpoint("10.244.0.7", "node-a")]));
    let health = world.wanted().desired().health_check(&key).unwrap();
    assert_eq!((health.v4, health.v6), (Some(2), Some(1)), "the other family's count does not count");
    // The host loses its IPv6 address: there is no address for IPv6 clients any more.
    world.host.interfaces.insert("eth0".to_owned(), vec!["192.168.0.10".parse().unwrap()]);
    world.refresh_all();
    assert_eq!(world.set(SetKind::HealthCheckNodePort), ["30001"]);
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

#[test]
fn settings_of_virtual_servers() {
    let mut world = World::new();
    world.service("web", with(cluster_ip("10.96.0.1"), json!({"sessionAffinity": "ClientIP"})));
    let config = |world: &World| world.wanted().server(&WEB.parse().unwrap()).unwrap().config;
    assert_eq!(config(&world).persistence.unwrap().timeout_secs, 10_800);
    assert_eq!(config(&world).scheduler.name(), "rr");
    world.config.ipvs.scheduler = "mh".parse().unwrap();
    world.restart();
    let flags = config(&world).scheduler_flags;
    assert_eq!(flags.names(config(&world).scheduler), ["mh-fallback", "mh-port"]);
}

#[test]
fn a_slice_that_changes_its_service_leaves_the_old_one() {
    let mut world = World::new();
    world.service("a", cluster_ip("10.96.0.1"));
    world.service("b", cluster_ip("10.96.0.2"));
    world.slice("s", "a", json!([endpoint("10.244.0.1", "node-a")]));
    assert_eq!(world.servers(WEB), ["10.244.0.1:8080"]);
    world.slice("s", "b", json!([endpoint("10.244.0.1", "node-a")]));
    assert_eq!(world.servers(WEB), [""; 0]);
    assert_eq!(world.servers("TCP 10.96.0.2:80"), ["10.244.0.1:8080"]);
    // A slice may come before its Service, and outlive it.
    world.delete_service("b");
    world.service("b", cluster_ip("10.96.0.2"));
    assert_eq!(world.servers("TCP 10.96.0.2:80"), ["10.244.0.1:8080"]);
}

/// A named target port may be another number in each pod: the slices have the numbers, found by the port's name and
/// protocol.
#[test]
fn ports_are_joined_by_name_and_protocol() {
    let mut world = World::new();
    let ports = json!([
        {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": "dns"},
        {"name": "dns", "port": 53, "targetPort": 9999},
        {"name": "metrics", "port": 9153, "protocol": "TCP"},
    ]);
    world.service("web", json!({"clusterIP": "10.96.0.1", "ports": ports}));
    let slice = |name: &str, address: &str, udp: u16| {
        json!({
            "metadata": {"namespace": "demo", "name": name, "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4",
            "ports": [{"name": "dns", "port": udp, "protocol": "UDP"}, {"name": "dns", "port": 53}],
            "endpoints": [endpoint(address, "node-a")],
        })
    };
    world.slice_object(slice("a", "10.244.0.1", 5353));
    world.slice_object(slice("b", "10.244.0.2", 1053));
    assert_eq!(world.servers("UDP 10.96.0.1:53"), ["10.244.0.1:5353", "10.244.0.2:1053"]);
    assert_eq!(world.servers("TCP 10.96.0.1:53"), ["10.244.0.1:53", "10.244.0.2:53"]);
    assert_eq!(world.servers("TCP 10.96.0.1:9153"), [""; 0]);
    assert_eq!(world.set(SetKind::LoopBack).len(), 4);
    assert_eq!(world.store.rejections().count(), 0);
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
        let first = &world.store.services().next().unwrap().key;
        for service in world.store.services() {
            assert!(Arc::ptr_eq(&service.key.namespace, &first.namespace), "{}", service.key);
            assert_eq!(world.store.slices_of(&service.key).count(), 2);
            for slice in world.store.slices_of(&service.key) {
                assert!(Arc::ptr_eq(&slice.service.name, &service.key.name), "{} {}", slice.key, service.key);
                assert!(Arc::ptr_eq(&slice.key.namespace, &first.namespace), "{}", slice.key);
                // The slice itself holds one, and the map that finds its Service holds one.
                assert_eq!(Arc::strong_count(&slice.key.name), 2);
            }
        }
    }
}
