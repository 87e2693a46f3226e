//! Labels and annotations.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, Serializer};

/// Labels or annotations of an object, sorted by name. It only takes the memory of its entries: the standard library's
/// map allocates eleven slots, and most objects have one entry.
#[derive(Clone, Default, PartialEq)]
pub struct StringMap(Vec<(String, String)>);

impl StringMap {
    /// The value with this name, or `None`.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.place_of(name).ok()?;
        self.0.get(found).map(|(_, value)| value.as_str())
    }

    /// Sets a value, replacing the current one.
    pub fn insert(&mut self, name: String, value: String) {
        match self.place_of(&name) {
            Ok(found) => {
                if let Some((_, present)) = self.0.get_mut(found) {
                    *present = value;
                }
            }
            Err(place) => {
                self.0.reserve_exact(1);
                self.0.insert(place, (name, value));
            }
        }
    }

    /// Removes all entries for which `is_kept` returns `false`, and their memory.
    pub fn retain(&mut self, mut is_kept: impl FnMut(&str, &str) -> bool) {
        self.0.retain(|(name, value)| is_kept(name, value));
        self.0.shrink_to_fit();
    }

    /// Names and values, sorted by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    fn place_of(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(of, _)| of.as_str().cmp(name))
    }
}

impl fmt::Debug for StringMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl FromIterator<(String, String)> for StringMap {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(entries: I) -> Self {
        let mut map = StringMap::default();
        for (name, value) in entries {
            map.insert(name, value);
        }
        map
    }
}

impl Serialize for StringMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for StringMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(BTreeMap::deserialize(deserializer)?.into_iter().collect())
    }
}
