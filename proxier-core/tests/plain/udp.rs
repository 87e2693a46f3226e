//! UDP flows are forgotten exactly if no endpoint may answer them, in every mode that translates packets.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use ipvs::VirtualServerKey;
use ipvs::model::Protocol;
use proptest::prelude::*;
use proptest::sample::select;
use proxier_core::config::{NodePortAddresses, RulesBy};
use proxier_core::engine::Options;
use proxier_core::fake::{Call, Fault, Flow};
use proxier_core::modes::Kind;
use proxier_core::net::{EndpointKey, FrontendKey};
use proxier_core::ports::PortErrorKind;
use proxier_core::service::Frontend;
use proxier_core::snapshot::{ObjectKey, ObjectKind};
use serde_json::{Value, json};

use crate::node::{Node, kernel, options_of};
use crate::universe;

const CLIENT: &str = "192.0.2.77:4000";
const WAYS: [(Kind, RulesBy); 4] = [
    (Kind::Ipvs, RulesBy::Iptables),
    (Kind::Ipvs, RulesBy::Nftables),
    (Kind::Nftables, RulesBy::Auto),
    (Kind::Iptables, RulesBy::Auto),
];

fn flow(to: SocketAddr, answers: SocketAddr) -> Flow {
    Flow::udp(CLIENT.parse().unwrap(), to, answers)
}

fn options((mode, by): (Kind, RulesBy)) -> Options {
    let mut options = options_of(mode);
    options.config.ipvs.rules = by;
    options
}

fn dns(address: &str) -> Value {
    json!({"clusterIP": address, "ports": [{"name": "u", "port": 53, "protocol": "UDP"}]})
}

/// The flows that the endpoints of all UDP Frontends get.
fn served(node: &Node) -> BTreeSet<Flow> {
    let frontends = node.proxier.desired().frontends().filter(|of| of.key.to_string().starts_with("UDP"));
    let of = |frontend: &Frontend| {
        let to = SocketAddr::new(frontend.key.address, frontend.key.port);
        frontend.endpoints().iter().map(|endpoint| flow(to, SocketAddr::from(*endpoint))).collect::<Vec<_>>()
    };
    frontends.flat_map(of).collect()
}

/// Whether an endpoint may still answer, selected or not.
fn stays(node: &Node, flow: &Flow) -> bool {
    let key: FrontendKey = format!("UDP {}", flow.destination).parse().unwrap();
    let endpoint = EndpointKey::from(flow.endpoint);
    node.proxier.desired().frontend(&key).is_some_and(|frontend| frontend.keeps_flows_of(&endpoint))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// From any state to any other, by a change or by the first pass of the next process, and also if another program has meanwhile removed what
    /// IPVS has.
    #[test]
    fn no_stale_flow_is_missed_and_no_other_forgotten(
        way in select(&WAYS[..]),
        before in universe::events(),
        after in universe::events(),
        is_next in any::<bool>(),
    ) {
        let mut node = Node::begin(&kernel(), options(way));
        for event in &before {
            node.happens(event);
        }
        node = node.started();
        node.pass();
        let early = served(&node);
        for flow in &early {
            node.kernel.add_flow(*flow);
        }
        if is_next {
            node = Node::begin(&node.kernel, options(way));
            for event in &before {
                node.happens(event);
            }
        }
        for event in &after {
            node.happens(event);
        }
        node = node.started();
        // Where most would go at once, nothing does before somebody confirms it.
        if node.pass().stopped.is_some() {
            node.proxier.confirm_removal(node.now);
            node.pass();
        }
        let expected: BTreeSet<Flow> = early.into_iter().filter(|flow| stays(&node, flow)).collect();
        prop_assert_eq!(node.kernel.flows(), expected);
        // What another program removes comes back, and flows that began meanwhile are not translated.
        if way.0 == Kind::Ipvs {
            let late: BTreeSet<Flow> = served(&node).iter().map(|of| flow(of.destination, of.destination)).collect();
            for flow in &late {
                node.kernel.add_flow(*flow);
            }
            node.kernel.ipvs().client().unwrap().flush_and_cut_everything().unwrap();
            node.full();
            prop_assert!(node.kernel.flows().is_disjoint(&late));
        }
    }
}

