//! `render` prints the objects that `run --once` makes in a real kernel, and the field's tools take them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use testkit::{Need, PROXY, kernel_test};

use crate::program::{self, Folder, HTTP, Running, command, demo, ok, pair, text, tool};

/// Names of Services may begin with a digit, from Kubernetes 1.37 on.
const OBJECTS: &str = "apiVersion: v1
kind: Service
metadata: {name: 1web, namespace: demo}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10, 'fd00:96::10']
  ipFamilies: [IPv4, IPv6]
  externalIPs: [198.51.100.1]
  externalTrafficPolicy: Local
  loadBalancerSourceRanges: [203.0.113.0/24, '2001:db8:5::/64']
  healthCheckNodePort: 32100
  ports:
  - {name: http, port: 80, protocol: TCP, targetPort: 8080, nodePort: 30080}
  - {name: dns, port: 53, protocol: UDP, targetPort: 53, nodePort: 30053}
status: {loadBalancer: {ingress: [{ip: 198.51.100.9}]}}
---
apiVersion: v1
kind: Service
metadata: {name: 2-empty, namespace: demo}
spec:
  clusterIP: 10.96.0.11
  clusterIPs: [10.96.0.11]
  ipFamilies: [IPv4]
  ports: [{name: http, port: 80, protocol: TCP}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: 1web-4, namespace: demo, labels: {kubernetes.io/service-name: 1web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}, {name: dns, port: 53, protocol: UDP}]
endpoints:
- {addresses: [10.244.0.5], nodeName: n1}
- {addresses: [10.244.1.6], nodeName: n2}
- {addresses: [10.244.2.7], nodeName: n3}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: 1web-6, namespace: demo, labels: {kubernetes.io/service-name: 1web}}
addressType: IPv6
ports: [{name: http, port: 8080, protocol: TCP}, {name: dns, port: 53, protocol: UDP}]
endpoints:
- {addresses: ['fd00:244::5'], nodeName: n1}
";

/// Client affinity, which only some versions of nft can list.
fn sticky() -> String {
    let port = "{name: http, port: 80, protocol: TCP}";
    let spec = format!("clusterIP: 10.96.0.12, clusterIPs: [10.96.0.12], sessionAffinity: ClientIP, ports: [{port}]");
    pair("sticky", &spec, HTTP, "{addresses: [10.244.0.5]}, {addresses: [10.244.1.6]}")
}

/// Sets up the addresses of the node.
fn set_up() {
    program::set_up();
    tool("ip addr add 2001:db8:9::1/64 dev eth9 nodad");
}

/// Runs `render` for such a node, in a process without rights on the kernel.
fn render(manifests: &Folder, more: &[&str]) -> Output {
    let folder = manifests.0.display().to_string();
    let mut line = vec!["render", "--manifests", folder.as_str(), "--node-address", "192.0.2.1"];
    line.extend(["--node-address", "2001:db8:9::1"]);
    line.extend(more);
    let inner = command(&line);
    let mut powerless = Command::new("setpriv");
    powerless.args(["--bounding-set=-all", "--inh-caps=-all", "--"]).arg(inner.get_program()).args(inner.get_args());
    powerless.env_remove("KUBERNETES_SERVICE_HOST").env_remove("KUBECONFIG").output().unwrap()
}

/// Starts a tool with this text on its standard input.
#[track_caller]
fn feed(line: &str, input: &str) {
    let mut words = line.split_whitespace();
    let mut tool = Command::new(words.next().unwrap());
    let mut child = tool.args(words).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{line}: {}\n{input}", text(&output.stderr));
}

/// Addresses and local routes that a proxy makes.
fn bound() -> BTreeSet<String> {
    let addresses = Command::new("ip").args(["-o", "addr", "show", "kube-ipvs0"]).output().unwrap();
    let addresses = text(&addresses.stdout);
    let addresses = addresses.lines().filter_map(|line| line.split_whitespace().nth(3)).map(str::to_owned);
    addresses.chain(local_routes().lines().map(str::to_owned)).collect()
}

/// Lines of the tools for IPVS mode's objects.
fn of_ipvs() -> BTreeSet<String> {
    let own = |line: &str, starts: &str| -> Vec<String> {
        tool(line).lines().filter(|line| line.starts_with(starts)).map(|of| format!("{line}: {of}")).collect()
    };
    [own("ipvsadm -Sn", "-"), own("ipset save", "add "), own("iptables-save", "-A "), own("ip6tables-save", "-A ")]
        .into_iter()
        .flatten()
        .collect()
}

/// The words of a ruleset, and how often each comes: nft prints elements in the order of their hashes. `th dport` after a match of the
/// protocol is `tcp dport` to nft.
fn of_nft() -> BTreeSet<String> {
    let mut words: BTreeMap<String, usize> = BTreeMap::new();
    for word in tool("nft list ruleset").split_whitespace().map(|word| word.trim_end_matches(',')) {
        *words.entry(if word == "th" { "tcp" } else { word }.to_owned()).or_default() += 1;
    }
    words.into_iter().map(|(word, times)| format!("{times} {word}")).collect()
}

