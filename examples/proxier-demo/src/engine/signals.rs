//! The signals that the program handles.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM and SIGINT.
pub(crate) struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(EndSignals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The signals of `run`.
pub(crate) struct Signals {
    pub(crate) end: EndSignals,
    /// SIGHUP: compare everything.
    pub(crate) hangup: Signal,
    /// SIGUSR1: confirm deletions that are held back.
    pub(crate) confirm: Signal,
}

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        let end = EndSignals::listen()?;
        Ok(Signals { end, hangup: signal(SignalKind::hangup())?, confirm: signal(SignalKind::user_defined1())? })
    }
}
