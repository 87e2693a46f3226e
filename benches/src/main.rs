//! Side-by-side measurements: what the crates cost against what people use today.
//!
//! Each comparison runs its sides in turn (A B C A B C …) and reports medians, spread and ratios. `cargo xtask bench` builds
//! everything and runs this program in a virtual machine; `README.md` beside this crate says what that distorts.

mod callgrind;
mod cases;
mod compare;
mod conn_list;
mod counts;
mod curve;
mod drift;
mod end_to_end;
mod ipset_fill;
mod iptables_services;
mod ipvs_program;
mod kube_rules;
mod kube_table;
mod machine;
mod memory;
mod modes;
mod namespace;
mod network;
mod nftables_fill;
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

/// Error of a bench, of any kind.
type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "usage: benches BENCH [--rounds N] [--out STEM] [--quick] [--smoke] [--command TEXT]
       benches end-to-end --kubeconfig FILE [--kube-proxy PROGRAM] [--etcd URL] [--mode MODE]... [--services N] [--endpoints N] [--changes N]
       benches counts FILE [--update]

benches:
  ipvs-program      1,000 virtual servers x 10 real servers: a C program, the ipvs crate, ipvsadm --restore  (P1, P2)
  ipset-fill        20,000 entries into a set: the ipset crate, ipset restore  (P3)
  nftables-fill     100,000 elements into a map: a C program, the nftables crate, nft -f
  nftables-services Services in nftables mode: all from nothing, one change, connecting; nft -f, iptables  (P10, P11, P12)
  iptables-services Services in iptables mode: all from nothing, one change, reading; the programs alone  (P13)
  modes             the modes of this kernel on the same axes: all from nothing, one change, connecting, memory
  packets           packets through the rules of each mode and of kube-proxy, with the fast path, and directly
  cold-start        proxier-demo in IPVS mode: start with rules by programs and by nf_tables, also with no module loaded  (P4 nft)
  drift             a full check of 10,000 Services x 10 endpoints, nothing changed  (P7)
  end-to-end        proxier-demo with an API server: start, one change, memory  (P4, P5, P6)
  fleet             a hundred of proxier-demo on one API server: requests, bytes, processor time
  policy            proxier-demo with an API server: a Service gets another scheduler, against another endpoint  (P15)
  reconcile         compile, diff and plan, in instructions; up to 50,000 Services  (P8)
  memory            what IPVS mode and iptables mode keep  (P6, P16)
  userspace         userspace mode: one stream, connections; against a loop of splice(2) and HAProxy

--out: results go to STEM.json, STEM.md and STEM-*.svg
--kubeconfig: a real cluster instead of the stand-in. It gets Services (1,000 unless told) and EndpointSlices (of 10) in a namespace of
              their own, which goes at the end. --kube-proxy: the program that takes turns with proxier-demo. --mode: nftables (default),
              iptables or ipvs, once for each. --etcd: the server's etcd (http), into which the Services are written: tens of thousands
              take the server hours";

/// Options of a bench's run.
struct Options {
    rounds: usize,
    /// Path of the results, without the ending.
    out: Option<PathBuf>,
    /// Fewer and smaller sizes.
    quick: bool,
    /// Small numbers: only shows that the bench works.
    smoke: bool,
    /// Command line by which the bench was started, for the results.
    command: Option<String>,
    /// A real cluster to measure on.
    live: Option<end_to_end::Live>,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let Some(bench) = arguments.next() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let rest: Vec<String> = arguments.collect();
    match bench.as_str() {
        // One side of a comparison, or one case of a count, in a process of its own.
        "side" => return end(namespace::side(&rest)),
        "case" => return end(cases::case(&rest)),
        "soak" => return end(soak::run(&rest)),
        "api-server" => return end(end_to_end::serve(&rest)),
        "memory-case" => return end(memory::case(&rest)),
        "counts" => {
            return match rest.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
                [file] => end(counts::run(file.as_ref(), false)),
                [file, "--update"] => end(counts::run(file.as_ref(), true)),
                _ => usage("counts takes a file"),
            };
        }
        _ => {}
    }
    let options = match parse(rest.into_iter()) {
        Ok(options) => options,
        Err(error) => return usage(error),
    };
    match bench.as_str() {
        "ipvs-program" => end(ipvs_program::run(&options)),
        "ipset-fill" => end(ipset_fill::run(&options)),
        "nftables-fill" => end(nftables_fill::run(&options)),
        "nftables-services" => end(nftables_services::run(&options)),
        "iptables-services" => end(iptables_services::run(&options)),
        "drift" => end(drift::run(&options)),
        "cold-start" => end(end_to_end::run_start(&options)),
        "end-to-end" => match &options.live {
            Some(live) => end(end_to_end::run_live(&options, live)),
            None => end(end_to_end::run(&options)),
        },
        "fleet" => end(end_to_end::run_fleet(&options)),
        "policy" => end(end_to_end::run_policy(&options)),
        "reconcile" => end(reconcile::run(&options)),
        "memory" => end(memory::run(&options)),
        "modes" => end(modes::run(&options)),
        "packets" => end(packets::run(&options)),
        "userspace" => end(userspace::run(&options)),
        other => usage(format!("there is no bench {other:?}")),
    }
}

fn usage(error: impl std::fmt::Display) -> ExitCode {
    eprintln!("{error}\n{USAGE}");
    ExitCode::from(2)
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, Failure> {
    let mut options = Options { rounds: 7, out: None, quick: false, smoke: false, command: None, live: None };
    let mut live = end_to_end::Live::default();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{argument} takes a value"));
        match argument.as_str() {
            "--rounds" => options.rounds = value()?.parse().map_err(|error| format!("--rounds: {error}"))?,
            "--out" => options.out = Some(value()?.into()),
            "--command" => options.command = Some(value()?),
            "--quick" => options.quick = true,
            "--smoke" => options.smoke = true,
            "--kubeconfig" => live.kubeconfig = value()?.into(),
            "--etcd" => live.etcd = Some(value()?),
            "--kube-proxy" => live.kube_proxy = Some(value()?.into()),
            "--mode" => live.modes.push(value()?),
            "--services" => live.services = value()?.parse()?,
            "--endpoints" => live.endpoints = value()?.parse()?,
            "--changes" => live.changes = value()?.parse()?,
            other => return Err(format!("unknown option {other:?}").into()),
        }
    }
    options.live = live.checked()?;
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
