//! A cold start with thousands of Services on a real kernel: cluster DNS answers long before the rest. `PROXIER_START_SERVICES=10000` takes more
//! Services, and then a tenth of the time has to be enough. And what the log says of passes.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use testkit::traffic::{NameServer, ask_udp, connect_and_ask};
use testkit::{Need, Netns, PROXY, kernel_test};

use crate::program::world::web;
use crate::program::{Folder, Running, command, demo, ipvsadm, ok, set_up, status_of, tool};

/// Default number of Services in addition to the first ones; `PROXIER_START_SERVICES` changes it.
const SERVICES: u16 = 3000;
const DNS: &str = "10.96.0.10:53";

fn services() -> u16 {
    std::env::var("PROXIER_START_SERVICES").map_or(SERVICES, |text| text.parse().unwrap())
}

fn address(number: u16) -> String {
    let [high, low] = number.to_be_bytes();
    format!("10.97.{high}.{low}")
}

fn service(namespace: &str, name: &str, address: &str, (port, protocol, target): (u16, &str, u16)) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{clusterIP: {address}, clusterIPs: [{address}], ports: [{{name: p, port: {port}, protocol: {protocol}}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: {namespace}, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: p, port: {target}, protocol: {protocol}}}]
endpoints: [{{addresses: [10.244.0.5]}}]
---
"
    )
}

/// Time of the first answer; the address is not served before.
fn first_answer(ask: impl Fn() -> std::io::Result<String> + Send + 'static) -> thread::JoinHandle<Instant> {
    thread::spawn(move || {
        let end = Instant::now() + Duration::from_secs(300);
        while ask().is_err() {
            assert!(Instant::now() < end, "nobody answers");
            thread::sleep(Duration::from_millis(10));
        }
        Instant::now()
    })
}

/// The milliseconds in the line of the log that has these words.
fn milliseconds(log: &str, words: &str) -> f64 {
    took(log.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("{words}: {log}")))
}

/// The milliseconds at the end of a line.
fn took(line: &str) -> f64 {
    line.trim_end().strip_suffix(" ms").unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}

/// By default only the first pass gets a line: a busy cluster has many changes a second.
#[test]
fn changes_get_no_line_in_the_log() {
    kernel_test(&[Need::Root, Need::Veth, Need::Nftables], || {
        set_up();
        let folder = Folder::new("quiet");
        let put = |number: u16| {
            let (name, address) = (format!("web-{number}"), address(number));
            folder.put(&format!("{name}.yaml"), &service("demo", &name, &address, (80, "TCP", 8080)));
            address
        };
        put(0);
        let running = Running::start(&["--proxy-mode", "nftables", "--manifests", &folder.0.display().to_string()]);
        running.until_logged("full pass: ");
        for number in 1..=20 {
            let address = put(number);
            running.until("the change", || tool("nft list table ip proxier").contains(&address));
        }
        let log = running.log();
        assert_eq!(log.matches("full pass: ").count(), 1, "{log}");
        // A pass that took a second gets a line too, on a machine that is busy.
        let of_changes = log.lines().filter(|line| line.contains(" pass: ") && !line.contains("full pass: "));
        assert_eq!(of_changes.filter(|line| took(line) < 1000.0).count(), 0, "{log}");
        assert!(log.lines().count() < 20, "fewer lines than changes: {log}");
        assert!(running.end().success());
    });
}

