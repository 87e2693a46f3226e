//! One node under one setting after the other: rules by iptables or an nf_tables table, addresses or routes, firewall
//! marks or none. Meanwhile the rule set is flushed, and processes die.
//!
//! The kernel's state after each change is as if the node had never known another setting, and a cleanup leaves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use iptables::{Backend, Family};
use ipvs::{Operation, Scheduler, VirtualServer, VirtualServerKey};
use proptest::prelude::*;
use proxier_core::config::{Binding, Config, LocalTraffic, RulesBy};
use proxier_core::engine::{Limits, Options, Reconciler};
use proxier_core::fake::FakeKernel;
use proxier_core::modes::Kind;
use proxier_core::modes::cleanup::cleanup;
use proxier_core::ports::RouteOwner;
use proxier_core::sketch::KernelState;

use super::objects::{self, Change, Objects, change};
use super::rules::our_rules;

/// Foreign virtual servers, with marks inside and outside of our range among them, and one in the neighbouring network of cluster IPs.
const THEIRS: &str = "-A -t 172.30.0.3:30000 -s rr\n-a -t 172.30.0.3:30000 -r 172.30.1.3:80 -m -w 1\n-A -f 3 -s sh\n-A -f 369098759 -s rr\n-a -f 369098759 -r 172.30.1.3:80 -m -w 1\n";

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Object(Change),
    Pass,
    Wait(u8),
    /// The process dies after this many writes.
    Crash(u8),
    /// The rule sets of nf_tables and of iptables are flushed.
    Flush,
    /// Another process starts with other settings, and comes to rest.
    Restart(Settings),
    CleanUp,
    /// The host gets another address, or loses it.
    Host(bool),
}

#[expect(clippy::struct_excessive_bools, reason = "each is one setting, and none excludes another")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) by_table: bool,
    pub(crate) by_routes: bool,
    pub(crate) has_networks: bool,
    pub(crate) splits: bool,
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let settings = any::<u8>().prop_map(|bits| Settings {
        by_table: !bits.is_multiple_of(4),
        by_routes: bits & 4 == 4,
        has_networks: bits & 8 == 8,
        splits: bits & 0x30 != 0,
    });
    let step = prop_oneof![
        25 => change().prop_map(Step::Object),
        10 => Just(Step::Pass),
        3 => (0_u8..100).prop_map(Step::Wait),
        3 => (0_u8..60).prop_map(Step::Crash),
        4 => Just(Step::Flush),
        6 => settings.prop_map(Step::Restart),
        1 => Just(Step::CleanUp),
        1 => any::<bool>().prop_map(Step::Host),
    ];
    proptest::collection::vec(step, 1..30)
}

fn config(settings: Settings) -> Config {
    let mut config = Config::default();
    config.ipvs.rules = if settings.by_table { RulesBy::Nftables } else { RulesBy::Iptables };
    config.ipvs.binding = if settings.by_routes { Binding::Routes } else { Binding::Addresses };
    if settings.has_networks {
        config.ipvs.service_cidrs = vec!["10.96.0.0/24".parse().unwrap(), "fd96::/112".parse().unwrap()];
    }
    config.ipvs.mark_split = settings.splits;
    config.local_traffic = LocalTraffic::ClusterCidrs(vec!["10.244.0.0/16".parse().unwrap()]);
    config
}

pub(crate) struct Node {
    kernel: FakeKernel,
    proxier: Reconciler,
    settings: Settings,
    /// Whether the host has another address.
    has_more: bool,
    now: Duration,
    objects: Objects,
    /// Address and port for which each mark was when the rule set was flushed.
    marks: BTreeMap<VirtualServerKey, String>,
    /// Own virtual servers that could not be recognised when a process began, or first read the kernel.
    orphans: BTreeSet<VirtualServerKey>,
    /// Whether the process has read the kernel: from then on it remembers its own objects.
    has_read: bool,
}

