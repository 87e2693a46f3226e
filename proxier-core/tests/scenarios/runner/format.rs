//! The format of a scenario file.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use proxier_core::config::{Families, LocalFallback, Topology};
use serde::Deserialize;
use serde_json::Value;

/// A scenario file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// `group/name.yaml`.
    #[serde(skip)]
    pub(crate) file: String,
    pub(crate) title: String,
    /// Behaviour that it shows, in one sentence.
    why: String,
    /// Differences of the node from the usual one.
    #[serde(default)]
    pub(crate) node: NodeChange,
    /// Fields of `KubeProxyConfiguration`.
    #[serde(default)]
    pub(crate) config: Option<Value>,
    /// Settings that are no fields of `KubeProxyConfiguration`.
    #[serde(default)]
    pub(crate) options: OptionsChange,
    /// State of the kernel before the proxy starts.
    #[serde(default)]
    pub(crate) kernel: KernelEdit,
    #[serde(default)]
    objects: Vec<Value>,
    /// The state after the first pass.
    #[serde(default)]
    expect: Option<Expect>,
    #[serde(default)]
    pub(crate) steps: Vec<Step>,
}

/// An event, and its result.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    #[serde(rename = "do")]
    pub(crate) title: String,
    /// Objects as `kubectl apply` takes them.
    #[serde(default)]
    pub(crate) apply: Vec<Value>,
    /// `Service demo/web`, `EndpointSlice demo/web-1`.
    #[serde(default)]
    pub(crate) delete: Vec<String>,
    #[serde(default)]
    pub(crate) node: NodeChange,
    #[serde(default)]
    pub(crate) config: Option<Value>,
    #[serde(default)]
    pub(crate) options: OptionsChange,
    /// Foreign changes of the kernel.
    #[serde(default)]
    pub(crate) kernel: KernelEdit,
    /// Seconds that pass afterwards; by default long enough for idle real servers to go.
    #[serde(default)]
    pub(crate) seconds: Option<u64>,
    /// `-t 10.96.0.10:80 -r 10.244.1.5:8080 active 3 inactive 1`: open connections from now on.
    #[serde(default)]
    pub(crate) connections: Vec<String>,
    /// Whether the proxy is restarted.
    #[serde(default)]
    pub(crate) restart: bool,
    pub(crate) expect: Expect,
}

/// Output of the tools. Omitted parts are not compared, except reports, which must then be empty.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    /// Lines of `ipvsadm -Sn`, or `none`.
    pub(crate) ipvsadm: String,
    /// `add` lines of `ipset save`, or `none`.
    #[serde(default)]
    pub(crate) ipset: Option<String>,
    /// Addresses of `kube-ipvs0`.
    #[serde(default)]
    pub(crate) addresses: Option<Vec<String>>,
    /// Lines of `iptables-save`: the chains that they name, with all their rules.
    #[serde(default)]
    pub(crate) iptables: Option<String>,
    /// Lines of `ip6tables-save`: the chains that they name, with all their rules.
    #[serde(default)]
    pub(crate) ip6tables: Option<String>,
    /// Object, field and value of each part that was left out.
    #[serde(default)]
    pub(crate) rejected: Vec<String>,
    /// Virtual servers that a Service does not get because the node needs the address or port.
    #[serde(default)]
    pub(crate) refused: Vec<String>,
    /// Services that claim an address and port of another one.
    #[serde(default)]
    pub(crate) conflicts: Vec<String>,
    #[serde(default)]
    pub(crate) health_checks: Vec<String>,
    /// Services counted by the metric of that name.
    #[serde(default)]
    pub(crate) no_local_endpoints: Vec<String>,
    /// Whether nothing was written for this step.
    #[serde(default)]
    pub(crate) unchanged: bool,
}

/// Changes of the node.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct NodeChange {
    pub(crate) name: Option<String>,
    /// Zone; empty for none.
    pub(crate) zone: Option<String>,
    /// Internal addresses of the Node object.
    pub(crate) addresses: Option<Vec<String>>,
    /// Addresses of this host by interface.
    pub(crate) interfaces: Option<BTreeMap<String, Vec<String>>>,
    #[serde(rename = "podCIDRs")]
    pub(crate) pod_cidrs: Option<Vec<String>>,
}

/// Settings that are no fields of `KubeProxyConfiguration`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct OptionsChange {
    /// `IPv4`, `IPv6`, `dual`.
    families: Option<String>,
    /// `Hints`, `AnnotatedHints`.
    topology: Option<String>,
    /// `Cluster`, `Refuse`.
    local_fallback: Option<String>,
    /// Address and port of the API server.
    api_server: Option<String>,
}

impl OptionsChange {
    pub(crate) fn is_empty(&self) -> bool {
        self.families.is_none() && self.topology.is_none() && self.local_fallback.is_none() && self.api_server.is_none()
    }

    pub(crate) fn merge(&mut self, change: &OptionsChange) {
        let take = |own: &mut Option<String>, new: &Option<String>| {
            if new.is_some() {
                own.clone_from(new);
            }
        };
        take(&mut self.families, &change.families);
        take(&mut self.topology, &change.topology);
        take(&mut self.local_fallback, &change.local_fallback);
        take(&mut self.api_server, &change.api_server);
    }

