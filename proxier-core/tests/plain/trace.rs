//! Traces of every flow of the corpora (see `oracle/README.md`, `oracle36/README.md`), in every mode, compared with the reference. The modes' own
//! tests send the same flows as packets: `kernel_flows`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use proxier_core::config::{Binding, Config, LocalTraffic, NodePortAddresses};
use proxier_core::inspect::trace;
use proxier_core::modes::{Kind, iptables};
use proxier_core::net::{EndpointKey, Family, FrontendKey, Protocol};
use proxier_core::objects::ConfigObject;
use proxier_core::service::{Indexed, NodeFacts, Packet, Trace, Verdict};
use proxier_core::snapshot::{FrontendSpec, HostAddresses, Node, ObjectKey, Roles, Store, TrafficPolicy};
use serde_json::json;

use crate::flows::traced::{World, meant};
use crate::flows::{Flow, Reference, scenarios_of};

/// The steps say how many endpoints there are, and tell of a client that may get itself.
fn words_fit(traced: &Trace, flow: &Flow) {
    let Verdict::Endpoints(reached) = &traced.verdict else { return };
    let said = traced.steps.join("\n");
    let count = match reached.len() {
        1 => "the only endpoint".to_owned(),
        count => format!("any of {count} endpoints"),
    };
    assert!(said.contains(&count), "{count}: {said}");
    let not_all = reached.iter().any(|one| !one.masqueraded);
    let itself = reached.iter().any(|one| one.endpoint.address == flow.source && one.masqueraded);
    let told = said.contains("The client is itself one of the endpoints");
    assert!(told == itself || !not_all, "{said}");
    assert!(!told || itself, "{said}");
}

/// Traces all flows of a reference in a mode; returns how many differ, by name.
fn differences(mode: Kind, reference: Reference) -> BTreeMap<&'static str, usize> {
    let (mut flows, mut unexplained, mut report) = (0, 0, String::new());
    let mut explained: BTreeMap<&'static str, usize> = BTreeMap::new();
    for scenario in scenarios_of(&[reference], |_| true).take_while(|scenario| scenario.before.is_empty()) {
        let world = World::new(mode, &scenario);
        for flow in &scenario.flows {
            let (traced, ours) = world.trace(flow);
            flows += 1;
            assert!(!traced.steps.is_empty(), "{flow}");
            words_fit(&traced, flow);
            if !ours.endpoints().is_empty() && !flow.endpoints().is_empty() {
                assert_eq!(traced.affinity_secs, flow.affinity, "{flow}");
                assert_eq!(traced.service.unwrap().to_string(), flow.service);
            }
            // The node's own address became the node's address, which makes no difference.
            let is_same_source = flow.is_nodes() && flow.wire == [flow.source];
            let is_alike = |to: &SocketAddr| is_same_source || flow.masquerades(to) == ours.masquerades(to);
            if ours.dest == flow.dest && ours.endpoints().iter().all(is_alike) {
                continue;
            }
            if let Some(name) = meant(mode, &scenario, flow, &ours) {
                *explained.entry(name).or_default() += 1;
                continue;
            }
            unexplained += 1;
            if unexplained <= 20 {
                let (name, wanted, ours) = (scenario.name(), flow.wanted(), ours.wanted());
                writeln!(report, "{name} {flow}: {wanted}, ours {ours}\n    {:#?}", traced.steps).unwrap();
            }
        }
    }
    assert!(report.is_empty(), "{unexplained} flows differ in {mode} mode:\n{report}");
    assert_eq!(flows, if reference == Reference::Iptables28 { 22_748 } else { 27_689 });
    explained
}

#[test]
fn in_iptables_mode_every_flow_goes_as_in_the_reference() {
    assert_eq!(differences(Kind::Iptables, Reference::Iptables28), BTreeMap::new());
}

#[test]
fn in_nftables_mode_all_differences_have_names() {
    let expected = [
        ("an endpoint on another node that reaches itself here is not masqueraded", 1_031),
        ("node ports are not served on loopback addresses unless nodePortAddresses names them", 599),
        ("node ports without endpoints are left alone on addresses that serve no node ports", 172),
        ("the node itself is told that there is no endpoint", 190),
    ];
    assert_eq!(differences(Kind::Nftables, Reference::Iptables28), BTreeMap::from(expected));
}

