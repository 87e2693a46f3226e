//! Injected failures, and counts of writes.

use std::collections::VecDeque;

use ipvs::Operation;

use crate::net::Family;
use crate::ports::{PortError, PortErrorKind};

/// Defines the calls: the count of their writes, those that only read, and those that write.
macro_rules! calls {
    ($($counter:ident: $($read:ident)* => $($write:ident)*;)*) => {
        /// A method of a port. Operations, entries, addresses and routes are the items of a call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[non_exhaustive]
        #[doc(hidden)]
        pub enum Call {
            $($($read,)* $($write,)*)*
        }

        impl Call {
            /// All calls.
            pub const ALL: &'static [Call] = &[$($(Call::$read,)* $(Call::$write,)*)*];

            /// Whether it changes something.
            pub(crate) fn is_write(self) -> bool {
                matches!(self, $($(Call::$write)|*)|*)
            }
        }

        impl Writes {
            fn counter_mut(&mut self, call: Call) -> &mut u64 {
                match call {
                    $($(Call::$read)|* | $(Call::$write)|* => &mut self.$counter,)*
                }
            }
        }
    };
}

calls! {
    ipvs: IpvsSnapshot IpvsRealServers IpvsTimeouts => IpvsRun IpvsSetTimeouts;
    sets: SetsEntries => SetsCreate SetsAdd SetsDelete SetsReplace SetsDestroy;
    rules: RulesHasRandomFully RulesDump RulesCounters RulesCheck => RulesRestore;
    links: LinksAddresses LinksGateways => LinksCreateDevice LinksDeleteDevice LinksBind LinksUnbind;
    sysctls: SysctlsGet => SysctlsSet;
    conntrack: ConntrackFindUdp => ConntrackForgetFlows;
    tables: TablesGeneration TablesRead TablesTable TablesHasChain TablesCheck => TablesCommit;
    routes: RoutesNetworks => RoutesAdd RoutesDelete;
    relays: RelaysConfigure => RelaysServe;
}

/// When a fault happens, counted from when it was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Nth {
    Call(u64),
    Item(u64),
    Every,
}

/// An injected failure.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "it does nothing until it is given to FakeKernel::fail"]
#[doc(hidden)]
pub struct Fault {
    call: Call,
    kind: PortErrorKind,
    nth: Nth,
    takes_effect: bool,
    family: Option<Family>,
}

impl Fault {
    /// The next call of this method fails as a whole, without effect.
    pub fn new(call: Call, kind: PortErrorKind) -> Self {
        Fault { call, kind, nth: Nth::Call(0), takes_effect: false, family: None }
    }

    /// Lets this many calls succeed first.
    pub fn after_calls(mut self, calls: u64) -> Self {
        self.nth = Nth::Call(calls);
        self
    }

    /// Fails only the item after this many, in this call or later ones. For a method without items each call counts as
    /// one item.
    pub fn item(mut self, items_before: u64) -> Self {
        self.nth = Nth::Item(items_before);
        self
    }

    /// Fails every call, until [`FakeKernel::clear_faults`](super::FakeKernel::clear_faults).
    pub fn every(mut self) -> Self {
        self.nth = Nth::Every;
        self
    }

    /// The call takes effect although it fails, like a lost answer of kind [`PortErrorKind::Unknown`].
    pub fn takes_effect(mut self) -> Self {
        self.takes_effect = true;
        self
    }

    /// Only calls for this family count; for methods of rules and sets.
    pub fn family(mut self, family: Family) -> Self {
        self.family = Some(family);
        self
    }
}

/// Requested writes by port, including those that change nothing or are refused. A call without items counts as one,
/// except `restore`, which counts its tables, and `replace`, which counts at least one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Writes {
    /// Operations on virtual and real servers, and changes of timeouts.
    pub ipvs: u64,
    /// Entries added and deleted, sets created, replaced and destroyed.
    pub sets: u64,
    /// Tables in transactions.
    pub rules: u64,
    /// Addresses bound and unbound, devices created and deleted.
    pub links: u64,
    /// Values written below `/proc/sys`.
    pub sysctls: u64,
    /// Calls that search for flows to forget.
    pub conntrack: u64,
    /// nf_tables transactions.
    pub tables: u64,
    /// Local routes added and deleted.
    pub routes: u64,
    /// Listeners opened and changed.
    pub relays: u64,
}

