//! Two proxies in one network namespace, with different names, on a kernel in memory: each has the same objects as alone, and neither touches the
//! other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use proxier_core::config::{Config, InterfaceName, KernelNames, NamePrefix, TableName};
use proxier_core::engine::{Options, Reconciler};
use proxier_core::fake::FakeKernel;
use proxier_core::modes::cleanup::cleanup;
use proxier_core::modes::{Cleaned, Kind};
use proxier_core::plan::report::Report;
use proxier_core::ports::PortErrorKind;
use serde_json::json;

use crate::node::{Node, held, kernel, options_of, same, writes};

const NODE: &str = "192.0.2.10";

fn device(name: &str) -> InterfaceName {
    InterfaceName::new(name).unwrap()
}

/// kube-proxy's names, next to an agent.
fn ours() -> KernelNames {
    let mut names = KernelNames::default();
    names.other_devices.insert(device("agent0"));
    names
}

/// An agent's names.
fn agents() -> KernelNames {
    let mut names = KernelNames::default();
    (names.device, names.prefix) = (device("agent0"), NamePrefix::new("AGENT-").unwrap());
    names.table = TableName::new("agent").unwrap();
    names
}

fn config(names: KernelNames) -> Config {
    let mut config = Config::default();
    config.names = names;
    config
}

struct Proxy {
    node: Node,
    /// Number in the addresses and ports of its Services, different from the other proxy's.
    number: u16,
}

impl Proxy {
    fn new(kernel: &FakeKernel, names: KernelNames, mode: Kind, number: u16) -> Self {
        let mut options = options_of(mode);
        options.config = config(names);
        let mut proxy = Proxy { node: Node::on(kernel.clone(), options), number };
        proxy.serve(1, &["10.244.0.1", "10.244.0.2"]);
        proxy.serve(2, &["10.244.0.3"]);
        proxy
    }

    /// A Service with every kind of address.
    fn serve(&mut self, which: u16, endpoints: &[&str]) {
        let (number, name) = (self.number, format!("web-{}-{which}", self.number));
        let spec = json!({
            "type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000 + number * 10 + which,
            "clusterIP": format!("10.{number}.0.{which}"),
            "externalIPs": [format!("203.0.{number}.{which}")],
            "loadBalancerSourceRanges": ["192.0.2.0/24"],
            "ports": [
                {"name": "p", "port": 80, "nodePort": 30000 + number * 10 + which},
                {"name": "u", "port": 53, "protocol": "UDP", "nodePort": 31000 + number * 10 + which},
            ],
            "status": {"loadBalancer": {"ingress": [{"ip": format!("198.51.{number}.{which}")}]}},
        });
        let endpoints: Vec<String> = endpoints.iter().map(|address| format!("{address}@node-a")).collect();
        self.node.service(&name, spec);
        self.node.slice(&name, &endpoints.iter().map(String::as_str).collect::<Vec<_>>());
    }

    fn delete(&mut self, which: u16) {
        self.node.no_service(&format!("web-{}-{which}", self.number));
    }

    /// Does all that is due within a minute, which has a full pass in it; returns the last full one.
    fn settle(&mut self) -> Report {
        let reports = self.node.settle();
        assert!(reports.iter().all(|report| report.drift.is_empty()), "{reports:#?}");
        reports.into_iter().rfind(|report| report.full).unwrap()
    }

    fn clean(&mut self) -> Cleaned {
        let config = self.node.proxier.facts().config().clone();
        cleanup(&config, None, &mut self.node.kernel.ports())
    }
}

/// State of a kernel with one proxy alone.
fn alone(names: KernelNames, mode: Kind, number: u16) -> BTreeSet<String> {
    let kernel = kernel();
    Proxy::new(&kernel, names, mode, number).settle();
    let held = held(&kernel);
    assert!(held.len() >= 2, "{held:#?}");
    held
}

fn union(one: &BTreeSet<String>, two: &BTreeSet<String>) -> BTreeSet<String> {
    assert_eq!(one.intersection(two).collect::<Vec<_>>(), Vec::<&String>::new(), "they share nothing");
    one.union(two).cloned().collect()
}

