//! When one read of the virtual servers is enough.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use ipvs::model::{ObservedRealServer, Scheduler, Timeouts, VirtualServer, VirtualServerConfig};
use ipvs::{Operation, VirtualServerKey};

use super::*;
use crate::modes::ipvs::guards::read_ipsets;
use crate::modes::ipvs::wanted::Recorded;
use crate::ports::{ItemFailures, Result, SetKey};
use crate::service::Indexed;

/// Virtual servers in the kernel, and those that a disturbed read returns.
struct Kernel {
    shown: Vec<VirtualServerKey>,
    there: Vec<VirtualServerKey>,
    looks: Vec<&'static str>,
}

fn snapshot(keys: &[VirtualServerKey]) -> Snapshot {
    let mut client = ipvs::fake::FakeIpvs::new().client().unwrap();
    for key in keys {
        let config = VirtualServerConfig::new(Scheduler::RoundRobin);
        client.add_virtual_server(&VirtualServer { key: *key, config }).unwrap();
    }
    client.snapshot().unwrap()
}

impl Ipvs for Kernel {
    fn snapshot(&mut self) -> Result<Snapshot> {
        self.looks.push("all");
        Ok(snapshot(&self.there))
    }

    fn snapshot_once(&mut self) -> Result<Snapshot> {
        self.looks.push("once");
        Ok(snapshot(&self.shown))
    }

    fn is_still(&mut self, _: &Snapshot) -> Result<bool> {
        self.looks.push("still");
        Ok(self.shown == self.there)
    }

    fn real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<ObservedRealServer>> {
        panic!("{key}")
    }

    fn run(&mut self, operations: &[&Operation]) -> ItemFailures {
        panic!("{operations:?}")
    }

    fn timeouts(&mut self) -> Result<Timeouts> {
        panic!()
    }

    fn set_timeouts(&mut self, timeouts: &TimeoutsUpdate) -> Result<()> {
        panic!("{timeouts:?}")
    }
}

/// Number of virtual servers read with nothing desired, and the calls that read them.
fn look(shown: &[&str], there: &[&str], mark: bool, is_settled: bool) -> (usize, Vec<&'static str>) {
    let keys = |of: &[&str]| of.iter().map(|place| VirtualServerKey::tcp(place.parse().unwrap())).collect::<Vec<_>>();
    let mut kernel = Kernel { shown: keys(shown), there: keys(there), looks: Vec::new() };
    let set = SetKey::new(crate::net::Family::V4, crate::ports::SetKind::NodePortServed);
    let served = ipset::Entry::parse(ipset::SetType::HashIpPort, "10.0.0.1,tcp:80").unwrap().element;
    let (host, config) = (HostAddresses::default(), Config::default());
    let mut fake = crate::fake::FakeKernel::new();
    let Ports { sets, links, .. } = fake.ports();
    for set in config.families.iter().flat_map(SetKey::all) {
        sets.create(set.named(config.names.prefix), 0).unwrap();
    }
    assert!(!mark || sets.add(set.named(config.names.prefix), &[&served]).is_empty());
    let nothing = Indexed::new(Recorded::new(&config));
    let wanted = nothing.wanted();
    let found = read_ipsets(&config, sets);
    let (observed, unread) = read(found, (&mut kernel, links, None), (&host, &config), &wanted, is_settled);
    assert_eq!(unread, []);
    (observed.virtual_servers.len(), kernel.looks)
}

#[test]
fn one_reading_is_enough_when_nothing_is_to_be_done() {
    assert_eq!(look(&[], &[], false, true), (0, vec!["once"]));
    // Another program's.
    assert_eq!(look(&["10.0.0.1:80"], &["10.0.0.1:80"], false, true), (1, vec!["once"]));
}

#[test]
fn a_server_that_would_lose_its_mark_is_looked_for_again() {
    assert_eq!(look(&[], &["10.0.0.1:80"], true, true), (1, vec!["once", "still", "all"]));
    assert_eq!(look(&["10.0.0.1:80"], &["10.0.0.1:80"], true, true), (1, vec!["once", "still"]));
}

#[test]
fn the_first_reading_is_complete() {
    assert_eq!(look(&[], &["10.0.0.1:80"], false, false), (1, vec!["once", "still", "all"]));
    assert_eq!(look(&[], &[], false, false), (0, vec!["once", "still"]));
}
