//! What rules depend on: few values that are cheap to compare.

use std::collections::BTreeSet;

use ipset::Element;
use ipvs::VirtualServerKey;

use crate::config::{MarkBit, NamePrefix};
use crate::modes::ipvs::binding::Routes;
use crate::modes::ipvs::observed::Observed;
use crate::modes::ipvs::wanted::Wanted;
use crate::modes::shared::networks::PodTraffic;
use crate::net::{Family, Network};
use crate::pack::Gather as _;
use crate::ports::{SetKey, SetKind};
use crate::service::{Frontend, NodeFacts};

/// Capabilities of iptables and the kernel that some rules need. Default: all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// `MASQUERADE --random-fully`: iptables from 1.6.2 (`iptables::ProgramVersion::has_random_fully`). Without it, two
    /// connections masqueraded at the same moment may get the same port, and one is lost.
    pub random_fully: bool,
    /// The match `physdev`. A kernel without it sees no packets from a bridge port, so rules have the same effect.
    pub physdev: bool,
    /// The match `ipvs`. Without it, this node's own traffic to load balancers whose source ranges exclude it cannot be
    /// stopped.
    pub ipvs: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Capabilities { random_fully: true, physdev: true, ipvs: true }
    }
}

impl Capabilities {
    /// The same without one of the optional matches, then without both.
    pub(crate) fn reduced(self) -> impl Iterator<Item = Capabilities> {
        let ways = [(false, self.ipvs), (self.physdev, false), (false, false)];
        ways.into_iter()
            .map(move |(physdev, ipvs)| Capabilities { physdev, ipvs, ..self })
            .filter(move |reduced| *reduced != self)
    }

    /// What missing optional matches mean, in words.
    pub fn lost(self) -> String {
        let physdev = "rules are written without match physdev (module xt_physdev), which only tells packets that come over a \
                       bridge";
        let ipvs = "rules are written without match ipvs (module xt_ipvs): programs on this node reach load balancers whose \
                    source ranges leave it out";
        let missing = [(self.physdev, physdev), (self.ipvs, ipvs)].into_iter().filter(|(has, _)| !has);
        missing.map(|(_, lost)| lost).collect::<Vec<_>>().join("; ")
    }
}

/// What a family's rules depend on. Equal inputs have equal rules. Costs O(sets + load balancers that this node may not
/// use), with any number of Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    pub family: Family,
    pub prefix: NamePrefix,
    /// Sets with entries; only those that affect rules.
    pub filled: BTreeSet<SetKind>,
    /// Load balancers to which this node's own traffic is dropped.
    pub barred: BTreeSet<VirtualServerKey>,
    pub masquerade_all: bool,
    pub pods: PodTraffic,
    pub masquerade_bit: MarkBit,
    pub capabilities: Capabilities,
    /// Whether addresses are bound by routes, or still are. This node's own packets then have its address as source.
    pub by_routes: bool,
    /// Networks that are local as a whole, in which only Services may answer.
    pub guarded_networks: BTreeSet<Network>,
    /// Chain INPUT of table filter drops what nothing accepts, by its policy or its last rule. Rules then accept
    /// traffic of Services, which arrives there before IPVS sees it.
    pub input_drops: bool,
}

impl Inputs {
    pub fn new(family: Family, wanted: &Wanted<'_>, facts: &NodeFacts, capabilities: Capabilities) -> Self {
        let routes = Routes::new(&|address| wanted.has_address(address), facts);
        let of_family = wanted.sets().filter(|set| set.family == family).map(|set| set.kind);
        Inputs {
            family,
            prefix: facts.config().names.prefix,
            filled: of_family.filter(|kind| decides(*kind)).gather(),
            barred: wanted.barred_from_node().filter(|key| Family::from(key.family()) == family).gather(),
            masquerade_all: facts.config().masquerade_all,
            pods: PodTraffic::from_facts(facts, family),
            masquerade_bit: facts.config().masquerade_bit,
            capabilities,
            by_routes: routes.is_on,
            guarded_networks: routes.whole.into_iter().filter(|of| Family::of(of.addr()) == family).gather(),
            input_drops: false,
        }
    }

