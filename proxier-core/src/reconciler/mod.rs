//! The reconciler: takes objects, and brings the kernel to serve them.

mod cluster_nodes;
mod cold_start;
mod drains;
mod indexing;
mod input;
mod others;
mod own_transactions;
mod schedule;
mod surroundings;
mod totals;
mod view;

pub use others::Removal;
pub use schedule::Limits;
pub use totals::Totals;
pub use view::ServerCounts;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::config::{Config, MayAskFor};
use crate::modes::shared::flows;
use crate::modes::shared::localhost;
use crate::modes::shared::networks;
use crate::modes::shared::sysctls::{self, HostSettings};
use crate::modes::{self, CarryOut, Mode, Pass, Plan, fast_path, iptables, ipvs, localhost_relay, nftables, userspace};
use crate::net::{Family, Network, Protocol};
use crate::plan::names::Names;
use crate::plan::operation::Operation;
use crate::plan::report::{Applied, Report, Unread};
use crate::plan::step::{Action, Part, Step};
use crate::ports::{PortError, PortErrorKind, Ports, UdpServices};
use crate::reconciler::cluster_nodes::ClusterNodes;
use crate::reconciler::drains::Drains;
use crate::reconciler::indexing::{IndexUpdate, RefreshOutcome};
use crate::reconciler::others::Judgement;
use crate::reconciler::own_transactions::{OwnTransactions, RecordingTables};
use crate::reconciler::schedule::Schedule;
use crate::safeguard::{Kernel, MassRemoval, Safeguard, Stopped};
use crate::service::{Changes, Desired, NodeFacts};
use crate::snapshot::{HostAddresses, Node, ObjectKey, ObjectKind, Rejection, Store};
use crate::time::Moment;

/// Settings of a [`Reconciler`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Options {
    /// Configuration of compilation and of the modes.
    pub config: Config,
    /// Settings of the host.
    pub host: HostSettings,
    /// Part of the kernel that serves Services.
    pub mode: modes::Kind,
    /// Settings of IPVS mode.
    pub ipvs: ipvs::Options,
    /// Settings of iptables mode; restricted further by what the iptables programs report.
    pub iptables: iptables::Options,
    /// Settings of userspace mode.
    pub userspace: userspace::Options,
    /// Intervals between passes.
    pub limits: Limits,
    /// Limits above which deletions are held back.
    pub mass_removal: MassRemoval,
    /// Time for which node ports are still served on an address that this host has lost. Default 10 s: a DHCP client, a
    /// restarting network manager or an administrator takes an address away and gives it back, and connections survive.
    /// With 0 they end at once. An address that is missing when the first pass finds node ports on it gets the same time.
    pub address_grace: Duration,
    /// Keeps the nodes of a cluster from retrying together: any number that differs from node to node.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            config: Config::default(),
            host: HostSettings::default(),
            mode: modes::Kind::default(),
            ipvs: ipvs::Options::default(),
            iptables: iptables::Options::default(),
            userspace: userspace::Options::default(),
            limits: Limits::default(),
            mass_removal: MassRemoval::default(),
            address_grace: Duration::from_secs(10),
            seed: 0,
        }
    }
}

impl Options {
    /// The mode that they name.
    fn new_mode(&self, facts: &NodeFacts) -> Box<dyn Mode> {
        match self.mode {
            modes::Kind::Ipvs => Box::new(ipvs::Mode::new(&self.config, &self.ipvs, self.seed)),
            modes::Kind::Nftables => Box::new(nftables::Mode::new(&self.config)),
            modes::Kind::Iptables => {
                Box::new(iptables::Mode::new(facts, self.iptables, self.host.tcp_be_liberal, self.seed))
            }
            modes::Kind::Userspace => Box::new(userspace::Mode::new(&self.userspace)),
        }
    }
}

