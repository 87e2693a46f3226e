//! The test programs that cargo builds.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cargo;
use crate::error::{Context as _, Error, Result};

/// A test program, or one file of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Binary {
    /// Crate and target, `ipvs kernel` for example.
    pub(super) name: String,
    /// The file, when each is run by itself.
    pub(super) file: Option<String>,
    pub(super) executable: PathBuf,
    /// The crate's folder: tests start there.
    pub(super) folder: PathBuf,
    /// Whether it belongs to the tiers on real kernels.
    pub(super) needs_kernel: bool,
    /// Whether it is a folder, `tests/NAME/main.rs`.
    pub(super) is_folder: bool,
    /// The names of its tests, once it was asked.
    pub(super) tests: Vec<String>,
}

impl Binary {
    /// The crate it belongs to.
    pub(super) fn package(&self) -> &str {
        self.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// Number of its tests that run at a time. Never one alone: libtest would run the tests on the main thread then, and
    /// what they report about themselves goes by the thread's name.
    pub(super) fn threads(&self) -> usize {
        let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get).max(2);
        if self.needs_kernel { 2 } else { processors }
    }

    /// Program and file, for people.
    pub(super) fn title(&self) -> String {
        self.file.iter().fold(self.name.clone(), |name, file| format!("{name} {file}"))
    }

    /// Its command line for these tests.
    pub(super) fn arguments(&self, tests: &[&str]) -> Vec<String> {
        let mut arguments = vec![format!("--test-threads={}", self.threads()), "--exact".to_owned()];
        arguments.extend(tests.iter().map(|&test| test.to_owned()));
        arguments
    }

    /// Asks it for its tests. A folder of tests on real kernels becomes its files, which machines share among them, and of which one
    /// may change the whole machine.
    fn list(&self) -> Result<Vec<Self>> {
        let failed = || format!("cannot list the tests of {}", self.executable.display());
        let mut command = Command::new(&self.executable);
        let output = command.args(["--list", "--format=terse"]).current_dir(&self.folder).output().context(failed)?;
        if !output.status.success() {
            return Err(Error::new(format!("{}: {}", failed(), String::from_utf8_lossy(&output.stderr).trim_end())));
        }
        Ok(self.with_tests(&String::from_utf8_lossy(&output.stdout)))
    }

    fn with_tests(&self, list: &str) -> Vec<Self> {
        let mut files: BTreeMap<Option<&str>, Vec<String>> = BTreeMap::new();
        for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
            let file = test.split_once("::").map(|(file, _)| file).filter(|_| self.is_folder && self.needs_kernel);
            files.entry(file).or_default().push(test.to_owned());
        }
        let of_file = |(file, tests): (Option<&str>, _)| Self { file: file.map(str::to_owned), tests, ..self.clone() };
        files.into_iter().map(of_file).collect()
    }
}

/// Selection of crates, as cargo's arguments.
pub(super) fn selection(crates: &[String]) -> Vec<String> {
    if crates.is_empty() {
        vec!["--workspace".to_owned()]
    } else {
        crates.iter().flat_map(|name| ["--package".to_owned(), name.clone()]).collect()
    }
}

/// Programs that a build has made.
#[derive(Debug, Default)]
pub(crate) struct Built {
    /// The test programs, in the order of their names.
    tests: Vec<Binary>,
    /// The other programs, name and path.
    programs: Vec<(String, PathBuf)>,
}

impl Built {
    /// The test programs with their tests, in the order of their names; without those that have none.
    pub(super) fn tests(&self) -> Result<Vec<Binary>> {
        Ok(self.tests.iter().map(Binary::list).collect::<Result<Vec<_>>>()?.concat())
    }

    /// The path of a program that is no test.
    pub(crate) fn program(&self, name: &str) -> Result<PathBuf> {
        let found = self.programs.iter().find(|(known, _)| known == name);
        found.map(|(_, path)| path.clone()).ok_or_else(|| Error::new(format!("{name} was not built")))
    }
}

/// Builds everything with all features and not optimised: tests, examples and programs, in one run of cargo's.
///
/// Everything that needs no optimised program takes it from here: two commands that choose crates or features in other
/// ways would build much of the same twice.
pub(crate) fn build(root: &Path, crates: &[String]) -> Result<Built> {
    let mut child = cargo::command()
        .args(["build", "--all-targets", "--all-features", "--message-format=json-render-diagnostics"])
        .args(selection(crates))
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context(|| "cannot start cargo".to_owned())?;
    let mut built = Built::default();
    if let Some(pipe) = child.stdout.take() {
        for line in BufReader::new(pipe).lines() {
            match parse(&line.context(|| "cannot read cargo's messages".to_owned())?) {
                Some(Program::Test(test)) => built.tests.push(test),
                Some(Program::Other(name, path)) => built.programs.push((name, path)),
                None => {}
            }
        }
    }
    let status = child.wait().context(|| "cannot wait for cargo".to_owned())?;
    if !status.success() {
        return Err(Error::new("the tests do not build"));
    }
    built.tests.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(built)
}

