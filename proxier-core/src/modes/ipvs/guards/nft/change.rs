//! Changes of a table and its elements, and the transactions that write them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use ipset::{Element, IpSpan};
use nftables::{Chain, Rule, TableKey};

use super::contents::{TableContents, encode, read};
use super::layout::{KEEP, Layout};
use crate::modes::ipvs::observed::Observed;
use crate::modes::shared::table::{
    self, ChainRules, Changes, Fate, LabelledTransaction, Layout as _, WriteOutcome, write_layout,
};
use crate::pack::Gather as _;
use crate::plan::operation::Whole;
use crate::plan::step::{Action, Step};
use crate::ports::{PortErrorKind, SetKey, SetKind, Tables};

/// Changes of a family's table besides its elements.
#[derive(Clone, Debug, PartialEq)]
pub struct TableChange {
    pub layout: Arc<Layout>,
    pub fate: Fate,
    claims: bool,
    chains: Vec<ChainRules>,
}

/// The state that tables are written from.
pub(crate) type Basis = table::Basis<TableContents>;

pub(crate) type Entries = BTreeMap<SetKind, Vec<Element>>;

/// Deletes and adds entries of a table, after creating or repairing it.
#[derive(Clone, Debug)]
pub(super) struct EntryChanges<'a> {
    pub(super) layout: &'a Layout,
    pub(super) change: Option<&'a TableChange>,
    pub(super) delete: Entries,
    pub(super) add: Entries,
}

impl Changes for EntryChanges<'_> {
    type Set = SetKind;
    type Part = (SetKind, Element);

    fn new_table(&self) -> Option<&TableKey> {
        self.change.filter(|change| change.fate == Fate::Make).map(|change| &change.layout.table)
    }

    fn outgoing(&self, _has_ground: bool) -> LabelledTransaction<SetKind> {
        let (mut transaction, mut of_elements) = LabelledTransaction::default();
        if let Some(TableChange { layout, fate, claims, chains }) = self.change {
            write_layout(&mut transaction, (*fate, *claims), &**layout, [], chains);
        }
        for (action, all) in [(Action::Delete, &self.delete), (Action::Add, &self.add)] {
            for (kind, elements) in all.iter().filter(|(_, elements)| !elements.is_empty()) {
                let Some(set) = self.layout.sets.get(kind) else { continue };
                of_elements.insert(transaction.len(), (*kind, action));
                let elements = elements.iter().map(|element| encode(*kind, element));
                match action {
                    // A map also finds its elements by their keys.
                    Action::Delete => transaction.delete_elements(set, elements),
                    _ => transaction.add_elements(set, elements),
                };
            }
        }
        (transaction, of_elements)
    }

    fn parts(&self, (kind, action): (SetKind, Action)) -> impl Iterator<Item = Option<Self::Part>> {
        let entries = if action == Action::Delete { &self.delete } else { &self.add };
        entries.get(&kind).into_iter().flatten().map(move |element| Some((kind, element.clone())))
    }

    fn leave_out(&mut self, set: SetKind, parts: &[Self::Part]) {
        let parts: BTreeSet<&Element> = parts.iter().map(|(_, element)| element).gather();
        for entries in [&mut self.delete, &mut self.add] {
            entries.entry(set).or_default().retain(|element| !parts.contains(element));
        }
    }
}

impl TableChange {
    /// The differences between `found` and `layout`: those to write before virtual servers, and those after addresses
    /// are bound.
    ///
    /// A new table protects destinations last, because until then the earlier proxy's rules still translate them.
    pub(crate) fn compared(layout: &Arc<Layout>, found: Option<&TableContents>) -> [Option<Self>; 2] {
        let fate = match found {
            None => Fate::Make,
            Some(found) if found.is_other(layout) => Fate::Remake,
            Some(_) => Fate::Keep,
        };
        let there = |chain: &Chain| found.filter(|_| fate == Fate::Keep)?.shape.rules(chain.key.name.as_str());
        let claims = fate == Fate::Keep && found.is_some_and(|found| found.shape.is_orphan(&**layout));
        Self::differing(layout, (fate, claims), there)
    }

    /// The same for a table that is as recorded in `written`.
    pub(crate) fn changed(layout: &Arc<Layout>, written: &Layout) -> [Option<Self>; 2] {
        let written = written.chains();
        let there = |wanted: &Chain| written.iter().find(|(chain, _)| chain == wanted).map(|(_, rules)| rules);
        Self::differing(layout, (Fate::Keep, false), there)
    }

