//! Failures, crashes and meetings, which only the fake kernel has on demand.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ipset::Element;
use iptables::fake::FakeHost;
use iptables::{Backend, BackendChoice, ChainName, Invocation, Limits, Output, Rule, Runner, TableName, Transaction};
use ipvs::{Operation, RealServer, Scheduler, VirtualServer, VirtualServerKey};
use proxier_core::config::NamePrefix;
use proxier_core::fake::{Call, FakeKernel, Fault};
use proxier_core::kernel::RulesPort;
use proxier_core::modes::ipvs::sets::{NamedSet, SetKey, SetKind};
use proxier_core::net::Family;
use proxier_core::ports::{PortErrorKind, Rules as _};

use crate::ports::sets::service;
use crate::ports::{World, at, ips, kinds};

const SET: NamedSet = SetKey { family: Family::V4, kind: SetKind::ClusterIp }.named(NamePrefix::KUBE);

fn servers(count: u16) -> Vec<Operation> {
    let key = |port| VirtualServerKey::tcp(format!("10.96.0.1:{port}").parse().unwrap());
    (1..=count).map(|port| Operation::AddVirtualServer(VirtualServer::new(key(port), Scheduler::RoundRobin))).collect()
}

/// Ports can be sent to the thread of a reconciler.
#[test]
fn ports_can_be_sent_to_a_thread() {
    fn is_send<T: Send>() {}
    is_send::<FakeKernel>();
    is_send::<proxier_core::kernel::KernelPorts>();
    is_send::<proxier_core::kernel::Monitor>();
}

#[test]
fn a_call_fails_before_or_after_it_took_effect() {
    let mut kernel = FakeKernel::new();
    kernel.fail(Fault::new(Call::LinksCreateDevice, PortErrorKind::Busy));
    assert_eq!(kernel.ports().links.create_device("kube-ipvs0").unwrap_err().kind(), PortErrorKind::Busy);
    assert!(!kernel.state().devices.contains_key("kube-ipvs0"));
    kernel.fail(Fault::new(Call::LinksCreateDevice, PortErrorKind::Unknown).takes_effect());
    assert_eq!(kernel.ports().links.create_device("kube-ipvs0").unwrap_err().kind(), PortErrorKind::Unknown);
    assert!(kernel.state().devices.contains_key("kube-ipvs0"));
    kernel.ports().links.create_device("kube-ipvs0").unwrap();
}

#[test]
fn the_nth_call_of_a_family_fails() {
    let mut kernel = FakeKernel::new();
    kernel.fail(Fault::new(Call::RulesDump, PortErrorKind::Busy).after_calls(1).family(Family::V6));
    let mut dump = |family| kernel.ports().rules.dump(family).map(drop).map_err(|error| error.kind());
    let outcomes = [Family::V6, Family::V4, Family::V6, Family::V6].map(&mut dump);
    assert_eq!(outcomes, [Ok(()), Ok(()), Err(PortErrorKind::Busy), Ok(())]);
    kernel.fail(Fault::new(Call::RulesDump, PortErrorKind::Unavailable).family(Family::V6).every());
    let mut dump = |family| kernel.ports().rules.dump(family).map(drop).map_err(|error| error.kind());
    let outcomes = [Family::V6, Family::V4, Family::V6].map(&mut dump);
    assert_eq!(outcomes, [Err(PortErrorKind::Unavailable), Ok(()), Err(PortErrorKind::Unavailable)]);
    kernel.clear_faults();
    kernel.ports().rules.dump(Family::V6).unwrap();
}

#[test]
fn the_nth_item_fails() {
    let mut kernel = FakeKernel::new();
    kernel.fail(Fault::new(Call::IpvsRun, PortErrorKind::Busy).item(3));
    kernel.fail(Fault::new(Call::IpvsRun, PortErrorKind::Unknown).item(5).takes_effect());
    let operations = servers(8);
    assert_eq!(kernel.ports().ipvs.run(&operations[..2]), []);
    let failures = kernel.ports().ipvs.run(&operations[2..]);
    assert_eq!(kinds(&failures), [(1, PortErrorKind::Busy), (3, PortErrorKind::Unknown)]);
    let ports: Vec<String> =
        kernel.saved_ipvs().iter().map(|line| line.split(' ').nth(2).unwrap().to_owned()).collect();
    assert_eq!(ports, [1, 2, 3, 5, 6, 7, 8].map(|port| format!("10.96.0.1:{port}")));
    // An operation that the kernel itself refuses keeps its index.
    kernel.fail(Fault::new(Call::IpvsRun, PortErrorKind::Busy).item(0));
    let failures = kernel.ports().ipvs.run(&operations[2..5]);
    assert_eq!(kinds(&failures), [(0, PortErrorKind::Busy), (2, PortErrorKind::AlreadyExists)]);
}

