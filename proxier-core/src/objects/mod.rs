//! Kubernetes objects as an API server prints them, with only the fields that this crate reads.
//!
//! Every field is optional and as wide as JSON allows (text for addresses, 64-bit numbers for ports), so that an
//! impossible value does not make an object unreadable. [`Store`](crate::snapshot::Store) and
//! [`Node::check`](crate::snapshot::Node::check) turn objects into checked values and report what they ignored. `null`
//! always means absent.

mod string_map;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

pub use self::string_map::StringMap;

/// Reads `null` as the default, because Go prints empty lists and maps that way.
fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }
        $(+ always written { $($(#[$written_doc:meta])* $written:ident: $written_type:ty,)* })?)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        pub struct $name {
            $(
                $(#[$field_doc])*
                #[serde(deserialize_with = "null_is_default", skip_serializing_if = "is_default")]
                pub $field: $type,
            )*
            $($(
                $(#[$written_doc])*
                #[serde(deserialize_with = "null_is_default")]
                pub $written: $written_type,
            )*)?
        }
    )*};
}

/// Text, or a list of texts, in YAML and JSON.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Listed")]
pub struct OneOrMore(pub Vec<String>);

#[derive(Deserialize)]
#[serde(untagged)]
enum Listed {
    One(String),
    More(Vec<String>),
}

impl From<Listed> for OneOrMore {
    fn from(listed: Listed) -> Self {
        OneOrMore(match listed {
            Listed::One(text) => vec![text],
            Listed::More(texts) => texts,
        })
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

objects! {
    /// `metadata` of any object.
    Metadata {
        /// Name.
        name: String,
        /// Namespace. If it is missing, `default`, as in kubectl.
        namespace: String,
        /// `creationTimestamp` (RFC 3339, UTC). If two Services claim one address and port, the older one gets it.
        creation_timestamp: Option<String>,
        /// Labels.
        labels: StringMap,
        /// Annotations.
        annotations: StringMap,
    }

    /// A Service (`v1`).
    ServiceObject {
        /// Name, labels, annotations.
        metadata: Metadata,
        /// The specification.
        spec: ServiceSpec,
        /// Addresses reported by load balancers.
        status: ServiceStatus,
    }

    /// `spec` of a Service.
    ServiceSpec {
        /// `ClusterIP` (also when absent), `NodePort`, `LoadBalancer`, `ExternalName`.
        #[serde(rename = "type")]
        service_type: Option<String>,
        /// First cluster IP, `None` for headless Services.
        #[serde(rename = "clusterIP")]
        cluster_ip: Option<String>,
        /// Cluster IPs, one for each of `ipFamilies`.
        #[serde(rename = "clusterIPs")]
        cluster_ips: Vec<String>,
        /// `IPv4`, `IPv6`.
        ip_families: Vec<String>,
        /// Ports.
        ports: Vec<ServicePortObject>,
        /// Addresses that others route to the nodes.
        #[serde(rename = "externalIPs")]
        external_ips: Vec<String>,
        /// `None` or `ClientIP`.
        session_affinity: Option<String>,
        /// Duration of session affinity.
        session_affinity_config: Option<SessionAffinityConfig>,
        /// `Cluster` or `Local`.
        external_traffic_policy: Option<String>,
        /// `Cluster` or `Local`.
        internal_traffic_policy: Option<String>,
        /// Port on which the node reports whether it has local endpoints.
        health_check_node_port: Option<i64>,
        /// Networks that may use the load balancer's addresses; empty means all.
        load_balancer_source_ranges: Vec<String>,
    }

    /// A port of a Service.
    ServicePortObject {
        /// Name; may be empty if it is the only port.
        name: Option<String>,
        /// `TCP` (also when absent), `UDP`, `SCTP`.
        protocol: Option<String>,
        /// Port on the Service's addresses.
        port: i64,
        /// Port on the nodes' addresses.
        node_port: Option<i64>,
    }

    /// `sessionAffinityConfig` of a Service.
    SessionAffinityConfig {
        /// Affinity by client address.
        #[serde(rename = "clientIP")]
        client_ip: Option<ClientIpConfig>,
    }

    /// `clientIP` of a session affinity.
    ClientIpConfig {
        /// Seconds, 1 to 86,400; 10,800 when absent.
        timeout_seconds: Option<i64>,
    }

    /// `status` of a Service.
    ServiceStatus {
        /// Addresses reported by the load balancer.
        load_balancer: LoadBalancerStatus,
    }

    /// `loadBalancer` of a Service's status.
    LoadBalancerStatus {
        /// Addresses of the load balancer.
        ingress: Vec<LoadBalancerIngress>,
    }

    /// An address of a load balancer.
    LoadBalancerIngress {
        /// IP address. Entries with only a host name are not programmed.
        ip: Option<String>,
        /// `VIP` (also if absent): packets arrive with this address. `Proxy`: they do not, and the address is not
        /// programmed.
        ip_mode: Option<String>,
    }

    /// An EndpointSlice (`discovery.k8s.io/v1`).
    EndpointSliceObject {
        /// Name, and the label with the name of the Service.
        metadata: Metadata,
        /// `IPv4`, `IPv6`; slices of `FQDN` are not programmed.
        address_type: String,
        /// Ports that all its endpoints have.
        ports: Vec<EndpointPortObject>,
        /// Endpoints.
        endpoints: Vec<EndpointObject>,
    }

    /// A port of an EndpointSlice.
    EndpointPortObject {
        /// Name of the Service's port; empty when absent.
        name: Option<String>,
        /// `TCP` (also when absent), `UDP`, `SCTP`.
        protocol: Option<String>,
        /// Port number. A port without one is not programmed.
        port: Option<i64>,
    }

    /// An endpoint.
    EndpointObject {
        /// Its addresses. The first one counts; by the API's contract all are equivalent.
        addresses: Vec<String>,
        /// Conditions of the endpoint.
        conditions: EndpointConditions,
        /// The node on which it runs.
        node_name: Option<String>,
        /// The zone in which it is.
        zone: Option<String>,
        /// Zones and nodes that should use it.
        hints: Option<EndpointHints>,
    }

    /// Conditions of an endpoint.
    EndpointConditions {
        /// Takes connections; absent: yes.
        ready: Option<bool>,
        /// Accepts connections unless it terminates; absent: yes.
        serving: Option<bool>,
        /// Is terminating; absent: no.
        terminating: Option<bool>,
    }

    /// Hints of an endpoint.
    EndpointHints {
        /// Zones whose nodes should use it.
        for_zones: Vec<HintTarget>,
        /// Nodes that should use it.
        for_nodes: Vec<HintTarget>,
    }

    /// A zone or node for which an endpoint is meant.
    HintTarget {
        /// Its name.
        name: String,
    }

    /// A Node (`v1`).
    NodeObject {
        /// Name and labels.
        metadata: Metadata,
        /// Networks of its pods.
        spec: NodeSpec,
        /// Its addresses.
        status: NodeStatus,
    }

    /// `spec` of a Node.
    NodeSpec {
        /// Networks of its pods.
        #[serde(rename = "podCIDRs")]
        pod_cidrs: Vec<String>,
        /// The first network of its pods.
        #[serde(rename = "podCIDR")]
        pod_cidr: Option<String>,
    }

    /// `status` of a Node.
    NodeStatus {
        /// Its addresses.
        addresses: Vec<NodeAddress>,
    }

    /// An address of a Node.
    NodeAddress {
        /// `InternalIP` or `ExternalIP` for addresses; `Hostname` and others are names.
        #[serde(rename = "type")]
        address_type: String,
        /// The address.
        address: String,
    }

    /// The part of `KubeProxyConfiguration` (`kubeproxy.config.k8s.io/v1alpha1`) that decides what is programmed.
    ConfigObject {
        /// The node's primary address of its family, unless it is unspecified or not reachable from other hosts.
        #[doc(hidden)]
        bind_address: String,
        /// Addresses that serve node ports: networks, `primary` (the node's primary addresses), `localhost` and `all`
        /// in any combination; empty: `all`.
        #[doc(hidden)]
        node_port_addresses: Vec<String>,
        /// Networks of the cluster's pods: one, or one of each family separated by a comma.
        #[serde(rename = "clusterCIDR")]
        #[doc(hidden)]
        cluster_cidr: String,
        /// How local pod traffic is detected: `ClusterCIDR` (also if empty), `NodeCIDR`, `BridgeInterface`,
        /// `InterfaceNamePrefix`.
        #[doc(hidden)]
        detect_local_mode: Option<String>,
        /// Names for the last two.
        #[doc(hidden)]
        detect_local: DetectLocalObject,
        /// Feature gates. Only `AllowServiceExternalIPs` has an effect.
        #[doc(hidden)]
        feature_gates: BTreeMap<String, bool>,
        /// Settings of iptables mode. IPVS mode also uses those of masquerading.
        #[doc(hidden)]
        iptables: IptablesConfigObject,
        /// Settings of IPVS mode.
        #[doc(hidden)]
        ipvs: IpvsConfigObject,
        /// Settings of nf_tables tables, in every mode that has them.
        #[doc(hidden)]
        nftables: NftablesConfigObject,
        /// Fast path of established connections. Not in kube-proxy.
        #[doc(hidden)]
        fast_path: Option<FastPathObject>,
    }

    /// `fastPath` of `KubeProxyConfiguration`: see [`FastPath`](crate::config::FastPath). Not in kube-proxy.
    #[doc(hidden)]
    FastPathObject {} + always written {
        /// Names of devices, prefixes followed by `*`, or `all`.
        interfaces: OneOrMore,
        /// Packets of a connection before it takes the fast path.
        min_packets: i64,
        /// Whether flows are offloaded to the devices.
        hardware: bool,
    }

    /// `detectLocal` of `KubeProxyConfiguration`.
    #[doc(hidden)]
    DetectLocalObject {
        /// The bridge of this node's pods.
        bridge_interface: String,
        /// The name prefix of this node's pod devices.
        interface_name_prefix: String,
    }

    /// `iptables` of `KubeProxyConfiguration`.
    #[doc(hidden)]
    IptablesConfigObject {
        /// Bit of the packet mark, 0 to 31; 14 when absent.
        masquerade_bit: Option<i64>,
        /// Whether all traffic to cluster IPs is masqueraded.
        masquerade_all: bool,
    }

    /// `nftables` of `KubeProxyConfiguration`.
    #[doc(hidden)]
    NftablesConfigObject {
        /// Whether connections are counted: see [`NftablesConfig`](crate::config::NftablesConfig). Not in kube-proxy.
        count_connections: bool,
        /// Whether this process owns its tables: see [`NftablesConfig`](crate::config::NftablesConfig). Not in
        /// kube-proxy.
        own_tables: bool,
    }

    /// `ipvs` of `KubeProxyConfiguration`.
    #[doc(hidden)]
    IpvsConfigObject {
        /// The kernel's name of the scheduler; `rr` when empty.
        scheduler: Option<String>,
        /// Networks in which no virtual server is deleted.
        #[serde(rename = "excludeCIDRs")]
        exclude_cidrs: Vec<String>,
        /// Settings that annotations may override, from [`MayAskFor::NAMED`](crate::config::MayAskFor::NAMED); if
        /// absent, all except weights by node. Not in kube-proxy.
        allowed_annotations: Option<Vec<String>>,
        /// How addresses become addresses of this host: `addresses` (also if empty), `routes`. Not in kube-proxy.
        binding: Option<String>,
        /// Settings of Services without annotations for them. Not in kube-proxy.
        defaults: IpvsDefaultsObject,
        /// Networks of cluster IPs, for binding `routes`. Not in kube-proxy.
        #[serde(rename = "serviceCIDRs")]
        service_cidrs: Vec<String>,
        /// The firewall marks for `markSplit`, as `VALUE/MASK`; `0x16000000/0xff00c000` when empty. Not in kube-proxy.
        mark_range: Option<String>,
        /// Whether only clients outside are limited to local endpoints if a policy is `Local`. Not in kube-proxy.
        mark_split: Option<bool>,
        /// Overrides `iptables.masqueradeBit`. Not in kube-proxy.
        masquerade_bit: Option<i64>,
        /// Overrides `iptables.masqueradeAll`. Not in kube-proxy.
        masquerade_all: Option<bool>,
        /// Back end of masquerading and source-range rules in IPVS mode: `auto`, `nftables`, `iptables`; `auto` if
        /// empty. Not in kube-proxy.
        rules: Option<String>,
    }

    /// `ipvs.defaults` of `KubeProxyConfiguration`, in the syntax of the annotations.
    #[doc(hidden)]
    IpvsDefaultsObject {
        /// Flags of the scheduler, separated by commas.
        scheduler_flags: Option<String>,
        /// Seconds that a client stays with its endpoint.
        persistence_seconds: Option<i64>,
        /// Weights of endpoints by zone: `zone-a=3, *=0`.
        zone_weights: Option<String>,
        /// How packets for external addresses reach endpoints.
        forwarding: Option<String>,
        /// Connections above which an endpoint gets no new ones.
        max_connections: Option<i64>,
        /// Seconds that a removed endpoint keeps its connections.
        drain_seconds: Option<i64>,
    }
}