    /// The table with all its chains, to be created or recreated.
    pub(super) fn full(layout: &Arc<Layout>, fate: Fate) -> Self {
        TableChange { layout: layout.clone(), fate, claims: false, chains: layout.chains() }
    }

    fn differing<'a>(
        layout: &Arc<Layout>,
        (fate, claims): (Fate, bool),
        there: impl Fn(&Chain) -> Option<&'a Vec<Rule>>,
    ) -> [Option<Self>; 2] {
        let (mut first, mut last) = (Vec::new(), Vec::new());
        for (chain, rules) in layout.chains() {
            if there(&chain) == Some(&rules) {
                continue;
            }
            let is_late = chain.key.name.as_str() == KEEP && !rules.is_empty() && fate != Fate::Remake;
            if is_late {
                // Other chains jump to it.
                if there(&chain).is_none() {
                    first.push((chain.clone(), Vec::new()));
                }
                last.push((chain, rules));
            } else {
                first.push((chain, rules));
            }
        }
        let of = |fate, claims, chains: Vec<_>| {
            let is_change = fate != Fate::Keep || claims || !chains.is_empty();
            is_change.then(|| TableChange { layout: layout.clone(), fate, claims, chains })
        };
        [of(fate, claims, first), of(Fate::Keep, false, last)]
    }
}

impl Whole for TableChange {
    fn step(&self) -> Step {
        let names: Vec<&str> = self.chains.iter().map(|(chain, _)| chain.key.name.as_str()).collect();
        table::step(&self.layout.table, self.fate, &names)
    }
}

