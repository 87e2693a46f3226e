//! Tables of a family in memory, and the effect of `iptables-restore --noflush` on them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use iptables::{Dump, Rule, TableName};

/// Chains by table and name. Text that the program would refuse is refused here too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tables {
    chains: BTreeMap<(String, String), Vec<String>>,
}

const BUILTIN: [(&str, &str); 7] = [
    ("filter", "FORWARD"),
    ("filter", "INPUT"),
    ("filter", "OUTPUT"),
    ("nat", "INPUT"),
    ("nat", "OUTPUT"),
    ("nat", "POSTROUTING"),
    ("nat", "PREROUTING"),
];

impl Tables {
    /// Tables with built-in chains only, without rules.
    pub(crate) fn new() -> Self {
        let chains = BUILTIN.map(|(table, chain)| ((table.to_owned(), chain.to_owned()), Vec::new()));
        Tables { chains: chains.into() }
    }

    /// Each table changes as a whole or not at all; an error names the line.
    pub(crate) fn restore(&mut self, text: &str) -> Result<(), String> {
        let (mut table, mut after) = (String::new(), self.clone());
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                name.clone_into(&mut table);
            } else if line == "COMMIT" {
                after.check_jumps(&table)?;
                *self = after.clone();
            } else {
                after.line(&table, line).map_err(|why| format!("{why}: {line}"))?;
            }
        }
        Ok(())
    }

    fn line(&mut self, table: &str, line: &str) -> Result<(), String> {
        if let Some(declared) = line.strip_prefix(':') {
            let name = declared.split(' ').next().unwrap_or_default();
            self.chains.insert((table.to_owned(), name.to_owned()), Vec::new());
            return Ok(());
        }
        let (command, rest) = line.split_once(' ').ok_or("no command")?;
        let (name, rule) = rest.split_once(' ').unwrap_or((rest, ""));
        let key = (table.to_owned(), name.to_owned());
        if command == "-X" {
            let jumped_to = self.targets(table).any(|(_, target)| target == name);
            let rules = self.chains.remove(&key).ok_or("no such chain")?;
            return if rules.is_empty() && !jumped_to { Ok(()) } else { Err("in use".to_owned()) };
        }
        let rules = self.chains.get_mut(&key).ok_or("no such chain")?;
        match command {
            "-A" => rules.push(rule.to_owned()),
            "-F" => rules.clear(),
            "-I" => {
                let (place, rule) = rule.split_once(' ').ok_or("no place")?;
                let place = place.parse::<usize>().unwrap() - 1;
                if place > rules.len() {
                    return Err("no such place".to_owned());
                }
                rules.insert(place, rule.to_owned());
            }
            "-D" => {
                let place = rules.iter().position(|there| there == rule).ok_or("no such rule")?;
                rules.remove(place);
            }
            other => return Err(format!("{other} is no command")),
        }
        Ok(())
    }

    fn targets(&self, table: &str) -> impl Iterator<Item = (&str, String)> {
        let of_table = self.chains.iter().filter(move |((name, _), _)| *name == table);
        let rules = of_table.flat_map(|((_, chain), rules)| rules.iter().map(move |rule| (chain.as_str(), rule)));
        rules.filter_map(|(chain, rule)| Some((chain, Rule::parse(rule).unwrap().target()?.to_owned())))
    }

    fn check_jumps(&self, table: &str) -> Result<(), String> {
        let lost = |target: &str| target.starts_with("KUBE-") && !self.has(table, target);
        match self.targets(table).find(|(_, target)| lost(target)) {
            Some((chain, target)) => Err(format!("{chain} jumps to {target}, which does not exist")),
            None => Ok(()),
        }
    }

    pub(crate) fn has(&self, table: &str, chain: &str) -> bool {
        self.chains.contains_key(&(table.to_owned(), chain.to_owned()))
    }

    /// Chains: table, name, rules.
    pub(crate) fn chains(&self) -> impl Iterator<Item = (&str, &str, &[String])> {
        self.chains.iter().map(|((table, chain), rules)| (table.as_str(), chain.as_str(), rules.as_slice()))
    }

    /// Tables with the lines of shared chains sorted, but for the last ones of `KUBE-SERVICES`.
    pub(crate) fn sorted(&self) -> Self {
        let mut sorted = self.clone();
        for ((_, chain), rules) in &mut sorted.chains {
            let shared = ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-FIREWALL"];
            if shared.contains(&chain.as_str()) {
                let last = rules.iter().filter(|rule| rule.ends_with("-j KUBE-NODEPORTS")).count();
                let tail = rules.len() - last;
                let (lines, tail) = rules.split_at_mut(tail);
                lines.sort();
                tail.sort();
            }
        }
        sorted
    }

    /// Output of `iptables-save`, if the kernel kept rules as they are written.
    pub(crate) fn dump(&self) -> Dump {
        let mut text = String::new();
        for table in [TableName::NAT, TableName::FILTER] {
            let of_table = || self.chains().filter(|(name, _, _)| *name == table.as_str());
            writeln!(text, "*{table}").unwrap();
            for (_, chain, _) in of_table() {
                let builtin = table.builtin_chains().contains(&chain);
                writeln!(text, ":{chain} {} [0:0]", if builtin { "ACCEPT" } else { "-" }).unwrap();
            }
            for (_, chain, rules) in of_table() {
                for rule in rules {
                    writeln!(text, "-A {chain} {rule}").unwrap();
                }
            }
            writeln!(text, "COMMIT").unwrap();
        }
        Dump::parse(text).unwrap()
    }
}
