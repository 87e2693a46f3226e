//! Builds container images as OCI image layouts (image-spec 1.1) with tar, gzip and sha256sum.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use fs_err as fs;
use fs_err::os::unix::fs::symlink;
use serde_json::{Value, json};

use super::{DEPLOY, Release, put, sbom, source};
use crate::apt::Tree;
use crate::tools;

/// Debian release of the programs, as in the Dockerfile.
const SUITE: &str = "bookworm";

/// Packages of the image `debian`: programs, their libraries, and files that these read. Their scripts are not run.
pub(super) const PACKAGES: &str = "base-files busybox-static dash ipset iptables kmod libc6 libgcc-s1 libip4tc2 libip6tc2 libipset13 \
    libkmod2 liblzma5 libmnl0 libnetfilter-conntrack3 libnfnetlink0 libnftnl11 libssl3 libxtables12 libzstd1 netbase";

/// Applets of busybox: those of prepare-node and check.yaml, and a few for debugging. Not its shell, which prefers
/// busybox's modprobe to that of kmod and so cannot read compressed modules.
const APPLETS: &str = "cat cut grep id ip ls mkdir ps rm sed sleep";

/// Parts of packages below /usr/share that programs do not read. Copyright files are kept.
const LEFT_OUT: &str = "doc/*/*.gz man locale lintian bug bash-completion";

/// Packs both images and their SBOMs.
pub(super) fn pack(release: &Release, out: &Path) -> Result<()> {
    let scratch = tools::scratch()?;
    let (alone, debian, program) =
        (scratch.path().join("scratch"), scratch.path().join("debian"), scratch.path().join("program"));
    let parts = sbom::program(release)?;
    let libraries = if release.is_static { Vec::new() } else { copy_libraries(&release.program, &alone)? };
    put_program(release, &alone, out, "scratch", &[parts.clone(), libraries].concat())?;
    write(release, "scratch", &[&alone], out)?;
    let packages = extract(release, &debian, scratch.path())?;
    put_program(release, &program, out, "debian", &[parts, packages].concat())?;
    put(&program, "usr/local/sbin/prepare-node", source(&format!("{DEPLOY}/prepare-node"))?, 0o755)?;
    write(release, "debian", &[&debian, &program], out)
}

/// The program, its licences and its SBOM (also in `out`), and the directories over which a container mounts.
fn put_program(release: &Release, folder: &Path, out: &Path, variant: &str, parts: &[sbom::Part]) -> Result<()> {
    for empty in ["dev", "etc", "proc", "run", "sys", "tmp"] {
        fs::create_dir_all(folder.join(empty))?;
    }
    put(folder, "usr/local/bin/proxier-demo", fs::read(&release.program)?, 0o755)?;
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        put(folder, &format!("usr/share/doc/proxier-demo/{licence}"), source(licence)?, 0o644)?;
    }
    let parts = sbom::document(release, parts)?;
    put(out, &file(release, variant).replace("oci.tar", "spdx.json"), &parts, 0o644)?;
    put(folder, "usr/share/doc/proxier-demo/sbom.spdx.json", parts, 0o644)
}

/// The libraries of a program that is not static, at their places.
fn copy_libraries(program: &Path, folder: &Path) -> Result<Vec<sbom::Part>> {
    let printed = tools::run(Command::new("ldd").arg(program))?;
    let libraries: Vec<PathBuf> =
        printed.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect();
    for library in &libraries {
        put(folder, library.display().to_string().trim_start_matches('/'), fs::read(library)?, 0o755)?;
    }
    sbom::libraries(&libraries)
}

/// Extracts the files of Debian's packages into `folder`; returns the packages as parts.
fn extract(release: &Release, folder: &Path, scratch: &Path) -> Result<Vec<sbom::Part>> {
    let link = |to: &str, path: &str| symlink(to, folder.join(path));
    for name in ["bin", "sbin", "lib", "lib64"] {
        fs::create_dir_all(folder.join("usr").join(name))?;
        link(&format!("usr/{name}"), name)?;
    }
    fs::create_dir_all(folder.join("var/lib/dpkg/status.d"))?;
    let tree = Tree::open(SUITE, release.arch.debian())?;
    let archives = scratch.join("archives");
    fs::create_dir(&archives)?;
    let packages: Vec<String> = PACKAGES.split(' ').map(str::to_owned).collect();
    let mut files = tree.download(&packages, &archives)?;
    files.sort();
    let mut parts = Vec::new();
    for file in files {
        let line = "deb=$0 root=$1; shift; dpkg-deb --fsys-tarfile \"$deb\" |
            tar --extract --keep-directory-symlink --directory \"$root\" \"$@\"";
        let mut unpack = Command::new("sh");
        unpack
            .args(["-ec", line])
            .arg(&file)
            .arg(folder)
            .arg("--exclude=./usr/lib/*/gconv")
            .args(LEFT_OUT.split(' ').map(|path| format!("--exclude=./usr/share/{path}")));
        tools::run(&mut unpack)?;
        let fields = tools::run(Command::new("dpkg-deb").arg("--field").arg(&file))?;
        let part = sbom::debian(&file, &fields)?;
        // Where scanners look for packages that were not installed by dpkg.
        put(folder, &format!("var/lib/dpkg/status.d/{}", part.name), &fields, 0o644)?;
        parts.push(part);
    }
    for name in APPLETS.split(' ') {
        link("busybox", &format!("usr/bin/{name}"))?;
    }
    // As update-alternatives does on Debian; proxier-demo requests the back end by name.
    for name in ["iptables", "ip6tables"] {
        for kind in ["", "-save", "-restore"] {
            link("xtables-nft-multi", &format!("usr/sbin/{name}{kind}"))?;
        }
    }
    Ok(parts)
}