/// The reconciler of one node: keeps the wanted state, knows the kernel's, and brings the kernel to the wanted one.
///
/// A state machine: it acts only when called, and gets the time as `now`. Objects go in as they change; [`Reconciler::pass`]
/// programs them. A pass for changes costs O(changed objects); a full pass reads the kernel: at the start, every
/// [`Limits::max_interval`], after a failure and on request.
///
/// Before [`Reconciler::start`] nothing is changed: half a list of Services would delete the other half.
///
/// ```
/// use std::time::Duration;
/// use proxier_core::fake::FakeKernel;
/// use proxier_core::modes::Kind;
/// use proxier_core::objects::{EndpointSliceObject, ServiceObject};
/// use proxier_core::reconciler::{Options, Reconciler};
/// use proxier_core::snapshot::ObjectKey;
///
/// let service: ServiceObject = serde_json::from_str(r#"{
///     "metadata": {"namespace": "demo", "name": "web"},
///     "spec": {"clusterIP": "10.96.0.10", "ports": [{"name": "http", "port": 80}]}
/// }"#)?;
/// let mut slice: EndpointSliceObject = serde_json::from_str(r#"{
///     "metadata": {"namespace": "demo", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
///     "addressType": "IPv4",
///     "ports": [{"name": "http", "port": 8080}],
///     "endpoints": [{"addresses": ["10.244.1.7"]}]
/// }"#)?;
///
/// let (mut kernel, mut now) = (FakeKernel::new(), Duration::ZERO);
/// let mut proxier = Reconciler::new("node-a", Options::default(), now);
/// assert_eq!((proxier.node_name(), proxier.mode()), ("node-a", Kind::Ipvs));
/// proxier.replace_objects([&service], [&slice], now);
/// assert_eq!(proxier.next_wake(), None); // the lists may not be complete
/// proxier.start(now);
/// let report = proxier.pass(&|| now, &mut kernel.ports()).ok_or("not due")?;
/// assert!(report.full && report.is_done());
/// assert_eq!(kernel.state().ipvs, "-A -t 10.96.0.10:80 -s rr\n-a -t 10.96.0.10:80 -r 10.244.1.7:8080 -m -w 1\n");
/// proxier.compact(); // the memory that a first list of many objects took
///
/// // An endpoint is added: one operation, and nothing is read.
/// now += Duration::from_secs(5);
/// slice.endpoints.push(slice.endpoints[0].clone());
/// slice.endpoints[1].addresses = vec!["10.244.1.8".into()];
/// assert!(proxier.upsert_slice(&slice, now));
/// let report = proxier.pass(&|| now, &mut kernel.ports()).ok_or("not due")?;
/// assert_eq!((report.full, report.writes()), (false, 1));
/// assert!(!proxier.upsert_slice(&slice, now)); // the same again
///
/// now += Duration::from_secs(5);
/// proxier.delete_service(&ObjectKey::new("demo", "web"), now);
/// proxier.delete_slice(&ObjectKey::new("demo", "web-1"), now);
/// proxier.pass(&|| now, &mut kernel.ports());
/// assert_eq!(kernel.state().ipvs, "");
/// assert_eq!(proxier.next_wake(), Some(Duration::from_secs(30))); // the next full pass
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[expect(clippy::struct_excessive_bools, reason = "each is one question about the past, and none excludes another")]
#[derive(Debug)]
pub struct Reconciler {
    options: Options,
    store: Store,
    node: Node,
    node_rejections: Vec<Rejection>,
    cluster_nodes: ClusterNodes,
    /// Networks of cluster IPs that the cluster names.
    service_cidrs: Arc<[Network]>,
    host: HostAddresses,
    facts: NodeFacts,
    /// Frontends of all Services.
    desired: Desired,
    /// Differences from the last written state.
    changes: Changes,
    /// Services to compile again.
    pending: BTreeSet<ObjectKey>,
    /// The addresses or default routes of the host may have changed.
    host_stale: bool,
    /// Addresses that the host has lost, with the time when each is given up.
    absent: BTreeMap<IpAddr, Moment>,
    /// Release of the kernel, once it has been read.
    release: Option<String>,
    /// Packets outside a connection's window are valid to connection tracking, as the last full pass found.
    tcp_is_liberal: bool,
    /// The default routes have been read.
    knows_gateways: bool,
    /// The addresses on which an earlier process served node ports have been checked.
    knows_served: bool,
    mode: Box<dyn Mode>,
    localhost: localhost_relay::Tracker,
    fast_path: fast_path::Tracker,
    safeguard: Safeguard,
    /// Safeguard of the Frontends that other modes have left in the kernel.
    others: Safeguard,
    schedule: Schedule,
    started: bool,
    /// The first stage of a cold start has been tried.
    tried_first: bool,
    /// A full pass has succeeded.
    settled: bool,
    /// Rules had to wait in the last pass.
    put_off: bool,
    /// The last pass found something unexpected in the kernel.
    surprised: bool,
    /// Endpoints that have left and may keep connections.
    drains: Drains,
    /// Addresses and ports whose UDP flows could not be forgotten yet.
    unforgotten: BTreeSet<SocketAddr>,
    /// Steps that failed in the last full pass and since. The next full pass finds them again; they are not drift.
    unfinished: BTreeSet<(Part, String, String)>,
    /// Whether objects of another mode have gone since UDP flows were checked.
    sweep: bool,
    /// Addresses and ports on which other modes served UDP.
    left: BTreeSet<SocketAddr>,
    totals: Totals,
    /// Own transactions of nf_tables.
    own_transactions: OwnTransactions,
    /// Time of the last or next comparison of everything because another program had changed tables of nf_tables.
    compared_tables_at: Option<Moment>,
}

