//! Which back end does this host use?

use crate::client::{Iptables, Programs};
use crate::error::{Error, ErrorKind};
use crate::model::{Dump, Table};
use crate::name::{Backend, Family, TableName};
use crate::runner::{Invocation, Runner};
use crate::version::ProgramVersion;
use std::time::Duration;

/// Chains in `mangle` by which the kubelet shows which back end it uses (`KUBE-IPTABLES-HINT` since Kubernetes 1.24).
const HINTS: [&str; 2] = ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"];

/// What the host has in one back end, both families together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Presence {
    /// Version of the IPv4 programs, or of the IPv6 ones if only those are there; `None` if none are installed.
    pub version: Option<ProgramVersion>,
    /// Rules in all tables.
    pub rules: usize,
    /// User-defined chains in all tables.
    pub chains: usize,
    /// The kubelet keeps its hint chain here.
    pub kubelet_hint: bool,
    /// Why it could not be looked at, if so.
    pub unusable: Option<String>,
    /// The programs that were found, so that nobody has to look again.
    programs: Vec<(Family, Programs)>,
}

impl Presence {
    /// Whether somebody has put rules or chains here.
    pub fn in_use(&self) -> bool {
        self.rules > 0 || self.chains > 0
    }

    fn programs(&self, family: Family) -> Option<Programs> {
        self.programs.iter().find(|(of, _)| *of == family).map(|(_, programs)| programs.clone())
    }

    fn add(&mut self, dump: &Dump) {
        self.rules = self.rules.saturating_add(dump.rule_count());
        let user =
            |t: &Table| t.chains().iter().filter(|c| !t.name().builtin_chains().contains(&c.name.as_str())).count();
        self.chains = dump.tables.iter().map(user).fold(self.chains, usize::saturating_add);
        self.kubelet_hint |= HINTS.iter().any(|hint| dump.has_chain(&TableName::MANGLE, hint));
    }
}

/// What is demanded of the choice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// The one the host uses; an error if that is not clear.
    #[default]
    Detect,
    /// This one; an error if the host uses the other.
    Expect(Backend),
    /// This one, even if that mixes the two. Packets then pass both rule sets; a drop in either is final.
    Force(Backend),
}

/// What the host has in both back ends. Looking changes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survey {
    /// In the legacy tables.
    pub legacy: Presence,
    /// In `nf_tables`, as far as the iptables-compatible programs show it.
    pub nf_tables: Presence,
    /// The back end of the plain `iptables` command: the administrator's default.
    pub default: Option<Backend>,
}

impl Survey {
    /// Looks at both back ends and both families.
    ///
    /// # Errors
    /// [`ErrorKind::Permission`] without privilege (the answer would be wrong, not just incomplete), and failures to run
    /// programs. A back end that the kernel lacks is no error: see [`Presence::unusable`].
    pub fn take(runner: &impl Runner) -> Result<Self, Error> {
        Ok(Self {
            legacy: look(runner, Backend::Legacy)?,
            nf_tables: look(runner, Backend::NfTables)?,
            default: plain(runner)?,
        })
    }

    /// What it found in one back end.
    pub fn presence(&self, backend: Backend) -> &Presence {
        match backend {
            Backend::Legacy => &self.legacy,
            Backend::NfTables => &self.nf_tables,
        }
    }

    /// Chooses: the back end with the kubelet's hint; else the only one in use; else, on an untouched host, that of the plain
    /// `iptables` command, or whichever is installed.
    ///
    /// # Errors
    /// [`ErrorKind::MixedBackends`] if both have hints, if both are in use and neither has one, or if another back end than
    /// the expected one is in use. [`ErrorKind::ProgramMissing`] if nothing is installed for it.
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

    /// Which one is in use: `None` if neither, `Err` if that cannot be told.
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

fn plain(runner: &impl Runner) -> Result<Option<Backend>, Error> {
    let Some(path) = Family::ALL.iter().find_map(|f| runner.find(f.program())) else { return Ok(None) };
    let output = runner.run(&Invocation::new(&path, ["--version"], Duration::from_secs(20)))?;
    Ok(ProgramVersion::parse(&String::from_utf8_lossy(&output.stdout)).ok().map(|v| v.backend))
}

fn look(runner: &impl Runner, backend: Backend) -> Result<Presence, Error> {
    let mut presence = Presence::default();
    for family in Family::ALL {
        let Some(programs) = Programs::locate(runner, family, backend)? else { continue };
        presence.version.get_or_insert_with(|| programs.version.clone());
        presence.programs.push((family, programs.clone()));
        match Iptables::over(runner, family, backend, Some(programs))?.dump() {
            Ok(dump) => presence.add(&dump),
            Err(e) if matches!(e.kind(), ErrorKind::Permission | ErrorKind::TimedOut | ErrorKind::Io) => return Err(e),
            Err(e) => presence.unusable = Some(e.to_string()),
        }
    }
    Ok(presence)
}

impl<R: Runner> Iptables<R> {
    /// Opens the programs of the back end that this host uses, and makes sure that the kernel has tables for it.
    ///
    /// On an untouched host with a kernel that lacks the default back end, the other one is taken.
    ///
    /// # Errors
    /// As [`Survey::take`], [`Survey::choose`] and [`Iptables::check_kernel`].
    pub fn detect(runner: R, family: Family, choice: BackendChoice) -> Result<Self, Error> {
        let survey = Survey::take(&runner)?;
        let backend = survey.choose(choice)?;
        let found = |backend| survey.presence(backend).programs(family);
        let check = Iptables::over(&runner, family, backend, found(backend))?.check_kernel();
        let backend = match check {
            Ok(()) => backend,
            Err(e)
                if e.kind() == ErrorKind::NoKernelSupport
                    && choice == BackendChoice::Detect
                    && survey.settled().is_none() =>
            {
                let other = backend.other();
                // If that fails as well, the first reason is the one to tell.
                match Iptables::over(&runner, family, other, found(other)).and_then(|o| o.check_kernel()) {
                    Ok(()) => other,
                    Err(_) => return Err(e),
                }
            }
            Err(e) => return Err(e),
        };
        let programs = found(backend);
        Self::over(runner, family, backend, programs)
    }
}
