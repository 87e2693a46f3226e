//! Edits to tables, written as input for `iptables-restore --noflush`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::mem;
use std::slice;

use crate::canonical::CanonicalRule;
use crate::error::{Error, ErrorKind, excerpt};
use crate::model::{Chain, Policy, Table};
use crate::name::{ChainName, TableName};
use crate::rule::Rule;

/// One edit of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Edit {
    /// `:CHAIN - [0:0]`, and `-A` for each rule: gives a user-defined chain exactly these rules, whether it exists or
    /// not. Its chain line precedes all edits, see [`TableEdit::chain`].
    Replace(ChainName, Vec<Rule>),
    /// `-A`: append to a chain.
    Append(ChainName, Rule),
    /// `-I CHAIN N`: insert as rule number `N`, from 1. Fails if the chain has fewer than `N - 1` rules.
    Insert(ChainName, usize, Rule),
    /// `-D`: delete the first rule that the program considers equal. Fails if there is none.
    Delete(ChainName, Rule),
    /// `-C`: fail, with the whole table, unless the chain has a rule that the program considers equal.
    Check(ChainName, Rule),
    /// `-N`: create a user-defined chain. Fails if it exists.
    NewChain(ChainName),
    /// `-F CHAIN`: delete all rules of one chain. Fails if it does not exist. Whole tables cannot be flushed, since
    /// other programs have chains there.
    Flush(ChainName),
    /// `-X CHAIN`: delete an empty chain to which no rule jumps.
    DeleteChain(ChainName),
    /// `-P`: set the policy of a built-in chain; its counters are kept.
    SetPolicy(ChainName, Policy),
}

/// The edits of one table, which are all applied or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableEdit {
    name: TableName,
    edits: Vec<Edit>,
}

impl TableEdit {
    fn new(name: TableName) -> Self {
        Self { name, edits: Vec::new() }
    }

    /// Declares a user-defined chain: `:CHAIN - [0:0]`.
    ///
    /// A missing chain is created; **an existing chain loses its rules**, atomically with the rules appended here.
    /// Chain lines precede all edits, so rules may jump to chains declared later. Each is written once, in descending
    /// order of names, which the programs read fastest.
    pub fn chain(&mut self, chain: ChainName) -> &mut Self {
        self.edit(Edit::Replace(chain, Vec::new()))
    }

    /// Declares a chain and gives it exactly these rules.
    pub fn replace_chain(&mut self, chain: &ChainName, rules: impl IntoIterator<Item = Rule>) -> &mut Self {
        self.edit(Edit::Replace(chain.clone(), rules.into_iter().collect()))
    }

    /// Declares a chain and gives it exactly these rules, unless `observed` already has them (by meaning, see
    /// [`Rule::canonical`]). Returns whether anything was added. This keeps the counters of an unchanged chain.
    pub fn replace_chain_if_different(&mut self, observed: Option<&Table>, chain: &ChainName, rules: &[Rule]) -> bool {
        let same = observed.and_then(|t| t.chain(chain.as_str())).is_some_and(|c| c.same_rules(rules));
        if !same {
            self.replace_chain(chain, rules.iter().cloned());
        }
        !same
    }

    /// Makes these rules the first of a chain, in this order and each exactly once. `observed` is the current chain
    /// (`None`: no rules). Other rules follow in their order. Returns whether anything was added, which is not the case
    /// if the chain already begins with them.
    pub fn lead_with(&mut self, chain: &ChainName, observed: Option<&Chain>, rules: &[Rule]) -> bool {
        self.lead_by(Rule::canonical, chain, observed, rules)
    }

    /// The same for a family, in which rules have this meaning.
    pub(crate) fn lead_by(
        &mut self,
        meaning: impl Fn(&Rule) -> CanonicalRule,
        chain: &ChainName,
        observed: Option<&Chain>,
        rules: &[Rule],
    ) -> bool {
        let wanted: Vec<_> = rules.iter().map(&meaning).collect();
        let known: BTreeSet<&CanonicalRule> = wanted.iter().collect();
        let present = observed.into_iter().flat_map(|chain| &chain.rules).enumerate();
        let ours: Vec<(usize, &Rule, CanonicalRule)> = present
            .map(|(at, rule)| (at, rule, meaning(rule)))
            .filter(|(_, _, canonical)| known.contains(canonical))
            .collect();
        let in_place = ours.len() == rules.len()
            && ours.iter().zip(&wanted).enumerate().all(|(index, (ours, wanted))| (index, wanted) == (ours.0, &ours.2));
        if in_place {
            return false;
        }
        self.edits.extend(ours.into_iter().map(|(_, rule, _)| Edit::Delete(chain.clone(), rule.clone())));
        self.edits.extend(rules.iter().zip(1..).map(|(rule, at)| Edit::Insert(chain.clone(), at, rule.clone())));
        true
    }

