//! `run`: serves until a signal.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use proxier_core::modes::Kind;
use proxier_core::modes::ipvs::Choice;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::build;
use crate::engine::choose::{ChosenMode, Preparing, choose};
use crate::engine::lock::Lock;
use crate::engine::signals::Signals;
use crate::engine::worker::{PassSummary, Worker};
use crate::engine::{monitors, needs, neighbours, privileges, userspace};
use crate::exit::{BAD_INPUT, FAILED};
use crate::message::{Message, to_kernel};
use crate::problem::{Problem, Stopped};
use crate::settings::Exposure;
use crate::settings::cli::{Configured, Invocation, Source};
use crate::settings::kubeproxyconfig::KubeProxyConfiguration;
use crate::sources::cluster::Options;
use crate::sources::files::RewriteWatch;
use crate::sources::source::{StartingSource, start_api};
use crate::status::events::{Reason, Recorder, Regarding};
use crate::status::health::Health;
use crate::status::logging::Limiter;
use crate::status::page::StatusPage;
use crate::status::serve::{listen, serve_health, serve_metrics};
use crate::status::service_health::ServiceHealth;

/// A starting source, and both ends of the channel for its changes.
type Begun = (StartingSource, mpsc::Sender<Message>, mpsc::Receiver<Message>);

fn begin(configured: &Configured, api: &Handle) -> Result<Begun, Stopped> {
    let (changes, messages, inbox) = to_kernel();
    let source = StartingSource::begin(configured, changes, api).map_err(Stopped::bad_input)?;
    Ok((source, messages, inbox))
}

/// Begins on another thread, since files may be large, and standard input may never end.
async fn begin_beside(configured: &Configured, api: &'static Handle) -> Result<Begun, Stopped> {
    let configured = configured.clone();
    let begun = tokio::task::spawn_blocking(move || begin(&configured, api)).await;
    begun.unwrap_or_else(|error| Err(Problem::new("", format!("Services cannot be read ({error})")).into()))
}

/// Returns the source, restarted if the chosen mode needs more of the cluster than the configured one.
fn enough(asked_for: &Configured, chosen: &ChosenMode, begun: Begun, api: &Handle) -> Result<Begun, Stopped> {
    let chosen = &chosen.configured;
    let covers = || Options::from_settings(&asked_for.settings).cover(&Options::from_settings(&chosen.settings));
    if matches!(chosen.source, Source::Manifests(_)) || covers() { Ok(begun) } else { begin(chosen, api) }
}

/// Serves until SIGTERM or SIGINT, and leaves the kernel unchanged then. Exit code 0 after a signal, and after a change
/// of the configuration, so that a supervisor starts it again; 1 if it could not start.
pub async fn run(configured: &Configured, invocation: &Invocation) -> Result<ExitCode, Stopped> {
    // Problems are logged.
    let outcome = Box::pin(serve(configured, invocation)).await;
    outcome.or_else(|Stopped { problems, code }| {
        for problem in problems {
            tracing::error!("{problem}");
        }
        Ok(ExitCode::from(code))
    })
}

