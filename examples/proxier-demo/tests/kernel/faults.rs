//! `proxier-demo` while parts around it fail: lists that are suddenly empty, a held lock, objects that the kernel refuses, an address that comes and
//! goes.

use std::collections::BTreeSet;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use serde_json::{Value, json};
use testkit::apiserver::{Fault, Verb};
use testkit::witness::Conversation;
use testkit::witness::Transport::Tcp;
use testkit::{Need, Netns, PROXY, kernel_test, veth_pair};

use crate::live::{Service, Witness, World};
use crate::program::{self, Running, command, ipvsadm, set_up, text, tool};

/// Twenty Services, each with two endpoints.
fn services() -> Vec<Service> {
    let service = |number: u8| {
        let endpoints = [format!("10.244.{number}.5"), format!("10.244.{number}.6")];
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        let name = format!("web-{number}");
        Service {
            node_port: (number == 1).then_some(30080),
            ..Service::new(&name, &format!("10.96.0.{number}"), &endpoints)
        }
    };
    (1..=20).map(service).collect()
}

fn metric(name: &str) -> u64 {
    let page = testkit::get("http://127.0.0.1:10249/metrics").map_or_else(|_| String::new(), |page| page.body);
    let line = page.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().parse().unwrap_or(0)
}

/// The status and text of a health page.
fn health(path: &str) -> (u16, String) {
    let page = testkit::get(&format!("http://127.0.0.1:10256/{path}"));
    page.map_or((0, String::new()), |page| (page.status, page.body))
}

/// Both lists become empty, in either order; they are filled again in either order, one long before the other. No endpoint of any virtual server is
/// missing, or has weight 0, at any moment. Other endpoints of a Service that is held back count.
#[test]
fn empty_lists_in_every_order_take_no_endpoint() {
    kernel_test(PROXY, || {
        set_up();
        for (late_to_go, late_to_come) in [
            ("services", "slices"),
            ("services", "services"),
            ("endpointslices", "services"),
            ("endpointslices", "slices"),
        ] {
            let mut world = World::new(services());
            let running = Running::start(&["--kubeconfig", &world.kubeconfig()]);
            running.until("the initial list", || ipvsadm() == world.lines());
            let witness = Witness::start();
            witness.want(world.lines());
            for service in &world.services {
                world.server.delete_silently("services", "demo", &service.name);
                world.server.delete_silently("endpointslices", "demo", &format!("{}-1", service.name));
            }
            world.server.fail_next(late_to_go, Verb::List, Fault::Late(Duration::from_secs(3)));
            world.server.cut_watches();
            world.server.compact();
            // Twenty cluster IPs and a node port.
            running.until("both lists are doubted", || metric("kubeproxy_virtual_servers_held_back") == 21);
            std::thread::sleep(Duration::from_secs(5));
            assert_eq!(metric("kubeproxy_virtual_servers_held_back"), 21);
            // Its Service is still missing.
            let replaces = |world: &mut World, number: usize, address: &str| {
                let place = format!("{}:80", world.services[number].address);
                let mut lines = world.lines();
                lines.retain(|line| !line.contains(&format!("{place} -r")));
                witness.still_want(&lines);
                world.services[number].endpoints = vec![address.to_owned()];
                world.server.put(&world.services[number].slice());
                let added = format!("-a -t {place} -r {address}:8080 -m -w 1");
                running.until("other endpoints of what is held back", || ipvsadm() == world.lines());
                assert!(ipvsadm().contains(&added));
                assert_eq!(metric("kubeproxy_virtual_servers_held_back"), 21);
            };
            replaces(&mut world, 19, "10.244.99.1");
            let services = |world: &World| world.services.iter().for_each(|one| _ = world.server.put(&one.object()));
            let slices = |world: &World| world.services.iter().for_each(|one| _ = world.server.put(&one.slice()));
            if late_to_come == "slices" {
                services(&world);
                std::thread::sleep(Duration::from_secs(8));
                slices(&world);
            } else {
                slices(&world);
                std::thread::sleep(Duration::from_secs(4));
                replaces(&mut world, 18, "10.244.99.2");
                std::thread::sleep(Duration::from_secs(4));
                services(&world);
            }
            running.until("nothing is doubted any more", || metric("kubeproxy_virtual_servers_held_back") == 0);
            assert_eq!(ipvsadm(), world.lines());
            witness.end();
            assert_eq!(metric("kubeproxy_sync_failures_total"), 0);
            assert!(running.end().success());
            assert!(command(&["cleanup"]).output().unwrap().status.success());
        }
    });
}

