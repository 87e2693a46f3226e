//! Finds the rules for one address and port, and what all rules serve.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use iptables::{Dump, Rule, TableName, Token};

use super::lines::SharedChain;
use super::observed::{LineSubject, lines, reached, serving};
use super::settings::LOCALHOST_COUNTER;
use crate::modes::inspection::{Inspection, ServedFrontend, TrafficCounters};
use crate::net::{EndpointKey, Family, FrontendKey};

/// The lines of shared chains about an address and port, the chains that they jump to, and the endpoints there.
/// `is_of_node`: node ports are served at the address. With a dump that has counters, counts first packets in table
/// nat.
pub fn inspect(dump: &Dump, key: &FrontendKey, is_of_node: bool) -> Inspection {
    let mut inspection = Inspection::default();
    let mut found: BTreeMap<SharedChain, Vec<Rule>> = BTreeMap::new();
    let mut packets = None;
    for (shared, rule, place) in lines(dump, key.family()) {
        let is_about = place == LineSubject::Address(*key)
            || (is_of_node && place == LineSubject::NodePort(key.protocol, key.port) && key.port != 0);
        // Counts node ports at 127.0.0.1, if the kernel counts. Otherwise the same as the line after it.
        let is_of_localhost = rule.tokens().iter().any(|word| word.as_str() == LOCALHOST_COUNTER);
        if !is_about || is_of_localhost && !key.address.is_loopback() {
            continue;
        }
        let chain = shared.name().map(|name| name.as_str().to_owned()).unwrap_or_default();
        if !is_of_localhost {
            inspection.parts.insert(format!("{} {chain}: {}", shared.table(), rule.canonical()), String::new());
        }
        if let Some(counters) = rule.counters.filter(|_| shared.table() == TableName::NAT) {
            packets = Some(packets.unwrap_or(0_u64).saturating_add(counters.packets));
        }
        found.entry(shared).or_default().push(rule.clone());
    }
    inspection.counters = packets.map(|connections| TrafficCounters { connections, packets: None });
    let Some(nat) = dump.table(&TableName::NAT) else { return inspection };
    for name in reached(dump, &found) {
        let rules = nat.chain(name).map_or(&[][..], |chain| &chain.rules);
        let texts: Vec<String> = rules.iter().map(|rule| rule.canonical().to_string()).collect();
        inspection.parts.insert(format!("nat chain {name}"), texts.join(" | "));
        for endpoint in rules.iter().filter_map(destination) {
            inspection.parts.insert(format!("endpoint {endpoint}"), String::new());
        }
    }
    inspection
}

/// All Frontends that the rules of a family serve, with their endpoints and, with a dump that has counters, the first
/// packets of their connections. A node port is at address 0.0.0.0 or `::`.
pub fn list_frontends(dump: &Dump, family: Family) -> BTreeMap<FrontendKey, ServedFrontend> {
    let mut all: BTreeMap<FrontendKey, ServedFrontend> = BTreeMap::new();
    for (key, has_endpoints, shared, rule) in serving(dump, family) {
        let served = all.entry(key).or_default();
        if !has_endpoints {
            served.add(None);
            continue;
        }
        let of_rule = BTreeMap::from([(shared, vec![rule.clone()])]);
        served.add(reached(dump, &of_rule).into_iter().flat_map(|chain| endpoints(dump, chain)));
        if let Some(counters) = rule.counters {
            served.connections = Some(served.connections.unwrap_or_default().saturating_add(counters.packets));
        }
    }
    all
}

/// The endpoints to which the rules of a nat chain send connections.
fn endpoints<'a>(dump: &'a Dump, chain: &str) -> impl Iterator<Item = EndpointKey> + use<'a> {
    let chain = dump.table(&TableName::NAT).and_then(|nat| nat.chain(chain));
    let rules = chain.into_iter().flat_map(|chain| &chain.rules);
    let places = rules.filter_map(destination).filter_map(|to| to.parse::<SocketAddr>().ok());
    places.map(|to| EndpointKey::new(to.ip(), to.port()))
}

/// The address and port to which a rule sends connections.
fn destination(rule: &Rule) -> Option<&str> {
    let mut words = rule.tokens().iter().map(Token::as_str).skip_while(|word| *word != "--to-destination");
    words.nth(1)
}
