//! `run`: serve until told to stop.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use proxier_core::config::NodePortAddresses;
use proxier_core::kernel::Monitor;
use proxier_core::report::Report;
use proxier_core::snapshot::{ObjectKey, ObjectKind};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::change::{Change, Changes, Event, channel};
use super::cli::{Configured, Source};
use super::cluster::{Cluster, Connection, Options};
use super::engine::Engine;
use super::events::{Reason, Recorder, Regarding};
use super::files;
use super::health::{Health, listen, serve_health, serve_metrics};
use super::lock::{self, Lock};
use super::logging::Limiter;
use super::manifests::Manifests;
use super::metrics::Metrics;
use super::probe;
use super::problem::Problem;
use super::progress::Progress;
use super::service_health::{HealthCheck, ServiceHealth};

/// What the kernel's thread is told besides changes of the input.
enum Control {
    /// Compare everything (SIGHUP).
    Resync,
    /// Addresses or devices of the host changed.
    HostChanged,
    /// What is held back is meant (SIGUSR1).
    ConfirmRemoval,
}

/// What the kernel's thread gets, in the order in which it came.
enum Message {
    Event(Event),
    Control(Control),
}

/// What the kernel's thread tells after a pass.
struct Passed {
    health_checks: BTreeMap<ObjectKey, HealthCheck>,
    node_port_addresses: Vec<IpAddr>,
}

fn fail(problems: &[Problem]) -> ExitCode {
    for problem in problems {
        tracing::error!("{problem}");
    }
    ExitCode::FAILURE
}

/// Serves until SIGTERM or SIGINT, and leaves the data path as it is then. 0 after a signal, 1 when it could not start,
/// or when the configuration file has changed and a supervisor should start it anew.
pub async fn run(configured: &Configured, config_file: Option<&std::path::Path>) -> ExitCode {
    for warning in &configured.warnings {
        tracing::warn!("{warning}");
    }
    let settings = &configured.settings;
    // First of all: who ends this while it starts gets the exit code that belongs to it.
    let mut signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(error) => return fail(&[Problem::new("", format!("signals cannot be handled ({error})"))]),
    };
    let _lock = match Lock::take(lock::NAME) {
        Ok(lock) => lock,
        Err(problem) => return fail(&[problem]),
    };
    // Bad input is found before anything is touched.
    let manifests = match &configured.source {
        Source::Manifests(paths) => match Manifests::open(paths.clone(), &settings.node_name) {
            Ok(manifests) => Some(manifests),
            Err(problems) => {
                fail(&problems);
                return ExitCode::from(2);
            }
        },
        Source::Cluster { .. } => None,
    };
    let mut engine = match open(configured).await {
        Ok(engine) => engine,
        Err(problems) => return fail(&problems),
    };
    adjust_oom_score(settings.oom_score_adj);
    let families = engine.proxier().facts().config().families;
    let health = Health::new(settings.sync_period, families);
    let mut tasks = JoinSet::new();
    let api = match Api::start() {
        Ok(api) => api,
        Err(problem) => return fail(&[problem]),
    };
    let recorder = recorder(configured, &api);
    recorder.tell(Regarding::Node, Reason::Starting, "");
    if let Err(problem) = serve(configured, &health, &recorder, &mut tasks).await {
        fail(&[problem]);
        return ExitCode::from(2);
    }
    let (messages, inbox) = mpsc::channel(1024);
    let (changes, mut events) = channel();
    let forward = messages.clone();
    tasks.spawn(async move {
        while let Some(event) = events.recv().await {
            if forward.send(Message::Event(event)).await.is_err() {
                break;
            }
        }
        Ok(())
    });
    let source = tokio::select! {
        source = start_source(configured, manifests, changes, &api, &mut tasks) => source,
        () = signals.end() => return ExitCode::SUCCESS,
    };
    let source = match source {
        Ok(source) => source,
        Err(problem) => {
            fail(&[problem]);
            return ExitCode::from(2);
        }
    };
    if let Running::Cluster(cluster) = &source {
        health.set_api(cluster.counters().clone());
    }
    watch_host(messages.clone());
    let (passed, outcomes) = mpsc::unbounded_channel();
    // Its own: the process's ends while that thread may still wait.
    let clock = match Builder::new_current_thread().enable_time().build() {
        Ok(clock) => clock,
        Err(error) => return fail(&[Problem::new("", format!("no clock for the kernel's thread ({error})"))]),
    };
    let worker = {
        let (health, recorder) = (health.clone(), recorder.clone());
        std::thread::Builder::new().name("kernel".to_owned()).spawn(move || {
            let mut worker = Worker {
                health,
                recorder,
                limiter: Limiter::default(),
                passed,
                arrived: Vec::new(),
                progress: Some(Progress::start()),
            };
            worker.work(&mut engine, inbox, &clock);
        })
    };
    if let Err(error) = worker {
        return fail(&[Problem::new("", format!("no thread for the kernel ({error})"))]);
    }
    tracing::info!("node {}: serving in IPVS mode, {}", settings.node_name, source.describe());
    let service_health = ServiceHealth::new(health);
    Attending { messages, outcomes, recorder, service_health, tasks }.attend(config_file, signals).await
}

