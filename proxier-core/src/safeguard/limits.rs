//! Limits of the safeguard.

use std::time::Duration;

/// Limits above which the removals of a pass are not believed: of Frontends, or of their last endpoints.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MassRemoval {
    /// Largest share of our Frontends, or of those with endpoints, that one pass may remove, 0 to 1. Default 0.5. With
    /// 1 nothing is ever held back; NaN counts as 0.
    pub share: f64,
    /// Largest share left for deletions to be held back, 0 to 1. If more is left, the input is different rather than
    /// missing. Default 0.5; with 0 only if nothing is left.
    pub remains: f64,
    /// Smallest number that is held back. Default 10: fewer are removed at once, so that a small cluster can lose its
    /// last Service.
    pub at_least: usize,
    /// How long the input must stay unchanged to be believed; `None`: until confirmed. Default 5 min.
    pub patience: Option<Duration>,
}

impl Default for MassRemoval {
    fn default() -> Self {
        MassRemoval { share: 0.5, remains: 0.5, at_least: 10, patience: Some(Duration::from_secs(5 * 60)) }
    }
}

impl MassRemoval {
    pub(super) fn is_too_much(&self, delete: usize, of: usize, wanted: usize) -> bool {
        let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        let share = if self.share.is_nan() { 0.0 } else { self.share };
        let remains = if self.remains.is_nan() { 1.0 } else { self.remains };
        let many = delete >= self.at_least.max(1) && number(delete) > share * number(of);
        many && number(wanted) <= remains * number(of)
    }
}
