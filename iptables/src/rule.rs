//! A rule: its arguments as tokens, and its counters.

use std::cmp::Ordering;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, excerpt};
use crate::name::ChainName;
use crate::token::{Reading, Token, split};

/// Packet and byte counters, `[packets:bytes]` in dumps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counters {
    /// Packets that matched.
    pub packets: u64,
    /// Their bytes, counted from the network header.
    pub bytes: u64,
}

impl Counters {
    /// Reads `[packets:bytes]`; `None` for anything else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (packets, bytes) = text.strip_prefix('[')?.strip_suffix(']')?.split_once(':')?;
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| digits.parse().ok()).flatten()
        };
        Some(Self { packets: number(packets)?, bytes: number(bytes)? })
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}:{}]", self.packets, self.bytes)
    }
}

/// A rule without its chain: the arguments after `-A CHAIN`.
///
/// Arguments are kept as given, so every extension works, whether this crate knows it or not. Equality compares the
/// arguments in order, not the counters. The kernel reorders arguments, adds `-m tcp`, writes `/32` and so on. To
/// compare the meaning of two rules, use [`Rule::canonical`].
///
/// A rule from a dump remembers its exact text and prints it byte for byte.
///
/// ```
/// use iptables::{Counters, Rule};
///
/// let rule = Rule::from_args(["-s", "192.0.2.0/24", "-m", "comment", "--comment", "known scanners", "-j", "DROP"])?;
/// assert_eq!(rule.arguments(), "-s 192.0.2.0/24 -m comment --comment \"known scanners\" -j DROP");
/// assert_eq!(rule, Rule::parse(&rule.arguments())?);
/// assert_eq!((rule.target(), rule.comment()), (Some("DROP"), Some("known scanners")));
/// assert_eq!(rule.tokens()[5].as_str(), "known scanners"); // tokens are without quotes
///
/// let saved = Rule::parse("-j DROP -m comment --comment \"known scanners\" --source 192.0.2.0/255.255.255.0")?;
/// assert!(rule.same_as(&saved) && rule != saved);
///
/// // A restore sets them; without, the rule begins at zero.
/// let counted = rule.with_counters(Counters { packets: 12, bytes: 840 });
/// assert_eq!(counted.counters.map(|counters| counters.to_string()).as_deref(), Some("[12:840]"));
/// # Ok::<(), iptables::Error>(())
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Rule {
    tokens: Vec<Token>,
    /// Counters as `iptables-save -c` printed them, or as a restore should set them; `None` if unknown.
    pub counters: Option<Counters>,
    /// The text from which it was parsed, if printing would give another.
    #[cfg_attr(feature = "serde", serde(skip))]
    source: Option<Box<str>>,
    /// Parsed from bytes that were not UTF-8. Such a rule can be compared but not written.
    #[cfg_attr(feature = "serde", serde(skip))]
    lossy: bool,
    /// Upper bound of the printed length, if the restore format can represent all arguments; otherwise `None`, and they
    /// are checked before they are written.
    #[cfg_attr(feature = "serde", serde(skip))]
    checked: Option<NonZeroU32>,
}

impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        self.tokens == other.tokens
    }
}

impl Eq for Rule {}

/// Compares the arguments, like equality.
impl Ord for Rule {
    fn cmp(&self, other: &Self) -> Ordering {
        self.tokens.cmp(&other.tokens)
    }
}

impl PartialOrd for Rule {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Parses as [`Rule::parse`].
impl FromStr for Rule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::parse(text)
    }
}

impl std::hash::Hash for Rule {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.tokens.hash(state);
    }
}

impl Rule {
    /// The most arguments of one rule. The programs' parser stops at 254 and needs some itself.
    pub const MAX_TOKENS: usize = 240;

