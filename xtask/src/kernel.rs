//! Kernels to test on: chosen by series, fetched from Debian's archive, unpacked into the cache.
//!
//! The packages are Debian's ordinary kernels: the "cloud" flavour lacks 9p, over which the machine reaches the host's
//! root file system.

use std::cmp::Ordering;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::apt::Tree;
use crate::cache;
use crate::error::{Context as _, Error, Result};
use crate::tools;

/// The kernel series that the project is tested on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Series {
    /// Debian 11.
    V5_10,
    /// Debian 12.
    V6_1,
    /// Debian 13, and 12 with backports.
    V6_12,
    /// Debian's development version.
    V7,
}

impl Series {
    pub(crate) const ALL: [Self; 4] = [Self::V5_10, Self::V6_1, Self::V6_12, Self::V7];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::V5_10 => "5.10",
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::V7 => "7.x",
        }
    }

    /// Reads the name from the command line.
    pub(crate) fn parse(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|series| series.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.into_iter().map(Self::name).collect();
            Error::usage(format!("unknown kernel {name:?}: one of {}", known.join(", ")))
        })
    }

    /// Suites of Debian that may have it, in the order of the search.
    fn suites(self) -> &'static [&'static str] {
        match self {
            Self::V5_10 => &["bullseye"],
            Self::V6_1 => &["bookworm"],
            Self::V6_12 => &["bookworm-backports", "trixie"],
            Self::V7 => &["sid"],
        }
    }

    fn contains(self, version: &str) -> bool {
        let prefix = match self {
            Self::V5_10 => "5.10.",
            Self::V6_1 => "6.1.",
            Self::V6_12 => "6.12.",
            Self::V7 => "7.",
        };
        version.starts_with(prefix)
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A kernel in the cache, ready to boot.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// Release, as `uname -r` prints it.
    pub(crate) release: String,
    /// The bootable image.
    pub(crate) image: PathBuf,
    /// Content for `/lib/modules/RELEASE`: modules, not compressed, with their dependency index.
    pub(crate) modules: PathBuf,
}

impl Kernel {
    /// The kernel of a series: from the cache, or fetched when it is not there yet.
    pub(crate) fn get(series: Series) -> Result<Self> {
        let folder = cache::folder()?.join(series.name());
        if let Some(kernel) = Self::cached(&folder) {
            return Ok(kernel);
        }
        fetch(series, &folder)?;
        Self::cached(&folder).ok_or_else(|| Error::new(format!("{} holds no kernel after fetching", folder.display())))
    }

    fn cached(folder: &Path) -> Option<Self> {
        let release = fs::read_to_string(folder.join("release")).ok()?.trim().to_owned();
        let modules = folder.join("lib/modules").join(&release);
        let image = folder.join("vmlinuz");
        let indexes = ["modules.dep", "modules.builtin", "config"].iter().all(|name| modules.join(name).is_file());
        (!release.is_empty() && image.is_file() && indexes).then_some(Self { release, image, modules })
    }
}

fn fetch(series: Series, folder: &Path) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Error::new("the kernels are Debian's for amd64: this machine has another architecture"));
    }
    let mut reasons = Vec::new();
    for suite in series.suites() {
        match fetch_from(series, suite, folder) {
            Ok(()) => return Ok(()),
            Err(error) => reasons.push(format!("{suite}: {error}")),
        }
    }
    Err(Error::new(format!("no kernel {series} could be fetched ({})", reasons.join("; "))))
}

fn fetch_from(series: Series, suite: &str, folder: &Path) -> Result<()> {
    let cache = cache::folder()?;
    eprintln!("xtask: kernel {series}: reading the package index of {suite}");
    let tree = Tree::open(&cache.join("apt").join(suite), suite, "amd64")?;
    let releases = releases(series, &tree.package_names("linux-")?);
    let mut last = Error::new(format!("no kernel package of series {series}"));
    // An index can be older than the archive and name a package that is gone: try the next one then.
    for choice in releases.into_iter().rev().take(3) {
        let work = cache.join(format!("{series}.new.{}", std::process::id()));
        drop(fs::remove_dir_all(&work));
        fs::create_dir_all(&work).context(|| format!("cannot create {}", work.display()))?;
        eprintln!("xtask: kernel {series}: fetching {}", choice.packages.join(" "));
        let done = tree.download(&choice.packages, &work).and_then(|files| unpack(&choice.release, &files, &work));
        match done {
            Ok(()) => {
                drop(fs::remove_dir_all(folder));
                let renamed = fs::rename(&work, folder);
                drop(fs::remove_dir_all(&work));
                // Another process may have been faster: its kernel is as good.
                return if Kernel::cached(folder).is_some() {
                    Ok(())
                } else {
                    renamed.context(|| format!("cannot rename {} to {}", work.display(), folder.display()))
                };
            }
            Err(error) => {
                drop(fs::remove_dir_all(&work));
                last = error;
            }
        }
    }
    Err(last)
}

