//! `trace --live` on a real kernel, in each mode that has entries there: entries are found, and missing ones are named. Connections are counted as
//! the usual tools count them.

use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use testkit::{Need, Netns, PROXY, kernel_test, veth_pair};

use crate::program::{Folder, command, demo, ok, set_up, text, tool, with_node_port};

fn manifest() -> String {
    let endpoints = ["10.244.0.5", "10.244.0.6"];
    with_node_port("web", "10.96.0.10", 30080, &endpoints).replace("namespace: demo", "namespace: shop")
}

const SERVICE: &str = "10.96.0.10:80";
const NODE_PORT: &str = "192.0.2.1:30080";

/// A node with a pod that answers at two addresses, and a proxy that has served once.
struct World {
    folder: Folder,
    mode: &'static [&'static str],
    _pod: Netns,
}

impl World {
    fn new(mode: &'static [&'static str]) -> Self {
        set_up();
        // Programs of the node need a route to send anything at all.
        tool("ip route add 10.96.0.0/12 dev eth9");
        let (node, pod) = (Netns::current().unwrap(), Netns::new().unwrap());
        veth_pair((&node, "pod0"), (&pod, "eth0")).unwrap();
        tool("ip address add 10.244.0.1/24 dev pod0");
        for address in ["10.244.0.5/24", "10.244.0.6/24"] {
            pod.add_address(address, "eth0").unwrap();
        }
        pod.run_in(|| {
            tool("ip route add default via 10.244.0.1");
            let server = TcpListener::bind("0.0.0.0:8080").unwrap();
            std::thread::spawn(move || server.incoming().for_each(drop));
        })
        .unwrap();
        let folder = Folder::with("web.yaml", &manifest());
        let world = World { folder, mode, _pod: pod };
        ok(&world.run(&["run", "--once"]));
        world
    }

    fn run(&self, words: &[&str]) -> Output {
        command(words).args(self.mode).args(["--manifests", self.folder.name()]).output().unwrap()
    }

    /// Exit code and data.
    fn live(&self, words: &[&str]) -> (Option<i32>, Value) {
        let output = self.run(&[&["trace", "-o", "json"], words].concat());
        let data = serde_json::from_slice(&output.stdout);
        let data: Value = data.unwrap_or_else(|error| panic!("{error}: {}", text(&output.stderr)));
        (output.status.code(), data["live"].clone())
    }

    /// Checks that every entry is found, and none where there should be none.
    fn agrees(&self) {
        for to in [SERVICE, NODE_PORT, "10.96.0.10:81", "10.96.0.99:80"] {
            let (code, live) = self.live(&["--live", "192.0.2.50", to]);
            assert_eq!((code, &live["agrees"]), (Some(0), &true.into()), "{to}: {live:#}");
            if [SERVICE, NODE_PORT].contains(&to) {
                let there = live["there"].to_string();
                assert!(there.contains("10.244.0.5:8080") && there.contains("10.244.0.6:8080"), "{there}");
            }
        }
        for (to, lines) in [
            (SERVICE, &["  there: ", "it has all of this address and port; plan compares what Services share"][..]),
            ("10.96.0.99:80", &["  counted: nothing, "]),
        ] {
            let printed = ok(&self.run(&["trace", "--live", "192.0.2.50", to]));
            for line in lines {
                assert!(printed.contains(line), "{line}: {printed}");
            }
            let tells_how = printed.contains("  counted: nothing without nftables.countConnections; ");
            // The test of nftables mode asks for `auto`.
            assert_eq!(tells_how, to == SERVICE && self.mode.contains(&"auto"), "{printed}");
        }
    }

    /// Checks that a missing or unexpected entry is named, and the exit code.
    fn names(&self, to: &str, difference: &str) {
        let output = self.run(&["trace", "--live", "192.0.2.50", to]);
        let printed = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        let flat = printed.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(difference), "{difference}: {printed}");
        let differences = self.live(&["--live", "192.0.2.50", to]).1["differences"].as_array().unwrap().clone();
        assert!(flat.contains(&format!(" {} difference", differences.len())), "{printed}");
        for of in differences {
            let word = match (of["expected"].is_null(), of["found"].is_null()) {
                (true, _) => "not expected",
                (_, true) => "missing",
                _ => "differs",
            };
            let what = of["what"].as_str().unwrap();
            assert!(flat.contains(&format!("{word}: {what}")), "{of}: {printed}");
            assert!(!flat.contains(&format!("there: {what}")), "{of}: {printed}");
        }
    }

    /// Makes connections while it counts. Returns the data, the count of that time, and the number of connections.
    fn counted(&self) -> (Value, Value, u64) {
        let is_over = Arc::new(AtomicBool::new(false));
        let until = is_over.clone();
        let connections = std::thread::spawn(move || {
            let mut made = 0;
            while !until.load(Ordering::Relaxed) {
                drop(TcpStream::connect(SERVICE).unwrap());
                made += 1;
                std::thread::sleep(Duration::from_millis(100));
            }
            made
        });
        let (code, live) = self.live(&["--live=5", "192.0.2.1", SERVICE]);
        is_over.store(true, Ordering::Relaxed);
        let made = connections.join().unwrap();
        assert_eq!(code, Some(0), "{live:#}");
        let after = self.live(&["--live", "192.0.2.1", SERVICE]).1;
        (after["counted"].clone(), live["countedInTime"].clone(), made)
    }
}

