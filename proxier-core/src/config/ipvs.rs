//! Configuration of IPVS mode.

use std::fmt;
use std::sync::Arc;

use ipvs::model::Scheduler;

use super::{ConnectionSync, MarkRange};
use crate::flags::flags;
use crate::net::Network;
use crate::snapshot::Balancing;

flags! {
    /// Settings that annotations of Services, EndpointSlices and Nodes may decide.
    ///
    /// ```
    /// use proxier_core::config::{Config, MayAskFor};
    ///
    /// let mut config = Config::default();
    /// assert_eq!(config.ipvs.may_ask_for, MayAskFor::all().difference(MayAskFor::NODE_WEIGHTS));
    /// // Services may ask neither for direct routing nor for a drain time.
    /// config.ipvs.may_ask_for = MayAskFor::all().difference(MayAskFor::FORWARDING | MayAskFor::DRAIN);
    /// assert!(!config.ipvs.may_ask_for.contains(MayAskFor::DRAIN));
    ///
    /// // By a name in a configuration file.
    /// assert_eq!(MayAskFor::by_name("weights"), Some(MayAskFor::WEIGHTS));
    /// ```
    pub struct MayAskFor {
        /// `scheduler`: the scheduler and its flags.
        const SCHEDULER = 1;
        /// `persistence`: how long clients stay with their endpoints, and which count as one.
        const PERSISTENCE = 2;
        /// `one-packet`: scheduling of each UDP datagram for itself.
        const ONE_PACKET = 4;
        /// `weights`: weights of endpoints, by slice and by zone.
        const WEIGHTS = 8;
        /// `node-weights`: weights of endpoints by node; not by default, since a watch of all Nodes has its cost.
        const NODE_WEIGHTS = 16;
        /// `forwarding`: how packets for external addresses reach endpoints.
        const FORWARDING = 32;
        /// `thresholds`: limits of connections.
        const THRESHOLDS = 64;
        /// `drain`: how long endpoints that leave keep connections.
        const DRAIN = 128;
    }
}

impl MayAskFor {
    /// Setting of this name in configuration files; `None` for an unknown name.
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "scheduler" => Some(MayAskFor::SCHEDULER),
            "persistence" => Some(MayAskFor::PERSISTENCE),
            "one-packet" => Some(MayAskFor::ONE_PACKET),
            "weights" => Some(MayAskFor::WEIGHTS),
            "node-weights" => Some(MayAskFor::NODE_WEIGHTS),
            "forwarding" => Some(MayAskFor::FORWARDING),
            "thresholds" => Some(MayAskFor::THRESHOLDS),
            "drain" => Some(MayAskFor::DRAIN),
            _ => None,
        }
    }
}

/// Method by which the addresses of Services become this host's, so that their packets come to IPVS.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum Binding {
    /// Each is bound to the dummy device, as with kube-proxy. The kernel takes longer for each address the more there are.
    /// Default.
    #[default]
    Addresses,
    /// Local routes, one for each network of [`IpvsConfig::service_cidrs`] and one for each address outside of them. No
    /// interface has such an address, and there is no dummy device.
    Routes,
}

impl Binding {
    /// The name in configuration files: `addresses`, `routes`.
    pub fn name(self) -> &'static str {
        match self {
            Binding::Addresses => "addresses",
            Binding::Routes => "routes",
        }
    }

    /// Binding of this name; `None` for an unknown name.
    pub fn by_name(name: &str) -> Option<Self> {
        [Binding::Addresses, Binding::Routes].into_iter().find(|binding| binding.name() == name)
    }
}

/// Back end of masquerading and source-range rules: iptables and ipset, or a table of nf_tables.
///
/// ```
/// use proxier_core::config::{Binding, Config, RulesBy};
///
/// let mut config = Config::default();
/// config.ipvs.rules = RulesBy::by_name("nftables").ok_or("not auto, nftables or iptables")?;
/// config.ipvs.binding = Binding::by_name("routes").ok_or("not addresses or routes")?;
/// assert_eq!((config.ipvs.rules.name(), config.ipvs.binding.name()), ("nftables", "routes"));
/// # Ok::<(), &str>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RulesBy {
    /// One table of nf_tables a family; rules of iptables with ipsets where the host, or objects on it, need them:
    /// [`choose`](crate::modes::ipvs::choose) says which. Unchosen it counts as [`RulesBy::Iptables`]. Default.
    #[default]
    Auto,
    /// One table of nf_tables a family; no program is started, no ipset is made.
    Nftables,
    /// kube-proxy's chains, by the iptables programs, and its ipsets.
    Iptables,
}