/// What goes on beside the kernel's thread.
struct Attending {
    messages: mpsc::Sender<Message>,
    outcomes: mpsc::UnboundedReceiver<Passed>,
    recorder: Recorder,
    service_health: ServiceHealth,
    tasks: JoinSet<Result<(), Problem>>,
}

impl Attending {
    /// Until a signal, or until something ends that should not.
    async fn attend(mut self, config_file: Option<&std::path::Path>, signals: Signals) -> ExitCode {
        let Signals { mut terminate, mut interrupt, mut hangup, mut confirm } = signals;
        let config_changed = async {
            match config_file {
                Some(path) => files::changed(path).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(config_changed);
        let mut limiter = Limiter::default();
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => {
                    tracing::info!("SIGHUP: everything is compared now");
                    if self.messages.send(Message::Control(Control::Resync)).await.is_err() {
                        return fail(&[Problem::new("", "the kernel's thread has ended")]);
                    }
                }
                _ = confirm.recv() => {
                    if self.messages.send(Message::Control(Control::ConfirmRemoval)).await.is_err() {
                        return fail(&[Problem::new("", "the kernel's thread has ended")]);
                    }
                }
                () = &mut config_changed => {
                    tracing::error!("the content of the configuration file was changed; ending, to be started anew");
                    return ExitCode::FAILURE;
                }
                outcome = self.outcomes.recv() => {
                    let Some(passed) = outcome else {
                        return fail(&[Problem::new("", "the kernel's thread has ended")]);
                    };
                    for failed in self.service_health.update(&passed.health_checks, &passed.node_port_addresses) {
                        if limiter.pass(&failed.service.to_string(), Instant::now()).is_some() {
                            let note = format!("cannot listen on {}: {}", failed.address, failed.reason);
                            tracing::error!("Service {}: {note}", failed.service);
                            let service = Regarding::Service(failed.service);
                            self.recorder.tell(service, Reason::FailedToStartServiceHealthcheck, note);
                        }
                    }
                }
                ended = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    if let Some(Ok(Err(problem))) = ended {
                        return fail(&[problem]);
                    }
                }
            }
        }
        tracing::info!("ending; virtual servers, addresses, sets and rules stay");
        ExitCode::SUCCESS
    }
}

/// Sends Events to the cluster there is, if there is one.
fn recorder(configured: &Configured, api: &Api) -> Recorder {
    let Source::Cluster { kubeconfig, master } = &configured.source else { return Recorder::default() };
    let connection = Connection { kubeconfig: kubeconfig.clone(), master: master.clone() };
    Recorder::start(&api.handle(), connection, &configured.settings.node_name)
}

/// What talks with the API server has a thread of its own: programs that get credentials (`exec` in a kubeconfig) are
/// waited for there, and must not keep health checks and the kernel waiting.
struct Api(Option<Runtime>);

impl Api {
    fn start() -> Result<Self, Problem> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("api").enable_all().build();
        let problem = |error| Problem::new("", format!("no thread for the API server ({error})"));
        runtime.map(|runtime| Api(Some(runtime))).map_err(problem)
    }

    fn handle(&self) -> Handle {
        self.0.as_ref().map_or_else(Handle::current, |runtime| runtime.handle().clone())
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        // Within another runtime nothing may be waited for.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

type Signal = tokio::signal::unix::Signal;

/// The signals that mean something.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Compare everything.
    hangup: Signal,
    /// What is held back is meant.
    confirm: Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            confirm: signal(SignalKind::user_defined1())?,
        })
    }

    /// Until SIGTERM or SIGINT.
    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

async fn open(configured: &Configured) -> Result<Engine, Vec<Problem>> {
    let mut kernel = super::engine::open_kernel().map_err(|problem| vec![problem])?;
    probe::require(&configured.settings, &mut kernel)?;
    drop(kernel);
    let (engine, notes) = Engine::open(configured).await.map_err(|problem| vec![problem])?;
    for note in notes {
        tracing::warn!("{note}");
    }
    Ok(engine)
}

