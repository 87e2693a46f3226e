//! Reads and writes the text of `ipvsadm -S -n`.
//!
//! # Example
//!
//! ```
//! use ipvs::text::Ruleset;
//!
//! let rules: Ruleset = "
//!     -A -t 10.0.0.1:80 -s rr -p 300     # two web servers
//!     -a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 3
//!     --add-server --tcp-service 10.0.0.1:80 --real-server 10.1.0.2:8080 --masquerading
//! "
//! .parse()?;
//! assert_eq!(
//!     rules.to_string(),
//!     "-A -t 10.0.0.1:80 -s rr -p 300\n\
//!      -a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 3\n\
//!      -a -t 10.0.0.1:80 -r 10.1.0.2:8080 -m -w 1\n"
//! );
//! # Ok::<(), ipvs::text::Error>(())
//! ```
//!
//! [`Ruleset`] is a whole table, such as a [`Snapshot`] without its counters. [`parse`] reads any list of changes, and
//! [`parse_batch`] turns one into a [`Batch`].
//!
//! # What is written
//!
//! The output of `ipvsadm -S -n` 1.31, byte for byte, except where ipvsadm loses information:
//!
//! | | `ipvsadm -S -n` | here |
//! |---|---|---|
//! | thresholds | left out | `-x 10 -y 5` after the weight; ipvsadm reads it |
//! | order | sorted by differences that overflow | the order of the entries; [`Ruleset::sort`] sorts by key |
//! | marks above 2147483647 | negative, which it cannot read | unchanged |
//! | `flag-3` of `sh` and `mh` | left out | `flag-3`; ipvsadm reads it |
//! | the local method | `-g` | `--forward local` |
//! | bypass and unknown methods | `(null)` | `--forward bypass`, `--forward 5` |
//! | `-g`, `-i` with another port than the virtual server's | `-g`, which it reads with the port changed | `--forward route`, `--forward tunnel` |
//! | other protocols | `--xxx-service`, which it cannot read | `--other-service 47/10.0.0.1:80` |
//! | unknown tunnels, tunnel flags | left out, or outside its own table | `--tun-type 7 --tun-port 1`, `--tun-flags 4`, both checksums |
//!
//! `--forward`, `--other-service` and `--tun-flags` are this crate's own options, so that it can read everything that
//! it writes. ipvsadm refuses them with an error. It also refuses `-p 0` or more than 31 days, port 0 without `-p`, `-o`
//! except for UDP and firewall marks, thresholds above 2147483647, and another address family without a tunnel.
//!
//! # What is read
//!
//! Everything above, and what people write: long options, `--option=value`, `-w5`, any order of options, comments from
//! `#` to the end of a line, empty lines, a leading `ipvsadm`. Missing options have ipvsadm's defaults: scheduler
//! `wlc`, direct routing, weight 1, `-p` 360 seconds (its manual says 300), the virtual server's port for real servers.
//! As in ipvsadm, `-g` and `-i` use the virtual server's port for the real server, even if the text names another.
//!
//! The parser is stricter than ipvsadm where ipvsadm drops a value (`-M` or `--pe` without `-p`). It is more lenient
//! where the kernel is: thresholds and timeouts of any size, `-o` for TCP, an explicit port 0 without `-p`.
//!
//! Host and service names are not looked up.

mod read;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

pub use read::Error;

use crate::batch::{Batch, Operation};
use crate::model::{RealServer, Snapshot, SnapshotEntry, VirtualServer};

/// One line of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Statement {
    /// A change of one virtual or real server: `-A`, `-E`, `-D`, `-Z`, `-a`, `-e`, `-d`.
    Operation(Operation),
    /// Resets all counters: `-Z` alone. See [`Client::zero_all`](crate::Client::zero_all).
    ZeroAll,
    /// Deletes everything: `-C`.
    Clear,
}

impl From<Operation> for Statement {
    fn from(operation: Operation) -> Self {
        Statement::Operation(operation)
    }
}

/// Parses one line.
impl FromStr for Statement {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match parse(text)?.as_slice() {
            [statement] => Ok(*statement),
            other => {
                Err(Error::new(1, other.get(1).map_or("", |_| text), "one command: -A, -E, -D, -C, -Z, -a, -e or -d"))
            }
        }
    }
}

/// Parses a text with one statement per line.
///
/// # Errors
/// The first mistake, with its line. Partial results are never returned.
pub fn parse(text: &str) -> Result<Vec<Statement>, Error> {
    lines(text).filter_map(|(number, line)| read::statement(number, line).transpose()).collect()
}

