//! A value that several handles share.

#![expect(clippy::disallowed_types, reason = "handles of one fake kernel may live in several threads of a test")]

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(super) struct Shared<T>(Arc<Mutex<T>>);

impl<T> Shared<T> {
    pub(super) fn new(value: T) -> Self {
        Shared(Arc::new(Mutex::new(value)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(Arc::clone(&self.0))
    }
}

impl<T: Default> Default for Shared<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock().fmt(f)
    }
}
