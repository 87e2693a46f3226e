//! `cargo xtask image`, `deb` and `dist`: `proxier-demo` as an operator installs it.
//!
//! The same commit gives the same bytes: files are sorted, belong to root, and have the commit's time.

mod check;
mod deb;
mod image;
pub(crate) mod manifests;
mod sbom;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::error::{Context as _, Error, Result};
use crate::scratch::Scratch;
use crate::{apt, cache, cargo, tools};

pub(crate) const HELP: &str = "\
Usage: cargo xtask image | deb | dist [OPTIONS]

image: OCI image layouts in tar files, which podman, docker, ctr and skopeo read. `scratch` has the static program and nothing else;
`debian` has iptables, ipset, kmod, busybox and prepare-node too. deb: a Debian package with the unit, the manual page, the
configuration and, for this machine's architecture, completions. dist: both, install.yaml, the chart, and SHA256SUMS of all. Each has the program's parts as SPDX (*.spdx.json).

  --arch ARCH     amd64 or arm64; more than once for more. Default: this machine's. Another one is built in a Debian sid root, which
                  is made in the cache (1.5 GB; root)
  --program FILE  this proxier-demo instead of building a static one; the image `scratch` gets the libraries that it needs
  --out FOLDER    where the files go (target/dist)
  --check         dist: packs twice and compares, unpacks by programs of others, serves a Service from each image in a network namespace,
                  installs, removes and purges the package; nothing is kept (root; builds the tests)

Times and the commit are git's, or SOURCE_DATE_EPOCH and PROXIER_REVISION. Exit codes: 0 done, 1 a check failed, 2 bad usage, 125 else.
";

/// Folder of what operators get, below the repository's root.
const DEPLOY: &str = "examples/deploy";

/// Architecture by its names: Debian's, which is also OCI's, and Rust's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arch {
    pub(super) debian: &'static str,
    pub(super) rust: &'static str,
}

const ARCHS: [Arch; 2] = [Arch { debian: "amd64", rust: "x86_64" }, Arch { debian: "arm64", rust: "aarch64" }];

impl Arch {
    fn is_native(self) -> bool {
        self.rust == std::env::consts::ARCH
    }
}

#[derive(Debug)]
struct Options {
    archs: Vec<Arch>,
    program: Option<PathBuf>,
    out: Option<PathBuf>,
    check: bool,
}

fn parse(command: &str, arguments: &[OsString]) -> Result<Options> {
    let mut options = Options { archs: Vec::new(), program: None, out: None, check: false };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value =
            || rest.next().ok_or_else(|| Error::usage(format!("{}: a value is missing", argument.display())));
        match argument.to_str() {
            Some("--arch") => {
                let name = value()?;
                let arch = ARCHS.into_iter().find(|arch| *name == *arch.debian);
                options.archs.push(
                    arch.ok_or_else(|| Error::usage(format!("--arch {}: write amd64 or arm64", name.display())))?,
                );
            }
            Some("--program") => options.program = Some(value()?.into()),
            Some("--out") => options.out = Some(value()?.into()),
            Some("--check") if command == "dist" => options.check = true,
            _ => return Err(Error::usage(format!("{command}: unknown option {}", argument.display()))),
        }
    }
    if options.archs.is_empty() {
        options.archs.extend(ARCHS.into_iter().filter(|arch| arch.is_native()));
    }
    match options.archs.as_slice() {
        [] => Err(Error::usage(format!("{command}: this machine is neither amd64 nor arm64: name one by --arch"))),
        [_, _, ..] if options.program.is_some() || options.check => {
            Err(Error::usage(format!("{command}: --program and --check take one --arch")))
        }
        _ => Ok(options),
    }
}

/// One build of the program, and what is said about it.
#[derive(Debug)]
struct Release {
    root: PathBuf,
    arch: Arch,
    version: String,
    /// Commit in 12 digits, with `-dirty` behind it if files differ; `unknown` outside git.
    revision: String,
    /// Time of the commit, in seconds since 1970.
    epoch: String,
    /// Whether the program needs no library.
    is_static: bool,
    /// Program without symbols.
    program: PathBuf,
    _scratch: Scratch,
}

