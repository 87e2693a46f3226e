//! Health servers of the process `proxier-demo` on a real kernel: without an API server, without lists, and when Services and the host move to other
//! addresses and ports.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{PROXY, kernel_test};

use crate::live::{Service, World};
use crate::program::{Running, changed, ipvsadm, set_up, status_of, tool};

/// Status and body; status 0 without an answer.
fn asked(url: &str) -> (u16, String) {
    testkit::get(url).map_or((0, String::new()), |page| (page.status, page.body))
}

const HEALTHZ: &str = "10256/healthz";

/// An API server that comes late, and lists that come one by one: the proxy stays healthy. Load balancers are sent elsewhere until the
/// Node has been seen.
#[test]
fn a_server_that_is_not_there_from_the_start() {
    kernel_test(PROXY, || {
        set_up();
        let services = vec![Service::new("web", "10.96.0.10", &["10.244.1.5", "10.244.2.6"])];
        let away = World::new(services).server_goes();
        // Waiting for two seconds would be too late.
        let running = Running::start(&["--kubeconfig", &away.kubeconfig(), "--ipvs-sync-period", "1s"]);
        running.until("health is served", || status_of(HEALTHZ) != 0);
        running.until_logged("no answer from http");
        let stays_well = |what: &str, expected: u16| {
            let since = Instant::now();
            while since.elapsed() < Duration::from_secs(6) {
                let (status, body) = asked(&format!("http://127.0.0.1:{HEALTHZ}"));
                assert_eq!((status, status_of("10256/livez")), (expected, 200), "{what}: {body}\n{}", running.log());
                let body: Value = serde_json::from_str(&body).unwrap();
                assert_eq!(
                    (&body["healthy"], &body["nodeEligible"]),
                    (&json!(true), &json!(expected == 200)),
                    "{what}"
                );
                std::thread::sleep(Duration::from_millis(200));
            }
            assert_eq!(changed(), Vec::<String>::new(), "{what}");
        };
        stays_well("no server", 503);
        // The server comes, without one list.
        let world = away.server_returns_without("endpointslices");
        running.until_logged("allow list and watch of endpointslices");
        running.until("the Node has been seen", || status_of(HEALTHZ) == 200);
        stays_well("no EndpointSlices", 200);
        world.server.forbid("endpointslices", false);
        running.until("all is served", || ipvsadm() == world.lines());
        running.until("and it is well", || status_of(HEALTHZ) == 200);
        assert!(running.end().success());
    });
}

/// A load balancer for local endpoints, with a health check.
fn balancer(name: &str, address: &str, check: Option<u16>) -> Value {
    let mut object = Service { node_port: Some(30_080), ..Service::new(name, address, &[]) }.object();
    object["spec"]["type"] = "LoadBalancer".into();
    object["spec"]["externalTrafficPolicy"] = "Local".into();
    if let Some(check) = check {
        object["spec"]["healthCheckNodePort"] = check.into();
    } else {
        object["spec"]["type"] = "ClusterIP".into();
        object["spec"]["ports"][0]["nodePort"] = Value::Null;
        object["spec"]["externalTrafficPolicy"] = Value::Null;
    }
    object
}

fn slice(name: &str, address: &str) -> Value {
    let mut slice = Service::new(name, "10.96.0.1", &[address]).slice();
    slice["endpoints"][0]["nodeName"] = json!("n1");
    slice
}

/// A health-check port is open where node ports are: nowhere, on some addresses, on all; and it moves.
#[test]
fn health_checks_of_services_follow_addresses_and_owners() {
    kernel_test(PROXY, || {
        set_up();
        let world = World::new(Vec::new());
        for (name, address) in [("a", "10.244.1.5"), ("b", "10.244.1.6")] {
            world.server.put(&slice(name, address));
        }
        world.server.put(&balancer("a", "10.96.0.10", Some(32_000)));
        world.server.put(&balancer("b", "10.96.0.11", None));
        // No full pass helps.
        let options = ["--ipvs-sync-period", "1h", "--nodeport-addresses", "198.51.100.0/24"];
        let kubeconfig = world.kubeconfig();
        let running = Running::start(&[&["--kubeconfig", kubeconfig.as_str()][..], &options[..]].concat());
        running.until("both Services", || {
            let there = ipvsadm();
            ["10.96.0.10:80", "10.96.0.11:80"].iter().all(|at| there.contains(&format!("-A -t {at} -s rr")))
        });
        let open = || tool("ipset save KUBE-HEALTH-CHECK-NODE-PORT").contains("add KUBE-HEALTH-CHECK-NODE-PORT 32000");
        let named = |address: &str| {
            let (status, body) = asked(&format!("http://{address}:32000/"));
            let body: Value = serde_json::from_str(&body).unwrap_or_default();
            (status, body["service"]["name"].as_str().unwrap_or_default().to_owned())
        };
        let (nobody, a, b) = ((0, String::new()), (200, "a".to_owned()), (200, "b".to_owned()));
        // None of the node's addresses serves node ports.
        let listeners = || tool("ss -Hltn sport = :32000");
        assert_eq!((open(), listeners()), (false, String::new()));
        assert_eq!(named("192.0.2.1"), nobody);
        // An address is added.
        tool("ip addr add 198.51.100.7/24 dev eth9");
        running.until("the new address", || named("198.51.100.7") == a);
        running.until("its entry", open);
        assert_eq!((named("192.0.2.1"), named("127.0.0.1")), (nobody.clone(), nobody.clone()));
        // The port passes to another Service, back and forth.
        for (from, to, name) in [("a", "b", &b), ("b", "a", &a), ("a", "b", &b)] {
            let address = |name: &str| if name == "a" { "10.96.0.10" } else { "10.96.0.11" };
            world.server.put(&balancer(from, address(from), None));
            world.server.put(&balancer(to, address(to), Some(32_000)));
            running.until("the other Service's", || named("198.51.100.7") == *name);
        }
        assert!(!running.log().contains("cannot listen on"), "{}", running.log());
        // The address is removed.
        tool("ip addr del 198.51.100.7/24 dev eth9");
        running.until("nothing is open", || listeners().is_empty() && !open());
        assert!(running.end().success());
    });
}
