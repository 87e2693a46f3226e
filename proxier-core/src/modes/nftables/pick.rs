//! Chains that Frontends share: those that select among endpoints, and those of slots for session affinity.
//!
//! ```text
//!  chain pick-4 {                                         for 1 to 4 endpoints, in the slots from 0
//!    dnat to … numgen random mod 4 map @endpoints
//!    dnat to … numgen random mod 3 map @endpoints         the first draw met a slot without an endpoint
//!    dnat to … numgen random mod 2 map @endpoints
//!    dnat to … numgen random mod 1 map @endpoints
//!  }
//! ```
//!
//! A draw that finds an endpoint finds each with the same probability, and the draw among exactly as many as there are
//! always does. So one chain is exactly fair to several numbers of endpoints, and adding or removing an endpoint
//! changes only an element of the endpoint map.
//!
//! For a new verdict in a map, the kernel checks the whole table again, every verdict of it (`nft_table_validate`). So
//! for the most common chains, Frontends are elements of a set without verdicts that has the chain's name. One rule
//! jumps from the set to the chain ([`Pick::has_set`]). Only the other Frontends are elements of the verdict map.
//!
//! ```text
//!  chain internal-2-sticky-10800-of-2 {
//!    ip saddr . ip daddr . … th dport @clients-0 jump slot-0-sticky-10800     a client that is known
//!    ip saddr . ip daddr . … th dport @clients-1 jump slot-1-sticky-10800
//!    ip daddr . … th dport . jhash … mod 2 offset 0       @draws goto slot-0-sticky-10800   a new one
//!    ip daddr . … th dport . jhash … mod 2 offset 65536   @draws goto slot-1-sticky-10800
//!  }
//!  chain slot-1-sticky-10800 {
//!    update @clients-1 { … timeout 3h } dnat to … . 1 map @endpoints
//!    dnat to … . 1 map @endpoints                         no room to remember one more client
//!    delete @clients-1 { … }                    there is no endpoint in the slot: on with the next rule
//!  }
//! ```
//!
//! A map from clients to slots would need fewer rules, but `nft` cannot print rules that look up what they have found
//! in a map. A map from draws to chains could replace the rules for new clients, but older kernels walk a verdict map
//! once for each Frontend whenever they check the table.
//!
//! The lowest slot that remembers a client and has an endpoint decides. A lower slot starts to remember it only if no
//! other does (first connections at the same instant may each get their own).

use std::fmt;

/// Which connections a chain marks for masquerading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Marks {
    Nothing,
    /// Connections to a cluster IP that the configuration requires to be masqueraded.
    Internal,
    Everything,
}

impl Marks {
    fn name(self) -> &'static str {
        match self {
            Marks::Nothing => "pick",
            Marks::Internal => "internal",
            Marks::Everything => "external",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Affinity {
    pub secs: u32,
    /// Number of slots in which clients are searched for.
    pub width: u32,
}

/// How a chain selects a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Draw {
    /// At random for each connection.
    Random,
    /// The slot that the client had before, otherwise at random.
    Sticky(Affinity),
    /// By a hash of the client's address, and of its port with `port`.
    Client { port: bool },
}

/// A chain that selects an endpoint. Its name describes it: `pick-2`, `internal-3-local`,
/// `external-2-sticky-10800-of-4`, `internal-251-by-client`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pick {
    pub marks: Marks,
    /// Whether it selects only among the endpoints on this node.
    pub is_local: bool,
    /// Largest number of slots among which it selects, never 0. At random: a multiple of [`Pick::STEP`], down to
    /// [`Pick::fewest`]. Otherwise exactly this number.
    pub most: u32,
    pub draw: Draw,
}

/// The set of clients that stay with the endpoint in a slot, `clients-3`, for any timeout. The kernel preallocates some
/// of these sets, so one for each timeout would take too much memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Clients {
    pub number: u32,
    pub is_local: bool,
}

/// A chain for the endpoint in a slot that remembers the client for this time: `slot-3-sticky-10800`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub clients: Clients,
    pub secs: u32,
}

/// A chain for policy `Local` that sends a connection to one of two chains by its source. `pick-3-or-pick-1-local`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Split {
    /// The chain for the node and its pods, which may use any endpoint.
    pub anywhere: Option<Pick>,
    /// The chain for all other clients.
    pub only_here: Option<Pick>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SharedChain {
    Pick(Pick),
    Split(Split),
    Slot(Slot),
}

/// The slot of the first endpoint on this node; slots of all endpoints start at 0. No Service has this many endpoints.
pub(super) const FIRST_LOCAL_SLOT: u32 = 1 << 24;

