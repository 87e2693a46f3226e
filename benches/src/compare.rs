//! Interleaved rounds, medians, ratios, and a table of them.

use std::time::Duration;

use serde::Serialize;

use crate::{Failure, Options};

/// One way of doing the work.
pub(crate) struct Side<'a> {
    pub(crate) name: &'a str,
    pub(crate) run: Box<dyn FnMut() -> Result<Duration, Failure> + 'a>,
}

impl<'a> Side<'a> {
    pub(crate) fn new(name: &'a str, run: impl FnMut() -> Result<Duration, Failure> + 'a) -> Self {
        Side { name, run: Box::new(run) }
    }
}

/// What was measured of one side.
#[derive(Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) name: String,
    /// Milliseconds, in the order of the rounds.
    pub(crate) runs_ms: Vec<f64>,
    pub(crate) median_ms: f64,
    pub(crate) least_ms: f64,
    pub(crate) most_ms: f64,
}

/// The result of a bench, as it is kept in `benches/results`.
#[derive(Debug, Serialize)]
pub(crate) struct Results {
    pub(crate) bench: &'static str,
    pub(crate) kernel: String,
    pub(crate) cpu: String,
    pub(crate) smoke: bool,
    pub(crate) sides: Vec<Measured>,
    pub(crate) ratios: Vec<Ratio>,
}

/// A ratio with its goal.
#[derive(Debug, Serialize)]
pub(crate) struct Ratio {
    pub(crate) name: &'static str,
    pub(crate) value: f64,
    pub(crate) goal: &'static str,
    pub(crate) reached: bool,
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The processor's name.
pub(crate) fn cpu() -> String {
    let cpuinfo = read("/proc/cpuinfo");
    let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    cpu.trim_start_matches(['\t', ' ', ':']).to_owned()
}

/// Runs the sides in turn and prints what came out.
pub(crate) fn compare(bench: &'static str, options: &Options, mut sides: Vec<Side<'_>>) -> Result<Results, Failure> {
    let mut runs: Vec<Vec<f64>> = sides.iter().map(|_| Vec::new()).collect();
    for round in 0..options.rounds {
        for (side, runs) in sides.iter_mut().zip(&mut runs) {
            let took = (side.run)().map_err(|error| format!("{} in round {round}: {error}", side.name))?;
            runs.push(took.as_secs_f64() * 1e3);
        }
    }
    let measured = sides.iter().zip(runs).map(|(side, runs)| measure(side.name, runs)).collect();
    let results = Results {
        bench,
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        cpu: cpu(),
        smoke: options.smoke,
        sides: measured,
        ratios: Vec::new(),
    };
    println!("{bench} on Linux {} ({}), {} rounds", results.kernel, results.cpu, options.rounds);
    println!("{:<44} {:>11} {:>11} {:>11}", "", "median ms", "least", "most");
    for side in &results.sides {
        println!("{:<44} {:>11.2} {:>11.2} {:>11.2}", side.name, side.median_ms, side.least_ms, side.most_ms);
    }
    Ok(results)
}

fn measure(name: &str, runs_ms: Vec<f64>) -> Measured {
    let mut sorted = runs_ms.clone();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let middle = sorted.len() / 2;
    let median =
        if sorted.len().is_multiple_of(2) { f64::midpoint(at(middle.wrapping_sub(1)), at(middle)) } else { at(middle) };
    Measured {
        name: name.to_owned(),
        median_ms: median,
        least_ms: at(0),
        most_ms: at(sorted.len().saturating_sub(1)),
        runs_ms,
    }
}

impl Results {
    fn median(&self, name: &str) -> f64 {
        self.sides.iter().find(|side| side.name == name).map_or(f64::NAN, |side| side.median_ms)
    }

    /// Adds `over / under` with the goal it is held to, and prints it.
    pub(crate) fn ratio(&mut self, name: &'static str, over: &str, under: &str, goal: Goal) {
        let value = self.median(over) / self.median(under);
        let (text, reached) = match goal {
            Goal::AtMost(text, limit) => (text, value <= limit),
            Goal::AtLeast(text, limit) => (text, value >= limit),
        };
        println!("{name}: {value:.2} (goal {text}: {})", if reached { "reached" } else { "NOT reached" });
        self.ratios.push(Ratio { name, value, goal: text, reached });
    }

    /// Writes the results where `--json` says.
    pub(crate) fn keep(&self, options: &Options) -> Result<(), Failure> {
        if let Some(path) = &options.json {
            std::fs::write(path, serde_json::to_string_pretty(self)? + "\n")
                .map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }
}

/// What a ratio should be.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    AtMost(&'static str, f64),
    AtLeast(&'static str, f64),
}

#[cfg(test)]
mod tests {
    use super::measure;

    #[test]
    fn the_median_of_an_even_number_of_runs_lies_between_the_middle_ones() {
        let side = measure("x", vec![4.0, 1.0, 3.0, 2.0]);
        assert!((side.median_ms - 2.5).abs() < 1e-9);
        assert!((side.least_ms - 1.0).abs() < 1e-9 && (side.most_ms - 4.0).abs() < 1e-9);
    }
}
