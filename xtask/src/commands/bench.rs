//! `cargo xtask bench`: measurements side by side, on real kernels.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::error::{Context as _, Error, Result};
use crate::kernel::{Kernel, Series};
use crate::tools;
use crate::vm::Vm;

pub(crate) const HELP: &str = "\
Usage: cargo xtask bench [NAME...] [OPTIONS]

Builds the benches optimised and runs them, each comparison interleaved. Without NAME: all of them.

  ipvs-program    programming 1,000 virtual servers with 10 real servers each; in the virtual machine
  ipvs-snapshot   reading such a table; in the virtual machine
  ipset-fill      20,000 entries into a set; on this machine and in the virtual machine

  --kernel K      5.10, 6.1 (default), 6.12 or 7.x
  --rounds N      how often each side runs, 7 unless told
  --quick         5 rounds
  --smoke         small numbers, 1 round: shows only that the benches work, and keeps no results

Results are kept as JSON in benches/results.
";

/// A bench, and whether this machine's own kernel can run it too.
const BENCHES: [(&str, bool); 3] = [("ipvs-program", false), ("ipvs-snapshot", false), ("ipset-fill", true)];

#[derive(Debug)]
struct Options {
    names: Vec<String>,
    kernel: Series,
    rounds: u32,
    smoke: bool,
}

pub(crate) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    let options = parse(arguments)?;
    tools::ensure(tools::ORACLES)?;
    tools::ensure(tools::MACHINE)?;
    let root = super::test::repository()?;
    let program = build(&root)?;
    let results = root.join("benches/results");
    std::fs::create_dir_all(&results).context(|| format!("cannot make {}", results.display()))?;
    let mut failed = false;
    for (name, here) in BENCHES {
        if !options.names.is_empty() && !options.names.iter().any(|wanted| wanted == name) {
            continue;
        }
        let arguments = |place: &str| {
            let mut arguments: Vec<OsString> = vec![program.clone().into(), name.into()];
            arguments.extend(["--rounds".into(), options.rounds.to_string().into()]);
            if options.smoke {
                arguments.push("--smoke".into());
            } else {
                arguments.extend(["--json".into(), results.join(format!("{name}-{place}.json")).into()]);
            }
            arguments
        };
        if here {
            let line = arguments("host");
            let (command, rest) = line.split_first().ok_or_else(|| Error::new("no command"))?;
            let status = Command::new(command).args(rest).status().context(|| format!("cannot start {name}"))?;
            failed |= !status.success();
            println!();
        }
        let mut vm = Vm::new(Kernel::get(options.kernel)?)?;
        vm.timeout = Duration::from_secs(1800);
        vm.shares.push(results.clone());
        let outcome = vm.run(&arguments(&format!("linux-{}", options.kernel)))?;
        if let Some(trouble) = outcome.trouble() {
            eprintln!("{}\nxtask: {name}: {trouble}", outcome.console.trim_end());
        }
        failed |= outcome.exit != Some(0);
        println!();
    }
    Ok(ExitCode::from(u8::from(failed)))
}

/// Builds the benches and the C program they are measured against; gives the benches' path.
fn build(root: &Path) -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .current_dir(root)
        .args(["build", "--release", "--package", "benches", "--message-format=json-render-diagnostics"])
        .stderr(std::process::Stdio::inherit())
        .output()
        .context(|| "cannot start cargo".to_owned())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let program = text.lines().filter_map(executable).next_back();
    let Some(program) = program.filter(|_| output.status.success()) else {
        return Err(Error::new("the benches do not build"));
    };
    let c = program.with_file_name("ipvs_batch");
    let status = Command::new("cc")
        .args(["-O2", "-Wall", "-o"])
        .arg(&c)
        .arg(root.join("benches/c/ipvs_batch.c"))
        .status()
        .context(|| "cannot start cc (install gcc)".to_owned())?;
    if status.success() { Ok(program) } else { Err(Error::new("benches/c/ipvs_batch.c does not build")) }
}

/// The program a line of cargo's messages is about, if it is the benches'.
fn executable(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let name = message.get("target")?.get("name")?.as_str()?;
    let path = message.get("executable")?.as_str()?;
    (name == "benches").then(|| path.into())
}

fn parse(arguments: &[OsString]) -> Result<Options> {
    let mut options = Options { names: Vec::new(), kernel: Series::V6_1, rounds: 7, smoke: false };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || -> Result<String> {
            let value = rest.next().and_then(|value| value.to_str());
            value.map(str::to_owned).ok_or_else(|| Error::usage(format!("{}: a value is missing", argument.display())))
        };
        match argument.to_str() {
            Some("--kernel") => options.kernel = Series::parse(&value()?)?,
            Some("--rounds") => {
                let rounds = value()?.parse().ok().filter(|rounds| *rounds > 0);
                options.rounds = rounds.ok_or_else(|| Error::usage("--rounds takes a positive number"))?;
            }
            Some("--quick") => options.rounds = 5,
            Some("--smoke") => (options.smoke, options.rounds) = (true, 1),
            Some(name) if BENCHES.iter().any(|(known, _)| *known == name) => options.names.push(name.to_owned()),
            _ => return Err(Error::usage(format!("bench: unknown bench or option {}", argument.display()))),
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::parse;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn benches_are_chosen_by_name() {
        let options = parse(&words("ipset-fill --kernel 6.12 --rounds 9")).unwrap();
        assert_eq!((options.names, options.rounds, options.smoke), (vec!["ipset-fill".to_owned()], 9, false));
        for line in ["nonsense", "--rounds 0", "--rounds", "--kernel 2.6"] {
            assert!(parse(&words(line)).is_err(), "{line}");
        }
    }
}
