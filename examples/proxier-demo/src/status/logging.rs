//! Logging: text or JSON on stderr, with a limit on messages about one object.

use std::collections::HashMap;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::output;

/// Starts logging for the process. Does nothing if it has already started.
///
/// `verbosity` is kube-proxy's: up to 3 what happened, 4 and 5 also why, from 6 everything.
pub fn start(verbosity: u8, json: bool) {
    let level = match verbosity {
        0..=3 => LevelFilter::INFO,
        4..=5 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    // This program logs failed requests with their meaning; the client's own messages only appear with the details.
    let client = if verbosity > 5 { level } else { LevelFilter::OFF };
    let targets = Targets::new().with_default(level).with_target("kube_client", client);
    let stderr = move || Stderr { json };
    let text = tracing_subscriber::fmt::layer().with_writer(stderr).with_target(false).with_ansi(false);
    let started = if json {
        output::say_in_json();
        tracing_subscriber::registry().with(text.json().flatten_event(true).with_filter(targets)).try_init()
    } else {
        tracing_subscriber::registry().with(text.with_filter(targets)).try_init()
    };
    if let Err(error) = started {
        tracing::debug!("logging continues unchanged: {error}");
    }
}

/// Standard error, one whole log entry at a time. Names and values come from users, so terminal escapes are made
/// harmless.
struct Stderr {
    json: bool,
}

impl Write for Stderr {
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(entry);
        let shown = if self.json { escaped_in_json(&text) } else { output::Visible(&text).to_string() };
        let dropped = output::log(&shown);
        if dropped > 0 {
            tracing::warn!("{dropped} log entries before the last one are missing: nobody read standard error");
        }
        Ok(entry.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// JSON that has such characters only within texts.
fn escaped_in_json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if output::misleads(c) && c != '\n' {
            shown.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        } else {
            shown.push(c);
        }
    }
    shown
}

/// Passes one message per object and minute.
#[derive(Debug, Default)]
pub struct Limiter {
    /// Times of the last messages.
    objects: HashMap<String, Instant>,
    /// When old ones were last forgotten.
    swept: Option<Instant>,
}

impl Limiter {
    /// How long further messages about an object are held back.
    pub const INTERVAL: Duration = Duration::from_secs(60);
    /// Number of objects remembered.
    const OBJECTS: usize = 4096;
    /// Shortest interval between two searches for old ones: each reads all.
    const SWEEP: Duration = Duration::from_secs(1);

    /// Whether this object is seen for the first time in this process.
    pub fn once(&mut self, object: &str) -> bool {
        !self.objects.contains_key(object) && self.pass(object, Instant::now())
    }

    /// Whether to log a message about this object now.
    pub fn pass(&mut self, object: &str, now: Instant) -> bool {
        let is_old = |last: &Instant| now.saturating_duration_since(*last) >= Self::INTERVAL;
        if let Some(last) = self.objects.get_mut(object) {
            let passes = is_old(last);
            if passes {
                *last = now;
            }
            return passes;
        }
        let may_sweep = self.swept.is_none_or(|last| now.saturating_duration_since(last) >= Self::SWEEP);
        if self.objects.len() >= Self::OBJECTS && may_sweep {
            self.objects.retain(|_, last| !is_old(last));
            self.swept = Some(now);
        }
        // The newest object may be dropped: with this many faulty objects the log is full anyway.
        let has_room = self.objects.len() < Self::OBJECTS;
        if has_room {
            self.objects.insert(object.to_owned(), now);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names and values come from users.
    #[test]
    fn characters_that_mislead_a_reader_are_escaped() {
        let entry = "a\u{202e}b\u{2028}c\u{1b}[2J é \u{e0001}\tz\n";
        assert_eq!(output::Visible(entry).to_string(), "a\\u{202e}b\\u{2028}c\\u{1b}[2J é \\u{e0001}\tz\n");
        let json = format!("{{\"message\":\"{}\"}}\n", entry.trim_end().replace(['\u{1b}', '\t'], ""));
        let shown = escaped_in_json(&json);
        assert!(shown.contains("a\\u202eb\\u2028c[2J é \\udb40\\udc01z"), "{shown}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&shown), read(&json));
    }
}
