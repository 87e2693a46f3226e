//! Rules over [`iptables::Iptables`].

use std::fmt;
use std::time::{Duration, Instant};

use iptables::{
    Backend, BackendChoice, Dump, Error, ErrorKind, Iptables, Limits, Runner, Survey, TableName, Transaction,
};
use ipvs::model::Family;

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
}

/// For this long what a survey has listed is as good as listing it again.
const FRESH: Duration = Duration::from_secs(1);

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

fn of(family: Family) -> iptables::Family {
    match family {
        Family::V4 => iptables::Family::Ipv4,
        Family::V6 => iptables::Family::Ipv6,
    }
}

impl<R: Runner + Clone> RulesPort<R> {
    /// A port over the programs that this runner finds.
    pub fn new(runner: R, choice: BackendChoice, limits: Limits) -> Self {
        RulesPort { runner, choice, limits, v4: None, v6: None, survey: None }
    }

    /// The back end in use, once one was looked for and found.
    pub fn backend(&self) -> Option<Backend> {
        self.v4.as_ref().or(self.v6.as_ref()).map(Iptables::backend)
    }

    fn open(&mut self, family: Family) -> Result<Iptables<R>, Error> {
        if self.fresh_survey().is_none() {
            #[expect(clippy::disallowed_methods, reason = "how old a listing is, at the edge where it is made")]
            let now = Instant::now();
            self.survey = Some((now, Survey::take(&self.runner)?));
        }
        let opened = match (self.backend(), &self.survey) {
            (None, Some((_, survey))) => survey.open(self.runner.clone(), of(family), self.choice)?,
            (Some(backend), Some((_, survey))) => survey.reopen(self.runner.clone(), of(family), backend)?,
            (_, None) => Iptables::detect(self.runner.clone(), of(family), self.choice)?,
        };
        Ok(opened.with_limits(self.limits))
    }

    /// What was found a moment ago, and is as it was since.
    fn fresh_survey(&mut self) -> Option<&mut Survey> {
        self.survey.take_if(|(at, _)| at.elapsed() > FRESH);
        self.survey.as_mut().map(|(_, survey)| survey)
    }

    fn call<T>(&mut self, family: Family, ask: impl FnOnce(&Iptables<R>) -> Result<T, Error>) -> Result<T, PortError> {
        let port_error = |error: &Error| PortError::from_error(kind_of(error), error);
        let place = |port: &mut Self| match family {
            Family::V4 => port.v4.take(),
            Family::V6 => port.v6.take(),
        };
        let iptables = match place(self) {
            Some(iptables) => iptables,
            None => self.open(family).map_err(|error| port_error(&error))?,
        };
        let answer = ask(&iptables).map_err(|error| port_error(&error));
        // Programs that are gone, or of another back end now, are looked for again.
        if !matches!(&answer, Err(error) if error.kind() == PortErrorKind::Unavailable) {
            match family {
                Family::V4 => self.v4 = Some(iptables),
                Family::V6 => self.v6 = Some(iptables),
            }
        }
        answer
    }
}

impl<R: Runner + Clone> Rules for RulesPort<R> {
    fn has_random_fully(&mut self, family: Family) -> Result<bool, PortError> {
        self.call(family, |iptables| Ok(iptables.version().has_random_fully()))
    }

    fn dump(&mut self, family: Family) -> Result<Dump, PortError> {
        self.call(family, |_| Ok(()))?;
        let listed = self
            .backend()
            .and_then(|backend| self.fresh_survey().and_then(|survey| survey.take_dump(backend, of(family))));
        self.call(family, |iptables| {
            let mut dump = match listed {
                Some(dump) => dump,
                None => iptables.dump()?,
            };
            dump.tables.retain(|table| [TableName::NAT, TableName::FILTER].contains(table.name()));
            // A table that nobody has used yet is not in the listing: it is empty, or the kernel lacks it, which restoring
            // it says. Asking for each would cost a process.
            Ok(dump)
        })
    }

    fn restore(&mut self, family: Family, transaction: &Transaction) -> Result<(), PortError> {
        self.survey = None;
        self.call(family, |iptables| iptables.restore(transaction))
    }
}
