//! Bytes of packets by the names of what they are, which depend on the protocols that a rule has matched.

use super::header::{Bits, Place, Protocol, option_field, run_of_bits};
use super::rule::{Symbol, Writer};
use super::value::{Form, field_text};
use crate::expr::{HeaderBase, MetaKey, Register};
use crate::model::{DataType, Field};

impl Writer<'_> {
    /// Remembers the protocol that a match asks for.
    pub(super) fn follow(&mut self, symbol: &Symbol, value: &[u8]) {
        match (symbol.key, symbol.place, value) {
            (Some(MetaKey::NfProto), _, [2]) => self.network = Some(Protocol::Ip),
            (Some(MetaKey::NfProto), _, [10]) => self.network = Some(Protocol::Ip6),
            (Some(MetaKey::IifType), _, _) if value == 1_u16.to_ne_bytes() => self.link = Some(Protocol::Ether),
            (Some(MetaKey::L4Proto), _, [number]) => self.transport = Protocol::transport(*number),
            (Some(MetaKey::Protocol), _, _) => self.network = Protocol::network(value),
            (None, Some((Place::Header(HeaderBase::Network), 9, 1)), [number])
                if self.network == Some(Protocol::Ip) =>
            {
                self.transport = Protocol::transport(*number);
            }
            (None, Some((Place::Header(HeaderBase::Network), 6, 1)), [number])
                if self.network == Some(Protocol::Ip6) =>
            {
                self.transport = Protocol::transport(*number);
            }
            (None, Some((Place::Header(HeaderBase::Link), 12 | 16, 2)), _) if self.link.is_some() => {
                match Protocol::network(value) {
                    Some(Protocol::Vlan) => self.link = Some(Protocol::Vlan),
                    other => self.network = other,
                }
            }
            _ => {}
        }
    }

    /// Type and name of bits somewhere in a packet.
    pub(super) fn field(&self, place: Place, bits: (u32, u32)) -> Option<(DataType, String)> {
        let base = match place {
            Place::Option(op, kind) => return option_field(op, kind, bits),
            Place::Header(base) => base,
        };
        match (base, self.network) {
            (HeaderBase::Link, _) => {
                let vlan = self.link.filter(|link| *link == Protocol::Vlan).and_then(|vlan| vlan.field(bits));
                vlan.or_else(|| self.link.and(Protocol::Ether.field(bits)))
            }
            (HeaderBase::Network, Some(known)) => known.field(bits),
            // Where neither was matched, these are not mistaken for one another.
            (HeaderBase::Network, None) => match bits {
                (96 | 128, 32) | (72, 8) => Protocol::Ip.field(bits),
                (64 | 192, 128) | (48, 8) => Protocol::Ip6.field(bits),
                _ => None,
            },
            (HeaderBase::Transport, _) => self.transport.unwrap_or(Protocol::Th).field(bits),
            _ => None,
        }
    }

    /// Header fields by their names; others by their place.
    pub(super) fn payload_text(&mut self, base: HeaderBase, offset: u32, length: u32) -> Option<(Field, String)> {
        let (first, bits) = whole(offset, length)?;
        if let Some(protocol @ (Protocol::Icmp | Protocol::Icmp6)) = self.transport
            && base == HeaderBase::Transport
            && let Some(name) = match (first, bits) {
                (32, 16) => Some("id"),
                (48, 16) => Some("sequence"),
                _ => None,
            }
        {
            // nft asks for an echo by itself where it reads these.
            let (word, echoes) = match protocol {
                Protocol::Icmp => ("icmp", ["icmp type { 8, 0 }", "icmp type { 0, 8 }"]),
                _ => ("icmpv6", ["icmpv6 type { 128, 129 }", "icmpv6 type { 129, 128 }"]),
            };
            if self.statements.last().is_some_and(|last| echoes.contains(&last.as_str())) {
                self.statements.pop();
                return Some((Field { data_type: DataType::INTEGER, length }, format!("{word} {name}")));
            }
        }
        let place = Place::Header(base);
        // The first bytes of an address are for a prefix.
        let address = |whole| {
            let is_address = |data_type| matches!(data_type, DataType::IPV4_ADDR | DataType::IPV6_ADDR);
            self.field(place, (first, whole)).filter(|(data_type, _)| bits < whole && is_address(*data_type))
        };
        let named = self.field(place, (first, bits)).or_else(|| address(32)).or_else(|| address(128));
        let (data_type, text) = match named {
            Some(named) => named,
            None => (DataType::INTEGER, format!("@{},{first},{bits}", base.name()?)),
        };
        Some((Field { data_type, length }, text))
    }

    /// Sets bytes somewhere in a packet.
    pub(super) fn set_place(&mut self, place: Place, offset: u32, length: u32, source: Register) -> Option<()> {
        let symbol = self.take(source)?;
        let mut bits = whole(offset, length)?;
        let mut shift = 0;
        let mut constant = symbol.constant.clone();
        // Only some of the bytes' bits are changed.
        if let (Some(from), Some((mask, xor))) = (symbol.place, &symbol.changed)
            && from == (place, offset, length)
        {
            let kept: Vec<u8> = mask.as_bytes().iter().map(|byte| !byte).collect();
            (bits, shift) = run_of_bits(offset, &kept)?;
            if xor.as_bytes().iter().zip(&kept).any(|(xor, kept)| xor & !kept != 0) {
                return None;
            }
            constant = Some(xor.clone());
        }
        let (data_type, text) = match (self.field(place, bits), place) {
            (Some(named), _) => named,
            (None, Place::Header(base)) => (DataType::INTEGER, format!("@{},{},{}", base.name()?, bits.0, bits.1)),
            (None, Place::Option(..)) => return None,
        };
        let value = match (constant, symbol.constant.is_some()) {
            // The names of protocols are words of nft's here.
            (Some(value), true) if data_type != DataType::INET_PROTO => {
                field_text(value.as_bytes(), data_type, Form::PLAIN)?
            }
            // Bytes around a field are not of its type.
            (Some(value), _) => field_text(value.as_bytes(), DataType::INTEGER, Form { shift, ..Form::PLAIN })?,
            (None, _) => symbol.left()?,
        };
        self.say(format!("{text} set {value}"))
    }
}

/// Bytes as bits.
pub(super) fn whole(offset: u32, length: u32) -> Option<Bits> {
    Some((offset.checked_mul(8)?, length.checked_mul(8)?))
}
