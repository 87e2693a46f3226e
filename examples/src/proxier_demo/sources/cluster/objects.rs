//! Reads answers of an API server: lists and lines of watches, one object at a time and only the fields needed.

use std::borrow::Cow;

use proxier_core::config::parse_service_cidr;
use proxier_core::objects::{EndpointSliceObject, NodeObject, ServiceObject, StringMap};
use proxier_core::snapshot::{Balancing, EndpointSlice, Node, ObjectKey, ObjectKind};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::proxier_demo::message::change::{Change, NodeState};
use crate::proxier_demo::sources::triggers;
use crate::proxier_demo::yaml;

/// A kind of object that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Services,
    EndpointSlices,
    /// The Node of this name.
    Node(String),
    /// All Nodes, for their weights, and for their addresses if these are needed.
    AllNodes {
        addresses: bool,
    },
    /// ServiceCIDRs, in this version of their API. Servers before Kubernetes 1.31 have none.
    ServiceCidrs(CidrVersion),
}

/// A version of `networking.k8s.io` with ServiceCIDRs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CidrVersion {
    /// Since Kubernetes 1.33.
    #[default]
    V1,
    /// Since Kubernetes 1.31, where it is switched on.
    V1beta1,
}

impl Resource {
    /// Plural of the kind, as RBAC rules name it.
    pub(super) fn plural(&self) -> &'static str {
        match self {
            Resource::Services => "services",
            Resource::EndpointSlices => "endpointslices",
            Resource::Node(_) | Resource::AllNodes { .. } => "nodes",
            Resource::ServiceCidrs(_) => super::SERVICE_CIDRS,
        }
    }

    /// Name of the kind among those that the initial list waits for.
    pub(super) fn awaited(&self) -> &'static str {
        if matches!(self, Resource::AllNodes { .. }) { super::ALL_NODES } else { self.plural() }
    }

    /// The form in which objects are asked for: of all Nodes only metadata, if that is
    /// enough and the server can (`PartialObjectMetadata`, Kubernetes 1.15).
    pub(super) fn accepts(&self) -> &'static str {
        match self {
            Resource::AllNodes { addresses: false } => {
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, \
                 application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, application/json"
            }
            _ => "application/json",
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Resource::Services => "Service",
            Resource::EndpointSlices => "EndpointSlice",
            Resource::Node(_) | Resource::AllNodes { .. } => "Node",
            Resource::ServiceCidrs(_) => "ServiceCIDR",
        }
    }

    /// Kind for which the reconciler has a store; `None` for Nodes and ServiceCIDRs.
    pub(super) fn object_kind(&self) -> Option<ObjectKind> {
        match self {
            Resource::Services => Some(ObjectKind::Service),
            Resource::EndpointSlices => Some(ObjectKind::EndpointSlice),
            Resource::Node(_) | Resource::AllNodes { .. } | Resource::ServiceCidrs(_) => None,
        }
    }

    /// Path and query up to the selectors. The label for other proxies excludes Services, the label for headless Services excludes slices, as in
    /// proxier-core.
    pub(super) fn target(&self) -> String {
        match self {
            Resource::Services => {
                "/api/v1/services?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name".to_owned()
            }
            Resource::EndpointSlices => {
                "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=%21service.kubernetes.io%2Fheadless".to_owned()
            }
            Resource::AllNodes { .. } => "/api/v1/nodes?pretty=false".to_owned(),
            Resource::ServiceCidrs(version) => {
                let version = match version {
                    CidrVersion::V1 => "v1",
                    CidrVersion::V1beta1 => "v1beta1",
                };
                format!("/apis/networking.k8s.io/{version}/servicecidrs?pretty=false")
            }
            Resource::Node(name) => format!("/api/v1/nodes?fieldSelector=metadata.name%3D{name}"),
        }
    }

    /// Reads an object as a change; on failure the field at fault, and what is wrong.
    pub(super) fn read(&self, text: &str) -> Result<Change, (String, String)> {
        Ok(match self {
            Resource::Services => {
                let mut object: Box<ServiceObject> = yaml::read_json(text)?;
                without_notes_of_service(&mut object);
                Change::UpsertService(object)
            }
            Resource::EndpointSlices => {
                let mut object: Box<EndpointSliceObject> = yaml::read_json(text)?;
                without_notes_of_slice(&mut object);
                Change::UpsertSlice(object)
            }
            Resource::Node(_) => {
                let mut object: NodeObject = yaml::read_json(text)?;
                object.metadata.annotations = StringMap::default();
                Change::Node(Box::new(NodeState { object, leaving: is_leaving(text) }))
            }
            Resource::AllNodes { .. } => {
                let NodeObject { metadata, status, .. } = yaml::read_json(text)?;
                let mut object = NodeObject { metadata, status, ..NodeObject::default() };
                object.metadata.labels.retain(|name, _| name == Node::WEIGHT);
                object.metadata.annotations.retain(|name, _| name == Node::WEIGHT);
                Change::ClusterNode(Box::new(object))
            }
            Resource::ServiceCidrs(_) => read_service_cidr(text)?,
        })
    }

    /// The change for an object that was deleted.
    pub(super) fn gone(&self, key: &str) -> Change {
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        match self {
            Resource::Services => Change::DeleteService(ObjectKey::new(namespace, name)),
            Resource::EndpointSlices => Change::DeleteSlice(ObjectKey::new(namespace, name)),
            Resource::Node(_) => Change::NodeGone,
            Resource::AllNodes { .. } => Change::ClusterNodeGone(name.to_owned()),
            Resource::ServiceCidrs(_) => Change::ServiceCidrGone(name.to_owned()),
        }
    }
}