/// Seed of the number that selects for a new client. Constant, otherwise each start would write all rules again.
pub(super) const SEED: u32 = 0x70_72_6f_78;

const BY_CLIENT: &str = "-by-client";
const BY_CLIENT_PORT: &str = "-by-client-port";

/// Largest number of endpoint counts that share a chain: two steps, so that a count that goes up and down by less keeps
/// its chain.
const SHARING: u32 = 2 * Pick::STEP;

fn fewest(most: u32) -> u32 {
    most.saturating_sub(SHARING).saturating_add(1)
}

/// Capacity of the chain for this number of endpoints: of the chain in use, if that is large enough, otherwise the
/// smallest that is.
pub(super) fn most_for(count: u32, in_use: Option<u32>) -> u32 {
    let does = |most: &u32| most.is_multiple_of(Pick::STEP) && (fewest(*most)..=*most).contains(&count);
    in_use.filter(does).or_else(|| count.checked_next_multiple_of(Pick::STEP)).unwrap_or(u32::MAX)
}

/// The capacity of a chain with this name, for the endpoints on this node or for all; `None` if the name does not
/// contain it.
pub(super) fn most_of(name: &str, is_local: bool) -> Option<u32> {
    let picks = name.split("-or-").filter(|pick| !pick.contains("-sticky-") && !pick.contains("-by-"));
    let (_, number) = picks.map(|pick| (pick.ends_with("-local"), pick)).find(|(local, _)| *local == is_local)?;
    number.trim_end_matches("-local").rsplit_once('-')?.1.parse().ok()
}

pub(super) fn first(is_local: bool) -> u32 {
    if is_local { FIRST_LOCAL_SLOT } else { 0 }
}

/// The key of a slot in the set of draws, without the draw: its 16 low bits.
pub(super) fn tickets(is_local: bool, slot: u32) -> u32 {
    u32::from(is_local) << 31 | (slot & 0x7fff) << 16
}

/// The element in the set of draws with which this draw selects this slot.
pub(super) fn ticket(is_local: bool, slot: u32, draw: u32) -> u32 {
    tickets(is_local, slot) | (draw & 0xffff)
}

pub(super) fn slot_number(is_local: bool, slot: u32) -> u32 {
    slot.saturating_add(first(is_local))
}

pub(super) fn slot_at(place: u32) -> (bool, u32) {
    place.checked_sub(FIRST_LOCAL_SLOT).map_or((false, place), |slot| (true, slot))
}

impl fmt::Display for Pick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.marks.name(), self.most)?;
        f.write_str(if self.is_local { "-local" } else { "" })?;
        match self.draw {
            Draw::Random => Ok(()),
            Draw::Sticky(Affinity { secs, width }) => write!(f, "-sticky-{secs}-of-{width}"),
            Draw::Client { port } => f.write_str(if port { BY_CLIENT_PORT } else { BY_CLIENT }),
        }
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |pick: &Option<Pick>| pick.map_or_else(|| "none".to_owned(), |pick| pick.to_string());
        write!(f, "{}-or-{}", name(&self.anywhere), name(&self.only_here))
    }
}

impl fmt::Display for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "clients-{}{}", self.number, if self.is_local { "-local" } else { "" })
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Clients { number, is_local } = self.clients;
        let local = if is_local { "-local" } else { "" };
        write!(f, "slot-{number}{local}-sticky-{}", self.secs)
    }
}

impl fmt::Display for SharedChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SharedChain::Pick(pick) => pick.fmt(f),
            SharedChain::Split(split) => split.fmt(f),
            SharedChain::Slot(slot) => slot.fmt(f),
        }
    }
}

impl SharedChain {
    pub(super) fn clients(&self) -> Option<Clients> {
        match self {
            SharedChain::Slot(slot) => Some(slot.clients),
            SharedChain::Pick(_) | SharedChain::Split(_) => None,
        }
    }

    /// Number of slots of session affinity that it has rules for.
    pub(super) fn slot_rules(&self) -> u32 {
        match self {
            SharedChain::Slot(_) => 1,
            SharedChain::Pick(Pick { draw: Draw::Sticky(Affinity { width, .. }), .. }) => *width,
            SharedChain::Pick(_) | SharedChain::Split(_) => 0,
        }
    }

    pub(super) fn entered_by_set(&self) -> Option<Pick> {
        match self {
            SharedChain::Pick(pick) => Some(*pick).filter(Pick::has_set),
            SharedChain::Split(_) | SharedChain::Slot(_) => None,
        }
    }
}

impl Pick {
    /// Capacities of chains without affinity are multiples of this.
    pub(crate) const STEP: u32 = 4;

