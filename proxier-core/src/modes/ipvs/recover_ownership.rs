//! Recovers ownership of virtual servers after another program deleted the sets, or the table of nf_tables, that recorded it
//! (`nft flush ruleset`).

use std::collections::{BTreeMap, BTreeSet};

use ipset::Element;
use ipvs::VirtualServerKey;

use crate::config::Config;
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::sets::{SetKey, SetKind};
use crate::modes::ipvs::split;

/// Contents of the sets as this process last knew them.
#[derive(Debug, Default)]
pub(super) struct RememberedSets(BTreeMap<SetKey, BTreeSet<Element>>);

impl RememberedSets {
    /// Remembers the known records, before they are forgotten or read again.
    pub(super) fn remember(&mut self, known: Option<Observed>) {
        let Some(Observed { sets, before, .. }) = known else { return };
        self.0 = before;
        for (set, elements) in sets {
            self.0.entry(set).or_default().extend(elements);
        }
    }

    /// Adds the deleted sets to those that were read: they show which virtual servers are this proxy's, like those of another variant of
    /// [`guards`](super::guards).
    pub(super) fn restore_into(&mut self, observed: &mut Observed) {
        for (set, elements) in std::mem::take(&mut self.0) {
            if !observed.sets.contains_key(&set) && !elements.is_empty() {
                observed.before.entry(set).or_default().extend(elements);
            }
        }
    }
}

/// Recognises virtual servers of marks whose records are gone with their table, for a process that has just begun or a cleanup.
pub(super) fn recall_marks(observed: &mut Observed, config: &Config) {
    if observed.addresses.is_empty() && observed.routes.is_empty() {
        return;
    }
    let recorded: BTreeSet<VirtualServerKey> = observed.records().filter_map(split::server_of).collect();
    let has_table = |key: &VirtualServerKey| {
        let set = SetKey::new(key.family().into(), SetKind::SplitMark);
        observed.sets.contains_key(&set) || observed.before.contains_key(&set)
    };
    let of_marks = observed.virtual_servers.keys().filter(|key| key.addr().is_none());
    let lost = of_marks.filter(|key| !recorded.contains(key) && !has_table(key)).copied().collect::<BTreeSet<_>>();
    if lost.is_empty() {
        return;
    }
    let marks = (config.ipvs.mark_range, config.masquerade_bit);
    for (place, mark) in split::recall(marks, &lost, &observed.virtual_servers) {
        let (set, element) = split::record(&place, mark);
        observed.before.entry(set).or_default().insert(element);
    }
}
