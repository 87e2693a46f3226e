//! A snapshot of the kernel thread's state, made on request from shared values.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ipvs::VirtualServerKey;
use proxier_core::modes::Kind;
use proxier_core::net::FrontendKey;
use proxier_core::plan::report::Refused;
use proxier_core::service::Frontend;
use proxier_core::snapshot::{ObjectKey, ServicePort};

/// Number of lines of a list to show; all of them are counted.
const LINES: usize = 100;

/// The first lines of a list, and their total number.
#[derive(Clone, Debug)]
pub(crate) struct Lines<T> {
    pub(crate) count: usize,
    pub(crate) first: Vec<T>,
}

impl<T> FromIterator<T> for Lines<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut lines = Lines { count: 0, first: Vec::new() };
        for line in all {
            if lines.count < LINES {
                lines.first.push(line);
            }
            lines.count = lines.count.saturating_add(1);
        }
        lines
    }
}

/// A Service and the Frontends that it owns.
#[derive(Clone, Debug)]
pub(crate) struct ServiceView {
    pub(crate) key: ObjectKey,
    /// Ports of the Service, for their names.
    pub(crate) ports: Box<[ServicePort]>,
    pub(crate) frontends: Vec<Arc<Frontend>>,
}

/// A draining real server.
#[derive(Clone, Debug)]
pub(crate) struct DrainView {
    pub(crate) virtual_server: String,
    pub(crate) real_server: String,
    pub(crate) since: Duration,
    /// Time until it is deleted, even if it has connections.
    pub(crate) left: Option<Duration>,
    pub(crate) connections: Option<u64>,
}

/// A Frontend that is kept although it, or its last endpoint, should be removed.
#[derive(Clone, Debug)]
pub(crate) struct HeldView {
    pub(crate) key: FrontendKey,
    pub(crate) service: Option<String>,
    pub(crate) since: Duration,
    /// Time until it is removed, if the input does not change; `None`: only when confirmed.
    pub(crate) left: Option<Duration>,
}

/// An object that cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct UnreadableView {
    /// The object, and the reason.
    pub(crate) text: String,
    /// Time since its first version that could not be read.
    pub(crate) since: Duration,
}

/// Everything that the status page shows of the reconciler.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) node: String,
    pub(crate) mode: Kind,
    /// Sorted by name.
    pub(crate) services: Vec<ServiceView>,
    pub(crate) drains: Lines<DrainView>,
    pub(crate) rejected: Lines<String>,
    pub(crate) refused: Lines<Refused>,
    pub(crate) unreadable: Lines<UnreadableView>,
    pub(crate) held: Lines<HeldView>,
    /// Virtual servers by firewall mark, by Frontend: only for clients outside.
    pub(crate) marks: BTreeMap<FrontendKey, VirtualServerKey>,
    /// Userspace mode: connections and UDP flows that each listener has started.
    pub(crate) begun: BTreeMap<FrontendKey, u64>,
}
