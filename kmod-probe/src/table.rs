//! Requirements of IPVS mode on a kernel: one row each.
//!
//! Module names and configuration symbols are those of the kernel's `Makefile`s (`obj-$(CONFIG_…) += ….o`), checked
//! against the sources of 4.18, 5.10, 6.1, 6.12 and 7.2. Version limits are those of the upstream kernel. Vendors
//! backport, so a limit never decides by itself: it picks the module to ask for and explains what is missing.

use std::borrow::Cow;

use crate::active::Capability;
use crate::modules::ModuleName;
use crate::profile::{Families, Family, Profile};
use crate::requirement::{Backend, Marker, Need, Provider, Requirement};
use crate::version::KernelRelease;

/// All rows for a profile on a kernel. Rows for kernels of another age are left out (`nf_conntrack_ipv4` from 4.19 on).
pub(crate) fn requirements(profile: &Profile, release: Option<&KernelRelease>) -> Vec<Requirement> {
    let mut rows = if profile.is_own() { Vec::new() } else { of_ipvs_mode(profile, release) };
    for own in profile.own_requirements() {
        rows.retain(|row| row.name != own.name);
        rows.push(own.clone());
    }
    rows
}

fn of_ipvs_mode(profile: &Profile, release: Option<&KernelRelease>) -> Vec<Requirement> {
    let mut rows: Vec<Requirement> = ROWS
        .iter()
        .filter(|row| row.only_before.is_none_or(|(major, minor)| release.is_some_and(|r| !r.at_least(major, minor))))
        .map(|row| row.build(profile.wanted_families()))
        .collect();
    let wanted = profile.wanted_schedulers();
    for name in ["rr", "wrr", "sh"] {
        if !wanted.iter().any(|scheduler| scheduler.as_str() == name) {
            rows.push(scheduler(name, Need::Wanted, "Services that ask for it; kube-proxy before 1.28 insisted on it"));
        }
    }
    for name in wanted {
        rows.push(scheduler(name.as_str(), Need::Required, "the scheduler asked for"));
    }
    if profile.goes_without_iptables() {
        rows.retain(|row| row.backend.is_none() && row.name != "ip_set" && !row.name.starts_with("xt_"));
        return rows;
    }
    for set_type in profile.wanted_set_types() {
        rows.push(set_type_row(set_type));
    }
    rows
}

/// First upstream kernel that has something; `None`: older than 3.10.
pub(crate) type Since = Option<(u64, u64)>;

/// All schedulers of the kernel (name, symbol), with the first upstream version of those younger than 3.10.
pub(crate) const SCHEDULERS: &[(&str, &str, Since)] = &[
    ("rr", "IP_VS_RR", None),
    ("wrr", "IP_VS_WRR", None),
    ("lc", "IP_VS_LC", None),
    ("wlc", "IP_VS_WLC", None),
    ("fo", "IP_VS_FO", Some((3, 18))),
    ("ovf", "IP_VS_OVF", Some((4, 3))),
    ("lblc", "IP_VS_LBLC", None),
    ("lblcr", "IP_VS_LBLCR", None),
    ("dh", "IP_VS_DH", None),
    ("sh", "IP_VS_SH", None),
    ("mh", "IP_VS_MH", Some((4, 18))),
    ("sed", "IP_VS_SED", None),
    ("nq", "IP_VS_NQ", None),
    ("twos", "IP_VS_TWOS", Some((5, 12))),
];

