//! Flows with session affinity. Each source has its endpoint, so other endpoints show only with other sources: addresses near the
//! flow's own, each used for one flow only.
//!
//! A Service port has one memory for all its addresses, in which a source may have several endpoints. Flows of one
//! source through different addresses, which may have different endpoints, would disturb each other. They come one
//! after the other.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

use testkit::witness::Transport;

use super::flow::Flow;
use super::probe::Probe;

/// A Service port.
type Place<'a> = (&'a str, &'a str, Transport);

fn place(flow: &Flow) -> Place<'_> {
    (&flow.service, &flow.port, flow.protocol)
}

/// Sends all flows with affinity.
pub(crate) fn send_all(probe: &mut Probe<'_>) {
    let flows = probe.flows();
    let mut queues: BTreeMap<(Place<'_>, IpAddr), VecDeque<usize>> = BTreeMap::new();
    for (index, flow) in flows.iter().enumerate().filter(|(_, flow)| flow.is_sticky()) {
        queues.entry((place(flow), flow.source)).or_default().push_back(index);
    }
    loop {
        let turn = queues.values_mut().filter_map(VecDeque::pop_front);
        let turn: Vec<(usize, IpAddr)> = turn.map(|index| (index, flows[index].source)).collect();
        if turn.is_empty() {
            break;
        }
        probe.pairs(&turn);
    }
    let mut used: BTreeMap<(Place<'_>, &str), u8> = BTreeMap::new();
    loop {
        let mut turn = Vec::new();
        for index in probe.incomplete() {
            let flow = &flows[index];
            if flow.is_sticky() && flow.has_relatives() {
                let used = used.entry((place(flow), &flow.from)).or_default();
                turn.extend(relative(flow.source, used).map(|source| (index, source)));
            }
        }
        if turn.is_empty() {
            return;
        }
        probe.pairs(&turn);
    }
}

/// Last numbers of the corpus's own sources.
const TAKEN: [u8; 4] = [8, 9, 50, 99];

/// The next address near this one; none when all have been used.
fn relative(source: IpAddr, used: &mut u8) -> Option<IpAddr> {
    *used = (*used + 1..255).find(|number| !TAKEN.contains(number))?;
    Some(match source {
        IpAddr::V4(source) => {
            let [a, b, c, _] = source.octets();
            [a, b, c, *used].into()
        }
        IpAddr::V6(source) => Ipv6Addr::from_bits(source.to_bits() & !0xffff | 0x1000 | u128::from(*used)).into(),
    })
}
