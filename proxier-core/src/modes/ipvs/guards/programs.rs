//! Known state of rules that the iptables programs write.

use std::collections::BTreeMap;

use crate::modes::ipvs::rules::{Capabilities, Inputs, Kept};
use crate::modes::ipvs::wanted::Wanted;
use crate::modes::shared::retry::RulesRetry;
use crate::net::Family;
use crate::service::NodeFacts;

/// Known state of rules that the iptables programs write.
#[derive(Debug)]
pub(in crate::modes::ipvs) struct Programs {
    /// Capabilities of iptables and the kernel, as far as known.
    pub(in crate::modes::ipvs) capabilities: Capabilities,
    /// The inputs of the rules that the kernel holds.
    pub(in crate::modes::ipvs) rules: BTreeMap<Family, Inputs>,
    /// Families whose rules could not be restored.
    pub(in crate::modes::ipvs) retry: BTreeMap<Family, RulesRetry>,
}

impl Programs {
    /// State before the kernel was read: only the largest set of capabilities is known.
    pub(in crate::modes::ipvs) fn new(capabilities: Capabilities) -> Self {
        Programs { capabilities, rules: BTreeMap::new(), retry: BTreeMap::new() }
    }

    /// The inputs that a family's rules have to have while `kept` stays, if chain INPUT drops by default as known.
    pub(in crate::modes::ipvs) fn inputs(
        &self,
        family: Family,
        (wanted, facts): (&Wanted<'_>, &NodeFacts),
        capabilities: Capabilities,
        kept: &Kept,
    ) -> Inputs {
        let mut inputs = Inputs::new(family, wanted, facts, capabilities);
        inputs.keep(kept);
        inputs.input_drops = self.rules.get(&family).is_some_and(|written| written.input_drops);
        inputs
    }
}
