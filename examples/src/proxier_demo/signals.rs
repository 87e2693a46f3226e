//! The signals that the program handles.

use tokio::signal::unix::{SignalKind, signal};

type Signal = tokio::signal::unix::Signal;

/// The signals that the program handles.
pub(super) struct Signals {
    pub(super) terminate: Signal,
    pub(super) interrupt: Signal,
    /// SIGHUP: compare everything.
    pub(super) hangup: Signal,
    /// SIGUSR1: confirm what is held back.
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

    /// Waits for SIGTERM or SIGINT.
    pub(super) async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
