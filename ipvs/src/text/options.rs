//! Splits a line into options with their positions, as popt parses ipvsadm's command line.

use super::error::{Error, ErrorKind};

/// An ipvsadm option, in either spelling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opt {
    Add,
    Edit,
    Delete,
    Clear,
    Zero,
    AddReal,
    EditReal,
    DeleteReal,
    Tcp,
    Udp,
    Sctp,
    Other,
    Fwmark,
    Ipv6,
    Scheduler,
    SchedulerFlags,
    Persistent,
    Netmask,
    Engine,
    OnePacket,
    Real,
    Masquerade,
    Tunnel,
    Route,
    Forward,
    Weight,
    Upper,
    Lower,
    TunnelType,
    TunnelPort,
    TunnelNoChecksum,
    TunnelChecksum,
    TunnelRemoteChecksum,
    TunnelFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Nothing,
    Value,
    /// `-p`: a value unless the next word is an option.
    Perhaps,
}

#[derive(Debug)]
struct Spec {
    short: Option<char>,
    long: &'static str,
    opt: Opt,
    takes: Takes,
}

const fn flag(short: Option<char>, long: &'static str, opt: Opt) -> Spec {
    Spec { short, long, opt, takes: Takes::Nothing }
}

const fn value(short: Option<char>, long: &'static str, opt: Opt) -> Spec {
    Spec { short, long, opt, takes: Takes::Value }
}

static SPECS: &[Spec] = &[
    flag(Some('A'), "add-service", Opt::Add),
    flag(Some('E'), "edit-service", Opt::Edit),
    flag(Some('D'), "delete-service", Opt::Delete),
    flag(Some('C'), "clear", Opt::Clear),
    flag(Some('Z'), "zero", Opt::Zero),
    flag(Some('a'), "add-server", Opt::AddReal),
    flag(Some('e'), "edit-server", Opt::EditReal),
    flag(Some('d'), "delete-server", Opt::DeleteReal),
    value(Some('t'), "tcp-service", Opt::Tcp),
    value(Some('u'), "udp-service", Opt::Udp),
    value(None, "sctp-service", Opt::Sctp),
    value(None, "other-service", Opt::Other),
    value(Some('f'), "fwmark-service", Opt::Fwmark),
    flag(Some('6'), "ipv6", Opt::Ipv6),
    value(Some('s'), "scheduler", Opt::Scheduler),
    value(Some('b'), "sched-flags", Opt::SchedulerFlags),
    Spec { short: Some('p'), long: "persistent", opt: Opt::Persistent, takes: Takes::Perhaps },
    value(Some('M'), "netmask", Opt::Netmask),
    value(None, "pe", Opt::Engine),
    flag(Some('o'), "ops", Opt::OnePacket),
    value(Some('r'), "real-server", Opt::Real),
    flag(Some('m'), "masquerading", Opt::Masquerade),
    flag(Some('i'), "ipip", Opt::Tunnel),
    flag(Some('g'), "gatewaying", Opt::Route),
    value(None, "forward", Opt::Forward),
    value(Some('w'), "weight", Opt::Weight),
    value(Some('x'), "u-threshold", Opt::Upper),
    value(Some('y'), "l-threshold", Opt::Lower),
    value(None, "tun-type", Opt::TunnelType),
    value(None, "tun-port", Opt::TunnelPort),
    flag(None, "tun-nocsum", Opt::TunnelNoChecksum),
    flag(None, "tun-csum", Opt::TunnelChecksum),
    flag(None, "tun-remcsum", Opt::TunnelRemoteChecksum),
    value(None, "tun-flags", Opt::TunnelFlags),
];

/// A word and the byte offset at which it starts.
#[derive(Clone, Copy, Debug)]
struct Word<'a> {
    text: &'a str,
    at: usize,
}

/// One line of a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line<'a> {
    /// Number of the line, from 1.
    pub(super) number: usize,
    pub(super) text: &'a str,
}

