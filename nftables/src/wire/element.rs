//! Encodes and decodes elements, and ranges as the pairs of elements that the kernel stores.

use std::time::Duration;

use netlink_batch::{Attrs, Be32, Be64, Encoder, NulStr, RawAttrs, WireError};

use super::parts::{
    get_data, get_name, get_value, millis, missing, put_data, put_expressions, put_name, put_verdict, split,
};
use crate::attrs::{ElemAttr, ElemListAttr, ListAttr};
use crate::expr::{get_expression, get_expressions};
use crate::model::{Element, ElementData, ElementExtras, ElementKey, Set, SetFlags, SetKey, Value};
use crate::uapi;
use crate::userdata;

/// How a set stores ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementForm {
    /// Not at all.
    Single,
    /// Two elements: the start, and the first value after the end.
    Pairs,
    /// Both ends in one element.
    Ends,
}

impl ElementForm {
    pub(crate) fn of(set: &Set) -> Self {
        if !set.flags.contains(SetFlags::INTERVAL) {
            ElementForm::Single
        } else if set.key_type.is_concatenation() {
            ElementForm::Ends
        } else {
            ElementForm::Pairs
        }
    }
}

/// Appends the set to which the elements of a message belong.
pub(crate) fn put_set_of_elements(out: &mut Encoder, set: &SetKey) {
    put_name(out, ElemListAttr::TABLE, &set.table.name);
    put_name(out, ElemListAttr::SET, &set.name);
}

/// Appends an element in the set's form: one attribute, or two for a range of [`ElementForm::Pairs`].
pub(crate) fn put_element(out: &mut Encoder, form: ElementForm, element: &Element) {
    match (&element.key, form) {
        (ElementKey::Value(_) | ElementKey::Range(_), ElementForm::Pairs) => put_pair(out, element),
        (ElementKey::Value(value), ElementForm::Ends) => put_one_element(out, element, value, Some(value), 0, false),
        (ElementKey::Range(ends), _) => put_one_element(out, element, &ends.0, Some(&ends.1), 0, false),
        (ElementKey::Value(value), ElementForm::Single) => put_one_element(out, element, value, None, 0, false),
        (ElementKey::End(value), _) => {
            put_one_element(
                out,
                &Element::new(element.key.clone()),
                value,
                None,
                uapi::NFT_SET_ELEM_INTERVAL_END,
                false,
            );
        }
        (ElementKey::CatchAll, _) => {
            put_one_element(out, element, &Value::EMPTY, None, uapi::NFT_SET_ELEM_CATCHALL, false);
        }
    }
}

fn put_pair(out: &mut Encoder, element: &Element) {
    let Some((first, last)) = element.key.ends() else { return };
    let behind = last.successor();
    put_one_element(out, element, first, None, 0, behind.is_none());
    if let Some(behind) = behind {
        let end = Element::new(ElementKey::End(behind));
        put_element(out, ElementForm::Pairs, &end);
    }
}

fn put_one_element(out: &mut Encoder, element: &Element, key: &Value, last: Option<&Value>, flags: u32, open: bool) {
    out.nest(ListAttr::ELEM, |out| {
        if flags != 0 {
            out.attr(ElemAttr::FLAGS, &Be32(flags));
        }
        if !key.is_empty() {
            put_data(out, ElemAttr::KEY, key);
        }
        if let Some(last) = last {
            put_data(out, ElemAttr::KEY_END, last);
        }
        match &element.data {
            None => {}
            Some(ElementData::Value(value)) => put_data(out, ElemAttr::DATA, value),
            Some(ElementData::Verdict(verdict)) => put_verdict(out, ElemAttr::DATA, verdict),
            Some(ElementData::Object(name)) => put_name(out, ElemAttr::OBJREF, name),
        }
        let ElementExtras { timeout, expiration, expressions, comment } = element.extras();
        if let Some(timeout) = timeout {
            out.attr(ElemAttr::TIMEOUT, &Be64(millis(*timeout)));
        }
        if let Some(left) = expiration {
            out.attr(ElemAttr::EXPIRATION, &Be64(millis(*left)));
        }
        put_expressions(out, ElemAttr::EXPR, ElemAttr::EXPRESSIONS, expressions);
        if comment.is_some() || open {
            let mut bytes = userdata::join_comment(comment.as_deref(), userdata::COMMENT, &[]);
            if open {
                // nft's mark for a range without an end: NFTNL_SET_ELEM_F_INTERVAL_OPEN.
                userdata::put(&mut bytes, userdata::ELEMENT_FLAGS, &1_u32.to_ne_bytes());
            }
            out.attr(ElemAttr::USERDATA, &bytes.as_slice());
        }
    });
}

