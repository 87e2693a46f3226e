//! The test programs that cargo builds.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::error::{Context as _, Error, Result};

/// A test program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Binary {
    /// Crate and target, `ipvs kernel` for example.
    pub(super) name: String,
    pub(super) executable: PathBuf,
    /// The crate's folder: tests start there.
    pub(super) folder: PathBuf,
    /// Whether it belongs to the tiers on real kernels.
    pub(super) needs_kernel: bool,
}

impl Binary {
    /// Its command line. Never one thread alone: libtest would run the tests on the main thread then, and what they
    /// report about themselves goes by the thread's name.
    pub(super) fn arguments(&self, filter: Option<&str>) -> Vec<String> {
        let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get).max(2);
        let threads = if self.needs_kernel { 2 } else { threads };
        let mut arguments = vec![format!("--test-threads={threads}")];
        arguments.extend(filter.map(str::to_owned));
        arguments
    }
}

/// The cargo that started this, or the one in `PATH`.
pub(super) fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Which crates, as cargo's arguments.
pub(super) fn selection(crates: &[String]) -> Vec<String> {
    if crates.is_empty() {
        vec!["--workspace".to_owned()]
    } else {
        crates.iter().flat_map(|name| ["--package".to_owned(), name.clone()]).collect()
    }
}

/// Builds all test programs and lists them in the order of their names.
pub(super) fn build(root: &Path, crates: &[String]) -> Result<Vec<Binary>> {
    let mut child = Command::new(cargo())
        .args(["test", "--no-run", "--all-features", "--message-format=json-render-diagnostics"])
        .args(selection(crates))
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context(|| "cannot start cargo".to_owned())?;
    let mut binaries = Vec::new();
    if let Some(pipe) = child.stdout.take() {
        for line in BufReader::new(pipe).lines() {
            binaries.extend(parse(&line.context(|| "cannot read cargo's messages".to_owned())?));
        }
    }
    let status = child.wait().context(|| "cannot wait for cargo".to_owned())?;
    if !status.success() {
        return Err(Error::new("the tests do not build"));
    }
    binaries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(binaries)
}

/// A message of cargo about a program that holds tests.
fn parse(line: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let executable = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let target = message["target"]["name"].as_str()?;
    let kind = message["target"]["kind"][0].as_str()?;
    let package = folder.file_name()?.to_str()?;
    // A library's and a program's own tests can bear the same name.
    let name = if kind == "test" { format!("{package} {target}") } else { format!("{package} {target} ({kind})") };
    Some(Binary { name, executable, folder, needs_kernel: kind == "test" && target.starts_with("kernel") })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::parse;

    #[test]
    fn programs_with_tests_are_told_from_the_rest() {
        let message = |kind: &str, name: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/r/ipvs/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{test}}},"executable":"/t/{name}-1"}}"#
            )
        };
        let binary = parse(&message("test", "kernel_sync", true)).unwrap();
        assert_eq!(binary.name, "ipvs kernel_sync");
        assert_eq!(binary.folder, Path::new("/r/ipvs"));
        assert!(binary.needs_kernel);
        assert!(!parse(&message("lib", "kernel", true)).unwrap().needs_kernel);
        assert!(!parse(&message("test", "prop", true)).unwrap().needs_kernel);
        assert_eq!(parse(&message("bin", "demo", false)), None);
        assert_eq!(parse(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(parse("not JSON"), None);
    }
}