impl Release {
    fn new(root: &Path, arch: Arch, program: Option<&Path>) -> Result<Self> {
        let git = |arguments: &[&str]| tools::run(Command::new("git").current_dir(root).args(arguments)).ok();
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let commit = || {
            let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
            let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
            Some(format!("{}{}", commit.trim(), if changed.is_empty() { "" } else { "-dirty" }))
        };
        let revision = variable("PROXIER_REVISION").or_else(commit).unwrap_or_else(|| "unknown".to_owned());
        let epoch = variable("SOURCE_DATE_EPOCH").or_else(|| git(&["show", "--no-patch", "--format=%ct"]));
        let epoch = epoch.map_or_else(|| "0".to_owned(), |epoch| epoch.trim().to_owned());
        let built = match program {
            Some(program) => {
                program.canonicalize().context(|| format!("--program {}: no such file", program.display()))?
            }
            None => build(root, arch, &revision, &epoch)?,
        };
        let scratch = Scratch::new()?;
        let program = scratch.path().join("proxier-demo");
        if arch.is_native() {
            tools::run(Command::new("strip").args(["--remove-section=.comment", "-o"]).arg(&program).arg(&built))?;
        } else {
            fs::copy(&built, &program).context(|| format!("cannot copy {}", built.display()))?;
        }
        let is_static = tools::is_static(&program)?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Self { root: root.to_owned(), arch, version, revision, epoch, is_static, program, _scratch: scratch })
    }

    /// File of this repository.
    fn source(&self, path: &str) -> Result<Vec<u8>> {
        let path = self.root.join(path);
        fs::read(&path).context(|| format!("cannot read {}", path.display()))
    }

    /// Time of the commit in a format of date(1).
    fn date(&self, format: &str) -> Result<String> {
        let mut date = Command::new("date");
        Ok(tools::run(date.env("LC_ALL", "C").args(["-u", "-d", &format!("@{}", self.epoch), format]))?
            .trim()
            .to_owned())
    }

    /// Files of a folder as a tar archive that depends on nothing but names, contents and the right to execute.
    fn tar(&self, folder: &Path, archive: &Path) -> Result<()> {
        let mut tar = Command::new("tar");
        tar.args([
            "--create",
            "--sort=name",
            "--format=gnu",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "--mode=u=rwX,go=rX",
        ]);
        tar.arg(format!("--mtime=@{}", self.epoch)).arg("--file").arg(archive).arg("--directory").arg(folder).arg(".");
        tools::run(tar.env("LC_ALL", "C")).map(drop)
    }
}

/// Builds a static program.
fn build(root: &Path, arch: Arch, revision: &str, epoch: &str) -> Result<PathBuf> {
    let home = cargo_home()?;
    let target = format!("{}-unknown-linux-gnu", arch.rust);
    let arguments = ["--release", "--locked", "--package", "examples", "--target", &target];
    let flags = format!(
        "-C target-feature=+crt-static --remap-path-prefix={}=/usr/src/proxier-demo --remap-path-prefix={}=/usr/src/cargo",
        root.display(),
        home.display()
    );
    let settings = [("RUSTFLAGS", flags.as_str()), ("PROXIER_REVISION", revision), ("SOURCE_DATE_EPOCH", epoch)];
    if arch.is_native() {
        let mut cargo = cargo::command();
        cargo.envs(settings);
        return cargo::build_by(cargo, root, &arguments, "proxier-demo");
    }
    let mut cross = cross_cargo(root, arch)?;
    cross.envs(settings).env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    cargo::build_by(cross, root, &arguments, "proxier-demo")
}

fn cargo_home() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    home.ok_or_else(|| Error::new("no folder of cargo's: set CARGO_HOME or HOME"))
}

/// Cargo of a Debian sid root that compiles for another architecture, in an environment of its own; what it builds is in `target/cross`.
pub(super) fn cross_cargo(root: &Path, arch: Arch) -> Result<Command> {
    let home = cargo_home()?;
    let target = format!("{}-unknown-linux-gnu", arch.rust);
    // What the other cargo needs is fetched by this machine's, which knows its registry.
    tools::run(cargo::command().current_dir(root).args(["fetch", "--quiet", "--locked", "--target", &target]))?;
    let script = root.join("xtask/src/commands/dist/cross.sh");
    let mut cross = Command::new("unshare");
    cross.args(["--mount", "sh"]).arg(script).arg(cross_root(arch)?).arg(root).arg(&home).arg("cargo");
    cross.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("CARGO_HOME", &home);
    cross.env("CARGO_NET_OFFLINE", "true").env("CARGO_TARGET_DIR", root.join("target/cross"));
    cross.env(
        format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_")),
        format!("{}-linux-gnu-gcc", arch.rust),
    );
    Ok(cross)
}

