//! Brings IPVS to the state in a file with the fewest changes, and prints them in ipvsadm's syntax.
//!
//! `cargo run -p examples --example reconcile_file -- FILE [apply]`
//!
//! FILE is in the format of `ipvsadm -S -n`. Without `apply` only the difference is printed. This program owns the
//! virtual servers at the addresses and firewall marks in the file: those that are not in the file are deleted, all
//! others stay. Unlike `ipvsadm -C` followed by `ipvsadm -R`, it cuts no connection of a server that stays.
//!
//! Needs IPVS and `CAP_NET_ADMIN`. Exit code 1 if the kernel refused something.

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
