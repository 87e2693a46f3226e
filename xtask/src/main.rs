//! The project's commands: `cargo xtask COMMAND`.
//!
//! Each command is one file below `commands/`; shared code is next to this file. Tests need kernels that this machine
//! does not run: [`kernel`] fetches them, [`vm`] boots them.

mod apt;
mod cargo;
mod commands;
mod kernel;
mod report;
mod tools;
mod turns;
mod vm;

use std::process::ExitCode;

use clap::Parser;

use crate::commands::{api, bench, conformance, demo, differential, dist, emulate, package, setup, soak, test};

/// The project's commands
#[derive(Debug, Parser)]
#[command(
    bin_name = "cargo xtask",
    after_help = "Exit codes: 0 done, 2 bad usage, 125 the command could not do its work."
)]
enum Command {
    Api(api::Options),
    Bench(bench::Options),
    Conformance(conformance::Options),
    Demo(demo::Options),
    Differential(differential::Options),
    /// Pack images and the package, with install.yaml, the chart and checksums
    ///
    /// Images are OCI image layouts in tar files, which podman, docker, ctr and skopeo read. `scratch` has the static program and nothing
    /// else; `debian` has iptables, ipset, kmod, busybox and prepare-node too. Each has the program's parts as SPDX (*.spdx.json). The
    /// Debian package has the unit, the manual page, the configuration and, for this machine's architecture, completions.
    ///
    /// Times and the commit are git's, or SOURCE_DATE_EPOCH and PROXIER_REVISION. Exit codes: 0 done, 1 a check failed, 2 bad usage, 125 else.
    Dist(dist::Options),
    /// Write the pages that are made from the code
    ///
    /// These are docs/reference, except json.md, and the table of docs/differences.md. The tests that check them write them. Exit code 1: one failed.
    Docs,
    Emulate(emulate::Options),
    InstallYaml(dist::manifests::Options),
    /// Pack the libraries, and check the packages
    ///
    /// Copies each library below target/publish under its published name, packs it, and builds each package alone and all together. Fails when
    /// a package lacks a file, a README links out of its package, or a name leads to another author's crate. Needs no network.
    Package,
    Setup(setup::Options),
    Soak(soak::Options),
    Test(test::Options),
    Vm(commands::vm::Options),
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Api(options) => api::main(&options),
        Command::Bench(options) => bench::main(&options),
        Command::Conformance(options) => conformance::main(&options),
        Command::Demo(options) => demo::main(&options),
        Command::Differential(options) => differential::main(&options),
        Command::Dist(options) => dist::main(options),
        Command::Docs => docs(),
        Command::Emulate(options) => emulate::main(&options),
        Command::InstallYaml(options) => dist::manifests::main(&options),
        Command::Package => package::main(),
        Command::Setup(options) => setup::main(&options),
        Command::Soak(options) => soak::main(&options),
        Command::Test(options) => test::main(options),
        Command::Vm(options) => commands::vm::main(options),
    };
    done.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::from(125)
    })
}

fn docs() -> anyhow::Result<ExitCode> {
    let words = ["test", "--quiet", "--workspace", "--all-features", "documentation"];
    let has_passed = tools::succeeds(cargo::command().args(words).env("PROXIER_BLESS", "1"))?;
    Ok(ExitCode::from(u8::from(!has_passed)))
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    /// Words in capitals stand for a value.
    fn value(word: &str) -> &str {
        match word {
            "N" | "SECS" => "5",
            "NAME" | "CRATE" => "nftables",
            "COMMAND" => "test",
            other => other,
        }
    }

    #[test]
    fn every_command_that_pages_show_is_one_that_xtask_takes() {
        let (mut refused, mut found) = (Vec::new(), 0);
        for (page, text) in testkit::documents::pages() {
            for words in testkit::documents::commands(&text) {
                let words: Vec<&str> = words.iter().map(|word| value(word)).collect();
                let Some(words) = words.strip_prefix(&["cargo", "xtask"]).filter(|words| !words.is_empty()) else {
                    continue;
                };
                found += 1;
                // A page may name a command without what it needs, or ask for its help.
                let lacks = [ErrorKind::MissingRequiredArgument, ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand];
                let is_named = |error: &clap::Error| lacks.contains(&error.kind()) || !error.use_stderr();
                if let Err(error) = Command::try_parse_from([&["xtask"], words].concat())
                    && !is_named(&error)
                {
                    refused.push(format!("{}: {words:?}: {error}", page.display()));
                }
            }
        }
        assert!(refused.is_empty() && found > 40, "{found} commands, refused: {refused:#?}");
    }
}
