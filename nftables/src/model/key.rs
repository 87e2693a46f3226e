//! Keys: the identities of tables, chains, sets and objects.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use super::InvalidValue;
use crate::uapi::NFT_NAME_MAXLEN;

/// The name of a table, chain, set or object: 1 to 255 bytes without NUL. Cheap to clone.
///
/// The kernel accepts any bytes. A name that is not UTF-8 is read with replacement characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

impl Name {
    /// Checks a name.
    ///
    /// # Errors
    /// The name is empty, longer than 255 bytes, or contains a NUL or control character.
    pub fn new(name: &str) -> Result<Self, InvalidValue> {
        let invalid = |why| Err(InvalidValue::new(format!("name {name:?}"), why));
        if name.is_empty() {
            return invalid("it is empty");
        }
        if name.len() >= NFT_NAME_MAXLEN {
            return invalid("it is longer than 255 bytes");
        }
        if name.chars().any(char::is_control) {
            return invalid("it has a control character");
        }
        Ok(Name(name.into()))
    }

    pub(crate) fn from_kernel(bytes: &[u8]) -> Self {
        Name(String::from_utf8_lossy(bytes).into())
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether nft can parse the name: letters, digits, `/`, `\`, `-`, `_` and `.`, not starting with a digit.
    pub fn is_plain(&self) -> bool {
        let other = |c: char| c.is_ascii_alphanumeric() || "/\\-_.".contains(c);
        self.0.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && self.0.chars().all(other)
    }
}

/// Replaces control characters, which only names from the kernel can contain, since they could end a line.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.replace(char::is_control, "\u{fffd}"))
    }
}

impl FromStr for Name {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        Name::new(text)
    }
}

#[cfg(feature = "serde")]
netlink_batch::serde_as_text!(Name, "a name of 1 to 255 bytes without control characters", Name::as_str, Name::new);

/// Family of packets that a table sees (`NFPROTO_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4.
    Ip,
    /// IPv6.
    Ip6,
    /// ARP.
    Arp,
    /// Bridges.
    Bridge,
    /// Devices.
    Netdev,
    /// A family that this crate does not know.
    Other(u8),
}

impl Family {
    const ALL: [(Family, u8, &'static str); 6] = [
        (Family::Inet, 1, "inet"),
        (Family::Ip, 2, "ip"),
        (Family::Arp, 3, "arp"),
        (Family::Netdev, 5, "netdev"),
        (Family::Bridge, 7, "bridge"),
        (Family::Ip6, 10, "ip6"),
    ];

    /// The kernel's number (`NFPROTO_*`).
    pub fn number(self) -> u8 {
        match self {
            Family::Other(number) => number,
            known => Family::ALL.iter().find(|(family, _, _)| *family == known).map_or(0, |(_, number, _)| *number),
        }
    }

    /// The family with this number.
    pub fn from_number(number: u8) -> Self {
        Family::ALL
            .iter()
            .find(|(_, known, _)| *known == number)
            .map_or(Family::Other(number), |(family, _, _)| *family)
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Family::ALL.iter().find(|(family, _, _)| family == self) {
            Some((_, _, name)) => f.write_str(name),
            None => write!(f, "{}", self.number()),
        }
    }
}

impl FromStr for Family {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let known = Family::ALL.iter().find(|(_, _, name)| *name == text).map(|(family, _, _)| *family);
        let number = || text.parse().ok().map(Family::from_number);
        known.or_else(number).ok_or_else(|| {
            InvalidValue::new(format!("family {text:?}"), "it is none of inet, ip, ip6, arp, bridge, netdev")
        })
    }
}

#[cfg(feature = "serde")]
netlink_batch::serde_as_text!(
    Family,
    "inet, ip, ip6, arp, bridge, netdev or a number",
    Family::clone,
    str::parse::<Family>
);

/// `ip` or `ip6`: the family of a table that only sees such packets.
impl From<IpAddr> for Family {
    fn from(address: IpAddr) -> Self {
        if address.is_ipv4() { Family::Ip } else { Family::Ip6 }
    }
}

/// Identity of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct TableKey {
    /// Family of packets that the table sees.
    pub family: Family,
    /// Name of the table.
    pub name: Name,
}

