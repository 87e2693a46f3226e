//! Metrics under kube-proxy's names, in Prometheus' text format 0.0.4.
//!
//! Written by hand: the names are a contract, and `prometheus-client` prints OpenMetrics, in which
//! `kubeproxy_proxy_healthz_total` would be of a family `kubeproxy_proxy_healthz`, and a gauge could not end in `_total`.
//!
//! kube-proxy has one gauge whose name ends in `_total`. It has no type here (`untyped`): that does not affect queries, and
//! `promtool check metrics` accepts it. So has `sync_proxy_rules_iptables_total`, which iptables mode has, and not IPVS mode, as with
//! kube-proxy: its number of rules is the same for any number of Services. As kube-proxy has from 1.33 on, numbers of rules are told
//! for each family; `sum by (table)` adds them up.

use std::fmt::Write;
use std::time::Duration;

use proxier_core::modes::Kind;
use proxier_core::modes::select::Asked;
use proxier_core::ports::Flows;
use proxier_core::reconciler::report::RuleCount;

/// Observations by size.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper bounds in seconds, ascending.
    bounds: &'static [f64],
    /// How many observations are in each bucket, the last one above all bounds.
    counts: Vec<u64>,
    sum: f64,
}

/// 1 ms, doubled up to 16.384 s.
const SYNC_SECONDS: [f64; 15] =
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];

/// 0.25, 0.5, each second up to a minute, every five seconds up to two, every thirty up to five.
static PROGRAMMING_SECONDS: [f64; 80] = {
    let mut bounds = [0.25; 80];
    bounds[1] = 0.5;
    let mut index = 2;
    let mut second: u32 = 1;
    while second <= 300 {
        bounds[index] = second as f64;
        index += 1;
        second += if second < 60 {
            1
        } else if second < 120 {
            5
        } else {
            30
        };
    }
    bounds
};

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Adds an observation.
    pub fn observe(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = self.bounds.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += 1;
        }
        self.sum += seconds;
    }

    /// How many observations there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// All values. Whoever knows one writes it; [`render`](Metrics::render) prints them.
///
/// Times are seconds since 1970.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Metrics {
    /// Passes.
    pub sync_duration: Histogram,
    /// Passes that compared everything.
    pub sync_full_duration: Histogram,
    /// Passes that compared only what had changed.
    pub sync_partial_duration: Histogram,
    /// Time from the cause of a change of endpoints, as the EndpointSlice has it, until the kernel has it.
    pub network_programming: Histogram,
    /// When the last pass succeeded.
    pub sync_last_timestamp: f64,
    /// When a pass was last requested.
    pub sync_last_queued_timestamp: f64,
    /// Changes of endpoints that no pass has handled yet.
    pub endpoint_changes_pending: u64,
    /// Changes of endpoints.
    pub endpoint_changes: u64,
    /// Changes of Services that no pass has handled yet.
    pub service_changes_pending: u64,
    /// Changes of Services.
    pub service_changes: u64,
    /// Failed runs of iptables-restore.
    pub iptables_restore_failures: u64,
    /// Those that wrote only what had changed.
    pub iptables_partial_restore_failures: u64,
    /// Rules of iptables mode by table and family.
    pub iptables_rules: Vec<RuleCount>,
    /// Transactions of nf_tables that failed.
    pub nftables_sync_failures: u64,
    /// Services without the local endpoints that a policy requires: internal, external.
    pub no_local_endpoints: [u64; 2],
    /// Answers of /healthz: 200, 503.
    pub healthz: [u64; 2],
    /// Answers of /livez: 200, 503.
    pub livez: [u64; 2],
    /// Entries of connection tracking that were deleted.
    pub conntrack_deleted: Flows,
    /// Passes that failed. Not in kube-proxy.
    pub sync_failures: u64,
    /// Fields and objects of the input that are left out now. Not in kube-proxy.
    pub rejected: u64,
    /// Objects and files that could not be read so far. Not in kube-proxy.
    pub unreadable: u64,
    /// Requests to the API server that failed. kube-proxy counts them under other names.
    pub api_failures: u64,
    /// Our virtual servers in the kernel. Not in kube-proxy.
    pub virtual_servers: u64,
    /// Our real servers in the kernel. Not in kube-proxy.
    pub real_servers: u64,
    /// Others' virtual servers in the kernel. Not in kube-proxy.
    pub foreign_virtual_servers: u64,
    /// Virtual servers that the safeguard keeps from going, or from losing their last endpoint. Not in kube-proxy.
    pub held_back: u64,
    /// Operations that the kernel refused because of their object, as of the last full pass.
    pub refused_objects: u64,
    /// Real servers that drain. Not in kube-proxy.
    pub draining: u64,
    /// The mode that was asked for, and the one that serves. Not in kube-proxy.
    pub mode: Option<(Asked, Kind)>,
    /// Wanted things that are not available here: settings that may not be written, parts that the kernel lacks. Serving
    /// works without them. Not in kube-proxy.
    pub unmet: u64,
    /// Virtual servers by firewall marks for clients outside. Not in kube-proxy.
    pub split: u64,
    /// Virtual servers by firewall marks for node ports. Not in kube-proxy.
    pub shared: u64,
    /// Services that are served without the marks that the configuration asks for. Not in kube-proxy.
    pub unmarked: u64,
    /// What other proxies and modes left and is still there, as of the last cleanup. Not in kube-proxy.
    pub leftovers: u64,
    /// Addresses and ports of Services that are other Nodes' and not served here. Not in kube-proxy.
    pub of_other_nodes: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            sync_duration: Histogram::new(&SYNC_SECONDS),
            sync_full_duration: Histogram::new(&SYNC_SECONDS),
            sync_partial_duration: Histogram::new(&SYNC_SECONDS),
            network_programming: Histogram::new(&PROGRAMMING_SECONDS),
            sync_last_timestamp: 0.0,
            sync_last_queued_timestamp: 0.0,
            endpoint_changes_pending: 0,
            endpoint_changes: 0,
            service_changes_pending: 0,
            service_changes: 0,
            iptables_restore_failures: 0,
            iptables_partial_restore_failures: 0,
            iptables_rules: Vec::new(),
            nftables_sync_failures: 0,
            no_local_endpoints: [0; 2],
            healthz: [0; 2],
            livez: [0; 2],
            conntrack_deleted: Flows::default(),
            sync_failures: 0,
            rejected: 0,
            unreadable: 0,
            api_failures: 0,
            virtual_servers: 0,
            real_servers: 0,
            foreign_virtual_servers: 0,
            held_back: 0,
            refused_objects: 0,
            draining: 0,
            mode: None,
            unmet: 0,
            split: 0,
            shared: 0,
            unmarked: 0,
            leftovers: 0,
            of_other_nodes: 0,
        }
    }
}

