//! `cargo xtask vm`: one command, or a shell, on a real kernel.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::error::{Context as _, Error, Result};
use crate::kernel::{Kernel, Series};
use crate::tools;
use crate::vm::Vm;

pub(crate) const HELP: &str = "\
Usage: cargo xtask vm [OPTIONS] [-- COMMAND ARGUMENTS...]

Boots a Debian kernel in QEMU and runs COMMAND on it, as root, in the current folder. Every file of this machine is
there, read-only below an overlay that is thrown away. Without COMMAND: a shell (leave it with exit or Ctrl-D).

  --kernel KERNEL   5.10, 6.1 (default), 6.12 or 7.x; fetched when it is not in the cache yet
  --memory MB       memory of the machine, 1024 unless told
  --timeout SECS    time limit from power-on on, 600 unless told
  --net             network card; this machine is 10.0.2.2 in there
  --env NAME=VALUE  environment of COMMAND (may be repeated)
  --rw FOLDER       COMMAND may write into FOLDER, and what it wrote stays (may be repeated)
  --stdin           COMMAND reads standard input; without it, it reads nothing

The exit code is COMMAND's. 124: time was up. 125: the kernel panicked, or the machine could not start. 2: bad usage.

Environment: XTASK_CACHE (where kernels are kept), XTASK_ACCEL (kvm or tcg, instead of trying), XTASK_DEBIAN_MIRROR.
";

/// The options of the command line.
#[derive(Debug)]
struct Options {
    kernel: Series,
    memory: u32,
    timeout: Duration,
    network: bool,
    stdin: bool,
    env: Vec<(OsString, OsString)>,
    shares: Vec<PathBuf>,
    command: Vec<OsString>,
}

pub(crate) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    let options = parse(arguments)?;
    tools::ensure(tools::MACHINE)?;
    let mut vm = Vm::new(Kernel::get(options.kernel)?)?;
    vm.memory = options.memory;
    vm.timeout = options.timeout;
    vm.network = options.network;
    vm.stdin = options.stdin;
    vm.env = options.env;
    for folder in options.shares {
        let path = folder.canonicalize().context(|| format!("--rw {}: no such folder", folder.display()))?;
        vm.shares.push(path);
    }
    if options.command.is_empty() {
        vm.shell(&["bash".into(), "-i".into()])?;
        return Ok(ExitCode::SUCCESS);
    }
    let outcome = vm.run(&options.command)?;
    if let Some(code) = outcome.failed() {
        return Ok(code);
    }
    Ok(ExitCode::from(outcome.exit.and_then(|code| u8::try_from(code).ok()).unwrap_or(125)))
}

fn parse(arguments: &[OsString]) -> Result<Options> {
    let mut options = Options {
        kernel: Series::V6_1,
        memory: 1024,
        timeout: Duration::from_secs(600),
        network: false,
        stdin: false,
        env: Vec::new(),
        shares: Vec::new(),
        command: Vec::new(),
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value =
            || rest.next().ok_or_else(|| Error::usage(format!("{}: a value is missing", argument.display())));
        match argument.to_str() {
            Some("--") => {
                options.command = rest.cloned().collect();
                if options.command.is_empty() {
                    return Err(Error::usage("vm: no command after --"));
                }
                break;
            }
            Some("--kernel") => options.kernel = Series::parse(&value()?.to_string_lossy())?,
            Some("--memory") => options.memory = number(argument, value()?)?,
            Some("--timeout") => options.timeout = Duration::from_secs(number(argument, value()?)?.into()),
            Some("--net") => options.network = true,
            Some("--stdin") => options.stdin = true,
            Some("--env") => options.env.push(assignment(value()?)?),
            Some("--rw") => options.shares.push(value()?.into()),
            _ => return Err(Error::usage(format!("vm: unknown option {} (a command follows --)", argument.display()))),
        }
    }
    Ok(options)
}

fn number(option: &OsStr, value: &OsStr) -> Result<u32> {
    let number = value.to_str().and_then(|text| text.parse().ok()).filter(|number| *number > 0);
    number.ok_or_else(|| Error::usage(format!("{} {}: not a positive number", option.display(), value.display())))
}

fn assignment(value: &OsStr) -> Result<(OsString, OsString)> {
    let bytes = value.as_bytes();
    let parts = bytes.iter().position(|byte| *byte == b'=').and_then(|at| {
        let (name, rest) = bytes.split_at(at);
        let plain = name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
        let starts_well = name.first().is_some_and(|byte| !byte.is_ascii_digit());
        (plain && starts_well).then(|| (name.to_vec(), rest.get(1..).unwrap_or_default().to_vec()))
    });
    let (name, value) = parts.ok_or_else(|| Error::usage(format!("--env {}: not NAME=VALUE", value.display())))?;
    Ok((OsString::from_vec(name), OsString::from_vec(value)))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::parse;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn everything_after_two_dashes_is_the_command() {
        let options = parse(&words("--kernel 6.12 --env A=b=c --memory 512 -- ls --memory -- x")).unwrap();
        assert_eq!(options.kernel.name(), "6.12");
        assert_eq!(options.memory, 512);
        assert_eq!(options.env, [("A".into(), "b=c".into())]);
        assert_eq!(options.command, words("ls --memory -- x"));
    }

    #[test]
    fn bad_usage_is_told_apart() {
        for line in ["--kernel 3.0", "--kernel", "--memory 0", "--timeout x", "ls", "--", "--env 1=2", "--env A"] {
            let error = parse(&words(line)).unwrap_err();
            assert_eq!(format!("{:?}", error.exit_code()), format!("{:?}", std::process::ExitCode::from(2)), "{line}");
        }
    }
}