#[test]
fn in_userspace_mode_all_differences_have_names() {
    let expected = [
        ("SCTP is not served", 2_290),
        ("an address that is local here, and forwarded in the reference", 179),
        ("endpoints see the node's address", 5_878),
        ("node ports are not served on loopback addresses unless nodePortAddresses names them", 541),
        ("node ports without endpoints are left alone on addresses that serve no node ports", 156),
        ("reset where the reference drops", 918),
    ];
    assert_eq!(differences(Kind::Userspace, Reference::Iptables28), BTreeMap::from(expected));
}

#[test]
fn in_ipvs_mode_all_differences_have_names() {
    let expected = [
        ("an endpoint on another node that reaches itself here is not masqueraded", 901),
        ("external policy Local gives pods and the node what others get, with their source", 825),
        ("external policy Local without local endpoints falls back to all", 1_039),
        ("internal policy Local without local endpoints rejects", 191),
        ("node ports are not served on loopback addresses unless nodePortAddresses names them", 599),
        ("node ports without endpoints are left alone on addresses that serve no node ports", 172),
        ("source ranges apply before missing endpoints", 94),
        ("source ranges do not apply to the node's own address", 32),
        ("the node itself is told that there is no endpoint", 190),
    ];
    assert_eq!(differences(Kind::Ipvs, Reference::Iptables28), BTreeMap::from(expected));
}

#[test]
fn in_ipvs_mode_all_differences_to_1_36_have_names() {
    let expected = [
        ("a port of a cluster IP that no Service has is refused", 4_551),
        ("an endpoint on another node that reaches itself here is not masqueraded", 574),
        ("external policy Local gives pods and the node what others get, with their source", 1_091),
        ("external policy Local without local endpoints falls back to all", 1_057),
        ("internal policy Local without local endpoints rejects", 1_093),
        ("node ports are not served on loopback addresses unless nodePortAddresses names them", 623),
        ("node ports without endpoints are left alone on addresses that serve no node ports", 682),
        ("source ranges apply before missing endpoints", 90),
        ("source ranges do not apply to the node's own address", 56),
        ("the node itself is told that there is no endpoint", 168),
    ];
    assert_eq!(differences(Kind::Ipvs, Reference::Iptables36), BTreeMap::from(expected));
}

#[test]
fn in_iptables_mode_every_flow_goes_as_in_1_36() {
    assert_eq!(differences(Kind::Iptables, Reference::Iptables36), BTreeMap::new());
}

/// Frontends with an endpoint.
fn frontends(keys: impl IntoIterator<Item = FrontendKey>) -> Store {
    let mut store = Store::new("n1");
    let endpoint = EndpointKey::new([10, 244, 1, 7].into(), 8080);
    let frontends = keys.into_iter().map(|key| FrontendSpec::new(key, [endpoint]));
    store.upsert_frontends(&ObjectKey::new("agent", "web"), frontends);
    store
}

/// A Frontend with an endpoint, on a node with this configuration.
fn one_frontend(object: &ConfigObject) -> (FrontendKey, Store, NodeFacts) {
    let facts = NodeFacts::new(&Config::check(object, &mut Vec::new()), &Node::new("n1"), &HostAddresses::default());
    let web: FrontendKey = "TCP 10.96.0.10:80".parse().unwrap();
    (web, frontends([web]), facts)
}

/// A host with these addresses.
fn host(addresses: &[[u8; 4]]) -> HostAddresses {
    let addresses = addresses.iter().map(|address| IpAddr::from(*address)).collect();
    HostAddresses { interfaces: BTreeMap::from([("eth0".to_owned(), addresses)]) }
}

/// The verdict on a packet, and the steps to it.
fn traced(mode: Kind, store: &Store, facts: &NodeFacts, packet: &Packet) -> (String, Vec<String>) {
    let desired = Indexed::build(store, facts, ()).desired;
    let trace = trace(mode, store, (&desired, facts), packet, iptables::IptablesOptions::default());
    (trace.verdict.to_string(), trace.steps)
}

/// As [`traced`], of a client outside, with the steps in one text.
fn traced_to(mode: Kind, store: &Store, facts: &NodeFacts, to: &str) -> (String, String) {
    let (verdict, steps) = traced(mode, store, facts, &Packet::new([203, 0, 113, 9].into(), to.parse().unwrap()));
    (verdict, steps.join(" "))
}