impl Metrics {
    /// All metrics as text.
    pub fn render(&self) -> String {
        let mut page = Page(String::with_capacity(16 * 1024));
        let p = &mut page;
        p.histogram("sync_proxy_rules_duration_seconds", "Passes over the rules", &self.sync_duration);
        p.histogram(
            "sync_full_proxy_rules_duration_seconds",
            "Passes that compared everything",
            &self.sync_full_duration,
        );
        p.histogram(
            "sync_partial_proxy_rules_duration_seconds",
            "Passes that compared what had changed",
            &self.sync_partial_duration,
        );
        p.histogram(
            "network_programming_duration_seconds",
            "From the cause of a change of endpoints to the kernel",
            &self.network_programming,
        );
        p.gauge("sync_proxy_rules_last_timestamp_seconds", "When the last pass succeeded", self.sync_last_timestamp);
        let queued = self.sync_last_queued_timestamp;
        p.gauge("sync_proxy_rules_last_queued_timestamp_seconds", "When a pass was last asked for", queued);
        let pending = "Changes that no pass has taken up yet";
        p.gauge("sync_proxy_rules_endpoint_changes_pending", pending, self.endpoint_changes_pending);
        p.counter("sync_proxy_rules_endpoint_changes_total", "Changes of endpoints", self.endpoint_changes);
        p.gauge("sync_proxy_rules_service_changes_pending", pending, self.service_changes_pending);
        p.counter("sync_proxy_rules_service_changes_total", "Changes of Services", self.service_changes);
        let failures = self.iptables_restore_failures;
        p.counter("sync_proxy_rules_iptables_restore_failures_total", "Failed runs of iptables-restore", failures);
        p.counter(
            "sync_proxy_rules_iptables_partial_restore_failures_total",
            "Failed runs of iptables-restore that wrote only what had changed",
            self.iptables_partial_restore_failures,
        );
        self.of_mode(p);
        let [internal, external] = self.no_local_endpoints;
        p.family(
            "sync_proxy_rules_no_local_endpoints_total",
            "untyped",
            "Services without the local endpoints that their policy asks for",
            &[
                ("traffic_policy=\"internal\"".to_owned(), internal),
                ("traffic_policy=\"external\"".to_owned(), external),
            ],
        );
        let codes =
            |[ok, unavailable]: [u64; 2]| [("code=\"200\"".to_owned(), ok), ("code=\"503\"".to_owned(), unavailable)];
        p.family("proxy_healthz_total", "counter", "Answers of /healthz", &codes(self.healthz));
        p.family("proxy_livez_total", "counter", "Answers of /livez", &codes(self.livez));
        let Flows { v4, v6 } = self.conntrack_deleted;
        let [v4, v6] = [v4, v6].map(|number| u64::try_from(number).unwrap_or(u64::MAX));
        p.family(
            "conntrack_reconciler_deleted_entries_total",
            "counter",
            "Entries of connection tracking that were deleted",
            &[("ip_family=\"IPv4\"".to_owned(), v4), ("ip_family=\"IPv6\"".to_owned(), v6)],
        );
        p.counter("sync_failures_total", "Passes that failed, wholly or in part", self.sync_failures);
        p.gauge("rejected_fields", "Fields and objects of the input that are left out", self.rejected);
        p.counter("unreadable_objects_total", "Objects and files that could not be read", self.unreadable);
        p.counter("api_request_failures_total", "Requests to the API server that failed", self.api_failures);
        p.gauge("virtual_servers", "Virtual servers of ours in the kernel", self.virtual_servers);
        let held_back =
            "Virtual servers that are kept although they, or their last endpoints, should go: too many at once";
        p.gauge("virtual_servers_held_back", held_back, self.held_back);
        let refused = "Virtual servers, real servers, addresses and entries that the kernel refuses";
        p.gauge("refused_objects", refused, self.refused_objects);
        let foreign = "Virtual servers of others in the kernel";
        p.gauge("virtual_servers_foreign", foreign, self.foreign_virtual_servers);
        p.gauge("real_servers", "Real servers of ours in the kernel", self.real_servers);
        p.gauge("real_servers_draining", "Real servers that are draining", self.draining);
        p.gauge(
            "split_frontends",
            "Virtual servers by firewall marks for clients outside (ipvs.markSplit)",
            self.split,
        );
        p.gauge(
            "shared_node_ports",
            "Virtual servers by firewall marks for node ports (ipvs.markNodePorts)",
            self.shared,
        );
        p.gauge(
            "unmarked_services",
            "Services that are served without the firewall marks that the configuration asks for",
            self.unmarked,
        );
        let of_others = "Addresses and ports of Services that are other Nodes' and not served here";
        p.gauge("other_nodes_frontends", of_others, self.of_other_nodes);
        p.gauge(
            "unmet_wishes",
            "Settings and parts of the kernel that are not available here; serving works without them",
            self.unmet,
        );
        let leftovers = "Tables and rules of other proxies and modes that could not be removed, or not be recognised";
        p.gauge("leftovers", leftovers, self.leftovers);
        if let Some((asked, mode)) = self.mode {
            let labels = format!("asked=\"{asked}\",mode=\"{mode}\"");
            p.family("mode_info", "gauge", "The mode that was asked for, and the one that serves", &[(labels, 1)]);
        }
        process(p);
        page.0
    }
}

