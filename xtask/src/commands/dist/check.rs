//! `cargo xtask dist --check`: other programs read and use what was packed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;

use super::{Arch, Options, Release, chart, deb, dist, image, manifests, release};
use crate::{cargo, tools};

/// Programs of the image `debian`, each of which must start.
const START: &str =
    "iptables --version && iptables-nft-restore --version && iptables-legacy-save --version && ipset --version &&
    ip6tables-legacy-restore --version && modprobe --version && sleep 0 && CONFIG=/none prepare-node --warn userspace";

/// Packs twice and checks the second result. Exit code 1, with a line that names it, if something is wrong.
pub(super) fn check(mut options: Options) -> Result<ExitCode> {
    ensure!(tools::is_root(), "dist --check needs root: it enters root directories and network namespaces");
    ensure!(options.archs.len() < 2, "--check takes one --arch");
    tools::ensure(tools::READERS)?;
    let scratch = tools::scratch()?;
    let mut sums = Vec::new();
    for try_of in ["first", "second"] {
        options.out = Some(scratch.path().join(try_of));
        sums.push(fs::read_to_string(dist(&options)?.join("SHA256SUMS"))?);
    }
    if sums[0] != sums[1] {
        return Ok(failed(&format!("two packings differ:\n{}\n{}", sums[0], sums[1])));
    }
    let out = scratch.path().join("second");
    tools::run(Command::new("sha256sum").current_dir(&out).args(["--check", "--quiet", "SHA256SUMS"]))?;
    release::check(&out)?;
    read_manifests(&out)?;
    read_parts(&out)?;
    let chart = chart::check(&out)?;
    let arch = options.archs.first().copied().or_else(Arch::native).context("no architecture")?;
    let release = Release::new(arch, options.program.as_deref())?;
    // A program built by hand may not know its revision.
    let is_known = options.program.is_none() || std::env::var_os("PROXIER_REVISION").is_some_and(|of| !of.is_empty());
    let commit = if is_known { release.revision.as_str() } else { "" };
    for variant in ["scratch", "debian"] {
        let folder = scratch.path().join(variant);
        let container = unpack(&release, variant, &out, &folder)?;
        let printed = enter(&container, "/usr/local/bin/proxier-demo --version", &[])?;
        if !printed.starts_with(&format!("proxier-demo {} (commit {commit}", release.version)) {
            return Ok(failed(&format!("the image {variant} prints {printed}")));
        }
        if variant == "debian" {
            enter(&container, "sh -c", &[START])?;
        }
        serve(&container)?;
        println!("image {variant}: read by skopeo, unpacked by umoci, serves");
    }
    let imported = import(&release, &out, scratch.path())?;
    let container = scratch.path().join("debian/bundle/rootfs");
    install(&out.join(deb::file(&release)), &container)?;
    println!("package: installed, removed and purged by dpkg\n{} files, twice the same bytes", sums[0].lines().count());
    match chart {
        None => {
            println!("chart: rendered by Helm with its own values it is install.yaml; all values reach the objects");
        }
        Some(why) => println!("NOT RUN: nobody has rendered the chart: {why}"),
    }
    match imported {
        Ok(names) => println!("containerd: imports {}, as install.yaml and the chart name them", names.join(" and ")),
        Err(why) => println!("NOT RUN: containerd does not run here, so nobody has imported the images into it: {why}"),
    }
    Ok(ExitCode::SUCCESS)
}

fn failed(what: &str) -> ExitCode {
    eprintln!("xtask: {what}");
    ExitCode::FAILURE
}

/// Checks that kubectl reads install.yaml like the directory of the manifests.
fn read_manifests(out: &Path) -> Result<()> {
    let kustomize = |folder: &Path| tools::run(Command::new("kubectl").arg("kustomize").arg(folder));
    super::put(out, "kustomization.yaml", "resources: [install.yaml]\n", 0o644)?;
    let ours = tools::repository().join(super::DEPLOY).join("kubernetes");
    ensure!(
        kustomize(out)? == kustomize(&ours)?,
        "kubectl kustomize reads install.yaml otherwise than {}",
        ours.display()
    );
    Ok(())
}

