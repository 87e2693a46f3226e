//! Brings a set to exactly the desired entries.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::time::Duration;

use crate::client::Client;
use crate::cmd::entries::Operation;
use crate::error::{Error, ErrorKind};
use crate::model::{
    Element, Entry, EntryOptions, Identity, ObservedSet, Position, SetFlags, SetName, SetSpec, SetType, SkbMark,
    SkbPriority, Timeout,
};
use crate::precheck;
use crate::write::{IfAbsent, IfPresent};

/// Result of a sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SyncReport {
    /// Entries that were missing.
    pub added: usize,
    /// Entries that had other options.
    pub updated: usize,
    /// Entries that were not desired.
    pub deleted: usize,
    /// Entries that were already as desired.
    pub unchanged: usize,
    /// The set did not exist.
    pub created: bool,
    /// A new set was built and swapped in.
    pub swapped: bool,
    /// The old set after a swap, if it could not be destroyed because a program kept listing it. The next sync that
    /// swaps this set destroys it.
    pub leftover: Option<SetName>,
}

impl SyncReport {
    /// Whether the kernel's state was changed.
    pub fn is_changed(&self) -> bool {
        self.created || self.swapped || self.added != 0 || self.updated != 0 || self.deleted != 0
    }
}

/// Most entries that ranges may expand to in one sync.
const MAX_ENTRIES: usize = 1 << 22;
/// Default of maxelem (`IPSET_DEFAULT_MAXELEM`).
const DEFAULT_MAXELEM: u32 = 65_536;
/// Default of hashsize (`IPSET_DEFAULT_HASHSIZE`).
const DEFAULT_HASHSIZE: u32 = 1024;
/// Attempts if other programs create or destroy the set meanwhile.
const ATTEMPTS: usize = 4;
/// Attempts, and the pause between them, if another program's listing keeps the set busy.
const BUSY_ATTEMPTS: usize = 200;
const BUSY_PAUSE: Duration = Duration::from_millis(5);

