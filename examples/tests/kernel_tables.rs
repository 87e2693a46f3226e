//! `proxier-demo` with a table of nf_tables on real kernels, as a user starts it: what somebody else changes there is mended at once.
#![cfg(feature = "proxier-demo")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]
#![allow(clippy::disallowed_methods, reason = "the program runs in real time")]

mod program;

use std::process::Command;
use std::time::Duration;

use program::{Folder, Running, demo, ok, tool};
use testkit::{Need, PROXY, kernel_test};

const METRICS: &str = "127.0.0.1:10249";

fn web(number: usize, endpoint: &str) -> String {
    program::service(
        "demo",
        &format!("web-{number}"),
        &format!("10.96.0.{number}"),
        &format!("{{addresses: [{endpoint}]}}"),
    )
}

/// Full passes so far.
fn full_passes() -> f64 {
    let page = ok(&Command::new("curl").args(["-s", &format!("http://{METRICS}/metrics")]).output().unwrap());
    program::page::read(&page)["kubeproxy_sync_full_proxy_rules_duration_seconds_count"]
}

/// What `nft` says of a table, but for the order of elements; without the counters and times of those that rules write, of which there
/// are none here.
fn listed(table: &str) -> Vec<String> {
    let listed = Command::new("nft").args(["-s", "list", "table", "ip", table]).output().unwrap();
    let text = program::text(&listed.stdout);
    let parts = text.split(['\n', ',', '{', '}']).map(|part| part.trim().to_owned());
    let mut parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
    parts.sort_unstable();
    parts
}

fn has(table: &str, words: &str) -> bool {
    listed(table).iter().any(|part| part.contains(words))
}

#[test]
fn nftables_mode_mends_its_table_at_once() {
    kernel_test(&[Need::Root, Need::Veth, Need::Nftables], || {
        mends_at_once(
            "nftables",
            "proxier",
            &[
                "delete element ip proxier services { 10.96.0.20 . tcp . 80 }",
                "flush map ip proxier services",
                "flush chain ip proxier prerouting",
                "delete table ip proxier",
            ],
        );
    });
}

#[test]
fn ipvs_mode_mends_its_table_at_once() {
    kernel_test(&[PROXY, &[Need::Veth, Need::Nftables]].concat(), || {
        mends_at_once(
            "ipvs",
            "proxier-ipvs",
            &[
                "delete element ip proxier-ipvs cluster-ip { 10.96.0.20 . tcp . 80 }",
                "flush set ip proxier-ipvs cluster-ip",
                "flush chain ip proxier-ipvs postrouting",
                "delete table ip proxier-ipvs",
            ],
        );
    });
}

fn mends_at_once(mode: &str, table: &str, changes: &[&str]) {
    tool("ip link set lo up");
    tool("ip link add eth9 type veth peer name eth8");
    tool("ip addr add 192.0.2.1/24 dev eth9");
    tool("ip link set eth9 up");
    let folder = Folder::new("tables-drift");
    for number in 10..30 {
        folder.put(&format!("web-{number}.yaml"), &web(number, "10.244.0.5"));
    }
    // Nothing is compared for an hour, unless something happens.
    let of_settings = Folder::new("tables-drift-settings");
    let settings = of_settings.put(
        "config.yaml",
        &format!(
            "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {mode}
metricsBindAddress: {METRICS}
ipvs: {{syncPeriod: 1h, rules: nftables}}
nftables: {{syncPeriod: 1h}}
"
        ),
    );
    let proxy =
        Running::start(&["--manifests", &folder.0.display().to_string(), "--config", &settings.display().to_string()]);
    proxy.until("all Services", || has(table, "10.96.0.29"));
    let (before, begun) = (listed(table), full_passes());
    for change in changes {
        tool(&format!("nft {change}"));
        proxy.until(&format!("it is as before `{change}`"), || listed(table) == before);
    }
    proxy.until_logged("somebody else changed it, repaired");
    std::thread::sleep(Duration::from_secs(3));
    let mended = full_passes();
    assert!(mended >= begun + 4.0, "{begun} full passes, {mended} after four changes");

    // Its own changes, and those of others elsewhere, are no reason to compare anything.
    for number in 30..40 {
        folder.put(&format!("web-{number}.yaml"), &web(number, "10.244.0.6"));
        tool(&format!("nft add table ip other-{number}"));
        std::thread::sleep(Duration::from_millis(300));
    }
    proxy.until("all changes", || has(table, "10.96.0.39"));
    std::thread::sleep(Duration::from_secs(3));
    let after = full_passes() - mended;
    assert!(after < 0.5, "{after} full passes for nothing");
    assert!(proxy.end().success());
    ok(&demo(&["cleanup"]));
}
