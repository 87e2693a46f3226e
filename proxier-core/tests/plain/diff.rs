//! Making the changes, from any state of the kernel, leaves nothing to change, and leaves foreign objects as they were.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ipset::Element;
use ipvs::model::Weight;
use ipvs::{RealServer, Scheduler, VirtualServer, VirtualServerKey};
use proptest::prelude::*;
use proptest::sample::Index;
use proxier_core::config::{Config, Families};
use proxier_core::modes::ipvs::diff::{Changes, Scope, diff, foreign};
use proxier_core::modes::ipvs::index::{self, Recorded};
use proxier_core::modes::ipvs::observed::Observed;
use proxier_core::modes::ipvs::sets::{SetKey, SetKind};
use proxier_core::modes::ipvs::wanted::Wanted;
use proxier_core::net::Family;
use proxier_core::service::{Indexed, NodeFacts};
use proxier_core::snapshot::{HostAddresses, Node, ObjectKey, Store};

use crate::universe::{Event, events, facts, happen};

fn reach(events: &[Event]) -> Indexed<index::Index> {
    let mut store = Store::new("node-a");
    for event in events {
        happen(&mut store, event);
    }
    Indexed::build(&store, &facts(), index::Index::new(facts().config()))
}

/// State of a kernel that got everything that is wanted, from nothing.
fn programmed(wanted: &Wanted<'_>) -> Observed {
    let mut observed = Observed::new();
    observed.apply(&diff(wanted, &observed, Scope::All, &Config::default()));
    observed
}

/// A foreign change of the kernel.
#[derive(Clone, Debug)]
enum Damage {
    Weight(Index, u32),
    LoseRealServers(Index),
    ExtraRealServer(Index),
    LoseVirtualServer(Index),
    Scheduler(Index),
    LoseAddress(Index),
    ExtraAddress(u8),
    LoseSet(Index),
    ExtraEntry(u16),
}

fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let damage = prop_oneof![
        (any::<Index>(), 0..3_u32).prop_map(|(index, weight)| Damage::Weight(index, weight)),
        any::<Index>().prop_map(Damage::LoseRealServers),
        any::<Index>().prop_map(Damage::ExtraRealServer),
        any::<Index>().prop_map(Damage::LoseVirtualServer),
        any::<Index>().prop_map(Damage::Scheduler),
        any::<Index>().prop_map(Damage::LoseAddress),
        any::<u8>().prop_map(Damage::ExtraAddress),
        any::<Index>().prop_map(Damage::LoseSet),
        any::<u16>().prop_map(Damage::ExtraEntry),
    ];
    proptest::collection::vec(damage, 0..8)
}

fn pick<T: Clone>(index: Index, from: impl Iterator<Item = T>) -> Option<T> {
    let all: Vec<T> = from.collect();
    (!all.is_empty()).then(|| index.get(&all).clone())
}

fn harm(observed: &mut Observed, damage: &Damage) {
    let server = |observed: &Observed, index: &Index| pick(*index, observed.virtual_servers.keys().copied());
    match damage {
        Damage::Weight(index, weight) => {
            let Some(server) = server(observed, index).and_then(|key| observed.virtual_servers.get_mut(&key)) else {
                return;
            };
            let weight = Weight::new(*weight).unwrap();
            server.real_servers = server.real_servers.iter().map(|of| of.with_weight(weight)).collect();
        }
        Damage::LoseRealServers(index) => {
            let Some(server) = server(observed, index).and_then(|key| observed.virtual_servers.get_mut(&key)) else {
                return;
            };
            server.real_servers = server.real_servers.iter().take(1).collect();
        }
        Damage::ExtraRealServer(index) => {
            let Some(server) = server(observed, index).and_then(|key| observed.virtual_servers.get_mut(&key)) else {
                return;
            };
            let extra = RealServer::new("10.244.9.9:9".parse().unwrap());
            let all: BTreeSet<RealServer> = server.real_servers.iter().chain([extra]).collect();
            server.real_servers = all.into_iter().collect();
        }
        Damage::LoseVirtualServer(index) => {
            if let Some(key) = server(observed, index) {
                observed.virtual_servers.remove(&key);
            }
        }
        Damage::Scheduler(index) => {
            let Some(server) = server(observed, index).and_then(|key| observed.virtual_servers.get_mut(&key)) else {
                return;
            };
            server.config.scheduler = Scheduler::LeastConnection;
        }
        Damage::LoseAddress(index) => {
            if let Some(address) = pick(*index, observed.addresses.iter().copied()) {
                observed.addresses.remove(&address);
            }
        }
        Damage::ExtraAddress(number) => {
            observed.addresses.insert([10, 96, 200, *number].into());
        }
        Damage::LoseSet(index) => {
            if let Some(set) = pick(*index, observed.sets.keys().copied()) {
                observed.sets.remove(&set);
            }
        }
        Damage::ExtraEntry(port) => {
            let set = SetKey::new(Family::V4, SetKind::NodePortUdp);
            observed.sets.entry(set).or_default().insert(Element::Port((*port).into()));
        }
    }
}