impl Reconciler {
    /// Time for which the first pass waits for the lock of iptables: 5 s, as kube-proxy does.
    pub(crate) const FIRST_LOCK_WAIT: Duration = Duration::from_secs(5);
    /// Time for which later passes wait for it: 1 s, the least that the programs allow. They retry after a growing pause.
    pub(crate) const SHORT_LOCK_WAIT: Duration = Duration::from_secs(1);

    /// The reconciler of the node of this name (`nodeName` of endpoints). `now` is the origin of its time.
    pub fn new(node_name: &str, mut options: Options, now: Moment) -> Self {
        let facts = options.mode.facts();
        if !facts.has_virtual_servers {
            options.config.ipvs.defaults = None;
        }
        if !facts.follows_policy() {
            options.config.ipvs.may_ask_for = MayAskFor::empty();
        }
        let node = Node::new(node_name);
        let host = HostAddresses::default();
        let mut facts = NodeFacts::new(&options.config, &node, &host);
        options.mode.describe(&mut facts, options.iptables);
        let mut store = Store::new(node_name).with_abilities(options.mode.facts().abilities);
        if options.config.lets(MayAskFor::NODE_WEIGHTS) {
            store = store.keep_nodes();
        }
        Reconciler {
            store,
            node_rejections: Vec::new(),
            cluster_nodes: ClusterNodes::default(),
            service_cidrs: Arc::default(),
            node,
            host,
            desired: Desired::new(),
            changes: Changes::default(),
            pending: BTreeSet::new(),
            host_stale: true,
            absent: BTreeMap::new(),
            release: None,
            tcp_is_liberal: options.host.tcp_be_liberal,
            knows_gateways: false,
            knows_served: false,
            mode: options.new_mode(&facts),
            localhost: localhost_relay::Tracker::default(),
            fast_path: fast_path::Tracker::default(),
            facts,
            safeguard: Safeguard::new(options.mass_removal),
            others: Safeguard::new(options.mass_removal),
            schedule: Schedule::new(options.limits, options.seed, now),
            started: false,
            tried_first: false,
            settled: false,
            put_off: false,
            surprised: false,
            drains: Drains::default(),
            unforgotten: BTreeSet::new(),
            unfinished: BTreeSet::new(),
            sweep: false,
            left: BTreeSet::new(),
            totals: Totals::default(),
            own_transactions: OwnTransactions::default(),
            compared_tables_at: None,
            options,
        }
    }

