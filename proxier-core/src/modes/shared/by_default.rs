//! Decides whether a firewall chain drops a TCP or UDP packet that matches none of its specific rules.

use std::collections::BTreeMap;

use iptables::{Rule, Table};
use nftables::expr::{CmpOp, CtKey, HeaderBase, MetaKey};
use nftables::{ChainKey, CtState, Expression, Family as NftFamily, Policy, Register, Verdict};

use crate::net::Family;
use crate::ports::Tables;

/// Depth at which following jumps stops: more than the kernel allows chains to nest.
const DEPTH: usize = 16;

/// Protocol of the connection: name and number.
type Protocol = (&'static str, u8);

const TCP: Protocol = ("tcp", 6);
const PROTOCOLS: [Protocol; 2] = [TCP, ("udp", 17)];

/// What is known about a packet besides its protocol.
pub(crate) struct Known<'a> {
    /// Whether its device has this name, or this prefix if the name ends with `+`; `None`: it may.
    pub(crate) device: &'a dyn Fn(&str) -> Option<bool>,
    /// The families that it may belong to.
    pub(crate) families: &'a [Family],
    /// Bits of the packet mark that it does not have.
    pub(crate) unmarked: u32,
    /// Whether it belongs to an existing connection and is not its first packet.
    pub(crate) is_answer: bool,
    /// Whether its destination was translated, from a Service's address to an endpoint.
    pub(crate) is_translated: bool,
    /// Whether a chain drops it although one of its rules accepts packets that match a condition.
    pub(crate) unless_accepted: bool,
}

impl Known<'_> {
    /// The first packet of a connection that no rule picks, on any device. A rule for all new connections, or for all of
    /// a protocol, picks none.
    pub(crate) const FIRST: Known<'static> = Known {
        device: &|_name| None,
        families: &Family::ALL,
        unmarked: 0,
        is_answer: false,
        is_translated: false,
        unless_accepted: true,
    };

    fn state(&self) -> CtState {
        if self.is_answer { CtState::ESTABLISHED } else { CtState::NEW }
    }
}

