//! The tiers on real kernels, in a virtual machine: one boot for all test programs.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt as _;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::binaries::Binary;
use crate::error::Result;
use crate::kernel::{Kernel, Series};
use crate::libtest::Verdict;
use crate::report::{ProgramRun, Report};
use crate::vm::{Vm, quote};

/// Starts lines that are for this program alone.
const MARK: &str = "##xtask ";

/// For all test programs together.
const TIME_LIMIT: Duration = Duration::from_secs(2700);

/// In MiB. What tests write to files lies in it too.
const MEMORY: u32 = 2048;

/// Runs the test programs on one kernel.
pub(super) fn run(
    series: Series,
    binaries: &[&Binary],
    filter: Option<&str>,
    seed: &OsStr,
    report: &mut Report,
) -> Result<()> {
    let kernel = Kernel::get(series)?;
    let place = format!("kernel {series} ({})", kernel.release);
    let mut vm = Vm::new(kernel)?;
    vm.memory = MEMORY;
    vm.timeout = TIME_LIMIT;
    vm.folder = "/".into();
    vm.env = vec![
        ("TESTKIT_REQUIRE".into(), "all".into()),
        ("RUST_BACKTRACE".into(), "0".into()),
        (super::SEED.into(), seed.to_owned()),
    ];
    let command = ["/bin/sh".into(), "-c".into(), OsString::from_vec(script(binaries, filter))];
    let (sender, lines) = channel();
    let outcome = vm.run_with(&command, Box::new(Lines { partial: Vec::new(), sender }), Box::new(io::stderr()))?;
    let runs = collect(&lines, binaries.len());
    for (binary, run) in binaries.iter().zip(&runs) {
        report.add_program(&place, &binary.name, run);
    }
    if let Some(trouble) = outcome.trouble() {
        eprintln!("{}", outcome.console.trim_end());
        report.add(&place, "xtask", &format!("virtual machine: {trouble}"), Verdict::Failed);
    }
    println!("{place}: {} s", outcome.elapsed.as_secs());
    Ok(())
}

/// Runs one program after the other, with a marked line before and after each.
fn script(binaries: &[&Binary], filter: Option<&str>) -> Vec<u8> {
    let mut script = Vec::new();
    for (number, binary) in binaries.iter().enumerate() {
        let skips = format!("/run/testkit-skipped-{number}");
        script.extend_from_slice(format!("echo '{MARK}begin {number}'; echo; echo ").as_bytes());
        script.extend_from_slice(&quote(OsStr::new(&format!("--- {} ---", binary.name))));
        script.extend_from_slice(format!("\nexport TESTKIT_SKIPPED={skips} CARGO_MANIFEST_DIR=").as_bytes());
        script.extend_from_slice(&quote(binary.folder.as_os_str()));
        script.extend_from_slice(b"\ncd \"$CARGO_MANIFEST_DIR\"\n");
        script.extend_from_slice(&quote(binary.executable.as_os_str()));
        for argument in binary.arguments(filter) {
            script.push(b' ');
            script.extend_from_slice(&quote(OsStr::new(&argument)));
        }
        script.extend_from_slice(format!(" 2>&1\necho '{MARK}'\"end {number} $?\"\n").as_bytes());
        script.extend_from_slice(format!("[ ! -e {skips} ] || sed 's/^/{MARK}skip {number} /' {skips}\n").as_bytes());
    }
    script
}

/// Sorts the lines by the program they belong to.
fn collect(lines: &Receiver<String>, programs: usize) -> Vec<ProgramRun> {
    let mut runs: Vec<ProgramRun> = std::iter::repeat_with(ProgramRun::default).take(programs).collect();
    let mut current = 0;
    for line in lines {
        let Some(marked) = line.strip_prefix(MARK) else {
            if let Some(run) = runs.get_mut(current) {
                run.line(&line);
            }
            continue;
        };
        let mut words = marked.splitn(3, ' ');
        let (verb, number, rest) = (words.next(), words.next(), words.next());
        let Some(number) = number.and_then(|number| number.parse().ok()) else { continue };
        let Some(run) = runs.get_mut(number) else { continue };
        match verb {
            Some("begin") => current = number,
            Some("end") => run.exit(rest.and_then(|code| code.parse().ok())),
            Some("skip") => run.skipped(rest.unwrap_or_default()),
            _ => {}
        }
    }
    runs
}

/// Prints whole lines as they come and hands them on; marked ones are only handed on.
struct Lines {
    partial: Vec<u8>,
    sender: Sender<String>,
}

impl Lines {
    fn take(&mut self, line: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(line).into_owned();
        if !text.starts_with(MARK) {
            println!("{text}");
        }
        // The receiver outlives the machine.
        self.sender.send(text).map_err(io::Error::other)
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.partial.extend_from_slice(bytes);
        while let Some(at) = self.partial.iter().position(|byte| *byte == b'\n') {
            let rest = self.partial.split_off(at + 1);
            let mut line = std::mem::replace(&mut self.partial, rest);
            line.pop();
            self.take(&line)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let line = std::mem::take(&mut self.partial);
        if !line.is_empty() {
            self.take(&line).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::mpsc::channel;

    use super::{Lines, collect, script};
    use crate::commands::test::binaries::Binary;
    use crate::report::{Report, Totals};
    use std::io::Write as _;

    /// The script, run by the shell here, with stand-ins for test programs: one passes, one skips, one dies.
    #[test]
    fn results_come_back_to_the_program_they_belong_to() {
        let folder = std::env::temp_dir().join(format!("xtask-guest-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = |name: &str, body: &str| {
            let executable = folder.join(name);
            std::fs::write(&executable, format!("#!/bin/sh\n{body}\n")).unwrap();
            assert!(Command::new("chmod").arg("+x").arg(&executable).status().unwrap().success());
            Binary { name: name.to_owned(), executable, folder: folder.clone(), needs_kernel: true }
        };
        let binaries = [
            program("good's", "echo running 1 test; echo 'test a ... ok'"),
            program("dies", "echo running 2 tests; echo 'test a ... ok'; exit 134"),
        ];
        let binaries: Vec<&Binary> = binaries.iter().collect();
        let text = String::from_utf8(script(&binaries, None)).unwrap();
        let text = text.replace("/run/", &format!("{}/", folder.display()));
        let output = Command::new("sh").arg("-c").arg(text).output().unwrap();
        let (sender, receiver) = channel();
        // In two pieces that split a line.
        let mut lines = Lines { partial: Vec::new(), sender };
        let (head, tail) = output.stdout.split_at(output.stdout.len() / 2);
        lines.write_all(head).unwrap();
        lines.write_all(tail).unwrap();
        drop(lines);
        let mut runs = collect(&receiver, 2);
        runs[0].skipped("a\tno kernel 9.9 or newer");
        let mut report = Report::default();
        for (binary, run) in binaries.iter().zip(&runs) {
            report.add_program("here", &binary.name, run);
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(report.totals(), Totals { passed: 1, failed: 1, skipped: 1 });
    }
}
