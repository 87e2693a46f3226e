//! The files below `deploy`. Those for Prometheus and Grafana ask for metrics that the program serves, and alerts fire
//! when they should. The scripts that prepare a node, and take it over from kube-proxy, leave no node without a proxy.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use proxier_core::modes::Kind;
use proxier_core::modes::select::RequestedMode;
use proxier_demo::status::metrics::Metrics;
use serde_json::{Value, json};
use testkit::apiserver::ApiServer;
use testkit::{Need, kernel_test};

use crate::program::{Folder, Running, metrics, ok, set_up, status_of, text, tool};

fn folder() -> PathBuf {
    deploy("monitoring")
}

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

/// The names of all series that the program serves.
fn served() -> BTreeSet<String> {
    let mut metrics = Metrics::default();
    metrics.took.sync.observe(Duration::from_secs(1));
    metrics.mode = Some((RequestedMode::Auto, Kind::Ipvs));
    let page = metrics.render();
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    samples.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect()
}

/// Names of this program's metrics in an expression: words with its prefixes.
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
    let (alerts, dashboard) =
        (asked_for(&alerts), expressions.iter().flat_map(|of| asked_for(of)).collect::<BTreeSet<_>>());
    for (file, asked) in [("alerts.yaml", &alerts), ("dashboard.json", &dashboard)] {
        let unknown: Vec<&String> = asked.difference(&served).collect();
        assert!(unknown.is_empty(), "{file} asks for {unknown:?}, which /metrics does not have");
    }
    let hidden: Vec<&String> = alerts.difference(&dashboard).collect();
    assert!(
        alerts.len() > 11 && hidden.is_empty(),
        "the dashboard does not show {hidden:?}, about which there are alerts"
    );
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
        let tested: Vec<&str> = tests.split("alertname=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        let names = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
        assert_eq!(names.collect::<BTreeSet<_>>(), tested.into_iter().collect(), "each has to fire");
    });
}

type Page = BTreeMap<String, f64>;

/// Asserts by promtool that these alerts fire, and no others, for a proxy whose metrics change like this in that many
/// seconds.
#[track_caller]
fn assert_firing(expected: &[&str], [before, after]: [&Page; 2], seconds: f64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let alerts = folder().join("alerts.yaml").display().to_string();
    let mut test =
        format!("rule_files: [{alerts}]\nevaluation_interval: 30s\ntests:\n- interval: 30s\n  input_series:\n");
    for (series, value) in after {
        let step = (value - before.get(series).unwrap_or(value)) / seconds * 30.0;
        // promtool's clock begins at 0.
        let start = if series.contains("_timestamp_seconds") && *value > 0.0 { value - now + 60.0 } else { *value };
        let series = series.strip_suffix('}').map_or_else(|| format!("{series}{{"), |labels| format!("{labels},"));
        test += &format!("  - {{series: '{series}instance=\"n1\"}}', values: '{start}{step:+}x100'}}\n");
    }
    let query = "count by (alertname) (ALERTS{alertstate=\"firing\"})";
    test += &format!("  promql_expr_test:\n  - eval_time: 45m\n    expr: '{query}'\n    exp_samples:\n");
    for alert in expected {
        test += &format!("    - {{labels: '{{alertname=\"{alert}\"}}', value: 1}}\n");
    }
    let place = Folder::new("alerts");
    let file = place.put("test.yaml", &test);
    ok(&Command::new("promtool").args(["test", "rules"]).arg(file).output().unwrap());
}

const LAST_PASS: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}";

/// The metrics just after a pass.
fn page(running: &Running) -> Page {
    let before = metrics()[LAST_PASS];
    running.until("a pass", || metrics()[LAST_PASS] > before);
    metrics()
}

/// A configuration with a full pass each second, for this API server, which gets the Node `n1`.
fn configured(place: &Folder, server: &ApiServer, mode: &str) -> PathBuf {
    server.put(&json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}}));
    let kubeconfig = place.put("kubeconfig", &server.kubeconfig(None));
    let settings = format!(
        "mode: {mode}\n{mode}: {{syncPeriod: 1s}}\nclientConnection: {{kubeconfig: {}}}\n",
        kubeconfig.display()
    );
    place.put("config", &format!("{KIND}{settings}"))
}

