//! The sets of a namespace and the rules of net/netfilter/ipset/ip_set_core.c and ip_set_list_set.c.

use std::collections::BTreeMap;

use netlink_batch::Errno;

use super::rules::{Refusal, get_entry_checked, matches};
use crate::model::{Element, Entry, EntryOptions, Position, Range, SetFlags, SetName, SetSpec, SetType, Timeout};
use crate::uapi;

/// The most entries that one request may expand to (`IPSET_MAX_RANGE`).
const MAX_RANGE: usize = 1 << 20;

#[derive(Clone, Debug)]
pub(super) struct FakeSet {
    pub(super) spec: SetSpec,
    pub(super) revision: u8,
    /// Entries, except for list:set.
    entries: BTreeMap<Element, EntryOptions>,
    /// Members of a list:set, by slot index.
    members: Vec<(usize, EntryOptions)>,
}

impl FakeSet {
    /// A set with the kernel's defaults filled in.
    pub(super) fn new(mut spec: SetSpec, revision: u8, newest: u8) -> Result<Self, Refusal> {
        let options = &mut spec.options;
        if options.netmask.is_some() && options.bitmask.is_some() {
            return Err(uapi::IPSET_ERR_BITMASK_NETMASK_EXCL);
        }
        if options.netmask.is_some_and(|prefix| prefix == 0 || prefix > options.family.bits()) {
            return Err(uapi::IPSET_ERR_INVALID_NETMASK);
        }
        if options.markmask == Some(0) {
            return Err(uapi::IPSET_ERR_INVALID_MARKMASK);
        }
        if spec.set_type.is_bitmap() && options.range.is_none() {
            return Err(uapi::IPSET_ERR_PROTOCOL);
        }
        if let Some(Range::Addresses(span)) = options.range
            && span.addresses() >> 32_u32.saturating_sub(options.netmask.unwrap_or(32).into()) > 65_536
        {
            return Err(uapi::IPSET_ERR_BITMAP_RANGE_SIZE);
        }
        if spec.set_type.is_hash() {
            let size = options.hashsize.unwrap_or(1024).max(64);
            options.hashsize = Some(size.checked_next_power_of_two().unwrap_or(size));
            options.maxelem = options.maxelem.or(Some(65_536));
            // Only reported for the newest revision.
            let newest = revision == newest;
            let bucketsize = options.bucketsize.unwrap_or(12).clamp(2, 12).next_multiple_of(2);
            options.bucketsize = newest.then_some(bucketsize);
            options.initval = newest.then_some(options.initval.unwrap_or(0x1234_5678));
            if spec.set_type == SetType::HashIpMark {
                options.markmask = options.markmask.or(Some(u32::MAX));
            }
        } else if spec.set_type == SetType::ListSet {
            options.size = Some(options.size.unwrap_or(8).max(4));
        }
        spec.options = spec.reported_options();
        Ok(FakeSet { spec, revision, entries: BTreeMap::new(), members: Vec::new() })
    }

    /// The kernel's `same_set`, which ignores the hash size.
    fn same(&self, other: &Self) -> bool {
        let (a, b) = (&self.spec.options, &other.spec.options);
        let flags = SetFlags::COUNTERS | SetFlags::COMMENT | SetFlags::SKBINFO;
        self.spec.set_type == other.spec.set_type
            && a.maxelem == b.maxelem
            && a.netmask == b.netmask
            && a.bitmask == b.bitmask
            && a.markmask == b.markmask
            && a.timeout == b.timeout
            && a.range == b.range
            && a.size == b.size
            && a.flags & flags == b.flags & flags
    }

    /// The stored element that the kernel considers equal to this one.
    fn key(&self, element: &Element) -> Option<Element> {
        if self.spec.set_type != SetType::BitmapIpMac {
            return self.entries.contains_key(element).then(|| element.clone());
        }
        self.entries.keys().find(|stored| stored.spans() == element.spans()).cloned()
    }

    fn is_full(&self) -> bool {
        let limit = self.spec.options.maxelem.filter(|_| self.spec.set_type.is_hash());
        limit.is_some_and(|limit| u32::try_from(self.entries.len()).unwrap_or(u32::MAX) >= limit)
    }

