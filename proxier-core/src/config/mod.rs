//! Configuration of compiling and of the modes.

mod fast_path;
mod ipvs;
mod marks;
mod masquerade;
mod names;
mod reserved;

use std::net::IpAddr;

use ::ipvs::model::Scheduler;

use crate::net::{Family, Network, is_reachable};
use crate::objects::ConfigObject;
use crate::snapshot::{Balancing, ObjectKey, ObjectKind, Rejection, Reporter, parse_address, parse_network};

pub(crate) use self::ipvs::usual_flags;
pub use self::ipvs::{Binding, IpvsConfig, MayAskFor, RulesBy};
pub use fast_path::FastPath;
pub use marks::MarkRange;
pub use masquerade::{LocalTraffic, MarkBit};
pub use names::{InterfaceName, InvalidName, KernelNames, NamePrefix, TableName};
pub(crate) use reserved::OtherProxies;
pub use reserved::{Neighbour, Reserved, ReservedPort, User};

/// Families to program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Families {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
    /// Both. Default.
    #[default]
    Dual,
}

impl Families {
    /// The families that it includes.
    pub fn iter(self) -> impl Iterator<Item = Family> {
        Family::ALL.into_iter().filter(move |family| self.has(*family))
    }

    pub(crate) fn has(self, family: Family) -> bool {
        match self {
            Families::V4 => family == Family::V4,
            Families::V6 => family == Family::V6,
            Families::Dual => true,
        }
    }
}

/// The addresses of this host that serve node ports.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum NodePortAddresses {
    /// All except loopback, IPv6 link-local and those on devices of proxies ([`KernelNames`]). Default. iptables mode
    /// also serves 127.0.0.1.
    #[default]
    All,
    /// The node's primary addresses: [`Config::node_address`], or those of the Node object. A family without one serves
    /// no node ports.
    Primary,
    /// The node's primary addresses, and those of [`All`](NodePortAddresses::All) in these networks. A family without a
    /// network here only has its primary address.
    PrimaryAnd(Vec<Network>),
    /// Addresses of [`All`](NodePortAddresses::All) in these networks. A family without a network here serves all
    /// addresses, unless the list is empty: then neither family serves any.
    Within(Vec<Network>),
}

impl NodePortAddresses {
    /// The networks of a family in which node ports are served, in addition to primary addresses; `None` for all
    /// addresses.
    pub(crate) fn networks(&self, family: Family) -> Option<Vec<Network>> {
        let (networks, opens_unnamed) = match self {
            NodePortAddresses::All => return None,
            NodePortAddresses::Primary => (&[][..], false),
            NodePortAddresses::PrimaryAnd(networks) => (&networks[..], false),
            NodePortAddresses::Within(networks) => (&networks[..], !networks.is_empty()),
        };
        let of_family: Vec<Network> =
            networks.iter().copied().filter(|network| Family::of(network.addr()) == family).collect();
        let all = of_family.is_empty() && opens_unnamed || of_family.iter().any(|network| network.prefix_len() == 0);
        (!all).then_some(of_family)
    }

    /// Whether a network smaller than all addresses contains the loopback address of a family (127.0.0.1, ::1). The
    /// mode decides whether node ports are served there ([`Kind::localhost`](crate::modes::Kind::localhost)).
    pub fn names_localhost(&self, family: Family) -> bool {
        match self {
            NodePortAddresses::All | NodePortAddresses::Primary => false,
            NodePortAddresses::PrimaryAnd(networks) | NodePortAddresses::Within(networks) => {
                networks.iter().any(|network| network.prefix_len() > 0 && network.contains(&family.localhost()))
            }
        }
    }
}

/// Which topology hints of endpoints are used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Topology {
    /// All hints; those for nodes take precedence over those for zones, as in kube-proxy from 1.35. The control plane
    /// writes hints for both `trafficDistribution` and topology annotations. Default.
    #[default]
    Hints,
    /// Only zone hints, and only of Services with a topology annotation: kube-proxy up to 1.30.
    AnnotatedHints,
}

