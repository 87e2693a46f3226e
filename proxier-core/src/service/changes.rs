//! Services and Frontends that differ from the last written state.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Compiled, Desired, Frontend, FrontendObserver, Port};
use crate::net::{Family, FrontendKey};
use crate::pack::Gather as _;
use crate::snapshot::ObjectKey;

/// Frontends and Service ports that were compiled differently since they were last written, each in the written state.
///
/// A failed write and later changes merge into one step from the kernel's state to the desired one. A change that was
/// reverted is included too, but causes no operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    frontends: BTreeMap<FrontendKey, Option<Arc<Frontend>>>,
    services: BTreeMap<(Family, ObjectKey), ServiceBefore>,
}

/// Parts of a Service, in one family, that belong to no Frontend, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServiceBefore {
    pub(crate) ports: Vec<Arc<Port>>,
    pub(crate) health_check: Option<u16>,
}

impl ServiceBefore {
    /// The parts of a Service in a family; empty if it does not exist.
    pub(crate) fn from_compiled(compiled: Option<&Compiled>, family: Family) -> Self {
        let Some(compiled) = compiled else { return ServiceBefore::default() };
        let ports: Vec<_> = compiled.ports.iter().filter(|port| port.family == family).cloned().collect();
        let check = compiled.health_check().map(|check| check.port);
        ServiceBefore { health_check: check.filter(|_| !ports.is_empty()), ports }
    }
}

impl FrontendObserver for Changes {
    fn service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        let Some(service) = after.or(before).map(|compiled| &compiled.service) else { return };
        for family in Family::ALL {
            let [before, after] = [before, after].map(|of| ServiceBefore::from_compiled(of, family));
            if before != after {
                self.services.entry((family, service.clone())).or_insert(before);
            }
        }
    }

    fn frontend(&mut self, before: Option<&Arc<Frontend>>, after: Option<&Arc<Frontend>>) {
        if let Some(frontend) = after.or(before) {
            self.frontends.entry(frontend.key).or_insert_with(|| before.cloned());
        }
    }
}

impl Changes {
    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.frontends.is_empty() && self.services.is_empty()
    }

    /// Records that no Frontend was written yet.
    pub(crate) fn note_new(&mut self, desired: &Desired) {
        self.frontends = desired.frontends().map(|frontend| (frontend.key, None)).gather();
    }

    /// The changed Frontends in their written state; `None` if not written.
    pub fn frontends(&self) -> impl Iterator<Item = (&FrontendKey, Option<&Frontend>)> {
        self.frontends.iter().map(|(key, before)| (key, before.as_deref()))
    }

    /// The Frontends that differ from what was written, each with its written and its present value.
    pub(crate) fn differing<'a>(
        &'a self,
        desired: &'a Desired,
    ) -> impl Iterator<Item = (Option<&'a Frontend>, Option<&'a Frontend>)> + Clone {
        let both = self.frontends.iter().map(|(key, before)| (before.as_deref(), desired.frontend(key)));
        both.filter(|(before, after)| before != after)
    }

    /// The Services with changed ports in a family, or a changed health check.
    pub fn services(&self, family: Family) -> impl Iterator<Item = &ObjectKey> {
        self.services_before(family).map(|(service, _)| service)
    }

    pub(crate) fn services_before(&self, family: Family) -> impl Iterator<Item = (&ObjectKey, &ServiceBefore)> {
        let of_family = self.services.iter().filter(move |((of, _), _)| *of == family);
        of_family.map(|((_, service), before)| (service, before))
    }

    pub(crate) fn is_of(&self, family: Family) -> bool {
        self.frontends.keys().any(|key| key.family() == family) || self.services(family).next().is_some()
    }

    pub(crate) fn has(&self, key: &FrontendKey) -> bool {
        self.frontends.contains_key(key)
    }

    /// The Frontend as written, or its current state if it was not changed since.
    pub(crate) fn written<'a>(
        &'a self,
        key: &FrontendKey,
        now: Option<&'a Arc<Frontend>>,
    ) -> Option<&'a Arc<Frontend>> {
        self.frontends.get(key).map_or(now, Option::as_ref)
    }

    /// Records that all changes of a family were written.
    pub(crate) fn confirm(&mut self, family: Family) {
        self.frontends.retain(|key, _| key.family() != family);
        self.services.retain(|(of, _), _| *of != family);
    }

    /// Records that all changes were written except for these Frontends, which are compared again.
    pub(crate) fn confirm_all_but(&mut self, left: impl Fn(&FrontendKey) -> bool) {
        self.frontends.retain(|key, _| left(key));
        self.services.clear();
    }
}
