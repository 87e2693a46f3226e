//! A kernel, a proxy on it, and other programs; checks what must hold after each pass, and in the end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ipvs::model::{ForwardingMethod, TimeoutsUpdate, Weight};
use ipvs::{Operation, RealServer, Scheduler, VirtualServer, VirtualServerKey};
use proxier_core::engine::{Limits, Options, Reconciler};
use proxier_core::fake::{Call, FakeKernel};
use proxier_core::modes::ipvs::cleanup::cleanup;
use proxier_core::modes::ipvs::drain::Policy;
use proxier_core::modes::ipvs::wanted::{Recorded, Wanted};
use proxier_core::objects::NodeObject;
use proxier_core::plan::report::{Failure, Report};
use proxier_core::plan::step::{Action, Part, Step as Done};
use proxier_core::ports::PortErrorKind;
use proxier_core::service::{Frontend, Indexed};
use proxier_core::snapshot::{Balancing, ObjectKey, ZoneWeights};

use super::foreign::{self, Stranger};
use super::held::{Held, is_foreign, marks};
use super::objects::{self, Objects};
use super::steps::{Damage, Step, Trouble};
use super::watch::{Log, Write};

#[expect(clippy::struct_excessive_bools, reason = "each remembers one thing that has happened")]
pub(crate) struct Machine {
    kernel: FakeKernel,
    proxier: Reconciler,
    now: Duration,
    objects: Objects,
    node: Option<NodeObject>,
    /// Whether the configuration has defaults of policy.
    has_defaults: bool,
    /// Own virtual servers that a process could not recognise when it began, since their marks were lost.
    orphans: BTreeSet<VirtualServerKey>,
    /// Whether marks that show which virtual servers are own may be missing: they were removed, or could not be written.
    marks_at_risk: bool,
    /// An arranged failure may keep marks from being written.
    marks_threatened: bool,
    /// Whether the process has not read the kernel yet: marks may still be removed before it sees them.
    unaware: bool,
    /// Some call may take effect although it reports a failure.
    lies: bool,
    races: u32,
    raced: Arc<AtomicU32>,
    /// State after the last pass, if nothing has happened since.
    left: Option<Held>,
}

fn options(has_defaults: bool) -> Options {
    let mut options = Options::default();
    if has_defaults {
        let mut defaults = Balancing::default();
        (defaults.persistence_secs, defaults.drain_secs) = (Some(300), Some(5));
        defaults.zone_weights = Some(ZoneWeights::new([], 2));
        defaults.forwarding = Some(ForwardingMethod::DirectRoute);
        options.config.ipvs.defaults = Some(Arc::new(defaults));
    }
    options.limits = Limits { min_interval: Duration::ZERO, max_interval: Duration::from_secs(30) };
    let mut policy = Policy::default();
    policy.deadline = Some(Duration::from_secs(20));
    options.ipvs.drain = policy;
    options.mass_removal.at_least = 4;
    options.mass_removal.patience = Some(Duration::from_secs(20));
    options.ipvs.timeouts = TimeoutsUpdate::new().with_tcp_secs(500);
    options
}

impl Machine {
    pub(crate) fn new() -> Self {
        let kernel = FakeKernel::new();
        kernel.set_interface("eth0", &objects::host(0));
        let proxier = Reconciler::new("node-a", options(false), Duration::ZERO);
        let mut machine = Machine {
            kernel,
            proxier,
            now: Duration::ZERO,
            objects: Objects::default(),
            node: None,
            has_defaults: false,
            orphans: BTreeSet::new(),
            marks_at_risk: false,
            marks_threatened: false,
            unaware: true,
            lies: false,
            races: 0,
            raced: Arc::default(),
            left: None,
        };
        machine.proxier.start(machine.now);
        machine
    }

