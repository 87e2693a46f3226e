//! Parses and prints `iptables-save` text.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use crate::error::{Error, ErrorKind, excerpt};
use crate::model::{Chain, Dump, Policy, Table};
use crate::name::{ChainName, TableName};
use crate::rule::{Counters, Rule};
use crate::token::{Reading, split};

/// A quoted argument spans at most as many lines as a comment has bytes.
const MAX_CONTINUATION: usize = 256;

impl Dump {
    /// Parses the output of `iptables-save` or `iptables-save -c`, in linear time.
    ///
    /// Printing the result gives the same bytes if rules are grouped by chain in the order of the chain lines, which
    /// the programs do. Comment lines inside a table are moved before it.
    ///
    /// A rule may contain a newline inside quotes, because `iptables-save` prints a comment's newline unchanged; it
    /// becomes part of the argument. Such a rule can be compared but not written, since the restore format cannot
    /// represent it. The same holds for bytes that are not UTF-8, which are replaced by U+FFFD.
    ///
    /// # Errors
    /// [`ErrorKind::Parse`] with the line, for anything that the programs do not print. Examples: a command other than
    /// `-A`, a rule for a chain without a `:CHAIN` line, a table without `COMMIT` (truncated text). A table or chain
    /// given twice, and Windows line ends, are errors too.
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self, Error> {
        let mut reader = Reader::new(text.as_ref());
        let mut dump = Self::default();
        let mut open: Option<OpenTable> = None;
        let mut seen = HashSet::new();
        while let Some(line) = reader.next() {
            match &mut open {
                None => {
                    if line.text.is_empty() || line.text.starts_with('#') {
                        dump.trailing.push(line.text.into_owned());
                    } else if let Some(name) = line.text.strip_prefix('*') {
                        let name =
                            TableName::new(name.trim_end()).map_err(|e| line.wrong_because("bad table name", e))?;
                        if !seen.insert(name.clone()) {
                            return Err(line.wrong("the table is given twice"));
                        }
                        let mut table = Table::new(name);
                        table.leading.append(&mut dump.trailing);
                        open = Some(OpenTable { table, last: None });
                    } else {
                        return Err(line.wrong("expected a table (\"*name\"), a comment or an empty line"));
                    }
                }
                Some(table) => {
                    if line.text.trim_end() == "COMMIT" {
                        dump.tables.extend(open.take().map(|o| o.table));
                    } else {
                        table.line(line, &mut reader)?;
                    }
                }
            }
        }
        match open {
            None => Ok(dump),
            Some(open) => Err(Error::new(
                ErrorKind::Parse,
                format!("text ends at line {} inside table {}: COMMIT is missing", reader.number, open.table.name()),
            )),
        }
    }
}

/// A table whose `COMMIT` has not been read yet.
struct OpenTable {
    table: Table,
    /// The chain of the previous rule, which is usually that of the next one.
    last: Option<ChainName>,
}

impl OpenTable {
    fn line(&mut self, line: Line<'_>, reader: &mut Reader<'_>) -> Result<(), Error> {
        if line.text.is_empty() || line.text.starts_with('#') {
            self.table.leading.push(line.text.into_owned());
            return Ok(());
        }
        if let Some(rest) = line.text.strip_prefix(':') {
            let chain = chain_line(rest, &line)?;
            return match self.table.insert(chain) {
                None => Ok(()),
                Some(_) => Err(line.wrong("the chain is given twice")),
            };
        }
        let (counters, rest) = match line.text.split_once("] ") {
            Some((front, rest)) if front.starts_with('[') => {
                let counters = Counters::parse(&format!("{front}]"));
                (Some(counters.ok_or_else(|| line.wrong("expected counters, [packets:bytes]"))?), rest)
            }
            _ => (None, line.text.as_ref()),
        };
        let Some(command) = rest.strip_prefix("-A ") else {
            return Err(line.wrong("expected \":CHAIN\", \"-A CHAIN\" or COMMIT"));
        };
        let (chain, behind) = command.split_once(' ').map_or((command, None), |(chain, behind)| (chain, Some(behind)));
        let arguments = behind.unwrap_or_default();
        let known = self.last.as_ref().is_some_and(|l| l.as_str() == chain);
        if !known {
            self.last = self.table.chain(chain).map(|c| c.name.clone());
        }
        let Some(target) = self.table.chain_mut(chain) else {
            return Err(line.wrong("the rule's chain has no \":CHAIN\" line before it"));
        };
        let mut lossy = line.lossy;
        let mut words = split(arguments, Reading::Save);
        let mut source = Cow::Borrowed(arguments);
        if words.open_quote
            && let Some(more) = reader.continuation()
        {
            lossy |= more.lossy;
            source = Cow::Owned(format!("{arguments}\n{}", more.text));
            words = split(&source, Reading::Save);
        }
        let rule = Rule::observed(words.tokens, counters).remember(behind.map(|_| source.as_ref()), lossy);
        target.rules.push(rule);
        Ok(())
    }
}