/// Debian sid with Rust, its standard library for the architecture, and a cross linker: no earlier Debian has a Rust that is new enough.
fn cross_root(arch: Arch) -> Result<PathBuf> {
    let folder = cache::folder()?.join(format!("cross-{}", arch.debian));
    if folder.join("usr/bin/cargo").exists() {
        return Ok(folder);
    }
    if !tools::is_root() {
        return Err(Error::new(format!(
            "a cross compiler for {} needs root, once: chroot into Debian sid",
            arch.debian
        )));
    }
    tools::ensure(tools::CROSS)?;
    // What a run that was broken off has left.
    drop(fs::remove_dir_all(&folder));
    eprintln!("xtask: making a Debian sid root with a cross compiler in {}", folder.display());
    let Arch { debian, rust } = arch;
    let packages = format!(
        "cargo,rustc,gcc,libc6-dev,libstd-rust-dev:{debian},gcc-{}-linux-gnu,libc6-dev-{debian}-cross",
        rust.replace('_', "-")
    );
    let native = tools::run(Command::new("dpkg").arg("--print-architecture"))?;
    // How this machine fetches packages: mmdebstrap does not read that.
    let settings = tools::run(Command::new("apt-config").arg("dump"))?;
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=apt", &format!("--include={packages}")]);
    make.arg(format!("--architectures={},{debian}", native.trim()));
    make.args(settings.lines().filter(|line| line.starts_with("Acquire::")).map(|line| format!("--aptopt={line}")));
    tools::run(make.arg("sid").arg(&folder).arg(apt::mirror()?))?;
    Ok(folder)
}

/// Writes a file, with the folders above it.
fn put(folder: &Path, path: &str, content: impl AsRef<[u8]>, mode: u32) -> Result<()> {
    let path = folder.join(path);
    let write = || {
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
    };
    write().context(|| format!("cannot write {}", path.display()))
}

/// Packs for each architecture with each of `packers`; gives the folder.
fn pack(options: &Options, root: &Path, packers: &[fn(&Release, &Path) -> Result<()>]) -> Result<PathBuf> {
    tools::ensure(tools::PACKERS)?;
    let out = options.out.clone().unwrap_or_else(|| root.join("target/dist"));
    fs::create_dir_all(&out).context(|| format!("cannot create {}", out.display()))?;
    for arch in &options.archs {
        let release = Release::new(root, *arch, options.program.as_deref())?;
        packers.iter().try_for_each(|pack| pack(&release, &out))?;
    }
    Ok(out)
}

/// `image`, `deb` or `dist`.
pub(crate) fn main(command: &str, arguments: &[OsString]) -> Result<ExitCode> {
    let (options, root) = (parse(command, arguments)?, super::test::repository()?);
    let out = match command {
        "image" => pack(&options, &root, &[image::pack])?,
        "deb" => pack(&options, &root, &[deb::pack])?,
        _ if options.check => return check::check(&root, options),
        _ => dist(&options, &root)?,
    };
    println!("{command}: in {}", out.display());
    Ok(ExitCode::SUCCESS)
}

/// Everything, and the checksums of all files in the folder.
fn dist(options: &Options, root: &Path) -> Result<PathBuf> {
    let out = pack(options, root, &[image::pack, deb::pack, manifests::pack])?;
    let sums = tools::run(Command::new("sh").current_dir(&out).env("LC_ALL", "C").args(["-c", "sha256sum -- [!S]*"]))?;
    put(&out, "SHA256SUMS", sums, 0o644)?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn one_program_is_of_one_architecture() {
        let options = parse("dist", &words("--arch arm64 --program /p --out /o --check")).unwrap();
        assert_eq!((options.archs[0].rust, options.check), ("aarch64", true));
        assert_eq!(parse("image", &[]).unwrap().archs[0].rust, std::env::consts::ARCH);
        for line in [
            "--arch mips",
            "--arch",
            "--arch amd64 --arch arm64 --program /p",
            "--arch amd64 --arch arm64 --check",
            "--quick",
            "--out",
        ] {
            let error = parse("dist", &words(line)).unwrap_err();
            assert_eq!(format!("{:?}", error.exit_code()), format!("{:?}", ExitCode::from(2)), "{line}");
        }
        assert!(parse("deb", &words("--check")).is_err(), "only dist checks");
    }
}
