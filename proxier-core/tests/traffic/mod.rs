//! A node with pods, a second node and a client, each in a network namespace of its own, and the reconciler on the node's kernel.

#![allow(dead_code, reason = "each test program uses a part of it")]

pub(crate) mod clients;
pub(crate) mod cluster;
pub(crate) mod load;
pub(crate) mod net;
pub(crate) mod objects;

use testkit::Need;

/// What the kernel must have for the ground and for the reconciler.
pub(crate) const NEEDS: &[Need] = &[
    Need::Root,
    Need::Veth,
    Need::Dummy,
    Need::IpVs,
    Need::Scheduler("rr"),
    Need::Ipset("hash:ip"),
    Need::Ipset("hash:ip,port"),
    Need::Ipset("hash:ip,port,ip"),
    Need::Ipset("hash:ip,port,net"),
    Need::Ipset("bitmap:port"),
    Need::IptablesNft,
    Need::Conntrack,
];
