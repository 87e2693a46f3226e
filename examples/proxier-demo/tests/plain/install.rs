//! Files by which `proxier-demo` is installed: one manifest, the chart, the monitor of pods, the manual page, and what `--version` says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use testkit::{Need, kernel_test};

use crate::program::{Folder, Running, ok, status_of, text, tool, with_node_port};

fn deploy(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)).unwrap()
}

fn documents(yaml: &str) -> Vec<Value> {
    yaml.split("\n---\n").map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

/// Helm renders the chart in `cargo xtask dist --check`.
#[test]
fn every_value_of_the_chart_has_a_schema_and_is_used() {
    let values: Value = serde_saphyr::from_str(&deploy("chart/values.yaml")).unwrap();
    let schema: Value = serde_json::from_str(&deploy("chart/values.schema.json")).unwrap();
    let names = |of: &Value| of.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let templates = ["proxier-demo", "monitoring"].map(|name| deploy(&format!("chart/templates/{name}.yaml"))).concat();
    let mut described = names(&schema["properties"]);
    assert!(described.remove("global"), "Helm adds it where this is a part of another chart");
    assert_eq!(described, names(&values));
    assert_eq!(names(&schema["properties"]["monitoring"]["properties"]), names(&values["monitoring"]));
    for name in &described {
        assert!(templates.contains(&format!(".Values.{name}")), "{name}");
    }
}

/// The object as Kubernetes' own types have it: a field that they do not know is lost.
fn by_type<T: DeserializeOwned + Serialize>(document: &Value) -> Value {
    serde_json::to_value(serde_json::from_value::<T>(document.clone()).unwrap()).unwrap()
}

#[test]
fn every_field_of_install_yaml_is_one_of_kubernetes() {
    for document in documents(&deploy("install.yaml")) {
        let typed = match document["kind"].as_str().unwrap() {
            "ServiceAccount" => by_type::<ServiceAccount>(&document),
            "ClusterRole" => by_type::<ClusterRole>(&document),
            "ClusterRoleBinding" => by_type::<ClusterRoleBinding>(&document),
            _ => by_type::<DaemonSet>(&document),
        };
        assert_eq!(typed, document);
    }
}

/// Another manager of these objects than the one that applies them would own fields, and the next apply by a server would end with a conflict.
#[test]
fn a_canary_is_applied_as_everything_else_is() {
    let guide = ["install.md", "operate.md"].map(|page| deploy(&format!("../../docs/{page}"))).concat();
    let ours = |line: &&str| line.contains("daemonset proxier-demo") || line.contains("daemonset/proxier-demo");
    for line in guide.lines().filter(|line| line.contains("kubectl")).filter(ours) {
        assert!(["rollout status", " get "].iter().any(|reads| line.contains(reads)), "{line}");
    }
    let sed = guide.lines().find_map(|line| line.strip_prefix("$ ").filter(|line| line.starts_with("sed "))).unwrap();
    let (sed, _) = sed.split_once(" | kubectl apply -f -").unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
    let canary = ok(&Command::new("sh").args(["-c", sed]).current_dir(folder).output().unwrap());
    let mut install = documents(&deploy("install.yaml"));
    let sets = install.iter_mut().filter(|of| of["kind"] == "DaemonSet");
    sets.for_each(|set| set["spec"]["updateStrategy"]["type"] = "OnDelete".into());
    assert_eq!(documents(&canary), install);
    // kubectl stays a manager of what it applied: Helm's server-side apply would end a later upgrade with a conflict.
    let taken = guide.lines().find(|line| line.starts_with("$ ") && line.contains("--take-ownership")).unwrap();
    assert!(taken.contains("--server-side=false"), "{taken}");
    // An API server adds it, and the structure has one owner as a whole.
    let text = deploy("install.yaml");
    let refs: Vec<&str> = text.lines().filter(|line| line.contains("fieldRef:")).collect();
    assert!(refs.len() == 2 && refs.iter().all(|line| line.contains("{apiVersion: v1, fieldPath: ")), "{refs:?}");
}

#[test]
fn pods_have_what_the_monitor_and_admission_ask_for() {
    let install = documents(&deploy("install.yaml"));
    let monitor: Value = serde_saphyr::from_str(&deploy("monitoring/podmonitor.yaml")).unwrap();
    let proxy =
        install.iter().find(|of| of["kind"] == "DaemonSet" && of["metadata"]["name"] == "proxier-demo").unwrap();
    let (metadata, spec) = (&proxy["spec"]["template"]["metadata"], &proxy["spec"]["template"]["spec"]);
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], metadata["labels"]);
    assert_eq!(monitor["metadata"]["namespace"], proxy["metadata"]["namespace"]);
    let container = &spec["containers"][0];
    let port = |name: &Value| {
        let ports = container["ports"].as_array().unwrap();
        ports.iter().find(|port| port["name"] == *name).map(|port| port["containerPort"].clone())
    };
    assert_eq!(port(&monitor["spec"]["podMetricsEndpoints"][0]["port"]), Some(10249.into()));
    for probe in ["readinessProbe", "livenessProbe"] {
        assert_eq!(port(&container[probe]["httpGet"]["port"]), Some(10256.into()), "{probe}");
    }
    for daemonset in install.iter().filter(|of| of["kind"] == "DaemonSet") {
        // An image that cannot be pulled takes no node's check away. Two proxies cannot run on a node.
        let rolling = match daemonset["metadata"]["name"].as_str() {
            Some("proxier-demo-check") => serde_json::json!({"maxSurge": "100%", "maxUnavailable": 0}),
            _ => serde_json::json!({"maxUnavailable": 1}),
        };
        assert_eq!(daemonset["spec"]["updateStrategy"]["rollingUpdate"], rolling);
        let spec = &daemonset["spec"]["template"]["spec"];
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        assert_eq!(spec["priorityClassName"], "system-node-critical");
        for list in ["initContainers", "containers"] {
            for container in spec[list].as_array().unwrap() {
                assert!(container["resources"]["requests"]["memory"].is_string(), "{container}");
                let context = &container["securityContext"];
                let is_confined = context["readOnlyRootFilesystem"] == true && context["privileged"].is_null();
                assert_eq!(is_confined, container["name"] != "prepare-node", "{container}");
            }
        }
    }
}

