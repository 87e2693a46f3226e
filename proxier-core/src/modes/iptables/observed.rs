//! What the kernel's rules serve, for takeovers and for display, and the lines that must stay.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use iptables::{Chain, Dump, Rule, TableName, Token};

use super::lines::SharedChain;
use super::names;
use super::settings::LOCALHOST_COUNTER;
use crate::modes::inspection::{Inspection, ServedFrontend, TrafficCounters};
use crate::net::{EndpointKey, Family, FrontendKey, Protocol};
use crate::pack::Gather as _;
use crate::snapshot::ObjectKey;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LineSubject {
    Address(FrontendKey),
    /// A node port, on all addresses that serve node ports.
    NodePort(Protocol, u16),
    HealthCheck(u16),
}

impl LineSubject {
    /// The Frontend, if it is one. A node port is at address 0.0.0.0 or `::`.
    fn frontend(self, family: Family) -> Option<FrontendKey> {
        match self {
            LineSubject::Address(key) => Some(key),
            LineSubject::NodePort(protocol, port) => Some(FrontendKey::new(protocol, family.unspecified(), port)),
            LineSubject::HealthCheck(_) => None,
        }
    }

    /// What a line is about; `None` for a line that belongs to no Service.
    pub(super) fn from_rule(chain: SharedChain, rule: &Rule, family: Family) -> Option<Self> {
        let (mut address, mut protocol, mut port) = (None, None, None);
        let mut words = rule.tokens().iter().map(Token::as_str);
        while let Some(word) = words.next() {
            match word {
                // A line that matches everything except a value has no subject.
                "!" => return None,
                "--comment" => drop(words.next()),
                "-d" | "--destination" => address = Some(whole_address(words.next()?)?),
                "-p" | "--protocol" => protocol = Some(protocol_of(words.next()?)?),
                "--dport" | "--destination-port" => port = Some(words.next()?.parse().ok()?),
                _ => {}
            }
        }
        let (protocol, port) = (protocol?, port?);
        match address {
            Some(address) => {
                (Family::of(address) == family).then(|| LineSubject::Address(FrontendKey::new(protocol, address, port)))
            }
            None if chain == SharedChain::HealthChecks => Some(LineSubject::HealthCheck(port)),
            None => Some(LineSubject::NodePort(protocol, port)),
        }
    }
}

/// An address without a network, or with that of one address.
fn whole_address(text: &str) -> Option<IpAddr> {
    let (address, length) = text.split_once('/').unwrap_or((text, ""));
    let address: IpAddr = address.parse().ok()?;
    let whole = if address.is_ipv4() { "32" } else { "128" };
    (length.is_empty() || length == whole).then_some(address)
}

fn protocol_of(text: &str) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|protocol| names::protocol(*protocol) == text)
}

fn shared_chains(dump: &Dump) -> impl Iterator<Item = (SharedChain, &Chain)> {
    let chain =
        move |shared: SharedChain| Some((shared, dump.table(&shared.table())?.chain(shared.name().ok()?.as_str())?));
    SharedChain::ALL.into_iter().filter_map(chain)
}

pub(super) fn lines(dump: &Dump, family: Family) -> impl Iterator<Item = (SharedChain, &Rule, LineSubject)> {
    let rules = shared_chains(dump).flat_map(|(shared, chain)| chain.rules.iter().map(move |rule| (shared, rule)));
    rules.filter_map(move |(shared, rule)| Some((shared, rule, LineSubject::from_rule(shared, rule, family)?)))
}

/// The lines that decide about connections: the Frontend of each, and whether it leads to endpoints or refuses. A node
/// port is at address 0.0.0.0 or `::`.
pub(super) fn serving(dump: &Dump, family: Family) -> impl Iterator<Item = (FrontendKey, bool, SharedChain, &Rule)> {
    lines(dump, family).filter_map(move |(shared, rule, place)| {
        let (target, key) = (rule.target()?, place.frontend(family)?);
        let has_endpoints = match shared {
            SharedChain::Services | SharedChain::NodePorts if names::is_of_service(&TableName::NAT, target) => true,
            SharedChain::NoEndpoints | SharedChain::NoExternalEndpoints if matches!(target, "REJECT" | "DROP") => false,
            _ => return None,
        };
        Some((key, has_endpoints, shared, rule))
    })
}

/// The Frontends that a family's rules serve, and whether they have endpoints. A node port is served at each of these
/// addresses.
pub(super) fn served(dump: &Dump, family: Family, node_addresses: &[IpAddr]) -> BTreeMap<FrontendKey, bool> {
    let mut served = BTreeMap::new();
    for (key, has_endpoints, ..) in serving(dump, family) {
        let own = [key.address];
        for address in if key.address.is_unspecified() { node_addresses } else { &own } {
            *served.entry(FrontendKey { address: *address, ..key }).or_default() |= has_endpoints;
        }
    }
    served
}

/// Lines and chains of a family that stay unchanged, whether desired or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Keep {
    /// Lines about these stay, of any program, and none are written.
    held: BTreeSet<LineSubject>,
    /// The lines of these Services about these subjects stay, and no further lines of these Services are written. Two
    /// Services may claim the same node port.
    left: BTreeMap<LineSubject, BTreeSet<ObjectKey>>,
    services: BTreeSet<ObjectKey>,
}

