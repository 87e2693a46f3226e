//! `proxier-demo` in iptables mode on real kernels, as a user starts it: the output of `iptables-save` afterwards, and its exit codes.

use proxier_core::kernel::PacketCounters;
use testkit::{Need, PROXY, kernel_test};

use crate::program::world::{NODE_PORT, SERVICE, World};
use crate::program::{
    Folder, HTTP, Running, command, fetched, joined, metrics, ok, pair, set_up, tool, with_node_port,
};

const NEEDS: &[Need] = &[Need::Root, Need::Veth, Need::IptablesNft];

fn web(endpoints: &[&str]) -> String {
    with_node_port("web", "10.96.0.10", 30080, endpoints)
}

/// A folder of manifests, and the arguments for it.
fn manifests(endpoints: &[&str]) -> (Folder, Vec<String>) {
    let folder = Folder::with("web.yaml", &web(endpoints));
    let arguments = ["--proxy-mode", "iptables", "--manifests", folder.name()];
    let arguments = arguments.map(str::to_owned).to_vec();
    (folder, arguments)
}

fn demo(what: &[&str], arguments: &[String]) -> std::process::Output {
    command(what).args(arguments).output().unwrap()
}

fn nat() -> String {
    tool("iptables-save -t nat")
}

fn localnet() -> String {
    tool("sysctl -n net.ipv4.conf.all.route_localnet").trim().to_owned()
}

#[test]
fn once_serves_plan_agrees_and_cleanup_removes_what_is_ours() {
    kernel_test(NEEDS, || {
        set_up();
        tool("iptables -A INPUT -s 203.0.113.0/24 -j DROP");
        tool("iptables -t nat -N MINE");
        let before = tool("iptables-save").matches("203.0.113.0/24").count();
        let (_folder, arguments) = manifests(&["10.244.0.5", "10.244.0.6"]);
        let plan = ok(&demo(&["plan"], &arguments));
        assert!(plan.contains("+ frontend TCP 10.96.0.10:80 2 endpoints  (demo/web:http)\n"), "{plan}");
        assert!(plan.contains("\n~ sysctl net/ipv4/conf/all/route_localnet = 1 (was 0)\n"), "{plan}");
        assert!(!tool("iptables-save").contains("KUBE-"), "a plan writes nothing");
        assert_eq!(localnet(), "0");

        ok(&demo(&["run", "--once"], &arguments));
        let rules = nat();
        for line in ["demo/web:http cluster IP", "--to-destination 10.244.0.5:8080", "--to-destination 10.244.0.6:8080"]
        {
            assert!(rules.contains(line), "{line} is missing in {rules}");
        }
        assert!(tool("iptables-save -t filter").contains("block incoming localnet connections"));
        assert!(tool("ip6tables-save -t nat").contains("-A KUBE-SERVICES "), "both families");
        assert_eq!(localnet(), "1");
        let counters = || PacketCounters::default().read().ok().map(|packets| packets.into_keys().collect::<Vec<_>>());
        if let Some(names) = counters() {
            let all = tool("iptables-save") + &tool("ip6tables-save");
            for (name, count) in COUNTED.into_iter().zip([2, 1]) {
                assert_eq!(all.matches(name).count(), count, "{name} in {all}");
                assert!(names.iter().any(|of| of == name), "{names:?}");
            }
        }
        let again = ok(&demo(&["plan"], &arguments));
        assert!(again.starts_with("nothing to do: the kernel has the desired state\n"), "{again}");
        let second = ok(&demo(&["run", "--once"], &arguments));
        assert!(second.contains(", 0 changes made"), "{second}");

        let cleaned = ok(&command(&["cleanup"]).output().unwrap());
        let stays = "\nchain KUBE-FIREWALL of table filter stays";
        assert!(cleaned.contains(&format!("{stays}, and route_localnet with it: ")), "{cleaned}");
        let left = tool("iptables-save") + &tool("ip6tables-save");
        // The kubelet's chain stays.
        let ours = left.lines().filter(|line| line.contains("KUBE-") && !line.contains("KUBE-FIREWALL"));
        assert_eq!(ours.collect::<Vec<_>>(), [""; 0]);
        assert_eq!(tool("iptables-save").matches("203.0.113.0/24").count(), before);
        assert!(nat().contains(":MINE "));
        assert!(counters().is_none_or(|names| !names.iter().any(|name| COUNTED.contains(&name.as_str()))));
        assert_eq!(localnet(), "1");
        tool("sysctl -w net.ipv4.conf.all.route_localnet=0");
        let cleaned = ok(&command(&["cleanup"]).output().unwrap());
        assert!(cleaned.contains(&format!("0 things removed{stays}: ")), "{cleaned}");
    });
}

#[test]
fn probe_says_what_works() {
    kernel_test(NEEDS, || {
        let probed = ok(&command(&["probe", "--proxy-mode", "iptables"]).output().unwrap());
        assert!(probed.starts_with("iptables mode: yes\n"), "{probed}");
        let json = ok(&command(&["probe", "--proxy-mode", "iptables", "-o", "json"]).output().unwrap());
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&json["works"], &json["families"][0]["works"]), (&true.into(), &true.into()), "{json}");
        assert!(!tool("iptables-save").contains("KUBE-"), "a probe writes nothing");
    });
}

