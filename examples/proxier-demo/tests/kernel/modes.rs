//! A live node changes its mode, in every direction, while clients connect. No client is refused if the kernel serves
//! before and after. Long connections go on if the kernel lets them. Nothing of the old mode is left.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use testkit::traffic::{Connection, NameServer};
use testkit::{Need, Netns, PROXY, Sample, kernel_test};

use crate::program::world::{Client, NODE_PORT, POD, SERVICE, World, held};
use crate::program::{self, HTTP, command, demo, fetched, joined, lone, ok, slice, status_of, text, tool};

const NEEDS: &[Need] = &[Need::Root, Need::Veth, Need::Nftables, Need::IptablesNft];

/// Whether the mode's objects have the addresses of both families of the Service `demo/six`.
fn holds_both(mode: &str) -> bool {
    let printed = match mode {
        "ipvs" => tool("ipvsadm -Sn") + &tool("ip addr show kube-ipvs0"),
        "iptables" => tool("iptables-save") + &tool("ip6tables-save"),
        "nftables" => tool("nft list ruleset"),
        _ => held(mode).join("\n"),
    };
    ["10.96.0.16", "fd00:96::16"].iter().all(|address| printed.contains(address))
}

fn six() -> String {
    let spec = "clusterIP: 'fd00:96::16', clusterIPs: ['fd00:96::16', 10.96.0.16], ipFamilies: [IPv6, IPv4], \
                ports: [{name: http, port: 80, protocol: TCP, targetPort: 8080}]";
    let [v6, v4] = [("IPv6", "{addresses: ['fd00:244::5']}"), ("IPv4", "{addresses: [10.244.0.5]}")]
        .map(|(family, endpoints)| slice("six", family, HTTP, endpoints));
    lone("six", spec, "") + &v6 + &v4
}

const SIX_V6: &str = "[fd00:96::16]:80";
const SIX_V4: &str = "10.96.0.16:80";

/// Gives the same node IPv6 in addition to IPv4, and a Service of both.
fn dual_stack(world: &World) -> NameServer {
    let run = |of: &Netns, lines: &[&str]| of.run_in(|| lines.iter().for_each(|line| drop(tool(line)))).unwrap();
    run(
        &Netns::current().unwrap(),
        &[
            "sysctl -w net.ipv6.conf.all.forwarding=1",
            "ip -6 addr add 2001:db8:9::1/64 dev eth9 nodad",
            "ip -6 addr add fd00:244::1/64 dev pod9 nodad",
            "ip -6 route add default via 2001:db8:9::2",
        ],
    );
    run(
        &world.client,
        &["ip -6 addr add 2001:db8:9::2/64 dev eth0 nodad", "ip -6 route add fd00:96::/64 via 2001:db8:9::1"],
    );
    run(&world.pod, &["ip -6 addr add fd00:244::5/64 dev eth0 nodad", "ip -6 route add default via fd00:244::1"]);
    world.manifests.put("six.yaml", &six());
    NameServer::tcp(&world.pod, "[fd00:244::5]:8080".parse().unwrap(), POD).unwrap()
}

fn change(from: &str, to: &str) {
    println!("from {from} to {to}");
    let world = World::new();
    let _server = dual_stack(&world);
    let asks_all = || [SERVICE, NODE_PORT, SIX_V4, SIX_V6].iter().all(|place| world.asks(place));
    // The probe loads the modules of all modes: on a machine that has just booted, that takes longer than all the rest.
    let _some_modes_may_be_lacking = demo(&["probe", "--proxy-mode", "auto"]);
    let old = world.start(from);
    old.until("it serves", asks_all);
    assert!(held(from) != [""; 0] && holds_both(from), "{from}: {:?}", held(from));
    // Connections of IPVS end with its virtual servers, relayed ones with the process, and Linux translates addresses only as long as there is a nat
    // chain.
    let goes_on = from == "iptables" || (from, to) == ("nftables", "iptables") || (from, to) == ("nftables", "ipvs");
    let address: SocketAddr = SERVICE.parse().unwrap();
    let mut long = goes_on.then(|| world.client.run_in(|| Connection::open(address).unwrap()).unwrap());
    if let Some(long) = &mut long {
        long.ask().unwrap();
    }
    let here = Netns::current().unwrap();
    let clients = [
        Client::start(&world.client, SERVICE),
        Client::start(&world.client, NODE_PORT),
        Client::start(&world.client, SIX_V6),
        Client::start(&here, SERVICE),
    ];
    let of_node = clients.len() - 1;
    std::thread::sleep(Duration::from_millis(500));

    let ends = Instant::now();
    assert!(old.end().success());
    let new = world.start(to);
    new.until("it serves", || held(to) != [""; 0] && holds_both(to) && asks_all());
    let serves = Instant::now();
    new.until("nothing is left of the old mode", || held(from).is_empty());
    let gone = Instant::now();
    if from != "userspace" {
        new.until_logged(" left by other proxy modes");
    }
    std::thread::sleep(Duration::from_secs(1));
    let but = match (from, to) {
        // A process takes its Services with it.
        ("userspace", _) => Some((ends, serves)),
        // Sockets get no packets before the old mode has gone, here too.
        ("ipvs" | "nftables", "userspace") => Some((serves, gone)),
        _ => None,
    };
    for (number, client) in clients.into_iter().enumerate() {
        // A program of the node has the Service's address as its own where that is local, until it is not any more.
        let local = number == of_node && matches!(from, "ipvs" | "userspace");
        let (made, failed) = client.end(ends, if local { Some((ends, gone)) } else { but });
        // Seen on 6.1: a SYN that is on its way while the kernel deletes a table gets neither its endpoint nor a
        // virtual server. One that came by IPVS while a table is created is not answered.
        let at_the_moment = usize::from([from, to].contains(&"ipvs"));
        assert!(
            made > 5 && failed.len() <= at_the_moment,
            "{from} to {to}, client {number}, serves at {:?}, gone at {:?}: {made} connections; failed: {failed:?}\n{}",
            serves - ends,
            gone - ends,
            new.log()
        );
    }
    if let Some(mut long) = long {
        assert_eq!(long.ask().unwrap(), "pod", "{from} to {to}: a long connection");
    }
    // The new mode needs no change.
    let plan = demo(&joined(&["plan"], &world.arguments(to)));
    assert!(ok(&plan).starts_with("nothing to do"), "{from} to {to}: {}", text(&plan.stdout));
    assert!(new.end().success());
    ok(&command(&["cleanup"]).output().unwrap());
    assert_eq!((held(from), held(to)), (vec![], vec![]), "{from} to {to}");
}

