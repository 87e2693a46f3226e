//! Packets to Services with `externalTrafficPolicy: Local` whose endpoints are split by firewall marks: clients outside reach local pods
//! and keep their address, pods and the node reach all, and connections last while that is switched on and off.

use std::time::Duration;

use proxier_core::net::Family;
use proxier_core::plan::step::Part;
use serde_json::{Value, json};
use testkit::witness::{Conversation, Transport};
use testkit::{kernel_test, oracle};

use crate::traffic::TABLE_NEEDS as NEEDS;
use crate::traffic::clients::{LIMIT, Peer, Surprises, every};
use crate::traffic::cluster::{Cluster, key, options};
use crate::traffic::net::{self, FAMILIES, From, Net};
use crate::traffic::objects::{self, A, B, R, Vip};

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
fn everyone_gets_their_list_also_after_a_kill() {
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

/// Foreign rules mark packets on their way to IPVS, which compares the whole mark; and they do not see our marks.
#[test]
fn marks_of_others_do_not_matter() {
    kernel_test(NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let ours = "meta mark & 0xff00c000 == 0x16000000 counter";
        for family in ["ip", "ip6"] {
            let theirs = format!(
                "table {family} theirs {{\n chain in {{\n type filter hook input priority 0; policy accept;\n \
                 meta mark set meta mark | 0x00100000\n }}\n \
                 chain last {{\n type filter hook input priority 96; policy accept;\n {ours}\n }}\n \
                 chain out {{\n type filter hook output priority -299; policy accept;\n {ours}\n }}\n \
                 chain post {{\n type filter hook postrouting priority -150; policy accept;\n {ours}\n }}\n }}\n"
            );
            oracle::run("nft", &["-f", "-"], Some(&theirs)).unwrap();
        }
        let _cluster = serving(true);
        let mut surprises = Surprises::default();
        for (family, transport) in every() {
            let to = Vip::LoadBalancer.of(10, family);
            surprises.served(&net, From::Client, transport, to, &["a"], Peer::Kept);
            surprises.served(&net, From::Client, transport, to, &["a"], Peer::Kept);
            surprises.served(&net, From::PodB, transport, to, &["a", "r"], Peer::Masqueraded);
        }
        surprises.none();
        for family in ["ip", "ip6"] {
            let seen = oracle::run("nft", &["list", "table", family, "theirs"], None).unwrap().stdout;
            assert_eq!(seen.matches("counter packets 0 bytes 0").count(), 3, "{seen}");
            let own =
                oracle::run("nft", &["list", "chain", family, "proxier-ipvs", "output-split"], None).unwrap().stdout;
            assert!(own.contains("meta mark & 0xff00c000 == 0x16000000 meta mark set 0x00000000"), "{own}");
        }
    });
}

#[test]
fn endpoints_come_and_go() {
    kernel_test(NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let mut cluster = serving(true);
        for family in FAMILIES {
            let to = Vip::LoadBalancer.of(10, family);
            let mut long = net
                .client
                .run_in(|| Conversation::open(Transport::Tcp, Some(net::CLIENT.of(family)), to, LIMIT))
                .unwrap()
                .unwrap();
            assert_eq!(long.ask().unwrap().name, "a");
            cluster.endpoints("both", &[R]);
            cluster.settle();
            // The endpoint drains, and takes no new connections.
            assert_eq!(long.ask().unwrap().name, "a");
            let mut surprises = Surprises::default();
            surprises.refused(&net, From::Client, Transport::Tcp, to);
            surprises.served(&net, From::PodB, Transport::Tcp, to, &["r"], Peer::Masqueraded);
            cluster.endpoints("both", &[A, B, R]);
            cluster.settle();
            assert_eq!(long.ask().unwrap().name, "a");
            surprises.served(&net, From::Client, Transport::Tcp, to, &["a", "b"], Peer::Kept);
            surprises.none();
            cluster.endpoints("both", &[A, R]);
            cluster.settle();
        }
        cluster.proxier.delete_service(&key("both"), cluster.now());
        cluster.settle();
        let table = oracle::run("nft", &["list", "table", "ip", "proxier-ipvs"], None).unwrap().stdout;
        assert!(!table.contains("203.0.113.110"), "{table}");
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

fn flush_ruleset() {
    oracle::run("nft", &["flush", "ruleset"], None).unwrap();
}

/// `nft flush ruleset`: a running process knows its marks, a new one and a cleanup recognise them; foreign ones are not touched.
#[test]
fn marks_outlive_a_flush_of_the_rule_set() {
    kernel_test(NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        for mark in ["7", "369098759"] {
            oracle::run("ipvsadm", &["-A", "-f", mark, "-s", "rr"], None).unwrap();
        }
        let config = json!({ "ipvs": { "rules": "nftables", "markSplit": true } });
        let start = || {
            let mut cluster = Cluster::without_programs(options(&config));
            publish(&mut cluster);
            cluster
        };
        let mut cluster = start();
        cluster.settle();
        let before = marks();
        let theirs = ["FWM 7", "FWM 369098759"];
        flush_ruleset();
        cluster.proxier.request_full(cluster.now());
        let report = &cluster.settle()[0];
        assert_eq!((&report.foreign[..], marks()), (&theirs.map(str::to_owned)[..], before.clone()));
        everyone_gets_their_list(&net);
        // Killed.
        flush_ruleset();
        drop(cluster);
        let mut again = start();
        let report = &again.settle()[0];
        assert_eq!((&report.foreign[..], marks()), (&theirs.map(str::to_owned)[..], before));
        everyone_gets_their_list(&net);
        flush_ruleset();
        again.clean_up();
        assert_eq!((marks(), has_table()), (theirs.map(|mark| mark[4..].to_owned()).to_vec(), false));
    });
}

/// Virtual servers at addresses that own routes bind go in a cleanup, even if nothing else names them.
#[test]
fn a_cleanup_knows_what_is_ours_by_its_routes() {
    kernel_test(NEEDS, || {
        let _net = Net::new();
        let foreign = "-A -t 203.0.113.200:80 -s rr\n-A -u 172.30.0.1:53 -s rr\n";
        oracle::ipvsadm_restore(foreign).unwrap();
        let networks = ["10.96.0.0/16", "fd00:96::/112"];
        for service_cidrs in [&networks[..], &[]] {
            let config = json!({ "ipvs": { "rules": "nftables", "binding": "routes", "serviceCIDRs": service_cidrs } });
            let mut cluster = Cluster::without_programs(options(&config));
            let mut web = objects::service("web", 10, &json!({ "type": "ClusterIP" }));
            web.status.load_balancer.ingress.clear();
            web.spec.ports.iter_mut().for_each(|port| port.node_port = None);
            cluster.service(&web);
            cluster.endpoints("web", &[A, R]);
            cluster.settle();
            let routes = || {
                let all = ["-4", "-6"].map(|family| {
                    let text = oracle::run("ip", &[family, "route", "show", "table", "all", "proto", "119"], None);
                    text.unwrap().stdout
                });
                all.concat().lines().count()
            };
            assert_eq!(routes(), 4, "{service_cidrs:?}");
            let count = || oracle::ipvsadm_save().unwrap().lines().filter(|line| line.starts_with("-A ")).count();
            // Three protocols, two families, cluster IP and external IP; and the foreign ones.
            assert_eq!(count(), 3 * 2 * 2 + 2);
            flush_ruleset();
            cluster.clean_up();
            assert_eq!((count(), routes(), has_table()), (2, 0, false), "{}", oracle::ipvsadm_save().unwrap());
        }
    });
}
