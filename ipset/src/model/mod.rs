//! Plain data: names, types, addresses, entries, sets. No I/O.

use std::fmt;

mod address;
mod entry;
mod expand;
mod name;
mod parse;
mod port;
mod set;
mod set_type;

pub(crate) use address::AsTool;
pub use address::{IpSpan, Nets};
pub(crate) use entry::Identity;
pub use entry::{Element, Entry, EntryOptions, Position, SkbMark, SkbPriority};
pub use name::{Comment, Interface, MacAddr, SetName, Timeout};
pub use port::{PortRange, Ports, Protocol};
pub use set::{ObservedSet, Range, SetFlags, SetOptions, SetSpec};
#[cfg(feature = "testing")]
pub(crate) use set_type::Part;
pub use set_type::{Family, SetType, Shape};

/// A value that cannot be part of a set: the kernel would refuse it or change its meaning.
///
/// `Debug` prints the message, so a `main` that returns this error is readable.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub enum InvalidValue {
    /// A set's name is empty, longer than 31 bytes, or contains blanks, quotes or control characters.
    #[error("set name {0:?}: 1 to 31 bytes without blanks, quotes and control characters are allowed")]
    Name(String),
    /// Saved text adds an entry to a set that no earlier line creates.
    #[error("set {0:?} is not created by a line before this one")]
    NotCreated(String),
    /// A comment is longer than 255 bytes, or contains a double quote or a control character.
    #[error("comment {0:?}: at most 255 bytes without double quotes and control characters are allowed")]
    Comment(String),
    /// An interface's name is empty, longer than 15 bytes, or contains blanks, commas, slashes, quotes or control
    /// characters.
    #[error(
        "interface {0:?}: 1 to 15 bytes without blanks, commas, slashes, quotes and control characters are allowed"
    )]
    Interface(String),
    /// Not an address, network or range of addresses.
    #[error("{0:?} is not an address, a network or a range of addresses")]
    Address(String),
    /// A prefix length longer than the address.
    #[error("prefix length {prefix} of {address}: at most {max} is possible")]
    Prefix {
        /// The address.
        address: std::net::IpAddr,
        /// The requested length.
        prefix: u32,
        /// The greatest valid length.
        max: u8,
    },
    /// A range with ends of different families, or a range of IPv6 addresses, which the kernel does not support.
    #[error("range {first}-{last}: both ends must be IPv4; IPv6 knows addresses and networks only")]
    Range {
        /// First address.
        first: std::net::IpAddr,
        /// Last address.
        last: std::net::IpAddr,
    },
    /// Not a port or range of ports.
    #[error("{0:?} is not a port (0 to 65535) or a range of ports")]
    Port(String),
    /// Not the name of an IP protocol or a number from 1 to 255.
    #[error("{0:?} is not an IP protocol's name or number (1 to 255)")]
    Protocol(String),
    /// Not an ICMP type.
    #[error("{0:?} is not an ICMP type name or TYPE/CODE")]
    Icmp(String),
    /// Not a MAC address.
    #[error("{0:?} is not a MAC address like 01:23:45:67:89:ab")]
    Mac(String),
    /// Not a number where one is required.
    #[error("{what} {text:?}: a number from {min} to {max} is needed")]
    Number {
        /// Name of the value: `netmask`, `timeout`.
        what: &'static str,
        /// The text found instead.
        text: String,
        /// The least valid value.
        min: u64,
        /// The greatest valid value.
        max: u64,
    },
    /// Not one of the kernel's set types.
    #[error("{0:?} is not a known set type")]
    SetType(String),
    /// Neither `inet` nor `inet6`.
    #[error("{0:?} is neither inet nor inet6")]
    Family(String),
    /// The entry has the wrong number of parts for the type.
    #[error("entry {text:?} does not have the form that {set_type} needs")]
    Shape {
        /// The entry.
        text: String,
        /// The type.
        set_type: SetType,
    },
    /// An address of the wrong family.
    #[error("entry {text:?} is not of family {family}")]
    EntryFamily {
        /// The entry.
        text: String,
        /// The set's family.
        family: Family,
    },
    /// An option that the type or the entry does not support.
    #[error("{what} does not know option {option:?}")]
    Option {
        /// The type.
        what: String,
        /// The option.
        option: String,
    },
    /// An option without its value.
    #[error("option {0:?} needs a value")]
    OptionValue(String),
    /// A range that expands to more entries than allowed.
    #[error("entry {text:?} stands for {count} entries; at most {max} are allowed here")]
    TooMany {
        /// The entry.
        text: String,
        /// Number of entries to which it expands.
        count: u128,
        /// The limit.
        max: usize,
    },
}

/// Debug output is the text itself.
macro_rules! debug_is_text {
    ($($name:ty),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

/// Conversions from and to the text, which serde uses too.
macro_rules! converts_as_text {
    ($($name:ty),*) => {$(
        impl TryFrom<String> for $name {
            type Error = InvalidValue;
            fn try_from(text: String) -> Result<Self, InvalidValue> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }

        #[cfg(feature = "serde")]
        netlink_batch::serde_as_text!($name, "a string");
    )*};
}

debug_is_text!(InvalidValue, IpSpan, Protocol, PortRange, Ports, SetType);
converts_as_text!(IpSpan, Protocol, PortRange, Ports, SetType, MacAddr);