impl TableKey {
    /// A table of this family and name.
    ///
    /// # Errors
    /// The name is invalid: see [`Name::new`].
    pub fn new(family: Family, name: &str) -> Result<Self, InvalidValue> {
        Ok(TableKey { family, name: Name::new(name)? })
    }

    /// An object of the table.
    ///
    /// # Errors
    /// The name is invalid.
    pub fn object(&self, kind: super::ObjectType, name: &str) -> Result<ObjectKey, InvalidValue> {
        Ok(ObjectKey { table: self.clone(), kind, name: Name::new(name)? })
    }
}

impl fmt::Display for TableKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family, self.name)
    }
}

/// Family and name: `inet filter`.
impl FromStr for TableKey {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let (family, name) = text
            .split_once(' ')
            .ok_or_else(|| InvalidValue::new(format!("table {text:?}"), "it takes a family and a name"))?;
        TableKey::new(family.parse()?, name)
    }
}

/// Parses family, table and a name: `inet filter input`. Names with blanks have no text form, since their end would be
/// ambiguous.
fn in_table<'a>(what: &str, text: &'a str) -> Result<(TableKey, &'a str), InvalidValue> {
    let mut words = text.split(' ');
    match [words.next(), words.next(), words.next(), words.next()] {
        [Some(family), Some(table), Some(name), None] => Ok((TableKey::new(family.parse()?, table)?, name)),
        _ => Err(InvalidValue::new(
            format!("{what} {text:?}"),
            "it takes a family, a table and a name, without other blanks",
        )),
    }
}

macro_rules! keys {
    ($($what:literal, $example:literal: $key:ident by $method:ident;)*) => {$(
        #[doc = concat!("Identity of a ", $what, ".")]
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct $key {
            /// Its table.
            pub table: TableKey,
            /// Its name.
            pub name: Name,
        }

        impl TableKey {
            #[doc = concat!("A ", $what, " of the table.")]
            ///
            /// # Errors
            /// The name is invalid.
            pub fn $method(&self, name: &str) -> Result<$key, InvalidValue> {
                Ok($key { table: self.clone(), name: Name::new(name)? })
            }
        }

        impl fmt::Display for $key {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} {}", self.table, self.name)
            }
        }

        #[doc = concat!("Family, table and name: `", $example, "`.")]
        impl FromStr for $key {
            type Err = InvalidValue;
            fn from_str(text: &str) -> Result<Self, InvalidValue> {
                let (table, name) = in_table($what, text)?;
                table.$method(name)
            }
        }
    )*};
}

keys! {
    "chain", "inet filter input": ChainKey by chain;
    "set or map", "inet filter banned": SetKey by set;
    "flow table", "inet router fast": FlowtableKey by flowtable;
}

/// Identity of an object. Objects of different kinds may share a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ObjectKey {
    /// Table of the object.
    pub table: TableKey,
    /// Kind of the object.
    pub kind: super::ObjectType,
    /// Name of the object.
    pub name: Name,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.table, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_come_back_from_their_text() {
        for text in ["inet filter", "ip6 a b", "bridge x", "42 y"] {
            assert_eq!(text.parse::<TableKey>().map(|key| key.to_string()), Ok(text.to_owned()));
        }
        for text in ["filter", "ipx filter", "inet ", ""] {
            assert!(text.parse::<TableKey>().is_err(), "{text}");
        }
    }

    #[test]
    fn chains_and_sets_come_back_from_their_text() {
        for text in ["inet filter input", "42 y z"] {
            assert_eq!(text.parse::<ChainKey>().map(|key| key.to_string()), Ok(text.to_owned()));
            assert_eq!(text.parse::<SetKey>().map(|key| key.to_string()), Ok(text.to_owned()));
        }
        for text in ["inet filter", "inet filter  input", "inet filter my input", "ipx filter input", "inet  input", ""]
        {
            assert!(text.parse::<ChainKey>().is_err() && text.parse::<SetKey>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_has_a_family() {
        assert_eq!(Family::from(IpAddr::from([192, 0, 2, 1])), Family::Ip);
        assert_eq!(Family::from(IpAddr::from([1; 16])), Family::Ip6);
    }

    #[test]
    fn a_name_that_was_read_stays_on_its_line() {
        assert_eq!(Name::from_kernel(b"t\nflush ruleset").to_string(), "t\u{fffd}flush ruleset");
        assert!(Name::new("t\nflush ruleset").is_err());
    }
}
