//! kube-proxy's flags: names, meanings, and the configuration field that each sets.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Value, json};

use crate::problem::Problem;
use crate::settings::Origin;
use crate::settings::duration::GoDuration;
use crate::settings::kubeproxyconfig::{API_VERSION, KIND, KubeProxyConfiguration};
use crate::yaml;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    /// `true` or `false`; the flag alone is `true`.
    Bool,
    Int,
    Float,
    /// `30s`.
    Duration,
    /// Comma-separated texts; may be given several times.
    List,
    /// `A=true,B=false`.
    Gates,
}

/// A flag: its name, kind, the field that it sets (none: accepted without effect), when it counts, and help.
#[derive(Clone, Copy)]
struct Flag(&'static str, Kind, &'static str, Effect, &'static str);

/// Where a flag of the configuration has an effect.
#[derive(Clone, Copy, PartialEq)]
enum Effect {
    Always,
    InIptablesMode,
    /// Nowhere in this program.
    Never,
}

use Effect::{Always, InIptablesMode, Never};
use Kind::{Bool, Duration, Float, Gates, Int, List, Text};

macro_rules! flags {
    ($($name:literal $kind:ident $field:literal $($effect:ident)? $help:literal;)*) => {
        &[$(Flag($name, $kind, $field, [$($effect,)? Always][0], $help)),*]
    };
    ($($kind:ident: $($name:literal)*;)*) => { &[$($(Flag($name, $kind, "", Never, "")),*),*] };
}

const FLAGS: &[Flag] = flags! {
    "bind-address" Text "bindAddress" "The node's primary address, whose family is the primary one [0.0.0.0]";
    "bind-address-hard-fail" Bool "bindAddressHardFail" "End when a health or metrics address cannot be bound";
    "cluster-cidr" Text "clusterCIDR" "Network of the cluster's pods; two, one a family, with a comma between";
    "config-sync-period" Duration "configSyncPeriod" Never "Accepted; a complete watch needs no resync";
    "conntrack-max-per-core" Int "conntrack.maxPerCore" "Tracked connections for each CPU, 0: leave [32768]";
    "conntrack-min" Int "conntrack.min" "Tracked connections at least [131072]";
    "conntrack-tcp-be-liberal" Bool "conntrack.tcpBeLiberal" "Be liberal about TCP windows";
    "conntrack-tcp-timeout-close-wait" Duration "conntrack.tcpCloseWaitTimeout" "In CLOSE_WAIT, 0s: leave [1h]";
    "conntrack-tcp-timeout-established" Duration "conntrack.tcpEstablishedTimeout" "Idle TCP, 0s: leave [24h]";
    "conntrack-udp-timeout" Duration "conntrack.udpTimeout" "UDP without answers, 0s: leave [0s]";
    "conntrack-udp-timeout-stream" Duration "conntrack.udpStreamTimeout" "UDP with answers, 0s: leave [0s]";
    "detect-local-mode" Text "detectLocalMode" "ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix";
    "feature-gates" Gates "featureGates" "AllowServiceExternalIPs=false: no external IPs of Services are served; other gates change nothing here";
    "healthz-bind-address" Text "healthzBindAddress" "/healthz, /livez and /readyz, \"\": nowhere [0.0.0.0:10256]";
    "iptables-localhost-nodeports" Bool "iptables.localhostNodePorts" InIptablesMode "Node ports on 127.0.0.1, in iptables mode [true]";
    "iptables-masquerade-bit" Int "iptables.masqueradeBit" "Bit of the packet mark for masquerading [14]";
    "iptables-min-sync-period" Duration "iptables.minSyncPeriod" InIptablesMode "In iptables mode: least time between passes [1s]";
    "iptables-sync-period" Duration "iptables.syncPeriod" InIptablesMode "In iptables mode: how often it is checked for drift [30s]";
    "ipvs-binding" Text "ipvs.binding" "Addresses of Services: addresses (on kube-ipvs0), routes [addresses]";
    "ipvs-exclude-cidrs" List "ipvs.excludeCIDRs" "Networks in which no virtual server is deleted";
    "ipvs-mark-range" Text "ipvs.markRange" "Firewall marks for it [0x16000000/0xff00c000]";
    "ipvs-mark-split" Bool "ipvs.markSplit" "Policy Local: only clients outside get only local endpoints";
    "ipvs-min-sync-period" Duration "ipvs.minSyncPeriod" "Least time between two passes [0s]";
    "ipvs-rules" Text "ipvs.rules" "auto, nftables or iptables: what guards virtual servers [auto]";
    "ipvs-scheduler" Text "ipvs.scheduler" "The kernel's name of the scheduler [rr]";
    "ipvs-service-cidrs" List "ipvs.serviceCIDRs" "With --ipvs-binding=routes, networks of cluster IPs";
    "ipvs-strict-arp" Bool "ipvs.strictARP" "Answer ARP only for addresses of the interface asked";
    "ipvs-sync-period" Duration "ipvs.syncPeriod" "How often the kernel is checked for drift [30s]";
    "ipvs-tcp-timeout" Duration "ipvs.tcpTimeout" "Idle TCP connections, 0s: the kernel's [0s]";
    "ipvs-tcpfin-timeout" Duration "ipvs.tcpFinTimeout" "TCP connections after FIN, 0s: the kernel's [0s]";
    "ipvs-udp-timeout" Duration "ipvs.udpTimeout" "UDP, 0s: the kernel's [0s]";
    "kube-api-burst" Int "clientConnection.burst" Never "Accepted; this program sends few requests";
    "kube-api-content-type" Text "clientConnection.contentType" "Encoding of the API server's answers: application/json, or protobuf";
    "kube-api-qps" Float "clientConnection.qps" Never "Accepted; this program sends few requests";
    "masquerade-all" Bool "iptables.masqueradeAll" "Masquerade all traffic to Services";
    "metrics-bind-address" Text "metricsBindAddress" "/metrics, \"\": nowhere [127.0.0.1:10249]";
    "nodeport-addresses" List "nodePortAddresses" "Where node ports are served: networks, primary, localhost, all [all]";
    "oom-score-adj" Int "oomScoreAdj" "This process's oom_score_adj, -1000 to 1000 [-999]";
    "pod-bridge-interface" Text "detectLocal.bridgeInterface" "For --detect-local-mode=BridgeInterface";
    "pod-interface-name-prefix" Text "detectLocal.interfaceNamePrefix" "For --detect-local-mode=InterfaceNamePrefix";
    "profiling" Bool "enableProfiling" Never "Accepted; there is nothing to profile with";
    "proxy-mode" Text "mode" "auto, ipvs, nftables, iptables or userspace; auto: the best that this machine can do [auto]";
    "proxy-port-range" Text "portRange" Never "Accepted; unused in kube-proxy too";
    "show-hidden-metrics-for-version" Text "showHiddenMetricsForVersion" Never "Accepted; nothing is hidden";
    "status-page" Text "statusPage" "/status of the metrics server: off, localhost or on [off]";
};

/// Logging flags also apply together with `--config`.
const LOGGING: &[Flag] = flags! {
    "v" Int "logging.verbosity" "How much is logged, 0 to 10 [0]";
    "logging-format" Text "logging.format" "text or json [text]";
};

/// The values that a flag accepts, for completions; the check of the configuration names them in its errors.
const WORDS: &[(&str, &[&str])] = &[
    ("detect-local-mode", &["ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"]),
    ("ipvs-binding", &["addresses", "routes"]),
    ("ipvs-rules", &["auto", "nftables", "iptables"]),
    ("kube-api-content-type", &["application/json", "application/vnd.kubernetes.protobuf"]),
    ("logging-format", &["text", "json"]),
    ("nodeport-addresses", &["all", "primary", "localhost"]),
    ("proxy-mode", &["auto", "ipvs", "nftables", "iptables", "userspace"]),
    ("status-page", &["off", "localhost", "on"]),
];

/// Accepts any text, and completes known values.
#[derive(Clone, Copy)]
struct Words(&'static [&'static str]);

