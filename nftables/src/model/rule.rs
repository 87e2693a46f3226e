//! Rules.

use super::ChainKey;
use crate::expr::Expression;

/// A rule: expressions that are worked through for each packet until one does not match. [`rule`](crate::rule) builds most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
#[non_exhaustive]
pub struct Rule {
    /// Expressions, in order.
    pub expressions: Vec<Expression>,
    /// Text for people. nft takes at most 128 bytes, the kernel has room for 253.
    pub comment: Option<String>,
    /// Other data of programs, as nft lays it out: type, length, value. Written unchanged.
    pub userdata: Vec<u8>,
    /// Attributes of iptables-nft (`NFTA_RULE_COMPAT`). Written unchanged.
    pub compat: Vec<u8>,
}

impl Rule {
    /// A rule of these expressions.
    pub fn new(expressions: Vec<Expression>) -> Self {
        Rule { expressions, ..Rule::default() }
    }

    /// The same with a comment.
    #[must_use]
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }
}

/// A rule as the kernel holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ObservedRule {
    /// The chain it is in.
    pub chain: ChainKey,
    /// The rule.
    pub rule: Rule,
    /// The kernel's number of it, by which it is replaced and deleted.
    pub handle: u64,
}
