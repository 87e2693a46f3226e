//! One kind of object: its objects, their history, and which of them a selector matches.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::protobuf;

/// Encoding of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Protobuf,
}

impl Encoding {
    pub(super) fn content_type(self, is_watch: bool) -> &'static str {
        match self {
            Encoding::Json => "application/json",
            Encoding::Protobuf if is_watch => "application/vnd.kubernetes.protobuf;stream=watch",
            Encoding::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// An event of a watch.
    pub(super) fn event(self, kind: Kind, event: &Value) -> Vec<u8> {
        match (self, event["type"].as_str().unwrap_or_default()) {
            (Encoding::Json, _) => format!("{event}\n").into(),
            (Encoding::Protobuf, "ERROR") => protobuf::error(&event["object"]),
            (Encoding::Protobuf, what) => protobuf::event(what, kind, &protobuf::object(kind, &event["object"])),
        }
    }

    /// A failure.
    pub(super) fn status(self, status: &Value) -> Vec<u8> {
        match self {
            Encoding::Json => status.to_string().into(),
            Encoding::Protobuf => protobuf::status(status),
        }
    }

    /// A list, or a page of one.
    pub(super) fn list(self, kind: Kind, metadata: &Value, items: &[Sent]) -> Vec<u8> {
        match self {
            Encoding::Json => {
                let Kind { name, api_version, .. } = kind;
                let items = items.iter().map(|item| &*item.json).collect::<Vec<_>>().join(",");
                format!(
                    r#"{{"kind":"{name}List","apiVersion":"{api_version}","metadata":{metadata},"items":[{items}]}}"#
                )
                .into()
            }
            Encoding::Protobuf => protobuf::list(kind, metadata, items.iter().map(|item| &*item.protobuf)),
        }
    }
}

/// A kind that the server supports.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) api_version: &'static str,
    /// Path of the list of all namespaces.
    pub(super) path: &'static str,
    pub(super) plural: &'static str,
}

pub(super) const KINDS: [Kind; 4] = [
    Kind { name: "Service", api_version: "v1", path: "/api/v1/services", plural: "services" },
    Kind {
        name: "EndpointSlice",
        api_version: "discovery.k8s.io/v1",
        path: "/apis/discovery.k8s.io/v1/endpointslices",
        plural: "endpointslices",
    },
    Kind { name: "Node", api_version: "v1", path: "/api/v1/nodes", plural: "nodes" },
    Kind {
        name: "ServiceCIDR",
        api_version: "networking.k8s.io/v1",
        path: "/apis/networking.k8s.io/v1/servicecidrs",
        plural: SERVICE_CIDRS,
    },
];

/// Only some servers have them: [`ServiceCidrs`](super::ServiceCidrs).
pub(super) const SERVICE_CIDRS: &str = "servicecidrs";

/// A change: an object before and after.
#[derive(Clone, Debug)]
pub(super) struct Revision {
    pub(super) version: u64,
    pub(super) before: Option<Value>,
    pub(super) after: Option<Value>,
}

impl Revision {
    /// The event that a watch with this selector gets, if any. DELETED if the selector no longer matches the object.
    pub(super) fn event(&self, kind: Kind, selector: &Selector) -> Option<Value> {
        let before = self.before.as_ref().filter(|object| selector.matches(object));
        let after = self.after.as_ref().filter(|object| selector.matches(object));
        let (what, object) = match (before, after) {
            (None, None) => return None,
            (None, Some(object)) => ("ADDED", object.clone()),
            (Some(_), Some(object)) => ("MODIFIED", object.clone()),
            // The last state that the watch received, with the version of the change.
            (Some(object), None) => ("DELETED", with_version(object.clone(), self.version)),
        };
        Some(json!({"type": what, "object": with_kind(object, kind)}))
    }
}

/// An object and its encoding. Real servers also store that, which makes lists cheap.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub(super) value: Value,
    pub(super) sent: Sent,
}

/// An object in each encoding.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    json: Arc<str>,
    protobuf: Arc<[u8]>,
}

impl Object {
    pub(super) fn new(kind: Kind, value: Value) -> Self {
        let sent = Sent { json: value.to_string().into(), protobuf: protobuf::object(kind, &value).into() };
        Object { value, sent }
    }
}

/// Objects of one kind and their history.
#[derive(Debug, Default)]
pub(super) struct Resource {
    pub(super) objects: BTreeMap<String, Object>,
    pub(super) history: Vec<Revision>,
}

/// Label and field selectors.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector(Vec<Term>);

#[derive(Clone, Debug)]
struct Term {
    path: Vec<String>,
    is: Is,
}

#[derive(Clone, Debug)]
enum Is {
    There,
    Absent,
    Equal(String),
    Other(String),
}