/// The metric is 0 in the first minute.
#[test]
fn the_alert_about_an_api_server_that_is_away_fires() {
    kernel_test(&[Need::Root, Need::Nftables, Need::Tool("promtool")], || {
        set_up();
        let (server, place) = (ApiServer::start(), Folder::new("away"));
        let config = configured(&place, &server, "nftables").display().to_string();
        let running = Running::start(&["--config", &config]);
        running.until("everything is served", || status_of("10256/readyz") == 200);
        server.outage(true);
        running.until("it is away", || metrics()["kubeproxy_api_failing_seconds"] > 0.0);
        let before = page(&running);
        std::thread::sleep(Duration::from_secs(2));
        let after = page(&running);
        let seconds = after[LAST_PASS] - before[LAST_PASS];
        assert_firing(&["ProxierDemoApiServerAway"], [&before, &after], seconds);
    });
}

/// The program in each state that another alert is about, by the metrics that it then serves.
#[test]
fn alerts_fire_for_the_program_in_their_states() {
    let needs = [Need::Root, Need::Mounts, Need::Veth, Need::IptablesLegacy, Need::Conntrack, Need::Tool("promtool")];
    kernel_test(&needs, || {
        set_up();
        // A rule of the legacy programs: the host uses these, and these have a lock.
        tool("iptables-legacy -A INPUT -s 203.0.113.99 -j DROP");
        let (server, place) = (ApiServer::start(), Folder::new("alerts"));
        server.serve_only_json();
        let object = |kind: &str, version: &str, name: &str| json!({"kind": kind, "apiVersion": version, "metadata": {"name": name, "namespace": "demo"}});
        let service = |name: &str, address: &str| {
            let mut service = object("Service", "v1", name);
            service["spec"] =
                json!({"clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"], "ports": [{"port": 80}]});
            service
        };
        let names: Vec<String> = (1..=30).map(|number| format!("s{number}")).collect();
        for (name, number) in names.iter().zip(1..) {
            server.put(&service(name, &format!("10.96.1.{number}")));
        }
        let config = configured(&place, &server, "iptables");
        // Its own lock of iptables, which somebody holds once the file `hold` exists.
        let line = format!(
            "mount -t tmpfs -o mode=755 tmpfs /run; {{ until [ -e {0}/hold ]; do sleep 0.1; done; exec flock /run/xtables.lock sleep 120; }} & \
             exec {1} run --config {2} --hostname-override n1",
            place.0.display(),
            env!("CARGO_BIN_EXE_proxier-demo"),
            config.display()
        );
        let start = || {
            let mut command = Command::new("unshare");
            command.args(["--mount", "--propagation", "private", "--kill-child", "--fork", "--pid", "sh", "-c", &line]);
            let running = Running::spawn(command);
            running.until("everything is served", || status_of("10256/readyz") == 200);
            running
        };
        let running = start();
        let mut pages = [page(&running), Page::new()];
        std::thread::sleep(Duration::from_secs(3));
        pages[1] = page(&running);
        let seconds = pages[1][LAST_PASS] - pages[0][LAST_PASS];
        assert_firing(&[], [&pages[0], &pages[1]], seconds);
        // The kernel has one limit for all namespaces, so it is lowered here.
        for page in &mut pages {
            page.insert("kubeproxy_conntrack_entries".to_owned(), 95.0);
            let limit = page.insert("kubeproxy_conntrack_entries_limit".to_owned(), 100.0);
            assert!(limit > Some(100.0), "{limit:?}");
        }
        assert_firing(&["ProxierDemoConntrackNearlyFull"], [&pages[0], &pages[1]], seconds);
        drop(running);

        tool("iptables-legacy -P FORWARD DROP");
        let running = start();
        let is_positive = |name: &str| metrics()[name] > 0.0;
        running.until("the chain", || is_positive("kubeproxy_leftovers"));
        let mut odd = service("odd", "10.96.2.1");
        odd["spec"]["ports"] = json!("none");
        server.put(&odd);
        running.until("an unreadable object", || is_positive("kubeproxy_unreadable_objects"));
        for name in &names {
            server.delete_silently("services", "demo", name);
        }
        server.cut_watches();
        server.compact();
        running.until("held back", || is_positive("kubeproxy_virtual_servers_held_back"));
        place.put("hold", "");
        server.put(&service("new", "10.96.2.2"));
        let fails = || is_positive("kubeproxy_sync_failures_total") && metrics()["kubeproxy_healthy"] == 0.0;
        running.until("passes fail", fails);
        let (start, before) = (Instant::now(), metrics());
        let failures = "kubeproxy_sync_failures_total";
        running.until("another one", || metrics()[failures] > before[failures]);
        let expected = [
            "ProxierDemoDeletionsHeldBack",
            "ProxierDemoNoPasses",
            "ProxierDemoObjectsUnreadable",
            "ProxierDemoOthersDecide",
            "ProxierDemoPassesFail",
            "ProxierDemoUnhealthy",
        ];
        assert_firing(&expected, [&before, &metrics()], start.elapsed().as_secs_f64());
    });
}

