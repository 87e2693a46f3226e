//! Forwarding methods: how packets reach a real server.

use std::num::NonZeroU16;

use bitflags::bitflags;
use ipvs_sys::uapi;

/// How packets reach a real server (`IP_VS_CONN_F_FWD_MASK`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ForwardingMethod {
    /// The destination address and port are rewritten. Replies come back through this host (NAT, `ipvsadm -m`).
    /// Default.
    #[default]
    #[doc(alias = "NAT")]
    Masquerade,
    /// The real server is this host: packets are delivered locally, unchanged.
    Local,
    /// The packet is encapsulated unchanged (`ipvsadm -i`).
    Tunnel(Tunnel),
    /// The packet is sent unchanged to the real server's link-layer address. The real server must have the VIP too
    /// (`ipvsadm -g`).
    #[doc(alias = "DSR")]
    DirectRoute,
    /// The packet continues to its original destination (cache bypass).
    Bypass,
    /// A number that the kernel does not use yet: 5 to 7.
    Other(u8),
}

impl ForwardingMethod {
    /// Converts the kernel's number. `tunnel` is the tunnel if it is one.
    pub(crate) fn from_number(number: u32, tunnel: Tunnel) -> Self {
        match number & uapi::CONN_F_FWD_MASK {
            uapi::CONN_F_MASQ => ForwardingMethod::Masquerade,
            uapi::CONN_F_LOCALNODE => ForwardingMethod::Local,
            uapi::CONN_F_TUNNEL => ForwardingMethod::Tunnel(tunnel),
            uapi::CONN_F_DROUTE => ForwardingMethod::DirectRoute,
            uapi::CONN_F_BYPASS => ForwardingMethod::Bypass,
            other => ForwardingMethod::Other(u8::try_from(other).unwrap_or(u8::MAX)),
        }
    }

    /// Normalises to the form in which the kernel reports it.
    pub(crate) fn canonical(self) -> Self {
        match self {
            ForwardingMethod::Other(number) => Self::from_number(number.into(), Tunnel::IPIP),
            ForwardingMethod::Tunnel(Tunnel { kind: TunnelKind::Other { kind, port }, flags }) => {
                ForwardingMethod::Tunnel(Tunnel { kind: TunnelKind::from_number(kind, port), flags })
            }
            other => other,
        }
    }
}

/// A tunnel to a real server. GUE needs Linux 5.2, GRE and flags Linux 5.3; older kernels ignore them silently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Tunnel {
    /// Type of encapsulation.
    pub kind: TunnelKind,
    /// Checksums of the encapsulation.
    pub flags: TunnelFlags,
}

impl Tunnel {
    /// IP in IP.
    pub const IPIP: Tunnel = Tunnel { kind: TunnelKind::Ipip, flags: TunnelFlags::empty() };

    /// A tunnel of this kind with these flags.
    pub fn new(kind: TunnelKind, flags: TunnelFlags) -> Self {
        Tunnel { kind, flags }
    }
}

/// Type of encapsulation (`IP_VS_CONN_F_TUNNEL_TYPE_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum TunnelKind {
    /// IP in IP. Default.
    #[default]
    Ipip,
    /// Generic UDP encapsulation to this port; the kernel refuses port 0.
    Gue {
        /// UDP port on which the real server decapsulates.
        port: NonZeroU16,
    },
    /// Generic routing encapsulation.
    Gre,
    /// A number that the kernel does not use yet.
    Other {
        /// The number.
        kind: u8,
        /// The port sent with it.
        port: u16,
    },
}

impl TunnelKind {
    /// Converts the kernel's number and port.
    pub(crate) fn from_number(kind: u8, port: u16) -> Self {
        match (kind, NonZeroU16::new(port)) {
            (uapi::TUNNEL_TYPE_IPIP, _) => TunnelKind::Ipip,
            (uapi::TUNNEL_TYPE_GUE, Some(port)) => TunnelKind::Gue { port },
            (uapi::TUNNEL_TYPE_GRE, _) => TunnelKind::Gre,
            (kind, _) => TunnelKind::Other { kind, port },
        }
    }
}

bitflags! {
    /// Checksums of a tunnel (`IP_VS_TUNNEL_ENCAP_FLAG_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct TunnelFlags: u16 {
        /// The outer header carries a checksum (GUE and GRE; `--tun-csum`).
        const CHECKSUM = 0x1;
        /// Remote checksum offload (GUE; `--tun-remcsum`).
        const REMOTE_CHECKSUM = 0x2;
        const _ = !0;
    }
}

#[cfg(feature = "serde")]
mod bits {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::TunnelFlags;

    /// Serialised as the kernel's number.
    impl Serialize for TunnelFlags {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.bits().serialize(serializer)
        }
    }

    impl<'de> Deserialize<'de> for TunnelFlags {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            u16::deserialize(deserializer).map(TunnelFlags::from_bits_retain)
        }
    }
}
