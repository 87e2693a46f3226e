//! What a cleanup did.

use iptables::TableName;
use ipvs::VirtualServerKey;

use crate::ports::{PortError, PortErrorKind};
use crate::reconciler::report::{Applied, Unread};

/// What a cleanup did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cleaned {
    /// What was removed and what was not.
    pub applied: Applied,
    /// Parts that could not be read; nothing of them was removed.
    pub unread: Vec<Unread>,
    /// Virtual servers of somebody else, which stay.
    pub foreign: Vec<VirtualServerKey>,
}

impl Cleaned {
    /// Whether nothing of ours is left.
    pub fn is_done(&self) -> bool {
        self.unread.is_empty() && self.applied.failures.is_empty()
    }

    /// How many things were removed.
    pub fn removed(&self) -> u64 {
        self.applied.done.values().sum()
    }

    /// Adds what another cleanup did.
    pub fn extend(&mut self, other: Cleaned) {
        self.applied.failures.extend(other.applied.failures);
        for (what, count) in other.applied.done {
            let sum = self.applied.done.entry(what).or_default();
            *sum = sum.saturating_add(count);
        }
        self.unread.extend(other.unread);
        self.foreign.extend(other.foreign);
    }

    /// Notes what could not be read, unless this kernel does not have it at all.
    pub(crate) fn miss(&mut self, what: impl std::fmt::Display, error: PortError) {
        if error.kind() != PortErrorKind::Unavailable {
            self.unread.push(Unread::new(what, error));
        }
    }
}

/// Whether a chain of a table stays in a cleanup, with the jumps to it: the mode that serves has one of that name.
pub(crate) type IsKept<'a> = &'a dyn Fn(&TableName, &str) -> bool;
