//! A node changes from kube-proxy to `proxier-demo` while clients connect: in the mode that kube-proxy had, nothing is written; in another, all of
//! kube-proxy's objects go. Their text is in `fixtures/kube-proxy`, written by hand.

use std::process::Command;
use std::time::{Duration, Instant};

use netlink_batch::header::{NLM_F_CREATE, NfGenHeader};
use netlink_batch::{NulStr, Protocol};
use testkit::traffic::Connection;
use testkit::{Need, Netns, PROXY, Sample, kernel_test, oracle};

use crate::program::world::{Client, NODE_PORT, RULES, SERVICE, World, held_by};
use crate::program::{self, HTTP, Running, command, demo, joined, lone, ok, pair, slice, text, tool};

const NEEDS: &[Need] = &[Need::Root, Need::Veth, Need::Nftables, Need::IptablesNft, Need::IptablesLegacy];

/// Services in addition to `demo/web`: one without endpoints; one with two endpoints and session affinity.
fn more() -> String {
    let of = |address: &str, port: &str| {
        let port = format!("{{name: http, port: 80, protocol: TCP, targetPort: 8080{port}}}");
        format!("clusterIP: {address}, clusterIPs: [{address}], ports: [{port}]")
    };
    let empty = format!("type: NodePort, ipFamilies: [IPv4], {}", of("10.96.0.20", ", nodePort: 30081"));
    let sticky = format!("sessionAffinity: ClientIP, {}", of("10.96.0.30", ""));
    lone("empty", &empty, "") + &pair("sticky", &sticky, HTTP, "{addresses: [10.244.0.5]}, {addresses: [10.244.0.6]}")
}

/// Tables of its nftables mode, by release: 1.36 has no chain that marks packets.
const TABLES: [(&str, &str); 2] = [
    ("1.33", include_str!("../fixtures/kube-proxy/tables.nft")),
    ("1.36", include_str!("../fixtures/kube-proxy/tables-1.36.nft")),
];

/// A table as it was read from a node with kube-proxy 1.36.2.
const TABLE_OF_A_NODE: &str = include_str!("../fixtures/kube-proxy/node-1.36.2.nft");

/// A load balancer for these networks.
fn ranged(ranges: &str) -> String {
    let port = "{name: http, port: 80, protocol: TCP, targetPort: 8080}";
    let spec = format!(
        "type: LoadBalancer, clusterIP: 10.96.0.40, clusterIPs: [10.96.0.40], ipFamilies: [IPv4], ports: [{port}], \
         allocateLoadBalancerNodePorts: false, loadBalancerSourceRanges: [{ranges}]"
    );
    lone("ranged", &spec, "{ip: 198.51.100.5}") + &slice("ranged", "IPv4", HTTP, "{addresses: [10.244.0.5]}")
}

const RANGED_SERVICE: &str = "10.96.0.40:80";
const RANGED_BALANCER: &str = "198.51.100.5:80";

const IPVS_RULES: &str = include_str!("../fixtures/kube-proxy/ipvs.rules");
const IPVS_SETS: &str = include_str!("../fixtures/kube-proxy/ipvs-sets");
const IPVS_SERVERS: &str = include_str!("../fixtures/kube-proxy/ipvs-servers");

