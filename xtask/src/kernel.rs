//! Kernels for tests: chosen by series, fetched from Debian's archive, unpacked into the cache.
//!
//! The packages are Debian's ordinary kernels. The "cloud" flavour lacks 9p, through which the machine reaches the
//! host's root file system.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::apt::Tree;
use crate::tools;

/// A kernel series on which the project is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Series {
    /// The name on the command line.
    name: &'static str,
    /// Start of its versions.
    version: &'static str,
    /// Suite of Debian that has it.
    suite: &'static str,
}

const ALL: [Series; 4] = [
    Series { name: "5.10", version: "5.10.", suite: "bullseye" },
    Series { name: "6.1", version: "6.1.", suite: "bookworm" },
    Series { name: "6.12", version: "6.12.", suite: "trixie" },
    Series { name: "7.x", version: "7.", suite: "sid" },
];

impl FromStr for Series {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        ALL.into_iter().find(|series| series.name == name).ok_or("one of 5.10, 6.1, 6.12 and 7.x")
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// One or more series, as on the command line: `6.1,6.12`, or `all`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeriesList(pub(crate) Vec<Series>);

impl FromStr for SeriesList {
    type Err = &'static str;

    fn from_str(names: &str) -> Result<Self, Self::Err> {
        if names == "all" {
            Ok(Self(ALL.to_vec()))
        } else {
            names.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
        }
    }
}

/// A kernel in the cache, ready to boot.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// Release, as `uname -r` prints it.
    pub(crate) release: String,
    /// Directory with the bootable image and, below `lib/modules/RELEASE`, uncompressed modules.
    pub(crate) folder: PathBuf,
}

impl Kernel {
    /// The kernel of a series: from the cache, or fetched.
    pub(crate) fn get(series: Series) -> Result<Self> {
        let folder = tools::cache()?.join(series.name);
        let release = folder.join("release");
        if !release.exists() {
            fetch(series, &folder).with_context(|| format!("kernel {series} could not be fetched"))?;
        }
        Ok(Self { release: fs::read_to_string(release)?.trim().to_owned(), folder })
    }

    /// Content for `/lib/modules/RELEASE`.
    pub(crate) fn modules(&self) -> PathBuf {
        self.folder.join("lib/modules").join(&self.release)
    }
}

/// Unpacks packages in the current directory, with the modules that tests may need. Modules are decompressed once here
/// instead of at every load in QEMU.
const UNPACK: &str = r#"
release=$1 && shift
for package; do dpkg-deb -x "$package" tree && rm "$package"; done
from=tree/lib/modules/$release to=$PWD/lib/modules/$release
[ -d "$from" ] || from=tree/usr/lib/modules/$release
mkdir -p "$to"
# Kernels from 7.x on have everything there. The guest sees this machine's own /boot, so the configuration lies beside the modules.
mv "tree/boot/vmlinuz-$release" vmlinuz || mv "$from/vmlinuz" .
mv "tree/boot/config-$release" "$to/config" || mv "$from/config" "$to"
cd "$from"
(cd kernel/net && rm -rf bluetooth mac80211 wireless nfc batman-adv ceph)
(cd kernel/drivers && rm -rf block/drbd net/ethernet net/wireless net/usb net/can)
for part in modules.builtin* modules.order kernel/arch/x86/crypto kernel/crypto kernel/lib kernel/net kernel/fs/9p kernel/fs/fscache \
    kernel/fs/netfs kernel/fs/overlayfs kernel/drivers/virtio kernel/drivers/block kernel/drivers/char kernel/drivers/net; do
    [ ! -e "$part" ] || cp -r --parents "$part" "$to"
done
cd "$to/../../.."
rm -r tree
find lib -name '*.xz' -exec xz --decompress {} +
depmod -b . "$release"
echo "$release" >release
"#;

fn fetch(series: Series, folder: &Path) -> Result<()> {
    ensure!(cfg!(target_arch = "x86_64"), "the kernels are Debian's for amd64: this machine has another architecture");
    eprintln!("xtask: kernel {series}: reading the package index of {}", series.suite);
    let tree = Tree::open(series.suite, "amd64")?;
    // Up to 6.12 one package has image and modules; later ones are split, and linux-image-RELEASE depends on the parts.
    let packages = needed(series, &tree.depends("linux-image-amd64")?);
    let release = packages.iter().find_map(|name| name.strip_prefix("linux-image-"));
    let release = release.with_context(|| format!("{} has no kernel {series}", series.suite))?;
    eprintln!("xtask: kernel {series}: fetching {}", packages.join(" "));
    let work = tempfile::Builder::new().prefix("new-").tempdir_in(tools::cache()?)?;
    let files = tree.download(&packages, work.path())?;
    let mut unpack = Command::new("sh");
    unpack.current_dir(work.path()).env("PATH", tools::search_path());
    tools::run(unpack.args(["-ec", UNPACK, "unpack", release]).args(files))?;
    // Another process may have been faster; its kernel is equally good.
    match fs::rename(work.path(), folder) {
        Err(error) if !folder.join("release").exists() => Err(error.into()),
        _ => Ok(()),
    }
}

/// The packages of the series' kernel in the output of `apt-cache depends --recurse`.
fn needed(series: Series, depends: &str) -> Vec<String> {
    let names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: linux-"));
    let mut of_kernel: Vec<String> = names
        .filter(|name| name.contains(&format!("-{}", series.version)))
        .map(|name| format!("linux-{name}"))
        .collect();
    of_kernel.sort();
    of_kernel.dedup();
    of_kernel
}

#[cfg(test)]
mod tests {
    use super::{SeriesList, needed};

    #[test]
    fn a_kernel_is_the_package_that_debians_own_depends_on_and_its_parts() {
        let series = "6.1,7.x".parse::<SeriesList>().unwrap().0;
        let text = "linux-image-amd64\n  Depends: linux-image-6.1.0-50-amd64\nlinux-image-6.1.0-50-amd64\n  Depends: kmod\n \
            |Depends: linux-initramfs-tool\n  Depends: linux-base\n";
        assert_eq!(needed(series[0], text), ["linux-image-6.1.0-50-amd64"]);
        let text = "  Depends: linux-image-7.2+deb14-amd64\n  Depends: linux-base-7.2+deb14-amd64\n  Depends: linux-base\n  Depends: linux-binary-7.2+deb14-amd64\n";
        assert_eq!(
            needed(series[1], text),
            ["linux-base-7.2+deb14-amd64", "linux-binary-7.2+deb14-amd64", "linux-image-7.2+deb14-amd64"]
        );
        assert!(needed(series[0], text).is_empty());
    }
}
