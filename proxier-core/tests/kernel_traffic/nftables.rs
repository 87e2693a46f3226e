//! Packets through nftables mode while its Services change: connections stay with an endpoint that leaves, flows of UDP while it serves, and pings are
//! refused. Which endpoint a packet gets is in `kernel_flows`.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use proxier_core::inspect::trace;
use proxier_core::modes::{Kind, fast_path, iptables};
use proxier_core::net::{Family, FrontendKey, Protocol};
use proxier_core::objects::EndpointSliceObject;
use proxier_core::plan::report::Report;
use proxier_core::service::{Packet, Verdict};
use serde_json::{Value, json};
use testkit::witness::{Conversation, Transport, Witness, ask, ping};
use testkit::{Need, Netns, kernel_test, oracle, veth_pair};

use crate::traffic::clients::LIMIT;
use crate::traffic::cluster::{Cluster, key, options};
use crate::traffic::net::{self, FAMILIES, Net};
use crate::traffic::objects::{self, A, Pod, R, Vip, node_port};
use crate::traffic::serving::flows_stay_while_their_endpoint_serves;

/// A node with one Service.
fn with_service(pods: &[Pod], body: impl FnOnce(&Net, &mut Cluster)) {
    with_service_in(Kind::Nftables, pods, body);
}

fn new_cluster(mode: Kind, more: &Value) -> Cluster {
    let mut options = options(more);
    options.mode = mode;
    options.iptables.reject_with_reset = true;
    if mode == Kind::Nftables { Cluster::without_programs(options) } else { Cluster::new(options) }
}

fn with_service_in(mode: Kind, pods: &[Pod], body: impl FnOnce(&Net, &mut Cluster)) {
    with_service_by((mode, &json!({})), &[], pods, body);
}

/// Runs a test with one Service, in a mode, with a configuration. `needs`: what it needs besides the mode.
fn with_service_by((mode, more): (Kind, &Value), needs: &[Need], pods: &[Pod], body: impl FnOnce(&Net, &mut Cluster)) {
    let of_mode: &[Need] = match mode {
        Kind::Iptables => &[Need::Root, Need::Nftables, Need::Veth, Need::Conntrack, Need::IptablesNft],
        Kind::Userspace => &[Need::Root, Need::Veth],
        _ => &[Need::Root, Need::Nftables, Need::Veth, Need::Conntrack],
    };
    kernel_test(&[of_mode, needs].concat(), || {
        let net = Net::new();
        // A node has a default route: without it a packet to an address that no host has would not come as far as the rules.
        let mut lines = net::Lines::default();
        lines.default_route(net::SECOND_NODE);
        net::batch(&net.node, &lines.0);
        // Without SCTP, which not every kernel has.
        let servers = [(&net.pod_a, "a", net::POD_A), (&net.second_node, "r", net::POD_R)];
        let _servers = servers.map(|(namespace, name, pod)| {
            let mut places = net::places(pod, net::POD_PORT);
            places.retain(|(transport, _)| *transport != Transport::Sctp);
            Witness::start(namespace, name, &places).unwrap()
        });
        let mut cluster = new_cluster(mode, more);
        cluster.publish("web", 10, &json!({}), pods);
        cluster.settle();
        body(&net, &mut cluster);
    });
}

/// Every address of the Service.
fn everywhere() -> Vec<SocketAddr> {
    FAMILIES.into_iter().flat_map(|family| Vip::ALL.map(|vip| vip.of(10, family))).collect()
}

/// Conversations that the client opens, several at each address, and who answers each.
fn open(net: &Net, transport: Transport) -> Vec<(SocketAddr, Conversation, String)> {
    let open = |to: SocketAddr| {
        let from = Some(net::CLIENT.of(Family::of(to.ip())));
        let mut conversation = Conversation::open(transport, from, to, LIMIT).unwrap();
        let name = conversation.ask().unwrap_or_else(|error| panic!("{transport:?} {to}: {error}")).name;
        (to, conversation, name)
    };
    net.client.run_in(|| everywhere().into_iter().flat_map(|to| [to; 6]).map(open).collect()).unwrap()
}