impl Client {
    /// Brings a set to exactly the desired entries with the fewest writes. Creates it if it is missing.
    ///
    /// An existing entry that is still desired is never removed: new entries are added before old ones are deleted. If
    /// that would exceed maxelem, or if the set's options differ from those of `set`, a new set is built and swapped in
    /// atomically. Rules that refer to the set stay valid and never see it half filled. The temporary set is named
    /// after the set, with a tilde and eight digits, and destroyed afterwards.
    ///
    /// The comparison covers type, family, masks, range, default timeout and flags. It covers initval and bucketsize if
    /// requested, but not the hash size; a new set gets a suitable one unless `set` has one. `maxelem` is a lower
    /// bound: more desired entries raise it, and a greater existing value is kept. Ranges are expanded, and a network
    /// of prefix length 0 becomes two halves if the type cannot store it. If two desired entries are equal, the last
    /// one counts.
    ///
    /// Of an entry's options, comment, mark, priority, queue and nomatch are compared. Counters are not compared and
    /// survive. A running timeout is kept unless it is longer than desired. An entry desired without a timeout must not
    /// expire: it becomes permanent if the set's default is permanent. Otherwise its timeout restarts with the default
    /// once less than a third of the default is left.
    ///
    /// ```
    /// # #[cfg(feature = "testing")] {
    /// use ipset::{Entry, SetFlags, SetSpec, SetType};
    ///
    /// # let mut client = ipset::Client::with_transport(ipset::fake::FakeIpset::new().transport())?;
    /// let set = SetSpec::new("cluster-ip".parse()?, SetType::HashIpPort);
    /// let entry = |text| Entry::parse(SetType::HashIpPort, text);
    /// client.sync(&set, &[entry("10.96.0.1,tcp:443")?, entry("10.96.0.10,udp:53")?])?;
    ///
    /// let wanted = [entry("10.96.0.10,udp:53")?, entry("10.96.0.10,tcp:53")?];
    /// let report = client.sync(&set, &wanted)?;
    /// assert_eq!((report.added, report.deleted, report.unchanged), (1, 1, 1));
    /// assert!(!client.sync(&set, &wanted)?.is_changed());
    ///
    /// // Another option: a new set is built, filled and swapped in.
    /// let report = client.sync(&set.with_flags(SetFlags::COUNTERS), &wanted)?;
    /// assert!(report.swapped);
    /// # }
    /// # Ok::<(), ipset::Error>(())
    /// ```
    ///
    /// # Errors
    /// Errors that can be detected without the kernel come before any write. [`ErrorKind::Invalid`]: values that no set
    /// of this type supports. [`ErrorKind::ExtensionMissing`]: a timeout, comment, counter or mark in a set without
    /// them. [`ErrorKind::OutOfRange`]: outside a bitmap's range. [`ErrorKind::EntryInvalid`]: the null entry.
    ///
    /// [`ErrorKind::TypeMismatch`] if the set has another type, is referred to, and cannot be swapped;
    /// [`ErrorKind::MemberMissing`] and others for the first refused entry. Even after an error no existing entry that
    /// is still desired is missing, since deletions come last. A set that did not exist is not left behind.
    pub fn sync<E: Borrow<Entry>>(&mut self, set: &SetSpec, wanted: &[E]) -> Result<SyncReport, Error> {
        let invalid = |error| Error::new(ErrorKind::Invalid(error), format!("syncing set {}", set.name));
        set.check().map_err(invalid)?;
        let mut entries = Vec::with_capacity(wanted.len());
        for entry in wanted {
            let room = MAX_ENTRIES.saturating_sub(entries.len());
            entry.borrow().expand_into(set, room, &mut entries).map_err(invalid)?;
        }
        for entry in &entries {
            if let Some(kind) = precheck::refusal(set, entry) {
                return Err(Error::new(kind, Operation::Add.action(&set.name, Some(entry))));
            }
        }
        let target = Target::new(set, entries);
        let mut attempt = 0_usize;
        loop {
            attempt = attempt.saturating_add(1);
            match self.sync_once(&target) {
                // Another program was faster: read again.
                Err(error)
                    if matches!(error.kind(), ErrorKind::SetMissing | ErrorKind::SetExists) && attempt < ATTEMPTS => {}
                outcome => return outcome,
            }
        }
    }

    fn sync_once(&mut self, target: &Target) -> Result<SyncReport, Error> {
        let observed = match self.get_set(&target.spec.name) {
            Ok(observed) => observed,
            Err(error) if *error.kind() == ErrorKind::SetMissing => {
                self.create_set(&target.spec)?;
                return match self.add_entries(&target.spec.name, &target.entries, IfPresent::Update).into_result() {
                    Ok(added) => Ok(SyncReport { added, created: true, ..SyncReport::default() }),
                    Err(error) => {
                        // The first error is reported. A set that is already referred to stays.
                        let _left_over = self.destroy_set(&target.spec.name);
                        Err(error)
                    }
                };
            }
            Err(error) => return Err(error),
        };
        let difference = target.difference(&observed);
        if !target.fits(&observed, &difference) {
            return self.rebuild(target, &observed, &difference);
        }
        let name = &target.spec.name;
        let writes: Vec<&Entry> = difference.add.iter().copied().chain(&difference.update).collect();
        match self.add_entries(name, &writes, IfPresent::Update).into_result() {
            // Another program adds entries too, or expired entries still count.
            Err(error) if *error.kind() == ErrorKind::SetFull => return self.rebuild(target, &observed, &difference),
            outcome => outcome?,
        };
        self.delete_entries(name, &difference.delete, IfAbsent::Ignore).into_result()?;
        Ok(difference.report())
    }

