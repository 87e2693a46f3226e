//! Collections in little code.

/// `collect` for sets and maps, by one insertion each.
///
/// `collect` sorts a list first, with 8 kB of code for each type of item. It is still better for a large collection that
/// stays, whose nodes it fills.
pub(crate) trait Gather: Iterator + Sized {
    fn gather<C: Default + Extend<Self::Item>>(self) -> C {
        let mut collection = C::default();
        collection.extend(self);
        collection
    }
}

impl<I: Iterator> Gather for I {}