    /// Adds objects that stay in the kernel although they are not desired, because their deletion is held back
    /// ([`Safeguard`](crate::safeguard::Safeguard)) or comes later. Rules guard them as before while they serve.
    /// `unwanted`: own virtual servers that are not desired. `deleted`: entries that will be deleted.
    ///
    /// A load balancer is barred from this node if its entries show source ranges, and its own address is not among
    /// those that may use it.
    pub(crate) fn keep<'a>(
        &mut self,
        unwanted: impl IntoIterator<Item = &'a VirtualServerKey>,
        deleted: impl Iterator<Item = (SetKey, &'a Element)>,
        observed: &Observed,
    ) {
        let family = self.family;
        let deleted: BTreeSet<_> = deleted.filter(|(set, element)| observed.has_entry(*set, element)).gather();
        let stays = |set: &SetKey, count: usize| count > deleted.iter().filter(|(of, _)| of == set).count();
        let decide = |set: &SetKey| set.family == family && decides(set.kind);
        let sets = observed.sets.iter().filter(|(set, entries)| decide(set) && stays(set, entries.len()));
        self.filled.extend(sets.map(|(set, _)| set.kind));
        self.barred.extend(unwanted.into_iter().filter(|key| {
            let entry = observed.entry(key, SetKind::LoadBalancerFirewall);
            entry.is_some_and(|(set, element)| set.family == family && !deleted.contains(&(set, &element)))
                && observed.entry(key, SetKind::LoadBalancerSourceIp).is_none()
        }));
        self.by_routes |= observed.routes.has_family(family);
        // Their guard is removed after the routes, in a later pass.
        let whole = observed.routes.whole.keys();
        self.guarded_networks.extend(whole.filter(|network| Family::of(network.addr()) == family));
    }

    pub(super) fn chain(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Whether these rules are those of `before` with some removed: sets that lost their last entry, load balancers
    /// that are no longer barred. Such rules may wait until what they guarded is deleted.
    pub fn only_relaxes(&self, before: &Inputs) -> bool {
        let rest = Inputs {
            filled: self.filled.clone(),
            barred: self.barred.clone(),
            guarded_networks: self.guarded_networks.clone(),
            ..before.clone()
        };
        self != before
            && *self == rest
            && self.filled.is_subset(&before.filled)
            && self.barred.is_subset(&before.barred)
            && self.guarded_networks.is_subset(&before.guarded_networks)
    }

    /// Whether a virtual server needs rules that these have and `before` lacks. `before`: what the kernel has; `None`
    /// if unknown.
    pub(crate) fn are_needed_by(&self, frontend: &Frontend, before: Option<&Inputs>) -> bool {
        let Some(before) = before else { return true };
        let rest =
            |inputs: &Inputs| (inputs.masquerade_all, inputs.masquerade_bit, inputs.capabilities, inputs.by_routes);
        let is_new = |kind: SetKind| self.filled.contains(&kind) && !before.filled.contains(&kind);
        let is_barred = |inputs: &Inputs| inputs.barred.contains(&frontend.key.into());
        // The hairpin rule is about endpoints.
        is_new(SetKind::LoopBack)
            || self.pods != before.pods
            || rest(self) != rest(before)
            || (is_barred(self) && !is_barred(before))
            || crate::modes::ipvs::lower::frontend_entries(frontend, false, None)
                .iter()
                .any(|(set, _)| is_new(set.kind))
    }
}

/// Whether rules are added with the set's first entry and removed with its last.
fn decides(kind: SetKind) -> bool {
    !matches!(kind, SetKind::NodePortServed | SetKind::HealthCheckNodePort | SetKind::IpvsIps)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the kernel refuses rules with a match that it lacks, rules that differ are tried.
    #[test]
    fn fewer_matches_are_tried_one_by_one() {
        let all = Capabilities::default();
        let tried: Vec<(bool, bool)> = all.reduced().map(|of| (of.physdev, of.ipvs)).collect();
        assert_eq!(tried, [(false, true), (true, false), (false, false)]);
        let none = Capabilities { physdev: false, ipvs: false, ..all };
        assert_eq!(none.reduced().count(), 0);
    }
}
