//! Packages from the distribution's archive, without installing anything: a private apt tree in a cache folder.
//!
//! apt checks the archive's signatures against the distribution's key ring. The mirror is the one that the machine's
//! own apt uses, or the one named by the environment variable `XTASK_DEBIAN_MIRROR`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Context as _, Error, Result};
use crate::tools;

/// File of the keys in Debian's package `debian-archive-keyring`.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Names a Debian mirror (`http://HOST/debian`) on a machine whose own apt sources have none.
const MIRROR_VARIABLE: &str = "XTASK_DEBIAN_MIRROR";

/// The Debian mirror in the machine's own apt configuration.
pub(crate) fn mirror() -> Result<String> {
    if let Ok(mirror) = std::env::var(MIRROR_VARIABLE)
        && !mirror.is_empty()
    {
        return Ok(mirror);
    }
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]);
    tools::run(&mut command)?.lines().find_map(debian_main).map(str::to_owned).ok_or_else(|| {
        Error::new(format!(
            "no Debian mirror among apt's sources: name one in {MIRROR_VARIABLE} (an address that ends in /debian)"
        ))
    })
}

/// The address in a line `ADDRESS SUITE COMPONENT`, if it is that of a Debian main archive: not security, not another vendor's.
fn debian_main(line: &str) -> Option<&str> {
    let [address, suite, "main"] = *line.split_whitespace().collect::<Vec<_>>() else { return None };
    let path = address.trim_end_matches('/');
    let is_debian = path.ends_with("/debian") || path.contains("/archive/debian/");
    (is_debian && !suite.ends_with("-security") && !suite.contains("/updates")).then_some(address)
}

/// A private apt tree for one suite and architecture: its own lists and cache, nothing of the machine's.
#[derive(Debug)]
pub(crate) struct Tree {
    folder: PathBuf,
    architecture: String,
}

impl Tree {
    /// Sets the tree up below `folder` and fetches the suite's index for an architecture of Debian's (`amd64`).
    pub(crate) fn open(folder: &Path, suite: &str, architecture: &str) -> Result<Self> {
        if !Path::new(KEYRING).exists() {
            return Err(Error::new(format!("{KEYRING} is missing: install the package debian-archive-keyring")));
        }
        let mirror = mirror()?;
        for name in ["lists/partial", "cache/archives/partial"] {
            let path = folder.join(name);
            fs::create_dir_all(&path).context(|| format!("cannot create {}", path.display()))?;
        }
        let list = folder.join("sources.list");
        fs::write(&list, format!("deb [arch={architecture} signed-by={KEYRING}] {mirror} {suite} main\n"))
            .context(|| format!("cannot write {}", list.display()))?;
        let tree = Self { folder: folder.to_owned(), architecture: architecture.to_owned() };
        tree.run("apt-get", &["--quiet", "--quiet", "update"], folder)?;
        Ok(tree)
    }

    /// Names of all packages in the suite that start with `prefix`.
    pub(crate) fn package_names(&self, prefix: &str) -> Result<Vec<String>> {
        let output = self.run("apt-cache", &["pkgnames", prefix], &self.folder)?;
        Ok(output.lines().map(str::to_owned).collect())
    }

    /// Downloads packages into `folder` and names the files.
    pub(crate) fn download(&self, packages: &[String], folder: &Path) -> Result<Vec<PathBuf>> {
        let mut arguments = vec!["--quiet", "--quiet", "download"];
        arguments.extend(packages.iter().map(String::as_str));
        self.run("apt-get", &arguments, folder)?;
        let entries = fs::read_dir(folder).context(|| format!("cannot list {}", folder.display()))?;
        let files: Vec<PathBuf> = entries
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .collect();
        if files.len() == packages.len() {
            Ok(files)
        } else {
            Err(Error::new(format!("apt-get download {} left {} files", packages.join(" "), files.len())))
        }
    }

    fn run(&self, program: &str, arguments: &[&str], folder: &Path) -> Result<String> {
        let option = |name: &str, value: &Path| -> [OsString; 2] {
            let mut setting = OsString::from(name);
            setting.push("=");
            setting.push(value);
            ["-o".into(), setting]
        };
        let mut command = Command::new(program);
        command
            .args(["-o".to_owned(), format!("APT::Architecture={}", self.architecture)])
            .args(["-o".to_owned(), format!("APT::Architectures={}", self.architecture)])
            .args(option("Dir::Etc::sourcelist", &self.folder.join("sources.list")))
            .args(option("Dir::Etc::sourceparts", Path::new("-")))
            .args(option("Dir::State::lists", &self.folder.join("lists")))
            .args(option("Dir::Cache", &self.folder.join("cache")))
            .args(option("Dir::Cache::archives", &self.folder.join("cache/archives")))
            .args(["-o", "Acquire::Languages=none", "-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false"])
            // The unprivileged download user cannot enter a cache below a home folder.
            .args(["-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=3"])
            .args(arguments)
            .current_dir(folder)
            .env("LC_ALL", "C.UTF-8");
        // apt-get update answers 0 when an index could not be fetched and an old one exists; what is missing shows
        // when a package is asked for.
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
        for line in [
            "http://mirror.example/debian bookworm contrib",
            "http://mirror.example/debian-security bookworm-security main",
            "http://mirror.example/debian bookworm-security main",
            "http://tools.example/node_20.x nodistro main",
            "",
        ] {
            assert_eq!(debian_main(line), None, "{line}");
        }
    }
}
