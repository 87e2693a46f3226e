//! The policies of Services that a mode supports.

use super::{Annotation, Balancing, Sharing};

/// The policies of Services, by annotations, that a mode supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Abilities {
    /// All of it: IPVS mode. Default.
    #[default]
    Ipvs,
    /// Weights, affinity, drain times, and selection by a hash of the client (`sh`, `mh`): nftables mode.
    Nftables,
    /// None: a mode that behaves exactly like kube-proxy's.
    None,
}

impl Abilities {
    /// Why a mode without policy ignores annotations.
    pub(super) const IGNORED: &str = "ignored in this mode; ipvs and nftables mode follow it";

    /// Removes requests that nftables mode does not support; returns the annotation of each, and the reason.
    /// `has_affinity`: the Service itself has session affinity.
    pub(super) fn limit(self, asked: &mut Balancing, has_affinity: bool) -> Vec<(&'static Annotation, &'static str)> {
        if self != Abilities::Nftables {
            return Vec::new();
        }
        let mut refused = Vec::new();
        let why_not = match asked.sharing() {
            Sharing::ByClient { .. } if has_affinity || asked.persistence_secs.is_some() => {
                Some("clients stay with their endpoints by session affinity, which decides in this mode; ignored")
            }
            Sharing::ByClient { .. } => None,
            Sharing::Evenly if asked.asks_for_turns() => None,
            Sharing::Evenly => Some("only IPVS mode has this scheduler; ignored"),
        };
        if let Some(reason) = why_not {
            asked.scheduler = None;
            refused.push((Annotation::SCHEDULER, reason));
        }
        if asked.scheduler_flags.is_some() && asked.sharing() == Sharing::Evenly {
            asked.scheduler_flags = None;
            refused.push((Annotation::SCHEDULER_FLAGS, "only for the schedulers sh and mh in this mode; ignored"));
        }
        if asked.max_connections.take().is_some() {
            let reason = "only IPVS mode knows numbers of connections; ignored";
            refused.push((Annotation::MAX_CONNECTIONS, reason));
        }
        if asked.returning().is_some() {
            asked.forwarding = None;
            refused.push((Annotation::FORWARDING, "only IPVS mode does this; ignored"));
        }
        refused
    }
}