/// Runs a line of a shell, and checks that `trace` names the difference that it makes.
fn breaks(world: &World, line: &str, to: &str, difference: &str) {
    ok(&std::process::Command::new("sh").args(["-ec", line]).output().unwrap());
    world.names(to, difference);
}

#[test]
fn nftables_mode() {
    kernel_test(&[Need::Root, Need::Veth, Need::Nftables], || {
        let mut world = World::new(&["--proxy-mode", "nftables"]);
        // `auto` is the mode that serves, not the one that this machine would choose.
        world.mode = &["--proxy-mode", "auto"];
        world.agrees();
        world.mode = &["--proxy-mode", "nftables"];
        let (all, in_time, _) = world.counted();
        assert_eq!((all, in_time), (Value::Null, Value::Null), "maps count nothing");
        breaks(
            &world,
            "nft flush map ip proxier endpoints",
            SERVICE,
            "missing: map endpoints: endpoint 10.244.0.6:8080",
        );
        breaks(&world, "nft delete table ip proxier", NODE_PORT, "missing: services: TCP 192.0.2.1:30080");
        ok(&demo(&["cleanup"]));
    });
}

#[test]
fn iptables_mode() {
    const FLUSH: &str = "iptables -t nat -F $(iptables-save -t nat | \
                         sed -n 's/^-A \\([^ ]*\\) .*--to-destination 10.244.0.6:8080.*/\\1/p')";
    kernel_test(&[Need::Root, Need::Veth, Need::IptablesNft], || {
        let world = World::new(&["--proxy-mode", "iptables"]);
        world.agrees();
        // Those from before its time are no part of a count.
        (0..9).for_each(|_| drop(TcpStream::connect(SERVICE).unwrap()));
        let before = world.live(&["--live", "192.0.2.1", SERVICE]).1["counted"]["connections"].as_u64().unwrap();
        let (all, in_time, made) = world.counted();
        assert_eq!(all["connections"].as_u64().unwrap(), before + made);
        assert!((2..=made).contains(&in_time["connections"].as_u64().unwrap()), "{in_time} of {made}");
        breaks(&world, FLUSH, SERVICE, "missing: endpoint 10.244.0.6:8080");
        let more = "iptables -t nat -I KUBE-SERVICES -d 10.96.0.99 -p tcp --dport 80 -j KUBE-MARK-MASQ";
        breaks(&world, more, "10.96.0.99:80", "not expected: nat KUBE-SERVICES:");
        ok(&demo(&["cleanup"]));
    });
}

/// Connections of the virtual server, as `ipvsadm` says.
fn ipvsadm_connections() -> u64 {
    let listed = tool("ipvsadm -Ln --stats --exact");
    let row = listed.lines().find(|line| line.contains(SERVICE)).unwrap();
    row.split_whitespace().nth(2).unwrap().parse().unwrap()
}

#[test]
fn ipvs_mode() {
    const ROUTES: &[&str] =
        &["--proxy-mode", "ipvs", "--ipvs-binding", "routes", "--ipvs-service-cidrs", "10.96.0.0/16"];
    for (mode, unbind, how) in [
        (&ROUTES[..2], "ip address del 10.96.0.10/32 dev kube-ipvs0", "bound to kube-ipvs0"),
        (ROUTES, "ip route del local 10.96.0.0/16 dev lo table local", "route of 10.96.0.0/16"),
    ] {
        kernel_test(&[PROXY, &[Need::Veth]].concat(), || {
            let world = World::new(mode);
            world.agrees();
            let (_, in_time, made) = world.counted();
            // The kernel adds up every two seconds; from then on the count stays.
            let end = Instant::now() + Duration::from_secs(30);
            while ipvsadm_connections() != made {
                assert!(Instant::now() < end, "{made} made: {}", tool("ipvsadm -Ln --stats --exact"));
                std::thread::sleep(Duration::from_millis(100));
            }
            let live = world.live(&["--live", "192.0.2.1", SERVICE]).1;
            assert_eq!(live["counted"]["connections"], made, "{live:#}");
            assert!((2..=made).contains(&in_time["connections"].as_u64().unwrap()), "{in_time} of {made}");
            let differs = "differs: virtual server TCP 10.96.0.10:80: wrr in the kernel, rr expected";
            breaks(&world, "ipvsadm -E -t 10.96.0.10:80 -s wrr", SERVICE, differs);
            breaks(&world, unbind, SERVICE, &format!("missing: local address 10.96.0.10 ({how})"));
            ok(&demo(&["cleanup"]));
        });
    }
}
