//! The client: one method per task.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::canonical::CanonicalRule;
use crate::error::{Error, ErrorKind};
use crate::failure::{self, Diagnosis};
use crate::lock;
use crate::model::{Chain, Dump, Table};
use crate::name::{Backend, ChainName, Family, TableName};
use crate::rule::Rule;
use crate::runner::{Invocation, LockGuard, Output, Runner};
use crate::system::System;
use crate::token::Token;
use crate::transaction::{Edit, PIECE, Pieces, Transaction};
use crate::version::{ProgramVersion, RestoreWait};

/// Time limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Limits {
    /// Time to wait for the xtables lock; default 5 s. Whole seconds, at least one. Legacy back end only.
    pub lock_wait: Duration,
    /// Time limit for a program, which is then killed. Default 60 s. A restore gets 5 ms more per line, and a program
    /// that still computes up to ten times its limit: `iptables-nft-restore` and `iptables-nft-save` take minutes for
    /// 100,000 chains.
    pub program: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { lock_wait: Duration::from_secs(5), program: Duration::from_secs(60) }
    }
}

/// Greatest number of chains that [`Iptables::dump_chains`] omits.
const MOST_HIDDEN: usize = 64;

/// Parses the output of `-S`, chain by chain.
fn listed(table: &TableName, printed: &[u8]) -> Result<Table, Error> {
    let printed = String::from_utf8_lossy(printed);
    let (mut chains, mut rules) = (String::new(), String::new());
    for line in printed.split_inclusive('\n') {
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("-N"), Some(chain), _) => chains.extend([":", chain, " - [0:0]\n"]),
            (Some("-P"), Some(chain), Some(policy)) => chains.extend([":", chain, " ", policy, " [0:0]\n"]),
            _ => rules.push_str(line),
        }
    }
    let mut dump = Dump::parse(format!("*{table}\n{chains}{rules}COMMIT\n"))?;
    Ok(dump.tables.pop().unwrap_or_else(|| Table::new(table.clone())))
}

/// Extra time for a restore per line, besides [`Limits::program`].
const FOR_EACH_LINE: Duration = Duration::from_millis(5);

impl Limits {
    /// Time limit for a restore of this many lines, including the wait for the lock.
    fn restore(&self, lines: usize) -> Duration {
        let lines = u32::try_from(lines).unwrap_or(u32::MAX);
        self.lock_wait.saturating_add(self.program).saturating_add(FOR_EACH_LINE.saturating_mul(lines))
    }

    /// Sets the time to wait for the lock.
    #[must_use]
    pub fn with_lock_wait(mut self, wait: Duration) -> Self {
        self.lock_wait = wait;
        self
    }

    /// Sets the time limit for a program.
    #[must_use]
    pub fn with_program(mut self, limit: Duration) -> Self {
        self.program = limit;
        self
    }
}

/// Whether a write was necessary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[must_use]
pub enum Ensured {
    /// Already present; nothing was written.
    AlreadyThere,
    /// It was missing and has been added.
    Added,
}

/// Position at which to add a missing rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Position {
    /// Before all other rules.
    First,
    /// After all other rules.
    Last,
}

/// Versions that programs report, asked once per file.
#[derive(Debug, Default)]
pub(crate) struct Versions(BTreeMap<PathBuf, ProgramVersion>);

impl Versions {
    pub(crate) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
    }

    pub(crate) fn of(&mut self, runner: &impl Runner, program: &Path) -> Result<ProgramVersion, Error> {
        match self.0.entry(runner.resolve(program)) {
            Entry::Occupied(known) => Ok(known.get().clone()),
            Entry::Vacant(place) => {
                let output = runner.run(&Invocation::new(program, ["--version"], Duration::from_secs(20)))?;
                Ok(place.insert(ProgramVersion::parse(&String::from_utf8_lossy(&output.stdout))?).clone())
            }
        }
    }
}

/// The three programs of one family and back end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Programs {
    pub(crate) version: ProgramVersion,
    save: PathBuf,
    restore: PathBuf,
}

