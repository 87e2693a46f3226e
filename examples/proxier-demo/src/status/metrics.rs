//! Metrics with kube-proxy's names, in Prometheus' text format 0.0.4.
//!
//! Written by hand, because the names are a contract. `prometheus-client` prints OpenMetrics, in which
//! `kubeproxy_proxy_healthz_total` would belong to a family `kubeproxy_proxy_healthz`, and a gauge could not end in
//! `_total`.
//!
//! kube-proxy has gauges whose names end in `_total`. They have no type here (`untyped`), which does not affect
//! queries, and `promtool check metrics` accepts it. `sync_proxy_rules_iptables_total` exists in iptables mode but not
//! in IPVS mode, as in kube-proxy, because its number of rules is the same for any number of Services.
//!
//! These of client-go's metrics (`rest_client_…`) are missing:
//! * delays by a client's own limit (`rate_limiter_duration_seconds`): there is none here.
//! * expiry and age of certificates from programs (`exec_plugin_ttl_seconds`, `exec_plugin_certificate_rotation_age`):
//!   they are not inspected here.
//! * Go's cache of transports and garbage collection (`transport_…`).
//! * resolved API server names, and the policy for programs: no kube-proxy shows them.
//!
//! Nearly all have the label `ip_family`, as in kube-proxy from 1.33. One pass serves all families, and each of them
//! gets its duration and its time.

use std::collections::BTreeMap;
use std::fs::read_to_string;

use proxier_core::config::Families;
use proxier_core::modes::Kind;
use proxier_core::modes::localhost_relay::LocalhostNodePorts;
use proxier_core::modes::select::RequestedMode;
use proxier_core::net::{ByFamily, Family, FrontendKey};
use proxier_core::plan::report::{RuleCount, Totals};

use crate::histogram::{Histogram, PROGRAMMING_SECONDS, SYNC_SECONDS};
use crate::sources::cluster::requests::{Outcomes, Requests};
use crate::status::process;
use crate::status::text::{Labels, Page};

/// Packet counters used by rules of iptables mode: metric and help text of each.
const COUNTED: [(&str, &str, &str); 2] = [
    (
        "ct_state_invalid_dropped_pkts",
        "iptables_ct_state_invalid_dropped_packets_total",
        "packets dropped by iptables to work around conntrack problems",
    ),
    (
        "localhost_nps_accepted_pkts",
        "iptables_localhost_nodeports_accepted_packets_total",
        "Number of packets accepted on nodeports of loopback interface",
    ),
];

/// The userspace mode metric from which `show` reads connections, without the prefix.
pub(crate) const USERSPACE_CONNECTIONS: &str = "userspace_connections_total";

