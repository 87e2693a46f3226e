//! The project's commands: `cargo xtask COMMAND`.
//!
//! One file for each command below `commands/`; what they share lies beside this file. The tests need kernels that
//! the machine at hand does not run: [`kernel`] fetches them, [`vm`] boots them.

mod apt;
mod cache;
mod cargo;
mod commands;
mod cpio;
mod error;
mod kernel;
mod libtest;
mod report;
mod scratch;
mod tools;
mod turns;
mod vm;

use std::error::Error as _;
use std::ffi::OsString;
use std::process::ExitCode;

use crate::error::{Error, Result};

const HELP: &str = "\
Usage: cargo xtask COMMAND [OPTIONS]

  setup    install what the tests need and fetch kernels
  test     run every test, those on real kernels too
  demo     see what IPVS mode does, on a real kernel
  image    pack container images of proxier-demo
  deb      pack a Debian package of proxier-demo
  dist     pack both, with install.yaml, the chart and checksums
  install-yaml  write examples/deploy/install.yaml and the chart's template from the manifests
  api      compare the public API of each library with its list
  examples which functions of the libraries no example in the docs shows
  bench    measure side by side, on real kernels
  conformance  Kubernetes' own end-to-end tests, against a cluster that proxier-demo serves
  emulate  the low crates' tests on another processor, s390x or arm64, by QEMU's user emulation
  package  pack the libraries, and use them from outside
  soak     load, changes and faults for a long time, on a real kernel
  vm       run a command, or a shell, on a real kernel in a virtual machine

cargo xtask COMMAND --help says more. Exit codes: 0 done, 2 bad usage, 125 the command could not do its work.
";

/// Function of a command, with the arguments behind its name.
type Main = fn(&[OsString]) -> Result<ExitCode>;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match dispatch(&arguments) {
        Ok(code) => code,
        Err(error) => {
            let mut line = format!("xtask: {error}");
            let mut cause = error.source();
            while let Some(source) = cause {
                line.push_str(": ");
                line.push_str(&source.to_string());
                cause = source.source();
            }
            eprintln!("{line}");
            error.exit_code()
        }
    }
}

fn dispatch(arguments: &[OsString]) -> Result<ExitCode> {
    let Some((command, rest)) = arguments.split_first() else {
        return Err(Error::usage(format!("no command given\n\n{HELP}")));
    };
    let own: Vec<&OsString> = rest.iter().take_while(|argument| *argument != "--").collect();
    let wants_help = own.iter().any(|argument| *argument == "--help" || *argument == "-h");
    let (help, main): (&str, Main) = match command.to_str() {
        Some("setup") => (commands::setup::HELP, commands::setup::main),
        Some("api") => (commands::api::HELP, commands::api::main),
        Some("examples") => (commands::examples::HELP, commands::examples::main),
        Some("bench") => (commands::bench::HELP, commands::bench::main),
        Some("conformance") => (commands::conformance::HELP, commands::conformance::main),
        Some("deb") => (commands::dist::HELP, |rest| commands::dist::main("deb", rest)),
        Some("dist") => (commands::dist::HELP, |rest| commands::dist::main("dist", rest)),
        Some("image") => (commands::dist::HELP, |rest| commands::dist::main("image", rest)),
        Some("install-yaml") => (commands::dist::manifests::HELP, commands::dist::manifests::main),
        Some("emulate") => (commands::emulate::HELP, commands::emulate::main),
        Some("demo") => (commands::demo::HELP, commands::demo::main),
        Some("package") => (commands::package::HELP, commands::package::main),
        Some("soak") => (commands::soak::HELP, commands::soak::main),
        Some("test") => (commands::test::HELP, commands::test::main),
        Some("vm") => (commands::vm::HELP, commands::vm::main),
        Some("--help" | "-h" | "help") => {
            print!("{HELP}");
            return Ok(ExitCode::SUCCESS);
        }
        _ => return Err(Error::usage(format!("unknown command {}\n\n{HELP}", command.display()))),
    };
    if wants_help {
        print!("{help}");
        return Ok(ExitCode::SUCCESS);
    }
    main(rest)
}
