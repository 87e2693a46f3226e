//! Frontends that the kernel goes on serving for a mode that does not run any more.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use crate::net::FrontendKey;
use crate::plan::report::Unread;
use crate::ports::{PortError, PortErrorKind};
use crate::safeguard::Kernel;

/// Frontends that the kernel serves, as far as it could be read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ServedFrontends {
    /// The Frontends, with whether there are endpoints.
    pub(crate) frontends: BTreeMap<FrontendKey, bool>,
    /// Frontends that depend on chains whose names the new mode has too: its first pass replaces them.
    pub(crate) replaced: BTreeSet<FrontendKey>,
    /// Parts that could not be read.
    pub(crate) unread: Vec<Unread>,
}

impl ServedFrontends {
    pub(crate) fn add(&mut self, key: FrontendKey, has_endpoints: bool) {
        *self.frontends.entry(key).or_default() |= has_endpoints;
    }

    /// Marks all Frontends as replaced if `is_replaced`.
    pub(crate) fn replaced_if(mut self, is_replaced: bool) -> Self {
        self.replaced.extend(self.frontends.keys().filter(|_| is_replaced));
        self
    }

    pub(crate) fn extend(&mut self, other: ServedFrontends) {
        self.replaced.extend(other.replaced);
        other.frontends.into_iter().for_each(|(key, has_endpoints)| self.add(key, has_endpoints));
        self.unread.extend(other.unread);
    }

    /// Notes what could not be read, unless this kernel does not have it at all.
    pub(crate) fn miss(&mut self, what: impl Display, error: PortError) {
        if error.kind() != PortErrorKind::Unavailable {
            self.unread.push(Unread::new(what, error));
        }
    }
}

impl Kernel for ServedFrontends {
    fn serves(&self, key: &FrontendKey) -> Option<bool> {
        self.frontends.get(key).copied()
    }
}
