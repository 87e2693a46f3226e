//! The kernel's state in each mode, as the usual tools print it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use testkit::oracle;

use super::ground::{BACKEND, FOREIGN, has_ipvs, node_addresses};
use super::mode::Mode;
use super::truth::{ADDRESSES, RULES, SERVERS, SETS, SOCKETS, TABLE, Tables};
use super::world::Family;
use crate::Failure;
use crate::network::tool;

const FAMILIES: [(oracle::Family, Family); 2] = [(oracle::Family::V4, Family::V4), (oracle::Family::V6, Family::V6)];

/// Blocks all writers to the API server. nft starts over if the kernel changes while it reads, and never ends if that
/// is often.
pub(super) fn nobody_writes() -> MutexGuard<'static, ()> {
    static WRITING: Mutex<()> = Mutex::new(());
    WRITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kernel's state in a mode, in the format of [`Tables::of`].
pub(super) fn state(mode: Mode) -> Result<Tables, Failure> {
    let mut tables = Tables::default();
    match mode {
        Mode::Ipvs => {
            tables.extend(SERVERS, virtual_servers()?);
            let entries = oracle::ipset_save()?;
            tables.extend(SETS, entries.lines().filter(|line| line.starts_with("add KUBE-")).map(str::to_owned));
            for line in tool("ip -o addr show dev kube-ipvs0")?.lines() {
                let address = line.split_whitespace().nth(3).and_then(|word| word.split('/').next());
                // Except the device's own link-local address.
                let address = address.filter(|text| !text.starts_with("fe80:"));
                tables.extend(ADDRESSES, address.map(str::to_owned));
            }
            for (family, _) in FAMILIES {
                let text = oracle::iptables_save(BACKEND, family)?;
                let guards = text.lines().filter(|line| line.starts_with("-A KUBE-IPVS-OUT-FILTER"));
                tables.extend(RULES, guards.map(str::to_owned));
            }
        }
        Mode::Nftables => {
            let still = nobody_writes();
            let text = tool("timeout 20 nft -j list ruleset")?;
            drop(still);
            let text = serde_json::from_str(&text)?;
            tables.extend(TABLE, of_table(&text));
        }
        Mode::Iptables => {
            for (family, of) in FAMILIES {
                let text = oracle::iptables_save(BACKEND, family)?;
                tables.extend(RULES, of_rules(&text, of));
            }
        }
        Mode::Userspace => {
            tables.extend(ADDRESSES, local_routes()?);
            let addresses = tables.of_tool(ADDRESSES).filter_map(|text| text.parse().ok());
            let ours: BTreeSet<IpAddr> = addresses.chain(node_addresses()).collect();
            tables.extend(SOCKETS, of_sockets(&tool("ss -Hltun")?, &ours));
        }
    }
    Ok(tables)
}

/// Objects of modes that are not active.
pub(super) fn leftovers(serving: Mode) -> Result<Vec<String>, Failure> {
    let mut left = Vec::new();
    for mode in Mode::ALL.into_iter().filter(|mode| *mode != serving) {
        match mode {
            Mode::Ipvs if has_ipvs() => {
                left.extend(virtual_servers()?);
                let (sets, links) = (tool("ipset list -n")?, tool("ip -o link")?);
                left.extend(sets.lines().filter(|line| line.starts_with("KUBE-")).map(str::to_owned));
                left.extend(links.lines().filter(|line| line.contains("kube-ipvs0")).map(str::to_owned));
            }
            Mode::Nftables => {
                let tables = tool("nft list tables")?;
                left.extend(tables.lines().filter(|line| line.contains(" proxier")).map(str::to_owned));
            }
            // Its chains are below.
            Mode::Ipvs | Mode::Iptables => {}
            Mode::Userspace => left.extend(local_routes()?),
        }
    }
    let unwanted = match serving {
        Mode::Ipvs => OF_IPTABLES.to_vec(),
        Mode::Iptables => OF_IPVS.to_vec(),
        _ => [OF_IPTABLES, OF_IPVS, OF_BOTH].concat(),
    };
    for (family, _) in FAMILIES {
        let text = oracle::iptables_save(BACKEND, family)?;
        let theirs = text.lines().filter(|line| unwanted.iter().any(|name| line.contains(name)));
        left.extend(theirs.map(|line| format!("{family:?} {line}")));
    }
    Ok(left)
}

/// Names of chains that only iptables mode has, that only IPVS mode has, and that both have.
const OF_IPTABLES: &[&str] =
    &["KUBE-SVC-", "KUBE-SEP-", "KUBE-EXT-", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES", "KUBE-PROXY-CANARY"];
const OF_IPVS: &[&str] = &["KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-IPVS"];
const OF_BOTH: &[&str] = &["KUBE-SERVICES", "KUBE-POSTROUTING", "KUBE-MARK-MASQ", "KUBE-FORWARD"];

/// The lines of `ipvsadm -Sn` without other programs' servers.
fn virtual_servers() -> Result<Vec<String>, Failure> {
    let text = tool("ipvsadm -Sn")?;
    let foreign = |line: &str| line.contains(FOREIGN) || line.contains(" -f ");
    Ok(text.lines().map(str::trim).filter(|line| !foreign(line)).map(str::to_owned).collect())
}

/// Addresses that the proxy's routes make local.
fn local_routes() -> Result<Vec<String>, Failure> {
    let (v4, v6) = (tool("ip route show table local proto 118")?, tool("ip -6 route show table local proto 118")?);
    let addresses = v4.lines().chain(v6.lines()).filter_map(|line| line.strip_prefix("local ")?.split(' ').next());
    Ok(addresses.map(str::to_owned).collect())
}

/// From `ss`: listening sockets at these addresses.
fn of_sockets(text: &str, ours: &BTreeSet<IpAddr>) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (protocol, place) = (words.next()?, words.nth(3)?);
        let place: SocketAddr = place.parse().ok()?;
        ours.contains(&place.ip()).then(|| format!("{protocol} {place}"))
    });
    lines.collect()
}

