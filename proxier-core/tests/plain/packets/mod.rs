//! Way of the first packet of a connection on a node in IPVS mode, by the text that the tools print of the node. Not modelled: firewall marks of
//! virtual servers, interfaces, bridges, foreign rules.

pub(crate) mod iptables;
pub(crate) mod nft;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use proxier_core::fake::KernelState;
use proxier_core::net::Network;

/// Fate of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    LeftAlone,
    Dropped,
    Rejected,
    /// The endpoints that it may reach, and whether its source is rewritten on the way there.
    Endpoints(BTreeMap<SocketAddr, bool>),
}

/// A packet at some hook.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) protocol: String,
    pub(crate) source: IpAddr,
    pub(crate) to: SocketAddr,
    pub(crate) from_node: bool,
    pub(crate) mark: u32,
    /// The virtual server that has taken it.
    pub(crate) server: Option<SocketAddr>,
}

impl Packet {
    pub(crate) fn new(protocol: &str, source: IpAddr, to: SocketAddr, from_node: bool) -> Self {
        Packet { protocol: protocol.to_owned(), source, to, from_node, mark: 0, server: None }
    }
}

/// End of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The packet goes on.
    Passed,
    Dropped,
    Rejected,
    Masqueraded,
}

/// Chains at the hooks. IPVS takes packets between the hooks `before` and `after`.
pub(crate) trait Guards {
    /// The first hook of a packet, at which it may get a mark.
    fn before(&self, node: &Node, packet: &mut Packet) -> End;
    /// Hook input, before IPVS; or, for packets that are not for this node, hook forward.
    fn input(&self, node: &Node, packet: &mut Packet) -> End;
    /// Hook output, behind IPVS, or without it.
    fn output(&self, node: &Node, packet: &mut Packet) -> End;
    /// Hook postrouting.
    fn postrouting(&self, node: &Node, packet: &mut Packet) -> End;
}

type Hook = fn(&dyn Guards, &Node, &mut Packet) -> End;

/// A node's addresses and virtual servers.
pub(crate) struct Node {
    addresses: BTreeSet<IpAddr>,
    networks: Vec<Network>,
    servers: BTreeMap<(String, SocketAddr), Vec<SocketAddr>>,
}

impl Node {
    pub(crate) fn new(state: &KernelState) -> Self {
        let mut servers: BTreeMap<(String, SocketAddr), Vec<SocketAddr>> = BTreeMap::new();
        for line in state.ipvs.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let protocol = match words[1] {
                "-t" => "tcp",
                "-u" => "udp",
                "--sctp-service" => "sctp",
                other => panic!("{other}: {line}"),
            };
            let key = (protocol.to_owned(), words[2].parse().unwrap());
            let after = |flag: &str| words.iter().position(|word| *word == flag).map(|place| words[place + 1]);
            let reals = servers.entry(key).or_default();
            if words[0] == "-a" && after("-w") != Some("0") {
                reals.push(after("-r").unwrap().parse().unwrap());
            }
        }
        Node {
            addresses: state.devices.values().flatten().copied().collect(),
            networks: state.routes.iter().map(|(_, route)| route.network).collect(),
            servers,
        }
    }

    pub(crate) fn is_local(&self, address: IpAddr) -> bool {
        let in_network = || self.networks.iter().any(|network| network.contains(&address));
        address.is_loopback() || self.addresses.contains(&address) || in_network()
    }

    /// Whether there is a virtual server without real servers for a packet.
    pub(crate) fn is_empty(&self, packet: &Packet) -> bool {
        self.servers.get(&(packet.protocol.clone(), packet.to)).is_some_and(Vec::is_empty)
    }

    pub(crate) fn fate(&self, guards: &dyn Guards, packet: &Packet) -> Fate {
        let mut packet = packet.clone();
        match guards.before(self, &mut packet) {
            End::Dropped => return Fate::Dropped,
            End::Rejected => return Fate::Rejected,
            End::Passed | End::Masqueraded => {}
        }
        let is_local = self.is_local(packet.to.ip());
        let reals = self.servers.get(&(packet.protocol.clone(), packet.to)).filter(|_| is_local);
        let hooks: &[Hook] = match (packet.from_node, reals) {
            // IPVS takes the packet before any other hook sees it.
            (true, Some(_)) => &[],
            (true, None) if is_local => {
                &[|guards, node, packet| guards.output(node, packet), |guards, node, packet| guards.input(node, packet)]
            }
            (true, None) => &[|guards, node, packet| guards.output(node, packet)],
            (false, _) => &[|guards, node, packet| guards.input(node, packet)],
        };
        for hook in hooks {
            match hook(guards, self, &mut packet) {
                End::Dropped => return Fate::Dropped,
                End::Rejected => return Fate::Rejected,
                End::Passed | End::Masqueraded => {}
            }
        }
        let Some(reals) = reals else { return Fate::LeftAlone };
        if reals.is_empty() {
            return Fate::Rejected;
        }
        let mut reached = BTreeMap::new();
        for real in reals {
            let mut packet = Packet { server: Some(packet.to), to: *real, ..packet.clone() };
            if guards.output(self, &mut packet) == End::Dropped {
                return Fate::Dropped;
            }
            reached.insert(*real, guards.postrouting(self, &mut packet) == End::Masqueraded);
        }
        Fate::Endpoints(reached)
    }
}

/// The entries of sets by their names, as texts of their fields.
#[derive(Default)]
pub(crate) struct Sets(pub(crate) BTreeMap<String, BTreeMap<Vec<String>, Vec<String>>>);

impl Sets {
    /// An entry, whose last field may be a network or a range.
    pub(crate) fn add(&mut self, set: &str, mut fields: Vec<String>) {
        let last = if fields.len() == 4 { fields.pop().unwrap() } else { String::new() };
        self.0.entry(set.to_owned()).or_default().entry(fields).or_default().push(last);
    }

    pub(crate) fn has(&self, set: &str, mut fields: Vec<String>) -> bool {
        let last = if fields.len() == 4 { fields.pop().unwrap() } else { String::new() };
        let there = self.0.get(set).unwrap_or_else(|| panic!("no set {set}")).get(&fields);
        there.is_some_and(|there| there.iter().any(|of| is_in(of, &last)))
    }
}

/// Whether `10.0.0.0/8` or `10.0.0.0-10.0.0.9` has an address.
pub(crate) fn covers(range: &str, address: &str) -> bool {
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    if let Some((first, last)) = range.split_once('-') {
        return (first.parse::<IpAddr>().unwrap()..=last.parse().unwrap()).contains(&address);
    }
    range.parse::<Network>().is_ok_and(|network| network.contains(&address))
}

/// Whether this is the address, or covers it.
fn is_in(network: &str, address: &str) -> bool {
    network == address || covers(network, address)
}

/// A mark, as both tools print it.
fn number(text: &str) -> u32 {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).unwrap(),
        None => text.parse().unwrap(),
    }
}
