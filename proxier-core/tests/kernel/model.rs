//! Random sequences on a real kernel, as `tests/model` runs them in memory: in the end the field's tools print the same as on an undisturbed
//! kernel.
//!
//! `PROXIER_KERNEL_MODEL_CASES` sets the number of sequences, `PROPTEST_RNG_SEED` selects them; without it they are the
//! same in every run.

#[allow(dead_code, reason = "the test in memory uses more of it")]
#[path = "../model/objects.rs"]
mod objects;
#[path = "../model/rules.rs"]
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use proxier_core::config::{Binding, LocalTraffic, RulesBy};
use proxier_core::engine::{Options, Reconciler};
use proxier_core::kernel::{self, KernelPorts};
use proxier_core::modes;
use proxier_core::modes::ipvs::cleanup::cleanup;
use testkit::{Netns, PROXY, kernel_test, oracle};

#[derive(Clone, Debug)]
enum Step {
    Object(objects::Change),
    Host(u8),
    Damage(u8, u8),
    Pass,
    /// The rule set of nf_tables is flushed, rules of iptables among it.
    Flush,
    /// The process ends, and another begins with these settings.
    Restart(u8),
}

/// Options by the bits of a number: rules of iptables or a table of nf_tables, addresses or routes, firewall marks or none.
fn options(settings: u8) -> Options {
    let mut options = Options::default();
    let ipvs = &mut options.config.ipvs;
    ipvs.rules = if settings.is_multiple_of(4) { RulesBy::Iptables } else { RulesBy::Nftables };
    ipvs.binding = if settings & 4 == 4 { Binding::Routes } else { Binding::Addresses };
    if settings & 8 == 8 {
        ipvs.service_cidrs = vec!["10.96.0.0/24".parse().unwrap(), "fd96::/112".parse().unwrap()];
    }
    ipvs.mark_split = settings & 0x30 != 0;
    options.config.local_traffic = LocalTraffic::ClusterCidrs(vec!["10.244.0.0/16".parse().unwrap()]);
    options.mass_removal.share = 1.0;
    options
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        14 => objects::change().prop_map(Step::Object),
        1 => any::<u8>().prop_map(Step::Host),
        4 => any::<(u8, u8)>().prop_map(|(what, which)| Step::Damage(what, which)),
        4 => Just(Step::Pass),
        1 => Just(Step::Flush),
        2 => any::<u8>().prop_map(Step::Restart),
    ];
    proptest::collection::vec(step, 6..16)
}

/// Runs a program, which must succeed.
fn run(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
    oracle::run(words[0], &words[1..], None).unwrap_or_else(|error| panic!("{line}: {error}")).stdout
}

/// Creates foreign objects.
fn invite_strangers() {
    oracle::ipvsadm_restore(
        "-A -t 172.30.0.1:7000 -s rr\n-a -t 172.30.0.1:7000 -r 172.30.1.1:7000 -m -w 2\n-A -f 3 -s rr\n-A -f 369098759 -s rr\n",
    )
    .unwrap();
    oracle::ipset_restore("create FOREIGN hash:ip\nadd FOREIGN 172.30.0.1\n").unwrap();
    invite_their_rules();
}

fn invite_their_rules() {
    let rules = "*nat\n:FOREIGN-A - [0:0]\n-A FOREIGN-A -j RETURN\n-A PREROUTING -j FOREIGN-A\n\
                 -A POSTROUTING -s 172.30.0.0/16 -m comment --comment FOREIGN -j MASQUERADE\nCOMMIT\n";
    oracle::iptables_restore(oracle::Backend::Nft, oracle::Family::V4, rules).unwrap();
}

/// Own and foreign objects as the tools print them.
#[derive(Debug, PartialEq, Eq)]
struct Printed {
    ipvs: Vec<String>,
    sets: Vec<String>,
    rules: Vec<BTreeMap<(String, String), Vec<String>>>,
    addresses: BTreeSet<IpAddr>,
    routes: BTreeSet<String>,
    /// Tables of nf_tables, as `nft` lists them.
    tables: Vec<String>,
}

