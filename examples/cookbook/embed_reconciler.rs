//! The reconciler in your own agent, without Kubernetes: virtual addresses and their endpoints come from a file.
//!
//! `cargo run -p examples --example embed_reconciler -- FILE [ipvs|nftables]`
//!
//! Each line of FILE: `TCP 10.96.0.10:80 -> 10.244.1.7:8080 10.244.1.8:8080`. The cost of a changed line does not
//! depend on the number of lines. The reconciler maintains the desired state: it follows changes of addresses, reads
//! everything again every 30 seconds, and retries refused operations. Default: nftables.
//!
//! Needs `CAP_NET_ADMIN`; for nftables Linux 5.10 or later, for ipvs what `proxier-demo probe` lists. It leaves its
//! objects in the kernel.

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use examples::Failure;
use proxier_core::engine::{Options, Reconciler};
use proxier_core::kernel::{KernelOptions, KernelPorts, Monitor};
use proxier_core::modes::Kind;
use proxier_core::net::{EndpointKey, FrontendKey};
use proxier_core::plan::report::Report;
use proxier_core::snapshot::{FrontendSpec, ObjectKey};

/// Interval between reads of the file.
const INTERVAL: Duration = Duration::from_millis(500);

type Wanted = BTreeMap<FrontendKey, Vec<EndpointKey>>;

fn main() -> ExitCode {
    examples::end(run())
}

fn run() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("usage: embed_reconciler FILE [ipvs|nftables]")?;
    let mut options = Options::default();
    options.mode = match arguments.next().as_deref() {
        None | Some("nftables") => Kind::Nftables,
        Some("ipvs") => Kind::Ipvs,
        Some(other) => return Err(format!("{other:?} is neither ipvs nor nftables").into()),
    };
    // The monitor is opened before anything is read, so that no change is missed.
    let mut monitor = Monitor::open()?;
    let mut kernel = KernelPorts::open(&KernelOptions::default())?;
    let origin = Instant::now();
    let mut proxier = Reconciler::new("this-node", options, Duration::ZERO);
    let mut text = fs::read_to_string(&file)?;
    let mut known = parse(&text).map_err(|error| format!("{file}: {error}"))?;
    take(&mut proxier, &Wanted::new(), &known, origin.elapsed());
    // The reconciler deletes nothing before `start`: half a list would delete the other half.
    proxier.start(origin.elapsed());
    loop {
        if let Some(report) = proxier.pass(&|| origin.elapsed(), &mut kernel.ports()) {
            tell(&report);
        }
        let due = proxier.next_wake().map_or(INTERVAL, |at| at.saturating_sub(origin.elapsed()));
        thread::sleep(due.min(INTERVAL));
        let changes = monitor.drain()?;
        if !changes.is_empty() {
            proxier.addresses_seen(changes.came, origin.elapsed());
            proxier.host_changed(origin.elapsed());
        }
        match fs::read_to_string(&file) {
            Ok(now) if now == text => {}
            Ok(now) => {
                match parse(&now) {
                    Ok(wanted) => {
                        take(&mut proxier, &known, &wanted, origin.elapsed());
                        known = wanted;
                    }
                    Err(error) => eprintln!("{file}: {error}; the earlier one counts"),
                }
                text = now;
            }
            Err(error) => eprintln!("{file}: {error}; the earlier one counts"),
        }
    }
}

/// Passes the virtual addresses that changed or were removed to the reconciler.
fn take(proxier: &mut Reconciler, known: &Wanted, wanted: &Wanted, now: Duration) {
    let name = |key: &FrontendKey| ObjectKey::new("file", &key.to_string());
    for (key, endpoints) in wanted.iter().filter(|(key, endpoints)| known.get(key) != Some(endpoints)) {
        proxier.upsert_frontends(&name(key), [FrontendSpec::new(*key, endpoints.iter().copied())], now);
    }
    for key in known.keys().filter(|key| !wanted.contains_key(key)) {
        proxier.delete_frontends(&name(key), now);
    }
}

fn tell(report: &Report) {
    println!("{} changes, {} failed", report.writes(), report.applied.failures.len());
    report.applied.failures.iter().for_each(|failure| eprintln!("{failure}"));
    report.unread.iter().for_each(|unread| eprintln!("{unread}"));
}

fn parse(text: &str) -> Result<Wanted, Failure> {
    let mut wanted = Wanted::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (key, endpoints) = line.split_once(" -> ").ok_or_else(|| format!("{line:?} has no arrow"))?;
        let endpoint = |word: &str| word.parse::<EndpointKey>().map_err(|error| format!("{word:?}: {error}"));
        wanted.insert(key.parse()?, endpoints.split_whitespace().map(endpoint).collect::<Result<_, _>>()?);
    }
    Ok(wanted)
}