/// Number of own rules as `iptables-save` prints them; the kubelet's chain does not count.
fn rules_of(program: &str, table: &str) -> u64 {
    let saved = tool(&format!("{program}-save -t {table}"));
    let ours = saved.lines().filter(|line| line.starts_with("-A KUBE-") && !line.starts_with("-A KUBE-FIREWALL"));
    u64::try_from(ours.count()).unwrap()
}

/// `/metrics`, read as Prometheus would, counts the rules that are there.
#[test]
fn metrics_count_the_rules_that_are_there() {
    kernel_test(NEEDS, || {
        set_up();
        let (folder, arguments) = manifests(&["10.244.0.5"]);
        let local = "clusterIP: 10.96.0.20, clusterIPs: [10.96.0.20], internalTrafficPolicy: Local, ports: [{name: http, port: 80}]";
        folder.put("local.yaml", &pair("local", local, HTTP, "{addresses: [10.244.2.20], nodeName: n2}"));
        let running = Running::start(&joined(&["--iptables-sync-period", "2s"], &arguments));
        let has = |endpoint: &str| nat().contains(&format!("--to-destination {endpoint}:8080"));
        let number = |name: &str, table: &str, family: &str| {
            let key = format!("kubeproxy_sync_proxy_rules_iptables_{name}{{table=\"{table}\",ip_family=\"{family}\"}}");
            metrics().get(&key).map(|number| format!("{number:.0}").parse::<u64>().unwrap())
        };
        let is_true = || {
            ["filter", "nat"].into_iter().all(|table| {
                number("total", table, "IPv4") == Some(rules_of("iptables", table))
                    && number("total", table, "IPv6") == Some(rules_of("ip6tables", table))
            })
        };
        running.until("the first endpoint", || has("10.244.0.5"));
        running.until("the numbers", is_true);
        let first = rules_of("iptables", "nat");
        folder.put("web.yaml", &web(&["10.244.0.5", "10.244.0.6", "10.244.0.7"]));
        running.until("more endpoints", || has("10.244.0.7"));
        running.until("the next numbers", is_true);
        assert_eq!(rules_of("iptables", "nat"), first + 2 * 3, "a chain of two, and a line that leads there");
        running.until("a pass that writes nothing", || number("last", "nat", "IPv4") == Some(0));
        let all = metrics();
        for name in ["iptables_restore_failures_total", "iptables_partial_restore_failures_total"] {
            assert!(all[&format!("kubeproxy_sync_proxy_rules_{name}{{ip_family=\"IPv4\"}}")] < 1.0, "{name}");
        }
        assert_eq!((fetched("10256/healthz").is_empty(), fetched("10256/livez").is_empty()), (false, false));
        let all = metrics();
        for counted in [
            "sync_proxy_rules_last_timestamp_seconds{ip_family=\"IPv4\"}",
            "sync_proxy_rules_last_queued_timestamp_seconds{ip_family=\"IPv4\"}",
            "sync_proxy_rules_endpoint_changes_total",
            "sync_proxy_rules_service_changes_total",
            "sync_proxy_rules_no_local_endpoints_total{traffic_policy=\"internal\",ip_family=\"IPv4\"}",
            "proxy_healthz_total{code=\"200\"}",
            "proxy_livez_total{code=\"200\"}",
        ] {
            assert!(all[&format!("kubeproxy_{counted}")] > 0.0, "{counted}");
        }
        for nothing in ["endpoint_changes_pending", "service_changes_pending"] {
            assert!(all[&format!("kubeproxy_sync_proxy_rules_{nothing}")] < 1.0, "{nothing}");
        }
        let passes = |kind: &str| {
            all[&format!("kubeproxy_sync_{kind}_proxy_rules_duration_seconds_count{{ip_family=\"IPv4\"}}")]
        };
        assert!(passes("full") >= 1.0 && passes("partial") >= 1.0);
        assert!(!all.keys().any(|name| name.contains("nftables")), "those are another mode's");
        assert!(running.end().success());
    });
}

/// Counters of packets that rules name, if the kernel has any.
const COUNTED: [&str; 2] = ["ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"];

/// Built-in chains of every table have nft rules that iptables cannot print. At a start and later, rules follow
/// changes, jumps are there once, and foreign rules stay unchanged.
#[test]
fn rules_that_iptables_cannot_show_stop_nothing() {
    for is_there_first in [true, false] {
        kernel_test(&[NEEDS, &[Need::Nftables]].concat(), || stops_nothing("iptables", is_there_first));
    }
}

#[test]
fn rules_that_iptables_cannot_show_stop_nothing_in_ipvs_mode() {
    kernel_test(&[PROXY, NEEDS, &[Need::Nftables]].concat(), || stops_nothing("ipvs", true));
}

