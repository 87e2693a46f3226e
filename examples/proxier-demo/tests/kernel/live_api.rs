//! `proxier-demo` as a whole on a live API with every failure that an API server causes, and the kernel's state meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::apiserver::{ApiServer, Fault, ServiceCidrs, Verb};
use testkit::{Need, Netns, PROXY, kernel_test, veth_pair};

use crate::live::{Service, Witness, World};
use crate::program::{Running, changed, command, demo, fetched, ipvsadm, ok, set_up, text, tool};

/// Services of several kinds.
fn services() -> Vec<Service> {
    let web = Service { node_port: Some(30080), ..Service::new("web", "10.96.0.10", &["10.244.1.5", "10.244.2.6"]) };
    let dns = Service { protocol: "UDP", port: 53, target: 5353, ..Service::new("dns", "10.96.0.11", &["10.244.1.7"]) };
    let cart = Service { affinity_secs: Some(600), ..Service::new("cart", "10.96.0.12", &["10.244.1.8"]) };
    let shop = Service {
        external: vec!["203.0.113.7".to_owned()],
        balancer: vec!["203.0.113.8".to_owned()],
        node_port: Some(30081),
        ..Service::new("shop", "10.96.0.13", &["10.244.1.9", "10.244.1.10", "10.244.2.11"])
    };
    let empty = Service::new("empty", "10.96.0.14", &[]);
    let mut services = vec![web, dns, cart, shop, empty];
    for number in 1..=12 {
        services.push(Service::new(&format!("more-{number}"), &format!("10.96.1.{number}"), &["10.244.3.1"]));
    }
    services
}

/// A world, the program that follows it, and the witness.
struct Play {
    world: World,
    running: Running,
    witness: Witness,
}

impl Play {
    fn start() -> Self {
        let world = World::new(services());
        let running = Running::start(&["--kubeconfig", &world.kubeconfig()]);
        let witness = Witness::start();
        let play = Play { world, running, witness };
        play.settles("the initial list");
        play
    }

    /// Waits until the kernel matches the world; from then on it has to stay so.
    #[track_caller]
    fn settles(&self, what: &str) {
        let lines = self.world.lines();
        self.running.until(what, || ipvsadm() == lines);
        self.witness.want(lines);
    }

    /// Changes the world; virtual servers that are wanted before and after stay wanted meanwhile.
    fn change(&mut self, change: impl FnOnce(&mut Vec<Service>)) -> Vec<Service> {
        let services = self.world.services.clone();
        change(&mut self.world.services);
        self.witness.still_want(&self.world.lines());
        services
    }

    /// Gives this Service another endpoint, or one fewer, on the server too.
    fn endpoint(&mut self, service: usize, address: &str) {
        self.change(|services| {
            let endpoints = &mut services[service].endpoints;
            match endpoints.iter().position(|known| known == address) {
                Some(at) => drop(endpoints.remove(at)),
                None => endpoints.push(address.to_owned()),
            }
        });
        self.world.server.put(&self.world.services[service].slice());
    }

    /// The server is unavailable for this long, and one endpoint changes meanwhile.
    fn away(mut self, time: Duration, versions: i64, service: usize, address: &str) -> Self {
        self.change(|services| services[service].endpoints.push(address.to_owned()));
        let Play { world, running, witness } = self;
        let away = world.server_goes();
        std::thread::sleep(time);
        let world = away.server_returns(versions);
        Play { world, running, witness }
    }

    fn lists(&self, resource: &str) -> usize {
        let requests = self.world.server.requests();
        requests.iter().filter(|request| request.path.ends_with(resource) && request.asks_for_all()).count()
    }

    /// Checks that both watches work: a new Service and its slice arrive. (A server notices late that watches are gone.)
    fn watched(&mut self) {
        let number = self.world.services.len();
        let proof = Service::new(&format!("proof-{number}"), &format!("10.96.4.{number}"), &["10.244.4.4"]);
        self.world.server.put(&proof.object());
        self.world.server.put(&proof.slice());
        self.world.services.push(proof);
        self.settles("the watches stand");
    }

