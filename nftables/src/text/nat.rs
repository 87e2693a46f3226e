//! Translations of addresses in nft's words.

use super::rule::Writer;
use super::statement::nat_flags;
use super::value::{Form, field_text, span_text};
use crate::expr::{NatFlags, NatKind, Register, RegisterRange};
use crate::model::{DataType, Family};

impl Writer<'_> {
    pub(super) fn nat(
        &mut self,
        kind: NatKind,
        family: Family,
        address: Option<RegisterRange>,
        port: Option<RegisterRange>,
        flags: NatFlags,
    ) -> Option<()> {
        let verb = kind.name()?;
        let family =
            if self.family == Family::Inet && family != Family::Inet { format!(" {family}") } else { String::new() };
        let Some(address) = address else {
            let port = self.port(port)?;
            return self.say(format!("{verb}{family}{port}{}", nat_flags(flags)?));
        };
        let length = if family.ends_with('6') || self.family == Family::Ip6 { 16 } else { 4 };
        let target = self.remove(address.first)?;
        let is_network = flags.contains(NatFlags::NETMAP);
        let text = match &target.constant {
            Some(first) => {
                let data_type = if first.len() == 16 { DataType::IPV6_ADDR } else { DataType::IPV4_ADDR };
                let mut text = field_text(first.as_bytes(), data_type, Form::PLAIN)?;
                if address.last != address.first {
                    let last = self.remove(address.last)?.constant?;
                    text = span_text(first.as_bytes(), last.as_bytes(), data_type, Form::PLAIN)?;
                }
                let port = self.port(port)?;
                match port.strip_prefix(" to ") {
                    Some(_) if first.len() == 16 && address.last != address.first => return None,
                    Some(port) if first.len() == 16 => format!("[{text}]{port}"),
                    _ => format!("{text}{}", port.trim_start_matches(" to ")),
                }
            }
            // Data of a map: the last address and the port are in the registers behind the address, or there are none.
            None if target.length.is_none() => {
                let behind = address.first.behind(length);
                if (address.last != address.first && Some(address.last) != behind)
                    || (port.is_some() && (address.last != address.first || port != behind.map(RegisterRange::from)))
                {
                    return None;
                }
                target.text
            }
            None if port.is_none() && address.first == address.last => target.left()?,
            None => return None,
        };
        let prefix = if is_network { " prefix" } else { "" };
        self.say(format!("{verb}{family}{prefix} to {text}{}", nat_flags(flags)?))
    }

    pub(super) fn tproxy(&mut self, family: Family, address: Option<Register>, port: Option<Register>) -> Option<()> {
        let word = match family {
            Family::Ip | Family::Ip6 if self.family == Family::Inet => format!(" {family}"),
            _ => String::new(),
        };
        let address = match address {
            Some(address) => self.target_address(address)?,
            None => String::new(),
        };
        let address = if address.contains(':') { format!("[{address}]") } else { address };
        let port = match port {
            Some(port) => format!(":{}", self.target(port, DataType::INET_SERVICE)?),
            None => String::new(),
        };
        self.say(format!("tproxy{word} to {address}{port}"))
    }

    /// Ports: ` to :80`, or nothing.
    pub(super) fn port(&mut self, port: Option<RegisterRange>) -> Option<String> {
        let Some(range) = port else { return Some(String::new()) };
        let mut take = |register| self.target(register, DataType::INET_SERVICE);
        let first = take(range.first)?;
        Some(if range.first == range.last {
            format!(" to :{first}")
        } else {
            format!(" to :{first}-{}", take(range.last)?)
        })
    }
}
