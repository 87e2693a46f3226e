//! Virtual and real servers of every kind, for properties.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "tests stop at the first surprise")]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::{NonZeroU16, NonZeroU32};

use ipvs::model::{
    Family, Granularity, Name, Persistence, Protocol, RealServerConfig, Thresholds, Tunnel, TunnelFlags, TunnelKind,
    VirtualServerConfig,
};
use ipvs::text::{Entry, Ruleset};
use ipvs::{
    ForwardingMethod, RealServer, RealServerKey, Scheduler, SchedulerFlags, VirtualServer, VirtualServerKey, Weight,
};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;

/// Addresses with every shape of zeros, which is where writers of IPv6 differ.
pub(crate) fn ipv6() -> impl Strategy<Value = Ipv6Addr> {
    let group = prop_oneof![3 => Just(0_u16), 1 => Just(0xffff), 2 => any::<u16>()];
    prop_oneof![any::<[u16; 8]>().boxed(), proptest::array::uniform8(group).boxed()].prop_map(Ipv6Addr::from)
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<Ipv4Addr>().prop_map(IpAddr::from), ipv6().prop_map(IpAddr::from)]
}

fn name() -> impl Strategy<Value = Name> {
    "[!-~]{1,15}".prop_map(|name| Name::new(&name).unwrap())
}

pub(crate) fn key() -> impl Strategy<Value = VirtualServerKey> {
    let family = select(vec![Family::V4, Family::V6]);
    prop_oneof![
        4 => (any::<u8>(), select(vec![6_u8, 17, 132, 0]), address(), any::<u16>()).prop_map(|(other, known, addr, port)| {
            let protocol = Protocol::from(if known == 0 { other } else { known });
            VirtualServerKey::Address { protocol, addr, port }
        }),
        1 => (family, any::<NonZeroU32>()).prop_map(|(family, mark)| VirtualServerKey::Fwmark { family, mark }),
    ]
}

fn granularity(family: Family) -> BoxedStrategy<Granularity> {
    match family {
        Family::V4 => prop_oneof![
            Just(Granularity::Client),
            any::<Ipv4Addr>().prop_map(Granularity::from_mask),
            (0_u8..32).prop_map(Granularity::Prefix)
        ]
        .boxed(),
        Family::V6 => prop_oneof![Just(Granularity::Client), (1_u8..128).prop_map(Granularity::Prefix)].boxed(),
    }
}

fn persistence((timeout_secs, granularity, engine): (u32, Granularity, Option<Name>)) -> Persistence {
    let mut persistence = Persistence::new(timeout_secs).with_granularity(granularity);
    persistence.engine = engine;
    persistence
}

fn config(family: Family) -> impl Strategy<Value = VirtualServerConfig> {
    let scheduler = prop_oneof![
        4 => select(Scheduler::KNOWN.to_vec()),
        1 => name().prop_map(|name| name.as_str().parse().unwrap()),
    ];
    let persistence = (any::<u32>(), granularity(family), option::of(name())).prop_map(persistence);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(one, two, three)| {
        let mut flags = SchedulerFlags::empty();
        flags.set(SchedulerFlags::FLAG_1, one);
        flags.set(SchedulerFlags::FLAG_2, two);
        flags.set(SchedulerFlags::FLAG_3, three);
        flags
    });
    (scheduler, flags, option::of(persistence), any::<bool>()).prop_map(
        |(scheduler, scheduler_flags, persistence, one_packet)| {
            let mut config = VirtualServerConfig::new(scheduler);
            config.scheduler_flags = scheduler_flags;
            config.persistence = persistence;
            config.one_packet = one_packet;
            config
        },
    )
}

