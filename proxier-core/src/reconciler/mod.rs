//! The reconciler: takes objects, and brings the kernel to serve them.

pub mod backoff;
pub mod report;
pub mod safeguard;
pub mod schedule;
pub mod step;
pub mod totals;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipvs::model::{TimeoutsUpdate, Weight};
use ipvs::{Operation, VirtualServerKey};

use crate::config::Config;
use crate::modes::ipvs::apply::apply;
use crate::modes::ipvs::diff::{diff, diff_changed, foreign};
use crate::modes::ipvs::drain::{self, Drains};
use crate::modes::ipvs::held;
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::plan::{Plan, RulesChange, plan};
use crate::modes::ipvs::reading;
use crate::modes::ipvs::rules;
use crate::modes::ipvs::udp;
use crate::modes::ipvs::wanted::{Changed, Wanted};
use crate::modes::shared::sysctls::HostSettings;
use crate::net::{Family, FrontendKey};
use crate::objects::{EndpointSliceObject, NodeObject, ServiceObject};
use crate::ports::{Links, PortError, PortErrorKind, Ports, Rules};
use crate::reconciler::backoff::Backoff;
use crate::reconciler::report::{Foreign, Refused, Report, Unread};
use crate::reconciler::safeguard::{Kernel as _, MassRemoval, Safeguard};
use crate::reconciler::schedule::{Limits, Moment, Pass, Schedule};
use crate::reconciler::step::{Action, Names, Part, Step};
use crate::reconciler::totals::Totals;
use crate::service::{Desired, Neighbour, NodeFacts, User, is_reachable};
use crate::snapshot::{EndpointSlice, HostAddresses, Node, ObjectKey, ObjectKind, Rejection, Store};

/// How a [`Proxier`] works.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// How Services are compiled.
    pub config: Config,
    /// Settings of the host.
    pub host: HostSettings,
    /// Timeouts of IPVS. Default: left alone.
    pub timeouts: TimeoutsUpdate,
    /// How real servers drain.
    pub drain: drain::Policy,
    /// How often passes run.
    pub limits: Limits,
    /// When deletions are held back.
    pub mass_removal: MassRemoval,
    /// How long node ports are still served on an address that this host has lost. Default 10 s: a DHCP client, a
    /// restarting network manager or an administrator takes an address away and gives it back, and connections survive.
    /// With 0 they end at once. An address that is missing when the first pass finds node ports on it gets the same time.
    pub address_grace: Duration,
    /// What iptables and the kernel can do; restricted further by what the iptables program reports.
    pub capabilities: rules::Capabilities,
    /// Keeps the nodes of a cluster from retrying together: any number that differs from node to node.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            config: Config::default(),
            host: HostSettings::default(),
            timeouts: TimeoutsUpdate::default(),
            drain: drain::Policy::default(),
            limits: Limits::default(),
            mass_removal: MassRemoval::default(),
            address_grace: Duration::from_secs(10),
            capabilities: rules::Capabilities::default(),
            seed: 0,
        }
    }
}

/// The reconciler of one node: keeps what is wanted, knows what the kernel holds, and brings the kernel to what is wanted.
///
/// A state machine: it acts only when called, and gets the time as `now`. Objects go in as they change; [`Proxier::pass`]
/// programs them. A pass for changes costs O(changed objects); a full pass reads the kernel: at the start, every
/// [`Limits::max_interval`], after a failure and on request.
///
/// Before [`Proxier::start`] nothing is changed: half a list of Services would delete the other half.
#[expect(clippy::struct_excessive_bools, reason = "each is one question about the past, and none excludes another")]
#[derive(Debug)]
pub struct Proxier {
    options: Options,
    store: Store,
    node: Node,
    node_rejections: Vec<Rejection>,
    host: HostAddresses,
    facts: NodeFacts,
    /// Services to compile again.
    pending: BTreeSet<ObjectKey>,
    /// What compiling changed since the last plan that was carried out.
    changed: Changed,
    /// Our virtual servers that are not wanted any more, until they are gone: this process wanted them, or found them
    /// marked as ours. Somebody may remove the marks before they are deleted.
    leaving: BTreeSet<VirtualServerKey>,
    /// Wanted virtual servers that no pass has made yet: somebody else's may have their address and port.
    unmade: BTreeSet<VirtualServerKey>,
    /// Addresses and ports whose UDP flows could not be forgotten yet.
    unforgotten: BTreeSet<SocketAddr>,
    /// The node facts differ from those of the last plan that was carried out.
    new_facts: bool,
    /// The last pass found something unexpected in the kernel.
    surprised: bool,
    wanted: Wanted,
    /// What the kernel holds, as far as known; `None` before it was read.
    observed: Option<Observed>,
    /// The addresses or default routes of the host may have changed.
    host_stale: bool,
    /// Addresses that the host has lost, with the time when each is given up.
    absent: BTreeMap<IpAddr, Moment>,
    /// The default routes have been read.
    knows_gateways: bool,
    /// The addresses on which an earlier process served node ports have been checked.
    knows_served: bool,
    /// The inputs of the rules that the kernel holds.
    rules: BTreeMap<Family, rules::Inputs>,
    /// Families whose rules could not be restored.
    rules_retry: BTreeMap<Family, RulesRetry>,
    /// Steps that failed in the last full pass and since. The next full pass finds them again; they are not drift.
    unfinished: BTreeSet<(Part, String, String)>,
    drains: Drains,
    safeguard: Safeguard,
    schedule: Schedule,
    started: bool,
    /// A full pass has succeeded.
    settled: bool,
    totals: Totals,
}