impl Programs {
    /// Finds the programs for a back end: those named after it, otherwise the plain ones if they belong to it.
    pub(crate) fn locate(
        runner: &impl Runner,
        family: Family,
        backend: Backend,
        versions: &mut Versions,
    ) -> Result<Option<Self>, Error> {
        let plain = family.program();
        for stem in [format!("{plain}-{}", backend.program_suffix()), plain.to_owned()] {
            let paths =
                (runner.find(&stem), runner.find(&format!("{stem}-save")), runner.find(&format!("{stem}-restore")));
            let (Some(program), Some(save), Some(restore)) = paths else { continue };
            let version = versions.of(runner, &program)?;
            if version.backend == backend {
                return Ok(Some(Self { version, save, restore }));
            }
        }
        Ok(None)
    }
}

/// `iptables` or `ip6tables` of one back end.
///
/// Calls block and start no threads, except in [`Survey::take`](crate::Survey::take). Every write is one run of
/// `iptables-restore --noflush`, so it is atomic per table. Methods that read before they write (`ensure_…`,
/// `delete_…`) are not atomic: other programs may write in between.
///
/// ```
/// # #[cfg(feature = "testing")] {
/// use iptables::{Backend, ChainName, Ensured, Family, Iptables, Position, Rule, TableName, fake::FakeHost};
///
/// // On a host: Iptables::detect(System::new(), Family::Ipv4, BackendChoice::Detect)?
/// let iptables = Iptables::open(FakeHost::new(), Family::Ipv4, Backend::NfTables)?;
/// let (filter, input, mine) = (TableName::FILTER, ChainName::new("INPUT")?, ChainName::new("MY-INPUT")?);
///
/// // A chain of one's own with these rules, and a jump to it in front of all others.
/// let https = Rule::parse("-p tcp --dport 443 -j ACCEPT")?;
/// assert_eq!(iptables.ensure_chain_rules(&filter, &mine, &[https.clone()])?, Ensured::Added);
/// let jump = Rule::builder().comment("to our rules").jump(&mine).build()?;
/// assert_eq!(iptables.ensure_leading(&filter, &input, &[jump.clone()])?, Ensured::Added);
/// assert_eq!(iptables.ensure_leading(&filter, &input, &[jump.clone()])?, Ensured::AlreadyThere);
///
/// // One rule more, then away with everything. Rules are found by meaning, not spelling.
/// let _ = iptables.ensure_rule(&filter, &mine, &Rule::parse("-i lo -j ACCEPT")?, Position::First)?;
/// assert_eq!(iptables.dump_table(&filter)?.chain("MY-INPUT").map(|chain| chain.rules.len()), Some(2));
/// assert_eq!(iptables.delete_rule(&filter, &mine, &Rule::parse("-j ACCEPT -p 6 -m tcp --dport 443:443")?)?, 1);
/// assert_eq!(iptables.delete_rule(&filter, &input, &jump)?, 1);
/// assert!(iptables.delete_chain(&filter, &mine)?);
/// assert!(!iptables.dump()?.has_chain(&filter, "MY-INPUT"));
/// # }
/// # Ok::<(), iptables::Error>(())
/// ```
#[derive(Debug)]
pub struct Iptables<R = System> {
    runner: R,
    family: Family,
    programs: Programs,
    limits: Limits,
}

impl<R: Runner> Iptables<R> {
    /// Opens the programs of this back end, even if the host uses the other one. [`Iptables::detect`] chooses the one
    /// in use.
    ///
    /// # Errors
    /// [`ErrorKind::ProgramMissing`] if they are not installed, [`ErrorKind::UnsupportedProgram`] if they do not report
    /// a version.
    pub fn open(runner: R, family: Family, backend: Backend) -> Result<Self, Error> {
        let programs = Programs::locate(&runner, family, backend, &mut Versions::default())?;
        Self::over(runner, family, backend, programs)
    }

    /// Uses programs that were located before, without running them again.
    pub(crate) fn over(runner: R, family: Family, backend: Backend, programs: Option<Programs>) -> Result<Self, Error> {
        match programs {
            Some(programs) => Ok(Self { runner, family, programs, limits: Limits::default() }),
            None => Err(Error::new(
                ErrorKind::ProgramMissing,
                format!(
                    "no {} programs of the {backend} back end are installed; install the package iptables",
                    family.program()
                ),
            )),
        }
    }

