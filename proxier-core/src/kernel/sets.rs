//! Sets over [`ipset::Client`].

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;

use ipset::{
    Client, Element, Entry, EntryReport, Error, ErrorKind, Family, IfAbsent, IfPresent, SetFlags, SetName, SetSpec,
};

use super::error::{all, errno_kind, io_kind, skipped, unknown};
use super::lazy::Lazy;
use super::release::until_released;
use crate::ports::{ItemFailures, NamedSet, PortError, PortErrorKind, Result, Sets};

/// Manages sets through [`ipset::Client`].
#[doc(hidden)]
#[derive(Debug)]
pub struct SetsPort {
    client: Lazy<Client, Error>,
    /// Number of pauses for the next set that is in use.
    pauses: u32,
}

/// Pauses for a set to which rules of `iptables-nft` referred: two seconds in total; on an idle host milliseconds are
/// enough.
const PAUSES: u32 = 200;

fn kind_of(error: &Error) -> PortErrorKind {
    match error.kind() {
        ErrorKind::SetMissing
        | ErrorKind::SecondSetMissing
        | ErrorKind::ElementMissing
        | ErrorKind::MemberMissing
        | ErrorKind::PositionMissing => PortErrorKind::NotFound,
        ErrorKind::SetExists | ErrorKind::ElementExists => PortErrorKind::AlreadyExists,
        ErrorKind::SetFull | ErrorKind::TooManySets => PortErrorKind::Full,
        ErrorKind::InUse | ErrorKind::NoMemory | ErrorKind::Interrupted => PortErrorKind::Busy,
        ErrorKind::TypeUnsupported
        | ErrorKind::OptionUnsupported(_)
        | ErrorKind::ProtocolMismatch
        | ErrorKind::Unsupported => PortErrorKind::Unavailable,
        ErrorKind::Permission => PortErrorKind::Permission,
        ErrorKind::TypeMismatch
        | ErrorKind::MemberIsList
        | ErrorKind::OutOfRange
        | ErrorKind::ExtensionMissing(_)
        | ErrorKind::OptionInvalid(_)
        | ErrorKind::EntryInvalid(_)
        | ErrorKind::Invalid(_)
        | ErrorKind::Line(..) => PortErrorKind::Invalid,
        ErrorKind::Timeout | ErrorKind::StateUnknown => PortErrorKind::Unknown,
        ErrorKind::Io => io_kind(error),
        ErrorKind::Other(errno) => errno_kind(*errno),
        _ => PortErrorKind::Other,
    }
}

fn port_error(error: &Error) -> PortError {
    PortError::from_error(kind_of(error), error)
}

/// Whether the next call should open a new socket.
fn is_broken(error: &Error) -> bool {
    use ErrorKind::{Io, Malformed, StateUnknown, Timeout};
    matches!(error.kind(), Io | Malformed(_) | StateUnknown | Timeout)
}

fn foreign(set: NamedSet, wanted: &SetSpec, found: &str) -> PortError {
    let family = match wanted.options.family {
        _ if !wanted.set_type.has_family() => "",
        Family::Inet6 => " family inet6",
        Family::Inet => " family inet",
    };
    PortError::new(
        PortErrorKind::Invalid,
        format!("set {set} exists but is {found} instead of {}{family}; destroy or rename it", wanted.set_type),
    )
}

/// Why a set of the right type cannot hold the desired entries.
fn unfit(wanted: &SetSpec, found: &SetSpec) -> Option<&'static str> {
    let (want, have) = (&wanted.options, &found.options);
    if have.timeout.is_some() {
        Some("lets its entries time out")
    } else if have.netmask.is_some() || have.bitmask.is_some() {
        Some("masks its entries")
    } else if have.flags.contains(SetFlags::FORCEADD) {
        Some("throws entries out when it is full (forceadd)")
    } else if wanted.set_type.is_bitmap() && have.range != want.range {
        Some("does not hold every port")
    } else {
        None
    }
}

impl SetsPort {
    pub fn new(open: impl FnMut() -> Result<Client, Error> + Send + 'static) -> Self {
        SetsPort { client: Lazy::new(open), pauses: PAUSES }
    }

    fn call<T>(&mut self, ask: impl FnOnce(&mut Client) -> Result<T, Error>) -> Result<T> {
        self.client.ask(ask, is_broken).map_err(|error| port_error(&error))
    }