async fn serve(configured: &Configured, invocation: &Invocation) -> Result<ExitCode, Stopped> {
    let started = SystemTime::now();
    tracing::info!("proxier-demo {}", build::LINE);
    let config_changed = changed(invocation, configured.settings.object.clone());
    configured.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    // First of all, so that a signal during the start gets the right exit code.
    let mut signals =
        Signals::listen().map_err(|error| Problem::new("", format!("signals cannot be handled ({error})")))?;
    privileges::NET_ADMIN.require()?;
    let (_lock, api) = (Lock::take()?, start_api()?);
    // The lists arrive while the kernel is probed. Bad input is found before anything is changed.
    let (source, messages, inbox) = tokio::select! {
        begun = begin_beside(configured, api) => begun?,
        () = signals.end.asked() => return Ok(ExitCode::SUCCESS),
    };
    let health = Health::new(configured.settings.sync_period, configured.settings.core.families);
    // Nodes are eligible once their Node was seen; manifests need no Node.
    health.set_node_eligible(matches!(configured.source, Source::Manifests(_)));
    let mut tasks = JoinSet::new();
    let recorder = recorder(configured, api);
    recorder.record(Regarding::Node, Reason::STARTING, "");
    let (what, healthz) = (("healthz server", Reason::FAILED_HEALTH), configured.settings.healthz);
    let hard_fail = configured.settings.object.bind_address_hard_fail;
    let shared = health.clone();
    let serve = move |listener| serve_health(listener, shared);
    start_server(what, (healthz, hard_fail), &recorder, &mut tasks, serve).await.map_err(Stopped::bad_input)?;
    let chosen = tokio::select! {
        chosen = choose_beside(configured) => chosen,
        // What still asks the kernel has written nothing to it, and ends with the process.
        () = signals.end.asked() => return Ok(ExitCode::SUCCESS),
    };
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(mut problems) => {
            // Report bad input too, since it decides the exit code.
            let refused = source.refused().await;
            let code = if refused.is_some() { BAD_INPUT } else { FAILED };
            problems.extend(refused);
            return Err(Stopped { problems, code });
        }
    };
    let (reason, fell_back) = (chosen.reason(), chosen.fell_back());
    let (source, messages, inbox) = enough(configured, &chosen, (source, messages, inbox), api)?;
    let ChosenMode { configured, engine, notes, passed_over, rules } = chosen;
    let (configured, settings) = (&configured, &configured.settings);
    for note in notes {
        tracing::warn!("{note}");
    }
    adjust_oom_score(settings.oom_score_adj);
    // Relayed connections need them, and the health-check ports of Services.
    let open_files = userspace::raise_open_files();
    tracing::debug!("{open_files} files may be open");
    let families = engine.proxier().facts().config().families;
    health.set_families(families);
    if fell_back {
        for passed_over in &passed_over {
            recorder.record(Regarding::Node, Reason::MODE_UNAVAILABLE, passed_over.to_string());
        }
    }
    health.metrics(|metrics| metrics.mode = Some((settings.asked, settings.mode)));
    serve_metricsz(configured, &health, &recorder, &messages, &mut tasks).await.map_err(Stopped::bad_input)?;
    let source = tokio::select! {
        source = source.finish(&mut tasks) => source.map_err(Stopped::bad_input)?,
        () = signals.end.asked() => return Ok(ExitCode::SUCCESS),
    };
    // Bad input is reported alone.
    let advice = if fell_back { None } else { settings.how_to_choose(configured.given.flag_of.is_some()) };
    log_choice((reason, advice), fell_back, rules);
    if let Some(cluster) = &source {
        health.set_api(cluster.counters().clone());
    }
    let config = engine.proxier().facts().config();
    monitors::watch_host(messages.clone(), config.fast_path.is_some());
    let compared = engine.proxier().table_name().map(|table| monitors::watch_tables(table, messages.clone()));
    let relays = settings.mode.facts().is_process || engine.proxier().localhost_node_ports().is_some();
    // The API's runtime runs this, since looking up names may take a while.
    api.spawn(neighbours::watch(configured.source.clone(), relays, messages.clone()));
    let outcomes = Worker::start(engine, started, inbox, (health.clone(), recorder.clone()), compared)?;
    let from = if source.is_some() { "the API server" } else { "files" };
    tracing::info!("node {}: serving in {} mode, Services from {from}", settings.node_name, settings.mode);
    Attendant {
        messages,
        outcomes,
        recorder,
        service_health: ServiceHealth::new(health),
        tasks,
        mode: settings.mode,
        end_timeout: settings.end_timeout,
    }
    .attend(config_changed, signals)
    .await
}

