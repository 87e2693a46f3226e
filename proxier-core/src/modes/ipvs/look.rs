//! What IPVS holds for an address and port.

use ipvs::VirtualServerKey;
use ipvs::model::{ForwardingMethod, ObservedRealServer, VirtualServer};

use super::guards::nft;
use super::reading::device_addresses;
use super::split;
use crate::config::Config;
use crate::modes::look::{Counted, Held};
use crate::net::FrontendKey;
use crate::ports::{PortError, Ports, RouteOwner};

/// The virtual server with its real servers, and how the address is this host's. Sets and rules, which masquerade and guard, are
/// not looked at.
///
/// # Errors
/// Something could not be read.
pub(in crate::modes) fn look(key: &FrontendKey, config: &Config, ports: &mut Ports<'_>) -> Result<Held, PortError> {
    let mut held = Held::default();
    let names = &config.names;
    let shared = if config.shares_node_ports() { nft::shared_server(key, config, ports.tables)? } else { None };
    let virtual_key = shared.unwrap_or_else(|| VirtualServerKey::from(*key));
    // Which mark it is differs from node to node.
    let name = match shared {
        Some(_) => format!("virtual server of node port {}", split::node_port_of(key)),
        None => format!("virtual server {virtual_key}"),
    };
    let snapshot = ports.ipvs.snapshot()?;
    let mut entries = snapshot.entries.into_iter();
    if let Some(entry) = entries.find(|entry| entry.virtual_server.server.key == virtual_key) {
        let stats = entry.virtual_server.stats;
        held.counted =
            Some(Counted { connections: stats.connections, packets: Some((stats.packets_in, stats.packets_out)) });
        held.parts.insert(name, details(&entry.virtual_server.server));
        for real in &entry.real_servers {
            let name = format!("real server {}", real.server.key);
            if real.server.config.weight.get() == 0 {
                held.leaving.insert(name.clone());
            }
            held.parts.insert(name, details_of_real(real));
        }
    }
    let host = ports.links.addresses()?;
    let mut ways = Vec::new();
    if device_addresses(&host, names).any(|address| address == key.address) {
        ways.push(format!("bound to {}", names.device));
    }
    let routes = ports.routes.networks(RouteOwner::Ipvs)?;
    ways.extend(routes.keys().filter(|network| network.contains(&key.address)).map(|of| format!("route of {of}")));
    if !ways.is_empty() {
        held.parts.insert(format!("local address {}", key.address), ways.join(" and "));
    }
    Ok(held)
}

fn details(server: &VirtualServer) -> String {
    match &server.config.persistence {
        Some(persistence) => format!("{}, persistent {} s", server.config.scheduler, persistence.timeout_secs),
        None => server.config.scheduler.to_string(),
    }
}

fn details_of_real(real: &ObservedRealServer) -> String {
    let config = &real.server.config;
    let method = match config.forwarding_method {
        ForwardingMethod::Masquerade => String::new(),
        other => format!(", {other}"),
    };
    format!("weight {}{method}", config.weight)
}
