//! Packets on the command line, for `trace` and `explain`.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use proxier_core::net::{FrontendKey, Protocol};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// This node, from the address that the kernel chooses.
    Node,
    /// A client outside the cluster: an address reserved for documentation.
    Outside,
    /// The host or pod with this address.
    Address(IpAddr),
}

impl FromStr for Sender {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "node" => Ok(Sender::Node),
            "outside" => Ok(Sender::Outside),
            text => text.parse().map(Sender::Address).map_err(|_other| "write an IP address, node or outside"),
        }
    }
}

/// A protocol by its name in capital or small letters.
pub(crate) fn protocol(name: &str) -> Option<Protocol> {
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|known| known.name().eq_ignore_ascii_case(name))
}

/// An address and port, with or without a protocol: `10.96.0.10:80`, `[fd00::1]:53/udp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct To(pub FrontendKey);

impl FromStr for To {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (place, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let protocol = self::protocol(protocol).ok_or("the protocol is none of tcp, udp, sctp")?;
        let place: SocketAddr = place.parse().map_err(
            |_other| "write ADDRESS:PORT or ADDRESS:PORT/PROTOCOL, such as 10.96.0.10:80 or [fd00::1]:53/udp",
        )?;
        if place.port() == 0 {
            return Err("0 is not a port");
        }
        Ok(To(FrontendKey::new(protocol, place.ip().to_canonical(), place.port())))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    pub from: Sender,
    pub to: To,
    pub device: Option<String>,
    /// How long to watch the counters of the running kernel; zero: read once. `None`: the kernel is not read.
    pub live: Option<Duration>,
}
