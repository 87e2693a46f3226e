//! Names the fields of a packet, which depends on the protocols that a rule has matched.

use super::header::{Bits, Place, Protocol, option_field, run_of_bits};
use super::rule::{From, Writer};
use super::value::{Form, field_text};
use crate::expr::{ExthdrOp, HeaderBase, MetaKey, Register};
use crate::model::{DataType, Family, Field};

/// Type of a message, bits of a field, name of the field.
type TypeField = (&'static str, Bits, &'static str);

impl Writer<'_> {
    /// Records the protocol that the match at a statement's index requires.
    pub(super) fn follow(&mut self, key: Option<MetaKey>, from: Option<From>, value: &[u8], place: usize) {
        // A protocol that was already known is not implied by a field, but matched twice.
        let (network, transport) = (self.network, self.transport);
        let place = Some(place);
        match (key, from, value) {
            (Some(MetaKey::NfProto), _, [2 | 10]) => {
                self.network = Some(if value == [2] { Protocol::Ip } else { Protocol::Ip6 });
                self.dependencies.network = place.filter(|_| self.family == Family::Inet && self.network != network);
            }
            (Some(MetaKey::IifType), _, _) if value == 1_u16.to_ne_bytes() => {
                self.link = Some(Protocol::Ether);
                self.dependencies.link = place.filter(|_| self.family != Family::Bridge);
            }
            (Some(MetaKey::L4Proto), _, [number]) => {
                self.transport = Protocol::transport(*number);
                self.dependencies.transport = place.filter(|_| self.transport.is_some() && self.transport != transport);
            }
            (Some(MetaKey::Protocol), _, _) => {
                self.network = Protocol::network(value);
                let is_added = self.network.is_some() && matches!(self.family, Family::Bridge | Family::Netdev);
                self.dependencies.network = place.filter(|_| is_added && self.network != network);
            }
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
            // The type after the matched tags, four bytes each.
            (None, Some((Place::Header(HeaderBase::Link), at, 2)), _)
                if self.link.is_some()
                    && self.tags.checked_mul(4).and_then(|tags| tags.checked_add(12)) == Some(at) =>
            {
                match Protocol::network(value) {
                    Some(Protocol::Vlan) => {
                        self.dependencies.vlan = place.filter(|_| self.tags == 0 && value == [0x81, 0]);
                        self.tags = self.tags.saturating_add(1);
                    }
                    other => {
                        self.network = other;
                        self.dependencies.network = place.filter(|_| self.network.is_some() && self.network != network);
                    }
                }
            }
            _ => {}
        }
    }

    /// Omits the matches on protocols that this field implies (`payload_dependency_kill` in nft's src/payload.c).
    pub(super) fn settle(&mut self, place: Place, text: &str) {
        let known = self.dependencies;
        // ICMP also implies the IP version.
        let is_of_address =
            known.transport.is_some() && (known.network.is_some() || matches!(self.family, Family::Ip | Family::Ip6));
        match (place, self.transport) {
            (Place::Option(ExthdrOp::Ipv6 | ExthdrOp::Ipv4, _), _) => self.leave_out(known.network),
            _ if text.starts_with('@') || text.is_empty() => {}
            (Place::Header(HeaderBase::Link), _) => {
                self.leave_out(known.link);
                if text.starts_with("vlan") && text != "vlan type" {
                    self.leave_out(known.vlan);
                }
            }
            (Place::Header(HeaderBase::Network), _) => self.leave_out(known.network),
            (Place::Header(HeaderBase::Transport), Some(of @ (Protocol::Icmp | Protocol::Icmp6))) if is_of_address => {
                // A match on the other IP version is a condition that must stay.
                let implied = if of == Protocol::Icmp { Protocol::Ip } else { Protocol::Ip6 };
                self.leave_out(known.network.filter(|_| self.network == Some(implied)));
                self.leave_out(known.transport);
            }
            (Place::Header(HeaderBase::Transport), Some(Protocol::Icmp | Protocol::Icmp6)) => {}
            (Place::Header(HeaderBase::Transport), Some(_)) => {
                let said = known.transport.and_then(|place| Some((place, self.statements.get(place)?.clone())));
                self.pending = said.filter(|(_, text)| !text.is_empty()).or(self.pending.take());
                self.leave_out(known.transport);
            }
            _ => {}
        }
    }

    /// Empties a statement but keeps its index.
    pub(super) fn leave_out(&mut self, statement: Option<usize>) {
        if let Some(statement) = statement.and_then(|place| self.statements.get_mut(place)) {
            statement.clear();
        }
    }

    /// Type and name of these bits of a packet.
    pub(super) fn field(&self, place: Place, bits: (u32, u32)) -> Option<(DataType, String)> {
        let base = match place {
            Place::Option(op, kind) => return option_field(op, kind, bits),
            Place::Header(base) => base,
        };
        match (base, self.network) {
            (HeaderBase::Link, _) => {
                // The last matched tag: nft cannot name earlier ones.
                let of_tag = |tags: u32| Some((bits.0.checked_sub(tags.checked_sub(1)?.checked_mul(32)?)?, bits.1));
                let vlan = of_tag(self.tags).and_then(|bits| Protocol::Vlan.field(bits));
                vlan.or_else(|| self.link.and(Protocol::Ether.field(bits)))
            }
            (HeaderBase::Network, Some(known)) => known.field(bits),
            (HeaderBase::Network, None) if self.is_of_any_version => match bits {
                (96 | 128, 32) | (72, 8) => Protocol::Ip.field(bits),
                (64 | 192, 128) | (48, 8) => Protocol::Ip6.field(bits),
                _ => None,
            },
            (HeaderBase::Transport, _) => self.transport.unwrap_or(Protocol::Th).field(bits),
            _ => None,
        }
    }

    /// Header fields by name; others by position.
    pub(super) fn payload_text(&mut self, base: HeaderBase, offset: u32, length: u32) -> Option<(Field, String)> {
        let (first, bits) = whole(offset, length)?;
        if let Some(protocol @ (Protocol::Icmp | Protocol::Icmp6)) = self.transport
            && base == HeaderBase::Transport
            && let Some((name, type_goes)) = self.field_of_type(protocol, (first, bits))
        {
            // nft adds the match on the type itself when it parses these.
            if type_goes {
                self.statements.pop();
            }
            let word = if protocol == Protocol::Icmp { "icmp" } else { "icmpv6" };
            return Some((Field { data_type: DataType::INTEGER, length }, format!("{word} {name}")));
        }
        let place = Place::Header(base);
        // The first bytes of an address represent a prefix.
        let address = |whole| {
            let is_address = |data_type| matches!(data_type, DataType::IPV4_ADDR | DataType::IPV6_ADDR);
            self.field(place, (first, whole)).filter(|(data_type, _)| bits < whole && is_address(*data_type))
        };
        let named = self.field(place, (first, bits)).or_else(|| address(32)).or_else(|| address(128));
        let (data_type, text) = match named {
            Some(named) => named,
            None => (DataType::INTEGER, format!("@{},{first},{bits}", base.name()?)),
        };
        self.settle(place, &text);
        Some((Field { data_type, length }, text))
    }

    /// Name of a field that only exists in some message types, if the last match requires such a type. Also whether nft
    /// adds that match itself (`icmp_templates` in nft's src/proto.c).
    fn field_of_type(&self, protocol: Protocol, bits: Bits) -> Option<(&'static str, bool)> {
        const ICMP: &[TypeField] = &[("destination-unreachable", (48, 16), "mtu"), ("redirect", (32, 32), "gateway")];
        const ICMP6: &[TypeField] = &[
            ("packet-too-big", (32, 32), "mtu"),
            ("parameter-problem", (32, 32), "parameter-problem"),
            ("mld-listener-query", (32, 16), "max-delay"),
        ];
        let last = self.statements.last()?;
        let (types, fields) = match protocol {
            Protocol::Icmp => (last.strip_prefix("icmp type ")?, ICMP),
            _ => (last.strip_prefix("icmpv6 type ")?, ICMP6),
        };
        let echo = match bits {
            (32, 16) => Some("id"),
            (48, 16) => Some("sequence"),
            _ => None,
        };
        match types {
            "{ echo-reply, echo-request }" | "{ echo-request, echo-reply }" | "echo-reply" | "echo-request" => {
                Some((echo?, false))
            }
            of => fields.iter().find(|(known, at, _)| *known == of && *at == bits).map(|(_, _, name)| (*name, true)),
        }
    }

    /// A comparison of adjacent fields, which nft merges into one. `None` if they have no names.
    pub(super) fn say_fields(&mut self, place: From, value: &[u8]) -> Option<()> {
        let (at, offset, length) = place;
        let is_known = match at {
            Place::Header(HeaderBase::Link) => self.link.is_some(),
            Place::Header(HeaderBase::Network) => self.network.is_some(),
            Place::Header(HeaderBase::Transport) => self.transport.is_some(),
            _ => false,
        };
        if !is_known {
            return None;
        }
        let (mut first, mut rest) = (offset, value.get(..usize::try_from(length).ok()?)?);
        let mut texts = Vec::new();
        while !rest.is_empty() {
            let lengths = (1..=u32::try_from(rest.len()).ok()?.min(16)).rev();
            let mut named = lengths.filter_map(|bytes| Some((bytes, self.field(at, whole(first, bytes)?)?)));
            let (bytes, (data_type, text)) = named.next()?;
            let (of_field, behind) = rest.split_at_checked(usize::try_from(bytes).ok()?)?;
            let statement = format!("{text} {}", field_text(of_field, data_type, Form::PLAIN)?);
            texts.push((text, statement, (at, first, bytes), of_field));
            (first, rest) = (first.checked_add(bytes)?, behind);
        }
        for (name, statement, from, value) in texts {
            self.settle(at, &name);
            let place = self.statements.len();
            self.say_match(statement)?;
            self.follow(None, Some(from), value, place);
        }
        Some(())
    }

    /// Sets these bytes of a packet.
    pub(super) fn set_place(&mut self, place: Place, offset: u32, length: u32, source: Register) -> Option<()> {
        let symbol = self.take(source)?;
        let mut bits = whole(offset, length)?;
        let mut shift = 0;
        let mut constant = symbol.constant.clone();
        // Only some bits of the bytes are changed.
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
        self.settle(place, &text);
        let value = match (constant, symbol.constant.is_some()) {
            // Here, protocol names are keywords of nft.
            (Some(value), true) if data_type != DataType::INET_PROTO => {
                field_text(value.as_bytes(), data_type, Form { raw: text.starts_with('@'), ..Form::PLAIN })?
            }
            (Some(value), false) if matches!(data_type, DataType::DSCP | DataType::ECN | DataType::TCP_FLAG) => {
                field_text(value.as_bytes(), data_type, Form { shift, ..Form::PLAIN })?
            }
            // Bytes around a field do not have its type.
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
