//! Plan of iptables mode, the input of `iptables-restore` for each family, and how it is written.

use std::collections::{BTreeMap, BTreeSet};

use iptables::{Backend, Dump, Transaction};

use super::count::Tally;
use super::diff::{NewRules, RuleChanges, compare, divide, update};
use super::lines;
use super::observed::Keep;
use super::wanted::Wanted;
use crate::modes::Work;
use crate::modes::shared::frontends::{FrontendChanges, search};
use crate::net::{Family, FrontendKey};
use crate::pack::Gather as _;
use crate::plan::operation::{Operation, Whole};
use crate::plan::report::Applied;
use crate::plan::step::{Action, Names, Part, Step};
use crate::ports::{PortError, PortErrorKind, Result, Rules};
use crate::service::Changes;
use crate::snapshot::ObjectKey;

#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub(crate) struct IptablesPlan {
    /// Missing packet counters that the rules use.
    pub(super) counters: Vec<&'static str>,
    pub(super) families: Vec<FamilyPlan>,
    pub(super) held: BTreeSet<FrontendKey>,
}

#[derive(Clone, Debug)]
pub(super) struct FamilyPlan {
    pub(super) family: Family,
    /// In this order. None is empty.
    pub(super) transactions: Vec<Transaction>,
    pub(super) frontends: FrontendChanges,
    pub(super) basis: Basis,
    /// Number of rules afterwards; `None` if the number before is unknown.
    pub(super) rules: Option<Tally>,
    pub(super) written: Tally,
}

