//! Weight of evidence when lists contradict each other, one rule a test; and the effect of bad input on it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

mod common;

use std::os::unix::process::CommandExt;
use std::process::Command;

use common::{Tree, find};
use kmod_probe::{
    ActiveAnswer, Answer, Capability, ErrorKind, EvidenceKind, Failure, Fix, Profile, Requirement, State, Sysctl,
    SysctlState,
};

const RELEASE: &str = "6.1.0-56-cloud-amd64";
const CONFIG: &str = "boot/config-6.1.0-56-cloud-amd64";
const DEP: &str = "lib/modules/6.1.0-56-cloud-amd64/modules.dep";
const BUILTIN: &str = "lib/modules/6.1.0-56-cloud-amd64/modules.builtin";

/// Debian 12 just booted: nothing of IPVS in memory.
fn fresh() -> Tree {
    let tree = Tree::of("debian-12");
    tree.write("proc/modules", "libcrc32c 16384 0 - Live 0x0\n").remove("sys").remove("proc/sys/net/ipv4/vs");
    tree
}

fn state(tree: &Tree, name: &str) -> State {
    find(&tree.report(), name).state
}

#[test]
fn a_loaded_module_beats_everything() {
    let tree = fresh();
    tree.write("proc/modules", "ip_vs 1 0 - Live 0x0\n").edit(
        CONFIG,
        "CONFIG_IP_VS=m",
        Some("# CONFIG_IP_VS is not set"),
    );
    tree.edit(DEP, "/ip_vs.ko", None).edit(BUILTIN, "unix", Some("kernel/net/netfilter/ipvs/ip_vs.ko"));
    let report = tree.report();
    let ip_vs = find(&report, "ip_vs");
    assert_eq!(ip_vs.state, State::Loaded);
    let kinds: Vec<_> = ip_vs.evidence.iter().map(|evidence| evidence.kind).collect();
    assert_eq!(kinds, [EvidenceKind::Loaded, EvidenceKind::Builtin, EvidenceKind::Config], "the contradiction is kept");
}

#[test]
fn built_in_by_list_then_by_configuration_then_installed() {
    let tree = fresh();
    assert_eq!(state(&tree, "ip_vs"), State::Loadable);
    tree.edit(CONFIG, "CONFIG_IP_VS=m", Some("CONFIG_IP_VS=y"));
    assert_eq!(state(&tree, "ip_vs"), State::BuiltIn);
    tree.edit(CONFIG, "CONFIG_IP_VS=y", Some("# CONFIG_IP_VS is not set"));
    assert_eq!(state(&tree, "ip_vs"), State::Loadable, "an out-of-tree module is a module");
    tree.edit(BUILTIN, "unix", Some("kernel/net/netfilter/ipvs/ip-vs.ko"));
    assert_eq!(state(&tree, "ip_vs"), State::BuiltIn, "with - for _");
}

#[test]
fn a_configuration_alone_tells_of_a_built_in_module_and_its_parts() {
    let tree = Tree::empty();
    tree.write("proc/sys/kernel/osrelease", "5.15.167.4-microsoft-standard-WSL2\n");
    tree.write(
        "proc/config.gz",
        "CONFIG_MODULES=y\nCONFIG_IP_VS=y\nCONFIG_IP_VS_PROTO_TCP=y\n# CONFIG_IP_VS_IPV6 is not set\n",
    );
    let report = tree.report();
    assert_eq!(find(&report, "ip_vs").state, State::BuiltIn);
    assert_eq!(find(&report, "ip_vs: TCP").state, State::BuiltIn);
    assert_eq!(find(&report, "ip_vs: IPv6").state, State::Missing);
    assert_eq!(find(&report, "ip_vs: UDP").state, State::Missing, "a whole configuration that does not mention it");
}

