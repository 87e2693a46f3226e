//! Programs that the other modules and the tests start: found, installed with apt where that is possible, else named.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::error::{Context as _, Error, Result};

/// A program, by name or full path, and the Debian package that has it.
type Tool = (&'static str, &'static str);

/// Tools to fetch a kernel and boot it.
pub(crate) const MACHINE: &[Tool] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("modprobe", "kmod"),
    ("depmod", "kmod"),
    ("setpriv", "util-linux"),
    ("xz", "xz-utils"),
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
];

/// Tools that the tests compare with.
pub(crate) const ORACLES: &[Tool] = &[
    ("ip", "iproute2"),
    ("ipvsadm", "ipvsadm"),
    ("ipset", "ipset"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("nft", "nftables"),
    ("strace", "strace"),
    ("haproxy", "haproxy"),
];

/// Browser that shows the status page to one test, which is skipped without it.
pub(crate) const BROWSER: &[Tool] = &[("chromium", "chromium")];

/// Tools of the demo.
pub(crate) const DEMO: &[Tool] = &[
    ("ip", "iproute2"),
    ("ipvsadm", "ipvsadm"),
    ("ipset", "ipset"),
    ("iptables", "iptables"),
    ("nft", "nftables"),
    ("busybox", "busybox-static"),
    ("/usr/bin/python3", "python3-minimal"),
];

/// Tools that pack images and packages.
pub(crate) const PACKERS: &[Tool] = &[
    ("apt-get", "apt"),
    ("dpkg-deb", "dpkg"),
    ("tar", "tar"),
    ("gzip", "gzip"),
    ("strip", "binutils"),
    ("git", "git"),
];

/// Tools that read what was packed, none of them this project's.
pub(crate) const READERS: &[Tool] =
    &[("skopeo", "skopeo"), ("umoci", "umoci"), ("dpkg", "dpkg"), ("ip", "iproute2"), ("kubectl", "kubernetes-client")];

/// Tools that make a Debian root with a cross compiler.
pub(crate) const CROSS: &[Tool] = &[("mmdebstrap", "mmdebstrap"), ("unshare", "util-linux")];

/// Tools that count instructions.
pub(crate) const COUNTERS: &[Tool] = &[("valgrind", "valgrind")];

/// `PATH` with the folders of system programs, which an ordinary user's lacks.
pub(crate) fn search_path() -> OsString {
    let mut path = env::var_os("PATH").unwrap_or_default();
    if !path.is_empty() {
        path.push(":");
    }
    path.push("/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin");
    path
}

/// The full path of a program, looked up as a shell would.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    env::split_paths(&search_path()).map(|folder| folder.join(program)).find(|path| {
        fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    })
}

/// The busybox that runs alone in the first root file system: only a static one does.
pub(crate) fn static_busybox() -> Result<PathBuf> {
    let path = find("busybox").ok_or_else(|| Error::new("no busybox: install busybox-static"))?;
    if is_static(&path)? {
        Ok(path)
    } else {
        Err(Error::new(format!("{} needs shared libraries: install busybox-static instead", path.display())))
    }
}

/// A program with an interpreter (the dynamic loader) names it in its first page.
pub(crate) fn is_static(path: &Path) -> Result<bool> {
    let bytes = fs::read(path).context(|| format!("cannot read {}", path.display()))?;
    let head = bytes.get(..4096).unwrap_or(&bytes);
    Ok(!head.windows(8).any(|window| window == b"/ld-linu" || window == b"/ld-musl"))
}

/// Makes sure that all `tools` are there: installs what is missing when this is root on a machine with apt.
///
/// # Errors
/// Names the packages that are missing and could not be installed.
pub(crate) fn ensure(tools: &[Tool]) -> Result<()> {
    let missing = missing_packages(tools);
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    if !is_root() || find("apt-get").is_none() {
        return Err(Error::new(format!(
            "missing programs: install the packages {names} (on Debian: apt-get install {names})"
        )));
    }
    eprintln!("xtask: installing {names}");
    apt_get(&["update"])?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(&missing);
    apt_get(&arguments)?;
    let still = missing_packages(tools);
    if still.is_empty() {
        Ok(())
    } else {
        Err(Error::new(format!("still missing after installing: {}", still.join(" "))))
    }
}

/// Runs a program to its end, without input; what it prints is kept for the error where it fails.
pub(crate) fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    said(command, output)
}

/// Runs a program to its end, without input; its errors and warnings go where ours go.
pub(crate) fn run_aloud(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    said(command, output)
}

fn said(command: &Command, output: std::io::Result<Output>) -> Result<String> {
    let program = command.get_program().display();
    let output = output.context(|| format!("cannot start {program}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(Error::new(format!("{program} {} failed ({}) {}", words.join(" "), output.status, errors.trim())))
}

fn missing_packages(tools: &[Tool]) -> Vec<&'static str> {
    let mut packages: Vec<&'static str> = tools
        .iter()
        .filter(|(program, _)| match *program {
            "busybox" => static_busybox().is_err(),
            _ => find(program).is_none(),
        })
        .map(|(_, package)| *package)
        .collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    run(command.args(["--quiet", "--quiet"]).args(arguments).env("DEBIAN_FRONTEND", "noninteractive")).map(drop)
}

/// Whether this process may install packages and enter namespaces.
pub(crate) fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| {
        status
            .lines()
            .find_map(|line| line.strip_prefix("Uid:"))
            .and_then(|ids| ids.split_whitespace().nth(1))
            .is_some_and(|effective| effective == "0")
    })
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn a_program_is_found_and_a_folder_is_not() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-anywhere").is_none());
        assert!(find("../bin").is_none());
    }
}