/// Calls `each` for every element of a message, in the kernel's form.
pub(crate) fn get_elements(payload: &[u8], mut each: impl FnMut(Element)) -> Result<(), WireError> {
    let (_, attributes) = split(payload)?;
    for attr in Attrs::<ElemListAttr<'_>>::new(attributes).iter() {
        if let ElemListAttr::Elements(list) = attr? {
            for raw in RawAttrs::new(list) {
                each(get_element(raw?.payload)?);
            }
        }
    }
    Ok(())
}

fn get_element(attributes: &[u8]) -> Result<Element, WireError> {
    let (mut key, mut last, mut flags) = (None, None, 0);
    let mut element = Element::new(ElementKey::CatchAll);
    for attr in Attrs::<ElemAttr<'_>>::new(attributes).iter() {
        match attr? {
            ElemAttr::Key(data) => key = get_value(data)?,
            ElemAttr::KeyEnd(data) => last = get_value(data)?,
            ElemAttr::Data(data) => element.data = get_data(data)?,
            ElemAttr::Flags(Be32(bits)) => flags = bits,
            ElemAttr::Timeout(Be64(millis)) => element.extras_mut().timeout = Some(Duration::from_millis(millis)),
            ElemAttr::Expiration(Be64(millis)) => element.extras_mut().expiration = Some(Duration::from_millis(millis)),
            ElemAttr::Userdata(bytes) => {
                element.extras_mut().comment = userdata::items(bytes)
                    .find(|(kind, _)| *kind == userdata::COMMENT)
                    .map(|(_, text)| String::from_utf8_lossy(NulStr::new(text).as_bytes()).into_owned().into());
            }
            ElemAttr::Expr(one) => element.extras_mut().expressions = vec![get_expression(one)?],
            ElemAttr::Expressions(list) => element.extras_mut().expressions = get_expressions(list)?,
            ElemAttr::Objref(name) => element.data = Some(ElementData::Object(get_name(name))),
            ElemAttr::Pad(_) | ElemAttr::Unknown(_) => {}
        }
    }
    element.key = match (key, last) {
        _ if flags & uapi::NFT_SET_ELEM_CATCHALL != 0 => ElementKey::CatchAll,
        (None, _) => return Err(missing("NFTA_SET_ELEM_KEY")),
        (Some(key), _) if flags & uapi::NFT_SET_ELEM_INTERVAL_END != 0 => ElementKey::End(key),
        (Some(key), Some(last)) => ElementKey::range(key, last),
        (Some(key), _) => ElementKey::Value(key),
    };
    Ok(element)
}

/// Combines starts and ends, in any order, to ranges sorted by value.
pub(crate) fn pair_intervals(elements: Vec<Element>) -> Vec<Element> {
    let mut ends: Vec<Value> = Vec::new();
    let mut starts: Vec<Element> = Vec::new();
    let mut others: Vec<Element> = Vec::new();
    for element in elements {
        match &element.key {
            ElementKey::End(value) => ends.push(value.clone()),
            ElementKey::Value(_) => starts.push(element),
            _ => others.push(element),
        }
    }
    ends.sort();
    starts.sort_by(|one, other| one.key.cmp(&other.key));
    let behind: Vec<Option<Value>> =
        starts.iter().skip(1).map(|next| next.key.start().cloned()).chain([None]).collect();
    let mut ends = ends.into_iter().peekable();
    for (element, next) in starts.iter_mut().zip(behind) {
        let ElementKey::Value(first) = &element.key else { continue };
        // A range ends at the first end after its start, or at the next start, because the kernel does not list expired
        // ends.
        while ends.next_if(|end| end <= first).is_some() {}
        let last = match ends.peek().into_iter().chain(next.as_ref()).min() {
            Some(behind) => behind.predecessor(),
            None => Value::new(&vec![u8::MAX; first.len()]).ok(),
        };
        if let Some(last) = last.filter(|last| last > first) {
            element.key = ElementKey::range(first.clone(), last);
        }
    }
    starts.append(&mut others);
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As nft writes them; the kernel's strict validation wants it of nests.
    #[test]
    fn values_are_marked_as_nests() {
        let mut out = Encoder::new();
        put_element(&mut out, ElementForm::Single, &Element::value(Value::byte(1)));
        let element = RawAttrs::new(out.as_slice()).next().unwrap().unwrap();
        let key = RawAttrs::new(element.payload).next().unwrap().unwrap();
        let nest = netlink_batch::NLA_F_NESTED;
        assert_eq!((element.type_field, key.type_field), (ListAttr::ELEM | nest, ElemAttr::KEY | nest));
    }

    #[test]
    fn a_range_ends_where_the_next_one_starts() {
        let start = |byte| Element::value(Value::byte(byte));
        let end = |byte| Element::new(ElementKey::End(Value::byte(byte)));
        // The end of the first range has expired; the last range has none.
        let paired = pair_intervals(vec![start(9), end(8), start(1), start(5), end(0), start(20)]);
        let range = |first, last| Element::range(Value::byte(first), Value::byte(last));
        assert_eq!(paired, [range(1, 4), range(5, 7), range(9, 19), range(20, 255)]);
    }
}
