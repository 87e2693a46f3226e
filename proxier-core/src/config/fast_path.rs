//! Settings of the fast path.

use crate::objects::FastPathObject;
use crate::snapshot::Reporter;

/// The fast path of established connections to Services, in nftables and iptables mode. An nf_tables flow table
/// (`CONFIG_NF_FLOW_TABLE`) forwards their packets from device to device at ingress, past all chains. The first
/// packets, and those that end a connection, pass the chains.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct FastPath {
    /// Names of the input devices. Include those of the pods; otherwise only packets of one direction take the fast
    /// path. `name*` matches a prefix, `*` all devices. `lo` is never included.
    pub interfaces: Vec<String>,
    /// Packets of a connection, of both directions together, before it takes the fast path. Default 0: from the first
    /// reply. Other values make the kernel count packets (`nf_conntrack_acct`).
    pub min_packets: u32,
    /// Whether flows are offloaded to the devices (`flags offload`). If one of them does not support it, this host
    /// forwards all packets. Default no.
    pub hardware: bool,
}

impl FastPath {
    /// Creates a fast path for these devices.
    pub fn new<I: Into<String>>(interfaces: impl IntoIterator<Item = I>) -> Self {
        FastPath { interfaces: interfaces.into_iter().map(Into::into).collect(), ..FastPath::default() }
    }

    pub(crate) fn takes(&self, device: &str) -> bool {
        let is_named = |name: &String| match name.strip_suffix('*') {
            Some(prefix) => device.starts_with(prefix),
            None => device == name,
        };
        device != "lo" && self.interfaces.iter().any(is_named)
    }

    pub(super) fn check(object: &FastPathObject, report: &mut Reporter<'_>) -> Option<Self> {
        let mut fast = FastPath { hardware: object.hardware, ..FastPath::default() };
        let device = |name: &str| {
            let plain = name.strip_suffix('*').unwrap_or(name);
            let is_one = plain.len() <= 15 && !name.is_empty() && !plain.contains(['*', '/', ' ']);
            if name == "all" { Some("*".to_owned()) } else { is_one.then(|| name.to_owned()) }
        };
        let reason = "not a device's name, a prefix with * behind, or all; left out";
        fast.interfaces = report.read_all("fastPath.interfaces", &object.interfaces.0, device, reason);
        let packets = |number: i64| number.try_into().ok();
        let reason = "not 0 to 4294967295; taken as 0";
        let packets = report.read("fastPath.minPackets", Some(object.min_packets), packets, reason);
        fast.min_packets = packets.unwrap_or_default();
        (!fast.interfaces.is_empty()).then_some(fast)
    }
}
