//! `cargo xtask conformance`: Kubernetes' own end-to-end tests of Services, against a cluster that proxier-demo serves.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use serde_json::Value;

use crate::error::{Context as _, Error, Result};

pub(crate) const HELP: &str = "\
Usage: cargo xtask conformance --kubeconfig FILE --e2e-test FILE [OPTIONS]

Runs the tests of Services among Kubernetes' end-to-end tests against a running cluster, and writes a table of the results. Which
proxy serves the cluster is up to you: examples/deploy/conformance.md says how proxier-demo comes to serve one on kind, k3s
and kubeadm.

  --kubeconfig FILE  an administrator of the cluster
  --e2e-test FILE    the program e2e.test of the cluster's release (in kubernetes-test-linux-ARCH.tar.gz)
  --title TEXT       what served, for the table: \"nftables mode, kind, Linux 6.1\"
  --out FILE         the table, conformance.md unless told; beside it .json (the report of Ginkgo) and .log (all that was printed)
  --focus REGEX      other tests than those of Services
  --skip REGEX       tests to leave out besides those that are always left out: SCTP, [Flaky], [Deprecated]
  --load-balancer    the cluster has a load balancer: its tests, too
  --disruptive       also tests that restart the proxy or nodes
  --dry-run          only says which tests would run

One test runs at a time; all take one to three hours.

Exit codes: 0 all tests that ran passed, 1 some failed, 2 bad usage, 125 the tests could not run.
";

/// The names of the groups of tests that are about Services (test/e2e/network of Kubernetes 1.28 to 1.36).
const FOCUS: &str = r"\[sig-network\].*(Services|LoadBalancers|Conntrack|KubeProxy|Networking Granular Checks|HostPort|Traffic Distribution|Topology Hints|EndpointSlice|Endpoints|Service endpoints latency|Pod Lifecycle|CVE-2021-29923|DualStack|[Dd]ual.stack)";
/// Tests that no proxy can pass everywhere: those that Kubernetes itself does not rely on, and SCTP, whose module many kernels lack.
const NEVER: &str = r"SCTP|\[Flaky\]|\[Deprecated\]";
/// Only with `--load-balancer`, and only with `--disruptive`.
const LOAD_BALANCER: &str = r"LoadBalancers|\[Feature:LoadBalancer\]";
const DISRUPTIVE: &str = r"\[Disruptive\]";

#[derive(Debug, Default)]
struct Options {
    kubeconfig: PathBuf,
    e2e_test: PathBuf,
    title: Option<String>,
    out: PathBuf,
    focus: Option<String>,
    skip: Option<String>,
    load_balancer: bool,
    disruptive: bool,
    dry_run: bool,
}

pub(crate) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    run(&parse(arguments)?)
}

fn run(options: &Options) -> Result<ExitCode> {
    let (json, log) = (options.out.with_extension("json"), options.out.with_extension("log"));
    // An older report must not pass for this run's.
    match fs::remove_file(&json) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).context(|| format!("cannot replace {}", json.display()));
        }
        _ => {}
    }
    let release = release(&options.e2e_test)?;
    let output = File::create(&log).context(|| format!("cannot write {}", log.display()))?;
    let errors = output.try_clone().context(|| format!("cannot write {}", log.display()))?;
    println!("{release}; what it prints is in {}", log.display());
    let status = Command::new(&options.e2e_test)
        .args(options.arguments(&json))
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .status()
        .context(|| format!("cannot start {}", options.e2e_test.display()))?;
    let text = fs::read_to_string(&json).map_err(|error| {
        Error::new(format!(
            "e2e.test ended with {status} and left no report {}: {error}; its last words are in {}",
            json.display(),
            log.display()
        ))
    })?;
    let report = Report::read(&text).map_err(|reason| Error::new(format!("{}: {reason}", json.display())))?;
    if options.dry_run {
        for test in &report.tests {
            println!("{}", test.name);
        }
        println!("{} tests", report.tests.len());
        return Ok(ExitCode::SUCCESS);
    }
    let table = report.table(options.title.as_deref(), &release);
    fs::write(&options.out, &table).context(|| format!("cannot write {}", options.out.display()))?;
    println!("{}; the table is {}", report.summary(), options.out.display());
    for test in report.tests.iter().filter(|test| test.result == Outcome::Failed) {
        println!("FAILED {}: {}", test.name, test.first_line());
    }
    Ok(ExitCode::from(u8::from(report.count(Outcome::Failed) > 0)))
}