impl<'a> Line<'a> {
    /// An error about the text that starts at this byte.
    pub(super) fn error(&self, kind: ErrorKind, at: usize, found: &str, expected: impl Into<String>) -> Error {
        let before = self.text.get(..at).unwrap_or(self.text);
        Error::new(kind, self.number, before.chars().count().saturating_add(1), found, expected)
    }

    /// An error about missing text.
    pub(super) fn missing(&self, expected: impl Into<String>) -> Error {
        self.error(ErrorKind::Missing, self.text.trim_end().len(), "", expected)
    }

    fn words(&self) -> Words<'a> {
        Words { text: self.text, at: 0 }
    }
}

#[derive(Clone, Debug)]
struct Words<'a> {
    text: &'a str,
    at: usize,
}

fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r')
}

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        let rest = self.text.get(self.at..)?;
        let start = rest.find(|character| !is_blank(character))?;
        let at = self.at.saturating_add(start);
        let word = self.text.get(at..)?;
        let text = word.find(is_blank).and_then(|end| word.get(..end)).unwrap_or(word);
        self.at = at.saturating_add(text.len());
        Some(Word { text, at })
    }
}

/// An option of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given<'a> {
    pub(super) opt: Opt,
    /// The long name, without dashes.
    pub(super) name: &'static str,
    /// The word that contains it, as written.
    pub(super) written: &'a str,
    /// The byte offset at which it starts.
    pub(super) at: usize,
    pub(super) value: Option<&'a str>,
    /// The byte offset at which the value starts.
    pub(super) value_at: usize,
}

/// The options of a line in order; none for an empty line or a comment.
pub(super) fn scan<'a>(line: &Line<'a>) -> Result<Vec<Given<'a>>, Error> {
    let mut words = line.words();
    let mut given = Vec::with_capacity(8);
    let mut first = true;
    while let Some(word) = words.next() {
        let may_be_program = std::mem::take(&mut first);
        if word.text.starts_with('#') {
            break;
        }
        if may_be_program && word.text == "ipvsadm" {
            continue;
        }
        if let Some(long) = word.text.strip_prefix("--").filter(|long| !long.is_empty()) {
            given.push(scan_long(line, word, long, &mut words)?);
        } else if word.text.starts_with('-') && word.text.len() > 1 && word.text != "--" {
            scan_short(line, word, &mut words, &mut given)?;
        } else {
            return Err(line.error(ErrorKind::UnexpectedWord, word.at, word.text, "an option such as -A, -a or -r"));
        }
    }
    Ok(given)
}

fn scan_long<'a>(line: &Line<'a>, word: Word<'a>, long: &'a str, words: &mut Words<'a>) -> Result<Given<'a>, Error> {
    let (name, attached) = match long.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (long, None),
    };
    let spec = SPECS.iter().find(|spec| spec.long == name).ok_or_else(|| {
        line.error(ErrorKind::UnknownOption, word.at, word.text, "an option of -A, -E, -D, -C, -Z, -a, -e or -d")
    })?;
    let attached_at = word.at.saturating_add(word.text.len()).saturating_sub(attached.map_or(0, str::len));
    take_value(line, spec, word.at, word.text, attached.map(|value| (value, attached_at)), words)
}

fn scan_short<'a>(
    line: &Line<'a>,
    word: Word<'a>,
    words: &mut Words<'a>,
    given: &mut Vec<Given<'a>>,
) -> Result<(), Error> {
    for (offset, letter) in word.text.char_indices().skip(1) {
        let letter_at = word.at.saturating_add(offset);
        // The first letter's position is that of its dash.
        let at = if offset == 1 { word.at } else { letter_at };
        let spec = SPECS.iter().find(|spec| spec.short == Some(letter)).ok_or_else(|| {
            line.error(ErrorKind::UnknownOption, word.at, word.text, "an option of -A, -E, -D, -C, -Z, -a, -e or -d")
        })?;
        let rest_at = letter_at.saturating_add(letter.len_utf8());
        let rest = word.text.get(offset.saturating_add(letter.len_utf8())..).unwrap_or_default();
        if spec.takes == Takes::Nothing || rest.is_empty() {
            given.push(take_value(line, spec, at, word.text, None, words)?);
        } else {
            // The rest of the word is the value: -w5, -w=5.
            let value = rest.strip_prefix('=').unwrap_or(rest);
            let value_at = rest_at.saturating_add(rest.len()).saturating_sub(value.len());
            given.push(take_value(line, spec, at, word.text, Some((value, value_at)), words)?);
            break;
        }
    }
    Ok(())
}

