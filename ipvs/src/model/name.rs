//! Short names as the kernel stores them: schedulers, persistence engines, interfaces.

use std::fmt;

use crate::model::OutOfRange;

const MAX: usize = 15;

/// A name of 1 to 15 printable ASCII characters without white space, stored inline.
///
/// The kernel stores 16 bytes with the NUL (`IP_VS_SCHEDNAME_MAXLEN`, `IP_VS_PENAME_MAXLEN`, `IP_VS_IFNAME_MAXLEN`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    bytes: [u8; MAX],
    length: u8,
}

impl Name {
    /// Checks and copies a name.
    ///
    /// # Errors
    /// [`OutOfRange`] if the name is empty, longer than 15 bytes, or not printable ASCII.
    pub fn new(name: &str) -> Result<Self, OutOfRange> {
        let refuse =
            || OutOfRange::new("name", format!("{name:?}"), "1 to 15 printable ASCII characters without white space");
        let mut bytes = [0; MAX];
        let place = bytes.get_mut(..name.len()).ok_or_else(refuse)?;
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(refuse());
        }
        place.copy_from_slice(name.as_bytes());
        Ok(Name { bytes, length: u8::try_from(name.len()).unwrap_or(0) })
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.length)).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

impl std::str::FromStr for Name {
    type Err = OutOfRange;

    fn from_str(text: &str) -> Result<Self, OutOfRange> {
        Name::new(text)
    }
}

#[cfg(feature = "serde")]
netlink_batch::serde_as_text!(Name, "a name of at most 15 characters");
