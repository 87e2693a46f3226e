//! `plan`, `show` and `probe` on a real kernel. A plan that was carried out leaves nothing to do, tables fit a
//! terminal, and JSON is as `docs/reference/json.md` describes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::apiserver::{ApiServer, Request};
use testkit::{Need, PROXY, kernel_test};

use crate::program::world::{NODE_PORT, SERVICE, World};
use crate::program::{
    Folder, Running, changed, command, configuration, demo, joined, metrics, ok, pair, set_up, text, tool,
};

/// Keys as paths: `virtualServers[].realServers[].weight`.
fn paths(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                found.insert(path.clone());
                paths(value, &path, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| paths(item, &format!("{path}[]"), found)),
        _ => {}
    }
}

/// The rows of the page's table below this heading: path, and whether it is always there.
fn documented(heading: &str) -> BTreeMap<String, bool> {
    let readme = include_str!("../../../../docs/reference/json.md");
    let section = readme.split(&format!("\n## {heading}\n")).nth(1).unwrap().split("\n#").next().unwrap();
    let mut rows = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let always = !cells[2].contains('?');
        for path in cells[1].split(", ") {
            assert!(rows.insert(path.trim_matches('`').to_owned(), always).is_none(), "{path} is there twice");
        }
    }
    assert!(!rows.is_empty(), "{heading}");
    rows
}

/// Every key is documented; keys documented as always there are there.
fn is_as_documented(heading: &str, outputs: &[Value]) {
    let rows = documented(heading);
    let mut found = BTreeSet::new();
    for output in outputs {
        paths(output, "", &mut found);
    }
    let unknown: Vec<&String> = found.iter().filter(|path| !rows.contains_key(*path)).collect();
    assert!(unknown.is_empty(), "{heading}: not documented: {unknown:?}");
    let missing: Vec<&String> =
        rows.iter().filter(|(path, always)| **always && !found.contains(*path)).map(|(path, _)| path).collect();
    assert!(missing.is_empty(), "{heading}: documented, and not there: {missing:?}: {outputs:#?}");
}

/// The first lines that a command prints; it ends with its reader.
fn first_lines(words: &[&str], count: usize) -> Vec<String> {
    let mut child = command(words).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(count).map(Result::unwrap).collect();
    assert!(child.wait().unwrap().success());
    lines
}

/// Watches while a client connects five times after the first reading. The rates of `demo/web:http` at `10.96.0.10:80`
/// add up to these connections.
fn watched_rates(words: &[&str], connects: &mut dyn FnMut() -> bool) -> Vec<Value> {
    let words = [&["show", "--watch", "0.2", "-o", "json"], words].concat();
    let mut child = command(&words).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let mut blocks = vec![next()];
    assert!((0..5).all(|_| connects()));
    // Two more readings after the last connection, at least.
    blocks.extend((0..12).map(|_| next()));
    tool(&format!("kill -INT {}", child.id()));
    assert!(child.wait().unwrap().success());
    let web = |block: &Value| -> Value {
        let mut all = block["frontends"].as_array().unwrap().iter();
        all.find(|of| of["key"] == "TCP 10.96.0.10:80").unwrap_or_else(|| panic!("{block:#}")).clone()
    };
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}"));
    assert_eq!(web(&blocks[0])["perSecond"], Value::Null);
    let connections = blocks.windows(2).map(|pair| {
        let seconds = number(&pair[1]["elapsedSeconds"]) - number(&pair[0]["elapsedSeconds"]);
        let of = web(&pair[1]);
        assert_eq!(of["service"], "demo/web:http");
        number(&of["perSecond"]["connections"]) * seconds
    });
    let connections: f64 = connections.sum();
    assert!((connections - 5.0).abs() < 0.2, "{connections}: {blocks:#?}");
    blocks
}

/// Whether these tests, and so what they start, ignore SIGHUP, as under nohup.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 != 0
}

