//! Metrics of this process and its build, under the usual names (client_golang's process collector; component-base's
//! version).

use std::fs::{read_dir, read_to_string};

use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};

use crate::build::{DATE, REVISION, VERSION};
use crate::status::text::Page;

/// Adds the metrics of the process. Those that `/proc` does not show are omitted.
pub(super) fn add(page: &mut Page) {
    page.prefix = "process_";
    let stat = read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name may contain spaces and parentheses.
    let fields: Vec<&str> = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').collect();
    // Numbered as in proc_pid_stat(5), where the state is 3.
    let field = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<f64>().ok();
    let constant =
        |variable| sysconf(variable).ok().flatten().and_then(|number| i32::try_from(number).ok()).map(f64::from);
    let a_second = constant(SysconfVar::CLK_TCK);
    if let (Some(user), Some(system), Some(a_second)) = (field(14), field(15), a_second) {
        page.counter("cpu_seconds_total", "Processor time", (user + system) / a_second);
    }
    if let (Some(start), Some(boot), Some(a_second)) = (field(22), boot_time(), a_second) {
        page.gauge("start_time_seconds", "When it was started, since 1970", boot + start / a_second);
    }
    if let Some(bytes) = field(23) {
        page.gauge("virtual_memory_bytes", "Virtual memory", bytes);
    }
    if let (Some(pages), Some(size)) = (field(24), constant(SysconfVar::PAGE_SIZE)) {
        page.gauge("resident_memory_bytes", "Resident memory", pages * size);
    }
    if let Ok(files) = read_dir("/proc/self/fd") {
        page.gauge("open_fds", "Open files", files.count());
    }
    for (name, help, resource) in [
        ("max_fds", "Maximum number of open files", Resource::RLIMIT_NOFILE),
        ("virtual_memory_max_bytes", "Maximum virtual memory", Resource::RLIMIT_AS),
    ] {
        if let Ok((soft, _hard)) = getrlimit(resource) {
            page.gauge(name, help, soft);
        }
    }
    page.prefix = "kubernetes_";
    let mut numbers = VERSION.split('.').map(str::to_owned);
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let labels = vec![
        ("build_date", DATE.to_owned()),
        ("compiler", "rustc".to_owned()),
        ("git_commit", REVISION.to_owned()),
        ("git_tree_state", String::new()),
        ("git_version", format!("v{VERSION}")),
        ("go_version", String::new()),
        ("major", numbers.next().unwrap_or_default()),
        ("minor", numbers.next().unwrap_or_default()),
        ("platform", format!("linux/{architecture}")),
    ];
    page.family("build_info", "gauge", "The version of this program, which is not that of Kubernetes", [(labels, 1)]);
    page.prefix = "proxier_";
    let labels = vec![("version", VERSION.to_owned()), ("revision", REVISION.to_owned())];
    page.family("build_info", "gauge", "The version and the commit of this program", [(labels, 1)]);
}

/// When this machine was started, in seconds since 1970.
fn boot_time() -> Option<f64> {
    let stat = read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}