#[test]
fn a_connection_survives_the_removal_of_its_endpoint() {
    with_service(&[A, R], |net, cluster| {
        let mut connections = open(net, Transport::Tcp);
        let served: BTreeSet<&str> = connections.iter().map(|(_, _, name)| name.as_str()).collect();
        assert_eq!(served, BTreeSet::from(["a", "r"]));
        // First one endpoint goes, then all of them.
        for (pods, name) in [(&[R][..], Some("r")), (&[], None)] {
            cluster.endpoints("web", pods);
            cluster.settle();
            for (to, connection, held) in &mut connections {
                let answer = connection.ask().unwrap_or_else(|error| panic!("{to}, held by {held}: {error}"));
                assert_eq!(answer.name, *held, "{to}");
            }
            for to in everywhere() {
                let from = Some(net::CLIENT.of(Family::of(to.ip())));
                let answer = net.client.run_in(|| ask(Transport::Tcp, from, to, LIMIT)).unwrap();
                match name {
                    Some(name) => assert_eq!(answer.unwrap().name, name, "{to}"),
                    None => assert_eq!(answer.unwrap_err().kind(), io::ErrorKind::ConnectionRefused, "{to}"),
                }
            }
        }
    });
}

/// Chains choose among several numbers of endpoints: each endpoint of a Service gets an equal share in any of them.
#[test]
fn each_endpoint_has_its_share() {
    with_service(&[A, R], |net, cluster| {
        let others = [net::CLIENT, net::STRANGER, net::POD_B].map(|pod| (pod, R.1));
        for before in [&[A][..], &[&[A, R], &others[..]].concat()] {
            cluster.endpoints("web", before);
            cluster.settle();
            cluster.endpoints("web", &[A, R]);
            cluster.settle();
            for family in FAMILIES {
                let (from, to) = (Some(net::CLIENT.of(family)), Vip::ClusterIp.of(10, family));
                let name = |_| ask(Transport::Udp, from, to, LIMIT).unwrap().name;
                let names: Vec<String> = net.client.run_in(|| (0..300).map(name).collect()).unwrap();
                // Half of them, but for six standard deviations.
                let of_a = names.iter().filter(|name| *name == "a").count();
                assert!((98..=202).contains(&of_a), "{to}: {of_a} of 300, before {before:?}");
            }
        }
    });
}

#[test]
fn udp_flows_stay_while_their_endpoint_serves() {
    for mode in [Kind::Nftables, Kind::Iptables] {
        with_service_in(mode, &[A, R], |net, cluster| {
            flows_stay_while_their_endpoint_serves(net, cluster, || new_cluster(mode, &json!({})));
        });
    }
}

/// Meant differences from kube-proxy's nftables mode: `modes::nftables` lists them all.
#[test]
fn node_ports_empty_balancers_and_addresses_of_nobody() {
    with_service(&[A], |net, cluster| {
        let ranges = json!({ "loadBalancerSourceRanges": ["192.0.2.10/32", "2001:db8:1::10/128"] });
        cluster.publish("empty", 14, &ranges, &[]);
        cluster.settle();
        let asks = |who: &Netns, from: Option<IpAddr>, to| who.run_in(|| ask(Transport::Tcp, from, to, LIMIT)).unwrap();
        for (family, nobodys, mask) in [(Family::V4, "10.96.7.7", 32), (Family::V6, "fd00:96::707", 128)] {
            // All addresses of the node serve node ports, not only its primary ones.
            for address in net::NODE_ADDRESSES {
                let to = SocketAddr::new(address.of(family), node_port(10));
                assert_eq!(asks(&net.client, Some(net::CLIENT.of(family)), to).unwrap().name, "a", "{to}");
            }
            // Clients learn that endpoints are missing, with any source ranges; and that a cluster IP has no such port.
            let closed = SocketAddr::new(Vip::ClusterIp.of(10, family).ip(), 81);
            for to in [Vip::LoadBalancer.of(14, family), closed] {
                for source in [net::CLIENT, net::STRANGER] {
                    let error = asks(&net.client, Some(source.of(family)), to).unwrap_err();
                    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{to}: {error}");
                }
            }
            // An address in the network of cluster IPs that no Service has goes where routes lead.
            net.second_node.add_address(&format!("{nobodys}/{mask}"), "lo").unwrap();
            let to = SocketAddr::new(nobodys.parse().unwrap(), 80);
            let _server = Witness::start(&net.second_node, "elsewhere", &[(Transport::Tcp, to)]).unwrap();
            assert_eq!(asks(&net.node, None, to).unwrap().name, "elsewhere");
        }
    });
}

