//! The ground: a node with the scenario's addresses, and the world behind its only uplink.
//!
//! ```text
//!  the world ═════ eth0 ── the node (and eth1, docker0: links that no packet takes)
//! ```
//!
//! The world is the test's own namespace, without addresses and without a stack that answers: a socket sends frames with any
//! source and sees every frame that leaves the node. Both ends do without neighbour discovery (`arp off`), so no packet waits
//! for any. The node sends its own packets by a raw socket: like an ordinary one's they begin at the hook OUTPUT, and they can be
//! numbered.
//!
//! An emulated machine takes half a second to start a program, so there is one for each end.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::sockopt::RcvBufForce;
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, bind, recvfrom, sendto,
    setsockopt, socket,
};
use proxier_core::net::Family;
use testkit::witness::Transport;
use testkit::{Netns, oracle};

use super::corpus::Scenario;
use super::packet::{FIRST, Packet, Sighting, What, recognize, transport};
use super::talk::{Conversations, MODES_PORTS, answer};
use super::wire::{Ip, number};

/// The node's and the world's end of the uplink.
const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const WORLD_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Addresses without a host: the first packet goes there, until one comes back.
const NOWHERE: [&str; 2] = ["192.0.2.1", "2001:db8:ffff::1"];

const PROTOCOLS: [(Transport, SockProtocol); 3] =
    [(Transport::Tcp, SockProtocol::Tcp), (Transport::Udp, SockProtocol::Udp), (Transport::Sctp, SockProtocol::Sctp)];

pub(crate) struct Ground {
    node: Netns,
    uplink: OwnedFd,
    uplink_address: LinkAddr,
    /// Frames on the node's loopback device.
    loopback: OwnedFd,
    /// Packets that reach the node's own stack, by protocol.
    delivered: Vec<(Transport, OwnedFd)>,
    /// Sends packets as this node's.
    own: OwnedFd,
    /// The node's connections, where connections go on after the first packet.
    conversations: Option<Conversations>,
}

/// Place of a sighting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    World,
    Node,
}

impl Ground {
    /// Makes the ground. TCP connections are carried on after their first packet (`talk`) with `goes_on`.
    pub(crate) fn new(scenario: &Scenario, goes_on: bool) -> Self {
        let (node, world) = (Netns::untouched().unwrap(), Netns::current().unwrap());
        let links = Links::new();
        configure(&node, &world, &links, scenario);
        let (uplink, uplink_address) = packet_socket(&links.world_end("eth0")).unwrap();
        let family = if scenario.family == Family::V4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let raw = |protocol| socket(family, SockType::Raw, flags, protocol);
        let (loopback, delivered, own) = node
            .run_in(|| {
                let (loopback, _) = packet_socket("lo")?;
                let mut delivered = Vec::new();
                for (transport, protocol) in PROTOCOLS {
                    let fd = raw(protocol)?;
                    setsockopt(&fd, RcvBufForce, &BUFFER)?;
                    delivered.push((transport, fd));
                }
                io::Result::Ok((loopback, delivered, raw(SockProtocol::Raw)?))
            })
            .unwrap()
            .unwrap();
        if goes_on {
            let range = format!("{} {}", MODES_PORTS.start(), MODES_PORTS.end());
            node.write_sysctl("net/ipv4/ip_local_port_range", &range).unwrap();
        }
        let conversations = goes_on.then(Conversations::default);
        let ground = Ground { node, uplink, uplink_address, loopback, delivered, own, conversations };
        ground.wait_until_it_forwards(scenario.family);
        ground
    }

    pub(crate) fn node(&self) -> &Netns {
        &self.node
    }

    /// Sends a packet from the world.
    pub(crate) fn send(&self, packet: &Packet) {
        self.send_bytes(&packet.bytes());
    }

    fn send_bytes(&self, packet: &[u8]) {
        let kind = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
        let frame = [&NODE_MAC[..], &WORLD_MAC, &kind, packet].concat();
        sendto(self.uplink.as_raw_fd(), &frame, &self.uplink_address, MsgFlags::empty()).unwrap();
    }

    /// Sends a packet from the node, as a socket bound to the packet's source would.
    pub(crate) fn send_own(&self, packet: &Packet) {
        if let (Some(conversations), Transport::Tcp) = (&self.conversations, packet.protocol) {
            assert!(!MODES_PORTS.contains(&packet.number), "too many packets");
            conversations.open(&self.node, packet);
            return;
        }
        let to = SockaddrStorage::from(SocketAddr::new(packet.to.ip(), 0));
        match sendto(self.own.as_raw_fd(), &packet.bytes(), &to, MsgFlags::empty()) {
            // A rule that drops or rejects the packet causes the second result.
            Ok(_) | Err(Errno::EPERM) => {}
            Err(error) => panic!("{packet:?} cannot be sent: {error}"),
        }
    }

