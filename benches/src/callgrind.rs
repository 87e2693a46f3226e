//! Instructions and allocations of a case, counted by callgrind.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use crate::Failure;
use crate::cases::{SETUP_ONLY, Size};

/// Counts of one case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    pub(crate) instructions: u64,
    /// Calls of the allocator that return new or other memory.
    pub(crate) allocations: u64,
}

/// Instructions of one case.
pub(crate) fn instructions(what: &str, size: Size) -> Result<u64, Failure> {
    match run(what, size, Part::Work)? {
        (0, _) => Err(format!("callgrind counted nothing of {what}").into()),
        (instructions, _) => Ok(instructions),
    }
}

/// Runs one case under callgrind three times. Even while it collects nothing, callgrind counts some calls, depending on
/// the build. The allocations are therefore those of a whole run minus those of a run that ends where the work would
/// begin.
pub(crate) fn count(what: &str, size: Size) -> Result<Counted, Failure> {
    let instructions = instructions(what, size)?;
    let [(_, all), (_, setup)] = [run(what, size, Part::Whole)?, run(what, size, Part::Setup)?];
    Ok(Counted { instructions, allocations: all.saturating_sub(setup) })
}

/// Part of a case that is counted.
#[derive(Clone, Copy, PartialEq)]
enum Part {
    Setup,
    Work,
    Whole,
}

/// Instructions and allocations of a part.
fn run(what: &str, size: Size, part: Part) -> Result<(u64, u64), Failure> {
    let file = tempfile::NamedTempFile::new()?;
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", &format!("--callgrind-out-file={}", file.path().display())]);
    match part {
        Part::Setup => drop(valgrind.env(SETUP_ONLY, "1")),
        Part::Work => drop(valgrind.args(["--collect-atstart=no", "--toggle-collect=*cases*measured*"])),
        Part::Whole => {}
    }
    let output = valgrind
        .arg(std::env::current_exe()?)
        .args(["case", what, &size.services.to_string(), &size.endpoints.to_string()])
        .stdout(Stdio::null())
        .output()
        .map_err(|error| format!("valgrind (apt install valgrind): {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let number = text.lines().find_map(|line| line.split_once("Collected : ")).map(|(_, number)| number.trim());
    let profile = std::fs::read_to_string(&file).unwrap_or_default();
    match number.and_then(|number| number.parse().ok()).filter(|_| output.status.success()) {
        Some(instructions) => Ok((instructions, allocations(&profile))),
        None => Err(format!("callgrind counted nothing of {what}: {text}").into()),
    }
}

/// Calls of malloc, calloc and realloc in a profile. A line `cfn=(ID) NAME`, with the name only at its first use, is
/// followed by `calls=NUMBER …`. See <https://valgrind.org/docs/manual/cl-format.html>.
fn allocations(profile: &str) -> u64 {
    let mut ids = BTreeSet::new();
    let mut called = "";
    let mut sum = 0_u64;
    for line in profile.lines() {
        let named = line.strip_prefix("cfn=").or_else(|| line.strip_prefix("fn="));
        if let Some(function) = named {
            let (id, name) = function.split_once(' ').unwrap_or((function, ""));
            if ["malloc", "calloc", "realloc", "aligned_alloc", "posix_memalign", "memalign"].contains(&name) {
                ids.insert(id);
            }
            if line.starts_with("cfn=") {
                called = id;
            }
        } else if let Some(calls) = line.strip_prefix("calls=") {
            let number = calls.split_whitespace().next().and_then(|number| number.parse::<u64>().ok());
            if ids.contains(called) {
                sum = sum.saturating_add(number.unwrap_or(0));
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::allocations;

    #[test]
    fn allocator_calls_are_summed_over_all_callers() {
        let profile = "fn=(1) main\n1 5\ncfn=(2) malloc\ncalls=3 0\n1 9\nfn=(3) other\ncfn=(2)\ncalls=4 0\n1 9\n\
                       cfn=(4) free\ncalls=7 0\n1 9\ncfn=(5) realloc\ncalls=1 0\n1 1\n";
        assert_eq!(allocations(profile), 8);
    }
}
