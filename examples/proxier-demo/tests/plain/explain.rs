//! `explain` and `trace`, as a user starts them: without a kernel, without privileges, in every mode.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::program::{self, Folder, demo, ok, text};

const WEB: &str = "apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  creationTimestamp: 2026-01-01T00:00:00Z
  annotations: {proxier/scheduler: wlc}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ipFamilies: [IPv4]
  externalTrafficPolicy: Local
  healthCheckNodePort: 31000
  loadBalancerSourceRanges: [198.51.100.0/24]
  sessionAffinity: ClientIP
  ports: [{name: http, port: 80, nodePort: 30080, protocol: TCP}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.5}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- {addresses: [10.244.1.5], nodeName: n1}
- {addresses: [10.244.2.7], nodeName: n2}
- {addresses: [10.244.3.9], nodeName: n3, conditions: {ready: false}}
- {addresses: [10.244.3.10], nodeName: n3, conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [255.255.255.255]}
---
apiVersion: v1
kind: Service
metadata: {name: thief, namespace: shop, creationTimestamp: 2026-01-02T00:00:00Z}
spec:
  clusterIP: 10.96.0.11
  clusterIPs: [10.96.0.11]
  ipFamilies: [IPv4]
  externalIPs: [10.96.0.10]
  ports: [{port: 80, protocol: TCP}]
---
apiVersion: v1
kind: Service
metadata: {name: outside, namespace: shop}
spec:
  clusterIP: 10.96.7.7
  clusterIPs: [10.96.7.7]
  ipFamilies: [IPv4]
  externalIPs: [203.0.113.9]
  externalTrafficPolicy: Local
  ports: [{port: 80, protocol: TCP}]