/// Only the slices are missing; and the process restarts meanwhile.
#[test]
fn missing_slices_take_no_endpoint_nor_does_a_restart() {
    kernel_test(PROXY, || {
        set_up();
        let world = World::new(services());
        let running = Running::start(&["--kubeconfig", &world.kubeconfig()]);
        running.until("the initial list", || ipvsadm() == world.lines());
        let witness = Witness::start();
        witness.want(world.lines());
        for service in &world.services {
            world.server.delete_silently("endpointslices", "demo", &format!("{}-1", service.name));
        }
        world.server.cut_watches();
        world.server.compact();
        running.until("they are doubted", || metric("kubeproxy_virtual_servers_held_back") == 21);
        assert!(!running.end_with("KILL").success());
        let running = Running::start(&["--kubeconfig", &world.kubeconfig()]);
        running.until("they are doubted again", || metric("kubeproxy_virtual_servers_held_back") == 21);
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(ipvsadm(), world.lines());
        // One Service comes with other endpoints than before.
        let mut world = world;
        let mut lines = world.lines();
        lines.retain(|line| !line.contains("10.96.0.20:80 -r"));
        witness.still_want(&lines);
        world.services[19].endpoints = vec!["10.244.99.1".to_owned()];
        world.server.put(&world.services[19].slice());
        running.until("it has them", || ipvsadm().contains("-a -t 10.96.0.20:80 -r 10.244.99.1:8080 -m -w 1"));
        for service in &world.services {
            world.server.put(&service.slice());
        }
        running.until("all is well", || ipvsadm() == world.lines());
        witness.end();
        assert!(running.end().success());
    });
}

/// All network namespaces share the lock of iptables: the tests that hold it take turns.
static LOCK: Mutex<()> = Mutex::new(());

/// Holds the lock of the legacy programs.
fn hold_lock() -> Flock<fs::File> {
    let file = fs::OpenOptions::new().create(true).truncate(false).write(true).open("/run/xtables.lock").unwrap();
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno).unwrap()
}

/// A load balancer of both families with source ranges, as the API server has it.
struct Guarded {
    object: Value,
    slices: [Value; 2],
}

