//! The steps of traced packets through the rules.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_batch::{Attrs, Be16, Be32, Be64, WireError};

use crate::attrs::TraceAttr;
use crate::builder::L4Protocol;
use crate::model::{ChainKey, Family, Verdict};
use crate::wire::{get_key, get_name, get_verdict, split};

/// How a step of a traced packet ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum TraceStep {
    /// A rule matched.
    Rule {
        /// The rule's handle, as in [`ObservedRule::handle`](crate::ObservedRule::handle).
        handle: u64,
        /// Its verdict; [`Verdict::Continue`] if it has none.
        verdict: Verdict,
    },
    /// The end of a chain's rules; evaluation continues in the caller or with the policy. On newer kernels nft does not
    /// print those with [`Verdict::Continue`].
    Return(Verdict),
    /// The end of a base chain.
    Policy(Verdict),
    /// A step that this crate does not know (`NFT_TRACETYPE_*`).
    Other(u32),
}

/// A step through the rules of a packet for which a rule has set `meta nftrace`
/// ([`RuleBuilder::trace`](crate::RuleBuilder::trace)).
///
/// Headers are truncated: at most 20 bytes of the link, 40 of the network and 20 of the transport header. They only
/// come with a packet's first step in each base chain (`nft_trace_notify` in the kernel's nf_tables_trace.c).
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Trace {
    /// Number of the packet, equal in all its steps.
    pub id: u32,
    /// Chain in which the packet is.
    pub chain: ChainKey,
    /// How the step ended.
    pub step: TraceStep,
    /// Family of the packet, in tables that see several.
    pub family: Option<Family>,
    /// Index of the input device.
    pub iif: Option<u32>,
    /// Index of the output device.
    pub oif: Option<u32>,
    /// Hardware type of the input device (`ARPHRD_*`).
    pub iif_type: Option<u16>,
    /// Hardware type of the output device (`ARPHRD_*`).
    pub oif_type: Option<u16>,
    /// Packet mark, unless it is 0.
    pub mark: Option<u32>,
    /// Link header.
    pub link_header: Vec<u8>,
    /// Network header.
    pub network_header: Vec<u8>,
    /// Transport header.
    pub transport_header: Vec<u8>,
}

impl Trace {
    /// Source and destination, if the network header is included.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        let bytes = &self.network_header;
        match bytes.first()? >> 4 {
            4 => {
                let of = |at| Some(Ipv4Addr::from(*bytes.get(at..)?.first_chunk::<4>()?).into());
                Some((of(12)?, of(16)?))
            }
            6 => {
                let of = |at| Some(Ipv6Addr::from(*bytes.get(at..)?.first_chunk::<16>()?).into());
                Some((of(8)?, of(24)?))
            }
            _ => None,
        }
    }

    /// Transport protocol, if the network header is included. For IPv6 this may be the first extension header.
    pub fn protocol(&self) -> Option<L4Protocol> {
        let place = match self.network_header.first()? >> 4 {
            4 => 9,
            6 => 6,
            _ => return None,
        };
        self.network_header.get(place).map(|number| L4Protocol(*number))
    }

    /// Source and destination port of TCP, UDP, SCTP and similar protocols, if the headers are included.
    pub fn ports(&self) -> Option<(u16, u16)> {
        let has_ports = matches!(self.protocol()?.0, 6 | 17 | 33 | 132 | 136);
        let of = |at| Some(u16::from_be_bytes(*self.transport_header.get(at..)?.first_chunk::<2>()?));
        has_ports.then(|| Some((of(0)?, of(2)?)))?
    }
}

/// The step as in `nft monitor trace`, with the rule's handle instead of its text.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "trace id {:08x} {} ", self.id, self.chain)?;
        match &self.step {
            TraceStep::Rule { handle, verdict } => write!(f, "rule handle {handle} (verdict {verdict})"),
            TraceStep::Return(verdict) => write!(f, "verdict {verdict}"),
            TraceStep::Policy(verdict) => write!(f, "policy {verdict}"),
            TraceStep::Other(number) => write!(f, "step {number}"),
        }
    }
}

pub(crate) fn get_trace(payload: &[u8]) -> Result<Trace, WireError> {
    let (family, attributes) = split(payload)?;
    let (mut table, mut chain, mut kind, mut handle, mut verdict, mut policy) = (None, None, 0, None, None, None);
    let (mut id, mut of_packet, mut iif, mut oif, mut mark) = (0, None, None, None, None);
    let (mut iif_type, mut oif_type) = (None, None);
    let (mut link_header, mut network_header, mut transport_header) = (Vec::new(), Vec::new(), Vec::new());
    for attr in Attrs::<TraceAttr<'_>>::new(attributes).iter() {
        match attr? {
            TraceAttr::Table(text) => table = Some(get_name(text)),
            TraceAttr::Chain(text) => chain = Some(get_name(text)),
            TraceAttr::RuleHandle(Be64(number)) => handle = Some(number),
            TraceAttr::Type(Be32(number)) => kind = number,
            TraceAttr::Verdict(attrs) => verdict = get_verdict(attrs)?,
            TraceAttr::Id(Be32(number)) => id = number,
            TraceAttr::LlHeader(bytes) => link_header = bytes.to_vec(),
            TraceAttr::NetworkHeader(bytes) => network_header = bytes.to_vec(),
            TraceAttr::TransportHeader(bytes) => transport_header = bytes.to_vec(),
            TraceAttr::Iif(Be32(index)) => iif = Some(index),
            TraceAttr::Iiftype(Be16(number)) => iif_type = Some(number),
            TraceAttr::Oif(Be32(index)) => oif = Some(index),
            TraceAttr::Oiftype(Be16(number)) => oif_type = Some(number),
            TraceAttr::Mark(Be32(number)) => mark = Some(number),
            TraceAttr::Nfproto(Be32(number)) => of_packet = u8::try_from(number).ok().map(Family::from_number),
            TraceAttr::Policy(Be32(number)) => policy = Some(if number == 0 { Verdict::Drop } else { Verdict::Accept }),
            TraceAttr::Pad(_) | TraceAttr::Unknown(_) => {}
        }
    }
    let verdict = || verdict.clone().unwrap_or(Verdict::Continue);
    // NFT_TRACETYPE_*
    let step = match (kind, handle) {
        (1, _) => TraceStep::Policy(policy.unwrap_or_else(verdict)),
        // After the last rule the kernel reports a rule without a number (`nf_trace_fill_rule_info`).
        (2, _) | (3, None) => TraceStep::Return(verdict()),
        (3, Some(handle)) => TraceStep::Rule { handle, verdict: verdict() },
        (other, _) => TraceStep::Other(other),
    };
    let (table, name) = get_key(family, (table, "NFTA_TRACE_TABLE"), (chain, "NFTA_TRACE_CHAIN"))?;
    Ok(Trace {
        id,
        chain: ChainKey { table, name },
        step,
        family: of_packet,
        iif,
        oif,
        iif_type,
        oif_type,
        mark,
        link_header,
        network_header,
        transport_header,
    })
}