/// What cannot be listed of IPv4 keeps no flow of IPv6.
#[test]
fn each_family_has_its_flows_forgotten() {
    for way in WAYS {
        let mut node = Node::on(kernel(), options(way));
        let mut both = dns("10.96.0.10");
        (both["clusterIPs"], both["ipFamilies"]) = (json!(["10.96.0.10", "fd00::10"]), json!(["IPv4", "IPv6"]));
        node.service("dns", both);
        node.slice("dns", &["10.244.0.1", "10.244.0.2"]);
        node.slice("dns", &["fd44::1", "fd44::2"]);
        node.settles();
        let flows = [("10.96.0.10:53", "10.244.0.2:5353"), ("[fd00::10]:53", "[fd44::2]:5353")];
        let flows = flows.map(|(to, answers)| flow(to.parse().unwrap(), answers.parse().unwrap()));
        for flow in &flows {
            node.kernel.add_flow(*flow);
        }
        node.slice("dns", &["10.244.0.1"]);
        node.slice("dns", &["fd44::1"]);
        node.kernel.fail(Fault::new(Call::ConntrackForgetFlows, PortErrorKind::Busy));
        assert!(node.pass().has_failed(), "{way:?}");
        assert_eq!(node.kernel.flows(), [flows[0]].into(), "{way:?}");
        node.run(Duration::from_secs(3));
        assert_eq!(node.kernel.flows(), [].into(), "{way:?}");
    }
}

/// iptables mode serves node ports on 127.0.0.1 too, where no Frontend is.
#[test]
fn flows_at_localhost_end_with_the_node_ports_endpoints() {
    for (is_served, named) in [(true, false), (true, true), (false, false)] {
        let mut options = options((Kind::Iptables, RulesBy::Auto));
        options.iptables.localhost_node_ports = is_served;
        if named {
            let networks = ["192.0.2.0/24", "127.0.0.0/8"].map(|text| text.parse().unwrap());
            options.config.node_port_addresses = NodePortAddresses::Within(networks.into());
        }
        let begin = |node: &mut Node| {
            let port = json!({"name": "u", "port": 53, "protocol": "UDP", "nodePort": 30053});
            node.service("dns", json!({"type": "NodePort", "clusterIP": "10.96.0.10", "ports": [port]}));
            node.slice("dns", &["10.244.0.1", "10.244.0.2"]);
        };
        let mut node = Node::on(kernel(), options.clone());
        begin(&mut node);
        node.settles();
        let to: SocketAddr = "127.0.0.1:30053".parse().unwrap();
        let [one, two, three] = [1, 2, 3].map(|number| flow(to, SocketAddr::from(([10, 244, 0, number], 5353))));
        let expect = |node: &Node, flows: &[Flow]| {
            let expected = if is_served { flows } else { &[one, two, three] };
            assert_eq!(node.kernel.flows(), expected.iter().copied().collect(), "{is_served} {named}");
        };
        for flow in [one, two, three] {
            node.kernel.add_flow(flow);
        }
        node.slice("dns", &["10.244.0.1"]);
        node.kernel.fail(Fault::new(Call::ConntrackForgetFlows, PortErrorKind::Busy));
        assert!(node.pass().has_failed());
        node.run(Duration::from_secs(3));
        expect(&node, &[one]);
        // The next process checks all.
        let mut node = node.next(options);
        begin(&mut node);
        node.kernel.add_flow(two);
        node.kernel.add_flow(three);
        node.settles();
        expect(&node, &[one, two]);
        node.no_service("dns");
        node.settles();
        expect(&node, &[]);
    }
}