/// Drops annotations and labels that decide nothing: kubectl's notes may be larger than the rest.
pub(crate) fn without_notes_of_service(object: &mut ServiceObject) {
    let is_of_services = |name: &str| name.starts_with("service.kubernetes.io/");
    object.metadata.annotations.retain(|name, _| is_of_services(name) || Balancing::is_annotation(name));
    object.metadata.labels.retain(|name, _| is_of_services(name));
}

/// Drops annotations and labels of an EndpointSlice that decide nothing.
pub(crate) fn without_notes_of_slice(object: &mut EndpointSliceObject) {
    object.metadata.annotations.retain(|name, _| name == triggers::ANNOTATION || name == EndpointSlice::WEIGHTS);
    let counts = |name: &str| name == "kubernetes.io/service-name" || name.starts_with("service.kubernetes.io/");
    object.metadata.labels.retain(|name, _| counts(name));
}

/// The networks of a ServiceCIDR. One that is being deleted has its networks until it is gone: the server keeps it as long as a
/// Service has an address of it.
fn read_service_cidr(text: &str) -> Result<Change, (String, String)> {
    #[derive(Deserialize)]
    struct ServiceCidr {
        metadata: Metadata,
        #[serde(default)]
        spec: Spec,
    }
    #[derive(Deserialize)]
    struct Metadata {
        name: String,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Spec {
        #[serde(deserialize_with = "null_is_empty")]
        cidrs: Vec<String>,
    }
    let ServiceCidr { metadata, spec } = yaml::read_json(text)?;
    let mut networks = Vec::new();
    for (index, text) in spec.cidrs.iter().enumerate() {
        let network = parse_service_cidr(text);
        let reason = || format!("{text:?} is not a network of Services (ADDRESS/PREFIX, not all addresses)");
        networks.push(network.ok_or_else(|| (format!("spec.cidrs[{index}]"), reason()))?);
    }
    Ok(Change::ServiceCidr(metadata.name, networks))
}

/// Whether a Node, as JSON, is being removed.
pub(crate) fn is_leaving(text: &str) -> bool {
    #[derive(Deserialize)]
    struct Node {
        #[serde(default)]
        metadata: Metadata,
        #[serde(default)]
        spec: Spec,
    }
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Metadata {
        deletion_timestamp: Option<String>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Spec {
        taints: Option<Vec<Taint>>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Taint {
        key: String,
    }
    serde_json::from_str(text).is_ok_and(|node: Node| {
        let mut taints = node.spec.taints.iter().flatten();
        node.metadata.deletion_timestamp.is_some() || taints.any(|taint| taint.key == "ToBeDeletedByClusterAutoscaler")
    })
}

fn null_is_empty<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// A page of a list. Its items stay text until they are read.
#[derive(Deserialize)]
pub(super) struct Page<'a> {
    #[serde(default)]
    pub(super) metadata: ListMetadata,
    #[serde(borrow, default, deserialize_with = "null_is_empty")]
    pub(super) items: Vec<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListMetadata {
    pub(super) resource_version: String,
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

/// A line of a watch.
#[derive(Deserialize)]
pub(super) struct Line<'a> {
    #[serde(rename = "type", borrow)]
    pub(super) what: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) object: &'a RawValue,
}

/// The key and version of an object.
#[derive(Default)]
pub(super) struct Identity {
    /// `namespace/name`, or `/name`.
    pub(super) key: Box<str>,
    pub(super) version: String,
}

impl Identity {
    /// Key and version of an object in JSON; `None` for one without a name or of another shape.
    pub(super) fn of(text: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Object {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata {
            #[serde(default)]
            namespace: String,
            #[serde(default)]
            name: String,
            #[serde(default)]
            resource_version: String,
        }
        let Object { metadata } = serde_json::from_str(text).ok()?;
        let key = format!("{}/{}", metadata.namespace, metadata.name).into();
        Some(Identity { key, version: metadata.resource_version })
    }

    pub(super) fn is_named(&self) -> bool {
        !self.key.is_empty() && !self.key.ends_with('/')
    }
}

/// Whether this bookmark says that a watch has sent all objects.
pub(super) fn is_end_of_list(bookmark: &str) -> bool {
    #[derive(Deserialize)]
    struct Bookmark {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        #[serde(default)]
        annotations: StringMap,
    }
    let annotations = serde_json::from_str(bookmark).map(|Bookmark { metadata }| metadata.annotations);
    annotations.is_ok_and(|all| all.get("k8s.io/initial-events-end").is_some_and(|value| value == "true"))
}

/// A failure in the server's words.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) code: u16,
    pub(super) message: String,
    pub(super) reason: String,
    pub(super) details: Option<StatusDetails>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct StatusDetails {
    pub(super) retry_after_seconds: Option<u32>,
    pub(super) causes: Vec<StatusCause>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct StatusCause {
    pub(super) reason: String,
}
