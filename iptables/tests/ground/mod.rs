//! A network namespace per test, and the oracles: programs run directly, not through the crate.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use iptables::{Backend, Family, Iptables, Runner, System};
use testkit::{Need, kernel_test};

use crate::suite::World;

/// Needs of every test here.
fn needs(backend: Backend) -> Vec<Need> {
    let tables = match backend {
        Backend::Legacy => Need::IptablesLegacy,
        Backend::NfTables => Need::IptablesNft,
    };
    vec![Need::Root, tables]
}

/// Runs a test in a network namespace of its own, if the kernel has the back ends and the other needs are met.
pub(crate) fn in_namespace(backends: &[Backend], more: &[Need], test: impl FnOnce()) {
    let mut all: Vec<Need> = backends.iter().flat_map(|b| needs(*b)).collect();
    all.extend(more);
    kernel_test(&all, test);
}

/// The path of a tool that must be there.
pub(crate) fn tool(name: &str) -> String {
    let path = System::new().find(name).unwrap_or_else(|| panic!("{name} is not installed"));
    path.to_str().expect("a path of plain characters").to_owned()
}

/// Runs a program, which must succeed, and returns what it printed.
pub(crate) fn run(program: &str, args: &[&str], stdin: &str) -> String {
    let path = if program.starts_with('/') { program.to_owned() } else { tool(program) };
    let mut child = Command::new(path)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {stderr}", args.join(" "));
    String::from_utf8(output.stdout).unwrap()
}

/// The kernel, through one family and back end.
pub(crate) struct Real {
    iptables: Iptables,
}

impl Real {
    pub(crate) fn new(family: Family, backend: Backend) -> Self {
        Self { iptables: Iptables::open(System::new(), family, backend).unwrap() }
    }

    pub(crate) fn program(&self, suffix: &str) -> String {
        tool(&format!("{}-{}{suffix}", self.family().program(), self.backend().program_suffix()))
    }

    /// Runs the command-line program.
    pub(crate) fn command(&self, args: &[&str]) -> String {
        let wait = ["-w"].into_iter().filter(|_| self.backend() == Backend::Legacy);
        run(&self.program(""), &wait.chain(args.iter().copied()).collect::<Vec<_>>(), "")
    }
}

impl World for Real {
    type Runner = System;

    fn iptables(&self) -> &Iptables {
        &self.iptables
    }

    fn keeps_counters(&self) -> bool {
        let text = "*mangle\n:PROBE - [0:0]\n[5:6] -A PROBE -j ACCEPT\nCOMMIT\n";
        run(&self.program("-restore"), &["--noflush", "--counters"], text);
        self.saved(&["-c", "-t", "mangle"]).contains("[5:6] -A PROBE")
    }

    fn create_sets(&self, sets: &[(String, &str)]) {
        let family = if self.family() == Family::Ipv4 { "inet" } else { "inet6" };
        let one = |(name, kind): &(String, &str)| match *kind {
            "bitmap:port" => format!("create {name} {kind} range 0-65535\n"),
            _ => format!("create {name} {kind} family {family}\n"),
        };
        run("ipset", &["restore"], &sets.iter().map(one).collect::<Vec<_>>().concat());
    }

    fn saved(&self, args: &[&str]) -> String {
        run(&self.program("-save"), args, "")
    }
}

/// A listener on a free port.
pub(crate) fn listen(address: &str) -> TcpListener {
    TcpListener::bind((address, 0)).unwrap()
}

/// Whether a connection to it comes about.
pub(crate) fn connects(listener: &TcpListener) -> bool {
    TcpStream::connect_timeout(&listener.local_addr().unwrap(), Duration::from_secs(2)).is_ok()
}
