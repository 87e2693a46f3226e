//! Frontends that an agent asks for by itself, on a kernel in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proxier_core::engine::Options;
use proxier_core::modes::Kind;
use proxier_core::net::{EndpointKey, FrontendKey};
use proxier_core::plan::report::Report;
use proxier_core::service::Packet;
use proxier_core::snapshot::{Balancing, FrontendSpec, ObjectKey, Roles, TrafficPolicy};
use serde_json::json;

use crate::node::{Node, kernel, options_of};

fn name(name: &str) -> ObjectKey {
    ObjectKey::new("agent", name)
}

fn endpoint(text: &str) -> EndpointKey {
    text.parse().unwrap()
}

fn spec(key: &str, endpoints: &[&str]) -> FrontendSpec {
    FrontendSpec::new(key.parse().unwrap(), endpoints.iter().map(|text| endpoint(text)))
}

fn agent(options: Options) -> Node {
    Node::on(kernel(), options)
}

impl Node {
    fn asks(&mut self, key: &str, frontends: &[FrontendSpec]) {
        self.proxier.upsert_frontends(&name(key), frontends.to_vec(), self.now);
    }

    fn bound(&mut self) -> Vec<String> {
        let addresses = self.kernel.ports().links.addresses().unwrap().interfaces.remove("kube-ipvs0");
        addresses.into_iter().flatten().map(|address| address.to_string()).collect()
    }
}

/// Does all that is due within a second; returns the last report.
fn settles(agent: &mut Node) -> Report {
    agent.settle_for(Duration::from_secs(1)).pop().unwrap()
}

#[test]
fn frontends_are_served_changed_and_removed_without_any_object() {
    let mut agent = agent(Options::default());
    let mut sticky = spec("UDP 203.0.113.7:53", &["10.0.0.2:5353"]);
    (sticky.roles, sticky.affinity_secs) = (Roles::EXTERNAL_IP, Some(60));
    agent.asks("web", &[spec("TCP 10.96.0.1:80", &["10.0.0.2:8080", "10.0.0.1:8080"]), sticky]);
    agent.asks("six", &[spec("TCP [fd00::1]:443", &["[fd00:1::1]:8443"])]);
    settles(&mut agent);
    assert_eq!(
        agent.served(),
        [
            "TCP 10.96.0.1:80 10.0.0.1:8080*1 10.0.0.2:8080*1",
            "TCP [fd00::1]:443 [fd00:1::1]:8443*1",
            "UDP 203.0.113.7:53 p60 10.0.0.2:5353*1",
        ]
    );
    assert_eq!(agent.bound(), ["10.96.0.1", "203.0.113.7", "fd00::1"]);
    // The same input again is not a change.
    let writes = agent.kernel.writes().total();
    agent.asks("six", &[spec("TCP [fd00::1]:443", &["[fd00:1::1]:8443"])]);
    assert!(agent.proxier.next_wake().is_none_or(|at| at > agent.now + Duration::from_secs(1)));
    assert_eq!(agent.kernel.writes().total(), writes);

    agent.asks("web", &[spec("TCP 10.96.0.1:80", &["10.0.0.2:8080", "10.0.0.3:8080"])]);
    let report = settles(&mut agent);
    assert!(!report.full, "a change costs no reading");
    // The drained endpoint had no connections and is deleted already.
    assert_eq!(
        agent.served(),
        ["TCP 10.96.0.1:80 10.0.0.2:8080*1 10.0.0.3:8080*1", "TCP [fd00::1]:443 [fd00:1::1]:8443*1"]
    );
    assert_eq!(agent.bound(), ["10.96.0.1", "fd00::1"]);
    agent.proxier.delete_frontends(&name("web"), agent.now);
    agent.proxier.delete_frontends(&name("six"), agent.now);
    settles(&mut agent);
    assert_eq!((agent.served(), agent.bound()), (Vec::new(), Vec::new()));
    agent.proxier.request_full(agent.now);
    assert_eq!(settles(&mut agent).writes(), 0);
}

