//! SBOM of an image in SPDX 2.3: crates linked by cargo, libraries inside a static program, and Debian's packages.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use fs_err as fs;
use serde_json::{Value, json};

use super::{Release, cross_root, image, source};
use crate::{cargo, tools};

/// Licences of Debian's packages, whose copyright files have them in the authors' words. The image includes these
/// files.
const LICENCES: &[(&str, &str)] = &[
    ("base-files", "GPL-2.0-or-later"),
    ("busybox-static", "GPL-2.0-only"),
    ("dash", "BSD-3-Clause AND GPL-2.0-or-later"),
    ("ipset", "GPL-2.0-only"),
    ("iptables", "GPL-2.0-only AND GPL-2.0-or-later AND Artistic-2.0"),
    ("kmod", "GPL-2.0-or-later AND LGPL-2.1-or-later"),
    ("libc6", "LGPL-2.1-or-later"),
    ("libgcc-s1", "GPL-3.0-or-later WITH GCC-exception-3.1"),
    ("libip4tc2", "GPL-2.0-or-later"),
    ("libip6tc2", "GPL-2.0-or-later"),
    ("libipset13", "GPL-2.0-only"),
    ("libkmod2", "LGPL-2.1-or-later"),
    ("liblzma5", PUBLIC_DOMAIN),
    ("libmnl0", "LGPL-2.1-or-later"),
    ("libnetfilter-conntrack3", "GPL-2.0-or-later"),
    ("libnfnetlink0", "GPL-2.0-or-later"),
    ("libnftnl11", "GPL-2.0-or-later"),
    ("libssl3", "Apache-2.0"),
    ("libxtables12", "GPL-2.0-only AND GPL-2.0-or-later"),
    ("libzstd1", "BSD-3-Clause OR GPL-2.0-only"),
    ("netbase", "GPL-2.0-only"),
];

/// SPDX has no identifier for it.
const PUBLIC_DOMAIN: &str = "LicenseRef-public-domain";

/// What is not known.
const UNKNOWN: &str = "NOASSERTION";

/// A crate or package in an image.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    pub(super) name: String,
    version: String,
    /// Package URL.
    url: String,
    /// SPDX expression.
    licence: String,
    sha256: Option<String>,
}

/// Everything in the program.
pub(super) fn program(release: &Release) -> Result<Vec<Part>> {
    Ok([crates(release)?, linked(release)?].concat())
}

/// The crates in the program, with their checksums from Cargo.lock.
fn crates(release: &Release) -> Result<Vec<Part>> {
    let options =
        "tree --locked --package proxier-demo --edges normal,no-proc-macro --prefix none --format {p}|{l} --target";
    let printed = tools::run(cargo::command().args(options.split(' ')).arg(release.arch.target()))?;
    let lock = source("Cargo.lock")?;
    let parts: BTreeSet<Part> = printed.lines().filter_map(|line| a_crate(line, &lock)).collect();
    Ok(parts.into_iter().collect())
}

/// A line of `cargo tree`: `NAME vVERSION[ (FOLDER)]|LICENCE[ (*)]`.
fn a_crate(line: &str, lock: &str) -> Option<Part> {
    let (package, licence) = line.trim_end_matches(" (*)").split_once('|')?;
    let mut words = package.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    let checksum = lock.split("\n\n").find_map(|entry| {
        let is_it = entry.contains(&format!("\nname = \"{name}\"\nversion = \"{version}\"\n"));
        entry.lines().filter(|_| is_it).find_map(|line| line.strip_prefix("checksum = \"")?.strip_suffix('"'))
    });
    // On the registry, crates with the names of this repository's crates belong to other authors.
    let kind = if checksum.is_some() { "cargo" } else { "generic" };
    Some(Part {
        name: name.to_owned(),
        version: version.to_owned(),
        url: format!("pkg:{kind}/{name}@{version}"),
        licence: licence.replace('/', " OR "),
        sha256: checksum.map(str::to_owned),
    })
}

