//! Entries of a simulated node that concern a Service, in the formats of the usual tools.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipvs::VirtualServerKey;
use proxier_core::net::{FrontendKey, Protocol};
use proxier_core::ports::{LocalRoute, RouteOwner};
use proxier_core::sketch::KernelState;
use serde::Serialize;

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
    frontends: &[FrontendKey],
    marks: &[VirtualServerKey],
) -> Vec<Mention> {
    let mut found = Vec::new();
    let mut add = |tool, line: String| found.push(Mention { tool, line });
    let servers: Vec<String> = frontends.iter().map(ToString::to_string).collect();
    let is_about = |line: &str| {
        servers.iter().any(|server| is_server(line, server)) || marks.iter().any(|mark| is_of_mark(line, mark))
    };
    for line in state.ipvs.lines().filter(|line| is_about(line)) {
        add("ipvsadm", line.to_owned());
    }
    let addresses: BTreeSet<IpAddr> = frontends.iter().map(|key| key.address).collect();
    let bound = state.devices.get(device).into_iter().flatten();
    for address in bound.filter(|address| addresses.contains(address)) {
        add("ip address", format!("{address} dev {device}"));
    }
    for ours in state.routes.iter().filter(|(_, of)| addresses.iter().any(|address| of.network.contains(address))) {
        add("ip route", route(ours));
    }
    for (set, (_, entries)) in &state.sets {
        for entry in entries.iter().filter(|entry| frontends.iter().any(|key| is_entry(set, entry, key))) {
            add("ipset", format!("{set}: {entry}"));
        }
    }
    for table in state.tables.values() {
        for (set, element) in elements(table) {
            if frontends.iter().any(|key| is_element(element, key)) {
                add("nft", format!("{set}: {element}"));
            }
        }
    }
    for rules in state.rules.values() {
        for rule in rules.lines().filter(|line| line.contains("-A ") && names(line, service)) {
            add("iptables", rule.strip_prefix("[0:0] ").unwrap_or(rule).to_owned());
        }
    }
    found
}

/// `-A -t 10.96.0.10:80 …` or `-a …`, of this Frontend.
fn is_server(line: &str, server: &str) -> bool {
    let Some((protocol, place)) = server.split_once(' ') else { return false };
    let option = match protocol {
        "TCP" => "-t",
        "UDP" => "-u",
        _ => "--sctp-service",
    };
    let mut words = line.split_whitespace().skip(1);
    words.next() == Some(option) && words.next() == Some(place)
}

/// `-A -f 7` or `-a …`, with `-6` for IPv6.
fn is_of_mark(line: &str, server: &VirtualServerKey) -> bool {
    let VirtualServerKey::Fwmark { family, mark } = server else { return false };
    let mut words = line.split_whitespace().skip(1);
    let is_mark = words.next() == Some("-f") && words.next() == Some(mark.to_string().as_str());
    is_mark && words.any(|word| word == "-6") == (*family == ipvs::model::Family::V6)
}

/// Whether an entry of a set begins with `10.96.0.10,tcp:80`, or is only the number in a set of node ports of the
/// protocol.
fn is_entry(set: &str, entry: &str, key: &FrontendKey) -> bool {
    let protocol = key.protocol.to_string().to_ascii_lowercase();
    let at = format!("{},{protocol}:{}", key.address, key.port);
    let rest = entry.strip_prefix(&at);
    let is_number = set.contains(&format!("NODE-PORT-{}", key.protocol))
        || set.contains(&format!("NODE-PORT-LOCAL-{}", key.protocol));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(',')) || (is_number && entry == key.port.to_string())
}

