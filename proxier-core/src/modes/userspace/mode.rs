//! Userspace mode from pass to pass: the listeners and routes that it requires, and the plan of a pass.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::NO_SCTP;
use crate::modes::shared::flows::answering_at;
use crate::modes::shared::frontends::count;
use crate::modes::shared::listeners::{ListenerChange, lower};
use crate::modes::shared::networks::{PodTraffic, Unusable, network_of, other_addresses, usable};
use crate::modes::{self, CarryOut, FrontendRef, Hold, Kind, Outcome, Pass, Plan, Reading, Work};
use crate::net::{EndpointKey, Family, FrontendKey, Network, Protocol};
use crate::pack::{Gather as _, pack};
use crate::plan::operation::Operation;
use crate::plan::report::{Applied, Refused, Report, Unread};
use crate::plan::step::{Action, Step};
use crate::ports::{Listener, LocalNetworks, LocalRoute, Ports, RouteOwner, Settings};
use crate::safeguard::{Kernel, Loss};
use crate::service::{Desired, Frontend, NodeFacts};
use crate::snapshot::HostAddresses;
use crate::time::Moment;

/// Settings of userspace mode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UserspaceOptions {
    /// The networks of cluster IPs. Each is made local as a whole, by one route, unless it has an address of the node,
    /// of a host that the node needs, or a network of pods. Those are reported. Addresses outside of them get a route
    /// each. Default none.
    pub service_cidrs: Vec<Network>,
    /// [`Settings::udp_idle`]. Default 250 ms.
    pub udp_idle: Duration,
}

impl Default for UserspaceOptions {
    fn default() -> Self {
        UserspaceOptions { service_cidrs: Vec::new(), udp_idle: Settings::default().udp_idle }
    }
}

/// Pause until the next check, while a route is kept for connections only.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Mode {
    options: UserspaceOptions,
    /// Addresses that must be local, and how many Frontends need each. Listeners are not stored: each follows from its
    /// Frontend ([`lower`]).
    addresses: BTreeMap<IpAddr, usize>,
    /// Addresses whose routes could not be added or deleted.
    unrouted: BTreeSet<IpAddr>,
    /// Present listeners and routes; `None` before they were read.
    known: Option<KernelState>,
    /// Listeners of this process, from reading until the plan is made.
    there: BTreeMap<FrontendKey, Listener>,
    /// The settings that hold.
    settings: Option<Settings>,
    /// Frontends that are kept although no Service requests them.
    held: BTreeSet<FrontendKey>,
    /// The networks that are local as a whole, as the last pass required.
    whole: BTreeSet<Network>,
    /// Networks that cannot be local as a whole, as last reported.
    told: Vec<Unusable>,
    /// Undesired routes that connections still need, and when to check again.
    kept: BTreeSet<Network>,
    look_at: Option<Moment>,
}

#[derive(Debug, Default)]
struct KernelState {
    /// The listeners, and whether they have endpoints.
    listeners: BTreeMap<FrontendKey, bool>,
    routes: BTreeSet<Network>,
}

impl Mode {
    pub(crate) fn new(options: &UserspaceOptions) -> Self {
        Mode { options: options.clone(), ..Mode::default() }
    }

    /// The networks that must be local: whole ones, and single addresses outside of them.
    fn networks(&self, whole: &BTreeSet<Network>) -> impl Iterator<Item = Network> {
        let alone = self.addresses.keys().filter_map(move |address| network_of(*address, whole));
        whole.iter().copied().chain(alone)
    }

    /// Whether a network is one of [`Mode::networks`].
    fn needs_route(&self, network: &Network, whole: &BTreeSet<Network>) -> bool {
        let address = network.addr();
        let is_needed = || self.addresses.contains_key(&address) && network_of(address, whole) == Some(*network);
        whole.contains(network) || is_needed()
    }

    fn settings(&self, pass: &Pass<'_>) -> Settings {
        let mut own: BTreeSet<IpAddr> = other_addresses(pass.host, &pass.config().names).collect();
        own.extend(Family::ALL.into_iter().filter_map(|family| pass.facts.node_address(family)));
        let pods = Family::ALL.into_iter().filter_map(|family| match PodTraffic::from_facts(pass.facts, family) {
            PodTraffic::Network(network) => Some(network),
            // A socket does not show the device.
            PodTraffic::Unknown | PodTraffic::Interface(_) | PodTraffic::Prefix(_) => None,
        });
        Settings {
            own: Arc::new(own),
            pods: pods.collect(),
            other_pods: Family::ALL.into_iter().filter_map(|family| pass.facts.other_pods(family)).collect(),
            udp_idle: self.options.udp_idle,
            max_descriptors: None,
        }
    }

