//! `KubeProxyConfiguration` (`kubeproxy.config.k8s.io/v1alpha1`), as kubeadm writes it.
//!
//! Unknown and repeated fields are accepted with a warning, as in kube-proxy. [`Settings`](crate::settings::Settings)
//! checks the values.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use proxier_core::objects::{FastPathObject, IpvsDefaultsObject};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use crate::problem::Problem;
use crate::settings::duration::GoDuration;
use crate::yaml::{self, null_is_default};

pub const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
pub const KIND: &str = "KubeProxyConfiguration";
/// No configuration is this long, so this is a device or another file.
const BYTES: u64 = 16 << 20;
/// Keys of a ConfigMap that may contain the configuration: kubeadm's, and the one that other installers use.
const CONFIG_MAP_KEYS: [&str; 2] = ["config.conf", "config"];

/// Removed fields, and what happens without them.
pub const REMOVED: &[(&str, &str)] = &[
    ("ipvs.markNodePorts", "each node port has one virtual server for each address of the node, as kube-proxy's"),
    ("ipvs.connectionSync", "daemons that run go on; the cookbook's program `ipvs_sync` starts and stops them"),
    ("ipvs.defaults.minConnections", "three quarters of maxConnections count"),
    ("ipvs.defaults.onePacket", "UDP is served as usual, with answers"),
    ("ipvs.defaults.persistencePrefixIPv4", "each client counts for itself"),
    ("ipvs.defaults.persistencePrefixIPv6", "each client counts for itself"),
    ("userspace.drainTimeout", "connections go on until either side closes them, as with kube-proxy"),
    ("userspace.maxConnectionsPerService", "no Service can take the file descriptors of all others"),
];

/// What happens without a removed field; `None` if this field was never removed.
pub fn removed(field: &str) -> Option<&'static str> {
    REMOVED.iter().find(|(name, _)| *name == field).map(|(_, instead)| *instead)
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn set_default<T: Default + PartialEq>(field: &mut T, default: impl Into<T>) {
    if is_default(field) {
        *field = default.into();
    }
}