    pub(crate) fn families(&self) -> Families {
        match self.families.as_deref() {
            Some("IPv4") => Families::V4,
            Some("IPv6") => Families::V6,
            Some("dual") | None => Families::Dual,
            Some(other) => panic!("families: {other}"),
        }
    }

    pub(crate) fn topology(&self) -> Topology {
        match self.topology.as_deref() {
            Some("AnnotatedHints") => Topology::AnnotatedHints,
            Some("Hints") | None => Topology::Hints,
            Some(other) => panic!("topology: {other}"),
        }
    }

    pub(crate) fn api_server(&self) -> Option<SocketAddr> {
        self.api_server.as_deref().map(|text| text.parse().unwrap())
    }

    pub(crate) fn local_fallback(&self) -> LocalFallback {
        match self.local_fallback.as_deref() {
            Some("Refuse") => LocalFallback::Refuse,
            Some("Cluster") | None => LocalFallback::Cluster,
            Some(other) => panic!("localFallback: {other}"),
        }
    }
}

/// Foreign changes of the kernel, in the tools' formats.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct KernelEdit {
    /// Lines for `ipvsadm -R`.
    #[serde(default)]
    pub(crate) ipvsadm: String,
    /// Lines for `ipset restore`.
    #[serde(default)]
    pub(crate) ipset: String,
    /// `add ADDRESS` and `del ADDRESS`, on `kube-ipvs0`; `add` creates it.
    #[serde(default)]
    pub(crate) addresses: String,
    /// Text for `iptables-restore --noflush`.
    #[serde(default)]
    pub(crate) iptables: String,
    /// Text for `ip6tables-restore --noflush`.
    #[serde(default)]
    pub(crate) ip6tables: String,
}

impl KernelEdit {
    pub(crate) fn is_empty(&self) -> bool {
        [&self.ipvsadm, &self.ipset, &self.addresses, &self.iptables, &self.ip6tables]
            .iter()
            .all(|text| text.is_empty())
    }
}

impl Scenario {
    /// Checks rules that the types cannot express.
    pub(crate) fn check(&self) {
        let file = &self.file;
        assert!(!self.title.is_empty() && !self.why.is_empty(), "{file}: title and why say something");
        assert!(self.expect.is_some(), "{file}: what is expected after the first pass is missing");
        for object in self.objects.iter().chain(self.steps.iter().flat_map(|step| &step.apply)) {
            known_keys(object, file);
        }
        for config in self.config.iter().chain(self.steps.iter().filter_map(|step| step.config.as_ref())) {
            known_keys(config, file);
        }
        for step in &self.steps {
            assert!(!step.title.is_empty(), "{file}: what a step does is missing");
        }
        for expect in self.expect.iter().chain(self.steps.iter().map(|step| &step.expect)) {
            assert!(!expect.ipvsadm.is_empty(), "{file}: an empty `ipvsadm` is written `none`");
            assert!(expect.ipset.as_deref() != Some(""), "{file}: an empty `ipset` is written `none`");
        }
    }

    /// Whether it needs a kernel in memory.
    pub(crate) fn needs_connections(&self) -> bool {
        self.steps.iter().any(|step| !step.connections.is_empty())
    }
}

impl Step {
    /// The objects a scenario begins with, as a step.
    pub(crate) fn first(scenario: &Scenario) -> Self {
        Step {
            title: "begin".to_owned(),
            apply: scenario.objects.clone(),
            kernel: scenario.kernel.clone(),
            expect: scenario.expect.clone().unwrap(),
            ..Step::default()
        }
    }
}

impl Default for Expect {
    fn default() -> Self {
        Expect {
            ipvsadm: "none".to_owned(),
            ipset: None,
            addresses: None,
            iptables: None,
            ip6tables: None,
            rejected: Vec::new(),
            refused: Vec::new(),
            conflicts: Vec::new(),
            health_checks: Vec::new(),
            no_local_endpoints: Vec::new(),
            unchanged: false,
        }
    }
}

/// The keys of Kubernetes objects and of `KubeProxyConfiguration` that scenarios use. A misspelt key would be ignored,
/// since real objects have many that this crate does not read.
const READ: &str = "metadata name namespace creationTimestamp labels annotations spec status type clusterIP clusterIPs ipFamilies \
    ports externalIPs sessionAffinity sessionAffinityConfig clientIP timeoutSeconds externalTrafficPolicy \
    internalTrafficPolicy healthCheckNodePort loadBalancerSourceRanges protocol port nodePort loadBalancer ingress \
    ip ipMode addressType endpoints addresses conditions ready serving terminating nodeName hints forZones \
    forNodes nodePortAddresses ipvs scheduler excludeCIDRs clusterCIDR detectLocalMode detectLocal bridgeInterface \
    interfaceNamePrefix iptables masqueradeAll masqueradeBit";

/// The crate does not read these: other parts of the cluster do.
const UNREAD: &str = "apiVersion kind targetPort selector externalName publishNotReadyAddresses hostname trafficDistribution \
    allocateLoadBalancerNodePorts";

fn known_keys(value: &Value, file: &str) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let is_known = |keys: &str| keys.split(' ').any(|known| known == key);
                assert!(is_known(READ) || is_known(UNREAD), "{file}: nobody reads {key}");
                if !matches!(key.as_str(), "labels" | "annotations" | "selector") {
                    known_keys(value, file);
                }
            }
        }
        Value::Array(list) => list.iter().for_each(|value| known_keys(value, file)),
        _ => {}
    }
}
