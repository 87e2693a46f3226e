//! Brings IPVS to what a file says, with the least changes, and shows them in ipvsadm's words.
//!
//! `cargo run -p examples --example reconcile_file -- FILE [apply]`
//!
//! FILE is the output of `ipvsadm -S -n`, or written by a person. Without `apply` only the difference is printed. The virtual servers at the
//! addresses and firewall marks of the file are this program's: those at these addresses that the file does not have are deleted, all the rest stays.
//! Unlike `ipvsadm -R` after `-C`, no connection of a server that stays is cut.
//!
//! Needs IPVS and `CAP_NET_ADMIN`. Exit code 1 when the kernel did not take everything.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::process::ExitCode;

use examples::Failure;
use ipvs::{Client, Ruleset, SyncPolicy, VirtualServerKey};

fn main() -> ExitCode {
    examples::end(run())
}

fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (file, apply) = match arguments.as_slice() {
        [file] => (file, false),
        [file, word] if word == "apply" => (file, true),
        _ => return Err("usage: reconcile_file FILE [apply]".into()),
    };
    let wanted: Ruleset = fs::read_to_string(file)?.parse().map_err(|error| format!("{file}: {error}"))?;
    let keys: BTreeSet<VirtualServerKey> = wanted.entries.iter().map(|entry| entry.virtual_server.key).collect();
    let addresses: BTreeSet<IpAddr> = keys.iter().filter_map(VirtualServerKey::addr).collect();
    let policy = SyncPolicy::owning(|key| match key.addr() {
        Some(address) => addresses.contains(&address),
        None => keys.contains(key),
    });
    let mut ipvs = Client::open()?;
    if !apply {
        print!("{}", wanted.diff(&ipvs.snapshot()?, &policy)?);
        return Ok(());
    }
    let report = ipvs.sync(&wanted, &policy)?;
    print!("{}", report.done);
    for failure in &report.failures {
        let why = failure.outcome.error().map_or_else(|| "not done".to_owned(), ToString::to_string);
        eprintln!("{}: {why}", failure.operation);
    }
    report.into_result()?;
    Ok(())
}
