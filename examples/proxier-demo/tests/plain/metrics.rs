//! Every metric of kube-proxy and client-go exists, with its kind and labels, and every metric is documented.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proxier_core::config::Families;
use proxier_core::modes::Kind;
use proxier_core::modes::localhost_relay::LocalhostNodePorts;
use proxier_core::modes::select::RequestedMode;
use proxier_core::net::{ByFamily, Family, FrontendKey, Protocol};
use proxier_core::plan::report::RuleCount;
use proxier_demo::histogram::Histogram;
use proxier_demo::sources::cluster::requests::{Outcomes, Requests};
use proxier_demo::status::metrics::Metrics;

/// pkg/proxy/metrics/metrics.go of Kubernetes 1.36: the modes of kube-proxy that have it, kind, name, labels.
const KUBE_PROXY: &str = "
    all      histogram  sync_proxy_rules_duration_seconds                           ip_family
    all      gauge      sync_proxy_rules_last_queued_timestamp_seconds              ip_family
    all      gauge      sync_proxy_rules_last_timestamp_seconds                     ip_family
    all      histogram  network_programming_duration_seconds                        ip_family
    all      gauge      sync_proxy_rules_endpoint_changes_pending                   -
    all      counter    sync_proxy_rules_endpoint_changes_total                     -
    all      gauge      sync_proxy_rules_service_changes_pending                    -
    all      counter    sync_proxy_rules_service_changes_total                      -
    all      counter    proxy_healthz_total                                         code
    all      counter    proxy_livez_total                                           code
    all      histogram  conntrack_reconciler_sync_duration_seconds                  ip_family
    all      counter    conntrack_reconciler_deleted_entries_total                  ip_family
    iptables,nftables histogram sync_full_proxy_rules_duration_seconds              ip_family
    iptables,nftables histogram sync_partial_proxy_rules_duration_seconds           ip_family
    iptables,nftables gauge sync_proxy_rules_no_local_endpoints_total               ip_family,traffic_policy
    iptables,ipvs counter sync_proxy_rules_iptables_restore_failures_total          ip_family
    iptables counter    sync_proxy_rules_iptables_partial_restore_failures_total    ip_family
    iptables counter    iptables_ct_state_invalid_dropped_packets_total             -
    iptables counter    iptables_localhost_nodeports_accepted_packets_total         -
    iptables gauge      sync_proxy_rules_iptables_total                             ip_family,table
    iptables gauge      sync_proxy_rules_iptables_last                              ip_family,table
    nftables counter    sync_proxy_rules_nftables_sync_failures_total               ip_family
    nftables counter    sync_proxy_rules_nftables_cleanup_failures_total            ip_family
";

/// metrics/prometheus/restclient/metrics.go of component-base 0.36, the registered part: kind, name without the
/// prefix, labels; `none` for those that are missing here.
const CLIENT_GO: &str = "
    histogram  request_duration_seconds                host,verb
    histogram  request_size_bytes                      host,verb
    histogram  response_size_bytes                     host,verb
    counter    requests_total                          code,host,method
    counter    request_retries_total                   code,host,verb
    counter    exec_plugin_call_total                  call_status,code
    none       rate_limiter_duration_seconds           -
    none       exec_plugin_ttl_seconds                 -
    none       exec_plugin_certificate_rotation_age    -
    none       transport_cache_entries                 -
    none       transport_create_calls_total            -
    none       transport_ca_reload_total               -
    none       transport_cert_rotation_gc_calls_total  -
    none       transport_cache_gc_calls_total          -
";

fn requests() -> Requests {
    let histogram = || {
        let mut histogram = Histogram::new(&[1.0]);
        histogram.observe(Duration::from_secs(1));
        histogram
    };
    let codes = || BTreeMap::from([("503".to_owned(), 2)]);
    let (took, sent, received) = (histogram(), histogram(), histogram());
    let outcomes = Outcomes { by_code: codes(), took, sent, received, retries: codes() };
    let outcomes = [(("10.0.0.1:6443".to_owned(), "POST".to_owned()), outcomes)].into();
    Requests { outcomes, programs: [((1, "plugin_not_found_error"), 3)].into() }
}