/// All set types of the kernel: name, module, symbol.
pub(crate) const SET_TYPES: &[(&str, &str, &str, Since)] = &[
    ("bitmap:ip", "ip_set_bitmap_ip", "IP_SET_BITMAP_IP", None),
    ("bitmap:ip,mac", "ip_set_bitmap_ipmac", "IP_SET_BITMAP_IPMAC", None),
    ("bitmap:port", "ip_set_bitmap_port", "IP_SET_BITMAP_PORT", None),
    ("hash:ip", "ip_set_hash_ip", "IP_SET_HASH_IP", None),
    ("hash:ip,mac", "ip_set_hash_ipmac", "IP_SET_HASH_IPMAC", None),
    ("hash:ip,mark", "ip_set_hash_ipmark", "IP_SET_HASH_IPMARK", None),
    ("hash:ip,port", "ip_set_hash_ipport", "IP_SET_HASH_IPPORT", None),
    ("hash:ip,port,ip", "ip_set_hash_ipportip", "IP_SET_HASH_IPPORTIP", None),
    ("hash:ip,port,net", "ip_set_hash_ipportnet", "IP_SET_HASH_IPPORTNET", None),
    ("hash:mac", "ip_set_hash_mac", "IP_SET_HASH_MAC", Some((3, 18))),
    ("hash:net", "ip_set_hash_net", "IP_SET_HASH_NET", None),
    ("hash:net,iface", "ip_set_hash_netiface", "IP_SET_HASH_NETIFACE", None),
    ("hash:net,net", "ip_set_hash_netnet", "IP_SET_HASH_NETNET", Some((3, 13))),
    ("hash:net,port", "ip_set_hash_netport", "IP_SET_HASH_NETPORT", None),
    ("hash:net,port,net", "ip_set_hash_netportnet", "IP_SET_HASH_NETPORTNET", Some((3, 13))),
    ("list:set", "ip_set_list_set", "IP_SET_LIST_SET", None),
];

/// Expressions of nf_tables: name, module, symbol. Those of `nf_tables` itself have no module of their own.
pub(crate) const EXPRESSIONS: &[(&str, &str, &str, Since)] = &[
    ("bitwise", "nf_tables", "NF_TABLES", Some((3, 13))),
    ("byteorder", "nf_tables", "NF_TABLES", Some((3, 13))),
    ("cmp", "nf_tables", "NF_TABLES", Some((3, 13))),
    ("dynset", "nf_tables", "NF_TABLES", Some((4, 1))),
    ("immediate", "nf_tables", "NF_TABLES", Some((3, 13))),
    ("lookup", "nf_tables", "NF_TABLES", Some((3, 13))),
    ("payload", "nf_tables", "NF_TABLES", Some((3, 13))),
    ("range", "nf_tables", "NF_TABLES", Some((4, 9))),
    ("connlimit", "nft_connlimit", "NFT_CONNLIMIT", Some((4, 18))),
    ("ct", "nft_ct", "NFT_CT", Some((3, 13))),
    ("fib", "nft_fib_inet", "NFT_FIB_INET", Some((4, 10))),
    ("flow_offload", "nft_flow_offload", "NFT_FLOW_OFFLOAD", Some((4, 16))),
    ("hash", "nft_hash", "NFT_HASH", Some((4, 9))),
    ("limit", "nft_limit", "NFT_LIMIT", Some((3, 13))),
    ("log", "nft_log", "NFT_LOG", Some((3, 13))),
    ("masq", "nft_masq", "NFT_MASQ", Some((3, 18))),
    ("nat", "nft_nat", "NFT_NAT", Some((3, 13))),
    ("numgen", "nft_numgen", "NFT_NUMGEN", Some((4, 9))),
    ("osf", "nft_osf", "NFT_OSF", Some((4, 19))),
    ("queue", "nft_queue", "NFT_QUEUE", Some((3, 14))),
    ("quota", "nft_quota", "NFT_QUOTA", Some((4, 9))),
    ("redir", "nft_redir", "NFT_REDIR", Some((3, 19))),
    ("reject", "nft_reject_inet", "NFT_REJECT_INET", Some((3, 14))),
    ("socket", "nft_socket", "NFT_SOCKET", Some((4, 18))),
    ("synproxy", "nft_synproxy", "NFT_SYNPROXY", Some((5, 3))),
    ("tproxy", "nft_tproxy", "NFT_TPROXY", Some((4, 19))),
    ("tunnel", "nft_tunnel", "NFT_TUNNEL", Some((4, 19))),
    ("xfrm", "nft_xfrm", "NFT_XFRM", Some((4, 20))),
];

