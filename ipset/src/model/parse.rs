//! Parses ipset's own syntax.

use std::str::FromStr;

use super::{
    Comment, Element, Entry, EntryOptions, Family, Interface, InvalidValue, IpSpan, Position, Range, SetFlags, SetName,
    SetSpec, SetType, Shape, SkbMark, SkbPriority, Timeout,
};

/// Splits a line into words. A quoted word may contain blanks; the quotes are not part of it.
pub(crate) fn words(line: &str) -> Words<'_> {
    Words { rest: line }
}

#[derive(Clone, Debug)]
pub(crate) struct Words<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let rest = self.rest.trim_start();
        let (word, rest) = if rest.is_empty() {
            self.rest = rest;
            return None;
        } else if let Some(quoted) = rest.strip_prefix('"') {
            quoted.split_once('"').unwrap_or((quoted, ""))
        } else {
            rest.split_once(char::is_whitespace).unwrap_or((rest, ""))
        };
        self.rest = rest;
        Some(word)
    }
}

/// A number as ipset reads it: hexadecimal after `0x`, octal after any other `0`, otherwise decimal.
pub(super) fn unsigned(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix('0') {
        None | Some("") => (text, 10),
        Some(rest) => rest.strip_prefix(['x', 'X']).map_or((rest, 8), |hex| (hex, 16)),
    };
    u64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'))
}

fn number(what: &'static str, text: &str, min: u64, max: u64) -> Result<u64, InvalidValue> {
    let invalid = || InvalidValue::Number { what, text: text.to_owned(), min, max };
    unsigned(text).filter(|value| (min..=max).contains(value)).ok_or_else(invalid)
}

fn number32(what: &'static str, text: &str) -> Result<u32, InvalidValue> {
    let value = number(what, text, 0, u32::MAX.into())?;
    Ok(u32::try_from(value).unwrap_or(u32::MAX))
}

fn number8(what: &'static str, text: &str, max: u8) -> Result<u8, InvalidValue> {
    let value = number(what, text, 0, max.into())?;
    Ok(u8::try_from(value).unwrap_or(u8::MAX))
}

fn timeout(text: &str) -> Result<Timeout, InvalidValue> {
    Timeout::from_secs(number32("timeout", text)?)
}

impl FromStr for SkbMark {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (mark, mask) = match text.split_once('/') {
            Some((mark, mask)) => (mark, number32("skbmark's mask", mask)?),
            None => (text, u32::MAX),
        };
        Ok(SkbMark { mark: number32("skbmark", mark)?, mask })
    }
}

impl FromStr for SkbPriority {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let invalid =
            || InvalidValue::Number { what: "skbprio MAJOR:MINOR", text: text.to_owned(), min: 0, max: 0xffff };
        let part = |part: &str| u16::from_str_radix(part, 16).ok().filter(|_| !part.starts_with('+'));
        let (major, minor) = text.split_once(':').ok_or_else(invalid)?;
        Ok(SkbPriority { major: part(major).ok_or_else(invalid)?, minor: part(minor).ok_or_else(invalid)? })
    }
}

impl Element {
    /// Parses an element of a set type: `10.0.0.1,tcp:80` for hash:ip,port.
    ///
    /// Addresses, ports and interfaces are not looked up by name.
    ///
    /// # Errors
    /// [`InvalidValue`] with the wrong part; [`InvalidValue::Shape`] if there are too many or too few.
    pub fn parse(set_type: SetType, text: &str) -> Result<Self, InvalidValue> {
        let shape = || InvalidValue::Shape { text: text.to_owned(), set_type };
        let mut parts = text.split(',');
        let mut next = || parts.next().ok_or_else(shape);
        let element = match set_type.shape() {
            Shape::Ip => Element::Ip(next()?.parse()?),
            Shape::IpMark => Element::IpMark(next()?.parse()?, number32("mark", next()?)?),
            Shape::IpPort => Element::IpPort(next()?.parse()?, next()?.parse()?),
            Shape::IpPortIp => Element::IpPortIp(next()?.parse()?, next()?.parse()?, next()?.parse()?),
            Shape::IpMac => {
                let address = next()?.parse()?;
                match next() {
                    Ok(mac) => Element::IpMac(address, Some(mac.parse()?)),
                    Err(_) if set_type == SetType::BitmapIpMac => Element::IpMac(address, None),
                    Err(missing) => return Err(missing),
                }
            }
            Shape::Mac => Element::Mac(next()?.parse()?),
            Shape::IpIp => Element::IpIp(next()?.parse()?, next()?.parse()?),
            Shape::IpInterface => {
                let network: IpSpan = next()?.parse()?;
                let interface = next()?;
                let (name, physdev) = match interface.strip_prefix("physdev:") {
                    Some(name) => (name, true),
                    None => (interface, false),
                };
                Element::IpInterface { network, interface: Interface::new(name)?, physdev }
            }
            Shape::Port => {
                let text = next()?;
                // ipset accepts a protocol here and ignores it.
                Element::Port(text.rsplit_once(':').map_or(text, |(_, ports)| ports).parse()?)
            }
            // A set's name may contain commas.
            Shape::Set => return SetName::new(text).map(Element::Set),
            Shape::Unknown => return Err(shape()),
        };
        if parts.next().is_some() {
            return Err(shape());
        }
        Ok(element)
    }
}

