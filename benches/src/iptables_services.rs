//! P13: iptables mode by number of Services: a full restore and one change, compared with the restore programs alone on
//! the same texts, for both families.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use iptables::{Backend, BackendChoice};
use proxier_core::engine::Options as ReconcilerOptions;
use proxier_core::kernel::KernelOptions;
use proxier_core::modes;
use proxier_core::net::Family;

use crate::namespace::{collect, tell, warm_up};
use crate::node::Node;
use crate::program::{feed, timed};
use crate::report::{Goal, Report, ms};
use crate::{Failure, Options};

const PROGRAM: &str = "All Services from nothing";
const CHANGE: &str = "One changed endpoint";
/// With more Services the nft back end takes minutes for one restore: the program itself is quadratic.
const NFT_LIMIT: u32 = 1_000;
const ENDPOINTS: u32 = 10;
/// Changes in a run; the first one of a process is the slowest.
const CHANGES: u32 = 3;

const WAYS: [&str; 5] = ["program", "program-restore", "program-unsorted", "change", "change-restore"];

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut report = Report::new("iptables-services", options);
    report.note(format!("Services with {ENDPOINTS} endpoints each, in a fresh network namespace every time."));
    report.note(format!(
        "iptables mode: a whole pass of the reconciler, from checked objects to both families' tables, the reading of the tables \
         before included. iptables-restore: the texts that such a pass writes to both families, undivided, noted from one, by the same \
         programs and likewise: families one after the other by the legacy back end, which has one lock for both, else in \
         parallel; the texts are ready. By the legacy back end, and with up to {NFT_LIMIT} Services by the nft one, for which the pass \
         divides the text of many new chains. Unsorted: the same \
         texts with the chains in the order of Services, as kube-proxy has them.",
    ));
    report.note(
        "All from nothing, and the program alone beside it, ten times in a round with 1,000 Services by the legacy back end, twice with 5,000: \
         these times vary by a fifth.",
    );
    let sizes: &[u32] = options.choose(&[10, 50], &[1_000], &[1_000, 5_000, 10_000]);
    let folder = tempfile::tempdir()?;
    let path = folder.path().to_str().ok_or("the folder for temporary files has no name in UTF-8")?;
    let each = || {
        let both = sizes.iter().flat_map(|services| BACK_ENDS.map(|back_end| (back_end, *services)));
        both.filter(|(back_end, services)| *back_end == Backend::Legacy || *services <= NFT_LIMIT)
    };
    for (back_end, services) in each() {
        warm_up(&["iptables-services", "write-text", &services.to_string(), path, called(back_end)])?;
    }
    for round in 0..options.rounds {
        for (back_end, services) in each() {
            let mut collect =
                |way| collect(&mut report, &["iptables-services", way, &services.to_string(), path, called(back_end)]);
            WAYS.into_iter().try_for_each(&mut collect)?;
            let more = if options.smoke { 0 } else { more_often(back_end, services) };
            for _ in 0..more {
                ["program", "program-restore"].into_iter().try_for_each(&mut collect)?;
            }
        }
        eprintln!("round {round}: done");
    }
    for (back_end, services) in each().filter(|_| !options.smoke) {
        for (name, what) in [("full restore", PROGRAM), ("one change", CHANGE)] {
            let name = format!("P13: {name} / iptables-restore, {}, {services} Services", called(back_end));
            let goal = Goal::AtMost("<= 1.1", 1.1);
            report.ratio(&name, (what, Some(services)), &ours(back_end), &theirs(back_end), goal);
        }
    }
    report.finish()
}

/// Repetitions per round of a full restore, and of its program alone: a restore of a fifth of a second varies by a
/// fifth.
fn more_often(back_end: Backend, services: u32) -> u32 {
    match (back_end, services) {
        (Backend::Legacy, ..=1_000) => 9,
        (Backend::Legacy, ..=5_000) => 1,
        _ => 0,
    }
}

/// Texts of each pass, by the program that restores them. A pass writes nothing to an unchanged family.
type Texts = Vec<Vec<(String, String)>>;

/// Writes the texts that passes pass to the programs to a file: of all Services, then of each change.
fn write_texts(back_end: Backend, services: u32, file: &Path) -> Result<(), Failure> {
    let (mut node, mut all) = (node(back_end, services)?, Texts::new());
    for pass in 0..=CHANGES {
        if pass > 0 {
            node.replace(services / 2, &endpoints(pass));
        }
        let texts = node.recorded_pass()?.into_iter();
        all.push(texts.map(|(family, text)| (program(back_end, family, "restore"), text)).collect());
    }
    Ok(std::fs::write(file, serde_json::to_string(&all)?)?)
}

