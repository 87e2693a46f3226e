//! Kernels that lack a part: `run` behaves as `probe` says.
//!
//! Removes each part in turn, by a line in `/etc/modprobe.d` as administrators use. That changes the machine, so it
//! runs only where `TESTKIT_REQUIRE=all` says that the machine is for tests. A part takes about 20 s. Parts that have a
//! message in the code are always removed. Of the rest a sample is, which depends on the seed (all with
//! `PROXIER_SCENARIOS=all`). `PROXIER_LACKS=nf_nat,ip_set` removes these only.

use std::process::Output;

use serde_json::{Value, json};
use testkit::modules::{Forbidden, is_loaded, turn, unload};
use testkit::traffic::{NameServer, ask_udp, connect_and_ask};
use testkit::{Need, Netns, PROXY, Sample, kernel_test};

use crate::live;
use crate::program::{
    self, Folder, Running, demo, fetched, in_mounts, ipvsadm, lone, ok, set_up, slice, status_of, text, tool,
};

/// A Service of both families with UDP, source ranges and an external IP: every rule and every call there is.
fn objects() -> String {
    let spec = "type: LoadBalancer, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10, 'fd00:96::10'], ipFamilies: [IPv4, IPv6], \
                ipFamilyPolicy: RequireDualStack, externalIPs: [198.51.100.1, '2001:db8:51::1'], \
                loadBalancerSourceRanges: [203.0.113.0/24, '2001:db8:113::/48'], \
                ports: [{name: dns, port: 53, protocol: UDP, targetPort: 53, nodePort: 30053}]";
    let [v4, v6] = [("IPv4", "{addresses: [10.244.0.5]}"), ("IPv6", "{addresses: ['fd00:244::5']}")]
        .map(|(family, endpoints)| slice("dns", family, "{name: dns, port: 53, protocol: UDP}", endpoints));
    lone("dns", spec, "{ip: 198.51.100.9}, {ip: '2001:db8:51::9'}") + &v4 + &v6
}

fn probe() -> (Output, Value) {
    let output = demo(&["probe", "-o", "json"]);
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (output, report)
}

/// State and need of the finding with this module.
fn finding<'a>(report: &'a Value, module: &str) -> (&'a str, &'a str) {
    let findings = report["findings"].as_array().unwrap();
    let of = |finding: &&Value| finding["module"] == module && finding["is_feature"] == false;
    let finding = findings.iter().find(of).unwrap_or_else(|| panic!("no finding of {module}"));
    (finding["state"].as_str().unwrap(), finding["need"].as_str().unwrap())
}

/// Runs the case in its own namespace, and cleans up for the next; only on a machine for tests.
fn without(module: &str, case: impl FnOnce(&str)) {
    if !is_for_tests() {
        return;
    }
    let _turn = turn();
    let needs = [PROXY, &[Need::Mounts, Need::Veth, Need::Conntrack, Need::Tool("setpriv")]].concat();
    kernel_test(&needs, || {
        println!("without {module}");
        unload(module);
        let _forbidden = Forbidden::new(&[module]);
        set_up();
        let folder = Folder::with("dns.yaml", &objects());
        case(folder.name());
        assert!(!is_loaded(module), "{module} was loaded after all");
        // Leftovers would keep modules in use.
        drop(demo(&["cleanup"]));
    });
}

fn is_for_tests() -> bool {
    let is = std::env::var("TESTKIT_REQUIRE").is_ok_and(|value| value == "all");
    if !is {
        eprintln!("SKIPPED: modules are taken away only where TESTKIT_REQUIRE=all");
    }
    is
}

/// Modules to remove in this run: `always`, and a sample of `sometimes`, one in `one_in`.
fn sampled(always: &[&'static str], sometimes: &[&'static str], one_in: usize) -> Vec<&'static str> {
    if let Ok(named) = std::env::var("PROXIER_LACKS") {
        let is_named = |module: &&str| named.split(',').any(|name| name == *module);
        return always.iter().chain(sometimes).copied().filter(is_named).collect();
    }
    let sample = Sample::asked_for();
    let taken =
        sometimes.iter().enumerate().filter(|(number, _)| sample.takes(*number, one_in)).map(|(_, module)| *module);
    always.iter().copied().chain(taken).collect()
}

