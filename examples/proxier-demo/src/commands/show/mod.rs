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
use proxier_core::modes::{Kind, ipvs as ipvs_mode};
use proxier_core::net::FrontendKey;
use proxier_core::ports::PortErrorKind;
use proxier_core::service::{Desired, Names, NodeFacts};
use proxier_core::snapshot::{HostAddresses, Node, Store};
use serde_json::{Value, json};

use self::frontends::Frontends;
use self::terminal::Size;
pub use self::watch::watch;
use crate::commands::once::exit_code;
use crate::engine::kernel;
use crate::message::change::Snapshot;
use crate::output::{lines, say};
use crate::problem::Stopped;
use crate::settings::cli::{Configured, Connection, Source};
use crate::sources::{cluster, initial_list};

/// Prints every virtual server in the kernel, including those of other programs, with real servers and connections, and
/// its Service if the source of Services can be read. In the other modes, Frontends with endpoints.
pub async fn show(configured: &Configured) -> Result<ExitCode, Stopped> {
    let output = configured.output;
    let mut kernel = kernel::open()?;
    let host = kernel.ports().links.addresses()?;
    let services = &Services::read(configured, (&mut kernel, &host), true).await;
    if let Some(frontends) = Frontends::read(configured, &mut kernel, (&services.desired, &host))? {
        return Ok(exit_code(output.print(|| frontends.text(services), || frontends.json(services)), &[]));
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
    entries.sort_unstable_by_key(|entry| entry.virtual_server.server.key);
    for entry in &mut entries {
        entry.real_servers.sort_unstable_by_key(|real| real.server);
    }
    let names_in_kernel = &configured.settings.core.names;
    let bound: Vec<String> =
        ipvs_mode::device_addresses(&host, names_in_kernel).map(|address| address.to_string()).collect();
    let text = || text(&entries, services, &configured.settings.core, &host, bound.len());
    let json = || {
        json!({
            "mode": Kind::Ipvs.name(),
            "virtualServers": entries.iter().map(|entry| entry_json(entry, services)).collect::<Vec<_>>(),
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

/// What has names: a virtual server, or a Frontend. Gives its Service and port.
type NameOf<'a> = &'a dyn Fn(&VirtualServerKey) -> Option<String>;

/// The Services, which the kernel does not store.
struct Services {
    store: Store,
    desired: Desired,
    /// Frontends of this program's firewall marks.
    marks: BTreeMap<VirtualServerKey, FrontendKey>,
}

impl Services {
    /// Reads them. The kernel's state is shown in any case: there are none if they cannot be read, and only if `aloud`
    /// is the reason reported; virtual servers of marks that cannot be read are shown as another program's.
    async fn read(configured: &Configured, (kernel, host): (&mut KernelPorts, &HostAddresses), aloud: bool) -> Self {
        let marks = ipvs_mode::marks(&configured.settings.core, kernel.ports().tables).unwrap_or_default();
        let mut all = Services { store: Store::new(&configured.settings.node_name), desired: Desired::new(), marks };
        let nothing_named = configured.source == Source::Cluster(Connection::default());
        let in_a_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        if nothing_named && !in_a_pod {
            return all;
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
            all.store.upsert_service(service);
        }
        for slice in snapshot.slices.values() {
            all.store.upsert_slice(slice);
        }
        let node = match &snapshot.node {
            Some(node) => Node::check(&node.object, &mut Vec::new()),
            None => Node::new(&configured.settings.node_name),
        };
        all.desired = Desired::build(&all.store, &NodeFacts::new(&configured.settings.core, &node, host));
        all
    }

    fn name(&self, key: &VirtualServerKey) -> Option<String> {
        let frontend = FrontendKey::try_from(*key).ok().or_else(|| self.marks.get(key).copied());
        Names::new(&self.store, &self.desired).service_of(&frontend?)
    }
}

/// A read of the kernel, compared with the previous one.
trait Picture {
    fn keys(&self) -> Vec<VirtualServerKey>;

    /// As many lines as fit, none wider than the terminal. Without a size: all of them.
    fn lines(&self, name: NameOf<'_>, size: Option<Size>) -> Vec<String>;

    /// One refresh, in the form of `show -o json`.
    fn json(&self, name: NameOf<'_>) -> Value;
}

/// The details of a virtual server, without its address and port.
fn details(server: &VirtualServer) -> String {
    match &server.config.persistence {
        Some(persistence) => format!("{} persistent {} s", server.config.scheduler, persistence.timeout_secs),
        None => server.config.scheduler.to_string(),
    }
}

/// Details of a virtual server; for one by firewall mark, with its Frontend.
fn details_of_mark(server: &VirtualServer, services: &Services) -> String {
    match services.marks.get(&server.key) {
        Some(frontend) if frontend.address.is_unspecified() => {
            format!("{} for {frontend}, every address of the node", details(server))
        }
        Some(frontend) => format!("{} for clients outside of {frontend}", details(server)),
        None => details(server),
    }
}

fn text(entries: &[SnapshotEntry], services: &Services, config: &Config, host: &HostAddresses, bound: usize) -> String {
    let real: usize = entries.iter().map(|entry| entry.real_servers.len()).sum();
    // Routes that bind addresses need no such device.
    let has_device = ipvs_mode::has_device(host, &config.names) || !config.binds_by_routes();
    let bound = if has_device { format!(", {bound} addresses on {}", config.names.device) } else { String::new() };
    let sum = format!("{} virtual servers, {real} real servers{bound}", entries.len());
    let mut rows = Vec::new();
    let row = |first: String, [weight, active, inactive]: [String; 3], service| {
        vec![first, weight, active, inactive, service]
    };
    for entry in entries {
        let server = &entry.virtual_server.server;
        let service = services.name(&server.key).unwrap_or_else(|| "-".to_owned());
        rows.push(row(format!("{} {}", server.key, details_of_mark(server, services)), Default::default(), service));
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
    let heads = ["VIRTUAL SERVER", "WEIGHT", "ACTIVE", "INACTIVE", "SERVICE"];
    lines(board::table(&heads, rows, None).into_iter().chain([sum]))
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

fn entry_json(entry: &SnapshotEntry, services: &Services) -> Value {
    let server = &entry.virtual_server.server;
    json!({
        "key": server.key.to_string(),
        "splits": services.marks.get(&server.key).map(ToString::to_string),
        "scheduler": server.config.scheduler.to_string(),
        "persistentSeconds": server.config.persistence.as_ref().map(|persistence| persistence.timeout_secs),
        "service": services.name(&server.key),
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
