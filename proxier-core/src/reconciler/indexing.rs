//! Follows [`Desired`](crate::service::Desired): for the mode, for the next write, and for the report.

use std::sync::Arc;

use crate::modes::Mode;
use crate::net::FrontendKey;
use crate::service::{Changes, Compiled, Frontend, FrontendObserver};

/// Results of compiling, as far as the reconciler has to know them.
#[derive(Debug, Default)]
pub(super) struct RefreshOutcome {
    /// Frontends that are new, gone or different.
    pub(super) frontends: Vec<FrontendKey>,
    /// Whether a health check is new, gone or different.
    pub(super) health_checks: bool,
}

/// Passes the changes of a refresh to the mode, and records them.
pub(super) struct IndexUpdate<'a> {
    pub(super) mode: &'a mut dyn Mode,
    pub(super) changes: &'a mut Changes,
    pub(super) refreshed: RefreshOutcome,
}

impl FrontendObserver for IndexUpdate<'_> {
    fn needs_ports(&self) -> bool {
        self.mode.needs_ports()
    }

    fn service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        let [old, new] = [before, after].map(|of| of.and_then(Compiled::health_check));
        self.refreshed.health_checks |= old != new;
        self.changes.service(before, after);
        self.mode.index_service(before, after);
    }

    fn frontend(&mut self, before: Option<&Arc<Frontend>>, after: Option<&Arc<Frontend>>) {
        let Some(key) = after.or(before).map(|frontend| frontend.key) else { return };
        self.refreshed.frontends.push(key);
        self.changes.frontend(before, after);
        self.mode.index_frontend(self.changes.written(&key, before), before, after);
    }
}