/// Makes [`Metrics`] of its other fields and a table. Rows are those with one value, those with a value for each served family, and those of
/// [`Totals`]: kind, field, name, help.
macro_rules! metrics {
    (
        { $($more:tt)* }
        { $($kind:ident $field:ident $name:literal $help:literal;)* }
        { $($of_family:ident $family_name:literal $family_help:literal;)* }
        { $($total:ident $total_name:literal $total_help:literal;)* }
    ) => {
        /// Values of all metrics. Each part of the program writes its own; [`render`](Metrics::render) prints them.
        ///
        /// Times are seconds since 1970.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Metrics {
            $(#[doc = concat!($help, ".")] pub $field: u64,)*
            $(#[doc = concat!($family_help, ".")] pub $of_family: ByFamily<u64>,)*
            $($more)*
        }

        impl Metrics {
            fn rows(&self, page: &mut Page) {
                $(page.$kind($name, $help, self.$field);)*
                $(page.family($family_name, "gauge", $family_help, self.each(|family| *self.$of_family.of(family)));)*
                $(page.counter($total_name, $total_help, self.totals.$total);)*
            }
        }
    };
}

metrics! {
    {
        pub families: Families,
        pub took: Durations,
        pub sync_last_timestamp: f64,
        /// Time when a pass was last requested.
        pub sync_last_queued_timestamp: f64,
        pub totals: Totals,
        pub iptables_rules: Vec<RuleCount>,
        /// Packets by the counters in rules of iptables mode, without those that the kernel does not have.
        pub iptables_packets: BTreeMap<String, u64>,
        /// Connections that took the fast path since its table was created; `None` without one.
        pub fast_path: Option<u64>,
        /// Ports of Services without the local endpoints that their policy requires: internal, external.
        pub no_local_endpoints: [ByFamily<u64>; 2],
        /// Answers by status: 200, 503.
        pub healthz: [u64; 2],
        pub livez: [u64; 2],
        pub requests: Requests,
        /// Userspace mode: connections and UDP flows that each listener has started, with its Service and port.
        pub begun: Vec<(FrontendKey, String, u64)>,
        /// Node ports on loopback addresses in nftables mode, if the configuration names these.
        pub localhost: Option<LocalhostNodePorts>,
        pub mode: Option<(RequestedMode, Kind)>,
    }
    {
        gauge endpoint_changes_pending "sync_proxy_rules_endpoint_changes_pending" "Changes that no pass has taken up yet";
        gauge service_changes_pending "sync_proxy_rules_service_changes_pending" "Changes that no pass has taken up yet";
        gauge healthy "healthy" "1 if the kernel has what Services want; 0 once it has lacked it for two sync periods";
        gauge rejected "rejected_fields" "Fields and objects of the input that are left out";
        counter unreadable "unreadable_objects_total" "Objects and files that could not be read";
        gauge unreadable_now "unreadable_objects"
            "Objects of the API server that cannot be read now; their last readable version stays in use";
        counter api_failures "api_request_failures_total" "Requests to the API server that failed";
        gauge api_failing_seconds "api_failing_seconds"
            "Time for which no request to the API server for one of the kinds has worked; 0 in the first minute";
        gauge virtual_servers "virtual_servers" "Virtual servers of this proxy in the kernel";
        gauge held_back "virtual_servers_held_back"
            "Virtual servers that are kept although they, or their last endpoints, should go: too many at once";
        gauge refused_objects "refused_objects" "Virtual servers, real servers, addresses and entries that the kernel refuses";
        gauge foreign_virtual_servers "virtual_servers_foreign" "Virtual servers of other programs in the kernel";
        gauge real_servers "real_servers" "Real servers of this proxy in the kernel";
        gauge draining "real_servers_draining" "Real servers that are draining";
        gauge split "split_frontends" "Virtual servers by firewall marks for clients outside (ipvs.markSplit)";
        gauge unmarked "unmarked_services" "Services that are served without the firewall marks that the configuration asks for";
        gauge of_other_nodes "other_nodes_frontends" "Addresses and ports of Services that are other Nodes' and not served here";
        gauge unmet "unmet_wishes" "Settings and parts of the kernel that are not available here; serving works without them";
        gauge leftovers "leftovers" "What other proxies and programs hold that decides about packets of Services: what could not be removed or recognised, chains that drop, settings";
    }
    {
        frontends "frontends" "Addresses and ports of Services on this node, in every mode";
        endpoints "frontend_endpoints" "Endpoints of these addresses and ports, each counted for every one that forwards to it";
    }
    {
        endpoint_changes "sync_proxy_rules_endpoint_changes_total" "Changes of endpoints";
        service_changes "sync_proxy_rules_service_changes_total" "Changes of Services";
        failed_passes "sync_failures_total" "Passes that failed, wholly or in part";
    }
}

#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Durations {
    pub sync: Histogram,
    pub sync_full: Histogram,
    pub sync_partial: Histogram,
    /// Time from the cause of a change of endpoints, according to the EndpointSlice, until the kernel has it.
    pub network_programming: ByFamily<Histogram>,
    /// Time to find and delete connection tracking entries.
    pub conntrack_sync: ByFamily<Histogram>,
}

impl Default for Durations {
    fn default() -> Self {
        let sync = Histogram::new(&SYNC_SECONDS);
        Durations {
            sync: sync.clone(),
            sync_full: sync.clone(),
            sync_partial: sync,
            network_programming: histograms(&PROGRAMMING_SECONDS),
            conntrack_sync: histograms(&SYNC_SECONDS),
        }
    }
}

fn histograms(bounds: &'static [f64]) -> ByFamily<Histogram> {
    ByFamily { v4: Histogram::new(bounds), v6: Histogram::new(bounds) }
}

fn of_family(family: Family) -> Labels {
    vec![("ip_family", family.name().to_owned())]
}

impl Metrics {
    pub fn render(&self) -> String {
        let mut page = Page::new("kubeproxy_");
        self.passes(&mut page);
        self.of_mode(&mut page);
        self.flows_and_probes(&mut page);
        self.rows(&mut page);
        self.client(&mut page);
        process::add(&mut page);
        page.text
    }

