//! Wishes of Services that a mode can fulfil, beyond what every mode does (weights, affinity, drain times).

use bitflags::bitflags;

use super::{Annotation, Balancing, Sharing};

bitflags! {
    /// Wishes of Services that a mode can fulfil.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Abilities: u8 {
        /// Connections are relayed by a process: endpoints can be told the client.
        const RELAYS = 1;
        /// IPVS: every scheduler with its flags, one-packet scheduling, forwarding.
        const IPVS = 1 << 1;
        /// Endpoints by a hash of the client (`sh`, `mh`).
        const BY_CLIENT = 1 << 2;
        /// Endpoints by their numbers of connections: `lc`, `wlc`, limits.
        const LEAST_CONNECTIONS = 1 << 3;
    }
}

/// Abilities of IPVS mode.
impl Default for Abilities {
    fn default() -> Self {
        Abilities::IPVS
    }
}

impl Abilities {
    /// Takes wishes that cannot be fulfilled out: the annotation of each, and the reason. `has_affinity`: a Service's clients stay with their
    /// endpoints, whatever its annotations say.
    pub(super) fn limit(self, asked: &mut Balancing, has_affinity: bool) -> Vec<(&'static Annotation, &'static str)> {
        if self.contains(Abilities::IPVS) {
            return Vec::new();
        }
        let mut refused = Vec::new();
        let why_not = match asked.sharing() {
            Sharing::ByClient { .. } if !self.contains(Abilities::BY_CLIENT) => {
                Some("this mode cannot choose by client (nftables, userspace and IPVS mode can); ignored")
            }
            Sharing::ByClient { .. } if has_affinity || asked.persistence_secs.is_some() => {
                Some("clients stay with their endpoints by session affinity, which decides in this mode; ignored")
            }
            Sharing::LeastConnections if !self.contains(Abilities::LEAST_CONNECTIONS) => {
                Some("this mode does not know numbers of connections (userspace and IPVS mode do); ignored")
            }
            Sharing::ByClient { .. } | Sharing::LeastConnections => None,
            Sharing::Evenly if asked.asks_for_turns() => None,
            Sharing::Evenly => Some("only IPVS mode has this scheduler; ignored"),
        };
        if let Some(reason) = why_not {
            asked.scheduler = None;
            refused.push((Annotation::SCHEDULER, reason));
        }
        if asked.scheduler_flags.is_some() && !matches!(asked.sharing(), Sharing::ByClient { .. }) {
            asked.scheduler_flags = None;
            refused.push((Annotation::SCHEDULER_FLAGS, "only for the schedulers sh and mh in this mode; ignored"));
        }
        let none = Balancing::default().thresholds;
        if asked.thresholds != none && !self.contains(Abilities::LEAST_CONNECTIONS) {
            asked.thresholds = none;
            refused.push((
                Annotation::MAX_CONNECTIONS,
                "this mode does not know numbers of connections (userspace and IPVS mode do); ignored",
            ));
        }
        let mut only_ipvs = |asked: &mut Balancing, annotation, take: &dyn Fn(&mut Balancing)| {
            let before = asked.clone();
            take(asked);
            if *asked != before {
                refused.push((annotation, "only IPVS mode does this; ignored"));
            }
        };
        only_ipvs(asked, Annotation::ONE_PACKET, &|asked| asked.one_packet = asked.one_packet.filter(|on| !on));
        only_ipvs(asked, Annotation::FORWARDING, &|asked| {
            asked.forwarding = asked.forwarding.filter(|_| asked.returning().is_none());
        });
        refused
    }
}
