//! Each program of the cookbook on a real kernel. Its effects are read with the field's own tools, or show in connections.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

#[path = "../cookbook/follow_connections.rs"]
#[allow(dead_code, unreachable_pub, reason = "its main, and what its tables of attributes have")]
mod follow_connections;
#[path = "../proxier-demo/tests/program/process.rs"]
#[allow(dead_code, reason = "what the tests of the demo use")]
mod process;
#[path = "../cookbook/tokio_agent.rs"]
#[allow(dead_code, reason = "its main and what only that uses")]
mod tokio_agent;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use netlink_batch::{Listener, Protocol};
use nftables::{ErrorKind, Event, Events};
use process::{Folder, Running, text, tool};
use testkit::traffic::{self, NameServer};
use testkit::witness::{Conversation, Transport, Witness, ask};
use testkit::{Need, Netns, PROXY, kernel_test, veth_pair};

/// Longest wait for an event that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for a connection that must not come about.
const REFUSED: Duration = Duration::from_millis(500);

const IPVS: &[Need] = &[Need::Root, Need::Veth, Need::IpVs, Need::Scheduler("rr"), Need::Scheduler("wlc")];
const NFTABLES: &[Need] = &[Need::Root, Need::Veth, Need::Nftables];

/// Command for a program of the cookbook: cargo builds it together with the tests, into the directory next to theirs.
fn program(name: &str) -> Command {
    let folder = std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples");
    let program = folder.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("cookbook").join(name).with_extension("rs");
    let time = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    let is_built = time(&program).is_some_and(|built| time(&source).is_none_or(|written| written <= built));
    assert!(is_built, "{} is not there, or older than its source: build with --all-targets", program.display());
    Command::new(program)
}

#[track_caller]
fn output(name: &str, arguments: &[&str]) -> Output {
    program(name).args(arguments).output().unwrap()
}