    /// Compares the routes: all in a full pass, or if the networks that are local as a whole change; otherwise those of
    /// changed addresses.
    fn compare_routes(
        &self,
        pass: &Pass<'_>,
        plan: &mut UserspacePlan,
        known: &KernelState,
        whole: &BTreeSet<Network>,
    ) {
        let networks: BTreeSet<Network> = if pass.full || *whole != self.whole {
            known.routes.iter().copied().chain(self.networks(whole)).gather()
        } else {
            let changed = pass.changes.frontends().map(|(key, _)| key.address).chain(self.unrouted.iter().copied());
            changed.filter_map(|address| network_of(address, whole)).chain(self.kept.iter().copied()).gather()
        };
        for network in networks {
            match (self.needs_route(&network, whole), known.routes.contains(&network)) {
                (true, false) => plan.add_routes.push(network),
                (false, true) => plan.delete_routes.push(network),
                _ => {}
            }
        }
    }

    fn drift(&self, pass: &Pass<'_>, plan: &UserspacePlan, whole: &BTreeSet<Network>) -> Vec<Step> {
        let changed: BTreeSet<IpAddr> = pass.changes.frontends().map(|(key, _)| key.address).collect();
        let is_input = |network: &Network| {
            let address = network.addr();
            self.whole != *whole
                || changed.contains(&address)
                || self.unrouted.contains(&address)
                || self.kept.contains(network)
        };
        let is_foreign = |of: &Operation<'_>| matches!(of, Operation::Route(_, _, route) if !is_input(&route.network));
        plan.operations().filter(is_foreign).map(|operation| operation.step(&pass.names)).collect()
    }
}

fn refused_of(desired: &Desired, frontend: &Frontend) -> Vec<Refused> {
    let owner = |key: &FrontendKey| desired.owner(key).map(ToString::to_string).unwrap_or_default();
    let refused =
        |endpoint, reason| Refused { service: owner(&frontend.key), key: frontend.key, endpoint, reason, user: None };
    if frontend.key.protocol == Protocol::Sctp {
        return vec![refused(None, NO_SCTP.to_owned())];
    }
    let because = |(endpoint, listener): (EndpointKey, FrontendKey)| {
        let owner = owner(&listener);
        let reason = format!("this process listens there itself, for {owner}: connections would loop");
        refused(Some(endpoint), reason)
    };
    let endpoints = frontend.cluster.iter().chain(frontend.local.iter());
    let at = |endpoint: &EndpointKey| Some((*endpoint, desired.frontend_at(frontend.key.protocol, endpoint)?.key));
    let loops: BTreeMap<EndpointKey, FrontendKey> = endpoints.filter_map(at).gather();
    loops.into_iter().map(because).collect()
}

/// Compares the listeners: all in a full pass, otherwise those that changed. `there`: those that were read.
fn compare(pass: &Pass<'_>, plan: &mut UserspacePlan, known: &KernelState, there: &BTreeMap<FrontendKey, Listener>) {
    let all = pass.desired.frontends().map(|frontend| frontend.key).chain(there.keys().copied());
    let changed = pass.changes.frontends().map(|(key, _)| *key);
    let keys: BTreeSet<FrontendKey> = if pass.full { all.gather() } else { changed.gather() };
    let change = |key: &FrontendKey| {
        let wanted = listener(pass.desired, key);
        let is_same = wanted.is_some() && wanted.as_ref() == there.get(key);
        ListenerChange::new(*key, wanted, known.listeners.contains_key(key)).filter(|_| !is_same)
    };
    plan.listeners = keys.iter().filter_map(change).collect();
}

impl modes::Mode for Mode {
    /// Listeners of one port share a rotation, and clients with affinity.
    fn needs_ports(&self) -> bool {
        true
    }

    fn index_frontend(&mut self, _written: FrontendRef<'_>, before: FrontendRef<'_>, after: FrontendRef<'_>) {
        // What stays is added before it is removed, so that its count never reaches zero.
        for (frontend, adds) in [(after, true), (before, false)] {
            if let Some(address) = frontend.and_then(|frontend| virtual_address(frontend)) {
                count(&mut self.addresses, &address, adds);
            }
        }
    }

    fn compact(&mut self) {
        pack(&mut self.addresses);
    }

    fn kernel(&self) -> Option<&dyn Kernel> {
        Some(&self.known.as_ref()?.listeners)
    }

    fn knows_kernel(&self) -> bool {
        self.known.is_some() && self.held.is_empty()
    }

