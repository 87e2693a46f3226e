//! Test packets. Each has a number of its own, by which it and the answers to it are recognised.
//!
//! The number is the source port, so answers have it. It is also in the part of the packet that is never rewritten
//! (sequence number, payload or tag). So the packet is recognised where it arrives, with any addresses and ports.

use std::net::{IpAddr, SocketAddr};

use testkit::witness::Transport;

use super::wire::{ACK, ICMP, ICMP_V6, Ip, PSH, RST, SCTP, SYN, TCP, UDP, opening, word16, word32};

/// The upper half of the mark; the lower half is the number.
const MARK: u32 = 0xf10e_0000;

/// Numbers begin here: masquerading keeps ports below 1024 below 1024.
pub(crate) const FIRST: u16 = 1024;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) number: u16,
    pub(crate) protocol: Transport,
    pub(crate) source: IpAddr,
    pub(crate) to: SocketAddr,
}

impl Packet {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        opening(self.protocol, self.from(), self.to, mark(self.number))
    }

    pub(crate) fn from(&self) -> SocketAddr {
        SocketAddr::new(self.source, self.number)
    }
}

/// The part that is never rewritten in the packet with this number.
pub(crate) fn mark(number: u16) -> u32 {
    MARK | u32::from(number)
}

/// A packet or an answer to it, somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    /// The number of the packet.
    pub(crate) number: u16,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The packet itself, or the first data of its connection.
    Packet { from: SocketAddr, to: SocketAddr },
    /// A SYN without a mark. Its number is the source port, so it may be a foreign packet if that port was used by chance.
    Syn { from: SocketAddr, to: SocketAddr },
    /// A refusal: ICMP port unreachable, RST or ABORT.
    Refusal,
    /// Another ICMP error, with type and code.
    Error(u8, u8),
}

/// Reads an IP packet; `None` unless it is a test packet or an answer to one.
pub(crate) fn recognize(bytes: &[u8]) -> Option<Sighting> {
    let ip = Ip::parse(bytes)?;
    match ip.protocol {
        ICMP | ICMP_V6 => icmp(ip),
        protocol => transport(protocol, ip.payload, ip.source, ip.to),
    }
}

/// Reads a TCP segment, UDP datagram or SCTP packet; `None` unless it is a test packet or an answer to one.
pub(crate) fn transport(protocol: u8, segment: &[u8], source: IpAddr, to: IpAddr) -> Option<Sighting> {
    let from = SocketAddr::new(source, word16(segment, 0)?);
    let to = SocketAddr::new(to, word16(segment, 2)?);
    let refusal = Some(Sighting { number: to.port(), what: What::Refusal });
    // This byte has the flags of TCP, or the type of SCTP's first chunk: INIT, ABORT.
    let mark = match (protocol, segment.get(if protocol == SCTP { 12 } else { 13 })) {
        (TCP, Some(flags)) if flags & RST != 0 => return refusal,
        (TCP, Some(&SYN)) => {
            let mark = word32(segment, 4)?;
            if mark & 0xffff_0000 != MARK {
                return Some(Sighting { number: from.port(), what: What::Syn { from, to } });
            }
            mark
        }
        (TCP, Some(flags)) if *flags == ACK | PSH => word32(segment, usize::from(segment[12] >> 4) * 4)?,
        (UDP, _) => word32(segment, 8)?,
        (SCTP, Some(1)) => word32(segment, 16)?,
        (SCTP, Some(6)) => return refusal,
        _ => return None,
    };
    let number = u16::try_from(mark.checked_sub(MARK)?).ok()?;
    Some(Sighting { number, what: What::Packet { from, to } })
}

/// An error quotes the packet with its source port, as it was sent.
fn icmp(ip: Ip<'_>) -> Option<Sighting> {
    let (kind, code) = (*ip.payload.first()?, *ip.payload.get(1)?);
    let quoted = match (ip.protocol, kind) {
        (ICMP, 3 | 11 | 12) | (ICMP_V6, 1..=4) => Ip::parse(ip.payload.get(8..)?)?,
        _ => return None,
    };
    let refused = matches!((ip.protocol, kind, code), (ICMP, 3, 3) | (ICMP_V6, 1, 4));
    let what = if refused { What::Refusal } else { What::Error(kind, code) };
    Some(Sighting { number: word16(quoted.payload, 0)?, what })
}
