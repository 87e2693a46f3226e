//! `run --once`, `plan` and `cleanup`: each does its work once and ends.

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use proxier_core::modes::ipvs::cleanup::cleanup;
use proxier_core::modes::ipvs::reading::sysctl_changes;
use proxier_core::modes::shared::names::Names;
use proxier_core::modes::{Plan, nftables};
use proxier_core::reconciler::report::Report;
use serde_json::{Value, json};

use crate::proxier_demo::commands::probe;
use crate::proxier_demo::engine::kernel;
use crate::proxier_demo::engine::lock::Lock;
use crate::proxier_demo::engine::privileges;
use crate::proxier_demo::engine::{Engine, Opened};
use crate::proxier_demo::problem::Problem;
use crate::proxier_demo::settings::cli::{Configured, Output};
use crate::proxier_demo::sources::initial_list::{self, Unread};
use crate::proxier_demo::status::json;
use crate::proxier_demo::status::progress::{self, Progress};
use crate::proxier_demo::status::table::wrapped;

/// Something failed.
const FAILED: u8 = 1;
/// Bad usage or bad input.
const BAD_INPUT: u8 = 2;

/// Prints something on its own line.
fn say(what: impl Display) {
    progress::clear();
    eprintln!("proxier-demo: {what}");
}

fn complain(problems: &[Problem], code: u8) -> ExitCode {
    problems.iter().for_each(say);
    ExitCode::from(code)
}

/// An engine with the initial list, ready for its first pass; or the exit code.
async fn ready(
    configured: &Configured,
    progress: &Progress,
    is_to_write: bool,
) -> Result<(Engine, Vec<Problem>), ExitCode> {
    let options = configured.settings.watching();
    let mut snapshot = initial_list::read(configured, options, progress.counted()).await.map_err(|unread| {
        let code = if matches!(unread, Unread::BadInput(_)) { BAD_INPUT } else { FAILED };
        complain(unread.problems(), code)
    })?;
    progress.at_kernel();
    if is_to_write {
        let mut kernel = kernel::open().map_err(|problem| complain(&[problem], FAILED))?;
        probe::require(&configured.settings, &mut kernel).map_err(|problems| complain(&problems, FAILED))?;
    }
    let unreadable = std::mem::take(&mut snapshot.unreadable);
    let Opened { mut engine, notes, obstacles } =
        Engine::open(configured).await.map_err(|problem| complain(&[problem], FAILED))?;
    engine.take_host_as_it_is();
    notes.iter().for_each(say);
    if is_to_write && !obstacles.is_empty() {
        return Err(complain(&obstacles, FAILED));
    }
    obstacles.iter().for_each(say);
    for change in initial_list::changes(snapshot) {
        engine.take(change, Instant::now());
    }
    Ok((engine, unreadable))
}

/// One full sync. Exit code 0: the kernel is as the Services require. 1: something failed. 2: it is as required by the
/// readable input, but some could not be read.
pub async fn run_once(configured: &Configured) -> ExitCode {
    let _lock = match privileges::require().and_then(|()| Lock::take()) {
        Ok(lock) => lock,
        Err(problem) => return complain(&[problem], FAILED),
    };
    let progress = Progress::of_command();
    let (mut engine, unreadable) = match ready(configured, &progress, true).await {
        Ok(ready) => ready,
        Err(code) => return code,
    };
    unreadable.iter().for_each(say);
    let Some(mut report) = engine.pass() else { return complain(&[Problem::new("", "nothing was done")], FAILED) };
    if report.is_done() && report.draining > 0 {
        // Real servers without connections can go at once: there is no later check.
        if let Some(second) = engine.pass_ahead(Duration::from_secs(1)) {
            let (done, lacks) = (std::mem::take(&mut report.applied.done), std::mem::take(&mut report.applied.lacks));
            report = second;
            report.applied.lacks.extend(lacks);
            for (what, count) in done {
                *report.applied.done.entry(what).or_default() += count;
            }
        }
    }
    progress.end();
    for rejection in engine.proxier().rejections() {
        eprintln!("proxier-demo: {rejection}");
    }
    tell(&report);
    let desired = engine.proxier().desired();
    println!("{} virtual servers, {} changes made", desired.frontends().count(), report.writes());
    match (report.is_done(), unreadable.is_empty()) {
        (false, _) => ExitCode::from(FAILED),
        (true, false) => ExitCode::from(BAD_INPUT),
        (true, true) => ExitCode::SUCCESS,
    }
}

/// `--init-only`: only settings of the host, which need more privilege than serving.
pub fn init(configured: &Configured) -> ExitCode {
    let mut kernel = match kernel::open() {
        Ok(kernel) => kernel,
        Err(problem) => return complain(&[problem], FAILED),
    };
    let settings = configured.settings.host();
    let ports = kernel.ports();
    let (changes, unmet) = sysctl_changes(ports.sysctls, &settings);
    let mut failed = 0_u8;
    for change in changes {
        match ports.sysctls.set(&change.path, &change.to) {
            Ok(()) => println!("{} = {}", change.path, change.to),
            Err(error) => {
                eprintln!("proxier-demo: {error}");
                failed = FAILED;
            }
        }
    }
    for unmet in unmet {
        let now = unmet.from.as_deref().unwrap_or("unknown");
        eprintln!("proxier-demo: {} stays {now}: it cannot be written from here", unmet.path);
    }
    ExitCode::from(failed)
}