/// Own tables, without handles; their elements sorted.
fn tables() -> Vec<String> {
    let listed = oracle::run("nft", &["list", "tables"], None).unwrap().stdout;
    let ours = listed.lines().filter(|line| line.ends_with(" proxier-ipvs"));
    let of = |line: &str| {
        let words: Vec<&str> = ["list"].into_iter().chain(line.split(' ')).collect();
        let text = oracle::run("nft", &words, None).unwrap().stdout;
        // The kernel lists the elements of a set in the order of their hashes.
        let mut lines: Vec<String> = Vec::new();
        for line in text.lines() {
            let elements = line.trim_start().trim_start_matches("elements = {").trim_end_matches([',', '}', ' ']);
            lines.extend(elements.split(", ").map(|element| element.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
        lines.sort();
        lines.join("\n")
    };
    ours.map(of).collect()
}

fn routes() -> BTreeSet<String> {
    let of =
        |family| oracle::run("ip", &[family, "route", "show", "table", "all", "proto", "119"], None).unwrap().stdout;
    let all = ["-4", "-6"].map(of).concat();
    all.lines().map(|line| line.trim_end().to_owned()).collect()
}

fn is_theirs(line: &str) -> bool {
    ["172.30.", "-f 3 ", "-f 369098759 ", "FOREIGN"].iter().any(|word| line.contains(word))
}

fn printed() -> (Printed, Vec<String>) {
    let mut all: Vec<String> = oracle::ipvsadm_save().unwrap().lines().map(|line| line.trim_end().to_owned()).collect();
    all.sort();
    let (mut theirs, ipvs): (Vec<String>, Vec<String>) = all.into_iter().partition(|line| is_theirs(line));
    let saved = oracle::ipset_save().unwrap();
    // The kernel chooses a set's bucket size and seed.
    let saved = saved.lines().map(|line| line.split(" bucketsize").next().unwrap_or(line).to_owned());
    let (foreign, mut sets): (Vec<String>, Vec<String>) = saved.partition(|line| is_theirs(line));
    sets.sort();
    theirs.extend(foreign);
    let mut rules = Vec::new();
    for family in [oracle::Family::V4, oracle::Family::V6] {
        let text = oracle::iptables_save(oracle::Backend::Nft, family).unwrap();
        theirs.extend(text.lines().filter(|line| is_theirs(line)).map(str::to_owned));
        rules.push(rules::our_rules(&text));
    }
    (Printed { ipvs, sets, rules, addresses: addresses("kube-ipvs0"), routes: routes(), tables: tables() }, theirs)
}

fn addresses(device: &str) -> BTreeSet<IpAddr> {
    let json: serde_json::Value = serde_json::from_str(&oracle::ip_json(&["address"]).unwrap()).unwrap();
    let device = json.as_array().unwrap().iter().find(|link| link["ifname"] == device);
    let addresses = device.into_iter().flat_map(|link| link["addr_info"].as_array().unwrap());
    addresses
        .filter(|info| info["scope"] != "link")
        .map(|info| info["local"].as_str().unwrap().parse().unwrap())
        .collect()
}

fn set_host(which: u8) {
    run("ip address flush dev eth0");
    for address in objects::host(which) {
        let (length, nodad) = if address.is_ipv4() { (32, "") } else { (128, "nodad") };
        run(&format!("ip address add {address}/{length} dev eth0 {nodad}"));
    }
}

struct Machine {
    ports: KernelPorts,
    proxier: Reconciler,
    now: Duration,
    settings: u8,
    objects: objects::Objects,
}

impl Machine {
    /// A machine in the namespace of the calling thread, with interface `eth0`.
    fn new(host: u8) -> Self {
        run("ip link set lo up");
        run("ip link add eth0 type bridge");
        run("ip link set eth0 up");
        set_host(host);
        let mut machine = Machine {
            ports: KernelPorts::open(&kernel::KernelOptions::default()).unwrap(),
            proxier: Reconciler::new("node-a", options(0), Duration::ZERO),
            now: Duration::ZERO,
            settings: 0,
            objects: objects::Objects::default(),
        };
        machine.proxier.start(machine.now);
        machine
    }

    fn restart(&mut self) {
        self.proxier = Reconciler::new("node-a", options(self.settings), self.now);
        self.proxier.replace_objects(self.objects.services.values(), self.objects.slices.values(), self.now);
        self.proxier.start(self.now);
    }

    /// Passes until none is due before this much time has passed.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.proxier.next_wake().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let now = self.now;
            let report = self.proxier.pass(&|| now, &mut self.ports.ports()).unwrap();
            assert!(report.is_done(), "{report:#?}");
        }
        self.now = end;
    }

    fn take(&mut self, step: &Step) {
        let now = self.now;
        match step {
            Step::Object(change) => self.objects.take(change, &mut self.proxier, now),
            Step::Host(which) => {
                set_host(*which);
                self.proxier.host_changed(now);
            }
            Step::Damage(what, which) => {
                damage(*what, usize::from(*which));
                self.proxier.request_full(now);
                self.run(Duration::ZERO);
            }
            Step::Pass => self.run(Duration::ZERO),
            Step::Flush => {
                run("nft flush ruleset");
                invite_their_rules();
                self.proxier.request_full(now);
                self.run(Duration::ZERO);
            }
            Step::Restart(settings) => {
                // The pass brings the kernel up to date: later steps may flush rules that recorded an object that has just gone.
                self.settings = *settings;
                self.restart();
                self.run(Duration::ZERO);
            }
        }
    }
}

/// Damages an own object.
fn damage(what: u8, which: usize) {
    let saved = oracle::ipvsadm_save().unwrap();
    let ours = |kind: &'static str| -> Vec<Vec<&str>> {
        let lines = saved.lines().filter(|line| line.starts_with(kind) && !is_theirs(line));
        lines.map(|line| line.split_whitespace().collect()).collect()
    };
    let (servers, reals) = (ours("-A"), ours("-a"));
    let server = servers.get(which % servers.len().max(1));
    let real = reals.get(which % reals.len().max(1));
    match (what % 9, server, real) {
        (0, Some(line), _) => drop(run(&format!("ipvsadm -D {} {}", line[1], line[2]))),
        (1, _, Some(line)) => {
            drop(run(&format!("ipvsadm -e {} {} -r {} -m -w 0", line[1], line[2], line[4])));
        }
        (2, _, Some(line)) => drop(run(&format!("ipvsadm -d {} {} -r {}", line[1], line[2], line[4]))),
        (3, Some(line), _) => {
            let extra = if line[2].contains('[') { "[fd99::9]:99" } else { "10.9.9.9:99" };
            drop(run(&format!("ipvsadm -a {} {} -r {extra} -m", line[1], line[2])));
        }
        (4, ..) => {
            let saved = oracle::ipset_save().unwrap();
            let ours: Vec<&str> = saved.lines().filter(|line| line.starts_with("create KUBE-")).collect();
            if let Some(line) = ours.get(which % ours.len().max(1)) {
                run(&format!("ipset flush {}", line.split(' ').nth(1).unwrap()));
            }
        }
        (5, ..) if !addresses("kube-ipvs0").is_empty() => drop(run("ip link delete kube-ipvs0")),
        (6, ..) => {
            for rules in ["*nat\n-F KUBE-SERVICES\nCOMMIT\n", "*filter\n-F KUBE-FORWARD\nCOMMIT\n"] {
                // The chain does not exist before the first pass.
                let _ = oracle::iptables_restore(oracle::Backend::Nft, oracle::Family::V4, rules);
            }
        }
        (7, ..) => {
            let there: Vec<IpAddr> = addresses("kube-ipvs0").into_iter().collect();
            if let Some(address) = there.get(which % there.len().max(1)) {
                let length = if address.is_ipv4() { 32 } else { 128 };
                run(&format!("ip address delete {address}/{length} dev kube-ipvs0"));
            }
        }
        (8, ..) => std::fs::write("/proc/sys/net/ipv4/vs/conntrack", "0\n").unwrap(),
        _ => {}
    }
}

