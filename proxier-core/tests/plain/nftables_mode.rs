//! nftables mode on a kernel in memory: changes, restarts, strangers, faults.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use iptables::fake::FakeHost;
use iptables::{Backend, ChainName, Iptables, TableName};
use netlink_batch::Errno;
use nftables::{
    BaseChain, Chain, ChainType, DataType, Family, FieldTypes, Hook, Priority, Set, SetFlags, Table, TableFlags,
    TableKey, Transaction,
};
use proxier_core::config::{Config, InterfaceName, LocalTraffic, NodePortAddresses};
use proxier_core::engine::Options;
use proxier_core::fake::{Call, FakeKernel, Fault, Flow};
use proxier_core::modes;
use proxier_core::net::EndpointKey;
use proxier_core::plan::step::{Action, Part};
use proxier_core::ports::{Listener, PortErrorKind};
use proxier_core::service::{Names, Packet};
use proxier_core::snapshot::{FrontendSpec, ObjectKey, ObjectKind, Roles, TrafficPolicy};
use serde_json::{Value, json};

use crate::node::{Node, add_table, commit, delete_table, kernel, options_of, prepared, steps};

fn options() -> Options {
    options_of(modes::Kind::Nftables)
}

fn new() -> Node {
    Node::on(kernel(), options())
}

impl Node {
    fn tables(&self) -> BTreeMap<String, String> {
        self.kernel.state().tables
    }

    fn v4(&self) -> String {
        self.tables()["ip proxier"].clone()
    }

    fn transactions(&self) -> u64 {
        self.kernel.writes().tables
    }
}

fn v4_table() -> TableKey {
    TableKey::new(Family::Ip, "proxier").unwrap()
}

/// A Service with an address of a load balancer, whose policy keeps connections on this node.
fn local(cluster_ip: &str) -> Value {
    json!({"type": "LoadBalancer", "clusterIP": cluster_ip, "externalTrafficPolicy": "Local",
        "status": {"loadBalancer": {"ingress": [{"ip": "198.18.0.1"}]}}})
}

/// A table's text by block (`map endpoints`, `chain internal-4`), each as its lines or elements.
fn blocks(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut blocks: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut block = String::new();
    for line in text.lines().map(str::trim).filter(|line| *line != "}") {
        if let Some(name) = line.strip_suffix(" {") {
            name.clone_into(&mut block);
            blocks.entry(block.clone()).or_default();
        } else if let Some(elements) = line.strip_prefix("elements = { ") {
            let elements = elements.trim_end_matches(" }").split(", ").map(str::to_owned);
            blocks.entry(block.clone()).or_default().extend(elements);
        } else {
            blocks.entry(block.clone()).or_default().push(line.to_owned());
        }
    }
    blocks
}

/// Whether a set or map has an element, or a chain a rule.
fn has(text: &str, block: &str, line: &str) -> bool {
    blocks(text).get(block).is_some_and(|lines| lines.iter().any(|of| of == line))
}

/// Takes out the elements that say which chain a Frontend's connections go to, as those of a map of verdicts.
fn take_services(blocks: &mut BTreeMap<String, Vec<String>>) -> Vec<String> {
    let mut all = blocks.remove("map services").unwrap_or_default();
    let is_of_chain = |block: &&String| block.starts_with("set internal-") || block.starts_with("set external-");
    for set in blocks.keys().filter(is_of_chain).cloned().collect::<Vec<_>>() {
        let chain = set.trim_start_matches("set ");
        let elements = blocks.remove(&set).unwrap_or_default().into_iter().filter(|line| !line.starts_with("type"));
        let elements: Vec<String> = elements.map(|key| format!("{key} : goto {chain}")).collect();
        assert!(!elements.is_empty(), "{set} is left over");
        let rule = format!("@{chain} goto {chain}");
        let rules = blocks.entry("chain services-by-port".to_owned()).or_default();
        let at = rules.iter().position(|line| line.ends_with(&rule));
        rules.remove(at.unwrap_or_else(|| panic!("no rule for {set}: {rules:?}")));
        all.extend(elements);
    }
    all
}

/// Bit in the number of a slot of the map of endpoints for endpoints on this node.
const LOCAL: u32 = 1 << 24;

/// Numbers of endpoints among which a chain draws, from rule to rule. Each must be one less than the one before: a draw that meets an endpoint is
/// fair, and so is the next one if it meets none.
fn moduli(rules: &[String]) -> Vec<u32> {
    let number = |rule: &String| rule.split_once("numgen random mod ")?.1.split_once(' ')?.0.parse::<u32>().ok();
    let moduli: Vec<u32> = rules.iter().filter_map(number).collect();
    assert!(moduli.windows(2).all(|pair| pair[0] == pair[1] + 1), "{rules:?}");
    moduli
}

/// Meaning of tables, for any slots of endpoints: destinations of connections to each Frontend, and everything else as
/// text. In the text the order counts only if it does for packets, as that of rules. Fails if a draw leads nowhere, an
/// endpoint cannot be drawn or not as often as another, or a chain or a set is missing or left over.
pub(crate) fn meaning(tables: &BTreeMap<String, String>) -> Vec<String> {
    let mut all = Vec::new();
    for (name, text) in tables {
        let mut blocks = blocks(text);
        let mut endpoints = BTreeMap::new();
        for element in blocks.remove("map endpoints").unwrap_or_default() {
            let Some((key, endpoint)) = element.split_once(" : ") else { continue };
            let (frontend, slot) = key.rsplit_once(" . ").unwrap();
            if let Ok(slot) = slot.parse::<u32>() {
                endpoints.insert((frontend.to_owned(), slot), endpoint.to_owned());
            }
        }
        let mut draws: BTreeMap<(String, bool), BTreeMap<u32, u32>> = BTreeMap::new();
        for element in blocks.remove("set draws").unwrap_or_default() {
            let Some((frontend, ticket)) = element.rsplit_once(" . ") else { continue };
            let Ok(ticket) = ticket.parse::<u32>() else { continue };
            let (is_local, slot, draw) = (ticket >> 31 == 1, ticket >> 16 & 0x7fff, ticket & 0xffff);
            let of = draws.entry((frontend.to_owned(), is_local)).or_default();
            assert_eq!(of.insert(draw, slot), None, "{frontend} has draw {draw} twice: {text}");
        }
        let mut needed = BTreeSet::new();
        for element in take_services(&mut blocks) {
            let Some((frontend, first)) = element.split_once(" : goto ") else { continue };
            needed.insert(format!("chain {first}"));
            assert!(blocks.contains_key(&format!("chain {first}")), "no chain {first} in {text}");
            for chain in first.split("-or-").filter(|chain| *chain != "none") {
                needed.insert(format!("chain {chain}"));
                assert!(blocks.contains_key(&format!("chain {chain}")), "no chain {chain} in {text}");
                let (kind, width) = chain.split_once("-of-").unwrap_or((chain, "0"));
                let width: u32 = width.parse().unwrap();
                let is_local = chain.contains("-local");
                let number = kind.split('-').find_map(|part| part.parse::<u32>().ok()).unwrap();
                let first = if is_local { LOCAL } else { 0 };
                let mut take = |slot: u32| endpoints.remove(&(frontend.to_owned(), slot + first));
                let mut to: Vec<String> = if width == 0 {
                    // All slots from the first one on, as many as one of the draws chooses among.
                    let to: Vec<String> = (0..number).map_while(&mut take).collect();
                    let all = u32::try_from(to.len()).unwrap();
                    assert!(moduli(&blocks[&format!("chain {chain}")]).contains(&all), "{chain}: {text}");
                    to
                } else {
                    let slots = (0..number).map(|draw| draws[&(frontend.to_owned(), is_local)][&draw]);
                    let endpoint = |slot: u32| {
                        assert!(slot < width, "slot {slot} of {chain} in {text}");
                        take(slot).unwrap_or_else(|| panic!("{frontend} has nothing in slot {slot}: {text}"))
                    };
                    slots.map(endpoint).collect()
                };
                if width > 0 {
                    assert_eq!(draws[&(frontend.to_owned(), is_local)].len(), to.len(), "{frontend}: {text}");
                    draws.remove(&(frontend.to_owned(), is_local));
                }
                let (_, secs) = kind.split_once("-sticky-").unwrap_or_default();
                for slot in 0..width {
                    let slot = format!("{slot}{}", if is_local { "-local" } else { "" });
                    for block in [format!("chain slot-{slot}-sticky-{secs}"), format!("set clients-{slot}")] {
                        assert!(blocks.contains_key(&block), "no {block} in {text}");
                        needed.insert(block);
                    }
                }
                to.sort();
                // The chain's number depends on earlier numbers of endpoints.
                let kind = kind.replacen(&format!("-{number}"), "", 1);
                all.push(format!("{name} {frontend} : {kind} {}", to.join(", ")));
            }
        }
        assert!(endpoints.is_empty() && draws.is_empty(), "{endpoints:?} {draws:?} are left over in {text}");
        let is_shared = |block: &str| {
            let kinds = ["chain pick-", "chain internal-", "chain external-", "chain none-or-"];
            block.contains("-sticky-") || block.contains("clients-") || kinds.iter().any(|kind| block.starts_with(kind))
        };
        for block in blocks.keys().filter(|block| is_shared(block)) {
            assert!(needed.contains(block), "{block} is left over in {text}");
        }
        // Shared blocks depend on the slots, and on earlier numbers of endpoints.
        blocks.retain(|block, _| !is_shared(block));
        for (block, lines) in blocks {
            for (place, line) in lines.into_iter().enumerate() {
                let place = if block.starts_with("chain") { place } else { 0 };
                all.push(format!("{name} {block} {place} {line}"));
            }
        }
    }
    all.sort();
    all
}

