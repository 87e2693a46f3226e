//! One argument of a rule, and how arguments are quoted in restore text.
//!
//! The parser in `iptables-restore` (`add_param_to_argv` in `iptables/xshared.c` of the iptables sources) is not a
//! shell:
//! * arguments are separated by blanks and tabs; a line is read into a 10,240-byte buffer;
//! * `"` opens a quotation anywhere and the next `"` closes it *and ends the argument*;
//! * inside quotes a backslash takes the next byte literally; outside, a backslash and `'`, `$`, `` ` ``, `#` are plain bytes;
//! * an argument has at most 1,023 bytes, a command at most about 250 arguments.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::error::{Error, ErrorKind, excerpt};
use crate::name::ChainName;

/// One argument of a rule, unquoted, as the program receives it.
///
/// Any text without NUL and newline, up to 1,023 bytes. The restore format cannot represent those two, and a newline
/// would start another command. [`Display`](fmt::Display) prints the quoted form.
#[derive(Clone)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "String", into = "String")
)]
pub struct Token(Text);

/// A node may have a hundred thousand rules. Frequent words therefore need no memory of their own, and a chain's name
/// is shared with the chain. Known words need no quotes.
#[derive(Clone)]
enum Text {
    Known(&'static &'static str),
    Shared(Arc<str>),
}

macro_rules! known_words {
    ($($word:literal)*) => {
        #[cfg(test)]
        const KNOWN: &[&str] = &[$($word),*];

        /// A frequent word of rules; the most frequent ones come first.
        fn known(text: &str) -> Option<&'static &'static str> {
            match text {
                $($word => Some(&$word),)*
                _ => None,
            }
        }
    };
}

known_words! {
    "-j" "-m" "-p" "tcp" "-s" "--probability" "statistic" "--mode" "random" "DNAT" "--to-destination" "comment" "--comment"
    "-d" "--dport" "udp" "recent" "--name" "--set" "--rcheck" "--seconds" "--reap" "--mask" "--rsource" "!" "ACCEPT" "RETURN"
    "DROP" "MARK" "--set-xmark" "-i" "-o" "-g" "set" "--match-set" "dst" "src" "dst,dst" "conntrack" "--ctstate" "mark" "--mark"
    "addrtype" "--dst-type" "--src-type" "LOCAL" "--sport" "multiport" "--dports" "MASQUERADE" "--random-fully" "REJECT"
    "--reject-with" "SNAT" "--to-source" "LOG" "--log-prefix" "limit" "--limit" "icmp" "sctp"
}

impl Token {
    /// The longest argument that the restore parser accepts, in bytes.
    pub const MAX_LEN: usize = 1023;

    /// # Errors
    /// [`ErrorKind::InvalidToken`] for a newline, a NUL byte, or more than 1,023 bytes.
    pub fn new(text: impl AsRef<str>) -> Result<Self, Error> {
        let token = Self::observed(text.as_ref());
        token.check_writable()?;
        Ok(token)
    }

    /// The name of a chain, shared without a copy.
    ///
    /// # Errors
    /// As [`Token::new`], for a name from a dump.
    pub(crate) fn of_chain(name: &ChainName) -> Result<Self, Error> {
        let token = Self(Text::Shared(name.shared()));
        token.check_writable()?;
        Ok(token)
    }

    /// An argument from the kernel, which may contain what restore text cannot.
    pub(crate) fn observed(text: &str) -> Self {
        Self(known(text).map_or_else(|| Text::Shared(text.into()), Text::Known))
    }

    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        let Text::Shared(text) = &self.0 else { return Ok(()) };
        // There are millions of short texts, so read their bytes only once.
        let bad = text.bytes().find(|byte| matches!(byte, b'\n' | b'\0'));
        let why = if text.len() > Self::MAX_LEN {
            format!("has {} bytes, iptables-restore takes at most {}", text.len(), Self::MAX_LEN)
        } else if bad == Some(b'\n') {
            "contains a newline, which would end the rule".to_owned()
        } else if bad.is_some() {
            "contains a NUL byte, which would end the text".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidToken, format!("rule argument \"{}\" {why}", excerpt(text))))
    }

    /// The argument without quotes.
    pub fn as_str(&self) -> &str {
        match &self.0 {
            Text::Known(word) => word,
            Text::Shared(text) => text,
        }
    }

    /// Appends the quoted form.
    pub(crate) fn quote_into(&self, out: &mut String) {
        let text = match &self.0 {
            Text::Known(word) => return out.push_str(word),
            Text::Shared(text) => text,
        };
        let plain = !text.is_empty() && !text.bytes().any(|b| b <= b' ' || matches!(b, b'"' | b'\\' | b'\'' | 0x7f));
        if plain {
            out.push_str(text);
            return;
        }
        out.push('"');
        for c in text.chars() {
            if matches!(c, '"' | '\\' | '\'') {
                out.push('\\');
            }
            out.push(c);
        }
        out.push('"');
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut quoted = String::with_capacity(self.as_str().len());
        self.quote_into(&mut quoted);
        f.write_str(&quoted)
    }
}

