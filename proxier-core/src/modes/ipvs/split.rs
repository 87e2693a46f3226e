//! Virtual servers with firewall marks: two lists of endpoints behind one address
//! ([`Config::splits_local`](crate::config::Config::splits_local)).
//!
//! ```text
//!  client outside ──▶ input 97  mark ──▶ IPVS: virtual server of the mark      local endpoints, source kept
//!  pod, this node ─────────────────────▶ IPVS: virtual server of the address   all endpoints, masqueraded
//! ```
//!
//! IPVS first searches for a virtual server with the packet's mark, then for one with its address and port. A Frontend
//! with external policy `Local` has both. The nf_tables table ([`guards`](super::guards)) gives packets of outside
//! clients the Frontend's mark just before IPVS sees them, and removes it just after.
//!
//! * The table has two sets for this. [`SetKind::SplitMark`] records which mark belongs to which Frontend. It is
//!   written before the mark's virtual server and deleted after it, so it identifies this proxy's virtual servers with
//!   marks, also after a crash. [`SetKind::LocalSplit`] lists the Frontends whose packets get their marks. An entry is
//!   added once the mark's virtual server has its real servers, and deleted before these drain.
//! * A mark is a number derived from the address, protocol and port. One that another Frontend, or another program's
//!   virtual server, already has is skipped; marks recorded in the kernel take precedence ([`Marks::settle`]).
//! * Another program may delete the table (`nft flush ruleset`). A running process has kept its records. A starting
//!   process, and a cleanup, recognize marks by their numbers: those of Frontends whose virtual servers of addresses
//!   exist, where this proxy's addresses or routes are bound.
//! * A *persistent* virtual server with a mark does not translate the port (`ip_vs_sched_persist` has no port to
//!   compare with), so a Frontend with session affinity is not split.
//! * When a Frontend stops being split, its mark's virtual server stays with weights of 0 until its connections end.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;

use ipset::{Element, IpSpan, Ports};
use ipvs::VirtualServerKey;

use crate::config::MarkRange;
use crate::net::{Family, FrontendKey};
pub(super) use crate::ports::recorded;
use crate::ports::{SetKey, SetKind, frontend_at, place_of};

/// A Frontend keeps its mark for as long as the kernel has it, split or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    range: MarkRange,
    pub(super) of: BTreeMap<FrontendKey, NonZeroU32>,
    places: BTreeMap<VirtualServerKey, FrontendKey>,
    /// Other programs' virtual servers with marks, as last seen.
    others: BTreeSet<VirtualServerKey>,
}

pub(super) fn key(family: Family, mark: NonZeroU32) -> VirtualServerKey {
    VirtualServerKey::Fwmark { family: family.into(), mark }
}

impl Marks {
    pub(super) fn new(range: MarkRange) -> Self {
        Marks { range, of: BTreeMap::new(), places: BTreeMap::new(), others: BTreeSet::new() }
    }

    pub(super) fn server(&self, frontend: &FrontendKey) -> Option<VirtualServerKey> {
        self.of.get(frontend).map(|mark| key(frontend.family(), *mark))
    }

    pub(super) fn frontend_key(&self, server: &VirtualServerKey) -> Option<FrontendKey> {
        self.places.get(server).copied()
    }

    /// All virtual servers with marks, sorted, with their Frontends.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&VirtualServerKey, &FrontendKey)> {
        self.places.iter()
    }

    /// Gives a Frontend a mark, if it has none and one is free.
    pub(super) fn give(&mut self, frontend: FrontendKey) {
        if self.of.contains_key(&frontend) {
            return;
        }
        let free = self.candidates(&frontend).find(|mark| self.is_free(&key(frontend.family(), *mark)));
        if let Some(mark) = free {
            self.insert(frontend, mark);
        }
    }

    /// The marks that a Frontend can have, the first choice first.
    pub(super) fn candidates(&self, frontend: &FrontendKey) -> impl Iterator<Item = NonZeroU32> + use<> {
        let (range, first) = (self.range, hash(frontend));
        let count = range.len();
        (0..count).map(move |step| range.nth(first.wrapping_add(step) & count.wrapping_sub(1)))
    }

    pub(super) fn is_free(&self, server: &VirtualServerKey) -> bool {
        !self.places.contains_key(server) && !self.others.contains(server)
    }

    pub(super) fn insert(&mut self, frontend: FrontendKey, mark: NonZeroU32) {
        self.of.insert(frontend, mark);
        self.places.insert(key(frontend.family(), mark), frontend);
    }

    /// Takes over the kernel's state: recorded marks of Frontends, and other programs' virtual servers. Frontends of
    /// `split` without a mark there keep theirs if it is free, or get one; all others are dropped.
    pub(super) fn settle(
        &mut self,
        recorded: impl IntoIterator<Item = (FrontendKey, NonZeroU32)>,
        others: BTreeSet<VirtualServerKey>,
        split: &[FrontendKey],
    ) {
        let before = std::mem::replace(self, Marks { others, ..Marks::new(self.range) });
        for (frontend, mark) in recorded {
            if self.range.contains(mark.get()) && self.is_free(&key(frontend.family(), mark)) {
                self.insert(frontend, mark);
            }
        }
        for frontend in split {
            let kept = before.of.get(frontend).filter(|mark| self.is_free(&key(frontend.family(), **mark)));
            if let Some(mark) = kept.filter(|_| !self.of.contains_key(frontend)) {
                self.insert(*frontend, *mark);
            }
        }
        for frontend in split {
            self.give(*frontend);
        }
    }
}

