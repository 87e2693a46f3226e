//! iptables mode from pass to pass: desired rules, tracked kernel state, and unfinished work.

use std::collections::{BTreeMap, BTreeSet};

use iptables::{Backend, Dump, Transaction};

use super::count::Tally;
use super::diff::NewRules;
use super::lines;
use super::observed::served;
use super::plan::{Basis, FamilyPlan, IptablesPlan, RefusedServices, WriteOutcome, apply};
use super::settings::{COUNTERS, IptablesOptions};
use super::trial;
use super::wanted::{Index, Wanted};
use crate::backoff::RulesRetry;
use crate::modes::shared::flows;
use crate::modes::shared::frontends::losing;
use crate::modes::{self, CarryOut, Hold, Kind, Outcome, Pass, Plan, Work};
use crate::net::{ByFamily, Family, FrontendKey};
use crate::pack::Gather as _;
use crate::plan::operation::Whole;
use crate::plan::report::{Applied, Failure, Lack, Report, RuleCount, Unread};
use crate::plan::step::{Part, Step};
use crate::ports::{PortError, PortErrorKind, Ports, Result, Rules};
use crate::safeguard::Kernel;
use crate::service::{Changes, Compiled, Desired, FrontendObserver, NodeFacts};
use crate::snapshot::ObjectKey;
use crate::time::Moment;

#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one question about what was found, and none excludes another"
)]
#[derive(Debug)]
pub(crate) struct Mode {
    options: IptablesOptions,
    random_fully: bool,
    counters: Counters,
    /// Why rules have no counters, until a pass reports it.
    lack: Option<Lack>,
    /// [`Pass::tcp_is_liberal`] of the last full pass.
    tcp_is_liberal: bool,
    seed: u64,
    index: Index,
    /// Whether the node facts differ from those of the last pass.
    new_facts: bool,
    /// The whole kernel state has been compared.
    compared: bool,
    /// What the pass at hand starts from ([`Rules::generation`]) if all rules that it does not read are as they were
    /// left; and what the last one left.
    base: Option<u32>,
    left: Option<u32>,
    /// Frontends that the kernel serves, and whether they have endpoints.
    known: BTreeMap<FrontendKey, bool>,
    families: ByFamily<FamilyRules>,
    /// Frontends that the safeguard keeps in the kernel. Their changes are visible only by reading.
    held: BTreeSet<FrontendKey>,
}

#[derive(Debug, Default)]
struct FamilyRules {
    /// Whether settings differ from those of the last write, which affects all rules.
    everything: bool,
    /// Whether the kernel has the rules that were desired before the changes. Otherwise the rules are read before they
    /// are written.
    is_known: bool,
    /// Services that the kernel refused: it has their previous rules, or none.
    refused: BTreeSet<ObjectKey>,
    retry: Option<RulesRetry>,
    rules: Option<Tally>,
}

/// Whether rules use packet counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counters {
    /// The kernel lacks them.
    Missing,
    /// They exist in the kernel, and the programs have not been asked whether rules can use them.
    Found,
    /// They exist in the kernel, which has not accepted rules with them yet.
    Wanted,
    /// Rules name them.
    Named,
    /// They exist in the kernel, but the programs or the kernel refuse rules with them. They are deleted once rules
    /// without them are in place.
    Refused,
    /// Refused, and deleted.
    Gone,
}

impl Mode {
    /// `tcp_is_liberal`: what the first full pass will probably find ([`Pass::tcp_is_liberal`]).
    pub(crate) fn new(facts: &NodeFacts, options: IptablesOptions, tcp_is_liberal: bool, seed: u64) -> Self {
        let probable = IptablesOptions { drop_invalid: options.drop_invalid && !tcp_is_liberal, ..options };
        Mode {
            options,
            random_fully: true,
            counters: Counters::Missing,
            lack: None,
            tcp_is_liberal,
            seed,
            index: Index::new(facts, probable),
            new_facts: true,
            compared: false,
            base: None,
            left: None,
            known: BTreeMap::new(),
            families: ByFamily::default(),
            held: BTreeSet::new(),
        }
    }

    /// Returns whether they differ.
    fn set_settings(&mut self, facts: &NodeFacts) -> bool {
        let differs = self.index.set_settings(facts, self.allowed());
        for family in self.index.families() {
            self.families.of_mut(family).everything |= differs;
        }
        differs
    }