    pub(crate) fn edits_mut(&mut self) -> &mut Vec<Edit> {
        &mut self.edits
    }

    /// Adds an edit. Edits are applied in the order in which they were added.
    pub fn edit(&mut self, edit: Edit) -> &mut Self {
        self.edits.push(edit);
        self
    }

    /// Deletes a chain with its rules. Fails if another chain jumps to it, or if it does not exist.
    pub fn delete_chain(&mut self, chain: ChainName) -> &mut Self {
        self.edit(Edit::Flush(chain.clone())).edit(Edit::DeleteChain(chain))
    }

    /// The table to edit.
    pub fn name(&self) -> &TableName {
        &self.name
    }

    /// The declared chains ([`Edit::Replace`]) in the order of the calls, including repetitions.
    pub fn chains(&self) -> impl Iterator<Item = &ChainName> {
        self.edits.iter().filter_map(|edit| if let Edit::Replace(chain, _) = edit { Some(chain) } else { None })
    }

    /// The edits, in the order in which they are applied.
    pub fn edits(&self) -> &[Edit] {
        &self.edits
    }

    fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// Its lines. This call sorts the chains.
    fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        let chains = self.sorted_chains().into_iter().map(Line::Chain);
        let lines = chains.chain(self.edits.iter().flat_map(Line::of));
        [Line::Table(&self.name)].into_iter().chain(lines).chain([Line::Commit])
    }

    /// The declared chains, each once, in descending order of names: the programs keep chains sorted and are fastest if
    /// each new one comes before all others. With 11,000 chains (1,000 Services × 10 endpoints), iptables-nft-restore
    /// 1.8.9 takes 1.7 s in this order and 4.9 s in the order of Services. With 5,000 Services, iptables-legacy-restore
    /// takes 1.4 s instead of 1.8 s.
    fn sorted_chains(&self) -> Vec<&ChainName> {
        // Names are copied next to each other in memory: following a pointer for each comparison takes several times
        // longer.
        let key = |chain: &ChainName| {
            let mut key = [0; ChainName::MAX_LEN];
            key.iter_mut().zip(chain.as_str().bytes()).for_each(|(key, byte)| *key = byte);
            key
        };
        let mut chains: Vec<_> = self.chains().map(|chain| (key(chain), chain)).collect();
        chains.sort_unstable_by(|a, b| b.cmp(a));
        chains.dedup();
        chains.into_iter().map(|(_, chain)| chain).collect()
    }
}

/// Edits to one or more tables, applied by one run of `iptables-restore --noflush`.
///
/// Each table is changed atomically, in the order in which tables were first named. Several tables do not change
/// together, so name the table first that the others depend on. Chains and rules that are not mentioned are unchanged.
///
/// Its [`Display`](fmt::Display) form is the text that the program reads.
///
/// ```
/// use iptables::{ChainName, Edit, Rule, TableName, Transaction};
/// let mut change = Transaction::new();
/// let mine = ChainName::new("MY-SERVICES")?;
/// change.table(TableName::NAT)
///     .replace_chain(&mine, [Rule::parse("-d 10.96.0.10 -p udp --dport 53 -j ACCEPT")?])
///     .edit(Edit::Insert(ChainName::new("OUTPUT")?, 1, Rule::builder().comment("our portals").jump(&mine).build()?));
/// assert_eq!(change.to_string(), "\
/// *nat
/// :MY-SERVICES - [0:0]
/// -A MY-SERVICES -d 10.96.0.10 -p udp --dport 53 -j ACCEPT
/// -I OUTPUT 1 -m comment --comment \"our portals\" -j MY-SERVICES
/// COMMIT
/// ");
/// # Ok::<(), iptables::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    tables: Vec<TableEdit>,
}

impl Transaction {
    /// The longest line that `iptables-restore` reads at once: its buffer of 10,240 bytes minus newline and NUL. A
    /// longer line would be split, and the rest interpreted as a command.
    pub const MAX_LINE: usize = 10_238;

    /// No edits yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The edits of a table, to which you can add.
    pub fn table(&mut self, name: TableName) -> &mut TableEdit {
        let at = self.tables.iter().position(|t| t.name == name).unwrap_or_else(|| {
            self.tables.push(TableEdit::new(name));
            self.tables.len().saturating_sub(1)
        });
        #[expect(clippy::indexing_slicing, reason = "position of an element just found or pushed")]
        &mut self.tables[at]
    }