impl Proxier {
    /// How long the first pass waits for the lock of iptables: 5 s, as kube-proxy does.
    pub const FIRST_LOCK_WAIT: Duration = Duration::from_secs(5);
    /// How long later passes wait for it: 1 s, the least that the programs allow. They retry after a growing pause.
    pub const SHORT_LOCK_WAIT: Duration = Duration::from_secs(1);

    /// The reconciler of the node of this name (`nodeName` of endpoints). `now` is the origin of its time.
    pub fn new(node_name: &str, options: Options, now: Moment) -> Self {
        let node = Node::new(node_name);
        let host = HostAddresses::default();
        Proxier {
            store: Store::new(node_name),
            node_rejections: Vec::new(),
            facts: NodeFacts::new(&options.config, &node, &host),
            node,
            host,
            pending: BTreeSet::new(),
            changed: Changed::default(),
            leaving: BTreeSet::new(),
            unmade: BTreeSet::new(),
            unforgotten: BTreeSet::new(),
            new_facts: true,
            surprised: false,
            wanted: Wanted::new(&options.config),
            observed: None,
            host_stale: true,
            absent: BTreeMap::new(),
            knows_gateways: false,
            knows_served: false,
            rules: BTreeMap::new(),
            rules_retry: BTreeMap::new(),
            unfinished: BTreeSet::new(),
            drains: Drains::new(options.drain.clone()),
            safeguard: Safeguard::new(options.mass_removal),
            schedule: Schedule::new(options.limits, options.seed, now),
            started: false,
            settled: false,
            totals: Totals::default(),
            options,
        }
    }

    /// Takes a new or changed Service.
    pub fn upsert_service(&mut self, object: &ServiceObject, now: Moment) {
        self.totals.service_changes = self.totals.service_changes.saturating_add(1);
        self.found(ObjectKind::Service, &ObjectKey::of(&object.metadata), now);
        let changed = self.store.upsert_service(object);
        self.enqueue(changed, now);
    }

    /// Removes a Service that somebody deleted. For one that is merely missing from a list, call [`Proxier::lose_service`].
    pub fn delete_service(&mut self, key: &ObjectKey, now: Moment) {
        self.totals.service_changes = self.totals.service_changes.saturating_add(1);
        self.found(ObjectKind::Service, key, now);
        // Its slices are deleted with it; do not wait for those that are missing.
        let slices = self.store.slices_of(key).map(|slice| &slice.key);
        let missing: Vec<ObjectKey> =
            slices.filter(|slice| self.safeguard.is_lost(ObjectKind::EndpointSlice, slice)).cloned().collect();
        for slice in missing {
            self.safeguard.found(ObjectKind::EndpointSlice, &slice);
            self.store.delete_slice(&slice);
        }
        let changed = self.store.delete_service(key);
        self.enqueue(changed, now);
    }

    /// A list lacks a Service, and nobody reported it as deleted: the next pass removes it, unless too many go at once
    /// ([`Safeguard`]).
    pub fn lose_service(&mut self, key: &ObjectKey, now: Moment) {
        self.totals.service_changes = self.totals.service_changes.saturating_add(1);
        if self.store.service(key).is_some() {
            self.safeguard.lose(ObjectKind::Service, key.clone());
            self.schedule.request(now);
        } else {
            self.store.delete_service(key);
        }
    }

    /// Takes a new or changed EndpointSlice. Returns whether it differs in anything that counts.
    pub fn upsert_slice(&mut self, object: &EndpointSliceObject, now: Moment) -> bool {
        self.totals.endpoint_changes = self.totals.endpoint_changes.saturating_add(1);
        self.found(ObjectKind::EndpointSlice, &ObjectKey::of(&object.metadata), now);
        let changed = self.store.upsert_slice(object);
        let differs = !changed.is_empty();
        self.enqueue(changed, now);
        differs
    }

    /// Removes an EndpointSlice that somebody deleted. For one that is merely missing from a list, call
    /// [`Proxier::lose_slice`].
    pub fn delete_slice(&mut self, key: &ObjectKey, now: Moment) {
        self.totals.endpoint_changes = self.totals.endpoint_changes.saturating_add(1);
        self.found(ObjectKind::EndpointSlice, key, now);
        let changed = self.store.delete_slice(key);
        self.enqueue(changed, now);
    }

    /// A list lacks an EndpointSlice, and nobody reported it as deleted: the next pass removes its endpoints, unless too
    /// many Services would lose their last endpoint at once ([`Safeguard`]).
    pub fn lose_slice(&mut self, key: &ObjectKey, now: Moment) {
        self.totals.endpoint_changes = self.totals.endpoint_changes.saturating_add(1);
        if self.store.service_of_slice(key).is_some() {
            self.safeguard.lose(ObjectKind::EndpointSlice, key.clone());
            self.schedule.request(now);
        } else {
            self.store.delete_slice(key);
        }
    }

    /// An object is not missing any more, even if unchanged: that may release what is held back.
    fn found(&mut self, kind: ObjectKind, key: &ObjectKey, now: Moment) {
        if self.safeguard.found(kind, key) {
            self.schedule.request(now);
        }
    }

    /// Confirms what is held back ([`Safeguard`]): the next pass deletes it. Returns how many virtual servers that affects.
    pub fn confirm_removal(&mut self, now: Moment) -> usize {
        self.schedule.request_full(now);
        self.safeguard.confirm()
    }

