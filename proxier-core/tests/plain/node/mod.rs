//! A node whose kernel is in memory, with Services of namespace `demo`, for tests of the modes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use iptables::{Backend, Family as Side};
use proxier_core::config::Config;
use proxier_core::engine::{Options, Reconciler};
use proxier_core::fake::FakeKernel;
use proxier_core::inspect::trace;
use proxier_core::modes::Kind;
use proxier_core::modes::iptables::IptablesOptions;
use proxier_core::net::Family;
use proxier_core::objects::{EndpointSliceObject, NodeObject, ServiceObject};
use proxier_core::plan::report::Report;
use proxier_core::plan::step::{Action, Part};
use proxier_core::service::{Packet, Trace};
use proxier_core::snapshot::{ObjectKey, Rejection};
use serde_json::{Value, json};

pub(crate) struct Node {
    pub(crate) kernel: FakeKernel,
    pub(crate) proxier: Reconciler,
    pub(crate) now: Duration,
    /// Back end whose rules are looked at.
    pub(crate) backend: Backend,
}

pub(crate) fn kernel() -> FakeKernel {
    prepared(FakeKernel::new())
}

/// A kernel with an address of each family.
pub(crate) fn prepared(kernel: FakeKernel) -> FakeKernel {
    kernel.set_interface("eth0", &["192.0.2.10".parse().unwrap(), "2001:db8::10".parse().unwrap()]);
    kernel
}

/// The configuration with these fields, and those that cannot be.
pub(crate) fn checked(fields: Value) -> (Config, Vec<Rejection>) {
    let mut rejections = Vec::new();
    (Config::check(&serde_json::from_value(fields).unwrap(), &mut rejections), rejections)
}

/// The options of a proxy in this mode.
pub(crate) fn options_of(mode: Kind) -> Options {
    let mut options = Options::default();
    options.mode = mode;
    options
}

/// A Service with port `p`, unless the specification has ports; `status` and `annotations` in it go to their places.
pub(crate) fn service(name: &str, mut spec: Value) -> ServiceObject {
    let fields = spec.as_object_mut().unwrap();
    fields.entry("ports").or_insert_with(|| json!([{"name": "p", "port": 80}]));
    let status = fields.remove("status").unwrap_or_default();
    let annotations = fields.remove("annotations").unwrap_or_else(|| json!({}));
    let metadata = json!({"namespace": "demo", "name": name, "annotations": annotations});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
}

/// Endpoints of a Service in one family, each `address@node`.
pub(crate) fn slice(service: &str, endpoints: &[&str]) -> EndpointSliceObject {
    let one = |text: &&str| {
        let (address, node) = text.split_once('@').unwrap_or((text, "elsewhere"));
        json!({"addresses": [address], "nodeName": node})
    };
    let v6 = endpoints.first().is_some_and(|text| text.contains(':'));
    serde_json::from_value(json!({
        "metadata": {"namespace": "demo", "name": format!("{service}-{}", if v6 { 6 } else { 1 }), "labels": {"kubernetes.io/service-name": service}},
        "addressType": if v6 { "IPv6" } else { "IPv4" },
        "ports": [{"name": "p", "port": 8080, "protocol": "TCP"}, {"name": "u", "port": 5353, "protocol": "UDP"},
            {"name": "s", "port": 99, "protocol": "SCTP"}],
        "endpoints": endpoints.iter().map(one).collect::<Vec<_>>(),
    }))
    .unwrap()
}

impl Node {
    /// A new process, whose lists are not complete yet. Sockets of an earlier one have ended with it.
    pub(crate) fn begin(kernel: &FakeKernel, options: Options) -> Self {
        kernel.restart();
        let proxier = Reconciler::new("node-a", options, Duration::ZERO);
        Node { kernel: kernel.clone(), proxier, now: Duration::ZERO, backend: Backend::NfTables }
    }

    pub(crate) fn on(kernel: FakeKernel, options: Options) -> Self {
        Node::begin(&kernel, options).started()
    }

    /// The lists are complete.
    pub(crate) fn started(mut self) -> Self {
        self.proxier.start(self.now);
        self
    }

    /// Another process on the same kernel, which knows nothing yet.
    pub(crate) fn next(&self, options: Options) -> Self {
        Node { backend: self.backend, ..Node::on(self.kernel.clone(), options) }
    }

    pub(crate) fn service(&mut self, name: &str, spec: Value) {
        self.proxier.upsert_service(&service(name, spec), self.now);
    }

