//! Objects of other modes on this node: they count as served, and go once this mode serves.

use super::Reconciler;
use crate::modes::cleanup::cleanup;
use crate::modes::others;
use crate::modes::shared::cleaned::Cleaned;
use crate::net::FrontendKey;
use crate::plan::report::Unread;
use crate::ports::Ports;
use crate::safeguard::{Loss, Stopped};
use crate::time::Moment;

/// Result of an attempt to remove the objects of other modes.
#[derive(Clone, Debug, PartialEq)]
pub enum Removal {
    /// Removal carried out, with an outcome for every part.
    Made(Cleaned),
    /// The safeguard holds back what would go.
    Held(Stopped),
    /// These parts could not be read, so what would go is unknown; no Frontend is served.
    Unknown(Cleaned),
}

/// Frontends that other modes serve, compared with those that this mode would serve in their place.
pub(super) struct Judgement {
    /// Part of the removal that the safeguard holds back.
    pub(super) stopped: Option<Stopped>,
    /// Whether some of that depends on chains that this mode's first pass replaces.
    pub(super) would_replace: bool,
    /// Parts of the kernel that could not be read.
    pub(super) unread: Vec<Unread>,
}

impl Reconciler {
    /// Removes the objects that other modes have made here, of this proxy or of a kube-proxy ([`cleanup`]); call it once a full pass has
    /// succeeded, and again until [nothing is left](Cleaned::is_done). Frontends that they serve count as served: the safeguard holds them back
    /// when the lists are suddenly empty, as [in a pass](crate::plan::report::Report::waits), and a rest of them once most of the lists is back.
    /// UDP flows that they have led elsewhere are forgotten by the next pass, which is due at once then.
    ///
    /// ```
    /// use std::time::Duration;
    /// use proxier_core::fake::FakeKernel;
    /// use proxier_core::modes::Kind;
    /// use proxier_core::net::EndpointKey;
    /// use proxier_core::reconciler::{Options, Reconciler, Removal};
    /// use proxier_core::snapshot::{FrontendSpec, ObjectKey};
    ///
    /// let (mut kernel, now) = (FakeKernel::new(), Duration::ZERO);
    /// let start = |mode| {
    ///     let mut options = Options::default();
    ///     options.mode = mode;
    ///     let mut proxier = Reconciler::new("node-a", options, now);
    ///     proxier.start(now);
    ///     proxier
    /// };
    /// let web = |last: u8| {
    ///     let key = format!("TCP 10.96.0.{last}:80").parse()?;
    ///     Ok::<_, proxier_core::net::InvalidFrontendKey>(FrontendSpec::new(key, [EndpointKey::new([10, 244, 1, 7].into(), 8080)]))
    /// };
    /// let all = (1..=12).map(web).collect::<Result<Vec<_>, _>>()?;
    /// let mut before = start(Kind::Ipvs);
    /// before.upsert_frontends(&ObjectKey::new("agent", "web"), all.clone(), now);
    /// before.pass(&|| now, &mut kernel.ports());
    ///
    /// // In another mode, with nothing to serve: what there is goes on serving.
    /// let mut proxier = start(Kind::Nftables);
    /// let report = proxier.pass(&|| now, &mut kernel.ports()).ok_or("not due")?;
    /// assert!(report.waits && report.stopped.is_some_and(|why| why.contains("12 of 12 virtual servers")));
    /// assert!(matches!(proxier.remove_others(now, &mut kernel.ports()), Removal::Held(_)));
    /// assert!(kernel.state().tables.is_empty() && !kernel.state().ipvs.is_empty());
    ///
    /// proxier.upsert_frontends(&ObjectKey::new("agent", "web"), all, now);
    /// let report = proxier.pass(&|| now, &mut kernel.ports()).ok_or("not due")?;
    /// assert!(!report.waits && report.is_done());
    /// let Removal::Made(cleaned) = proxier.remove_others(now, &mut kernel.ports()) else { return Err("not removed".into()) };
    /// assert!(cleaned.is_done() && kernel.state().ipvs.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_others(&mut self, now: Moment, ports: &mut Ports<'_>) -> Removal {
        let Judgement { stopped, unread, .. } = self.judge_others(now, ports);
        if let Some(stopped) = stopped {
            return Removal::Held(stopped);
        }
        let serves = || self.desired.frontends().any(|frontend| !frontend.endpoints().is_empty());
        if !unread.is_empty() && !serves() {
            return Removal::Unknown(Cleaned { unread, ..Cleaned::default() });
        }
        let cleaned = cleanup(self.facts.config(), Some(self.mode.kind()), ports);
        if cleaned.removed() > 0 {
            // What made way for other modes need not any more, and they translated flows until now.
            self.sweep = true;
            self.schedule.request_full(now);
        }
        Removal::Made(cleaned)
    }

    /// Reads the Frontends that other modes serve, and has the safeguard judge their removal.
    pub(super) fn judge_others(&mut self, now: Moment, ports: &mut Ports<'_>) -> Judgement {
        let served = others::served(&self.facts, self.mode.kind(), ports);
        self.left.extend(served.frontends.keys().filter_map(FrontendKey::udp));
        let desired = &self.desired;
        let losing = served.frontends.iter().filter_map(|(key, has_endpoints)| match desired.frontend(key) {
            None => Some((*key, Loss::Everything)),
            Some(now) if *has_endpoints && now.endpoints().is_empty() => Some((*key, Loss::Endpoints)),
            Some(_) => None,
        });
        let stopped = self.others.check_anew(losing, &served, &self.store, desired, now);
        let is_replaced = |stopped: &Stopped| stopped.held().any(|key| served.replaced.contains(&key));
        Judgement { would_replace: stopped.as_ref().is_some_and(is_replaced), stopped, unread: served.unread }
    }
}
