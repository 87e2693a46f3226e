//! Forgets flows to endpoints that no longer answer: UDP flows, and TCP ones after their drain time.
//!
//! A UDP client that keeps sending from one port is one flow, whose translation does not change: rules of table nat see
//! only its first packet. A DNS client on a fixed port then waits in vain until it has been silent for
//! `nf_conntrack_udp_timeout`, by default 30 s. Deleting the entry makes the next packet a first one.
//!
//! IPVS remembers flows too (`/proc/net/ip_vs_conn`), and ends the tracked one with its own, as `net.ipv4.vs.conntrack`
//! and `net.ipv4.vs.expire_nodest_conn` ask for, which this proxy sets. What remains is a flow whose first packet came
//! before its virtual server existed, or that was tracked while one of these settings was off.
//!
//! Only flows to one address and port are forgotten, and only if none of its endpoints answers them. kube-proxy up to
//! 1.31 ends all UDP flows of an address. TCP and SCTP clients notice by themselves.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::modes::Pass;
use crate::net::{Family, FrontendKey, Protocol};
use crate::pack::Gather as _;
use crate::plan::operation::Operation;
use crate::plan::report::{Applied, Lack};
use crate::plan::step::Names;
use crate::ports::{Conntrack, PortErrorKind, UdpServices};
use crate::service::{Frontend, Roles};
use crate::time::Moment;

/// The consequence if this kernel lists no tracked connections.
pub(crate) const STAY: &str = "UDP flows to endpoints that are gone are not ended";

/// The flows to forget after Frontends changed, in modes that translate connections: by address and port, with the
/// endpoints that may answer there from now on. These are all serving endpoints, selected or not, because TCP
/// connections continue too.
///
/// Only families that the mode serves count (`is_served`). `draining`: endpoints that have left and answer until they
/// are removed. `differing`: Frontends that a reading found to differ, whose flows earlier processes and other programs
/// may have sent elsewhere. `held`: Frontends that stay unchanged in the kernel.
pub(crate) fn to_forget<'a>(
    pass: &Pass<'_>,
    is_served: impl Fn(Family) -> bool,
    draining: impl Fn(&FrontendKey) -> BTreeSet<SocketAddr>,
    differing: impl Iterator<Item = &'a FrontendKey>,
    held: &BTreeSet<FrontendKey>,
) -> UdpServices {
    let Pass { desired, changes, sweep, unforgotten, .. } = *pass;
    let mut flows = UdpServices::new();
    let answering = |key: &FrontendKey| {
        let mut all = desired.frontend(key).map(Frontend::answering).unwrap_or_default();
        all.extend(draining(key));
        all
    };
    for (key, before) in changes.frontends().filter(|(key, _)| is_served(key.family())) {
        let Some(place) = key.udp() else { continue };
        let new = answering(key);
        // A flow that started while there was no endpoint is not translated.
        let begins = before.is_none_or(|before| !before.has_endpoints()) && !new.is_empty();
        let ends = before.is_some_and(|before| !before.answering().is_subset(&new));
        if begins || ends {
            flows.insert(place, answering_at(place, Some(new)));
        }
    }
    // Not searched for a change.
    let all =
        sweep.map(|left| desired.frontends().filter_map(|frontend| frontend.key.udp()).chain(left.iter().copied()));
    let all =
        all.into_iter().flatten().chain(unforgotten.iter().copied()).chain(differing.filter_map(FrontendKey::udp));
    for place in all {
        let key = FrontendKey::new(Protocol::Udp, place.ip(), place.port());
        if !held.contains(&key) {
            flows.entry(place).or_insert_with(|| answering_at(place, Some(answering(&key))));
        }
    }
    flows
}

/// Adds the flows of node ports at 127.0.0.1, in a mode that serves all of them there, with or without a Frontend. They
/// have the endpoints of the node port at other addresses.
pub(crate) fn add_localhost(flows: &mut UdpServices, pass: &Pass<'_>, held: &BTreeSet<FrontendKey>) {
    let is_node_port = |frontend: &&Frontend| frontend.roles.contains(Roles::NODE_PORT);
    let at = |address, port| FrontendKey::new(Protocol::Udp, address, port);
    let desired = |key: FrontendKey| pass.desired.frontend(&key).filter(is_node_port);
    let places = flows.keys().filter(|place| {
        let key = at(place.ip(), place.port());
        let before = || pass.changes.written(&key, None).map(|frontend| &**frontend).filter(is_node_port);
        place.is_ipv4() && (place.ip().is_loopback() || desired(key).or_else(before).is_some())
    });
    for port in places.map(SocketAddr::port).gather::<BTreeSet<u16>>() {
        let place = SocketAddr::new(Family::V4.localhost(), port);
        let keys = pass.facts.node_port_addresses(Family::V4).map(|address| at(address, port));
        let keys: Vec<FrontendKey> = keys.collect();
        if keys.iter().any(|key| held.contains(key)) {
            flows.remove(&place);
        } else {
            let answering = keys.into_iter().find_map(desired).map(Frontend::answering);
            flows.insert(place, answering_at(place, answering));
        }
    }
}

/// Addresses that may answer flows to an address and port. One that is not served any more, or has no endpoint, may
/// answer itself, because its packets are not translated.
pub(crate) fn answering_at(place: SocketAddr, served: Option<BTreeSet<SocketAddr>>) -> BTreeSet<SocketAddr> {
    served.filter(|served| !served.is_empty()).unwrap_or_else(|| [place].into())
}

pub(crate) const STAY_TCP: &str = "connections to endpoints that have left are not cut";

/// `lack`: the consequence if this kernel cannot. Returns whether that is done, as far as possible.
pub(crate) fn forget(
    protocol: Protocol,
    flows: &UdpServices,
    lack: Option<&str>,
    (conntrack, clock): (&mut dyn Conntrack, &dyn Fn() -> Moment),
    applied: &mut Applied,
) -> bool {
    let mut is_done = true;
    for family in Family::ALL.into_iter().filter(|family| flows.keys().any(|place| Family::of(place.ip()) == *family)) {
        let start = clock();
        let outcome = conntrack.forget_flows(protocol, family, flows);
        applied.took_for_flows.push((family, clock().saturating_sub(start)));
        match outcome {
            Ok(forgotten) => {
                let all = applied.flows.of_mut(family);
                *all = all.saturating_add(forgotten);
            }
            Err(error) if error.kind() == PortErrorKind::Unavailable => {
                applied.lacks.extend(lack.map(|what| Lack::new(what, error)));
                return true;
            }
            Err(error) => {
                applied.fail(Operation::Flows(protocol, flows).step(&Names::NONE), error);
                is_done = false;
            }
        }
    }
    is_done
}
