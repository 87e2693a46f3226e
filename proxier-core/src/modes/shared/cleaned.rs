//! What an earlier mode has left: the Frontends that it still serves, and the result of removing it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use iptables::{Backend, TableName};
use ipvs::VirtualServerKey;

use crate::net::FrontendKey;
use crate::plan::report::{Applied, Unread};
use crate::ports::{PortError, PortErrorKind};

/// Result of a cleanup.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Cleaned {
    /// Operations that were carried out, and those that failed.
    pub applied: Applied,
    /// Parts that could not be read. Nothing of them was removed.
    pub unread: Vec<Unread>,
    /// Other programs' virtual servers, which stay.
    pub foreign: Vec<VirtualServerKey>,
    /// Objects that look like a kube-proxy's and that this cleanup cannot recognize or read, each with what to do. They
    /// stay, and may still affect packets.
    pub left: Vec<String>,
}

impl Cleaned {
    /// Whether none of this proxy's objects is left.
    pub fn is_done(&self) -> bool {
        self.unread.is_empty() && self.applied.failures.is_empty()
    }

    /// Number of objects removed.
    pub fn removed(&self) -> u64 {
        self.applied.done.values().sum()
    }

    /// Remaining objects that may still affect packets, in sentences: what could not be read or removed, and what is
    /// [left](Cleaned::left).
    pub fn leftovers(&self) -> impl Iterator<Item = String> {
        let unread = self.unread.iter().map(|unread| format!("what another mode left cannot be removed yet: {unread}"));
        let failures = self.applied.failures.iter();
        let failures = failures.map(|failure| format!("what another mode left cannot be removed yet: {failure}"));
        unread.chain(failures).chain(self.left.iter().cloned())
    }

    pub(crate) fn extend(&mut self, other: Cleaned) {
        self.applied.add(other.applied);
        self.unread.extend(other.unread);
        self.foreign.extend(other.foreign);
        self.left.extend(other.left);
    }

    pub(crate) fn miss(&mut self, what: impl Display, error: PortError) {
        self.unread.extend(missed(what, error));
    }
}

/// `None` if this kernel does not have it at all.
fn missed(what: impl Display, error: PortError) -> Option<Unread> {
    (error.kind() != PortErrorKind::Unavailable).then(|| Unread::new(what, error))
}

/// Whether a chain of a table stays in a cleanup, with the jumps to it, because the mode that serves has one with that
/// name.
pub(crate) type IsKept<'a> = &'a dyn Fn(&TableName, &str) -> bool;

/// The same by back end, because the mode that serves has chains in one of them only.
pub(crate) type IsKeptIn<'a> = &'a dyn Fn(Backend, &TableName, &str) -> bool;

/// Frontends that the kernel serves, as far as readable.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ServedFrontends {
    /// Whether each has endpoints.
    pub(crate) frontends: BTreeMap<FrontendKey, bool>,
    /// Frontends that depend on chains whose names the new mode has too, and which its first pass replaces.
    pub(crate) replaced: BTreeSet<FrontendKey>,
    pub(crate) unread: Vec<Unread>,
}

impl ServedFrontends {
    pub(crate) fn add(&mut self, key: FrontendKey, has_endpoints: bool) {
        *self.frontends.entry(key).or_default() |= has_endpoints;
    }

    pub(crate) fn replaced_if(mut self, is_replaced: bool) -> Self {
        self.replaced.extend(self.frontends.keys().filter(|_| is_replaced));
        self
    }

    pub(crate) fn extend(&mut self, other: ServedFrontends) {
        self.replaced.extend(other.replaced);
        other.frontends.into_iter().for_each(|(key, has_endpoints)| self.add(key, has_endpoints));
        self.unread.extend(other.unread);
    }

    pub(crate) fn miss(&mut self, what: impl Display, error: PortError) {
        self.unread.extend(missed(what, error));
    }
}
