//! Rules of iptables mode on the real kernel, through both back ends and for both families: they are read back as they are wanted, foreign rules
//! stay, and nothing is left at the end.

use iptables::{Backend, Dump, Iptables, System, Transaction};
use proxier_core::kernel::PacketCounters;
use proxier_core::modes::iptables::{COUNTERS, Index, Options, Wanted, changes, cleanup, update};
use proxier_core::net::Family;
use proxier_core::service::{Changes, Indexed};
use proxier_core::snapshot::ObjectKey;
use testkit::{Need, kernel_test, oracle};

use crate::corpus::{Scenario, corpus, facts, store};

/// Foreign rules, one before each place of our jumps.
const FOREIGN: &str = "\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:KUBE-FIREWALL - [0:0]
:cali-FORWARD - [0:0]
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL -m comment --comment \"somebody else's\" -m mark --mark 0x8000/0x8000 -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:KUBE-MARK-DROP - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
COMMIT
";

struct Kernel {
    family: Family,
    programs: Iptables,
}

impl Kernel {
    fn oracle(&self) -> (oracle::Backend, oracle::Family) {
        let backend = match self.programs.backend() {
            Backend::Legacy => oracle::Backend::Legacy,
            Backend::NfTables => oracle::Backend::Nft,
        };
        (backend, if self.family == Family::V4 { oracle::Family::V4 } else { oracle::Family::V6 })
    }

    /// Output of `iptables-save`, without dates and counters.
    fn text(&self) -> String {
        let (backend, family) = self.oracle();
        let saved = oracle::iptables_save(backend, family).unwrap();
        let plain = saved.lines().filter(|line| !line.starts_with('#'));
        plain.map(|line| line.split_once(" [").map_or(line, |(chain, _)| chain).to_owned() + "\n").collect()
    }

    fn dump(&self) -> Dump {
        let (backend, family) = self.oracle();
        Dump::parse(oracle::iptables_save(backend, family).unwrap()).unwrap()
    }

    fn restore(&self, transaction: &Transaction) {
        if let Err(error) = self.programs.restore(transaction) {
            panic!("{error}\n{transaction}");
        }
    }

    #[track_caller]
    fn check(&self, wanted: &Wanted<'_>, name: &str) {
        let left = changes(wanted, &self.dump(), self.family).unwrap();
        assert!(left.is_empty(), "{name}:\n{left}");
    }
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
    let (backend, family) = kernel.oracle();
    oracle::iptables_restore(backend, family, FOREIGN).unwrap();
    let before = kernel.text();
    let mut counters = PacketCounters::new();
    let has_counters = COUNTERS.iter().all(|name| counters.make(name).is_ok());
    for (number, scenario) in sample(kernel.family).into_iter().enumerate() {
        let (facts, store) = (facts(&scenario), store(&scenario));
        let mut options = Options::default();
        options.counters = has_counters && number % 2 == 0;
        let index = || Index::new(&facts, options);
        let full = Indexed::build(&store, &facts, index());
        // Changes by comparison.
        kernel.restore(&changes(&full.wanted(), &kernel.dump(), kernel.family).unwrap());
        kernel.check(&full.wanted(), &scenario.id);
        // Changes as reported: all Services go, and come back.
        let mut all = Indexed::build(&store, &facts, (index(), Changes::default()));
        all.take_changes();
        let services: Vec<ObjectKey> = store.services().map(|service| service.key.clone()).collect();
        all.refresh(&proxier_core::snapshot::Store::new("node-a"), &facts, &services);
        let gone = all.take_changes();
        kernel.restore(&update(&all.wanted(), &gone, kernel.family).unwrap());
        kernel.check(&all.wanted(), &scenario.id);
        all.refresh(&store, &facts, &services);
        let back = all.take_changes();
        kernel.restore(&update(&all.wanted(), &back, kernel.family).unwrap());
        kernel.check(&full.wanted(), &scenario.id);
        assert_eq!(all.wanted(), full.wanted());
        let text = kernel.text();
        let rules = before.lines().filter(|line| line.starts_with("-A"));
        rules.for_each(|rule| assert!(text.contains(rule), "{rule} is gone: {text}"));
    }
    kernel.restore(&cleanup(&kernel.dump()).unwrap());
    assert!(cleanup(&kernel.dump()).unwrap().is_empty());
    // The kubelet's chain keeps the rule that we added.
    let after = kernel.text();
    let rest: Vec<&str> = after.lines().filter(|line| !line.contains("block incoming localnet connections")).collect();
    assert_eq!(rest, before.lines().collect::<Vec<_>>());
}

macro_rules! cells {
    ($($cell:ident = $family:ident, $named:ident, $backend:ident, $need:ident;)*) => {$(
        #[test]
        fn $cell() {
            kernel_test(&[Need::Root, Need::$need], || {
                let programs = Iptables::open(System::new(), iptables::Family::$named, Backend::$backend).unwrap();
                rules_are_read_back_as_they_were_written(&Kernel { family: Family::$family, programs });
            });
        }
    )*};
}

cells! {
    nf_tables_v4 = V4, Ipv4, NfTables, IptablesNft;
    nf_tables_v6 = V6, Ipv6, NfTables, IptablesNft;
    legacy_v4 = V4, Ipv4, Legacy, IptablesLegacy;
    legacy_v6 = V6, Ipv6, Legacy, IptablesLegacy;
}
