//! What is asked for only where settings need it: the Node's network of pods, all Nodes, networks of Services.

use super::*;

/// The initial list is not complete before local pod traffic can be detected, with `detectLocalMode: NodeCIDR`.
#[tokio::test]
async fn the_node_s_network_of_pods_is_waited_for() {
    let node = |spec: Value| json!({"kind": "Node", "metadata": {"name": "n1"}, "spec": spec});
    let server = ApiServer::start();
    server.put(&service("web", 80));
    server.put_list(recorded::ENDPOINT_SLICES);
    server.put(&node(json!({})));
    let mut options = quick();
    options.needs_pod_cidr = true;
    let mut watching = watch(&server, options.clone()).await;
    let early = tokio::time::timeout(Duration::from_secs(1), complete(&mut watching.changes)).await;
    assert!(early.is_err(), "{early:?}");
    server.put(&node(json!({"podCIDR": "10.244.1.0/24"})));
    watching.snapshot().await;
    watching.cluster.giving_up().await.unwrap();

    // The network never comes.
    server.put(&node(json!({})));
    options.pod_cidr_patience = Duration::from_millis(500);
    let mut watching = watch(&server, options).await;
    let problem = watching.cluster.giving_up().await.unwrap_err().to_string();
    let expected =
        "spec.podCIDR of Node n1, for detectLocalMode NodeCIDR: missing after 0 s; set it, or another detectLocalMode";
    assert_eq!(problem, expected);
    let early = tokio::time::timeout(Duration::from_millis(100), complete(&mut watching.changes)).await;
    assert!(early.is_err(), "{early:?}");
}

