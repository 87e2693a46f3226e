//! Differences between a flow of the reference and the fates of its packets.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;

use super::corpus::Scenario;
use super::flow::{Destination, Flow, Verdict, source_is};
use super::probe::{Fate, Source};
use crate::differences::Reference;

/// A flow that does not do as the reference says. Prints as a sentence.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    /// The scenario's name: `R0007 IPv6`.
    pub(crate) scenario: String,
    pub(crate) flow: Flow,
    pub(crate) kind: Kind,
    /// Fates of its packets, each with the number of packets.
    pub(crate) seen: BTreeMap<Fate, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Packets went elsewhere, or were rejected or dropped, or were not.
    Destination,
    /// The endpoints are right, the source addresses are not.
    Source,
    /// These endpoints are possible, and were never reached.
    Unreached(BTreeSet<SocketAddr>),
    /// A second connection went to another endpoint: these sources did that.
    Affinity(Vec<String>),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Difference { scenario, flow, kind, seen } = self;
        write!(f, "{scenario}: {flow}: ")?;
        match kind {
            Kind::Destination | Kind::Source => {}
            Kind::Unreached(endpoints) => {
                let list: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
                write!(f, "never reached {}: ", list.join(" and "))?;
            }
            Kind::Affinity(sources) => write!(f, "did not stay: {}: ", sources.join("; "))?,
        }
        let seen: Vec<String> = seen.iter().map(|(fate, count)| format!("{fate} ({count} packets)")).collect();
        write!(f, "wanted: {}; seen: {}", flow.wanted(), seen.join(", "))
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Lost => f.write_str("dropped"),
            Fate::Error(kind, code) => write!(f, "ICMP error {kind}/{code}"),
            Fate::Refused => f.write_str("rejected"),
            Fate::Sent { to, source } => write!(f, "{to}, {source}"),
            Fate::Delivered { port, source } => write!(f, "left to the node's own port {port}, {source}"),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Kept => f.write_str(source_is(false)),
            Source::Masqueraded => f.write_str(source_is(true)),
            Source::Other(from) => write!(f, "source {from}"),
        }
    }
}

/// Compares a flow with the fates of its packets.
pub(crate) fn judge(
    scenario: &Scenario,
    flow: &Flow,
    seen: BTreeMap<Fate, usize>,
    unfaithful: Vec<String>,
) -> Option<Difference> {
    let kind = kind(scenario, flow, &seen, unfaithful)?;
    Some(Difference { scenario: scenario.name(), flow: flow.clone(), kind, seen })
}

/// Whether this fate is right for a packet of the flow, with any source if an endpoint was reached.
pub(crate) fn fits(scenario: &Scenario, flow: &Flow, fate: &Fate) -> bool {
    match (&flow.dest, fate) {
        (Destination::Verdict(Verdict::Drop), Fate::Lost) | (Destination::Verdict(Verdict::Reject), Fate::Refused) => {
            true
        }
        (Destination::Verdict(Verdict::LeftAlone), Fate::Delivered { port, source }) => {
            *port == flow.to.port() && *source == Source::Kept && scenario.is_local(flow.to.ip())
        }
        (Destination::Verdict(Verdict::LeftAlone), Fate::Sent { to, source }) => {
            *to == flow.to && *source == Source::Kept
        }
        _ => fate.endpoint(flow).is_some(),
    }
}

fn kind(scenario: &Scenario, flow: &Flow, seen: &BTreeMap<Fate, usize>, unfaithful: Vec<String>) -> Option<Kind> {
    if seen.is_empty() || !seen.keys().all(|fate| fits(scenario, flow, fate)) {
        return Some(Kind::Destination);
    }
    if !sources_fit(scenario, flow, seen) {
        return Some(Kind::Source);
    }
    if !unfaithful.is_empty() {
        return Some(Kind::Affinity(unfaithful));
    }
    let reached: BTreeSet<SocketAddr> = seen.keys().filter_map(|fate| fate.endpoint(flow)).collect();
    let unreached: BTreeSet<SocketAddr> = flow.endpoints().difference(&reached).copied().collect();
    // A source with affinity shows one endpoint.
    let shows_all = !flow.is_sticky() || flow.has_relatives();
    (shows_all && !unreached.is_empty()).then_some(Kind::Unreached(unreached))
}

/// If a masqueraded packet of the node had the uplink's address before, only its port shows the masquerading. The port
/// is chosen at random and may be the same by chance. One packet with another port tells. A packet that is not
/// masqueraded gets another port when a masqueraded one to the same endpoint has taken its own: that happens to one
/// among many.
fn sources_fit(scenario: &Scenario, flow: &Flow, seen: &BTreeMap<Fate, usize>) -> bool {
    let same_address = scenario.interfaces["eth0"].contains(&flow.source);
    if same_address && flow.is_nodes() && scenario.reference != Reference::Iptables28 {
        // The corpora of 1.36 record addresses only.
        return true;
    }
    let mut sources: BTreeMap<(bool, Source), usize> = BTreeMap::new();
    for (fate, packets) in seen {
        if let Fate::Sent { to, source } = fate
            && flow.endpoints().contains(to)
        {
            *sources.entry((flow.masquerades(to), *source)).or_default() += packets;
        }
    }
    let packets = |rewritten, source| sources.get(&(rewritten, source)).copied().unwrap_or_default();
    let expected = |rewritten| if rewritten { Source::Masqueraded } else { Source::Kept };
    let chance = same_address && packets(true, Source::Masqueraded) > 0;
    let clash = same_address && packets(false, Source::Masqueraded) == 1 && packets(false, Source::Kept) >= 4;
    sources.keys().all(|(rewritten, source)| match (rewritten, source) {
        (true, Source::Kept) => chance,
        (false, Source::Masqueraded) => clash,
        (rewritten, source) => *source == expected(*rewritten),
    })
}
