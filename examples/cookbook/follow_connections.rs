//! Follows tracked connections like `conntrack -E`, and shows how to add your own family to `netlink-batch`.
//!
//! `cargo run -p examples --example follow_connections`
//!
//! Needs `nf_conntrack_netlink`, `CAP_NET_ADMIN`, and connection tracking in this network namespace (by a rule that
//! uses it, or NAT); `net.netfilter.nf_conntrack_events` must not be 0. IPVS has no such events: its connections are in
//! /proc/net/ip_vs_conn, which `ipvs::proc` reads.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use examples::Failure;
use netlink_batch::header::NfGenHeader;
use netlink_batch::{Attrs, Be16, ErrorKind, Listener, Protocol, WireError, attrs};

/// `NFNLGRP_CONNTRACK_NEW` and `NFNLGRP_CONNTRACK_DESTROY` (linux/netfilter/nfnetlink.h).
pub(crate) const GROUPS: [u32; 2] = [1, 3];
/// `NFNL_SUBSYS_CTNETLINK` in the upper byte, `IPCTNL_MSG_CT_NEW` and `IPCTNL_MSG_CT_DELETE` in the lower.
const NEW: u16 = 0x0100;
const GONE: u16 = 0x0102;

attrs! {
    /// Attributes inside `CTA_TUPLE_IP`.
    "CTA_IP_", pub enum IpAttr<'a> {
        /// Source, IPv4.
        V4_SRC = 1 => V4Source([u8; 4]),
        /// Destination, IPv4.
        V4_DST = 2 => V4Destination([u8; 4]),
        /// Source, IPv6.
        V6_SRC = 3 => V6Source([u8; 16]),
        /// Destination, IPv6.
        V6_DST = 4 => V6Destination([u8; 16]),
    }

    /// Attributes inside `CTA_TUPLE_PROTO`.
    "CTA_PROTO_", pub enum ProtoAttr<'a> {
        /// IP protocol.
        NUM = 1 => Number(u8),
        /// Source port, in network byte order.
        SRC_PORT = 2 => SourcePort(Be16),
        /// Destination port.
        DST_PORT = 3 => DestinationPort(Be16),
    }

    /// One direction of a connection.
    "CTA_TUPLE_", pub enum TupleAttr<'a> {
        /// Addresses.
        IP = 1 => Ip(Attrs<'a, IpAttr<'a>>),
        /// Protocol and ports.
        PROTO = 2 => Proto(Attrs<'a, ProtoAttr<'a>>),
    }

    /// A tracked connection.
    "CTA_", pub enum FlowAttr<'a> {
        /// Direction from the client, before NAT.
        TUPLE_ORIG = 1 => Original(Attrs<'a, TupleAttr<'a>>),
    }
}

fn main() -> ExitCode {
    examples::end(run())
}

fn run() -> Result<(), Failure> {
    let mut listener = Listener::open(Protocol::Netfilter, &GROUPS)?;
    println!("listening");
    loop {
        match listener.wait(Duration::MAX, read) {
            Ok(events) => events.into_iter().flatten().for_each(|line| println!("{line}")),
            // A program with a table of connections would read the whole table again here.
            Err(error) if *error.kind() == ErrorKind::StateUnknown => eprintln!("some were missed: {error}"),
            Err(error) => return Err(error.into()),
        }
    }
}

/// One event as a line.
pub(crate) fn read(kind: u16, payload: &[u8]) -> Result<String, WireError> {
    let available = payload.len();
    let (_, attributes) = NfGenHeader::split(payload).ok_or(WireError::Message { offset: 0, available })?;
    let (mut from, mut to): (Option<IpAddr>, Option<IpAddr>) = (None, None);
    let (mut protocol, mut from_port, mut to_port) = (0, 0, 0);
    for attr in Attrs::<FlowAttr<'_>>::new(attributes).iter() {
        let FlowAttr::Original(tuple) = attr? else { continue };
        for attr in tuple.iter() {
            match attr? {
                TupleAttr::Ip(addresses) => {
                    for attr in addresses.iter() {
                        match attr? {
                            IpAttr::V4Source(octets) => from = Some(octets.into()),
                            IpAttr::V4Destination(octets) => to = Some(octets.into()),
                            IpAttr::V6Source(octets) => from = Some(octets.into()),
                            IpAttr::V6Destination(octets) => to = Some(octets.into()),
                            IpAttr::Unknown(_) => {}
                        }
                    }
                }
                TupleAttr::Proto(ports) => {
                    for attr in ports.iter() {
                        match attr? {
                            ProtoAttr::Number(number) => protocol = number,
                            ProtoAttr::SourcePort(Be16(port)) => from_port = port,
                            ProtoAttr::DestinationPort(Be16(port)) => to_port = port,
                            ProtoAttr::Unknown(_) => {}
                        }
                    }
                }
                TupleAttr::Unknown(_) => {}
            }
        }
    }
    let (Some(from), Some(to)) = (from, to) else {
        return Err(WireError::Missing { attribute: "CTA_TUPLE_ORIG".to_owned() });
    };
    let what = match kind {
        NEW => "new",
        GONE => "gone",
        _ => "other",
    };
    let (from, to) = (SocketAddr::new(from, from_port), SocketAddr::new(to, to_port));
    Ok(format!("{what} protocol {protocol} {from} -> {to}"))
}