/// The kernel sends each client few refusals by ICMP in a second; the rest would wait.
fn everybody_is_refused(net: &Net, cluster: &mut Cluster) {
    net.node.write_sysctl("net/ipv4/icmp_ratelimit", "1000").unwrap();
    net.node.write_sysctl("net/ipv6/icmp/ratelimit", "1000").unwrap();
    cluster.settle();
    for to in everywhere() {
        for (who, from) in [(&net.client, Some(net::CLIENT.of(Family::of(to.ip())))), (&net.node, None)] {
            // iptables mode leaves the node's own packets to addresses elsewhere alone.
            if from.is_none() && cluster.proxier.mode() == Kind::Iptables && !net::is_nodes(to.ip()) {
                continue;
            }
            let begin = Instant::now();
            let asked = || (0..20).map(|_| ask(Transport::Tcp, from, to, LIMIT).unwrap_err().kind()).collect();
            let refused: BTreeSet<io::ErrorKind> = who.run_in(asked).unwrap();
            assert_eq!(refused, BTreeSet::from([io::ErrorKind::ConnectionRefused]), "{from:?} {to}");
            assert!(begin.elapsed() < LIMIT / 2, "{from:?} {to}: {:?}", begin.elapsed());
        }
    }
}

#[test]
fn many_clients_of_a_service_without_endpoints_are_refused_at_once() {
    for mode in [Kind::Nftables, Kind::Iptables] {
        with_service_in(mode, &[], everybody_is_refused);
    }
}

/// A pod of another node, an endpoint on a third node that can answer it directly, and the node between them. At a node port of policy `Local`
/// the pod is a client outside; pods of this node get any endpoint, and keep their source.
fn pods_of_other_nodes_are_clients_outside(net: &Net, cluster: &mut Cluster) {
    let third = net::Pair { v4: "10.244.3.10", v6: "fd00:244:3::10" };
    veth_pair((&net.second_node, "direct"), (&net.client, "direct")).unwrap();
    let mut lines = net::Lines::default();
    lines.address(third, (32, 128), "lo").link_route(net::POD_R, "direct");
    net::batch(&net.client, &lines.0);
    let mut lines = net::Lines::default();
    lines.link_route(third, "direct");
    net::batch(&net.second_node, &lines.0);
    let mut lines = net::Lines::default();
    for (network, via) in [("10.244.3.0/24", net::CLIENT.v4), ("fd00:244:3::/48", net::CLIENT.v6)] {
        lines.0.push(format!("route add {network} via {via}"));
    }
    net::batch(&net.node, &lines.0);
    let at = |transport| FAMILIES.map(|family| (transport, SocketAddr::new(third.of(family), net::POD_PORT)));
    let places = [Transport::Tcp, Transport::Udp].map(at);
    let _server = Witness::start(&net.client, "t", places.as_flattened()).unwrap();
    let relays = cluster.proxier.mode() == Kind::Userspace;
    let short = Duration::from_millis(300);
    // iptables mode does as kube-proxy's, which gives a pod of another node any endpoint.
    let both: &[Pod] = if cluster.proxier.mode() == Kind::Iptables { &[A] } else { &[(third, "node-3"), A] };
    for (pods, outside) in [(&[(third, "node-3")][..], None), (both, Some("a"))] {
        cluster.publish("web", 10, &json!({ "externalTrafficPolicy": "Local" }), pods);
        cluster.settle();
        // A chance of one in two would show in several.
        let each = [Transport::Tcp, Transport::Udp].into_iter().cycle().take(if pods.len() > 1 { 16 } else { 2 });
        for (family, transport) in FAMILIES.into_iter().flat_map(|family| each.clone().map(move |of| (family, of))) {
            let to = SocketAddr::new(net::NODE_UPLINK.of(family), node_port(10));
            let (other, own) = (net::POD_R.of(family), net::POD_B.of(family));
            let limit = if outside.is_some() { LIMIT } else { short };
            let answer = net.second_node.run_in(|| ask(transport, Some(other), to, limit)).unwrap();
            let got = answer.as_ref().ok().map(|answer| (answer.name.as_str(), answer.peer.ip() == other));
            assert_eq!(got, outside.map(|name| (name, !relays)), "{transport:?} {to}: {answer:?}");
            for to in [to, Vip::LoadBalancer.of(10, family)] {
                let answer = net.pod_b.run_in(|| ask(transport, Some(own), to, LIMIT)).unwrap().unwrap();
                let is_it = pods.len() > 1 || answer.name == outside.unwrap_or("t");
                assert!(is_it && (answer.peer.ip() == own) != relays, "{transport:?} {to}: {answer:?}");
            }
        }
    }
}

#[test]
fn pods_of_other_nodes_are_clients_outside_in_each_mode() {
    for mode in [Kind::Nftables, Kind::Iptables, Kind::Userspace] {
        with_service_in(mode, &[], pods_of_other_nodes_are_clients_outside);
    }
}