    /// Builds a new set and swaps it in.
    fn rebuild(
        &mut self,
        target: &Target,
        observed: &ObservedSet,
        difference: &Difference<'_>,
    ) -> Result<SyncReport, Error> {
        let name = &target.spec.name;
        let mut shadow = target.spec.clone();
        shadow.name = shadow_name(name)?;
        // Left over from an interrupted sync.
        match patiently(|| self.destroy_set(&shadow.name)) {
            Err(error) if *error.kind() != ErrorKind::SetMissing => return Err(error),
            _ => {}
        }
        self.create_set(&shadow)?;
        let entries = target.with_running_state(observed);
        let filled = self.add_entries(&shadow.name, &entries, IfPresent::Update).into_result();
        let swapped = filled.and_then(|_| patiently(|| self.swap_sets(&shadow.name, name)));
        match swapped {
            Ok(()) => {}
            // Nothing refers to the old set, so a moment without it does no harm.
            Err(error) if *error.kind() == ErrorKind::TypeMismatch && observed.references == 0 => {
                patiently(|| self.destroy_set(name))?;
                self.rename_set(&shadow.name, name)?;
                return Ok(SyncReport { swapped: true, ..difference.report() });
            }
            Err(error) => {
                // The first error is reported. The next attempt removes what is left over.
                let _left_over = patiently(|| self.destroy_set(&shadow.name));
                return Err(error);
            }
        }
        let leftover = match patiently(|| self.destroy_set(&shadow.name)) {
            Err(error) if *error.kind() == ErrorKind::InUse => Some(shadow.name),
            Err(error) if *error.kind() != ErrorKind::SetMissing => return Err(error),
            _ => None,
        };
        Ok(SyncReport { swapped: true, leftover, ..difference.report() })
    }
}

/// Retries while another program lists the set.
fn patiently(mut attempt: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    for _ in 1..BUSY_ATTEMPTS {
        match attempt() {
            Err(error) if *error.kind() == ErrorKind::InUse => std::thread::sleep(BUSY_PAUSE),
            outcome => return outcome,
        }
    }
    attempt()
}

/// The name of the temporary set for `name`. It is always the same, so a leftover can be found.
fn shadow_name(name: &SetName) -> Result<SetName, Error> {
    // FNV-1a distinguishes long names with the same beginning.
    let hash =
        name.as_str().bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let mut end = name.as_str().len().min(21);
    while !name.as_str().is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    let kept = name.as_str().get(..end).unwrap_or_default();
    Ok(SetName::new(&format!("{kept}~{hash:08x}"))?)
}

/// The desired state of a set.
struct Target {
    /// The set's description, with room for the entries.
    spec: SetSpec,
    /// Desired entries, one per element, in the given order.
    entries: Vec<Entry>,
}

/// Changes that bring a set to its target.
#[derive(Default)]
struct Difference<'a> {
    add: Vec<&'a Entry>,
    update: Vec<Entry>,
    delete: Vec<Entry>,
    unchanged: usize,
    /// A difference that only a new set can resolve.
    rebuild: bool,
}

impl Difference<'_> {
    fn report(&self) -> SyncReport {
        SyncReport {
            added: self.add.len(),
            updated: self.update.len(),
            deleted: self.delete.len(),
            unchanged: self.unchanged,
            ..SyncReport::default()
        }
    }
}

impl Target {
    fn new(set: &SetSpec, expanded: Vec<Entry>) -> Self {
        let entries = arranged(last_of_each(set.set_type, expanded));
        let mut spec = set.clone();
        let wanted = u32::try_from(entries.len()).unwrap_or(u32::MAX);
        if spec.set_type.is_hash() && wanted > spec.options.maxelem.unwrap_or(DEFAULT_MAXELEM) {
            // Add headroom, so that the next few entries do not need another new set.
            let roomy = wanted.saturating_add(wanted / 4);
            spec.options.maxelem = Some(roomy.checked_next_power_of_two().unwrap_or(roomy));
        }
        if spec.set_type.is_hash() && spec.options.hashsize.is_none() && wanted > DEFAULT_HASHSIZE {
            // Two entries per bucket. Growing is slow: each time the kernel waits until no packet uses the old table.
            spec.options.hashsize = wanted.div_ceil(2).max(DEFAULT_HASHSIZE).checked_next_power_of_two();
        }
        Target { spec, entries }
    }

