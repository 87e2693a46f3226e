//! Objects that were reported, with their versions: finds objects that a new list lacks, and late events of a watch.

use std::collections::{HashMap, VecDeque};

/// Keys and versions of one kind's objects.
#[derive(Debug, Default)]
pub(super) struct Known {
    objects: HashMap<Box<str>, Seen>,
    /// The last deletions: a late change must not bring one of these back.
    deleted: VecDeque<(Box<str>, u64)>,
    list: u32,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Version of the object. 0: not a number, so not comparable.
    version: u64,
    /// Number of the list in which it was last.
    list: u32,
}

const DELETIONS_KEPT: usize = 64;

/// A version as a number, as all API servers have it (KEP-5504 makes it a promise). 0 when it is no number.
pub(super) fn number(version: &str) -> u64 {
    version.parse().unwrap_or(0)
}

impl Known {
    /// Begins a list.
    pub(super) fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
    }

    /// Takes an item of the list; returns whether it is new or changed.
    pub(super) fn list_item(&mut self, key: &str, version: u64) -> bool {
        let list = self.list;
        let Some(seen) = self.objects.get_mut(key) else {
            self.objects.insert(key.into(), Seen { version, list });
            return true;
        };
        let new = seen.version == 0 || seen.version != version;
        *seen = Seen { version, list };
        new
    }

    /// Ends the list; returns the objects that it lacks.
    pub(super) fn end_list(&mut self) -> Vec<Box<str>> {
        let gone: Vec<Box<str>> =
            self.objects.iter().filter(|(_, seen)| seen.list != self.list).map(|(key, _)| key.clone()).collect();
        for key in &gone {
            self.objects.remove(key);
        }
        self.deleted.clear();
        self.objects.shrink_to_fit();
        gone
    }

    /// Takes an object of a watch; returns whether it is newer than the known one.
    pub(super) fn upsert(&mut self, key: &str, version: u64) -> bool {
        let before = self.objects.get(key).map_or(0, |seen| seen.version);
        let deleted = self.deleted.iter().filter(|(gone, _)| &**gone == key).map(|(_, version)| *version).max();
        if version != 0 && version <= before.max(deleted.unwrap_or(0)) {
            return false;
        }
        let list = self.list;
        match self.objects.get_mut(key) {
            Some(seen) => seen.version = version,
            None => drop(self.objects.insert(key.into(), Seen { version, list })),
        }
        true
    }

    /// Takes a deletion; returns whether the object was known.
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
    fn a_list_tells_what_is_new_and_what_is_gone() {
        let mut known = Known::default();
        known.begin_list();
        assert!(known.list_item("a/x", 5) && known.list_item("a/y", 6));
        assert!(known.end_list().is_empty());
        known.begin_list();
        assert!(!known.list_item("a/x", 5), "the same version says the same");
        assert!(known.list_item("a/z", 7));
        assert_eq!(known.end_list(), [Box::from("a/y")]);
    }

    #[test]
    fn a_list_that_breaks_off_takes_nothing_away() {
        let mut known = Known::default();
        known.begin_list();
        known.list_item("a/x", 5);
        known.list_item("a/y", 6);
        known.end_list();
        known.begin_list();
        known.begin_list();
        known.list_item("a/x", 5);
        known.list_item("a/y", 6);
        assert!(known.end_list().is_empty());
    }

    #[test]
    fn late_and_repeated_events_change_nothing() {
        let mut known = Known::default();
        assert!(known.upsert("a/x", 10));
        assert!(!known.upsert("a/x", 10) && !known.upsert("a/x", 9));
        assert!(known.upsert("a/x", 12));
        assert!(!known.delete("a/x", 11), "of the one before");
        assert!(known.delete("a/x", 13));
        assert!(!known.upsert("a/x", 12), "a late change brings nothing back");
        assert!(known.upsert("a/x", 14), "made anew");
        assert!(!known.delete("a/y", 20), "never known");
    }

    #[test]
    fn versions_that_are_no_numbers_are_believed() {
        let mut known = Known::default();
        assert!(known.upsert("a/x", number("abc")) && known.upsert("a/x", number("abb")));
        assert!(known.delete("a/x", number("")));
    }
}
