//! Finds the UDP flows to forget.
//!
//! # Where flows are tracked
//!
//! A UDP client that keeps sending from one port is one flow, as long as its packets come. The kernel cannot see where
//! a new conversation begins. Two tables remember the flow.
//!
//! * **IPVS** (`/proc/net/ip_vs_conn`) remembers the real server. A flow whose real server was deleted is not sent on.
//!   Its packets are dropped until the entry expires (`ip_vs_in_hook`), by default 5 minutes after the last one that
//!   was sent on. With `net.ipv4.vs.expire_nodest_conn`, which this proxy sets, the first such packet ends the entry,
//!   and since Linux 5.9 the deletion itself does (`ip_vs_expire_nodest_conn_flush`). A real server with weight 0 keeps
//!   its flows.
//! * **Connection tracking** (`nf_conntrack`) records for each flow what its answers look like, and whether and how it
//!   is translated. IPVS reports which real server answers when it sees the first packet (`ip_vs_update_conntrack`),
//!   and ends the entry with its own (`ip_vs_conn_drop_conntrack`). This needs `net.ipv4.vs.conntrack`, which this
//!   proxy sets.
//!
//! With both settings on, most flows of a deleted real server end by themselves. What remains is a tracked flow without
//! an entry in IPVS, or with a newer one. Its first packet arrived before there was a virtual server (while this proxy
//! was not running, or before the Service existed), and was routed or translated in another way. Or IPVS's entry ended
//! and the tracked one did not, on older kernels and with one of the settings off.
//!
//! Once a flow is tracked, its entry does not change. Answers of the new real server do not match it, and the flow is
//! not masqueraded when it must be, because rules of table nat see only the first packet. A DNS client on a fixed port
//! then waits in vain until it has been silent for `nf_conntrack_udp_timeout`, by default 30 s. Deleting the entry
//! makes the next packet a first one.
//!
//! Real servers drain if their endpoint still serves but is not selected any more. As with TCP, connections continue.
//! In kube-proxy's IPVS mode they are deleted, and their flows end.
//!
//! Only flows to one address and port are forgotten, and only if none of its endpoints answers them. kube-proxy up to
//! 1.31 ends all UDP flows of an address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ipvs::model::Protocol;
use ipvs::{Operation, RealServerKey, VirtualServerKey};

use crate::modes::ipvs::drain::Drains;
use crate::modes::ipvs::plan::Plan;
use crate::modes::ipvs::wanted::Wanted;
use crate::ports::UdpServices;
use crate::service::Frontend;

/// The flows to forget after a plan, by address and port, with the endpoints that may answer there from now on.
///
/// Included addresses and ports:
/// * a new virtual server, since nothing tracked before has its real servers;
/// * one that is deleted, or has no real servers any more, since no endpoint may answer;
/// * one that loses real servers, or gets its first, since only the present ones may answer.
///
/// One that only gets more real servers, or another configuration, has no flow to forget. Draining real servers may
/// answer; call [`answering`] for their virtual server once they are deleted. TCP and SCTP are never included, because
/// their clients notice.
///
/// `wanted` and `drains` are those that the plan was made from. Costs O(plan).
pub fn stale(plan: &Plan, wanted: &Wanted<'_>, drains: &Drains) -> UdpServices {
    let mut all: BTreeMap<VirtualServerKey, Flows> = BTreeMap::new();
    let flows = |key: VirtualServerKey| {
        let missing = wanted.endpoints(&key).map_or(0, |endpoints| endpoints.len());
        Flows { end: false, missing, answering: answering(&key, wanted, drains) }
    };
    let is_udp = |key: &VirtualServerKey| wanted.frontend_key(key).is_some_and(|frontend| frontend.udp().is_some());
    let operations = plan.stages.iter().flat_map(|(phase, stage)| stage.servers.iter().map(|of| (phase.adds(), of)));
    for (adds, operation) in operations.filter(|(_, operation)| is_udp(&operation.virtual_server())) {
        let key = operation.virtual_server();
        let flows = all.entry(key).or_insert_with(|| flows(key));
        flows.end |= match operation {
            Operation::AddRealServer(..) | Operation::UpdateRealServer(..) if adds => {
                flows.missing = flows.missing.saturating_sub(1);
                flows.missing == 0
            }
            Operation::UpdateRealServer(_, real) => {
                flows.answering.insert(socket_address(&real.key));
                false
            }
            Operation::DeleteRealServer(_, real) => {
                flows.answering.remove(&socket_address(real));
                true
            }
            Operation::DeleteVirtualServer(_) if wanted.frontend(&key).is_none() => {
                flows.answering.clear();
                true
            }
            other => !matches!(other, Operation::UpdateVirtualServer(_)),
        };
    }
    for (key, real) in &plan.adopt_drains {
        if let Some(flows) = all.get_mut(key) {
            flows.answering.insert(socket_address(real));
        }
    }
    let mut services = UdpServices::new();
    for (key, flows) in all.into_iter().filter(|(_, flows)| flows.end) {
        if let Some(place) = wanted.frontend_key(&key).and_then(|frontend| frontend.udp()) {
            services.entry(place).or_default().extend(flows.answering);
        }
    }
    services
}

/// What a plan does to the flows to a virtual server.
struct Flows {
    /// Whether flows may have to end.
    end: bool,
    /// Number of desired real servers that the plan neither adds nor changes.
    missing: usize,
    answering: BTreeSet<SocketAddr>,
}

/// Every UDP address and port, with the endpoints that may answer there. Used at the start, when earlier changes are
/// unknown. Combine it with [`stale`], which returns those that are no longer desired.
pub fn all(wanted: &Wanted<'_>, drains: &Drains) -> UdpServices {
    let keys = wanted.desired().frontends().map(|frontend| VirtualServerKey::from(frontend.key));
    keys.filter_map(|key| Some((udp_address(&key)?, answering(&key, wanted, drains)))).collect()
}

/// The endpoints that may answer at the address of a virtual server: those that serve, selected or not, and draining
/// real servers.
pub fn answering(key: &VirtualServerKey, wanted: &Wanted<'_>, drains: &Drains) -> BTreeSet<SocketAddr> {
    let frontend = wanted.frontend_key(key);
    let mark = frontend.and_then(|frontend| wanted.index.marks.server(&frontend));
    let address = frontend.map(VirtualServerKey::from);
    let servers: BTreeSet<VirtualServerKey> = [mark, address, Some(*key)].into_iter().flatten().collect();
    let draining = servers.iter().flat_map(|key| drains.draining(key));
    let serving =
        wanted.frontend(key).into_iter().flat_map(Frontend::serving).map(|endpoint| SocketAddr::from(*endpoint));
    serving.chain(draining.map(|real| socket_address(&real))).collect()
}

/// The address and port on which a virtual server receives UDP packets.
pub fn udp_address(key: &VirtualServerKey) -> Option<SocketAddr> {
    match *key {
        VirtualServerKey::Address { protocol: Protocol::Udp, addr, port } => Some(SocketAddr::new(addr, port)),
        _ => None,
    }
}

/// The virtual server that receives UDP packets at this address and port.
pub(crate) fn virtual_server(place: SocketAddr) -> VirtualServerKey {
    VirtualServerKey::Address { protocol: Protocol::Udp, addr: place.ip(), port: place.port() }
}

fn socket_address(real: &RealServerKey) -> SocketAddr {
    SocketAddr::new(real.addr, real.port)
}