    /// Index of each identity's entry.
    fn places(&self) -> HashMap<Identity<'_>, usize> {
        places(self.spec.set_type, &self.entries)
    }

    fn difference(&self, observed: &ObservedSet) -> Difference<'_> {
        let mut difference = Difference::default();
        let places = self.places();
        let identity = |element| Identity::new(self.spec.set_type, element);
        let mut seen = vec![false; self.entries.len()];
        for have in &observed.entries {
            let place = places.get(&identity(&have.element)).copied();
            let Some((place, want)) = place.and_then(|place| Some((place, self.entries.get(place)?))) else {
                difference.delete.push(Entry::new(have.element.clone()));
                continue;
            };
            if let Some(seen) = seen.get_mut(place) {
                *seen = true;
            }
            difference.rebuild |= want.options.wildcard != have.options.wildcard;
            // Without a desired MAC address any will do: the first packet fills it in.
            let other_mac = want.element != have.element && !matches!(want.element, Element::IpMac(_, None));
            if other_mac || differs(&want.options, &have.options, self.spec.options.timeout) {
                let mut update = want.clone();
                if update.options.timeout.is_none() {
                    let is_kept = !timeout_differs(&want.options, &have.options, self.spec.options.timeout);
                    let kept = have.options.timeout.filter(|_| is_kept);
                    update.options.timeout = kept.or(self.spec.options.timeout);
                }
                difference.update.push(update);
            } else {
                difference.unchanged = difference.unchanged.saturating_add(1);
            }
        }
        difference.add = self.entries.iter().zip(&seen).filter(|(_, seen)| !**seen).map(|(entry, _)| entry).collect();
        if self.spec.set_type == SetType::ListSet {
            let kept = observed
                .entries
                .iter()
                .map(|entry| &entry.element)
                .filter(|element| places.contains_key(&identity(element)));
            let after = kept.chain(difference.add.iter().map(|entry| &entry.element));
            difference.rebuild |= !after.eq(self.entries.iter().map(|entry| &entry.element));
        }
        difference
    }

    /// Whether the set can be changed in place: its options fit, and it has room for old and new entries together.
    fn fits(&self, observed: &ObservedSet, difference: &Difference<'_>) -> bool {
        let (want, have) = (&self.spec.reported_options(), &observed.spec.options);
        let bucketsize = |size: u8| size.clamp(2, 12).next_multiple_of(2);
        let same = observed.spec.set_type == self.spec.set_type
            && (have.family == want.family || !self.spec.set_type.has_family())
            && have.netmask == want.netmask
            && have.bitmask == want.bitmask
            && have.markmask.unwrap_or(u32::MAX) == want.markmask.unwrap_or(u32::MAX)
            && have.timeout == want.timeout
            && have.flags == want.flags
            && have.range == want.range
            && want.initval.is_none_or(|initval| have.initval == Some(initval))
            && want.bucketsize.is_none_or(|size| have.bucketsize == Some(bucketsize(size)));
        if !same || difference.rebuild {
            return false;
        }
        if !self.spec.set_type.is_hash() {
            return true;
        }
        let room = have.maxelem.unwrap_or(DEFAULT_MAXELEM);
        // Expired entries take room until they are collected.
        let taken = u32::try_from(observed.entries.len()).unwrap_or(u32::MAX).max(observed.elements.unwrap_or(0));
        let together = taken.saturating_add(u32::try_from(difference.add.len()).unwrap_or(u32::MAX));
        room >= want.maxelem.unwrap_or(DEFAULT_MAXELEM) && together <= room
    }

    /// The desired entries with the counters and running timeouts of existing ones.
    fn with_running_state(&self, observed: &ObservedSet) -> Vec<Entry> {
        let counters = SetFlags::COUNTERS;
        let counting = self.spec.options.flags.contains(counters) && observed.spec.options.flags.contains(counters);
        let timing = self.spec.options.timeout.is_some() && self.spec.options.timeout == observed.spec.options.timeout;
        let mut entries = self.entries.clone();
        let places = self.places();
        for have in &observed.entries {
            let place = places.get(&Identity::new(self.spec.set_type, &have.element));
            let Some(entry) = place.and_then(|place| entries.get_mut(*place)) else {
                continue;
            };
            if counting {
                entry.options.packets = entry.options.packets.or(have.options.packets);
                entry.options.bytes = entry.options.bytes.or(have.options.bytes);
            }
            if timing && !timeout_differs(&entry.options, &have.options, self.spec.options.timeout) {
                entry.options.timeout = have.options.timeout;
            }
        }
        entries
    }
}