/// The elements of a table as nft prints it, each with its set.
fn elements(table: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let (mut set, mut is_within) = ("", false);
    for line in table.lines().map(str::trim) {
        let head = line.strip_prefix("set ").or_else(|| line.strip_prefix("map "));
        if let Some(name) = head.and_then(|rest| rest.strip_suffix(" {")) {
            set = name;
        }
        let listed = match line.strip_prefix("elements = {") {
            Some(rest) => {
                is_within = true;
                rest
            }
            None if is_within => line,
            None => continue,
        };
        is_within &= !listed.contains('}');
        let listed = listed.split('}').next().unwrap_or_default();
        found.extend(listed.split(',').map(str::trim).filter(|one| !one.is_empty()).map(|element| (set, element)));
    }
    found
}

/// Whether an element begins with `10.96.0.10 . tcp . 80`.
fn is_element(element: &str, key: &FrontendKey) -> bool {
    let mut fields = element.split(" : ").next().unwrap_or_default().split(" . ").map(str::trim);
    let address = fields.next().and_then(|text| text.parse().ok());
    let number = match key.protocol {
        Protocol::Tcp => "6",
        Protocol::Udp => "17",
        Protocol::Sctp => "132",
    };
    let protocol = key.protocol.to_string().to_ascii_lowercase();
    let is_protocol = fields.next().is_some_and(|field| field == protocol || field == number);
    address == Some(key.address) && is_protocol && fields.next() == Some(key.port.to_string().as_str())
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

    fn key(text: &str) -> FrontendKey {
        text.parse().unwrap()
    }

    #[test]
    fn lines_about_other_servers_are_not_mentioned() {
        let web = key("TCP 10.96.0.1:80");
        assert!(is_server("-a -t 10.96.0.1:80 -r 10.244.0.1:80 -m -w 1", &web.to_string()));
        assert!(!is_server("-a -t 10.96.0.1:8080 -r 10.96.0.1:80 -m", &web.to_string()));
        assert!(!is_server("-A -u 10.96.0.1:80 -s rr", &web.to_string()));
        let mark = |family| VirtualServerKey::fwmark(family, 7).unwrap();
        assert!(is_of_mark("-a -f 7 -r 10.244.0.1:80 -m -w 1", &mark(ipvs::model::Family::V4)));
        assert!(!is_of_mark("-A -f 7 -s rr", &mark(ipvs::model::Family::V6)));
        assert!(!is_of_mark("-A -f 77 -s rr", &mark(ipvs::model::Family::V4)));
        assert!(is_entry("KUBE-CLUSTER-IP", "10.96.0.1,tcp:80", &web));
        assert!(is_entry("KUBE-LOAD-BALANCER-SOURCE-CIDR", "10.96.0.1,tcp:80,10.0.0.0/8", &web));
        assert!(!is_entry("KUBE-CLUSTER-IP", "10.96.0.1,tcp:8080", &web));
        assert!(!is_entry("KUBE-CLUSTER-IP", "10.96.0.11,tcp:80", &web));
        assert!(is_entry("KUBE-NODE-PORT-LOCAL-TCP", "30080", &key("TCP 192.0.2.1:30080")));
        assert!(!is_entry("KUBE-NODE-PORT-UDP", "30080", &key("TCP 192.0.2.1:30080")));
        assert!(is_element("10.96.0.1 . tcp . 80 . 0 : 10.244.0.1 . 8080", &web));
        assert!(!is_element("10.96.0.1 . udp . 80 : goto x", &web) && !is_element("10.96.0.1", &web));
        assert!(names("-A KUBE-SERVICES -m comment --comment \"shop/web:http cluster IP\" -j X", "shop/web"));
        assert!(!names("-A KUBE-SERVICES -m comment --comment \"shop/web-2:http cluster IP\" -j X", "shop/web"));
        assert!(!names("-A KUBE-SERVICES -m comment --comment \"my-shop/web cluster IP\" -j X", "shop/web"));
    }

    #[test]
    fn elements_may_span_several_lines() {
        let table = "table ip t {\n\tmap services {\n\t\ttype x\n\t\telements = { a : goto b,\n\t\t\tc : goto d }\n\t}\n\tset s {\n\t\telements = { e }\n\t}\n}";
        assert_eq!(elements(table), [("services", "a : goto b"), ("services", "c : goto d"), ("s", "e")]);
    }
}