    /// The lists are complete: passes may begin, and a full one is due. Earlier requests count as made now.
    pub fn start(&mut self, now: Moment) {
        if !self.started {
            self.started = true;
            self.schedule = Schedule::new(self.options.limits, self.options.seed, now);
        }
    }

    /// Computes the node facts again, and compiles every Service if they differ.
    fn refresh_facts(&mut self) {
        let absent = self.absent.keys().copied();
        let mut facts = NodeFacts::with_absent(&self.options.config, &self.node, &self.host, absent);
        facts.set_node_weights(self.cluster_nodes.weights().clone());
        self.options.mode.describe(&mut facts, self.options.iptables);
        facts.set_service_cidrs(self.service_cidrs.clone());
        if facts != self.facts {
            self.facts = facts;
            self.recompile();
        }
    }

    /// The next refresh compiles every Service.
    fn recompile(&mut self) {
        self.mode.facts_changed();
        self.pending.extend(self.store.services().map(|service| service.key.clone()));
        self.pending.extend(self.store.frontend_keys().cloned());
    }

    /// Time at which [`Reconciler::pass`] has something to do; in the past: now. `None` before [`Reconciler::start`].
    pub fn next_wake(&self) -> Option<Moment> {
        let next = self.schedule.next().filter(|_| self.started)?;
        let looks = [self.mode.next_wake(), self.next_loss(), self.drains.next()].into_iter().flatten();
        Some(looks.map(|look| look.max(self.schedule.earliest())).fold(next.at, Moment::min))
    }

    /// Time at which the next lost address is given up.
    fn next_loss(&self) -> Option<Moment> {
        self.absent.values().min().copied()
    }

    /// Runs the pass that is due. `None` if none is.
    ///
    /// `clock` returns the time, on the scale of the other methods; it is read again when the pass ends, since pauses count
    /// from there.
    pub fn pass(&mut self, clock: &dyn Fn() -> Moment, ports: &mut Ports<'_>) -> Option<Report> {
        if !self.started {
            return None;
        }
        let now = clock();
        let is_due = |at: Option<Moment>| at.is_some_and(|at| at <= now);
        if is_due(self.mode.next_wake()) || is_due(self.next_loss()) || is_due(self.drains.next()) {
            self.schedule.request(now);
        }
        let pass = self.schedule.start(now)?;
        let mut own_transactions = std::mem::take(&mut self.own_transactions);
        let mut tables = RecordingTables::new(ports.tables, &mut own_transactions);
        let mut ports = Ports {
            ipvs: ports.ipvs,
            sets: ports.sets,
            rules: ports.rules,
            links: ports.links,
            sysctls: ports.sysctls,
            tables: &mut tables,
            conntrack: ports.conntrack,
            routes: ports.routes,
            relays: ports.relays,
        };
        let report = self.run_pass(pass, now, clock, &mut ports);
        self.own_transactions = own_transactions;
        Some(report)
    }

