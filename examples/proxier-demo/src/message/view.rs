//! A snapshot of the kernel thread's state, made on request from shared values.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipvs::VirtualServerKey;
use proxier_core::modes::Kind;
use proxier_core::net::FrontendKey;
use proxier_core::service::Frontend;
use proxier_core::snapshot::{ObjectKey, ServicePort};
use serde_json::{Value, json};

/// Number of lines of a list to show; all of them are counted.
const LINES: usize = 100;

/// A list as JSON: its first lines, and their total number.
pub(crate) fn listed<T>(all: impl Iterator<Item = T>, line: impl Fn(T) -> Value) -> Value {
    let (mut list, mut count) = (Vec::new(), 0_usize);
    for one in all {
        if count < LINES {
            list.push(line(one));
        }
        count = count.saturating_add(1);
    }
    json!({"count": count, "list": list})
}

#[derive(Clone, Debug)]
pub(crate) struct ServiceView {
    pub(crate) key: ObjectKey,
    pub(crate) ports: Box<[ServicePort]>,
    pub(crate) frontends: Vec<Arc<Frontend>>,
}

/// Everything that the status page shows of the reconciler.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) node: String,
    pub(crate) mode: Kind,
    /// Sorted by name.
    pub(crate) services: Vec<ServiceView>,
    /// Draining real servers, what is left out, refused, unreadable or held back: an object of lists.
    pub(crate) lists: Value,
    /// Virtual servers by firewall mark, by Frontend: only for clients outside.
    pub(crate) marks: BTreeMap<FrontendKey, VirtualServerKey>,
    /// Userspace mode: connections and UDP flows that each listener has started.
    pub(crate) begun: BTreeMap<FrontendKey, u64>,
}
