//! The checked input: Services and EndpointSlices, the [`Store`] that holds them, and the node.

mod abilities;
mod annotation;
mod balancing;
mod forwarding;
mod frontends;
mod node;
mod rejection;
mod service;
mod slice;
mod store;
mod weights;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crate::net::Network;
use crate::objects::Metadata;

pub(crate) use abilities::Abilities;
pub use annotation::Annotation;
#[doc(hidden)]
pub use annotation::MayAskFor;
pub use balancing::Balancing;
pub(crate) use balancing::Sharing;
pub(crate) use forwarding::MethodName;
pub(crate) use frontends::OTHER_PORT;
pub use frontends::{FrontendSpec, Roles};
pub use node::{HostAddresses, Node};
pub(crate) use rejection::Reporter;
pub use rejection::{ObjectKind, Rejection};
pub(crate) use service::CreationTime;
pub use service::{Service, ServicePort, TrafficPolicy};
pub(crate) use slice::EndpointFlags;
pub use slice::EndpointSlice;
pub use store::Store;
pub use weights::ZoneWeights;

/// Content of a slice, for this crate and its benches.
#[doc(hidden)]
pub use slice::Endpoint;

/// Namespace and name of an object. Prints as `namespace/name`. Small and cheap to clone, since each object's key is
/// stored several times.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Arc<str>);

impl ObjectKey {
    /// Between namespace and name, neither of which can contain it; sorts before everything in a namespace.
    const SEPARATOR: &str = "\0";

    /// The key of this namespace and name.
    pub fn new(namespace: &str, name: &str) -> Self {
        ObjectKey([namespace, name].join(Self::SEPARATOR).into())
    }

    /// The key of an object in a namespace; `default` if it has none.
    pub fn of(metadata: &Metadata) -> Self {
        let namespace = if metadata.namespace.is_empty() { "default" } else { &metadata.namespace };
        Self::new(namespace, &metadata.name)
    }

    /// Namespace; empty for objects without one, such as Nodes.
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.parts().1
    }

    fn parts(&self) -> (&str, &str) {
        self.0.split_once(Self::SEPARATOR).unwrap_or(("", &self.0))
    }

    pub(crate) fn is_kubernetes(&self) -> bool {
        self.parts() == ("default", "kubernetes")
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (namespace, name) = self.parts();
        if namespace.is_empty() { f.write_str(name) } else { write!(f, "{namespace}/{name}") }
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectKey({self})")
    }
}

pub(crate) fn check_port(number: i64) -> Option<u16> {
    u16::try_from(number).ok().filter(|port| *port != 0)
}

/// Parses an address. As in kube-proxy, IPv4 with leading zeros (`010.0.0.1`) is decimal, and IPv4 in IPv6
/// (`::ffff:10.0.0.1`) is IPv4. Old API servers have stored such texts.
pub(crate) fn parse_address(text: &str) -> Option<IpAddr> {
    match text.parse::<IpAddr>() {
        Ok(address) => Some(address.to_canonical()),
        Err(_) => parse_decimal(text).map(IpAddr::V4),
    }
}

fn parse_decimal(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        *octet = part.parse().ok()?;
    }
    parts.next().is_none().then(|| octets.into())
}

/// Whether a virtual or real server can have this address: it is not unspecified, loopback, multicast, broadcast or,
/// for IPv6, link-local, which would be another machine on each link.
pub(crate) fn is_usable(address: IpAddr) -> bool {
    let never = address.is_unspecified() || address.is_loopback() || address.is_multicast();
    match address {
        IpAddr::V4(address) => !never && !address.is_broadcast(),
        IpAddr::V6(address) => !never && !address.is_unicast_link_local(),
    }
}

/// Whether a Service can have this address: as [`is_usable`], and not link-local for IPv4 either. The cluster must not
/// take over what uses those (metadata of clouds, a node's DNS cache). The API server rejects them as well.
pub(crate) fn is_usable_by_service(address: IpAddr) -> bool {
    let link_local = matches!(address, IpAddr::V4(address) if address.is_link_local());
    is_usable(address) && !link_local
}

/// Parses a network with prefix length. Surrounding blanks are ignored; host bits are cleared.
pub(crate) fn parse_network(text: &str) -> Option<Network> {
    let (address, prefix) = text.trim().split_once('/')?;
    if prefix.is_empty() || !prefix.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let plain = address.parse::<IpAddr>().ok().or_else(|| parse_decimal(address).map(IpAddr::V4))?;
    let prefix = prefix.parse::<u8>().ok()?;
    let network = match plain.to_canonical() {
        // An IPv4 network within IPv6.
        IpAddr::V4(address) if plain.is_ipv6() => Network::new(address.into(), prefix.checked_sub(96)?),
        address => Network::new(address, prefix),
    };
    network.ok().map(|network| network.trunc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let good = [("10.0.0.1", "10.0.0.1"), ("010.000.0.01", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1")];
        for (text, address) in good.into_iter().chain([("FD00:0::1", "fd00::1")]) {
            assert_eq!(parse_address(text), Some(address.parse().unwrap()), "{text}");
        }
        for text in
            ["", "None", "10.0.0", "10.0.0.256", "10.0.0.1.1", "10.0.0.+1", " 10.0.0.1", "10.0.0.1/32", "fe80::1%eth0"]
        {
            assert_eq!(parse_address(text), None, "{text}");
        }
    }

    #[test]
    fn networks_are_read() {
        let good = [
            (" 10.1.2.3/8 ", "10.0.0.0/8"),
            ("010.0.0.0/8", "10.0.0.0/8"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("2001:DB8::1/32", "2001:db8::/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ];
        for (text, network) in good {
            assert_eq!(parse_network(text), Some(network.parse().unwrap()), "{text}");
        }
        for text in
            ["10.0.0.1", "10.0.0.0/33", "::/129", "10.0.0.0/+8", "10.0.0.0/", "/8", "10.0.0.0/8/8", "::ffff:10.0.0.0/8"]
        {
            assert_eq!(parse_network(text), None, "{text}");
        }
    }

    #[test]
    fn unusable_addresses_are_refused() {
        for text in ["0.0.0.0", "::", "127.0.0.1", "::1", "224.0.0.1", "ff02::1", "255.255.255.255", "fe80::1"] {
            assert!(!is_usable(text.parse().unwrap()), "{text}");
        }
        for text in ["10.0.0.1", "169.254.20.10", "fd00::1", "2001:db8::1"] {
            assert!(is_usable(text.parse().unwrap()), "{text}");
        }
        assert!(!is_usable_by_service("169.254.169.254".parse().unwrap()));
        assert!(is_usable_by_service("10.0.0.1".parse().unwrap()));
        assert!(!is_usable_by_service("224.0.0.1".parse().unwrap()));
    }
}
