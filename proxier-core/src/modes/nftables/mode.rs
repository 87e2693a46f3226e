//! nftables mode from pass to pass: desired tables, tracked kernel state, and unfinished work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::index::Index;
use super::layout::Layout;
use super::observed::{Observed, read};
use super::plan::{NftablesPlan, TablePlan, write_table};
use crate::modes::shared::flows;
use crate::modes::shared::frontends::losing;
use crate::modes::shared::table::{Basis, Fate, WriteOutcome};
use crate::modes::{self, CarryOut, FrontendRef, Hold, Kind, Outcome, Pass, Plan, Reading, Work};
use crate::net::{Family, FrontendKey};
use crate::pack::{Gather as _, pack};
use crate::plan::operation::Whole;
use crate::plan::report::{Applied, Report, Unread};
use crate::plan::step::Step;
use crate::ports::{PortError, PortErrorKind, Ports, Tables};
use crate::safeguard::Kernel;
use crate::service::{Compiled, Desired, NO_ROOM_TO_STAY, NodeFacts};
use crate::snapshot::HostAddresses;

#[derive(Debug, Default)]
pub(crate) struct Mode {
    index: Index,
    /// The tracked state of the kernel; `None` before it was read.
    known: Option<KernelState>,
    /// The tables as just read, until the plan is made.
    read: BTreeMap<Family, Option<Observed>>,
    /// Families whose table was another program's when last read. They are not served.
    foreign: BTreeMap<Family, PortError>,
    /// As written.
    layouts: BTreeMap<Family, Arc<Layout>>,
    /// The layouts that follow from the node facts, until these change or the kernel is read.
    wanted: BTreeMap<Family, Arc<Layout>>,
    /// Frontends that the safeguard keeps in the kernel. Their changes are visible only by reading.
    held: BTreeSet<FrontendKey>,
    /// Frontends that the kernel refused: it has their previous state, or none.
    refused: BTreeSet<FrontendKey>,
    /// Frontends reported as having no session affinity.
    over_limit: BTreeSet<FrontendKey>,
    unfinished: BTreeSet<Family>,
}

#[derive(Debug, Default)]
struct KernelState {
    /// The generation after our last change; `None` if another program changed something at the same time.
    generation: Option<u32>,
    /// The Frontends that it serves, and whether they have endpoints.
    frontends: BTreeMap<FrontendKey, bool>,
}

impl Mode {
    /// `None` for a table that should not exist and does not.
    fn plan_table(
        &self,
        pass: &Pass<'_>,
        layout: Arc<Layout>,
        is_served: bool,
        read: Option<&Option<Observed>>,
    ) -> Option<TablePlan> {
        let wanted = (pass.desired, &self.index);
        let is_other = || self.layouts.get(&layout.family).is_some_and(|written| *written != layout);
        let fate = match (is_served, read) {
            (true, Some(Some(observed))) => return Some(TablePlan::compared(layout, wanted, observed)),
            (true, Some(None)) => Fate::Make,
            (true, None) if is_other() => Fate::Remake,
            (true, None) => {
                let written = self.index.written(&layout, pass.desired, pass.changes);
                return Some(TablePlan::new(layout, Fate::Keep, wanted, (&written, Some(pass.changes))));
            }
            (false, Some(Some(_))) => Fate::Delete,
            (false, _) => return None,
        };
        Some(TablePlan::new(layout, fate, wanted, (&Observed::default(), None)))
    }

    /// Services whose session affinity is not applied because there are too many rules; empty if already reported.
    fn limited(&mut self, pass: &Pass<'_>) -> Vec<String> {
        let over = &self.index.over_limit;
        let new: BTreeSet<String> =
            over.difference(&self.over_limit).filter_map(|key| pass.names.service_of(key)).gather();
        self.over_limit.clone_from(over);
        new.into_iter().map(|of| format!("{of}: {NO_ROOM_TO_STAY}")).collect()
    }

