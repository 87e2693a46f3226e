//! Elements of sets and maps.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::{InvalidValue, Name, Value, network};
use crate::expr::Expression;

/// Verdict on a packet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum Verdict {
    /// Accept the packet in this base chain.
    Accept,
    /// Drop the packet.
    Drop,
    /// Evaluate the next rule.
    Continue,
    /// Return to the calling chain.
    Return,
    /// Jump to a chain and return.
    Jump(Name),
    /// Go to a chain without returning.
    Goto(Name),
    /// Another verdict, such as `NF_QUEUE` with its bits.
    Other(i32),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Continue => f.write_str("continue"),
            Verdict::Return => f.write_str("return"),
            Verdict::Jump(chain) => write!(f, "jump {chain}"),
            Verdict::Goto(chain) => write!(f, "goto {chain}"),
            Verdict::Other(code) => write!(f, "verdict {code}"),
        }
    }
}

/// Identity of an element.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum ElementKey {
    /// One value. In a single-field set of intervals, the start of a range.
    Value(Value),
    /// A range from the first to the last value, both inclusive. Boxed, because most elements have one value.
    Range(Box<(Value, Value)>),
    /// The end of a range in a single-field set of intervals: the first value after it. Only occurs if elements are
    /// streamed; complete reads return [`Range`](ElementKey::Range).
    End(Value),
    /// All keys that no other element matches. Since Linux 5.13.
    CatchAll,
}

impl ElementKey {
    /// All values from the first to the last; [`Value`](ElementKey::Value) if they are equal.
    pub fn range(first: Value, last: Value) -> Self {
        if first == last { ElementKey::Value(first) } else { ElementKey::Range(Box::new((first, last))) }
    }

    /// The value, or the first one.
    pub(crate) fn start(&self) -> Option<&Value> {
        match self {
            ElementKey::Value(value) | ElementKey::End(value) => Some(value),
            ElementKey::Range(ends) => Some(&ends.0),
            ElementKey::CatchAll => None,
        }
    }

    /// The first and the last value of a value or range.
    pub fn ends(&self) -> Option<(&Value, &Value)> {
        match self {
            ElementKey::Value(value) => Some((value, value)),
            ElementKey::Range(ends) => {
                let (first, last) = &**ends;
                Some((first, last))
            }
            ElementKey::End(_) | ElementKey::CatchAll => None,
        }
    }
}

/// Data of a map's element.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum ElementData {
    /// A verdict.
    Verdict(Verdict),
    /// A value.
    Value(Value),
    /// The name of an object.
    Object(Name),
}

/// An element of a set or map. [`Set`](crate::Set) shows several.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Element {
    /// Identity of the element.
    pub key: ElementKey,
    /// Data of a map's element; `None` in a set.
    pub data: Option<ElementData>,
    /// `None` means the default.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    extras: Option<Box<ElementExtras>>,
}

impl PartialEq for Element {
    fn eq(&self, other: &Self) -> bool {
        (&self.key, &self.data, self.extras()) == (&other.key, &other.data, other.extras())
    }
}

impl Eq for Element {}

/// Timeout, expressions and comment of an element: [`Element::extras`]. Few elements have them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ElementExtras {
    /// Timeout in whole milliseconds. `None` for the set's, zero for none.
    pub timeout: Option<Duration>,
    /// Remaining lifetime; read-only.
    pub expiration: Option<Duration>,
    /// Counters and similar expressions.
    #[cfg_attr(feature = "serde", serde(default))]
    pub expressions: Vec<Expression>,
    /// A comment. nft accepts at most 128 bytes, the kernel stores up to 253.
    pub comment: Option<Box<str>>,
}

impl Element {
    /// An element with this key.
    pub fn new(key: ElementKey) -> Self {
        Element { key, data: None, extras: None }
    }

    /// Timeouts, expressions and comment.
    pub fn extras(&self) -> &ElementExtras {
        static NONE: ElementExtras =
            ElementExtras { timeout: None, expiration: None, expressions: Vec::new(), comment: None };
        self.extras.as_deref().unwrap_or(&NONE)
    }

    /// The timeout of an element that was read from a set with this default. Before Linux 6.12 only the missing
    /// expiration shows that the default does not apply to it.
    pub(crate) fn read_timeout(&self, default: Option<Duration>) -> Option<Duration> {
        let ElementExtras { timeout, expiration, .. } = self.extras();
        timeout.or(default.filter(|_| expiration.is_some()))
    }

    /// Mutable timeout, expressions and comment. Allocates them if the element had none.
    pub fn extras_mut(&mut self) -> &mut ElementExtras {
        self.extras.get_or_insert_default()
    }

    /// An element of one value.
    pub fn value(value: impl Into<Value>) -> Self {
        Element::new(ElementKey::Value(value.into()))
    }