/// The input is suddenly empty, or without EndpointSlices, and the node changes its mode: the old mode serves until a person has confirmed.
#[test]
fn an_empty_input_in_another_mode_deletes_nothing() {
    let all: String = (10..22)
        .map(|number| {
            program::service(
                "demo",
                &format!("web-{number}"),
                &format!("10.96.1.{number}"),
                "{addresses: [10.244.0.5]}",
            )
        })
        .collect();
    let without_slices: String = all
        .split("---\n")
        .filter(|object| object.contains("kind: Service"))
        .flat_map(|object| [object, "---\n"])
        .collect();
    let cases = [
        ("nftables", "iptables", ""),
        ("iptables", "nftables", &*without_slices),
        ("iptables", "userspace", ""),
        ("nftables", "userspace", &without_slices),
    ];
    for (from, to, left) in cases {
        kernel_test(NEEDS, || {
            let world = World::new();
            world.manifests.put("web.yaml", &all);
            let asks = || world.asks("10.96.1.10:80") && world.asks("10.96.1.21:80");
            let old = world.start(from);
            old.until("it serves", asks);
            let before = held(from);
            assert!(old.end().success());
            world.manifests.put("web.yaml", left);
            let status = |path: &str| status_of(&format!("10256/{path}"));
            let new = world.start(to);
            new.until_logged("12 of 12 virtual servers would go or lose their last endpoint");
            // Longer than the old mode's objects stay after the new mode serves.
            std::thread::sleep(Duration::from_secs(3));
            assert!(asks() && held(from) == before && held(to).is_empty(), "{from} to {to}: {}", new.log());
            assert_eq!(["healthz", "readyz"].map(status), [200, 503], "{from} to {to}: {}", new.log());
            assert!(fetched("10249/metrics").contains("kubeproxy_virtual_servers_held_back 12\n"));
            let health = fetched("10256/healthz");
            assert!(health.contains("objects of other proxy modes serve"), "{health}");
            if left.is_empty() {
                // The input comes back.
                world.manifests.put("web.yaml", &all);
                new.until("the new mode serves alone", || held(from).is_empty() && held(to) != [""; 0] && asks());
                assert_eq!(status("readyz"), 200);
            } else {
                // The signal says that the empty input is meant.
                new.signal("USR1");
                new.until("nothing serves any more", || held(from).is_empty() && !asks());
            }
            assert!(new.end().success());
        });
    }
}

#[test]
fn between_modes_that_need_no_ipvs() {
    const MODES: [&str; 3] = ["nftables", "iptables", "userspace"];
    for from in MODES {
        for to in MODES.into_iter().filter(|to| *to != from) {
            kernel_test(NEEDS, || change(from, to));
        }
    }
}

#[test]
fn from_and_to_ipvs() {
    let needs = [PROXY, NEEDS].concat();
    let changes = ["nftables", "iptables", "userspace"].map(|other| [("ipvs", other), (other, "ipvs")]);
    for (number, (from, to)) in changes.into_iter().flatten().enumerate() {
        if Sample::asked_for().takes(number, 3) {
            kernel_test(&needs, || change(from, to));
        }
    }
}

