//! Captured systems: what the probe says about each, against what is known of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use common::{Tree, find};
use kmod_probe::{
    ActiveAnswer, Answer, Backend, Capability, Families, Fix, Kconfig, LoadableModules, ModuleName, Profile, Report,
    State, SysctlState,
};

const SCHEDULERS: [&str; 14] =
    ["rr", "wrr", "lc", "wlc", "fo", "ovf", "lblc", "lblcr", "dh", "sh", "mh", "sed", "nq", "twos"];

fn all_schedulers() -> Profile {
    SCHEDULERS.iter().try_fold(Profile::default(), |profile, name| profile.scheduler(name)).unwrap()
}

fn states(report: &Report, names: &[&str]) -> Vec<State> {
    names.iter().map(|name| find(report, name).state).collect()
}

#[test]
fn debian_12_with_ipvs_in_use() {
    let tree = Tree::of("debian-12");
    let report = tree.report_for(Profile::default().families(Families::Dual));
    assert_eq!(report.verdict.answer, Answer::Yes, "{report}");
    assert_eq!(report.release.as_ref().unwrap().as_str(), "6.1.0-56-cloud-amd64");
    assert_eq!(report.module_support, Answer::Yes);
    // Modules in /proc/modules of the capture, each at its line.
    let loaded = std::fs::read_to_string(tree.root.join("proc/modules")).unwrap();
    for (name, module) in [("ip_vs", "ip_vs"), ("scheduler rr", "ip_vs_rr"), ("set hash:ip,port", "ip_set_hash_ipport")]
    {
        let line = 1 + loaded.lines().position(|line| line.split(' ').next() == Some(module)).unwrap();
        let finding = find(&report, name);
        assert_eq!(finding.state, State::Loaded, "{name}");
        assert_eq!(finding.evidence.as_ref().unwrap().to_string(), format!("/proc/modules:{line}"), "{name}");
    }
    // Not in /proc/modules of the capture, but installed.
    for name in ["scheduler wrr", "xt_addrtype", "iptable_nat", "ip6table_filter"] {
        assert_eq!(find(&report, name).state, State::Loadable, "{name}");
    }
    assert_eq!(find(&report, "ip_vs: IPv6").state, State::Loaded, "a part of ip_vs, switched on");
    assert_eq!(report.backends, [(Backend::Nft, Answer::Yes), (Backend::Legacy, Answer::Yes)]);
    assert_eq!(report.to_load(), [ModuleName::new("xt_addrtype").unwrap()], "iptables-nft needs nothing else");
    let conntrack = report.sysctls.iter().find(|sysctl| sysctl.name == "net/ipv4/vs/conntrack").unwrap();
    assert_eq!((conntrack.current.as_deref(), conntrack.wanted.as_str()), (Some("0"), "1"));
    assert_eq!(conntrack.state, SysctlState::Wrong);
}

#[test]
fn every_scheduler_and_set_type_by_distribution() {
    assert!(Profile::known_schedulers().eq(SCHEDULERS));
    let report = Tree::of("debian-12").report_for(all_schedulers().all_set_types());
    assert_eq!(report.findings.iter().filter(|finding| finding.name.starts_with("set ")).count(), 16);
    let missing = |report: &Report| -> Vec<String> {
        report
            .findings
            .iter()
            .filter(|finding| !finding.state.is_usable())
            .map(|finding| finding.name.clone())
            .collect()
    };
    assert_eq!(missing(&report), ["scheduler twos"], "Debian 12 has it switched off: {report}");
    assert_eq!(find(&report, "scheduler twos").fix, Some(Fix::KernelWith("IP_VS_TWOS".into())));
    let report = Tree::of("ubuntu-24.04-aws").report_for(all_schedulers().all_set_types());
    assert_eq!(report.verdict.answer, Answer::Yes, "{report}");
    assert!(missing(&report).is_empty(), "{report}");
}