/// Settings of compiling and of the modes.
///
/// Set fields one by one, or read them from a `KubeProxyConfiguration` with [`Config::check`].
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Families to program. Default: both.
    pub families: Families,
    /// The node's primary address of its family, instead of the Node object's (`bindAddress`). Default none.
    pub node_address: Option<IpAddr>,
    /// Addresses that serve node ports.
    pub node_port_addresses: NodePortAddresses,
    /// Whether `spec.externalIPs` of Services are ignored, since anyone who may write a Service can choose them: the
    /// feature gate [`EXTERNAL_IPS_GATE`] is off. Default no.
    pub without_external_ips: bool,
    /// Which topology hints of endpoints are used.
    pub topology: Topology,
    /// Settings of IPVS mode.
    pub ipvs: IpvsConfig,
    /// Addresses and ports that no virtual server may use. Default: ports of the kubelet and of this proxy on this
    /// node.
    pub reserved: Reserved,
    /// Whether all traffic to cluster IPs is masqueraded, regardless of its source. Default no.
    pub masquerade_all: bool,
    /// The bit of the packet mark that means "masquerade this".
    pub masquerade_bit: MarkBit,
    /// How local pod traffic is detected (`detectLocalMode`). Default: not detected.
    pub local_traffic: LocalTraffic,
    /// Names of kernel objects. Default: kube-proxy's.
    pub names: KernelNames,
    /// Settings of nf_tables tables.
    pub nftables: NftablesConfig,
    /// Fast path of established connections. Default: none.
    pub fast_path: Option<FastPath>,
}

/// Configuration of nf_tables tables, in every mode that has them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct NftablesConfig {
    /// Whether nftables mode counts the connections of each Frontend, by their first packets, in an element's counter.
    /// It restarts when a Frontend moves to another chain. Default no.
    pub count_connections: bool,
    /// Whether nf_tables tables belong to this process. While it runs no other process can change or delete them, and
    /// `nft flush ruleset` skips them. They stay when the process ends, and its successor takes them over. Needs Linux
    /// 6.9 ([`modes::can_own_tables`](crate::modes::can_own_tables)). Default no.
    pub own_tables: bool,
}

impl Config {
    /// Whether annotations may override this.
    pub(crate) fn lets(&self, what: MayAskFor) -> bool {
        self.ipvs.may_ask_for.contains(what)
    }

    /// Checks a configuration. Ignores and reports impossible values; the caller decides whether to continue.
    ///
    /// If no item of `nodePortAddresses` is valid, no node ports are served. `iptables.localhostNodePorts` is ignored,
    /// as in kube-proxy's IPVS mode, because IPVS cannot serve node ports on loopback addresses.
    pub fn check(object: &ConfigObject, rejections: &mut Vec<Rejection>) -> Self {
        let key = &ObjectKey::new("", "KubeProxyConfiguration");
        let report = &mut Reporter { kind: ObjectKind::Configuration, key, rejections };
        let mut config = Config::default();
        let ipvs = &object.ipvs;
        // `none` parses too, but connections would not be forwarded.
        let scheduler = |name: &str| name.parse().ok().filter(|of| *of != Scheduler::None);
        let reason = "not a scheduler's name; taken as rr";
        let scheduler = report.read_text("ipvs.scheduler", ipvs.scheduler.as_deref(), scheduler, reason);
        config.ipvs.scheduler = scheduler.unwrap_or(config.ipvs.scheduler);
        let rules = report.read_text("ipvs.rules", ipvs.rules.as_deref(), RulesBy::by_name, RulesBy::UNKNOWN);
        config.ipvs.rules = rules.unwrap_or_default();
        if let Some(names) = &ipvs.allowed_annotations {
            let allowed = report.read_all("ipvs.allowedAnnotations", names, MayAskFor::by_name, MayAskFor::UNKNOWN);
            config.ipvs.may_ask_for = allowed.into_iter().fold(MayAskFor::empty(), |all, one| all | one);
        }
        config.ipvs.defaults = Balancing::check_defaults(&ipvs.defaults, report);
        config.node_address = parse_address(&object.bind_address).filter(|address| is_reachable(*address));
        config.without_external_ips = object.feature_gates.get(EXTERNAL_IPS_GATE) == Some(&false);
        config.node_port_addresses = check_node_port_addresses(&object.node_port_addresses, report);
        config.ipvs.exclude_cidrs =
            report.read_all("ipvs.excludeCIDRs", &ipvs.exclude_cidrs, parse_network, NO_NETWORK);
        let binding = report.read_text("ipvs.binding", ipvs.binding.as_deref(), Binding::by_name, Binding::UNKNOWN);
        config.ipvs.binding = binding.unwrap_or_default();
        let reason = "not a network of Services (ADDRESS/PREFIX, not all addresses); left out";
        config.ipvs.service_cidrs =
            report.read_all("ipvs.serviceCIDRs", &ipvs.service_cidrs, parse_service_cidr, reason);
        config.masquerade_all = ipvs.masquerade_all.unwrap_or(object.iptables.masquerade_all);
        config.masquerade_bit = masquerade::check_masquerade_bit(object, report);
        config.local_traffic = LocalTraffic::check(object, report);
        config.nftables.own_tables = object.nftables.own_tables;
        config.nftables.count_connections = object.nftables.count_connections;
        config.fast_path = object.fast_path.as_ref().and_then(|object| FastPath::check(object, report));
        check_marks(object, &mut config, report);
        config
    }

