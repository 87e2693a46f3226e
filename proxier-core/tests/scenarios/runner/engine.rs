//! Runs a scenario through the reconciler, on a kernel in memory or a real one.

use std::time::Duration;

use proxier_core::engine::{Options, Reconciler};
use proxier_core::plan::report::Report;
use proxier_core::ports::Ports;
use proxier_core::snapshot::{HostAddresses, Rejection};

use super::Printed;
use super::format::{KernelEdit, SERVICE, SLICE, Step};
use super::world::World;

/// A machine for the reconciler, which other programs change too.
pub(crate) trait Machine {
    /// Ports of the machine's kernel.
    fn ports(&mut self) -> Ports<'_>;

    /// Gives the host these interfaces and addresses.
    fn set_host(&mut self, host: &HostAddresses);

    /// Makes foreign changes to the kernel.
    fn edit(&mut self, edit: &KernelEdit);

    /// Opens connections; see [`Step::connections`](super::format::Step).
    fn connect(&mut self, connections: &str);

    /// Prints the tools' output; rules only if they are asked for.
    fn print(&mut self, printed: &mut Printed, rules: bool);
}

/// Long enough for a real server without connections to have drained, too short for the next full pass.
const USUAL: Duration = Duration::from_secs(5);

/// The reconciler on a machine.
pub(crate) struct Engine<M> {
    machine: M,
    proxier: Reconciler,
    started: bool,
    now: Duration,
    rejections: Vec<Rejection>,
    wrote: bool,
    trouble: Vec<String>,
}

impl<M: Machine> Engine<M> {
    pub(crate) fn new(machine: M) -> Self {
        Engine {
            machine,
            proxier: proxier(&World::new(), Duration::ZERO),
            started: false,
            now: Duration::ZERO,
            rejections: Vec::new(),
            wrote: false,
            trouble: Vec::new(),
        }
    }

    fn pass(&mut self) {
        let now = self.now;
        let Some(report) = self.proxier.pass(&|| now, &mut self.machine.ports()) else {
            self.trouble.push(format!("no pass at {now:?}, though one was due"));
            return;
        };
        self.wrote |= report.writes() > 0;
        self.trouble.extend(trouble(&report));
    }

    fn run(&mut self, time: Duration) {
        let end = self.now.saturating_add(time);
        // Far more passes than any scenario needs.
        for _ in 0..1000 {
            let Some(at) = self.proxier.next_wake().filter(|at| *at <= end) else { break };
            self.now = self.now.max(at);
            self.pass();
        }
        self.now = end;
    }

    /// Checks that a full comparison finds nothing to do.
    fn check_settled(&mut self) {
        let wrote = std::mem::take(&mut self.wrote);
        self.proxier.request_full(self.now);
        self.pass();
        if self.wrote {
            self.trouble.push("a full pass with nothing new writes something".to_owned());
        }
        self.wrote = wrote;
    }

    /// Handles a step, after which the world is this one.
    pub(crate) fn take(&mut self, step: &Step, world: &World) {
        let now = self.now;
        self.wrote = false;
        if !self.started || !step.node.is_empty() {
            self.machine.set_host(&world.host());
            self.proxier.host_changed(now);
        }
        self.machine.edit(&step.kernel);
        let has_other_settings = !step.config.is_empty() || !step.options.is_empty();
        if step.restart || has_other_settings || !self.started {
            self.proxier = proxier(world, now);
            self.proxier.start(now);
            self.started = true;
        } else {
            self.proxier.set_node(&world.node(), now);
            step.applied(SERVICE).iter().for_each(|object| self.proxier.upsert_service(object, now));
            for object in &step.applied(SLICE) {
                self.proxier.upsert_slice(object, now);
            }
            step.deleted(SERVICE).iter().for_each(|key| self.proxier.delete_service(key, now));
            step.deleted(SLICE).iter().for_each(|key| self.proxier.delete_slice(key, now));
            if step.kernel != KernelEdit::default() {
                self.proxier.request_full(now);
            }
        }
        step.connections.iter().for_each(|connections| self.machine.connect(connections));
        self.run(step.seconds.map_or(USUAL, Duration::from_secs));
        if step.seconds.is_none() {
            self.check_settled();
        }
        self.rejections = world.config().1;
    }

    /// Output of the tools now, and the reports; rules only if they are asked for.
    pub(crate) fn printed(&mut self, rules: bool) -> Printed {
        let mut printed =
            Printed { trouble: std::mem::take(&mut self.trouble), wrote: self.wrote, ..Printed::default() };
        self.machine.print(&mut printed, rules);
        printed.report(&self.proxier.wanted().unwrap(), self.proxier.rejections().chain(&self.rejections));
        printed
    }
}

fn proxier(world: &World, now: Duration) -> Reconciler {
    let mut options = Options::default();
    options.config = world.config().0;
    // A scenario's node has its addresses or does not.
    options.address_grace = Duration::ZERO;
    let node = world.node();
    let mut proxier = Reconciler::new(&node.metadata.name, options, now);
    proxier.set_node(&node, now);
    proxier.replace_objects(world.services.values(), world.slices.values(), now);
    proxier
}

fn trouble(report: &Report) -> Vec<String> {
    let unread = report.unread.iter().map(ToString::to_string);
    let failures = report.applied.failures.iter().map(ToString::to_string);
    let stopped = report.stopped.iter().map(ToString::to_string);
    unread.chain(failures).chain(stopped).collect()
}
