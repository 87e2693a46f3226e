//! Output of the program: results on standard output, everything else on standard error. If the reader closes the
//! output early, that is not a failure.

use std::fmt::{self, Display, Write as _};
use std::io::{self, BufWriter, ErrorKind, StdoutLock, Write as _};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use proxier_core::ports::SysctlChange;
use serde_json::Value;

/// Prints a line on standard error. The line is lost if that is closed.
pub fn say(what: impl Display) {
    complain(&format!("proxier-demo: {what}"));
}

/// `1 change`, `2 changes`.
pub(crate) fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Why a value below `/proc/sys` stays, although serving needs another.
pub(crate) fn unmet(change: &SysctlChange) -> String {
    let now = change.from.as_deref().unwrap_or("unknown");
    let SysctlChange { path, to, .. } = change;
    format!("{path} stays {now}, not {to}: this process cannot write it, so set it on the host")
}

/// Whether lines on standard error are JSON, like those of the log.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// From now on lines on standard error are log entries in JSON.
pub fn say_in_json() {
    IS_JSON.store(true, Ordering::Relaxed);
}

/// Prints lines on standard error unchanged, or as log entries.
pub fn complain(lines: &str) {
    if IS_JSON.load(Ordering::Relaxed) {
        for line in lines.lines() {
            tracing::warn!("{}", line.strip_prefix("proxier-demo: ").unwrap_or(line));
        }
        return;
    }
    log(&format!("{}\n", Visible(lines)));
}

/// Writes an entry on standard error. Returns the number of entries dropped before it.
pub(crate) fn log(entry: &str) -> u64 {
    LOG.lock().unwrap_or_else(PoisonError::into_inner).write(&mut io::stderr(), entry)
}

static LOG: Mutex<Log> = Mutex::new(Log::NEW);

/// Standard error, whose reader may stop, such as a container runtime. Writes would then block this process, so that
/// it would neither serve nor end.
struct Log {
    /// Number of entries since the reader stopped.
    dropped: u64,
    /// Whether the last line has no end.
    is_cut: bool,
}

impl Log {
    const NEW: Log = Log { dropped: 0, is_cut: false };
    /// A pipe that takes anything takes this much (`pipe_poll`, `PIPE_BUF`).
    const PIECE: usize = 4096;
    /// How many milliseconds the first entry waits. Those after it do not wait, until there is a reader again.
    const PATIENCE: u16 = 1000;

    /// Drops the entry, or its end, if nobody reads.
    fn write(&mut self, to: &mut (impl io::Write + AsFd), entry: &str) -> u64 {
        let mut wait = PollTimeout::from(if self.dropped == 0 { Self::PATIENCE } else { 0 });
        let end: &[u8] = if self.is_cut { b"\n" } else { b"" };
        for piece in end.chunks(1).chain(entry.as_bytes().chunks(Self::PIECE)) {
            let ready = poll(&mut [PollFd::new(to.as_fd(), PollFlags::POLLOUT)], wait);
            if !ready.is_ok_and(|count| count > 0) {
                self.dropped += 1;
                return 0;
            }
            let _nobody_reads = to.write_all(piece);
            self.is_cut = true;
            wait = PollTimeout::from(Self::PATIENCE);
        }
        self.is_cut = false;
        std::mem::take(&mut self.dropped)
    }
}

/// Whether a character may disguise a text: control and format characters, such as those that change the direction, and
/// line ends.
pub(crate) fn misleads(c: char) -> bool {
    let is_format = matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    );
    c.is_control() || is_format
}

/// Untrusted text with visible control and format characters, except line ends and tabs: a terminal would obey them.
#[derive(Clone, Copy, Debug)]
pub struct Visible<'a>(pub &'a str);

impl Display for Visible<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive(is_obeyed) {
            let obeyed = part.chars().next_back().filter(|c| is_obeyed(*c));
            let rest = obeyed.and_then(|c| part.strip_suffix(c)).unwrap_or(part);
            f.write_str(rest)?;
            if let Some(c) = obeyed {
                write!(f, "{}", c.escape_default())?;
            }
        }
        Ok(())
    }
}

