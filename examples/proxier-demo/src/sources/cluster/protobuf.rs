//! Reads objects in protobuf as if they were JSON: tables map the fields of a message to their JSON names.
//!
//! An API server writes each object in either form, so the types that read JSON read this too. The tables have the
//! fields that this program reads, from `generated.proto` of each Kubernetes package. All others are skipped by their
//! length, which makes this cheaper than JSON. Empty texts and zeros are absent, as with Go's `omitempty` in JSON,
//! except behind pointers.

use std::borrow::Cow;
use std::fmt::Display;

use k8s_openapi::jiff::Timestamp;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use crate::yaml;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Error(String);

impl serde::de::Error for Error {
    fn custom<T: Display>(reason: T) -> Self {
        Error(reason.to_string())
    }
}

pub(super) struct Field(u32, &'static str, Kind);

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Number,
    Bool,
    /// `metav1.Time`, which is RFC 3339 in JSON.
    Time,
    Message(&'static [Field]),
    /// Entries with texts for keys and values.
    Map,
    Repeated(&'static Kind),
    /// A pointer in Go: its target is present even if it is empty or zero.
    Pointer(&'static Kind),
}

use Kind::{Bool, Map, Message, Number, Pointer, Repeated, Text, Time};

/// A table of a message's fields: number, name in JSON, kind; those of a message within it in braces.
macro_rules! fields {
    ($($number:literal $name:literal $kind:tt $(of $of:tt)?;)*) => {
        &[$(Field($number, $name, fields!(kind $kind $(of $of)?))),*]
    };
    (kind {$($fields:tt)*}) => { Message(fields! { $($fields)* }) };
    (kind Repeated of $of:tt) => { Repeated(&fields!(kind $of)) };
    (kind Pointer of $of:tt) => { Pointer(&fields!(kind $of)) };
    (kind $kind:ident) => { $kind };
}

/// `ObjectMeta` (`apimachinery/pkg/apis/meta/v1`).
const METADATA: Kind = fields!(kind {
    1 "name" Text;
    3 "namespace" Text;
    6 "resourceVersion" Text;
    8 "creationTimestamp" Time;
    9 "deletionTimestamp" Time;
    11 "labels" Map;
    12 "annotations" Map;
});

pub(super) const OBJECT: &[Field] = fields! { 1 "metadata" METADATA; };

/// `ListMeta` (`apimachinery/pkg/apis/meta/v1`).
pub(super) const LIST_METADATA: &[Field] = fields! { 2 "resourceVersion" Text; 3 "continue" Text; };

/// `Status` (`apimachinery/pkg/apis/meta/v1`).
pub(super) const STATUS: &[Field] = fields! {
    3 "message" Text;
    4 "reason" Text;
    5 "details" {
        4 "causes" Repeated of { 1 "reason" Text; };
        5 "retryAfterSeconds" Number;
    };
    6 "code" Number;
};

/// `Service` (`api/core/v1`).
pub(super) const SERVICE: &[Field] = fields! {
    1 "metadata" METADATA;
    2 "spec" {
        1 "ports" Repeated of {
            1 "name" Text;
            2 "protocol" Text;
            3 "port" Number;
            5 "nodePort" Number;
        };
        3 "clusterIP" Text;
        4 "type" Text;
        5 "externalIPs" Repeated of Text;
        7 "sessionAffinity" Text;
        9 "loadBalancerSourceRanges" Repeated of Text;
        11 "externalTrafficPolicy" Text;
        12 "healthCheckNodePort" Number;
        14 "sessionAffinityConfig" { 1 "clientIP" { 1 "timeoutSeconds" Pointer of Number; }; };
        18 "clusterIPs" Repeated of Text;
        19 "ipFamilies" Repeated of Text;
        22 "internalTrafficPolicy" Pointer of Text;
    };
    3 "status" { 1 "loadBalancer" { 1 "ingress" Repeated of { 1 "ip" Text; 3 "ipMode" Pointer of Text; }; }; };
};

/// `EndpointSlice` (`api/discovery/v1`).
pub(super) const ENDPOINT_SLICE: &[Field] = fields! {
    1 "metadata" METADATA;
    2 "endpoints" Repeated of {
        1 "addresses" Repeated of Text;
        2 "conditions" { 1 "ready" Bool; 2 "serving" Bool; 3 "terminating" Bool; };
        6 "nodeName" Pointer of Text;
        7 "zone" Pointer of Text;
        8 "hints" { 1 "forZones" Repeated of { 1 "name" Text; }; 2 "forNodes" Repeated of { 1 "name" Text; }; };
    };
    3 "ports" Repeated of {
        1 "name" Pointer of Text;
        2 "protocol" Pointer of Text;
        3 "port" Pointer of Number;
    };
    4 "addressType" Text;
};

/// `Node` (`api/core/v1`), and `PartialObjectMetadata` of one.
pub(super) const NODE: &[Field] = fields! {
    1 "metadata" METADATA;
    2 "spec" {
        1 "podCIDR" Text;
        5 "taints" Repeated of { 1 "key" Text; };
        7 "podCIDRs" Repeated of Text;
    };
    3 "status" { 5 "addresses" Repeated of { 1 "type" Text; 2 "address" Text; }; };
};

/// `ServiceCIDR` (`api/networking/v1` and `v1beta1`).
pub(super) const SERVICE_CIDR: &[Field] = fields! { 1 "metadata" METADATA; 2 "spec" { 1 "cidrs" Repeated of Text; }; };

/// Reads a message as an object.
/// Errors: the path of the wrong field, and what is wrong.
pub(super) fn read<T: DeserializeOwned>(message: &[u8], fields: &'static [Field]) -> Result<T, (String, String)> {
    let value = Value { kind: Message(fields), wire: Wire::Bytes(message) };
    // Tracking the path costs time, and only bad messages need it.
    T::deserialize(value).or_else(|_error| yaml::read(value))
}

/// Where the object begins within the envelope of bodies and events (four bytes, and `runtime.Unknown`), and its length.
pub(super) fn start_of_object(bytes: &[u8]) -> Result<(usize, usize), Error> {
    let mut rest =
        bytes.strip_prefix(b"k8s\0").ok_or_else(|| Error::custom("the protobuf message has no Kubernetes prefix"))?;
    loop {
        let mut after = rest;
        if varint(&mut after)? == (2 << 3 | 2) {
            let length = usize::try_from(varint(&mut after)?).map_err(Error::custom)?;
            return Ok((bytes.len().saturating_sub(after.len()), length));
        }
        next(&mut rest)?;
    }
}

/// The kind in that envelope, which begins with it; empty if it does not.
pub(super) fn kind(bytes: &[u8]) -> Cow<'_, str> {
    let mut rest = bytes.strip_prefix(b"k8s\0").unwrap_or_default();
    match next(&mut rest) {
        Ok(Some((1, Wire::Bytes(of)))) => text(bytes_of(of, 2).ok().flatten().unwrap_or_default()),
        _ => "".into(),
    }
}

/// The object within that envelope.
pub(super) fn object(bytes: &[u8]) -> Result<&[u8], Error> {
    let (start, length) = start_of_object(bytes)?;
    skip(&mut bytes.get(start..).unwrap_or_default(), length)
}

/// An object up to the end of its metadata; what follows may be damaged.
pub(super) fn head(object: &[u8]) -> &[u8] {
    let mut rest = object;
    while let Ok(Some((number, _))) = next(&mut rest) {
        if number == 1 {
            return object.get(..object.len().saturating_sub(rest.len())).unwrap_or(object);
        }
    }
    object
}

/// The type of an event and its object, of `WatchEvent` (`apimachinery/pkg/apis/meta/v1`).
pub(super) fn event(bytes: &[u8]) -> Result<(Cow<'_, str>, &[u8]), Error> {
    let what = text(bytes_of(bytes, 1)?.unwrap_or_default());
    let extension = bytes_of(bytes, 2)?.ok_or_else(|| Error::custom("no object"))?;
    Ok((what, object(bytes_of(extension, 1)?.unwrap_or_default())?))
}

/// The number and bytes of the next field; empty for a number.
pub(super) fn next_bytes<'a>(rest: &mut &'a [u8]) -> Result<Option<(u32, &'a [u8])>, Error> {
    Ok(next(rest)?.map(|(number, wire)| (number, if let Wire::Bytes(bytes) = wire { bytes } else { &[] })))
}

/// Value of a field in its encoding.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Four or eight bytes: no field here uses them.
    Fixed,
}

