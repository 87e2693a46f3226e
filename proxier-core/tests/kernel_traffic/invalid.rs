//! Packets that connection tracking finds invalid. Linux does not translate them. So without a rule, an answer outside
//! of the connection's window would reach the client from the pod's own address, and the client would reset the
//! connection (k/k#74839).

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use iptables::Backend;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, recvfrom, sendto, socket,
};
use proxier_core::engine::Options;
use proxier_core::modes::Kind;
use proxier_core::net::Family;
use serde_json::json;
use testkit::witness::{Conversation, Transport, Witness};
use testkit::{Need, Netns, PROXY, kernel_test, oracle};

use crate::traffic::clients::LIMIT;
use crate::traffic::cluster::{Cluster, options};
use crate::traffic::net::{self, FAMILIES, Net};
use crate::traffic::objects::{A, Vip};
use crate::wire;

/// Source of a packet as a client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Nowhere,
    /// The Service's address: the packet was translated.
    AtService,
    /// The pod's own address.
    AtPod,
}

/// A raw socket of a namespace.
fn raw(namespace: &Netns, family: Family, protocol: SockProtocol) -> OwnedFd {
    let family = if family == Family::V4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    namespace.run_in(|| socket(family, SockType::Raw, flags, protocol)).unwrap().unwrap()
}

/// The source of the first packet with this payload that comes in time.
fn heard(fd: &OwnedFd, payload: &[u8], patience: Duration) -> Option<IpAddr> {
    let (begin, mut buffer) = (Instant::now(), [0; 2048]);
    while begin.elapsed() < patience {
        match recvfrom::<SockaddrStorage>(fd.as_raw_fd(), &mut buffer) {
            Ok((length, Some(from))) if buffer[..length].ends_with(payload) => {
                let v4 = from.as_sockaddr_in().map(|from| IpAddr::V4(from.ip()));
                return v4.or_else(|| from.as_sockaddr_in6().map(|from| IpAddr::V6(from.ip())));
            }
            Ok(_) => {}
            Err(Errno::EAGAIN) => std::thread::sleep(Duration::from_millis(2)),
            Err(error) => panic!("{error}"),
        }
    }
    None
}

/// Reasons why windows do not count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Liberal {
    /// Windows count.
    No,
    AskedFor,
    SetBySomebody,
}

struct Invalid {
    net: Net,
    _cluster: Cluster,
    _server: Witness,
    /// Whether the connection has to go on.
    goes_on: bool,
}

impl Invalid {
    fn new(mode: Kind, liberal: Liberal, open: impl FnOnce(Options) -> Cluster) -> Self {
        let net = Net::new();
        let mut places = net::places(net::POD_A, net::POD_PORT);
        places.retain(|(transport, _)| *transport == Transport::Tcp);
        let server = Witness::start(&net.pod_a, "a", &places).unwrap();
        let mut options = options(&json!({}));
        options.mode = mode;
        options.host.tcp_be_liberal = liberal == Liberal::AskedFor;
        if liberal == Liberal::SetBySomebody {
            std::fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal", "1").unwrap();
        }
        let mut cluster = open(options);
        cluster.publish("web", 10, &json!({}), &[A]);
        cluster.settle();
        Invalid { net, _cluster: cluster, _server: server, goes_on: true }
    }

