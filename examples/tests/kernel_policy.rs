//! Policy by Service on a real kernel: what `ipvsadm` shows, and who answers whom.
#![cfg(feature = "proxier-demo")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests stop at the first surprise")]
#![allow(clippy::disallowed_methods, reason = "connections are real")]

mod program;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
use program::{Folder, demo, ipvsadm, ok, set_up, text, tool};
use testkit::traffic::NameServer;
use testkit::{Need, Netns, PROXY, kernel_test};

const SERVICE: &str = "10.96.0.10:80";

/// A Service with these annotations and two endpoints, which are addresses of this node.
fn manifest(annotations: &str) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: web, namespace: demo, annotations: {{{annotations}}}}}
spec:
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ipFamilies: [IPv4]
  ports: [{{name: http, port: 80, protocol: TCP, targetPort: 8080}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: demo, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 8080, protocol: TCP}}]
endpoints: [{{addresses: [10.244.0.5]}}, {{addresses: [10.244.0.6]}}]
"
    )
}

struct Node {
    manifests: Folder,
    _servers: Vec<NameServer>,
}

impl Node {
    fn new() -> Self {
        set_up();
        for address in ["10.244.0.5/32", "10.244.0.6/32", "198.51.100.1/32", "198.51.100.2/32", "198.51.101.1/32"] {
            tool(&format!("ip address add {address} dev lo"));
        }
        let here = Netns::current().unwrap();
        let server = |last: u8| {
            NameServer::tcp(&here, SocketAddr::new([10, 244, 0, last].into(), 8080), &last.to_string()).unwrap()
        };
        Node { manifests: Folder::new("policy"), _servers: [5, 6].map(server).into() }
    }

    fn once(&self, annotations: &str) -> String {
        self.manifests.put("web.yaml", &manifest(annotations));
        let folder = self.manifests.0.display().to_string();
        let done = demo(&["run", "--once", "--proxy-mode", "ipvs", "--no-fallback", "--manifests", &folder]);
        ok(&done);
        text(&done.stderr)
    }
}

/// The options of the one virtual server.
fn server() -> String {
    let all: BTreeSet<String> = ipvsadm();
    let mut servers = all.iter().filter_map(|line| line.strip_prefix("-A -t 10.96.0.10:80 "));
    let options = servers.next().unwrap_or_else(|| panic!("{all:#?}")).trim_end().to_owned();
    assert_eq!(all.iter().filter(|line| line.starts_with("-a ")).count(), 2, "{all:#?}");
    options
}

/// How many connections the virtual server has had since it was made.
fn connections() -> u64 {
    let stats = tool("ipvsadm -Ln --stats --exact");
    let line = stats.lines().find(|line| line.contains(SERVICE)).unwrap_or_else(|| panic!("{stats}"));
    line.split_whitespace().nth(2).unwrap().parse().unwrap()
}

/// Who answers a client of this address.
fn answers(client: &str) -> String {
    use std::io::{BufRead as _, BufReader, Write as _};
    let at = |address: IpAddr, port| SockaddrStorage::from(SocketAddr::new(address, port));
    let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    bind(fd, &at(client.parse().unwrap(), 0)).unwrap();
    let to: SocketAddr = SERVICE.parse().unwrap();
    connect(fd, &at(to.ip(), to.port())).unwrap();
    let mut stream = std::net::TcpStream::from(socket);
    stream.write_all(b"who\n").unwrap();
    let mut name = String::new();
    BufReader::new(stream).read_line(&mut name).unwrap();
    name.trim_end().to_owned()
}

#[test]
fn a_policy_is_changed_in_place() {
    let needs = [PROXY, &[Need::Scheduler("wlc"), Need::Scheduler("sh"), Need::Scheduler("mh")]].concat();
    kernel_test(&needs, || {
        let node = Node::new();
        node.once("");
        assert_eq!(server(), "-s rr");
        let both: BTreeSet<String> = (0..4).map(|_| answers("198.51.100.1")).collect();
        assert_eq!(both.len(), 2);
        // The kernel adds its counters up every two seconds (ip_vs_est.c).
        let start = Instant::now();
        while connections() < 4 {
            assert!(start.elapsed() < Duration::from_secs(30), "{} connections", connections());
            std::thread::sleep(Duration::from_millis(100));
        }
        let before = connections();
        for (annotations, options) in [
            ("proxier/scheduler: wlc", "-s wlc"),
            ("proxier/scheduler: sh, proxier/scheduler-flags: 'sh-port,sh-fallback'", "-s sh -b sh-fallback,sh-port"),
            ("kube-router.io/service.scheduler: mh", "-s mh -b mh-fallback,mh-port"),
            (
                "proxier/persistence-seconds: '120', proxier/persistence-prefix-ipv4: '24'",
                "-s rr -p 120 -M 255.255.255.0",
            ),
        ] {
            let said = node.once(annotations);
            assert_eq!(server(), options, "{annotations}");
            assert!(!said.contains("annotations"), "{said}");
            assert!(connections() >= before, "a virtual server that was deleted and added counts from 0");
        }
        // Clients of one network stay with one endpoint; rr would have them take turns.
        let stays: BTreeSet<String> =
            ["198.51.100.1", "198.51.100.2", "198.51.100.1", "198.51.100.2"].into_iter().map(answers).collect();
        assert_eq!(stays.len(), 1);
        let other = answers("198.51.101.1");
        assert!(!stays.contains(&other), "{other}");

        let said = node.once("proxier/scheduler: fastest");
        assert!(said.contains("metadata.annotations[proxier/scheduler] fastest: not a scheduler of IPVS"), "{said}");
        assert_eq!(server(), "-s rr");
        ok(&demo(&["cleanup"]));
    });
}