    /// Largest capacity of chains with a set. Each set costs a new connection a lookup.
    const MOST_IN_SET: u32 = 4 * Pick::STEP;

    /// Whether the Frontends whose connections go to this chain are in a set with its name.
    pub(crate) fn has_set(&self) -> bool {
        let is_usual = match self.draw {
            Draw::Random => self.most <= Pick::MOST_IN_SET,
            Draw::Sticky(_) => false,
            // Tables have few sizes.
            Draw::Client { .. } => true,
        };
        is_usual && self.marks != Marks::Nothing
    }

    /// The chain with this name, if it has no affinity.
    pub(super) fn by_name(name: &str) -> Option<Self> {
        let mut by_client = [(BY_CLIENT_PORT, true), (BY_CLIENT, false)].into_iter();
        let by_client = by_client.find_map(|(suffix, port)| Some((name.strip_suffix(suffix)?, Draw::Client { port })));
        let (name, draw) = by_client.unwrap_or((name, Draw::Random));
        let (name, is_local) = name.strip_suffix("-local").map_or((name, false), |name| (name, true));
        let (marks, most) = name.split_once('-')?;
        let marks = [Marks::Nothing, Marks::Internal, Marks::Everything].into_iter().find(|of| of.name() == marks)?;
        Some(Pick { marks, is_local, most: most.parse().ok()?, draw })
    }

    /// The smallest number of endpoints for which it is fair.
    pub(crate) fn fewest(&self) -> u32 {
        if self.draw == Draw::Random { fewest(self.most) } else { self.most }
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> + use<> {
        let is_local = self.is_local;
        let Affinity { secs, width } = match self.draw {
            Draw::Sticky(affinity) => affinity,
            Draw::Random | Draw::Client { .. } => Affinity { secs: 0, width: 0 },
        };
        (0..width).map(move |number| Slot { clients: Clients { number, is_local }, secs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_recognized_by_its_name() {
        for (name, has_set) in [
            ("internal-4", true),
            ("external-16-local", true),
            ("internal-20", false),
            ("pick-4", false),
            ("internal-251-by-client", true),
            ("external-1021-local-by-client-port", true),
            ("pick-251-by-client", false),
        ] {
            let pick = Pick::by_name(name).unwrap();
            assert_eq!((pick.to_string().as_str(), pick.has_set()), (name, has_set));
        }
        for other in
            ["internal-2-sticky-600-of-2", "slot-3-sticky-10800", "pick-4-or-none", "none-or-pick-4-local", "services"]
        {
            assert_eq!(Pick::by_name(other), None, "{other}");
        }
    }

    #[test]
    fn a_chain_is_kept_while_it_is_fair() {
        assert_eq!([1, 3, 4, 5, 8, 9].map(|count| most_for(count, None)), [4, 4, 4, 8, 8, 12]);
        assert_eq!([1, 4, 5, 8, 9].map(|count| most_for(count, Some(8))), [8, 8, 8, 8, 12]);
        assert_eq!([4, 5, 12, 13].map(|count| most_for(count, Some(12))), [4, 12, 12, 16]);
        // Not one of these chains.
        assert_eq!([7, 0, u32::MAX].map(|most| most_for(2, Some(most))), [4; 3]);
        assert_eq!(most_for(u32::MAX, None), u32::MAX);
    }

    /// The probability of each slot, with rules applied from first to last: a draw that finds no endpoint continues to
    /// the next rule.
    #[test]
    fn each_endpoint_is_as_likely_as_the_others() {
        for most in (1..=16).map(|steps| steps * Pick::STEP) {
            for count in fewest(most)..=most {
                let mut each = 0.0;
                let mut still = 1.0;
                for modulus in (fewest(most)..=most).rev() {
                    let met = f64::from(count.min(modulus)) / f64::from(modulus);
                    // With fewer than there are, the draw would leave out the last.
                    assert!(modulus >= count || still <= 0.0, "{most}: {count} by {modulus}");
                    each += still * met / f64::from(count);
                    still *= 1.0 - met;
                }
                assert!(still <= 0.0 && (each * f64::from(count) - 1.0).abs() < 1e-12, "{most}: {count}");
            }
        }
    }

    #[test]
    fn no_two_draws_have_the_same_ticket() {
        use super::super::slots::MOST_STICKY;
        let last = MOST_STICKY - 1;
        assert_ne!(ticket(false, 0, last), ticket(false, 1, 0));
        assert_ne!(ticket(false, last, last), ticket(true, 0, 0));
        assert_eq!(ticket(true, last, 7), tickets(true, last) + 7);
        assert_eq!(slot_at(slot_number(true, last)), (true, last));
        assert_eq!(slot_at(slot_number(false, last)), (false, last));
    }
}
