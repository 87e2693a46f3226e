//! Packets through a running kernel that the reconciler has programmed. Tests which server answers a client and which
//! source address the pod sees, where that is special to some Services (`nft` has the rest).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use proxier_core::net::Family;
use serde_json::{Value, json};
use testkit::witness::{Conversation, Transport, ask};
use testkit::{kernel_test, oracle};

use crate::traffic::NEEDS;
use crate::traffic::clients::{LIMIT, Peer, Surprises, every, with_service};
use crate::traffic::cluster::{Cluster, options};
use crate::traffic::net::{self, FAMILIES, From, Net};
use crate::traffic::objects::{A, B, R, Vip, node_port};
use crate::traffic::serving::flows_stay_while_their_endpoint_serves;

/// A specification with both policies `Local`.
fn local() -> Value {
    json!({ "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local", "healthCheckNodePort": 32_000 })
}

/// The Service 10 has policy `Cluster`.
fn reaches_all_pods(surprises: &mut Surprises, net: &Net, transport: Transport, family: Family) {
    for vip in Vip::ALL {
        for from in From::ALL {
            // Pods reach pods with their own address; everybody else, and pods that use an external address, with the
            // node's.
            let peer = match (vip, from) {
                (Vip::ClusterIp, From::PodB) => Peer::Kept,
                _ => Peer::Masqueraded,
            };
            surprises.served(net, from, transport, vip.of(10, family), &["a", "r"], peer);
        }
    }
}

#[test]
fn pods_on_one_bridge_reach_each_other_and_themselves() {
    kernel_test(&NEEDS, || {
        let net = Net::bridged();
        let _pods = net.serve();
        let mut cluster = Cluster::new(options(&json!({})));
        cluster.publish("web", 10, &json!({}), &[A, R]);
        cluster.publish("self", 11, &json!({}), &[B]);
        cluster.settle();
        let mut surprises = Surprises::default();
        for (family, transport) in every() {
            reaches_all_pods(&mut surprises, &net, transport, family);
            for vip in Vip::ALL {
                surprises.served(&net, From::PodB, transport, vip.of(11, family), &["b"], Peer::Masqueraded);
            }
        }
        surprises.none();
    });
}

/// Without endpoints on this node, policy `Local` falls back to the cluster's for external addresses, so that pods can
/// use them (as kube-proxy does). A cluster IP refuses.
#[test]
fn policy_local_without_endpoints_here_falls_back() {
    with_service(&local(), &[R], |net, _cluster| {
        let mut surprises = Surprises::default();
        for (family, transport) in [(Family::V4, Transport::Tcp), (Family::V6, Transport::Udp)] {
            for vip in [Vip::ExternalIp, Vip::LoadBalancer, Vip::NodePort] {
                surprises.served(net, From::PodB, transport, vip.of(10, family), &["r"], Peer::Kept);
            }
            surprises.refused(net, From::PodB, transport, Vip::ClusterIp.of(10, family));
        }
        surprises.none();
    });
}

#[test]
fn udp_flows_stay_while_their_endpoint_serves() {
    with_service(&json!({}), &[A, R], |net, cluster| {
        flows_stay_while_their_endpoint_serves(net, cluster, || Cluster::new(options(&json!({}))));
    });
}

#[test]
fn node_ports_are_on_every_address_of_the_node() {
    with_service(&json!({}), &[A, R], |net, cluster| {
        let mut surprises = Surprises::default();
        for (family, transport) in every() {
            for address in net::NODE_ADDRESSES {
                let to = (address.of(family), node_port(10)).into();
                for from in From::ALL {
                    surprises.served(net, from, transport, to, &["a", "r"], Peer::Masqueraded);
                }
            }
            // The Service's other addresses do not answer on the node port.
            surprises.silent(net, From::Client, transport, (Vip::ClusterIp.of(10, family).ip(), node_port(10)).into());
        }
        // An address that comes later, and goes.
        let late: IpAddr = "192.0.2.77".parse().unwrap();
        net.node.add_address("192.0.2.77/24", "eth0").unwrap();
        cluster.proxier.host_changed(cluster.now());
        cluster.settle();
        surprises.served(
            net,
            From::Client,
            Transport::Tcp,
            (late, node_port(10)).into(),
            &["a", "r"],
            Peer::Masqueraded,
        );
        net.node.ip(&["address", "del", "192.0.2.77/24", "dev", "eth0"]).unwrap();
        cluster.proxier.host_changed(cluster.now());
        cluster.settle();
        // The address has some seconds to come back; then the proxy gives it up.
        let (begin, is_there) = (Instant::now(), || oracle::ipvsadm_save().unwrap().contains("192.0.2.77"));
        assert!(is_there());
        while is_there() {
            assert!(begin.elapsed() < Duration::from_secs(60), "{}", oracle::ipvsadm_save().unwrap());
            std::thread::sleep(Duration::from_millis(200));
            cluster.settle();
        }
        assert!(begin.elapsed() > Duration::from_secs(5), "{:?}", begin.elapsed());
        surprises.none();
    });
}

#[test]
fn a_client_with_affinity_stays_and_leaves_a_pod_that_drains() {
    let affinity =
        json!({ "sessionAffinity": "ClientIP", "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 600 } } });
    with_service(&affinity, &[A, B], |net, cluster| {
        let once = |family: Family, transport| {
            let to = Vip::ClusterIp.of(10, family);
            net.client.run_in(|| ask(transport, Some(net::CLIENT.of(family)), to, LIMIT)).unwrap().unwrap().name
        };
        let open = |family: Family| {
            let to = Vip::ClusterIp.of(10, family);
            net.client
                .run_in(|| Conversation::open(Transport::Tcp, Some(net::CLIENT.of(family)), to, LIMIT))
                .unwrap()
                .unwrap()
        };
        let chosen: Vec<String> = every().map(|(family, transport)| once(family, transport)).collect();
        for _ in 0..4 {
            let again: Vec<String> = every().map(|(family, transport)| once(family, transport)).collect();
            assert_eq!(again, chosen);
        }
        let mut long = FAMILIES.map(open);
        let held: Vec<String> = long.iter_mut().map(|long| long.ask().unwrap().name).collect();

        // Either pod goes and comes back: no client fails, and open connections stay with their pod.
        for (left, name) in [(A, "a"), (B, "b")] {
            cluster.endpoints("web", &[left]);
            cluster.settle();
            for (family, transport) in every() {
                for _ in 0..3 {
                    assert_eq!(once(family, transport), name, "{family:?} {transport:?}");
                }
            }
            for (long, held) in long.iter_mut().zip(&held) {
                assert_eq!(long.ask().unwrap().name, *held);
            }
            cluster.endpoints("web", &[A, B]);
            cluster.settle();
        }
    });
}
