//! Subjects that program the node through this crate, from a scenario's objects.

use std::error::Error;
use std::time::Duration;

use proxier_core::engine::{Options, Reconciler};
use proxier_core::kernel::{KernelOptions, KernelPorts};
use proxier_core::plan::step::Part;
use testkit::Netns;

use super::objects::{Objects, objects};
use super::{Difference, Mode, Reference, Scenario, Subject};

/// Why a difference between a mode and the reference is as it should be, if it is.
pub(crate) type Explain = fn(&Scenario, &Difference) -> Option<&'static str>;

/// A subject that calls a function on the node for each scenario, and keeps its result (a reconciler, threads) until the scenario ends.
pub(crate) struct Programmed<P, K> {
    program: P,
    explain: Explain,
    kept: Option<K>,
    ends_connections: bool,
    mode: Option<(Mode, &'static [Reference])>,
}

impl<P, K> Programmed<P, K>
where
    P: FnMut(&Netns, &Objects) -> Result<K, Box<dyn Error>>,
{
    pub(crate) fn new(program: P, explain: Explain) -> Self {
        Programmed { program, explain, kept: None, ends_connections: false, mode: None }
    }

    /// Holds the subject to these references instead of 1.28 alone, and its differences to those in the list.
    pub(crate) fn held_to(self, mode: Mode, references: &'static [Reference]) -> Self {
        Programmed { mode: Some((mode, references)), ..self }
    }

    /// Tells the harness that TCP connections end on the node, and other ones go on to endpoints.
    pub(crate) fn ending_connections(self) -> Self {
        Programmed { ends_connections: true, ..self }
    }
}

impl<P, K> Subject for Programmed<P, K>
where
    P: FnMut(&Netns, &Objects) -> Result<K, Box<dyn Error>>,
{
    fn program(&mut self, node: &Netns, scenario: &Scenario) -> Result<(), Box<dyn Error>> {
        self.kept = Some((self.program)(node, &objects(scenario))?);
        Ok(())
    }

    fn ends_connections(&self) -> bool {
        self.ends_connections
    }

    fn end(&mut self) {
        self.kept = None;
    }

    fn references(&self) -> &[Reference] {
        self.mode.map_or(&[Reference::Iptables28], |(_, references)| references)
    }

    fn mode(&self) -> Option<Mode> {
        self.mode.map(|(mode, _)| mode)
    }

    fn explain(&self, scenario: &Scenario, difference: &Difference) -> Option<&'static str> {
        (self.explain)(scenario, difference)
    }
}

/// A process that gets all objects, after the earlier ones, and passes until nothing is due within a few seconds, in which real servers without
/// connections go. A second process then finds nothing to change. `options`: without the scenario's configuration.
pub(crate) fn program(options: &Options, how: &KernelOptions, objects: &Objects) -> Result<(), Box<dyn Error>> {
    let mut now = Duration::ZERO;
    let mut proxier = Reconciler::new(&objects.node.metadata.name, options.clone(), now);
    let mut kernel = KernelPorts::open(how)?;
    proxier.set_node(&objects.node, now);
    let last = (&objects.services, &objects.slices);
    for (services, slices) in objects.before.iter().map(|(services, slices)| (services, slices)).chain([last]) {
        proxier.replace_objects(services, slices, now);
        proxier.start(now);
        let end = now + if objects.before.is_empty() { Duration::ZERO } else { Duration::from_secs(5) };
        while let Some(at) = proxier.next_wake().filter(|at| *at <= end) {
            now = now.max(at);
            let Some(report) = proxier.pass(&|| now, &mut kernel.ports()) else { continue };
            if report.stopped.is_some() {
                // Most earlier objects may go at once.
                proxier.confirm_removal(now);
            } else if !report.is_done() {
                return Err(format!("{report:#?}").into());
            }
        }
        now = end;
    }
    let mut second = Reconciler::new(&objects.node.metadata.name, options.clone(), now);
    second.set_node(&objects.node, now);
    second.replace_objects(&objects.services, &objects.slices, now);
    second.start(now);
    // Sockets end with their process, and the next one opens them again.
    drop(kernel);
    let mut kernel = KernelPorts::open(how)?;
    let report = second.pass(&|| now, &mut kernel.ports()).ok_or("no pass")?;
    let is_written = report.applied.done.keys().all(|(part, _)| *part == Part::Listener);
    if report.is_done() && is_written { Ok(()) } else { Err(format!("not as written: {report:#?}").into()) }
}