/// Checks that both families of the Service are served and guarded, by rules of this variant of the programs (`-legacy`, `-nft`, or empty for the
/// names without a suffix).
#[track_caller]
fn is_served(variant: &str) {
    let there = ipvsadm();
    for line in ["-a -u 10.96.0.10:53 -r 10.244.0.5:53 -m -w 1", "-a -u [fd00:96::10]:53 -r [fd00:244::5]:53 -m -w 1"] {
        assert!(there.contains(line), "{line}: {there:#?}");
    }
    for program in ["iptables", "ip6tables"] {
        let rules = tool(&format!("{program}{variant}-save"));
        assert!(rules.contains("-j KUBE-SERVICES") && rules.contains("-j MASQUERADE"), "{program}{variant}: {rules}");
    }
    let bound = tool("ip addr show kube-ipvs0");
    assert!(bound.contains("10.96.0.10/32") && bound.contains("fd00:96::10/128"), "{bound}");
}

/// Missing parts that are only wanted: serving works without them, they are logged once, and nothing fails.
#[test]
fn optional_modules_are_done_without() {
    for module in
        sampled(&["nf_conntrack_netlink"], &["xt_ipvs", "xt_physdev", "br_netfilter", "ip_vs_wrr", "ip_vs_sh"], 5)
    {
        without(module, |manifests| {
            let (_, report) = probe();
            assert_eq!(finding(&report, module), ("missing", "wanted"), "{report:#}");
            assert_eq!(report["verdict"]["answer"], "yes", "{}", report["verdict"]);
            let once = demo(&["run", "--once", "--manifests", manifests]);
            let said = text(&once.stderr);
            println!("{said}");
            assert!(once.status.success(), "{module}: {said}");
            is_served("");
            let running = Running::start(&["--manifests", manifests, "--ipvs-sync-period", "2s"]);
            running.until("it is healthy", || status_of("10256/healthz") == 200);
            let passes = || {
                let page = fetched("10249/metrics");
                let of = |name: &str| program::page::read(&page).get(name).copied().unwrap_or_default();
                assert!(of("kubeproxy_sync_failures_total") < 0.5, "{page}");
                (
                    of("kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}"),
                    of("kubeproxy_unmet_wishes"),
                )
            };
            running.until("several full passes", || passes().0 > 2.5);
            let log = running.log();
            if module == "nf_conntrack_netlink" {
                assert!(passes().1 > 0.5);
                assert!(said.contains("UDP flows to endpoints that are gone are not ended"), "{said}");
                let told = log.lines().filter(|line| line.contains("this kernel lacks a feature: UDP flows")).count();
                assert_eq!(told, 1, "{log}");
            }
            if module == "xt_ipvs" {
                assert!(
                    said.contains("this kernel lacks xt_ipvs") && log.contains("this kernel lacks xt_ipvs"),
                    "{said}{log}"
                );
            }
            assert!(running.end().success());
        });
    }
}

/// A match that is missing, which only writing shows: rules are written without it after the kernel has refused it.
#[test]
fn a_match_that_turns_out_to_be_missing() {
    for module in sampled(&[], &["xt_physdev", "xt_ipvs"], 2) {
        without(module, |manifests| {
            // A container may not see the node's modprobe.d.
            let run = |words: &[&str]| {
                let script = "mount -t tmpfs none /etc/modprobe.d && \
                              exec setpriv --bounding-set=-sys_module --inh-caps=-sys_module \"$0\" \"$@\"";
                in_mounts(script, words)
            };
            let once = run(&["run", "--once", "--manifests", manifests]).output().unwrap();
            let said = text(&once.stderr);
            println!("{said}");
            assert!(once.status.success(), "{said}");
            assert!(
                said.contains(&format!("lacks a feature: rules are written without match {}", &module[3..])),
                "{said}"
            );
            is_served("");
            for program in ["iptables-save", "ip6tables-save"] {
                let rules = tool(program);
                assert!(!rules.contains(&format!("-m {} ", &module[3..])), "{rules}");
            }
            let running = Running::spawn(run(&["run", "--manifests", manifests, "--ipvs-sync-period", "2s"]));
            running.until_logged("this kernel lacks a feature: ");
            running.until("it is healthy", || status_of("10256/healthz") == 200);
            assert!(running.end().success());
        });
    }
}