    /// An entry's options as stored: the set's extensions with their defaults. Counters survive an update.
    fn stored(&self, new: &EntryOptions, old: Option<&EntryOptions>) -> EntryOptions {
        let flags = self.spec.options.flags;
        let counted = |new: Option<u64>, old: Option<u64>| {
            flags.contains(SetFlags::COUNTERS).then_some(new.or(old).unwrap_or_default())
        };
        EntryOptions {
            timeout: self.spec.options.timeout.map(|default: Timeout| new.timeout.unwrap_or(default)),
            packets: counted(new.packets, old.and_then(|old| old.packets)),
            bytes: counted(new.bytes, old.and_then(|old| old.bytes)),
            comment: new.comment.clone().filter(|text| !text.as_str().is_empty()),
            skbmark: new.skbmark.filter(|mark| mark.mark != 0 || mark.mask != 0),
            skbprio: new.skbprio.filter(|priority| priority.major != 0 || priority.minor != 0),
            skbqueue: new.skbqueue.filter(|queue| *queue != 0),
            nomatch: new.nomatch,
            wildcard: old.map_or(new.wildcard, |old| old.wildcard),
            position: None,
        }
    }
}

/// Index of a member, the neighbour's index and whether that comes after, and the member's options.
type Member = (usize, Option<(usize, bool)>, EntryOptions);

#[derive(Debug, Default)]
pub(super) struct Sets {
    slots: Vec<Option<FakeSet>>,
    /// Number of rules that refer to the set in each slot. References stay with the slot when sets are swapped.
    rules: Vec<u32>,
}

impl Sets {
    pub(super) fn all(&self) -> impl Iterator<Item = (usize, &FakeSet)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    pub(super) fn find(&self, name: &SetName) -> Option<(usize, &FakeSet)> {
        self.all().find(|(_, set)| set.spec.name == *name)
    }

    fn at(&self, index: usize) -> Option<&FakeSet> {
        self.slots.get(index)?.as_ref()
    }

    fn at_mut(&mut self, index: usize) -> Result<&mut FakeSet, Refusal> {
        self.slots.get_mut(index).and_then(Option::as_mut).ok_or(Errno::ENOENT.0)
    }

    fn index(&self, name: &SetName) -> Result<usize, Refusal> {
        self.find(name).map(|(index, _)| index).ok_or(Errno::ENOENT.0)
    }

    pub(super) fn reference(&mut self, name: &SetName, change: i32) -> bool {
        let Ok(index) = self.index(name) else {
            return false;
        };
        if let Some(count) = self.rules.get_mut(index) {
            *count = count.saturating_add_signed(change);
        }
        true
    }

    /// Rules and lists that refer to the set.
    pub(super) fn references(&self, index: usize) -> u32 {
        let lists = self.all().flat_map(|(_, set)| &set.members).filter(|(member, _)| *member == index).count();
        let rules = self.rules.get(index).copied().unwrap_or_default();
        rules.saturating_add(u32::try_from(lists).unwrap_or(u32::MAX))
    }

    pub(super) fn create(&mut self, set: FakeSet, exclusive: bool) -> Result<(), Refusal> {
        if let Some((_, clash)) = self.find(&set.spec.name) {
            return if !exclusive && clash.same(&set) { Ok(()) } else { Err(Errno::EEXIST.0) };
        }
        if let Some(free) = self.slots.iter_mut().find(|slot| slot.is_none()) {
            *free = Some(set);
        } else {
            self.slots.push(Some(set));
            self.rules.push(0);
        }
        Ok(())
    }

    pub(super) fn destroy(&mut self, name: Option<&SetName>) -> Result<(), Refusal> {
        let doomed: Vec<usize> = match name {
            Some(name) => vec![self.index(name)?],
            None => self.all().map(|(index, _)| index).collect(),
        };
        if doomed.iter().any(|index| self.references(*index) > 0) {
            return Err(uapi::IPSET_ERR_BUSY);
        }
        for index in doomed {
            if let Some(slot) = self.slots.get_mut(index) {
                *slot = None;
            }
        }
        Ok(())
    }