    /// Sets the time limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Address family of the programs.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Version and back end of the programs.
    pub fn version(&self) -> &ProgramVersion {
        &self.programs.version
    }

    /// Back end of the programs.
    pub fn backend(&self) -> Backend {
        self.programs.version.backend
    }

    /// The runner that starts the programs.
    pub fn runner(&self) -> &R {
        &self.runner
    }

    /// Reads all tables. A table that was not used since boot is omitted and not created.
    pub fn dump(&self) -> Result<Dump, Error> {
        self.save(&[])
    }

    /// Reads all tables with counters.
    pub fn dump_with_counters(&self) -> Result<Dump, Error> {
        self.save(&["-c"])
    }

    /// Reads one table. An unused table has its built-in chains without rules, or no chains. With the legacy back end,
    /// reading creates it.
    ///
    /// # Errors
    /// [`ErrorKind::NoKernelSupport`] if the table does not exist. [`ErrorKind::UnsupportedProgram`] if `nft` has added
    /// something that the program cannot show; [`Iptables::dump_chains`] can read the other chains.
    pub fn dump_table(&self, table: &TableName) -> Result<Table, Error> {
        let mut dump = self.save(&["-t", table.as_str()])?;
        if dump.incompatible_tables().contains(&table.as_str()) {
            let save = self.programs.save.display();
            return Err(Error::new(
                ErrorKind::UnsupportedProgram,
                format!("{save} cannot show table {table}: nft has put rules into it that iptables has no words for"),
            ));
        }
        let found = dump.tables.iter().position(|t| t.name() == table);
        Ok(found.map_or_else(|| Table::new(table.clone()), |at| dump.tables.swap_remove(at)))
    }

    /// Reads the named chains of a table, even if the program cannot show the whole table
    /// ([`Dump::incompatible_tables`]). Missing chains, and chains that it cannot show, are omitted. Without counters.
    /// The program runs once, and once more for each omitted chain.
    ///
    /// # Errors
    /// As [`Iptables::dump_table`]; [`ErrorKind::UnsupportedProgram`] if too many chains cannot be shown.
    pub fn dump_chains(&self, table: &TableName, chains: &[ChainName]) -> Result<Table, Error> {
        let mut asked: Vec<&ChainName> = chains.iter().collect();
        for _ in 0..=MOST_HIDDEN {
            // A restore that only lists: one program run for any number of chains.
            let lines: String = asked.iter().flat_map(|chain| ["-S ", chain.as_str(), "\n"]).collect();
            let text = format!("*{table}\n{lines}COMMIT\n");
            let output = self.run_restore(vec!["--noflush".to_owned()], text.lines().count(), &mut |all| {
                all.push_str(&text);
                false
            })?;
            if output.code == Some(0) {
                return listed(table, &output.stdout);
            }
            let shown = asked.len();
            let hidden = failure::hidden_chain(&output);
            asked.retain(|chain| hidden.as_deref() != Some(chain.as_str()));
            if asked.len() == shown {
                return Err(failure::of_program(&format!("{} -S", self.programs.restore.display()), &output));
            }
        }
        let why = format!("more than {MOST_HIDDEN} chains of table {table} hold what iptables has no words for");
        Err(Error::new(ErrorKind::UnsupportedProgram, why))
    }

    fn save(&self, args: &[&str]) -> Result<Dump, Error> {
        let run = Invocation::new(&self.programs.save, args.iter().copied(), self.limits.program);
        let output = self.runner.run(&run)?;
        if output.code != Some(0) {
            return Err(failure::of_program(
                format!("{} {}", self.programs.save.display(), args.join(" ")).trim_end(),
                &output,
            ));
        }
        Dump::parse(&output.stdout)
    }

    /// Applies a transaction. An empty one succeeds without running a program.
    ///
    /// # Errors
    /// * [`ErrorKind::InvalidToken`], [`ErrorKind::InvalidName`] before a program is run: see
    ///   [`Transaction::to_restore_text`];
    /// * [`ErrorKind::LockTimeout`], [`ErrorKind::TimedOut`], [`ErrorKind::Permission`], [`ErrorKind::NoKernelSupport`];
    /// * [`ErrorKind::ChainMissing`], [`ErrorKind::ChainInUse`], [`ErrorKind::RuleMissing`],
    ///   [`ErrorKind::SetMissing`], [`ErrorKind::ExtensionMissing`], [`ErrorKind::Rejected`]: [`Error::failure`] has
    ///   the line, and the tables that were committed before. Nothing of the failed table was applied.
    pub fn restore(&self, transaction: &Transaction) -> Result<(), Error> {
        self.restore_in_turn(transaction, || ())
    }