/// A single pass of `run --once` changes the mode too.
#[test]
fn run_once_changes_the_mode() {
    kernel_test(NEEDS, || {
        let world = World::new();
        let once = |mode: &str| ok(&demo(&joined(&["run", "--once"], &world.arguments(mode))));
        once("iptables");
        assert!(world.asks(SERVICE) && held("nftables").is_empty());
        once("nftables");
        assert!(world.asks(SERVICE) && held("iptables").is_empty() && held("nftables") != [""; 0]);
        once("iptables");
        assert!(world.asks(SERVICE) && held("nftables").is_empty() && held("iptables") != [""; 0]);
        ok(&command(&["cleanup"]).output().unwrap());
        assert_eq!((held("iptables"), held("nftables")), (vec![], vec![]));
    });
}

/// `run --once` of a mode with these arguments more.
fn once(world: &World, mode: &str, more: &[&str]) -> Output {
    demo(&[&["run", "--once", "--manifests", world.manifests.name(), "--proxy-mode", mode], more].concat())
}

/// A scheduler of another module is accepted once the machine has the module; the kernel then decides.
#[test]
fn a_scheduler_of_another_module_is_accepted() {
    kernel_test(&[NEEDS, &[Need::Mounts]].concat(), || {
        let world = World::new();
        let release = tool("uname -r");
        let modules = Path::new("/lib/modules");
        let is_made = !modules.exists();
        fs::create_dir_all(modules).unwrap();
        // A mount namespace of its own has a directory of modules with one of this name.
        let put = format!(
            "mount -t tmpfs none /lib/modules && mkdir -p /lib/modules/{0}/extra && cd /lib/modules/{0} && \
             echo extra/ip_vs_mine.ko: > modules.dep && touch extra/ip_vs_mine.ko && exec \"$@\"",
            release.trim()
        );
        let run = |command: &str, mode: &str, scheduler: &str| {
            let mut run = Command::new("unshare");
            run.args(["--mount", "sh", "-c", &put, "sh", env!("CARGO_BIN_EXE_proxier-demo")]);
            run.args(command.split(' '));
            run.args(["--proxy-mode", mode, "--manifests", world.manifests.name(), "--hostname-override=n1"]);
            run.args(["--ipvs-scheduler", scheduler]).output().unwrap()
        };
        let (there, unused) = (run("plan", "ipvs", "mine"), run("plan", "nftables", "yours"));
        let modes = ["ipvs", "auto"].into_iter();
        let absent = modes.flat_map(|mode| ["run --once", "plan", "probe"].map(|command| run(command, mode, "yours")));
        let absent: Vec<Output> = absent.collect();
        if is_made {
            fs::remove_dir(modules).unwrap();
        }
        ok(&there);
        ok(&unused);
        // Bad input on any kernel: no other mode serves.
        for absent in absent {
            let said = text(&absent.stderr);
            assert_eq!(absent.status.code(), Some(2), "{said}");
            assert!(said.contains("no sign of a module ip_vs_yours"), "{said}");
        }
    });
}

/// Right values never make the kernel, or the programs, refuse a mode's rules, so that another mode would serve.
#[test]
fn no_value_leads_to_another_mode() {
    const EVERYWHERE: &[&str] = &[
        "--masquerade-all",
        "--iptables-localhost-nodeports=false",
        "--conntrack-tcp-be-liberal",
        "--ipvs-exclude-cidrs=10.0.0.0/8,10.1.0.0/16,10.0.0.0/8",
        "--ipvs-strict-arp",
    ];
    const OVERLAPPING: &str =
        "--nodeport-addresses=192.0.2.0/24,192.0.2.0/25,192.0.2.1/32,10.0.0.0/8,fd00::/8,fd00:1::/32,0.0.0.0/0,::/0";
    const LOCAL: &[&[&str]] = &[
        &["--cluster-cidr=0.0.0.0/0,::/0", "--iptables-masquerade-bit=0", OVERLAPPING],
        &["--cluster-cidr=10.244.0.7/16,fd00::1/128", "--iptables-masquerade-bit=31", "--nodeport-addresses=primary"],
        &["--detect-local-mode=NodeCIDR", "--nodeport-addresses=127.0.0.0/8"],
        &["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=a\"b'c\\d*e+é.!"],
        &["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=-j$(x) "],
        &["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=-j$*[\"'#;&"],
        &["--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=abcdefghijklmno"],
    ];
    kernel_test(NEEDS, || {
        let world = World::new();
        for mode in ["nftables", "iptables"] {
            for local in LOCAL {
                let is_refused = local.iter().any(|flag| flag.ends_with(' '));
                let output = once(&world, mode, &[EVERYWHERE, *local].concat());
                let said = text(&output.stderr);
                let code = if is_refused { 2 } else { 0 };
                assert_eq!(output.status.code(), Some(code), "{mode} {local:?}: {said}");
                assert!(!said.contains("falling back"), "{mode} {local:?}: {said}");
            }
        }
        ok(&command(&["cleanup"]).output().unwrap());
    });
}