fn next<'a>(rest: &mut &'a [u8]) -> Result<Option<(u32, Wire<'a>)>, Error> {
    if rest.is_empty() {
        return Ok(None);
    }
    let tag = varint(rest)?;
    let number = u32::try_from(tag >> 3).map_err(Error::custom)?;
    let wire = match tag & 7 {
        0 => Wire::Number(varint(rest)?),
        1 => skip(rest, 8).map(|_| Wire::Fixed)?,
        2 => {
            let length = varint(rest)?;
            Wire::Bytes(skip(rest, usize::try_from(length).map_err(Error::custom)?)?)
        }
        5 => skip(rest, 4).map(|_| Wire::Fixed)?,
        other => return Err(Error::custom(format_args!("the protobuf message has a field of unknown type {other}"))),
    };
    Ok(Some((number, wire)))
}

fn skip<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], Error> {
    let (bytes, after) =
        rest.split_at_checked(length).ok_or_else(|| Error::custom("the protobuf message ends too early"))?;
    *rest = after;
    Ok(bytes)
}

fn varint(rest: &mut &[u8]) -> Result<u64, Error> {
    let (mut value, mut shift) = (0, 0);
    while shift < u64::BITS {
        let [byte, after @ ..] = *rest else { return Err(Error::custom("the protobuf message ends too early")) };
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
        shift += 7;
    }
    Err(Error::custom("a number in the protobuf message does not end"))
}