    /// Appends the edits of another transaction.
    pub fn append(&mut self, other: Transaction) {
        for mut more in other.tables {
            let edits = &mut self.table(more.name).edits;
            if edits.is_empty() {
                *edits = more.edits;
            } else {
                edits.append(&mut more.edits);
            }
        }
    }

    /// Divides many chains into transactions of about this many: `iptables-nft-restore` takes time in proportion to the
    /// square of the chains that it reads at once, those to which rules jump included. For 33,000 new chains 1.8.9
    /// takes 12 s of processor time, in parts of 2,500 chains 3 s. One changed rule in each of 4,700 chains with ten
    /// jumps, in a table of 110,000 chains, takes 56 s at once and 8 s in parts. `iptables-legacy-restore` copies the
    /// whole table each time: do not divide for it.
    ///
    /// Apply the results in order. The first give chains for which `is_free` returns `true` their rules, so that
    /// packets meet some of these chains with new rules and others with old ones. They jump to each other and to chains
    /// that exist. Then comes everything else, such as the rules that lead to new chains. The last delete such chains:
    /// the rules that lead to them, then their own, then the chains. If a part fails, those before it stay. Nothing is
    /// divided if there are at most `most` such chains. The list is empty if there is nothing to edit.
    #[must_use]
    pub fn divide(mut self, most: usize, is_free: impl Fn(&TableName, &ChainName) -> bool) -> Vec<Self> {
        let (mut parts, mut last) = (Vec::new(), Vec::new());
        for TableEdit { name, edits } in &mut self.tables {
            let names = edits.iter().map(|edit| edit.rules().len().saturating_add(1));
            if names.fold(0_usize, usize::saturating_add) <= most {
                continue;
            }
            let part = |edits| Self { tables: vec![TableEdit { name: name.clone(), edits }] };
            let mut deleted = HashSet::new();
            for edit in edits.iter() {
                match edit {
                    Edit::DeleteChain(chain) if is_free(name, chain) => _ = deleted.insert(chain.clone()),
                    // It exists in the end.
                    other => _ = deleted.remove(other.chain()),
                }
            }
            let is_deleted = |chain: &ChainName| deleted.contains(chain);
            let deletion = |edit: &Edit| match edit {
                Edit::Delete(_, rule) => rule.target().filter(|target| deleted.contains(*target)).map(|_| 0),
                Edit::Flush(chain) => is_deleted(chain).then_some(1),
                Edit::Replace(chain, rules) => (rules.is_empty() && is_deleted(chain)).then_some(1),
                Edit::DeleteChain(chain) => is_deleted(chain).then_some(2_usize),
                _ => None,
            };
            let is_deletion = |edit: &Edit| deletion(edit).is_some();
            if edits.iter().filter(|edit| is_deletion(edit)).count() > most {
                let (mut gone, rest): (Vec<_>, Vec<_>) = mem::take(edits).into_iter().partition(is_deletion);
                *edits = rest;
                gone.sort_by_key(deletion);
                let same = |a: &Edit, b: &Edit| deletion(a) == deletion(b);
                last.extend(gone.chunk_by(same).flat_map(|step| step.chunks(most.max(1))).map(|of| part(of.to_vec())));
            }
            let is_first =
                |edit: &Edit| matches!(edit, Edit::Replace(chain, _) if !is_deleted(chain) && is_free(name, chain));
            let starts = starts(&edits.iter().filter(|edit| is_first(edit)).collect::<Vec<_>>(), most);
            if starts.len() < 2 {
                continue;
            }
            let (mut first, rest): (Vec<_>, Vec<_>) = mem::take(edits).into_iter().partition(is_first);
            *edits = rest;
            parts.extend(starts.into_iter().rev().map(|start| part(first.split_off(start))));
        }
        parts.reverse();
        parts.push(self);
        parts.append(&mut last);
        parts.retain(|part| !part.is_empty());
        parts
    }

    /// Edits by table, in the order in which tables were first named. A table may have no edits.
    pub fn tables(&self) -> &[TableEdit] {
        &self.tables
    }

    /// Whether there are no edits.
    pub fn is_empty(&self) -> bool {
        self.tables.iter().all(TableEdit::is_empty)
    }

    /// Whether a rule sets counters, so that `--counters` is needed.
    pub(crate) fn sets_counters(&self) -> bool {
        let edits = self.tables.iter().flat_map(|t| &t.edits);
        edits.flat_map(Edit::rules).any(|r| r.counters.is_some())
    }