/// Lines of a table that one change takes away and adds, without those of one Frontend's endpoints.
fn other_lines(node: &mut Node, endpoints: &[&str]) -> Vec<String> {
    let lines = |node: &Node| -> BTreeSet<String> {
        let blocks = blocks(&node.v4()).into_iter();
        blocks.flat_map(|(block, lines)| lines.into_iter().map(move |line| format!("{block}: {line}"))).collect()
    };
    let before = lines(node);
    node.slice("s7", endpoints);
    let report = node.settles();
    assert!(!report.full);
    let after = lines(node);
    let differing = before.symmetric_difference(&after).cloned();
    differing.filter(|line| !line.starts_with("map endpoints: 10.96.0.7 ")).collect()
}

/// A change of a verdict or a rule has the kernel check the whole table.
#[test]
fn an_endpoint_more_or_less_changes_the_map_of_endpoints_alone() {
    let mut node = new();
    node.serve_many(9, &["10.244.0.1", "10.244.0.2", "10.244.0.3", "10.244.0.4"]);
    node.settles();
    let all: Vec<String> = (1..=20).map(|number| format!("10.244.0.{number}")).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    for count in [3, 1, 2, 4, 3] {
        assert_eq!(other_lines(&mut node, &all[..count]), [""; 0], "{count}");
    }
    // A rolling update of four with one more changes to another chain, once.
    let other = other_lines(&mut node, &all[..5]);
    assert!(other.iter().any(|line| line == "set internal-8: 10.96.0.7 . tcp . 80"), "{other:?}");
    for last in 6..=8 {
        assert_eq!(other_lines(&mut node, &[&all[..3], &all[last..=last]].concat()), [""; 0], "{last}");
        assert_eq!(other_lines(&mut node, &[&all[..4], &all[last..=last]].concat()), [""; 0], "{last}");
    }
    for count in [1, 8, 2, 7] {
        assert_eq!(other_lines(&mut node, &all[..count]), [""; 0], "{count}");
    }
    // Another process leaves the Service where it is, though a new one would be in another chain.
    other_lines(&mut node, &all[..4]);
    assert_eq!(blocks(&node.v4())["set internal-8"].last().unwrap(), "10.96.0.7 . tcp . 80");
    let mut next = Node::on(node.kernel.clone(), options());
    next.serve_many(9, &all[..4]);
    let report = next.settles();
    assert_eq!(report.writes(), 0, "{report:#?}");
    assert_eq!(next.tables(), node.tables());
    // Chains are those of a process whose Services have more endpoints: a draw among the most, then among one less, down to the fewest possible.
    other_lines(&mut next, &all[..11]);
    assert_eq!(moduli(&blocks(&next.v4())["chain internal-12"]), (5..=12).rev().collect::<Vec<_>>());
    assert_eq!(moduli(&blocks(&next.v4())["chain internal-4"]), [4, 3, 2, 1]);
    assert!(!next.v4().contains("internal-8"), "{}", next.v4());
    assert_eq!(other_lines(&mut next, &all[..5]), [""; 0]);
    let other = other_lines(&mut next, &all[..4]);
    assert!(other.iter().any(|line| line == "set internal-4: 10.96.0.7 . tcp . 80"), "{other:?}");
}