/// Kinds of links: name, module, symbol.
pub(crate) const LINK_KINDS: &[(&str, &str, &str, Since)] = &[
    ("bareudp", "bareudp", "BAREUDP", Some((5, 7))),
    ("bond", "bonding", "BONDING", None),
    ("bridge", "bridge", "BRIDGE", None),
    ("dummy", "dummy", "DUMMY", None),
    ("geneve", "geneve", "GENEVE", Some((4, 2))),
    ("gre", "ip_gre", "NET_IPGRE", None),
    ("gretap", "ip_gre", "NET_IPGRE", None),
    ("ifb", "ifb", "IFB", None),
    ("ip6gre", "ip6_gre", "IPV6_GRE", None),
    ("ip6tnl", "ip6_tunnel", "IPV6_TUNNEL", None),
    ("ipip", "ipip", "NET_IPIP", None),
    ("ipvlan", "ipvlan", "IPVLAN", Some((3, 19))),
    ("macvlan", "macvlan", "MACVLAN", None),
    ("sit", "sit", "IPV6_SIT", None),
    ("team", "team", "NET_TEAM", None),
    ("veth", "veth", "VETH", None),
    ("vlan", "8021q", "VLAN_8021Q", None),
    ("vrf", "vrf", "NET_VRF", Some((4, 3))),
    ("vti", "ip_vti", "NET_IPVTI", None),
    ("vxlan", "vxlan", "VXLAN", None),
    ("wireguard", "wireguard", "WIREGUARD", Some((5, 6))),
    ("xfrm", "xfrm_interface", "XFRM_INTERFACE", Some((4, 19))),
];

fn scheduler(name: &str, need: Need, why: &'static str) -> Requirement {
    let known = SCHEDULERS.iter().find(|(known, ..)| *known == name);
    let provider = ModuleName::new(&format!("ip_vs_{name}")).ok().map(|module| Provider {
        module: Some(module),
        symbol: known.map(|(_, symbol, _)| (*symbol).to_owned()),
        part_of: None,
        since: known.and_then(|(.., since)| *since),
        until: None,
        markers: &[],
        files: Vec::new(),
    });
    Requirement {
        name: format!("scheduler {name}"),
        why: Cow::Borrowed(why),
        need,
        backend: None,
        providers: provider.into_iter().collect(),
        capability: Some(Capability::Scheduler(name.to_owned())),
    }
}

fn set_type_row(name: &str) -> Requirement {
    let provider = SET_TYPES.iter().find(|(known, ..)| *known == name).and_then(|(_, module, symbol, since)| {
        Some(Provider {
            module: Some(ModuleName::new(module).ok()?),
            symbol: Some((*symbol).to_owned()),
            part_of: None,
            since: *since,
            until: None,
            markers: &[],
            files: Vec::new(),
        })
    });
    Requirement {
        name: format!("set {name}"),
        why: Cow::Borrowed("sets of this type"),
        need: Need::Required,
        backend: None,
        providers: provider.into_iter().collect(),
        capability: Some(Capability::SetType(name.to_owned())),
    }
}

/// One way to meet a row, as the table writes it.
#[derive(Clone, Copy, Debug)]
struct P {
    module: &'static str,
    symbol: &'static str,
    part_of: Option<&'static str>,
    since: Option<(u64, u64)>,
    until: Option<(u64, u64)>,
    markers: &'static [Marker],
}

impl P {
    const fn module(module: &'static str, symbol: &'static str) -> Self {
        Self { module, symbol, part_of: None, since: None, until: None, markers: &[] }
    }

    /// A switch inside `module`, which `part_of` builds.
    const fn feature(module: &'static str, part_of: &'static str, symbol: &'static str) -> Self {
        Self { part_of: Some(part_of), ..Self::module(module, symbol) }
    }

    const fn since(self, major: u64, minor: u64) -> Self {
        Self { since: Some((major, minor)), ..self }
    }

    const fn until(self, major: u64, minor: u64) -> Self {
        Self { until: Some((major, minor)), ..self }
    }

    const fn shown_by(self, markers: &'static [Marker]) -> Self {
        Self { markers, ..self }
    }
}

/// Condition under which a row is needed.
#[derive(Clone, Copy, Debug)]
enum For {
    /// Needed by every caller.
    All,
    /// Needed with this family; wanted otherwise.
    Family(Family),
    /// Not needed by itself: only for what `why` says.
    Some,
    /// Needed with this backend, in these families.
    Backend(Backend, Families),
}

#[derive(Clone, Copy, Debug)]
struct Row {
    name: &'static str,
    who: For,
    why: &'static str,
    only_before: Option<(u64, u64)>,
    providers: &'static [P],
    capability: Option<Asked>,
}

