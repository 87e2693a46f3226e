//! Carries out operations: one call of the port for consecutive ones of one kind, and an outcome for each.

use std::iter::{self, Peekable};

use crate::net::Network;
use crate::plan::operation::{Operation, items};
use crate::plan::report::Applied;
use crate::plan::step::{Action, Names};
use crate::ports::{ItemFailures, PortError, PortErrorKind, Ports, Result};

/// The next operations that one call carries out.
pub(crate) fn next_call<'a>(
    operations: &mut Peekable<impl Iterator<Item = Operation<'a>>>,
) -> Option<Vec<Operation<'a>>> {
    let first = operations.next()?;
    let rest = iter::from_fn(|| operations.next_if(|other| first.is_one_call(other)));
    Some(iter::once(first).chain(rest).collect())
}

impl Applied {
    /// Carries out operations in order, and returns them with whether each is done.
    pub(crate) fn carry_out<'a>(
        &mut self,
        operations: impl IntoIterator<Item = Operation<'a>>,
        names: &Names<'_>,
        ports: &mut Ports<'_>,
    ) -> Vec<(Operation<'a>, bool)> {
        let mut operations = operations.into_iter().peekable();
        let mut outcomes = Vec::new();
        while let Some(mut run) = next_call(&mut operations) {
            let failures = call(&run, ports);
            let refused = self.record(&mut run, failures, names).into_iter().map(|operation| (operation, false));
            outcomes.extend(run.into_iter().map(|operation| (operation, true)).chain(refused));
        }
        outcomes
    }

    /// Counts and lists the outcomes of operations of one call. Removes and returns those that failed.
    pub(crate) fn record<'a>(
        &mut self,
        operations: &mut Vec<Operation<'a>>,
        mut failures: ItemFailures,
        names: &Names<'_>,
    ) -> Vec<Operation<'a>> {
        let mut places = 0..;
        let has_failed = |operation: &mut Operation<'a>| {
            let failure = places.next().and_then(|place: usize| failures.remove(&place));
            let has_failed = failure.is_some();
            if let Some(error) = failure {
                self.fail(operation.step(names), error);
            } else {
                let (part, action) = operation.shown_kind(names);
                self.count(part, action, 1);
            }
            has_failed
        };
        operations.extract_if(.., has_failed).collect()
    }
}

/// Carries out operations of one kind, except those of transactions and servers.
pub(crate) fn call(operations: &[Operation<'_>], ports: &mut Ports<'_>) -> ItemFailures {
    match operations {
        [Operation::Entry(action, set, _), ..] => {
            let elements = items!(operations, Operation::Entry(_, _, element) => element);
            match action {
                Action::Delete => ports.sets.delete(set.0, &elements),
                _ => ports.sets.add(set.0, &elements),
            }
        }
        [Operation::Address(action, _, device), ..] => {
            let addresses = items!(operations, Operation::Address(_, address, _) => address);
            match action {
                Action::Delete => ports.links.unbind(device.as_str(), &addresses),
                _ => ports.links.bind(device.as_str(), &addresses),
            }
        }
        [Operation::Route(action, owner, _), ..] => {
            let routes = items!(operations, Operation::Route(_, _, route) => route);
            match action {
                Action::Delete => {
                    let networks: Vec<Network> = routes.iter().map(|route| route.network).collect();
                    ports.routes.delete(*owner, &networks)
                }
                _ => ports.routes.add(*owner, &routes),
            }
        }
        _ => {
            let all = operations.iter().enumerate();
            all.filter_map(|(index, of)| Some((index, call_one(of, ports).err()?))).collect()
        }
    }
}

/// Carries out one operation of a kind that the port accepts one at a time.
pub(crate) fn call_one(operation: &Operation<'_>, ports: &mut Ports<'_>) -> Result<()> {
    match *operation {
        Operation::Sysctl(change) => ports.sysctls.set(&change.path, &change.to),
        Operation::Device(Action::Delete, device) => ports.links.delete_device(device.as_str()),
        Operation::Device(_, device) => ports.links.create_device(device.as_str()),
        Operation::Timeouts(update) => ports.ipvs.set_timeouts(update),
        Operation::Set(Action::Delete, set) => ports.sets.destroy(set),
        Operation::Listener(_, _, Some(listener)) => ports.relays.serve(listener),
        Operation::Listener(_, key, None) => {
            ports.relays.close(&key);
            Ok(())
        }
        _ => Err(PortError::new(PortErrorKind::Invalid, "not an operation by itself")),
    }
}
