//! Generated tables, both ways on a real kernel: we write and ipvsadm reads; ipvsadm writes and we read.
//!
//! Both sides are built from the same generated numbers and words, never from what the other side printed.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;

use ipvs::model::{Family, Granularity, Persistence, Protocol, Thresholds, Tunnel, TunnelFlags, TunnelKind};
use ipvs::{
    Batch, Client, ForwardingMethod, RealServer, Scheduler, SchedulerFlags, VirtualServer, VirtualServerKey, Weight,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use testkit::{Need, kernel_test, oracle};

const IPVS: &[Need] = &[Need::Root, Need::IpVs, Need::Tool("ipvsadm")];
const CASES: u32 = 48;

/// A virtual server in ipvsadm's words, and as the model has it.
#[derive(Clone, Debug)]
struct Service {
    words: String,
    config_words: String,
    server: VirtualServer,
}

/// A real server in ipvsadm's words, what `-S` leaves out of them, and as the model has it.
#[derive(Clone, Debug)]
struct Backend {
    words: String,
    unsaved: String,
    server: RealServer,
}

type Table = Vec<(Service, Vec<Backend>)>;

fn addr4() -> impl Strategy<Value = IpAddr> {
    (1..=223_u8, any::<[u8; 3]>())
        .prop_filter("not the loopback network", |(a, _)| *a != 127)
        .prop_map(|(a, [b, c, d])| IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
}

fn addr6() -> impl Strategy<Value = IpAddr> {
    any::<[u16; 7]>().prop_map(|[b, c, d, e, f, g, h]| IpAddr::V6(Ipv6Addr::new(0x2001, b, c, d, e, f, g, h)))
}

fn addr() -> impl Strategy<Value = IpAddr> {
    prop_oneof![addr4(), addr6()]
}

fn key() -> impl Strategy<Value = (String, VirtualServerKey)> {
    let protocol =
        prop_oneof![Just((Protocol::Tcp, "-t")), Just((Protocol::Udp, "-u")), Just((Protocol::Sctp, "--sctp-service"))];
    let address = (protocol, addr(), 1..=u16::MAX).prop_map(|((protocol, option), addr, port)| {
        let at = SocketAddr::new(addr, port);
        (format!("{option} {at}"), VirtualServerKey::new(protocol, at))
    });
    let mark = (any::<bool>(), 1..=0x7fff_ffff_u32).prop_map(|(six, mark)| {
        let (family, option) = if six { (Family::V6, " -6") } else { (Family::V4, "") };
        (format!("-f {mark}{option}"), VirtualServerKey::fwmark(family, mark).unwrap())
    });
    prop_oneof![3 => address, 1 => mark]
}

fn persistence(family: Family) -> impl Strategy<Value = (String, Option<Persistence>)> {
    let bits = family.bits();
    let granularity = prop_oneof![Just(bits), 1..bits].prop_map(move |prefix| {
        if prefix == bits {
            return (String::new(), Granularity::Client);
        }
        let mask = match family {
            Family::V4 => Ipv4Addr::from(u32::MAX << (32 - prefix)).to_string(),
            Family::V6 => prefix.to_string(),
        };
        (format!(" -M {mask}"), Granularity::Prefix(prefix))
    });
    let some = (1..=86_400_u32 * 30, granularity).prop_map(|(timeout, (mask, granularity))| {
        let persistence = Persistence::new(timeout).with_granularity(granularity);
        (format!(" -p {timeout}{mask}"), Some(persistence))
    });
    prop_oneof![Just((String::new(), None)), some]
}

fn scheduler() -> impl Strategy<Value = (String, Scheduler, SchedulerFlags)> {
    use Scheduler::{MaglevHashing as Mh, SourceHashing as Sh};
    let plain = prop::sample::select(&["rr", "wrr", "lc", "wlc", "fo", "ovf", "lblc", "lblcr", "dh", "sed", "nq"][..])
        .prop_map(|name| (format!(" -s {name}"), name.parse().unwrap(), SchedulerFlags::empty()));
    let flagged = prop::sample::select(vec![
        (Sh, "sh-fallback", SchedulerFlags::FLAG_1),
        (Sh, "sh-port", SchedulerFlags::FLAG_2),
        (Sh, "sh-fallback,sh-port", SchedulerFlags::FLAG_1 | SchedulerFlags::FLAG_2),
        (Mh, "mh-fallback", SchedulerFlags::FLAG_1),
        (Mh, "mh-port", SchedulerFlags::FLAG_2),
        (Scheduler::RoundRobin, "flag-1,flag-3", SchedulerFlags::FLAG_1 | SchedulerFlags::FLAG_3),
    ])
    .prop_map(|(scheduler, names, flags)| (format!(" -s {} -b {names}", scheduler.name()), scheduler, flags));
    prop_oneof![3 => plain, 2 => flagged]
}

fn service() -> impl Strategy<Value = Service> {
    key().prop_flat_map(|(words, key)| {
        (scheduler(), persistence(key.family()), any::<bool>()).prop_map(
            move |((scheduler_words, scheduler, flags), (persistence_words, persistence), ops)| {
                let mut server = VirtualServer::new(key, scheduler).with_scheduler_flags(flags);
                server.config.persistence = persistence;
                // ipvsadm takes one-packet scheduling for UDP alone, and persistent timeouts not with it.
                let udp = matches!(key, VirtualServerKey::Address { protocol: Protocol::Udp, .. });
                let ops = ops && udp && persistence.is_none();
                server.config.one_packet = ops;
                let ops = if ops { " -o" } else { "" };
                let config_words = format!("{scheduler_words}{persistence_words}{ops}");
                Service { words: words.clone(), config_words, server }
            },
        )
    })
}

fn method() -> impl Strategy<Value = (String, ForwardingMethod)> {
    let tunnel = |words: &str, kind, flags| {
        (format!("-i --tun-type {words}"), ForwardingMethod::Tunnel(Tunnel::new(kind, flags)))
    };
    let gue = (1..=u16::MAX, 0..3_usize).prop_map(move |(port, flags)| {
        let (word, flags) = [
            ("nocsum", TunnelFlags::empty()),
            ("csum", TunnelFlags::CHECKSUM),
            ("remcsum", TunnelFlags::REMOTE_CHECKSUM),
        ][flags];
        let kind = TunnelKind::Gue { port: NonZeroU16::new(port).unwrap() };
        tunnel(&format!("gue --tun-port {port} --tun-{word}"), kind, flags)
    });
    prop_oneof![
        Just(("-m".to_owned(), ForwardingMethod::Masquerade)),
        Just(("-g".to_owned(), ForwardingMethod::DirectRoute)),
        Just(tunnel("ipip", TunnelKind::Ipip, TunnelFlags::empty())),
        Just(tunnel("gre --tun-nocsum", TunnelKind::Gre, TunnelFlags::empty())),
        Just(tunnel("gre --tun-csum", TunnelKind::Gre, TunnelFlags::CHECKSUM)),
        gue,
    ]
}

fn backend(key: VirtualServerKey) -> impl Strategy<Value = Backend> {
    let weight = prop_oneof![Just(0), Just(0x7fff_ffff), 0..=0x7fff_ffff_u32];
    let limits = prop_oneof![Just((0, 0)), (1..=0x7fff_ffff_u32).prop_flat_map(|upper| (Just(upper), 0..=upper))];
    (addr(), 1..=u16::MAX, method(), weight, limits).prop_map(move |(addr, port, method, weight, (upper, lower))| {
        let mixed = Family::of(addr) != key.family();
        let (words, method) = match method {
            // Another family is reached by a tunnel alone.
            (_, ForwardingMethod::Masquerade | ForwardingMethod::DirectRoute) if mixed => {
                ("-i --tun-type ipip".to_owned(), ForwardingMethod::Tunnel(Tunnel::IPIP))
            }
            other => other,
        };
        // Only masquerading changes ports: ipvsadm puts in the virtual server's for the others.
        let port = match (method, key) {
            (ForwardingMethod::Masquerade, _) => port,
            (_, VirtualServerKey::Address { port, .. }) => port,
            (_, VirtualServerKey::Fwmark { .. }) => 0,
        };
        let at = SocketAddr::new(addr, port);
        let server = RealServer::new(at)
            .with_weight(Weight::new(weight).unwrap())
            .with_forwarding_method(method)
            .with_thresholds(Thresholds::new(upper, lower).unwrap());
        let unsaved = if upper > 0 { format!(" -x {upper} -y {lower}") } else { String::new() };
        Backend { words: format!("-r {at} {words} -w {weight}"), unsaved, server }
    })
}

fn table() -> impl Strategy<Value = Table> {
    let entry = service().prop_flat_map(|service| {
        let backends = prop::collection::vec(backend(service.server.key), 0..5);
        (Just(service), backends)
    });
    prop::collection::vec(entry, 0..6).prop_map(|mut table| {
        let mut keys = BTreeSet::new();
        table.retain(|(service, _)| keys.insert(service.server.key));
        for (_, backends) in &mut table {
            let mut keys = BTreeSet::new();
            backends.retain(|backend| keys.insert(backend.server.key));
        }
        table
    })
}

/// A line as its options with their values, in any order: `-A`, then `-t` with `10.0.0.1:80`.
fn options(line: &str) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    let mut last = String::new();
    for word in line.split_whitespace() {
        if word.starts_with('-') {
            word.clone_into(&mut last);
            found.insert(last.clone(), String::new());
        } else if let Some(value) = found.get_mut(&last) {
            value.push_str(word);
        }
    }
    found
}

fn lines(table: &Table, saved: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for (service, backends) in table {
        lines.push(format!("-A {}{}", service.words, service.config_words));
        for backend in backends {
            let unsaved = if saved { "" } else { &backend.unsaved };
            lines.push(format!("-a {} {}{unsaved}", service.words, backend.words));
        }
    }
    lines
}

fn set(lines: impl IntoIterator<Item = impl AsRef<str>>) -> BTreeSet<BTreeMap<String, String>> {
    lines.into_iter().map(|line| options(line.as_ref())).collect()
}

fn generated(test: impl Fn(Table)) {
    let config = Config { cases: CASES, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    TestRunner::new(config)
        .run(&table(), |table| {
            test(table);
            Ok(())
        })
        .unwrap();
}

#[test]
fn we_write_and_ipvsadm_reads() {
    kernel_test(IPVS, || {
        let mut client = Client::open().unwrap();
        generated(|table| {
            let mut client = Client::open().unwrap();
            client.flush_and_cut_everything().unwrap();
            let mut batch = Batch::new();
            for (service, backends) in &table {
                batch.add_virtual_server(service.server);
                for backend in backends {
                    batch.add_real_server(service.server.key, backend.server);
                }
            }
            let report = client.run(&batch);
            assert!(report.is_done(), "{:?}", report.failures().next());
            assert_eq!(set(oracle::ipvsadm_save().unwrap().lines()), set(lines(&table, true)));
        });
        client.flush_and_cut_everything().unwrap();
    });
}

#[test]
fn ipvsadm_writes_and_we_read() {
    kernel_test(IPVS, || {
        generated(|table| {
            let mut client = Client::open().unwrap();
            client.flush_and_cut_everything().unwrap();
            let mut text = lines(&table, false).join("\n");
            text.push('\n');
            oracle::ipvsadm_restore(&text).unwrap();
            let read: BTreeMap<VirtualServer, Vec<RealServer>> = client
                .snapshot()
                .unwrap()
                .entries
                .into_iter()
                .map(|entry| {
                    let servers = entry.real_servers.iter().map(|observed| observed.server).collect();
                    (entry.virtual_server.server, servers)
                })
                .collect();
            let expected: BTreeMap<VirtualServer, Vec<RealServer>> = table
                .iter()
                .map(|(service, backends)| {
                    (service.server, backends.iter().rev().map(|backend| backend.server).collect())
                })
                .collect();
            assert_eq!(read, expected, "{text}");
        });
    });
}