    /// Runs a pass.
    fn run_pass(
        &mut self,
        pass: schedule::Pass,
        now: Moment,
        clock: &dyn Fn() -> Moment,
        ports: &mut Ports<'_>,
    ) -> Report {
        let mut report = Report::default();
        let first = self.serve_first(now, clock, ports);
        let plan = self.prepare(pass, now, false, &mut report, ports);
        if report.full {
            self.schedule.became_full();
        }
        if let Some(plan) = plan {
            // A running process retries soon, and must not delay anything else meanwhile.
            ports.rules.set_lock_wait(if self.settled { Self::SHORT_LOCK_WAIT } else { Self::FIRST_LOCK_WAIT });
            if self.carry_out(plan, &mut report, clock, ports) {
                self.schedule.request_full(now);
            }
        }
        if let Some((first, before)) = first {
            report.applied.add(before.applied);
            report.served_first = Some(first);
        }
        let end = clock();
        self.settled |= report.full && !report.has_failed() && !report.is_doubted;
        // What the lock of iptables held up is done: only a full pass shows that nothing else is missing.
        let put_off = std::mem::replace(&mut self.put_off, !report.rules_put_off.is_empty());
        if put_off && !report.full && !report.has_failed() {
            self.schedule.request_full(end);
        }
        self.sweep &= !report.full || report.has_failed();
        if report.has_failed() || report.applied.failures.is_empty() {
            self.schedule.done(end, !report.has_failed());
        } else {
            self.schedule.done_but_for_objects(end);
        }
        self.totals.add(&report, end);
        report
    }

    /// Carries out a plan. Returns whether the kernel has to be read again at once.
    fn carry_out(
        &mut self,
        plan: Plan,
        report: &mut Report,
        clock: &dyn Fn() -> Moment,
        ports: &mut Ports<'_>,
    ) -> bool {
        let mut applied = Applied { lacks: std::mem::take(&mut report.applied.lacks), ..Applied::default() };
        applied.carry_out(plan.sysctls.iter().map(Operation::Sysctl), &Names::NONE, ports);
        let now = clock();
        if self.mode.kind().facts().translates_packets && self.store.has_drains() {
            self.drains.follow(self.changes.frontends(), &self.desired, !self.settled, now);
        }
        let (names, desired) = (Names::new(&self.store, &self.desired), &self.desired);
        let arguments = CarryOut { names, desired, changes: &mut self.changes, report, clock };
        let outcome = plan.work.map(|work| self.mode.carry_out(work, arguments, ports)).unwrap_or_default();
        applied.add(outcome.applied);
        let guarded = plan.guarded.iter().map(Operation::Sysctl);
        if outcome.unwritten.contains(&Family::V4) {
            let why = "not written: the rules of IPv4 that have to be there first are not";
            let why = PortError::new(PortErrorKind::Skipped, why);
            guarded.for_each(|operation| applied.fail(operation.step(&Names::NONE), why.clone()));
        } else {
            applied.carry_out(guarded, &Names::NONE, ports);
        }
        self.localhost.apply(&plan.listeners, &Names::new(&self.store, &self.desired), &mut applied, ports);
        if let Some(change) = plan.fast_path {
            self.fast_path.apply(&self.options.config, *change, &mut applied, ports.tables);
        }
        // What is not written yet is translated as before.
        let is_unwritten = |place: &SocketAddr| outcome.unwritten.contains(&Family::of(place.ip()));
        let (wait, forget): (UdpServices, UdpServices) =
            plan.forget.into_iter().partition(|(place, _)| is_unwritten(place));
        let lack = (!self.mode.kind().facts().is_process).then_some(flows::STAY);
        let forgotten = flows::forget(Protocol::Udp, &forget, lack, ports.conntrack, &mut applied);
        let mut cut = self.drains.due(&self.desired, now);
        cut.retain(|place, _| !is_unwritten(place));
        if flows::forget(Protocol::Tcp, &cut, Some(flows::STAY_TCP), ports.conntrack, &mut applied) {
            self.drains.done(cut.into_keys(), now);
        }
        applied.count(Part::Flows, Action::Delete, applied.flows.total());
        let again = forget.into_keys().filter(|_| !forgotten);
        self.unforgotten = wait.into_keys().chain(again).collect();
        if report.full {
            self.unfinished.clear();
        }
        let failed = applied.failures.iter().map(|failure| &failure.step);
        self.unfinished.extend(failed.map(|step| (step.part, step.name.clone(), step.detail.clone())));
        report.serves_nothing = !applied.failures.is_empty() && self.serves_nothing();
        report.applied = applied;
        let was_surprised = std::mem::replace(&mut self.surprised, outcome.surprised);
        outcome.read_again || (outcome.surprised && !was_surprised)
    }

