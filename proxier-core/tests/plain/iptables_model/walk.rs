//! Way of the first packet of a connection: hook by hook, over all random branches.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use iptables::{Rule, Token};
use proxier_core::net::Network;

use super::tables::Tables;

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// Goes on to its own destination.
    Untouched,
    Dropped,
    Rejected,
    /// Reaches this endpoint, with its source rewritten or not.
    Reaches {
        endpoint: SocketAddr,
        masqueraded: bool,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) protocol: String,
    pub(crate) source: IpAddr,
    pub(crate) to: SocketAddr,
    /// Sent by a program of this node.
    pub(crate) from_node: bool,
}

/// A packet on its way along one of the random branches.
#[derive(Clone, Debug)]
struct Branch {
    destination: SocketAddr,
    mark: u32,
    redirected: bool,
    masqueraded: bool,
    /// The fraction of connections that go this way.
    probability: f64,
    /// Lists that the client was noted in.
    noted: Vec<String>,
}

enum End {
    /// The chain ended.
    Returned,
    Accepted,
    Dropped,
    Rejected,
}

pub(crate) struct Walk {
    chains: BTreeMap<(String, String), Vec<Rule>>,
    local: BTreeSet<IpAddr>,
    /// Seconds of the affinity rules that were passed, and lists of clients.
    pub(crate) looked_up: BTreeSet<(u32, String)>,
    pub(crate) noted: BTreeSet<String>,
}

impl Walk {
    pub(crate) fn new(tables: &Tables, local: BTreeSet<IpAddr>) -> Self {
        let parse = |rules: &[String]| rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
        let chains = tables.chains();
        let chains = chains.map(|(table, chain, rules)| ((table.to_owned(), chain.to_owned()), parse(rules))).collect();
        Walk { chains, local, looked_up: BTreeSet::new(), noted: BTreeSet::new() }
    }

    fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.local.contains(&address)
    }

    /// All fates with their probabilities.
    pub(crate) fn fates(&mut self, packet: &Packet) -> BTreeMap<Fate, f64> {
        self.looked_up.clear();
        self.noted.clear();
        let mut fates: BTreeMap<Fate, f64> = BTreeMap::new();
        let start = Branch {
            destination: packet.to,
            mark: 0,
            redirected: false,
            masqueraded: false,
            probability: 1.0,
            noted: Vec::new(),
        };
        let mut alive = vec![start];
        let mut hook = |walk: &mut Walk,
                        alive: &mut Vec<Branch>,
                        table: &str,
                        chain: &str,
                        at: &dyn Fn(&Walk, &Branch) -> bool| {
            let mut after = Vec::new();
            for branch in std::mem::take(alive) {
                if !at(walk, &branch) {
                    after.push(branch);
                    continue;
                }
                for (branch, end) in walk.chain(packet, table, chain, branch) {
                    let fate = match end {
                        End::Dropped => Fate::Dropped,
                        End::Rejected => Fate::Rejected,
                        End::Returned | End::Accepted => {
                            after.push(branch);
                            continue;
                        }
                    };
                    *fates.entry(fate).or_default() += branch.probability;
                }
            }
            *alive = after;
        };
        let always = |_: &Walk, _: &Branch| true;
        let stays = |walk: &Walk, branch: &Branch| walk.is_local(branch.destination.ip());
        let leaves = |walk: &Walk, branch: &Branch| !walk.is_local(branch.destination.ip());
        if packet.from_node {
            hook(self, &mut alive, "nat", "OUTPUT", &always);
            hook(self, &mut alive, "filter", "OUTPUT", &always);
            hook(self, &mut alive, "nat", "POSTROUTING", &always);
            hook(self, &mut alive, "filter", "INPUT", &stays);
        } else {
            hook(self, &mut alive, "nat", "PREROUTING", &always);
            hook(self, &mut alive, "filter", "INPUT", &stays);
            hook(self, &mut alive, "filter", "FORWARD", &leaves);
            hook(self, &mut alive, "nat", "POSTROUTING", &leaves);
        }
        for branch in alive {
            let fate = if branch.redirected {
                self.noted.extend(branch.noted);
                Fate::Reaches { endpoint: branch.destination, masqueraded: branch.masqueraded }
            } else {
                Fate::Untouched
            };
            *fates.entry(fate).or_default() += branch.probability;
        }
        fates
    }

    /// All ways through a chain.
    fn chain(&mut self, packet: &Packet, table: &str, chain: &str, branch: Branch) -> Vec<(Branch, End)> {
        let rules = self.chains.get(&(table.to_owned(), chain.to_owned())).unwrap_or_else(|| panic!("{chain}")).clone();
        let mut ways = Vec::new();
        let mut alive = vec![branch];
        for rule in &rules {
            let mut after = Vec::new();
            for branch in alive {
                let matched = self.matches(packet, rule, &branch);
                if matched < 1.0 {
                    after.push(Branch { probability: branch.probability * (1.0 - matched), ..branch.clone() });
                }
                if matched > 0.0 {
                    let branch = Branch { probability: branch.probability * matched, ..branch };
                    for (branch, end) in self.target(packet, table, rule, branch) {
                        match end {
                            None => after.push(branch),
                            Some(end) => ways.push((branch, end)),
                        }
                    }
                }
            }
            alive = after;
        }
        ways.extend(alive.into_iter().map(|branch| (branch, End::Returned)));
        ways
    }

    /// The probability that a rule matches.
    fn matches(&mut self, packet: &Packet, rule: &Rule, branch: &Branch) -> f64 {
        let mut words = rule.tokens().iter().map(Token::as_str);
        let (mut probability, mut negated, mut list) = (1.0, false, "");
        let (mut seconds, mut rcheck) = (0, false);
        while let Some(word) = words.next() {
            let mut value = || words.next().unwrap();
            let holds = match word {
                "!" => {
                    negated = true;
                    continue;
                }
                "-j" => break,
                "-m" | "--comment" | "--mode" => {
                    value();
                    continue;
                }
                "--name" => {
                    list = value();
                    continue;
                }
                "--seconds" => {
                    seconds = value().parse().unwrap();
                    continue;
                }
                "--reap" | "--set" => continue,
                // The client has not connected before.
                "--rcheck" => {
                    rcheck = true;
                    continue;
                }
                "--probability" => {
                    probability = value().parse().unwrap();
                    continue;
                }
                "-p" => value() == packet.protocol,
                "-s" => within(value(), packet.source),
                "-d" => within(value(), branch.destination.ip()),
                "--dport" => value().parse::<u16>().unwrap() == branch.destination.port(),
                "--src-type" => {
                    assert_eq!(value(), "LOCAL");
                    self.is_local(packet.source)
                }
                "--dst-type" => {
                    assert_eq!(value(), "LOCAL");
                    self.is_local(branch.destination.ip())
                }
                "--ctstate" => value().split(',').any(|state| state == "NEW" || state == "DNAT" && branch.redirected),
                "--mark" => {
                    let (mark, mask) = value().split_once('/').unwrap();
                    branch.mark & number(mask) == number(mark)
                }
                other => panic!("{other} in {rule}"),
            };
            if holds == negated {
                return 0.0;
            }
            negated = false;
        }
        if rcheck {
            self.looked_up.insert((seconds, list.to_owned()));
            return 0.0;
        }
        probability
    }

    fn target(&mut self, packet: &Packet, table: &str, rule: &Rule, mut branch: Branch) -> Vec<(Branch, Option<End>)> {
        let words: Vec<&str> = rule.tokens().iter().map(Token::as_str).collect();
        if let Some(place) = words.iter().position(|word| *word == "--set") {
            let name = words[..place].iter().position(|word| *word == "--name").unwrap();
            branch.noted.push(words[name + 1].to_owned());
        }
        let Some(place) = words.iter().position(|word| *word == "-j") else { return vec![(branch, None)] };
        let end = match &words[place + 1..] {
            ["ACCEPT"] => Some(End::Accepted),
            ["RETURN"] => Some(End::Returned),
            ["DROP"] => Some(End::Dropped),
            ["REJECT"] => Some(End::Rejected),
            ["MARK", "--or-mark", mark] => {
                branch.mark |= number(mark);
                None
            }
            ["MARK", "--xor-mark", mark] => {
                branch.mark ^= number(mark);
                None
            }
            ["MASQUERADE", "--random-fully"] => {
                branch.masqueraded = true;
                Some(End::Accepted)
            }
            ["DNAT", "--to-destination", to] => {
                branch.destination = to.parse().unwrap();
                branch.redirected = true;
                Some(End::Accepted)
            }
            [chain] => {
                let ways = self.chain(packet, table, chain, branch).into_iter();
                let on = |end| if matches!(end, End::Returned) { None } else { Some(end) };
                return ways.map(|(branch, end)| (branch, on(end))).collect();
            }
            other => panic!("{other:?}"),
        };
        vec![(branch, end)]
    }
}

fn within(network: &str, address: IpAddr) -> bool {
    match network.parse::<Network>() {
        Ok(network) => network.contains(&address),
        Err(_) => network.parse::<IpAddr>().unwrap() == address,
    }
}

fn number(text: &str) -> u32 {
    u32::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}