/// Each of the two lists of policy `Local` has a chain of its own, and keeps it.
#[test]
fn both_chains_of_policy_local_are_kept() {
    let mut node = new();
    node.service("s7", local("10.96.0.7"));
    let here = |count: u32| (1..=count).map(|number| format!("10.244.0.{number}@node-a")).collect::<Vec<_>>();
    let set = |node: &mut Node, local: u32, others: u32| {
        let all = (1..=others).map(|number| format!("10.244.1.{number}")).chain(here(local));
        let all: Vec<String> = all.collect();
        node.slice("s7", &all.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(node.settles().is_done());
        let services = blocks(&node.v4()).remove("map services").unwrap();
        services.into_iter().find(|line| line.starts_with("198.18.0.1 ")).unwrap()
    };
    let split = |all: u32, local: u32| format!("198.18.0.1 . tcp . 80 : goto pick-{all}-or-pick-{local}-local");
    assert_eq!(set(&mut node, 4, 0), split(4, 4));
    assert_eq!(set(&mut node, 5, 4), split(12, 8));
    assert_eq!(set(&mut node, 4, 1), split(12, 8));
    assert_eq!(set(&mut node, 4, 0), split(4, 8));
    let written = node.tables();
    let mut next = Node::on(node.kernel.clone(), options());
    next.service("s7", local("10.96.0.7"));
    assert_eq!(set(&mut next, 4, 0), split(4, 8));
    assert_eq!(next.tables(), written);
}

#[test]
fn a_full_pass_reads_nothing_when_nobody_changed_anything() {
    let mut node = new();
    node.service("web", json!({"clusterIP": "10.96.0.1"}));
    node.settles();
    node.kernel.fail(Fault::new(Call::TablesRead, PortErrorKind::Other).every());
    assert!(node.full().is_done());
    // A foreign table is a reason to look, and none to write.
    node.kernel.clear_faults();
    let before = node.transactions();
    add_table(&node.kernel, "ip stranger");
    let report = node.full();
    assert!(report.is_done() && report.drift.is_empty(), "{report:#?}");
    assert_eq!(node.transactions(), before);
    assert!(node.tables().contains_key("ip stranger"));
}

/// Flags, chains, sets and elements: the running process repairs and tells what another program changes, the next one
/// repairs it, and a cleanup removes the table as it is.
#[test]
fn what_others_change_is_repaired_and_told() {
    let table = v4_table();
    let start = |kernel: FakeKernel, is_serving: bool| {
        let mut node = Node::on(kernel, options());
        if is_serving {
            node.service("web", json!({"clusterIP": "10.96.0.1"}));
            node.slice("web", &["10.244.0.1", "10.244.0.2"]);
            node.service("dns", json!({"clusterIP": "10.96.0.2"}));
        }
        node.settles();
        node
    };
    let key = table.set("endpoints").unwrap();
    let state = |node: &Node| {
        let tables = node.tables().into_iter().map(|(name, text)| (name, blocks(&text)));
        // The text of a set lacks its size.
        (tables.collect::<BTreeMap<_, _>>(), node.kernel.nftables().get_set(&key).ok().map(|found| found.set))
    };
    let check = |is_serving: bool, told: &[&str], change: &dyn Fn(&FakeKernel)| {
        let mut node = start(kernel(), is_serving);
        let whole = state(&node);
        change(&node.kernel);
        assert_ne!(state(&node), whole, "{told:?}");
        let report = node.full();
        assert!(report.is_done() && !report.drift.is_empty(), "{told:?}: {report:#?}");
        let drift: Vec<String> = report.drift.iter().map(ToString::to_string).collect();
        assert!(told.iter().all(|told| drift.iter().any(|line| line.contains(told))), "{told:?}: {drift:?}");
        assert_eq!(state(&node), whole, "{told:?}");
        change(&node.kernel);
        let mut next = start(node.kernel.clone(), is_serving);
        assert_eq!(state(&next), whole, "{told:?}");
        change(&next.kernel);
        assert!(modes::cleanup::cleanup(&options().config, None, &mut next.kernel.ports()).is_done(), "{told:?}");
        assert!(next.tables().is_empty(), "{told:?}: {:?}", next.tables());
    };
    check(true, &["frontend TCP 10.96.0.1:80", "internal-4", "a-guest"], &|kernel| {
        let mut client = kernel.nftables();
        let services = client.get_set(&table.set("internal-4").unwrap()).unwrap().set;
        commit(kernel, |change| {
            change.delete_elements(&services, client.list_elements(&services).unwrap());
            change.flush_chain(&table.chain("internal-4").unwrap());
            change.add_chain(Chain::regular(table.chain("a-guest").unwrap()))
        });
    });
    check(true, &["made again"], &|kernel| {
        let mut dormant = Table::new(table.clone());
        dormant.flags = TableFlags::DORMANT;
        commit(kernel, |change| change.add_table(dormant));
    });
    check(true, &["+ table ip proxier"], &|kernel| delete_table(kernel, "ip proxier"));
    // An empty chain that looks useless.
    check(true, &["chains made-by-proxier-core"], &|kernel| {
        commit(kernel, |change| change.delete_chain(&table.chain("made-by-proxier-core").unwrap()));
    });
    // No change of a chain moves it to another hook.
    for moved in [&["postrouting"][..], &["postrouting", "prerouting"]] {
        check(true, &["made again"], &|kernel| {
            let chains = kernel.nftables().list_chains(&table).unwrap();
            commit(kernel, |change| {
                for chain in chains.into_iter().map(|found| found.chain) {
                    if let Some(mut base) = chain.base.filter(|_| moved.contains(&chain.key.name.as_str())) {
                        base.priority = Priority(7);
                        change.flush_chain(&chain.key).delete_chain(&chain.key).add_chain(Chain::base(chain.key, base));
                    }
                }
                change
            });
        });
    }
    // Without endpoints no rule uses their map, so another program can delete it, or make one of its name.
    let (_, ours) = state(&start(kernel(), false));
    let other = |change: fn(&mut Set)| {
        let mut set = ours.clone().unwrap();
        change(&mut set);
        Some(set)
    };
    for replacement in [
        None,
        other(|set| set.key_type = FieldTypes::of(&[DataType::MARK]).unwrap()),
        other(|set| set.data = None),
        other(|set| set.flags |= SetFlags::TIMEOUT),
        other(|set| set.size = Some(7)),
    ] {
        check(false, &["made again"], &|kernel| {
            commit(kernel, |change| {
                change.delete_set(&key);
                if let Some(set) = replacement.clone() {
                    change.create_set(set);
                }
                change
            });
        });
    }
}

/// The kernel's answer names the element, which is not the reason.
#[test]
fn a_table_that_vanished_is_made_again_after_the_next_change() {
    let mut node = new();
    node.service("web", json!({"clusterIP": "10.96.0.1"}));
    node.settles();
    delete_table(&node.kernel, "ip proxier");
    node.service("dns", json!({"clusterIP": "10.96.0.2"}));
    let report = node.pass();
    assert!(report.has_failed() && report.refused_by_kernel().next().is_none(), "{report:#?}");
    let report = node.pass();
    assert!(report.full && report.is_done(), "{report:#?}");
    let text = &node.tables()["ip proxier"];
    assert!(text.contains("10.96.0.1 . tcp . 80") && text.contains("10.96.0.2 . tcp . 80"), "{text}");
}

/// A family with a foreign table of our name is not served, the other one is.
#[test]
fn a_table_of_our_name_that_somebody_else_made_is_never_touched() {
    for (theirs, ours) in [("ip proxier", "ip6 proxier"), ("ip6 proxier", "ip proxier")] {
        let kernel = kernel();
        let table: TableKey = theirs.parse().unwrap();
        commit(&kernel, |make| {
            make.add_table(Table::new(table.clone())).add_chain(Chain::regular(table.chain("theirs").unwrap()))
        });
        let before = kernel.state().tables[theirs].clone();
        let mut node = Node::on(kernel, options());
        node.service(
            "web",
            json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"]}),
        );
        for number in 2..=4 {
            let report = node.pass();
            assert!(report.has_failed(), "{report:#?}");
            let said = report.unread.iter().map(ToString::to_string).collect::<String>();
            assert!(said.contains(theirs) && said.contains("rename it there"), "{said}");
            assert_eq!(node.tables()[theirs], before);
            // A changed Service is not served there, either.
            let (v4, v6) = (format!("10.96.0.{number}"), format!("fd00::{number}"));
            let address = if ours == "ip proxier" { "10.96.0." } else { "fd00::" };
            let last = format!("{address}{} . tcp . 80", number - 1);
            assert!(node.tables()[ours].contains(&last), "{:?}", node.tables());
            node.service(
                &format!("web-{number}"),
                json!({"clusterIP": v4, "clusterIPs": [v4, v6], "ipFamilies": ["IPv4", "IPv6"]}),
            );
        }
        // A cleanup does not touch the table, either.
        let cleaned = modes::cleanup::cleanup(&Config::default(), None, &mut node.kernel.ports());
        assert!(cleaned.removed() == 1 && cleaned.is_done(), "{cleaned:?}");
        assert_eq!(node.tables().into_iter().collect::<Vec<_>>(), [(theirs.to_owned(), before)]);
        // The family is served once the table has gone, or with another name.
        let mut options = options();
        options.config.names.table = proxier_core::config::TableName::new("kubernetes-services").unwrap();
        let mut other = Node::on(node.kernel.clone(), options);
        other.service("web", json!({"clusterIP": "10.96.0.1"}));
        other.settles();
        assert!(other.tables()["ip kubernetes-services"].contains("10.96.0.1"));
        delete_table(&node.kernel, theirs);
        let report = node.full();
        assert!(report.is_done(), "{report:#?}");
        assert!(node.tables()["ip proxier"].contains("10.96.0.4") && node.tables()["ip6 proxier"].contains("fd00::4"));
    }
}

/// A foreign table in a family that is not served does not matter.
#[test]
fn a_table_of_somebody_else_for_a_family_that_is_not_served() {
    let kernel = kernel();
    add_table(&kernel, "ip6 proxier");
    let mut options = options();
    options.config.families = proxier_core::config::Families::V4;
    let mut node = Node::on(kernel, options);
    node.service("web", json!({"clusterIP": "10.96.0.1"}));
    node.settles();
    assert_eq!(node.tables()["ip6 proxier"], "table ip6 proxier {\n}\n");
}

/// An agent may name endpoints for the policy `Local` that are not in the list for all clients.
#[test]
fn endpoints_of_this_node_alone_serve_where_the_policy_says_so() {
    for (policy, refused, dropped) in [(TrafficPolicy::Cluster, true, false), (TrafficPolicy::Local, false, false)] {
        let mut node = new();
        let mut spec = FrontendSpec::new("TCP 203.0.113.7:80".parse().unwrap(), []);
        spec.roles = Roles::EXTERNAL_IP;
        spec.policy = policy;
        spec.local = vec![EndpointKey::new([10, 244, 0, 2].into(), 8080)];
        node.proxier.upsert_frontends(&ObjectKey::new("agent", "web"), [spec], node.now);
        node.settles();
        let blocks = blocks(&node.v4());
        let has = |set: &str| blocks[set].iter().any(|of| of.starts_with("203.0.113.7"));
        assert_eq!((has("set rejected"), has("set dropped")), (refused, dropped), "{policy:?}: {blocks:?}");
    }
}

/// A Service that the kernel refuses keeps no other from being served, even if the kernel does not say which element it refuses.
#[test]
fn a_refused_frontend_of_many_is_left_out() {
    for is_silent in [false, true] {
        for refused in [&[1][..], &[100], &[37], &[36, 37, 38, 90]] {
            let mut node = new();
            node.kernel.nf_tables().set_silent(is_silent);
            for number in refused {
                // The refused bytes are address and protocol: elements that Services share have other keys.
                node.kernel.nf_tables().refuse_elements(Some((&[10, 96, 0, *number, 6, 0, 0, 0], Errno::EINVAL)));
            }
            node.serve_many(100, &["10.244.0.1", "10.244.0.2"]);
            let served = |node: &Node| -> BTreeSet<u8> {
                let services = take_services(&mut blocks(&node.v4())).join(" ");
                (1..=100).filter(|number| services.contains(&format!("10.96.0.{number} . tcp . 80 :"))).collect()
            };
            let report = node.pass();
            let failed: BTreeSet<String> = report.applied.failures.iter().map(|of| of.step.to_string()).collect();
            assert!(!report.has_failed() && failed.len() == refused.len(), "{is_silent} {refused:?}: {report:#?}");
            for number in refused {
                assert!(failed.iter().any(|step| step.contains(&format!("10.96.0.{number}:80"))), "{failed:?}");
            }
            let rest: BTreeSet<u8> = (1..=100).filter(|number| !refused.contains(number)).collect();
            assert_eq!(served(&node), rest, "{is_silent} {refused:?}");
            let added = steps(&report).get(&(Part::Frontend, Action::Add)).copied();
            assert_eq!(added, Some(u64::try_from(rest.len()).unwrap()), "{is_silent} {refused:?}");
            // The next try succeeds, since the kernel takes the elements.
            node.kernel.nf_tables().refuse_elements(None);
            node.full();
            assert_eq!(served(&node).len(), 100);
        }
    }
}

/// A large new table gets some elements first, without a chain that sees packets; a failure or an end in between leaves nothing that the next
/// pass or process does not mend.
#[test]
fn a_large_table_is_made_in_parts_that_no_packet_sees() {
    let endpoints: Vec<String> =
        (0..2000).map(|number| format!("10.244.{}.{}", number / 250, number % 250 + 1)).collect();
    let serve = |node: &mut Node| node.serve_many(17, &endpoints.iter().map(String::as_str).collect::<Vec<_>>());
    let mut undisturbed = new();
    serve(&mut undisturbed);
    undisturbed.settles();
    let commits = undisturbed.transactions();
    assert_eq!(commits, 4, "three of IPv4, one of IPv6");
    let whole = undisturbed.tables().remove("ip proxier");
    let mut partly = 0;
    for number in 0..commits {
        for ends in [false, true] {
            let mut node = new();
            serve(&mut node);
            if ends {
                node.kernel.crash_after(number);
            } else {
                let fault = Fault::new(Call::TablesCommit, PortErrorKind::Full).after_calls(number);
                node.kernel.fail(fault);
            }
            let report = node.pass();
            assert_eq!(report.has_failed(), ends || number > 1, "{number} {ends}: {report:#?}");
            let table = node.tables().remove("ip proxier");
            let sees_packets = table.as_ref().is_some_and(|text| text.contains("type nat hook"));
            assert!(!sees_packets || table == whole, "{number} {ends}");
            partly += u64::from(table.is_some() && !sees_packets);
            if ends {
                node = node.next(options());
                serve(&mut node);
            }
            node.settles();
            assert_eq!(node.tables(), undisturbed.tables(), "{number} {ends}");
        }
    }
    assert!(partly >= 3, "{partly}");
}

/// A change that the kernel refuses leaves the Frontend as it was.
#[test]
fn a_frontend_whose_change_is_refused_keeps_its_endpoints() {
    for (is_silent, is_full) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut node = new();
        node.kernel.nf_tables().set_silent(is_silent);
        node.serve_many(3, &["10.244.0.1", "10.244.0.2"]);
        node.settles();
        let of = |node: &Node, number: u8| -> Vec<String> {
            let own = format!("10.96.0.{number} ");
            blocks(&node.v4()).into_values().flatten().filter(|line| line.contains(&own)).collect()
        };
        let before = of(&node, 2);
        node.kernel.nf_tables().refuse_elements(Some((&[10, 96, 0, 2, 6, 0, 0, 0], Errno::EINVAL)));
        node.serve_many(3, &["10.244.0.3", "10.244.0.4"]);
        let report = if is_full { node.full() } else { node.pass() };
        assert!(report.applied.failures.iter().all(|of| of.step.to_string().contains("10.96.0.2:80")), "{report:#?}");
        assert_eq!(report.applied.failures.len(), 1, "{report:#?}");
        assert_eq!(of(&node, 2), before);
        assert!(of(&node, 1).concat().contains("10.244.0.3"));
        node.kernel.nf_tables().refuse_elements(None);
        node.settles();
        assert!(of(&node, 2).concat().contains("10.244.0.3"));
    }
}