/// A kernel and the packages that hold it.
#[derive(Debug, PartialEq, Eq)]
struct Choice {
    release: String,
    packages: Vec<String>,
}

/// The kernels of a series among the package names, oldest first.
///
/// Up to 6.12 one package holds image and modules; later ones are split into base (the list of what is built in), binary and
/// modules, and `linux-image-*` is empty.
fn releases(series: Series, names: &[String]) -> Vec<Choice> {
    let release_of = |name: &str, prefix: &str| -> Option<String> {
        let release = name.strip_prefix(prefix)?;
        let version = release.strip_suffix("-amd64")?;
        let plain = version.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | '~'))
            || version.split_once('+').is_some_and(|(number, debian)| {
                number.chars().all(|c| c.is_ascii_digit() || c == '.')
                    && debian.starts_with("deb")
                    && debian.chars().all(|c| c.is_ascii_alphanumeric() || c == '.')
            });
        (plain && series.contains(version)).then(|| release.to_owned())
    };
    let mut choices: Vec<Choice> = names
        .iter()
        .filter_map(|name| {
            let release = release_of(name, "linux-image-")?;
            let parts = ["linux-base", "linux-binary", "linux-modules"].map(|part| format!("{part}-{release}"));
            let split = parts.iter().all(|part| names.contains(part));
            Some(Choice { packages: if split { parts.to_vec() } else { vec![name.clone()] }, release })
        })
        .collect();
    choices.sort_by(|a, b| compare_versions(&a.release, &b.release));
    choices
}

/// Orders versions by their numbers, as `sort -V` does for names of this shape.
fn compare_versions(a: &str, b: &str) -> Ordering {
    let numbers = |text: &str| -> Vec<u64> {
        let text = text.trim_end_matches("-amd64");
        text.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    numbers(a).cmp(&numbers(b))
}

/// Folders with modules that a test can need, below `lib/modules/RELEASE/kernel`.
const MODULE_FOLDERS: [&str; 12] = [
    "arch/x86/crypto",
    "crypto",
    "lib",
    "net",
    "fs/9p",
    "fs/fscache",
    "fs/netfs",
    "fs/overlayfs",
    "drivers/virtio",
    "drivers/block",
    "drivers/char",
    "drivers/net",
];

/// Folders inside of those that are large and never needed.
const UNNEEDED_FOLDERS: [&str; 11] = [
    "net/bluetooth",
    "net/mac80211",
    "net/wireless",
    "net/nfc",
    "net/batman-adv",
    "net/ceph",
    "drivers/block/drbd",
    "drivers/net/ethernet",
    "drivers/net/wireless",
    "drivers/net/usb",
    "drivers/net/can",
];

fn unpack(release: &str, packages: &[PathBuf], work: &Path) -> Result<()> {
    let tree = work.join("tree");
    for package in packages {
        tools::run(Command::new("dpkg-deb").arg("-x").arg(package).arg(&tree))?;
        fs::remove_file(package).context(|| format!("cannot remove {}", package.display()))?;
    }
    let from = ["lib/modules", "usr/lib/modules"]
        .into_iter()
        .map(|path| tree.join(path).join(release))
        .find(|path| path.is_dir())
        .ok_or_else(|| Error::new(format!("the package holds no modules of {release}")))?;
    let image = [tree.join("boot").join(format!("vmlinuz-{release}")), from.join("vmlinuz")]
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| Error::new(format!("the package holds no image of {release}")))?;
    fs::rename(&image, work.join("vmlinuz")).context(|| format!("cannot move {}", image.display()))?;

    let to = work.join("lib/modules").join(release);
    fs::create_dir_all(&to).context(|| format!("cannot create {}", to.display()))?;
    for name in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        fs::rename(from.join(name), to.join(name)).context(|| format!("the package has no {name}"))?;
    }
    // Where distributions without a /boot keep it: this machine's own /boot is what the guest sees.
    let config = [tree.join("boot").join(format!("config-{release}")), from.join("config")]
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| Error::new(format!("the package holds no configuration of {release}")))?;
    fs::rename(&config, to.join("config")).context(|| format!("cannot move {}", config.display()))?;
    for name in UNNEEDED_FOLDERS {
        drop(fs::remove_dir_all(from.join("kernel").join(name)));
    }
    for name in MODULE_FOLDERS {
        let (source, target) = (from.join("kernel").join(name), to.join("kernel").join(name));
        if !source.exists() {
            continue; // built in, or not there in this series
        }
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).context(|| format!("cannot create {}", parent.display()))?;
        }
        fs::rename(&source, &target).context(|| format!("cannot move {}", source.display()))?;
    }
    fs::remove_dir_all(&tree).context(|| format!("cannot remove {}", tree.display()))?;
    uncompress(&to)?;
    tools::run(Command::new("depmod").arg("-b").arg(work).arg(release).env("PATH", tools::search_path()))?;
    fs::write(work.join("release"), format!("{release}\n")).context(|| "cannot write the kernel's release".to_owned())
}

