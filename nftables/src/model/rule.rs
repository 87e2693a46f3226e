//! Rules.

use super::ChainKey;
use crate::expr::Expression;

/// A rule: expressions that are evaluated for each packet until one does not match. [`rule`](crate::rule) builds most
/// rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Rule {
    /// Expressions, in order.
    pub expressions: Vec<Expression>,
    /// A comment. nft accepts at most 128 bytes, the kernel stores up to 253.
    pub comment: Option<String>,
    /// Other data stored by programs, in nft's layout: type, length, value. Written back unchanged.
    pub userdata: Vec<u8>,
    /// Attributes of iptables-nft (`NFTA_RULE_COMPAT`). Written back unchanged.
    pub compat: Vec<u8>,
}

impl Rule {
    /// A rule of these expressions.
    pub fn new(expressions: Vec<Expression>) -> Self {
        Rule { expressions, ..Rule::default() }
    }
}

/// A rule as read from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ObservedRule {
    /// The chain that contains it.
    pub chain: ChainKey,
    /// The rule.
    pub rule: Rule,
    /// The kernel's handle, by which the rule is replaced and deleted.
    pub handle: u64,
}