#[test]
fn every_metric_of_client_go_exists_or_is_listed_as_left_out() {
    let page = Metrics { requests: requests(), ..Metrics::default() }.render();
    let mut names = BTreeSet::new();
    for line in CLIENT_GO.lines().filter(|line| !line.trim().is_empty()) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [kind, name, expected] = fields[..] else { panic!("{line}") };
        let name = format!("rest_client_{name}");
        if kind == "none" {
            assert!(!page.contains(&name), "{name}");
            continue;
        }
        assert!(page.contains(&format!("# TYPE {name} {kind}\n")), "{name}\n{page}");
        let samples: Vec<&str> = page.lines().filter(|line| line.starts_with(&name)).collect();
        assert!(!samples.is_empty(), "{name}");
        for sample in samples {
            assert_eq!(labels(sample), expected.split(',').collect(), "{sample}");
        }
        names.insert(name);
    }
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE rest_client_")?.split(' ').next());
    assert_eq!(families.map(|name| format!("rest_client_{name}")).collect::<BTreeSet<_>>(), names);
    assert!(!Metrics::default().render().contains("rest_client_"), "a family without samples is no family");
}

/// A page of a mode with every family that it can have.
fn full(mode: Kind) -> String {
    let mut localhost = LocalhostNodePorts::default();
    localhost.rejected = [((Family::V4, Protocol::Udp), 7)].into();
    let key = FrontendKey::new(Protocol::Tcp, [10, 96, 0, 10].into(), 80);
    let counters = ["ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"];
    let iptables_packets = counters.map(|counter| (counter.to_owned(), 7)).into();
    let metrics = Metrics {
        mode: Some((RequestedMode::Auto, mode)),
        iptables_rules: vec![RuleCount { family: Family::V4, table: "nat", total: 3, written: 1 }],
        iptables_packets,
        localhost: Some(localhost),
        begun: vec![(key, String::new(), 1)],
        fast_path: Some(1),
        requests: requests(),
        ..Metrics::default()
    };
    metrics.render()
}

#[test]
fn the_documentation_has_every_metric() {
    /// Kind, labels, help, modes.
    type Family = (String, BTreeSet<String>, String, Vec<&'static str>);
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    for mode in Kind::ALL {
        let page = full(mode);
        let mut help = "";
        let mut current = "";
        for line in page.lines() {
            if let Some(text) = line.strip_prefix("# HELP ") {
                help = text.split_once(' ').unwrap().1;
            } else if let Some(text) = line.strip_prefix("# TYPE ") {
                let (name, kind) = text.split_once(' ').unwrap();
                let family = (kind.to_owned(), BTreeSet::new(), help.to_owned(), Vec::new());
                families.entry(name.to_owned()).or_insert(family).3.push(mode.name());
                current = name;
            } else {
                let (name, value) = line.rsplit_once(' ').unwrap();
                assert!(name.starts_with(current) && value.parse::<f64>().is_ok(), "{line} of {current}");
                let found = labels(line).into_iter().map(str::to_owned);
                families.get_mut(current).unwrap().1.extend(found);
            }
        }
    }
    let is_kube_proxys = |name: &str| {
        let listed = |list: &str, prefix| {
            name.strip_prefix(prefix).is_some_and(|name| list.split_whitespace().any(|word| word == name))
        };
        let localhost = name.starts_with("kubeproxy_nftables_localhost_");
        let of_process = name.starts_with("process_") || name.starts_with("kubernetes_");
        listed(KUBE_PROXY, "kubeproxy_") || listed(CLIENT_GO, "rest_client_") || localhost || of_process
    };
    let mut text = "# Metrics\n\nOn `/metrics`. Those with a star are not in kube-proxy. `ip_family` is `IPv4` or `IPv6`; one pass \
        serves both, so each family has every pass.\n\n| metric | kind | labels | modes | what |\n| --- | --- | --- | --- | --- |\n"
        .to_owned();
    for (name, (kind, labels, help, modes)) in families {
        let star = if is_kube_proxys(&name) { "" } else { " *" };
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        let modes = if modes.len() == Kind::ALL.len() { "all".to_owned() } else { modes.join(", ") };
        text += &format!("| `{name}`{star} | {kind} | {} | {modes} | {help} |\n", labels.join(", "));
    }
    testkit::documents::is_current("docs/reference/metrics.md", &text);
}

/// Names of the labels of a sample, without `le` of a bucket.
fn labels(sample: &str) -> BTreeSet<&str> {
    let Some((_, rest)) = sample.split_once('{') else { return BTreeSet::new() };
    rest.split(',').filter_map(|label| Some(label.split_once('=')?.0)).filter(|name| *name != "le").collect()
}

#[test]
fn every_metric_of_kube_proxy_exists_with_its_kind_and_labels() {
    for mode in Kind::ALL.into_iter().filter(|mode| !mode.facts().is_process) {
        let page = full(mode);
        for line in KUBE_PROXY.lines().filter(|line| !line.trim().is_empty()) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [modes, kind, name, expected] = fields[..] else { panic!("{line}") };
            if modes != "all" && !modes.split(',').any(|of| of == mode.name()) {
                continue;
            }
            let gauge_total = kind == "gauge" && name.ends_with("_total");
            let kind = if gauge_total { "untyped" } else { kind };
            assert!(page.contains(&format!("# TYPE kubeproxy_{name} {kind}\n")), "{mode}: {name}\n{page}");
            let samples = page.lines().filter(|line| !line.starts_with('#'));
            let of_it = |line: &&str| {
                let rest = line.strip_prefix("kubeproxy_").and_then(|line| line.strip_prefix(name));
                rest.is_some_and(|rest| rest.starts_with(['{', ' ', '_']))
            };
            let samples: Vec<&str> = samples.filter(of_it).collect();
            assert!(!samples.is_empty(), "{mode}: {name}");
            let expected = expected.split(',').filter(|label| *label != "-").collect();
            for sample in samples {
                assert_eq!(labels(sample), expected, "{mode}: {sample}");
            }
        }
    }
}

