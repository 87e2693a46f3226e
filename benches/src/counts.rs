//! Cost of the pure parts in instructions and allocations, compared with `counts.json`.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::callgrind::count;
use crate::cases::{CASES, Size};

/// Growth that is a failure: with the compiler that wrote the file, and with another.
const LIMITS: (f64, f64) = (1.05, 1.25);

#[derive(Debug, Serialize, Deserialize)]
struct Counts {
    rustc: String,
    cases: BTreeMap<String, Cost>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Cost {
    services: u32,
    endpoints: u32,
    instructions: u64,
    allocations: u64,
}

fn read(path: &Path) -> Result<Counts, Failure> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(serde_json::from_str(&text)?)
}

/// Counts every case. Writes the file on request, otherwise compares with it.
pub(crate) fn run(path: &Path, update: bool) -> Result<(), Failure> {
    let rustc = option_env!("BENCHES_RUSTC").unwrap_or("unknown").to_owned();
    let known = if update { None } else { Some(read(path)?) };
    let same_compiler = known.as_ref().is_none_or(|known| known.rustc == rustc);
    if let Some(known) = known.as_ref().filter(|_| !same_compiler) {
        println!("{} was counted with {}; this is {rustc}: only growth above 25 % fails", path.display(), known.rustc);
    }
    let limit = if same_compiler { LIMITS.0 } else { LIMITS.1 };
    let mut counts = Counts { rustc, cases: BTreeMap::new() };
    let mut grown = Vec::new();
    println!("{:<36} {:>14} {:>8} {:>14} {:>8}", "", "instructions", "", "allocations", "");
    for (what, words, size, _) in CASES {
        let (counted, Size { services, endpoints }) = (count(what, size)?, size);
        let cost = Cost { services, endpoints, instructions: counted.instructions, allocations: counted.allocations };
        let before = known.as_ref().and_then(|known| known.cases.get(what));
        let before = before.filter(|before| (before.services, before.endpoints) == (services, endpoints));
        if known.is_some() && before.is_none() {
            grown.push(format!("{what} is not in {}", path.display()));
        }
        let mut change = |name: &str, now: u64, before: Option<u64>| {
            let Some(before) = before else { return String::new() };
            let (now, before) = (crate::report::float(now), crate::report::float(before));
            // A handful more of a very small count is not growth.
            if now > before * limit + 4.0 {
                grown.push(format!("{what}: {now} {name} instead of {before}"));
            }
            format!("{:+.1} %", (now - before) / before.max(1.0) * 100.0)
        };
        let instructions = change("instructions", cost.instructions, before.map(|before| before.instructions));
        let allocations = change("allocations", cost.allocations, before.map(|before| before.allocations));
        println!("{:<36} {:>14} {instructions:>8} {:>14} {allocations:>8}", words, cost.instructions, cost.allocations);
        counts.cases.insert(what.to_owned(), cost);
    }
    if update {
        std::fs::write(path, serde_json::to_string_pretty(&counts)? + "\n")?;
        println!("written: {}", path.display());
        return Ok(());
    }
    if grown.is_empty() {
        return Ok(());
    }
    let why = "if the growth is meant, `cargo xtask bench --update` writes the new counts down";
    Err(format!("more than the counts in {}:\n  {}\n{why}", path.display(), grown.join("\n  ")).into())
}
