//! Packets that must not get through, and those that still do: pings, and on a node that drops input by default.

use std::io;
use std::net::{IpAddr, SocketAddr};

use serde_json::json;
use testkit::witness::{Witness, ping};
use testkit::{kernel_test, oracle};

use crate::traffic::NEEDS;
use crate::traffic::clients::{LIMIT, Peer, Surprises, daemon_at, every, with_service};
use crate::traffic::cluster::{Cluster, options};
use crate::traffic::net::{self, FAMILIES, From, Net};
use crate::traffic::objects::{A, Vip};

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
