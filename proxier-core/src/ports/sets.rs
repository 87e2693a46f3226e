//! Sets.

use std::collections::BTreeSet;

use ipset::Element;

use super::named_set::NamedSet;
use super::{ItemFailures, PortError};

/// The sets that rules use. No other sets are ever read or written.
pub trait Sets {
    /// The entries of a set; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Invalid`](super::PortErrorKind::Invalid) if a set of this name has another type or family, and so belongs to
    /// another program.
    fn entries(&mut self, set: NamedSet) -> Result<Option<BTreeSet<Element>>, PortError>;

    /// Whether any set may exist, of any program: asking for one loads the module. Default yes.
    fn may_exist(&mut self) -> bool {
        true
    }

    /// Creates a set with room for at least this many entries, unless one of this type and family exists.
    ///
    /// # Errors
    /// [`Invalid`](super::PortErrorKind::Invalid) if it exists with another type,
    /// [`Unavailable`](super::PortErrorKind::Unavailable) without the module.
    fn create(&mut self, set: NamedSet, room: usize) -> Result<(), PortError>;

    /// Adds entries. An existing one counts as added.
    fn add(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures;

    /// Deletes entries. A missing one counts as deleted.
    fn delete(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures;

    /// Brings a set to exactly these entries, atomically for packets, with more room if needed. Rules that use it stay
    /// valid, and no entry that is still desired is missing at any moment. A missing set is created with all entries at
    /// once.
    ///
    /// # Errors
    /// As [`Sets::create`]. Even after an error no existing entry that is still desired is missing.
    fn replace(&mut self, set: NamedSet, elements: &[&Element]) -> Result<(), PortError>;

    /// Whether a process that was killed while it created or replaced this set left an unfinished one behind;
    /// [`Sets::destroy`] removes both. The set itself may be missing.
    ///
    /// # Errors
    /// If the sets could not be listed.
    fn has_unfinished(&mut self, set: NamedSet) -> Result<bool, PortError>;

    /// Destroys a set; not an error if it does not exist.
    ///
    /// # Errors
    /// [`Busy`](super::PortErrorKind::Busy) while a rule uses it.
    fn destroy(&mut self, set: NamedSet) -> Result<(), PortError>;
}
