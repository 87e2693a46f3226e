//! Executes the input of a restore program.

use std::collections::{BTreeMap, BTreeSet};

use super::{ZERO, untouched};
use crate::failure::is_target;
use crate::model::{Chain, Policy, Table};
use crate::name::{Backend, ChainName, TableName};
use crate::rule::{Counters, Rule};

/// Matches that this host has.
const MATCHES: &str = "\
    addrtype ah bpf cgroup cluster comment connbytes connlabel connlimit connmark conntrack cpu dccp \
    devgroup dscp ecn esp hashlimit helper icmp icmp6 iprange ipvs length limit mac mark multiport \
    nfacct osf owner physdev pkttype policy quota rateest realm recent rpfilter sctp set socket state \
    statistic string tcp tcpmss time tos ttl u32 udp udplite";

/// Targets that exist in only one table.
const NAT_ONLY: &[&str] = &["MASQUERADE", "SNAT", "DNAT", "REDIRECT", "NETMAP"];

/// One run.
pub(super) struct Script<'s> {
    pub(super) program: &'s str,
    pub(super) version: &'s str,
    pub(super) backend: Backend,
    pub(super) noflush: bool,
    pub(super) counters: bool,
    pub(super) testing: bool,
    pub(super) sets: &'s BTreeSet<String>,
    pub(super) lacks: Lacks<'s>,
}

/// Matches that the kernel lacks.
pub(super) enum Lacks<'s> {
    /// All, as `nf_tables` without `nft_compat` do.
    Every,
    These(&'s BTreeSet<String>),
}

/// Exit code and message of a failure.
pub(super) struct Failure {
    pub(super) code: i32,
    pub(super) words: String,
}

/// A table being edited: a copy that replaces the table at `COMMIT`.
struct Open {
    table: Table,
    /// Added rules with their lines, for the checks at commit.
    added: Vec<(usize, ChainName, Rule)>,
    /// The first chain that could not be deleted, with its line.
    kept: Option<(usize, ChainName)>,
}

