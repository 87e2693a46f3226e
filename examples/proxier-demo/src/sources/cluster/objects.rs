//! The watched kinds: requests for them, and their objects as changes.

use proxier_core::objects::{EndpointSliceObject, Metadata, NodeObject, ServiceObject, StringMap};
use proxier_core::snapshot::{Balancing, EndpointSlice, ObjectKey, ObjectKind};
use serde::Deserialize;
use serde_json::Value;

use super::encoding::{Encoding, Object};
use super::protobuf::{self, Field};
use super::versions::UNNAMED;
use crate::message::change::{Change, NodeState};
use crate::settings::service_cidr;
use crate::sources::triggers;
use crate::yaml::null_is_default;

/// A watched kind of object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Resource {
    Services,
    EndpointSlices,
    /// The Node with this name.
    Node(String),
    /// All Nodes, for their weights, and for their addresses if these are needed.
    AllNodes {
        addresses: bool,
    },
    /// ServiceCIDRs in this version of their API. Servers before Kubernetes 1.31 do not have them.
    ServiceCidrs(CidrVersion),
}

/// A version of `networking.k8s.io` with ServiceCIDRs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CidrVersion {
    /// Since Kubernetes 1.33.
    #[default]
    V1,
    /// Since Kubernetes 1.31, if enabled.
    V1beta1,
}

impl Resource {
    /// The kind, its plural, and its fields in protobuf.
    fn facts(&self) -> (ObjectKind, &'static str, &'static [Field]) {
        match self {
            Resource::Services => (ObjectKind::Service, "services", protobuf::SERVICE),
            Resource::EndpointSlices => (ObjectKind::EndpointSlice, "endpointslices", protobuf::ENDPOINT_SLICE),
            Resource::Node(_) | Resource::AllNodes { .. } => (ObjectKind::Node, super::NODES, protobuf::NODE),
            Resource::ServiceCidrs(_) => (ObjectKind::ServiceCidr, super::SERVICE_CIDRS, protobuf::SERVICE_CIDR),
        }
    }

    pub(super) fn kind(&self) -> ObjectKind {
        self.facts().0
    }

    /// Whether a list of this kind may be one of these objects.
    pub(super) fn is_listed_in(&self, kind: &str) -> bool {
        let is_of_metadata = matches!(self, Resource::AllNodes { .. }) && kind == "PartialObjectMetadataList";
        kind.is_empty() || is_of_metadata || kind.strip_suffix("List") == Some(&self.kind().to_string())
    }

    /// Plural of the kind, as RBAC rules name it.
    pub(super) fn plural(&self) -> &'static str {
        self.facts().1
    }

    /// Name of the kind among those for which the initial list waits.
    pub(super) fn awaited(&self) -> &'static str {
        if matches!(self, Resource::AllNodes { .. }) { super::ALL_NODES } else { self.plural() }
    }

    /// Accepted encodings: protobuf if desired, and for all Nodes only metadata if that is enough
    /// (`PartialObjectMetadata`, Kubernetes 1.15). The server may answer in JSON.
    pub(super) fn accepts(&self, protobuf: bool) -> String {
        let encodings = if protobuf { &[Encoding::Protobuf, Encoding::Json][..] } else { &[Encoding::Json] };
        let kinds = match self {
            Resource::AllNodes { addresses: false } => &["PartialObjectMetadataList", "PartialObjectMetadata"][..],
            _ => &[],
        };
        let forms = |form: &'static str| {
            let of_kind = |kind: &&str| format!("{form};as={kind};g=meta.k8s.io;v=v1");
            kinds.iter().map(of_kind).chain([form.to_owned()]).collect::<Vec<_>>()
        };
        encodings.iter().flat_map(|encoding| forms(encoding.media_type())).collect::<Vec<_>>().join(", ")
    }

    /// The kind in the reconciler's store; `None` for Nodes and ServiceCIDRs.
    pub(super) fn stored_kind(&self) -> Option<ObjectKind> {
        Some(self.kind()).filter(|kind| matches!(kind, ObjectKind::Service | ObjectKind::EndpointSlice))
    }

    /// The reconciler's key of an object; its parts are empty without a name.
    pub(super) fn object_key(key: &str) -> ObjectKey {
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        ObjectKey::new(namespace, name)
    }

    /// The Service of an EndpointSlice, if it can be read although the rest cannot.
    pub(super) fn service_of(&self, key: &str, object: Object<'_>) -> Option<ObjectKey> {
        let slice: Value = object.head().read(protobuf::OBJECT).ok().filter(|_| *self == Resource::EndpointSlices)?;
        let service = slice["metadata"]["labels"][SERVICE_NAME].as_str()?;
        Some(ObjectKey::new(Self::object_key(key).namespace(), service))
    }

    /// Path and query, up to the selectors. The label for other proxies excludes Services, and the label for headless
    /// Services excludes slices, as in proxier-core.
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

    /// Reads an object as a change. On failure, returns the wrong field and what is wrong.
    pub(super) fn read(&self, sent: Object<'_>) -> Result<Change, (String, String)> {
        let (.., fields) = self.facts();
        Ok(match self {
            Resource::Services => {
                let mut object: Box<ServiceObject> = sent.read(fields)?;
                without_notes_of_service(&mut object);
                Change::UpsertService(object)
            }
            Resource::EndpointSlices => {
                let mut object: Box<EndpointSliceObject> = sent.read(fields)?;
                without_notes_of_slice(&mut object);
                Change::UpsertSlice(object)
            }
            Resource::Node(_) => {
                let mut object: NodeObject = sent.read(fields)?;
                object.metadata.annotations = StringMap::default();
                Change::Node(Box::new(NodeState { object, leaving: is_leaving(&sent.read(fields)?) }))
            }
            Resource::AllNodes { .. } => Change::cluster_node(sent.read(fields)?),
            Resource::ServiceCidrs(_) => read_service_cidr(sent)?,
        })
    }

    pub(super) fn gone(&self, key: &str) -> Change {
        let named = Self::object_key(key);
        match self {
            _ if key == UNNAMED => Change::Readable(self.kind(), named),
            Resource::Services => Change::DeleteService(named),
            Resource::EndpointSlices => Change::DeleteSlice(named),
            Resource::Node(_) => Change::NodeGone,
            Resource::AllNodes { .. } => Change::ClusterNodeGone(named.name().to_owned()),
            Resource::ServiceCidrs(_) => Change::ServiceCidrGone(named.name().to_owned()),
        }
    }
}

