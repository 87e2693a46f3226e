//! Rules of iptables mode, byte for byte, and cases for which the oracle corpus has no scenario.

use std::collections::BTreeMap;

use iptables::Dump;
use proxier_core::config::{
    Config, InterfaceName, LocalTraffic, MarkBit, NodePortAddresses, Reserved, ReservedPort, User,
};
use proxier_core::modes::iptables::{Index, IptablesOptions, RandomFully, Wanted, changes, cleanup, update};
use proxier_core::net::{EndpointKey, Family, FrontendKey, Protocol};
use proxier_core::service::{Changes, Indexed, NodeFacts};
use proxier_core::snapshot::{FrontendSpec, HostAddresses, Node, ObjectKey, Roles, Store, TrafficPolicy};
use serde_json::{Value, json};

use crate::host::Host;

fn facts(config: &Config) -> NodeFacts {
    let mut node = Node::new("node-a");
    node.addresses = vec!["192.168.0.10".parse().unwrap(), "2001:db8:1::10".parse().unwrap()];
    let interfaces = BTreeMap::from([("eth0".to_owned(), node.addresses.clone())]);
    NodeFacts::new(config, &node, &HostAddresses { interfaces })
}

fn with_pods() -> Config {
    let mut config = Config::default();
    config.local_traffic = LocalTraffic::ClusterCidrs(vec!["10.244.0.0/16".parse().unwrap()]);
    config
}

/// `ports`: name and number of each. More of the specification and status as in the object.
fn service(name: &str, ports: &Value, more: &Value, ingress: &[&str]) -> Value {
    let mut spec = json!({"type": "LoadBalancer", "ports": ports});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    let ingress: Vec<Value> = ingress.iter().map(|ip| json!({"ip": ip})).collect();
    json!({"metadata": {"namespace": "ns1", "name": name}, "spec": spec, "status": {"loadBalancer": {"ingress": ingress}}})
}