#[test]
fn each_served_family_has_its_row() {
    let mut metrics = Metrics { families: Families::V6, ..Metrics::default() };
    metrics.took.sync.observe(Duration::from_millis(4));
    metrics.took.sync.observe(Duration::from_secs(60));
    metrics.took.network_programming.v6.observe(Duration::from_secs(2));
    metrics.no_local_endpoints = [ByFamily { v4: 0, v6: 1 }, ByFamily { v4: 0, v6: 2 }];
    metrics.healthz = [7, 1];
    (metrics.split, metrics.unmarked) = (5, 2);
    let text = metrics.render();
    for line in [
        "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv6\",le=\"0.002\"} 0",
        "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv6\",le=\"0.004\"} 1",
        "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv6\",le=\"16.384\"} 1",
        "kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family=\"IPv6\",le=\"+Inf\"} 2",
        "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv6\"} 2",
        "kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family=\"IPv6\"} 60.004",
        "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv6\",le=\"0.25\"} 0",
        "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv6\",le=\"59\"} 1",
        "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv6\",le=\"115\"} 1",
        "kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv6\",le=\"300\"} 1",
        "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"external\",ip_family=\"IPv6\"} 2",
        "kubeproxy_proxy_healthz_total{code=\"503\"} 1",
        "kubeproxy_split_frontends 5",
        "kubeproxy_unmarked_services 2",
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv6\"} 0",
    ] {
        assert!(text.lines().any(|printed| printed == line), "{line}\n{text}");
    }
    assert!(!text.contains("IPv4"), "{text}");
}

#[test]
fn node_ports_on_localhost_have_kube_proxys_metrics() {
    let mut localhost = LocalhostNodePorts::default();
    localhost.listeners = [(Family::V4, 3), (Family::V6, 2)].into();
    localhost.creation_failures = [(Family::V6, 1)].into();
    localhost.rejected = [((Family::V4, Protocol::Udp), 7)].into();
    let mode = Some((RequestedMode::Auto, Kind::Nftables));
    let mut metrics = Metrics { mode, localhost: Some(localhost), ..Metrics::default() };
    let prefix = "kubeproxy_nftables_localhost_nodeport_";
    let shown = |metrics: &Metrics| -> Vec<String> {
        let text = metrics.render();
        text.lines().filter_map(|line| line.strip_prefix(prefix)).map(str::to_owned).collect()
    };
    assert_eq!(
        shown(&metrics),
        [
            "listeners{ip_family=\"IPv4\"} 3",
            "listeners{ip_family=\"IPv6\"} 2",
            "listener_creation_failures_total{ip_family=\"IPv4\"} 0",
            "listener_creation_failures_total{ip_family=\"IPv6\"} 1",
            "rejected_packets_total{ip_family=\"IPv4\",protocol=\"UDP\"} 7",
        ]
    );
    // Without localhost in the configuration there are none.
    metrics.localhost = None;
    assert_eq!(shown(&metrics), [""; 0]);
}
