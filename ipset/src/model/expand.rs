//! Expands an entry as the kernel does. The type decides whether a range or network is one entry or many.

use super::set_type::Part;
use super::{Element, Entry, Family, InvalidValue, IpSpan, PortRange, Ports, Protocol, SetSpec, SetType};

impl Entry {
    /// The entries that the kernel stores for this one, and that a listing shows.
    ///
    /// Ranges become addresses or networks, port ranges become ports, and netmask, bitmask and markmask are applied.
    /// With netmask the result is every network that the range touches.
    ///
    /// A network of prefix length 0 becomes two halves if the type cannot store it ([`SetType::has_zero_prefix`]); the
    /// kernel refuses it there.
    ///
    /// The kernel itself is less exact about ranges in sets with a mask. It masks only the first address (hash:ip with
    /// bitmask, hash:ip,port, hash:net,net), or omits the last network (bitmap:ip). Add the expanded entries instead of
    /// the range, as [`Client::sync`](crate::Client::sync) does.
    ///
    /// # Errors
    /// [`InvalidValue::Shape`] and [`InvalidValue::EntryFamily`] if the entry does not fit the set.
    /// [`InvalidValue::TooMany`] if it expands to more than `max` entries (1 if the type allows no ranges).
    pub fn expand(&self, set: &SetSpec, max: usize) -> Result<Vec<Entry>, InvalidValue> {
        let mut entries = Vec::new();
        self.expand_into(set, max, &mut entries)?;
        Ok(entries)
    }

    /// Checks that the entry has the form and family that the set needs.
    ///
    /// # Errors
    /// [`InvalidValue::Shape`]; [`InvalidValue::EntryFamily`]; [`InvalidValue::Option`] if the type does not support
    /// `nomatch` or `wildcard`.
    pub fn check(&self, set: &SetSpec) -> Result<(), InvalidValue> {
        let set_type = set.set_type;
        if set_type == SetType::Unknown {
            return Ok(());
        }
        if self.element.shape() != set_type.shape() {
            return Err(InvalidValue::Shape { text: self.element.to_string(), set_type });
        }
        let family = if set_type.has_family() { set.options.family } else { Family::Inet };
        if self.element.spans().0.is_some() && self.element.family() != Some(family) {
            return Err(InvalidValue::EntryFamily { text: self.element.to_string(), family });
        }
        let option = |option: &str| InvalidValue::Option { what: set_type.to_string(), option: option.to_owned() };
        if self.options.nomatch && !set_type.has_nomatch() {
            return Err(option("nomatch"));
        }
        if self.options.wildcard && set_type != SetType::HashNetIface {
            return Err(option("wildcard"));
        }
        Ok(())
    }

    pub(crate) fn expand_into(&self, set: &SetSpec, max: usize, out: &mut Vec<Entry>) -> Result<(), InvalidValue> {
        self.check(set)?;
        let info = set.set_type.info();
        let mask = set.mask();
        let masked = |span: IpSpan| mask.map_or(span, |mask| span.and_mask(mask));
        let (first, second) = self.element.spans();
        let zero = set.set_type.has_zero_prefix();
        let firsts = Spread::new(first, info.first, set.options.netmask, zero);
        let seconds = Spread::new(second, info.second, None, zero);
        let ports = match (&self.element, self.element.ports()) {
            (Element::Port(range), _) => *range,
            (_, Some(ports)) => ports.ports(),
            _ => PortRange::from(0),
        };
        let one = (info.first == Part::One && firsts.count > 1) || (info.second == Part::One && seconds.count > 1);
        let max = if one { 1 } else { max };
        let count = firsts.count.saturating_mul(seconds.count).saturating_mul(ports.count().into());
        if count > u128::try_from(max).unwrap_or(u128::MAX) {
            return Err(InvalidValue::TooMany { text: self.element.to_string(), count, max });
        }
        for first in firsts {
            for port in ports.first()..=ports.last() {
                for second in seconds.clone() {
                    let element = match &self.element {
                        Element::Ip(_) => Element::Ip(masked(first)),
                        Element::IpMark(_, mark) => {
                            Element::IpMark(first, mark & set.options.markmask.unwrap_or(u32::MAX))
                        }
                        Element::IpPort(_, ports) => Element::IpPort(masked(first), stored(*ports, port, first)),
                        Element::IpPortIp(_, ports, _) => Element::IpPortIp(first, stored(*ports, port, first), second),
                        Element::IpIp(..) => Element::IpIp(masked(first), masked(second)),
                        Element::IpMac(_, mac) => Element::IpMac(first, *mac),
                        Element::IpInterface { interface, physdev, .. } => {
                            Element::IpInterface { network: first, interface: interface.clone(), physdev: *physdev }
                        }
                        Element::Port(_) => Element::Port(port.into()),
                        other @ (Element::Mac(_) | Element::Set(_)) => other.clone(),
                    };
                    out.push(Entry { element, options: self.options.clone() });
                }
            }
        }
        Ok(())
    }
}

