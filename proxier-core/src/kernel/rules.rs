//! Rules over [`iptables::Iptables`].

use std::collections::BTreeMap;
use std::fmt;
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

use crate::net::Family;
use iptables::{
    Backend, BackendChoice, Dump, Error, ErrorKind, Iptables, Limits, Runner, Survey, TableName, Transaction,
};

use crate::ports::{PortError, PortErrorKind, Rules};

/// The port over the programs of both families.
///
/// They are looked for when they are first needed: without those of one family, calls for the other go on. Both use one back
/// end: the one that the host uses.
pub struct RulesPort<R> {
    runner: R,
    choice: BackendChoice,
    limits: Limits,
    v4: Option<Iptables<R>>,
    v6: Option<Iptables<R>>,
    survey: Option<(Instant, Survey)>,
    listed: BTreeMap<Family, (Instant, Dump)>,
}

/// For this long what was listed before it was asked for is as good as listing it again: the first pass follows so soon, and what somebody
/// else changes meanwhile is found by the next full one.
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
        ErrorKind::Io => super::error::io_kind(error),
        _ => PortErrorKind::Other,
    }
}

impl<R: Runner + Clone + Sync> RulesPort<R> {
    /// A port over the programs that this runner finds.
    pub fn new(runner: R, choice: BackendChoice, limits: Limits) -> Self {
        RulesPort { runner, choice, limits, v4: None, v6: None, survey: None, listed: BTreeMap::new() }
    }

    /// The back end in use, once one was looked for and found.
    pub fn backend(&self) -> Option<Backend> {
        self.v4.as_ref().or(self.v6.as_ref()).map(Iptables::backend)
    }

    fn open(&mut self, family: Family) -> Result<Iptables<R>, Error> {
        let used = self.backend();
        let (_, survey) = match self.survey.take_if(|(at, _)| at.elapsed() <= FRESH) {
            Some(fresh) => self.survey.insert(fresh),
            None => self.survey.insert((now(), Survey::take(&self.runner)?)),
        };
        let opened = match used {
            Some(backend) => survey.reopen(self.runner.clone(), family.into(), backend)?,
            None => survey.open(self.runner.clone(), family.into(), self.choice)?,
        };
        Ok(opened.with_limits(self.limits))
    }

    /// What was listed of a family before, if that is fresh. It is handed out once.
    fn listed(&mut self, family: Family) -> Option<Dump> {
        if let Some((_, dump)) = self.listed.remove(&family).filter(|(at, _)| at.elapsed() <= FRESH) {
            return Some(dump);
        }
        let backend = self.backend()?;
        let (_, survey) = self.survey.as_mut().filter(|(at, _)| at.elapsed() <= FRESH)?;
        survey.take_dump(backend, family.into())
    }

    /// Nothing that was listed before is as it is now.
    fn forget_listed(&mut self) {
        self.survey = None;
        self.listed.clear();
    }

    /// The programs of a family, once they were found.
    fn known(&mut self, family: Family) -> &mut Option<Iptables<R>> {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }

    /// The programs of a family, opened if need be.
    fn take(&mut self, family: Family) -> Result<Iptables<R>, PortError> {
        self.known(family).take().map_or_else(|| self.open(family).map_err(|error| port_error(&error)), Ok)
    }

    /// Keeps the programs for the next call, unless they have answered that they are gone, or of another back end now.
    fn keep<T>(&mut self, family: Family, iptables: Iptables<R>, answer: Result<T, Error>) -> Result<T, PortError> {
        let answer = answer.map_err(|error| port_error(&error));
        if !matches!(&answer, Err(error) if error.kind() == PortErrorKind::Unavailable) {
            *self.known(family) = Some(iptables);
        }
        answer
    }

    fn call<T>(&mut self, family: Family, ask: impl FnOnce(&Iptables<R>) -> Result<T, Error>) -> Result<T, PortError> {
        let iptables = self.take(family)?;
        let answer = ask(&iptables);
        self.keep(family, iptables, answer)
    }
}

fn port_error(error: &Error) -> PortError {
    PortError::from_error(kind_of(error), error)
}