/// The bytes of a field; the last one if repeated.
pub(super) fn bytes_of(message: &[u8], wanted: u32) -> Result<Option<&[u8]>, Error> {
    let (mut rest, mut found) = (message, None);
    while let Some((number, wire)) = next(&mut rest)? {
        if let (true, Wire::Bytes(bytes)) = (number == wanted, wire) {
            found = Some(bytes);
        }
    }
    Ok(found)
}

/// The text with U+FFFD for each byte that is not UTF-8, as an API server writes it in JSON.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.into();
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text.into()
}

/// `metav1.Time` in JSON's form.
fn time(message: &[u8]) -> Result<String, Error> {
    let mut rest = message;
    let mut seconds = 0;
    while let Some((number, wire)) = next(&mut rest)? {
        if let (1, Wire::Number(value)) = (number, wire) {
            seconds = value.cast_signed();
        }
    }
    Ok(Timestamp::from_second(seconds).map_err(Error::custom)?.to_string())
}

/// Value of a field with its type.
#[derive(Clone, Copy)]
struct Value<'a> {
    kind: Kind,
    /// For [`Map`] and [`Repeated`]: all fields with this number.
    wire: Wire<'a>,
}

impl Value<'_> {
    /// Whether JSON would omit it.
    fn is_absent(&self) -> bool {
        match (self.kind, self.wire) {
            (Number, Wire::Number(0)) => true,
            (Text | Time, Wire::Bytes(bytes)) => bytes.is_empty(),
            _ => false,
        }
    }
}

impl<'de> Deserializer<'de> for Value<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match (self.kind, self.wire) {
            (Text, Wire::Bytes(bytes)) => match text(bytes) {
                Cow::Borrowed(text) => visitor.visit_borrowed_str(text),
                Cow::Owned(text) => visitor.visit_string(text),
            },
            (Number, Wire::Number(value)) => visitor.visit_i64(value.cast_signed()),
            (Bool, Wire::Number(value)) => visitor.visit_bool(value != 0),
            (Time, Wire::Bytes(bytes)) => visitor.visit_string(time(bytes)?),
            (Message(fields), Wire::Bytes(rest)) => visitor.visit_map(Fields { rest, table: fields, value: None }),
            (Map, Wire::Bytes(rest)) => visitor.visit_map(Entries { rest, value: &[] }),
            (Repeated(kind), Wire::Bytes(rest)) => visitor.visit_seq(Elements { rest, kind: *kind }),
            (Pointer(kind), wire) => Value { kind: *kind, wire }.deserialize_any(visitor),
            _ => Err(Error::custom("the protobuf message has another type at this field")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier
    }
}

/// The fields of a message that are in its table.
struct Fields<'a> {
    rest: &'a [u8],
    table: &'static [Field],
    /// The value of the previous key.
    value: Option<Value<'a>>,
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        loop {
            let start = self.rest;
            let Some((number, wire)) = next(&mut self.rest)? else { return Ok(None) };
            let Some(Field(_, name, kind)) = self.table.iter().find(|field| field.0 == number) else { continue };
            let mut value = Value { kind: *kind, wire };
            if matches!(kind, Map | Repeated(_)) {
                let mut after = self.rest;
                while next(&mut after)?.is_some_and(|(other, _)| other == number) {
                    self.rest = after;
                }
                let length = start.len().saturating_sub(self.rest.len());
                value.wire = Wire::Bytes(start.get(..length).unwrap_or_default());
            }
            if !value.is_absent() {
                self.value = Some(value);
                return seed.deserialize(serde::de::value::BorrowedStrDeserializer::new(name)).map(Some);
            }
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(self.value.take().ok_or_else(|| Error::custom("a value without a key"))?)
    }
}

struct Elements<'a> {
    rest: &'a [u8],
    kind: Kind,
}

impl<'de> SeqAccess<'de> for Elements<'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        let Some((_, wire)) = next(&mut self.rest)? else { return Ok(None) };
        seed.deserialize(Value { kind: self.kind, wire }).map(Some)
    }
}

struct Entries<'a> {
    rest: &'a [u8],
    /// The value of the previous key.
    value: &'a [u8],
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        let Some((_, Wire::Bytes(entry))) = next(&mut self.rest)? else { return Ok(None) };
        self.value = bytes_of(entry, 2)?.unwrap_or_default();
        let key = Wire::Bytes(bytes_of(entry, 1)?.unwrap_or_default());
        seed.deserialize(Value { kind: Text, wire: key }).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(Value { kind: Text, wire: Wire::Bytes(self.value) })
    }
}
