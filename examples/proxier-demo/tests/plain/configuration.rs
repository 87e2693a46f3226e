//! The configuration of `proxier-demo`, from a command line to checked values.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use proxier_demo::settings::cli::{Configured, Connection, Ending, Source, parse};

use crate::program::{Folder, demo, text};

/// Configuration in the ConfigMap `kube-proxy` that kubeadm makes for a new cluster.
const KUBEADM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/kubeadm-config.conf");

fn configured(args: &[&str]) -> Result<Configured, Ending> {
    let args = std::iter::once(&"proxier-demo").chain(args).map(OsString::from);
    parse(args).and_then(|invocation| invocation.configure())
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
    let line = [
        "run",
        "--config",
        KUBEADM,
        "--ipvs-scheduler=wlc",
        "--cluster-cidr=10.0.0.0/8",
        "-v=5",
        "--hostname-override=node-a",
        "--kubeconfig=mine",
    ];
    let configured = configured(&line).unwrap();
    assert_eq!(configured.settings.object.ipvs.scheduler, "rr");
    assert_eq!(configured.settings.object.cluster_cidr, "10.244.0.0/16");
    assert_eq!(configured.settings.verbosity, 5);
    assert_eq!(configured.source, Source::Cluster(Connection { kubeconfig: Some("mine".into()), master: None }));
    assert_eq!(configured.warnings, ["accepted, without effect next to --config: --cluster-cidr, --ipvs-scheduler"]);
}

#[test]
fn a_bad_file_is_bad_input_with_file_and_field() {
    let dir = Folder::new("bad");
    for (name, text, expected) in [
        ("kind", "kind: Secret\napiVersion: v1\n", "kind: \"Secret\"; should be KubeProxyConfiguration"),
        ("version", "kind: KubeProxyConfiguration\napiVersion: v1\n", "apiVersion: \"v1\"; should be kubeproxy"),
        ("map", "kind: ConfigMap\napiVersion: v1\ndata: {other: x}\n", "data: has other; a ConfigMap should have a"),
        ("yaml", "a: b: c\n", "not YAML or JSON: "),
        ("number", "oomScoreAdj: much\n", "oomScoreAdj: "),
        ("section", "ipvs: [1]\n", "ipvs"),
        ("field", "ipvs: {syncPeriod: soon}\n", "ipvs.syncPeriod: \"soon\" is not a duration"),
        (
            "default",
            "ipvs: {defaults: {forwarding: nat}}\n",
            "ipvs.defaults.forwarding: \"nat\" is not masquerade, direct-route",
        ),
        (
            "zones",
            "ipvs: {defaults: {zoneWeights: 'a=1, b'}}\n",
            "ipvs.defaults.zoneWeights: \"b\" is not a zone (or *)",
        ),
        (
            "limit",
            "ipvs: {defaults: {maxConnections: 0}}\n",
            "ipvs.defaults.maxConnections: \"0\" is not a number from 1",
        ),
        (
            "gue",
            "ipvs: {defaults: {forwarding: gue}}\n",
            "ipvs.defaults.forwarding: \"gue\" is not complete: gue needs",
        ),
        ("cidr", "ipvs: {excludeCIDRs: [10.0.0.0/40]}\n", "ipvs.excludeCIDRs[0]: \"10.0.0.0/40\" is not a network"),
    ] {
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        let whole = matches!(name, "kind" | "version" | "map" | "yaml");
        let path = dir.put(name, &if whole { text.to_owned() } else { format!("{head}{text}") });
        let ending = configured(&["run", "--config", path.to_str().unwrap()]).unwrap_err();
        assert_eq!(ending.code, 2);
        let expected = format!("proxier-demo: {}: {expected}", path.display());
        assert!(ending.text.starts_with(&expected), "{}\n{expected}", ending.text);
        assert_eq!(ending.text.lines().count(), 1);
    }
}

