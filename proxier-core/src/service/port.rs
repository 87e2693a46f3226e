//! Ports of Services: values shared by the Frontends of one port.

use crate::config::ReservedPort;
use std::net::IpAddr;
use std::sync::Arc;

use super::endpoints::Choice;
use super::{Context, Row};
use crate::net::{EndpointKey, Family, Network, Protocol};
use crate::snapshot::{FrontendSpec, ObjectKey, Roles, TrafficPolicy};

/// A port of a Service in one family. It has what its [`Frontend`](super::Frontend)s share, for modes whose kernel
/// objects belong to ports rather than to single addresses.
///
/// Reserved addresses and node ports are excluded, as for Frontends. [`Desired`](super::Desired) decides whether the
/// Service owns an address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "a port has a port number")]
pub(crate) struct Port {
    /// `namespace/name`, with `:port` if the port has a name.
    pub name: Box<str>,
    pub protocol: Protocol,
    pub family: Family,
    pub port: u16,
    pub cluster_ip: Option<IpAddr>,
    /// Its number on the nodes' addresses. `None` also if the number is reserved at one of them, and for agents'
    /// Frontends; the Frontends then tell where it is served.
    pub node_port: Option<u16>,
    pub load_balancer_ips: Box<[IpAddr]>,
    pub is_external: bool,
    pub internal_policy: TrafficPolicy,
    pub external_policy: TrafficPolicy,
    /// The endpoints for traffic that may go to any node, sorted. Empty only if no node has an endpoint that accepts
    /// connections.
    pub cluster: Arc<[EndpointKey]>,
    /// The endpoints for traffic that must stay on this node, sorted. With topology hints some may not be in `cluster`.
    pub local: Arc<[EndpointKey]>,
    pub affinity_secs: Option<u32>,
    pub source_ranges: Option<Arc<[Network]>>,
    pub node_may_use: bool,
}

impl Port {
    /// `rows` exclude reserved addresses.
    pub(super) fn new(context: &Context<'_>, rows: &[Row], family: Family, choice: &Choice) -> Self {
        let Context { service, port, facts, .. } = context;
        let addresses = |role| {
            let mut rows = rows.iter().filter(move |row| row.role == role);
            rows.next().map_or(&[][..], |row| &row.addresses)
        };
        let reserved = &facts.config.reserved;
        let is_free = |number: &u16| {
            let all_free = addresses(Roles::NODE_PORT).len() == facts.node_port_addresses(family).count();
            let everywhere = |place: &ReservedPort| {
                place.address.is_none() && (place.protocol, place.port) == (port.protocol, *number)
            };
            all_free && !reserved.iter().any(|(place, _)| everywhere(place))
        };
        let node_port = port.node_port.filter(is_free);
        Port {
            name: name(&service.key, &port.name),
            protocol: port.protocol,
            family,
            port: port.port,
            cluster_ip: addresses(Roles::CLUSTER_IP).first().copied(),
            node_port,
            load_balancer_ips: addresses(Roles::LOAD_BALANCER).into(),
            is_external: node_port.is_some()
                || [Roles::EXTERNAL_IP, Roles::LOAD_BALANCER, Roles::NODE_PORT]
                    .into_iter()
                    .any(|role| !addresses(role).is_empty()),
            internal_policy: service.internal_policy,
            external_policy: service.external_policy,
            cluster: choice.cluster.clone(),
            local: choice.local.clone(),
            affinity_secs: service.affinity_secs,
            source_ranges: service.source_ranges.of(family).clone(),
            node_may_use: facts.is_node_in(service.source_ranges.of(family).as_deref(), family),
        }
    }

    /// An agent's Frontend as a port, named after its address and port.
    pub(super) fn of_agent(key: &ObjectKey, spec: &FrontendSpec, node_may_use: bool) -> Self {
        let has = |role| spec.roles.contains(role);
        let at = EndpointKey::new(spec.key.address, spec.key.port).to_string();
        let load_balancer_ips = if has(Roles::LOAD_BALANCER) { &[spec.key.address][..] } else { &[] };
        Port {
            name: name(key, &at),
            protocol: spec.key.protocol,
            family: spec.key.family(),
            port: spec.key.port,
            cluster_ip: has(Roles::CLUSTER_IP).then_some(spec.key.address),
            node_port: None,
            load_balancer_ips: load_balancer_ips.into(),
            is_external: spec.roles != Roles::CLUSTER_IP,
            internal_policy: spec.policy,
            external_policy: spec.policy,
            cluster: spec.cluster.as_slice().into(),
            local: spec.local.as_slice().into(),
            affinity_secs: spec.affinity_secs,
            source_ranges: spec.source_ranges.as_deref().map(Into::into),
            node_may_use,
        }
    }

    pub(crate) fn has_endpoints(&self) -> bool {
        !self.cluster.is_empty() || !self.local.is_empty()
    }
}

fn name(service: &ObjectKey, port: &str) -> Box<str> {
    if port.is_empty() { service.to_string().into() } else { format!("{service}:{port}").into() }
}
