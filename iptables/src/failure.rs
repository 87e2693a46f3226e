//! Derives the reason of a failure from the programs' output.

use std::sync::LazyLock;

use regex::Regex;

use crate::error::{Error, ErrorKind, RestoreFailure, excerpt};
use crate::name::TableName;
use crate::rule::Rule;
use crate::runner::Output;

/// Target extensions in the iptables sources. Any other name after `-j` is a chain.
const TARGETS: &str = "\
    ACCEPT AUDIT CHECKSUM CLASSIFY CLUSTERIP CONNMARK CONNSECMARK CT DNAT DNPT DROP DSCP ECN HL HMARK \
    IDLETIMER LED LOG MARK MASQUERADE NETMAP NFLOG NFQUEUE NOTRACK QUEUE RATEEST REDIRECT REJECT RETURN \
    SECMARK SET SNAT SNPT SYNPROXY TCPMSS TCPOPTSTRIP TEE TOS TPROXY TRACE TTL ULOG";

pub(crate) fn is_target(name: &str) -> bool {
    TARGETS.split(' ').any(|target| target == name)
}

/// How programs report a line number. Each pattern is anchored at the start of a line of output, where text of the
/// input cannot occur.
const LINE_PATTERNS: [&str; 4] = [
    // Legacy, and nf_tables while parsing.
    r"(?m)^Error occurred at line: ([0-9]{1,9})$",
    // Legacy while parsing or at commit; nf_tables adds the reason.
    r"(?m)^ip6?tables\S*-restore(?: v\S+ \(\w+\))?: line ([0-9]{1,9}) failed",
    // nf_tables at commit: one line per failed command; the first is the cause.
    r"(?m)^(?:ip6?tables\S*-restore(?: v\S+ \(\w+\))?: )?line ([0-9]{1,9}): [A-Z_]+ failed",
    r"(?m)^ip6?tables\S*-restore: COMMIT expected at line ([0-9]{1,9})$",
];

static LINES: LazyLock<Vec<Regex>> =
    LazyLock::new(|| LINE_PATTERNS.iter().filter_map(|p| Regex::new(p).ok()).collect());

/// The line of the input that the program reports.
fn line_number(stderr: &str) -> Option<usize> {
    LINES.iter().find_map(|pattern| pattern.captures(stderr)?.get(1)?.as_str().parse().ok())
}

/// The text between two marks.
fn between<'t>(text: &'t str, before: &str, after: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once(before)?;
    rest.split_once(after).map(|(inner, _)| inner)
}

/// The program's message in one line, without the advice to read its help.
fn message(stderr: &str) -> String {
    let said = stderr.lines().map(str::trim).filter(|l| {
        !(l.is_empty()
            || l.starts_with("Try `")
            || l.starts_with("# Warning:")
            || l.starts_with("Warning: never matched protocol")
            || l.starts_with("Ignoring deprecated"))
    });
    said.collect::<Vec<_>>().join("; ")
}

/// Whether a program warned that the kernel lacks a match or target.
pub(crate) fn lacks_module(output: &Output) -> bool {
    String::from_utf8_lossy(&output.stderr).contains("missing kernel module")
}

/// The chain that a program cannot show.
pub(crate) fn hidden_chain(output: &Output) -> Option<String> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let chain = between(&stderr, "chain `", "' in table `").filter(|_| stderr.contains("is incompatible"));
    chain.map(str::to_owned)
}

/// Derives the kind of a failure from the program's output.
fn kind_of(stderr: &str) -> ErrorKind {
    let says = |words: &str| stderr.contains(words);
    if says("holding the xtables lock") || says("Can't lock ") {
        ErrorKind::LockTimeout
    } else if says("you must be root") || says("Operation not permitted") || says("can't open lock file") {
        ErrorKind::Permission
    } else if says("unable to initialize table")
        || says("can't initialize ip")
        || says("Table does not exist")
        || says("iptables who?")
        || says("Failed to initialize nft: ")
        || says("Could not fetch rule set generation id")
        || (says("Table `") && says("' does not exist"))
        || (says("table name '") && says("' invalid"))
    {
        ErrorKind::NoKernelSupport
    } else if let Some(target) = between(stderr, "Couldn't load target `", "'") {
        if is_target(target) { ErrorKind::ExtensionMissing } else { ErrorKind::ChainMissing }
    } else if says("Couldn't load match `") || says("missing kernel module") {
        ErrorKind::ExtensionMissing
    } else if says("Chain '") && says("' does not exist") {
        ErrorKind::ChainMissing
    } else if says("Set ") && says(" doesn't exist.") {
        ErrorKind::SetMissing
    } else if says("Bad rule (does a matching rule exist in that chain?)") {
        ErrorKind::RuleMissing
    } else if says("DEL failed (Device or resource busy)") || says("Directory not empty") {
        ErrorKind::ChainInUse
    } else if says("No chain/target/match by that name") {
        ErrorKind::ChainMissing
    } else {
        ErrorKind::Other
    }
}