impl Writes {
    /// Writes of all ports together.
    pub fn total(&self) -> u64 {
        let kernel = [self.ipvs, self.sets, self.rules, self.links, self.sysctls, self.conntrack, self.tables];
        let counts = kernel.into_iter().chain([self.routes, self.relays]);
        counts.fold(0, u64::saturating_add)
    }
}

/// The outcome of one call.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// The kernel decides.
    Plain,
    /// Fails as a whole; `true` if it takes effect anyway.
    Fail(PortError, bool),
    /// Some items fail.
    Items(Vec<Fate>),
}

/// The outcome of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Plain,
    Fail(PortError),
    DoneAndFail(PortError),
}

/// Selects operations on virtual and real servers that the kernel refuses.
pub type Objection = fn(&Operation) -> bool;

#[derive(Debug, Default)]
pub(super) struct Control {
    faults: Vec<Fault>,
    /// Operations to refuse, and the error.
    pub(super) objection: Option<(Objection, PortErrorKind)>,
    /// Writes until the process dies.
    left: Option<u64>,
    crashed: bool,
    pub(super) writes: Writes,
    /// Another program's transactions, each committed before a transaction of the port.
    pub(super) others: VecDeque<nftables::Transaction>,
}

fn injected(call: Call, kind: PortErrorKind) -> PortError {
    PortError::new(kind, format!("{call:?}: a fault was injected"))
}

fn dead() -> PortError {
    PortError::new(PortErrorKind::Other, "the process has crashed: make a new engine and call FakeKernel::restart")
}

impl Control {
    pub(super) fn add(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    pub(super) fn clear(&mut self) {
        self.faults.clear();
        self.objection = None;
    }

    pub(super) fn crash_after(&mut self, writes: u64) {
        self.left = Some(writes);
    }

    pub(super) fn restart(&mut self) {
        self.left = None;
        self.crashed = false;
    }

    pub(super) fn has_crashed(&self) -> bool {
        self.crashed
    }

    /// Whether a crash is planned, so that writes must be applied one by one.
    pub(super) fn is_armed(&self) -> bool {
        self.left.is_some()
    }

    /// Uses one of the remaining writes; `false` if the process is dead.
    pub(super) fn spend(&mut self) -> bool {
        match &mut self.left {
            _ if self.crashed => false,
            Some(0) => {
                self.crashed = true;
                false
            }
            Some(left) => {
                *left = left.saturating_sub(1);
                true
            }
            None => true,
        }
    }

    /// Counts a call with this many items and decides its outcome. `spends`: its writes are counted elsewhere.
    pub(super) fn decide(&mut self, call: Call, family: Option<Family>, items: usize, spends: bool) -> Verdict {
        if self.crashed {
            return Verdict::Fail(dead(), false);
        }
        if call.is_write() {
            let count = self.writes.counter_mut(call);
            *count = count.saturating_add(u64::try_from(items).unwrap_or(u64::MAX));
        }
        let spends = spends && call.is_write() && self.left.is_some();
        if self.faults.is_empty() && !spends {
            return Verdict::Plain;
        }
        let mut fates = vec![Fate::Plain; items];
        let mut whole = None;
        self.faults.retain_mut(|fault| {
            if fault.call != call || fault.family.is_some_and(|wanted| Some(wanted) != family) {
                return true;
            }
            match &mut fault.nth {
                Nth::Every => {
                    whole.get_or_insert((injected(call, fault.kind), fault.takes_effect));
                    true
                }
                Nth::Call(0) => {
                    whole.get_or_insert((injected(call, fault.kind), fault.takes_effect));
                    false
                }
                Nth::Call(left) => {
                    *left = left.saturating_sub(1);
                    true
                }
                Nth::Item(left) => {
                    let place = usize::try_from(*left).ok().and_then(|place| fates.get_mut(place));
                    if let Some(fate) = place {
                        let error = injected(call, fault.kind);
                        *fate = if fault.takes_effect { Fate::DoneAndFail(error) } else { Fate::Fail(error) };
                        return false;
                    }
                    *left = left.saturating_sub(u64::try_from(items).unwrap_or(u64::MAX));
                    true
                }
            }
        });
        if let Some((error, done)) = whole {
            return Verdict::Fail(error, done);
        }
        if spends {
            for fate in &mut fates {
                if !matches!(fate, Fate::Fail(_)) && !self.spend() {
                    *fate = Fate::Fail(dead());
                }
            }
        }
        if fates.iter().all(|fate| *fate == Fate::Plain) { Verdict::Plain } else { Verdict::Items(fates) }
    }
}