/// An address and port among the values of `nft -j`.
fn place(address: &Value, port: &Value) -> Option<SocketAddr> {
    Some(SocketAddr::new(address.as_str()?.parse().ok()?, port.as_u64()?.try_into().ok()?))
}

/// From `nft -j list ruleset`: where the tables forward connections.
fn of_table(text: &Value) -> BTreeSet<String> {
    let objects = text["nftables"].as_array().into_iter().flatten();
    let sets = objects.filter_map(|object| object.get("map").or_else(|| object.get("set")));
    let ours = sets.filter(|set| set["table"] == "proxier");
    let mut lines = BTreeSet::new();
    for set in ours {
        for element in set["elem"].as_array().into_iter().flatten() {
            // Elements of a map have key and value.
            let (key, value) = (element.get(0).unwrap_or(element), element.get(1).unwrap_or(&Value::Null));
            let Some([address, protocol, port, more @ ..]) = key["concat"].as_array().map(Vec::as_slice) else {
                continue;
            };
            let Some(place) = place(address, port) else { continue };
            let target = value["goto"]["target"].as_str().unwrap_or_default();
            let what = match set["name"].as_str().unwrap_or_default() {
                "services" => {
                    let seconds = target.split_once("-sticky-").and_then(|(_, rest)| rest.split('-').next());
                    seconds.map(|seconds| format!("remembers {seconds}"))
                }
                "endpoints" => {
                    let real = self::place(&value["concat"][0], &value["concat"][1]);
                    real.map(|real| format!("-> {real}"))
                }
                "rejected" => Some("refuses".to_owned()),
                "dropped" => Some("drops".to_owned()),
                "allowed" => more.first().map(|source| {
                    let prefix = &source["prefix"];
                    match (prefix["addr"].as_str(), prefix["len"].as_u64()) {
                        (Some(address), Some(bits)) => format!("lets in {address}/{bits}"),
                        _ => format!("lets in {}", source.as_str().unwrap_or_default()),
                    }
                }),
                _ => None,
            };
            lines.extend(what.map(|what| format!("{} {place} {what}", protocol.as_str().unwrap_or_default())));
        }
    }
    lines
}

/// From `iptables-save`: where the rules forward connections.
fn of_rules(text: &str, family: Family) -> BTreeSet<String> {
    let mut chains: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let mut table = "";
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|rest| rest.split_once(' ')) {
            chains.entry((table, chain)).or_default().push(rule);
        }
    }
    let of = |table, chain| chains.get(&(table, chain)).into_iter().flatten().copied();
    let mut lines = BTreeSet::new();
    let first = ["KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-EXTERNAL-SERVICES"];
    let places = ["nat", "filter"].into_iter().flat_map(|table| first.map(|chain| (table, chain)));
    for (table, rule) in places.flat_map(|(table, chain)| of(table, chain).map(move |rule| (table, rule))) {
        let address =
            word_after(rule, "-d").map_or(Some(family.unspecified()), |text| text.split('/').next()?.parse().ok());
        let (Some(address), Some(protocol), Some(port)) =
            (address, word_after(rule, "-p"), word_after(rule, "--dport").and_then(|port| port.parse::<u16>().ok()))
        else {
            continue;
        };
        let place = SocketAddr::new(address, port);
        let mut add = |what: &str| lines.insert(format!("{protocol} {place} {what}"));
        match word_after(rule, "-j") {
            Some("REJECT") => _ = add("refuses"),
            Some("DROP") => _ = add("drops"),
            Some(first) if table == "nat" => {
                // All chains that can be reached from there.
                let mut seen = BTreeSet::from([first]);
                let mut next = vec![first];
                while let Some(chain) = next.pop() {
                    for rule in of("nat", chain) {
                        if let Some(real) = word_after(rule, "--to-destination") {
                            add(&format!("-> {real}"));
                        }
                        if let Some(seconds) = word_after(rule, "--seconds") {
                            add(&format!("remembers {seconds}"));
                        }
                        if let Some(source) = word_after(rule, "-s").filter(|_| chain.starts_with("KUBE-FW-")) {
                            add(&format!("lets in {}", source.trim_end_matches("/32").trim_end_matches("/128")));
                        }
                        next.extend(word_after(rule, "-j").filter(|to| to.starts_with("KUBE-") && seen.insert(to)));
                    }
                }
            }
            _ => {}
        }
    }
    lines
}

/// The word after an option of a rule.
fn word_after<'a>(rule: &'a str, option: &str) -> Option<&'a str> {
    let mut words = rule.split_whitespace();
    words.find(|word| *word == option)?;
    words.next()
}
