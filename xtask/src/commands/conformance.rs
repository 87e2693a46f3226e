//! `cargo xtask conformance`: Kubernetes' own end-to-end tests of Services, against a cluster that proxier-demo serves.

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::Value;

use crate::tools;

/// Kubernetes' own end-to-end tests, against a cluster that proxier-demo serves
///
/// Runs the tests of Services among Kubernetes' end-to-end tests against a running cluster, and writes a table of the results. Which
/// proxy serves the cluster is up to you: docs/conformance.md says how proxier-demo comes to serve one on kind, k3s
/// and kubeadm. One test runs at a time, and each that ends is a line; all take one to three hours.
///
/// Exit codes: 0 all tests that ran passed, 1 some failed, 2 bad usage, 125 the tests could not run.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// An administrator of the cluster
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// The program e2e.test of the cluster's release (in kubernetes-test-linux-ARCH.tar.gz)
    #[arg(long, value_name = "FILE")]
    e2e_test: PathBuf,
    /// The proxy that served, for the table: "nftables mode, kind, Linux 6.1"
    #[arg(long, default_value = "Tests of Services")]
    title: String,
    /// File for the table; the same name with .json gets Ginkgo's report, with .log all output
    #[arg(long, value_name = "FILE", default_value = "conformance.md")]
    out: PathBuf,
    /// Other tests than those of Services
    #[arg(long, value_name = "REGEX", default_value = FOCUS, hide_default_value = true)]
    focus: String,
    /// Tests to leave out besides those that are always left out: SCTP, `[Flaky]`, `[Deprecated]`
    #[arg(long, value_name = "REGEX")]
    skip: Option<String>,
    /// The cluster has a load balancer: its tests, too
    #[arg(long)]
    load_balancer: bool,
    /// Also tests that restart the proxy or nodes
    #[arg(long)]
    disruptive: bool,
    /// Only says which tests would run
    #[arg(long)]
    dry_run: bool,
    /// The program that asks whether the API server answers
    #[arg(long, value_name = "FILE", default_value = "kubectl", hide = true)]
    kubectl: PathBuf,
}

/// The names of the test groups about Services (test/e2e/network of Kubernetes 1.28 to 1.36).
const FOCUS: &str = r"\[sig-network\].*(Services|LoadBalancers|Conntrack|KubeProxy|Networking Granular Checks|Networking should check kube-proxy urls|HostPort|Traffic Distribution|Topology Hints|EndpointSlice|Endpoints|Service endpoints latency|Pod Lifecycle|CVE-2021-29923|DualStack|[Dd]ual.stack)";
/// Tests that no proxy can pass everywhere: those on which Kubernetes itself does not rely, and SCTP, whose module many
/// kernels lack.
const NEVER: &str = r"SCTP|\[Flaky\]|\[Deprecated\]";
/// Only with `--load-balancer`, and only with `--disruptive`.
const LOAD_BALANCER: &str = r"LoadBalancers|\[Feature:LoadBalancer\]";
const DISRUPTIVE: &str = r"\[Disruptive\]";

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    let (json, log) = (options.out.with_extension("json"), options.out.with_extension("log"));
    ensure!(![&json, &log].contains(&&options.out), "--out {}: is to end in .md", options.out.display());
    ensure!(options.kubeconfig.is_file(), "--kubeconfig {}: no such file", options.kubeconfig.display());
    // An older report must not be mistaken for this run's.
    if json.exists() {
        fs::remove_file(&json)?;
    }
    // A bare name would be searched in PATH.
    let program = fs::canonicalize(&options.e2e_test)?;
    // Go prints help on standard error, and its exit code depends on the version of Go.
    let help = Command::new(&program).arg("--help").stdin(Stdio::null()).output()?;
    ensure!(
        String::from_utf8_lossy(&help.stderr).contains("ginkgo.json-report"),
        "--e2e-test {}: not e2e.test of Kubernetes: its --help has no ginkgo.json-report",
        options.e2e_test.display()
    );
    let version = tools::run(Command::new(&program).arg("--version"))?;
    let release = version.lines().next().context("--e2e-test: --version prints nothing")?;
    // e2e.test itself waits for ten minutes.
    let mut ask = Command::new(&options.kubectl);
    ask.arg("--kubeconfig").arg(&options.kubeconfig).args(["--request-timeout=5s", "get", "--raw", "/version"]);
    if !options.dry_run {
        tools::run(&mut ask).context("the API server does not answer")?;
    }
    println!("{release}; all output is in {}", log.display());
    let mut file = fs::File::create(&log)?;
    let (output, end) = io::pipe()?;
    let mut run = Command::new(program);
    run.args(options.arguments(&json)).stdin(Stdio::null()).stdout(end.try_clone()?).stderr(end);
    let mut child = run.spawn().context("cannot start e2e.test")?;
    // Its copies of the pipe's end would keep the pipe open.
    drop(run);
    follow(output, &mut file, |line| {
        if !options.dry_run {
            println!("{line}");
        }
    })?;
    let status = child.wait()?;
    let text = fs::read_to_string(&json).with_context(|| {
        format!("e2e.test ended with {status} and left no report; its last words are in {}", log.display())
    })?;
    let tests = read(&text).with_context(|| json.display().to_string())?;
    if options.dry_run {
        for test in &tests {
            println!("{}", test.name);
        }
        println!("{} tests", tests.len());
        return Ok(ExitCode::SUCCESS);
    }
    let summary = summary(&tests);
    let table: String = tests.iter().map(Test::row).collect();
    let table =
        format!("# {}\n\n{release}\n\n{summary}\n\n| test | result | s |\n|---|---|---:|\n{table}", options.title);
    fs::write(&options.out, table)?;
    println!("{summary}; the table is {}", options.out.display());
    let failed: Vec<_> = tests.iter().filter(|test| test.result == FAILED).collect();
    for test in &failed {
        println!("FAILED {}: {}", test.name, test.message);
    }
    Ok(ExitCode::from(u8::from(!failed.is_empty())))
}

