//! Parts of an image as SPDX 2.3: crates as cargo links them, and Debian's packages.

use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::{Value, json};

use super::{Release, source};
use crate::{cargo, tools};

/// Crate or package that an image has.
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

/// The crates in the program, with the checksums that Cargo.lock has.
pub(super) fn crates(release: &Release) -> Result<Vec<Part>> {
    let options =
        "tree --locked --package examples --edges normal,no-proc-macro --prefix none --format {p}|{l} --target";
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
    // On the registry the names of this repository's crates are others'.
    let kind = if checksum.is_some() { "cargo" } else { "generic" };
    Some(Part {
        name: name.to_owned(),
        version: version.to_owned(),
        url: format!("pkg:{kind}/{name}@{version}"),
        licence: licence.replace('/', " OR "),
        sha256: checksum.map(str::to_owned),
    })
}

/// A package by its fields. Its licences are in its copyright file.
pub(super) fn debian(fields: &str) -> Part {
    let field =
        |name: &str| fields.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned();
    let (name, version) = (field("Package:"), field("Version:"));
    let url = format!("pkg:deb/debian/{name}@{}?arch={}", version.replace('+', "%2B"), field("Architecture:"));
    Part { name, version, url, licence: "NOASSERTION".to_owned(), sha256: None }
}

/// The document.
pub(super) fn document(release: &Release, parts: &[Part]) -> Result<String> {
    let package = |(number, part): (usize, &Part)| {
        let mut package = json!({
            "SPDXID": format!("SPDXRef-{number}"),
            "name": part.name,
            "versionInfo": part.version,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": false,
            "licenseConcluded": "NOASSERTION",
            "licenseDeclared": part.licence,
            "copyrightText": "NOASSERTION",
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
    });
    Ok(serde_json::to_string_pretty(&document)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_of_this_repository_is_none_of_the_registrys() {
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
        let part = debian("Package: libssl3\nSource: openssl\nVersion: 3.0.17-1~deb12u2+b1\nArchitecture: arm64\n");
        assert_eq!(part.url, "pkg:deb/debian/libssl3@3.0.17-1~deb12u2%2Bb1?arch=arm64");
    }
}
