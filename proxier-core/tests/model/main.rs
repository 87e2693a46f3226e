//! The kernel holds everything that is wanted, after any events in any order, and nothing else was harmed meanwhile.
//!
//! Random sequences of changed objects, failed calls, other programs' edits, crashes and pauses run on a kernel in memory. Checks after every pass:
//! no foreign object was changed, nothing wanted was removed at any moment, and a report of success is true. Checks in the end: the kernel equals an
//! undisturbed one, a further pass writes nothing, and cleaning up leaves nothing.
//!
//! `PROXIER_MODEL_CASES` sets the number of sequences.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::let_underscore_must_use,
    reason = "tests stop at the first surprise; numbers here are small, and what is damaged may not be there"
)]

mod foreign;
mod held;
mod machine;
mod objects;
mod rules;
mod settings;
mod steps;
mod watch;

use machine::Machine;
use objects::Change;
use proptest::prelude::*;
use steps::{Step, steps};

#[allow(clippy::disallowed_methods, reason = "how long a test runs is no part of what is tested")]
fn cases() -> u32 {
    std::env::var("PROXIER_MODEL_CASES").ok().and_then(|number| number.parse().ok()).unwrap_or(150)
}

fn run(steps: &[Step]) {
    let mut machine = Machine::new();
    for step in steps {
        machine.take(step);
    }
    machine.settle();
    machine.clean_up();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases(), failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_happens_the_kernel_comes_to_what_is_wanted(steps in steps()) {
        run(&steps);
    }
}

fn run_settings(steps: &[settings::Step]) {
    let mut node = settings::Node::new();
    for step in steps {
        node.take(step);
    }
    node.settle_and_clean_up();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: cases() / 4, failure_persistence: None, max_shrink_iters: 5_000, ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_was_set_before_the_kernel_comes_to_what_is_set_now(steps in settings::steps()) {
        run_settings(&steps);
    }
}

#[test]
fn a_kernel_that_cannot_be_read_is_not_asked_over_and_over_for_those_that_drain() {
    use steps::Trouble;
    run(&[
        Step::Pass,
        Step::Trouble(Trouble { call: 0, kind: 0, nth: 108, how: 43 }),
        Step::Object(Change::Service([47, 91, 130, 169, 11, 0, 0, 0, 44, 0])),
        Step::Object(Change::Slice([0, 192, 20, 0, 18, 0, 0])),
        Step::Trouble(Trouble { call: 206, kind: 0, nth: 209, how: 0 }),
        Step::Pass,
        Step::Object(Change::Service([13, 0, 22, 37, 71, 0, 0, 0, 127, 0])),
        Step::Wait(2),
    ]);
}

#[test]
fn what_was_found_to_be_ours_stays_so_without_its_mark() {
    use steps::Damage;
    run(&[
        Step::Object(Change::Service([0, 224, 90, 0, 36, 0, 0, 3, 0, 0])),
        Step::Pass,
        Step::Relist([0, 0, 0, 0, 16, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0], 0),
        Step::Restart,
        Step::Pass,
        Step::Damage(Damage(37, 183)),
    ]);
}

#[test]
fn a_mark_that_nobody_recognises_is_left_alone() {
    use settings::{Settings, Step};
    let begin = [
        Step::Object(Change::Service([0, 97, 34, 0, 5, 0, 46, 0, 138, 32])),
        Step::Object(Change::Service([1, 0, 101, 16, 0, 0, 0, 0, 0, 0])),
        Step::Restart(Settings { by_table: true, by_routes: true, has_networks: false, splits: true }),
        Step::CleanUp,
        Step::Crash(3),
        Step::Pass,
        Step::Flush,
    ];
    run_settings(&begin);
    // The next process begins before the flush, and reads the kernel after it.
    run_settings(&[&begin[..], &[Step::Pass]].concat());
}

/// Connections go on through the virtual server of a mark that no Service wants any more; its table is deleted meanwhile.
#[test]
fn a_mark_that_drains_stays_ours_without_its_table() {
    use settings::{Settings, Step};
    run_settings(&[
        Step::Restart(Settings { by_table: true, by_routes: true, has_networks: false, splits: true }),
        Step::Object(Change::Slice([157, 130, 36, 0, 0, 0, 98])),
        Step::Object(Change::Service([35, 32, 6, 0, 5, 0, 0, 1, 86, 232])),
        Step::Pass,
        Step::Object(Change::Slice([139, 15, 103, 0, 0, 0, 0])),
        Step::Flush,
        Step::Pass,
    ]);
}