impl Options {
    fn arguments(&self, json: &Path) -> Vec<String> {
        let parts = [
            Some(NEVER),
            (!self.load_balancer).then_some(LOAD_BALANCER),
            (!self.disruptive).then_some(DISRUPTIVE),
            self.skip.as_deref(),
        ];
        let skip: Vec<&str> = parts.into_iter().flatten().collect();
        vec![
            format!("--kubeconfig={}", self.kubeconfig.display()),
            "--provider=skeleton".to_owned(),
            "--ginkgo.no-color".to_owned(),
            // Names of tests that pass.
            "--ginkgo.v".to_owned(),
            "--ginkgo.timeout=8h".to_owned(),
            format!("--ginkgo.focus={}", self.focus),
            format!("--ginkgo.skip={}", skip.join("|")),
            format!("--ginkgo.json-report={}", json.display()),
            format!("--ginkgo.dry-run={}", self.dry_run),
        ]
    }
}

/// Copies what Ginkgo prints with `-v`, and reports each test that ended.
fn follow(output: impl Read, log: &mut impl Write, mut report: impl FnMut(&str)) -> Result<()> {
    let (mut total, mut name, mut is_name) = ("?".to_owned(), String::new(), false);
    let (mut ended, mut failed) = (0, 0);
    for line in BufReader::new(output).split(b'\n') {
        let line = [line?, b"\n".to_vec()].concat();
        log.write_all(&line).context("cannot write the log")?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end();
        if is_name {
            line.clone_into(&mut name);
        }
        is_name = line.starts_with("------------------------------");
        if let Some((number, _)) = line.strip_prefix("Will run ").and_then(|rest| rest.split_once(' ')) {
            number.clone_into(&mut total);
        }
        // "• [4.321 seconds]", "• [FAILED] [4.321 seconds]", "S [SKIPPED] [0.012 seconds]".
        let Some(result) = line.strip_prefix("• [").or_else(|| line.strip_prefix("S [")) else { continue };
        let is_failed = !result.starts_with(|first: char| first.is_ascii_digit()) && !result.starts_with("SKIPPED");
        ended += 1;
        failed += i32::from(is_failed);
        report(&format!("{ended} of {total}, {failed} failed: [{result} {name}"));
    }
    Ok(())
}

/// Results of a test. `FAILED` includes every other end: panicked, interrupted, timed out.
const PASSED: &str = "passed";
const FAILED: &str = "**failed**";
/// The test reported that it cannot run in this cluster.
const SKIPPED: &str = "skipped";

#[derive(Debug)]
struct Test {
    name: String,
    result: &'static str,
    seconds: f64,
    /// First line of the message.
    message: String,
}

impl Test {
    fn row(&self) -> String {
        let colon = if self.message.is_empty() { "" } else { ": " };
        let [name, message] = [&self.name, &self.message].map(|text| text.replace('|', "\\|"));
        format!("| {name} | {}{colon}{message} | {:.0} |\n", self.result, self.seconds)
    }
}

