//! P13: iptables mode, as the number of Services grows: a full restore and one change, against the restore program alone on the
//! same text.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use iptables::{Backend, BackendChoice};
use proxier_core::config::Config;
use proxier_core::kernel;
use proxier_core::modes::iptables::{Options as ModeOptions, Wanted, changes, update};
use proxier_core::modes::{self};
use proxier_core::net::Family;
use proxier_core::reconciler::Options as ReconcilerOptions;
use proxier_core::service::NodeFacts;
use proxier_core::snapshot::{HostAddresses, Node as Facts, Store};

use crate::namespace::{collect, tell, warm_up};
use crate::node::Node;
use crate::program::feed;
use crate::report::{Goal, Report, ms};
use crate::world::{service, slice, slice_of};
use crate::{Failure, Options};

const PROGRAM: &str = "All Services from nothing";
const CHANGE: &str = "One changed endpoint";
/// With more Services than these, the nft back end takes minutes for one restore: its program alone is quadratic.
const NFT_LIMIT: u32 = 1_000;
const ENDPOINTS: u32 = 10;
/// Changes in a run; the first one of a process is the slowest.
const CHANGES: u32 = 3;

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut report = Report::new("iptables-services", options);
    report.note(format!("Services with {ENDPOINTS} endpoints each, in a fresh network namespace every time."));
    report.note(format!(
        "iptables mode: a whole pass of the reconciler, from checked objects to both families' tables, the reading of the tables \
         before included. iptables-restore: the text that such a pass writes to IPv4, by the same program; the text is ready. By the \
         legacy back end, and with up to {NFT_LIMIT} Services by the nft one.",
    ));
    let sizes: &[u32] = match (options.smoke, options.quick) {
        (true, _) => &[10, 50],
        (_, true) => &[1_000],
        _ => &[1_000, 5_000, 10_000],
    };
    let folder = Scratch(std::env::temp_dir().join(format!("iptables-services-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0)?;
    let path = folder.0.to_str().ok_or("the folder for temporary files has no name in UTF-8")?;
    for services in sizes {
        warm_up(&["iptables-services", "write-text", &services.to_string(), path])?;
    }
    for round in 0..options.rounds {
        for services in sizes {
            for back_end in BACK_ENDS.into_iter().filter(|of| *of == Backend::Legacy || *services <= NFT_LIMIT) {
                for way in ["program", "program-restore", "change", "change-restore"] {
                    collect(&mut report, &["iptables-services", way, &services.to_string(), path, called(back_end)])?;
                }
            }
        }
        eprintln!("round {round}: done");
    }
    if !options.smoke {
        for services in sizes {
            for (name, what) in [("full restore", PROGRAM), ("one change", CHANGE)] {
                for back_end in BACK_ENDS.into_iter().filter(|of| *of == Backend::Legacy || *services <= NFT_LIMIT) {
                    let name = format!("P13: {name} / iptables-restore, {}, {services} Services", called(back_end));
                    let (ours, theirs) = (ours(back_end), theirs(back_end));
                    report.ratio(&name, (what, Some(*services)), &ours, &theirs, Goal::AtMost("<= 1.1", 1.1));
                }
            }
        }
    }
    report.curve("program", PROGRAM, "Services");
    report.curve("change", CHANGE, "Services");
    report.finish()
}

/// A folder that goes with its owner.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // It may never have been made.
        std::fs::remove_dir_all(&self.0).unwrap_or_default();
    }
}

/// The texts that a pass writes to IPv4: all, and one for each change.
fn texts(services: u32) -> Result<Vec<String>, Failure> {
    let facts = NodeFacts::new(&Config::default(), &Facts::new("node-a"), &HostAddresses::default());
    let mut store = Store::new("node-a");
    for number in 0..services {
        store.upsert_service(&service(number));
        store.upsert_slice(&slice(number, ENDPOINTS));
    }
    let mut wanted = Wanted::build(&store, &facts, ModeOptions::default());
    let mut texts = vec![changes(&wanted, &iptables::Dump::default(), Family::V4)?.to_restore_text()?];
    for change in 1..=CHANGES {
        let changed = store.upsert_slice(&slice_of(services / 2, &endpoints(change)));
        let changed = wanted.refresh(&store, &facts, &changed);
        texts.push(update(&wanted, &changed, Family::V4)?.to_restore_text()?);
    }
    Ok(texts)
}