/// Parses changes to virtual and real servers, to be carried out together with [`Client::run`](crate::Client::run).
///
/// # Errors
/// The first mistake, with its line. `-C` and `-Z` alone, which are not an [`Operation`], are mistakes too.
pub fn parse_batch(text: &str) -> Result<Batch, Error> {
    let mut batch = Batch::new();
    for (number, line) in lines(text) {
        match read::statement(number, line)? {
            None => {}
            Some(Statement::Operation(operation)) => batch.push(operation),
            Some(all @ (Statement::Clear | Statement::ZeroAll)) => {
                let expected = "a change of one virtual or real server: this is about all of them";
                return Err(Error::new(number, all, expected));
            }
        }
    }
    Ok(batch)
}

/// Parses the text of [`parse_batch`].
impl FromStr for Batch {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse_batch(text)
    }
}

fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.split('\n'))
}

/// A virtual server and its real servers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Entry {
    /// The virtual server.
    pub virtual_server: VirtualServer,
    /// Real servers of the virtual server.
    #[cfg_attr(feature = "serde", serde(default))]
    pub real_servers: Vec<RealServer>,
}

impl Entry {
    /// A virtual server with these real servers.
    pub fn new(virtual_server: VirtualServer, real_servers: impl IntoIterator<Item = RealServer>) -> Self {
        Entry { virtual_server, real_servers: real_servers.into_iter().collect() }
    }
}

/// A table of virtual servers with their real servers, without counters. This is what `ipvsadm -S -n` prints, and the
/// desired state of [`Client::sync`](crate::Client::sync).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct Ruleset {
    /// The virtual servers in their order.
    pub entries: Vec<Entry>,
}

impl Ruleset {
    /// An empty table.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a virtual server with its real servers. Duplicates are detected when the table is used.
    pub fn push(
        &mut self,
        virtual_server: VirtualServer,
        real_servers: impl IntoIterator<Item = RealServer>,
    ) -> &mut Self {
        self.entries.push(Entry::new(virtual_server, real_servers));
        self
    }

    /// The operations that create this table from an empty one, in order.
    pub fn operations(&self) -> impl Iterator<Item = Operation> {
        self.entries.iter().flat_map(|Entry { virtual_server, real_servers }| {
            let add = Operation::AddVirtualServer(*virtual_server);
            let key = virtual_server.key;
            std::iter::once(add).chain(real_servers.iter().map(move |real| Operation::AddRealServer(key, *real)))
        })
    }

    /// Sorts virtual servers, and the real servers of each, by key.
    pub fn sort(&mut self) {
        self.entries.sort_by_key(|entry| entry.virtual_server.key);
        for entry in &mut self.entries {
            entry.real_servers.sort_by_key(|real| real.key);
        }
    }
}

impl From<&Snapshot> for Ruleset {
    fn from(snapshot: &Snapshot) -> Self {
        let entries = snapshot
            .entries
            .iter()
            .map(|entry| Entry {
                virtual_server: entry.virtual_server.server,
                real_servers: entry.real_servers.iter().map(|observed| observed.server).collect(),
            })
            .collect();
        Ruleset { entries }
    }
}

/// The table as a snapshot without connections and counters, for [`Ruleset::diff`] with a saved text and for tests.
impl From<&Ruleset> for Snapshot {
    fn from(rules: &Ruleset) -> Self {
        let entries = rules
            .entries
            .iter()
            .map(|entry| SnapshotEntry {
                virtual_server: entry.virtual_server.into(),
                real_servers: entry.real_servers.iter().map(|real| (*real).into()).collect(),
            })
            .collect();
        Snapshot { entries }
    }
}

/// The batch that creates this table from an empty one.
impl From<&Ruleset> for Batch {
    fn from(rules: &Ruleset) -> Self {
        rules.operations().collect()
    }
}

/// Parses a table: optional `-C` lines, then `-A` and `-a` lines.
///
/// A real server may come anywhere after its virtual server.
impl FromStr for Ruleset {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut rules = Ruleset::default();
        let mut places = BTreeMap::new();
        let mut real_servers = BTreeSet::new();
        for (number, line) in lines(text) {
            let Some(statement) = read::statement(number, line)? else { continue };
            let error = |expected| Err(Error::new(number, statement, expected));
            match statement {
                Statement::Operation(Operation::AddVirtualServer(virtual_server)) => {
                    if places.insert(virtual_server.key, rules.entries.len()).is_some() {
                        return error("each virtual server once");
                    }
                    rules.entries.push(Entry { virtual_server, real_servers: Vec::new() });
                }
                Statement::Operation(Operation::AddRealServer(key, real)) => {
                    let entry = places.get(&key).and_then(|place: &usize| rules.entries.get_mut(*place));
                    let Some(entry) = entry else { return error("a virtual server added by a line before") };
                    if !real_servers.insert((key, real.key)) {
                        return error("each real server once for a virtual server");
                    }
                    entry.real_servers.push(real);
                }
                Statement::Clear if rules.entries.is_empty() => {}
                _ => return error("-A or -a: a table is additions only"),
            }
        }
        Ok(rules)
    }
}
