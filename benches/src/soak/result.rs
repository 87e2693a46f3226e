//! A soak's result as files: Markdown for people, JSON for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::mode::Mode;
use super::verdict::{Evidence, Verdict};
use super::watchers::{Sample, Use};
use crate::Failure;
use crate::machine::Machine;

/// The requested soak.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Asked {
    pub(super) command: String,
    /// The commit that was built: shows how old a result is.
    pub(super) commit: String,
    pub(super) minutes: f64,
    pub(super) seed: u64,
    pub(super) services: usize,
    pub(super) changes_per_second: u32,
    pub(super) backend: String,
    pub(super) mode: Mode,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) change_mode_every_secs: Option<u64>,
}

/// Times in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Times {
    number: usize,
    median: f64,
    p99: f64,
    longest: f64,
}

impl Times {
    fn of(mut millis: Vec<f64>) -> Self {
        millis.sort_by(f64::total_cmp);
        let at = |percent: usize| millis.get((millis.len() * percent / 100).min(millis.len().saturating_sub(1)));
        let at = |percent| at(percent).copied().unwrap_or(0.0);
        Times { number: millis.len(), median: at(50), p99: at(99), longest: at(100) }
    }
}

/// Everything in the files.
#[derive(Debug, Serialize)]
pub(super) struct Kept {
    asked: Asked,
    machine: Machine,
    passed: bool,
    wrong: Vec<String>,
    /// The first connections without an excuse.
    inexcusable: Vec<String>,
    excused: BTreeMap<String, u64>,
    changes: u64,
    changes_by_kind: BTreeMap<String, u64>,
    digest: String,
    faults: BTreeMap<String, u64>,
    connections: BTreeMap<Use, u64>,
    failed: BTreeMap<Use, u64>,
    asked_again: u64,
    /// Longest time until something that others broke was repaired, in seconds, by kind.
    repairs_secs: BTreeMap<String, f64>,
    quiet_ms: Times,
    all_ms: Times,
    start_secs: f64,
    settled_secs: Option<f64>,
    starts: usize,
    resident_and_files: Vec<Sample>,
    counters: BTreeMap<String, f64>,
    healthz: BTreeMap<String, u64>,
    said: BTreeMap<String, u64>,
}

/// About this many samples are kept.
const SAMPLES: usize = 24;

impl Kept {
    pub(super) fn new(
        asked: Asked,
        evidence: &Evidence,
        verdict: &Verdict,
        changes: (BTreeMap<String, u64>, u64),
        proxy: (BTreeMap<String, f64>, BTreeMap<String, u64>),
    ) -> Self {
        let notes = &evidence.notes;
        let mut faults = BTreeMap::new();
        for fault in &notes.faults {
            *faults.entry(fault.kind.to_owned()).or_default() += 1;
        }
        let mut failed = BTreeMap::new();
        for miss in &notes.misses {
            *failed.entry(miss.what).or_default() += 1;
        }
        let mut repairs_secs: BTreeMap<String, f64> = BTreeMap::new();
        for window in notes.windows.iter().filter(|window| window.limit.is_some()) {
            let took = window.until.map_or(f64::INFINITY, |until| until.saturating_sub(window.from).as_secs_f64());
            let longest = repairs_secs.entry(window.reason.to_owned()).or_default();
            *longest = longest.max(took);
        }
        // Quiet excludes what began within five seconds after a fault.
        let quiet = |from: std::time::Duration, took: std::time::Duration| {
            !notes
                .faults
                .iter()
                .any(|fault| fault.from <= from + took && fault.until + std::time::Duration::from_secs(5) >= from)
        };
        let millis = |all: bool| {
            let chosen = notes.followed.iter().filter(|change| all || quiet(change.from, change.took));
            Times::of(chosen.map(|change| change.took.as_secs_f64() * 1e3).collect())
        };
        let every = (notes.samples.len() / SAMPLES).max(1);
        let mut processes: Vec<u32> = notes.samples.iter().map(|sample| sample.process).collect();
        processes.dedup();
        let counters = proxy.0.into_iter().filter(|(_, value)| *value > 0.0).collect();
        Kept {
            asked,
            machine: Machine::look(),
            passed: verdict.wrong.is_empty(),
            wrong: verdict.wrong.clone(),
            inexcusable: verdict.inexcusable.iter().take(100).cloned().collect(),
            excused: verdict.excused.clone(),
            changes: evidence.events,
            changes_by_kind: changes.0,
            digest: format!("{:016x}", changes.1),
            faults,
            connections: notes.made.clone(),
            failed,
            asked_again: notes.again,
            repairs_secs,
            quiet_ms: millis(false),
            all_ms: millis(true),
            start_secs: evidence.start.as_secs_f64(),
            settled_secs: evidence.settled.map(|time| time.as_secs_f64()),
            starts: processes.len(),
            resident_and_files: notes.samples.iter().step_by(every).copied().collect(),
            counters,
            healthz: notes.healthz.clone(),
            said: proxy.1,
        }
    }