    /// Like [`Iptables::restore`], but takes a turn after checking the transaction and holds it until the program has
    /// ended. Use it for the programs of both families, which share a lock in the legacy back end.
    ///
    /// # Errors
    /// As [`Iptables::restore`]. Errors that are found before a program runs do not wait for the turn.
    pub fn restore_in_turn<G>(&self, transaction: &Transaction, turn: impl FnOnce() -> G) -> Result<(), Error> {
        if transaction.is_empty() {
            return Ok(());
        }
        transaction.check_writable()?;
        let mut args = vec!["--noflush".to_owned()];
        if transaction.sets_counters() {
            args.push("--counters".to_owned());
        }
        let mut pieces = transaction.pieces();
        let _turn = turn();
        let output = self.write(args, transaction, &mut pieces)?;
        if output.code == Some(0) { Ok(()) } else { Err(self.explain(&transaction.to_string(), &output)) }
    }

    /// Checks whether the kernel has tables for this back end, without changing rules. This may load a module.
    ///
    /// # Errors
    /// [`ErrorKind::NoKernelSupport`] if not; [`ErrorKind::Permission`] and others as for any program run.
    pub fn check_kernel(&self) -> Result<(), Error> {
        let text = "*filter\nCOMMIT\n";
        let args = vec!["--noflush".to_owned(), "--test".to_owned()];
        let output = self.run_restore(args, text.lines().count(), &mut |all| {
            all.push_str(text);
            false
        })?;
        if output.code == Some(0) { Ok(()) } else { Err(self.explain(text, &output)) }
    }

    /// Lets `iptables-restore` check a transaction without changing rules: its syntax, and whether the program and the
    /// kernel support every match and target. This may load modules. The kernel may still refuse a rule when it is
    /// written, and jumps to missing chains are not detected.
    ///
    /// # Errors
    /// [`ErrorKind::ExtensionMissing`] if the program or the kernel lacks a match or target; others as
    /// [`Iptables::restore`].
    pub fn check(&self, transaction: &Transaction) -> Result<(), Error> {
        transaction.check_writable()?;
        let args = vec!["--noflush".to_owned(), "--test".to_owned()];
        let output = self.write(args, transaction, &mut transaction.pieces())?;
        // The programs only warn about what the kernel lacks.
        if output.code == Some(0) && !failure::lacks_module(&output) {
            return Ok(());
        }
        Err(self.explain(&transaction.to_string(), &output))
    }

    /// Runs the restore program and streams the text to it while it is generated, since it may have tens of megabytes.
    fn write(&self, args: Vec<String>, transaction: &Transaction, pieces: &mut Pieces<'_>) -> Result<Output, Error> {
        self.run_restore(args, transaction.line_count(), &mut |piece| pieces.append(PIECE, piece))
    }

    fn run_restore(
        &self,
        mut args: Vec<String>,
        lines: usize,
        more: &mut dyn FnMut(&mut String) -> bool,
    ) -> Result<Output, Error> {
        let _lock = match self.restore_wait()? {
            RestoreWait::Nothing => LockGuard::none(),
            RestoreWait::Options(options) => {
                args.extend(options);
                LockGuard::none()
            }
            RestoreWait::LockForIt => self.runner.lock(self.limits.lock_wait)?,
        };
        let limit = self.limits.restore(lines);
        let run = Invocation::new(&self.programs.restore, args, limit);
        self.runner.run_with(&run, more).map_err(|e| self.explain_delay(e, limit))
    }

    fn restore_wait(&self) -> Result<RestoreWait, Error> {
        let version = self.version();
        let wait = version.restore_wait(false, self.limits.lock_wait);
        if wait != RestoreWait::LockForIt {
            return Ok(wait);
        }
        // Very old programs ignore unknown options and read their input, which is empty here.
        let run = Invocation::new(&self.programs.restore, ["--version"], Duration::from_secs(20));
        let output = self.runner.run(&run)?;
        let says_version = ProgramVersion::parse(&String::from_utf8_lossy(&output.stdout)).is_ok();
        Ok(version.restore_wait(says_version, self.limits.lock_wait))
    }

