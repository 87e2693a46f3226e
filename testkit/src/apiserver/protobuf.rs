//! Encodes objects in protobuf, by the field numbers in each Kubernetes package's `generated.proto`.

use serde_json::{Value, json};

use super::resource::Kind;

/// A field: its name in JSON, number and type.
struct Field(&'static str, u32, Type);

#[derive(Clone, Copy)]
enum Type {
    Text,
    Number,
    Time,
    Message(&'static [Field]),
    Map,
    /// `intstr.IntOrString`.
    NumberOrText,
    List(&'static Type),
}

use Type::{List, Map, Message, Number, NumberOrText, Text, Time};

macro_rules! fields {
    ($($name:ident = $number:literal $kind:expr,)*) => { &[$(Field(stringify!($name), $number, $kind)),*] };
}

const METADATA: &[Field] = fields! {
    name = 1 Text, generateName = 2 Text, namespace = 3 Text, uid = 5 Text, resourceVersion = 6 Text,
    generation = 7 Number, creationTimestamp = 8 Time, deletionTimestamp = 9 Time, labels = 11 Map,
    annotations = 12 Map, finalizers = 14 List(&Text),
};

const SERVICE: &[Field] = fields! {
    metadata = 1 Message(METADATA),
    spec = 2 Message(fields! {
        ports = 1 List(&Message(fields! {
            name = 1 Text, protocol = 2 Text, port = 3 Number, targetPort = 4 NumberOrText, nodePort = 5 Number,
            appProtocol = 6 Text,
        })),
        selector = 2 Map, clusterIP = 3 Text, type = 4 Text, externalIPs = 5 List(&Text), sessionAffinity = 7 Text,
        loadBalancerIP = 8 Text, loadBalancerSourceRanges = 9 List(&Text), externalName = 10 Text,
        externalTrafficPolicy = 11 Text, healthCheckNodePort = 12 Number, publishNotReadyAddresses = 13 Number,
        sessionAffinityConfig = 14 Message(fields! { clientIP = 1 Message(fields! { timeoutSeconds = 1 Number, }), }),
        ipFamilyPolicy = 17 Text, clusterIPs = 18 List(&Text), ipFamilies = 19 List(&Text),
        allocateLoadBalancerNodePorts = 20 Number, loadBalancerClass = 21 Text, internalTrafficPolicy = 22 Text,
        trafficDistribution = 23 Text,
    }),
    status = 3 Message(fields! {
        loadBalancer = 1 Message(fields! {
            ingress = 1 List(&Message(fields! { ip = 1 Text, hostname = 2 Text, ipMode = 3 Text, })),
        }),
    }),
};

const HINT: Type = List(&Message(fields! { name = 1 Text, }));

const ENDPOINT_SLICE: &[Field] = fields! {
    metadata = 1 Message(METADATA),
    endpoints = 2 List(&Message(fields! {
        addresses = 1 List(&Text),
        conditions = 2 Message(fields! { ready = 1 Number, serving = 2 Number, terminating = 3 Number, }),
        hostname = 3 Text,
        targetRef = 4 Message(fields! { kind = 1 Text, namespace = 2 Text, name = 3 Text, }),
        nodeName = 6 Text, zone = 7 Text,
        hints = 8 Message(fields! { forZones = 1 HINT, forNodes = 2 HINT, }),
    })),
    ports = 3 List(&Message(fields! { name = 1 Text, protocol = 2 Text, port = 3 Number, appProtocol = 4 Text, })),
    addressType = 4 Text,
};

const NODE: &[Field] = fields! {
    metadata = 1 Message(METADATA),
    spec = 2 Message(fields! {
        podCIDR = 1 Text, providerID = 3 Text, unschedulable = 4 Number,
        taints = 5 List(&Message(fields! { key = 1 Text, value = 2 Text, effect = 3 Text, })),
        podCIDRs = 7 List(&Text),
    }),
    status = 3 Message(fields! {
        addresses = 5 List(&Message(fields! { type = 1 Text, address = 2 Text, })),
    }),
};

const SERVICE_CIDR: &[Field] = fields! {
    metadata = 1 Message(METADATA),
    spec = 2 Message(fields! { cidrs = 1 List(&Text), }),
};

const LIST_METADATA: &[Field] = fields! {
    resourceVersion = 2 Text, continue = 3 Text, remainingItemCount = 4 Number,
};

const STATUS: &[Field] = fields! {
    status = 2 Text, message = 3 Text, reason = 4 Text,
    details = 5 Message(fields! {
        name = 1 Text, group = 2 Text, kind = 3 Text,
        causes = 4 List(&Message(fields! { reason = 1 Text, message = 2 Text, field = 3 Text, })),
        retryAfterSeconds = 5 Number,
    }),
    code = 6 Number,
};

/// An object of this kind, without an envelope.
pub(super) fn object(kind: Kind, object: &Value) -> Vec<u8> {
    let fields = match kind.name {
        "Service" => SERVICE,
        "EndpointSlice" => ENDPOINT_SLICE,
        "Node" => NODE,
        _ => SERVICE_CIDR,
    };
    message(fields, object)
}

/// A failure, with its envelope.
pub(super) fn status(status: &Value) -> Vec<u8> {
    enveloped("v1", "Status", &message(STATUS, status))
}

/// A list, with its envelope.
pub(super) fn list<'a>(kind: Kind, metadata: &Value, items: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut list = Vec::new();
    put_bytes(&mut list, 1, &message(LIST_METADATA, metadata));
    items.for_each(|item| put_bytes(&mut list, 2, item));
    enveloped(kind.api_version, &format!("{}List", kind.name), &list)
}

/// An event of a watch with a length prefix. `object` has no envelope.
pub(super) fn event(what: &str, kind: Kind, object: &[u8]) -> Vec<u8> {
    event_about(what, &enveloped(kind.api_version, kind.name, object))
}

/// An event of a watch about a failure, with a length prefix.
pub(super) fn error(status_of: &Value) -> Vec<u8> {
    event_about("ERROR", &status(status_of))
}

fn event_about(what: &str, object: &[u8]) -> Vec<u8> {
    let (mut event, mut extension) = (Vec::new(), Vec::new());
    put_bytes(&mut event, 1, what.as_bytes());
    put_bytes(&mut extension, 1, object);
    put_bytes(&mut event, 2, &extension);
    framed(&event)
}

/// Any bytes as an event, with a length prefix.
pub(super) fn framed(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes(), bytes].concat()
}

/// `runtime.Unknown` after the prefix of all answers.
fn enveloped(api_version: &str, kind: &str, object: &[u8]) -> Vec<u8> {
    let (mut bytes, mut types) = (b"k8s\0".to_vec(), Vec::new());
    put_bytes(&mut types, 1, api_version.as_bytes());
    put_bytes(&mut types, 2, kind.as_bytes());
    put_bytes(&mut bytes, 1, &types);
    put_bytes(&mut bytes, 2, object);
    put_bytes(&mut bytes, 3, b"");
    put_bytes(&mut bytes, 4, b"");
    bytes
}

fn message(fields: &[Field], object: &Value) -> Vec<u8> {
    let mut to = Vec::new();
    for Field(name, number, kind) in fields {
        put(&mut to, *number, *kind, &object[*name]);
    }
    to
}

/// A value. If its type is not that of the field it is written as bytes, which no reader may accept.
fn put(to: &mut Vec<u8>, number: u32, kind: Type, value: &Value) {
    match (kind, value) {
        (_, Value::Null) => {}
        (List(kind), Value::Array(values)) => values.iter().for_each(|value| put(to, number, *kind, value)),
        (Map, Value::Object(entries)) => {
            for (key, value) in entries {
                let mut entry = Vec::new();
                put_bytes(&mut entry, 1, key.as_bytes());
                put(&mut entry, 2, Text, value);
                put_bytes(to, number, &entry);
            }
        }
        (Message(fields), Value::Object(_)) => put_bytes(to, number, &message(fields, value)),
        (NumberOrText, Value::String(_)) => {
            let as_text = [Field("kind", 1, Number), Field("text", 3, Text)];
            put_bytes(to, number, &message(&as_text, &json!({"kind": 1, "text": value})));
        }
        (NumberOrText, _) => put_bytes(to, number, &message(&[Field("number", 2, Number)], &json!({"number": value}))),
        (Time, Value::String(text)) => {
            let time = json!({"seconds": seconds(text)});
            put_bytes(to, number, &message(&[Field("seconds", 1, Number)], &time));
        }
        (Text, Value::String(text)) => put_bytes(to, number, text.as_bytes()),
        (Number, Value::Bool(value)) => put_number(to, number, u64::from(*value)),
        (Number, Value::Number(value)) if value.is_i64() => {
            put_number(to, number, value.as_i64().unwrap_or_default().cast_unsigned());
        }
        (Number, other) => put_bytes(to, number, other.to_string().as_bytes()),
        (_, other) => put_number(to, number, other.as_u64().unwrap_or(1)),
    }
}

fn put_bytes(to: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_varint(to, u64::from(number) << 3 | 2);
    put_varint(to, u64::try_from(bytes.len()).unwrap_or(u64::MAX));
    to.extend_from_slice(bytes);
}

fn put_number(to: &mut Vec<u8>, number: u32, value: u64) {
    put_varint(to, u64::from(number) << 3);
    put_varint(to, value);
}

fn put_varint(to: &mut Vec<u8>, mut value: u64) {
    loop {
        let [low, ..] = value.to_le_bytes();
        value >>= 7;
        if value == 0 {
            to.push(low & 0x7f);
            return;
        }
        to.push(low | 0x80);
    }
}

/// Seconds since 1970 of `YYYY-MM-DDTHH:MM:SSZ`.
fn seconds(text: &str) -> i64 {
    let mut parts = text.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<i64>().unwrap_or(0));
    let mut part = || parts.next().unwrap_or(0);
    let (year, month, day) = (part(), part(), part());
    // Years begin in March, so that a leap day is the last day of a year.
    let year = if month <= 2 { year - 1 } else { year };
    let days_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + days_of_year - 719_468;
    86_400 * days + 3_600 * part() + 60 * part() + part()
}
