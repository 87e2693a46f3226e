//! Rules of iptables with ipsets.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use iptables::{Rule, Token};
use proxier_core::fake::KernelState;
use proxier_core::net::Family;

use super::{End, Guards, Node, Packet, Sets, is_in, number};

pub(crate) struct Iptables {
    /// Rules as words, by table and name of their chain.
    chains: BTreeMap<String, Vec<Vec<String>>>,
    sets: Sets,
}

/// Effect of a rule.
enum Then {
    Ends(End),
    /// The chain ends, and the one that went to it goes on.
    Returns,
}

impl Iptables {
    pub(crate) fn new(state: &KernelState, family: Family) -> Self {
        let family = if family == Family::V4 { iptables::Family::Ipv4 } else { iptables::Family::Ipv6 };
        let mut chains: BTreeMap<String, Vec<Vec<String>>> = BTreeMap::new();
        for (_, text) in state.rules.iter().filter(|((of, _), _)| *of == family) {
            let mut table = "";
            for line in text.lines() {
                if let Some(name) = line.strip_prefix('*') {
                    table = name;
                } else if let Some(declared) = line.strip_prefix(':') {
                    chains.entry(format!("{table} {}", declared.split(' ').next().unwrap())).or_default();
                } else if let Some((_, rule)) = line.split_once("-A ") {
                    let (chain, rule) = rule.split_once(' ').unwrap();
                    let rule = Rule::parse(rule).unwrap();
                    let words = rule.tokens().iter().map(Token::as_str).map(str::to_owned).collect();
                    chains.get_mut(&format!("{table} {chain}")).unwrap().push(words);
                }
            }
        }
        let mut sets = Sets::default();
        for (name, (_, entries)) in &state.sets {
            sets.0.entry(name.clone()).or_default();
            for entry in entries {
                let fields = entry.split(',').flat_map(|field| match field.split_once(':') {
                    Some((protocol @ ("tcp" | "udp" | "sctp"), port)) => vec![protocol.to_owned(), port.to_owned()],
                    _ => vec![field.to_owned()],
                });
                sets.add(name, fields.collect());
            }
        }
        Iptables { chains, sets }
    }

    fn base(&self, node: &Node, chain: &str, packet: &mut Packet) -> End {
        // A built-in chain may have no own rules.
        let known = self.chains.contains_key(chain);
        match if known { self.chain(node, chain, packet) } else { Then::Returns } {
            Then::Ends(end) => end,
            Then::Returns => End::Passed,
        }
    }

    fn chain(&self, node: &Node, chain: &str, packet: &mut Packet) -> Then {
        let table = chain.split(' ').next().unwrap();
        for rule in self.chains.get(chain).unwrap_or_else(|| panic!("no chain {chain}")) {
            if !self.matches(node, rule, packet) {
                continue;
            }
            let Some(place) = rule.iter().position(|word| word == "-j") else { continue };
            let target: Vec<&str> = rule[place + 1..].iter().map(String::as_str).collect();
            match &target[..] {
                ["ACCEPT"] => return Then::Ends(End::Passed),
                ["RETURN"] => return Then::Returns,
                ["DROP"] => return Then::Ends(End::Dropped),
                ["REJECT", ..] => return Then::Ends(End::Rejected),
                ["MASQUERADE", ..] => return Then::Ends(End::Masqueraded),
                ["MARK", "--or-mark", mark] => packet.mark |= number(mark),
                ["MARK", "--xor-mark", mark] => packet.mark ^= number(mark),
                ["MARK", "--set-xmark", mark] => {
                    let (value, mask) = mark.split_once('/').unwrap();
                    packet.mark = packet.mark & !number(mask) ^ number(value);
                }
                [name] => {
                    if let Then::Ends(end) = self.chain(node, &format!("{table} {name}"), packet) {
                        return Then::Ends(end);
                    }
                }
                other => panic!("{other:?}"),
            }
        }
        Then::Returns
    }

    fn matches(&self, node: &Node, rule: &[String], packet: &Packet) -> bool {
        let mut words = rule.iter().map(String::as_str);
        let mut negated = false;
        // Virtual server for the match `ipvs`.
        let virtual_server: fn(&Packet) -> Option<SocketAddr> = |packet| packet.server;
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap();
            let holds = match word {
                "!" => {
                    negated = true;
                    continue;
                }
                "-j" => break,
                "-m" | "--comment" => {
                    value();
                    continue;
                }
                "-p" => value() == packet.protocol,
                "-s" => is_in(value(), &packet.source.to_string()),
                "-d" => is_in(value(), &packet.to.ip().to_string()),
                "--src-type" => value() == "LOCAL" && node.is_local(packet.source),
                "--dst-type" => value() == "LOCAL" && node.is_local(packet.to.ip()),
                // No packet comes over a bridge.
                "--physdev-is-in" => false,
                "--ctstate" => value().split(',').any(|state| state == "NEW"),
                "--mark" => {
                    let (mark, mask) = value().split_once('/').unwrap();
                    packet.mark & number(mask) == number(mark)
                }
                "--match-set" => {
                    let (set, directions) = (value().to_owned(), value());
                    self.sets.has(&set, fields(&set, directions, packet))
                }
                "--vaddr" => virtual_server(packet).is_some_and(|at| is_in(value(), &at.ip().to_string())),
                "--vport" => virtual_server(packet).is_some_and(|at| value() == at.port().to_string()),
                "--vproto" => {
                    let protocol = value();
                    let numbers = [("tcp", "6"), ("udp", "17"), ("sctp", "132")];
                    virtual_server(packet).is_some()
                        && (protocol == packet.protocol || numbers.contains(&(&*packet.protocol, protocol)))
                }
                other => panic!("{other} in {rule:?}"),
            };
            if holds == negated {
                return false;
            }
            negated = false;
        }
        true
    }
}

/// Fields by which a packet is looked up in a set.
fn fields(set: &str, directions: &str, packet: &Packet) -> Vec<String> {
    let (port, to, source) = (packet.to.port().to_string(), packet.to.ip().to_string(), packet.source.to_string());
    let ports_only =
        set.contains("NODE-PORT") && !set.contains("SCTP") && !set.contains("SERVED") || set.contains("HEALTH-CHECK");
    match directions {
        "dst" if ports_only => vec![port],
        "dst" => vec![to],
        "dst,dst" => vec![to, packet.protocol.clone(), port],
        "src,dst" => vec![source, packet.protocol.clone(), port],
        "dst,dst,src" => vec![to, packet.protocol.clone(), port, source],
        other => panic!("{other}"),
    }
}

impl Guards for Iptables {
    fn before(&self, node: &Node, packet: &mut Packet) -> End {
        self.base(node, if packet.from_node { "nat OUTPUT" } else { "nat PREROUTING" }, packet)
    }

    fn input(&self, node: &Node, packet: &mut Packet) -> End {
        self.base(node, if node.is_local(packet.to.ip()) { "filter INPUT" } else { "filter FORWARD" }, packet)
    }

    fn output(&self, node: &Node, packet: &mut Packet) -> End {
        self.base(node, "filter OUTPUT", packet)
    }

    fn postrouting(&self, node: &Node, packet: &mut Packet) -> End {
        self.base(node, "nat POSTROUTING", packet)
    }
}