/// The kernel takes other processes first when memory is short.
fn adjust_oom_score(score: i16) {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", score.to_string()) {
        tracing::warn!("oom_score_adj stays as it is: {error}");
    }
}

/// Starts the servers for health and metrics. With `bindAddressHardFail` an address that cannot be had is an error;
/// otherwise it is tried for again and again, as with kube-proxy.
async fn serve(
    configured: &Configured,
    health: &Arc<Health>,
    recorder: &Recorder,
    tasks: &mut JoinSet<Result<(), Problem>>,
) -> Result<(), Problem> {
    let settings = &configured.settings;
    let hard = settings.bind_address_hard_fail;
    if let Some(address) = settings.healthz {
        let bound = if hard { Some(listen(HEALTH_SERVER, address, true, |_problem| {}).await?) } else { None };
        let (health, recorder) = (health.clone(), recorder.clone());
        tasks.spawn(async move {
            let failed = |problem: &Problem| {
                recorder.tell(Regarding::Node, Reason::FailedToStartProxierHealthcheck, problem.to_string());
            };
            let listener = match bound {
                Some(listener) => listener,
                None => listen(HEALTH_SERVER, address, false, failed).await?,
            };
            serve_health(listener, health).await;
            Ok(())
        });
    }
    if let Some(address) = settings.metrics {
        let bound = if hard { Some(listen(METRICS_SERVER, address, true, |_problem| {}).await?) } else { None };
        let (health, recorder) = (health.clone(), recorder.clone());
        let object = serde_json::to_value(&settings.object).unwrap_or_default();
        tasks.spawn(async move {
            let failed = |problem: &Problem| {
                recorder.tell(Regarding::Node, Reason::FailedToStartMetricServer, problem.to_string());
            };
            let listener = match bound {
                Some(listener) => listener,
                None => listen(METRICS_SERVER, address, false, failed).await?,
            };
            serve_metrics(listener, health, object).await;
            Ok(())
        });
    }
    Ok(())
}

const HEALTH_SERVER: &str = "healthz server";
const METRICS_SERVER: &str = "metrics server";

/// A source that runs. It ends when it is dropped.
enum Running {
    Files,
    Cluster(Cluster),
}

impl Running {
    fn describe(&self) -> &'static str {
        match self {
            Running::Files => "Services from files",
            Running::Cluster(_) => "Services from the API server",
        }
    }
}

async fn start_source(
    configured: &Configured,
    manifests: Option<(Manifests, Vec<Change>)>,
    changes: Changes,
    api: &Api,
    tasks: &mut JoinSet<Result<(), Problem>>,
) -> Result<Running, Problem> {
    if let Some((manifests, first)) = manifests {
        tasks.spawn(async move {
            let closed = manifests.follow(first, &changes).await;
            closed.map_err(|_closed| Problem::new("", "the kernel's thread has ended"))
        });
        return Ok(Running::Files);
    }
    let Source::Cluster { kubeconfig, master } = &configured.source else { return Ok(Running::Files) };
    let connection = Connection { kubeconfig: kubeconfig.clone(), master: master.clone() };
    let node_name = configured.settings.node_name.clone();
    let options = Options::default();
    let mut started = api.handle().spawn(async move { Cluster::start(connection, &node_name, options, changes).await });
    // Nothing is asked of the server here. Only a program that gets credentials can take its time.
    let started = match tokio::time::timeout(Duration::from_secs(10), &mut started).await {
        Ok(started) => started,
        Err(_elapsed) => {
            tracing::warn!("still waiting for the program that gets the credentials (exec in the kubeconfig)");
            started.await
        }
    };
    let ended = |error| Problem::new("", format!("the client of the API server has ended ({error})"));
    started.map_err(ended)?.map(Running::Cluster)
}

