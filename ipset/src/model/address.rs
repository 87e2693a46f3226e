//! Addresses, networks and ranges in one normal form.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::parse::unsigned;
use super::{Family, InvalidValue};

/// One address, a network, or a range of IPv4 addresses.
///
/// It is always in the kernel's normal form, so that different spellings are equal. Host bits are cleared, `/32` and
/// `/128` are dropped, a range that is exactly one network becomes that network, and a reversed range is swapped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpSpan(Repr);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Repr {
    V4 { first: u32, last: u32 },
    V6 { network: [u8; 16], prefix: u8 },
}

/// The bits of a network: `prefix` ones from the left.
fn mask4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32_u32.saturating_sub(prefix.into())).unwrap_or(0)
}

fn mask6(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128_u32.saturating_sub(prefix.into())).unwrap_or(0)
}

/// The prefix length of the range, if it is exactly one network.
fn prefix4(first: u32, last: u32) -> Option<u8> {
    let host = first ^ last;
    let is_network = host & host.wrapping_add(1) == 0 && first & host == 0;
    is_network.then(|| u8::try_from(host.leading_zeros()).unwrap_or(32))
}

impl IpSpan {
    /// A single address.
    pub fn host(address: IpAddr) -> Self {
        IpSpan(match address {
            IpAddr::V4(address) => Repr::V4 { first: address.to_bits(), last: address.to_bits() },
            IpAddr::V6(address) => Repr::V6 { network: address.octets(), prefix: 128 },
        })
    }

    /// A network. Bits behind the prefix are cleared.
    ///
    /// # Errors
    /// [`InvalidValue::Prefix`] above 32 or 128.
    pub fn network(address: IpAddr, prefix: u8) -> Result<Self, InvalidValue> {
        let max = if address.is_ipv4() { 32 } else { 128 };
        if prefix > max {
            return Err(InvalidValue::Prefix { address, prefix: prefix.into(), max });
        }
        Ok(Self::masked(address, prefix))
    }

    /// A network with a valid prefix length.
    fn masked(address: IpAddr, prefix: u8) -> Self {
        IpSpan(match address {
            IpAddr::V4(address) => {
                let mask = mask4(prefix);
                Repr::V4 { first: address.to_bits() & mask, last: address.to_bits() | !mask }
            }
            IpAddr::V6(address) => {
                Repr::V6 { network: (address.to_bits() & mask6(prefix)).to_be_bytes(), prefix: prefix.min(128) }
            }
        })
    }

    /// A range, both ends inclusive, in either order.
    ///
    /// # Errors
    /// [`InvalidValue::Range`] unless both are IPv4, because the kernel has no ranges of IPv6 addresses. A range of one
    /// IPv6 address is allowed.
    pub fn range(first: IpAddr, last: IpAddr) -> Result<Self, InvalidValue> {
        match (first, last) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                Ok(IpSpan(Repr::V4 { first: a.to_bits().min(b.to_bits()), last: a.to_bits().max(b.to_bits()) }))
            }
            _ if first == last => Ok(Self::host(first)),
            _ => Err(InvalidValue::Range { first, last }),
        }
    }

    /// The family.
    pub fn family(&self) -> Family {
        match self.0 {
            Repr::V4 { .. } => Family::Inet,
            Repr::V6 { .. } => Family::Inet6,
        }
    }

    /// The first address.
    pub fn first(&self) -> IpAddr {
        match self.0 {
            Repr::V4 { first, .. } => Ipv4Addr::from_bits(first).into(),
            Repr::V6 { network, .. } => Ipv6Addr::from(network).into(),
        }
    }

    /// The last address.
    pub fn last(&self) -> IpAddr {
        match self.0 {
            Repr::V4 { last, .. } => Ipv4Addr::from_bits(last).into(),
            Repr::V6 { network, prefix } => Ipv6Addr::from_bits(u128::from_be_bytes(network) | !mask6(prefix)).into(),
        }
    }

    /// The prefix length, if this is a single address or network.
    pub fn prefix(&self) -> Option<u8> {
        match self.0 {
            Repr::V4 { first, last } => prefix4(first, last),
            Repr::V6 { prefix, .. } => Some(prefix),
        }
    }

    /// Whether this is exactly one address.
    pub fn is_host(&self) -> bool {
        match self.0 {
            Repr::V4 { first, last } => first == last,
            Repr::V6 { prefix, .. } => prefix == 128,
        }
    }

    /// Whether the address lies inside.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.0, address) {
            (Repr::V4 { first, last }, IpAddr::V4(address)) => (first..=last).contains(&address.to_bits()),
            (Repr::V6 { network, prefix }, IpAddr::V6(address)) => {
                address.to_bits() & mask6(prefix) == u128::from_be_bytes(network)
            }
            _ => false,
        }
    }

    /// The range, extended down to the start of the network of this length that contains its first address.
    pub(crate) fn widened_down(self, prefix: u8) -> Self {
        match self.0 {
            Repr::V4 { first, last } => IpSpan(Repr::V4 { first: first & mask4(prefix), last }),
            Repr::V6 { .. } => self,
        }
    }

    /// Number of addresses in the span; `u128::MAX` for `::/0`.
    pub fn addresses(&self) -> u128 {
        match self.0 {
            Repr::V4 { first, last } => u128::from(last.saturating_sub(first)).saturating_add(1),
            Repr::V6 { prefix, .. } => (!mask6(prefix)).saturating_add(1),
        }
    }

    /// The networks into which the kernel splits the range, each as large as possible (net/netfilter/ipset/pfxlen.c,
    /// `ip_set_range_to_cidr`).
    pub fn networks(&self) -> Nets {
        Nets { rest: Some(*self) }
    }

    /// The two halves of a network of prefix length 0.
    pub(crate) fn halves(&self) -> Option<(IpSpan, IpSpan)> {
        match self.0 {
            Repr::V4 { first: 0, last: u32::MAX } => {
                let middle = 1 << 31;
                let lower = Repr::V4 { first: 0, last: middle - 1 };
                Some((IpSpan(lower), IpSpan(Repr::V4 { first: middle, last: u32::MAX })))
            }
            Repr::V6 { prefix: 0, .. } => {
                let half = |network: u128| IpSpan(Repr::V6 { network: network.to_be_bytes(), prefix: 1 });
                Some((half(0), half(1 << 127)))
            }
            _ => None,
        }
    }

    /// The network's address under a mask, as hash types with `netmask` or `bitmask` store it.
    pub(crate) fn and_mask(self, mask: IpAddr) -> Self {
        match (self.0, mask) {
            (Repr::V4 { first, .. }, IpAddr::V4(mask)) => {
                let prefix = self.prefix().unwrap_or(32);
                Self::masked(Ipv4Addr::from_bits(first & mask.to_bits()).into(), prefix)
            }
            (Repr::V6 { network, prefix }, IpAddr::V6(mask)) => {
                Self::masked(Ipv6Addr::from_bits(u128::from_be_bytes(network) & mask.to_bits()).into(), prefix)
            }
            _ => self,
        }
    }

    /// The `index`th address; the last one if `index` is beyond the end.
    pub(crate) fn nth_host(&self, index: u32) -> Self {
        match self.0 {
            Repr::V4 { first, last } => {
                let address = first.saturating_add(index).min(last);
                IpSpan(Repr::V4 { first: address, last: address })
            }
            Repr::V6 { network, prefix } => {
                let first = u128::from_be_bytes(network);
                let address = first.saturating_add(index.into()).min(first | !mask6(prefix));
                Self::host(Ipv6Addr::from_bits(address).into())
            }
        }
    }

    /// The mask for a netmask option of this prefix length.
    pub(crate) fn mask_of(family: Family, prefix: u8) -> IpAddr {
        match family {
            Family::Inet => Ipv4Addr::from_bits(mask4(prefix)).into(),
            Family::Inet6 => Ipv6Addr::from_bits(mask6(prefix)).into(),
        }
    }
}