/// Effect of a rule on the packet.
enum Step {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

/// A rule's effect, and whether it has it on all such packets. Otherwise it has it on some.
type Effect = (Step, bool);

/// Whether a built-in chain of iptables drops or rejects such packets. It may do so by its policy, by a last rule, or by
/// the last rule of a chain to which everything jumps, as firewalld and ufw write it.
pub(crate) fn drops(table: &Table, chain: &str, known: &Known<'_>) -> bool {
    let is_policy = table.chain(chain).is_some_and(|chain| chain.policy == Some(iptables::Policy::Drop));
    PROTOCOLS.into_iter().any(|protocol| {
        let step = |rule| step(rule, protocol, known);
        let steps = |name: &str| table.chain(name).map(|chain| chain.rules.iter().filter_map(step).collect());
        is_dropped(chain, is_policy, known, &mut |name| steps(name).unwrap_or_default())
    })
}

/// As [`drops`], for an nf_tables chain with its policy. Rules that cannot be read decide nothing.
pub(crate) fn drops_in_nft(chain: &ChainKey, policy: Policy, known: &Known<'_>, tables: &mut dyn Tables) -> bool {
    let mut read = BTreeMap::new();
    let families = match chain.table.family {
        NftFamily::Ip => &[Family::V4][..],
        NftFamily::Ip6 => &[Family::V6],
        _ => &Family::ALL,
    };
    let families = families.iter().filter(|family| known.families.contains(family));
    let mut packets = families.flat_map(|family| PROTOCOLS.map(|protocol| (*family, protocol)));
    packets.any(|packet| {
        let mut steps = |name: &str| {
            let rules = read.entry(name.to_owned()).or_insert_with(|| {
                let key = nftables::Name::new(name).ok().map(|name| ChainKey { table: chain.table.clone(), name });
                key.and_then(|key| tables.rules(&key).ok()).unwrap_or_default()
            });
            rules.iter().filter_map(|observed| step_of_nft(&observed.rule, packet, known)).collect()
        };
        is_dropped(chain.name.as_str(), policy == Policy::Drop, known, &mut steps)
    })
}

/// Whether a chain's rules drop a packet, or its policy if they decide nothing.
fn is_dropped(chain: &str, is_policy: bool, known: &Known<'_>, steps: &mut dyn FnMut(&str) -> Vec<Effect>) -> bool {
    let mut may_accept = false;
    let is_dropped = decision(chain, steps, &mut may_accept, DEPTH).unwrap_or(is_policy);
    is_dropped && (known.unless_accepted || !may_accept)
}

/// Whether a packet that matches no condition is dropped; `None`: it reaches the chain's end. `may_accept` is set if a
/// rule on the way accepts packets that match its condition.
fn decision(
    chain: &str,
    steps: &mut dyn FnMut(&str) -> Vec<Effect>,
    may_accept: &mut bool,
    depth: usize,
) -> Option<bool> {
    let below = depth.checked_sub(1)?;
    for (step, is_certain) in steps(chain) {
        let decided = match &step {
            Step::Accept => Some(false),
            Step::Drop => Some(true),
            Step::Return => None,
            Step::Jump(to) | Step::Goto(to) => decision(to, steps, may_accept, below),
        };
        if !is_certain {
            *may_accept |= decided == Some(false);
        } else if decided.is_some() || matches!(step, Step::Return | Step::Goto(_)) {
            return decided;
        }
    }
    None
}

/// The effect of a rule on such a packet; `None` for a rule that only counts or logs, or that matches none of them.
fn step(rule: &Rule, protocol: Protocol, known: &Known<'_>) -> Option<Effect> {
    let mut tokens = rule.tokens().iter().map(iptables::Token::as_str).peekable();
    let (mut step, mut is_certain) = (None, true);
    while let Some(token) = tokens.next() {
        let (is_negated, token) = if token == "!" { (true, tokens.next()?) } else { (false, token) };
        // Some options have no value.
        let is_text = matches!(token, "--comment" | "--log-prefix");
        let Some(value) = tokens.next_if(|value| is_text || !value.starts_with('-')) else {
            is_certain = false;
            continue;
        };
        let is_met = match (token, value) {
            ("-m", "comment" | "conntrack" | "state" | "tcp" | "udp" | "mark") | ("--comment" | "--reject-with", _) => {
                Some(true)
            }
            ("-p", name) => Some((name == protocol.0) != is_negated),
            ("--ctstate" | "--state", states) => {
                let own = if known.is_answer { "ESTABLISHED" } else { "NEW" };
                let is_own = |state: &str| state == own || (known.is_translated && state == "DNAT");
                Some(states.split(',').any(is_own) != is_negated)
            }
            ("--tcp-flags", looked_at) => {
                let set = tokens.next()?;
                let sees_syn = looked_at.split(',').any(|flag| matches!(flag, "SYN" | "ALL"));
                (!known.is_answer).then(|| (set == if sees_syn { "SYN" } else { "NONE" }) != is_negated)
            }
            ("-i" | "-o", name) => (known.device)(name).map(|is_its| is_its != is_negated),
            ("--mark", mark) => {
                let bits =
                    mark.split('/').next().and_then(|mark| u32::from_str_radix(mark.trim_start_matches("0x"), 16).ok());
                bits.filter(|bits| *bits != 0 && bits & !known.unmarked == 0).map(|_lacks| is_negated)
            }
            ("-g", to) => {
                step = Some(Step::Goto(to.to_owned()));
                Some(true)
            }
            ("-j", target) => {
                step = Some(match target {
                    "ACCEPT" => Step::Accept,
                    "DROP" | "REJECT" => Step::Drop,
                    "RETURN" => Step::Return,
                    // Other targets have no chain with their name, which decides nothing.
                    to => Step::Jump(to.to_owned()),
                });
                Some(true)
            }
            _ => None,
        };
        if is_met == Some(false) {
            return None;
        }
        is_certain &= is_met.is_some();
    }
    step.map(|step| (step, is_certain))
}

/// The known part of a value in a register.
enum Loaded {
    Bytes(Vec<u8>),
    Device,
    Mark,
}

/// The effect of an nf_tables rule on such a packet, as in `step`.
fn step_of_nft(rule: &nftables::Rule, packet: (Family, Protocol), known: &Known<'_>) -> Option<Effect> {
    // From iptables, in its nf_tables tables: the name is the first attribute.
    let is_reject = |data: &Option<Vec<u8>>| {
        data.as_ref().and_then(|data| data.get(4..)).is_some_and(|data| data.starts_with(b"REJECT\0"))
    };
    // What is known of the packet; other register contents are unknown.
    let mut registers: BTreeMap<Option<u8>, Loaded> = BTreeMap::new();
    let mut is_certain = true;
    let mut step = None;
    for expression in &rule.expressions {
        match expression {
            Expression::Counter { .. } | Expression::Log { .. } => {}
            Expression::Cmp { register, op, value } => {
                let is_same = match registers.get(&register.number()) {
                    Some(Loaded::Bytes(bytes)) => Some(bytes == value.as_bytes()),
                    Some(Loaded::Device) => (known.device)(&device(value.as_bytes())),
                    Some(Loaded::Mark) | None => None,
                };
                match (op, is_same) {
                    (CmpOp::Eq, Some(true)) | (CmpOp::Ne, Some(false)) => {}
                    (CmpOp::Eq, Some(false)) | (CmpOp::Ne, Some(true)) => return None,
                    _ => is_certain = false,
                }
            }
            Expression::Bitwise { source, register, mask, xor, .. } => {
                let masked = match registers.get(&source.number()) {
                    Some(Loaded::Bytes(bytes)) => {
                        let bytes = bytes.iter().zip(mask.as_bytes()).zip(xor.as_bytes());
                        Some(Loaded::Bytes(bytes.map(|((byte, mask), xor)| (byte & mask) ^ xor).collect()))
                    }
                    Some(Loaded::Mark) => {
                        let bits = mask.as_bytes().first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
                        let is_zero = bits.is_some_and(|bits| bits & !known.unmarked == 0);
                        is_zero.then(|| Loaded::Bytes(xor.as_bytes().to_vec()))
                    }
                    Some(Loaded::Device) | None => None,
                };
                registers.remove(&register.number());
                registers.extend(masked.map(|masked| (register.number(), masked)));
            }
            Expression::Reject(_) => step = Some(Step::Drop),
            Expression::Verdict(verdict) => {
                step = match verdict {
                    Verdict::Accept => Some(Step::Accept),
                    Verdict::Drop => Some(Step::Drop),
                    Verdict::Return => Some(Step::Return),
                    Verdict::Jump(to) => Some(Step::Jump(to.as_str().to_owned())),
                    Verdict::Goto(to) => Some(Step::Goto(to.as_str().to_owned())),
                    _ => None,
                };
            }
            Expression::Other(other) if other.name == "target" && is_reject(&other.data) => step = Some(Step::Drop),
            Expression::Other(other) => match other.iptables_match() {
                Some(("comment", _)) => {}
                Some(("conntrack", info)) => match has_state(info, known) {
                    Some(true) => {}
                    Some(false) => return None,
                    None => is_certain = false,
                },
                _ => is_certain = false,
            },
            load => match loaded(load, packet, known) {
                Some((register, value)) => {
                    registers.remove(&register.number());
                    registers.extend(value.map(|value| (register.number(), value)));
                }
                None => is_certain = false,
            },
        }
        if step.is_some() {
            break;
        }
    }
    step.map(|step| (step, is_certain))
}

/// The device name in a comparison; one without its end stands for all names with this prefix.
fn device(bytes: &[u8]) -> String {
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let wildcard = if name.len() == bytes.len() && name.len() < 16 { "+" } else { "" };
    String::from_utf8_lossy(name).into_owned() + wildcard
}

/// The register that an expression writes, and the value: `None` within, if the packet does not determine it.
fn loaded(
    expression: &Expression,
    (family, protocol): (Family, Protocol),
    known: &Known<'_>,
) -> Option<(Register, Option<Loaded>)> {
    const SYN: u8 = 2;
    // In `struct iphdr`, `struct ipv6hdr` and `struct tcphdr`.
    let (protocol_at, flags_at) = (if family == Family::V4 { 9 } else { 6 }, 13);
    let number = || Some(Loaded::Bytes(vec![protocol.1]));
    match expression {
        Expression::Meta { key, register } => Some((
            *register,
            match key {
                MetaKey::L4Proto => number(),
                MetaKey::NfProto => Some(Loaded::Bytes(vec![if family == Family::V4 { 2 } else { 10 }])),
                MetaKey::IifName | MetaKey::OifName => Some(Loaded::Device),
                MetaKey::Mark => Some(Loaded::Mark),
                _ => None,
            },
        )),
        Expression::Ct { key, register, .. } => {
            let state = || Loaded::Bytes(known.state().bits().to_ne_bytes().to_vec());
            Some((*register, (*key == CtKey::State).then(state)))
        }
        Expression::Payload { base, offset, length: 1, register } => Some((
            *register,
            match base {
                HeaderBase::Network if *offset == protocol_at => number(),
                HeaderBase::Transport if *offset == flags_at && protocol == TCP && !known.is_answer => {
                    Some(Loaded::Bytes(vec![SYN]))
                }
                _ => None,
            },
        )),
        Expression::Payload { register, .. } | Expression::Fib { register, .. } => Some((*register, None)),
        _ => None,
    }
}

/// Whether a `struct xt_conntrack_mtinfo3`, or an earlier version, that checks nothing but the state includes that of
/// such a packet.
fn has_state(info: &[u8], known: &Known<'_>) -> Option<bool> {
    const STATE: u16 = 1;
    // `XT_CONNTRACK_STATE_DNAT`.
    const DNAT: u32 = 1 << 7;
    let number = |at: usize| Some(u16::from_ne_bytes(*info.get(at..)?.first_chunk()?));
    let (looks_at, inverted, states) = (number(146)?, number(148)?, number(150)?);
    let own = known.state().bits() | if known.is_translated { DNAT } else { 0 };
    let has_it = u32::from(states) & own != 0;
    (looks_at == STATE).then_some(has_it != (inverted & STATE != 0))
}

#[cfg(test)]
mod tests {
    use iptables::{Dump, TableName};
    use nftables::expr::{CmpOp, HeaderBase};
    use nftables::{CtState, Expression, Family as NftFamily, L4Protocol, Operand, Register, RuleBuilder, Value, rule};

