//! Steps that may come in any order.

use proptest::prelude::*;
use proxier_core::fake::{Call, Fault};
use proxier_core::ports::PortErrorKind;

use super::objects::{Change, change};

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Object(Change),
    /// Objects change while no watch runs, then complete lists arrive.
    Relist([u8; 10], [u8; 7], u8),
    Node(u8),
    /// Addresses of the host change, with or without a notification.
    Host(u8, bool),
    Trouble(Trouble),
    /// Cancels arranged failures.
    Quiet,
    /// Another program changes own virtual or real servers just before a message arrives.
    Race(u8, Damage),
    Damage(Damage),
    /// A foreign object is added or changed.
    Foreign(u8, u8),
    /// One pass, if one is due.
    Pass,
    /// This many half seconds pass.
    Wait(u8),
    Full,
    Preview,
    /// A real server gets this many connections.
    Connections(u8, u8),
    /// The process dies after this many writes.
    Crash(u8),
    /// The process ends, and another begins with these objects.
    Restart,
    /// The process ends, and another begins with other defaults of policy.
    OtherPolicy,
    /// The process ends, everything is cleaned up, another begins.
    CleanUp,
}

/// Damage to an own object: kind of damage, and number of the object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Damage(pub(crate) u8, pub(crate) u8);

/// A call that fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    pub(crate) call: u8,
    pub(crate) kind: u8,
    pub(crate) nth: u8,
    pub(crate) how: u8,
}

/// Kinds of failure that a kernel may report at any time: `NotFound` and `AlreadyExists` follow from its state.
const KINDS: [PortErrorKind; 7] = [
    PortErrorKind::Busy,
    PortErrorKind::Unknown,
    PortErrorKind::Other,
    PortErrorKind::Full,
    PortErrorKind::Permission,
    PortErrorKind::Unavailable,
    PortErrorKind::Invalid,
];

impl Trouble {
    pub(crate) fn call(self) -> Call {
        // Calls with items have the most that can fail.
        const ITEMS: [Call; 5] = [Call::IpvsRun, Call::SetsAdd, Call::SetsDelete, Call::LinksBind, Call::LinksUnbind];
        let all = usize::from(self.call) % (2 * Call::ALL.len());
        *Call::ALL.get(all).unwrap_or(&ITEMS[all % ITEMS.len()])
    }

    pub(crate) fn kind(self) -> PortErrorKind {
        KINDS[usize::from(self.kind) % KINDS.len()]
    }

    pub(crate) fn takes_effect(self) -> bool {
        self.how & 4 == 4
    }

    pub(crate) fn fault(self) -> Fault {
        let fault = Fault::new(self.call(), self.kind());
        let fault = match self.how & 3 {
            0 => fault.after_calls((self.nth % 4).into()),
            3 if self.nth.is_multiple_of(4) => fault.every(),
            _ => fault.item((self.nth % 32).into()),
        };
        if self.takes_effect() { fault.takes_effect() } else { fault }
    }
}

fn damage() -> impl Strategy<Value = Damage> {
    any::<(u8, u8)>().prop_map(|(what, which)| Damage(what, which))
}

fn step() -> impl Strategy<Value = Step> {
    let trouble = any::<(u8, u8, u8, u8)>().prop_map(|(call, kind, nth, how)| Trouble { call, kind, nth, how });
    prop_oneof![
        32 => change().prop_map(Step::Object),
        2 => any::<([u8; 10], [u8; 7], u8)>().prop_map(|(service, slice, gone)| Step::Relist(service, slice, gone)),
        2 => any::<u8>().prop_map(Step::Node),
        3 => any::<(u8, bool)>().prop_map(|(which, told)| Step::Host(which, told)),
        10 => trouble.prop_map(Step::Trouble),
        2 => Just(Step::Quiet),
        3 => (any::<u8>(), damage()).prop_map(|(nth, damage)| Step::Race(nth, damage)),
        6 => damage().prop_map(Step::Damage),
        4 => any::<(u8, u8)>().prop_map(|(what, which)| Step::Foreign(what, which)),
        20 => Just(Step::Pass),
        8 => (0_u8..100).prop_map(Step::Wait),
        2 => Just(Step::Full),
        1 => Just(Step::Preview),
        3 => any::<(u8, u8)>().prop_map(|(which, count)| Step::Connections(which, count)),
        2 => (0_u8..60).prop_map(Step::Crash),
        2 => Just(Step::Restart),
        1 => Just(Step::OtherPolicy),
        1 => Just(Step::CleanUp),
    ]
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    proptest::collection::vec(step(), 1..30)
}
