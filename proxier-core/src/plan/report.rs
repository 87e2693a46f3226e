//! The outcome of a pass.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::config::User;
use crate::net::{ByFamily, EndpointKey, Family, FrontendKey};
use crate::plan::step::{Action, Part, Step};
use crate::ports::{Flows, PortError, PortErrorKind, Result, SysctlChange};
use crate::snapshot::{ObjectKey, ObjectKind};

/// Numbers of operations by part and action.
pub type Counts = BTreeMap<(Part, Action), u64>;

/// An operation that was not carried out.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Failure {
    /// The operation.
    pub step: Step,
    /// Error of the kernel or the program.
    pub error: PortError,
}

impl Failure {
    /// Whether the object is the reason: this kernel does not accept the virtual server, real server, address or entry.
    /// Examples: an endpoint that is a broadcast address, a family or scheduler that IPVS lacks. Other objects are not
    /// affected, and retrying helps only if something else changes.
    pub(crate) fn is_of_one_object(&self) -> bool {
        let of_an_object = matches!(
            self.step.part,
            Part::VirtualServer
                | Part::RealServer
                | Part::Address
                | Part::Entry
                | Part::Frontend
                | Part::Listener
                | Part::Route
        );
        let because_of_it = matches!(
            self.error.kind(),
            PortErrorKind::Invalid
                | PortErrorKind::Unavailable
                | PortErrorKind::NotFound
                | PortErrorKind::AlreadyExists
                | PortErrorKind::Other
        );
        // A listener beyond a limit. Existing ones continue to serve.
        let is_one_too_many = self.step.part == Part::Listener && self.error.kind() == PortErrorKind::Full;
        of_an_object && (because_of_it || is_one_too_many)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut step = self.step.clone();
        step.lines.clear();
        write!(f, "{step}: {}", self.error)
    }
}

/// A part of the kernel that could not be read. Nothing of it was changed.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Unread {
    /// The part of the kernel, in words: `virtual servers`, `set KUBE-CLUSTER-IP`, `rules of IPv6`.
    pub what: String,
    /// Error of reading.
    pub error: PortError,
}

impl Unread {
    pub(crate) fn new(what: impl fmt::Display, error: PortError) -> Self {
        Unread { what: what.to_string(), error }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reading {}: {}", self.what, self.error)
    }
}

/// A feature that the kernel lacks. Serving works without it, and no pass fails because of it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Lack {
    /// What is missing, and what that means.
    pub what: String,
    /// The answer of the kernel or the program.
    pub error: PortError,
}

impl Lack {
    pub(crate) fn new(what: impl Into<String>, error: PortError) -> Self {
        Lack { what: what.into(), error }
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.error)
    }
}

/// The result of carrying out a plan, with an outcome for every operation.
///
/// Completed operations are counted, others are listed.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Applied {
    /// Operations that were carried out.
    pub done: Counts,
    /// Operations that were not.
    pub failures: Vec<Failure>,
    /// Features that this kernel turned out to lack. Serving works without them.
    pub lacks: Vec<Lack>,
    /// UDP flows that were forgotten, and TCP connections that were cut.
    pub flows: Flows,
    /// How long each search for them took, by family, including failed ones.
    pub took_for_flows: Vec<(Family, Duration)>,
    /// Failed writes of only the changes to iptables rules. The rules are read before the next write.
    pub(crate) partial_restore_failures: ByFamily<usize>,
}

impl Applied {
    pub(crate) fn count(&mut self, part: Part, action: Action, number: usize) {
        if number > 0 {
            let count = self.done.entry((part, action)).or_default();
            *count = count.saturating_add(u64::try_from(number).unwrap_or(u64::MAX));
        }
    }

    pub(crate) fn fail(&mut self, step: Step, error: PortError) {
        self.failures.push(Failure { step, error });
    }

