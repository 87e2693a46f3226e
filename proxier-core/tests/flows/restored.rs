//! The reference's own rules as a subject: all flows must agree, or the harness is wrong.

use std::error::Error;
use std::fmt::Write as _;

use proxier_core::net::Family;
use testkit::Netns;
use testkit::oracle::{self, Backend};

use super::Subject;
use super::corpus::{Rules, Scenario};

/// Restores the corpus's rules with `iptables-restore`.
pub(crate) struct Restored {
    pub(crate) backend: Backend,
    /// Changes the rules before they are restored.
    pub(crate) change: fn(&mut Rules),
}

impl Restored {
    pub(crate) fn new(backend: Backend) -> Self {
        Restored { backend, change: |_| {} }
    }
}

impl Subject for Restored {
    fn program(&mut self, _node: &Netns, scenario: &Scenario) -> Result<(), Box<dyn Error>> {
        let mut rules = scenario.rules.clone();
        (self.change)(&mut rules);
        let family = if scenario.family == Family::V4 { oracle::Family::V4 } else { oracle::Family::V6 };
        Ok(oracle::iptables_restore(self.backend, family, &text(&rules)?)?)
    }
}

fn text(rules: &Rules) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    for (table, chains) in rules {
        writeln!(text, "*{table}")?;
        for chain in chains.keys() {
            let policy = if chain.starts_with("KUBE-") { "-" } else { "ACCEPT" };
            writeln!(text, ":{chain} {policy} [0:0]")?;
        }
        for (chain, rules) in chains {
            for rule in rules {
                writeln!(text, "-A {chain} {rule}")?;
            }
        }
        text.push_str("COMMIT\n");
    }
    Ok(text)
}
