//! Data that nft stores with tables, chains, rules, sets and elements: a list of type, length and value, with one byte
//! each for type and length.

use crate::model::InvalidValue;
use crate::uapi::NFT_USERDATA_MAXLEN;

/// `NFTNL_UDATA_*_COMMENT`, except for sets.
pub(crate) const COMMENT: u8 = 0;
/// `NFTNL_UDATA_SET_KEYBYTEORDER`.
pub(crate) const SET_KEY_BYTE_ORDER: u8 = 0;
/// `NFTNL_UDATA_SET_DATABYTEORDER`.
pub(crate) const SET_DATA_BYTE_ORDER: u8 = 1;
pub(crate) const SET_MERGE_ELEMENTS: u8 = 2;
pub(crate) const SET_KEY_TYPEOF: u8 = 3;
pub(crate) const SET_DATA_TYPEOF: u8 = 4;
/// `NFTNL_UDATA_SET_COMMENT`.
pub(crate) const SET_COMMENT: u8 = 7;
/// `NFTNL_UDATA_SET_ELEM_FLAGS`.
pub(crate) const ELEMENT_FLAGS: u8 = 1;

/// Whether a comment and this many other bytes fit.
pub(crate) fn check(comment: Option<&str>, others: usize) -> Result<(), InvalidValue> {
    let Some(comment) = comment else { return Ok(()) };
    let invalid = |why| Err(InvalidValue::new(format!("comment {comment:?}"), why));
    if comment.contains('\0') {
        return invalid("it has a NUL character");
    }
    // Type, length and NUL.
    if comment.len().saturating_add(3).saturating_add(others) > NFT_USERDATA_MAXLEN {
        return invalid("the kernel keeps 256 bytes with an object, of which a comment takes three more than it has");
    }
    Ok(())
}

/// Appends one item. A value longer than 255 bytes is omitted.
pub(crate) fn put(out: &mut Vec<u8>, kind: u8, value: &[u8]) {
    if let Ok(length) = u8::try_from(value.len()) {
        out.extend_from_slice(&[kind, length]);
        out.extend_from_slice(value);
    }
}

/// Appends a comment with the NUL that nft requires.
pub(crate) fn put_comment(out: &mut Vec<u8>, kind: u8, comment: &str) {
    let mut bytes = comment.as_bytes().to_vec();
    bytes.push(0);
    put(out, kind, &bytes);
}

/// The items, up to the first truncated one.
pub(crate) fn items(bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (&[kind, length], behind) = rest.split_first_chunk::<2>()?;
        let (value, behind) = behind.split_at_checked(usize::from(length))?;
        rest = behind;
        Some((kind, value))
    })
}

/// Splits userdata into the comment and the rest, which is unchanged. If it is not such a list, all of it is the rest.
pub(crate) fn split_comment(bytes: &[u8], kind: u8) -> (Option<String>, Vec<u8>) {
    let whole: usize = items(bytes).map(|(_, value)| value.len().saturating_add(2)).fold(0, usize::saturating_add);
    if whole != bytes.len() {
        return (None, bytes.to_vec());
    }
    let mut comment = None;
    let mut rest = Vec::new();
    for (found, value) in items(bytes) {
        match value.split_last() {
            Some((0, text)) if found == kind && comment.is_none() && std::str::from_utf8(text).is_ok() => {
                comment = Some(String::from_utf8_lossy(text).into_owned());
            }
            _ => put(&mut rest, found, value),
        }
    }
    (comment, rest)
}

pub(crate) fn join_comment(comment: Option<&str>, kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(comment) = comment {
        put_comment(&mut out, kind, comment);
    }
    out.extend_from_slice(rest);
    out
}
