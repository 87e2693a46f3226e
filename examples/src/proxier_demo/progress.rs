//! How far the first picture is: one line on a terminal, rewritten, gone when all is there. Nothing elsewhere.

use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::change::Change;

/// What is on the terminal's last line; `None`: nothing of ours.
static SHOWN: Mutex<bool> = Mutex::new(false);

/// Counts what has come so far, and shows it when it takes long.
#[derive(Debug)]
pub struct Progress {
    started: Instant,
    shown: Option<Instant>,
    services: usize,
    slices: usize,
    on: bool,
}

impl Progress {
    /// Less is not worth a line.
    const PATIENCE: Duration = Duration::from_millis(500);
    /// Often enough for the eye.
    const INTERVAL: Duration = Duration::from_millis(100);

    /// Of what begins now, on standard error if that is a terminal.
    pub fn start() -> Self {
        Progress { started: Instant::now(), shown: None, services: 0, slices: 0, on: io::stderr().is_terminal() }
    }

    /// Takes note of a change.
    pub fn saw(&mut self, change: &Change) {
        match change {
            Change::UpsertService(_) => self.services += 1,
            Change::UpsertSlice(_) => self.slices += 1,
            _ => return,
        }
        self.show("");
    }

    /// All is read; now the kernel.
    pub fn programming(&mut self) {
        self.shown = None;
        self.show("; writing to the kernel");
    }

    fn show(&mut self, what: &str) {
        let due = self.shown.map_or(self.started + Self::PATIENCE, |shown| shown + Self::INTERVAL);
        let now = Instant::now();
        if !self.on || now < due {
            return;
        }
        self.shown = Some(now);
        let mut is_shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let line = self.line(what);
        *is_shown = write!(io::stderr(), "\r{line}\x1b[K").is_ok();
    }

    fn line(&self, what: &str) -> String {
        format!("{} Services, {} EndpointSlices read{what} ...", self.services, self.slices)
    }

    /// Takes the line away; nothing is shown from now on.
    pub fn end(&mut self) {
        self.on = false;
        clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        clear();
    }
}

/// Takes the line away, if there is one, before something else is printed.
pub(super) fn clear() {
    let mut is_shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if std::mem::take(&mut *is_shown) {
        let _a_terminal_that_is_gone = write!(io::stderr(), "\r\x1b[K");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts() {
        let mut progress = Progress::start();
        progress.on = false;
        progress.saw(&Change::UpsertService(Box::default()));
        progress.saw(&Change::UpsertSlice(Box::default()));
        progress.saw(&Change::Synced);
        assert_eq!(progress.line(""), "1 Services, 1 EndpointSlices read ...");
    }
}