/// The entries of a set that must be deleted before adding those in `add`: the kernel accepts no overlapping networks,
/// and a map has one mark per key.
pub(super) fn in_the_way(kind: SetKind, there: &BTreeSet<Element>, add: &[Element]) -> Vec<Element> {
    let mut found = Vec::new();
    for new in add {
        let Element::IpPortIp(host, ports, range) = new else { continue };
        let is_of_place = |old: &&Element| matches!(old, Element::IpPortIp(of, with, _) if (of, with) == (host, ports));
        let overlaps = |old: &&Element| match old {
            Element::IpPortIp(_, _, old) if kind.has_marks() => old != range,
            Element::IpPortIp(_, _, old) => old != range && old.first() <= range.last() && range.first() <= old.last(),
            _ => false,
        };
        // All entries of one address and port are adjacent. Networks of IPv6 come after all of IPv4. Those in a set do
        // not overlap, so of those that begin earlier only the last one may reach this one.
        let first = if kind.has_marks() { Ipv4Addr::UNSPECIFIED.into() } else { range.first() };
        let least = Element::IpPortIp(*host, *ports, IpSpan::host(first));
        let before = there.range::<Element, _>(..&least).next_back().filter(is_of_place);
        let after = there.range::<Element, _>(&least..).take_while(is_of_place);
        let after = after.take_while(|old| kind.has_marks() || overlaps(old) || *old == new);
        found.extend(before.into_iter().chain(after).filter(overlaps).cloned());
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Writes the changes of a table, with the entries to add or to delete, and notes in `observed` the resulting state.
///
/// A table that is created, or created again, gets all entries that are known to be in the kernel, and the new ones.
/// Costs O(entries that change) otherwise.
pub(crate) fn write(
    layout: &Layout,
    change: Option<&TableChange>,
    (action, entries): (Action, Entries),
    (observed, basis): (&mut Observed, &mut Basis),
    tables: &mut dyn Tables,
) -> WriteOutcome<(SetKind, Element)> {
    let family = layout.family;
    let of = |kind| SetKey::new(family, kind);
    let (mut delete, mut add) = (Entries::new(), Entries::new());
    *(if action == Action::Delete { &mut delete } else { &mut add }) = entries;
    let exclusive = [SetKind::LoadBalancerSourceCidr, SetKind::SplitMark];
    for (kind, elements) in add.iter().filter(|(kind, _)| exclusive.contains(kind)) {
        let displaced =
            observed.sets.get(&of(*kind)).map(|there| in_the_way(*kind, there, elements)).unwrap_or_default();
        delete.entry(*kind).or_default().extend(displaced);
    }
    let is_new = change.is_some_and(|change| change.fate != Fate::Keep);
    if is_new {
        for (set, there) in observed.sets.iter().filter(|(set, _)| set.family == family) {
            let gone = delete.remove(&set.kind).unwrap_or_default();
            let new = add.entry(set.kind).or_default();
            new.extend(there.iter().filter(|element| !gone.contains(element)).cloned());
            new.sort_unstable();
            new.dedup();
        }
        delete.clear();
    }
    let changes: Cow<'_, EntryChanges<'_>> = Cow::Owned(EntryChanges { layout, change, delete, add });
    let again = |tables: &mut dyn Tables| read(&layout.table, family, tables).ok();
    let (changes, mut written) = table::write(changes, family, (basis, &again), tables);
    let EntryChanges { delete, add, .. } = changes.into_owned();
    written.refused.retain(|((kind, element), action, error)| {
        let is_gone = *action == Action::Delete && error.kind() == PortErrorKind::NotFound;
        if is_gone {
            observed.remove_entry(of(*kind), element);
        }
        !is_gone
    });
    if written.failed.is_some() {
        return written;
    }
    if is_new {
        observed.sets.retain(|set, _| set.family != family);
        observed.sets.extend(SetKey::all_of_nft(family).map(|set| (set, BTreeSet::new())));
    }
    for (kind, elements) in &delete {
        for element in elements {
            observed.remove_entry(of(*kind), element);
        }
    }
    for (kind, elements) in add {
        observed.sets.entry(of(kind)).or_default().extend(elements);
    }
    written
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "tests stop at the first surprise")]
mod tests {
    use std::time::Duration;

    use ipset::{Ports, Protocol};
    use nix::time::{ClockId, clock_gettime};

    use super::*;

    fn entry(port: u16, source: &str) -> Element {
        let ports = Ports::port(Protocol::TCP, port);
        Element::IpPortIp("198.51.100.1".parse().unwrap(), ports, source.parse().unwrap())
    }

    #[test]
    fn overlapping_networks_of_any_size_are_deleted_before_the_new_one() {
        let all: Vec<Element> =
            ["10.0.0.0/8", "11.0.0.0/24", "11.0.1.0/25", "11.0.2.7", "fd00::/16", "fd01::", "fd01:0:1::/48"]
                .map(|source| entry(80, source))
                .into();
        let there: BTreeSet<Element> =
            all.iter().cloned().chain([entry(79, "11.0.0.0/8"), entry(81, "11.0.0.0/8")]).collect();
        for (new, found) in [
            ("0.0.0.0/1", &all[..4]),
            ("10.1.0.0/16", &all[..1]),
            ("10.0.0.0/8", &[]),
            ("9.0.0.0/8", &[]),
            ("11.0.0.0/16", &all[1..4]),
            ("11.0.1.64/26", &all[2..3]),
            ("11.0.1.128/25", &[]),
            ("11.0.2.0/24", &all[3..4]),
            ("fd00:0:0:1::/64", &all[4..5]),
            ("fd01::/32", &all[5..]),
            ("fd01::/120", &all[5..6]),
            ("fd01::1", &[]),
        ] {
            assert_eq!(in_the_way(SetKind::LoadBalancerSourceCidr, &there, &[entry(80, new)]), found, "{new}");
        }
    }

    /// Whoever may write a Service may replace tens of thousands of networks.
    #[test]
    fn networks_are_replaced_in_the_time_that_they_are_many() {
        // Other programs do not count.
        let busy = || Duration::from(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap());
        let taken = |count: u32| {
            let networks = |first: u32, prefix| -> Vec<Element> {
                let network = |n: u32| IpSpan::network(Ipv4Addr::from_bits(first + 256 * n).into(), prefix).unwrap();
                (0..count).map(|n| entry(80, &network(n).to_string())).collect()
            };
            let (there, new) = (networks(1 << 24, 24).into_iter().collect(), networks(1 << 24, 25));
            let attempt = |_| {
                let start = busy();
                assert_eq!(in_the_way(SetKind::LoadBalancerSourceCidr, &there, &new).len(), new.len());
                busy().saturating_sub(start)
            };
            (0..3).map(attempt).min().unwrap()
        };
        let (few, many) = (taken(1_000), taken(8_000));
        assert!(many < 24 * few, "1,000 took {few:?}, 8,000 {many:?}");
    }

    #[test]
    fn an_entry_with_another_mark_is_deleted_before_the_new_one() {
        let there = [entry(80, "22.0.0.2"), entry(443, "22.0.0.3")].into();
        let found = |new| in_the_way(SetKind::SplitMark, &there, &[new]);
        assert_eq!(found(entry(80, "22.0.0.1")), [entry(80, "22.0.0.2")]);
        assert_eq!(found(entry(80, "22.0.0.2")), []);
        assert_eq!(found(entry(8080, "22.0.0.2")), []);
    }
}