    pub(crate) fn slice(&mut self, service: &str, endpoints: &[&str]) {
        self.proxier.upsert_slice(&slice(service, endpoints), self.now);
    }

    /// Services `s1` and so on, this many, with these endpoints each.
    pub(crate) fn serve_many(&mut self, count: u8, endpoints: &[&str]) {
        for number in 1..=count {
            self.service(&format!("s{number}"), json!({"clusterIP": format!("10.96.0.{number}")}));
            self.slice(&format!("s{number}"), endpoints);
        }
    }

    /// Takes a Service or an EndpointSlice.
    pub(crate) fn take(&mut self, object: Value) {
        if object.get("addressType").is_some() {
            self.proxier.upsert_slice(&serde_json::from_value(object).unwrap(), self.now);
        } else {
            self.proxier.upsert_service(&serde_json::from_value(object).unwrap(), self.now);
        }
    }

    /// The addresses of the Node object.
    pub(crate) fn addresses(&mut self, addresses: &[&str]) {
        let addresses: Vec<Value> = addresses.iter().map(|of| json!({"type": "InternalIP", "address": of})).collect();
        let object = json!({"metadata": {"name": "node-a"}, "status": {"addresses": addresses}});
        self.proxier.set_node(&serde_json::from_value::<NodeObject>(object).unwrap(), self.now);
    }

    pub(crate) fn no_service(&mut self, name: &str) {
        self.proxier.delete_service(&ObjectKey::new("demo", name), self.now);
    }

    /// Runs the next pass, which may fail.
    pub(crate) fn pass(&mut self) -> Report {
        self.now = self.now.max(self.proxier.next_wake().unwrap());
        let now = self.now;
        let report = self.proxier.pass(&|| now, &mut self.kernel.ports()).unwrap();
        // Changes only where things are kept.
        self.proxier.compact();
        report
    }

    /// Runs the next pass, which has to do all that is wanted.
    #[track_caller]
    pub(crate) fn settles(&mut self) -> Report {
        let report = self.pass();
        assert!(report.is_done(), "{report:#?}");
        if self.proxier.mode() == Kind::Iptables {
            self.counts_are_true(&report);
        }
        report
    }

    /// Runs the pass that is due now.
    #[track_caller]
    pub(crate) fn pass_now(&mut self) -> Report {
        assert!(self.proxier.next_wake().is_some_and(|at| at <= self.now), "{:?}", self.proxier.next_wake());
        self.pass()
    }

    /// Runs all passes that are due before this much time has passed.
    pub(crate) fn run(&mut self, time: Duration) -> Vec<Report> {
        let end = self.now + time;
        let mut reports = Vec::new();
        while self.proxier.next_wake().is_some_and(|at| at <= end) {
            reports.push(self.pass());
        }
        self.now = end;
        reports
    }

    /// Runs all passes of this time, which have to do all that is wanted.
    #[track_caller]
    pub(crate) fn settle_for(&mut self, time: Duration) -> Vec<Report> {
        let reports = self.run(time);
        let undone = reports.iter().find(|report| !report.is_done());
        assert!(undone.is_none(), "{undone:#?}");
        reports
    }

    /// As [`Node::settle_for`] a minute, which has full passes in it.
    #[track_caller]
    pub(crate) fn settle(&mut self) -> Vec<Report> {
        self.settle_for(Duration::from_secs(60))
    }

    /// Each virtual server with the time of its persistence, its real servers and their weights.
    pub(crate) fn served(&self) -> Vec<String> {
        let snapshot = self.kernel.clone().ports().ipvs.snapshot().unwrap();
        let lines = snapshot.entries.iter().map(|entry| {
            let ipvs::VirtualServer { key, config } = entry.virtual_server.server;
            let mut reals: Vec<_> = entry.real_servers.iter().map(|real| real.server).collect();
            reals.sort_unstable();
            let reals: Vec<String> = reals.iter().map(|real| format!(" {}*{}", real.key, real.config.weight)).collect();
            let affinity = config.persistence.map_or(String::new(), |of| format!(" p{}", of.timeout_secs));
            format!("{key}{affinity}{}", reals.concat())
        });
        let mut lines: Vec<String> = lines.collect();
        lines.sort();
        lines
    }

    /// Rejected fields of objects.
    pub(crate) fn rejections(&self) -> Vec<String> {
        self.proxier.rejections().map(ToString::to_string).collect()
    }

