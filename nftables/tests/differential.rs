//! nft's own tests against this crate. nft loads each rule of its `tests/py` and each rule set of its `tests/shell`.
//! The crate reads them and writes them again, as messages and as text. All three must be equal. `cargo xtask
//! differential` gives the folder.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nftables::expr::CmpOp;
use nftables::{
    Client, DataType, Expression, Field, FieldTypes, Name, Rule, SetFlags, TableSnapshot, Transaction, Verdict,
};
use testkit::differential::{Figures, files};
use testkit::{Need, kernel_test, oracle};

/// Folder of an unpacked source package of nftables.
const SOURCE: &str = "NFT_SOURCE";

fn nft(arguments: &[&str], input: Option<&str>) -> Result<String, String> {
    oracle::run("nft", arguments, input).map(|output| output.stdout).map_err(|error| error.to_string())
}

/// Everything, as the crate reads it and as nft lists it, without what differs from one time to the next.
#[derive(PartialEq)]
struct Ruleset {
    tables: Vec<TableSnapshot>,
    listed: String,
}

impl Ruleset {
    fn read(client: &mut Client) -> Self {
        let keys = client.list_tables(None).unwrap().into_iter().map(|found| found.table.key);
        let mut tables: Vec<_> = keys.collect::<Vec<_>>().iter().map(|key| client.snapshot(key).unwrap()).collect();
        for table in &mut tables {
            (table.generation, table.table.handle) = (0, 0);
            for found in &mut table.chains {
                found.handle = 0;
                found.chain.base.iter_mut().for_each(|base| base.devices.sort());
            }
            table.rules.iter_mut().for_each(|found| found.handle = 0);
            table.objects.iter_mut().for_each(|found| found.handle = 0);
            table.flowtables.iter_mut().for_each(|found| found.handle = 0);
            for contents in &mut table.sets {
                (contents.set.handle, contents.set.count) = (0, None);
                for element in contents.elements.iter_mut().filter(|element| element.extras().expiration.is_some()) {
                    element.extras_mut().expiration = None;
                }
                contents.elements.sort_by(|one, other| one.key.cmp(&other.key));
            }
            table.sets.sort_by(|one, other| one.set.set.key.cmp(&other.set.set.key));
            table.objects.sort_by(|one, other| one.object.key.cmp(&other.object.key));
        }
        let listed = nft(&["list", "ruleset"], None).unwrap_or_else(|error| error);
        let words: Vec<&str> = listed.split(' ').collect();
        let steady = words.iter().enumerate().filter(|(at, word)| {
            **word != "expires" && at.checked_sub(1).and_then(|before| words.get(before)) != Some(&"expires")
        });
        Ruleset { tables, listed: steady.map(|(_, word)| *word).collect::<Vec<_>>().join(" ") }
    }

    /// What is not as it was.
    fn difference(&self, before: &Self) -> Option<String> {
        // Elements of some sets are in the order of a hash, and break into other lines.
        let words = |of: &Self| {
            let words = of.listed.split_whitespace().map(|word| word.trim_end_matches(',').to_owned());
            let mut words: Vec<String> = words.collect();
            words.sort();
            words
        };
        let (now, then) = (words(self), words(before));
        if now != then {
            let new: Vec<&str> = now.iter().filter(|line| !then.contains(line)).map(String::as_str).collect();
            return Some(format!("nft lists {}", new.join(" ")));
        }
        let (now, before) = (self.steady(), before.steady());
        let rules = |of: &TableSnapshot| of.rules.iter().map(|found| meaning(&found.rule)).collect::<Vec<_>>();
        let mut pairs = now.iter().zip(&before).flat_map(|(now, before)| rules(now).into_iter().zip(rules(before)));
        if let Some((now, before)) = pairs.find(|(now, before)| now != before) {
            return Some(format!("the kernel has {now:?} instead of {before:?}"));
        }
        let mut pairs = now.iter().zip(&before).flat_map(|(now, before)| now.sets.iter().zip(&before.sets));
        if let Some((now, before)) = pairs.find(|(now, before)| now != before) {
            return Some(format!("the kernel has {now:?} instead of {before:?}"));
        }
        let others = |of: &[TableSnapshot]| {
            let parts =
                of.iter().map(|of| (of.table.clone(), of.chains.clone(), of.objects.clone(), of.flowtables.clone()));
            parts.collect::<Vec<_>>()
        };
        (others(&now) != others(&before)).then(|| format!("{:?} instead of {:?}", others(&now), others(&before)))
    }

