//! Foreign objects on a real kernel: virtual servers on our node ports, another proxy, and an address that goes and comes back under a connection.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipvs::model::ForwardingMethod;
use proxier_core::config::{Config, InterfaceName, KernelNames};
use proxier_core::kernel::{self, KernelPorts};
use proxier_core::net::{EndpointKey, Family, FrontendKey, Protocol};
use proxier_core::plan::report::Report;
use proxier_core::snapshot::{Balancing, FrontendSpec, ObjectKey, Roles};
use serde_json::json;
use testkit::witness::{Conversation, Transport, ask};
use testkit::{Netns, kernel_test, oracle};

use crate::traffic::NEEDS;
use crate::traffic::cluster::{Cluster, options};
use crate::traffic::net::{CLIENT, NODE, Net, POD_A, POD_PORT, POD_R, Pair, batch};
use crate::traffic::objects::{A, Vip, node_port};

const LIMIT: Duration = Duration::from_secs(20);

fn ipvsadm() -> Vec<String> {
    let mut lines: Vec<String> =
        oracle::ipvsadm_save().unwrap().lines().map(|line| line.trim_end().to_owned()).collect();
    lines.sort();
    lines
}

/// The lines of virtual servers at an address.
fn at(address: &str) -> Vec<String> {
    ipvsadm().into_iter().filter(|line| line.contains(&format!(" {address}:"))).collect()
}

/// Foreign virtual servers: with the numbers of node ports that are served, and at addresses of Services.
const FOREIGN: &str = "\
    -A -t 203.0.113.250:30010 -s wlc -p 300\n\
    -a -t 203.0.113.250:30010 -r 203.0.113.251:30010 -g -w 7\n\
    -A -u 203.0.113.250:30010 -s sh\n\
    -A -t [2001:db8:f::250]:30011 -s rr\n\
    -A -t 10.96.0.10:7 -s rr\n\
    -A -u 203.0.113.10:7 -s rr\n\
    -A -t [2001:db8:f::110]:7 -s rr\n";

#[track_caller]
fn foreign_is_there(report: Option<&Report>) {
    let all = ipvsadm();
    for line in FOREIGN.lines() {
        assert!(all.iter().any(|found| found == line), "{line} is gone, of {} lines", all.len());
    }
    if let Some(report) = report {
        let keys: Vec<String> = report.foreign.clone();
        let foreign = [
            "TCP 10.96.0.10:7",
            "TCP 203.0.113.250:30010",
            "TCP [2001:db8:f::110]:7",
            "TCP [2001:db8:f::250]:30011",
            "UDP 203.0.113.10:7",
            "UDP 203.0.113.250:30010",
        ];
        let mut sorted = keys.clone();
        sorted.sort();
        assert_eq!(sorted, foreign);
        assert!(report.drift.is_empty(), "{:?}", report.drift);
    }
}

#[track_caller]
fn full(cluster: &mut Cluster) -> Report {
    cluster.proxier.start(cluster.now());
    cluster.proxier.request_full(cluster.now());
    let report = cluster.settle().into_iter().find(|report| report.full).unwrap();
    assert!(report.is_done(), "{report:#?}");
    report
}

fn publish(cluster: &mut Cluster, numbers: &[u16]) {
    for number in numbers {
        cluster.publish(&format!("web-{number}"), *number, &json!({}), &[A]);
    }
}

/// A second address of the node, which it may lose.
const LATER: &str = "192.0.2.7";

