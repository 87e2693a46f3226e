//! Shows the progress of long work on standard error, except in the first seconds.
//!
//! On a terminal: one line, rewritten, and removed when the work is done. Elsewhere: a line every ten seconds, which
//! `run` writes to its log.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::sources::read_counts::ReadCounts;

/// Whether this process wrote the terminal's last line.
static SHOWN: Mutex<bool> = Mutex::new(false);

/// Where progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// One line of a terminal.
    Terminal,
    /// Lines of standard error.
    Lines,
    /// The log.
    Log,
}

impl Place {
    /// Time before the first line. Lines that stay come later.
    fn patience(self) -> Duration {
        if self == Place::Terminal { Duration::from_secs(2) } else { Duration::from_secs(5) }
    }

    /// Interval between two lines.
    fn interval(self) -> Duration {
        if self == Place::Terminal { Duration::from_millis(200) } else { Duration::from_secs(10) }
    }
}

/// The present stage of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Reading,
    Kernel,
}

#[derive(Debug)]
struct ProgressState {
    counted: ReadCounts,
    stage: Mutex<Stage>,
    ended: AtomicBool,
}

/// Shows the progress, on its own thread, until [`Progress::end`].
#[derive(Debug)]
pub struct Progress(Arc<ProgressState>);

impl Progress {
    /// Progress of `run` until its first pass has ended: on a terminal, otherwise in the log.
    pub fn of_run() -> Self {
        Self::start(Some(if io::stderr().is_terminal() { Place::Terminal } else { Place::Log }))
    }

    /// Starts the progress of a command that ends.
    pub fn of_command() -> Self {
        Self::start(Some(if io::stderr().is_terminal() { Place::Terminal } else { Place::Lines }))
    }

    /// `place`: `None` shows nothing.
    fn start(place: Option<Place>) -> Self {
        let stage = Mutex::new(Stage::Reading);
        let shared = Arc::new(ProgressState { counted: ReadCounts::default(), stage, ended: AtomicBool::new(false) });
        if let Some(place) = place {
            let of_thread = Arc::clone(&shared);
            let shown = thread::Builder::new().name("progress".to_owned());
            // Without a thread nothing is shown, but everything else works.
            let _not_shown = shown.spawn(move || show(&of_thread, place));
        }
        Progress(shared)
    }

    /// Counters of objects that are read.
    pub fn counted(&self) -> &ReadCounts {
        &self.0.counted
    }

    /// Everything was read, and work on the kernel begins.
    pub fn at_kernel(&self) {
        *self.0.stage.lock().unwrap_or_else(PoisonError::into_inner) = Stage::Kernel;
    }

    /// Removes the line and shows nothing from now on.
    pub fn end(&self) {
        self.0.ended.store(true, Ordering::Relaxed);
        clear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end();
    }
}

fn line(shared: &ProgressState) -> String {
    let what = match *shared.stage.lock().unwrap_or_else(PoisonError::into_inner) {
        Stage::Reading => "",
        Stage::Kernel => "; now at the kernel",
    };
    format!("{} read{what} ...", shared.counted.words())
}

fn show(shared: &ProgressState, place: Place) {
    const LOOK: Duration = Duration::from_millis(100);
    let mut due = Instant::now() + place.patience();
    let mut logged = String::new();
    while !shared.ended.load(Ordering::Relaxed) {
        thread::sleep(LOOK);
        let now = Instant::now();
        if now < due {
            continue;
        }
        due = now + place.interval();
        let line = line(shared);
        if place == Place::Log {
            // Do not repeat the same line: an API server that does not answer has its own messages.
            if line != logged {
                tracing::info!("{line}");
                logged = line;
            }
            continue;
        }
        let mut is_shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
        // `end` removes the line after this.
        if shared.ended.load(Ordering::Relaxed) {
            return;
        }
        let mut out = io::stderr();
        let _a_reader_that_is_gone = if place == Place::Terminal {
            *is_shown = true;
            write!(out, "\r{line}\x1b[K")
        } else {
            writeln!(out, "proxier-demo: {line}")
        };
    }
}

/// Removes the line, if shown, before something else is printed.
pub(crate) fn clear() {
    let mut is_shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if std::mem::take(&mut *is_shown) {
        let _a_terminal_that_is_gone = write!(io::stderr(), "\r\x1b[K");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::change::Change;

    #[test]
    fn progress_is_counted() {
        let progress = Progress::start(None);
        progress.counted().saw(&Change::UpsertService(Box::default()));
        progress.counted().saw(&Change::UpsertSlice(Box::default()));
        progress.counted().saw(&Change::Synced);
        assert_eq!(line(&progress.0), "1 Services, 1 EndpointSlices read ...");
        progress.at_kernel();
        assert_eq!(line(&progress.0), "1 Services, 1 EndpointSlices read; now at the kernel ...");
    }
}
