//! Reads the scenarios in the neighbouring directories, runs them and compares the results with the expected ones.
//!
//! `format` defines a scenario file; `engine` (the reconciler on a kernel, in memory or real) runs it. `README.md` in the folder
//! above describes the groups.

pub(crate) mod engine;
pub(crate) mod fake;
pub(crate) mod format;
pub(crate) mod printed;
pub(crate) mod real;
pub(crate) mod world;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use engine::{Engine, Machine};
use format::Expect;
pub(crate) use format::Scenario;
pub(crate) use printed::Printed;
use world::World;

/// Calls a macro with the name of the test for each group: the group's, with `_` for `-`.
macro_rules! for_each_group {
    ($callback:ident) => {
        $callback! {
            adoption, bad_input, changes, cluster_ip, draining, dual_stack, endpoint_slices, external_ips, hairpin,
            health_checks, ignored_services, load_balancer, node_ports, ports, repair, reserved_places, rules,
            schedulers, session_affinity, shared_addresses, source_ranges, terminating, topology, traffic_policy,
        }
    };
}
pub(crate) use for_each_group;

/// The folder with the groups.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

/// Names in a folder, sorted.
#[expect(clippy::disallowed_methods, reason = "scenarios are files")]
fn list(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "runner")
        .collect();
    names.sort();
    names
}

/// The groups that exist: folders with scenarios.
pub(crate) fn groups() -> Vec<String> {
    list(&folder()).into_iter().filter(|name| folder().join(name).is_dir()).collect()
}

/// The scenarios of a group.
pub(crate) fn scenarios(group: &str) -> Vec<Scenario> {
    let files = list(&folder().join(group));
    assert!(!files.is_empty(), "no scenario in {group}");
    files.iter().map(|file| read(group, file)).collect()
}

#[expect(clippy::disallowed_methods, reason = "scenarios are files")]
fn read(group: &str, file: &str) -> Scenario {
    let name = format!("{group}/{file}");
    assert!(Path::new(file).extension().is_some_and(|ending| ending == "yaml"), "{name} is not a YAML file");
    let text = std::fs::read_to_string(folder().join(group).join(file)).unwrap();
    let mut scenario: Scenario = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
    scenario.file = name;
    scenario.check();
    scenario
}

/// Runs a scenario on a machine, and returns how the result differs from the expected one; empty when it does not.
pub(crate) fn run(scenario: &Scenario, machine: impl Machine) -> String {
    let mut report = String::new();
    let (mut world, mut engine) = (World::new(), Engine::new(machine));
    for (number, step) in std::iter::once(&scenario.first()).chain(&scenario.steps).enumerate() {
        world.take(step);
        engine.take(step, &world);
        let rules = step.expect.iptables.is_some() || step.expect.ip6tables.is_some();
        let found = engine.printed(rules);
        let mut differences = String::new();
        compare(&step.expect, &found, &mut differences);
        if !differences.is_empty() {
            let place = if number == 0 { "at first".to_owned() } else { format!("step {number}, {}", step.title) };
            // Writing to a String cannot fail.
            let _infallible = writeln!(report, "== {} ({place}): {}\n{differences}", scenario.file, scenario.title);
        }
    }
    report
}

/// Runs the group of a test, and fails with all differences.
pub(crate) fn run_group(test: &str, run: impl Fn(&Scenario) -> String) {
    let group = test.replace('_', "-");
    let report: String = scenarios(&group).iter().map(run).collect();
    let failed = report.lines().filter(|line| line.starts_with("== ")).count();
    assert!(report.is_empty(), "{failed} differences in {group} (- expected, + found):\n{report}");
}

fn compare(expect: &Expect, found: &Printed, report: &mut String) {
    let mut part = |name: &str, expected: &[String], found: &[String]| {
        if expected != found {
            let _infallible = writeln!(report, "  {name}:");
            for line in difference(expected, found) {
                let _infallible = writeln!(report, "    {line}");
            }
        }
    };
    part("ipvsadm", &printed::virtual_servers(&expect.ipvsadm), &found.ipvsadm);
    if let Some(ipset) = &expect.ipset {
        let expected = printed::sorted(printed::lines(ipset));
        part("ipset", &expected, &printed::sets_that_are_meant(&expected, &found.ipset));
    }
    if let Some(addresses) = &expect.addresses {
        part("addresses", &printed::sorted(addresses.clone()), &found.addresses);
    }
    for (name, expected, found) in
        [("iptables", &expect.iptables, &found.iptables), ("ip6tables", &expect.ip6tables, &found.ip6tables)]
    {
        if let Some(expected) = expected {
            let expected = printed::rules(expected);
            let found = printed::same_chains(&expected, found);
            part(name, &expected, &found);
        }
    }
    part("trouble", &[], &found.trouble);
    part("rejected", &printed::sorted(expect.rejected.clone()), &found.rejected);
    part("conflicts", &printed::sorted(expect.conflicts.clone()), &found.conflicts);
    part("health_checks", &printed::sorted(expect.health_checks.clone()), &found.health_checks);
    part("no_local_endpoints", &printed::sorted(expect.no_local_endpoints.clone()), &found.no_local_endpoints);
    part("refused", &printed::sorted(expect.refused.clone()), &found.refused);
    if expect.unchanged {
        part("writes", &["none".to_owned()], &[if found.wrote { "some" } else { "none" }.to_owned()]);
    }
}

/// The lines that only one side has, `-` or `+`; all lines where they only differ in their order.
fn difference(expected: &[String], found: &[String]) -> Vec<String> {
    let only = |sign: char, side: &[String], other: &[String]| -> Vec<String> {
        side.iter().filter(|line| !other.contains(line)).map(|line| format!("{sign} {line}")).collect()
    };
    let lines = [only('-', expected, found), only('+', found, expected)].concat();
    if lines.is_empty() { [only('-', expected, &[]), only('+', found, &[])].concat() } else { lines }
}
