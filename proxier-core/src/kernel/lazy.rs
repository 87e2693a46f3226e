//! Clients that are opened when they are first needed, and again after their conversation broke.

use std::fmt;

/// A client and the way to open one.
///
/// A part of the kernel that is missing makes opening fail; so each call tries anew, and the other parts go on.
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

    /// Lets the client go; the next call opens another.
    pub(crate) fn close(&mut self) {
        self.client = None;
    }
}

impl<C, E> fmt::Debug for Lazy<C, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lazy").field("open", &self.client.is_some()).finish_non_exhaustive()
    }
}