#[test]
fn ubuntu_with_packed_modules_and_nothing_loaded() {
    let tree = Tree::of("ubuntu-24.04-aws");
    let report = tree.report();
    assert_eq!(report.verdict.answer, Answer::Yes, "{report}");
    let ip_vs = find(&report, "ip_vs");
    assert_eq!(ip_vs.state, State::Loadable);
    assert_eq!(ip_vs.fix.as_ref().unwrap().to_string(), "load with: modprobe ip_vs");
    let names: Vec<_> = report.to_load().iter().map(ToString::to_string).collect();
    for module in ["ip_vs", "ip_vs_rr", "ip_set_hash_ipportnet", "xt_set", "dummy", "nft_compat", "nft_chain_nat"] {
        assert!(names.iter().any(|name| name == module), "{module} in {names:?}");
    }
    assert!(!names.iter().any(|name| name == "iptable_nat"), "one backend is enough: {names:?}");

    tree.remove("lib/modules/6.8.0-1008-aws/kernel/net/netfilter/ipvs/ip_vs.ko.zst");
    let report = tree.report();
    assert_eq!(report.verdict.answer, Answer::No);
    let ip_vs = find(&report, "ip_vs");
    assert_eq!(ip_vs.state, State::Missing);
    assert!(matches!(&ip_vs.fix, Some(Fix::RestoreFile { path, .. }) if path.ends_with("/ip_vs.ko.zst")), "{ip_vs:?}");
    assert_eq!(report.verdict.reasons.len(), 1, "one reason for ip_vs and its parts: {:?}", report.verdict.reasons);
}

#[test]
fn usr_merged_system_through_an_absolute_link() {
    let tree = Tree::of("debian-13-usr-merged");
    let report = tree.report();
    assert_eq!(report.verdict.answer, Answer::Yes, "{report}");
    assert_eq!(
        find(&report, "scheduler wrr").evidence.as_ref().unwrap().path,
        "/lib/modules/6.12.107+deb13-cloud-amd64/modules.dep"
    );
    tree.remove("lib");
    let report = tree.report();
    assert_eq!(report.verdict.answer, Answer::Yes, "{report}");
    assert!(find(&report, "scheduler wrr").evidence.as_ref().unwrap().path.starts_with("/usr/lib/modules/"));
}

#[test]
fn a_kernel_without_modules() {
    let tree = Tree::of("no-modules");
    let report = tree.report();
    assert_eq!(report.module_support, Answer::No);
    assert_eq!(report.verdict.answer, Answer::No);
    let ip_vs = find(&report, "ip_vs");
    assert_eq!((ip_vs.state, &ip_vs.fix), (State::Missing, &Some(Fix::KernelWith("IP_VS".into()))));
    let obstacles = ["ip_vs", "dummy", "scheduler rr"];
    assert_eq!(report.verdict.reasons.len(), obstacles.len(), "{:?}", report.verdict.reasons);
    for (reason, obstacle) in report.verdict.reasons.iter().zip(obstacles) {
        assert!(reason.starts_with(&format!("{obstacle} is missing")), "{reason}");
    }
    for name in ["ip_set", "xt_set", "nf_conntrack", "set bitmap:port", "nft_compat", "nf_tables, IPv4", "iptable_nat"]
    {
        assert_eq!(find(&report, name).state, State::BuiltIn, "{name}");
    }

    // Without the configuration only /sys is left: nothing proves that ip_vs is missing.
    tree.remove("proc/config.gz");
    let report = tree.report();
    assert_eq!(report.module_support, Answer::No);
    assert_eq!(report.verdict.answer, Answer::Unknown, "{report}");
    assert_eq!(states(&report, &["ip_vs", "ip_set", "xt_set"]), [State::Unknown, State::BuiltIn, State::Unknown]);
}

