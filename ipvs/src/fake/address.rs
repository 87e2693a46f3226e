//! Addresses that the kernel accepts for a real server.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Whether `inet_addr_type` returns unicast or local, given the routes of a namespace in which `lo` is up or nothing
/// is.
pub(super) fn takes_v4(addr: Ipv4Addr, loopback: bool) -> bool {
    let broadcast = addr.is_broadcast() || addr == Ipv4Addr::new(127, 255, 255, 255);
    loopback && !addr.is_unspecified() && !addr.is_multicast() && !broadcast
}

/// Whether `ipv6_addr_type` returns unicast and not link-local. The fake's only IPv6 address is `::1`, so nothing else
/// is local.
pub(super) fn takes_v6(addr: Ipv6Addr) -> bool {
    let link_local = addr.segments().first().is_some_and(|first| first & 0xffc0 == 0xfe80);
    !addr.is_unspecified() && !addr.is_multicast() && !link_local && addr.to_ipv4_mapped().is_none()
}