    /// An element for all values from the first to the last, compared byte by byte: numbers must be in network byte
    /// order ([`Value::be32`]). In a concatenation each field has its own range.
    pub fn range(first: impl Into<Value>, last: impl Into<Value>) -> Self {
        Element::new(ElementKey::range(first.into(), last.into()))
    }

    /// An element for all addresses of a network, or a single one if the prefix is the whole address. Bits behind the
    /// prefix are ignored. nft prints it as a prefix.
    ///
    /// # Errors
    /// The prefix is longer than the address.
    pub fn network(address: IpAddr, prefix: u8) -> Result<Self, InvalidValue> {
        let (first, last) = network(address, prefix)?;
        Ok(Element::range(first, last))
    }

    pub(crate) fn forget_expiration(&mut self) {
        if let Some(extras) = &mut self.extras {
            extras.expiration = None;
        }
    }

    /// Merges another element whose keys overlap or follow these, if it is otherwise equal and does not start earlier.
    pub(crate) fn join(&mut self, other: &Element) -> bool {
        let (Some((first, last)), Some((from, to))) = (self.key.ends(), other.key.ends()) else { return false };
        let touches = from <= last || last.successor().as_ref() == Some(from);
        let (one, two) = (self.extras(), other.extras());
        let is_equal = (&self.data, &one.timeout, &one.expressions, &one.comment)
            == (&other.data, &two.timeout, &two.expressions, &two.comment);
        let joined = touches && is_equal;
        if joined {
            self.key = ElementKey::range(first.clone(), last.max(to).clone());
        }
        joined
    }

    /// Sets the data, for a map to values.
    #[must_use]
    pub fn maps_to(mut self, data: impl Into<Value>) -> Self {
        self.data = Some(ElementData::Value(data.into()));
        self
    }

    /// Sets the comment.
    #[must_use]
    pub fn comment(mut self, comment: impl Into<Box<str>>) -> Self {
        self.extras_mut().comment = Some(comment.into());
        self
    }
}

netlink_batch::settings! {
    Element:
    /// Sets the verdict, for a map to verdicts.
    verdict(verdict: Verdict) |of| of.data = Some(ElementData::Verdict(verdict));
    /// Sets the object, for a map to objects.
    object(name: Name) |of| of.data = Some(ElementData::Object(name));
    /// Sets the timeout.
    timeout(timeout: Duration) |of| of.extras_mut().timeout = Some(timeout);
}

/// Elements in order, for sets with many: an element takes the bytes of its key and value, and 5 more. A range, a
/// verdict, an object or a timeout takes as much as an [`Element`].
#[derive(Clone, Debug, Default)]
pub struct ElementList {
    /// The length of a key, the key, and the value in a map; or [`WHOLE`] and the index in `whole`.
    bytes: Vec<u8>,
    /// Where each element ends in `bytes`. A transaction has no room for 4 GiB.
    ends: Vec<u32>,
    whole: Vec<Element>,
}

/// Longer than any key.
const WHOLE: u8 = u8::MAX;

fn number(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

impl ElementList {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds an element at the end.
    pub fn push(&mut self, element: Element) {
        let value = match &element.data {
            None => Some(&[][..]),
            Some(ElementData::Value(value)) if !value.is_empty() => Some(value.as_bytes()),
            Some(_) => None,
        };
        if let (ElementKey::Value(key), Some(value)) = (&element.key, value.filter(|_| element.extras.is_none())) {
            self.bytes.push(u8::try_from(key.len()).unwrap_or(WHOLE));
            self.bytes.extend_from_slice(key.as_bytes());
            self.bytes.extend_from_slice(value);
        } else {
            self.bytes.push(WHOLE);
            self.bytes.extend_from_slice(&number(self.whole.len()).to_ne_bytes());
            self.whole.push(element);
        }
        self.ends.push(number(self.bytes.len()));
    }

    /// The element with this index.
    pub fn get(&self, index: usize) -> Option<Element> {
        let place = |end: &u32| usize::try_from(*end).ok();
        let start = index.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).and_then(place))?;
        let (length, rest) = self.bytes.get(start..place(self.ends.get(index)?)?)?.split_first()?;
        if *length == WHOLE {
            return self.whole.get(place(&u32::from_ne_bytes(*rest.first_chunk()?))?).cloned();
        }
        let (key, value) = rest.split_at_checked(usize::from(*length))?;
        let mut element = Element::value(Value::of(key));
        element.data = (!value.is_empty()).then(|| ElementData::Value(Value::of(value)));
        Some(element)
    }

    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Element> {
        (0..self.len()).filter_map(|index| self.get(index))
    }

    /// Those that are more than a key and a value.
    pub(crate) fn whole(&self) -> &[Element] {
        &self.whole
    }
}

impl FromIterator<Element> for ElementList {
    fn from_iter<I: IntoIterator<Item = Element>>(elements: I) -> Self {
        let mut list = ElementList::default();
        elements.into_iter().for_each(|element| list.push(element));
        list
    }
}