fn tunnel() -> impl Strategy<Value = Tunnel> {
    let kind = prop_oneof![
        Just(TunnelKind::Ipip),
        Just(TunnelKind::Gre),
        any::<NonZeroU16>().prop_map(|port| TunnelKind::Gue { port }),
        (any::<u8>(), any::<u16>()).prop_map(|(kind, port)| TunnelKind::Other { kind, port }),
    ];
    let flags = prop_oneof![3 => 0_u16..4, 1 => any::<u16>()].prop_map(TunnelFlags::from_bits_retain);
    (kind, flags).prop_map(|(kind, flags)| Tunnel::new(kind, flags))
}

fn method() -> impl Strategy<Value = ForwardingMethod> {
    prop_oneof![
        Just(ForwardingMethod::Masquerade),
        Just(ForwardingMethod::DirectRoute),
        Just(ForwardingMethod::Local),
        Just(ForwardingMethod::Bypass),
        (5_u8..8).prop_map(ForwardingMethod::Other),
        tunnel().prop_map(ForwardingMethod::Tunnel),
    ]
}

fn real_server_config() -> impl Strategy<Value = RealServerConfig> {
    let thresholds = prop_oneof![
        Just(Thresholds::NONE),
        (any::<u32>(), any::<u32>()).prop_map(|(one, other)| Thresholds::new(one.max(other), one.min(other)).unwrap()),
    ];
    (0..=Weight::MAX.get(), method(), thresholds)
        .prop_map(|(weight, forwarding_method, thresholds)| real_config(weight, forwarding_method, thresholds))
}

fn real_config(weight: u32, method: ForwardingMethod, thresholds: Thresholds) -> RealServerConfig {
    let weight = Weight::new(weight).unwrap();
    RealServerConfig::new().with_weight(weight).with_forwarding_method(method).with_thresholds(thresholds)
}

fn real_server_key() -> impl Strategy<Value = RealServerKey> {
    (address(), any::<u16>()).prop_map(|(addr, port)| RealServerKey { addr, port })
}

/// Any table there is.
pub(crate) fn ruleset() -> impl Strategy<Value = Ruleset> {
    let reals = btree_map(real_server_key(), real_server_config(), 0..4);
    let entry = key().prop_flat_map(move |key| (Just(key), config(key.family())));
    vec((entry, reals), 0..8).prop_map(|entries| {
        let mut seen = std::collections::BTreeSet::new();
        let entries = entries
            .into_iter()
            .filter(|((key, _), _)| seen.insert(*key))
            .map(|((key, config), reals)| {
                let reals = reals.into_iter().map(|(key, config)| RealServer { key, config });
                Entry::new(VirtualServer { key, config }, reals)
            })
            .collect();
        Ruleset { entries }
    })
}