/// FNV-1a: the same number for the same Frontend on every machine and in every version.
fn hash(frontend: &FrontendKey) -> u32 {
    let protocol = ipvs::model::Protocol::from(frontend.protocol).number();
    let bytes = match frontend.address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let all = bytes.into_iter().chain([protocol]).chain(frontend.port.to_be_bytes());
    all.fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

pub(super) fn active_entry(frontend: &FrontendKey) -> (SetKey, Element) {
    let (host, ports) = place_of(frontend);
    (SetKey::new(frontend.family(), SetKind::LocalSplit), Element::IpPort(host, ports))
}

/// The Frontend whose packets get a mark by this entry.
pub(super) fn frontend_of(element: &Element) -> Option<FrontendKey> {
    let Element::IpPort(host, ports) = element else { return None };
    frontend_at(host, *ports)
}

/// The entry that records a Frontend's mark. No ipset has such entries, so the mark is in the place of the source of
/// other sets' entries, as an IPv4 address.
pub(super) fn record(frontend: &FrontendKey, mark: NonZeroU32) -> (SetKey, Element) {
    let (host, ports) = place_of(frontend);
    (SetKey::new(frontend.family(), SetKind::SplitMark), with_mark(host, ports, mark.get()))
}

pub(super) fn with_mark(host: IpSpan, ports: Ports, mark: u32) -> Element {
    Element::IpPortIp(host, ports, IpSpan::host(Ipv4Addr::from_bits(mark).into()))
}

pub(super) fn server_of(element: &Element) -> Option<VirtualServerKey> {
    marked(element).map(|(_, server)| server)
}

/// The Frontend of a recorded mark, and the virtual server of the mark.
pub(super) fn marked(element: &Element) -> Option<(FrontendKey, VirtualServerKey)> {
    recorded(element).map(|(frontend, mark)| (frontend, key(frontend.family(), mark)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Protocol;

    fn frontend(number: u16) -> FrontendKey {
        FrontendKey::new(Protocol::Tcp, [203, 0, 113, 1].into(), number)
    }

    fn small() -> Marks {
        Marks::new(MarkRange::new(0x100, 0xffff_ff00).unwrap())
    }

    #[test]
    fn every_frontend_has_a_different_mark_until_none_is_left() {
        let mut marks = small();
        for number in 0..300 {
            marks.give(frontend(number));
        }
        let all: BTreeSet<VirtualServerKey> = (0..300).filter_map(|number| marks.server(&frontend(number))).collect();
        assert_eq!(all.len(), 256);
        assert!(all.iter().all(|server| marks.server(&marks.frontend_key(server).unwrap()) == Some(*server)));
        // The other family has its own marks.
        let v6 = FrontendKey::new(Protocol::Udp, "2001:db8::1".parse().unwrap(), 53);
        marks.give(v6);
        assert!(matches!(marks.server(&v6), Some(VirtualServerKey::Fwmark { family: ipvs::model::Family::V6, .. })));
    }

    #[test]
    fn marks_recorded_in_the_kernel_take_precedence() {
        let mut marks = small();
        let wanted: Vec<FrontendKey> = (0..100).map(frontend).collect();
        for frontend in &wanted {
            marks.give(*frontend);
        }
        let (first, second) = (marks.server(&frontend(1)).unwrap(), marks.server(&frontend(2)).unwrap());
        let VirtualServerKey::Fwmark { mark: mark_of_first, .. } = first else { panic!("{first}") };
        let VirtualServerKey::Fwmark { mark: mark_of_second, .. } = second else { panic!("{second}") };
        let third = marks.server(&frontend(3)).unwrap();
        // The kernel has two of them swapped, an undesired one, and another program's that conflicts with a third.
        let recorded = [
            (frontend(1), mark_of_second),
            (frontend(2), mark_of_first),
            (frontend(500), NonZeroU32::new(0x17).unwrap()),
        ];
        marks.settle(recorded, BTreeSet::from([third]), &wanted);
        assert_eq!((marks.server(&frontend(1)), marks.server(&frontend(2))), (Some(second), Some(first)));
        assert_ne!(marks.server(&frontend(3)).unwrap(), third);
        assert_eq!(marks.server(&frontend(500)), None, "a mark outside of the range");
        let servers: BTreeSet<_> = wanted.iter().map(|frontend| marks.server(frontend).unwrap()).collect();
        assert_eq!(servers.len(), 100);
    }
}
