//! Which traffic is masqueraded, and its mark.

use std::fmt;

use super::{InterfaceName, NO_NETWORK};
use crate::net::{Family, Network};
use crate::objects::ConfigObject;
use crate::snapshot::{Reporter, parse_network};

/// The bit of the packet mark that means "masquerade this". Default 14, which is `0x00004000`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkBit(u8);

impl MarkBit {
    /// Creates the mark with this bit, 0 to 31; `None` for other numbers.
    pub fn new(bit: u8) -> Option<Self> {
        (bit < 32).then_some(MarkBit(bit))
    }

    /// Number of the bit, 0 to 31.
    pub fn get(self) -> u8 {
        self.0
    }

    pub(crate) fn mask(self) -> u32 {
        1_u32.wrapping_shl(self.0.into())
    }
}

impl Default for MarkBit {
    fn default() -> Self {
        MarkBit(14)
    }
}

/// The mask as kube-proxy writes it: `0x00004000`.
impl fmt::Display for MarkBit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.mask())
    }
}

/// How local pod traffic is detected (`detectLocalMode`). Other traffic to cluster IPs is masqueraded.
///
/// Without detection, only traffic with a cluster IP as its source is masqueraded: that of programs on this node for
/// which the kernel chose such a source.
#[derive(Clone, Debug, PartialEq)]
pub enum LocalTraffic {
    /// Sources in the cluster's first pod network of the family. Without one, nothing is detected.
    ClusterCidrs(Vec<Network>),
    /// Sources in this node's pod network of the family. Without one, nothing is detected.
    NodeCidr,
    /// Packets that arrive through this bridge.
    BridgeInterface(InterfaceName),
    /// Packets that arrive through devices with this name prefix.
    InterfaceNamePrefix(InterfaceName),
}

impl Default for LocalTraffic {
    fn default() -> Self {
        LocalTraffic::ClusterCidrs(Vec::new())
    }
}

impl LocalTraffic {
    pub(super) fn check(object: &ConfigObject, report: &mut Reporter<'_>) -> Self {
        let mut by_name = |field: &str, name: &str, make: fn(InterfaceName) -> LocalTraffic| {
            let checked = InterfaceName::new(name);
            if checked.is_err() {
                let why = "not a device's name (1 to 15 bytes, no '+' at the end); local traffic is not detected";
                report.reject(format!("detectLocal.{field}"), name, why);
            }
            checked.map(make).unwrap_or_default()
        };
        let names = &object.detect_local;
        match object.detect_local_mode.as_deref().unwrap_or_default() {
            "NodeCIDR" => LocalTraffic::NodeCidr,
            "BridgeInterface" => by_name("bridgeInterface", &names.bridge_interface, LocalTraffic::BridgeInterface),
            "InterfaceNamePrefix" => {
                by_name("interfaceNamePrefix", &names.interface_name_prefix, LocalTraffic::InterfaceNamePrefix)
            }
            mode => {
                if !matches!(mode, "" | "ClusterCIDR") {
                    let why = "not ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix; taken as ClusterCIDR";
                    report.reject("detectLocalMode", mode, why);
                }
                LocalTraffic::ClusterCidrs(check_cluster_cidrs(&object.cluster_cidr, report))
            }
        }
    }
}

/// Parses one network, or one of each family separated by a comma.
fn check_cluster_cidrs(text: &str, report: &mut Reporter<'_>) -> Vec<Network> {
    let mut networks: Vec<Network> = Vec::new();
    for text in text.split(',').filter(|_| !text.is_empty()) {
        let Some(network) = parse_network(text) else {
            report.reject("clusterCIDR", text, NO_NETWORK);
            continue;
        };
        let family = Family::of(network.addr());
        if networks.iter().any(|earlier| Family::of(earlier.addr()) == family) {
            report.reject("clusterCIDR", text, "a second network of its family; left out");
        } else {
            networks.push(network);
        }
    }
    networks
}

/// The bit from the section `ipvs`, otherwise from `iptables`, where kube-proxy has it.
pub(super) fn check_masquerade_bit(object: &ConfigObject, report: &mut Reporter<'_>) -> MarkBit {
    let (field, number) = match (object.ipvs.masquerade_bit, object.iptables.masquerade_bit) {
        (Some(number), _) => ("ipvs.masqueradeBit", number),
        (None, Some(number)) => ("iptables.masqueradeBit", number),
        (None, None) => return MarkBit::default(),
    };
    let bit = |number: i64| MarkBit::new(number.try_into().ok()?);
    report.read(field, Some(number), bit, "not a bit of the mark (0 to 31); taken as 14").unwrap_or_default()
}
