//! The kernel's thread: receives changes, does what is due, and reports the results.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime};

use proxier_core::config::User;
use proxier_core::engine::Removal;
use proxier_core::modes::Cleaned;
use proxier_core::net::{ByFamily, Family};
use proxier_core::plan::report::{Refused, Report};
use proxier_core::plan::step::Step;
use proxier_core::service::HealthCheck;
use proxier_core::snapshot::{ObjectKey, ObjectKind};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use crate::engine::{Engine, Kernel, memory};
use crate::gather::Gather as _;
use crate::message::change::{Change, Unreadable};
use crate::message::{Event, Message};
use crate::output::{self, count};
use crate::problem::Problem;
use crate::sources::triggers::Triggers;
use crate::status::events::{Reason, Recorder, Regarding};
use crate::status::health::Health;
use crate::status::logging::Limiter;
use crate::status::metrics::Metrics;
use crate::status::service_health::{ListenAddresses, listen_addresses};

/// What the kernel's thread reports about a pass.
pub(crate) struct PassSummary {
    pub(crate) health_checks: BTreeMap<ObjectKey, HealthCheck>,
    pub(crate) listening: ListenAddresses,
}

#[expect(clippy::struct_excessive_bools, reason = "each is something that happens once")]
pub(crate) struct Worker {
    health: Arc<Health>,
    recorder: Recorder,
    limiter: Limiter,
    passed: mpsc::UnboundedSender<PassSummary>,
    triggers: Triggers,
    /// The addresses last given to the health check servers of Services.
    listening: Option<ListenAddresses>,
    has_passed: bool,
    /// The end of the last pass after which nothing was failing.
    free: Option<Instant>,
    /// Dropped when the first full pass has ended.
    compared: Option<Sender<()>>,
    has_written: bool,
    /// Changes since memory was last returned to the kernel.
    unreturned: u64,
    /// Features that the kernel turned out to lack.
    lacks: BTreeSet<String>,
    /// When to remove objects of other modes; `None`: no full pass has succeeded yet.
    clean_at: Option<Instant>,
    /// Whether this node's Node was seen, or seen to be deleted.
    saw_node: bool,
    /// Whether objects of other modes were removed.
    is_alone: bool,
    is_finished: bool,
}

/// How long objects of the initial list are collected before they are taken.
const TOGETHER: Duration = Duration::from_millis(1);
/// How long objects of another mode still serve next to this one, so that connections started there get their first
/// replies.
const OVERLAP: Duration = Duration::from_secs(2);
/// A pass that takes at least this long gets a line in the log, like the first that writes and those that fail.
const LONG: Duration = Duration::from_secs(1);
/// Pause before the next attempt to remove objects of other modes.
const CLEAN_AGAIN: Duration = Duration::from_secs(30);
/// Pause before checking again for what a cleanup cannot remove: a person may have removed it, and other programs may
/// have started, such as a firewall or the first pod's bridge.
const LOOK_AGAIN: Duration = Duration::from_secs(300);
/// Most changes of other programs to name in the log after a pass.
const NAMED: usize = 20;
/// Number of changes after which unused memory is returned to the kernel, when nothing has happened for [`QUIET`].
const MANY: u64 = 20;
const QUIET: Duration = Duration::from_millis(200);
/// Number of Services in the initial list from which memory is also returned before the first pass. That takes the
/// most, next to what reading the list has left behind.
const LARGE: u64 = 5_000;

impl Worker {
    /// Starts the thread. It ends when all senders are dropped; after each pass it reports the result. `started`: when
    /// this process started. `compared`: dropped after the first full pass.
    pub(crate) fn start(
        mut engine: Engine<impl Kernel>,
        started: SystemTime,
        inbox: mpsc::Receiver<Message>,
        (health, recorder): (Arc<Health>, Recorder),
        compared: Option<Sender<()>>,
    ) -> Result<mpsc::UnboundedReceiver<PassSummary>, Problem> {
        let problem = |error| Problem::new("", format!("no thread for the kernel ({error})"));
        let (passed, outcomes) = mpsc::unbounded_channel();
        let work = move || {
            let mut worker = Worker {
                health,
                recorder,
                limiter: Limiter::default(),
                passed,
                triggers: Triggers::new(started),
                listening: None,
                has_passed: false,
                free: None,
                compared,
                has_written: false,
                unreturned: 0,
                lacks: BTreeSet::new(),
                clean_at: None,
                saw_node: false,
                is_alone: false,
                is_finished: false,
            };
            // Its own runtime, because the process's may end while this thread still waits. Made in this thread: if the
            // thread cannot start, the caller would drop it, and asynchronous code may not drop a runtime.
            match Builder::new_current_thread().enable_time().build() {
                Ok(clock) => worker.work(&mut engine, inbox, &clock),
                Err(error) => tracing::error!("no clock for the kernel's thread ({error})"),
            }
        };
        std::thread::Builder::new().name("kernel".to_owned()).spawn(work).map_err(problem)?;
        Ok(outcomes)
    }

