//! Rules over [`iptables::Iptables`].

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::fmt;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use iptables::{
    Backend, BackendChoice, ChainName, Dump, Error, ErrorKind, Iptables, Limits, Runner, Survey, Table, TableName,
    Transaction,
};

use super::{PacketCounters, TablesPort};
use crate::compat;
use crate::net::{ByFamily, Family};
use crate::parallel;
use crate::ports::{PortError, PortErrorKind, Result, Rules, Tables as _};

/// Reads and writes rules with the iptables programs of both families.
///
/// Finds the programs at first use. If those of one family are missing, calls for the other still work. Both use the
/// same back end: the one that the host uses.
#[doc(hidden)]
pub struct RulesPort<R> {
    runner: R,
    choice: BackendChoice,
    limits: Limits,
    /// The programs of each family, once found.
    programs: ByFamily<Option<Iptables<R>>>,
    survey: Option<(Instant, Survey)>,
    listed: BTreeMap<Family, (Instant, Dump)>,
    /// Shows which chains exist if the programs cannot.
    tables: TablesPort,
    counters: PacketCounters,
}

/// A listing of at most this age is reused: the first pass follows soon, and the next full pass finds other programs'
/// changes.
const FRESH: Duration = Duration::from_secs(3);

#[expect(clippy::disallowed_methods, reason = "how old a listing is, at the edge where it is made")]
fn now() -> Instant {
    Instant::now()
}

impl<R> fmt::Debug for RulesPort<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RulesPort").field("choice", &self.choice).field("limits", &self.limits).finish_non_exhaustive()
    }
}

fn kind_of(error: &Error) -> PortErrorKind {
    match error.kind() {
        ErrorKind::ChainMissing | ErrorKind::RuleMissing | ErrorKind::SetMissing => PortErrorKind::NotFound,
        ErrorKind::ChainInUse | ErrorKind::LockTimeout => PortErrorKind::Busy,
        ErrorKind::Permission => PortErrorKind::Permission,
        ErrorKind::ProgramMissing
        | ErrorKind::UnsupportedProgram
        | ErrorKind::NoKernelSupport
        | ErrorKind::ExtensionMissing
        | ErrorKind::MixedBackends => PortErrorKind::Unavailable,
        ErrorKind::InvalidName | ErrorKind::InvalidToken | ErrorKind::Rejected => PortErrorKind::Invalid,
        ErrorKind::TimedOut => PortErrorKind::Unknown,
        // A program that was killed, such as for its memory, tells nothing about the kernel or its input.
        ErrorKind::Io if error.source().is_none() => PortErrorKind::Unknown,
        ErrorKind::Io => super::error::io_kind(error),
        _ => PortErrorKind::Other,
    }
}

impl<R: Runner + Clone + Sync> RulesPort<R> {
    /// Creates a port that uses the programs found by this runner.
    pub fn new(runner: R, choice: BackendChoice, limits: Limits) -> Self {
        let tables = TablesPort::new(nftables::Client::open);
        let (programs, listed, counters) = (ByFamily::default(), BTreeMap::new(), PacketCounters::default());
        RulesPort { runner, choice, limits, programs, survey: None, listed, tables, counters }
    }

    /// The back end in use, once detected.
    pub fn backend(&self) -> Option<Backend> {
        self.programs.v4.as_ref().or(self.programs.v6.as_ref()).map(Iptables::backend)
    }

    /// The back end, once settled.
    fn settled(&self) -> Option<Backend> {
        let forced = match self.choice {
            BackendChoice::Force(backend) => Some(backend),
            BackendChoice::Detect | BackendChoice::Expect(_) => None,
        };
        self.backend().or(forced)
    }

    fn open(&mut self, family: Family) -> Result<Iptables<R>, Error> {
        let used = self.backend();
        let fresh = self.survey.take().filter(|(at, _)| at.elapsed() <= FRESH);
        let survey = fresh.map_or_else(|| survey(&self.runner, self.settled()).map(|taken| (now(), taken)), Ok)?;
        let (_, survey) = self.survey.insert(survey);
        let opened = open(survey, &self.runner, used, self.choice, family)?;
        Ok(opened.with_limits(self.limits))
    }

