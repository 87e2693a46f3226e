//! Limits on the file descriptors that the relay has open, by use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::server::Shared;

/// Largest need of the rest of the process: servers for health and metrics, the source of changes, netlink.
const OTHERS: usize = 256;

/// Number of descriptors that the relay may have, of those that the process may: a quarter is left, or as many as the rest of the process
/// needs, but half is the relay's.
pub(super) fn share(open_files: usize) -> usize {
    let others = open_files.wrapping_div(4).max(OTHERS).min(open_files.wrapping_div(2));
    open_files.saturating_sub(others)
}

/// Purpose of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// A socket that listens: half of all at most, so that some are left for clients.
    Listener,
    /// A client's socket and its endpoint's.
    Connection,
    /// A client's socket of UDP.
    Flow,
    /// The two ends of a pipe: only while half of all are free, since data goes without pipes too.
    Pipe,
}

impl Use {
    fn number(self) -> usize {
        match self {
            Use::Listener | Use::Flow => 1,
            Use::Connection | Use::Pipe => 2,
        }
    }
}

/// Numbers of descriptors in use.
#[derive(Debug, Default)]
pub(super) struct InUse {
    all: AtomicUsize,
    listeners: AtomicUsize,
}

/// Adds to a counter unless it would be more than `most`.
pub(super) fn add(counter: &AtomicUsize, by: usize, most: usize) -> bool {
    let within = |now: usize| now.checked_add(by).filter(|then| *then <= most);
    counter.fetch_update(Relaxed, Relaxed, within).is_ok()
}

/// Descriptors that may be open. Given back when dropped.
#[derive(Debug)]
pub(super) struct Descriptors {
    shared: Arc<Shared>,
    of: Use,
}

impl Descriptors {
    /// `None`: there are no more for this.
    pub(super) fn reserve(shared: &Arc<Shared>, of: Use) -> Option<Self> {
        let (in_use, most) = (&shared.in_use, shared.most_descriptors());
        let half = most.wrapping_div(2);
        if of == Use::Listener && !add(&in_use.listeners, of.number(), half) {
            return None;
        }
        if !add(&in_use.all, of.number(), if of == Use::Pipe { half } else { most }) {
            if of == Use::Listener {
                in_use.listeners.fetch_sub(of.number(), Relaxed);
            }
            return None;
        }
        Some(Descriptors { shared: Arc::clone(shared), of })
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        self.shared.in_use.all.fetch_sub(self.of.number(), Relaxed);
        if self.of == Use::Listener {
            self.shared.in_use.listeners.fetch_sub(self.of.number(), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Settings;

    #[test]
    fn others_have_what_they_need_and_the_relay_at_least_half() {
        for (open_files, expected) in [(0, 0), (64, 32), (512, 256), (1024, 768), (4096, 3072), (1 << 20, 3 << 18)] {
            assert_eq!(share(open_files), expected, "{open_files}");
        }
    }

    #[test]
    fn each_use_has_its_limit_and_what_is_given_back_can_be_taken_again() {
        let shared = Arc::new(Shared::new(Settings::default(), 16));
        let reserve = |of| Descriptors::reserve(&shared, of);
        let all = |of| std::iter::from_fn(|| reserve(of)).collect::<Vec<_>>();
        let listeners = all(Use::Listener);
        assert_eq!((listeners.len(), all(Use::Pipe).len()), (8, 0));
        let mut clients = all(Use::Connection);
        assert_eq!(clients.len(), 4);
        assert!(reserve(Use::Flow).is_none());
        clients.pop();
        let flows = all(Use::Flow);
        assert_eq!(flows.len(), 2);
        drop((listeners, clients, flows));
        for (of, most) in [(Use::Pipe, 4), (Use::Connection, 8), (Use::Listener, 8)] {
            assert_eq!(all(of).len(), most, "{of:?}");
        }
        let clients = all(Use::Connection);
        assert!(reserve(Use::Listener).is_none(), "clients have everything");
        drop(clients);
        assert_eq!(all(Use::Listener).len(), 8, "a refusal takes nothing");
    }
}