#[tokio::test]
async fn what_annotations_may_decide_arrives_and_all_nodes_are_watched_only_for_weights() {
    let server = shop();
    let mut web = service("web", 80);
    let asked = json!({"proxier/forwarding": "ipip", "kube-router.io/service.dsr": "tunnel"});
    web["metadata"]["annotations"] = asked.clone();
    web["metadata"]["annotations"]["example.com/long"] = "x".into();
    server.put(&web);
    let weights = json!({"proxier/weights": "10.244.0.1=3"});
    let labels = json!({"kubernetes.io/service-name": "web"});
    server.put(&json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
        "metadata": {"namespace": "default", "name": "web-1", "labels": labels, "annotations": weights},
    }));
    let addresses = json!([{"type": "InternalIP", "address": "192.0.2.17"}]);
    let node = |weight: &str| {
        let labels = json!({"proxier/weight": weight, "example.com/long": "x"});
        let status = json!({"addresses": addresses});
        json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n7", "labels": labels}, "status": status})
    };
    server.put(&node("3"));
    let mut watching = watch(&server, quick()).await;
    let snapshot = watching.snapshot().await;
    assert!(snapshot.cluster_nodes.is_empty());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let kept =
        |value: &Value| value.as_object().unwrap().iter().map(|(name, value)| (name.clone(), text(value))).collect();
    let annotations = |name: &str| {
        snapshot.services.values().find(|of| of.metadata.name == name).unwrap().metadata.annotations.clone()
    };
    assert_eq!(annotations("web"), kept(&asked));
    let slice = snapshot.slices.values().find(|of| of.metadata.name == "web-1").unwrap();
    assert_eq!(slice.metadata.annotations, kept(&weights));

    let mut watching = watch(&server, with(|options| options.node_weights = true)).await;
    let snapshot = watching.snapshot().await;
    assert!(snapshot.cluster_nodes.len() > 1 && snapshot.node.is_some());
    assert_eq!(snapshot.cluster_nodes["n7"].metadata.labels, kept(&json!({"proxier/weight": "3"})));
    server.put(&node("4"));
    let weight = |change: &Change| match change {
        Change::ClusterNode(object) => object.metadata.labels.get("proxier/weight").map(str::to_owned),
        Change::ClusterNodeGone(name) => Some(format!("-{name}")),
        _ => None,
    };
    assert_eq!(weight(&watching.next().await).unwrap(), "4");
    server.delete("nodes", "", "n7");
    assert_eq!(weight(&watching.next().await).unwrap(), "-n7");

    // Addresses of Nodes are watched also without weights.
    server.put(&node("4"));
    let snapshot = watch(&server, with(|options| options.node_addresses = true)).await.snapshot().await;
    let of = |name: &str| {
        snapshot.cluster_nodes[name].status.addresses.iter().map(|of| of.address.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(of("n7"), ["192.0.2.17"]);
}

/// Modes that make addresses local watch all Nodes, and those that do so by routes the networks of Services; the rest do not.
#[test]
fn nodes_and_networks_are_watched_where_addresses_are_made_local() {
    for (line, nodes, networks) in [
        ("ipvs", true, false),
        ("ipvs --ipvs-binding routes", true, true),
        ("auto", true, false),
        ("userspace", true, true),
        ("nftables --ipvs-binding routes", false, false),
        ("iptables", false, false),
    ] {
        let configured = configured(&format!("run --hostname-override=n1 --proxy-mode {line}"));
        let options = Options::from_settings(&configured.settings);
        let watched = (options.node_addresses, options.node_weights, options.service_cidrs);
        assert_eq!(watched, (nodes, false, networks), "{line}");
        let mut settings = configured.settings;
        settings.core.ipvs.may_ask_for = MayAskFor::all();
        let weighs = !matches!(line, "iptables" | "userspace");
        assert_eq!(Options::from_settings(&settings).node_weights, weighs, "{line}");
    }
}

/// Nothing else would say why no endpoint counts as this node's.
#[test]
fn a_node_that_the_server_lacks_is_named() {
    let server = shop();
    server.put(&json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n1"}}));
    for (name, says) in [("n1", false), ("n1.example.com", true)] {
        let mut explain = command(&["explain", "default/web", "--master", &server.url()]);
        let said = text(&explain.args(["--hostname-override", name]).output().unwrap().stderr);
        assert_eq!(said.contains(&format!("the server has no Node {name}: ")), says, "{said}");
    }
}

#[tokio::test]
async fn without_rights_to_nodes_services_are_served_without_weights() {
    let server = shop();
    server.forbid("nodes", true);
    let options = with(|options| (options.node_weights, options.node_addresses) = (true, true));
    let mut watching = watch(&server, options).await;
    let snapshot = watching.snapshot().await;
    assert!(snapshot.node.is_none() && snapshot.cluster_nodes.is_empty() && !snapshot.services.is_empty());
}

fn cidr(name: &str, cidrs: &[&str]) -> Value {
    json!({
        "kind": "ServiceCIDR", "apiVersion": "networking.k8s.io/v1",
        "metadata": {"name": name}, "spec": {"cidrs": cidrs},
    })
}

/// Local routes of IPVS mode on a node on paper.
fn routes(kernel: &Sketch) -> Vec<String> {
    kernel.state().routes.into_iter().map(|(_, route)| route.network.to_string()).collect()
}

/// The reconciler on a node on paper, which is fed from a server.
struct Serving {
    watching: Watching,
    engine: Engine<Sketch>,
    /// Time by which the engine's clock is ahead.
    ahead: Duration,
}

impl Serving {
    /// Starts a source and an engine, and runs the first pass.
    async fn start(server: &ApiServer, options: Options) -> Self {
        let line =
            "run --hostname-override n1 --proxy-mode ipvs --ipvs-binding routes --ipvs-service-cidrs 10.111.0.0/16";
        let configured = configured(line);
        assert!(Options::from_settings(&configured.settings).service_cidrs);
        let engine = Engine::in_memory(&configured, Sketch::default());
        let mut serving = Serving { watching: watch(server, options).await, engine, ahead: Duration::ZERO };
        serving.until(|change| *change == Change::Synced).await;
        serving
    }

    /// Takes changes until `is_last` holds for one; then runs a pass.
    async fn until(&mut self, is_last: impl Fn(&Change) -> bool) {
        loop {
            let change = self.watching.next().await;
            let done = is_last(&change);
            self.engine.apply_change(change, Instant::now());
            if done {
                break;
            }
        }
        // Removed routes need a second pass.
        for _ in 0..2 {
            self.ahead += Duration::from_secs(60);
            if let Some(report) = self.engine.pass_ahead(self.ahead) {
                assert!(!report.has_failed(), "{report:#?}");
            }
        }
    }
}

#[tokio::test]
async fn networks_of_services_are_those_of_the_cluster() {
    let server = ApiServer::start();
    for version in [ServiceCidrs::V1, ServiceCidrs::V1beta1] {
        server.serve_service_cidrs(version);
        server.put(&cidr("kubernetes", &["10.96.0.0/16", "fd00:10::/112"]));
        server.put(&service("web", 80));
        let mut serving = Serving::start(&server, with(|options| options.service_cidrs = true)).await;
        assert_eq!(routes(serving.engine.kernel()), ["10.96.0.0/16", "fd00:10::/112"], "{version:?}");
        server.put(&cidr("more", &["10.97.0.0/16"]));
        serving.until(|change| matches!(change, Change::ServiceCidr(name, _) if name == "more")).await;
        assert_eq!(routes(serving.engine.kernel()), ["10.96.0.0/16", "10.97.0.0/16", "fd00:10::/112"]);
        // A ServiceCIDR that cannot be read changes nothing.
        server.put(&cidr("more", &["10.97.0.0/16", "0.0.0.0/0"]));
        assert!(serving.watching.line().await.contains("ServiceCIDR more: spec.cidrs[1]"));
        // A break, in which one is deleted: the next list shows it.
        server.delete_silently("servicecidrs", "", "kubernetes");
        server.compact();
        server.end_watches();
        serving.until(|change| *change == Change::ServiceCidrGone("kubernetes".to_owned())).await;
        assert_eq!(routes(serving.engine.kernel()), ["10.96.0.9/32", "10.97.0.0/16"], "the Service keeps its address");
        server.delete("servicecidrs", "", "more");
        serving.until(|change| *change == Change::ServiceCidrGone("more".to_owned())).await;
        assert_eq!(routes(serving.engine.kernel()), ["10.96.0.9/32", "10.111.0.0/16"], "those of the configuration");
    }
}

/// A server that has no ServiceCIDRs, or forbids them: no failure, asked for seldom, and taken when they come.
#[tokio::test]
async fn a_server_without_networks_of_services_leaves_them_to_the_configuration() {
    for is_forbidden in [false, true] {
        let server = ApiServer::start();
        if is_forbidden {
            server.serve_service_cidrs(ServiceCidrs::V1);
            server.forbid("servicecidrs", true);
        }
        server.put(&cidr("kubernetes", &["10.96.0.0/16"]));
        server.put(&service("web", 80));
        let mut options = quick();
        // The Node never comes, and is waited for; these are not.
        options.node_patience = Duration::from_secs(1);
        options.service_cidrs = true;
        options.absent_pause = Duration::from_secs(2);
        let mut serving = Serving::start(&server, options).await;
        assert_eq!(routes(serving.engine.kernel()), ["10.96.0.9/32", "10.111.0.0/16"]);
        assert_eq!(serving.watching.failures(), 0);
        let asked = || requests(&server, "servicecidrs", false);
        assert_eq!(asked(), if is_forbidden { 1 } else { 2 }, "in v1, and in v1beta1");
        server.serve_service_cidrs(ServiceCidrs::V1);
        server.forbid("servicecidrs", false);
        serving.until(|change| matches!(change, Change::ServiceCidr(..))).await;
        assert_eq!(routes(serving.engine.kernel()), ["10.96.0.0/16"]);
    }
}

/// The server answers again, and lacks one kind: no requests fail any more.
#[tokio::test]
async fn a_kind_that_the_server_lacks_does_not_fail_after_an_outage() {
    for is_forbidden in [false, true] {
        let server = shop();
        if is_forbidden {
            server.serve_service_cidrs(ServiceCidrs::V1);
            server.forbid("servicecidrs", true);
        }
        server.outage(true);
        let mut watching = watch(&server, with(|options| options.service_cidrs = true)).await;
        let counters = watching.cluster.counters().clone();
        let fail = |kind: &str| format!("{counters:?}").contains(kind);
        wait_for("failures", || fail("servicecidrs") && fail("services")).await;
        server.outage(false);
        watching.snapshot().await;
        assert!(!fail("Failing"), "{counters:?}");
    }
}

/// A server that does not know the selector of the request sends all Nodes.
#[tokio::test]
async fn another_node_is_not_taken_for_this_one() {
    let server = shop();
    let node = |name: &str, version: &str| json!({"metadata": {"name": name, "resourceVersion": version}});
    let all = json!({
        "kind": "NodeList", "metadata": {"resourceVersion": server.version().to_string()},
        "items": [node("n0", "1"), node("n1", "2"), node("n2", "3")],
    });
    server.fail_next("nodes", Verb::List, Fault::Text(all.to_string()));
    let mut watching = watch(&server, quick()).await;
    assert_eq!(watching.snapshot().await.node.unwrap().object.metadata.name, "n1");
    watched(&server).await;
    for what in ["MODIFIED", "DELETED"] {
        server.send_raw("nodes", &json!({"type": what, "object": node("n2", "9999")}).to_string());
    }
    server.delete("nodes", "", "n1");
    assert_eq!(watching.line().await, "-node");
}
