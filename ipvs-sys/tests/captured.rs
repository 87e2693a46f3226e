//! Datagrams captured between `ipvsadm` and real kernels (`fixtures/*.nl` say which kernel and how).
//!
//! Both ways: decoding gives what the command line says, and encoding the command line's values gives the bytes that
//! were sent. One difference remains: the kernel's answers lack `NLA_F_NESTED`, which we, like `ipvsadm`, always set.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use ipvs_sys::uapi::{self, SvcFlags, TunnelFlags};
use ipvs_sys::{
    CmdAttr, Command, DaemonAttr, DelDaemon, DelDest, DelService, DestAttr, FlagsMask, Flush, GetConfig, GetDaemon,
    GetDest, GetInfo, GetService, InfoAttr, NewDaemon, NewDest, NewService, Query, SetConfig, SetDest, SetService,
    SvcAttr, Zero,
};
use netlink_batch::header::{GenlHeader, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_batch::{Attribute, Attrs, Be16, Content, Encoder, Messages, NLA_F_NESTED, NulStr};

/// One command line with its datagrams; `true` for those to the kernel.
struct Exchange {
    command: String,
    datagrams: Vec<(bool, Vec<u8>)>,
}

/// Captured on a little-endian machine: elsewhere the numbers in host order lie differently.
fn captures() -> Vec<(String, Vec<Exchange>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty());
    if cfg!(target_endian = "big") {
        return Vec::new();
    }
    files.iter().map(|path| (path.display().to_string(), exchanges(&fs::read_to_string(path).unwrap()))).collect()
}

fn exchanges(text: &str) -> Vec<Exchange> {
    let mut found: Vec<Exchange> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (mark, rest) = line.split_once(' ').unwrap();
        if mark == "$" {
            found.push(Exchange { command: rest.to_owned(), datagrams: Vec::new() });
            continue;
        }
        let hex = |at: usize| u8::from_str_radix(&rest[at..at + 2], 16).unwrap();
        let bytes = (0..rest.len()).step_by(2).map(hex).collect();
        found.last_mut().unwrap().datagrams.push((mark == ">", bytes));
    }
    found
}

fn octets(addr: &str) -> [u8; 16] {
    match addr.parse().unwrap() {
        IpAddr::V6(addr) => Ipv6Addr::octets(&addr),
        IpAddr::V4(addr) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&Ipv4Addr::octets(&addr));
            octets
        }
    }
}

fn af(addr: &str) -> u16 {
    if addr.contains(':') { 10 } else { 2 }
}

fn key(protocol: u16, addr: &str, port: u16) -> Vec<SvcAttr<'static>> {
    vec![SvcAttr::Af(af(addr)), SvcAttr::Protocol(protocol), SvcAttr::Addr(octets(addr)), SvcAttr::Port(Be16(port))]
}

fn mark(af: u16, mark: u32) -> Vec<SvcAttr<'static>> {
    vec![SvcAttr::Af(af), SvcAttr::Fwmark(mark)]
}

const V4_ALL: [u8; 4] = [0xff; 4];

fn v6(prefix: u32) -> [u8; 4] {
    prefix.to_ne_bytes()
}

/// Attributes of a service besides its key, in ipvsadm's order; `""` for "no persistence engine".
fn rest(
    mut key: Vec<SvcAttr<'static>>,
    scheduler: &'static str,
    engine: &'static str,
    flags: SvcFlags,
    timeout: u32,
    netmask: [u8; 4],
) -> Vec<SvcAttr<'static>> {
    key.push(SvcAttr::SchedName(NulStr::from(scheduler)));
    if !engine.is_empty() {
        key.push(SvcAttr::PeName(NulStr::from(engine)));
    }
    let flags = FlagsMask { flags, mask: u32::MAX };
    key.extend([SvcAttr::Flags(flags), SvcAttr::Timeout(timeout), SvcAttr::Netmask(netmask)]);
    key
}