impl Node {
    pub(crate) fn new() -> Self {
        let kernel = FakeKernel::new();
        kernel.set_interface("eth0", &objects::host(1));
        kernel.ipvs().load(THEIRS).unwrap();
        let proxier = Reconciler::new("node-a", Options::default(), Duration::ZERO);
        let mut node = Node {
            kernel,
            proxier,
            settings: Settings::default(),
            has_more: false,
            now: Duration::ZERO,
            objects: Objects::default(),
            marks: BTreeMap::new(),
            orphans: BTreeSet::new(),
            has_read: false,
        };
        node.restart();
        node
    }

    pub(crate) fn take(&mut self, step: &Step) {
        match step {
            Step::Object(change) => self.objects.take(change, &mut self.proxier, self.now),
            Step::Pass => self.run(Duration::ZERO),
            Step::Wait(halves) => self.run(Duration::from_millis(500) * u32::from(*halves)),
            Step::Crash(writes) => self.kernel.crash_after((*writes).into()),
            Step::Flush => self.flush(),
            Step::Restart(settings) => {
                self.settings = *settings;
                self.restart();
                self.is_as_on_an_empty_host();
            }
            Step::CleanUp => {
                self.clean_up();
                self.restart();
            }
            Step::Host(has_more) => {
                self.has_more = *has_more;
                more_addresses(&self.kernel, self.has_more);
                self.proxier.host_changed(self.now);
            }
        }
        if self.kernel.has_crashed() {
            self.restart();
        }
    }

    fn process(&self) -> Reconciler {
        let mut options = Options::default();
        options.mode = Kind::Ipvs;
        options.config = config(self.settings);
        options.limits = Limits { min_interval: Duration::ZERO, max_interval: Duration::from_secs(600) };
        options.ipvs.drain.deadline = Some(Duration::from_secs(20));
        options.mass_removal.share = 1.0;
        let mut proxier = Reconciler::new("node-a", options, self.now);
        proxier.replace_objects(self.objects.services.values(), self.objects.slices.values(), self.now);
        proxier.start(self.now);
        proxier
    }

    fn restart(&mut self) {
        self.kernel.restart();
        self.orphans.extend(unrecognisable(&self.kernel, &self.marks));
        self.proxier = self.process();
        self.has_read = false;
    }

    fn flush(&mut self) {
        let tables = self.kernel.state().tables;
        for (name, text) in &tables {
            let (family, table) = name.split_once(' ').unwrap();
            let (family, of) = match family {
                "ip" => (nftables::Family::Ip, ipvs::model::Family::V4),
                _ => (nftables::Family::Ip6, ipvs::model::Family::V6),
            };
            for (place, mark) in recorded(text) {
                self.marks.insert(VirtualServerKey::fwmark(of, mark).unwrap(), place);
            }
            let mut transaction = nftables::Transaction::new();
            transaction.delete_table(&nftables::TableKey { family, name: table.parse().unwrap() });
            self.kernel.nftables().commit(&transaction).unwrap();
        }
        for family in Family::ALL {
            self.kernel.with_host(|host| host.flush(family, Backend::NfTables));
        }
    }