    /// A rule of these arguments, unquoted, as the program should receive them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidToken`] if an argument cannot be represented, or if there are more than
    /// [`Rule::MAX_TOKENS`].
    pub fn from_args<I>(args: I) -> Result<Self, Error>
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let tokens = args.into_iter().map(Token::new).collect::<Result<Vec<_>, _>>()?;
        Self::of_checked(tokens)
    }

    /// A rule of arguments that were already checked.
    fn of_checked(tokens: Vec<Token>) -> Result<Self, Error> {
        let rule = Self { checked: most(&tokens), ..Self::observed(tokens, None) };
        rule.check_writable()?;
        Ok(rule)
    }

    /// Parses the arguments of a rule in restore syntax, including its quoting: `-s 10.0.0.0/8 -m comment --comment "a
    /// b" -j ACCEPT`. No shell is involved.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidToken`] as for [`Rule::from_args`], or for an unclosed quotation.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.contains(['\n', '\0']) {
            return Err(Error::new(
                ErrorKind::InvalidToken,
                format!("rule \"{}\" contains a newline or NUL byte", excerpt(text)),
            ));
        }
        let line = split(text, Reading::Restore);
        if line.open_quote {
            return Err(Error::new(
                ErrorKind::InvalidToken,
                format!("rule \"{}\" leaves a quotation open", excerpt(text)),
            ));
        }
        let rule = Self::observed(line.tokens, None);
        rule.check_writable()?;
        Ok(Self { checked: most(&rule.tokens), ..rule })
    }

    /// Starts building a rule argument by argument.
    pub fn builder() -> RuleBuilder {
        // Enough for most rules.
        RuleBuilder { tokens: Vec::with_capacity(8), error: None }
    }

    pub(crate) fn observed(tokens: Vec<Token>, counters: Option<Counters>) -> Self {
        Self { tokens, counters, source: None, lossy: false, checked: None }
    }

    /// Remembers the text from which it was parsed, if printing would give another. An empty text stands for a trailing
    /// blank, which programs up to 1.8.7 print for a rule without arguments.
    pub(crate) fn remember(mut self, source: Option<&str>, lossy: bool) -> Self {
        self.lossy = lossy;
        self.source = source.filter(|s| s.is_empty() || self.arguments() != **s).map(Into::into);
        self
    }

    /// Fails if the restore format cannot represent this rule.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        if self.lossy {
            return Err(Error::new(
                ErrorKind::InvalidToken,
                format!(
                    "rule \"{}\" was read from bytes that are not UTF-8 and cannot be written back",
                    excerpt(&self.arguments())
                ),
            ));
        }
        if self.tokens.len() > Self::MAX_TOKENS {
            return Err(Error::new(
                ErrorKind::InvalidToken,
                format!(
                    "rule has {} arguments, iptables-restore takes at most {}",
                    self.tokens.len(),
                    Self::MAX_TOKENS
                ),
            ));
        }
        if self.checked.is_some() { Ok(()) } else { self.tokens.iter().try_for_each(Token::check_writable) }
    }

    /// Upper bound of the length of its printed arguments.
    pub(crate) fn most_len(&self) -> u32 {
        self.checked.or_else(|| most(&self.tokens)).map_or(0, NonZeroU32::get)
    }

    /// The arguments one by one, unquoted, as the program receives them. [`Rule::arguments`] is their text.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Sets the counters, which a restore then writes.
    #[must_use]
    pub fn with_counters(mut self, counters: Counters) -> Self {
        self.counters = Some(counters);
        self
    }

    /// Target of the jump (`-j`) or goto (`-g`): a chain or a target extension. `None` for a rule that only counts.
    pub fn target(&self) -> Option<&str> {
        let mut tokens = self.tokens.iter();
        while let Some(token) = tokens.next() {
            let glued = ["--jump=", "--goto="].iter().find_map(|option| token.as_str().strip_prefix(option));
            if glued.is_some() {
                return glued;
            }
            match token.as_str() {
                "-j" | "--jump" | "-g" | "--goto" => return tokens.next().map(Token::as_str),
                // Its argument may look like an option.
                "--comment" | "--log-prefix" | "--nflog-prefix" | "--string" | "--hex-string" => drop(tokens.next()),
                _ => {}
            }
        }
        None
    }

    /// The text of its (first) comment.
    pub fn comment(&self) -> Option<&str> {
        let at = self.tokens.iter().position(|t| t.as_str() == "--comment")?;
        self.tokens.get(at.checked_add(1)?).map(Token::as_str)
    }

    /// The arguments as one text, quoted for the restore format. [`Rule::tokens`] has them one by one.
    pub fn arguments(&self) -> String {
        let mut out = String::new();
        self.write_arguments(&mut out);
        out
    }

    /// Appends the arguments in our own quoting.
    pub(crate) fn write_arguments(&self, out: &mut String) {
        for (index, token) in self.tokens.iter().enumerate() {
            if index > 0 {
                out.push(' ');
            }
            token.quote_into(out);
        }
    }

    /// Appends the text after the chain, exactly as parsed if it was.
    pub(crate) fn write_source(&self, out: &mut String) {
        if self.source.is_some() || !self.tokens.is_empty() {
            out.push(' ');
        }
        match &self.source {
            Some(source) => out.push_str(source),
            None => self.write_arguments(out),
        }
    }
}