impl Keep {
    /// Keeps the lines and chains that serve these Frontends, of any program.
    pub(super) fn hold(&mut self, held: &BTreeSet<FrontendKey>, dump: &Dump, family: Family) {
        let lines: BTreeSet<LineSubject> = lines(dump, family).map(|(_, _, place)| place).gather();
        for key in held.iter().filter(|key| key.family() == family) {
            let address = LineSubject::Address(*key);
            let node_port = LineSubject::NodePort(key.protocol, key.port);
            let place = if !lines.contains(&address) && lines.contains(&node_port) { node_port } else { address };
            self.held.insert(place);
        }
    }

    /// Keeps the lines and chains of a Service whose lines are about these subjects now.
    pub(super) fn leave(&mut self, service: &ObjectKey, places: impl IntoIterator<Item = LineSubject>) {
        for place in places {
            self.left.entry(place).or_default().insert(service.clone());
        }
        self.services.insert(service.clone());
    }

    /// Whether the lines of this Service about a subject are kept unchanged: none is written.
    pub(super) fn keeps_line(&self, place: &LineSubject, service: &ObjectKey) -> bool {
        self.held.contains(place) || self.left.get(place).is_some_and(|services| services.contains(service))
    }

    pub(super) fn has_service(&self, service: &ObjectKey) -> bool {
        self.services.contains(service)
    }

    pub(super) fn lines(&self, dump: &Dump, family: Family) -> BTreeMap<SharedChain, Vec<Rule>> {
        let mut kept: BTreeMap<SharedChain, Vec<Rule>> = BTreeMap::new();
        if self.held.is_empty() && self.left.is_empty() {
            return kept;
        }
        for (shared, rule, place) in lines(dump, family) {
            let mut services = self.left.get(&place).into_iter().flatten();
            if self.held.contains(&place) || services.any(|service| is_line_of(rule, service)) {
                kept.entry(shared).or_default().push(rule.clone());
            }
        }
        kept
    }
}

/// Whether a line belongs to this Service according to its comment, which begins with `namespace/name` and an optional
/// `:port`.
fn is_line_of(rule: &Rule, service: &ObjectKey) -> bool {
    let rest = rule.comment().and_then(|comment| comment.strip_prefix(&service.to_string()));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([':', ' ']))
}

/// The chains of Services to which these lines jump, in nat.
pub(super) fn reached<'d>(dump: &'d Dump, lines: &BTreeMap<SharedChain, Vec<Rule>>) -> BTreeSet<&'d str> {
    let mut reached = BTreeSet::new();
    let Some(nat) = dump.table(&TableName::NAT) else { return reached };
    let of_service = |rule: &Rule| rule.target().and_then(|target| nat.chain(target));
    let of_service =
        |rule: &Rule| of_service(rule).filter(|to| names::is_of_service(&TableName::NAT, to.name.as_str()));
    let mut open: Vec<&Chain> = lines.values().flatten().filter_map(of_service).collect();
    while let Some(chain) = open.pop() {
        if reached.insert(chain.name.as_str()) {
            open.extend(chain.rules.iter().filter_map(of_service));
        }
    }
    reached
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_show_their_subjects() {
        let place = |chain, text: &str| LineSubject::from_rule(chain, &Rule::parse(text).unwrap(), Family::V4);
        let web = LineSubject::Address("TCP 10.96.0.10:80".parse().unwrap());
        for text in [
            "-d 10.96.0.10/32 -p tcp -m comment --comment \"demo/web cluster IP\" -m tcp --dport 80 -j KUBE-SVC-X",
            "-m comment --comment \"demo/web -d 1.2.3.4 --dport 9\" -m tcp -p tcp -d 10.96.0.10 --dport 80 -j KUBE-SVC-X",
        ] {
            assert_eq!(place(SharedChain::Services, text), Some(web), "{text}");
        }
        let node_port = "-m comment --comment demo/web -m udp -p udp --dport 30053 -j KUBE-EXT-X";
        assert_eq!(place(SharedChain::NodePorts, node_port), Some(LineSubject::NodePort(Protocol::Udp, 30_053)));
        let check = "-p tcp -m tcp --dport 30100 -j ACCEPT";
        assert_eq!(place(SharedChain::HealthChecks, check), Some(LineSubject::HealthCheck(30_100)));
        for nobodys in [
            "-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS",
            "! -d 10.96.0.10 -p tcp --dport 80 -j KUBE-SVC-X",
            "-d 10.96.0.0/24 -p tcp --dport 80 -j KUBE-SVC-X",
            "-d fd00::1 -p tcp --dport 80 -j KUBE-SVC-X",
            "-p icmp -j ACCEPT",
        ] {
            assert_eq!(place(SharedChain::Services, nobodys), None, "{nobodys}");
        }
    }

    #[test]
    fn lines_are_recognised_by_their_comments() {
        let is_webs = |comment: &str| {
            let rule = Rule::builder().comment(comment).target("DROP").build().unwrap();
            is_line_of(&rule, &ObjectKey::new("demo", "web"))
        };
        assert!(is_webs("demo/web") && is_webs("demo/web:http cluster IP") && is_webs("demo/web cluster IP"));
        assert!(!is_webs("demo/web-2:http cluster IP") && !is_webs("other/web") && !is_webs(""));
    }
}