    /// The configured options that the programs and the kernel's settings permit.
    fn allowed(&self) -> IptablesOptions {
        let random_fully = self.options.random_fully.on(self.random_fully);
        let counters = matches!(self.counters, Counters::Found | Counters::Wanted | Counters::Named);
        let drop_invalid = self.options.drop_invalid && !self.tcp_is_liberal;
        IptablesOptions { random_fully, drop_invalid, counters, ..self.options }
    }

    /// Finds packet counters. Returns those that rules will use and that must be created first. A full pass also
    /// determines whether the kernel supports them.
    fn look_for_counters(&mut self, pass: &Pass<'_>, rules: &mut dyn Rules) -> Vec<&'static str> {
        let mut missing = Vec::new();
        let is_looked_for = pass.full && !matches!(self.counters, Counters::Refused | Counters::Gone);
        if is_looked_for || self.allowed().counters {
            match rules.counters() {
                Err(error) if pass.full && error.kind() == PortErrorKind::Unavailable => {
                    self.counters = Counters::Missing;
                }
                // The kernel may be busy: rules stay unchanged.
                Err(_) => {}
                Ok(there) => {
                    if self.counters == Counters::Missing {
                        self.counters = Counters::Found;
                    }
                    missing.extend(COUNTERS.into_iter().filter(|name| !there.contains(*name)));
                }
            }
        }
        if pass.full {
            self.set_settings(pass.facts);
        }
        missing
    }

    fn give_up_counters(&mut self, why: PortError) {
        self.counters = Counters::Refused;
        let what =
            "rules are written without match nfacct, so that /metrics does not count packets that they drop or accept";
        self.lack = Some(Lack::new(what, why));
    }

    /// Continues without counters if the first rules with them were refused, and deletes the counters once rules
    /// without them are in place. Returns whether everything must be compared at once.
    fn note_counters(
        &mut self,
        desired: &Desired,
        written: &[WriteOutcome],
        applied: &Applied,
        rules: &mut dyn Rules,
    ) -> bool {
        match self.counters {
            Counters::Found | Counters::Wanted => {
                let options = |of: &WriteOutcome| self.index.settings(of.family).map(|settings| settings.options);
                // Every family has the rule for invalid packets, unless none has.
                if written.iter().any(|of| of.is_done && options(of).is_some_and(|options| options.drop_invalid)) {
                    self.counters = Counters::Named;
                    return false;
                }
                let names = |of: &WriteOutcome, service: &ObjectKey| {
                    let ports = desired.compiled(service).into_iter().flat_map(|compiled| &compiled.ports);
                    let mut ports = ports.filter(|port| port.family == of.family);
                    ports.any(|port| options(of).is_some_and(|options| lines::is_counted(port, options)))
                };
                let is_refused = |of: &WriteOutcome| {
                    let mut services = of.refused.iter().flatten();
                    !of.is_done && !of.is_surprise || services.any(|service| names(of, service))
                };
                let may_be_why = |failure: &&Failure| {
                    use PortErrorKind::{Invalid, NotFound, Other, Unavailable};
                    matches!(failure.step.part, Part::Rules | Part::Frontend)
                        && matches!(failure.error.kind(), Invalid | NotFound | Other | Unavailable)
                };
                let why = applied.failures.iter().find(may_be_why).filter(|_| written.iter().any(is_refused));
                let Some(why) = why.map(|failure| failure.error.clone()) else { return false };
                self.give_up_counters(why);
                // The next pass removes them from the rules without a pause.
                self.new_facts = true;
                for family in Family::ALL {
                    self.families.of_mut(family).retry = None;
                }
                true
            }
            Counters::Refused if !written.is_empty() && written.iter().all(|of| of.is_done) => {
                if rules.delete_counters(&COUNTERS).is_ok() {
                    self.counters = Counters::Gone;
                }
                false
            }
            _ => false,
        }
    }

    /// Determines the options of the programs and the kernel's settings. Returns whether rules depend on the answers.
    /// If a family's program is missing, reading its rules reports that.
    fn ask_programs(&mut self, pass: &Pass<'_>, rules: &mut dyn Rules) -> bool {
        self.tcp_is_liberal = pass.tcp_is_liberal;
        self.random_fully = true;
        for family in pass.families() {
            self.random_fully &= rules.has_random_fully(family).unwrap_or(true);
        }
        if self.counters == Counters::Found {
            self.counters = Counters::Wanted;
            let why = pass.families().next().and_then(|family| trial::refusal_of_counters(family, rules));
            if let Some(why) = why {
                self.give_up_counters(why);
            }
        }
        self.set_settings(pass.facts)
    }

    /// Lets the programs list families. Meanwhile builds the rules to write, if there seem to be none yet.
    fn list(&self, wanted: &Wanted<'_>, families: &[Family], rules: &mut dyn Rules) -> BTreeMap<Family, NewRules> {
        let is_there = |family: &Family| rules.has_tables(*family) == Some(true);
        let is_first = !self.compared && !families.iter().any(is_there);
        let mut made = BTreeMap::new();
        if is_first || families.len() > 1 {
            rules.list_meanwhile(families, &mut || {
                let families = families.iter().filter(|_| is_first);
                // What cannot be made is reported when it is compared.
                made.extend(families.filter_map(|family| Some((*family, NewRules::new(wanted, *family).ok()?))));
            });
        }
        made
    }

    fn is_put_off(&self, family: Family, now: Moment) -> bool {
        self.families.of(family).retry.as_ref().is_some_and(|retry| retry.at > now)
    }

    /// The families that must be read, because these changes cannot start from the last write. A full pass reads what
    /// anybody may have written since, and what was refused.
    fn to_read(&self, pass: &Pass<'_>) -> Vec<Family> {
        pass.families().filter(|family| self.has_to_be_read(*family, pass)).collect()
    }

    fn has_to_be_read(&self, family: Family, pass: &Pass<'_>) -> bool {
        let state = self.families.of(family);
        pass.full && (self.base.is_none() || self.base != self.left || !state.refused.is_empty())
            || !state.is_known
            || !self.held.is_empty()
            || state.everything
            || touched(state, family, pass).next().is_some()
    }

    /// Reads a family's rules and the Frontends that they serve. Failures are reported and retried after a pause.
    fn read_family(
        &mut self,
        family: Family,
        pass: &Pass<'_>,
        report: &mut Report,
        rules: &mut dyn Rules,
    ) -> Option<Dump> {
        match rules.dump(family) {
            Ok(dump) => {
                let addresses: Vec<_> = pass.facts.node_port_addresses(family).collect();
                self.known.retain(|key, _| key.family() != family);
                self.known.extend(served(&dump, family, &addresses));
                Some(dump)
            }
            Err(error) => {
                report.unread.push(self.unreadable(family, error, pass.now));
                None
            }
        }
    }

    fn unreadable(&mut self, family: Family, error: PortError, now: Moment) -> Unread {
        self.failed(family, now);
        Unread::new(format_args!("rules of {}", family.name()), error)
    }

    /// A family's rules are unknown, and tried again after a pause.
    fn failed(&mut self, family: Family, now: Moment) {
        let state = self.families.of_mut(family);
        state.is_known = false;
        state.retry.get_or_insert_with(|| RulesRetry::new(self.seed)).failed(now);
    }

    fn plan_family(
        &self,
        family: Family,
        pass: &Pass<'_>,
        dump: Option<&Dump>,
        held: &BTreeSet<FrontendKey>,
        from_nothing: Option<NewRules>,
        backend: Option<Backend>,
    ) -> Result<FamilyPlan> {
        let wanted = self.index.wanted(pass.desired);
        let state = self.families.of(family);
        let plan = match dump {
            Some(dump) => {
                // A full pass retries all; other passes retry only those that changed.
                let touched: BTreeSet<&ObjectKey> = touched(state, family, pass).gather();
                let mut refused = RefusedServices { left: state.refused.clone(), ..RefusedServices::default() };
                let again = refused.left.iter().filter(|service| pass.full || touched.contains(*service));
                refused.tried = again.cloned().gather();
                refused.left.retain(|service| !refused.tried.contains(service));
                FamilyPlan::compared(family, &wanted, dump, &self.known, held, refused, from_nothing)
            }
            None => FamilyPlan::changed(family, &wanted, pass.changes, state.rules),
        };
        plan.map(|plan| plan.divided(backend))
    }

    /// Other programs' changes: differences not caused by the input.
    fn drift(&self, pass: &Pass<'_>, plan: &IptablesPlan) -> Vec<Step> {
        let mut drift = Vec::new();
        for plan in &plan.families {
            let state = self.families.of(plan.family);
            if !state.is_known || plan.transactions.is_empty() || state.everything {
                continue;
            }
            let is_others = |key: &&FrontendKey| !pass.changes.has(key) && !self.held.contains(*key);
            drift.extend(
                plan.frontends.0.keys().filter(is_others).map(|key| plan.frontends.operation(key).step(&pass.names)),
            );
            if !pass.changes.is_of(plan.family) {
                let mut step = plan.step();
                step.lines.clear();
                drift.push(step);
            }
        }
        drift
    }

    /// The generation that these writes led to, unless another program wrote meanwhile or the kernel has something else
    /// than what is desired.
    fn generation_after(
        &mut self,
        plan: &IptablesPlan,
        written: &[WriteOutcome],
        rules: &mut dyn Rules,
    ) -> Option<u32> {
        let base = self.base.take()?;
        if !written.iter().all(|of| of.is_done && !of.is_surprise) {
            return None;
        }
        let tables = plan
            .families
            .iter()
            .flat_map(|family| &family.transactions)
            .flat_map(Transaction::tables)
            .filter(|table| !table.edits().is_empty())
            .count();
        let after = base.wrapping_add(tables.try_into().ok()?);
        (tables == 0 || rules.generation() == Some(after)).then_some(after)
    }

    fn rule_counts(&self, written: &[WriteOutcome]) -> Vec<RuleCount> {
        let of = |family: Family| {
            let total = self.families.of(family).rules?;
            let written = written.iter().find(|written| written.family == family).map(|written| written.lines);
            Some(total.told(written.unwrap_or_default(), family))
        };
        self.index.families().filter_map(of).flatten().collect()
    }

    fn note_written(
        &mut self,
        desired: &Desired,
        changes: &mut Changes,
        plan: &FamilyPlan,
        written: &WriteOutcome,
        now: Moment,
    ) {
        let family = plan.family;
        if !written.is_done {
            if written.is_surprise {
                // Read at once, not after a pause.
                self.families.of_mut(family).is_known = false;
            } else {
                self.failed(family, now);
            }
        }
        let state = self.families.of_mut(family);
        if let Some(refused) = &written.refused {
            state.refused.clone_from(refused);
        }
        if !written.is_done {
            return;
        }
        state.rules = written.rules;
        state.is_known = true;
        state.retry = None;
        state.everything = false;
        let of_family = |key: &&FrontendKey| key.family() == family;
        let accepted = written.accepted.iter().filter_map(|service| desired.compiled(service));
        let accepted = accepted.flat_map(|compiled| &compiled.frontends).map(|frontend| &frontend.key);
        let keys: Vec<&FrontendKey> = match plan.basis {
            Basis::Known => changes.frontends().map(|(key, _)| key).filter(of_family).collect(),
            Basis::Read { .. } => plan.frontends.0.keys().chain(accepted.filter(of_family)).collect(),
        };
        for key in keys {
            match desired.frontend(key) {
                Some(_) if desired.owner(key).is_some_and(|owner| state.refused.contains(owner)) => {}
                Some(frontend) => drop(self.known.insert(*key, lines::has_endpoints(frontend))),
                None => drop(self.known.remove(key)),
            }
        }
        changes.confirm(family);
    }
}

/// The refused Services of a family that have changes.
fn touched<'a>(state: &'a FamilyRules, family: Family, pass: &'a Pass<'_>) -> impl Iterator<Item = &'a ObjectKey> {
    let changed = (!state.refused.is_empty()).then(|| {
        let frontends = pass.changes.frontends().filter(move |(key, _)| key.family() == family);
        let owners = frontends.filter_map(|(key, _)| pass.desired.owner(key));
        pass.changes.services(family).chain(owners)
    });
    changed.into_iter().flatten().filter(move |service| state.refused.contains(*service))
}

