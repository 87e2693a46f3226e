//! A simulated host for tests: the same programs, exit codes and messages, without a kernel.

mod script;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use script::{Lacks, Script};

use crate::error::{Error, ErrorKind};
use crate::model::{Chain, Dump, Policy, Table};
use crate::name::{Backend, ChainName, Family, TableName};
use crate::rule::Counters;
use crate::runner::{Invocation, LockGuard, Output, Runner};

/// Directory in which the programs appear.
const DIRECTORY: &str = "/fake/sbin";

/// A host with `iptables` 1.8.9 of both back ends and tables in memory.
///
/// The host behaves like `iptables-restore --noflush`. A table changes as a whole or not at all, and chain lines create
/// or flush. Unknown chains, matches and sets, jump loops, deleting a chain in use and similar errors fail with the
/// line number, message and exit code of the real programs. Rules are kept as written (the kernel would reorder
/// arguments), and options of extensions are not checked.
#[derive(Debug)]
pub struct FakeHost {
    state: Mutex<Host>,
}

#[derive(Debug)]
struct Host {
    tables: BTreeMap<(Family, Backend), BTreeMap<TableName, Table>>,
    /// Output of `--version` per back end; missing if not installed.
    versions: BTreeMap<Backend, String>,
    /// Back ends with tables in the kernel.
    kernel: BTreeSet<Backend>,
    default: Backend,
    sets: BTreeSet<String>,
    /// Matches that the kernel lacks.
    lacks: BTreeSet<String>,
    /// Whether the kernel has `nft_compat`.
    compat: bool,
    lock_held: bool,
    writes: usize,
}

impl Default for FakeHost {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeHost {
    /// An untouched host. The plain names belong to `nf_tables`.
    pub fn new() -> Self {
        let versions = Backend::ALL.into_iter().map(|b| (b, format!("v1.8.9 ({b})"))).collect();
        let state = Host {
            tables: BTreeMap::new(),
            versions,
            kernel: Backend::ALL.into_iter().collect(),
            default: Backend::NfTables,
            sets: BTreeSet::new(),
            lacks: BTreeSet::new(),
            compat: true,
            lock_held: false,
            writes: 0,
        };
        Self { state: Mutex::new(state) }
    }

    /// Lets the plain names (`iptables`, `iptables-save`, …) belong to this back end.
    #[must_use]
    pub fn with_default(self, backend: Backend) -> Self {
        self.state().default = backend;
        self
    }

    /// Removes the programs of this back end.
    #[must_use]
    pub fn without_programs(self, backend: Backend) -> Self {
        self.state().versions.remove(&backend);
        self
    }

    /// Sets the version of the programs, as `--version` prints it after the name: `v1.6.1`.
    #[must_use]
    pub fn with_version(self, backend: Backend, version: &str) -> Self {
        self.state().versions.insert(backend, version.to_owned());
        self
    }

    /// Removes the tables of this back end from the kernel.
    #[must_use]
    pub fn without_kernel_tables(self, backend: Backend) -> Self {
        self.state().kernel.remove(&backend);
        self
    }

    /// Removes `nft_compat` from the kernel: its `nf_tables` then have tables and chains, but refuse matches of
    /// iptables.
    #[must_use]
    pub fn without_compat(self) -> Self {
        self.state().compat = false;
        self
    }

    /// Removes a match (`recent`, `sctp`) from the kernel or adds it again. Rules with a missing match are refused.
    pub fn set_match(&self, name: &str, present: bool) {
        let mut state = self.state();
        if present {
            state.lacks.remove(name);
        } else {
            state.lacks.insert(name.to_owned());
        }
    }

    /// Sets which ipsets exist, so that rules can name them.
    pub fn set_ipsets(&self, names: BTreeSet<String>) {
        self.state().sets = names;
    }

    /// Lets another program hold or release the xtables lock.
    pub fn hold_lock(&self, held: bool) {
        self.state().lock_held = held;
    }

    /// Number of runs of a restore program that changed something or tried to.
    pub fn writes(&self) -> usize {
        self.state().writes
    }

    /// Deletes all tables of a family and back end, as another program might.
    pub fn flush(&self, family: Family, backend: Backend) {
        self.state().tables.remove(&(family, backend));
    }

    /// Output of the save program, without the comment lines.
    pub fn dump(&self, family: Family, backend: Backend) -> String {
        let dump = Dump { tables: self.state().present(family, backend), trailing: Vec::new() };
        dump.to_string()
    }

    fn state(&self) -> MutexGuard<'_, Host> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Family, back end and kind of the program at a path.
struct Program {
    family: Family,
    backend: Backend,
    action: Action,
    name: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Command,
    Save,
    Restore,
}

impl Host {
    fn program(&self, name: &str) -> Option<Program> {
        let (stem, action) = match name.rsplit_once('-') {
            Some((stem, "save")) => (stem, Action::Save),
            Some((stem, "restore")) => (stem, Action::Restore),
            _ => (name, Action::Command),
        };
        let (plain, backend) = match stem.rsplit_once('-') {
            Some((plain, "legacy")) => (plain, Backend::Legacy),
            Some((plain, "nft")) => (plain, Backend::NfTables),
            _ => (stem, self.default),
        };
        let family = Family::ALL.into_iter().find(|f| f.program() == plain)?;
        self.versions.contains_key(&backend).then(|| Program { family, backend, action, name: name.to_owned() })
    }

    fn present(&self, family: Family, backend: Backend) -> Vec<Table> {
        self.tables.get(&(family, backend)).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }

