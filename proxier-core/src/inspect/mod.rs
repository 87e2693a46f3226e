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
use crate::ports::{PortError, PortErrorKind, Ports};
use crate::service::{NodeFacts, Packet};

/// A difference between the found and the expected state. Prints on one line.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Difference {
    /// The kernel lacks this.
    Missing {
        /// The part.
        what: String,
        /// Expected value.
        expected: String,
    },
    /// The kernel has this part, which is not desired.
    Unexpected {
        /// The part.
        what: String,
        /// Found value.
        found: String,
    },
    /// The kernel has this part with another value.
    Differs {
        /// The part.
        what: String,
        /// Expected value.
        expected: String,
        /// Found value.
        found: String,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |value: &str| if value.is_empty() { String::new() } else { format!(" ({value})") };
        match self {
            Difference::Missing { what, expected } => write!(f, "missing: {what}{}", said(expected)),
            Difference::Unexpected { what, found } => write!(f, "not expected: {what}{}", said(found)),
            Difference::Differs { what, expected, found } => {
                write!(f, "differs: {what}: {found} in the kernel, {expected} expected")
            }
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
pub fn inspect(
    mode: Kind,
    key: &FrontendKey,
    facts: &NodeFacts,
    ports: &mut Ports<'_>,
) -> Result<Inspection, PortError> {
    inspect_at(mode, (key, false), facts, ports)
}

/// As [`inspect`], for one packet: if outside clients get other endpoints than this node and pods
/// ([`Config::splits_local`](crate::config::Config::splits_local)), those for its sender.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_packet(
    mode: Kind,
    packet: &Packet,
    facts: &NodeFacts,
    ports: &mut Ports<'_>,
) -> Result<Inspection, PortError> {
    let rules = trace::packet_rules(mode, packet.to.family(), facts, iptables::Options::default());
    inspect_at(mode, (&packet.to, !packet.is_inside(facts, rules)), facts, ports)
}

fn inspect_at(
    mode: Kind,
    (key, is_outside): (&FrontendKey, bool),
    facts: &NodeFacts,
    ports: &mut Ports<'_>,
) -> Result<Inspection, PortError> {
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

/// The differences between the found and the expected state, sorted by name.
pub fn differences(expected: &Inspection, found: &Inspection) -> Vec<Difference> {
    let mut all = Vec::new();
    for (what, value) in &expected.parts {
        match found.parts.get(what) {
            Some(same) if same == value => {}
            Some(other) => {
                all.push(Difference::Differs { what: what.clone(), expected: value.clone(), found: other.clone() });
            }
            None => all.push(Difference::Missing { what: what.clone(), expected: value.clone() }),
        }
    }
    let unasked = found.parts.iter().filter(|(what, _)| !expected.parts.contains_key(*what));
    let unasked = unasked.filter(|(what, _)| !found.leaving.contains(*what));
    all.extend(unasked.map(|(what, value)| Difference::Unexpected { what: what.clone(), found: value.clone() }));
    all
}
