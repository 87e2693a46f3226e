//! One side of a comparison in a process and a network namespace of its own.
//!
//! IPVS keeps removed real servers for two minutes and searches them at each addition, so a namespace that was used before
//! falsifies a measurement.

use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};

use crate::{Failure, ipset_fill, ipvs_program, snapshot};

/// Starts this program again for one side, and reads the nanoseconds that it prints.
pub(crate) fn measure(side: &[&str]) -> Result<Duration, Failure> {
    let output = Command::new(std::env::current_exe()?).arg("side").args(side).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("side {side:?} ended with {}", output.status).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let last = text.lines().last().unwrap_or_default();
    let nanos: u64 = last.trim().parse().map_err(|error| format!("side {side:?} printed {last:?}: {error}"))?;
    Ok(Duration::from_nanos(nanos))
}

/// Runs one side in a fresh network namespace and prints how long it took.
pub(crate) fn side(arguments: &[String]) -> Result<(), Failure> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|error| format!("a network namespace of its own (run as root): {error}"))?;
    run("ip", &["link", "set", "lo", "up"])?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let took = match arguments.as_slice() {
        ["ipvs-program", rest @ ..] => ipvs_program::side(rest)?,
        ["ipset-fill", rest @ ..] => ipset_fill::side(rest)?,
        ["ipvs-snapshot", rest @ ..] => snapshot::side(rest)?,
        other => return Err(format!("no such side: {other:?}").into()),
    };
    println!("{}", took.as_nanos());
    Ok(())
}

/// Moves this process into a network namespace that nobody has used, with `lo` up.
pub(crate) fn enter_fresh() -> Result<(), Failure> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|error| format!("a network namespace of its own (run as root): {error}"))?;
    run("ip", &["link", "set", "lo", "up"])
}

/// Runs a program to its end.
fn run(program: &str, arguments: &[&str]) -> Result<(), Failure> {
    let status = Command::new(program).args(arguments).status().map_err(|error| format!("{program}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{program} {arguments:?} ended with {status}").into()) }
}
