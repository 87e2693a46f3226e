//! The format of a scenario file.

use proxier_core::snapshot::ObjectKey;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Fields that replace those of the same names.
pub(crate) type Fields = Map<String, Value>;

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
    node: Fields,
    /// Fields of `KubeProxyConfiguration`.
    #[serde(default)]
    config: Fields,
    /// Settings that are no fields of `KubeProxyConfiguration`.
    #[serde(default)]
    options: Fields,
    /// State of the kernel before the proxy starts.
    #[serde(default)]
    kernel: KernelEdit,
    #[serde(default)]
    objects: Vec<Value>,
    /// The state after the first pass.
    expect: Expect,
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
    apply: Vec<Value>,
    /// `Service demo/web`, `EndpointSlice demo/web-1`.
    #[serde(default)]
    delete: Vec<String>,
    #[serde(default)]
    pub(crate) node: Fields,
    #[serde(default)]
    pub(crate) config: Fields,
    #[serde(default)]
    pub(crate) options: Fields,
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
#[derive(Clone, Debug, Default, Deserialize)]
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

/// Foreign changes of the kernel, in the tools' formats.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
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

impl Scenario {
    /// Checks rules that the types cannot express.
    pub(crate) fn check(&self) {
        let file = &self.file;
        assert!(!self.title.is_empty() && !self.why.is_empty(), "{file}: title and why say something");
        for step in std::iter::once(&self.first()).chain(&self.steps) {
            assert!(!step.title.is_empty(), "{file}: what a step does is missing");
            for object in &step.apply {
                assert!(KINDS.iter().any(|kind| object["kind"] == *kind), "{file}: {}", object["kind"]);
                known_keys(object, file);
            }
            for text in &step.delete {
                assert!(KINDS.iter().any(|kind| text.starts_with(&format!("{kind} "))), "{file}: delete {text}");
            }
            known_keys(&Value::Object(step.config.clone()), file);
            assert!(!step.expect.ipvsadm.is_empty(), "{file}: an empty `ipvsadm` is written `none`");
            assert!(step.expect.ipset.as_deref() != Some(""), "{file}: an empty `ipset` is written `none`");
        }
    }

    /// Whether it needs a kernel in memory.
    pub(crate) fn needs_connections(&self) -> bool {
        self.steps.iter().any(|step| !step.connections.is_empty())
    }

    /// What it begins with, as a step.
    pub(crate) fn first(&self) -> Step {
        Step {
            title: "begin".to_owned(),
            apply: self.objects.clone(),
            node: self.node.clone(),
            config: self.config.clone(),
            options: self.options.clone(),
            kernel: self.kernel.clone(),
            expect: self.expect.clone(),
            ..Step::default()
        }
    }
}

/// Kinds of objects.
pub(crate) const SERVICE: &str = "Service";
pub(crate) const SLICE: &str = "EndpointSlice";
const KINDS: [&str; 2] = [SERVICE, SLICE];

impl Step {
    /// The objects of a kind that it applies.
    pub(crate) fn applied<T: DeserializeOwned>(&self, kind: &str) -> Vec<T> {
        let objects = self.apply.iter().filter(|object| object["kind"] == kind);
        objects.map(|object| serde_json::from_value(object.clone()).unwrap()).collect()
    }

    /// The objects of a kind that it deletes.
    pub(crate) fn deleted(&self, kind: &str) -> Vec<ObjectKey> {
        let keys = self.delete.iter().filter_map(|text| text.strip_prefix(kind)?.strip_prefix(' ')?.split_once('/'));
        keys.map(|(namespace, name)| ObjectKey::new(namespace, name)).collect()
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