/// As for Services, what nftables mode cannot do is said.
#[test]
fn affinity_with_too_many_endpoints_is_refused() {
    let mut agent = agent(options_of(Kind::Nftables));
    for (count, is_refused) in [(4096, false), (4097, true)] {
        let endpoints =
            (0..count).map(|number| EndpointKey::new(std::net::Ipv4Addr::from(0x0af4_0000 + number).into(), 80));
        let mut sticky = FrontendSpec::new("TCP 10.96.0.1:80".parse().unwrap(), endpoints);
        sticky.affinity_secs = Some(60);
        agent.asks("web", &[sticky]);
        agent.proxier.preview(agent.now, &mut agent.kernel.ports());
        let said = agent.rejections().into_iter().filter(|line| line.contains("clients do not stay")).count();
        assert_eq!(said, usize::from(is_refused), "{:?}", agent.rejections());
        let packet = Packet::new([198, 51, 100, 9].into(), "TCP 10.96.0.1:80".parse().unwrap());
        assert_eq!(agent.traced(&packet).affinity_secs.is_some(), !is_refused);
    }
}

#[test]
fn a_local_policy_serves_local_endpoints_and_nothing_else() {
    let mut agent = agent(Options::default());
    let mut local = spec("TCP 203.0.113.7:80", &["10.0.0.1:80", "10.0.0.2:80"]);
    (local.roles, local.policy) = (Roles::LOAD_BALANCER, TrafficPolicy::Local);
    local.local = vec![endpoint("10.0.0.2:80")];
    agent.asks("web", &[local.clone()]);
    settles(&mut agent);
    assert_eq!(agent.served(), ["TCP 203.0.113.7:80 10.0.0.2:80*1"]);
    let missing = |agent: &Node| {
        let mut all = agent.proxier.desired().no_local_endpoints();
        all.next().map(|(_, missing)| (missing.internal.v4 > 0, missing.external.v4 > 0))
    };
    assert_eq!(missing(&agent), None);
    local.local.clear();
    let mut asks = |spec: &FrontendSpec| {
        agent.asks("web", std::slice::from_ref(spec));
        settles(&mut agent);
        (agent.served(), missing(&agent))
    };
    assert_eq!(asks(&local), (vec!["TCP 203.0.113.7:80".to_owned()], Some((false, true))));
    local.roles = Roles::CLUSTER_IP;
    assert_eq!(asks(&local).1, Some((true, false)));
    // Policy is not the cause here: there are no endpoints anywhere, or it lets in those of other nodes.
    let mut nobody = local.clone();
    nobody.cluster.clear();
    assert_eq!(asks(&nobody).1, None);
    local.policy = TrafficPolicy::Cluster;
    assert_eq!(asks(&local).1, None);
}

/// A cluster IP of a Service goes before an external IP, in any order of requests; a Service of the same name hides the Frontends.
#[test]
fn services_and_frontends_stand_side_by_side() {
    let mut agent = agent(Options::default());
    let mut thief = spec("TCP 10.96.0.1:80", &["10.0.0.9:80"]);
    thief.roles = Roles::EXTERNAL_IP;
    agent.asks("thief", &[thief]);
    agent.asks("web", &[spec("TCP 10.96.0.2:80", &["10.0.0.1:80"])]);
    settles(&mut agent);
    assert_eq!(agent.served(), ["TCP 10.96.0.1:80 10.0.0.9:80*1", "TCP 10.96.0.2:80 10.0.0.1:80*1"]);
    let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"name": "http", "port": 80}]});
    agent.take(json!({"metadata": {"namespace": "agent", "name": "web"}, "spec": spec}));
    settles(&mut agent);
    assert_eq!(agent.served(), ["TCP 10.96.0.1:80"]);
    agent.proxier.delete_service(&name("web"), agent.now);
    settles(&mut agent);
    assert_eq!(agent.served(), ["TCP 10.96.0.1:80 10.0.0.9:80*1", "TCP 10.96.0.2:80 10.0.0.1:80*1"]);
}

