//! Growing, random pauses between attempts.

use std::time::Duration;

use crate::time::Moment;

/// Growing pauses: each is up to twice as long as the previous one, up to a maximum.
///
/// Each pause is drawn from the upper half of its range. By default these are 0.5 to 1 s, then 1 to 2 s, 2 to 4 s, up
/// to 15 to 30 s. So the nodes of a cluster that fail together do not retry together. Equal seeds give equal pauses.
///
/// kube-proxy (from 1.34) waits for a whole sync period after any failure. Most failures here are brief: another
/// program held the lock of iptables, or memory was short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
    random: u64,
}

impl Backoff {
    /// The first pause of a reconciler after a failure: 1 s.
    pub(crate) const FIRST: Duration = Duration::from_secs(1);
    /// The shortest pause before jitter: 10 ms. Jitter at most halves it.
    pub(crate) const SHORTEST: Duration = Duration::from_millis(10);

    /// Pauses from `first` to `most`. Nodes should have different seeds.
    ///
    /// A `first` below [`SHORTEST`](Backoff::SHORTEST) is raised to it, and a `most` below `first` to `first`.
    pub(crate) fn new(first: Duration, most: Duration, seed: u64) -> Self {
        let first = first.max(Self::SHORTEST);
        Backoff { first, most: most.max(first), failures: 0, random: seed }
    }

    pub(crate) fn next_pause(&mut self) -> Duration {
        let factor = 1_u32.checked_shl(self.failures).unwrap_or(u32::MAX);
        let longest = self.first.saturating_mul(factor).min(self.most);
        self.failures = self.failures.saturating_add(1);
        let spread = u64::try_from(longest.as_nanos() >> 1).unwrap_or(u64::MAX);
        // Multiply and shift instead of dividing, to spread the draw evenly over `spread`.
        let drawn = u128::from(self.draw()).saturating_mul(spread.into()) >> 64;
        longest.saturating_sub(Duration::from_nanos(u64::try_from(drawn).unwrap_or(spread)))
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Failures since the last success.
    pub(crate) fn failures(&self) -> u32 {
        self.failures
    }

    /// The next number of SplitMix64, which is small and good enough to keep nodes apart.
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.random)
    }
}

/// The last steps of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
pub(crate) fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

/// Time to retry rules that could not be restored.
#[derive(Clone, Debug)]
pub(crate) struct RulesRetry {
    pub(crate) at: Moment,
    backoff: Backoff,
}

impl RulesRetry {
    /// The longest pause. What needs rules should not wait much longer than for the lock.
    const LONGEST: Duration = Duration::from_secs(5);

    pub(crate) fn new(seed: u64) -> Self {
        RulesRetry { at: Moment::ZERO, backoff: Backoff::new(Backoff::FIRST, Self::LONGEST, seed) }
    }

    pub(crate) fn failed(&mut self, now: Moment) {
        self.at = now.saturating_add(self.backoff.next_pause());
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "an overflow fails the test")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The first numbers for seed 1234567 from the authors' own program.
    #[test]
    fn the_sequence_is_splitmix64() {
        let mut backoff = Backoff::new(Backoff::FIRST, Backoff::FIRST, 1_234_567);
        let drawn = [backoff.draw(), backoff.draw(), backoff.draw()];
        assert_eq!(drawn, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn nodes_pause_differently() {
        let mut pauses: Vec<_> = (0..100)
            .map(|seed| Backoff::new(Duration::from_secs(1), Duration::from_secs(30), seed).next_pause())
            .collect();
        pauses.sort();
        pauses.dedup();
        assert_eq!(pauses.len(), 100);
        let early = pauses.iter().filter(|pause| **pause < Duration::from_millis(750)).count();
        assert!((30..70).contains(&early), "{early} of 100 in the first half");
    }

    proptest! {
        #[test]
        fn pauses_grow_to_the_maximum_and_start_again(
            seed: u64,
            first_ms in 0..100_000_u64,
            most_ms in 0..1_000_000_u64,
            failures in 1..80_u32,
        ) {
            let (first, most) = (Duration::from_millis(first_ms), Duration::from_millis(most_ms));
            let mut backoff = Backoff::new(first, most, seed);
            let (first, most) = (first.max(Backoff::SHORTEST), most.max(first).max(Backoff::SHORTEST));
            for failure in 0..failures {
                let longest = first.saturating_mul(2_u32.saturating_pow(failure)).min(most);
                prop_assert_eq!(backoff.failures(), failure);
                let pause = backoff.next_pause();
                prop_assert!(pause <= longest && pause >= longest / 2, "{:?} of {:?}", pause, longest);
            }
            backoff.reset();
            prop_assert!(backoff.next_pause() <= first);
        }
    }
}