    /// Handles messages and does what is due, until all senders are dropped.
    fn work(&mut self, engine: &mut Engine<impl Kernel>, mut inbox: mpsc::Receiver<Message>, clock: &Runtime) {
        loop {
            let clean_in = self.clean_at.map(|at| at.saturating_duration_since(Instant::now()));
            if clean_in == Some(Duration::ZERO) {
                self.clean_up_after_others(engine);
                self.give_back();
            }
            let quiet_in = (self.unreturned >= MANY).then_some(QUIET);
            let idle = [engine.idle(), clean_in, quiet_in].into_iter().flatten().min();
            let message = match idle {
                Some(Duration::ZERO) => {
                    inbox.try_recv().map_err(|error| error == mpsc::error::TryRecvError::Disconnected)
                }
                // Created within the future, because the runtime has the clock.
                Some(idle) => clock
                    .block_on(async { tokio::time::timeout(idle, inbox.recv()).await })
                    .map_or(Err(false), |message| message.ok_or(true)),
                None => {
                    // The initial list is incomplete, and waking up for each object takes longer than the object.
                    std::thread::sleep(TOGETHER);
                    clock.block_on(inbox.recv()).ok_or(true)
                }
            };
            match message {
                Ok(message) => {
                    self.handle_message(engine, message);
                    // Receive everything that has arrived meanwhile.
                    while let Ok(message) = inbox.try_recv() {
                        self.handle_message(engine, message);
                    }
                }
                Err(true) => return,
                Err(false) if idle == quiet_in => self.give_back(),
                Err(false) => {}
            }
            if self.is_finished {
                return;
            }
            let start = Instant::now();
            let mut pending = self.pending_since(engine);
            if engine.idle() == Some(Duration::ZERO) {
                // A pass that nobody requested may take too long as well.
                pending = pending.or(Some(start));
            }
            self.health.set_pending(pending);
            self.health.set_pass(Some(start));
            if let Some(report) = engine.pass() {
                let is_first = !std::mem::replace(&mut self.has_passed, true);
                if !engine.proxier.schedule().is_failing() {
                    self.free = Some(Instant::now());
                }
                self.report_pass(engine, &report, start);
                let serves = report.full && !report.has_failed() && !report.waits;
                if serves {
                    self.health.set_ready();
                }
                if serves && self.clean_at.is_none() {
                    let cleaned = engine.clean_up_after_processes();
                    self.report_cleaned(&cleaned);
                    self.clean_at = Some(Instant::now() + OVERLAP);
                }
                if report.full {
                    self.compared = None;
                }
                if is_first {
                    engine.proxier.compact();
                }
                let needed_much = is_first || report.full;
                self.unreturned += report.writes();
                drop(report);
                if needed_much {
                    self.give_back();
                }
            }
            self.health.set_pending(self.pending_since(engine));
            self.health.set_pass(None);
        }
    }

    /// Since when a request is not done that could have been: what arrives during a long pass waits for its end.
    fn pending_since(&self, engine: &Engine<impl Kernel>) -> Option<Instant> {
        engine.pending_since().map(|since| self.free.map_or(since, |free| since.max(free)))
    }

    fn give_back(&mut self) {
        memory::give_back();
        self.unreturned = 0;
    }