/// Names that ask for the same address do not take it from each other; a pass for changes and a full one agree.
#[test]
fn agent_keeps_an_address_that_another_name_asks_for_later() {
    let mut agent = agent(Options::default());
    let web = |last: u8| spec("TCP 10.96.0.1:80", &[&format!("10.0.0.{last}:80")]);
    agent.asks("z", &[web(1)]);
    settles(&mut agent);
    agent.asks("a", &[web(2)]);
    let report = settles(&mut agent);
    assert_eq!((report.full, agent.served()), (false, vec!["TCP 10.96.0.1:80 10.0.0.1:80*1".to_owned()]));
    let refused: Vec<String> = report.refused.iter().map(ToString::to_string).collect();
    assert_eq!(refused, ["TCP 10.96.0.1:80 of agent/a is not served: agent/z has it and asked for it first"]);
    let conflicts: Vec<String> = agent.proxier.desired().conflicts().map(|conflict| conflict.to_string()).collect();
    assert_eq!(conflicts, refused);
    agent.asks("z", &[web(3), spec("TCP 10.96.0.9:80", &[])]);
    settles(&mut agent);
    assert!(agent.served().contains(&"TCP 10.96.0.1:80 10.0.0.3:80*1".to_owned()), "{:?}", agent.served());
    agent.asks("z", &[]);
    let report = settles(&mut agent);
    assert_eq!((report.refused, agent.served()), (vec![], vec!["TCP 10.96.0.1:80 10.0.0.2:80*1".to_owned()]));
    agent.asks("z", &[web(3)]);
    settles(&mut agent);
    assert_eq!(agent.served(), ["TCP 10.96.0.1:80 10.0.0.2:80*1"], "it began to ask again");
}

/// The owner of each address by the rule: names in the order in which they began to ask.
type Asking = BTreeMap<u8, Vec<(u8, u8)>>;