#[test]
fn virtual_servers_of_others_on_node_ports_survive_everything() {
    kernel_test(&NEEDS, || {
        let _net = Net::new();
        let node = Netns::current().unwrap();
        batch(&node, &[format!("address add {LATER}/32 dev eth0")]);
        oracle::ipvsadm_restore(FOREIGN).unwrap();
        let mut cluster = Cluster::new(options(&json!({})));
        publish(&mut cluster, &[10, 11]);
        for _ in 0..3 {
            let report = full(&mut cluster);
            foreign_is_there(Some(&report));
        }
        assert_eq!(at(LATER).iter().filter(|line| line.starts_with("-A")).count(), 6, "{:#?}", ipvsadm());
        // A foreign virtual server appears while the proxy runs.
        oracle::ipvsadm_restore("-A -t 203.0.113.249:30011 -s rr\n").unwrap();
        for _ in 0..2 {
            full(&mut cluster);
            assert_eq!(at("203.0.113.249").len(), 1);
        }
        // Killed; the address goes and a Service is deleted meanwhile.
        drop(cluster);
        batch(&node, &[format!("address delete {LATER}/32 dev eth0")]);
        // Half of everything is lost; that is intended here.
        let mut how = options(&json!({}));
        how.mass_removal.share = 1.0;
        // Do not wait for the address.
        how.address_grace = Duration::ZERO;
        let mut cluster = Cluster::new(how);
        publish(&mut cluster, &[10]);
        for _ in 0..2 {
            full(&mut cluster);
            foreign_is_there(None);
            assert_eq!(at("203.0.113.249").len(), 1);
            assert_eq!(at(LATER), Vec::<String>::new(), "what was served at the address that is gone");
            assert_eq!(ipvsadm().iter().filter(|line| line.contains(&format!("{}:30011", NODE.v4))).count(), 0);
            assert!(!at(NODE.v4).is_empty());
        }
        // The last Service goes while it runs.
        cluster.proxier.delete_service(&ObjectKey::new("demo", "web-10"), cluster.now());
        full(&mut cluster);
        foreign_is_there(None);
        assert_eq!(at(NODE.v4), Vec::<String>::new());
        publish(&mut cluster, &[10]);
        full(&mut cluster);
        drop(cluster);
        let mut ports = KernelPorts::open(&kernel::Options::default()).unwrap();
        let cleaned = proxier_core::modes::ipvs::cleanup::cleanup(&Config::default(), &mut ports.ports());
        assert!(cleaned.is_done(), "{cleaned:#?}");
        foreign_is_there(None);
        assert_eq!(ipvsadm().len(), FOREIGN.lines().count() + 1, "{:#?}", ipvsadm());
        let sets = oracle::ipset_save().unwrap();
        assert!(!sets.contains("KUBE-"), "{sets}");
    });
}

/// kube-proxy does not record addresses: its virtual servers are removed at the addresses of this host.
#[test]
fn node_ports_of_kube_proxy_are_taken_over() {
    kernel_test(&NEEDS, || {
        let _net = Net::new();
        oracle::ipset_restore(
            "create KUBE-NODE-PORT-TCP bitmap:port range 0-65535\nadd KUBE-NODE-PORT-TCP 30010\nadd KUBE-NODE-PORT-TCP 30099\n",
        )
        .unwrap();
        oracle::ipvsadm_restore(&format!("{FOREIGN}-A -t {}:30099 -s rr\n-A -t {}:30010 -s rr\n", NODE.v4, NODE.v4))
            .unwrap();
        let mut cluster = Cluster::new(options(&json!({})));
        publish(&mut cluster, &[10]);
        for _ in 0..2 {
            let report = full(&mut cluster);
            foreign_is_there(Some(&report));
            assert!(!at(NODE.v4).iter().any(|line| line.contains(":30099")), "{:#?}", ipvsadm());
            assert!(at(NODE.v4).iter().any(|line| line.contains(":30010")));
        }
        let saved = oracle::ipset_save().unwrap();
        assert!(saved.contains(&format!("add KUBE-NODE-PORT-SERVED {},tcp:30010\n", NODE.v4)), "{saved}");
        assert!(!saved.contains(",tcp:30099") && !saved.contains('~'), "{saved}");
    });
}

/// A connection through a node port survives while its address goes and comes back, and ends when the address is gone for
/// good.
#[test]
fn a_connection_outlasts_an_address_that_flaps() {
    kernel_test(&NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let mut how = options(&json!({}));
        how.address_grace = Duration::from_secs(600);
        let mut cluster = Cluster::new(how);
        publish(&mut cluster, &[10]);
        full(&mut cluster);
        let to: SocketAddr = Vip::NodePort.of(10, Family::V4);
        assert_eq!(to.to_string(), format!("{}:{}", NODE.v4, node_port(10)));
        let client = Some(CLIENT.of(Family::V4));
        let open = || Conversation::open(Transport::Tcp, client, to, LIMIT).unwrap();
        let mut conversation = net.client.run_in(open).unwrap();
        assert_eq!(conversation.ask().unwrap().name, "a");
        for _ in 0..3 {
            for (command, there) in [("delete", false), ("add", true)] {
                batch(&net.node, &[format!("address {command} {}/24 dev eth0", NODE.v4)]);
                cluster.proxier.host_changed(cluster.now());
                cluster.settle();
                let listed = oracle::ip_json(&["address", "show", "dev", "eth0"]).unwrap();
                assert_eq!(listed.contains(&format!("\"{}\"", NODE.v4)), there, "{listed}");
                assert!(!at(NODE.v4).is_empty(), "{:#?}", ipvsadm());
            }
            assert_eq!(conversation.ask().unwrap().name, "a");
        }
        batch(&net.node, &[format!("address delete {}/24 dev eth0", NODE.v4)]);
        cluster.proxier.host_changed(cluster.now());
        cluster.settle();
        assert!(!at(NODE.v4).is_empty());
        cluster.pass_in(Duration::from_secs(601)).unwrap();
        assert_eq!(at(NODE.v4), Vec::<String>::new());
    });
}

