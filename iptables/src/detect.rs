//! Detects the back end that this host uses.

use std::panic::resume_unwind;
use std::thread;

use crate::client::{Iptables, Programs, Versions};
use crate::error::{Error, ErrorKind};
use crate::model::{Dump, Table};
use crate::name::{Backend, ChainName, Family, TableName};
use crate::rule::Rule;
use crate::runner::Runner;
use crate::transaction::Transaction;
use crate::version::ProgramVersion;

/// Chains in `mangle` that the kubelet creates in the back end that it uses (`KUBE-IPTABLES-HINT` since Kubernetes
/// 1.24).
const HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];

/// Programs, rules and chains of one back end on this host, for both families together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Presence {
    /// Version of the IPv4 programs, or of the IPv6 ones if only those are installed; `None` if none are.
    pub version: Option<ProgramVersion>,
    /// Rules in all tables.
    pub rules: usize,
    /// User-defined chains in all tables.
    pub chains: usize,
    /// Whether the kubelet's hint chain exists.
    pub kubelet_hint: bool,
    /// Why the tables could not be read, if so.
    pub unusable: Option<String>,
    /// The programs found, to search only once.
    programs: Vec<(Family, Programs)>,
    /// Dumps of the tables, to read only once.
    dumps: Vec<(Family, Dump)>,
}

impl Presence {
    /// Whether the back end has any rules or chains.
    pub fn in_use(&self) -> bool {
        self.rules > 0 || self.chains > 0
    }

    fn programs(&self, family: Family) -> Option<Programs> {
        self.programs.iter().find(|(of, _)| *of == family).map(|(_, programs)| programs.clone())
    }

    /// Whether tables of this family were read from the kernel.
    fn has_tables(&self, family: Family) -> bool {
        self.dumps.iter().any(|(of, dump)| *of == family && !dump.tables.is_empty())
    }

    fn add(&mut self, family: Family, dump: Dump) {
        self.rules = self.rules.saturating_add(dump.rule_count());
        let user =
            |t: &Table| t.chains().iter().filter(|c| !t.name().builtin_chains().contains(&c.name.as_str())).count();
        self.chains = dump.tables.iter().map(user).fold(self.chains, usize::saturating_add);
        self.kubelet_hint |= HINTS.iter().any(|hint| dump.has_chain(&TableName::MANGLE, hint));
        self.dumps.push((family, dump));
    }
}

/// How to choose a back end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum BackendChoice {
    /// The one that the host uses; an error if that is not clear.
    #[default]
    Detect,
    /// This back end; an error if the host uses the other.
    Expect(Backend),
    /// This back end, even if the host then uses both. Packets pass both rule sets; a drop in either is final.
    Force(Backend),
}

/// What both back ends contain on this host. Reading it changes nothing.
///
/// ```
/// # #[cfg(feature = "testing")] {
/// use iptables::{Backend, BackendChoice, Family, Survey, TableName};
///
/// # use iptables::{ChainName, Iptables, fake::FakeHost};
/// # let host = FakeHost::new();
/// # let legacy = Iptables::open(&host, Family::Ipv4, Backend::Legacy)?;
/// # let _ = legacy.ensure_chain(&TableName::MANGLE, &ChainName::new("KUBE-IPTABLES-HINT")?)?;
/// // On a host: System::new(). The kubelet has left its hint chain in the legacy tables of this one.
/// let mut survey = Survey::take(&host)?;
/// assert!(survey.presence(Backend::Legacy).kubelet_hint && !survey.nf_tables.in_use());
/// assert_eq!(survey.choose(BackendChoice::Detect)?, Backend::Legacy);
///
/// // Expecting the other one is an error; forcing it is not.
/// assert!(survey.choose(BackendChoice::Expect(Backend::NfTables)).is_err());
/// assert_eq!(survey.choose(BackendChoice::Force(Backend::NfTables))?, Backend::NfTables);
///
/// let iptables = survey.open(&host, Family::Ipv4, BackendChoice::Detect)?;
/// assert_eq!(iptables.backend(), Backend::Legacy);
/// let dump = survey.take_dump(Backend::Legacy, Family::Ipv4); // what was read already need not be read again
/// assert!(dump.is_some_and(|dump| dump.has_chain(&TableName::MANGLE, "KUBE-IPTABLES-HINT")));
/// # }
/// # Ok::<(), iptables::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survey {
    /// The legacy tables.
    pub legacy: Presence,
    /// The `nf_tables` rules that the iptables-compatible programs can show.
    pub nf_tables: Presence,
    /// The back end of the plain `iptables` command: the administrator's default.
    pub default: Option<Backend>,
}

