//! Every chain and rule that a Kubernetes node proxy in IPVS mode writes, in its own spelling. All sets are in use, and
//! of rules with alternatives each one is here.

use iptables::{ChainName, Family, Rule, TableName};

/// Set, type, comment of its rules.
const SETS: &[(&str, &str, &str)] = &[
    ("KUBE-LOOP-BACK", "hash:ip,port,ip", "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose"),
    ("KUBE-CLUSTER-IP", "hash:ip,port", "Kubernetes service cluster ip + port for masquerade purpose"),
    ("KUBE-EXTERNAL-IP", "hash:ip,port", "Kubernetes service external ip + port for masquerade and filter purpose"),
    (
        "KUBE-EXTERNAL-IP-LOCAL",
        "hash:ip,port",
        "Kubernetes service external ip + port with externalTrafficPolicy=local",
    ),
    ("KUBE-LOAD-BALANCER", "hash:ip,port", "Kubernetes service lb portal"),
    (
        "KUBE-LOAD-BALANCER-LOCAL",
        "hash:ip,port",
        "Kubernetes service load balancer ip + port with externalTrafficPolicy=local",
    ),
    (
        "KUBE-LOAD-BALANCER-FW",
        "hash:ip,port",
        "Kubernetes service load balancer ip + port for load balancer with sourceRange",
    ),
    (
        "KUBE-LOAD-BALANCER-SOURCE-IP",
        "hash:ip,port,ip",
        "Kubernetes service load balancer ip + port + source IP for packet filter purpose",
    ),
    (
        "KUBE-LOAD-BALANCER-SOURCE-CIDR",
        "hash:ip,port,net",
        "Kubernetes service load balancer ip + port + source cidr for packet filter purpose",
    ),
    ("KUBE-NODE-PORT-TCP", "bitmap:port", "Kubernetes nodeport TCP port for masquerade purpose"),
    ("KUBE-NODE-PORT-LOCAL-TCP", "bitmap:port", "Kubernetes nodeport TCP port with externalTrafficPolicy=local"),
    ("KUBE-NODE-PORT-UDP", "bitmap:port", "Kubernetes nodeport UDP port for masquerade purpose"),
    ("KUBE-NODE-PORT-LOCAL-UDP", "bitmap:port", "Kubernetes nodeport UDP port with externalTrafficPolicy=local"),
    (
        "KUBE-NODE-PORT-SCTP-HASH",
        "hash:ip,port",
        "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'",
    ),
    (
        "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
        "hash:ip,port",
        "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'",
    ),
    ("KUBE-HEALTH-CHECK-NODE-PORT", "bitmap:port", "Kubernetes health check node port"),
    ("KUBE-IPVS-IPS", "hash:ip", "Addresses on the ipvs interface"),
];

/// The name of a set in this family.
fn set_name(family: Family, name: &str) -> String {
    match family {
        Family::Ipv4 => name.to_owned(),
        Family::Ipv6 => name.replacen("KUBE-", "KUBE-6-", 1).chars().take(31).collect(),
    }
}

/// All sets of this family, by name and type.
pub(crate) fn sets(family: Family) -> Vec<(String, &'static str)> {
    SETS.iter().map(|(name, kind, _)| (set_name(family, name), *kind)).collect()
}

/// Rules in shorthand: `C:SET dirs` is the set's comment and match, `M:SET dirs` the match alone.
const NAT: &[(&str, &[&str])] = &[
    (
        "KUBE-SERVICES",
        &[
            "-s LOOPBACK -j RETURN",
            "C:KUBE-LOAD-BALANCER dst,dst -j KUBE-LOAD-BALANCER",
            "C:KUBE-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ",
            "C:KUBE-CLUSTER-IP dst,dst ! -s PODS -j KUBE-MARK-MASQ",
            "C:KUBE-CLUSTER-IP dst,dst ! -i cbr0 -j KUBE-MARK-MASQ",
            "C:KUBE-CLUSTER-IP dst,dst ! -i cali+ -j KUBE-MARK-MASQ",
            "C:KUBE-CLUSTER-IP src,dst -j KUBE-MARK-MASQ",
            "C:KUBE-EXTERNAL-IP dst,dst -j KUBE-MARK-MASQ",
            "C:KUBE-EXTERNAL-IP dst,dst -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT",
            "C:KUBE-EXTERNAL-IP dst,dst -m addrtype --dst-type LOCAL -j ACCEPT",
            "C:KUBE-EXTERNAL-IP-LOCAL dst,dst -m physdev ! --physdev-is-in -m addrtype ! --src-type LOCAL -j ACCEPT",
            "C:KUBE-EXTERNAL-IP-LOCAL dst,dst -m addrtype --dst-type LOCAL -j ACCEPT",
            "-m addrtype --dst-type LOCAL -j KUBE-NODE-PORT",
            "M:KUBE-CLUSTER-IP dst,dst -j ACCEPT",
            "M:KUBE-LOAD-BALANCER dst,dst -j ACCEPT",
        ],
    ),
    (
        "KUBE-POSTROUTING",
        &[
            "C:KUBE-LOOP-BACK dst,dst,src -j MASQUERADE",
            "-m mark ! --mark 0x00004000/0x00004000 -j RETURN",
            "-j MARK --xor-mark 0x00004000",
            "-m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE",
            "-m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE --random-fully",
        ],
    ),
    (
        "KUBE-NODE-PORT",
        &[
            "-p tcp C:KUBE-NODE-PORT-LOCAL-TCP dst -j RETURN",
            "-p tcp C:KUBE-NODE-PORT-TCP dst -j KUBE-MARK-MASQ",
            "-p udp C:KUBE-NODE-PORT-LOCAL-UDP dst -j RETURN",
            "-p udp C:KUBE-NODE-PORT-UDP dst -j KUBE-MARK-MASQ",
            "-p sctp C:KUBE-NODE-PORT-LOCAL-SCTP-HASH dst,dst -j RETURN",
            "-p sctp C:KUBE-NODE-PORT-SCTP-HASH dst,dst -j KUBE-MARK-MASQ",
        ],
    ),
    ("KUBE-LOAD-BALANCER", &["C:KUBE-LOAD-BALANCER-LOCAL dst,dst -j RETURN", "-j KUBE-MARK-MASQ"]),
    ("KUBE-MARK-MASQ", &["-j MARK --or-mark 0x00004000"]),
];