#[test]
fn names_are_never_parts_of_names() {
    let tree = fresh();
    tree.write(DEP, "kernel/elsewhere/ip_vs_rr.ko: kernel/net/netfilter/ipvs/ip_vs.ko\n");
    tree.write(BUILTIN, "kernel/x/my_ip_vs.ko\nkernel/x/ip_vs_more.ko\nkernel/x/ip_vsxko\n");
    tree.write("proc/modules", "ip_vs_wrr 1 0 - Live 0x0\n");
    assert_eq!(state(&tree, "ip_vs"), State::Missing);
    assert_eq!(state(&tree, "scheduler rr"), State::Missing, "its file was never there: only modules.dep names it");
    assert_eq!(state(&tree, "scheduler wrr"), State::Loaded);
}

#[test]
fn a_module_that_is_leaving_or_coming_is_not_loaded() {
    let tree = fresh();
    for doing in ["Unloading", "Loading"] {
        tree.write("proc/modules", format!("ip_vs 1 0 - {doing} 0x0\n"));
        assert_eq!(state(&tree, "ip_vs"), State::Loadable, "{doing}");
    }
    tree.write("sys/module/ip_vs/initstate", "going\n");
    assert_eq!(state(&tree, "ip_vs"), State::Loadable);
    tree.write("sys/module/ip_vs/initstate", "live\n");
    assert_eq!(state(&tree, "ip_vs"), State::Loaded);
    tree.remove("sys/module/ip_vs/initstate").write("sys/module/ip_vs/parameters/conn_tab_bits", "12\n");
    assert_eq!(state(&tree, "ip_vs"), State::BuiltIn, "only a loaded module has an initstate");
}

#[test]
fn built_as_a_module_that_is_not_installed() {
    let tree = fresh();
    tree.edit(DEP, "/ip_vs.ko", None);
    let report = tree.report();
    let ip_vs = find(&report, "ip_vs");
    assert_eq!(ip_vs.state, State::Missing);
    assert!(matches!(&ip_vs.fix, Some(Fix::InstallModule { release, .. }) if release == RELEASE), "{ip_vs:?}");
    assert!(ip_vs.evidence.iter().any(|evidence| evidence.says == "CONFIG_IP_VS=m"));
    assert_eq!(report.verdict.answer, Answer::No);
    // No configuration: both lists are whole and neither has it.
    tree.remove(CONFIG);
    assert_eq!(state(&tree, "ip_vs"), State::Missing);
    // A list that is cut off proves nothing.
    let list = std::fs::read(tree.root.join(DEP)).unwrap();
    tree.write(DEP, &list[..list.len() - 3]);
    assert_eq!(state(&tree, "ip_vs"), State::Unknown);
    assert_eq!(find(&tree.report(), "ip_vs").fix, Some(Fix::RunDepmod(RELEASE.into())));
}

#[test]
fn not_set_and_not_mentioned() {
    let tree = fresh();
    tree.edit(DEP, "/ip_vs.ko", None).edit(CONFIG, "CONFIG_IP_VS=m", Some("# CONFIG_IP_VS is not set"));
    assert_eq!(find(&tree.report(), "ip_vs").fix, Some(Fix::KernelWith("IP_VS".into())));
    tree.edit(CONFIG, "CONFIG_IP_VS is not set", None);
    assert_eq!(state(&tree, "ip_vs"), State::Missing);
    // Half a configuration that does not mention it says nothing; the lists still do.
    let config = std::fs::read(tree.root.join(CONFIG)).unwrap();
    tree.write(CONFIG, &config[..config.len() - 1]).remove(BUILTIN);
    assert_eq!(state(&tree, "ip_vs"), State::Unknown);
}

