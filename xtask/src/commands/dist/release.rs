//! What is said about the files of a release: checksums, a signature of these, and where the files come from.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::{Value, json};

use super::{Release, image, put};
use crate::{cargo, tools};

/// Names of signatures of `SHA256SUMS`: minisign's, and gpg's.
pub(super) const SIGNATURES: [&str; 2] = ["SHA256SUMS.minisig", "SHA256SUMS.asc"];

/// Writes the provenance of all files in the folder, and `SHA256SUMS`.
pub(super) fn describe(releases: &[Release], folder: &Path) -> Result<()> {
    let version = releases.first().context("nothing was packed")?.version;
    let sums = checksums(folder)?;
    let provenance = serde_json::to_string_pretty(&statement(releases, &sums)?)?;
    put(folder, &format!("proxier-demo-{version}.provenance.json"), provenance, 0o644)?;
    put(folder, "SHA256SUMS", checksums(folder)?, 0o644)
}

fn checksums(folder: &Path) -> Result<String> {
    tools::run(Command::new("sh").current_dir(folder).env("LC_ALL", "C").args(["-c", "sha256sum -- *"]))
}

/// An in-toto statement with SLSA's predicate. It has no times and no number of the build: the same commit gives the same bytes.
fn statement(releases: &[Release], sums: &str) -> Result<Value> {
    let subjects = sums.lines().filter_map(|line| line.split_once("  "));
    let subjects: Vec<Value> = subjects.map(|(sum, name)| json!({"name": name, "digest": {"sha256": sum}})).collect();
    let first = releases.first().context("nothing was packed")?;
    let (commit, is_dirty) = match first.revision.strip_suffix("-dirty") {
        Some(commit) => (commit, true),
        None => (first.revision.as_str(), false),
    };
    let head = tools::run(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(tools::repository()));
    let head = head.unwrap_or_default();
    let mut repository = json!({"uri": "urn:proxier-demo:source", "name": commit});
    if !commit.is_empty() && head.starts_with(commit) {
        repository["digest"] = json!({"gitCommit": head.trim()});
    }
    if is_dirty {
        repository["annotations"] = json!({"dirty": "files differ from the commit"});
    }
    let mut materials = vec![repository];
    let lock = tools::repository().join("Cargo.lock");
    materials.push(json!({"name": "Cargo.lock", "digest": {"sha256": image::sha256(&lock)?}}));
    for release in releases.iter().filter(|release| release.is_given) {
        // Nobody knows how it was built.
        materials.push(json!({"name": "proxier-demo", "digest": {"sha256": image::sha256(&release.program)?}}));
    }
    let archs: Vec<&str> = releases.iter().map(|release| release.arch.debian()).collect();
    Ok(json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:proxier-demo:cargo-xtask-dist:v1",
                "externalParameters": {"arch": archs},
                "resolvedDependencies": materials,
            },
            "runDetails": {
                "builder": {
                    "id": "urn:proxier-demo:whoever-signs-SHA256SUMS",
                    "version": {"rustc": cargo::rustc_version()?.trim(), "xtask": env!("CARGO_PKG_VERSION")},
                },
            },
        },
    }))
}

/// Signs `SHA256SUMS` in the folder. The program asks for the key's password where it has one.
pub(super) fn sign(folder: &Path, key: &str) -> Result<()> {
    let is_signed = tools::succeeds(signer(key)?.arg(folder.join("SHA256SUMS")))?;
    ensure!(is_signed, "SHA256SUMS is not signed: see above what is wrong with the key {key}");
    Ok(())
}

/// The program that signs with a key, without the file.
fn signer(key: &str) -> Result<Command> {
    let is_file = Path::new(key).is_file();
    let (program, words) = if is_file {
        ("minisign", ["-S", "-s", key, "-m"])
    } else {
        ("gpg", ["--armor", "--detach-sign", "--local-user", key])
    };
    tools::ensure(if is_file { &[("minisign", "minisign")] } else { &[("gpg", "gpg")] })?;
    let mut command = Command::new(program);
    command.args(words);
    Ok(command)
}

/// Checks by gpgv and minisign that signatures of both kinds hold, and only for what was signed; and that the provenance is of these files.
pub(super) fn check(folder: &Path) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let provenance = fs::read_to_string(folder.join(format!("proxier-demo-{version}.provenance.json")))?;
    let provenance: Value = serde_json::from_str(&provenance)?;
    let sums = fs::read_to_string(folder.join("SHA256SUMS"))?;
    let subjects = provenance["subject"].as_array().context("no subjects")?;
    let of = |subject: &Value, path: &str| subject.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    let named: Vec<String> =
        subjects.iter().map(|file| format!("{}  {}", of(file, "/digest/sha256"), of(file, "/name"))).collect();
    let others: Vec<&str> = sums.lines().filter(|line| !named.iter().any(|named| named == line)).collect();
    let is_alone = matches!(others[..], [line] if line.ends_with(".provenance.json"));
    ensure!(is_alone && named.len() + 1 == sums.lines().count(), "the provenance is of other files: {others:?}");

    let scratch = tools::scratch()?;
    let inside = |path: &str| scratch.path().join(path).display().to_string();
    let (file, secret, public, home, ring) =
        (inside("SHA256SUMS"), inside("secret"), inside("public"), inside("home"), inside("ring.gpg"));
    fs::copy(folder.join("SHA256SUMS"), &file)?;
    fs::create_dir(&home)?;
    tools::run(Command::new("minisign").args(["-G", "-W", "-p", &public, "-s", &secret]))?;
    let user = "release@proxier-demo.invalid";
    let gpg = |words: &[&str]| {
        tools::run(Command::new("gpg").env("GNUPGHOME", &home).args(["--batch", "--quiet"]).args(words))
    };
    gpg(&["--passphrase", "", "--pinentry-mode", "loopback", "--quick-generate-key", user])?;
    gpg(&["--output", &ring, "--export", user])?;
    let signed = [secret.as_str(), user]
        .into_iter()
        .try_for_each(|key| tools::run(signer(key)?.env("GNUPGHOME", &home).arg(&file)).map(drop));
    // Its agent would go on until it finds that its folder is gone.
    tools::run(Command::new("gpgconf").env("GNUPGHOME", &home).args(["--kill", "all"]))?;
    signed?;
    let [minisig, asc] = SIGNATURES.map(inside);
    let mut verify = [Command::new("minisign"), Command::new("gpgv")];
    verify[0].args(["-V", "-q", "-p", &public, "-m", &file, "-x", &minisig]);
    verify[1].args(["--quiet", "--keyring", &ring, &asc, &file]);
    verify.iter_mut().try_for_each(|command| tools::run(command).map(drop))?;
    fs::write(&file, sums.replacen(['0', '1'], "2", 1))?;
    for mut command in verify {
        ensure!(
            tools::run(&mut command).is_err(),
            "{} accepts a file that was changed",
            command.get_program().display()
        );
    }
    Ok(())
}
