//! `diff` between two modes: exit codes, words and data. That modes differ so is held to what packets do elsewhere.

use serde_json::Value;

use crate::program::{Folder, demo, text};

const SERVICES: &str = "apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {proxier/max-connections: '9'}}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ipFamilies: [IPv4]
  externalTrafficPolicy: Local
  loadBalancerSourceRanges: [198.51.100.0/24]
  ports: [{name: http, port: 80, protocol: TCP, targetPort: 8080, nodePort: 30080}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.5}]}}
---
apiVersion: v1
kind: Service
metadata: {name: plain, namespace: shop}
spec: {clusterIP: 10.96.0.11, clusterIPs: [10.96.0.11], ipFamilies: [IPv4], ports: [{name: http, port: 80, protocol: TCP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.2.5], nodeName: n2}, {addresses: [10.244.1.6], nodeName: n1}]
---
apiVersion: v1
kind: Node
metadata: {name: n1}
spec: {podCIDR: 10.244.1.0/24}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
";

fn run(more: &[&str]) -> (i32, String, String) {
    run_with(SERVICES, more)
}

fn run_with(services: &str, more: &[&str]) -> (i32, String, String) {
    let folder = Folder::new("diff");
    let path = folder.put("all.yaml", services).display().to_string();
    let common = ["diff", "--manifests", &path, "--hostname-override", "n1", "--cluster-cidr", "10.244.0.0/16"];
    let output = demo(&[&common, more].concat());
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_way_out_of_ipvs_can_be_read_before_it_is_walked() {
    let (code, said, _) = run(&["--from", "ipvs", "--to", "nftables"]);
    assert_eq!(code, 3, "{said}");
    // Pods and the node get all endpoints of a policy Local; clients outside fare as before.
    let node_port = "shop/web TCP 192.0.2.1:30080
  this node: gets 10.244.1.6:8080, which sees the client's address → gets 10.244.1.6:8080 or 10.244.2.5:8080, which sees this node's address
  a pod of this node: gets 10.244.1.6:8080, which sees the client's address → gets 10.244.1.6:8080 or 10.244.2.5:8080, which sees the client's address
";
    assert!(said.contains(node_port), "{said}");
    assert!(said.contains("proxier/max-connections] 9: only IPVS mode knows numbers of connections"), "{said}");
    assert!(said.contains("1 of 2 Services differ, from ipvs to nftables"), "{said}");
    assert!(said.contains("all: open connections end") && !said.contains("shop/plain"), "{said}");
    // The mode of the configuration, without --to.
    assert_eq!(run(&["--from", "ipvs", "--proxy-mode", "nftables"]).1, said);

    let (code, data, _) = run(&["--from", "ipvs", "--to", "nftables", "-o", "json"]);
    let data: Value = serde_json::from_str(&data).unwrap();
    assert_eq!(
        (code, &data["from"], &data["to"], &data["ofServices"]),
        (3, &"ipvs".into(), &"nftables".into(), &2.into())
    );
    let groups = data["services"][0]["groups"].as_array().unwrap();
    assert!(groups.iter().any(|group| group["frontends"][0] == "TCP 192.0.2.1:30080"), "{data}");
}

/// Many network plugins give addresses by themselves, and no Node has a network of pods.
#[test]
fn a_pod_is_a_client_without_a_network_of_the_node() {
    let services = SERVICES.replace("spec: {podCIDR: 10.244.1.0/24}\n", "");
    let (_, said, _) = run_with(&services, &["--from", "ipvs", "--to", "nftables"]);
    let pod = "a pod of this node: gets 10.244.1.6:8080, which sees the client's address → gets 10.244.1.6:8080 or 10.244.2.5:8080, which";
    assert!(said.contains(pod), "{said}");
}

/// Pods are told by the device that their packets come in by, which a process does not see. Their network need not be known.
#[test]
fn a_pod_comes_by_the_device_of_pods() {
    let here = "gets 10.244.1.6:8080, which sees";
    let all = "gets 10.244.1.6:8080 or 10.244.2.5:8080, which sees the client's address";
    for by in [
        ["--detect-local-mode", "InterfaceNamePrefix", "--pod-interface-name-prefix", "veth"],
        ["--detect-local-mode", "BridgeInterface", "--pod-bridge-interface", "cni0"],
    ] {
        for (from, to, expected) in [
            ("ipvs", "nftables", format!("a pod of this node: {here} the client's address → {all}")),
            ("nftables", "userspace", format!("a pod of this node: {all} → {here} this node's address")),
        ] {
            for services in [SERVICES, &SERVICES.replace("spec: {podCIDR: 10.244.1.0/24}\n", "")] {
                let (_, said, _) = run_with(services, &[&["--from", from, "--to", to], &by[..]].concat());
                let node_port = said.split("shop/web TCP 192.0.2.1:30080").nth(1).unwrap_or_default();
                assert!(node_port.contains(&expected), "{by:?} {said}");
            }
        }
    }
}

#[test]
fn modes_that_differ_for_no_service() {
    for (from, to, other_ports) in [
        ("nftables", "iptables", "are not refused any more: packets to them leave the node"),
        ("iptables", "nftables", "are refused; until now packets to them left the node"),
        ("ipvs", "ipvs", ""),
        ("userspace", "userspace", ""),
    ] {
        let (code, said, _) = run(&["--from", from, "--to", to]);
        assert_eq!(code, 0, "{said}");
        assert!(said.contains("0 of 2 Services differ"), "{said}");
        let line = said.lines().find_map(|line| line.strip_prefix("all: ports of a cluster IP that no Service has "));
        assert_eq!(line.unwrap_or_default(), other_ports, "{said}");
    }
}

/// A mode without policy differs for a Service that has any, unless the other mode refuses it too.
#[test]
fn policy_that_a_mode_ignores_is_a_difference() {
    let folder = Folder::new("diff-policy");
    let asked = "{proxier/max-connections: '9', proxier/drain-seconds: '30'}";
    let path = folder.put("all.yaml", &SERVICES.replace("{proxier/max-connections: '9'}", asked)).display().to_string();
    for to in ["iptables", "userspace"] {
        let output =
            demo(&["diff", "--manifests", &path, "--hostname-override", "n1", "--from", "nftables", "--to", to]);
        let said = text(&output.stdout);
        let ignored = said.lines().filter(|line| line.contains("ignored in this mode")).map(str::trim);
        let expected =
            "metadata.annotations[proxier/drain-seconds]: ignored in this mode; ipvs and nftables mode follow it";
        assert_eq!(ignored.collect::<Vec<_>>(), [expected], "{said}");
        assert_eq!(output.status.code(), Some(3), "{said}");
    }
}

#[test]
fn bad_input() {
    for (arguments, code, words) in [
        (&["--from", "eBPF"][..], 2, "invalid value 'eBPF' for '--from"),
        (&["--from", "ipvs", "--to", "kube-proxy"], 2, "invalid value 'kube-proxy' for '--to"),
        (&["--from", "ipvs", "--manifests", "/nonexistent"], 2, "/nonexistent: "),
    ] {
        let (found, _, said) = run(arguments);
        assert_eq!(found, code, "{said}");
        assert!(said.contains(words) && said.lines().count() == 1, "{said}");
    }
}