/// Prints what a person has to know about a pass.
fn tell(report: &Report) {
    for unread in &report.unread {
        eprintln!("proxier-demo: {unread}");
    }
    for failure in &report.applied.failures {
        eprintln!("proxier-demo: {failure}");
    }
    for lack in &report.applied.lacks {
        eprintln!("proxier-demo: this kernel lacks a feature: {lack}");
    }
    for unmet in &report.unmet {
        let now = unmet.from.as_deref().unwrap_or("unknown");
        eprintln!("proxier-demo: {} stays {now}: it cannot be written from here", unmet.path);
    }
    for refused in &report.refused {
        eprintln!("proxier-demo: {} of {} is not served: {}", refused.key, refused.service, refused.reason);
    }
    if let Some(stopped) = &report.stopped {
        eprintln!("proxier-demo: {stopped}; add --allow-mass-removal if this is intended");
    }
    if report.draining > 0 {
        eprintln!("proxier-demo: {} real servers still have connections and take no new ones", report.draining);
    }
}

/// Prints what would change.
pub async fn plan(configured: &Configured, output: Output) -> ExitCode {
    let progress = Progress::of_command();
    let (mut engine, unreadable) = match ready(configured, &progress, false).await {
        Ok(ready) => ready,
        Err(code) => return code,
    };
    let (plan, report) = engine.preview();
    progress.end();
    let printed = match output {
        Output::Text => print_plan(&plan, &report, &engine),
        Output::Json => json::print(&plan_json(&plan, &report, &engine, &unreadable)),
    };
    for problem in &unreadable {
        eprintln!("proxier-demo: {problem}");
    }
    for rejection in engine.proxier().rejections() {
        eprintln!("proxier-demo: {rejection}");
    }
    if output == Output::Text {
        tell(&report);
    }
    match (printed, report.unread.is_empty(), unreadable.is_empty()) {
        (Err(_), _, _) | (_, false, _) => ExitCode::from(FAILED),
        (Ok(()), true, false) => ExitCode::from(BAD_INPUT),
        (Ok(()), true, true) => ExitCode::SUCCESS,
    }
}

fn print_plan(plan: &Plan, report: &Report, engine: &Engine) -> std::io::Result<()> {
    let names = Names::new(engine.proxier().store(), engine.proxier().desired());
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut steps = 0_usize;
    for step in plan.steps(&names) {
        for line in step.to_string().lines().flat_map(wrapped) {
            writeln!(out, "{line}")?;
        }
        steps += 1;
    }
    if report.unread.is_empty() {
        match steps {
            0 => writeln!(out, "nothing to do: the kernel is as it has to be")?,
            1 => writeln!(out, "1 change")?,
            _ => writeln!(out, "{steps} changes")?,
        }
    }
    for key in &report.foreign {
        writeln!(out, "  virtual server {key} is somebody else's and stays")?;
    }
    out.flush()
}

fn plan_json(plan: &Plan, report: &Report, engine: &Engine, unreadable: &[Problem]) -> Value {
    let names = Names::new(engine.proxier().store(), engine.proxier().desired());
    let steps: Vec<_> = plan.steps(&names).collect();
    let lines = |list: Vec<String>| Value::from(list);
    json!({
        "steps": steps,
        "foreign": lines(report.foreign.clone()),
        "refused": report.refused.iter().map(|refused| json!({
            "virtualServer": refused.key.to_string(), "service": refused.service, "reason": refused.reason,
        })).collect::<Vec<_>>(),
        "rejected": lines(engine.proxier().rejections().map(ToString::to_string).collect()),
        "unreadable": lines(unreadable.iter().map(ToString::to_string).collect()),
        "unread": report.unread,
        "heldBack": report.stopped.as_deref(),
    })
}

/// Removes everything that is ours.
pub fn clean(configured: &Configured) -> ExitCode {
    let opened = privileges::require()
        .and_then(|()| privileges::require_rules())
        .and_then(|()| Lock::take())
        .and_then(|lock| Ok((lock, kernel::open()?)));
    let (_lock, mut kernel) = match opened {
        Ok(opened) => opened,
        Err(problem) => return complain(&[problem], FAILED),
    };
    let mut cleaned = cleanup(&configured.settings.core, &mut kernel.ports());
    let (tables, unread) = nftables::cleanup(&nftables::Options::default(), &mut kernel.ports());
    cleaned.unread.extend(unread);
    cleaned.applied.failures.extend(tables.failures);
    for (what, count) in tables.done {
        *cleaned.applied.done.entry(what).or_default() += count;
    }
    for unread in &cleaned.unread {
        eprintln!("proxier-demo: {unread}");
    }
    for failure in &cleaned.applied.failures {
        eprintln!("proxier-demo: {failure}");
    }
    let removed: u64 = cleaned.applied.done.values().sum();
    println!("{removed} things removed");
    for key in &cleaned.foreign {
        println!("virtual server {key} is somebody else's and stays");
    }
    ExitCode::from(if cleaned.is_done() { 0 } else { FAILED })
}
