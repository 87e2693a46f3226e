//! Limits the file descriptors that the relay has open, by use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use nix::sys::resource::{Resource, getrlimit};

/// Most descriptors for the rest of the process: servers for health and metrics, the source of changes, netlink.
const OTHERS: usize = 256;

/// Number of descriptors for the relay, out of those of the process.
pub(super) fn own_share() -> usize {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).ok().and_then(|(open_files, _)| usize::try_from(open_files).ok());
    share(limit.unwrap_or(usize::MAX))
}

/// A quarter stays free, or as many as the rest of the process needs. The relay gets at least half.
fn share(open_files: usize) -> usize {
    let others = open_files.wrapping_div(4).max(OTHERS).min(open_files.wrapping_div(2));
    open_files.saturating_sub(others)
}

/// Limit for the clients of one Service port, as a multiple of what is left. One alone gets three quarters of all, two
/// 3/7 each, three 3/10. So other clients can always start connections and listeners can be opened.
const TIMES_WHAT_IS_LEFT: usize = 3;

/// What a descriptor is used for.
#[derive(Debug)]
pub(super) enum Use {
    /// A listening socket. They get at most half of all, so that some are left for clients.
    Listener,
    /// The sockets of a client and its endpoint, with the number of those of its Service port.
    Connection(Arc<AtomicUsize>),
    /// A client's UDP socket, likewise.
    Flow(Arc<AtomicUsize>),
    /// The two ends of a pipe. Only while half of all are free, since data can be moved without pipes.
    Pipe,
}

/// Number of descriptors in use.
#[derive(Debug, Default)]
pub(super) struct InUse {
    all: AtomicUsize,
    listeners: Arc<AtomicUsize>,
}

/// Adds to a counter unless it would exceed `most`.
fn add(counter: &AtomicUsize, by: usize, most: usize) -> bool {
    let within = |now: usize| now.checked_add(by).filter(|then| *then <= most);
    counter.fetch_update(Relaxed, Relaxed, within).is_ok()
}

/// Descriptors that may be open. They are returned on drop.
#[derive(Debug)]
pub(super) struct Descriptors {
    number: usize,
    in_use: Arc<InUse>,
    /// The counter of this use alone.
    own: Option<Arc<AtomicUsize>>,
}

impl Descriptors {
    /// `None`: no more are available for this use, out of `most`.
    pub(super) fn reserve(in_use: &Arc<InUse>, most: usize, of: Use) -> Option<Self> {
        let half = most.wrapping_div(2);
        let is_client = matches!(of, Use::Connection(_) | Use::Flow(_));
        let (number, own, most_own, most_in_all) = match of {
            Use::Listener => (1, Some(Arc::clone(&in_use.listeners)), half, most),
            Use::Connection(group) => (2, Some(group), usize::MAX, most),
            Use::Flow(group) => (1, Some(group), usize::MAX, most),
            Use::Pipe => (2, None, 0, half),
        };
        if own.as_ref().is_some_and(|own| !add(own, number, most_own)) {
            return None;
        }
        let of_clients = own.as_ref().filter(|_| is_client).map_or(0, |own| own.load(Relaxed));
        let stay_free = of_clients.div_ceil(TIMES_WHAT_IS_LEFT);
        if !add(&in_use.all, number, most_in_all.saturating_sub(stay_free)) {
            if let Some(own) = own {
                own.fetch_sub(number, Relaxed);
            }
            return None;
        }
        Some(Descriptors { number, in_use: Arc::clone(in_use), own })
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        self.in_use.all.fetch_sub(self.number, Relaxed);
        if let Some(own) = &self.own {
            own.fetch_sub(self.number, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_of_the_process_has_enough_and_the_relay_at_least_half() {
        for (open_files, expected) in [(0, 0), (64, 32), (512, 256), (1024, 768), (4096, 3072), (1 << 20, 3 << 18)] {
            assert_eq!(share(open_files), expected, "{open_files}");
        }
    }

    /// Takes as many of one use as possible, and holds them.
    fn all(in_use: &Arc<InUse>, most: usize, of: impl Fn() -> Use) -> Vec<Descriptors> {
        std::iter::from_fn(|| Descriptors::reserve(in_use, most, of())).collect()
    }

    #[test]
    fn each_use_has_its_limit_and_returned_descriptors_can_be_reused() {
        let in_use = Arc::default();
        let all = |of: &dyn Fn() -> Use| all(&in_use, 16, of);
        let group = Arc::default();
        let connection = || Use::Connection(Arc::clone(&group));
        for _ in 0..2 {
            let listeners = all(&|| Use::Listener);
            assert_eq!((listeners.len(), all(&|| Use::Pipe).len()), (8, 0));
            // 6 of the remaining 8: 2 stay free.
            let mut clients = all(&connection);
            assert_eq!(clients.len(), 3);
            clients.pop();
            assert_eq!(all(&|| Use::Flow(Arc::clone(&group))).len(), 2);
            drop((listeners, clients));
            assert_eq!(all(&|| Use::Pipe).len(), 4);
            assert_eq!(all(&connection).len(), 6);
        }
    }

    /// Each Service port takes as many as it can get, in sequence.
    #[test]
    fn clients_of_some_service_ports_leave_descriptors_to_others() {
        for most in [64, 768, 1 << 16] {
            let in_use = Arc::default();
            let mut held = Vec::new();
            for earlier in 0..7 {
                let group = Arc::default();
                let of_one = all(&in_use, most, || Use::Connection(Arc::clone(&group)));
                let left = most - 2 * (held.len() + of_one.len());
                assert!(!of_one.is_empty() || left <= 2, "{most}: {earlier} have taken all");
                assert!(2 * of_one.len() <= 3 * left, "{most}: {} and {left} left", of_one.len());
                held.extend(of_one);
            }
            let listener = Descriptors::reserve(&in_use, most, Use::Listener);
            assert!(listener.is_some(), "{most}");
        }
    }
}
