//! Entries of a simulated node that concern a Service, in the formats of the usual tools.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipvs::VirtualServerKey;
use ipvs::text::Statement;
use proxier_core::net::{FrontendKey, Network, Protocol};
use proxier_core::ports::{LocalRoute, RouteOwner};
use proxier_core::sketch::KernelState;
use serde::Serialize;

use crate::gather::Gather as _;
use crate::settings::cli::packet;

/// A line, and the tool that would print it.
#[derive(Debug, Serialize)]
pub(super) struct Mention {
    pub(super) tool: &'static str,
    pub(super) line: String,
}

/// A route in the format of `ip route`.
pub(super) fn route((owner, route): &(RouteOwner, LocalRoute)) -> String {
    let number = owner.number();
    format!("{route} proto {number} metric {number}")
}

/// Entries, elements, rules, addresses and routes of these Frontends, and rules with the Service in their comments.
/// `device`: to which Services' addresses are bound. `marks`: their virtual servers by firewall mark.
pub(super) fn of(
    state: &KernelState,
    service: &str,
    device: &str,
    frontends: &BTreeSet<FrontendKey>,
    marks: &[VirtualServerKey],
) -> Vec<Mention> {
    let mut found = Vec::new();
    let mut add = |tool, line: String| found.push(Mention { tool, line });
    let servers: BTreeSet<VirtualServerKey> =
        frontends.iter().map(|key| (*key).into()).chain(marks.iter().copied()).gather();
    for line in state.ipvs.lines().filter(|line| server_of(line).is_some_and(|server| servers.contains(&server))) {
        add("ipvsadm", line.to_owned());
    }
    let addresses: BTreeSet<IpAddr> = frontends.iter().map(|key| key.address).collect();
    let bound = state.devices.get(device).into_iter().flatten();
    for address in bound.filter(|address| addresses.contains(address)) {
        add("ip address", format!("{address} dev {device}"));
    }
    let is_routed = |network: &Network| addresses.range(network.network()..=network.broadcast()).next().is_some();
    for ours in state.routes.iter().filter(|(_, of)| is_routed(&of.network)) {
        add("ip route", route(ours));
    }
    let is_about = |key: Option<FrontendKey>| key.is_some_and(|key| frontends.contains(&key));
    let numbers: BTreeSet<(Protocol, u16)> = frontends.iter().map(|key| (key.protocol, key.port)).gather();
    for (set, (_, entries)) in &state.sets {
        let is_number =
            |entry: &str| node_ports(set).zip(entry.parse().ok()).is_some_and(|node_port| numbers.contains(&node_port));
        for entry in entries.iter().filter(|entry| is_about(key_of_entry(entry)) || is_number(entry)) {
            add("ipset", format!("{set}: {entry}"));
        }
    }
    for table in state.tables.values() {
        for (set, element) in elements(table).into_iter().filter(|(_, element)| is_about(key_of_element(element))) {
            add("nft", format!("{set}: {element}"));
        }
    }
    for rules in state.rules.values() {
        for rule in rules.lines().filter(|line| line.contains("-A ") && names(line, service)) {
            add("iptables", rule.strip_prefix("[0:0] ").unwrap_or(rule).to_owned());
        }
    }
    found
}

/// The virtual server of `-A -t 10.96.0.10:80 …` or `-a -f 7 …`.
fn server_of(line: &str) -> Option<VirtualServerKey> {
    let Statement::Operation(operation) = line.parse().ok()? else { return None };
    Some(operation.virtual_server())
}

fn key(address: &str, protocol: &str, port: &str) -> Option<FrontendKey> {
    Some(FrontendKey::new(packet::protocol(protocol)?, address.parse().ok()?, port.parse().ok()?))
}

/// The Frontend of an entry of a set that begins with `10.96.0.10,tcp:80`.
fn key_of_entry(entry: &str) -> Option<FrontendKey> {
    let mut fields = entry.split(',');
    let (address, (protocol, port)) = (fields.next()?, fields.next()?.split_once(':')?);
    key(address, protocol, port)
}