    /// Values with labels, one for each served family.
    fn each<T>(&self, value: impl Fn(Family) -> T) -> impl Iterator<Item = (Labels, T)> {
        self.families.iter().map(move |family| (of_family(family), value(family)))
    }

    fn passes(&self, p: &mut Page) {
        let passes = [
            ("sync_proxy_rules_duration_seconds", "Passes over the rules", &self.took.sync),
            ("sync_full_proxy_rules_duration_seconds", "Passes that compared everything", &self.took.sync_full),
            (
                "sync_partial_proxy_rules_duration_seconds",
                "Passes that compared what had changed",
                &self.took.sync_partial,
            ),
        ];
        for (name, help, histogram) in passes {
            p.histograms(name, help, self.each(|_| histogram));
        }
        let caused = "From the cause of a change of endpoints to the kernel";
        let programming = &self.took.network_programming;
        p.histograms("network_programming_duration_seconds", caused, self.each(|family| programming.of(family)));
        let (last, queued) = (self.sync_last_timestamp, self.sync_last_queued_timestamp);
        let succeeded = "When the last pass succeeded";
        p.family("sync_proxy_rules_last_timestamp_seconds", "gauge", succeeded, self.each(|_| last));
        let asked = "When a pass was last asked for";
        p.family("sync_proxy_rules_last_queued_timestamp_seconds", "gauge", asked, self.each(|_| queued));
        let policies = ["internal", "external"].into_iter().zip(self.no_local_endpoints);
        let missing = policies.flat_map(|(policy, count)| {
            self.each(move |family| *count.of(family)).map(move |(mut labels, count)| {
                labels.insert(0, ("traffic_policy", policy.to_owned()));
                (labels, count)
            })
        });
        let without = "Ports of Services without the local endpoints that their policy asks for";
        p.family("sync_proxy_rules_no_local_endpoints_total", "untyped", without, missing);
    }

    /// Adds metrics that kube-proxy has in some modes only.
    fn of_mode(&self, p: &mut Page) {
        if let Some((asked, mode)) = self.mode {
            let labels = vec![("asked", asked.to_string()), ("mode", mode.to_string())];
            p.family("mode_info", "gauge", "The mode that was asked for, and the one that serves", [(labels, 1)]);
        }
        if let Some(connections) = self.fast_path {
            p.counter("fast_path_connections_total", "Connections that took the fast path (fastPath)", connections);
        }
        let mode = self.mode.map(|(_asked, mode)| mode);
        if matches!(mode, Some(Kind::Iptables | Kind::Ipvs)) {
            let failures = self.each(|family| *self.totals.restore_failures.of(family));
            let help = "Failed runs of iptables-restore";
            p.family("sync_proxy_rules_iptables_restore_failures_total", "counter", help, failures);
        }
        match mode {
            Some(Kind::Iptables) => {
                let failures = self.each(|family| *self.totals.partial_restore_failures.of(family));
                let help = "Failed runs of iptables-restore that wrote only what had changed";
                p.family("sync_proxy_rules_iptables_partial_restore_failures_total", "counter", help, failures);
                for (counter, name, help) in COUNTED {
                    if let Some(packets) = self.iptables_packets.get(counter) {
                        p.family(name, "counter", help, [(Vec::new(), packets)]);
                    }
                }
                self.rules(p);
            }
            Some(Kind::Nftables) => {
                let failures = self.each(|family| *self.totals.table_failures.of(family));
                let help = "Transactions that failed";
                p.family("sync_proxy_rules_nftables_sync_failures_total", "counter", help, failures);
                let cleanup = "Always 0: unused chains are deleted in the transaction of their pass";
                p.family("sync_proxy_rules_nftables_cleanup_failures_total", "counter", cleanup, self.each(|_| 0));
                if let Some(localhost) = &self.localhost {
                    self.localhost_node_ports(p, localhost);
                }
            }
            Some(Kind::Userspace) => {
                let help = "Connections and UDP flows that each listener has begun since it was opened";
                let rows = self.begun.iter().map(|(key, service, begun)| {
                    (vec![("frontend", key.to_string()), ("service", service.clone())], begun)
                });
                p.family(USERSPACE_CONNECTIONS, "counter", help, rows);
            }
            _ => {}
        }
    }

