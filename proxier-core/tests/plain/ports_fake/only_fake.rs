//! Crashes, meetings and what is missing, which only the fake kernel has on demand.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ipset::Element;
use iptables::fake::FakeHost;
use iptables::{Backend, BackendChoice, ChainName, Invocation, Limits, Output, Rule, Runner, TableName, Transaction};
use ipvs::{Operation, Scheduler, VirtualServer, VirtualServerKey};
use proxier_core::config::NamePrefix;
use proxier_core::fake::FakeKernel;
use proxier_core::kernel::RulesPort;
use proxier_core::net::Family;
use proxier_core::ports::{NamedSet, PortErrorKind, Rules as _, SetKey, SetKind};

use crate::ports::sets::service;
use crate::ports::{World as _, ips, kinds};

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

fn two_tables() -> Transaction {
    let mut change = Transaction::new();
    for table in [TableName::NAT, TableName::FILTER] {
        change.table(table).replace_chain(&ChainName::new("ONE").unwrap(), [Rule::parse("-j RETURN").unwrap()]);
    }
    change
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
        assert_eq!(kernel.ports().sets.add(SET, &wanted[..20]), [].into());
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
fn what_is_missing_is_unavailable_and_the_rest_goes_on() {
    let mut kernel = FakeKernel::new();
    kernel.set_dummy_present(false);
    kernel.ipvs().set_present(false);
    let ports = kernel.ports();
    assert_eq!(ports.links.create_device("kube-ipvs0").unwrap_err().kind(), PortErrorKind::Unavailable);
    assert_eq!(ports.ipvs.snapshot().unwrap_err().kind(), PortErrorKind::Unavailable);
    let servers = servers(2);
    let servers: Vec<&Operation> = servers.iter().collect();
    assert_eq!(kinds(&ports.ipvs.run(&servers)), [(0, PortErrorKind::Unavailable), (1, PortErrorKind::Unavailable)]);
    ports.sets.create(SET, 1).unwrap();
    // The module is loaded later, and removed while a connection is open.
    kernel.ipvs().set_present(true);
    assert_eq!(kernel.ports().ipvs.run(&servers), [].into());
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

/// Each restore waits a while for another one, and notes how many run at the same time.
#[derive(Default)]
struct Meeting {
    host: FakeHost,
    /// Longest wait for the other restore, in milliseconds.
    patience: usize,
    running: AtomicUsize,
    most: AtomicUsize,
    /// How long a listing takes.
    listing: Duration,
    listings: AtomicUsize,
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
        } else if invocation.program.to_string_lossy().ends_with("save") {
            self.listings.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(self.listing);
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
        let all = [transaction];
        let outcomes = port.restore_families(&[(Family::V4, &all), (Family::V6, &all)]);
        assert_eq!(outcomes, [Ok(()), Ok(())]);
        assert_eq!(host.most.load(Ordering::SeqCst), most, "{backend}");
        for family in Family::ALL {
            assert!(port.dump(family).unwrap().has_chain(&TableName::NAT, "MINE"), "{backend} {family:?}");
        }
    }
}

#[test]
fn a_listing_that_takes_long_is_used_all_the_same() {
    let list = |before: fn(&mut RulesPort<_>)| {
        let host = Arc::new(Meeting { listing: Duration::from_millis(3_100), ..Meeting::default() });
        let choice = BackendChoice::Force(Backend::NfTables);
        let mut port = RulesPort::new(host.clone(), choice, Limits::default());
        before(&mut port);
        for family in Family::ALL {
            port.dump(family).unwrap();
        }
        assert_eq!(host.listings.load(Ordering::SeqCst), 2);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| list(|port| port.list_meanwhile(&Family::ALL, &mut || ())));
        scope.spawn(|| list(|_| ()));
    });
}