/// Release that `e2e.test --version` prints.
fn release(program: &Path) -> Result<String> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .context(|| format!("--e2e-test {}: cannot be started", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().next().filter(|line| output.status.success() && !line.is_empty()) {
        Some(line) => Ok(line.trim().to_owned()),
        None => Err(Error::new(format!(
            "--e2e-test {}: is no e2e.test of Kubernetes, since --version says nothing ({})",
            program.display(),
            output.status
        ))),
    }
}

impl Options {
    fn arguments(&self, json: &Path) -> Vec<OsString> {
        let mut skip = vec![NEVER];
        if !self.load_balancer {
            skip.push(LOAD_BALANCER);
        }
        if !self.disruptive {
            skip.push(DISRUPTIVE);
        }
        skip.extend(self.skip.as_deref());
        let with = |name: &str, value: &Path| -> OsString {
            let mut argument = OsString::from(name);
            argument.push(value);
            argument
        };
        let mut arguments = vec![
            with("--kubeconfig=", &self.kubeconfig),
            "--provider=skeleton".into(),
            "--ginkgo.no-color".into(),
            "--ginkgo.timeout=8h".into(),
            format!("--ginkgo.focus={}", self.focus.as_deref().unwrap_or(FOCUS)).into(),
            format!("--ginkgo.skip={}", skip.join("|")).into(),
            with("--ginkgo.json-report=", json),
        ];
        if self.dry_run {
            arguments.push("--ginkgo.dry-run".into());
        }
        arguments
    }
}

fn parse(arguments: &[OsString]) -> Result<Options> {
    let mut options = Options { out: "conformance.md".into(), ..Options::default() };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let name = argument.to_str().unwrap_or_default();
        let mut value = || rest.next().ok_or_else(|| Error::usage(format!("{name}: a value is missing")));
        let text = |value: &OsString| {
            value.to_str().map(str::to_owned).ok_or_else(|| Error::usage(format!("{name}: is no UTF-8")))
        };
        match name {
            "--kubeconfig" => options.kubeconfig = value()?.into(),
            "--e2e-test" => options.e2e_test = value()?.into(),
            "--out" => options.out = value()?.into(),
            "--title" => options.title = Some(text(value()?)?),
            "--focus" => options.focus = Some(text(value()?)?),
            "--skip" => options.skip = Some(text(value()?)?),
            "--load-balancer" => options.load_balancer = true,
            "--disruptive" => options.disruptive = true,
            "--dry-run" => options.dry_run = true,
            _ => return Err(Error::usage(format!("unknown argument {}\n\n{HELP}", argument.display()))),
        }
    }
    for (name, file) in [("--kubeconfig", &options.kubeconfig), ("--e2e-test", &options.e2e_test)] {
        if file.as_os_str().is_empty() {
            return Err(Error::usage(format!("{name} FILE is missing\n\n{HELP}")));
        }
        if !file.is_file() {
            return Err(Error::usage(format!("{name} {}: no such file", file.display())));
        }
    }
    // A bare name would be searched in PATH.
    options.e2e_test = options.e2e_test.canonicalize().context(|| options.e2e_test.display().to_string())?;
    if options.out.extension().is_none_or(|extension| extension == "json" || extension == "log") {
        return Err(Error::usage(format!("--out {}: is to end in .md", options.out.display())));
    }
    Ok(options)
}

/// Outcome of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// Ended in any other way than those here: failed, panicked, was interrupted, ran out of time.
    Failed,
    /// Said itself that it cannot run in this cluster.
    Skipped,
}

#[derive(Debug)]
struct Test {
    name: String,
    result: Outcome,
    seconds: f64,
    message: String,
}

impl Test {
    fn first_line(&self) -> &str {
        self.message.lines().next().unwrap_or_default()
    }
}

