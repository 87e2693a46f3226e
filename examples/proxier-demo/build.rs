//! Commit and date for `proxier-demo --version`: `PROXIER_REVISION` and `SOURCE_DATE_EPOCH` (seconds since 1970),
//! otherwise git's in release builds, otherwise `unknown`. Debug builds do not ask git, or each commit would rebuild
//! every test.

use std::env::var;
use std::process::Command;

/// Standard output of a program in this package's folder; `None` if it fails or prints nothing.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let given = |name: &str| {
        println!("cargo::rerun-if-env-changed={name}");
        var(name).ok().filter(|value| !value.is_empty())
    };
    let (mut revision, mut epoch) = (given("PROXIER_REVISION"), given("SOURCE_DATE_EPOCH"));
    // Not the commit of a repository that contains a copy of this one.
    let is_own = || output("git", &["rev-parse", "--show-prefix"]).as_deref() == Some("examples/proxier-demo/");
    if revision.is_none() && var("PROFILE").is_ok_and(|profile| profile == "release") && is_own() {
        if let Some(log) = output("git", &["rev-parse", "--git-path", "logs/HEAD"]) {
            println!("cargo::rerun-if-changed={log}");
        }
        revision = output("git", &["rev-parse", "--short=12", "HEAD"]);
        epoch = epoch.or_else(|| output("git", &["show", "--no-patch", "--format=%ct"]));
    }
    let date = epoch.and_then(|epoch| output("date", &["-u", "-d", &format!("@{epoch}"), "+%FT%TZ"]));
    for (name, value) in [("PROXIER_REVISION", revision), ("PROXIER_DATE", date)] {
        println!("cargo::rustc-env={name}={}", value.as_deref().unwrap_or("unknown"));
    }
}