    /// The text for `iptables-restore`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidToken`] for a rule that the format cannot represent (it came from a dump, or its line is
    /// longer than [`Transaction::MAX_LINE`]). [`ErrorKind::InvalidName`] for a chain name that only other tools can
    /// create.
    pub fn to_restore_text(&self) -> Result<String, Error> {
        self.check_writable()?;
        Ok(self.to_string())
    }

    /// Fails like [`Transaction::to_restore_text`], without generating the text.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        self.tables.iter().flat_map(|table| &table.edits).try_for_each(Edit::check_writable)
    }

    /// Number of lines of the text, if no chain is declared twice.
    pub fn line_count(&self) -> usize {
        let tables = self.tables.iter().filter(|table| !table.is_empty());
        tables.map(|table| table.edits.iter().map(Edit::line_count).fold(2_usize, usize::saturating_add)).sum()
    }

    /// The text, in pieces of whole lines.
    pub(crate) fn pieces(&self) -> Pieces<'_> {
        let tables = self.tables.iter().filter(|table| !table.is_empty());
        // Sort chains here, before a program waits for its text.
        let lines: Vec<_> = tables.map(TableEdit::lines).collect();
        Pieces(Box::new(lines.into_iter().flatten()))
    }
}

/// Where parts with at least this many chains begin, if no chain is to jump to one of a later part.
fn starts(edits: &[&Edit], least: usize) -> Vec<usize> {
    let places: HashMap<&str, usize> = edits.iter().map(|edit| edit.chain().as_str()).zip(0..).collect();
    let (mut starts, mut until, mut others) = (vec![0_usize], 0_usize, HashSet::new());
    for (edit, next) in edits.iter().zip(1_usize..) {
        for target in edit.rules().iter().filter_map(Rule::target) {
            match places.get(target) {
                Some(place) => until = until.max(place.saturating_add(1)),
                None => _ = others.insert(target),
            }
        }
        let start = starts.last().copied().unwrap_or_default();
        let size = next.saturating_sub(start).saturating_add(others.len());
        if next >= until && size >= least && next < edits.len() {
            starts.push(next);
            others.clear();
        }
    }
    starts
}

/// Bytes of text generated at once.
pub(crate) const PIECE: usize = 64 * 1024;

/// The text of a transaction, generated while it is read.
pub(crate) struct Pieces<'a>(Box<dyn Iterator<Item = Line<'a>> + 'a>);

impl Pieces<'_> {
    /// Appends lines until the text is this long; `false` if there are no more.
    pub(crate) fn append(&mut self, length: usize, out: &mut String) -> bool {
        while out.len() < length {
            let Some(line) = self.0.next() else { return false };
            line.write_to(out);
            out.push('\n');
        }
        true
    }
}

