//! A cold start with thousands of Services: the API server's own and cluster DNS are served first, on a kernel in memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use proxier_core::engine::Reconciler;
use proxier_core::fake::{Call, FakeKernel, Fault};
use proxier_core::modes::Kind;
use proxier_core::plan::report::Report;
use proxier_core::plan::step::Part;
use proxier_core::ports::PortErrorKind;
use proxier_core::sketch::KernelState;
use proxier_core::snapshot::ObjectKey;
use serde_json::json;

use crate::node::{kernel, options_of};

const OTHERS: u16 = 2000;
const KUBERNETES: &str = "10.96.0.1";
const DNS: &str = "10.96.0.10";

fn upsert(proxier: &mut Reconciler, namespace: &str, name: &str, address: &str, port: u16) {
    let service = json!({"metadata": {"namespace": namespace, "name": name},
        "spec": {"clusterIP": address, "clusterIPs": [address], "ports": [{"name": "p", "port": port}]}});
    proxier.upsert_service(&serde_json::from_value(service).unwrap(), Duration::ZERO);
    let labels = json!({"kubernetes.io/service-name": name});
    let slice = json!({"metadata": {"namespace": namespace, "name": format!("{name}-1"), "labels": labels},
        "addressType": "IPv4", "ports": [{"name": "p", "port": 8080}], "endpoints": [{"addresses": ["10.244.0.1"]}]});
    proxier.upsert_slice(&serde_json::from_value(slice).unwrap(), Duration::ZERO);
}

/// A process that has read a cluster with this many other Services.
fn process(mode: Kind, others: u16) -> Reconciler {
    let mut proxier = Reconciler::new("node-a", options_of(mode), Duration::ZERO);
    upsert(&mut proxier, "default", "kubernetes", KUBERNETES, 443);
    upsert(&mut proxier, "kube-system", "kube-dns", DNS, 53);
    // Neither of these Services is needed by everybody.
    upsert(&mut proxier, "default", "dns", "10.96.0.20", 53);
    upsert(&mut proxier, "kube-system", "metrics", "10.96.0.21", 443);
    for number in 0..others {
        let [high, low] = number.to_be_bytes();
        upsert(&mut proxier, "demo", &format!("web-{number}"), &format!("10.97.{high}.{low}"), 80);
    }
    proxier.start(Duration::ZERO);
    proxier
}

/// Runs the first pass; the states are those at each look on the clock, and at the end.
fn start(proxier: &mut Reconciler, kernel: &FakeKernel) -> (Report, Vec<KernelState>) {
    let states = RefCell::new(Vec::new());
    let time = Cell::new(Duration::ZERO);
    let clock = || {
        states.borrow_mut().push(kernel.state());
        time.set(time.get() + Duration::from_millis(1));
        time.get()
    };
    let report = proxier.pass(&clock, &mut kernel.clone().ports()).unwrap();
    let mut states = states.into_inner();
    states.push(kernel.state());
    (report, states)
}

fn virtual_servers(state: &KernelState) -> BTreeSet<&str> {
    state.ipvs.lines().filter_map(|line| line.strip_prefix("-A ")?.split(' ').nth(1)).collect()
}

fn bound(state: &KernelState) -> BTreeSet<IpAddr> {
    state.devices.get("kube-ipvs0").into_iter().flatten().copied().collect()
}

