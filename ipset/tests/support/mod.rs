//! A network namespace of one's own, and the real tools.

use std::io::Write;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};

/// Runs `body` in a fresh network namespace, in a thread that ends with it. Says so when the machine does not allow it.
pub(crate) fn in_namespace(body: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
                assert!(std::env::var_os("TESTKIT_REQUIRE").is_none(), "no network namespace: {error}");
                eprintln!("SKIPPED {}: no network namespace: {error}", std::thread::current().name().unwrap_or("test"));
                return;
            }
            tool("ip", &["link", "set", "lo", "up"], "").unwrap();
            body();
        });
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Runs a tool in the thread's namespace; its output, or what it complained about.
pub(crate) fn tool(program: &str, arguments: &[&str], input: &str) -> Result<String, String> {
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(|error| format!("{program}: {error}"))?;
    // A tool that stops early closes its input; its exit status tells why.
    let _written = writer.join();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{program} {}: {error}", arguments.join(" ")))
    }
}
