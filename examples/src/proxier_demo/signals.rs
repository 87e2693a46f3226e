//! The signals that mean something.

use tokio::signal::unix::{SignalKind, signal};

type Signal = tokio::signal::unix::Signal;

/// The signals that mean something.
pub(super) struct Signals {
    pub(super) terminate: Signal,
    pub(super) interrupt: Signal,
    /// Compare everything.
    pub(super) hangup: Signal,
    /// What is held back is meant.
    pub(super) confirm: Signal,
}

impl Signals {
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            confirm: signal(SignalKind::user_defined1())?,
        })
    }

    /// Until SIGTERM or SIGINT.
    pub(super) async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