/// Checks that each part in the SBOMs has a licence and a source, and that linked libraries are included.
fn read_parts(out: &Path) -> Result<()> {
    for file in fs::read_dir(out)?.filter_map(|entry| Some(entry.ok()?.path())) {
        if !file.to_string_lossy().ends_with(".spdx.json") {
            continue;
        }
        let document: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
        let packages = document["packages"].as_array().context("no packages")?;
        let text = |of: &serde_json::Value, name: &str| of[name].as_str().unwrap_or_default().to_owned();
        for package in packages {
            let source = text(&package["externalRefs"][0], "referenceLocator");
            let is_checked = package["checksums"][0]["checksumValue"].is_string() || source.starts_with("pkg:generic/");
            let is_licensed = text(package, "licenseDeclared") != "NOASSERTION" || source.ends_with("@NOASSERTION");
            ensure!(is_checked && is_licensed, "{}: {package}", file.display());
        }
        let names: Vec<String> = packages.iter().map(|package| text(package, "name")).collect();
        let has = |names_of: &[&str]| names_of.iter().any(|name| names.iter().any(|known| known == name));
        ensure!(has(&["rust-std"]) && has(&["glibc", "libc6", "c-library"]), "{}: {names:?}", file.display());
    }
    Ok(())
}

/// Reads an image with skopeo and unpacks it with umoci, which verifies all digests; returns the root directory.
fn unpack(release: &Release, variant: &str, out: &Path, folder: &Path) -> Result<PathBuf> {
    let (file, reference) = (out.join(image::file(release, variant)), image::reference(release, variant));
    let printed = tools::run(Command::new("skopeo").arg("inspect").arg(format!("oci-archive:{}", file.display())))?;
    let about: serde_json::Value = serde_json::from_str(&printed).context("skopeo inspect")?;
    if about["Architecture"] != release.arch.debian()
        || about["Labels"]["org.opencontainers.image.revision"] != *release.revision
    {
        bail!("skopeo shows another image than {variant}: {about}");
    }
    let docker = format!("docker-archive:{}", file.display());
    tools::run(Command::new("skopeo").args(["inspect", "--config"]).arg(docker))?;
    fs::create_dir_all(folder.join("layout"))?;
    tools::run(Command::new("tar").arg("-xf").arg(&file).arg("-C").arg(folder.join("layout")))?;
    let layout = format!("{}:{reference}", folder.join("layout").display());
    tools::run(Command::new("umoci").args(["unpack", "--image", &layout]).arg(folder.join("bundle")))?;
    Ok(folder.join("bundle/rootfs"))
}

/// A containerd for this check alone.
struct Containerd {
    child: Child,
    socket: PathBuf,
}

impl Drop for Containerd {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _waited_already = self.child.wait();
    }
}

