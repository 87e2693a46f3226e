//! Waits until the kernel releases an object to which a deleted rule referred.

use std::thread;
use std::time::Duration;

const PAUSE: Duration = Duration::from_millis(10);

/// Repeats an attempt while the object is in use, with at most this many pauses; returns the last outcome. The kernel
/// frees rules a moment after they are deleted, when no packet uses them any more (`nf_tables_trans_destroy_work`),
/// without a notification.
#[expect(clippy::disallowed_methods, reason = "the kernel says nothing when it has freed a rule")]
pub(super) fn until_released<T>(pauses: u32, is_in_use: impl Fn(&T) -> bool, mut attempt: impl FnMut() -> T) -> T {
    for _ in 0..pauses {
        let outcome = attempt();
        if !is_in_use(&outcome) {
            return outcome;
        }
        thread::sleep(PAUSE);
    }
    attempt()
}