#[test]
fn without_lib_modules_a_module_is_unknown_not_missing() {
    let tree = fresh();
    tree.remove("lib");
    let report = tree.report();
    let ip_vs = find(&report, "ip_vs");
    assert_eq!(ip_vs.state, State::Unknown);
    assert_eq!(ip_vs.fix, Some(Fix::MountModules { release: RELEASE.into(), others: vec![] }));
    assert_eq!(report.verdict.answer, Answer::Unknown);
    let reasons = &report.verdict.reasons;
    assert_eq!(reasons.len(), 2, "one for all modules, one for iptables: {reasons:?}");
    assert!(reasons.iter().all(|reason| reason.contains("mount")), "{reasons:?}");
    assert!(reasons[0].starts_with("not known: ip_vs; nf_conntrack; "), "{reasons:?}");
    tree.edit(CONFIG, "CONFIG_DUMMY=m", Some("# CONFIG_DUMMY is not set"));
    let report = tree.report();
    assert_eq!(report.verdict.answer, Answer::No, "one thing that is surely missing decides");
    assert_eq!(report.verdict.reasons.len(), 1, "{:?}", report.verdict.reasons);
}

#[test]
fn module_loading_switched_off_until_the_next_boot() {
    let tree = fresh();
    tree.write("proc/sys/kernel/modules_disabled", "1\n");
    let report = tree.report();
    assert_eq!(report.verdict.answer, Answer::No);
    assert!(matches!(find(&report, "ip_vs").fix, Some(Fix::ModulesDisabled(_))));
    assert_eq!(find(&report, "ip_vs: UDP").state, State::Missing, "a part is what the whole is");
}

#[test]
fn a_switch_that_is_off_is_missing_and_one_out_of_sight_is_a_caveat() {
    let tree = fresh();
    tree.edit(CONFIG, "CONFIG_IP_VS_PROTO_UDP=y", Some("# CONFIG_IP_VS_PROTO_UDP is not set"));
    let report = tree.report();
    assert_eq!(find(&report, "ip_vs: UDP").state, State::Missing);
    assert_eq!(find(&report, "ip_vs: TCP").state, State::Loadable);
    assert_eq!(report.verdict.answer, Answer::No);
    tree.remove(CONFIG);
    let report = tree.report();
    assert_eq!(find(&report, "ip_vs: UDP").state, State::Unknown);
    assert_eq!(report.verdict.answer, Answer::Yes, "{report}");
    assert!(report.verdict.caveats.iter().any(|caveat| caveat.contains("ip_vs: UDP")));
}

#[test]
fn the_kernels_own_yes_beats_all_lists_and_its_no_beats_none() {
    let tree = fresh();
    tree.edit(CONFIG, "CONFIG_IP_VS=m", Some("# CONFIG_IP_VS is not set")).edit(DEP, "/ip_vs.ko", None);
    let report = tree.probe().run_with(&mut |capability: &Capability| match capability {
        Capability::GenlFamily(_) => ActiveAnswer::Works("family id 33".into()),
        Capability::LinkKind(_) => ActiveAnswer::Refused("EOPNOTSUPP".into()),
        _ => ActiveAnswer::Unknown(String::new()),
    });
    let ip_vs = find(&report, "ip_vs");
    assert_eq!((ip_vs.state, &ip_vs.fix), (State::Working, &None));
    assert_eq!(ip_vs.evidence[0].kind, EvidenceKind::Active);
    let dummy = find(&report, "dummy");
    assert_eq!(dummy.state, State::Loadable, "a module that is not loaded refuses too");
    assert!(dummy.evidence.iter().any(|evidence| evidence.says.contains("EOPNOTSUPP")));
}

#[test]
fn a_set_type_nobody_knows_is_left_to_the_kernel() {
    let profile = || Profile::default().set_type("hash:made,up");
    let tree = fresh();
    let report = tree.report_for(profile());
    assert_eq!(find(&report, "set hash:made,up").state, State::Unknown);
    assert_eq!(report.verdict.answer, Answer::Unknown);
    let report = tree.probe().profile(profile()).run_with(&mut |capability: &Capability| match capability {
        Capability::SetType(name) if name == "hash:made,up" => ActiveAnswer::Works("revisions 0-1".into()),
        _ => ActiveAnswer::Unknown(String::new()),
    });
    assert_eq!(report.verdict.answer, Answer::Yes, "{report}");
}

