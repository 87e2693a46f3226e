//! Sides of a comparison, in turn.

use std::time::Duration;

use crate::report::{Report, ms};
use crate::{Failure, Options};

/// One way of doing the work, in milliseconds.
pub(crate) struct Side<'a> {
    pub(crate) name: &'a str,
    pub(crate) run: Box<dyn FnMut() -> Result<Duration, Failure> + 'a>,
}

impl<'a> Side<'a> {
    pub(crate) fn new(name: &'a str, run: impl FnMut() -> Result<Duration, Failure> + 'a) -> Self {
        Side { name, run: Box::new(run) }
    }
}

/// Runs the sides in turn: A B C A B C …
pub(crate) fn compare(
    report: &mut Report,
    options: &Options,
    (what, size): (&str, Option<u32>),
    mut sides: Vec<Side<'_>>,
) -> Result<(), Failure> {
    for round in 0..options.rounds {
        for side in &mut sides {
            let took = (side.run)().map_err(|error| format!("{} in round {round}: {error}", side.name))?;
            report.record(what, size, "ms", side.name, ms(took));
        }
    }
    Ok(())
}
