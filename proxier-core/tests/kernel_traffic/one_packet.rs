//! Datagrams whose Service asks for one-packet scheduling, and their answers.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use proxier_core::net::Family;
use serde_json::{Value, json};
use testkit::{Netns, kernel_test};

use crate::traffic::NEEDS;
use crate::traffic::cluster::{Cluster, options};
use crate::traffic::net::{FAMILIES, From, Net, POD_A, POD_B, POD_PORT, Pair};
use crate::traffic::objects::{self, A, B, Vip};

/// Longest wait for expected datagrams.
const LIMIT: Duration = Duration::from_secs(10);
/// Wait for unexpected datagrams.
const SILENCE: Duration = Duration::from_secs(2);
const SENT: usize = 4;

fn socket(namespace: &Netns, at: SocketAddr) -> UdpSocket {
    let socket = namespace.run_in(|| UdpSocket::bind(at)).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    socket
}

fn receive(socket: &UdpSocket) -> Option<(String, SocketAddr)> {
    let mut buffer = [0; 64];
    let (length, from) = socket.recv_from(&mut buffer).ok()?;
    Some((String::from_utf8_lossy(&buffer[..length]).into_owned(), from))
}

/// Experience of one client socket that sent four datagrams to one place.
#[derive(Debug, PartialEq, Eq)]
struct Experience {
    /// Number of datagrams that each pod got.
    got: BTreeMap<&'static str, usize>,
    /// Number of answers by source; each pod answers every datagram.
    answers: BTreeMap<SocketAddr, usize>,
}

/// Wait for all datagrams, at most [`LIMIT`], and then for [`SILENCE`] more.
struct Waits {
    end: Instant,
    is_complete: bool,
}

impl Waits {
    fn new() -> Self {
        Waits { end: Instant::now() + LIMIT, is_complete: false }
    }

    fn go_on(&mut self, count: usize) -> bool {
        if count >= SENT && !self.is_complete {
            (self.is_complete, self.end) = (true, Instant::now() + SILENCE);
        }
        Instant::now() < self.end
    }
}

/// Sends the datagrams. `comes`: whether answers are expected, from any source.
fn experience(net: &Net, (from, comes): (From, bool), family: Family, to: SocketAddr) -> Experience {
    let pods: [(&'static str, &Netns, Pair); 2] = [("a", &net.pod_a, POD_A), ("b", &net.pod_b, POD_B)];
    let pods = pods.map(|(name, namespace, pair)| (name, socket(namespace, (pair.of(family), POD_PORT).into())));
    let own = match (Net::address(from, family), family) {
        (Some(address), _) => address,
        (None, Family::V4) => [0, 0, 0, 0].into(),
        (None, Family::V6) => [0_u16; 8].into(),
    };
    let client = socket(net.of(from), (own, 0).into());
    for number in 0..SENT {
        client.send_to(format!("{number}").as_bytes(), to).unwrap();
    }
    let (mut got, mut answers) = (BTreeMap::new(), BTreeMap::new());
    let mut waits = Waits::new();
    while waits.go_on(got.values().sum()) {
        for (name, pod) in &pods {
            if let Some((text, peer)) = receive(pod) {
                *got.entry(*name).or_default() += 1;
                pod.send_to(text.as_bytes(), peer).unwrap();
            }
        }
    }
    let mut waits = Waits::new();
    while waits.go_on(if comes { answers.values().sum() } else { SENT }) {
        if let Some((_, place)) = receive(&client) {
            *answers.entry(place).or_default() += 1;
        }
    }
    Experience { got, answers }
}

fn publish(cluster: &mut Cluster, number: u16, annotations: &[(&str, &str)], more: &Value) {
    let name = format!("web-{number}");
    let mut service = objects::service(&name, number, more);
    for (name, value) in annotations {
        service.metadata.annotations.insert((*name).to_owned(), (*value).to_owned());
    }
    cluster.service(&service);
    cluster.endpoints(&name, &[A, B]);
}

fn serving() -> Cluster {
    let mut cluster = Cluster::new(options(&json!({})));
    let local = json!({ "externalTrafficPolicy": "Local" });
    publish(&mut cluster, 10, &[("proxier/one-packet", "true")], &json!({}));
    publish(&mut cluster, 11, &[("proxier/one-packet", "true")], &local);
    publish(&mut cluster, 12, &[], &json!({}));
    publish(&mut cluster, 13, &[], &local);
    cluster.settle();
    cluster
}

/// Clients whose addresses are replaced, and the addresses that they ask: from the node, and from outside.
const MASQUERADED: [(From, Vip); 3] =
    [(From::Node, Vip::ClusterIp), (From::Client, Vip::LoadBalancer), (From::Client, Vip::NodePort)];

fn each() -> BTreeMap<&'static str, usize> {
    BTreeMap::from([("a", 2), ("b", 2)])
}

/// Each datagram goes to the next endpoint. IPVS forgets the connection (`ip_vs_conn_put`), and the conntrack entry does not get the endpoint's
/// address (`ip_vs_update_conntrack`), so that address is not replaced in answers by the Service's.
#[test]
fn answers_to_datagrams_that_are_scheduled_one_by_one_are_not_translated() {
    kernel_test(&NEEDS, || {
        let net = Net::bridged();
        let _cluster = serving();
        for family in FAMILIES {
            for (from, vip) in MASQUERADED {
                let at = |number| vip.of(number, family);
                let one_by_one = experience(&net, (from, false), family, at(10));
                assert_eq!(
                    one_by_one,
                    Experience { got: each(), answers: BTreeMap::new() },
                    "{from:?} {vip:?} {family}"
                );
                let together = experience(&net, (from, true), family, at(12));
                assert_eq!(together.got.len(), 1, "{from:?} {vip:?} {family}: {together:?}");
                assert_eq!(together.answers, BTreeMap::from([(at(12), 4)]), "{from:?} {vip:?} {family}");
            }
            // The client's address is kept: answers arrive, from addresses that the client has not asked.
            let at = |number| Vip::LoadBalancer.of(number, family);
            let one_by_one = experience(&net, (From::Client, true), family, at(11));
            let pods = [POD_A, POD_B].map(|pod| ((pod.of(family), POD_PORT).into(), 2));
            assert_eq!(one_by_one, Experience { got: each(), answers: BTreeMap::from(pods) }, "{family}");
            let together = experience(&net, (From::Client, true), family, at(13));
            assert_eq!(together.answers, BTreeMap::from([(at(13), 4)]), "{family}");
        }
    });
}

/// Behind devices of their own, endpoints lose datagrams too: one that is masqueraded and leaves by another device than the last of its
/// conntrack entry is dropped, and the entry with it (`nf_nat_oif_changed`).
#[test]
fn masqueraded_datagrams_are_lost_between_devices() {
    kernel_test(&NEEDS, || {
        let net = Net::new();
        let _cluster = serving();
        for (from, vip) in MASQUERADED {
            let one_by_one = experience(&net, (from, false), Family::V4, vip.of(10, Family::V4));
            assert_eq!(one_by_one.got.into_values().collect::<Vec<_>>(), [2], "{from:?} {vip:?}");
        }
        let kept = experience(&net, (From::Client, true), Family::V4, Vip::LoadBalancer.of(11, Family::V4));
        assert_eq!(kept.got, each());
    });
}