/// A change of our table between reading and writing: the table is not written from the old reading, and read again at once.
#[test]
fn a_change_of_our_table_between_reading_and_writing() {
    let mut before = new();
    before.service("web", json!({"clusterIP": "10.96.0.1"}));
    before.settles();
    let mut node = Node::on(before.kernel.clone(), options());
    node.service("web", json!({"clusterIP": "10.96.0.1"}));
    node.service("dns", json!({"clusterIP": "10.96.0.2"}));
    let mut theirs = Transaction::new();
    theirs.add_chain(Chain::regular(v4_table().chain("theirs").unwrap()));
    node.kernel.commit_before(theirs);
    let report = node.pass();
    assert!(report.has_failed() && !node.v4().contains("10.96.0.2"), "{report:#?}");
    let then = node.now;
    node.settles();
    assert!(node.now <= then + Duration::from_secs(1), "{:?} after {then:?}", node.now);
    assert!(node.v4().contains("10.96.0.2 . tcp . 80") && !node.v4().contains("theirs"), "{}", node.v4());
}

/// While the safeguard holds anything back, a table that cannot be repaired is not recreated without it.
#[test]
fn a_table_that_has_to_be_made_again_waits_for_what_is_held_back() {
    let mut node = new();
    node.serve_many(20, &["10.244.0.1"]);
    node.settles();
    let chain = v4_table().chain("output-guard").unwrap();
    commit(&node.kernel, |change| {
        change.flush_chain(&chain).delete_chain(&chain);
        change.add_chain(Chain::base(chain, BaseChain::new(ChainType::Filter, Hook::Output, Priority(-200))))
    });
    let other = node.v4();
    let mut next = Node::on(node.kernel.clone(), options());
    for _ in 0..2 {
        let report = next.pass();
        assert!(report.stopped.is_some() && report.applied.failures.is_empty(), "{report:#?}");
        assert_eq!(next.v4(), other);
    }
    next.service("s3", json!({"clusterIP": "10.96.0.3"}));
    next.proxier.confirm_removal(next.now);
    next.settles();
    assert!(next.v4().contains("10.96.0.3 ") && !next.v4().contains("10.96.0.4 "), "{}", next.v4());
    assert!(!next.v4().contains("priority -200"), "{}", next.v4());
}