    /// Programs with `-w` but without a limit wait for the lock until they are killed.
    fn explain_delay(&self, error: Error, waited: Duration) -> Error {
        let waits = self.backend() == Backend::Legacy && error.kind() == ErrorKind::TimedOut;
        if waits && !lock::holders(self.runner.lock_path()).is_empty() {
            return lock::timeout(self.runner.lock_path(), waited).with_source(error);
        }
        error
    }

    fn explain(&self, text: &str, output: &Output) -> Error {
        let doing = format!("{} --noflush", self.programs.restore.display());
        let mut found = Diagnosis::new(text, output);
        if found.kind() == ErrorKind::LockTimeout {
            return lock::timeout(self.runner.lock_path(), self.limits.lock_wait);
        }
        // Some programs report a line but no reason (with exit code 2, for arguments that they cannot read, all give
        // one). The table's current state may show the reason.
        let unsaid = output.code != Some(2);
        if let (true, ErrorKind::Rejected, Some(table)) = (unsaid, found.kind(), found.table()) {
            match self.dump_table(table) {
                Ok(now) => found.find_reason(|chain| now.chain(chain).is_some()),
                Err(e) if matches!(e.kind(), ErrorKind::Permission | ErrorKind::NoKernelSupport) => {
                    found.set_kind(e.kind());
                }
                // This read may fail for the same reason as the write. The first failure is the one to report.
                Err(_) => {}
            }
        }
        found.into_error(&doing)
    }

    /// Creates a user-defined chain unless it exists. Existing rules are kept.
    pub fn ensure_chain(&self, table: &TableName, chain: &ChainName) -> Result<Ensured, Error> {
        if self.dump_table(table)?.chain(chain.as_str()).is_some() {
            return Ok(Ensured::AlreadyThere);
        }
        let mut change = Transaction::new();
        change.table(table.clone()).edit(Edit::NewChain(chain.clone()));
        self.restore(&change).map(|()| Ensured::Added)
    }

    /// Gives a user-defined chain exactly these rules, in order, and creates it if necessary. Nothing is written if its
    /// rules already mean the same. The program itself compares spellings that this crate does not know. A built-in
    /// chain would lose the rules of other programs: use [`Iptables::ensure_leading`] there.
    pub fn ensure_chain_rules(&self, table: &TableName, chain: &ChainName, rules: &[Rule]) -> Result<Ensured, Error> {
        let observed = self.dump_table(table)?;
        let mut change = Transaction::new();
        if !change.table(table.clone()).replace_chain_if_different(Some(&observed), chain, rules) {
            return Ok(Ensured::AlreadyThere);
        }
        change.check_writable()?;
        if let Some(there) = observed.chain(chain.as_str()).filter(|there| there.rules.len() == rules.len())
            && self.takes_for_the_same(table, chain, &there.rules, rules)?
        {
            return Ok(Ensured::AlreadyThere);
        }
        self.restore(&change).map(|()| Ensured::Added)
    }