/// Programs that stand in for the machine's, in a folder that comes first in the search path.
struct Programs(Folder);

impl Programs {
    fn new(programs: &[(&str, &str)]) -> Self {
        let folder = Folder::new("programs");
        for (name, script) in programs {
            let path = folder.put(name, &format!("#!/bin/sh\nhere={}\n{script}", folder.0.display()));
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Programs(folder)
    }

    /// `line` in a shell, with these programs first.
    fn run(&self, line: &str) -> Output {
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.0.0.display());
        Command::new("sh").args(["-c", line]).env("PATH", path).env("HERE", &self.0.0).output().unwrap()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.0.join(name)).unwrap_or_default()
    }
}

const KIND: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

/// A node may lack modules that its mode does not need; missing ones that it needs are an error.
#[test]
fn prepare_node_needs_what_the_mode_needs() {
    const MODPROBE: &str = "[ $1 != --all ] || shift\n\
        for module; do echo $module >>$here/asked; grep -qx $module $here/has || missing=$module; done\n\
        [ -z \"$missing\" ] || { echo Module $missing not found >&2; exit 1; }\n";
    let all = "ip_vs nf_conntrack nf_tables";
    kernel_test(&[Need::Root], || {
        let setting = |name: &str| fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap().trim().to_owned();
        let no_ipvs = !Path::new("/proc/net/ip_vs").exists();
        let no_tables = !fs::read_to_string("/proc/kallsyms").unwrap_or_default().contains("nf_tables_newtable");
        for (mode, has, config, code, says) in [
            ("ipvs", all, "", 0, ""),
            ("", all, "mode: ipvs\n", 0, ""),
            ("ipvs", "nf_conntrack nf_tables", "", i32::from(no_ipvs), "mode ipvs needs module ip_vs"),
            ("", "nf_conntrack nf_tables", "mode: \"ipvs\"\n", i32::from(no_ipvs), "mode ipvs needs module ip_vs"),
            ("--warn ipvs", "nf_conntrack nf_tables", "", 0, "mode ipvs needs module ip_vs"),
            ("nftables", "nf_conntrack nf_tables", "", 0, ""),
            ("", "nf_conntrack nf_tables", "mode: nftables\n", 0, ""),
            ("nftables", "nf_conntrack nf_tables", "nodePortAddresses: [primary, localhost]\n", 0, ""),
            ("nftables", "ip_vs nf_conntrack", "", i32::from(no_tables), "mode nftables needs module nf_tables"),
            ("iptables", "nf_conntrack", "", 0, ""),
            ("iptables", "nf_conntrack", "iptables:\n  localhostNodePorts: false\n", 0, ""),
            ("userspace", "", "", 0, ""),
            ("auto", "", "", 0, ""),
            ("", "", "mode: \"\"\n", 0, ""),
            ("", "", "", 0, ""),
            ("fast", all, "", 1, "mode fast: write ipvs, nftables, iptables, userspace or auto"),
        ] {
            for (name, value) in [("ip_forward", "0"), ("conf/all/route_localnet", "1")] {
                fs::write(format!("/proc/sys/net/ipv4/{name}"), value).unwrap();
            }
            let program = format!("exec {} \"$@\"", env!("CARGO_BIN_EXE_proxier-demo"));
            let programs = Programs::new(&[("modprobe", MODPROBE), ("proxier-demo", &program)]);
            programs.0.put("has", &has.replace(' ', "\n"));
            if !config.is_empty() {
                programs.0.put("config", &format!("{KIND}{config}"));
            }
            let output = programs.run(&format!("CONFIG=$HERE/config {} {mode}", deploy("prepare-node").display()));
            let (said, what) = (text(&output.stderr), format!("{mode} {has} {config}"));
            assert_eq!(output.status.code(), Some(code), "{what}: {said}");
            let is_missing = says.contains("module ip_vs") && no_ipvs
                || says.contains("nf_tables") && no_tables
                || says.contains("fast");
            assert_eq!(said.contains(" needs module ") || said.contains(": write "), is_missing, "{what}: {said}");
            assert!(!is_missing || said.contains(says), "{what}: {said}");
            if code != 0 {
                continue;
            }
            // In userspace mode nothing is forwarded.
            assert_eq!(setting("ip_forward"), if mode == "userspace" { "0" } else { "1" }, "{what}");
            assert_eq!(setting("conf/all/route_localnet"), "0", "{what}: nothing guards loopback addresses yet");
            let asked = programs.read("asked");
            // The configuration may name another mode later.
            let needs_ipvs = mode.contains("ipvs") || mode.is_empty() || mode == "auto";
            assert_eq!(asked.lines().any(|module| module == "ip_vs"), needs_ipvs, "{what}: {asked}");
            assert_eq!(asked.is_empty(), mode == "userspace", "{what}: {asked}");
        }
    });
}