/// Runs a program that has to succeed; returns its output.
#[track_caller]
fn succeeds(name: &str, arguments: &[&str]) -> String {
    let output = output(name, arguments);
    assert!(output.status.success(), "{name}: {}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Makes the kernel track connections.
fn track() {
    let table = "table ip t { chain c { type filter hook input priority 0; ct state new counter; }\n}\n";
    testkit::oracle::run("nft", &["-f", "-"], Some(table)).unwrap();
}

fn set(lines: &[&str]) -> BTreeSet<String> {
    lines.iter().map(|&line| line.to_owned()).collect()
}

fn ipvsadm() -> BTreeSet<String> {
    tool("ipvsadm -Sn").lines().map(str::to_owned).collect()
}

/// Starts a program, which runs until the value is dropped.
fn start(name: &str, arguments: &[&str]) -> Running {
    let mut command = program(name);
    command.args(arguments);
    Running::spawn(command)
}

/// Waits for these lines of `ipvsadm -Sn`, and no others.
#[track_caller]
fn until_ipvs(running: &Running, lines: &[&str]) {
    let wanted = set(lines);
    running.until(&format!("{wanted:#?}"), || ipvsadm() == wanted);
}

/// Puts the file of a folder in place, and returns its path.
fn put(folder: &Folder, text: &str) -> String {
    folder.put("file", text).display().to_string()
}

/// A namespace behind a device of this one. Networks are /24: this end has the first address, the other end the second, with a default route to here.
fn neighbour(device: &str, network: &str) -> Netns {
    let (here, there) = (Netns::current().unwrap(), Netns::new().unwrap());
    veth_pair((&here, device), (&there, "eth0")).unwrap();
    here.add_address(&format!("{network}.1/24"), device).unwrap();
    there.add_address(&format!("{network}.2/24"), "eth0").unwrap();
    there.add_route("default", &format!("{network}.1")).unwrap();
    there
}

/// Two real servers' addresses in a namespace behind this one, and a virtual address on this host.
fn real_servers() -> Netns {
    let there = neighbour("real", "10.1.0");
    there.add_address("10.1.0.3/24", "eth0").unwrap();
    tool("ip address add 192.0.2.1/32 dev lo");
    there
}

fn serve(there: &Netns, address: &str, name: &str) -> NameServer {
    NameServer::tcp(there, address.parse().unwrap(), name).unwrap()
}

fn web() -> SocketAddr {
    "192.0.2.1:80".parse().unwrap()
}

#[test]
fn first_nftables_prints_what_nft_lists_and_runs_again() {
    kernel_test(NFTABLES, || {
        for _ in 0..2 {
            assert_eq!(succeeds("first_nftables", &[]).trim(), tool("nft -sy list table inet example").trim());
        }
    });
}

#[test]
fn first_ipvs_adds_what_ipvsadm_lists_and_says_that_it_exists() {
    kernel_test(IPVS, || {
        assert_eq!(succeeds("first_ipvs", &[]), "TCP 10.0.0.1:80: 1 real servers\n");
        assert_eq!(ipvsadm(), set(&["-A -t 10.0.0.1:80 -s rr", "-a -t 10.0.0.1:80 -r 10.1.0.1:8080 -m -w 1"]));
        let again = output("first_ipvs", &[]);
        assert!(!again.status.success() && text(&again.stderr).contains("it exists already"), "{again:?}");
    });
}

#[test]
fn health_check_removes_a_server_that_refuses_and_restores_it() {
    kernel_test(IPVS, || {
        let there = real_servers();
        let first = serve(&there, "10.1.0.2:8080", "a");
        let running = start("health_check", &["192.0.2.1:80", "10.1.0.2:8080", "10.1.0.3:8080"]);
        let lines = |a: u8, b: u8| {
            [
                "-A -t 192.0.2.1:80 -s wlc".to_owned(),
                format!("-a -t 192.0.2.1:80 -r 10.1.0.2:8080 -m -w {a}"),
                format!("-a -t 192.0.2.1:80 -r 10.1.0.3:8080 -m -w {b}"),
            ]
        };
        let shows = |lines: [String; 3]| until_ipvs(&running, &lines.each_ref().map(String::as_str));
        shows(lines(1, 0));
        for _ in 0..4 {
            assert_eq!(traffic::connect_and_ask(web()).unwrap(), "a");
        }
        let _second = serve(&there, "10.1.0.3:8080", "b");
        shows(lines(1, 1));
        drop(first);
        shows(lines(0, 1));
        for _ in 0..4 {
            assert_eq!(traffic::connect_and_ask(web()).unwrap(), "b");
        }
    });
}

#[test]
fn balancer_follows_its_file_and_the_checks() {
    kernel_test(IPVS, || {
        let there = real_servers();
        tool("ipvsadm -A -t 198.51.100.1:443 -s rr");
        let file = Folder::new("cookbook");
        let both = "-A -t 192.0.2.1:80 -s rr\n-a -t 192.0.2.1:80 -r 10.1.0.2:8080 -m -w 2\n\
            -a -t 192.0.2.1:80 -r 10.1.0.3:8080 -m -w 1\n\
            -A -u 192.0.2.1:53 -s rr\n-a -u 192.0.2.1:53 -r 10.1.0.2:8080 -m -w 1\n";
        let path = put(&file, both);
        let running = start("balancer", &[&path, "10.1.0.9:80"]);
        let foreign = "-A -t 198.51.100.1:443 -s rr";
        let web = "-A -t 192.0.2.1:80 -s rr";
        let dns = ["-A -u 192.0.2.1:53 -s rr", "-a -u 192.0.2.1:53 -r 10.1.0.2:8080 -m -w 1"];
        // No server answers TCP; UDP is not checked.
        until_ipvs(&running, &[foreign, web, "-a -t 192.0.2.1:80 -r 10.1.0.9:80 -m -w 1", dns[0], dns[1]]);
        let server = serve(&there, "10.1.0.2:8080", "a");
        let first = "-a -t 192.0.2.1:80 -r 10.1.0.2:8080 -m -w 2";
        until_ipvs(&running, &[foreign, web, first, dns[0], dns[1]]);
        assert_eq!(traffic::connect_and_ask(self::web()).unwrap(), "a");
        // A mistake changes nothing, and is reported.
        put(&file, "-A -t nonsense\n");
        running.until_logged("the earlier one counts");
        // Virtual servers that the file does not name any more are deleted.
        put(&file, &both.lines().take(3).fold(String::new(), |text, line| text + line + "\n"));
        until_ipvs(&running, &[foreign, web, first]);
        drop(server);
        until_ipvs(&running, &[foreign, web, "-a -t 192.0.2.1:80 -r 10.1.0.9:80 -m -w 1"]);
    });
}

#[test]
fn reconcile_file_shows_first_and_changes_only_what_is_its_own() {
    kernel_test(IPVS, || {
        let foreign = "-A -t 198.51.100.1:443 -s rr";
        for line in ["-A -t 192.0.2.1:80 -s wlc", "-A -t 192.0.2.1:81 -s rr", foreign] {
            tool(&format!("ipvsadm {line}"));
        }
        let wanted = ["-A -t 192.0.2.1:80 -s rr", "-a -t 192.0.2.1:80 -r 10.1.0.2:8080 -m -w 3"];
        let file = Folder::new("cookbook");
        let path = put(&file, &wanted.join("\n"));
        let before = ipvsadm();
        let shown = succeeds("reconcile_file", &[&path]);
        assert_eq!(ipvsadm(), before);
        let done = succeeds("reconcile_file", &[&path, "apply"]);
        assert_eq!(done, shown);
        assert_eq!(ipvsadm(), set(&[foreign, wanted[0], wanted[1]]));
        // ipvsadm understands the listing, and makes the same servers from it.
        tool("ipvsadm -C");
        for line in before.iter().map(String::as_str).chain(shown.lines()) {
            tool(&format!("ipvsadm {line}"));
        }
        assert_eq!(ipvsadm(), set(&[foreign, wanted[0], wanted[1]]));
        assert_eq!(succeeds("reconcile_file", &[&path, "apply"]), "");
    });
}

#[test]
fn drain_keeps_connections_and_takes_no_new_ones() {
    kernel_test(IPVS, || {
        let there = real_servers();
        let (_a, _b) = (serve(&there, "10.1.0.2:8080", "a"), serve(&there, "10.1.0.3:8080", "b"));
        let key = "TCP 192.0.2.1:80";
        succeeds("ipvs_drain", &["add", key, "10.1.0.2:8080"]);
        let mut open = traffic::Connection::open(web()).unwrap();
        assert_eq!(open.ask().unwrap(), "a");
        succeeds("ipvs_drain", &["add", key, "10.1.0.3:8080"]);
        assert!(succeeds("ipvs_list", &[]).contains("10.1.0.3:8080"));
        // The kernel adds up every two seconds.
        let followed = start("ipvs_stats", &["1"]);
        followed.until("one connection", || {
            followed.log().lines().any(|line| line.starts_with(key) && line.contains(" 1 "))
        });

        let running = start("ipvs_drain", &["drain", key, "10.1.0.2:8080"]);
        let virtual_server = "-A -t 192.0.2.1:80 -s rr";
        let second = "-a -t 192.0.2.1:80 -r 10.1.0.3:8080 -m -w 1";
        until_ipvs(&running, &[virtual_server, "-a -t 192.0.2.1:80 -r 10.1.0.2:8080 -m -w 0", second]);
        assert_eq!(open.ask().unwrap(), "a");
        for _ in 0..4 {
            assert_eq!(traffic::connect_and_ask(web()).unwrap(), "b");
        }
        // The real server stays as long as its connection.
        running.until_logged("1 connections left");
        assert_eq!(open.ask().unwrap(), "a");
        drop(running);
        // Back again, in place: the connection lives on.
        succeeds("ipvs_drain", &["add", key, "10.1.0.2:8080"]);
        assert_eq!(open.ask().unwrap(), "a");
        // The kernel forgets idle connections after a second, from the next packet on: then the real server goes.
        let running = start("ipvs_drain", &["drain", key, "10.1.0.2:8080"]);
        running.until_logged("1 connections left");
        tool("ipvsadm --set 1 0 0");
        assert_eq!(open.ask().unwrap(), "a");
        running.until_logged("10.1.0.2:8080 is gone; 0 connections were left");
        until_ipvs(&running, &[virtual_server, second]);
        assert_eq!(traffic::connect_and_ask(web()).unwrap(), "b");
        // Without connections it is gone at once.
        tool("ipvsadm -A -t 192.0.2.1:81 -s rr");
        succeeds("ipvs_drain", &["add", "TCP 192.0.2.1:81", "10.1.0.2:8080"]);
        succeeds("ipvs_drain", &["drain", "TCP 192.0.2.1:81", "10.1.0.2:8080"]);
        assert!(!ipvsadm().iter().any(|line| line.starts_with("-a -t 192.0.2.1:81")));
    });
}

#[test]
fn ipvs_sync_starts_and_stops_daemons_and_leaves_those_of_others() {
    kernel_test(IPVS, || {
        let (node, other) = (Netns::current().unwrap(), Netns::new().unwrap());
        veth_pair((&node, "eth0"), (&other, "eth0")).unwrap();
        node.add_address("192.0.2.1/24", "eth0").unwrap();
        let daemons = || -> Vec<String> { tool("ipvsadm -L --daemon").lines().map(str::to_owned).collect() };
        for _ in 0..2 {
            succeeds("ipvs_sync", &["start", "eth0", "7"]);
            let (all, expected) = (daemons(), |state: &str| format!("{state} sync daemon (mcast=eth0, syncid=7, "));
            assert!(all[0].starts_with(&expected("master")) && all[1].starts_with(&expected("backup")), "{all:?}");
        }
        let refused = output("ipvs_sync", &["stop", "eth0", "51"]);
        assert!(!refused.status.success() && text(&refused.stderr).contains("is another program's"), "{refused:?}");
        assert_eq!(daemons().len(), 2);
        for _ in 0..2 {
            succeeds("ipvs_sync", &["stop", "eth0", "7"]);
            assert_eq!(daemons(), [""; 0]);
        }
    });
}

#[test]
fn exporter_says_what_ipvsadm_says() {
    kernel_test(IPVS, || {
        let there = real_servers();
        let _server = serve(&there, "10.1.0.2:8080", "a");
        tool("ipvsadm -A -t 192.0.2.1:80 -s rr");
        tool("ipvsadm -a -t 192.0.2.1:80 -r 10.1.0.2:8080 -m -w 7");
        for _ in 0..3 {
            traffic::connect_and_ask(web()).unwrap();
        }
        let running = start("exporter", &["127.0.0.1:0"]);
        running.until_logged("listening on ");
        let printed = running.log();
        let address: SocketAddr = printed.trim().strip_prefix("listening on ").unwrap().parse().unwrap();
        // The kernel adds up every two seconds, for each server at a time of its own.
        running.until("three connections", || {
            let counted = tool("ipvsadm -L -n --stats --exact -t 192.0.2.1:80");
            let rows: Vec<&str> = counted.lines().filter(|line| line.contains(":80")).collect();
            let count = |row: &&str| row.split_whitespace().nth(2) == Some("3");
            rows.len() == 2 && rows.iter().all(count)
        });
        let get = |path: &str| testkit::get(&format!("http://{address}{path}")).unwrap();
        let answer = get("/metrics");
        assert_eq!(answer.status, 200);
        let page = answer.body.as_str();
        let connections = 3;
        let real = "{virtual_server=\"TCP 192.0.2.1:80\",real_server=\"10.1.0.2:8080\"}";
        for line in [
            format!("ipvs_connections_total{{virtual_server=\"TCP 192.0.2.1:80\"}} {connections}"),
            format!("ipvs_real_server_weight{real} 7"),
            format!("ipvs_real_server_connections_total{real} {connections}"),
        ] {
            assert!(page.lines().any(|found| found == line), "{line} in\n{page}");
        }
        if testkit::missing(Need::Tool("promtool")).is_none() {
            testkit::oracle::run("promtool", &["check", "metrics"], Some(page)).unwrap();
        }
        assert_eq!(get("/").status, 404);
        // A silent client, or one that is never done, does not keep other clients away for long.
        let _silent = TcpStream::connect(address).unwrap();
        assert_eq!(get("/metrics").status, 200);
        let mut slow = TcpStream::connect(address).unwrap();
        let sending = std::thread::spawn(move || {
            while slow.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        assert_eq!(get("/metrics").status, 200);
        sending.join().unwrap();
    });
}

/// Whether a TCP connection from this address of a namespace is answered.
fn reaches(from: &Netns, address: &str, to: &str, limit: Duration) -> bool {
    let (from_address, to): (IpAddr, SocketAddr) = (address.parse().unwrap(), to.parse().unwrap());
    from.run_in(|| ask(Transport::Tcp, Some(from_address), to, limit).is_ok()).unwrap()
}

#[test]
fn network_policy_lets_in_whom_it_names() {
    kernel_test(NFTABLES, || {
        Netns::current().unwrap().write_sysctl("net/ipv4/ip_forward", "1").unwrap();
        let (clients, pod) = (neighbour("clients", "10.2.0"), neighbour("pod", "10.3.0"));
        clients.add_address("10.2.0.130/24", "eth0").unwrap();
        let to = |port: u16| (Transport::Tcp, SocketAddr::new([10, 3, 0, 2].into(), port));
        let _server = Witness::start(&pod, "pod", &[to(8080), to(9090)]).unwrap();
        let file = Folder::new("cookbook");
        let apply = |text: &str| succeeds("network_policy", &[&put(&file, text)]);
        let open = |from: &str, port: u16| reaches(&clients, from, &format!("10.3.0.2:{port}"), PATIENCE);
        let closed = |from: &str, port: u16| !reaches(&clients, from, &format!("10.3.0.2:{port}"), REFUSED);

        apply("10.3.0.9 10.2.0.0/24 8080\n");
        assert!(open("10.2.0.2", 8080) && open("10.2.0.130", 9090), "the policy is of another pod");
        apply("10.3.0.2 10.2.0.0/25 8080\n\n10.3.0.2 10.2.0.200 9090\n");
        assert!(open("10.2.0.2", 8080));
        assert!(closed("10.2.0.130", 8080) && closed("10.2.0.2", 9090));
        let mut conversation = clients
            .run_in(|| Conversation::open(Transport::Tcp, Some([10, 2, 0, 2].into()), to(8080).1, PATIENCE).unwrap())
            .unwrap();
        apply("10.3.0.2\n");
        assert!(closed("10.2.0.2", 8080));
        assert_eq!(conversation.ask().unwrap().name, "pod", "what was let in goes on");
        // The pod itself may connect, and a mistake changes nothing.
        let refused = output("network_policy", &[&put(&file, "10.3.0.2 10.2.0.0/33 80\n")]);
        assert!(!refused.status.success() && text(&refused.stderr).contains("line 1: 10.2.0.0/33"));
        assert!(closed("10.2.0.2", 8080));
        let listed = tool("nft list table ip cookbook-policy");
        assert_eq!(listed.matches("ct state").count(), 1, "the rules are there once: {listed}");
        apply("");
        assert!(open("10.2.0.2", 9090));
    });
}

#[test]
fn source_nat_gives_each_client_one_address_of_the_pool() {
    kernel_test(NFTABLES, || {
        Netns::current().unwrap().write_sysctl("net/ipv4/ip_forward", "1").unwrap();
        let (clients, server) = (neighbour("clients", "10.2.0"), neighbour("out", "198.51.100"));
        let address: SocketAddr = "198.51.100.2:80".parse().unwrap();
        let _server = Witness::start(&server, "server", &[(Transport::Tcp, address)]).unwrap();
        succeeds("source_nat", &["out", "192.0.2.10", "192.0.2.11", "192.0.2.12"]);
        let seen = |client: &str| -> IpAddr {
            let from: IpAddr = client.parse().unwrap();
            clients.run_in(|| ask(Transport::Tcp, Some(from), address, PATIENCE).unwrap().peer.ip()).unwrap()
        };
        let pool: BTreeSet<IpAddr> = [10, 11, 12].map(|last| [192, 0, 2, last].into()).into();
        let mut used = BTreeSet::new();
        for number in 10..26 {
            let client = format!("10.2.0.{number}");
            clients.add_address(&format!("{client}/24"), "eth0").unwrap();
            let first = seen(&client);
            assert!(pool.contains(&first), "{client} leaves by {first}");
            assert_eq!(seen(&client), first);
            used.insert(first);
        }
        assert_eq!(used, pool, "16 clients, and the hash is the same every time");
        let listed = tool("nft list table ip cookbook-snat");
        assert!(listed.contains("jhash ip saddr mod 3 seed 0x5eed0001 map @pool"), "{listed}");
        // Another pool takes its place as a whole.
        succeeds("source_nat", &["out", "192.0.2.20"]);
        assert_eq!(seen("10.2.0.10"), IpAddr::from([192, 0, 2, 20]));
    });
}

#[test]
fn follow_connections_tells_them_as_conntrack_does() {
    kernel_test(&[Need::Root, Need::Nftables, Need::Conntrack], || {
        track();
        let running = start("follow_connections", &[]);
        running.until_logged("listening");
        let server = serve(&Netns::current().unwrap(), "127.0.0.1:0", "here");
        let stream = TcpStream::connect(server.address()).unwrap();
        let (from, to) = (stream.local_addr().unwrap(), server.address());
        running.until_logged(&format!("new protocol 6 {from} -> {to}\n"));
        let listed = tool(&format!("conntrack -L -p tcp --sport {} --dport {}", from.port(), to.port()));
        assert!(listed.contains("127.0.0.1"), "{listed}");
        tool(&format!("conntrack -D -p tcp --sport {} --dport {}", from.port(), to.port()));
        running.until_logged(&format!("gone protocol 6 {from} -> {to}\n"));
    });
}

/// A call as a container runtime makes it.
fn cni(command: &str, namespace: &str, configuration: &str) -> (bool, String) {
    let mut child = program("cni_plugin")
        .envs([("CNI_COMMAND", command), ("CNI_CONTAINERID", "a"), ("CNI_IFNAME", "eth0"), ("CNI_NETNS", namespace)])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // VERSION does not read it.
    let _unread = child.stdin.take().unwrap().write_all(configuration.as_bytes());
    let output = child.wait_with_output().unwrap();
    (output.status.success(), text(&output.stdout))
}

#[test]
fn cni_plugin_programs_the_pod_and_nothing_else() {
    kernel_test(NFTABLES, || {
        let pod = neighbour("pod", "10.3.0");
        let path = pod.path();
        let here = Netns::current().unwrap();
        let to = |port: u16| (Transport::Tcp, SocketAddr::new([10, 3, 0, 2].into(), port));
        let _server = Witness::start(&pod, "pod", &[to(8080), to(9090)]).unwrap();
        let open = |port: u16| reaches(&here, "10.3.0.1", &format!("10.3.0.2:{port}"), PATIENCE);
        let closed = |port: u16| !reaches(&here, "10.3.0.1", &format!("10.3.0.2:{port}"), REFUSED);
        let list = |ports: &str| {
            format!(
                r#"{{"cniVersion": "1.0.0", "name": "net", "type": "cni_plugin", "ports": {ports},
                    "prevResult": {{"cniVersion": "1.0.0", "ips": [{{"address": "10.3.0.2/24"}}]}}}}"#
            )
        };
        let in_pod = |line: &str| pod.run_in(|| tool(line)).unwrap();

        let (works, printed) = cni("VERSION", "", "");
        assert!(works && printed.contains("\"supportedVersions\":[\"1.0.0\"]"), "{printed}");
        let (works, printed) = cni("ADD", &path, &list("[8080]"));
        assert!(works, "{printed}");
        let result: serde_json::Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(result["ips"][0]["address"], "10.3.0.2/24");
        assert!(open(8080) && closed(9090));
        assert_eq!(tool("nft list tables"), "", "the host has nothing of it");
        assert_eq!(cni("CHECK", &path, &list("[8080]")), (true, String::new()));
        for change in ["flush set inet cni-ports ports", "add element inet cni-ports ports { 9090 }"] {
            in_pod(&format!("nft {change}"));
            let (works, printed) = cni("CHECK", &path, &list("[8080]"));
            assert!(!works && printed.contains("\"code\":101"), "{change}: {printed}");
        }
        let (works, printed) = cni("ADD", &path, &list("[70000]"));
        assert!(!works && printed.contains("\"code\":7"), "{printed}");
        let (works, printed) = cni("ADD", "/no/such/namespace", &list("[]"));
        assert!(!works && printed.contains("/no/such/namespace"), "{printed}");
        let (works, printed) = cni("ADD", &path, &list("[]").replace("1.0.0", "0.1.0"));
        assert!(!works && printed.contains("\"code\":1,"), "{printed}");

        for namespace in [path.as_str(), path.as_str(), "", "/no/such/namespace"] {
            assert_eq!(cni("DEL", namespace, &list("[8080]")), (true, String::new()));
        }
        assert_eq!(in_pod("nft list tables"), "");
        assert!(open(9090));
    });
}

/// A virtual address that the embedded reconciler serves, changes and gives up.
fn embedded(mode: &str, is_known: impl Fn() -> bool) {
    let there = neighbour("real", "10.1.0");
    there.add_address("10.1.0.3/24", "eth0").unwrap();
    tool("ip route add default via 10.1.0.2");
    let (_a, _b) = (serve(&there, "10.1.0.2:8080", "a"), serve(&there, "10.1.0.3:8080", "b"));
    let file = Folder::new("cookbook");
    let line = "TCP 10.96.0.10:80 -> ";
    let path = put(&file, &format!("{line}10.1.0.2:8080\n"));
    let running = start("embed_reconciler", &[&path, mode]);
    let address: SocketAddr = "10.96.0.10:80".parse().unwrap();
    let answers = |name: &str| {
        running.until(&format!("an answer from {name}"), || {
            TcpStream::connect_timeout(&address, REFUSED).is_ok()
                && traffic::connect_and_ask(address).is_ok_and(|who| who == name)
        });
    };
    answers("a");
    assert!(is_known());
    put(&file, &format!("{line}10.1.0.3:8080\n"));
    answers("b");
    put(&file, "nonsense\n");
    running.until_logged("the earlier one counts");
    assert_eq!(traffic::connect_and_ask(address).unwrap(), "b");
    put(&file, "\n");
    running.until("the end of the virtual address", || !is_known());
}

#[test]
fn embed_reconciler_serves_from_a_file_by_nftables() {
    kernel_test(NFTABLES, || embedded("nftables", || tool("nft list ruleset").contains("10.96.0.10")));
}

#[test]
fn embed_reconciler_serves_from_a_file_by_ipvs() {
    kernel_test(&[PROXY, &[Need::Veth]].concat(), || {
        embedded("ipvs", || ipvsadm().contains("-A -t 10.96.0.10:80 -s rr"));
    });
}

#[test]
fn probe_first_knows_whether_ipvs_answers() {
    kernel_test(&[Need::Root], || {
        let lacks = testkit::missing(Need::IpVs);
        let output = output("probe_first", &[]);
        let printed = text(&output.stdout);
        assert_eq!(output.status.code(), Some(i32::from(lacks.is_some())), "{lacks:?}\n{printed}");
        assert_eq!(printed.contains("IPVS does not answer: "), lacks.is_some(), "{printed}");
    });
}

#[test]
fn probe_first_loads_what_is_missing() {
    kernel_test(IPVS, || {
        let printed = succeeds("probe_first", &["load"]);
        assert!(printed.lines().last().unwrap().ends_with(" answers"), "{printed}");
        assert!(!printed.contains("ip_vs_wlc ("), "nothing is left to load: {printed}");
        // A table with that scheduler can be made now.
        tool("ipvsadm -A -t 192.0.2.1:80 -s wlc");
    });
}

#[test]
fn tokio_agent_keeps_its_table_and_hears_of_addresses() {
    kernel_test(NFTABLES, || {
        let running = start("tokio_agent", &[]);
        running.until_logged("inet cookbook-tokio is there\n");
        let listed = tool("nft list table inet cookbook-tokio");
        assert!(listed.contains("chain kept"), "{listed}");
        tool("nft delete table inet cookbook-tokio");
        running.until("the table again", || {
            testkit::oracle::run("nft", &["list", "table", "inet", "cookbook-tokio"], None)
                .is_ok_and(|found| found.stdout == listed)
        });
        tool("ip address add 192.0.2.7/32 dev lo");
        running.until_logged("192.0.2.7 on lo: Present\n");
        tool("ip address del 192.0.2.7/32 dev lo");
        running.until_logged("192.0.2.7 on lo: Gone\n");
        assert!(running.end_with("INT").success());
        assert_eq!(tool("nft list tables"), "");
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_stream_waits_and_tells_of_lost_events() {
    kernel_test(NFTABLES, || {
        runtime().block_on(async {
            let mut events = Events::open().unwrap();
            events.set_receive_buffer(16 << 10).unwrap();
            let mut changes = tokio_agent::Changes::new(events).unwrap();
            let early = tokio::time::timeout(Duration::from_millis(50), changes.next()).await;
            assert!(early.is_err(), "nothing has changed: {early:?}");
            tool("nft add table ip first");
            let heard = tokio::time::timeout(PATIENCE, changes.next()).await.unwrap().unwrap().unwrap();
            assert!(
                heard
                    .iter()
                    .any(|event| matches!(event, Event::Table(_, table) if table.table.key.to_string() == "ip first"))
            );
            // There are more events than the socket has room for, while they are not read.
            let chains =
                (0..2000).fold(String::new(), |text, number| text + &format!("add chain ip first c{number}\n"));
            testkit::oracle::run("nft", &["-f", "-"], Some(&chains)).unwrap();
            let lost = async {
                loop {
                    if let Err(error) = changes.next().await.unwrap() {
                        break error;
                    }
                }
            };
            let error = tokio::time::timeout(PATIENCE, lost).await.unwrap();
            assert_eq!(error.kind(), ErrorKind::StateUnknown, "{error}");
            // Events that were queued before are still read; then the stream waits again, and later changes come.
            while tokio::time::timeout(Duration::from_millis(200), changes.next()).await.is_ok() {}
            let later = async {
                loop {
                    let heard = changes.next().await.unwrap();
                    if heard.is_ok_and(|events| events.iter().any(|event| matches!(event, Event::Generation(_)))) {
                        break;
                    }
                }
            };
            tool("nft add table ip last");
            tokio::time::timeout(PATIENCE, later).await.unwrap();
        });
    });
}

#[test]
fn connections_are_a_stream() {
    kernel_test(&[Need::Root, Need::Nftables, Need::Conntrack], || {
        track();
        runtime().block_on(async {
            let listener = Listener::open(Protocol::Netfilter, &follow_connections::GROUPS).unwrap();
            let mut connections = tokio_agent::Stream::new(listener).unwrap();
            let early =
                tokio::time::timeout(Duration::from_millis(50), connections.next(follow_connections::read)).await;
            assert!(early.is_err(), "nobody has connected: {early:?}");
            let server = serve(&Netns::current().unwrap(), "127.0.0.1:0", "here");
            let stream = TcpStream::connect(server.address()).unwrap();
            let (from, to) = (stream.local_addr().unwrap(), server.address());
            let heard = async |connections: &mut tokio_agent::Stream<Listener>, line: String| {
                let found = async {
                    while !connections.next(follow_connections::read).await.unwrap().unwrap().contains(&line) {}
                };
                tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_late| panic!("waited for: {line}"));
            };
            heard(&mut connections, format!("new protocol 6 {from} -> {to}")).await;
            tool(&format!("conntrack -D -p tcp --sport {} --dport {}", from.port(), to.port()));
            heard(&mut connections, format!("gone protocol 6 {from} -> {to}")).await;
        });
    });
}

#[test]
fn an_actor_does_one_job_after_the_other_and_tells_when_it_has_ended() {
    runtime().block_on(async {
        let actor = tokio_agent::Actor::start(Vec::new()).unwrap();
        for number in 0..100_usize {
            let add = move |numbers: &mut Vec<usize>| {
                numbers.push(number);
                numbers.len()
            };
            assert_eq!(actor.call(add).await.unwrap(), number + 1);
        }
        let all = actor.call(|numbers| numbers.clone()).await.unwrap();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        assert!(actor.call(|_| panic!("a job that fails")).await.is_err());
        assert!(actor.call(|numbers| numbers.len()).await.is_err());
    });
}
