//! The modes on the same axes: all Services from nothing, one change, connecting, memory. IPVS mode where the kernel has IPVS, as
//! that of the virtual machine.

use std::path::Path;

use proxier_core::modes::Kind;
use proxier_core::reconciler::Options as ReconcilerOptions;
use testkit::{Need, missing};

use crate::machine::{is_emulated, resident_kib};
use crate::namespace::tell;
use crate::network::Network;
use crate::node::Node;
use crate::report::Report;
use crate::versus::{ENDPOINTS, NFT_LIMIT, PATIENCE, by_size, connect, curves, kernel_memory, memory_since, passes};
use crate::{Failure, Options};

const RESIDENT: &str = "Resident memory of the process beyond an empty one";
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
fn is_too_large(mode: &str, services: u32) -> bool {
    mode == Kind::Iptables.name() && is_emulated() && services > NFT_LIMIT
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
    let named: Vec<_> = ways.iter().map(|(mode, name)| (mode.name(), *name)).collect();
    let sizes = by_size(&mut report, options, ("modes", &named, options.rounds), is_too_large)?;
    if sizes.iter().any(|services| is_too_large(Kind::Iptables.name(), *services)) {
        report
            .note(format!("iptables mode with more than {NFT_LIMIT} Services is left out: one restore takes minutes."));
    }
    report.note(format!("What took more than {} s altogether, at one size, is not repeated.", PATIENCE.as_secs()));
    curves(&mut report);
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
    passes(&mut node, services, name)?;
    node.proxier.compact();
    memory_since(kernel, services, name)?;
    tell(RESIDENT, services, "KiB", name, resident_kib()? - resident);
    connect(&network, services, connections, name)
}
