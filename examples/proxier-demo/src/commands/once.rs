//! `run --once`, `plan` and `cleanup`, which do their work once and end.

use std::process::ExitCode;
use std::time::Duration;

use proxier_core::engine::{Reconciler, Removal};
use proxier_core::modes::cleanup::{cleanup, cleanup_beside_kube_proxy, kept_for_the_kubelet};
use proxier_core::modes::select::RequestedMode;
use proxier_core::modes::{Kind, Plan, sysctl_changes};
use proxier_core::plan::report::Report;
use proxier_core::plan::step::{Action, Part};
use proxier_core::ports::SysctlChange;
use proxier_core::service::Names;
use proxier_core::sketch::Sketch;
use serde_json::{Value, json};

use crate::engine::choose::{ChosenMode, Preparing, choose};
use crate::engine::lock::Lock;
use crate::engine::{Engine, Kernel, kernel, privileges, rules_in_memory};
use crate::exit::{BAD_INPUT, CHANGES, FAILED};
use crate::message::change::Snapshot;
use crate::output::{self, Output, say};
use crate::problem::{Problem, Stopped};
use crate::settings::cli::Configured;
use crate::sources::{cluster, initial_list};

/// The exit code of a command that has ended by itself.
pub(crate) fn exit_code(is_done: bool, unreadable: &[Problem]) -> ExitCode {
    ExitCode::from(match (is_done, unreadable.is_empty()) {
        (false, _) => FAILED,
        (true, false) => BAD_INPUT,
        (true, true) => 0,
    })
}

/// Reads the initial list, and reports what cannot be read.
pub(crate) async fn input(configured: &Configured) -> Result<(Snapshot, Vec<Problem>), Stopped> {
    let (snapshot, unreadable) = read(configured).await?;
    unreadable.iter().for_each(say);
    Ok((snapshot, unreadable))
}

async fn read(configured: &Configured) -> Result<(Snapshot, Vec<Problem>), Stopped> {
    let options = cluster::Options::from_settings(&configured.settings);
    let snapshot = initial_list::read(configured, options).await?;
    let unreadable = snapshot.unreadable.iter().map(|of| of.problem.clone()).collect();
    Ok((snapshot, unreadable))
}

/// The engine of the chosen mode with the initial list. Says why that mode was chosen.
fn chosen_engine(chosen: ChosenMode, snapshot: Snapshot) -> Engine {
    chosen.reason().iter().for_each(say);
    let ChosenMode { mut engine, notes, rules, .. } = chosen;
    rules.iter().for_each(say);
    notes.iter().for_each(say);
    engine.feed(snapshot);
    engine
}

/// Runs one full sync. Exit code 0: the kernel is as the Services require. 1: something failed. 2: some input could not
/// be read; the kernel is as the rest requires.
pub async fn run_once(configured: &Configured) -> Result<ExitCode, Stopped> {
    if matches!(configured.settings.asked, RequestedMode::Mode(mode) if mode.facts().is_process) {
        let reason = "userspace mode serves only while the program runs: omit --once";
        return Err(Stopped::bad_input(Problem::new("", reason)));
    }
    privileges::NET_ADMIN.require()?;
    let _lock = Lock::take()?;
    // The mode decides which objects of the cluster are read.
    let chosen = choose(configured, Preparing::LoadModules, |mode| !mode.facts().is_process).await?;
    let (snapshot, unreadable) = read(&chosen.configured).await?;
    let mut engine = chosen_engine(chosen, snapshot);
    unreadable.iter().for_each(say);
    let mut report = engine.pass().ok_or_else(|| Problem::new("", "nothing was done"))?;
    let routes_went = report.applied.done.contains_key(&(Part::Route, Action::Delete));
    if report.is_done() && (report.draining > 0 || routes_went) {
        // There is only this check, so remove real servers without connections, and rules that guarded routes, at once.
        if let Some(second) = engine.pass_ahead(Duration::from_secs(1)) {
            let before = std::mem::replace(&mut report, second).applied;
            report.applied.add(before);
        }
    }
    engine.proxier().rejections().for_each(say);
    engine.proxier().unmarked().for_each(say);
    print_report(&report);
    let mut is_done = report.is_done() && remove_others(&mut engine);
    let desired = engine.proxier().desired();
    let is_ipvs = engine.proxier().mode().facts().has_virtual_servers;
    let what = if is_ipvs { "virtual servers" } else { "Frontends" };
    let made = format!("{} {what}, {} made", desired.frontends().count(), output::count(report.writes(), "change"));
    is_done &= print([made]);
    Ok(exit_code(is_done, &unreadable))
}

