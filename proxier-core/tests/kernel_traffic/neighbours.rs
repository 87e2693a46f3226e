//! An agent's own Frontends on a real kernel, and an address that goes and comes back under a connection.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use proxier_core::net::{EndpointKey, Family, FrontendKey, Protocol};
use proxier_core::plan::report::Report;
use proxier_core::snapshot::{FrontendSpec, ObjectKey, Roles};
use serde_json::json;
use testkit::witness::{Conversation, Transport, ask};
use testkit::{kernel_test, oracle};

use crate::traffic::NEEDS;
use crate::traffic::cluster::{Cluster, options};
use crate::traffic::net::{CLIENT, NODE, Net, POD_A, POD_PORT, POD_R, Pair, batch};
use crate::traffic::objects::{A, Vip, node_port};

const LIMIT: Duration = Duration::from_secs(20);

fn ipvsadm() -> Vec<String> {
    let mut lines: Vec<String> =
        oracle::ipvsadm_save().unwrap().lines().map(|line| line.trim_end().to_owned()).collect();
    lines.sort();
    lines
}

/// The lines of virtual servers at an address.
fn at(address: &str) -> Vec<String> {
    ipvsadm().into_iter().filter(|line| line.contains(&format!(" {address}:"))).collect()
}

#[track_caller]
fn full(cluster: &mut Cluster) -> Report {
    cluster.proxier.start(cluster.now());
    cluster.proxier.request_full(cluster.now());
    let report = cluster.settle().into_iter().find(|report| report.full).unwrap();
    assert!(report.is_done(), "{report:#?}");
    report
}

fn publish(cluster: &mut Cluster, numbers: &[u16]) {
    for number in numbers {
        cluster.publish(&format!("web-{number}"), *number, &json!({}), &[A]);
    }
}

/// A connection through a node port survives while its address goes and comes back, and ends when the address is gone for
/// good.
#[test]
fn a_connection_outlasts_an_address_that_flaps() {
    kernel_test(&NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let mut how = options(&json!({}));
        how.address_grace = Duration::from_secs(600);
        let mut cluster = Cluster::new(how);
        publish(&mut cluster, &[10]);
        full(&mut cluster);
        let to: SocketAddr = Vip::NodePort.of(10, Family::V4);
        assert_eq!(to.to_string(), format!("{}:{}", NODE.v4, node_port(10)));
        let client = Some(CLIENT.of(Family::V4));
        let open = || Conversation::open(Transport::Tcp, client, to, LIMIT).unwrap();
        let mut conversation = net.client.run_in(open).unwrap();
        assert_eq!(conversation.ask().unwrap().name, "a");
        for _ in 0..3 {
            for (command, there) in [("delete", false), ("add", true)] {
                batch(&net.node, &[format!("address {command} {}/24 dev eth0", NODE.v4)]);
                cluster.proxier.host_changed(cluster.now());
                cluster.settle();
                let listed = oracle::ip_json(&["address", "show", "dev", "eth0"]).unwrap();
                assert_eq!(listed.contains(&format!("\"{}\"", NODE.v4)), there, "{listed}");
                assert!(!at(NODE.v4).is_empty(), "{:#?}", ipvsadm());
            }
            assert_eq!(conversation.ask().unwrap().name, "a");
        }
        batch(&net.node, &[format!("address delete {}/24 dev eth0", NODE.v4)]);
        cluster.proxier.host_changed(cluster.now());
        cluster.settle();
        assert!(!at(NODE.v4).is_empty());
        cluster.pass_in(Duration::from_secs(601)).unwrap();
        assert_eq!(at(NODE.v4), Vec::<String>::new());
    });
}

/// Frontends of an agent, without Kubernetes objects: clients reach the endpoints, and nothing is left when they go.
#[test]
fn an_agents_own_frontends_are_served() {
    kernel_test(&NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let mut cluster = Cluster::new(options(&json!({})));
        let agent = ObjectKey::new("agent", "web");
        let pod = |pair: Pair, family| EndpointKey::new(pair.of(family), POD_PORT);
        let specs = |pods: &[Pair]| -> Vec<FrontendSpec> {
            let of = |family| {
                let to = Vip::ExternalIp.of(10, family);
                let key = FrontendKey::new(Protocol::Tcp, to.ip(), to.port());
                let mut spec = FrontendSpec::new(key, pods.iter().map(|pair| pod(*pair, family)));
                spec.roles = Roles::EXTERNAL_IP;
                spec
            };
            Family::ALL.into_iter().map(of).collect()
        };
        cluster.proxier.upsert_frontends(&agent, specs(&[POD_A, POD_R]), cluster.now());
        full(&mut cluster);
        for family in Family::ALL {
            let to = Vip::ExternalIp.of(10, family);
            let from = Some(CLIENT.of(family));
            let ask = || ask(Transport::Tcp, from, to, LIMIT).unwrap().name;
            let names: BTreeSet<String> = net.client.run_in(|| (0..4).map(|_| ask()).collect()).unwrap();
            assert_eq!(names, ["a", "r"].map(str::to_owned).into(), "{to}");
        }
        cluster.proxier.upsert_frontends(&agent, specs(&[POD_R]), cluster.now());
        cluster.settle();
        let client = Some(CLIENT.of(Family::V4));
        let to = Vip::ExternalIp.of(10, Family::V4);
        for _ in 0..3 {
            assert_eq!(net.client.run_in(|| ask(Transport::Tcp, client, to, LIMIT)).unwrap().unwrap().name, "r");
        }
        cluster.proxier.delete_frontends(&agent, cluster.now());
        full(&mut cluster);
        assert_eq!(ipvsadm(), Vec::<String>::new());
        assert!(!oracle::ip_json(&["address", "show", "dev", "kube-ipvs0"]).unwrap().contains("203.0.113."));
    });
}
