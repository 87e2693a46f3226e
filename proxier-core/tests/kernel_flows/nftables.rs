//! The flows of the corpus as packets through tables that nftables mode has written.

use std::error::Error;
use std::net::SocketAddr;

use proxier_core::engine::Options;
use proxier_core::kernel::KernelOptions;
use proxier_core::modes;
use testkit::{Need, Netns, kernel_test};

use crate::flows::difference::Kind;
use crate::flows::flow::{Destination, Verdict};
use crate::flows::objects::Objects;
use crate::flows::probe::{Fate, Source};
use crate::flows::programmed::{self, Programmed};
use crate::flows::{Difference, Mode, NEEDS, Reference, Scenario, hold};

fn program(_node: &Netns, objects: &Objects) -> Result<(), Box<dyn Error>> {
    let mut options = Options::default();
    options.config = objects.config.clone();
    options.mode = modes::Kind::Nftables;
    programmed::program(&options, &KernelOptions::default(), objects)
}

/// The differences to the reference that are meant, by name.
fn explain(scenario: &Scenario, difference: &Difference) -> Option<&'static str> {
    let Difference { flow, kind, seen, .. } = difference;
    let is_limited = scenario.input["config"].get("nodePortAddresses").is_some();
    let only = |fits: fn(&Fate) -> bool| seen.keys().all(fits);
    let refused = only(|fate| *fate == Fate::Refused);
    let left_alone = only(|fate| matches!(fate, Fate::Delivered { source: Source::Kept, .. }));
    let is_36 = scenario.reference == Reference::Nftables36;
    match (&flow.dest, &*flow.via) {
        (Destination::Verdict(Verdict::LeftAlone), "nodePort") if is_36 && !is_limited && !left_alone => {
            Some("node ports are served on all addresses of the node where nodePortAddresses is unset")
        }
        (Destination::Verdict(Verdict::Drop), "loadBalancerIP") if is_36 && refused => {
            Some("a load balancer without endpoints rejects all clients, also outside its source ranges")
        }
        (Destination::Verdict(Verdict::LeftAlone), "nodePort")
            if is_36 && flow.to.ip().is_loopback() && !left_alone =>
        {
            Some("node ports of TCP are served, and others refused, on loopback addresses that nodePortAddresses names")
        }
        (_, "nodePort") if flow.to.ip().is_loopback() && *kind == Kind::Destination => {
            Some("node ports are not served on loopback addresses unless nodePortAddresses names them")
        }
        (Destination::Verdict(Verdict::Drop | Verdict::Reject), "nodePort") if is_limited && left_alone => {
            Some("node ports without endpoints are left alone on addresses that serve no node ports")
        }
        (Destination::Verdict(Verdict::LeftAlone), "externalIP" | "loadBalancerIP")
            if flow.is_nodes() && refused && !scenario.is_local(flow.to.ip()) =>
        {
            Some("the node itself is told that there is no endpoint")
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
        let references = &[Reference::Iptables28, Reference::Nftables36];
        hold(&mut Programmed::new(program, explain).held_to(Mode::Nftables, references), 22);
    });
}