    /// With the sets of rules as bytes: nft takes their types from the words of the key, of which several may mean the same.
    fn steady(&self) -> Vec<TableSnapshot> {
        let mut tables = self.tables.clone();
        let sets = tables.iter_mut().flat_map(|table| &mut table.sets).map(|contents| &mut contents.set.set);
        for set in sets.filter(|set| set.flags.contains(SetFlags::ANONYMOUS)) {
            let field = Field { data_type: DataType::INTEGER, length: set.key_type.length() };
            set.key_type = FieldTypes::new([field]).unwrap();
            (set.key_typeof, set.userdata) = (Vec::new(), Vec::new());
        }
        // The kernel counts the chains of rules of all tables, and those that are gone.
        for table in &mut tables {
            let bound = table.chains.iter().filter(|found| found.chain.bound).map(|found| found.chain.key.name.clone());
            let bound: Vec<Name> = bound.collect();
            let again = |name: &mut Name| {
                if let Some(place) = bound.iter().position(|of| of == name) {
                    *name = Name::new(&format!("bound{place}")).unwrap();
                }
            };
            table.chains.iter_mut().for_each(|found| again(&mut found.chain.key.name));
            for found in &mut table.rules {
                again(&mut found.chain.name);
                for expression in &mut found.rule.expressions {
                    if let Expression::Verdict(Verdict::Jump(name) | Verdict::Goto(name)) = expression {
                        again(name);
                    }
                }
            }
            table.rules.sort_by(|one, other| one.chain.cmp(&other.chain));
        }
        tables
    }
}

/// A rule in one form. The matches between two statements are sorted. A match of the first whole bytes of a field has
/// one spelling; nft reads either those bytes alone, or the field and a mask.
fn meaning(rule: &Rule) -> Vec<String> {
    let (mut steps, mut matches, mut group) = (Vec::new(), Vec::new(), Vec::new());
    let mut rest = rule.expressions.as_slice();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if let (
            Expression::Payload { base, offset, .. },
            [Expression::Bitwise { mask, .. }, Expression::Cmp { op, value, .. }, more @ ..],
        ) = (first, behind)
        {
            let whole = mask.as_bytes().iter().take_while(|byte| **byte == u8::MAX).count();
            let (kept, zero) = mask.as_bytes().split_at(whole);
            if whole > 0 && zero.iter().all(|byte| *byte == 0) {
                matches.push(format!("{base:?} {offset} {op:?} {:?}", &value.as_bytes()[..kept.len()]));
                rest = more;
                continue;
            }
        }
        if let (
            Expression::Payload { base, offset, .. },
            [Expression::Cmp { op: op @ (CmpOp::Eq | CmpOp::Ne), value, .. }, more @ ..],
        ) = (first, behind)
        {
            matches.push(format!("{base:?} {offset} {op:?} {:?}", value.as_bytes()));
            rest = more;
            continue;
        }
        group.push(format!("{first:?}"));
        match first {
            Expression::Cmp { .. } if matches!(rest, [Expression::Cmp { .. }, ..]) => {}
            Expression::Cmp { .. } | Expression::Range { .. } | Expression::Lookup { register: None, .. } => {
                matches.push(group.drain(..).collect());
            }
            Expression::Verdict(_) | Expression::Counter { .. } | Expression::Limit { .. } | Expression::Log { .. } => {
                matches.sort();
                steps.append(&mut matches);
                steps.append(&mut group);
            }
            _ => {}
        }
    }
    matches.sort();
    steps.append(&mut matches);
    steps.append(&mut group);
    steps.extend([rule.comment.clone().unwrap_or_default()]);
    steps
}

fn flush(client: &mut Client) {
    let mut transaction = Transaction::new();
    for found in client.list_tables(None).unwrap() {
        transaction.delete_table(&found.table.key);
    }
    client.commit(&transaction).unwrap();
}

/// Faults of a rule set that nft takes; `None` where it does not.
fn judge(client: &mut Client, text: &str) -> Option<Vec<String>> {
    flush(client);
    nft(&["-f", "-"], Some(text)).ok()?;
    let mut faults = Vec::new();
    let before = Ruleset::read(client);
    let mut transaction = Transaction::new();
    for table in &before.tables {
        match table.to_transaction() {
            Ok(again) => drop(transaction.append(again)),
            Err(error) => faults.push(format!("no transaction: {error}")),
        }
    }
    let text: String = before.tables.iter().map(TableSnapshot::to_string).collect();
    flush(client);
    match client.commit(&transaction) {
        Ok(()) => faults.extend(Ruleset::read(client).difference(&before).map(|how| format!("WRONG messages: {how}"))),
        Err(error) => faults.push(format!("messages refused: {error}")),
    }
    if let Some(line) = text.lines().find(|line| line.trim_start().starts_with('#')) {
        faults.push(format!("no words: {}", line.trim()));
        return Some(faults);
    }
    flush(client);
    let rules = || text.lines().filter(|line| line.starts_with("\t\t") && !line.contains(" hook ")).map(str::trim);
    match nft(&["-f", "-"], Some(&text)) {
        Ok(_) => {
            let how = Ruleset::read(client).difference(&before);
            faults.extend(
                how.map(|how| format!("WRONG text: {how}\n    text: {}", rules().collect::<Vec<_>>().join("; "))),
            );
        }
        Err(error) => {
            let why = error.lines().find(|line| line.contains("Error")).unwrap_or(&error);
            faults.push(format!("text refused: {}: {why}", rules().collect::<Vec<_>>().join("; ")));
        }
    }
    Some(faults)
}

