//! A node with a pod, a Service for it, and clients that connect without a pause.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use testkit::traffic::{NameServer, connect_and_ask};
use testkit::{Netns, veth_pair};

use super::{Folder, Running, joined, tool, with_node_port};

/// The Service `demo/web` with one endpoint.
pub(crate) fn web() -> String {
    with_node_port("web", "10.96.0.10", 30080, &["10.244.0.5"])
}

pub(crate) const SERVICE: &str = "10.96.0.10:80";
pub(crate) const NODE_PORT: &str = "192.0.2.1:30080";

/// Rules of the kubelet and of a kube-proxy in iptables mode, by family; lines of one release begin with `#` and the release.
pub(crate) const RULES: [(&str, &str); 2] = [
    ("iptables", include_str!("../fixtures/kube-proxy/iptables.rules")),
    ("ip6tables", include_str!("../fixtures/kube-proxy/ip6tables.rules")),
];

/// Lines that only this mode of this proxy, or of kube-proxy, has in the kernel, by this back end of iptables.
pub(crate) fn held_by(mode: &str, back_end: &str) -> Vec<String> {
    let lines = |tool_line: &str, of: &[&str]| {
        let printed = tool(tool_line);
        let its = printed.lines().filter(|line| of.iter().any(|of| line.contains(of)));
        its.map(str::to_owned).collect::<Vec<_>>()
    };
    let rules = |of: &[&str]| -> Vec<String> {
        // An empty canary stays in mangle, as after kube-proxy's own cleanup.
        let saves = RULES.map(|(family, _)| ["nat", "filter"].map(|of| format!("{family}-{back_end}-save -t {of}")));
        saves.as_flattened().iter().flat_map(|save| lines(save, of)).collect()
    };
    match mode {
        "ipvs" => [
            lines("ipvsadm -Sn", &["-A "]),
            lines("ipset list -n", &["KUBE-"]),
            lines("ip -o link", &["kube-ipvs0"]),
            rules(&["KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-SOURCE-RANGES", "KUBE-IPVS"]),
        ]
        .concat(),
        "iptables" => rules(&[
            "KUBE-SVC-",
            "KUBE-SEP-",
            "KUBE-EXT-",
            "KUBE-FW-",
            "KUBE-NODEPORTS",
            "KUBE-EXTERNAL-SERVICES",
            "KUBE-PROXY-CANARY",
        ]),
        "nftables" => lines("nft list tables", &["proxier"]),
        _ => ["-4", "-6"].map(|family| lines(&format!("ip {family} route show table local proto 118"), &[""])).concat(),
    }
}

/// Lines of [`held_by`], by iptables-nft.
pub(crate) fn held(mode: &str) -> Vec<String> {
    held_by(mode, "nft")
}

/// This namespace as a node, a pod of it, and another host that knows the way to the Services' addresses.
pub(crate) struct Lan {
    pub(crate) node: Netns,
    pub(crate) client: Netns,
    pub(crate) pod: Netns,
}

impl Lan {
    pub(crate) fn new() -> Self {
        let (node, client, pod) = (Netns::current().unwrap(), Netns::new().unwrap(), Netns::new().unwrap());
        veth_pair((&node, "eth9"), (&client, "eth0")).unwrap();
        veth_pair((&node, "pod9"), (&pod, "eth0")).unwrap();
        for (of, address, device) in [
            (&node, "192.0.2.1/24", "eth9"),
            (&client, "192.0.2.2/24", "eth0"),
            (&node, "10.244.0.1/24", "pod9"),
            (&pod, "10.244.0.5/24", "eth0"),
        ] {
            of.add_address(address, device).unwrap();
            of.link_up(device).unwrap();
        }
        node.link_up("lo").unwrap();
        for network in ["10.96.0.0/12", "198.51.100.0/24"] {
            client.add_route(network, "192.0.2.1").unwrap();
        }
        pod.add_route("default", "10.244.0.1").unwrap();
        // A node has a default route: without it, its programs could not send to a Service's address.
        node.add_route("default", "192.0.2.2").unwrap();
        node.write_sysctl("net/ipv4/ip_forward", "1").unwrap();
        Lan { node, client, pod }
    }

