//! JSON or protobuf: answers of an API server, taken apart into objects that are read one at a time.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::protobuf::{self, Field};
use crate::proxier_demo::yaml;

/// Encoding of the body of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Protobuf,
}

impl Encoding {
    /// Media type in requests and answers.
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Encoding::Json => "application/json",
            Encoding::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// The encoding of an answer with this `Content-Type`.
    pub(super) fn of_answer(content_type: Option<&str>) -> Self {
        let is_protobuf = content_type.is_some_and(|text| text.starts_with(Encoding::Protobuf.media_type()));
        if is_protobuf { Encoding::Protobuf } else { Encoding::Json }
    }

    /// Splits the first event of a watch off: a line of JSON, or a message behind its length in four bytes. `None`: it is not complete. The first
    /// `searched` bytes are known to have no end of a line.
    pub(super) fn split_event(self, bytes: &[u8], searched: usize) -> Option<(&[u8], &[u8])> {
        match self {
            Encoding::Json => {
                let end = searched.saturating_add(bytes.get(searched..)?.iter().position(|byte| *byte == b'\n')?);
                Some((bytes.get(..end)?, bytes.get(end.saturating_add(1)..)?))
            }
            Encoding::Protobuf => {
                let (length, rest) = bytes.split_first_chunk()?;
                rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)
            }
        }
    }

    /// Whether this is what may be between two events, and behind the last.
    pub(super) fn is_blank(self, bytes: &[u8]) -> bool {
        bytes.is_empty() || self == Encoding::Json && bytes.iter().all(u8::is_ascii_whitespace)
    }

    /// The object that is the whole body.
    pub(super) fn object(self, body: &[u8]) -> Result<Object<'_>, String> {
        Ok(match self {
            Encoding::Json => Object::Json(std::str::from_utf8(body).map_err(|error| error.to_string())?),
            Encoding::Protobuf => Object::Protobuf(protobuf::object(body).map_err(|error| error.to_string())?),
        })
    }

    /// An event of a watch.
    pub(super) fn event(self, bytes: &[u8]) -> Result<Event<'_>, String> {
        #[derive(Deserialize)]
        struct Line<'a> {
            #[serde(rename = "type", borrow)]
            what: Cow<'a, str>,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        match self {
            Encoding::Json => {
                let Line { what, object } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
                Ok(Event { what, object: Object::Json(object.get()) })
            }
            Encoding::Protobuf => {
                let (what, object) = protobuf::event(bytes).map_err(|error| error.to_string())?;
                Ok(Event { what: what.into(), object: Object::Protobuf(object) })
            }
        }
    }

    /// A list, or a page of one.
    pub(super) fn page(self, body: &[u8]) -> Result<Page<'_>, String> {
        #[derive(Deserialize)]
        struct Items<'a> {
            #[serde(default)]
            metadata: ListMetadata,
            #[serde(borrow, default, deserialize_with = "null_is_empty")]
            items: Vec<&'a RawValue>,
        }
        match self {
            Encoding::Json => {
                let Items { metadata, items } = serde_json::from_slice(body).map_err(|error| error.to_string())?;
                Ok(Page { metadata, items: items.into_iter().map(|item| Object::Json(item.get())).collect() })
            }
            Encoding::Protobuf => {
                let list = protobuf::object(body).and_then(protobuf::list);
                let (metadata, items) = list.map_err(|error| error.to_string())?;
                let metadata = protobuf::read(metadata, protobuf::LIST_METADATA).map_err(|(_, reason)| reason)?;
                Ok(Page { metadata, items: items.into_iter().map(Object::Protobuf).collect() })
            }
        }
    }
}

/// An object as the server sent it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Object<'a> {
    Json(&'a str),
    /// Without the envelope.
    Protobuf(&'a [u8]),
}

impl Object<'_> {
    /// Reads it, in protobuf with these fields.
    ///
    /// # Errors
    ///
    /// The path of the field at fault (empty when it is the object itself), and what is wrong with it.
    pub(super) fn read<T: DeserializeOwned>(self, fields: &'static [Field]) -> Result<T, (String, String)> {
        match self {
            Object::Json(text) => yaml::read_json(text),
            Object::Protobuf(message) => protobuf::read(message, fields),
        }
    }
}

/// An event of a watch.
pub(super) struct Event<'a> {
    pub(super) what: Cow<'a, str>,
    pub(super) object: Object<'a>,
}

/// A page of a list. Its items stay as they came until they are read.
pub(super) struct Page<'a> {
    pub(super) metadata: ListMetadata,
    pub(super) items: Vec<Object<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListMetadata {
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

pub(super) fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests;
