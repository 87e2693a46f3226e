//! The probe against the machine it runs on: what it says has to agree with `modprobe -n`, `/proc/modules` and with what
//! `ipvsadm`, `ipset`, `ip` and `iptables` can really do, on kernels with IPVS and on kernels without.
//!
//! Tools run in a network namespace of their own (root needed); trying them makes the kernel load modules, as using them
//! would. Modules are loaded on purpose only with `REQUIRE_IPVS=1`, which also turns everything that could not be tried
//! into a failure. What was skipped is printed at the end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use kmod_probe::{
    Access, Answer, Backend, EvidenceKind, Families, Finding, Fix, LoadResult, Loader, ModuleName, Probe, Profile,
    Report, State, SysctlState,
};

const SCHEDULERS: [&str; 14] =
    ["rr", "wrr", "lc", "wlc", "fo", "ovf", "lblc", "lblcr", "dh", "sh", "mh", "sed", "nq", "twos"];

/// Everything the table has, so that everything is compared.
fn everything() -> Profile {
    let profile = Profile::default().families(Families::Dual).all_set_types();
    SCHEDULERS.iter().try_fold(profile, |profile, name| profile.scheduler(name)).unwrap()
}

fn required() -> bool {
    std::env::var("REQUIRE_IPVS").is_ok_and(|value| value == "1")
}

/// What was compared and what could not be.
#[derive(Default)]
struct Tally {
    compared: usize,
    skipped: Vec<String>,
}

impl Tally {
    fn skip(&mut self, what: &str) {
        self.skipped.push(what.to_owned());
    }

    /// The probe's word against reality. "Unknown" is no claim.
    fn compare(&mut self, report: &Report, what: &str, claims: &[State], works: bool, output: &Output) {
        if claims.iter().all(|state| state.is_usable()) {
            assert!(works, "{what} should work: {}\n{report}", String::from_utf8_lossy(&output.stderr));
        } else if claims.contains(&State::Missing) {
            assert!(!works, "{what} works although something is said to be missing ({claims:?})\n{report}");
        } else {
            return self.skip(&format!("{what}: the probe does not know"));
        }
        self.compared += 1;
    }

    fn finish(self, test: &str) {
        println!("{test}: {} facts compared, {} skipped", self.compared, self.skipped.len());
        for what in &self.skipped {
            println!("{test}: SKIPPED {what}");
        }
        assert!(!required() || self.skipped.is_empty(), "REQUIRE_IPVS=1 and these were skipped: {:?}", self.skipped);
    }
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A network namespace of its own, held by a process that waits. Making one for each command would take longer than all
/// commands together: the kernel takes namespaces down one after the other.
struct Namespace {
    holder: Child,
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.holder.kill().expect("the namespace's holder was gone");
        self.holder.wait().expect("the namespace's holder cannot be waited for");
    }
}

impl Namespace {
    /// `None` without the tools or the privilege for it.
    fn new() -> Option<Self> {
        let mut holder = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo ready && exec sleep 1000"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        BufReader::new(holder.stdout.take()?).read_line(&mut line).ok()?;
        if line != "ready\n" {
            holder.wait().ok()?;
            return None;
        }
        Some(Self { holder })
    }

