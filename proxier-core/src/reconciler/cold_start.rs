//! The first stage of a cold start: what everything else on the node needs is served before the rest is compiled.

use crate::plan::report::ServedFirst;
use std::collections::BTreeSet;

use super::{Reconciler, Report};
use crate::modes::shared::{networks, sysctls};
use crate::net::Protocol;
use crate::ports::Ports;
use crate::snapshot::{ObjectKey, Store};
use crate::time::Moment;

/// Number of Services from which on a first stage pays: with fewer, the first pass takes about as long as reading the rules twice.
const WORTHWHILE: usize = 2000;

impl Reconciler {
    /// Serves `default/kubernetes` and cluster DNS alone, at a cold start in IPVS mode, with all rules that guard them. `None`
    /// when there is nothing to gain, or anything to lose: earlier passes, virtual servers or addresses of an earlier process,
    /// or rules of another mode that serve until everything is there.
    ///
    /// Best effort: the pass that follows reads the kernel and does the rest.
    pub(super) fn serve_first(
        &mut self,
        now: Moment,
        clock: &dyn Fn() -> Moment,
        ports: &mut Ports<'_>,
    ) -> Option<(ServedFirst, Report)> {
        let is_first = !std::mem::replace(&mut self.tried_first, true);
        if !is_first || self.pending.len() < WORTHWHILE || !self.mode.may_serve_first(&self.host) {
            return None;
        }
        let first = services(&self.store);
        if first.is_empty() {
            return None;
        }
        let host = networks::read_host(ports.links).ok()?;
        self.take_host(host, now);
        if !self.mode.may_serve_first(&self.host) || self.read_gateways(ports.links).is_some() {
            return None;
        }
        self.find_api_servers();
        self.take_cluster_nodes();
        self.pending.retain(|service| !first.contains(service));
        self.refresh(&first);
        let served = self.serve_alone(now, clock, ports);
        // Compiled again with the rest, whose claims may be older.
        self.pending.extend(first.iter().cloned());
        self.mode.forget_kernel();
        let report = served?;
        Some((ServedFirst { services: first, after: clock().saturating_sub(now) }, report))
    }

    /// Serves the compiled Services, on a kernel that serves nothing.
    fn serve_alone(&mut self, now: Moment, clock: &dyn Fn() -> Moment, ports: &mut Ports<'_>) -> Option<Report> {
        self.mode.read(&self.desired, &self.host, &self.facts, ports).ok()?;
        if !self.mode.may_serve_first(&self.host) {
            return None;
        }
        self.tcp_is_liberal = sysctls::is_tcp_liberal(&self.options.host, ports.sysctls);
        let mut report = Report { full: true, ..Report::default() };
        // What it knows of the kernel begins with the whole pass.
        let safeguard = self.safeguard.clone();
        let plan = self.plan(&mut report, now, false, ports);
        self.safeguard = safeguard;
        let plan = plan.filter(|plan| report.unread.is_empty() && !plan.takes_over())?;
        ports.rules.set_lock_wait(Self::SHORT_LOCK_WAIT);
        self.carry_out(plan, &mut report, clock, ports);
        self.mode.retry_at_once();
        report.applied.failures.is_empty().then_some(report)
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
    store.services().map(|service| service.key.clone()).filter(is_first).collect()
}
