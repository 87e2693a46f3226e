//! Side-by-side measurements: what the crates cost against what people use today.
//!
//! Each comparison runs its sides in turn (A B C A B C …) and reports medians, spread and ratios. `cargo xtask bench` builds
//! everything and runs this program in a virtual machine; `README.md` beside this crate says what that distorts.

mod compare;
mod ipset_fill;
mod ipvs_program;
mod namespace;
mod reconcile;
mod snapshot;

use std::process::ExitCode;

/// What a bench can fail with.
type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "usage: benches BENCH [--rounds N] [--json FILE] [--smoke]

benches:
  ipvs-program   1,000 virtual servers x 10 real servers: a C program, the ipvs crate, ipvsadm --restore  (P1, P2)
  ipset-fill     20,000 entries into a set: the ipset crate, ipset restore  (P3)
  ipvs-snapshot  reading 2,000 virtual servers x 10 real servers: ways compared
  reconcile      compile, diff and plan, in instructions; up to 50,000 Services  (P8)";

/// How a bench is to run.
struct Options {
    rounds: usize,
    json: Option<std::path::PathBuf>,
    /// Small numbers: only shows that the bench works.
    smoke: bool,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(bench) = arguments.next() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    // One side of a comparison, in a process of its own.
    if bench == "side" {
        return end(namespace::side(&arguments.collect::<Vec<_>>()));
    }
    // One case of a count, in a process of its own.
    if bench == "reconcile-case" {
        return end(reconcile::case(&arguments.collect::<Vec<_>>()));
    }
    let options = match parse(arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("{error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match bench.as_str() {
        "ipvs-program" => end(ipvs_program::run(&options)),
        "ipset-fill" => end(ipset_fill::run(&options)),
        "ipvs-snapshot" => end(snapshot::run(&options)),
        "reconcile" => end(reconcile::run(&options)),
        other => {
            eprintln!("there is no bench {other:?}\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, Failure> {
    let mut options = Options { rounds: 7, json: None, smoke: false };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} takes a value"));
        match argument.as_str() {
            "--rounds" => options.rounds = value()?.parse().map_err(|error| format!("--rounds: {error}"))?,
            "--json" => options.json = Some(value()?.into()),
            "--smoke" => options.smoke = true,
            other => return Err(format!("unknown option {other:?}").into()),
        }
    }
    if options.rounds == 0 {
        return Err("--rounds takes at least 1".into());
    }
    Ok(options)
}

fn end(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
