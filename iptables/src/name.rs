//! Families, back ends, and the names of tables and chains.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, excerpt};

/// Address family of the rules: `iptables` or `ip6tables`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Family {
    /// `iptables`
    Ipv4,
    /// `ip6tables`
    Ipv6,
}

impl Family {
    /// Both families, IPv4 first.
    pub const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    /// The stem of the program names: `iptables` or `ip6tables`.
    pub fn program(self) -> &'static str {
        match self {
            Self::Ipv4 => "iptables",
            Self::Ipv6 => "ip6tables",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        })
    }
}

impl From<IpAddr> for Family {
    fn from(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::Ipv4 } else { Self::Ipv6 }
    }
}

/// `IPv4`, `IPv6`, or the program: `iptables`, `ip6tables`.
impl FromStr for Family {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|family| text == family.program() || text == family.to_string());
        found.ok_or_else(|| unknown("family", text, "IPv4 or IPv6"))
    }
}

/// The kernel interface behind a program. The two are separate rule sets; packets pass both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Backend {
    /// `ip_tables` and `ip6_tables`: `v1.8.9 (legacy)`, and every version before 1.8. Off by default in kernels since
    /// 6.17.
    Legacy,
    /// `nf_tables` through its iptables-compatible programs: `v1.8.9 (nf_tables)`.
    NfTables,
}

impl Backend {
    /// Both back ends, `nf_tables` first.
    pub const ALL: [Self; 2] = [Self::NfTables, Self::Legacy];

    /// The word in program names: `iptables-legacy`, `iptables-nft`.
    pub fn program_suffix(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::NfTables => "nft",
        }
    }

    /// The other back end.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Legacy => Self::NfTables,
            Self::NfTables => Self::Legacy,
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Legacy => "legacy",
            Self::NfTables => "nf_tables",
        })
    }
}

/// `legacy`, or `nf_tables` (also `nft`).
impl FromStr for Backend {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self, Error> {
        let found =
            Self::ALL.into_iter().find(|backend| text == backend.program_suffix() || text == backend.to_string());
        found.ok_or_else(|| unknown("back end", text, "legacy or nf_tables"))
    }
}

fn unknown(what: &str, text: &str, allowed: &str) -> Error {
    Error::new(ErrorKind::InvalidName, format!("{what} \"{}\" is unknown; there is {allowed}", excerpt(text)))
}

/// White space according to `isspace` in the C locale, or a control byte. Neither can be part of a name.
fn breaks_name(byte: u8) -> bool {
    byte <= b' ' || byte == 0x7f
}