/// Objects that a kube-proxy of this release has left.
#[derive(Clone, Copy, Debug)]
enum Left {
    /// Virtual servers, sets, addresses and rules of its IPVS mode.
    Ipvs(&'static str),
    /// Rules of its iptables mode, by this back end.
    Rules(&'static str, &'static str),
    /// Tables of its nftables mode.
    Tables(&'static str),
}

impl Left {
    /// Puts the objects as kube-proxy does: existing ones stay, and chains of its own get its rules.
    fn put(self) {
        match self {
            Left::Ipvs(release) => {
                if !tool("ip -o link").contains("kube-ipvs0") {
                    tool("ip link add kube-ipvs0 type dummy");
                }
                for address in ["10.96.0.10", "10.96.0.20", "10.96.0.30", "10.96.0.40", "198.51.100.5"] {
                    tool(&format!("ip addr replace {address}/32 dev kube-ipvs0"));
                }
                oracle::run("ipset", &["restore", "-exist"], Some(IPVS_SETS)).unwrap();
                let there = tool("ipvsadm -Sn");
                let missing = IPVS_SERVERS.lines().filter(|line| !there.lines().any(|other| other == *line));
                oracle::ipvsadm_restore(&missing.flat_map(|line| [line, "\n"]).collect::<String>()).unwrap();
                restore("iptables-nft", IPVS_RULES, release);
                tool("sysctl -w net.ipv4.vs.conntrack=1");
            }
            Left::Rules(release, back_end) => {
                if release == "1.36" {
                    count(&["ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts"]);
                }
                for (family, rules) in RULES {
                    restore(&format!("{family}-{back_end}"), rules, release);
                }
                // Node ports on 127.0.0.1 need it.
                tool("sysctl -w net.ipv4.conf.all.route_localnet=1");
            }
            Left::Tables(release) => {
                let (_, tables) = TABLES.into_iter().find(|(of, _)| *of == release).unwrap();
                oracle::run("nft", &["-f", "-"], Some(tables)).unwrap();
            }
        }
    }

    /// kube-proxy starts again next to this proxy's objects: in nftables mode it removes objects of IPVS and of
    /// iptables, including those whose names this proxy shares.
    fn comes_back(self) {
        if matches!(self, Left::Tables(_)) {
            let _without_ipvs = Command::new("ipvsadm").arg("-C").output().unwrap();
            if tool("ip -o link").contains("kube-ipvs0") {
                tool("ip link del kube-ipvs0");
            }
            for (family, _) in RULES {
                let saved = tool(&format!("{family}-nft-save"));
                let others: String =
                    saved.lines().filter(|line| !line.contains("KUBE-")).flat_map(|line| [line, "\n"]).collect();
                oracle::run(&format!("{family}-nft-restore"), &[], Some(&others)).unwrap();
            }
            for set in tool("ipset list -n").lines().filter(|set| set.starts_with("KUBE-")) {
                tool(&format!("ipset destroy {set}"));
            }
        }
        self.put();
    }

    /// Lines of the objects that are there. The kubelet's are not kube-proxy's; and an empty chain stays in mangle, as after kube-proxy's own
    /// cleanup.
    fn lines(self) -> Vec<String> {
        let filtered = |printed: String, of: &str| -> Vec<String> {
            printed.lines().filter(|line| line.contains(of)).map(str::to_owned).collect()
        };
        match self {
            Left::Ipvs(_) => {
                let mut lines = filtered(tool("ipvsadm -Sn"), "-A ");
                lines.extend(filtered(tool("ipset list -n"), "KUBE-"));
                lines.extend(filtered(tool("ip -o link"), "kube-ipvs0"));
                lines.extend(filtered(tool("iptables-nft-save"), "KUBE-"));
                lines.retain(|line| !line.contains("KUBE-FIREWALL"));
                lines
            }
            Left::Rules(_, back_end) => {
                let programs = RULES.map(|(family, _)| format!("{family}-{back_end}-save"));
                let saved =
                    programs.map(|program| ["nat", "filter"].map(|table| tool(&format!("{program} -t {table}"))));
                let of_kubelet = ["KUBE-FIREWALL", "KUBE-KUBELET-CANARY"];
                let is_kube_proxys =
                    |line: &&str| line.contains("KUBE-") && !of_kubelet.iter().any(|of| line.contains(of));
                let lines = saved.iter().flatten().flat_map(|text| text.lines());
                lines.filter(is_kube_proxys).map(str::to_owned).collect()
            }
            Left::Tables(_) => filtered(tool("nft list tables"), "kube-proxy"),
        }
    }

    /// Lines of the objects that this mode has not made itself: chains of IPVS mode have names of iptables mode.
    fn but_for(self, mode: &str) -> Vec<String> {
        match (self, mode) {
            (Left::Rules(_, back_end), "ipvs") => held_by("iptables", back_end),
            (Left::Ipvs(_), "iptables") => held_by("ipvs", "nft"),
            (Left::Ipvs(_), "ipvs") | (Left::Rules(..), "iptables") => Vec::new(),
            _ => self.lines(),
        }
    }
}

/// Rules of this release, as kube-proxy writes them: jumps that are there already are not added again.
fn restore(program: &str, rules: &str, release: &str) {
    let there = tool(&format!("{program}-save"));
    let is_jump = |line: &str| line.starts_with("-I ") || line.starts_with("-A ") && !line.starts_with("-A KUBE-");
    let is_there = |line: &str| there.lines().any(|other| other == line.replacen("-I ", "-A ", 1));
    let rules = rules.replace(&format!("#{release} "), "");
    let missing = rules.lines().filter(|line| !is_jump(line) || !is_there(line));
    let missing: String = missing.flat_map(|line| [line, "\n"]).collect();
    oracle::run(&format!("{program}-restore"), &["--noflush"], Some(&missing)).unwrap();
}

/// Creates counters of nfnetlink_acct, as kube-proxy does before its rules name them.
fn count(names: &[&'static str]) {
    // NFNL_SUBSYS_ACCT with NFNL_MSG_ACCT_NEW, and NFACCT_NAME.
    const NEW: u16 = 7 << 8;
    const NAME: u16 = 1;
    let mut connection = netlink_batch::Connection::open(Protocol::Netfilter).unwrap();
    for name in names {
        let header = NfGenHeader::default().to_bytes();
        let made = connection.request(NEW, NLM_F_CREATE, &header, |out| out.attr(NAME, &NulStr::from(*name)));
        let is_there = made.as_ref().is_err_and(|error| error.to_string().contains("EBUSY"));
        assert!(made.is_ok() || is_there, "{name}: {made:?}");
    }
}

/// Objects that decide about packets of Services in this namespace, in lines without an order.
fn everything() -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let programs = ["iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"];
    for printed in programs.map(|program| tool(&format!("{program}-save"))) {
        let its = printed.lines().filter(|line| line.contains("KUBE-") && !line.contains("KUBE-FIREWALL"));
        lines.extend(its.map(|line| line.split(" [").next().unwrap().to_owned()));
    }
    let of_iptables = ["filter", "nat", "mangle", "raw", "security"];
    for table in tool("nft list tables").lines() {
        if !of_iptables.iter().any(|name| table.ends_with(&format!(" {name}"))) {
            lines.extend(tool(&format!("nft -s list {table}")).split(['\n', ',', '{', '}']).map(str::to_owned));
        }
    }
    let without_number = |line: &str| line.split_once(": ").map_or("", |(_, rest)| rest).to_owned();
    lines.extend(tool("ip -4 -o addr").lines().map(without_number));
    lines.extend(tool("ip -4 route show table all").lines().map(str::to_owned));
    for command in [["ipvsadm", "-Sn"], ["ipset", "save"]] {
        // Not every kernel has them.
        let output = Command::new(command[0]).arg(command[1]).output().unwrap();
        lines.extend(text(&output.stdout).lines().map(str::to_owned));
    }
    // A set's hash starts at random.
    for line in &mut lines {
        *line = line.split(" initval ").next().unwrap().trim().to_owned();
    }
    lines.retain(|line| !line.is_empty());
    lines.sort();
    lines
}

/// Chains and rules as the program prints them, each with its packets and bytes.
fn save(family: &str, back_end: &str) -> Vec<((u64, u64), String)> {
    let printed = tool(&format!("{family}-{back_end}-save -c"));
    let lines = printed.lines().filter(|line| !line.starts_with('#'));
    let counted = lines.map(|line| {
        let Some((before, rest)) = line.split_once('[') else { return ((0, 0), line.to_owned()) };
        let (counts, after) = rest.split_once(']').unwrap();
        let (packets, bytes) = counts.split_once(':').unwrap();
        ((packets.parse().unwrap(), bytes.parse().unwrap()), format!("{before}{after}"))
    });
    counted.collect()
}

/// A node that a kube-proxy serves, or has served until a moment ago.
fn world(left: Left) -> World {
    let world = World::new();
    world.manifests.put("more.yaml", &more());
    world.manifests.put("ranged.yaml", &ranged("203.0.113.0/24"));
    // The probe loads the modules of all modes: on a machine that has just booted, that takes longer than all the rest.
    let _some_modes_may_be_lacking = demo(&["probe", "--proxy-mode", "auto"]);
    left.put();
    assert!(world.asks(SERVICE) && world.asks(NODE_PORT), "{left:?}");
    world
}

/// The plan of a mode, and the notes of what others have there.
fn plan_and_notes(world: &World, mode: &str) -> (String, String) {
    let output = demo(&joined(&["plan"], &world.arguments(mode)));
    (ok(&output), text(&output.stderr))
}

fn plan(world: &World, mode: &str) -> String {
    plan_and_notes(world, mode).0
}

fn clients(world: &World) -> [Client; 3] {
    let here = Netns::current().unwrap();
    [Client::start(&world.client, SERVICE), Client::start(&world.client, NODE_PORT), Client::start(&here, SERVICE)]
}

#[track_caller]
fn end(
    clients: [Client; 3],
    since: Instant,
    but: [Option<(Instant, Instant)>; 3],
    forgiven: usize,
    running: &Running,
    what: &str,
) {
    for (number, (client, but)) in clients.into_iter().zip(but).enumerate() {
        let (made, failed) = client.end(since, but);
        assert!(
            made > 5 && failed.len() <= forgiven,
            "{what}, client {number}: {made} connections; failed: {failed:?}\n{}",
            running.log()
        );
    }
}

fn has_passed(running: &Running) {
    running.until_logged("serving in iptables mode");
    // The first pass, and the cleanup two seconds after it, need this time.
    std::thread::sleep(Duration::from_secs(5));
}

/// Rules of 1.36 that differ from those of 1.28: where the kernel counts packets for rules, they name its counters.
const COUNTING: [(&str, &str, &str); 3] = [
    ("iptables", "-A KUBE-FORWARD ", "ct_state_invalid_dropped_pkts"),
    ("iptables", "--dport 30080 ", "localhost_nps_accepted_pkts"),
    ("ip6tables", "-A KUBE-FORWARD ", "ct_state_invalid_dropped_pkts"),
];

/// Rules of the same mode are taken over without a write: counters go on, and no connection is lost. Rules of 1.28 get kube-proxy's counters of
/// packets, and no chain but those of these rules is written.
#[test]
fn rules_of_kube_proxys_iptables_mode_are_taken_over_as_they_are() {
    let cases = [("1.36", "nft"), ("1.36", "legacy"), ("1.28", "nft"), ("1.28", "legacy")];
    for (number, (release, back_end)) in cases.into_iter().enumerate() {
        if release == "1.28" && !Sample::asked_for().takes(number, 2) {
            continue;
        }
        kernel_test(NEEDS, || {
            let world = world(Left::Rules(release, back_end));
            let planned = plan(&world, "iptables");
            for part in ["frontend ", " rules ", "iptables-restore"] {
                assert!(release == "1.28" || !planned.contains(part), "{back_end}: {planned}");
            }
            let before = RULES.map(|(family, _)| save(family, back_end));
            assert!(before[0].iter().any(|((packets, _), line)| line.contains("KUBE-SEP-") && *packets > 0));
            let mut long = world.client.run_in(|| Connection::open(SERVICE.parse().unwrap()).unwrap()).unwrap();
            let (since, clients) = (Instant::now(), clients(&world));
            let running = world.start("iptables");
            has_passed(&running);
            let after = RULES.map(|(family, _)| save(family, back_end));
            end(clients, since, [None; 3], 0, &running, back_end);
            assert_eq!(long.ask().unwrap(), "pod");
            for ((family, _), (before, after)) in RULES.iter().zip(before.iter().zip(&after)) {
                let counting = COUNTING.iter().filter(|(of, ..)| release == "1.28" && of == family);
                let counting: Vec<_> = counting.collect();
                let is_new = |line: &str| {
                    counting.iter().any(|(_, rule, counter)| line.contains(rule) && line.contains(counter))
                };
                let new = after.iter().filter(|(_, line)| is_new(line)).count();
                assert_eq!(new, counting.len(), "{after:#?}");
                let plain = |line: &str| !line.contains("--ctstate INVALID -j DROP") || counting.is_empty();
                let rules = |of: &[((u64, u64), String)]| -> Vec<String> {
                    let rest = of.iter().filter(|(_, line)| plain(line) && !is_new(line));
                    rest.map(|(_, line)| line.clone()).collect()
                };
                assert_eq!(rules(after), rules(before), "{release} {back_end}");
                let is_rewritten = |line: &str| {
                    let chains = ["-A KUBE-FORWARD ", "-A KUBE-NODEPORTS "];
                    // The legacy programs set the counters of built-in chains to 0 with every write to a table, whatever they write.
                    let starts_anew = back_end == "legacy" && line.starts_with(':') && !line.contains(" - ");
                    release == "1.28" && (starts_anew || chains.iter().any(|chain| line.contains(chain)))
                };
                let rest = |of: &'_ [((u64, u64), String)]| -> Vec<((u64, u64), String)> {
                    of.iter().filter(|(_, line)| !is_rewritten(line)).cloned().collect()
                };
                for ((before, line), (after, _)) in rest(before).iter().zip(rest(after)) {
                    assert!(after >= *before, "{release} {back_end}: {line} counted {before:?}, then {after:?}");
                }
            }
            assert!(running.end().success());
        });
    }
}

/// Whether the new mode's objects are there.
fn serves(mode: &str) -> bool {
    match mode {
        "nftables" => tool("nft list tables").contains("table ip proxier"),
        "iptables" => tool("iptables-save").contains("KUBE-SVC-"),
        "userspace" => tool("ip route show table local proto 118").contains("10.96.0.10"),
        _ => tool("ipvsadm -Sn").contains("10.96.0.10:80"),
    }
}

fn takes_over(left: Left, mode: &str) {
    let what = format!("from {left:?} to {mode}");
    println!("{what}");
    let world = world(left);
    assert_ne!(left.lines(), [""; 0], "{what}");
    let is_ipvs = matches!(left, Left::Ipvs(_));
    // Connections through virtual servers end with these, and Linux translates addresses only as long as there is a nat chain.
    let goes_on = if is_ipvs { mode == "ipvs" } else { mode != "userspace" };
    let mut long =
        goes_on.then(|| world.client.run_in(|| Connection::open(SERVICE.parse().unwrap()).unwrap()).unwrap());
    let clients = clients(&world);
    std::thread::sleep(Duration::from_millis(300));
    let since = Instant::now();
    let running = world.start(mode);
    running.until("it serves", || serves(mode));
    let came = Instant::now();
    running.until("nothing is left of kube-proxy's", || left.but_for(mode).is_empty());
    let gone = Instant::now();
    // Nothing is to be removed for the same mode.
    running.until_logged(if is_ipvs && mode == "ipvs" { "full pass" } else { " left by other proxy modes" });
    std::thread::sleep(Duration::from_secs(1));
    // Sockets get no packets before the old mode has gone, and a program of the node has a Service's address as its own until it goes.
    let but = (mode == "userspace").then_some((came, gone));
    let of_node = if is_ipvs && mode != "ipvs" { Some((since, gone)) } else { but };
    end(clients, since, [but, but, of_node], usize::from(is_ipvs && mode != "ipvs"), &running, &what);
    if let Some(long) = &mut long {
        assert_eq!(long.ask().unwrap(), "pod", "{what}");
    }
    assert!(world.asks(SERVICE) && world.asks(NODE_PORT), "{what}");
    if is_ipvs && mode == "ipvs" {
        let there = tool("ipvsadm -Sn");
        for line in IPVS_SERVERS.lines() {
            assert!(there.lines().any(|other| other == line), "{line}: {there}");
        }
    }
    if mode != "userspace" {
        assert!(plan(&world, mode).starts_with("nothing to do"), "{what}: {}", plan(&world, mode));
    }
    assert!(running.end().success());
    ok(&command(&["cleanup"]).output().unwrap());
    assert_eq!(left.lines(), [""; 0], "{what}");
}

#[test]
fn other_modes_take_over_from_kube_proxys_iptables_mode() {
    for back_end in ["nft", "legacy"] {
        for mode in ["nftables", "userspace"] {
            kernel_test(NEEDS, || takes_over(Left::Rules("1.28", back_end), mode));
        }
    }
}

/// The kubelet uses one back end of iptables, and an earlier kube-proxy used the other. Packets meet the rules of both.
#[test]
fn iptables_mode_takes_over_from_rules_in_the_other_back_end() {
    for (used, stale) in [("nft", "legacy"), ("legacy", "nft")] {
        kernel_test(NEEDS, || {
            let what = format!("the kubelet's in {used}, a kube-proxy's in {stale}");
            let world = World::new();
            world.manifests.put("more.yaml", &more());
            world.manifests.put("ranged.yaml", &ranged("203.0.113.0/24"));
            for (family, rules) in RULES {
                tool(&format!("{family}-{used} -t mangle -N KUBE-IPTABLES-HINT"));
                // Of two hooks with the same priority, the kernel calls the newer one first: the stale rules win.
                tool(&format!("{family}-{used} -t nat -A POSTROUTING -p udp --dport 9 -j ACCEPT"));
                let of_proxy = rules.lines().filter(|line| !line.contains("KUBE-KUBELET-CANARY"));
                let of_proxy: String = of_proxy.flat_map(|line| [line, "\n"]).collect();
                restore(&format!("{family}-{stale}"), &of_proxy.replace("10.244.0.5", "10.244.0.9"), "1.28");
            }
            let left = Left::Rules("1.28", stale);
            assert!(left.lines().len() > 20 && !world.connects(SERVICE) && !world.connects(NODE_PORT), "{what}");
            let (_, notes) = plan_and_notes(&world, "iptables");
            let back_end = if stale == "nft" { "nf_tables" } else { stale };
            for family in ["IPv4", "IPv6"] {
                let names = format!("rules of {family} of the {back_end} back end of iptables are a kube-proxy's");
                assert!(notes.contains(&names), "{what}: {notes}");
            }
            let running = world.start("iptables");
            running.until("it serves", || world.connects(SERVICE) && world.connects(NODE_PORT));
            running.until("nothing is left of kube-proxy's", || left.lines().is_empty());
            assert!(world.asks(SERVICE) && world.asks(NODE_PORT), "{what}: {}", running.log());
            assert_ne!(held_by("iptables", used), [""; 0], "{what}");
            let (planned, notes) = plan_and_notes(&world, "iptables");
            assert!(planned.starts_with("nothing to do") && !notes.contains("back end"), "{what}: {planned} {notes}");
            assert!(running.end().success());
            ok(&command(&["cleanup"]).output().unwrap());
            assert_eq!(held_by("iptables", used), [""; 0], "{what}");
        });
    }
}

#[test]
fn every_mode_takes_over_from_kube_proxys_nftables_mode() {
    for (release, _) in TABLES {
        for mode in ["nftables", "iptables", "userspace"] {
            kernel_test(NEEDS, || takes_over(Left::Tables(release), mode));
        }
    }
}

/// Objects left by a kube-proxy decide nothing after the takeover: not of a Service that is gone, nor of source ranges that were lifted. And back:
/// this proxy's objects do not keep clients from a kube-proxy that comes after it, and a cleanup removes them.
fn there_and_back(left: Left, mode: &str) {
    let what = format!("from {left:?} to {mode} and back");
    println!("{what}");
    let world = world(left);
    assert!(world.asks(RANGED_SERVICE) && !world.connects(RANGED_BALANCER), "{what}: its ranges are left");
    let before = everything();
    world.manifests.put("ranged.yaml", &ranged(""));
    std::fs::remove_file(world.manifests.0.join("web.yaml")).unwrap();
    let running = world.start(mode);
    let mode = mode.split(':').next().unwrap();
    running.until("the ranges are gone", || world.connects(RANGED_BALANCER));
    running.until("the Service is gone", || !world.connects(SERVICE) && !world.connects(NODE_PORT));
    running.until("nothing is left of kube-proxy's", || left.but_for(mode).is_empty());
    let stale = |lines: Vec<String>| -> Vec<String> {
        let says = ["10.96.0.10", "30080", "demo/web", "203.0.113.0"];
        lines.into_iter().filter(|line| says.iter().any(|word| line.contains(word))).collect()
    };
    running.until("nothing of the Service is left", || stale(everything()).is_empty());
    assert!(world.asks(RANGED_BALANCER) && world.asks(RANGED_SERVICE), "{what}");
    assert!(running.end().success());

    left.comes_back();
    for asked in [SERVICE, NODE_PORT, RANGED_SERVICE] {
        assert!(world.asks(asked), "{what}: {asked}: {:#?}", everything());
    }
    ok(&command(&["cleanup"]).output().unwrap());
    left.put();
    assert!(world.asks(SERVICE) && world.asks(NODE_PORT) && !world.connects(RANGED_BALANCER), "{what}");
    assert_eq!(everything(), before, "{what}");
}

const OF_IPTABLES: [Left; 2] = [Left::Rules("1.28", "legacy"), Left::Rules("1.36", "nft")];

#[test]
fn nothing_left_decides_after_a_takeover_nor_on_the_way_back() {
    let lefts = OF_IPTABLES.into_iter().chain([Left::Tables("1.36")]);
    let modes = ["nftables", "iptables", "userspace"];
    for (number, (left, mode)) in lefts.flat_map(|left| modes.map(|mode| (left, mode))).enumerate() {
        if Sample::asked_for().takes(number, 3) {
            kernel_test(NEEDS, || there_and_back(left, mode));
        }
    }
}

#[test]
fn nothing_left_decides_from_and_to_ipvs() {
    const MODES: [&str; 2] = ["ipvs:iptables", "ipvs:nftables"];
    let to_ipvs = OF_IPTABLES.into_iter().chain([Left::Tables("1.36")]).flat_map(|left| MODES.map(|mode| (left, mode)));
    let from_ipvs = ["1.28", "1.36"].into_iter().flat_map(|release| {
        let modes = ["nftables", "iptables", "userspace"].into_iter().chain(MODES);
        modes.map(move |mode| (Left::Ipvs(release), mode))
    });
    for (number, (left, mode)) in to_ipvs.chain(from_ipvs).enumerate() {
        if Sample::asked_for().takes(number, 16) {
            kernel_test(&[PROXY, NEEDS].concat(), || there_and_back(left, mode));
        }
    }
}

#[test]
fn ipvs_mode_takes_over_from_every_mode_of_kube_proxy() {
    let needs = [PROXY, NEEDS].concat();
    let lefts = [Left::Rules("1.28", "nft"), Left::Tables("1.33"), Left::Tables("1.36")];
    for (number, left) in lefts.into_iter().enumerate() {
        if Sample::asked_for().takes(number, 3) {
            kernel_test(&needs, || takes_over(left, "ipvs"));
        }
    }
}

/// The same mode takes over every virtual server and connection, and other modes remove them. Seen on 6.1: a SYN on its way while virtual servers go
/// is not answered.
#[test]
fn every_mode_takes_over_from_kube_proxys_ipvs_mode() {
    let needs = [PROXY, NEEDS].concat();
    for (number, mode) in ["ipvs", "nftables", "iptables", "userspace"].into_iter().enumerate() {
        if Sample::asked_for().takes(number, 2) {
            kernel_test(&needs, || takes_over(Left::Ipvs("1.36"), mode));
        }
    }
}

/// Tables that only have kube-proxy's name are foreign: `cleanup`, `probe`, the log and the metrics report them.
#[test]
fn tables_that_are_not_kube_proxys_stay() {
    let uncommented = TABLES[0].1.replace("\tcomment \"rules for kube-proxy\"\n", "");
    let incomplete = "table ip kube-proxy {\n\tcomment \"rules for kube-proxy\"\n\tchain services {\n\t}\n}\n";
    for (theirs, lacks) in [(uncommented.as_str(), "the comment"), (incomplete, "chain nat-prerouting")] {
        kernel_test(NEEDS, || {
            let world = World::new();
            oracle::run("nft", &["-f", "-"], Some(theirs)).unwrap();
            let before = tool("nft list ruleset");
            let says = |said: &str, who: &str| {
                assert!(said.contains("table ip kube-proxy stays") && said.contains(lacks), "{who}: {said}");
                assert!(said.contains("nft delete table ip kube-proxy"), "{who}: {said}");
            };
            let cleaned = command(&["cleanup"]).output().unwrap();
            ok(&cleaned);
            says(&text(&cleaned.stderr), "cleanup");
            assert_eq!(tool("nft list ruleset"), before);
            let probed = demo(&["probe", "--proxy-mode", "nftables"]);
            says(&text(&probed.stdout).replace("\n ", " ").split_whitespace().collect::<Vec<_>>().join(" "), "probe");
            let probed = demo(&["probe", "--proxy-mode", "nftables", "-o", "json"]);
            let json: serde_json::Value = serde_json::from_slice(&probed.stdout).unwrap();
            says(json["leftovers"][0].as_str().unwrap(), "probe -o json");
            says(&plan_and_notes(&world, "userspace").1, "plan");
            let running = world.start("userspace");
            running.until_logged("table ip kube-proxy stays");
            says(&running.log(), "the log");
            let expected = 1.0 + f64::from(u8::from(theirs != incomplete));
            running.until("the metric", || program::metrics().get("kubeproxy_leftovers") == Some(&expected));
            assert!(tool("nft list tables").contains("table ip kube-proxy"));
            assert!(running.end().success());
        });
    }
    kernel_test(NEEDS, || {
        for theirs in [TABLES[0].1, TABLES[1].1, TABLE_OF_A_NODE] {
            oracle::run("nft", &["-f", "-"], Some(theirs)).unwrap();
            let tables = theirs.lines().filter(|line| line.starts_with("table ip")).count();
            let probed = demo(&["probe", "--proxy-mode", "nftables", "-o", "json"]);
            let json: serde_json::Value = serde_json::from_slice(&probed.stdout).unwrap();
            assert_eq!(json["leftovers"], serde_json::json!([]));
            let cleaned = command(&["cleanup"]).output().unwrap();
            let removed = format!("{tables} thing{} removed", if tables == 1 { "" } else { "s" });
            assert!(ok(&cleaned).contains(&removed), "{}", text(&cleaned.stdout));
            assert_eq!(tool("nft list tables"), "");
        }
    });
}

/// Where iptables-legacy has no tables, looking for its rules makes none: a table has hooks, even an empty one.
#[test]
fn looking_for_rules_makes_no_legacy_tables() {
    for mode in ["nftables", "iptables", "userspace"] {
        kernel_test(NEEDS, || {
            let world = World::new();
            let tables = || {
                ["ip_tables_names", "ip6_tables_names"]
                    .map(|of| std::fs::read_to_string(format!("/proc/thread-self/net/{of}")).unwrap_or_default())
            };
            assert_eq!(tables(), ["", ""]);
            demo(&["probe", "--proxy-mode", mode]);
            plan(&world, mode);
            let running = world.start(mode);
            running.until("it serves", || serves(mode) && world.asks(SERVICE));
            std::thread::sleep(Duration::from_secs(3));
            assert!(running.end().success());
            ok(&command(&["cleanup"]).output().unwrap());
            assert_eq!(tables(), ["", ""], "{mode}");
        });
    }
}

/// The documented way back: kube-proxy serves again, then this proxy's objects go. No client of its notices.
#[test]
fn a_cleanup_beside_a_kube_proxy_that_serves_keeps_its_objects() {
    let cases = [
        (Left::Tables("1.36"), "nftables", "nftables"),
        (Left::Tables("1.33"), "iptables", "nftables"),
        (Left::Rules("1.36", "nft"), "nftables", "iptables"),
        (Left::Rules("1.36", "legacy"), "nftables", "iptables"),
        (Left::Ipvs("1.36"), "nftables", "ipvs"),
    ];
    for (left, from, to) in cases {
        let of_kernel = if to == "ipvs" { PROXY } else { &[] };
        kernel_test(&[of_kernel, NEEDS].concat(), || {
            let what = format!("from {from} back to {left:?}");
            let world = World::new();
            world.manifests.put("more.yaml", &more());
            let running = world.start(from);
            running.until("it serves", || world.asks(SERVICE) && world.asks(NODE_PORT));
            assert!(running.end().success());
            left.comes_back();
            let before = left.lines();
            let clients = clients(&world);
            let since = Instant::now();
            std::thread::sleep(Duration::from_millis(300));
            // Whatever rules IPVS mode has here: a kube-proxy's are iptables'.
            let cleaned = command(&["cleanup", "--keep", to, "--ipvs-rules", "nftables"]).output().unwrap();
            ok(&cleaned);
            std::thread::sleep(Duration::from_secs(1));
            for client in clients {
                let (made, failed) = client.end(since, None);
                assert!(made > 5 && failed.is_empty(), "{what}: {made} connections; failed: {failed:?}");
            }
            assert_eq!(left.lines(), before, "{what}");
            let of_ours = if from == "nftables" { held_by("nftables", "nft") } else { Vec::new() };
            assert_eq!(of_ours, [""; 0], "{what}: {}", text(&cleaned.stdout));
        });
    }
}
