//! A list of objects, read while it arrives.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::protobuf::{self, bytes_of, next_bytes};
use super::{Encoding, Object};
use crate::yaml;

/// A list, or a page of one. In protobuf its objects are taken as soon as they have arrived, and then forgotten; in
/// JSON when all have arrived.
pub(in super::super) struct List {
    encoding: Encoding,
    /// What has arrived, from `taken` on not taken yet.
    bytes: Vec<u8>,
    taken: usize,
    /// Bytes of the message that are not taken yet. `None` before the message, and in JSON.
    left: Option<usize>,
    /// Of the list, in protobuf; empty until it is known.
    kind: String,
    has_metadata: bool,
    is_complete: bool,
}

pub(in super::super) enum Part<'a> {
    /// Comes first, and once.
    Metadata(ListMetadata),
    Item(Object<'a>),
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(in super::super) struct ListMetadata {
    /// Of the list, such as `ServiceList`; empty if it does not say.
    #[serde(skip)]
    pub(in super::super) kind: String,
    pub(in super::super) resource_version: String,
    #[serde(rename = "continue")]
    pub(in super::super) next: Option<String>,
}

impl List {
    pub(in super::super) fn new(encoding: Encoding) -> Self {
        let (bytes, kind) = (Vec::new(), String::new());
        List { encoding, bytes, taken: 0, left: None, kind, has_metadata: false, is_complete: false }
    }

    /// Adds what has arrived; `None`: all has. Returns how many bytes are kept.
    pub(in super::super) fn push(&mut self, piece: Option<&[u8]>) -> usize {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        self.bytes.extend_from_slice(piece.unwrap_or_default());
        self.is_complete = piece.is_none();
        if self.is_complete
            && let Cow::Owned(text) = self.encoding.readable(&self.bytes)
        {
            self.bytes = text;
        }
        self.bytes.len()
    }

    /// The next part. `None` if it has not arrived, or at the end.
    pub(in super::super) fn next(&mut self) -> Result<Option<Part<'_>>, String> {
        match self.encoding {
            Encoding::Json if !self.is_complete => Ok(None),
            Encoding::Json => self.next_of_json(),
            Encoding::Protobuf => self.next_of_protobuf(),
        }
    }

    fn next_of_json(&mut self) -> Result<Option<Part<'_>>, String> {
        #[derive(Deserialize)]
        struct Whole<'a> {
            #[serde(default)]
            kind: String,
            #[serde(default)]
            metadata: ListMetadata,
            #[serde(borrow, default)]
            items: Option<&'a RawValue>,
        }
        if !self.has_metadata {
            let Whole { kind, metadata, items } =
                serde_json::from_slice(&self.bytes).map_err(|error| yaml::in_words(error.to_string()))?;
            let items = items.map_or("", RawValue::get);
            if !items.is_empty() && !items.starts_with('[') {
                return Err("its items are not a list".to_owned());
            }
            let before = items.as_ptr().addr().saturating_sub(self.bytes.as_ptr().addr());
            self.taken = if items.is_empty() { self.bytes.len() } else { before.saturating_add(1) };
            self.has_metadata = true;
            return Ok(Some(Part::Metadata(ListMetadata { kind, ..metadata })));
        }
        let rest = self.bytes.get(self.taken..).unwrap_or_default();
        let between = rest.iter().take_while(|byte| **byte == b',' || byte.is_ascii_whitespace()).count();
        let rest = rest.get(between..).unwrap_or_default();
        // The array was read once, so anything else is its end.
        let mut values = serde_json::Deserializer::from_slice(rest).into_iter::<&RawValue>();
        let Some(Ok(value)) = values.next() else { return Ok(None) };
        self.taken = self.taken.saturating_add(between).saturating_add(values.byte_offset());
        Ok(Some(Part::Item(Object::Json(value.get()))))
    }

    fn next_of_protobuf(&mut self) -> Result<Option<Part<'_>>, String> {
        // What cannot be read may not have arrived.
        if self.left.is_none() {
            match protobuf::start_of_object(&self.bytes) {
                Err(error) if self.is_complete => return Err(error.to_string()),
                Err(_) => return Ok(None),
                Ok((start, length)) => {
                    self.kind = protobuf::kind(&self.bytes).into_owned();
                    (self.taken, self.left) = (start, Some(length));
                }
            }
        }
        let List { bytes, taken, left, kind, has_metadata, is_complete, .. } = self;
        let left = left.get_or_insert_default();
        loop {
            let rest = bytes.get(*taken..).unwrap_or_default();
            let message = rest.get(..*left).unwrap_or(rest);
            let mut after = message;
            let field = next_bytes(&mut after);
            if !*has_metadata {
                let metadata = match field {
                    Ok(Some((1, metadata))) => Ok(metadata),
                    // Servers write it first. From others, everything must arrive.
                    _ if !*is_complete => return Ok(None),
                    _ => bytes_of(message, 1).map(Option::unwrap_or_default),
                };
                let metadata = metadata.map_err(|error| error.to_string())?;
                *has_metadata = true;
                let metadata: ListMetadata =
                    protobuf::read(metadata, protobuf::LIST_METADATA).map_err(|(_, reason)| reason)?;
                return Ok(Some(Part::Metadata(ListMetadata { kind: std::mem::take(kind), ..metadata })));
            }
            let (number, field) = match field {
                Ok(Some(found)) => found,
                Ok(None) if *left == 0 => return Ok(None),
                _ if !*is_complete => return Ok(None),
                Ok(None) => return Err("the protobuf message ends too early".to_owned()),
                Err(error) => return Err(error.to_string()),
            };
            let length = message.len().saturating_sub(after.len());
            (*taken, *left) = (taken.saturating_add(length), left.saturating_sub(length));
            if number == 2 {
                return Ok(Some(Part::Item(Object::Protobuf(field))));
            }
        }
    }
}