    /// Pod b asks pod a at the cluster IP, which leaves both addresses as they are but for the Service's. Then pod a sends segments
    /// with numbers all around the circle: most lie outside of the window, and some of those are invalid to connection tracking.
    fn seen(&self, family: Family) -> Vec<Seen> {
        let service = Vip::ClusterIp.of(10, family);
        let pod = SocketAddr::new(net::POD_A.of(family), net::POD_PORT);
        let open = || Conversation::open(Transport::Tcp, None, service, LIMIT);
        let mut conversation = self.net.pod_b.run_in(open).unwrap().unwrap();
        let answer = conversation.ask().unwrap();
        assert_eq!((answer.name.as_str(), answer.peer), ("a", answer.own), "not masqueraded");
        let ear = raw(&self.net.pod_b, family, SockProtocol::Tcp);
        let mouth = raw(&self.net.pod_a, family, SockProtocol::Raw);
        let seen = (0..8_u8).map(|eighth| {
            let (number, payload) = (1 + (u32::from(eighth) << 29), format!("late {eighth}"));
            let segment = wire::tcp(pod, answer.own, wire::ACK | wire::PSH, (number, number), payload.as_bytes());
            let to = SockaddrStorage::from(SocketAddr::new(answer.own.ip(), 0));
            sendto(mouth.as_raw_fd(), &segment, &to, MsgFlags::empty()).unwrap();
            match heard(&ear, payload.as_bytes(), Duration::from_millis(300)) {
                None => Seen::Nowhere,
                Some(address) if address == service.ip() => Seen::AtService,
                Some(address) if address == pod.ip() => Seen::AtPod,
                Some(address) => panic!("from {address}"),
            }
        });
        let seen = seen.collect();
        if self.goes_on {
            assert_eq!(conversation.ask().unwrap().name, "a", "{family:?}");
        }
        seen
    }
}

/// Dropped with the mode's rules, translated where windows do not count.
fn dropped_or_translated(needs: &[Need], mode: Kind, liberal: Liberal, open: fn(Options) -> Cluster) {
    kernel_test(needs, || {
        let invalid = Invalid::new(mode, Liberal::No, open);
        for family in FAMILIES {
            let seen = invalid.seen(family);
            assert!(seen.contains(&Seen::Nowhere) && !seen.contains(&Seen::AtPod), "{family:?}: {seen:?}");
        }
    });
    kernel_test(needs, || {
        let invalid = Invalid::new(mode, liberal, open);
        for family in FAMILIES {
            assert_eq!(invalid.seen(family), [Seen::AtService; 8], "{family:?}");
        }
    });
}

#[test]
fn nftables_mode_drops_invalid_packets() {
    let needs = [Need::Root, Need::Nftables, Need::Veth, Need::Conntrack];
    dropped_or_translated(&needs, Kind::Nftables, Liberal::SetBySomebody, Cluster::without_programs);
}

#[test]
fn iptables_mode_drops_invalid_packets_with_the_nft_back_end() {
    let needs = [Need::Root, Need::IptablesNft, Need::Veth, Need::Conntrack];
    dropped_or_translated(&needs, Kind::Iptables, Liberal::SetBySomebody, |options| {
        Cluster::with(options, Backend::NfTables)
    });
}

#[test]
fn iptables_mode_drops_them_by_the_legacy_back_end() {
    let needs = [Need::Root, Need::IptablesLegacy, Need::Veth, Need::Conntrack];
    dropped_or_translated(&needs, Kind::Iptables, Liberal::AskedFor, |options| Cluster::with(options, Backend::Legacy));
}

/// IPVS translates answers by its own connections, with any sequence numbers.
#[test]
fn ipvs_mode_translates_invalid_packets() {
    let needs = [PROXY, &[Need::Veth, Need::Conntrack, Need::Nftables]].concat();
    kernel_test(&needs, || {
        let invalid = Invalid::new(Kind::Ipvs, Liberal::No, Cluster::new);
        for family in FAMILIES {
            assert_eq!(invalid.seen(family), [Seen::AtService; 8], "{family:?}");
        }
    });
}

/// Clients see the pod's address without the rule.
#[test]
fn without_the_rule_clients_see_the_pod() {
    let needs = [Need::Root, Need::Nftables, Need::Tool("nft"), Need::Veth, Need::Conntrack];
    kernel_test(&needs, || {
        let mut invalid = Invalid::new(Kind::Nftables, Liberal::No, Cluster::without_programs);
        invalid.goes_on = false;
        for (family, name) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
            let listed = oracle::run("nft", &["-a", "list", "chain", name, "proxier", "forward-filter"], None).unwrap();
            let rule = listed.stdout.lines().find(|line| line.contains("ct state invalid drop")).unwrap();
            let handle = rule.rsplit(' ').next().unwrap();
            oracle::run("nft", &["delete", "rule", name, "proxier", "forward-filter", "handle", handle], None).unwrap();
            let seen = invalid.seen(family);
            assert!(seen.contains(&Seen::AtPod), "{family:?}: {seen:?}");
        }
    });
}
