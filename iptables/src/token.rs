//! One argument of a rule, and how arguments are quoted in restore text.
//!
//! The reader in `iptables-restore` (`add_param_to_argv` in `iptables/xshared.c` of the iptables sources) is not a shell:
//! * arguments are separated by blanks and tabs; a line is read into a 10,240-byte buffer;
//! * `"` opens a quotation anywhere and the next `"` closes it *and ends the argument*;
//! * inside quotes a backslash takes the next byte literally; outside, a backslash and `'`, `$`, `` ` ``, `#` are plain bytes;
//! * an argument has at most 1,023 bytes, a command at most about 250 arguments.

use std::fmt;

use crate::error::{Error, ErrorKind, excerpt};

/// One argument of a rule, as the program receives it: without quotes.
///
/// Any text but NUL and newline, up to 1,023 bytes: with those the restore format could not carry it, and a newline would
/// start a command of its own. Quoting is done when it is printed ([`Display`](fmt::Display) gives the quoted form).
///
/// ```
/// use iptables::Token;
///
/// let token = Token::new("web \"front\"")?;
/// assert_eq!(token.as_str(), "web \"front\"");
/// assert_eq!(token.to_string(), r#""web \"front\"""#);
/// assert_eq!(Token::new("$(reboot)")?.to_string(), "$(reboot)"); // no shell reads it: nothing to quote
/// assert!(Token::new("two\nlines").is_err());
/// # Ok::<(), iptables::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(try_from = "String", into = "String")
)]
pub struct Token(Box<str>);

impl Token {
    /// The longest argument that the restore reader takes, in bytes.
    pub const MAX_LEN: usize = 1023;

    /// # Errors
    /// [`ErrorKind::InvalidToken`] for a newline, a NUL byte, or more than 1,023 bytes.
    pub fn new(text: impl Into<String>) -> Result<Self, Error> {
        let token = Self(text.into().into_boxed_str());
        token.check_writable()?;
        Ok(token)
    }

    /// An argument read from the kernel, which may hold what restore text cannot.
    pub(crate) fn observed(text: String) -> Self {
        Self(text.into_boxed_str())
    }

    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        // Millions of short texts: one plain look at their bytes.
        let bad = self.0.bytes().find(|byte| matches!(byte, b'\n' | b'\0'));
        let why = if self.0.len() > Self::MAX_LEN {
            format!("has {} bytes, iptables-restore takes at most {}", self.0.len(), Self::MAX_LEN)
        } else if bad == Some(b'\n') {
            "contains a newline, which would end the rule".to_owned()
        } else if bad.is_some() {
            "contains a NUL byte, which would end the text".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidToken, format!("rule argument \"{}\" {why}", excerpt(&self.0))))
    }

    /// The argument without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Appends the quoted form.
    pub(crate) fn quote_into(&self, out: &mut String) {
        let plain =
            !self.0.is_empty() && !self.0.bytes().any(|b| b <= b' ' || matches!(b, b'"' | b'\\' | b'\'' | 0x7f));
        if plain {
            out.push_str(&self.0);
            return;
        }
        out.push('"');
        for c in self.0.chars() {
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
        let mut quoted = String::with_capacity(self.0.len());
        self.quote_into(&mut quoted);
        f.write_str(&quoted)
    }
}

impl AsRef<str> for Token {
    fn as_ref(&self) -> &str {
        &self.0
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
        token.0.into_string()
    }
}

/// What splitting a line came to.
pub(crate) struct Split {
    pub(crate) tokens: Vec<Token>,
    /// A quotation was still open at the end.
    pub(crate) open_quote: bool,
}

/// Whose text is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// As `iptables-restore` reads.
    Restore,
    /// As `iptables-save` writes: it quotes whole arguments, and prints some as they are, such as an interface named `a"b`.
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
                    tokens.push(Token::observed(std::mem::take(&mut current)));
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
                        tokens.push(Token::observed(std::mem::take(&mut current)));
                    }
                }
                other => current.push(other),
            }
        }
    }
    if !current.is_empty() {
        tokens.push(Token::observed(current));
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
    fn reader_rules() {
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
    fn what_save_prints_unquoted() {
        let words: Vec<String> =
            split(r#"-i a"b -o c"d -j X"#, Reading::Save).tokens.into_iter().map(String::from).collect();
        assert_eq!(words, ["-i", "a\"b", "-o", "c\"d", "-j", "X"]);
    }

    #[test]
    fn refused_at_construction() {
        for bad in ["a\nb".to_owned(), "a\0b".to_owned(), "x".repeat(1024)] {
            assert_eq!(Token::new(bad).unwrap_err().kind(), ErrorKind::InvalidToken);
        }
        assert!(Token::new("x".repeat(1023)).is_ok());
    }
}