/// Results of the chosen tests in a report of Ginkgo (`types.Report` of its version 2).
#[derive(Debug)]
struct Report {
    tests: Vec<Test>,
}

impl Report {
    fn read(text: &str) -> std::result::Result<Self, String> {
        let suites: Value = serde_json::from_str(text).map_err(|error| format!("is no JSON: {error}"))?;
        let suites = suites.as_array().ok_or("is no list of suites")?;
        let specs = suites.iter().filter_map(|suite| suite["SpecReports"].as_array()).flatten();
        let mut tests = Vec::new();
        for spec in specs {
            let state = spec["State"].as_str().unwrap_or_default();
            let message = spec["Failure"]["Message"].as_str().unwrap_or_default();
            let result = match state {
                "passed" => Outcome::Passed,
                // Tests that the expressions leave out are skipped without a message.
                "skipped" if message.is_empty() => continue,
                "pending" => continue,
                "skipped" => Outcome::Skipped,
                _ => Outcome::Failed,
            };
            if spec["LeafNodeType"] != "It" {
                // The steps around all tests; where these fail, no test runs.
                if result == Outcome::Failed {
                    return Err(format!("no test ran, since {} failed: {message}", spec["LeafNodeType"]));
                }
                continue;
            }
            let containers = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
            let words: Vec<&str> = containers
                .chain([&spec["LeafNodeText"]])
                .filter_map(Value::as_str)
                .filter(|text| !text.is_empty())
                .collect();
            tests.push(Test {
                name: words.join(" "),
                result,
                seconds: spec["RunTime"].as_f64().unwrap_or_default() / 1e9,
                message: message.to_owned(),
            });
        }
        if tests.is_empty() {
            return Err("no test was chosen: do --focus and --skip fit this release?".to_owned());
        }
        tests.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { tests })
    }

    fn count(&self, result: Outcome) -> usize {
        self.tests.iter().filter(|test| test.result == result).count()
    }

    fn summary(&self) -> String {
        let conformance = |result: Option<Outcome>| {
            let chosen = |test: &&Test| result.is_none_or(|result| test.result == result);
            self.tests.iter().filter(chosen).filter(|test| test.name.contains("[Conformance]")).count()
        };
        format!(
            "{} passed, {} failed, {} skipped; [Conformance]: {} of {}",
            self.count(Outcome::Passed),
            self.count(Outcome::Failed),
            self.count(Outcome::Skipped),
            conformance(Some(Outcome::Passed)),
            conformance(None)
        )
    }

    fn table(&self, title: Option<&str>, release: &str) -> String {
        let rows = self.tests.iter().map(|test| {
            let result = match test.result {
                Outcome::Passed => "passed".to_owned(),
                Outcome::Failed => format!("**failed**: {}", test.first_line()),
                Outcome::Skipped => format!("skipped: {}", test.first_line()),
            };
            format!("| {} | {} | {:.0} |\n", cell(&test.name), cell(&result), test.seconds)
        });
        let rows: String = rows.collect();
        let title = title.unwrap_or("Tests of Services");
        format!("# {title}\n\n{release}\n\n{}\n\n| test | result | s |\n|---|---|---:|\n{rows}", self.summary())
    }
}