/// Name of the file of an image.
pub(super) fn file(release: &Release, variant: &str) -> String {
    format!("proxier-demo-{}-{variant}-{}.oci.tar", release.version, release.arch.debian())
}

/// Name and tag of an image.
pub(super) fn reference(release: &Release, variant: &str) -> String {
    let suffix = if variant == "debian" { String::new() } else { format!("-{variant}") };
    format!("proxier-demo:{}{suffix}", release.version)
}

/// The name that a kubelet requests from containerd if a manifest names an image without a registry.
pub(super) fn resolved(name: &str) -> String {
    format!("docker.io/library/{name}")
}

/// Writes an image layout of these layers to a tar file, with the manifest that `docker load` reads.
fn write(release: &Release, variant: &str, layers: &[&Path], out: &Path) -> Result<()> {
    const OCI: &str = "application/vnd.oci.image";
    let scratch = tools::scratch()?;
    let layout = scratch.path().join("layout");
    let (mut diffs, mut blobs) = (Vec::new(), Vec::new());
    for folder in layers {
        let archive = scratch.path().join("layer");
        release.tar(folder, ".", &archive)?;
        diffs.push(digest(&archive)?);
        tools::run(Command::new("gzip").args(["--no-name", "--force"]).arg(&archive))?;
        blobs.push(blob(&layout, &format!("{OCI}.layer.v1.tar+gzip"), &fs::read(archive.with_extension("gz"))?)?);
    }
    let created = release.date("+%FT%TZ")?;
    let about = json!({
        "org.opencontainers.image.created": created,
        "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
        "org.opencontainers.image.revision": release.revision,
        "org.opencontainers.image.title": "proxier-demo",
        "org.opencontainers.image.version": release.version,
    });
    let config = json!({
        "architecture": release.arch.debian(),
        "os": "linux",
        "created": created,
        "config": {
            "Cmd": ["run"],
            "Entrypoint": ["/usr/local/bin/proxier-demo"],
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Labels": about,
        },
        "rootfs": {"type": "layers", "diff_ids": diffs},
        "history": diffs.iter().map(|_| json!({"created": created, "created_by": "cargo xtask dist"})).collect::<Vec<_>>(),
    });
    let config = blob(&layout, &format!("{OCI}.config.v1+json"), config.to_string().as_bytes())?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": format!("{OCI}.manifest.v1+json"),
        "config": config,
        "layers": blobs,
        "annotations": about,
    });
    let mut manifest = blob(&layout, &format!("{OCI}.manifest.v1+json"), manifest.to_string().as_bytes())?;
    manifest["platform"] = json!({"architecture": release.arch.debian(), "os": "linux"});
    // containerd names the image by the first and adds nothing to it; skopeo and umoci find it by the second.
    manifest["annotations"] = json!({
        "io.containerd.image.name": resolved(&reference(release, variant)),
        "org.opencontainers.image.ref.name": reference(release, variant),
    });
    let path = |blob: &Value| {
        format!("blobs/sha256/{}", blob["digest"].as_str().unwrap_or_default().trim_start_matches("sha256:"))
    };
    let docker = json!([{
        "Config": path(&config),
        "Layers": blobs.iter().map(path).collect::<Vec<_>>(),
        "RepoTags": [reference(release, variant)],
    }]);
    put(&layout, "manifest.json", docker.to_string(), 0o644)?;
    let index = json!({"schemaVersion": 2, "mediaType": format!("{OCI}.index.v1+json"), "manifests": [manifest]});
    put(&layout, "index.json", index.to_string(), 0o644)?;
    put(&layout, "oci-layout", json!({"imageLayoutVersion": "1.0.0"}).to_string(), 0o644)?;
    release.tar(&layout, ".", &out.join(file(release, variant)))
}

/// Writes a blob; gives its descriptor.
fn blob(layout: &Path, kind: &str, bytes: &[u8]) -> Result<Value> {
    put(layout, "blob", bytes, 0o644)?;
    let (from, digest) = (layout.join("blob"), digest(&layout.join("blob"))?);
    fs::create_dir_all(layout.join("blobs/sha256"))?;
    fs::rename(from, layout.join("blobs").join(digest.replace(':', "/")))?;
    Ok(json!({"mediaType": kind, "digest": digest, "size": bytes.len()}))
}

/// Digest of a file, as OCI writes it.
pub(super) fn digest(file: &Path) -> Result<String> {
    Ok(format!("sha256:{}", sha256(file)?))
}

pub(super) fn sha256(file: &Path) -> Result<String> {
    let printed = tools::run(Command::new("sha256sum").arg(file))?;
    Ok(printed.split_whitespace().next().unwrap_or_default().to_owned())
}
