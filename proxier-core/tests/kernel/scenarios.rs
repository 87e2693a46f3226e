//! The scenarios of `scenarios/` and of `oracle/` through the reconciler on real kernels: the output of `ipvsadm`, `ipset`, `iptables-save` and `ip`
//! afterwards. Each has a network namespace of its own.

use testkit::{Need, PROXY, Sample, kernel_test};

use crate::runner;
use crate::runner::Scenario;
use crate::runner::real::Real;

/// The schedulers that scenarios ask for besides `rr`.
const SCHEDULERS: &[Need] =
    &[Need::Scheduler("wlc"), Need::Scheduler("lc"), Need::Scheduler("sh"), Need::Scheduler("mh")];

fn run(scenario: &Scenario) -> String {
    let mut report = String::new();
    kernel_test(&[PROXY, SCHEDULERS].concat(), || report = runner::run(scenario, "kernel", Real::boxed));
    report
}

/// Whether a scenario of a group runs. An emulated machine needs most of an hour for all of them, so all run only with
/// `PROXIER_SCENARIOS=all`, otherwise one in eight, depending on the seed. On the kernel in memory (`plain/scenarios.rs`) all
/// always run.
fn is_sampled(scenario: &Scenario) -> bool {
    Sample::asked_for().takes(scenario.file.bytes().map(usize::from).sum(), 8)
}

macro_rules! groups {
    ($($test:ident = $group:literal,)*) => {
        const GROUPS: &[&str] = &[$($group),*];

        $(#[test]
        fn $test() {
            runner::run_group($group, |scenario| {
                // A real kernel decides how many connections there are.
                if scenario.needs_connections() || !is_sampled(scenario) { String::new() } else { run(scenario) }
            });
        })*
    };
}

runner::for_each_group!(groups);

#[test]
fn no_group_is_left_out() {
    assert_eq!(runner::groups(), GROUPS);
}

macro_rules! corpus {
    ($($test:ident = $part:literal,)*) => {
        $(#[test]
        fn $test() {
            let scenarios = runner::corpus::scenarios();
            assert_eq!(scenarios.len(), 497);
            let part = scenarios.iter().enumerate().skip($part).step_by(8);
            // A number that the parts share, so that each seed takes some of every part.
            let sample = part.filter(|(number, _)| Sample::asked_for().takes(number / 8 + $part, 20));
            runner::run_all("the corpus", sample.map(|(_, scenario)| scenario), run);
        })*
    };
}

corpus! {
    corpus_0 = 0,
    corpus_1 = 1,
    corpus_2 = 2,
    corpus_3 = 3,
    corpus_4 = 4,
    corpus_5 = 5,
    corpus_6 = 6,
    corpus_7 = 7,
}
