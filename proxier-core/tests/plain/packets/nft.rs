//! A table of nf_tables, in the words of `nft list table`.

use std::collections::BTreeMap;

use proxier_core::fake::KernelState;
use proxier_core::net::Family;

use super::{End, Guards, Node, Packet, Sets, covers, is_in, number};

pub(crate) struct Nft {
    chains: BTreeMap<String, Vec<Vec<String>>>,
    sets: Sets,
}

enum Then {
    Ends(End),
    /// The chain that went to it goes on.
    Returns,
}

/// The values of a packet that a rule compares.
enum Value {
    Fields(Vec<String>),
    Mark(u32),
}

impl Nft {
    pub(crate) fn new(state: &KernelState, family: Family) -> Self {
        let name = if family == Family::V4 { "ip proxier-ipvs" } else { "ip6 proxier-ipvs" };
        let text = state.tables.get(name).map_or("", String::as_str);
        let (mut chains, mut sets) = (BTreeMap::<String, Vec<Vec<String>>>::new(), Sets::default());
        let (mut block, mut elements) = (Vec::new(), None::<String>);
        for line in text.lines().map(str::trim) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match (&words[..], &mut elements) {
                (_, Some(list)) => {
                    list.push(' ');
                    list.push_str(line);
                }
                ([kind @ ("set" | "map" | "chain"), name, "{"], _) => {
                    block = vec![(*kind).to_owned(), (*name).to_owned()];
                    match *kind {
                        "chain" => drop(chains.insert((*name).to_owned(), Vec::new())),
                        _ => drop(sets.0.insert((*name).to_owned(), BTreeMap::new())),
                    }
                }
                (["elements", "=", ..], _) => elements = Some(line.split_once('{').unwrap().1.to_owned()),
                (["}"], _) => block.clear(),
                (["type", "nat" | "filter", ..], _) => {}
                (_, _) if block.first().is_some_and(|kind| kind == "chain") && !words.is_empty() => {
                    let words = words.into_iter().map(str::to_owned).collect();
                    chains.get_mut(&block[1]).unwrap().push(words);
                }
                _ => {}
            }
            if let Some(list) = elements.take_if(|list| list.trim_end().ends_with('}')) {
                for element in list.trim_end().trim_end_matches('}').split(',').map(str::trim) {
                    if !element.is_empty() {
                        let fields = element.split(" . ").map(|field| field.trim().to_owned()).collect();
                        sets.add(&block[1], fields);
                    }
                }
            }
        }
        assert!(chains.is_empty() || chains.len() > 15, "{text}");
        Nft { chains, sets }
    }

    fn base(&self, node: &Node, chain: &str, packet: &mut Packet) -> End {
        match self.chain(node, chain, packet) {
            Then::Ends(end) => end,
            Then::Returns => End::Passed,
        }
    }

    fn chain(&self, node: &Node, chain: &str, packet: &mut Packet) -> Then {
        'rules: for rule in self.chains.get(chain).unwrap_or_else(|| panic!("no chain {chain}")) {
            let words: Vec<&str> = rule.iter().map(String::as_str).collect();
            let mut rest = &words[..];
            while !rest.is_empty() {
                match rest {
                    ["return"] => return Then::Returns,
                    ["drop"] => return Then::Ends(End::Dropped),
                    ["reject", ..] => return Then::Ends(End::Rejected),
                    ["masquerade", ..] => return Then::Ends(End::Masqueraded),
                    // The packet goes to its own destination.
                    ["dnat", "to", "ip" | "ip6", "daddr"] => return Then::Ends(End::Passed),
                    ["goto", name] => return self.chain(node, name, packet),
                    ["jump", name] => {
                        if let Then::Ends(end) = self.chain(node, name, packet) {
                            return Then::Ends(end);
                        }
                        rest = &[];
                    }
                    ["meta", "mark", "set", "meta", "mark", more @ ..] => {
                        let mut left = more;
                        while let [op @ ("&" | "|" | "^"), value, more @ ..] = left {
                            let value = number(value);
                            match *op {
                                "&" => packet.mark &= value,
                                "|" => packet.mark |= value,
                                _ => packet.mark ^= value,
                            }
                            left = more;
                        }
                        rest = left;
                    }
                    ["ct", "state", "new", more @ ..] => rest = more,
                    _ => {
                        let (holds, more) = self.compare(node, rest, packet);
                        if !holds {
                            continue 'rules;
                        }
                        rest = more;
                    }
                }
            }
        }
        Then::Returns
    }

    /// Whether the comparison at the beginning of a rule holds, and the rest of the rule.
    fn compare<'a>(&self, node: &Node, rule: &'a [&'a str], packet: &Packet) -> (bool, &'a [&'a str]) {
        let (mut fields, mut rest) = (Vec::new(), rule);
        let value = loop {
            let (value, more) = operand(node, rest, packet);
            rest = more;
            match value {
                Value::Fields(more) => fields.extend(more),
                mark @ Value::Mark(_) => break mark,
            }
            match rest {
                [".", more @ ..] => rest = more,
                _ => break Value::Fields(fields),
            }
        };
        match (value, rest) {
            (Value::Mark(mark), ["&", mask, "==", wanted, more @ ..]) => (mark & number(mask) == number(wanted), more),
            (Value::Fields(fields), [set, more @ ..]) if set.starts_with('@') => {
                (self.sets.has(&set[1..], fields), more)
            }
            (Value::Fields(fields), ["&", mask, op @ ("==" | "!="), network, more @ ..]) => {
                let prefix: u32 = mask.parse::<std::net::IpAddr>().map_or_else(|_| panic!("{mask}"), ones);
                ((covers(&format!("{network}/{prefix}"), &fields[0])) == (*op == "=="), more)
            }
            (Value::Fields(fields), ["!=", wanted, more @ ..]) => (!is_in(wanted, &fields[0]), more),
            (Value::Fields(fields), ["==", wanted, more @ ..] | [wanted, more @ ..]) => {
                (is_in(wanted, &fields[0]), more)
            }
            _ => panic!("{rule:?}"),
        }
    }
}