/// Other hosts must not reach what listens on 127.0.0.1 only. Behind the kubelet's rule, in either back end, a kube-proxy
/// may serve node ports there. Looking for that rule creates no tables.
#[test]
fn prepare_node_leaves_route_localnet_only_where_the_kubelets_rule_guards() {
    const JUMP: &str = "-A INPUT -j KUBE-FIREWALL\n";
    const RULE: &str =
        "-A KUBE-FIREWALL -d 127.0.0.0/8 -m comment --comment \"block incoming localnet connections\" -j DROP\n";
    let localnet = "/proc/sys/net/ipv4/conf/all/route_localnet";
    let ways = ["nft", "legacy"].map(|default| ["nft", "legacy"].map(|of_rules| (default, of_rules)));
    for (default, of_rules) in ways.into_iter().flatten() {
        kernel_test(&[Need::Root, Need::IptablesNft, Need::IptablesLegacy], || {
            let program = format!("exec {} \"$@\"", env!("CARGO_BIN_EXE_proxier-demo"));
            let save = format!("exec iptables-{default}-save \"$@\"");
            let programs = Programs::new(&[("modprobe", ""), ("proxier-demo", &program), ("iptables-save", &save)]);
            for rules in ["", JUMP, RULE, &[JUMP, RULE].concat()] {
                if !rules.is_empty() {
                    let rules = format!("*filter\n:KUBE-FIREWALL - [0:0]\n{rules}COMMIT\n");
                    testkit::oracle::run(&format!("iptables-{of_rules}-restore"), &[], Some(&rules)).unwrap();
                }
                for mode in ["iptables", "nftables"] {
                    fs::write(localnet, "1").unwrap();
                    let output = programs.run(&format!("CONFIG=/none {} {mode}", deploy("prepare-node").display()));
                    let what = format!("{mode}, {default} by default, in {of_rules}: {rules}");
                    assert!(output.status.success(), "{what}: {}", text(&output.stderr));
                    let is_guarded = rules.contains(JUMP) && rules.contains(RULE);
                    assert_eq!(fs::read_to_string(localnet).unwrap() == "1\n", is_guarded, "{what}");
                }
            }
            let tables = fs::read_to_string("/proc/thread-self/net/ip_tables_names").unwrap_or_default();
            assert_eq!(tables.is_empty(), of_rules == "nft", "{tables}");
        });
    }
}

