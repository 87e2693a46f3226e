//! Writing each change gives the same tables as writing everything at once, in any order of events. Objects come from the oracle corpus, where the
//! same names mean other things in each scenario, and several Services claim the same addresses.

use std::collections::{BTreeMap, BTreeSet};

use iptables::Dump;
use proptest::prelude::*;
use proxier_core::config::{Config, LocalTraffic};
use proxier_core::modes::iptables::{Index, Options, Wanted, changes, update};
use proxier_core::net::Family;
use proxier_core::service::{Changes, Indexed, NodeFacts};
use proxier_core::snapshot::{HostAddresses, Node, ObjectKey, Store};

use crate::iptables_model::Tables;
use crate::universe::{events, facts, happen};

/// Everything that is wanted, written on a host without rules.
fn full(wanted: &Wanted<'_>, family: Family) -> Tables {
    let mut tables = Tables::new();
    let all = changes(wanted, &Dump::default(), family).unwrap();
    tables.restore(&all.to_restore_text().unwrap()).unwrap();
    tables
}

fn built(store: &Store, facts: &NodeFacts) -> Indexed<Index> {
    Indexed::build(store, facts, Index::new(facts, Options::default()))
}

/// The tables of both families.
struct Host(BTreeMap<Family, Tables>);

impl Host {
    fn new(wanted: &Wanted<'_>) -> Self {
        Host(Family::ALL.map(|family| (family, full(wanted, family))).into())
    }

    /// Writes a change, and compares.
    fn follow(&mut self, wanted: &Wanted<'_>, changed: &Changes) {
        for (family, tables) in &mut self.0 {
            let text = update(wanted, changed, *family).unwrap().to_restore_text().unwrap();
            tables.restore(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
            assert_eq!(tables.sorted(), full(wanted, *family).sorted());
            let left = changes(wanted, &tables.dump(), *family).unwrap();
            assert!(left.is_empty(), "{left}");
        }
    }
}

/// Local pod traffic is detected by its network.
fn facts_with_pods() -> NodeFacts {
    let mut config = Config::default();
    let networks = ["10.244.0.0/16", "fd00:244::/48"].map(|network| network.parse().unwrap());
    config.local_traffic = LocalTraffic::ClusterCidrs(networks.to_vec());
    let mut node = Node::new("node-a");
    node.addresses = vec!["192.168.0.10".parse().unwrap(), "2001:db8:1::10".parse().unwrap()];
    let interfaces = BTreeMap::from([("eth0".to_owned(), node.addresses.clone())]);
    NodeFacts::new(&config, &node, &HostAddresses { interfaces })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changes_lead_where_a_fresh_start_leads(events in events(), pods in any::<bool>()) {
        let facts = if pods { facts_with_pods() } else { facts() };
        let mut store = Store::new("node-a");
        let mut all = Indexed::new((Index::new(&facts, Options::default()), Changes::default()));
        let mut host = Host::new(&all.wanted());
        for event in &events {
            let services = happen(&mut store, event);
            all.refresh(&store, &facts, &services);
            let changed = all.take_changes();
            host.follow(&all.wanted(), &changed);
            let mut keys = Family::ALL.into_iter().flat_map(|family| changed.services(family));
            prop_assert!(keys.all(|service| services.contains(service)));
            all.refresh(&store, &facts, &services);
            prop_assert!(all.take_changes().is_empty(), "what did not change is not in it");
        }
        prop_assert!(all.wanted() == built(&store, &facts).wanted());
        all.refresh_all(&store, &facts);
        prop_assert!(all.take_changes().is_empty());

        // Deleting every Service leaves no rule of any.
        let services: Vec<ObjectKey> = store.services().map(|service| service.key.clone()).collect();
        all.refresh(&Store::new("node-a"), &facts, &services);
        let changed = all.take_changes();
        host.follow(&all.wanted(), &changed);
        prop_assert!(all.wanted() == Indexed::new(Index::new(&facts, Options::default())).wanted());
        for tables in host.0.values() {
            let kinds = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-FW-"];
            prop_assert!(tables.chains().all(|(_, chain, _)| kinds.iter().all(|kind| !chain.starts_with(kind))));
        }
    }

    /// A change that could not be written is written with the next ones.
    #[test]
    fn changes_may_be_gathered(events in events(), size in 1_usize..20) {
        let facts = facts();
        let mut store = Store::new("node-a");
        let mut all = Indexed::new((Index::new(&facts, Options::default()), Changes::default()));
        let mut host = Host::new(&all.wanted());
        for part in events.chunks(size) {
            let (now, later) = part.split_at(part.len() / 2);
            for event in now {
                let services = happen(&mut store.clone(), event);
                all.refresh(&store, &facts, &services);
                let services = happen(&mut store, event);
                all.refresh(&store, &facts, &services);
            }
            let services: BTreeSet<ObjectKey> = later.iter().flat_map(|event| happen(&mut store, event)).collect();
            all.refresh(&store, &facts, &services);
            let gathered = all.take_changes();
            host.follow(&all.wanted(), &gathered);
        }
        prop_assert!(all.wanted() == built(&store, &facts).wanted());
    }

    /// Comparison leads from the rules of any state to those of any other.
    #[test]
    fn comparison_leads_anywhere(before in events(), after in events()) {
        let wanted = [&before, &after].map(|events| {
            let mut store = Store::new("node-a");
            for event in events {
                happen(&mut store, event);
            }
            let facts = if events.len() % 2 == 0 { facts() } else { facts_with_pods() };
            built(&store, &facts)
        });
        for family in Family::ALL {
            let mut tables = full(&wanted[0].wanted(), family);
            let text = changes(&wanted[1].wanted(), &tables.dump(), family).unwrap().to_restore_text().unwrap();
            tables.restore(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
            assert_eq!(tables.sorted(), full(&wanted[1].wanted(), family).sorted());
        }
    }
}
