//! Known state of rules that the iptables programs write.

use std::collections::BTreeMap;

use crate::modes::ipvs::rules::{Capabilities, Inputs};
use crate::modes::shared::retry::RulesRetry;
use crate::net::Family;

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
}