fn each_has_what_it_would_have_alone(one_mode: Kind, other_mode: Kind) {
    let (one_alone, other_alone) = (alone(ours(), one_mode, 1), alone(agents(), other_mode, 2));
    for reversed in [false, true] {
        let kernel = kernel();
        let mut one = Proxy::new(&kernel, ours(), one_mode, 1);
        let mut other = Proxy::new(&kernel, agents(), other_mode, 2);
        if reversed {
            other.settle();
        }
        for _ in 0..2 {
            one.settle();
            other.settle();
        }
        same("", &kernel, &union(&one_alone, &other_alone));
        // No work is left, and each proxy sees the other's virtual servers as foreign.
        for _ in 0..2 {
            let before = writes(&kernel);
            let (first, second) = (one.settle(), other.settle());
            assert_eq!(writes(&kernel), before);
            if (one_mode, other_mode) == (Kind::Ipvs, Kind::Ipvs) {
                assert_eq!((first.foreign.len(), second.foreign.len()), (16, 16), "{:?}", first.foreign);
            }
        }

        // A change of one proxy's Services does not concern the other.
        one.serve(3, &["10.244.0.4"]);
        one.settle();
        one.delete(3);
        one.settle();
        other.settle();
        same("", &kernel, &union(&one_alone, &other_alone));

        // Another process of one proxy starts, while the other runs.
        let mut one = Proxy::new(&kernel, ours(), one_mode, 1);
        let before = writes(&kernel);
        one.settle();
        assert_eq!(writes(&kernel), before);

        // A cleanup of either proxy leaves the other's objects.
        let (first, second, left) =
            if reversed { (&mut one, &mut other, &other_alone) } else { (&mut other, &mut one, &one_alone) };
        let cleaned = first.clean();
        assert!(cleaned.is_done(), "{cleaned:#?}");
        same("", &kernel, left);
        let before = writes(&kernel);
        second.settle();
        assert_eq!(writes(&kernel), before);
        let cleaned = second.clean();
        assert!(cleaned.is_done(), "{cleaned:#?}");
        same("", &kernel, &BTreeSet::new());
    }
}

#[test]
fn of_ipvs_mode() {
    each_has_what_it_would_have_alone(Kind::Ipvs, Kind::Ipvs);
}

#[test]
fn of_nftables_mode() {
    each_has_what_it_would_have_alone(Kind::Nftables, Kind::Nftables);
}

#[test]
fn of_different_modes() {
    each_has_what_it_would_have_alone(Kind::Ipvs, Kind::Nftables);
    each_has_what_it_would_have_alone(Kind::Nftables, Kind::Ipvs);
}

/// A proxy with other names has the same objects but for the names.
#[test]
fn names_are_all_that_differs() {
    let renamed: BTreeSet<String> = alone(agents(), Kind::Ipvs, 1)
        .into_iter()
        .map(|line| line.replace("AGENT-", "KUBE-").replace("agent0", "kube-ipvs0"))
        .collect();
    // No two names are one after the kernel's cut.
    let cut = |line: &String| {
        let long = ["KUBE-6-LOAD-BALANCER-SOURCE-CI", "KUBE-6-NODE-PORT-LOCAL-SCTP-HA"];
        long.iter().any(|name| line.contains(name))
    };
    let usual = alone(ours(), Kind::Ipvs, 1);
    let without = |of: &BTreeSet<String>| of.iter().filter(|line| !cut(line)).cloned().collect::<BTreeSet<_>>();
    assert_eq!(without(&renamed), without(&usual));
    assert_eq!(renamed.len(), usual.len());
}

/// A device that is not a dummy device is never emptied, nor do its addresses mark virtual servers as this proxy's.
#[test]
fn a_device_of_another_kind_is_left_alone() {
    let mut kernel = kernel();
    let theirs = format!("-A -t {NODE}:7777 -s rr\n");
    kernel.ipvs().load(&theirs).unwrap();
    let mut names = KernelNames::default();
    names.device = device("eth0");
    let mut options = Options::default();
    options.config = config(names);
    let config = options.config.clone();
    let mut proxier = Reconciler::new("node-a", options, Duration::ZERO);
    proxier.start(Duration::ZERO);
    let before = kernel.state();
    let report = proxier.pass(&|| Duration::ZERO, &mut kernel.ports()).unwrap();
    assert!(report.has_failed());
    let [unread] = report.unread.as_slice() else { panic!("{report:#?}") };
    assert_eq!(unread.error.kind(), PortErrorKind::Invalid);
    assert!(unread.to_string().contains("eth0"), "{unread}");
    let cleaned = cleanup(&config, None, &mut kernel.ports());
    assert!(!cleaned.is_done() && cleaned.unread.len() == 1, "{cleaned:#?}");
    assert_eq!(kernel.state(), before);
    assert_eq!(writes(&kernel), 0);
}

