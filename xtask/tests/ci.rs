//! Behaviour of `.ci/run` with steps that pass, fail and come too late; the programs it calls are stand-ins.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests stop at the first surprise")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// Runs every step of `.ci/run` where cargo is a script of this text; gives what it printed and whether it succeeded.
fn ci(minutes: &str, cargo: &str) -> (String, bool) {
    ci_with(minutes, cargo, ("CI_EVERYTHING", "1"))
}

fn ci_with(minutes: &str, cargo: &str, (variable, value): (&str, &str)) -> (String, bool) {
    let programs = tempfile::tempdir().unwrap();
    for (program, text) in [("cargo", cargo), ("cc", ""), ("promtool", ""), ("rustup", "")] {
        let path = programs.path().join(program);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.ci/run");
    let output = Command::new(script)
        .env("PATH", path)
        .env("CI_MINUTES", minutes)
        .env_remove("PROPTEST_RNG_SEED")
        .env_remove("CI_EVERYTHING")
        .env(variable, value)
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    (printed + &String::from_utf8(output.stderr).unwrap(), output.status.success())
}

/// All tests pass; the last line of standard output is theirs.
const TESTS: &str = "case \"$*\" in 'xtask test'*) echo '5 passed, 0 failed, 1 skipped, 2 left to --full';; esac";

/// Steps that run whatever time is left.
const ESSENTIAL: [&str; 4] = ["format", "tests", "lints", "documentation"];
const OTHERS: [&str; 8] = ["api", "package", "demo", "soak", "counts", "figures", "benches", "each-crate-alone"];

/// The line of the table about a step.
fn row<'a>(printed: &'a str, step: &str) -> &'a str {
    let table = printed.rsplit_once("CPU s  result").unwrap().1;
    table.lines().find(|line| line.starts_with(&format!("{step} "))).unwrap_or_else(|| panic!("no {step}: {printed}"))
}

#[test]
fn every_step_runs_and_the_last_line_is_that_of_the_tests() {
    let (printed, good) = ci("80", TESTS);
    assert!(good, "{printed}");
    assert_eq!(
        printed.trim_end().lines().next_back(),
        Some("5 passed, 0 failed, 1 skipped, 2 left to --full"),
        "{printed}"
    );
    for step in ESSENTIAL.into_iter().chain(OTHERS) {
        assert!(row(&printed, step).ends_with("  ok"), "{step}: {printed}");
    }
    assert!(printed.contains("PROPTEST_RNG_SEED="), "{printed}");
}

#[test]
fn without_time_only_the_essential_steps_run_and_the_others_are_named() {
    let (printed, good) = ci("0", TESTS);
    assert!(good, "{printed}");
    for step in ESSENTIAL {
        assert!(row(&printed, step).ends_with("  ok"), "{step}: {printed}");
    }
    for step in OTHERS {
        assert!(row(&printed, step).contains("not run: TIME: 0 of 0 minutes left"), "{step}: {printed}");
    }
}

/// Some run only on machines that no test has, such as those for kubelets.
#[test]
fn shells_can_read_every_script() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let listed = Command::new("git").arg("ls-files").current_dir(&root).output().unwrap();
    let mut found = 0;
    for path in String::from_utf8(listed.stdout).unwrap().lines() {
        let extension = Path::new(path).extension();
        if extension.is_some_and(|extension| extension != "sh") {
            continue;
        }
        let Ok(text) = fs::read_to_string(root.join(path)) else { continue };
        let first = text.lines().next().unwrap_or_default();
        if extension.is_some() || first.starts_with("#!") && first.ends_with("sh") {
            let shell = if first.ends_with("bash") { "bash" } else { "sh" };
            let output = Command::new(shell).arg("-n").arg(root.join(path)).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            found += 1;
        }
    }
    assert!(found > 12, "{found}");
}

#[test]
fn some_steps_run_by_turns() {
    let by_turns = ["package", "counts", "benches", "each-crate-alone"];
    let mut runs = BTreeMap::new();
    for seed in 0..6 {
        let (printed, good) = ci_with("80", TESTS, ("PROPTEST_RNG_SEED", &seed.to_string()));
        assert!(good, "{printed}");
        for step in by_turns {
            let row = row(&printed, step);
            if row.ends_with("  ok") {
                *runs.entry(step).or_insert(0) += 1;
            } else {
                assert!(row.contains("not run: its turn comes with another seed"), "{row}");
            }
        }
    }
    assert_eq!(runs, BTreeMap::from([("package", 3), ("counts", 2), ("benches", 3), ("each-crate-alone", 2)]));
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    for (step, runs) in runs {
        assert!(page.contains(&format!("| step `{step}` of `.ci/run` | {}", 6 / runs)), "its table lacks {step}");
    }
}

#[test]
fn steps_after_a_failure_run_and_the_run_has_failed() {
    for failing in ["fmt", "clippy", "doc", "xtask demo"] {
        let (printed, good) = ci("80", &format!("case \"$*\" in '{failing}'*) exit 3;; esac; {TESTS}"));
        assert!(!good, "{failing}: {printed}");
        assert!(printed.contains("FAILED with code 3"), "{failing}: {printed}");
        assert!(row(&printed, "each-crate-alone").ends_with("  ok"), "{failing}: {printed}");
        assert_eq!(
            printed.trim_end().lines().next_back(),
            Some("5 passed, 0 failed, 1 skipped, 2 left to --full"),
            "{printed}"
        );
    }
}

#[test]
fn a_soak_that_says_nothing_on_this_host_is_no_failure() {
    let soak = |code: u8| ci("80", &format!("case \"$*\" in 'xtask soak'*) exit {code};; esac; {TESTS}"));
    let (printed, good) = soak(3);
    assert!(good && printed.contains("soak: says nothing on this host"), "{printed}");
    let (printed, good) = soak(1);
    assert!(!good && row(&printed, "soak").contains("FAILED with code 1"), "{printed}");
}

#[test]
fn tests_without_a_result_are_a_failure() {
    let (printed, good) = ci("80", "");
    assert!(!good, "{printed}");
    assert!(printed.contains("the tests gave no result"), "{printed}");
}