/// Each family's cluster IP is number N of its network, and the load balancer's address is, too.
fn guarded(name: &str, number: u8) -> Guarded {
    let service = Service {
        balancer: vec![format!("203.0.113.{number}"), format!("2001:db8:113::{number}")],
        ..Service::new(name, &format!("10.96.5.{number}"), &["10.244.50.1"])
    };
    let mut object = service.object();
    object["spec"]["clusterIPs"] = json!([service.address, format!("fd00:96:5::{number}")]);
    object["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    object["spec"]["ipFamilyPolicy"] = "RequireDualStack".into();
    object["spec"]["loadBalancerSourceRanges"] = json!(["198.51.100.0/24", "2001:db8:51::/48"]);
    let mut second = Service { endpoints: vec!["fd00:244:50::1".to_owned()], ..service.clone() }.slice();
    second["addressType"] = "IPv6".into();
    second["metadata"]["name"] = format!("{name}-2").into();
    Guarded { object, slices: [service.slice(), second] }
}

/// Cluster IPs of a Service, or its load balancer's addresses, as `ipvsadm` prints them.
fn cluster_ips(number: u8) -> [String; 2] {
    [format!("-A -t 10.96.5.{number}:80 -s rr"), format!("-A -t [fd00:96:5::{number}]:80 -s rr")]
}

fn balancers(number: u8) -> [String; 2] {
    [format!("-A -t 203.0.113.{number}:80 -s rr"), format!("-A -t [2001:db8:113::{number}]:80 -s rr")]
}

/// Number of these lines that the kernel has.
fn served(lines: &[String; 2]) -> usize {
    let there = ipvsadm();
    lines.iter().filter(|&line| there.contains(line)).count()
}

/// Number of a load balancer's addresses that are bound.
fn bound(number: u8) -> usize {
    let there = tool("ip -br addr show kube-ipvs0");
    let of = [format!("203.0.113.{number}/32"), format!("2001:db8:113::{number}/128")];
    of.iter().filter(|address| there.contains(address.as_str())).count()
}

/// Whether the rules of both families have these words.
fn both_have(table: &str, words: [&str; 2]) -> bool {
    let programs = ["iptables-legacy-save", "ip6tables-legacy-save"];
    programs.iter().zip(words).all(|(program, words)| tool(&format!("{program} -t {table}")).contains(words))
}

/// The lock of iptables is held: virtual servers that need new rules wait for them; endpoints and other Services do not, beyond the second that one
/// attempt takes.
#[test]
fn a_held_lock_opens_nothing_and_holds_up_nothing_else() {
    kernel_test(PROXY, || {
        let _turn = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        set_up();
        // A rule of the legacy programs: the host uses these, and these have the lock.
        tool("iptables-legacy -A INPUT -s 203.0.113.99 -j DROP");
        tool("ip6tables-legacy -A INPUT -s 2001:db8::99 -j DROP");
        let mut world = World::new(services());
        let running = Running::start(&["--kubeconfig", &world.kubeconfig()]);
        running.until("the initial list", || ipvsadm() == world.lines());
        assert!(tool("iptables-legacy-save -t nat").contains(":KUBE-SERVICES"));
        // Addresses are bound after the virtual servers.
        running.until("addresses", || tool("ip -br addr show kube-ipvs0").contains("10.96.0.20/32"));
        let lock = hold_lock();
        let start = Instant::now();
        let balancer = guarded("guarded", 9);
        world.server.put(&balancer.object);
        balancer.slices.iter().for_each(|slice| _ = world.server.put(slice));
        running.until_logged("loadBalancerSourceRanges are not in place");
        let mut waits = Vec::new();
        for number in 1..=12_u8 {
            let address = format!("10.244.60.{number}");
            world.services[3].endpoints.push(address.clone());
            let asked = Instant::now();
            world.server.put(&world.services[3].slice());
            running.until("an endpoint", || ipvsadm().iter().any(|line| line.contains(&address)));
            waits.push(asked.elapsed());
            std::thread::sleep(Duration::from_millis(700));
            assert_eq!(served(&balancers(9)), 0, "served without its guard: {:#?}", ipvsadm());
            assert_eq!(bound(9), 0);
        }
        // The cluster IPs of the same Service are open to everybody.
        assert_eq!(served(&cluster_ips(9)), 2);
        assert!(start.elapsed() > Duration::from_secs(8), "the lock was held for longer than a program waits");
        // One change may come during an attempt to restore rules; most come between two.
        waits.sort_unstable();
        println!("endpoints waited for {waits:?}");
        assert!(waits[6] < Duration::from_secs(3), "endpoints waited for {waits:?}");
        // One attempt goes through both families; 6.1 s were seen on a busy emulated machine.
        assert!(waits[11] < Duration::from_secs(10), "endpoints waited for {waits:?}");
        drop(lock);
        running.until("it is served", || served(&balancers(9)) == 2);
        assert!(both_have("filter", ["-j KUBE-SOURCE-RANGES-FIREWALL"; 2]));
        running.until("it is bound", || bound(9) == 2);
        // The next load balancer needs one more rule: this node is in none of its ranges.
        let lock = hold_lock();
        world.server.put(&guarded("guarded-2", 10).object);
        running.until("served or put off", || {
            served(&cluster_ips(10)) == 2 && metric("kubeproxy_sync_failures_total") > 0
        });
        assert_eq!(served(&balancers(10)), 0);
        drop(lock);
        running.until("it is served", || served(&balancers(10)) == 2);
        assert!(both_have("filter", ["-s 203.0.113.10/32", "-s 2001:db8:113::10/128"]));
        assert!(running.end().success());
    });
}

/// An endpoint that is the broadcast address of a local subnet: the kernel always refuses it. It is reported and counted,
/// and the node serves everything else and stays healthy.
#[test]
fn one_endpoint_that_the_kernel_refuses_is_no_illness_of_the_node() {
    kernel_test(PROXY, || {
        set_up();
        let mut all = services();
        let odd = Service::new("odd", "10.96.6.1", &["192.0.2.255", "10.244.70.1"]);
        all.push(odd.clone());
        let world = World::new(all);
        let folder = program::Folder::new("config");
        let config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n\
                      ipvs:\n  syncPeriod: 8s\n";
        let config = folder.put("config.yaml", config);
        let kubeconfig = world.kubeconfig();
        let running = Running::start(&["--config", &config.display().to_string(), "--kubeconfig", &kubeconfig]);
        let mut lines: BTreeSet<String> = world.lines();
        lines.retain(|line| !line.contains("192.0.2.255"));
        running.until("everything else", || ipvsadm() == lines);
        let told = |reason: &str| world.server.events().into_iter().find(|event| event["reason"] == reason);
        running.until("an Event", || told("FailedToProgram").is_some());
        let event = told("FailedToProgram").unwrap();
        assert_eq!(event["regarding"]["name"], "odd");
        assert!(event["note"].as_str().unwrap().contains("192.0.2.255:8080"), "{event}");
        // Longer than two sync periods, after which a failing node counts as unhealthy.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(24) {
            let (code, body) = health("healthz");
            assert_eq!(code, 200, "{body}\n{}", running.log());
            std::thread::sleep(Duration::from_millis(500));
        }
        assert_eq!(metric("kubeproxy_refused_objects"), 1);
        // Not everything wanted is there: `run --once` exits with 1.
        assert!(running.end().success());
        let once = command(&["run", "--once", "--kubeconfig", &kubeconfig]).output().unwrap();
        assert_eq!(once.status.code(), Some(1), "{}", text(&once.stderr));
        assert!(text(&once.stderr).contains("192.0.2.255:8080"), "{}", text(&once.stderr));
        // The endpoint is like any other once the subnet is gone.
        let running = Running::start(&["--config", &config.display().to_string(), "--kubeconfig", &kubeconfig]);
        tool("ip addr add 192.0.2.1/32 dev eth9");
        tool("ip addr del 192.0.2.1/24 dev eth9");
        running.until("it is served too", || ipvsadm().iter().any(|line| line.contains("192.0.2.255:8080")));
        running.until("and counted no more", || metric("kubeproxy_refused_objects") == 0);
        assert!(running.end().success());
    });
}