impl RulesBy {
    /// Back end of this name in configuration files: `auto`, `nftables`, `iptables`; `None` for an unknown name.
    pub fn by_name(name: &str) -> Option<Self> {
        [RulesBy::Auto, RulesBy::Nftables, RulesBy::Iptables].into_iter().find(|by| by.name() == name)
    }

    /// The name in configuration files.
    pub fn name(self) -> &'static str {
        match self {
            RulesBy::Auto => "auto",
            RulesBy::Nftables => "nftables",
            RulesBy::Iptables => "iptables",
        }
    }
}

/// Prints the name, as [`RulesBy::name`].
impl fmt::Display for RulesBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Configuration of IPVS mode alone.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct IpvsConfig {
    /// Scheduler of every virtual server. Default `rr`. For `mh` the flags `mh-port` and `mh-fallback` are set; without
    /// `mh-fallback`, new connections are lost while a real server drains.
    pub scheduler: Scheduler,
    /// Settings that Services may decide by annotations ([`Balancing`](crate::snapshot::Balancing)). Default everything but weights by
    /// node.
    pub may_ask_for: MayAskFor,
    /// Load balancing of Services whose annotations say nothing, or may not decide. The scheduler is
    /// [`IpvsConfig::scheduler`], and persistence is for Services without session affinity. Default nothing.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use proxier_core::config::Config;
    /// use proxier_core::snapshot::Balancing;
    ///
    /// let mut config = Config::default();
    /// let mut defaults = Balancing::default();
    /// defaults.drain_secs = Some(120);
    /// config.ipvs.defaults = Some(Arc::new(defaults));
    /// ```
    pub defaults: Option<Arc<Balancing>>,
    /// Networks in which no virtual server is ever deleted: another program made it. Default none.
    pub exclude_cidrs: Vec<Network>,
    /// Method by which addresses become this host's. Default by binding them.
    pub binding: Binding,
    /// Networks of cluster IPs, each made local as a whole with [`Binding::Routes`]. They must be the Services' alone.
    /// Default none.
    pub service_cidrs: Vec<Network>,
    /// Back end of masquerading and source-range rules: iptables and ipset, or a table of nf_tables. Default [`RulesBy::Auto`].
    pub rules: RulesBy,
    /// Whether clients outside get local endpoints, and this node and pods those of all nodes, where the external policy is `Local`:
    /// by firewall marks, with [`RulesBy::Nftables`] only ([`Config::splits_local`](super::Config::splits_local)). Default no: all
    /// get the local ones.
    pub mark_split: bool,
    /// Whether a node port has one virtual server, by a firewall mark, for all addresses of the node; with [`RulesBy::Nftables`] only
    /// ([`Config::shares_node_ports`](super::Config::shares_node_ports)). Default no: one for each address.
    pub mark_node_ports: bool,
    /// The firewall marks for both.
    pub mark_range: MarkRange,
    /// Synchronisation of connections with other nodes. Default none: the kernel is not asked for its daemons.
    pub connection_sync: Option<ConnectionSync>,
    /// Whether a Frontend gets only what it needs in the kernel: for agents that hand in Frontends. Default no: all sets and chains are
    /// there from the first pass, as with kube-proxy. If so, with rules of iptables:
    ///
    /// * A set is made for its first entry, chains and jumps for the first entry of any set; no rule names a set that has no entry. Chains
    ///   and jumps go with the last entry; empty sets stay.
    /// * A Frontend whose endpoints answer clients by themselves ([`Balancing::forwarding`](crate::snapshot::Balancing::forwarding)) has no
    ///   entry, unless it has source ranges or an interface of this host has its address. Its address shows that its virtual server is
    ///   this proxy's own. No rule then keeps clients from other listeners on all addresses of this host. Use an address for such Frontends
    ///   alone: entries of other Frontends at the address would make virtual servers that an earlier process left there foreign.
    /// * `net/ipv4/ip_forward` and `net/ipv4/vs/conntrack` are set once a Frontend is masqueraded, the other values of IPVS once there is
    ///   one. What [`HostSettings`](crate::modes::HostSettings) asks for is set in any case.
    ///
    /// The rules are read all the same: an earlier process may have left some. With a table of nf_tables ([`RulesBy::Nftables`]) this has no
    /// effect on entries and the table.
    pub only_what_is_needed: bool,
}