/// Rules of nf_tables are listed after somebody wrote some, not every time: listing many takes the program seconds.
#[test]
fn rules_are_listed_again_only_after_another_program_wrote() {
    kernel_test(&[NEEDS, &[Need::Nftables]].concat(), || {
        set_up();
        // So that the programs of nf_tables are used.
        tool("iptables-nft -t mangle -N KUBE-KUBELET-CANARY");
        let (folder, arguments) = manifests(&["10.244.0.5"]);
        let period = ["--iptables-sync-period", "1s", "--iptables-min-sync-period", "100ms"];
        let running = Running::start(&joined(&period, &arguments));
        running.until_logged("full pass:");
        let passes = |of: &str| {
            let key = format!("kubeproxy_sync_{of}_proxy_rules_duration_seconds_count{{ip_family=\"IPv4\"}}");
            metrics().get(&key).copied().unwrap_or_default()
        };
        let full = || passes("full");
        // Page faults of ended children; without a child there are none.
        let of_children = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", running.pid())).unwrap();
            stat.rsplit(") ").next().unwrap().split(' ').nth(8).unwrap().parse::<u64>().unwrap()
        };
        let is_quiet = || {
            let (before, passes) = (of_children(), full());
            running.until("more full passes", || full() > passes + 1.5);
            of_children() == before
        };
        let has = |endpoint: &str| nat().contains(&format!("--to-destination {endpoint}:8080"));
        running.until("no program runs", is_quiet);
        tool("iptables-nft -t nat -F KUBE-SERVICES");
        running.until("the rules are back", || nat().contains("-A KUBE-SERVICES "));
        running.until("no program runs after a repair", is_quiet);
        let changes = passes("partial");
        folder.put("web.yaml", &web(&["10.244.0.7"]));
        let is_done = || has("10.244.0.7") && !has("10.244.0.5") && passes("partial") > changes;
        running.until("the other endpoint", is_done);
        assert!(is_quiet(), "its own change is no reason: {}", running.log());
        tool("nft add table ip somebody");
        running.until("no program runs after another table came", is_quiet);
        tool("ip6tables-nft -t nat -F KUBE-SERVICES");
        running.until("the rules of IPv6 are back", || tool("ip6tables-save -t nat").contains("-A KUBE-SERVICES "));
        assert!(metrics()["kubeproxy_sync_failures_total"] < 1.0, "{}", running.log());
        assert!(running.end().success());
    });
}

fn stops_nothing(mode: &str, is_there_first: bool) {
    let world = World::new();
    let theirs = || {
        for (program, family) in [("iptables", "ip"), ("ip6tables", "ip6")] {
            for (table, chain) in [
                ("filter", "FORWARD"),
                ("filter", "INPUT"),
                ("nat", "POSTROUTING"),
                ("nat", "PREROUTING"),
                ("mangle", "FORWARD"),
            ] {
                // A built-in chain does not exist before its first use.
                tool(&format!("{program} -t {table} -A {chain} -p udp --dport 9 -j ACCEPT"));
                tool(&format!("nft add rule {family} {table} {chain} ct state vmap {{ established : continue }}"));
            }
        }
    };
    let ruleset = || tool("nft list ruleset");
    if is_there_first {
        theirs();
    }
    let arguments = world.arguments(mode);
    let mut first = vec!["--iptables-sync-period", "2s", "--ipvs-sync-period", "2s"];
    if mode == "ipvs" {
        first.extend(["--ipvs-rules", "iptables"]);
    }
    let running = Running::start(&joined(&first, &arguments));
    running.until("it serves", || world.asks(SERVICE) && world.asks(NODE_PORT));
    if !is_there_first {
        theirs();
    }
    let more = web(&["10.244.0.5"])
        .replace("10.96.0.10", "10.96.0.11")
        .replace("web", "more")
        .replace("nodePort: 30080", "nodePort: 30081");
    world.manifests.put("more.yaml", &more);
    running.until("the next Service", || world.asks("10.96.0.11:80") && world.asks("192.0.2.1:30081"));
    std::fs::remove_file(world.manifests.0.join("web.yaml")).unwrap();
    running.until("the first one has gone", || !world.asks(SERVICE) && !world.asks(NODE_PORT));
    let full = || metrics()["kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}"];
    let until_full = |more: f64| {
        let passes = full();
        running.until("more full passes", || full() >= passes + more);
    };
    until_full(2.0);
    let lines = || ruleset().lines().count();
    let before = lines();
    until_full(2.0);
    assert_eq!(lines(), before, "nothing is written twice: {}", ruleset());
    for (jump, times) in [("jump KUBE-FORWARD", 2), ("jump KUBE-POSTROUTING", 2)] {
        assert_eq!(ruleset().matches(jump).count(), times, "once for each family: {}", ruleset());
    }
    assert!(metrics()["kubeproxy_sync_failures_total"] < 1.0, "{}", running.log());
    assert!(!running.log().contains("ERROR"), "{}", running.log());
    assert!(running.end().success());
    ok(&command(&["cleanup"]).output().unwrap());
    assert!(!ruleset().contains("KUBE-SERVICES") && !ruleset().contains("KUBE-SVC-"), "{}", ruleset());
    assert_eq!(ruleset().matches("ct state vmap").count(), 10);
}