/// The elements of a map or set of IPv4.
fn elements(node: &Node, set: &str) -> Vec<String> {
    let mut elements = blocks(&node.v4()).remove(set).unwrap();
    elements.retain(|line| line.starts_with("10.96."));
    elements.sort();
    elements
}

/// A Service with its own time of affinity; returns its name.
fn sticky_for_a_time_of_its_own(node: &mut Node, number: u8) -> String {
    let time = json!({"clientIP": {"timeoutSeconds": 1000 + u16::from(number)}});
    let name = format!("s{number}");
    let of =
        json!({"clusterIP": format!("10.96.0.{number}"), "sessionAffinity": "ClientIP", "sessionAffinityConfig": time});
    node.service(&name, of);
    name
}

fn sticky() -> Value {
    json!({"clusterIP": "10.96.0.1", "sessionAffinity": "ClientIP"})
}

/// Weights cost elements, and times of their own a chain for each endpoint; the sets for clients, which take memory at once, are shared.
#[test]
fn weights_and_times_of_affinity_cost_few_chains() {
    let mut node = new();
    for number in 1..=40 {
        let name = sticky_for_a_time_of_its_own(&mut node, number);
        let metadata = json!({"namespace": "demo", "name": format!("{name}-1"), "labels": {"kubernetes.io/service-name": name},
            "annotations": {"proxier/weights": "10.244.0.1=65535, 10.244.0.2=1"}});
        node.take(json!({"metadata": metadata, "addressType": "IPv4", "ports": [{"name": "p", "port": 80}],
            "endpoints": [{"addresses": ["10.244.0.1"]}, {"addresses": ["10.244.0.2"]}]}));
    }
    node.settles();
    let blocks = blocks(&node.v4());
    let count = |part: &str| blocks.keys().filter(|block| block.contains(part)).count();
    assert_eq!((count("chain slot-"), count("-sticky-"), count("set clients-")), (80, 120, 2), "{:?}", blocks.keys());
    assert_eq!(elements(&node, "set draws").len(), 40 * 256);
}

/// What `trace` says about session affinity, and whether clients stay.
fn traced_affinity(node: &Node, address: &str) -> (Vec<String>, bool) {
    let packet = Packet::new([198, 51, 100, 9].into(), format!("TCP {address}:80").parse().unwrap());
    let traced = node.traced(&packet);
    let steps = traced.steps.into_iter().filter(|step| step.starts_with("Session affinity: clients do not stay"));
    (steps.collect(), traced.affinity_secs.is_some())
}

fn serve_endpoints(node: &mut Node, name: &str, count: usize) {
    let address = |number: usize| format!("10.244.{}.{}", number / 250, number % 250 + 1);
    let all: Vec<String> = (0..count).map(address).collect();
    node.slice(name, &all.iter().map(String::as_str).collect::<Vec<_>>());
}

/// A client is looked for in the slot of each endpoint: with thousands of them none is remembered, which is said.
#[test]
fn affinity_with_too_many_endpoints_is_refused() {
    let mut node = new();
    node.service("web", sticky());
    for (count, is_refused) in [(4096, false), (4097, true)] {
        serve_endpoints(&mut node, "web", count);
        let (_, report) = node.proxier.preview(node.now, &mut node.kernel.ports());
        assert!(report.limited.is_empty(), "{report:#?}");
        let rejections = node.proxier.rejections().map(ToString::to_string);
        let said: Vec<String> = rejections.filter(|line| line.contains("clients do not stay")).collect();
        let (steps, stay) = traced_affinity(&node, "10.96.0.1");
        assert_eq!(
            (said.len(), steps.len(), stay),
            (is_refused.into(), is_refused.into(), !is_refused),
            "{said:?} {steps:?}"
        );
    }
}

/// A node has room for this many affinity rules: later Services are served without affinity, which is reported, until a
/// full pass finds room.
#[test]
fn affinity_without_room_is_refused() {
    let mut node = new();
    for number in 1..=3 {
        let name = sticky_for_a_time_of_its_own(&mut node, number);
        serve_endpoints(&mut node, &name, 2100);
    }
    let (_, report) = node.proxier.preview(node.now, &mut node.kernel.ports());
    assert!(
        report.limited.len() == 1 && report.limited[0].starts_with("demo/s3:p: clients do not stay"),
        "{report:#?}"
    );
    for (address, refused) in [("10.96.0.1", 0), ("10.96.0.2", 0), ("10.96.0.3", 1)] {
        let (steps, stay) = traced_affinity(&node, address);
        assert_eq!((steps.len(), stay), (refused, refused == 0), "{address}: {steps:?}");
    }
    node.no_service("s1");
    let (_, report) = node.proxier.preview(node.now, &mut node.kernel.ports());
    assert!(report.limited.is_empty(), "{report:#?}");
    assert_eq!(traced_affinity(&node, "10.96.0.3"), (vec![], true));
}

