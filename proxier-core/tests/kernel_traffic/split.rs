//! Packets to Services with `externalTrafficPolicy: Local` whose endpoints are split by firewall marks. Clients outside reach local pods
//! and keep their address; pods and the node reach all. Connections last while that is switched on and off.

use std::time::Duration;

use proxier_core::net::Family;
use proxier_core::plan::step::Part;
use serde_json::{Value, json};
use testkit::witness::{Conversation, Transport};
use testkit::{kernel_test, oracle};

use crate::traffic::TABLE_NEEDS as NEEDS;
use crate::traffic::clients::{LIMIT, Peer, Surprises, every};
use crate::traffic::cluster::{Cluster, options};
use crate::traffic::net::{self, FAMILIES, From, Net};
use crate::traffic::objects::{A, B, R, Vip};

const EXTERNAL: [Vip; 3] = [Vip::ExternalIp, Vip::LoadBalancer, Vip::NodePort];

fn split(on: bool) -> Value {
    json!({ "ipvs": { "rules": "nftables", "markSplit": on } })
}

fn local() -> Value {
    json!({ "externalTrafficPolicy": "Local" })
}

fn publish(cluster: &mut Cluster) {
    let ranges = json!({ "externalTrafficPolicy": "Local", "loadBalancerSourceRanges": ["192.0.2.10/32", "2001:db8:1::10/128"] });
    cluster.publish("both", 10, &local(), &[A, R]);
    cluster.publish("elsewhere", 11, &local(), &[R]);
    cluster.publish("cluster", 12, &json!({}), &[A, R]);
    cluster.publish(
        "inside",
        13,
        &json!({ "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local" }),
        &[B, R],
    );
    cluster.publish("ranges", 14, &ranges, &[A, R]);
    cluster.publish("nobody", 15, &local(), &[]);
}

fn serving(on: bool) -> Cluster {
    let mut cluster = Cluster::without_programs(options(&split(on)));
    publish(&mut cluster);
    cluster.settle();
    cluster
}

/// Every kind of client at every kind of address.
fn everyone_gets_their_list(net: &Net) {
    let mut surprises = Surprises::default();
    for (family, transport) in every() {
        for vip in EXTERNAL {
            surprises.served(net, From::Client, transport, vip.of(10, family), &["a"], Peer::Kept);
            surprises.served(net, From::PodB, transport, vip.of(10, family), &["a", "r"], Peer::Masqueraded);
            surprises.served(net, From::Node, transport, vip.of(10, family), &["a", "r"], Peer::Masqueraded);
            surprises.served(net, From::PodB, transport, vip.of(11, family), &["r"], Peer::Masqueraded);
            surprises.served(net, From::Node, transport, vip.of(11, family), &["r"], Peer::Masqueraded);
            surprises.served(net, From::Client, transport, vip.of(12, family), &["a", "r"], Peer::Masqueraded);
            surprises.served(net, From::Client, transport, vip.of(13, family), &["b"], Peer::Kept);
            // A pod's connection to itself, too.
            surprises.served(net, From::PodB, transport, vip.of(13, family), &["b", "r"], Peer::Masqueraded);
            if transport != Transport::Sctp {
                surprises.refused(net, From::Client, transport, vip.of(11, family));
                for from in From::ALL {
                    surprises.refused(net, from, transport, vip.of(15, family));
                }
            }
        }
        surprises.served(net, From::PodB, transport, Vip::ClusterIp.of(10, family), &["a", "r"], Peer::Kept);
        surprises.served(net, From::Client, transport, Vip::ClusterIp.of(10, family), &["a", "r"], Peer::Masqueraded);
        surprises.served(net, From::Node, transport, Vip::ClusterIp.of(13, family), &["b"], Peer::Masqueraded);
        let guarded = Vip::LoadBalancer.of(14, family);
        surprises.served(net, From::Client, transport, guarded, &["a"], Peer::Kept);
        surprises.silent_to(&net.client, Some(net::STRANGER.of(family)), transport, guarded);
        surprises.silent(net, From::PodB, transport, guarded);
        surprises.silent(net, From::Node, transport, guarded);
    }
    surprises.none();
}

