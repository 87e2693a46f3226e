//! The probe against the machine it runs on, on kernels with IPVS and on kernels without. Its report has to agree with
//! `modprobe -n`, `/proc/modules`, and with what `ipvsadm`, `ipset`, `ip` and `iptables` can really do.
//!
//! Tools run in a network namespace of their own (root needed); trying them makes the kernel load modules, as using them
//! would. Modules are loaded on purpose only with `TESTKIT_REQUIRE=all`, which also demands that IPVS mode can be used.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use kmod_probe::{
    Access, Answer, Backend, Families, Finding, Fix, LoadResult, Loader, ModuleName, Probe, Profile, Report, State,
    SysctlState,
};
use testkit::{Need, kernel_test};

const SCHEDULERS: [&str; 14] =
    ["rr", "wrr", "lc", "wlc", "fo", "ovf", "lblc", "lblcr", "dh", "sh", "mh", "sed", "nq", "twos"];

/// Everything the table has, so that everything is compared.
fn everything() -> Profile {
    let profile = Profile::default().families(Families::Dual).all_set_types();
    SCHEDULERS.iter().try_fold(profile, |profile, name| profile.scheduler(name)).unwrap()
}

fn required() -> bool {
    std::env::var("TESTKIT_REQUIRE").is_ok_and(|value| value == "all")
}

/// How many facts were compared, and which could not be because the probe does not know them.
#[derive(Default)]
struct Tally {
    compared: usize,
    unknown: Vec<String>,
}

impl Tally {
    /// Compares the probe with reality. "Unknown" claims nothing.
    fn compare(&mut self, report: &Report, what: &str, claims: &[State], output: &Output) {
        let works = output.status.success();
        if claims.iter().all(|state| state.is_usable()) {
            assert!(works, "{what} should work: {}\n{report}", String::from_utf8_lossy(&output.stderr));
        } else if claims.contains(&State::Missing) {
            assert!(!works, "{what} works although something is said to be missing ({claims:?})\n{report}");
        } else {
            return self.unknown.push(what.to_owned());
        }
        self.compared += 1;
    }

