//! Programs that the other modules and the tests start: found, installed with apt where that is possible, else named; and folders.

use std::env;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;
use tempfile::TempDir;

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
];

/// Browser that shows the status page to one test, which is skipped without it.
pub(crate) const BROWSER: &[Tool] = &[("chromium", "chromium")];

/// Tools of the demo, besides those that the tests compare with.
pub(crate) const DEMO: &[Tool] = &[("busybox", "busybox-static"), ("/usr/bin/python3", "python3-minimal")];

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

/// The root of the repository.
pub(crate) fn repository() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// Folder where kernels and answers worth remembering are kept between runs: `$XTASK_CACHE`, else
/// `$XDG_CACHE_HOME/ipvs-rs-kernels`, else `~/.cache/ipvs-rs-kernels`.
pub(crate) fn cache() -> Result<PathBuf> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = variable("XTASK_CACHE")
        .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("ipvs-rs-kernels")))
        .or_else(|| Some(variable("HOME")?.join(".cache/ipvs-rs-kernels")))
        .context("no place for a cache: set XTASK_CACHE, XDG_CACHE_HOME or HOME")?;
    fs::create_dir_all(&folder)?;
    // A virtual machine sees it below the same name.
    Ok(fs::canonicalize(folder)?)
}

/// A temporary folder for this user alone.
pub(crate) fn scratch() -> Result<TempDir> {
    // A virtual machine sees it below the same name.
    Ok(tempfile::Builder::new().prefix("xtask-").tempdir_in(fs::canonicalize(env::temp_dir())?)?)
}

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
    let path = find("busybox").context("no busybox: install busybox-static")?;
    ensure!(is_static(&path)?, "{} needs shared libraries: install busybox-static instead", path.display());
    Ok(path)
}

/// A program with an interpreter (the dynamic loader) names it in its first page.
pub(crate) fn is_static(path: &Path) -> Result<bool> {
    let bytes = fs::read(path)?;
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
        bail!("missing programs: install the packages {names} (on Debian: apt-get install {names})");
    }
    eprintln!("xtask: installing {names}");
    let apt = "apt-get -qq update && apt-get -qq install --yes --no-install-recommends \"$@\"";
    run(Command::new("sh").args(["-c", apt, "apt"]).args(&missing).env("DEBIAN_FRONTEND", "noninteractive"))?;
    let still = missing_packages(tools);
    ensure!(still.is_empty(), "still missing after installing: {}", still.join(" "));
    Ok(())
}

fn missing_packages(tools: &[Tool]) -> Vec<&'static str> {
    let is_missing = |program: &str| match program {
        "busybox" => static_busybox().is_err(),
        _ => find(program).is_none(),
    };
    let missing = tools.iter().filter(|(program, _)| is_missing(program));
    let mut packages: Vec<&'static str> = missing.map(|(_, package)| *package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
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
    let output = output.with_context(|| format!("cannot start {program}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    bail!("{program} {} failed ({}) {}", words.join(" "), output.status, errors.trim())
}

/// Runs a program to its end with our input and output; whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> Result<bool> {
    let status = command.status().with_context(|| format!("cannot start {}", command.get_program().display()))?;
    Ok(status.success())
}

/// The commit of this checkout in 12 digits, with `mark` behind it if files differ from it; `None` without git.
pub(crate) fn commit(mark: &str) -> Option<String> {
    let git = |words: &[&str]| run(Command::new("git").args(words).current_dir(repository())).ok();
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(format!("{}{}", commit.trim(), if changes.is_empty() { "" } else { mark }))
}

/// Whether this process may install packages and enter namespaces.
pub(crate) fn is_root() -> bool {
    run(Command::new("id").arg("-u")).is_ok_and(|id| id.trim() == "0")
}