/// Foreign virtual servers: outside of every address and port in the corpus.
fn strangers() -> [VirtualServerKey; 2] {
    ["TCP 10.200.0.1:7".parse().unwrap(), "FWM 3".parse().unwrap()]
}

/// Foreign virtual servers at addresses that Services have or get, each with a port that none has.
fn neighbours(ours: impl Iterator<Item = IpAddr>) -> BTreeSet<VirtualServerKey> {
    ours.map(|addr| VirtualServerKey::tcp(SocketAddr::new(addr, 7))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_changes_leave_nothing_to_change(before in events(), after in events(), damages in damages()) {
        let config = Config::default();
        let (after, before) = (reach(&after), reach(&before));
        let (wanted, earlier) = (after.wanted(), before.wanted());
        let mut observed = programmed(&earlier);
        for damage in &damages {
            harm(&mut observed, damage);
        }
        let mut theirs = BTreeSet::from(strangers());
        // Sets that were destroyed no longer show which virtual servers are own; otherwise everything is known again.
        let all_sets_are_there = damages.iter().all(|damage| !matches!(damage, Damage::LoseSet(_)));
        if all_sets_are_there {
            theirs.extend(neighbours(earlier.addresses().chain(wanted.addresses())));
        }
        for key in &theirs {
            observed.insert(&VirtualServer::new(*key, Scheduler::RoundRobin), []);
        }
        let not_ours: BTreeSet<_> = foreign(&wanted, &observed, &config).collect();
        if all_sets_are_there {
            prop_assert_eq!(&not_ours, &theirs);
        }
        let kept = observed.clone();

        let changes = diff(&wanted, &observed, Scope::All, &config);
        prop_assert!(changes.add_entries.is_disjoint(&changes.delete_entries));
        observed.apply(&changes);
        prop_assert_eq!(diff(&wanted, &observed, Scope::All, &config), Changes::default());

        // The kernel has everything that is desired, unchanged, and otherwise only other programs' objects.
        for frontend in wanted.servers() {
            let server = &observed.virtual_servers[&frontend.key];
            prop_assert_eq!((&server.config, &server.real_servers), (&frontend.config, &frontend.real_servers));
        }
        prop_assert_eq!(observed.virtual_servers.len(), wanted.servers().count() + not_ours.len());
        for key in not_ours {
            prop_assert_eq!(observed.virtual_servers.get(&key), kept.virtual_servers.get(&key));
        }
        prop_assert!(strangers().iter().all(|key| observed.virtual_servers.contains_key(key)));
        prop_assert!(observed.addresses.iter().copied().eq(wanted.addresses()));
        prop_assert_eq!(observed.sets.len(), 36);
        for (set, elements) in &observed.sets {
            prop_assert!(elements.iter().eq(wanted.entries(*set)), "{set:?}");
        }
    }

    /// A comparison of the changes gives the same as comparing everything, if nothing is damaged.
    #[test]
    fn a_small_comparison_says_what_the_full_one_says(events in events()) {
        let (config, facts) = (Config::default(), facts());
        let mut store = Store::new("node-a");
        let mut all = Indexed::new(Recorded::new(&config));
        let mut observed = programmed(&all.wanted());
        for part in events.chunks(4) {
            let services: BTreeSet<ObjectKey> = part.iter().flat_map(|event| happen(&mut store, event)).collect();
            all.refresh(&store, &facts, &services);
            let (changed, wanted) = (all.take_changed(), all.wanted());
            let small = diff(&wanted, &observed, Scope::Changed(&changed), &config);
            prop_assert_eq!(&small, &diff(&wanted, &observed, Scope::All, &config));
            observed.apply(&small);
        }
    }

    /// A proxy for one family leaves any state of the other one alone.
    #[test]
    fn the_other_family_is_left_alone(before in events(), after in events()) {
        let mut config = Config::default();
        config.families = Families::V6;
        let mut store = Store::new("node-a");
        for event in &after {
            happen(&mut store, event);
        }
        let facts = NodeFacts::new(&config, &Node::default(), &HostAddresses::default());
        let all = Indexed::build(&store, &facts, index::Index::new(facts.config()));
        let wanted = all.wanted();
        let kept = programmed(&reach(&before).wanted());
        let mut observed = kept.clone();
        observed.apply(&diff(&wanted, &observed, Scope::All, &config));
        let v4 = |of: &Observed| {
            let mut of = of.clone();
            of.virtual_servers.retain(|key, _| key.family() == ipvs::model::Family::V4);
            of.addresses.retain(IpAddr::is_ipv4);
            of.sets.retain(|set, _| set.family == Family::V4);
            of
        };
        prop_assert_eq!(v4(&observed), v4(&kept));
        prop_assert!(diff(&wanted, &observed, Scope::All, &config).is_empty());
    }
}