/// The rules can never be written, while another Service changes each second, which works: the node is unhealthy.
#[test]
fn changes_that_work_do_not_hide_a_pass_that_fails() {
    kernel_test(PROXY, || {
        let _turn = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        set_up();
        tool("iptables-legacy -A INPUT -s 203.0.113.99 -j DROP");
        let mut world = World::new(services());
        let folder = program::Folder::new("config");
        let config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n\
                      ipvs:\n  rules: iptables\n  syncPeriod: 3s\n";
        let config = folder.put("config.yaml", config);
        let arguments = ["--config", &config.display().to_string(), "--kubeconfig", &world.kubeconfig()];
        let running = Running::start(&arguments);
        running.until("the initial list", || ipvsadm() == world.lines());
        assert_eq!(health("healthz").0, 200);
        let lock = hold_lock();
        world.server.put(&guarded("guarded", 9).object);
        running.until("the node is not well", || health("healthz").0 == 503);
        for number in 1..=10_u8 {
            let address = format!("10.244.60.{number}");
            world.services[3].endpoints.push(address.clone());
            world.server.put(&world.services[3].slice());
            running.until("an endpoint", || ipvsadm().iter().any(|line| line.contains(&address)));
            let (code, body) = health("healthz");
            assert_eq!(code, 503, "{body}");
            std::thread::sleep(Duration::from_millis(500));
        }
        drop(lock);
        running.until("the node is well", || health("healthz").0 == 200);
        assert!(running.end().success());
    });
}

