//! Sends the flows' packets in batches and finds out the fate of each.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::corpus::Scenario;
use super::difference::{Difference, fits, judge};
use super::flow::Flow;
use super::ground::{Ground, Place};
use super::packet::{FIRST, Packet, Sighting, What};

/// Time for a packet that should be dropped to turn up all the same.
const GRACE: Duration = Duration::from_millis(5);

/// An endpoint out of `n` that takes its share stays unseen in `24 n` packets once in 10^10 flows.
const TRIES_PER_ENDPOINT: usize = 24;

/// Fate of a packet. The last in this order counts if there are several sightings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fate {
    /// Seen nowhere.
    Lost,
    /// The sender got an ICMP error, with type and code, that is not a refusal.
    Error(u8, u8),
    /// The sender got ICMP port unreachable, a RST or an ABORT.
    Refused,
    /// Reached the node's own stack on this port.
    Delivered { port: u16, source: Source },
    /// Left the node to this address.
    Sent { to: SocketAddr, source: Source },
}

/// The source of a packet that has left the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Kept,
    /// An address of the node.
    Masqueraded,
    /// Any other address.
    Other(SocketAddr),
}

/// A packet that was sent. Its place in the list is its number.
struct Sent {
    flow: usize,
    source: IpAddr,
    fate: Fate,
}

pub(crate) struct Probe<'a> {
    ground: &'a Ground,
    scenario: &'a Scenario,
    flows: &'a [Flow],
    sent: Vec<Sent>,
    /// Sources of a flow whose second connection went elsewhere.
    unfaithful: BTreeMap<usize, Vec<String>>,
}

impl<'a> Probe<'a> {
    pub(crate) fn new(ground: &'a Ground, scenario: &'a Scenario, flows: &'a [Flow]) -> Self {
        Probe { ground, scenario, flows, sent: Vec::new(), unfaithful: BTreeMap::new() }
    }

