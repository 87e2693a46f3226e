//! Records of a soak: failures, periods in which something was broken on purpose, and samples of the proxy.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use super::mode::Mode;

/// Interval of the machine's heartbeat.
const BEAT: Duration = Duration::from_millis(200);
/// The machine is considered stalled without a heartbeat for this long.
const STANDSTILL: Duration = Duration::from_secs(5);

/// Users that a fault may affect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    Everybody,
    /// All users, but only for timeouts, not for refusals.
    Waiting,
    Service(String),
    /// Clients of this address of the node.
    Address(IpAddr),
    /// Users of a Service in these ways.
    Uses(&'static [Use]),
    /// New connections: one of each client.
    OneEach,
}

/// A period in which something was broken from outside, until it was repaired.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) reason: &'static str,
    pub(super) scope: Scope,
    pub(super) from: Duration,
    /// `None`: not repaired yet.
    pub(super) until: Option<Duration>,
    /// Time limit of the repair, if the proxy must do it.
    pub(super) limit: Option<Duration>,
}

/// A way of using a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Use {
    /// Connects, asks, leaves.
    Short,
    /// Asks once a second for a while.
    Long,
    /// A query over UDP, three times if necessary.
    Datagram,
    /// A connection from the node itself.
    Node,
    /// A connection to the node's address that is removed and added.
    Flapping,
    /// A connection to another program's virtual server on this node.
    Foreign,
    /// A connection to a pod, without any Service.
    Direct,
    /// A connection from outside the source ranges, which must fail.
    Stranger,
    /// Answered by a pod that was no longer an endpoint.
    Stale,
}

/// Something that should not have happened.
#[derive(Clone, Debug)]
pub(super) struct Miss {
    pub(super) what: Use,
    pub(super) client: usize,
    pub(super) service: String,
    pub(super) place: String,
    pub(super) address: Option<IpAddr>,
    /// When it began, or last succeeded.
    pub(super) from: Duration,
    pub(super) until: Duration,
    /// There was no answer, rather than a refusal.
    pub(super) waited: bool,
    pub(super) error: String,
}

/// The state of the proxy's process at a moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Sample {
    pub(super) at_secs: f64,
    #[serde(serialize_with = "name")]
    pub(super) mode: Mode,
    pub(super) process: u32,
    pub(super) resident_kib: u64,
    pub(super) files: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn name<S: Serializer>(mode: &Mode, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(mode)
}

/// A change whose arrival in the kernel was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Followed {
    pub(super) from: Duration,
    pub(super) took: Duration,
    pub(super) arrived: bool,
}

/// A fault that was made.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) kind: &'static str,
    pub(super) detail: String,
    pub(super) from: Duration,
    pub(super) until: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) windows: Vec<Window>,
    pub(super) misses: Vec<Miss>,
    pub(super) made: BTreeMap<Use, u64>,
    pub(super) again: u64,
    pub(super) samples: Vec<Sample>,
    pub(super) followed: Vec<Followed>,
    pub(super) faults: Vec<Fault>,
    /// The proxy ended, failed to start, or stopped answering.
    pub(super) breakdowns: Vec<String>,
    pub(super) healthz: BTreeMap<String, u64>,
    /// By used Service and pod: when it was last an endpoint; `None` while it is one.
    pub(super) endpoints: BTreeMap<(String, u16), Option<Duration>>,
}

/// A clock that starts with the soak, and the records with its times.
#[derive(Debug)]
pub(super) struct Log {
    start: Instant,
    notes: Mutex<Notes>,
}

impl Log {
    pub(super) fn new() -> Self {
        Log { start: Instant::now(), notes: Mutex::default() }
    }

    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something is broken from now on. The returned number is for [`Log::close`].
    pub(super) fn open(&self, reason: &'static str, scope: Scope, limit: Option<Duration>) -> usize {
        let from = self.now();
        let mut notes = self.notes();
        notes.windows.push(Window { reason, scope, from, until: None, limit });
        notes.windows.len().saturating_sub(1)
    }

    /// Records periods in which the whole machine stalls, until told to stop. They excuse clients that timed out then.
    pub(super) fn watch_the_machine(self: &Arc<Self>, stop: &Arc<AtomicBool>) -> JoinHandle<()> {
        let (log, stop) = (self.clone(), stop.clone());
        std::thread::spawn(move || {
            let mut last = log.now();
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(BEAT);
                let now = log.now();
                if now.saturating_sub(last) > BEAT + STANDSTILL {
                    let reason = "the machine stood still";
                    let window = Window { reason, scope: Scope::Waiting, from: last, until: Some(now), limit: None };
                    log.notes().windows.push(window);
                }
                last = now;
            }
        })
    }

    pub(super) fn close(&self, window: usize) {
        let now = self.now();
        if let Some(window) = self.notes().windows.get_mut(window) {
            window.until = Some(now);
        }
    }
}
