//! Requirements of IPVS mode, one row each.
//!
//! Module names and configuration symbols are those in the kernel's `Makefile`s (`obj-$(CONFIG_…) += ….o`), compared
//! with the sources of 5.10, 6.1, 6.12 and 7.2.

use std::borrow::Cow;

use crate::active::Capability;
use crate::modules::ModuleName;
use crate::profile::{Families, Family, Profile};
use crate::requirement::{Backend, Need, Requirement};

/// All rows for a profile.
pub(crate) fn requirements(profile: &Profile) -> Vec<Requirement> {
    let mut rows = if profile.is_own() { Vec::new() } else { of_ipvs_mode(profile) };
    for own in &profile.requirements {
        rows.retain(|row| row.name != own.name);
        rows.push(own.clone());
    }
    rows
}

fn of_ipvs_mode(profile: &Profile) -> Vec<Requirement> {
    let mut rows = rows(profile.families);
    for name in ["rr", "wrr", "sh"] {
        if !profile.wanted_schedulers().any(|scheduler| scheduler == name) {
            rows.push(scheduler(name, Need::Wanted, "Services that ask for it; kube-proxy before 1.28 insisted on it"));
        }
    }
    for name in profile.wanted_schedulers() {
        rows.push(scheduler(name, Need::Required, "the scheduler asked for"));
    }
    if profile.without_iptables {
        rows.retain(|row| row.backend.is_none() && row.name != "ip_set" && !row.name.starts_with("xt_"));
        return rows;
    }
    for set_type in &profile.set_types {
        rows.push(set_type_row(set_type));
    }
    rows
}

/// All schedulers of the kernel. Each has its symbol: `IP_VS_RR`.
pub(crate) const SCHEDULERS: [&str; 14] =
    ["rr", "wrr", "lc", "wlc", "fo", "ovf", "lblc", "lblcr", "dh", "sh", "mh", "sed", "nq", "twos"];

/// All set types of the kernel: name, module, symbol.
pub(crate) const SET_TYPES: &[(&str, &str, &str)] = &[
    ("bitmap:ip", "ip_set_bitmap_ip", "IP_SET_BITMAP_IP"),
    ("bitmap:ip,mac", "ip_set_bitmap_ipmac", "IP_SET_BITMAP_IPMAC"),
    ("bitmap:port", "ip_set_bitmap_port", "IP_SET_BITMAP_PORT"),
    ("hash:ip", "ip_set_hash_ip", "IP_SET_HASH_IP"),
    ("hash:ip,mac", "ip_set_hash_ipmac", "IP_SET_HASH_IPMAC"),
    ("hash:ip,mark", "ip_set_hash_ipmark", "IP_SET_HASH_IPMARK"),
    ("hash:ip,port", "ip_set_hash_ipport", "IP_SET_HASH_IPPORT"),
    ("hash:ip,port,ip", "ip_set_hash_ipportip", "IP_SET_HASH_IPPORTIP"),
    ("hash:ip,port,net", "ip_set_hash_ipportnet", "IP_SET_HASH_IPPORTNET"),
    ("hash:mac", "ip_set_hash_mac", "IP_SET_HASH_MAC"),
    ("hash:net", "ip_set_hash_net", "IP_SET_HASH_NET"),
    ("hash:net,iface", "ip_set_hash_netiface", "IP_SET_HASH_NETIFACE"),
    ("hash:net,net", "ip_set_hash_netnet", "IP_SET_HASH_NETNET"),
    ("hash:net,port", "ip_set_hash_netport", "IP_SET_HASH_NETPORT"),
    ("hash:net,port,net", "ip_set_hash_netportnet", "IP_SET_HASH_NETPORTNET"),
    ("list:set", "ip_set_list_set", "IP_SET_LIST_SET"),
];

/// A row of this name for a module, if the module name is valid.
fn built(name: String, why: &'static str, need: Need, module: &str, symbol: Option<&str>) -> Requirement {
    Requirement {
        name,
        why: Cow::Borrowed(why),
        need,
        backend: None,
        module: ModuleName::new(module).ok(),
        symbol: symbol.map(str::to_owned),
        part_of: None,
        capability: None,
    }
}