/// Parses `CHAIN POLICY [p:b]`, the part of a chain line after its colon.
fn chain_line(rest: &str, line: &Line<'_>) -> Result<Chain, Error> {
    let mut words = rest.split([' ', '\t']).filter(|w| !w.is_empty());
    let (Some(name), Some(policy), counters, None) = (words.next(), words.next(), words.next(), words.next()) else {
        return Err(line.wrong("expected \":CHAIN POLICY [packets:bytes]\""));
    };
    if rest.starts_with([' ', '\t']) || !(policy == "-" || policy.bytes().all(|b| b.is_ascii_uppercase())) {
        return Err(line.wrong("expected \":CHAIN POLICY [packets:bytes]\""));
    }
    let name = ChainName::observed(name).map_err(|e| line.wrong_because("bad chain name", e))?;
    let counters = match counters {
        None => None,
        Some(word) => Some(Counters::parse(word).ok_or_else(|| line.wrong("expected counters, [packets:bytes]"))?),
    };
    Ok(Chain { name, policy: Policy::parse(policy), counters, rules: Vec::new() })
}

struct Line<'t> {
    number: usize,
    text: Cow<'t, str>,
    lossy: bool,
}

impl Line<'_> {
    fn wrong(&self, why: &str) -> Error {
        let why = if self.text.ends_with('\r') { "the text has Windows line ends (CR LF)" } else { why };
        Error::new(ErrorKind::Parse, format!("line {}: {why}: \"{}\"", self.number, excerpt(&self.text)))
    }

    fn wrong_because(&self, why: &str, cause: Error) -> Error {
        self.wrong(why).with_source(cause)
    }
}

/// Lines of a text, separated by `\n` alone: programs treat a carriage return as an ordinary byte.
struct Reader<'t> {
    rest: &'t [u8],
    number: usize,
}

impl<'t> Reader<'t> {
    fn new(text: &'t [u8]) -> Self {
        Self { rest: text, number: 0 }
    }

    fn next(&mut self) -> Option<Line<'t>> {
        if self.rest.is_empty() {
            return None;
        }
        let mut halves = self.rest.splitn(2, |b| *b == b'\n');
        let line = halves.next().unwrap_or_default();
        self.rest = halves.next().unwrap_or_default();
        self.number = self.number.saturating_add(1);
        let text = String::from_utf8_lossy(line);
        let lossy = matches!(text, Cow::Owned(_));
        Some(Line { number: self.number, text, lossy })
    }

    /// Takes the following lines up to the one that closes a quotation, if one does. Otherwise consumes nothing.
    fn continuation(&mut self) -> Option<Line<'static>> {
        let (rest, number) = (self.rest, self.number);
        let mut lines = Vec::new();
        let mut lossy = false;
        for _ in 0..MAX_CONTINUATION {
            let Some(line) = self.next() else { break };
            lossy |= line.lossy;
            let closed = closes_quotation(&line.text);
            lines.push(line.text);
            if closed {
                return Some(Line { number, text: lines.join("\n").into(), lossy });
            }
        }
        (self.rest, self.number) = (rest, number);
        None
    }
}

/// Whether a line inside a quotation has a closing quote where the programs would put one.
fn closes_quotation(line: &str) -> bool {
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '"' => return matches!(chars.next(), None | Some(' ')),
            _ => {}
        }
    }
    false
}

/// The text of `iptables-save`, with counters before rules that have them.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.leading {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "*{}", self.name())?;
        for chain in self.chains() {
            write!(f, ":{} ", chain.name)?;
            match &chain.policy {
                Some(policy) => write!(f, "{policy}")?,
                None => f.write_str("-")?,
            }
            match chain.counters {
                Some(counters) => writeln!(f, " {counters}")?,
                None => writeln!(f)?,
            }
        }
        let mut line = String::new();
        for chain in self.chains() {
            for rule in &chain.rules {
                line.clear();
                if let Some(counters) = rule.counters {
                    write!(f, "{counters} ")?;
                }
                rule.write_source(&mut line);
                writeln!(f, "-A {}{line}", chain.name)?;
            }
        }
        writeln!(f, "COMMIT")
    }
}

/// The text of `iptables-save`.
impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for table in &self.tables {
            table.fmt(f)?;
        }
        for line in &self.trailing {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}
