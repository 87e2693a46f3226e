//! The reconciler on this network namespace's kernel, with time under the bench's control.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

use iptables::{Dump, Transaction};
use proxier_core::engine::{Options, Reconciler};
use proxier_core::kernel::{KernelOptions, KernelPorts};
use proxier_core::modes::Kind;
use proxier_core::net::Family;
use proxier_core::plan::report::Report;
use proxier_core::ports::{PortError, Rules};

use crate::Failure;
use crate::report::ms;
use crate::world::{service, slice, slice_of};

/// A node with its kernel.
pub(crate) struct Node {
    pub(crate) proxier: Reconciler,
    pub(crate) kernel: KernelPorts,
    now: Cell<Duration>,
}

impl Node {
    /// A node in a mode with a whole cluster: so many Services, with so many endpoints each.
    pub(crate) fn in_mode(mode: Kind, services: u32, endpoints: u32) -> Result<Self, Failure> {
        let mut options = Options::default();
        options.mode = mode;
        Node::with(&KernelOptions::default(), options, services, endpoints)
    }

    pub(crate) fn with(
        kernel: &KernelOptions,
        mut options: Options,
        services: u32,
        endpoints: u32,
    ) -> Result<Self, Failure> {
        // A pass per second; a full one only when a bench requests it.
        options.limits.max_interval = Duration::from_secs(3600);
        let proxier = Reconciler::new("node-a", options, Duration::ZERO);
        let mut node = Node { proxier, kernel: KernelPorts::open(kernel)?, now: Cell::new(Duration::ZERO) };
        for number in 0..services {
            node.add(number, endpoints);
        }
        node.proxier.start(Duration::ZERO);
        Ok(node)
    }

    /// Gives a Service these endpoints.
    pub(crate) fn replace(&mut self, number: u32, endpoints: &[u32]) {
        self.proxier.upsert_slice(&slice_of(number, endpoints), self.now.get());
    }

    pub(crate) fn add(&mut self, number: u32, endpoints: u32) {
        self.proxier.upsert_service(&service(number), self.now.get());
        self.proxier.upsert_slice(&slice(number, endpoints), self.now.get());
    }

    /// [`Node::replace`], timed.
    pub(crate) fn timed_change(&mut self, number: u32, endpoints: &[u32]) -> Result<f64, Failure> {
        self.timed(|node| node.replace(number, endpoints))
    }

    /// A change and its pass, which must write but not read everything; returns the milliseconds.
    pub(crate) fn timed(&mut self, change: impl FnOnce(&mut Node)) -> Result<f64, Failure> {
        let start = Instant::now();
        change(self);
        let report = self.pass()?;
        let took = ms(start.elapsed());
        if report.full || report.writes() == 0 { Err("a change was not taken as one".into()) } else { Ok(took) }
    }

    /// Makes the next pass a full one.
    pub(crate) fn request_full(&mut self) {
        self.proxier.request_full(self.now.get());
    }

    /// A pass, which must be due and succeed. Each pass starts a second after the previous one.
    pub(crate) fn pass(&mut self) -> Result<Report, Failure> {
        let now = self.tick();
        done(self.proxier.pass(&|| now, &mut self.kernel.ports()))
    }

    /// Runs a pass like [`Node::pass`]; returns the texts for `iptables-restore`, in order.
    pub(crate) fn recorded_pass(&mut self) -> Result<Vec<(Family, String)>, Failure> {
        let now = self.tick();
        let texts = RefCell::new(Vec::new());
        let mut ports = self.kernel.ports();
        let mut recorder = Recorder { rules: ports.rules, texts: &texts };
        ports.rules = &mut recorder;
        done(self.proxier.pass(&|| now, &mut ports))?;
        Ok(texts.into_inner())
    }

    fn tick(&self) -> Duration {
        let now = self.now.get() + Duration::from_secs(1);
        self.now.set(now);
        now
    }
}

/// The report of a pass that was due and has succeeded.
fn done(report: Option<Report>) -> Result<Report, Failure> {
    let report = report.ok_or("no pass was due")?;
    if let Some(trouble) = report.unread.first() {
        return Err(trouble.to_string().into());
    }
    if let Some(trouble) = report.applied.failures.first() {
        return Err(format!("{} failures, the first: {trouble}", report.applied.failures.len()).into());
    }
    if report.is_done() { Ok(report) } else { Err("the pass held something back".into()) }
}

/// Rules that record what is restored.
struct Recorder<'a> {
    rules: &'a mut dyn Rules,
    texts: &'a RefCell<Vec<(Family, String)>>,
}

impl Recorder<'_> {
    fn note(&self, family: Family, transaction: &Transaction) {
        self.texts.borrow_mut().push((family, transaction.to_string()));
    }
}

impl Rules for Recorder<'_> {
    fn has_random_fully(&mut self, family: Family) -> Result<bool, PortError> {
        self.rules.has_random_fully(family)
    }

    fn dump(&mut self, family: Family) -> Result<Dump, PortError> {
        self.rules.dump(family)
    }

    fn check(&mut self, family: Family, transaction: &Transaction) -> Result<(), PortError> {
        self.rules.check(family, transaction)
    }

    fn restore(&mut self, family: Family, transaction: &Transaction) -> Result<(), PortError> {
        self.note(family, transaction);
        self.rules.restore(family, transaction)
    }
}
