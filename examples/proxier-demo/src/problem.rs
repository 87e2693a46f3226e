//! Bad input and where it is: file, document, object, field; and the reason.

use std::borrow::Cow;
use std::fmt;

use proxier_core::ports::PortError;

use crate::exit::{BAD_INPUT, FAILED};
use crate::output::misleads;

/// A part of the input that cannot be used. Prints on one line: `web.yaml: document 2: Service demo/web:
/// spec.ports[0].port: invalid type: string "http", expected a whole number`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem {
    /// The file, flag or server from which it came.
    pub origin: String,
    /// Number of the document in the file, counted from 1.
    pub document: Option<usize>,
    /// Kind and name of the object, as far as readable.
    pub object: Option<String>,
    /// Path of the field; empty if no single field is at fault.
    pub field: String,
    /// What is wrong, and what to do.
    pub reason: String,
}

impl Problem {
    /// Creates a problem with a whole file or flag.
    pub fn new(origin: impl Into<String>, reason: impl Into<String>) -> Self {
        Problem { origin: origin.into(), reason: reason.into(), ..Problem::default() }
    }

    #[must_use]
    pub fn at(mut self, field: impl Into<String>) -> Self {
        self.field = field.into();
        self
    }

    #[must_use]
    pub fn about(mut self, object: impl Into<String>) -> Self {
        self.object = Some(object.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let document = self.document.map(|number| format!("document {number}"));
        let field = Some(self.field.as_str()).filter(|field| !field.is_empty());
        let origin = Some(self.origin.as_str()).filter(|origin| !origin.is_empty());
        let parts = [origin, document.as_deref(), self.object.as_deref(), field];
        for part in parts.into_iter().flatten() {
            write!(f, "{}: ", OneLine(part))?;
        }
        OneLine(&self.reason).fmt(f)
    }
}

impl std::error::Error for Problem {}

impl From<Problem> for Vec<Problem> {
    fn from(problem: Problem) -> Self {
        vec![problem]
    }
}

impl From<PortError> for Problem {
    fn from(error: PortError) -> Self {
        Problem::new("", error.to_string())
    }
}

/// Why a command ends early: what to report, and its exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Reported on one line each.
    pub problems: Vec<Problem>,
    /// Exit code: [`FAILED`] or [`BAD_INPUT`].
    pub code: u8,
}

impl Stopped {
    /// Bad usage or bad input.
    pub fn bad_input(problems: impl Into<Vec<Problem>>) -> Self {
        Stopped { problems: problems.into(), code: BAD_INPUT }
    }
}

impl<T: Into<Problem>> From<T> for Stopped {
    fn from(problem: T) -> Self {
        vec![problem.into()].into()
    }
}

impl From<Vec<Problem>> for Stopped {
    fn from(problems: Vec<Problem>) -> Self {
        Stopped { problems, code: FAILED }
    }
}

/// The text without user names and passwords in URLs.
fn without_users(text: &str) -> Cow<'_, str> {
    let mut parts = text.split("://");
    let mut shown = Cow::Borrowed(parts.next().unwrap_or_default());
    for part in parts {
        let authority = part.find(|c: char| c == '/' || c == '"' || c.is_whitespace()).unwrap_or(part.len());
        let start =
            part.get(..authority).and_then(|authority| authority.rfind('@')).map_or(0, |at| at.saturating_add(1));
        shown.to_mut().extend(["://", part.get(start..).unwrap_or_default()]);
    }
    shown
}

/// Untrusted text, shortened to 400 characters, made safe for one line of a terminal, and without passwords in URLs.
#[derive(Clone, Copy, Debug)]
pub struct OneLine<'a>(pub &'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 400;
        let mut before_was_space = false;
        let text = without_users(self.0.trim());
        for c in text.chars().take(SHOWN) {
            let space = matches!(c, ' ' | '\n' | '\r' | '\t');
            match c {
                _ if space && before_was_space => {}
                _ if space => f.write_str(" ")?,
                _ if misleads(c) => write!(f, "{}", c.escape_default())?,
                _ => write!(f, "{c}")?,
            }
            before_was_space = space;
        }
        if text.chars().nth(SHOWN).is_some() { f.write_str("…") } else { Ok(()) }
    }
}

/// An error and its causes, on one line, without repetition.
pub(crate) fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = cause.source();
    }
    text
}