impl Survey {
    /// Reads both back ends and both families in parallel, or in sequence if no thread can be started. In parallel it
    /// takes little longer than starting two programs.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] without privilege, because the result would be wrong rather than incomplete; failures
    /// to run programs. A back end that the kernel lacks is not an error: see [`Presence::unusable`].
    pub fn take(runner: &(impl Runner + Sync)) -> Result<Self, Error> {
        let [legacy, nf_tables] = at_once([Backend::Legacy, Backend::NfTables], |backend| Found::look(runner, backend));
        let (legacy, nf_tables) = (legacy?, nf_tables?);
        let mut versions = legacy.versions;
        versions.extend(nf_tables.versions);
        let default = plain(runner, &mut versions);
        Ok(Self { legacy: legacy.presence, nf_tables: nf_tables.presence, default })
    }

    /// Like [`Survey::take`], but only reads one back end, if the choice is settled. The other one appears to have no
    /// programs, and the default is `None`.
    ///
    /// # Errors
    /// As [`Survey::take`].
    pub fn of(runner: &(impl Runner + Sync), backend: Backend) -> Result<Self, Error> {
        let (found, other) = (Found::look(runner, backend)?.presence, Presence::default());
        let (legacy, nf_tables) = match backend {
            Backend::Legacy => (found, other),
            Backend::NfTables => (other, found),
        };
        Ok(Self { legacy, nf_tables, default: None })
    }

    /// Presence of one back end.
    pub fn presence(&self, backend: Backend) -> &Presence {
        match backend {
            Backend::Legacy => &self.legacy,
            Backend::NfTables => &self.nf_tables,
        }
    }

    /// Chooses the back end with the kubelet's hint; otherwise the only one in use. On an untouched host it chooses
    /// that of the plain `iptables` command, or whichever is installed.
    ///
    /// # Errors
    /// [`ErrorKind::MixedBackends`] if both have hints, if both are in use without a hint, or if the back end in use is
    /// not the expected one. [`ErrorKind::ProgramMissing`] if its programs are not installed.
    pub fn choose(&self, choice: BackendChoice) -> Result<Backend, Error> {
        let mixed = |why: String| {
            let fix = "move everything to one of them, or force the choice";
            Error::new(ErrorKind::MixedBackends, format!("{why}: {}; {fix}", self.summary()))
        };
        let chosen = match choice {
            BackendChoice::Force(backend) => backend,
            BackendChoice::Expect(backend) => match self.settled() {
                Some(Ok(used)) if used != backend => {
                    return Err(mixed(format!("this host uses {used}, not {backend}")));
                }
                _ => backend,
            },
            BackendChoice::Detect => match self.settled() {
                Some(Ok(used)) => used,
                Some(Err(())) => return Err(mixed("both back ends are in use on this host".to_owned())),
                None => {
                    let installed =
                        |b: &Backend| self.presence(*b).version.is_some() && self.presence(*b).unusable.is_none();
                    let default = self.default.filter(installed);
                    default.or_else(|| Backend::ALL.into_iter().find(installed)).unwrap_or(Backend::NfTables)
                }
            },
        };
        let presence = self.presence(chosen);
        match (&presence.version, &presence.unusable) {
            (Some(_), None) => Ok(chosen),
            (Some(_), Some(why)) => {
                Err(Error::new(ErrorKind::NoKernelSupport, format!("the {chosen} back end cannot be used: {why}")))
            }
            (None, _) => Err(Error::new(
                ErrorKind::ProgramMissing,
                format!("no programs of the {chosen} back end are installed; install the package iptables"),
            )),
        }
    }

    /// The back end in use: `None` if neither, `Err` if both appear to be.
    fn settled(&self) -> Option<Result<Backend, ()>> {
        let hints = (self.legacy.kubelet_hint, self.nf_tables.kubelet_hint);
        let used = (self.legacy.in_use(), self.nf_tables.in_use());
        match if hints == (false, false) { used } else { hints } {
            (false, false) => None,
            (true, false) => Some(Ok(Backend::Legacy)),
            (false, true) => Some(Ok(Backend::NfTables)),
            (true, true) => Some(Err(())),
        }
    }

    fn summary(&self) -> String {
        let one = |p: &Presence| {
            let hint = if p.kubelet_hint { " and the kubelet's hint chain" } else { "" };
            format!("{} rules, {} chains{hint}", p.rules, p.chains)
        };
        format!("legacy has {}, nf_tables has {}", one(&self.legacy), one(&self.nf_tables))
    }
}

fn plain(runner: &impl Runner, versions: &mut Versions) -> Option<Backend> {
    let path = Family::ALL.iter().find_map(|f| runner.find(f.program()))?;
    // A program that does not report its back end does not decide the default.
    versions.of(runner, &path).ok().map(|version| version.backend)
}

/// What was found of one back end, and the versions that its programs report.
struct Found {
    presence: Presence,
    versions: Versions,
}