/// The name of a table.
///
/// The kernel has `raw`, `mangle`, `nat`, `filter` and `security`; a module may add others. At most 31 bytes
/// (`XT_TABLE_MAXNAMELEN` in `include/uapi/linux/netfilter/x_tables.h`), no white space.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "String", into = "String")
)]
pub struct TableName(Cow<'static, str>);

impl TableName {
    /// `filter`
    pub const FILTER: Self = Self(Cow::Borrowed("filter"));
    /// `nat`
    pub const NAT: Self = Self(Cow::Borrowed("nat"));
    /// `mangle`
    pub const MANGLE: Self = Self(Cow::Borrowed("mangle"));
    /// `raw`
    pub const RAW: Self = Self(Cow::Borrowed("raw"));
    /// `security`
    pub const SECURITY: Self = Self(Cow::Borrowed("security"));

    /// # Errors
    /// [`ErrorKind::InvalidName`] if empty, longer than 31 bytes, or with white space or control characters.
    pub fn new(name: impl Into<String>) -> Result<Self, Error> {
        let name = name.into();
        if name.is_empty() || name.len() > 31 || name.bytes().any(breaks_name) {
            return Err(Error::new(
                ErrorKind::InvalidName,
                format!("table name \"{}\" is empty, longer than 31 bytes or has white space", excerpt(&name)),
            ));
        }
        Ok(Self(Cow::Owned(name)))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The built-in chains of this table, in the order of `iptables-save`; empty for an unknown table.
    pub fn builtin_chains(&self) -> &'static [&'static str] {
        match self.as_str() {
            "filter" | "security" => &["INPUT", "FORWARD", "OUTPUT"],
            "nat" => &["PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"],
            "mangle" => &["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"],
            "raw" => &["PREROUTING", "OUTPUT"],
            _ => &[],
        }
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<TableName> for String {
    fn from(name: TableName) -> Self {
        name.0.into_owned()
    }
}

macro_rules! from_text {
    ($($name:ident),*) => {$(
        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(name: String) -> Result<Self, Error> {
                Self::new(name)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = Error;
            fn try_from(name: &str) -> Result<Self, Error> {
                Self::new(name)
            }
        }

        impl FromStr for $name {
            type Err = Error;
            fn from_str(name: &str) -> Result<Self, Error> {
                Self::new(name)
            }
        }
    )*};
}

from_text!(TableName, ChainName);

/// The name of a chain.
///
/// [`ChainName::new`] accepts what both back ends can create. That is 1 to 28 bytes (`XT_EXTENSION_MAXNAMELEN` minus
/// the NUL), no white space, control character or double quote, and no leading `-` or `!`. A parsed dump may contain
/// other names. They can be read and compared, but a [`Transaction`](crate::Transaction) refuses to write them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "String", into = "String")
)]
pub struct ChainName(Arc<str>);

impl ChainName {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 28;

    /// # Errors
    /// [`ErrorKind::InvalidName`] if no program could create such a chain. The message names the broken rule.
    pub fn new(name: impl Into<String>) -> Result<Self, Error> {
        let name = name.into();
        Self::check(&name)?;
        Ok(Self(name.into()))
    }

    /// A name that another program has put into the kernel.
    pub(crate) fn observed(name: &str) -> Result<Self, Error> {
        if name.is_empty() || name.bytes().any(breaks_name) {
            return Err(Error::new(
                ErrorKind::InvalidName,
                format!("chain name \"{}\" is empty or has control characters", excerpt(name)),
            ));
        }
        Ok(Self(name.into()))
    }

    /// Fails if this name came from a dump and the programs could not create it.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        Self::check(self.as_str())
    }

    fn check(name: &str) -> Result<(), Error> {
        match Self::defect(name) {
            Some(why) => Err(Error::new(ErrorKind::InvalidName, format!("chain name \"{}\" {why}", excerpt(name)))),
            None => Ok(()),
        }
    }

    /// The text, shared with rules that jump to this chain.
    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    fn defect(name: &str) -> Option<String> {
        let first = name.chars().next();
        if first.is_none() {
            Some("is empty".to_owned())
        } else if name.len() > Self::MAX_LEN {
            Some(format!("has {} bytes, the kernel takes at most {}", name.len(), Self::MAX_LEN))
        } else if matches!(first, Some('-' | '!')) {
            Some("starts with '-' or '!', which iptables refuses".to_owned())
        } else if name.bytes().any(|b| breaks_name(b) || b == b'"') {
            Some("has white space, a control character or a double quote".to_owned())
        } else {
            None
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::borrow::Borrow<str> for ChainName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<ChainName> for String {
    fn from(name: ChainName) -> Self {
        name.as_str().to_owned()
    }
}

impl PartialEq<str> for ChainName {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for ChainName {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_names_read_back() {
        for family in Family::ALL {
            assert_eq!(family.to_string().parse::<Family>().unwrap(), family);
            assert_eq!(family.program().parse::<Family>().unwrap(), family);
        }
        for backend in Backend::ALL {
            assert_eq!(backend.to_string().parse::<Backend>().unwrap(), backend);
            assert_eq!(backend.program_suffix().parse::<Backend>().unwrap(), backend);
        }
        assert_eq!("nat".parse::<TableName>().unwrap(), TableName::NAT);
        assert_eq!(TableName::try_from("nat").unwrap().to_string(), "nat");
        assert_eq!("a table".parse::<TableName>().unwrap_err().kind(), ErrorKind::InvalidName);
        let error = "nftables".parse::<Backend>().unwrap_err();
        assert_eq!(error.to_string(), "back end \"nftables\" is unknown; there is legacy or nf_tables");
        assert_eq!("DROP".parse::<crate::Policy>().unwrap().to_string(), "DROP");
        assert!("-".parse::<crate::Policy>().is_err());
        assert_eq!(ErrorKind::ChainMissing.to_string(), "no such chain");
    }
}