    /// Removes objects of other modes until none are left. Retries failures after a while, and checks again for
    /// leftovers and obstacles.
    fn clean_up_after_others(&mut self, engine: &mut Engine<impl Kernel>) {
        let removal = if self.is_alone { Removal::Made(Cleaned::default()) } else { engine.clean_up_after_others() };
        let (mut cleaned, is_made) = match removal {
            Removal::Made(cleaned) => (cleaned, true),
            Removal::Unknown(cleaned) => (cleaned, false),
            Removal::Held(stopped) => {
                self.report_held(&format!("objects of other proxy modes stay: {stopped}"));
                (Cleaned::default(), false)
            }
        };
        self.is_alone = is_made && cleaned.leftovers().next().is_none();
        cleaned.left.extend(engine.obstacles());
        self.report_cleaned(&cleaned);
        let leftovers = cleaned.leftovers().count();
        self.health.metrics(|metrics| metrics.leftovers = number(leftovers));
        let pause = if is_made && cleaned.is_done() { LOOK_AGAIN } else { CLEAN_AGAIN };
        self.clean_at = Some(Instant::now() + pause);
    }

    fn report_cleaned(&mut self, cleaned: &Cleaned) {
        for leftover in cleaned.leftovers() {
            self.warn_of_node(Reason::LEFTOVERS, leftover);
        }
        if cleaned.removed() > 0 {
            tracing::info!("removed {} left by other proxy modes", count(cleaned.removed(), "object"));
        }
    }

    fn handle_message(&mut self, engine: &mut Engine<impl Kernel>, message: Message) {
        match message {
            Message::Resync => {
                engine.proxier.request_full(engine.now());
                self.clean_at = self.clean_at.map(|at| at.min(Instant::now()));
            }
            Message::HostChanged(came) => {
                let now = engine.now();
                engine.proxier.addresses_seen(came, now);
                engine.proxier.host_changed(now);
            }
            Message::TablesChanged(changes) => {
                if engine.tables_changed(&changes) {
                    tracing::debug!("another program changed nf_tables: everything is compared");
                }
            }
            Message::Neighbours(found) => {
                let now = engine.now();
                for (user, neighbours) in found {
                    engine.proxier.set_neighbours(user, neighbours, now);
                }
            }
            Message::Finish(patience, done) => {
                self.health.set_ending();
                let _main_has_ended = done.send(engine.kernel().finish(patience));
                self.is_finished = true;
            }
            Message::View(asked) => {
                let _nobody_waits_any_more = asked.send(engine.view());
            }
            Message::Begun(asked) => {
                let _nobody_waits_any_more = asked.send(engine.begun());
            }
            Message::ConfirmRemoval => match engine.proxier.confirm_removal(engine.now()) {
                0 => tracing::info!("SIGUSR1: nothing is held back"),
                count => {
                    tracing::warn!("SIGUSR1: {count} virtual servers that were held back are deleted now");
                    self.clean_at = self.clean_at.map(|at| at.min(Instant::now() + OVERLAP));
                }
            },
            Message::Event(Event { at, change }) => {
                match &change {
                    Change::Unreadable(unreadable) => {
                        self.report_unreadable(unreadable, engine.proxier.node_name(), at);
                    }
                    Change::Node(_) | Change::NodeGone => {
                        self.saw_node = true;
                        self.health.set_node_eligible(matches!(&change, Change::Node(node) if !node.leaving));
                    }
                    Change::ServiceCidr(name, networks) => {
                        let networks: Vec<String> = networks.iter().map(ToString::to_string).collect();
                        tracing::info!("ServiceCIDR {name}: cluster IPs are of {}", networks.join(", "));
                    }
                    Change::ServiceCidrGone(name) => tracing::info!("ServiceCIDR {name} was deleted"),
                    Change::DeleteSlice(key) => self.triggers.gone(key),
                    _ => {}
                }
                // Changes of Services and of endpoints, if it may ask for a pass. Nodes report every few minutes that they
                // are alive.
                let counted = match &change {
                    Change::UpsertService(_) | Change::DeleteService(_) => Some([1, 0]),
                    Change::UpsertSlice(_) | Change::DeleteSlice(_) => Some([0, 1]),
                    Change::Lost(..) | Change::Synced => Some([0, 0]),
                    _ => None,
                };
                let trigger = match &change {
                    Change::UpsertSlice(object) => self.triggers.trigger_of(object),
                    _ => None,
                };
                let is_complete = matches!(change, Change::Synced);
                let counts = engine.apply_change(change, at);
                // An object that was written again unchanged asks for none.
                if let Some([services, endpoints]) = counted
                    && engine.proxier.schedule().pending_since().is_some()
                {
                    self.health.queued(SystemTime::now());
                    self.health.metrics(|metrics| {
                        metrics.service_changes_pending += services;
                        metrics.endpoint_changes_pending += endpoints;
                    });
                }
                if is_complete && engine.proxier.totals().service_changes >= LARGE {
                    self.give_back();
                }
                if let Some(trigger) = trigger.filter(|_| counts) {
                    self.triggers.changed(trigger);
                }
            }
        }
    }