/// The guide's table of rights is about each that the manifests give, and about no other.
#[test]
fn the_guide_says_what_each_right_is_used_for() {
    let mut rights: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for document in documents(&deploy("install.yaml")) {
        for rule in document["rules"].as_array().into_iter().flatten() {
            let words = |field: &str| {
                let words = rule[field].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned());
                words.collect::<Vec<_>>().join(", ")
            };
            let right = format!("`{}`: {}", words("resources"), words("verbs"));
            rights.entry(right).or_default().insert("proxier-demo".to_owned());
        }
        let spec = &document["spec"]["template"]["spec"];
        let lists = ["initContainers", "containers"].map(|list| spec[list].as_array().cloned().unwrap_or_default());
        for container in lists.iter().flatten() {
            let mut has = |right: String| {
                rights.entry(right).or_default().insert(container["name"].as_str().unwrap().to_owned());
            };
            for (holder, name) in [(spec, "hostNetwork"), (&container["securityContext"], "privileged")] {
                if holder[name] == true {
                    has(format!("`{name}`"));
                }
            }
            let added = container["securityContext"]["capabilities"]["add"].as_array();
            added.into_iter().flatten().for_each(|capability| has(format!("`{}`", capability.as_str().unwrap())));
            for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                let suffix = if mount["readOnly"] == true { " (read-only)" } else { "" };
                has(format!("`{}`{suffix}", mount["mountPath"].as_str().unwrap()));
            }
        }
    }
    let guide = deploy("../../docs/install.md");
    let section = guide.split("\n### Privileges\n").nth(1).unwrap().split("\n#").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let described: BTreeMap<String, BTreeSet<String>> = rows
        .map(|row| {
            let mut cells = row.split(" | ");
            let right = format!("`{}", cells.next().unwrap());
            (right, cells.next().unwrap().split(", ").map(str::to_owned).collect())
        })
        .collect();
    assert_eq!(described, rights);
}

/// System calls of a group of systemd's, and of the groups in it.
fn calls(group: &str) -> BTreeSet<String> {
    let listed = ok(&Command::new("systemd-analyze").args(["syscall-filter", group]).output().unwrap());
    let rows = listed.lines().skip(1).map(str::trim).filter(|row| !row.is_empty() && !row.starts_with('#'));
    rows.flat_map(|row| if row.starts_with('@') { calls(row) } else { BTreeSet::from([row.to_owned()]) }).collect()
}

