//! The programs that a bench measures itself against.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Failure;

/// Runs a program with a text on its standard input; gives how long it took.
pub(crate) fn feed(program: &str, arguments: &[&str], text: &str) -> Result<Duration, Failure> {
    let start = Instant::now();
    let mut child = Command::new(program).args(arguments).stdin(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("no standard input")?.write_all(text.as_bytes())?;
    let status = child.wait()?;
    let took = start.elapsed();
    if status.success() { Ok(took) } else { Err(format!("{program} ended with {status}").into()) }
}

/// A program of `benches/c`, which lies beside this one.
pub(crate) fn in_c(name: &str) -> Result<PathBuf, Failure> {
    let path = std::env::current_exe()?.with_file_name(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(format!("{} is missing: cc -O2 -o it from benches/c", path.display()).into())
    }
}

/// Whether a crate and the C program that it is measured against send the same bytes.
pub(crate) fn same_bytes(ours: &[u8], theirs: &[u8]) -> Result<(), Failure> {
    match ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs) {
        None if ours.len() == theirs.len() => Ok(()),
        at => Err(format!(
            "the C program does not send the crate's bytes: {} and {} bytes, first difference at {at:?}",
            theirs.len(),
            ours.len()
        )
        .into()),
    }
}