/// A full pipe blocks the output, but not the end.
#[test]
fn a_signal_ends_a_watch_that_nobody_reads() {
    kernel_test(&[Need::Root, Need::Nftables], || {
        for signal in ["TERM", "INT"] {
            let (reader, writer) = std::io::pipe().unwrap();
            // Its own description of the pipe: the program's stays a blocking one.
            let own = format!("/proc/self/fd/{}", writer.as_raw_fd());
            let mut own = OpenOptions::new().write(true).custom_flags(nix::libc::O_NONBLOCK).open(own).unwrap();
            let mut watching = command(&["show", "--watch", "0.1", "-o", "json", "--proxy-mode", "nftables"]);
            let mut watching = watching.stdout(writer).spawn().unwrap();
            let mut reader = BufReader::new(reader);
            reader.read_line(&mut String::new()).unwrap();
            while own.write(b"x").is_ok() {}
            std::thread::sleep(Duration::from_secs(1));
            tool(&format!("kill -{signal} {}", watching.id()));
            let begun = Instant::now();
            let ended = loop {
                match watching.try_wait().unwrap() {
                    None if begun.elapsed() < Duration::from_secs(20) => std::thread::sleep(Duration::from_millis(50)),
                    ended => break ended,
                }
            };
            watching.kill().unwrap();
            assert!(ended.is_some_and(|ended| ended.success()), "{signal}: {ended:?}");
        }
    });
}

