//! Objects of other modes on this node: they count as served, and are removed once this mode serves.

use super::state::Reconciler;
use crate::modes::cleanup::{cleanup, served};
use crate::modes::shared::cleaned::Cleaned;
use crate::modes::shared::frontends::losing;
use crate::net::FrontendKey;
use crate::plan::report::Unread;
use crate::ports::Ports;
use crate::safeguard::Stopped;
use crate::time::Moment;

/// The result of an attempt to remove the objects of other modes.
#[derive(Clone, Debug, PartialEq)]
pub enum Removal {
    /// The removal was carried out, with an outcome for every part.
    Made(Cleaned),
    /// The safeguard holds back what would be removed.
    Held(Stopped),
    /// These parts could not be read, so what would be removed is unknown; no Frontend is served.
    Unknown(Cleaned),
}

/// Frontends that other modes serve, compared with those that this mode would serve in their place.
pub(super) struct Judgement {
    /// The part of the removal that the safeguard holds back.
    pub(super) stopped: Option<Stopped>,
    /// Whether some of that depends on chains that this mode's first pass replaces.
    pub(super) would_replace: bool,
    pub(super) unread: Vec<Unread>,
}

impl Reconciler {
    /// Removes the objects that other modes have made here, of this proxy or of a kube-proxy ([`cleanup`]). Call it
    /// once a full pass has succeeded, and again until [nothing is left](Cleaned::is_done). Frontends that they serve
    /// count as served. The safeguard holds them back if the lists are suddenly empty, as [in a
    /// pass](crate::plan::report::Report::waits). Once most of the lists has returned, it holds back only the rest. UDP
    /// flows that they have sent elsewhere are forgotten by the next pass, which is then due at once.
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
            // What gave way to other modes no longer has to, and they translated flows until now.
            self.flows.sweep = true;
            self.schedule.request_full(now);
        }
        Removal::Made(cleaned)
    }

    /// Reads the Frontends that other modes serve, and lets the safeguard evaluate their removal.
    pub(super) fn judge_others(&mut self, now: Moment, ports: &mut Ports<'_>) -> Judgement {
        let served = served(&self.facts, self.mode.kind(), ports);
        self.flows.left.extend(served.frontends.keys().filter_map(FrontendKey::udp));
        let (desired, frontends) = (&self.desired, &served.frontends);
        let losing = losing(frontends.keys(), frontends, desired);
        // The kernel is read as a whole each time, like the first comparison.
        self.safeguards.others.has_compared = false;
        let stopped = self.safeguards.others.check(losing, frontends, &self.store, desired, now);
        let is_replaced = |stopped: &Stopped| !stopped.held.is_disjoint(&served.replaced);
        Judgement { would_replace: stopped.as_ref().is_some_and(is_replaced), stopped, unread: served.unread }
    }
}
