//! `cargo xtask install-yaml`: the manifests as one file, and as a chart's template.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use super::{DEPLOY, Release, image, put, source};
use crate::tools;

/// Write examples/deploy/install.yaml and the chart's template from the manifests
///
/// Writes examples/deploy/install.yaml, one file for `kubectl apply -f`, and examples/deploy/chart/templates/proxier-demo.yaml, both from the
/// resources of examples/deploy/kubernetes/kustomization.yaml.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Writes nothing: exit code 1 when one is not current
    #[arg(long)]
    check: bool,
}

/// Text of the manifests that is a value of the chart, and what it becomes there.
const VALUES: [(&str, &str); 13] = [
    ("resources:\n          requests: {cpu: 20m, memory: 32Mi}", "resources: {{ .Values.resources | toJson }}"),
    ("image: proxier-demo:@TAG@", "image: {{ .Values.image | toJson }}"),
    (
        "      hostNetwork: true",
        "      {{- with .Values.imagePullSecrets }}\n      imagePullSecrets: {{ toJson . }}\n      {{- end }}\n      hostNetwork: true",
    ),
    (
        "nodeSelector: {kubernetes.io/os: linux, service-proxy: proxier-demo}",
        "nodeSelector: {{ .Values.nodeSelector | toJson }}",
    ),
    ("tolerations:\n      - operator: Exists", "tolerations: {{ .Values.tolerations | toJson }}"),
    ("configMap: {name: kube-proxy}", "configMap: {name: {{ .Values.configMap | toJson }} }"),
    ("priorityClassName: system-node-critical", "priorityClassName: {{ .Values.priorityClassName | toJson }}"),
    (
        "type: RollingUpdate\n    rollingUpdate: {maxUnavailable: 1}",
        "type: {{ .Values.updateStrategy | toJson }}\n    rollingUpdate: {maxUnavailable: {{ .Values.maxUnavailable | toJson }} }",
    ),
    // The probe before a takeover has other options than the proxy.
    (
        "        - run\n        - --config=/var/lib/kube-proxy/config.conf\n        - --hostname-override=$(NODE_NAME)",
        "        - run\n        - --config=/var/lib/kube-proxy/config.conf\n        - --hostname-override=$(NODE_NAME)\n        \
         {{- range .Values.extraArgs }}\n        - {{ toJson . }}\n        {{- end }}",
    ),
    // Of objects, then of pods.
    ("\nmetadata:\n", "\nmetadata:\n  {{- with .Values.annotations }}\n  annotations: {{ toJson . }}\n  {{- end }}\n"),
    (
        "\n  labels: {",
        "\n  labels: { {{- range $name, $value := .Values.labels }} {{ toJson $name }}: {{ toJson $value }}, {{- end }} ",
    ),
    (
        "\n    metadata:\n",
        "\n    metadata:\n      {{- with .Values.podAnnotations }}\n      annotations: {{ toJson . }}\n      {{- end }}\n",
    ),
    (
        "\n      labels: {",
        "\n      labels: { {{- range $name, $value := .Values.podLabels }} {{ toJson $name }}: {{ toJson $value }}, {{- end }} ",
    ),
];

/// Files of the chart. Those below `monitoring` are links to the folder of that name.
const CHART: [&str; 8] = [
    "Chart.yaml",
    "values.yaml",
    "values.schema.json",
    "templates/proxier-demo.yaml",
    "templates/monitoring.yaml",
    "monitoring/alerts.yaml",
    "monitoring/dashboard.json",
    "monitoring/podmonitor.yaml",
];

