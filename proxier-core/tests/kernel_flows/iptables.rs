//! The flows of the corpus as packets through rules that iptables mode has written, by both back ends.

use std::error::Error;

use iptables::{Backend, BackendChoice};
use proxier_core::engine::Options;
use proxier_core::kernel::{KernelOptions, PacketCounters};
use proxier_core::modes;
use proxier_core::modes::iptables::COUNTERS;
use testkit::{Need, Netns, kernel_test};

use crate::flows::objects::Objects;
use crate::flows::programmed::{self, Programmed};
use crate::flows::{Difference, Mode, NEEDS, Reference, Scenario, hold};

fn program(backend: Backend, objects: &Objects) -> Result<(), Box<dyn Error>> {
    let (mut options, mut how) = (Options::default(), KernelOptions::default());
    options.config = objects.config.clone();
    options.mode = modes::Kind::Iptables;
    how.backend = BackendChoice::Force(backend);
    programmed::program(&options, &how, objects)?;
    // Rules have kube-proxy's counters where this kernel can count: they go if it refuses such rules.
    let counted = PacketCounters::default().read().ok();
    assert!(counted.is_none_or(|counted| COUNTERS.iter().all(|name| counted.contains_key(*name))));
    Ok(())
}

/// The rules are kube-proxy's: every flow has to do as the reference says.
fn explain(_: &Scenario, _: &Difference) -> Option<&'static str> {
    None
}

const REFERENCES: &[Reference] = &[Reference::Iptables28, Reference::Iptables36];

#[test]
fn packets_go_where_the_reference_sends_them() {
    kernel_test(&[NEEDS, &[Need::IptablesNft]].concat(), || {
        let program = |_: &Netns, objects: &Objects| program(Backend::NfTables, objects);
        hold(&mut Programmed::new(program, explain).held_to(Mode::Iptables, REFERENCES), 22);
    });
}

#[test]
fn packets_go_where_the_reference_sends_them_in_the_legacy_back_end() {
    kernel_test(&[NEEDS, &[Need::IptablesLegacy]].concat(), || {
        let program = |_: &Netns, objects: &Objects| program(Backend::Legacy, objects);
        hold(&mut Programmed::new(program, explain).held_to(Mode::Iptables, REFERENCES), 22);
    });
}