/// A program that cargo built.
#[derive(Debug, PartialEq, Eq)]
enum Program {
    Test(Binary),
    /// Name and path.
    Other(String, PathBuf),
}

/// A message of cargo about a program.
fn parse(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let target = message["target"]["name"].as_str()?;
    let kind = message["target"]["kind"][0].as_str()?;
    if message["profile"]["test"] != true {
        return Some(Program::Other(target.to_owned(), executable));
    }
    let package = folder.file_name()?.to_str()?;
    // A library's and a program's own tests can bear the same name.
    let name = if kind == "test" { format!("{package} {target}") } else { format!("{package} {target} ({kind})") };
    let needs_kernel = kind == "test" && target.starts_with("kernel");
    let is_folder = Path::new(message["target"]["src_path"].as_str()?).ends_with("main.rs");
    Some(Program::Test(Binary { name, executable, folder, needs_kernel, is_folder, ..Binary::default() }))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{Binary, Built, Program, parse};

    /// A test that only a machine with IPVS can run would run nowhere in another program.
    #[test]
    fn what_needs_ipvs_is_in_a_program_that_runs_on_real_kernels() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let entries =
            |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
        let folders = entries(root).into_iter().map(|of_crate| of_crate.join("tests")).filter(|tests| tests.is_dir());
        let programs =
            folders.flat_map(|tests| entries(&tests)).filter(|path| !path.is_dir() || path.join("main.rs").exists());
        let needs = |program: &PathBuf| {
            let (mut open, mut text) = (vec![program.clone()], String::new());
            while let Some(path) = open.pop() {
                if path.is_dir() {
                    open.extend(entries(&path));
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    text += &fs::read_to_string(path).unwrap();
                }
            }
            let mut lines = text.lines().filter(|line| line.contains("testkit::") || line.contains("Need::"));
            lines.any(|line| {
                ["PROXY", "Need::IpVs", "Need::Dummy", "Need::Scheduler"].iter().any(|need| line.contains(need))
            })
        };
        let (there, elsewhere): (Vec<_>, Vec<_>) =
            programs.filter(needs).partition(|path| path.file_name().unwrap().to_str().unwrap().starts_with("kernel"));
        assert!(there.len() > 5, "{there:?}");
        assert!(elsewhere.is_empty(), "move these tests to a program kernel*: {elsewhere:?}");
    }

    #[test]
    fn a_folder_of_tests_on_real_kernels_is_run_file_by_file() {
        let titles = |needs_kernel, is_folder| {
            let binary = Binary { name: "ipvs kernel".into(), needs_kernel, is_folder, ..Binary::default() };
            let files = binary.with_tests("b::x::y: test\na::z: test\nb::z: test\n\nc: benchmark\n").into_iter();
            files.map(|file| format!("{}: {}", file.title(), file.tests.join(" "))).collect::<Vec<_>>()
        };
        assert_eq!(titles(true, true), ["ipvs kernel a: a::z", "ipvs kernel b: b::x::y b::z"]);
        assert_eq!(titles(true, false), ["ipvs kernel: b::x::y a::z b::z"]);
        assert_eq!(titles(false, true), ["ipvs kernel: b::x::y a::z b::z"]);
        assert!(Binary::default().with_tests("").is_empty());
    }

    #[test]
    fn programs_with_tests_are_told_from_the_rest() {
        let message = |kind: &str, name: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/r/ipvs/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}","src_path":"/r/ipvs/tests/{name}/main.rs"}},"profile":{{"test":{test}}},"executable":"/t/{name}-1"}}"#
            )
        };
        let test = |kind, name| -> Binary {
            match parse(&message(kind, name, true)) {
                Some(Program::Test(binary)) => binary,
                other => panic!("{other:?}"),
            }
        };
        let binary = test("test", "kernel_sync");
        assert_eq!(binary.package(), "ipvs");
        assert_eq!(binary.name, "ipvs kernel_sync");
        assert_eq!(binary.folder, Path::new("/r/ipvs"));
        assert!(binary.needs_kernel && binary.is_folder);
        assert!(!test("lib", "kernel").needs_kernel);
        assert!(!test("test", "prop").needs_kernel);
        let demo = ("demo".to_owned(), PathBuf::from("/t/demo-1"));
        assert_eq!(parse(&message("bin", "demo", false)), Some(Program::Other(demo.0.clone(), demo.1.clone())));
        let built = Built { tests: Vec::new(), programs: vec![demo] };
        assert_eq!(built.program("demo").unwrap(), Path::new("/t/demo-1"));
        assert!(built.program("other").is_err());
        assert_eq!(parse(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(parse("not JSON"), None);
    }
}