#[test]
fn an_empty_machine_is_unknown_and_says_what_to_do() {
    let tree = Tree::empty();
    let report = tree.report();
    assert_eq!(report.verdict.answer, Answer::Unknown);
    assert!(report.release.is_none());
    assert!(report.findings.iter().all(|finding| finding.state == State::Unknown));
    assert_eq!(find(&report, "ip_vs").fix, Some(Fix::ShowRelease));
    assert!(report.to_string().contains("not used: /proc/sys/kernel/osrelease (not there)"));
    assert_eq!(Tree::empty().probe().root("/no/such/root").run().verdict.answer, Answer::Unknown);
}

#[test]
fn garbage_in_every_file_is_unknown_with_the_reason() {
    let huge = vec![b'x'; (16 << 20) + 1];
    let random: Vec<u8> = (0..4096_u32).map(|n| u8::try_from(n.wrapping_mul(2_654_435_761) >> 24).unwrap()).collect();
    for (what, bytes) in [
        ("binary", &b"\x7fELF\x02\x01\x01\0\0\0"[..]),
        ("a web page", b"<!DOCTYPE html>\n<html><body>404</body></html>\n<p>not found</p>\n"),
        ("random bytes", &random),
        ("too large", &huge),
    ] {
        let tree = fresh();
        for path in ["proc/modules", DEP, BUILTIN, CONFIG, "lib/modules/6.1.0-56-cloud-amd64/modules.builtin.modinfo"] {
            tree.write(path, bytes);
        }
        tree.write("proc/sys/net/ipv4/ip_forward", bytes);
        let report = tree.report();
        assert_eq!(report.verdict.answer, Answer::Unknown, "{what}: {report}");
        assert!(report.findings.iter().all(|finding| finding.state == State::Unknown), "{what}: {report}");
        for source in
            report.sources.iter().filter(|source| source.path.contains("modules.") || source.path.contains("config"))
        {
            let told = matches!(source.failure, Some(Failure::Garbage(_) | Failure::TooLarge(_)));
            assert!(told, "{what}: {source:?}");
        }
        assert!(report.to_string().lines().all(|line| line.chars().count() <= 100), "{what}");
    }
}

#[test]
fn a_release_that_is_no_file_name_is_refused() {
    let tree = fresh();
    for release in ["../../etc", "6.1/../../x", "6.1.0 with spaces", "", "\n\n", "6.1\n6.2", "linux"] {
        tree.write("proc/sys/kernel/osrelease", release);
        let report = tree.report();
        assert!(report.release.is_none(), "{release:?}");
        assert_eq!(find(&report, "ip_vs").fix, Some(Fix::ShowRelease));
    }
}

#[test]
fn text_with_windows_line_ends_is_read() {
    let tree = fresh();
    for path in ["proc/sys/kernel/osrelease", "proc/modules", DEP, BUILTIN, CONFIG] {
        let text = std::fs::read_to_string(tree.root.join(path)).unwrap();
        tree.write(path, text.replace('\n', "\r\n"));
    }
    let report = tree.report();
    assert_eq!(report.verdict.answer, Answer::Yes, "{report}");
    assert_eq!(find(&report, "ip_vs").state, State::Loadable);
}

#[test]
fn loops_directories_and_pipes_are_neither_followed_nor_opened() {
    let tree = fresh();
    tree.remove(CONFIG).link(CONFIG, "config-6.1.0-56-cloud-amd64");
    tree.remove("proc/modules").write("proc/modules/a-file-in-it", "");
    tree.remove(DEP);
    assert!(Command::new("mkfifo").arg(tree.root.join(DEP)).status().unwrap().success());
    let report = tree.report();
    let failure = |part: &str| report.sources.iter().find(|s| s.path.contains(part)).unwrap().failure.clone();
    assert_eq!(failure("boot/config"), Some(Failure::Loop));
    assert_eq!(failure("proc/modules"), Some(Failure::NotAFile));
    assert_eq!(failure("modules.dep"), Some(Failure::NotAFile));
    assert_eq!(report.verdict.answer, Answer::Unknown, "{report}");
}