#[test]
fn a_pod_that_sees_proc_and_nothing_else() {
    let tree = Tree::of("pod");
    let report = tree.report();
    assert_eq!(find(&report, "ip_vs").state, State::Loaded);
    assert_eq!(find(&report, "ip_vs: UDP").state, State::Unknown, "no configuration to look into");
    assert_eq!(find(&report, "xt_addrtype").state, State::Unknown, "not loaded, and no /lib/modules");
    assert_eq!(report.verdict.answer, Answer::Unknown);
    assert_eq!(report.verdict.reasons.len(), 1, "{:?}", report.verdict.reasons);
    assert!(report.verdict.reasons[0].contains("xt_addrtype") && report.verdict.reasons[0].contains("mount"));

    // The kernel's own word settles it.
    let mut asked = Vec::new();
    let report = tree.probe().run_with(&mut |capability: &Capability| {
        asked.push(capability.clone());
        match capability {
            Capability::XtMatch(name) if name == "addrtype" => ActiveAnswer::Works("revision 1".into()),
            Capability::Scheduler(name) if name == "wrr" => ActiveAnswer::Refused("ENOENT".into()),
            _ => ActiveAnswer::Unknown("not asked".into()),
        }
    });
    assert_eq!(report.verdict.answer, Answer::Yes, "{report}");
    assert!(report.verdict.caveats.iter().any(|caveat| caveat.contains("ip_vs: UDP")), "{report}");
    assert_eq!(find(&report, "xt_addrtype").state, State::Working);
    assert_eq!(find(&report, "scheduler wrr").state, State::Missing, "no list has it and the kernel refuses");
    for capability in [Capability::Ipset, Capability::GenlFamily("IPVS".into()), Capability::LinkKind("dummy".into())] {
        assert_eq!(asked.iter().filter(|known| **known == capability).count(), 1, "{capability:?}");
    }
}

/// A module or symbol that no real kernel has is a spelling mistake in the table.
#[test]
fn every_module_and_symbol_of_the_table_is_in_a_real_kernel() {
    let (mut modules, mut symbols) = (BTreeSet::new(), BTreeSet::new());
    for (name, release) in [
        ("debian-12", "6.1.0-56-cloud-amd64"),
        ("debian-13-usr-merged", "6.12.107+deb13-cloud-amd64"),
        ("ubuntu-24.04-aws", "6.8.0-1008-aws"),
    ] {
        let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/trees").join(name);
        let directory = if name == "debian-13-usr-merged" { "usr/lib/modules" } else { "lib/modules" };
        let dep = std::fs::read(tree.join(directory).join(release).join("modules.dep")).unwrap();
        modules.extend(LoadableModules::parse(&dep).unwrap().names().cloned());
        let config = std::fs::read(tree.join("boot").join(format!("config-{release}"))).unwrap();
        symbols.extend(Kconfig::parse(&config).unwrap().symbols().map(|(symbol, ..)| symbol.to_owned()));
    }
    let profile = all_schedulers().all_set_types();
    for requirement in profile.requirements() {
        let module = requirement.module.as_ref().unwrap();
        assert!(modules.contains(module), "{}: no kernel has {module}", requirement.name);
        let symbol = requirement.symbol.as_ref().unwrap();
        assert!(symbols.contains(symbol), "{}: no kernel has CONFIG_{symbol}", requirement.name);
    }
}

#[test]
fn modules_of_the_running_kernel_are_gone_after_an_upgrade() {
    let tree = Tree::of("debian-12");
    tree.write("proc/sys/kernel/osrelease", "6.12.107+deb13-cloud-amd64\n").write("proc/modules", "");
    let report = tree.report();
    let xt_set = find(&report, "xt_set");
    assert_eq!(xt_set.state, State::Unknown);
    assert!(xt_set.fix.as_ref().unwrap().to_string().contains("6.1.0-56-cloud-amd64"), "{:?}", xt_set.fix);
}

#[test]
fn the_table_is_for_people() {
    for tree in ["debian-12", "debian-13-usr-merged", "ubuntu-24.04-aws", "no-modules", "pod"] {
        let mut report = Tree::of(tree).report_for(all_schedulers().all_set_types().strict_arp(true));
        report.root = "/host".to_owned();
        let table = report.to_string();
        for line in table.lines() {
            assert!(line.chars().count() <= 100, "{tree}: {} columns: {line}", line.chars().count());
            assert!(!line.ends_with(' '), "{tree}: {line:?}");
        }
        assert!(table.contains(&format!("IPVS mode: {}", report.verdict.answer)));
        for finding in &report.findings {
            assert!(table.contains(&finding.name), "{tree}: {} is not in the table", finding.name);
        }
    }
}

#[cfg(feature = "serde")]
#[test]
fn a_report_survives_json() {
    for tree in ["debian-12", "no-modules", "pod"] {
        let report = Tree::of(tree).report();
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report, "{tree}");
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["verdict"]["answer"], report.verdict.answer.to_string());
        assert_eq!(value["findings"][0]["name"], "ip_vs");
    }
}