    /// Replaces everything known by complete lists: objects in neither are missing; unchanged ones cost nothing.
    pub fn replace_objects<'a>(
        &mut self,
        services: impl IntoIterator<Item = &'a ServiceObject>,
        slices: impl IntoIterator<Item = &'a EndpointSliceObject>,
        now: Moment,
    ) {
        let mut gone = self.store.keys();
        for object in services {
            gone.remove(&(ObjectKind::Service, ObjectKey::of(&object.metadata)));
            self.upsert_service(object, now);
        }
        for object in slices {
            gone.remove(&(ObjectKind::EndpointSlice, ObjectKey::of(&object.metadata)));
            self.upsert_slice(object, now);
        }
        for (kind, key) in gone {
            match kind {
                ObjectKind::Service => self.lose_service(&key, now),
                _ => self.lose_slice(&key, now),
            }
        }
    }

    /// Takes the Node object of this node.
    pub fn set_node(&mut self, object: &NodeObject, now: Moment) {
        self.node_rejections.clear();
        let node = Node::check(object, &mut self.node_rejections);
        if node != self.node {
            self.node = node;
            self.refresh_facts();
            self.schedule.request(now);
        }
    }

    /// The lists are complete: passes may begin, and a full one is due. Earlier requests count as made now.
    pub fn start(&mut self, now: Moment) {
        if !self.started {
            self.started = true;
            self.schedule = Schedule::new(self.options.limits, self.options.seed, now);
        }
    }

    /// Sets the neighbours of a kind, which this node has to reach, in place of the earlier ones: no Service may take their
    /// addresses ([`Reserved`](crate::service::Reserved)). Gateways and the endpoints of `default/kubernetes` are found
    /// without this.
    pub fn set_neighbours(&mut self, user: User, neighbours: impl IntoIterator<Item = Neighbour>, now: Moment) {
        if self.options.config.reserved.set_neighbours(user, neighbours) {
            self.refresh_facts();
            self.schedule.request(now);
        }
    }

    /// An address, a default route or a device of this host changed: the next pass reads them again.
    pub fn host_changed(&mut self, now: Moment) {
        self.host_stale = true;
        self.schedule.request(now);
    }

    /// Changes [`Options::address_grace`]: to 0 for a process that makes one pass only and ends before the time is over.
    pub fn set_address_grace(&mut self, grace: Duration) {
        self.options.address_grace = grace;
    }

    /// These addresses were seen on an interface of this host. One that is gone again when the next pass reads them gets
    /// the full time to come back ([`Options::address_grace`]): a pass may take longer than the address stays away.
    pub fn addresses_seen(&mut self, addresses: impl IntoIterator<Item = IpAddr>, now: Moment) {
        let until = now.saturating_add(self.options.address_grace);
        for address in addresses {
            if let Some(absent) = self.absent.get_mut(&address) {
                *absent = until;
            }
        }
    }

    /// The next pass reads the kernel again, and runs as soon as allowed.
    pub fn request_full(&mut self, now: Moment) {
        self.schedule.request_full(now);
    }

    fn enqueue(&mut self, services: Vec<ObjectKey>, now: Moment) {
        if !services.is_empty() {
            self.pending.extend(services);
            self.schedule.request(now);
        }
    }

    /// Computes the node facts again, and compiles every Service if they differ.
    fn refresh_facts(&mut self) {
        let absent = self.absent.keys().copied();
        let facts = NodeFacts::with_absent(&self.options.config, &self.node, &self.host, absent);
        if facts != self.facts {
            self.facts = facts;
            self.new_facts = true;
            self.pending.extend(self.store.services().map(|service| service.key.clone()));
        }
    }

    /// When [`Proxier::pass`] has something to do; in the past: now. `None` before [`Proxier::start`].
    pub fn next_wake(&self) -> Option<Moment> {
        let next = self.schedule.next().filter(|_| self.started)?;
        let looks = [self.next_look(), self.next_rules_retry(), self.next_loss()].into_iter().flatten();
        Some(looks.map(|look| look.max(self.schedule.earliest())).fold(next.at, Moment::min))
    }

    /// When the next lost address is given up.
    fn next_loss(&self) -> Option<Moment> {
        self.absent.values().min().copied()
    }

    /// When to try again to restore rules.
    fn next_rules_retry(&self) -> Option<Moment> {
        self.observed.as_ref().and_then(|_| self.rules_retry.values().map(|retry| retry.at).min())
    }

    /// When to check real servers that drain. `None` while the kernel could not be read: the next full pass checks them.
    fn next_look(&self) -> Option<Moment> {
        self.observed.as_ref().and_then(|_| self.drains.next_check())
    }

    /// Does what is due. `None` when nothing is.
    ///
    /// `clock` returns the time, on the scale of the other methods; it is read again when the pass ends, since pauses count
    /// from there.
    pub fn pass(&mut self, clock: &dyn Fn() -> Moment, ports: &mut Ports<'_>) -> Option<Report> {
        if !self.started {
            return None;
        }
        let now = clock();
        let is_due = |at: Option<Moment>| at.is_some_and(|at| at <= now);
        if is_due(self.next_look()) || is_due(self.next_rules_retry()) || is_due(self.next_loss()) {
            self.schedule.request(now);
        }
        let pass = self.schedule.start(now)?;
        let Prepared { plan, inputs, mut report, ready } = self.prepare(pass, now, ports);
        if ready {
            // A running process retries soon, and must not delay anything else meanwhile.
            ports.rules.set_lock_wait(if self.settled { Self::SHORT_LOCK_WAIT } else { Self::FIRST_LOCK_WAIT });
            self.carry_out(&plan, inputs, &mut report, clock, ports);
        }
        let end = clock();
        self.settled |= report.full && !report.has_failed() && report.stopped.is_none();
        if report.has_failed() || report.applied.failures.is_empty() {
            self.schedule.done(end, !report.has_failed());
        } else {
            self.schedule.done_but_for_objects(end);
        }
        self.totals.add(&report, end);
        Some(report)
    }

    /// What a full pass would do now, without doing it.
    pub fn preview(&mut self, now: Moment, ports: &mut Ports<'_>) -> (Plan, Report) {
        let (drains, safeguard) = (self.drains.clone(), self.safeguard.clone());
        let prepared = self.prepare(Pass::Full, now, ports);
        (self.drains, self.safeguard) = (drains, safeguard);
        self.observed = None;
        self.rules.clear();
        self.schedule.request_full(now);
        (prepared.plan, prepared.report)
    }

    /// Compiles what changed, reads what has to be read, and makes the plan.
    fn prepare(&mut self, pass: Pass, now: Moment, ports: &mut Ports<'_>) -> Prepared {
        let mut report = Report { full: pass == Pass::Full || self.observed.is_none(), ..Report::default() };
        if report.full || self.host_stale {
            match reading::read_host(ports.links) {
                Ok(host) => report.full |= self.take_host(host, now),
                Err(error) => report.unread.push(error),
            }
            report.unread.extend(self.read_gateways(ports.links));
        }
        self.give_up_absent(now);
        self.find_api_servers();
        let changed = self.refresh_desired(now);
        report.health_checks_changed = report.full || !changed.health_checks.is_empty();
        // The safeguard has judged missing objects; everything else that goes was deleted by events. Before the first
        // comparison nothing is known to go.
        if self.safeguard.has_compared() {
            let keys = changed.virtual_servers.iter().filter_map(|key| FrontendKey::try_from(*key).ok());
            self.safeguard.believe(keys);
        }
        self.changed.extend(changed);
        if report.full && report.unread.is_empty() {
            let Ports { ipvs, sets, rules, .. } = ports;
            let families: Vec<Family> = self.facts.config().families.iter().collect();
            let is_settled = self.observed.is_some() && self.leaving.is_empty();
            let mut read = Ok(Observed::new());
            rules.list_meanwhile(&families, &mut || {
                read = reading::read(*ipvs, *sets, &self.host, &self.options.config, &self.wanted, is_settled);
            });
            match read {
                Ok(observed) => self.observed = Some(observed),
                Err(errors) => report.unread.extend(errors),
            }
        }
        if !report.unread.is_empty() {
            // Once the kernel can be read, compare everything.
            self.observed = None;
            return Prepared { report, ..Prepared::default() };
        }
        if self.take_served(now) {
            let changed = self.refresh_desired(now);
            self.changed.extend(changed);
        }
        if let Some(observed) = &mut self.observed {
            if report.full {
                self.leaving.retain(|key| observed.virtual_servers.contains_key(key));
                let unwanted = observed.virtual_servers.keys().filter(|key| !self.wanted.has_server(key));
                self.leaving.extend(unwanted.filter(|key| observed.owns(key)));
            }
            observed.ours.clone_from(&self.leaving);
        }
        self.make_plan(report, now, ports)
    }

    /// Compiles changed objects, and what remains after missing ones are believed to be gone.
    fn refresh_desired(&mut self, now: Moment) -> Changed {
        let pending = std::mem::take(&mut self.pending);
        let mut changed = self.refresh_services(&pending);
        let mut services = BTreeSet::new();
        for (kind, key) in self.safeguard.judge(&self.store, self.wanted.desired(), &self.facts, now) {
            services.extend(match kind {
                ObjectKind::Service => self.store.delete_service(&key),
                _ => self.store.delete_slice(&key),
            });
        }
        if !services.is_empty() {
            changed.extend(self.refresh_services(&services));
        }
        changed
    }

    /// Compiles Services again, and records which virtual servers are newly wanted or no longer wanted.
    fn refresh_services(&mut self, services: &BTreeSet<ObjectKey>) -> Changed {
        let compiled = services.iter().filter_map(|service| self.wanted.desired().compiled(service));
        let before: BTreeSet<VirtualServerKey> =
            compiled.flat_map(|compiled| &compiled.frontends).map(|frontend| frontend.key.into()).collect();
        let changed = self.wanted.refresh(&self.store, &self.facts, services);
        for key in &changed.virtual_servers {
            match (before.contains(key), self.wanted.has_server(key)) {
                (false, true) if !self.leaving.remove(key) => {
                    self.unmade.insert(*key);
                }
                // A virtual server that no pass has made may be somebody else's.
                (true, false) if !self.unmade.remove(key) => {
                    self.leaving.insert(*key);
                }
                _ => {}
            }
        }
        changed
    }

    /// Takes the host's addresses; returns whether the dummy device differs from what is known.
    fn take_host(&mut self, host: HostAddresses, now: Moment) -> bool {
        self.host_stale = false;
        let before = std::mem::replace(&mut self.host, host);
        let there: BTreeSet<IpAddr> = reading::other_addresses(&self.host).collect();
        self.absent.retain(|address, _| !there.contains(address));
        let until = now.saturating_add(self.options.address_grace);
        for lost in reading::other_addresses(&before).filter(|address| !there.contains(address)) {
            if until > now && is_reachable(lost) {
                self.absent.entry(lost).or_insert(until);
            }
        }
        self.refresh_facts();
        let Some(observed) = &self.observed else { return true };
        let there: BTreeSet<_> = reading::device_addresses(&self.host).collect();
        !reading::has_device(&self.host) || there != observed.addresses
    }

    /// At the first reading of the kernel: an address on which an earlier process served node ports, and which this host
    /// lacks now, gets the same time to come back as one lost later. Returns whether there is one.
    fn take_served(&mut self, now: Moment) -> bool {
        let Some(observed) = self.observed.as_ref().filter(|_| !self.knows_served) else { return false };
        self.knows_served = true;
        let until = now.saturating_add(self.options.address_grace);
        let families = self.options.config.families.iter();
        let missing: BTreeSet<IpAddr> = families
            .flat_map(|family| observed.node_port_addresses(family))
            .filter(|address| until > now && is_reachable(*address) && !self.facts.is_here(*address))
            .collect();
        self.absent.extend(missing.iter().map(|address| (*address, until)));
        if !missing.is_empty() {
            self.refresh_facts();
        }
        !missing.is_empty()
    }

    /// Drops addresses that have been lost for long enough.
    fn give_up_absent(&mut self, now: Moment) {
        let before = self.absent.len();
        self.absent.retain(|_, until| *until > now);
        if self.absent.len() != before {
            self.refresh_facts();
        }
    }

    /// Reads the gateways of the default routes. Keeps the known ones if they cannot be read; and a family without a
    /// default route at the moment keeps its gateway, since the route will come back to it.
    fn read_gateways(&mut self, links: &mut dyn Links) -> Option<Unread> {
        match links.gateways() {
            Ok(mut found) => {
                self.knows_gateways = true;
                let reserved = &mut self.options.config.reserved;
                let known = reserved.neighbours().filter(|(user, _)| **user == User::Gateway);
                let missing = |of: &IpAddr| found.iter().all(|new| new.is_ipv4() != of.is_ipv4());
                let kept: Vec<IpAddr> = known.map(|(_, neighbour)| neighbour.address).filter(missing).collect();
                found.extend(kept);
                if reserved.set_neighbours(User::Gateway, found.into_iter().map(Neighbour::new)) {
                    self.refresh_facts();
                }
                None
            }
            Err(_) if self.knows_gateways => None,
            Err(error) => Some(Unread::new("default routes", error)),
        }
    }

    /// Takes the endpoints of `default/kubernetes` as API servers. While it has none, keeps the earlier ones.
    fn find_api_servers(&mut self) {
        let kubernetes = ObjectKey::new("default", "kubernetes");
        let ports = |slice: &EndpointSlice| -> Vec<u16> { slice.ports.iter().map(|port| port.port).collect() };
        let servers: Vec<Neighbour> = self
            .store
            .slices_of(&kubernetes)
            .flat_map(|slice| slice.endpoints.iter().map(move |endpoint| (endpoint.address, ports(slice))))
            .flat_map(|(address, ports)| ports.into_iter().map(move |port| Neighbour::tcp(address, port)))
            .collect();
        if !servers.is_empty() && self.options.config.reserved.set_neighbours(User::ApiServerEndpoint, servers) {
            self.refresh_facts();
        }
    }

    fn make_plan(&mut self, mut report: Report, now: Moment, ports: &mut Ports<'_>) -> Prepared {
        let Some(observed) = &self.observed else { return Prepared { report, ..Prepared::default() } };
        let config = &self.options.config;
        let mut changes = if report.full {
            diff(&self.wanted, observed, config)
        } else {
            diff_changed(&self.wanted, observed, &self.changed, config)
        };
        if report.full {
            report.foreign = Foreign { virtual_servers: foreign(&self.wanted, observed, config).collect() };
            report.refused = refused(self.wanted.desired());
        }
        if let Some(stopped) =
            self.safeguard.check(held::losing(&changes), observed, &self.store, self.wanted.desired(), now)
        {
            held::hold(&stopped, &mut changes, observed);
            report.stopped = Some(stopped.to_string().into());
        }
        let kept = rules::Kept::new(&self.leaving, &changes, observed);
        let mut flows = udp::stale(&changes, &self.wanted, &self.drains);
        if report.full && !self.settled {
            for (place, answering) in udp::all(&self.wanted, &self.drains) {
                flows.entry(place).or_insert(answering);
            }
        }
        for place in &self.unforgotten {
            let key = udp::virtual_server(*place);
            flows.entry(*place).or_insert_with(|| udp::answering(&key, &self.wanted, &self.drains));
        }
        let mut plan = plan(changes, &self.wanted, observed, &self.drains);
        plan.forget = flows;
        self.plan_drains(report.full, &mut plan, now, ports);
        if report.full {
            plan.create_device = !reading::has_device(&self.host);
            (plan.sysctls, report.unmet) = reading::sysctl_changes(ports.sysctls, &self.options.host);
            match reading::timeout_changes(ports.ipvs, &self.options.timeouts) {
                Ok(timeouts) => plan.timeouts = timeouts,
                Err(error) => report.unread.push(error),
            }
        }
        let mut inputs = BTreeMap::new();
        for family in self.options.config.families.iter() {
            if !report.full && self.has_same_rules(family) {
                continue;
            }
            if self.rules_retry.get(&family).is_some_and(|retry| retry.at > now) {
                plan.rules_put_off.insert(family);
                report.rules_put_off.insert(family);
                continue;
            }
            match self.plan_rules(family, report.full, &kept, &mut plan, ports.rules) {
                Ok(None) => {
                    self.rules_retry.remove(&family);
                }
                Ok(Some(new)) => {
                    inputs.insert(family, new);
                }
                Err(error) => {
                    plan.rules_put_off.insert(family);
                    report.unread.push(error);
                }
            }
        }
        self.order_by_rules(&mut plan, &kept, &inputs);
        if report.full && self.settled && !self.schedule.is_failing() {
            report.drift = self.drift(&plan, &inputs);
        }
        Prepared { plan, inputs, report, ready: true }
    }

    /// Moves operations that need no rules before them, and records which virtual servers must not be served without rules.
    fn order_by_rules(&self, plan: &mut Plan, kept: &rules::Kept, inputs: &BTreeMap<Family, rules::Inputs>) {
        let changing = |family: &Family| plan.rules.iter().any(|change| change.family == *family);
        let waiting: BTreeMap<Family, rules::Inputs> = self
            .options
            .config
            .families
            .iter()
            .filter(|family| plan.rules_put_off.contains(family) || changing(family))
            .map(|family| {
                let new = inputs.get(&family).cloned();
                let capabilities = self.options.capabilities;
                let made = || rules::Inputs::new(family, &self.wanted, &self.facts, capabilities).with_kept(kept);
                (family, new.unwrap_or_else(made))
            })
            .collect();
        // Once for each family: the inputs hold every guarded load balancer.
        let compared: BTreeMap<Family, (rules::Inputs, Option<&rules::Inputs>)> = waiting
            .into_iter()
            .map(|(family, new)| {
                // Rules that differ although their inputs do not were changed by somebody else, nobody knows how.
                let before = self.rules.get(&family).filter(|before| **before != new);
                // The programs are asked for their capabilities only when rules are made.
                let new = match before {
                    Some(before) => new.with_capabilities(before.capabilities()),
                    None => new,
                };
                (family, (new, before))
            })
            .collect();
        let needs = |key: &VirtualServerKey| {
            let (Some(frontend), Some((new, before))) = (self.wanted.frontend(key), compared.get(&key.family().into()))
            else {
                return false;
            };
            new.are_needed_by(frontend, *before)
        };
        let is_there = |key: &VirtualServerKey| {
            self.observed.as_ref().is_some_and(|observed| observed.virtual_servers.contains_key(key))
        };
        plan.put_rules_last(needs, is_there);
        if compared.is_empty() {
            return;
        }
        let added = plan.serve.iter().filter_map(|operation| match operation {
            Operation::AddVirtualServer(server) => Some(server.key),
            _ => None,
        });
        let has_ranges =
            |key: &VirtualServerKey| self.wanted.frontend(key).is_some_and(|frontend| frontend.source_ranges.is_some());
        plan.guarded = added.filter(|key| compared.contains_key(&key.family().into()) && has_ranges(key)).collect();
    }

    /// Whether the rules of a family cannot have changed. Costs O(changed entries); building `Inputs` costs O(guarded load
    /// balancers). Rules depend only on node facts and on entries in sets.
    fn has_same_rules(&self, family: Family) -> bool {
        let changed = self.changed.entries.iter().any(|(set, _)| set.family == family);
        let is_known = self.rules.contains_key(&family) && !self.rules_retry.contains_key(&family);
        !changed && !self.new_facts && is_known
    }

    /// Checks the real servers that drain, and adds the result to the plan.
    fn plan_drains(&mut self, full: bool, plan: &mut Plan, now: Moment, ports: &mut Ports<'_>) {
        for key in self.drains.due(now) {
            let listed = ports.ipvs.real_servers(&key);
            let verdicts = match &listed {
                Ok(listed) => self.drains.observe(&key, listed, now),
                Err(error) if error.kind() == PortErrorKind::NotFound => {
                    // Somebody deleted the virtual server with all its real servers.
                    self.drains.forget_virtual_server(&key);
                    continue;
                }
                Err(_) => self.drains.observe_failed(&key, now),
            };
            if !self.wanted.has_server(&key) {
                continue;
            }
            let watched = verdicts.finished.iter().map(|finished| finished.real);
            for real in watched.chain(verdicts.waiting.iter().map(|waiting| waiting.real)) {
                if self.wanted.has_real_server(&key, &real) {
                    self.drains.cancel(&key, &real);
                }
            }
            let finished =
                verdicts.finished.iter().filter(|finished| !self.wanted.has_real_server(&key, &finished.real));
            plan.retire.extend(finished.map(|finished| Operation::DeleteRealServer(key, finished.real)));
            // A full pass has already compared the weights.
            for server in listed.iter().flatten().filter(|_| !full).map(|listed| listed.server) {
                if verdicts.takes_connections.contains(&server.key) && !self.wanted.has_real_server(&key, &server.key) {
                    let drained = server.with_weight(Weight::DRAIN);
                    plan.retire.push(Operation::UpdateRealServer(key, drained));
                }
            }
        }
    }

    /// Adds the change of a family's rules, if any. Returns the inputs of the rules if the kernel should have them after
    /// this pass and is not known to have them already.
    fn plan_rules(
        &self,
        family: Family,
        full: bool,
        kept: &rules::Kept,
        plan: &mut Plan,
        port: &mut dyn Rules,
    ) -> Result<Option<rules::Inputs>, Unread> {
        let unread = |error| Unread::new(format_args!("rules of {}", family.name()), error);
        let mut capabilities = self.options.capabilities;
        let written = self.rules.get(&family);
        if let (false, Some(written)) = (full, written) {
            capabilities = written.capabilities();
        } else {
            capabilities.random_fully &= port.has_random_fully(family).map_err(unread)?;
        }
        let inputs = rules::Inputs::new(family, &self.wanted, &self.facts, capabilities).with_kept(kept);
        if !full && written == Some(&inputs) {
            return Ok(None);
        }
        let dump = port.dump(family).map_err(unread)?;
        let invalid =
            |error: &(dyn std::error::Error + 'static)| unread(PortError::from_error(PortErrorKind::Invalid, error));
        let rules = rules::compile(&inputs).map_err(|error| invalid(&error))?;
        let changes = rules.changes(&dump).map_err(|error| invalid(&error))?;
        if !changes.is_empty() {
            let late = written.is_some_and(|written| inputs.only_relaxes(written));
            let stage = if late { &mut plan.relax } else { &mut plan.rules };
            let mut change = RulesChange::new(family, changes);
            for capabilities in capabilities.reduced() {
                let rules = rules::compile(&inputs.clone().with_capabilities(capabilities));
                let changes =
                    rules.map_err(|error| invalid(&error))?.changes(&dump).map_err(|error| invalid(&error))?;
                // Skip it if the reduced rules are the same: the kernel would refuse them again.
                if changes != change.changes {
                    change.without.push((capabilities, changes));
                }
            }
            stage.push(change);
        }
        Ok(Some(inputs))
    }

    /// What somebody else changed: operations on things that the input did not change.
    fn drift(&self, plan: &Plan, inputs: &BTreeMap<Family, rules::Inputs>) -> Vec<Step> {
        let changed = &self.changed;
        let names = Names::new(&self.store, &self.wanted);
        let mut drift = Vec::new();
        drift.extend(plan.create_device.then(Step::device));
        drift.extend(plan.sysctls.iter().map(Step::sysctl));
        drift.extend(plan.timeouts.iter().map(Step::timeouts));
        drift.extend(plan.create_sets.iter().copied().map(Step::create_set));
        for (action, entries) in [(Action::Add, &plan.add_entries), (Action::Delete, &plan.delete_entries)] {
            for (set, elements) in entries {
                let others = elements.iter().filter(|element| !changed.entries.contains(&(*set, (*element).clone())));
                drift.extend(others.map(|element| Step::entry(action, *set, element)));
            }
        }
        let unfinished = |step: &Step| self.unfinished.contains(&(step.part, step.name.clone(), step.detail.clone()));
        for change in plan.rules.iter().chain(&plan.relax) {
            let same = self.rules.get(&change.family) == inputs.get(&change.family);
            drift.extend(same.then(|| Step::rules(change)));
        }
        for (action, addresses) in
            [(Action::Add, &plan.bind_first), (Action::Add, &plan.bind), (Action::Delete, &plan.unbind)]
        {
            let others = addresses
                .iter()
                .filter(|address| !changed.addresses.contains(address) && !changed.elsewhere.contains(address));
            drift.extend(others.map(|address| Step::address(action, *address)));
        }
        for operation in [&plan.serve_first, &plan.retire_first, &plan.serve, &plan.retire].into_iter().flatten() {
            let key = operation.virtual_server();
            let ended =
                matches!(operation, Operation::DeleteRealServer(key, real) if self.drains.is_draining(key, real));
            if !ended && !changed.virtual_servers.contains(&key) {
                drift.push(Step::operation(operation, &names));
            }
        }
        drift.retain(|step| !unfinished(step));
        drift
    }

    fn carry_out(
        &mut self,
        plan: &Plan,
        mut inputs: BTreeMap<Family, rules::Inputs>,
        report: &mut Report,
        clock: &dyn Fn() -> Moment,
        ports: &mut Ports<'_>,
    ) {
        let now = clock();
        let Some(observed) = &mut self.observed else { return };
        let names = Names::new(&self.store, &self.wanted);
        let applied = apply(plan, &self.wanted, observed, &names, ports);
        if !self.unmade.is_empty() {
            // Nothing was there when it was read, so a virtual server that was tried there is ours, whatever the answer.
            // One that waits for rules or entries may not have been tried.
            let waits = |key: &VirtualServerKey| {
                plan.guarded.contains(key) || self.wanted.frontend(key).is_some_and(|of| of.source_ranges.is_some())
            };
            let operations = plan.serve_first.iter().chain(&plan.serve);
            let tried: BTreeSet<VirtualServerKey> =
                operations.map(Operation::virtual_server).filter(|key| !waits(key)).collect();
            self.unmade.retain(|key| !tried.contains(key) && !observed.virtual_servers.contains_key(key));
        }
        self.changed = Changed::default();
        // Virtual servers that wait for rules or entries are served by the pass that writes those.
        for key in plan.guarded.iter().filter(|key| !observed.virtual_servers.contains_key(key)) {
            self.changed.virtual_servers.insert(*key);
            if let VirtualServerKey::Address { addr, .. } = key {
                self.changed.addresses.insert(*addr);
            }
        }
        self.new_facts = false;
        for (key, real) in applied.drained.iter().chain(&plan.adopt_drains) {
            self.drains.begin(*key, *real, now);
        }
        for (key, real) in &applied.settled {
            self.drains.deleted(key, real);
        }
        for key in &applied.deleted {
            self.drains.forget_virtual_server(key);
            self.leaving.remove(key);
        }
        let failed_to_forget = applied.failures.iter().any(|failure| failure.step.part == Part::Flows);
        self.unforgotten = if failed_to_forget { plan.forget.keys().copied().collect() } else { BTreeSet::new() };
        // Re-read at once after a surprise, but not twice in a row, or a contradictory kernel would loop us.
        let surprised = applied.surprises > 0;
        if surprised && !self.surprised {
            self.schedule.request_full(now);
        }
        self.surprised = surprised;
        // Families that were not planned although they may have changed: forget their rules.
        let skipped = !report.unread.is_empty();
        self.rules.retain(|family, _| !skipped || inputs.contains_key(family));
        let failed: BTreeMap<&str, PortErrorKind> = applied
            .failures
            .iter()
            .filter(|failure| failure.step.part == Part::Rules)
            .map(|failure| (&*failure.step.name, failure.error.kind()))
            .collect();
        // Do not try again what this kernel has shown to lack.
        for (family, capabilities) in &applied.reduced {
            let known = self.options.capabilities;
            self.options.capabilities =
                known.both(rules::Capabilities { random_fully: known.random_fully, ..*capabilities });
            if let Some(taken) = inputs.remove(family) {
                inputs.insert(*family, taken.with_capabilities(*capabilities));
            }
        }
        for (family, inputs) in inputs {
            let Some(kind) = failed.get(family.name()) else {
                self.rules.insert(family, inputs);
                self.rules_retry.remove(&family);
                continue;
            };
            // Without the lock, or when skipped, nothing changed. After another failure one table may be as wanted and
            // another not.
            if !matches!(kind, PortErrorKind::Busy | PortErrorKind::Skipped) {
                self.rules.remove(&family);
            }
            let seed = self.options.seed;
            let retry = self.rules_retry.entry(family).or_insert_with(|| RulesRetry::new(seed));
            retry.failed(clock());
        }
        // A pass for changes retries only what changed.
        if report.full {
            self.unfinished.clear();
        }
        let failed_steps = applied.failures.iter().map(|failure| &failure.step);
        self.unfinished.extend(failed_steps.map(|step| (step.part, step.name.clone(), step.detail.clone())));
        if applied.failures.iter().any(|failure| failure.error.kind() == PortErrorKind::Unknown) {
            self.observed = None;
        }
        report.serves_nothing = !applied.failures.is_empty() && self.serves_nothing();
        report.draining = self.drains.len();
        report.applied = applied;
    }

    /// Whether none of the wanted virtual servers exists.
    fn serves_nothing(&self) -> bool {
        let is_there =
            |key: FrontendKey| self.observed.as_ref().is_some_and(|observed| observed.serves(&key).is_some());
        let mut wanted = self.desired().frontends().peekable();
        wanted.peek().is_some() && !wanted.any(|frontend| is_there(frontend.key))
    }

    /// Reduces memory by rebuilding everything that is kept; call it after the first pass.
    pub fn compact(&mut self) {
        self.store.compact();
        self.wanted.compact();
        if let Some(observed) = &mut self.observed {
            observed.compact();
        }
    }

    /// The name of the node.
    pub fn node_name(&self) -> &str {
        self.store.node_name()
    }

    /// The objects.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What the Services mean, as of the last pass.
    pub fn desired(&self) -> &Desired {
        self.wanted.desired()
    }

    /// What IPVS has to have for it.
    pub fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// What the kernel holds, as far as is known.
    pub fn observed(&self) -> Option<&Observed> {
        self.observed.as_ref()
    }

    /// The node facts: what compiling needs besides the Services.
    pub fn facts(&self) -> &NodeFacts {
        &self.facts
    }

    /// The safeguard: holds deletions back when there are too many at once.
    pub fn safeguard(&self) -> &Safeguard {
        &self.safeguard
    }

    /// Real servers that drain.
    pub fn drains(&self) -> &Drains {
        &self.drains
    }

    /// Since when something is wanted that the kernel does not have; `None` when it has everything, and before
    /// [`Proxier::start`], when nothing is wanted yet. Health checks use this (`/healthz`).
    pub fn pending_since(&self) -> Option<Moment> {
        self.schedule.pending_since().filter(|_| self.started)
    }

    /// When passes run.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// Counters over all passes.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// What was left out of the current objects: of Services and slices, then of the Node.
    pub fn rejections(&self) -> impl Iterator<Item = &Rejection> {
        self.store.rejections().chain(&self.node_rejections)
    }
}