impl TypedValueParser for Words {
    type Value = Value;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Value, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value).map(Value::from)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        (!self.0.is_empty()).then(|| Box::new(self.0.iter().map(PossibleValue::new)) as Box<_>)
    }
}

/// Accepted so that kube-proxy's command lines work; one warning says that they have no effect.
const IGNORED: &[Flag] = flags! {
    Bool: "add-dir-header" "alsologtostderr" "cleanup-ipvs" "ipvs-mark-node-ports" "log-json-split-stream" "log-text-split-stream" "logtostderr" "one-output"
        "skip-headers" "skip-log-headers";
    Duration: "log-flush-frequency";
    Int: "conntrack-max" "log-file-max-size";
    Text: "log-backtrace-at" "log-dir" "log-file" "log-json-info-buffer-size" "log-text-info-buffer-size" "stderrthreshold" "vmodule";
};

const HEADING: &str = "Configuration (kube-proxy's own names; without effect when --config is given)";

pub(super) fn args() -> impl Iterator<Item = Arg> {
    let shown = FLAGS.iter().map(|flag| arg(flag).help_heading(HEADING));
    let logging = LOGGING.iter().map(|flag| {
        let logging = arg(flag).help_heading("Logging");
        if flag.0 == "v" { logging.short('v') } else { logging }
    });
    let ports = [
        ("healthz-port", "Deprecated: --healthz-bind-address"),
        ("metrics-port", "Deprecated: --metrics-bind-address"),
    ]
    .map(|(name, help)| arg(&Flag(name, Int, "", Always, help)).hide(true));
    shown.chain(logging).chain(IGNORED.iter().map(|flag| arg(flag).hide(true))).chain(ports)
}