impl Script<'_> {
    /// The first match of the rule that the kernel lacks.
    fn lacking<'r>(&self, rule: &'r Rule) -> Option<&'r str> {
        let words: Vec<&str> = rule.tokens().iter().map(AsRef::as_ref).collect();
        let mut named = words.windows(2).filter_map(|pair| match pair {
            ["-m" | "--match", name] => Some(*name),
            _ => None,
        });
        named.find(|name| match self.lacks {
            Lacks::Every => true,
            Lacks::These(names) => names.contains(*name),
        })
    }

    /// The programs' warnings about rules that need something the kernel lacks.
    pub(super) fn warnings(&self, text: &str) -> String {
        let rules: Vec<Rule> = text.lines().filter_map(|line| Rule::parse(line).ok()).collect();
        let lacking: BTreeSet<&str> = rules.iter().filter_map(|rule| self.lacking(rule)).collect();
        let warning =
            |name: &&str| format!("Warning: Extension {name} revision 0 not supported, missing kernel module?\n");
        lacking.iter().map(warning).collect()
    }

    pub(super) fn run(&self, text: &str, tables: &mut BTreeMap<TableName, Table>) -> Result<(), Failure> {
        let mut open: Option<Open> = None;
        let mut number = 0_usize;
        for line in text.lines() {
            number = number.saturating_add(1);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match &mut open {
                None => {
                    let Some(name) = line.strip_prefix('*') else { return Err(self.refused(number, "")) };
                    open = Some(self.open(number, name, tables)?);
                }
                Some(edited) if line == "COMMIT" => {
                    self.check(number, edited)?;
                    if let Some(done) = open.take().filter(|_| !self.testing) {
                        tables.insert(done.table.name().clone(), done.table);
                    }
                }
                Some(edited) => match line.strip_prefix(':') {
                    Some(chain) => self.chain_line(number, chain, &mut edited.table)?,
                    None => self.command(number, line, edited)?,
                },
            }
        }
        if open.is_some() {
            let words = format!("{}: COMMIT expected at line {}\n", self.program, number.saturating_add(1));
            return Err(Failure { code: 1, words });
        }
        Ok(())
    }

    fn open(&self, number: usize, name: &str, tables: &BTreeMap<TableName, Table>) -> Result<Open, Failure> {
        let known = TableName::new(name).ok().filter(|n| !n.builtin_chains().is_empty());
        let Some(name) = known else {
            let words = match self.backend {
                Backend::Legacy => format!("{}: unable to initialize table '{name}'", self.program),
                Backend::NfTables => format!("{}: line {number} table name '{name}' invalid", self.program),
            };
            return Err(self.wrong(number, &words));
        };
        let table = tables.get(&name).filter(|_| self.noflush).cloned().unwrap_or_else(|| untouched(name));
        Ok(Open { table, added: Vec::new(), kept: None })
    }

    fn chain_line(&self, number: usize, line: &str, table: &mut Table) -> Result<(), Failure> {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let (Some(name), Some(policy)) = (words.first(), words.get(1)) else {
            return Err(self.wrong(number, "chain name or policy invalid"));
        };
        let counters = words.get(2).and_then(|w| Counters::parse(w));
        if table.name().builtin_chains().contains(name) {
            if counters.is_none() && (self.counters || words.get(2).is_some()) {
                return Err(self.wrong(number, &format!("invalid policy counters for chain '{name}'")));
            }
            if let Some(chain) = table.chain_mut(name) {
                chain.policy = Policy::parse(policy).or(chain.policy.take());
                chain.counters = counters.filter(|_| self.counters).or(chain.counters);
            }
            return Ok(());
        }
        match table.chain_mut(name) {
            Some(chain) => chain.rules.clear(),
            None => self.create(number, name, table)?,
        }
        Ok(())
    }

    fn create(&self, number: usize, name: &str, table: &mut Table) -> Result<(), Failure> {
        match ChainName::new(name).ok().filter(|_| !is_target(name)) {
            Some(name) => {
                table.insert(Chain::new(name));
                sort_user_chains(table);
                Ok(())
            }
            None if is_target(name) => Err(self.wrong(number, "chain name may not clash with target name")),
            None => Err(self.wrong(number, &format!("Invalid chain name `{name}' (28 chars max)"))),
        }
    }

    fn command(&self, number: usize, line: &str, open: &mut Open) -> Result<(), Failure> {
        let (counters, line) = match line.split_once("] ") {
            Some((front, rest)) if front.starts_with('[') => (Counters::parse(&format!("{front}]")), rest),
            _ => (None, line),
        };
        let rule = Rule::parse(line).map_err(|e| self.wrong(number, &e.to_string()))?;
        let mut words = rule.tokens().iter().map(AsRef::<str>::as_ref);
        let (command, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let mut rest: Vec<&str> = words.collect();
        let missing = || self.refused(number, "No chain/target/match by that name");
        if command == "-N" {
            if open.table.chain(name).is_some() {
                return Err(self.refused(number, "Chain already exists"));
            }
            return self.create(number, name, &mut open.table);
        }
        if !matches!(command, "-A" | "-I" | "-D" | "-C" | "-F" | "-X" | "-P") {
            return Err(self.wrong(number, &format!("Bad argument `{command}'")));
        }
        let Some(chain) = open.table.chain(name) else { return Err(missing()) };
        let chain_name = chain.name.clone();
        let given =
            |words: &[&str]| Rule::from_args(words.iter().copied()).map_err(|e| self.wrong(number, &e.to_string()));
        match command {
            "-A" | "-I" => {
                let at = match rest.first().and_then(|w| w.parse::<usize>().ok()).filter(|_| command == "-I") {
                    Some(at) => {
                        rest.remove(0);
                        at.saturating_sub(1)
                    }
                    None if command == "-I" => 0,
                    None => chain.rules.len(),
                };
                if at > chain.rules.len() {
                    return Err(self.refused(number, "Index of insertion too big"));
                }
                let rule = given(&rest)?.with_counters(counters.filter(|_| self.counters).unwrap_or(ZERO));
                self.check_rule(number, &rule, &open.table)?;
                open.added.push((number, chain_name, rule.clone()));
                open.table.chain_mut(name).into_iter().for_each(|c| c.rules.insert(at, rule.clone()));
            }
            "-D" | "-C" if rest.contains(&"-c") => {
                return Err(self.wrong(number, "Illegal option `-c' with this command"));
            }
            "-D" | "-C" => {
                let wanted = given(&rest)?.canonical();
                let Some(at) = chain.rules.iter().position(|r| r.canonical() == wanted) else {
                    return Err(self.refused(number, "Bad rule (does a matching rule exist in that chain?)"));
                };
                if command == "-D" {
                    open.table.chain_mut(name).into_iter().for_each(|c| drop(c.rules.remove(at)));
                }
            }
            "-F" => open.table.chain_mut(name).into_iter().for_each(|c| c.rules.clear()),
            "-X" => {
                let busy = !chain.rules.is_empty() || open.table.references(name).next().is_some();
                if busy && self.backend == Backend::Legacy {
                    return Err(self.refused(number, ""));
                }
                if busy {
                    open.kept.get_or_insert((number, chain_name));
                } else {
                    open.table.remove(name);
                }
            }
            _ => match rest.first().copied() {
                Some(policy @ ("ACCEPT" | "DROP")) if chain.policy.is_some() => {
                    open.table.chain_mut(name).into_iter().for_each(|c| c.policy = Policy::parse(policy));
                }
                Some(_) if chain.policy.is_none() => return Err(self.refused(number, "Bad built-in chain name")),
                _ => return Err(self.refused(number, "Bad policy name")),
            },
        }
        Ok(())
    }

    /// Errors that the programs detect while they parse a rule.
    fn check_rule(&self, number: usize, rule: &Rule, table: &Table) -> Result<(), Failure> {
        let words: Vec<&str> = rule.tokens().iter().map(AsRef::as_ref).collect();
        for pair in words.windows(2) {
            match pair {
                ["-m" | "--match", name] if MATCHES.split(' ').all(|known| known != *name) => {
                    let why = format!("Couldn't load match `{name}':No such file or directory\n");
                    return Err(self.wrong(number, &why));
                }
                ["--match-set", set] if !self.sets.contains(*set) => {
                    return Err(self.wrong(number, &format!("Set {set} doesn't exist.\n")));
                }
                _ => {}
            }
        }
        match rule.target() {
            Some(target) if self.backend == Backend::Legacy && !is_target(target) && table.chain(target).is_none() => {
                Err(self.wrong(number, &format!("Couldn't load target `{target}':No such file or directory\n")))
            }
            _ => Ok(()),
        }
    }

    /// Errors that the kernel detects when a table is committed.
    fn check(&self, number: usize, open: &Open) -> Result<(), Failure> {
        let late = |line: usize, what: &str| match self.backend {
            Backend::Legacy => self.refused(number, ""),
            Backend::NfTables => {
                Failure { code: 4, words: format!("{} {}: \nline {line}: {what}\n", self.program, self.version) }
            }
        };
        for (line, chain, rule) in open.added.iter().filter(|_| !self.testing) {
            if self.lacking(rule).is_some() {
                return Err(late(
                    *line,
                    &format!("RULE_APPEND failed (No such file or directory): rule in chain {chain}"),
                ));
            }
        }
        for (line, chain, rule) in &open.added {
            let Some(target) = rule.target() else { continue };
            if !is_target(target) && open.table.chain(target).is_none() {
                return Err(self.wrong(number, &format!("Chain '{target}' does not exist")));
            }
            if NAT_ONLY.contains(&target) && *open.table.name() != TableName::NAT {
                return Err(late(*line, &format!("RULE_APPEND failed (Invalid argument): rule in chain {chain}")));
            }
        }
        if let Some((line, chain)) = &open.kept {
            return Err(late(*line, &format!("CHAIN_DEL failed (Device or resource busy): chain {chain}")));
        }
        match open.added.last().filter(|_| has_loop(&open.table)) {
            Some((line, chain, _)) => {
                Err(late(*line, &format!("RULE_APPEND failed (Too many links): rule in chain {chain}")))
            }
            None => Ok(()),
        }
    }

    /// An error that ends the program while it parses.
    fn wrong(&self, number: usize, words: &str) -> Failure {
        let words = format!(
            "{} {}: {words}\nError occurred at line: {number}\nTry `{} -h' for more information.\n",
            self.program, self.version, self.program
        );
        Failure { code: 2, words }
    }

    /// A command that was parsed but could not be carried out. Only `nf_tables` reports why.
    fn refused(&self, number: usize, why: &str) -> Failure {
        let why = if self.backend == Backend::Legacy || why.is_empty() { String::new() } else { format!(": {why}.") };
        Failure { code: 1, words: format!("{}: line {number} failed{why}\n", self.program) }
    }
}

