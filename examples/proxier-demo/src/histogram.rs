//! Histograms in the format of Prometheus.

use std::sync::LazyLock;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds, ascending.
    bounds: &'static [f64],
    /// Number of observations in each bucket. The last bucket is above all bounds.
    counts: Vec<u64>,
    pub(crate) sum: f64,
}

/// From 1 ms, doubling up to 16.384 s.
pub(crate) const SYNC_SECONDS: [f64; 15] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];

/// 0.25, 0.5, each second up to one minute, every five seconds up to two minutes, every thirty up to five.
pub(crate) static PROGRAMMING_SECONDS: LazyLock<Vec<f64>> = LazyLock::new(|| {
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    [0.25, 0.5].into_iter().chain(seconds.map(f64::from)).collect()
});

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Self {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub fn observe(&mut self, duration: Duration) {
        self.add(duration.as_secs_f64());
    }

    /// Adds an observation in another unit.
    #[expect(clippy::cast_precision_loss, reason = "a histogram is not exact")]
    pub(crate) fn observe_number(&mut self, number: u64) {
        self.add(number as f64);
    }

    fn add(&mut self, observed: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < observed);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum += observed;
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The number of observations up to each bound.
    pub(crate) fn cumulated(&self) -> impl Iterator<Item = (f64, u64)> {
        let mut total = 0;
        self.bounds.iter().zip(&self.counts).map(move |(bound, count)| {
            total += count;
            (*bound, total)
        })
    }
}