impl Entry {
    /// Parses an entry of a set type with its options, as in `ipset save` after `add NAME`.
    ///
    /// # Errors
    /// [`InvalidValue`] with the wrong part.
    pub fn parse(set_type: SetType, text: &str) -> Result<Self, InvalidValue> {
        let mut words = words(text);
        let element = Element::parse(set_type, words.next().unwrap_or_default())?;
        let mut options = EntryOptions::default();
        while let Some(option) = words.next() {
            let mut value = || words.next().ok_or_else(|| InvalidValue::OptionValue(option.to_owned()));
            match option {
                "timeout" => options.timeout = Some(timeout(value()?)?),
                "packets" => options.packets = Some(number("packets", value()?, 0, u64::MAX)?),
                "bytes" => options.bytes = Some(number("bytes", value()?, 0, u64::MAX)?),
                "comment" => options.comment = Some(Comment::new(value()?)?),
                "skbmark" => options.skbmark = Some(value()?.parse()?),
                "skbprio" => options.skbprio = Some(value()?.parse()?),
                "skbqueue" => {
                    let queue = number("skbqueue", value()?, 0, u16::MAX.into())?;
                    options.skbqueue = u16::try_from(queue).ok();
                }
                "nomatch" => options.nomatch = true,
                "wildcard" if set_type == SetType::HashNetIface => options.wildcard = true,
                "before" if set_type == SetType::ListSet => {
                    options.position = Some(Position::Before(SetName::new(value()?)?));
                }
                "after" if set_type == SetType::ListSet => {
                    options.position = Some(Position::After(SetName::new(value()?)?));
                }
                _ => {
                    return Err(InvalidValue::Option {
                        what: format!("an entry of {set_type}"),
                        option: option.to_owned(),
                    });
                }
            }
        }
        Ok(Entry { element, options })
    }
}

/// Parses a `create` line, with or without the word itself. (A set may be named `create`, too.)
impl FromStr for SetSpec {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let mut behind = words(text);
        let is_command = behind.next() == Some("create");
        let names_type = |text: &str| text.parse::<SetType>().is_ok();
        if is_command
            && (behind.clone().nth(1).is_some_and(names_type) || !behind.clone().next().is_some_and(names_type))
        {
            return SetSpec::read(behind);
        }
        SetSpec::read(words(text))
    }
}

impl SetSpec {
    /// Parses what follows the word `create`.
    pub(crate) fn parse_arguments(text: &str) -> Result<Self, InvalidValue> {
        Self::read(words(text))
    }

    fn read(mut words: Words<'_>) -> Result<Self, InvalidValue> {
        let missing = |what: &str| InvalidValue::OptionValue(what.to_owned());
        let name = SetName::new(words.next().ok_or_else(|| missing("create"))?)?;
        let set_type: SetType = words.next().ok_or_else(|| missing("type"))?.parse()?;
        let mut set = SetSpec::new(name, set_type);
        let options = &mut set.options;
        while let Some(option) = words.next() {
            let mut value = || words.next().ok_or_else(|| missing(option));
            match option {
                "family" => options.family = value()?.parse()?,
                "hashsize" => options.hashsize = Some(number32("hashsize", value()?)?),
                "maxelem" => options.maxelem = Some(number32("maxelem", value()?)?),
                // The family may follow, so the exact limit is checked at the end.
                "netmask" => options.netmask = Some(number8("netmask", value()?, Family::Inet6.bits())?),
                "bitmask" => {
                    let text = value()?;
                    let mask = text.parse().map_err(|_not_a_mask| InvalidValue::Address(text.to_owned()))?;
                    options.bitmask = Some(mask);
                }
                "markmask" => options.markmask = Some(number32("markmask", value()?)?),
                "timeout" => options.timeout = Some(timeout(value()?)?),
                "counters" => options.flags |= SetFlags::COUNTERS,
                "comment" => options.flags |= SetFlags::COMMENT,
                "skbinfo" => options.flags |= SetFlags::SKBINFO,
                "forceadd" => options.flags |= SetFlags::FORCEADD,
                "initval" => options.initval = Some(number32("initval", value()?)?),
                "bucketsize" => options.bucketsize = Some(number8("bucketsize", value()?, u8::MAX)?),
                "size" => options.size = Some(number32("size", value()?)?),
                "range" => {
                    let text = value()?;
                    options.range = Some(if set_type == SetType::BitmapPort {
                        Range::Ports(text.parse()?)
                    } else {
                        Range::Addresses(text.parse()?)
                    });
                }
                _ => return Err(InvalidValue::Option { what: set_type.to_string(), option: option.to_owned() }),
            }
        }
        if !set_type.has_family() {
            set.options.family = Family::Inet;
        }
        set.check()?;
        Ok(set)
    }
}