    /// Destroys a set; not an error if it is missing. Waits two seconds for a set in use, but not again until another
    /// was destroyed.
    fn destroy_named(&mut self, name: &SetName) -> Result<()> {
        let is_in_use = |outcome: &Result<()>| outcome.as_ref().is_err_and(|error| error.kind() == PortErrorKind::Busy);
        let outcome = until_released(self.pauses, is_in_use, || self.call(|client| client.destroy_set(name)));
        match outcome.as_ref().map_err(PortError::kind) {
            Ok(()) => self.pauses = PAUSES,
            Err(PortErrorKind::Busy) => self.pauses = 0,
            Err(PortErrorKind::NotFound) => return Ok(()),
            Err(_) => {}
        }
        outcome
    }

    /// Whether the set exists with our type and family.
    fn exists(&mut self, set: NamedSet, wanted: &SetSpec) -> Result<bool> {
        let header = self.call(|client| match client.set_header(&wanted.name) {
            Err(error) if *error.kind() == ErrorKind::SetMissing => Ok(None),
            header => header.map(Some),
        })?;
        match header {
            None => Ok(false),
            Some((set_type, family, _))
                if set_type == wanted.set_type
                    && (family == wanted.options.family || !wanted.set_type.has_family()) =>
            {
                Ok(true)
            }
            Some((set_type, family, _)) => Err(foreign(set, wanted, &format!("{set_type} family {family}"))),
        }
    }

