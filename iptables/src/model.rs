//! Tables and chains as values.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, excerpt};
use crate::name::{ChainName, TableName};
use crate::rule::{Counters, Rule};

/// What a built-in chain does with a packet that no rule decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Policy {
    /// `ACCEPT`
    Accept,
    /// `DROP`
    Drop,
    /// A policy of another name, as printed.
    Other(Box<str>),
}

impl Policy {
    pub(crate) fn parse(word: &str) -> Option<Self> {
        match word {
            "-" => None,
            "ACCEPT" => Some(Self::Accept),
            "DROP" => Some(Self::Drop),
            other => Some(Self::Other(other.into())),
        }
    }
}

/// Parses the policy in a dump. `-` is refused, since it means no policy.
impl FromStr for Policy {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self, Error> {
        let refuse = || Error::new(ErrorKind::InvalidToken, format!("\"{}\" is no policy", excerpt(word)));
        let one_word = !word.is_empty() && !word.contains(char::is_whitespace);
        Self::parse(word).filter(|_| one_word).ok_or_else(refuse)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accept => "ACCEPT",
            Self::Drop => "DROP",
            Self::Other(word) => word,
        })
    }
}

/// A chain with its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Chain {
    /// Name of the chain, unique in its table.
    pub name: ChainName,
    /// The policy of a built-in chain; `None` (`-` in dumps) for a user-defined one.
    #[cfg_attr(feature = "serde", serde(default))]
    pub policy: Option<Policy>,
    /// Counters of the policy: always `[0:0]` for a user-defined chain; `None` if the text has none.
    #[cfg_attr(feature = "serde", serde(default = "not_counted"))]
    pub counters: Option<Counters>,
    /// Rules in order.
    #[cfg_attr(feature = "serde", serde(default))]
    pub rules: Vec<Rule>,
}

/// The counters of [`Chain::new`].
#[cfg(feature = "serde")]
#[expect(clippy::unnecessary_wraps, reason = "serde calls it for a field that is an Option")]
fn not_counted() -> Option<Counters> {
    Some(Counters::default())
}

impl Chain {
    /// A user-defined chain without rules.
    pub fn new(name: ChainName) -> Self {
        Self { name, policy: None, counters: Some(Counters::default()), rules: Vec::new() }
    }

    /// Sets the rules.
    #[must_use]
    pub fn with_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.rules = rules.into_iter().collect();
        self
    }

    /// Sets the policy, which makes it a built-in chain.
    #[must_use]
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Sets the counters of the policy, which a restore then writes.
    #[must_use]
    pub fn with_counters(mut self, counters: Counters) -> Self {
        self.counters = Some(counters);
        self
    }

    /// Whether both have rules of the same meaning in the same order. Counters are not compared.
    pub fn same_rules(&self, rules: &[Rule]) -> bool {
        self.rules.len() == rules.len() && self.rules.iter().zip(rules).all(|(ours, theirs)| ours.same_as(theirs))
    }
}

/// A table: chains in the order of the dump, with constant-time lookup by name.
#[derive(Clone, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "PlainTable", from = "PlainTable")
)]
pub struct Table {
    name: TableName,
    chains: Vec<Chain>,
    index: HashMap<ChainName, usize>,
    /// Comment and empty lines before `*table`.
    pub(crate) leading: Vec<String>,
}

/// Compares names and chains, not comment lines.
impl PartialEq for Table {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.chains == other.chains
    }
}

impl Eq for Table {}

#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
struct PlainTable {
    name: TableName,
    chains: Vec<Chain>,
}

#[cfg(feature = "serde")]
impl From<Table> for PlainTable {
    fn from(table: Table) -> Self {
        Self { name: table.name, chains: table.chains }
    }
}

#[cfg(feature = "serde")]
impl From<PlainTable> for Table {
    fn from(plain: PlainTable) -> Self {
        let mut table = Self::new(plain.name);
        for chain in plain.chains {
            table.insert(chain);
        }
        table
    }
}

impl Table {
    /// A table without chains.
    pub fn new(name: TableName) -> Self {
        Self { name, chains: Vec::new(), index: HashMap::new(), leading: Vec::new() }
    }

    /// Name of the table.
    pub fn name(&self) -> &TableName {
        &self.name
    }

    /// All chains in order.
    pub fn chains(&self) -> &[Chain] {
        &self.chains
    }

    /// The chain of this name.
    pub fn chain(&self, name: &str) -> Option<&Chain> {
        self.chains.get(*self.index.get(name)?)
    }

    /// The chain of this name, to change its rules.
    pub fn chain_mut(&mut self, name: &str) -> Option<&mut Chain> {
        self.chains.get_mut(*self.index.get(name)?)
    }

    /// Adds a chain at the end. A chain of the same name is replaced at its position and returned.
    pub fn insert(&mut self, chain: Chain) -> Option<Chain> {
        if let Some(existing) = self.index.get(chain.name.as_str()).and_then(|&at| self.chains.get_mut(at)) {
            return Some(std::mem::replace(existing, chain));
        }
        self.index.insert(chain.name.clone(), self.chains.len());
        self.chains.push(chain);
        None
    }

    /// Removes a chain.
    pub fn remove(&mut self, name: &str) -> Option<Chain> {
        let at = self.index.remove(name)?;
        for position in self.index.values_mut().filter(|p| **p > at) {
            *position = position.saturating_sub(1);
        }
        Some(self.chains.remove(at))
    }

    /// Number of rules in all chains together.
    pub fn rule_count(&self) -> usize {
        self.chains.iter().map(|c| c.rules.len()).sum()
    }

    /// The rules that jump or go to this chain, each with its own chain.
    pub fn references<'t>(&'t self, target: &'t str) -> impl Iterator<Item = (&'t Chain, &'t Rule)> {
        self.chains
            .iter()
            .flat_map(|c| c.rules.iter().map(move |r| (c, r)))
            .filter(move |(_, r)| r.target() == Some(target))
    }
}

/// The whole output of `iptables-save`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Dump {
    /// Tables in the order of the text.
    pub tables: Vec<Table>,
    /// Comment and empty lines after the last `COMMIT`.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) trailing: Vec<String>,
}

/// Parses as [`Dump::parse`].
impl FromStr for Dump {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

impl Dump {
    /// Returns the table of this name. `None` means that it is not in the text: it has no rules, and its policies are
    /// `ACCEPT`.
    pub fn table(&self, name: &TableName) -> Option<&Table> {
        self.tables.iter().find(|t| t.name() == name)
    }

    /// Number of rules in all tables together.
    pub fn rule_count(&self) -> usize {
        self.tables.iter().map(Table::rule_count).sum()
    }

    /// Whether a table has a chain of this name.
    pub fn has_chain(&self, table: &TableName, chain: &str) -> bool {
        self.table(table).is_some_and(|t| t.chain(chain).is_some())
    }

    /// Tables that `iptables-nft-save` could not show, since they contain what only `nft` can express (``# Table `nat'
    /// is incompatible, use 'nft' tool.``).
    pub fn incompatible_tables(&self) -> Vec<&str> {
        let lines = self.tables.iter().flat_map(|t| &t.leading).chain(&self.trailing);
        lines
            .filter_map(|l| l.strip_prefix("# Table `")?.split_once("' is incompatible").map(|(name, _)| name))
            .collect()
    }
}