    fn report_unreadable(&mut self, unreadable: &Unreadable, node_name: &str, at: Instant) {
        let Unreadable { object, service, problem } = unreadable;
        self.health.metrics(|metrics| metrics.unreadable += 1);
        // An unreadable Node exists: clients are still sent to it.
        if matches!(object, Some((ObjectKind::Node, key)) if !self.saw_node && [node_name, ""].contains(&key.name())) {
            self.health.set_node_eligible(true);
        }
        let name = problem.object.as_deref().unwrap_or(&problem.origin);
        if !self.limiter.pass(name, at) {
            return;
        }
        let is_of_cluster = object.as_ref().is_some_and(|(kind, _)| *kind != ObjectKind::File);
        tracing::warn!("{problem}{}", if is_of_cluster { "; its last readable version stays in use" } else { "" });
        let regarding = match object {
            Some((ObjectKind::Service, key)) if !key.name().is_empty() => Regarding::Service(key.clone()),
            Some((ObjectKind::EndpointSlice, _)) => service.clone().map_or(Regarding::Node, Regarding::Service),
            _ => Regarding::Node,
        };
        self.recorder.record(regarding, Reason::UNREADABLE, problem.to_string());
    }

    /// Logs a pass, and updates health and metrics.
    fn report_pass(&mut self, engine: &mut Engine<impl Kernel>, report: &Report, start: Instant) {
        let end = Instant::now();
        let took = end.saturating_duration_since(start);
        let kind = if report.full { "full pass" } else { "pass" };
        if let Some(first) = &report.served_first {
            let names: Vec<String> = first.services.iter().map(ToString::to_string).collect();
            tracing::info!("{} served first, after {:.1} ms", names.join(", "), first.after.as_secs_f64() * 1e3);
        }
        let line = format!("{kind}: {} in {:.1} ms", count(report.writes(), "change"), took.as_secs_f64() * 1e3);
        let writes = report.writes() > 0;
        let is_remarkable = writes && (!self.has_written || report.has_failed()) || took >= LONG;
        self.has_written |= writes;
        if is_remarkable {
            tracing::info!("{line}");
        } else if writes {
            tracing::debug!("{line}");
        }
        self.health.board().passed(report, took, SystemTime::now());
        self.report_failures(report, end);
        for rejection in engine.proxier.rejections() {
            let object = format!("{} {} {}", rejection.kind, rejection.key, rejection.field);
            let service = match rejection.kind {
                ObjectKind::Service => Some(&rejection.key),
                ObjectKind::EndpointSlice => engine.proxier.store().service_of_slice(&rejection.key),
                _ => None,
            };
            self.warn(&object, end, service.cloned(), (Reason::INVALID_FIELD, rejection.to_string()));
        }
        for unmarked in engine.proxier.unmarked() {
            let object = format!("unmarked {}", unmarked.service);
            let service = Some(unmarked.service.clone());
            self.warn(&object, end, service, (Reason::NOT_AS_CONFIGURED, unmarked.to_string()));
        }
        // Requests from before the pass started are done.
        if engine.pending_since().is_none_or(|since| since >= start) {
            self.health.updated(SystemTime::now());
        }
        // A node that keeps more than is desired still serves, so load balancers must not leave it.
        let programmed = self.triggers.passed(report.full, report.has_failed(), SystemTime::now());
        let fast_path = if report.full { engine.fast_path_connections() } else { None };
        let (proxier, lacks) = (&engine.proxier, self.lacks.len());
        self.health.metrics(|metrics: &mut Metrics| {
            metrics.took.sync.observe(took);
            if report.full { &mut metrics.took.sync_full } else { &mut metrics.took.sync_partial }.observe(took);
            for (family, duration) in programmed {
                metrics.took.network_programming.of_mut(family).observe(duration);
            }
            for (family, duration) in &report.applied.took_for_flows {
                metrics.took.conntrack_sync.of_mut(*family).observe(*duration);
            }
            // The pass has handled them; retries are not counted again.
            (metrics.service_changes_pending, metrics.endpoint_changes_pending) = (0, 0);
            metrics.totals.clone_from(proxier.totals());
            // A pass that could not read the rules has no counts of them.
            if !report.rule_counts.is_empty() {
                metrics.iptables_rules.clone_from(&report.rule_counts);
            }
            metrics.localhost = proxier.localhost_node_ports().cloned();
            metrics.unreadable_now = number(proxier.store().unreadable().count());
            metrics.rejected = number(proxier.rejections().count());
            metrics.unmarked = number(proxier.unmarked().count());
            metrics.held_back = number(proxier.held().count());
            metrics.draining = number(proxier.draining().count());
            // Not after each change, since counting walks everything.
            if report.full {
                let of_nodes = report.refused.iter().filter(|refused| other_node(refused).is_some()).count();
                metrics.of_other_nodes = number(of_nodes);
                // A pass that could not read everything does not have these numbers.
                if report.unread.is_empty() {
                    metrics.refused_objects = number(report.refused_by_kernel().count());
                    metrics.unmet = number(report.unmet.len().saturating_add(lacks));
                }
                metrics.no_local_endpoints = no_local_endpoints(engine);
                (metrics.frontends, metrics.endpoints) = count_frontends(engine);
                // The proxy's and other programs' virtual servers. Numbers that could not be read are kept.
                if let Some(servers) = proxier.servers() {
                    metrics.virtual_servers = number(servers.virtual_servers);
                    metrics.real_servers = number(servers.real_servers);
                    metrics.foreign_virtual_servers = number(servers.foreign);
                    metrics.split = number(servers.split);
                }
                metrics.fast_path = fast_path;
            }
        });
        self.report_health_checks(engine, report);
    }