/// Generated files below the directory `DEPLOY`, and their contents.
fn made() -> Result<[(&'static str, String); 2]> {
    let read = |name: &str| source(&format!("{DEPLOY}/kubernetes/{name}"));
    let kustomization = read("kustomization.yaml")?;
    let tag = kustomization.lines().find_map(|line| line.trim().strip_prefix("newTag: "));
    let tag = tag.context("kustomization.yaml names no newTag")?;
    // Resources are the list items that are not keys.
    let resources = kustomization.lines().filter_map(|line| line.strip_prefix("- ").filter(|file| !file.contains(':')));
    let documents: Result<Vec<String>> = resources.map(read).collect();
    let documents = documents?.join("---\n").replace("image: proxier-demo\n", "image: proxier-demo:@TAG@\n");
    let mut template = documents.clone();
    for (text, value) in VALUES {
        ensure!(template.contains(text), "the manifests have no {text:?}, which is a value of the chart");
        template = template.replace(text, value);
    }
    let from = "# Made from kubernetes/ by `cargo xtask install-yaml`.\n";
    Ok([
        ("install.yaml", format!("{from}{}", documents.replace("@TAG@", tag))),
        ("chart/templates/proxier-demo.yaml", format!("{from}{template}")),
    ])
}

/// The images of install.yaml and of the chart, as a container runtime names them.
pub(super) fn images() -> Result<Vec<String>> {
    let texts = [source(&format!("{DEPLOY}/install.yaml"))?, source(&format!("{DEPLOY}/chart/values.yaml"))?];
    let lines = texts.iter().flat_map(|text| text.lines());
    let names: BTreeSet<_> = lines.filter_map(|line| line.trim().strip_prefix("image: ")).collect();
    Ok(names.into_iter().map(image::resolved).collect())
}

/// Files that differ from what would be generated.
fn outdated() -> Result<Vec<&'static str>> {
    let is_current = |(name, text): &(&str, String)| source(&format!("{DEPLOY}/{name}")).is_ok_and(|now| now == *text);
    Ok(made()?.into_iter().filter(|file| !is_current(file)).map(|(name, _)| name).collect())
}

pub(crate) fn main(options: &Options) -> Result<ExitCode> {
    if !options.check {
        for (name, text) in made()? {
            put(&tools::repository().join(DEPLOY), name, text, 0o644)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let outdated = outdated()?;
    if !outdated.is_empty() {
        eprintln!("not current: {}; run `cargo xtask install-yaml`", outdated.join(", "));
    }
    Ok(ExitCode::from(u8::from(!outdated.is_empty())))
}

/// The packed chart.
pub(super) fn chart(out: &Path) -> PathBuf {
    out.join(concat!("proxier-demo-", env!("CARGO_PKG_VERSION"), ".tgz"))
}

/// Puts install.yaml, the files applied with it, and the packed chart into `out`.
pub(super) fn pack(release: &Release, out: &Path) -> Result<()> {
    let outdated = outdated()?;
    ensure!(outdated.is_empty(), "not current: {}; run `cargo xtask install-yaml`", outdated.join(", "));
    for (file, mode) in [
        ("install.yaml", 0o644),
        ("kubernetes/kube-proxy-patch.yaml", 0o644),
        ("kubernetes/take-over", 0o755),
        ("monitoring/podmonitor.yaml", 0o644),
    ] {
        put(out, file.rsplit('/').next().unwrap_or(file), source(&format!("{DEPLOY}/{file}"))?, mode)?;
    }
    let scratch = tools::scratch()?;
    for file in CHART {
        let text = source(&format!("{DEPLOY}/chart/{file}"))?;
        put(scratch.path(), &format!("chart/proxier-demo/{file}"), text, 0o644)?;
    }
    let archive = scratch.path().join("chart.tar");
    // Helm knows no `./` in front of names.
    release.tar(&scratch.path().join("chart"), "proxier-demo", &archive)?;
    tools::run(Command::new("gzip").args(["--no-name", "--best"]).arg(&archive))?;
    Ok(fs::write(chart(out), fs::read(archive.with_extension("tar.gz"))?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_are_current_and_of_this_version() {
        assert_eq!(outdated().unwrap(), [""; 0], "run `cargo xtask install-yaml`");
        let [chart, values] = ["Chart", "values"].map(|name| source(&format!("{DEPLOY}/chart/{name}.yaml")).unwrap());
        let version = env!("CARGO_PKG_VERSION");
        assert!(chart.contains(&format!("\nversion: {version}\nappVersion: {version}\n")), "{chart}");
        assert!(values.contains(&format!("\nimage: proxier-demo:{version}\n")), "{values}");
        assert!(made().unwrap()[0].1.contains(&format!("image: proxier-demo:{version}\n")));
    }
}
