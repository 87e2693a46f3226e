//! A kernel in memory that speaks ipset's messages: feature `testing`.
//!
//! The fake keeps the kernel's rules for what exists, what is in use, which error number answers what, and at which entry a
//! message of many stops; it passes the same tests as the kernel. It knows every type with its options and offers the
//! revisions of Linux 6.6.
//!
//! Limits: no time passes (timeouts stay as they are), nothing is hashed (entries are listed in order of their values), packets
//! are not counted, and prefix lengths and ranges are not judged where types differ in what they allow.

mod reply;
mod rules;
mod state;

use std::sync::{Arc, Mutex, PoisonError};

use netlink_batch::testing::{Reply, Responder, Simulated};
use netlink_batch::{Message, Transport};

use crate::model::SetName;
use state::State;

/// A namespace's sets. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct FakeIpset {
    state: Arc<Mutex<State>>,
}

impl FakeIpset {
    /// A namespace without sets.
    pub fn new() -> Self {
        Self::default()
    }

    /// A way to talk to it, for [`Client::with_transport`](crate::Client::with_transport).
    pub fn transport(&self) -> impl Transport + use<> {
        Simulated::new(self.clone())
    }

    /// Notes that a rule refers to the set. `false` when there is no such set.
    pub fn add_reference(&self, name: &SetName) -> bool {
        self.lock().reference(name, 1)
    }

    /// Takes one such note back. `false` when there is no such set.
    pub fn remove_reference(&self, name: &SetName) -> bool {
        self.lock().reference(name, -1)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For tests that look at the bytes.
impl Responder for FakeIpset {
    fn respond(&mut self, message: &Message<'_>) -> Reply {
        reply::answer(&mut self.lock(), message)
    }
}