    use super::{Known, PROTOCOLS, Step};
    use crate::net::Family;

    fn drops(rules: &str) -> bool {
        let text = format!("*filter\n{rules}\nCOMMIT\n");
        let dump: Dump = text.parse().unwrap();
        super::drops(dump.table(&TableName::FILTER).unwrap(), "INPUT", &Known::FIRST)
    }

    /// Chain FORWARD of a host with devices eth0 and cni0, for the first packet of a connection, or an answer.
    fn drops_all(rules: &str, is_answer: bool) -> bool {
        let text = format!("*filter\n{rules}\nCOMMIT\n");
        let dump: Dump = text.parse().unwrap();
        let device = |name: &str| (!["eth0", "cni0", "cni+"].contains(&name)).then_some(false);
        let known = Known {
            device: &device,
            unmarked: 0x4000,
            is_answer,
            is_translated: !is_answer,
            unless_accepted: false,
            ..Known::FIRST
        };
        super::drops(dump.table(&TableName::FILTER).unwrap(), "FORWARD", &known)
    }

    #[test]
    fn a_chain_that_may_accept_traffic_to_pods_does_not_drop_it() {
        let policy =
            ":FORWARD DROP [0:0]\n:DOCKER - [0:0]\n:FLANNEL-FWD - [0:0]\n:KUBE-FORWARD - [0:0]\n:NETWORKS - [0:0]";
        let of_docker = "-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -o docker0 -j DOCKER\n\
            -A FORWARD -i docker0 ! -o docker0 -j ACCEPT\n-A DOCKER -d 172.17.0.2/32 ! -i docker0 -o docker0 -p tcp -m tcp --dport 80 -j ACCEPT";
        let of_kube_proxy = "-A FORWARD -m comment --comment \"kubernetes forwarding rules\" -j KUBE-FORWARD\n\
            -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n\
            -A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n\
            -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";
        for rules in ["", of_docker, of_kube_proxy, "-A FORWARD -i lo -j ACCEPT", "-A FORWARD -s 10.9.0.0/16 -j DROP"] {
            assert!(drops_all(&format!("{policy}\n{of_docker}\n{rules}"), false), "{rules}");
        }
        for rules in [
            "-A FORWARD -j FLANNEL-FWD\n-A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT\n-A FLANNEL-FWD -d 10.244.0.0/16 -j ACCEPT",
            "-A FORWARD -i cni+ -j NETWORKS\n-A NETWORKS -j ACCEPT",
            "-A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT",
            "-A FORWARD -m set --match-set pods dst -j ACCEPT",
            "-A FORWARD -o cni0 --syn -j ACCEPT",
            "-A FORWARD -j ACCEPT",
        ] {
            assert!(!drops_all(&format!("{policy}\n{of_docker}\n{rules}"), false), "{rules}");
        }
        // firewalld's, which accepts what was translated for a Service.
        let translated = "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT";
        assert!(!drops_all(&format!("{policy}\n{translated}"), false));
        assert!(drops_all(&format!("{policy}\n-A FORWARD -m conntrack --ctstate DNAT -j ACCEPT"), true));
        assert!(drops_all(&format!("{policy}\n-A FORWARD -m conntrack ! --ctstate DNAT -j ACCEPT"), false));
        assert!(drops_all(&format!("{policy}\n{of_docker}"), true));
        assert!(!drops_all(&format!("{policy}\n{of_kube_proxy}"), true));
    }

