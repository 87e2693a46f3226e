//! The flows of the corpus as packets through rules that iptables mode has written, by both back ends.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]
#![allow(clippy::disallowed_macros, reason = "a run says what it has seen")]
#![allow(clippy::disallowed_methods, reason = "packets are waited for in real time")]

mod flows;

use std::error::Error;
use std::time::Duration;

use flows::objects::Objects;
use flows::programmed::Programmed;
use flows::{Difference, NEEDS, Sampled, Scenario, hold};
use iptables::{Backend, BackendChoice};
use proxier_core::kernel::{KernelPorts, Options as KernelOptions};
use proxier_core::modes;
use proxier_core::reconciler::{Options, Reconciler};
use testkit::{Need, Netns, kernel_test};

/// A process that has been given everything.
fn process(objects: &Objects) -> Reconciler {
    let now = Duration::ZERO;
    let mut options = Options::default();
    options.config = objects.config.clone();
    options.mode = modes::Kind::Iptables;
    let mut proxier = Reconciler::new(&objects.node.metadata.name, options, now);
    proxier.set_node(&objects.node, now);
    proxier.replace_objects(&objects.services, &objects.slices, now);
    proxier.start(now);
    proxier
}

/// One full pass in the node's namespace. A second process then finds everything as it has to be.
fn program(backend: Backend, objects: &Objects) -> Result<(), Box<dyn Error>> {
    let now = Duration::ZERO;
    let mut options = KernelOptions::default();
    options.backend = BackendChoice::Force(backend);
    let mut kernel = KernelPorts::open(&options)?;
    let report = process(objects).pass(&|| now, &mut kernel.ports()).ok_or("no pass")?;
    if !report.is_done() {
        return Err(format!("{report:#?}").into());
    }
    let mut kernel = KernelPorts::open(&options)?;
    let second = process(objects).pass(&|| now, &mut kernel.ports()).ok_or("no pass")?;
    if second.is_done() && second.writes() == 0 { Ok(()) } else { Err(format!("not as written: {second:#?}").into()) }
}

/// The rules are kube-proxy's: every flow has to do as the reference says.
fn explain(_: &Scenario, _: &Difference) -> Option<&'static str> {
    None
}

#[test]
fn packets_go_where_the_reference_sends_them() {
    kernel_test(&[NEEDS, &[Need::IptablesNft]].concat(), || {
        let program = |_: &Netns, objects: &Objects| program(Backend::NfTables, objects);
        hold(&mut Programmed::new(program, explain), Sampled::AsAsked(10));
    });
}

#[test]
fn packets_go_where_the_reference_sends_them_in_the_legacy_back_end() {
    kernel_test(&[NEEDS, &[Need::IptablesLegacy]].concat(), || {
        let program = |_: &Netns, objects: &Objects| program(Backend::Legacy, objects);
        hold(&mut Programmed::new(program, explain), Sampled::AsAsked(10));
    });
}
