//! P8: instructions of the reconciler's pure part, counted by callgrind: a whole cluster, nothing changed, one changed
//! EndpointSlice, at several sizes.

use crate::callgrind::{count, instructions, time};
use crate::cases::{Size, words};
use crate::report::{Goal, Report, float};
use crate::{Failure, Options};

const INSTRUCTIONS: &str = "Instructions";
const ALLOCATIONS: &str = "Allocations";
const TIME: &str = "Time natively";

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let size = |services, endpoints| Size { services, endpoints };
    let mut cases = Vec::new();
    if options.smoke {
        cases.extend(
            ["full", "compile", "diff", "plan", "unchanged", "slice", "service", "rolling"]
                .map(|what| (what, size(50, 4))),
        );
    } else {
        cases.extend([("full", size(1_000, 10)), ("full", size(10_000, 10)), ("rolling", size(1_000, 10))]);
        if !options.quick {
            cases.extend(["unchanged", "compile", "diff", "plan"].map(|what| (what, size(10_000, 10))));
        }
        let sizes: &[u32] = if options.quick { &[100, 1_000] } else { &[100, 1_000, 10_000, 50_000] };
        for services in sizes {
            cases.extend(["slice", "service"].map(|what| (what, size(*services, 10))));
        }
    }
    let mut report = Report::new("reconcile", options);
    report.note("Sizes are Services with 10 endpoints each. Instructions and allocations are callgrind's, and the same in each run.");
    for (what, size) in cases {
        let services = Some(size.services);
        // Counting allocations takes a second run, and small sizes are enough to see them.
        let value = if size.services <= 1_000 {
            let counted = count(what, size)?;
            report.record(ALLOCATIONS, services, "allocations", words(what), float(counted.allocations));
            float(counted.instructions)
        } else {
            float(instructions(what, size)?)
        };
        report.record(INSTRUCTIONS, services, "instructions", words(what), value);
        for _ in 0..options.rounds {
            report.record(TIME, services, "µs", words(what), time(what, size)?);
        }
        match what {
            "full" if size.services == 10_000 => {
                report.goal("P8: all of 10,000 x 10", value, Goal::AtMost("<= 400 M instructions", 400e6));
            }
            "slice" if !options.smoke => {
                let name = format!("P8: one changed slice of {} Services", size.services);
                report.goal(name, value, Goal::AtMost("<= 60 k instructions", 60e3));
            }
            _ => {}
        }
    }
    report.finish()
}