    /// Updates the health check servers of Services, if their answers or addresses may have changed.
    fn report_health_checks(&mut self, engine: &Engine<impl Kernel>, report: &Report) {
        let facts = engine.proxier.facts();
        let listening = listen_addresses(facts);
        if !report.full && !report.health_checks_changed && self.listening.as_ref() == Some(&listening) {
            return;
        }
        self.listening = Some(listening.clone());
        for family in Family::ALL.into_iter().filter(|family| facts.is_open_unnamed(*family)) {
            let nowhere = if family == Family::V4 { "127.0.0.1/32" } else { "::1/128" };
            let note = format!(
                "nodePortAddresses has no network of {family}: node ports and health-check ports are open on all {family} addresses of \
                 this node; add one, or {nowhere} for none"
            );
            self.warn_of_node(Reason::NOT_AS_CONFIGURED, note);
        }
        let health_checks = engine.proxier.desired().health_checks().map(|(key, check)| (key.clone(), check)).gather();
        let _main_has_ended = self.passed.send(PassSummary { health_checks, listening });
    }

    /// Sends one Event for each Service with addresses of other Nodes.
    fn report_of_other_nodes(&mut self, report: &Report) {
        let mut services: BTreeMap<&str, BTreeMap<IpAddr, &str>> = BTreeMap::new();
        for refused in &report.refused {
            if let Some(name) = other_node(refused) {
                services.entry(&refused.service).or_default().insert(refused.key.address, name);
            }
        }
        for (service, addresses) in services {
            let list: Vec<String> =
                addresses.iter().map(|(address, name)| format!("{address} (Node {name})")).collect();
            let note =
                format!("addresses of other Nodes, which serve them; packets from here go there: {}", list.join(", "));
            if self.limiter.once(&format!("{service}: {note}")) {
                tracing::info!("Service {service}: {note}");
                if let Some(service) = service_key(service) {
                    self.recorder.record(Regarding::Service(service), Reason::ADDRESS_OF_NODE, note);
                }
            }
        }
    }