/// A container that is not privileged may not write them, and Kubernetes' test of `CLOSE_WAIT` reads one on nodes where no kube-proxy ever ran.
#[test]
fn prepare_node_writes_the_settings_that_the_configuration_asks_for() {
    let conntrack = "conntrack:\n  tcpEstablishedTimeout: 20h0m0s\n  tcpCloseWaitTimeout: 1h0m0s\n  tcpBeLiberal: true\n  udpTimeout: 31s\n  \
                     udpStreamTimeout: 131s\n";
    let settings = [
        ("netfilter/nf_conntrack_tcp_timeout_established", "72000"),
        ("netfilter/nf_conntrack_tcp_timeout_close_wait", "3600"),
        ("netfilter/nf_conntrack_tcp_be_liberal", "1"),
        ("netfilter/nf_conntrack_udp_timeout", "31"),
        ("netfilter/nf_conntrack_udp_timeout_stream", "131"),
        ("ipv4/conf/all/arp_ignore", "1"),
        ("ipv4/conf/all/arp_announce", "2"),
        ("ipv4/ip_forward", "1"),
    ];
    for mode in ["nftables", "iptables", "ipvs", ""] {
        kernel_test(&[Need::Root, Need::Nftables], || {
            let program = format!("exec {} \"$@\"", env!("CARGO_BIN_EXE_proxier-demo"));
            let programs = Programs::new(&[("modprobe", "echo $1 >>$here/calls"), ("proxier-demo", &program)]);
            programs.0.put("config", &format!("{KIND}mode: \"{mode}\"\nipvs:\n  strictARP: true\n{conntrack}"));
            let output = programs.run(&format!("CONFIG=$HERE/config {} --warn", deploy("prepare-node").display()));
            assert!(output.status.success(), "{mode}: {output:?}");
            let written = settings.map(|(name, _)| {
                let value = fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap_or_default();
                (name, value.trim().to_owned())
            });
            assert_eq!(written.each_ref().map(|(name, value)| (*name, value.as_str())), settings, "{mode}: {output:?}");
            assert_eq!(programs.read("calls"), "--all\n", "{mode}: one start of modprobe loads all");
        });
    }
}

/// kubectl with the answers that `take-over` needs; `label`: the node's label. `fails` counts down.
const KUBECTL: &str = "\
case \"$*\" in
*k8s-app=proxier-demo-check*) cat $here/check ;;
*k8s-app=proxier-demo*)
    echo asked >>$here/proxy-asked
    [ ! -e $here/interrupts ] || kill -TERM $(cat $here/pid)
    [ -z \"$(cat $here/label)\" ] || cat $here/proxy ;;
'label node n1 service-proxy=proxier-demo') echo proxier-demo >$here/label ;;
'label node n1 service-proxy-')
    if [ -e $here/fails ]; then rm $here/fails; exit 1; fi
    : >$here/label ;;
*) echo \"unexpected: $*\" >&2; exit 9 ;;
esac
";

