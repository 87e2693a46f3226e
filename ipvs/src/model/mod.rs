//! Virtual and real servers as plain data, without I/O.
//!
//! # Example
//!
//! A virtual server with persistence and a real server with limits, and how `ipvsadm -S -n` prints them.
//!
//! ```
//! use ipvs::model::{Persistence, Thresholds};
//! use ipvs::{RealServer, Ruleset, Scheduler, VirtualServer, VirtualServerKey, Weight};
//!
//! let key = VirtualServerKey::tcp("10.96.0.10:443".parse()?);
//! let server = VirtualServer::new(key, Scheduler::WeightedRoundRobin).with_persistence(Persistence::new(10_800));
//! let real = RealServer::new("10.244.1.5:8443".parse()?)
//!     .with_weight(Weight::new(100)?)
//!     .with_thresholds(Thresholds::new(1000, 800)?);
//! let mut rules = Ruleset::new();
//! rules.push(server, [real]);
//! assert_eq!(
//!     rules.to_string(),
//!     "-A -t 10.96.0.10:443 -s wrr -p 10800\n\
//!      -a -t 10.96.0.10:443 -r 10.244.1.5:8443 -m -w 100 -x 1000 -y 800\n"
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Serde
//!
//! With feature `serde` the types are `Serialize` and `Deserialize`. A key is serialised as its text. Fields with a
//! default may be omitted.

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

use std::borrow::Cow;
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

/// A value outside the kernel's range. The message states the range.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct OutOfRange {
    what: Cow<'static, str>,
    value: String,
    allowed: Cow<'static, str>,
}

impl OutOfRange {
    pub(crate) fn new(what: &'static str, value: impl fmt::Display, allowed: &'static str) -> Self {
        OutOfRange { what: what.into(), value: value.to_string(), allowed: allowed.into() }
    }
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} is impossible; allowed: {}", self.what, self.value, self.allowed)
    }
}

netlink_batch::debug_is_message!(OutOfRange);

impl std::error::Error for OutOfRange {}
