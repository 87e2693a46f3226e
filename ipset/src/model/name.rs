//! Names and other checked text: sets, comments, interfaces, MAC addresses, timeouts.

use std::fmt;
use std::str::FromStr;

use super::InvalidValue;
use crate::uapi::{IFNAMSIZ, IPSET_MAX_COMMENT_SIZE, IPSET_MAX_TIMEOUT, IPSET_MAXNAMELEN};

macro_rules! text {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(try_from = "String", into = "String"))]
        pub struct $name(Box<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// A name read from the kernel, which may break the rules of [`Self::new`] if another program wrote it.
            pub(crate) fn from_kernel(bytes: &[u8]) -> Self {
                $name(String::from_utf8_lossy(bytes).into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $name {
            type Err = InvalidValue;
            fn from_str(text: &str) -> Result<Self, InvalidValue> {
                Self::new(text)
            }
        }
        impl TryFrom<&str> for $name {
            type Error = InvalidValue;
            fn try_from(text: &str) -> Result<Self, InvalidValue> {
                Self::new(text)
            }
        }
        impl TryFrom<String> for $name {
            type Error = InvalidValue;
            fn try_from(text: String) -> Result<Self, InvalidValue> {
                Self::new(&text)
            }
        }
        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.0.into()
            }
        }
    };
}

text! {
    /// A set's name: 1 to 31 bytes.
    ///
    /// The kernel accepts any bytes except NUL. Blanks, quotes and control characters are refused here, since `ipset
    /// save` text cannot represent them. Sets with such names are still listed, and a listed name can be used to
    /// address its set.
    SetName
}

impl SetName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`InvalidValue::Name`].
    pub fn new(text: &str) -> Result<Self, InvalidValue> {
        let forbidden = |c: char| c.is_whitespace() || c.is_control() || c == '"' || c == '\'';
        if text.is_empty() || text.len() >= IPSET_MAXNAMELEN || text.contains(forbidden) {
            return Err(InvalidValue::Name(text.to_owned()));
        }
        Ok(SetName(text.into()))
    }
}

text! {
    /// An entry's comment: at most 255 bytes, without double quotes and control characters.
    Comment
}

impl Comment {
    /// Checks a comment.
    ///
    /// # Errors
    /// [`InvalidValue::Comment`].
    pub fn new(text: &str) -> Result<Self, InvalidValue> {
        if text.len() > IPSET_MAX_COMMENT_SIZE || text.contains(|c: char| c.is_control() || c == '"') {
            return Err(InvalidValue::Comment(text.to_owned()));
        }
        Ok(Comment(text.into()))
    }
}

text! {
    /// An interface's name: 1 to 15 bytes. The interface need not exist.
    Interface
}

impl Interface {
    /// Checks a name.
    ///
    /// # Errors
    /// [`InvalidValue::Interface`].
    pub fn new(text: &str) -> Result<Self, InvalidValue> {
        let forbidden = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | ',' | '"' | '\'');
        if text.is_empty() || text.len() >= IFNAMSIZ || text.contains(forbidden) {
            return Err(InvalidValue::Interface(text.to_owned()));
        }
        Ok(Interface(text.into()))
    }
}

/// An Ethernet address. Prints as `ipset save` does: `01:23:45:67:89:AB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02X}", if place == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

impl FromStr for MacAddr {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let invalid = || InvalidValue::Mac(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| (1..=2).contains(&part.len())).ok_or_else(invalid)?;
            *byte = u8::from_str_radix(part, 16).ok().filter(|_| !part.starts_with('+')).ok_or_else(invalid)?;
        }
        if parts.next().is_some() {
            return Err(invalid());
        }
        Ok(MacAddr(bytes))
    }
}

/// Lifetime of an entry: 1 to 2,147,483 seconds, or permanent.
///
/// A set's timeout is the default for entries without their own. An entry can only have a timeout if its set has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(try_from = "u32", into = "u32"))]
pub struct Timeout(u32);

impl Timeout {
    /// The entry never expires (0 on the wire).
    pub const PERMANENT: Timeout = Timeout(0);

    /// Checks a number of seconds; 0 means permanent.
    ///
    /// # Errors
    /// [`InvalidValue::Number`] above 2,147,483.
    pub fn from_secs(secs: u32) -> Result<Self, InvalidValue> {
        if secs > IPSET_MAX_TIMEOUT {
            return Err(InvalidValue::Number {
                what: "timeout",
                text: secs.to_string(),
                min: 0,
                max: IPSET_MAX_TIMEOUT.into(),
            });
        }
        Ok(Timeout(secs))
    }

    pub(crate) fn from_kernel(secs: u32) -> Self {
        Timeout(secs)
    }

    /// Seconds; 0 means permanent.
    pub fn secs(self) -> u32 {
        self.0
    }

    /// Whether the entry never expires.
    pub fn is_permanent(self) -> bool {
        self.0 == 0
    }
}

impl TryFrom<u32> for Timeout {
    type Error = InvalidValue;
    fn try_from(secs: u32) -> Result<Self, InvalidValue> {
        Timeout::from_secs(secs)
    }
}
impl From<Timeout> for u32 {
    fn from(timeout: Timeout) -> u32 {
        timeout.0
    }
}