#[test]
fn take_over_leaves_no_node_without_a_proxy() {
    for (check, proxy, more, code, label, says) in [
        ("True", "True", "", 0, "proxier-demo", "proxier-demo serves"),
        ("False", "True", "", 1, "", "the check is not ready, so kube-proxy stays"),
        ("", "True", "", 1, "", "the check is not ready, so kube-proxy stays"),
        // Two pods: one is of an earlier rollout.
        ("True False", "True", "", 1, "", "the check is not ready, so kube-proxy stays"),
        ("True", "False", "", 1, "", "proxier-demo is not ready, so kube-proxy comes back"),
        ("True", "", "", 1, "", "proxier-demo is not ready, so kube-proxy comes back"),
        ("True", "False", "fails", 1, "", "proxier-demo is not ready, so kube-proxy comes back"),
        ("True", "False", "interrupts", 1, "", "interrupted, so kube-proxy comes back"),
    ] {
        let programs = Programs::new(&[("kubectl", KUBECTL), ("sleep", "exit 0\n")]);
        for (name, content) in [("check", check), ("proxy", proxy), ("label", "")] {
            programs.0.put(name, content);
        }
        if !more.is_empty() {
            programs.0.put(more, "");
        }
        let script = deploy("kubernetes/take-over");
        let output = programs.run(&format!("echo $$ >$HERE/pid; PATIENCE=6 exec {} n1", script.display()));
        let what = format!("{check:?} {proxy:?} {more}: {output:?}");
        assert_eq!(output.status.code(), Some(code), "{what}");
        assert_eq!(programs.read("label").trim(), label, "{what}");
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains(says), "{what}");
        assert_eq!(said.contains("cleanup --keep"), says.ends_with("comes back"), "{what}");
        assert_eq!(programs.read("proxy-asked").is_empty(), check != "True", "{what}");
    }
}

fn manifest(name: &str) -> Value {
    serde_saphyr::from_str(&fs::read_to_string(deploy("kubernetes").join(name)).unwrap()).unwrap()
}

fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    list.as_array().unwrap().iter().find(|of| of["name"] == name).unwrap_or_else(|| panic!("no {name}: {list}"))
}

/// The check asks with the proxy's rights, configuration and preparation, on nodes that kube-proxy has; and the guide goes by it.
#[test]
fn the_check_before_a_takeover_is_of_what_will_run() {
    let (proxy, check) = (&manifest("daemonset.yaml")["spec"]["template"], &manifest("check.yaml")["spec"]["template"]);
    let (proxy, check) = (&proxy["spec"], &check["spec"]);
    let (run, probe) = (named(&proxy["containers"], "proxier-demo"), named(&check["initContainers"], "probe"));
    for field in ["image", "securityContext", "env"] {
        assert_eq!(run[field], probe[field], "{field}");
    }
    let arguments = |of: &Value| of["args"].as_array().unwrap()[1..].to_vec();
    assert_eq!(arguments(run), arguments(probe));
    let mounts = probe["volumeMounts"].as_array().unwrap();
    assert!(mounts.iter().all(|mount| run["volumeMounts"].as_array().unwrap().contains(mount)), "{mounts:?}");
    let (before, after) =
        (named(&check["initContainers"], "prepare-node"), named(&proxy["initContainers"], "prepare-node"));
    for field in ["image", "securityContext", "env", "volumeMounts"] {
        assert_eq!(before[field], after[field], "{field}");
    }
    // The next best mode is better than none once kube-proxy is gone.
    assert_eq!(before["command"], serde_json::json!(["/usr/local/sbin/prepare-node"]));
    assert_eq!(after["command"], serde_json::json!(["/usr/local/sbin/prepare-node", "--warn"]));
    let mut everywhere = proxy["nodeSelector"].clone();
    assert_eq!(everywhere.as_object_mut().unwrap().remove("service-proxy"), Some("proxier-demo".into()));
    assert_eq!(check["nodeSelector"], everywhere);
    for field in ["hostNetwork", "tolerations", "affinity", "priorityClassName", "securityContext"] {
        assert_eq!(check[field], proxy[field], "{field}");
    }
    let resources = &manifest("kustomization.yaml")["resources"];
    assert!(resources.as_array().unwrap().contains(&"check.yaml".into()), "{resources}");
    let guide = fs::read_to_string(deploy("../../docs/install.md")).unwrap();
    assert!(guide.contains("./take-over NODE") && !guide.contains("label node NODE service-proxy=proxier-demo"));
}