/// A node address that is removed for half a second keeps its node ports, and connections through them. If it stays
/// away it loses them, and gets them again when it returns. The program's own monitor follows the addresses.
#[test]
fn an_address_that_is_away_for_a_moment_ends_no_connection() {
    kernel_test(&[PROXY, &[Need::Veth]].concat(), || {
        set_up();
        let (node, client, pod) = (Netns::current().unwrap(), Netns::new().unwrap(), Netns::new().unwrap());
        for (namespace, link, network) in [(&client, "client0", "198.51.100"), (&pod, "pod0", "10.244.1")] {
            veth_pair((&node, link), (namespace, "eth0")).unwrap();
            tool(&format!("ip addr add {network}.1/24 dev {link}"));
            let inside = || {
                tool(&format!("ip addr add {network}.5/24 dev eth0"));
                tool(&format!("ip route add default via {network}.1"));
            };
            namespace.run_in(inside).unwrap();
        }
        let _pod = testkit::witness::Witness::start(&pod, "pod", &[(Tcp, "10.244.1.5:8080".parse().unwrap())]).unwrap();
        let web = Service { node_port: Some(30080), ..Service::new("web", "10.96.0.10", &["10.244.1.5"]) };
        let world = World::new(vec![web]);
        let arguments = ["--nodeport-addresses", "192.0.2.0/24", "--kubeconfig", &world.kubeconfig()];
        let running = Running::start(&arguments);
        running.until("the initial list", || ipvsadm() == world.lines());
        let witness = Witness::start();
        witness.want(world.lines());
        let open = || {
            let to = "192.0.2.1:30080".parse().unwrap();
            client.run_in(|| Conversation::open(Tcp, None, to, Duration::from_secs(10)).unwrap()).unwrap()
        };
        // The rules of node ports are the last thing that a first pass writes.
        running.until("a first pass", || {
            metric("kubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"}") > 0
        });
        let mut connection = open();
        connection.ask().unwrap();
        for _ in 0..3 {
            tool("ip addr del 192.0.2.1/24 dev eth9");
            std::thread::sleep(Duration::from_millis(500));
            tool("ip addr add 192.0.2.1/24 dev eth9");
            std::thread::sleep(Duration::from_millis(500));
            connection.ask().unwrap();
        }
        // Short absences do not add up.
        std::thread::sleep(Duration::from_secs(10));
        connection.ask().unwrap();
        assert_eq!(ipvsadm(), world.lines());

        let mut rest = world.lines();
        rest.retain(|line| !line.contains("192.0.2.1:30080"));
        witness.still_want(&rest);
        tool("ip addr del 192.0.2.1/24 dev eth9");
        let start = Instant::now();
        std::thread::sleep(Duration::from_secs(7));
        assert_eq!(ipvsadm(), world.lines());
        running.until("its virtual server goes", || ipvsadm() == rest);
        let took = start.elapsed();
        assert!((Duration::from_secs(9)..Duration::from_secs(20)).contains(&took), "{took:?}");
        tool("ip addr add 192.0.2.1/24 dev eth9");
        running.until("its virtual server comes back", || ipvsadm() == world.lines());
        open().ask().unwrap();
        witness.end();
        assert!(running.end().success());
    });
}