#[test]
fn the_unit_gives_the_program_what_it_calls_and_little_more() {
    kernel_test(
        &[
            Need::Root,
            Need::Nftables,
            Need::IptablesNft,
            Need::Tool("strace"),
            Need::Tool("setpriv"),
            Need::Tool("systemd-analyze"),
        ],
        || {
            let unit = deploy("systemd/proxier-demo.service");
            // Otherwise systemd deletes the lock of a process that does not belong to the unit.
            assert!(unit.contains("\nRuntimeDirectoryPreserve=yes\n"));
            let capabilities = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=CAP_")).unwrap();
            let capabilities = capabilities.to_lowercase().replace(" cap_", ",+");
            let folder = Folder::new("unit");
            let file = folder.put("proxier-demo.service", &unit).display().to_string();
            // Of ten; 1.9 of them for root, capabilities, settings below /proc/sys, and the network.
            let words = ["security", "--offline=true", "--threshold=25", "--no-pager", &file];
            ok(&Command::new("systemd-analyze").args(words).output().unwrap());

            let (mut allowed, mut filters) = (BTreeSet::new(), 0);
            for filter in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
                filters += 1;
                match filter.strip_prefix('~') {
                    None => allowed.extend(filter.split(' ').flat_map(calls)),
                    Some(refused) => {
                        let refused: BTreeSet<String> = refused.split(' ').flat_map(calls).collect();
                        allowed.retain(|call| !refused.contains(call));
                    }
                }
            }
            assert!(filters == 2 && allowed.contains("sendmsg") && !allowed.contains("setuid"), "{allowed:?}");
            let manifests = folder.put("web.yaml", &with_node_port("web", "10.96.0.10", 30080, &["10.244.0.5"]));
            let log = folder.path("calls");
            for mode in ["nftables", "iptables", "userspace"] {
                let mut strace = Command::new("setpriv");
                strace.args([&format!("--bounding-set=-all,+{capabilities}"), "strace"]);
                strace.args(["-f", "-qq", "-o"]).arg(&log).arg(env!("CARGO_BIN_EXE_proxier-demo"));
                strace.args(["run", "--healthz-bind-address", "127.0.0.1:10256", "--hostname-override", "n1"]);
                let running = Running::spawn({
                    strace.args(["--proxy-mode", mode, "--manifests"]).arg(&manifests);
                    strace
                });
                running.until("everything is served", || status_of("10256/readyz") == 200);
                let so_far = fs::read_to_string(&log).unwrap();
                tool(&format!("kill -TERM {}", so_far.split(' ').next().unwrap()));
                let (_, said) = running.wait();
                let log = fs::read_to_string(&log).unwrap();
                let names = log.lines().filter_map(|line| line.split_whitespace().nth(1)?.split_once('('));
                let called: BTreeSet<&str> = names.map(|(name, _)| name).collect();
                let refused: Vec<&&str> = called.iter().filter(|name| !allowed.contains(**name)).collect();
                assert!(called.contains("execve") && called.contains("exit_group"), "{mode}: {said}");
                assert!(refused.is_empty(), "{mode}: {refused:?}");
            }
        },
    );
}

fn printed(arguments: &[&str]) -> String {
    text(&Command::new(env!("CARGO_BIN_EXE_proxier-demo")).args(arguments).output().unwrap().stdout)
}

#[test]
fn the_manual_page_has_the_commands_of_the_program() {
    let help = printed(&["--help"]);
    let commands = help.split("\nCommands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let commands = commands.lines().map(|line| line.split_whitespace().next().unwrap());
    let commands: BTreeSet<&str> = commands.filter(|command| *command != "help").collect();
    let manual = deploy("debian/proxier-demo.8");
    let described: BTreeSet<&str> = manual.lines().filter_map(|line| line.strip_prefix(".It Cm ")).collect();
    assert_eq!(described, commands);
    let all: Vec<String> = commands
        .iter()
        .filter(|command| **command != "completion")
        .map(|command| printed(&[command, "--help"]))
        .collect();
    for option in manual.lines().filter_map(|line| line.strip_prefix(".It Fl Fl ")) {
        let flag = format!("--{} ", option.split(' ').next().unwrap());
        assert!(all.iter().all(|help| help.contains(&flag)), "{flag}");
    }
}

/// The commit and its date are those of the build's environment, or those of git.
#[test]
fn the_version_names_the_commit() {
    let line = printed(&["--version"]);
    let rest = line.strip_prefix(&format!("proxier-demo {} (commit ", env!("CARGO_PKG_VERSION"))).unwrap();
    let (commit, date) = rest.strip_suffix(")\n").unwrap().split_once(", ").unwrap();
    let is_commit = commit.split('-').next().unwrap().chars().all(|c| c.is_ascii_hexdigit()) && commit.len() >= 12;
    assert!(commit == "unknown" || is_commit, "{line}");
    let epoch = Command::new("date").args(["-d", date, "+%s"]).output().unwrap();
    assert!(date == "unknown" || epoch.status.success() && date.ends_with('Z'), "{line}");
    if let Some(given) = option_env!("PROXIER_REVISION").filter(|given| !given.is_empty()) {
        assert_eq!(commit, given);
    }
}