fn is_obeyed(c: char) -> bool {
    misleads(c) && !matches!(c, '\n' | '\t')
}

/// Whether standard output was closed when the process started.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// Checked before `main`: Rust then opens /dev/null for closed descriptors, and all output would seem to be written.
#[used]
#[expect(unsafe_code, reason = "the only way to run before Rust's own start")]
// SAFETY: the C library calls each function in this section once before `main`; this one has the required signature and
// only calls fcntl(2).
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        let is_closed = nix::fcntl::fcntl(io::stdout(), nix::fcntl::FcntlArg::F_GETFD).is_err();
        WAS_CLOSED.store(is_closed, Ordering::Relaxed);
    }
    look
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    #[default]
    Text,
    Json,
}

impl Output {
    /// Prints a result in this format on standard output. Returns whether everything was printed or the reader has
    /// gone; otherwise reports why not.
    #[must_use]
    pub fn print(self, text: impl FnOnce() -> String, json: impl FnOnce() -> Value) -> bool {
        match self {
            Output::Text => print(&text()),
            Output::Json => printed(|to| {
                serde_json::to_writer_pretty(&mut *to, &json())?;
                to.write_all(b"\n")
            }),
        }
    }
}

/// Prints text, as [`Output::print`] does.
#[must_use]
pub fn print(text: &str) -> bool {
    printed(|to| write!(to, "{}", Visible(text)))
}

fn printed(write: impl FnOnce(&mut BufWriter<StdoutLock<'_>>) -> io::Result<()>) -> bool {
    let mut to = BufWriter::new(io::stdout().lock());
    let outcome = write(&mut to).and_then(|()| to.flush());
    let is_closed = WAS_CLOSED.load(Ordering::Relaxed);
    match outcome.and_then(|()| if is_closed { Err(nix::Error::EBADF.into()) } else { Ok(()) }) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            say(format_args!("standard output cannot be written ({error})"));
            false
        }
        _ => true,
    }
}

pub fn lines(lines: impl IntoIterator<Item = impl Display>) -> String {
    let mut text = String::new();
    for line in lines {
        let _cannot_fail = writeln!(text, "{line}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _};
    use std::time::{Duration, Instant};

    use super::*;

    /// The kernel's thread stopped, and SIGTERM had no effect.
    #[test]
    fn a_log_that_nobody_reads_stops_nothing() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (mut log, mut to) = (Log::NEW, writer);
        let entry = "x".repeat(999) + "\n";
        let start = Instant::now();
        let written = (0..1_000).take_while(|_| log.write(&mut to, &entry) == 0 && log.dropped == 0).count();
        (0..1_000).for_each(|_| _ = log.write(&mut to, &entry));
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        let mut read = vec![0; written * entry.len()];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(read, entry.repeat(written).as_bytes());
        assert_eq!(log.write(&mut to, &entry), 1_001);
        // An entry that does not fit at once is written whole while somebody reads.
        let long = "y".repeat(1 << 20);
        let whole = std::thread::scope(|scope| {
            let mut read = vec![0; entry.len() + long.len()];
            let read = scope.spawn(move || reader.read_exact(&mut read).map(|()| read));
            assert_eq!((log.write(&mut to, &long), log.dropped), (0, 0));
            read.join().unwrap().unwrap()
        });
        assert_eq!(whole, (entry + &long).into_bytes());
        // Otherwise its end is missing, and the next one begins on a line of its own.
        let (reader, writer) = io::pipe().unwrap();
        let (mut lines, mut to) = (BufReader::new(reader).lines(), writer);
        log.write(&mut to, &long);
        let cut = std::thread::spawn(move || [lines.next(), lines.next()].map(|line| line.unwrap().unwrap()));
        while log.write(&mut to, "next\n") == 0 {}
        drop(to);
        let [first, second] = cut.join().unwrap();
        assert_eq!((first.trim_matches('y'), &*second), ("", "next"));
    }
}
