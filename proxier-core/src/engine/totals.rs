//! Counters over all passes, for metrics.

use std::collections::BTreeMap;

use crate::net::{ByFamily, Family};
use crate::plan::report::{Counts, Report};
use crate::plan::step::{Action, Part};
use crate::ports::{Flows, PortErrorKind};
use crate::time::Moment;

/// Counters since the start of the process, as data for metrics.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Totals {
    /// Changes of Services received, including those without effect
    /// (`kubeproxy_sync_proxy_rules_service_changes_total`).
    pub service_changes: u64,
    /// Changes of EndpointSlices received (`kubeproxy_sync_proxy_rules_endpoint_changes_total`).
    pub endpoint_changes: u64,
    /// Passes for changes only.
    pub passes_for_changes: u64,
    /// Passes that read the kernel.
    pub full_passes: u64,
    /// Passes that failed ([`Report::has_failed`]).
    pub failed_passes: u64,
    /// Passes in which the safeguard held back deletions.
    pub stopped_passes: u64,
    /// Operations that were carried out.
    pub done: Counts,
    /// Operations that failed, by operation and reason.
    pub failed: BTreeMap<(Part, Action, PortErrorKind), u64>,
    /// Parts of the kernel that could not be read.
    pub unread: u64,
    /// Differences that other programs made and that were repaired.
    pub drift: u64,
    /// Failed restores of iptables rules (`kubeproxy_sync_proxy_rules_iptables_restore_failures_total`).
    pub restore_failures: ByFamily<u64>,
    /// Failed restores in passes for changes only
    /// (`kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total`).
    pub partial_restore_failures: ByFamily<u64>,
    /// Failed nf_tables transactions (`kubeproxy_sync_proxy_rules_nftables_sync_failures_total`).
    pub table_failures: ByFamily<u64>,
    /// Flows that were forgotten (`kubeproxy_conntrack_reconciler_deleted_entries_total`).
    pub flows: Flows,
    /// End of the last pass that did not fail ([`Report::has_failed`])
    /// (`kubeproxy_sync_proxy_rules_last_timestamp_seconds`).
    pub last_success: Option<Moment>,
}

fn add(count: &mut u64, more: usize) {
    *count = count.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
}

impl Totals {
    /// Counts a pass that ended at `now`.
    pub(crate) fn add(&mut self, report: &Report, now: Moment) {
        add(if report.full { &mut self.full_passes } else { &mut self.passes_for_changes }, 1);
        add(&mut self.failed_passes, usize::from(report.has_failed()));
        add(&mut self.stopped_passes, usize::from(report.stopped.is_some()));
        for (what, number) in &report.applied.done {
            let count = self.done.entry(*what).or_default();
            *count = count.saturating_add(*number);
        }
        for failure in &report.applied.failures {
            let what = (failure.step.part, failure.step.action, failure.error.kind());
            add(self.failed.entry(what).or_default(), 1);
            if let Some(family) = failure.step.family() {
                let of_table = failure.step.part == Part::Table;
                let count = if of_table { &mut self.table_failures } else { &mut self.restore_failures };
                add(count.of_mut(family), 1);
            }
        }
        for family in Family::ALL {
            let failures = *report.applied.partial_restore_failures.of(family);
            add(self.partial_restore_failures.of_mut(family), failures);
        }
        add(&mut self.unread, report.unread.len());
        add(&mut self.drift, report.drift.len());
        self.flows.add(report.applied.flows);
        if !report.has_failed() {
            self.last_success = Some(now);
        }
    }
}