/// Only differences are written: elements of the same Frontend that stay are not sent again.
#[test]
fn a_change_writes_no_element_that_stays() {
    let mut node = new();
    node.service("web", json!({"clusterIP": "10.96.0.7"}));
    node.slice("web", &["10.244.0.1", "10.244.0.2"]);
    node.settles();
    // 10.96.0.7 . tcp . 80 . 0, each field in whole words.
    node.kernel
        .nf_tables()
        .refuse_elements(Some((&[10, 96, 0, 7, 6, 0, 0, 0, 0, 80, 0, 0, 0, 0, 0, 0], Errno::EINVAL)));
    node.slice("web", &["10.244.0.1", "10.244.0.3"]);
    node.settles();
    assert_eq!(
        elements(&node, "map endpoints"),
        ["10.96.0.7 . tcp . 80 . 0 : 10.244.0.1 . 8080", "10.96.0.7 . tcp . 80 . 1 : 10.244.0.3 . 8080"]
    );
}

#[test]
fn a_plan_is_told_step_by_step() {
    let mut node = new();
    node.settles();
    let told = |node: &mut Node| -> Vec<String> {
        let (plan, _) = node.proxier.preview(node.now, &mut node.kernel.ports());
        let names = Names::new(node.proxier.store(), node.proxier.desired());
        plan.steps(&names).map(|step| step.to_string()).collect()
    };
    assert_eq!(told(&mut node), [""; 0]);
    node.service("web", json!({"clusterIP": "10.96.0.1"}));
    node.slice("web", &["10.244.0.1"]);
    let steps = told(&mut node);
    assert!(steps.len() == 2 && steps[0].contains("table ip proxier chains internal-4"), "{steps:?}");
    assert!(steps[1].contains("frontend TCP 10.96.0.1:80 1 endpoint") && steps[1].contains("demo/web"), "{steps:?}");
    let spec = json!({"clusterIP": "10.96.0.2", "ports": [{"name": "u", "port": 53, "protocol": "UDP"}]});
    node.service("dns", spec);
    node.slice("dns", &["10.244.0.3"]);
    assert_eq!(told(&mut node).len(), 3, "nobody has sent to it");
    // Clients that sent to the address before are to be led to the endpoint.
    let [client, dns] = ["10.244.9.9:4000", "10.96.0.2:53"].map(|text| text.parse().unwrap());
    node.kernel.add_flow(Flow::udp(client, dns, dns));
    let steps = told(&mut node);
    assert!(steps.len() == 4 && steps[3].contains("flows UDP to 1 addresses and ports"), "{steps:?}");
    node.kernel.fail(Fault::new(Call::ConntrackFindUdp, PortErrorKind::Busy));
    let (_, report) = node.proxier.preview(node.now, &mut node.kernel.ports());
    assert!(
        report.unread.len() == 1 && report.unread[0].to_string().contains("tracked UDP connections"),
        "{report:#?}"
    );
    // Nothing can be forgotten on such a kernel, as in a pass.
    node.kernel.fail(Fault::new(Call::ConntrackFindUdp, PortErrorKind::Unavailable));
    assert_eq!(told(&mut node).len(), 3);
}

/// Connections to an endpoint that has left are cut when its time is over, or later if the kernel is busy. They are not
/// cut if the kernel cannot do it, if the endpoint came back, or if the request was withdrawn.
#[test]
fn connections_are_cut_once_the_time_is_over() {
    let [client, web, one, two] =
        ["10.244.9.9:4000", "10.96.0.1:80", "10.244.0.1:8080", "10.244.0.2:8080"].map(|text| text.parse().unwrap());
    for fault in [None, Some(PortErrorKind::Busy), Some(PortErrorKind::Unavailable)] {
        let mut node = new();
        let wish = |node: &mut Node, annotations: Value| {
            node.service("web", json!({"clusterIP": "10.96.0.1", "annotations": annotations}));
        };
        wish(&mut node, json!({"proxier/drain-seconds": "20"}));
        let both = ["10.244.0.1", "10.244.0.2"];
        node.slice("web", &both);
        node.settles();
        node.run(Duration::from_secs(60));
        node.kernel.add_flow(Flow::tcp(client, web, one));
        node.kernel.add_flow(Flow::tcp(client, web, two));
        let flows = |node: &Node| node.kernel.flows().len();
        // The endpoint comes back in time, and the wish is taken back in time.
        for (annotations, endpoints) in
            [(json!({"proxier/drain-seconds": "20"}), &both[..]), (json!({"proxier/scheduler": "rr"}), &both[..1])]
        {
            node.slice("web", &both[..1]);
            node.run(Duration::from_secs(10));
            wish(&mut node, annotations);
            node.slice("web", endpoints);
            node.run(Duration::from_secs(60));
            assert_eq!(flows(&node), 2);
        }
        wish(&mut node, json!({"proxier/drain-seconds": "20"}));
        node.slice("web", &both);
        node.run(Duration::from_secs(60));
        node.slice("web", &both[..1]);
        node.run(Duration::from_secs(15));
        assert_eq!(flows(&node), 2);
        let is_lasting = fault == Some(PortErrorKind::Unavailable);
        if let Some(kind) = fault {
            let fault = Fault::new(Call::ConntrackForgetFlows, kind);
            node.kernel.fail(if is_lasting { fault.every() } else { fault });
        }
        let reports = node.run(Duration::from_secs(30));
        assert_eq!(flows(&node), if is_lasting { 2 } else { 1 }, "{fault:?}: {reports:#?}");
        let lacks: Vec<String> =
            reports.iter().flat_map(|report| &report.applied.lacks).map(ToString::to_string).collect();
        assert_eq!(lacks.len(), usize::from(is_lasting), "{lacks:?}");
        assert_eq!(node.proxier.totals().failed_passes, u64::from(fault == Some(PortErrorKind::Busy)), "{reports:#?}");
        let asked = node.kernel.writes().conntrack;
        node.run(Duration::from_secs(60));
        assert_eq!(node.kernel.writes().conntrack, asked, "not again and again");
        if fault.is_none() {
            // A time that changes counts from when the endpoint left.
            node.slice("web", &both);
            node.run(Duration::from_secs(60));
            node.kernel.add_flow(Flow::tcp(client, web, two));
            node.slice("web", &both[..1]);
            for (seconds, passed, left) in [("600", 100, 2), ("105", 1, 2), ("70", 1, 1)] {
                wish(&mut node, json!({"proxier/drain-seconds": seconds}));
                node.run(Duration::from_secs(passed));
                assert_eq!(flows(&node), left, "{seconds}");
            }
        }
    }
}

/// Each endpoint has its own time: since it left last, or since the start of a process that cannot know when it left.
#[test]
fn a_connection_is_cut_when_the_time_of_its_endpoint_is_over() {
    let serve = |node: &mut Node, endpoints: &[&str]| {
        node.service("web", json!({"clusterIP": "10.96.0.1", "annotations": {"proxier/drain-seconds": "20"}}));
        node.slice("web", endpoints);
    };
    let [one, two, three] = ["10.244.0.1", "10.244.0.2", "10.244.0.3"];
    let mut node = new();
    serve(&mut node, &[one, two, three]);
    node.run(Duration::from_secs(61));
    let web = "10.96.0.1:80".parse().unwrap();
    for (client, endpoint) in (4000..).zip([one, two, three]) {
        let [client, endpoint] = [format!("10.244.9.9:{client}"), format!("{endpoint}:8080")];
        node.kernel.add_flow(Flow::tcp(client.parse().unwrap(), web, endpoint.parse().unwrap()));
    }
    for (endpoints, passed, left) in [
        (&[one, two][..], 10, 3),
        (&[one], 8, 3),
        (&[one], 6, 2),
        (&[one, two], 2, 2),
        // Not since it left first.
        (&[one], 16, 2),
        (&[one], 8, 1),
    ] {
        serve(&mut node, endpoints);
        node.run(Duration::from_secs(passed));
        assert_eq!(node.kernel.flows().len(), left, "{endpoints:?} for {passed} s");
    }
    // An endpoint that could not be removed still serves.
    node.kernel.fail(Fault::new(Call::TablesCommit, PortErrorKind::Busy).every());
    serve(&mut node, &[three]);
    node.run(Duration::from_secs(60));
    assert_eq!(node.kernel.flows().len(), 1);
    node.kernel.clear_faults();
    let mut next = node.next(options());
    serve(&mut next, &[three]);
    next.run(Duration::from_secs(18));
    assert_eq!(next.kernel.flows().len(), 1);
    next.run(Duration::from_secs(6));
    assert_eq!(next.kernel.flows().len(), 0);
    let asked = next.kernel.writes().conntrack;
    next.run(Duration::from_secs(60));
    assert_eq!(next.kernel.writes().conntrack, asked, "not again and again");
}