/// `show` without a mode finds the one that serves. Clients' connections say whether it is true.
#[test]
fn show_lists_what_each_mode_serves() {
    kernel_test(&[Need::Root, Need::Veth, Need::Nftables, Need::IptablesNft], || {
        let world = World::new();
        let none = "clusterIP: 10.96.0.11, clusterIPs: [10.96.0.11], ports: [{name: http, port: 80, protocol: TCP}]";
        let none = pair("none", none, "{name: http, port: 8080}", "");
        world.manifests.put("none.yaml", &none);
        let manifests = world.manifests.0.display().to_string();
        let show =
            |words: &[&str]| ok(&command(&[&["show", "--manifests", &manifests], words].concat()).output().unwrap());
        let (mut outputs, mut watched) = (Vec::new(), Vec::new());
        for mode in ["nftables", "iptables", "userspace"] {
            let running = world.start(mode);
            running.until("it serves", || world.asks(SERVICE) && world.asks(NODE_PORT));
            let read = || -> Value { serde_json::from_str(&show(&["-o", "json"])).unwrap() };
            let at = |shown: &Value, key: &str| {
                let mut all = shown["frontends"].as_array().unwrap().iter();
                all.find(|of| of["key"] == key).cloned().unwrap_or_default()
            };
            let before = read();
            for _ in 0..3 {
                assert!(world.asks(SERVICE));
            }
            let after = read();
            assert_eq!(after["mode"], mode);
            let node_port = if mode == "iptables" { "TCP 0.0.0.0:30080" } else { "TCP 192.0.2.1:30080" };
            for key in ["TCP 10.96.0.10:80", node_port] {
                let found = at(&after, key);
                assert_eq!(found["service"], "demo/web:http", "{mode}: {after:#}");
                let known = if mode == "userspace" { Value::Null } else { json!(["10.244.0.5:8080"]) };
                assert_eq!(found["endpoints"], known, "{mode} {key}");
            }
            if mode != "userspace" {
                assert_eq!(at(&after, "TCP 10.96.0.11:80")["endpoints"], json!([]), "{mode}: {after:#}");
            }
            let count = |shown: &Value| at(shown, "TCP 10.96.0.10:80")["connections"].as_u64();
            let counted = count(&after).zip(count(&before)).map(|(after, before)| after - before);
            // Elements of nftables mode count where they are told to, see below.
            assert_eq!(counted, (mode != "nftables").then_some(3), "{mode}");
            if mode == "nftables" {
                let watch = ["show", "--watch", "0.2", "--proxy-mode", mode];
                let first = first_lines(&[&watch[..], &["--manifests", &manifests]].concat(), 1);
                assert!(first[0].ends_with("connections are not counted: set nftables.countConnections"), "{first:?}");
            } else {
                watched.extend(watched_rates(&["--manifests", &manifests], &mut || world.asks(SERVICE)));
            }
            if !ignores_hangup() {
                let mut watching = command(&["show", "--watch", "0.2", "-o", "json", "--manifests", &manifests]);
                let mut watching = watching.stdout(std::process::Stdio::piped()).spawn().unwrap();
                let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
                lines.next().unwrap().unwrap();
                tool(&format!("kill -HUP {}", watching.id()));
                // Without its terminal.
                assert_eq!(watching.wait().unwrap().signal(), Some(1));
            }
            let text = show(&[]);
            assert!(text.contains(&format!("\n{mode} mode: ")) && text.contains("demo/web:http"), "{text}");
            outputs.extend([before, after]);
            assert!(running.end().success());
            ok(&demo(&["cleanup"]));
        }
        is_as_documented("`show -o json` in the other modes", &outputs);
        is_as_documented("`show --watch -o json` in the other modes", &watched);

        // nftables mode counts where it is told to, also behind the map of verdicts, and a new process goes on counting.
        let sticky = "clusterIP: 10.96.0.12, clusterIPs: [10.96.0.12], sessionAffinity: ClientIP, ports: [{name: http, port: 80}]";
        let sticky = pair("sticky", sticky, "{name: http, port: 8080, protocol: TCP}", "{addresses: [10.244.0.5]}");
        world.manifests.put("sticky.yaml", &sticky);
        let settings = Folder::new("show-settings");
        let config = configuration(&settings, "mode: nftables\nnftables: {countConnections: true}\n");
        let served = ["10.96.0.12:80", SERVICE];
        for total in [3, 6] {
            let running = Running::start(&["--manifests", &manifests, "--config", &config]);
            running.until("it serves", || !tool("nft list tables").is_empty());
            running.until("it is as planned", || show(&[]).contains("10.96.0.12:80"));
            for address in served {
                (0..3).for_each(|_| assert!(world.asks(address)));
            }
            let shown: Value = serde_json::from_str(&show(&["-o", "json"])).unwrap();
            for address in served {
                let mut all = shown["frontends"].as_array().unwrap().iter();
                let found = all.find(|of| of["key"] == format!("TCP {address}")).unwrap();
                assert_eq!(found["connections"], total, "{shown:#}");
            }
            let traced =
                command(&["trace", "outside", SERVICE, "--live=0.1", "--manifests", &manifests, "--config", &config]);
            let traced = ok(&{ traced }.output().unwrap());
            assert!(traced.contains(&format!("{total} connections (first packets) in all")), "{traced}");
            let words =
                ["trace", "outside", SERVICE, "--live", "-o", "json", "--manifests", &manifests, "--config", &config];
            let traced: Value = serde_json::from_str(&ok(&command(&words).output().unwrap())).unwrap();
            assert_eq!(traced["live"]["counted"]["connections"], total, "{traced:#}");
            is_as_documented("`trace -o json`", &[traced]);
            if total == 6 {
                watched_rates(&["--manifests", &manifests, "--config", &config], &mut || world.asks(SERVICE));
            }
            assert!(running.end().success());
        }
        let running = world.start("nftables");
        running.until("nothing counts", || !tool("nft list table ip proxier").contains("counter packets"));
        assert!(running.end().success());
        ok(&demo(&["cleanup"]));
        assert_eq!(show(&["--proxy-mode", "nftables"]), "FRONTEND  SERVICE\nnftables mode: 0 Frontends, 0 endpoints\n");
    });
}

const LONG: &str = "a-name-of-sixty-three-characters-which-is-as-long-as-they-can-be";

