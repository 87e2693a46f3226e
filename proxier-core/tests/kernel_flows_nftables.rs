//! The flows of the corpus as packets through tables that nftables mode has written.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]
#![allow(clippy::disallowed_macros, reason = "a run says what it has seen")]
#![allow(clippy::disallowed_methods, reason = "packets are waited for in real time")]

mod flows;

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use flows::difference::Kind;
use flows::flow::{Destination, Verdict};
use flows::objects::Objects;
use flows::probe::{Fate, Source};
use flows::programmed::Programmed;
use flows::{Difference, NEEDS, Sampled, Scenario, hold};
use proxier_core::kernel::{KernelPorts, Options as KernelOptions};
use proxier_core::modes;
use proxier_core::reconciler::{Options, Reconciler};
use testkit::{Need, Netns, kernel_test};

/// A process that has been given everything.
fn process(objects: &Objects) -> Reconciler {
    let now = Duration::ZERO;
    let mut options = Options::default();
    options.config = objects.config.clone();
    options.mode = modes::Kind::Nftables;
    let mut proxier = Reconciler::new(&objects.node.metadata.name, options, now);
    proxier.set_node(&objects.node, now);
    proxier.replace_objects(&objects.services, &objects.slices, now);
    proxier.start(now);
    proxier
}

/// One full pass in the node's namespace. A second process then finds everything as it has to be.
fn program(_node: &Netns, objects: &Objects) -> Result<(), Box<dyn Error>> {
    let now = Duration::ZERO;
    let mut kernel = KernelPorts::open(&KernelOptions::default())?;
    let report = process(objects).pass(&|| now, &mut kernel.ports()).ok_or("no pass")?;
    if !report.is_done() {
        return Err(format!("{report:#?}").into());
    }
    let second = process(objects).pass(&|| now, &mut kernel.ports()).ok_or("no pass")?;
    if second.is_done() && second.writes() == 0 { Ok(()) } else { Err(format!("not as written: {second:#?}").into()) }
}

/// The differences to the reference that are meant, by name.
fn explain(scenario: &Scenario, difference: &Difference) -> Option<&'static str> {
    let Difference { flow, kind, seen, .. } = difference;
    let is_limited = scenario.input["config"].get("nodePortAddresses").is_some();
    let only = |fits: fn(&Fate) -> bool| seen.keys().all(fits);
    let refused = only(|fate| *fate == Fate::Refused);
    let masqueraded = only(|fate| matches!(fate, Fate::Sent { source: Source::Masqueraded, .. }));
    let left_alone = only(|fate| matches!(fate, Fate::Delivered { source: Source::Kept, .. }));
    match (&flow.dest, &*flow.via) {
        (_, "nodePort") if flow.to.ip().is_loopback() && *kind == Kind::Destination => {
            Some("node ports are not served on loopback addresses")
        }
        (Destination::Verdict(Verdict::Drop | Verdict::Reject), "nodePort") if is_limited && left_alone => {
            Some("node ports without endpoints are left alone on addresses that serve no node ports")
        }
        (Destination::Verdict(Verdict::LeftAlone), "externalIP" | "loadBalancerIP")
            if flow.is_nodes() && refused && !scenario.is_local(flow.to.ip()) =>
        {
            Some("the node itself is told that there is no endpoint")
        }
        // All packets come in by the link with the node's address.
        (Destination::Endpoints(_), "nodePort") if flow.from != "outside" && *kind == Kind::Source && masqueraded => {
            Some("pods that come from another node are masqueraded at a node port of policy Local")
        }
        (Destination::Endpoints(_), _) if flow.from == "hairpin-remote" && *kind == Kind::Source => {
            let itself = |to: SocketAddr| to.ip() == flow.source;
            let fits = seen
                .keys()
                .all(|fate| matches!(fate, Fate::Sent { to, source } if !itself(*to) || *source == Source::Kept));
            fits.then_some("an endpoint on another node that reaches itself here is not masqueraded")
        }
        _ => None,
    }
}

#[test]
fn packets_go_where_the_reference_sends_them() {
    kernel_test(&[NEEDS, &[Need::Nftables]].concat(), || {
        hold(&mut Programmed::new(program, explain), Sampled::AsAsked(10));
    });
}