impl modes::Mode for Mode {
    fn needs_ports(&self) -> bool {
        self.index.needs_ports()
    }

    fn index_service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        self.index.service(before, after);
    }

    fn kernel(&self) -> Option<&dyn Kernel> {
        Some(&self.known)
    }

    fn knows_kernel(&self) -> bool {
        self.compared && self.held.is_empty()
    }

    fn forget_kernel(&mut self) {
        self.compared = false;
        for family in Family::ALL {
            self.families.of_mut(family).is_known = false;
        }
    }

    fn plan(&mut self, pass: Pass<'_>, hold: Hold<'_>, report: &mut Report, ports: &mut Ports<'_>) -> Option<Plan> {
        if std::mem::take(&mut self.new_facts) {
            self.set_settings(pass.facts);
        }
        let mut plan = IptablesPlan::default();
        let (mut due, mut dumps) = (Vec::new(), BTreeMap::new());
        // Before the first pass, the program may have listed the rules already.
        self.base = self.compared.then(|| ports.rules.generation()).flatten();
        let mut read = self.to_read(&pass);
        let mut list = read.clone();
        list.retain(|family| !self.is_put_off(*family, pass.now));
        if pass.full || !list.is_empty() {
            plan.counters = self.look_for_counters(&pass, ports.rules);
        }
        let mut made = self.list(&self.index.wanted(pass.desired), &list, ports.rules);
        if pass.full {
            if self.ask_programs(&pass, ports.rules) {
                made.clear();
                read = self.to_read(&pass);
            }
            plan.counters.retain(|_| self.counters != Counters::Refused);
        }
        for family in pass.families() {
            if self.is_put_off(family, pass.now) {
                report.rules_put_off.insert(family);
            } else if !read.contains(&family) {
                due.push(family);
            } else if let Some(dump) = self.read_family(family, &pass, report, ports.rules) {
                dumps.insert(family, dump);
                due.push(family);
            }
        }
        self.compared |= pass.full && !dumps.is_empty();
        if pass.full && !read.is_empty() && dumps.is_empty() {
            return None;
        }
        if self.base != self.left && !pass.families().all(|family| dumps.contains_key(&family)) {
            self.base = None;
        }
        let changed = pass.changes.frontends().map(|(key, _)| key).filter(|key| !dumps.contains_key(&key.family()));
        let read = self.known.keys().filter(|key| dumps.contains_key(&key.family()));
        let of_due = changed.chain(read).filter(|key| due.contains(&key.family()));
        let held = hold(losing(of_due, &self.known, pass.desired), &self.known);
        if !held.is_empty() {
            // Reads the rules to find the lines to hold back.
            for family in due.iter().filter(|family| !dumps.contains_key(family)).copied().collect::<Vec<_>>() {
                dumps.extend(self.read_family(family, &pass, report, ports.rules).map(|dump| (family, dump)));
            }
            due.retain(|family| dumps.contains_key(family));
        }
        let backend = if due.is_empty() { None } else { ports.rules.used_backend() };
        for family in due {
            let from_nothing = made.remove(&family);
            match self.plan_family(family, &pass, dumps.get(&family), &held, from_nothing, backend) {
                Ok(family) => plan.families.push(family),
                Err(error) => report.unread.push(self.unreadable(family, error, pass.now)),
            }
        }
        let is_served = |family| self.index.settings(family).is_some();
        let read = plan.families.iter().filter(|plan| matches!(plan.basis, Basis::Read { .. }));
        let differing = read.flat_map(|plan| plan.frontends.0.keys());
        let mut forget = flows::to_forget(&pass, is_served, |_| BTreeSet::new(), differing, &held);
        let settings = self.index.settings(Family::V4);
        let routes_localhost = settings.is_some_and(|settings| settings.options.localhost_node_ports);
        if routes_localhost {
            flows::add_localhost(&mut forget, &pass, &held);
        }
        if pass.tells_drift {
            report.drift = self.drift(&pass, &plan);
        }
        Some(Plan { routes_localhost, ..Plan::of_mode(IptablesPlan { held, ..plan }, forget) })
    }

    fn carry_out(&mut self, work: Box<dyn Work>, arguments: CarryOut<'_>, ports: &mut Ports<'_>) -> Outcome {
        let CarryOut { names, desired, changes, report, clock } = arguments;
        let mut plan: IptablesPlan = work.into_plan();
        let (mut applied, written) = apply(&plan, &self.index.wanted(desired), &names, ports.rules);
        self.held = std::mem::take(&mut plan.held);
        let mut surprised = false;
        for (plan, written) in plan.families.iter().zip(&written) {
            surprised |= written.is_surprise;
            self.note_written(desired, changes, plan, written, clock());
        }
        for family in Family::ALL.into_iter().filter(|family| self.index.settings(*family).is_none()) {
            changes.confirm(family);
        }
        surprised |= self.note_counters(desired, &written, &applied, ports.rules);
        self.left = self.generation_after(&plan, &written, ports.rules);
        applied.lacks.extend(self.lack.take());
        report.rule_counts = self.rule_counts(&written);
        let is_done = |family: &Family| written.iter().any(|of| of.family == *family && of.is_done);
        let unwritten = Family::ALL.into_iter().filter(|family| !is_done(family)).collect();
        Outcome { applied, read_again: surprised, unwritten, ..Outcome::default() }
    }

    fn next_wake(&self) -> Option<Moment> {
        let retries = Family::ALL.into_iter().filter_map(|family| self.families.of(family).retry.as_ref());
        retries.map(|retry| retry.at).min().filter(|_| self.compared)
    }

    fn facts_changed(&mut self) {
        self.new_facts = true;
    }

    fn kind(&self) -> Kind {
        Kind::Iptables
    }
}
