//! Reported objects with their versions: finds objects that a new list lacks, and late events of a watch.

use std::collections::{HashMap, VecDeque};

#[derive(Debug, Default)]
pub(super) struct Versions {
    objects: HashMap<Box<str>, SeenVersion>,
    /// The last deletions: a late change must not restore one of these.
    deleted: VecDeque<(Box<str>, u64)>,
    list: u32,
    /// Number of objects in the current list so far.
    pub(super) listed: usize,
    /// That list replaces what is known up to this version. What is newer is from a server that is ahead, and the watch
    /// after the list brings it again.
    replaced_to: u64,
}

#[derive(Clone, Copy, Debug)]
struct SeenVersion {
    /// Version of the object. 0: not a number, so it cannot be compared.
    version: u64,
    /// Number of the list that last contained it.
    list: u32,
}

const DELETIONS_KEPT: usize = 64;

/// Key of all objects whose names cannot be read.
pub(super) const UNNAMED: &str = "";

/// A version as a number, which all API servers use (KEP-5504 makes it a promise). 0 if it is not a number.
pub(super) fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

impl Versions {
    /// Begins a list. `is_of_now`: it counts regardless of what was known before.
    pub(super) fn begin_list(&mut self, is_of_now: bool) {
        self.list = self.list.wrapping_add(1);
        self.listed = 0;
        self.replaced_to = if is_of_now { u64::MAX } else { 0 };
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Sets the version of the list. The versions of its objects may be smaller than before, and deleted ones may be
    /// back: the server was restored from a backup.
    pub(super) fn list_is_of(&mut self, version: u64) {
        self.replaced_to = self.replaced_to.max(version);
    }

    /// Records an object of a list or of a watch; returns whether it is new or changed. An older one never replaces a
    /// newer one, unless the list does.
    pub(super) fn record(&mut self, key: &str, version: u64) -> bool {
        let list = self.list;
        let Some(seen) = self.objects.get_mut(key) else {
            let deleted = self.deleted.iter().filter(|(gone, _)| &**gone == key).map(|(_, version)| *version).max();
            let new = version == 0 || deleted.is_none_or(|deleted| version > deleted || deleted <= self.replaced_to);
            if new {
                self.objects.insert(key.into(), SeenVersion { version, list });
                self.listed += 1;
            }
            return new;
        };
        let is_first = std::mem::replace(&mut seen.list, list) != list;
        self.listed += usize::from(is_first);
        let may_be_older = is_first && seen.version <= self.replaced_to;
        let new = version == 0 || version > seen.version || (may_be_older && version != seen.version);
        if new {
            seen.version = version;
        }
        new
    }

    /// Records an object whose name cannot be read, under the empty key; returns whether it is the first of the list.
    pub(super) fn record_unnamed(&mut self) -> bool {
        self.record(UNNAMED, u64::from(self.list).saturating_add(1))
    }

    /// Ends the list; returns the missing objects. None if it has an object without a name, which may be any of them.
    pub(super) fn end_list(&mut self) -> Vec<Box<str>> {
        self.deleted.clear();
        self.replaced_to = 0;
        if self.objects.get(UNNAMED).is_some_and(|seen| seen.list == self.list) {
            return Vec::new();
        }
        let gone: Vec<Box<str>> =
            self.objects.iter().filter(|(_, seen)| seen.list != self.list).map(|(key, _)| key.clone()).collect();
        for key in &gone {
            self.objects.remove(key);
        }
        self.objects.shrink_to_fit();
        gone
    }

    /// Records a deletion; returns whether the object was known.
    pub(super) fn delete(&mut self, key: &str, version: u64) -> bool {
        let Some(seen) = self.objects.get(key) else { return false };
        if version != 0 && version < seen.version {
            return false;
        }
        self.objects.remove(key);
        if version != 0 {
            if self.deleted.len() == DELETIONS_KEPT {
                self.deleted.pop_front();
            }
            self.deleted.push_back((key.into(), version));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_are_not_numbers_are_accepted() {
        let mut known = Versions::default();
        assert!(known.record("a/x", number("abc")) && known.record("a/x", number("abb")));
        assert!(known.delete("a/x", number("")));
    }

    #[test]
    fn a_list_replaces_what_is_known_up_to_its_version() {
        let mut known = Versions::default();
        assert!(["a", "b", "c", "d"].iter().all(|key| known.record(key, 90)) && known.record("e", 120));
        assert!(known.delete("c", 95) && known.delete("d", 130));
        known.begin_list(false);
        known.list_is_of(100);
        let new = ["a", "b", "c", "d", "e"].map(|key| known.record(key, if key == "b" { 90 } else { 40 }));
        assert_eq!(new, [true, false, true, false, false]);
        assert!(known.end_list().is_empty());
        assert!(!known.record("a", 39) && known.record("a", 101), "in a watch");
    }
}
