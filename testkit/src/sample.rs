//! Samples of a long list of cases, chosen by the run's seed.

use std::env;

/// A part of a long list of cases, which differs by seed.
///
/// The seed is that of the run's random input, `PROPTEST_RNG_SEED`; 0 if that is unset or not a number. The same seed
/// repeats a run. Consecutive seeds cover every case in as many runs as there are parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// `None`: every case.
    seed: Option<u64>,
}

impl Sample {
    /// The sample that the environment requests: every case if `PROXIER_SCENARIOS` is `all`, otherwise a part.
    pub fn asked_for() -> Self {
        let all = env::var("PROXIER_SCENARIOS").is_ok_and(|which| which == "all");
        let seed = env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
        Self { seed: (!all).then_some(seed) }
    }

    /// Whether this run includes case `number` of a list of which one in `one_in` (1 or more) runs.
    pub fn takes(self, number: usize, one_in: usize) -> bool {
        let Some(seed) = self.seed else { return true };
        let parts = one_in.max(1) as u64;
        (number as u64 % parts + seed % parts).is_multiple_of(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::Sample;

    #[test]
    fn consecutive_seeds_take_every_case_once() {
        for case in 0..50 {
            let runs = (u64::MAX - 9..=u64::MAX).filter(|seed| Sample { seed: Some(*seed) }.takes(case, 10));
            assert_eq!(runs.count(), 1, "{case}");
        }
        assert!((0..50).all(|case| Sample { seed: None }.takes(case, 10)));
        assert!(Sample { seed: Some(0) }.takes(20, 10));
        assert!(!Sample { seed: Some(1) }.takes(20, 10));
    }
}
