//! A node with pods, a second node and a client, each in a network namespace of its own, and the reconciler on the node's kernel.

pub(crate) mod clients;
pub(crate) mod cluster;
pub(crate) mod load;
pub(crate) mod net;
pub(crate) mod objects;
pub(crate) mod serving;

use std::sync::LazyLock;

use testkit::{Need, PROXY};

/// Needs of the ground and of the reconciler.
pub(crate) static NEEDS: LazyLock<Vec<Need>> = LazyLock::new(|| [PROXY, &[Need::Veth, Need::Conntrack]].concat());

/// The same with a table of nf_tables: neither ipset nor iptables.
pub(crate) const TABLE_NEEDS: &[Need] =
    &[Need::Root, Need::IpVs, Need::Scheduler("rr"), Need::Dummy, Need::Nftables, Need::Veth, Need::Conntrack];
