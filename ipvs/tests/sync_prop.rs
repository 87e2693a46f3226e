//! Properties of the difference between two tables, against a model of the kernel that refuses what the kernel refuses.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

mod text_tables;

use std::collections::BTreeMap;

use ipvs::model::{RealServerConfig, Snapshot, VirtualServerConfig};
use ipvs::text::{Entry, parse_batch};
use ipvs::{
    Batch, Operation, RealServer, RealServerKey, Ruleset, SyncPolicy, VirtualServer, VirtualServerKey, Weight, Weights,
};
use proptest::prelude::*;
use text_tables::ruleset;

type Table = BTreeMap<VirtualServerKey, (VirtualServerConfig, BTreeMap<RealServerKey, RealServerConfig>)>;

fn table(rules: &Ruleset) -> Table {
    let reals = |entry: &Entry| entry.real_servers.iter().map(|real| (real.key, real.config)).collect();
    rules.entries.iter().map(|entry| (entry.virtual_server.key, (entry.virtual_server.config, reals(entry)))).collect()
}

fn rules(table: &Table) -> Ruleset {
    let mut rules = Ruleset::new();
    for (key, (config, reals)) in table {
        let reals = reals.iter().map(|(key, config)| RealServer { key: *key, config: *config });
        rules.push(VirtualServer { key: *key, config: *config }, reals);
    }
    rules
}

fn snapshot(table: &Table) -> Snapshot {
    Snapshot::from(&rules(table))
}

/// The kernel's rules: it refuses to add what is there and to change or delete what is not.
fn apply(table: &mut Table, operation: &Operation) -> Result<(), TestCaseError> {
    let refused = || TestCaseError::fail(format!("the kernel refuses: {operation}"));
    match operation {
        Operation::AddVirtualServer(server) => match table.insert(server.key, (server.config, BTreeMap::new())) {
            None => Ok(()),
            Some(_) => Err(refused()),
        },
        Operation::UpdateVirtualServer(server) => {
            table.get_mut(&server.key).ok_or_else(refused)?.0 = server.config;
            Ok(())
        }
        Operation::DeleteVirtualServer(key) => table.remove(key).map(drop).ok_or_else(refused),
        Operation::AddRealServer(key, real) => {
            match table.get_mut(key).ok_or_else(refused)?.1.insert(real.key, real.config) {
                None => Ok(()),
                Some(_) => Err(refused()),
            }
        }
        Operation::UpdateRealServer(key, real) => {
            *table.get_mut(key).ok_or_else(refused)?.1.get_mut(&real.key).ok_or_else(refused)? = real.config;
            Ok(())
        }
        Operation::DeleteRealServer(key, real) => {
            table.get_mut(key).ok_or_else(refused)?.1.remove(real).map(drop).ok_or_else(refused)
        }
        _ => Err(refused()),
    }
}

fn serves(table: &Table, key: &VirtualServerKey) -> bool {
    table.get(key).is_some_and(|(_, reals)| reals.values().any(|config| config.weight != Weight::DRAIN))
}

/// Applies the difference and checks at each step that what serves before and after serves, and what stays is there.
fn apply_all(before: &Table, batch: &Batch) -> Result<Table, TestCaseError> {
    let mut after = before.clone();
    for operation in batch {
        apply(&mut after, operation)?;
    }
    let mut between = before.clone();
    for operation in batch {
        apply(&mut between, operation)?;
        for (key, (_, reals)) in before.iter().filter(|(key, _)| after.contains_key(*key)) {
            prop_assert!(between.contains_key(key), "{key} is gone after: {operation}");
            prop_assert!(
                serves(&between, key) || !(serves(before, key) && serves(&after, key)),
                "{key} has no real server to give connections to after: {operation}"
            );
            for real in reals.keys().filter(|real| after[key].1.contains_key(*real)) {
                prop_assert!(between[key].1.contains_key(real), "{real} of {key} is gone after: {operation}");
            }
        }
    }
    Ok(after)
}

/// Two tables with much in common: the second has some virtual and real servers of the first with other settings.
fn two_tables() -> impl Strategy<Value = (Table, Table)> {
    let pick = proptest::collection::vec((any::<bool>(), any::<bool>(), any::<bool>(), 0_u32..3), 40);
    (ruleset(), ruleset(), ruleset(), pick).prop_map(|(common, one, other, pick)| {
        let mut picks = pick.into_iter().cycle();
        let mut first = table(&one);
        let mut second = table(&other);
        for (key, (config, reals)) in table(&common) {
            first.insert(key, (config, reals.clone()));
            let (keep, change, ..) = picks.next().unwrap();
            if !keep {
                continue;
            }
            let mut config = config;
            config.one_packet ^= change;
            let mut kept = BTreeMap::new();
            for (key, mut config) in reals {
                let (keep, change, _, weight) = picks.next().unwrap();
                if change {
                    config.weight = Weight::new(weight).unwrap();
                }
                if keep {
                    kept.insert(key, config);
                }
            }
            kept.extend(second.values().next().into_iter().flat_map(|(_, reals)| reals.clone()));
            second.insert(key, (config, kept));
        }
        (first, second)
    })
}

/// Lowest port of own virtual servers; those below are foreign.
const OURS: u16 = 0x4000;

fn is_ours(key: &VirtualServerKey) -> bool {
    key.port().is_some_and(|port| port >= OURS)
}