#[test]
fn dns_answers_long_before_the_rest() {
    kernel_test(PROXY, || {
        set_up();
        let services = services();
        tool("ip address add 10.244.0.5/32 dev lo");
        // Packets to an address that is not served are answered at once by this route.
        tool("ip route add unreachable 10.96.0.0/15");
        let here = Netns::current().unwrap();
        let at = |port| SocketAddr::new([10, 244, 0, 5].into(), port);
        let _servers =
            [NameServer::udp(&here, at(5353), "dns").unwrap(), NameServer::tcp(&here, at(8080), "web").unwrap()];
        let folder = Folder::new("start");
        let mut manifests = String::new();
        for number in 0..services {
            let one = service("demo", &format!("web-{number}"), &address(number), (80, "TCP", 8080));
            manifests.write_str(&one).unwrap();
        }
        manifests += &service("kube-system", "kube-dns", "10.96.0.10", (53, "UDP", 5353));
        manifests += &service("default", "kubernetes", "10.96.0.1", (443, "TCP", 8080));
        folder.put("all.yaml", &manifests);

        let dns = first_answer(|| ask_udp(DNS.parse().unwrap()));
        let last = format!("{}:80", address(services - 1)).parse().unwrap();
        let web = first_answer(move || connect_and_ask(last));
        // Once it is ready, the last Service answers at once.
        let ready = thread::spawn(move || {
            let end = Instant::now() + Duration::from_secs(300);
            let mut before = Vec::new();
            loop {
                match status_of("10256/readyz") {
                    200 => return (before, connect_and_ask(last)),
                    0 => {} // Nobody listens yet.
                    code => before.push(code),
                }
                assert!(Instant::now() < end, "never ready: {before:?}");
                thread::sleep(Duration::from_millis(10));
            }
        });
        let folder = folder.0.display().to_string();
        let running = Running::start(&["--proxy-mode", "ipvs", "--no-fallback", "--manifests", &folder]);
        let dns = dns.join().unwrap();
        let codes = ["10256/healthz", "10256/readyz"].map(status_of);
        assert_eq!(codes, [200, 503], "cluster DNS answers, and the rest is not served yet");
        let web = web.join().unwrap();
        let (before, answer) = ready.join().unwrap();
        assert!(!before.is_empty() && before.iter().all(|code| *code == 503), "{before:?}");
        assert_eq!(answer.unwrap(), "web");
        running.until_logged("full pass:");
        let log = running.log();
        let all = milliseconds(&log, "full pass:");
        let first = milliseconds(&log, "default/kubernetes, kube-system/kube-dns served first");
        println!("first after {first} ms, everything after {all} ms; clients saw {:?} between", web - dns);
        let share = if services < 10_000 { 2.0 } else { 10.0 };
        assert!(first < all / share, "{first} ms of {all} ms");
        let between = web.checked_duration_since(dns).unwrap_or_default();
        assert!(between.as_secs_f64() * 1e3 > (all - first) / 2.0, "{between:?} of {all} ms");
        assert_eq!(ipvsadm().iter().filter(|line| line.starts_with("-A ")).count(), usize::from(services) + 2);
        drop(running);
        ok(&demo(&["cleanup"]));
    });
}

/// A pod sees its own `/proc/sys` read-only. If the node's `net` is mounted too, the proxy writes the settings itself,
/// including those of another mode after its configuration has changed.
#[test]
fn settings_are_written_where_a_pod_has_them_mounted() {
    const MOUNT: &str = "mkdir -p /host/proc/sys/net && mount --bind /proc/sys/net /host/proc/sys/net && mount --bind /proc/sys /proc/sys && \
                         mount -o remount,ro,bind /proc/sys && exec \"$0\" \"$@\"";
    const SETTINGS: [(&str, &str); 3] = [
        ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", "3600"),
        ("net/ipv4/ip_forward", "1"),
        ("net/ipv4/conf/all/route_localnet", "1"),
    ];
    kernel_test(&[Need::Root, Need::Mounts, Need::Nftables, Need::IptablesNft], || {
        let folder = Folder::new("mounted");
        folder.put("web.yaml", &web());
        let here = Netns::current().unwrap();
        here.write_sysctl("net/ipv4/ip_forward", "0").unwrap();
        let inner = command(&[
            "run",
            "--manifests",
            &folder.0.display().to_string(),
            "--proxy-mode",
            "iptables",
            "--conntrack-tcp-timeout-close-wait",
            "1h",
        ]);
        let mut pod = std::process::Command::new("unshare");
        pod.args(["--mount", "--propagation", "private", "sh", "-c", MOUNT]).arg(inner.get_program());
        let running = Running::spawn({
            pod.args(inner.get_args());
            pod
        });
        for (path, value) in SETTINGS {
            let is_set = || std::fs::read_to_string(format!("/proc/sys/{path}")).is_ok_and(|text| text.trim() == value);
            running.until(path, is_set);
        }
        assert!(!running.log().contains("cannot be written"), "{}", running.log());
        assert!(running.end().success());
        let _others_may_use_it = std::process::Command::new("rmdir").args(["-p", "/host/proc/sys/net"]).output();
    });
}