    fn forget_kernel(&mut self) {
        self.known = None;
    }

    fn read(&mut self, desired: &Desired, _host: &HostAddresses, _facts: &NodeFacts, ports: &mut Ports<'_>) -> Reading {
        let routes = ports.routes.networks(RouteOwner::Userspace);
        let routes = routes.map_err(|error| vec![Unread::new("local routes", error)])?;
        let routes: BTreeSet<Network> = routes.into_keys().gather();
        self.there = ports.relays.listeners();
        if let Some(listening) = ports.relays.elsewhere() {
            // For another process only the place is known: it is taken to be right. One that is not open cannot be
            // seen.
            let is_there = |listener: &Listener| !listener.is_open() || listening.contains(&listener.key);
            let wanted = desired.frontends().filter_map(lower).filter(is_there);
            self.there.extend(wanted.map(|listener| (listener.key, listener)));
            // Only addresses that our routes make local certainly belong to Services.
            let ours = listening.iter().filter(|key| routes.iter().any(|network| network.contains(&key.address)));
            for key in ours.filter(|key| listener(desired, key).is_none()) {
                self.there.insert(*key, Listener::new(*key, ""));
            }
        }
        let listeners = self.there.iter().map(|(key, listener)| (*key, listener.has_endpoints)).gather();
        self.known = Some(KernelState { listeners, routes });
        Ok(())
    }

    fn plan(&mut self, pass: Pass<'_>, hold: Hold<'_>, report: &mut Report, ports: &mut Ports<'_>) -> Option<Plan> {
        report.notices = ports.relays.notices();
        let there = std::mem::take(&mut self.there);
        let known = self.known.as_ref()?;
        let is_wanted = |address| self.addresses.contains_key(&address);
        let (whole, unusable) =
            usable(pass.facts.service_cidrs_or(&self.options.service_cidrs), &is_wanted, pass.facts);
        if unusable != self.told {
            report.limited = unusable.iter().map(ToString::to_string).collect();
        }
        let configure = Some(self.settings(&pass)).filter(|settings| self.settings.as_ref() != Some(settings));
        let mut plan = UserspacePlan { configure, now: pass.now, ..UserspacePlan::default() };
        if !pass.full {
            // A full pass checks all Frontends; between two of them only what changed or was refused.
            let changed = pass.changes.frontends().map(|(key, _)| *key);
            let keys: BTreeSet<FrontendKey> = report.refused.iter().map(|refused| refused.key).chain(changed).gather();
            let frontends = keys.iter().filter_map(|key| pass.desired.frontend(key));
            report.refused = frontends.flat_map(|frontend| refused_of(pass.desired, frontend)).collect();
        }
        compare(&pass, &mut plan, known, &there);
        self.compare_routes(&pass, &mut plan, known, &whole);
        let loss = |change: &ListenerChange| match &change.listener {
            None => Some((change.key, Loss::Everything)),
            Some(new) if new.has_endpoints || known.listeners.get(&change.key) != Some(&true) => None,
            Some(_) => Some((change.key, Loss::Endpoints)),
        };
        let held = hold(plan.listeners.iter().filter_map(loss).collect(), &known.listeners);
        plan.listeners.retain(|change| !held.contains(&change.key));
        let held_at: BTreeSet<IpAddr> = held.iter().map(|key| key.address).collect();
        plan.delete_routes.retain(|network| !has_any(network, &held_at));
        if pass.tells_drift {
            report.drift = self.drift(&pass, &plan, &whole);
        }
        // Translated UDP flows belong to another mode.
        let of_udp = pass.desired.frontends().filter_map(|frontend| frontend.key.udp());
        let sweep = pass.sweep.map(|left| of_udp.chain(left.iter().copied())).into_iter().flatten();
        let forget = sweep.chain(pass.unforgotten.iter().copied()).map(|place| (place, answering_at(place, None)));
        Some(Plan::of_mode(UserspacePlan { whole, unusable, held, ..plan }, forget.gather()))
    }

