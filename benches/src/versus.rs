//! P9: Services by IPVS against Services by iptables, legacy and nft, as their number grows.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::machine::ticks;
use crate::namespace::{collect, tell, warm_up};
use crate::network::Network;
use crate::node::Node;
use crate::program::feed;
use crate::report::{Goal, Report, float, ms};
use crate::world::cluster_ip;
use crate::{Failure, Options, kube_rules};

const PROGRAM: &str = "All Services from nothing";
const CHANGE: &str = "One changed Service";
pub(crate) const LATENCY: &str = "Connecting";
const RATE: &str = "Connections one after the other";
const CPU: &str = "Processor time of a connection, client and backend included";
const SOFT: &str = "Of it in soft interrupts";
const MEMORY: &str = "Kernel memory (Slab, VmallocUsed, Percpu)";
pub(crate) const ENDPOINTS: u32 = 2;
/// Changes in a run. The first one of a process is the slowest, since an emulator translates what runs for the first time, so every
/// size gets as many.
const CHANGES: u32 = 3;
/// Time for all of a measurement at one size, above which it is not repeated.
pub(crate) const PATIENCE: Duration = Duration::from_secs(100);
/// With more Services, restoring rules takes iptables-nft minutes.
pub(crate) const NFT_LIMIT: u32 = 5_000;

/// Its name in arguments and in figures.
const WAYS: [(&str, &str); 3] = [("ipvs", "IPVS (Proxier)"), ("legacy", "iptables-legacy"), ("nft", "iptables-nft")];

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut report = Report::new("versus-iptables", options);
    report.note(format!("Services with {ENDPOINTS} endpoints each, in a fresh set of network namespaces every time."));
    report.note(
        "IPVS: a whole pass of the reconciler, from checked objects to both families' sets, rules, addresses and virtual servers. \
         iptables: iptables-restore alone, of text as kube-proxy 1.28 has it ready, IPv4 only; one change is its partial sync \
         (KUBE-SERVICES and the chains of one Service). What kube-proxy does besides is not counted.",
    );
    report.note(
        "Connections go from a client namespace over veth to the node, and over veth to a namespace with all backends.",
    );
    // Tens of seconds each at the largest.
    let rounds = options.rounds.min(5);
    let is_too_large = |way: &str, services: u32| way == "nft" && services > NFT_LIMIT;
    let sizes = by_size(&mut report, options, ("versus", &WAYS, rounds), is_too_large)?;
    if sizes.iter().any(|services| *services > NFT_LIMIT) {
        report
            .note(format!("iptables-nft with more than {NFT_LIMIT} Services is left out: one restore takes minutes."));
    }
    report.note(format!("{rounds} rounds; fewer of what took more than {} s altogether.", PATIENCE.as_secs()));
    if !options.smoke {
        goals(&mut report, sizes);
    }
    curves(&mut report);
    report.finish()
}

/// Measures ways, by name in arguments and in figures, as the number of Services grows; gives the sizes.
pub(crate) fn by_size(
    report: &mut Report,
    options: &Options,
    (bench, ways, rounds): (&str, &[(&str, &str)], usize),
    is_too_large: impl Fn(&str, u32) -> bool,
) -> Result<&'static [u32], Failure> {
    let sizes: &[u32] = match (options.smoke, options.quick) {
        (true, _) => &[10, 30],
        (_, true) => &[10, 1_000],
        _ => &[10, 100, 1_000, 5_000, 10_000],
    };
    let connections = if options.smoke { "20" } else { "150" };
    for (way, _) in ways {
        warm_up(&[bench, way, "3", "5"])?;
    }
    for services in sizes.iter().copied() {
        let mut spent = vec![Duration::ZERO; ways.len()];
        for round in 0..rounds {
            for ((way, name), spent) in ways.iter().zip(&mut spent) {
                if *spent > PATIENCE || is_too_large(way, services) {
                    continue;
                }
                let start = Instant::now();
                collect(report, &[bench, way, &services.to_string(), connections])?;
                *spent += start.elapsed();
                eprintln!("{name}, {services} Services, round {round}: {:.1} s", start.elapsed().as_secs_f64());
            }
        }
    }
    Ok(sizes)
}

/// Draws what [`by_size`] has measured.
pub(crate) fn curves(report: &mut Report) {
    report.curve("program", PROGRAM, "Services");
    report.curve("change", CHANGE, "Services");
    let last_or_none = |side: &str| !side.ends_with("first") && !side.ends_with("middle");
    report.curve_of("connect", "Connecting through the last Service", LATENCY, "Services", last_or_none);
    report.curve("rate", RATE, "Services");
    report.curve("memory", MEMORY, "Services");
}

/// A pass for all Services from nothing, and passes for changes of one.
pub(crate) fn passes(node: &mut Node, services: u32, name: &str) -> Result<(), Failure> {
    let start = Instant::now();
    node.pass()?;
    tell(PROGRAM, services, "ms", name, ms(start.elapsed()));
    for change in 0..CHANGES {
        let start = Instant::now();
        node.change(services / 2, endpoints_then(change));
        let report = node.pass()?;
        tell(CHANGE, services, "ms", name, ms(start.elapsed()));
        if report.full || report.writes() == 0 {
            return Err("a change was not taken as one".into());
        }
    }
    Ok(())
}