#[derive(Clone, Debug)]
pub(super) enum Basis {
    /// The last write: nothing was read.
    Known,
    Read {
        services: BTreeSet<ObjectKey>,
        refused: RefusedServices,
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

fn some(transaction: Transaction) -> Vec<Transaction> {
    if transaction.is_empty() { Vec::new() } else { vec![transaction] }
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
    ) -> Result<Self> {
        let keep = keep(wanted, dump, family, held, refused.all());
        let RuleChanges { transaction, ports } = compare(wanted, dump, family, &keep, from_nothing)?;
        let mut frontends = FrontendChanges::default();
        let mut services: BTreeSet<ObjectKey> = ports.iter().map(|(service, ..)| service.clone()).gather();
        let desired = wanted.desired();
        let is_tried = |key: &FrontendKey| {
            key.family() == family && !held.contains(key) && desired.owner(key).is_none_or(|of| !refused.contains(of))
        };
        if !transaction.is_empty() {
            let differing: BTreeSet<_> = ports.into_iter().map(|(_, port, protocol)| (port, protocol)).gather();
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
        let basis = Basis::Read { services, refused };
        let (total, written) = Tally::after(dump, &transaction);
        Ok(FamilyPlan { family, transactions: some(transaction), frontends, basis, rules: Some(total), written })
    }

    pub(super) fn divided(mut self, backend: Option<Backend>) -> Self {
        self.transactions = self.transactions.into_iter().flat_map(|whole| divide(whole, backend)).collect();
        self
    }

    /// Changes since the last write. `before`: the number of rules, if known.
    pub(super) fn changed(
        family: Family,
        wanted: &Wanted<'_>,
        changes: &Changes,
        before: Option<Tally>,
    ) -> Result<Self> {
        let (transaction, difference) = update(wanted, changes, family)?;
        let rules = before.map(|before| before.and(difference));
        let mut frontends = FrontendChanges::default();
        for (key, before) in changes.frontends().filter(|(key, _)| key.family() == family) {
            let after = wanted.desired().frontend(key);
            if before != after {
                frontends.note(*key, before.is_some(), after);
            }
        }
        let (_, written) = Tally::after(&Dump::default(), &transaction);
        Ok(FamilyPlan { family, transactions: some(transaction), frontends, basis: Basis::Known, rules, written })
    }

    pub(super) fn is_empty(&self) -> bool {
        let is_tried_again = matches!(&self.basis, Basis::Read { refused, .. } if !refused.tried.is_empty());
        self.transactions.is_empty() && !is_tried_again
    }
}

impl Whole for FamilyPlan {
    fn step(&self) -> Step {
        let text: String = self.transactions.iter().map(Transaction::to_string).collect();
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

    /// A family's operations are one run of `iptables-restore`, or several for many chains: the changed Frontends,
    /// then the program's input.
    fn operations(&self) -> Box<dyn Iterator<Item = Operation<'_>> + '_> {
        Box::new(self.families.iter().flat_map(|family| {
            let rules = (!family.transactions.is_empty()).then_some(Operation::Whole(family));
            family.frontends.operations().chain(rules)
        }))
    }
}

/// Number of refused Services of one family after which the search is given up until the next full pass.
const PATIENCE: usize = 16;

/// Largest number of `iptables-restore` runs to find them.
const ATTEMPTS: usize = 64;

#[derive(Debug)]
pub(super) struct WriteOutcome {
    pub(super) family: Family,
    /// Whether the kernel has the desired rules, except those of refused Services.
    pub(super) is_done: bool,
    /// Services that were refused: the kernel has their previous rules, or none. `None`: unchanged.
    pub(super) refused: Option<BTreeSet<ObjectKey>>,
    /// Services that were refused before and are accepted now.
    pub(super) accepted: BTreeSet<ObjectKey>,
    /// The kernel contradicted its tracked state.
    pub(super) is_surprise: bool,
    /// As [`FamilyPlan::rules`], if everything was written.
    pub(super) rules: Option<Tally>,
    /// Rules that were written.
    pub(super) lines: Tally,
}

pub(super) fn apply(
    plan: &IptablesPlan,
    wanted: &Wanted<'_>,
    names: &Names<'_>,
    rules: &mut dyn Rules,
) -> (Applied, Vec<WriteOutcome>) {
    let mut applied = Applied::default();
    // If this fails, the kernel refuses the rules that name them, and its answer contains the reason.
    if !plan.counters.is_empty()
        && let Err(error) = rules.make_counters(&plan.counters)
    {
        applied.fail(Step::new(Action::Add, Part::Rules, "counters of packets"), error);
    }
    // Both families in one call, because starting the programs takes most of the time.
    let changes: Vec<_> = plan.families.iter().filter(|family| !family.transactions.is_empty()).collect();
    let changes: Vec<_> = changes.iter().map(|family| (family.family, &*family.transactions)).collect();
    let mut outcomes: BTreeMap<Family, Result<()>> = BTreeMap::new();
    if !changes.is_empty() {
        let restored = rules.restore_families(&changes);
        outcomes.extend(changes.iter().map(|(family, _)| *family).zip(restored));
    }
    let mut written = Vec::new();
    for family in &plan.families {
        let outcome = outcomes.remove(&family.family).unwrap_or(Ok(()));
        written.push(finish(family, outcome, (wanted, names, &plan.held), rules, &mut applied));
    }
    (applied, written)
}

/// Whether a single object may have caused an error, so that writing can continue without it.
fn is_of_an_object(error: &PortError) -> bool {
    matches!(
        error.kind(),
        PortErrorKind::Invalid | PortErrorKind::Unavailable | PortErrorKind::NotFound | PortErrorKind::Other
    )
}

/// Records the outcome of a family's restore. If the kernel refuses it, finds the Services that cause this, and writes
/// the rest.
fn finish(
    plan: &FamilyPlan,
    outcome: Result<()>,
    (wanted, names, held): (&Wanted<'_>, &Names<'_>, &BTreeSet<FrontendKey>),
    rules: &mut dyn Rules,
    applied: &mut Applied,
) -> WriteOutcome {
    let mut written = WriteOutcome {
        family: plan.family,
        is_done: outcome.is_ok(),
        refused: None,
        accepted: BTreeSet::new(),
        is_surprise: false,
        rules: plan.rules,
        lines: if outcome.is_ok() { plan.written } else { Tally::default() },
    };
    let mut outcome = outcome;
    if let Basis::Read { services, refused } = &plan.basis {
        let left = &refused.left;
        let mut search =
            Search { wanted, plan, held, left, rules, refused: BTreeMap::new(), total: None, lines: Tally::default() };
        let again: Vec<ObjectKey> = refused.tried.iter().cloned().collect();
        outcome = match outcome {
            Ok(()) => search.write(again),
            Err(error) if is_of_an_object(&error) && !services.is_empty() => {
                search.write(services.iter().cloned().chain(again).collect())
            }
            Err(error) => Err(error),
        };
        for (service, error) in &search.refused {
            for step in steps_of(service, plan, wanted, names) {
                applied.fail(step, error.clone());
            }
        }
        written.rules = search.total.or(written.rules);
        written.lines = written.lines.and(search.lines);
        let mut now: BTreeSet<ObjectKey> = search.refused.into_keys().gather();
        if outcome.is_ok() {
            written.accepted = refused.tried.difference(&now).cloned().gather();
        }
        now.extend(if outcome.is_ok() { refused.left.clone() } else { refused.all().cloned().gather() });
        written.refused = Some(now);
    }
    let is_refused = |key: &FrontendKey| {
        let owner = wanted.desired().owner(key);
        owner.is_some_and(|owner| written.refused.as_ref().is_some_and(|refused| refused.contains(owner)))
    };
    written.is_done = outcome.is_ok();
    match outcome {
        Ok(()) if plan.transactions.is_empty() && written.accepted.is_empty() => {}
        Ok(()) => {
            applied.count(Part::Rules, Action::Change, 1);
            plan.frontends.count(|key| !is_refused(key), applied);
            let accepted = written.accepted.iter().map(|service| frontends_of(service, plan, wanted).len());
            applied.count(Part::Frontend, Action::Change, accepted.sum());
        }
        Err(error) => {
            let is_state = !matches!(error.kind(), PortErrorKind::Busy | PortErrorKind::Permission);
            let is_partial = matches!(plan.basis, Basis::Known);
            written.is_surprise = is_partial && is_state;
            let failures = applied.partial_restore_failures.of_mut(plan.family);
            *failures = failures.saturating_add(usize::from(is_partial));
            let step = plan.step().with(format_args!("{} frontends", plan.frontends.0.len()));
            applied.fail(step, error);
        }
    }
    written
}

fn frontends_of(service: &ObjectKey, plan: &FamilyPlan, wanted: &Wanted<'_>) -> Vec<FrontendKey> {
    let compiled = wanted.desired().compiled(service);
    let keys = compiled.iter().flat_map(|compiled| &compiled.frontends).map(|frontend| frontend.key);
    keys.filter(|key| key.family() == plan.family && wanted.desired().owner(key) == Some(service)).collect()
}

/// The steps that a refused Service's Frontends would have been.
fn steps_of(service: &ObjectKey, plan: &FamilyPlan, wanted: &Wanted<'_>, names: &Names<'_>) -> Vec<Step> {
    let owned = frontends_of(service, plan, wanted);
    let steps: Vec<Step> = owned.iter().map(|key| plan.frontends.operation(key).step(names)).collect();
    if steps.is_empty() {
        return vec![Step::new(Action::Change, Part::Frontend, service).of_service(Some(service.to_string()))];
    }
    steps
}

/// Finds the Services that the kernel refuses, and writes the rest.
struct Search<'a, 'p> {
    wanted: &'a Wanted<'a>,
    plan: &'a FamilyPlan,
    held: &'a BTreeSet<FrontendKey>,
    /// Services that are not tried.
    left: &'a BTreeSet<ObjectKey>,
    rules: &'p mut dyn Rules,
    refused: BTreeMap<ObjectKey, PortError>,
    /// Number of rules after the last attempt that succeeded.
    total: Option<Tally>,
    /// Rules that were written.
    lines: Tally,
}

impl Search<'_, '_> {
    /// Writes the lines of none of these Services first, then those of all that the kernel accepts. Fails if one Service
    /// is not the reason, or too many are.
    fn write(&mut self, mut services: Vec<ObjectKey>) -> Result<()> {
        if services.is_empty() {
            return Ok(());
        }
        if let Some(error) = self.attempt(&services)? {
            return Err(error);
        }
        let mut attempts = ATTEMPTS;
        while let Some(error) = self.attempt(&[])? {
            let mut failed = error;
            let found = search(services.clone(), &mut attempts, |waiting| {
                self.attempt(waiting).map_err(|error| failed = error).ok().map(|refused| refused.is_none())
            });
            let Some(found) = found.filter(|_| self.refused.len() < PATIENCE) else { return Err(failed) };
            services.retain(|service| *service != found);
            // Its own reason, because others may be refused for another.
            if let Some(error) = self.attempt(&services)? {
                self.refused.insert(found, error);
            }
        }
        // Tables are written one after the other, so table filter may contain lines of a Service that table nat
        // refuses.
        if !self.refused.is_empty()
            && let Ok(dump) = self.rules.dump(self.plan.family)
        {
            self.total = Some(Tally::after(&dump, &Transaction::new()).0);
        }
        Ok(())
    }

    /// Writes everything except the lines of Services that wait, were refused, or are not tried; these stay unchanged.
    /// Returns why it was refused, if a single object may be the reason.
    fn attempt(&mut self, waiting: &[ObjectKey]) -> Result<Option<PortError>> {
        let family = self.plan.family;
        let dump = self.rules.dump(family)?;
        let out = waiting.iter().chain(self.refused.keys()).chain(self.left);
        let keep = keep(self.wanted, &dump, family, self.held, out);
        let compared = compare(self.wanted, &dump, family, &keep, None)?;
        let (total, written) = Tally::after(&dump, &compared.transaction);
        for transaction in divide(compared.transaction, self.rules.used_backend()) {
            if let Err(error) = self.rules.restore(family, &transaction) {
                return if is_of_an_object(&error) { Ok(Some(error)) } else { Err(error) };
            }
        }
        self.total = Some(total);
        self.lines = self.lines.and(written);
        Ok(None)
    }
}