/// The kind of a failure of this program. One that was killed tells nothing about the kernel or its input.
fn kind_of_run(output: &Output, stderr: &str) -> ErrorKind {
    if output.code.is_none() { ErrorKind::Io } else { kind_of(stderr) }
}

/// The error of a program that got no input.
pub(crate) fn of_program(doing: &str, output: &Output) -> Error {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let (kind, said) = (kind_of_run(output, &stderr), message(&stderr));
    let text = format!("{doing} failed ({}): {}{}", code(output), excerpt(&said), advice(kind, &stderr));
    Error::new(kind, text.trim_end_matches(": ").to_owned())
}

/// How a program ended. It is killed most often because its container may not have more memory.
fn code(output: &Output) -> String {
    output.code.map_or_else(|| "killed by a signal; out of memory?".to_owned(), |code| format!("exit code {code}"))
}

fn advice(kind: ErrorKind, said: &str) -> &'static str {
    match kind {
        // /proc/net/ip_tables_names has mode 0440 (xt_proto_init).
        _ if said.contains("Failed to list table names") && said.contains("Permission denied") => {
            "; only root may read that file: another user needs CAP_DAC_READ_SEARCH"
        }
        // Read-only, a folder (what a container's mount makes of a missing file), or another user's.
        _ if said.contains("can't open lock file") => {
            "; it has to be a file that this user can write to: in a container, mount the host's file there"
        }
        ErrorKind::Permission => "; CAP_NET_ADMIN in this network namespace is needed",
        ErrorKind::NoKernelSupport => {
            "; the kernel has no such tables (the legacy ones are off by default since 6.17), use the nf_tables programs or load the module"
        }
        _ => "",
    }
}

/// Commands on a chain that must exist.
const NAMING: [&str; 6] = ["-A", "-I", "-D", "-C", "-F", "-X"];

/// The command of a line of restore text, and its chain.
fn command_of(line: &str) -> (&str, &str) {
    let mut words = line.split(' ').skip_while(|w| w.starts_with('['));
    (words.next().unwrap_or_default(), words.next().unwrap_or_default())
}

/// Target of the jump in a line of restore text.
fn jump_of(line: &str) -> Option<String> {
    Rule::parse(line).ok()?.target().map(str::to_owned)
}

/// Facts gathered about a failed restore.
#[derive(Debug)]
pub(crate) struct Diagnosis<'t> {
    lines: Vec<&'t str>,
    kind: ErrorKind,
    number: Option<usize>,
    table: Option<TableName>,
    committed: Vec<TableName>,
    said: String,
}

