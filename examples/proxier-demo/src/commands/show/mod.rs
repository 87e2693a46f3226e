//! `show`: virtual servers in the kernel, or what the other modes serve, with the Services; optionally repeated with
//! rates.

mod board;
mod frontends;
mod rates;
mod terminal;
mod watch;

use std::collections::BTreeMap;
use std::process::ExitCode;

use ipvs::VirtualServerKey;
use ipvs::model::{ForwardingMethod, SnapshotEntry, VirtualServer};
use proxier_core::config::Config;
use proxier_core::kernel::KernelPorts;
use proxier_core::modes::select::RequestedMode;
use proxier_core::modes::{Kind, Names, ipvs as ipvs_mode};
use proxier_core::net::FrontendKey;
use proxier_core::ports::PortErrorKind;
use proxier_core::service::{Desired, NodeFacts};
use proxier_core::snapshot::{HostAddresses, Node, Store};
use serde_json::{Value, json};

use self::frontends::Frontends;
pub use self::watch::watch;
use crate::commands::once::exit_code;
use crate::engine::kernel;
use crate::message::change::Snapshot;
use crate::output::{Output, lines, say};
use crate::problem::Stopped;
use crate::settings::cli::{Configured, Connection, Source};
use crate::sources::{cluster, initial_list};

/// Prints every virtual server in the kernel, including those of other programs, with real servers and connections, and
/// its Service if the source of Services can be read. In the other modes, Frontends with endpoints.
pub async fn show(configured: &Configured, output: Output) -> Result<ExitCode, Stopped> {
    let mut kernel = kernel::open()?;
    let host = kernel.ports().links.addresses()?;
    let (store, desired) = services(configured, &host, true).await;
    let names = Names::new(&store, &desired);
    if let Some(frontends) = Frontends::read(configured, &mut kernel, (&desired, &host))? {
        return Ok(exit_code(output.print(|| frontends.text(&names), || frontends.json(&names)), &[]));
    }
    let mut entries = match kernel.ports().ipvs.snapshot() {
        Ok(snapshot) => snapshot.entries,
        // Nor does any other mode.
        Err(error)
            if error.kind() == PortErrorKind::Unavailable && configured.settings.asked == RequestedMode::Auto =>
        {
            let nothing = || "no mode serves anything\n".to_owned();
            return Ok(exit_code(output.print(nothing, || json!({"mode": null, "frontends": []})), &[]));
        }
        Err(error) => return Err(error.into()),
    };
    let marks = marks(configured, &mut kernel);
    entries.sort_by_key(|entry| entry.virtual_server.server.key);
    for entry in &mut entries {
        entry.real_servers.sort_by_key(|real| real.server);
    }
    let names = ServiceIndex { names, marks };
    let names_in_kernel = &configured.settings.core.names;
    let bound: Vec<String> =
        ipvs_mode::device_addresses(&host, names_in_kernel).map(|address| address.to_string()).collect();
    let text = || text(&entries, &names, &configured.settings.core, &host, bound.len());
    let json = || {
        json!({
            "mode": Kind::Ipvs.name(),
            "virtualServers": entries.iter().map(|entry| entry_json(entry, &names)).collect::<Vec<_>>(),
            "addresses": bound,
        })
    };
    Ok(exit_code(output.print(text, json), &[]))
}

/// The mode that serves where `auto` leaves it open; `None`: the configured one, or IPVS mode.
pub(super) fn serving(configured: &Configured, kernel: &mut KernelPorts) -> Option<Kind> {
    let host = kernel.ports().links.addresses().ok()?;
    let found = Frontends::read(configured, kernel, (&Desired::new(), &host)).ok()??;
    (configured.settings.asked == RequestedMode::Auto).then_some(found.mode)
}

/// The Services, if they can be read; reports why not only if `aloud`. The kernel's state is shown in any case.
async fn services(configured: &Configured, host: &HostAddresses, aloud: bool) -> (Store, Desired) {
    let nothing_named = configured.source == Source::Cluster(Connection::default());
    let in_a_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let mut store = Store::new(&configured.settings.node_name);
    if nothing_named && !in_a_pod {
        return (store, Desired::new());
    }
    // Do not wait for the Node's networks.
    let options = cluster::Options::default();
    let snapshot = match initial_list::read(configured, options).await {
        Ok(snapshot) => snapshot,
        Err(stopped) => {
            for problem in stopped.problems.iter().filter(|_| aloud) {
                say(format_args!("{problem}; Services are not named"));
            }
            Snapshot::default()
        }
    };
    for service in snapshot.services.values() {
        store.upsert_service(service);
    }
    for slice in snapshot.slices.values() {
        store.upsert_slice(slice);
    }
    let node = match &snapshot.node {
        Some(node) => Node::check(&node.object, &mut Vec::new()),
        None => Node::new(&configured.settings.node_name),
    };
    let facts = NodeFacts::new(&configured.settings.core, &node, host);
    let desired = Desired::build(&store, &facts);
    (store, desired)
}