/// The Service's slices with a weight for each endpoint.
fn weighted(pods: &[(Pod, u16)]) -> [EndpointSliceObject; 2] {
    let all: Vec<Pod> = pods.iter().map(|(pod, _)| *pod).collect();
    let mut slices = objects::slices("web", &all);
    for (family, slice) in FAMILIES.into_iter().zip(&mut slices) {
        let each = pods.iter().map(|((pod, _), weight)| format!("{}={weight}", pod.of(family)));
        let text = each.collect::<Vec<_>>().join(", ");
        slice.metadata.annotations.insert("proxier/weights".into(), text);
    }
    slices
}

#[test]
fn trace_says_what_becomes_of_connections_where_endpoints_have_weight_0() {
    with_service(&[A, R], |net, cluster| {
        let local = json!({ "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local" });
        let ranges = json!({ "loadBalancerSourceRanges": ["198.51.100.0/24", "2001:db8:2::/48"] });
        let anybody = json!({});
        for (of_a, of_r, spec) in [
            (0, 1, &local),
            (1, 0, &local),
            (0, 0, &local),
            (0, 1, &anybody),
            (0, 0, &anybody),
            (0, 1, &ranges),
            (0, 0, &ranges),
        ] {
            cluster.service(&objects::service("web", 10, spec));
            for slice in weighted(&[(A, of_a), (R, of_r)]) {
                cluster.slice(&slice);
            }
            cluster.settle();
            let clients = [(&net.client, net::CLIENT), (&net.pod_b, net::POD_B)];
            for ((who, source), family, vip) in clients.into_iter().flat_map(|client| {
                FAMILIES.into_iter().flat_map(move |family| Vip::ALL.map(|vip| (client, family, vip)))
            }) {
                let (source, to) = (source.of(family), vip.of(10, family));
                let packet = Packet::new(source, FrontendKey::new(Protocol::Tcp, to.ip(), to.port()));
                let known = (cluster.proxier.desired(), cluster.proxier.facts());
                let options = iptables::IptablesOptions::default();
                let traced = trace(Kind::Nftables, cluster.proxier.store(), known, &packet, options);
                let limit = if traced.verdict == Verdict::Dropped { Duration::from_millis(300) } else { LIMIT };
                let answer = who.run_in(|| ask(Transport::Tcp, Some(source), to, limit)).unwrap();
                let is_it = match (&traced.verdict, &answer) {
                    (Verdict::Endpoints(reached), Ok(answer)) => {
                        let pod = if answer.name == "a" { net::POD_A } else { net::POD_R };
                        reached.iter().any(|one| one.endpoint.address == pod.of(family))
                    }
                    (Verdict::Rejected, Err(error)) => error.kind() == io::ErrorKind::ConnectionRefused,
                    (Verdict::Dropped, Err(error)) => error.kind() == io::ErrorKind::TimedOut,
                    _ => false,
                };
                assert!(is_it, "weights {of_a}, {of_r}, {spec}: {source} to {to}: {answer:?}, but {traced:?}");
            }
        }
    });
}

/// Session affinity: a changed weight does not move clients, unless it is 0.
#[test]
fn clients_stay_when_a_weight_changes() {
    with_service(&[], |net, cluster| {
        cluster.service(&objects::service("web", 10, &json!({ "sessionAffinity": "ClientIP" })));
        let mut lines = net::Lines::default();
        for number in 100..160 {
            lines.0.push(format!("addr add 192.0.2.{number}/24 dev eth0"));
            lines.0.push(format!("addr add 2001:db8:1::{number:x}/64 dev eth0 nodad"));
        }
        net::batch(&net.client, &lines.0);
        let from = |family, number: u8| match family {
            Family::V4 => IpAddr::from([192, 0, 2, number]),
            Family::V6 => format!("2001:db8:1::{number:x}").parse().unwrap(),
        };
        let names = |cluster: &mut Cluster, weight: u16| -> [Vec<String>; 2] {
            for slice in weighted(&[(A, weight), (R, 1)]) {
                cluster.slice(&slice);
            }
            cluster.settle();
            FAMILIES.map(|family| {
                let to = Vip::ClusterIp.of(10, family);
                let name = |number| ask(Transport::Tcp, Some(from(family, number)), to, LIMIT).unwrap().name;
                net.client.run_in(|| (100..160).map(name).collect()).unwrap()
            })
        };
        let first = names(cluster, 3);
        for names in &first {
            let at_a = names.iter().filter(|name| *name == "a").count();
            // Three of four, but for five standard deviations.
            assert!((28..60).contains(&at_a), "{at_a} of 60");
        }
        for weight in [1, 200, 2, 65_535] {
            assert_eq!(names(cluster, weight), first, "{weight}");
        }
        assert_eq!(names(cluster, 0), [["r"; 60]; 2]);
    });
}