    /// Other programs' changes: differences not caused by the input, or by room for these.
    fn drift(&self, pass: &Pass<'_>, plan: &NftablesPlan, admitted: &BTreeSet<FrontendKey>) -> Vec<Step> {
        let mut drift = Vec::new();
        for table in &plan.tables {
            let family = table.layout.family;
            if self.unfinished.contains(&family) {
                continue;
            }
            let is_same_layout = self.layouts.get(&family) == Some(&table.layout);
            let is_input = self.index.changed.iter().any(|need| need.family() == family);
            if table.changes_rules() && is_same_layout && !is_input {
                drift.push(table.step());
            }
            let others = table
                .frontends
                .0
                .keys()
                .filter(|key| !pass.changes.has(key) && !self.refused.contains(key) && !self.held.contains(key))
                .filter(|key| !admitted.contains(key));
            drift.extend(others.map(|key| table.frontends.operation(key).step(&pass.names)));
        }
        drift
    }

    fn note_written(&mut self, desired: &Desired, plan: &NftablesPlan, ours: u32, tables: &mut dyn Tables) {
        if !self.unfinished.is_empty() || !self.refused.is_empty() {
            // Reading shows what was written and what was not.
            self.known = None;
        }
        for table in &plan.tables {
            let family = table.layout.family;
            if self.unfinished.contains(&family) {
                continue;
            }
            if table.fate == Fate::Delete {
                self.layouts.remove(&family);
            } else {
                self.layouts.insert(family, table.layout.clone());
            }
            if let Some(known) = &mut self.known {
                for key in table.frontends.0.keys() {
                    match desired.frontend(key).filter(|_| table.fate != Fate::Delete) {
                        Some(frontend) => drop(known.frontends.insert(*key, self.index.leads_on(frontend))),
                        None => drop(known.frontends.remove(key)),
                    }
                }
            }
        }
        let after = if ours > 0 { tables.generation().ok() } else { None };
        if let Some(known) = self.known.as_mut().filter(|_| ours > 0) {
            // If only our transactions increased it, no other program made changes.
            let is_ours = known.generation.is_some() && known.generation == plan.generation;
            let expected = plan.generation.map(|before| before.wrapping_add(ours));
            known.generation = after.filter(|after| is_ours && Some(*after) == expected);
        }
    }
}

impl modes::Mode for Mode {
    fn index_service(&mut self, before: Option<&Compiled>, after: Option<&Compiled>) {
        self.index.follow_service(before, after);
    }

    fn index_frontend(&mut self, written: FrontendRef<'_>, before: FrontendRef<'_>, after: FrontendRef<'_>) {
        let [written, before, after] = [written, before, after].map(|of| of.map(|frontend| &**frontend));
        self.index.follow(written, before, after);
    }

    fn without_affinity(&self) -> BTreeSet<FrontendKey> {
        self.index.over_limit.clone()
    }

    fn compact(&mut self) {
        self.index.compact();
        self.known.iter_mut().for_each(|known| pack(&mut known.frontends));
    }

    fn kernel(&self) -> Option<&dyn Kernel> {
        Some(&self.known.as_ref()?.frontends)
    }

    fn knows_kernel(&self) -> bool {
        self.known.is_some() && self.held.is_empty()
    }

    fn forget_kernel(&mut self) {
        self.known = None;
        self.read.clear();
    }

    fn read(&mut self, _desired: &Desired, _host: &HostAddresses, facts: &NodeFacts, ports: &mut Ports<'_>) -> Reading {
        self.read.clear();
        let unread = |error| vec![Unread::new("generation of nf_tables", error)];
        let generation = ports.tables.generation().map_err(unread)?;
        let is_known = self.known.as_ref().is_some_and(|known| known.generation == Some(generation));
        let is_whole = self.foreign.is_empty() && self.refused.is_empty() && self.unfinished.is_empty();
        if is_known && self.held.is_empty() && is_whole && !self.index.may_admit() {
            return Ok(());
        }
        self.foreign.clear();
        let mut known = KernelState { generation: Some(generation), frontends: BTreeMap::new() };
        let mut failed = Vec::new();
        for family in Family::ALL {
            let layout = Layout::new(family, facts);
            match read(ports.tables, &layout) {
                Ok(observed) => {
                    known.frontends.extend(observed.iter().flat_map(|observed| observed.frontends(family)));
                    self.read.insert(family, observed);
                }
                Err(error) if error.kind() == PortErrorKind::AlreadyExists => {
                    self.foreign.insert(family, error);
                }
                Err(error) => failed.push(Unread::new(format_args!("table {}", layout.table), error)),
            }
        }
        if !failed.is_empty() {
            self.forget_kernel();
            return Err(failed);
        }
        self.known = Some(known);
        Ok(())
    }

