//! Chains that choose an endpoint: one for each number of endpoints, shared by all Services that have so many.

use std::fmt;
use std::time::Duration;

use nftables::expr::{DynSetOp, HeaderBase, MetaKey, NatFlags, NatKind, NumgenKind, RegisterRange};
use nftables::{Expression, Register, Rule, SetReference, Value};

use super::layout::Layout;
use super::lower::SetName;
use crate::net::Family;

/// Which connections a chain marks to be masqueraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Marks {
    /// None.
    Nothing,
    /// Those to a cluster IP that need it, by configuration.
    Internal,
    /// All.
    Everything,
}

/// A chain that chooses an endpoint. Its name says what it does: `pick-2`, `internal-3-local`, `external-2-sticky-10800`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pick {
    /// Which connections are marked to be masqueraded.
    pub marks: Marks,
    /// Among the endpoints on this node only.
    pub is_local: bool,
    /// Number of endpoints; never 0.
    pub count: u32,
    /// How long a client stays with its endpoint, in seconds.
    pub affinity_secs: Option<u32>,
}

/// The slot of the first endpoint on this node; the others begin at 0. No Service has as many endpoints.
pub(super) const FIRST_LOCAL_SLOT: u32 = 1 << 24;

impl fmt::Display for Pick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.marks {
            Marks::Nothing => "pick",
            Marks::Internal => "internal",
            Marks::Everything => "external",
        };
        write!(f, "{kind}-{}", self.count)?;
        f.write_str(if self.is_local { "-local" } else { "" })?;
        self.affinity_secs.map_or(Ok(()), |secs| write!(f, "-sticky-{secs}"))
    }
}

/// Where a rule keeps what it looks up: source, destination, protocol, port, and behind them an endpoint or a slot. The
/// key of each lookup is a run of them, so that nothing is loaded twice.
#[derive(Clone, Copy, Debug)]
struct Slots {
    source: Register,
    destination: Register,
    protocol: Register,
    port: Register,
    endpoint: Register,
    endpoint_port: Register,
}

impl Slots {
    /// `None` never: with IPv6 the last one is slot 14 of 16.
    fn new(family: Family) -> Option<Self> {
        let words = family.bits() / 32;
        let slot = |addresses: u8, others: u8| Register::slot(addresses.checked_mul(words)?.checked_add(others)?);
        Some(Slots {
            source: slot(0, 0)?,
            destination: slot(1, 0)?,
            protocol: slot(2, 0)?,
            port: slot(2, 1)?,
            endpoint: slot(2, 2)?,
            endpoint_port: slot(3, 2)?,
        })
    }

    fn load(self, family: Family) -> [Expression; 4] {
        let length = u32::from(family.bits() / 8);
        let (source, destination) = match family {
            Family::V4 => (12, 16),
            Family::V6 => (8, 24),
        };
        let address = |offset, register| Expression::Payload { base: HeaderBase::Network, offset, length, register };
        [
            address(source, self.source),
            address(destination, self.destination),
            Expression::Meta { key: MetaKey::L4Proto, register: self.protocol },
            Expression::Payload { base: HeaderBase::Transport, offset: 2, length: 2, register: self.port },
        ]
    }
}

impl Pick {
    /// The chain's rules, in order.
    pub(super) fn rules(&self, layout: &Layout) -> Vec<Rule> {
        let Some(slots) = Slots::new(layout.family()) else { return Vec::new() };
        let mut rules: Vec<Rule> = match self.marks {
            Marks::Nothing => Vec::new(),
            Marks::Internal => layout.internal_mark().into_iter().collect(),
            Marks::Everything => vec![layout.mark()],
        };
        if let Some(secs) = self.affinity_secs {
            let timeout = Duration::from_secs(secs.into());
            rules.push(self.stay(layout, slots, timeout));
            rules.push(Pick::forget(layout, slots));
            rules.push(self.choose(layout, slots, Some(timeout)));
        }
        rules.push(self.choose(layout, slots, None));
        rules
    }

    /// A client that has an endpoint which is still there gets it again, for the whole time from now on.
    fn stay(&self, layout: &Layout, slots: Slots, timeout: Duration) -> Rule {
        let live = if self.is_local { SetName::LiveLocal } else { SetName::Live };
        let mut rule = slots.load(layout.family()).to_vec();
        rule.push(Expression::Lookup {
            set: Layout::reference(SetName::Affinity),
            source: slots.source,
            register: Some(slots.endpoint),
            inverted: false,
        });
        rule.push(Expression::Lookup {
            set: Layout::reference(live),
            source: slots.destination,
            register: None,
            inverted: false,
        });
        rule.push(remember(Layout::reference(SetName::Affinity), slots, timeout));
        rule.push(translate(layout, slots));
        Rule::new(rule)
    }

    /// What is known of a client that got here is out of date. The kernel does not replace the data of an element that
    /// exists (`nft_rhash_update`), so it goes first.
    fn forget(layout: &Layout, slots: Slots) -> Rule {
        let mut rule = slots.load(layout.family()).to_vec();
        // The kernel asks for data of a map although it only looks for the key (`nft_dynset_init`).
        let address = Value::from(layout.family().unspecified());
        rule.push(Expression::Immediate { register: slots.endpoint, value: address });
        rule.push(Expression::Immediate { register: slots.endpoint_port, value: Value::port(0) });
        rule.push(Expression::DynSet {
            set: Layout::reference(SetName::Affinity),
            op: DynSetOp::Delete,
            key: slots.source,
            data: Some(slots.endpoint),
            timeout: None,
            inverted: false,
            expressions: Vec::new(),
        });
        Rule::new(rule)
    }

    /// Any of the endpoints, each as likely as the others. With a time, the client is remembered; when there is no room for
    /// that, the rule ends and the next one chooses without.
    fn choose(&self, layout: &Layout, slots: Slots, timeout: Option<Duration>) -> Rule {
        let mut rule = slots.load(layout.family()).to_vec();
        if timeout.is_none() {
            rule.remove(0);
        }
        rule.push(Expression::Numgen {
            kind: NumgenKind::Random,
            modulus: self.count,
            offset: if self.is_local { FIRST_LOCAL_SLOT } else { 0 },
            register: slots.endpoint,
        });
        rule.push(Expression::Lookup {
            set: Layout::reference(SetName::Endpoints),
            source: slots.destination,
            register: Some(slots.endpoint),
            inverted: false,
        });
        if let Some(timeout) = timeout {
            rule.push(remember(Layout::reference(SetName::Affinity), slots, timeout));
        }
        rule.push(translate(layout, slots));
        Rule::new(rule)
    }
}

fn remember(set: SetReference, slots: Slots, timeout: Duration) -> Expression {
    Expression::DynSet {
        set,
        op: DynSetOp::Update,
        key: slots.source,
        data: Some(slots.endpoint),
        timeout: Some(timeout),
        inverted: false,
        expressions: Vec::new(),
    }
}

fn translate(layout: &Layout, slots: Slots) -> Expression {
    Expression::Nat {
        kind: NatKind::Destination,
        family: layout.nft_family(),
        address: Some(RegisterRange::from(slots.endpoint)),
        port: Some(RegisterRange::from(slots.endpoint_port)),
        flags: NatFlags::empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_a_chain_does() {
        let pick = Pick { marks: Marks::Nothing, is_local: false, count: 2, affinity_secs: None };
        assert_eq!(pick.to_string(), "pick-2");
        let pick = Pick { marks: Marks::Everything, is_local: true, count: 17, affinity_secs: Some(10_800) };
        assert_eq!(pick.to_string(), "external-17-local-sticky-10800");
    }
}
