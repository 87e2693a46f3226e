//! Packets to node ports that have one virtual server, by a firewall mark, for all addresses of the node: from outside, from pods and from the
//! node itself; addresses that come later; and connections while that is switched on and off.

use std::time::Duration;

use proxier_core::net::Family;
use proxier_core::plan::step::Part;
use serde_json::{Value, json};
use testkit::witness::{Conversation, Transport};
use testkit::{kernel_test, oracle};

use crate::traffic::TABLE_NEEDS as NEEDS;
use crate::traffic::clients::{LIMIT, Peer, Surprises};
use crate::traffic::cluster::{Cluster, options};
use crate::traffic::net::{self, FAMILIES, From, Net};
use crate::traffic::objects::{A, R, Vip};

fn sharing(on: bool) -> Value {
    json!({ "ipvs": { "rules": "nftables", "markNodePorts": on } })
}

fn publish(cluster: &mut Cluster) {
    cluster.publish("all", 10, &json!({}), &[A, R]);
    cluster.publish("local", 11, &json!({ "externalTrafficPolicy": "Local" }), &[A, R]);
    cluster.publish("sticky", 12, &json!({ "sessionAffinity": "ClientIP" }), &[A]);
    cluster.publish("nobody", 13, &json!({}), &[]);
}

fn serving(on: bool) -> Cluster {
    let mut cluster = Cluster::without_programs(options(&sharing(on)));
    publish(&mut cluster);
    cluster.settle();
    cluster
}

fn everyone_is_served(net: &Net) {
    let mut surprises = Surprises::default();
    let port = |number, family| Vip::NodePort.of(number, family);
    for (family, transport) in
        FAMILIES.into_iter().flat_map(|family| [(family, Transport::Tcp), (family, Transport::Udp)])
    {
        for from in From::ALL {
            surprises.served(net, from, transport, port(10, family), &["a", "r"], Peer::Masqueraded);
            surprises.served(net, from, transport, port(12, family), &["a"], Peer::Masqueraded);
            surprises.refused(net, from, transport, port(13, family));
        }
        surprises.served(net, From::Client, transport, port(11, family), &["a"], Peer::Kept);
        // The Service's other addresses are as ever.
        surprises.served(net, From::PodB, transport, Vip::ClusterIp.of(10, family), &["a", "r"], Peer::Kept);
        surprises.served(
            net,
            From::Client,
            transport,
            Vip::LoadBalancer.of(10, family),
            &["a", "r"],
            Peer::Masqueraded,
        );
    }
    surprises.none();
}

fn servers() -> Vec<String> {
    let saved = oracle::ipvsadm_save().unwrap();
    saved.lines().filter(|line| line.starts_with("-A ")).map(str::to_owned).collect()
}

/// Virtual servers of marks, and of addresses with this port.
fn of(port: u16) -> (usize, usize) {
    let all = servers();
    let marks = all.iter().filter(|line| line.starts_with("-A -f ")).count();
    let end = format!(":{port} ");
    (marks, all.iter().filter(|line| !line.starts_with("-A --sctp") && line.contains(&end)).count())
}

#[test]
fn one_virtual_server_serves_all_addresses() {
    kernel_test(NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        oracle::run("ipvsadm", &["-A", "-f", "7", "-s", "rr"], None).unwrap();
        let cluster = serving(true);
        everyone_is_served(&net);
        // Two Services, two protocols, two families; and the other program's.
        assert_eq!(of(30_010), (2 * 2 * 2 + 1, 0), "{:#?}", servers());
        assert!(of(30_011).1 > 0 && of(30_012).1 > 0, "{:#?}", servers());

        // Only the kernel's state is left of the process.
        drop(cluster);
        let mut again = Cluster::without_programs(options(&sharing(true)));
        publish(&mut again);
        let reports = again.settle();
        let done = reports.iter().flat_map(|report| report.applied.done.keys());
        let written: Vec<_> = done.filter(|(part, _)| *part != Part::Flows).collect();
        assert!(written.is_empty(), "{written:?}");
        assert!(reports[0].foreign == ["FWM 7"], "{:?}", reports[0].foreign);
        everyone_is_served(&net);

        // An address that the node gets later needs no virtual server.
        let before = servers().len();
        net::batch(&net.node, &["address add 192.0.2.2/24 dev eth0".to_owned()]);
        again.proxier.host_changed(again.now());
        again.settle();
        let late = |port: u16| (std::net::Ipv4Addr::new(192, 0, 2, 2), port).into();
        let mut surprises = Surprises::default();
        for from in From::ALL {
            surprises.served(&net, from, Transport::Tcp, late(30_010), &["a", "r"], Peer::Masqueraded);
        }
        surprises.none();
        // Node ports with policy Local or affinity have a virtual server for each protocol.
        assert_eq!(servers().len(), before + 2 * 3 + 2, "{:#?}", servers());
        again.clean_up();
        assert_eq!(servers(), ["-A -f 7 -s rr"]);
    });
}

/// A program of the node listens on a node port at an address that serves none: packets to there get no mark.
#[test]
fn programs_at_other_addresses_are_left_alone() {
    kernel_test(NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let settings = json!({
            "nodePortAddresses": ["192.0.2.1/32"],
            "ipvs": { "rules": "nftables", "markNodePorts": true },
        });
        net::batch(&net.node, &["address add 192.0.2.2/24 dev eth0".to_owned()]);
        let own = "192.0.2.2:30010".parse().unwrap();
        let _daemon = testkit::witness::Witness::start(&net.node, "daemon", &[(Transport::Tcp, own)]).unwrap();
        let mut cluster = Cluster::without_programs(options(&settings));
        publish(&mut cluster);
        cluster.settle();
        let mut surprises = Surprises::default();
        let node_port = "192.0.2.1:30010".parse().unwrap();
        surprises.served(&net, From::Client, Transport::Tcp, node_port, &["a", "r"], Peer::Masqueraded);
        surprises.served(&net, From::Client, Transport::Tcp, own, &["daemon"], Peer::Kept);
        surprises.none();
    });
}

#[test]
fn connections_last_while_it_is_switched_on_and_off() {
    kernel_test(NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let mut cluster = serving(false);
        let mut long: Vec<(Conversation, String)> = Vec::new();
        for on in [true, false, true, false] {
            for (family, from) in FAMILIES.into_iter().flat_map(|family: Family| From::ALL.map(|from| (family, from))) {
                let to = Vip::NodePort.of(10, family);
                let open = || Conversation::open(Transport::Tcp, Net::address(from, family), to, LIMIT);
                let mut opened = net.of(from).run_in(open).unwrap().unwrap();
                let name = opened.ask().unwrap().name;
                long.push((opened, name));
            }
            drop(cluster);
            cluster = serving(on);
            for (long, name) in &mut long {
                assert_eq!(long.ask().unwrap().name, *name, "on: {on}");
            }
            everyone_is_served(&net);
        }
        // Virtual servers of marks stay for those connections, and go with them.
        assert!(of(30_010).0 > 0);
        drop(long);
        for minutes in [16, 17] {
            cluster.proxier.request_full(cluster.now());
            let report = cluster.pass_in(Duration::from_secs(minutes * 60)).unwrap();
            assert!(report.is_done(), "{report:#?}");
        }
        assert_eq!(of(30_010).0, 0, "{:#?}", servers());
    });
}
