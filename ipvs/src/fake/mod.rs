//! A kernel made of code, with the real one's errno rules.
//!
//! The same suite of tests runs on this fake and on real kernels (`tests/suite` of this crate), so what it covers behaves the
//! same: the order in which things are checked, what each error number is, default values, flags with a mask, the list of
//! removed real servers, the order of dumps, and which families may be mixed.
//!
//! There are no packets: counters and connections are what [`FakeIpvs::set_counters`] says, and rates stay 0. Daemons are only
//! remembered.

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

/// Messages of a dump in one datagram: a real server takes about 400 bytes of the kernel's 32 KiB.
const DATAGRAM: usize = 80;
/// The family's number at first; the kernel gives out numbers from 16 on.
const FAMILY: u16 = 0x23;

type Change = Box<dyn FnOnce(&mut Table<'_>) + Send>;
type Changes = Box<dyn FnMut(&mut Table<'_>) + Send>;

struct State {
    namespace: Namespace,
    present: bool,
    family: u16,
    permitted: bool,
    /// Messages to the family so far.
    handled: u64,
    refusals: BTreeMap<u64, Errno>,
    before: BTreeMap<u64, Change>,
    during_dumps: Option<(u32, Changes)>,
}

/// A fake kernel's IPVS. Clones share one table, and so do all clients made from them.
#[derive(Clone)]
pub struct FakeIpvs {
    state: Arc<Mutex<State>>,
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

/// The table, lent to a change that happens in the middle of something; see [`FakeIpvs::change_during_dumps`].
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

impl State {
    fn with(namespace: Namespace) -> Self {
        State {
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
        FakeIpvs { state: Arc::new(Mutex::new(State::with(Namespace::new()))) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client of this kernel.
    ///
    /// # Errors
    /// As [`Client::open`], when [`set_present`](Self::set_present) has taken IPVS away.
    pub fn client(&self) -> Result<Client, Error> {
        self.client_with_faults().map(|(client, _)| client)
    }

    /// A client whose socket misbehaves as the [`Faults`] say; they can be changed while it is in use.
    ///
    /// # Errors
    /// As [`FakeIpvs::client`].
    pub fn client_with_faults(&self) -> Result<(Client, Arc<Mutex<Faults>>), Error> {
        self.connect(true)
    }

    fn connect(&self, arranged: bool) -> Result<(Client, Arc<Mutex<Faults>>), Error> {
        let transport = self.simulate(arranged);
        let faults = transport.faults();
        Ok((Client::with_transport(transport)?, faults))
    }

    /// A socket to this kernel, for what a [`Client`] does not do.
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

    /// Content of the table, without the refusals and changes arranged for clients.
    ///
    /// # Errors
    /// As [`Client::snapshot`], when IPVS is not present.
    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        self.connect(false)?.0.snapshot()
    }

    /// Content of the table in the words of `ipvsadm --save --numeric`, sorted by key.
    ///
    /// # Errors
    /// As [`FakeIpvs::snapshot`].
    pub fn dump(&self) -> Result<String, Error> {
        let mut rules = Ruleset::from(&self.snapshot()?);
        rules.sort();
        Ok(rules.to_string())
    }

    /// Carries out the operations of a text in the words of ipvsadm, behind the clients' back.
    ///
    /// # Errors
    /// The text's first mistake, or the first operation that is refused with its error number; those before it are done.
    pub fn load(&self, text: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        for operation in parse_batch(text)?.operations() {
            let errno = |errno| format!("{operation}: {}", Errno(errno));
            self.apply(operation).map_err(errno)?;
        }
        Ok(())
    }

    /// Carries out an operation behind the clients' back, as another program would.
    ///
    /// # Errors
    /// The kernel's error number, positive.
    pub fn apply(&self, operation: &Operation) -> Result<(), i32> {
        Table(&mut self.lock().namespace).apply(operation)
    }

    /// Takes IPVS away, as if its module were unloaded: the table is gone, looking the family up fails. Or brings it back,
    /// empty and under another number.
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

    /// Whether callers have `CAP_NET_ADMIN`; without it every command is refused with `EPERM`, reading too.
    pub fn set_permitted(&self, permitted: bool) {
        self.lock().permitted = permitted;
    }

    /// Whether IPv6 is part of this kernel's IPVS; without it, it answers `EAFNOSUPPORT`.
    pub fn set_ipv6(&self, ipv6: bool) {
        self.lock().namespace.ipv6 = ipv6;
    }

    /// Whether `lo` is up; without it the kernel has no local routes and refuses every new IPv4 real server with `EINVAL`.
    pub fn set_loopback(&self, up: bool) {
        self.lock().namespace.loopback = up;
    }

    /// Makes a module loadable: `ip_vs_<scheduler>` or `ip_vs_pe_<engine>`.
    pub fn add_module(&self, module: &str) {
        self.lock().namespace.modules.insert(module.to_owned());
    }

    /// Makes a module missing; what uses it already goes on.
    pub fn remove_module(&self, module: &str) {
        self.lock().namespace.modules.remove(module);
    }

    /// Adds a network interface, for synchronisation daemons.
    pub fn add_interface(&self, interface: &str) {
        self.lock().namespace.interfaces.insert(interface.to_owned());
    }

    /// Forgets removed real servers, as the kernel does after two minutes: those added again start with fresh counters.
    pub fn forget_removed(&self) {
        self.lock().namespace.empty_trash();
    }

    /// Refuses one message to come with this error number and leaves the table alone: 0 is the next one. Looking the family up
    /// does not count.
    pub fn refuse(&self, nth: u64, errno: i32) {
        let mut state = self.lock();
        let number = state.handled.saturating_add(nth);
        state.refusals.insert(number, Errno(errno));
    }

    /// Changes the table just before one message to come: 0 is the next one. The change must not use this handle, only the
    /// table it is lent.
    pub fn change_before(&self, nth: u64, change: impl FnOnce(&mut Table<'_>) + Send + 'static) {
        let mut state = self.lock();
        let number = state.handled.saturating_add(nth);
        state.before.insert(number, Box::new(change));
    }

    /// Changes the table this many times in the middle of dumps: each time after a datagram of 80 entries was filled, and at the
    /// end of a dump that has fewer. As the real one, the kernel goes on with the changed table and says nothing. The change must
    /// not use this handle, only the table it is lent.
    pub fn change_during_dumps(&self, times: u32, change: impl FnMut(&mut Table<'_>) + Send + 'static) {
        self.lock().during_dumps = (times > 0).then(|| -> (u32, Changes) { (times, Box::new(change)) });
    }

    /// Messages to the family so far.
    pub fn messages(&self) -> u64 {
        self.lock().handled
    }

    /// Sets the counters of a virtual server, or with `real` those of one of its real servers and how many connections it has:
    /// active and inactive. Returns whether there is such a thing.
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
