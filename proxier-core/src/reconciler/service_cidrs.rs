//! Networks of cluster IPs: those that the cluster names, or else those of the configuration.

use std::collections::BTreeSet;

use super::Options;
use crate::net::Network;

/// Where networks of cluster IPs come from.
#[derive(Debug)]
pub(super) struct ServiceCidrs {
    /// Of the configuration, in IPVS mode and in userspace mode.
    ipvs: Vec<Network>,
    userspace: Vec<Network>,
    /// Of the cluster.
    found: BTreeSet<Network>,
}

impl ServiceCidrs {
    pub(super) fn new(options: &Options) -> Self {
        ServiceCidrs {
            ipvs: options.config.ipvs.service_cidrs.clone(),
            userspace: options.userspace.service_cidrs.clone(),
            found: BTreeSet::new(),
        }
    }

    /// Takes those of the cluster in place of the earlier ones. Returns whether anything changed. One that has all addresses is
    /// left out.
    pub(super) fn set(&mut self, networks: impl IntoIterator<Item = Network>) -> bool {
        let found = networks.into_iter().filter(|network| network.prefix_len() > 0).map(|network| network.trunc());
        let found: BTreeSet<Network> = found.collect();
        let differs = found != self.found;
        self.found = found;
        differs
    }

    pub(super) fn of_ipvs(&self) -> Vec<Network> {
        self.or(&self.ipvs)
    }

    pub(super) fn of_userspace(&self) -> Vec<Network> {
        self.or(&self.userspace)
    }

    fn or(&self, configured: &[Network]) -> Vec<Network> {
        if self.found.is_empty() { configured.to_vec() } else { self.found.iter().copied().collect() }
    }
}