    fn plan(&mut self, pass: Pass<'_>, hold: Hold<'_>, report: &mut Report, ports: &mut Ports<'_>) -> Option<Plan> {
        let mut plan = NftablesPlan::default();
        let unread = |error| report.unread.push(Unread::new("generation of nf_tables", error));
        let generation = Some(ports.tables.generation().map_err(unread).ok()?);
        let read = std::mem::take(&mut self.read);
        for (family, observed) in &read {
            self.index.adopt(pass.desired, *family, observed.as_ref().unwrap_or(&Observed::default()));
        }
        let admitted = if read.is_empty() { BTreeSet::new() } else { self.index.admit(pass.desired) };
        report.limited = self.limited(&pass);
        if pass.full {
            self.wanted.clear();
        }
        let served: Vec<Family> = pass.families().collect();
        for family in Family::ALL {
            let layout = self.wanted.entry(family).or_insert_with(|| {
                let mut layout = Layout::new(family, pass.facts);
                layout.is_liberal = pass.tcp_is_liberal;
                Arc::new(layout)
            });
            let layout = Arc::clone(layout);
            match self.foreign.get(&family) {
                Some(error) if served.contains(&family) => {
                    report.unread.push(Unread::new(format_args!("table {}", layout.table), error.clone()));
                }
                Some(_) => {}
                None => plan.tables.extend(self.plan_table(&pass, layout, served.contains(&family), read.get(&family))),
            }
        }
        let known = self.known.as_ref()?;
        let differing = plan.tables.iter().flat_map(|table| table.frontends.0.keys());
        let held = hold(losing(differing, &known.frontends, pass.desired), &known.frontends);
        // A recreated table would lose them, so it stays unchanged.
        let keeps = |family: &Family| held.iter().any(|key| key.family() == *family);
        let remade = plan.tables.iter().filter(|table| table.fate == Fate::Remake).map(|table| table.layout.family);
        let left: BTreeSet<Family> = remade.filter(keeps).gather();
        plan.tables.retain(|table| !left.contains(&table.layout.family));
        for table in plan.tables.iter_mut().filter(|_| !held.is_empty()) {
            if let Some(Some(observed)) = read.get(&table.layout.family) {
                table.hold(&held, &self.index, observed);
            }
        }
        let differing = plan.tables.iter().filter(|_| pass.full).flat_map(|table| table.frontends.0.keys());
        let forget = flows::to_forget(&pass, |_| true, |_| BTreeSet::new(), differing, &held);
        if pass.tells_drift {
            report.drift = self.drift(&pass, &plan, &admitted);
        }
        let basis = Basis::new(known.generation.filter(|_| !read.is_empty()), read);
        Some(Plan::of_mode(NftablesPlan { generation, basis, held, left, ..plan }, forget))
    }

    fn carry_out(&mut self, work: Box<dyn Work>, arguments: CarryOut<'_>, ports: &mut Ports<'_>) -> Outcome {
        let CarryOut { names, desired, changes, .. } = arguments;
        let mut plan: NftablesPlan = work.into_plan();
        let mut applied = Applied::default();
        let tables = plan.tables.iter().filter(|table| !table.is_empty());
        let write = |table| write_table(table, &mut plan.basis, &names, ports.tables, &mut applied);
        let written: BTreeMap<Family, WriteOutcome<FrontendKey>> = tables.map(write).gather();
        let is_written = |family: &Family| written.get(family).is_none_or(|written| written.failed.is_none());
        let is_done = |family: Family| !plan.left.contains(&family) && is_written(&family);
        self.unfinished = Family::ALL.into_iter().filter(|family| !is_done(*family)).gather();
        self.refused = written.values().flat_map(|written| written.refused.iter().map(|(key, ..)| *key)).gather();
        self.held = std::mem::take(&mut plan.held);
        let commits = written.values().map(|written| written.commits).sum();
        self.note_written(desired, &plan, commits, ports.tables);
        for family in Family::ALL.into_iter().filter(|family| is_done(*family)) {
            changes.confirm(family);
            self.index.confirm(family);
        }
        let surprised = written.values().any(|written| written.is_surprise);
        Outcome { applied, surprised, unwritten: self.unfinished.clone(), ..Outcome::default() }
    }

    fn facts_changed(&mut self) {
        self.wanted.clear();
    }

    fn has_read_tables(&self) -> bool {
        self.known.is_some()
    }

    fn kind(&self) -> Kind {
        Kind::Nftables
    }
}
