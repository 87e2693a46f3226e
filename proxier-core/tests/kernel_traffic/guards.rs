//! Packets that must not get through (Services without endpoints, programs of the node, source ranges), and those that still do.

use std::io;
use std::net::{IpAddr, SocketAddr};

use serde_json::json;
use testkit::witness::{Transport, Witness, ask, ping};
use testkit::{kernel_test, oracle};

use crate::traffic::NEEDS;
use crate::traffic::clients::{LIMIT, Peer, Surprises, daemon_at, every, with_service};
use crate::traffic::cluster::{Cluster, options};
use crate::traffic::net::{self, FAMILIES, From, Net};
use crate::traffic::objects::{A, R, Vip, node_port};

#[test]
fn without_endpoints_clients_are_refused_at_once() {
    with_service(&json!({}), &[], |net, _| {
        // A program of the node on the same port must not answer instead.
        let _daemon = Witness::start(&net.node, "daemon", &daemon_at(80)).unwrap();
        let _other = Witness::start(&net.node, "daemon", &daemon_at(node_port(10))).unwrap();
        let mut surprises = Surprises::default();
        for (family, transport) in every() {
            for vip in Vip::ALL {
                let to = vip.of(10, family);
                if transport == Transport::Sctp {
                    // SCTP takes an unreachable port for a hint, and keeps trying.
                    surprises.silent(net, From::Client, transport, to);
                    continue;
                }
                for from in From::ALL {
                    surprises.refused(net, from, transport, to);
                }
            }
        }
        surprises.none();
    });
}

#[test]
fn programs_of_the_node_do_not_answer_at_service_addresses() {
    with_service(&json!({}), &[A], |net, _| {
        let _daemon = Witness::start(&net.node, "daemon", &daemon_at(9100)).unwrap();
        let _same_port = Witness::start(&net.node, "daemon", &daemon_at(80)).unwrap();
        let mut surprises = Surprises::default();
        for (family, transport) in every() {
            // The daemon does exist.
            let itself = SocketAddr::new(net::NODE.of(family), 9100);
            let answer = net.client.run_in(|| ask(transport, None, itself, LIMIT)).unwrap().unwrap();
            assert_eq!(answer.name, "daemon");
            for vip in [Vip::ClusterIp, Vip::ExternalIp, Vip::LoadBalancer] {
                let to = vip.of(10, family);
                let elsewhere = SocketAddr::new(to.ip(), 9100);
                for from in From::ALL {
                    if transport == Transport::Tcp {
                        surprises.refused(net, from, transport, elsewhere);
                    } else {
                        surprises.silent(net, from, transport, elsewhere);
                    }
                    surprises.served(
                        net,
                        from,
                        transport,
                        to,
                        &["a"],
                        match (vip, from) {
                            (Vip::ClusterIp, From::PodB) => Peer::Kept,
                            _ => Peer::Masqueraded,
                        },
                    );
                }
            }
        }
        surprises.none();
    });
}

/// A ping is rejected, as with kube-proxy: an echo request is a new connection to one of the proxy's addresses, but to no Service port.
#[test]
fn a_ping_of_a_service_address_is_rejected() {
    with_service(&json!({}), &[A], |net, _| {
        net.client.write_sysctl("net/ipv4/ping_group_range", "0 0").unwrap();
        for family in FAMILIES {
            let ping = |to: IpAddr| net.client.run_in(|| ping(to, LIMIT)).unwrap();
            ping(net::NODE.of(family)).unwrap();
            for vip in [Vip::ClusterIp, Vip::ExternalIp, Vip::LoadBalancer] {
                let error = ping(vip.of(10, family).ip()).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{vip:?} {family:?}: {error}");
            }
        }
    });
}

#[test]
fn source_ranges_let_in_whom_they_name() {
    kernel_test(&NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let mut cluster = Cluster::new(options(&json!({})));
        let outside = ["192.0.2.10/32", "2001:db8:1::10/128"];
        let with_node = ["192.0.2.0/28", "2001:db8:1::/123"];
        cluster.publish("outside", 14, &json!({ "loadBalancerSourceRanges": outside }), &[A, R]);
        cluster.publish("with-node", 15, &json!({ "loadBalancerSourceRanges": with_node }), &[A, R]);
        let everybody = ["0.0.0.0/0", "::/0"];
        cluster.publish("everybody", 16, &json!({ "loadBalancerSourceRanges": everybody }), &[A, R]);
        cluster.settle();
        let mut surprises = Surprises::default();
        for (family, transport) in every() {
            let balancer = |number| Vip::LoadBalancer.of(number, family);
            let masqueraded = Peer::Masqueraded;
            for number in [14, 15, 16] {
                surprises.served(&net, From::Client, transport, balancer(number), &["a", "r"], masqueraded);
                // The Service's other addresses are not restricted.
                surprises.served(
                    &net,
                    From::PodB,
                    transport,
                    Vip::ClusterIp.of(number, family),
                    &["a", "r"],
                    Peer::Kept,
                );
            }
            surprises.served(&net, From::PodB, transport, balancer(16), &["a", "r"], masqueraded);
            surprises.served(&net, From::Node, transport, balancer(16), &["a", "r"], masqueraded);
            surprises.served(&net, From::Node, transport, balancer(15), &["a", "r"], masqueraded);
            surprises.silent(&net, From::Node, transport, balancer(14));
            for number in [14, 15] {
                surprises.silent_to(&net.client, Some(net::STRANGER.of(family)), transport, balancer(number));
                surprises.silent(&net, From::PodB, transport, balancer(number));
            }
        }
        surprises.none();
    });
}

/// A hardened node drops input by default: packets to Services meet INPUT before IPVS.
#[test]
fn services_are_reached_where_input_drops_by_default() {
    kernel_test(&NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let harden = || {
            for (program, neighbours) in [("iptables", "-p icmp"), ("ip6tables", "-p ipv6-icmp")] {
                let accepted = [neighbours, "-i lo", "-m conntrack --ctstate RELATED,ESTABLISHED"];
                let rules = accepted.map(|of| format!("-A INPUT {of} -j ACCEPT"));
                for line in rules.iter().map(String::as_str).chain(["-P INPUT DROP"]) {
                    oracle::run(program, &line.split(' ').collect::<Vec<_>>(), None).unwrap();
                }
            }
        };
        net.node.run_in(harden).unwrap();
        let mut cluster = Cluster::new(options(&json!({})));
        cluster.publish("web", 10, &json!({}), &[A]);
        cluster.publish(
            "ranged",
            14,
            &json!({ "loadBalancerSourceRanges": ["192.0.2.10/32", "2001:db8:1::10/128"] }),
            &[A],
        );
        cluster.settle();
        let _daemon = Witness::start(&net.node, "daemon", &daemon_at(9100)).unwrap();
        let mut surprises = Surprises::default();
        for (family, transport) in every() {
            for vip in Vip::ALL {
                let peer =
                    |from| if (vip, from) == (Vip::ClusterIp, From::PodB) { Peer::Kept } else { Peer::Masqueraded };
                for from in From::ALL {
                    surprises.served(&net, from, transport, vip.of(10, family), &["a"], peer(from));
                }
            }
            let balancer = Vip::LoadBalancer.of(14, family);
            surprises.served(&net, From::Client, transport, balancer, &["a"], Peer::Masqueraded);
            surprises.silent_to(&net.client, Some(net::STRANGER.of(family)), transport, balancer);
            surprises.silent(&net, From::Client, transport, SocketAddr::new(net::NODE.of(family), 9100));
        }
        surprises.none();
    });
}
