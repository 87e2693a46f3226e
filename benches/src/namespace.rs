//! Runs one side of a comparison in its own process and network namespace.
//!
//! IPVS keeps removed real servers for two minutes and searches them at each addition, so a reused namespace would
//! distort a measurement.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};

use crate::network::tool;
use crate::report::Report;
use crate::{BENCHES, Failure, machine};

/// Pause in which the kernel destroys the previous side's namespace, and between checks whether it has done so.
const REST: Duration = Duration::from_millis(200);

/// The longest wait for the machine to become idle. A host may have other work; a virtual machine has none.
const PATIENCE: Duration = Duration::from_secs(5);
const PATIENCE_EMULATED: Duration = Duration::from_secs(20);

/// Waits until the previous side's namespace is destroyed. With tens of thousands of rules that takes the kernel
/// seconds; the machine is idle afterwards.
fn rest() {
    let end = Instant::now() + if machine::is_emulated() { PATIENCE_EMULATED } else { PATIENCE };
    loop {
        let before = machine::ticks();
        std::thread::sleep(REST);
        let idle = machine::ticks().zip(before).is_none_or(|(after, before)| {
            let (busy, all) = (after.busy - before.busy, after.all - before.all);
            busy <= all * 0.1
        });
        if idle || Instant::now() >= end {
            return;
        }
    }
}

fn run(side: &[&str]) -> Result<String, Failure> {
    rest();
    let output = Command::new(std::env::current_exe()?).arg("side").args(side).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("side {side:?} ended with {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// Runs one side and discards the figure, to load modules and files.
pub(crate) fn warm_up(side: &[&str]) -> Result<(), Failure> {
    run(side).map(drop)
}

/// Prints a figure for [`collect`].
pub(crate) fn tell(what: &str, size: u32, unit: &str, side: &str, value: f64) {
    println!("{what}\t{size}\t{unit}\t{side}\t{value}");
}

/// Runs this program for one side, and records the figures that it [`tell`]s.
pub(crate) fn collect(report: &mut Report, side: &[&str]) -> Result<(), Failure> {
    for line in run(side)?.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [what, size, unit, name, value] = fields.as_slice() else { continue };
        let units = ["ms", "µs", "KiB", "connections a second", "segments a second", "Gbit/s"];
        let unit = units.into_iter().find(|known| known == unit).ok_or_else(|| format!("unit {unit}"))?;
        report.record(what, Some(size.parse()?), unit, name, value.parse()?);
    }
    Ok(())
}

/// Moves this process into a fresh network namespace, with `lo` up.
pub(crate) fn enter_fresh() -> Result<(), Failure> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|error| format!("a network namespace of its own (run as root): {error}"))?;
    tool("ip link set lo up").map(drop)
}

/// Runs one side in a fresh network namespace, and prints its figures.
pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    enter_fresh()?;
    let (bench, rest) = arguments.split_first().ok_or("BENCH ARGUMENTS")?;
    let side = BENCHES.into_iter().find(|(name, ..)| name == bench).and_then(|(_, _, side)| side);
    side.ok_or_else(|| format!("no such side: {arguments:?}"))?(rest)
}