/// A call under a name, with the address and endpoint of each Frontend.
fn calls() -> impl Strategy<Value = Vec<(u8, BTreeMap<u8, u8>)>> {
    let frontends = proptest::collection::btree_map(1..4_u8, 1..4_u8, 0..3);
    proptest::collection::vec((0..4_u8, frontends), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn first_to_ask_owns_an_address_in_every_pass(calls in calls(), mode in prop_oneof![Just(Kind::Ipvs), Just(Kind::Nftables), Just(Kind::Userspace)]) {
        let mut agent = agent(options_of(mode));
        let mut asking = Asking::new();
        settles(&mut agent);
        for (name, frontends) in calls {
            for address in 1..4 {
                let list = asking.entry(address).or_default();
                match (frontends.get(&address), list.iter_mut().find(|(of, _)| *of == name)) {
                    (Some(endpoint), Some(known)) => known.1 = *endpoint,
                    (Some(endpoint), None) => list.push((name, *endpoint)),
                    (None, _) => list.retain(|(of, _)| *of != name),
                }
            }
            let key = |address: &u8| format!("TCP 10.96.0.{address}:80");
            let specs: Vec<FrontendSpec> =
                frontends.iter().map(|(address, last)| spec(&key(address), &[&format!("10.0.0.{last}:80")])).collect();
            agent.asks(["d", "c", "b", "a"][usize::from(name)], &specs);
            let of_changes = agent.settle_for(Duration::from_secs(1)).pop();
            let owners: Vec<(String, Vec<String>)> = asking
                .iter()
                .filter_map(|(address, list)| Some((key(address), vec![format!("10.0.0.{}:80", list.first()?.1)])))
                .collect();
            let desired = |agent: &Node| -> Vec<(String, Vec<String>)> {
                let texts = |endpoints: &[EndpointKey]| endpoints.iter().map(ToString::to_string).collect();
                agent.proxier.desired().frontends().map(|of| (of.key.to_string(), texts(of.endpoints()))).collect()
            };
            prop_assert_eq!(&desired(&agent), &owners);
            let losers: usize = asking.values().map(|list| list.len().saturating_sub(1)).sum();
            if let Some(report) = &of_changes {
                prop_assert_eq!(report.refused.len(), losers);
            }
            agent.proxier.request_full(agent.now);
            let full = settles(&mut agent);
            prop_assert_eq!((full.full, full.writes(), full.refused.len()), (true, 0, losers));
            prop_assert_eq!(&desired(&agent), &owners);
        }
    }
}

#[test]
fn what_cannot_be_served_is_left_out_and_named() {
    let mut agent = agent(Options::default());
    let mut open = spec("TCP 10.96.0.3:80", &["10.0.0.1:80"]);
    open.source_ranges = Some(vec!["192.0.2.0/24".parse().unwrap()]);
    let mut odd = spec("TCP 10.96.0.4:80", &["10.0.0.1:80", "[fd00::1]:80", "127.0.0.1:80", "10.0.0.2:0"]);
    odd.affinity_secs = Some(0);
    let zero = FrontendSpec::new(FrontendKey { port: 0, ..odd.key }, []);
    let twice = spec("TCP 10.96.0.4:80", &["10.0.0.7:80"]);
    // Addresses of a socket of both families.
    let mut datagrams = spec("UDP [::ffff:10.96.0.6]:53", &["[::ffff:10.0.0.9]:53", "10.0.0.9:53"]);
    datagrams.weights = vec![(endpoint("[::ffff:10.0.0.9]:53"), 3)];
    // The gateway of this node, as an external IP.
    let mut gateway = spec("TCP 192.0.2.254:80", &["10.0.0.1:80"]);
    gateway.roles = Roles::EXTERNAL_IP;
    agent.kernel.set_gateways(["192.0.2.254".parse().unwrap()]);
    agent.asks("odd", &[spec("TCP 127.0.0.1:80", &[]), zero, open, odd, twice, gateway, datagrams]);
    let report = settles(&mut agent);
    assert_eq!(agent.served(), ["TCP 10.96.0.4:80 10.0.0.1:80*1", "UDP 10.96.0.6:53 10.0.0.9:53*3"]);
    assert_eq!(
        agent.rejections(),
        [
            "Frontends agent/odd: [0] TCP 127.0.0.1:80: not an address and port a Service can have; the Frontend is left out",
            "Frontends agent/odd: [1] TCP 10.96.0.4:0: not an address and port a Service can have; the Frontend is left out",
            "Frontends agent/odd: [2] TCP 10.96.0.3:80: source ranges need the role of a load balancer; the Frontend is left \
             out",
            "Frontends agent/odd: [3].affinity_secs 0: not 1 to 86400 seconds; no affinity",
            "Frontends agent/odd: [3].cluster [fd00::1]:80: not an endpoint that this Frontend can have; the endpoint is left \
             out",
            "Frontends agent/odd: [3].cluster 127.0.0.1:80: not an endpoint that this Frontend can have; the endpoint is left \
             out",
            "Frontends agent/odd: [3].cluster 10.0.0.2:0: not an endpoint that this Frontend can have; the endpoint is left out",
            "Frontends agent/odd: [4] TCP 10.96.0.4:80: named twice; the first counts",
        ]
    );
    let refused: Vec<_> = report.refused.iter().map(|refused| refused.key.to_string()).collect();
    assert_eq!(refused, ["TCP 192.0.2.254:80"]);
    agent.proxier.delete_frontends(&name("odd"), agent.now);
    assert_eq!(agent.rejections(), Vec::<String>::new());
}

/// The scheduler `rr` divides among all alike, whatever their weights.
#[test]
fn weights_have_a_scheduler_that_knows_them() {
    let mut agent = agent(Options::default());
    let mut web = spec("TCP 10.96.0.1:80", &["10.0.0.1:8080", "10.0.0.2:8080"]);
    let mut serve = |web: &FrontendSpec, wanted: &[&str]| {
        agent.asks("web", std::slice::from_ref(web));
        settles(&mut agent);
        let state = agent.kernel.state().ipvs;
        for line in wanted {
            assert!(state.lines().any(|found| found == *line), "{line} in\n{state}");
        }
    };
    let (first, second) = (endpoint("10.0.0.1:8080"), endpoint("10.0.0.2:8080"));
    web.weights = vec![(first, 0)];
    serve(&web, &["-A -t 10.96.0.1:80 -s rr", "-a -t 10.96.0.1:80 -r 10.0.0.1:8080 -m -w 0"]);
    web.weights = vec![(second, 3)];
    serve(&web, &["-A -t 10.96.0.1:80 -s wrr", "-a -t 10.96.0.1:80 -r 10.0.0.2:8080 -m -w 3"]);
    // One that the agent names stays.
    let mut balancing = Balancing::default();
    balancing.scheduler = Some(ipvs::Scheduler::RoundRobin);
    web.balancing = Some(Arc::new(balancing));
    serve(&web, &["-A -t 10.96.0.1:80 -s rr"]);
    (web.balancing, web.weights) = (None, Vec::new());
    serve(&web, &["-A -t 10.96.0.1:80 -s rr", "-a -t 10.96.0.1:80 -r 10.0.0.2:8080 -m -w 1"]);
}
