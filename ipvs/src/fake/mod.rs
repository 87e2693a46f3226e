//! A simulated kernel with the real one's error rules.
//!
//! One test suite runs on this fake and on real kernels (`tests/suite` of this crate). It covers the order of checks,
//! the error numbers, default values, flags with a mask, the list of removed real servers, the order of dumps, and
//! mixed address families.
//!
//! It has no packets. Counters and connections are set by [`FakeIpvs::set_counters`], and rates are always 0. Daemons
//! are recorded but do nothing.

mod address;
mod respond;
mod table;
mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipvs_sys::Fields;
pub use netlink_batch::testing::Faults;
use netlink_batch::testing::{Responder, Simulated};
use netlink_batch::{Encoder, Errno, Message, Transport};

use crate::batch::Operation;
use crate::client::Client;
use crate::error::Error;
use crate::fake::table::Namespace;
use crate::fake::wire::{AF_INET, AF_INET6, List};
use crate::model::{RealServerKey, Snapshot, Stats, VirtualServerKey};
use crate::text::{Ruleset, parse_batch};

/// Entries of a dump in one datagram: a real server takes about 400 bytes of the kernel's 32 KiB.
const DATAGRAM: usize = 80;
/// The family's first number; the kernel assigns numbers from 16 up.
const FAMILY: u16 = 0x23;

type Edit = Box<dyn FnOnce(&mut Table<'_>) + Send>;
type Edits = Box<dyn FnMut(&mut Table<'_>) + Send>;

struct Kernel {
    namespace: Namespace,
    present: bool,
    family: u16,
    permitted: bool,
    /// Number of messages handled so far.
    handled: u64,
    refusals: BTreeMap<u64, Errno>,
    before: BTreeMap<u64, Edit>,
    during_dumps: Option<(u32, Edits)>,
}

/// A simulated IPVS. Clones and their clients share one table.
#[derive(Clone)]
pub struct FakeIpvs {
    state: Arc<Mutex<Kernel>>,
}

impl fmt::Debug for FakeIpvs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("FakeIpvs")
            .field("namespace", &state.namespace)
            .field("present", &state.present)
            .field("permitted", &state.permitted)
            .finish_non_exhaustive()
    }
}

impl Default for FakeIpvs {
    fn default() -> Self {
        Self::new()
    }
}

/// Access to the table for a change in the middle of another operation; see [`FakeIpvs::change_during_dumps`].
#[derive(Debug)]
pub struct Table<'a>(&'a mut Namespace);

impl Table<'_> {
    /// Carries out an operation as another program would.
    ///
    /// # Errors
    /// The kernel's error number, positive.
    pub fn apply(&mut self, operation: &Operation) -> Result<(), i32> {
        let mut out = Encoder::new();
        operation.encode(&mut out);
        respond::set(self.0, operation.command().0, &List::new(out.as_slice())).map_err(|errno| errno.0)
    }
}

impl Kernel {
    fn with(namespace: Namespace) -> Self {
        Kernel {
            namespace,
            present: true,
            family: FAMILY,
            permitted: true,
            handled: 0,
            refusals: BTreeMap::new(),
            before: BTreeMap::new(),
            during_dumps: None,
        }
    }
}

impl FakeIpvs {
    /// An empty table, all schedulers and the `sip` engine present, interfaces `lo` and `eth0`.
    pub fn new() -> Self {
        FakeIpvs { state: Arc::new(Mutex::new(Kernel::with(Namespace::new()))) }
    }

    fn lock(&self) -> MutexGuard<'_, Kernel> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client of this kernel.
    pub fn client(&self) -> Result<Client, Error> {
        self.client_with_faults().map(|(client, _)| client)
    }

    /// A client whose socket fails according to the [`Faults`], which can be changed while it is in use.
    pub fn client_with_faults(&self) -> Result<(Client, Arc<Mutex<Faults>>), Error> {
        self.connect(true)
    }

    fn connect(&self, arranged: bool) -> Result<(Client, Arc<Mutex<Faults>>), Error> {
        let transport = self.simulate(arranged);
        let faults = transport.faults();
        Ok((Client::with_transport(transport)?, faults))
    }

    /// A socket to this kernel, for requests that [`Client`] does not make.
    pub fn transport(&self) -> impl Transport + use<> {
        self.simulate(true)
    }

