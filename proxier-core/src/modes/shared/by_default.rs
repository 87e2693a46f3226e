//! A firewall's chain, and a packet that meets no condition of its rules.

use iptables::{Rule, Table};
use nftables::{ChainKey, Expression, Policy, Verdict};

use crate::ports::Tables;

/// More chains than the kernel lets jump to one another.
const DEPTH: usize = 16;

/// What a rule without conditions does.
enum Step {
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
}

/// Whether a built-in chain of iptables drops or rejects what no rule picks: by its policy, or by a rule without conditions at its end or
/// at that of a chain to which everything jumps, as firewalld and ufw write it.
pub(crate) fn drops(table: &Table, chain: &str) -> bool {
    let steps = |name: &str| table.chain(name).map(|chain| chain.rules.iter().filter_map(step).collect());
    let by_policy = || table.chain(chain).is_some_and(|chain| chain.policy == Some(iptables::Policy::Drop));
    decision(chain, &mut |name| steps(name).unwrap_or_default(), DEPTH).unwrap_or_else(by_policy)
}

/// The same of a chain of nf_tables, with its policy. Rules that cannot be read decide nothing.
pub(crate) fn drops_in_nft(chain: &ChainKey, policy: Policy, tables: &mut dyn Tables) -> bool {
    let mut steps = |name: &str| {
        let rules = nftables::Name::new(name).ok().map(|name| ChainKey { table: chain.table.clone(), name });
        let rules = rules.and_then(|key| tables.rules(&key).ok()).unwrap_or_default();
        rules.iter().filter_map(|observed| step_of_nft(&observed.rule)).collect()
    };
    decision(chain.name.as_str(), &mut steps, DEPTH).unwrap_or(policy == Policy::Drop)
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

/// `None` for a rule with conditions, and for one that only counts or logs.
fn step(rule: &Rule) -> Option<Step> {
    let mut tokens = rule.tokens().iter().map(iptables::Token::as_str);
    let mut step = None;
    while let Some(token) = tokens.next() {
        let value = tokens.next()?;
        match (token, value) {
            ("-m", "comment") | ("--comment" | "--reject-with", _) => {}
            ("-g" | "--goto", to) => step = Some(Step::Goto(to.to_owned())),
            ("-j" | "--jump", "ACCEPT") => step = Some(Step::Accept),
            ("-j" | "--jump", "DROP" | "REJECT") => step = Some(Step::Drop),
            ("-j" | "--jump", "RETURN") => step = Some(Step::Return),
            // Other targets have no chain of their name, which decides nothing.
            ("-j" | "--jump", to) => step = Some(Step::Jump(to.to_owned())),
            _ => return None,
        }
    }
    step
}

fn step_of_nft(rule: &nftables::Rule) -> Option<Step> {
    // Of iptables, in its tables of nf_tables: the name is the first attribute.
    let is_of_iptables = |data: &Option<Vec<u8>>, name: &[u8]| {
        data.as_ref().and_then(|data| data.get(4..)).is_some_and(|data| data.starts_with(name))
    };
    for expression in &rule.expressions {
        match expression {
            Expression::Counter { .. } | Expression::Log { .. } => {}
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
            Expression::Other(other) if other.name == "match" && is_of_iptables(&other.data, b"comment\0") => {}
            Expression::Other(other) if other.name == "target" && is_of_iptables(&other.data, b"REJECT\0") => {
                return Some(Step::Drop);
            }
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use iptables::{Dump, TableName};

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
