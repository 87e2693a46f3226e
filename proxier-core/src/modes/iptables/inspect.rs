//! Rules for one address and port.

use std::collections::BTreeMap;

use iptables::{Dump, Rule, TableName, Token};

use super::lines::SharedChain;
use super::observed::{LineSubject, lines, reached};
use super::settings::LOCALHOST_COUNTER;
use super::spelling;
use crate::modes::inspect::{Inspection, TrafficCounters};
use crate::net::FrontendKey;

/// The lines of shared chains about an address and port, the chains that they lead to, and the endpoints there.
/// `is_of_node`: node ports are served at the address. With a dump that has counters, counts first packets in table nat.
pub fn inspect(dump: &Dump, key: &FrontendKey, is_of_node: bool) -> Inspection {
    let mut inspection = Inspection::default();
    let mut found: BTreeMap<SharedChain, Vec<Rule>> = BTreeMap::new();
    let mut packets = None;
    for (shared, rule, place) in lines(dump, key.family()) {
        let is_about = place == LineSubject::Address(*key)
            || (is_of_node && place == LineSubject::NodePort(key.protocol, key.port) && key.port != 0);
        // Of node ports at 127.0.0.1, where the kernel counts: the same as the line after it.
        let is_of_localhost = rule.tokens().iter().any(|word| word.as_str() == LOCALHOST_COUNTER);
        if !is_about || is_of_localhost && !key.address.is_loopback() {
            continue;
        }
        let chain = shared.name().map(|name| name.as_str().to_owned()).unwrap_or_default();
        if !is_of_localhost {
            inspection.parts.insert(format!("{} {chain}: {}", shared.table(), spelling::text(rule)), String::new());
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
        let texts: Vec<String> = rules.iter().map(spelling::text).collect();
        inspection.parts.insert(format!("nat chain {name}"), texts.join(" | "));
        for endpoint in rules.iter().filter_map(destination) {
            inspection.parts.insert(format!("endpoint {endpoint}"), String::new());
        }
    }
    inspection
}

/// Address and port to which a rule sends connections.
fn destination(rule: &Rule) -> Option<&str> {
    let mut words = rule.tokens().iter().map(Token::as_str).skip_while(|word| *word != "--to-destination");
    words.nth(1)
}