    pub(crate) fn take(&mut self, step: &Step) {
        self.left = None;
        match step {
            Step::Object(change) => self.objects.take(change, &mut self.proxier, self.now),
            Step::Relist(service, slice, gone) => self.relist(*service, *slice, *gone),
            Step::Node(which) => {
                let node = objects::node(*which);
                self.proxier.set_node(&node, self.now);
                self.node = Some(node);
            }
            Step::Host(which, told) => {
                self.kernel.set_interface("eth0", &objects::host(*which));
                if *told {
                    self.proxier.host_changed(self.now);
                }
            }
            Step::Trouble(trouble) => self.trouble(*trouble),
            Step::Quiet => self.quiet(),
            Step::Race(nth, damage) => self.race(*nth, *damage),
            Step::Damage(damage) => self.damage(*damage),
            Step::Foreign(what, which) => foreign::happen(&self.kernel, Stranger(*what), *which),
            Step::Pass => {
                if self.proxier.next_wake().is_some_and(|at| at <= self.now) {
                    self.pass();
                }
            }
            Step::Wait(halves) => self.run(Duration::from_millis(500) * u32::from(*halves)),
            Step::Full => self.proxier.request_full(self.now),
            Step::Preview => self.preview(),
            Step::Connections(which, count) => {
                let held = Held::of(&self.kernel);
                let reals = held.servers.iter().flat_map(|(key, (_, reals))| reals.keys().map(|real| (*key, *real)));
                if let Some((key, real)) = pick(reals, *which) {
                    self.kernel.ipvs().set_counters(&key, Some((&real, u32::from(*count % 3), 0)), 1, 1);
                }
            }
            Step::Crash(writes) => self.kernel.crash_after((*writes).into()),
            Step::Restart => self.restart(),
            Step::OtherPolicy => {
                self.has_defaults = !self.has_defaults;
                self.restart();
            }
            Step::CleanUp => {
                self.quiet();
                self.clean_up();
                self.restart();
            }
        }
        self.bury();
    }

    fn relist(&mut self, service: [u8; 10], slice: [u8; 7], gone: u8) {
        if gone & 1 == 1
            && let Some(key) = pick(self.objects.services.keys().cloned(), gone >> 1)
        {
            self.objects.services.remove(&key);
        }
        if gone & 2 == 2
            && let Some(key) = pick(self.objects.slices.keys().cloned(), gone >> 2)
        {
            self.objects.slices.remove(&key);
        }
        let (service, slice) = (objects::service(service), objects::slice(slice));
        self.objects.services.insert(ObjectKey::of(&service.metadata), service);
        self.objects.slices.insert(ObjectKey::of(&slice.metadata), slice);
        self.proxier.replace_objects(self.objects.services.values(), self.objects.slices.values(), self.now);
    }

    fn trouble(&mut self, trouble: Trouble) {
        self.lies |= trouble.takes_effect();
        let marks = matches!(trouble.call(), Call::SetsAdd | Call::SetsCreate | Call::SetsReplace | Call::LinksBind);
        // A call that takes effect although the kernel reports a failure is noticed only by the next full pass.
        let lie = trouble.takes_effect() && trouble.kind() != PortErrorKind::Unknown;
        self.marks_threatened |= marks || lie;
        self.marks_at_risk |= self.marks_threatened;
        self.kernel.fail(trouble.fault());
    }

    fn quiet(&mut self) {
        self.kernel.clear_faults();
        self.lies = false;
        self.marks_threatened = false;
    }

    /// A process on this kernel that knows these objects.
    fn process(&self) -> Reconciler {
        let mut proxier = Reconciler::new("node-a", options(self.has_defaults), self.now);
        proxier.replace_objects(self.objects.services.values(), self.objects.slices.values(), self.now);
        if let Some(node) = &self.node {
            proxier.set_node(node, self.now);
        }
        proxier.start(self.now);
        proxier
    }

    fn restart(&mut self) {
        self.kernel.restart();
        let lost = marks::missing(&Held::of(&self.kernel));
        assert!(self.marks_at_risk || lost.is_subset(&self.orphans), "nothing tells that these are ours: {lost:?}");
        self.orphans.extend(lost);
        self.proxier = self.process();
        self.unaware = true;
    }

    fn bury(&mut self) {
        if self.kernel.has_crashed() {
            self.restart();
        }
    }

