//! Ports that record the calls.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipset::Element;
use ipvs::model::{ObservedRealServer, Snapshot, Timeouts, TimeoutsUpdate};
use ipvs::{Operation, VirtualServerKey};
use proxier_core::fake::FakeKernel;
use proxier_core::modes::ipvs::sets::{NamedSet, SetKey};
use proxier_core::ports::{Ipvs, ItemFailures, Links, PortError, Ports, Sets};
use proxier_core::snapshot::HostAddresses;

/// A write, and whether it was reported as done.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    Ipvs(Operation, bool),
    DeleteEntry(SetKey, Element),
    Replace(SetKey, BTreeSet<Element>),
    Destroy,
    Unbind(IpAddr),
    DeleteDevice,
}

#[derive(Default)]
pub(crate) struct Log(pub(crate) Vec<Write>);

impl Log {
    /// Lends the kernel's ports to a call and records its writes.
    pub(crate) fn with<T>(&mut self, kernel: &mut FakeKernel, call: impl FnOnce(&mut Ports<'_>) -> T) -> T {
        let ports = kernel.ports();
        let (mut ipvs, mut sets, mut links) = (Vec::new(), Vec::new(), Vec::new());
        let answer = call(&mut Ports {
            ipvs: &mut Watched { port: ports.ipvs, log: &mut ipvs },
            sets: &mut Watched { port: ports.sets, log: &mut sets },
            links: &mut Watched { port: ports.links, log: &mut links },
            rules: ports.rules,
            sysctls: ports.sysctls,
            tables: ports.tables,
            conntrack: ports.conntrack,
            routes: ports.routes,
            relays: ports.relays,
        });
        self.0 = ipvs.into_iter().chain(sets).chain(links).collect();
        answer
    }
}

struct Watched<'a, P: ?Sized> {
    port: &'a mut P,
    log: &'a mut Vec<Write>,
}

impl Ipvs for Watched<'_, dyn Ipvs + '_> {
    fn snapshot(&mut self) -> Result<Snapshot, PortError> {
        self.port.snapshot()
    }

    fn real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<ObservedRealServer>, PortError> {
        self.port.real_servers(key)
    }

    fn run(&mut self, operations: &[&Operation]) -> ItemFailures {
        let failures = self.port.run(operations);
        let failed: BTreeSet<usize> = failures.iter().map(|failure| failure.index).collect();
        let done = operations.iter().enumerate().map(|(place, of)| Write::Ipvs(**of, !failed.contains(&place)));
        self.log.extend(done);
        failures
    }

    fn timeouts(&mut self) -> Result<Timeouts, PortError> {
        self.port.timeouts()
    }

    fn set_timeouts(&mut self, timeouts: &TimeoutsUpdate) -> Result<(), PortError> {
        self.port.set_timeouts(timeouts)
    }
}

impl Sets for Watched<'_, dyn Sets + '_> {
    fn entries(&mut self, set: NamedSet) -> Result<Option<BTreeSet<Element>>, PortError> {
        self.port.entries(set)
    }

    fn create(&mut self, set: NamedSet, room: usize) -> Result<(), PortError> {
        self.port.create(set, room)
    }

    fn add(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures {
        self.port.add(set, elements)
    }

    fn delete(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures {
        self.log.extend(elements.iter().map(|element| Write::DeleteEntry(set.key, (*element).clone())));
        self.port.delete(set, elements)
    }

    fn replace(&mut self, set: NamedSet, elements: &[&Element]) -> Result<(), PortError> {
        self.log.push(Write::Replace(set.key, elements.iter().map(|element| (*element).clone()).collect()));
        self.port.replace(set, elements)
    }

    fn has_unfinished(&mut self, set: NamedSet) -> Result<bool, PortError> {
        self.port.has_unfinished(set)
    }

    fn destroy(&mut self, set: NamedSet) -> Result<(), PortError> {
        self.log.push(Write::Destroy);
        self.port.destroy(set)
    }
}

impl Links for Watched<'_, dyn Links + '_> {
    fn has_device(&mut self, name: &str) -> Result<bool, PortError> {
        self.port.has_device(name)
    }

    fn create_device(&mut self, name: &str) -> Result<(), PortError> {
        self.port.create_device(name)
    }

    fn delete_device(&mut self, name: &str) -> Result<(), PortError> {
        self.log.push(Write::DeleteDevice);
        self.port.delete_device(name)
    }

    fn addresses(&mut self) -> Result<HostAddresses, PortError> {
        self.port.addresses()
    }

    fn gateways(&mut self) -> Result<BTreeSet<IpAddr>, PortError> {
        self.port.gateways()
    }

    fn bind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures {
        self.port.bind(device, addresses)
    }

    fn unbind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures {
        self.log.extend(addresses.iter().copied().map(Write::Unbind));
        self.port.unbind(device, addresses)
    }
}