#[test]
fn a_link_does_not_lead_out_of_the_root() {
    let outside = Tree::empty();
    outside.write("config", "CONFIG_IP_VS=y\n");
    let tree = fresh();
    tree.remove(CONFIG).link(CONFIG, outside.root.join("config").to_str().unwrap());
    assert_eq!(state(&tree, "ip_vs"), State::Loadable, "not built in by the configuration outside");
    let up = "../".repeat(30);
    tree.remove(CONFIG).link(CONFIG, &format!("{up}{}", outside.root.join("config").display()));
    assert_eq!(state(&tree, "ip_vs"), State::Loadable);
    tree.write("inside", "CONFIG_IP_VS=y\n").remove(CONFIG).link(CONFIG, &format!("{up}inside"));
    assert_eq!(state(&tree, "ip_vs"), State::BuiltIn, "/ is the root's own top");
}

/// A file that may not be read is not absent. Root may read everything, so the test runs itself a second time as another user.
#[test]
fn unreadable_is_not_absent() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    const AGAIN: &str = "KMOD_PROBE_TREE_AS_NOBODY";
    if let Ok(root) = std::env::var(AGAIN) {
        let report = kmod_probe::Probe::new().root(root).run();
        let failure = |part: &str| report.sources.iter().find(|s| s.path.contains(part)).unwrap().failure.clone();
        assert_eq!(failure("modules.dep"), Some(Failure::Denied));
        assert_eq!(failure("boot/config"), Some(Failure::Denied));
        assert_eq!(find(&report, "ip_vs").state, State::Unknown);
        assert_eq!(find(&report, "ip_vs").fix, Some(Fix::GrantRead(format!("/{DEP}"))));
        assert_eq!(find(&report, "ip_vs: UDP").fix, Some(Fix::GrantRead(format!("/{CONFIG}"))));
        assert!(
            report.sysctls.iter().any(|s| s.name == "net/ipv4/ip_forward" && s.access == kmod_probe::Access::Denied)
        );
        return;
    }
    let tree = fresh();
    tree.write("proc/sys/net/ipv4/ip_forward", "0\n");
    let tree = tree.where_everybody_may_look();
    for (path, mode) in [(DEP, 0o000), (CONFIG, 0o000), ("proc/sys/net/ipv4/ip_forward", 0o444)] {
        std::fs::set_permissions(tree.root.join(path), PermissionsExt::from_mode(mode)).unwrap();
    }
    let program = testkit::Executable::this().unwrap();
    let mut again = Command::new(program.path());
    again.args(["--exact", "unreadable_is_not_absent", "--nocapture"]).env(AGAIN, &tree.root);
    let effective_user = std::fs::metadata("/proc/self").unwrap().uid();
    if effective_user == 0 {
        again.uid(65534).gid(65534);
    }
    let output = again.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(ran, "the inner run did not happen: {}", String::from_utf8_lossy(&output.stdout));
}