/// Results of the chosen tests in a report of Ginkgo (`types.Report` of its version 2).
fn read(text: &str) -> Result<Vec<Test>> {
    let suites: Value = serde_json::from_str(text).context("is no JSON")?;
    let mut tests = Vec::new();
    for spec in suites.as_array().into_iter().flatten().filter_map(|suite| suite["SpecReports"].as_array()).flatten() {
        let message = spec["Failure"]["Message"].as_str().unwrap_or_default();
        let result = match spec["State"].as_str().unwrap_or_default() {
            "passed" => PASSED,
            // Tests excluded by the expressions are skipped without a message.
            "skipped" if message.is_empty() => continue,
            "pending" => continue,
            "skipped" => SKIPPED,
            _ => FAILED,
        };
        if spec["LeafNodeType"] != "It" {
            // The steps around all tests. If they fail, no test runs.
            ensure!(result != FAILED, "no test ran, since {} failed: {message}", spec["LeafNodeType"]);
            continue;
        }
        let containers = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
        let words = containers.chain([&spec["LeafNodeText"]]).filter_map(Value::as_str).filter(|text| !text.is_empty());
        tests.push(Test {
            name: words.collect::<Vec<_>>().join(" "),
            result,
            seconds: spec["RunTime"].as_f64().unwrap_or_default() / 1e9,
            message: message.lines().next().unwrap_or_default().to_owned(),
        });
    }
    ensure!(!tests.is_empty(), "no test was chosen: do --focus and --skip fit this release?");
    tests.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tests)
}

