//! What health pages, Events and exit codes say while the kernel refuses one object.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use testkit::{PROXY, kernel_test};

use crate::live::{Service, World};
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

/// An endpoint that is the broadcast address of a local subnet: the kernel always refuses it. It is reported and counted,
/// and the node serves everything else and stays healthy.
#[test]
fn one_endpoint_that_the_kernel_refuses_leaves_the_node_healthy() {
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
