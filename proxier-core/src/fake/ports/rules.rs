//! iptables rules.

use std::collections::BTreeSet;

use iptables::{Backend, Dump, Transaction};

use super::gate::Gate;
use crate::fake::control::Call;
use crate::fake::host::Host;
use crate::fake::shared::Shared;
use crate::kernel::RulesPort;
use crate::net::Family;
use crate::ports::{PortError, PortErrorKind, Result, Rules};

pub(super) struct FakeRulesPort {
    pub(super) gate: Gate,
    pub(super) port: RulesPort<Host>,
    pub(super) host: Host,
    pub(super) counters: Shared<Option<BTreeSet<String>>>,
}

impl Rules for FakeRulesPort {
    gated! { port:
        RulesHasRandomFully, Some(family) => has_random_fully(family: Family) -> bool;
        RulesDump, Some(family) => dump(family: Family) -> Dump;
        RulesCheck, Some(family) => check(family: Family, transaction: &Transaction) -> ();
    }

    fn used_backend(&mut self) -> Option<Backend> {
        self.port.used_backend()
    }

    fn dump_of(&mut self, backend: Backend, family: Family) -> Result<Dump, PortError> {
        if !self.host.dump().contains_key(&(family.into(), backend)) {
            return Ok(Dump::default());
        }
        if self.port.backend() == Some(backend) {
            return self.dump(family);
        }
        let port = &mut self.port;
        self.gate.call(Call::RulesDump, Some(family), || port.dump_of(backend, family))
    }

    fn restore_to(&mut self, backend: Backend, family: Family, transaction: &Transaction) -> Result<(), PortError> {
        self.restore_with(family, transaction, |port| port.restore_to(backend, family, transaction))
    }

    fn generation(&mut self) -> Option<u32> {
        self.port.forget_listed();
        self.host.generation().try_into().ok()
    }

    fn has_tables(&mut self, family: Family) -> Option<bool> {
        // Those of both back ends: the fake's are not tables of its nf_tables.
        Some(self.host.dump().into_keys().any(|(of, _)| of == family.into()))
    }

    fn counters(&mut self) -> Result<BTreeSet<String>> {
        self.gate.call(Call::RulesCounters, None, || {
            let counters = self.counters.lock().clone();
            counters.ok_or_else(|| PortError::new(PortErrorKind::Unavailable, "listing counters of packets"))
        })
    }

    fn make_counters(&mut self, names: &[&str]) -> Result<()> {
        let mut counters = self.counters.lock();
        let missing = || PortError::new(PortErrorKind::Unavailable, "making counters of packets");
        counters.as_mut().ok_or_else(missing)?.extend(names.iter().map(|name| (*name).to_owned()));
        Ok(())
    }

    fn delete_counters(&mut self, names: &[&str]) -> Result<usize> {
        // A counter to which a rule refers stays.
        let rules: Vec<String> = self.host.dump().into_values().collect();
        let is_free = |name: &&&str| !rules.iter().any(|text| counters_in(text).any(|of| of == **name));
        let mut counters = self.counters.lock();
        let counters =
            counters.iter_mut().flat_map(|all| names.iter().filter(is_free).filter(|name| all.remove(**name)));
        Ok(counters.count())
    }

    fn restore(&mut self, family: Family, transaction: &Transaction) -> Result<()> {
        self.restore_with(family, transaction, |port| port.restore(family, transaction))
    }
}

impl FakeRulesPort {
    fn restore_with(
        &mut self,
        family: Family,
        transaction: &Transaction,
        write: impl FnOnce(&mut RulesPort<Host>) -> Result<()>,
    ) -> Result<()> {
        // Every table ends with `COMMIT`; a transaction that cannot be written is refused below.
        let text = transaction.to_restore_text().unwrap_or_default();
        let tables = text.lines().filter(|line| *line == "COMMIT").count();
        let (port, counters) = (&mut self.port, &self.counters);
        self.gate.weighing(Call::RulesRestore, Some(family), tables, false, || {
            let there = counters.lock().clone().unwrap_or_default();
            match counters_in(&text).find(|name| !there.contains(*name)) {
                Some(name) => Err(PortError::new(PortErrorKind::Other, format!("no counter of packets {name}"))),
                None => write(port),
            }
        })
    }
}

fn counters_in(text: &str) -> impl Iterator<Item = &str> {
    text.split("--nfacct-name ").skip(1).filter_map(|rest| rest.split_ascii_whitespace().next())
}
