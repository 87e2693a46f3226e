//! Packets through IPVS mode, once with iptables rules and ipsets, and once with an nf_tables table instead, where no
//! iptables program is installed. Clients see no difference. A node changes from one to the other while connections
//! last.

use std::net::SocketAddr;

use iptables::Backend;
use proxier_core::net::Family;
use proxier_core::plan::step::Part;
use serde_json::{Value, json};
use testkit::witness::{Conversation, Transport, Witness};
use testkit::{Need, kernel_test, oracle};

use crate::traffic::clients::{LIMIT, Peer, Surprises, daemon_at, every};
use crate::traffic::cluster::{Cluster, key, options};
use crate::traffic::net::{self, FAMILIES, From, Net};
use crate::traffic::objects::{A, B, R, Vip, node_port};
use crate::traffic::{self, TABLE_NEEDS};

fn nft() -> Value {
    json!({ "ipvs": { "rules": "nftables" } })
}

/// Services of every kind.
fn publish(cluster: &mut Cluster) {
    let local =
        json!({ "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local", "healthCheckNodePort": 32_000 });
    cluster.publish("web", 10, &json!({}), &[A, R]);
    cluster.publish("local", 11, &local, &[A, R]);
    cluster.publish("self", 12, &json!({}), &[B]);
    cluster.publish("nobody", 13, &json!({}), &[]);
    let outside = ["192.0.2.10/32", "2001:db8:1::10/128"];
    // One range contains the other.
    let with_node = ["192.0.2.0/28", "192.0.2.0/29", "2001:db8:1::/123", "2001:db8:1::/124"];
    cluster.publish("outside", 14, &json!({ "loadBalancerSourceRanges": outside }), &[A, R]);
    cluster.publish("with-node", 15, &json!({ "loadBalancerSourceRanges": with_node }), &[A, R]);
    cluster.publish("everybody", 16, &json!({ "loadBalancerSourceRanges": ["0.0.0.0/0", "::/0"] }), &[A, R]);
}

/// Checks the clients' view, which no rule back end changes: endpoints see the client or the node, source ranges hold, and no other program that
/// listens on the node answers.
fn everything_is_as_it_should_be(net: &Net) {
    let mut surprises = Surprises::default();
    let _daemon = Witness::start(&net.node, "daemon", &daemon_at(9100)).unwrap();
    let _same_port = Witness::start(&net.node, "daemon", &daemon_at(80)).unwrap();
    let _same_node_port = Witness::start(&net.node, "daemon", &daemon_at(node_port(13))).unwrap();
    for (family, transport) in every() {
        for (vip, from) in Vip::ALL.into_iter().flat_map(|vip| From::ALL.map(|from| (vip, from))) {
            let of_web = match (vip, from) {
                (Vip::ClusterIp, From::PodB) => Peer::Kept,
                _ => Peer::Masqueraded,
            };
            surprises.served(net, from, transport, vip.of(10, family), &["a", "r"], of_web);
            let of_local = match (vip, from) {
                (Vip::ClusterIp, From::Client | From::Node) => Peer::Masqueraded,
                _ => Peer::Kept,
            };
            surprises.served(net, from, transport, vip.of(11, family), &["a"], of_local);
            // SCTP takes an unreachable port for a hint, and keeps trying.
            if transport == Transport::Sctp {
                surprises.silent(net, from, transport, vip.of(13, family));
            } else {
                surprises.refused(net, from, transport, vip.of(13, family));
            }
            if vip != Vip::NodePort {
                let elsewhere = SocketAddr::new(vip.of(10, family).ip(), 9100);
                if transport == Transport::Tcp {
                    surprises.refused(net, from, transport, elsewhere);
                } else {
                    surprises.silent(net, from, transport, elsewhere);
                }
            }
        }
        for vip in Vip::ALL {
            surprises.served(net, From::PodB, transport, vip.of(12, family), &["b"], Peer::Masqueraded);
        }
        let balancer = |number| Vip::LoadBalancer.of(number, family);
        for number in [14, 15, 16] {
            surprises.served(net, From::Client, transport, balancer(number), &["a", "r"], Peer::Masqueraded);
            let cluster_ip = Vip::ClusterIp.of(number, family);
            surprises.served(net, From::PodB, transport, cluster_ip, &["a", "r"], Peer::Kept);
        }
        for number in [14, 15] {
            surprises.silent_to(&net.client, Some(net::STRANGER.of(family)), transport, balancer(number));
            surprises.silent(net, From::PodB, transport, balancer(number));
        }
        for (from, number) in [(From::Node, 15), (From::Node, 16), (From::PodB, 16)] {
            surprises.served(net, from, transport, balancer(number), &["a", "r"], Peer::Masqueraded);
        }
        surprises.silent(net, From::Node, transport, balancer(14));
        let itself = SocketAddr::new(net::NODE.of(family), 9100);
        let answer = net.client.run_in(|| testkit::witness::ask(transport, None, itself, LIMIT)).unwrap().unwrap();
        assert_eq!(answer.name, "daemon");
    }
    surprises.none();
}

fn by_iptables(backend: Backend) -> Cluster {
    Cluster::with(options(&json!({ "ipvs": { "rules": "iptables" } })), backend)
}

