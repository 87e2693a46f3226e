//! `proxier-demo` with an nf_tables table on real kernels, as a user starts it: other programs' changes to the table
//! are repaired at once.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use testkit::{Need, PROXY, kernel_test, oracle};

use crate::program::{self, Folder, Running, command, configuration, demo, in_mounts, metrics, ok, tool};

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
    metrics()["kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}"]
}

/// Parts of a table as `nft` prints it, in any order of elements; without the counters and times that rules write.
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

/// Changes that the kernel reports in different ways; which ones are repaired, and how, is tested by `proxier-core`.
const CHANGES: [&str; 4] = [
    "flush chain ip TABLE postrouting",
    "add table ip TABLE { flags dormant; }",
    "delete chain ip TABLE output-filter; add chain ip TABLE output-filter { type filter hook input priority 7; }",
    "delete table ip TABLE",
];

#[test]
fn modes_mend_their_tables_at_once() {
    kernel_test(&[Need::Root, Need::Veth, Need::Nftables], || mends_at_once("nftables", "proxier", "internal-4"));
    kernel_test(&[PROXY, &[Need::Veth, Need::Nftables]].concat(), || {
        mends_at_once("ipvs", "proxier-ipvs", "cluster-ip");
    });
}

/// `set`: one that has the Services' addresses.
fn mends_at_once(mode: &str, table: &str, set: &str) {
    program::set_up();
    let folder = Folder::new("tables-drift");
    for number in 10..30 {
        folder.put(&format!("web-{number}.yaml"), &web(number, "10.244.0.5"));
    }
    // No full pass is due for an hour, unless something happens.
    let of_settings = Folder::new("tables-drift-settings");
    let body = format!("mode: {mode}\nipvs: {{syncPeriod: 1h, rules: nftables}}\nnftables: {{syncPeriod: 1h}}\n");
    let settings = configuration(&of_settings, &body);
    let proxy = Running::start(&["--manifests", folder.name(), "--config", &settings]);
    proxy.until("all Services", || has(table, "10.96.0.29"));
    let (before, begun) = (listed(table), full_passes());
    let element = format!("delete element ip TABLE {set} {{ 10.96.0.20 . tcp . 80 }}");
    for change in [&*element].into_iter().chain(CHANGES).map(|change| change.replace("TABLE", table)) {
        tool(&format!("nft {change}"));
        proxy.until(&format!("it is as before `{change}`"), || listed(table) == before);
    }
    proxy.until_logged("changed by another program, repaired");
    std::thread::sleep(Duration::from_secs(3));
    let log = proxy.log();
    let lines: Vec<&str> =
        log.lines().filter_map(|line| line.split_once("changed by another program")).map(|of| of.1).collect();
    let different: std::collections::BTreeSet<_> = lines.iter().collect();
    assert_eq!(different.len(), lines.len(), "each at most once a minute: {log}");
    let mended = full_passes();
    // IPVS mode puts its table back without one, and compares everything once a second at most.
    assert!(mended >= begun + 2.0, "{begun} full passes, {mended} after all changes");

    // Own changes, and foreign changes elsewhere, cause no full pass.
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

/// No transaction of another program reaches a table that belongs to the process: not even `nft flush ruleset` stops a Service or opens source
/// ranges.
fn keeps_its_table(mode: &str, table: &str) {
    program::set_up();
    tool("ip addr add 10.244.0.5/32 dev lo");
    for network in ["10.96.0.0/16", "203.0.113.0/24"] {
        tool(&format!("ip route add {network} dev eth9"));
    }
    let server = TcpListener::bind("10.244.0.5:8080").unwrap();
    std::thread::spawn(move || server.incoming().for_each(drop));
    let folder = Folder::new("tables-own");
    let spec = "type: LoadBalancer, ipFamilies: [IPv4], clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], \
                loadBalancerSourceRanges: [198.51.100.0/24], ports: [{name: http, port: 80, protocol: TCP}]";
    let slice = program::slice("web", "IPv4", program::HTTP, "{addresses: [10.244.0.5]}");
    folder.put("web.yaml", &(program::lone("web", spec, "{ip: 203.0.113.5}") + &slice));
    let of_settings = Folder::new("tables-own-settings");
    let start = |own_tables: bool| {
        let body = format!("mode: {mode}\nipvs: {{rules: nftables}}\nnftables: {{ownTables: {own_tables}}}\n");
        let settings = configuration(&of_settings, &body);
        Running::start(&["--manifests", folder.name(), "--config", &settings])
    };
    let connects =
        |to: &str| TcpStream::connect_timeout(&format!("{to}:80").parse().unwrap(), Duration::from_millis(200)).is_ok();
    let nft = |words: &str| Command::new("nft").args(words.split(' ')).output().unwrap();
    let is_owned = || has(table, "flags owner");

    let proxy = start(true);
    proxy.until("it is served", || connects("10.96.0.10"));
    if proxy.log().contains("nftables.ownTables is left out: this kernel has no tables that outlive their owner") {
        let before = listed(table);
        tool("nft flush ruleset");
        proxy.until("it is as before", || listed(table) == before);
        assert!(!is_owned());
        return;
    }
    let refused = program::text(&nft(&format!("add chain ip {table} other")).stderr);
    assert!(refused.contains("Operation not permitted"), "{refused}");
    let flush = |times: usize| {
        for round in 0..times {
            tool("nft flush ruleset");
            assert!(is_owned() && connects("10.96.0.10") && !connects("203.0.113.5"), "{round}: {}", proxy.log());
        }
    };
    flush(20);
    assert_eq!(proxy.log().matches("changed by another program").count(), 0, "{}", proxy.log());

    // Its own changes go on.
    folder.put("more.yaml", &program::service("demo", "more", "10.96.0.20", "{addresses: [10.244.0.5]}"));
    proxy.until("another Service", || connects("10.96.0.20"));

    // A process that is killed leaves it, and the next one takes it over.
    let before = listed(table);
    assert!(!proxy.end_with("KILL").success());
    assert!(connects("10.96.0.10") && !connects("203.0.113.5") && !is_owned());
    let proxy = start(true);
    proxy.until("it has an owner again", is_owned);
    assert_eq!(listed(table), before);
    tool("nft flush ruleset");
    assert!(connects("10.96.0.10") && !connects("203.0.113.5"));

    // Without the setting it is everybody's again, and a cleanup finds nothing in its way.
    assert!(proxy.end().success());
    let proxy = start(false);
    // It has none either between two processes.
    proxy.until("a pass", || proxy.log().contains("full pass"));
    proxy.until("it has no owner", || !is_owned() && nft(&format!("add chain ip {table} other")).status.success());
    assert!(proxy.end().success());
    let proxy = start(true);
    proxy.until("it has an owner again", is_owned);
    assert!(proxy.end().success());
    ok(&demo(&["cleanup"]));
    assert_eq!(tool("nft list tables"), "");
}

#[test]
fn modes_keep_their_tables_where_they_may_own_them() {
    kernel_test(&[Need::Root, Need::Veth, Need::Nftables], || keeps_its_table("nftables", "proxier"));
    kernel_test(&[PROXY, &[Need::Veth, Need::Nftables]].concat(), || keeps_its_table("ipvs", "proxier-ipvs"));
}

/// Only the file's final content counts, and only if a process could start with it.
#[test]
fn a_configuration_that_says_something_else_ends_the_process() {
    kernel_test(&[Need::Root, Need::Veth, Need::Nftables], || {
        tool("ip link set lo up");
        let folder = Folder::with("web.yaml", &web(10, "10.244.0.5"));
        let of_settings = Folder::new("tables-config-settings");
        let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n\
                    nftables: {syncPeriod: 1h}\n";
        let settings = of_settings.put("config.yaml", text);
        let mut proxy = Running::start(&["--manifests", folder.name(), "--config", &settings.display().to_string()]);
        proxy.until("the Service", || has("proxier", "10.96.0.10"));
        // The file grows line by line: in between it is another configuration, and a usable one.
        std::fs::write(&settings, "").unwrap();
        for line in text.lines() {
            std::thread::sleep(Duration::from_secs(1));
            let written = std::fs::read_to_string(&settings).unwrap();
            std::fs::write(&settings, format!("{written}{line}\n")).unwrap();
        }
        std::thread::sleep(Duration::from_secs(5));
        std::fs::write(&settings, format!("# the same\n{text}")).unwrap();
        std::thread::sleep(Duration::from_secs(5));
        std::fs::write(&settings, text.replace("1h", "soon")).unwrap();
        proxy.until_logged("nftables.syncPeriod: \"soon\" is not a duration");
        std::fs::remove_file(&settings).unwrap();
        proxy.until_logged("cannot be read (No such file or directory");
        assert!(proxy.is_running(), "{}", proxy.log());
        assert_eq!(proxy.log().matches("this process goes on with the configuration that it has").count(), 2);
        std::fs::write(&settings, text.replace("1h", "2h")).unwrap();
        let (status, log) = proxy.wait();
        assert_eq!(status.code(), Some(0), "{log}");
        assert!(
            log.contains("the configuration has changed")
                && !log.split("cannot be read").nth(1).unwrap().contains("ERROR"),
            "{log}"
        );
        ok(&demo(&["cleanup"]));
    });
}

/// The lock's file is there, empty: the holder's name is missing, but the lock is held.
#[test]
fn a_full_run_is_no_obstacle() {
    kernel_test(&[Need::Root, Need::Mounts, Need::Veth, Need::Nftables], || {
        tool("ip link set lo up");
        let folder = Folder::with("web.yaml", &web(10, "10.244.0.5"));
        let run = Folder::new("tables-full-run");
        let in_full_run =
            |words: &[&str]| in_mounts(&format!("mount --bind {} /run && exec \"$0\" \"$@\"", run.0.display()), words);
        tool(&format!("mount -t tmpfs -o size=16k,mode=755 none {}", run.0.display()));
        let _as_full_as_it_gets = std::fs::write(run.0.join("log"), vec![0; 65_536]);
        let words = ["run", "--proxy-mode", "nftables", "--manifests", folder.name()];
        let proxy = Running::spawn(in_full_run(&words));
        proxy.until("the Service", || has("proxier", "10.96.0.10"));
        assert!(proxy.log().contains("the holder's name cannot be written (No space left"), "{}", proxy.log());
        let second = in_full_run(&words).output().unwrap();
        let said = program::text(&second.stderr);
        assert!(second.status.code() == Some(1) && said.contains("which cannot be identified"), "{said}");
        assert!(proxy.end().success());
        let cleaned = in_full_run(&["cleanup"]).output().unwrap();
        tool(&format!("umount {}", run.0.display()));
        ok(&cleaned);
    });
}

/// A table goes in two generations: first all its rules, then its hooks. A connection that begins in between would meet some of the chains only, and
/// be refused. Tables of a kube-proxy go the same way.
#[test]
fn tables_lose_all_rules_before_their_first_hook() {
    kernel_test(&[Need::Root, Need::Veth, Need::Nftables], || {
        program::set_up();
        let folder = Folder::with("web.yaml", &web(10, "10.244.0.5"));
        ok(&demo(&["run", "--once", "--proxy-mode", "nftables", "--manifests", folder.name()]));
        let of_kube_proxy = include_str!("../fixtures/kube-proxy/tables-1.36.nft");
        oracle::run("nft", &["-f", "-"], Some(of_kube_proxy)).unwrap();
        let mut monitor =
            Command::new("stdbuf").args(["-oL", "nft", "monitor"]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(monitor.stdout.take().unwrap()).lines();
        // The group of changes, NFNLGRP_NFTABLES.
        oracle::until_they_listen(7, 1).unwrap();
        ok(&command(&["cleanup"]).output().unwrap());
        tool("nft add table ip the-end");
        let lines: Vec<String> =
            lines.map_while(Result::ok).take_while(|line| line != "add table ip the-end").collect();
        monitor.kill().unwrap();
        monitor.wait().unwrap();
        for table in ["ip proxier", "ip6 proxier", "ip kube-proxy"] {
            let at = |what: &str| {
                let what = format!("delete {what} {table}");
                let is_one = |line: &String| {
                    line.strip_prefix(&what).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
                };
                (lines.iter().position(is_one).unwrap(), lines.iter().rposition(is_one).unwrap())
            };
            let between = &lines[at("rule").1..at("chain").0];
            assert!(between.iter().any(|line| line.starts_with("# new generation")), "{table}: {lines:#?}");
            assert!(at("table").0 > at("chain").1, "{table}: {lines:#?}");
        }
    });
}

/// Commands that look at the kernel behave as the commands that need no kernel.
#[test]
fn what_looks_at_the_kernel_ends_as_usual_without_a_reader() {
    kernel_test(&[Need::Root, Need::Veth, Need::Nftables], || {
        tool("ip link set lo up");
        let folder = Folder::with("web.yaml", &web(10, "10.244.0.5"));
        let source = ["--proxy-mode", "nftables", "--manifests", folder.name()];
        for word in ["probe", "plan", "run --once", "cleanup"] {
            let words: Vec<&str> = word.split(' ').chain(source).collect();
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let mut command = command(&words);
            let status = command.stdout(writer.try_clone().unwrap()).stderr(writer).status().unwrap();
            assert_eq!(status.code(), Some(0), "{word}: {status}");
            assert_eq!(has("proxier", "10.96.0.10"), word == "run --once", "{word}");
        }
    });
}