    /// Adds the result of a plan that was carried out before.
    pub fn add(&mut self, before: Applied) {
        for (what, number) in before.done {
            let count = self.done.entry(what).or_default();
            *count = count.saturating_add(number);
        }
        self.failures.extend(before.failures);
        self.lacks.extend(before.lacks);
        self.flows.add(before.flows);
        self.took_for_flows.extend(before.took_for_flows);
        self.partial_restore_failures.add(before.partial_restore_failures);
    }

    /// Records the outcome of one call for one operation.
    pub(crate) fn note(&mut self, step: Step, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.count(step.part, step.action, 1),
            Err(error) => self.fail(step, error),
        }
    }
}

/// The rules of iptables mode in a family's table: those in its own chains, as kube-proxy counts them, without the
/// jumps from built-in chains and without the kubelet's chain.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleCount {
    /// The family.
    pub family: Family,
    /// `filter` or `nat`.
    pub table: &'static str,
    /// Rules in the kernel (`kubeproxy_sync_proxy_rules_iptables_total`).
    pub total: usize,
    /// Rules written by this pass (`kubeproxy_sync_proxy_rules_iptables_last`).
    pub written: usize,
}

/// The result of a pass: findings, operations and their outcomes.
#[expect(clippy::struct_excessive_bools, reason = "each is one question about the pass, and none excludes another")]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Whether the kernel was read completely. Otherwise only changes of the input were checked.
    pub full: bool,
    /// Parts that could not be read.
    pub unread: Vec<Unread>,
    /// Operations that were carried out, and those that failed.
    pub applied: Applied,
    /// Families whose rules must change but wait for a later attempt, because the last one failed a moment ago.
    pub rules_put_off: BTreeSet<Family>,
    /// Whether deletions are held back because there are too many, so that the lists as a whole are not trusted.
    pub(crate) is_doubted: bool,
    /// Whether none of the desired virtual servers exists, and the kernel refused something.
    pub serves_nothing: bool,
    /// Differences that a full pass found although no input had changed. Other programs made them, and they were
    /// repaired.
    pub drift: Vec<Step>,
    /// Other programs' objects that serve Services' addresses, by name. They are reported, never changed. Known after a
    /// full pass.
    pub foreign: Vec<String>,
    /// Virtual servers that Services ask for and do not get, and why: all of them, after every pass.
    pub refused: Vec<Refused>,
    /// Desired values below `/proc/sys` that cannot be written from here. Serving works without them. Known after a
    /// full pass.
    pub unmet: Vec<SysctlChange>,
    /// Why deletions were held back as too many at once, and what to do. Everything else was done.
    pub stopped: Option<Arc<str>>,
    /// Number of draining real servers.
    pub draining: usize,
    /// Notices of a process that serves Services itself: limits reached, endpoints that do not answer. The same notice
    /// appears at most once a minute, with its count.
    pub notices: Vec<String>,
    /// Whether nothing was written, because objects of other modes serve and the safeguard holds back what would
    /// replace them. They stay too ([`Reconciler::remove_others`](crate::engine::Reconciler::remove_others)).
    pub waits: bool,
    /// Services that were served before everything else, at a cold start of IPVS mode with thousands of Services.
    pub served_first: Option<ServedFirst>,
    /// Number of rules in each table; in iptables mode, once they were read.
    pub rule_counts: Vec<RuleCount>,
    /// Settings that are not applied, with the substitute. Reported once for each change.
    pub limited: Vec<String>,
    /// Whether health checks of Services may have changed
    /// ([`Desired::health_checks`](crate::service::Desired::health_checks)).
    pub health_checks_changed: bool,
}