    /// The earlier listing of a family, if it is fresh. Returned once.
    fn listed(&mut self, family: Family) -> Option<Dump> {
        if let Some((_, dump)) = self.listed.remove(&family).filter(|(at, _)| at.elapsed() <= FRESH) {
            return Some(dump);
        }
        let backend = self.backend()?;
        let (_, survey) = self.survey.as_mut().filter(|(at, _)| at.elapsed() <= FRESH)?;
        survey.take_dump(backend, family.into())
    }

    pub(crate) fn forget_listed(&mut self) {
        self.survey = None;
        self.listed.clear();
    }

    fn take_programs(&mut self, family: Family) -> Result<Iptables<R>> {
        self.programs.of_mut(family).take().map_or_else(|| self.open(family).map_err(|error| port_error(&error)), Ok)
    }

    /// Keeps the programs for the next call, unless the answer shows that they are missing or use another back end now.
    fn keep<T>(&mut self, family: Family, iptables: Iptables<R>, answer: Result<T, Error>) -> Result<T> {
        let answer = answer.map_err(|error| port_error(&error));
        if !matches!(&answer, Err(error) if error.kind() == PortErrorKind::Unavailable) {
            *self.programs.of_mut(family) = Some(iptables);
        }
        answer
    }

    /// Reads chain by chain a table that the program cannot show as a whole, since nft has added something that
    /// iptables cannot express. Of a chain that it cannot show either, reads [the targets of rules](compat::rule).
    fn by_chains(&mut self, family: Family, table: &TableName) -> Result<Table> {
        let key = compat::table_key(family, table)?;
        let chains = self.tables.chains(&key)?;
        let names = chains.iter().filter_map(|of| ChainName::new(of.chain.key.name.as_str()).ok());
        let names: Vec<ChainName> = names.collect();
        let shown = self.call(family, |iptables| iptables.dump_chains(table, &names))?;
        let is_hidden = |chain: &str| shown.chain(chain).is_none();
        let read = compat::read(&key, table, &is_hidden, &mut self.tables)?;
        let mut whole = read.unwrap_or_else(|| Table::new(table.clone()));
        for chain in shown.chains() {
            whole.insert(chain.clone());
        }
        Ok(whole)
    }

    fn call<T>(&mut self, family: Family, ask: impl FnOnce(&Iptables<R>) -> Result<T, Error>) -> Result<T> {
        let iptables = self.take_programs(family)?;
        let answer = ask(&iptables);
        self.keep(family, iptables, answer)
    }
}

/// Rules of both back ends as listed by the programs, or only those of the settled one.
fn survey<R: Runner + Sync>(runner: &R, settled: Option<Backend>) -> Result<Survey, Error> {
    settled.map_or_else(|| Survey::take(runner), |backend| Survey::of(runner, backend))
}

/// The programs of a family, of the back end in use or configured.
fn open<R: Runner + Clone>(
    survey: &mut Survey,
    runner: &R,
    used: Option<Backend>,
    choice: BackendChoice,
    family: Family,
) -> Result<Iptables<R>, Error> {
    let opened = match used {
        Some(backend) => survey.reopen(runner.clone(), family.into(), backend)?,
        None => survey.open(runner.clone(), family.into(), choice)?,
    };
    // The other back end is not read: it may have all the rules of an earlier proxy.
    for family in Family::ALL {
        drop(survey.take_dump(opened.backend().other(), family.into()));
    }
    Ok(opened)
}

/// The programs of both back ends and, if one was found, those of a family.
type Surveyed<R> = Option<Box<(Survey, Option<Iptables<R>>)>>;

fn port_error(error: &Error) -> PortError {
    PortError::from_error(kind_of(error), error)
}

impl<R: Runner + Clone + Send + Sync> Rules for RulesPort<R> {
    fn has_random_fully(&mut self, family: Family) -> Result<bool> {
        self.call(family, |iptables| Ok(iptables.version().has_random_fully()))
    }

