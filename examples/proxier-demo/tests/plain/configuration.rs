//! The configuration of `proxier-demo`, from a command line to checked values.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use proxier_core::modes::Kind;
use proxier_core::modes::iptables::RandomFully;
use proxier_core::modes::select::RequestedMode;
use proxier_demo::problem::Stopped;
use proxier_demo::settings::cli::{Configured, Connection, Source, parse};
use proxier_demo::settings::duration::GoDuration;
use proxier_demo::settings::kubeproxyconfig::{API_VERSION, KIND, KubeProxyConfiguration, REMOVED};
use proxier_demo::settings::{Exposure, Origin, Settings};
use serde_json::{Value, json};

use crate::program::{Folder, demo, ok, service, text};

/// Configuration in the ConfigMap `kube-proxy` that kubeadm makes for a new cluster.
const KUBEADM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/kubeadm-config.conf");

fn configured(args: &[&str]) -> Result<Configured, Stopped> {
    let args = std::iter::once(&"proxier-demo").chain(args).map(OsString::from);
    parse(args).unwrap().configure()
}

/// Problems of bad input, one a line.
#[track_caller]
fn refused(configured: Result<Configured, Stopped>) -> String {
    let Stopped { problems, code } = configured.unwrap_err();
    assert_eq!(code, 2, "{problems:?}");
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// The text of a configuration with these fields.
pub(crate) fn in_file(body: &str) -> String {
    format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{body}")
}

#[test]
fn kubeadms_own_file_is_read_without_a_warning() {
    let configured = configured(&["--config", KUBEADM, "--hostname-override=node-a"]).unwrap();
    assert_eq!(configured.warnings, Vec::<String>::new());
    assert_eq!(
        configured.source,
        Source::Cluster(Connection { kubeconfig: Some("/var/lib/kube-proxy/kubeconfig.conf".into()), master: None })
    );
    let settings = configured.settings;
    assert_eq!(settings.node_name, "node-a");
    assert_eq!(settings.healthz, Some("0.0.0.0:10256".parse().unwrap()));
    assert_eq!(settings.metrics, Some("127.0.0.1:10249".parse().unwrap()));
    assert_eq!((settings.sync_period, settings.min_sync_period), (Duration::from_secs(30), Duration::ZERO));
    assert_eq!(settings.oom_score_adj, -999);
    assert!(settings.host.conntrack_max.unwrap() >= 131_072, "32,768 for each processor");
    let host = &settings.host;
    assert_eq!((host.tcp_established_secs, host.tcp_close_wait_secs, host.udp_secs), (Some(86_400), Some(3_600), None));
    assert_eq!(settings.core.masquerade_bit.get(), 14);
    assert_eq!(
        settings.core.local_traffic,
        proxier_core::config::LocalTraffic::ClusterCidrs(vec!["10.244.0.0/16".parse().unwrap()])
    );
}

#[test]
fn beside_a_file_flags_count_as_with_kube_proxy() {
    let flags = "--ipvs-scheduler=wlc --cluster-cidr=10.0.0.0/8 -v=5 --hostname-override=node-a --kubeconfig=mine";
    let line: Vec<&str> = ["run", "--config", KUBEADM].into_iter().chain(flags.split(' ')).collect();
    let configured = configured(&line).unwrap();
    assert_eq!(configured.settings.object.ipvs.scheduler, "rr");
    assert_eq!(configured.settings.object.cluster_cidr, "10.244.0.0/16");
    assert_eq!(configured.settings.verbosity, 5);
    assert_eq!(configured.source, Source::Cluster(Connection { kubeconfig: Some("mine".into()), master: None }));
    assert_eq!(configured.warnings, ["accepted, without effect next to --config: --cluster-cidr, --ipvs-scheduler"]);
}

#[test]
fn a_bad_file_is_bad_input_with_file_and_field() {
    let whole = [
        ("kind: Secret\napiVersion: v1\n", "kind: \"Secret\"; should be KubeProxyConfiguration"),
        ("kind: KubeProxyConfiguration\napiVersion: v1\n", "apiVersion: \"v1\"; should be kubeproxy"),
        ("kind: ConfigMap\napiVersion: v1\ndata: {other: x}\n", "data: has other; a ConfigMap should have a"),
        ("a: b: c\n", "not YAML or JSON: "),
    ];
    let fields = [
        ("oomScoreAdj: much\n", "oomScoreAdj: invalid type: string \"much\", expected a whole number"),
        ("ipvs: [1]\n", "ipvs"),
        ("fastPath: true\n", "fastPath: invalid type: boolean `true`, expected an object"),
        ("ipvs: {minSyncPeriod: 5}\n", "ipvs.minSyncPeriod: 5 is not a duration; write a number with a unit"),
        ("ipvs: {syncPeriod: soon}\n", "ipvs.syncPeriod: \"soon\" is not a duration"),
        ("ipvs: {defaults: {forwarding: nat}}\n", "ipvs.defaults.forwarding: \"nat\" is not masquerade, direct-route"),
        ("ipvs: {defaults: {zoneWeights: 'a=1, b'}}\n", "ipvs.defaults.zoneWeights: \"b\" is not a zone (or *)"),
        ("ipvs: {defaults: {maxConnections: 0}}\n", "ipvs.defaults.maxConnections: \"0\" is not a number from 1"),
        ("ipvs: {defaults: {forwarding: gue}}\n", "ipvs.defaults.forwarding: \"gue\" is not complete: gue needs"),
        ("ipvs: {excludeCIDRs: [10.0.0.0/40]}\n", "ipvs.excludeCIDRs[0]: \"10.0.0.0/40\" is not a network"),
        ("mode: ipvss", "mode: \"ipvss\" is not a mode; write auto, ipvs, nftables, iptables or userspace"),
        ("mode: kernelspace", "mode: \"kernelspace\" is for Windows only; write auto, "),
        ("bindAddress: localhost", "bindAddress: \"localhost\" is not an IP address"),
        ("healthzBindAddress: '10256'", "healthzBindAddress: \"10256\" is not ADDRESS:PORT"),
        ("metricsBindAddress: 127.0.0.1:70000", "metricsBindAddress: "),
        ("oomScoreAdj: -1001", "oomScoreAdj: -1001 is not from -1000 to 1000"),
        ("ipvs: {minSyncPeriod: 31s}", "ipvs.minSyncPeriod: longer than ipvs.syncPeriod (30s)"),
        ("ipvs: {tcpTimeout: 300ms}", "ipvs.tcpTimeout: 300ms is less than a second"),
        ("ipvs: {udpTimeout: 1000000h}", "ipvs.udpTimeout: 1000000h0m0s is more than the kernel takes"),
        ("ipvs: {scheduler: 'no such thing'}", "ipvs.scheduler: \"no such thing\" is not a scheduler's name"),
        ("ipvs: {excludeCIDRs: [10.0.0.0/8, 10.0.0.0/33]}", "ipvs.excludeCIDRs[1]: \"10.0.0.0/33\" is not a network"),
        ("nodePortAddresses: [here]", "nodePortAddresses[0]: \"here\" is not a network (ADDRESS/PREFIX), primary, "),
        ("conntrack: {maxPerCore: -1}", "conntrack.maxPerCore: -1 is not from 0 to 2147483647"),
        ("statusPage: everybody", "statusPage: \"everybody\" is not off, localhost or on"),
        ("statusPage: 7", "statusPage: 7 is not off, localhost or on"),
        ("hostnameOverride: 'a b'", "hostnameOverride: \"a b\" cannot be a Node's name"),
        ("logging: {format: xml}", "logging.format: \"xml\" is neither text nor json"),
        ("logging: {verbosity: -1}", "logging.verbosity: -1 is not from 0 to 10"),
        ("iptables: {masqueradeBit: 32}", "iptables.masqueradeBit: \"32\" is not a bit of the mark"),
        ("clusterCIDR: 10.0.0.0", "clusterCIDR: \"10.0.0.0\" is not a network"),
        ("clusterCIDR: '10.0.0.0/8,10.1.0.0/16'", "clusterCIDR: \"10.1.0.0/16\" is a second network"),
        ("detectLocalMode: Guess", "detectLocalMode: \"Guess\" is not ClusterCIDR"),
        ("detectLocalMode: BridgeInterface", "detectLocal.bridgeInterface: "),
    ];
    let dir = Folder::new("bad");
    let fields = fields.map(|(body, expected)| (in_file(body), expected));
    for (text, expected) in whole.map(|(text, expected)| (text.to_owned(), expected)).into_iter().chain(fields) {
        let path = dir.put("config", &text);
        let said = refused(configured(&["run", "--config", path.to_str().unwrap()]));
        let expected = format!("{}: {expected}", path.display());
        assert!(said.starts_with(&expected), "{said}\n{expected}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn defaults_of_policy_are_read_and_written() {
    let dir = Folder::new("defaults");
    let text = "ipvs:
  defaults: {schedulerFlags: 'sh-port', persistenceSeconds: 60, zoneWeights: 'a=3', forwarding: 'gue:6080', maxConnections: 9, drainSeconds: 5}
";
    let path = dir.put("config", &in_file(text));
    let first = configured(&["run", "--config", path.to_str().unwrap(), "--hostname-override=node-a"]).unwrap();
    assert_eq!(first.warnings, Vec::<String>::new());
    let defaults = first.settings.core.ipvs.defaults.clone().unwrap();
    assert_eq!((defaults.persistence_secs, defaults.drain_secs), (Some(60), Some(5)));
    assert_eq!(defaults.max_connections.map(std::num::NonZeroU32::get), Some(9));
    assert_eq!(defaults.forwarding_name().as_deref(), Some("gue:6080"));
    let written = dir.0.join("effective.yaml");
    first.settings.write(&written).unwrap();
    let second = configured(&["run", "--config", written.to_str().unwrap(), "--hostname-override=node-a"]).unwrap();
    assert_eq!(second.settings.object, first.settings.object);
    assert_eq!(second.settings.core, first.settings.core);
    // A field that the format does not have is not a default.
    let path = dir.put("typo", &in_file("ipvs: {defaults: {drain: 5}}\n"));
    let warned = configured(&["run", "--config", path.to_str().unwrap(), "--hostname-override=node-a"]).unwrap();
    assert!(warned.warnings[0].contains("ipvs.defaults.drain: no such field"), "{:?}", warned.warnings);
}

#[test]
fn the_effective_configuration_is_written_and_reads_back_the_same() {
    let dir = Folder::new("written");
    let first = configured(&["run", "--config", KUBEADM, "--hostname-override=node-a"]).unwrap().settings;
    let path = dir.0.join("effective.yaml");
    first.write(&path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    for line in [
        "kind: KubeProxyConfiguration",
        "clusterCIDR: 10.244.0.0/16",
        "  scheduler: rr",
        "  tcpEstablishedTimeout: 24h0m0s",
        "oomScoreAdj: -999",
        "configSyncPeriod: 15m0s",
    ] {
        assert!(text.lines().any(|written| written.replace('"', "") == line), "{line}\n{text}");
    }
    let second = configured(&["run", "--config", path.to_str().unwrap()]).unwrap();
    assert_eq!(second.warnings, Vec::<String>::new());
    assert_eq!(second.settings.object, first.object);
    let problem = first.write(Path::new("/nonexistent/file")).unwrap_err().to_string();
    assert!(problem.starts_with("/nonexistent/file: cannot be written (No such file"), "{problem}");
}

/// Bad input has its own exit code, on any kernel and with any privileges, and one line.
#[test]
fn bad_input_at_the_start_is_one_line_on_any_host() {
    let folder = Folder::new("bad-start");
    let put = |name: &str, text: &str| folder.put(name, text).display().to_string();
    let context = "apiVersion: v1\nkind: Config\ncurrent-context: y\ncontexts: [{name: x, context: {cluster: c}}]\n";
    let (no_yaml, other_context) = (put("no-yaml", "{"), put("context", context));
    let unparsable = put("unparsable", &in_file("mode: [ipvs"));
    let impossible = put("impossible", &in_file("mode: ipvs\nclusterCIDR: 10.0.0.0/99\n"));
    let manifest = put("web.yaml", "kind: Service\n");
    let cases: &[(&[&str], &str)] = &[
        (&["--kubeconfig", "/nonexistent/config"], "/nonexistent/config: the kubeconfig cannot be read (No such file"),
        (&["--kubeconfig", "/dev/zero"], "/dev/zero: not a usable kubeconfig: this is a device"),
        (&["--kubeconfig", &no_yaml], "no-yaml: not a usable kubeconfig: "),
        (&["--kubeconfig", &other_context], "context: current-context: there is no context \"y\"; there is x"),
        (&["--master", "10.0.0.1"], "--master: \"10.0.0.1\" is not a URL such as https://10.0.0.1:6443"),
        (&[], "this is not a pod of a cluster"),
        (&["--no-such-flag"], "unexpected argument '--no-such-flag' found; see proxier-demo run --help"),
        (&["--cluster-cidr", "x", "--manifests", &manifest], "--cluster-cidr: \"x\" is not a network"),
        (&["--config", "/nonexistent/config.conf"], "/nonexistent/config.conf: "),
        (&["--config", &unparsable], "unparsable: "),
        (&["--config", &impossible], "impossible: clusterCIDR: \"10.0.0.0/99\" is not a network"),
        (&["--manifests", "/nonexistent"], "/nonexistent: "),
    ];
    for (arguments, expected) in cases {
        let output = demo(&[&["run", "--hostname-override", "node-a"], *arguments].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        // Without privileges that is said too.
        let said: Vec<&str> = said.lines().filter(|line| !line.contains(" INFO ")).collect();
        assert!(said.last().is_some_and(|line| line.contains(expected)), "{arguments:?}: {said:?}");
    }
}

/// Flags of the configuration; for each, wrong values, which no kernel makes right (none if every value is accepted), and right ones.
const VALUES: &[(&str, &[&str], &[&str])] = &[
    ("bind-address", &["localhost", "10.0.0.1:80"], &["10.0.0.1", "::"]),
    ("bind-address-hard-fail", &["maybe"], &["true"]),
    ("cluster-cidr", &["10.0.0.0/33", "10.0.0.0/8,10.1.0.0/16"], &["10.0.0.0/8,fd00::/48"]),
    ("config-sync-period", &["soon"], &["1h"]),
    ("conntrack-max-per-core", &["-1", "many"], &["0"]),
    ("conntrack-min", &["-1"], &["0"]),
    ("conntrack-tcp-be-liberal", &["2"], &["true"]),
    ("conntrack-tcp-timeout-close-wait", &["10ms", "1000000h"], &["0s"]),
    ("conntrack-tcp-timeout-established", &["10ms", "1000000h"], &["0s"]),
    ("conntrack-udp-timeout", &["10ms"], &["9s"]),
    ("conntrack-udp-timeout-stream", &["10ms"], &["9s"]),
    ("detect-local-mode", &["NodeCidr", "BridgeInterface"], &["NodeCIDR"]),
    ("feature-gates", &["A=maybe", "AllowServiceExternalIps=false"], &["A=true,B=false"]),
    ("healthz-bind-address", &["10256", "localhost:10256", "[::]:0"], &["[::]:10256"]),
    ("iptables-localhost-nodeports", &["maybe"], &["false"]),
    ("iptables-masquerade-bit", &["-1", "32"], &["0", "31"]),
    ("iptables-min-sync-period", &["31s"], &["30s"]),
    ("iptables-sync-period", &["soon"], &["1s"]),
    ("ipvs-binding", &["route"], &["routes"]),
    ("ipvs-exclude-cidrs", &["10.0.0.0/33"], &["10.0.0.0/8"]),
    ("ipvs-mark-range", &["0x16", "0/0"], &["0x16000000/0xff00c000"]),
    ("ipvs-mark-split", &["maybe"], &["true"]),
    ("ipvs-min-sync-period", &["31s"], &["30s"]),
    ("ipvs-rules", &["nft"], &["nftables"]),
    ("ipvs-scheduler", &["round robin", "none", "a-name-of-sixteen"], &["mh"]),
    ("ipvs-service-cidrs", &["0.0.0.0/0"], &["10.96.0.0/12"]),
    ("ipvs-strict-arp", &["maybe"], &["true"]),
    ("ipvs-sync-period", &["soon", "-1s"], &["1s"]),
    ("ipvs-tcp-timeout", &["10ms"], &["15m"]),
    ("ipvs-tcpfin-timeout", &["10ms"], &["2m"]),
    ("ipvs-udp-timeout", &["10ms"], &["5m"]),
    ("kube-api-burst", &["many"], &["5"]),
    ("kube-api-content-type", &[], &["application/json"]),
    ("kube-api-qps", &["many"], &["5"]),
    ("masquerade-all", &["maybe"], &["true"]),
    ("metrics-bind-address", &["10249", "127.0.0.1:0"], &["127.0.0.1:10249"]),
    ("nodeport-addresses", &["10.0.0.0/33", "primary,localhosts"], &["10.0.0.0/8,primary", "primary,localhost,all"]),
    ("oom-score-adj", &["-1001", "1001"], &["-1000"]),
    ("pod-bridge-interface", &[], &["cni0"]),
    ("pod-interface-name-prefix", &[], &["veth"]),
    ("profiling", &["maybe"], &["true"]),
    ("proxy-mode", &["ipvss", "kernelspace"], &["auto"]),
    ("proxy-port-range", &[], &["1-2"]),
    ("show-hidden-metrics-for-version", &[], &["1"]),
    ("status-page", &["yes"], &["localhost"]),
];

/// A wrong value ends the program before it looks at the kernel, in each mode and for each mode that may follow.
#[test]
fn a_value_that_no_kernel_makes_right_is_bad_input_in_each_mode() {
    let help = parse(["proxier-demo", "run", "--help"].map(OsString::from)).unwrap_err().text;
    let (_, shown) = help.split_once("Configuration (").unwrap();
    let (shown, _) = shown.split_once("Logging:").unwrap();
    let names = shown.lines().filter_map(|line| line.trim_start().strip_prefix("--"));
    let names = names.map(|line| line.split(|c: char| !c.is_ascii_lowercase() && c != '-').next().unwrap());
    let names = names.skip_while(|name| *name != VALUES[0].0);
    assert_eq!(names.collect::<Vec<_>>(), VALUES.iter().map(|(name, ..)| *name).collect::<Vec<_>>());
    for mode in ["auto", "ipvs", "nftables", "iptables", "userspace"] {
        let check = |name: &str, value: &str| {
            let flag = format!("--{name}={value}");
            let asked = format!("--proxy-mode={mode}");
            let more = if name == "proxy-mode" { "--v=0" } else { asked.as_str() };
            match parse(["proxier-demo", "run", "--hostname-override=node-a", more, &flag].map(OsString::from)) {
                Ok(invocation) => invocation.configure().map_err(|stopped| refused(Err(stopped))),
                Err(ending) => Err(ending.to_string()),
            }
        };
        for (name, bad, good) in VALUES {
            // No mode follows userspace mode, so the period of another is not read.
            let is_unused = mode == "userspace" && name.starts_with("iptables") && name.ends_with("sync-period");
            for value in bad.iter().filter(|_| !is_unused) {
                let said = check(name, value).expect_err(&format!("--{name}={value} in mode {mode}"));
                let named = if said.contains("--pod-bridge") { "pod-bridge-interface" } else { name };
                assert!(said.contains(&format!("--{named}")), "--{name}={value}: {said}");
            }
            for value in *good {
                check(name, value).unwrap_or_else(|said| panic!("--{name}={value} in mode {mode}: {said}"));
            }
        }
    }
}

/// Quotes of quotes would say nothing.
#[test]
fn a_value_that_is_not_given_is_called_empty() {
    let said = refused(configured(&["run", "--hostname-override=n1", "--detect-local-mode=BridgeInterface"]));
    assert_eq!(said, "--pod-bridge-interface: is empty, not a device's name (1 to 15 bytes, no '+' at the end)");
}

/// Sections of modes that may follow are checked too; those of the rest are not read.
#[test]
fn sections_of_modes_that_may_follow_are_checked() {
    let dir = Folder::new("sections");
    let check = |text: &str, more: &[&str]| {
        let path = dir.put("config", &in_file(text));
        let line = [&["run", "--hostname-override=node-a", "--config", path.to_str().unwrap()], more].concat();
        configured(&line)
    };
    for (wrong, says) in [
        ("nftables: {minSyncPeriod: 2m}", "nftables.minSyncPeriod: longer than nftables.syncPeriod (30s)"),
        ("iptables: {minSyncPeriod: 2m}", "iptables.minSyncPeriod: longer than iptables.syncPeriod (30s)"),
        ("iptables: {masqueradeBit: 32}\nipvs: {masqueradeBit: 3}", "\"32\" is not a bit of the mark (0 to 31)"),
    ] {
        let text = format!("mode: ipvs\n{wrong}");
        let said = refused(check(&text, &[]));
        assert!(said.contains(says), "{said}");
        check(&text, &["--no-fallback"]).unwrap();
        check(&format!("mode: userspace\n{wrong}"), &[]).unwrap();
    }
    // Firewall marks of IPVS mode are no matter of another mode's bit.
    check("mode: ipvs\niptables: {masqueradeBit: 3}\nipvs: {masqueradeBit: 14, markSplit: true}", &[]).unwrap();
}

/// A configuration with these fields, and the warnings about it.
fn parsed(body: &str) -> Result<(KubeProxyConfiguration, Vec<String>), String> {
    KubeProxyConfiguration::parse(&in_file(body), "config.conf")
        .map(|(object, warnings)| (object, warnings.iter().map(ToString::to_string).collect()))
        .map_err(|problem| problem.to_string())
}

fn check(body: &str) -> Result<Settings, Vec<String>> {
    let (object, _) = parsed(body).map_err(|problem| vec![problem])?;
    Settings::check(object, &Origin { origin: "c".into(), ..Origin::default() })
        .map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

#[test]
fn unknown_fields_cause_warnings() {
    let (object, warnings) = parsed(
        "ipvs:\n  sheduler: wrr\n  scheduler: wlc\nnewField: {a: 1}\ndetectLocal: {clusterCIDRs: [10.0.0.0/8]}\n",
    )
    .unwrap();
    assert_eq!(object.ipvs.scheduler, "wlc");
    assert_eq!(
        warnings,
        ["detectLocal.clusterCIDRs", "ipvs.sheduler", "newField"]
            .map(|field| format!("config.conf: {field}: no such field in this format; it is ignored"))
    );
}

/// The program starts with a file for an older version, and reports once what to use instead.
#[test]
fn removed_fields_are_named_with_what_to_use_instead() {
    let text = "ipvs: {markNodePorts: true, connectionSync: {interface: eth0, syncID: 7}, allowedAnnotations: [scheduler, one-packet], \
                defaults: {persistencePrefixIPv4: 24, persistencePrefixIPv6: 64, onePacket: true, minConnections: 3, drainSeconds: 5}}\n\
                userspace: {drainTimeout: 0s, maxConnectionsPerService: 9}\n";
    let (object, warnings) = parsed(text).unwrap();
    for (field, instead) in REMOVED {
        let of_field: Vec<&String> = warnings.iter().filter(|warning| warning.contains(field)).collect();
        assert_eq!(of_field, [&format!("config.conf: {field}: is no longer supported and ignored; {instead}")]);
    }
    let last = "config.conf: ipvs.allowedAnnotations: one-packet is no longer supported and ignored; UDP is served as usual, with answers";
    assert_eq!((warnings.len(), &**warnings.last().unwrap()), (REMOVED.len() + 1, last));
    assert_eq!(object.ipvs.allowed_annotations, Some(vec!["scheduler".to_owned()]));
    assert_eq!(object.ipvs.defaults.unwrap().drain_seconds, Some(5));
}

#[test]
fn of_two_values_the_last_counts() {
    let (object, warnings) = parsed("mode: iptables\nmode: ipvs\n").unwrap();
    assert_eq!(object.mode, "ipvs");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("duplicate") && warnings[0].contains("mode"), "{warnings:?}");
}

#[test]
fn the_configuration_is_found_among_several_documents() {
    let own = in_file("mode: nftables\n");
    let init = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nbootstrapTokens: [&a {}, *a]\n";
    let map = |text: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"config.conf": text}}).to_string();
    for text in [
        format!("{own}---\n"),
        format!("# kubeadm's\n---\n{own}...\n---\n# nothing\n"),
        format!("{init}---\n{own}---\nkind: ClusterConfiguration\n"),
        format!("%YAML 1.2\n---\n{own}---\n{init}"),
        map(&format!("{own}---\n")),
        map(&format!("---\n{init}---\n{own}")),
    ] {
        let (object, warnings) = KubeProxyConfiguration::parse(&text, "c").unwrap();
        assert_eq!((object.mode.as_str(), warnings), ("nftables", vec![]), "{text}");
    }
    for (text, expected) in [
        (format!("{own}---\n{own}"), "c: has more than one KubeProxyConfiguration or ConfigMap"),
        (format!("{own}---\n{}", map(&own)), "c: has more than one KubeProxyConfiguration or ConfigMap"),
        (format!("{init}---\nkind: X\n"), "c: kind: \"InitConfiguration\"; should be KubeProxyConfiguration"),
        (format!("{own}---\na: [\n"), "c: not YAML or JSON: unclosed bracket '[' at line 5"),
        ("---\n---\n".to_owned(), "c: holds no object"),
    ] {
        let problem = KubeProxyConfiguration::parse(&text, "c").unwrap_err().to_string();
        assert!(problem.starts_with(expected), "{text:?}: {problem}");
    }
}

#[test]
fn reading_a_device_ends() {
    let problem = KubeProxyConfiguration::read(Path::new("/dev/zero")).unwrap_err().to_string();
    assert_eq!(problem, "/dev/zero: 16 MiB or more, which no configuration has; see --config");
}

#[test]
fn a_config_map_is_read_as_its_content() {
    let map = |data: Value| {
        let metadata = json!({"name": "kube-proxy", "namespace": "kube-system"});
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
        let yaml = serde_saphyr::to_string(&map).unwrap();
        let read = KubeProxyConfiguration::parse(&yaml, "c").map_err(|problem| problem.to_string());
        assert_eq!(read, KubeProxyConfiguration::parse(&map.to_string(), "c").map_err(|problem| problem.to_string()));
        read.map(|(object, warnings)| (object.mode, warnings.iter().map(ToString::to_string).collect::<Vec<_>>()))
    };
    let of_mode = |mode: &str| in_file(&format!("mode: {mode}\n"));
    for (data, mode) in [
        (json!({"config.conf": of_mode("ipvs"), "kubeconfig.conf": "apiVersion: v1\nkind: Config"}), "ipvs"),
        (json!({"config": of_mode("nftables")}), "nftables"),
        (json!({"config": of_mode("nftables"), "config.conf": of_mode("ipvs")}), "ipvs"),
    ] {
        assert_eq!(map(data), Ok((mode.to_owned(), vec![])));
    }
    let (_, warnings) = map(json!({"config": in_file("mode: ipvs\nmood: good\n")})).unwrap();
    assert_eq!(warnings, ["c, data[config]: mood: no such field in this format; it is ignored"]);
    let place = "a ConfigMap should have a KubeProxyConfiguration at config.conf or config";
    for (data, expected) in [
        (json!({"a": "", "kubeconfig.conf": "x"}), format!("c: data: has a, kubeconfig.conf; {place}")),
        (json!({}), format!("c: data: has nothing; {place}")),
        (Value::Null, format!("c: data: has nothing; {place}")),
        (json!({"config": in_file("mode: [1]")}), "c, data[config]: mode: ".to_owned()),
        (
            json!({"config.conf": "kind: ConfigMap\napiVersion: v1"}),
            "c, data[config.conf]: kind: \"ConfigMap\"; should be KubeProxyConfiguration".to_owned(),
        ),
        (json!({"config.conf": ""}), "c, data[config.conf]: holds no object".to_owned()),
    ] {
        let problem = map(data.clone()).unwrap_err();
        assert!(problem.starts_with(&expected), "{data}: {problem}");
    }
}

#[test]
fn bare_addresses_get_the_default_port() {
    let mut object = KubeProxyConfiguration { bind_address: "::".into(), ..Default::default() };
    object.metrics_bind_address = "fd00::1".into();
    object.set_defaults();
    assert_eq!(object.healthz_bind_address, "[::]:10256");
    assert_eq!(object.metrics_bind_address, "[fd00::1]:10249");
    let once = object.clone();
    object.set_defaults();
    assert_eq!(object, once);
}

#[test]
fn all_errors_are_reported_together() {
    assert_eq!(check("oomScoreAdj: 5000\nmode: x\nipvs: {excludeCIDRs: [a, b]}").unwrap_err().len(), 4);
}

#[test]
fn zero_keeps_the_kernels_timeouts() {
    let settings = check("ipvs: {tcpTimeout: 900.9s}\nconntrack: {maxPerCore: 0}\nmode: ipvs").unwrap();
    let timeouts = settings.timeouts;
    assert_eq!((timeouts.tcp_secs, timeouts.tcp_fin_secs, timeouts.udp_secs), (Some(900), None, None));
    assert_eq!((settings.host.conntrack_max, settings.host.tcp_established_secs), (None, Some(86_400)));
    let settings = check("conntrack: {maxPerCore: 1, min: 2000000000}\nlogging: {verbosity: 11}").unwrap();
    assert_eq!((settings.host.conntrack_max, settings.verbosity), (Some(2_000_000_000), 10));
}

/// The table is the host's, whatever part of its processors a container may use.
#[test]
fn the_connection_table_is_for_all_processors() {
    let entries = || check("conntrack: {maxPerCore: 1000, min: 0}").unwrap().host.conntrack_max;
    let on_one = std::thread::spawn(move || {
        let this = Pid::from_raw(0);
        let allowed = sched_getaffinity(this).unwrap();
        let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap()).unwrap();
        let mut only = CpuSet::new();
        only.set(first).unwrap();
        sched_setaffinity(this, &only).unwrap();
        entries()
    });
    assert_eq!(on_one.join().unwrap(), entries());
}

/// The kernel takes no number of more than 31 bits either.
#[test]
fn many_processors_ask_for_no_endless_connection_table() {
    let entries =
        |min: u32| check(&format!("conntrack: {{maxPerCore: 2147483647, min: {min}}}")).unwrap().host.conntrack_max;
    assert_eq!([0, 131_072, 2_000_000].map(entries), [1 << 20, 1 << 20, 2_000_000].map(Some));
}

#[test]
fn timeouts_of_userspace_mode_are_checked() {
    let of = |body: &str| {
        let settings = check(body).unwrap();
        let userspace = settings.userspace;
        (userspace.udp_idle, settings.end_timeout)
    };
    let (secs, idle) = (Duration::from_secs, Duration::from_millis(250));
    for body in ["", "userspace: {}"] {
        assert_eq!(of(body), (idle, secs(20)), "{body}");
    }
    assert_eq!(of("userspace: {udpIdleTimeout: 5s, endTimeout: 50s}"), (secs(5), secs(50)));
    assert_eq!(of("userspace: {endTimeout: 0s}"), (idle, Duration::ZERO), "nobody waits");
}

/// `on` and `off` are names here, although YAML may read them as booleans.
#[test]
fn the_status_page_is_off_by_default() {
    for (body, expected) in [
        ("", Exposure::Off),
        ("statusPage: off", Exposure::Off),
        ("statusPage: false", Exposure::Off),
        ("statusPage: localhost", Exposure::Localhost),
        ("statusPage: on", Exposure::On),
        ("statusPage: \"on\"", Exposure::On),
    ] {
        assert_eq!(check(body).unwrap().status_page, expected, "{body}");
    }
    let object = KubeProxyConfiguration { status_page: Some("on".into()), ..Default::default() };
    let given = Origin { no_metrics: true, ..Origin::default() };
    let problems = Settings::check(object, &given).unwrap_err();
    assert!(problems[0].to_string().contains("needs the metrics server"), "{problems:?}");
}

#[test]
fn names_of_nodes_are_in_lower_case() {
    assert_eq!(check("hostnameOverride: ' Node-A.example '").unwrap().node_name, "node-a.example");
    assert!(!check("").unwrap().node_name.is_empty());
}

/// Hosts may have names that are invalid for a Node.
#[test]
fn any_node_name_is_accepted_if_none_is_needed() {
    for name in ["My_Host", "a b", &"x".repeat(300)] {
        let object = KubeProxyConfiguration { hostname_override: name.to_owned(), ..Default::default() };
        Settings::check(object.clone(), &Origin::default()).unwrap_err();
        Settings::check(object, &Origin { nameless: true, ..Origin::default() }).unwrap();
    }
}

#[test]
fn auto_is_requested_if_no_mode_is_named() {
    for body in ["", "mode: ''", "mode: auto"] {
        let settings = check(body).unwrap();
        assert_eq!((settings.asked, settings.mode), (RequestedMode::Auto, Kind::Ipvs), "{body}");
    }
    let settings = check("mode: iptables").unwrap();
    assert_eq!((settings.asked, settings.mode), (RequestedMode::Mode(Kind::Iptables), Kind::Iptables));
}

/// Settings in the sections of several modes are read from the section of the mode that serves.
#[test]
fn settings_come_from_the_section_of_the_chosen_mode() {
    let text =
        "hostnameOverride: n\nmode: ipvs\nipvs: {syncPeriod: 9s}\niptables: {masqueradeAll: true, syncPeriod: 1m}";
    let (object, _) = parsed(text).unwrap();
    let given = Origin { mode: Some(Kind::Iptables), ..Origin::default() };
    let settings = Settings::check(object, &given).unwrap();
    assert_eq!((settings.asked, settings.mode), (RequestedMode::Mode(Kind::Ipvs), Kind::Iptables));
    assert_eq!((settings.sync_period, settings.core.masquerade_all), (Duration::from_secs(60), true));
    assert_eq!(settings.object.mode, "ipvs");
}

#[test]
fn iptables_mode_has_its_own_section() {
    let text = "mode: iptables\niptables: {masqueradeAll: true, masqueradeBit: 5, localhostNodePorts: false, \
                minSyncPeriod: 3s, syncPeriod: 1m}\nipvs: {masqueradeAll: false, masqueradeBit: 6, syncPeriod: 9s}";
    let settings = check(text).unwrap();
    assert_eq!(settings.mode, Kind::Iptables);
    assert_eq!(
        (settings.core.masquerade_all, settings.core.masquerade_bit.to_string()),
        (true, "0x00000020".to_owned())
    );
    assert_eq!(settings.object.iptables.localhost_node_ports, Some(false));
    for (text, expected) in [
        ("auto", RandomFully::Auto),
        ("null", RandomFully::Auto),
        ("true", RandomFully::Always),
        ("false", RandomFully::Never),
    ] {
        let settings = check(&format!("mode: iptables\niptables: {{randomFully: {text}}}")).unwrap();
        assert_eq!(settings.random_fully, expected, "{text}");
    }
    let problems = check("iptables: {randomFully: sometimes}").unwrap_err();
    assert_eq!(problems, ["c: iptables.randomFully: \"sometimes\" is neither auto, true nor false"]);
    let periods = (settings.min_sync_period, settings.sync_period);
    assert_eq!(periods, (Duration::from_secs(3), Duration::from_secs(60)));
    let settings = check("mode: iptables").unwrap();
    assert_eq!(settings.object.iptables.localhost_node_ports, Some(true));
    assert!(!settings.object.iptables.reject_with_reset);
    assert!(check("iptables: {rejectWithReset: true}").unwrap().object.iptables.reject_with_reset);
    let periods = (settings.min_sync_period, settings.sync_period);
    assert_eq!(periods, (Duration::from_secs(1), Duration::from_secs(30)));
    let problems = check("mode: iptables\niptables: {minSyncPeriod: 31s}").unwrap_err();
    assert_eq!(problems, ["c: iptables.minSyncPeriod: longer than iptables.syncPeriod (30s)"]);
}

/// Settings of iptables mode reach its rules.
#[test]
fn rules_are_as_configured() {
    let dir = Folder::new("rules");
    let web = service("demo", "web", "10.96.0.10", "{addresses: [10.244.0.5]}");
    dir.put("web.yaml", &(web + &service("demo", "empty", "10.96.0.11", "")));
    for (body, reset, ports) in [
        ("", false, true),
        ("rejectWithReset: true, randomFully: false", true, false),
        ("randomFully: true", false, true),
    ] {
        let config = dir.put("config", &in_file(&format!("mode: iptables\niptables: {{{body}}}\n")));
        let sources = [config, dir.path("web.yaml")].map(|path| path.display().to_string());
        let rendered = ok(&demo(&["render", "--config", &sources[0], "--manifests", &sources[1]]));
        let has = |words| rendered.contains(words);
        assert_eq!((has("--reject-with tcp-reset"), has("--random-fully")), (reset, ports), "{body}: {rendered}");
    }
}

#[test]
fn reads_and_prints_as_go_does() {
    // The middle column is the output of Go's time.Duration for the left one.
    for (text, printed, nanos) in [
        ("0", "0s", 0),
        ("0s", "0s", 0),
        ("30s", "30s", 30_000_000_000),
        ("1h5m", "1h5m0s", 3_900_000_000_000),
        ("15m0s", "15m0s", 900_000_000_000),
        ("24h", "24h0m0s", 86_400_000_000_000),
        ("1.5s", "1.5s", 1_500_000_000),
        (".5s", "500ms", 500_000_000),
        ("1.s", "1s", 1_000_000_000),
        ("250ms", "250ms", 250_000_000),
        ("1h0.5s", "1h0m0.5s", 3_600_500_000_000),
        ("1500us", "1.5ms", 1_500_000),
        ("7ns", "7ns", 7),
        ("1µs2ns", "1.002µs", 1_002),
    ] {
        let read: GoDuration = text.parse().unwrap();
        assert_eq!(read.0, Duration::from_nanos(nanos), "{text}");
        assert_eq!(read.to_string(), printed);
        assert_eq!(printed.parse(), Ok(read));
    }
}

#[test]
fn durations_that_go_refuses_are_refused() {
    // One with a blank, and an empty one.
    for text in "30 s .s 1..5s 1.2.3s -1s 1d 1S 0x1s 1e3s ∞ 9999999999h 99999999999999999999999s 30s, + --0"
        .split(' ')
        .chain(["", " ", "30 s"])
    {
        assert!(text.parse::<GoDuration>().is_err(), "{text:?}");
    }
}
