//! Many elements in little memory.

use super::{Element, ElementData, ElementKey, Value};

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
        if let (ElementKey::Value(key), Some(value)) = (&element.key, value.filter(|_| !element.has_extras())) {
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
