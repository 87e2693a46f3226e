//! Sets.

use std::collections::BTreeSet;

use ipset::Element;

use super::named_set::NamedSet;
use super::{ItemFailures, PortError};

/// The sets that rules refer to. Only these are ever read or written.
pub trait Sets {
    /// The entries of a set; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Invalid`](super::PortErrorKind::Invalid) when a set of this name has another type or family, and so is foreign.
    fn entries(&mut self, set: NamedSet) -> Result<Option<BTreeSet<Element>>, PortError>;

    /// Whether there may be any set at all, own or foreign: to ask for one loads the module. Default yes.
    fn may_exist(&mut self) -> bool {
        true
    }

    /// Creates a set, with room for this many entries at least; done if one of this type and family exists.
    ///
    /// # Errors
    /// [`Invalid`](super::PortErrorKind::Invalid) when it exists with another type, [`Unavailable`](super::PortErrorKind::Unavailable) without the module.
    fn create(&mut self, set: NamedSet, room: usize) -> Result<(), PortError>;

    /// Adds entries; one that is there counts as added.
    fn add(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures;

    /// Deletes entries; one that is not there counts as deleted.
    fn delete(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures;

    /// Brings a set to exactly these entries, in one step for packets, with more room if needed: rules that refer to it
    /// stay valid, and no wanted entry that is there is missing for a moment. A set that does not exist is created with all
    /// of them at once.
    ///
    /// # Errors
    /// As [`Sets::create`]; no wanted entry that was there is missing after an error.
    fn replace(&mut self, set: NamedSet, elements: &[&Element]) -> Result<(), PortError>;

    /// Whether a process that was killed while it made or replaced this set left an unfinished one beside it;
    /// [`Sets::destroy`] removes both. The set itself may be missing.
    ///
    /// # Errors
    /// When the sets could not be listed.
    fn has_unfinished(&mut self, set: NamedSet) -> Result<bool, PortError>;

    /// Destroys a set; done if it does not exist.
    ///
    /// # Errors
    /// [`Busy`](super::PortErrorKind::Busy) while a rule refers to it.
    fn destroy(&mut self, set: NamedSet) -> Result<(), PortError>;
}
