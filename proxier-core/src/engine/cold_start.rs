//! The first stage of a cold start: what everything else on the node needs is served before the rest is compiled.

use std::collections::BTreeSet;

use super::pass::Run;
use super::state::{Reconciler, Trust};
use super::steps::RefreshOutcome;
use crate::modes::shared::networks;
use crate::net::Protocol;
use crate::pack::Gather as _;
use crate::plan::report::{Applied, Report, ServedFirst};
use crate::snapshot::{ObjectKey, Store};

/// Number of Services from which a first stage is worth it. With fewer, the first pass takes about as long as reading
/// the rules twice.
const WORTHWHILE: usize = 2000;

impl Reconciler {
    /// Serves `default/kubernetes` and cluster DNS alone, at a cold start in IPVS mode, with all rules that guard them.
    /// `None` if nothing can be gained, or something can be lost. That means earlier passes, virtual servers or
    /// addresses of an earlier process, or rules of another mode that serve until everything is ready.
    ///
    /// Failures are ignored, because the pass that follows reads the kernel and does everything.
    pub(super) fn serve_first(&mut self, run: &mut Run<'_, '_>) -> Option<(ServedFirst, Applied)> {
        self.trust = Trust::Begun;
        if self.backlog.services.len() < WORTHWHILE || !self.mode.may_serve_first(&self.host.addresses) {
            return None;
        }
        let first = services(&self.store);
        if first.is_empty() {
            return None;
        }
        let host = networks::read_host(run.ports.links).ok()?;
        self.take_host(host, run.now);
        if !self.mode.may_serve_first(&self.host.addresses) || self.read_gateways(run.ports.links).is_some() {
            return None;
        }
        self.find_api_servers();
        self.take_cluster_nodes();
        self.backlog.services.retain(|service| !first.contains(service));
        self.refresh(&first, &mut RefreshOutcome::default());
        let served = self.serve_alone(run);
        // Compiled again with the others, whose claims may be older.
        self.backlog.services.extend(first.iter().cloned());
        self.mode.forget_kernel();
        Some((ServedFirst { services: first, after: (run.clock)().saturating_sub(run.now) }, served?))
    }

    /// Serves the compiled Services on a kernel that serves nothing.
    fn serve_alone(&mut self, run: &mut Run<'_, '_>) -> Option<Applied> {
        self.mode.read(&self.desired, &self.host.addresses, &self.facts, run.ports).ok()?;
        if !self.mode.may_serve_first(&self.host.addresses) {
            return None;
        }
        let report = Report { full: true, ..Report::default() };
        let alone = &mut Run { report, ports: &mut *run.ports, ..*run };
        // The safeguards start to track the kernel with the whole pass.
        let safeguards = self.safeguards.clone();
        let plan = self.plan(alone);
        self.safeguards = safeguards;
        let plan = plan.filter(|plan| alone.report.unread.is_empty() && !plan.takes_over())?;
        alone.ports.rules.set_lock_wait(Self::SHORT_LOCK_WAIT);
        self.execute(plan, alone);
        self.mode.retry_at_once();
        alone.report.applied.failures.is_empty().then(|| std::mem::take(&mut alone.report.applied))
    }
}

/// The API server's own Service, and those of cluster DNS.
fn services(store: &Store) -> BTreeSet<ObjectKey> {
    let is_first = |key: &ObjectKey| match key.namespace() {
        "default" => key.name() == "kubernetes",
        "kube-system" => store.service(key).is_some_and(|service| {
            let mut ports = service.ports.iter();
            ports.any(|port| port.port == 53 && matches!(port.protocol, Protocol::Tcp | Protocol::Udp))
        }),
        _ => false,
    };
    store.services().map(|service| service.key.clone()).filter(is_first).gather()
}