/// An own requirement of each kind, on Debian's kernel: the tree's lists say what is there.
#[test]
fn own_requirements_are_judged_by_the_same_evidence() {
    let tree = fresh();
    let judged = |requirement: Requirement| {
        let report = tree.report_for(Profile::own("agent").require(requirement));
        assert_eq!((report.findings.len(), report.sysctls.len(), report.backends.len()), (1, 0, 0), "{report}");
        let finding = report.findings[0].clone();
        let expected = match finding.state {
            State::Missing => Answer::No,
            State::Unknown => Answer::Unknown,
            _ => Answer::Yes,
        };
        assert_eq!(report.verdict.answer, expected, "{report}");
        assert!(report.to_string().contains(&format!("agent: {expected}\n")), "{report}");
        (finding.state, finding.fix)
    };
    let own = |made: Result<Requirement, kmod_probe::Error>| made.unwrap();
    let kernel_with = |symbol: &str| Some(Fix::KernelWith(symbol.to_owned()));
    // A module: by the row of the table, or by one's own.
    let table = find(&tree.report(), "xt_set").clone();
    assert_eq!(judged(own(Requirement::module("xt_set", "sets"))), (table.state, table.fix));
    assert_eq!(judged(own(Requirement::module("no_such", "it"))).0, State::Missing);
    tree.write("proc/modules", "wireguard 1 0 - Live 0x0\n");
    assert_eq!(judged(own(Requirement::link_kind("wireguard", "tunnels"))), (State::Loaded, None));
    // Options.
    assert_eq!(judged(own(Requirement::option("CONFIG_IP_VS_IPV6", "IPv6"))), (State::BuiltIn, None));
    assert_eq!(judged(own(Requirement::option("IP_VS", "IPVS"))).0, State::Loadable);
    tree.edit(CONFIG, "CONFIG_IP_VS_IPV6=y", Some("# CONFIG_IP_VS_IPV6 is not set"));
    assert_eq!(judged(own(Requirement::option("IP_VS_IPV6", "IPv6"))), (State::Missing, kernel_with("IP_VS_IPV6")));
    let switch = own(own(Requirement::module("ip_vs", "IPv6")).symbol("IP_VS")).switch("CONFIG_IP_VS_IPV6");
    assert_eq!(judged(own(switch)), (State::Missing, kernel_with("IP_VS_IPV6")));
    // The kernel's version, and one of several ways.
    assert_eq!(judged(Requirement::kernel(6, 1, "news")), (State::Working, None));
    let newer = Requirement::kernel(6, 2, "news");
    assert_eq!(judged(newer.clone()), (State::Missing, Some(Fix::NewerRelease((6, 2)))));
    assert_eq!(judged(newer.clone().or(own(Requirement::file("/boot", "it")))).0, State::Working);
    assert_eq!(judged(Requirement::kernel(3, 10, "what 6.1 has no more").until(6, 0)), (State::Missing, None));
    // Files.
    let tun = || own(Requirement::file("/dev/net/tun", "tunnels"));
    assert_eq!(judged(tun()), (State::Missing, Some(Fix::ProvideFile("/dev/net/tun".to_owned()))));
    tree.write("dev/net/tun", "");
    assert_eq!(judged(tun()), (State::Working, None));
    let installed =
        tree.probe().profile(Profile::own("agent").require(tun())).installed_kernel(RELEASE.parse().unwrap());
    assert_eq!(installed.run().verdict.answer, Answer::Unknown, "/dev is the running kernel's");
    // Not required; and with a file that shows it.
    let report = tree.report_for(Profile::own("agent").require(newer.wanted()));
    assert_eq!((report.verdict.answer, report.findings[0].state), (Answer::Yes, State::Missing));
    assert_eq!(judged(own(own(Requirement::module("no_such", "it")).shown_by("/dev/net/tun"))), (State::Working, None));
    // Without configuration an option is not known, and neither is anything without a release.
    tree.remove(CONFIG);
    let (state, fix) = judged(own(Requirement::option("IP_VS_IPV6", "IPv6")));
    assert_eq!((state, fix), (State::Unknown, Some(Fix::ShowConfig(RELEASE.to_owned()))));
    tree.remove("proc/sys/kernel/osrelease");
    assert_eq!(judged(Requirement::kernel(6, 1, "news")), (State::Unknown, Some(Fix::ShowRelease)));
}

#[test]
fn own_requirements_beside_those_of_ipvs_mode() {
    let tree = fresh();
    assert_eq!(tree.report().verdict.answer, Answer::Yes);
    let netlink = Requirement::module("nf_conntrack_netlink", "flows of ours").unwrap();
    let profile = Profile::default().require(netlink).require(Requirement::kernel(99, 0, "the future"));
    let report = tree.report_for(profile);
    assert_eq!(find(&report, "nf_conntrack_netlink").why, "flows of ours", "it takes the place of the table's");
    assert_eq!(report.findings.iter().filter(|finding| finding.name == "nf_conntrack_netlink").count(), 1);
    assert_eq!(report.verdict.reasons, ["Linux 99.0 is missing (the future): use Linux 99.0 or later"]);
    // The kernel's own word on expressions and links.
    let expression = Requirement::nft_expression("no_such", "ours").unwrap();
    let profile = Profile::own("agent").require(expression);
    assert_eq!(tree.report_for(profile.clone()).verdict.answer, Answer::No);
    let report = tree.probe().profile(profile).run_with(&mut |capability: &Capability| match capability {
        Capability::NftExpression(name) if name == "no_such" => ActiveAnswer::Works("a rule with it was taken".into()),
        _ => ActiveAnswer::Unknown(String::new()),
    });
    assert_eq!(find(&report, "expression no_such").state, State::Working);
}