/// Cases that the corpus lacks: pods told by the device that their packets come in by, and ports that no Service has.
#[test]
fn devices_and_ports_of_nobody() {
    let mode = Some("InterfaceNamePrefix".to_owned());
    let mut object = ConfigObject { detect_local_mode: mode, ..ConfigObject::default() };
    "veth".clone_into(&mut object.detect_local.interface_name_prefix);
    let (web, store, facts) = one_frontend(&object);
    let verdict = |mode, packet: &Packet| traced(mode, &store, &facts, packet).0;
    let source = IpAddr::from([192, 0, 2, 9]);
    let (_, said) = traced_to(Kind::Ipvs, &store, &facts, "TCP 10.96.0.10:80");
    assert!(said.contains("TCP 10.96.0.10:80 is a Frontend of Service agent/web: cluster IP."), "{said}");
    assert!(!said.contains("Weights"), "all are the same: {said}");
    for mode in [Kind::Ipvs, Kind::Nftables, Kind::Iptables] {
        for (packet, expected) in [
            (Packet::new(source, web).by("veth12"), "10.244.1.7:8080 (source kept)"),
            (Packet::new(source, web).by("eth0"), "10.244.1.7:8080 (masqueraded)"),
            (Packet::from_node(source, web), "10.244.1.7:8080 (masqueraded)"),
        ] {
            assert_eq!(verdict(mode, &packet), expected, "{mode} {packet:?}");
        }
    }
    let nobodys = Packet::new(source, FrontendKey { port: 81, ..web });
    let all = Kind::ALL.map(|mode| verdict(mode, &nobodys));
    assert_eq!(all, ["rejected", "rejected", "left alone", "left alone"]);
    let elsewhere = Packet::new(source, "TCP 203.0.113.9:80".parse().unwrap());
    assert!(Kind::ALL.into_iter().all(|mode| verdict(mode, &elsewhere) == "left alone"));
}

/// The last step says which connections take the fast path.
#[test]
fn the_fast_path_of_a_connection() {
    let mut object = ConfigObject::default();
    object.fast_path = serde_json::from_value(json!({ "interfaces": ["eth*", "cali7"], "minPackets": 20 })).unwrap();
    let (web, store, facts) = one_frontend(&object);
    let last = |mode, packet: &Packet| {
        traced(mode, &store, &facts, packet).1.pop().filter(|step| step.contains("fastPath")).unwrap_or_default()
    };
    let packet = |to| Packet::new([192, 0, 2, 9].into(), to);
    for mode in Kind::ALL {
        let said = [packet(web), packet(web).by("eth0"), packet(web).by("veth1")].map(|packet| last(mode, &packet));
        let of_chains = "After 20 packets its packets pass no more chains where the node forwards them (fastPath)";
        let expected = [
            format!("{of_chains}, if they come in by eth…, cali7."),
            format!("{of_chains}."),
            "Packets by veth1 take the usual way: fastPath.interfaces lacks it.".to_owned(),
        ];
        let has_one = matches!(mode, Kind::Nftables | Kind::Iptables);
        assert_eq!(said, if has_one { expected } else { [const { String::new() }; 3] }, "{mode}");
        // From the node, and to nobody.
        assert_eq!(last(mode, &Packet::from_node([192, 0, 2, 9].into(), web)), "", "{mode}");
        assert_eq!(last(mode, &packet(FrontendKey { port: 81, ..web })), "", "{mode}");
    }
}

/// A node port is one only at addresses of this node.
#[test]
fn node_ports_are_those_of_this_node() {
    let mut config = Config::default();
    config.node_port_addresses = NodePortAddresses::Within(vec!["192.0.2.1/32".parse().unwrap()]);
    let facts = NodeFacts::new(&config, &Node::new("n1"), &host(&[[192, 0, 2, 1], [192, 0, 2, 2]]));
    let mut store = Store::new("n1");
    let object = json!({"metadata": {"namespace": "demo", "name": "web"},
        "spec": {"type": "NodePort", "clusterIP": "10.96.0.10", "ports": [{"name": "p", "port": 80, "nodePort": 30080}]}});
    store.upsert_service(&serde_json::from_value(object).unwrap());
    let traced = |to: &str| traced_to(Kind::Ipvs, &store, &facts, to);
    let (verdict, steps) = traced("TCP 192.0.2.1:30080");
    assert!(
        verdict == "rejected" && steps.contains("is a Frontend of Service demo/web: node port."),
        "{verdict}: {steps}"
    );
    let unserved = "30080 is the node port of demo/web:p, which is not served on 192.0.2.2.";
    let (verdict, steps) = traced("TCP 192.0.2.2:30080");
    assert!(verdict == "left alone" && steps.contains(unserved), "{verdict}: {steps}");
    // Another host's, another protocol's, another port.
    for to in ["TCP 192.0.2.3:30080", "UDP 192.0.2.2:30080", "TCP 192.0.2.2:30081"] {
        let (verdict, steps) = traced(to);
        assert!(verdict == "left alone" && !steps.contains("the node port of"), "{to}: {verdict}: {steps}");
    }
}

