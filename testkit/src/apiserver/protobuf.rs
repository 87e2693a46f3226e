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

const METADATA: &[Field] = &[
    Field("name", 1, Text),
    Field("generateName", 2, Text),
    Field("namespace", 3, Text),
    Field("uid", 5, Text),
    Field("resourceVersion", 6, Text),
    Field("generation", 7, Number),
    Field("creationTimestamp", 8, Time),
    Field("deletionTimestamp", 9, Time),
    Field("labels", 11, Map),
    Field("annotations", 12, Map),
    Field("finalizers", 14, List(&Text)),
];

const SERVICE: &[Field] = &[
    Field("metadata", 1, Message(METADATA)),
    Field(
        "spec",
        2,
        Message(&[
            Field(
                "ports",
                1,
                List(&Message(&[
                    Field("name", 1, Text),
                    Field("protocol", 2, Text),
                    Field("port", 3, Number),
                    Field("targetPort", 4, NumberOrText),
                    Field("nodePort", 5, Number),
                    Field("appProtocol", 6, Text),
                ])),
            ),
            Field("selector", 2, Map),
            Field("clusterIP", 3, Text),
            Field("type", 4, Text),
            Field("externalIPs", 5, List(&Text)),
            Field("sessionAffinity", 7, Text),
            Field("loadBalancerIP", 8, Text),
            Field("loadBalancerSourceRanges", 9, List(&Text)),
            Field("externalName", 10, Text),
            Field("externalTrafficPolicy", 11, Text),
            Field("healthCheckNodePort", 12, Number),
            Field("publishNotReadyAddresses", 13, Number),
            Field(
                "sessionAffinityConfig",
                14,
                Message(&[Field("clientIP", 1, Message(&[Field("timeoutSeconds", 1, Number)]))]),
            ),
            Field("ipFamilyPolicy", 17, Text),
            Field("clusterIPs", 18, List(&Text)),
            Field("ipFamilies", 19, List(&Text)),
            Field("allocateLoadBalancerNodePorts", 20, Number),
            Field("loadBalancerClass", 21, Text),
            Field("internalTrafficPolicy", 22, Text),
            Field("trafficDistribution", 23, Text),
        ]),
    ),
    Field(
        "status",
        3,
        Message(&[Field(
            "loadBalancer",
            1,
            Message(&[Field(
                "ingress",
                1,
                List(&Message(&[Field("ip", 1, Text), Field("hostname", 2, Text), Field("ipMode", 3, Text)])),
            )]),
        )]),
    ),
];

const HINT: Type = List(&Message(&[Field("name", 1, Text)]));

const ENDPOINT_SLICE: &[Field] = &[
    Field("metadata", 1, Message(METADATA)),
    Field(
        "endpoints",
        2,
        List(&Message(&[
            Field("addresses", 1, List(&Text)),
            Field(
                "conditions",
                2,
                Message(&[Field("ready", 1, Number), Field("serving", 2, Number), Field("terminating", 3, Number)]),
            ),
            Field("hostname", 3, Text),
            Field(
                "targetRef",
                4,
                Message(&[Field("kind", 1, Text), Field("namespace", 2, Text), Field("name", 3, Text)]),
            ),
            Field("nodeName", 6, Text),
            Field("zone", 7, Text),
            Field("hints", 8, Message(&[Field("forZones", 1, HINT), Field("forNodes", 2, HINT)])),
        ])),
    ),
    Field(
        "ports",
        3,
        List(&Message(&[
            Field("name", 1, Text),
            Field("protocol", 2, Text),
            Field("port", 3, Number),
            Field("appProtocol", 4, Text),
        ])),
    ),
    Field("addressType", 4, Text),
];

const NODE: &[Field] = &[
    Field("metadata", 1, Message(METADATA)),
    Field(
        "spec",
        2,
        Message(&[
            Field("podCIDR", 1, Text),
            Field("providerID", 3, Text),
            Field("unschedulable", 4, Number),
            Field(
                "taints",
                5,
                List(&Message(&[Field("key", 1, Text), Field("value", 2, Text), Field("effect", 3, Text)])),
            ),
            Field("podCIDRs", 7, List(&Text)),
        ]),
    ),
    Field(
        "status",
        3,
        Message(&[Field("addresses", 5, List(&Message(&[Field("type", 1, Text), Field("address", 2, Text)])))]),
    ),
];

const SERVICE_CIDR: &[Field] =
    &[Field("metadata", 1, Message(METADATA)), Field("spec", 2, Message(&[Field("cidrs", 1, List(&Text))]))];

const LIST_METADATA: &[Field] =
    &[Field("resourceVersion", 2, Text), Field("continue", 3, Text), Field("remainingItemCount", 4, Number)];

const STATUS: &[Field] = &[
    Field("status", 2, Text),
    Field("message", 3, Text),
    Field("reason", 4, Text),
    Field(
        "details",
        5,
        Message(&[
            Field("name", 1, Text),
            Field("group", 2, Text),
            Field("kind", 3, Text),
            Field(
                "causes",
                4,
                List(&Message(&[Field("reason", 1, Text), Field("message", 2, Text), Field("field", 3, Text)])),
            ),
            Field("retryAfterSeconds", 5, Number),
        ]),
    ),
    Field("code", 6, Number),
];

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