fn slice(service: &str, port: (&str, u16), endpoints: &[(&str, &str)]) -> Value {
    let endpoints: Vec<Value> =
        endpoints.iter().map(|(address, node)| json!({"addresses": [address], "nodeName": node})).collect();
    json!({
        "metadata": {"namespace": "ns1", "name": format!("{service}-1"), "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"name": port.0, "port": port.1}], "endpoints": endpoints,
    })
}

fn store(services: &[Value], slices: &[Value]) -> Store {
    let mut store = Store::new("node-a");
    for service in services {
        store.upsert_service(&serde_json::from_value(service.clone()).unwrap());
    }
    for slice in slices {
        store.upsert_slice(&serde_json::from_value(slice.clone()).unwrap());
    }
    store
}

/// Tables that are written on a host without rules.
fn tables(wanted: &Wanted<'_>, family: Family) -> Host {
    let host = Host::new(family);
    host.restore(&changes(wanted, &Dump::default(), family).unwrap().to_restore_text().unwrap());
    host
}

fn built(store: &Store, facts: &NodeFacts, options: IptablesOptions) -> Indexed<Index> {
    Indexed::build(store, facts, Index::new(facts, options))
}

fn recorded(store: &Store, facts: &NodeFacts) -> Indexed<(Index, Changes)> {
    let index = (Index::new(facts, IptablesOptions::default()), Changes::default());
    let mut all = Indexed::build(store, facts, index);
    drop(std::mem::take(&mut all.index.1));
    all
}

/// `TABLE -A CHAIN RULE` of all chains that are not empty.
fn lines(wanted: &Wanted<'_>) -> Vec<String> {
    let chains = tables(wanted, Family::V4).chains().into_iter();
    let of = |((table, chain), rules): ((String, String), Vec<String>)| -> Vec<String> {
        rules.iter().map(|rule| format!("{table} -A {chain} {rule}")).collect()
    };
    chains.flat_map(of).collect()
}

/// The lines about Services.
fn of_services(config: &Config, store: &Store) -> Vec<String> {
    let all = lines(&built(store, &facts(config), IptablesOptions::default()).wanted());
    all.into_iter().filter(|line| line.contains("ns1/")).collect()
}

#[test]
fn names_and_comments_are_those_of_kube_proxy() {
    let everything = service(
        "svc1",
        &json!([{"name": "p80", "port": 80, "nodePort": 30080}]),
        &json!({
            "clusterIP": "172.30.0.41", "externalIPs": ["192.168.99.22"], "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 30000, "loadBalancerSourceRanges": ["192.168.0.0/24", " 10.1.0.0/16"],
            "sessionAffinity": "ClientIP",
        }),
        &["1.2.3.4"],
    );
    let local =
        slice("svc1", ("p80", 80), &[("10.180.0.1", "node-a"), ("10.180.0.10", "node-b"), ("10.180.0.9", "node-a")]);
    let none = service("svc2", &json!([{"port": 53, "protocol": "UDP"}]), &json!({"clusterIP": "172.30.0.42"}), &[]);
    let elsewhere = service(
        "svc3",
        &json!([{"name": "p", "port": 81, "nodePort": 30081, "protocol": "SCTP"}]),
        &json!({"clusterIP": "172.30.0.43", "internalTrafficPolicy": "Local", "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 30001, "externalIPs": ["192.168.99.23"]}),
        &["1.2.3.5"],
    );
    let mut remote = slice("svc3", ("p", 8081), &[("10.180.0.2", "node-b")]);
    remote["ports"][0]["protocol"] = "SCTP".into();
    let store = store(&[everything, none, elsewhere], &[local, remote]);
    let all = built(&store, &facts(&with_pods()), IptablesOptions::default());
    let wanted = all.wanted();
    let text = lines(&wanted).join("\n");
    let golden = include_str!("host/golden.txt");
    assert_eq!(text.trim(), golden.trim(), "{text}");
}

#[test]
fn what_settings_change() {
    let web = service(
        "web",
        &json!([{"port": 80, "nodePort": 30080}]),
        &json!({"clusterIP": "172.30.0.41", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30000}),
        &[],
    );
    let store = store(&[web], &[slice("web", ("", 80), &[("10.180.0.1", "node-a")])]);
    let pods = |config: &Config| -> Vec<String> {
        let all = of_services(config, &store).into_iter();
        let of_pods =
            |line: &String| line.contains("pod traffic") || line.contains("cluster IP") && line.contains("-MASQ");
        all.filter(of_pods).map(|line| line.split_once("\" ").unwrap().1.to_owned()).collect()
    };
    let mut config = Config::default();
    assert_eq!(pods(&config), [""; 0]);
    config.local_traffic = LocalTraffic::BridgeInterface(InterfaceName::new("cni0").unwrap());
    let to = "-m tcp -p tcp -d 172.30.0.41 --dport 80";
    let (svc, masq) = ("KUBE-SVC-", "KUBE-MARK-MASQ");
    let chain = pods(&config).first().unwrap().split_once(svc).unwrap().1.to_owned();
    assert_eq!(pods(&config), [format!("-i cni0 -j {svc}{chain}"), format!("{to} ! -i cni0 -j {masq}")]);
    config.local_traffic = LocalTraffic::InterfaceNamePrefix(InterfaceName::new("veth").unwrap());
    assert_eq!(pods(&config), [format!("-i veth+ -j {svc}{chain}"), format!("{to} ! -i veth+ -j {masq}")]);
    config.local_traffic = LocalTraffic::ClusterCidrs(vec!["0.0.0.0/0".parse().unwrap()]);
    assert_eq!(pods(&config), [format!("-s 0.0.0.0/0 -j {svc}{chain}")], "nobody is outside");
    config.masquerade_all = true;
    assert_eq!(pods(&config).last().unwrap(), &format!("{to} -j {masq}"));

    config.masquerade_bit = MarkBit::new(3).unwrap();
    let mut options = IptablesOptions::default();
    (options.random_fully, options.drop_invalid, options.localhost_node_ports) = (RandomFully::Never, false, false);
    let text = lines(&built(&store, &facts(&config), options).wanted()).join("\n");
    assert!(text.contains("-m mark --mark 0x00000008/0x00000008 -j ACCEPT"), "{text}");
    assert!(text.contains("--dst-type LOCAL ! -d 127.0.0.0/8 -j KUBE-NODEPORTS"), "{text}");
    for absent in ["--random-fully", "INVALID", "block incoming localnet connections"] {
        assert!(!text.contains(absent), "{absent}: {text}");
    }
}

#[test]
fn a_restriction_holds_whatever_else_the_address_is() {
    let ports = json!([{"port": 80}]);
    let address = "203.0.113.7";
    let of = |ranges: &[&str]| {
        let spec = json!({"clusterIP": "172.30.0.41", "externalIPs": [address], "loadBalancerSourceRanges": ranges});
        let store =
            store(&[service("web", &ports, &spec, &[address])], &[slice("web", ("", 80), &[("10.180.0.1", "node-a")])]);
        of_services(&Config::default(), &store)
    };
    let to_address = |lines: &[String]| -> Vec<String> {
        let to = |line: &&String| line.contains(&format!("-d {address}"));
        let target = |line: &String| line.rsplit(' ').next().unwrap().split('-').take(2).collect::<Vec<_>>().join("-");
        lines.iter().filter(to).map(target).collect()
    };
    assert_eq!(to_address(&of(&[])), ["KUBE-EXT", "KUBE-EXT"], "both lines lead to the same chain");
    assert_eq!(to_address(&of(&["10.0.0.0/8"])), ["DROP", "KUBE-FW"]);
    assert_eq!(to_address(&of(&["10.0.0.0/8", "0.0.0.0/0"])), ["KUBE-EXT", "KUBE-EXT"], "everybody may");
    let nobody = of(&["nonsense"]);
    assert_eq!(to_address(&nobody), ["DROP", "KUBE-FW"]);
    let entries: Vec<&String> = nobody.iter().filter(|line| line.starts_with("nat -A KUBE-FW-")).collect();
    assert_eq!(entries.len(), 1, "only the comment: {entries:?}");
}

#[test]
fn reserved_ports_are_not_served() {
    let kubelet = Reserved::KUBELET;
    let web = service("web", &json!([{"port": 80, "nodePort": kubelet}]), &json!({"clusterIP": "172.30.0.41"}), &[]);
    let store = store(&[web], &[slice("web", ("", 80), &[("10.180.0.1", "node-a")])]);
    let node_ports = |config: &Config| -> Vec<String> {
        let all = of_services(config, &store).into_iter();
        all.filter(|line| line.contains("--dport 10250"))
            .map(|line| line.split(" --dport").next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(node_ports(&Config::default()), [""; 0]);
    let mut config = Config::default();
    config.reserved = Reserved::none();
    assert_eq!(node_ports(&config), ["nat -A KUBE-NODEPORTS -m comment --comment ns1/web -m tcp -p tcp"]);
    // Reserved at one of the addresses: it is served where it is free.
    let mut config = Config::default();
    config.reserved = Reserved::none();
    config.reserved.reserve(ReservedPort::tcp([192, 168, 0, 10].into(), kubelet), User::ApiServer);
    assert_eq!(node_ports(&config), [""; 0]);
    let here = ["192.168.0.10", "192.168.0.11"].map(|address| address.parse().unwrap());
    let host = HostAddresses { interfaces: BTreeMap::from([("eth0".to_owned(), here.to_vec())]) };
    let facts = NodeFacts::new(&config, &Node::new("node-a"), &host);
    let lines = lines(&built(&store, &facts, IptablesOptions::default()).wanted());
    let to_port: Vec<&String> = lines.iter().filter(|line| line.contains("--dport 10250")).collect();
    let only = "nat -A KUBE-SERVICES -m comment --comment \"ns1/web node port\" -m tcp -p tcp -d 192.168.0.11 --dport 10250 -j KUBE-EXT-";
    assert!(matches!(to_port[..], [line] if line.starts_with(only)), "{to_port:#?}");
    // 127.0.0.1 is an address of this node, too.
    let mut config = Config::default();
    config.node_port_addresses =
        NodePortAddresses::Within(["127.0.0.0/8", "192.168.0.0/24"].map(|of| of.parse().unwrap()).into());
    let mut facts = NodeFacts::new(&config, &Node::new("node-a"), &host);
    facts.serve_localhost(&[Family::V4]);
    let wanted = built(&store, &facts, IptablesOptions::default());
    assert_eq!(wanted.desired.rejected().count(), 3);
    assert!(!self::lines(&wanted.wanted()).iter().any(|line| line.contains("--dport 10250")));
}

#[test]
fn agents_frontends_are_ports_of_their_own() {
    let key = ObjectKey::new("ns1", "agent");
    let place = |address: &str, port| FrontendKey::new(Protocol::Tcp, address.parse().unwrap(), port);
    let endpoint = EndpointKey::new("10.180.0.1".parse().unwrap(), 80);
    let internal = FrontendSpec::new(place("172.30.0.50", 80), [endpoint]);
    let mut balanced = FrontendSpec::new(place("203.0.113.9", 443), [endpoint]);
    balanced.roles = Roles::LOAD_BALANCER;
    balanced.policy = TrafficPolicy::Local;
    balanced.source_ranges = Some(vec!["192.0.2.0/24".parse().unwrap()]);
    // Only here: the list of all nodes' endpoints is empty.
    let mut local = FrontendSpec::new(place("203.0.113.10", 443), []);
    local.roles = Roles::EXTERNAL_IP;
    local.policy = TrafficPolicy::Local;
    local.local = vec![endpoint];
    let mut store = Store::new("node-a");
    let changed = store.upsert_frontends(&key, vec![internal, balanced, local]);
    let facts = facts(&with_pods());
    let mut all = recorded(&Store::new(""), &facts);
    let kernel = tables(&all.index.0.wanted(&all.desired), Family::V4);
    all.refresh(&store, &facts, &changed);
    let changed = std::mem::take(&mut all.index.1);
    let text = update(&all.index.0.wanted(&all.desired), &changed, Family::V4).unwrap().0.to_restore_text().unwrap();
    kernel.restore(&text);
    // The order in chains that all Services share has no meaning.
    let sorted = |host: &Host| {
        let mut chains = host.chains();
        for rules in chains.values_mut() {
            rules.sort();
        }
        chains
    };
    assert_eq!(sorted(&kernel), sorted(&tables(&all.index.0.wanted(&all.desired), Family::V4)));
    assert!(changes(&all.index.0.wanted(&all.desired), &kernel.dump(), Family::V4).unwrap().is_empty());
    for line in [
        "--comment \"ns1/agent:172.30.0.50:80 cluster IP\" -m tcp -p tcp -d 172.30.0.50 --dport 80 -j KUBE-SVC-",
        "--comment \"ns1/agent:203.0.113.9:443 loadbalancer IP\" -m tcp -p tcp -d 203.0.113.9 --dport 443 -j KUBE-FW-",
        "--comment \"ns1/agent:203.0.113.9:443 has no local endpoints\" -m tcp -p tcp -d 203.0.113.9 --dport 443 -j DROP",
        "--comment \"ns1/agent:203.0.113.10:443 external IP\" -m tcp -p tcp -d 203.0.113.10 --dport 443 -j KUBE-EXT-",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
}

/// Names that no API server accepts change nothing but comments, and iptables takes the rules.
#[test]
fn hostile_names_stay_in_their_comments() {
    let long = "é".repeat(300);
    for name in ["a\n-A INPUT -j DROP", "a\" -j ACCEPT", "a\0b", &long] {
        let mut web = service("web", &json!([{"port": 80}]), &json!({"clusterIP": "172.30.0.41"}), &[]);
        web["metadata"]["name"] = name.into();
        let store = store(&[web], &[]);
        let lines = lines(&built(&store, &facts(&Config::default()), IptablesOptions::default()).wanted());
        let ours: Vec<&String> = lines.iter().filter(|line| line.contains("172.30.0.41")).collect();
        assert_eq!(ours.len(), 1, "{lines:#?}");
        assert!(ours.iter().all(|line| line.starts_with("filter -A KUBE-SERVICES") && line.ends_with("-j REJECT")));
    }
}

/// Beyond a thousand endpoints rules about endpoints have no comments, but no chain is written for that alone.
#[test]
fn many_endpoints_leave_out_comments() {
    let facts = facts(&Config::default());
    let web = |name: &str, address: &str| service(name, &json!([{"port": 80}]), &json!({"clusterIP": address}), &[]);
    let many: Vec<String> = (0..1000).map(|n| format!("10.180.{}.{}", n / 250, n % 250 + 1)).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|address| (address.as_str(), "node-b")).collect();
    let mut store = store(&[web("one", "172.30.0.41"), web("many", "172.30.0.42")], &[slice("many", ("", 80), &many)]);
    let mut all = recorded(&store, &facts);
    assert!(all.index.0.wanted(&all.desired).has_comments(Family::V4));
    let kernel = tables(&all.index.0.wanted(&all.desired), Family::V4);

    let endpoint = slice("one", ("", 80), &[("10.181.0.1", "node-b")]);
    let services = store.upsert_slice(&serde_json::from_value(endpoint).unwrap());
    all.refresh(&store, &facts, &services);
    let changed = std::mem::take(&mut all.index.1);
    assert!(
        !all.index.0.wanted(&all.desired).has_comments(Family::V4)
            && all.index.0.wanted(&all.desired).has_comments(Family::V6)
    );
    let text = update(&all.index.0.wanted(&all.desired), &changed, Family::V4).unwrap().0.to_restore_text().unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("-A KUBE-S")).count(), 3, "{text}");
    assert!(text.contains(" --comment \"ns1/one cluster IP\"") && !text.contains("ns1/many"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("-A KUBE-SEP-") && line.contains(" -s 10.181.0.1 ")));
    assert!(text.lines().filter(|line| line.starts_with("-A KUBE-SEP-")).all(|line| !line.contains("comment")));
    kernel.restore(&text);
    assert!(changes(&all.index.0.wanted(&all.desired), &kernel.dump(), Family::V4).unwrap().is_empty());

    let plain = tables(&all.index.0.wanted(&all.desired), Family::V4);
    let services = store.delete_service(&ObjectKey::new("ns1", "one"));
    all.refresh(&store, &facts, &services);
    let changed = std::mem::take(&mut all.index.1);
    plain.restore(
        &update(&all.index.0.wanted(&all.desired), &changed, Family::V4).unwrap().0.to_restore_text().unwrap(),
    );
    assert!(all.index.0.wanted(&all.desired).has_comments(Family::V4));
    assert!(changes(&all.index.0.wanted(&all.desired), &plain.dump(), Family::V4).unwrap().is_empty());
}

/// Chains and jumps of IPVS mode and of older releases, a kubelet's rule, and a foreign rule that uses our chains.
const LEFT_BEHIND: &str = include_str!("../rule_cases/dumps/left-behind.rules");

#[test]
fn what_others_left_is_taken_over_and_others_rules_stay() {
    let kernel = Host::new(Family::V4);
    kernel.restore(LEFT_BEHIND);
    let all = Indexed::new(Index::new(&facts(&Config::default()), IptablesOptions::default()));
    let wanted = all.wanted();
    kernel.restore(&changes(&wanted, &kernel.dump(), Family::V4).unwrap().to_restore_text().unwrap());
    assert!(changes(&wanted, &kernel.dump(), Family::V4).unwrap().is_empty());
    let has = |table: &str, chain: &str| kernel.chains().contains_key(&(table.to_owned(), chain.to_owned()));
    let of = |table: &str, chain: &str| kernel.chains()[&(table.to_owned(), chain.to_owned())].clone();
    let forward = of("filter", "FORWARD");
    let targets: Vec<&str> = forward.iter().map(|rule| rule.rsplit(' ').next().unwrap()).collect();
    assert_eq!(targets, ["KUBE-PROXY-FIREWALL", "KUBE-FORWARD", "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES"]);
    assert_eq!(of("filter", "KUBE-FIREWALL").len(), 2, "the kubelet's rule stays, ours is added");
    assert!(of("filter", "OUTPUT").iter().any(|rule| rule == "-m comment --comment mine -j KUBE-SERVICES"));
    assert!(!has("nat", "KUBE-XLB-AAAAAAAAAAAAAAAA") && !has("nat", "KUBE-SEP-AAAAAAAAAAAAAAAA"));
    assert!(has("nat", "KUBE-SVC-AAAAAAAAAAAAAAAA"), "somebody's rule jumps to it");

    kernel.restore(&cleanup(&kernel.dump(), &|_, _| false).unwrap().to_restore_text().unwrap());
    assert!(cleanup(&kernel.dump(), &|_, _| false).unwrap().is_empty());
    let names = kernel.chains().into_keys().map(|(_, chain)| chain);
    let names: Vec<String> = names.filter(|chain| chain.starts_with("KUBE-")).collect();
    assert_eq!(names, ["KUBE-FIREWALL", "KUBE-SERVICES", "KUBE-MARK-MASQ", "KUBE-SVC-AAAAAAAAAAAAAAAA"]);
    assert_eq!(of("nat", "KUBE-MARK-MASQ").len(), 1, "container runtimes use it");
}

#[test]
fn a_table_that_cannot_be_shown_is_left_alone() {
    let dump = Dump::parse("# Table `nat' is incompatible, use 'nft' tool.\n").unwrap();
    let all = Indexed::new(Index::new(&facts(&Config::default()), IptablesOptions::default()));
    let wanted = all.wanted();
    for result in [changes(&wanted, &dump, Family::V4), cleanup(&dump, &|_, _| false)] {
        assert!(result.unwrap_err().to_string().starts_with("table nat has rules that iptables-save cannot show"));
    }
}