fn manifest() -> String {
    let long = &LONG[..63];
    let service = |name: &str, addresses: Value, port: i64| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": long, "name": name},
            "spec": {
                "type": "ClusterIP", "clusterIP": addresses[0], "clusterIPs": addresses, "sessionAffinity": "ClientIP",
                "ports": [{"name": "fifteen-letters", "port": port, "protocol": "TCP", "targetPort": 8080}],
            },
        })
    };
    let long_address = "2001:db8:1111:2222:3333:4444:5555:";
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv6",
        "metadata": {"namespace": long, "name": "slice", "labels": {"kubernetes.io/service-name": long}},
        "ports": [{"name": "fifteen-letters", "port": 65000, "protocol": "TCP"}],
        "endpoints": [{"addresses": [format!("{long_address}6666")]}, {"addresses": [format!("{long_address}7777")]}],
    });
    let items = [
        service(long, json!([format!("{long_address}8888"), "10.96.0.10"]), 65001),
        service("bad", json!(["10.96.0.11"]), 70000),
        service("owner", json!(["10.96.0.12"]), 80),
        service("thief", json!(["10.96.0.12"]), 80),
        slice,
    ];
    json!({"kind": "List", "apiVersion": "v1", "items": items}).to_string()
}

#[test]
fn json_of_commands_without_a_kernel_is_as_documented() {
    let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/../demo/manifests");
    for (heading, words) in [
        ("`explain -o json`", "explain shop/web"),
        ("`trace -o json`", "trace outside 192.168.50.1:30080"),
        ("`diff -o json`", "diff --from ipvs --to nftables"),
    ] {
        let words: Vec<&str> = words.split(' ').chain(["-o", "json", "--manifests", manifests]).collect();
        let printed = command(&words).args(["--hostname-override", "demo-node"]).output().unwrap();
        assert!(matches!(printed.status.code(), Some(0 | 3)), "{}", text(&printed.stderr));
        is_as_documented(heading, &[serde_json::from_slice(&printed.stdout).unwrap()]);
    }
}

#[test]
fn tables_fit_a_terminal_and_json_is_as_documented() {
    kernel_test(PROXY, || {
        set_up();
        tool("ipvsadm -A -t 198.51.100.1:443 -s rr -p 300");
        let before = changed();
        let folder = Folder::with("all.json", &manifest());
        folder.put("typed.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: typed}\nspec: {ports: 7}\n");
        let path = folder.0.display().to_string();
        let run = |words: &[&str]| command(words).args(["--manifests", &path]).output().unwrap();
        let said = |output: &Output| {
            assert!(matches!(output.status.code(), Some(0..=2)), "{}", text(&output.stderr));
            text(&output.stdout)
        };
        let parsed = |output: &Output| -> Value {
            serde_json::from_str(&said(output)).unwrap_or_else(|error| panic!("{error}: {}", said(output)))
        };
        let fits = |what: &str, table: &str| {
            assert!(table.lines().count() > 3, "{what}: {table}");
            for line in table.lines() {
                assert!(!line.contains('\u{1b}'), "{what}: colours, and this is no terminal: {line:?}");
            }
        };
        fits("plan", &said(&run(&["plan"])));
        let plans = [parsed(&run(&["plan", "-o", "json"]))];
        assert_eq!(changed(), before, "a plan writes nothing");
        said(&run(&["run", "--once"]));
        let shown = said(&run(&["show"]));
        fits("show", &shown);
        let flat = shown.replace(['\n', ' '], "");
        assert!(flat.contains(&format!("{}/{}:fifteen-letters", &LONG[..63], &LONG[..63])), "{shown}");
        assert!(shown.contains("198.51.100.1:443 rr persistent 300 s"), "{shown}");
        fits("probe", &said(&run(&["probe"])));
        let probes = [parsed(&run(&["probe", "-o", "json"]))];
        let shows = [parsed(&run(&["show", "-o", "json"]))];
        let watch =
            format!("{} show --watch 0.2 -o json --manifests {path} | head -2", env!("CARGO_BIN_EXE_proxier-demo"));
        let watched = ok(&std::process::Command::new("sh").args(["-c", &watch]).output().unwrap());
        let watched: Vec<Value> = watched.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        is_as_documented("`show --watch -o json`", &watched);
        is_as_documented("`plan -o json`", &plans);
        is_as_documented("`show -o json`", &shows);
        is_as_documented("`probe -o json`", &probes);
        ok(&command(&["cleanup"]).output().unwrap());
    });
}

