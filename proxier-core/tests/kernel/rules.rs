//! Rules on the real kernel, through both back ends of iptables and for both families. They are read back as written,
//! foreign rules stay byte for byte, and nothing is left at the end.

use iptables::{Backend, Dump, Iptables, System, Transaction};
use proxier_core::config::NamePrefix;
use proxier_core::modes::ipvs::rules::{Rules, cleanup};
use proxier_core::net::Family;
use proxier_core::ports::SetKey;
use testkit::{Need, kernel_test, missing, oracle};

use crate::rule_cases::{FOREIGN, JUMPS, cases, foreign_part, lines, older};

/// The tables of a family in the test's network namespace, through one back end.
pub(crate) struct Kernel {
    pub(crate) family: Family,
    programs: Iptables,
}

impl Kernel {
    pub(crate) fn new(family: Family, backend: Backend) -> Self {
        Kernel { family, programs: Iptables::open(System::new(), family.into(), backend).unwrap() }
    }

    fn with_sets(family: Family, backend: Backend) -> Self {
        let mut sets = ipset::Client::open().unwrap();
        for set in SetKey::all(family) {
            sets.create_set(&set.named(NamePrefix::KUBE).spec_for(0).unwrap()).unwrap();
        }
        Kernel::new(family, backend)
    }

    fn oracle(&self) -> (oracle::Backend, oracle::Family) {
        let backend = match self.programs.backend() {
            Backend::Legacy => oracle::Backend::Legacy,
            Backend::NfTables => oracle::Backend::Nft,
        };
        (backend, if self.family == Family::V4 { oracle::Family::V4 } else { oracle::Family::V6 })
    }

    /// Output of `iptables-save`, without dates, and without the counters of built-in chains.
    pub(crate) fn text(&self) -> String {
        let (backend, family) = self.oracle();
        let saved = oracle::iptables_save(backend, family).unwrap();
        let mut text = String::new();
        for line in saved.lines().filter(|line| !line.starts_with('#')) {
            let counted = line.starts_with(':');
            text.push_str(line.split_once(" [").filter(|_| counted).map_or(line, |(chain, _)| chain));
            text.push_str(if counted { " [0:0]\n" } else { "\n" });
        }
        text
    }

    pub(crate) fn write(&self, text: &str) {
        let (backend, family) = self.oracle();
        oracle::iptables_restore(backend, family, text).unwrap();
    }

    pub(crate) fn dump(&self) -> Dump {
        let (backend, family) = self.oracle();
        Dump::parse(oracle::iptables_save(backend, family).unwrap()).unwrap()
    }

    pub(crate) fn restore(&self, transaction: &Transaction) {
        if let Err(error) = self.programs.restore(transaction) {
            panic!("{error}\n{transaction}");
        }
    }

    /// Brings the kernel to these rules, and checks that it has them.
    #[track_caller]
    fn apply(&self, rules: &Rules, name: &str) {
        self.restore(&rules.changes(&self.dump()).unwrap().transaction);
        let left = rules.changes(&self.dump()).unwrap();
        assert!(left.is_empty(), "{name}:\n{left:#?}");
    }

    #[track_caller]
    fn clean_up(&self) {
        self.restore(&cleanup(&self.dump(), NamePrefix::KUBE, &|_, _| false).unwrap().transaction);
        assert!(cleanup(&self.dump(), NamePrefix::KUBE, &|_, _| false).unwrap().is_empty());
    }
}

fn on(family: Family, backend: Backend, more: &[Need], test: impl FnOnce(&Kernel)) {
    let tables = match backend {
        Backend::Legacy => Need::IptablesLegacy,
        Backend::NfTables => Need::IptablesNft,
    };
    let types = ["hash:ip", "hash:ip,port", "hash:ip,port,ip", "hash:ip,port,net", "bitmap:port"];
    let mut needs = vec![Need::Root, tables];
    needs.extend(types.map(Need::Ipset));
    needs.extend(more);
    kernel_test(&needs, || test(&Kernel::with_sets(family, backend)));
}

/// The match `ipvs` exists where IPVS does.
fn has_ipvs_match() -> bool {
    missing(Need::IpVs).is_none()
}

/// Goes from each case to the next, so that rules change in place, and back to the rules before.
fn every_case_is_read_back_as_it_was_written(kernel: &Kernel) {
    kernel.write(FOREIGN);
    let before = kernel.text();
    assert_eq!(foreign_part(&before), before);
    for mut case in cases() {
        case.capabilities.ipvs &= has_ipvs_match();
        kernel.apply(&case.rules(kernel.family), case.name);
        let text = kernel.text();
        assert_eq!(foreign_part(&text), before, "{}", case.name);
        for (table, jump) in JUMPS {
            assert_eq!(lines(&text, table).iter().filter(|line| *line == jump).count(), 1, "{jump}: {text}");
        }
    }
    kernel.clean_up();
    assert_eq!(kernel.text(), before);
}