/// Tables, chains, sets and objects that the rules of a file of `tests/py` are for.
#[derive(Default)]
struct Ground {
    chains: BTreeMap<String, String>,
    /// Family and name of a table, and its chains.
    tables: Vec<(String, Vec<String>)>,
    /// Commands for each of the tables, in which `@` stands for it.
    parts: Vec<String>,
}

impl Ground {
    fn commands(&self, table: &str, chains: &[String], chain: &str, rule: &str) -> String {
        let mut text = format!("add table {table}\n");
        for name in chains {
            let hook = self.chains.get(name).map_or("", String::as_str);
            text.extend(["add chain ", table, " ", name, " { ", hook, "; }\n"]);
        }
        self.parts.iter().for_each(|part| text += &part.replacen('@', table, 1));
        if rule.is_empty() { text } else { text + &format!("add rule {table} {chain} {rule}\n") }
    }

    /// Takes a command for all tables, unless nft refuses it in one of them.
    fn take(&mut self, client: &mut Client, command: String) {
        self.parts.push(command);
        flush(client);
        let takes = |(table, chains): &(String, Vec<String>)| {
            nft(&["-c", "-f", "-"], Some(&self.commands(table, chains, "", ""))).is_ok()
        };
        if !self.tables.iter().all(takes) {
            self.parts.pop();
        }
    }

    /// A line that is not a rule (`set_process`, `set_element_process` and `obj_process` of nft's nft-test.py).
    fn line(&mut self, client: &mut Client, line: &str) -> bool {
        let (kind, rest) = line.split_at(1);
        // What comes back is behind the last semicolon.
        let words = rest.rsplit_once(';').filter(|(_, outcome)| *outcome == "ok").map(|(words, _)| words);
        let two = |text: &str| text.split_once(' ').map(|(one, two)| (one.to_owned(), two.to_owned()));
        match kind {
            "*" => {
                let parts: Vec<&str> = rest.split(';').collect();
                if let [family, name, chains] = parts.as_slice() {
                    self.tables.push((format!("{family} {name}"), chains.split(',').map(str::to_owned).collect()));
                }
            }
            ":" => self.chains.extend(rest.split_once(';').map(|(name, hook)| (name.to_owned(), hook.to_owned()))),
            "!" => {
                if let Some((name, kind)) = words.and_then(two) {
                    let kind = kind.replace(" timeout", "; timeout").replace(" flags", "; flags");
                    self.take(client, format!("add set @ {name} {{ {kind}; }}\n"));
                }
            }
            "?" => {
                if let Some((name, elements)) = words.and_then(two) {
                    self.take(client, format!("add element @ {name} {{ {elements} }}\n"));
                }
            }
            "%" => {
                if let Some((name, data)) = words.and_then(two) {
                    let data = data.trim_start_matches("type ");
                    let (kind, rest) = two(data).unwrap_or_else(|| (data.to_owned(), String::new()));
                    let (kind, rest) = match two(&rest) {
                        Some((second, rest)) if kind == "ct" => (format!("ct {second}"), rest),
                        _ => (kind, rest),
                    };
                    self.take(client, format!("add {kind} @ {name} {rest}\n"));
                }
            }
            _ => return false,
        }
        true
    }
}

#[test]
fn all_that_nfts_own_tests_load_comes_back() {
    let source = std::env::var_os(SOURCE).unwrap_or_else(|| panic!("{SOURCE}: no folder of nft's source"));
    let tests = Path::new(&source).join("tests");
    kernel_test(&[Need::Root, Need::Nftables], || {
        let mut client = Client::open().unwrap();
        let (mut rules, mut sets) = (Figures::default(), Figures::default());
        for file in files(&tests.join("py"), "t").unwrap() {
            let name = file.strip_prefix(&tests).unwrap().display().to_string();
            let mut ground = Ground::default();
            for (number, line) in (1..).zip(fs::read_to_string(&file).unwrap().lines()) {
                let line = line.trim_end();
                if line.is_empty() || line.starts_with(['#', '-']) || ground.line(&mut client, line) {
                    continue;
                }
                let Some((rule, outcome)) = line.split_once(';') else { continue };
                if !outcome.starts_with("ok") {
                    continue;
                }
                for (table, chains) in &ground.tables {
                    for chain in chains {
                        let what = format!("{name}:{number} {table}: {rule}");
                        let text = ground.commands(table, chains, chain, rule);
                        rules.count(&what, judge(&mut client, &text));
                    }
                }
            }
        }
        for file in files(&tests.join("shell/testcases"), "nft").unwrap() {
            let name = file.strip_prefix(&tests).unwrap().display().to_string();
            sets.count(&name, judge(&mut client, &fs::read_to_string(&file).unwrap()));
        }
        flush(&mut client);
        rules.print("rules of tests/py");
        sets.print("rule sets of tests/shell");
        assert_eq!((rules.wrong, sets.wrong), (0, 0), "wrong");
        assert_eq!((rules.loaded, sets.loaded), (rules.back, sets.back), "came back");
    });
}