---
apiVersion: v1
kind: Node
metadata: {name: n1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
";

const MODES: [&str; 4] = ["ipvs", "nftables", "iptables", "userspace"];

struct Input {
    _folder: Folder,
    path: String,
}

impl Input {
    fn new(text: &str) -> Self {
        let folder = Folder::with("all.yaml", text);
        let path = folder.path("all.yaml").display().to_string();
        Input { _folder: folder, path }
    }

    fn run(&self, mode: &str, arguments: &[&str]) -> std::process::Output {
        let more = ["--manifests", &self.path, "--proxy-mode", mode, "--cluster-cidr", "10.244.0.0/16"];
        demo(&[arguments, &more].concat())
    }

    fn data(&self, mode: &str, arguments: &[&str]) -> Value {
        serde_json::from_str(&ok(&self.run(mode, &[arguments, &["-o", "json"]].concat()))).unwrap()
    }
}

#[test]
fn an_endpoint_elsewhere_gets_nothing_of_a_service_that_stays_on_the_node() {
    let local = "spec:\n  internalTrafficPolicy: Local\n  type";
    for (text, gets) in [
        (WEB.replacen("spec:\n  type", local, 1), "gets traffic, it is ready"),
        // No address from outside.
        (
            WEB.replacen("spec:\n  type: LoadBalancer", "spec:\n  internalTrafficPolicy: Local", 1)
                .replacen("  externalTrafficPolicy: Local\n  healthCheckNodePort: 31000\n", "", 1)
                .replacen(", nodePort: 30080", "", 1)
                .replacen("status: {loadBalancer: {ingress: [{ip: 203.0.113.5}]}}\n", "", 1),
            "gets none, the policy is Local, and it is not on this node",
        ),
    ] {
        let input = Input::new(&text);
        for mode in MODES {
            // IPVS mode has one server for all clients of an external address.
            let gets = if mode == "ipvs" { "gets none, the policy is Local, and it is not on this node" } else { gets };
            let explained = ok(&input.run(mode, &["explain", "shop/web"]));
            for line in [
                "    10.244.1.5:8080 ready, on this node: gets traffic, it is ready".to_owned(),
                format!("    10.244.2.7:8080 ready: {gets}"),
            ] {
                assert!(explained.lines().any(|printed| printed == line), "{mode} {line}\n{explained}");
            }
        }
    }
    // Without an endpoint here, external addresses have those of all nodes.
    let text = WEB.replacen("spec:\n  type", local, 1).replacen("- {addresses: [10.244.1.5], nodeName: n1}\n", "", 1);
    let input = Input::new(&text);
    let explained = ok(&input.run("ipvs", &["explain", "shop/web"]));
    assert!(explained.contains("    10.244.2.7:8080 ready: gets traffic, it is ready\n"), "{explained}");
}

/// Hints for nodes decide before those for zones, and policy `Local` before both.
#[test]
fn the_reason_of_an_endpoint_is_what_decides() {
    let service = |policy: &str| {
        format!(
            "apiVersion: v1
kind: Service
metadata: {{name: near, namespace: shop}}
spec: {{clusterIP: 10.96.0.10, internalTrafficPolicy: {policy}, ports: [{{name: http, port: 80, protocol: TCP}}]}}
---
apiVersion: v1
kind: Node
metadata: {{name: n1, labels: {{topology.kubernetes.io/zone: z1}}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: near-1, namespace: shop, labels: {{kubernetes.io/service-name: near}}}}
addressType: IPv4
ports: [{{name: http, port: 8080, protocol: TCP}}]
endpoints:
"
        )
    };
    let hints =
        |node: &str, zone: &str| format!("hints: {{forNodes: [{{name: {node}}}], forZones: [{{name: {zone}}}]}}");
    let near = format!(
        "- {{addresses: [10.244.1.5], nodeName: n1, {}}}\n- {{addresses: [10.244.2.7], nodeName: n2, {}}}\n",
        hints("n1", "z1"),
        hints("n2", "z1")
    );
    let far = format!(
        "- {{addresses: [10.244.1.5], nodeName: n1, conditions: {{ready: false, serving: true, terminating: true}}}}
- {{addresses: [10.244.2.7], nodeName: n2, {}}}\n- {{addresses: [10.244.3.9], nodeName: n3, {}}}\n",
        hints("n2", "z1"),
        hints("n3", "z2")
    );
    let elsewhere = "gets none, the policy is Local, and it is not on this node";
    for (text, expected) in [
        (service("Cluster") + &near, vec![
            "10.244.1.5:8080 ready, on this node: gets traffic, it is ready".to_owned(),
            "10.244.2.7:8080 ready: gets none, hints: others are meant for this node, this one for another".to_owned(),
        ]),
        (service("Local") + &far, vec![
            "10.244.1.5:8080 stopping, still serving, on this node: gets traffic, no endpoint on this node is ready, and it still serves"
                .to_owned(),
            format!("10.244.2.7:8080 ready: {elsewhere}"),
            format!("10.244.3.9:8080 ready: {elsewhere}"),
        ]),
    ] {
        let explained = ok(&Input::new(&text).run("nftables", &["explain", "shop/near"]));
        let flat = explained.split_whitespace().collect::<Vec<_>>().join(" ");
        for line in expected {
            assert!(flat.contains(&line), "{line}\n{explained}");
        }
    }
}

/// What can be read is answered, and the exit code says that not everything could.
#[test]
fn objects_that_cannot_be_read_are_in_the_exit_code() {
    let odd = "---\napiVersion: v1\nkind: Service\nmetadata: {name: odd, namespace: shop}\nspec: {ports: 7}\n";
    let input = Input::new(&format!("{WEB}{odd}"));
    for arguments in [&["explain", "shop/web"][..], &["trace", "10.244.9.9", "10.96.0.10:80"], &["render"]] {
        let output = input.run("nftables", arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = text(&output.stderr);
        assert!(said.contains("Service shop/odd: spec.ports: invalid type") && !output.stdout.is_empty(), "{said}");
    }
}

#[test]
fn a_service_is_explained_in_every_mode() {
    let input = Input::new(WEB);
    for mode in MODES {
        let explained = ok(&input.run(mode, &["explain", "shop/web"]));
        for line in [
            format!("Service shop/web, made 2026-01-01T00:00:00Z; node n1, {mode} mode"),
            "  internal traffic policy: Cluster (default)".to_owned(),
            "  external traffic policy: Local (spec.externalTrafficPolicy)".to_owned(),
            "  session affinity: 10800 s (spec.sessionAffinity)".to_owned(),
            "port http: TCP 80, node port 30080".to_owned(),
            "  TCP 10.96.0.10:80 (cluster IP): policy Cluster, 2 endpoints".to_owned(),
            "    10.244.1.5:8080 ready, on this node: gets traffic, it is ready".to_owned(),
            "    10.244.2.7:8080 ready: gets traffic, it is ready".to_owned(),
            "    10.244.3.9:8080 not ready: gets none, it is not ready".to_owned(),
            "    10.244.3.10:8080 stopping, still serving: gets none, it is stopping, and others are ready".to_owned(),
        ] {
            assert!(explained.lines().any(|printed| printed == line), "{line}\n{explained}");
        }
        // Long lines are broken between words.
        let flat = explained.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains("only from 198.51.100.0/24"), "{explained}");
        assert!(explained.contains("TCP 10.96.0.10:80: asked for by shop/thief too"), "{explained}");
        assert!(explained.contains("255.255.255.255"), "what was left out is told: {explained}");
        let scheduler = explained.contains("  scheduler: wlc (annotation proxier/scheduler)");
        assert_eq!(scheduler, mode == "ipvs", "{explained}");
        let of_kernel: &[&str] = match mode {
            "ipvs" => &[
                "ipvsadm: -A -t 10.96.0.10:80 -s wlc -p 10800",
                "ipset: KUBE-CLUSTER-IP: 10.96.0.10,tcp:80",
                "ipset: KUBE-LOAD-BALANCER-SOURCE-CIDR: 203.0.113.5,tcp:80,198.51.100.0/24",
                "ipset: KUBE-NODE-PORT-LOCAL-TCP: 30080",
                "ip address: 10.96.0.10 dev kube-ipvs0",
                "ip address: 203.0.113.5 dev kube-ipvs0",
            ],
            "nftables" => &["nft: guarded: 203.0.113.5 . tcp . 80", "nft: services: 10.96.0.10 . tcp . 80"],
            "iptables" => &["iptables: -A KUBE-SERVICES", "shop/web:http cluster IP"],
            _ => &["ip route: local 10.96.0.10/32 dev lo"],
        };
        for line in of_kernel {
            assert!(flat.contains(line), "{line}\n{explained}");
        }
        assert!(!explained.contains("10.96.0.11"), "another Service's: {explained}");
    }
}

/// External IPs, which a Service's owner chooses, are not served with the feature gate off; addresses of a load balancer stay.
#[test]
fn external_ips_are_left_out_in_every_mode_and_said() {
    let input = Input::new(WEB);
    for mode in MODES {
        let run = |arguments: &[&str], gate: &str| {
            let gate = format!("--feature-gates=AllowServiceExternalIPs={gate}");
            let output = input.run(mode, &[arguments, &[&gate]].concat());
            format!("{}{}", text(&output.stdout), text(&output.stderr)).split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let is_served = |gate| {
            let gate = format!("--feature-gates=AllowServiceExternalIPs={gate}");
            let rendered = ok(&input.run(mode, &["render", &gate]));
            ["203.0.113.5", "203.0.113.9"].map(|address| rendered.contains(address))
        };
        assert_eq!((is_served("true"), is_served("false")), ([true, true], [true, false]), "{mode}");
        let why = "not served: the feature gate AllowServiceExternalIPs is false";
        let rejection = format!("Service shop/outside: spec.externalIPs 203.0.113.9: {why}");
        assert!(run(&["explain", "shop/outside"], "false").contains(&rejection));
        assert!(!run(&["explain", "shop/outside"], "true").contains(why));
        let has = format!("Service shop/outside has it by an external IP, {why}");
        for (arguments, port) in [(&["explain"][..], 80), (&["trace", "outside"], 80), (&["trace", "outside"], 81)] {
            let said = run(&[arguments, &[&format!("203.0.113.9:{port}")]].concat(), "false");
            assert_eq!(said.contains(&has), port == 80, "{mode}: {said}");
        }
    }
}

/// A Service with annotations, its slice with weights, and a configuration.
struct Asking {
    folder: Folder,
}

impl Asking {
    fn new(annotations: &str, spec: &str, ipvs: &str) -> Self {
        Asking::in_mode("ipvs", annotations, spec, ipvs)
    }

    fn in_mode(mode: &str, annotations: &str, spec: &str, ipvs: &str) -> Self {
        let folder = Folder::new("policy");
        let text = format!(
            "apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop, annotations: {{{annotations}}}}}
spec: {{type: LoadBalancer, clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], ipFamilies: [IPv4], {spec}
  ports: [{{name: web, port: 80, nodePort: 30080, protocol: TCP}}, {{name: dns, port: 53, nodePort: 30053, protocol: UDP}}]}}
status: {{loadBalancer: {{ingress: [{{ip: 203.0.113.5}}]}}}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}, annotations: {{proxier/weights: 10.244.1.5=0}}}}
addressType: IPv4
ports: [{{name: web, port: 80, protocol: TCP}}, {{name: dns, port: 5353, protocol: UDP}}]
endpoints: [{{addresses: [10.244.1.5], nodeName: n1}}, {{addresses: [10.244.2.7], nodeName: n2, zone: a}}]
---
apiVersion: v1
kind: Node
metadata: {{name: n1}}
status: {{addresses: [{{type: InternalIP, address: 192.0.2.1}}]}}
"
        );
        folder.put("all.yaml", &text);
        let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
        folder.put("config", &format!("{head}mode: {mode}\nclusterCIDR: 10.244.0.0/16\nipvs: {{{ipvs}}}\n"));
        Asking { folder }
    }

    fn data(&self) -> Value {
        let [all, config] = ["all.yaml", "config"].map(|name| self.folder.path(name).display().to_string());
        let files = ["--manifests", &all, "--config", &config];
        serde_json::from_str(&ok(&demo(&[&["explain", "shop/web", "-o", "json"][..], &files].concat()))).unwrap()
    }

    /// Lines about what does not count.
    fn left_out(&self) -> Vec<String> {
        let data = self.data();
        data["rejected"].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect()
    }

    /// Policies by name, and the endpoints of the first port with their weights.
    fn explained(&self) -> (BTreeMap<String, String>, Vec<String>) {
        let data = self.data();
        let word = |of: &Value, name: &str| of[name].as_str().unwrap().to_owned();
        let policies = data["policies"].as_array().unwrap().iter();
        let policies = policies.map(|of| (word(of, "what"), format!("{} ({})", word(of, "value"), word(of, "from"))));
        let endpoints = data["ports"][0]["endpoints"].as_array().unwrap().iter();
        (policies.collect(), endpoints.map(|of| format!("{} {}", word(of, "address"), of["weight"])).collect())
    }
}

