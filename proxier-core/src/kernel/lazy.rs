//! Clients that are opened at first use, and again after their connection fails.

use std::fmt;

use netlink_batch::{BatchReport, Connection, Errno, Error};

use super::error::{all, batch, netlink};
use crate::ports::{ItemFailures, PortError, PortErrorKind, Result};

/// A client and the function that opens it.
///
/// Opening fails while a part of the kernel is missing. Each call tries again, and other parts still work.
pub(crate) struct Lazy<C, E> {
    open: Box<dyn FnMut() -> Result<C, E> + Send>,
    client: Option<C>,
}

impl<C, E> Lazy<C, E> {
    pub(crate) fn new(open: impl FnMut() -> Result<C, E> + Send + 'static) -> Self {
        Lazy { open: Box::new(open), client: None }
    }

    pub(crate) fn get(&mut self) -> Result<&mut C, E> {
        let client = match self.client.take() {
            Some(client) => client,
            None => (self.open)()?,
        };
        Ok(self.client.insert(client))
    }

    pub(crate) fn close(&mut self) {
        self.client = None;
    }

    /// Runs a request, and drops the client after an error that breaks its connection.
    pub(crate) fn ask<T>(
        &mut self,
        ask: impl FnOnce(&mut C) -> Result<T, E>,
        is_broken: impl FnOnce(&E) -> bool,
    ) -> Result<T, E> {
        let answer = self.get().and_then(ask);
        if answer.as_ref().is_err_and(is_broken) {
            self.close();
        }
        answer
    }
}

impl Lazy<Connection, Error> {
    pub(crate) fn call<T>(
        &mut self,
        doing: impl fmt::Display,
        ask: impl FnOnce(&mut Connection) -> Result<T, Error>,
    ) -> Result<T> {
        let answer = self.ask(ask, |error| netlink(error, "").1);
        answer.map_err(|error| netlink(&error, doing).0)
    }

    /// Runs a request to a subsystem of nfnetlink. If it is missing and its module could not be loaded, the error is
    /// `missing` (`nfnetlink_rcv_msg`).
    pub(crate) fn call_subsystem<T>(
        &mut self,
        doing: &str,
        missing: &str,
        ask: impl FnOnce(&mut Connection) -> Result<T, Error>,
    ) -> Result<T> {
        let mut is_missing = false;
        let answer = self.call(doing, |connection| {
            let answer = ask(connection);
            let refused = answer.as_ref().err().and_then(Error::kernel).map(|refusal| refusal.errno);
            is_missing = matches!(refused, Some(Errno::EINVAL | Errno::EOPNOTSUPP));
            answer
        });
        let missing =
            || PortError::new(PortErrorKind::Unavailable, format!("{doing}: this kernel does not offer them{missing}"));
        answer.map_err(|error| if is_missing { missing() } else { error })
    }

    /// Sends a batch of items; returns the refused ones, see [`batch`].
    pub(crate) fn batch(
        &mut self,
        items: usize,
        send: impl FnOnce(&mut Connection) -> BatchReport,
        doing: impl Fn(usize) -> String,
        classify: impl Fn(Errno) -> Option<PortErrorKind>,
    ) -> ItemFailures {
        let report = match self.get() {
            Ok(connection) => send(connection),
            Err(error) => return all(items, &netlink(&error, doing(0)).0),
        };
        if report.stopped.is_some() {
            self.close();
        }
        batch(report, doing, classify)
    }
}

impl<C, E> fmt::Debug for Lazy<C, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lazy").field("open", &self.client.is_some()).finish_non_exhaustive()
    }
}