fn ones(mask: std::net::IpAddr) -> u32 {
    match mask {
        std::net::IpAddr::V4(mask) => u32::from(mask).leading_ones(),
        std::net::IpAddr::V6(mask) => u128::from(mask).leading_ones(),
    }
}

/// Value of a packet that the beginning of a rule names, and the rest of the rule.
fn operand<'a>(node: &Node, rule: &'a [&'a str], packet: &Packet) -> (Value, &'a [&'a str]) {
    let local = |address| if node.is_local(address) { "local" } else { "unicast" }.to_owned();
    let (field, rest) = match rule {
        ["ip" | "ip6", "saddr", rest @ ..] => (packet.source.to_string(), rest),
        ["ip" | "ip6", "daddr", rest @ ..] => (packet.to.ip().to_string(), rest),
        ["meta", "l4proto", rest @ ..] => (packet.protocol.clone(), rest),
        [of @ ("tcp" | "udp" | "sctp"), "dport", rest @ ..] => {
            let port = if *of == packet.protocol { packet.to.port().to_string() } else { "none".to_owned() };
            (port, rest)
        }
        ["th", "dport", rest @ ..] => (packet.to.port().to_string(), rest),
        ["fib", "saddr", "type", rest @ ..] => (local(packet.source), rest),
        ["fib", "daddr", "type", rest @ ..] => (local(packet.to.ip()), rest),
        ["meta", "mark", rest @ ..] => return (Value::Mark(packet.mark), rest),
        other => panic!("{other:?}"),
    };
    (Value::Fields(vec![field]), rest)
}

impl Guards for Nft {
    fn before(&self, node: &Node, packet: &mut Packet) -> End {
        if !packet.from_node {
            return self.base(node, "prerouting", packet);
        }
        match self.base(node, "output-filter", packet) {
            End::Dropped => End::Dropped,
            _ => self.base(node, "output", packet),
        }
    }

    fn input(&self, node: &Node, packet: &mut Packet) -> End {
        self.base(node, if node.is_local(packet.to.ip()) { "input-filter" } else { "forward-filter" }, packet)
    }

    /// Chains of type `nat` do not see packets that IPVS has sent on.
    fn output(&self, node: &Node, packet: &mut Packet) -> End {
        self.base(node, "output-filter", packet)
    }

    fn postrouting(&self, node: &Node, packet: &mut Packet) -> End {
        self.base(node, "postrouting", packet)
    }
}
