//! The `ipvs` crate by itself: operations one by one and in batches, and a snapshot of a large table.

use std::process::{Command, Stdio};
use std::time::Instant;

use ipvs::{Client, Operation};

use crate::namespace::{collect, tell};
use crate::report::{Report, float, ms};
use crate::{Failure, Options, ipvs_program, namespace};

const BATCHES: &str = "Operations by size of the batch";
const SNAPSHOT: &str = "Everything read";

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut report = Report::new("ipvs-library", options);
    report.note(
        "Batches: half of the operations add virtual servers, half real servers; the size is the number in one call.",
    );
    let (pairs, tables) = match (options.smoke, options.quick) {
        (true, _) => ("100", &[("50", "4")][..]),
        (_, true) => ("2000", &[("1000", "10")][..]),
        _ => ("2000", &[("1000", "10"), ("10000", "10")][..]),
    };
    for _ in 0..options.rounds {
        for batch in ["1", "8", "64", "512"] {
            collect(&mut report, &["library", "batch", batch, pairs])?;
        }
    }
    for (virtual_servers, real_servers) in tables {
        let rounds = options.rounds.to_string();
        collect(&mut report, &["library", "snapshot", virtual_servers, real_servers, &rounds])?;
    }
    report.curve("batches", BATCHES, "Operations in a call");
    report.finish()
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    match arguments {
        ["batch", batch, pairs] => batches(batch.parse()?, pairs.parse()?),
        ["snapshot", virtual_servers, real_servers, rounds] => {
            snapshot(virtual_servers.parse()?, real_servers.parse()?, rounds.parse()?)
        }
        other => Err(format!("no such side: {other:?}").into()),
    }
}

fn batches(batch: u32, pairs: u32) -> Result<(), Failure> {
    let operations: Vec<Operation> = ipvs_program::operations(pairs, 1).collect();
    let mut took = 0.0;
    // An emulator translates a program the first time it runs: only the second time counts.
    let mut kept = Vec::new();
    for _ in 0..2 {
        namespace::enter_fresh()?;
        // The first must not be taken apart while the second is measured.
        kept.push(std::fs::File::open("/proc/thread-self/ns/net")?);
        let mut client = Client::open()?;
        let start = Instant::now();
        for chunk in operations.chunks(usize::try_from(batch)?) {
            client.run(chunk).into_result()?;
        }
        took = start.elapsed().as_secs_f64() * 1e6 / float(u64::try_from(operations.len())?);
    }
    tell(BATCHES, batch, "µs an operation", "ipvs crate", took);
    Ok(())
}

fn snapshot(virtual_servers: u32, real_servers: u32, rounds: u32) -> Result<(), Failure> {
    let mut client = Client::open()?;
    client.run(ipvs_program::operations(virtual_servers, real_servers)).into_result()?;
    let of_each = format!("{real_servers} real servers each");
    for _ in 0..rounds {
        let start = Instant::now();
        let found = client.snapshot()?.entries.len();
        tell(SNAPSHOT, virtual_servers, "ms", &format!("snapshot(), {of_each}"), ms(start.elapsed()));
        if found != usize::try_from(virtual_servers)? {
            return Err(format!("{found} virtual servers in the snapshot").into());
        }
    }
    let start = Instant::now();
    let status = Command::new("ipvsadm").args(["--save", "-n"]).stdout(Stdio::null()).status()?;
    if !status.success() {
        return Err(format!("ipvsadm ended with {status}").into());
    }
    tell(SNAPSHOT, virtual_servers, "ms", &format!("ipvsadm --save -n, {of_each}"), ms(start.elapsed()));
    Ok(())
}
