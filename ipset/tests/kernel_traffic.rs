//! Packets: rules that use sets accept and drop, and a sync never leaves a wanted entry out.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ipset::{Client, Element, Entry, ErrorKind, IfPresent, IpSpan, Ports, Protocol, SetName, SetSpec, SetType};
use netlink_batch::{Protocol as Netlink, Socket, Transport};
use testkit::traffic::{NameServer, connect_and_ask};
use testkit::{Need, Netns, kernel_test, missing, oracle};

/// Newer kernels are built without the legacy tables; the rule is the same in both.
fn needs() -> [Need; 3] {
    let legacy = missing(Need::IptablesLegacy).is_none();
    [Need::Root, Need::Ipset("hash:ip,port"), if legacy { Need::IptablesLegacy } else { Need::IptablesNft }]
}

fn iptables(arguments: &str) {
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let program = if missing(Need::IptablesLegacy).is_none() { "iptables-legacy" } else { "iptables-nft" };
    oracle::run(program, &arguments, None).unwrap();
}

/// A server on every loopback address, and rules that let in only what is in the set.
fn guarded(set: &SetName) -> NameServer {
    let server = NameServer::tcp(&Netns::current().unwrap(), ([0, 0, 0, 0], 0).into(), "server").unwrap();
    let port = server.address().port();
    iptables(&format!("-A INPUT -p tcp --dport {port} -m set --match-set {set} dst,dst -j ACCEPT"));
    iptables(&format!("-A INPUT -p tcp --dport {port} -j REJECT --reject-with tcp-reset"));
    server
}

fn at(last: u8, server: &NameServer) -> SocketAddr {
    (Ipv4Addr::new(127, 0, 0, last), server.address().port()).into()
}

fn tcp(address: Ipv4Addr, port: u16) -> Entry {
    Entry::new(Element::IpPort(IpSpan::from(address), Ports::port(Protocol::TCP, port)))
}

#[test]
fn a_rule_lets_in_what_is_in_the_set() {
    kernel_test(&needs(), || {
        let mut client = Client::open().unwrap();
        let set = SetSpec::new("guard".parse().unwrap(), SetType::HashIpPort);
        client.create_set(&set).unwrap();
        let server = guarded(&set.name);
        let port = server.address().port();
        let entry = tcp(Ipv4Addr::new(127, 0, 0, 8), port);
        assert_eq!(connect_and_ask(at(8, &server)).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        client.add_entry(&set.name, &entry).unwrap();
        assert_eq!(connect_and_ask(at(8, &server)).unwrap(), "server");
        assert!(connect_and_ask(at(9, &server)).is_err());
        assert_eq!(client.get_header(&set.name).unwrap().references, 1);
        assert_eq!(*client.destroy_set(&set.name).unwrap_err().kind(), ErrorKind::InUse);
        client.delete_entry(&set.name, &entry).unwrap();
        assert!(connect_and_ask(at(8, &server)).is_err());
        // A new set swapped in by a sync is the one the rule uses.
        let mut counting = set.clone();
        counting.options.flags |= ipset::SetFlags::COUNTERS;
        assert!(client.sync(&counting, &[entry]).unwrap().swapped);
        assert_eq!(connect_and_ask(at(8, &server)).unwrap(), "server");
        let counted = client.get_set(&set.name).unwrap().entries.remove(0);
        assert!(counted.options.packets.unwrap() > 0, "the packets went through the new set");
    });
}

/// How many entries a sync exchanges: many messages in both directions, and no more time than that needs in emulation.
const MANY: u32 = 3_000;

/// Syncs from many to as many other entries and back, with one wanted throughout and a client that connects to it.
fn sync_under_connections(maxelem: u32, swaps: bool) {
    kernel_test(&needs(), || {
        let mut client = Client::open().unwrap();
        let mut set = SetSpec::new("guard".parse().unwrap(), SetType::HashIpPort);
        set.options.maxelem = Some(maxelem);
        client.create_set(&set).unwrap();
        let server = guarded(&set.name);
        let address = at(9, &server);
        let wanted = |network: u32| {
            let others = (0..MANY).map(|number| tcp(Ipv4Addr::from_bits(network + number), 80));
            let mut entries: Vec<Entry> = others.collect();
            entries.insert(1500, tcp(Ipv4Addr::new(127, 0, 0, 9), server.address().port()));
            entries
        };
        let (one, other) = (wanted(0x0a00_0000), wanted(0x0b00_0000));
        client.sync(&set, &one).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let connecting = {
            let stop = Arc::clone(&stop);
            Netns::current().unwrap().spawn(move || {
                let mut connected = 0_u32;
                while !stop.load(Ordering::Relaxed) {
                    TcpStream::connect_timeout(&address, Duration::from_secs(5))
                        .unwrap_or_else(|error| panic!("after {connected} connections: {error}"));
                    connected += 1;
                }
                connected
            })
        };
        let connecting = connecting.unwrap();
        for wanted in [&other, &one] {
            let report = client.sync(&set, wanted).unwrap();
            assert_eq!((report.added, report.deleted, report.unchanged), (MANY as usize, MANY as usize, 1));
            assert_eq!(report.swapped, swaps);
            assert!(!client.sync(&set, wanted).unwrap().is_changed());
        }
        stop.store(true, Ordering::Relaxed);
        let connected = connecting.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        assert!(connected > 0, "nobody connected");
        assert_eq!(oracle::run("ipset", &["list", "-n"], None).unwrap().stdout, "guard\n");
        // Unsorted: the tool's own sorting takes minutes in emulation.
        assert_eq!(oracle::run("ipset", &["save"], None).unwrap().stdout.lines().count(), MANY as usize + 2);
    });
}

#[test]
fn a_sync_in_place_misses_no_wanted_entry() {
    sync_under_connections(65_536, false);
}

#[test]
fn a_sync_by_a_second_set_misses_no_wanted_entry() {
    sync_under_connections(MANY + 100, true);
}

/// Does something behind the client's back before the first message of a command.
struct Meddler {
    inner: Socket,
    command: u8,
    act: Option<fn()>,
}

impl Transport for Meddler {
    fn send(&mut self, datagram: &[u8]) -> io::Result<()> {
        // The low byte of the first message's type.
        if datagram.get(4) == Some(&self.command)
            && let Some(act) = self.act.take()
        {
            act();
        }
        self.inner.send(datagram)
    }
    fn receive(&mut self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        self.inner.receive(buffer, timeout)
    }
    fn port(&self) -> u32 {
        self.inner.port()
    }
    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }
}