/// Node ports are served on this host's addresses: not on those of the other proxy's Services.
#[test]
fn node_ports_are_not_served_on_the_other_proxys_addresses() {
    let kernel = kernel();
    let mut one = Proxy::new(&kernel, ours(), Kind::Ipvs, 1);
    let mut other = Proxy::new(&kernel, agents(), Kind::Ipvs, 2);
    one.settle();
    other.settle();
    let at: BTreeMap<IpAddr, usize> =
        kernel.ipvs().snapshot().unwrap().entries.iter().fold(BTreeMap::new(), |mut at, entry| {
            if let ipvs::VirtualServerKey::Address { addr, port, .. } = entry.virtual_server.server.key
                && port >= 30_000
            {
                *at.entry(addr).or_default() += 1;
            }
            at
        });
    // Two Services of each proxy, with a node port of TCP and one of UDP.
    assert_eq!(at, [(NODE.parse().unwrap(), 8)].into());
}

/// What a proxy serves, and what it reports as refused, after everything that is due within a minute.
fn served(proxy: &mut Proxy) -> (Vec<String>, Vec<String>) {
    let reports = proxy.node.settle();
    assert!(reports.iter().all(|report| report.drift.is_empty()), "{reports:#?}");
    let frontends = proxy.node.proxier.desired().frontends().map(|frontend| frontend.key.to_string()).collect();
    let refused = reports.last().into_iter().flat_map(|report| &report.refused);
    (frontends, refused.map(ToString::to_string).collect())
}

/// The proxy that serves an address keeps it, whichever starts again; the other takes it once it is free.
#[test]
fn address_stays_with_the_proxy_that_serves_it() {
    let shared = |proxy: &mut Proxy, last: u8| {
        proxy.node.service("shared", json!({"clusterIP": "10.9.9.9", "ports": [{"name": "p", "port": 80}]}));
        proxy.node.slice("shared", &[&format!("10.244.9.{last}@node-a")]);
    };
    let alone = |kernel: &FakeKernel, names: KernelNames, mode: Kind| {
        let mut options = options_of(mode);
        options.config = config(names);
        Proxy { node: Node::on(kernel.clone(), options), number: 0 }
    };
    let key = "TCP 10.9.9.9:80".to_owned();
    for (mode, by_agent, by_us) in
        [(Kind::Ipvs, "device agent0", "device kube-ipvs0"), (Kind::Nftables, "table agent", "table proxier")]
    {
        for agent_first in [true, false] {
            let kernel = kernel();
            let [first, second] = if agent_first { [agents(), ours()] } else { [ours(), agents()] };
            let by = if agent_first { by_agent } else { by_us };
            let mut one = alone(&kernel, first.clone(), mode);
            shared(&mut one, 1);
            assert_eq!(served(&mut one), (vec![key.clone()], vec![]), "{mode}");
            let before = held(&kernel);
            let mut two = alone(&kernel, second, mode);
            shared(&mut two, 2);
            let refused =
                format!("{key} of demo/shared is not served: another proxy ({by}) serves it, and is left alone");
            for _ in 0..3 {
                assert_eq!(served(&mut two), (vec![], vec![refused.clone()]), "{mode}");
                assert_eq!(served(&mut one), (vec![key.clone()], vec![]), "{mode}");
            }
            assert!(held(&kernel).is_superset(&before), "{mode}");
            // A new process of the first.
            let mut one = alone(&kernel, first, mode);
            shared(&mut one, 1);
            assert_eq!(served(&mut one), (vec![key.clone()], vec![]), "{mode}");
            one.node.no_service("shared");
            assert_eq!(served(&mut one), (vec![], vec![]), "{mode}");
            assert_eq!(served(&mut two), (vec![key.clone()], vec![]), "{mode}");
            assert_eq!(served(&mut one), (vec![], vec![]), "{mode}");
            shared(&mut one, 1);
            assert_eq!(served(&mut one).0, Vec::<String>::new(), "{mode}");
        }
    }
}