fn summary(tests: &[Test]) -> String {
    let count = |result| tests.iter().filter(|test| test.result == result).count();
    let conformance = || tests.iter().filter(|test| test.name.contains("[Conformance]"));
    format!(
        "{} passed, {} failed, {} skipped; [Conformance]: {} of {}",
        count(PASSED),
        count(FAILED),
        count(SKIPPED),
        conformance().filter(|test| test.result == PASSED).count(),
        conformance().count()
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    #[command(args_override_self = true)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    /// As Ginkgo of Kubernetes 1.36 prints it, shortened.
    const GINKGO: &str = "\
Running Suite: Kubernetes e2e suite - /
=======================================
Will run 3 of 7000 specs
------------------------------
[SynchronizedBeforeSuite]\x20
test/e2e/e2e.go:69
[SynchronizedBeforeSuite] PASSED [5.027 seconds]
------------------------------
SSSS
------------------------------
[sig-network] Services should serve
test/e2e/network/service.go:1
  STEP: Creating a kubernetes client @ 11/29/26 11:00:00.1
• [4.321 seconds]
------------------------------
[sig-network] Services should reject
test/e2e/network/service.go:2
• [FAILED] [62.101 seconds]
[sig-network] Services [It] should reject
test/e2e/network/service.go:2
------------------------------
SS
------------------------------
[sig-network] Services should work on two nodes
test/e2e/network/service.go:3
S [SKIPPED] [0.012 seconds]
[sig-network] Services [It] should work on two nodes
------------------------------

Summarizing 1 Failure:
  [FAIL] [sig-network] Services [It] should reject
Ran 2 of 7000 Specs in 70.000 seconds
";

    fn spec(text: &str, state: &str, message: &str) -> String {
        format!(
            r#"{{"ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It", "LeafNodeText": "{text}",
                "State": "{state}", "RunTime": 12400000000, "Failure": {{"Message": "{message}"}}}}"#
        )
    }

    fn report(specs: &[String]) -> String {
        format!(r#"[{{"SuiteDescription": "Kubernetes e2e suite", "SpecReports": [{}]}}]"#, specs.join(","))
    }

    /// Runs it with a simulated e2e.test that leaves this report, and fails accordingly.
    fn run(report: &str, more: &[&str]) -> (Result<ExitCode>, String, String) {
        let scratch = tools::scratch().unwrap();
        let folder = scratch.path();
        fs::write(folder.join("report"), report).unwrap();
        fs::write(folder.join("kubeconfig"), "").unwrap();
        let script = "#!/bin/sh\ncase $1 in --version) echo v1.36.2; exit;; --help) echo ' -ginkgo.json-report string' >&2; exit 2;; esac\n\
             cd \"${0%/*}\"\n\
             for a; do echo \"$a\"; case $a in --ginkgo.json-report=*) cp report \"${a#*=}\";; esac; done\n! grep -q failed report\n";
        fs::write(folder.join("e2e.test"), script).unwrap();
        fs::write(folder.join("kubectl"), "#!/bin/sh\necho version\n").unwrap();
        tools::run(Command::new("chmod").current_dir(folder).args(["755", "e2e.test", "kubectl"])).unwrap();
        let files = [
            ("--kubeconfig", "kubeconfig"),
            ("--e2e-test", "e2e.test"),
            ("--kubectl", "kubectl"),
            ("--out", "table.md"),
        ];
        let files = files.iter().flat_map(|(name, file)| [(*name).to_owned(), folder.join(file).display().to_string()]);
        let words = ["conformance".to_owned()].into_iter().chain(files).chain(more.iter().map(|&word| word.to_owned()));
        let done = main(&Line::parse_from(words).options);
        let read = |file| fs::read_to_string(folder.join(file)).unwrap_or_default();
        (done, read("table.md"), read("table.log"))
    }

    #[test]
    fn the_table_has_what_ran_and_a_failure_is_an_exit_code() {
        let specs = [
            spec("should serve a basic endpoint from pods [Conformance]", "passed", ""),
            spec("should be rejected when no endpoints exist", "failed", "unexpected | timeout\\nsecond line"),
            spec("should work on two nodes", "skipped", "needs 2 nodes"),
            spec("not chosen", "skipped", ""),
            spec("has no body", "pending", ""),
        ];
        let (code, table, log) = run(&report(&specs), &["--title", "nftables mode", "--skip", "eviction"]);
        assert_eq!(code.unwrap(), ExitCode::FAILURE);
        let head = "# nftables mode\n\nv1.36.2\n\n1 passed, 1 failed, 1 skipped; [Conformance]: 1 of 1\n";
        assert!(table.starts_with(head), "{table}");
        assert!(table.contains("no endpoints exist | **failed**: unexpected \\| timeout | 12 |\n"), "{table}");
        assert!(table.contains("two nodes | skipped: needs 2 nodes | 12 |\n"), "{table}");
        assert!(!table.contains("not chosen") && !table.contains("no body"), "{table}");
        assert!(log.contains("|Networking should check kube-proxy urls|"), "{log}");
        assert!(log.contains("--ginkgo.skip=SCTP") && log.contains("|eviction\n"), "{log}");
    }

    #[test]
    fn each_test_that_ends_is_reported_and_all_output_kept() {
        let (mut log, mut reports) = (Vec::new(), Vec::new());
        follow(GINKGO.as_bytes(), &mut log, |line| reports.push(line.to_owned())).unwrap();
        assert_eq!(String::from_utf8(log).unwrap(), GINKGO);
        let expected = [
            "1 of 3, 0 failed: [4.321 seconds] [sig-network] Services should serve",
            "2 of 3, 1 failed: [FAILED] [62.101 seconds] [sig-network] Services should reject",
            "3 of 3, 1 failed: [SKIPPED] [0.012 seconds] [sig-network] Services should work on two nodes",
        ];
        assert_eq!(reports, expected);
    }

    #[test]
    fn a_passed_report_is_success_and_an_unreadable_one_is_an_error() {
        let (code, _, log) = run(&report(&[spec("works", "passed", "")]), &["--load-balancer"]);
        assert!(code.unwrap() == ExitCode::SUCCESS && !log.contains("LoadBalancer\\]"), "{log}");
        let before = r#"{"LeafNodeType": "SynchronizedBeforeSuite", "State": "failed", "Failure": {"Message": "no Node is ready"}}"#;
        for (text, why) in [
            ("[]".to_owned(), "no test was chosen"),
            ("nothing".to_owned(), "is no JSON"),
            (report(&[before.to_owned()]), "no Node is ready"),
        ] {
            let error = format!("{:#}", run(&text, &[]).0.unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn another_program_and_an_unreachable_server_are_refused() {
        let good = report(&[spec("works", "passed", "")]);
        let error = format!("{:#}", run(&good, &["--e2e-test", "/bin/true"]).0.unwrap_err());
        assert_eq!(error, "--e2e-test /bin/true: not e2e.test of Kubernetes: its --help has no ginkgo.json-report");
        let error = format!("{:#}", run(&good, &["--kubectl", "/bin/false"]).0.unwrap_err());
        assert!(error.starts_with("the API server does not answer: /bin/false --kubeconfig "), "{error}");
        assert!(run(&good, &["--kubectl", "/bin/false", "--dry-run"]).0.is_ok());
    }
}