fn scheduler(name: &str, need: Need, why: &'static str) -> Requirement {
    let symbol = SCHEDULERS.contains(&name).then(|| format!("IP_VS_{}", name.to_uppercase()));
    let row = built(format!("scheduler {name}"), why, need, &format!("ip_vs_{name}"), symbol.as_deref());
    row.asks(Capability::Scheduler(name.to_owned().into()))
}

fn set_type_row(name: &str) -> Requirement {
    let known = SET_TYPES.iter().find(|(known, ..)| *known == name);
    let (module, symbol) = known.map_or(("", None), |(_, module, symbol)| (*module, Some(*symbol)));
    let row = built(format!("set {name}"), "sets of this type", Need::Required, module, symbol);
    row.asks(Capability::SetType(name.to_owned().into()))
}

/// Importance of a row, and its iptables backend.
type Who = (Need, Option<(Backend, Families)>);

/// A module, and the symbol that builds it.
fn row(module: &str, (need, backend): Who, why: &'static str, symbol: &str) -> Requirement {
    Requirement { backend, ..built(module.to_owned(), why, need, module, Some(symbol)) }
}

/// A match of iptables, without `xt_` in its name.
fn xt_match(name: &'static str, who: Who, why: &'static str, symbol: &str) -> Requirement {
    row(&format!("xt_{name}"), who, why, symbol).asks(Capability::XtMatch(name.into()))
}

/// A switch inside `module`, which `part_of` builds.
fn part(name: &str, who: Who, why: &'static str, (module, part_of): (&str, &str), symbol: &str) -> Requirement {
    Requirement { name: name.to_owned(), part_of: Some(part_of.to_owned()), ..row(module, who, why, symbol) }
}

