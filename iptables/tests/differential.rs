//! iptables' own tests against this crate. The program loads each rule of `extensions/*.t` and `extensions/*.txlate`.
//! The crate writes it, reads it and writes it again, and the program must print the same each time. What the program
//! refuses, the crate must not write. `cargo xtask differential` gives the folder.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use iptables::{
    Backend, CanonicalRule, ChainName, Dump, Ensured, Error, Family, Iptables, Rule, System, TableName, Transaction,
};
use testkit::differential::{Figures, files};
use testkit::{Need, kernel_test, oracle};

/// Folder of an unpacked source package of iptables.
const SOURCE: &str = "IPTABLES_SOURCE";

struct Host {
    iptables: Iptables,
    chain: ChainName,
    /// What the program prints for each meaning.
    meanings: HashMap<(TableName, CanonicalRule), String>,
}

impl Host {
    fn new(family: Family, backend: Backend) -> Self {
        let iptables = Iptables::open(System::new(), family, backend).unwrap();
        Host { iptables, chain: ChainName::new("DIFFERENTIAL").unwrap(), meanings: HashMap::new() }
    }

    /// Runs the program itself.
    fn run(&self, suffix: &str, arguments: &[&str], input: Option<&str>) -> Result<String, String> {
        let suffix = format!("{}{suffix}", if self.iptables.backend() == Backend::Legacy { "legacy" } else { "nft" });
        let program = format!("{}-{suffix}", self.iptables.family().program());
        oracle::run(&program, arguments, input).map(|output| output.stdout).map_err(|error| error.to_string())
    }

    fn saved(&self, table: &TableName) -> String {
        self.run("-save", &["-t", table.as_str()], None).unwrap()
    }

    /// What the program prints for the rules of the chain.
    fn printed(&self, table: &TableName) -> String {
        let start = format!("-A {} ", self.chain);
        self.saved(table).lines().filter_map(|line| line.strip_prefix(&start)).collect::<Vec<_>>().join("\n")
    }

    /// Lets the program replace the rules of the chain.
    fn load(&self, table: &TableName, rule: &str) -> Result<String, String> {
        let chain = &self.chain;
        let text = format!("*{table}\n:{chain} - [0:0]\n-A {chain} {rule}\nCOMMIT\n");
        self.run("-restore", &["-w", "--noflush"], Some(&text))
    }

    fn write(&self, table: &TableName, rule: &Rule) -> Result<(), Error> {
        let mut change = Transaction::new();
        change.table(table.clone()).replace_chain(&self.chain, [rule.clone()]);
        self.iptables.restore(&change)
    }

    /// Faults of a rule that the program takes; `None` where it does not.
    fn judge(&mut self, table: &TableName, given: &str) -> Option<Vec<String>> {
        let chain = self.chain.clone();
        let ours = Rule::parse(given);
        if self.load(table, given).is_err() {
            let is_written = ours.is_ok_and(|rule| self.write(table, &rule).is_ok());
            return is_written.then(|| vec!["WRONG: the program refuses it, the crate writes it".to_owned()]);
        }
        let ours = match ours {
            Ok(ours) => ours,
            Err(error) => return Some(vec![format!("WRONG: not a rule: {error}")]),
        };
        let saved = self.saved(table);
        let before = self.printed(table);
        let mut faults = Vec::new();
        match Dump::parse(&saved) {
            Ok(dump) if dump.to_string() == saved => {}
            Ok(dump) => faults.push(format!("WRONG: read as {dump}")),
            Err(error) => return Some(vec![format!("WRONG: not read: {error}")]),
        }
        let read = self.iptables.dump_table(table).unwrap();
        let [read] = read.chain(chain.as_str()).unwrap().rules.as_slice() else {
            return Some(vec![format!("WRONG: read as {read}")]);
        };
        let mut check = |how: &str, rule: &Rule, expected: &str| {
            match self.write(table, rule) {
                Ok(()) if self.printed(table) == expected => {}
                Ok(()) => {
                    faults.push(format!("WRONG: as {how}, {rule}: {} instead of {expected}", self.printed(table)));
                }
                Err(error) => faults.push(format!("WRONG: as {how}, {rule}: {error}")),
            }
            for rule in [rule, read] {
                match self.iptables.ensure_chain_rules(table, &chain, std::slice::from_ref(rule)) {
                    Ok(Ensured::AlreadyThere) => {}
                    Ok(Ensured::Added) => faults.push(format!("WRONG: written again as {how}, {rule}: {expected}")),
                    Err(error) => faults.push(format!("WRONG: not found as {how}, {rule}: {error}")),
                }
            }
        };
        check("given", &ours, &before);
        // Some programs print what they refuse, or what means another rule to them.
        if self.load(table, &before).is_ok() {
            let again = self.printed(table);
            check("read", read, &again);
            let quoted = Rule::from_args(read.tokens()).unwrap();
            check("quoted", &quoted, &again);
            let canonical = Rule::parse(&read.canonical().to_string()).unwrap();
            match self.write(table, &canonical) {
                Ok(()) if Rule::parse(&self.printed(table)).unwrap().same_as(&Rule::parse(&again).unwrap()) => {}
                Ok(()) => faults.push(format!("WRONG: as {canonical}: {} instead of {again}", self.printed(table))),
                Err(error) => faults.push(format!("WRONG: as {canonical}: {error}")),
            }
        }
        // The position of a comment is printed, but no matter.
        if ours.comment().is_none() {
            for rule in [&ours, read] {
                let meaning = (table.clone(), rule.canonical());
                let printed = self.meanings.entry(meaning).or_insert_with(|| before.clone());
                if *printed != before {
                    faults.push(format!("WRONG: taken for {printed}, which is not {before}: {rule}"));
                }
            }
        }
        Some(faults)
    }
}