/// Rules with their places in their chains, as `iptables-save` prints them, of both families. Without kube-proxy's counters of packets, which a
/// pass adds where the kernel has them.
fn of_iptables() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for program in ["iptables-save", "ip6tables-save"] {
        let (mut table, mut places) = (String::new(), BTreeMap::<String, usize>::new());
        for line in tool(program).lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some(first) if first.starts_with('*') => first.clone_into(&mut table),
                Some(first) if first.starts_with(":KUBE-") => drop(found.insert(format!("{program} {table} {first}"))),
                Some("-A") if !line.contains("localhost_nps_accepted_pkts") => {
                    let place = places.entry(format!("{table} {}", words.next().unwrap())).or_default();
                    *place += 1;
                    // iptables-save prints two spaces before the name.
                    let rule = line.replace("name  ", "name ");
                    let rule = rule.replace(" -m nfacct --nfacct-name ct_state_invalid_dropped_pkts", "");
                    found.insert(format!("{program} {table} {place}: {rule}"));
                }
                _ => {}
            }
        }
    }
    found
}

/// What the tools list after `run --once` with these arguments, and after they have read the rendered parts, is the same. `parts`: the tools by
/// the names of their parts. Returns what was rendered.
fn is_what_a_pass_makes(
    needs: &[Need],
    arguments: &[&str],
    parts: &[(&str, &str)],
    listed: fn() -> BTreeSet<String>,
) -> (Value, String) {
    let manifests = Folder::with("web.yaml", OBJECTS);
    if !parts.iter().any(|(part, _)| *part == "nft") {
        manifests.put("sticky.yaml", &sticky());
    }
    let output = render(&manifests, &[arguments, &["-o", "json"]].concat());
    let rendered: Value = serde_json::from_str(&ok(&output)).unwrap();
    for part in ["ipvsadm", "ipset", "iptables", "ip6tables", "nft"] {
        assert_eq!(rendered[part] == "", !parts.iter().any(|(of, _)| *of == part), "{part}: {rendered:#}");
    }
    let mut passed = BTreeSet::new();
    kernel_test(needs, || {
        set_up();
        ok(&demo(&[&["run", "--once", "--manifests", &manifests.0.display().to_string()], arguments].concat()));
        passed = listed().into_iter().chain(bound()).collect();
        assert!(passed.len() > 50, "{passed:#?}");
        // The number of flows goes by the processors, and only the first namespace can change it.
        let settings = rendered["sysctl"].as_object().unwrap().iter();
        for (path, value) in settings.filter(|(path, _)| !path.ends_with("nf_conntrack_max")) {
            let real = std::fs::read_to_string(format!("/proc/sys/{path}")).unwrap();
            assert_eq!(real.trim(), value.as_str().unwrap(), "{path}");
        }
    });
    kernel_test(needs, || {
        set_up();
        for (device, addresses) in rendered["addresses"].as_object().unwrap() {
            tool(&format!("ip link add {device} type dummy"));
            for address in addresses.as_array().unwrap() {
                tool(&format!("ip addr add {} dev {device}", address.as_str().unwrap()));
            }
        }
        for (part, tool) in parts {
            feed(tool, rendered[part].as_str().unwrap());
        }
        // Rules have more than one spelling; restored, they are saved as those of the proxy were.
        let restored: BTreeSet<String> = listed().into_iter().chain(bound()).collect();
        assert_eq!(restored, passed);
    });
    (rendered, text(&output.stderr))
}

const BY_IPTABLES: [(&str, &str); 4] = [
    ("ipset", "ipset restore"),
    ("ipvsadm", "ipvsadm --restore"),
    ("iptables", "iptables-restore"),
    ("ip6tables", "ip6tables-restore"),
];
const TOOLS: &[Need] = &[Need::Root, Need::Veth, Need::Tool("setpriv")];

#[test]
fn in_ipvs_mode_it_is_what_a_pass_makes() {
    is_what_a_pass_makes(&[PROXY, TOOLS].concat(), &[], &BY_IPTABLES, of_ipvs);
}

/// `auto` is what `run` chooses on a node without iptables rules, which `render` reports.
#[test]
fn in_ipvs_mode_with_a_table_it_is_what_a_pass_makes() {
    let needs = [PROXY, TOOLS, &[Need::NftRanges]].concat();
    let parts = [BY_IPTABLES[1], ("nft", "nft --file -")];
    let listed: fn() -> BTreeSet<String> = || of_nft().into_iter().chain(of_ipvs()).collect();
    let (_, said) = is_what_a_pass_makes(&needs, &["--ipvs-rules", "auto"], &parts, listed);
    let line = "proxier-demo: rules by nftables: iptables has no table filter that drops by default, and no chains of IPVS mode, \
                as on most nodes; with ipvs.rules: iptables (--ipvs-rules) the other one is used\n";
    assert_eq!(said, line);
}

#[test]
fn in_nftables_mode_it_is_what_a_pass_makes() {
    let needs = [TOOLS, &[Need::NftRanges]].concat();
    is_what_a_pass_makes(&needs, &["--proxy-mode", "nftables"], &[("nft", "nft --file -")], of_nft);
}