    fn race(&mut self, nth: u8, damage: Damage) {
        let held = Held::of(&self.kernel);
        let mut operation = ipvs_damage(&held, damage);
        if damage.0 % 8 == 7 {
            // A virtual server that this proxy is about to make.
            let facts = self.proxier.facts();
            let all = Indexed::build(self.proxier.store(), facts, Recorded::new(facts.config()));
            let wanted = all.wanted();
            let missing = wanted.servers().map(|(key, _)| key).filter(|key| !held.servers.contains_key(key));
            let key = pick(missing, damage.1);
            self.orphans.extend(key);
            operation = key.map(|key| Operation::AddVirtualServer(VirtualServer::new(key, Scheduler::RoundRobin)));
        }
        let Some(operation) = operation else { return };
        let raced = self.raced.clone();
        self.races += 1;
        self.kernel.ipvs().change_before((nth % 24).into(), move |table| {
            let _ = table.apply(&operation);
            raced.fetch_add(1, Ordering::Relaxed);
        });
    }

    fn damage(&mut self, damage: Damage) {
        if damage.0.is_multiple_of(2) {
            let held = Held::of(&self.kernel);
            if let Some(operation) = ipvs_damage(&held, Damage(damage.0 / 2, damage.1)) {
                let _ = self.kernel.ipvs().apply(&operation);
            }
        } else {
            self.marks_at_risk |= foreign::damage(&self.kernel, Damage(damage.0 / 2, damage.1));
        }
    }

    fn preview(&mut self) {
        let (before, writes, raced) = (self.kernel.state(), self.kernel.writes(), self.raced());
        let now = self.now;
        let _ = self.proxier.preview(now, &mut self.kernel.ports());
        assert_eq!(self.kernel.writes(), writes);
        if self.raced() == raced {
            assert_eq!(self.kernel.state(), before);
        }
    }