    fn localhost_node_ports(&self, p: &mut Page, localhost: &LocalhostNodePorts) {
        let of = |counts: &BTreeMap<Family, u64>, family| counts.get(&family).copied().unwrap_or_default();
        let help = "Listeners of node ports on loopback addresses";
        let listeners = self.each(|family| of(&localhost.listeners, family));
        p.family("nftables_localhost_nodeport_listeners", "gauge", help, listeners);
        let help = "Listeners of node ports on loopback addresses that could not be opened";
        let failures = self.each(|family| of(&localhost.creation_failures, family));
        p.family("nftables_localhost_nodeport_listener_creation_failures_total", "counter", help, failures);
        let help = "Packets of other protocols than TCP to node ports on loopback addresses, which are refused";
        let rejected = localhost.rejected.iter().map(|((family, protocol), packets)| {
            let labels = vec![("ip_family", family.name().to_owned()), ("protocol", protocol.to_string())];
            (labels, *packets)
        });
        p.family("nftables_localhost_nodeport_rejected_packets_total", "counter", help, rejected);
    }

    fn rules(&self, p: &mut Page) {
        let rows = |number: fn(&RuleCount) -> usize| {
            self.iptables_rules.iter().map(move |of| {
                let labels = vec![("table", of.table.to_owned()), ("ip_family", of.family.name().to_owned())];
                (labels, number(of))
            })
        };
        let all = "Rules of iptables in chains of this proxy";
        p.family("sync_proxy_rules_iptables_total", "untyped", all, rows(|of| of.total));
        let last = "Rules of iptables that the last pass has written";
        p.family("sync_proxy_rules_iptables_last", "gauge", last, rows(|of| of.written));
    }

    fn flows_and_probes(&self, p: &mut Page) {
        let codes = |[ok, unavailable]: [u64; 2]| {
            [("200", ok), ("503", unavailable)].map(|(code, number)| (vec![("code", code.to_owned())], number))
        };
        p.family("proxy_healthz_total", "counter", "Answers of /healthz", codes(self.healthz));
        p.family("proxy_livez_total", "counter", "Answers of /livez", codes(self.livez));
        let took = self.each(|family| self.took.conntrack_sync.of(family));
        let help = "Time to find and delete entries of connection tracking";
        p.histograms("conntrack_reconciler_sync_duration_seconds", help, took);
        let deleted = self.each(|family| *self.totals.flows.of(family));
        let help = "Entries of connection tracking that were deleted";
        p.family("conntrack_reconciler_deleted_entries_total", "counter", help, deleted);
        // The kernel drops the packets of new connections when it has no entry left.
        for (name, help, file) in [
            ("conntrack_entries", "Entries of connection tracking in this network namespace", "count"),
            ("conntrack_entries_limit", "Most entries of connection tracking; 0 where the kernel has none", "max"),
        ] {
            let read = read_to_string(format!("/proc/sys/net/netfilter/nf_conntrack_{file}")).ok();
            p.gauge(name, help, read.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or_default());
        }
    }

    /// Adds requests to the API server, as client-go counts them.
    fn client(&self, page: &mut Page) {
        page.prefix = "rest_client_";
        let Requests { outcomes, programs } = &self.requests;
        let by_code = |codes: fn(&Outcomes) -> &BTreeMap<String, u64>, of_method| {
            outcomes.iter().flat_map(move |((host, method), outcomes)| {
                codes(outcomes).iter().map(move |(code, number)| {
                    (vec![("code", code.clone()), ("host", host.clone()), (of_method, method.clone())], *number)
                })
            })
        };
        let all = by_code(|of| &of.by_code, "method");
        page.family("requests_total", "counter", "Requests to the API server", all);
        let help = "Requests that were sent again, by the outcome of the attempt before";
        page.family("request_retries_total", "counter", help, by_code(|of| &of.retries, "verb"));
        let help = "Runs of the program that gets credentials (exec in the kubeconfig)";
        let runs = programs.iter().map(|((code, how), number)| {
            (vec![("code", code.to_string()), ("call_status", (*how).to_owned())], *number)
        });
        page.family("exec_plugin_call_total", "counter", help, runs);
        let mut histograms = |name, help, histogram: fn(&Outcomes) -> &Histogram| {
            let rows = outcomes.iter().map(|((host, method), outcomes)| {
                (vec![("host", host.clone()), ("verb", method.clone())], histogram(outcomes))
            });
            page.histograms(name, help, rows.filter(|(_, histogram)| histogram.count() > 0));
        };
        histograms("request_duration_seconds", "Time until the head of an answer", |of| &of.took);
        histograms("request_size_bytes", "Bodies of requests", |of| &of.sent);
        histograms("response_size_bytes", "Bodies of answers, without those of watches", |of| &of.received);
    }
}