    fn finish(self, test: &str) {
        println!("{test}: {} facts compared, {} unknown to the probe", self.compared, self.unknown.len());
        for what in &self.unknown {
            println!("{test}: unknown: {what}");
        }
        assert!(self.compared > 0);
        assert!(!required() || self.unknown.is_empty(), "the probe should know: {:?}", self.unknown);
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Runs a command. One that does not end is a failure with its name.
fn run(command: &[&str]) -> Output {
    const LIMIT: Duration = Duration::from_secs(60);
    let started = Instant::now();
    let mut child = Command::new(command[0])
        .args(&command[1..])
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("{command:?} did not end within {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.wait_with_output().unwrap()
}

fn state(report: &Report, name: &str) -> State {
    report.finding(name).unwrap_or_else(|| panic!("no finding {name}")).state
}

fn whole_modules(report: &Report) -> impl Iterator<Item = (&Finding, &ModuleName)> {
    report.findings.iter().filter(|f| !f.is_feature).filter_map(|finding| Some((finding, finding.module.as_ref()?)))
}

/// The first column of `/proc/modules`, or nothing where the kernel has no such file.
fn proc_modules() -> Option<BTreeSet<String>> {
    let text = std::fs::read_to_string("/proc/modules").ok()?;
    Some(text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect())
}

/// Lists that can be read without privileges: the kernel's and modprobe's own.
#[test]
fn kernel_lists_agree_with_the_probe() {
    let mut tally = Tally::default();
    // Other programs (and tests) load modules meanwhile; only what was there before and after is asserted.
    let before = proc_modules();
    let report = Probe::new().profile(everything()).run();
    let after = proc_modules();
    let uname = Command::new("uname").arg("-r").output().unwrap();
    assert_eq!(report.release.as_ref().unwrap().as_str(), String::from_utf8_lossy(&uname.stdout).trim());
    agrees_with_module_lists(&report, before.as_ref(), after.as_ref(), &mut tally);
    agrees_with_modprobe(&report, &mut tally);
    tally.finish("kernel_lists_agree_with_the_probe");
}

/// Abilities of the field's own tools on this kernel.
#[test]
fn kernel_tools_agree_with_the_probe() {
    let tools = ["ipvsadm", "ipset", "ip", "iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"];
    let needs: Vec<_> = std::iter::once(Need::Root).chain(tools.map(Need::Tool)).collect();
    kernel_test(&needs, || {
        let mut tally = Tally::default();
        let report = Probe::new().profile(everything()).run();
        agrees_with_ipvs_and_sets(&report, &mut tally);
        agrees_with_iptables(&report, &mut tally);
        tally.finish("kernel_tools_agree_with_the_probe");
    });
}

#[test]
fn kernel_loads_modules_on_request() {
    kernel_test(&[Need::Root, Need::Tool("modprobe")], || {
        let mut tally = Tally::default();
        loads_what_is_missing(&mut tally);
        tally.finish("kernel_loads_modules_on_request");
    });
}

/// Whether something is listed, unless that changed meanwhile.
fn steady(before: &BTreeSet<String>, after: &BTreeSet<String>, name: &str) -> Option<bool> {
    let listed = before.contains(name);
    (listed == after.contains(name)).then_some(listed)
}

fn agrees_with_module_lists(
    report: &Report,
    before: Option<&BTreeSet<String>>,
    after: Option<&BTreeSet<String>>,
    tally: &mut Tally,
) {
    if let (Some(before), Some(after)) = (before, after) {
        assert_eq!(report.module_support, Answer::Yes);
        for (finding, module) in whole_modules(report) {
            if let Some(loaded) = steady(before, after, module.as_str()) {
                assert_eq!(loaded, finding.state == State::Loaded, "{finding:?}");
                tally.compared += 1;
            }
        }
    } else {
        assert_eq!(report.module_support, Answer::No, "no /proc/modules:\n{report}");
        assert!(report.findings.iter().all(|f| f.state != State::Loaded && f.state != State::Loadable), "{report}");
        assert!(report.to_load().is_empty());
        tally.compared += 1;
    }
}

/// `modprobe -n` finds a module that is loaded, built in or installed, and fails otherwise.
fn agrees_with_modprobe(report: &Report, tally: &mut Tally) {
    let release = report.release.as_ref().unwrap();
    if !std::path::Path::new("/lib/modules").join(release.as_str()).is_dir() {
        assert!(report.findings.iter().all(|finding| finding.state != State::Loadable), "{report}");
        return; // nothing for modprobe to look into
    }
    for (finding, module) in whole_modules(report) {
        if matches!(finding.fix, Some(Fix::RestoreFile { .. })) {
            continue; // "modprobe -n" believes modules.dep and does not look for the file; the tools below will
        }
        let output = run(&["/sbin/modprobe", "-n", "--", module.as_str()]);
        tally.compare(report, &format!("modprobe -n {module}"), &[finding.state], &output);
    }
}

fn agrees_with_ipvs_and_sets(report: &Report, tally: &mut Tally) {
    let ip_vs = state(report, "ip_vs");
    for (port, name) in (1000..).zip(SCHEDULERS) {
        let address = format!("198.51.100.1:{port}");
        let command = ["ipvsadm", "-A", "-t", &address, "-s", name];
        let output = run(&command);
        let claims = [ip_vs, state(report, "ip_vs: TCP"), state(report, &format!("scheduler {name}"))];
        tally.compare(report, &command.join(" "), &claims, &output);
    }
    for (feature, arguments) in [
        ("ip_vs: UDP", ["-u", "198.51.100.1:80"]),
        ("ip_vs: SCTP", ["--sctp-service", "198.51.100.1:80"]),
        ("ip_vs: IPv6", ["-t", "[2001:db8::1]:80"]),
    ] {
        let command = ["ipvsadm", "-A", arguments[0], arguments[1], "-s", "rr"];
        let output = run(&command);
        let claims = [ip_vs, state(report, "scheduler rr"), state(report, feature)];
        // Without the protocol the kernel still takes the service, so only the positive claim can be tried for those.
        if ip_vs.is_usable() && !claims[2].is_usable() && feature != "ip_vs: IPv6" {
            continue;
        }
        tally.compare(report, &command.join(" "), &claims, &output);
    }
    let sets: Vec<_> = report.findings.iter().filter_map(|f| Some((f.name.strip_prefix("set ")?, f.state))).collect();
    assert_eq!(sets.len(), 16);
    for (name, claim) in sets {
        let mut command = vec!["ipset", "create", name, name]; // named like its type
        match name {
            "bitmap:port" => command.extend(["range", "0-65535"]),
            _ if name.starts_with("bitmap:") => command.extend(["range", "192.0.2.0/24"]),
            _ => {}
        }
        let output = run(&command);
        tally.compare(report, &command.join(" "), &[state(report, "ip_set"), claim], &output);
    }
    let command = ["ip", "link", "add", "probe0", "type", "dummy"];
    tally.compare(report, &command.join(" "), &[state(report, "dummy")], &run(&command));
}

fn agrees_with_iptables(report: &Report, tally: &mut Tally) {
    for (backend, programs) in
        [(Backend::Nft, ["iptables-nft", "ip6tables-nft"]), (Backend::Legacy, ["iptables-legacy", "ip6tables-legacy"])]
    {
        let answer = report.backends.iter().find(|(known, _)| *known == backend).unwrap().1;
        let claim = match answer {
            Answer::Yes => State::Working,
            Answer::No => State::Missing,
            Answer::Unknown => State::Unknown,
        };
        // The backend's "no" is about both families together, so only its "yes" speaks of each program.
        for program in programs {
            let rules: [(&[&str], &[&str]); 9] = [
                (&[], &["-t", "nat", "-N", "PROBE"]),
                (&[], &["-N", "PROBE"]),
                (&["xt_comment"], &["-A", "FORWARD", "-m", "comment", "--comment", "probe", "-j", "ACCEPT"]),
                (&["xt_mark"], &["-A", "FORWARD", "-m", "mark", "--mark", "0x4000/0x4000", "-j", "ACCEPT"]),
                (&["xt_addrtype"], &["-A", "FORWARD", "-m", "addrtype", "--dst-type", "LOCAL", "-j", "ACCEPT"]),
                (&["xt_conntrack"], &["-A", "FORWARD", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT"]),
                (&["xt_physdev"], &["-A", "FORWARD", "-m", "physdev", "--physdev-in", "x", "-j", "ACCEPT"]),
                (&["xt_ipvs", "ip_vs"], &["-A", "FORWARD", "-m", "ipvs", "--vport", "80", "-j", "ACCEPT"]),
                (&["xt_MASQUERADE"], &["-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE"]),
            ];
            for (needs, rule) in rules {
                let mut command = vec![program];
                command.extend(rule);
                let output = run(&command);
                let mut claims: Vec<_> = needs.iter().map(|name| state(report, name)).collect();
                if claims.contains(&State::Missing) || answer == Answer::Yes {
                    claims.push(claim);
                    tally.compare(report, &command.join(" "), &claims, &output);
                }
            }
        }
    }
}

fn loads_what_is_missing(tally: &mut Tally) {
    let no_such = Loader::new().load_all(&[ModuleName::new("no_such_module_anywhere").unwrap()]);
    match &no_such[0].result {
        LoadResult::Failed { code: Some(1), message } => assert!(!message.is_empty(), "modprobe says why"),
        LoadResult::NotStarted(_) if proc_modules().is_none() => {}
        other => panic!("loading a module that does not exist: {other:?}"),
    }
    tally.compared += 1;
    if !required() {
        return;
    }
    let report = Probe::new().run();
    assert_eq!(report.verdict.answer, Answer::Yes, "TESTKIT_REQUIRE=all:\n{report}");
    let modules = report.to_load();
    let outcomes = Loader::new().load_all(&modules);
    assert!(outcomes.iter().all(kmod_probe::LoadOutcome::is_loaded), "{outcomes:?}");
    let loaded = proc_modules().unwrap_or_default();
    let report = Probe::new().run();
    assert!(report.to_load().is_empty(), "{report}");
    for module in &modules {
        assert!(loaded.contains(module.as_str()), "{module} is not in /proc/modules");
        tally.compared += 1;
    }
    // With ip_vs in memory its sysctls are there, with the values that cat shows.
    let sysctl = report.sysctls.iter().find(|sysctl| sysctl.name == "net/ipv4/vs/conntrack").unwrap();
    let output = Command::new("cat").arg("/proc/sys/net/ipv4/vs/conntrack").output().unwrap();
    assert_eq!(sysctl.current.as_deref(), Some(String::from_utf8_lossy(&output.stdout).trim()), "{report}");
    assert_eq!(sysctl.access, if is_root() { Access::Writable } else { Access::Denied });
    tally.compared += 2;
}

/// `/proc/sys` mounted read-only, as container runtimes do. The test runs itself again in a mount namespace.
#[test]
fn kernel_read_only_sysctls() {
    const AGAIN: &str = "KMOD_PROBE_READ_ONLY_SYSCTLS";
    if std::env::var_os(AGAIN).is_some() {
        let report = Probe::new().run();
        let forward = report.sysctls.iter().find(|sysctl| sysctl.name == "net/ipv4/ip_forward").unwrap();
        assert_eq!(forward.access, Access::ReadOnly, "{report}");
        assert_eq!(forward.state, SysctlState::Wrong, "the value was set to 0");
        assert_eq!(report.verdict.answer, Answer::No);
        assert!(report.verdict.reasons.iter().any(|reason| reason.contains("net/ipv4/ip_forward is 0")), "{report}");
        return;
    }
    kernel_test(&[Need::Root, Need::Mounts], || {
        let script = "echo 0 > /proc/sys/net/ipv4/ip_forward && mount -o bind /proc/sys /proc/sys \
            && mount -o remount,bind,ro /proc/sys && exec \"$0\" --exact kernel_read_only_sysctls --nocapture";
        let output = Command::new("unshare")
            .args(["-m", "sh", "-c", script])
            .arg(std::env::current_exe().unwrap())
            .env(AGAIN, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}{why}");
    });
}