/// The families that a file of tests is for, by its name.
fn families(name: &str) -> &'static [Family] {
    match name.split_once('_').map_or("", |(kind, _)| kind) {
        "libipt" => &[Family::Ipv4],
        "libip6t" => &[Family::Ipv6],
        "libxt" => &Family::ALL,
        // Other programs: arptables, ebtables.
        _ => &[],
    }
}

/// A line of a translation test: family, table, rule. `None` for lines without a rule.
fn translated(line: &str) -> Option<(Family, TableName, String)> {
    let (program, rest) = line.split_once("-translate ")?;
    let family = Family::ALL.into_iter().find(|family| family.program() == program)?;
    let mut words: Vec<&str> = rest.split(';').next()?.split(' ').filter(|word| !word.is_empty()).collect();
    let mut take = |options: &[&str]| {
        let at = words.iter().position(|word| options.contains(word)).filter(|at| at + 1 < words.len())?;
        words.drain(at..at + 2).nth(1)
    };
    let table = take(&["-t", "--table"]).unwrap_or("filter");
    take(&["-A", "-I", "--append", "--insert"])?;
    Some((family, TableName::new(table).unwrap(), words.join(" ")))
}

#[test]
fn all_that_iptables_own_tests_load_comes_back() {
    let source = std::env::var_os(SOURCE).unwrap_or_else(|| panic!("{SOURCE}: no folder of iptables' source"));
    let extensions = Path::new(&source).join("extensions");
    let tests = files(&extensions, "t").unwrap();
    let translations = files(&extensions, "txlate").unwrap();
    let mut wrong = 0;
    for (backend, need) in [(Backend::Legacy, Need::IptablesLegacy), (Backend::NfTables, Need::IptablesNft)] {
        kernel_test(&[Need::Root, need], || {
            let [mut taken, mut refused, mut others] = [Figures::default(); 3];
            for family in Family::ALL {
                let mut host = Host::new(family, backend);
                let place = |file: &Path, number: usize| {
                    let name = file.strip_prefix(&source).unwrap().display();
                    format!("{name}:{number} {} {backend}", family.program())
                };
                for file in &tests {
                    let name = file.file_name().unwrap().to_string_lossy();
                    if !families(&name).contains(&family) {
                        continue;
                    }
                    let mut table = TableName::FILTER;
                    for (number, line) in (1..).zip(fs::read_to_string(file).unwrap().lines()) {
                        let (kind, rest) = line.split_at_checked(1).unwrap_or_default();
                        match kind {
                            "" | "#" | ":" => {}
                            "*" => table = TableName::new(rest.trim()).unwrap(),
                            // A command that rules need.
                            "@" | "%" => {
                                let words: Vec<&str> = rest.split_whitespace().collect();
                                let done = match kind {
                                    "%" => host.run("", &[&["-w"], &words[1..]].concat(), None),
                                    _ => oracle::run(words[0], &words[1..], None)
                                        .map(|output| output.stdout)
                                        .map_err(|error| error.to_string()),
                                };
                                done.unwrap_or_else(|error| {
                                    println!("{}: {error}", place(file, number));
                                    String::new()
                                });
                            }
                            _ => {
                                let parts: Vec<&str> = line.split(';').map(str::trim).collect();
                                let [given, _, outcome, ..] = parts.as_slice() else { continue };
                                let figures = if *outcome == "FAIL" { &mut refused } else { &mut taken };
                                figures.count(&format!("{}: {given}", place(file, number)), host.judge(&table, given));
                            }
                        }
                    }
                }
                for file in &translations {
                    for (number, line) in (1..).zip(fs::read_to_string(file).unwrap().lines()) {
                        if let Some((_, table, given)) = translated(line).filter(|(of, ..)| *of == family) {
                            others.count(&format!("{}: {given}", place(file, number)), host.judge(&table, &given));
                        }
                    }
                }
            }
            taken.print(&format!("{backend}: rules of extensions/*.t"));
            refused.print(&format!("{backend}: rules of extensions/*.t that should not load"));
            others.print(&format!("{backend}: rules of extensions/*.txlate"));
            wrong += taken.wrong + refused.wrong + others.wrong;
        });
    }
    assert_eq!(wrong, 0, "wrong");
}