/// A load balancer's source ranges and its endpoints are in one table: while that is gone, no connection gets through.
#[test]
fn a_flush_of_the_rule_set_opens_nothing() {
    with_service(&[A], |net, cluster| {
        let ranges = json!({ "loadBalancerSourceRanges": ["192.0.2.10/32", "2001:db8:1::10/128"] });
        cluster.publish("web", 10, &ranges, &[A]);
        cluster.settle();
        let is_over = Arc::new(AtomicBool::new(false));
        let strangers = FAMILIES.map(|family| {
            let (is_over, to) = (Arc::clone(&is_over), Vip::LoadBalancer.of(10, family));
            let tries = move || {
                let (mut tries, mut answers) = (0, Vec::new());
                while !is_over.load(Ordering::Relaxed) {
                    let from = Some(net::STRANGER.of(family));
                    answers.extend(ask(Transport::Tcp, from, to, Duration::from_millis(20)));
                    tries += 1;
                }
                (tries, answers)
            };
            net.client.spawn(tries).unwrap()
        });
        for _ in 0..50 {
            net.node.run_in(|| oracle::run("nft", &["flush ruleset"], None)).unwrap().unwrap();
            std::thread::sleep(Duration::from_millis(20));
            cluster.proxier.request_full(cluster.now());
            cluster.settle();
            std::thread::sleep(Duration::from_millis(20));
        }
        is_over.store(true, Ordering::Relaxed);
        for stranger in strangers {
            let (tries, answers) = stranger.join().unwrap();
            assert!(tries > 20 && answers.is_empty(), "{tries} tries: {answers:?}");
        }
        for family in FAMILIES {
            let (from, to) = (Some(net::CLIENT.of(family)), Vip::LoadBalancer.of(10, family));
            assert_eq!(net.client.run_in(|| ask(Transport::Tcp, from, to, LIMIT)).unwrap().unwrap().name, "a");
        }
    });
}