impl Default for IpvsConfig {
    fn default() -> Self {
        IpvsConfig {
            scheduler: Scheduler::RoundRobin,
            may_ask_for: MayAskFor::all().difference(MayAskFor::NODE_WEIGHTS),
            defaults: None,
            exclude_cidrs: Vec::new(),
            binding: Binding::default(),
            service_cidrs: Vec::new(),
            rules: RulesBy::Auto,
            mark_split: false,
            mark_node_ports: false,
            mark_range: MarkRange::default(),
            connection_sync: None,
            only_what_is_needed: false,
        }
    }
}

impl IpvsConfig {
    /// The policy of a Service with this request: its annotations as far as they may decide, else the configuration.
    /// `has_affinity`: the Service asks for session affinity by its own field.
    pub fn balancing(&self, asked: Option<&Arc<Balancing>>, has_affinity: bool) -> Option<Arc<Balancing>> {
        let may = self.may_ask_for;
        let merged = match (asked, &self.defaults) {
            (None, None) => return None,
            // Nearly everywhere nothing is left out, and nothing added.
            (Some(asked), None) if (may | MayAskFor::NODE_WEIGHTS) == MayAskFor::all() => return Some(asked.clone()),
            (None, Some(defaults)) if !has_affinity || defaults.persistence_secs.is_none() => {
                return Some(defaults.clone());
            }
            (asked, defaults) => {
                let asked = asked.map(|asked| only(asked, may)).unwrap_or_default();
                match defaults {
                    Some(defaults) => or(asked, defaults, has_affinity),
                    None => asked,
                }
            }
        };
        (merged != Balancing::default()).then(|| Arc::new(merged))
    }
}

/// Keeps the requests that annotations may make.
fn only(asked: &Balancing, may: MayAskFor) -> Balancing {
    let mut allowed = asked.clone();
    let left = Balancing::default();
    if !may.contains(MayAskFor::SCHEDULER) {
        (allowed.scheduler, allowed.scheduler_flags) = (left.scheduler, left.scheduler_flags);
    }
    if !may.contains(MayAskFor::PERSISTENCE) {
        allowed.persistence_secs = left.persistence_secs;
        (allowed.granularity_v4, allowed.granularity_v6) = (left.granularity_v4, left.granularity_v6);
    }
    if !may.contains(MayAskFor::ONE_PACKET) {
        allowed.one_packet = left.one_packet;
    }
    if !may.contains(MayAskFor::WEIGHTS) {
        allowed.zone_weights = left.zone_weights;
    }
    if !may.contains(MayAskFor::FORWARDING) {
        (allowed.forwarding, allowed.forwarding_asked_by) = (left.forwarding, left.forwarding_asked_by);
    }
    if !may.contains(MayAskFor::THRESHOLDS) {
        allowed.thresholds = left.thresholds;
    }
    if !may.contains(MayAskFor::DRAIN) {
        allowed.drain_secs = left.drain_secs;
    }
    allowed
}

/// The same, with the configuration's values for settings that it leaves open. Flags go with the scheduler that they are for.
fn or(mut asked: Balancing, defaults: &Balancing, has_affinity: bool) -> Balancing {
    if asked.scheduler.is_none() {
        asked.scheduler_flags = asked.scheduler_flags.or(defaults.scheduler_flags);
    }
    asked.persistence_secs = asked.persistence_secs.or(defaults.persistence_secs.filter(|_| !has_affinity));
    asked.granularity_v4 = asked.granularity_v4.or(defaults.granularity_v4);
    asked.granularity_v6 = asked.granularity_v6.or(defaults.granularity_v6);
    asked.one_packet = asked.one_packet.or(defaults.one_packet);
    asked.zone_weights = asked.zone_weights.or_else(|| defaults.zone_weights.clone());
    if asked.forwarding.is_none() {
        (asked.forwarding, asked.forwarding_asked_by) = (defaults.forwarding, defaults.forwarding_asked_by);
    }
    if asked.thresholds == Balancing::default().thresholds {
        asked.thresholds = defaults.thresholds;
    }
    asked.drain_secs = asked.drain_secs.or(defaults.drain_secs);
    asked
}