#[track_caller]
fn says(asking: &Asking, expected: &[(&str, &str)]) {
    let (policies, _) = asking.explained();
    for (what, says) in expected {
        assert_eq!(policies.get(*what).map(String::as_str), Some(*says), "{what}: {policies:#?}");
    }
}

#[test]
fn policies_come_from_annotations_the_configuration_or_nowhere() {
    let nowhere = Asking::new("", "", "");
    says(
        &nowhere,
        &[
            ("session affinity", "none (default)"),
            ("scheduler", "rr (configuration ipvs.scheduler)"),
            ("scheduler's flags", "none (default)"),
            ("weights", "by endpoint (annotation proxier/weights of shop/web-1)"),
            ("forwarding", "masquerade (default)"),
            ("connections of an endpoint", "none (default)"),
            ("drain time of TCP", "900 s (default)"),
            ("binding", "addresses of kube-ipvs0 (default)"),
            ("mark split", "no (default)"),
        ],
    );
    assert_eq!(nowhere.explained().1, ["10.244.1.5:80 0", "10.244.2.7:80 1"]);

    let annotations = "kube-router.io/service.scheduler: mh, proxier/persistence-seconds: '60', proxier/zone-weights: 'a=3', \
                       proxier/forwarding: ipip, proxier/max-connections: '9', proxier/drain-seconds: '30'";
    let asked = Asking::new(annotations, "", "binding: routes");
    says(
        &asked,
        &[
            ("session affinity", "60 s (annotation proxier/persistence-seconds)"),
            ("scheduler", "mh (annotation kube-router.io/service.scheduler)"),
            ("scheduler's flags", "mh-fallback,mh-port (default)"),
            (
                "weights",
                "by endpoint; by zone: a=3, *=1 (annotation proxier/weights of shop/web-1; annotation proxier/zone-weights)",
            ),
            // The endpoints of one port have another number.
            (
                "forwarding",
                "ipip at 1 of 2 external addresses and ports, masquerade elsewhere (annotation proxier/forwarding)",
            ),
            ("connections of an endpoint", "at most 9 (annotation proxier/max-connections)"),
            ("drain time of TCP", "30 s (annotation proxier/drain-seconds)"),
            ("binding", "by routes (configuration ipvs.binding)"),
        ],
    );
    assert_eq!(asked.explained().1, ["10.244.1.5:80 0", "10.244.2.7:80 3"]);

    let defaults =
        "allowedAnnotations: [weights], defaults: {persistenceSeconds: 300, zoneWeights: 'a=2', drainSeconds: 5}";
    says(
        &Asking::new(annotations, "", defaults),
        &[
            (
                "session affinity",
                "300 s (configuration ipvs.defaults.persistenceSeconds; annotation proxier/persistence-seconds is not allowed)",
            ),
            (
                "scheduler",
                "rr (configuration ipvs.scheduler; annotation kube-router.io/service.scheduler is not allowed)",
            ),
            ("forwarding", "masquerade (default; annotation proxier/forwarding is not allowed)"),
            (
                "drain time of TCP",
                "5 s (configuration ipvs.defaults.drainSeconds; annotation proxier/drain-seconds is not allowed)",
            ),
        ],
    );
    says(&Asking::new("", "", defaults), &[("drain time of TCP", "5 s (configuration ipvs.defaults.drainSeconds)")]);
}