/// Waits until the configuration file differs from `before`. An unusable file is ignored: a supervisor could not start
/// with it.
async fn changed(invocation: &Invocation, before: KubeProxyConfiguration) {
    let Some(path) = &invocation.config else { return std::future::pending().await };
    let mut rewritten = RewriteWatch::new(path);
    loop {
        rewritten.next().await;
        let now = invocation.configure().and_then(|now| match needs::check_scheduler(&now) {
            Ok(()) => Ok(now),
            Err(problem) => Err(problem.into()),
        });
        match now {
            Ok(now) if now.settings.object == before => {}
            Ok(_) => return,
            Err(Stopped { problems, .. }) => {
                for problem in problems {
                    tracing::error!("{problem}; this process goes on with the configuration that it has");
                }
            }
        }
    }
}

/// Logs why this mode serves and how to choose another, on one line, and by which rules it serves.
fn log_choice((reason, advice): (Option<String>, Option<String>), fell_back: bool, rules: Option<Choice>) {
    let line = [reason, advice].into_iter().flatten().collect::<Vec<_>>().join("; ");
    match line {
        line if line.is_empty() => {}
        line if fell_back => tracing::warn!("{line}"),
        line => tracing::info!("{line}"),
    }
    if let Some(rules) = rules {
        tracing::info!("{rules}");
    }
}

/// Work next to the kernel's thread: signals, Events, servers of Services.
struct Attendant {
    messages: mpsc::Sender<Message>,
    outcomes: mpsc::UnboundedReceiver<PassSummary>,
    recorder: Recorder,
    service_health: ServiceHealth,
    tasks: JoinSet<Result<(), Problem>>,
    mode: Kind,
    end_timeout: Duration,
}

