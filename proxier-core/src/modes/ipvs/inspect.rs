//! What IPVS has for one address and port.

use ipvs::VirtualServerKey;

use super::guards::nft;
use super::reading::device_addresses;
use crate::config::Config;
use crate::modes::inspection::{Inspection, TrafficCounters};
use crate::net::FrontendKey;
use crate::plan::operation::{ShownReal, ShownVirtual};
use crate::ports::{Ports, Result, RouteOwner};

/// The virtual server with its real servers; that of outside clients, if separate; and how the address is bound to this
/// host. The sets and rules that masquerade and guard are not checked.
pub(crate) fn inspect(
    key: &FrontendKey,
    is_outside: bool,
    config: &Config,
    ports: &mut Ports<'_>,
) -> Result<Inspection> {
    let mut inspection = Inspection::default();
    let names = &config.names;
    let marked = if config.splits_local() { nft::marked(key, config, ports.tables)? } else { None };
    // The number of the mark differs from node to node.
    let (virtual_key, name) = match marked {
        Some(server) if is_outside => (server, format!("virtual server of clients outside of {key}")),
        _ => (VirtualServerKey::from(*key), format!("virtual server {key}")),
    };
    let snapshot = ports.ipvs.snapshot()?;
    let mut entries = snapshot.entries.into_iter();
    if let Some(entry) = entries.find(|entry| entry.virtual_server.server.key == virtual_key) {
        let stats = entry.virtual_server.stats;
        inspection.counters = Some(TrafficCounters {
            connections: stats.connections,
            packets: Some((stats.packets_in, stats.packets_out)),
        });
        inspection.parts.insert(name, ShownVirtual(&entry.virtual_server.server).to_string());
        for real in &entry.real_servers {
            let name = format!("real server {}", real.server.key);
            if real.server.config.weight.get() == 0 {
                inspection.leaving.insert(name.clone());
            }
            inspection.parts.insert(name, ShownReal(&real.server).to_string());
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
        inspection.parts.insert(format!("local address {}", key.address), ways.join(" and "));
    }
    Ok(inspection)
}
