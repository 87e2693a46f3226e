//! A Kubernetes service proxy that replaces kube-proxy. See `proxier-demo --help`.

use std::process::ExitCode;

use proxier_demo::commands::{diff, explain, once, probe, render, run, show, trace};
use proxier_demo::engine::{memory, needs};
use proxier_demo::output::say;
use proxier_demo::settings::cli::{self, Command, Configured, Ending};
use proxier_demo::status::logging;

fn main() -> ExitCode {
    memory::one_heap();
    let invocation = match cli::parse(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(ending) => return ending.report(),
    };
    let configured = match invocation.configure() {
        Ok(configured) => configured,
        Err(ending) => return ending.report(),
    };
    if matches!(invocation.command, Command::Run { .. } | Command::Plan { .. } | Command::Probe(_))
        && let Err(problem) = needs::check_scheduler(&configured)
    {
        return invocation.ending(Ending::bad_input(&[problem])).report();
    }
    let settings = &configured.settings;
    logging::start(settings.verbosity, settings.log_json);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(format_args!("cannot start ({error})"));
            return ExitCode::FAILURE;
        }
    };
    let code = match &invocation.command {
        Command::WriteConfig(file) => write_config(&configured, file),
        Command::Run { init_only: true, .. } => once::init(&warned(configured)),
        Command::Run { once: true, .. } => runtime.block_on(once::run_once(&warned(configured))),
        Command::Run { once: false, .. } => runtime.block_on(run::run(&configured, &invocation)),
        Command::Plan { output, detailed } => runtime.block_on(once::plan(&warned(configured), *output, *detailed)),
        Command::Render(output, addresses) => runtime.block_on(render::render(&warned(configured), *output, addresses)),
        Command::Explain(output, what, addresses) => {
            runtime.block_on(explain::explain(&warned(configured), *output, what, addresses))
        }
        Command::Trace(output, asked, addresses) => {
            runtime.block_on(trace::trace_packet(&warned(configured), *output, asked, addresses))
        }
        Command::Diff(output, modes, addresses) => {
            runtime.block_on(diff::diff(&warned(configured), *output, *modes, addresses))
        }
        Command::Show { output, by_service, watch: None } => {
            runtime.block_on(show::show(&warned(configured), *output, *by_service))
        }
        Command::Show { output, by_service, watch: Some(every) } => {
            runtime.block_on(show::watch(&warned(configured), *output, *by_service, *every))
        }
        Command::Probe(output) => runtime.block_on(probe::probe(&warned(configured), *output)),
        Command::Cleanup(kept) => once::clean(&warned(configured), *kept),
    };
    // The kernel's thread may still be busy; do not wait for it.
    runtime.shutdown_background();
    code
}

/// Prints the configuration's warnings. `run` logs them instead.
fn warned(configured: Configured) -> Configured {
    configured.warnings.iter().for_each(say);
    configured
}

fn write_config(configured: &Configured, file: &std::path::Path) -> ExitCode {
    match configured.settings.write(file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            say(problem);
            ExitCode::FAILURE
        }
    }
}
