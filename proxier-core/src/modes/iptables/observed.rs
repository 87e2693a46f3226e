//! What the kernel's rules serve, for takeovers and for display, and the lines that must stay.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use iptables::{Chain, Dump, Rule, TableName, Token};

use super::lines::SharedChain;
use super::names;
use crate::net::{Family, FrontendKey, Protocol};
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
