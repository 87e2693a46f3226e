//! The test programs that cargo builds, and a shell script that runs them here or in a virtual machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use fs_err as fs;

use crate::cargo::Artifact;
use crate::report::{Report, results};
use crate::tools;
use crate::vm::{quote, quote_all};

/// A test program, or one file of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    /// Crate and target, such as `ipvs kernel`.
    pub(super) name: String,
    /// The same, with the file if files run separately.
    pub(super) title: String,
    pub(super) package: String,
    /// Command line without its tests.
    pub(super) command: Vec<String>,
    /// The crate's directory, in which tests start.
    pub(super) folder: PathBuf,
    pub(super) needs_kernel: bool,
    /// The names of its tests.
    pub(super) tests: Vec<String>,
}

impl Program {
    /// The test programs of an artifact. A directory of tests on real kernels, `tests/NAME/main.rs`, is split into its
    /// files, which machines share. One of them may change the whole machine.
    pub(super) fn list(of: &Artifact) -> Result<Vec<Self>> {
        let mut list = Command::new(&of.file);
        let text = tools::run(list.args(["--list", "--format=terse"]).current_dir(&of.folder))?;
        Ok(Self::files(of, &text))
    }

    fn files(of: &Artifact, list: &str) -> Vec<Self> {
        let needs_kernel = of.kind == "test" && of.name.starts_with("kernel");
        let by_file = needs_kernel && of.source.ends_with("main.rs");
        // Never a single thread: libtest would run the tests on the main thread, but their reports are named by the
        // thread.
        let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get).max(2);
        let threads = format!("--test-threads={}", if needs_kernel { 2 } else { processors });
        // A library's and a program's own tests can have the same name.
        let kind = if of.kind == "test" { String::new() } else { format!(" ({})", of.kind) };
        let name = format!("{} {}{kind}", of.package(), of.name);
        let mut files: BTreeMap<Option<&str>, Vec<String>> = BTreeMap::new();
        for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
            let file = test.split_once("::").map(|(file, _)| file).filter(|_| by_file);
            files.entry(file).or_default().push(test.to_owned());
        }
        let command = [
            of.file.display().to_string(),
            threads,
            "-Zunstable-options".into(),
            "--report-time".into(),
            "--exact".into(),
        ];
        let of_file = |(file, tests): (Option<&str>, _)| Self {
            title: file.iter().fold(name.clone(), |name, file| format!("{name} {file}")),
            name: name.clone(),
            package: of.package().to_owned(),
            command: command.to_vec(),
            folder: of.folder.clone(),
            needs_kernel,
            tests,
        };
        files.into_iter().map(of_file).collect()
    }

    /// Only the matching tests; `None` if none matches.
    pub(super) fn with_tests(&self, fits: impl Fn(&str) -> bool) -> Option<Self> {
        let tests: Vec<String> = self.tests.iter().filter(|test| fits(test)).cloned().collect();
        (!tests.is_empty()).then(|| Self { tests, ..self.clone() })
    }
}

/// Runs program $1 with title $2 in directory $3, unless another script has created the directory. Output, exit code
/// and skipped tests are stored there.
const RUN: &str = r#"
run() {
    mkdir "$results/$1" 2>/dev/null || return 0
    place=$results/$1 title=$2
    cd "$3"
    export CARGO_MANIFEST_DIR="$3" TESTKIT_SKIPPED="$place/skipped"
    shift 3
    code=0
    "$@" >"$place/output" 2>&1 || code=$?
    echo "$code" >"$place/code"
    echo "$title: exit code $code"
}
"#;

/// The command line of a script that runs the programs in sequence, each with its results in a directory below
/// `results`. Several scripts may run concurrently.
pub(super) fn command(programs: &[Program], results: &Path) -> Result<[String; 2]> {
    let mut script = format!("results={}{RUN}", quote(&results.display().to_string()));
    for (number, program) in programs.iter().enumerate() {
        let folder = program.folder.display().to_string();
        let words =
            [vec![number.to_string(), program.title.clone(), folder], program.command.clone(), program.tests.clone()];
        script.extend(["run ", &quote_all(&words.concat()), "\n"]);
    }
    // The results are in files; the script must not return the last command's exit code.
    script.push_str("exit 0\n");
    // The names of all tests are longer than an argument may be.
    let file = results.join("script");
    fs::write(&file, script)?;
    Ok(["/bin/sh".to_owned(), file.display().to_string()])
}

