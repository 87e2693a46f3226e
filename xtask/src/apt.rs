//! Fetches packages from the distribution's archive without installing them: a private apt tree in the cache.
//!
//! apt verifies the archive's signatures with the distribution's key ring. The mirror is that of the machine's own apt,
//! or the one in the environment variable `XTASK_DEBIAN_MIRROR`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::tools;

/// File of the keys in Debian's package `debian-archive-keyring`.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Names a Debian mirror (`http://HOST/debian`) on a machine whose own apt sources have none.
const MIRROR_VARIABLE: &str = "XTASK_DEBIAN_MIRROR";

/// The Debian mirror in the machine's own apt configuration.
pub(crate) fn mirror() -> Result<String> {
    if let Some(mirror) = std::env::var(MIRROR_VARIABLE).ok().filter(|mirror| !mirror.is_empty()) {
        return Ok(mirror);
    }
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]);
    tools::run(&mut command)?.lines().find_map(debian_main).map(str::to_owned).with_context(|| {
        format!("no Debian mirror among apt's sources: name one in {MIRROR_VARIABLE} (an address that ends in /debian)")
    })
}

/// The address in a line `ADDRESS SUITE COMPONENT`, if it is a Debian main archive: not security, not another vendor's.
fn debian_main(line: &str) -> Option<&str> {
    let [address, suite, "main"] = *line.split_whitespace().collect::<Vec<_>>() else { return None };
    let path = address.trim_end_matches('/');
    let is_debian = path.ends_with("/debian") || path.contains("/archive/debian/");
    (is_debian && !suite.ends_with("-security") && !suite.contains("/updates")).then_some(address)
}

/// A private apt tree for one suite and architecture, with its own lists and cache.
#[derive(Debug)]
pub(crate) struct Tree {
    configuration: PathBuf,
}

impl Tree {
    /// Creates the tree and fetches the suite's index for a Debian architecture (`amd64`).
    pub(crate) fn open(suite: &str, architecture: &str) -> Result<Self> {
        ensure!(Path::new(KEYRING).exists(), "{KEYRING} is missing: install the package debian-archive-keyring");
        let mirror = mirror()?;
        let folder = tools::cache()?.join(format!("apt/{suite}-{architecture}"));
        for name in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(folder.join(name))?;
        }
        let source = format!("deb [arch={architecture} signed-by={KEYRING}] {mirror} {suite} main\n");
        fs::write(folder.join("sources.list"), source)?;
        let settings = [
            ("APT::Architecture", architecture),
            ("APT::Architectures", architecture),
            // The unprivileged download user cannot enter a cache below a home folder.
            ("APT::Sandbox::User", "root"),
            ("Acquire::IndexTargets::deb::DEP-11::DefaultEnabled", "false"),
            ("Acquire::Languages", "none"),
            ("Acquire::Retries", "3"),
            ("Dir::Cache", &format!("{}/cache", folder.display())),
            ("Dir::Etc::sourcelist", &format!("{}/sources.list", folder.display())),
            ("Dir::Etc::sourceparts", "-"),
            ("Dir::State::lists", &format!("{}/lists", folder.display())),
            // A version that this machine has and the suite lacks cannot be downloaded.
            ("Dir::State::status", "/dev/null"),
            ("quiet", "2"),
        ];
        let tree = Self { configuration: folder.join("apt.conf") };
        fs::write(&tree.configuration, settings.map(|(name, value)| format!("{name} \"{value}\";\n")).concat())?;
        // This succeeds if an index could not be fetched but an old one exists; a missing package fails later.
        tree.run("apt-get", &["update"], &folder)?;
        Ok(tree)
    }

    /// Direct and indirect dependencies of a package, as apt-cache prints them.
    pub(crate) fn depends(&self, package: &str) -> Result<String> {
        self.run("apt-cache", &["depends", "--recurse", "--important", package], Path::new("/"))
    }

    pub(crate) fn download(&self, packages: &[String], folder: &Path) -> Result<Vec<PathBuf>> {
        let names: Vec<&str> = std::iter::once("download").chain(packages.iter().map(String::as_str)).collect();
        self.run("apt-get", &names, folder)?;
        let entries = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
        let files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|of| of == "deb")).collect();
        ensure!(files.len() == packages.len(), "apt-get download {} left {} files", packages.join(" "), files.len());
        Ok(files)
    }

    fn run(&self, program: &str, arguments: &[&str], folder: &Path) -> Result<String> {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder).env("APT_CONFIG", &self.configuration).env("LC_ALL", "C.UTF-8");
        tools::run(&mut command)
    }
}

#[cfg(test)]
mod tests {
    use super::debian_main;

    #[test]
    fn only_the_main_archive_has_all_suites() {
        let line = "http://mirror.example/debian bookworm-updates main";
        assert_eq!(debian_main(line), Some("http://mirror.example/debian"));
        assert!(debian_main("http://snapshot.example/archive/debian/20250520T000000Z/ sid main").is_some());
        for line in ["debian bookworm contrib", "debian-security b-security main", "node_20.x nodistro main"] {
            assert_eq!(debian_main(&format!("http://mirror.example/{line}")), None, "{line}");
        }
    }
}