/// The endpoints of the changed Service after so many changes: the last one is another.
fn endpoints(change: u32) -> Vec<u32> {
    (0..ENDPOINTS - 1).chain([ENDPOINTS + change % 2]).collect()
}

fn file(folder: &str, services: u32, number: usize) -> PathBuf {
    PathBuf::from(folder).join(format!("{services}-{number}"))
}

const BACK_ENDS: [Backend; 2] = [Backend::Legacy, Backend::NfTables];

fn called(back_end: Backend) -> &'static str {
    match back_end {
        Backend::NfTables => "nft",
        Backend::Legacy => "legacy",
    }
}

fn ours(back_end: Backend) -> String {
    format!("iptables mode (Proxier), {}", called(back_end))
}

fn theirs(back_end: Backend) -> String {
    format!("iptables-restore, {}", called(back_end))
}

fn restore(back_end: Backend, text: &str) -> Result<Duration, Failure> {
    feed(&format!("iptables-{}-restore", called(back_end)), &["--noflush"], text)
}

/// Whoever was timed must have done the whole work: one chain for each Service, one for each endpoint.
fn check(back_end: Backend, services: u32) -> Result<(), Failure> {
    let output =
        std::process::Command::new(format!("iptables-{}-save", called(back_end))).args(["-t", "nat"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    for (chain, wanted) in [(":KUBE-SVC-", services), (":KUBE-SEP-", services * ENDPOINTS)] {
        let found = text.lines().filter(|line| line.starts_with(chain)).count();
        if u32::try_from(found) != Ok(wanted) {
            return Err(format!("{found} chains {chain} instead of {wanted}").into());
        }
    }
    Ok(())
}

fn node(back_end: Backend, services: u32) -> Result<Node, Failure> {
    let mut kernel = kernel::Options::default();
    kernel.backend = BackendChoice::Force(back_end);
    let mut options = ReconcilerOptions::default();
    options.mode = modes::Kind::Iptables;
    let mut node = Node::on(&kernel, options)?;
    node.load(services, ENDPOINTS);
    Ok(node)
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    let [way, services, folder, rest @ ..] = arguments else { return Err("WAY SERVICES FOLDER [BACK-END]".into()) };
    let back_end = if rest == ["nft"] { Backend::NfTables } else { Backend::Legacy };
    let (ours, theirs) = (&ours(back_end), &theirs(back_end));
    let services: u32 = services.parse()?;
    let read = |number| std::fs::read_to_string(file(folder, services, number));
    match *way {
        "write-text" => {
            for (number, text) in texts(services)?.into_iter().enumerate() {
                std::fs::write(file(folder, services, number), text)?;
            }
        }
        "program" => {
            let mut node = node(back_end, services)?;
            let start = Instant::now();
            node.pass()?;
            tell(PROGRAM, services, "ms", ours, ms(start.elapsed()));
            check(back_end, services)?;
        }
        "program-restore" => {
            tell(PROGRAM, services, "ms", theirs, ms(restore(back_end, &read(0)?)?));
            check(back_end, services)?;
        }
        "change" => {
            let mut node = node(back_end, services)?;
            node.pass()?;
            for change in 1..=CHANGES {
                let start = Instant::now();
                node.replace(services / 2, &endpoints(change));
                let report = node.pass()?;
                let took = start.elapsed();
                if report.full || report.writes() == 0 {
                    return Err("a change was not taken as one".into());
                }
                tell(CHANGE, services, "ms", ours, ms(took));
            }
            check(back_end, services)?;
        }
        "change-restore" => {
            restore(back_end, &read(0)?)?;
            for number in 1..=CHANGES {
                tell(CHANGE, services, "ms", theirs, ms(restore(back_end, &read(usize::try_from(number)?)?)?));
            }
            check(back_end, services)?;
        }
        other => return Err(format!("no such way: {other}").into()),
    }
    Ok(())
}
