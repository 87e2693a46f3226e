//! The reconciler's state, for display and metrics.

use ::ipvs::VirtualServerKey;
use ::ipvs::model::VirtualServerConfig;

use super::state::{Reconciler, Trust};
use crate::engine::schedule::Schedule;
use crate::modes;
use crate::modes::ipvs::diff::foreign;
use crate::modes::ipvs::drain::Drains;
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::wanted::Wanted;
use crate::modes::ipvs::{Draining, MarkUnavailable};
use crate::modes::localhost_relay::LocalhostNodePorts;
use crate::net::FrontendKey;
use crate::plan::report::{Refused, Totals};
use crate::service::{Desired, NodeFacts};
use crate::snapshot::{Rejection, Store};
use crate::time::Moment;

/// Numbers of virtual servers and real servers in IPVS ([`Reconciler::servers`]).
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ServerCounts {
    /// Own virtual servers.
    pub virtual_servers: usize,
    /// Their real servers.
    pub real_servers: usize,
    /// Other programs' virtual servers.
    pub foreign: usize,
    /// Virtual servers with firewall marks for outside clients.
    pub split: usize,
}

impl Reconciler {
    /// Rebuilds all stored state to release memory. Call it after the first pass.
    pub fn compact(&mut self) {
        self.store.compact();
        self.desired.compact();
        self.mode.compact();
    }

    /// The name of the node.
    pub fn node_name(&self) -> &str {
        self.store.node_name()
    }

    /// The objects.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Frontends of all Services, as of the last pass.
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    #[doc(hidden)]
    pub fn wanted(&self) -> Option<Wanted<'_>> {
        Some(self.mode.servers(&self.desired)?.wanted)
    }

    #[doc(hidden)]
    pub fn observed(&self) -> Option<&Observed> {
        self.mode.servers(&self.desired)?.observed
    }

    /// Numbers of virtual servers and real servers in IPVS, as last tracked; `None` in other modes. Costs O(virtual
    /// servers).
    pub fn servers(&self) -> Option<ServerCounts> {
        let (wanted, observed) = (self.wanted()?, self.observed()?);
        let foreign: Vec<_> = foreign(&wanted, observed, self.facts.config()).collect();
        let ours = || observed.virtual_servers.iter().filter(|(key, _)| foreign.binary_search(key).is_err());
        Some(ServerCounts {
            virtual_servers: ours().count(),
            real_servers: ours().map(|(_, server)| server.real_servers.len()).sum(),
            foreign: foreign.len(),
            split: wanted.marked(),
        })
    }

    /// The virtual server, without its endpoints, that a Frontend requires; `None` in other modes.
    pub fn virtual_server(&self, frontend: &FrontendKey) -> Option<VirtualServerConfig> {
        Some(self.wanted()?.server(&(*frontend).into())?.config)
    }

    /// The node facts: what compiling needs besides the Services.
    pub fn facts(&self) -> &NodeFacts {
        &self.facts
    }

    /// The mode that serves.
    pub fn mode(&self) -> modes::Kind {
        self.mode.kind()
    }

    /// The Frontends that are held back, each with its start: those of this mode, or those of other modes while it
    /// waits for these.
    pub fn held(&self) -> impl Iterator<Item = (FrontendKey, Moment)> {
        self.safeguards.own.held().chain(self.safeguards.others.held())
    }

    /// The time at which a Frontend that is [held back](Reconciler::held) since this moment follows the input, if
    /// nothing changes. `None`: only when it is confirmed, or when an object can be read.
    pub fn held_until(&self, key: &FrontendKey, since: Moment) -> Option<Moment> {
        self.safeguards.own.until(key, since).and(self.safeguards.others.until(key, since))
    }

    /// Draining real servers; none in modes in which connections end by themselves.
    pub fn draining(&self) -> impl Iterator<Item = Draining> {
        self.drains().into_iter().flat_map(Drains::iter)
    }

    #[doc(hidden)]
    pub fn drains(&self) -> Option<&Drains> {
        Some(self.mode.servers(&self.desired)?.drains)
    }

    /// The virtual server, by firewall mark, that serves outside clients of a Frontend, if it has a separate one
    /// ([`Config::splits_local`](crate::config::Config::splits_local)).
    pub fn split(&self, frontend: &FrontendKey) -> Option<VirtualServerKey> {
        self.wanted()?.split(frontend)
    }

    /// Frontends that IPVS mode serves without the firewall marks that the configuration requests
    /// ([`Config::splits_local`](crate::config::Config::splits_local)), and why. Costs O(such Frontends).
    pub fn unmarked(&self) -> impl Iterator<Item = MarkUnavailable> {
        self.wanted().into_iter().flat_map(Wanted::unmarked)
    }

    /// The Frontend of a virtual server, desired or not; `None` for another program's firewall mark.
    pub fn frontend_of(&self, server: &VirtualServerKey) -> Option<FrontendKey> {
        self.wanted().map_or_else(|| FrontendKey::try_from(*server).ok(), |wanted| wanted.frontend_key(server))
    }

    /// Since when the kernel has lacked a desired object. `None` if it has everything, and before
    /// [`Reconciler::start`], when nothing is desired yet. Health checks use this (`/healthz`).
    pub fn pending_since(&self) -> Option<Moment> {
        self.schedule.pending_since().filter(|_| self.trust > Trust::Waiting)
    }

    #[doc(hidden)]
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Counters over all passes.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Node ports on loopback addresses in nftables mode: listeners of this process, and what rules refused. `None`
    /// without any.
    pub fn localhost_node_ports(&self) -> Option<&LocalhostNodePorts> {
        self.add_ons.localhost.as_ref()
    }

    /// Frontends that Services request and do not get, and endpoints that the mode leaves out. The address or port of
    /// such a Frontend is reserved, another Service owns it, or the mode cannot serve it.
    pub fn refused(&self) -> impl Iterator<Item = Refused> {
        self.refused_by_claim().chain(self.mode.refused(self.desired()))
    }

    /// Values left out of the current objects: of Services and slices, then of Nodes, then annotations and external IPs
    /// of Services that the endpoints or the configuration rule out.
    pub fn rejections(&self) -> impl Iterator<Item = &Rejection> {
        self.store.rejections().chain(self.cluster.rejections()).chain(self.desired().refused())
    }
}
