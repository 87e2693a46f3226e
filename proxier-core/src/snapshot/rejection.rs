//! Ignored values of an object, and why.

use std::fmt;

use super::ObjectKey;
use crate::named::named;

named! {
    /// The kind of a rejected object.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum ObjectKind {
        /// A Service.
        Service = "Service",
        /// An EndpointSlice.
        EndpointSlice = "EndpointSlice",
        /// A Node.
        Node = "Node",
        /// A ServiceCIDR.
        ServiceCidr = "ServiceCIDR",
        /// A file that may contain Services and EndpointSlices.
        File = "file",
        /// The proxy's configuration.
        Configuration = "configuration",
        /// Frontends provided by an agent.
        Frontends = "Frontends",
    }
}

/// A field that was ignored because its value is impossible. The rest of the object counts.
///
/// Prints on one line: `Service demo/web: spec.ports[1].port 70000: not a port (1 to 65535); the port is left out`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rejection {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Namespace and name of the object.
    pub key: ObjectKey,
    /// Path of the field in kubectl's notation: `spec.ports[1].port`.
    pub field: String,
    /// The value, shortened to 64 characters, with control characters escaped; or the names of ignored annotations.
    pub value: String,
    /// Why it is impossible, and the consequence.
    pub reason: &'static str,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key: String = self.key.to_string().chars().flat_map(shown).collect();
        write!(f, "{} {key}: {} {}: {}", self.kind, self.field, self.value, self.reason)
    }
}

/// Collects the rejections of one object.
#[derive(Debug)]
pub(crate) struct Reporter<'a> {
    pub(crate) kind: ObjectKind,
    pub(crate) key: &'a ObjectKey,
    pub(crate) rejections: &'a mut Vec<Rejection>,
}

/// Most problems of an object to keep. One annotation may have a hundred thousand, and each pass reports all.
const MOST: usize = 100;

impl Reporter<'_> {
    pub(crate) fn reject(&mut self, field: impl Into<String>, value: impl fmt::Display, reason: &'static str) {
        const SHOWN: usize = 64;
        if self.rejections.len() >= MOST {
            return;
        }
        let text = value.to_string();
        let mut value: String = text.chars().take(SHOWN).flat_map(shown).collect();
        if text.chars().nth(SHOWN).is_some() {
            value.push('…');
        }
        if value.is_empty() {
            value.push_str("\"\"");
        }
        self.rejections.push(Rejection { kind: self.kind, key: self.key.clone(), field: field.into(), value, reason });
    }

    /// Parses a value if present; reports an invalid one.
    pub(crate) fn read<V: fmt::Display + Copy, T>(
        &mut self,
        field: &str,
        value: Option<V>,
        read: impl FnOnce(V) -> Option<T>,
        reason: &'static str,
    ) -> Option<T> {
        let of = read(value?);
        if let (None, Some(value)) = (&of, value) {
            self.reject(field, value, reason);
        }
        of
    }

    /// Parses a text; an empty one counts as absent.
    pub(crate) fn read_text<T>(
        &mut self,
        field: &str,
        text: Option<&str>,
        read: impl FnOnce(&str) -> Option<T>,
        reason: &'static str,
    ) -> Option<T> {
        self.read(field, text.filter(|text| !text.is_empty()), read, reason)
    }

    /// Parses the texts of a list; ignores and reports invalid ones.
    pub(crate) fn read_all<T>(
        &mut self,
        field: &str,
        texts: &[String],
        mut read: impl FnMut(&str) -> Option<T>,
        reason: &'static str,
    ) -> Vec<T> {
        let read = |(index, text): (usize, &String)| {
            let of = read(text);
            if of.is_none() {
                self.reject(format!("{field}[{index}]"), text, reason);
            }
            of
        };
        texts.iter().enumerate().filter_map(read).collect()
    }
}

/// The character, or its escape if it would break the line.
fn shown(c: char) -> impl Iterator<Item = char> {
    let escape = c.is_control().then(|| c.escape_default());
    let plain = escape.is_none().then_some(c);
    escape.into_iter().flatten().chain(plain)
}
