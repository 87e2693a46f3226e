//! Endpoints that answer clients by themselves, in each way that a Service can ask for: which address they see, and which way their answers take.

use std::time::Duration;

use testkit::witness::{Transport, Witness, ask};
use testkit::{Need, Netns, PROXY, kernel_test, veth_pair};

use crate::program::{Folder, demo, ipvsadm, ok, pair, set_up, text, tool};

const SERVICE: &str = "10.96.0.10:80";

/// A Service with these annotations, an external IP and one endpoint.
fn manifest(annotations: &str) -> String {
    let spec = "clusterIP: 10.96.0.10, clusterIPs: [10.96.0.10], externalIPs: [203.0.113.80], ports: [{name: http, port: 80, protocol: TCP}]";
    let ports = "{name: http, port: 80, protocol: TCP}";
    let all = pair("web", spec, ports, "{addresses: [10.244.9.5]}");
    all.replacen("name: web,", &format!("name: web, annotations: {{{annotations}}},"), 1)
}

/// One full sync with these manifests; returns its standard error.
fn once(manifests: &Folder) -> String {
    let done = demo(&["run", "--once", "--proxy-mode", "ipvs", "--no-fallback", "--manifests", manifests.name()]);
    ok(&done);
    text(&done.stderr)
}

const EXTERNAL: &str = "203.0.113.80:80";
/// Port at which the endpoint unwraps GUE.
const GUE: u16 = 6080;

/// ```text
///  client ── front ── the node ── back ── endpoint
///      └───────────── side ──────────────────┘
/// ```
///
/// The endpoint has the external address too. Its only way to the client is the link between the two, so that only
/// answers that do not pass the node arrive. When the node puts its own address in place of the client's, answers come
/// back to it.
struct Triangle {
    manifests: Folder,
    client: Netns,
    endpoint: Netns,
    _server: Witness,
}

impl Triangle {
    fn new() -> Self {
        set_up();
        for module in ["ipip", "ip_gre", "fou"] {
            tool(&format!("modprobe {module}"));
        }
        let (here, client, endpoint) = (Netns::current().unwrap(), Netns::new().unwrap(), Netns::new().unwrap());
        veth_pair((&here, "front"), (&client, "front")).unwrap();
        veth_pair((&here, "back"), (&endpoint, "back")).unwrap();
        veth_pair((&client, "side"), (&endpoint, "side")).unwrap();
        here.add_address("198.51.100.1/24", "front").unwrap();
        here.add_address("10.244.9.1/24", "back").unwrap();
        client.add_address("198.51.100.10/24", "front").unwrap();
        client.add_route("203.0.113.0/24", "198.51.100.1").unwrap();
        endpoint.add_address("10.244.9.5/24", "back").unwrap();
        endpoint.add_address("203.0.113.80/32", "lo").unwrap();
        for device in ["tunl0", "gre0"] {
            endpoint.ip(&["link", "set", device, "up"]).unwrap();
        }
        endpoint.run_in(|| tool(&format!("ip fou add port {GUE} gue"))).unwrap();
        endpoint.ip(&["route", "add", "198.51.100.10/32", "dev", "side"]).unwrap();
        // Packets come by one way and answers go by another.
        for (namespace, devices) in
            [(&client, &["all", "front", "side"][..]), (&endpoint, &["all", "back", "tunl0", "gre0"])]
        {
            for device in devices {
                namespace.write_sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "0").unwrap();
            }
        }
        let server = Witness::start(&endpoint, "endpoint", &[(Transport::Tcp, "0.0.0.0:80".parse().unwrap())]).unwrap();
        // The rule counts packets from the endpoint.
        tool("iptables -t raw -A PREROUTING -i back -p tcp");
        Triangle { manifests: Folder::new("triangle"), client, endpoint, _server: server }
    }

    fn once(&self, annotations: &str) -> String {
        self.manifests.put("web.yaml", &manifest(annotations));
        once(&self.manifests)
    }

    /// Number of packets that a device of the endpoint has unwrapped.
    fn unwrapped(&self, device: &str) -> u64 {
        let listed = self.endpoint.run_in(|| tool(&format!("ip -s link show {device}"))).unwrap();
        let mut lines = listed.lines().skip_while(|line| !line.trim_start().starts_with("RX:"));
        let numbers = lines.nth(1).unwrap_or_else(|| panic!("{listed}"));
        numbers.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// The address of the client that the endpoint sees, and how many packets of TCP came from the endpoint to the node meanwhile.
    fn ask(&self) -> (String, u64) {
        tool("iptables -t raw -Z PREROUTING");
        let limit = Duration::from_secs(20);
        let answer = self.client.run_in(|| ask(Transport::Tcp, None, EXTERNAL.parse().unwrap(), limit)).unwrap();
        let peer = answer.unwrap_or_else(|error| panic!("{error}\n{:#?}", ipvsadm())).peer.ip().to_string();
        let listed = tool("iptables -t raw -nvxL PREROUTING");
        let counted = listed.lines().find(|line| line.contains("back")).unwrap_or_else(|| panic!("{listed}"));
        (peer, counted.split_whitespace().next().unwrap().parse().unwrap())
    }
}