#[test]
fn writes_are_counted_by_port() {
    let mut kernel = FakeKernel::new();
    let key = VirtualServerKey::tcp(at("10.96.0.1:1"));
    let ports = kernel.ports();
    ports.ipvs.run(&servers(3));
    ports.ipvs.snapshot().unwrap();
    ports.ipvs.real_servers(&key).unwrap();
    ports.sets.create(SET, 1).unwrap();
    ports.sets.entries(SET).unwrap();
    ports.sets.add(SET, &[&service("10.96.0.1", 1), &service("10.96.0.1", 2)]);
    ports.links.create_device("kube-ipvs0").unwrap();
    ports.links.bind("kube-ipvs0", &ips(&["10.96.0.1"]));
    ports.links.addresses().unwrap();
    ports.sysctls.set("net/ipv4/ip_forward", "1").unwrap();
    ports.sysctls.get("net/ipv4/ip_forward").unwrap();
    ports.rules.dump(Family::V4).unwrap();
    let writes = kernel.writes();
    assert_eq!(
        (writes.ipvs, writes.sets, writes.rules, writes.links, writes.sysctls, writes.conntrack),
        (3, 3, 0, 2, 1, 0)
    );
    assert_eq!(writes.total(), 9);
    kernel.ports().rules.restore(Family::V4, &two_tables()).unwrap();
    assert_eq!(kernel.writes().rules, 2);
    kernel.ports().rules.restore(Family::V4, &Transaction::new()).unwrap();
    assert_eq!(kernel.writes().rules, 2);
}

fn two_tables() -> Transaction {
    let mut change = Transaction::new();
    for table in [TableName::NAT, TableName::FILTER] {
        change.table(table).replace_chain(&ChainName::new("ONE").unwrap(), [Rule::parse("-j RETURN").unwrap()]);
    }
    change
}

#[test]
fn a_process_dies_between_two_writes_wherever_they_are() {
    let key = VirtualServerKey::tcp(at("10.96.0.1:1"));
    // Operations are one write each, in order; those before the crash are found.
    for survived in 0..=9_u64 {
        let mut kernel = FakeKernel::new();
        kernel.crash_after(survived);
        let ports = kernel.ports();
        let mut failed = 0;
        failed += ports.ipvs.run(&servers(2)).len();
        failed += usize::from(ports.sets.create(SET, 1).is_err());
        failed += ports.sets.add(SET, &[&service("10.96.0.1", 1), &service("10.96.0.1", 2)]).len();
        failed += usize::from(ports.links.create_device("kube-ipvs0").is_err());
        failed += ports.links.bind("kube-ipvs0", &ips(&["10.96.0.1"])).len();
        let restored = ports.rules.restore(Family::V4, &two_tables());
        let state = kernel.state();
        let written = [
            state.ipvs.lines().count(),
            state.sets.len(),
            state.sets.values().map(|(_, entries)| entries.len()).sum(),
            usize::from(state.devices.contains_key("kube-ipvs0")),
            state.devices.get("kube-ipvs0").map_or(0, Vec::len),
            state.rules.values().map(|text| text.matches("-A ONE").count()).sum(),
        ];
        assert_eq!(written.iter().sum::<usize>(), usize::try_from(survived).unwrap(), "{written:?}");
        assert_eq!((failed, restored.is_err()), (7_usize.saturating_sub(survived.try_into().unwrap()), survived < 9));
        assert_eq!(kernel.has_crashed(), survived < 9);
        if kernel.has_crashed() {
            let ports = kernel.ports();
            assert!(ports.ipvs.snapshot().is_err() && ports.links.addresses().is_err());
            assert!(ports.ipvs.real_servers(&key).is_err() && ports.rules.dump(Family::V6).is_err());
        }
        kernel.restart();
        assert_eq!(kernel.state(), state);
        kernel.ports().rules.restore(Family::V4, &two_tables()).unwrap();
    }
}

/// No wanted entry that was there is ever missing, and a new process repairs the leftovers.
#[test]
fn a_process_dies_while_it_replaces_a_set() {
    let elements: Vec<Element> = (1..=40).map(|port| service("10.96.0.1", port)).collect();
    let wanted: Vec<&Element> = elements.iter().collect();
    let mut crashed = 0;
    for survived in 0..20 {
        let mut kernel = FakeKernel::new();
        kernel.create_set("create KUBE-CLUSTER-IP hash:ip,port maxelem 64");
        assert_eq!(kernel.ports().sets.add(SET, &wanted[..20]), []);
        kernel.crash_after(survived);
        let outcome = kernel.ports().sets.replace(SET, &wanted);
        assert_eq!(outcome.is_err(), kernel.has_crashed());
        crashed += u32::from(kernel.has_crashed());
        kernel.restart();
        let found = kernel.ports().sets.entries(SET).unwrap().unwrap();
        assert!(elements[..20].iter().all(|element| found.contains(element)));
        kernel.ports().sets.replace(SET, &wanted).unwrap();
        assert_eq!(kernel.ports().sets.entries(SET).unwrap().unwrap().len(), 40);
        kernel.ports().sets.destroy(SET).unwrap();
        assert!(kernel.state().sets.is_empty());
    }
    // The new set is created, filled, swapped in, and the old one destroyed, before an older leftover is destroyed.
    assert_eq!(crashed, 5);
}

