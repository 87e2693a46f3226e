//! Virtual and real servers as plain data. Nothing here does I/O.

mod daemon;
mod forwarding;
mod forwarding_text;
mod key;
mod name;
mod real_server;
mod scheduler;
mod stats;
mod timeouts;
mod virtual_server;

use std::fmt;

pub use daemon::{DaemonState, SyncDaemon};
pub use forwarding::{ForwardingMethod, Tunnel, TunnelFlags, TunnelKind};
pub use key::{Family, Protocol, RealServerKey, VirtualServerKey};
pub use name::Name;
pub use real_server::{ObservedRealServer, RealServer, RealServerConfig, Thresholds, Weight};
pub use scheduler::{Scheduler, SchedulerFlags};
pub use stats::{Rates, Stats};
pub use timeouts::{Info, Timeouts, TimeoutsUpdate};
pub use virtual_server::{
    Granularity, ObservedVirtualServer, Persistence, Snapshot, SnapshotEntry, VirtualServer, VirtualServerConfig,
};

/// A value outside the range that the kernel can hold; the message names the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    what: &'static str,
    value: String,
    allowed: &'static str,
}

impl OutOfRange {
    pub(crate) fn new(what: &'static str, value: impl fmt::Display, allowed: &'static str) -> Self {
        OutOfRange { what, value: value.to_string(), allowed }
    }
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} is impossible; allowed: {}", self.what, self.value, self.allowed)
    }
}

impl std::error::Error for OutOfRange {}

/// Serialises a type as the text it prints and parses.
#[cfg(feature = "serde")]
macro_rules! serde_as_text {
    ($type:ty, $expecting:literal) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $type;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Visitor)
            }
        }
    };
}
#[cfg(feature = "serde")]
pub(crate) use serde_as_text;