fn arg(Flag(name, kind, .., help): &Flag) -> Arg {
    let arg = Arg::new(*name).long(*name).help(*help);
    match kind {
        Bool => arg.num_args(0..=1).require_equals(true).default_missing_value("true").value_name("BOOL"),
        List | Gates => arg.action(ArgAction::Append).value_name(if *kind == List { "A,B" } else { "A=true,…" }),
        Duration => arg.value_name("DURATION"),
        Int | Float => arg.value_name("N").allow_negative_numbers(true),
        Text => arg.value_name("TEXT"),
    }
    .hide_possible_values(true)
    .value_parser(parser(name, *kind))
}

fn parser(name: &str, kind: Kind) -> ValueParser {
    if matches!(kind, Text | List) {
        let words = WORDS.iter().find(|(of, _)| *of == name).map_or(&[][..], |(_, words)| *words);
        return ValueParser::new(Words(words));
    }
    ValueParser::from(StringValueParser::new().try_map(move |text| read(kind, &text)))
}

/// The value of a flag; otherwise what to write.
fn read(kind: Kind, text: &str) -> Result<Value, String> {
    let gates = || {
        let gates = text.split(',').filter(|part| !part.is_empty()).map(|part| {
            let (name, on) = part.split_once('=')?;
            Some((name.trim().to_owned(), Value::from(on.trim().parse::<bool>().ok()?)))
        });
        gates.collect::<Option<serde_json::Map<_, _>>>().map(Value::Object)
    };
    let (value, advice) = match kind {
        Text | List => (Some(text.into()), ""),
        Bool => match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => (Some(true.into()), ""),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => (Some(false.into()), ""),
            _ => (None, "write true or false"),
        },
        Int => (text.parse::<i64>().ok().map(Value::from), "write a whole number"),
        Float => (text.parse().ok().filter(|number: &f64| number.is_finite()).map(Value::from), "write a number"),
        Duration => return text.parse::<GoDuration>().map(|duration| duration.to_string().into()),
        Gates => (gates(), "write NAME=true or NAME=false"),
    };
    value.ok_or_else(|| advice.to_owned())
}