impl Attendant {
    /// Runs until a signal, or until something ends that should not.
    async fn attend(
        mut self,
        config_changed: impl Future<Output = ()>,
        mut signals: Signals,
    ) -> Result<ExitCode, Stopped> {
        let gone = || Problem::new("", "the kernel's thread has ended");
        tokio::pin!(config_changed);
        let mut limiter = Limiter::default();
        // The last request, if some of its servers could not be opened.
        let mut again: Option<PassSummary> = None;
        loop {
            tokio::select! {
                () = signals.end.asked() => break,
                _ = signals.hangup.recv() => {
                    tracing::info!("SIGHUP: everything is compared now");
                    self.messages.send(Message::Resync).await.map_err(|_closed| gone())?;
                }
                _ = signals.confirm.recv() => {
                    self.messages.send(Message::ConfirmRemoval).await.map_err(|_closed| gone())?;
                }
                () = &mut config_changed => {
                    tracing::info!("the configuration has changed; ending, so that the supervisor starts this process again with the new one");
                    return Ok(ExitCode::SUCCESS);
                }
                outcome = self.outcomes.recv() => {
                    again = self.serve_health_checks(outcome.ok_or_else(gone)?, &mut limiter).await;
                }
                () = tokio::time::sleep(LISTEN_AGAIN), if again.is_some() => {
                    if let Some(passed) = again.take() {
                        again = self.serve_health_checks(passed, &mut limiter).await;
                    }
                }
                ended = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    if let Some(Ok(outcome)) = ended {
                        outcome?;
                    }
                }
            }
        }
        if self.mode.facts().is_process {
            userspace::finish(&self.messages, self.end_timeout, signals.end.asked()).await;
        } else {
            tracing::info!("ending; everything in the kernel stays unchanged");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Opens and closes the health-check servers of Services. Returns the pass to try again, if some could not be opened.
    async fn serve_health_checks(&mut self, passed: PassSummary, limiter: &mut Limiter) -> Option<PassSummary> {
        let failures = self.service_health.update(&passed.health_checks, &passed.listening).await;
        let all_open = failures.is_empty();
        for (service, note) in failures {
            if limiter.pass(&service.to_string(), Instant::now()) {
                tracing::error!("Service {service}: {note}");
                self.recorder.record(Regarding::Service(service), Reason::FAILED_SERVICE_HEALTH, note);
            }
        }
        (!all_open).then_some(passed)
    }
}

/// Pause before retrying a Service's server that could not be opened: its address may still be in use, or tentative.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);

fn recorder(configured: &Configured, api: &Handle) -> Recorder {
    let Source::Cluster(connection) = &configured.source else { return Recorder::default() };
    Recorder::start(api, connection.clone(), &configured.settings.node_name)
}

/// Sets how early the kernel kills this process when memory is short.
fn adjust_oom_score(score: i16) {
    let file = "/proc/self/oom_score_adj";
    let there = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
    let Err(error) = std::fs::write(file, score.to_string()) else { return };
    let now = there.map_or_else(|| "as it is".to_owned(), |there: i16| there.to_string());
    if is_spared(there, score) {
        tracing::debug!("oom_score_adj stays {now}, not {score}: {error}");
    } else {
        tracing::warn!(
            "oom_score_adj stays {now}, not {score} ({error}): the kernel kills this process before others when memory is short"
        );
    }
}

/// Whether the kernel kills this process no earlier than ordinary ones. A container may not lower the value that its
/// runtime has set.
fn is_spared(there: Option<i16>, asked: i16) -> bool {
    there.is_some_and(|there| there <= asked.max(0))
}

/// Chooses the mode on another thread, since that may wait for the lock of iptables, while /healthz answers.
async fn choose_beside(configured: &Configured) -> Result<ChosenMode, Vec<Problem>> {
    let (configured, runtime) = (configured.clone(), Handle::current());
    let chosen = move || runtime.block_on(choose(&configured, Preparing::LoadModules, |_mode| true));
    let chosen = tokio::task::spawn_blocking(chosen).await;
    chosen.unwrap_or_else(|error| Err(vec![Problem::new("", format!("no mode could be chosen ({error})"))]))
}

/// Starts a server, if it has an address. One that cannot be bound is an error with `bindAddressHardFail`; otherwise
/// binding is retried, as with kube-proxy.
async fn start_server<F: Future<Output = ()> + Send>(
    (what, reason): (&'static str, Reason),
    (address, hard_fail): (Option<SocketAddr>, bool),
    recorder: &Recorder,
    tasks: &mut JoinSet<Result<(), Problem>>,
    serve: impl FnOnce(TcpListener) -> F + Send + 'static,
) -> Result<(), Problem> {
    let Some(address) = address else { return Ok(()) };
    let bound = if hard_fail { Some(listen(what, address, true, |_problem| {}).await?) } else { None };
    let recorder = recorder.clone();
    tasks.spawn(async move {
        let failed = |problem: &Problem| recorder.record(Regarding::Node, reason, problem.to_string());
        let listener = match bound {
            Some(listener) => listener,
            None => listen(what, address, false, failed).await?,
        };
        serve(listener).await;
        Ok(())
    });
    Ok(())
}

async fn serve_metricsz(
    configured: &Configured,
    health: &Arc<Health>,
    recorder: &Recorder,
    messages: &mpsc::Sender<Message>,
    tasks: &mut JoinSet<Result<(), Problem>>,
) -> Result<(), Problem> {
    let settings = &configured.settings;
    let (mode, object) = (settings.mode, serde_json::to_value(&settings.object).unwrap_or_default());
    // In userspace mode metrics ask it for connections.
    let is_needed = settings.status_page != Exposure::Off || mode.facts().is_process;
    let page = is_needed.then(|| StatusPage::new(settings.status_page, mode, messages.clone()));
    let health = health.clone();
    let serve = move |listener| serve_metrics(listener, health, mode, object, page);
    let what = ("metrics server", Reason::FAILED_METRICS);
    start_server(what, (settings.metrics, settings.object.bind_address_hard_fail), recorder, tasks, serve).await
}

#[cfg(test)]
mod tests {
    use super::is_spared;

    #[test]
    fn a_value_set_by_the_container_runtime_causes_no_warning() {
        for (there, asked, spared) in
            [(-997, -999, true), (0, -999, true), (2, -999, false), (999, -999, false), (500, 500, true)]
        {
            assert_eq!(is_spared(Some(there), asked), spared, "{there} {asked}");
        }
        assert!(!is_spared(None, 0));
    }
}