    fn end(self) {
        // The pass that added the virtual servers may still bind addresses and remove rules.
        let since = Instant::now();
        loop {
            let plan = demo(&["plan", "--kubeconfig", &self.world.kubeconfig()]);
            let (plan, errors) = (text(&plan.stdout), text(&plan.stderr));
            if plan.starts_with("nothing to do: the kernel has the desired state\n") {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(5), "{plan}\n{errors}");
        }
        self.witness.end();
        assert!(self.running.end().success());
        assert_eq!(ipvsadm(), self.world.lines(), "the data path stays");
    }
}

#[test]
fn services_of_all_kinds_are_served_and_followed() {
    kernel_test(PROXY, || {
        set_up();
        let mut play = Play::start();
        for (set, entry) in [
            ("KUBE-CLUSTER-IP", "10.96.0.11,udp:53"),
            ("KUBE-EXTERNAL-IP", "203.0.113.7,tcp:80"),
            ("KUBE-LOAD-BALANCER", "203.0.113.8,tcp:80"),
            ("KUBE-NODE-PORT-TCP", "30080"),
        ] {
            let saved = tool(&format!("ipset save {set}"));
            assert!(saved.contains(&format!("add {set} {entry}\n")), "{saved}");
        }
        let bound = tool("ip -br addr show kube-ipvs0");
        for address in ["10.96.0.10/32", "10.96.1.12/32", "203.0.113.7/32", "203.0.113.8/32"] {
            assert!(bound.contains(address), "{address}: {bound}");
        }
        // Not served: headless, of another proxy, and by name.
        for spec in [
            json!({"clusterIP": "None", "ports": [{"port": 80}]}),
            json!({"type": "ExternalName", "externalName": "example.com"}),
        ] {
            let name = spec["type"].as_str().unwrap_or("headless").to_lowercase();
            let metadata = json!({"namespace": "demo", "name": name});
            play.world.server.put(&json!({"kind": "Service", "metadata": metadata, "spec": spec}));
        }
        let mut others = Service::new("others", "10.96.0.99", &["10.244.9.9"]).object();
        others["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "another"});
        play.world.server.put(&others);

        play.endpoint(0, "10.244.2.60");
        play.settles("an endpoint more");
        play.endpoint(0, "10.244.1.5");
        play.settles("an endpoint fewer");
        play.change(|services| services.push(Service::new("new", "10.96.2.1", &["10.244.1.20"])));
        // Slice first, which may happen.
        play.world.server.put(&play.world.services.last().unwrap().slice());
        play.world.server.put(&play.world.services.last().unwrap().object());
        play.settles("a new Service");
        play.change(|services| drop(services.remove(1)));
        play.world.server.delete("services", "demo", "dns");
        play.settles("a Service deleted");
        assert!(!tool("ip -br addr show kube-ipvs0").contains("10.96.0.11/32"));

        // A namespace of Services is deleted, one by one, each with an event, so none is held back.
        let gone = play.change(|services| services.retain(|service| !service.name.starts_with("more-")));
        for service in gone.iter().filter(|service| service.name.starts_with("more-")) {
            play.world.server.delete("services", "demo", &service.name);
        }
        play.settles("a namespace deleted");

        // The kubelet and monitoring send these requests.
        assert!(fetched("10256/healthz").contains("\"healthy\":true"));
        let metrics = fetched("10249/metrics");
        assert!(metrics.contains("\nkubeproxy_virtual_servers "), "{metrics}");
        assert_eq!(fetched("10249/proxyMode"), "ipvs");
        play.end();
    });
}

/// A Service names the address of the API server on another machine, or of the gateway. Bound here, the address would be this node's own, and the API
/// server's packets would not arrive any more, not even the deletion of the Service.
#[test]
fn a_service_cannot_cut_the_node_off_from_its_api_server() {
    kernel_test(&[PROXY, &[Need::Veth]].concat(), || {
        set_up();
        let (node, there) = (Netns::current().unwrap(), Netns::new().unwrap());
        veth_pair((&node, "up0"), (&there, "up0")).unwrap();
        tool("ip addr add 198.51.100.1/24 dev up0");
        there.run_in(|| tool("ip addr add 198.51.100.7/24 dev up0")).unwrap();
        tool("ip route add default via 198.51.100.254");
        let server = there.run_in(|| ApiServer::start_on("198.51.100.7:6443".parse().unwrap())).unwrap();
        let world = World::on(server, vec![Service::new("web", "10.96.0.10", &["10.244.1.5"])]);
        let running = Running::start(&["--kubeconfig", &world.kubeconfig()]);
        let mut play = Play { world, running, witness: Witness::start() };
        play.settles("the initial list");

        let thief = |name: &str, address: &str, external: &str| Service {
            external: vec![external.to_owned()],
            ..Service::new(name, address, &["10.244.1.6"])
        };
        let thieves = [thief("api", "10.96.0.66", "198.51.100.7"), thief("gateway", "10.96.0.67", "198.51.100.254")];
        for thief in &thieves {
            play.world.server.put(&thief.object());
            play.world.server.put(&thief.slice());
            // The rest of it is served.
            play.world.services.push(Service { external: Vec::new(), ..thief.clone() });
        }
        play.settles("all but the addresses that the node lives by");
        let bound = tool("ip -br addr show kube-ipvs0");
        assert!(bound.contains("10.96.0.66/32") && !bound.contains("198.51.100."), "{bound}");
        play.running.signal("HUP");
        for (thief, whose) in thieves.iter().zip(["the API server", "the gateway of this node's default route"]) {
            let line =
                format!("TCP {}:80 of demo/{} is not served: {whose} has that address", thief.external[0], thief.name);
            play.running.until(&line, || play.running.log().contains(&line));
        }
        let note = || play.world.server.events().iter().any(|event| event.to_string().contains("has that address"));
        play.running.until("an Event", note);
        let asked = |words: &[&str]| {
            let kubeconfig = play.world.kubeconfig();
            text(&demo(&[words, &["--kubeconfig", &kubeconfig]].concat()).stdout)
        };
        let probed = asked(&["probe"]);
        assert!(probed.contains("\n  198.51.100.7: the API server\n"), "{probed}");
        assert!(probed.contains("\n  198.51.100.254: the gateway of this node's default route\n"), "{probed}");
        let probed: Value = serde_json::from_str(&asked(&["probe", "-o", "json"])).unwrap();
        let reserved = probed["reserved"].as_array().unwrap();
        assert!(reserved.iter().any(|one| one["address"] == "198.51.100.7" && one["for"] == "the API server"));

        // The API server still reaches the node: changes arrive, and so does the deletion.
        play.endpoint(0, "10.244.2.60");
        play.settles("an endpoint more");
        play.change(|services| services.truncate(1));
        for thief in &thieves {
            play.world.server.delete("services", "demo", &thief.name);
        }
        play.settles("deleted");
        play.end();
    });
}

/// Failures of every kind between an API server and its client: nothing wanted leaves the kernel meanwhile, and afterwards the kernel matches the
/// world.
#[test]
fn no_fault_of_the_api_takes_anything_away() {
    kernel_test(PROXY, || {
        set_up();
        let mut play = Play::start();
        play.watched();

        // Away, and back with a history that begins after the versions already seen.
        play = play.away(Duration::from_secs(2), 50, 0, "10.244.2.20");
        play.settles("the server was away");
        play.watched();

        // 410 as an event; meanwhile a Service was deleted without an event.
        play.world.server.cut_watches();
        play.change(|services| services.retain(|service| service.name != "more-12"));
        play.world.server.delete_silently("services", "demo", "more-12");
        play.world.server.compact();
        play.settles("410 Gone");
        play.watched();

        // Busy, broken, and cut in the middle.
        for fault in [Fault::Status(429, Some(1)), Fault::Status(500, None), Fault::Cut(10)] {
            for resource in ["services", "endpointslices"] {
                play.world.server.fail_next(resource, Verb::Watch, fault.clone());
            }
        }
        let lists = play.lists("/services");
        play.world.server.cut_watches();
        play.endpoint(3, "10.244.2.12");
        play.settles("watches that fail");
        play.watched();
        assert_eq!(play.lists("/services"), lists, "what is broken for a moment is not asked for everything");

        // Lists that fail, end in the middle, are no lists, are slow, or are huge.
        for fault in [
            Fault::Status(500, None),
            Fault::Cut(3000),
            Fault::Text("{\"kind\":\"ServiceList\",\"items\":[]}".to_owned()),
            Fault::Slow(Duration::from_millis(2)),
        ] {
            play.world.server.fail_next("services", Verb::List, fault.clone());
            play.world.server.fail_next("endpointslices", Verb::List, fault);
        }
        play.world.server.cut_watches();
        play.world.server.compact();
        play.endpoint(3, "10.244.1.9");
        play.settles("lists that fail");
        play.watched();
        play.world.server.fail_next("endpointslices", Verb::List, Fault::Padded(20 << 20));
        play.world.server.end_watches();
        play.world.server.compact();
        play.endpoint(3, "10.244.1.9");
        play.settles("a huge list");
        play.watched();

        // Repeated and late events.
        let old = {
            let mut old = play.world.services[0].clone();
            old.endpoints = vec!["10.244.66.6".to_owned()];
            let mut slice = old.slice();
            slice["metadata"]["resourceVersion"] = "1001".into();
            slice
        };
        play.endpoint(0, "10.244.2.21");
        for what in ["MODIFIED", "DELETED", "ADDED"] {
            play.world.server.send_raw("endpointslices", &json!({"type": what, "object": old}).to_string());
        }
        play.endpoint(0, "10.244.2.22");
        play.settles("late events");

        // An expired token, until the new one is there.
        play.world.server.demand_token("second");
        play.world.server.end_watches();
        play.running.until_logged("HTTP 401");
        play.endpoint(4, "10.244.1.30");
        fs::write(play.world.token(), "second").unwrap();
        play.settles("a new token");
        play.watched();

        // One kind is forbidden: the other one continues.
        play.world.server.forbid("endpointslices", true);
        play.world.server.end_watches();
        play.running.until_logged("allow list and watch of endpointslices");
        play.endpoint(4, "10.244.1.31");
        let extra = Service::new("bare", "10.96.2.9", &[]);
        play.change(|services| services.push(extra.clone()));
        play.world.server.put(&extra.object());
        play.running.until("Services go on", || ipvsadm().contains("-A -t 10.96.2.9:80 -s rr"));
        play.world.server.forbid("endpointslices", false);
        play.settles("what was forbidden is allowed");
        play.watched();

        // Only bookmarks for a while: the version to continue from moves with them.
        let lists = play.lists("/services");
        for _ in 0..3 {
            play.world.server.compact();
            play.world.server.bookmark();
            std::thread::sleep(Duration::from_millis(100));
        }
        play.world.server.end_watches();
        play.endpoint(4, "10.244.1.31");
        play.settles("only bookmarks");
        assert_eq!(play.lists("/services"), lists);
        play.watched();

        // Restored from a backup: the versions start below those already seen.
        play = play.away(Duration::from_millis(200), -500, 4, "10.244.1.32");
        play.running.until("watches", || {
            play.world.server.bookmark();
            ipvsadm() == play.world.lines()
        });
        play.settles("a server from a backup");
        play.watched();
        play.endpoint(4, "10.244.1.33");
        play.settles("and it is followed");
        let log = play.running.log();
        assert!(!log.contains("panicked"), "{log}");
        play.end();
    });
}

/// Nothing is written and nothing is deleted while one list is missing.
#[test]
fn nothing_is_touched_before_all_lists_are_complete() {
    kernel_test(PROXY, || {
        set_up();
        for resource in ["services", "endpointslices"] {
            let world = World::new(services());
            world.server.fail_next(resource, Verb::List, Fault::Late(Duration::from_secs(6)));
            let running = Running::start(&["--kubeconfig", &world.kubeconfig()]);
            running.until("requests", || world.server.requests().len() >= 3);
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(4) {
                let changed = changed();
                assert!(start.elapsed() > Duration::from_secs(5) || changed.is_empty(), "{changed:?}");
            }
            running.until("the rest", || ipvsadm() == world.lines());
            assert!(running.end().success());

            // A kernel that is already programmed: nothing is missing at any moment.
            let witness = Witness::start();
            witness.want(world.lines());
            world.server.fail_next(resource, Verb::List, Fault::Late(Duration::from_secs(2)));
            let running = Running::start(&["--kubeconfig", &world.kubeconfig()]);
            running.until("a pass", || {
                let page = testkit::get("http://127.0.0.1:10249/metrics");
                page.is_ok_and(|page| {
                    page.body
                        .contains("\nkubeproxy_sync_full_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} 1\n")
                })
            });
            witness.end();
            assert_eq!(ipvsadm(), world.lines());
            // A pass without changes is logged where it takes long.
            let log = running.log();
            assert_eq!(log.matches(" changes in ").count(), log.matches(": 0 changes in ").count(), "{log}");
            assert!(running.end().success());
            let cleanup = command(&["cleanup"]).output().unwrap();
            assert!(cleanup.status.success(), "{}", text(&cleanup.stderr));
            assert!(ipvsadm().is_empty());
        }
    });
}

/// A server that suddenly has no Services is not believed; deletions by events are.
#[test]
fn an_empty_list_does_not_empty_the_node() {
    kernel_test(PROXY, || {
        set_up();
        let mut play = Play::start();
        play.watched();
        let full = play.world.lines();
        let names: BTreeSet<String> = play.world.services.iter().map(|service| service.name.clone()).collect();
        play.world.server.cut_watches();
        for name in &names {
            play.world.server.delete_silently("services", "demo", name);
        }
        play.world.server.compact();
        play.running.until_logged("virtual servers would go or lose their last endpoint, all at once");
        assert_eq!(ipvsadm(), full);
        let rules = || -> Vec<String> {
            let saved = tool("iptables-save -t nat");
            saved.lines().filter(|line| line.starts_with('-')).map(str::to_owned).collect()
        };
        let before = rules();
        assert!(before.iter().any(|rule| rule.contains("KUBE-LOAD-BALANCER")), "{before:#?}");
        play.watched();
        // Longer than a pass for changes and its first retries.
        std::thread::sleep(Duration::from_secs(5));
        assert_eq!(rules(), before);
        // The first load balancer with source ranges is closed to other clients at once.
        let guarded = Service { balancer: vec!["203.0.113.9".to_owned()], ..Service::new("guarded", "10.96.5.1", &[]) };
        let mut object = guarded.object();
        object["spec"]["loadBalancerSourceRanges"] = json!(["198.51.100.0/24"]);
        let drops = || tool("iptables-save -t filter").contains(" -j KUBE-SOURCE-RANGES-FIREWALL");
        assert!(!drops());
        play.world.server.put(&object);
        play.running.until("it is served", || ipvsadm().contains("-A -t 203.0.113.9:80 -s rr"));
        assert!(drops(), "{}", tool("iptables-save -t filter"));
        assert_eq!(rules(), before);
        let metrics = fetched("10249/metrics");
        let held_back =
            format!("_virtual_servers_held_back {}\n", full.iter().filter(|line| line.starts_with("-A ")).count());
        assert!(metrics.contains(&held_back) && metrics.contains("_sync_failures_total 0\n"), "{held_back}: {metrics}");
        assert!(fetched("10256/healthz").contains("\"healthy\":true"));
        for service in &play.world.services {
            play.world.server.put(&service.object());
        }
        play.world.services.push(guarded);
        play.settles("they are back");
        assert!(drops());
        play.end();
    });
}

#[test]
fn events_tell_and_never_stop_anything() {
    kernel_test(PROXY, || {
        set_up();
        let mut all = services();
        // The same address and port once more.
        all.push(Service { external: vec!["203.0.113.7".to_owned()], ..Service::new("thief", "10.96.3.1", &[]) });
        let world = World::new(all);
        let mut bad = Service::new("bad", "10.96.3.2", &[]).object();
        bad["spec"]["ports"] = json!([{"name": "p", "port": 70000, "protocol": "TCP"}]);
        world.server.put(&bad);
        let told = |reason: &str| -> Option<Value> {
            world.server.events().into_iter().find(|event| event["reason"] == reason)
        };
        let running = Running::start(&["--kubeconfig", &world.kubeconfig()]);
        for reason in ["Starting", "AddressConflict", "InvalidField"] {
            running.until(reason, || told(reason).is_some());
        }
        let (start, conflict, invalid) =
            (told("Starting").unwrap(), told("AddressConflict").unwrap(), told("InvalidField").unwrap());
        assert_eq!((&start["regarding"]["kind"], &start["regarding"]["name"]), (&json!("Node"), &json!("n1")));
        assert_eq!(conflict["regarding"]["name"], "thief");
        assert!(conflict["note"].as_str().unwrap().contains("203.0.113.7:80"), "{conflict}");
        assert_eq!(invalid["regarding"]["name"], "bad");
        assert!(invalid["note"].as_str().unwrap().contains("70000"), "{invalid}");
        assert!(running.end().success());

        // Forbidden: logged once, and everything is still served.
        command(&["cleanup"]).output().unwrap();
        world.server.forbid_events(true);
        let running = Running::start(&["--kubeconfig", &world.kubeconfig()]);
        running.until("it is served", || ipvsadm().contains("-A -t 10.96.0.10:80 -s rr"));
        running.until_logged("Events are forbidden; allow create of events.events.k8s.io");
        assert_eq!(running.log().matches("Events are forbidden").count(), 1);
        assert!(running.end().success());
    });
}

/// The networks of the cluster's ServiceCIDR objects are made local, as they come and go, with `ipvs.binding: routes`.
#[test]
fn the_clusters_networks_become_local() {
    kernel_test(PROXY, || {
        set_up();
        let cidr = |name: &str, network: &str| {
            json!({"kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1",
                "metadata": {"name": name}, "spec": {"cidrs": [network]}})
        };
        let local = |network: &str| {
            let routes = tool("ip route show table local proto 119");
            routes.lines().any(|line| line.starts_with(&format!("local {network} dev lo")))
        };
        let server = ApiServer::start();
        server.serve_service_cidrs(ServiceCidrs::V1);
        server.put(&cidr("kubernetes", "10.96.0.0/16"));
        let world = World::on(server, vec![Service::new("web", "10.96.0.10", &["10.244.1.5"])]);
        let arguments = ["--kubeconfig", &world.kubeconfig(), "--proxy-mode", "ipvs", "--ipvs-binding", "routes"];
        let running = Running::start(&arguments);
        running.until("the cluster's network", || local("10.96.0.0/16") && ipvsadm() == world.lines());
        assert!(!tool("ip -o address").contains("10.96.0.10"), "no interface has a Service's address");

        // A second network, and a Service in it.
        let second = Service::new("more", "10.200.0.10", &["10.244.1.6"]);
        world.server.put(&second.object());
        world.server.put(&second.slice());
        running.until("a route of its own", || local("10.200.0.10"));
        world.server.put(&cidr("more", "10.200.0.0/24"));
        running.until("its network", || local("10.200.0.0/24") && !local("10.200.0.10"));
        world.server.delete("servicecidrs", "", "more");
        running.until("its own route again", || local("10.200.0.10") && !local("10.200.0.0/24"));
        world.server.delete("services", "demo", "more");
        running.until("no route of it", || !local("10.200.0.10"));
        assert!(local("10.96.0.0/16"));
        assert!(running.end().success());
        ok(&demo(&["cleanup"]));
        assert!(!local("10.96.0.0/16"));
    });
}

/// A foreign table with kube-proxy's name: an Event of the Node says that it stays, once.
#[test]
fn what_others_left_is_an_event_of_the_node() {
    kernel_test(&[Need::Root, Need::Nftables], || {
        tool("ip link set lo up");
        tool("ip addr add 192.0.2.1/32 dev lo");
        tool("nft add table ip kube-proxy");
        let world = World::new(vec![Service::new("web", "10.96.0.10", &["10.244.1.5"])]);
        let running = Running::start(&["--proxy-mode", "nftables", "--kubeconfig", &world.kubeconfig()]);
        let told = || -> Vec<Value> {
            world.server.events().into_iter().filter(|event| event["reason"] == "Leftovers").collect()
        };
        running.until("the Event", || !told().is_empty());
        // A change of the Services does not repeat the message.
        world.server.put(&Service::new("more", "10.96.0.11", &["10.244.1.5"]).object());
        running.until("the change", || tool("nft list table ip proxier").contains("10.96.0.11"));
        let told = told();
        assert_eq!(told.len(), 1, "{told:?}");
        assert_eq!((&told[0]["regarding"]["kind"], &told[0]["regarding"]["name"]), (&json!("Node"), &json!("n1")));
        assert_eq!(told[0]["type"], "Warning");
        let note = told[0]["note"].as_str().unwrap();
        assert!(note.contains("table ip kube-proxy stays: it lacks the comment"), "{note}");
        assert!(running.end().success());
        assert!(tool("nft list tables").contains("table ip kube-proxy"));
    });
}

/// An earlier process has programmed a Service and a slice that the next one cannot read.
#[test]
fn what_unreadable_objects_have_in_the_kernel_survives_a_restart() {
    let ways: [(&str, &[Need], &str); 3] = [
        ("nftables", &[Need::Root, Need::Nftables], "nft list ruleset"),
        ("iptables", &[Need::Root, Need::IptablesNft], "iptables-save"),
        ("ipvs", PROXY, "ipvsadm -Sn"),
    ];
    for (mode, needs, look) in ways {
        kernel_test(needs, || {
            set_up();
            let web = Service::new("web", "10.96.0.10", &["10.244.1.5"]);
            let other = Service::new("other", "10.96.0.11", &["10.244.1.6"]);
            let world = World::new(vec![web.clone(), other.clone()]);
            let arguments = ["--proxy-mode", mode, "--kubeconfig", &world.kubeconfig()];
            let serves = |addresses: &[&str]| {
                let held = tool(look);
                addresses.iter().all(|address| held.contains(address))
            };
            let all = ["10.96.0.10", "10.244.1.5:8080", "10.96.0.11", "10.244.1.6:8080"];
            let all = all.map(|address| if mode == "nftables" { address.split(':').next().unwrap() } else { address });
            let running = Running::start(&arguments);
            running.until("both", || serves(&all));
            assert!(running.end().success());

            for mut object in [web.object(), other.slice()] {
                match object.get_mut("spec") {
                    Some(spec) => spec["ports"] = json!(5),
                    None => object["ports"] = json!(5),
                }
                world.server.put(&object);
            }
            let running = Running::start(&arguments);
            running.until_logged("may belong to Services or EndpointSlices that cannot be read");
            let new = Service::new("new", "10.96.0.12", &["10.244.1.7"]);
            world.server.put(&new.object());
            world.server.put(&new.slice());
            running.until("a new Service", || serves(&["10.96.0.12", "10.244.1.7"]));
            assert!(serves(&all), "{mode}: {}", tool(look));
            running.until("Events", || {
                let events = world.server.events();
                let is_told = |name: &str| {
                    events.iter().any(|of| of["reason"] == "Unreadable" && of["regarding"]["name"] == name)
                };
                is_told("web") && is_told("other")
            });
            world.server.delete("services", "demo", "web");
            world.server.put(&other.slice());
            running.until("the deleted one is gone", || !serves(&["10.96.0.10"]));
            assert!(serves(&all[2..]), "{mode}: {}", tool(look));
            assert!(running.end().success());
        });
    }
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