    /// Runs a command there; `None` when it is not installed. One that does not end is a failure with its name.
    fn run(&self, command: &[&str]) -> Option<Output> {
        const LIMIT: Duration = Duration::from_secs(60);
        let started = Instant::now();
        let mut child = Command::new("nsenter")
            .args(["-t", &self.holder.id().to_string(), "-n", "--"])
            .args(command)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("nsenter comes with unshare");
        while child.try_wait().unwrap().is_none() {
            if started.elapsed() > LIMIT {
                child.kill().unwrap();
                panic!("{command:?} did not end within {LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let output = child.wait_with_output().unwrap();
        (output.status.code() != Some(127)).then_some(output)
    }
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

#[test]
fn kernel_agrees_with_the_probe() {
    let mut tally = Tally::default();
    let report = Probe::new().profile(everything()).run();
    let uname = Command::new("uname").arg("-r").output().unwrap();
    assert_eq!(report.release.as_ref().unwrap().as_str(), String::from_utf8_lossy(&uname.stdout).trim());

    agrees_with_module_lists(&report, &mut tally);
    agrees_with_modprobe(&report, &mut tally);
    agrees_with_proc_net(&report, &mut tally);
    if let Some(namespace) = is_root().then(Namespace::new).flatten() {
        agrees_with_ipvs_and_sets(&report, &namespace, &mut tally);
        agrees_with_iptables(&report, &namespace, &mut tally);
    } else {
        tally.skip("everything that needs a network namespace (root)");
    }
    loads_what_is_missing(&mut tally);
    tally.finish("kernel_agrees_with_the_probe");
}

fn agrees_with_module_lists(report: &Report, tally: &mut Tally) {
    if let Some(loaded) = proc_modules() {
        assert_eq!(report.module_support.answer, Answer::Yes);
        for (finding, module) in whole_modules(report) {
            assert_eq!(loaded.contains(module.as_str()), finding.state == State::Loaded, "{finding:?}");
            tally.compared += 1;
        }
    } else {
        assert_eq!(report.module_support.answer, Answer::No, "no /proc/modules:\n{report}");
        assert!(report.findings.iter().all(|f| f.state != State::Loaded && f.state != State::Loadable), "{report}");
        assert!(report.to_load().is_empty());
        tally.compared += 1;
    }
}

/// What the kernel lists below `/proc/net` (itself a link through `/proc/self`) is evidence for the match or target.
fn agrees_with_proc_net(report: &Report, tally: &mut Tally) {
    let matches = std::fs::read_to_string("/proc/net/ip_tables_matches").unwrap_or_default();
    for name in ["set", "comment", "mark", "addrtype", "conntrack", "physdev", "ipvs"] {
        let listed = matches.lines().any(|line| line == name);
        let finding = report.finding(&format!("xt_{name}")).unwrap();
        let seen = finding.evidence.iter().any(|evidence| evidence.kind == EvidenceKind::Marker);
        if name == "mark" {
            assert!(seen || !listed, "mark is also a target: {finding:?}");
        } else {
            assert_eq!(listed, seen, "{finding:?}");
        }
        tally.compared += 1;
    }
}

/// `modprobe -n` finds a module that is loaded, built in or installed, and fails otherwise.
fn agrees_with_modprobe(report: &Report, tally: &mut Tally) {
    let release = report.release.as_ref().unwrap();
    if !std::path::Path::new("/lib/modules").join(release.as_str()).is_dir() {
        assert!(report.findings.iter().all(|finding| finding.state != State::Loadable), "{report}");
        if report.module_support.answer == Answer::Yes {
            tally.skip("modprobe -n: no modules installed");
        }
        return;
    }
    for (finding, module) in whole_modules(report) {
        if matches!(finding.fix, Some(Fix::RestoreFile { .. })) {
            continue; // "modprobe -n" believes modules.dep and does not look for the file; the tools below will
        }
        let Ok(output) = Command::new("/sbin/modprobe").args(["-n", "--", module.as_str()]).output() else {
            return tally.skip("modprobe -n: not installed");
        };
        tally.compare(report, &format!("modprobe -n {module}"), &[finding.state], output.status.success(), &output);
    }
}

fn agrees_with_ipvs_and_sets(report: &Report, namespace: &Namespace, tally: &mut Tally) {
    let ip_vs = state(report, "ip_vs");
    for (port, name) in (1000..).zip(SCHEDULERS) {
        let address = format!("198.51.100.1:{port}");
        let command = ["ipvsadm", "-A", "-t", &address, "-s", name];
        let Some(output) = namespace.run(&command) else { return tally.skip("ipvsadm is not installed") };
        let claims = [ip_vs, state(report, "ip_vs: TCP"), state(report, &format!("scheduler {name}"))];
        tally.compare(report, &command.join(" "), &claims, output.status.success(), &output);
    }
    for (feature, arguments) in [
        ("ip_vs: UDP", ["-u", "198.51.100.1:80"]),
        ("ip_vs: SCTP", ["--sctp-service", "198.51.100.1:80"]),
        ("ip_vs: IPv6", ["-t", "[2001:db8::1]:80"]),
    ] {
        let command = ["ipvsadm", "-A", arguments[0], arguments[1], "-s", "rr"];
        let output = namespace.run(&command).unwrap();
        let claims = [ip_vs, state(report, "scheduler rr"), state(report, feature)];
        // Without the protocol the kernel still takes the service, so only the positive claim can be tried for those.
        if ip_vs.is_usable() && !claims[2].is_usable() && feature != "ip_vs: IPv6" {
            continue;
        }
        tally.compare(report, &command.join(" "), &claims, output.status.success(), &output);
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
        let Some(output) = namespace.run(&command) else { return tally.skip("ipset is not installed") };
        tally.compare(report, &command.join(" "), &[state(report, "ip_set"), claim], output.status.success(), &output);
    }
    let command = ["ip", "link", "add", "probe0", "type", "dummy"];
    match namespace.run(&command) {
        Some(output) => {
            tally.compare(report, &command.join(" "), &[state(report, "dummy")], output.status.success(), &output);
        }
        None => tally.skip("ip is not installed"),
    }
}

fn agrees_with_iptables(report: &Report, namespace: &Namespace, tally: &mut Tally) {
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
                (&["MASQUERADE, IPv4", "MASQUERADE, IPv6"], &["-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE"]),
            ];
            for (needs, rule) in rules {
                let mut command = vec![program];
                command.extend(rule);
                let Some(output) = namespace.run(&command) else {
                    tally.skip(&format!("{program} is not installed"));
                    break;
                };
                let mut claims: Vec<_> = needs.iter().map(|name| state(report, name)).collect();
                if claims.contains(&State::Missing) || answer == Answer::Yes {
                    claims.push(claim);
                    tally.compare(report, &command.join(" "), &claims, output.status.success(), &output);
                }
            }
        }
    }
}

fn loads_what_is_missing(tally: &mut Tally) {
    let no_such = Loader::new().load(&ModuleName::new("no_such_module_anywhere").unwrap());
    match &no_such.result {
        LoadResult::Failed { code: Some(1), message } => assert!(!message.is_empty(), "modprobe says why"),
        LoadResult::NotStarted(_) => tally.skip("modprobe is not installed"),
        other => panic!("loading a module that does not exist: {other:?}"),
    }
    let report = Probe::new().run();
    if !required() {
        return;
    }
    assert_eq!(report.verdict.answer, Answer::Yes, "REQUIRE_IPVS=1:\n{report}");
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
    let mut tally = Tally::default();
    let script = "echo 0 > /proc/sys/net/ipv4/ip_forward && mount -o bind /proc/sys /proc/sys \
        && mount -o remount,bind,ro /proc/sys && echo prepared \
        && exec \"$0\" --exact kernel_read_only_sysctls --nocapture";
    let output = Command::new("unshare")
        .args(["-n", "-m", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env(AGAIN, "1")
        .output();
    match output {
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains("prepared") => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            tally.compared += 1;
        }
        _ => tally.skip("no mount namespace (root needed)"),
    }
    tally.finish("kernel_read_only_sysctls");
}