    pub(crate) fn flows(&self) -> &'a [Flow] {
        self.flows
    }

    /// Sends all flows without affinity, again and again until every possible endpoint has been seen.
    pub(crate) fn send_all(&mut self) {
        let flows = self.flows.iter().enumerate();
        let plain: Vec<(usize, &Flow)> = flows.filter(|(_, flow)| !flow.is_sticky()).collect();
        let twice = |(index, flow): &(usize, &Flow)| vec![(*index, flow.source); flow.endpoints().len().max(1) * 2];
        let mut batch: Vec<(usize, IpAddr)> = plain.iter().flat_map(twice).collect();
        while !batch.is_empty() {
            self.batch(&batch);
            let incomplete = self.incomplete();
            let due = plain.iter().filter(|(index, _)| incomplete.contains(index));
            batch = due.flat_map(|(index, flow)| vec![(*index, flow.source); flow.endpoints().len()]).collect();
        }
    }

    /// Flows that are right so far, have endpoints that were not seen, and have not been tried often enough.
    pub(crate) fn incomplete(&self) -> Vec<usize> {
        let fates = self.fates();
        let is_incomplete = |index: &usize| {
            let (flow, fates) = (&self.flows[*index], &fates[*index]);
            let seen = fates.keys().filter_map(|fate| fate.endpoint(flow));
            let all_right = fates.keys().all(|fate| fate.endpoint(flow).is_some());
            let mut seen: Vec<SocketAddr> = seen.collect();
            seen.dedup();
            let endpoints = flow.endpoints().len();
            all_right && seen.len() < endpoints && fates.values().sum::<usize>() < TRIES_PER_ENDPOINT * endpoints
        };
        (0..self.flows.len()).filter(is_incomplete).collect()
    }

    /// Opens a connection from each of these sources, then a second one, which has to reach the same endpoint, unless this machine took
    /// longer than the affinity lasts.
    pub(crate) fn pairs(&mut self, sources: &[(usize, IpAddr)]) {
        let start = Instant::now();
        let first = self.batch(sources);
        let second = self.batch(sources);
        let took = start.elapsed();
        for ((flow, source), (first, second)) in sources.iter().zip(first.zip(second)) {
            if self.flows[*flow].affinity.is_some_and(|seconds| took >= Duration::from_secs(u64::from(seconds))) {
                continue;
            }
            let endpoint = |number: usize| self.sent[number].fate.endpoint(&self.flows[*flow]);
            if let (Some(first), Some(second)) = (endpoint(first), endpoint(second))
                && first != second
            {
                self.unfaithful.entry(*flow).or_default().push(format!("{source} to {first}, then to {second}"));
            }
        }
    }

    /// Sends a packet of each of these flows, from these sources, and waits for the fates.
    fn batch(&mut self, packets: &[(usize, IpAddr)]) -> Range<usize> {
        let begin = self.sent.len();
        for (flow, source) in packets {
            let number = u16::try_from(usize::from(FIRST) + self.sent.len());
            let number = number.unwrap_or_else(|_| panic!("{} takes too many packets", self.scenario.name()));
            let Flow { protocol, to, .. } = self.flows[*flow];
            let packet = Packet { number, protocol, source: *source, to };
            self.sent.push(Sent { flow: *flow, source: *source, fate: Fate::Lost });
            if self.flows[*flow].is_nodes() { self.ground.send_own(&packet) } else { self.ground.send(&packet) }
        }
        let range = begin..self.sent.len();
        self.wait(range.clone());
        range
    }

    /// Looks until these packets have the right fates, or the time for that is over.
    fn wait(&mut self, packets: Range<usize>) {
        let start = Instant::now();
        loop {
            self.look();
            // Once seen, a packet goes no further, unless another connection takes it on.
            let ends = |fate: Fate| fate != Fate::Lost && !self.ground.goes_on();
            let is_open = |sent: &Sent| !ends(sent.fate) && !fits(self.scenario, &self.flows[sent.flow], &sent.fate);
            if !self.sent[packets.clone()].iter().any(is_open) || start.elapsed() > self.ground.patience() {
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Records the sightings.
    fn look(&mut self) {
        for (place, Sighting { number, what }) in self.ground.sightings() {
            let Some(index) = usize::from(number).checked_sub(FIRST.into()) else { continue };
            let Some(sent) = self.sent.get_mut(index) else { continue };
            let flow = &self.flows[sent.flow];
            let fate = match what {
                What::Refusal => Fate::Refused,
                What::Error(kind, code) => Fate::Error(kind, code),
                What::Packet { from, to } | What::Syn { from, to } => {
                    let own = self.scenario.is_local(from.ip()) && !from.ip().is_loopback();
                    let source = if from == SocketAddr::new(sent.source, number) {
                        Source::Kept
                    } else if own && (from.ip() != sent.source || flow.is_nodes()) {
                        Source::Masqueraded
                    } else {
                        Source::Other(from)
                    };
                    match place {
                        Place::Node => Fate::Delivered { port: to.port(), source },
                        Place::World => Fate::Sent { to, source },
                    }
                }
            };
            sent.fate = sent.fate.max(fate);
        }
    }

    /// Fates of the packets of each flow, with their numbers.
    fn fates(&self) -> Vec<BTreeMap<Fate, usize>> {
        let mut fates = vec![BTreeMap::new(); self.flows.len()];
        for sent in &self.sent {
            *fates[sent.flow].entry(sent.fate).or_default() += 1;
        }
        fates
    }

    /// Differences from the reference.
    pub(crate) fn differences(&mut self) -> Vec<Difference> {
        std::thread::sleep(GRACE);
        self.wait(0..self.sent.len());
        let mut differences = Vec::new();
        for (index, (flow, fates)) in self.flows.iter().zip(self.fates()).enumerate() {
            let unfaithful = self.unfaithful.remove(&index).unwrap_or_default();
            differences.extend(judge(self.scenario, flow, fates, unfaithful));
        }
        differences
    }
}

impl Fate {
    /// The endpoint that was reached, if it is one of the flow's.
    pub(crate) fn endpoint(&self, flow: &Flow) -> Option<SocketAddr> {
        match self {
            Fate::Sent { to, .. } => flow.endpoints().get(to).copied(),
            _ => None,
        }
    }
}