/// A kernel with counters of packets and without the match that counts by them: rules of iptables mode do without, by either back end.
#[test]
fn iptables_mode_does_without_the_match_that_counts() {
    if sampled(&["xt_nfacct"], &[], 1).is_empty() {
        return;
    }
    without("xt_nfacct", |manifests| {
        let once = demo(&["run", "--once", "--proxy-mode", "iptables", "--manifests", manifests]);
        let said = text(&once.stderr);
        println!("{said}");
        assert!(once.status.success() && said.contains("rules are written without match nfacct"), "{said}");
        for program in ["iptables-save", "ip6tables-save"] {
            let rules = tool(program);
            assert!(rules.contains("--ctstate INVALID -j DROP") && !rules.contains("nfacct"), "{rules}");
        }
    });
}

/// One of the two back ends of iptables is missing: the other one is used.
#[test]
fn one_way_to_write_rules_is_enough() {
    let legacy = ["iptable_nat", "ip6table_filter", "iptable_filter", "ip6table_nat"];
    // `nft_chain_nat` is omitted: no iptables program can tell without writing that its chains are missing (see
    // docs/ipvs.md).
    for module in sampled(&[], &[&legacy[..], &["nf_tables", "nft_compat"]].concat(), 6) {
        without(module, |manifests| {
            let (output, report) = probe();
            assert_eq!(finding(&report, module), ("missing", "either"), "{report:#}");
            assert_eq!((output.status.code(), &report["verdict"]["answer"]), (Some(0), &Value::from("yes")));
            let once = demo(&["run", "--once", "--proxy-mode", "ipvs", "--no-fallback", "--manifests", manifests]);
            let said = text(&once.stderr);
            println!("{said}");
            assert!(once.status.success(), "{module}: {said}");
            is_served(if legacy.contains(&module) { "-nft" } else { "-legacy" });
        });
    }
}

/// Checks that another mode serves without `--no-fallback`, and also if no mode is asked for.
fn serves_in_another_mode(report: &Value, manifests: &str) {
    for (asked, says) in [("ipvs", "falling back from ipvs to "), ("auto", "not ipvs: ")] {
        let words = ["--proxy-mode", asked, "--manifests", manifests];
        let once = demo(&[&["run", "--once"], &words[..]].concat());
        let said = text(&once.stderr);
        assert!(
            once.status.success() && said.contains(says) && said.contains("IPVS cannot be used"),
            "{asked}: {said}"
        );
        let running = Running::start(&words);
        running.until("it is healthy", || status_of("10256/healthz") == 200);
        let serves = fetched("10249/proxyMode");
        assert!(["nftables", "iptables"].contains(&serves.as_str()), "{serves}");
        if asked == "auto" {
            assert_eq!(report["modes"][1]["serves"], true, "{report:#}");
            assert_eq!((report["serves"].as_str(), serves.as_str()), (Some("nftables"), "nftables"));
        }
        let held = if serves == "nftables" { tool("nft list ruleset") } else { tool("iptables-save") };
        assert!(held.contains("10.96.0.10") && held.contains("10.244.0.5"), "{held}");
        let metrics = fetched("10249/metrics");
        let info = format!("kubeproxy_mode_info{{asked=\"{asked}\",mode=\"{serves}\"}} 1");
        assert!(metrics.contains(&info), "{metrics}");
        assert!(running.end().success());
    }
}