/// The options of the endpoint behind an address and port.
fn endpoint_of(server: &str) -> String {
    let all = ipvsadm();
    let line = all.iter().find_map(|line| line.strip_prefix(&format!("-a -t {server} -r 10.244.9.5:80 ")));
    line.unwrap_or_else(|| panic!("{all:#?}")).trim_end().to_owned()
}

/// GRE and GUE, which IPVS has since Linux 5.3.
#[test]
fn endpoints_unwrap_and_answer_clients_by_themselves() {
    kernel_test(&[PROXY, &[Need::Veth, Need::Kernel(5, 3)]].concat(), || {
        let net = Triangle::new();
        for (annotations, options, device) in [
            ("", "-m -w 1", None),
            ("proxier/forwarding: direct-route", "-g -w 1", None),
            ("proxier/forwarding: ipip", "-i -w 1", Some("tunl0")),
            ("proxier/forwarding: direct-route", "-g -w 1", None),
            ("kube-router.io/service.dsr: tunnel", "-i -w 1", Some("tunl0")),
            ("proxier/forwarding: gre", "-i -w 1 --tun-type gre", Some("gre0")),
            ("proxier/forwarding: 'gue:6080'", "-i -w 1 --tun-type gue --tun-port 6080", Some("tunl0")),
            ("", "-m -w 1", None),
        ] {
            let said = net.once(annotations);
            assert!(!said.contains("annotations"), "{said}");
            let external = endpoint_of(EXTERNAL);
            assert!(external.starts_with(options), "{annotations}: {external}");
            assert_eq!(endpoint_of(SERVICE), "-m -w 1", "{annotations}");
            let before = device.map(|device| net.unwrapped(device));
            let (peer, back) = net.ask();
            // Masqueraded, answers come back by the node.
            let expected = if annotations.is_empty() { "10.244.9.1" } else { "198.51.100.10" };
            assert_eq!((&*peer, back > 0), (expected, annotations.is_empty()), "{annotations}");
            assert!(
                device.map(|device| net.unwrapped(device)) > before || device.is_none(),
                "{annotations}: {device:?}"
            );
        }
        // The kernel refuses the broadcast address of a network of the node as an endpoint.
        net.manifests.put("web.yaml", &manifest("").replace("10.244.9.5", "10.244.9.255"));
        let done =
            demo(&["run", "--once", "--proxy-mode", "ipvs", "--no-fallback", "--manifests", net.manifests.name()]);
        assert!(done.status.code() == Some(1) && text(&done.stderr).contains("10.244.9.255"), "{}", text(&done.stderr));
        ok(&demo(&["cleanup"]));
    });
}
