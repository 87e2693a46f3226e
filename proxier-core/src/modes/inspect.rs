//! State of one address and port in a kernel, and its differences from the expected state, which a kernel in memory gives. Reads only.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::modes::localhost_relay::is_relayed;
use crate::modes::trace::packet_rules;
use crate::modes::{Kind, iptables, ipvs, nftables};
use crate::net::FrontendKey;
use crate::ports::{PortError, PortErrorKind, Ports};
use crate::service::{NodeFacts, Packet};

/// State of one address and port in a kernel.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Inspection {
    /// The parts by name, with values: `real server 10.244.0.5:8080`, `weight 1`.
    pub parts: BTreeMap<String, String>,
    /// Parts that may be there although they are not wanted: real servers that drain.
    pub leaving: BTreeSet<String>,
    /// Counters of the kernel; `None` where it does not count.
    pub counters: Option<TrafficCounters>,
}

/// Counters of a kernel, since it has the parts that count.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TrafficCounters {
    /// Connections; in iptables mode, their first packets.
    pub connections: u64,
    /// Packets from clients and to them, where these are counters.
    pub packets: Option<(u64, u64)>,
}

/// Difference between the found and the expected state. Prints as one line.
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
    /// The kernel has this part, which is not wanted.
    Unexpected {
        /// The part.
        what: String,
        /// Found value.
        found: String,
    },
    /// The kernel has it in another way.
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

/// Reads the state of a kernel for an address and port, in a mode.
///
/// Costs as much as reading everything that the mode has in the kernel.
///
/// # Errors
/// The state could not be read as a whole. [`Unavailable`](PortErrorKind::Unavailable) in userspace mode: the sockets are another
/// process's.
pub fn inspect(
    mode: Kind,
    key: &FrontendKey,
    facts: &NodeFacts,
    ports: &mut Ports<'_>,
) -> Result<Inspection, PortError> {
    inspect_at(mode, (key, false), facts, ports)
}

/// As [`inspect`], for one packet: where clients outside get other endpoints than this node and pods
/// ([`Config::splits_local`](crate::config::Config::splits_local)), what its sender gets.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_packet(
    mode: Kind,
    packet: &Packet,
    facts: &NodeFacts,
    ports: &mut Ports<'_>,
) -> Result<Inspection, PortError> {
    let rules = packet_rules(mode, packet.to.family(), facts, iptables::Options::default());
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

/// Differences between the found and the expected state, in the order of names.
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