#[test]
fn clones_share_the_kernel_and_states_compare() {
    let mut one = FakeKernel::new();
    let mut other = one.clone();
    assert_eq!(one.ports().ipvs.run(&servers(1)), []);
    assert_eq!(kinds(&other.ports().ipvs.run(&servers(1))), [(0, PortErrorKind::AlreadyExists)]);
    assert_eq!(one.state(), other.state());
    let mut third = FakeKernel::new();
    assert_ne!(one.state(), third.state());
    third.ports().ipvs.run(&servers(1));
    assert_eq!(one.state(), third.state());
    let real = RealServer::new(at("10.244.1.1:80"));
    let add = Operation::AddRealServer(VirtualServerKey::tcp(at("10.96.0.1:1")), real);
    assert_eq!(other.ports().ipvs.run(&[add]), []);
    assert_ne!(one.state(), third.state());
}

#[test]
fn what_is_missing_is_unavailable_and_the_rest_goes_on() {
    let mut kernel = FakeKernel::new();
    kernel.set_dummy_present(false);
    kernel.ipvs().set_present(false);
    let ports = kernel.ports();
    assert_eq!(ports.links.create_device("kube-ipvs0").unwrap_err().kind(), PortErrorKind::Unavailable);
    assert_eq!(ports.ipvs.snapshot().unwrap_err().kind(), PortErrorKind::Unavailable);
    assert_eq!(kinds(&ports.ipvs.run(&servers(2))), [(0, PortErrorKind::Unavailable), (1, PortErrorKind::Unavailable)]);
    ports.sets.create(SET, 1).unwrap();
    // The module is loaded later, and removed while a connection is open.
    kernel.ipvs().set_present(true);
    assert_eq!(kernel.ports().ipvs.run(&servers(2)), []);
    kernel.ipvs().set_present(false);
    assert_eq!(kernel.ports().ipvs.snapshot().unwrap_err().kind(), PortErrorKind::Unavailable);
    kernel.ipvs().set_present(true);
    assert_eq!(kernel.ports().ipvs.snapshot().unwrap().entries.len(), 0);
    kernel.set_ipv6(false);
    kernel.set_dummy_present(true);
    let ports = kernel.ports();
    ports.links.create_device("kube-ipvs0").unwrap();
    let failures = ports.links.bind("kube-ipvs0", &ips(&["10.96.0.1", "fd00::1"]));
    assert_eq!(kinds(&failures), [(1, PortErrorKind::Unavailable)]);
    kernel.ipvs().set_permitted(false);
    assert_eq!(kernel.ports().ipvs.snapshot().unwrap_err().kind(), PortErrorKind::Permission);
}

#[test]
fn a_held_lock_is_busy() {
    let make = || iptables::fake::FakeHost::new().with_default(iptables::Backend::Legacy);
    let mut kernel = FakeKernel::with_iptables(make);
    kernel.ports().rules.restore(Family::V4, &two_tables()).unwrap();
    kernel.with_host(|host| host.hold_lock(true));
    let error = kernel.ports().rules.restore(Family::V4, &two_tables()).unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Busy, "{error}");
    kernel.with_host(|host| host.hold_lock(false));
    kernel.ports().rules.restore(Family::V4, &two_tables()).unwrap();
}

#[test]
fn without_programs_rules_are_unavailable() {
    let make = || {
        let host = iptables::fake::FakeHost::new();
        host.without_programs(iptables::Backend::Legacy).without_programs(iptables::Backend::NfTables)
    };
    let mut kernel = FakeKernel::with_iptables(make);
    let rules = kernel.ports().rules;
    assert_eq!(rules.dump(Family::V4).unwrap_err().kind(), PortErrorKind::Unavailable);
    assert_eq!(rules.has_random_fully(Family::V6).unwrap_err().kind(), PortErrorKind::Unavailable);
    assert_eq!(rules.restore(Family::V6, &two_tables()).unwrap_err().kind(), PortErrorKind::Unavailable);
}

