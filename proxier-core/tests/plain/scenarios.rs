//! Every scenario in `scenarios/`: the meaning of Services, in the output of the usual tools. See `scenarios/README.md`.

use proxier_core::config::Config;
use proxier_core::modes::ipvs::wanted::Recorded;
use proxier_core::service::{Indexed, NodeFacts};
use proxier_core::snapshot::{HostAddresses, Node, Store};
use serde_json::{Value, json};

use crate::runner::fake::Fake;
use crate::runner::{self, Scenario};

macro_rules! groups {
    ($($test:ident,)*) => {
        const TESTS: &[&str] = &[$(stringify!($test)),*];

        $(#[test]
        fn $test() {
            runner::run_group(stringify!($test), run);
        })*
    };
}

runner::for_each_group!(groups);

/// Runs a scenario on a kernel in memory.
fn run(scenario: &Scenario) -> String {
    runner::run(scenario, Fake::default())
}

/// A Service with as many ports as an object can hold stops no Service, not even itself.
#[test]
fn tens_of_thousands_of_ports() {
    let port = |number: u32| json!({"name": format!("p{number}"), "port": number, "nodePort": 0});
    // Some are invalid, some are there twice.
    let ports: Vec<Value> = (0..20_000).chain(65_500..66_000).chain(1..500).map(port).collect();
    let mut store = Store::new("node-a");
    let many = json!({"metadata": {"name": "many"}, "spec": {"clusterIP": "10.96.0.10", "ports": ports}});
    let web = json!({"metadata": {"name": "web"}, "spec": {"clusterIP": "10.96.0.11", "ports": [{"port": 80}]}});
    for object in [many, web] {
        store.upsert_service(&serde_json::from_value(object).unwrap());
    }
    let facts = NodeFacts::new(&Config::default(), &Node::new("node-a"), &HostAddresses::default());
    let all = Indexed::build(&store, &facts, Recorded::new(facts.config()));
    assert_eq!(all.wanted().servers().count(), 19_999 + 36 + 1);
    // Port 0, those above 65535, and the repeated ones: 964. The first hundred problems of an object are kept.
    assert_eq!(store.rejections().count(), 100);
}

/// Each folder has its test, and the table in the README has the right numbers of scenarios.
#[test]
fn no_scenario_is_left_out() {
    let groups: Vec<String> = TESTS.iter().map(|test| test.replace('_', "-")).collect();
    assert_eq!(runner::groups(), groups);
    let readme = include_str!("../scenarios/README.md");
    let mut total = 0;
    for group in &groups {
        let row = readme.lines().find(|line| line.starts_with(&format!("| `{group}` |"))).unwrap();
        let said: usize = row.trim_end_matches(" |").rsplit("| ").next().unwrap().parse().unwrap();
        let found = runner::scenarios(group).len();
        assert!(found >= said, "{group}: README.md says {said} scenarios, and there are {found}");
        total += found;
    }
    assert!(total >= 180, "{total}");
}
