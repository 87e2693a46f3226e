//! The packed chart, rendered by Helm's own code.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use super::{manifests, put};
use crate::tools;

/// The Python package with Helm's own code; Debian has no Helm.
const HELM: (&str, &str) = ("helm-python-sdk", "0.2.2");

/// A value other than the default for each value of the chart.
const VALUES: &str = r#"{"image": "registry.example/p@sha256:00", "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"service-proxy": null, "pool": "a"}, "tolerations": [{"key": "only", "operator": "Exists"}],
    "configMap": "mine", "extraArgs": ["-v=2", "--a=b \"c\": d"], "resources": {"requests": {"cpu": "33m"}, "limits": {"memory": "1Gi"}},
    "priorityClassName": "first", "updateStrategy": "OnDelete", "maxUnavailable": "10%",
    "labels": {"team": "net", "number": "1"}, "annotations": {"a/b": "c: {d}"}, "podLabels": {"tier": "x"}, "podAnnotations": {"p": "q"},
    "monitoring": {"podMonitor": true, "prometheusRule": true, "dashboard": true, "labels": {"release": "prometheus"}}}"#;
/// Text in the objects that are rendered with these values, and how many times it is there.
const RENDERED: [(&str, usize); 21] = [
    ("        image: registry.example/p@sha256:00\n", 5),
    ("      imagePullSecrets:\n      - name: registry\n", 2),
    ("      nodeSelector:\n        kubernetes.io/os: linux\n        pool: a\n", 1),
    ("      tolerations:\n      - key: only\n        operator: Exists\n", 2),
    ("      - configMap:\n          name: mine\n", 2),
    ("        - --hostname-override=$(NODE_NAME)\n        - -v=2\n        - '--a=b \"c\": d'\n", 1),
    ("            cpu: 33m\n", 2),
    ("            memory: 1Gi\n", 2),
    ("      priorityClassName: first\n", 2),
    ("      maxUnavailable: 10%\n    type: OnDelete\n", 1),
    ("\n    number: \"1\"\n", 8),
    ("\n    team: net\n", 8),
    ("\n    a/b: 'c: {d}'\n", 8),
    ("\n        tier: x\n", 2),
    ("\n        p: q\n", 2),
    ("\n    release: prometheus\n", 3),
    ("kind: PodMonitor\n", 1),
    ("kind: PrometheusRule\n", 1),
    ("    - alert: ProxierDemoUnhealthy\n", 1),
    ("kind: ConfigMap\n", 1),
    ("  proxier-demo.json: ", 1),
];
/// Values that the schema rejects, and a word of the error.
const REFUSED: [(&str, &str); 6] = [
    (r#"{"imge": "x"}"#, "'imge'"),
    (r#"{"image": "proxier-demo:0.2.0-scratch"}"#, "'/image'"),
    (r#"{"maxUnavailable": 0}"#, "'/maxUnavailable'"),
    (r#"{"labels": {"k8s-app": "mine"}}"#, "'/labels'"),
    (r#"{"podAnnotations": {"a": 1}}"#, "'/podAnnotations/a'"),
    (r#"{"monitoring": {"podMonitors": true}}"#, "'podMonitors'"),
];

/// Renders the packed chart with Helm. Returns the reason if Helm is not available.
pub(super) fn check(out: &Path) -> Result<Option<String>> {
    let (name, version) = HELM;
    let library = tools::cache()?.join(format!("{name}-{version}"));
    if !library.join("helm_python").exists() {
        let mut install = Command::new("pip3");
        install.args(["install", "--quiet", "--no-deps", "--target"]).arg(&library);
        if let Err(error) = tools::run(install.arg(format!("{name}=={version}"))) {
            return Ok(Some(format!("{error:#}")));
        }
    }
    let scratch = tools::scratch()?;
    let script = tools::repository().join("xtask/src/commands/dist/helm.py");
    let chart = manifests::chart(out);
    let helm = |values: &str| {
        tools::run(Command::new("python3").env("PYTHONPATH", &library).arg(&script).arg(&chart).arg(values))
    };
    let rendered = |values: &str| {
        put(scratch.path(), "chart.yaml", helm(values)?, 0o644)?;
        put(scratch.path(), "kustomization.yaml", "resources: [chart.yaml]\n", 0o644)?;
        tools::run(Command::new("kubectl").arg("kustomize").arg(scratch.path()))
    };
    let install = tools::run(Command::new("kubectl").arg("kustomize").arg(out))?;
    ensure!(rendered("{}")? == install, "the chart with its own values is not install.yaml");
    let all = rendered(VALUES)?;
    for (text, count) in RENDERED {
        ensure!(all.matches(text).count() == count, "{text:?} is not {count} times in the rendered chart:\n{all}");
    }
    for (values, word) in REFUSED {
        let refused = helm(values).err().map(|error| format!("{error:#}")).unwrap_or_default();
        ensure!(refused.contains(word), "{values} is not refused for {word}, but: {refused:?}");
    }
    Ok(None)
}
