//! Checks that work costs what its input is long.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Time that this thread has been on a processor: other programs do not count.
fn busy() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// Least cost of some work in this many attempts.
pub fn cost(attempts: u8, mut work: impl FnMut()) -> Duration {
    let attempt = |work: &mut dyn FnMut()| {
        let start = busy();
        work();
        busy().saturating_sub(start)
    };
    (0..attempts).map(|_| attempt(&mut work)).min().unwrap_or_default()
}

/// Eight times as much takes eight times as long, plus a logarithm and cache effects, and 64 times if it is quadratic.
///
/// # Panics
/// If it is.
pub fn compare(what: &str, few: usize, small: Duration, large: Duration) {
    assert!(large < 24 * small, "{what}: {few} took {small:?}, {} took {large:?}", 8 * few);
}