/// ipvsadm sends a whole service, empty, even where the kernel looks at the key alone.
fn named(key: Vec<SvcAttr<'static>>, netmask: [u8; 4]) -> Vec<SvcAttr<'static>> {
    rest(key, "", "", SvcFlags::empty(), 0, netmask)
}

#[derive(Clone, Copy, Default)]
struct Dest {
    method: u32,
    weight: u32,
    tun_type: u8,
    tun_port: u16,
    tun_flags: u16,
    upper: u32,
    lower: u32,
}

fn dest(addr: &str, port: u16, rest: Dest) -> Vec<DestAttr<'static>> {
    vec![
        DestAttr::AddrFamily(af(addr)),
        DestAttr::Addr(octets(addr)),
        DestAttr::Port(Be16(port)),
        DestAttr::FwdMethod(rest.method),
        DestAttr::Weight(rest.weight),
        DestAttr::TunType(rest.tun_type),
        DestAttr::TunPort(Be16(rest.tun_port)),
        DestAttr::TunFlags(rest.tun_flags),
        DestAttr::UThresh(rest.upper),
        DestAttr::LThresh(rest.lower),
    ]
}

fn encoded<C: Command>(command: &C) -> (u8, Vec<u8>) {
    let mut out = Encoder::new();
    command.encode(&mut out);
    (C::NUMBER, out.as_slice().to_vec())
}

