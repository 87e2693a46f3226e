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
        #[doc(hidden)]
        pub enum Call {
            $($($read,)* $($write,)*)*
        }

        impl Call {
            /// All calls.
            pub const ALL: &'static [Call] = &[$($(Call::$read,)* $(Call::$write,)*)*];

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

/// The outcome of one item, or of a call without items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The kernel decides.
    Plain,
    Fail(PortError),
    /// It takes effect, and its answer is lost.
    DoneAndFail(PortError),
}

/// Selects operations on virtual and real servers that the kernel refuses.
pub type Objection = fn(&Operation) -> bool;

#[derive(Debug, Default)]
pub(super) struct Control {
    pub(super) faults: Vec<Fault>,
    /// Operations to refuse, and the error.
    pub(super) objection: Option<(Objection, PortErrorKind)>,
    /// Writes until the process dies. While there is such a limit, writes must be applied one by one.
    pub(super) left: Option<u64>,
    pub(super) crashed: bool,
    pub(super) writes: Writes,
    /// Another program's transactions, each committed before a transaction of the port.
    pub(super) others: VecDeque<nftables::Transaction>,
}

fn dead() -> PortError {
    PortError::new(PortErrorKind::Other, "the process has crashed: make a new engine and call FakeKernel::restart")
}

impl Control {
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

    /// Counts a call with this many items and decides the outcome of each, of the first if there are none; `None`: the
    /// kernel decides all. `spends`: its writes are not counted elsewhere.
    pub(super) fn decide(
        &mut self,
        call: Call,
        family: Option<Family>,
        items: usize,
        spends: bool,
    ) -> Option<Vec<Fate>> {
        if self.crashed {
            return Some(vec![Fate::Fail(dead()); items.max(1)]);
        }
        let number = u64::try_from(items).unwrap_or(u64::MAX);
        if call.is_write() {
            let count = self.writes.counter_mut(call);
            *count = count.saturating_add(number);
        }
        let spends = spends && call.is_write() && self.left.is_some();
        if self.faults.is_empty() && !spends {
            return None;
        }
        let mut fates = vec![Fate::Plain; items];
        let mut whole = None;
        self.faults.retain_mut(|fault| {
            if fault.call != call || fault.family.is_some_and(|wanted| Some(wanted) != family) {
                return true;
            }
            let error = PortError::new(fault.kind, format!("{call:?}: a fault was injected"));
            let fate = if fault.takes_effect { Fate::DoneAndFail(error) } else { Fate::Fail(error) };
            match &mut fault.nth {
                nth @ (Nth::Every | Nth::Call(0)) => {
                    whole.get_or_insert(fate);
                    *nth == Nth::Every
                }
                Nth::Call(left) => {
                    *left = left.saturating_sub(1);
                    true
                }
                Nth::Item(left) => {
                    if let Some(item) = usize::try_from(*left).ok().and_then(|place| fates.get_mut(place)) {
                        *item = fate;
                        return false;
                    }
                    *left = left.saturating_sub(number);
                    true
                }
            }
        });
        if let Some(whole) = whole {
            return Some(vec![whole; items.max(1)]);
        }
        for fate in fates.iter_mut().filter(|fate| spends && !matches!(fate, Fate::Fail(_))) {
            if !self.spend() {
                *fate = Fate::Fail(dead());
            }
        }
        fates.iter().any(|fate| *fate != Fate::Plain).then_some(fates)
    }
}