    #[test]
    fn the_policy_decides_if_no_rule_does() {
        assert!(drops(":INPUT DROP [0:0]\n-A INPUT -i lo -j ACCEPT"));
        assert!(!drops(":INPUT ACCEPT [0:0]\n-A INPUT -i eth1 -j DROP"));
        assert!(!drops(":INPUT DROP [0:0]\n-A INPUT -m comment --comment \"-j DROP\" -j ACCEPT"));
        assert!(!drops(":INPUT ACCEPT [0:0]"));
        assert!(!drops(":FORWARD DROP [0:0]"));
        // Chains that never end decide nothing.
        assert!(!drops(":INPUT ACCEPT [0:0]\n:A - [0:0]\n-A INPUT -j A\n-A A -j A\n-A INPUT -j B"));
    }

    #[test]
    fn a_final_rule_can_drop_by_default() {
        let established = ":INPUT ACCEPT [0:0]\n-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";
        for last in [
            "-j DROP",
            "-j REJECT --reject-with icmp-host-prohibited",
            "-m comment --comment \"the rest\" -j DROP",
            "-m conntrack --ctstate NEW -j DROP",
            "-m conntrack --ctstate INVALID,NEW -j DROP",
            "-m conntrack ! --ctstate RELATED,ESTABLISHED -j DROP",
            "-m state --state NEW -j REJECT --reject-with icmp-host-prohibited",
            "-p tcp -j REJECT --reject-with tcp-reset",
            "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j DROP",
            "-p udp -m comment --comment x -m conntrack --ctstate NEW -j DROP",
            "! -p icmp -j DROP",
            "-p tcp -j ACCEPT\n-A INPUT -j DROP",
        ] {
            assert!(drops(&format!("{established}\n-A INPUT {last}")), "{last}");
        }
        for last in [
            "! -s 10.0.0.0/8 -j DROP",
            "-j LOG --log-prefix \"-j DROP\"",
            "-j ACCEPT\n-A INPUT -j DROP",
            "-m conntrack --ctstate INVALID -j DROP",
            "-m conntrack ! --ctstate NEW -j DROP",
            "-m conntrack --ctstate NEW -m conntrack --ctorigsrc 10.0.0.0/8 -j DROP",
            "-p icmp -j DROP",
            "-p sctp -j REJECT",
            "-p tcp -m tcp --dport 22 -j DROP",
            "-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -m conntrack --ctstate NEW -j DROP",
            "-i eth1 -p tcp -j DROP",
            "-p tcp -m limit --limit 5/sec -j DROP",
            "-m conntrack --ctstate NEW -j ACCEPT\n-A INPUT -j DROP",
            "-p tcp -j ACCEPT\n-A INPUT -p udp -j ACCEPT\n-A INPUT -j DROP",
        ] {
            assert!(!drops(&format!("{established}\n-A INPUT {last}")), "{last}");
        }
    }

