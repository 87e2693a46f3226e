//! The ports over the running kernel: feature `kernel`.
//!
//! * [`IpvsPort`] over `ipvs`, [`SetsPort`] over `ipset`, [`RulesPort`] over `iptables`: their errors by kind, items by place.
//! * [`SysctlsPort`]: files below `/proc/sys`.
//!
//! Sockets are opened when they are first needed, in the network namespace of the calling thread, and again after a failure
//! that leaves a conversation in doubt. So a part of the kernel that is missing fails its own calls and no others.

mod error;
mod ipvs;
mod lazy;
mod rules;
mod sets;
mod sysctl;

pub use ipvs::IpvsPort;
pub use rules::RulesPort;
pub use sets::SetsPort;
pub use sysctl::SysctlsPort;
