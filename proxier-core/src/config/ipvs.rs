//! Configuration of IPVS mode.

use std::fmt;
use std::sync::Arc;

use ipvs::model::{Scheduler, SchedulerFlags};

use super::MarkRange;
use crate::named::{named, one_of};
use crate::net::Network;
pub use crate::snapshot::MayAskFor;
use crate::snapshot::{Annotation, Balancing};

named! {
    /// Method by which the addresses of Services become this host's, so that their packets come to IPVS.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    #[non_exhaustive]
    pub enum Binding, "taken as addresses" {
        /// Each is bound to the dummy device, as with kube-proxy. The kernel takes longer for each address the more there are.
        /// Default.
        #[default]
        Addresses = "addresses",
        /// Local routes, one for each network of [`IpvsConfig::service_cidrs`] and one for each address outside of them. No
        /// interface has such an address, and there is no dummy device.
        Routes = "routes",
    }
}

named! {
    /// Back end of masquerading and source-range rules: iptables and ipset, or a table of nf_tables.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub enum RulesBy, "taken as auto" {
        /// One table of nf_tables a family; rules of iptables with ipsets where the host, or objects on it, need them:
        /// [`choose`](crate::modes::ipvs::choose) says which. Unchosen it counts as [`RulesBy::Iptables`]. Default.
        #[default]
        Auto = "auto",
        /// One table of nf_tables a family; no program is started, no ipset is made.
        Nftables = "nftables",
        /// kube-proxy's chains, by the iptables programs, and its ipsets.
        Iptables = "iptables",
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
    /// The firewall marks for that.
    pub mark_range: MarkRange,
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
            mark_range: MarkRange::default(),
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
    for annotation in Annotation::ALL.iter().filter(|annotation| !may.contains(annotation.needs)) {
        annotation.copy(&mut allowed, &Balancing::default());
    }
    allowed
}

/// The same, with the configuration's values for settings that it leaves open. Flags go with the scheduler that they are for.
fn or(mut asked: Balancing, defaults: &Balancing, has_affinity: bool) -> Balancing {
    let mut defaults = Balancing { scheduler: None, ..defaults.clone() };
    if asked.scheduler.is_some() {
        defaults.scheduler_flags = None;
    }
    defaults.persistence_secs = defaults.persistence_secs.filter(|_| !has_affinity);
    for annotation in Annotation::ALL {
        if !annotation.is_set(&asked) {
            annotation.copy(&mut asked, &defaults);
        }
    }
    asked
}

/// The flags of a scheduler unless others are configured.
pub(crate) fn usual_flags(scheduler: Scheduler) -> SchedulerFlags {
    match scheduler {
        Scheduler::MaglevHashing => SchedulerFlags::MH_PORT | SchedulerFlags::MH_FALLBACK,
        _ => SchedulerFlags::empty(),
    }
}