impl Found {
    fn look(runner: &(impl Runner + Sync), backend: Backend) -> Result<Self, Error> {
        let mut presence = Presence::default();
        let mut versions = Versions::default();
        for family in Family::ALL {
            if let Some(programs) = Programs::locate(runner, family, backend, &mut versions)? {
                presence.version.get_or_insert_with(|| programs.version.clone());
                presence.programs.push((family, programs));
            }
        }
        let dump = |family| {
            let programs = presence.programs(family)?;
            if backend == Backend::Legacy && runner.has_legacy_tables(family) == Some(false) {
                // Without tables the program would print nothing.
                return Some(Ok(Dump::default()));
            }
            Some(Iptables::over(runner, family, backend, Some(programs)).and_then(|iptables| iptables.dump()))
        };
        let dumps = at_once(Family::ALL, dump);
        for (family, dump) in Family::ALL.into_iter().zip(dumps) {
            match dump {
                None => {}
                Some(Ok(dump)) => presence.add(family, dump),
                Some(Err(e)) if matches!(e.kind(), ErrorKind::Permission | ErrorKind::TimedOut | ErrorKind::Io) => {
                    return Err(e);
                }
                Some(Err(e)) => presence.unusable = Some(e.to_string()),
            }
        }
        Ok(Self { presence, versions })
    }
}

/// A rule with a match that every kernel with matches accepts, in the tables that most agents use.
fn with_a_match() -> Result<Transaction, Error> {
    let mut transaction = Transaction::new();
    let rule = Rule::parse("-m mark --mark 0x1")?;
    for table in [TableName::FILTER, TableName::NAT] {
        transaction.table(table).replace_chain(&ChainName::new("PROBE")?, [rule.clone()]);
    }
    Ok(transaction)
}

/// Failures of a check that do not tell what the kernel supports.
fn is_no_verdict(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Permission | ErrorKind::LockTimeout | ErrorKind::TimedOut | ErrorKind::Io)
}

/// Runs both jobs in parallel, or in sequence if no thread can be started. A new thread has the network namespace of
/// its parent.
fn at_once<J: Copy + Send, T: Send>([first, second]: [J; 2], run: impl Fn(J) -> T + Sync) -> [T; 2] {
    let run = &run;
    thread::scope(|scope| {
        let started = thread::Builder::new().name("iptables".to_owned()).spawn_scoped(scope, move || run(second));
        let first = run(first);
        let second = match started {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_no_thread) => run(second),
        };
        [first, second]
    })
}

impl Survey {
    /// Opens the programs of the back end that this host uses, the same for both families. The kernel must have tables
    /// for it: the survey has seen some, or [`Iptables::check_kernel`] succeeds.
    ///
    /// On an untouched host the kernel may lack the default back end, or its matches (`nf_tables` without
    /// `nft_compat`). The other back end is then used if it accepts a rule with a match.
    ///
    /// # Errors
    /// As [`Survey::choose`] and [`Iptables::check_kernel`].
    pub fn open<R: Runner>(&self, runner: R, family: Family, choice: BackendChoice) -> Result<Iptables<R>, Error> {
        let chosen = self.choose(choice)?;
        let found = |backend| self.presence(backend).programs(family);
        if choice == BackendChoice::Detect && self.settled().is_none() {
            for backend in [chosen, chosen.other()] {
                match Iptables::over(&runner, family, backend, found(backend)).and_then(|it| it.check(&with_a_match()?))
                {
                    Ok(()) => return Iptables::over(runner, family, backend, found(backend)),
                    Err(e) if is_no_verdict(e.kind()) => return Err(e),
                    Err(_it_cannot) => {}
                }
            }
        }
        if !self.presence(chosen).has_tables(family) {
            Iptables::over(&runner, family, chosen, found(chosen))?.check_kernel()?;
        }
        Iptables::over(runner, family, chosen, found(chosen))
    }

    /// Opens the programs of this back end as the survey found them, even if the host uses the other one.
    ///
    /// # Errors
    /// [`ErrorKind::ProgramMissing`] if they were not found.
    pub fn reopen<R: Runner>(&self, runner: R, family: Family, backend: Backend) -> Result<Iptables<R>, Error> {
        Iptables::over(runner, family, backend, self.presence(backend).programs(family))
    }

    /// Takes the dump out of the survey: the result of [`Iptables::dump`] at that time. `None` if there is none or it
    /// was taken already.
    pub fn take_dump(&mut self, backend: Backend, family: Family) -> Option<Dump> {
        let presence = match backend {
            Backend::Legacy => &mut self.legacy,
            Backend::NfTables => &mut self.nf_tables,
        };
        let place = presence.dumps.iter().position(|(of, _)| *of == family)?;
        Some(presence.dumps.swap_remove(place).1)
    }
}

impl<R: Runner + Sync> Iptables<R> {
    /// Opens the programs of the back end that this host uses: [`Survey::take`], then [`Survey::open`].
    ///
    /// # Errors
    /// As these two.
    pub fn detect(runner: R, family: Family, choice: BackendChoice) -> Result<Self, Error> {
        let survey = Survey::take(&runner)?;
        survey.open(runner, family, choice)
    }
}