#[test]
fn own_sysctls_are_compared_by_words() {
    let tree = fresh();
    tree.write("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n").write("proc/sys/net/ipv4/ip_forward", "0\n");
    let sysctl = |name: &str, value: &str| {
        let own = Sysctl::new(name, value, "ours").unwrap();
        let report = tree.report_for(Profile::own("agent").sysctl(own));
        assert_eq!(report.sysctls.len(), 1);
        (report.sysctls[0].state.clone(), report.verdict.caveats.concat())
    };
    assert_eq!(sysctl("net/ipv4/tcp_rmem", " 4096  131072 6291456").0, SysctlState::Right);
    assert_eq!(sysctl("net/ipv4/tcp_rmem", "4096 131072 1").0, SysctlState::Wrong);
    let (state, caveats) = sysctl("net/core/no_such", "1");
    assert_eq!((state, caveats.as_str()), (SysctlState::Absent, "sysctl net/core/no_such does not exist (ours)"));
    // One of IPVS mode's, with another value.
    let profile = Profile::default().sysctl(Sysctl::new("net/ipv4/ip_forward", "0", "no router").unwrap());
    let report = tree.report_for(profile);
    let forward: Vec<_> = report.sysctls.iter().filter(|sysctl| sysctl.name == "net/ipv4/ip_forward").collect();
    assert_eq!((forward.len(), &forward[0].state), (1, &SysctlState::Right));
}

#[test]
fn bad_own_requirements_are_refused() {
    for (made, kind, names) in [
        (Requirement::module("a b", "x").err(), ErrorKind::InvalidModuleName, "a b"),
        (Requirement::module(&"x".repeat(56), "x").err(), ErrorKind::InvalidModuleName, "xxx"),
        (Requirement::link_kind("", "x").err(), ErrorKind::InvalidModuleName, "empty"),
        (Requirement::nft_expression("../x", "x").err(), ErrorKind::InvalidModuleName, "../x"),
        (Requirement::option("", "x").err(), ErrorKind::InvalidRequirement, "letters"),
        (Requirement::option("CONFIG_", "x").err(), ErrorKind::InvalidRequirement, "CONFIG_"),
        (Requirement::option("IP VS=y", "x").err(), ErrorKind::InvalidRequirement, "IP VS=y"),
        (Requirement::file("dev/net/tun", "x").err(), ErrorKind::InvalidRequirement, "absolute"),
        (Requirement::file("/", "x").err(), ErrorKind::InvalidRequirement, "absolute"),
        (Requirement::file("/proc/../etc/shadow", "x").err(), ErrorKind::InvalidRequirement, ".."),
        (Requirement::file("/a\nb", "x").err(), ErrorKind::InvalidRequirement, "\\n"),
        (Sysctl::new("/net/ipv4/ip_forward", "1", "x").err(), ErrorKind::InvalidRequirement, "below /proc/sys"),
        (Sysctl::new("net.ipv4.ip_forward", "1", "x").err(), ErrorKind::InvalidRequirement, "net/ipv4/ip_forward"),
        (Sysctl::new("net/../kernel/core_pattern", "1", "x").err(), ErrorKind::InvalidRequirement, "below /proc/sys"),
        (Sysctl::new("net/ipv4/ip_forward", " ", "x").err(), ErrorKind::InvalidRequirement, "empty"),
    ] {
        let error = made.unwrap_or_else(|| panic!("{names} was taken"));
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(names), "{error}");
    }
}
