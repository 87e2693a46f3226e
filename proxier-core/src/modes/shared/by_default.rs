//! A firewall's chain, and the first packet of a connection, by TCP or UDP, that meets no condition of its rules but those that each such
//! packet meets.

use std::collections::BTreeMap;

use iptables::{Rule, Table};
use nftables::expr::{CmpOp, CtKey, HeaderBase, MetaKey};
use nftables::{ChainKey, CtState, Expression, Family as NftFamily, Policy, Register, Verdict};

use crate::net::Family;
use crate::ports::Tables;

/// Depth at which following jumps ends: more than the kernel lets chains jump to one another.
const DEPTH: usize = 16;

/// Protocol of the connection: name and number.
type Protocol = (&'static str, u8);

const TCP: Protocol = ("tcp", 6);
const PROTOCOLS: [Protocol; 2] = [TCP, ("udp", 17)];

/// Effect of a rule on the packet.
enum Step {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

/// Whether a built-in chain of iptables drops or rejects new connections that no rule picks: by its policy, or by a rule at its end or
/// at that of a chain to which everything jumps, as firewalld and ufw write it. A rule for all new connections, or for all of a protocol,
/// picks none.
pub(crate) fn drops(table: &Table, chain: &str) -> bool {
    let by_policy = || table.chain(chain).is_some_and(|chain| chain.policy == Some(iptables::Policy::Drop));
    PROTOCOLS.into_iter().any(|protocol| {
        let step = |rule| step(rule, protocol);
        let steps = |name: &str| table.chain(name).map(|chain| chain.rules.iter().filter_map(step).collect());
        decision(chain, &mut |name| steps(name).unwrap_or_default(), DEPTH).unwrap_or_else(by_policy)
    })
}

/// The same of a chain of nf_tables, with its policy. Rules that cannot be read, and those that look into sets, decide nothing.
pub(crate) fn drops_in_nft(chain: &ChainKey, policy: Policy, tables: &mut dyn Tables) -> bool {
    let mut read = BTreeMap::new();
    let families = match chain.table.family {
        NftFamily::Ip => &[Family::V4][..],
        NftFamily::Ip6 => &[Family::V6],
        _ => &Family::ALL,
    };
    let packets = families.iter().flat_map(|family| PROTOCOLS.map(|protocol| (*family, protocol)));
    packets.into_iter().any(|packet| {
        let mut steps = |name: &str| {
            let rules = read.entry(name.to_owned()).or_insert_with(|| {
                let key = nftables::Name::new(name).ok().map(|name| ChainKey { table: chain.table.clone(), name });
                key.and_then(|key| tables.rules(&key).ok()).unwrap_or_default()
            });
            rules.iter().filter_map(|observed| step_of_nft(&observed.rule, packet)).collect()
        };
        decision(chain.name.as_str(), &mut steps, DEPTH).unwrap_or(policy == Policy::Drop)
    })
}

/// Whether a packet that meets no condition is dropped; `None`: it comes to the chain's end.
fn decision(chain: &str, steps: &mut dyn FnMut(&str) -> Vec<Step>, depth: usize) -> Option<bool> {
    let below = depth.checked_sub(1)?;
    for step in steps(chain) {
        let decided = match step {
            Step::Accept => Some(false),
            Step::Drop => Some(true),
            Step::Return => return None,
            Step::Jump(to) => decision(&to, steps, below),
            Step::Goto(to) => return decision(&to, steps, below),
        };
        if decided.is_some() {
            return decided;
        }
    }
    None
}

/// Effect of a rule on the first packet of a connection; `None` for a rule that only counts or logs, and for one with a condition that not
/// each such packet meets.
fn step(rule: &Rule, protocol: Protocol) -> Option<Step> {
    let mut tokens = rule.tokens().iter().map(iptables::Token::as_str);
    let mut step = None;
    while let Some(token) = tokens.next() {
        let (is_negated, token) = if token == "!" { (true, tokens.next()?) } else { (false, token) };
        let value = tokens.next()?;
        let is_met = match (token, value) {
            ("-m", "comment" | "conntrack" | "state" | "tcp" | "udp") | ("--comment" | "--reject-with", _) => true,
            ("-p", name) => (name == protocol.0) != is_negated,
            ("--ctstate" | "--state", states) => states.split(',').any(|state| state == "NEW") != is_negated,
            ("--tcp-flags", looked_at) => {
                let set = tokens.next()?;
                let sees_syn = looked_at.split(',').any(|flag| matches!(flag, "SYN" | "ALL"));
                (set == if sees_syn { "SYN" } else { "NONE" }) != is_negated
            }
            ("-g", to) => {
                step = Some(Step::Goto(to.to_owned()));
                true
            }
            ("-j", target) => {
                step = Some(match target {
                    "ACCEPT" => Step::Accept,
                    "DROP" | "REJECT" => Step::Drop,
                    "RETURN" => Step::Return,
                    // Other targets have no chain of their name, which decides nothing.
                    to => Step::Jump(to.to_owned()),
                });
                true
            }
            _ => false,
        };
        if !is_met {
            return None;
        }
    }
    step
}

/// Effect of a rule of nf_tables on the first packet of a connection, as `step`.
fn step_of_nft(rule: &nftables::Rule, packet: (Family, Protocol)) -> Option<Step> {
    // Of iptables, in its tables of nf_tables: the name is the first attribute.
    let is_reject = |data: &Option<Vec<u8>>| {
        data.as_ref().and_then(|data| data.get(4..)).is_some_and(|data| data.starts_with(b"REJECT\0"))
    };
    // What is known of the packet; what a register has else is not.
    let mut known: BTreeMap<Option<u8>, Vec<u8>> = BTreeMap::new();
    for expression in &rule.expressions {
        match expression {
            Expression::Counter { .. } | Expression::Log { .. } => {}
            Expression::Cmp { register, op, value } => {
                let is_same = known.get(&register.number())? == value.as_bytes();
                if !matches!((op, is_same), (CmpOp::Eq, true) | (CmpOp::Ne, false)) {
                    return None;
                }
            }
            Expression::Bitwise { source, register, mask, xor, .. } => {
                let bytes = known.get(&source.number())?.iter().zip(mask.as_bytes()).zip(xor.as_bytes());
                let bytes = bytes.map(|((byte, mask), xor)| (byte & mask) ^ xor).collect();
                known.insert(register.number(), bytes);
            }
            Expression::Reject(_) => return Some(Step::Drop),
            Expression::Verdict(verdict) => {
                return match verdict {
                    Verdict::Accept => Some(Step::Accept),
                    Verdict::Drop => Some(Step::Drop),
                    Verdict::Return => Some(Step::Return),
                    Verdict::Jump(to) => Some(Step::Jump(to.as_str().to_owned())),
                    Verdict::Goto(to) => Some(Step::Goto(to.as_str().to_owned())),
                    _ => None,
                };
            }
            Expression::Other(other) if other.name == "target" && is_reject(&other.data) => return Some(Step::Drop),
            Expression::Other(other) => match other.iptables_match()? {
                ("comment", _) => {}
                ("conntrack", info) if is_new(info)? => {}
                _ => return None,
            },
            load => {
                let (register, value) = loaded(load, packet)?;
                known.remove(&register.number());
                known.extend(value.map(|value| (register.number(), value)));
            }
        }
    }
    None
}

/// Register that an expression writes, and the value: `None` within, if the packet does not tell it.
fn loaded(expression: &Expression, (family, protocol): (Family, Protocol)) -> Option<(Register, Option<Vec<u8>>)> {
    const SYN: u8 = 2;
    // In `struct iphdr`, `struct ipv6hdr` and `struct tcphdr`.
    let (protocol_at, flags_at) = (if family == Family::V4 { 9 } else { 6 }, 13);
    let number = || Some(vec![protocol.1]);
    match expression {
        Expression::Meta { key, register } => Some((
            *register,
            match key {
                MetaKey::L4Proto => number(),
                MetaKey::NfProto => Some(vec![if family == Family::V4 { 2 } else { 10 }]),
                _ => None,
            },
        )),
        Expression::Ct { key, register, .. } => {
            let state = (*key == CtKey::State).then(|| CtState::NEW.bits().to_ne_bytes().to_vec());
            Some((*register, state))
        }
        Expression::Payload { base, offset, length: 1, register } => Some((
            *register,
            match base {
                HeaderBase::Network if *offset == protocol_at => number(),
                HeaderBase::Transport if *offset == flags_at && protocol == TCP => Some(vec![SYN]),
                _ => None,
            },
        )),
        Expression::Payload { register, .. } | Expression::Fib { register, .. } => Some((*register, None)),
        _ => None,
    }
}

/// Whether a `struct xt_conntrack_mtinfo3`, or an earlier one, that looks at nothing but the state has a new connection's in it.
fn is_new(info: &[u8]) -> Option<bool> {
    const STATE: u16 = 1;
    let number = |at: usize| Some(u16::from_ne_bytes(*info.get(at..)?.first_chunk()?));
    let (looks_at, inverted, states) = (number(146)?, number(148)?, number(150)?);
    let has_new = u32::from(states) & CtState::NEW.bits() != 0;
    (looks_at == STATE).then_some(has_new != (inverted & STATE != 0))
}

#[cfg(test)]
mod tests {
    use iptables::{Dump, TableName};
    use nftables::expr::{CmpOp, HeaderBase};
    use nftables::{CtState, Expression, Family as NftFamily, L4Protocol, Operand, Register, RuleBuilder, Value, rule};

    use super::{PROTOCOLS, Step};
    use crate::net::Family;

    fn drops(rules: &str) -> bool {
        let text = format!("*filter\n{rules}\nCOMMIT\n");
        let dump: Dump = text.parse().unwrap();
        super::drops(dump.table(&TableName::FILTER).unwrap(), "INPUT")
    }

    #[test]
    fn a_policy_counts_where_no_rule_decides() {
        assert!(drops(":INPUT DROP [0:0]\n-A INPUT -i lo -j ACCEPT"));
        assert!(!drops(":INPUT ACCEPT [0:0]\n-A INPUT -i eth1 -j DROP"));
        assert!(!drops(":INPUT DROP [0:0]\n-A INPUT -m comment --comment \"-j DROP\" -j ACCEPT"));
        assert!(!drops(":INPUT ACCEPT [0:0]"));
        assert!(!drops(":FORWARD DROP [0:0]"));
    }

    #[test]
    fn a_last_rule_counts() {
        let established = ":INPUT ACCEPT [0:0]\n-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";
        for last in
            ["-j DROP", "-j REJECT --reject-with icmp-host-prohibited", "-m comment --comment \"the rest\" -j DROP"]
        {
            assert!(drops(&format!("{established}\n-A INPUT {last}")), "{last}");
        }
        assert!(!drops(&format!("{established}\n-A INPUT ! -s 10.0.0.0/8 -j DROP")));
        assert!(!drops(&format!("{established}\n-A INPUT -j LOG --log-prefix \"-j DROP\"")));
        assert!(!drops(&format!("{established}\n-A INPUT -j ACCEPT\n-A INPUT -j DROP")));
    }

    #[test]
    fn a_last_rule_for_new_connections_counts() {
        let established = ":INPUT ACCEPT [0:0]\n-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";
        for last in [
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
            packets.filter(|packet| matches!(super::step_of_nft(&rule, *packet), Some(Step::Drop))).count()
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
    fn ufw_jumps_to_what_rejects() {
        let ufw = ":INPUT ACCEPT [0:0]\n:ufw-before-input - [0:0]\n:ufw-after-input - [0:0]\n:ufw-reject-input - [0:0]\n\
            :ufw-skip-to-policy-input - [0:0]\n:ufw-track-input - [0:0]\n\
            -A INPUT -j ufw-before-input\n-A INPUT -j ufw-after-input\n-A INPUT -j ufw-reject-input\n-A INPUT -j ufw-track-input\n\
            -A ufw-before-input -i lo -j ACCEPT\n-A ufw-after-input -p udp -m udp --dport 137 -j ufw-skip-to-policy-input\n\
            -A ufw-skip-to-policy-input -j REJECT --reject-with icmp-port-unreachable\n";
        assert!(drops(&format!("{ufw}-A ufw-reject-input -j REJECT --reject-with icmp-port-unreachable")));
        assert!(drops(&ufw.replace(":INPUT ACCEPT", ":INPUT DROP")));
        assert!(!drops(ufw));
    }

    #[test]
    fn chains_that_never_end_decide_nothing() {
        assert!(!drops(":INPUT ACCEPT [0:0]\n:A - [0:0]\n-A INPUT -j A\n-A A -j A\n-A INPUT -j B"));
    }
}
