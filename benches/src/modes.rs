//! All modes compared: all Services from nothing, one change, connecting, memory. IPVS mode only if the kernel has
//! IPVS, as in the virtual machine.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use proxier_core::engine::Options as ReconcilerOptions;
use proxier_core::kernel::KernelOptions;
use proxier_core::modes::Kind;
use testkit::{Need, missing};

use crate::machine::is_emulated;
use crate::namespace::{collect, tell, warm_up};
use crate::network::Network;
use crate::node::Node;
use crate::program::{feed, timed};
use crate::report::{Report, ms};
use crate::world::cluster_ip;
use crate::{Failure, Options};

const PROGRAM: &str = "All Services from nothing";
const CHANGE: &str = "One changed Service";
pub(crate) const LATENCY: &str = "Connecting";
const ENDPOINTS: u32 = 2;
/// Changes in a run. The first one of a process is the slowest, since QEMU translates code when it first runs, so every
/// size gets the same number.
const CHANGES: u32 = 3;
/// Time of all measurements at one size, above which they are not repeated.
const PATIENCE: Duration = Duration::from_secs(100);
/// With more Services, restoring rules takes iptables-nft minutes.
const NFT_LIMIT: u32 = 5_000;

/// The networks of cluster IPs.
const SERVICE_CIDR: &str = "10.96.0.0/12";

const WAYS: [(Kind, &str); 4] = [
    (Kind::Ipvs, "IPVS mode (Proxier)"),
    (Kind::Nftables, "nftables mode (Proxier)"),
    (Kind::Iptables, "iptables mode (Proxier)"),
    (Kind::Userspace, "userspace mode (Proxier)"),
];

/// IPVS mode needs a module, which a machine other than our own may lack.
fn has_ipvs() -> bool {
    is_emulated() || Path::new("/proc/net/ip_vs").exists()
}

/// In QEMU without KVM the nft back end takes minutes for a larger restore.
fn is_too_large(mode: Kind, services: u32) -> bool {
    mode == Kind::Iptables && is_emulated() && services > NFT_LIMIT
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let ways: Vec<_> = WAYS.into_iter().filter(|(mode, _)| !mode.facts().has_virtual_servers || has_ipvs()).collect();
    let mut report = Report::new("modes", options);
    report.note(format!("Services with {ENDPOINTS} endpoints each, in a fresh set of network namespaces every time."));
    report.note(
        "A whole pass of the reconciler each, from checked objects to both families' tables, or to sockets and routes. One change: a \
         Service loses an endpoint, or gets it back.",
    );
    report.note(
        "Connecting: from a client namespace over veth to the node, from SYN to ACK. In userspace mode the node's own socket answers, and \
         the endpoint is reached afterwards, in this process.",
    );
    if ways.len() < WAYS.len() {
        report.note("Without IPVS mode: this kernel has no IPVS.");
    }
    let sizes: &[u32] = options.choose(&[10, 30], &[10, 1_000], &[10, 100, 1_000, 5_000, 10_000]);
    let connections = if options.smoke { "20" } else { "150" };
    for (mode, _) in &ways {
        warm_up(&["modes", mode.name(), "3", "5"])?;
    }
    for services in sizes.iter().copied() {
        let mut spent = vec![Duration::ZERO; ways.len()];
        for round in 0..options.rounds {
            for ((mode, name), spent) in ways.iter().zip(&mut spent) {
                if *spent > PATIENCE || is_too_large(*mode, services) {
                    continue;
                }
                let collected = || collect(&mut report, &["modes", mode.name(), &services.to_string(), connections]);
                let took = timed(collected)?.1;
                *spent += took;
                eprintln!("{name}, {services} Services, round {round}: {:.1} s", took.as_secs_f64());
            }
        }
    }
    if sizes.iter().any(|services| is_too_large(Kind::Iptables, *services)) {
        report
            .note(format!("iptables mode with more than {NFT_LIMIT} Services is left out: one restore takes minutes."));
    }
    report.note(format!("What took more than {} s altogether, at one size, is not repeated.", PATIENCE.as_secs()));
    report.finish()
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    let [way, services, connections] = arguments else { return Err("MODE SERVICES CONNECTIONS".into()) };
    let (services, connections): (u32, usize) = (services.parse()?, connections.parse()?);
    let (mode, name) = WAYS.into_iter().find(|(mode, _)| mode.name() == *way).ok_or("no such mode")?;
    // A socket for each Service.
    let files = mode.facts().is_process.then(|| missing(Need::OpenFiles(2 * u64::from(services) + 1_000)));
    if let Some(why) = files.flatten() {
        return Err(why.into());
    }
    let network = Network::new(drop)?;
    let mut options = ReconcilerOptions::default();
    options.mode = mode;
    options.userspace.service_cidrs = vec![SERVICE_CIDR.parse()?];
    let mut node = Node::with(&KernelOptions::default(), options, services, ENDPOINTS)?;
    tell(PROGRAM, services, "ms", name, ms(timed(|| node.pass())?.1));
    for change in 0..CHANGES {
        let endpoints: &[u32] = if change.is_multiple_of(2) { &[0] } else { &[0, 1] };
        tell(CHANGE, services, "ms", name, node.timed_change(services / 2, endpoints)?);
    }
    connect(&network, services, connections, name)
}

pub(crate) fn restore(way: &str, text: &str) -> Result<Duration, Failure> {
    let program = if way == "legacy" { "iptables-legacy-restore" } else { "iptables-nft-restore" };
    feed(program, &["--noflush", "--counters"], text)
}

pub(crate) fn connect(network: &Network, services: u32, connections: usize, name: &str) -> Result<(), Failure> {
    // An address that is not an endpoint of a Service. IPVS assigns an answer of a real server to a known connection
    // with the same client port. So a direct connection to an endpoint from a reused port would get no answer.
    let direct: SocketAddr = "10.250.0.1:8080".parse()?;
    let places = [
        ("directly, no Service".to_owned(), direct),
        (format!("{name}, last"), SocketAddr::from((cluster_ip(services - 1), 80))),
    ];
    for (_, place) in &places {
        network.connect(*place, connections / 5 + 1)?;
    }
    // Interleaved, so that other load on the machine affects all of them.
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
    Ok(())
}