    /// Passes until none is due before this much time has passed.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut passes = 0;
        while let Some(at) = self.proxier.next_wake().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.pass();
            self.bury();
            passes += 1;
            assert!(
                passes < 200,
                "it does not come to rest: {:?} {:?} {:?}",
                self.now,
                self.proxier.next_wake(),
                self.proxier.drains()
            );
        }
        self.now = end;
    }

    fn raced(&self) -> u32 {
        self.raced.load(Ordering::Relaxed)
    }

    /// Runs one pass, and the checks after any pass.
    fn pass(&mut self) -> Report {
        let before = self.left.take().unwrap_or_else(|| Held::of(&self.kernel));
        let raced = self.raced();
        if self.unaware {
            self.orphans.extend(marks::missing(&before));
        }
        let now = self.now;
        let mut log = Log::default();
        let proxier = &mut self.proxier;
        let report = log.with(&mut self.kernel, |ports| proxier.pass(&|| now, ports)).expect("a pass is due");
        let crashed = self.kernel.has_crashed();
        self.unaware &= !report.full || !report.unread.is_empty();
        let raced = self.raced() != raced;

        let after = Held::of(&self.kernel);
        assert_eq!(foreign::state(&after.state), foreign::state(&before.state), "somebody else's things changed");
        let wanted = &self.proxier.wanted().unwrap();
        let facts = self.proxier.facts();
        assert_eq!(*wanted, Indexed::build(self.proxier.store(), facts, Recorded::new(facts.config())).wanted());
        check_writes(&log.0, wanted, &before, raced);
        if !raced {
            check_kept(&before, &after, wanted);
        }
        // A process that begins now would recognise own objects.
        let lost = marks::missing(&after);
        assert!(self.marks_at_risk || lost.is_subset(&self.orphans), "nothing tells that these are ours: {lost:?}");
        if report.full && !crashed {
            let differences = after.differences(wanted, &self.orphans);
            if report.is_done() && !raced {
                assert!(differences.is_empty(), "done, and yet {differences:#?}\n{report:#?}\n{:#?}", log.0);
                self.marks_at_risk = self.marks_threatened;
            }
        }
        if report.full && !crashed && !raced && !self.lies && self.orphans.is_empty() && tells_a_difference(&report) {
            let differences = after.differences(wanted, &self.orphans);
            assert!(!differences.is_empty(), "all is as wanted, and yet {report:#?}");
        }
        self.left = Some(after);
        report
    }

    /// Ends all trouble and lets time pass: then everything is as wanted, after any history.
    pub(crate) fn settle(&mut self) {
        self.left = None;
        self.quiet();
        if self.kernel.has_crashed() {
            self.restart();
        }
        // Cancels an arranged crash that has not happened.
        self.kernel.restart();
        for _ in 0..50 {
            if self.raced() == self.races {
                break;
            }
            self.kernel.ports().ipvs.snapshot().unwrap();
        }
        self.run(Duration::from_secs(60));
        self.proxier.request_full(self.now);
        let report = self.pass();
        assert!(report.is_done(), "{report:#?}");
        self.run(Duration::from_secs(60));
        self.end_connections();
        self.run(Duration::from_secs(60));

        // A further full pass writes nothing.
        let writes = self.kernel.writes();
        self.proxier.request_full(self.now);
        let report = self.pass();
        assert!(report.full && report.is_done() && report.drift.is_empty() && report.draining == 0, "{report:#?}");
        assert_eq!(report.writes(), 0, "{report:#?}");
        assert_eq!(self.kernel.writes(), writes);
        assert!(self.proxier.drains().unwrap().is_empty());
        assert_eq!(self.proxier.schedule().failures(), 0);
        let memory = self.proxier.observed().unwrap().virtual_servers.iter();
        for (key, there) in memory {
            let wanted = self.proxier.wanted().unwrap().frontend(key).map(Frontend::endpoints);
            let shared = wanted.is_none_or(|wanted| Arc::ptr_eq(wanted, there.real_servers.keys()));
            assert!(shared || wanted.is_some_and(|wanted| wanted.is_empty()), "{key} is kept twice");
        }

        // The state is the same as on an undisturbed kernel.
        let mut fresh = FakeKernel::new();
        let state = self.kernel.state();
        for (interface, addresses) in state.devices.iter().filter(|(name, _)| *name != "kube-ipvs0") {
            fresh.set_interface(interface, addresses);
        }
        let now = self.now;
        let mut proxier = self.process();
        let report = proxier.pass(&|| now, &mut fresh.ports()).unwrap();
        assert!(report.is_done(), "{report:#?}");
        let mut orphans = self.orphans.clone();
        orphans.retain(|key| !proxier.wanted().unwrap().has_server(key));
        foreign::assert_same(&state, &fresh.state(), &orphans, &proxier.wanted().unwrap());
    }

    /// Ends the connections of real servers that drain without a deadline: those of endpoints that serve and are not selected.
    fn end_connections(&mut self) {
        let drains = self.proxier.drains().unwrap();
        for drain in drains.iter() {
            assert_eq!(drain.deadline, None, "it drains past its deadline: {drain:?}");
            self.kernel.ipvs().set_counters(&drain.virtual_server, Some((&drain.real, 0, 0)), 1, 1);
        }
    }

    /// Cleans up: no own object is left, and all foreign ones are.
    pub(crate) fn clean_up(&mut self) {
        self.kernel.restart();
        let lost = marks::missing(&Held::of(&self.kernel));
        assert!(self.marks_at_risk || lost.is_subset(&self.orphans), "nothing tells that these are ours: {lost:?}");
        self.orphans.extend(lost);
        let strangers = foreign::state(&self.kernel.state());
        let config = options(self.has_defaults).config;
        let cleaned = cleanup(&config, &|_, _, _| false, &mut self.kernel.ports());
        assert!(cleaned.is_done(), "{cleaned:#?}");
        let state = self.kernel.state();
        assert_eq!(foreign::state(&state), strangers);
        foreign::assert_nothing_of_ours(&state, &self.orphans);
        let writes = self.kernel.writes();
        assert!(cleanup(&config, &|_, _, _| false, &mut self.kernel.ports()).is_done());
        assert_eq!(self.kernel.writes(), writes);
    }
}

fn pick<T>(from: impl Iterator<Item = T>, which: u8) -> Option<T> {
    let mut all: Vec<T> = from.collect();
    let place = usize::from(which).checked_rem(all.len())?;
    Some(all.swap_remove(place))
}

