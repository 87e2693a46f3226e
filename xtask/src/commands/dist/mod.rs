//! `cargo xtask dist`: packages `proxier-demo` for operators.
//!
//! The same commit gives the same bytes: files are sorted, belong to root, and have the commit's time.

mod chart;
mod check;
mod deb;
mod image;
pub(crate) mod manifests;
mod release;
mod sbom;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use tempfile::TempDir;

use crate::{apt, cargo, tools};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Once for each architecture; this machine's unless told. Another one is built in a Debian sid root, which is made in the cache
    /// (1.5 GB; root)
    #[arg(long = "arch", value_name = "ARCH")]
    archs: Vec<Arch>,
    /// This proxier-demo instead of building a static one; the image `scratch` gets the libraries that it needs
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Folder of the files; target/dist unless told
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Packs twice and compares, unpacks with other programs, and serves a Service from each image in a network
    /// namespace. Installs, removes and purges the package. Nothing is kept (root; builds the tests)
    #[arg(long, conflicts_with = "sign")]
    check: bool,
    /// Signs SHA256SUMS: with minisign where KEY is the file of a secret key, else with gpg and the key that it knows by this name
    #[arg(long, value_name = "KEY")]
    sign: Option<String>,
}

/// Directory of the files for operators, below the repository's root.
const DEPLOY: &str = "examples/deploy";

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Arch {
    Amd64,
    Arm64,
    #[value(skip)]
    S390x,
}

impl Arch {
    /// Debian's name, which is also OCI's.
    fn debian(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
            Self::S390x => "s390x",
        }
    }

    pub(super) fn rust(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64",
            Self::Arm64 => "aarch64",
            Self::S390x => "s390x",
        }
    }

    pub(super) fn target(self) -> String {
        format!("{}-unknown-linux-gnu", self.rust())
    }

    /// This machine's architecture, if there are images for it.
    fn native() -> Option<Self> {
        [Self::Amd64, Self::Arm64].into_iter().find(|arch| arch.is_native())
    }

    fn is_native(self) -> bool {
        self.rust() == std::env::consts::ARCH
    }
}

/// One build of the program, with its metadata.
#[derive(Debug)]
struct Release {
    arch: Arch,
    version: &'static str,
    /// Commit in 12 digits, with `-dirty` if files differ; `unknown` outside git.
    revision: String,
    /// Time of the commit, in seconds since 1970.
    epoch: String,
    /// Whether the program needs no library.
    is_static: bool,
    /// Whether the program was built elsewhere.
    is_given: bool,
    /// Program without symbols.
    program: PathBuf,
    _scratch: TempDir,
}

impl Release {
    fn new(arch: Arch, program: Option<&Path>) -> Result<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let revision = variable("PROXIER_REVISION").or_else(|| tools::commit("-dirty"));
        let revision = revision.unwrap_or_else(|| "unknown".to_owned());
        let mut show = Command::new("git");
        show.current_dir(tools::repository()).args(["show", "--no-patch", "--format=%ct"]);
        let epoch = variable("SOURCE_DATE_EPOCH").or_else(|| tools::run(&mut show).ok());
        let epoch = epoch.map_or_else(|| "0".to_owned(), |epoch| epoch.trim().to_owned());
        let built = match program {
            Some(program) => fs::canonicalize(program)?,
            None => build(arch, &revision, &epoch)?,
        };
        let (scratch, is_given) = (tools::scratch()?, program.is_some());
        let program = scratch.path().join("proxier-demo");
        if arch.is_native() {
            tools::run(Command::new("strip").args(["--remove-section=.comment", "-o"]).arg(&program).arg(&built))?;
        } else {
            fs::copy(&built, &program)?;
        }
        let is_static = tools::is_static(&program)?;
        let version = env!("CARGO_PKG_VERSION");
        Ok(Self { arch, version, revision, epoch, is_static, is_given, program, _scratch: scratch })
    }

    /// Time of the commit in a format of date(1).
    fn date(&self, format: &str) -> Result<String> {
        let mut date = Command::new("date");
        date.env("LC_ALL", "C").args(["-u", "-d", &format!("@{}", self.epoch), format]);
        Ok(tools::run(&mut date)?.trim().to_owned())
    }

    /// A directory inside another (`.`: everything in it) as a tar archive that depends only on names, contents and execute permission.
    fn tar(&self, folder: &Path, inside: &str, archive: &Path) -> Result<()> {
        let options = "--create --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX";
        let mut tar = Command::new("tar");
        tar.args(options.split(' ')).arg(format!("--mtime=@{}", self.epoch));
        tar.arg("--file").arg(archive).arg("--directory").arg(folder).arg(inside);
        tools::run(tar.env("LC_ALL", "C")).map(drop)
    }
}

/// Text of a file of this repository.
fn source(path: &str) -> Result<String> {
    Ok(fs::read_to_string(tools::repository().join(path))?)
}