/// Each flag with the value of its field, in the flag's syntax.
pub(crate) fn flags_of(configuration: &Value) -> impl Iterator<Item = (&'static str, String)> {
    FLAGS.iter().chain(LOGGING).map(move |Flag(name, _, field, ..)| {
        let value = field.split('.').fold(configuration, |object, field| &object[field]);
        let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let text = match value {
            Value::Null => String::new(),
            Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(","),
            Value::Object(fields) => {
                fields.iter().map(|(name, value)| format!("{name}={}", plain(value))).collect::<Vec<_>>().join(",")
            }
            other => plain(other),
        };
        (*name, text)
    })
}

/// The flag that sets a field; elements of a list belong to the field.
pub fn flag_of(field: &str) -> Option<&'static str> {
    let field = field.split('[').next().unwrap_or_default();
    match field {
        "hostnameOverride" => return Some("hostname-override"),
        "clientConnection.kubeconfig" => return Some("kubeconfig"),
        _ => {}
    }
    FLAGS.iter().chain(LOGGING).find(|flag| flag.2 == field).map(|flag| flag.0)
}

fn given(matches: &ArgMatches, name: &str) -> bool {
    matches.value_source(name) == Some(clap::parser::ValueSource::CommandLine)
}

pub(super) fn without_effect(matches: &ArgMatches, with_config: bool) -> Vec<&'static str> {
    let mode = matches.get_one::<Value>("proxy-mode").and_then(Value::as_str).unwrap_or_default();
    let unused = |flag: &&Flag| with_config || flag.3 == Never || flag.3 == InIptablesMode && mode != "iptables";
    let of_configuration = FLAGS.iter().filter(unused).map(|flag| flag.0);
    let ports = ["healthz-port", "metrics-port"].into_iter().filter(|_| with_config);
    let mut ignored: Vec<&str> = IGNORED.iter().map(|flag| flag.0).collect();
    ignored.sort_unstable();
    of_configuration.chain(ports).chain(ignored).filter(|name| given(matches, name)).collect()
}

pub(super) fn configuration(matches: &ArgMatches, given_by: &Origin) -> Result<KubeProxyConfiguration, Problem> {
    let mut value = json!({"apiVersion": API_VERSION, "kind": KIND});
    for flag in FLAGS.iter().chain(LOGGING).filter(|flag| given(matches, flag.0)) {
        set(&mut value, flag, matches);
    }
    let object = yaml::read_strictly(&value).map_err(|(field, reason)| given_by.problem(&field, reason))?;
    Ok(object.0)
}

/// Applies logging flags to the configuration of a file.
pub(super) fn set_logging(matches: &ArgMatches, object: &mut KubeProxyConfiguration) {
    if let Some(verbosity) = matches.get_one::<Value>("v").and_then(Value::as_i64) {
        object.logging.verbosity = verbosity;
    }
    if let Some(format) = matches.get_one::<Value>("logging-format").and_then(Value::as_str) {
        format.clone_into(&mut object.logging.format);
    }
}

fn set(value: &mut Value, Flag(name, kind, field, ..): &Flag, matches: &ArgMatches) {
    let place = field.split('.').fold(value, |object, part| &mut object[part]);
    let values = matches.get_many::<Value>(name).into_iter().flatten();
    *place = match kind {
        List => {
            let texts = values.filter_map(Value::as_str).flat_map(|text| text.split(','));
            texts.map(str::trim).filter(|text| !text.is_empty()).map(Value::from).collect()
        }
        Gates => Value::Object(values.filter_map(Value::as_object).flat_map(Clone::clone).collect()),
        _ => values.last().cloned().unwrap_or_default(),
    };
}

/// Server address by the old `--healthz-port` and `--metrics-port`; empty: no server, as an empty address means too.
/// `None`: as configured.
pub(super) fn server(matches: &ArgMatches, name: &str, host: &str) -> Option<String> {
    let address = format!("{name}-bind-address");
    if let Some(text) = matches.get_one::<Value>(&address).and_then(Value::as_str) {
        return text.is_empty().then(String::new);
    }
    let port = matches.get_one::<Value>(&format!("{name}-port")).and_then(Value::as_i64)?;
    Some(if port == 0 { String::new() } else { format!("{host}:{port}") })
}
