//! What a kernel serves, how that differs from what it should, and what becomes of a packet, in any mode. Reads only.

mod list;
mod trace;

pub use crate::modes::inspection::{Inspection, ServedFrontend, TrafficCounters};
pub use list::list_frontends;
pub use trace::trace;

use std::fmt;

use crate::modes::localhost_relay::is_relayed;
use crate::modes::{Kind, iptables, ipvs, nftables};
use crate::net::FrontendKey;
use crate::ports::{PortError, PortErrorKind, Ports, Result};
use crate::service::{NodeFacts, Packet};

/// A part whose found value is not the expected one. Prints on one line.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Difference {
    /// The part.
    pub what: String,
    /// Expected value; `None`: the part is not expected.
    pub expected: Option<String>,
    /// Found value; `None`: the kernel lacks the part.
    pub found: Option<String>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |value: &Option<String>| match value.as_deref() {
            None | Some("") => String::new(),
            Some(value) => format!(" ({value})"),
        };
        let Difference { what, expected, found } = self;
        match (expected, found) {
            (Some(expected), Some(found)) => write!(f, "differs: {what}: {found} in the kernel, {expected} expected"),
            (expected, None) => write!(f, "missing: {what}{}", said(expected)),
            (None, found) => write!(f, "not expected: {what}{}", said(found)),
        }
    }
}

/// Reads what a kernel has for an address and port in a mode.
///
/// Costs as much as reading everything that the mode has in the kernel.
///
/// # Errors
/// The state could not be read completely. [`Unavailable`](PortErrorKind::Unavailable) in userspace mode, because the
/// sockets belong to another process.
pub fn inspect(mode: Kind, key: &FrontendKey, facts: &NodeFacts, ports: &mut Ports<'_>) -> Result<Inspection> {
    inspect_at(mode, (key, false), facts, ports)
}

/// As [`inspect`], for one packet: if outside clients get other endpoints than this node and pods
/// ([`Config::splits_local`](crate::config::Config::splits_local)), those for its sender.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_packet(mode: Kind, packet: &Packet, facts: &NodeFacts, ports: &mut Ports<'_>) -> Result<Inspection> {
    let rules = trace::packet_rules(mode, packet.to.family(), facts, iptables::IptablesOptions::default());
    inspect_at(mode, (&packet.to, !packet.is_inside(facts, rules)), facts, ports)
}

fn inspect_at(
    mode: Kind,
    (key, is_outside): (&FrontendKey, bool),
    facts: &NodeFacts,
    ports: &mut Ports<'_>,
) -> Result<Inspection> {
    let names = &facts.config().names;
    match mode {
        Kind::Ipvs => ipvs::inspect(key, is_outside, facts.config(), ports),
        Kind::Nftables if is_relayed(key) => Err(PortError::new(
            PortErrorKind::Unavailable,
            "in nftables mode the process serves node ports of TCP at loopback addresses, not the kernel; ss -tnlp lists its sockets",
        )),
        Kind::Nftables => nftables::inspect(key, names, ports.tables),
        Kind::Iptables => {
            let dump = ports.rules.dump(key.family())?;
            Ok(iptables::inspect(&dump, key, facts.is_on_interface(key.address)))
        }
        Kind::Userspace => Err(PortError::new(
            PortErrorKind::Unavailable,
            "in userspace mode the process serves, not the kernel; ss -tnlp lists its sockets",
        )),
    }
}

/// The differences between the found and the expected state: of expected parts, then of others, each sorted by name.
pub fn differences(expected: &Inspection, found: &Inspection) -> Vec<Difference> {
    let is_left = |what: &&String| !expected.parts.contains_key(*what) && !found.leaving.contains(*what);
    let all = expected.parts.keys().chain(found.parts.keys().filter(is_left));
    let compare = |what: &String| Difference {
        what: what.clone(),
        expected: expected.parts.get(what).cloned(),
        found: found.parts.get(what).cloned(),
    };
    all.map(compare).filter(|of| of.expected != of.found).collect()
}