#[test]
fn in_iptables_mode_it_is_what_a_pass_makes() {
    let needs = [TOOLS, &[Need::IptablesNft]].concat();
    is_what_a_pass_makes(&needs, &["--proxy-mode", "iptables"], &BY_IPTABLES[2..], of_iptables);
}

/// Sockets of Services, as `ss` prints them.
fn sockets() -> BTreeSet<String> {
    let printed = [("TCP", "ss -Htln"), ("UDP", "ss -Huln")].map(|(protocol, line)| (protocol, tool(line)));
    let sockets = printed.iter().flat_map(|(protocol, text)| {
        text.lines().map(move |line| format!("{protocol} {}", line.split_whitespace().nth(3).unwrap()))
    });
    let is_of_service = |socket: &String| [":80", ":53", ":30080", ":30053"].iter().any(|port| socket.ends_with(port));
    sockets.filter(is_of_service).collect()
}

fn local_routes() -> String {
    tool("ip route show table local proto 118") + &tool("ip -6 route show table local proto 118")
}

#[test]
fn in_userspace_mode_it_is_what_the_process_does() {
    const MODE: [&str; 2] = ["--proxy-mode", "userspace"];
    let manifests = Folder::with("web.yaml", OBJECTS);
    let output = ok(&render(&manifests, &["-o", "json", MODE[0], MODE[1]]));
    let rendered: Value = serde_json::from_str(&output).unwrap();
    for unused in ["ipvsadm", "ipset", "iptables", "ip6tables", "nft"] {
        assert_eq!(rendered[unused], "", "{rendered:#}");
    }
    let listeners = rendered["listeners"].as_array().unwrap();
    let web = listeners.iter().find(|listener| listener["listener"] == "TCP 198.51.100.9:80").unwrap();
    // External policy Local: who comes from elsewhere gets this node's endpoint.
    assert_eq!((&web["service"], &web["outside"]), (&"demo/1web:http".into(), &serde_json::json!(["10.244.0.5:8080"])));
    assert_eq!(web["inside"].as_array().unwrap().len(), 3, "{web}");
    let wanted: BTreeSet<String> =
        listeners.iter().map(|listener| listener["listener"].as_str().unwrap().to_owned()).collect();
    let text = ok(&render(&manifests, &MODE));
    let line = "TCP 10.96.0.10:80 10.244.0.5:8080 10.244.1.6:8080 10.244.2.7:8080 (demo/1web:http)\n";
    assert!(text.contains("\n# listeners of the process\n") && text.contains(line), "{text}");

    let needs = [TOOLS, &[Need::Tool("ss")]].concat();
    let mut routes = String::new();
    kernel_test(&needs, || {
        set_up();
        let running = Running::start(&["--manifests", &manifests.0.display().to_string(), MODE[0], MODE[1]]);
        running.until("it listens", || sockets() == wanted);
        routes = local_routes();
        assert!(running.end().success());
    });
    kernel_test(&needs, || {
        set_up();
        for route in rendered["routes"].as_array().unwrap() {
            tool(&format!("ip route add {}", route.as_str().unwrap()));
        }
        assert!(routes.contains("10.96.0.10") && routes.contains("fd00:96::10"), "{routes}");
        assert_eq!(local_routes(), routes);
    });
}

#[test]
fn render_prints_a_part_for_each_tool() {
    let manifests = Folder::with("web.yaml", OBJECTS);
    let folder = manifests.0.display().to_string();
    let printed = ok(&demo(&["render", "--manifests", &folder, "--node-address", "192.0.2.1"]));
    let parts: Vec<&str> = printed.lines().filter(|line| line.starts_with("# ")).collect();
    let tools = ["sysctl", "ip address", "ipvsadm --restore", "ipset restore", "iptables-restore", "ip6tables-restore"];
    assert_eq!(parts, tools.map(|tool| format!("# {tool}")), "{printed}");
    assert!(printed.contains("\n10.96.0.10 dev kube-ipvs0\n"), "{printed}");
    assert!(printed.contains("\n-A -t 192.0.2.1:30080 -s rr\n"), "{printed}");
    let by_default = ok(&demo(&["render", "--manifests", &folder, "--ipvs-rules", "auto"]));
    let parts: Vec<&str> = by_default.lines().filter(|line| line.starts_with("# ")).collect();
    assert_eq!(parts, ["sysctl", "ip address", "ipvsadm --restore", "nft --file"].map(|tool| format!("# {tool}")));
    // Without an address node ports are missing, which is reported.
    let output = demo(&["render", "--manifests", &folder]);
    assert!(!ok(&output).contains(":30080"));
    assert!(text(&output.stderr).contains("give --node-address"), "{}", text(&output.stderr));
    assert_eq!(demo(&["render", "--manifests", &folder, "--node-address", "nowhere"]).status.code(), Some(2));
    manifests
        .put("bad.yaml", "kind: Service\napiVersion: v1\nmetadata: {name: bad, namespace: demo}\nspec: {ports: 7}\n");
    let output = demo(&["render", "--manifests", &folder]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("10.96.0.10"), "the rest is rendered");
}