/// The request that each command line is about, from its own values; in the order of the script that was captured.
fn requests() -> Vec<(&'static str, (u8, Vec<u8>))> {
    const TCP: u16 = 6;
    const UDP: u16 = 17;
    let first = || key(TCP, "10.0.0.1", 0x1234);
    let second = || key(UDP, "fd00::1", 0x1234);
    let (persistent, none) = (SvcFlags::PERSISTENT, SvcFlags::empty());
    let new_service = |service: Vec<SvcAttr<'_>>| encoded(&NewService { service: &service[..] });
    let new_dest = |service: Vec<SvcAttr<'_>>, dest: Vec<DestAttr<'_>>| {
        encoded(&NewDest { service: &service[..], dest: &dest[..] })
    };
    let (masq, tunnel, route) = (uapi::CONN_F_MASQ, uapi::CONN_F_TUNNEL, uapi::CONN_F_DROUTE);
    let (gue, gre) = (uapi::TUNNEL_TYPE_GUE, uapi::TUNNEL_TYPE_GRE);
    let csum = TunnelFlags::CSUM.bits();
    let limited = Dest { method: masq, weight: 0x0102_0304, upper: 0x1234_5678, lower: 0x0123_4567, ..Dest::default() };
    let gue = Dest { method: tunnel, weight: 2, tun_type: gue, tun_port: 0x1235, tun_flags: csum, ..Dest::default() };
    let gre = Dest { method: tunnel, weight: 3, tun_type: gre, ..Dest::default() };
    let one = Dest { method: route, weight: 1, ..Dest::default() };
    let state = |state| DaemonAttr::State(state);
    let sh_port = persistent | SvcFlags::SCHED2;
    let daemon = [
        state(uapi::STATE_MASTER),
        DaemonAttr::McastIfn(NulStr::from("lo")),
        DaemonAttr::SyncId(42),
        DaemonAttr::SyncMaxlen(0x1234),
        DaemonAttr::McastPort(0x1235),
        DaemonAttr::McastTtl(7),
        DaemonAttr::McastGroup([224, 1, 2, 3]),
    ];
    let stop = [state(uapi::STATE_MASTER), DaemonAttr::McastIfn(NulStr::from("")), DaemonAttr::SyncId(0)];
    let edited = rest(first(), "sh", "", sh_port, 300, V4_ALL);
    let (named_first, gone) = (named(first(), V4_ALL), named(key(TCP, "10.0.0.9", 80), V4_ALL));
    let timeouts = [CmdAttr::TimeoutTcp(901), CmdAttr::TimeoutTcpFin(121), CmdAttr::TimeoutUdp(301)];
    vec![
        (
            "-A -t 10.0.0.1:4660 -s wlc -p 10800 -M 255.255.255.254",
            new_service(rest(first(), "wlc", "", persistent, 10_800, [255, 255, 255, 254])),
        ),
        ("-E -t 10.0.0.1:4660 -s sh -b sh-port -p 300", encoded(&SetService { service: &edited[..] })),
        (
            "-A -u '[fd00::1]:4660' -s rr -o -p 600 -M 127",
            new_service(rest(second(), "rr", "", persistent | SvcFlags::ONEPACKET, 600, v6(127))),
        ),
        ("-A -f 16909060 -s rr", new_service(rest(mark(2, 0x0102_0304), "rr", "", none, 0, V4_ALL))),
        ("-A -f 16909060 -6 -s mh", new_service(rest(mark(10, 0x0102_0304), "mh", "", none, 0, v6(128)))),
        (
            "-A -u 10.0.0.2:5060 -s rr -p 60 --pe sip",
            new_service(rest(key(UDP, "10.0.0.2", 5060), "rr", "sip", persistent, 60, V4_ALL)),
        ),
        (
            "-a -t 10.0.0.1:4660 -r 10.1.0.1:22136 -m -w 16909060 -x 305419896 -y 19088743",
            new_dest(named(first(), V4_ALL), dest("10.1.0.1", 0x5678, limited)),
        ),
        (
            "-a -t 10.0.0.1:4660 -r 10.1.0.2:4660 -i -w 2 --tun-type gue --tun-port 4661 --tun-csum",
            new_dest(named(first(), V4_ALL), dest("10.1.0.2", 0x1234, gue)),
        ),
        (
            "-a -t 10.0.0.1:4660 -r '[fd01::1]:4660' -i -w 3 --tun-type gre --tun-nocsum",
            new_dest(named(first(), V4_ALL), dest("fd01::1", 0x1234, gre)),
        ),
        (
            "-a -u '[fd00::1]:4660' -r '[fd01::2]:4660' -g -w 4",
            new_dest(named(second(), v6(128)), dest("fd01::2", 0x1234, Dest { weight: 4, ..one })),
        ),
        (
            // ipvsadm puts the virtual server's port in for -g; the kernel has no such real server.
            "-e -t 10.0.0.1:4660 -r 10.1.0.1:22136 -g -w 0",
            encoded(&SetDest {
                service: &named_first[..],
                dest: &dest("10.1.0.1", 0x1234, Dest { weight: 0, ..one })[..],
            }),
        ),
        (
            "-d -t 10.0.0.1:4660 -r 10.1.0.1:22136",
            encoded(&DelDest { service: &named_first[..], dest: &dest("10.1.0.1", 0x5678, one)[..] }),
        ),
        ("-Z -t 10.0.0.1:4660", encoded(&Zero { service: Some(&named_first[..]) })),
        ("-Z", encoded(&Zero::<&[SvcAttr<'_>]> { service: None })),
        ("--set 901 121 301", encoded(&SetConfig { config: &timeouts[..] })),
        ("-L --timeout", encoded(&GetConfig)),
        (
            "-d -t 10.0.0.1:4660 -r '[fd01::1]:4660'",
            encoded(&DelDest { service: &named_first[..], dest: &dest("fd01::1", 0x1234, one)[..] }),
        ),
        (
            "--start-daemon master --mcast-interface lo --syncid 42 --sync-maxlen 4660 --mcast-group 224.1.2.3 \
             --mcast-port 4661 --mcast-ttl 7",
            encoded(&NewDaemon { daemon: &daemon[..] }),
        ),
        ("-L --daemon", encoded(&GetDaemon)),
        ("--stop-daemon master", encoded(&DelDaemon { daemon: &stop[..] })),
        ("-D -t 10.0.0.9:80", encoded(&DelService { service: &gone[..] })),
        ("-D -t 10.0.0.1:4660", encoded(&DelService { service: &named_first[..] })),
        ("-C", encoded(&Flush)),
    ]
}

/// The command and the attributes of the messages in a datagram.
fn commands(datagram: &[u8]) -> Vec<(u16, u8, &[u8])> {
    Messages::new(datagram)
        .map(Result::unwrap)
        .filter(|message| message.header.kind >= 0x10)
        .map(|message| {
            let (header, attributes) = GenlHeader::split(message.payload).unwrap();
            (message.header.flags, header.command, attributes)
        })
        .collect()
}

#[test]
fn requests_built_from_the_command_line_are_those_that_were_sent() {
    for (file, exchanges) in captures() {
        let mut compared = 0;
        for (line, (number, attributes)) in requests() {
            let line = format!("ipvsadm {line}");
            let exchange = exchanges.iter().find(|exchange| exchange.command == line);
            let exchange = exchange.unwrap_or_else(|| panic!("{file} lacks {line}"));
            let sent: Vec<&Vec<u8>> =
                exchange.datagrams.iter().filter(|(sent, _)| *sent).map(|(_, bytes)| bytes).collect();
            // First it asks for the version.
            let [version, request] = sent[..] else { panic!("{file}: {line}: {} requests", sent.len()) };
            assert_eq!(commands(version)[0].1, GetInfo::NUMBER);
            let [(flags, command, sent)] = commands(request)[..] else { panic!("{file}: {line}: not one message") };
            assert_eq!(command, number, "{file}: {line}");
            let dump = if command == GetDaemon::NUMBER { NLM_F_DUMP } else { 0 };
            assert_eq!(flags, NLM_F_REQUEST | NLM_F_ACK | dump, "{file}: {line}");
            assert!(sent == attributes, "{file}: {line}\n{sent:02x?}\n{attributes:02x?}");
            compared += 1;
        }
        assert_eq!(compared, requests().len());
    }
}

/// With [`NLA_F_NESTED`] on every outermost nest.
fn with_nest_flags(attributes: &[u8]) -> Vec<u8> {
    let mut bytes = attributes.to_vec();
    for attr in netlink_batch::RawAttrs::new(attributes).map(Result::unwrap) {
        if [CmdAttr::SERVICE, CmdAttr::DEST, CmdAttr::DAEMON].contains(&attr.kind()) {
            bytes[attr.offset + 2..attr.offset + 4].copy_from_slice(&(attr.type_field | NLA_F_NESTED).to_ne_bytes());
        }
    }
    bytes
}

#[test]
fn everything_is_decoded_and_encodes_to_the_same_bytes() {
    for (file, exchanges) in captures() {
        let mut messages = 0;
        for exchange in &exchanges {
            for (sent, datagram) in &exchange.datagrams {
                for (_, command, attributes) in commands(datagram) {
                    let mut out = Encoder::new();
                    // Information answers number their attributes for themselves.
                    if command == ipvs_sys::SET_INFO {
                        let all = Attrs::<InfoAttr<'_>>::new(attributes).to_vec().unwrap();
                        for attribute in &all {
                            attribute.encode(&mut out);
                        }
                    } else {
                        let all = Attrs::<CmdAttr<'_>>::new(attributes).to_vec().unwrap();
                        for attribute in &all {
                            attribute.encode(&mut out);
                        }
                    }
                    let expected = if *sent || command == ipvs_sys::SET_INFO {
                        attributes.to_vec()
                    } else {
                        with_nest_flags(attributes)
                    };
                    let (ours, line) = (out.as_slice(), &exchange.command);
                    assert!(ours == expected, "{file}: {line}\n{expected:02x?}\n{ours:02x?}");
                    if command != ipvs_sys::SET_INFO {
                        nested_again(attributes);
                    }
                    messages += 1;
                }
            }
        }
        assert!(messages > 60, "{file}: {messages} messages");
    }
}

/// Checks that all nested attributes are known, and encode to the same bytes.
fn nested_again(attributes: &[u8]) {
    fn list<'a, A: Attribute<'a>>(bytes: &'a [u8]) -> Vec<A> {
        let all = Attrs::<A>::new(bytes).to_vec().unwrap();
        let mut out = Encoder::new();
        for attribute in &all {
            attribute.encode(&mut out);
        }
        let clear = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            for attr in netlink_batch::RawAttrs::new(&bytes.clone()).map(Result::unwrap) {
                bytes[attr.offset + 2..attr.offset + 4].copy_from_slice(&attr.kind().to_ne_bytes());
            }
            bytes
        };
        let (before, after) = (clear(bytes), clear(out.as_slice()));
        assert!(before == after, "{before:02x?}\n{after:02x?}");
        all
    }
    for attribute in Attrs::<CmdAttr<'_>>::new(attributes).iter() {
        match attribute.unwrap() {
            CmdAttr::Service(inside) => {
                for attribute in list::<SvcAttr<'_>>(inside.as_bytes()) {
                    assert!(!matches!(attribute, SvcAttr::Unknown(_)), "{attribute:?}");
                    if let SvcAttr::Stats(stats) | SvcAttr::Stats64(stats) = attribute {
                        assert_eq!(list::<ipvs_sys::StatsAttr<'_>>(stats.as_bytes()).len(), 10);
                    }
                }
            }
            CmdAttr::Dest(inside) => {
                for attribute in list::<DestAttr<'_>>(inside.as_bytes()) {
                    assert!(!matches!(attribute, DestAttr::Unknown(_)), "{attribute:?}");
                    if let DestAttr::Stats(stats) | DestAttr::Stats64(stats) = attribute {
                        assert_eq!(list::<ipvs_sys::StatsAttr<'_>>(stats.as_bytes()).len(), 10);
                    }
                }
            }
            CmdAttr::Daemon(inside) => {
                for attribute in list::<DaemonAttr<'_>>(inside.as_bytes()) {
                    assert!(!matches!(attribute, DaemonAttr::Unknown(_)), "{attribute:?}");
                }
            }
            _ => {}
        }
    }
}

