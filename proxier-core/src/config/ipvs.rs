//! Configuration of IPVS mode.

use std::sync::Arc;

use ipvs::model::{Scheduler, SchedulerFlags};

use super::MarkRange;
use crate::named::{named, one_of};
use crate::net::Network;
pub use crate::snapshot::MayAskFor;
use crate::snapshot::{Annotation, Balancing};

named! {
    /// How the addresses of Services become addresses of this host, so that their packets reach IPVS.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    #[non_exhaustive]
    pub enum Binding, "taken as addresses" {
        /// Each address is bound to the dummy device, as in kube-proxy. The more addresses there are, the longer the
        /// kernel takes for each. Default.
        #[default]
        Addresses = "addresses",
        /// Local routes, one for each network of [`IpvsConfig::service_cidrs`] and one for each address outside them.
        /// No interface has such an address, and no dummy device is created.
        Routes = "routes",
    }
}

named! {
    /// Back end of masquerading and source-range rules: iptables and ipset, or an nf_tables table.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    pub enum RulesBy, "taken as auto" {
        /// One nf_tables table per family, or iptables rules with ipsets if the host or its objects need them: see
        /// [`choose`](crate::modes::ipvs::choose). Before a choice it means [`RulesBy::Iptables`]. Default.
        #[default]
        Auto = "auto",
        /// One nf_tables table per family. No program is started and no ipset is created.
        Nftables = "nftables",
        /// kube-proxy's chains, written by the iptables programs, and its ipsets.
        Iptables = "iptables",
    }
}

/// Configuration of IPVS mode.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct IpvsConfig {
    /// Scheduler of every virtual server. Default `rr`. `mh` gets the flags `mh-port` and `mh-fallback`; without
    /// `mh-fallback`, new connections are lost while a real server drains.
    pub scheduler: Scheduler,
    /// Settings that annotations of Services may override ([`Balancing`](crate::snapshot::Balancing)). Default
    /// everything except weights by node.
    pub may_ask_for: MayAskFor,
    /// Load balancing of Services whose annotations have no setting or may not decide. [`IpvsConfig::scheduler`] has
    /// the scheduler, and persistence applies to Services without session affinity. Default none.
    pub defaults: Option<Arc<Balancing>>,
    /// Networks in which no virtual server is ever deleted, because another program manages them. Default none.
    pub exclude_cidrs: Vec<Network>,
    /// How addresses become addresses of this host. Default by binding them.
    pub binding: Binding,
    /// Networks of cluster IPs, each made local as a whole with [`Binding::Routes`]. Only Services may use them.
    /// Default none.
    pub service_cidrs: Vec<Network>,
    /// Back end of masquerading and source-range rules: iptables and ipset, or an nf_tables table. Default
    /// [`RulesBy::Auto`].
    pub rules: RulesBy,
    /// Whether, with external policy `Local`, clients outside get local endpoints while this node and its pods get
    /// those of all nodes. Uses firewall marks and needs [`RulesBy::Nftables`]
    /// ([`Config::splits_local`](super::Config::splits_local)). Default no: all clients get local endpoints.
    pub mark_split: bool,
    /// The firewall marks for it.
    pub mark_range: MarkRange,
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
        }
    }
}

impl IpvsConfig {
    /// The policy of a Service with this request: its annotations as far as they may decide, otherwise the
    /// configuration. `has_affinity`: the Service itself has session affinity.
    pub fn balancing(&self, asked: Option<&Arc<Balancing>>, has_affinity: bool) -> Option<Arc<Balancing>> {
        let may = self.may_ask_for;
        let merged = match (asked, &self.defaults) {
            (None, None) => return None,
            // Nearly always nothing is omitted or added.
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

/// Keeps the settings that annotations may override.
fn only(asked: &Balancing, may: MayAskFor) -> Balancing {
    let mut allowed = asked.clone();
    for annotation in Annotation::ALL.iter().filter(|annotation| !may.contains(annotation.needs)) {
        annotation.copy(&mut allowed, &Balancing::default());
    }
    allowed
}

/// Adds the configuration's values for missing settings. Flags belong to the scheduler for which they are configured.
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

/// The default flags of a scheduler.
pub(crate) fn usual_flags(scheduler: Scheduler) -> SchedulerFlags {
    match scheduler {
        Scheduler::MaglevHashing => SchedulerFlags::MH_PORT | SchedulerFlags::MH_FALLBACK,
        _ => SchedulerFlags::empty(),
    }
}