    fn dump(&mut self, family: Family) -> Result<Dump> {
        // Looking for the programs lists everything.
        self.call(family, |_| Ok(()))?;
        let mut dump = match self.listed(family) {
            Some(dump) => dump,
            None => self.call(family, Iptables::dump)?,
        };
        let mut hidden = vec![TableName::NAT, TableName::FILTER];
        hidden.retain(|table| dump.incompatible_tables().contains(&table.as_str()));
        dump.tables.retain(|table| [TableName::NAT, TableName::FILTER].contains(table.name()));
        for table in hidden {
            let table = self.by_chains(family, &table)?;
            dump.tables.push(table);
        }
        // The listing omits a table that was never used. It is empty, or the kernel lacks it; a restore shows which.
        // Asking for each table would cost a process.
        Ok(dump)
    }

    fn used_backend(&mut self) -> Option<Backend> {
        let known = self.backend();
        let mut ask = |family| self.call(family, |iptables| Ok(iptables.backend())).ok();
        known.or_else(|| Family::ALL.into_iter().find_map(&mut ask))
    }

    fn dump_of(&mut self, backend: Backend, family: Family) -> Result<Dump> {
        // The program would load the modules of the tables.
        if backend == Backend::Legacy && self.runner.has_legacy_tables(family.into()) == Some(false) {
            return Ok(Dump::default());
        }
        if self.backend() == Some(backend) {
            return self.dump(family);
        }
        let read = |iptables: Iptables<&R>| iptables.with_limits(self.limits).dump();
        let mut dump =
            Iptables::open(&self.runner, family.into(), backend).and_then(read).map_err(|error| port_error(&error))?;
        if let Some(table) = dump.incompatible_tables().first() {
            let why = format!("table {table} has rules that the programs of the {backend} back end cannot show");
            return Err(PortError::new(PortErrorKind::Unavailable, why));
        }
        dump.tables.retain(|table| [TableName::NAT, TableName::FILTER].contains(table.name()));
        Ok(dump)
    }

    fn restore_to(&mut self, backend: Backend, family: Family, transaction: &Transaction) -> Result<()> {
        if self.backend() == Some(backend) {
            return self.restore(family, transaction);
        }
        let write = |iptables: Iptables<&R>| iptables.with_limits(self.limits).restore(transaction);
        Iptables::open(&self.runner, family.into(), backend).and_then(write).map_err(|error| port_error(&error))
    }

    fn generation(&mut self) -> Option<u32> {
        if self.backend() != Some(Backend::NfTables) {
            return None;
        }
        self.forget_listed();
        // `nf_tables_commit` adds 1, and the programs commit each table by itself.
        self.tables.generation().ok()
    }

    fn has_tables(&mut self, family: Family) -> Option<bool> {
        self.runner.has_legacy_tables(family.into())
    }

    fn has_unreadable_tables(&mut self, family: Family) -> bool {
        self.runner.has_legacy_tables(family.into()) == Some(true)
            && Iptables::open(&self.runner, family.into(), Backend::Legacy)
                .is_err_and(|error| error.kind() == ErrorKind::ProgramMissing)
    }

    fn list_meanwhile(&mut self, families: &[Family], work: &mut dyn FnMut()) {
        let is_fresh = |at: Instant| at.elapsed() <= FRESH;
        let settled = self.settled();
        let mut questions = Vec::new();
        let mut is_surveyed = self.survey.as_ref().is_some_and(|(at, _)| is_fresh(*at));
        for &family in families {
            if is_surveyed || self.listed.get(&family).is_some_and(|(at, _)| is_fresh(*at)) {
                continue;
            }
            let known = self.programs.of_mut(family).take();
            is_surveyed = known.is_none();
            questions.push((family, known));
        }
        let (runner, used, choice) = (&self.runner, self.backend(), self.choice);
        // Lists the rules of a family or, if its programs are not known, asks which exist, which lists rules too. A
        // question that fails is asked again when its answer is needed.
        let ask = |(family, known): &(Family, Option<Iptables<R>>)| -> Result<Option<Dump>, Surveyed<R>> {
            let Some(iptables) = known else {
                return Err(survey(runner, settled).ok().map(|mut survey| {
                    let opened = open(&mut survey, runner, used, choice, *family).ok();
                    Box::new((survey, opened))
                }));
            };
            Ok(iptables.dump().ok())
        };
        let answers = parallel::map("iptables", &questions, ask, work).0;
        // From now on, since a listing of 30,000 chains takes `iptables-nft-save` longer than it stays fresh.
        let at = now();
        for ((family, known), answer) in questions.into_iter().zip(answers) {
            let opened = match answer {
                Ok(dump) => {
                    self.listed.extend(dump.map(|dump| (family, (at, dump))));
                    known
                }
                Err(surveyed) => surveyed.and_then(|surveyed| {
                    self.survey = Some((at, surveyed.0));
                    surveyed.1.map(|opened| opened.with_limits(self.limits))
                }),
            };
            *self.programs.of_mut(family) = opened;
        }
    }