    /// Builds a set under another name, and renames it once complete.
    fn create_filled(&mut self, wanted: &SetSpec, entries: &[Entry]) -> Result<()> {
        let mut shadow = wanted.clone();
        let stem = wanted.name.as_str();
        let name = format!("{}~{:08x}", stem.get(..SHADOW_STEM).unwrap_or(stem), 0);
        shadow.name = name.parse().map_err(|error| PortError::from_error(PortErrorKind::Invalid, &error))?;
        match self.call(|client| client.destroy_set(&shadow.name)) {
            Err(error) if error.kind() != PortErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.call(|client| client.create_set(&shadow))?;
        let filled = self.call(|client| client.add_entries(&shadow.name, entries, IfPresent::Update).into_result());
        filled.and_then(|_| self.call(|client| client.rename_set(&shadow.name, &wanted.name))).inspect_err(|_| {
            // Report the first error. The next attempt, or destroying the set, removes what is left over.
            let _left_over = self.call(|client| client.destroy_set(&shadow.name));
        })
    }

    fn write(
        &mut self,
        set: NamedSet,
        elements: &[&Element],
        write: impl FnOnce(&mut Client, &SetName, &[Entry]) -> EntryReport,
        doing: &str,
    ) -> ItemFailures {
        if elements.is_empty() {
            return ItemFailures::new();
        }
        let name = match set.spec_for(0) {
            Ok(spec) => spec.name,
            Err(error) => return all(elements.len(), &error),
        };
        let entries: Vec<Entry> = elements.iter().map(|element| Entry::new((*element).clone())).collect();
        let report = match self.client.get() {
            Ok(client) => write(client, &name, &entries),
            Err(error) => return all(elements.len(), &port_error(&error)),
        };
        if report.stopped.iter().chain(report.failures.iter().map(|failure| &failure.error)).any(is_broken) {
            self.client.close();
        }
        item_failures(&report, elements, |element| format!("{doing} {element} of set {set}"))
    }
}

/// One failure for each entry that was not written.
fn item_failures(report: &EntryReport, elements: &[&Element], doing: impl Fn(Cow<'_, str>) -> String) -> ItemFailures {
    let doing = |index: usize| doing(elements.get(index).map_or(Cow::Borrowed("an entry"), |e| e.to_string().into()));
    let refused = report.failures.iter().map(|failure| (failure.index, port_error(&failure.error)));
    let mut failures: ItemFailures = refused.collect();
    // An error that concerns the whole set is the reason for all later entries.
    let stopped = report.stopped.as_ref().map(port_error);
    let last = report.failures.last().map(|failure| port_error(&failure.error));
    let cause = last.as_ref().filter(|_| stopped.is_none()).map(PortError::kind);
    let why = stopped.or(last);
    let indices = |ranges: &[std::ops::Range<usize>]| ranges.iter().cloned().flatten().collect::<Vec<usize>>();
    for index in indices(&report.not_attempted) {
        let error = match (cause, &why) {
            (Some(kind), Some(why)) => PortError::new(kind, format!("{}: {why}", doing(index))),
            _ => skipped(doing(index), why.as_ref()),
        };
        failures.entry(index).or_insert(error);
    }
    for index in indices(&report.unknown) {
        failures.entry(index).or_insert_with(|| unknown(doing(index)));
    }
    failures
}

impl Sets for SetsPort {
    fn may_exist(&mut self) -> bool {
        // A built-in module is listed too, because it has a parameter.
        let modules = Path::new("/sys/module");
        modules.join("ip_set").exists() || !modules.exists()
    }

    fn entries(&mut self, set: NamedSet) -> Result<Option<BTreeSet<Element>>> {
        let wanted = set.spec_for(0)?;
        let found = self.call(|client| match client.get_set(&wanted.name) {
            Err(error) if *error.kind() == ErrorKind::SetMissing => Ok(None),
            found => found.map(Some),
        })?;
        let Some(found) = found else { return Ok(None) };
        let same_family = found.spec.options.family == wanted.options.family || !wanted.set_type.has_family();
        if found.spec.set_type != wanted.set_type || !same_family {
            let found = format!("{} family {}", found.type_name, found.spec.options.family);
            return Err(foreign(set, &wanted, &found));
        }
        if let Some(why) = unfit(&wanted, &found.spec) {
            let message = format!("set {set} {why}, so it cannot hold Services; destroy it, it is made anew");
            return Err(PortError::new(PortErrorKind::Invalid, message));
        }
        Ok(Some(found.entries.into_iter().map(|entry| entry.element).collect()))
    }

    fn create(&mut self, set: NamedSet, room: usize) -> Result<()> {
        let wanted = set.spec_for(room)?;
        // Twice: another program may create it meanwhile.
        for _ in 0..2 {
            if self.exists(set, &wanted)? {
                return Ok(());
            }
            match self.call(|client| client.create_set(&wanted)) {
                Err(error) if error.kind() == PortErrorKind::AlreadyExists => {}
                outcome => return outcome,
            }
        }
        Err(PortError::new(PortErrorKind::Busy, format!("set {set} appears and disappears while it is created")))
    }

    fn add(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures {
        self.write(
            set,
            elements,
            |client, name, entries| client.add_entries(name, entries, IfPresent::Update),
            "adding entry",
        )
    }

    fn delete(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures {
        let mut failures = self.write(
            set,
            elements,
            |client, name, entries| client.delete_entries(name, entries, IfAbsent::Ignore),
            "deleting entry",
        );
        // A set that does not exist has no entries.
        failures.retain(|_, error| error.kind() != PortErrorKind::NotFound);
        failures
    }

    fn replace(&mut self, set: NamedSet, elements: &[&Element]) -> Result<()> {
        let mut wanted = set.spec_for(elements.len())?;
        let entries: Vec<Entry> = elements.iter().map(|element| Entry::new((*element).clone())).collect();
        // Twice: another program may create it meanwhile.
        for _ in 0..2 {
            if self.exists(set, &wanted)? {
                break;
            }
            match self.create_filled(&wanted, &entries) {
                Err(error) if error.kind() == PortErrorKind::AlreadyExists => {}
                outcome => return outcome,
            }
        }
        // Chosen for the number of entries, with headroom; a larger set keeps its size.
        wanted.options.hashsize = None;
        self.call(|client| client.sync(&wanted, &entries)).map(drop)
    }

    fn has_unfinished(&mut self, set: NamedSet) -> Result<bool> {
        let wanted = set.spec_for(0)?;
        Ok(self.call(Client::list_names)?.iter().any(|name| is_shadow(name, &wanted.name)))
    }

    fn destroy(&mut self, set: NamedSet) -> Result<()> {
        let wanted = set.spec_for(0)?;
        if self.exists(set, &wanted)? {
            self.destroy_named(&wanted.name)?;
        }
        // A process that was killed while it replaced a large set left the new one behind.
        for name in self.call(Client::list_names)?.iter().filter(|name| is_shadow(name, &wanted.name)) {
            self.destroy_named(name)?;
        }
        Ok(())
    }
}

/// Bytes of a set's name that are part of its temporary set's name.
const SHADOW_STEM: usize = 21;

/// Whether this is the name of a temporary set that [`Client::sync`], or this port, builds for another.
fn is_shadow(name: &SetName, of: &SetName) -> bool {
    let Some((stem, digits)) = name.as_str().rsplit_once('~') else { return false };
    let hex = digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    hex && stem == of.as_str().get(..SHADOW_STEM).unwrap_or(of.as_str())
}
