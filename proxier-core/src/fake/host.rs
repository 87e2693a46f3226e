//! The iptables programs of the fake kernel, connected to its sets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipset::SetName;
use ipset::fake::FakeIpset;
use iptables::fake::FakeHost;
use iptables::{Backend, Error, ErrorKind, Family, Invocation, LockGuard, Output, Runner};

use super::control::Control;
use super::shared::Shared;

struct Inner {
    host: FakeHost,
    /// Number of rules that refer to each set, as last reported to `sets`.
    references: BTreeMap<String, u32>,
    sets: FakeIpset,
    listing: Option<ipset::Client>,
    /// Increases with everything that may have changed rules.
    generation: u64,
}

/// A [`FakeHost`] whose rules refer to sets of [`FakeIpset`]: a rule can only refer to an existing set, and a set with
/// references cannot be destroyed.
#[derive(Clone)]
pub(super) struct Host {
    inner: Shared<Inner>,
    control: Shared<Control>,
}

fn lost(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, format!("the fake host: {why}"))
}

impl Host {
    pub(super) fn new(host: FakeHost, sets: FakeIpset, control: Shared<Control>) -> Self {
        let inner = Inner { host, references: BTreeMap::new(), sets, listing: None, generation: 0 };
        Host { inner: Shared::new(inner), control }
    }

    pub(super) fn generation(&self) -> u64 {
        self.inner.lock().generation
    }

    pub(super) fn dump(&self) -> BTreeMap<(Family, Backend), String> {
        let inner = self.inner.lock();
        let mut dump = BTreeMap::new();
        for (family, backend) in everything() {
            let text = inner.host.dump(family, backend);
            if !text.is_empty() {
                dump.insert((family, backend), text);
            }
        }
        dump
    }

    /// Lets a test change the rules, then records which sets they refer to.
    pub(super) fn with<T>(&self, change: impl FnOnce(&FakeHost) -> T) -> T {
        let mut inner = self.inner.lock();
        let answer = change(&inner.host);
        inner.note_references(1);
        answer
    }
}

fn everything() -> impl Iterator<Item = (Family, Backend)> {
    Family::ALL.into_iter().flat_map(|family| Backend::ALL.into_iter().map(move |backend| (family, backend)))
}

impl Inner {
    fn learn_sets(&mut self) -> Result<(), Error> {
        let client = match self.listing.take() {
            Some(client) => client,
            None => ipset::Client::with_transport(self.sets.transport()).map_err(lost)?,
        };
        let names = self.listing.insert(client).list_names().map_err(lost)?;
        self.host.set_ipsets(names.iter().map(|name| name.as_str().to_owned()).collect());
        Ok(())
    }

    /// Counts writes, and reports to the sets how many rules refer to each.
    fn note_references(&mut self, writes: u64) {
        self.generation = self.generation.saturating_add(writes);
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for (family, backend) in everything() {
            let text = self.host.dump(family, backend);
            let mut words = text.split_ascii_whitespace();
            while let Some(word) = words.next() {
                if word == "--match-set"
                    && let Some(name) = words.next()
                {
                    let count = counts.entry(name.to_owned()).or_default();
                    *count = count.saturating_add(1);
                }
            }
        }
        let names: BTreeSet<&String> = counts.keys().chain(self.references.keys()).collect();
        for name in names {
            let (new, old) = (counts.get(name).copied().unwrap_or(0), self.references.get(name).copied().unwrap_or(0));
            let Ok(name) = SetName::new(name) else { continue };
            for _ in old..new {
                self.sets.add_reference(&name);
            }
            for _ in new..old {
                self.sets.remove_reference(&name);
            }
        }
        self.references = counts;
    }
}

impl Runner for Host {
    fn find(&self, program: &str) -> Option<PathBuf> {
        self.inner.lock().host.find(program)
    }

    fn run(&self, invocation: &Invocation) -> Result<Output, Error> {
        let mut inner = self.inner.lock();
        let testing = invocation.args.iter().any(|arg| arg == "--test" || arg == "--version");
        if !invocation.program.to_string_lossy().ends_with("-restore") || testing {
            return inner.host.run(invocation);
        }
        if invocation.stdin.contains("--match-set") {
            inner.learn_sets()?;
        }
        // Each table is one write, so a process may die with only the first one written.
        let mut allowed = invocation.clone();
        allowed.stdin = String::new();
        let mut died = false;
        for table in invocation.stdin.split_inclusive("COMMIT\n") {
            if table.contains("COMMIT\n") && !self.control.lock().spend() {
                died = true;
                break;
            }
            allowed.stdin.push_str(table);
        }
        let output = if allowed.stdin.is_empty() { Ok(Output::default()) } else { inner.host.run(&allowed) };
        let writes = allowed.stdin.matches("COMMIT\n").count();
        inner.note_references(writes.try_into().unwrap_or(u64::MAX));
        if died { Err(lost("the process has crashed")) } else { output }
    }

    fn lock_path(&self) -> &Path {
        Path::new(iptables::LOCK_PATH)
    }

    fn lock(&self, wait: Duration) -> Result<LockGuard, Error> {
        self.inner.lock().host.lock(wait)
    }
}