/// Annotations may ask for a scheduler that no module here has: the configured one serves, and the module is named.
#[test]
fn without_a_services_scheduler_the_configured_one_serves() {
    without("ip_vs_mh", |manifests| {
        let annotated = objects().replacen("{name: dns,", "{name: dns, annotations: {proxier/scheduler: mh},", 1);
        std::fs::write(format!("{manifests}/dns.yaml"), annotated).unwrap();
        for _ in 0..2 {
            let once = demo(&["run", "--once", "--manifests", manifests]);
            let said = text(&once.stderr);
            is_served("");
            let there = ipvsadm();
            assert!(there.contains("-A -u 10.96.0.10:53 -s rr"), "{there:#?}");
            let told = "load it with `modprobe ip_vs_mh` [ENOENT]; the configured scheduler is used until then";
            assert!(!once.status.success() && said.contains(told), "{said}");
        }
    });
}

fn proxy_mode() -> String {
    testkit::get("http://127.0.0.1:10249/proxyMode").map_or_else(|_| String::new(), |page| page.body)
}

/// The mode that serves instead of IPVS mode depends on the back end of the iptables programs, which the kubelet's
/// chain shows. `plan` works too, and an Event of the Node has the reason.
#[test]
fn without_ip_vs_the_back_end_of_iptables_decides() {
    without("ip_vs", |manifests| {
        let ipvs = ["--proxy-mode", "ipvs", "--manifests", manifests];
        let plan = demo(&[&["plan"], &ipvs[..]].concat());
        let (planned, said) = (ok(&plan), text(&plan.stderr));
        assert!(planned.contains("UDP 10.96.0.10:53") && planned.contains("10.244.0.5:53"), "{planned}");
        assert!(planned.contains("+ virtual server UDP 198.51.100.9:53"), "{planned}");
        let empty = "this kernel cannot do ipvs mode: this is what an empty kernel would get that can";
        assert!(said.contains(empty) && said.contains(Forbidden::FILE), "{said}");

        for (program, mode) in [("iptables-legacy", "iptables"), ("iptables-nft", "nftables")] {
            tool(&format!("{program} -t mangle -N KUBE-IPTABLES-HINT"));
            let running = Running::start(&ipvs);
            running.until_logged(&format!("falling back from ipvs to {mode}: ipvs: "));
            running.until("it serves", || proxy_mode() == mode);
            running.until("the rules", || {
                let (legacy, tables) = (tool("iptables-legacy-save -t nat"), tool("nft list tables"));
                let by_tables = tables.contains("table ip proxier");
                assert!(!(by_tables && legacy.contains("10.96.0.10")));
                if mode == "nftables" { by_tables } else { legacy.contains("10.96.0.10/32") }
            });
            assert!(running.end().success());
            ok(&demo(&["cleanup"]));
            tool(&format!("{program} -t mangle -X KUBE-IPTABLES-HINT"));
        }

        let world = live::World::new(vec![live::Service::new("web", "10.96.0.10", &["10.244.1.5"])]);
        let running = Running::start(&["--proxy-mode", "ipvs", "--kubeconfig", &world.kubeconfig()]);
        let told = || world.server.events().into_iter().find(|event| event["reason"] == "ModeUnavailable");
        running.until("the Event", || told().is_some());
        let event = told().unwrap();
        assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&json!("Node"), &json!("n1")));
        assert_eq!(event["type"], "Warning", "{event}");
        let note = event["note"].as_str().unwrap();
        assert!(note.starts_with("ipvs: ") && note.contains("ip_vs"), "{note}");
        assert!(running.end().success());
    });
}

/// Modules that netfilter requires.
const NETFILTER: [&str; 5] = ["nf_tables", "ip_tables", "ip6_tables", "ip_vs", "nf_conntrack"];