impl Selector {
    pub(super) fn new(labels: &str, fields: &str) -> Self {
        let terms = |text: &str| text.split(',').map(str::to_owned).filter(|term| !term.is_empty()).collect::<Vec<_>>();
        let label = |name: &str| vec!["metadata".to_owned(), "labels".to_owned(), name.to_owned()];
        let field = |name: &str| name.split('.').map(str::to_owned).collect::<Vec<_>>();
        let labels = terms(labels).into_iter().map(|text| Term::new(&text, label));
        let fields = terms(fields).into_iter().map(|text| Term::new(&text, field));
        Selector(labels.chain(fields).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|term| {
            let value = term.path.iter().try_fold(object, |place, name| place.get(name)).and_then(Value::as_str);
            match &term.is {
                Is::There => value.is_some(),
                Is::Absent => value.is_none(),
                Is::Equal(wanted) => value == Some(wanted),
                Is::Other(unwanted) => value != Some(unwanted),
            }
        })
    }
}

impl Term {
    fn new(text: &str, path: impl Fn(&str) -> Vec<String>) -> Self {
        if let Some(name) = text.strip_prefix('!') {
            return Term { path: path(name), is: Is::Absent };
        }
        if let Some((name, value)) = text.split_once("!=") {
            return Term { path: path(name), is: Is::Other(value.to_owned()) };
        }
        match text.split_once('=') {
            Some((name, value)) => Term { path: path(name), is: Is::Equal(value.trim_start_matches('=').to_owned()) },
            None => Term { path: path(text), is: Is::There },
        }
    }
}

pub(super) fn with_version(mut object: Value, version: u64) -> Value {
    object["metadata"]["resourceVersion"] = Value::from(version.to_string());
    object
}

/// Events contain kind and version of the object; items of a list do not.
fn with_kind(mut object: Value, kind: Kind) -> Value {
    object["kind"] = kind.name.into();
    object["apiVersion"] = kind.api_version.into();
    object
}

pub(super) fn bookmark(kind: Kind, version: u64) -> Value {
    let metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
    let mut object = match kind.name {
        "EndpointSlice" => json!({"addressType": "", "endpoints": null, "ports": null}),
        _ => {
            json!({"spec": {}, "status": if kind.name == "Service" { json!({"loadBalancer": {}}) } else { json!({}) }})
        }
    };
    object["metadata"] = metadata;
    json!({"type": "BOOKMARK", "object": with_kind(object, kind)})
}

/// A failure with these fields in addition to those that all have.
fn failure(code: u16, reason: &str, message: &str, details: Option<Value>) -> Value {
    let mut status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    if let Some(details) = details {
        status["details"] = details;
    }
    status
}

/// A failure in the server's words.
pub(super) fn status(code: u16) -> Value {
    let (reason, message) = match code {
        401 => ("Unauthorized", "Unauthorized"),
        404 => ("NotFound", "the server could not find the requested resource"),
        410 => ("Expired", "The provided continue parameter is too old or the version is no longer there."),
        429 => ("TooManyRequests", "Too many requests, please try again later."),
        503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
        504 => ("Timeout", "request did not complete within the allotted timeout"),
        _ => ("InternalError", "Internal error occurred"),
    };
    failure(code, reason, message, (code == 404).then(|| json!({})))
}

pub(super) fn forbidden(plural: &str, verb: &str) -> Value {
    let group = match plural {
        "endpointslices" => "discovery.k8s.io",
        "events" => "events.k8s.io",
        SERVICE_CIDRS => "networking.k8s.io",
        _ => "",
    };
    let resource = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
    let message = format!(
        "{resource} is forbidden: User \"system:serviceaccount:kube-system:kube-proxy\" cannot {verb} resource \
         \"{plural}\" in API group \"{group}\" at the cluster scope"
    );
    failure(403, "Forbidden", &message, Some(json!({"group": group, "kind": plural})))
}

/// The answer to a new object in the namespace `ending`, which is being deleted.
pub(super) fn ending() -> Value {
    let (message, reason) = ("namespace ending is being terminated", "NamespaceTerminating");
    let cause = json!({"reason": reason, "message": message, "field": "metadata.namespace"});
    let details = json!({"group": "events.k8s.io", "kind": "events", "causes": [cause]});
    let why = "unable to create new content in namespace ending because it is being terminated";
    failure(403, "Forbidden", &format!("events.events.k8s.io \"x\" is forbidden: {why}"), Some(details))
}

/// The answer to a request for a version that the server does not have yet.
pub(super) fn too_large(wanted: u64, version: u64) -> Value {
    let cause = "Too large resource version";
    let causes = json!([{"reason": "ResourceVersionTooLarge", "message": cause}]);
    let details = json!({"causes": causes, "retryAfterSeconds": 1});
    failure(504, "Timeout", &format!("Timeout: {cause}: {wanted}, current: {version}"), Some(details))
}