    /// Whether the program considers each of these rules equal to the existing one at its position.
    fn takes_for_the_same(
        &self,
        table: &TableName,
        chain: &ChainName,
        there: &[Rule],
        rules: &[Rule],
    ) -> Result<bool, Error> {
        /// Most rules to compare. Each comparison is a program run, so above this writing is cheaper.
        const MOST: usize = 16;
        let differs = |(_, (have, want)): &(usize, (&Rule, &Rule))| self.meaning(have) != self.meaning(want);
        let pairs: Vec<_> = there.iter().zip(rules).enumerate().filter(differs).collect();
        if pairs.len() > MOST {
            return Ok(false);
        }
        for (place, (_, want)) in pairs {
            if !self.takes_for_the_one_at(table, chain, (place, there.len()), want)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the program considers this rule equal to the one at index `place` in a chain with `count` rules. In a
    /// transaction that always fails at its end, the program deletes the other rules and then checks, so nothing is
    /// ever written. Comparing with what the program prints is not enough: for some extensions (HMARK) it does not
    /// recognise its own output.
    fn takes_for_the_one_at(
        &self,
        table: &TableName,
        chain: &ChainName,
        (place, count): (usize, usize),
        rule: &Rule,
    ) -> Result<bool, Error> {
        const EMPTY: &str = "IPTABLES-EMPTY";
        let mut rule = rule.clone();
        rule.counters = None;
        let mut lines = vec![format!("*{table}"), format!(":{EMPTY} - [0:0]")];
        // From the last to the first, so that the numbers of the others do not change.
        let others = (0..count).rev().filter(|other| *other != place);
        lines.extend(others.map(|other| format!("-D {chain} {}", other.saturating_add(1))));
        lines.push(Edit::Check(chain.clone(), rule).to_string());
        lines.push(format!("-C {EMPTY} -j RETURN"));
        let last = lines.len();
        lines.extend(["COMMIT".to_owned(), String::new()]);
        let text = lines.join("\n");
        let output = self.run_restore(vec!["--noflush".to_owned()], lines.len(), &mut |piece| {
            piece.push_str(&text);
            false
        })?;
        let error = self.explain(&text, &output);
        match error.kind() {
            ErrorKind::LockTimeout | ErrorKind::Permission | ErrorKind::NoKernelSupport => Err(error),
            _ => Ok(error.failure().and_then(|failure| failure.line) == Some(last)),
        }
    }

    /// Deletes a user-defined chain with its rules. `false` if it does not exist. Never name a built-in chain: with the
    /// `nf_tables` back end it loses its rules, those of other programs too.
    ///
    /// # Errors
    /// [`ErrorKind::ChainInUse`] if rules of other chains jump to it; the message names those chains.
    pub fn delete_chain(&self, table: &TableName, chain: &ChainName) -> Result<bool, Error> {
        let observed = self.dump_table(table)?;
        if observed.chain(chain.as_str()).is_none() {
            return Ok(false);
        }
        let mut users: Vec<&str> = observed.references(chain.as_str()).map(|(c, _)| c.name.as_str()).collect();
        users.retain(|user| *user != chain.as_str());
        users.dedup();
        if !users.is_empty() {
            return Err(Error::new(
                ErrorKind::ChainInUse,
                format!("cannot delete chain {chain} of table {table}: rules in {} jump to it", users.join(", ")),
            ));
        }
        let mut change = Transaction::new();
        change.table(table.clone()).delete_chain(chain.clone());
        self.restore(&change).map(|()| true)
    }

    /// Whether the program finds this rule in the chain. It compares parsed rules, so it recognises spellings that this
    /// crate does not: defaults of extensions, abbreviated options, names for numbers.
    fn finds(&self, table: &TableName, chain: &ChainName, rule: &Rule) -> Result<bool, Error> {
        let mut check = Transaction::new();
        check.table(table.clone()).edit(Edit::Check(chain.clone(), rule.clone()));
        check.check_writable()?;
        let output = self.write(vec!["--noflush".to_owned()], &check, &mut check.pieces())?;
        if matches!(output.code, Some(0 | 1)) {
            return Ok(output.code == Some(0));
        }
        let error = self.explain(&check.to_string(), &output);
        match error.kind() {
            // A rule in the kernel cannot name something that does not exist.
            ErrorKind::ChainMissing | ErrorKind::SetMissing | ErrorKind::ExtensionMissing => Ok(false),
            _ => Err(error),
        }
    }

    /// The canonical form of a rule of this family.
    fn meaning(&self, rule: &Rule) -> CanonicalRule {
        rule.canonical().in_family(self.family)
    }

    /// Deletes rules from a dump. Some programs do not find a rule by what they print (`recent` and `connlimit` of
    /// iptables 1.8.9 with their default mask), but find it without its defaults.
    fn restore_deleting(&self, mut change: Transaction, table: &TableName) -> Result<(), Error> {
        match self.restore(&change) {
            Err(error) if error.kind() == ErrorKind::RuleMissing => {
                for edit in change.table(table.clone()).edits_mut() {
                    if let Edit::Delete(_, rule) = edit {
                        *rule = Rule::parse(&self.meaning(rule).to_string())?;
                    }
                }
                self.restore(&change)
            }
            done => done,
        }
    }

    /// Adds a rule to a chain unless the chain has one with the same meaning. Rules are compared by [`Rule::canonical`]
    /// first, and by the program (`-C`) if none is equal. An existing rule keeps its position;
    /// [`Iptables::ensure_leading`] moves it.
    ///
    /// # Errors
    /// [`ErrorKind::ChainMissing`] if the chain, or the chain that the rule jumps to, does not exist; others as
    /// [`Iptables::restore`].
    pub fn ensure_rule(
        &self,
        table: &TableName,
        chain: &ChainName,
        rule: &Rule,
        at: Position,
    ) -> Result<Ensured, Error> {
        let observed = self.dump_table(table)?;
        let wanted = self.meaning(rule);
        let rules = observed.chain(chain.as_str()).map_or(&[][..], |c| &c.rules);
        if rules.iter().any(|r| self.meaning(r) == wanted) || (!rules.is_empty() && self.finds(table, chain, rule)?) {
            return Ok(Ensured::AlreadyThere);
        }
        let mut change = Transaction::new();
        change.table(table.clone()).edit(match at {
            Position::First => Edit::Insert(chain.clone(), 1, rule.clone()),
            Position::Last => Edit::Append(chain.clone(), rule.clone()),
        });
        self.restore(&change).map(|()| Ensured::Added)
    }

    /// Makes these rules the first of a chain, in this order and each exactly once, and moves those that are elsewhere.
    /// A rule in a spelling that only the program understands (see [`CanonicalRule`](crate::CanonicalRule)) is replaced
    /// each time, with the result [`Ensured::Added`], because its position is unknown.
    ///
    /// # Errors
    /// [`ErrorKind::ChainMissing`] if the chain, or a chain that a rule jumps to, does not exist.
    pub fn ensure_leading(&self, table: &TableName, chain: &ChainName, rules: &[Rule]) -> Result<Ensured, Error> {
        let observed = self.dump_table(table)?;
        let found = observed.chain(chain.as_str());
        let mut change = Transaction::new();
        let edits = change.table(table.clone());
        let meaning = |rule: &Rule| self.meaning(rule);
        if !edits.lead_by(meaning, chain, found, rules) {
            return Ok(Ensured::AlreadyThere);
        }
        let known: BTreeSet<CanonicalRule> = found.into_iter().flat_map(|chain| &chain.rules).map(meaning).collect();
        for rule in rules.iter().filter(|_| !known.is_empty()) {
            if !known.contains(&meaning(rule)) && self.finds(table, chain, rule)? {
                edits.edits_mut().insert(0, Edit::Delete(chain.clone(), rule.clone()));
            }
        }
        self.restore_deleting(change, table).map(|()| Ensured::Added)
    }

    /// Deletes every rule with this meaning from a chain and returns their number. Rules are compared by
    /// [`Rule::canonical`] and by the program (`-C`), as long as other rules are left. Returns 0 if the chain does not
    /// exist, or if the rule names a chain, set or extension that does not exist.
    ///
    /// # Errors
    /// [`ErrorKind::Rejected`] if the program refuses the rule's arguments; others as [`Iptables::restore`].
    pub fn delete_rule(&self, table: &TableName, chain: &ChainName, rule: &Rule) -> Result<usize, Error> {
        let observed = self.dump_table(table)?;
        let wanted = self.meaning(rule);
        let rules = observed.chain(chain.as_str()).map_or(&[][..], |c: &Chain| &c.rules);
        let mut change = Transaction::new();
        let mut count = 0_usize;
        for found in rules.iter().filter(|r| self.meaning(r) == wanted) {
            let found = Rule::from_args(found.tokens().iter().map(Token::as_str))?;
            change.table(table.clone()).edit(Edit::Delete(chain.clone(), found));
            count = count.saturating_add(1);
        }
        self.restore_deleting(change, table)?;
        let mut one = Transaction::new();
        one.table(table.clone()).edit(Edit::Delete(chain.clone(), rule.clone()));
        while count < rules.len() {
            if !self.finds(table, chain, rule)? {
                break;
            }
            self.restore(&one)?;
            count = count.saturating_add(1);
        }
        Ok(count)
    }
}
