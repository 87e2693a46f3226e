//! The status page in IPVS mode: counters as `ipvsadm` has them.
#![cfg(feature = "proxier-demo")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

mod program;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use program::{Folder, Running, ipvsadm, set_up, tool};
use serde_json::{Value, json};
use testkit::{Need, Netns, PROXY, kernel_test, veth_pair};

fn web(endpoints: &str) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec:
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ipFamilies: [IPv4]
  ports: [{{name: http, port: 80, protocol: TCP}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 8080, protocol: TCP}}]
endpoints: [{endpoints}]
"
    )
}

/// The data with Services: while a machine is busy, there are answers without.
fn data() -> Value {
    let begun = Instant::now();
    loop {
        let mut stream = TcpStream::connect("127.0.0.1:10249").unwrap();
        stream.write_all(b"GET /status.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let data: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        if data["services"].is_object() {
            return data;
        }
        assert!(begun.elapsed() < Duration::from_secs(120), "{data}");
    }
}

/// Weight, active connections and whether it leaves, of each endpoint.
fn endpoints() -> Value {
    let data = data();
    let endpoints = data["services"]["list"][0]["frontends"][0]["endpoints"].as_array().cloned().unwrap_or_default();
    let rows = endpoints.iter().map(|one| json!([one["address"], one["weight"], one["active"], one["leaving"]]));
    rows.collect()
}

#[test]
fn counters_are_those_of_ipvs_and_drains_show() {
    kernel_test(&[PROXY, &[Need::Veth]].concat(), || {
        set_up();
        let (node, pod) = (Netns::current().unwrap(), Netns::new().unwrap());
        veth_pair((&node, "pod0"), (&pod, "eth0")).unwrap();
        tool("ip address add 10.244.0.1/24 dev pod0");
        pod.add_address("10.244.0.5/24", "eth0").unwrap();
        let server = pod.run_in(|| TcpListener::bind("10.244.0.5:8080")).unwrap().unwrap();
        let folder = Folder::new("status-ipvs");
        folder.put("web.yaml", &web("{addresses: [10.244.0.5]}"));
        let manifests = folder.0.display().to_string();
        let running =
            Running::start(&["--manifests", &manifests, "--proxy-mode", "ipvs", "--status-page", "localhost"]);
        running.until("it is served", || ipvsadm().iter().any(|line| line.contains("-r 10.244.0.5:8080")));
        running.until("it shows", || endpoints() == json!([["10.244.0.5:8080", 1, 0, null]]));

        let to: SocketAddr = "10.96.0.10:80".parse().unwrap();
        let client = TcpStream::connect_timeout(&to, Duration::from_secs(10)).unwrap();
        let (_accepted, _) = server.accept().unwrap();
        running.until("the connection shows", || endpoints() == json!([["10.244.0.5:8080", 1, 1, null]]));
        let listed = tool("ipvsadm -Ln --stats --exact");
        let row = listed.lines().find(|line| line.contains("10.96.0.10:80")).unwrap();
        let connections: u64 = row.split_whitespace().nth(2).unwrap().parse().unwrap();
        let counters = &data()["services"]["list"][0]["frontends"][0]["counters"];
        assert_eq!(counters["connections"], connections, "{listed}");

        // The endpoint goes, and its connection stays for a while.
        folder.put("web.yaml", &web("{addresses: [10.244.0.6]}"));
        let leaving = json!([["10.244.0.6:8080", 1, 0, null], ["10.244.0.5:8080", 0, 1, true]]);
        running.until("it leaves", || endpoints() == leaving);
        let draining = data()["draining"].clone();
        assert_eq!((&draining["count"], &draining["list"][0]["realServer"]), (&json!(1), &json!("10.244.0.5:8080")));
        drop(client);
        assert!(running.end().success());
    });
}