/// Tables that a kernel accepts where `10.0.0.0/8` is routed, and that ipvsadm 1.31 can both read and print in full.
pub(crate) fn ruleset_of_ipvsadm(schedulers: Vec<Scheduler>) -> impl Strategy<Value = Ruleset> {
    let vip =
        prop_oneof![any::<[u8; 3]>().prop_map(|[b, c, d]| IpAddr::from([10, b, c, d])), ipv6().prop_map(IpAddr::from),];
    let protocol = select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
    let mark = (1_u32..=0x7fff_ffff).prop_map(|mark| NonZeroU32::new(mark).unwrap());
    let key = prop_oneof![
        4 => (protocol, vip, prop_oneof![9 => 1..=u16::MAX, 1 => Just(0)])
            .prop_map(|(protocol, addr, port)| VirtualServerKey::Address { protocol, addr, port }),
        1 => (select(vec![Family::V4, Family::V6]), mark)
            .prop_map(|(family, mark)| VirtualServerKey::Fwmark { family, mark }),
    ];
    let entry = (key, select(schedulers)).prop_flat_map(|(key, scheduler)| {
        let persistence = (1..=2_678_400_u32, granularity(key.family()), option::of(Just(Name::new("sip").unwrap())))
            .prop_map(persistence);
        let must_persist = matches!(key, VirtualServerKey::Address { port: 0, .. });
        let persistence =
            if must_persist { persistence.prop_map(Some).boxed() } else { option::of(persistence).boxed() };
        // ipvsadm does not print the third flag of these two.
        let flags = if matches!(scheduler, Scheduler::SourceHashing | Scheduler::MaglevHashing) { 4_u32 } else { 8 };
        let flags = (0..flags).prop_map(|bits| {
            let all = [SchedulerFlags::FLAG_1, SchedulerFlags::FLAG_2, SchedulerFlags::FLAG_3];
            all.into_iter()
                .zip([1, 2, 4])
                .filter(|(_, bit)| bits & bit != 0)
                .map(|(flag, _)| flag)
                .collect::<SchedulerFlags>()
        });
        let may_be_one_packet =
            !matches!(key, VirtualServerKey::Address { protocol: Protocol::Tcp | Protocol::Sctp, .. });
        let reals = vec(real_server_of_ipvsadm(key), 0..5);
        (flags, persistence, any::<bool>(), reals).prop_map(move |(scheduler_flags, persistence, one_packet, reals)| {
            let mut config = VirtualServerConfig::new(scheduler);
            config.scheduler_flags = scheduler_flags;
            config.persistence = persistence;
            config.one_packet = one_packet && may_be_one_packet;
            let mut seen = std::collections::BTreeSet::new();
            let real_servers = reals.into_iter().filter(|real: &RealServer| seen.insert(real.key));
            Entry::new(VirtualServer { key, config }, real_servers)
        })
    });
    vec(entry, 1..12).prop_map(|entries| {
        let mut seen = std::collections::BTreeSet::new();
        let entries = entries.into_iter().filter(|entry| seen.insert(entry.virtual_server.key)).collect();
        Ruleset { entries }
    })
}

fn real_server_of_ipvsadm(key: VirtualServerKey) -> impl Strategy<Value = RealServer> {
    let v4 = any::<[u8; 3]>().prop_map(|[b, c, d]| IpAddr::from([10, b, c, d]));
    let v6 = any::<[u16; 7]>().prop_map(|[b, c, d, e, f, g, h]| IpAddr::from([0xfd00, b, c, d, e, f, g, h]));
    let tunnel = prop_oneof![
        Just(Tunnel::IPIP),
        (0_u16..2).prop_map(|flags| Tunnel::new(TunnelKind::Gre, TunnelFlags::from_bits_retain(flags))),
        (any::<NonZeroU16>(), 0_u16..3)
            .prop_map(|(port, flags)| Tunnel::new(TunnelKind::Gue { port }, TunnelFlags::from_bits_retain(flags))),
    ];
    let method = prop_oneof![
        Just(ForwardingMethod::Masquerade),
        Just(ForwardingMethod::DirectRoute),
        tunnel.prop_map(ForwardingMethod::Tunnel),
    ];
    let thresholds = prop_oneof![
        Just(Thresholds::NONE),
        (0..=0x7fff_ffff_u32, 0..=0x7fff_ffff_u32).prop_map(|(one, other)| Thresholds::new(
            one.max(other),
            one.min(other)
        )
        .unwrap()),
    ];
    let weight = prop_oneof![Just(0), Just(1), 0..=0x7fff_ffff_u32];
    (v4, v6, any::<bool>(), any::<u16>(), method, weight, thresholds).prop_map(
        move |(v4, v6, other_family, port, method, weight, thresholds)| {
            let tunnelled = matches!(method, ForwardingMethod::Tunnel(_));
            let is_v4 = (key.family() == Family::V4) != (other_family && tunnelled);
            let port = match (key, method) {
                (VirtualServerKey::Fwmark { .. }, _) | (_, ForwardingMethod::Masquerade) => port,
                (VirtualServerKey::Address { port, .. }, _) => port,
            };
            RealServer {
                key: RealServerKey { addr: if is_v4 { v4 } else { v6 }, port },
                config: real_config(weight, method, thresholds),
            }
        },
    )
}
