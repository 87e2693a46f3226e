//! Weight of evidence when lists contradict each other, one rule a test; and the effect of bad input on it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

mod common;

use std::os::unix::process::CommandExt;
use std::process::Command;

use common::{Tree, find};
use kmod_probe::{ActiveAnswer, Answer, Capability, ErrorKind, Failure, Fix, Profile, Requirement, State};

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
    assert_eq!(ip_vs.evidence.as_ref().unwrap().to_string(), "/proc/modules:1");
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
    assert_eq!(ip_vs.evidence.as_ref().unwrap().says, "CONFIG_IP_VS=m");
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
fn a_forbidden_module_and_those_that_need_it_are_missing() {
    let tree = fresh();
    tree.write(
        "etc/modprobe.d/x.conf",
        "# install ip_vs /bin/false\nblacklist dummy\n  install\tip-vs /bin/true # why\n",
    )
    .write("etc/modprobe.d/y.conf", "install ip_set /sbin/modprobe --ignore-install ip_set\ninstall dummy\n")
    .write("usr/lib/modprobe.d/x.conf", "install ip_set /bin/false\n")
    .write("etc/modprobe.d/x", "install ip_set /bin/false\n");
    let report = tree.report();
    let allow =
        Fix::Allow { module: kmod_probe::ModuleName::new("ip_vs").unwrap(), path: "/etc/modprobe.d/x.conf".into() };
    for name in ["ip_vs", "scheduler rr", "ip_vs: UDP"] {
        let finding = find(&report, name);
        assert_eq!((finding.state, &finding.fix), (State::Missing, &Some(allow.clone())), "{name}");
        assert_eq!(finding.evidence.as_ref().unwrap().to_string(), "/etc/modprobe.d/x.conf:3 install ip_vs /bin/true");
    }
    assert_eq!([find(&report, "ip_set").state, find(&report, "dummy").state], [State::Loadable; 2]);
    assert_eq!(
        report.verdict.reasons.len(),
        1,
        "one for the module and those that need it: {:?}",
        report.verdict.reasons
    );
    tree.write("proc/modules", "ip_vs 1 0 - Live 0x0\n");
    assert_eq!(state(&tree, "scheduler rr"), State::Loadable, "what it needs is in memory");
    // Lines that end with a backslash continue, those of a comment too.
    tree.write("etc/modprobe.d/z.conf", "# why \\\ninstall ip_set /bin/false\ninst\\\nall dum\\\nmy \\\n /bin/false\n");
    let report = tree.report();
    assert_eq!([find(&report, "ip_set").state, find(&report, "dummy").state], [State::Loadable, State::Missing]);
    tree.write("etc/modprobe.d/z.conf", "install ip_set /bin/false \\");
    assert_eq!(find(&tree.report(), "ip_set").state, State::Missing, "a last line that nothing continues");
}

/// The kernel compares exact names, and the last list applies. `modprobe.blacklist` is ignored for a module that is asked for by name.
#[test]
fn a_module_that_the_kernel_was_started_without_is_missing() {
    let tree = fresh();
    tree.write(
        "proc/cmdline",
        "quiet module_blacklist=dummy modprobe.blacklist=nf_nat module-blacklist=\"ip-set,ip_vs\" -- module_blacklist=ip_set\n",
    );
    let report = tree.report();
    for name in ["ip_vs", "scheduler rr"] {
        let finding = find(&report, name);
        assert_eq!(finding.state, State::Missing, "{name}");
        assert_eq!(finding.evidence.as_ref().unwrap().to_string(), "/proc/cmdline module_blacklist=ip_vs");
        assert!(finding.fix.as_ref().unwrap().to_string().contains("start the kernel without it"), "{finding:?}");
    }
    assert_eq!(["ip_set", "dummy", "nf_nat"].map(|name| find(&report, name).state), [State::Loadable; 3]);
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
    assert_eq!(ip_vs.evidence.as_ref().unwrap().to_string(), "the kernel itself says it works: family id 33");
    let dummy = find(&report, "dummy");
    assert_eq!(dummy.state, State::Loadable, "a module that is not loaded refuses too");
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
        for path in ["proc/modules", DEP, BUILTIN, CONFIG] {
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

#[test]
fn requirements_of_a_caller_are_judged_and_reported_alike() {
    let tree = fresh();
    let own = |module: &str, symbol: &str| Requirement::module(module, "ours").unwrap().symbol(symbol).unwrap();
    let wireguard = || own("wireguard", "CONFIG_WIREGUARD");
    let profile = Profile::own("agent").require(wireguard());
    let report = tree.report_for(profile.clone());
    assert_eq!((report.findings.len(), report.sysctls.len(), report.backends.len()), (1, 0, 0), "{report}");
    assert_eq!(report.verdict.answer, Answer::No, "{report}");
    assert_eq!(find(&report, "wireguard").fix, Some(Fix::KernelWith("WIREGUARD".into())));
    assert!(report.to_string().contains("agent: no\n"), "{report}");
    let report = tree.report_for(Profile::own("agent").require(wireguard().wanted()));
    assert_eq!((report.verdict.answer, report.findings[0].state), (Answer::Yes, State::Missing));
    let asked = Profile::own("agent").require(wireguard().asks(Capability::LinkKind("wireguard".into())));
    let report = tree.probe().profile(asked).run_with(&mut |_: &Capability| ActiveAnswer::Works("a link".into()));
    assert_eq!(report.findings[0].state, State::Working);
    tree.write("proc/modules", "wireguard 1 0 - Live 0x0\n");
    assert_eq!(tree.report_for(profile).verdict.answer, Answer::Yes);
    // Next to those of IPVS mode, in the place of the row of this name.
    let report = tree.report_for(Profile::default().require(own("xt_set", "NETFILTER_XT_SET")));
    assert_eq!(find(&report, "xt_set").why, "ours");
    assert_eq!(report.findings.iter().filter(|finding| finding.name == "xt_set").count(), 1);

    assert_eq!(Requirement::module("a b", "x").unwrap_err().kind(), ErrorKind::InvalidModuleName);
    for symbol in ["", "CONFIG_", "IP VS=y"] {
        let error = Requirement::module("ip_vs", "x").unwrap().symbol(symbol).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidRequirement, "{error}");
    }
}