    fn report_failures(&mut self, report: &Report, now: Instant) {
        for unread in &report.unread {
            if self.limiter.pass(&unread.what, now) {
                tracing::error!("{unread}");
            }
        }
        for failure in &report.applied.failures {
            if self.limiter.pass(&format!("{} {}", failure.step.name, failure.step.detail), now) {
                tracing::error!("{failure}");
                if let Some(service) = failure.step.service.as_deref().and_then(service_key) {
                    self.recorder.record(Regarding::Service(service), Reason::FAILED_TO_PROGRAM, failure.to_string());
                }
            }
        }
        self.report_of_other_nodes(report);
        for refused in report.refused.iter().filter(|refused| other_node(refused).is_none()) {
            let note = refused.to_string();
            self.warn(&note.clone(), now, service_key(&refused.service), (Reason::ADDRESS_CONFLICT, note));
        }
        for lack in &report.applied.lacks {
            if self.lacks.insert(lack.what.clone()) {
                tracing::warn!("this kernel lacks a feature: {lack}");
            }
        }
        for unmet in &report.unmet {
            if self.limiter.once(&unmet.path) {
                tracing::warn!("{}", output::unmet(unmet));
            }
        }
        for notice in &report.notices {
            tracing::warn!("{notice}");
        }
        for limit in &report.limited {
            tracing::warn!("{limit}");
            self.recorder.record(Regarding::Node, Reason::NOT_AS_CONFIGURED, limit.clone());
        }
        self.report_drift(&report.drift, now);
        if let Some(stopped) = &report.stopped {
            self.report_held(stopped);
        }
    }

    /// Names the first of other programs' changes, each at most once a minute, and counts the rest: a program may flush
    /// all rules again and again.
    fn report_drift(&mut self, drift: &[Step], now: Instant) {
        let (named, rest) = drift.split_at(drift.len().min(NAMED));
        for step in named {
            let mut step = step.clone();
            // One line: all rules may be gone.
            step.lines.clear();
            if self.limiter.pass(&format!("drift: {step}"), now) {
                tracing::warn!("changed by another program, repaired: {step}");
            }
        }
        if !rest.is_empty() && self.limiter.pass("drift", now) {
            tracing::warn!("changed by another program, repaired: {} more", rest.len());
        }
    }

    /// Warns about an object, at most once a minute, in the log and by an Event of its Service.
    fn warn(&mut self, object: &str, now: Instant, service: Option<ObjectKey>, (reason, note): (Reason, String)) {
        if self.limiter.pass(object, now) {
            tracing::warn!("{note}");
            if let Some(service) = service {
                self.recorder.record(Regarding::Service(service), reason, note);
            }
        }
    }

    /// Warns once, in the log and by an Event of the node.
    fn warn_of_node(&mut self, reason: Reason, note: String) {
        if self.limiter.once(&note) {
            tracing::warn!("{note}");
            self.recorder.record(Regarding::Node, reason, note);
        }
    }

    fn report_held(&mut self, stopped: &str) {
        if self.limiter.pass("held back", Instant::now()) {
            let how = "kill -USR1, or start with --allow-mass-removal, if this is intended";
            tracing::error!("{stopped}; {how} (this is process {})", std::process::id());
        }
    }
}

/// The other Node that has the address of a Frontend.
fn other_node(refused: &Refused) -> Option<&str> {
    match refused.user.as_ref()? {
        User::Node(name) => Some(name),
        _ => None,
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// `namespace/name`, with or without `:port`.
fn service_key(text: &str) -> Option<ObjectKey> {
    let (namespace, rest) = text.split_once('/')?;
    Some(ObjectKey::new(namespace, rest.split_once(':').map_or(rest, |(name, _port)| name)))
}

/// Services without the local endpoints that a policy requires: internal, external.
fn no_local_endpoints(engine: &Engine<impl Kernel>) -> [ByFamily<u64>; 2] {
    let mut counts = [ByFamily::default(); 2];
    for (_, missing) in engine.proxier.desired().no_local_endpoints() {
        for (count, ports) in counts.iter_mut().zip([missing.internal, missing.external]) {
            count.v4 += u64::from(ports.v4);
            count.v6 += u64::from(ports.v6);
        }
    }
    counts
}

/// Frontends by family, and their endpoints, each counted for every Frontend that forwards to it.
fn count_frontends(engine: &Engine<impl Kernel>) -> (ByFamily<u64>, ByFamily<u64>) {
    let (mut frontends, mut endpoints) = (ByFamily::<u64>::default(), ByFamily::<u64>::default());
    for frontend in engine.proxier.desired().frontends() {
        let family = frontend.key.family();
        *frontends.of_mut(family) += 1;
        *endpoints.of_mut(family) += number(frontend.endpoints().len());
    }
    (frontends, endpoints)
}

#[cfg(test)]
mod tests;