/// A foreign change of an own virtual server.
fn ipvs_damage(held: &Held, Damage(what, which): Damage) -> Option<Operation> {
    let ours: Vec<_> = held.servers.iter().filter(|(key, _)| !is_foreign(key)).collect();
    let (key, (config, reals)) = pick(ours.iter().copied(), which)?;
    let real = pick(reals.values().copied(), what / 8);
    let extra = |text: &str| RealServer::new(text.parse().unwrap());
    let extra = if key.family() == ipvs::model::Family::V4 { extra("10.9.9.9:99") } else { extra("[fd99::9]:99") };
    Some(match what % 8 {
        0 => Operation::DeleteVirtualServer(*key),
        1 => {
            let mut config = *config;
            config.scheduler = Scheduler::LeastConnection;
            Operation::UpdateVirtualServer(VirtualServer { key: *key, config })
        }
        2 | 3 => Operation::DeleteRealServer(*key, real?.key),
        4 => Operation::UpdateRealServer(*key, real?.with_weight(Weight::DRAIN)),
        5 => Operation::UpdateRealServer(*key, real?.with_weight(Weight::new(7).unwrap())),
        _ => Operation::AddRealServer(*key, extra),
    })
}

/// Whether something failed that leaves a difference in virtual servers, sets or addresses.
fn tells_a_difference(report: &Report) -> bool {
    let seen = |failure: &Failure| {
        let Done { part, action, .. } = failure.step;
        match part {
            // A draining one may still be there.
            Part::RealServer => action != Action::Delete,
            Part::VirtualServer | Part::Entry | Part::Address | Part::Set | Part::Device => true,
            _ => false,
        }
    };
    report.unread.is_empty() && report.stopped.is_none() && report.applied.failures.iter().any(seen)
}

/// Checks that no write removes a wanted object, or changes a foreign one.
fn check_writes(log: &[Write], wanted: &Wanted<'_>, before: &Held, raced: bool) {
    for write in log {
        let wrong = match write {
            Write::Ipvs(operation, _) if is_foreign(&operation.virtual_server()) => true,
            Write::Ipvs(Operation::DeleteVirtualServer(key), _) => wanted.has_server(key),
            Write::Ipvs(Operation::DeleteRealServer(key, real), _) => wanted.has_real_server(key, real),
            Write::Ipvs(Operation::UpdateRealServer(key, server), _) => {
                server.config.weight == Weight::DRAIN && wanted.has_real_server(key, &server.key)
            }
            // An object that existed was never removed.
            Write::Ipvs(Operation::AddRealServer(key, server), true) => !raced && before.has(key, &server.key),
            Write::Ipvs(Operation::AddVirtualServer(server), true) => {
                !raced && before.servers.contains_key(&server.key)
            }
            Write::Ipvs(..) => false,
            Write::DeleteEntry(set, element) => wanted.has_entry(*set, element),
            Write::Replace(set, elements) => !wanted.entries(*set).all(|element| elements.contains(element)),
            Write::Unbind(address) => wanted.has_address(*address),
            Write::Destroy | Write::DeleteDevice => true,
        };
        assert!(!wrong, "{write:?}\nin {log:#?}");
    }
}

/// Checks that wanted objects that existed still exist.
fn check_kept(before: &Held, after: &Held, wanted: &Wanted<'_>) {
    for (key, (_, reals)) in &before.servers {
        for (real, server) in reals.iter().filter(|(real, _)| wanted.has_real_server(key, real)) {
            let there = after.servers.get(key).and_then(|(_, reals)| reals.get(real));
            let serves = |server: &RealServer| server.config.weight != Weight::DRAIN;
            assert!(there.is_some_and(|there| serves(there) || !serves(server)), "{key} -> {real} went");
        }
    }
    for address in before.addresses.iter().filter(|address| wanted.has_address(**address)) {
        assert!(after.addresses.contains(address), "{address} went");
    }
    for set in wanted.sets() {
        let elements = before.entries(set);
        let Some(elements) = elements.filter(|elements| Some(*elements) != after.entries(set)) else { continue };
        for element in wanted.entries(set).map(ToString::to_string).filter(|element| elements.contains(element)) {
            assert!(after.entries(set).is_some_and(|after| after.contains(&element)), "{element} of {set:?} went");
        }
    }
}