    /// Passes, from the proxy's counters.
    fn passes(&self, kind: &str) -> f64 {
        let name = format!("kubeproxy_sync_{kind}proxy_rules_duration_seconds_count{{ip_family=\"IPv4\"}}");
        self.counters.get(&name).copied().unwrap_or(0.0)
    }

    pub(super) fn markdown(&self) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        let Asked { command, commit, minutes, seed, services, changes_per_second, backend, .. } = &self.asked;
        let every = self.asked.change_mode_every_secs;
        let changing =
            every.map_or_else(String::new, |every| format!(", which changes every {every} s for half as long"));
        let mode = format!("{} mode{changing}", self.asked.mode);
        writeln!(out, "# soak\n\n`{command}`\n\nCommit {commit}. {}\n", self.machine.sentence())?;
        writeln!(out, "**{}**\n", if self.passed { "Passed." } else { "Not passed." })?;
        for line in &self.wrong {
            writeln!(out, "* {line}")?;
        }
        for line in self.inexcusable.iter().take(30) {
            writeln!(out, "  * {line}")?;
        }
        if !self.wrong.is_empty() {
            writeln!(out)?;
        }
        writeln!(
            out,
            "{minutes} minutes, {mode}; seed {seed}, {services} Services, {changes_per_second} changes a second, {backend}.\n"
        )?;
        let all = self.connections.values().sum::<u64>();
        let excused = self.excused.values().sum::<u64>();
        writeln!(out, "| | |\n|---|---:|")?;
        writeln!(out, "| changes | {} |", self.changes)?;
        writeln!(out, "| sum of the sequence | {} |", self.digest)?;
        writeln!(out, "| faults | {} |", self.faults.values().sum::<u64>())?;
        writeln!(out, "| connections as they have to be | {all} |")?;
        writeln!(out, "| others, excused | {excused} |")?;
        writeln!(out, "| others, not excused | {} |", self.inexcusable.len())?;
        writeln!(out, "| UDP questions asked again | {} |", self.asked_again)?;
        writeln!(out, "| passes, full ones among them | {}, {} |", self.passes(""), self.passes("full_"))?;
        for (name, times) in [("between faults", self.quiet_ms), ("all", self.all_ms)] {
            writeln!(
                out,
                "| from a change to the clients, {name}: {} followed: median, 99th, longest | {:.0}, {:.0}, {:.0} ms |",
                times.number, times.median, times.p99, times.longest
            )?;
        }
        let settled = self.settled_secs.map_or_else(|| "never".to_owned(), |seconds| format!("{seconds:.0} s"));
        writeln!(out, "| from the start until everything was in the kernel | {:.0} s |", self.start_secs)?;
        writeln!(out, "| until the kernel was as the model has it, after the end | {settled} |")?;
        writeln!(out, "| processes of the proxy | {} |", self.starts)?;
        let sections: [(&str, Vec<(String, String)>); 6] = [
            ("Connections as they have to be", rows(&self.connections)),
            ("Excused, by what was broken from outside", rows(&self.excused)),
            ("Faults", rows(&self.faults)),
            (
                "Longest time until it was whole again, s",
                self.repairs_secs.iter().map(|(k, v)| (k.clone(), format!("{v:.1}"))).collect(),
            ),
            ("Changes", rows(&self.changes_by_kind)),
            ("/healthz", rows(&self.healthz)),
        ];
        for (title, lines) in sections {
            writeln!(out, "\n## {title}\n\n| | |\n|---|---:|")?;
            for (name, value) in lines {
                writeln!(out, "| {name} | {value} |")?;
            }
        }
        writeln!(
            out,
            "\n## The process\n\n| at, s | mode | process | resident, KiB | open files |\n|---:|---|---:|---:|---:|"
        )?;
        for sample in &self.resident_and_files {
            writeln!(
                out,
                "| {:.0} | {} | {} | {} | {} |",
                sample.at_secs, sample.mode, sample.process, sample.resident_kib, sample.files
            )?;
        }
        Ok(out)
    }

    /// Writes both files, and the proxy's last log lines if it has not passed.
    pub(super) fn write(&self, stem: &Path, said: &str) -> Result<(), Failure> {
        let place = |ending: &str| {
            let mut name = stem.to_owned().into_os_string();
            name.push(ending);
            PathBuf::from(name)
        };
        std::fs::write(place(".json"), serde_json::to_string_pretty(self)? + "\n")?;
        std::fs::write(place(".md"), self.markdown()?)?;
        if !self.passed {
            std::fs::write(place(".log"), said)?;
        }
        Ok(())
    }
}

fn rows<K: Serialize, V: std::fmt::Display>(map: &BTreeMap<K, V>) -> Vec<(String, String)> {
    map.iter()
        .map(|(key, value)| {
            let name = serde_json::to_value(key).ok().and_then(|key| key.as_str().map(str::to_owned));
            (name.unwrap_or_default(), value.to_string())
        })
        .collect()
}