impl Containerd {
    /// Starts one below `folder`; returns the reason if it cannot run.
    fn start(folder: &Path) -> Result<std::result::Result<Self, String>> {
        let (socket, log) = (folder.join("socket"), folder.join("log"));
        let configuration = format!(
            "version = 2\nroot = \"{0}/root\"\nstate = \"{0}/state\"\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = \"{0}/socket\"\n",
            folder.display()
        );
        super::put(folder, "config.toml", configuration, 0o600)?;
        let output = fs::File::create(&log)?.into_parts().0;
        let mut command = Command::new("containerd");
        command.arg("--config").arg(folder.join("config.toml")).stdin(Stdio::null()).stdout(output.try_clone()?);
        let mut this = Self { child: command.stderr(output).spawn()?, socket };
        let start = Instant::now();
        while this.ctr(&["version"]).is_err() {
            let ended = this.child.try_wait()?;
            if ended.is_some() || start.elapsed() > Duration::from_secs(60) {
                let said = fs::read_to_string(&log)?;
                return Ok(Err(said.lines().last().unwrap_or("it says nothing").to_owned()));
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(Ok(this))
    }

    fn ctr(&self, words: &[&str]) -> Result<String> {
        tools::run(Command::new("ctr").arg("--address").arg(&self.socket).args(["--namespace", "k8s.io"]).args(words))
    }
}

/// Imports both images as on a node: returns their names, or why containerd does not run here.
///
/// The image `debian` must get the name that a kubelet requests with install.yaml and with the chart.
fn import(release: &Release, out: &Path, scratch: &Path) -> Result<std::result::Result<Vec<String>, String>> {
    let containerd = match Containerd::start(&scratch.join("containerd"))? {
        Ok(containerd) => containerd,
        Err(why) => return Ok(Err(why)),
    };
    let asked = manifests::images()?;
    let mut names = Vec::new();
    for variant in ["debian", "scratch"] {
        let file = out.join(image::file(release, variant)).display().to_string();
        containerd.ctr(&["images", "import", "--snapshotter", "native", &file])?;
        let listed = containerd.ctr(&["images", "list", "--quiet"])?;
        let new: Vec<String> =
            listed.lines().filter(|name| !names.iter().any(|known| known == name)).map(str::to_owned).collect();
        ensure!(variant == "scratch" || new == asked, "containerd imports {new:?}; a kubelet asks for {asked:?}");
        names.extend(new);
    }
    ensure!(names.len() == 2, "two images are {names:?} in containerd");
    Ok(Ok(names))
}

/// Runs a command in a root directory; returns its output.
fn enter(container: &Path, command: &str, more: &[&str]) -> Result<String> {
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin";
    let mut chroot = Command::new("unshare");
    chroot.args(["--net", "chroot"]).arg(container).args(command.split(' ')).args(more);
    tools::run(chroot.env_clear().env("PATH", path))
}

/// Serves from the root directory: a test of the program whose program this is.
fn serve(container: &Path) -> Result<()> {
    let mut test = cargo::command();
    test.env("PROXIER_ROOT", container).env("TESTKIT_REQUIRE", "all").env("BENCHES_RUSTC", cargo::rustc_version()?);
    let words = "test --quiet --workspace --all-features --test kernel -- --exact scratch::nftables_mode";
    let printed = tools::run_aloud(test.args(words.split(' ')))?;
    ensure!(printed.contains("1 passed"), "no test has served:\n{printed}");
    Ok(())
}

/// Installs the package below a root directory, removes and purges it; nothing may be left.
fn install(package: &Path, root: &Path) -> Result<()> {
    let find = || {
        let find = "find . -path ./var/lib/dpkg -prune -o -printf '%P %y %m\\n' | sort";
        tools::run(Command::new("sh").current_dir(root).env("LC_ALL", "C").args(["-ec", find]))
    };
    let dpkg = |what: &str, of: &Path| {
        let mut dpkg = Command::new("dpkg");
        // dpkg runs the host's programs; scripts of the package run in the root directory. A program that is not static
        // depends on packages that only scanners see there.
        dpkg.arg(format!("--root={}", root.display())).args(["--force-depends", what]).arg(of);
        tools::run(dpkg.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"))
    };
    for file in ["status", "available"] {
        super::put(root, &format!("var/lib/dpkg/{file}"), "", 0o644)?;
    }
    for folder in ["info", "updates", "triggers"] {
        super::put(root, &format!("var/lib/dpkg/{folder}/.keep"), "", 0o644)?;
    }
    let before = find()?;
    dpkg("--install", package)?;
    let printed = enter(root, "/usr/bin/proxier-demo --version", &[])?;
    let unit = fs::read_to_string(root.join("usr/lib/systemd/system/proxier-demo.service")).unwrap_or_default();
    let is_well = printed.starts_with("proxier-demo ") && unit.contains("\nExecStart=/usr/bin/proxier-demo run ");
    ensure!(is_well, "installed, it prints {printed}, and its unit is:\n{unit}");
    dpkg("--remove", Path::new("proxier-demo"))?;
    ensure!(root.join("etc/default/proxier-demo").exists(), "the package's removal removed its configuration");
    dpkg("--purge", Path::new("proxier-demo"))?;
    let after = find()?;
    // Existing directories are removed if no package of dpkg's owns them.
    let left: Vec<&str> = after.lines().filter(|line| !before.lines().any(|known| known == *line)).collect();
    ensure!(left.is_empty(), "left after a purge: {}", left.join(", "));
    Ok(())
}
