//! What `cargo xtask` starts: says what a long command will do before cargo downloads or builds anything, then builds and runs xtask.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

/// What a command does and how long it takes on two idle processors, the first time and then.
const LONG: [(&str, &str); 3] = [
    (
        "demo",
        "builds proxier-demo (2 to 4 minutes the first time, seconds then) while it downloads Debian's kernel 6.1 (110 MB, once),\n\
         boots that kernel in QEMU, and sends traffic through a Service (a minute and a half)",
    ),
    (
        "demo --mode",
        "builds proxier-demo (2 to 4 minutes the first time, seconds then), and sends traffic through a Service in network namespaces here\n\
         (less than a minute)",
    ),
    (
        "test",
        "builds all crates and their tests (6 to 8 minutes the first time), runs them here, then those that need IPVS on Linux 6.1 in QEMU\n\
         (15 minutes in all); it counts at the end what passed, failed and was skipped",
    ),
];

fn main() -> ExitCode {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let typed = words.join(OsStr::new(" ")).to_string_lossy().into_owned();
    // Other options change what the text says.
    let mode = typed.strip_prefix("demo --mode ").filter(|mode| *mode != "ipvs" && !mode.contains(' '));
    let asked = if mode.is_some() { "demo --mode" } else { &typed };
    if let Some((name, text)) = LONG.iter().find(|(name, _)| *name == asked) {
        eprintln!("{name}: {text}");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("."));
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Variables that `cargo run` sets for this program: build scripts that read them would build again.
    for (name, _) in env::vars_os() {
        let bytes = name.as_encoded_bytes();
        if bytes.starts_with(b"CARGO_PKG_") || bytes.starts_with(b"CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    cargo.arg("run");
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    if target.join("debug/xtask").exists() {
        cargo.arg("--quiet");
    }
    cargo.arg("--manifest-path").arg(root.join("xtask/Cargo.toml")).arg("--").args(words);
    let error = cargo.exec();
    eprintln!("xtask: cargo cannot be started: {error}");
    ExitCode::from(125)
}