fn meddled(command: u8, act: fn()) -> Client {
    let inner = Socket::open(Netlink::Netfilter).unwrap();
    Client::with_transport(Meddler { inner, command, act: Some(act) }).unwrap()
}

fn tool(arguments: &[&str]) {
    oracle::run("ipset", arguments, None).unwrap();
}

#[test]
fn a_set_destroyed_between_list_and_write() {
    kernel_test(&[Need::Root, Need::Ipset("hash:ip")], || {
        let set: SetSpec = "create a hash:ip".parse().unwrap();
        let entries = ["10.0.0.1", "10.0.0.2"].map(|text| Entry::parse(set.set_type, text).unwrap());
        tool(&["create", "a", "hash:ip"]);
        let destroy = || tool(&["destroy", "a"]);
        let mut client = meddled(ipset::uapi::IPSET_CMD_ADD, destroy);
        let report = client.add_entries(&set.name, &entries, IfPresent::Refuse);
        assert_eq!(*report.failures[0].error.kind(), ErrorKind::SetMissing);
        tool(&["create", "a", "hash:ip"]);
        let mut client = meddled(ipset::uapi::IPSET_CMD_ADD, destroy);
        let report = client.sync(&set, &entries).unwrap();
        assert!(report.created && report.added == 2, "{report:?}");
        tool(&["test", "a", "10.0.0.2"]);
    });
}

#[test]
fn an_entry_added_or_a_set_created_by_another_program() {
    kernel_test(&[Need::Root, Need::Ipset("hash:ip")], || {
        let set: SetSpec = "create a hash:ip".parse().unwrap();
        let entries = ["10.0.0.1", "10.0.0.2"].map(|text| Entry::parse(set.set_type, text).unwrap());
        let mut client = meddled(ipset::uapi::IPSET_CMD_CREATE, || tool(&["create", "a", "hash:ip"]));
        let report = client.sync(&set, &entries).unwrap();
        assert!(!report.created && report.added == 2, "{report:?}");
        client.flush_set(&set.name).unwrap();
        let mut client = meddled(ipset::uapi::IPSET_CMD_ADD, || tool(&["add", "a", "10.0.0.2"]));
        assert_eq!(client.sync(&set, &entries).unwrap().added, 2);
        let mut client = meddled(ipset::uapi::IPSET_CMD_DEL, || tool(&["del", "a", "10.0.0.2"]));
        assert_eq!(client.sync(&set, &entries[..1]).unwrap().deleted, 1);
    });
}
