//! Frontends that are not served because the node needs their address or port itself.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use super::{NodeFacts, Roles};
use crate::config::{Neighbour, OtherProxies, Reserved, User};
use crate::net::{EndpointKey, FrontendKey, Protocol};

/// What is reserved: a port, or a whole address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extent {
    Port,
    /// The address with all its ports: if it were bound to the dummy device, it would be this node itself.
    Address,
    OtherProxy,
}

/// A Frontend that is not served because its address or port is reserved. Prints on one line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rejected {
    /// Protocol, address and port.
    pub key: FrontendKey,
    /// The program or host that answers there.
    pub user: User,
    pub(super) extent: Extent,
}

impl Rejected {
    pub(crate) fn reason(&self) -> String {
        match self.extent {
            Extent::OtherProxy => format!("{} serves it, and is left alone", self.user),
            Extent::Port => format!("{} answers there", self.user),
            Extent::Address if matches!(self.user, User::Node(_)) => {
                format!("{} has that address; packets go there, and it is not served here", self.user)
            }
            Extent::Address => {
                format!("{} has that address, and this node could not reach it any more", self.user)
            }
        }
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.reason())
    }
}

impl Reserved {
    /// The reservation that forbids to serve a Frontend, if its address and port are reserved.
    pub(crate) fn refuses(&self, key: &FrontendKey, facts: &NodeFacts) -> Option<Rejected> {
        let FrontendKey { protocol, address, port } = *key;
        let OtherProxies { addresses, frontends } = &*self.other_proxies;
        if let Some(proxy) = addresses.get(&address).or_else(|| frontends.get(key)) {
            return Some(Rejected { key: *key, user: User::Other((&**proxy).into()), extent: Extent::OtherProxy });
        }
        // Compare ports first: this node's addresses only matter if a port matches. A place at every address comes last.
        let mut places = self.places.iter().rev().filter(|(at, _)| (at.protocol, at.port) == (protocol, port));
        let is_here = || facts.is_own_address(address) || address.is_loopback();
        let place = places.find(|(at, _)| at.address.map_or_else(is_here, |at| at == address));
        let user = place.map(|(_, user)| user).or_else(|| self.neighbour_here(*key).filter(|_| is_here()))?;
        Some(Rejected { key: *key, user: user.clone(), extent: Extent::Port })
    }

    /// The host that answers at this address and port, if the address is this node's.
    fn neighbour_here(&self, key: FrontendKey) -> Option<&User> {
        let FrontendKey { protocol: Protocol::Tcp, address, port } = key else { return None };
        let is_one = |all: &BTreeSet<Neighbour>| all.contains(&Neighbour::tcp(address, port));
        self.neighbours.iter().find(|(_, all)| is_one(all)).map(|(user, _)| user)
    }

    /// Whether a Frontend must not be served because its address is reserved, and for whom. `endpoints` would get its
    /// traffic.
    pub(crate) fn refuses_address(
        &self,
        key: &FrontendKey,
        role: Roles,
        endpoints: &[EndpointKey],
        facts: &NodeFacts,
    ) -> Option<Rejected> {
        if !role.intersects(Roles::EXTERNAL_IP | Roles::LOAD_BALANCER) {
            return None;
        }
        let balanced = role.contains(Roles::LOAD_BALANCER);
        let node = self.nodes.get(&key.address).map(|name| User::Node((&**name).into()));
        let neighbour = self.neighbours.iter().find(|(user, all)| {
            let is_free = match user {
                User::NameServer => balanced && is_dns(key),
                User::ApiServer | User::ApiServerEndpoint => balanced && self.leads_to_api_server(endpoints),
                _ => false,
            };
            !is_free && has_address(all, key.address)
        });
        let user = node.or_else(|| neighbour.map(|(user, _)| user.clone()));
        let user = user.filter(|_| !facts.is_here(key.address))?;
        Some(Rejected { key: *key, user, extent: Extent::Address })
    }

    fn leads_to_api_server(&self, endpoints: &[EndpointKey]) -> bool {
        let Some(servers) = self.neighbours.get(&User::ApiServerEndpoint) else { return false };
        let is_one = |endpoint: &EndpointKey| servers.contains(&Neighbour::tcp(endpoint.address, endpoint.port));
        !endpoints.is_empty() && endpoints.iter().all(is_one)
    }
}

/// Port 53 over TCP or UDP. Any other port alone would bind the address, and with it all its ports.
fn is_dns(key: &FrontendKey) -> bool {
    key.port == 53 && matches!(key.protocol, Protocol::Tcp | Protocol::Udp)
}

fn has_address(neighbours: &BTreeSet<Neighbour>, address: IpAddr) -> bool {
    neighbours.range(Neighbour::new(address)..).next().is_some_and(|neighbour| neighbour.address == address)
}
