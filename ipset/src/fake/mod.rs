//! A simulated kernel that understands ipset's messages (feature `testing`).
//!
//! The fake follows the kernel's rules: existence, use, error numbers, and the entry at which a message with many
//! entries stops. It passes the same tests as the kernel. It supports every type with its options and the revisions of
//! Linux 6.6.
//!
//! Limits: no time passes, so entries do not time out. Nothing is hashed, so entries are listed in order of their
//! values. Packets are not counted. Type-specific limits on prefix lengths and ranges are not checked.

mod reply;
mod rules;
mod state;

use std::sync::{Arc, Mutex, PoisonError};

use netlink_batch::testing::{Reply, Responder, Simulated};
use netlink_batch::{Message, Transport};

use crate::model::SetName;
use state::Sets;

/// The sets of a namespace. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct FakeIpset {
    state: Arc<Mutex<Sets>>,
}

impl FakeIpset {
    /// A namespace without sets.
    pub fn new() -> Self {
        Self::default()
    }

    /// A transport to it, for [`Client::with_transport`](crate::Client::with_transport).
    pub fn transport(&self) -> impl Transport + use<> {
        Simulated::new(self.clone())
    }

    /// Records that a rule refers to the set. `false` if the set does not exist.
    pub fn add_reference(&self, name: &SetName) -> bool {
        self.lock().reference(name, 1)
    }

    /// Removes one such reference. `false` if the set does not exist.
    pub fn remove_reference(&self, name: &SetName) -> bool {
        self.lock().reference(name, -1)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Sets> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For tests that examine the bytes.
impl Responder for FakeIpset {
    fn respond(&mut self, message: &Message<'_>) -> Reply {
        reply::answer(&mut self.lock(), message)
    }
}