/// Virtual servers that Services ask for and do not get.
fn refused(desired: &Desired) -> Vec<Refused> {
    let reserved = desired.rejected().map(|(service, refusal)| Refused {
        service: service.to_string(),
        key: refusal.key,
        reason: refusal.reason(),
    });
    let claimed = desired.conflicts().map(|conflict| Refused {
        service: conflict.refused.to_string(),
        key: conflict.key,
        reason: format!("{} had it first", conflict.owner),
    });
    reserved.chain(claimed).collect()
}

/// When to retry rules that could not be restored.
#[derive(Clone, Debug)]
struct RulesRetry {
    at: Moment,
    backoff: Backoff,
}

impl RulesRetry {
    /// The longest pause: virtual servers that need rules should not wait much longer than for the lock.
    const LONGEST: Duration = Duration::from_secs(5);

    fn new(seed: u64) -> Self {
        RulesRetry { at: Moment::ZERO, backoff: Backoff::new(Backoff::FIRST, Self::LONGEST, seed) }
    }

    fn failed(&mut self, now: Moment) {
        self.at = now.saturating_add(self.backoff.next_pause());
    }
}

#[derive(Debug, Default)]
struct Prepared {
    plan: Plan,
    /// Inputs of the rules that the kernel has after this plan.
    inputs: BTreeMap<Family, rules::Inputs>,
    report: Report,
    /// The plan may be carried out: the kernel could be read.
    ready: bool,
}
