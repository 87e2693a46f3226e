//! `cargo xtask demo`: shows what a mode does, on a real kernel with real traffic.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use fs_err as fs;

use crate::kernel::{Kernel, Series};
use crate::vm::Vm;
use crate::{cargo, tools};

/// See what IPVS mode does, on a real kernel
///
/// Boots a Debian kernel in QEMU and shows there what IPVS mode does. There are a client, a node with proxier-demo, and
/// pods with traffic. One pod is added, one drains under load, and one fails. At the end the proxy stops and cleans up.
/// Each step checks itself. No cluster and no root needed; programs that are missing are installed with apt when this
/// is root, else named.
///
/// With --mode nftables, iptables, userspace or auto, the same on this machine's own kernel, in network namespaces: no
/// machine is booted, and root is needed. With --mode takeover, a node changes from kube-proxy's rules (iptables mode)
/// to nftables mode, and back, while a client connects without a pause. It prints how many connections were made, and
/// fails if one of them failed.
///
/// Exit codes: 0 all steps were as they say, 1 one was not, 2 bad usage, 124 no end, 125 the machine could not start.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(long, default_value = "ipvs", value_parser = ["ipvs", "nftables", "iptables", "userspace", "auto", "takeover"])]
    mode: String,
    /// Leaves you in a shell on the node, with the proxy running (exit leaves, Ctrl-A X switches off)
    #[arg(long, conflicts_with = "check")]
    shell: bool,
    /// Prints one line, or what is not as it should be
    #[arg(long)]
    check: bool,
    /// 5.10, 6.1, 6.12 or 7.x; fetched when it is not in the cache yet
    #[arg(long, default_value = "6.1")]
    kernel: Series,
    /// This proxier-demo instead of building one
    #[arg(long, value_name = "FILE")]
    proxy: Option<PathBuf>,
}

/// Installs the programs that the demo starts and fetches the kernel that it boots, if it boots one.
fn fetch(series: Option<Series>) -> Result<Option<Kernel>> {
    if series.is_some() {
        tools::ensure(tools::MACHINE)?;
    }
    tools::ensure(tools::ORACLES)?;
    tools::ensure(tools::DEMO)?;
    series.map(Kernel::get).transpose()
}

/// A demo that has not ended by then is stuck.
const LIMIT: Duration = Duration::from_secs(600);

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    let (in_machine, is_takeover) = (options.mode == "ipvs", options.mode == "takeover");
    ensure!(!(options.shell && is_takeover), "demo: --mode takeover has no shell");
    ensure!(in_machine || tools::is_root(), "demo --mode {} needs root: it makes network namespaces", options.mode);
    // Packages and the kernel are fetched while cargo builds.
    let (proxy, kernel) = thread::scope(|scope| {
        let build = scope.spawn(|| match &options.proxy {
            Some(path) => Ok(fs::canonicalize(path)?),
            None => cargo::build("proxier-demo", "proxier-demo", "demo"),
        });
        let fetched = fetch(in_machine.then_some(options.kernel));
        let built = build.join().unwrap_or_else(|_| Err(anyhow!("the thread that builds panicked")));
        Ok::<_, anyhow::Error>((built?, fetched?))
    })?;
    let script = format!("examples/demo/{}.sh", if is_takeover { "takeover" } else { "demo" });
    let mut words = vec![tools::repository().join(script).display().to_string(), proxy.display().to_string()];
    if !in_machine && !is_takeover {
        words.extend(["--mode".to_owned(), options.mode.clone()]);
    }
    let ways = [(options.check, "--check"), (options.shell, "--shell")];
    words.extend(ways.into_iter().filter(|(is_so, _)| *is_so).map(|(_, word)| word.to_owned()));
    words.insert(0, "sh".to_owned());
    let start = Instant::now();
    let is_well = if let Some(kernel) = kernel {
        let vm = Vm { timeout: LIMIT, ..Vm::new(kernel)? };
        if options.shell {
            return vm.shell(&words);
        }
        let outcome = vm.run(&words)?;
        if let Some(code) = outcome.failed() {
            return Ok(code);
        }
        outcome.exit == Some(0)
    } else {
        tools::succeeds(Command::new("sh").args(words.iter().skip(1)))?
    };
    if !options.check && !options.shell {
        println!("{} s", start.elapsed().as_secs());
    }
    Ok(ExitCode::from(u8::from(!is_well)))
}