/// A virtual server that a Service requests and that is not served, or not by one of its endpoints. Prints as a
/// sentence.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Refused {
    /// The Service, `namespace/name`.
    pub service: String,
    /// Protocol, address and port.
    pub key: FrontendKey,
    /// The endpoint that gets nothing while the others serve; `None`: the virtual server itself is missing.
    pub endpoint: Option<EndpointKey>,
    /// Reason, and advice.
    pub reason: String,
    /// The program that uses the address or port; `None`: another Service, or no program.
    pub user: Option<User>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} is not served", self.key, self.service)?;
        if let Some(endpoint) = self.endpoint {
            write!(f, " by endpoint {endpoint}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

impl Report {
    /// Whether the kernel has the desired state, as far as this pass checked.
    pub fn is_done(&self) -> bool {
        self.unread.is_empty()
            && self.rules_put_off.is_empty()
            && self.applied.failures.is_empty()
            && self.stopped.is_none()
    }

    /// Whether this node could not do its work: something could not be read, or an operation failed for a reason that
    /// affects more than one object. Used by health checks.
    ///
    /// These are not failures of the node:
    /// * refusals by the kernel because of the object, as long as anything is served;
    /// * deletions held back on purpose ([`Report::stopped`]), because everything desired is served, and more.
    pub fn has_failed(&self) -> bool {
        let failures = &self.applied.failures;
        // A skipped operation follows from another failure. If none is known, the node is at fault.
        let only_skipped = || failures.iter().all(|failure| failure.error.kind() == PortErrorKind::Skipped);
        let of_the_node =
            |failure: &Failure| failure.error.kind() != PortErrorKind::Skipped && !failure.is_of_one_object();
        !self.unread.is_empty()
            || !self.rules_put_off.is_empty()
            || self.serves_nothing
            || failures.iter().any(of_the_node)
            || (!failures.is_empty() && only_skipped())
    }

    /// Operations that the kernel refused because of their object. Skipped operations that depend on them are not
    /// included.
    pub fn refused_by_kernel(&self) -> impl Iterator<Item = &Failure> {
        self.applied.failures.iter().filter(|failure| failure.is_of_one_object())
    }

    /// Number of operations carried out; 0 if nothing differed.
    pub fn writes(&self) -> u64 {
        self.applied.done.values().sum()
    }
}

/// Services served before everything else.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ServedFirst {
    /// The Services.
    pub services: BTreeSet<ObjectKey>,
    /// The time that it took, from the start of the pass.
    pub after: Duration,
}

/// Counters since the start of the process, as data for metrics.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Totals {
    /// Changes of Services received, including those without effect
    /// (`kubeproxy_sync_proxy_rules_service_changes_total`).
    pub service_changes: u64,
    /// Changes of EndpointSlices received (`kubeproxy_sync_proxy_rules_endpoint_changes_total`).
    pub endpoint_changes: u64,
    /// Passes that failed ([`Report::has_failed`]).
    pub failed_passes: u64,
    /// Failed restores of iptables rules (`kubeproxy_sync_proxy_rules_iptables_restore_failures_total`).
    pub restore_failures: ByFamily<u64>,
    /// Failed restores in passes for changes only
    /// (`kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total`).
    pub partial_restore_failures: ByFamily<u64>,
    /// Failed nf_tables transactions (`kubeproxy_sync_proxy_rules_nftables_sync_failures_total`).
    pub table_failures: ByFamily<u64>,
    /// Flows that were forgotten (`kubeproxy_conntrack_reconciler_deleted_entries_total`).
    pub flows: Flows,
}

fn add(count: &mut u64, more: usize) {
    *count = count.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
}

impl Totals {
    pub(crate) fn count_change(&mut self, kind: ObjectKind) {
        let of_slices = kind == ObjectKind::EndpointSlice;
        add(if of_slices { &mut self.endpoint_changes } else { &mut self.service_changes }, 1);
    }

    pub(crate) fn add(&mut self, report: &Report) {
        add(&mut self.failed_passes, report.has_failed().into());
        let tried = report.applied.failures.iter().filter(|failure| failure.error.kind() != PortErrorKind::Skipped);
        for step in tried.map(|failure| &failure.step) {
            let Some(family) = step.family() else { continue };
            let of_table = step.part == Part::Table;
            let count = if of_table { &mut self.table_failures } else { &mut self.restore_failures };
            add(count.of_mut(family), 1);
        }
        for family in Family::ALL {
            let failures = *report.applied.partial_restore_failures.of(family);
            add(self.partial_restore_failures.of_mut(family), failures);
        }
        self.flows.add(report.applied.flows);
    }
}
