//! `cargo xtask demo`: what a mode does, on a real kernel, with real traffic.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use crate::cargo;
use crate::error::{Context as _, Error, Result};
use crate::kernel::{Kernel, Series};
use crate::tools;
use crate::vm::Vm;

pub(crate) const HELP: &str = "\
Usage: cargo xtask demo [OPTIONS]

Boots a Debian kernel in QEMU and shows there what IPVS mode does: a client, a node with proxier-demo, pods, traffic, a
pod more, one that drains under load, one that fails, the proxy's end and clean-up. Each step checks itself. No cluster
and no root needed; programs that are missing are installed with apt when this is root, else named.

With --mode nftables, iptables, userspace or auto, the same on this machine's own kernel, in network namespaces: no
machine is booted, and root is needed. With --mode takeover, a node changes from kube-proxy's rules (iptables mode) to
nftables mode, and back, while a client connects without a pause: it prints how many connections were made, and fails if one did.

  --mode MODE      ipvs (default; in QEMU), nftables, iptables, userspace, auto, takeover
  --shell          leaves you in a shell on the node, with the proxy running (exit leaves, Ctrl-A X switches off)
  --check          prints one line, or what is not as it should be
  --kernel KERNEL  5.10, 6.1 (default), 6.12 or 7.x; fetched when it is not in the cache yet
  --proxy FILE     this proxier-demo instead of building one

Exit codes: 0 all steps were as they say, 1 one was not, 2 bad usage, 124 no end, 125 the machine could not start.
";

/// A demo that has not ended by then never will.
const LIMIT: Duration = Duration::from_secs(600);

/// Way in which the demo is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Told,
    Check,
    Shell,
}

#[derive(Debug)]
struct Options {
    mode: Mode,
    kernel: Series,
    proxy: Option<PathBuf>,
    /// The mode to show on this machine's own kernel; `None`: IPVS, in QEMU.
    here: Option<String>,
}

/// The modes that the demo shows on this machine's own kernel.
const HERE: [&str; 5] = ["nftables", "iptables", "userspace", "auto", TAKEOVER];

/// The story of a node that changes from kube-proxy and back.
const TAKEOVER: &str = "takeover";

pub(crate) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    let options = parse(arguments)?;
    let root = super::test::repository()?;
    if options.here.is_none() {
        tools::ensure(tools::MACHINE)?;
    }
    tools::ensure(tools::DEMO)?;
    let proxy = match &options.proxy {
        Some(path) => path.canonicalize().context(|| format!("--proxy {}: no such file", path.display()))?,
        // Optimised: an emulated machine makes the difference felt.
        None => cargo::build_release(&root, "examples", "proxier-demo")?,
    };
    if let Some(mode) = &options.here {
        return here(&root, &proxy, mode, options.mode);
    }
    let mut vm = Vm::new(Kernel::get(options.kernel)?)?;
    vm.timeout = LIMIT;
    let mut command: Vec<OsString> = vec!["sh".into(), root.join("examples/demo/demo.sh").into(), proxy.into()];
    match options.mode {
        Mode::Told => {}
        Mode::Check => command.push("--check".into()),
        Mode::Shell => {
            command.push("--shell".into());
            vm.shell(&command)?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    let start = Instant::now();
    let outcome = vm.run(&command)?;
    if let Some(code) = outcome.failed() {
        return Ok(code);
    }
    if options.mode == Mode::Told {
        println!("{} s from power-on to power-off", start.elapsed().as_secs());
    }
    Ok(ExitCode::from(u8::from(outcome.exit != Some(0))))
}

/// The demo on this machine's own kernel.
fn here(root: &Path, proxy: &Path, shown: &str, mode: Mode) -> Result<ExitCode> {
    if !tools::is_root() {
        return Err(Error::new(format!("demo --mode {shown} needs root: it makes network namespaces (try sudo)")));
    }
    let mut command = Command::new("sh");
    if shown == TAKEOVER {
        command.arg(root.join("examples/demo/takeover.sh")).arg(proxy);
    } else {
        command.arg(root.join("examples/demo/demo.sh")).arg(proxy).args(["--mode", shown]);
    }
    match mode {
        Mode::Told => {}
        Mode::Check => _ = command.arg("--check"),
        Mode::Shell => _ = command.arg("--shell"),
    }
    let start = Instant::now();
    let status = command.status().context(|| "cannot start sh".to_owned())?;
    if mode == Mode::Told {
        println!("{} s", start.elapsed().as_secs());
    }
    Ok(ExitCode::from(u8::from(!status.success())))
}

fn parse(arguments: &[OsString]) -> Result<Options> {
    let mut options = Options { mode: Mode::Told, kernel: Series::V6_1, proxy: None, here: None };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value =
            || rest.next().ok_or_else(|| Error::usage(format!("{}: a value is missing", argument.display())));
        let mode = match argument.to_str() {
            Some("--check") => Mode::Check,
            Some("--shell") => Mode::Shell,
            Some("--kernel") => {
                options.kernel = Series::parse(&value()?.to_string_lossy())?;
                continue;
            }
            Some("--mode") => {
                let mode = value()?.to_string_lossy().into_owned();
                options.here = match mode.as_str() {
                    "ipvs" => None,
                    known if HERE.contains(&known) => Some(mode),
                    _ => return Err(Error::usage(format!("demo: --mode {mode}: ipvs, {}", HERE.join(", ")))),
                };
                continue;
            }
            Some("--proxy") => {
                options.proxy = Some(value()?.into());
                continue;
            }
            _ => return Err(Error::usage(format!("demo: unknown option {}", argument.display()))),
        };
        if options.mode != Mode::Told && options.mode != mode {
            return Err(Error::usage("demo: either --check or --shell"));
        }
        options.mode = mode;
    }
    if options.mode == Mode::Shell && options.here.as_deref() == Some(TAKEOVER) {
        return Err(Error::usage("demo: --mode takeover has no shell"));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::path::Path;

    use super::{Mode, parse};

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn one_way_to_run_it_at_a_time() {
        let options = parse(&words("--check --kernel 6.12 --proxy /p")).unwrap();
        assert_eq!((options.mode, options.kernel.name()), (Mode::Check, "6.12"));
        assert_eq!(options.proxy.as_deref(), Some(Path::new("/p")));
        assert_eq!(parse(&words("--shell")).unwrap().mode, Mode::Shell);
        assert_eq!(parse(&[]).unwrap().mode, Mode::Told);
        let of = |line: &str| parse(&words(line)).unwrap().here;
        assert_eq!((of("--mode ipvs"), of("--mode auto --check").as_deref()), (None, Some("auto")));
        for line in [
            "--mode",
            "--mode kernelspace",
            "--shell --check",
            "--proxy",
            "--kernel",
            "--kernel 2.6",
            "--quiet",
            "web",
            "--mode takeover --shell",
        ] {
            let error = parse(&words(line)).unwrap_err();
            assert_eq!(format!("{:?}", error.exit_code()), format!("{:?}", std::process::ExitCode::from(2)), "{line}");
        }
    }
}
