//! Connection synchronisation on a kernel in memory: off, adopted, foreign, changed, refused, cleaned up. Daemons of a real kernel, and connections
//! that move between nodes, are in `kernel_traffic`.

use std::time::Duration;

use ipvs::model::{DaemonState, SyncDaemon};
use proxier_core::config::{Config, ConnectionSync, SyncRole};
use proxier_core::fake::{Call, FakeKernel, Fault};
use proxier_core::modes::cleanup::cleanup;
use proxier_core::modes::{Kind, Names};
use proxier_core::objects::ConfigObject;
use proxier_core::plan::report::Report;
use proxier_core::ports::PortErrorKind;
use proxier_core::reconciler::{Options, Reconciler};
use serde_json::{Value, json};

const STATES: [DaemonState; 2] = [DaemonState::Master, DaemonState::Backup];

fn kernel() -> FakeKernel {
    let kernel = FakeKernel::new();
    for device in ["eth0", "eth1"] {
        kernel.set_interface(device, &["192.0.2.10".parse().unwrap()]);
    }
    kernel
}

fn check(sync: &Value) -> (Option<ConnectionSync>, Vec<String>) {
    let object: ConfigObject = serde_json::from_value(json!({ "ipvs": { "connectionSync": sync } })).unwrap();
    let mut rejections = Vec::new();
    let config = Config::check(&object, &mut rejections);
    (config.ipvs.connection_sync, rejections.iter().map(ToString::to_string).collect())
}

fn options(sync: &Value) -> Options {
    let mut options = Options::default();
    let (checked, rejections) = check(sync);
    assert_eq!(rejections, [""; 0]);
    options.config.ipvs.connection_sync = checked;
    options
}

fn started(options: Options) -> Reconciler {
    let mut process = Reconciler::new("node-a", options, Duration::ZERO);
    process.start(Duration::ZERO);
    process
}

fn process(sync: &Value) -> Reconciler {
    started(options(sync))
}

fn pass(process: &mut Reconciler, kernel: &mut FakeKernel, at: u64) -> Report {
    process.request_full(Duration::from_secs(at));
    process.pass(&|| Duration::from_secs(at), &mut kernel.ports()).unwrap()
}

fn daemons(kernel: &FakeKernel) -> Vec<SyncDaemon> {
    kernel.ipvs().client().unwrap().list_daemons().unwrap()
}

/// State, interface and sync id of each daemon.
fn running(kernel: &FakeKernel) -> Vec<String> {
    let shown = |daemon: &SyncDaemon| format!("{} {} {}", daemon.state, daemon.interface, daemon.sync_id);
    daemons(kernel).iter().map(shown).collect()
}

fn start(kernel: &FakeKernel, daemon: &SyncDaemon) {
    kernel.ipvs().client().unwrap().start_daemon(daemon).unwrap();
}

fn stop(kernel: &FakeKernel, state: DaemonState) {
    kernel.ipvs().client().unwrap().stop_daemon(state).unwrap();
}

fn daemon(state: DaemonState, interface: &str, sync_id: u8) -> SyncDaemon {
    SyncDaemon::new(state, interface.parse().unwrap(), sync_id)
}

fn said(report: &Report) -> Vec<&str> {
    report.limited.iter().map(String::as_str).filter(|line| line.starts_with("ipvs.connectionSync: ")).collect()
}

fn drift(report: &Report) -> Vec<String> {
    report.drift.iter().map(ToString::to_string).collect()
}

#[test]
fn without_the_setting_the_kernel_is_not_asked() {
    let mut kernel = kernel();
    for state in STATES {
        start(&kernel, &daemon(state, "eth1", 3));
    }
    for call in [Call::IpvsSyncDaemons, Call::IpvsStartSyncDaemon, Call::IpvsStopSyncDaemon] {
        kernel.fail(Fault::new(call, PortErrorKind::Busy).every());
    }
    let mut process = started(Options::default());
    for at in [0, 60] {
        let report = pass(&mut process, &mut kernel, at);
        assert!(!report.has_failed() && said(&report).is_empty(), "{report:#?}");
    }
    assert_eq!(running(&kernel), ["master eth1 3", "backup eth1 3"]);
}