/// The protocol of a set of node ports, whose entries are only numbers: `KUBE-NODE-PORT-LOCAL-TCP`.
fn node_ports(set: &str) -> Option<Protocol> {
    let (_, rest) = set.split_once("NODE-PORT-")?;
    packet::protocol(rest.strip_prefix("LOCAL-").unwrap_or(rest))
}

/// The elements of a table, each with its set. A simulated node prints all elements of a set on one line.
fn elements(table: &str) -> Vec<(&str, &str)> {
    let (mut found, mut set) = (Vec::new(), "");
    for line in table.lines().map(str::trim) {
        let head = line.strip_prefix("set ").or_else(|| line.strip_prefix("map "));
        set = head.and_then(|rest| rest.strip_suffix(" {")).unwrap_or(set);
        let listed = line.strip_prefix("elements = {").and_then(|rest| rest.strip_suffix('}'));
        found.extend(listed.iter().flat_map(|listed| listed.split(',')).map(|element| (set, element.trim())));
    }
    found
}

/// The Frontend of an element that begins with `10.96.0.10 . tcp . 80`.
fn key_of_element(element: &str) -> Option<FrontendKey> {
    let mut fields = element.split(" : ").next()?.split(" . ").map(str::trim);
    key(fields.next()?, fields.next()?, fields.next()?)
}

/// Whether a rule's comment begins with this Service's name.
fn names(rule: &str, service: &str) -> bool {
    rule.match_indices(service).any(|(at, _)| {
        let before = rule.get(..at).unwrap_or_default().chars().next_back();
        let after = rule.get(at.saturating_add(service.len())..).unwrap_or_default().chars().next();
        matches!(before, Some('"' | ' ')) && matches!(after, None | Some('"' | ' ' | ':'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_other_servers_are_not_mentioned() {
        let web: FrontendKey = "TCP 10.96.0.1:80".parse().unwrap();
        assert_eq!(server_of("-a -t 10.96.0.1:80 -r 10.244.0.1:80 -m -w 1"), Some(web.into()));
        for other in ["-a -t 10.96.0.1:8080 -r 10.96.0.1:80 -m", "-A -u 10.96.0.1:80 -s rr"] {
            assert!(server_of(other).is_some_and(|key| key != web.into()), "{other}");
        }
        let mark = |family| VirtualServerKey::fwmark(family, 7).ok();
        assert_eq!(server_of("-a -f 7 -r 10.244.0.1:80 -m -w 1"), mark(ipvs::model::Family::V4));
        assert_eq!(server_of("-A -f 7 -6 -s rr"), mark(ipvs::model::Family::V6));
        assert_eq!(key_of_entry("10.96.0.1,tcp:80"), Some(web));
        assert_eq!(key_of_entry("10.96.0.1,tcp:80,10.0.0.0/8"), Some(web));
        assert_eq!(key_of_entry("fd00::1,udp:80"), "UDP [fd00::1]:80".parse().ok());
        assert_eq!(node_ports("KUBE-NODE-PORT-LOCAL-TCP"), Some(Protocol::Tcp));
        assert_eq!(node_ports("KUBE-CLUSTER-IP"), None);
        assert_eq!(key_of_element("10.96.0.1 . tcp . 80 . 0 : 10.244.0.1 . 8080"), Some(web));
        assert_eq!(key_of_element("10.96.0.1 . udp . 80 : goto x"), "UDP 10.96.0.1:80".parse().ok());
        assert_eq!(key_of_element("10.96.0.1"), None);
        assert!(names("-A KUBE-SERVICES -m comment --comment \"shop/web:http cluster IP\" -j X", "shop/web"));
        assert!(!names("-A KUBE-SERVICES -m comment --comment \"shop/web-2:http cluster IP\" -j X", "shop/web"));
        assert!(!names("-A KUBE-SERVICES -m comment --comment \"my-shop/web cluster IP\" -j X", "shop/web"));
    }
}
