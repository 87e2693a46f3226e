//! Address translations in nft's syntax.

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
        let mut word =
            if self.family == Family::Inet && family != Family::Inet { format!(" {family}") } else { String::new() };
        let Some(address) = address else {
            let port = self.port(port)?;
            return self.say(format!("{verb}{word}{port}{}", nat_flags(flags)?));
        };
        let is_range = address.last != address.first;
        let target = self.remove(address.first)?;
        let is_network = flags.contains(NatFlags::NETMAP);
        let text = match &target.constant {
            Some(first) => {
                let data_type = if first.len() == 16 { DataType::IPV6_ADDR } else { DataType::IPV4_ADDR };
                let mut text = field_text(first.as_bytes(), data_type, Form::PLAIN)?;
                let mut brackets = format!("[{text}]");
                if is_range {
                    let last = self.remove(address.last)?.constant?;
                    brackets = format!("{brackets}-[{}]", field_text(last.as_bytes(), data_type, Form::PLAIN)?);
                    text = span_text(first.as_bytes(), last.as_bytes(), data_type, Form::PLAIN)?;
                }
                match self.port(port)?.strip_prefix(" to ") {
                    Some(port) if first.len() == 16 => brackets + port,
                    port => text + port.unwrap_or_default(),
                }
            }
            // Data of a map.
            None if target.length.is_none() => {
                let length = if family == Family::Ip6 { 16 } else { 4 };
                let range = |first: Register, last| RegisterRange { first, last };
                // The port follows the address; the ends of both ranges follow their starts.
                let behind = |register: Register| register.behind(length);
                let of_port = behind(address.first);
                let end = if port.is_some() { of_port.and_then(|port| port.behind(4)) } else { of_port };
                let end = if is_range { end? } else { address.first };
                let ends_of_port = of_port
                    .map(|first| range(first, if is_range { behind(end) } else { Some(first) }.unwrap_or(first)));
                if address.last != end || (port.is_some() && port != ends_of_port) {
                    return None;
                }
                if word.is_empty() && (is_range || port.is_some()) {
                    word = format!(" {family}");
                }
                target.text
            }
            None if port.is_none() && !is_range => target.left()?,
            None => return None,
        };
        let prefix = if is_network { " prefix" } else { "" };
        self.say(format!("{verb}{word}{prefix} to {text}{}", nat_flags(flags)?))
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
