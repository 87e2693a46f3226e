//! `cargo xtask install-yaml`: the manifests as one file, and as the template of a chart.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use super::{DEPLOY, Release, put};
use crate::error::{Context as _, Error, Result};
use crate::scratch::Scratch;
use crate::tools;

pub(crate) const HELP: &str = "\
Usage: cargo xtask install-yaml [--check]

Writes examples/deploy/install.yaml, one file for `kubectl apply -f`, and examples/deploy/chart/templates/proxier-demo.yaml, both from the
resources of examples/deploy/kubernetes/kustomization.yaml. With --check nothing is written: exit code 1 when one is not current.
";

/// Text of the manifests that is a value of the chart.
const VALUES: [(&str, &str); 7] = [
    ("resources:\n          requests: {cpu: 20m, memory: 32Mi}", "resources: {{ .Values.resources | toJson }}"),
    ("image: proxier-demo:@TAG@", "image: {{ .Values.image | toJson }}"),
    (
        "nodeSelector: {kubernetes.io/os: linux, service-proxy: proxier-demo}",
        "nodeSelector: {{ .Values.nodeSelector | toJson }}",
    ),
    ("configMap: {name: kube-proxy}", "configMap: {name: {{ .Values.configMap | toJson }} }"),
    ("value: \"false\"}", "value: {{ .Values.strictARP | toJson }} }"),
    ("priorityClassName: system-node-critical", "priorityClassName: {{ .Values.priorityClassName | toJson }}"),
    ("{maxUnavailable: 1}", "{maxUnavailable: {{ .Values.maxUnavailable | toJson }} }"),
];

/// Files that are made, below the folder `DEPLOY`, and their contents.
fn made(root: &Path) -> Result<[(&'static str, String); 2]> {
    let read = |name: &str| {
        let path = root.join(DEPLOY).join("kubernetes").join(name);
        fs::read_to_string(&path).context(|| format!("cannot read {}", path.display()))
    };
    let kustomization = read("kustomization.yaml")?;
    let tag = kustomization.lines().find_map(|line| line.trim().strip_prefix("newTag: "));
    let tag = tag.ok_or_else(|| Error::new("kustomization.yaml names no newTag"))?;
    // Resources are the items that are no keys.
    let resources = kustomization.lines().filter_map(|line| line.strip_prefix("- ").filter(|file| !file.contains(':')));
    let documents: Result<Vec<String>> = resources.map(read).collect();
    let documents = documents?.join("---\n").replace("image: proxier-demo\n", "image: proxier-demo:@TAG@\n");
    let mut template = documents.clone();
    for (text, value) in VALUES {
        if !template.contains(text) {
            return Err(Error::new(format!("the manifests have no {text:?}, which is a value of the chart")));
        }
        template = template.replace(text, value);
    }
    let from = "# Made from kubernetes/ by `cargo xtask install-yaml`.\n";
    Ok([
        ("install.yaml", format!("{from}{}", documents.replace("@TAG@", tag))),
        ("chart/templates/proxier-demo.yaml", format!("{from}{template}")),
    ])
}

/// Files that are not as they would be made.
fn outdated(root: &Path) -> Result<Vec<&'static str>> {
    let is_current = |(name, text): &(&str, String)| {
        fs::read(root.join(DEPLOY).join(name)).is_ok_and(|bytes| bytes == text.as_bytes())
    };
    Ok(made(root)?.into_iter().filter(|file| !is_current(file)).map(|(name, _)| name).collect())
}

pub(crate) fn main(arguments: &[OsString]) -> Result<ExitCode> {
    let root = crate::commands::test::repository()?;
    match arguments {
        [] => {
            for (name, text) in made(&root)? {
                put(&root.join(DEPLOY), name, text, 0o644)?;
            }
            Ok(ExitCode::SUCCESS)
        }
        [check] if check == "--check" => {
            let outdated = outdated(&root)?;
            if !outdated.is_empty() {
                eprintln!("not current: {}; run `cargo xtask install-yaml`", outdated.join(", "));
            }
            Ok(ExitCode::from(u8::from(!outdated.is_empty())))
        }
        _ => Err(Error::usage("install-yaml takes --check or nothing")),
    }
}

/// Puts install.yaml, what is applied beside it, and the packed chart into `out`.
pub(super) fn pack(release: &Release, out: &Path) -> Result<()> {
    let outdated = outdated(&release.root)?;
    if !outdated.is_empty() {
        return Err(Error::new(format!("not current: {}; run `cargo xtask install-yaml`", outdated.join(", "))));
    }
    for (file, mode) in [
        ("install.yaml", 0o644),
        ("kubernetes/kube-proxy-patch.yaml", 0o644),
        ("kubernetes/take-over", 0o755),
        ("monitoring/podmonitor.yaml", 0o644),
    ] {
        put(out, file.rsplit('/').next().unwrap_or(file), release.source(&format!("{DEPLOY}/{file}"))?, mode)?;
    }
    let scratch = Scratch::new()?;
    for file in ["Chart.yaml", "values.yaml", "templates/proxier-demo.yaml"] {
        put(
            scratch.path(),
            &format!("chart/proxier-demo/{file}"),
            release.source(&format!("{DEPLOY}/chart/{file}"))?,
            0o644,
        )?;
    }
    let archive = scratch.path().join("chart.tar");
    release.tar(&scratch.path().join("chart"), &archive)?;
    tools::run(Command::new("gzip").args(["--no-name", "--best"]).arg(&archive))?;
    let bytes = fs::read(archive.with_extension("tar.gz")).context(|| "cannot read the chart".to_owned())?;
    put(out, &format!("proxier-demo-{}.tgz", release.version), bytes, 0o644)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_current_and_of_this_version() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        assert_eq!(outdated(&root).unwrap(), [""; 0], "run `cargo xtask install-yaml`");
        let chart = fs::read_to_string(root.join(DEPLOY).join("chart/Chart.yaml")).unwrap();
        let values = fs::read_to_string(root.join(DEPLOY).join("chart/values.yaml")).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        assert!(chart.contains(&format!("\nversion: {version}\nappVersion: {version}\n")), "{chart}");
        assert!(values.contains(&format!("\nimage: proxier-demo:{version}\n")), "{values}");
        assert!(made(&root).unwrap()[0].1.contains(&format!("image: proxier-demo:{version}\n")));
    }
}