    /// What becomes of this packet.
    pub(crate) fn traced(&self, packet: &Packet) -> Trace {
        let known = (self.proxier.desired(), self.proxier.facts());
        trace(self.proxier.mode(), self.proxier.store(), known, packet, IptablesOptions::default())
    }

    pub(crate) fn full(&mut self) -> Report {
        self.proxier.request_full(self.now);
        self.pass()
    }

    /// Output of `iptables-save`.
    pub(crate) fn rules(&self, side: Side) -> String {
        self.kernel.state().rules.get(&(side, self.backend)).cloned().unwrap_or_default()
    }

    /// The numbers of rules that a pass reports are those that `iptables-save` prints.
    #[track_caller]
    pub(crate) fn counts_are_true(&self, report: &Report) {
        assert!(!report.rule_counts.is_empty(), "{report:#?}");
        for count in &report.rule_counts {
            let side = if count.family == Family::V4 { Side::Ipv4 } else { Side::Ipv6 };
            let text = self.rules(side);
            let table = text.split_once(&format!("*{}\n", count.table)).map_or("", |(_, rest)| rest);
            let table = table.split("COMMIT").next().unwrap();
            let ours = table.lines().filter(|line| line.contains("-A KUBE-") && !line.contains("-A KUBE-FIREWALL"));
            assert_eq!(count.total, ours.count(), "{count:?}: {table}");
        }
    }
}

/// A transaction of another program.
pub(crate) fn commit(
    kernel: &FakeKernel,
    change: impl FnOnce(&mut nftables::Transaction) -> &mut nftables::Transaction,
) {
    let mut transaction = nftables::Transaction::new();
    change(&mut transaction);
    kernel.nftables().commit(&transaction).unwrap();
}

/// Another program adds an empty table, such as `ip proxier`, or deletes one.
pub(crate) fn add_table(kernel: &FakeKernel, name: &str) {
    commit(kernel, |transaction| transaction.add_table(nftables::Table::new(name.parse().unwrap())));
}

pub(crate) fn delete_table(kernel: &FakeKernel, name: &str) {
    commit(kernel, |transaction| transaction.delete_table(&name.parse().unwrap()));
}

/// What a pass has done, without settings below `/proc/sys`.
pub(crate) fn steps(report: &Report) -> BTreeMap<(Part, Action), u64> {
    report.applied.done.iter().filter(|((part, _), _)| *part != Part::Sysctl).map(|(of, count)| (*of, *count)).collect()
}

/// Number of writes. Finding flows to forget would count as one, though there may be none, so it is left out.
pub(crate) fn writes(kernel: &FakeKernel) -> u64 {
    let writes = kernel.writes();
    writes.total() - writes.conntrack
}

/// State of the kernel in lines; a line of rules with its table. The kubelet's chain is not ours, though we may add to it.
pub(crate) fn held(kernel: &FakeKernel) -> BTreeSet<String> {
    let state = kernel.state();
    let mut lines = BTreeSet::new();
    lines.extend(state.ipvs.lines().map(|line| line.trim_end().to_owned()));
    for (name, (create, entries)) in &state.sets {
        lines.insert(create.clone());
        lines.extend(entries.iter().map(|entry| format!("add {name} {entry}")));
    }
    for (which, text) in &state.rules {
        let mut table = "";
        for line in text.lines().filter(|line| !line.contains("KUBE-FIREWALL")) {
            if line.starts_with('*') {
                table = line;
            } else if ["KUBE-", "AGENT-", "THEIRS"].iter().any(|of| line.contains(of)) {
                lines.insert(format!("{which:?} {table} {line}"));
            }
        }
    }
    lines.extend(state.tables.iter().map(|(name, text)| format!("{name}: {text}")));
    for (name, addresses) in state.devices.iter().filter(|(name, _)| *name != "lo" && *name != "eth0") {
        lines.insert(format!("device {name}"));
        lines.extend(addresses.iter().map(|address| format!("{address} dev {name}")));
    }
    lines.extend(state.routes.iter().map(|(owner, route)| format!("{owner:?} {route}")));
    lines.extend(kernel.listeners().keys().map(|key| format!("listens on {key}")));
    lines
}

#[track_caller]
pub(crate) fn same(of: impl Debug, kernel: &FakeKernel, wanted: &BTreeSet<String>) {
    let found = held(kernel);
    let missing: Vec<_> = wanted.difference(&found).collect();
    let more: Vec<_> = found.difference(wanted).collect();
    assert!(missing.is_empty() && more.is_empty(), "{of:?}: missing {missing:#?}\nmore {more:#?}");
}