/// With `publishNotReadyAddresses` an endpoint is ready before it serves.
#[test]
fn flows_stay_with_an_endpoint_that_gets_new_ones() {
    for way in WAYS {
        let mut node = Node::on(kernel(), options(way));
        node.service("dns", dns("10.96.0.10"));
        let slice = |number: u8| {
            let published = json!({"ready": true, "serving": false, "terminating": false});
            json!({"metadata": {"namespace": "demo", "name": "dns-1", "labels": {"kubernetes.io/service-name": "dns"}},
                "addressType": "IPv4", "ports": [{"name": "u", "port": 5353, "protocol": "UDP"}],
                "endpoints": [{"addresses": ["10.244.0.1"], "conditions": published}, {"addresses": [format!("10.244.0.{number}")]}]})
        };
        node.take(slice(2));
        node.settles();
        let to: SocketAddr = "10.96.0.10:53".parse().unwrap();
        let [one, two] = [1, 2].map(|number| flow(to, SocketAddr::from(([10, 244, 0, number], 5353))));
        node.kernel.add_flow(one);
        node.kernel.add_flow(two);
        node.take(slice(3));
        node.settles();
        assert_eq!(node.kernel.flows(), [one].into(), "{way:?}");
    }
}

/// Draining endpoints answer if UDP drains too, until they are removed.
#[test]
fn draining_endpoints_answer() {
    let mut options = options_of(Kind::Ipvs);
    options.ipvs.drain.protocols.insert(Protocol::Udp);
    let mut node = Node::on(kernel(), options);
    node.service("dns", dns("10.96.0.10"));
    node.slice("dns", &["10.244.0.1", "10.244.0.2"]);
    node.settles();
    let to: SocketAddr = "10.96.0.10:53".parse().unwrap();
    let [one, two] = [1, 2].map(|number| flow(to, SocketAddr::from(([10, 244, 0, number], 5353))));
    let key: VirtualServerKey = "UDP 10.96.0.10:53".parse().unwrap();
    for flow in [one, two] {
        node.kernel.add_flow(flow);
        assert!(node.kernel.set_connections(&key, &flow.endpoint.into(), 0, 1));
    }
    node.slice("dns", &["10.244.0.2"]);
    node.settles();
    assert_eq!(node.kernel.flows(), [one, two].into(), "it drains");
    node.slice("dns", &["10.244.0.3"]);
    node.settles();
    assert_eq!(node.kernel.flows(), [one, two].into(), "both drain");
    node.no_service("dns");
    node.settles();
    assert!(node.kernel.flows().is_empty(), "nobody answers for what is deleted");
}

/// A flow that began before its Service had an endpoint is not translated, and the next packet begins another.
#[test]
fn a_flow_from_before_the_first_endpoint_is_forgotten() {
    for way in WAYS {
        let mut node = Node::on(kernel(), options(way));
        node.service("dns", dns("10.96.0.10"));
        node.settles();
        let to: SocketAddr = "10.96.0.10:53".parse().unwrap();
        node.kernel.add_flow(flow(to, to));
        node.slice("dns", &["10.244.0.1"]);
        node.settles();
        assert!(node.kernel.flows().is_empty(), "{way:?}");
    }
}

/// While the safeguard holds all Services that a list lacks, their clients keep their endpoints.
#[test]
fn flows_of_what_the_safeguard_holds_go_on() {
    for (way, is_next) in WAYS.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let mut node = Node::on(kernel(), options(way));
        let all: Vec<String> = (1..=20).map(|number| format!("dns-{number}")).collect();
        for (number, name) in (1..).zip(&all) {
            node.service(name, dns(&format!("10.96.0.{number}")));
            node.slice(name, &[&format!("10.244.0.{number}")]);
        }
        node.settles();
        let flows = served(&node);
        assert_eq!(flows.len(), 20);
        for flow in &flows {
            node.kernel.add_flow(*flow);
        }
        if is_next {
            node = node.next(options(way));
        } else {
            for name in &all {
                node.proxier.lose(ObjectKind::Service, &ObjectKey::new("demo", name), node.now);
            }
        }
        assert!(node.pass().stopped.is_some(), "{way:?} {is_next}");
        node.full();
        assert_eq!(node.kernel.flows(), flows, "{way:?} {is_next}");
        node.proxier.confirm_removal(node.now);
        node.settles();
        assert!(node.kernel.flows().is_empty(), "{way:?} {is_next}");
    }
}