fn rows(families: Families) -> Vec<Requirement> {
    let either = |backend, families| (Need::Either, Some((backend, families)));
    let (all, some) = ((Need::Required, None), (Need::Wanted, None));
    let ipv6 = if families.has(Family::Ipv6) { all } else { some };
    let [legacy4, legacy6] = [Families::Ipv4, Families::Ipv6].map(|families| either(Backend::Legacy, families));
    let [nft4, nft6, nft] =
        [Families::Ipv4, Families::Ipv6, Families::Dual].map(|families| either(Backend::Nft, families));
    let (ip_vs, nf_tables) = (("ip_vs", "IP_VS"), ("nf_tables", "NF_TABLES"));
    vec![
        row("ip_vs", all, "virtual servers", "IP_VS").asks(Capability::GenlFamily("IPVS".into())),
        part("ip_vs: TCP", all, "virtual servers for TCP", ip_vs, "IP_VS_PROTO_TCP"),
        part("ip_vs: UDP", all, "virtual servers for UDP", ip_vs, "IP_VS_PROTO_UDP"),
        part("ip_vs: SCTP", some, "Services with protocol SCTP", ip_vs, "IP_VS_PROTO_SCTP"),
        part("ip_vs: IPv6", ipv6, "virtual servers for IPv6", ip_vs, "IP_VS_IPV6"),
        part(
            "ip_vs: conntrack",
            all,
            "masquerading of balanced connections (sysctl net/ipv4/vs/conntrack)",
            ip_vs,
            "IP_VS_NFCT",
        ),
        row("nf_conntrack", all, "connection tracking", "NF_CONNTRACK"),
        row("nf_nat", all, "masquerading", "NF_NAT"),
        row("nf_conntrack_netlink", some, "forgetting UDP connections to endpoints that are gone", "NF_CT_NETLINK"),
        row("dummy", all, "the device kube-ipvs0 that holds the VIPs", "DUMMY")
            .asks(Capability::LinkKind("dummy".into())),
        row("ip_set", all, "sets", "IP_SET").asks(Capability::Ipset),
        xt_match("set", all, "rules that look into sets", "NETFILTER_XT_SET"),
        xt_match("comment", all, "comments in rules", "NETFILTER_XT_MATCH_COMMENT"),
        xt_match("mark", all, "the masquerade mark (match and target)", "NETFILTER_XT_MARK"),
        xt_match("addrtype", all, "rules for node ports and external IPs", "NETFILTER_XT_MATCH_ADDRTYPE"),
        xt_match("conntrack", all, "the rule for established connections", "NETFILTER_XT_MATCH_CONNTRACK"),
        row("xt_MASQUERADE", all, "masquerading", "NETFILTER_XT_TARGET_MASQUERADE")
            .asks(Capability::XtTarget("MASQUERADE".into())),
        xt_match(
            "ipvs",
            some,
            "source ranges that also bind the node itself (rules with -m ipvs)",
            "NETFILTER_XT_MATCH_IPVS",
        ),
        xt_match("physdev", some, "the rule for external IPs on bridges", "NETFILTER_XT_MATCH_PHYSDEV"),
        row("br_netfilter", some, "pods behind a Linux bridge (rules see bridged packets)", "BRIDGE_NETFILTER"),
        row("iptable_nat", legacy4, "table nat, iptables-legacy", "IP_NF_NAT"),
        row("iptable_filter", legacy4, "table filter, iptables-legacy", "IP_NF_FILTER"),
        row("ip6table_nat", legacy6, "table nat, ip6tables-legacy", "IP6_NF_NAT"),
        row("ip6table_filter", legacy6, "table filter, ip6tables-legacy", "IP6_NF_FILTER"),
        row("nf_tables", nft, "rules through iptables-nft", "NF_TABLES"),
        part("nf_tables, IPv4", nft4, "IPv4 rules through iptables-nft", nf_tables, "NF_TABLES_IPV4"),
        part("nf_tables, IPv6", nft6, "IPv6 rules through ip6tables-nft", nf_tables, "NF_TABLES_IPV6"),
        row("nft_compat", nft, "matches and targets in iptables-nft", "NFT_COMPAT"),
        row("nft_chain_nat", nft, "table nat, iptables-nft", "NFT_NAT"),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_of_the_table_can_be_built_and_has_a_unique_name() {
        let rows = requirements(&Profile::default().all_set_types());
        let names: BTreeSet<_> = rows.iter().map(|row| &row.name).collect();
        assert_eq!(names.len(), rows.len());
        assert!(rows.iter().all(|row| row.module.is_some() && row.symbol.is_some()), "a name was refused");
    }

    #[test]
    fn without_iptables_nothing_of_it_is_asked_for() {
        let rows = requirements(&Profile::default().without_iptables(true));
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        for name in ["ip_vs", "ip_vs: conntrack", "nf_nat", "dummy", "scheduler rr"] {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
        let of_iptables = |name: &&&str| {
            ["ip_set", "xt_", "set ", "iptable", "ip6table", "nft"].iter().any(|of| name.starts_with(of))
        };
        assert_eq!(names.iter().filter(of_iptables).count(), 0, "{names:?}");
    }

    #[test]
    fn the_scheduler_asked_for_is_required_and_the_usual_ones_are_wanted() {
        let need = |profile: &Profile, name: &str| {
            let rows = requirements(profile);
            rows.iter().find(|row| row.name == name).map(|row| row.need)
        };
        let profile = Profile::default();
        assert_eq!(need(&profile, "scheduler rr"), Some(Need::Required));
        assert_eq!(need(&profile, "scheduler sh"), Some(Need::Wanted));
        let profile = Profile::default().scheduler("mh").unwrap();
        assert_eq!(need(&profile, "scheduler mh"), Some(Need::Required));
        assert_eq!(need(&profile, "scheduler rr"), Some(Need::Wanted));
        assert_eq!(need(&profile, "ip_vs: IPv6"), Some(Need::Wanted));
        assert_eq!(need(&profile.families(Families::Dual), "ip_vs: IPv6"), Some(Need::Required));
    }
}
