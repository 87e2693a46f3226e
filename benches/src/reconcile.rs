//! P8: instructions of the reconciler's pure part, counted by callgrind: a whole cluster, and one changed EndpointSlice at
//! several sizes.

use crate::callgrind::instructions;
use crate::cases::{Size, named};
use crate::report::{Goal, Report, float};
use crate::{Failure, Options};

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let sizes: &[u32] = options.choose(&[50], &[100, 1_000], &[100, 1_000, 10_000, 50_000]);
    let endpoints = if options.smoke { 4 } else { 10 };
    let whole = if options.smoke { 50 } else { 10_000 };
    let mut report = Report::new("reconcile", options);
    report.note(format!("Sizes are Services with {endpoints} endpoints each. Callgrind counts the same in each run."));
    let mut counted = |what, services| -> Result<f64, Failure> {
        let value = float(instructions(what, Size { services, endpoints })?);
        report.record("Instructions", Some(services), "instructions", named(what)?.1, value);
        Ok(value)
    };
    let all = counted("full", whole)?;
    let slices = sizes.iter().map(|services| Ok((services, counted("slice", *services)?)));
    let slices = slices.collect::<Result<Vec<_>, Failure>>()?;
    if !options.smoke {
        report.goal("P8: all of 10,000 x 10", all, Goal::AtMost("<= 400 M instructions", 400e6));
        for (services, value) in slices {
            let name = format!("P8: one changed slice of {services} Services");
            report.goal(name, value, Goal::AtMost("<= 60 k instructions", 60e3));
        }
    }
    report.finish()
}