/// Frontends of an agent, without Kubernetes objects: clients reach the endpoints, and nothing is left when they go.
#[test]
fn an_agents_own_frontends_are_served() {
    kernel_test(&NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let mut cluster = Cluster::new(options(&json!({})));
        let agent = ObjectKey::new("agent", "web");
        let pod = |pair: Pair, family| EndpointKey::new(pair.of(family), POD_PORT);
        let specs = |pods: &[Pair]| -> Vec<FrontendSpec> {
            let of = |family| {
                let to = Vip::ExternalIp.of(10, family);
                let key = FrontendKey::new(Protocol::Tcp, to.ip(), to.port());
                let mut spec = FrontendSpec::new(key, pods.iter().map(|pair| pod(*pair, family)));
                spec.roles = Roles::EXTERNAL_IP;
                spec
            };
            Family::ALL.into_iter().map(of).collect()
        };
        cluster.proxier.upsert_frontends(&agent, specs(&[POD_A, POD_R]), cluster.now());
        full(&mut cluster);
        for family in Family::ALL {
            let to = Vip::ExternalIp.of(10, family);
            let from = Some(CLIENT.of(family));
            let ask = || ask(Transport::Tcp, from, to, LIMIT).unwrap().name;
            let names: BTreeSet<String> = net.client.run_in(|| (0..4).map(|_| ask()).collect()).unwrap();
            assert_eq!(names, ["a", "r"].map(str::to_owned).into(), "{to}");
        }
        cluster.proxier.upsert_frontends(&agent, specs(&[POD_R]), cluster.now());
        cluster.settle();
        let client = Some(CLIENT.of(Family::V4));
        let to = Vip::ExternalIp.of(10, Family::V4);
        for _ in 0..3 {
            assert_eq!(net.client.run_in(|| ask(Transport::Tcp, client, to, LIMIT)).unwrap().unwrap().name, "r");
        }
        cluster.proxier.delete_frontends(&agent, cluster.now());
        full(&mut cluster);
        assert_eq!(ipvsadm(), Vec::<String>::new());
        assert!(!oracle::ip_json(&["address", "show", "dev", "kube-ipvs0"]).unwrap().contains("203.0.113."));
    });
}

/// Names of sets, and lines of `iptables-save` with own chains.
fn sets_and_rules() -> Vec<String> {
    let mut lines: Vec<String> = oracle::ipset_save().unwrap().lines().map(str::to_owned).collect();
    for family in [oracle::Family::V4, oracle::Family::V6] {
        let saved = oracle::iptables_save(oracle::Backend::Nft, family).unwrap();
        lines.extend(saved.lines().filter(|line| line.contains("KUBE-")).map(str::to_owned));
    }
    lines
}

fn tracks_connections() -> bool {
    std::fs::read_to_string("/proc/sys/net/ipv4/vs/conntrack").unwrap().trim() == "1"
}

/// Endpoints that answer by themselves need no set, rule or sysctl. The first Frontend that is masqueraded brings them, and is reached.
#[test]
fn only_what_is_needed_is_there() {
    kernel_test(&NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let mut how = options(&json!({}));
        how.config.ipvs.only_what_is_needed = true;
        let mut cluster = Cluster::new(how);
        let spec = |number| {
            let to = Vip::ExternalIp.of(number, Family::V4);
            let endpoint = EndpointKey::new(POD_A.of(Family::V4), if number == 10 { to.port() } else { POD_PORT });
            let mut spec = FrontendSpec::new(FrontendKey::new(Protocol::Tcp, to.ip(), to.port()), [endpoint]);
            spec.roles = Roles::EXTERNAL_IP;
            spec
        };
        let mut direct = spec(10);
        let mut balancing = Balancing::default();
        balancing.forwarding = Some(ForwardingMethod::DirectRoute);
        direct.balancing = Some(Arc::new(balancing));
        cluster.proxier.upsert_frontends(&ObjectKey::new("agent", "direct"), vec![direct], cluster.now());
        for _ in 0..2 {
            full(&mut cluster);
            assert_eq!(ipvsadm().iter().filter(|line| line.contains(" -g ")).count(), 1, "{:#?}", ipvsadm());
            assert_eq!((sets_and_rules(), tracks_connections()), (vec![], false));
        }
        let web = ObjectKey::new("agent", "web");
        cluster.proxier.upsert_frontends(&web, vec![spec(20)], cluster.now());
        assert!(cluster.settle().iter().all(|report| !report.full));
        assert!(tracks_connections() && !sets_and_rules().is_empty());
        let (from, to) = (Some(CLIENT.of(Family::V4)), Vip::ExternalIp.of(20, Family::V4));
        assert_eq!(net.client.run_in(|| ask(Transport::Tcp, from, to, LIMIT)).unwrap().unwrap().name, "a");
        let report = full(&mut cluster);
        assert!(report.writes() == 0 && report.drift.is_empty(), "{report:#?}");
        cluster.proxier.delete_frontends(&web, cluster.now());
        cluster.settle();
        let rules = sets_and_rules().into_iter().filter(|line| !line.starts_with("create ")).collect::<Vec<_>>();
        assert_eq!(rules, Vec::<String>::new());
    });
}

