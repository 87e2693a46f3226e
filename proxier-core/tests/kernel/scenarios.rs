//! The scenarios of `scenarios/` through the reconciler on real kernels: the output of `ipvsadm`, `ipset`, `iptables-save` and `ip` afterwards. Each
//! has a network namespace of its own.

use testkit::{Need, PROXY, Sample, kernel_test};

use crate::runner;
use crate::runner::Scenario;
use crate::runner::real::Real;

/// The schedulers that scenarios ask for besides `rr`.
const SCHEDULERS: &[Need] =
    &[Need::Scheduler("wlc"), Need::Scheduler("lc"), Need::Scheduler("sh"), Need::Scheduler("mh")];

fn run(scenario: &Scenario) -> String {
    let mut report = String::new();
    kernel_test(&[PROXY, SCHEDULERS].concat(), || report = runner::run(scenario, Real::new()));
    report
}

/// Whether a scenario of a group runs. An emulated machine needs most of an hour for all of them, so all run only with
/// `PROXIER_SCENARIOS=all`, otherwise one in eight, depending on the seed. On the kernel in memory (`plain/scenarios.rs`) all
/// always run.
fn is_sampled(scenario: &Scenario) -> bool {
    Sample::asked_for().takes(scenario.file.bytes().map(usize::from).sum(), 8)
}

macro_rules! groups {
    ($($test:ident,)*) => {
        $(#[test]
        fn $test() {
            runner::run_group(stringify!($test), |scenario| {
                // A real kernel decides how many connections there are.
                if scenario.needs_connections() || !is_sampled(scenario) { String::new() } else { run(scenario) }
            });
        })*
    };
}

runner::for_each_group!(groups);
