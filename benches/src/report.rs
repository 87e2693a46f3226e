//! Results of a bench: figures in groups, and ratios compared with goals; stored as JSON and Markdown.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::machine::Machine;
use crate::{Failure, Options};

/// The result of a bench, as stored in `benches/results`.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    bench: &'static str,
    command: String,
    machine: Machine,
    smoke: bool,
    notes: Vec<String>,
    groups: Vec<Group>,
    ratios: Vec<Ratio>,
    #[serde(skip)]
    stem: Option<PathBuf>,
}

/// Ways of doing the same work, at one size.
#[derive(Debug, Serialize)]
struct Group {
    what: String,
    size: Option<u32>,
    unit: &'static str,
    sides: Vec<Measured>,
}

/// Measurements of one way.
#[derive(Debug, Default, Serialize)]
struct Measured {
    name: String,
    median: f64,
    least: f64,
    most: f64,
    /// In the order of the rounds.
    runs: Vec<f64>,
}

/// A ratio with its goal.
#[derive(Debug, Serialize)]
struct Ratio {
    name: String,
    value: f64,
    /// The same ratio of each side's fastest run, which other load on the machine disturbs least.
    of_least: Option<f64>,
    goal: &'static str,
    reached: bool,
}

/// Goal of a figure.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    AtMost(&'static str, f64),
    AtLeast(&'static str, f64),
    Within(&'static str, f64, f64),
}

/// Milliseconds.
pub(crate) fn ms(took: Duration) -> f64 {
    took.as_secs_f64() * 1e3
}

/// A count as a number that can be divided; exact below 2^53.
#[expect(clippy::cast_precision_loss, reason = "counts here stay far below 2^53")]
pub(crate) fn float(count: u64) -> f64 {
    count as f64
}

impl Measured {
    fn take(&mut self, value: f64) {
        self.runs.push(value);
        let mut sorted = self.runs.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let middle = sorted.len() / 2;
        let even = sorted.len().is_multiple_of(2);
        self.median = if even { f64::midpoint(at(middle.wrapping_sub(1)), at(middle)) } else { at(middle) };
        (self.least, self.most) = (at(0), at(sorted.len().saturating_sub(1)));
    }
}

impl Report {
    pub(crate) fn new(bench: &'static str, options: &Options) -> Self {
        let command = options.command.clone().unwrap_or_else(|| format!("benches {bench} --rounds {}", options.rounds));
        Report {
            bench,
            command,
            machine: Machine::look(),
            smoke: options.smoke,
            notes: Vec::new(),
            groups: Vec::new(),
            ratios: Vec::new(),
            stem: options.out.clone(),
        }
    }

    /// A sentence that a reader of the figures needs to know.
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Adds a run of one side.
    pub(crate) fn record(&mut self, what: &str, size: Option<u32>, unit: &'static str, side: &str, value: f64) {
        let found = self.groups.iter().position(|group| group.what == what && group.size == size);
        let index = found.unwrap_or_else(|| {
            self.groups.push(Group { what: what.to_owned(), size, unit, sides: Vec::new() });
            self.groups.len().saturating_sub(1)
        });
        let Some(group) = self.groups.get_mut(index) else { return };
        if let Some(known) = group.sides.iter_mut().find(|known| known.name == side) {
            known.take(value);
        } else {
            let mut new = Measured { name: side.to_owned(), ..Measured::default() };
            new.take(value);
            group.sides.push(new);
        }
    }

    /// The median of one side; NaN if it was not measured.
    pub(crate) fn median(&self, what: &str, size: Option<u32>, side: &str) -> f64 {
        self.measured(what, size, side).map_or(f64::NAN, |side| side.median)
    }

    fn measured(&self, what: &str, size: Option<u32>, side: &str) -> Option<&Measured> {
        let group = self.groups.iter().find(|group| group.what == what && group.size == size)?;
        group.sides.iter().find(|known| known.name == side)
    }

    /// Compares a figure with its goal.
    pub(crate) fn goal(&mut self, name: impl Into<String>, value: f64, goal: Goal) {
        self.hold(name.into(), value, None, goal);
    }

    fn hold(&mut self, name: String, value: f64, of_least: Option<f64>, goal: Goal) {
        let (text, reached) = match goal {
            Goal::AtMost(text, limit) => (text, value <= limit),
            Goal::AtLeast(text, limit) => (text, value >= limit),
            Goal::Within(text, least, most) => (text, (least..=most).contains(&value)),
        };
        self.ratios.push(Ratio { name, value, of_least, goal: text, reached });
    }

    /// Compares a ratio of medians of one group with its goal.
    pub(crate) fn ratio(&mut self, name: &str, (what, size): (&str, Option<u32>), over: &str, under: &str, goal: Goal) {
        let value = self.median(what, size, over) / self.median(what, size, under);
        let least = |side: &str| self.measured(what, size, side).map_or(f64::NAN, |side| side.least);
        let of_least = least(over) / least(under);
        self.hold(name.to_owned(), value, Some(of_least), goal);
    }

    /// Prints everything, and writes it to the files in the options.
    pub(crate) fn finish(mut self) -> Result<(), Failure> {
        self.machine.look_again();
        let markdown = self.markdown();
        print!("{markdown}");
        self.stem.as_ref().map_or(Ok(()), |stem| write(stem, &self, &markdown))
    }

    fn markdown(&self) -> String {
        let mut text = String::new();
        let _infallible = self.write_markdown(&mut text);
        text
    }

    fn write_markdown(&self, out: &mut String) -> std::fmt::Result {
        let machine = &self.machine;
        writeln!(out, "# {}\n", self.bench)?;
        if self.smoke {
            writeln!(out, "Small numbers: shows that it works, and measures nothing.\n")?;
        }
        writeln!(out, "`{}`\n", self.command)?;
        writeln!(out, "{}", machine.sentence())?;
        let versions: Vec<String> = machine.versions.values().cloned().collect();
        writeln!(out, "{}.\n", versions.join("; "))?;
        for note in &self.notes {
            writeln!(out, "* {note}")?;
        }
        if !self.notes.is_empty() {
            writeln!(out)?;
        }
        let mut last: Option<&str> = None;
        for group in &self.groups {
            if last != Some(&group.what) {
                writeln!(out, "{}## {}, {}\n", if last.is_some() { "\n" } else { "" }, group.what, group.unit)?;
                writeln!(out, "| | size | median | least | most | runs |\n|---|---:|---:|---:|---:|---:|")?;
                last = Some(&group.what);
            }
            let size = group.size.map_or_else(String::new, |size| size.to_string());
            for side in &group.sides {
                let [median, least, most] = [side.median, side.least, side.most].map(figure);
                writeln!(out, "| {} | {size} | {median} | {least} | {most} | {} |", side.name, side.runs.len())?;
            }
        }
        if !self.ratios.is_empty() {
            writeln!(out, "\n## Goals\n\n| | value | of best runs | goal | |\n|---|---:|---:|---|---|")?;
            for ratio in &self.ratios {
                let reached = if ratio.reached { "reached" } else { "**not reached**" };
                let least = ratio.of_least.map_or_else(String::new, figure);
                writeln!(out, "| {} | {} | {least} | {} | {reached} |", ratio.name, figure(ratio.value), ratio.goal)?;
            }
        }
        Ok(())
    }
}

/// Writes a result as STEM.json and STEM.md.
pub(crate) fn write(stem: &Path, result: &impl Serialize, markdown: &str) -> Result<(), Failure> {
    for (suffix, text) in [("json", serde_json::to_string_pretty(result)? + "\n"), ("md", markdown.to_owned())] {
        let path = format!("{}.{suffix}", stem.display());
        std::fs::write(&path, text).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

/// The number with its significant digits.
fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => {
            let digits = format!("{size:.0}");
            let mut grouped = String::new();
            for (index, digit) in digits.chars().enumerate() {
                if index > 0 && (digits.len() - index).is_multiple_of(3) {
                    grouped.push(',');
                }
                grouped.push(digit);
            }
            if value < 0.0 { format!("-{grouped}") } else { grouped }
        }
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Measured, figure};

    #[test]
    fn the_median_of_an_even_number_of_runs_is_between_the_middle_two() {
        let mut side = Measured::default();
        for run in [4.0, 1.0, 3.0, 2.0] {
            side.take(run);
        }
        assert!((side.median - 2.5).abs() < 1e-9);
        assert!((side.least - 1.0).abs() < 1e-9 && (side.most - 4.0).abs() < 1e-9);
    }

    #[test]
    fn figures_have_three_digits_and_separated_thousands() {
        let texts = [1_234_567.8, 1000.0, 123.4, 12.34, 1.234, 0.01234].map(figure);
        assert_eq!(texts, ["1,234,568", "1,000", "123", "12.3", "1.23", "0.012"]);
    }
}
