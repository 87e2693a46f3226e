//! Every scenario in `scenarios/`: what Services mean, readable by who knows the tools. See `scenarios/README.md`.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

#[path = "scenarios/runner/mod.rs"]
mod runner;

use runner::fake::Fake;
use runner::pure::Pure;

macro_rules! groups {
    ($($test:ident = $group:literal,)*) => {
        const GROUPS: &[&str] = &[$($group),*];

        $(#[test]
        fn $test() {
            run($group);
        })*
    };
}

groups! {
    adoption = "adoption",
    bad_input = "bad-input",
    changes = "changes",
    cluster_ip = "cluster-ip",
    draining = "draining",
    dual_stack = "dual-stack",
    endpoint_slices = "endpoint-slices",
    external_ips = "external-ips",
    hairpin = "hairpin",
    health_checks = "health-checks",
    ignored_services = "ignored-services",
    load_balancer = "load-balancer",
    node_ports = "node-ports",
    ports = "ports",
    repair = "repair",
    reserved_places = "reserved-places",
    rules = "rules",
    schedulers = "schedulers",
    session_affinity = "session-affinity",
    shared_addresses = "shared-addresses",
    source_ranges = "source-ranges",
    terminating = "terminating",
    topology = "topology",
    traffic_policy = "traffic-policy",
}

/// Through the functions on values, and through the reconciler on a kernel in memory.
fn run(group: &str) {
    runner::run_group(group, |scenario| {
        let values =
            if scenario.is_for_values() { runner::run(scenario, "values", Pure::boxed) } else { String::new() };
        values + &runner::run(scenario, "engine", Fake::boxed)
    });
}

/// Each folder has its test, and the table in the README says how many scenarios there are.
#[test]
fn no_scenario_is_left_out() {
    assert_eq!(runner::groups(), GROUPS);
    let readme = include_str!("scenarios/README.md");
    let mut total = 0;
    for group in GROUPS {
        let row = readme.lines().find(|line| line.starts_with(&format!("| `{group}` |"))).unwrap();
        let said: usize = row.trim_end_matches(" |").rsplit("| ").next().unwrap().parse().unwrap();
        let found = runner::scenarios(group).len();
        assert!(found >= said, "{group}: README.md says {said} scenarios, and there are {found}");
        total += found;
    }
    assert!(total >= 180, "{total}");
}