    /// Sightings since the last call. Those at the node's stack come last, after the stack's answers.
    pub(crate) fn sightings(&self) -> Vec<(Place, Sighting)> {
        let (mut seen, mut answers) = (Vec::new(), Vec::new());
        for (fd, is_loopback) in [(&self.uplink, false), (&self.loopback, true)] {
            each(fd, |frame, _| {
                let Some(packet) = frame.get(14..) else { return };
                if self.goes_on() && !is_loopback {
                    answers.extend(answer(packet));
                }
                // Only answers count on the loopback device: a packet there may still be dropped.
                let counts = |sighting: &Sighting| match sighting.what {
                    What::Packet { .. } => !is_loopback,
                    What::Syn { .. } => false,
                    What::Refusal | What::Error(..) => true,
                };
                let sighting = recognize(packet);
                seen.extend(sighting.filter(counts).map(|sighting| (Place::World, sighting)));
            });
        }
        for (protocol, fd) in &self.delivered {
            each(fd, |bytes, from| {
                // A raw IPv4 socket returns the header; an IPv6 one does not, and returns the source separately.
                let sighting = match from {
                    Some(IpAddr::V6(from)) => transport(number(*protocol), bytes, from.into(), from.into()),
                    _ => Ip::parse(bytes).and_then(|ip| transport(ip.protocol, ip.payload, ip.source, ip.to)),
                };
                let is_packet = |sighting: &Sighting| matches!(sighting.what, What::Packet { .. } | What::Syn { .. });
                let sighting = sighting.filter(is_packet);
                seen.extend(sighting.map(|sighting| (Place::Node, sighting)));
            });
        }
        for answer in &answers {
            self.send_bytes(answer);
        }
        self.conversations.iter().for_each(Conversations::go_on);
        seen
    }

    /// Whether TCP connections are carried on after their first packet.
    pub(crate) fn goes_on(&self) -> bool {
        self.conversations.is_some()
    }

    /// Longest wait for a packet that should be seen. The kernel is done with most packets when `send` returns, unless connections have to be made.
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(if self.goes_on() { 5000 } else { 300 })
    }

    /// A new device takes a moment until it transmits.
    fn wait_until_it_forwards(&self, family: Family) {
        let nowhere: IpAddr = NOWHERE[usize::from(family == Family::V6)].parse().unwrap();
        let packet = Packet { number: FIRST - 1, protocol: Transport::Udp, source: nowhere, to: (nowhere, 9).into() };
        let begin = Instant::now();
        loop {
            self.send(&packet);
            std::thread::sleep(Duration::from_micros(500));
            if !self.sightings().is_empty() {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "the node does not forward");
        }
    }
}

/// Calls `body` with each packet that a socket holds and the address it came from.
fn each(fd: &OwnedFd, mut body: impl FnMut(&[u8], Option<IpAddr>)) {
    let mut buffer = [0; 2048];
    loop {
        match recvfrom::<SockaddrStorage>(fd.as_raw_fd(), &mut buffer) {
            Ok((length, from)) => {
                let from = from.and_then(|from| from.as_sockaddr_in6().map(|from| IpAddr::V6(from.ip())));
                body(&buffer[..length], from);
            }
            Err(Errno::EAGAIN) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Size of the socket buffer in bytes: room for all packets of one batch.
const BUFFER: usize = 32 << 20;

/// A socket for frames at a device of the current namespace. It does not receive the frames that it sends.
fn packet_socket(device: &str) -> io::Result<(OwnedFd, LinkAddr)> {
    let devices = getifaddrs()?.filter(|found| found.interface_name == device);
    let addresses = devices.filter_map(|found| found.address.and_then(|address| address.as_link_addr().copied()));
    let address = addresses.last().ok_or(io::ErrorKind::NotFound)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
    setsockopt(&fd, RcvBufForce, &BUFFER)?;
    bind(fd.as_raw_fd(), &address)?;
    Ok((fd, address))
}

/// Settings of a cluster's node, and no limit on ICMP errors.
const NODE_SYSCTLS: &[(&str, &str)] = &[
    ("net/ipv4/ip_forward", "1"),
    ("net/ipv6/conf/all/forwarding", "1"),
    ("net/ipv4/conf/all/rp_filter", "0"),
    ("net/ipv4/conf/default/rp_filter", "0"),
    ("net/ipv4/conf/all/route_localnet", "1"),
    ("net/ipv4/conf/all/send_redirects", "0"),
    ("net/ipv4/conf/default/send_redirects", "0"),
    ("net/ipv6/conf/default/accept_ra", "0"),
    // Kinds of messages whose rate is limited: none, and one that does not occur.
    ("net/ipv4/icmp_ratemask", "0"),
    ("net/ipv6/icmp/ratemask", "127"),
];

/// The names of the world's ends. They go when their node's namespace does, which is some time after its last use.
struct Links {
    number: usize,
}

impl Links {
    fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Links { number: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    fn world_end(&self, device: &str) -> String {
        format!("{device}-{}", self.number)
    }
}

fn configure(node: &Netns, world: &Netns, links: &Links, scenario: &Scenario) {
    // No address of its own making, and no word to neighbours.
    world.write_sysctl("net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    for (name, value) in NODE_SYSCTLS {
        node.write_sysctl(name, value).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let mac = |mac: [u8; 6]| mac.map(|byte| format!("{byte:02x}")).join(":");
    let (mut there, mut here) = (Vec::new(), vec!["link set lo up".to_owned()]);
    for (device, addresses) in scenario.interfaces.iter().filter(|(device, _)| *device != "lo") {
        let end = links.world_end(device);
        let (mac_there, mac_here) = (mac(WORLD_MAC), mac(NODE_MAC));
        let peer = format!("peer name {device} address {mac_here} arp off netns {}", node.path());
        there.push(format!("link add {end} address {mac_there} arp off type veth {peer}"));
        there.push(format!("link set {end} up"));
        here.push(format!("link set {device} up"));
        let add = |address: &IpAddr| match address {
            IpAddr::V4(address) => format!("address add {address}/32 dev {device}"),
            IpAddr::V6(address) => format!("address add {address}/128 dev {device} nodad"),
        };
        here.extend(addresses.iter().map(add));
    }
    here.extend(["0.0.0.0/0", "::/0"].map(|all| format!("route add {all} dev eth0")));
    for (namespace, lines) in [(world, there), (node, here)] {
        namespace.run_in(|| oracle::run("ip", &["-batch", "-"], Some(&lines.join("\n")))).unwrap().unwrap();
    }
}