#[test]
fn both_daemons_are_planned_and_started_and_come_back() {
    let mut kernel = kernel();
    let mut process = process(&json!({ "interface": "eth0", "syncID": 7, "port": 8850 }));
    let (plan, _) = process.preview(Duration::ZERO, &mut kernel.ports());
    let names = Names::new(process.store(), process.desired());
    let steps: Vec<String> = plan.steps(&names).map(|step| step.to_string()).collect();
    for state in STATES {
        assert!(steps.contains(&format!("+ sync daemon {state} on eth0, sync id 7, port 8850")), "{steps:#?}");
    }
    let master = plan.steps(&names).find(|step| step.name == "master").unwrap();
    let as_json = serde_json::to_value(&master).unwrap();
    assert_eq!((&as_json["action"], &as_json["part"]), (&json!("add"), &json!("syncDaemon")));
    assert_eq!(daemons(&kernel), []);

    assert_eq!(pass(&mut process, &mut kernel, 0).drift, []);
    assert_eq!(running(&kernel), ["master eth0 7", "backup eth0 7"]);
    assert!(daemons(&kernel).iter().all(|daemon| (daemon.port, daemon.ttl) == (Some(8850), Some(1))));
    assert_eq!(pass(&mut process, &mut kernel, 60).writes(), 0);

    // Another program stops one, and starts the other with another port.
    stop(&kernel, DaemonState::Master);
    stop(&kernel, DaemonState::Backup);
    start(&kernel, &daemon(DaemonState::Backup, "eth0", 7));
    let report = pass(&mut process, &mut kernel, 120);
    let repaired =
        ["+ sync daemon master", "~ sync daemon backup"].map(|step| format!("{step} on eth0, sync id 7, port 8850"));
    assert_eq!(drift(&report), repaired);
    assert!(daemons(&kernel).iter().all(|daemon| daemon.port == Some(8850)) && daemons(&kernel).len() == 2);
    assert_eq!(pass(&mut process, &mut kernel, 180).writes(), 0);
}

#[test]
fn running_daemons_are_adopted_and_follow_the_configuration() {
    let mut kernel = kernel();
    for state in STATES {
        start(&kernel, &daemon(state, "eth0", 7));
    }
    kernel.fail(Fault::new(Call::IpvsStopSyncDaemon, PortErrorKind::Other).every());
    let report = pass(&mut process(&json!({ "interface": "eth0", "syncID": 7 })), &mut kernel, 0);
    assert!(said(&report).is_empty() && report.applied.failures.is_empty(), "{report:#?}");
    kernel.clear_faults();
    // The next start: another role and another time to live.
    let sync = json!({ "interface": "eth0", "syncID": 7, "role": "backup", "ttl": 3 });
    let report = pass(&mut process(&sync), &mut kernel, 0);
    assert!(said(&report).is_empty() && report.drift.is_empty(), "{report:#?}");
    assert_eq!(running(&kernel), ["backup eth0 7"]);
    assert_eq!(daemons(&kernel)[0].ttl, Some(3));
}

#[test]
fn foreign_daemons_stay_and_are_reported_once() {
    let mut kernel = kernel();
    for (state, interface, sync_id) in [(DaemonState::Master, "eth1", 7), (DaemonState::Backup, "eth0", 3)] {
        start(&kernel, &daemon(state, interface, sync_id));
    }
    let mut process = process(&json!({ "interface": "eth0", "syncID": 7 }));
    let report = pass(&mut process, &mut kernel, 0);
    let lines = said(&report);
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(lines[0].contains("master of another program stays, on eth1, sync id 7, "), "{lines:#?}");
    assert!(
        lines[0].contains("not synchronised on eth0, sync id 7; ")
            && lines[0].ends_with("(ipvsadm --stop-daemon master)")
    );
    assert!(lines[1].contains("backup of another program stays, on eth0, sync id 3, "), "{lines:#?}");
    let report = pass(&mut process, &mut kernel, 60);
    assert_eq!((said(&report), report.writes(), report.has_failed()), (vec![], 0, false));
    assert_eq!(running(&kernel), ["master eth1 7", "backup eth0 3"]);
    // Their program ends them: it was never ours, so that is no drift.
    for state in STATES {
        stop(&kernel, state);
    }
    assert_eq!(drift(&pass(&mut process, &mut kernel, 120)), [""; 0]);
    assert_eq!(running(&kernel), ["master eth0 7", "backup eth0 7"]);
}

#[test]
fn daemons_wait_for_their_device_and_go_with_it() {
    let mut kernel = kernel();
    kernel.remove_interface("eth0");
    let mut process = process(&json!({ "interface": "eth0" }));
    let [first, second] = [0, 60].map(|at| pass(&mut process, &mut kernel, at));
    assert_eq!(said(&first), ["ipvs.connectionSync: no connection is synchronised until there is a device eth0"]);
    assert!(said(&second).is_empty() && daemons(&kernel).is_empty());
    // A changed device is enough, without a full pass.
    kernel.set_interface("eth0", &["192.0.2.10".parse().unwrap()]);
    process.host_changed(Duration::from_secs(65));
    process.pass(&|| Duration::from_secs(65), &mut kernel.ports()).unwrap();
    assert_eq!(running(&kernel), ["master eth0 0", "backup eth0 0"]);
    kernel.remove_interface("eth0");
    let report = pass(&mut process, &mut kernel, 120);
    assert_eq!((said(&report).len(), report.drift, daemons(&kernel)), (1, vec![], vec![]));
    kernel.set_interface("eth0", &[]);
    let report = pass(&mut process, &mut kernel, 180);
    assert_eq!((said(&report).len(), report.drift, daemons(&kernel).len()), (0, vec![], 2));
}

