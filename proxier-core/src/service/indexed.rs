//! Frontends of all Services with the index of one mode.

use super::{Desired, FrontendObserver, NodeFacts};
use crate::snapshot::{ObjectKey, Store};

/// [`Desired`] and one of its [`FrontendObserver`]s, kept in step, for tools and tests that compile Services without a
/// [`Reconciler`](crate::engine::Reconciler).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexed<F> {
    /// Frontends of all Services.
    pub desired: Desired,
    /// State that follows it.
    pub index: F,
}

impl<F: FrontendObserver> Indexed<F> {
    /// The pair without Services.
    pub fn new(index: F) -> Self {
        Indexed { desired: Desired::new(), index }
    }

    /// Compiles and indexes all Services of a store.
    pub fn build(store: &Store, facts: &NodeFacts, index: F) -> Self {
        let mut indexed = Indexed::new(index);
        let services = store.services().map(|service| &service.key).chain(store.frontend_keys());
        indexed.desired.refresh(store, facts, services, &mut indexed.index);
        indexed
    }

    /// Compiles these Services again. Those that are no longer in the store are removed.
    pub fn refresh<'a>(&mut self, store: &Store, facts: &NodeFacts, services: impl IntoIterator<Item = &'a ObjectKey>) {
        self.desired.refresh(store, facts, services, &mut self.index);
    }

    /// Compiles every Service again: after a change of the node facts, or with another store.
    pub fn refresh_all(&mut self, store: &Store, facts: &NodeFacts) {
        self.refresh(store, facts, &self.desired.services_with(store));
    }
}
