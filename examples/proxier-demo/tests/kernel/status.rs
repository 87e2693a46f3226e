//! The status page in IPVS mode: counters as `ipvsadm` has them.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Need, Netns, PROXY, kernel_test, veth_pair};

use crate::program::{self, Folder, Running, ipvsadm, set_up, tool};

fn web(endpoints: &str) -> String {
    program::service("shop", "web", "10.96.0.10", endpoints)
}

/// Sets up a node with a pod that listens.
fn pod() -> (Netns, TcpListener) {
    set_up();
    let (node, pod) = (Netns::current().unwrap(), Netns::new().unwrap());
    veth_pair((&node, "pod0"), (&pod, "eth0")).unwrap();
    tool("ip address add 10.244.0.1/24 dev pod0");
    pod.add_address("10.244.0.5/24", "eth0").unwrap();
    let server = pod.run_in(|| TcpListener::bind("10.244.0.5:8080")).unwrap().unwrap();
    (pod, server)
}

/// The data with Services: while a machine is busy, there are answers without.
fn data() -> Value {
    let begun = Instant::now();
    loop {
        let data: Value = serde_json::from_str(&program::fetched("10249/status.json")).unwrap();
        if data["services"].is_object() {
            return data;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{data}");
    }
}

/// Weight, active connections and whether it leaves, of each endpoint.
fn endpoints() -> Value {
    let data = data();
    let endpoints = data["services"]["list"][0]["frontends"][0]["endpoints"].as_array().cloned().unwrap_or_default();
    let rows = endpoints.iter().map(|one| json!([one["address"], one["weight"], one["active"], one["leaving"]]));
    rows.collect()
}

#[test]
fn counters_are_those_of_ipvs_and_drains_show() {
    kernel_test(&[PROXY, &[Need::Veth]].concat(), || {
        let (_pod, server) = pod();
        let folder = Folder::with("web.yaml", &web("{addresses: [10.244.0.5]}"));
        let running =
            Running::start(&["--manifests", folder.name(), "--proxy-mode", "ipvs", "--status-page", "localhost"]);
        running.until("it is served", || ipvsadm().iter().any(|line| line.contains("-r 10.244.0.5:8080")));
        running.until("it shows", || endpoints() == json!([["10.244.0.5:8080", 1, 0, null]]));

        let to: SocketAddr = "10.96.0.10:80".parse().unwrap();
        let client = TcpStream::connect_timeout(&to, Duration::from_secs(10)).unwrap();
        let (_accepted, _) = server.accept().unwrap();
        running.until("the connection shows", || endpoints() == json!([["10.244.0.5:8080", 1, 1, null]]));
        running.until("its counter is that of IPVS", || {
            let connections = numbers("--stats --exact", "10.96.0.10:80")[0];
            connections > 0 && data()["services"]["list"][0]["frontends"][0]["counters"]["connections"] == connections
        });

        // The endpoint goes, and its connection stays for a while.
        folder.put("web.yaml", &web("{addresses: [10.244.0.6]}"));
        let leaving = json!([["10.244.0.6:8080", 1, 0, null], ["10.244.0.5:8080", 0, 1, true]]);
        running.until("it leaves", || endpoints() == leaving);
        let draining = data()["draining"].clone();
        assert_eq!((&draining["count"], &draining["list"][0]["realServer"]), (&json!(1), &json!("10.244.0.5:8080")));
        drop(client);
        assert!(running.end().success());
    });
}

/// The row of a real server in `ipvsadm -Ln` with these options: the numbers behind its address.
fn numbers(options: &str, real: &str) -> Vec<u64> {
    let listed = tool(&format!("ipvsadm -Ln {options}"));
    let row = listed.lines().find(|line| line.contains(real)).unwrap_or_else(|| panic!("{real}: {listed}"));
    row.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

#[test]
fn watched_rates_are_those_of_ipvs() {
    kernel_test(&[PROXY, &[Need::Veth]].concat(), || {
        let (_pod, server) = pod();
        std::thread::spawn(move || server.incoming().for_each(drop));
        let folder = Folder::with("web.yaml", &web("{addresses: [10.244.0.5]}"));
        let manifests = folder.0.display().to_string();
        program::ok(&program::demo(&["run", "--once", "--manifests", &manifests, "--proxy-mode", "ipvs"]));
        let mut watch = program::command(&["show", "--watch", "1", "-o", "json", "--manifests", &manifests]);
        let mut child = watch.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
        let web = |block: &Value| block["virtualServers"][0].clone();
        let number = |value: &Value| value.as_f64().unwrap_or_default();
        // Connections before the first block are in no rate.
        let mut blocks = vec![next()];
        assert_eq!(
            (&web(&blocks[0])["service"], &web(&blocks[0])["perSecond"]),
            (&json!("shop/web:http"), &Value::Null)
        );
        for _ in 0..40 {
            drop(TcpStream::connect("10.96.0.10:80").unwrap());
            std::thread::sleep(Duration::from_millis(50));
        }
        // The kernel adds up every two seconds. Without connections the rate is 0.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(6)
            || number(&web(blocks.last().unwrap())["perSecond"]["connections"]) > 0.0
        {
            blocks.push(next());
        }
        tool(&format!("kill -INT {}", child.id()));
        assert!(child.wait().unwrap().success());
        let counted = numbers("--stats --exact", "10.244.0.5:8080");
        assert_eq!(counted[0], 40);
        for (at, name) in ["connections", "packetsIn", "packetsOut", "bytesIn", "bytesOut"].into_iter().enumerate() {
            for of_real in [false, true] {
                let seconds = |pair: &[Value]| number(&pair[1]["elapsedSeconds"]) - number(&pair[0]["elapsedSeconds"]);
                let rate = |block: &Value| {
                    let server = web(block);
                    number(&if of_real { &server["realServers"][0] } else { &server }["perSecond"][name])
                };
                let sum: f64 = blocks.windows(2).map(|pair| rate(&pair[1]) * seconds(pair)).sum();
                let total = counted[at] as f64;
                assert!(sum > total * 0.99 && sum < total * 1.01, "{name}: {sum}, {total}");
            }
        }

        // A closed pipe ends it, and text comes in blocks.
        let shell =
            format!("{} show --watch 0.2 --manifests {manifests} | head -4", env!("CARGO_BIN_EXE_proxier-demo"));
        let output = std::process::Command::new("sh").args(["-c", &shell]).output().unwrap();
        let text = program::text(&output.stdout);
        assert!(text.starts_with("1 virtual servers, 1 real servers, 0 drain; rates follow\nVIRTUAL SERVER"), "{text}");
        assert!(text.contains("TCP 10.96.0.10:80 rr") && text.contains("shop/web:http"), "{text}");
        assert_eq!(program::text(&output.stderr), "");
        program::ok(&program::demo(&["cleanup"]));
    });
}

/// Through `script`, which gives it a terminal of its own.
#[test]
fn a_terminal_is_left_as_it_was() {
    kernel_test(PROXY, || {
        set_up();
        for last in 1..=40 {
            tool(&format!("ipvsadm -A -t 10.96.0.{last}:80 -s rr"));
            tool(&format!("ipvsadm -a -t 10.96.0.{last}:80 -r 10.244.0.{last}:8080 -m"));
        }
        let program = env!("CARGO_BIN_EXE_proxier-demo");
        let watch = format!("stty rows 10 cols 70; timeout -s TERM 12 {program} show --watch 1; echo ended $?");
        let output = std::process::Command::new("script").args(["-qec", &watch, "/dev/null"]).output().unwrap();
        let text = program::text(&output.stdout);
        assert!(text.contains("\u{1b}[?1049h"), "{text:?}");
        // timeout exits with 124 for any code of the program.
        assert!(text.contains("\u{1b}[?25h\u{1b}[?1049lended 124"), "{text:?}");
        let frames: Vec<&str> = text.split("\u{1b}[H").skip(1).collect();
        assert!(frames.len() >= 2, "{text:?}");
        for frame in frames {
            let lines: Vec<&str> =
                frame.split("\u{1b}[J").next().unwrap().split('\n').map(|line| line.trim_end_matches('\r')).collect();
            assert_eq!(lines.len(), 10, "{frame:?}");
            assert!(lines.iter().all(|line| line.trim_end_matches("\u{1b}[K").chars().count() <= 70), "{frame:?}");
            assert!(lines[9].starts_with("not shown: 36 virtual servers"), "{frame:?}");
        }
        tool("ipvsadm -C");
    });
}