/// Checks a plan of another process while a proxy runs.
fn beside(mode: &str) {
    let world = World::new();
    let spec = "type: NodePort, clusterIP: 10.96.0.53, ports: [{name: dns, port: 53, protocol: UDP, targetPort: 8053, nodePort: 30053}]";
    let ports = "{name: dns, port: 8053, protocol: UDP}";
    world.manifests.put("dns.yaml", &pair("dns", spec, ports, "{addresses: [10.244.0.5]}"));
    // Nothing to be seen from outside: no endpoint for clients of this node, and none at all.
    let spec = "clusterIP: 10.96.0.54, internalTrafficPolicy: Local, ports: [{name: http, port: 80}]";
    let elsewhere = "{addresses: [10.244.0.5], nodeName: elsewhere}";
    world.manifests.put("elsewhere.yaml", &pair("elsewhere", spec, "{name: http, port: 8080}", elsewhere));
    let spec = "type: NodePort, clusterIP: 10.96.0.55, ports: [{name: dns, port: 53, protocol: UDP, nodePort: 30055}]";
    world.manifests.put("empty.yaml", &pair("empty", spec, ports, ""));
    let running = world.start(mode);
    running.until("it serves", || world.asks(SERVICE));
    let own = std::net::UdpSocket::bind("192.0.2.1:0").unwrap();
    // In some modes the kernel refuses to send it.
    drop(own.send_to(b"x", "192.0.2.1:30055"));
    let plan =
        |more: &[&str]| demo(&joined(&[&["plan", "--detailed-exitcode"], more].concat(), &world.arguments(mode)));
    let is_nothing = || {
        let now = plan(&[]);
        let said = format!("{mode}: {}{}", text(&now.stdout), text(&now.stderr));
        assert!(
            text(&now.stdout) == "nothing to do: the kernel has the desired state\n" && now.status.code() == Some(0),
            "{said}"
        );
    };
    running.until("the first pass is over", || plan(&[]).status.code() == Some(0));
    is_nothing();

    // A Service that only the plan knows: it alone is in the plan.
    let more = Folder::new("more");
    let spec = "clusterIP: 10.96.0.99, ports: [{name: http, port: 80, targetPort: 8080}]";
    more.put("more.yaml", &pair("more", spec, "{name: http, port: 8080}", "{addresses: [10.244.0.5]}"));
    let more = more.0.display().to_string();
    let with_more = plan(&["--manifests", &more]);
    let steps = text(&with_more.stdout);
    assert_eq!(with_more.status.code(), Some(2), "{mode}: {steps}{}", text(&with_more.stderr));
    // The lines of iptables mode are written with the rest of their chains.
    let made: Vec<&str> = steps.lines().filter(|line| line.starts_with(['+', '-'])).collect();
    assert!(
        !made.is_empty() && made.iter().all(|line| line.starts_with('+') && line.contains("10.96.0.99")),
        "{mode}: {steps}"
    );
    // Every error is 1 with that option, 2 without it.
    for (option, code) in [(&["--detailed-exitcode"][..], 1), (&[], 2)] {
        for wrong in [&["--cluster-cidr", "x"][..], &["--nothing"], &["--manifests", "/nowhere"]] {
            let words = [&["plan", "--proxy-mode", mode], option, wrong].concat();
            assert_eq!(demo(&words).status.code(), Some(code), "{words:?}");
        }
    }

    // A flow to an endpoint that is gone would be forgotten at a start; a plan leaves it alone.
    let flows = || tool("conntrack -L -p udp --orig-dst 10.96.0.53 --orig-port-dst 53").lines().count();
    let flow = |from: u16, endpoint: &str| {
        tool(&format!(
            "conntrack -I -p udp -t 600 -s 192.0.2.2 -d 10.96.0.53 --sport {from} --dport 53 \
             -r {endpoint} -q 192.0.2.2 --reply-port-src 8053 --reply-port-dst {from}"
        ));
    };
    if mode != "userspace" {
        flow(4001, "10.244.0.5");
        is_nothing();
        flow(4002, "10.244.0.6");
        let with_flow = plan(&[]);
        let steps = text(&with_flow.stdout);
        assert!(
            steps.starts_with("- flows UDP to 1 addresses and ports") && steps.ends_with("\n1 change\n"),
            "{mode}: {steps}"
        );
        assert_eq!((with_flow.status.code(), flows()), (Some(2), 2), "{mode}");
    }
    assert!(running.end().success());
    if mode == "userspace" {
        // No process listens any more: everything is to be done again, but for the routes, which stay.
        let steps = text(&plan(&[]).stdout);
        assert!(steps.contains("+ listener TCP 10.96.0.10:80") && !steps.contains("route"), "{steps}");
    } else {
        // A start forgets it, and counts that.
        let running = world.start(mode);
        running.until("it is forgotten", || flows() == 1);
        let forgotten = "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"}";
        running.until("it is counted", || metrics()[forgotten] > 0.0);
        assert!(running.end().success());
    }
}