#[test]
fn policies_of_nftables_mode_are_told_as_far_as_they_count() {
    let annotations =
        "proxier/scheduler: sh, proxier/zone-weights: 'a=3', proxier/forwarding: ipip, proxier/drain-seconds: '30'";
    // The configuration's defaults are for IPVS mode.
    let defaults = "scheduler: wlc, defaults: {persistenceSeconds: 300, zoneWeights: 'a=2'}";
    let asked = Asking::in_mode("nftables", annotations, "", defaults);
    let weights =
        "by endpoint; by zone: a=3, *=1 (annotation proxier/weights of shop/web-1; annotation proxier/zone-weights)";
    let choice = "sh: by the client's address (annotation proxier/scheduler)";
    says(&asked, &[("choice of endpoints", choice), ("weights", weights), ("session affinity", "none (default)")]);
    let (policies, endpoints) = asked.explained();
    assert!(!policies.contains_key("forwarding"), "{policies:?}");
    assert_eq!(policies["drain time of TCP"], "30 s (annotation proxier/drain-seconds)");
    assert_eq!(endpoints, ["10.244.1.5:80 0", "10.244.2.7:80 3"]);
    says(
        &Asking::in_mode("nftables", "proxier/persistence-seconds: '60'", "", ""),
        &[
            ("session affinity", "60 s (annotation proxier/persistence-seconds)"),
            ("choice of endpoints", "at random (default)"),
        ],
    );
}