/// A pod of another node gets no answer from an endpoint on a third node, in any mode: it is a client outside, or the endpoint answers it directly.
#[test]
fn pods_of_other_nodes() {
    let mut config = Config::default();
    config.local_traffic = LocalTraffic::ClusterCidrs(vec!["10.244.0.0/16".parse().unwrap()]);
    let (host, mut node) = (host(&[[192, 0, 2, 1]]), Node::new("n1"));
    let mut store = Store::new("n1");
    let service = json!({"metadata": {"namespace": "demo", "name": "web"}, "spec": {"type": "NodePort",
        "externalTrafficPolicy": "Local", "clusterIP": "10.96.0.10", "ports": [{"name": "p", "port": 80, "nodePort": 30080}]}});
    let slice = json!({"metadata": {"namespace": "demo", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.244.3.7"], "nodeName": "n3"}]});
    store.upsert_service(&serde_json::from_value(service).unwrap());
    store.upsert_slice(&serde_json::from_value(slice).unwrap());
    let (kept, relayed) = ("10.244.3.7:8080 (source kept)", "10.244.3.7:8080 (masqueraded)");
    let outside = "It comes from a pod of another node, which counts as a client outside.";
    let fails = "answer it directly, from their own address, and the connection fails.";
    for (own, mode, source, verdict, says) in [
        (true, Kind::Nftables, [10, 244, 2, 7], "dropped", outside),
        (true, Kind::Userspace, [10, 244, 2, 7], "rejected", outside),
        (true, Kind::Iptables, [10, 244, 2, 7], kept, fails),
        (true, Kind::Ipvs, [10, 244, 2, 7], kept, fails),
        (true, Kind::Nftables, [10, 244, 1, 7], kept, "traffic policy Local keeps it"),
        (true, Kind::Iptables, [10, 244, 1, 7], kept, "traffic policy Local keeps it"),
        (true, Kind::Userspace, [10, 244, 1, 7], relayed, "This node connects to the endpoint itself"),
        (false, Kind::Nftables, [10, 244, 2, 7], kept, "If the pod is on another node, endpoints on a third one"),
        (false, Kind::Iptables, [10, 244, 2, 7], kept, "If the pod is on another node, endpoints on a third one"),
        (false, Kind::Userspace, [10, 244, 2, 7], relayed, "This node connects to the endpoint itself"),
    ] {
        node.pod_cidrs = own.then(|| "10.244.1.0/24".parse().unwrap()).into_iter().collect();
        let facts = NodeFacts::new(&config, &node, &host);
        let packet = Packet::new(source.into(), "TCP 192.0.2.1:30080".parse().unwrap());
        let (found, steps) = traced(mode, &store, &facts, &packet);
        let said = steps.join(" ");
        assert!(found == verdict && said.contains(says), "{mode} {source:?}: {found} {said}");
        assert_eq!(said.contains(fails), verdict == kept && !(own && source[2] == 1), "{mode} {source:?}: {said}");
    }
}

/// Pods on a bridge: exactly the packets that come in by it are theirs.
#[test]
fn pods_of_a_bridge() {
    let mode = Some("BridgeInterface".to_owned());
    let mut object = ConfigObject { detect_local_mode: mode, ..ConfigObject::default() };
    "cni0".clone_into(&mut object.detect_local.bridge_interface);
    let (web, store, facts) = one_frontend(&object);
    for (device, expected) in [("cni0", "(source kept)"), ("cni01", "(masqueraded)"), ("eth0", "(masqueraded)")] {
        let packet = Packet::new([192, 0, 2, 9].into(), web).by(device);
        let (verdict, _) = traced(Kind::Nftables, &store, &facts, &packet);
        assert_eq!(verdict, format!("10.244.1.7:8080 {expected}"), "{device}");
    }
}

/// A socket does not show by which device a packet came.
#[test]
fn a_pod_of_a_device_is_outside_for_a_process() {
    let mode = Some("InterfaceNamePrefix".to_owned());
    let mut object = ConfigObject { detect_local_mode: mode, ..ConfigObject::default() };
    "veth".clone_into(&mut object.detect_local.interface_name_prefix);
    let (_, mut store, facts) = one_frontend(&object);
    let to: FrontendKey = "TCP 203.0.113.5:80".parse().unwrap();
    let mut spec = FrontendSpec::new(to, [EndpointKey::new([10, 244, 1, 7].into(), 8080)]);
    (spec.roles, spec.policy) = (Roles::EXTERNAL_IP, TrafficPolicy::Local);
    store.upsert_frontends(&ObjectKey::new("agent", "outside"), [spec]);
    let packet = Packet::new([10, 244, 1, 9].into(), to).by("veth12");
    for (mode, expected) in [(Kind::Nftables, "10.244.1.7:8080 (source kept)"), (Kind::Userspace, "rejected")] {
        let (verdict, steps) = traced(mode, &store, &facts, &packet);
        assert_eq!(verdict, expected, "{mode} {steps:?}");
        let is_told = steps.iter().any(|step| step.contains("does not see devices"));
        assert_eq!(is_told, mode == Kind::Userspace, "{steps:?}");
    }
}

/// Packets to addresses and ports without a Service in a network of Services are refused with `ipvs.binding: routes`, though no Service has the
/// address.
#[test]
fn networks_of_services_are_closed() {
    let mut config = Config::default();
    config.ipvs.binding = Binding::by_name("routes").unwrap();
    // The second one has the node's address, so it is not made local as a whole.
    config.ipvs.service_cidrs = ["10.96.0.0/12", "192.0.2.0/24"].map(|text| text.parse().unwrap()).into();
    let facts = |config: &Config| NodeFacts::new(config, &Node::new("n1"), &host(&[[192, 0, 2, 1]]));
    let store = frontends(["TCP 10.96.0.10:80", "TCP 198.51.100.7:80"].map(|text| text.parse().unwrap()));
    for (to, verdict, why) in [
        ("TCP 10.96.0.10:80", "10.244.1.7:8080 (source kept)", "this node's own, by the route of 10.96.0.0/12."),
        ("TCP 198.51.100.7:80", "10.244.1.7:8080 (source kept)", "this node's own, by a route of its own."),
        ("TCP 10.96.0.10:81", "rejected", "10.96.0.10 is a Service's address, and no Service has TCP 81."),
        ("UDP 10.96.7.7:53", "rejected", "10.96.7.7 is in 10.96.0.0/12, whose addresses are all this node's"),
        ("TCP 192.0.2.9:80", "left alone", "No Service has TCP 192.0.2.9:80."),
        ("TCP 10.112.0.1:80", "left alone", "No Service has TCP 10.112.0.1:80."),
    ] {
        let (found, steps) = traced_to(Kind::Ipvs, &store, &facts(&config), to);
        assert!(found == verdict && steps.contains(why), "{to}: {found}: {steps}");
    }
    config.ipvs.binding = Binding::Addresses;
    assert_eq!(traced_to(Kind::Ipvs, &store, &facts(&config), "TCP 10.96.7.7:80").0, "left alone");
}

/// Node ports at loopback addresses, if these are named and the mode can serve them.
#[test]
fn node_ports_on_localhost() {
    let mut config = Config::default();
    let networks = ["127.0.0.0/8", "::1/128"].map(|network| network.parse().unwrap());
    config.node_port_addresses = NodePortAddresses::Within(networks.into());
    let options = iptables::IptablesOptions::default();
    let mut store = Store::new("n1");
    let ports = json!([{"name": "p", "port": 80, "nodePort": 30080}]);
    let object = json!({"metadata": {"namespace": "demo", "name": "web"}, "spec": {"type": "NodePort", "clusterIP": "10.96.0.10",
        "clusterIPs": ["10.96.0.10", "fd00:96::10"], "ipFamilies": ["IPv4", "IPv6"], "ports": ports}});
    store.upsert_service(&serde_json::from_value(object).unwrap());
    for (family, endpoint) in [(Family::V4, "10.244.1.7"), (Family::V6, "fd00:244::7")] {
        let slice = json!({"metadata": {"namespace": "demo", "name": family.name(), "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": family.name(), "endpoints": [{"addresses": [endpoint]}], "ports": [{"name": "p", "port": 80}]});
        store.upsert_slice(&serde_json::from_value(slice).unwrap());
    }
    let verdicts = Kind::ALL.map(|mode| {
        let mut facts = NodeFacts::new(&config, &Node::new("n1"), &HostAddresses::default());
        facts.serve_localhost(mode.localhost(&options));
        Family::ALL.map(|family| {
            let to = FrontendKey::new(Protocol::Tcp, family.localhost(), 30_080);
            traced(mode, &store, &facts, &Packet::from_node(family.localhost(), to)).0
        })
    });
    let v4 = "10.244.1.7:80 (masqueraded)";
    let v6 = "[fd00:244::7]:80 (masqueraded)";
    assert_eq!(verdicts, [["left alone"; 2], [v4, v6], [v4, "left alone"], [v4, v6]]);
}