#[test]
fn the_api_server_and_dns_are_served_before_the_rest() {
    let kernel = kernel();
    let (report, states) = start(&mut process(Kind::Ipvs, OTHERS), &kernel);
    assert!(report.is_done(), "{report:#?}");
    let first = report.served_first.expect("served first");
    let named = [ObjectKey::new("default", "kubernetes"), ObjectKey::new("kube-system", "kube-dns")];
    assert_eq!(first.services, named.into());
    let addresses: BTreeSet<IpAddr> = [KUBERNETES, DNS].map(|address| address.parse().unwrap()).into();
    let early = states.iter().find(|state| !bound(state).is_empty()).unwrap();
    assert_eq!(bound(early), addresses, "nothing else is bound yet");
    assert_eq!(virtual_servers(early), ["10.96.0.10:53", "10.96.0.1:443"].into());
    let rules: String = early.rules.values().cloned().collect();
    assert!(rules.contains("-A PREROUTING") && rules.contains("KUBE-SERVICES"), "their rules are there: {rules}");
    assert!(early.sets["KUBE-CLUSTER-IP"].1.contains("10.96.0.10,tcp:53"), "{:?}", early.sets["KUBE-CLUSTER-IP"]);
    let end = states.last().unwrap();
    assert_eq!(virtual_servers(end).len(), usize::from(OTHERS) + 4);
    assert_eq!(bound(end).len(), usize::from(OTHERS) + 4);
    // Operations are counted once: each address was bound by one of the two stages.
    let bound = report.applied.done.iter().filter(|((part, _), _)| *part == Part::Address);
    assert_eq!(bound.map(|(_, number)| *number).sum::<u64>(), u64::from(OTHERS) + 4);
    // A process that compares everything finds nothing to do, and no drift.
    let (again, states) = start(&mut process(Kind::Ipvs, OTHERS), &kernel);
    assert_eq!((again.writes(), again.served_first), (0, None));
    assert!(states.iter().all(|state| state == end));
}

#[test]
fn where_an_earlier_process_serves_nothing_is_done_twice() {
    // An earlier process served other Services: they stay until the whole pass.
    let kernel = kernel();
    let mut earlier = process(Kind::Ipvs, 3);
    upsert(&mut earlier, "demo", "gone", "10.98.0.1", 80);
    start(&mut earlier, &kernel);
    let (report, states) = start(&mut process(Kind::Ipvs, OTHERS), &kernel);
    assert!(report.is_done() && report.served_first.is_none(), "{:?}", report.served_first);
    let count = |state: &KernelState| virtual_servers(state).len();
    assert!(states.iter().all(|state| count(state) == 8 || count(state) == usize::from(OTHERS) + 4));
}

#[test]
fn rules_of_iptables_mode_serve_until_everything_is_there() {
    let kernel = kernel();
    start(&mut process(Kind::Iptables, OTHERS), &kernel);
    let (report, states) = start(&mut process(Kind::Ipvs, OTHERS), &kernel);
    assert!(report.is_done() && report.served_first.is_none(), "{:?}", report.served_first);
    let has_chains = |state: &KernelState| state.rules.values().any(|rules| rules.contains("KUBE-SVC-"));
    for state in &states {
        assert!(has_chains(state) || virtual_servers(state).len() == usize::from(OTHERS) + 4);
    }
}

#[test]
fn small_clusters_and_other_modes_have_one_stage() {
    for (mode, others) in [(Kind::Ipvs, 100), (Kind::Nftables, OTHERS)] {
        let (report, _) = start(&mut process(mode, others), &kernel());
        assert!(report.is_done() && report.served_first.is_none(), "{mode}");
    }
}

#[test]
fn what_fails_in_the_first_stage_is_done_in_the_second() {
    for fault in [
        Fault::new(Call::RulesRestore, PortErrorKind::Busy),
        Fault::new(Call::SetsAdd, PortErrorKind::Unknown),
        Fault::new(Call::IpvsRun, PortErrorKind::Unknown),
        Fault::new(Call::LinksBind, PortErrorKind::Other),
        Fault::new(Call::RulesDump, PortErrorKind::Busy),
    ] {
        let kernel = kernel();
        kernel.fail(fault.clone());
        let mut proxier = process(Kind::Ipvs, OTHERS);
        let (report, _) = start(&mut proxier, &kernel);
        assert_eq!(report.served_first, None, "{fault:?}");
        assert!(report.is_done(), "{fault:?}: {:?} {:?}", report.unread, report.applied.failures);
        assert_eq!(virtual_servers(&kernel.state()).len(), usize::from(OTHERS) + 4, "{fault:?}");
    }
}
