//! Durations in Go's syntax: `30s`, `1h5m`, `1.5s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A duration that parses and prints as Go's `time.Duration` does. Never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(pub Duration);

const NANOS_OF_UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

fn not_a_duration(what: &dyn fmt::Display) -> String {
    format!("{what} is not a duration; write a number with a unit, such as 30s, 1h5m or 500ms")
}

impl FromStr for GoDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || not_a_duration(&format_args!("{text:?}"));
        if text.strip_prefix('-').is_some_and(|rest| rest != "0" && rest != "0s") {
            return Err(format!("{text:?} is negative; write 0s or more"));
        }
        let mut rest = text.trim_start_matches(['+', '-']);
        if rest == "0" {
            return Ok(GoDuration::default());
        }
        if rest.is_empty() || text.len() > 64 {
            return Err(wrong());
        }
        let mut nanos: u128 = 0;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
            let (number, after) = rest.split_at(end);
            let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
            let (unit, after) = after.split_at(end);
            let (_, of_unit) = *NANOS_OF_UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
            let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
            if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
                return Err(wrong());
            }
            let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_too_large| wrong())? };
            nanos += u128::from(whole) * u128::from(of_unit);
            // Digits below a nanosecond change nothing, even for hours.
            let digits = fraction.get(..fraction.len().min(13)).unwrap_or_default();
            if !digits.is_empty() {
                let scale = 10_u128.pow(u32::try_from(digits.len()).unwrap_or(0));
                nanos += digits.parse::<u128>().map_err(|_not_digits| wrong())? * u128::from(of_unit) / scale;
            }
            rest = after;
        }
        // Go's range: a signed 64-bit count of nanoseconds, 292 years.
        let nanos = u64::try_from(nanos).ok().filter(|nanos| i64::try_from(*nanos).is_ok()).ok_or_else(wrong)?;
        Ok(GoDuration(Duration::from_nanos(nanos)))
    }
}

/// Prints as Go does: `1h5m0s`, `30s`, `1.5s`, `250ms`, `0s`.
impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.0.as_nanos();
        if nanos == 0 {
            return f.write_str("0s");
        }
        let fraction = |part: u128, of: u128| {
            let width = of.ilog10() as usize;
            let text = if part == 0 { String::new() } else { format!(".{part:0width$}") };
            text.trim_end_matches('0').to_owned()
        };
        for (unit, of) in [("ns", 1_u128), ("µs", 1_000), ("ms", 1_000_000)] {
            if nanos < of * 1_000 {
                return write!(f, "{}{}{unit}", nanos / of, fraction(nanos % of, of));
            }
        }
        let secs = nanos / 1_000_000_000;
        let (hours, minutes) = (secs / 3_600, secs / 60 % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if secs >= 60 {
            write!(f, "{minutes}m")?;
        }
        write!(f, "{}{}s", secs % 60, fraction(nanos % 1_000_000_000, 1_000_000_000))
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => text.parse().map_err(D::Error::custom),
            other => Err(D::Error::custom(not_a_duration(&other))),
        }
    }
}