/// What a static program contains of the C library, the compiler and Rust, which cargo does not list.
fn linked(release: &Release) -> Result<Vec<Part>> {
    let part = |name: &str, version: &str, licence: &str, sha256| Part {
        name: name.to_owned(),
        version: version.to_owned(),
        url: format!("pkg:generic/{name}@{version}"),
        licence: licence.to_owned(),
        sha256,
    };
    if release.is_given {
        // Its build is unknown.
        let libc = release.is_static.then(|| part("c-library", UNKNOWN, UNKNOWN, None));
        return Ok([part("rust-std", UNKNOWN, "MIT OR Apache-2.0", None)].into_iter().chain(libc).collect());
    }
    // The compiler of another root directory prints file names below that.
    let root = if release.arch.is_native() { None } else { Some(cross_root(release.arch)?) };
    let printed = |words: &[&str]| match &root {
        Some(root) => tools::run(Command::new("chroot").arg(root).args(words)),
        None => tools::run(Command::new("env").args(words)),
    };
    let compiler = root.as_ref().map_or_else(|| "cc".to_owned(), |_| format!("{}-linux-gnu-gcc", release.arch.rust()));
    let rustc = if root.is_some() { printed(&["rustc", "--version"])? } else { cargo::rustc_version()? };
    let rustc = rustc.split(' ').nth(1).context("rustc --version")?;
    let mut parts = vec![part("rust-std", rustc, "MIT OR Apache-2.0", None)];
    for (name, archive, licence) in
        [("glibc", "libc.a", "LGPL-2.1-or-later"), ("libgcc", "libgcc_eh.a", "GPL-3.0-or-later WITH GCC-exception-3.1")]
    {
        let file = printed(&[&compiler, &format!("-print-file-name={archive}")])?;
        let inside = file.trim().trim_start_matches('/');
        let file = root.as_deref().unwrap_or(Path::new("/")).join(inside);
        let file = fs::canonicalize(&file).with_context(|| format!("{compiler} has no {archive}"))?;
        let version = owner(&file, root.as_deref()).map_or_else(|| UNKNOWN.to_owned(), |(_, version)| version);
        parts.push(part(name, &version, licence, Some(image::sha256(&file)?)));
    }
    Ok(parts)
}

/// The Debian package that owns a file, and its version; `None` on another distribution.
fn owner(file: &Path, root: Option<&Path>) -> Option<(String, String)> {
    let inside = root.map_or(file, |root| file.strip_prefix(root).unwrap_or(file));
    let database = root.unwrap_or(Path::new("/")).join("var/lib/dpkg");
    let query = |words: &[&str]| {
        tools::run(Command::new("dpkg-query").arg(format!("--admindir={}", database.display())).args(words)).ok()
    };
    // If /lib is a link, packages may know the file by either name.
    let names = [Path::new("/").join(inside), Path::new("/").join(inside.strip_prefix("/usr").unwrap_or(inside))];
    let listed = names.iter().find_map(|name| query(&["--search", &name.display().to_string()]))?;
    let package = listed.split(": ").next()?.to_owned();
    let version = query(&["--show", "--showformat=${Version}", &package])?;
    Some((package.split(':').next()?.to_owned(), version))
}

/// The packages of these files, which the image gets from this machine.
pub(super) fn libraries(files: &[PathBuf]) -> Result<Vec<Part>> {
    let parts = files.iter().map(|file| {
        let (name, version) = owner(&fs::canonicalize(file)?, None).unwrap_or_else(|| {
            (file.file_name().unwrap_or_default().to_string_lossy().into_owned(), UNKNOWN.to_owned())
        });
        let licence = licence(&name).unwrap_or(UNKNOWN).to_owned();
        Ok(Part {
            url: format!("pkg:generic/{name}@{version}"),
            name,
            version,
            licence,
            sha256: Some(image::sha256(file)?),
        })
    });
    parts.collect()
}

fn licence(package: &str) -> Option<&'static str> {
    LICENCES.iter().find(|(name, _)| *name == package).map(|(_, licence)| *licence)
}

/// A package by its file and its fields.
pub(super) fn debian(file: &Path, fields: &str) -> Result<Part> {
    let sha256 = Some(image::sha256(file)?);
    let part = of_fields(fields);
    let licence = licence(&part.name).with_context(|| format!("no licence of {} in LICENCES", part.name))?;
    Ok(Part { licence: licence.to_owned(), sha256, ..part })
}

fn of_fields(fields: &str) -> Part {
    let field =
        |name: &str| fields.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned();
    let (name, version) = (field("Package:"), field("Version:"));
    let url = format!("pkg:deb/debian/{name}@{}?arch={}", version.replace('+', "%2B"), field("Architecture:"));
    Part { name, version, url, licence: UNKNOWN.to_owned(), sha256: None }
}

