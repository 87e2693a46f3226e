//! The flows of the corpus as connections and datagrams through a process in userspace mode.

use std::error::Error;
use std::time::Duration;

use proxier_core::engine::{Options, Reconciler};
use proxier_core::kernel::{KernelOptions, KernelPorts};
use proxier_core::modes;
use testkit::witness::Transport;
use testkit::{Need, Netns, kernel_test};

use crate::flows::difference::Kind;
use crate::flows::flow::{Destination, Verdict};
use crate::flows::objects::Objects;
use crate::flows::probe::{Fate, Source};
use crate::flows::programmed::Programmed;
use crate::flows::{Difference, Mode, Reference, Scenario, hold};

/// The ground's needs, and descriptors for the connections of a scenario, which stay open: some scenarios have more than 500.
const NEEDS: &[Need] = &[Need::Root, Need::Veth, Need::OpenFiles(16_384)];

/// Serves until the result is dropped.
fn program(_node: &Netns, objects: &Objects) -> Result<KernelPorts, Box<dyn Error>> {
    let now = Duration::ZERO;
    let mut options = Options::default();
    options.config = objects.config.clone();
    options.mode = modes::Kind::Userspace;
    // A connection whose endpoint answers late goes to the same one again, for the world answers when it is looked at.
    options.userspace.udp_idle = Duration::from_secs(60);
    let mut proxier = Reconciler::new(&objects.node.metadata.name, options, now);
    proxier.set_node(&objects.node, now);
    proxier.replace_objects(&objects.services, &objects.slices, now);
    proxier.start(now);
    let mut kernel = KernelPorts::open(&KernelOptions::default())?;
    let report = proxier.pass(&|| now, &mut kernel.ports()).ok_or("no pass")?;
    if report.is_done() { Ok(kernel) } else { Err(format!("{report:#?}").into()) }
}

/// The differences to the reference that are meant, by name.
fn explain(scenario: &Scenario, difference: &Difference) -> Option<&'static str> {
    let Difference { flow, kind, seen, .. } = difference;
    let only = |fits: fn(&Fate) -> bool| seen.keys().all(fits);
    // The node's own stack got the packet, and none went on.
    let ends_here = only(|fate| matches!(fate, Fate::Delivered { .. } | Fate::Refused | Fate::Lost));
    if flow.protocol == Transport::Sctp {
        return Some("SCTP is not served");
    }
    match (&flow.dest, &*flow.via) {
        (_, "nodePort") if flow.to.ip().is_loopback() => {
            Some("node ports are not served on loopback addresses unless nodePortAddresses names them")
        }
        (Destination::Endpoints(_), _) if *kind == Kind::Source => {
            let masked = |fate: &Fate| matches!(fate, Fate::Sent { source: Source::Masqueraded, .. });
            seen.keys().all(masked).then_some("endpoints see the node's address")
        }
        // A new client gets the endpoint whose turn it is, and the clients of a Service come in the same order again and again.
        (Destination::Endpoints(_), _) if matches!(kind, Kind::Unreached(_)) && flow.affinity.is_some() => {
            Some("endpoints are used in rotation, in step with the clients of this test")
        }
        (Destination::Verdict(Verdict::Reject), _) if ends_here => Some("refused by the node's own stack"),
        (Destination::Verdict(Verdict::Drop), _) if ends_here => {
            Some("refused by the node's own stack, or reset, where the reference drops")
        }
        (Destination::Verdict(Verdict::LeftAlone), _) if ends_here && !scenario.is_local(flow.to.ip()) => {
            Some("an address that is local here, and forwarded in the reference")
        }
        _ => None,
    }
}

#[test]
fn connections_go_where_the_reference_sends_them() {
    kernel_test(NEEDS, || {
        let subject = Programmed::new(program, explain).held_to(Mode::Userspace, &[Reference::Iptables28]);
        hold(&mut subject.ending_connections(), 60);
    });
}
