//! The state that IPVS must have for [`Desired`]: virtual servers, addresses on the dummy device, and set entries.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipset::Element;
use ipvs::{RealServerKey, VirtualServerKey};

use super::drain::{Drains, Policy};
use super::index::{Changed, Index, Recorded};
use super::servers::Server;
use super::sets::SetKey;
use crate::net::{EndpointKey, FrontendKey, Network, Protocol};
use crate::service::{Desired, Frontend, Indexed};
use crate::snapshot::ObjectKey;
use crate::time::Moment;

/// A firewall mark that the configuration requests ([`Config::splits_local`](crate::config::Config::splits_local)) and
/// a Service does not get. The Service is served without it.
///
/// Prints on one line.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MarkUnavailable {
    /// The Service.
    pub service: ObjectKey,
    /// The Frontends without it; never empty.
    pub frontends: Vec<FrontendKey>,
    /// Reason.
    pub reason: &'static str,
}

impl fmt::Display for MarkUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MarkUnavailable { service, frontends, reason } = self;
        let first = frontends.first().map(ToString::to_string).unwrap_or_default();
        let more = match frontends.len() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count.saturating_sub(1)),
        };
        let instead = "pods and this node get local endpoints too";
        write!(f, "Service {service}: ipvs.markSplit not for {first}{more}: {reason}; {instead}")
    }
}

/// The state that IPVS must have: [`Desired`] with its [`Index`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    pub(super) desired: &'a Desired,
    pub(super) index: &'a Index,
}

impl Index {
    /// The state that IPVS must have for these Frontends.
    pub fn wanted<'a>(&'a self, desired: &'a Desired) -> Wanted<'a> {
        Wanted { desired, index: self }
    }
}

impl Indexed<Recorded> {
    /// State that IPVS has to hold.
    pub fn wanted(&self) -> Wanted<'_> {
        self.index.index.wanted(&self.desired)
    }

    /// Takes the recorded changes.
    pub fn take_changed(&mut self) -> Changed {
        std::mem::take(&mut self.index.changed)
    }
}