    /// Passes until none is due before this much time has passed, or the process has died.
    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        for passes in 0.. {
            let Some(at) = self.proxier.next_wake().filter(|at| *at <= end && !self.kernel.has_crashed()) else {
                break;
            };
            if !self.has_read {
                self.orphans.extend(unrecognisable(&self.kernel, &self.marks));
            }
            self.now = self.now.max(at);
            let now = self.now;
            self.proxier.pass(&|| now, &mut self.kernel.ports());
            self.has_read |= !self.kernel.has_crashed();
            assert_eq!(theirs(&self.kernel.state()), sorted(THEIRS.lines()));
            assert!(passes < 200, "it does not come to rest");
        }
        self.now = end;
    }

    fn settle(&mut self, times: u8) {
        for _ in 0..times {
            self.run(Duration::from_secs(60));
            self.proxier.request_full(self.now);
            self.run(Duration::ZERO);
        }
    }

    /// Checks the state after some time, and without objects of the other rule back end.
    fn is_as_on_an_empty_host(&mut self) {
        self.kernel.restart();
        self.settle(2);
        let cleaned = cleanup(&config(self.settings), Some(Kind::Ipvs), &mut self.kernel.ports());
        assert!(cleaned.is_done(), "{cleaned:#?}");
        self.settle(1);
        self.proxier.request_full(self.now);
        let now = self.now;
        let report = self.proxier.pass(&|| now, &mut self.kernel.ports()).unwrap();
        assert!(report.full && report.is_done() && report.writes() == 0 && report.draining == 0, "{report:#?}");
        let wanted = self.proxier.wanted().unwrap();
        self.orphans.retain(|key| !wanted.has_server(key));
        let foreign: BTreeSet<VirtualServerKey> = report.foreign.iter().map(|key| key.parse().unwrap()).collect();
        let unknown: Vec<_> = foreign.difference(&self.orphans).filter(|key| !is_theirs(key)).collect();
        assert!(unknown.is_empty(), "ours, and foreign: {unknown:?}");

        let mut fresh = Node { kernel: FakeKernel::new(), proxier: self.process(), ..Node::new() };
        (fresh.settings, fresh.now) = (self.settings, self.now);
        fresh.kernel.set_interface("eth0", &objects::host(1));
        more_addresses(&fresh.kernel, self.has_more);
        fresh.kernel.ipvs().load(THEIRS).unwrap();
        // The fresh proxy must not take the mark of a virtual server that nothing recognises.
        for key in self.orphans.iter().filter(|key| key.addr().is_none()) {
            let server = VirtualServer::new(*key, Scheduler::RoundRobin);
            fresh.kernel.ipvs().apply(&Operation::AddVirtualServer(server)).unwrap();
        }
        fresh.settle(1);
        assert_eq!(ours(&self.kernel.state(), &self.orphans), ours(&fresh.kernel.state(), &self.orphans));
    }

    pub(crate) fn settle_and_clean_up(&mut self) {
        self.restart();
        self.is_as_on_an_empty_host();
        self.clean_up();
    }

    fn clean_up(&mut self) {
        self.kernel.restart();
        self.orphans.extend(unrecognisable(&self.kernel, &self.marks));
        let cleaned = cleanup(&config(self.settings), None, &mut self.kernel.ports());
        assert!(cleaned.is_done(), "{cleaned:#?}");
        let state = self.kernel.state();
        assert_eq!(theirs(&state), sorted(THEIRS.lines()));
        assert_eq!(ours(&state, &self.orphans), Ours::default());
    }
}

fn more_addresses(kernel: &FakeKernel, has_more: bool) {
    let address: IpAddr = [192, 0, 2, 20].into();
    kernel.set_interface("eth1", if has_more { std::slice::from_ref(&address) } else { &[] });
}

fn is_theirs(key: &VirtualServerKey) -> bool {
    let text = key.to_string();
    ["FWM 3", "FWM 369098759", "TCP 172.30.0.3:30000"].contains(&&*text)
}

fn is_line_of_theirs(line: &str) -> bool {
    ["172.30.", "-f 3 ", "-f 369098759"].iter().any(|text| line.contains(text))
}

fn theirs(state: &KernelState) -> Vec<&str> {
    sorted(state.ipvs.lines().filter(|line| is_line_of_theirs(line)))
}

fn sorted<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut lines: Vec<&str> = lines.collect();
    lines.sort_unstable();
    lines
}

/// Places and marks in the text of a table.
fn recorded(table: &str) -> Vec<(String, u32)> {
    let Some((_, text)) = table.split_once("map split-mark {") else { return Vec::new() };
    let text = text.split_once("\n\t}").unwrap().0;
    let Some((_, text)) = text.split_once("elements = {") else { return Vec::new() };
    let elements = text.split('}').next().unwrap().split(',').filter_map(|element| element.split_once(" : "));
    let number = |text: &str| u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).unwrap();
    elements.map(|(place, mark)| (place.split_whitespace().collect::<Vec<_>>().join(" "), number(mark))).collect()
}

/// Whether an address is bound, to the dummy device or by routes.
fn is_bound(state: &KernelState, address: IpAddr) -> bool {
    let routes = state.routes.iter().filter(|(owner, _)| *owner == RouteOwner::Ipvs);
    let mut networks = routes.map(|(_, route)| route.network);
    let device = state.devices.get("kube-ipvs0");
    device.is_some_and(|device| device.contains(&address)) || networks.any(|network| network.contains(&address))
}

