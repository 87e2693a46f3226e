//! What IPVS mode tracks from pass to pass.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipvs::VirtualServerKey;
use ipvs::model::TimeoutsUpdate;

use super::drain::{self, Drains};
use super::guards::nft::Tables;
use super::guards::{Guards, Programs};
use super::observed::{Contents, Observed};
use super::rules;
use super::wanted::{Recorded, Wanted};
use crate::config::{Config, KernelNames, RulesBy};
use crate::plan::step::Step;
use crate::service::Desired;

/// Settings of IPVS mode.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct IpvsOptions {
    /// Timeouts of IPVS. Default: unchanged.
    pub timeouts: TimeoutsUpdate,
    /// How real servers drain.
    pub drain: drain::Policy,
    /// Capabilities of iptables and the kernel, restricted further by what the iptables program reports.
    pub capabilities: rules::Capabilities,
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one question about the mode")]
pub(crate) struct Mode {
    pub(super) names: Arc<KernelNames>,
    pub(super) by_routes: bool,
    /// Whether this proxy has no local routes, and will have none.
    pub(super) knows_no_routes: bool,
    /// The last report of settings without effect, and of networks that are not local as a whole.
    pub(super) told: Vec<String>,
    pub(super) timeouts: TimeoutsUpdate,
    pub(super) guards: Guards,
    /// Keeps nodes from retrying together.
    pub(super) seed: u64,
    pub(super) recorded: Recorded,
    /// Own virtual servers that are no longer desired, until they are deleted: this process wanted them, or found them
    /// recorded as this proxy's. Another program may remove the records before they are deleted.
    pub(super) leaving: BTreeSet<VirtualServerKey>,
    /// Desired virtual servers that no pass has created yet. Another program's may have their address and port.
    pub(super) unmade: BTreeSet<VirtualServerKey>,
    /// Whether the node facts differ from those of the last plan that was carried out.
    pub(super) new_facts: bool,
    /// `None` before it was read.
    pub(super) observed: Option<Observed>,
    /// The sets as tracked before the kernel was read again.
    pub(super) remembered: Contents,
    /// Tables restored without a pass, for the report of the next full one.
    pub(super) restored: Vec<Step>,
    /// Whether a full pass has taken over the objects of the other variant of `guards`.
    pub(super) has_taken_over: bool,
    pub(super) drains: Drains,
}

/// Virtual servers with their real servers: the desired ones, those tracked in the kernel, and the draining ones.
pub(crate) struct Servers<'a> {
    pub(crate) wanted: Wanted<'a>,
    pub(crate) observed: Option<&'a Observed>,
    pub(crate) drains: &'a Drains,
}

impl Mode {
    pub(crate) fn new(config: &Config, options: &IpvsOptions, seed: u64) -> Self {
        Mode {
            names: Arc::new(config.names.clone()),
            by_routes: config.binds_by_routes(),
            // Other proxies' routes look the same.
            knows_no_routes: config.names != KernelNames::default(),
            told: Vec::new(),
            timeouts: options.timeouts,
            guards: match config.ipvs.rules {
                RulesBy::Nftables => Guards::Nft(Tables::default()),
                RulesBy::Auto | RulesBy::Iptables => {
                    Guards::Programs(Programs { capabilities: options.capabilities, ..Programs::default() })
                }
            },
            seed,
            recorded: Recorded::new(config),
            leaving: BTreeSet::new(),
            unmade: BTreeSet::new(),
            new_facts: true,
            observed: None,
            remembered: Contents::new(),
            restored: Vec::new(),
            has_taken_over: false,
            drains: Drains::new(options.drain.clone()),
        }
    }

    pub(crate) fn wanted<'a>(&'a self, desired: &'a Desired) -> Wanted<'a> {
        self.recorded.index.wanted(desired)
    }

    /// Drops the tracked state of the kernel, and keeps its records.
    pub(super) fn remember(&mut self) {
        let Some(Observed { sets, before, .. }) = self.observed.take() else { return };
        self.remembered = before;
        for (set, elements) in sets {
            self.remembered.entry(set).or_default().extend(elements);
        }
    }

    /// Adds the deleted sets to those that were read. They identify this proxy's virtual servers, like those of the
    /// other variant of [`guards`](super::guards).
    pub(super) fn restore_into(&mut self, observed: &mut Observed) {
        for (set, elements) in std::mem::take(&mut self.remembered) {
            if !observed.sets.contains_key(&set) && !elements.is_empty() {
                observed.before.entry(set).or_default().extend(elements);
            }
        }
    }
}