impl<R: Runner + Clone + Send + Sync> Rules for RulesPort<R> {
    fn has_random_fully(&mut self, family: Family) -> Result<bool, PortError> {
        self.call(family, |iptables| Ok(iptables.version().has_random_fully()))
    }

    fn dump(&mut self, family: Family) -> Result<Dump, PortError> {
        let mut dump = match self.listed(family) {
            Some(dump) => dump,
            None => self.call(family, Iptables::dump)?,
        };
        dump.tables.retain(|table| [TableName::NAT, TableName::FILTER].contains(table.name()));
        // A table that nobody has used yet is not in the listing: it is empty, or the kernel lacks it, which restoring it
        // says. Asking for each would cost a process.
        Ok(dump)
    }

    fn list_meanwhile(&mut self, families: &[Family], work: &mut dyn FnMut()) {
        let at = now();
        let is_fresh = |at: Instant| at.elapsed() <= FRESH;
        let mut found = Vec::new();
        for &family in families {
            // Programs that are not found yet are looked for by who needs them, and list everything then.
            let is_listed = self.listed.get(&family).is_some_and(|(at, _)| is_fresh(*at))
                || self.survey.as_ref().is_some_and(|(at, _)| is_fresh(*at));
            if !is_listed {
                found.extend(self.known(family).take().map(|iptables| (family, iptables)));
            }
        }
        let dumps = at_once(&found, |(_, iptables)| iptables.dump(), work);
        for ((family, iptables), dump) in found.into_iter().zip(dumps) {
            *self.known(family) = Some(iptables);
            // What failed is asked for again when it is needed, and fails there.
            if let Ok(dump) = dump {
                self.listed.insert(family, (at, dump));
            }
        }
    }

    fn set_lock_wait(&mut self, wait: Duration) {
        if self.limits.lock_wait == wait {
            return;
        }
        self.limits.lock_wait = wait;
        for known in [&mut self.v4, &mut self.v6] {
            *known = known.take().map(|iptables| iptables.with_limits(self.limits));
        }
    }

    fn restore(&mut self, family: Family, transaction: &Transaction) -> Result<(), PortError> {
        let answer = self.call(family, |iptables| iptables.restore(transaction));
        // Afterwards: to open programs, everything may have been listed.
        self.forget_listed();
        answer
    }

    fn restore_families(&mut self, changes: &[(Family, &Transaction)]) -> Vec<Result<(), PortError>> {
        // The legacy programs of both families share one lock: side by side, one would wait for the other and may give up.
        let share_a_lock = self.backend() == Some(Backend::Legacy);
        if share_a_lock || changes.len() == 1 {
            return changes.iter().map(|(family, transaction)| self.restore(*family, transaction)).collect();
        }
        let opened: Vec<_> = changes.iter().map(|(family, _)| self.take(*family)).collect();
        self.forget_listed();
        let jobs: Vec<_> = opened.into_iter().zip(changes).collect();
        let restore = |(iptables, (_, transaction)): &(Result<Iptables<R>, PortError>, &(Family, &Transaction))| {
            iptables.as_ref().map(|iptables| iptables.restore(transaction)).map_err(PortError::clone)
        };
        let answers = at_once(&jobs, restore, || {});
        let outcomes = jobs
            .into_iter()
            .zip(answers)
            .map(|((iptables, (family, _)), answer)| self.keep(*family, iptables?, answer?));
        outcomes.collect()
    }
}

/// Does something with each of these at the same time, and other work meanwhile; after that work what no thread was to be had
/// for. Threads are in the network namespace of the one that starts them.
fn at_once<J: Sync, T: Send>(jobs: &[J], run: impl Fn(&J) -> T + Sync, meanwhile: impl FnOnce()) -> Vec<T> {
    let run = &run;
    thread::scope(|scope| {
        let start = |job| thread::Builder::new().name("iptables".to_owned()).spawn_scoped(scope, move || run(job));
        let started: Vec<_> = jobs.iter().map(|job| (job, start(job))).collect();
        meanwhile();
        let end = |(job, started): (_, std::io::Result<thread::ScopedJoinHandle<'_, T>>)| match started {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_no_thread) => run(job),
        };
        started.into_iter().map(end).collect()
    })
}
