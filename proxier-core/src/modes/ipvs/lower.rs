//! Conversions of the model's addresses and ports to IPVS, ipset and iptables.

use ipset::IpSpan;
use ipvs::{RealServerKey, VirtualServerKey};

use crate::net::{EndpointKey, Family, FrontendKey, Network, Protocol};

/// Conversions from the names of one crate to those of another.
macro_rules! names {
    ($($from:ty => $to:ty { $($one:ident = $other:ident),* })*) => {$(
        impl From<$from> for $to {
            fn from(of: $from) -> Self {
                match of {
                    $(<$from>::$one => <$to>::$other,)*
                }
            }
        }
    )*};
}

names! {
    ipvs::model::Family => Family { V4 = V4, V6 = V6 }
    Family => ipvs::model::Family { V4 = V4, V6 = V6 }
    Family => ipset::Family { V4 = Inet, V6 = Inet6 }
    Family => iptables::Family { V4 = Ipv4, V6 = Ipv6 }
    Protocol => ipvs::model::Protocol { Tcp = Tcp, Udp = Udp, Sctp = Sctp }
    Protocol => ipset::Protocol { Tcp = TCP, Udp = UDP, Sctp = SCTP }
}

impl From<FrontendKey> for VirtualServerKey {
    fn from(key: FrontendKey) -> Self {
        VirtualServerKey::Address { protocol: key.protocol.into(), addr: key.address, port: key.port }
    }
}

/// Fails for a firewall mark, and for a protocol that Services do not have.
impl TryFrom<VirtualServerKey> for FrontendKey {
    type Error = VirtualServerKey;

    fn try_from(key: VirtualServerKey) -> Result<Self, Self::Error> {
        let VirtualServerKey::Address { protocol, addr, port } = key else { return Err(key) };
        let protocol = match protocol {
            ipvs::model::Protocol::Tcp => Protocol::Tcp,
            ipvs::model::Protocol::Udp => Protocol::Udp,
            ipvs::model::Protocol::Sctp => Protocol::Sctp,
            _ => return Err(key),
        };
        Ok(FrontendKey { protocol, address: addr, port })
    }
}

impl From<EndpointKey> for RealServerKey {
    fn from(key: EndpointKey) -> Self {
        RealServerKey { addr: key.address, port: key.port }
    }
}

impl From<RealServerKey> for EndpointKey {
    fn from(key: RealServerKey) -> Self {
        EndpointKey { address: key.addr, port: key.port }
    }
}

/// A network in the form of entries.
pub(crate) fn span(network: Network) -> IpSpan {
    // The length fits the family, so this does not fail.
    IpSpan::network(network.addr(), network.prefix_len()).unwrap_or_else(|_| IpSpan::host(network.addr()))
}