fn marks() -> Vec<String> {
    let saved = oracle::ipvsadm_save().unwrap();
    let own = |line: &&str| line.starts_with("-A -f ");
    saved.lines().filter(own).map(|line| line.split_whitespace().nth(2).unwrap().to_owned()).collect()
}

fn has_table() -> bool {
    oracle::run("nft", &["list", "tables"], None).unwrap().stdout.contains("proxier-ipvs")
}

#[test]
fn clients_keep_their_endpoints_after_a_kill() {
    kernel_test(NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        oracle::run("ipvsadm", &["-A", "-f", "7", "-s", "rr"], None).unwrap();
        let cluster = serving(true);
        everyone_gets_their_list(&net);
        let before = marks();
        // Five Services with policy Local and without affinity, three kinds of addresses (three addresses of the node have node ports), three
        // protocols, two families; and the other program's.
        assert_eq!(before.len(), 5 * 5 * 3 * 2 + 1, "{before:?}");
        // Only the kernel's state is left of the process.
        drop(cluster);
        let mut again = Cluster::without_programs(options(&split(true)));
        publish(&mut again);
        let reports = again.settle();
        let done = reports.iter().flat_map(|report| report.applied.done.keys());
        let written: Vec<_> = done.filter(|(part, _)| *part != Part::Flows).collect();
        assert!(written.is_empty(), "{written:?}");
        assert!(reports[0].foreign == ["FWM 7"], "{:?}", reports[0].foreign);
        everyone_gets_their_list(&net);
        // An address that the node gets later has its node ports, too.
        net::batch(&net.node, &["address add 192.0.2.2/24 dev eth0".to_owned()]);
        again.proxier.host_changed(again.now());
        again.settle();
        let late = (std::net::Ipv4Addr::new(192, 0, 2, 2), 30_010).into();
        let mut surprises = Surprises::default();
        surprises.served(&net, From::Client, Transport::Tcp, late, &["a"], Peer::Kept);
        surprises.served(&net, From::PodB, Transport::Tcp, late, &["a", "r"], Peer::Masqueraded);
        surprises.none();
        again.clean_up();
        assert_eq!((marks(), has_table()), (vec!["7".to_owned()], false));
        let left = oracle::ipvsadm_save().unwrap();
        assert_eq!(left.trim(), "-A -f 7 -s rr");
    });
}

#[test]
fn connections_last_while_it_is_switched_on_and_off() {
    kernel_test(NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let mut cluster = serving(false);
        let open = |from: From, family: Family, vip: Vip| {
            let of = || Conversation::open(Transport::Tcp, Net::address(from, family), vip.of(10, family), LIMIT);
            let mut long = net.of(from).run_in(of).unwrap().unwrap();
            let name = long.ask().unwrap().name;
            (long, name)
        };
        let mut long: Vec<(Conversation, String)> = Vec::new();
        for on in [true, false, true, false] {
            for (family, vip) in FAMILIES.into_iter().flat_map(|family| EXTERNAL.map(|vip| (family, vip))) {
                long.push(open(From::Client, family, vip));
                long.push(open(From::PodB, family, vip));
            }
            drop(cluster);
            cluster = serving(on);
            for (long, name) in &mut long {
                assert_eq!(long.ask().unwrap().name, *name, "on: {on}");
            }
            if on {
                everyone_gets_their_list(&net);
            } else {
                let mut surprises = Surprises::default();
                for vip in EXTERNAL {
                    surprises.served(&net, From::Client, Transport::Tcp, vip.of(10, Family::V4), &["a"], Peer::Kept);
                    surprises.served(&net, From::PodB, Transport::Tcp, vip.of(10, Family::V4), &["a"], Peer::Kept);
                }
                surprises.none();
            }
        }
        // Virtual servers of marks stay for those connections, and go with them.
        assert!(!marks().is_empty());
        drop(long);
        for minutes in [16, 17] {
            cluster.proxier.request_full(cluster.now());
            let report = cluster.pass_in(Duration::from_secs(minutes * 60)).unwrap();
            assert!(report.is_done(), "{report:#?}");
        }
        assert!(marks().is_empty(), "{:?}", marks());
    });
}
