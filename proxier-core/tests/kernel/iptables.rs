//! Rules of iptables mode on the real kernel, through both back ends and for both families. They are read back as
//! written, foreign rules stay, and nothing is left at the end.

use iptables::Backend;
use proxier_core::kernel::PacketCounters;
use proxier_core::modes::iptables::{COUNTERS, Index, IptablesOptions, Wanted, changes, cleanup, update};
use proxier_core::net::Family;
use proxier_core::service::{Changes, Indexed};
use proxier_core::snapshot::ObjectKey;
use testkit::{Need, kernel_test};

use crate::corpus::{Scenario, corpus, facts, store};
use crate::rules::Kernel;

/// Foreign rules, one before each place of our jumps.
const FOREIGN: &str = include_str!("../rule_cases/dumps/others.rules");

#[track_caller]
fn is_as_wanted(kernel: &Kernel, wanted: &Wanted<'_>, name: &str) {
    let left = changes(wanted, &kernel.dump(), kernel.family).unwrap();
    assert!(left.is_empty(), "{name}:\n{left}");
}

/// About twenty scenarios that have the family.
fn sample(family: Family) -> Vec<Scenario> {
    let has_family = |scenario: &Scenario| scenario.families.iter().any(|served| served == family);
    let mut all: Vec<Scenario> = corpus().into_iter().filter(has_family).collect();
    let step = all.len() / 20;
    let mut places = 0..;
    all.retain(|_| places.next().unwrap_or(0) % step == 0);
    all
}

/// Changes from each scenario to the next, once by comparison with the kernel, once by the reported changes.
fn rules_are_read_back_as_they_were_written(kernel: &Kernel) {
    kernel.write(FOREIGN);
    let before = kernel.text();
    let mut counters = PacketCounters::default();
    let has_counters = COUNTERS.iter().all(|name| counters.make(name).is_ok());
    for (number, scenario) in sample(kernel.family).into_iter().enumerate() {
        let (facts, store) = (facts(&scenario), store(&scenario));
        let mut options = IptablesOptions::default();
        options.counters = has_counters && number % 2 == 0;
        let index = || Index::new(&facts, options);
        let full = Indexed::build(&store, &facts, index());
        // Changes by comparison.
        kernel.restore(&changes(&full.wanted(), &kernel.dump(), kernel.family).unwrap());
        is_as_wanted(kernel, &full.wanted(), &scenario.id);
        // Changes as reported: all Services go, and come back.
        let mut all = Indexed::build(&store, &facts, (index(), Changes::default()));
        drop(std::mem::take(&mut all.index.1));
        let services: Vec<ObjectKey> = store.services().map(|service| service.key.clone()).collect();
        all.refresh(&proxier_core::snapshot::Store::new("node-a"), &facts, &services);
        let gone = std::mem::take(&mut all.index.1);
        kernel.restore(&update(&all.index.0.wanted(&all.desired), &gone, kernel.family).unwrap().0);
        is_as_wanted(kernel, &all.index.0.wanted(&all.desired), &scenario.id);
        all.refresh(&store, &facts, &services);
        let back = std::mem::take(&mut all.index.1);
        kernel.restore(&update(&all.index.0.wanted(&all.desired), &back, kernel.family).unwrap().0);
        is_as_wanted(kernel, &full.wanted(), &scenario.id);
        assert_eq!(all.index.0.wanted(&all.desired), full.wanted());
        let text = kernel.text();
        let rules = before.lines().filter(|line| line.starts_with("-A"));
        rules.for_each(|rule| assert!(text.contains(rule), "{rule} is gone: {text}"));
    }
    kernel.restore(&cleanup(&kernel.dump(), &|_, _| false).unwrap());
    assert!(cleanup(&kernel.dump(), &|_, _| false).unwrap().is_empty());
    // The kubelet's chain keeps the rule that we added.
    let after = kernel.text();
    let rest: Vec<&str> = after.lines().filter(|line| !line.contains("block incoming localnet connections")).collect();
    assert_eq!(rest, before.lines().collect::<Vec<_>>());
}

macro_rules! cells {
    ($($cell:ident = $family:ident, $backend:ident, $need:ident;)*) => {$(
        #[test]
        fn $cell() {
            kernel_test(&[Need::Root, Need::$need], || {
                rules_are_read_back_as_they_were_written(&Kernel::new(Family::$family, Backend::$backend));
            });
        }
    )*};
}

cells! {
    nf_tables_v4 = V4, NfTables, IptablesNft;
    nf_tables_v6 = V6, NfTables, IptablesNft;
    legacy_v4 = V4, Legacy, IptablesLegacy;
    legacy_v6 = V6, Legacy, IptablesLegacy;
}