impl Metrics {
    /// What kube-proxy has in one mode only.
    fn of_mode(&self, page: &mut Page) {
        match self.mode.map(|(_asked, mode)| mode) {
            // A family without samples is no family.
            Some(Kind::Iptables) if self.iptables_rules.is_empty() => {}
            Some(Kind::Iptables) => {
                let rows = |number: fn(&RuleCount) -> usize| -> Vec<(String, u64)> {
                    let labels = |of: &RuleCount| format!("table=\"{}\",ip_family=\"{}\"", of.table, of.family.name());
                    let number = |of: &RuleCount| u64::try_from(number(of)).unwrap_or(u64::MAX);
                    self.iptables_rules.iter().map(|of| (labels(of), number(of))).collect()
                };
                let all = "Rules of iptables in chains of this proxy";
                page.family("sync_proxy_rules_iptables_total", "untyped", all, &rows(|of| of.total));
                let last = "Rules of iptables that the last pass has written";
                page.family("sync_proxy_rules_iptables_last", "gauge", last, &rows(|of| of.written));
            }
            Some(Kind::Nftables) => {
                let failures = self.nftables_sync_failures;
                page.counter("sync_proxy_rules_nftables_sync_failures_total", "Transactions that failed", failures);
                let cleanup = "Always 0: what nobody needs goes in the transaction of its pass";
                page.counter("sync_proxy_rules_nftables_cleanup_failures_total", cleanup, 0);
            }
            _ => {}
        }
    }
}

