//! A Kubernetes service proxy that replaces kube-proxy. See `proxier-demo --help`.

use std::process::ExitCode;

use proxier_core::modes::Kind;
use proxier_demo::commands::{diff, explain, once, probe, render, run, show, trace};
use proxier_demo::engine::{memory, needs};
use proxier_demo::exit::FAILED;
use proxier_demo::output::say;
use proxier_demo::problem::{Problem, Stopped};
use proxier_demo::settings::cli::{self, Command, Configured, Invocation};
use proxier_demo::status::logging;

fn main() -> ExitCode {
    let invocation = match cli::parse(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(ending) => return ending.report(),
    };
    begin(&invocation).unwrap_or_else(|stopped| {
        stopped.problems.iter().for_each(say);
        // There 2 means that something would change.
        let is_detailed = matches!(invocation.command, Command::Plan { detailed: true });
        ExitCode::from(if is_detailed { FAILED } else { stopped.code })
    })
}

fn begin(invocation: &Invocation) -> Result<ExitCode, Stopped> {
    let configured = invocation.configure()?;
    if matches!(invocation.command, Command::Run { .. } | Command::Plan { .. } | Command::Probe) {
        needs::check_scheduler(&configured).map_err(Stopped::bad_input)?;
    }
    let settings = &configured.settings;
    memory::share_heaps(if settings.mode == Kind::Nftables { 4 } else { 1 });
    logging::start(settings.verbosity, settings.log_json);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Problem::new("", format!("cannot start ({error})")))?;
    let code = runtime.block_on(carry_out(invocation, &configured));
    // The kernel's thread may still be busy; do not wait for it.
    runtime.shutdown_background();
    code
}

async fn carry_out(invocation: &Invocation, configured: &Configured) -> Result<ExitCode, Stopped> {
    let command = &invocation.command;
    // `run` logs the configuration's warnings.
    if !matches!(command, Command::Run { once: false, init_only: false } | Command::WriteConfig(_)) {
        configured.warnings.iter().for_each(say);
    }
    match command {
        Command::WriteConfig(file) => configured.settings.write(file).map(|()| ExitCode::SUCCESS).map_err(Into::into),
        Command::Run { init_only: true, .. } => once::init(configured),
        Command::Run { once: true, .. } => once::run_once(configured).await,
        Command::Run { once: false, .. } => Box::pin(run::run(configured, invocation)).await,
        Command::Plan { detailed } => Box::pin(once::plan(configured, *detailed)).await,
        Command::Render => render::render(configured).await,
        Command::Explain(what) => explain::explain(configured, what).await,
        Command::Trace(asked) => trace::trace_packet(configured, asked).await,
        Command::Diff { from, to } => diff::diff(configured, *from, *to).await,
        Command::Show(None) => show::show(configured).await,
        Command::Show(Some(every)) => show::watch(configured, *every).await,
        Command::Probe => probe::probe(configured).await,
        Command::Cleanup(kept) => once::clean(configured, *kept),
    }
}
