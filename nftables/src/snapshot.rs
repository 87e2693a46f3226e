//! A table with all its contents.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::expr::Expression;
use crate::model::{
    ChainKey, Element, InvalidValue, ObservedChain, ObservedFlowtable, ObservedObject, ObservedRule, ObservedSet,
    ObservedTable, SetFlags,
};
use crate::sync::SIZE_BY_DEFAULT;
use crate::transaction::Transaction;

/// A set and its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SetContents {
    /// The set.
    pub set: ObservedSet,
    /// Elements of the set; ranges as [`ElementKey::Range`](crate::ElementKey::Range).
    #[cfg_attr(feature = "serde", serde(default))]
    pub elements: Vec<Element>,
}

/// A table with all its contents at one moment. Prints like `nft list table`.
///
/// Put back after a change that turned out wrong:
///
/// ```
/// # use nftables::fake::FakeNftables;
/// # use nftables::{Chain, Client, Family, Table, TableKey, Transaction, rule};
/// # let mut client = Client::with_transport(FakeNftables::new().transport());
/// # let table = TableKey::new(Family::Inet, "filter")?;
/// # let web = table.chain("web")?;
/// # let mut transaction = Transaction::new();
/// # transaction.add_table(Table::new(table.clone())).add_chain(Chain::regular(web.clone()));
/// # transaction.add_rule(&web, rule(Family::Inet).dport(80).counter().accept().build()?);
/// # client.commit(&transaction)?;
/// let snapshot = client.snapshot(&table)?;
/// client.commit(Transaction::new().flush_table(&table))?;
/// client.commit(Transaction::new().remove_table(&table).append(snapshot.to_transaction()?))?;
/// assert_eq!(client.snapshot(&table)?.to_string(), snapshot.to_string());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct TableSnapshot {
    /// Generation of the rule set.
    pub generation: u32,
    /// The table.
    pub table: ObservedTable,
    /// Chains of the table.
    #[cfg_attr(feature = "serde", serde(default))]
    pub chains: Vec<ObservedChain>,
    /// Rules of the table, in order within each chain.
    #[cfg_attr(feature = "serde", serde(default))]
    pub rules: Vec<ObservedRule>,
    /// Sets and maps of the table.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sets: Vec<SetContents>,
    /// Objects of the table.
    #[cfg_attr(feature = "serde", serde(default))]
    pub objects: Vec<ObservedObject>,
    /// Flow tables of the table.
    #[cfg_attr(feature = "serde", serde(default))]
    pub flowtables: Vec<ObservedFlowtable>,
    /// Number of parts of the table that are missing here. May include those of a transaction that another program is
    /// about to commit.
    #[cfg_attr(feature = "serde", serde(default))]
    pub left_out: u32,
}

impl TableSnapshot {
    /// A table without contents.
    pub(crate) fn empty(table: ObservedTable) -> Self {
        TableSnapshot {
            generation: 0,
            table,
            chains: Vec::new(),
            rules: Vec::new(),
            sets: Vec::new(),
            objects: Vec::new(),
            flowtables: Vec::new(),
            left_out: 0,
        }
    }

    /// The rules of a chain, in order.
    pub fn rules_of<'a>(&'a self, chain: &'a ChainKey) -> impl Iterator<Item = &'a ObservedRule> {
        self.rules.iter().filter(move |rule| rule.chain == *chain)
    }

    /// The changes that create an equal table where there is none. Counters start at their values.
    ///
    /// # Errors
    /// Parts of the table are missing, so the result would not be equal.
    pub fn to_transaction(&self) -> Result<Transaction, InvalidValue> {
        if self.left_out > 0 {
            let what = format!("table {} with {} more parts", self.table.table.key, self.left_out);
            return Err(InvalidValue::new(what, "they are not in the snapshot"));
        }
        let mut transaction = Transaction::new();
        transaction.add_table(self.table.table.clone());
        for object in &self.objects {
            transaction.add_object(object.object.clone());
        }
        for flowtable in &self.flowtables {
            transaction.add_flowtable(flowtable.flowtable.clone());
        }
        for chain in &self.chains {
            transaction.add_chain(chain.chain.clone());
        }
        // Anonymous sets keep their names. Rewritten rules refer to the new sets by number; meters, to which rules
        // write, by name.
        let mut anonymous = BTreeMap::new();
        for contents in &self.sets {
            let mut set = contents.set.set.clone();
            // The kernel set it. With it in a request, the kernel would choose a set type to which rules cannot write.
            if set.size == Some(SIZE_BY_DEFAULT) && !set.flags.intersects(SetFlags::DYNAMIC | SetFlags::TIMEOUT) {
                set.size = None;
            }
            let elements = contents.elements.iter().cloned().map(|mut element| {
                if set.timeout.is_some() && element.read_timeout(set.timeout).is_none() {
                    element.extras_mut().timeout = Some(Duration::ZERO);
                }
                element.forget_expiration();
                element
            });
            if set.flags.contains(SetFlags::ANONYMOUS | SetFlags::CONSTANT) {
                let elements: Vec<Element> = elements.collect();
                if let Ok(reference) = transaction.add_anonymous_set(set.clone(), elements) {
                    anonymous.insert(set.key.name, reference);
                }
            } else {
                transaction.add_set(set.clone());
                if !contents.elements.is_empty() {
                    transaction.add_elements(&set, elements);
                }
            }
        }
        for rule in self.rules_for_writing() {
            let mut again = rule.rule.clone();
            for expression in &mut again.expressions {
                expression.for_each_set(&mut |set| {
                    if let Some(reference) = anonymous.get(&set.name) {
                        *set = reference.clone();
                    }
                });
            }
            transaction.add_rule(&rule.chain, again);
        }
        Ok(transaction)
    }

    /// The rules, those of a bound chain before the one that jumps to it, since the kernel accepts none afterwards.
    fn rules_for_writing(&self) -> Vec<&ObservedRule> {
        let bound: BTreeSet<&ChainKey> =
            self.chains.iter().map(|found| &found.chain).filter(|chain| chain.bound).map(|chain| &chain.key).collect();
        let (mut ordered, mut written) = (Vec::new(), BTreeSet::new());
        // Rules to write, the next one last, and whether the chains to which they jump were written.
        let mut rest: Vec<(&ObservedRule, bool)> =
            self.rules.iter().rev().filter(|rule| !bound.contains(&rule.chain)).map(|rule| (rule, false)).collect();
        while let Some((rule, is_ready)) = rest.pop() {
            let mut targets = rule.rule.expressions.iter().filter_map(Expression::jumps_to);
            let target = targets.find_map(|name| bound.iter().find(|key| key.name == *name));
            match target.filter(|_| !is_ready) {
                Some(target) if written.insert(*target) => {
                    rest.push((rule, true));
                    rest.extend(self.rules.iter().rev().filter(|of| of.chain == **target).map(|of| (of, false)));
                }
                _ => ordered.push(rule),
            }
        }
        ordered
    }
}
