//! Writes and parses the text of `ipset save`.

use std::collections::HashMap;
use std::fmt::Write;

use crate::client::Client;
use crate::error::{Error, ErrorKind};
use crate::model::{Entry, InvalidValue, ObservedSet, SetName, SetSpec};
use crate::write::IfPresent;

/// A set and its entries, as in saved text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct SavedSet {
    /// The set.
    pub spec: SetSpec,
    /// Entries of the set, in the order of the text.
    #[cfg_attr(feature = "serde", serde(default))]
    pub entries: Vec<Entry>,
}

impl SavedSet {
    /// A set with these entries.
    pub fn new(spec: SetSpec, entries: impl IntoIterator<Item = Entry>) -> Self {
        SavedSet { spec, entries: entries.into_iter().collect() }
    }
}

impl From<ObservedSet> for SavedSet {
    fn from(set: ObservedSet) -> Self {
        SavedSet { spec: set.spec, entries: set.entries }
    }
}

/// The text that `ipset save` prints for these sets.
///
/// It is equal byte for byte, except for the option `forceadd`, which `ipset` 7.17 omits, and for protocol names if the
/// host's `/etc/protocols` differs from Debian's. [`parse_save`] parses all of it. `ipset restore` 7.17 cannot read an
/// entry whose comment is one of its own options (`-t`, `-q`, `-exist` ...), even from `ipset save`.
pub fn save<'a>(sets: impl IntoIterator<Item = &'a SavedSet>) -> String {
    let mut text = String::new();
    for set in sets {
        // Writing to a String cannot fail.
        let _infallible = writeln!(text, "{}", set.spec);
        for entry in &set.entries {
            let _infallible = writeln!(text, "add {} {entry}", set.spec.name);
        }
    }
    text
}

/// Parses the text of `ipset save`: `create` and `add` lines. Empty lines, comments and `COMMIT` are skipped.
///
/// ```
/// let text = "\
/// create allowed hash:net family inet hashsize 1024 maxelem 65536
/// add allowed 192.0.2.0/24
/// add allowed 192.0.2.128/25 nomatch
/// ";
/// let sets = ipset::parse_save(text)?;
/// assert_eq!(sets[0].spec.set_type, ipset::SetType::HashNet);
/// assert!(sets[0].entries[1].options.nomatch);
/// assert_eq!(ipset::save(&sets), text);
///
/// let error = ipset::parse_save("create allowed hash:net\nadd alowed 192.0.2.0/24\n").unwrap_err();
/// assert!(error.to_string().contains("line 2"), "{error}");
/// # Ok::<(), ipset::Error>(())
/// ```
///
/// # Errors
/// [`ErrorKind::Line`] with the number of the first malformed line, from 1.
pub fn parse_save(text: &str) -> Result<Vec<SavedSet>, Error> {
    let mut sets: Vec<SavedSet> = Vec::new();
    let mut places: HashMap<SetName, usize> = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        let fail = |error| Error::new(ErrorKind::Line(number.saturating_add(1), error), "reading saved sets");
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') || line == "COMMIT" {
            continue;
        }
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match command {
            "create" | "-N" => {
                let spec = SetSpec::parse_arguments(rest).map_err(fail)?;
                places.insert(spec.name.clone(), sets.len());
                sets.push(SavedSet { spec, entries: Vec::new() });
            }
            "add" | "-A" => {
                let (name, entry) = rest.trim_start().split_once(char::is_whitespace).unwrap_or((rest, ""));
                let name = SetName::new(name).map_err(fail)?;
                let place = places.get(&name).and_then(|place| sets.get_mut(*place));
                let set = place.ok_or_else(|| fail(InvalidValue::NotCreated(name.to_string())))?;
                let entry = Entry::parse(set.spec.set_type, entry).map_err(fail)?;
                set.entries.push(entry);
            }
            other => {
                let option = other.to_owned();
                return Err(fail(InvalidValue::Option { what: "saved text".to_owned(), option }));
            }
        }
    }
    Ok(sets)
}

impl Client {
    /// All sets as text in the format of `ipset save`.
    ///
    /// # Errors
    /// As [`Client::list_sets`].
    pub fn save(&mut self) -> Result<String, Error> {
        let sets: Vec<SavedSet> = self.list_sets()?.into_iter().map(SavedSet::from).collect();
        Ok(save(&sets))
    }

    /// Creates the sets with their entries, in order. As with `ipset restore`, a set that exists is an error.
    ///
    /// # Errors
    /// The first failure. Sets and entries before it stay.
    pub fn restore(&mut self, sets: &[SavedSet]) -> Result<(), Error> {
        for SavedSet { spec, entries } in sets {
            self.create_set(spec)?;
            self.add_entries(&spec.name, entries, IfPresent::Refuse).into_result()?;
        }
        Ok(())
    }
}
