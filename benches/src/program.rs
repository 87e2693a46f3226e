//! The programs with which a bench compares.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Failure;

/// A process that is killed on drop, unless it has ended.
#[derive(Debug)]
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _has_ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Runs a program with a text on its standard input; returns the time that it took.
pub(crate) fn feed(program: &str, arguments: &[&str], text: &str) -> Result<Duration, Failure> {
    let start = Instant::now();
    let mut child = Command::new(program).args(arguments).stdin(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("no standard input")?.write_all(text.as_bytes())?;
    let status = child.wait()?;
    let took = start.elapsed();
    if status.success() { Ok(took) } else { Err(format!("{program} ended with {status}").into()) }
}

/// Output of a program of `benches/c`, which is next to this one.
pub(crate) fn in_c(name: &str, arguments: &[&str]) -> Result<Vec<u8>, Failure> {
    let path = std::env::current_exe()?.with_file_name(name);
    let output = Command::new(&path).args(arguments).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{} (cc -O2 -o it from benches/c): {error}", path.display()))?;
    if output.status.success() { Ok(output.stdout) } else { Err(format!("{name} ended with {}", output.status).into()) }
}

/// The time that such a program reports for its work.
pub(crate) fn timed_in_c(name: &str, arguments: &[&str]) -> Result<Duration, Failure> {
    Ok(Duration::from_nanos(String::from_utf8(in_c(name, arguments)?)?.trim().parse()?))
}

/// Result of some work, and the time that it took.
pub(crate) fn timed<T, E>(work: impl FnOnce() -> Result<T, E>) -> Result<(T, Duration), E> {
    let start = Instant::now();
    let done = work()?;
    Ok((done, start.elapsed()))
}

/// Fails unless a crate and the C program that it is compared with send the same bytes.
pub(crate) fn same_bytes(ours: &[u8], theirs: &[u8]) -> Result<(), Failure> {
    if ours == theirs {
        return Ok(());
    }
    let at = ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs);
    let (ours, theirs) = (ours.len(), theirs.len());
    let text = "the C program does not send the crate's bytes";
    Err(format!("{text}: {theirs} and {ours} bytes, first difference at {at:?}").into())
}

/// Status and body of a page that a program serves.
pub(crate) fn get(place: &str, path: &str) -> io::Result<(u16, String)> {
    let limit = Duration::from_secs(3);
    let mut stream = TcpStream::connect_timeout(&place.parse().map_err(io::Error::other)?, limit)?;
    stream.set_read_timeout(Some(limit))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let code = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    Ok((code, body.to_owned()))
}