/// Clients whose connections to a cluster IP are marked to be masqueraded, and those that may use endpoints on other nodes.
#[test]
fn traffic_of_pods_is_told_as_configured() {
    let interface = |name: &str| InterfaceName::new(name).unwrap();
    let networks = |network: &str| LocalTraffic::ClusterCidrs(vec![network.parse().unwrap()]);
    let marked = "meta mark set";
    for (traffic, all, outside, inside) in [
        (LocalTraffic::default(), false, None, None),
        (networks("10.244.0.0/16"), false, Some("ip saddr != 10.244.0.0/16"), Some("ip saddr 10.244.0.0/16")),
        (
            LocalTraffic::BridgeInterface(interface("cni0")),
            false,
            Some("iifname != \"cni0\""),
            Some("iifname \"cni0\""),
        ),
        (
            LocalTraffic::InterfaceNamePrefix(interface("veth")),
            false,
            Some("iifname != \"veth*\""),
            Some("iifname \"veth*\""),
        ),
        (LocalTraffic::BridgeInterface(interface("cni0")), true, Some(marked), Some("iifname \"cni0\"")),
    ] {
        let mut options = options();
        (options.config.local_traffic, options.config.masquerade_all) = (traffic.clone(), all);
        let mut node = Node::on(kernel(), options);
        node.service("web", local("10.96.0.1"));
        node.slice("web", &["10.244.0.1@node-a", "10.244.0.2"]);
        node.settles();
        let chains = blocks(&node.v4());
        let internal = &chains["chain internal-4"];
        assert_eq!(internal.len(), 4 + usize::from(outside.is_some()), "{traffic:?}: {internal:?}");
        assert!(internal.last().unwrap().contains("dnat"), "{internal:?}");
        if let Some(outside) = outside {
            assert!(internal[0].starts_with(outside) && internal[0].contains(marked), "{traffic:?}: {internal:?}");
        }
        let split = &chains["chain pick-4-or-pick-4-local"];
        assert_eq!(split.len(), 3 + usize::from(inside.is_some()), "{traffic:?}: {split:?}");
        if let Some(inside) = inside {
            assert!(split[0].starts_with(inside) && split[0].ends_with("goto pick-4"), "{traffic:?}: {split:?}");
        }
        // This node's own connections may go anywhere too, and their answers have to come back here; all other clients get local endpoints.
        let rest: Vec<&String> = split.iter().rev().take(3).rev().collect();
        assert!(rest[0].starts_with("fib saddr type local meta mark set"), "{split:?}");
        assert_eq!((rest[1].as_str(), rest[2].as_str()), ("fib saddr type local goto pick-4", "goto pick-4-local"));
    }
}

/// Node ports at loopback addresses.
fn asked() -> Options {
    let mut options = options();
    let networks = ["127.0.0.0/8", "::1/128"].map(|network| network.parse().unwrap());
    options.config.node_port_addresses = NodePortAddresses::Within(networks.into());
    options
}

/// A node with a Service that has a node port.
fn at_localhost(kernel: FakeKernel, options: Options) -> Node {
    let mut node = Node::on(kernel, options);
    let ports = json!([{"name": "p", "port": 80, "nodePort": 30_080}]);
    node.service("web", json!({"type": "NodePort", "clusterIP": "10.96.0.10", "ports": ports}));
    node.slice("web", &["10.244.1.7"]);
    node
}

const ROUTE_LOCALNET: &str = "net/ipv4/conf/all/route_localnet";

fn localnet(node: &Node) -> String {
    node.kernel.state().sysctls[ROUTE_LOCALNET].clone()
}

/// This process listens on localhost for TCP, rules refuse all else there, and nothing leads packets of neighbours to loopback addresses.
#[test]
fn node_ports_on_localhost_are_listeners_of_this_process() {
    let mut node = at_localhost(kernel(), asked());
    let ports = json!([
        {"name": "p", "port": 80, "nodePort": 30_080}, {"name": "u", "port": 53, "nodePort": 30_053, "protocol": "UDP"},
        {"name": "s", "port": 9, "nodePort": 30_009, "protocol": "SCTP"},
    ]);
    let families = json!({"type": "NodePort", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10", "fd00:96::10"],
        "ipFamilies": ["IPv4", "IPv6"], "ports": ports, "sessionAffinity": "ClientIP", "externalTrafficPolicy": "Local"});
    node.service("web", families);
    node.slice("web", &["fd00:244::7"]);
    let report = node.full();
    assert!(report.is_done(), "{report:#?}");
    let shown = |node: &Node| -> Vec<String> {
        let of = |listener: Listener| {
            let endpoints: Vec<String> = listener.inside.iter().map(ToString::to_string).collect();
            format!("{} {} {:?}", listener.key, endpoints.join(", "), listener.affinity)
        };
        node.kernel.listeners().into_values().map(of).collect()
    };
    let lines = |v4: &str| {
        let of = |key: &str, to: &str| format!("TCP {key}:30080 {to} Some(10800s)");
        [of("127.0.0.1", v4), of("[::1]", "[fd00:244::7]:8080")]
    };
    // The node gets the endpoints of all nodes, regardless of the external policy.
    assert_eq!(shown(&node), lines("10.244.1.7:8080"));
    for (name, address, width) in [("ip proxier", "127.0.0.1", ""), ("ip6 proxier", "::1", "6")] {
        let table = node.tables()[name].clone();
        let rejected = |protocol, port| has(&table, "set rejected", &format!("{address} . {protocol} . {port}"));
        assert!(!table.contains(&format!("{address} . tcp")) && !table.contains("iifname"), "{table}");
        assert!(rejected("udp", 30_053) && rejected("sctp", 30_009), "{table}");
        let first = format!(
            "ip{width} daddr {address} ip{width} daddr . meta l4proto . th dport @rejected goto reject-localhost"
        );
        assert_eq!(blocks(&table)["chain new-connections"][0], first, "{table}");
    }
    assert_eq!(localnet(&node), "0");

    // Endpoints change in place, and a listener goes with the last one, and with the Service.
    node.slice("web", &["10.244.1.8", "10.244.1.9"]);
    assert!(node.pass().is_done());
    assert_eq!(shown(&node), lines("10.244.1.8:8080, 10.244.1.9:8080"));
    node.slice("web", &["fd00:244::8"]);
    node.proxier.delete_slice(&ObjectKey::new("demo", "web-1"), node.now);
    assert!(node.pass().is_done());
    assert_eq!(shown(&node).len(), 1);
    node.proxier.delete_service(&ObjectKey::new("demo", "web"), node.now);
    assert!(node.pass().is_done());
    assert_eq!(shown(&node), [""; 0]);
    // Nobody listens where localhost is not named.
    let mut node = at_localhost(kernel(), options());
    assert!(node.full().is_done());
    assert_eq!(shown(&node), [""; 0]);
}

