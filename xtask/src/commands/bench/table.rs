//! `cargo xtask bench table`: makes the tables of figures in the README and docs/ from `benches/tables.md` and the
//! result files.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow};
use fs_err as fs;
use serde_json::Value;

use crate::tools;

/// Between these lines a page belongs to this command.
const START: &str = "<!-- made by `cargo xtask bench table` -->";
const END: &str = "<!-- end of what `cargo xtask bench table` made -->";

/// The tables without figures, each below a heading with the name of its page.
const TABLES: &str = "benches/tables.md";

pub(super) fn main(check: bool) -> Result<ExitCode> {
    let root = tools::repository();
    let mut current = true;
    for section in fs::read_to_string(root.join(TABLES))?.split("\n# ").skip(1) {
        let (file, template) = section.split_once('\n').unwrap_or((section, ""));
        let path = root.join(file);
        let folder = path.parent().unwrap_or(root);
        let text = fs::read_to_string(&path)?;
        let lines = template.trim().lines().map(|line| filled(line, folder));
        let table = lines.collect::<Result<Vec<_>>>()?.join("\n");
        let next = replaced(&text, &table).with_context(|| format!("{file} has no lines {START} and {END}"))?;
        if let Some(link) = links(&next).find(|link| !folder.join(link).is_file()) {
            return Err(anyhow!("{file} names {link}, which is not there"));
        }
        if text == next {
            println!("{file} has the figures of benches/results");
        } else if check {
            current = false;
            for (old, new) in text.lines().zip(next.lines()).filter(|(old, new)| old != new) {
                eprintln!("{file}: {old}\nresults: {new}");
            }
        } else {
            fs::write(&path, next)?;
            println!("written: {}", path.display());
        }
    }
    if !current {
        eprintln!("xtask: the figures are not those of benches/results: cargo xtask bench table");
    }
    Ok(ExitCode::from(u8::from(!current)))
}

/// The text with another table; `None` if it lacks the marker lines.
fn replaced(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(START)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{START}\n{table}\n{END}{after}"))
}

/// Result files that a text links to.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(link, _)| link)
        .filter(|link| link.starts_with("benches/results/") || link.starts_with("../benches/results/"))
}

/// A line of a table with the figures of the result to which it links.
fn filled(line: &str, folder: &Path) -> Result<String> {
    if !line.contains('{') {
        return Ok(line.to_owned());
    }
    let link = links(line).next().with_context(|| format!("{TABLES}: a line links to no result: {line}"))?;
    let path = folder.join(link).with_extension("json");
    let result = serde_json::from_str(&fs::read_to_string(&path)?)?;
    measured(&result, line).map_err(|missing| anyhow!("{} has no figure {missing}", path.display()))
}

/// The line with its figures; otherwise what is missing.
fn measured(result: &Value, line: &str) -> Result<String, String> {
    let mut parts = line.split(['{', '}']);
    let mut text = parts.next().unwrap_or_default().to_owned();
    let mut reached = true;
    while let (Some(figure), Some(words)) = (parts.next(), parts.next()) {
        let found = match *figure.split('|').collect::<Vec<_>>() {
            ["load"] => load(result),
            ["reached"] => Some(if reached { "" } else { " **not reached**" }.to_owned()),
            [unit, name] => goal(result, name).and_then(|(value, is_reached)| {
                reached &= is_reached;
                written(unit, value)
            }),
            [unit, what, size, side] => median(result, what, size, side).and_then(|value| written(unit, value)),
            _ => None,
        };
        text.push_str(&found.ok_or_else(|| format!("{figure:?}"))?);
        text.push_str(words);
    }
    Ok(text)
}

/// The load of the machine, or of the QEMU host if there is one: at the start and at the end.
fn load(result: &Value) -> Option<String> {
    let machine = result.get("machine")?;
    let emulated = machine.get("cpu")?.as_str()?.contains("QEMU");
    if emulated && machine.get("host").is_none_or(Value::is_null) {
        // The guest's own load is meaningless.
        return Some("unknown".to_owned());
    }
    let machine = machine.get("host").filter(|host| !host.is_null()).unwrap_or(machine);
    let average = |index: usize| machine.get("load")?.get(index)?.as_str();
    Some(format!("{} to {} of {}", average(0)?, average(1)?, machine.get("cpus")?.as_u64()?))
}

fn named<'a>(list: &'a Value, key: &str, name: &str) -> impl Iterator<Item = &'a Value> {
    list.as_array().into_iter().flatten().filter(move |item| item.get(key).and_then(Value::as_str) == Some(name))
}

fn goal(result: &Value, name: &str) -> Option<(f64, bool)> {
    let goal = named(result.get("ratios")?, "name", name).next()?;
    Some((goal.get("value")?.as_f64()?, goal.get("reached")?.as_bool()?))
}

fn median(result: &Value, what: &str, size: &str, side: &str) -> Option<f64> {
    let (size, mut groups) = (size.parse().ok()?, named(result.get("groups")?, "what", what));
    let group = groups.find(|group| group.get("size").and_then(Value::as_u64) == Some(size))?;
    named(group.get("sides")?, "name", side).next()?.get("median")?.as_f64()
}

/// A figure in a suitable unit.
fn written(unit: &str, value: f64) -> Option<String> {
    Some(match unit {
        "ms" if value >= 1_000.0 => format!("{} s", digits(value / 1_000.0)),
        "µs" if value >= 1_000.0 => format!("{} ms", digits(value / 1_000.0)),
        "×" | "ms" | "µs" | "MB" | "Gbit/s" => format!("{} {unit}", digits(value)),
        "KiB" => format!("{} MB", digits(value * 1024.0 / 1e6)),
        "bytes" if value >= 1e6 => format!("{} MB", digits(value / 1e6)),
        "bytes" => format!("{value:.0} bytes"),
        "number" => format!("{value:.0}"),
        "instructions" if value >= 1e6 => format!("{} M", digits(value / 1e6)),
        "instructions" => format!("{} k", digits(value / 1e3)),
        _ => return None,
    })
}

/// Three digits.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{END, START, measured, replaced};

    #[test]
    fn figures_come_from_the_result_and_goals_are_judged_by_it() {
        let result = |reached: bool| {
            json!({
                "ratios": [{"name": "P2: restore / crate", "value": 29.87, "reached": reached}],
                "groups": [{"what": "From nothing", "size": 1000, "sides": [{"name": "restore", "median": 5432.1}]}],
                "machine": {"cpu": "QEMU", "host": {"cpus": 2, "load": ["0.99", "1.10"]}},
            })
        };
        let line = "| {×|P2: restore / crate} ({ms|From nothing|1000|restore}){reached} | {load} |";
        assert_eq!(measured(&result(true), line).unwrap(), "| 29.9 × (5.43 s) | 0.99 to 1.10 of 2 |");
        assert!(measured(&result(false), line).unwrap().contains("(5.43 s) **not reached** |"));
        for missing in
            ["ms|From nothing|1000|another", "ms|From nothing|10|restore", "×|P3", "miles|P2: restore / crate"]
        {
            assert_eq!(measured(&result(true), &format!("| {{{missing}}} |")), Err(format!("{missing:?}")));
        }
        let readme = |table: &str| format!("before\n{START}\n{table}\n{END}\nafter\n");
        assert_eq!(replaced(&readme("old"), "new").unwrap(), readme("new"));
    }
}
