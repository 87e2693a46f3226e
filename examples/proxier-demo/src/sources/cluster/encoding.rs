//! JSON or protobuf: splits answers of an API server into objects that are read one at a time.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::protobuf::{self, Field, text};
use crate::yaml;

mod list;

pub(super) use list::{List, Part};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Protobuf,
}

/// Longest event of a watch in bytes. An object of an API server has at most 3 MiB.
const EVENT_BYTES: usize = 16 << 20;

/// An event of a watch, and the bytes after it; `None`: it is incomplete.
type Split<'a> = Option<(&'a [u8], &'a [u8])>;

impl Encoding {
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Encoding::Json => "application/json",
            Encoding::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    pub(super) fn of_answer(content_type: Option<&str>) -> Self {
        let is_protobuf = content_type.is_some_and(|text| text.starts_with(Encoding::Protobuf.media_type()));
        if is_protobuf { Encoding::Protobuf } else { Encoding::Json }
    }

    /// Splits off the first event of a watch: a line of JSON, or a message with a four-byte length. `None`: it is
    /// incomplete. The first `searched` bytes are known to have no line end.
    /// Errors: the event is too long, so this is not a watch in this encoding.
    pub(super) fn split_event(self, bytes: &[u8], searched: usize) -> Result<Split<'_>, String> {
        let too_long = || format!("an event of the watch is longer than {EVENT_BYTES} bytes");
        match self {
            Encoding::Json => {
                let new = bytes.get(searched..).unwrap_or_default();
                let Some(end) = new.iter().position(|byte| *byte == b'\n') else {
                    return if bytes.len() > EVENT_BYTES { Err(too_long()) } else { Ok(None) };
                };
                Ok(bytes
                    .split_at_checked(searched.saturating_add(end))
                    .map(|(event, rest)| (event, rest.get(1..).unwrap_or_default())))
            }
            Encoding::Protobuf => {
                let Some((length, rest)) = bytes.split_first_chunk() else { return Ok(None) };
                let length = usize::try_from(u32::from_be_bytes(*length)).ok().filter(|length| *length <= EVENT_BYTES);
                Ok(rest.split_at_checked(length.ok_or_else(too_long)?))
            }
        }
    }

    /// Whether this may be between two events, or after the last.
    pub(super) fn is_blank(self, bytes: &[u8]) -> bool {
        bytes.is_empty() || self == Encoding::Json && bytes.iter().all(u8::is_ascii_whitespace)
    }

    /// Whether this begins like an event, even if the rest is damaged.
    pub(super) fn begins_as_event(self, bytes: &[u8]) -> bool {
        match self {
            Encoding::Json => bytes.trim_ascii_start().starts_with(b"{"),
            // The tag of the event's type.
            Encoding::Protobuf => bytes.starts_with(b"\n"),
        }
    }

    /// Replaces invalid text: in JSON, U+FFFD for what is not UTF-8. Protobuf does this for each text when it is read.
    pub(super) fn readable(self, bytes: &[u8]) -> Cow<'_, [u8]> {
        if self == Encoding::Json
            && let Cow::Owned(text) = text(bytes)
        {
            return text.into_bytes().into();
        }
        bytes.into()
    }

    /// The object that makes up the whole body.
    pub(super) fn object(self, body: &[u8]) -> Result<Object<'_>, String> {
        Ok(match self {
            Encoding::Json => Object::Json(std::str::from_utf8(body).map_err(|error| error.to_string())?),
            Encoding::Protobuf => Object::Protobuf(protobuf::object(body).map_err(|error| error.to_string())?),
        })
    }

    /// The type of an event and its object.
    pub(super) fn event(self, bytes: &[u8]) -> Result<(Cow<'_, str>, Object<'_>), String> {
        #[derive(Deserialize)]
        struct Line<'a> {
            #[serde(rename = "type", borrow)]
            what: Cow<'a, str>,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        match self {
            Encoding::Json => {
                let read = serde_json::from_slice(bytes);
                let Line { what, object } = read.map_err(|error| yaml::in_words(error.to_string()))?;
                Ok((what, Object::Json(object.get())))
            }
            Encoding::Protobuf => {
                let (what, object) = protobuf::event(bytes).map_err(|error| error.to_string())?;
                Ok((what, Object::Protobuf(object)))
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Object<'a> {
    Json(&'a str),
    /// Without the envelope.
    Protobuf(&'a [u8]),
}

impl Object<'_> {
    /// The object up to its metadata, as far as the encoding allows that.
    pub(super) fn head(self) -> Self {
        match self {
            Object::Json(_) => self,
            Object::Protobuf(message) => Object::Protobuf(protobuf::head(message)),
        }
    }

    /// Decodes it, in protobuf with these fields.
    /// Errors: the path of the field at fault (empty for the object itself), and what is wrong with it.
    pub(super) fn read<T: DeserializeOwned>(self, fields: &'static [Field]) -> Result<T, (String, String)> {
        match self {
            Object::Json(text) => yaml::read_json(text).or_else(|error| match without_lone_surrogates(text) {
                Some(text) => yaml::read_json(&text),
                None => Err(error),
            }),
            Object::Protobuf(message) => protobuf::read(message, fields),
        }
    }
}

/// The text with U+FFFD for unpaired escaped surrogates, as Go reads them; `None` if there are none.
fn without_lone_surrogates(text: &str) -> Option<String> {
    let unit = |text: &str| {
        let digits = text.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut rest, mut mended, mut is_mended) = (text, String::new(), false);
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        mended.push_str(before);
        let next = escape.get(6..).and_then(unit);
        let (length, is_lone) = match (unit(escape), next) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => (12, false),
            (Some(0xd800..=0xdfff), _) => (6, true),
            _ => (2, false),
        };
        is_mended |= is_lone;
        let (whole, after) = escape.split_at_checked(length).unwrap_or((escape, ""));
        mended.push_str(if is_lone { "\\ufffd" } else { whole });
        rest = after;
    }
    mended.push_str(rest);
    is_mended.then_some(mended)
}

#[cfg(test)]
mod tests;