    fn run(&mut self, program: &Program, invocation: &Invocation) -> Output {
        let args: Vec<&str> = invocation.args.iter().map(String::as_str).collect();
        let version = self.versions.get(&program.backend).cloned().unwrap_or_default();
        if args.contains(&"--version") {
            return printed(format!("{} {version}\n", program.name));
        }
        match program.action {
            Action::Command => failed(2, format!("{}: only --version is understood\n", program.name)),
            Action::Save => self.save(program, &args),
            Action::Restore => self.restore(program, &args, &version, &invocation.stdin),
        }
    }

    fn save(&mut self, program: &Program, args: &[&str]) -> Output {
        let kernel = self.kernel.contains(&program.backend);
        if !kernel && program.backend == Backend::NfTables {
            return failed(1, no_nft(&program.name));
        }
        let wanted = args.iter().position(|a| *a == "-t").and_then(|at| args.get(at.checked_add(1)?)).copied();
        let mut tables = self.present(program.family, program.backend);
        if let Some(name) = wanted {
            tables.retain(|t| t.name().as_str() == name);
            match TableName::new(name).ok().filter(|n| kernel && !n.builtin_chains().is_empty()) {
                Some(name) if tables.is_empty() => tables.push(untouched(name)),
                Some(_) => {}
                None => {
                    let why =
                        format!("{}: Cannot initialize: Table does not exist (do you need to insmod?)\n", program.name);
                    return failed(1, why);
                }
            }
        }
        let mut text = String::new();
        for table in &mut tables {
            if !args.contains(&"-c") {
                drop_counters(table);
            }
            write!(text, "# Generated by {}\n{table}# Completed\n", program.name).unwrap_or_default();
        }
        printed(text)
    }

    fn restore(&mut self, program: &Program, args: &[&str], version: &str, text: &str) -> Output {
        let (name, backend) = (&program.name, program.backend);
        let changes = |line: &str| !(line == "COMMIT" || line.starts_with(['*', '#']) || line.starts_with("-C "));
        let writes = !args.contains(&"--test") && text.lines().any(changes);
        self.writes = self.writes.saturating_add(usize::from(writes));
        let legacy = backend == Backend::Legacy;
        if legacy && self.lock_held && args.contains(&"-w") {
            let words = "Another app is currently holding the xtables lock. Stopped waiting after 5s.\n";
            return failed(4, words.to_owned());
        }
        if !self.kernel.contains(&backend) {
            let why =
                format!("{name} {version}: {name}: unable to initialize table 'filter'\n\nError occurred at line: 1\n");
            return if legacy { failed(2, why) } else { failed(1, no_nft(name)) };
        }
        let tables = self.tables.entry((program.family, backend)).or_default();
        let script = Script {
            program: name,
            version,
            backend,
            noflush: args.contains(&"--noflush"),
            counters: args.contains(&"--counters"),
            testing: args.contains(&"--test"),
            sets: &self.sets,
            lacks: if legacy || self.compat { Lacks::These(&self.lacks) } else { Lacks::Every },
        };
        let warnings = script.warnings(text);
        match script.run(text, tables) {
            // A check only warns about what the kernel lacks.
            Ok(()) => Output::new(Some(0)).with_stderr(warnings),
            Err(failure) => failed(failure.code, warnings + &failure.words),
        }
    }
}

/// Message of the `nf_tables` programs on a kernel without nf_tables.
fn no_nft(name: &str) -> String {
    format!("{name}/1.8.9 (nf_tables) Failed to initialize nft: Protocol not supported\n")
}

fn printed(text: String) -> Output {
    Output::new(Some(0)).with_stdout(text)
}

fn failed(code: i32, words: String) -> Output {
    Output::new(Some(code)).with_stderr(words)
}

/// A table that has only its built-in chains.
fn untouched(name: TableName) -> Table {
    let builtin = name.builtin_chains();
    let mut table = Table::new(name);
    for chain in builtin.iter().filter_map(|c| ChainName::new(*c).ok()) {
        table.insert(Chain { policy: Some(Policy::Accept), ..Chain::new(chain) });
    }
    table
}

/// Removes the counters of rules, which the save programs print only on request.
fn drop_counters(table: &mut Table) {
    let names: Vec<ChainName> = table.chains().iter().map(|c| c.name.clone()).collect();
    for name in names {
        for rule in table.chain_mut(name.as_str()).into_iter().flat_map(|c| &mut c.rules) {
            rule.counters = None;
        }
    }
}

impl Runner for FakeHost {
    fn find(&self, program: &str) -> Option<PathBuf> {
        self.state().program(program).map(|p| Path::new(DIRECTORY).join(p.name))
    }

    fn run(&self, invocation: &Invocation) -> Result<Output, Error> {
        let name = invocation.program.strip_prefix(DIRECTORY).ok().and_then(Path::to_str).unwrap_or_default();
        let mut state = self.state();
        match state.program(name) {
            Some(program) => Ok(state.run(&program, invocation)),
            None => {
                Err(Error::new(ErrorKind::ProgramMissing, format!("cannot start {}", invocation.program.display())))
            }
        }
    }

    fn lock(&self, wait: Duration) -> Result<LockGuard, Error> {
        if self.state().lock_held {
            return Err(Error::new(
                ErrorKind::LockTimeout,
                format!("xtables lock not free within {} s", wait.as_secs()),
            ));
        }
        Ok(LockGuard::none())
    }
}

/// Counters of a rule that was written without counters.
const ZERO: Counters = Counters { packets: 0, bytes: 0 };