impl<'a> Wanted<'a> {
    /// The Frontends of all Services, independent of IPVS.
    pub fn desired(self) -> &'a Desired {
        self.desired
    }

    /// All virtual servers, sorted.
    pub fn servers(self) -> impl Iterator<Item = (VirtualServerKey, Server)> {
        let of_address = move |frontend: &Frontend| {
            let key = frontend.key.into();
            Some((key, self.index.lower(key, frontend)?))
        };
        let of_mark = move |(key, _): (&VirtualServerKey, _)| Some((*key, self.server(key)?));
        self.desired.frontends().filter_map(of_address).chain(self.index.marks.iter().filter_map(of_mark))
    }

    /// A virtual server.
    pub fn server(self, key: &VirtualServerKey) -> Option<Server> {
        self.index.lower(*key, self.frontend(key)?)
    }

    /// The Frontend that a virtual server serves, or served with its mark before it was no longer split.
    pub fn frontend(self, key: &VirtualServerKey) -> Option<&'a Frontend> {
        self.desired.frontend(&self.frontend_key(key)?)
    }

    /// Whether connections through a virtual server continue although it is not desired: its Frontend is served.
    pub(crate) fn is_drained(self, key: &VirtualServerKey) -> bool {
        self.frontend(key).is_some()
    }

    /// The Frontend of a virtual server, desired or not.
    pub fn frontend_key(self, key: &VirtualServerKey) -> Option<FrontendKey> {
        FrontendKey::try_from(*key).ok().or_else(|| self.index.marks.frontend_key(key))
    }

    /// The endpoints that are a virtual server's real servers, sorted; `None` if it is not desired.
    pub fn endpoints(self, key: &VirtualServerKey) -> Option<&'a Arc<[EndpointKey]>> {
        self.index.endpoints(key, self.frontend(key)?)
    }

    /// The virtual server of outside clients, if separate.
    pub fn split(self, frontend: &FrontendKey) -> Option<VirtualServerKey> {
        let frontend = self.desired.frontend(frontend).filter(|frontend| frontend.can_split())?;
        self.index.mark_of(frontend)
    }

    /// Services that the configuration asks to split, and the reasons why they are not. Costs O(such Frontends).
    pub fn unmarked(self) -> impl Iterator<Item = MarkUnavailable> {
        let mut all: BTreeMap<(ObjectKey, &'static str), Vec<FrontendKey>> = BTreeMap::new();
        for key in &self.index.unmarked {
            let why = self.desired.frontend(key).and_then(|frontend| self.index.why_unmarked(frontend));
            if let (Some(reason), Some(owner)) = (why, self.desired.owner(key)) {
                all.entry((owner.clone(), reason)).or_default().push(*key);
            }
        }
        all.into_iter().map(|((service, reason), frontends)| MarkUnavailable { service, frontends, reason })
    }

    /// Number of Frontends that are split.
    pub fn marked(self) -> usize {
        self.index.marks.iter().filter(|(key, _)| self.has_server(key)).count()
    }

    /// Whether a virtual server is desired.
    pub fn has_server(self, key: &VirtualServerKey) -> bool {
        self.endpoints(key).is_some()
    }

    /// Whether a virtual server with this real server is desired.
    pub fn has_real_server(self, key: &VirtualServerKey, real: &RealServerKey) -> bool {
        self.endpoints(key).is_some_and(|endpoints| endpoints.binary_search(&(*real).into()).is_ok())
    }

    /// The drain time of this virtual server's real servers, if its Service sets one.
    pub fn drain_time(self, key: &VirtualServerKey) -> Option<Duration> {
        let asked = self.frontend(key)?.balancing.as_ref()?.drain_secs?;
        Some(Duration::from_secs(asked.into()))
    }

    /// Whether a real server that this virtual server loses drains: according to the policy, and while its endpoint
    /// serves.
    pub(crate) fn lets_drain(self, key: &VirtualServerKey, real: &RealServerKey, policy: &Policy) -> bool {
        let deadline = self.drain_time(key).or(policy.deadline);
        self.frontend_key(key).is_some_and(|frontend| policy.drains_by(frontend.protocol.into(), deadline))
            || self.keeps_flows_of(key, real)
    }

    /// Whether a TCP or UDP real server keeps its connections because its endpoint serves, selected or not. Not in an
    /// undesired virtual server, such as that of a mark.
    pub(crate) fn keeps_flows_of(self, key: &VirtualServerKey, real: &RealServerKey) -> bool {
        let is_wanted = |frontend: &&Frontend| self.index.endpoints(key, frontend).is_some();
        let frontend = self.frontend(key).filter(|frontend| frontend.key.protocol != Protocol::Sctp).filter(is_wanted);
        frontend.is_some_and(|frontend| frontend.keeps_flows_of(&(*real).into()))
    }

    /// Applies the present drain times to the draining real servers of a virtual server.
    pub(crate) fn time_drains(self, key: &VirtualServerKey, drains: &mut Drains, now: Moment) {
        drains.follow(key, self.drain_time(key), |real| self.keeps_flows_of(key, real), now);
    }

    /// The Service that a virtual server belongs to.
    pub fn owner(self, key: &VirtualServerKey) -> Option<&'a ObjectKey> {
        self.desired.owner(&self.frontend_key(key)?)
    }

    /// The addresses to bind to the dummy device, or with routes ([`Routes`](super::binding::Routes)); sorted.
    pub fn addresses(self) -> impl Iterator<Item = IpAddr> {
        self.index.addresses.keys().copied()
    }

    /// The addresses of [`Wanted::addresses`] in this network.
    pub(crate) fn addresses_in(self, network: &Network) -> impl Iterator<Item = IpAddr> {
        self.index.addresses.range(network.network()..=network.broadcast()).map(|(address, _)| *address)
    }

    /// Whether an address must be bound, to the dummy device or by a route.
    pub fn has_address(self, address: IpAddr) -> bool {
        self.index.addresses.contains_key(&address)
    }

    /// Whether an address is served that another interface has. Such an address is not bound to the dummy device: set
    /// `KUBE-IPVS-IPS` would close all its other ports, for the node's own programs too. One that is bound already,
    /// because the other interface got it later, stays bound. Addresses move between nodes (keepalived, kube-vip), and
    /// the binding is needed again as soon as the other interface loses the address.
    pub fn is_elsewhere(self, address: IpAddr) -> bool {
        self.index.elsewhere.contains_key(&address)
    }

    /// The entries of a set, sorted; none for a set that must be empty.
    pub fn entries(self, set: SetKey) -> impl Iterator<Item = &'a Element> {
        self.index.sets.get(&set).into_iter().flat_map(BTreeMap::keys)
    }

    /// Whether a set must have an entry.
    pub fn has_entry(self, set: SetKey, element: &Element) -> bool {
        self.index.sets.get(&set).is_some_and(|elements| elements.contains_key(element))
    }

    /// The sets that are not empty, which rules depend on.
    pub fn sets(self) -> impl Iterator<Item = SetKey> {
        self.index.sets.keys().copied()
    }

    /// Virtual servers to which this node's own traffic must be dropped, sorted; see [`Frontend::is_barred_from_node`].
    pub fn barred_from_node(self) -> impl Iterator<Item = VirtualServerKey> {
        self.index.barred.iter().copied()
    }
}