    /// Whether IPVS mode gives clients outside separate endpoints if a policy is `Local` ([`IpvsConfig::mark_split`]).
    /// Only an nf_tables table can set the marks.
    pub fn splits_local(&self) -> bool {
        self.ipvs.mark_split && self.ipvs.rules == RulesBy::Nftables
    }

    /// Whether IPVS mode binds addresses by routes. Unlike names, routes do not distinguish proxies, so a proxy with
    /// [names](KernelNames) other than kube-proxy's binds addresses.
    pub fn binds_by_routes(&self) -> bool {
        self.ipvs.binding == Binding::Routes && self.names == KernelNames::default()
    }
}

/// The feature gate that allows external IPs of Services ([`Config::without_external_ips`]). No other gate has an
/// effect.
pub const EXTERNAL_IPS_GATE: &str = "AllowServiceExternalIPs";

/// Parses a network of cluster IPs to be made local as a whole. `None` if invalid or all addresses.
pub fn parse_service_cidr(text: &str) -> Option<Network> {
    parse_network(text).filter(|network| network.prefix_len() > 0)
}

const NO_NETWORK: &str = "not a network (ADDRESS/PREFIX); left out";

/// Turns splitting off for a proxy without marks of its own.
fn check_marks(object: &ConfigObject, config: &mut Config, report: &mut Reporter<'_>) {
    config.ipvs.mark_split = object.ipvs.mark_split.unwrap_or_default();
    let text = object.ipvs.mark_range.as_deref().unwrap_or_default();
    if !text.is_empty() {
        if let Ok(range) = text.parse() {
            config.ipvs.mark_range = range;
        } else {
            let reason = "not a range of firewall marks (VALUE/MASK, such as 0x16000000/0xff00c000); none are used";
            report.reject("ipvs.markRange", text, reason);
            config.ipvs.mark_split = false;
        }
    }
    let range = config.ipvs.mark_range;
    if config.ipvs.mark_split && !range.is_apart_from(config.masquerade_bit) {
        let reason =
            "not a range whose mask, and not whose value, has 0x8000 and the bit for masquerading; none are used";
        report.reject("ipvs.markRange", range, reason);
        config.ipvs.mark_split = false;
    }
}

fn check_node_port_addresses(texts: &[String], report: &mut Reporter<'_>) -> NodePortAddresses {
    if texts.is_empty() {
        return NodePortAddresses::All;
    }
    let all = |texts: &[&str]| Some(texts.iter().filter_map(|text| parse_network(text)).collect());
    let networks = |text: &str| match text {
        "primary" => all(&[]),
        "localhost" => all(&["127.0.0.0/8", "::1/128"]),
        "all" => all(&["0.0.0.0/0", "::/0"]),
        text => parse_network(text).map(|network| vec![network]),
    };
    let reason = "not a network (ADDRESS/PREFIX), primary, localhost or all; left out";
    let networks = report.read_all("nodePortAddresses", texts, networks, reason).concat();
    match (texts.iter().any(|text| text == "primary"), networks) {
        (true, networks) if networks.is_empty() => NodePortAddresses::Primary,
        (true, networks) => NodePortAddresses::PrimaryAnd(networks),
        (false, _) if texts.iter().all(|text| text == "all") => NodePortAddresses::All,
        (false, networks) => NodePortAddresses::Within(networks),
    }
}
