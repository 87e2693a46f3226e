//! Writes entries: many per message, with each failure named.

use std::borrow::Borrow;
use std::ops::Range;

use netlink_batch::Outcome;
use netlink_batch::header::NLM_F_EXCL;

use crate::client::Client;
use crate::cmd::entries::{self, Operation};
use crate::cmd::{HEADER, message_type, put_protocol};
use crate::error::{Error, ErrorKind};
use crate::model::{Entry, SetName, SetType};

/// What to do with an entry that is already in the set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum IfPresent {
    /// Report [`ErrorKind::ElementExists`].
    #[default]
    Refuse,
    /// Update timeout, comment and other options. Counters are kept unless given.
    Update,
}

/// What to do with an entry that is not in the set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum IfAbsent {
    /// Report [`ErrorKind::ElementMissing`].
    #[default]
    Refuse,
    /// Count it as deleted.
    Ignore,
}

/// One entry that the kernel refused.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EntryFailure {
    /// Index in the given entries.
    pub index: usize,
    /// Why it was refused.
    pub error: Error,
}

/// Result of a write of many entries.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
#[must_use = "failures are reported only here"]
pub struct EntryReport {
    /// Number of entries carried out. A range counts as one.
    pub applied: usize,
    /// Entries that the kernel refused, in order. Entries after a refused one are still carried out, unless the reason
    /// concerns the whole set.
    pub failures: Vec<EntryFailure>,
    /// Ranges of entries that were not attempted, because an earlier error concerned the whole set (it is missing or
    /// full).
    pub not_attempted: Vec<Range<usize>>,
    /// Ranges of entries whose answers were lost. They may or may not have been carried out.
    pub unknown: Vec<Range<usize>>,
    /// Why the write stopped early, if answers were lost.
    pub stopped: Option<Error>,
}

impl EntryReport {
    /// Whether every entry was carried out.
    pub fn is_done(&self) -> bool {
        self.failures.is_empty() && self.stopped.is_none()
    }

    /// Returns the number of entries carried out if there was no failure.
    ///
    /// # Errors
    /// The first failure.
    pub fn into_result(self) -> Result<usize, Error> {
        match (self.stopped, self.failures.into_iter().next()) {
            (None, None) => Ok(self.applied),
            (Some(error), _) | (None, Some(EntryFailure { error, .. })) => Err(error),
        }
    }
}

impl Client {
    /// Adds one entry.
    ///
    /// # Errors
    /// [`ErrorKind::ElementExists`] if it exists, [`ErrorKind::SetMissing`], [`ErrorKind::SetFull`],
    /// [`ErrorKind::OutOfRange`], [`ErrorKind::ExtensionMissing`], [`ErrorKind::EntryInvalid`], ...
    #[doc(alias = "IPSET_CMD_ADD")]
    pub fn add_entry(&mut self, set: &SetName, entry: &Entry) -> Result<(), Error> {
        self.add_entries(set, &[entry], IfPresent::Refuse).into_result().map(|_| ())
    }

    /// Adds many entries, hundreds per message and many messages per send.
    ///
    /// Entries are added in order. A refused entry does not stop the following ones, unless the reason concerns the
    /// whole set. A range may be added in part.
    pub fn add_entries<E: Borrow<Entry>>(&mut self, set: &SetName, entries: &[E], present: IfPresent) -> EntryReport {
        let flags = if present == IfPresent::Refuse { NLM_F_EXCL } else { 0 };
        self.write(Operation::Add, set, entries, flags)
    }

    /// Deletes one entry. Its options are ignored.
    ///
    /// # Errors
    /// [`ErrorKind::ElementMissing`] if it does not exist, [`ErrorKind::SetMissing`], ...
    #[doc(alias = "IPSET_CMD_DEL")]
    pub fn delete_entry(&mut self, set: &SetName, entry: &Entry) -> Result<(), Error> {
        self.delete_entries(set, &[entry], IfAbsent::Refuse).into_result().map(|_| ())
    }

    /// Deletes many entries, in the same way as [`Client::add_entries`].
    pub fn delete_entries<E: Borrow<Entry>>(&mut self, set: &SetName, entries: &[E], absent: IfAbsent) -> EntryReport {
        let flags = if absent == IfAbsent::Refuse { NLM_F_EXCL } else { 0 };
        self.write(Operation::Delete, set, entries, flags)
    }