/// Upper bound of the printed length of these arguments: quoting at most doubles it. `None` if there are none.
fn most(tokens: &[Token]) -> Option<NonZeroU32> {
    let most = tokens.iter().map(|token| token.as_str().len().saturating_mul(2).saturating_add(3));
    NonZeroU32::new(u32::try_from(most.fold(0, usize::saturating_add)).unwrap_or(u32::MAX))
}

/// The arguments, quoted for the restore format.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.arguments())
    }
}

/// Builds a [`Rule`]. [`build`](RuleBuilder::build) reports the first invalid argument.
#[derive(Clone, Debug)]
#[must_use]
pub struct RuleBuilder {
    tokens: Vec<Token>,
    error: Option<Error>,
}

impl RuleBuilder {
    /// The longest comment in bytes (`XT_MAX_COMMENT_LEN` minus the NUL, `include/uapi/linux/netfilter/xt_comment.h`).
    pub const MAX_COMMENT_LEN: usize = 255;

    /// Adds one argument.
    pub fn arg(self, arg: impl AsRef<str>) -> Self {
        self.token(Token::new(arg))
    }

    fn token(mut self, token: Result<Token, Error>) -> Self {
        match token {
            Ok(token) => self.tokens.push(token),
            Err(error) => self.error = self.error.or(Some(error)),
        }
        self
    }

    /// Adds several arguments.
    pub fn args<I>(self, args: I) -> Self
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        args.into_iter().fold(self, Self::arg)
    }

    /// Adds `-m comment --comment TEXT`. At most 255 bytes, no newline, no NUL. Longer text is refused, not truncated.
    pub fn comment(mut self, text: &str) -> Self {
        if text.len() > Self::MAX_COMMENT_LEN {
            self.error = self.error.or(Some(Error::new(
                ErrorKind::InvalidToken,
                format!(
                    "comment \"{}\" has {} bytes, the kernel takes at most {}",
                    excerpt(text),
                    text.len(),
                    Self::MAX_COMMENT_LEN
                ),
            )));
        }
        self.args(["-m", "comment", "--comment", text])
    }

    /// Adds `-m set --match-set SET DIRECTIONS`, e.g. `dst,dst`.
    pub fn match_set(self, set: &str, directions: &str) -> Self {
        self.args(["-m", "set", "--match-set", set, directions])
    }

    /// Adds `-j CHAIN`.
    pub fn jump(self, chain: &ChainName) -> Self {
        self.arg("-j").token(Token::of_chain(chain))
    }

    /// Adds `-j TARGET` for a target extension or verdict: `ACCEPT`, `MASQUERADE`, …
    pub fn target(self, target: &str) -> Self {
        self.args(["-j", target])
    }

    /// # Errors
    /// [`ErrorKind::InvalidToken`] for the first argument that cannot be represented.
    pub fn build(self) -> Result<Rule, Error> {
        if let Some(error) = self.error {
            return Err(error);
        }
        Rule::of_checked(self.tokens)
    }
}