/// As with kube-proxy: no weights, no policy but the Service's own fields, and a line for each object that asks for more.
#[test]
fn policies_of_iptables_and_userspace_mode_are_said_to_be_ignored() {
    let annotations = "proxier/scheduler: sh, proxier/zone-weights: '*=0', proxier/persistence-seconds: '60', proxier/drain-seconds: '30'";
    for (mode, usual) in [("iptables", "at random (default)"), ("userspace", "in turn (default)")] {
        let asked = Asking::in_mode(mode, annotations, "", "allowedAnnotations: [weights, node-weights]");
        says(&asked, &[("choice of endpoints", usual), ("session affinity", "none (default)")]);
        let (policies, endpoints) = asked.explained();
        assert!(!policies.contains_key("weights") && !policies.contains_key("drain time of TCP"), "{policies:?}");
        assert_eq!(endpoints, ["10.244.1.5:80 1", "10.244.2.7:80 1"], "{mode}");
        let names = "proxier/scheduler, proxier/persistence-seconds, proxier/zone-weights, proxier/drain-seconds";
        let why = "ignored in this mode; ipvs and nftables mode follow it";
        let of_service = format!("Service shop/web: metadata.annotations {names}: {why}");
        let of_slice = format!("EndpointSlice shop/web-1: metadata.annotations[proxier/weights] 10.244.1.5=0: {why}");
        assert_eq!(asked.left_out(), [of_service, of_slice], "{mode}");
    }
}

#[test]
fn what_has_firewall_marks_is_told_and_what_has_none() {
    let marks = "markSplit: true, rules: nftables";
    let local = "externalTrafficPolicy: Local, healthCheckNodePort: 31000,";
    says(
        &Asking::new("", local, marks),
        &[("mark split", "yes, at 4 addresses and ports (configuration ipvs.markSplit)")],
    );
    let reason =
        "clients stay with their endpoints, and such a virtual server of a firewall mark does not translate ports";
    let not = format!("not at 4 addresses and ports: {reason} (configuration ipvs.markSplit)");
    says(&Asking::new("proxier/persistence-seconds: '60'", local, marks), &[("mark split", &not)]);
    let nothing = "nothing to split: no external address or node port with policy Local (configuration ipvs.markSplit)";
    says(&Asking::new("", "", marks), &[("mark split", nothing)]);
    says(
        &Asking::new("", local, "markSplit: true, rules: iptables"),
        &[("mark split", "no: needs ipvs.rules: nftables (configuration ipvs.markSplit)")],
    );
}

#[test]
fn routes_that_bind_addresses_are_mentioned() {
    let input = Input::new(WEB);
    let by_routes = ["explain", "shop/web", "--ipvs-binding", "routes", "--ipvs-service-cidrs", "10.96.0.0/12"];
    let explained = ok(&input.run("ipvs", &by_routes));
    for network in ["10.96.0.0/12", "203.0.113.5"] {
        let route = format!("ip route: local {network}");
        assert!(explained.lines().any(|line| line.trim().starts_with(&route)), "{route}\n{explained}");
    }
    assert!(!explained.contains("ip address:") && !explained.contains("10.96.0.11"), "{explained}");
}