/// Defines the sections: a row for each field, with its default if that differs from the type's. kubeadm writes `null`
/// for unset fields. Fields that kube-proxy lacks are written only if they are set.
macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident {
        $($(#[doc = $field_doc:literal])* $(#[serde($($serde:tt)*)])? $field:ident: $type:ty $(= $default:expr)?,)*
    } $(+ own {
        $($(#[doc = $own_doc:literal])* $(#[serde($($own_serde:tt)*)])? $own:ident: $own_type:ty $(= $own_default:expr)?,)*
    })?)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
            #[serde(rename_all = "camelCase", default)]
            pub struct $name {
                $(
                    $(#[doc = $field_doc])*
                    $(#[doc = concat!("\n\nDefault `", stringify!($default), "`.")])?
                    #[serde(deserialize_with = "null_is_default" $(, $($serde)*)?)]
                    pub $field: $type,
                )*
                $($(
                    $(#[doc = $own_doc])*
                    /// Not in kube-proxy.
                    #[serde(deserialize_with = "null_is_default", skip_serializing_if = "is_default" $(, $($own_serde)*)?)]
                    pub $own: $own_type,
                )*)?
            }

            impl $name {
                fn set_own_defaults(&mut self) {
                    $($(set_default(&mut self.$field, $default);)?)*
                    $($($(set_default(&mut self.$own, $own_default);)?)*)?
                }
            }
        )*

        /// Section, name in Rust, attributes for serde, meaning, and whether kube-proxy lacks the field.
        pub const ROWS: &[(&str, &str, &str, &str, bool)] = &[$(
            $((stringify!($name), stringify!($field), stringify!($($($serde)*)?), concat!($($field_doc),*), false),)*
            $($((stringify!($name), stringify!($own), stringify!($($($own_serde)*)?), concat!($($own_doc),*), true),)*)?
        )*];
    };
}

/// How long connections of userspace mode may continue when the process ends, unless configured. Less than the 30 s
/// that Kubernetes gives a pod.
pub const END_TIMEOUT: Duration = Duration::from_secs(20);

const fn secs(secs: u64) -> GoDuration {
    GoDuration(Duration::from_secs(secs))
}

objects! {
    /// The whole configuration. Each field describes its effect here. Fields marked "unused" are kept so that files
    /// with them are read without a warning and written back completely.
    KubeProxyConfiguration {
        /// Version of the format.
        api_version: String = API_VERSION,
        /// The node's primary address in its family, if other hosts can reach it; its family is the primary one.
        /// Unspecified: the Node object's addresses.
        bind_address: String = "0.0.0.0",
        /// Whether the process ends if a health or metrics address cannot be bound. Default no.
        bind_address_hard_fail: bool,
        /// Connection to the API server.
        client_connection: ClientConnection,
        /// Networks of the cluster's pods: one, or one of each family separated by a comma.
        #[serde(rename = "clusterCIDR")]
        cluster_cidr: String,
        /// Unused.
        config_sync_period: GoDuration = secs(15 * 60),
        /// Connection tracking.
        conntrack: Conntrack,
        /// Details for detecting local pod traffic.
        detect_local: DetectLocal,
        /// `ClusterCIDR`, `NodeCIDR`, `BridgeInterface`, `InterfaceNamePrefix`.
        detect_local_mode: String = "ClusterCIDR",
        /// `/debug` on the metrics server; unused.
        enable_profiling: bool,
        /// Feature gates. `AllowServiceExternalIPs: false` ignores external IPs of Services. Any other gate has no
        /// effect here, and causes a warning. Names are not checked against a kube-proxy release.
        feature_gates: BTreeMap<String, bool>,
        /// `/healthz`, `/livez` and `/readyz`. Default port 10256 on all addresses, of both families.
        healthz_bind_address: String,
        /// The node's name. Default: the host name.
        hostname_override: String,
        /// Settings of iptables mode; its masquerading fields apply in IPVS mode too.
        iptables: Iptables,
        /// Settings of IPVS mode.
        ipvs: Ipvs,
        /// Name of the format.
        kind: String = KIND,
        /// Logging.
        logging: Logging,
        /// `/metrics`. Default port 10249 on the loopback address.
        metrics_bind_address: String,
        /// `ipvs`, `nftables`, `iptables`, `userspace`, or `auto`: the best that the machine supports. Default `auto`.
        mode: String,
        /// Settings of nftables mode, used in that mode only.
        nftables: Option<Nftables>,
        /// Addresses that serve node ports: networks, `primary`, `localhost` and `all` in any combination. Default
        /// `all`.
        node_port_addresses: Vec<String>,
        /// Written to this process's `oom_score_adj`.
        oom_score_adj: Option<i64> = -999_i64,
        /// Unused, also in kube-proxy.
        port_range: String,
        /// Unused.
        show_hidden_metrics_for_version: String,
        /// Settings for Windows; unused.
        winkernel: Option<Value>,
        /// Unused.
        windows_run_as_service: bool,
    } + own {
        /// Fast path for established connections, in nftables and iptables mode. Default: none.
        fast_path: Option<FastPathObject>,
        /// Which clients may see `/status` of the metrics server: `off`, `localhost`, `on`. Default `off`.
        status_page: Option<Value>,
        /// Settings of userspace mode.
        userspace: Option<Userspace>,
    }

    /// `clientConnection`.
    ClientConnection {
        /// Encoding of answers, overriding `contentType`: protobuf if it is listed, otherwise JSON.
        accept_content_types: String,
        /// Burst of requests; unused.
        burst: i64 = 10,
        /// Encoding of answers: `application/vnd.kubernetes.protobuf`, otherwise JSON.
        content_type: String = "application/vnd.kubernetes.protobuf",
        /// The kubeconfig file. Default: in-cluster.
        kubeconfig: String,
        /// Requests per second; unused, because this program sends far fewer.
        qps: f64 = 5.0,
    }

    /// `conntrack`.
    Conntrack {
        /// Entries per CPU, together at most 1,048,576; `min` may ask for more. 0: the kernel's.
        max_per_core: Option<i64> = 32 * 1024_i64,
        /// Minimum number of entries.
        min: Option<i64> = 128 * 1024_i64,
        /// Whether to accept TCP packets outside the window. Default no.
        tcp_be_liberal: bool,
        /// Timeout in CLOSE_WAIT. 0: the kernel's.
        tcp_close_wait_timeout: Option<GoDuration> = secs(3_600),
        /// Timeout of idle TCP connections. 0: the kernel's.
        tcp_established_timeout: Option<GoDuration> = secs(24 * 3_600),
        /// Timeout of UDP with answers. 0: the kernel's.
        udp_stream_timeout: GoDuration,
        /// Timeout of UDP without answers. 0: the kernel's.
        udp_timeout: GoDuration,
    }

    /// `detectLocal`.
    DetectLocal {
        /// Device for mode `BridgeInterface`.
        bridge_interface: String,
        /// Prefix of device names for mode `InterfaceNamePrefix`.
        interface_name_prefix: String,
    }

    /// `iptables`.
    Iptables {
        /// Whether node ports are served on 127.0.0.1, in iptables mode.
        localhost_node_ports: Option<bool> = true,
        /// Whether to masquerade all traffic to Services. Default no.
        masquerade_all: bool,
        /// Bit of the packet mark for masquerading, 0 to 31.
        masquerade_bit: Option<i64> = 14_i64,
        /// Shortest time between two passes, in iptables mode.
        min_sync_period: GoDuration = secs(1),
        /// Interval between full comparisons with the kernel, in iptables mode.
        sync_period: GoDuration = secs(30),
    } + own {
        /// Whether masqueraded connections get random ports, in iptables mode: `true`, `false`, or `auto` (if the
        /// iptables programs support it). Default `auto`. `false` also applies in IPVS mode.
        random_fully: Option<Value>,
        /// Whether TCP clients of Services without endpoints get a reset, in iptables mode. The default no sends ICMP
        /// errors, which the kernel limits for each client, and keeps all rules equal to kube-proxy's. nftables mode
        /// always resets.
        reject_with_reset: bool,
    }

    /// `nftables`.
    Nftables {
        /// Whether to masquerade all traffic to cluster IPs. Default no.
        masquerade_all: bool,
        /// Bit of the packet mark for masquerading, 0 to 31. Default 14.
        masquerade_bit: Option<i64>,
        /// Shortest time between two passes. Default 0.
        min_sync_period: GoDuration,
        /// Interval between full comparisons with the kernel.
        sync_period: GoDuration = secs(30),
    } + own {
        /// Whether connections are counted by address and port, for `show` and `trace --live`. Default no.
        count_connections: bool,
        /// Whether this process owns its tables: while it runs, other programs cannot change them, and `nft flush
        /// ruleset` skips them. Also applies to nf_tables tables in IPVS mode. Needs Linux 6.9. Default no.
        own_tables: bool,
    }

    /// `userspace`. Not in kube-proxy.
    Userspace {
        /// How long connections may continue when a signal ends the process; a change of the configuration cuts them.
        end_timeout: Option<GoDuration> = GoDuration(END_TIMEOUT),
        /// Networks of cluster IPs, each made local as a whole; other addresses are made local one by one. The networks
        /// must contain nothing but Services. Default none.
        #[serde(rename = "serviceCIDRs")]
        service_cidrs: Vec<String>,
        /// Lifetime of a UDP flow without datagrams.
        udp_idle_timeout: GoDuration = GoDuration(Duration::from_millis(250)),
    }

    /// `ipvs`.
    Ipvs {
        /// Networks in which no virtual server is deleted.
        #[serde(rename = "excludeCIDRs")]
        exclude_cidrs: Vec<String>,
        /// Shortest time between two passes. Default 0.
        min_sync_period: GoDuration,
        /// The kernel's name of the scheduler.
        scheduler: String = "rr",
        /// Whether to answer ARP only for addresses of the receiving interface. Default no.
        #[serde(rename = "strictARP")]
        strict_arp: bool,
        /// Interval between full comparisons with the kernel.
        sync_period: GoDuration = secs(30),
        /// Timeout of TCP connections after FIN. 0: the kernel's.
        tcp_fin_timeout: GoDuration,
        /// Timeout of idle TCP connections. 0: the kernel's.
        tcp_timeout: GoDuration,
        /// Timeout of UDP. 0: the kernel's.
        udp_timeout: GoDuration,
    } + own {
        /// Permissions of annotations: what they may decide. Default: all except `node-weights`.
        allowed_annotations: Option<Vec<String>>,
        /// How Services' addresses become local: `addresses` on device `kube-ipvs0`, or `routes`. Default `addresses`.
        binding: Option<String>,
        /// Values for Services without annotations.
        defaults: Option<IpvsDefaultsObject>,
        /// The firewall marks for `markSplit`, as `VALUE/MASK`. Default `0x16000000/0xff00c000`.
        mark_range: Option<String>,
        /// Whether, under external policy `Local`, outside clients get local endpoints while this node and its pods get
        /// all endpoints. Default no: all clients get the local ones. Needs rules `nftables`.
        mark_split: Option<bool>,
        /// Overrides `iptables.masqueradeAll`.
        masquerade_all: Option<bool>,
        /// Overrides `iptables.masqueradeBit`.
        masquerade_bit: Option<i64>,
        /// Back end for NAT and firewall rules: `nftables`, `iptables`, or `auto`. `auto` uses `nftables` unless an
        /// iptables filter drops by default, chains of IPVS mode exist, or the kernel does not support it. Default
        /// `auto`.
        rules: Option<String>,
        /// Networks of cluster IPs, each made local as a whole with binding `routes`; other addresses are made local
        /// one by one. The networks must contain nothing but Services. Default none.
        #[serde(rename = "serviceCIDRs")]
        service_cidrs: Option<Vec<String>>,
    }

    /// `logging`.
    Logging {
        /// Unused.
        flush_frequency: Option<Value>,
        /// `text` or `json`.
        format: String = "text",
        /// Unused.
        options: Option<Value>,
        /// Verbosity. 0 to 3: what happened; 4 and 5: also why; 6 and above: everything. Default 0.
        verbosity: i64,
        /// Unused.
        vmodule: Option<Value>,
    }
}

impl KubeProxyConfiguration {
    /// Reads a file.
    /// Errors: the file cannot be read, is not YAML or JSON, is of another kind, or has a field of the wrong type.
    pub fn read(path: &Path) -> Result<(Self, Vec<Problem>), Problem> {
        let origin = path.display().to_string();
        let mut text = String::new();
        let read = File::open(path).and_then(|file| file.take(BYTES).read_to_string(&mut text));
        match read {
            Ok(length) if length as u64 == BYTES => {
                let reason = format!("{} MiB or more, which no configuration has; see --config", BYTES >> 20);
                Err(Problem::new(&origin, reason))
            }
            Ok(_) => Self::parse(&text, &origin),
            Err(error) => Err(Problem::new(&origin, format!("cannot be read ({error}); see --config"))),
        }
    }

    /// Reads a text: a configuration, or a ConfigMap that holds one. The second value: warnings about ignored fields.
    /// Other documents in the same text, such as those of a file for kubeadm, are ignored.
    pub fn parse(text: &str, origin: &str) -> Result<(Self, Vec<Problem>), Problem> {
        let mut warnings = Vec::new();
        let mut value = only_document(text, origin, &mut warnings)?;
        let inside = inside_config_map(&value).map_err(|reason| Problem::new(origin, reason).at("data"))?;
        let origin = &inside.map_or_else(|| origin.to_owned(), |(key, _)| format!("{origin}, data[{key}]"));
        if let Some((_, text)) = inside {
            value = only_document(text, origin, &mut warnings)?;
        }
        check_kind(&value).map_err(|(field, reason)| Problem::new(origin, reason).at(field))?;
        let (mut object, unknown): (Self, _) =
            yaml::read_strictly(&value).map_err(|(field, reason)| Problem::new(origin, reason).at(field))?;
        let passed_over = |field: String| {
            let reason = match removed(&field) {
                Some(instead) => format!("is no longer supported and ignored; {instead}"),
                None => "no such field in this format; it is ignored".to_owned(),
            };
            Problem::new(origin, reason).at(field)
        };
        warnings.extend(unknown.into_iter().map(passed_over));
        if let Some(allowed) = &mut object.ipvs.allowed_annotations {
            let before = allowed.len();
            allowed.retain(|name| name != "one-packet");
            if allowed.len() < before {
                let reason = "one-packet is no longer supported and ignored; UDP is served as usual, with answers";
                warnings.push(Problem::new(origin, reason).at("ipvs.allowedAnnotations"));
            }
        }
        Ok((object, warnings))
    }

    /// Fills in defaults. Repeating it changes nothing.
    pub fn set_defaults(&mut self) {
        self.set_own_defaults();
        self.client_connection.set_own_defaults();
        self.conntrack.set_own_defaults();
        self.detect_local.set_own_defaults();
        self.iptables.set_own_defaults();
        self.ipvs.set_own_defaults();
        self.logging.set_own_defaults();
        self.nftables.iter_mut().for_each(Nftables::set_own_defaults);
        self.userspace.iter_mut().for_each(Userspace::set_own_defaults);
        let v6 = self.bind_address.parse().is_ok_and(|address: std::net::IpAddr| address.is_ipv6());
        set_default(&mut self.healthz_bind_address, if v6 { "[::]:10256" } else { "0.0.0.0:10256" });
        set_default(&mut self.metrics_bind_address, if v6 { "[::1]:10249" } else { "127.0.0.1:10249" });
        add_port(&mut self.healthz_bind_address, 10256);
        add_port(&mut self.metrics_bind_address, 10249);
    }

    /// The configuration as YAML, as `--write-config-to` writes it.
    pub fn to_yaml(&self) -> Result<String, Problem> {
        // JSON values have sorted keys, as in kube-proxy's own files.
        let value = serde_json::to_value(self).map_err(|error| Problem::new("configuration", error.to_string()))?;
        serde_saphyr::to_string(&value).map_err(|error| Problem::new("configuration", error.to_string()))
    }
}

fn add_port(address: &mut String, port: u16) {
    if let Ok(bare) = address.trim_matches(['[', ']']).parse::<std::net::IpAddr>() {
        *address = std::net::SocketAddr::new(bare, port).to_string();
    }
}

/// Returns the one document that is a configuration or a ConfigMap, otherwise the first document.
fn only_document(text: &str, origin: &str, warnings: &mut Vec<Problem>) -> Result<Value, Problem> {
    let mut documents = Vec::new();
    // Keeps the file's line numbers in errors.
    yaml::documents(text.as_bytes(), |document, before| documents.push("\n".repeat(before) + &document))
        .map_err(|error| Problem::new(origin, error.to_string()))?;
    let mut first = None;
    let mut found: Option<(Value, Vec<Problem>)> = None;
    for document in documents {
        let mut noted = Vec::new();
        let value = parse_yaml(&document, origin, &mut noted)?;
        if !matches!(value.get("kind").and_then(Value::as_str), Some(KIND | "ConfigMap")) {
            first.get_or_insert((value, noted));
        } else if found.replace((value, noted)).is_some() {
            return Err(Problem::new(origin, format!("has more than one {KIND} or ConfigMap; leave only one in it")));
        }
    }
    let (value, noted) = found.or(first).unwrap_or_default();
    warnings.extend(noted);
    Ok(value)
}

/// Reads a document. If a field has two values the last one applies, with a warning.
fn parse_yaml(text: &str, origin: &str, warnings: &mut Vec<Problem>) -> Result<Value, Problem> {
    yaml::parse(text, DuplicateKeyPolicy::Error).or_else(|strict| {
        let value = yaml::parse(text, DuplicateKeyPolicy::LastWins)
            .map_err(|reason| Problem::new(origin, format!("not YAML or JSON: {reason}")))?;
        warnings.push(Problem::new(origin, format!("{strict}; the last one is used")));
        Ok(value)
    })
}

/// The configuration inside a ConfigMap, as kubeadm and other installers write it: the key and the text. `None` if it
/// is not a ConfigMap.
fn inside_config_map(value: &Value) -> Result<Option<(&'static str, &str)>, String> {
    if value.get("kind").and_then(Value::as_str) != Some("ConfigMap") {
        return Ok(None);
    }
    let data = value.get("data").and_then(Value::as_object);
    let has = |key: &'static str| Some((key, data?.get(key)?.as_str()?));
    if let Some(found) = CONFIG_MAP_KEYS.into_iter().find_map(has) {
        return Ok(Some(found));
    }
    let keys: Vec<&str> = data.into_iter().flatten().map(|(key, _)| key.as_str()).collect();
    let there = if keys.is_empty() { "nothing".to_owned() } else { keys.join(", ") };
    Err(format!("has {there}; a ConfigMap should have a {KIND} at {}", CONFIG_MAP_KEYS.join(" or ")))
}

fn check_kind(value: &Value) -> Result<(), (&'static str, String)> {
    if !value.is_object() {
        return Err(("", format!("holds no object; it should start with `apiVersion: {API_VERSION}`")));
    }
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    match (text("apiVersion"), text("kind")) {
        (API_VERSION, KIND) => Ok(()),
        (_, kind) if kind != KIND => Err(("kind", format!("{kind:?}; should be {KIND}"))),
        (version, _) => Err(("apiVersion", format!("{version:?}; should be {API_VERSION}"))),
    }
}
