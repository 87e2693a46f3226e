//! Reads the state of a kernel, without the code under test.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipvs::model::{VirtualServerConfig, Weight};
use ipvs::{RealServer, RealServerKey, VirtualServerKey};
use proxier_core::config::NamePrefix;
use proxier_core::fake::FakeKernel;
use proxier_core::modes::ipvs::wanted::Wanted;
use proxier_core::ports::SetKey;
use proxier_core::sketch::KernelState;

/// State of a kernel as a whole, and its virtual servers, addresses of the dummy device, and sets.
pub(crate) struct Held {
    pub(crate) state: KernelState,
    pub(crate) servers: BTreeMap<VirtualServerKey, (VirtualServerConfig, BTreeMap<RealServerKey, RealServer>)>,
    pub(crate) device: bool,
    pub(crate) addresses: BTreeSet<IpAddr>,
}

/// Whether a virtual server was made by [`foreign`](super::foreign).
pub(crate) fn is_foreign(key: &VirtualServerKey) -> bool {
    match key {
        VirtualServerKey::Fwmark { .. } => true,
        VirtualServerKey::Address { addr: IpAddr::V4(addr), .. } => addr.octets().starts_with(&[172, 30]),
        VirtualServerKey::Address { addr: IpAddr::V6(addr), .. } => addr.segments().starts_with(&[0xfd30]),
    }
}

impl Held {
    pub(crate) fn of(kernel: &FakeKernel) -> Self {
        let state = kernel.state();
        let snapshot = kernel.ipvs().snapshot().unwrap();
        let servers = snapshot.entries.into_iter().map(|entry| {
            let server = entry.virtual_server.server;
            let reals = entry.real_servers.iter().map(|real| (real.server.key, real.server)).collect();
            (server.key, (server.config, reals))
        });
        let device = state.devices.get("kube-ipvs0");
        Held {
            servers: servers.collect(),
            device: device.is_some(),
            addresses: device.into_iter().flatten().copied().collect(),
            state,
        }
    }

    pub(crate) fn has(&self, key: &VirtualServerKey, real: &RealServerKey) -> bool {
        self.servers.get(key).is_some_and(|(_, reals)| reals.contains_key(real))
    }

    /// Entries of a set; `None` if it does not exist.
    pub(crate) fn entries(&self, set: SetKey) -> Option<&BTreeSet<String>> {
        self.state.sets.get(&set.named(NamePrefix::KUBE).name()).map(|(_, entries)| entries)
    }

    /// Differences from the wanted state; a draining real server is none.
    pub(crate) fn differences(&self, wanted: &Wanted<'_>, orphans: &BTreeSet<VirtualServerKey>) -> Vec<String> {
        let mut differences = Vec::new();
        for (key, server) in wanted.servers() {
            let Some((config, reals)) = self.servers.get(&key) else {
                differences.push(format!("{key} is not there"));
                continue;
            };
            if *config != server.config {
                differences.push(format!("{key} is {config:?}"));
            }
            for real in server.real_servers.iter() {
                if reals.get(&real.key) != Some(&real) {
                    differences.push(format!("{key} -> {} is {:?}", real.key, reals.get(&real.key)));
                }
            }
            for (real, there) in reals.iter().filter(|(real, _)| server.real_servers.get(real).is_none()) {
                if there.config.weight != Weight::DRAIN {
                    differences.push(format!("{key} -> {real} is there"));
                }
            }
        }
        let gone = |key: &&VirtualServerKey| !wanted.has_server(key) && !is_foreign(key);
        for key in self.servers.keys().filter(gone).filter(|key| !orphans.contains(key)) {
            differences.push(format!("{key} is there"));
        }
        if !self.device {
            differences.push("no device".to_owned());
        }
        // Addresses that another interface has too may stay.
        let addresses = self.addresses.iter().copied().filter(|address| !wanted.is_elsewhere(*address));
        if !addresses.eq(wanted.addresses().filter(|address| !wanted.is_elsewhere(*address))) {
            differences.push(format!("addresses {:?}", self.addresses));
        }
        for set in [proxier_core::net::Family::V4, proxier_core::net::Family::V6].into_iter().flat_map(SetKey::all) {
            let wanted: BTreeSet<String> = wanted.entries(set).map(ToString::to_string).collect();
            if self.entries(set) != Some(&wanted) {
                differences.push(format!("set {set:?} is {:?}, not {wanted:?}", self.entries(set)));
            }
        }
        differences
    }
}

/// Marks that show that a virtual server is own.
pub(crate) mod marks {
    use std::collections::BTreeSet;

    use ipvs::VirtualServerKey;
    use ipvs::model::Protocol;

    use super::{Held, is_foreign};

    /// Own virtual servers without any mark. An address of the dummy device marks them if no set has that address: with some of its ports in a set,
    /// those at the rest are foreign.
    pub(crate) fn missing(held: &Held) -> BTreeSet<VirtualServerKey> {
        let is_marked = |key: &&VirtualServerKey| {
            let VirtualServerKey::Address { protocol, addr, port } = **key else { return false };
            let name = match protocol {
                Protocol::Tcp => "tcp",
                Protocol::Udp => "udp",
                _ => "sctp",
            };
            let kube = if addr.is_ipv4() { "KUBE-" } else { "KUBE-6-" };
            let at = format!("{addr},{name}:{port}");
            let sets = [
                "CLUSTER-IP",
                "EXTERNAL-IP",
                "EXTERNAL-IP-LOCAL",
                "LOAD-BALANCER",
                "NODE-PORT-SERVED",
                "NODE-PORT-SCTP-HASH",
            ];
            let is_known = |elements: &BTreeSet<String>| elements.iter().any(|of| of.starts_with(&format!("{addr},")));
            let mut entries = sets.into_iter().filter_map(|set| held.state.sets.get(&format!("{kube}{set}")));
            let is_bound = held.addresses.contains(&addr) && !entries.clone().any(|(_, elements)| is_known(elements));
            is_bound || entries.any(|(_, elements)| elements.contains(&at))
        };
        held.servers.keys().filter(|key| !is_foreign(key) && !is_marked(key)).copied().collect()
    }
}
