//! Turns: a run does a part of its work, another part each time.

use std::ffi::{OsStr, OsString};
use std::time::{SystemTime, UNIX_EPOCH};

/// Variable with the start of proptest's random numbers, which also selects samples.
pub(crate) const SEED: &str = "PROPTEST_RNG_SEED";

/// The environment's seed, else one of this moment.
pub(crate) fn seed() -> OsString {
    std::env::var_os(SEED).unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_millis().to_string().into()
    })
}

/// A choice of one in so many, by a seed: as many runs as there are parts, with seeds one after the other, take everything once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turns {
    /// `None`: everything.
    seed: Option<u64>,
}

impl Turns {
    /// Everything, every time.
    pub(crate) const ALL: Self = Self { seed: None };

    /// The part that goes with a seed; one that is no number counts as 0.
    pub(crate) fn of(seed: &OsStr) -> Self {
        Self { seed: Some(seed.to_str().and_then(|seed| seed.parse().ok()).unwrap_or(0)) }
    }

    /// Whether it is the turn of this number, of which one in `one_in` (1 or more) is taken.
    pub(crate) fn takes(self, number: u64, one_in: u64) -> bool {
        let Some(seed) = self.seed else { return true };
        let parts = one_in.max(1);
        (number % parts + seed % parts).is_multiple_of(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::Turns;

    #[test]
    fn seeds_one_after_the_other_take_everything_once() {
        for number in [0, 3, 17, u64::MAX] {
            let seeds = (u64::MAX - 3)..=u64::MAX;
            assert_eq!(
                seeds.filter(|seed| Turns::of(seed.to_string().as_ref()).takes(number, 4)).count(),
                1,
                "{number}"
            );
            assert!(Turns::ALL.takes(number, 4));
        }
        assert_eq!(Turns::of("no number".as_ref()), Turns::of("0".as_ref()));
    }
}