impl From<IpAddr> for IpSpan {
    fn from(address: IpAddr) -> Self {
        IpSpan::host(address)
    }
}
impl From<Ipv4Addr> for IpSpan {
    fn from(address: Ipv4Addr) -> Self {
        IpSpan::host(address.into())
    }
}
impl From<Ipv6Addr> for IpSpan {
    fn from(address: Ipv6Addr) -> Self {
        IpSpan::host(address.into())
    }
}

impl fmt::Display for IpSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", AsTool(self.first()))?;
        match self.prefix() {
            _ if self.is_host() => Ok(()),
            Some(prefix) => write!(f, "/{prefix}"),
            None => write!(f, "-{}", self.last()),
        }
    }
}

/// An address in the notation of `ipset save`, which is that of glibc's `inet_ntop`: `::1.2.3.4`, where std has
/// `::102:304`.
pub(crate) struct AsTool(pub(crate) IpAddr);

impl fmt::Display for AsTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V6(address) => match (address.to_bits(), u32::try_from(address.to_bits())) {
                (0x1_0000.., Ok(last)) => write!(f, "::{}", Ipv4Addr::from_bits(last)),
                _ => address.fmt(f),
            },
            IpAddr::V4(address) => address.fmt(f),
        }
    }
}

impl FromStr for IpSpan {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let invalid = || InvalidValue::Address(text.to_owned());
        let address = |part: &str| part.parse::<IpAddr>().map_err(|_not_an_address| invalid());
        if let Some((base, prefix)) = text.split_once('/') {
            let base = address(base)?;
            let prefix = unsigned(prefix).and_then(|prefix| u32::try_from(prefix).ok()).ok_or_else(invalid)?;
            let max = if base.is_ipv4() { 32 } else { 128 };
            let fits =
                u8::try_from(prefix).map_err(|_too_large| InvalidValue::Prefix { address: base, prefix, max })?;
            return IpSpan::network(base, fits);
        }
        if let Some((first, last)) = text.split_once('-') {
            return IpSpan::range(address(first)?, address(last)?);
        }
        address(text).map(IpSpan::host)
    }
}

/// The networks of a span; see [`IpSpan::networks`].
#[derive(Clone, Debug)]
pub struct Nets {
    rest: Option<IpSpan>,
}

impl Iterator for Nets {
    type Item = IpSpan;

    fn next(&mut self) -> Option<IpSpan> {
        let span = self.rest.take()?;
        let Repr::V4 { first, last } = span.0 else {
            return Some(span);
        };
        // The largest network that starts here, is aligned here, and ends inside.
        let aligned = first.trailing_zeros();
        let room = u64::from(last.saturating_sub(first)).saturating_add(1).ilog2();
        let host_bits = aligned.min(room);
        let size = 1_u64.checked_shl(host_bits).unwrap_or(u64::MAX);
        let end = u32::try_from(u64::from(first).saturating_add(size).saturating_sub(1)).unwrap_or(u32::MAX);
        if end < last {
            self.rest = Some(IpSpan(Repr::V4 { first: end.saturating_add(1), last }));
        }
        Some(IpSpan(Repr::V4 { first, last: end }))
    }
}