/// A line of restore text.
enum Line<'a> {
    Table(&'a TableName),
    Chain(&'a ChainName),
    Append(&'a ChainName, &'a Rule),
    /// An edit of one line.
    Edit(&'a Edit),
    Commit,
}

impl<'a> Line<'a> {
    /// The lines of an edit, without that of its chain.
    fn of(edit: &'a Edit) -> impl Iterator<Item = Line<'a>> {
        let (rules, other) = match edit {
            Edit::Replace(_, rules) => (rules.as_slice(), None),
            edit => (&[][..], Some(Line::Edit(edit))),
        };
        rules.iter().map(|rule| Line::Append(edit.chain(), rule)).chain(other)
    }

    /// Fails if `iptables-restore` would split the line.
    fn check_length(&self) -> Result<(), Error> {
        let rule = match self {
            Line::Append(_, rule) => Some(*rule),
            Line::Edit(edit) => edit.rules().first(),
            _ => None,
        };
        // The command, the chain, a position and counters take less than 128 bytes.
        let most = usize::try_from(rule.map_or(0, Rule::most_len)).unwrap_or(usize::MAX);
        if most.saturating_add(128) <= Transaction::MAX_LINE {
            return Ok(());
        }
        let mut line = String::new();
        self.write_to(&mut line);
        if line.len() <= Transaction::MAX_LINE {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidToken,
            format!(
                "line \"{}\" has {} bytes, iptables-restore reads at most {}",
                excerpt(&line),
                line.len(),
                Transaction::MAX_LINE
            ),
        ))
    }

    /// Appends the line, without the newline.
    fn write_to(&self, out: &mut String) {
        match self {
            Line::Table(name) => out.extend(["*", name.as_str()]),
            Line::Chain(name) => out.extend([":", name.as_str(), " - [0:0]"]),
            Line::Append(chain, rule) => {
                write_counters(rule, out);
                out.extend(["-A ", chain.as_str()]);
                write_rule(rule, out);
            }
            Line::Edit(edit) => edit.write_to(out),
            Line::Commit => out.push_str("COMMIT"),
        }
    }
}

fn write_counters(rule: &Rule, out: &mut String) {
    if let Some(counters) = rule.counters {
        out.extend([&*counters.to_string(), " "]);
    }
}

/// Writes the arguments of a rule after its chain.
fn write_rule(rule: &Rule, out: &mut String) {
    if !rule.tokens().is_empty() {
        out.push(' ');
        rule.write_arguments(out);
    }
}

impl Edit {
    /// `-D CHAIN 1` would delete by number.
    fn check_deletion(&self) -> Result<(), Error> {
        match self {
            Self::Delete(chain, rule) if !rule.tokens().first().is_none_or(|t| t.as_str().starts_with(['-', '!'])) => {
                Err(Error::new(
                    ErrorKind::InvalidToken,
                    format!(
                        "rule \"{}\" to delete from {chain} does not begin with an option",
                        excerpt(&rule.arguments())
                    ),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Fails if the restore format cannot represent it.
    fn check_writable(&self) -> Result<(), Error> {
        self.chain().check_writable()?;
        self.rules().iter().try_for_each(Rule::check_writable)?;
        self.check_deletion()?;
        Line::of(self).try_for_each(|line| line.check_length())
    }

    fn chain(&self) -> &ChainName {
        match self {
            Self::Replace(chain, _)
            | Self::Append(chain, _)
            | Self::Insert(chain, _, _)
            | Self::Delete(chain, _)
            | Self::Check(chain, _)
            | Self::NewChain(chain)
            | Self::Flush(chain)
            | Self::DeleteChain(chain)
            | Self::SetPolicy(chain, _) => chain,
        }
    }

    fn rules(&self) -> &[Rule] {
        match self {
            Self::Replace(_, rules) => rules,
            Self::Append(_, rule) | Self::Insert(_, _, rule) | Self::Delete(_, rule) | Self::Check(_, rule) => {
                slice::from_ref(rule)
            }
            Self::NewChain(_) | Self::Flush(_) | Self::DeleteChain(_) | Self::SetPolicy(_, _) => &[],
        }
    }

    fn line_count(&self) -> usize {
        match self {
            Self::Replace(_, rules) => rules.len().saturating_add(1),
            _ => 1,
        }
    }
}

/// The line of restore text; for [`Edit::Replace`] the lines of its rules.
impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for (at, line) in Line::of(self).enumerate() {
            text.push_str(if at > 0 { "\n" } else { "" });
            line.write_to(&mut text);
        }
        f.write_str(&text)
    }
}

impl Edit {
    /// Appends the line of a single-line edit, without the newline.
    fn write_to(&self, out: &mut String) {
        match self {
            Self::Replace(..) => {}
            Self::Append(chain, rule) => Line::Append(chain, rule).write_to(out),
            Self::Insert(chain, at, rule) => {
                write_counters(rule, out);
                out.extend(["-I ", chain.as_str(), " ", &at.to_string()]);
                write_rule(rule, out);
            }
            Self::Delete(chain, rule) | Self::Check(chain, rule) => {
                let command = if matches!(self, Self::Check(..)) { "-C " } else { "-D " };
                out.extend([command, chain.as_str()]);
                // Programs refuse counters here (`iptables -S -v` prints them).
                if rule.tokens().iter().any(|token| matches!(token.as_str(), "-c" | "--set-counters")) {
                    out.extend([" ", &rule.canonical().to_string()]);
                } else {
                    write_rule(rule, out);
                }
            }
            Self::NewChain(chain) => out.extend(["-N ", chain.as_str()]),
            Self::Flush(chain) => out.extend(["-F ", chain.as_str()]),
            Self::DeleteChain(chain) => out.extend(["-X ", chain.as_str()]),
            Self::SetPolicy(chain, policy) => out.extend(["-P ", chain.as_str(), " ", &policy.to_string()]),
        }
    }
}

impl fmt::Display for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut pieces, mut piece) = (self.pieces(), String::new());
        while pieces.append(PIECE, &mut piece) {
            f.write_str(&piece)?;
            piece.clear();
        }
        f.write_str(&piece)
    }
}

/// Serialised as its text.
#[cfg(feature = "serde")]
impl serde::Serialize for Transaction {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
