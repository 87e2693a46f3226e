//! A soak's result as files: Markdown for people, JSON for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::verdict::{Evidence, Verdict};
use crate::machine::Machine;
use crate::{Failure, report};

/// About this many samples are kept.
const SAMPLES: usize = 24;

/// Times in milliseconds.
fn times(mut millis: Vec<f64>) -> Value {
    millis.sort_by(f64::total_cmp);
    let at = |percent: usize| millis.get((millis.len() * percent / 100).min(millis.len().saturating_sub(1)));
    let at = |percent| at(percent).copied().unwrap_or(0.0);
    json!({"number": millis.len(), "median": at(50), "p99": at(99), "longest": at(100)})
}

fn counted<T: Ord>(all: impl Iterator<Item = T>) -> BTreeMap<T, u64> {
    let mut counts = BTreeMap::new();
    all.for_each(|one| *counts.entry(one).or_default() += 1);
    counts
}

/// Everything in the files: the requested soak, and the results of the changes, the proxy's counters and its log.
pub(super) fn kept(
    asked: &Value,
    evidence: &Evidence,
    verdict: &Verdict,
    changes: &BTreeMap<String, u64>,
    (counters, said): (BTreeMap<String, f64>, BTreeMap<String, u64>),
) -> Value {
    let notes = &evidence.notes;
    // Longest time to repair other programs' damage, by kind.
    let mut repairs: BTreeMap<&str, f64> = BTreeMap::new();
    for window in notes.windows.iter().filter(|window| window.limit.is_some()) {
        let took = window.until.map_or(f64::INFINITY, |until| until.saturating_sub(window.from).as_secs_f64());
        let longest = repairs.entry(window.reason).or_default();
        *longest = longest.max(took);
    }
    // Quiet excludes what began within five seconds after a fault.
    let quiet = |from: Duration, took: Duration| {
        let mut faults = notes.faults.iter();
        !faults.any(|fault| fault.from <= from + took && fault.until + Duration::from_secs(5) >= from)
    };
    let millis = |all: bool| {
        let chosen = notes.followed.iter().filter(|change| all || quiet(change.from, change.took));
        times(chosen.map(|change| change.took.as_secs_f64() * 1e3).collect())
    };
    let every = (notes.samples.len() / SAMPLES).max(1);
    let mut processes: Vec<u32> = notes.samples.iter().map(|sample| sample.process).collect();
    processes.dedup();
    json!({
        "asked": asked,
        "machine": Machine::look(),
        "passed": verdict.wrong.is_empty(),
        "wrong": verdict.wrong,
        // The first unexplained failures.
        "inexcusable": verdict.inexcusable.iter().take(100).collect::<Vec<_>>(),
        "excused": verdict.excused,
        "changes": evidence.events,
        "changes_by_kind": changes,
        "faults": counted(notes.faults.iter().map(|fault| fault.kind)),
        "connections": notes.made,
        "failed": counted(notes.misses.iter().map(|miss| miss.what)),
        "asked_again": notes.again,
        "repairs_secs": repairs,
        "quiet_ms": millis(false),
        "all_ms": millis(true),
        "start_secs": evidence.start.as_secs_f64(),
        "settled_secs": evidence.settled.map(|time| time.as_secs_f64()),
        "starts": processes.len(),
        "resident_and_files": notes.samples.iter().step_by(every).collect::<Vec<_>>(),
        "counters": counters.into_iter().filter(|(_, value)| *value > 0.0).collect::<BTreeMap<_, _>>(),
        "healthz": notes.healthz,
        "said": said,
    })
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => format!("{:.1}", number.as_f64().unwrap_or_default()),
        Value::Null => "never".to_owned(),
        other => other.to_string(),
    }
}

fn rows(map: &Value) -> impl Iterator<Item = (&str, String)> {
    map.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), text(value)))
}

fn sum(map: &Value) -> u64 {
    map.as_object().into_iter().flatten().filter_map(|(_, value)| value.as_u64()).sum()
}

/// Number and unit without more digits than it needs.
fn whole(value: &Value, unit: &str) -> String {
    value.as_f64().map_or_else(|| "never".to_owned(), |number| format!("{number:.0}{unit}"))
}

