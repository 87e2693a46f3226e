//! The fast path on a kernel in memory: where there is none, what fails, what is foreign. Packets are in `kernel_traffic`.

use proxier_core::config::{Config, FastPath};
use proxier_core::fake::{Call, FakeKernel, Fault};
use proxier_core::modes::cleanup::cleanup;
use proxier_core::modes::{Kind, fast_path};
use proxier_core::plan::report::Report;
use proxier_core::ports::PortErrorKind;
use proxier_core::service::Names;
use serde_json::{Value, json};

use crate::node::{Node, add_table, checked, options_of};

const TABLE: &str = "inet proxier-fast-path";

fn kernel() -> FakeKernel {
    let kernel = FakeKernel::new();
    for device in ["eth0", "eth1", "cali1"] {
        kernel.set_interface(device, &[]);
    }
    kernel
}

fn on(kernel: &FakeKernel, mode: Kind, interfaces: &[&str]) -> Node {
    let mut options = options_of(mode);
    options.config.fast_path = Some(FastPath::new(interfaces.iter().copied())).filter(|_| !interfaces.is_empty());
    Node::on(kernel.clone(), options)
}

fn written(kernel: &FakeKernel) -> Option<String> {
    kernel.state().tables.get(TABLE).cloned()
}

#[test]
fn modes_without_one_say_so_once_and_remove_the_table_of_another() {
    for mode in Kind::ALL {
        let kernel = kernel();
        on(&kernel, Kind::Nftables, &["*"]).full();
        assert!(written(&kernel).is_some_and(|table| table.contains("\"cali1\", \"eth0\", \"eth1\"")));
        let mut node = on(&kernel, mode, &["*"]);
        let [first, second] = [(); 2].map(|()| node.full());
        let has_one = matches!(mode, Kind::Nftables | Kind::Iptables);
        assert_eq!(written(&kernel).is_some(), has_one, "{mode}");
        let said = |report: &Report| report.limited.iter().filter(|line| line.starts_with("fastPath: ")).count();
        assert_eq!((said(&first), said(&second)), (usize::from(!has_one), 0), "{mode}: {first:#?}");
        assert_eq!(second.writes(), 0, "{mode}");
    }
}

#[test]
fn where_it_fails_the_node_serves_and_tries_again() {
    let kernel = kernel();
    let mut node = on(&kernel, Kind::Nftables, &["eth*"]);
    node.full();
    kernel.set_interface("eth2", &[]);
    kernel.fail(Fault::new(Call::TablesCommit, PortErrorKind::Busy));
    node.proxier.host_changed(node.now);
    let report = node.pass();
    assert!(!report.has_failed() && report.applied.lacks.len() == 1, "{report:#?}");
    assert!(report.applied.lacks[0].to_string().starts_with("no fast path: "), "{report:#?}");
    // Devices may have changed again.
    kernel.fail(Fault::new(Call::TablesCommit, PortErrorKind::Busy));
    node.proxier.host_changed(node.now);
    assert_eq!(node.pass().applied.lacks.len(), 1);
    // A pass for changes does not ask again.
    let generation = || kernel.clone().ports().tables.generation().unwrap();
    let asked = generation();
    node.service("web", json!({"clusterIP": "10.96.0.10"}));
    let report = node.pass();
    assert!(!report.full && report.applied.lacks.is_empty() && report.writes() > 0, "{report:#?}");
    assert!(generation() > asked);
    assert!(written(&kernel).is_some_and(|table| !table.contains("eth2")));
    let report = node.full();
    assert!(report.applied.lacks.is_empty() && written(&kernel).is_some_and(|table| table.contains("eth2")));
    assert!(!written(&kernel).unwrap().contains("cali1"));
    // A proxy's device holds addresses alone.
    kernel.set_interface("kube-ipvs0", &[]);
    assert!(on(&kernel, Kind::Nftables, &["*"]).full().is_done());
    assert!(written(&kernel).is_some_and(|table| table.contains("cali1") && !table.contains("kube-ipvs0")));
    assert!(node.full().is_done());
    // No device, no table.
    for device in ["eth0", "eth1", "eth2"] {
        kernel.remove_interface(device);
    }
    node.full();
    assert_eq!(written(&kernel), None);
}

/// Without flow tables in the kernel there is nothing to plan, however often it is asked, and the reason is told.
#[test]
fn what_the_kernel_cannot_do_is_not_planned() {
    let mut kernel = kernel();
    kernel.fail(Fault::new(Call::TablesCheck, PortErrorKind::Unavailable).every());
    let mut node = on(&kernel, Kind::Nftables, &["*"]);
    for _ in 0..2 {
        let report = node.full();
        assert!(!report.has_failed() && report.applied.lacks.len() == 1, "{report:#?}");
        assert_eq!(written(&kernel), None);
    }
    node.service("web", json!({"clusterIP": "10.96.0.10"}));
    let report = node.pass();
    assert!(!report.full && report.applied.lacks.is_empty(), "{report:#?}");
    let (plan, report) = node.proxier.preview(node.now, &mut kernel.ports());
    assert!(plan.is_empty() && report.applied.lacks.len() == 1, "{report:#?}");
    kernel.clear_faults();
    let (plan, report) = node.proxier.preview(node.now, &mut kernel.ports());
    assert!(!plan.is_empty() && report.applied.lacks.is_empty(), "{report:#?}");
}

/// The table of an earlier configuration is looked for until it is gone, and a kernel without nf_tables has none.
#[test]
fn a_table_that_is_not_wanted_any_more_goes_in_the_end() {
    let kernel = kernel();
    on(&kernel, Kind::Iptables, &["*"]).full();
    let mut node = on(&kernel, Kind::Iptables, &[]);
    kernel.fail(Fault::new(Call::TablesCommit, PortErrorKind::Busy));
    assert_eq!(node.full().applied.lacks.len(), 1);
    assert!(written(&kernel).is_some());
    assert!(node.full().applied.lacks.is_empty() && written(&kernel).is_none());
    kernel.fail(Fault::new(Call::TablesTable, PortErrorKind::Unavailable).every());
    let report = on(&kernel, Kind::Iptables, &[]).full();
    assert!(report.applied.lacks.is_empty(), "{report:#?}");
}

#[test]
fn a_foreign_table_of_its_name_stays() {
    let mut kernel = kernel();
    add_table(&kernel, "inet proxier-fast-path");
    for interfaces in [&["*"][..], &[]] {
        let report = on(&kernel, Kind::Nftables, interfaces).full();
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
    let mut node = on(&kernel, Kind::Iptables, &["eth0"]);
    let (plan, _) = node.proxier.preview(node.now, &mut kernel.ports());
    let names = Names::new(node.proxier.store(), node.proxier.desired());
    let steps: Vec<String> = plan.steps(&names).map(|step| step.to_string()).collect();
    assert!(steps.contains(&format!("+ table {TABLE} fast path by eth0")), "{steps:#?}");
    assert_eq!(written(&kernel), None);
    node.full();
    assert!(cleanup(&Config::default(), None, &mut kernel.ports()).is_done());
    assert_eq!(written(&kernel), None);
}

#[test]
fn settings_are_checked() {
    let check = |fast: Value| {
        let (config, rejections) = checked(json!({ "fastPath": fast }));
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
