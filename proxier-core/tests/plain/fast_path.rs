//! The fast path on a kernel in memory: where there is none, what fails, what is foreign. Packets are in `kernel_traffic`.

use proxier_core::config::{Config, FastPath};

use proxier_core::engine::{Options, Reconciler};
use proxier_core::fake::{Call, FakeKernel, Fault};
use proxier_core::modes::cleanup::cleanup;
use proxier_core::modes::{Kind, Names, fast_path};
use proxier_core::objects::{ConfigObject, ServiceObject};
use proxier_core::plan::report::Report;
use proxier_core::ports::PortErrorKind;
use serde_json::{Value, json};
use std::time::Duration;

use crate::node::add_table;

const TABLE: &str = "inet proxier-fast-path";

fn kernel() -> FakeKernel {
    let kernel = FakeKernel::new();
    for device in ["eth0", "eth1", "cali1"] {
        kernel.set_interface(device, &[]);
    }
    kernel
}

fn process(mode: Kind, interfaces: &[&str]) -> Reconciler {
    let mut options = Options::default();
    options.mode = mode;
    options.config.fast_path = Some(FastPath::new(interfaces.iter().copied())).filter(|_| !interfaces.is_empty());
    let mut process = Reconciler::new("node-a", options, Duration::ZERO);
    process.start(Duration::ZERO);
    process
}

fn pass(process: &mut Reconciler, kernel: &mut FakeKernel, at: u64) -> Report {
    process.request_full(Duration::from_secs(at));
    process.pass(&|| Duration::from_secs(at), &mut kernel.ports()).unwrap()
}

fn service() -> ServiceObject {
    let spec = json!({ "clusterIP": "10.96.0.10", "ports": [{ "name": "http", "port": 80 }] });
    serde_json::from_value(json!({ "metadata": { "namespace": "demo", "name": "web" }, "spec": spec })).unwrap()
}

fn written(kernel: &FakeKernel) -> Option<String> {
    kernel.state().tables.get(TABLE).cloned()
}

#[test]
fn modes_without_one_say_so_once_and_remove_the_table_of_another() {
    for mode in Kind::ALL {
        let mut kernel = kernel();
        pass(&mut process(Kind::Nftables, &["*"]), &mut kernel, 0);
        assert!(written(&kernel).is_some_and(|table| table.contains("\"cali1\", \"eth0\", \"eth1\"")));
        let mut process = process(mode, &["*"]);
        let [first, second] = [0, 60].map(|at| pass(&mut process, &mut kernel, at));
        let has_one = matches!(mode, Kind::Nftables | Kind::Iptables);
        assert_eq!(written(&kernel).is_some(), has_one, "{mode}");
        let said = |report: &Report| report.limited.iter().filter(|line| line.starts_with("fastPath: ")).count();
        assert_eq!((said(&first), said(&second)), (usize::from(!has_one), 0), "{mode}: {first:#?}");
        assert_eq!(second.writes(), 0, "{mode}");
    }
}

#[test]
fn where_it_fails_the_node_serves_and_tries_again() {
    let mut kernel = kernel();
    let mut process = process(Kind::Nftables, &["eth*"]);
    pass(&mut process, &mut kernel, 0);
    kernel.set_interface("eth2", &[]);
    kernel.fail(Fault::new(Call::TablesCommit, PortErrorKind::Busy));
    process.host_changed(Duration::from_secs(5));
    let report = process.pass(&|| Duration::from_secs(5), &mut kernel.ports()).unwrap();
    assert!(!report.has_failed() && report.applied.lacks.len() == 1, "{report:#?}");
    assert!(report.applied.lacks[0].to_string().starts_with("no fast path: "), "{report:#?}");
    // A pass for changes does not ask again.
    let asked = kernel.ports().tables.generation().unwrap();
    process.upsert_service(&service(), Duration::from_secs(10));
    let report = process.pass(&|| Duration::from_secs(10), &mut kernel.ports()).unwrap();
    assert!(!report.full && report.applied.lacks.is_empty() && report.writes() > 0, "{report:#?}");
    assert!(kernel.ports().tables.generation().unwrap() > asked);
    assert!(written(&kernel).is_some_and(|table| !table.contains("eth2")));
    let report = pass(&mut process, &mut kernel, 60);
    assert!(report.applied.lacks.is_empty() && written(&kernel).is_some_and(|table| table.contains("eth2")));
    assert!(!written(&kernel).unwrap().contains("cali1"));
    // No device, no table.
    for device in ["eth0", "eth1", "eth2"] {
        kernel.remove_interface(device);
    }
    pass(&mut process, &mut kernel, 120);
    assert_eq!(written(&kernel), None);
}

