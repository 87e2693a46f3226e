//! The checked input: Services and EndpointSlices, the [`Store`] that holds them, and the node.

mod abilities;
mod address;
mod annotation;
mod balancing;
mod forwarding;
mod frontends;
mod node;
mod rejection;
mod service;
mod slice;
mod store;
mod weights;

use std::fmt;
use std::sync::Arc;

use crate::objects::Metadata;

pub(crate) use abilities::Abilities;
pub(crate) use address::{is_usable, is_usable_by_service, parse_address, parse_network};
pub use annotation::Annotation;
#[doc(hidden)]
pub use annotation::MayAskFor;
pub use balancing::Balancing;
pub(crate) use balancing::Sharing;
pub(crate) use forwarding::MethodName;
pub(crate) use frontends::OTHER_PORT;
pub use frontends::{FrontendSpec, Roles};
pub use node::{HostAddresses, Node};
pub(crate) use rejection::Reporter;
pub use rejection::{ObjectKind, Rejection};
pub(crate) use service::CreationTime;
pub use service::{Service, ServicePort, TrafficPolicy};
pub(crate) use slice::EndpointFlags;
pub use slice::EndpointSlice;
pub use store::Store;
pub use weights::ZoneWeights;

/// Content of a slice, for this crate and its benches.
#[doc(hidden)]
pub use slice::Endpoint;

/// Namespace and name of an object. Prints as `namespace/name`. Small and cheap to clone, since each object's key is
/// stored several times.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Arc<str>);

impl ObjectKey {
    /// Between namespace and name, neither of which can contain it; sorts before everything in a namespace.
    const SEPARATOR: &str = "\0";

    /// The key of this namespace and name.
    pub fn new(namespace: &str, name: &str) -> Self {
        ObjectKey([namespace, name].join(Self::SEPARATOR).into())
    }

    /// The key of an object in a namespace; `default` if it has none.
    pub fn of(metadata: &Metadata) -> Self {
        let namespace = if metadata.namespace.is_empty() { "default" } else { &metadata.namespace };
        Self::new(namespace, &metadata.name)
    }

    /// Namespace; empty for objects without one, such as Nodes.
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.parts().1
    }

    fn parts(&self) -> (&str, &str) {
        self.0.split_once(Self::SEPARATOR).unwrap_or(("", &self.0))
    }

    /// Whether this is `default/kubernetes`, the API server's own Service.
    pub(crate) fn is_kubernetes(&self) -> bool {
        self.parts() == ("default", "kubernetes")
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (namespace, name) = self.parts();
        if namespace.is_empty() { f.write_str(name) } else { write!(f, "{namespace}/{name}") }
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectKey({self})")
    }
}

/// A valid port number: 1 to 65,535.
pub(crate) fn check_port(number: i64) -> Option<u16> {
    u16::try_from(number).ok().filter(|port| *port != 0)
}