/// Removes objects of other modes. Returns whether all of them, and all UDP flows that they had forwarded, are removed.
fn remove_others<K: Kernel>(engine: &mut Engine<K>) -> bool {
    let cleaned = match engine.clean_up_after_others() {
        Removal::Made(cleaned) | Removal::Unknown(cleaned) => cleaned,
        Removal::Held(stopped) => {
            say(format_args!(
                "objects of other proxy modes stay: {stopped}; add --allow-mass-removal if this is intended"
            ));
            return false;
        }
    };
    cleaned.leftovers().for_each(say);
    if cleaned.removed() == 0 {
        return cleaned.is_done();
    }
    say(format_args!("removed {} left by other proxy modes", output::count(cleaned.removed(), "object")));
    let after = engine.pass_ahead(engine.idle().unwrap_or_default());
    after.iter().for_each(print_report);
    cleaned.is_done() && after.is_none_or(|report| report.is_done())
}

/// `--init-only`: only writes the settings of the host that the mode needs, which need more privilege than serving.
pub fn init(configured: &Configured) -> Result<ExitCode, Stopped> {
    let mut kernel = kernel::open()?;
    let settings = &configured.settings;
    let ports = kernel.ports();
    let (mut changes, mut unmet) = sysctl_changes(settings.mode, &settings.host, ports.sysctls);
    if settings.asked == RequestedMode::Auto {
        // Another mode serves if the kernel has no IPVS.
        let is_there = |change: &SysctlChange| change.from.is_some() || !change.path.starts_with("net/ipv4/vs/");
        changes.retain(is_there);
        unmet.retain(is_there);
    }
    let (mut is_done, mut done) = (true, Vec::new());
    for change in changes {
        match ports.sysctls.set(&change.path, &change.to) {
            Ok(()) => done.push(format!("{} = {}", change.path, change.to)),
            Err(error) => {
                say(error);
                is_done = false;
            }
        }
    }
    unmet.iter().map(output::unmet).for_each(say);
    Ok(exit_code(print(done) && is_done, &[]))
}

/// Prints these lines; returns whether that was possible, or the reader has gone.
fn print(lines: impl IntoIterator<Item = String>) -> bool {
    output::print(&output::lines(lines))
}

/// Prints the results of a pass that a user must know.
pub(crate) fn print_report(report: &Report) {
    report.unread.iter().for_each(say);
    report.applied.failures.iter().for_each(say);
    for lack in &report.applied.lacks {
        say(format_args!("this kernel lacks a feature: {lack}"));
    }
    report.unmet.iter().map(output::unmet).for_each(say);
    report.limited.iter().for_each(say);
    report.refused.iter().for_each(say);
    if let Some(stopped) = &report.stopped {
        say(format_args!("{stopped}; add --allow-mass-removal if this is intended"));
    }
    if report.draining > 0 {
        say(format_args!("{} real servers still have connections and take no new ones", report.draining));
    }
}

/// Prints what would change. If this kernel does not support the mode, prints a note and what an empty kernel with this
/// host's addresses would get. With `detailed`, the exit code tells whether anything would change.
pub async fn plan(configured: &Configured, detailed: bool) -> Result<ExitCode, Stopped> {
    // Without privilege nothing can be read from this kernel.
    privileges::NET_ADMIN.require()?;
    let mut asked = configured.clone();
    asked.no_fallback |= configured.settings.asked != RequestedMode::Auto;
    let chosen = choose(&asked, Preparing::Nothing, |_mode| true).await;
    // The mode decides which objects of the cluster are read.
    let serving = chosen.as_ref().map_or(configured, |chosen| &chosen.configured);
    let (snapshot, unreadable) = read(serving).await?;
    let obstacles = match chosen {
        Ok(chosen) => {
            let mut engine = chosen_engine(chosen, snapshot);
            engine.read_running_sockets().into_iter().for_each(say);
            return Ok(preview(&mut engine, &unreadable, (configured.output, detailed)));
        }
        Err(problems) => problems,
    };
    obstacles.iter().for_each(say);
    say(format_args!(
        "this kernel cannot do {} mode: this is what an empty kernel would get that can",
        configured.settings.mode
    ));
    rules_in_memory(&configured.settings).iter().for_each(say);
    let mut empty = Sketch::default();
    let host = kernel::open_to_look()?.ports().links.addresses()?;
    host.interfaces.iter().for_each(|(device, addresses)| empty.set_interface(device, addresses));
    let mut engine = Engine::in_memory(configured, empty);
    engine.feed(snapshot);
    Ok(preview(&mut engine, &unreadable, (configured.output, detailed)))
}