    #[test]
    fn rules_of_nf_tables_for_new_connections_count() {
        let rule = || rule(NftFamily::Inet);
        let drops = |rule: RuleBuilder| {
            let rule = rule.drop_packet().build().unwrap();
            let packets = Family::ALL.into_iter().flat_map(|family| PROTOCOLS.map(|protocol| (family, protocol)));
            packets
                .filter(|packet| matches!(super::step_of_nft(&rule, *packet, &Known::FIRST), Some((Step::Drop, true))))
                .count()
        };
        let byte = |byte: u8| Value::new(&[byte]).unwrap();
        let flags =
            Expression::Payload { base: HeaderBase::Transport, offset: 13, length: 1, register: Register::FIRST };
        let (source, register) = (Register::FIRST, Register::FIRST);
        let is_syn = [
            flags,
            Expression::Bitwise { source, register, length: 1, mask: byte(0x17), xor: byte(0) },
            Expression::Cmp { register, op: CmpOp::Eq, value: byte(2) },
        ];
        let is_syn = |rule: RuleBuilder| is_syn.iter().cloned().fold(rule, RuleBuilder::expression);
        let state = |op| rule().matches(&Operand::CT_STATE.masked(Value::mark(6)), op, Value::mark(0));
        for (count, rule) in [
            (4, rule()),
            (4, rule().ct_state(CtState::NEW)),
            (4, rule().ct_state(CtState::NEW | CtState::INVALID)),
            (0, rule().ct_state(CtState::ESTABLISHED | CtState::RELATED)),
            (4, state(CmpOp::Eq)),
            (0, state(CmpOp::Ne)),
            (2, rule().meta_l4proto(L4Protocol::TCP)),
            (2, rule().ct_state(CtState::NEW).meta_l4proto(L4Protocol::UDP)),
            (0, rule().meta_l4proto(L4Protocol::SCTP)),
            (2, is_syn(rule().meta_l4proto(L4Protocol::TCP))),
            (0, is_syn(rule().meta_l4proto(L4Protocol::UDP))),
            (0, rule().saddr_not_in([10, 0, 0, 0].into(), 8)),
            (0, rule().ct_state(CtState::NEW).matches(&Operand::DPORT, CmpOp::Eq, Value::new(&[0, 22]).unwrap())),
        ] {
            let shown = format!("{rule:?}");
            assert_eq!(drops(rule), count, "{shown}");
        }
    }

