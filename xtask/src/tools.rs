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

/// Tools that the tests compare with, or start for another reason. A test of this file names those that are missing here.
pub(crate) const ORACLES: &[Tool] = &[
    ("ip", "iproute2"),
    ("ipvsadm", "ipvsadm"),
    ("ipset", "ipset"),
    ("iptables", "iptables"),
    ("conntrack", "conntrack"),
    ("nft", "nftables"),
    ("strace", "strace"),
    ("kill", "procps"),
    ("sysctl", "procps"),
    ("modprobe", "kmod"),
    ("/usr/bin/python3", "python3-minimal"),
    ("git", "git"),
    ("curl", "curl"),
];

/// Browser that shows the status page to one test, which is skipped without it.
pub(crate) const BROWSER: &[Tool] = &[("chromium", "chromium")];

/// Tools of the demo, besides those that the tests compare with.
pub(crate) const DEMO: &[Tool] = &[("busybox", "busybox-static")];

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
pub(crate) const READERS: &[Tool] = &[
    ("skopeo", "skopeo"),
    ("umoci", "umoci"),
    ("containerd", "containerd"),
    ("ctr", "containerd"),
    ("dpkg", "dpkg"),
    ("ip", "iproute2"),
    ("kubectl", "kubernetes-client"),
    ("pip3", "python3-pip"),
    ("gpg", "gpg"),
    ("gpgv", "gpgv"),
    ("minisign", "minisign"),
];

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Programs of packages that each Debian has.
    const DEBIAN: &str = "bash cat cp date env false ldd mkfifo mount prlimit rmdir script setpriv sh sleep stdbuf tar timeout true \
                          umount uname unshare yes";
    /// Other programs of the packages in the lists.
    const OF_PACKAGES: [(&str, &str); 4] =
        [("iproute2", "ss"), ("kmod", "lsmod"), ("kmod", "/sbin/modprobe"), ("procps", "pkill")];
    /// Programs without which a test skips itself, or a part of itself, and reports it; and names that no program has.
    const SKIPPED: &str = "promtool systemd-analyze no-such-program no-such-program-anywhere /nonexistent/program";

    /// Calls that start a program, up to its name.
    const CALLS: [&str; 5] = ["Command::new(", "tool(", "Tool(", "attempt(", "oracle::run("];

    /// First words of the texts that these calls get, unless a part of the word is known only at run time.
    fn started(source: &str) -> Vec<&str> {
        let mut calls = CALLS.to_vec();
        // By its short name only where that is the oracle's.
        let is_oracle =
            |line: &str| line.trim_start().starts_with("use ") && line.contains("oracle::") && line.contains("run");
        calls.extend(source.lines().any(is_oracle).then_some("run("));
        // Not the end of a longer name.
        let starts = |at: usize| !source[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
        let after = calls.iter().flat_map(|call| {
            source.match_indices(call).filter(|(at, _)| starts(*at)).map(|(at, call)| &source[at + call.len()..])
        });
        let texts = after.filter_map(|rest| rest.trim_start().trim_start_matches("&format!(").strip_prefix('"'));
        let words = texts.filter_map(|text| text.split(['"', ' ', '\\']).next());
        words.filter(|word| !word.is_empty() && !word.contains(['{', ':'])).collect()
    }

    /// The files of tests in a folder, and of the code that they share.
    fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|of| of == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }

    #[test]
    fn each_program_that_a_test_starts_is_in_the_list() {
        let mut files = Vec::new();
        let places = [repository().to_owned(), repository().join("examples")];
        for crate_of in places.iter().flat_map(|place| fs::read_dir(place).unwrap()).map(|entry| entry.unwrap().path())
        {
            let folders = if crate_of.ends_with("testkit") { &["src", "tests"][..] } else { &["tests"] };
            let there = folders.iter().map(|name| crate_of.join(name)).filter(|folder| folder.is_dir());
            there.for_each(|folder| sources(&folder, &mut files));
        }
        let mut programs: BTreeMap<&str, &Path> = BTreeMap::new();
        for (path, text) in &files {
            programs.extend(started(text).into_iter().map(|program| (program, path.as_path())));
        }
        for known in ["ip", "sysctl", "python3", "setpriv", "conntrack"] {
            assert!(programs.contains_key(known), "{known} is not found any more: {programs:?}");
        }
        let lists = || [ORACLES, MACHINE, BROWSER].into_iter().flatten();
        let is_installed = |program: &str| {
            let is_named = |name: &str| name == program || name.rsplit('/').next() == Some(program);
            let by = OF_PACKAGES.iter().find(|(_, name)| *name == program).map(|(package, _)| *package);
            let by = by.or_else(|| {
                (program.starts_with("iptables-") || program.starts_with("ip6tables")).then_some("iptables")
            });
            lists().any(|(name, package)| is_named(name) || by == Some(package))
        };
        let is_there =
            |program: &str| [DEBIAN, SKIPPED].iter().any(|list| list.split_whitespace().any(|name| name == program));
        programs.retain(|program, _| !is_there(program) && !is_installed(program));
        assert!(programs.is_empty(), "tests start these programs, which no list of this file has: {programs:?}");
    }

    #[test]
    fn programs_are_found_in_every_way_of_starting_them() {
        let source = "use testkit::oracle::{ipset, run};\nCommand::new(\n    \"a\"); tool(&format!(\"b {x}\")); tool(\"{c} x\"); \
                      &[Need::Tool(\"d\")]; let _ = run(\"e\", &[]); oracle::run(\"f\");";
        let mut found = started(source);
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, ["a", "b", "d", "e", "f"]);
        assert_eq!(started("as_the_tool(\"create\"); input.run(\"ipvs\", x); attempt(\"10.96.0.1:80\")"), [""; 0]);
    }
}
