//! Counters of virtual servers from IPVS: read for the Services on a page, limited per second, for any number of
//! clients.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ipvs::model::{ObservedRealServer, Stats};
use ipvs::{Client, VirtualServerKey};

/// How long counters are reused.
const FRESH: Duration = Duration::from_secs(1);
/// Most virtual servers to read in that time. Each takes two requests of a few microseconds.
const MOST: usize = 400;

#[derive(Clone, Debug, Default)]
pub(crate) struct ServerCounters {
    pub(crate) stats: Stats,
    pub(crate) real_servers: Vec<ObservedRealServer>,
}

impl ServerCounters {
    /// The sums of two virtual servers for one Frontend. A real server of both has the weight of the first.
    pub(super) fn with(&self, other: &ServerCounters) -> ServerCounters {
        let (mut stats, more) = (self.stats, other.stats);
        stats.connections = stats.connections.saturating_add(more.connections);
        stats.rates.connections = stats.rates.connections.saturating_add(more.rates.connections);
        stats.rates.bytes_in = stats.rates.bytes_in.saturating_add(more.rates.bytes_in);
        stats.rates.bytes_out = stats.rates.bytes_out.saturating_add(more.rates.bytes_out);
        let mut real_servers = self.real_servers.clone();
        for real in &other.real_servers {
            match real_servers.iter_mut().find(|of| of.server.key == real.server.key) {
                Some(known) => {
                    known.active_connections = known.active_connections.saturating_add(real.active_connections);
                    known.inactive_connections = known.inactive_connections.saturating_add(real.inactive_connections);
                    let rates = &mut known.stats.rates;
                    rates.connections = rates.connections.saturating_add(real.stats.rates.connections);
                }
                None => real_servers.push(*real),
            }
        }
        ServerCounters { stats, real_servers }
    }
}

/// Reads the counters of a virtual server; `None` if it does not exist or the kernel cannot be asked.
pub(crate) type Reader = Box<dyn FnMut(&VirtualServerKey) -> Option<ServerCounters> + Send>;

/// Reads from the running kernel, through a separate socket, so passes do not wait for it.
pub(super) fn of_kernel() -> Reader {
    let mut opened: Option<Client> = None;
    Box::new(move |key| {
        if opened.is_none() {
            opened = Client::open().ok();
        }
        let client = opened.as_mut()?;
        let stats = client.get_virtual_server(key).ok()?.stats;
        let mut real_servers = client.list_real_servers(key).ok()?;
        real_servers.sort_unstable_by_key(|real| real.server);
        Some(ServerCounters { stats, real_servers })
    })
}

/// Counters that were read within the last second.
pub(crate) struct Counters {
    reader: Reader,
    since: Option<Instant>,
    read: HashMap<VirtualServerKey, Option<ServerCounters>>,
}

impl std::fmt::Debug for Counters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counters").field("read", &self.read.len()).finish_non_exhaustive()
    }
}

impl Counters {
    pub(crate) fn new(reader: Reader) -> Self {
        Counters { reader, since: None, read: HashMap::new() }
    }

    /// Drops counters that are older than a second.
    pub(super) fn begin(&mut self, now: Instant) {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= FRESH) {
            self.read = HashMap::new();
            self.since = Some(now);
        }
    }

    /// Counters of a virtual server; `None` if it does not exist, or if this second's limit is reached.
    pub(super) fn get(&mut self, key: &VirtualServerKey) -> Option<&ServerCounters> {
        if !self.read.contains_key(key) {
            if self.read.len() >= MOST {
                return None;
            }
            self.read.insert(*key, (self.reader)(key));
        }
        self.read.get(key)?.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use ipvs::model::Protocol;

    use super::*;

    #[test]
    fn reads_per_second_are_bounded_for_any_request() {
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = reads.clone();
        let mut counters = Counters::new(Box::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Some(ServerCounters::default())
        }));
        let key = |port| VirtualServerKey::Address { protocol: Protocol::Tcp, addr: [10, 96, 0, 1].into(), port };
        let now = Instant::now();
        for _ in 0..3 {
            counters.begin(now);
            let known = (1..=1000).filter(|port| counters.get(&key(*port)).is_some()).count();
            assert_eq!((known, reads.load(Ordering::Relaxed)), (MOST, MOST));
        }
        counters.begin(now + Duration::from_millis(999));
        assert!(counters.get(&key(2000)).is_none());
        counters.begin(now + FRESH);
        assert!(counters.get(&key(2000)).is_some());
        assert_eq!(reads.load(Ordering::Relaxed), MOST + 1);
    }
}