    /// Whether the kernel, as far as known, serves none of the wanted Frontends.
    fn serves_nothing(&self) -> bool {
        let Some(kernel) = self.mode.kernel() else { return false };
        let mut wanted = self.desired.frontends().peekable();
        wanted.peek().is_some() && !wanted.any(|frontend| kernel.serves(&frontend.key).is_some())
    }

    /// Plan of a full pass now, without carrying it out.
    pub fn preview(&mut self, now: Moment, ports: &mut Ports<'_>) -> (Plan, Report) {
        let (safeguard, others) = (self.safeguard.clone(), self.others.clone());
        let mut report = Report::default();
        let mut plan = self.prepare(schedule::Pass::Full, now, true, &mut report, ports).unwrap_or_default();
        self.mode.forget_kernel();
        (self.safeguard, self.others) = (safeguard, others);
        self.schedule.request_full(now);
        let looked = plan.look_for_flows(ports.conntrack);
        report.unread.extend(looked.err().map(|error| Unread::new("tracked UDP connections", error)));
        (plan, report)
    }

    /// Compiles changed objects, reads the parts of the kernel that are needed, and makes the plan; `None` when the kernel could not be read.
    fn prepare(
        &mut self,
        pass: schedule::Pass,
        now: Moment,
        is_preview: bool,
        report: &mut Report,
        ports: &mut Ports<'_>,
    ) -> Option<Plan> {
        self.take_cluster_nodes();
        report.full = pass == schedule::Pass::Full || !self.mode.knows_kernel();
        if report.full || self.host_stale {
            match networks::read_host(ports.links) {
                Ok(host) => {
                    report.full |= self.take_host(host, now);
                    report.full = report.full || self.mode.routes_differ(ports.routes);
                }
                Err(error) => report.unread.push(error),
            }
            report.unread.extend(self.read_gateways(ports.links));
        }
        self.give_up_absent(now);
        self.find_api_servers();
        let refreshed = self.refresh_desired(now);
        report.health_checks_changed = report.full || refreshed.health_checks;
        // The safeguard has judged missing objects; everything else that goes was deleted by events. Before the first
        // comparison nothing is known to go.
        if self.others.has_compared() {
            // A Service that comes back may come before its endpoints.
            let gone = refreshed.frontends.iter().filter(|key| self.desired.frontend(key).is_none());
            self.others.believe(gone.copied());
        }
        if self.safeguard.has_compared() {
            self.safeguard.believe(refreshed.frontends);
        }
        if report.full && report.unread.is_empty() {
            let read = self.mode.read(&self.desired, &self.host, &self.facts, ports);
            report.unread.extend(read.err().into_iter().flatten());
        }
        if !report.unread.is_empty() {
            // Once the kernel can be read, compare everything.
            self.mode.forget_kernel();
            return None;
        }
        if self.take_served(now) {
            self.refresh_desired(now);
        }
        if report.full && !self.settled {
            // Nothing of this mode may get in the way of what serves, unless it serves most of it itself and replaces none of the rest.
            let Judgement { stopped, would_replace, .. } = self.judge_others(now, ports);
            let waits = |stopped: &Stopped| would_replace || stopped.is_most(&self.options.mass_removal);
            if let Some(stopped) = stopped.filter(waits) {
                (report.waits, report.is_doubted) = (true, true);
                report.stopped =
                    Some(format!("objects of other proxy modes serve, and this mode waits: {stopped}").into());
                self.mode.forget_kernel();
                return None;
            }
        }
        if report.full {
            self.tcp_is_liberal = sysctls::is_tcp_liberal(&self.options.host, ports.sysctls);
            report.refused = self.refused().collect();
        }
        self.plan(report, now, is_preview, ports)
    }

