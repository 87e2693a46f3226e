//! Builds the Debian package with dpkg-deb.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use fs_err as fs;

use super::{DEPLOY, Release, put, sbom, source};
use crate::tools;

/// Files of the repository in the package: from, to, mode.
const FILES: [(&str, &str, u32); 9] = [
    ("debian/default", "etc/default/proxier-demo", 0o644),
    ("systemd/proxier-demo.service", "usr/lib/systemd/system/proxier-demo.service", 0o644),
    ("prepare-node", "usr/libexec/proxier-demo/prepare-node", 0o755),
    ("debian/copyright", "usr/share/doc/proxier-demo/copyright", 0o644),
    ("debian/lintian-overrides", "usr/share/lintian/overrides/proxier-demo", 0o644),
    ("debian/proxier-demo.8", "usr/share/man/man8/proxier-demo.8", 0o644),
    ("debian/postinst", "DEBIAN/postinst", 0o755),
    ("debian/prerm", "DEBIAN/prerm", 0o755),
    ("debian/postrm", "DEBIAN/postrm", 0o755),
];

/// Scripts that complete commands and options, by shell: to.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/proxier-demo"),
    ("zsh", "usr/share/zsh/vendor-completions/_proxier-demo"),
    ("fish", "usr/share/fish/vendor_completions.d/proxier-demo.fish"),
];

/// Name of the package's file.
pub(super) fn file(release: &Release) -> String {
    format!("proxier-demo_{}_{}.deb", release.version, release.arch.debian())
}

pub(super) fn pack(release: &Release, out: &Path) -> Result<()> {
    let scratch = tools::scratch()?;
    let folder = scratch.path().join("package");
    let licence = source("LICENSE-MIT")?;
    let licence: Vec<&str> = licence.lines().map(|line| if line.is_empty() { "." } else { line }).collect();
    let (manual, mit) = (release.date("+%B %d, %Y")?, format!(" {}", licence.join("\n ")));
    for (from, to, mode) in FILES {
        // What is built by hand is below /usr/local.
        let text = source(&format!("{DEPLOY}/{from}"))?
            .replace("/usr/local/sbin/prepare-node", "/usr/libexec/proxier-demo/prepare-node");
        let text = text.replace("/usr/local/bin/", "/usr/bin/").replace("@DATE@", &manual).replace("@MIT@", &mit);
        put(&folder, to, text, mode)?;
    }
    put(&folder, "usr/bin/proxier-demo", fs::read(&release.program)?, 0o755)?;
    // Completions come from the program, so it must run on this machine.
    for (shell, to) in COMPLETIONS.iter().filter(|_| release.arch.is_native()) {
        let script = tools::run(Command::new(&release.program).args(["completion", shell]))?;
        put(&folder, to, script, 0o644)?;
    }
    fs::create_dir_all(folder.join("etc/proxier-demo/manifests"))?;
    let parts = sbom::document(release, &sbom::program(release)?)?;
    put(&folder, "usr/share/doc/proxier-demo/sbom.spdx.json", parts, 0o644)?;
    let changes = format!(
        "proxier-demo ({}) unstable; urgency=medium\n\n  * Commit {}; CHANGELOG.md of the repository says what changed.\n\n -- {}  {}\n",
        release.version,
        release.revision,
        "The authors of proxier-demo <proxier-demo@packages.invalid>",
        release.date("+%a, %d %b %Y %T +0000")?
    );
    put(&folder, "usr/share/doc/proxier-demo/changelog", changes, 0o644)?;
    put(&folder, "DEBIAN/conffiles", "/etc/default/proxier-demo\n", 0o644)?;
    let line = "gzip --no-name --best usr/share/man/man8/* usr/share/doc/proxier-demo/changelog
        find . -path ./DEBIAN -prune -o -type f -printf '%P\\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums
        find . -type d -exec chmod 755 {} +
        find . -path ./DEBIAN -prune -o -printf '%y %s\n' |
            awk '{ size += $1 == \"f\" ? int(($2 + 1023) / 1024) : 1 } END { print size }'";
    let size = tools::run(Command::new("sh").current_dir(&folder).args(["-ec", line]).env("LC_ALL", "C"))?;
    let control = source(&format!("{DEPLOY}/debian/control"))?;
    let depends = if release.is_static { "" } else { "libc6, libgcc-s1" };
    let control = control.replace("@VERSION@", release.version).replace("@ARCHITECTURE@", release.arch.debian());
    let control = control.replace("@SIZE@", size.trim()).replace("@DEPENDS@", depends).replace("Depends: \n", "");
    put(&folder, "DEBIAN/control", control, 0o644)?;
    let mut build = Command::new("dpkg-deb");
    build.env("SOURCE_DATE_EPOCH", &release.epoch);
    build.args("--root-owner-group -Zxz -z2 --threads-max=1 --build".split(' '));
    tools::run(build.arg(&folder).arg(out.join(file(release)))).map(drop)
}
