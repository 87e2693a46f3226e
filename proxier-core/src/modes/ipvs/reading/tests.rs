//! When one read of the virtual servers is enough.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::collections::BTreeSet;

use ipset::Element;
use ipvs::model::{ObservedRealServer, Scheduler, Timeouts, VirtualServer, VirtualServerConfig};
use ipvs::{Operation, VirtualServerKey};

use super::*;
use crate::modes::ipvs::index::Recorded;
use crate::modes::ipvs::sets::NamedSet;
use crate::ports::{ItemFailures, PortError};
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
    fn snapshot(&mut self) -> Result<Snapshot, PortError> {
        self.looks.push("all");
        Ok(snapshot(&self.there))
    }

    fn snapshot_once(&mut self) -> Result<Snapshot, PortError> {
        self.looks.push("once");
        Ok(snapshot(&self.shown))
    }

    fn is_still(&mut self, _: &Snapshot) -> Result<bool, PortError> {
        self.looks.push("still");
        Ok(self.shown == self.there)
    }

    fn real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<ObservedRealServer>, PortError> {
        panic!("{key}")
    }

    fn run(&mut self, operations: &[Operation]) -> ItemFailures {
        panic!("{operations:?}")
    }

    fn timeouts(&mut self) -> Result<Timeouts, PortError> {
        panic!()
    }

    fn set_timeouts(&mut self, timeouts: &TimeoutsUpdate) -> Result<(), PortError> {
        panic!("{timeouts:?}")
    }
}

/// All sets exist; one may have an entry.
struct Entries(Option<(SetKey, Element)>);

impl Sets for Entries {
    fn entries(&mut self, set: NamedSet) -> Result<Option<BTreeSet<Element>>, PortError> {
        Ok(Some(self.0.iter().filter(|(of, _)| *of == set.key).map(|(_, element)| element.clone()).collect()))
    }

    fn create(&mut self, set: NamedSet, _: usize) -> Result<(), PortError> {
        panic!("{set}")
    }

    fn add(&mut self, set: NamedSet, _: &[&Element]) -> ItemFailures {
        panic!("{set}")
    }

    fn delete(&mut self, set: NamedSet, _: &[&Element]) -> ItemFailures {
        panic!("{set}")
    }

    fn replace(&mut self, set: NamedSet, _: &[&Element]) -> Result<(), PortError> {
        panic!("{set}")
    }

    fn destroy(&mut self, set: NamedSet) -> Result<(), PortError> {
        panic!("{set}")
    }
}

/// Number of virtual servers read with nothing desired, and the calls that read them.
fn look(shown: &[&str], there: &[&str], mark: bool, is_settled: bool) -> (usize, Vec<&'static str>) {
    let keys = |of: &[&str]| of.iter().map(|place| VirtualServerKey::tcp(place.parse().unwrap())).collect::<Vec<_>>();
    let mut kernel = Kernel { shown: keys(shown), there: keys(there), looks: Vec::new() };
    let set = SetKey::new(crate::net::Family::V4, crate::modes::ipvs::sets::SetKind::NodePortServed);
    let served = ipset::Entry::parse(ipset::SetType::HashIpPort, "10.0.0.1,tcp:80").unwrap().element;
    let mut sets = Entries(mark.then_some((set, served)));
    let (host, config) = (HostAddresses::default(), Config::default());
    let nothing = Indexed::new(Recorded::new(&config));
    let wanted = nothing.wanted();
    let (observed, unread) = read(Records::Sets(&mut sets), &mut kernel, (&host, &config), &wanted, is_settled);
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
