//! `proxier-demo` as a whole on a live API, and the kernel's state meanwhile.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::apiserver::ApiServer;
use testkit::{Need, Netns, PROXY, kernel_test, veth_pair};

use crate::live::{Service, World};
use crate::program::{Running, changed, command, demo, ipvsadm, ok, set_up, status_of, text, tool};

/// An API server that comes late, and lists that come one by one: the proxy stays healthy. Load balancers are sent elsewhere until the
/// Node has been seen.
#[test]
fn a_server_that_is_not_there_from_the_start() {
    const HEALTHZ: &str = "10256/healthz";
    kernel_test(PROXY, || {
        set_up();
        let services = vec![Service::new("web", "10.96.0.10", &["10.244.1.5", "10.244.2.6"])];
        let world = World::new(services);
        world.server.outage(true);
        // Waiting for two seconds would be too late.
        let running = Running::start(&["--kubeconfig", &world.kubeconfig(), "--ipvs-sync-period", "1s"]);
        running.until("health is served", || status_of(HEALTHZ) != 0);
        running.until_logged("no answer from http");
        let stays_well = |what: &str, expected: u16| {
            let since = Instant::now();
            while since.elapsed() < Duration::from_secs(6) {
                let page = testkit::get(&format!("http://127.0.0.1:{HEALTHZ}"));
                let (status, body) = page.map_or((0, String::new()), |page| (page.status, page.body));
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
        world.server.forbid("endpointslices", true);
        world.server.outage(false);
        running.until_logged("allow list and watch of endpointslices");
        running.until("the Node has been seen", || status_of(HEALTHZ) == 200);
        stays_well("no EndpointSlices", 200);
        world.server.forbid("endpointslices", false);
        running.until("all is served", || ipvsadm() == world.lines());
        running.until("and it is well", || status_of(HEALTHZ) == 200);
        assert!(running.end().success());
    });
}

/// A Service names the address of the API server on another machine, or of the gateway. If it were local here, the API server's packets would not
/// arrive any more, not even the deletion of the Service.
#[test]
fn a_service_cannot_cut_the_node_off_from_its_api_server() {
    let ways: [(&str, &[Need]); 2] = [("ipvs", PROXY), ("userspace", &[Need::Root])];
    for (mode, needs) in ways {
        kernel_test(&[needs, &[Need::Veth]].concat(), || {
            set_up();
            let (node, there) = (Netns::current().unwrap(), Netns::new().unwrap());
            veth_pair((&node, "up0"), (&there, "up0")).unwrap();
            tool("ip addr add 198.51.100.1/24 dev up0");
            there.run_in(|| tool("ip addr add 198.51.100.7/24 dev up0")).unwrap();
            tool("ip route add default via 198.51.100.254");
            let server = there.run_in(|| ApiServer::start_on("198.51.100.7:6443".parse().unwrap())).unwrap();
            let world = World::on(server, Vec::new());
            let source = ["--proxy-mode", mode, "--kubeconfig", &world.kubeconfig()];
            let running = Running::start(&source);
            let is_local = |address: &str| tool("ip route show table local").contains(&format!("local {address} "));
            let thieves = [
                ("api", "10.96.0.66", "198.51.100.7", "the API server"),
                ("gateway", "10.96.0.67", "198.51.100.254", "the gateway of this node's default route"),
            ];
            for (name, address, external, _) in thieves {
                let external = vec![external.to_owned()];
                let service = Service { external, ..Service::new(name, address, &["10.244.1.6"]) };
                world.server.put(&service.object());
                world.server.put(&service.slice());
            }
            // The rest of them is served.
            running.until("all but those addresses", || thieves.iter().all(|(_, address, ..)| is_local(address)));
            running.signal("HUP");
            let probed = text(&demo(&[&["probe"], &source[2..]].concat()).stdout);
            let json = text(&demo(&[&["probe", "-o", "json"], &source[2..]].concat()).stdout);
            let json: Value = serde_json::from_str(&json).unwrap();
            for (name, _, external, whose) in thieves {
                running
                    .until_logged(&format!("TCP {external}:80 of demo/{name} is not served: {whose} has that address"));
                assert!(!is_local(external), "{}", running.log());
                assert!(probed.contains(&format!("\n  {external}: {whose}\n")), "{probed}");
                let mut reserved = json["reserved"].as_array().unwrap().iter();
                assert!(reserved.any(|one| one["address"] == external && one["for"] == whose), "{json}");
            }
            let note = || world.server.events().iter().any(|event| event.to_string().contains("has that address"));
            running.until("an Event", note);
            // The API server still reaches the node.
            for (name, ..) in thieves {
                world.server.delete("services", "demo", name);
            }
            running.until("deleted", || !thieves.iter().any(|(_, address, ..)| is_local(address)));
            assert!(running.end().success());
        });
    }
}

/// Many small passes map as much code as one large pass does.
#[test]
fn memory_goes_back_after_a_time_of_many_changes() {
    const STEP: usize = 100;
    kernel_test(&[Need::Root, Need::Nftables], || {
        set_up();
        let service = |number| {
            let address = format!("10.96.{}.{}", number / STEP, number % STEP);
            Service::new(&format!("s{number}"), &address, &["10.244.1.5"])
        };
        let services: Vec<Service> = (0..4 * STEP).map(service).collect();
        let world = World::new(services.clone());
        let running = Running::start(&["--proxy-mode", "nftables", "--kubeconfig", &world.kubeconfig()]);
        running.until_logged("full pass");
        // The search for leftovers, two seconds later, gives back too.
        std::thread::sleep(Duration::from_secs(3));
        let mapped = || {
            let status = fs::read_to_string(format!("/proc/{}/status", running.pid())).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
            line.trim_end_matches("kB").trim().parse::<u64>().unwrap()
        };
        let mut while_busy = 0;
        for (block, services) in services.chunks(STEP).enumerate() {
            let endpoint = format!("10.244.2.{}", block + 1);
            for service in services {
                world.server.put(&Service { endpoints: vec![endpoint.clone()], ..service.clone() }.slice());
            }
            let has_all = || tool("nft list ruleset ip").matches(&format!("{endpoint} ")).count() >= STEP;
            while_busy = mapped();
            running.until("endpoints are served", has_all);
        }
        // Before the next full pass, which gives back too.
        let since = Instant::now();
        running.until("code that is no longer used is unmapped", || mapped() < while_busy * 2 / 3);
        assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
        assert!(running.end().success());
    });
}

#[test]
fn events_tell_and_never_stop_anything() {
    kernel_test(&[Need::Root, Need::Nftables], || {
        set_up();
        // The same address and port twice.
        let external = vec!["203.0.113.7".to_owned()];
        let [shop, thief] = [("shop", "10.96.0.10"), ("thief", "10.96.3.1")]
            .map(|(name, address)| Service { external: external.clone(), ..Service::new(name, address, &[]) });
        let world = World::new(vec![shop, thief]);
        let mut bad = Service::new("bad", "10.96.3.2", &[]).object();
        bad["spec"]["ports"] = json!([{"name": "p", "port": 70000, "protocol": "TCP"}]);
        world.server.put(&bad);
        let mut odd = Service::new("odd", "10.96.3.3", &[]).object();
        odd["spec"]["ports"] = json!(5);
        world.server.put(&odd);
        let source = ["--proxy-mode", "nftables", "--kubeconfig", &world.kubeconfig()];
        let running = Running::start(&source);
        for (reason, kind, name, note) in [
            ("Starting", "Node", "n1", ""),
            ("AddressConflict", "Service", "thief", "203.0.113.7:80"),
            ("InvalidField", "Service", "bad", "70000"),
            ("Unreadable", "Service", "odd", "spec.ports"),
        ] {
            let told = || world.server.events().into_iter().find(|event| event["reason"] == reason);
            running.until(reason, || told().is_some());
            let event = told().unwrap();
            assert_eq!((&event["regarding"]["kind"], &event["regarding"]["name"]), (&json!(kind), &json!(name)));
            assert!(event["note"].as_str().unwrap().contains(note), "{event}");
        }
        assert!(running.end().success());

        // Forbidden: logged once, and everything is still served.
        ok(&demo(&["cleanup"]));
        world.server.forbid_events(true);
        let running = Running::start(&source);
        running.until("it is served", || tool("nft list ruleset").contains("10.96.0.10"));
        running.until_logged("Events are forbidden; allow create of events.events.k8s.io");
        assert_eq!(running.log().matches("Events are forbidden").count(), 1);
        assert!(running.end().success());
    });
}

/// Programs of iptables that take long, as while another program has their lock.
#[test]
fn healthz_answers_while_the_mode_is_chosen() {
    kernel_test(&[Need::Root, Need::IptablesNft], || {
        set_up();
        let slow = crate::program::Folder::new("slow");
        for family in ["iptables", "ip6tables"] {
            for name in ["", "-save", "-restore", "-nft", "-nft-save", "-nft-restore"] {
                let path =
                    slow.put(&format!("{family}{name}"), "#!/bin/sh\nsleep 3\nexec \"/usr/sbin/${0##*/}\" \"$@\"\n");
                fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            }
        }
        let world = World::new(vec![Service::new("web", "10.96.0.10", &["10.244.1.5"])]);
        let mut command = command(&["run", "--proxy-mode", "iptables", "--kubeconfig", &world.kubeconfig()]);
        let path = std::env::var("PATH").unwrap();
        command.args(["--healthz-bind-address", "127.0.0.1:10256"]).env("PATH", format!("{}:{path}", slow.0.display()));
        let running = Running::spawn(command);
        let livez = || testkit::get("http://127.0.0.1:10256/livez").map_or(0, |page| page.status);
        running.until("health is served", || livez() == 200);
        assert!(!running.log().contains("serving in"), "{}", running.log());
        while !running.log().contains("serving in") {
            assert_eq!(livez(), 200, "{}", running.log());
        }
        running.until("it serves", || tool("iptables-save").contains("10.96.0.10"));
        assert!(running.end().success());
    });
}