fn everything_is_as_it_should_be_with(variant: &str, needs: &[Need], make: fn() -> Cluster) {
    kernel_test(needs, || {
        println!("{variant}");
        let net = Net::new();
        let _pods = net.serve();
        let mut cluster = make();
        publish(&mut cluster);
        cluster.settle();
        everything_is_as_it_should_be(&net);
        // A new process finds nothing to change.
        let mut again = make();
        publish(&mut again);
        let reports = again.settle();
        // There may be flows of UDP to forget, to destinations without an endpoint.
        let done = reports.iter().flat_map(|report| report.applied.done.keys());
        let written: Vec<_> = done.filter(|(part, _)| *part != Part::Flows).collect();
        assert!(written.is_empty(), "{variant}: {written:?}");
    });
}

#[test]
fn clients_experience_the_same_whatever_guards_virtual_servers() {
    let legacy = [&traffic::NEEDS[..], &[Need::IptablesLegacy]].concat();
    everything_is_as_it_should_be_with("nf_tables", TABLE_NEEDS, || Cluster::without_programs(options(&nft())));
    everything_is_as_it_should_be_with("iptables-nft", &traffic::NEEDS, || by_iptables(Backend::NfTables));
    everything_is_as_it_should_be_with("iptables-legacy", &legacy, || by_iptables(Backend::Legacy));
}

/// Host ports of CNI plugins match every address of the node, and addresses of Services are addresses of the node.
#[test]
fn host_ports_of_others_take_no_connection_to_a_service() {
    kernel_test(TABLE_NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let theirs = format!(
            "table ip theirs {{\n chain pre {{\n type nat hook prerouting priority dstnat; policy accept;\n \
             fib daddr type local tcp dport 80 dnat to {}:8080\n }}\n}}\n",
            net::POD_B.v4
        );
        oracle::run("nft", &["-f", "-"], Some(&theirs)).unwrap();
        let mut cluster = Cluster::without_programs(options(&nft()));
        publish(&mut cluster);
        cluster.settle();
        let mut surprises = Surprises::default();
        for vip in [Vip::ClusterIp, Vip::ExternalIp, Vip::LoadBalancer] {
            let to = vip.of(10, Family::V4);
            surprises.served(&net, From::Client, Transport::Tcp, to, &["a", "r"], Peer::Masqueraded);
        }
        // The plugin's rule works for the node's own address.
        let itself = SocketAddr::new(net::NODE.of(Family::V4), 80);
        surprises.served(&net, From::Client, Transport::Tcp, itself, &["b"], Peer::Kept);
        surprises.none();
    });
}

#[test]
fn connections_last_while_a_node_changes_from_one_to_the_other() {
    kernel_test(&traffic::NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let mut cluster = by_iptables(Backend::NfTables);
        publish(&mut cluster);
        cluster.settle();
        everything_is_as_it_should_be(&net);
        let open = |family, vip: Vip| {
            let from = Some(net::CLIENT.of(family));
            net.client.run_in(|| Conversation::open(Transport::Tcp, from, vip.of(10, family), LIMIT)).unwrap().unwrap()
        };
        let mut long: Vec<Conversation> =
            FAMILIES.into_iter().flat_map(|family| Vip::ALL.map(|vip| open(family, vip))).collect();
        let held: Vec<String> = long.iter_mut().map(|long| long.ask().unwrap().name).collect();
        let rules = || oracle::run("iptables-nft-save", &[], None).unwrap().stdout.contains("KUBE-");
        let sets = || !oracle::ipset_save().unwrap().is_empty();
        let table = || oracle::run("nft", &["list", "tables"], None).unwrap().stdout.contains("proxier-ipvs");
        for by in ["nftables", "iptables"] {
            let mut next = Cluster::new(options(&json!({ "ipvs": { "rules": by } })));
            publish(&mut next);
            next.settle();
            assert!(rules() && sets() && table(), "{by}: both stand");
            everything_is_as_it_should_be(&net);
            next.clean_up_after_others();
            next.settle();
            assert_eq!((rules(), sets(), table()), (by == "iptables", by == "iptables", by == "nftables"));
            everything_is_as_it_should_be(&net);
            for (long, held) in long.iter_mut().zip(&held) {
                assert_eq!(long.ask().unwrap().name, *held, "{by}");
            }
        }
    });
}

/// Source ranges follow at once, and a Service that goes takes its guard along.
#[test]
fn source_ranges_change_in_place() {
    kernel_test(TABLE_NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let mut cluster = Cluster::without_programs(options(&nft()));
        publish(&mut cluster);
        cluster.settle();
        cluster.publish("outside", 14, &json!({ "loadBalancerSourceRanges": ["192.0.2.16/28"] }), &[A, R]);
        cluster.settle();
        let mut surprises = Surprises::default();
        let to = Vip::LoadBalancer.of(14, Family::V4);
        let stranger = Some(net::STRANGER.of(Family::V4));
        let ask = |from| net.client.run_in(|| testkit::witness::ask(Transport::Tcp, from, to, LIMIT)).unwrap();
        assert!(["a", "r"].contains(&&*ask(stranger).unwrap().name));
        surprises.silent(&net, From::Client, Transport::Tcp, to);
        surprises.none();
        cluster.proxier.delete_service(&key("outside"), cluster.now());
        cluster.settle();
        let table = oracle::run("nft", &["list", "table", "ip", "proxier-ipvs"], None).unwrap();
        assert!(!table.stdout.contains("203.0.113.114"), "{}", table.stdout);
    });
}