#[test]
fn data_and_a_single_port_or_address() {
    let input = Input::new(WEB);
    let all = input.data("nftables", &["explain", "shop/web:http"]);
    assert_eq!((&all["service"], &all["mode"], &all["node"]), (&json!("shop/web"), &json!("nftables"), &json!("n1")));
    let endpoints = all["ports"][0]["endpoints"].as_array().unwrap();
    assert_eq!(endpoints.len(), 4);
    assert_eq!(
        endpoints[3],
        json!({
            "address": "10.244.3.10:8080", "condition": "stopping, still serving", "ready": false, "serving": true,
            "terminating": true, "local": false, "zones": null, "getsTraffic": false, "getsLocalTraffic": false,
            "reason": "it is stopping, and others are ready", "weight": 1,
        })
    );
    let keys = |value: &Value| -> Vec<String> {
        let frontends = value["ports"][0]["frontends"].as_array().unwrap();
        frontends.iter().map(|frontend| frontend["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(&all), ["TCP 10.96.0.10:80", "TCP 192.0.2.1:30080", "TCP 203.0.113.5:80"]);
    for asked in ["192.0.2.1:30080", "192.0.2.1:30080/tcp"] {
        let one = input.data("ipvs", &["explain", asked]);
        assert_eq!((keys(&one), &one["service"]), (vec!["TCP 192.0.2.1:30080".to_owned()], &json!("shop/web")));
    }
    let thief = input.data("ipvs", &["explain", "shop/thief"]);
    assert_eq!(thief["refused"], json!(["TCP 10.96.0.10:80: shop/web has it as its cluster IP"]));
    // By any of its addresses the same is told.
    for (asked, service) in [("10.96.0.11:80", "shop/thief"), ("203.0.113.5:80", "shop/web")] {
        let [one, all] = [asked, service].map(|asked| input.data("ipvs", &["explain", asked])["refused"].clone());
        assert_eq!(one, all, "{asked}");
    }
}

#[test]
fn what_is_not_there_is_said_with_what_is_near() {
    let input = Input::new(WEB);
    for (asked, code, words) in [
        ("shop/wep", 1, "there is no Service shop/wep to program; near: shop/web"),
        ("shop/web:https", 1, "Service shop/web has no port \"https\"; it has http"),
        ("10.96.0.12:80", 1, "no Service has TCP 10.96.0.12:80"),
        ("10.96.0.12:80", 1, "near: TCP 10.96.0.11:80 of Service shop/thief"),
        ("10.96.0.10:80/UDP", 1, "no Service has UDP 10.96.0.10:80"),
        ("[fd00::1]:132/sctp", 1, "no Service has SCTP [fd00::1]:132"),
        ("[::ffff:10.96.0.10]:81", 1, "no Service has TCP 10.96.0.10:81"),
        ("10.96.0.10:0", 2, "0 is not a port"),
        ("web", 2, "\"web\" is neither NAMESPACE/NAME of a Service, nor an address and port"),
        ("10.96.0.10:80/icmp", 2, "the protocol is none of tcp, udp, sctp"),
    ] {
        let output = input.run("ipvs", &["explain", asked]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{asked}: {said}");
        assert!(said.contains(words) && output.stdout.is_empty(), "{asked}: {said}");
    }
    for arguments in
        [&["explain"][..], &["trace", "node"], &["trace", "nobody", "10.0.0.1:80"], &["trace", "node", "web:80"]]
    {
        assert_eq!(input.run("ipvs", arguments).status.code(), Some(2), "{arguments:?}");
    }
    let mixed = input.run("ipvs", &["trace", "fd00::1", "10.96.0.10:80"]);
    assert_eq!(mixed.status.code(), Some(2));
    assert!(text(&mixed.stderr).contains("fd00::1 and 10.96.0.10 are not of one family"), "{}", text(&mixed.stderr));
}

/// The verdict and the endpoints with `*` behind those that are masqueraded.
fn verdict(of: &Value) -> String {
    let endpoints = of["endpoints"].as_array().unwrap();
    if endpoints.is_empty() {
        return of["verdict"].as_str().unwrap().to_owned();
    }
    let one = |one: &Value| {
        format!("{}{}", one["address"].as_str().unwrap(), if one["masqueraded"] == true { "*" } else { "" })
    };
    endpoints.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn packets_are_traced_in_every_mode() {
    let input = Input::new(WEB);
    let (here, both) = ("10.244.1.5:8080", "10.244.1.5:8080 10.244.2.7:8080");
    let (masked_here, masked) = ("10.244.1.5:8080*", "10.244.1.5:8080* 10.244.2.7:8080*");
    // Expected endpoints by mode: ipvs, nftables, iptables, userspace.
    for (from, to, expected) in [
        ("10.244.9.9", "10.96.0.10:80", [both, both, both, masked]),
        ("outside", "10.96.0.10:80", [masked, masked, masked, masked]),
        ("10.244.2.7", "10.96.0.10:80", [both, both, "10.244.1.5:8080 10.244.2.7:8080*", masked]),
        ("outside", "192.0.2.1:30080", [here, here, here, masked_here]),
        ("10.244.9.9", "192.0.2.1:30080", [here, both, both, masked]),
        ("198.51.100.7", "203.0.113.5:80", [here, here, here, masked_here]),
        ("outside", "203.0.113.5:80", ["dropped", "dropped", "dropped", "rejected"]),
        ("outside", "10.96.0.10:81", ["rejected", "rejected", "leftAlone", "leftAlone"]),
        ("node", "192.0.2.99:80", ["leftAlone", "leftAlone", "leftAlone", "leftAlone"]),
    ] {
        for (mode, expected) in MODES.into_iter().zip(expected) {
            let traced = input.data(mode, &["trace", from, to]);
            assert_eq!(verdict(&traced), expected, "{mode}: {from} to {to}: {traced:#}");
            assert!(!traced["steps"].as_array().unwrap().is_empty());
        }
    }
    let printed = ok(&input.run("nftables", &["trace", "10.244.9.9", "192.0.2.1:30080"]));
    for line in [
        "10.244.9.9 → TCP 192.0.2.1:30080, first packet, nftables mode",
        "  1. TCP 192.0.2.1:30080 is a Frontend of Service shop/web: node port.",
        "it gets to one of",
        "  10.244.2.7:8080  which sees the source",
    ] {
        assert!(printed.lines().any(|printed| printed == line), "{line}\n{printed}");
    }
    for (from, is_own) in [("192.0.2.1", true), ("192.0.2.99", false)] {
        let traced = input.data("nftables", &["trace", from, "10.96.0.10:80", "--hostname-override", "n1"]);
        assert_eq!(traced["fromNode"], is_own, "{from}: {traced:#}");
    }
    let node = input.data("iptables", &["trace", "node", "127.0.0.1:30080"]);
    assert_eq!((&node["fromNode"], verdict(&node)), (&json!(true), masked.to_owned()));
}

/// A reader that reads a part, or nothing, causes no failure; a full disk is one.
#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let input = Input::new(WEB);
    let of_files = ["--manifests", &input.path, "--proxy-mode", "nftables"];
    let of = |words: &[&'static str]| [words, &of_files].concat();
    let nobody = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer
    };
    for (words, code) in [
        (vec!["--help"], 0),
        (vec!["explain", "--help"], 0),
        (vec!["--version"], 0),
        (vec!["no-such-command"], 2),
        (of(&["explain", "shop/web"]), 0),
        (of(&["explain", "-o", "json", "shop/web"]), 0),
        (of(&["explain", "shop/nothing"]), 1),
        (of(&["trace", "192.0.2.50", "10.96.0.10:80"]), 0),
        (of(&["trace", "-o", "json", "192.0.2.50", "10.96.0.10:80"]), 0),
        (of(&["render"]), 0),
        (of(&["render", "-o", "json"]), 0),
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_proxier-demo"));
        command.args(&words);
        let status = command.stdout(nobody()).stderr(nobody()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{words:?}: {status}");
        if code == 0 {
            let full = fs::File::options().write(true).open("/dev/full").unwrap();
            let output = command.stdout(full).stderr(std::process::Stdio::piped()).output().unwrap();
            let said = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
            assert!(said.contains("standard output cannot be written (No space left on device"), "{words:?}: {said}");
        }
    }
}

/// Names in files are not checked: control characters in them are made visible, since a terminal would obey them.
#[test]
fn control_characters_of_objects_are_seen() {
    let name = "we\u{1b}[2J\u{9b}b\0";
    let objects = program::service("shop", name, "10.96.0.10", "{addresses: [10.244.0.5]}");
    let Input { path, _folder } = Input::new(&objects.replace('\u{9b}', "\\u009b"));
    for mode in MODES {
        for words in [&["render"][..], &["explain", "10.96.0.10:80"], &["trace", "192.0.2.50", "10.96.0.10:80"]] {
            let output = demo(&[words, &["--manifests", &path, "--proxy-mode", mode]].concat());
            let printed = text(&output.stdout) + &text(&output.stderr);
            let obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
            assert!(!printed.contains(obeyed), "{mode} {words:?}: {printed:?}");
        }
        let explained = ok(&demo(&["explain", "10.96.0.10:80", "--manifests", &path, "--proxy-mode", mode]));
        assert!(explained.starts_with("Service shop/we\\u{1b}[2J\\u{9b}b\\u{0}; node n1"), "{explained}");
    }
}

/// A Service is explained without the others, but with what they take from it: addresses of API servers, and node ports.
#[test]
fn what_others_take_from_a_service_is_said() {
    let wants = |name: &str, cluster_ip: &str, external_ip: &str, port: u16| {
        let spec = format!(
            "clusterIP: {cluster_ip}, externalIPs: [{external_ip}], ports: [{{name: http, port: {port}, protocol: TCP}}]"
        );
        program::pair(name, &spec, program::HTTP, "{addresses: [10.244.0.5]}")
    };
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n\
                status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n";
    let input = Input::new(
        &[
            wants("thief", "10.96.0.12", "192.0.2.10", 80),
            program::service("default", "kubernetes", "10.96.0.1", "{addresses: [192.0.2.10]}"),
            wants("late", "10.96.0.13", "192.0.2.1", 30080),
            program::with_node_port("early", "10.96.0.14", 30080, &["10.244.0.6"]),
            node.to_owned(),
        ]
        .concat(),
    );
    for mode in MODES {
        for (service, expected) in [
            ("demo/thief", "  TCP 192.0.2.10:80: the API server has that address"),
            ("demo/late", "  TCP 192.0.2.1:30080: demo/early has it as its node port"),
            ("demo/early", "  TCP 192.0.2.1:30080: asked for by demo/late too"),
        ] {
            let explained = ok(&input.run(mode, &["explain", service]));
            assert!(explained.contains(expected), "{mode}: {explained}");
        }
    }
}

#[test]
fn what_is_not_programmed_on_purpose_is_said() {
    let of = |name: &str, spec: &str| {
        format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{{spec}}}\n---\n")
    };
    let all = [
        of("pods", "clusterIP: None, ports: [{port: 80}]"),
        of("elsewhere", "type: ExternalName, externalName: example.com"),
        of("web", "clusterIP: 10.96.0.10, ports: [{port: 80}]"),
    ];
    let Input { path, _folder } = Input::new(&all.concat());
    for (name, expected) in [
        ("pods", "Service shop/pods is headless (clusterIP None): "),
        ("elsewhere", "Service shop/elsewhere is of type ExternalName: "),
        ("wab", "there is no Service shop/wab to program; near: shop/web"),
    ] {
        let output = demo(&["explain", &format!("shop/{name}"), "--manifests", &path]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    // Node ports are served at addresses of the node, and there is no Node.
    for words in [&["explain", "shop/web"][..], &["trace", "192.0.2.50", "192.0.2.1:30080"], &["render"]] {
        let said = text(&demo(&[words, &["--manifests", &path]].concat()).stderr);
        assert!(said.contains("no address of node n1 is known, so it serves no node ports here"), "{words:?}: {said}");
    }
}

/// Counts of objects that were read are printed if they may surprise the user.
#[test]
fn files_that_say_nothing_are_no_secret() {
    let folder = Folder::new("ignored");
    let said = || text(&demo(&["render", "--manifests", folder.name()]).stderr);
    assert!(
        said().contains("read 0 Services, 0 EndpointSlices in 0 files; the files of a directory must end in .yaml, .yml or .json; its "),
        "{}",
        said()
    );
    let item = |kind: &str| format!("{{apiVersion: v1, kind: {kind}, metadata: {{name: x}}}}");
    let list = |items: &[String]| format!("apiVersion: v1\nkind: List\nitems: [{}]\n", items.join(", "));
    folder.put("list.yaml", &list(&[item("Endpoints"), item("Secret"), item("Endpoints")]));
    folder.put("empty.yaml", &list(&[]));
    let expected = "read 0 Services, 0 EndpointSlices in 2 files; ignored 2 of kind Endpoints, 1 of kind Secret; endpoints are \
                    read from EndpointSlices only";
    assert!(said().contains(expected), "{}", said());
    folder.put("list.yaml", &list(&[item("Service"), item("Secret")]));
    assert!(!said().contains("Secret"), "files for kubectl have other kinds too: {}", said());
}