/// One port as the kernel stores it. ICMP of the other family has no type and code.
fn stored(ports: Ports, port: u16, address: IpSpan) -> Ports {
    let foreign = match address.family() {
        Family::Inet => Protocol::ICMPV6,
        Family::Inet6 => Protocol::ICMP,
    };
    Ports::port(ports.protocol(), if ports.protocol() == foreign { 0 } else { port })
}

/// The spans of one address part.
#[derive(Clone)]
struct Spread {
    rest: Rest,
    count: u128,
}

#[derive(Clone)]
enum Rest {
    Networks(super::Nets),
    /// The halves of a network of prefix length 0.
    Halves(IpSpan, IpSpan),
    /// `left` addresses from `next`, in steps of `step`.
    Hosts {
        span: IpSpan,
        next: u32,
        step: u32,
        left: u32,
    },
    /// The element does not have this part.
    Absent,
    End,
}

impl Spread {
    /// `zero` tells whether a network may have prefix length 0.
    fn new(span: Option<IpSpan>, part: Part, netmask: Option<u8>, zero: bool) -> Self {
        let Some(span) = span else {
            return Spread { rest: Rest::Absent, count: 1 };
        };
        if part == Part::Net
            && !zero
            && let Some((lower, upper)) = span.halves()
        {
            return Spread { rest: Rest::Halves(lower, upper), count: 2 };
        }
        if part == Part::Net {
            let networks = span.networks();
            let count = u128::try_from(networks.clone().count()).unwrap_or(u128::MAX);
            return Spread { rest: Rest::Networks(networks), count };
        }
        // With a netmask, one address represents its whole network.
        let host_bits = u32::from(span.family().bits().saturating_sub(netmask.unwrap_or(span.family().bits())));
        let span = netmask.map_or(span, |prefix| span.widened_down(prefix));
        let step = 1_u32.checked_shl(host_bits).unwrap_or(u32::MAX);
        let count = span.addresses().div_ceil(step.into());
        let left = u32::try_from(count).unwrap_or(u32::MAX);
        Spread { rest: Rest::Hosts { span, next: 0, step, left }, count }
    }
}

impl Iterator for Spread {
    type Item = IpSpan;

    fn next(&mut self) -> Option<IpSpan> {
        match &mut self.rest {
            Rest::Networks(networks) => networks.next(),
            Rest::Halves(lower, upper) => {
                let (lower, upper) = (*lower, *upper);
                self.rest = Rest::Networks(upper.networks());
                Some(lower)
            }
            Rest::Hosts { span, next, step, left } => {
                *left = left.checked_sub(1)?;
                let host = span.nth_host(*next);
                *next = next.saturating_add(*step);
                Some(host)
            }
            Rest::Absent => {
                self.rest = Rest::End;
                Some(IpSpan::host(std::net::Ipv4Addr::UNSPECIFIED.into()))
            }
            Rest::End => None,
        }
    }
}