pub(super) fn document(release: &Release, parts: &[Part]) -> Result<String> {
    let package = |(number, part): (usize, &Part)| {
        let mut package = json!({
            "SPDXID": format!("SPDXRef-{number}"),
            "name": part.name,
            "versionInfo": part.version,
            "downloadLocation": UNKNOWN,
            "filesAnalyzed": false,
            "licenseConcluded": UNKNOWN,
            "licenseDeclared": part.licence,
            "copyrightText": UNKNOWN,
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": part.url}],
        });
        if let Some(sum) = &part.sha256 {
            package["checksums"] = json!([{"algorithm": "SHA256", "checksumValue": sum}]);
        }
        package
    };
    let packages: Vec<Value> = parts.iter().enumerate().map(package).collect();
    let described: Vec<String> = (0..parts.len()).map(|number| format!("SPDXRef-{number}")).collect();
    let document = json!({
        "SPDXID": "SPDXRef-DOCUMENT",
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "name": format!("proxier-demo-{}", release.version),
        "documentNamespace": format!("urn:proxier-demo:{}:{}:{}:{}", release.version, release.revision, release.arch.debian(), parts.len()),
        "creationInfo": {"created": release.date("+%FT%TZ")?, "creators": ["Tool: proxier-demo-xtask"]},
        "packages": packages,
        "documentDescribes": described,
        "hasExtractedLicensingInfos": [{"licenseId": PUBLIC_DOMAIN, "extractedText": "This code has been put in the public domain."}],
    });
    Ok(serde_json::to_string_pretty(&document)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_of_this_repository_are_not_from_the_registry() {
        let lock = "[[package]]\nname = \"ipvs\"\nversion = \"0.1.0\"\ndependencies = [\n]\n\n\
            [[package]]\nname = \"syn\"\nversion = \"2.0.1\"\nsource = \"registry\"\nchecksum = \"ab\"\n\n";
        let own = a_crate("ipvs v0.1.0 (/source/ipvs)|MIT OR Apache-2.0 (*)", lock).unwrap();
        assert_eq!((own.url.as_str(), own.sha256), ("pkg:generic/ipvs@0.1.0", None));
        let other = a_crate("syn v2.0.1|MIT/Apache-2.0", lock).unwrap();
        assert_eq!((other.url.as_str(), other.sha256.as_deref()), ("pkg:cargo/syn@2.0.1", Some("ab")));
        assert_eq!((own.licence.as_str(), other.licence.as_str()), ("MIT OR Apache-2.0", "MIT OR Apache-2.0"));
        assert_eq!(a_crate("", lock), None);
    }

    #[test]
    fn a_package_of_debian_has_its_own_address() {
        let part = of_fields("Package: libssl3\nSource: openssl\nVersion: 3.0.17-1~deb12u2+b1\nArchitecture: arm64\n");
        assert_eq!(part.url, "pkg:deb/debian/libssl3@3.0.17-1~deb12u2%2Bb1?arch=arm64");
    }

    /// The program itself plays no part: a static one is built for a release only.
    #[test]
    fn a_static_program_has_the_libraries_that_this_machine_links_it_with() {
        let scratch = tools::scratch().unwrap();
        let release = Release {
            arch: super::super::Arch::native().unwrap(),
            version: env!("CARGO_PKG_VERSION"),
            revision: "0123456789ab".to_owned(),
            epoch: "0".to_owned(),
            is_static: true,
            is_given: false,
            program: scratch.path().join("none"),
            _scratch: scratch,
        };
        let parts = program(&release).unwrap();
        for name in ["rust-std", "glibc", "libgcc", "tokio", "proxier-core"] {
            let part = parts.iter().find(|part| part.name == name).unwrap_or_else(|| panic!("no {name}: {parts:?}"));
            assert!(part.version.starts_with(|c: char| c.is_ascii_digit()), "{part:?}");
            assert!(part.licence != UNKNOWN && !part.licence.is_empty(), "{part:?}");
            let is_archive = ["glibc", "libgcc", "tokio"].contains(&name);
            assert_eq!(part.sha256.as_ref().map(String::len), is_archive.then_some(64), "{part:?}");
        }
        let document: Value = serde_json::from_str(&document(&release, &parts).unwrap()).unwrap();
        assert_eq!(document["packages"].as_array().unwrap().len(), parts.len());
    }

    #[test]
    fn each_package_of_the_image_has_a_licence() {
        let without: Vec<&str> = image::PACKAGES.split_whitespace().filter(|name| licence(name).is_none()).collect();
        assert_eq!(without, [""; 0]);
    }
}
