//! Plan of iptables mode: the input of `iptables-restore` for each family.

use std::collections::{BTreeMap, BTreeSet};

use iptables::{Dump, Transaction};

use super::count::{Outcome, Tally};
use super::diff::{NewRules, RuleChanges, compare, update};
use super::lines;
use super::observed::Keep;
use super::wanted::Wanted;
use crate::modes::Work;
use crate::modes::shared::frontends::FrontendChanges;
use crate::net::{Family, FrontendKey};
use crate::plan::operation::{Operation, Whole};
use crate::plan::step::{Action, Part, Step};
use crate::ports::PortError;
use crate::service::Changes;
use crate::snapshot::ObjectKey;

/// Plan of a pass.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub(crate) struct IptablesPlan {
    /// Missing packet counters that the rules use.
    pub(super) counters: Vec<&'static str>,
    /// Changes of each family's rules.
    pub(super) families: Vec<FamilyPlan>,
    /// Frontends that the safeguard holds back.
    pub(super) held: BTreeSet<FrontendKey>,
}

/// Changes to a family's rules.
#[derive(Clone, Debug)]
pub(super) struct FamilyPlan {
    pub(super) family: Family,
    pub(super) transaction: Transaction,
    pub(super) frontends: FrontendChanges,
    pub(super) basis: Basis,
    /// Change of the number of rules.
    pub(super) rules: Outcome,
    /// The rules that are written.
    pub(super) written: Tally,
}

/// The state that a plan starts from.
#[derive(Clone, Debug)]
pub(super) enum Basis {
    /// The last write: nothing was read.
    Known,
    /// The rules as they were read.
    Read {
        /// The Services that differ.
        services: BTreeSet<ObjectKey>,
        /// Services that were refused before.
        refused: RefusedServices,
        /// Frontends that the safeguard holds back.
        held: BTreeSet<FrontendKey>,
    },
}

#[derive(Clone, Debug, Default)]
pub(super) struct RefusedServices {
    /// Services that are left unchanged: their input did not change, and they are tried at full passes only.
    pub(super) left: BTreeSet<ObjectKey>,
    /// Retried individually, after the rest.
    pub(super) tried: BTreeSet<ObjectKey>,
}

impl RefusedServices {
    fn contains(&self, service: &ObjectKey) -> bool {
        self.left.contains(service) || self.tried.contains(service)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &ObjectKey> {
        self.left.iter().chain(&self.tried)
    }
}

/// The lines to keep: those that the safeguard holds back, and those of these Services.
pub(super) fn keep<'a>(
    wanted: &Wanted<'_>,
    dump: &Dump,
    family: Family,
    held: &BTreeSet<FrontendKey>,
    services: impl IntoIterator<Item = &'a ObjectKey>,
) -> Keep {
    let mut keep = Keep::default();
    keep.hold(held, dump, family);
    // The endpoints of a held Frontend are in the chains of its Service.
    let of_held = held.iter().filter(|key| key.family() == family).filter_map(|key| wanted.served_owner(key));
    for service in of_held.chain(services.into_iter().map(|service| -> &ObjectKey { service })) {
        keep.leave(service, wanted.lines_of(service, family));
    }
    keep
}

impl FamilyPlan {
    /// Differences from the rules that were read. `served`: Frontends that the kernel serves. `from_nothing`: as in
    /// [`compare`].
    pub(super) fn compared(
        family: Family,
        wanted: &Wanted<'_>,
        dump: &Dump,
        served: &BTreeMap<FrontendKey, bool>,
        held: &BTreeSet<FrontendKey>,
        refused: RefusedServices,
        from_nothing: Option<NewRules>,
    ) -> Result<Self, PortError> {
        let keep = keep(wanted, dump, family, held, refused.all());
        let RuleChanges { transaction, ports } = compare(wanted, dump, family, &keep, from_nothing)?;
        let mut frontends = FrontendChanges::default();
        let mut services: BTreeSet<ObjectKey> = ports.iter().map(|(service, ..)| service.clone()).collect();
        let desired = wanted.desired();
        let is_tried = |key: &FrontendKey| {
            key.family() == family && !held.contains(key) && desired.owner(key).is_none_or(|of| !refused.contains(of))
        };
        if !transaction.is_empty() {
            let differing: BTreeSet<_> = ports.into_iter().map(|(_, port, protocol)| (port, protocol)).collect();
            for frontend in desired.frontends().filter(|frontend| is_tried(&frontend.key)) {
                let port = frontend.port.as_deref().map(|port| (port.name.clone(), port.protocol));
                let action = match served.get(&frontend.key) {
                    None => Action::Add,
                    Some(has) if *has != lines::has_endpoints(frontend) => Action::Change,
                    Some(_) if port.as_ref().is_some_and(|port| differing.contains(port)) => Action::Change,
                    Some(_) => continue,
                };
                frontends.0.insert(frontend.key, (action, frontend.endpoints().len()));
                services.extend(desired.owner(&frontend.key).cloned());
            }
            let gone = served.keys().filter(|key| is_tried(key) && desired.frontend(key).is_none());
            frontends.0.extend(gone.map(|key| (*key, (Action::Delete, 0))));
        }
        services.retain(|service| !refused.contains(service));
        let basis = Basis::Read { services, refused, held: held.clone() };
        let (total, written) = Tally::after(dump, &transaction);
        Ok(FamilyPlan { family, transaction, frontends, basis, rules: Outcome::Total(total), written })
    }

    /// Changes since the last write.
    pub(super) fn changed(family: Family, wanted: &Wanted<'_>, changes: &Changes) -> Result<Self, PortError> {
        let (transaction, rules) = update(wanted, changes, family)?;
        let mut frontends = FrontendChanges::default();
        for (key, before) in changes.frontends().filter(|(key, _)| key.family() == family) {
            let after = wanted.desired().frontend(key);
            if before != after {
                frontends.note(*key, before.is_some(), after);
            }
        }
        let (_, written) = Tally::after(&Dump::default(), &transaction);
        Ok(FamilyPlan { family, transaction, frontends, basis: Basis::Known, rules, written })
    }

    pub(super) fn is_empty(&self) -> bool {
        let is_tried_again = matches!(&self.basis, Basis::Read { refused, .. } if !refused.tried.is_empty());
        self.transaction.is_empty() && !is_tried_again
    }
}

/// The rules as a whole.
impl Whole for FamilyPlan {
    fn kind(&self) -> (Part, Action) {
        (Part::Rules, Action::Change)
    }

    fn step(&self) -> Step {
        let text = self.transaction.to_string();
        let count = text.lines().filter(|line| !line.starts_with('*') && *line != "COMMIT").count();
        let mut step = Step::new(Action::Change, Part::Rules, self.family.name());
        step = step.with(format_args!("{count} lines for iptables-restore --noflush"));
        step.lines = text.lines().map(str::to_owned).collect();
        step
    }
}

impl Work for IptablesPlan {
    fn is_empty(&self) -> bool {
        self.families.iter().all(FamilyPlan::is_empty)
    }

    /// A family's operations are one run of `iptables-restore`: the changed Frontends, then the program's input.
    fn operations(&self) -> Box<dyn Iterator<Item = Operation<'_>> + '_> {
        Box::new(self.families.iter().flat_map(|family| {
            let rules = (!family.transaction.is_empty()).then_some(Operation::Whole(family));
            family.frontends.operations().chain(rules)
        }))
    }
}