/// Another program has the port: that is reported, counted and tried again, and nothing else fails.
#[test]
fn a_taken_port_on_localhost_fails_nothing_else() {
    let mut node = at_localhost(kernel(), asked());
    let key = "TCP 127.0.0.1:30080".parse().unwrap();
    node.kernel.set_port_taken(key, true);
    for failures in 1..=2 {
        let report = node.full();
        assert!(!report.has_failed() && report.applied.failures.len() == 1, "{report:#?}");
        let failure = report.applied.failures[0].to_string();
        assert!(failure.contains("127.0.0.1:30080") && failure.contains("another program has the port"), "{failure}");
        let counts = node.proxier.localhost_node_ports().unwrap();
        assert_eq!(counts.creation_failures.values().sum::<u64>(), failures);
        assert!(node.v4().contains("10.96.0.10 . tcp . 80"), "{}", node.v4());
    }
    node.kernel.set_port_taken(key, false);
    assert!(node.full().is_done());
    let counts = node.proxier.localhost_node_ports().unwrap();
    assert_eq!((node.kernel.listeners().len(), counts.listeners.values().sum::<u64>()), (1, 1));
}

/// Lists that are suddenly empty are doubted, and listeners stay too.
#[test]
fn listeners_on_localhost_are_held_back_like_everything_else() {
    let mut node = at_localhost(kernel(), asked());
    node.serve_many(20, &["10.244.1.7"]);
    assert!(node.full().is_done());
    let before = node.kernel.listeners();
    assert_eq!(before.len(), 1);
    let services = (1..=20).map(|number| format!("s{number}")).chain(["web".to_owned()]);
    services.for_each(|name| node.proxier.lose(ObjectKind::Service, &ObjectKey::new("demo", &name), node.now));
    node.full();
    assert_eq!(node.kernel.listeners(), before);
}

/// The kubelet's rule.
const GUARD: &str = "-m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 -j DROP";

/// Gives the kubelet's chain and `INPUT` these rules.
fn firewall(kernel: &FakeKernel, backend: Backend, guard: &[&str], entered: &[&str]) {
    let mut change = iptables::Transaction::new();
    let table = change.table(TableName::FILTER);
    let parsed = |rule: &&str| iptables::Rule::parse(rule).unwrap();
    table.replace_chain(&ChainName::new("KUBE-FIREWALL").unwrap(), guard.iter().map(parsed));
    for rule in entered {
        table.edit(iptables::Edit::Append(ChainName::new("INPUT").unwrap(), parsed(rule)));
    }
    let restore = |host: &_| Iptables::open(host, iptables::Family::Ipv4, backend).unwrap().restore(&change).map(drop);
    kernel.with_host(restore).unwrap();
}

/// Neighbours must not reach what listens on 127.0.0.1 only. A pass that does not need `route_localnet`, and a cleanup,
/// set it back, whoever set it. The exception: packets come to the kubelet's rule that keeps neighbours off, in either
/// back end, and a cleanup names what stays. A rule that cannot be read keeps nobody off.
#[test]
fn loopback_addresses_are_routed_only_while_the_kubelets_chain_guards_them() {
    const ENTERED: [&str; 1] = ["-j KUBE-FIREWALL"];
    let cases: [(&[&str], &[&str], bool, &str); 5] = [
        (&[], &[], true, "0"),
        (&[GUARD], &ENTERED, true, "1"),
        (&[], &ENTERED, true, "0"),
        (&[GUARD], &[], true, "0"),
        (&[GUARD], &ENTERED, false, "0"),
    ];
    let modes = modes::Kind::ALL.map(Some).into_iter().chain([None]);
    let backends = || Backend::ALL.into_iter().flat_map(|default| Backend::ALL.map(|backend| (default, backend)));
    let ways = modes.flat_map(|mode| backends().map(move |(default, backend)| (mode, default, backend)));
    for (mode, default, backend) in ways {
        for (guard, entered, is_readable, expected) in cases {
            let kernel = prepared(FakeKernel::with_iptables(move || FakeHost::new().with_default(default)));
            kernel.set_sysctl(ROUTE_LOCALNET, Some("1"));
            firewall(&kernel, backend, guard, entered);
            let mut options = options_of(mode.unwrap_or_default());
            options.iptables.localhost_node_ports = false;
            if !is_readable {
                for call in [Call::RulesDump, Call::TablesRead] {
                    kernel.fail(Fault::new(call, PortErrorKind::Busy).every());
                }
            }
            let what = format!("{mode:?} {default:?} {backend:?} {guard:?} {entered:?} {is_readable}");
            if mode.is_some() {
                let mut node = Node::on(kernel.clone(), options);
                node.full();
            } else {
                modes::cleanup::cleanup(&options.config, None, &mut kernel.clone().ports());
            }
            let reads_first = mode.is_some_and(|mode| mode != modes::Kind::Userspace) && !is_readable;
            if !reads_first {
                assert_eq!(kernel.state().sysctls[ROUTE_LOCALNET], expected, "{what}");
            }
            // iptables mode adds the jump itself.
            let is_entered = !entered.is_empty() || mode == Some(modes::Kind::Iptables);
            for (value, setting) in [("0", ""), ("1", ", and route_localnet with it")] {
                kernel.set_sysctl(ROUTE_LOCALNET, Some(value));
                let kept = modes::cleanup::kept_for_the_kubelet(&mut kernel.clone().ports());
                assert_eq!(kept.is_some(), !guard.is_empty() && is_entered && is_readable, "{what}: {kept:?}");
                let stays = format!("chain KUBE-FIREWALL of table filter stays{setting}: ");
                assert!(kept.is_none_or(|kept| kept.starts_with(&stays)), "{what}, {value}");
            }
        }
    }
}

#[test]
fn a_family_that_is_not_served_any_more_has_no_table() {
    let mut node = new();
    node.service("web", json!({"clusterIP": "fd00::1", "clusterIPs": ["fd00::1"], "ipFamilies": ["IPv6"]}));
    node.settles();
    assert!(node.tables()["ip6 proxier"].contains("fd00::1 . tcp . 80"));
    let mut options = options();
    options.config.families = proxier_core::config::Families::V4;
    let mut next = Node::on(node.kernel.clone(), options);
    next.pass();
    assert_eq!(next.tables().into_keys().collect::<Vec<_>>(), ["ip proxier"]);
}

/// The search ends, with nothing written, if all are refused.
#[test]
fn a_kernel_that_refuses_everything_is_not_asked_for_ever() {
    let mut node = new();
    node.kernel.nf_tables().set_silent(true);
    node.kernel.nf_tables().refuse_elements(Some((&[10, 96], Errno::EINVAL)));
    for number in 1..=200 {
        node.service(&format!("s{number}"), json!({"clusterIP": format!("10.96.0.{number}")}));
    }
    let report = node.pass();
    assert!(report.has_failed() && !node.tables().contains_key("ip proxier"), "{report:#?}");
    assert!(node.tables().contains_key("ip6 proxier"));
}