/// Reading a cluster goes by the mode that serves, whatever was asked for: other Nodes' addresses, and networks of Services.
#[test]
fn a_plan_and_a_run_read_for_the_mode_that_serves() {
    kernel_test(&[Need::Root, Need::Veth, Need::Nftables, Need::IptablesNft], || {
        set_up();
        let server = ApiServer::start();
        server.put(&json!({
            "kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]},
        }));
        let url = server.url();
        let (mut asked, mut modes) = (0, BTreeSet::new());
        for command in [&["plan"][..], &["run", "--once"]] {
            for wanted in ["auto", "nftables", "iptables"] {
                let words = ["--proxy-mode", wanted, "--master", &url, "--hostname-override", "n1"];
                let output = demo(&[command, &words].concat());
                let said = text(&output.stderr);
                ok(&output);
                let mode = if wanted == "auto" {
                    let told = said.lines().find_map(|line| line.split_once(": mode ")?.1.split(':').next());
                    told.unwrap_or_else(|| panic!("{said}")).to_owned()
                } else {
                    wanted.to_owned()
                };
                let requests = server.requests().split_off(asked);
                asked += requests.len();
                let nodes = |request: &&Request| request.path.ends_with("/nodes") && !request.is_watch();
                let are_all = requests.iter().filter(nodes).any(|request| request.parameter("fieldSelector").is_none());
                let networks = requests.iter().any(|request| request.path.ends_with("/servicecidrs"));
                let needed = (["ipvs", "userspace"].contains(&mode.as_str()), mode == "userspace");
                assert_eq!((are_all, networks), needed, "{command:?} {wanted}: {mode}: {requests:#?}");
                modes.insert(mode);
            }
        }
        println!("{modes:?}");
    });
}

#[test]
fn beside_a_running_proxy_nothing_is_left_to_do() {
    for mode in ["nftables", "iptables", "userspace"] {
        kernel_test(&[Need::Root, Need::Veth, Need::Nftables, Need::IptablesNft, Need::Conntrack], || beside(mode));
    }
    kernel_test(&[PROXY, &[Need::Veth, Need::Conntrack]].concat(), || beside("ipvs"));
}
