//! Firewall marks that only one proxy uses.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use super::MarkBit;

/// Firewall marks that only this proxy uses: those whose `mark & mask` is `value`. Default `0x16000000/0xff00c000`,
/// which has 4,194,304 marks without kube-proxy's masquerade bit (`0x4000`) and the kubelet's drop bit (`0x8000`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkRange {
    /// The bits within the mask that all marks have.
    pub(crate) value: u32,
    pub(crate) mask: u32,
}

impl MarkRange {
    /// The kubelet's drop mark (`KUBE-MARK-DROP`).
    const DROP: u32 = 0x8000;

    /// The marks whose `mark & mask` is `value`. `None` if the value is 0 (mark 0 means "unmarked") or has bits outside
    /// the mask, or if there are fewer than 256 marks.
    pub(crate) fn new(value: u32, mask: u32) -> Option<Self> {
        let is_possible = value != 0 && value & !mask == 0 && mask.count_zeros() >= 8;
        is_possible.then_some(MarkRange { value, mask })
    }

    pub(crate) fn contains(self, mark: u32) -> bool {
        mark & self.mask == self.value
    }

    pub(crate) fn len(self) -> u32 {
        1_u32.checked_shl(self.mask.count_zeros()).unwrap_or(u32::MAX)
    }

    /// The mark with this index. The bits of `index`, lowest first, fill the bits outside the mask; excess bits are
    /// ignored.
    pub(crate) fn nth(self, index: u32) -> NonZeroU32 {
        let (mut mark, mut left) = (self.value, index);
        for place in 0..u32::BITS {
            let bit = 1_u32.wrapping_shl(place);
            if self.mask & bit == 0 {
                mark |= if left & 1 == 1 { bit } else { 0 };
                left = left.wrapping_shr(1);
            }
        }
        // The value is not 0.
        NonZeroU32::new(mark).unwrap_or(NonZeroU32::MIN)
    }

    /// Whether no mark in the range means "masquerade" or "drop" to other programs.
    pub(crate) fn is_apart_from(self, masquerade: MarkBit) -> bool {
        let meant = masquerade.mask() | Self::DROP;
        self.mask & meant == meant && self.value & meant == 0
    }
}

impl Default for MarkRange {
    fn default() -> Self {
        MarkRange { value: 0x1600_0000, mask: 0xff00_c000 }
    }
}

impl fmt::Display for MarkRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}/{:#010x}", self.value, self.mask)
    }
}

/// Parses `VALUE/MASK`, each decimal or hexadecimal (`0x…`).
impl FromStr for MarkRange {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => text.parse(),
        };
        let (value, mask) = text.split_once('/').ok_or(())?;
        let (Ok(value), Ok(mask)) = (number(value), number(mask)) else { return Err(()) };
        MarkRange::new(value, mask).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn marks_of_a_range_differ_and_stay_in_it() {
        let range: MarkRange = "0x16000000/0xff00c000".parse().unwrap();
        assert_eq!((range, range.len()), (MarkRange::default(), 1 << 22));
        assert_eq!(range.nth(1).get(), 0x1600_0001);
        // The two bits in the middle belong to other programs.
        assert_eq!(range.nth(1 << 14).get(), 0x1601_0000);
        let all: BTreeSet<u32> = (0..20_000).map(|index| range.nth(index).get()).collect();
        assert!(all.len() == 20_000 && all.iter().all(|mark| range.contains(*mark) && mark & 0xc000 == 0));
        assert!(range.is_apart_from(MarkBit::default()));
        assert!(!range.is_apart_from(MarkBit::new(25).unwrap()), "a bit that all of them have");
        assert!(!range.is_apart_from(MarkBit::new(3).unwrap()), "a bit that some of them have");
    }

    #[test]
    fn impossible_ranges_are_refused() {
        for text in ["", "7", "0/0xff", "0x100/0xff", "1/0xffffffff", "0x1/0xffffff01x", "1/0xffffffc0"] {
            assert!(text.parse::<MarkRange>().is_err(), "{text}");
        }
        assert_eq!("256/0xffffff00".parse::<MarkRange>().unwrap().len(), 256);
    }
}
