//! Side-by-side measurements: the cost of the crates compared with what people use today.
//!
//! Each comparison interleaves its sides (A B C A B C …) and reports medians, spread and ratios. `cargo xtask bench`
//! builds everything and runs this program in a virtual machine; `docs/figures.md` says what that distorts.

mod callgrind;
mod cases;
mod counts;
mod drift;
mod end_to_end;
mod iptables_services;
mod ipvs_program;
mod kube_rules;
mod kube_table;
mod machine;
mod memory;
mod modes;
mod namespace;
mod network;
mod nftables_services;
mod node;
mod packets;
mod program;
mod reconcile;
mod report;
mod soak;
mod tape;
mod userspace;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use clap::builder::PossibleValuesParser;

/// Error of a bench, of any kind.
type Failure = Box<dyn std::error::Error>;

/// A bench by its name, and what one of its sides does in a process of its own. docs/figures.md says what each measures.
type Bench = (&'static str, fn(&Options) -> Result<(), Failure>, Option<fn(&[&str]) -> Result<(), Failure>>);

const BENCHES: [Bench; 13] = [
    ("ipvs-program", ipvs_program::run, Some(ipvs_program::side)),
    ("nftables-services", nftables_services::run, Some(nftables_services::side)),
    ("iptables-services", iptables_services::run, Some(iptables_services::side)),
    ("modes", modes::run, Some(modes::side)),
    ("packets", packets::run, Some(packets::side)),
    ("cold-start", end_to_end::run_start, None),
    ("drift", drift::run, Some(drift::side)),
    ("end-to-end", end_to_end::run, Some(end_to_end::side)),
    ("fleet", end_to_end::run_fleet, None),
    ("policy", end_to_end::run_policy, None),
    ("reconcile", reconcile::run, None),
    ("memory", memory::run, None),
    ("userspace", userspace::run, Some(userspace::side)),
];

/// Measure side by side: what the crates cost against what people use today
///
/// With a kubeconfig, end-to-end runs on a real cluster instead of the stand-in. It gets Services and EndpointSlices in a namespace of their own, which
/// goes at the end. `benches counts FILE [--update]` counts instructions, `benches soak --help` is a long test.
#[derive(Debug, Parser)]
struct Options {
    #[arg(value_parser = PossibleValuesParser::new(BENCHES.map(|(name, ..)| name)))]
    bench: String,
    /// How often each side runs
    #[arg(long, default_value = "7", value_parser = |text: &str| text.parse().map(std::num::NonZero::<usize>::get))]
    rounds: usize,
    /// Results go to STEM.json and STEM.md
    #[arg(long, value_name = "STEM")]
    out: Option<PathBuf>,
    /// Fewer and smaller sizes
    #[arg(long)]
    quick: bool,
    /// Small numbers: only shows that the bench works
    #[arg(long)]
    smoke: bool,
    /// Command line by which the bench was started, for the results
    #[arg(long)]
    command: Option<String>,
    #[command(flatten)]
    live: end_to_end::Live,
}

impl Options {
    /// The sizes that the options ask for.
    fn choose<T>(&self, smoke: T, quick: T, full: T) -> T {
        if self.smoke {
            smoke
        } else if self.quick {
            quick
        } else {
            full
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        // One side of a comparison, or one case of a count, in its own process.
        ["side", rest @ ..] => namespace::side(rest),
        ["case", rest @ ..] => cases::case(rest),
        ["soak", ..] => soak::run(),
        ["api-server", rest @ ..] => end_to_end::serve(rest),
        ["memory-case", rest @ ..] => memory::case(rest),
        ["counts", file] => counts::run(file.as_ref(), false),
        ["counts", file, "--update"] => counts::run(file.as_ref(), true),
        _ => {
            let options = Options::parse();
            let bench = BENCHES.into_iter().find(|(name, ..)| *name == options.bench);
            bench.map_or(Ok(()), |(_, run, _)| run(&options))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
