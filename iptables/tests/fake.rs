//! The suite on the fake, and what only a fake can show: hosts of other kinds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test may stop at the first surprise, in its helper functions as well"
)]

#[macro_use]
mod suite;

use std::sync::Arc;

use iptables::fake::FakeHost;
use iptables::{
    Backend, BackendChoice, ErrorKind, Family, Iptables, ProgramVersion, Survey, System, TableName, Transaction,
};
use suite::{World, chain, rule};

struct Fake {
    host: Arc<FakeHost>,
    iptables: Iptables<Arc<FakeHost>>,
}

impl Fake {
    fn new(family: Family, backend: Backend) -> Self {
        let host = Arc::new(FakeHost::new());
        Self { iptables: Iptables::open(host.clone(), family, backend).unwrap(), host }
    }
}

impl World for Fake {
    type Runner = Arc<FakeHost>;

    fn iptables(&self) -> &Iptables<Arc<FakeHost>> {
        &self.iptables
    }

    fn create_sets(&self, sets: &[(String, &str)]) {
        self.host.set_ipsets(sets.iter().map(|(name, _)| name.clone()).collect());
    }

    fn saved(&self, args: &[&str]) -> String {
        use iptables::{Invocation, Runner};
        let stem = format!("{}-{}-save", self.family().program(), self.backend().program_suffix());
        let path = self.host.find(&stem).unwrap();
        let output =
            self.host.run(&Invocation::new(&path, args.iter().copied(), std::time::Duration::from_secs(1))).unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

fn on(family: Family, backend: Backend, test: impl FnOnce(&Fake)) {
    test(&Fake::new(family, backend));
}

suite_tests!();

#[test]
fn a_canary_tells_of_a_flush() {
    for backend in Backend::ALL {
        let world = Fake::new(Family::Ipv4, backend);
        suite::a_canary_tells_of_a_flush(&world, |w| w.host.flush(Family::Ipv4, w.backend()));
    }
}

fn write(host: &FakeHost, backend: Backend, table: TableName, name: &str) {
    let iptables = Iptables::open(host, Family::Ipv4, backend).unwrap();
    let mut change = Transaction::new();
    change.table(table).replace_chain(&chain(name), [rule("-j RETURN")]);
    iptables.restore(&change).unwrap();
}

#[test]
fn an_untouched_host_gets_its_default() {
    for backend in Backend::ALL {
        let host = FakeHost::new().with_default(backend);
        let iptables = Iptables::detect(&host, Family::Ipv6, BackendChoice::Detect).unwrap();
        assert_eq!((iptables.backend(), iptables.family()), (backend, Family::Ipv6));
    }
}

#[test]
fn the_back_end_in_use_is_chosen() {
    for backend in Backend::ALL {
        let host = FakeHost::new().with_default(backend.other());
        write(&host, backend, TableName::FILTER, "SOMEBODY");
        assert_eq!(Iptables::detect(&host, Family::Ipv4, BackendChoice::Detect).unwrap().backend(), backend);
        let error = Survey::take(&host).unwrap().choose(BackendChoice::Expect(backend.other())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MixedBackends);
        assert_eq!(Survey::take(&host).unwrap().choose(BackendChoice::Expect(backend)).unwrap(), backend);
        let forced = Iptables::detect(&host, Family::Ipv4, BackendChoice::Force(backend.other())).unwrap();
        assert_eq!(forced.backend(), backend.other());
    }
}

#[test]
fn both_in_use_is_refused_unless_the_kubelet_decides() {
    let host = FakeHost::new();
    write(&host, Backend::Legacy, TableName::FILTER, "ONE");
    write(&host, Backend::NfTables, TableName::FILTER, "TWO");
    let error = Iptables::detect(&host, Family::Ipv4, BackendChoice::Detect).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MixedBackends);
    assert!(error.to_string().contains("legacy has 1 rules, 1 chains, nf_tables has 1 rules, 1 chains"), "{error}");
    write(&host, Backend::Legacy, TableName::MANGLE, "KUBE-IPTABLES-HINT");
    assert_eq!(Iptables::detect(&host, Family::Ipv4, BackendChoice::Detect).unwrap().backend(), Backend::Legacy);
    write(&host, Backend::NfTables, TableName::MANGLE, "KUBE-KUBELET-CANARY");
    assert_eq!(
        Iptables::detect(&host, Family::Ipv4, BackendChoice::Detect).unwrap_err().kind(),
        ErrorKind::MixedBackends
    );
}

#[test]
fn a_kernel_without_legacy_tables() {
    let host = FakeHost::new().with_default(Backend::Legacy).without_kernel_tables(Backend::Legacy);
    assert_eq!(Iptables::detect(&host, Family::Ipv4, BackendChoice::Detect).unwrap().backend(), Backend::NfTables);
    let error = Iptables::detect(&host, Family::Ipv4, BackendChoice::Force(Backend::Legacy)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoKernelSupport);
    assert!(error.to_string().contains("since 6.17"), "{error}");
}

#[test]
fn a_kernel_without_nf_tables() {
    let host = FakeHost::new().without_kernel_tables(Backend::NfTables);
    assert_eq!(Iptables::detect(&host, Family::Ipv4, BackendChoice::Detect).unwrap().backend(), Backend::Legacy);
    let error = Iptables::detect(&host, Family::Ipv4, BackendChoice::Force(Backend::NfTables)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoKernelSupport);
}

#[test]
fn nf_tables_without_nft_compat() {
    let host = FakeHost::new().without_compat();
    let detected = |host: &FakeHost| Iptables::detect(host, Family::Ipv4, BackendChoice::Detect).map(|it| it.backend());
    assert_eq!(detected(&host).unwrap(), Backend::Legacy);
    // The default stays where legacy cannot do better, or nf_tables has rules.
    assert_eq!(
        detected(&FakeHost::new().without_compat().without_kernel_tables(Backend::Legacy)).unwrap(),
        Backend::NfTables
    );
    host.set_match("mark", false);
    assert_eq!(detected(&host).unwrap(), Backend::NfTables);
    host.set_match("mark", true);
    write(&host, Backend::NfTables, TableName::MANGLE, "KUBE-IPTABLES-HINT");
    assert_eq!(detected(&host).unwrap(), Backend::NfTables);
    // A lock that is held says nothing of the kernel.
    let host = FakeHost::new().with_default(Backend::Legacy);
    host.hold_lock(true);
    assert_eq!(detected(&host).unwrap_err().kind(), ErrorKind::LockTimeout);
    assert_eq!(detected(&FakeHost::new()).unwrap(), Backend::NfTables);
}

#[test]
fn programs_missing() {
    let host = FakeHost::new().without_programs(Backend::NfTables);
    assert_eq!(Iptables::open(&host, Family::Ipv4, Backend::NfTables).unwrap_err().kind(), ErrorKind::ProgramMissing);
    assert_eq!(Iptables::detect(&host, Family::Ipv4, BackendChoice::Detect).unwrap().backend(), Backend::Legacy);
    let host = host.without_programs(Backend::Legacy);
    assert_eq!(
        Iptables::detect(&host, Family::Ipv4, BackendChoice::Detect).unwrap_err().kind(),
        ErrorKind::ProgramMissing
    );
    assert!(iptables::Runner::find(&System::new(), "iptables-of-no-kind").is_none());
    assert!(iptables::Runner::find(&System::new().with_only_directory("relative/is/ignored"), "sh").is_some());
    assert!(iptables::Runner::find(&System::new().with_only_directory("/nowhere"), "sh").is_none());
}

#[test]
fn old_programs_are_used_as_they_need() {
    // Programs before 1.8 do not report the back end, and before 1.6.2 restore takes no lock.
    let host = FakeHost::new()
        .without_programs(Backend::NfTables)
        .with_version(Backend::Legacy, "v1.4.21")
        .with_default(Backend::Legacy);
    let iptables = Iptables::open(&host, Family::Ipv4, Backend::Legacy).unwrap();
    assert_eq!(iptables.version(), &ProgramVersion::parse("v1.4.21").unwrap());
    let mut change = Transaction::new();
    change.table(TableName::FILTER).chain(chain("OLD"));
    iptables.restore(&change).unwrap();
    let garbled = FakeHost::new().with_version(Backend::Legacy, "no version here");
    assert_eq!(
        Iptables::open(&garbled, Family::Ipv4, Backend::Legacy).unwrap_err().kind(),
        ErrorKind::UnsupportedProgram
    );
}

#[test]
fn a_lock_that_is_not_free() {
    let host = FakeHost::new();
    let iptables = Iptables::open(&host, Family::Ipv4, Backend::Legacy).unwrap();
    let mut change = Transaction::new();
    change.table(TableName::FILTER).chain(chain("LATER"));
    host.hold_lock(true);
    let error = iptables.restore(&change).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LockTimeout);
    assert!(error.is_retryable());
    host.hold_lock(false);
    iptables.restore(&change).unwrap();
    assert_eq!(host.writes(), 2);
}