fn diff(wanted: &Table, observed: &Table, policy: &SyncPolicy<'_>) -> Result<Batch, TestCaseError> {
    rules(wanted).diff(&snapshot(observed), policy).map_err(|error| TestCaseError::fail(format!("{error}")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_difference_makes_one_table_the_other((observed, wanted) in two_tables()) {
        let policy = SyncPolicy::owning_all();
        let batch = diff(&wanted, &observed, &policy)?;
        let after = apply_all(&observed, &batch)?;
        // The text is the batch: read again, it does the same.
        prop_assert_eq!(&parse_batch(&batch.to_string()).unwrap(), &batch);
        // The table after the batch is the wanted one; tunnels may be spelt in more than one way.
        prop_assert_eq!(diff(&wanted, &after, &policy)?.to_string(), "");
        prop_assert_eq!(diff(&after, &wanted, &policy)?.to_string(), "");
        prop_assert_eq!(after.keys().collect::<Vec<_>>(), wanted.keys().collect::<Vec<_>>());
        for (key, (_, reals)) in &wanted {
            prop_assert_eq!(after[key].1.keys().collect::<Vec<_>>(), reals.keys().collect::<Vec<_>>());
        }
    }

    /// No operation is there that could be left out.
    #[test]
    fn the_difference_is_the_least((observed, wanted) in two_tables(), left_out in any::<proptest::sample::Index>()) {
        let policy = SyncPolicy::owning_all();
        let batch = diff(&wanted, &observed, &policy)?;
        prop_assume!(!batch.is_empty());
        let left_out = left_out.index(batch.len());
        let mut after = observed.clone();
        let others = batch.iter().enumerate().filter(|(index, _)| *index != left_out);
        let all = others.map(|(_, operation)| apply(&mut after, operation)).collect::<Result<Vec<()>, _>>();
        prop_assert!(all.is_err() || !diff(&wanted, &after, &policy)?.is_empty(), "{}", batch.operations()[left_out]);
        // And none of them takes away what another one gives.
        for operation in &batch {
            if let Operation::DeleteVirtualServer(key) = operation {
                prop_assert!(!wanted.contains_key(key));
            }
        }
    }

    #[test]
    fn what_is_not_ours_is_untouched((observed, mut wanted) in two_tables()) {
        wanted.retain(|key, _| is_ours(key));
        let batch = diff(&wanted, &observed, &SyncPolicy::owning(is_ours))?;
        let after = apply_all(&observed, &batch)?;
        for operation in &batch {
            prop_assert!(is_ours(&operation.virtual_server()), "{}", operation);
        }
        for (key, content) in observed.iter().filter(|(key, _)| !is_ours(key)) {
            prop_assert_eq!(after.get(key), Some(content));
        }
        prop_assert_eq!(diff(&wanted, &after, &SyncPolicy::owning(is_ours))?.to_string(), "");
    }

    #[test]
    fn weights_of_others_stay((observed, wanted) in two_tables(), zeros in any::<bool>()) {
        let weights = if zeros { Weights::KeepZero } else { Weights::Keep };
        let policy = SyncPolicy::owning_all().with_weights(weights);
        let after = apply_all(&observed, &diff(&wanted, &observed, &policy)?)?;
        for (key, (_, reals)) in &wanted {
            for (real, config) in reals {
                let before = observed.get(key).and_then(|(_, reals)| reals.get(real)).map(|config| config.weight);
                let expected = match before {
                    Some(weight) if !zeros || weight == Weight::DRAIN => weight,
                    _ => config.weight,
                };
                prop_assert_eq!(after[key].1[real].weight, expected, "{} of {}", real, key);
            }
        }
        prop_assert_eq!(diff(&wanted, &after, &policy)?.to_string(), "");
    }
}

/// Persistence for a month at most: the kernel counts it in ticks of 32 bits, and one that is longer comes back as another.
fn within_a_month(mut table: Table) -> Table {
    for (config, _) in table.values_mut() {
        if let Some(persistence) = &mut config.persistence {
            persistence.timeout_secs %= 2_678_400;
        }
    }
    table
}

/// Without the order of virtual and real servers.
fn sorted(snapshot: &Snapshot) -> Ruleset {
    let mut rules = Ruleset::from(snapshot);
    rules.sort();
    rules
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The same through the client, its encoder and the fake kernel, which refuses what the kernel refuses.
    #[test]
    fn a_sync_makes_one_table_the_other((observed, wanted) in two_tables()) {
        let (observed, wanted) = (within_a_month(observed), within_a_month(wanted));
        let kernel = ipvs::fake::FakeIpvs::new();
        let mut client = kernel.client().unwrap();
        let policy = SyncPolicy::owning_all();
        let _some_are_refused = client.run(&Batch::from(&rules(&observed)));
        let before = client.snapshot().unwrap();
        let report = client.sync(&rules(&wanted), &policy).unwrap();
        prop_assert_eq!(&report.stopped, &None);
        let after = client.snapshot().unwrap();
        // The reported operations lead to the same table.
        let mut replayed = table(&sorted(&before));
        for operation in &report.done {
            apply(&mut replayed, operation)?;
        }
        let keys = |rules: &Ruleset| table(rules).into_iter().map(|(key, (_, reals))| (key, reals.into_keys().collect::<Vec<_>>()));
        prop_assert!(keys(&rules(&replayed)).eq(keys(&sorted(&after))));
        if report.is_done() {
            prop_assert_eq!(rules(&wanted).diff(&after, &policy).unwrap().to_string(), "");
        }
        // A second one finds nothing that could be done.
        let again = client.sync(&rules(&wanted), &policy).unwrap();
        prop_assert!(again.done.is_empty(), "{}", again.done);
        prop_assert_eq!(again.failures, report.failures);
        prop_assert_eq!(sorted(&client.snapshot().unwrap()), sorted(&after));
    }
}