/// A host without rules: afterwards it has no rule, and only built-in chains.
fn a_fresh_host_is_left_without_a_rule(kernel: &Kernel) {
    let case = cases().swap_remove(0);
    kernel.apply(&case.rules(kernel.family), case.name);
    let text = kernel.text();
    for (table, jump) in JUMPS {
        assert!(lines(&text, table).contains(jump), "{jump}: {text}");
    }
    let input: Vec<&str> = lines(&text, "filter").into_iter().filter(|line| line.starts_with("-A INPUT")).collect();
    assert_eq!(input, [JUMPS[3].1, JUMPS[4].1, JUMPS[5].1]);
    kernel.clean_up();
    let text = kernel.text();
    let rest = text.lines().filter(|line| !matches!(line.chars().next(), Some('*')) && *line != "COMMIT");
    let own: Vec<&str> = rest.filter(|line| !line.contains(" ACCEPT [")).collect();
    assert_eq!(own, [""; 0], "{text}");
}

/// Chains of kube-proxy 1.23, jumps in another order, twice, and in the form of its iptables mode.
fn what_older_versions_left_is_taken_over(kernel: &Kernel) {
    kernel.write(&older(kernel.family));
    let mut case = cases().into_iter().find(|case| case.name == "everything at once").unwrap();
    case.capabilities.ipvs &= has_ipvs_match();
    kernel.apply(&case.rules(kernel.family), "older");
    let text = kernel.text();
    assert!(!text.contains("KUBE-FIRE-WALL") && !text.contains("load balancer firewall"), "{text}");
    for (table, jump) in JUMPS {
        assert_eq!(lines(&text, table).iter().filter(|line| *line == jump).count(), 1, "{jump}: {text}");
    }
    kernel.clean_up();
    let text = kernel.text();
    let kube: Vec<&str> = text.lines().filter(|line| line.contains("KUBE-")).collect();
    assert_eq!(
        kube,
        [":KUBE-MARK-DROP - [0:0]", "-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000"],
        "the kubelet's"
    );
}

/// A foreign change to one table: only the difference is written again.
fn changes_by_other_programs_are_repaired(kernel: &Kernel) {
    kernel.write(FOREIGN);
    let case = cases().into_iter().find(|case| case.name == "load balancer").unwrap();
    let rules = case.rules(kernel.family);
    kernel.apply(&rules, case.name);
    let good = kernel.text();
    let (backend, _) = kernel.oracle();
    let suffix = if backend == oracle::Backend::Nft { "nft" } else { "legacy" };
    let program = if kernel.family == Family::V4 { "iptables" } else { "ip6tables" };
    let spoil = [
        "-t nat -A KUBE-MARK-MASQ -j ACCEPT",
        "-t nat -F KUBE-SERVICES",
        "-t nat -D KUBE-POSTROUTING 1",
        "-t filter -D INPUT -m comment --comment COMMENT -j KUBE-PROXY-FIREWALL",
        "-t filter -I KUBE-IPVS-FILTER 1 -j RETURN",
        "-t filter -F INPUT",
    ];
    for command in spoil {
        let comment = |word| if word == "COMMENT" { "kube-proxy firewall rules" } else { word };
        let words: Vec<&str> = ["-w"].into_iter().chain(command.split(' ').map(comment)).collect();
        oracle::run(&format!("{program}-{suffix}"), &words, None).unwrap();
        let changes = rules.changes(&kernel.dump()).unwrap();
        assert!(!changes.is_empty(), "{command}");
        kernel.apply(&rules, command);
        let (mended, mut wanted) = (kernel.text(), good.clone());
        if command.ends_with("-F INPUT") {
            // Foreign rules were lost with ours; their owners have to restore them.
            let ours = |line: &&str| !line.starts_with("-A INPUT") || JUMPS.iter().any(|(_, jump)| jump == line);
            wanted = good.lines().filter(ours).flat_map(|line| [line, "\n"]).collect();
        }
        assert_eq!(mended, wanted, "{command}");
    }
}

/// The rules of `KUBE-IPVS-OUT-FILTER`, which need the match `ipvs`.
fn load_balancers_are_barred_from_the_node(kernel: &Kernel) {
    let case = cases().into_iter().find(|case| case.name == "source ranges without the node").unwrap();
    kernel.apply(&case.rules(kernel.family), case.name);
    let text = kernel.text();
    let barred: Vec<&str> = text.lines().filter(|line| line.starts_with("-A KUBE-IPVS-OUT-FILTER")).collect();
    assert_eq!(barred.len(), 3, "{text}");
    let vip = if kernel.family == Family::V4 { "203.0.113.5" } else { "2001:db8:f::5" };
    assert!(barred.iter().all(|line| line.contains(&format!("--vaddr {vip}")) && line.ends_with("-j DROP")), "{text}");
    kernel.clean_up();
}

macro_rules! cells {
    ($($cell:ident = $family:ident, $backend:ident;)*) => {$(
        cells! {
            @cell $cell, $family, $backend,
            every_case_is_read_back_as_it_was_written: [],
            a_fresh_host_is_left_without_a_rule: [],
            what_older_versions_left_is_taken_over: [],
            changes_by_other_programs_are_repaired: [],
            load_balancers_are_barred_from_the_node: [super::Need::IpVs],
        }
    )*};
    (@cell $cell:ident, $family:ident, $backend:ident, $($case:ident: $needs:expr,)*) => {
        mod $cell {
            $(
                #[test]
                fn $case() {
                    super::on(super::Family::$family, super::Backend::$backend, &$needs, super::$case);
                }
            )*
        }
    };
}

cells! {
    nf_tables_v4 = V4, NfTables;
    nf_tables_v6 = V6, NfTables;
    legacy_v4 = V4, Legacy;
    legacy_v6 = V6, Legacy;
}