/// Resident memory and open files, under the names that all exporters use.
fn process(page: &mut Page) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
    let bytes: u64 = resident.unwrap_or(0) * 1024;
    page.plain("process_resident_memory_bytes", "gauge", "Resident memory", bytes);
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        page.plain("process_open_fds", "gauge", "Open files", files.count());
    }
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _cannot_fail = self.0.write_fmt(text);
    }

    fn plain(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, kind, help);
        self.line(format_args!("{name} {value}\n"));
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.plain(&format!("kubeproxy_{name}"), "gauge", help, value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.plain(&format!("kubeproxy_{name}"), "counter", help, value);
    }

    fn family(&mut self, name: &str, kind: &str, help: &str, values: &[(String, u64)]) {
        let name = format!("kubeproxy_{name}");
        self.head(&name, kind, help);
        for (labels, value) in values {
            self.line(format_args!("{name}{{{labels}}} {value}\n"));
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        let name = format!("kubeproxy_{name}");
        self.head(&name, "histogram", help);
        let mut total = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            total += count;
            self.line(format_args!("{name}_bucket{{le=\"{bound}\"}} {total}\n"));
        }
        let count = histogram.count();
        self.line(format_args!(
            "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {}\n{name}_count {count}\n",
            histogram.sum
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_types_and_buckets_of_kube_proxy() {
        let mut metrics = Metrics::default();
        metrics.sync_duration.observe(Duration::from_millis(3));
        metrics.sync_duration.observe(Duration::from_millis(4));
        metrics.sync_duration.observe(Duration::from_secs(60));
        metrics.no_local_endpoints = [1, 2];
        metrics.healthz = [7, 1];
        let text = metrics.render();
        for line in [
            "# TYPE kubeproxy_sync_proxy_rules_duration_seconds histogram",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"0.002\"} 0",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"0.004\"} 2",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"16.384\"} 2",
            "kubeproxy_sync_proxy_rules_duration_seconds_bucket{le=\"+Inf\"} 3",
            "kubeproxy_sync_proxy_rules_duration_seconds_count 3",
            "kubeproxy_sync_proxy_rules_duration_seconds_sum 60.007",
            "kubeproxy_network_programming_duration_seconds_bucket{le=\"0.25\"} 0",
            "kubeproxy_network_programming_duration_seconds_bucket{le=\"59\"} 0",
            "kubeproxy_network_programming_duration_seconds_bucket{le=\"115\"} 0",
            "kubeproxy_network_programming_duration_seconds_bucket{le=\"300\"} 0",
            "# TYPE kubeproxy_sync_proxy_rules_endpoint_changes_total counter",
            "kubeproxy_sync_proxy_rules_endpoint_changes_pending 0",
            "# TYPE kubeproxy_sync_proxy_rules_no_local_endpoints_total untyped",
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"external\"} 2",
            "# TYPE kubeproxy_proxy_healthz_total counter",
            "kubeproxy_proxy_healthz_total{code=\"503\"} 1",
            "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds 0",
        ] {
            assert!(text.lines().any(|printed| printed == line), "{line}\n{text}");
        }
    }

    #[test]
    fn modes_have_metrics_of_their_own() {
        let own = |mode| {
            let metrics = Metrics { mode: Some((Asked::Auto, mode)), nftables_sync_failures: 3, ..Metrics::default() };
            let text = metrics.render();
            let lines = text.lines().filter(|line| line.contains("_nftables_") || line.contains("_iptables_last"));
            lines.filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        let expected = [
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total 3",
            "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total 0",
        ];
        assert_eq!(own(Kind::Nftables), expected);
        assert_eq!((own(Kind::Iptables), own(Kind::Ipvs)), (vec![], vec![]), "no rules are known yet");
    }

    #[test]
    fn firewall_marks_are_counted_by_what_they_are_for() {
        let text = Metrics { split: 5, shared: 3, unmarked: 2, ..Metrics::default() }.render();
        for (name, number) in [("split_frontends", 5), ("shared_node_ports", 3), ("unmarked_services", 2)] {
            let lines: Vec<&str> = text.lines().filter(|line| line.contains(&format!("_{name}"))).collect();
            assert_eq!(lines.len(), 3, "{lines:?}");
            assert_eq!(lines[1], format!("# TYPE kubeproxy_{name} gauge"));
            assert_eq!(lines[2], format!("kubeproxy_{name} {number}"));
        }
    }

    #[test]
    fn the_page_is_well_formed() {
        let text = Metrics::default().render();
        let mut family = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                family = rest.split(' ').nth(1).unwrap();
                continue;
            }
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with(family), "{line} is not of {family}");
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }

    #[test]
    fn bounds_ascend() {
        assert!(PROGRAMMING_SECONDS.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(PROGRAMMING_SECONDS.last(), Some(&300.0));
    }
}