    /// Does nothing if this process cannot relay at all.
    fn carry_out(&mut self, work: Box<dyn Work>, arguments: CarryOut<'_>, ports: &mut Ports<'_>) -> Outcome {
        let CarryOut { names, changes, report, .. } = arguments;
        let mut plan: UserspacePlan = work.into_plan();
        if let Some(settings) = plan.configure.take() {
            if let Err(error) = ports.relays.configure(&settings) {
                report.unread.push(Unread::new("the relay of this process", error));
                report.drift.clear();
                return Outcome { unwritten: Family::ALL.into(), ..Outcome::default() };
            }
            self.settings = Some(settings);
        }
        let mut applied = Applied::default();
        let mut known = self.known.take().unwrap_or_default();
        let first = applied.carry_out(plan.first_operations(), &names, ports);
        let busy = ports.relays.busy();
        // Restoring what a route cuts off takes precedence over connections that use the route.
        let cuts_off = |network: &Network| plan.unusable.iter().any(|of| of.network.trunc() == *network);
        let is_busy = |network: &Network| has_any(network, &busy) && !cuts_off(network);
        let (kept, idle): (Vec<Network>, Vec<Network>) = plan.delete_routes.iter().copied().partition(is_busy);
        let idle = idle.iter().map(|network| route(Action::Delete, network));
        let last = applied.carry_out(idle, &names, ports);
        self.unrouted.clear();
        let mut unserved = BTreeSet::new();
        for (operation, is_done) in first.into_iter().chain(last) {
            match operation {
                Operation::Listener(_, key, Some(listener)) if is_done => {
                    known.listeners.insert(key, listener.has_endpoints);
                }
                Operation::Listener(_, key, listener) => {
                    known.listeners.remove(&key);
                    unserved.extend(listener.map(|_| key));
                }
                Operation::Route(_, _, route) if !is_done => drop(self.unrouted.insert(route.network.addr())),
                Operation::Route(Action::Add, _, route) => drop(known.routes.insert(route.network)),
                Operation::Route(_, _, route) => drop(known.routes.remove(&route.network)),
                _ => {}
            }
        }
        self.look_at = (!kept.is_empty()).then(|| plan.now.saturating_add(LOOK_AGAIN));
        self.kept = kept.into_iter().gather();
        changes.confirm_all_but(|key| unserved.contains(key));
        (self.whole, self.told, self.held) = (plan.whole, plan.unusable, plan.held);
        self.known = Some(known);
        Outcome { applied, ..Outcome::default() }
    }

    fn next_wake(&self) -> Option<Moment> {
        self.look_at
    }

    fn routes_differ(&self, routes: &mut dyn LocalNetworks) -> bool {
        let Some(known) = &self.known else { return false };
        routes.networks(RouteOwner::Userspace).is_ok_and(|there| !there.keys().eq(&known.routes))
    }

    fn refused(&self, desired: &Desired) -> Vec<Refused> {
        desired.frontends().flat_map(|frontend| refused_of(desired, frontend)).collect()
    }

    fn kind(&self) -> Kind {
        Kind::Userspace
    }
}

#[derive(Debug, Default)]
pub(crate) struct UserspacePlan {
    configure: Option<Settings>,
    listeners: Vec<ListenerChange>,
    add_routes: Vec<Network>,
    /// Networks that are no longer local, once no connection needs them.
    delete_routes: Vec<Network>,
    whole: BTreeSet<Network>,
    unusable: Vec<Unusable>,
    held: BTreeSet<FrontendKey>,
    now: Moment,
}

impl UserspacePlan {
    /// Listeners that are opened or changed, then routes, so that a port has its listener before packets for its
    /// address arrive here. Then listeners that are closed.
    fn first_operations(&self) -> impl Iterator<Item = Operation<'_>> {
        let serving = |serves| self.listeners.iter().filter(move |change| change.listener.is_some() == serves);
        let routes = self.add_routes.iter().map(|network| route(Action::Add, network));
        let serve = serving(true).map(ListenerChange::operation);
        serve.chain(routes).chain(serving(false).map(ListenerChange::operation))
    }
}

impl Work for UserspacePlan {
    fn is_empty(&self) -> bool {
        self.configure.is_none() && self.operations().next().is_none()
    }

    fn operations(&self) -> Box<dyn Iterator<Item = Operation<'_>> + '_> {
        Box::new(self.first_operations().chain(self.delete_routes.iter().map(|network| route(Action::Delete, network))))
    }
}

fn route(action: Action, network: &Network) -> Operation<'static> {
    Operation::Route(action, RouteOwner::Userspace, LocalRoute::new(*network))
}

/// Whether one of these addresses is in a network.
fn has_any(network: &Network, addresses: &BTreeSet<IpAddr>) -> bool {
    // Those of a network are next to each other.
    addresses.range(network.network()..).next().is_some_and(|address| network.contains(address))
}

fn virtual_address(frontend: &Frontend) -> Option<IpAddr> {
    let is_served = frontend.key.protocol != Protocol::Sctp;
    (is_served && frontend.is_virtual()).then_some(frontend.key.address)
}

fn listener(desired: &Desired, key: &FrontendKey) -> Option<Listener> {
    desired.frontend(key).and_then(lower)
}