    /// A server of the pod; it says "pod".
    pub(crate) fn serve(&self, port: u16) -> NameServer {
        NameServer::tcp(&self.pod, SocketAddr::from(([10, 244, 0, 5], port)), POD).unwrap()
    }
}

/// Answer of the pod's servers.
pub(crate) const POD: &str = "pod";

/// A node with a pod, and a client on another host.
pub(crate) struct World {
    pub(crate) client: Netns,
    pub(crate) pod: Netns,
    _server: NameServer,
    pub(crate) manifests: Folder,
}

impl World {
    pub(crate) fn new() -> Self {
        let lan = Lan::new();
        let server = lan.serve(8080);
        let manifests = Folder::with("web.yaml", &web());
        World { client: lan.client, pod: lan.pod, _server: server, manifests }
    }

    /// Arguments for a mode; `ipvs:nftables` stands for IPVS mode with these rules.
    pub(crate) fn arguments(&self, mode: &str) -> Vec<String> {
        let (mode, rules) = mode.split_once(':').map_or((mode, None), |(mode, rules)| (mode, Some(rules)));
        let rules = rules.into_iter().flat_map(|rules| ["--ipvs-rules", rules]);
        ["--manifests", self.manifests.name(), "--proxy-mode", mode, "--no-fallback", "--cluster-cidr", "10.244.0.0/16"]
            .into_iter()
            .chain(rules)
            .map(str::to_owned)
            .collect()
    }

    pub(crate) fn start(&self, mode: &str) -> Running {
        let running = Running::start(&joined(&[], &self.arguments(mode)));
        let mode = mode.split(':').next().unwrap();
        running.until_logged(&format!("serving in {mode} mode"));
        running
    }

    pub(crate) fn asks(&self, address: &str) -> bool {
        let to: SocketAddr = address.parse().unwrap();
        self.client.run_in(|| connect_and_ask(to).is_ok()).unwrap()
    }

    /// Whether a connection is accepted within a second; a refusal may be silence.
    pub(crate) fn connects(&self, address: &str) -> bool {
        let to: SocketAddr = address.parse().unwrap();
        self.client.run_in(|| TcpStream::connect_timeout(&to, Duration::from_secs(1)).is_ok()).unwrap()
    }
}

/// A client that connects again and again, and keeps the failures.
pub(crate) struct Client {
    stop: Arc<AtomicBool>,
    failed: Arc<Mutex<Vec<(Instant, String)>>>,
    thread: JoinHandle<u32>,
}

impl Client {
    pub(crate) fn start(from: &Netns, to: &'static str) -> Self {
        let (stop, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (until, failures) = (stop.clone(), failed.clone());
        let work = move || {
            let address: SocketAddr = to.parse().unwrap();
            let mut made = 0;
            while !until.load(Ordering::Relaxed) {
                let start = Instant::now();
                match connect_and_ask(address) {
                    Ok(name) if name == POD => made += 1,
                    other => failures.lock().unwrap().push((start, format!("{to}: {other:?}"))),
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            made
        };
        Client { stop, failed, thread: from.spawn(work).unwrap() }
    }

    /// Number of successful connections, and the failures outside of this time.
    pub(crate) fn end(self, since: Instant, but: Option<(Instant, Instant)>) -> (u32, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let made = self.thread.join().unwrap();
        let excused = |at: &Instant| but.is_some_and(|(from, until)| (from..=until).contains(at));
        let failed = self.failed.lock().unwrap();
        let told = |(at, error): &(Instant, String)| format!("at {:?}: {error}", at.saturating_duration_since(since));
        (made, failed.iter().filter(|(at, _)| !excused(at)).map(told).collect())
    }
}
