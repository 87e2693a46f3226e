//! Ports that record the calls.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipset::Element;
use ipvs::model::{ObservedRealServer, Snapshot, Timeouts, TimeoutsUpdate};
use ipvs::{Operation, VirtualServerKey};
use proxier_core::fake::FakeKernel;
use proxier_core::ports::{Ipvs, ItemFailures, Links, NamedSet, Ports, Result, SetKey, Sets};
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
            ..ports
        });
        self.0 = ipvs.into_iter().chain(sets).chain(links).collect();
        answer
    }
}

/// Methods that are not recorded.
macro_rules! pass_on {
    ($($name:ident($($given:ident: $of:ty),*) -> $answer:ty;)*) => {$(
        fn $name(&mut self, $($given: $of),*) -> $answer {
            self.port.$name($($given),*)
        }
    )*};
}

struct Watched<'a, P: ?Sized> {
    port: &'a mut P,
    log: &'a mut Vec<Write>,
}

impl Ipvs for Watched<'_, dyn Ipvs + '_> {
    pass_on! {
        snapshot() -> Result<Snapshot>;
        real_servers(key: &VirtualServerKey) -> Result<Vec<ObservedRealServer>>;
        timeouts() -> Result<Timeouts>;
        set_timeouts(timeouts: &TimeoutsUpdate) -> Result<()>;
    }

    fn run(&mut self, operations: &[&Operation]) -> ItemFailures {
        let failures = self.port.run(operations);
        let done = operations.iter().enumerate().map(|(place, of)| Write::Ipvs(**of, !failures.contains_key(&place)));
        self.log.extend(done);
        failures
    }
}

impl Sets for Watched<'_, dyn Sets + '_> {
    pass_on! {
        entries(set: NamedSet) -> Result<Option<BTreeSet<Element>>>;
        create(set: NamedSet, room: usize) -> Result<()>;
        add(set: NamedSet, elements: &[&Element]) -> ItemFailures;
        has_unfinished(set: NamedSet) -> Result<bool>;
    }

    fn delete(&mut self, set: NamedSet, elements: &[&Element]) -> ItemFailures {
        self.log.extend(elements.iter().map(|element| Write::DeleteEntry(set.key, (*element).clone())));
        self.port.delete(set, elements)
    }

    fn replace(&mut self, set: NamedSet, elements: &[&Element]) -> Result<()> {
        self.log.push(Write::Replace(set.key, elements.iter().map(|element| (*element).clone()).collect()));
        self.port.replace(set, elements)
    }

    fn destroy(&mut self, set: NamedSet) -> Result<()> {
        self.log.push(Write::Destroy);
        self.port.destroy(set)
    }
}

impl Links for Watched<'_, dyn Links + '_> {
    pass_on! {
        has_device(name: &str) -> Result<bool>;
        create_device(name: &str) -> Result<()>;
        addresses() -> Result<HostAddresses>;
        gateways() -> Result<BTreeSet<IpAddr>>;
        bind(device: &str, addresses: &[IpAddr]) -> ItemFailures;
    }

    fn delete_device(&mut self, name: &str) -> Result<()> {
        self.log.push(Write::DeleteDevice);
        self.port.delete_device(name)
    }

    fn unbind(&mut self, device: &str, addresses: &[IpAddr]) -> ItemFailures {
        self.log.extend(addresses.iter().copied().map(Write::Unbind));
        self.port.unbind(device, addresses)
    }
}