#[test]
fn a_refusal_is_reported_once_and_the_node_serves() {
    let mut kernel = kernel();
    let mut process = process(&json!({ "interface": "eth0", "role": "master" }));
    for (call, at) in [(Call::IpvsSyncDaemons, 0), (Call::IpvsStartSyncDaemon, 120)] {
        kernel.fail(Fault::new(call, PortErrorKind::Unavailable).every());
        let [first, second] = [at, at + 60].map(|at| pass(&mut process, &mut kernel, at));
        assert!(!first.has_failed() && first.is_done() && said(&first).len() == 1, "{first:#?}");
        assert!(said(&second).is_empty() && daemons(&kernel).is_empty(), "{second:#?}");
        kernel.clear_faults();
    }
    pass(&mut process, &mut kernel, 240);
    assert_eq!(running(&kernel), ["master eth0 0"]);
    // A lost answer, once somebody stopped it: the daemon runs, and nothing is done twice.
    stop(&kernel, DaemonState::Master);
    kernel.fail(Fault::new(Call::IpvsStartSyncDaemon, PortErrorKind::Unknown).takes_effect());
    pass(&mut process, &mut kernel, 300);
    let report = pass(&mut process, &mut kernel, 360);
    assert_eq!((report.writes(), running(&kernel)), (0, vec!["master eth0 0".to_owned()]));
}

#[test]
fn other_modes_say_what_keeps_connections_there() {
    for mode in [Kind::Nftables, Kind::Iptables, Kind::Userspace] {
        let mut kernel = kernel();
        let mut options = options(&json!({ "interface": "eth0" }));
        options.mode = mode;
        let mut process = started(options);
        let [first, second] = [0, 60].map(|at| pass(&mut process, &mut kernel, at));
        assert!(said(&first)[0].starts_with(&format!("ipvs.connectionSync: not in {mode} mode: ")), "{first:#?}");
        assert!(said(&second).is_empty() && daemons(&kernel).is_empty());
    }
}

#[test]
fn a_cleanup_stops_the_daemons_that_the_configuration_names() {
    let mut kernel = kernel();
    let options = options(&json!({ "interface": "eth0", "syncID": 7, "role": "master" }));
    pass(&mut started(options.clone()), &mut kernel, 0);
    start(&kernel, &daemon(DaemonState::Backup, "eth1", 3));
    // Without the setting none is known to be ours, and the cleanup says so; a change of mode does not ask.
    let cleaned = cleanup(&Config::default(), None, &mut kernel.ports());
    assert!(cleaned.is_done() && cleaned.left.len() == 2, "{cleaned:#?}");
    assert!(cleaned.left[0].starts_with("sync daemon master on eth0, sync id 7, "), "{cleaned:#?}");
    assert!(cleanup(&Config::default(), Some(Kind::Nftables), &mut kernel.ports()).left.is_empty());
    cleanup(&options.config, Some(Kind::Ipvs), &mut kernel.ports());
    assert_eq!(running(&kernel), ["master eth0 7", "backup eth1 3"]);
    let cleaned = cleanup(&options.config, Some(Kind::Nftables), &mut kernel.ports());
    assert!(cleaned.is_done() && cleaned.left.is_empty(), "{cleaned:#?}");
    assert_eq!(running(&kernel), ["backup eth1 3"]);
    let cleaned = cleanup(&options.config, None, &mut kernel.ports());
    assert_eq!((cleaned.is_done(), cleaned.left.len()), (true, 1), "{cleaned:#?}");
}

#[test]
fn settings_are_checked() {
    let full = json!({
        "interface": "bond0.1204", "syncID": 255, "role": "backup", "group": "ff02::81", "port": 65535, "ttl": 255, "maxLength": 1024,
    });
    let (sync, rejections) = check(&full);
    let sync = sync.unwrap();
    assert_eq!((rejections, sync.role, sync.sync_id, sync.port), (vec![], SyncRole::Backup, 255, Some(65535)));
    for (key, value, range) in [
        ("interface", json!(""), "not a device's name of 1 to 15 characters"),
        ("interface", json!("a-name-of-16-byt"), "not a device's name of 1 to 15 characters"),
        ("syncID", json!(256), "not 0 to 255"),
        ("syncID", json!(-1), "not 0 to 255"),
        ("role", json!("leader"), "not both, master or backup"),
        ("group", json!("192.0.2.1"), "not a multicast address"),
        ("group", json!("all"), "not a multicast address"),
        ("port", json!(0), "not 1 to 65535"),
        ("port", json!(65536), "not 1 to 65535"),
        ("ttl", json!(0), "not 1 to 255"),
        ("ttl", json!(256), "not 1 to 255"),
        ("maxLength", json!(1023), "not 1024 to 65507"),
        ("maxLength", json!(65508), "not 1024 to 65507"),
    ] {
        let mut bad = full.clone();
        bad[key] = value.clone();
        let (sync, rejections) = check(&bad);
        assert!(sync.is_none() && rejections.len() == 1, "{bad}: {rejections:?}");
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let shown = if shown.is_empty() { "\"\"" } else { &shown };
        assert!(rejections[0].contains(&format!("ipvs.connectionSync.{key} {shown}: {range}")), "{rejections:?}");
    }
}