impl<'t> Diagnosis<'t> {
    /// Collects the facts from the input and the output.
    pub(crate) fn new(text: &'t str, output: &Output) -> Self {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().collect();
        let number = line_number(&stderr);
        let (table, committed) = number.map_or((None, Vec::new()), |n| tables_at(&lines, n));
        let kind = match kind_of_run(output, &stderr) {
            ErrorKind::Other if number.is_some() => ErrorKind::Rejected,
            kind => kind,
        };
        let said = Some(message(&stderr)).filter(|said| !said.is_empty()).unwrap_or_else(|| code(output));
        let mut diagnosis = Self { lines, kind, number, table, committed, said };
        // Found at commit, so the number is that of the COMMIT line: find the jump to the missing chain.
        if let Some(chain) = between(&stderr, "Chain '", "' does not exist") {
            diagnosis.blame(|line| jump_of(line).is_some_and(|target| target == chain));
        }
        diagnosis
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn table(&self) -> Option<&TableName> {
        self.table.as_ref()
    }

    /// Sets the kind if the reason was found elsewhere.
    pub(crate) fn set_kind(&mut self, kind: ErrorKind) {
        self.kind = kind;
    }

    /// Finds a reason that the program did not report (the legacy one never does) from the refused line and the table's
    /// chains.
    pub(crate) fn find_reason(&mut self, in_kernel: impl Fn(&str) -> bool) {
        let lines = self.lines.clone();
        let declares =
            |line: &&str, chain: &str| line.strip_prefix(':').and_then(|l| l.split(' ').next()) == Some(chain);
        let exists = |chain: &str| in_kernel(chain) || lines.iter().any(|line| declares(line, chain));
        let Some((command, chain)) = self.line().map(command_of) else { return };
        // A command on a missing chain, or a jump to one, which some programs only detect at commit.
        let names_missing = |line: &str| {
            let (command, chain) = command_of(line);
            let jump = jump_of(line).filter(|target| !is_target(target));
            NAMING.contains(&command) && (!exists(chain) || jump.is_some_and(|target| !exists(&target)))
        };
        self.kind = match command {
            _ if NAMING.contains(&command) && !exists(chain) => ErrorKind::ChainMissing,
            "-D" | "-C" => ErrorKind::RuleMissing,
            "-X" => ErrorKind::ChainInUse,
            "COMMIT" if self.blame(names_missing) => ErrorKind::ChainMissing,
            _ => self.kind,
        };
    }

    /// Finds the first matching line of the failed table and reports it as the culprit.
    fn blame(&mut self, is_culprit: impl Fn(&str) -> bool) -> bool {
        let Some(end) = self.number else { return false };
        let start = self.lines.iter().take(end).rposition(|l| l.starts_with('*')).unwrap_or(0);
        let found = self.lines.iter().enumerate().take(end).skip(start).find(|(_, line)| is_culprit(line));
        match found {
            Some((index, _)) => {
                self.number = index.checked_add(1);
                true
            }
            None => false,
        }
    }

    fn line(&self) -> Option<&'t str> {
        self.lines.get(self.number?.checked_sub(1)?).copied()
    }

    /// The error: the line, its text, and what was committed before.
    pub(crate) fn into_error(self, doing: &str) -> Error {
        let line = self.line();
        let place = self.number.map(|n| format!(" at line {n}")).unwrap_or_default();
        let shown = line.map(|l| format!(" \"{}\"", excerpt(l))).unwrap_or_default();
        let undone = self.table.as_ref().map(|t| format!(", nothing of table {t} was applied")).unwrap_or_default();
        let text =
            format!("{doing} failed{place}{shown}{undone}: {}{}", excerpt(&self.said), advice(self.kind, &self.said));
        Error::new(self.kind, text).with_failure(RestoreFailure {
            line: self.number,
            text: line.map(str::to_owned),
            table: self.table,
            committed: self.committed,
            message: self.said,
        })
    }
}

