//! The modes on the same axes: all Services from nothing, one change, connecting, memory. IPVS mode where the kernel has IPVS, as
//! that of the virtual machine.

use std::path::Path;
use std::time::{Duration, Instant};

use proxier_core::modes::Kind;
use proxier_core::reconciler::Options as ReconcilerOptions;
use testkit::{Need, missing};

use crate::machine::{is_emulated, resident_kib};
use crate::namespace::{collect, tell, warm_up};
use crate::network::Network;
use crate::node::Node;
use crate::report::{Report, ms};
use crate::versus::{CHANGE, LATENCY, MEMORY, NFT_LIMIT, PATIENCE, PROGRAM, RATE, connect, kernel_memory};
use crate::{Failure, Options};

const RESIDENT: &str = "Resident memory of the process beyond an empty one";
const ENDPOINTS: u32 = 2;
/// Changes in a run; the first one of a process is the slowest.
const CHANGES: u32 = 3;
/// The networks of cluster IPs.
const SERVICE_CIDR: &str = "10.96.0.0/12";

const WAYS: [(Kind, &str); 4] = [
    (Kind::Ipvs, "IPVS mode (Proxier)"),
    (Kind::Nftables, "nftables mode (Proxier)"),
    (Kind::Iptables, "iptables mode (Proxier)"),
    (Kind::Userspace, "userspace mode (Proxier)"),
];

/// IPVS mode needs a module, which a machine that is none of ours may lack.
fn has_ipvs() -> bool {
    is_emulated() || Path::new("/proc/net/ip_vs").exists()
}

/// In an emulated machine the nft back end takes minutes for a restore of more.
fn is_too_large(mode: Kind, services: u32) -> bool {
    mode == Kind::Iptables && is_emulated() && services > NFT_LIMIT
}

pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let ways: Vec<_> = WAYS.into_iter().filter(|(mode, _)| *mode != Kind::Ipvs || has_ipvs()).collect();
    let mut report = Report::new("modes", options);
    report.note(format!("Services with {ENDPOINTS} endpoints each, in a fresh set of network namespaces every time."));
    report.note(
        "A whole pass of the reconciler each, from checked objects to both families' tables, or to sockets and routes. One change: a \
         Service loses an endpoint, or gets it back.",
    );
    report.note(
        "Connecting: from a client namespace over veth to the node, from SYN to ACK. In userspace mode the node's own socket answers, and \
         the endpoint is reached afterwards, in this process; its processor time is in that of a connection.",
    );
    if ways.len() < WAYS.len() {
        report.note("Without IPVS mode: this kernel has no IPVS.");
    }
    report.note(
        "Memory of the process: with all that passes have needed for a moment, which proxier-demo gives back to the kernel. `memory` \
         has what is kept.",
    );
    let sizes: &[u32] = match (options.smoke, options.quick) {
        (true, _) => &[10, 30],
        (_, true) => &[10, 1_000],
        _ => &[10, 100, 1_000, 5_000, 10_000],
    };
    let connections = if options.smoke { "20" } else { "150" };
    for (mode, _) in &ways {
        warm_up(&["modes", mode.name(), "3", "5"])?;
    }
    for services in sizes.iter().copied() {
        let mut spent = vec![Duration::ZERO; ways.len()];
        for round in 0..options.rounds {
            for ((mode, name), spent) in ways.iter().copied().zip(&mut spent) {
                if *spent > PATIENCE || is_too_large(mode, services) {
                    continue;
                }
                let start = Instant::now();
                collect(&mut report, &["modes", mode.name(), &services.to_string(), connections])?;
                *spent += start.elapsed();
                eprintln!("{name}, {services} Services, round {round}: {:.1} s", start.elapsed().as_secs_f64());
            }
        }
    }
    if sizes.iter().any(|services| is_too_large(Kind::Iptables, *services)) {
        report
            .note(format!("iptables mode with more than {NFT_LIMIT} Services is left out: one restore takes minutes."));
    }
    report.note(format!("What took more than {} s altogether, at one size, is not repeated.", PATIENCE.as_secs()));
    report.curve("program", PROGRAM, "Services");
    report.curve("change", CHANGE, "Services");
    let last_or_none = |side: &str| !side.ends_with("first") && !side.ends_with("middle");
    report.curve_of("connect", "Connecting through the last Service", LATENCY, "Services", last_or_none);
    report.curve("rate", RATE, "Services");
    report.curve("memory", MEMORY, "Services");
    report.curve("resident", RESIDENT, "Services");
    report.finish()
}

pub(crate) fn side(arguments: &[&str]) -> Result<(), Failure> {
    let [way, services, connections] = arguments else { return Err("MODE SERVICES CONNECTIONS".into()) };
    let (services, connections): (u32, usize) = (services.parse()?, connections.parse()?);
    let (mode, name) = WAYS.into_iter().find(|(mode, _)| mode.name() == *way).ok_or("no such mode")?;
    // A socket for each Service.
    let files = (mode == Kind::Userspace).then(|| missing(Need::OpenFiles(2 * u64::from(services) + 1_000)));
    if let Some(why) = files.flatten() {
        return Err(why.into());
    }
    let network = Network::new()?;
    let (kernel, resident) = (kernel_memory()?, resident_kib()?);
    let mut options = ReconcilerOptions::default();
    options.mode = mode;
    options.userspace.service_cidrs = vec![SERVICE_CIDR.parse()?];
    let mut node = Node::with(options)?;
    node.load(services, ENDPOINTS);
    let start = Instant::now();
    node.pass()?;
    tell(PROGRAM, services, "ms", name, ms(start.elapsed()));
    for change in 0..CHANGES {
        let start = Instant::now();
        node.change(services / 2, if change.is_multiple_of(2) { ENDPOINTS - 1 } else { ENDPOINTS });
        let report = node.pass()?;
        tell(CHANGE, services, "ms", name, ms(start.elapsed()));
        if report.full || report.writes() == 0 {
            return Err("a change was not taken as one".into());
        }
    }
    node.proxier.compact();
    // Memory that was in use until the last moment is given back after a grace period.
    std::thread::sleep(Duration::from_millis(300));
    tell(MEMORY, services, "KiB", name, kernel_memory()? - kernel);
    tell(RESIDENT, services, "KiB", name, resident_kib()? - resident);
    connect(&network, services, connections, name)
}
