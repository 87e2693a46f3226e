//! The signals that the program handles.

use tokio::signal::unix::{Signal, SignalKind, signal};

pub(crate) struct Signals {
    pub(crate) terminate: Signal,
    pub(crate) interrupt: Signal,
    /// SIGHUP: compare everything.
    pub(crate) hangup: Signal,
    /// SIGUSR1: confirm deletions that are held back.
    pub(crate) confirm: Signal,
}

impl Signals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            confirm: signal(SignalKind::user_defined1())?,
        })
    }

    /// Waits for SIGTERM or SIGINT.
    pub(crate) async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