/// A kernel without any netfilter is served by sockets.
#[test]
fn without_netfilter_sockets_serve() {
    if !is_for_tests() {
        return;
    }
    let _turn = turn();
    kernel_test(&[Need::Root, Need::Veth], || {
        for module in NETFILTER {
            unload(module);
        }
        let _forbidden = Forbidden::new(&NETFILTER);
        set_up();
        tool("ip addr add 10.244.0.5/32 dev lo");
        let (here, at) = (Netns::current().unwrap(), |address: &str| address.parse().unwrap());
        let _web = NameServer::tcp(&here, at("10.244.0.5:8080"), "tcp").unwrap();
        let _dns = NameServer::udp(&here, at("10.244.0.5:5353"), "udp").unwrap();
        let probed = demo(&["probe", "--proxy-mode", "auto", "-o", "json"]);
        let report: Value = serde_json::from_str(&ok(&probed)).unwrap();
        assert_eq!(report["serves"], "userspace", "{report:#}");

        let folder = Folder::new("lacks");
        let spec = "clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ports: [{name: web, port: 80, protocol: TCP}, \
                    {name: dns, port: 53, protocol: UDP}]";
        let ports = "{name: web, port: 8080, protocol: TCP}, {name: dns, port: 5353, protocol: UDP}";
        folder.put("both.yaml", &program::pair("both", spec, ports, "{addresses: [10.244.0.5]}"));
        let running = Running::start(&["--proxy-mode", "auto", "--manifests", folder.name()]);
        running.until_logged("mode userspace: the best that this machine can do; not ipvs: ");
        running.until("it says so", || proxy_mode() == "userspace");
        running.until("TCP", || connect_and_ask(at("10.96.0.10:80")).is_ok_and(|name| name == "tcp"));
        running.until("UDP", || ask_udp(at("10.96.0.10:53")).is_ok_and(|name| name == "udp"));
        assert!(running.end().success());
        // The mode that serves in place of nftables mode needs more of the cluster, which the source then asks for.
        let world = live::World::new(vec![live::Service::new("web", "10.96.0.10", &["10.244.1.5"])]);
        let running = Running::start(&["--proxy-mode", "nftables", "--kubeconfig", &world.kubeconfig()]);
        running.until("it serves", || proxy_mode() == "userspace");
        running.until_logged("the server has no ServiceCIDRs");
        assert!(running.end().success());
        drop(demo(&["cleanup"]));
        assert_eq!(NETFILTER.map(is_loaded), [false; 5], "{}", tool("lsmod"));
    });
}

/// Required parts that are missing: the mode does not serve, for the reason that `probe` gives.
#[test]
fn what_is_required_is_an_obstacle() {
    if !is_for_tests() {
        return;
    }
    let sometimes = "ip_vs_rr xt_set dummy xt_comment xt_mark xt_addrtype xt_conntrack ip_set_hash_ip ip_set_hash_ipport \
                     ip_set_hash_ipportip ip_set_hash_ipportnet ip_set_bitmap_port ip_set nf_conntrack xt_MASQUERADE";
    for module in sampled(&["ip_vs"], &sometimes.split(' ').collect::<Vec<_>>(), 6) {
        without(module, |manifests| {
            let (_, report) = probe();
            assert_eq!(finding(&report, module), ("missing", "required"), "{report:#}");
            assert_eq!((&report["modes"][0]["mode"], &report["modes"][0]["serves"]), (&"ipvs".into(), &false.into()));
            let asked = demo(&["probe", "--proxy-mode", "ipvs"]);
            assert_eq!((asked.status.code(), &report["verdict"]["answer"]), (Some(1), &Value::from("no")));
            let reason = report["verdict"]["reasons"][0].as_str().unwrap().to_owned();
            assert!(reason.contains(Forbidden::FILE) && reason.contains(module), "{reason}");
            let only_ipvs = ["--proxy-mode", "ipvs", "--no-fallback", "--manifests", manifests];
            let once = demo(&[&["run", "--once"], &only_ipvs[..]].concat());
            let mut ends = vec![(once.status.code(), text(&once.stderr))];
            // All modules share the code, and each takes seconds: three are enough.
            if ["ip_vs", "ip_vs_rr", "xt_set"].contains(&module) {
                let (status, log) = Running::start(&only_ipvs).wait();
                ends.push((status.code(), log));
            }
            for (code, said) in ends {
                assert_eq!(code, Some(1), "{module}: {said}");
                assert!(said.contains(&reason), "{module}: {reason}\n{said}");
            }
            if module == "ip_vs" {
                serves_in_another_mode(&report, manifests);
            }
        });
    }
    // And all of it works again.
    let _turn = turn();
    kernel_test(PROXY, || {
        set_up();
        let folder = Folder::with("dns.yaml", &objects());
        ok(&demo(&["run", "--once", "--manifests", folder.name()]));
    });
}