    fn set_lock_wait(&mut self, wait: Duration) {
        if self.limits.lock_wait == wait {
            return;
        }
        self.limits.lock_wait = wait;
        for family in Family::ALL {
            let known = self.programs.of_mut(family);
            *known = known.take().map(|iptables| iptables.with_limits(self.limits));
        }
    }

    fn counters(&mut self) -> Result<BTreeSet<String>> {
        self.counters.read().map(|packets| packets.into_keys().collect())
    }

    fn make_counters(&mut self, names: &[&str]) -> Result<()> {
        names.iter().try_for_each(|name| self.counters.make(name))
    }

    fn delete_counters(&mut self, names: &[&str]) -> Result<usize> {
        names.iter().try_fold(0_usize, |count, name| Ok(count.saturating_add(self.counters.delete(name)?.into())))
    }

    fn check(&mut self, family: Family, transaction: &Transaction) -> Result<()> {
        // A refusal tells nothing about the programs.
        let iptables = self.take_programs(family)?;
        let answer = iptables.check(transaction).map_err(|error| port_error(&error));
        *self.programs.of_mut(family) = Some(iptables);
        answer
    }

    fn restore(&mut self, family: Family, transaction: &Transaction) -> Result<()> {
        let answer = self.call(family, |iptables| iptables.restore(transaction));
        // Afterwards: finding the programs may have listed everything.
        self.forget_listed();
        answer
    }

    #[expect(clippy::disallowed_types, reason = "two threads of one call take turns")]
    fn restore_families(&mut self, changes: &[(Family, &[Transaction])]) -> Vec<Result<()>> {
        if let [(family, all)] = changes {
            return vec![all.iter().try_for_each(|transaction| self.restore(*family, transaction))];
        }
        let opened: Vec<_> = changes.iter().map(|(family, _)| self.take_programs(*family)).collect();
        self.forget_listed();
        let jobs: Vec<_> = opened.into_iter().zip(changes).collect();
        let lock = std::sync::Mutex::new(());
        let restore = |(iptables, (_, all)): &(Result<Iptables<R>>, &(Family, &[Transaction]))| {
            let restore = |iptables: &Iptables<R>| {
                // The legacy programs of both families share one lock: in parallel, one would wait for the other and
                // might give up.
                let share_a_lock = iptables.backend() == Backend::Legacy;
                let turn = || share_a_lock.then(|| lock.lock().unwrap_or_else(PoisonError::into_inner));
                all.iter().try_for_each(|transaction| iptables.restore_in_turn(transaction, turn))
            };
            iptables.as_ref().map(restore).map_err(PortError::clone)
        };
        let answers = parallel::map("iptables", &jobs, restore, || {}).0;
        let outcomes = jobs
            .into_iter()
            .zip(answers)
            .map(|((iptables, (family, _)), answer)| self.keep(*family, iptables?, answer?));
        outcomes.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The node fell back to another mode for as long as the process ran.
    #[test]
    fn a_program_that_was_killed_shows_no_lack() {
        let killed = Error::new(ErrorKind::Io, "iptables-nft-save failed (killed by a signal; out of memory?)");
        assert_eq!(kind_of(&killed), PortErrorKind::Unknown);
        let refused = Error::new(ErrorKind::Io, "cannot start iptables-nft-save");
        let refused = refused.with_source(std::io::Error::from_raw_os_error(nix::libc::ENOMEM));
        assert_eq!(kind_of(&refused), PortErrorKind::Busy);
    }
}
