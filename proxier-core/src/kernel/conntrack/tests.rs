#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests stop at the first surprise")]

use std::collections::BTreeSet;
use std::sync::mpsc;

use netlink_batch::testing::{Faults, Reply, Simulated};
use netlink_batch::{Message, RawAttrs};

use super::*;
use crate::ports::{Flows, PortErrorKind, Result};

fn flow(protocol: u8, client: &str, destination: &str, endpoint: &str, id: u32) -> Vec<u8> {
    let (client, destination, endpoint): (SocketAddr, SocketAddr, SocketAddr) =
        (client.parse().unwrap(), destination.parse().unwrap(), endpoint.parse().unwrap());
    let mut out = Encoder::new();
    let family = if client.is_ipv4() { AF_INET } else { AF_INET6 };
    out.bytes(&header(family));
    let tuple = |out: &mut Encoder, kind, from: SocketAddr, to: SocketAddr| {
        out.nest(kind, |out| {
            out.nest(TupleAttr::IP, |out| match (from.ip(), to.ip()) {
                (IpAddr::V4(from), IpAddr::V4(to)) => {
                    out.attr(IpAttr::V4_SRC, &from.octets());
                    out.attr(IpAttr::V4_DST, &to.octets());
                }
                (IpAddr::V6(from), IpAddr::V6(to)) => {
                    out.attr(IpAttr::V6_SRC, &from.octets());
                    out.attr(IpAttr::V6_DST, &to.octets());
                }
                _ => unreachable!("both directions have one family"),
            });
            out.nest(TupleAttr::PROTO, |out| {
                out.attr(ProtoAttr::NUM, &protocol);
                out.attr(ProtoAttr::SRC_PORT, &Be16(from.port()));
                out.attr(ProtoAttr::DST_PORT, &Be16(to.port()));
            });
        });
    };
    tuple(&mut out, FlowAttr::TUPLE_ORIG, client, destination);
    tuple(&mut out, FlowAttr::TUPLE_REPLY, endpoint, client);
    out.attr(FlowAttr::ID, &Be32(id));
    out.attr(FlowAttr::ZONE, &Be16(0x0102));
    out.as_slice().to_vec()
}

fn services() -> UdpServices {
    let endpoints: BTreeSet<SocketAddr> = ["10.244.1.1:53".parse().unwrap()].into();
    let endpoints_v6: BTreeSet<SocketAddr> = ["[fd00:1::1]:53".parse().unwrap()].into();
    [("10.96.0.10:53".parse().unwrap(), endpoints), ("[fd00::a]:53".parse().unwrap(), endpoints_v6)].into()
}

/// A port over a simulated kernel that answers listings with [`table`] and reports deletions.
fn port(
    faults: Faults,
    mut refuse: impl FnMut(&Message<'_>) -> Option<Errno> + Send + 'static,
) -> (ConntrackPort, mpsc::Receiver<Vec<u8>>) {
    let (tell, deleted) = mpsc::channel();
    let mut transport = Some(Simulated::new(move |message: &Message<'_>| {
        if let Some(errno) = refuse(message) {
            return Reply::Error(errno);
        }
        if message.header.kind == CT_DELETE {
            tell.send(message.payload.to_vec()).unwrap();
            return Reply::Ok;
        }
        let family = message.payload[0];
        let listed = table().into_iter().filter(|flow| flow[0] == family);
        Reply::Dump(listed.map(|flow| (0x0100, flow)).collect())
    }));
    *transport.as_ref().unwrap().faults().lock().unwrap() = faults;
    let open = move || Ok(Connection::new(transport.take().unwrap()));
    (ConntrackPort { connection: Lazy::new(open) }, deleted)
}

fn table() -> Vec<Vec<u8>> {
    vec![
        flow(17, "10.1.1.1:4000", "10.96.0.10:53", "10.244.1.1:53", 1),
        flow(17, "10.1.1.1:4001", "10.96.0.10:53", "10.244.1.2:53", 2),
        flow(17, "10.1.1.1:4001", "10.96.0.10:54", "10.244.1.2:53", 3),
        // The same numbers over TCP, which old kernels list too.
        flow(6, "10.1.1.1:4002", "10.96.0.10:53", "10.244.1.2:53", 4),
        // Started without an endpoint: the flow is answered by the Service address itself.
        flow(17, "10.1.1.1:4003", "10.96.0.10:53", "10.96.0.10:53", 5),
        flow(17, "[fd00:9::1]:4000", "[fd00::a]:53", "[fd00:1::2]:53", 6),
        flow(17, "[fd00:9::1]:4001", "[fd00::a]:53", "[fd00:1::1]:53", 7),
    ]
}

