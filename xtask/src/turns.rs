//! Rotation: each run does a different part of the work.

use std::time::{SystemTime, UNIX_EPOCH};

/// Environment variable with proptest's seed, which also selects samples.
pub(crate) const SEED: &str = "PROPTEST_RNG_SEED";

/// The environment's seed, otherwise one from the clock.
pub(crate) fn seed() -> String {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().to_string();
    std::env::var(SEED).unwrap_or_else(|_none| now())
}

/// Selects one of several parts by seed. Consecutive seeds cover everything in as many runs as there are parts. `None`:
/// everything, every time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turns(pub(crate) Option<u64>);

impl Turns {
    /// The part for a seed. A seed that is not a number counts as 0.
    pub(crate) fn of(seed: &str) -> Self {
        Self(Some(seed.parse().unwrap_or(0)))
    }

    /// Whether this run includes this number, of which one in `one_in` (1 or more) is selected.
    pub(crate) fn takes(self, number: u64, one_in: u64) -> bool {
        let parts = one_in.max(1);
        self.0.is_none_or(|seed| (number % parts + seed % parts).is_multiple_of(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::Turns;

    #[test]
    fn consecutive_seeds_take_everything_once() {
        for number in [0, 3, 17, u64::MAX] {
            let seeds = (u64::MAX - 3)..=u64::MAX;
            assert_eq!(seeds.filter(|seed| Turns(Some(*seed)).takes(number, 4)).count(), 1, "{number}");
            assert!(Turns(None).takes(number, 4));
        }
        assert_eq!(Turns::of("no number"), Turns::of("0"));
    }
}