/// The label of an EndpointSlice that names its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Removes annotations and labels that have no effect: kubectl's annotation may be larger than the rest.
pub(crate) fn without_notes_of_service(object: &mut ServiceObject) {
    let is_of_services = |name: &str| name.starts_with("service.kubernetes.io/");
    object.metadata.annotations.retain(|name, _| is_of_services(name) || Balancing::is_annotation(name));
    object.metadata.labels.retain(|name, _| is_of_services(name));
}

/// Removes annotations and labels of an EndpointSlice that have no effect.
pub(crate) fn without_notes_of_slice(object: &mut EndpointSliceObject) {
    object.metadata.annotations.retain(|name, _| name == triggers::ANNOTATION || name == EndpointSlice::WEIGHTS);
    let counts = |name: &str| name == SERVICE_NAME || name.starts_with("service.kubernetes.io/");
    object.metadata.labels.retain(|name, _| counts(name));
}

/// The networks of a ServiceCIDR. One that is being deleted keeps its networks until it is removed: the server keeps it
/// as long as a Service has an address of it.
fn read_service_cidr(sent: Object<'_>) -> Result<Change, (String, String)> {
    #[derive(Deserialize)]
    struct ServiceCidr {
        metadata: Metadata,
        #[serde(default)]
        spec: Spec,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Spec {
        #[serde(deserialize_with = "null_is_default")]
        cidrs: Vec<String>,
    }
    let ServiceCidr { metadata, spec } = sent.read(protobuf::SERVICE_CIDR)?;
    let network =
        |(index, text): (usize, &String)| service_cidr(text).map_err(|reason| (format!("spec.cidrs[{index}]"), reason));
    Ok(Change::ServiceCidr(metadata.name, spec.cidrs.iter().enumerate().map(network).collect::<Result<_, _>>()?))
}

pub(crate) fn is_leaving(node: &Value) -> bool {
    let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
    node["metadata"]["deletionTimestamp"].is_string()
        || taints.any(|taint| taint["key"] == "ToBeDeletedByClusterAutoscaler")
}

pub(super) struct Identity {
    /// `namespace/name`, or `/name`.
    pub(super) key: Box<str>,
    pub(super) version: String,
}

impl Identity {
    /// The key and version of an object; `None` for one of another form.
    ///
    /// Bookmarks have no name.
    pub(super) fn of(object: Object<'_>) -> Option<Self> {
        #[derive(Deserialize)]
        struct Named {
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
        let Named { metadata } = object.head().read(protobuf::OBJECT).ok()?;
        let key = format!("{}/{}", metadata.namespace, metadata.name).into();
        Some(Identity { key, version: metadata.resource_version })
    }

    pub(super) fn is_named(&self) -> bool {
        !self.key.is_empty() && !self.key.ends_with('/')
    }
}
