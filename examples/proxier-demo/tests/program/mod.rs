//! Shared by the tests of the whole program: `proxier-demo` as a process, and the kernel's state as the field's own tools
//! print it.

pub(crate) mod page;
mod process;
pub(crate) mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

pub(crate) use process::{Folder, Running, text, tool};

/// The output of a run that has to succeed.
#[track_caller]
pub(crate) fn ok(output: &Output) -> String {
    assert!(output.status.success(), "{}\n{}\n{}", output.status, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// A Service of one port, 80, and its EndpointSlice with port 8080, as YAML; `endpoints`: content of the slice's list.
pub(crate) fn service(namespace: &str, name: &str, cluster_ip: &str, endpoints: &str) -> String {
    let (quoted, slice) = (serde_json::Value::from(name), cluster_ip.replace('.', "-"));
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {quoted}, namespace: {namespace}}}
spec:
  clusterIP: {cluster_ip}
  clusterIPs: [{cluster_ip}]
  ipFamilies: [IPv4]
  ports: [{{name: http, port: 80, protocol: TCP}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: s-{slice}, namespace: {namespace}, labels: {{kubernetes.io/service-name: {quoted}}}}}
addressType: IPv4
ports: [{{name: http, port: 8080, protocol: TCP}}]
endpoints: [{endpoints}]
---
"
    )
}

/// Port `http` of a slice: 8080 of TCP.
pub(crate) const HTTP: &str = "{name: http, port: 8080, protocol: TCP}";

/// A Service of the namespace `demo`, as YAML; `balancers`: content of the list of load balancers' addresses.
pub(crate) fn lone(name: &str, spec: &str, balancers: &str) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: demo}}
spec: {{{spec}}}
status: {{loadBalancer: {{ingress: [{balancers}]}}}}
---
"
    )
}

/// An EndpointSlice of a Service of `demo`, as YAML.
pub(crate) fn slice(service: &str, family: &str, ports: &str, endpoints: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {service}-{}, namespace: demo, labels: {{kubernetes.io/service-name: {service}}}}}
addressType: {family}
ports: [{ports}]
endpoints: [{endpoints}]
---
",
        if family == "IPv4" { 1 } else { 2 }
    )
}

/// A Service of namespace demo and its EndpointSlice, of IPv4, as YAML: its specification, and the slice's ports and endpoints.
pub(crate) fn pair(name: &str, spec: &str, ports: &str, endpoints: &str) -> String {
    lone(name, &format!("ipFamilies: [IPv4], {spec}"), "") + &slice(name, "IPv4", ports, endpoints)
}

/// As [`pair`]: port 80 of TCP (`http`), a node port, and these addresses of endpoints, with port 8080.
pub(crate) fn with_node_port(name: &str, cluster_ip: &str, node_port: u16, endpoints: &[&str]) -> String {
    let port = format!("{{name: http, port: 80, protocol: TCP, targetPort: 8080, nodePort: {node_port}}}");
    let spec = format!("type: NodePort, clusterIP: {cluster_ip}, clusterIPs: [{cluster_ip}], ports: [{port}]");
    let endpoints: Vec<String> = endpoints.iter().map(|address| format!("{{addresses: [{address}]}}")).collect();
    pair(name, &spec, HTTP, &endpoints.join(", "))
}

/// The lines of `ipvsadm -Sn`.
pub(crate) fn ipvsadm() -> BTreeSet<String> {
    tool("ipvsadm -Sn").lines().map(str::to_owned).collect()
}

/// Gives the node one address, on a device of a kind that the proxy does not need.
pub(crate) fn set_up() {
    tool("ip link add eth9 type veth peer name eth8");
    tool("ip addr add 192.0.2.1/24 dev eth9");
    for device in ["lo", "eth8", "eth9"] {
        tool(&format!("ip link set {device} up"));
    }
}

/// Own objects in the kernel.
pub(crate) fn changed() -> Vec<String> {
    let mut changed: Vec<String> = ipvsadm().into_iter().collect();
    for (line, of_ours) in [("ipset list -n", "KUBE-"), ("ip -o link", "kube-ipvs0"), ("iptables-save", "KUBE-")] {
        changed.extend(tool(line).lines().filter(|line| line.contains(of_ours)).map(str::to_owned));
    }
    changed
}

/// The page at this port and path of 127.0.0.1, which has to be served.
#[track_caller]
pub(crate) fn fetched(place: &str) -> String {
    let begun = Instant::now();
    let page = loop {
        match testkit::get(&format!("http://127.0.0.1:{place}")) {
            // At a start /healthz answers before the mode is known, and /metrics after.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && begun.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(50));
            }
            answer => break answer.unwrap(),
        }
    };
    assert_eq!(page.status, 200, "{place}: {}", page.body);
    page.body
}

/// The status of the page there; 0 where nothing answers.
pub(crate) fn status_of(place: &str) -> u16 {
    testkit::get(&format!("http://127.0.0.1:{place}")).map_or(0, |page| page.status)
}

/// The metrics of the program that runs here.
pub(crate) fn metrics() -> BTreeMap<String, f64> {
    page::read(&fetched("10249/metrics"))
}

/// Puts a configuration with these fields in place, and returns its path.
pub(crate) fn configuration(folder: &Folder, body: &str) -> String {
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    folder.put("config.yaml", &format!("{head}{body}")).display().to_string()
}

/// `proxier-demo` with these arguments, as the node `n1`. IPVS mode has rules of iptables and ipsets unless they say otherwise.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_proxier-demo"));
    command.args(arguments).args(["--hostname-override", "n1"]);
    if !arguments.contains(&"--ipvs-rules") {
        command.args(["--ipvs-rules", "iptables"]);
    }
    command.env_remove("KUBERNETES_SERVICE_HOST").env_remove("KUBECONFIG");
    command
}

/// The same in mounts of its own, by a script for the shell that ends with `exec "$0" "$@"`.
pub(crate) fn in_mounts(script: &str, arguments: &[&str]) -> Command {
    let (mut unshare, program) = (Command::new("unshare"), command(arguments));
    unshare.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    unshare.arg(program.get_program()).args(program.get_args());
    unshare.env_remove("KUBERNETES_SERVICE_HOST").env_remove("KUBECONFIG");
    unshare
}

/// These words and then the arguments.
pub(crate) fn joined<'a>(first: &[&'a str], arguments: &'a [String]) -> Vec<&'a str> {
    first.iter().copied().chain(arguments.iter().map(String::as_str)).collect()
}

/// The same, until it ends.
pub(crate) fn demo(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

impl Running {
    /// `proxier-demo run` with these arguments.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut run = vec!["run", "--healthz-bind-address", "127.0.0.1:10256"];
        run.extend(arguments);
        Self::spawn(command(&run))
    }
}