/// Equality, order and hash are those of the text.
impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for Token {}

impl PartialOrd for Token {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Token {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for Token {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Token").field(&self.as_str()).finish()
    }
}

impl AsRef<str> for Token {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl TryFrom<String> for Token {
    type Error = Error;
    fn try_from(text: String) -> Result<Self, Error> {
        Self::new(text)
    }
}

impl From<Token> for String {
    fn from(token: Token) -> Self {
        token.as_str().to_owned()
    }
}

/// Arguments of a line.
pub(crate) struct Split {
    pub(crate) tokens: Vec<Token>,
    /// Whether a quotation was still open at the end.
    pub(crate) open_quote: bool,
}

/// The program whose text is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// Parses like `iptables-restore`.
    Restore,
    /// Parses the text of `iptables-save`, which quotes whole arguments and prints some unquoted, such as an interface
    /// named `a"b`.
    Save,
}

/// Splits one line into arguments.
pub(crate) fn split(line: &str, reading: Reading) -> Split {
    let mut tokens = Vec::new();
    let mut current = String::new();
    let mut in_quotes = false;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if in_quotes {
            match c {
                '\\' => current.extend(chars.next()),
                '"' => {
                    in_quotes = false;
                    tokens.push(Token::observed(&current));
                    current.clear();
                }
                other => current.push(other),
            }
        } else {
            match c {
                '"' if reading == Reading::Restore || current.is_empty() => {
                    in_quotes = true;
                }
                ' ' | '\t' | '\n' => {
                    if !current.is_empty() {
                        tokens.push(Token::observed(&current));
                        current.clear();
                    }
                }
                other => current.push(other),
            }
        }
    }
    if !current.is_empty() {
        tokens.push(Token::observed(&current));
    }
    Split { tokens, open_quote: in_quotes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        split(line, Reading::Restore).tokens.into_iter().map(String::from).collect()
    }

    #[test]
    fn the_reader_follows_the_programs_rules() {
        assert_eq!(
            words(r#"-A X  -m comment --comment "a b" -j Y"#),
            ["-A", "X", "-m", "comment", "--comment", "a b", "-j", "Y"]
        );
        assert_eq!(words(r#""""#), [""], "an empty quotation is an argument");
        assert_eq!(words(r#""a"b"#), ["a", "b"], "the closing quote ends the argument");
        assert_eq!(words(r#"a"b c""#), ["ab c"], "a quote may open inside an argument");
        assert_eq!(words(r"a\b c\ d"), [r"a\b", r"c\", "d"], "outside quotes a backslash is a plain byte");
        assert_eq!(words(r#""a\"b\\c\'d\n""#), [r#"a"b\c'dn"#]);
        assert_eq!(words("'a b' $(x) `y` #z"), ["'a", "b'", "$(x)", "`y`", "#z"]);
        assert!(split("x \"open", Reading::Restore).open_quote);
        assert!(split("x y\"open", Reading::Restore).open_quote);
        assert!(!split("x y\"open", Reading::Save).open_quote);
    }

    #[test]
    fn words_that_save_prints_unquoted_are_unquoted() {
        let words: Vec<String> =
            split(r#"-i a"b -o c"d -j X"#, Reading::Save).tokens.into_iter().map(String::from).collect();
        assert_eq!(words, ["-i", "a\"b", "-o", "c\"d", "-j", "X"]);
    }

    #[test]
    fn known_words_are_written_like_others() {
        for word in KNOWN {
            let token = Token::new(word).unwrap();
            assert!(matches!(token.0, Text::Known(_)), "{word}");
            let other = Token(Text::Shared((*word).into()));
            other.check_writable().unwrap();
            assert_eq!((token.to_string(), &token), (other.to_string(), &other));
        }
    }

    #[test]
    fn impossible_tokens_are_refused() {
        for bad in ["a\nb".to_owned(), "a\0b".to_owned(), "x".repeat(1024)] {
            assert_eq!(Token::new(bad).unwrap_err().kind(), ErrorKind::InvalidToken);
        }
        assert!(Token::new("x".repeat(1023)).is_ok());
    }
}
