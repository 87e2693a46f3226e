//! Runs work on several processors.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::LazyLock;
use std::thread;

/// Most threads: the rest of the node needs processors, too.
const MOST_THREADS: usize = 4;

/// Runs `make` on each item in a separate thread of this name, and `meanwhile` on this thread. Returns the results in
/// the order of the items. Items for which no thread could be started are made last. New threads have the network
/// namespace of the calling one.
pub(crate) fn map<T: Sync, U: Send, H>(
    name: &str,
    items: &[T],
    make: impl Fn(&T) -> U + Sync,
    meanwhile: impl FnOnce() -> H,
) -> (Vec<U>, H) {
    let make = &make;
    thread::scope(|scope| {
        let start = |item| (item, thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, move || make(item)));
        let started: Vec<_> = items.iter().map(start).collect();
        let here = meanwhile();
        let end = |(item, started): (&T, std::io::Result<thread::ScopedJoinHandle<'_, U>>)| match started {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_no_thread) => make(item),
        };
        (started.into_iter().map(end).collect(), here)
    })
}

/// Number of processors that this process may use. Cached, since finding out reads files.
fn processors() -> usize {
    static PROCESSORS: LazyLock<usize> = LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get));
    *PROCESSORS
}

/// Runs `make` on parts of the items in several threads, if each part has at least `worth_a_thread` items. Returns the
/// results in the order of the items.
pub(crate) fn map_parts<T: Sync, U: Send>(
    items: &[T],
    worth_a_thread: usize,
    make: impl Fn(&[T]) -> U + Sync,
) -> Vec<U> {
    let worthy = items.len().checked_div(worth_a_thread).unwrap_or_default();
    if worthy < 2 {
        return vec![make(items)];
    }
    let threads = processors().min(MOST_THREADS).min(worthy);
    let mut parts = items.chunks(items.len().div_ceil(threads).max(1));
    let first = parts.next().unwrap_or_default();
    let rest: Vec<&[T]> = parts.collect();
    let (rest, first) = map("part", &rest, |part| make(part), || make(first));
    std::iter::once(first).chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORTH_A_THREAD: usize = 100;

    #[test]
    fn the_order_is_kept() {
        for count in [0, 1, WORTH_A_THREAD, 2 * WORTH_A_THREAD, 10 * WORTH_A_THREAD + 1] {
            let items: Vec<usize> = (0..count).collect();
            assert_eq!(map_parts(&items, WORTH_A_THREAD, <[usize]>::to_vec).concat(), items);
        }
    }

    #[test]
    fn a_panic_of_a_thread_reaches_the_caller() {
        let items: Vec<usize> = (0..4 * WORTH_A_THREAD).collect();
        let run = || map_parts(&items, WORTH_A_THREAD, |part| assert_ne!(part.last(), items.last()));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    }
}