fn take_value<'a>(
    line: &Line<'a>,
    spec: &'static Spec,
    at: usize,
    written: &'a str,
    attached: Option<(&'a str, usize)>,
    words: &mut Words<'a>,
) -> Result<Given<'a>, Error> {
    let name = spec.long;
    let bare = Given { opt: spec.opt, name, written, at, value: None, value_at: at };
    let with = |value, value_at| Given { value: Some(value), value_at, ..bare };
    match (spec.takes, attached) {
        (Takes::Nothing, None) => Ok(bare),
        (Takes::Nothing, Some((value, value_at))) => {
            Err(line.error(ErrorKind::Value, value_at, value, format!("no value for --{name}")))
        }
        (_, Some((value, value_at))) => Ok(with(value, value_at)),
        // A required value is the next word, even if that looks like an option, as in popt.
        (Takes::Value, None) => {
            let value = words.next().map(|word| with(word.text, word.at));
            let end = line.text.trim_end().len();
            value.ok_or_else(|| line.error(ErrorKind::Value, end, "", format!("a value for {written}")))
        }
        (Takes::Perhaps, None) => {
            let mut ahead = words.clone();
            match ahead.next() {
                Some(word) if !word.text.starts_with(['-', '#']) => {
                    *words = ahead;
                    Ok(with(word.text, word.at))
                }
                _ => Ok(bare),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ErrorKind, Line, SPECS, scan};

    #[test]
    fn words_and_values_keep_their_places() {
        let line = Line { number: 7, text: "ipvsadm  -At 10.0.0.1:80 --scheduler=rr -w5 -p -o # done" };
        let given = scan(&line).unwrap();
        let told: Vec<_> = given.iter().map(|given| (given.name, given.at, given.value, given.value_at)).collect();
        assert_eq!(
            told,
            [
                ("add-service", 9, None, 9),
                ("tcp-service", 11, Some("10.0.0.1:80"), 13),
                ("scheduler", 25, Some("rr"), 37),
                ("weight", 40, Some("5"), 42),
                ("persistent", 44, None, 44),
                ("ops", 47, None, 47),
            ]
        );
    }

    #[test]
    fn a_required_value_may_look_like_an_option_or_comment() {
        let line = Line { number: 1, text: "-s #x -b -y" };
        let given = scan(&line).unwrap();
        assert_eq!(given.iter().map(|given| given.value).collect::<Vec<_>>(), [Some("#x"), Some("-y")]);
    }

    #[test]
    fn options_that_popt_refuses_are_refused() {
        for (text, kind, column) in [
            ("-A stray", ErrorKind::UnexpectedWord, 4),
            ("-A -- -t", ErrorKind::UnexpectedWord, 4),
            ("-A -", ErrorKind::UnexpectedWord, 4),
            ("-AQ", ErrorKind::UnknownOption, 1),
            ("-A --nope", ErrorKind::UnknownOption, 4),
            ("-A --ops=1", ErrorKind::Value, 10),
            ("-A -t  ", ErrorKind::Value, 6),
        ] {
            let error = scan(&Line { number: 1, text }).unwrap_err();
            assert_eq!((error.kind(), error.column()), (kind, column), "{text}: {error}");
        }
    }

    #[test]
    fn no_option_is_listed_twice() {
        for (index, spec) in SPECS.iter().enumerate() {
            for other in SPECS.iter().skip(index + 1) {
                assert!(spec.short.is_none() || spec.short != other.short, "{spec:?}");
                assert!(spec.long != other.long, "{spec:?}");
            }
        }
    }
}