#[test]
fn defaults_of_policy_are_read_and_written() {
    let dir = Folder::new("defaults");
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
ipvs:
  defaults: {schedulerFlags: 'sh-port', persistenceSeconds: 60, zoneWeights: 'a=3', forwarding: 'gue:6080', maxConnections: 9, drainSeconds: 5}
";
    let path = dir.put("config", text);
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
    let path = dir.put(
        "typo",
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nipvs: {defaults: {drain: 5}}\n",
    );
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
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    let context = "apiVersion: v1\nkind: Config\ncurrent-context: y\ncontexts: [{name: x, context: {cluster: c}}]\n";
    let (no_yaml, other_context) = (put("no-yaml", "{"), put("context", context));
    let unparsable = put("unparsable", &format!("{head}mode: [ipvs"));
    let impossible = put("impossible", &format!("{head}mode: ipvs\nclusterCIDR: 10.0.0.0/99\n"));
    let manifest = put("web.yaml", "kind: Service\n");
    let cases: &[(&[&str], &str)] = &[
        (&["--kubeconfig", "/nonexistent/config"], "/nonexistent/config: the kubeconfig cannot be read (No such file"),
        (&["--kubeconfig", "/dev/zero"], "/dev/zero: not a usable kubeconfig: this is a device"),
        (&["--kubeconfig", &no_yaml], "no-yaml: not a usable kubeconfig: "),
        (&["--kubeconfig", &other_context], "context: current-context: there is no context \"y\"; there is x"),
        (&["--master", "10.0.0.1"], "--master: \"10.0.0.1\" is not a URL such as https://10.0.0.1:6443"),
        (&[], "this is not a pod of a cluster"),
        (&["--no-such-flag"], "unexpected argument '--no-such-flag' found; see proxier-demo --help"),
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
    ("healthz-bind-address", &["10256", "localhost:10256"], &["[::]:10256"]),
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
    ("metrics-bind-address", &["10249"], &["127.0.0.1:0"]),
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
    let help = configured(&["run", "--help"]).unwrap_err().text;
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
            configured(&["run", "--hostname-override=node-a", more, &flag])
        };
        for (name, bad, good) in VALUES {
            // No mode follows userspace mode, so the period of another is not read.
            let is_unused = mode == "userspace" && name.starts_with("iptables") && name.ends_with("sync-period");
            for value in bad.iter().filter(|_| !is_unused) {
                let Err(ending) = check(name, value) else { panic!("--{name}={value} in mode {mode}") };
                assert_eq!(ending.code, 2, "--{name}={value}: {ending}");
                let named = if ending.text.contains("--pod-bridge") { "pod-bridge-interface" } else { name };
                assert!(ending.text.contains(&format!("--{named}")), "--{name}={value}: {ending}");
            }
            for value in *good {
                check(name, value).unwrap_or_else(|ending| panic!("--{name}={value} in mode {mode}: {ending}"));
            }
        }
    }
}

/// Sections of modes that may follow are checked too; those of the rest are not read.
#[test]
fn sections_of_modes_that_may_follow_are_checked() {
    let dir = Folder::new("sections");
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    let check = |text: &str, more: &[&str]| {
        let path = dir.put("config", &format!("{head}{text}"));
        let line = [&["run", "--hostname-override=node-a", "--config", path.to_str().unwrap()], more].concat();
        configured(&line).map_err(|ending| (ending.code, ending.text))
    };
    for (wrong, says) in [
        ("nftables: {minSyncPeriod: 2m}", "nftables.minSyncPeriod: longer than nftables.syncPeriod (30s)"),
        ("iptables: {minSyncPeriod: 2m}", "iptables.minSyncPeriod: longer than iptables.syncPeriod (30s)"),
        ("iptables: {masqueradeBit: 32}\nipvs: {masqueradeBit: 3}", "\"32\" is not a bit of the mark (0 to 31)"),
    ] {
        let text = format!("mode: ipvs\n{wrong}");
        let (code, said) = check(&text, &[]).unwrap_err();
        assert_eq!(code, 2);
        assert!(said.contains(says), "{said}");
        check(&text, &["--no-fallback"]).unwrap();
        check(&format!("mode: userspace\n{wrong}"), &[]).unwrap();
    }
    // Firewall marks of IPVS mode are no matter of another mode's bit.
    check("mode: ipvs\niptables: {masqueradeBit: 3}\nipvs: {masqueradeBit: 14, markSplit: true}", &[]).unwrap();
}