/// Objects in the kernel with the names of a proxy, and its virtual servers of the Service with this number.
fn of_proxy(prefix: &str, device: &str, number: u16) -> Vec<String> {
    let mut lines: Vec<String> = oracle::ipset_save().unwrap().lines().map(str::to_owned).collect();
    for family in [oracle::Family::V4, oracle::Family::V6] {
        let saved = oracle::iptables_save(oracle::Backend::Nft, family).unwrap();
        lines.extend(saved.lines().map(|line| format!("{family:?} {line}")));
    }
    lines.retain(|line| line.contains(prefix));
    let places = Family::ALL.into_iter().flat_map(|family| Vip::ALL.map(|vip| format!(" {} ", vip.of(number, family))));
    let places: Vec<String> = places.collect();
    lines.extend(ipvsadm().into_iter().filter(|line| places.iter().any(|place| line.contains(place))));
    let bound = oracle::run("ip", &["-oneline", "address", "show", "dev", device], None);
    let bound = bound.map(|listed| listed.stdout).unwrap_or_default();
    lines.extend(bound.lines().filter_map(|line| line.split_whitespace().nth(3)).map(str::to_owned));
    lines
}

/// Two proxies with different names in one network namespace: clients reach the Services of both, and a cleanup of one leaves the other as it was.
#[test]
fn another_proxy_with_other_names_is_left_alone() {
    kernel_test(&NEEDS, || {
        let net = Net::new();
        let _pods = net.serve();
        let mut names = KernelNames::default();
        (names.device, names.prefix) = (InterfaceName::new("agent0").unwrap(), "AGENT-".parse().unwrap());
        let mut how = options(&json!({}));
        how.config.names.other_devices.insert(names.device.clone());
        let config = how.config.clone();
        let mut ours = Cluster::new(how);
        let mut how = options(&json!({}));
        how.config.names = names;
        let mut agents = Cluster::new(how);
        publish(&mut ours, &[10]);
        publish(&mut agents, &[20]);
        let is_reached = |number| {
            for (family, vip) in Family::ALL.into_iter().flat_map(|family| Vip::ALL.map(|vip| (family, vip))) {
                let (from, to) = (Some(CLIENT.of(family)), vip.of(number, family));
                let answer = net.client.run_in(|| ask(Transport::Tcp, from, to, LIMIT)).unwrap();
                assert_eq!(answer.unwrap_or_else(|error| panic!("{to}: {error}")).name, "a");
            }
        };
        full(&mut ours);
        full(&mut agents);
        let (first, second) = (of_proxy("KUBE-", "kube-ipvs0", 10), of_proxy("AGENT-", "agent0", 20));
        assert!(first.len() > 100 && first.len() == second.len(), "{first:#?}\n{second:#?}");
        for _ in 0..2 {
            assert_eq!((full(&mut ours).writes(), full(&mut agents).writes()), (0, 0));
        }
        is_reached(10);
        is_reached(20);
        drop(ours);
        let mut ports = KernelPorts::open(&kernel::Options::default()).unwrap();
        let cleaned = proxier_core::modes::ipvs::cleanup::cleanup(&config, &mut ports.ports());
        assert!(cleaned.is_done(), "{cleaned:#?}");
        assert_eq!(of_proxy("KUBE-", "kube-ipvs0", 10), Vec::<String>::new());
        assert_eq!(of_proxy("AGENT-", "agent0", 20), second);
        assert_eq!(full(&mut agents).writes(), 0);
        is_reached(20);
    });
}