/// The endpoints of the changed Service after this many changes: the last one differs.
fn endpoints(change: u32) -> Vec<u32> {
    (0..ENDPOINTS - 1).chain([ENDPOINTS + change % 2]).collect()
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

/// The text with chains declared in the order in which they get their rules.
fn unsorted(text: &str) -> String {
    let mut all = String::new();
    for table in text.split_inclusive("COMMIT\n") {
        let lines = || table.lines();
        let with_rules = lines().filter_map(|line| line.strip_prefix("-A ")?.split(' ').next());
        let places: BTreeMap<&str, usize> = with_rules.zip(0..).collect();
        let name = |line: &str| line.split([':', ' ']).nth(1).and_then(|name| places.get(name)).copied();
        let mut chains: Vec<&str> = lines().filter(|line| line.starts_with(':')).collect();
        chains.sort_by_key(|line| name(line));
        let (head, rest): (Vec<&str>, Vec<&str>) =
            lines().filter(|line| !line.starts_with(':')).partition(|line| line.starts_with('*'));
        for line in head.into_iter().chain(chains).chain(rest) {
            all.push_str(line);
            all.push('\n');
        }
    }
    all
}

/// A program of a family, by the end of its name.
fn program(back_end: Backend, family: Family, end: &str) -> String {
    let stem = if family == Family::V4 { "iptables" } else { "ip6tables" };
    format!("{stem}-{}-{end}", called(back_end))
}

/// Restores each family's text.
fn restore(back_end: Backend, texts: &[(String, String)]) -> Result<Duration, Failure> {
    let one = |(program, text): &(String, String)| {
        feed(program, &["--noflush"], text).map(drop).map_err(|error| error.to_string())
    };
    if texts.is_empty() {
        return Err("a pass has written nothing".into());
    }
    let in_parallel = || {
        thread::scope(|scope| {
            let started: Vec<_> = texts.iter().map(|text| scope.spawn(move || one(text))).collect();
            started.into_iter().try_for_each(|run| run.join().map_err(|_panic| "a thread has ended".to_owned())?)
        })
    };
    let in_turn = || texts.iter().try_for_each(one);
    Ok(if back_end == Backend::Legacy { timed(in_turn)?.1 } else { timed(in_parallel)?.1 })
}

/// Checks that the timed side did all the work: one chain per Service, one per endpoint.
fn check(back_end: Backend, services: u32) -> Result<(), Failure> {
    let output = Command::new(program(back_end, Family::V4, "save")).args(["-t", "nat"]).output()?;
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
    let (mut kernel, mut options) = (KernelOptions::default(), ReconcilerOptions::default());
    kernel.backend = BackendChoice::Force(back_end);
    options.mode = modes::Kind::Iptables;
    Node::with(&kernel, options, services, ENDPOINTS)
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    let [way, services, folder, rest @ ..] = arguments else { return Err("WAY SERVICES FOLDER [BACK-END]".into()) };
    let back_end = if rest == ["nft"] { Backend::NfTables } else { Backend::Legacy };
    let (ours, theirs) = (&ours(back_end), &theirs(back_end));
    let services: u32 = services.parse()?;
    let file = Path::new(folder).join(format!("{}-{services}", called(back_end)));
    let read = || -> Result<Texts, Failure> { Ok(serde_json::from_str(&std::fs::read_to_string(&file)?)?) };
    let all = || Ok::<_, Failure>(read()?.swap_remove(0));
    match *way {
        "write-text" => write_texts(back_end, services, &file)?,
        "program" => {
            let mut node = node(back_end, services)?;
            tell(PROGRAM, services, "ms", ours, ms(timed(|| node.pass())?.1));
            check(back_end, services)?;
        }
        "program-restore" => {
            tell(PROGRAM, services, "ms", theirs, ms(restore(back_end, &all()?)?));
            check(back_end, services)?;
        }
        "program-unsorted" => {
            let texts: Vec<_> = all()?.into_iter().map(|(program, text)| (program, unsorted(&text))).collect();
            tell(PROGRAM, services, "ms", &format!("{theirs}, unsorted"), ms(restore(back_end, &texts)?));
            check(back_end, services)?;
        }
        "change" => {
            let mut node = node(back_end, services)?;
            node.pass()?;
            for change in 1..=CHANGES {
                tell(CHANGE, services, "ms", ours, node.timed_change(services / 2, &endpoints(change))?);
            }
            check(back_end, services)?;
        }
        "change-restore" => {
            for (pass, texts) in read()?.iter().enumerate() {
                let took = ms(restore(back_end, texts)?);
                if pass > 0 {
                    tell(CHANGE, services, "ms", theirs, took);
                }
            }
            check(back_end, services)?;
        }
        other => return Err(format!("no such way: {other}").into()),
    }
    Ok(())
}
