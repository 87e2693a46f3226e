//! The files for Prometheus and Grafana below `deploy/monitoring`: they ask for metrics that the program serves, and alerts fire for
//! what they are about.
#![cfg(feature = "proxier-demo")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use examples::proxier_demo::status::metrics::Metrics;
use proxier_core::modes::Kind;
use proxier_core::modes::select::Asked;
use serde_json::Value;
use testkit::{Need, kernel_test};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/monitoring")
}

/// The names of all series that the program serves.
fn served() -> BTreeSet<String> {
    let mut metrics = Metrics::default();
    metrics.sync_duration.observe(Duration::from_secs(1));
    metrics.mode = Some((Asked::Auto, Kind::Ipvs));
    let page = metrics.render();
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect()
}

/// The names of metrics in an expression: words of ours that no parenthesis follows.
fn asked_for(expression: &str) -> BTreeSet<String> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| ["kubeproxy_", "process_"].iter().any(|of| word.starts_with(of))).map(str::to_owned).collect()
}

/// The values of all keys of this name.
fn all_of(value: &Value, key: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == key => found.push(text.clone()),
                    value => all_of(value, key, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| all_of(item, key, found)),
        _ => {}
    }
}

#[test]
fn every_metric_that_is_asked_for_is_served() {
    let served = served();
    let alerts = std::fs::read_to_string(folder().join("alerts.yaml")).unwrap();
    let dashboard = std::fs::read_to_string(folder().join("dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut expressions = Vec::new();
    all_of(&dashboard, "expr", &mut expressions);
    all_of(&dashboard, "query", &mut expressions);
    assert!(expressions.len() > 25, "{expressions:#?}");
    for (file, least, asked) in [
        ("alerts.yaml", 11, asked_for(&alerts)),
        ("dashboard.json", 25, expressions.iter().flat_map(|expression| asked_for(expression)).collect()),
    ] {
        let unknown: Vec<&String> = asked.difference(&served).collect();
        assert!(unknown.is_empty(), "{file} asks for {unknown:?}, which /metrics does not have");
        assert!(asked.len() >= least, "{file}: {asked:?}");
    }
}

#[test]
fn alerts_are_well_formed_and_fire_when_they_should() {
    kernel_test(&[Need::Root, Need::Tool("promtool")], || {
        for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts-test.yaml"]] {
            let output = Command::new("promtool").args(arguments).current_dir(folder()).output().unwrap();
            let said = [output.stdout, output.stderr].concat();
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said));
        }
        let alerts = std::fs::read_to_string(folder().join("alerts.yaml")).unwrap();
        let tests = std::fs::read_to_string(folder().join("alerts-test.yaml")).unwrap();
        let names = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
        for name in names {
            assert_eq!(tests.matches(&format!("alertname: {name}")).count(), 2, "{name}: when it fires and when not");
        }
    });
}
