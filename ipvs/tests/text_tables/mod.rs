//! Virtual and real servers of every kind, for properties.
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
fn ipv6() -> impl Strategy<Value = Ipv6Addr> {
    let group = prop_oneof![3 => Just(0_u16), 1 => Just(0xffff), 2 => any::<u16>()];
    prop_oneof![any::<[u16; 8]>().boxed(), proptest::array::uniform8(group).boxed()].prop_map(Ipv6Addr::from)
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<Ipv4Addr>().prop_map(IpAddr::from), ipv6().prop_map(IpAddr::from)]
}

fn name() -> impl Strategy<Value = Name> {
    "[!-~]{1,15}".prop_map(|name| Name::new(&name).unwrap())
}

fn key() -> impl Strategy<Value = VirtualServerKey> {
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