fn places(set_type: SetType, entries: &[Entry]) -> HashMap<Identity<'_>, usize> {
    entries.iter().enumerate().map(|(place, entry)| (Identity::new(set_type, &entry.element), place)).collect()
}

/// One entry per identity: the last one, at the position of the first.
fn last_of_each(set_type: SetType, entries: Vec<Entry>) -> Vec<Entry> {
    if places(set_type, &entries).len() == entries.len() {
        return entries;
    }
    let mut first: HashMap<Identity<'_>, usize> = HashMap::with_capacity(entries.len());
    let mut kept: Vec<&Entry> = Vec::with_capacity(entries.len());
    for entry in &entries {
        let place = *first.entry(Identity::new(set_type, &entry.element)).or_insert(kept.len());
        match kept.get_mut(place) {
            Some(earlier) => *earlier = entry,
            None => kept.push(entry),
        }
    }
    kept.into_iter().cloned().collect()
}

/// Members of a list at the places that their positions name, which the kernel does not report.
fn arranged(entries: Vec<Entry>) -> Vec<Entry> {
    if entries.iter().all(|entry| entry.options.position.is_none()) {
        return entries;
    }
    let mut members: Vec<Entry> = Vec::with_capacity(entries.len());
    for mut entry in entries {
        let find = |name: &SetName| {
            members.iter().position(|member| matches!(&member.element, Element::Set(found) if found == name))
        };
        let place = match &entry.options.position {
            Some(Position::Before(name)) => find(name),
            Some(Position::After(name)) => find(name).map(|place| place.saturating_add(1)),
            None => Some(members.len()),
        };
        if place.is_some() {
            entry.options.position = None;
        }
        // The kernel judges a place at a member that is not there.
        members.insert(place.unwrap_or(members.len()), entry);
    }
    members
}

/// Whether the timeout must be written. An entry without one must stay, with at least the set's `default`.
fn timeout_differs(want: &EntryOptions, have: &EntryOptions, default: Option<Timeout>) -> bool {
    match (want.timeout, have.timeout) {
        (None, None) => false,
        (None, Some(have)) => {
            // A third: rare enough to be cheap, and early enough for the next sync to be in time.
            let is_short = |default: Timeout| default.is_permanent() || have.secs() < default.secs() / 3;
            !have.is_permanent() && default.is_some_and(is_short)
        }
        (Some(_), None) => true,
        (Some(want), Some(have)) => want.is_permanent() != have.is_permanent() || have > want,
    }
}

/// Whether the entry must be written.
fn differs(want: &EntryOptions, have: &EntryOptions, default: Option<Timeout>) -> bool {
    // The kernel does not report empty comments or zero values.
    let comment =
        |options: &EntryOptions| options.comment.as_ref().map(|text| text.as_str().to_owned()).unwrap_or_default();
    let mark = |options: &EntryOptions| options.skbmark.unwrap_or(SkbMark { mark: 0, mask: 0 });
    let priority = |options: &EntryOptions| options.skbprio.unwrap_or(SkbPriority { major: 0, minor: 0 });
    want.nomatch != have.nomatch
        || comment(want) != comment(have)
        || mark(want) != mark(have)
        || priority(want) != priority(have)
        || want.skbqueue.unwrap_or(0) != have.skbqueue.unwrap_or(0)
        || timeout_differs(want, have, default)
}
