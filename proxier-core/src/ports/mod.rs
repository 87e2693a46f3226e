//! The interface of a pass to the outside world: one small trait per kernel part, with only the methods used.
//!
//! Feature `kernel` implements them with this project's clients. Feature `testing` has fakes that follow the kernel's
//! rules and pass the same tests. Every method blocks until the kernel has answered. None of them logs, retries for
//! long or makes decisions: failures are returned as [`PortError`].
//!
//! # A custom port
//!
//! A pass uses [`Ports`], which are assembled field by field, so you can replace one and keep the rest. This one leaves
//! values below `/proc/sys` to another program:
//!
//! ```
//! use std::time::Duration;
//! use proxier_core::fake::FakeKernel;
//! use proxier_core::ports::{PortError, PortErrorKind, Ports, Sysctls};
//! use proxier_core::engine::{Options, Reconciler};
//!
//! struct AlreadySet(Vec<String>);
//!
//! impl Sysctls for AlreadySet {
//!     fn get(&mut self, path: &str) -> Result<String, PortError> {
//!         Err(PortError::new(PortErrorKind::NotFound, format!("{path}: not asked for")))
//!     }
//!
//!     fn can_set(&mut self, _path: &str) -> bool {
//!         false
//!     }
//!
//!     fn set(&mut self, path: &str, value: &str) -> Result<(), PortError> {
//!         self.0.push(format!("{path} = {value}"));
//!         Ok(())
//!     }
//! }
//!
//! let (mut kernel, now) = (FakeKernel::new(), Duration::ZERO);
//! let mut sysctls = AlreadySet(Vec::new());
//! let mut proxier = Reconciler::new("node-a", Options::default(), now);
//! proxier.start(now);
//! let mut ports = Ports { sysctls: &mut sysctls, ..kernel.ports() };
//! let report = proxier.pass(&|| now, &mut ports).ok_or("not due")?;
//! assert!(report.is_done());
//! assert!(sysctls.0.contains(&"net/ipv4/ip_forward = 1".to_owned()));
//! assert_eq!(kernel.writes().sysctls, 0);
//! # Ok::<(), &str>(())
//! ```

mod conntrack;
mod error;
mod ipvs;
mod links;
mod listener;
mod named_set;
mod relays;
mod routes;
mod rules;
mod sets;
mod sysctls;
mod tables;

use std::fmt;

pub use conntrack::{Conntrack, Flows, UdpServices};
pub use error::{ItemFailure, ItemFailures, PortError, PortErrorKind};
pub use ipvs::Ipvs;
pub use links::Links;
#[cfg(feature = "kernel")]
pub(crate) use listener::Turned;
pub use listener::{Counts, Listener, Settings};
pub use named_set::NamedSet;
pub use relays::Relays;
pub use routes::{LocalNetworks, LocalRoute, RouteOwner};
pub use rules::Rules;
pub use sets::Sets;
pub use sysctls::{SysctlChange, Sysctls};
pub use tables::{NotCommitted, Tables};

/// Names of sets, for this crate, its tests and its benches.
#[doc(hidden)]
pub use named_set::{SetKey, SetKind};
pub(crate) use named_set::{frontend_at, recorded};

/// The ports of all parts that a pass uses.
pub struct Ports<'a> {
    /// Virtual and real servers.
    pub ipvs: &'a mut dyn Ipvs,
    /// Sets.
    pub sets: &'a mut dyn Sets,
    /// Rules.
    pub rules: &'a mut dyn Rules,
    /// Dummy device and addresses.
    pub links: &'a mut dyn Links,
    /// Values below `/proc/sys`.
    pub sysctls: &'a mut dyn Sysctls,
    /// Tables of nf_tables.
    pub tables: &'a mut dyn Tables,
    /// Tracked connections.
    pub conntrack: &'a mut dyn Conntrack,
    /// Networks that are local as a whole.
    pub routes: &'a mut dyn LocalNetworks,
    /// Listeners in this process.
    pub relays: &'a mut dyn Relays,
}

impl fmt::Debug for Ports<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ports")
    }
}