fn exchange<'a>(exchanges: &'a [Exchange], line: &str) -> &'a Exchange {
    exchanges.iter().find(|exchange| exchange.command == format!("ipvsadm {line}")).unwrap()
}

#[test]
fn answers_say_what_was_written_before() {
    for (file, exchanges) in captures() {
        let saved = exchange(&exchanges, "-S -n");
        let (mut services, mut dests) = (Vec::new(), Vec::new());
        for (_, command, attributes) in
            saved.datagrams.iter().filter(|(sent, _)| !sent).flat_map(|(_, datagram)| commands(datagram))
        {
            if command == <NewService<&[SvcAttr<'_>]> as Command>::NUMBER {
                let found = GetService::<&[SvcAttr<'_>]>::decode(attributes).unwrap().to_vec().unwrap();
                services.push(found);
                let lacking = GetDest::<&[SvcAttr<'_>]>::decode(attributes).unwrap_err().to_string();
                assert!(lacking.contains("IPVS_CMD_ATTR_DEST"), "{lacking}");
            } else if command == <NewDest<&[SvcAttr<'_>], &[DestAttr<'_>]> as Command>::NUMBER {
                dests.push(GetDest::<&[SvcAttr<'_>]>::decode(attributes).unwrap().to_vec().unwrap());
            }
        }
        let hashed = SvcFlags::PERSISTENT | SvcFlags::HASHED;
        let expected = [
            rest(key(6, "10.0.0.1", 0x1234), "sh", "", hashed | SvcFlags::SCHED2, 300, V4_ALL),
            rest(key(17, "fd00::1", 0x1234), "rr", "", hashed | SvcFlags::ONEPACKET, 600, v6(127)),
            rest(mark(2, 0x0102_0304), "rr", "", SvcFlags::HASHED, 0, V4_ALL),
            rest(mark(10, 0x0102_0304), "mh", "", SvcFlags::HASHED, 0, v6(128)),
            rest(key(17, "10.0.0.2", 5060), "rr", "sip", hashed, 60, V4_ALL),
        ];
        assert_eq!(services.len(), expected.len(), "{file}");
        for service in expected {
            let has = |found: &Vec<SvcAttr<'_>>| service.iter().all(|attribute| found.contains(attribute));
            assert!(services.iter().any(has), "{file}: {service:?} is not among {services:?}");
        }
        let tunnelled = |tun_type, tun_port, tun_flags, weight| Dest {
            method: uapi::CONN_F_TUNNEL,
            weight,
            tun_type,
            tun_port,
            tun_flags,
            ..Dest::default()
        };
        let expected = [
            dest(
                "10.1.0.1",
                0x5678,
                Dest { weight: 0x0102_0304, upper: 0x1234_5678, lower: 0x0123_4567, ..Dest::default() },
            ),
            dest("10.1.0.2", 0x1234, tunnelled(uapi::TUNNEL_TYPE_GUE, 0x1235, TunnelFlags::CSUM.bits(), 2)),
            dest("fd01::1", 0x1234, tunnelled(uapi::TUNNEL_TYPE_GRE, 0, 0, 3)),
            dest("fd01::2", 0x1234, Dest { method: uapi::CONN_F_DROUTE, weight: 4, ..Dest::default() }),
        ];
        assert_eq!(dests.len(), expected.len(), "{file}");
        for dest in expected {
            let has = |found: &Vec<DestAttr<'_>>| dest.iter().all(|attribute| found.contains(attribute));
            assert!(dests.iter().any(has), "{file}: {dest:?} is not among {dests:?}");
        }
        let timeouts = exchange(&exchanges, "-L --timeout");
        let (_, _, attributes) = commands(&timeouts.datagrams.last().unwrap().1)[0];
        assert_eq!(
            GetConfig::decode(attributes).unwrap().to_vec().unwrap(),
            [CmdAttr::TimeoutTcp(901), CmdAttr::TimeoutTcpFin(121), CmdAttr::TimeoutUdp(301)]
        );
        let daemons = exchange(&exchanges, "-L --daemon");
        let (_, _, attributes) = commands(&daemons.datagrams[3].1)[0];
        let found = GetDaemon::decode(attributes).unwrap().to_vec().unwrap();
        for attribute in [DaemonAttr::SyncMaxlen(0x1234), DaemonAttr::McastPort(0x1235), DaemonAttr::McastTtl(7)] {
            assert!(found.contains(&attribute), "{file}: {found:?}");
        }
    }
}

#[test]
fn refusals_carry_the_number_and_the_request() {
    for (file, exchanges) in captures() {
        for (line, number) in [("-e -t 10.0.0.1:4660 -r 10.1.0.1:22136 -g -w 0", 2), ("-D -t 10.0.0.9:80", 3)] {
            let datagrams = &exchange(&exchanges, line).datagrams;
            let [.., (true, request), (false, answer)] = &datagrams[..] else { panic!("{file}: {line}") };
            let message = Messages::new(answer).next().unwrap().unwrap();
            // ipvsadm does not ask for short answers: the whole request comes back.
            match message.content().unwrap() {
                Content::Error { errno, echo, .. } => {
                    assert_eq!(errno, number, "{file}: {line}");
                    assert_eq!(echo, &request[16..], "{file}: {line}");
                }
                other => panic!("{file}: {line}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_known_attribute_of_wrong_length_is_an_error_with_its_name() {
    for (kind, length) in (1..=12).flat_map(|kind| (0..40).map(move |length| (kind, length))) {
        let mut out = Encoder::new();
        out.attr(kind, &vec![0_u8; length].as_slice());
        let read = Attrs::<SvcAttr<'_>>::new(out.as_slice()).to_vec();
        let fits = match kind {
            SvcAttr::AF | SvcAttr::PROTOCOL | SvcAttr::PORT => length == 2,
            SvcAttr::FWMARK | SvcAttr::TIMEOUT | SvcAttr::NETMASK => length == 4,
            SvcAttr::ADDR => length == 16,
            SvcAttr::FLAGS => length == 8,
            // Names and nests take any length.
            _ => true,
        };
        match read {
            Ok(_) => assert!(fits, "{kind} {length}"),
            Err(error) => assert!(!fits && error.to_string().contains("IPVS_SVC_ATTR_"), "{kind} {length}: {error}"),
        }
    }
}