/// Unpacks compressed modules once, here, instead of at every load in an emulated machine.
fn uncompress(folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).context(|| format!("cannot list {}", folder.display()))?;
    let mut compressed = Vec::new();
    for entry in entries {
        let path = entry.context(|| format!("cannot list {}", folder.display()))?.path();
        if path.is_dir() {
            uncompress(&path)?;
        } else if path.extension().is_some_and(|extension| extension == "xz") {
            compressed.push(path);
        }
    }
    for batch in compressed.chunks(500) {
        tools::run(Command::new("xz").arg("--decompress").args(batch))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Series, compare_versions, releases};

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn newest_plain_kernel_comes_last() {
        let names = names(&[
            "linux-image-6.1.0-9-amd64",
            "linux-image-6.1.0-50-amd64",
            "linux-image-6.1.0-50-cloud-amd64",
            "linux-image-6.1.0-51-rt-amd64",
            "linux-image-6.1.0-52-amd64-dbg",
            "linux-image-6.1.0-52-amd64-unsigned",
            "linux-image-amd64",
            "linux-image-6.12.9+deb12-amd64",
            "linux-headers-6.1.0-53-amd64",
        ]);
        let found: Vec<String> = releases(Series::V6_1, &names).into_iter().map(|choice| choice.release).collect();
        assert_eq!(found, ["6.1.0-9-amd64", "6.1.0-50-amd64"]);
    }

    #[test]
    fn backports_count_upstream_before_debian_revision() {
        let names = names(&[
            "linux-image-6.12.95+deb12-amd64",
            "linux-image-6.12.90+deb12.1-amd64",
            "linux-image-6.12.90+deb12-amd64",
            "linux-image-6.12.107+deb12-amd64",
            "linux-image-6.12.107+deb12-cloud-amd64",
        ]);
        let found: Vec<String> = releases(Series::V6_12, &names).into_iter().map(|choice| choice.release).collect();
        assert_eq!(
            found,
            ["6.12.90+deb12-amd64", "6.12.90+deb12.1-amd64", "6.12.95+deb12-amd64", "6.12.107+deb12-amd64"]
        );
    }

    #[test]
    fn split_packages_are_taken_together() {
        let names = names(&[
            "linux-image-7.2.13+deb14-amd64",
            "linux-binary-7.2.13+deb14-amd64",
            "linux-modules-7.2.13+deb14-amd64",
            "linux-base-7.2.13+deb14-amd64",
        ]);
        let choices = releases(Series::V7, &names);
        assert_eq!(choices.len(), 1);
        assert_eq!(
            choices[0].packages,
            ["linux-base-7.2.13+deb14-amd64", "linux-binary-7.2.13+deb14-amd64", "linux-modules-7.2.13+deb14-amd64"]
        );
    }

    #[test]
    fn versions_compare_by_number() {
        assert!(compare_versions("6.1.0-9-amd64", "6.1.0-10-amd64").is_lt());
        assert!(compare_versions("6.12.90+deb12-amd64", "6.12.90+deb12.1-amd64").is_lt());
    }

    #[test]
    fn series_are_named_on_the_command_line() {
        for series in Series::ALL {
            assert_eq!(Series::parse(series.name()).unwrap(), series);
        }
        assert!(Series::parse("4.19").is_err());
    }
}