/// Records the results of such a script; prints the output of failed programs.
pub(super) fn collect(programs: &[Program], folder: &Path, place: &str, report: &mut Report) {
    for (number, program) in programs.iter().enumerate() {
        let read = |name| {
            let bytes = fs::read(folder.join(number.to_string()).join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (output, code) = (read("output"), read("code").trim().parse().ok());
        if code != Some(0) {
            println!("\n--- {} (on {place}) ---\n{output}", program.title);
        }
        report.add(place, &program.name, results(&output, &read("skipped"), code));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test that only a machine with IPVS can run would run nowhere in another program.
    #[test]
    fn tests_that_need_ipvs_run_on_real_kernels() {
        let find = "grep -rlE '(testkit::|Need::).*(PROXY|Need::IpVs|Need::Dummy|Need::Scheduler)' */tests --include=*.rs | cut -d/ -f3 | sort -u";
        let found = tools::run(Command::new("sh").current_dir(tools::repository()).args(["-c", find])).unwrap();
        assert!(found.contains("kernel"), "{found}");
        let elsewhere: Vec<_> = found.lines().filter(|file| !file.starts_with("kernel")).collect();
        assert!(elsewhere.is_empty(), "move these tests to a program kernel*: {elsewhere:?}");
    }

    #[test]
    fn a_directory_of_kernel_tests_is_run_file_by_file() {
        let titles = |kind: &str, name: &str, source: &str| {
            let artifact = Artifact {
                name: name.to_owned(),
                kind: kind.to_owned(),
                is_test: true,
                source: source.into(),
                folder: "/r/ipvs".into(),
                file: "/t/x".into(),
            };
            let files =
                Program::files(&artifact, "b::x::y: test\na::z: test\nb::z: test\n\nc: benchmark\n").into_iter();
            files.map(|file| format!("{}: {}", file.title, file.tests.join(" "))).collect::<Vec<_>>()
        };
        let files = ["ipvs kernel a: a::z", "ipvs kernel b: b::x::y b::z"];
        assert_eq!(titles("test", "kernel", "/r/ipvs/tests/kernel/main.rs"), files);
        assert_eq!(titles("test", "kernel_x", "/r/ipvs/tests/kernel_x.rs"), ["ipvs kernel_x: b::x::y a::z b::z"]);
        assert_eq!(titles("lib", "kernel", "/r/ipvs/src/main.rs"), ["ipvs kernel (lib): b::x::y a::z b::z"]);
    }

    /// Runs the script with simulated test programs: one passes, one skips, one crashes.
    #[test]
    fn results_come_back_to_the_program_they_belong_to() {
        let scratch = tools::scratch().unwrap();
        let program = |title: &str, line: &str| Program {
            title: title.to_owned(),
            name: title.to_owned(),
            command: ["sh", "-c", line, "sh"].map(str::to_owned).to_vec(),
            folder: "/".into(),
            tests: vec!["a".to_owned()],
            ..Program::default()
        };
        let programs = [
            program("good's", "echo running 1 test; echo \"test $1 ... ok <1.5s>\""),
            program(
                "skips",
                "echo running 1 test; echo 'test a ... ok <0.1s>'; printf 'a\\tno kernel 9.9 or newer' >$TESTKIT_SKIPPED",
            ),
            program("dies", "echo running 2 tests; echo 'test a ... ok <0.1s>'; exit 134"),
        ];
        // Longer than an argument may be.
        let long: Vec<String> =
            (0..20_000).map(|number| format!("a_test_that_the_program_does_not_have_{number}")).collect();
        let programs = programs.map(|program| Program { tests: [program.tests, long.clone()].concat(), ..program });
        // Two machines: the second one finds nothing left to do.
        let [shell, script] = command(&programs, scratch.path()).unwrap();
        let run = || tools::run(Command::new(&shell).arg(&script)).unwrap();
        assert!(run().contains("good's") && run().is_empty());
        let mut report = Report::default();
        collect(&programs, scratch.path(), "here", &mut report);
        assert_eq!(report.totals(), [2, 1, 1], "{report:?}");
    }
}
