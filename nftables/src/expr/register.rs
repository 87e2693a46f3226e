//! Registers: 64 bytes that expressions read and write, and one for the verdict.

use std::fmt;

/// A register: that of the verdict, or one of sixteen slots of four bytes. A value may occupy several slots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(try_from = "Plain", into = "Plain"))]
pub struct Register(u8);

/// Slots of four bytes.
const SLOTS: u8 = 16;

impl Register {
    /// The verdict.
    pub const VERDICT: Register = Register(u8::MAX);
    /// The first slot.
    pub const FIRST: Register = Register(0);

    /// A slot by its number, 0 to 15.
    pub fn slot(number: u8) -> Option<Self> {
        (number < SLOTS).then_some(Register(number))
    }

    /// The slot after a value of this many bytes that starts here; `None` if there is none.
    pub fn behind(self, length: u32) -> Option<Self> {
        let slots = u8::try_from(length.div_ceil(4)).ok()?;
        if self == Register::VERDICT { None } else { Register::slot(self.0.checked_add(slots)?) }
    }

    /// Whether a value of this many bytes fits here.
    pub fn has_room(self, length: u32) -> bool {
        let slots = u8::try_from(length.div_ceil(4)).unwrap_or(u8::MAX);
        self != Register::VERDICT && self.0.saturating_add(slots) <= SLOTS
    }

    /// Number of the slot; `None` for the verdict's.
    pub fn number(self) -> Option<u8> {
        (self != Register::VERDICT).then_some(self.0)
    }

    /// `NFT_REG_*`, as the kernel writes it: with the old names for every fourth slot.
    pub(crate) fn to_wire(self) -> u32 {
        let slot = u32::from(self.0);
        match self {
            Register::VERDICT => 0,
            _ if slot % 4 == 0 => (slot / 4).saturating_add(1),
            _ => slot.saturating_add(8),
        }
    }

    pub(crate) fn from_wire(number: u32) -> Option<Self> {
        match u8::try_from(number).ok()? {
            0 => Some(Register::VERDICT),
            old @ 1..=4 => Register::slot(old.checked_sub(1)?.checked_mul(4)?),
            new => Register::slot(new.checked_sub(8)?),
        }
    }
}

/// Serialised form of a register.
#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Plain {
    Verdict,
    Slot(u8),
}

#[cfg(feature = "serde")]
impl TryFrom<Plain> for Register {
    type Error = crate::model::InvalidValue;
    fn try_from(plain: Plain) -> Result<Self, Self::Error> {
        let Plain::Slot(number) = plain else { return Ok(Register::VERDICT) };
        Register::slot(number).ok_or_else(|| Self::Error::new(format!("slot {number}"), "there are 0 to 15"))
    }
}

#[cfg(feature = "serde")]
impl From<Register> for Plain {
    fn from(register: Register) -> Self {
        register.number().map_or(Plain::Verdict, Plain::Slot)
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number() {
            Some(slot) => write!(f, "slot {slot}"),
            None => f.write_str("verdict"),
        }
    }
}

/// The registers with the first and the last of several values, which are equal for a single value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RegisterRange {
    /// Register with the first value.
    pub first: Register,
    /// Register with the last value.
    pub last: Register,
}

impl From<Register> for RegisterRange {
    fn from(register: Register) -> Self {
        RegisterRange { first: register, last: register }
    }
}