fn binds_something(state: &KernelState) -> bool {
    let has_route = state.routes.iter().any(|(owner, _)| *owner == RouteOwner::Ipvs);
    has_route || state.devices.get("kube-ipvs0").is_some_and(|device| !device.is_empty())
}

/// Own virtual servers that nothing in the kernel marks as such: not their address, no set and no table.
fn unrecognisable(kernel: &FakeKernel, marks: &BTreeMap<VirtualServerKey, String>) -> BTreeSet<VirtualServerKey> {
    let state = kernel.state();
    let snapshot = kernel.ipvs().snapshot().unwrap();
    let keys: BTreeSet<VirtualServerKey> =
        snapshot.entries.iter().map(|entry| entry.virtual_server.server.key).collect();
    let in_sets = |text: &str| state.sets.values().any(|(_, entries)| entries.contains(text));
    let in_tables = |text: &str| {
        let ends = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_digit());
        state.tables.values().any(|table| table.split(text).skip(1).any(ends))
    };
    let is_known = |key: &&VirtualServerKey| match **key {
        VirtualServerKey::Address { protocol, addr, port } => {
            let name = protocol.to_string().to_lowercase();
            is_bound(&state, addr)
                || in_sets(&format!("{addr},{name}:{port}"))
                || in_tables(&format!(" {addr} . {name} . {port}"))
        }
        VirtualServerKey::Fwmark { mark, .. } => {
            let is_recorded =
                state.tables.values().any(|table| recorded(table).iter().any(|(_, of)| *of == mark.get()));
            let place = marks.get(*key).map_or("", String::as_str);
            let is_served = keys.iter().any(|key| match key {
                VirtualServerKey::Address { protocol, addr, port } => {
                    place == format!("{addr} . {} . {port}", protocol.to_string().to_lowercase())
                }
                VirtualServerKey::Fwmark { .. } => false,
            });
            let of_node_port = place.starts_with("0.0.0.0 ") || place.starts_with(":: ");
            is_recorded || (binds_something(&state) && (is_served || of_node_port))
        }
    };
    keys.iter().filter(|key| !is_theirs(key) && !is_known(key)).copied().collect()
}

/// All own objects.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ours {
    servers: Vec<String>,
    sets: BTreeMap<String, (String, BTreeSet<String>)>,
    tables: BTreeMap<String, String>,
    rules: Vec<BTreeMap<(String, String), Vec<String>>>,
    device: Option<BTreeSet<IpAddr>>,
    routes: Vec<String>,
}

fn ours(state: &KernelState, orphans: &BTreeSet<VirtualServerKey>) -> Ours {
    let options = orphans.iter().map(|key| match key {
        VirtualServerKey::Address { protocol, addr, port } => {
            let option = match protocol {
                ipvs::model::Protocol::Tcp => "-t",
                ipvs::model::Protocol::Udp => "-u",
                _ => "--sctp-service",
            };
            format!(" {option} {} ", std::net::SocketAddr::new(*addr, *port))
        }
        VirtualServerKey::Fwmark { mark, .. } => format!(" -f {mark} "),
    });
    let options: Vec<String> = options.collect();
    let is_ours =
        |line: &&str| !is_line_of_theirs(line) && !options.iter().any(|option| line.contains(option.as_str()));
    let all = Family::ALL
        .map(|family| state.rules.get(&(family, Backend::NfTables)).map(|text| our_rules(text)).unwrap_or_default());
    Ours {
        servers: state.ipvs.lines().filter(is_ours).map(str::to_owned).collect(),
        sets: state.sets.clone(),
        tables: state.tables.clone(),
        rules: all.into_iter().filter(|chains| !chains.is_empty()).collect(),
        device: state.devices.get("kube-ipvs0").map(|device| device.iter().copied().collect()),
        routes: state.routes.iter().map(|(_, route)| route.to_string()).collect(),
    }
}
