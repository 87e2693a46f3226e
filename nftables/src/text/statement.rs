//! Statements whose nft syntax depends only on their own numbers.

use std::fmt::Write as _;

use bitflags::Flags;

use super::quoted;
use crate::expr::{Expression, LogFlags, NatFlags, QueueFlags, SynproxyFlags};

/// The words of flags, separated by commas; `None` if a flag has none.
fn flag_words<F: Flags + Copy>(flags: F, words: &[(F, &str)]) -> Option<String> {
    let known = words.iter().fold(F::empty(), |known, (flag, _)| known.union(*flag));
    let said: Vec<&str> = words.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, word)| *word).collect();
    flags.difference(known).is_empty().then(|| said.join(","))
}

pub(super) fn nat_flags(flags: NatFlags) -> Option<String> {
    let words =
        [(NatFlags::RANDOM, "random"), (NatFlags::FULLY_RANDOM, "fully-random"), (NatFlags::PERSISTENT, "persistent")];
    // The word for networks is elsewhere.
    let said = flag_words(flags.difference(NatFlags::NETMAP), &words)?;
    Some(if said.is_empty() { said } else { format!(" {said}") })
}

pub(super) fn log_text(
    prefix: Option<&str>,
    group: Option<u16>,
    snaplen: Option<u32>,
    threshold: Option<u16>,
    level: Option<u32>,
    flags: Option<LogFlags>,
) -> Option<String> {
    const LEVELS: [&str; 9] = ["emerg", "alert", "crit", "err", "warn", "notice", "info", "debug", "audit"];
    let mut text = String::from("log");
    if let Some(prefix) = prefix {
        let _infallible = write!(text, " prefix {}", quoted(prefix));
    }
    let numbers =
        [("group", group.map(u32::from)), ("snaplen", snaplen), ("queue-threshold", threshold.map(u32::from))];
    for (word, number) in numbers {
        if let Some(number) = number {
            let _infallible = write!(text, " {word} {number}");
        }
    }
    // The default level is "warn".
    if let Some(level) = level.filter(|level| *level != 4) {
        let _infallible = write!(text, " level {}", LEVELS.get(usize::try_from(level).ok()?)?);
    }
    let flags = flags.unwrap_or_default();
    let words = [
        (LogFlags::TCPSEQ | LogFlags::TCPOPT, "tcp sequence,options"),
        (LogFlags::TCPSEQ, "tcp sequence"),
        (LogFlags::TCPOPT, "tcp options"),
        (LogFlags::IPOPT, "ip options"),
        (LogFlags::UID, "skuid"),
        (LogFlags::MACDECODE, "ether"),
    ];
    let all = words.iter().fold(LogFlags::empty(), |all, (flag, _)| all | *flag);
    let mut rest = flags;
    if flags == all {
        text += " flags all";
        rest = LogFlags::empty();
    }
    for (flag, word) in words {
        if rest.contains(flag) {
            let _infallible = write!(text, " flags {word}");
            rest.remove(flag);
        }
    }
    rest.is_empty().then_some(text)
}

/// `queue flags bypass to 1-4`, without the statement's details.
pub(super) fn queue_text(to: &str, flags: QueueFlags) -> Option<String> {
    let said = flag_words(flags, &[(QueueFlags::BYPASS, "bypass"), (QueueFlags::CPU_FANOUT, "fanout")])?;
    let said = if said.is_empty() { said } else { format!(" flags {said}") };
    Some(format!("queue{said} to {to}"))
}

pub(super) fn synproxy_text(mss: u16, window_scale: u8, flags: SynproxyFlags) -> Option<String> {
    let words = [
        (SynproxyFlags::MSS, format!(" mss {mss}")),
        (SynproxyFlags::WSCALE, format!(" wscale {window_scale}")),
        (SynproxyFlags::TIMESTAMP, " timestamp".to_owned()),
        (SynproxyFlags::SACK_PERM, " sack-perm".to_owned()),
    ];
    let known = words.iter().fold(SynproxyFlags::empty(), |known, (flag, _)| known | *flag);
    let said = words.into_iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, word)| word);
    let text = said.fold(String::from("synproxy"), |text, word| text + &word);
    flags.difference(known).is_empty().then_some(text)
}

/// Counters, limits and similar expressions, which elements can have too.
pub(super) fn stateful_text(expression: &Expression) -> Option<String> {
    match expression {
        Expression::Counter { packets: 0, bytes: 0 } => Some("counter".to_owned()),
        Expression::Counter { packets, bytes } => Some(format!("counter packets {packets} bytes {bytes}")),
        Expression::Limit { rate, unit, burst, bytes, inverted } => {
            let over = if *inverted { "over " } else { "" };
            let rate = if *bytes { bytes_text(*rate) } else { rate.to_string() };
            // The default burst is five packets, or no bytes.
            let burst = match (*bytes, *burst) {
                (false, 5) | (_, 0) => String::new(),
                (false, burst) => format!(" burst {burst} packets"),
                (true, burst) => format!(" burst {}", bytes_text(burst.into())),
            };
            Some(format!("limit rate {over}{rate}/{}{burst}", unit.name()?))
        }
        Expression::Quota { bytes, consumed, inverted } => {
            let over = if *inverted { "over " } else { "" };
            let used = if *consumed == 0 { String::new() } else { format!(" used {}", bytes_text(*consumed)) };
            Some(format!("quota {over}{}{used}", bytes_text(*bytes)))
        }
        Expression::ConnectionLimit { count, inverted } => {
            Some(format!("ct count {}{count}", if *inverted { "over " } else { "" }))
        }
        _ => None,
    }
}

/// A number of bytes in the largest unit that divides it.
fn bytes_text(bytes: u64) -> String {
    match bytes {
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 20) => format!("{} mbytes", bytes >> 20),
        bytes if bytes > 0 && bytes.is_multiple_of(1 << 10) => format!("{} kbytes", bytes >> 10),
        bytes => format!("{bytes} bytes"),
    }
}
