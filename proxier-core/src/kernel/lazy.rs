//! Clients that are opened at first use, and again after their connection failed.

use std::fmt;

/// A client and the function that opens it.
///
/// Opening fails while a part of the kernel is missing; so each call tries again, and the other parts still work.
pub(crate) struct Lazy<C, E> {
    open: Box<dyn FnMut() -> Result<C, E> + Send>,
    client: Option<C>,
}

impl<C, E> Lazy<C, E> {
    pub(crate) fn new(open: impl FnMut() -> Result<C, E> + Send + 'static) -> Self {
        Lazy { open: Box::new(open), client: None }
    }

    /// The client, opened if need be.
    pub(crate) fn get(&mut self) -> Result<&mut C, E> {
        let client = match self.client.take() {
            Some(client) => client,
            None => (self.open)()?,
        };
        Ok(self.client.insert(client))
    }

    /// Drops the client; the next call opens another.
    pub(crate) fn close(&mut self) {
        self.client = None;
    }
}

impl<C, E> fmt::Debug for Lazy<C, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lazy").field("open", &self.client.is_some()).finish_non_exhaustive()
    }
}