    fn simulate(&self, arranged: bool) -> Simulated<impl Responder + use<>> {
        let state = Arc::clone(&self.state);
        let transport = Simulated::new(move |message: &Message<'_>| {
            respond::respond(&mut state.lock().unwrap_or_else(PoisonError::into_inner), message, arranged)
        });
        transport.faults().lock().unwrap_or_else(PoisonError::into_inner).dump_chunk = DATAGRAM;
        transport
    }

    /// Content of the table. Injected refusals and changes do not apply.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        self.connect(false)?.0.snapshot()
    }

    /// Content of the table in the syntax of `ipvsadm --save --numeric`, sorted by key.
    pub fn dump(&self) -> Result<String, Error> {
        let mut rules = Ruleset::from(&self.snapshot()?);
        rules.sort();
        Ok(rules.to_string())
    }

    /// Carries out operations in ipvsadm's syntax, as another program would.
    ///
    /// # Errors
    /// The first mistake in the text, or the first refused operation with its error number. Earlier operations stay in
    /// effect.
    pub fn load(&self, text: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for operation in parse_batch(text)?.operations() {
            let errno = |errno| format!("{operation}: {}", Errno(errno));
            self.apply(operation).map_err(errno)?;
        }
        Ok(())
    }

    /// Carries out one operation, as another program would.
    ///
    /// # Errors
    /// The kernel's error number, positive.
    pub fn apply(&self, operation: &Operation) -> Result<(), i32> {
        Table(&mut self.lock().namespace).apply(operation)
    }

    /// Unloads IPVS, or loads it again. Unloaded, its table is lost and looking up the family fails. Loaded, it is empty
    /// and has another number.
    pub fn set_present(&self, present: bool) {
        let mut state = self.lock();
        if present && !state.present {
            state.family = state.family.wrapping_add(1);
        }
        if !present {
            let old = &state.namespace;
            let mut namespace = Namespace::new();
            namespace.modules.clone_from(&old.modules);
            namespace.interfaces.clone_from(&old.interfaces);
            (namespace.ipv6, namespace.loopback) = (old.ipv6, old.loopback);
            state.namespace = namespace;
        }
        state.present = present;
    }

    /// Sets whether callers have `CAP_NET_ADMIN`. Without it every command fails with `EPERM`, including reads.
    pub fn set_permitted(&self, permitted: bool) {
        self.lock().permitted = permitted;
    }

    /// Sets whether IPVS supports IPv6. If not, it answers `EAFNOSUPPORT`.
    pub fn set_ipv6(&self, ipv6: bool) {
        self.lock().namespace.ipv6 = ipv6;
    }

    /// Sets whether `lo` is up. If not, there are no local routes and every new IPv4 real server is refused with `EINVAL`.
    pub fn set_loopback(&self, up: bool) {
        self.lock().namespace.loopback = up;
    }

    /// Makes a module loadable: `ip_vs_<scheduler>` or `ip_vs_pe_<engine>`.
    pub fn add_module(&self, module: &str) {
        self.lock().namespace.modules.insert(module.to_owned());
    }

    /// Removes a module. Virtual servers that already use it continue to work.
    pub fn remove_module(&self, module: &str) {
        self.lock().namespace.modules.remove(module);
    }

    /// Adds a network interface for synchronisation daemons.
    pub fn add_interface(&self, interface: &str) {
        self.lock().namespace.interfaces.insert(interface.to_owned());
    }

    /// Clears the list of removed real servers, as the kernel does after two minutes. Real servers added again start
    /// with fresh counters.
    pub fn forget_removed(&self) {
        self.lock().namespace.empty_trash();
    }

    /// Refuses a future message with this error number: 0 is the next one. The table is not changed. Looking up the
    /// family does not count.
    pub fn refuse(&self, nth: u64, errno: i32) {
        let mut state = self.lock();
        let number = state.handled.saturating_add(nth);
        state.refusals.insert(number, Errno(errno));
    }

    /// Changes the table just before a future message: 0 is the next one. The change must use only the table that it
    /// gets, not this handle.
    pub fn change_before(&self, nth: u64, change: impl FnOnce(&mut Table<'_>) + Send + 'static) {
        let mut state = self.lock();
        let number = state.handled.saturating_add(nth);
        state.before.insert(number, Box::new(change));
    }

    /// Changes the table in the middle of dumps, this many times: after each datagram of 80 entries, or at the end of a
    /// shorter dump. Like the real kernel, the dump continues in the changed table without a sign. The change must use
    /// only the table that it gets, not this handle.
    pub fn change_during_dumps(&self, times: u32, change: impl FnMut(&mut Table<'_>) + Send + 'static) {
        self.lock().during_dumps = (times > 0).then(|| -> (u32, Edits) { (times, Box::new(change)) });
    }

    /// Sets the counters of a virtual server, or with `real` the counters and the numbers of active and inactive
    /// connections of one of its real servers. Returns whether the server exists.
    pub fn set_counters(
        &self,
        key: &VirtualServerKey,
        real: Option<(&RealServerKey, u32, u32)>,
        connections: u64,
        bytes_in: u64,
    ) -> bool {
        let stats = Stats { connections, packets_in: connections, bytes_in, ..Stats::default() };
        let mut out = Encoder::new();
        key.put(&mut out);
        let mut state = self.lock();
        let key = wire::service_key(Some(out.as_slice()), true);
        let Ok(service) = key.and_then(|key| state.namespace.service_mut(&key)) else { return false };
        let Some((real, active, inactive)) = real else {
            service.stats = stats;
            return true;
        };
        let mut out = Encoder::new();
        real.put(&mut out);
        let family = if real.addr.is_ipv4() { AF_INET } else { AF_INET6 };
        let wanted = wire::destination(Some(out.as_slice()), family, false, true);
        let Ok(place) = wanted.and_then(|wanted| service.destination_mut(&wanted.key).ok_or(Errno::ENOENT)) else {
            return false;
        };
        place.stats = stats;
        (place.active, place.inactive) = (active, inactive);
        true
    }
}