/// User-defined chains are listed by name behind the built-in ones.
fn sort_user_chains(table: &mut Table) {
    let builtin = table.name().builtin_chains();
    let mut chains = table.chains().to_vec();
    chains.sort_by_key(|c| {
        let place = builtin.iter().position(|b| c.name == *b);
        (place.unwrap_or(builtin.len()), c.name.clone())
    });
    let mut sorted = Table::new(table.name().clone());
    for chain in chains {
        sorted.insert(chain);
    }
    *table = sorted;
}

/// Whether a packet could return to a chain that it is already in.
fn has_loop(table: &Table) -> bool {
    // Remove chains that jump nowhere, or only to removed chains, until only loops are left.
    let mut open: BTreeMap<&str, BTreeSet<&str>> = table
        .chains()
        .iter()
        .map(|c| {
            let targets = c.rules.iter().filter_map(Rule::target).filter(|t| table.chain(t).is_some());
            (c.name.as_str(), targets.collect())
        })
        .collect();
    let mut reachable: BTreeSet<&str> = BTreeSet::new();
    let mut queue: Vec<&str> = table.name().builtin_chains().to_vec();
    while let Some(name) = queue.pop() {
        if reachable.insert(name) {
            queue.extend(open.get(name).into_iter().flatten().copied());
        }
    }
    open.retain(|name, _| reachable.contains(name));
    loop {
        let done: Vec<&str> =
            open.iter().filter(|(_, to)| !to.iter().any(|t| open.contains_key(t))).map(|(n, _)| *n).collect();
        if done.is_empty() {
            return !open.is_empty();
        }
        open.retain(|name, _| !done.contains(name));
    }
}