    pub(super) fn flush(&mut self, name: Option<&SetName>) -> Result<(), Refusal> {
        let index = name.map(|name| self.index(name)).transpose()?;
        for (place, slot) in self.slots.iter_mut().enumerate() {
            if let Some(set) = slot.as_mut().filter(|_| index.is_none_or(|index| index == place)) {
                set.entries.clear();
                set.members.clear();
            }
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &SetName, to: SetName) -> Result<(), Refusal> {
        let index = self.index(from)?;
        if self.references(index) > 0 {
            return Err(uapi::IPSET_ERR_REFERENCED);
        }
        if self.find(&to).is_some() {
            return Err(uapi::IPSET_ERR_EXIST_SETNAME2);
        }
        self.at_mut(index)?.spec.name = to;
        Ok(())
    }

    /// Swaps the contents. Names and references stay.
    pub(super) fn swap(&mut self, one: &SetName, other: &SetName) -> Result<(), Refusal> {
        let first = self.index(one)?;
        let second = self.index(other).map_err(|_missing| uapi::IPSET_ERR_EXIST_SETNAME2)?;
        let (a, b) = (self.at_mut(first)?.clone(), self.at_mut(second)?.clone());
        let features = |set: &FakeSet| {
            let set_type = set.spec.set_type;
            (set_type.shape(), set_type.has_nomatch(), set_type.family_number(set.spec.options.family))
        };
        if features(&a) != features(&b) {
            return Err(uapi::IPSET_ERR_TYPE_MISMATCH);
        }
        let (name_a, name_b) = (a.spec.name.clone(), b.spec.name.clone());
        *self.at_mut(first)? = b;
        *self.at_mut(second)? = a;
        self.at_mut(first)?.spec.name = name_a;
        self.at_mut(second)?.spec.name = name_b;
        Ok(())
    }

    /// The entries in listing order.
    pub(super) fn entries(&self, set: &FakeSet) -> Vec<Entry> {
        if set.spec.set_type == SetType::ListSet {
            let member = |(index, options): &(usize, EntryOptions)| {
                let name = self.at(*index)?.spec.name.clone();
                Some(Entry { element: Element::Set(name), options: options.clone() })
            };
            return set.members.iter().filter_map(member).collect();
        }
        let entry = |(element, options): (&Element, &EntryOptions)| Entry {
            element: element.clone(),
            options: options.clone(),
        };
        set.entries.iter().map(entry).collect()
    }

    fn expand(set: &FakeSet, bytes: &[u8]) -> Result<Vec<Entry>, Refusal> {
        let entry = get_entry_checked(&set.spec, bytes)?;
        entry.expand(&set.spec, MAX_RANGE).map_err(|_too_many| Errno::ERANGE.0)
    }

    pub(super) fn add(&mut self, index: usize, bytes: &[u8], exclusive: bool) -> Result<(), Refusal> {
        let set = self.at(index).ok_or(Errno::ENOENT.0)?;
        if set.spec.set_type == SetType::ListSet {
            return self.add_member(index, bytes, exclusive);
        }
        let entries = Self::expand(set, bytes)?;
        let set = self.at_mut(index)?;
        for entry in entries {
            let stored = set.key(&entry.element);
            let old = stored.as_ref().and_then(|stored| set.entries.get(stored));
            if old.is_some() && exclusive {
                return Err(uapi::IPSET_ERR_EXIST);
            }
            let options = set.stored(&entry.options, old);
            if old.is_none() && set.is_full() {
                if !set.spec.options.flags.contains(SetFlags::FORCEADD) {
                    return Err(uapi::IPSET_ERR_HASH_FULL);
                }
                set.entries.pop_first();
            }
            match (stored, &entry.element) {
                // Without a MAC address the stored one is kept.
                (Some(stored), Element::IpMac(_, None)) => set.entries.insert(stored, options),
                (Some(stored), _) => {
                    set.entries.remove(&stored);
                    set.entries.insert(entry.element, options)
                }
                (None, _) => set.entries.insert(entry.element, options),
            };
        }
        Ok(())
    }

    pub(super) fn delete(&mut self, index: usize, bytes: &[u8], exclusive: bool) -> Result<(), Refusal> {
        let set = self.at(index).ok_or(Errno::ENOENT.0)?;
        if set.spec.set_type == SetType::ListSet {
            return self.delete_member(index, bytes, exclusive);
        }
        let entries = Self::expand(set, bytes)?;
        let set = self.at_mut(index)?;
        for entry in entries {
            match set.key(&entry.element) {
                Some(stored) => set.entries.remove(&stored),
                None if exclusive => return Err(uapi::IPSET_ERR_EXIST),
                None => None,
            };
        }
        Ok(())
    }

    pub(super) fn test(&self, set: &FakeSet, entry: &Entry) -> bool {
        if set.spec.set_type == SetType::ListSet {
            return self.entries(set).iter().any(|member| member.element == entry.element);
        }
        let Ok(tested) = entry.expand(&set.spec, MAX_RANGE) else {
            return false;
        };
        let best = |element: &Element| {
            let found = set
                .entries
                .iter()
                .filter_map(|(stored, options)| Some((matches(set.spec.set_type, stored, element)?, options.nomatch)));
            found.max_by_key(|(prefixes, _)| *prefixes)
        };
        tested.first().and_then(|entry| best(&entry.element)).is_some_and(|(_, nomatch)| !nomatch)
    }

    /// Index of a member, its reference's index and side, and its options.
    fn member(&self, list: usize, bytes: &[u8]) -> Result<Member, Refusal> {
        let set = self.at(list).ok_or(Errno::ENOENT.0)?;
        let entry = get_entry_checked(&set.spec, bytes)?;
        let Element::Set(name) = &entry.element else {
            return Err(uapi::IPSET_ERR_PROTOCOL);
        };
        let (member, found) = self.find(name).ok_or(uapi::IPSET_ERR_NAME)?;
        if found.spec.set_type == SetType::ListSet {
            return Err(uapi::IPSET_ERR_LOOP);
        }
        let place = |name| self.index(name).map_err(|_missing| uapi::IPSET_ERR_NAMEREF);
        let position = match &entry.options.position {
            Some(Position::Before(name)) => Some((place(name)?, true)),
            Some(Position::After(name)) => Some((place(name)?, false)),
            None => None,
        };
        Ok((member, position, entry.options))
    }

    fn add_member(&mut self, list: usize, bytes: &[u8], exclusive: bool) -> Result<(), Refusal> {
        let (member, position, options) = self.member(list, bytes)?;
        let set = self.at_mut(list)?;
        let at = |wanted: usize| set.members.iter().position(|(index, _)| *index == wanted);
        let beside = match position {
            None => None,
            Some((reference, before)) => {
                let at = at(reference).ok_or(uapi::IPSET_ERR_REF_EXIST)?;
                Some(if before { at } else { at.saturating_add(1) })
            }
        };
        if let Some(at) = at(member) {
            if exclusive {
                return Err(uapi::IPSET_ERR_EXIST);
            }
            let old = set.members.get(at).map(|(_, options)| options.clone());
            let stored = set.stored(&options, old.as_ref());
            if let Some((_, options)) = set.members.get_mut(at) {
                *options = stored;
            }
            return Ok(());
        }
        let stored = set.stored(&options, None);
        set.members.insert(beside.unwrap_or(set.members.len()).min(set.members.len()), (member, stored));
        Ok(())
    }

    fn delete_member(&mut self, list: usize, bytes: &[u8], exclusive: bool) -> Result<(), Refusal> {
        let (member, position, _) = self.member(list, bytes)?;
        let set = self.at_mut(list)?;
        let Some(at) = set.members.iter().position(|(index, _)| *index == member) else {
            return match (position, exclusive) {
                (Some(_), _) => Err(uapi::IPSET_ERR_REF_EXIST),
                (None, true) => Err(uapi::IPSET_ERR_EXIST),
                (None, false) => Ok(()),
            };
        };
        if let Some((reference, before)) = position {
            let beside = if before { at.checked_add(1) } else { at.checked_sub(1) };
            let found = beside.and_then(|beside| set.members.get(beside)).map(|(index, _)| *index);
            if found != Some(reference) {
                return Err(uapi::IPSET_ERR_REF_EXIST);
            }
        }
        set.members.remove(at);
        Ok(())
    }
}