/// Tells of addresses and devices that change. Without it, only the full pass finds them.
fn watch_host(messages: mpsc::Sender<Message>) {
    let mut monitor = match Monitor::open() {
        Ok(monitor) => monitor,
        Err(error) => {
            tracing::warn!("changes of addresses are seen late only: {error}");
            return;
        }
    };
    let work = move || loop {
        let mut ready = [PollFd::new(monitor.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => {
                tracing::warn!("changes of addresses are seen late only: {error}");
                return;
            }
        }
        let relevant = match monitor.drain() {
            Ok(changes) => changes.overflowed || !changes.addresses.is_empty() || gone(&changes),
            Err(error) => {
                tracing::warn!("hearing of addresses: {error}");
                // Not again and again at once, should it not go away.
                std::thread::sleep(Duration::from_secs(1));
                true
            }
        };
        if relevant && messages.blocking_send(Message::Control(Control::HostChanged)).is_err() {
            return;
        }
    };
    if let Err(error) = std::thread::Builder::new().name("host".to_owned()).spawn(work) {
        tracing::warn!("changes of addresses are seen late only: {error}");
    }
}

fn gone(changes: &proxier_core::kernel::Changes) -> bool {
    changes.devices.values().any(|change| *change == proxier_core::kernel::Change::Gone)
}

/// The kernel's thread.
struct Worker {
    health: Arc<Health>,
    recorder: Recorder,
    limiter: Limiter,
    passed: mpsc::UnboundedSender<Passed>,
    /// When the changes arrived that no pass has taken up yet.
    arrived: Vec<Instant>,
    /// Until the first pass is over.
    progress: Option<Progress>,
}

/// More than this is not measured one by one.
const ARRIVALS: usize = 10_000;

impl Worker {
    /// Takes messages and does what is due, until nobody sends any more.
    fn work(&mut self, engine: &mut Engine, mut inbox: mpsc::Receiver<Message>, clock: &Runtime) {
        loop {
            let idle = engine.idle();
            let message = match idle {
                Some(Duration::ZERO) => {
                    inbox.try_recv().map_err(|error| error == mpsc::error::TryRecvError::Disconnected)
                }
                // Within the future: the clock is the runtime's.
                Some(idle) => clock
                    .block_on(async { tokio::time::timeout(idle, inbox.recv()).await })
                    .map_or(Err(false), |message| message.ok_or(true)),
                None => clock.block_on(inbox.recv()).ok_or(true),
            };
            match message {
                Ok(message) => {
                    self.take(engine, message);
                    // What has come meanwhile goes with it.
                    while let Ok(message) = inbox.try_recv() {
                        self.take(engine, message);
                    }
                }
                Err(true) => return,
                Err(false) => {}
            }
            let start = Instant::now();
            if let Some(progress) = self.progress.as_mut().filter(|_| engine.idle() == Some(Duration::ZERO)) {
                progress.programming();
            }
            if let Some(report) = engine.pass() {
                self.progress = None;
                self.tell(engine, &report, start);
            }
        }
    }

    fn take(&mut self, engine: &mut Engine, message: Message) {
        match message {
            Message::Control(Control::Resync) => engine.request_full(),
            Message::Control(Control::HostChanged) => engine.host_changed(),
            Message::Control(Control::ConfirmRemoval) => match engine.confirm_removal() {
                0 => tracing::info!("SIGUSR1: nothing is held back"),
                count => tracing::warn!("SIGUSR1: {count} virtual servers that were held back are deleted now"),
            },
            Message::Event(Event { at, change }) => {
                if let Some(progress) = &mut self.progress {
                    progress.saw(&change);
                }
                match &change {
                    Change::Unreadable(problem) => {
                        self.health.metrics(|metrics| metrics.unreadable += 1);
                        let object = problem.object.as_deref().unwrap_or(&problem.origin);
                        if self.limiter.pass(object, at).is_some() {
                            tracing::warn!("{problem}");
                        }
                    }
                    Change::Node(node) => self.health.set_node_eligible(!node.leaving),
                    Change::NodeGone => self.health.set_node_eligible(false),
                    _ => {
                        self.health.waiting(at);
                        if self.arrived.len() < ARRIVALS {
                            self.arrived.push(at);
                        }
                    }
                }
                engine.take(change);
            }
        }
    }

    /// Logs a pass, and makes health and metrics of it.
    fn tell(&mut self, engine: &mut Engine, report: &Report, start: Instant) {
        let end = Instant::now();
        let took = end.saturating_duration_since(start);
        let kind = if report.full { "full pass" } else { "pass" };
        if report.writes() > 0 {
            tracing::info!("{kind}: {} changes in {:.1} ms", report.writes(), took.as_secs_f64() * 1e3);
        }
        self.tell_failures(report, end);
        for rejection in engine.proxier().rejections() {
            let object = format!("{} {} {}", rejection.kind, rejection.key, rejection.field);
            if self.limiter.pass(&object, end).is_some() {
                tracing::warn!("{rejection}");
                if rejection.kind == ObjectKind::Service {
                    let service = Regarding::Service(rejection.key.clone());
                    self.recorder.tell(service, Reason::InvalidField, rejection.to_string());
                }
            }
        }
        if report.is_done() {
            self.health.updated(SystemTime::now());
        } else {
            self.health.waiting(start);
        }
        let arrived = std::mem::take(&mut self.arrived);
        let failed = !report.is_done();
        let totals = engine.proxier().totals();
        let rejected = engine.proxier().rejections().count();
        self.health.metrics(|metrics: &mut Metrics| {
            metrics.sync_duration.observe(took);
            if report.full { &mut metrics.sync_full_duration } else { &mut metrics.sync_partial_duration }
                .observe(took);
            if !failed {
                for at in arrived {
                    metrics.network_programming.observe(end.saturating_duration_since(at));
                }
            }
            metrics.service_changes = totals.service_changes;
            metrics.endpoint_changes = totals.endpoint_changes;
            metrics.iptables_restore_failures = totals.restore_failures;
            metrics.sync_failures = totals.failed_passes;
            metrics.rejected = u64::try_from(rejected).unwrap_or(u64::MAX);
            metrics.draining = u64::try_from(report.draining).unwrap_or(u64::MAX);
            // Not with each change: counting walks everything.
            if report.full {
                metrics.virtual_servers = count(engine, |_server| 1);
                metrics.real_servers = count(engine, |server| server.real_servers.len());
                metrics.no_local_endpoints = no_local_endpoints(engine);
            }
        });
        if !report.full && !report.health_checks_touched {
            return;
        }
        let health_checks = engine
            .proxier()
            .desired()
            .health_checks()
            .map(|(key, check)| (key.clone(), HealthCheck::from(check)))
            .collect();
        let facts = engine.proxier().facts();
        let node_port_addresses = match facts.config().node_port_addresses {
            NodePortAddresses::All => Vec::new(),
            _ => facts.config().families.iter().flat_map(|family| facts.node_port_addresses(family)).collect(),
        };
        let _main_has_ended = self.passed.send(Passed { health_checks, node_port_addresses });
    }

    fn tell_failures(&mut self, report: &Report, now: Instant) {
        for unread in &report.unread {
            if self.limiter.pass(&unread.what, now).is_some() {
                tracing::error!("{unread}");
            }
        }
        for failure in &report.applied.failures {
            if self.limiter.pass(&format!("{} {}", failure.step.name, failure.step.detail), now).is_some() {
                tracing::error!("{failure}");
                if let Some(service) = failure.step.service.as_deref().and_then(service_key) {
                    self.recorder.tell(Regarding::Service(service), Reason::FailedToProgram, failure.to_string());
                }
            }
        }
        for refused in &report.refused {
            let object = format!("{} {}", refused.service, refused.key);
            if self.limiter.pass(&object, now).is_some() {
                let note = format!("{} of {} is not served: {}", refused.key, refused.service, refused.reason);
                tracing::warn!("{note}");
                if let Some(service) = service_key(&refused.service) {
                    self.recorder.tell(Regarding::Service(service), Reason::AddressConflict, note);
                }
            }
        }
        for unmet in &report.unmet {
            if self.limiter.once(&unmet.path) {
                tracing::warn!(
                    "{} stays {}: it cannot be written from here",
                    unmet.path,
                    unmet.from.as_deref().unwrap_or("unknown")
                );
            }
        }
        for step in &report.drift {
            tracing::warn!("somebody else changed it, repaired: {step}");
        }
        if let Some(stopped) = &report.stopped
            && self.limiter.pass("held back", now).is_some()
        {
            let how = "kill -USR1, or start with --allow-mass-removal, if it is meant";
            tracing::error!("{stopped}; {how} (this is process {})", std::process::id());
        }
    }
}

/// `namespace/name`, with or without `:port`.
fn service_key(text: &str) -> Option<ObjectKey> {
    let (namespace, rest) = text.split_once('/')?;
    Some(ObjectKey::new(namespace, rest.split_once(':').map_or(rest, |(name, _port)| name)))
}

/// Services without the local endpoints that a policy asks for: internal, external.
fn no_local_endpoints(engine: &Engine) -> [u64; 2] {
    let mut counts = [0; 2];
    for (_, missing) in engine.proxier().desired().no_local_endpoints() {
        counts[0] += u64::from(missing.internal);
        counts[1] += u64::from(missing.external);
    }
    counts
}

fn count(engine: &Engine, of: impl Fn(&proxier_core::observed::ObservedServer) -> usize) -> u64 {
    let servers = engine.proxier().observed().map(|observed| observed.virtual_servers.values().map(of).sum::<usize>());
    u64::try_from(servers.unwrap_or(0)).unwrap_or(u64::MAX)
}