/// Readings are reused, but never longer than they are true.
#[test]
fn readings_are_as_new_as_the_kernel() {
    let mut kernel = FakeKernel::new();
    let mut other = kernel.clone();
    let entries = |kernel: &mut FakeKernel| kernel.ports().sets.entries(SET).unwrap().map(|entries| entries.len());
    let servers_of = |kernel: &mut FakeKernel| kernel.ports().ipvs.snapshot().unwrap().entries.len();
    assert_eq!((entries(&mut kernel), servers_of(&mut kernel)), (None, 0));
    // Another connection writes.
    other.ports().sets.create(SET, 1).unwrap();
    assert_eq!(entries(&mut kernel), Some(0));
    assert_eq!(other.ports().sets.add(SET, &[&service("10.96.0.1", 1)]), []);
    assert_eq!(entries(&mut kernel), Some(1));
    assert_eq!(other.ports().ipvs.run(&servers(2)), []);
    assert_eq!(servers_of(&mut kernel), 2);
    // A test writes behind the ports' back.
    let mut client = kernel.ipset().unwrap();
    client.flush_set(&"KUBE-CLUSTER-IP".parse().unwrap()).unwrap();
    assert_eq!(entries(&mut kernel), Some(0));
    client.destroy_set(&"KUBE-CLUSTER-IP".parse().unwrap()).unwrap();
    assert_eq!(entries(&mut kernel), None);
    kernel.ipvs().apply(&servers(3)[2]).unwrap();
    assert_eq!(servers_of(&mut kernel), 3);
    let delete = Operation::DeleteVirtualServer(VirtualServerKey::tcp(at("10.96.0.1:1")));
    kernel.ipvs().change_before(20, move |table| table.apply(&delete).unwrap());
    let counts: Vec<usize> = (0..20).map(|_| servers_of(&mut kernel)).collect();
    assert_eq!((counts[0], counts[19]), (3, 2));
    let (key, real) = (VirtualServerKey::tcp(at("10.96.0.1:2")), RealServer::new(at("10.244.1.1:80")));
    assert_eq!(kernel.ports().ipvs.run(&[Operation::AddRealServer(key, real)]), []);
    assert!(kernel.set_connections(&key, &real.key, 3, 4));
    let snapshot = kernel.ports().ipvs.snapshot().unwrap();
    let found = snapshot.entries.iter().flat_map(|entry| &entry.real_servers).next().unwrap();
    assert_eq!((found.active_connections, found.inactive_connections), (3, 4));
    // Arranged failures happen although nothing has changed.
    kernel.fail(Fault::new(Call::SetsEntries, PortErrorKind::Busy));
    assert_eq!(kernel.ports().sets.entries(SET).unwrap_err().kind(), PortErrorKind::Busy);
}

/// Each restore waits a while for another one, and notes how many run at the same time.
#[derive(Default)]
struct Meeting {
    host: FakeHost,
    /// Longest wait for the other restore, in milliseconds.
    patience: usize,
    running: AtomicUsize,
    most: AtomicUsize,
}

impl Runner for Meeting {
    fn find(&self, program: &str) -> Option<PathBuf> {
        self.host.find(program)
    }

    fn resolve(&self, program: &Path) -> PathBuf {
        self.host.resolve(program)
    }

    #[expect(clippy::disallowed_methods, reason = "a program takes real time")]
    fn run(&self, invocation: &Invocation) -> Result<Output, iptables::Error> {
        let is_restore = invocation.program.to_string_lossy().ends_with("restore");
        if is_restore && !invocation.args.iter().any(|arg| arg == "--test") {
            self.most.fetch_max(self.running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            for _ in (0..self.patience).take_while(|_| self.most.load(Ordering::SeqCst) < 2) {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.running.fetch_sub(1, Ordering::SeqCst);
        }
        self.host.run(invocation)
    }
}

/// The legacy programs share a lock, for which one would wait while the other writes, and give up in the end.
#[test]
fn families_are_restored_one_after_the_other_where_they_share_a_lock() {
    let meetings = [(Backend::Legacy, 300, 1), (Backend::NfTables, 20_000, 2)];
    for (backend, patience, most) in meetings {
        let host = Arc::new(Meeting { patience, ..Meeting::default() });
        let mut port = RulesPort::new(host.clone(), BackendChoice::Force(backend), Limits::default());
        let mut transaction = Transaction::new();
        transaction.table(TableName::NAT).replace_chain(&ChainName::new("MINE").unwrap(), []);
        let outcomes = port.restore_families(&[(Family::V4, &transaction), (Family::V6, &transaction)]);
        assert_eq!(outcomes, [Ok(()), Ok(())]);
        assert_eq!(host.most.load(Ordering::SeqCst), most, "{backend}");
        for family in Family::ALL {
            assert!(port.dump(family).unwrap().has_chain(&TableName::NAT, "MINE"), "{backend} {family:?}");
        }
    }
}