/// Builds a static program.
fn build(arch: Arch, revision: &str, epoch: &str) -> Result<PathBuf> {
    let flags = format!(
        "-C target-feature=+crt-static --remap-path-prefix={}=/usr/src/proxier-demo --remap-path-prefix={}=/usr/src/cargo",
        tools::repository().display(),
        cargo_home()?.display()
    );
    let mut cargo = if arch.is_native() { cargo::command() } else { cross_cargo(arch)? };
    if !arch.is_native() {
        cargo.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    }
    cargo.envs([("RUSTFLAGS", flags.as_str()), ("PROXIER_REVISION", revision), ("SOURCE_DATE_EPOCH", epoch)]);
    cargo.args(["build", "--release", "--locked", "--package", "proxier-demo", "--bin", "proxier-demo", "--target"]);
    cargo::program(&cargo::artifacts(cargo.arg(arch.target()))?, "proxier-demo")
}

fn cargo_home() -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    home.context("no folder of cargo's: set CARGO_HOME or HOME")
}

/// Cargo of a Debian sid root that compiles for another architecture, in a separate environment. Its output is in
/// `target/cross`.
pub(super) fn cross_cargo(arch: Arch) -> Result<Command> {
    let (root, home, target) = (tools::repository(), cargo_home()?, arch.target());
    // This machine's cargo fetches for the other one, since it has the registry's configuration.
    tools::run(cargo::command().args(["fetch", "--quiet", "--locked", "--target", &target]))?;
    let script = root.join("xtask/src/commands/dist/cross.sh");
    let mut cross = Command::new("unshare");
    cross.args(["--mount", "sh"]).arg(script).arg(cross_root(arch)?).arg(root).arg(&home).arg("cargo");
    cross.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("CARGO_HOME", &home).current_dir(root);
    cross.env("CARGO_NET_OFFLINE", "true").env("CARGO_TARGET_DIR", root.join("target/cross"));
    let linker = format!("CARGO_TARGET_{}_LINKER", target.to_uppercase().replace('-', "_"));
    cross.env(linker, format!("{}-linux-gnu-gcc", arch.rust()));
    Ok(cross)
}

/// Debian sid with Rust, its standard library for the architecture, and a cross linker: earlier Debian releases have a
/// Rust that is too old.
fn cross_root(arch: Arch) -> Result<PathBuf> {
    let debian = arch.debian();
    let folder = tools::cache()?.join(format!("cross-{debian}"));
    if folder.join("usr/bin/cargo").exists() {
        return Ok(folder);
    }
    ensure!(tools::is_root(), "a cross compiler for {debian} needs root, once: chroot into Debian sid");
    tools::ensure(tools::CROSS)?;
    // Left over from an aborted run.
    drop(fs::remove_dir_all(&folder));
    eprintln!("xtask: making a Debian sid root with a cross compiler in {}", folder.display());
    let packages = format!(
        "cargo,rustc,gcc,libc6-dev,libstd-rust-dev:{debian},gcc-{}-linux-gnu,libc6-dev-{debian}-cross",
        arch.rust().replace('_', "-")
    );
    let native = tools::run(Command::new("dpkg").arg("--print-architecture"))?;
    // This machine's apt settings, which mmdebstrap does not read.
    let settings = tools::run(Command::new("apt-config").arg("dump"))?;
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=apt", &format!("--include={packages}")]);
    make.arg(format!("--architectures={},{debian}", native.trim()));
    make.args(settings.lines().filter(|line| line.starts_with("Acquire::")).map(|line| format!("--aptopt={line}")));
    tools::run(make.arg("sid").arg(&folder).arg(apt::mirror()?))?;
    Ok(folder)
}

/// Writes a file, creating its parent directories.
fn put(folder: &Path, path: &str, content: impl AsRef<[u8]>, mode: u32) -> Result<()> {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().unwrap_or(folder))?;
    fs::write(&path, content)?;
    Ok(fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?)
}

/// Packs for each architecture; returns what was packed.
fn pack(options: &Options, out: &Path) -> Result<Vec<Release>> {
    let mut archs = options.archs.clone();
    if archs.is_empty() {
        archs.extend(Arch::native());
    }
    ensure!(!archs.is_empty(), "this machine is neither amd64 nor arm64: name one by --arch");
    ensure!(archs.len() == 1 || options.program.is_none(), "--program takes one --arch");
    tools::ensure(tools::PACKERS)?;
    let releases = archs.into_iter().map(|arch| {
        let release = Release::new(arch, options.program.as_deref())?;
        image::pack(&release, out)?;
        deb::pack(&release, out)?;
        manifests::pack(&release, out)?;
        Ok(release)
    });
    releases.collect()
}

pub(crate) fn main(options: Options) -> Result<ExitCode> {
    if options.check {
        return check::check(options);
    }
    println!("in {}", dist(&options)?.display());
    Ok(ExitCode::SUCCESS)
}

/// Packs everything and describes it: provenance, checksums, and a signature if there is a key.
fn dist(options: &Options) -> Result<PathBuf> {
    let out = options.out.clone().unwrap_or_else(|| tools::repository().join("target/dist"));
    fs::create_dir_all(&out)?;
    // The directory may hold files of another release. Neither list may name them.
    let fresh = tempfile::Builder::new().prefix(".new-").tempdir_in(&out)?;
    let fresh = fresh.path();
    let releases = pack(options, fresh)?;
    release::describe(&releases, fresh)?;
    if let Some(key) = &options.sign {
        release::sign(fresh, key)?;
    }
    for old in release::SIGNATURES {
        drop(fs::remove_file(out.join(old)));
    }
    for entry in fs::read_dir(fresh)? {
        let entry = entry?;
        fs::rename(entry.path(), out.join(entry.file_name()))?;
    }
    Ok(out)
}