/// Text that does not end a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn spec(text: &str, state: &str, message: &str) -> String {
        format!(
            r#"{{"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "{text}",
                "State": "{state}", "RunTime": 12400000000, "Failure": {{"Message": "{message}"}}}}"#
        )
    }

    fn reported(specs: &[String]) -> String {
        format!(r#"[{{"SuiteDescription": "Kubernetes e2e suite", "SpecReports": [{}]}}]"#, specs.join(","))
    }

    /// A stand-in for e2e.test: it leaves the report where it is told to, and fails as that says.
    fn stand_in(folder: &Path, report: &str) -> PathBuf {
        fs::write(folder.join("report"), report).unwrap();
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --version ] && {{ echo e2e.test version v1.36.2; exit; }}\n\
             for a; do echo \"$a\"; case $a in --ginkgo.json-report=*) cp {}/report \"${{a#*=}}\";; esac; done\n! grep -q failed {}/report\n",
            folder.display(),
            folder.display()
        );
        let file = folder.join("e2e.test");
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(folder.join("kubeconfig"), "").unwrap();
        file
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("ipvs-rs-conformance-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn options(folder: &Path, more: &[&str]) -> Result<Options> {
        let mut words: Vec<OsString> = Vec::new();
        for (name, file) in [("--kubeconfig", "kubeconfig"), ("--e2e-test", "e2e.test"), ("--out", "table.md")] {
            words.extend([name.into(), folder.join(file).into()]);
        }
        words.extend(more.iter().map(Into::into));
        parse(&words)
    }

    #[test]
    fn the_table_has_what_ran_and_a_failure_is_an_exit_code() {
        let folder = folder("table");
        let specs = [
            spec("should serve a basic endpoint from pods [Conformance]", "passed", ""),
            spec("should be rejected when no endpoints exist", "failed", "unexpected | timeout\\nsecond line"),
            spec("should work on two nodes", "skipped", "needs 2 nodes"),
            spec("not chosen", "skipped", ""),
            spec("has no body", "pending", ""),
        ];
        stand_in(&folder, &reported(&specs));
        let code = run(&options(&folder, &["--title", "nftables mode", "--skip", "eviction"]).unwrap()).unwrap();
        assert_eq!(code, ExitCode::FAILURE);
        let table = fs::read_to_string(folder.join("table.md")).unwrap();
        assert!(
            table.starts_with("# nftables mode\n\ne2e.test version v1.36.2\n\n1 passed, 1 failed, 1 skipped"),
            "{table}"
        );
        assert!(table.contains("[Conformance]: 1 of 1\n"), "{table}");
        assert!(table.contains("no endpoints exist | **failed**: unexpected \\| timeout | 12 |\n"), "{table}");
        assert!(table.contains("two nodes | skipped: needs 2 nodes | 12 |\n"), "{table}");
        assert!(!table.contains("not chosen") && !table.contains("no body"), "{table}");
        let log = fs::read_to_string(folder.join("table.log")).unwrap();
        assert!(log.contains("--ginkgo.skip=SCTP") && log.contains("|eviction\n"), "{log}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_passes_is_success_and_what_says_nothing_is_an_error() {
        let folder = folder("passes");
        stand_in(&folder, &reported(&[spec("works", "passed", "")]));
        assert_eq!(run(&options(&folder, &["--load-balancer"]).unwrap()).unwrap(), ExitCode::SUCCESS);
        let log = fs::read_to_string(folder.join("table.log")).unwrap();
        assert!(!log.contains("LoadBalancer\\]"), "{log}");
        let before = r#"{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no Node is ready"}}"#;
        for (report, why) in [
            ("[]".to_owned(), "no test was chosen"),
            ("nothing".to_owned(), "is no JSON"),
            (reported(&[before.to_owned()]), "no Node is ready"),
        ] {
            stand_in(&folder, &report);
            let error = run(&options(&folder, &[]).unwrap()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        // A program that leaves no report does not pass by an older one.
        fs::write(folder.join("e2e.test"), "#!/bin/sh\necho v1\nexit 3\n").unwrap();
        assert!(run(&options(&folder, &[]).unwrap()).is_err());
        fs::write(folder.join("e2e.test"), "#!/bin/sh\necho v1\n").unwrap();
        let error = run(&options(&folder, &[]).unwrap()).unwrap_err().to_string();
        assert!(error.contains("left no report"), "{error}");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn bad_usage_is_named() {
        let folder = folder("usage");
        assert!(options(&folder, &[]).unwrap_err().to_string().contains("--kubeconfig"));
        stand_in(&folder, "");
        for (words, why) in [
            (&["--focus"] as &[&str], "--focus: a value is missing"),
            (&["--out", "x.json"], ".md"),
            (&["--speed", "9"], "--speed"),
        ] {
            assert!(options(&folder, words).unwrap_err().to_string().contains(why));
        }
        assert!(parse(&[]).unwrap_err().to_string().contains("--kubeconfig FILE is missing"));
        fs::remove_dir_all(folder).unwrap();
    }
}
