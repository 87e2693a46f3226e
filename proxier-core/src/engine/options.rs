//! Settings, and the mode that they select.

use std::time::Duration;

use super::schedule::Limits;
use crate::config::Config;
use crate::modes::shared::sysctls::HostSettings;
use crate::modes::{self, Mode, iptables, ipvs, nftables, userspace};
use crate::safeguard::MassRemoval;
use crate::service::NodeFacts;

/// Settings of a [`Reconciler`](super::Reconciler).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// Configuration of Service compilation and of the modes.
    pub config: Config,
    /// Settings of the host.
    pub host: HostSettings,
    /// The part of the kernel that serves Services.
    pub mode: modes::Kind,
    /// Settings of IPVS mode.
    pub ipvs: ipvs::IpvsOptions,
    /// Settings of iptables mode, restricted further by what the iptables programs report.
    pub iptables: iptables::IptablesOptions,
    /// Settings of userspace mode.
    pub userspace: userspace::UserspaceOptions,
    /// Intervals between passes.
    pub limits: Limits,
    /// Limits above which deletions are held back.
    pub mass_removal: MassRemoval,
    /// Time for which node ports are still served on an address that this host has lost. Default 10 s: a DHCP client, a
    /// restarting network manager or an administrator removes an address and gives it back, and connections survive.
    /// With 0 they end at once. An address that is missing when the first pass finds node ports on it gets the same
    /// time.
    pub address_grace: Duration,
    /// Keeps the nodes of a cluster from retrying together. Any number that differs from node to node.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            config: Config::default(),
            host: HostSettings::default(),
            mode: modes::Kind::default(),
            ipvs: ipvs::IpvsOptions::default(),
            iptables: iptables::IptablesOptions::default(),
            userspace: userspace::UserspaceOptions::default(),
            limits: Limits::default(),
            mass_removal: MassRemoval::default(),
            address_grace: Duration::from_secs(10),
            seed: 0,
        }
    }
}

impl Options {
    pub(super) fn new_mode(&self, facts: &NodeFacts) -> Box<dyn Mode> {
        match self.mode {
            modes::Kind::Ipvs => Box::new(ipvs::Mode::new(&self.config, &self.ipvs, self.seed)),
            modes::Kind::Nftables => Box::new(nftables::Mode::default()),
            modes::Kind::Iptables => {
                Box::new(iptables::Mode::new(facts, self.iptables, self.host.tcp_be_liberal, self.seed))
            }
            modes::Kind::Userspace => Box::new(userspace::Mode::new(&self.userspace)),
        }
    }
}