    /// Has the mode make its plan, and adds the rest.
    fn plan(&mut self, report: &mut Report, now: Moment, is_preview: bool, ports: &mut Ports<'_>) -> Option<Plan> {
        if self.release.is_none() {
            self.release = ports.sysctls.get(sysctls::OSRELEASE).ok();
        }
        let pass = Pass {
            names: Names::new(&self.store, &self.desired),
            desired: &self.desired,
            changes: &self.changes,
            facts: &self.facts,
            host: &self.host,
            settings: &self.options.host,
            tcp_is_liberal: self.tcp_is_liberal,
            full: report.full,
            is_preview,
            settled: self.settled,
            failing: self.schedule.is_failing(),
            sweep: (report.full && (self.sweep || !self.settled)).then_some(&self.left),
            unforgotten: &self.unforgotten,
            now,
        };
        let mut plan = Plan::default();
        let wanted = self.mode.sysctls(&pass, self.release.as_deref().unwrap_or_default());
        (plan.sysctls, report.unmet) = sysctls::changes(ports.sysctls, wanted);
        let mut stopped = None;
        let mut hold = |losing: Vec<_>, kernel: &dyn Kernel| {
            stopped = self.safeguard.check(losing, kernel, &self.store, &self.desired, now);
            stopped.iter().flat_map(Stopped::inherited).collect()
        };
        let prepared = self.mode.prepare(pass, &mut hold, report, ports)?;
        report.is_doubted = stopped.as_ref().is_some_and(|stopped| stopped.would_lose > stopped.unreadable);
        report.stopped = stopped.map(|stopped| stopped.to_string().into());
        if pass.full && prepared.routes_localhost {
            let (changes, unmet) = localhost::open(ports.sysctls);
            plan.guarded = changes;
            report.unmet.extend(unmet);
        } else if pass.full {
            let (changes, unmet) = localhost::close(ports);
            plan.sysctls.extend(changes);
            report.unmet.extend(unmet);
        }
        plan.listeners = self.localhost.plan(self.mode.kind(), &pass, report, ports);
        (plan.work, plan.forget) = (Some(prepared.work), prepared.forget);
        let of = (self.options.mode, &self.options.config, &self.host);
        plan.fast_path = self.fast_path.plan(of, report, ports.tables).map(Box::new);
        if pass.tells_drift() {
            let step = |operation: Operation<'_>| operation.step(&Names::NONE);
            let of_host = plan.sysctls.iter().chain(&plan.guarded).map(Operation::Sysctl).map(step);
            report.drift.splice(0..0, of_host);
            let is_unfinished =
                |step: &Step| self.unfinished.contains(&(step.part, step.name.clone(), step.detail.clone()));
            report.drift.retain(|step| !is_unfinished(step));
        }
        Some(plan)
    }

    /// Compiles changed objects, and removes missing objects that the safeguard takes for gone.
    fn refresh_desired(&mut self, now: Moment) -> RefreshOutcome {
        let pending = std::mem::take(&mut self.pending);
        let mut refreshed = self.refresh(&pending);
        let mut services = BTreeSet::new();
        for (kind, key) in self.safeguard.judge(&self.store, &self.desired, &self.facts, now) {
            services.extend(match kind {
                ObjectKind::Service => self.store.delete_service(&key),
                _ => self.store.delete_slice(&key),
            });
        }
        if !services.is_empty() {
            let later = self.refresh(&services);
            refreshed.frontends.extend(later.frontends);
            refreshed.health_checks |= later.health_checks;
        }
        self.desired.without_affinity = self.mode.without_affinity();
        refreshed
    }

    /// Compiles these Services again.
    fn refresh(&mut self, services: &BTreeSet<ObjectKey>) -> RefreshOutcome {
        let refreshed = RefreshOutcome::default();
        let mut indexing = IndexUpdate { mode: &mut *self.mode, changes: &mut self.changes, refreshed };
        self.desired.refresh(&self.store, &self.facts, services, &mut indexing);
        indexing.refreshed
    }
}
