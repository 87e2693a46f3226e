//! `proxier-demo` while something around it fails: lists that are suddenly empty, a lock that somebody holds, objects that
//! the kernel refuses.
#![cfg(feature = "proxier-demo")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

mod live;
mod program;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use live::{Service, Witness, World};
use nix::fcntl::{Flock, FlockArg};
use program::{Running, command, ipvsadm, set_up, text, tool};
use serde_json::{Value, json};
use testkit::apiserver::{Fault, Verb};
use testkit::{PROXY, kernel_test};

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
    let page =
        text(&Command::new("curl").args(["-s", "-f", "http://127.0.0.1:10249/metrics"]).output().unwrap().stdout);
    let line = page.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().parse().unwrap_or(0)
}

/// The status and text of a health page.
fn health(path: &str) -> (String, String) {
    let url = format!("http://127.0.0.1:10256/{path}");
    let output = Command::new("curl").args(["-s", "-w", "\n%{http_code}", &url]).output().unwrap();
    let said = text(&output.stdout);
    let (body, code) = said.rsplit_once('\n').unwrap_or(("", &said));
    (code.to_owned(), body.to_owned())
}

/// Both lists become empty, in either order; they are filled again, Services long before their slices or the other way
/// round. No endpoint of any virtual server is missing, or has weight 0, for a moment.
#[test]
fn empty_lists_in_either_order_take_no_endpoint() {
    kernel_test(PROXY, || {
        set_up();
        for (late_to_go, late_to_come) in
            [("services", "slices"), ("endpointslices", "services"), ("endpointslices", "slices")]
        {
            let world = World::new(services());
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
            let services = || world.services.iter().for_each(|service| _ = world.server.put(&service.object()));
            let slices = || world.services.iter().for_each(|service| _ = world.server.put(&service.slice()));
            if late_to_come == "slices" {
                services();
                std::thread::sleep(Duration::from_secs(8));
                slices();
            } else {
                slices();
                std::thread::sleep(Duration::from_secs(8));
                services();
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
        // One comes with other endpoints than before.
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

/// A load balancer with source ranges, as the API server has it.
fn guarded(name: &str, address: &str, balancer: &str) -> (Service, Value) {
    let service = Service { balancer: vec![balancer.to_owned()], ..Service::new(name, address, &["10.244.50.1"]) };
    let mut object = service.object();
    object["spec"]["loadBalancerSourceRanges"] = json!(["198.51.100.0/24"]);
    (service, object)
}

/// Somebody holds the lock of iptables: virtual servers that need new rules wait for them; endpoints and other Services do
/// not, beyond the second that one attempt takes.
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
        let (balancer, object) = guarded("guarded", "10.96.5.1", "203.0.113.9");
        world.server.put(&object);
        world.server.put(&balancer.slice());
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
            let there = ipvsadm();
            assert!(!there.iter().any(|line| line.contains("203.0.113.9:80")), "served without its guard: {there:#?}");
            assert!(!tool("ip -br addr show kube-ipvs0").contains("203.0.113.9/32"));
        }
        // The cluster IP of the same Service is open to everybody.
        assert!(ipvsadm().contains("-A -t 10.96.5.1:80 -s rr"));
        assert!(start.elapsed() > Duration::from_secs(8), "the lock was held for longer than a program waits");
        // One change may come during an attempt to restore rules; most come between two.
        waits.sort_unstable();
        assert!(waits[6] < Duration::from_secs(3), "endpoints waited for {waits:?}");
        drop(lock);
        running.until("it is served", || ipvsadm().iter().any(|line| line.contains("-A -t 203.0.113.9:80")));
        assert!(tool("iptables-legacy-save -t filter").contains("-j KUBE-SOURCE-RANGES-FIREWALL"));
        running.until("it is bound", || tool("ip -br addr show kube-ipvs0").contains("203.0.113.9/32"));
        // The next one needs no new rules: the lock does not matter.
        let lock = hold_lock();
        let (_, object) = guarded("guarded-2", "10.96.5.2", "203.0.113.10");
        world.server.put(&object);
        let barred = "-s 203.0.113.10/32";
        running.until("served or put off", || {
            ipvsadm().contains("-A -t 10.96.5.2:80 -s rr") && metric("kubeproxy_sync_failures_total") > 0
        });
        // This node is in none of its ranges, which needs one more rule.
        assert!(!ipvsadm().iter().any(|line| line.contains("203.0.113.10:80")));
        drop(lock);
        running.until("it is served", || ipvsadm().iter().any(|line| line.contains("-A -t 203.0.113.10:80")));
        assert!(tool("iptables-legacy-save -t filter").contains(barred));
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
        // Longer than two sync periods, after which a failing node is no longer healthy.
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(24) {
            let (code, body) = health("healthz");
            assert_eq!(code, "200", "{body}\n{}", running.log());
            std::thread::sleep(Duration::from_millis(500));
        }
        assert_eq!(metric("kubeproxy_refused_objects"), 1);
        // Not everything wanted is there: `run --once` exits with 1.
        assert!(running.end().success());
        let once = command(&["run", "--once", "--kubeconfig", &kubeconfig]).output().unwrap();
        assert_eq!(once.status.code(), Some(1), "{}", text(&once.stderr));
        assert!(text(&once.stderr).contains("192.0.2.255:8080"), "{}", text(&once.stderr));
        // Without the subnet the endpoint is like any other.
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
                      ipvs:\n  syncPeriod: 3s\n";
        let config = folder.put("config.yaml", config);
        let arguments = ["--config", &config.display().to_string(), "--kubeconfig", &world.kubeconfig()];
        let running = Running::start(&arguments);
        running.until("the initial list", || ipvsadm() == world.lines());
        assert_eq!(health("healthz").0, "200");
        let lock = hold_lock();
        let (_, object) = guarded("guarded", "10.96.5.1", "203.0.113.9");
        world.server.put(&object);
        running.until("the node is not well", || health("healthz").0 == "503");
        for number in 1..=10_u8 {
            let address = format!("10.244.60.{number}");
            world.services[3].endpoints.push(address.clone());
            world.server.put(&world.services[3].slice());
            running.until("an endpoint", || ipvsadm().iter().any(|line| line.contains(&address)));
            let (code, body) = health("healthz");
            assert_eq!(code, "503", "{body}");
            std::thread::sleep(Duration::from_millis(500));
        }
        drop(lock);
        running.until("the node is well", || health("healthz").0 == "200");
        assert!(running.end().success());
    });
}