/// Without flow tables in the kernel there is nothing to plan, however often it is asked, and the reason is told.
#[test]
fn what_the_kernel_cannot_do_is_not_planned() {
    let mut kernel = kernel();
    kernel.fail(Fault::new(Call::TablesCheck, PortErrorKind::Unavailable).every());
    let mut process = process(Kind::Nftables, &["*"]);
    for at in [0, 60] {
        let report = pass(&mut process, &mut kernel, at);
        assert!(!report.has_failed() && report.applied.lacks.len() == 1, "{report:#?}");
        assert_eq!(written(&kernel), None);
    }
    let (plan, report) = process.preview(Duration::from_secs(120), &mut kernel.ports());
    assert!(plan.is_empty() && report.applied.lacks.len() == 1, "{report:#?}");
    kernel.clear_faults();
    let (plan, report) = process.preview(Duration::from_secs(120), &mut kernel.ports());
    assert!(!plan.is_empty() && report.applied.lacks.is_empty(), "{report:#?}");
}

#[test]
fn a_foreign_table_of_its_name_stays() {
    let mut kernel = kernel();
    add_table(&kernel, "inet proxier-fast-path");
    for interfaces in [&["*"][..], &[]] {
        let report = pass(&mut process(Kind::Nftables, interfaces), &mut kernel, 0);
        assert!(!report.has_failed() && report.applied.lacks.len() == interfaces.len(), "{report:#?}");
        assert!(!written(&kernel).unwrap().contains("flowtable"));
    }
    cleanup(&Config::default(), None, &mut kernel.ports());
    assert!(written(&kernel).is_some());
    assert_eq!(fast_path::connections(&Config::default(), kernel.ports().tables), Ok(None));
}

#[test]
fn a_plan_shows_it_and_writes_nothing() {
    let mut kernel = kernel();
    let mut process = process(Kind::Iptables, &["eth0"]);
    let (plan, _) = process.preview(Duration::ZERO, &mut kernel.ports());
    let names = Names::new(process.store(), process.desired());
    let steps: Vec<String> = plan.steps(&names).map(|step| step.to_string()).collect();
    assert!(steps.contains(&format!("+ table {TABLE} fast path by eth0")), "{steps:#?}");
    assert_eq!(written(&kernel), None);
    pass(&mut process, &mut kernel, 0);
    assert!(cleanup(&Config::default(), None, &mut kernel.ports()).is_done());
    assert_eq!(written(&kernel), None);
}

#[test]
fn settings_are_checked() {
    let check = |fast: Value| {
        let object: ConfigObject = serde_json::from_value(json!({ "fastPath": fast })).unwrap();
        let mut rejections = Vec::new();
        let config = Config::check(&object, &mut rejections);
        (config.fast_path, rejections.iter().map(|rejection| rejection.field.clone()).collect::<Vec<_>>())
    };
    let named = |names: &[&str]| Some(FastPath::new(names.iter().copied()));
    assert_eq!(check(json!({})), (None, vec![]));
    assert_eq!(check(json!({ "interfaces": "all" })), (named(&["*"]), vec![]));
    let bad = json!({ "interfaces": ["eth0", "a-name-of-16-byt", "a*b", "", "cali*"], "minPackets": -1 });
    let fields =
        ["interfaces[1]", "interfaces[2]", "interfaces[3]", "minPackets"].map(|name| format!("fastPath.{name}"));
    assert_eq!(check(bad), (named(&["eth0", "cali*"]), fields.into()));
}