/// The table of a line, and the tables committed before it.
fn tables_at(lines: &[&str], number: usize) -> (Option<TableName>, Vec<TableName>) {
    let mut table = None;
    let mut committed = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if index >= number {
            break;
        }
        if let Some(name) = line.strip_prefix('*') {
            table = TableName::new(name).ok();
        } else if *line == "COMMIT" && index.checked_add(1) != Some(number) {
            committed.extend(table.take());
        }
    }
    (table, committed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_of_naming_a_line_is_read() {
        for (text, line) in [
            ("iptables-restore: line 5 failed\n", Some(5)),
            ("iptables-nft-restore: line 4 failed: No chain/target/match by that name.\n", Some(4)),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): \nline 6: RULE_APPEND failed (Too many links): rule in chain INPUT\n",
                Some(6),
            ),
            (
                "iptables-restore v1.8.9 (nf_tables): line 3: CHAIN_ADD failed (Device or resource busy): chain X\n",
                Some(3),
            ),
            (
                "ip6tables-restore v1.8.9 (legacy): unknown option \"--x\"\nError occurred at line: 12\nTry `x'\n",
                Some(12),
            ),
            ("iptables-restore: COMMIT expected at line 9\n", Some(9)),
            ("Bad argument `line 7 failed'\nError occurred at line: 2\n", Some(2)),
            ("Bad argument `iptables-restore: line 7 failed'\n", None),
            ("", None),
        ] {
            assert_eq!(line_number(text), line, "{text}");
        }
    }

    /// Captured from iptables 1.8.9 on Linux 6.18, and on 6.1 with module loading disabled.
    #[test]
    fn words_give_the_kind_of_failure() {
        for (words, kind) in [
            (
                "iptables-restore v1.8.9 (legacy): iptables-restore: unable to initialize table 'filter'\nError occurred at line: 1\n",
                ErrorKind::NoKernelSupport,
            ),
            (
                "ip6tables-save v1.8.9 (legacy): Cannot initialize: iptables who? (do you need to insmod?)\n",
                ErrorKind::NoKernelSupport,
            ),
            (
                "iptables-nft-save/1.8.9 (nf_tables) Failed to initialize nft: Protocol not supported\n",
                ErrorKind::NoKernelSupport,
            ),
            (
                "iptables-nft-save v1.8.9 (nf_tables): Could not fetch rule set generation id: Permission denied (you must be root)\n",
                ErrorKind::Permission,
            ),
            ("Fatal: can't open lock file /run/xtables.lock: Permission denied\n", ErrorKind::Permission),
            ("Another app is currently holding the xtables lock. Stopped waiting after 5s.\n", ErrorKind::LockTimeout),
            (
                "iptables-restore v1.8.9 (legacy): Couldn't load target `BAR':No such file or directory\n\nError occurred at line: 3\n",
                ErrorKind::ChainMissing,
            ),
            (
                "iptables-restore v1.8.9 (legacy): Couldn't load target `TPROXY':No such file or directory\n",
                ErrorKind::ExtensionMissing,
            ),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): Chain 'BAR' does not exist\nError occurred at line: 4\n",
                ErrorKind::ChainMissing,
            ),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): Set nope doesn't exist.\n\nError occurred at line: 3\n",
                ErrorKind::SetMissing,
            ),
            (
                "iptables-nft-restore v1.8.9 (nf_tables): \nline 5: CHAIN_DEL failed (Device or resource busy): chain BAR\n",
                ErrorKind::ChainInUse,
            ),
            (
                "iptables-nft-restore: line 3 failed: Bad rule (does a matching rule exist in that chain?).\n",
                ErrorKind::RuleMissing,
            ),
            ("iptables-restore: line 5 failed\n", ErrorKind::Other),
        ] {
            assert_eq!(kind_of(words), kind, "{words}");
        }
    }

    #[test]
    fn advice_about_the_lock_file_names_no_capability() {
        for reason in ["Permission denied", "Read-only file system", "Is a directory", "No such file or directory"] {
            let stderr = format!("Fatal: can't open lock file /run/xtables.lock: {reason}\n").into_bytes();
            let output = Output { code: Some(4), stderr, ..Output::default() };
            for error in [of_program("listing", &output), Diagnosis::new("*nat\n", &output).into_error("restoring")] {
                let said = error.to_string();
                assert!(said.contains(reason) && said.contains("mount the host's file"), "{said}");
                assert!(error.kind() == ErrorKind::Permission && !said.contains("CAP_NET_ADMIN"), "{said}");
            }
        }
    }

    /// The message had no reason.
    #[test]
    fn the_error_of_a_program_that_says_nothing_tells_how_it_ended() {
        for (code, reason) in [(None, "killed by a signal; out of memory?"), (Some(1), "exit code 1")] {
            let error = Diagnosis::new("*nat\nCOMMIT\n", &Output::new(code)).into_error("restoring");
            assert_eq!(error.to_string(), format!("restoring failed: {reason}"));
        }
    }

    #[test]
    fn tables_before_the_failure_are_known() {
        let lines = ["*nat", ":A - [0:0]", "COMMIT", "*filter", "-A X", "COMMIT"];
        assert_eq!(tables_at(&lines, 5), (Some(TableName::FILTER), vec![TableName::NAT]));
        assert_eq!(tables_at(&lines, 6), (Some(TableName::FILTER), vec![TableName::NAT]));
        assert_eq!(tables_at(&lines, 3), (Some(TableName::NAT), vec![]));
    }
}