    fn write<E: Borrow<Entry>>(
        &mut self,
        operation: Operation,
        set: &SetName,
        entries: &[E],
        flags: u16,
    ) -> EntryReport {
        let mut report = EntryReport::default();
        if entries.is_empty() {
            return report;
        }
        // Check the form here: the kernel would ignore parts that the set's type does not have, and add the rest.
        let form = match self.form(set) {
            Ok(form) => form,
            Err(error) => {
                let error = error.while_doing(operation.action(set, None));
                report.failures.push(EntryFailure { index: 0, error });
                report.not_attempted.push(1..entries.len());
                return report;
            }
        };
        let mut pending = Vec::new();
        let mut from = 0;
        for (index, entry) in entries.iter().enumerate() {
            if let Err(invalid) = entry.borrow().check(&form) {
                let action = operation.action(set, Some(entry.borrow()));
                report.failures.push(EntryFailure { index, error: Error::new(ErrorKind::Invalid(invalid), action) });
                pending.push(from..index);
                from = index.saturating_add(1);
            }
        }
        pending.push(from..entries.len());
        pending.retain(|range| !range.is_empty());
        let writer = Writer { operation, set, entries, set_type: form.set_type };
        while !pending.is_empty() {
            let (messages, sent) = self.send(&writer, flags, &pending);
            pending.clear();
            if let Some(error) = sent.stopped {
                let action = operation.action(set, None);
                report.stopped =
                    Some(Error::netlink(error, action, |errno| entries::classify(operation, form.set_type, errno)));
            }
            let mut halted = report.stopped.is_some();
            let mut failures = sent.failures.into_iter().peekable();
            for (place, message) in messages.into_iter().enumerate() {
                match failures.next_if(|(failed, _)| *failed == place) {
                    None => report.applied = report.applied.saturating_add(message.len()),
                    Some((_, outcome)) => halted |= writer.settle(message, outcome, &mut report, &mut pending),
                }
            }
            if halted {
                report.not_attempted.append(&mut pending);
            }
        }
        report.failures.sort_unstable_by_key(|failure| failure.index);
        report.not_attempted.sort_unstable_by_key(|range| range.start);
        report
    }

    /// One round: sends everything pending in as few messages as possible. Returns the entries of each message.
    fn send<E: Borrow<Entry>>(
        &mut self,
        writer: &Writer<'_, E>,
        flags: u16,
        pending: &[Range<usize>],
    ) -> (Vec<Range<usize>>, netlink_batch::BatchReport) {
        let protocol = self.protocol;
        let mut messages = Vec::new();
        let mut batch = self.connection.batch();
        for range in pending {
            let mut at = range.start;
            while at < range.end {
                let rest = writer.entries.get(at..range.end).unwrap_or_default();
                let number = u32::try_from(at).unwrap_or(u32::MAX).saturating_add(1);
                let mut written = 0;
                batch.push(message_type(writer.operation.command()), flags, &HEADER.to_bytes(), |out| {
                    put_protocol(out, protocol);
                    written = entries::put_many(out, writer.set, rest, number);
                });
                let end = at.saturating_add(written.max(1)).min(range.end);
                messages.push(at..end);
                at = end;
            }
        }
        (messages, batch.finish())
    }
}

/// Entries being written.
struct Writer<'a, E> {
    operation: Operation,
    set: &'a SetName,
    entries: &'a [E],
    /// The set's type, which decides the meaning of error numbers.
    set_type: SetType,
}

impl<E: Borrow<Entry>> Writer<'_, E> {
    /// Records a message that was not carried out. Returns `true` if the rest would fail for the same reason.
    fn settle(
        &self,
        message: Range<usize>,
        outcome: Outcome,
        report: &mut EntryReport,
        pending: &mut Vec<Range<usize>>,
    ) -> bool {
        let refusal = match outcome {
            Outcome::Refused(refusal) => refusal,
            Outcome::Unsendable(error) => {
                let error = Error::new(ErrorKind::Malformed(error.to_string()), self.operation.action(self.set, None));
                report.failures.push(EntryFailure { index: message.start, error });
                report.not_attempted.push(message.start.saturating_add(1)..message.end);
                return false;
            }
            Outcome::Unknown => {
                report.unknown.push(message);
                return true;
            }
            _ => {
                report.not_attempted.push(message);
                return true;
            }
        };
        let named = entries::failing(&refusal)
            .and_then(|number| usize::try_from(number).ok()?.checked_sub(1))
            .filter(|index| message.contains(index));
        let kind = entries::classify(self.operation, self.set_type, refusal.errno.0);
        // Without a number, the kernel refused the whole message.
        let halt = named.is_none() || entries::concerns_set(&kind);
        let index = named.unwrap_or(message.start);
        let entry = self.entries.get(index).filter(|_| named.is_some()).map(Borrow::borrow);
        let error = Error::refused(kind, self.operation.action(self.set, entry), *refusal);
        report.applied = report.applied.saturating_add(index.saturating_sub(message.start));
        report.failures.push(EntryFailure { index, error });
        let rest = index.saturating_add(1)..message.end;
        if !rest.is_empty() {
            let place = if halt { &mut report.not_attempted } else { pending };
            place.push(rest);
        }
        halt
    }
}