pub(super) fn markdown(kept: &Value) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    let asked = |name: &str| text(&kept["asked"][name]);
    let every = kept["asked"]["change_mode_every_secs"].as_u64();
    let changing = every.map_or_else(String::new, |every| format!(", which changes every {every} s for half as long"));
    writeln!(out, "# soak\n\n`{}`\n\nCommit {}. {}\n", asked("command"), asked("commit"), asked("machine"))?;
    writeln!(out, "**{}**\n", if kept["passed"] == true { "Passed." } else { "Not passed." })?;
    let lines = |name: &str| kept[name].as_array().cloned().unwrap_or_default();
    for line in lines("wrong") {
        writeln!(out, "* {}", text(&line))?;
    }
    for line in lines("inexcusable").iter().take(30) {
        writeln!(out, "  * {}", text(line))?;
    }
    writeln!(
        out,
        "\n{} minutes, {} mode{changing}; seed {}, {} Services, {} changes a second.\n",
        kept["asked"]["minutes"],
        asked("mode"),
        asked("seed"),
        asked("services"),
        asked("changes_per_second")
    )?;
    let passes = |kind: &str| {
        let name = format!("kubeproxy_sync_{kind}proxy_rules_duration_seconds_count{{ip_family=\"IPv4\"}}");
        kept["counters"][name].as_f64().unwrap_or(0.0)
    };
    writeln!(out, "| | |\n|---|---:|")?;
    let mut row = |name: &str, value: String| writeln!(out, "| {name} | {value} |");
    row("changes", text(&kept["changes"]))?;
    row("faults", sum(&kept["faults"]).to_string())?;
    row("connections as they have to be", sum(&kept["connections"]).to_string())?;
    row("others, excused", sum(&kept["excused"]).to_string())?;
    row("others, not excused", lines("inexcusable").len().to_string())?;
    row("UDP questions asked again", text(&kept["asked_again"]))?;
    row("passes, full ones among them", format!("{}, {}", passes(""), passes("full_")))?;
    for (name, times) in [("between faults", &kept["quiet_ms"]), ("all", &kept["all_ms"])] {
        let what = format!("from a change to the clients, {name}: {} followed: median, 99th, longest", times["number"]);
        let [median, p99, longest] = ["median", "p99", "longest"].map(|at| whole(&times[at], ""));
        row(&what, format!("{median}, {p99}, {longest} ms"))?;
    }
    row("from the start until everything was in the kernel", whole(&kept["start_secs"], " s"))?;
    row("until the kernel was as the model has it, after the end", whole(&kept["settled_secs"], " s"))?;
    row("processes of the proxy", text(&kept["starts"]))?;
    for (title, name) in [
        ("Connections as they have to be", "connections"),
        ("Excused, by what was broken from outside", "excused"),
        ("Faults", "faults"),
        ("Longest time until it was whole again, s", "repairs_secs"),
        ("Changes", "changes_by_kind"),
        ("/healthz", "healthz"),
    ] {
        writeln!(out, "\n## {title}\n\n| | |\n|---|---:|")?;
        for (name, value) in rows(&kept[name]) {
            writeln!(out, "| {name} | {value} |")?;
        }
    }
    writeln!(
        out,
        "\n## The process\n\n| at, s | mode | process | resident, KiB | open files |\n|---:|---|---:|---:|---:|"
    )?;
    for sample in lines("resident_and_files") {
        let [mode, process, resident, files] =
            ["mode", "process", "resident_kib", "files"].map(|name| text(&sample[name]));
        writeln!(out, "| {} | {mode} | {process} | {resident} | {files} |", whole(&sample["at_secs"], ""))?;
    }
    Ok(out)
}

/// Writes both files, and the proxy's last log lines if the soak failed.
pub(super) fn write(kept: &Value, stem: &Path, said: &str) -> Result<(), Failure> {
    report::write(stem, kept, &markdown(kept)?)?;
    if kept["passed"] == false {
        std::fs::write(format!("{}.log", stem.display()), said)?;
    }
    Ok(())
}