/// The endpoints of a Service after so many changes.
fn endpoints_then(change: u32) -> u32 {
    if change.is_multiple_of(2) { ENDPOINTS - 1 } else { ENDPOINTS }
}

/// Tells how much kernel memory has grown.
pub(crate) fn memory_since(before: f64, services: u32, name: &str) -> Result<(), Failure> {
    // Memory that was in use until the last moment is given back after a grace period.
    std::thread::sleep(Duration::from_millis(300));
    tell(MEMORY, services, "KiB", name, kernel_memory()? - before);
    Ok(())
}

/// Flat or growing, from the smallest to the largest number of Services.
fn goals(report: &mut Report, sizes: &[u32]) {
    for (way, name) in WAYS {
        let mut measured = sizes.iter().filter(|services| way != "nft" || **services <= NFT_LIMIT);
        let (Some(least), Some(most)) = (measured.next(), measured.next_back()) else { continue };
        let last = format!("{name}, last");
        for (what, side, text) in [(CHANGE, name, "one change"), (LATENCY, last.as_str(), "connecting")] {
            let growth = report.median(what, Some(*most), side) / report.median(what, Some(*least), side);
            let goal = match way {
                "ipvs" => Goal::AtMost("flat: <= 2", 2.0),
                _ => Goal::AtLeast("grows: >= 2", 2.0),
            };
            report.goal(format!("P9: {name}, {text}, {most} / {least} Services"), growth, goal);
        }
    }
}

/// KiB of kernel memory that grow with tables.
pub(crate) fn kernel_memory() -> Result<f64, Failure> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let mut sum = 0.0;
    for line in text.lines() {
        let Some((name, rest)) = line.split_once(':') else { continue };
        if ["Slab", "VmallocUsed", "Percpu"].contains(&name) {
            sum += rest.split_whitespace().next().unwrap_or_default().parse::<f64>()?;
        }
    }
    Ok(sum)
}

pub(crate) fn restore(way: &str, text: &str) -> Result<Duration, Failure> {
    let program = if way == "legacy" { "iptables-legacy-restore" } else { "iptables-nft-restore" };
    feed(program, &["--noflush", "--counters"], text)
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    let [way, services, connections] = arguments else { return Err("WAY SERVICES CONNECTIONS".into()) };
    let (services, connections): (u32, usize) = (services.parse()?, connections.parse()?);
    let name = WAYS.into_iter().find(|(known, _)| known == way).map(|(_, name)| name).ok_or("no such way")?;
    let network = Network::new()?;
    let memory;
    if *way == "ipvs" {
        let mut node = Node::new()?;
        node.load(services, ENDPOINTS);
        memory = kernel_memory()?;
        passes(&mut node, services, name)?;
    } else {
        restore(way, kube_rules::JUMPS)?;
        let text = kube_rules::full(services, ENDPOINTS);
        memory = kernel_memory()?;
        tell(PROGRAM, services, "ms", name, ms(restore(way, &text)?));
        // Seconds each at the largest.
        for change in 0..if services >= 5_000 { 1 } else { CHANGES } {
            let text = kube_rules::change(services, services / 2, endpoints_then(change));
            tell(CHANGE, services, "ms", name, ms(restore(way, &text)?));
        }
    }
    memory_since(memory, services, name)?;
    connect(&network, services, connections, name)
}

pub(crate) fn connect(network: &Network, services: u32, connections: usize, name: &str) -> Result<(), Failure> {
    let place = |number: u32| -> Result<SocketAddr, Failure> { Ok(SocketAddr::new(cluster_ip(number).parse()?, 80)) };
    // An address that is no Service's endpoint: IPVS takes an answer of a real server to a client's port for one of the
    // connection it knows, so a connection straight to an endpoint from a port used before would get none.
    let direct: SocketAddr = "10.250.0.1:8080".parse()?;
    let places = [
        ("directly, no Service".to_owned(), direct),
        (format!("{name}, first"), place(0)?),
        (format!("{name}, middle"), place(services / 2)?),
        (format!("{name}, last"), place(services - 1)?),
    ];
    for (_, place) in &places {
        network.connect(*place, connections / 5 + 1)?;
    }
    // In turns, so that what else the machine does meets all of them.
    let mut micros: Vec<Vec<f64>> = places.iter().map(|_| Vec::new()).collect();
    for _ in 0..5 {
        for ((_, place), micros) in places.iter().zip(&mut micros) {
            micros.extend(network.connect(*place, connections / 5 + 1)?.micros);
        }
    }
    for ((what, _), mut micros) in places.into_iter().zip(micros) {
        micros.sort_by(f64::total_cmp);
        tell(LATENCY, services, "µs", &what, micros.get(micros.len() / 2).copied().unwrap_or(f64::NAN));
    }
    let number = connections * 5;
    for (what, place) in [("directly, no Service".to_owned(), direct), (format!("{name}, last"), place(services - 1)?)]
    {
        let before = ticks().ok_or("/proc/stat cannot be read")?;
        let took = network.connect(place, number)?.took;
        let after = ticks().ok_or("/proc/stat cannot be read")?;
        let number = float(u64::try_from(number)?);
        tell(RATE, services, "connections a second", &what, number / took.as_secs_f64());
        tell(CPU, services, "µs", &what, (after.busy - before.busy) * 1e3 / number);
        tell(SOFT, services, "µs", &what, (after.soft_interrupts - before.soft_interrupts) * 1e3 / number);
    }
    Ok(())
}
