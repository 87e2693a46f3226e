//! Many scenarios, one subject: the differences it explains counted by name, all the rest reported.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use testkit::Sample;

use super::{Reference, Subject, check, scenarios_of};
use crate::differences;

/// Unexplained differences that a report spells out.
const SPELT_OUT: usize = 40;

/// Counts of a run.
#[derive(Debug, Default)]
struct Tally {
    scenarios: usize,
    flows: usize,
    /// Differences that the subject explains, by reference and name.
    explained: BTreeMap<(Reference, &'static str), usize>,
}

/// Whether this machine's processors are emulated: a packet takes twenty times as long there.
fn is_emulated() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("QEMU TCG"))
}

/// Holds a subject to all flows of a sample of the scenarios, one in this many, which depends on the seed; of all with `PROXIER_SCENARIOS=all`.
///
/// # Panics
/// A difference is unexplained.
pub(crate) fn hold(subject: &mut dyn Subject, one_in: usize) {
    let begin = Instant::now();
    let takes = |number| Sample::asked_for().takes(number, if is_emulated() { one_in * 8 } else { one_in });
    let (mut tally, mut report, mut unexplained) = (Tally::default(), String::new(), 0);
    let mut slowest = (Duration::ZERO, String::new());
    let references = subject.references().to_vec();
    for scenario in scenarios_of(&references, takes) {
        let start = Instant::now();
        for difference in check(&scenario, &scenario.flows, subject) {
            if let Some(name) = subject.explain(&scenario, &difference) {
                *tally.explained.entry((scenario.reference, name)).or_default() += 1;
                continue;
            }
            unexplained += 1;
            if unexplained <= SPELT_OUT {
                writeln!(report, "  {difference}").unwrap();
            }
        }
        tally.scenarios += 1;
        tally.flows += scenario.flows.len();
        slowest = slowest.max((start.elapsed(), scenario.name()));
    }
    println!("{tally:?} in {:.1?}, the slowest {slowest:.1?}", begin.elapsed());
    assert!(tally.scenarios > 0, "no scenario in the sample");
    assert!(unexplained == 0, "{unexplained} of {} flows differ:\n{report}", tally.flows);
    for reference in references {
        let names = tally.explained.keys().filter(|(of, _)| *of == reference).map(|(_, name)| *name);
        if let Some(mode) = subject.mode() {
            differences::check(mode, reference, names, (0..1_000).all(takes));
        }
    }
}