fn attrs(payload: &[u8]) -> Vec<(u16, Vec<u8>)> {
    let attrs = RawAttrs::new(&payload[NfGenHeader::LENGTH..]).map(Result::unwrap);
    attrs.map(|attr| (attr.kind(), attr.payload.to_vec())).collect()
}

fn forget(port: &mut ConntrackPort, services: &UdpServices) -> Result<Flows> {
    Ok(Flows {
        v4: port.forget_flows(Protocol::Udp, Family::V4, services)?,
        v6: port.forget_flows(Protocol::Udp, Family::V6, services)?,
    })
}

/// A deletion repeats what the listing said, without the tuple of the answers.
#[test]
fn only_stale_flows_of_the_protocol_are_deleted() {
    let (mut port, deleted) = port(Faults::default(), |_| None);
    assert_eq!(forget(&mut port, &services()), Ok(Flows { v4: 2, v6: 1 }));
    assert_eq!(port.forget_flows(Protocol::Tcp, Family::V4, &services()), Ok(1));
    let sent: Vec<_> = deleted.try_iter().map(|payload| attrs(&payload)).collect();
    let table = table();
    let listed = [1, 4, 5, 3].map(|place| {
        attrs(&table[place]).into_iter().filter(|(kind, _)| *kind != FlowAttr::TUPLE_REPLY).collect::<Vec<_>>()
    });
    assert_eq!(sent, listed);
}

/// A listing is interrupted, a flow ends by itself, an old kernel refuses the filter.
#[test]
fn each_stale_flow_counts_once_whatever_the_kernel_does() {
    type Refuse = fn(&Message<'_>) -> Option<Errno>;
    let (none, interrupted) = (Faults::default(), Faults { interrupted_dumps: 2, dump_chunk: 1, ..Faults::default() });
    let refuses_filters = |message: &Message<'_>| {
        let is_filtered = message.payload.len() > NfGenHeader::LENGTH && message.header.kind == CT_GET;
        is_filtered.then_some(Errno::EINVAL)
    };
    let has_ended = |message: &Message<'_>| (message.header.kind == CT_DELETE).then_some(Errno::ENOENT);
    let ways: [(Faults, Refuse, usize); 3] =
        [(interrupted, |_| None, 3), (none.clone(), refuses_filters, 3), (none, has_ended, 0)];
    for (number, (faults, refuse, count)) in ways.into_iter().enumerate() {
        let (mut port, deleted) = port(faults, refuse);
        assert_eq!(forget(&mut port, &services()), Ok(Flows { v4: 2, v6: 1 }), "{number}");
        assert_eq!(deleted.try_iter().count(), count, "{number}");
    }
}

#[test]
fn a_kernel_without_connection_tracking_is_only_asked_for_flows_that_may_exist() {
    for (errno, kind) in [(Errno::EINVAL, PortErrorKind::Unavailable), (Errno::EPERM, PortErrorKind::Permission)] {
        let (mut port, _) = port(Faults::default(), move |_| Some(errno));
        assert_eq!(forget(&mut port, &services()).unwrap_err().kind(), kind);
        assert_eq!(forget(&mut port, &UdpServices::new()), Ok(Flows { v4: 0, v6: 0 }));
    }
}

/// Every prefix of a flow is an error or has fewer attributes.
#[test]
fn a_cut_off_flow_is_harmless() {
    for whole in table() {
        for end in 0..whole.len() {
            if let Ok(Some(found)) = doomed(&whole[..end], IPPROTO_UDP, &services()) {
                assert_eq!(
                    Ok(Some(found.original)),
                    doomed(&whole, IPPROTO_UDP, &services()).map(|d| d.map(|d| d.original))
                );
            }
        }
    }
}