fn sequence(steps: &[Step]) {
    let host = steps.iter().rev().find_map(|step| if let Step::Host(which) = step { Some(*which) } else { None });
    let (disturbed, (objects, settings)) = Netns::new()
        .unwrap()
        .run_in(|| {
            let mut machine = Machine::new(0);
            invite_strangers();
            let strangers = printed().1;
            for step in steps {
                machine.take(step);
            }
            // This time is past the last check of draining real servers, and past a full pass. Objects of the other rule back end go.
            machine.run(Duration::from_secs(100));
            let config = options(machine.settings).config;
            let cleaned = modes::cleanup::cleanup(&config, Some(modes::Kind::Ipvs), &mut machine.ports.ports());
            assert!(cleaned.is_done(), "{cleaned:#?}");
            machine.proxier.request_full(machine.now);
            machine.run(Duration::from_secs(100));
            let (ours, theirs) = printed();
            assert_eq!(theirs, strangers);
            let all = machine.proxier.wanted().unwrap().addresses().collect::<BTreeSet<_>>();
            let elsewhere: BTreeSet<IpAddr> =
                ours.addresses.iter().filter(|address| !all.contains(address)).copied().collect();
            assert!(
                elsewhere.iter().all(|address| machine.proxier.wanted().unwrap().is_elsewhere(*address)),
                "{elsewhere:?}"
            );
            // A further full pass writes nothing.
            machine.proxier.request_full(machine.now);
            let now = machine.now;
            let report = machine.proxier.pass(&|| now, &mut machine.ports.ports()).unwrap();
            assert!(report.full && report.is_done() && report.writes() == 0 && report.drift.is_empty(), "{report:#?}");
            // Cleaning up removes all own objects.
            let cleaned = cleanup(&config, &|_, _, _| false, &mut machine.ports.ports());
            assert!(cleaned.is_done(), "{cleaned:#?}");
            let (left, theirs) = printed();
            assert_eq!(theirs, strangers);
            assert!(left.ipvs.is_empty() && left.sets.is_empty() && left.addresses.is_empty(), "{left:#?}");
            assert!(left.rules.iter().all(BTreeMap::is_empty) && left.routes.is_empty(), "{left:#?}");
            assert!(left.tables.is_empty(), "{left:#?}");
            (Printed { addresses: &ours.addresses - &elsewhere, ..ours }, (machine.objects, machine.settings))
        })
        .unwrap();
    let fresh = Netns::new().unwrap().run_in(|| {
        let mut machine = Machine::new(host.unwrap_or(0));
        (machine.objects, machine.settings) = (objects, settings);
        machine.restart();
        machine.run(Duration::ZERO);
        printed().0
    });
    assert_eq!(disturbed, fresh.unwrap());
}

#[test]
fn whatever_happened_the_tools_print_what_they_print_on_an_untouched_kernel() {
    let cases = std::env::var("PROXIER_KERNEL_MODEL_CASES").ok().and_then(|number| number.parse().ok()).unwrap_or(6);
    kernel_test(PROXY, || {
        let seeded = std::env::var_os("PROPTEST_RNG_SEED").is_some();
        let mut runner = if seeded { TestRunner::new(ProptestConfig::default()) } else { TestRunner::deterministic() };
        for case in 0..cases {
            let steps = steps().new_tree(&mut runner).unwrap().current();
            println!("case {case}: {steps:?}");
            sequence(&steps);
        }
    });
}