/// [`Capability`] in a constant.
#[derive(Clone, Copy, Debug)]
enum Asked {
    GenlFamily(&'static str),
    Ipset,
    LinkKind(&'static str),
    Match(&'static str),
    Target(&'static str),
}

impl Row {
    fn build(&self, families: Families) -> Requirement {
        let (need, backend) = match self.who {
            For::All => (Need::Required, None),
            For::Family(family) if families.has(family) => (Need::Required, None),
            For::Some | For::Family(_) => (Need::Wanted, None),
            For::Backend(backend, families) => (Need::Either, Some((backend, families))),
        };
        let provider = |p: &P| {
            Some(Provider {
                module: Some(ModuleName::new(p.module).ok()?),
                symbol: Some(p.symbol.to_owned()),
                part_of: p.part_of.map(str::to_owned),
                since: p.since,
                until: p.until,
                markers: p.markers,
                files: Vec::new(),
            })
        };
        Requirement {
            name: self.name.to_owned(),
            why: Cow::Borrowed(self.why),
            need,
            backend,
            providers: self.providers.iter().filter_map(provider).collect(),
            capability: self.capability.map(|asked| match asked {
                Asked::GenlFamily(name) => Capability::GenlFamily(name.to_owned()),
                Asked::Ipset => Capability::Ipset,
                Asked::LinkKind(kind) => Capability::LinkKind(kind.to_owned()),
                Asked::Match(name) => Capability::XtMatch(name.to_owned()),
                Asked::Target(name) => Capability::XtTarget(name.to_owned()),
            }),
        }
    }
}

const fn row(name: &'static str, who: For, why: &'static str, providers: &'static [P]) -> Row {
    Row { name, who, why, only_before: None, providers, capability: None }
}

impl Row {
    const fn asks(self, capability: Asked) -> Self {
        Self { capability: Some(capability), ..self }
    }

    const fn only_before(self, major: u64, minor: u64) -> Self {
        Self { only_before: Some((major, minor)), ..self }
    }
}

/// Name of the row that kernels before 4.19 have and vendors drop early.
pub(crate) const CONNTRACK_IPV4: &str = "nf_conntrack_ipv4";
/// The same for IPv6.
pub(crate) const CONNTRACK_IPV6: &str = "nf_conntrack_ipv6";

const MATCHES4: &str = "/proc/net/ip_tables_matches";
const TARGETS4: &str = "/proc/net/ip_tables_targets";

const ROWS: &[Row] = &[
    row(
        "ip_vs",
        For::All,
        "virtual servers",
        &[P::module("ip_vs", "IP_VS")
            .shown_by(&[Marker::Path("/proc/net/ip_vs"), Marker::Path("/proc/sys/net/ipv4/vs")])],
    )
    .asks(Asked::GenlFamily("IPVS")),
    row("ip_vs: TCP", For::All, "virtual servers for TCP", &[P::feature("ip_vs", "IP_VS", "IP_VS_PROTO_TCP")]),
    row("ip_vs: UDP", For::All, "virtual servers for UDP", &[P::feature("ip_vs", "IP_VS", "IP_VS_PROTO_UDP")]),
    row("ip_vs: SCTP", For::Some, "Services with protocol SCTP", &[P::feature("ip_vs", "IP_VS", "IP_VS_PROTO_SCTP")]),
    row(
        "ip_vs: IPv6",
        For::Family(Family::Ipv6),
        "virtual servers for IPv6",
        &[P::feature("ip_vs", "IP_VS", "IP_VS_IPV6")],
    ),
    row(
        "ip_vs: conntrack",
        For::All,
        "masquerading of balanced connections (sysctl net/ipv4/vs/conntrack)",
        &[P::feature("ip_vs", "IP_VS", "IP_VS_NFCT").shown_by(&[Marker::Path("/proc/sys/net/ipv4/vs/conntrack")])],
    ),
    row(
        "nf_conntrack",
        For::All,
        "connection tracking",
        &[P::module("nf_conntrack", "NF_CONNTRACK")
            .shown_by(&[Marker::Path("/proc/sys/net/netfilter/nf_conntrack_max")])],
    ),
    row(
        CONNTRACK_IPV4,
        For::Family(Family::Ipv4),
        "connection tracking of IPv4 before 4.19",
        &[P::module("nf_conntrack_ipv4", "NF_CONNTRACK_IPV4").until(4, 19)],
    )
    .only_before(4, 19),
    row(
        CONNTRACK_IPV6,
        For::Family(Family::Ipv6),
        "connection tracking of IPv6 before 4.19",
        &[P::module("nf_conntrack_ipv6", "NF_CONNTRACK_IPV6").until(4, 19)],
    )
    .only_before(4, 19),
    row("nf_nat", For::All, "masquerading", &[P::module("nf_nat", "NF_NAT")]),
    row(
        "nf_conntrack_netlink",
        For::Some,
        "forgetting UDP connections to endpoints that are gone",
        &[P::module("nf_conntrack_netlink", "NF_CT_NETLINK")],
    ),
    row("dummy", For::All, "the device kube-ipvs0 that holds the VIPs", &[P::module("dummy", "DUMMY")])
        .asks(Asked::LinkKind("dummy")),
    row("ip_set", For::All, "sets", &[P::module("ip_set", "IP_SET")]).asks(Asked::Ipset),
    row(
        "xt_set",
        For::All,
        "rules that look into sets",
        &[P::module("xt_set", "NETFILTER_XT_SET").shown_by(&[Marker::Word(MATCHES4, "set")])],
    )
    .asks(Asked::Match("set")),
    row(
        "xt_comment",
        For::All,
        "comments in rules",
        &[P::module("xt_comment", "NETFILTER_XT_MATCH_COMMENT").shown_by(&[Marker::Word(MATCHES4, "comment")])],
    )
    .asks(Asked::Match("comment")),
    row(
        "xt_mark",
        For::All,
        "the masquerade mark (match and target)",
        &[P::module("xt_mark", "NETFILTER_XT_MARK")
            .shown_by(&[Marker::Word(MATCHES4, "mark"), Marker::Word(TARGETS4, "MARK")])],
    )
    .asks(Asked::Match("mark")),
    row(
        "xt_addrtype",
        For::All,
        "rules for node ports and external IPs",
        &[P::module("xt_addrtype", "NETFILTER_XT_MATCH_ADDRTYPE").shown_by(&[Marker::Word(MATCHES4, "addrtype")])],
    )
    .asks(Asked::Match("addrtype")),
    row(
        "xt_conntrack",
        For::All,
        "the rule for established connections",
        &[P::module("xt_conntrack", "NETFILTER_XT_MATCH_CONNTRACK").shown_by(&[Marker::Word(MATCHES4, "conntrack")])],
    )
    .asks(Asked::Match("conntrack")),
    row(
        "MASQUERADE, IPv4",
        For::Family(Family::Ipv4),
        "masquerading",
        &[
            P::module("xt_MASQUERADE", "NETFILTER_XT_TARGET_MASQUERADE")
                .since(5, 2)
                .shown_by(&[Marker::Word(TARGETS4, "MASQUERADE")]),
            P::module("ipt_MASQUERADE", "IP_NF_TARGET_MASQUERADE").until(5, 2),
        ],
    )
    .asks(Asked::Target("MASQUERADE")),
    row(
        "MASQUERADE, IPv6",
        For::Family(Family::Ipv6),
        "masquerading of IPv6",
        &[
            P::module("xt_MASQUERADE", "NETFILTER_XT_TARGET_MASQUERADE").since(5, 2),
            P::module("ip6t_MASQUERADE", "IP6_NF_TARGET_MASQUERADE").until(5, 2),
        ],
    ),
    row(
        "xt_ipvs",
        For::Some,
        "source ranges that also bind the node itself (rules with -m ipvs)",
        &[P::module("xt_ipvs", "NETFILTER_XT_MATCH_IPVS").shown_by(&[Marker::Word(MATCHES4, "ipvs")])],
    )
    .asks(Asked::Match("ipvs")),
    row(
        "xt_physdev",
        For::Some,
        "the rule for external IPs on bridges",
        &[P::module("xt_physdev", "NETFILTER_XT_MATCH_PHYSDEV").shown_by(&[Marker::Word(MATCHES4, "physdev")])],
    )
    .asks(Asked::Match("physdev")),
    row(
        "br_netfilter",
        For::Some,
        "pods behind a Linux bridge (rules see bridged packets)",
        &[P::module("br_netfilter", "BRIDGE_NETFILTER")
            .since(3, 18)
            .shown_by(&[Marker::Path("/proc/sys/net/bridge/bridge-nf-call-iptables")])],
    ),
    row(
        "iptable_nat",
        For::Backend(Backend::Legacy, Families::Ipv4),
        "table nat, iptables-legacy",
        &[P::module("iptable_nat", "IP_NF_NAT").shown_by(&[Marker::Word("/proc/net/ip_tables_names", "nat")])],
    ),
    row(
        "iptable_filter",
        For::Backend(Backend::Legacy, Families::Ipv4),
        "table filter, iptables-legacy",
        &[P::module("iptable_filter", "IP_NF_FILTER").shown_by(&[Marker::Word("/proc/net/ip_tables_names", "filter")])],
    ),
    row(
        "ip6table_nat",
        For::Backend(Backend::Legacy, Families::Ipv6),
        "table nat, ip6tables-legacy",
        &[P::module("ip6table_nat", "IP6_NF_NAT").shown_by(&[Marker::Word("/proc/net/ip6_tables_names", "nat")])],
    ),
    row(
        "ip6table_filter",
        For::Backend(Backend::Legacy, Families::Ipv6),
        "table filter, ip6tables-legacy",
        &[P::module("ip6table_filter", "IP6_NF_FILTER")
            .shown_by(&[Marker::Word("/proc/net/ip6_tables_names", "filter")])],
    ),
    row(
        "nf_tables",
        For::Backend(Backend::Nft, Families::Dual),
        "rules through iptables-nft",
        &[P::module("nf_tables", "NF_TABLES").since(3, 13)],
    ),
    row(
        "nf_tables, IPv4",
        For::Backend(Backend::Nft, Families::Ipv4),
        "IPv4 rules through iptables-nft",
        &[
            P::feature("nf_tables", "NF_TABLES", "NF_TABLES_IPV4").since(4, 17),
            P::module("nf_tables_ipv4", "NF_TABLES_IPV4").until(4, 17),
        ],
    ),
    row(
        "nf_tables, IPv6",
        For::Backend(Backend::Nft, Families::Ipv6),
        "IPv6 rules through ip6tables-nft",
        &[
            P::feature("nf_tables", "NF_TABLES", "NF_TABLES_IPV6").since(4, 17),
            P::module("nf_tables_ipv6", "NF_TABLES_IPV6").until(4, 17),
        ],
    ),
    row(
        "nft_compat",
        For::Backend(Backend::Nft, Families::Dual),
        "matches and targets in iptables-nft",
        &[P::module("nft_compat", "NFT_COMPAT").since(3, 13)],
    ),
    row(
        "nft nat chains, IPv4",
        For::Backend(Backend::Nft, Families::Ipv4),
        "table nat, iptables-nft",
        &[
            P::module("nft_chain_nat", "NFT_NAT").since(5, 1),
            P::module("nft_chain_nat_ipv4", "NFT_CHAIN_NAT_IPV4").until(5, 1),
        ],
    ),
    row(
        "nft nat chains, IPv6",
        For::Backend(Backend::Nft, Families::Ipv6),
        "table nat, ip6tables-nft",
        &[
            P::module("nft_chain_nat", "NFT_NAT").since(5, 1),
            P::module("nft_chain_nat_ipv6", "NFT_CHAIN_NAT_IPV6").until(5, 1),
        ],
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn all(release: &str) -> Vec<Requirement> {
        requirements(&Profile::default(), Some(&release.parse().unwrap()))
    }

    #[test]
    fn every_row_of_the_table_can_be_built_and_has_a_name_of_its_own() {
        let rows = all("3.10.0");
        let names: BTreeSet<_> = rows.iter().map(|row| &row.name).collect();
        assert_eq!(names.len(), rows.len());
        for row in ROWS {
            assert_eq!(
                row.providers.len(),
                row.build(Families::Dual).providers.len(),
                "{}: a name was refused",
                row.name
            );
        }
        assert!(SET_TYPES.iter().all(|(name, ..)| set_type_row(name).providers.len() == 1));
        assert!(rows.iter().all(|row| !row.providers.is_empty()));
    }

    #[test]
    fn conntrack_modules_by_kernel_version() {
        let has = |release: &str, name: &str| all(release).iter().any(|row| row.name == name);
        assert!(has("4.18.20", "nf_conntrack_ipv4") && has("4.18.20", "nf_conntrack"));
        assert!(!has("4.19.0-rc1", "nf_conntrack_ipv4") && has("4.19.0-rc1", "nf_conntrack"));
        assert!(!has("6.1.0-56-amd64", "nf_conntrack_ipv6"));
    }

    #[test]
    fn without_iptables_nothing_of_it_is_asked_for() {
        let rows = requirements(&Profile::default().without_iptables(true), None);
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
            let rows = requirements(profile, None);
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