/// A cluster IP answers no pings: they are refused at once, and the node's own addresses answer.
#[test]
fn pings_to_a_cluster_ip_are_refused() {
    with_service(&[A, R], |net, _| {
        net.client.write_sysctl("net/ipv4/ping_group_range", "0 0").unwrap();
        for family in FAMILIES {
            let ping = |to| net.client.run_in(|| ping(to, LIMIT)).unwrap();
            ping(net::NODE.of(family)).unwrap();
            let error = ping(Vip::ClusterIp.of(10, family).ip()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{family:?}: {error}");
        }
    });
}

/// Whether a program at this loopback address of the node gets a client's datagram to there.
fn is_reached(net: &Net, program: &UdpSocket) -> bool {
    let (from, to) = (net::CLIENT.of(Family::V4), program.local_addr().unwrap());
    net.client.run_in(|| UdpSocket::bind((from, 0)).unwrap().send_to(b"?", to)).unwrap().unwrap();
    program.recv(&mut [0]).is_ok()
}

/// Node ports at loopback addresses that the configuration names. Neighbours reach neither them nor programs that listen only there.
fn node_ports_on_localhost(mode: Kind) {
    let localhost = json!({ "nodePortAddresses": ["localhost"] });
    with_service_by((mode, &localhost), &[], &[A], |net, cluster| {
        let of = |family: Family| SocketAddr::new(family.localhost(), node_port(10));
        let asked = |transport, to| net.node.run_in(|| ask(transport, None, to, LIMIT)).unwrap();
        let is_relay = mode == Kind::Userspace;
        let served: &[Family] = if mode == Kind::Iptables { &[Family::V4] } else { &FAMILIES };
        let transports: &[Transport] =
            if mode == Kind::Nftables { &[Transport::Tcp] } else { &[Transport::Tcp, Transport::Udp] };
        for (pods, name, policy) in [(&[R][..], "r", "Local"), (&[R], "r", "Cluster"), (&[A], "a", "Cluster")] {
            cluster.publish("web", 10, &json!({ "externalTrafficPolicy": policy }), pods);
            cluster.settle();
            for (transport, family) in transports.iter().flat_map(|of| served.iter().map(move |to| (*of, *to))) {
                let answer = asked(transport, of(family)).unwrap();
                assert_eq!(answer.name, name, "{transport:?} {family} {policy}");
                assert!(net::is_nodes(answer.peer.ip()), "{transport:?} {family} {policy}: {answer:?}");
            }
        }
        for family in FAMILIES {
            // Other addresses have no listener, and some the kernel cannot send from.
            let elsewhere = SocketAddr::new(net::NODE.of(family), node_port(10));
            let unserved = [elsewhere].into_iter().chain((!served.contains(&family)).then(|| of(family)));
            for to in unserved {
                assert_eq!(asked(Transport::Tcp, to).unwrap_err().kind(), io::ErrorKind::ConnectionRefused, "{to}");
            }
            if mode == Kind::Nftables {
                // Refused even where a program of the node listens.
                let own = net.node.run_in(|| UdpSocket::bind(of(family))).unwrap().unwrap();
                assert!(asked(Transport::Udp, of(family)).is_err(), "{family}");
                own.set_nonblocking(true).unwrap();
                assert_eq!(own.recv(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock, "{family}");
            }
        }
        cluster.publish("web", 10, &json!({}), &[]);
        cluster.settle();
        let error = asked(Transport::Tcp, of(Family::V4)).unwrap_err();
        // Userspace mode accepts a connection before it looks for an endpoint.
        let ends = [io::ErrorKind::ConnectionRefused, io::ErrorKind::ConnectionReset];
        assert!(ends[..=usize::from(is_relay)].contains(&error.kind()), "{error:?}");

        let routed = net.node.run_in(|| std::fs::read_to_string("/proc/sys/net/ipv4/conf/all/route_localnet"));
        assert_eq!(routed.unwrap().unwrap().trim(), if mode == Kind::Iptables { "1" } else { "0" });
        cluster.publish("web", 10, &json!({}), &[A]);
        cluster.settle();
        net.client.write_sysctl("net/ipv4/conf/all/route_localnet", "1").unwrap();
        let lines = [
            "route del table local 127.0.0.0/8 dev lo".to_owned(),
            "route del table local 127.0.0.1 dev lo".to_owned(),
            format!("route add 127.0.0.1 via {}", net::NODE.v4),
        ];
        net::batch(&net.client, &lines);
        let private = net.node.run_in(|| UdpSocket::bind((Family::V4.localhost(), 7_000))).unwrap().unwrap();
        private.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        assert!(!is_reached(net, &private));
        if mode == Kind::Iptables {
            net.node.run_in(|| oracle::run("iptables-nft", &["-F", "KUBE-FIREWALL"], None)).unwrap().unwrap();
            assert!(is_reached(net, &private), "the guard is what keeps it off");
            // After a cleanup too: the kubelet's chain stays and goes on guarding.
            cluster.pass_in(Duration::from_secs(3_600)).unwrap();
            assert!(!is_reached(net, &private));
            net.node.run_in(|| cluster.clean_up()).unwrap();
            let routed = net.node.run_in(|| std::fs::read_to_string("/proc/sys/net/ipv4/conf/all/route_localnet"));
            assert_eq!(routed.unwrap().unwrap().trim(), "1");
            assert!(!is_reached(net, &private));
        }
    });
}

#[test]
fn node_ports_on_localhost_in_each_mode() {
    [Kind::Nftables, Kind::Iptables, Kind::Userspace].into_iter().for_each(node_ports_on_localhost);
}

/// Another program has a port, endpoints change, packets of UDP are counted, and the Service goes.
#[test]
fn node_ports_on_localhost_follow_their_service_in_nftables_mode() {
    let localhost = json!({ "nodePortAddresses": ["localhost"] });
    with_service_by((Kind::Nftables, &localhost), &[], &[A], |net, cluster| {
        let of = |family: Family| SocketAddr::new(family.localhost(), node_port(11));
        let asked = |transport, to| net.node.run_in(|| ask(transport, None, to, LIMIT)).unwrap();
        let other = net.node.run_in(|| std::net::TcpListener::bind(of(Family::V4))).unwrap().unwrap();
        cluster.publish("late", 11, &json!({ "sessionAffinity": "ClientIP" }), &[A, R]);
        let full = |cluster: &mut Cluster| {
            cluster.proxier.request_full(cluster.now());
            cluster.pass().unwrap()
        };
        let report = full(cluster);
        assert!(!report.has_failed(), "{report:#?}");
        let failures: Vec<String> = report.applied.failures.iter().map(ToString::to_string).collect();
        assert!(failures.len() == 1 && failures[0].contains(&of(Family::V4).to_string()), "{failures:?}");
        assert!(asked(Transport::Tcp, of(Family::V6)).is_ok());
        drop(other);
        // A program that another test starts holds copies of this process's sockets until it runs.
        while net.node.run_in(|| std::net::TcpListener::bind(of(Family::V4))).unwrap().is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let report = full(cluster);
        assert!(report.is_done(), "{report:#?}");
        // A client stays with its endpoint while that is there.
        for family in FAMILIES {
            let names: Vec<String> = (0..8).map(|_| asked(Transport::Tcp, of(family)).unwrap().name).collect();
            assert!(names.iter().all(|name| *name == names[0]), "{family}: {names:?}");
        }
        for (pod, name) in [(A, "a"), (R, "r")] {
            cluster.publish("late", 11, &json!({ "sessionAffinity": "ClientIP" }), &[pod]);
            cluster.settle();
            for family in FAMILIES {
                assert_eq!(asked(Transport::Tcp, of(family)).unwrap().name, name, "{family}");
            }
        }
        assert!(asked(Transport::Udp, of(Family::V6)).is_err());
        full(cluster);
        let counts = cluster.proxier.localhost_node_ports().unwrap();
        assert!(counts.rejected[&(Family::V6, Protocol::Udp)] > 0, "{counts:?}");
        assert_eq!(counts.creation_failures.values().sum::<u64>(), 1, "{counts:?}");
        cluster.proxier.delete_service(&key("late"), cluster.now());
        cluster.settle();
        for family in FAMILIES {
            let error = asked(Transport::Tcp, of(family)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{family}");
        }
    });
}

/// Packets seen by another program's chain, after everything that drops.
fn seen_by_chains() -> u64 {
    let listed = oracle::run("nft", &["list", "chain", "inet", "somebody", "watch"], None).unwrap().stdout;
    listed.split_once("packets ").and_then(|(_, rest)| rest.split(' ').next()).unwrap().parse().unwrap()
}

/// The devices of the flow table, as nft lists them.
fn fast_devices() -> String {
    let listed = oracle::run("nft", &["list", "flowtables"], None).unwrap().stdout;
    listed.lines().find(|line| line.contains("devices = ")).unwrap_or_default().trim().to_owned()
}

/// Established connections go past all chains, in both families, and come back to them when they end; devices come and go.
fn connections_take_the_fast_path(mode: Kind) {
    let config = json!({ "fastPath": { "interfaces": "all", "minPackets": 6 } });
    with_service_by((mode, &config), &[Need::FlowTables, Need::IptablesNft], &[A], |net, cluster| {
        let chain = "add table inet somebody; add chain inet somebody watch { type filter hook forward priority 50; }; \
                     add rule inet somebody watch meta l4proto { tcp, udp } counter";
        oracle::run("nft", &[chain], None).unwrap();
        for transport in [Transport::Udp, Transport::Tcp] {
            let mut connections = open(net, transport);
            let mut talk = |rounds: u32| {
                let before = seen_by_chains();
                for (to, connection, held) in &mut connections {
                    for _ in 0..rounds {
                        let answer = connection.ask().unwrap_or_else(|error| panic!("{transport:?} {to}: {error}"));
                        assert_eq!(answer.name, *held, "{to}");
                    }
                }
                seen_by_chains() - before
            };
            talk(8);
            let conntrack = |family| oracle::run("conntrack", &["-L", "-f", family], None).unwrap().stdout;
            for family in ["ipv4", "ipv6"] {
                assert!(conntrack(family).contains("[OFFLOAD]"), "{}", conntrack(family));
            }
            let late = talk(10);
            assert!(late < 30, "{transport:?}: chains saw {late} packets of some thousand");
            // Those that end do so for both ends, and new ones begin.
            drop(connections);
            open(net, transport);
        }
        let config_of = cluster.proxier.facts().config().clone();
        let counted = fast_path::connections(&config_of, cluster.ports().tables);
        assert!(counted.clone().is_ok_and(|all| all.is_some_and(|all| all >= 96)), "{counted:?}");

        // Another process finds nothing to write.
        let mut successor = new_cluster(mode, &config);
        successor.publish("web", 10, &json!({}), &[A]);
        let reports = successor.settle();
        assert_eq!(reports.iter().map(Report::writes).sum::<u64>(), 0, "{reports:#?}");

        // A pod comes, and goes.
        oracle::run("ip", &["link", "add", "pod-c", "type", "veth", "peer", "name", "c-side"], None).unwrap();
        let settle_host = |cluster: &mut Cluster| {
            cluster.proxier.host_changed(cluster.now());
            cluster.settle();
        };
        settle_host(cluster);
        assert!(fast_devices().contains("pod-c") && fast_devices().contains("eth0"), "{}", fast_devices());
        oracle::run("ip", &["link", "del", "pod-c"], None).unwrap();
        settle_host(cluster);
        assert!(!fast_devices().contains("pod-c") && fast_devices().contains("pod-a"), "{}", fast_devices());

        // Somebody flushes everything: the next full pass puts it back.
        oracle::run("nft", &["delete", "table", "inet", "proxier-fast-path"], None).unwrap();
        cluster.pass_in(Duration::from_secs(3_600)).unwrap();
        assert!(fast_devices().contains("eth0"));

        // A proxy without the setting takes it away, and serves.
        let mut plain = new_cluster(mode, &json!({}));
        plain.publish("web", 10, &json!({}), &[A]);
        plain.settle();
        assert_eq!(fast_devices(), "");
        open(net, Transport::Tcp);
    });
}

#[test]
fn connections_take_the_fast_path_in_each_mode_that_has_one() {
    [Kind::Nftables, Kind::Iptables].into_iter().for_each(connections_take_the_fast_path);
}

/// Devices without hardware offload leave flows to this host, next to another program's flow table. UDP flows of a
/// removed endpoint end.
#[test]
fn the_fast_path_without_hardware_and_without_an_endpoint() {
    with_service_by((Kind::Nftables, &json!({})), &[Need::FlowTables], &[A], |net, cluster| {
        let theirs =
            "add table inet theirs; add flowtable inet theirs f { hook ingress priority 0; devices = { eth0 }; }";
        oracle::run("nft", &[theirs], None).unwrap();
        let fast = json!({ "fastPath": { "interfaces": ["eth*", "pod-a"], "hardware": true } });
        *cluster = new_cluster(Kind::Nftables, &fast);
        cluster.publish("web", 10, &json!({}), &[A]);
        let reports = cluster.settle();
        let lacks: Vec<String> = reports.iter().flat_map(|of| &of.applied.lacks).map(ToString::to_string).collect();
        assert!(lacks.len() == 1 && lacks[0].starts_with("fastPath.hardware: not all devices take flows"), "{lacks:?}");
        let listed = oracle::run("nft", &["list", "table", "inet", "proxier-fast-path"], None).unwrap().stdout;
        assert!(["eth0", "eth1", "pod-a"].iter().all(|device| listed.contains(device)), "{listed}");
        assert!(!listed.contains("pod-b") && !listed.contains("offload"), "{listed}");
        let mut flows = open(net, Transport::Udp);
        for (_, flow, _) in &mut flows {
            (0..4).for_each(|_| drop(flow.ask().unwrap()));
        }
        cluster.endpoints("web", &[R]);
        cluster.settle();
        // Flow tables look for deleted connections about once a second (nf_flow_offload_work_gc).
        std::thread::sleep(Duration::from_secs(4));
        for (to, flow, _) in &mut flows {
            assert_eq!(flow.ask().unwrap_or_else(|error| panic!("{to}: {error}")).name, "r", "{to}");
        }
        let again = cluster.pass_in(Duration::from_secs(3_600)).unwrap();
        assert!(again.writes() == 0 && again.applied.lacks.is_empty(), "{again:#?}");
    });
}

/// Connections on the fast path to an endpoint that leaves go on for the drain time, and end then.
#[test]
fn the_drain_time_ends_on_the_fast_path() {
    let config = json!({ "fastPath": { "interfaces": "all" } });
    with_service_by((Kind::Nftables, &config), &[Need::FlowTables], &[A], |net, cluster| {
        let mut service = objects::service("web", 10, &json!({}));
        service.metadata.annotations.insert("proxier/drain-seconds".into(), "30".into());
        cluster.service(&service);
        cluster.endpoints("web", &[A, R]);
        cluster.settle();
        let mut connections = open(net, Transport::Tcp);
        let mut ask = |rounds: u32| {
            let mut ended = BTreeSet::new();
            for (to, connection, held) in &mut connections {
                let answers = (0..rounds).map(|_| connection.ask().map(|answer| answer.name));
                match answers.collect::<io::Result<BTreeSet<String>>>() {
                    Ok(names) => assert_eq!(names, BTreeSet::from([held.clone()]), "{to}"),
                    Err(_ended) => drop(ended.insert(held.clone())),
                }
            }
            ended
        };
        assert_eq!(ask(4), BTreeSet::new());
        let listed = oracle::run("conntrack", &["-L", "-p", "tcp"], None).unwrap().stdout;
        assert!(listed.contains("[OFFLOAD]"), "{listed}");
        cluster.endpoints("web", &[R]);
        cluster.settle();
        assert_eq!(ask(4), BTreeSet::new());
        let report = cluster.pass_in(Duration::from_secs(31)).unwrap();
        assert!(report.applied.flows.v4 > 0 && report.applied.flows.v6 > 0, "{report:#?}");
        // Flow tables look for deleted connections about once a second (nf_flow_offload_work_gc).
        std::thread::sleep(Duration::from_secs(4));
        assert_eq!(ask(1), BTreeSet::from(["a".to_owned()]));
        assert_eq!(ask(1), BTreeSet::from(["a".to_owned()]));
    });
}