    #[test]
    fn states_in_matches_of_iptables_count() {
        let has = |states: u16, inverted: u16, is_translated: bool| {
            let mut info = vec![0; 160];
            for (at, number) in [(146, 1), (148, inverted), (150, states)] {
                info.splice(at..at + 2, number.to_ne_bytes());
            }
            super::has_state(&info, &Known { is_translated, ..Known::FIRST })
        };
        let (new, translated) = (1 << 3, 1 << 7);
        assert_eq!(
            [has(new, 0, false), has(new, 1, false), has(1 << 1, 0, true)],
            [Some(true), Some(false), Some(false)]
        );
        assert_eq!([has(translated, 0, false), has(translated, 0, true)], [Some(false), Some(true)]);
    }

    #[test]
    fn firewalld_rejects_at_the_end() {
        let firewalld = ":INPUT ACCEPT [0:0]\n:INPUT_ZONES - [0:0]\n:IN_public - [0:0]\n:IN_public_allow - [0:0]\n\
            -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT\n-A INPUT -i lo -j ACCEPT\n\
            -A INPUT -j INPUT_ZONES\n-A INPUT -m conntrack --ctstate INVALID -j DROP\n";
        let zone = "-A INPUT_ZONES -i eth0 -g IN_public\n-A INPUT_ZONES -g IN_public\n-A IN_public -j IN_public_allow\n\
            -A IN_public_allow -p tcp -m tcp --dport 22 -m conntrack --ctstate NEW,UNTRACKED -j ACCEPT\n";
        let last = "-A INPUT -j REJECT --reject-with icmp-host-prohibited";
        assert!(drops(&format!("{firewalld}{zone}{last}")));
        assert!(drops(&format!("{firewalld}{zone}-A IN_public -j REJECT --reject-with icmp-host-prohibited")));
        // The zone "trusted".
        assert!(!drops(&format!("{firewalld}{zone}-A IN_public -j ACCEPT\n{last}")));
    }

    #[test]
    fn ufw_jumps_to_a_chain_that_rejects() {
        let ufw = ":INPUT ACCEPT [0:0]\n:ufw-before-input - [0:0]\n:ufw-after-input - [0:0]\n:ufw-reject-input - [0:0]\n\
            :ufw-skip-to-policy-input - [0:0]\n:ufw-track-input - [0:0]\n\
            -A INPUT -j ufw-before-input\n-A INPUT -j ufw-after-input\n-A INPUT -j ufw-reject-input\n-A INPUT -j ufw-track-input\n\
            -A ufw-before-input -i lo -j ACCEPT\n-A ufw-after-input -p udp -m udp --dport 137 -j ufw-skip-to-policy-input\n\
            -A ufw-skip-to-policy-input -j REJECT --reject-with icmp-port-unreachable\n";
        assert!(drops(&format!("{ufw}-A ufw-reject-input -j REJECT --reject-with icmp-port-unreachable")));
        assert!(drops(&ufw.replace(":INPUT ACCEPT", ":INPUT DROP")));
        assert!(!drops(ufw));
    }
}