fn preview<K: Kernel>(engine: &mut Engine<K>, unreadable: &[Problem], (output, detailed): (Output, bool)) -> ExitCode {
    let (plan, report) = engine.preview();
    let left = engine.beside();
    let proxier = engine.proxier();
    let names = Names::new(proxier.store(), proxier.desired());
    let differs = report.stopped.is_some() || plan.steps(&names).next().is_some();
    let json = || plan_json((&plan, &names), &report, proxier, (unreadable, &left));
    let is_printed = output.print(|| plan_text(&plan, &report, &names), json);
    unreadable.iter().for_each(say);
    proxier.rejections().for_each(say);
    proxier.unmarked().for_each(say);
    if output == Output::Text {
        left.iter().for_each(say);
        print_report(&report);
    }
    match (is_printed && report.unread.is_empty(), unreadable.is_empty()) {
        (false, _) => ExitCode::from(FAILED),
        (true, false) => ExitCode::from(if detailed { FAILED } else { BAD_INPUT }),
        (true, true) => ExitCode::from(if detailed && differs { CHANGES } else { 0 }),
    }
}

fn plan_text(plan: &Plan, report: &Report, names: &Names<'_>) -> String {
    let mut steps = 0;
    let mut text = output::lines(plan.steps(names).inspect(|_| steps += 1));
    if report.unread.is_empty() {
        text += &match steps {
            0 => "nothing to do: the kernel has the desired state\n".to_owned(),
            _ => format!("{}\n", output::count(steps, "change")),
        };
    }
    let stays = |key| format!("  virtual server {key} was not created by proxier-demo and stays");
    text + &output::lines(report.foreign.iter().map(stays))
}

fn plan_json(
    (plan, names): (&Plan, &Names<'_>),
    report: &Report,
    proxier: &Reconciler,
    (unreadable, left): (&[Problem], &[String]),
) -> Value {
    let steps: Vec<_> = plan.steps(names).collect();
    json!({
        "steps": steps,
        "foreign": report.foreign,
        "refused": report.refused.iter().map(|refused| json!({
            "virtualServer": refused.key.to_string(), "service": refused.service,
            "endpoint": refused.endpoint.map(|endpoint| endpoint.to_string()), "reason": refused.reason,
        })).collect::<Vec<_>>(),
        "unmarked": proxier.unmarked().map(|unmarked| unmarked.to_string()).collect::<Vec<_>>(),
        "rejected": proxier.rejections().map(ToString::to_string).collect::<Vec<_>>(),
        "unreadable": unreadable.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "unread": report.unread,
        "heldBack": report.stopped.as_deref(),
        "leftovers": left,
    })
}

/// Removes all objects of this program and of a kube-proxy, except those of a kube-proxy that serves in mode `kept`.
pub fn clean(configured: &Configured, kept: Option<Kind>) -> Result<ExitCode, Stopped> {
    privileges::NET_ADMIN.require()?;
    privileges::NET_RAW.require()?;
    let _lock = Lock::take()?;
    let mut kernel = kernel::open()?;
    let (config, mut ports) = (&configured.settings.core, kernel.ports());
    let cleaned = match kept {
        None => cleanup(config, None, &mut ports),
        Some(mode) => cleanup_beside_kube_proxy(config, mode, &mut ports),
    };
    cleaned.leftovers().for_each(say);
    let others =
        cleaned.foreign.iter().map(|key| format!("virtual server {key} was not created by proxier-demo and stays"));
    let kept = kept_for_the_kubelet(&mut kernel.ports());
    let removed = format!("{} removed", output::count(cleaned.removed(), "thing"));
    let is_printed = print([removed].into_iter().chain(others).chain(kept));
    Ok(exit_code(is_printed && cleaned.is_done(), &[]))
}