/// Names and Frontends of virtual servers, which the kernel does not store.
struct ServiceIndex<'a> {
    names: Names<'a>,
    /// Frontends of this program's firewall marks.
    marks: BTreeMap<VirtualServerKey, FrontendKey>,
}

/// Frontends of this program's firewall marks. If they cannot be read, their virtual servers are shown as another
/// program's.
fn marks(configured: &Configured, kernel: &mut KernelPorts) -> BTreeMap<VirtualServerKey, FrontendKey> {
    ipvs_mode::marks(&configured.settings.core, kernel.ports().tables).unwrap_or_default()
}

/// The details of a virtual server, without its address and port.
fn details(server: &VirtualServer) -> String {
    match &server.config.persistence {
        Some(persistence) => format!("{} persistent {} s", server.config.scheduler, persistence.timeout_secs),
        None => server.config.scheduler.to_string(),
    }
}

/// Details of a virtual server; for one by firewall mark, with its Frontend.
fn details_of_mark(server: &VirtualServer, names: &ServiceIndex<'_>) -> String {
    match names.marks.get(&server.key) {
        Some(frontend) if frontend.address.is_unspecified() => {
            format!("{} for {frontend}, every address of the node", details(server))
        }
        Some(frontend) => format!("{} for clients outside of {frontend}", details(server)),
        None => details(server),
    }
}

fn text(
    entries: &[SnapshotEntry],
    names: &ServiceIndex<'_>,
    config: &Config,
    host: &HostAddresses,
    bound: usize,
) -> String {
    let real: usize = entries.iter().map(|entry| entry.real_servers.len()).sum();
    // Routes that bind addresses need no such device.
    let has_device = ipvs_mode::has_device(host, &config.names) || !config.binds_by_routes();
    let bound = if has_device { format!(", {bound} addresses on {}", config.names.device) } else { String::new() };
    let sum = format!("{} virtual servers, {real} real servers{bound}", entries.len());
    lines(table(entries, names).into_iter().chain([sum]))
}

fn table(entries: &[SnapshotEntry], names: &ServiceIndex<'_>) -> Vec<String> {
    let mut rows = Vec::new();
    let row = |first: String, [weight, active, inactive]: [String; 3], service| {
        vec![first, weight, active, inactive, service]
    };
    for entry in entries {
        let server = &entry.virtual_server.server;
        let service = service_of(names, &server.key).unwrap_or_else(|| "-".to_owned());
        rows.push(row(format!("{} {}", server.key, details_of_mark(server, names)), Default::default(), service));
        rows.extend(entry.real_servers.iter().map(|real| {
            let numbers = [
                real.server.config.weight.to_string(),
                real.active_connections.to_string(),
                real.inactive_connections.to_string(),
            ];
            row(board::first_of_real(real), numbers, String::new())
        }));
        if entry.real_servers.is_empty() {
            rows.push(row("  no real server: refused".to_owned(), Default::default(), String::new()));
        }
    }
    board::table(&["VIRTUAL SERVER", "WEIGHT", "ACTIVE", "INACTIVE", "SERVICE"], rows, None)
}

fn service_of(names: &ServiceIndex<'_>, key: &VirtualServerKey) -> Option<String> {
    let frontend = FrontendKey::try_from(*key).ok().or_else(|| names.marks.get(key).copied());
    names.names.service_of(&frontend?)
}

fn forwarding(method: ForwardingMethod) -> &'static str {
    match method {
        ForwardingMethod::Masquerade => "masquerade",
        ForwardingMethod::Local => "local",
        ForwardingMethod::Tunnel(_) => "tunnel",
        ForwardingMethod::DirectRoute => "directRoute",
        ForwardingMethod::Bypass => "bypass",
        _ => "other",
    }
}

fn entry_json(entry: &SnapshotEntry, names: &ServiceIndex<'_>) -> Value {
    let server = &entry.virtual_server.server;
    json!({
        "key": server.key.to_string(),
        "splits": names.marks.get(&server.key).map(ToString::to_string),
        "scheduler": server.config.scheduler.to_string(),
        "persistentSeconds": server.config.persistence.as_ref().map(|persistence| persistence.timeout_secs),
        "service": service_of(names, &server.key),
        "connections": entry.virtual_server.stats.connections,
        "realServers": entry.real_servers.iter().map(|real| json!({
            "address": real.server.key.to_string(),
            "weight": real.server.config.weight.get(),
            "forwarding": forwarding(real.server.config.forwarding_method),
            "maxConnections": Some(real.server.config.thresholds.upper()).filter(|upper| *upper > 0),
            "activeConnections": real.active_connections,
            "inactiveConnections": real.inactive_connections,
        })).collect::<Vec<_>>(),
    })
}