const FILTER: &[(&str, &[&str])] = &[
    (
        "KUBE-FORWARD",
        &[
            "-m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x00004000/0x00004000 -j ACCEPT",
            "-m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        ],
    ),
    ("KUBE-NODE-PORT", &["C:KUBE-HEALTH-CHECK-NODE-PORT dst -j ACCEPT"]),
    ("KUBE-PROXY-FIREWALL", &["C:KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL"]),
    (
        "KUBE-SOURCE-RANGES-FIREWALL",
        &[
            "C:KUBE-LOAD-BALANCER-SOURCE-CIDR dst,dst,src -j RETURN",
            "C:KUBE-LOAD-BALANCER-SOURCE-IP dst,dst,src -j RETURN",
            "-j DROP",
        ],
    ),
    (
        "KUBE-IPVS-FILTER",
        &[
            "M:KUBE-LOAD-BALANCER dst,dst -j RETURN",
            "M:KUBE-CLUSTER-IP dst,dst -j RETURN",
            "M:KUBE-EXTERNAL-IP dst,dst -j RETURN",
            "M:KUBE-EXTERNAL-IP-LOCAL dst,dst -j RETURN",
            "M:KUBE-HEALTH-CHECK-NODE-PORT dst -j RETURN",
            "-m conntrack --ctstate NEW M:KUBE-IPVS-IPS dst -j REJECT",
        ],
    ),
    ("KUBE-IPVS-OUT-FILTER", &[]),
];

const JUMPS: &[(&str, &str, &str, &str)] = &[
    ("nat", "OUTPUT", "KUBE-SERVICES", "kubernetes service portals"),
    ("nat", "PREROUTING", "KUBE-SERVICES", "kubernetes service portals"),
    ("nat", "POSTROUTING", "KUBE-POSTROUTING", "kubernetes postrouting rules"),
    ("filter", "FORWARD", "KUBE-FORWARD", "kubernetes forwarding rules"),
    ("filter", "INPUT", "KUBE-NODE-PORT", "kubernetes health check rules"),
    ("filter", "INPUT", "KUBE-PROXY-FIREWALL", "kube-proxy firewall rules"),
    ("filter", "FORWARD", "KUBE-PROXY-FIREWALL", "kube-proxy firewall rules"),
    ("filter", "INPUT", "KUBE-IPVS-FILTER", "kubernetes ipvs access filter"),
    ("filter", "OUTPUT", "KUBE-IPVS-OUT-FILTER", "kubernetes ipvs access filter"),
];

/// The rule of `KUBE-IPVS-OUT-FILTER`, which needs the `ipvs` match in the kernel.
pub(crate) fn ipvs_rule(family: Family) -> Rule {
    let vip = if family == Family::Ipv4 { "192.0.2.7" } else { "2001:db8::7" };
    Rule::parse(&format!("-s {vip} -m ipvs --vaddr {vip} --vproto TCP --vport 443 -j DROP")).unwrap()
}

fn rule(family: Family, shorthand: &str) -> Rule {
    let mut text = shorthand.to_owned();
    for word in shorthand.split(' ') {
        let Some((kind @ ("C" | "M"), name)) = word.split_once(':') else { continue };
        let (_, _, comment) = SETS.iter().find(|(set, _, _)| *set == name).unwrap();
        let comment = if kind == "C" { format!("-m comment --comment \"{comment}\" ") } else { String::new() };
        text = text.replace(word, &format!("{comment}-m set --match-set {}", set_name(family, name)));
    }
    let (loopback, pods) = match family {
        Family::Ipv4 => ("127.0.0.0/8", "10.244.0.0/16"),
        Family::Ipv6 => ("::1/128", "fd00:10:244::/56"),
    };
    Rule::parse(&text.replace("LOOPBACK -j RETURN", &format!("{loopback} -j RETURN")).replace("PODS", pods)).unwrap()
}

/// A chain and its rules.
type ChainRules = (ChainName, Vec<Rule>);

/// Tables with their chains and rules.
pub(crate) fn chains(family: Family) -> Vec<(TableName, Vec<ChainRules>)> {
    let one = |(name, rules): &(&str, &[&str])| {
        (ChainName::new(*name).unwrap(), rules.iter().map(|r| rule(family, r)).collect())
    };
    vec![(TableName::NAT, NAT.iter().map(one).collect()), (TableName::FILTER, FILTER.iter().map(one).collect())]
}

/// Table, chain, and the rules that must lead it, in this order.
pub(crate) fn jumps() -> Vec<(TableName, ChainName, Vec<Rule>)> {
    let mut out: Vec<(TableName, ChainName, Vec<Rule>)> = Vec::new();
    for (table, from, to, comment) in JUMPS {
        let (table, from) = (TableName::new(*table).unwrap(), ChainName::new(*from).unwrap());
        let rule = Rule::builder().comment(comment).jump(&ChainName::new(*to).unwrap()).build().unwrap();
        match out.iter_mut().find(|(t, f, _)| *t == table && *f == from) {
            Some((_, _, rules)) => rules.push(rule),
            None => out.push((table, from, vec![rule])),
        }
    }
    out
}
