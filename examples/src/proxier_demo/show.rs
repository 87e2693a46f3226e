//! `show`: what the kernel holds, with the Services it serves.

use std::io::Write;
use std::process::ExitCode;

use ipvs::model::{ForwardingMethod, SnapshotEntry, VirtualServer};
use proxier_core::compile::Facts;
use proxier_core::observe;
use proxier_core::snapshot::{HostAddresses, Node, Store};
use proxier_core::state::Desired;
use proxier_core::step::Names;
use serde_json::{Value, json};

use super::change::Snapshot;
use super::cli::{Configured, Output, Source};
use super::engine::open_kernel;
use super::once::print_json;
use super::picture;
use super::problem::Problem;

/// Prints every virtual server of the kernel, also those of somebody else, with real servers and connections, and the
/// Service that it serves where the source of Services can be read.
pub async fn show(configured: &Configured, output: Output) -> ExitCode {
    let mut kernel = match open_kernel() {
        Ok(kernel) => kernel,
        Err(problem) => return failed(&problem),
    };
    let ports = kernel.ports();
    let (mut entries, host) = match (ports.ipvs.snapshot(), ports.links.addresses()) {
        (Ok(snapshot), Ok(host)) => (snapshot.entries, host),
        (Err(error), _) | (_, Err(error)) => return failed(&Problem::new("", error.to_string())),
    };
    entries.sort_by_key(|entry| entry.virtual_server.server.key);
    for entry in &mut entries {
        entry.real_servers.sort_by_key(|real| real.server);
    }
    let (store, desired) = services(configured, &host).await;
    let names = Names::new(&store, &desired);
    let bound: Vec<String> = observe::device_addresses(&host).map(|address| address.to_string()).collect();
    let printed = match output {
        Output::Text => text(&entries, &names, bound.len()),
        Output::Json => print_json(&json!({
            "virtualServers": entries.iter().map(|entry| entry_json(entry, &names)).collect::<Vec<_>>(),
            "addresses": bound,
        })),
    };
    ExitCode::from(u8::from(printed.is_err()))
}

fn failed(problem: &Problem) -> ExitCode {
    eprintln!("proxier-demo: {problem}");
    ExitCode::FAILURE
}

/// The Services as far as they can be read. What the kernel holds is shown all the same.
async fn services(configured: &Configured, host: &HostAddresses) -> (Store, Desired) {
    let nothing_named = matches!(&configured.source, Source::Cluster { kubeconfig: None, master: None });
    let in_a_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let mut store = Store::new(&configured.settings.node_name);
    if nothing_named && !in_a_pod {
        return (store, Desired::new());
    }
    let snapshot = match picture::read(&configured.source, &configured.settings.node_name).await {
        Ok(snapshot) => snapshot,
        Err(problems) => {
            for problem in problems {
                eprintln!("proxier-demo: {problem}; Services are not named");
            }
            Snapshot::default()
        }
    };
    for service in &snapshot.services {
        store.upsert_service(service);
    }
    for slice in &snapshot.slices {
        store.upsert_slice(slice);
    }
    let node = match &snapshot.node {
        Some(node) => Node::check(&node.object, &mut Vec::new()),
        None => Node::new(&configured.settings.node_name),
    };
    let facts = Facts::new(&configured.settings.core, &node, host);
    let desired = Desired::build(&store, &facts);
    (store, desired)
}

/// What is worth saying about a virtual server besides its place.
fn details(server: &VirtualServer) -> String {
    let scheduler = server.config.scheduler;
    match &server.config.persistence {
        Some(persistence) => format!("{scheduler} persistent {} s", persistence.timeout_secs),
        None => scheduler.to_string(),
    }
}

fn text(entries: &[SnapshotEntry], names: &Names<'_>, bound: usize) -> std::io::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut rows = vec![["VIRTUAL SERVER", "WEIGHT", "ACTIVE", "INACTIVE", "SERVICE"].map(str::to_owned)];
    for entry in entries {
        let server = &entry.virtual_server.server;
        let service = names.service_of(&server.key).unwrap_or_else(|| "-".to_owned());
        rows.push([
            format!("{} {}", server.key, details(server)),
            String::new(),
            String::new(),
            String::new(),
            service,
        ]);
        for real in &entry.real_servers {
            rows.push([
                format!("  -> {}", real.server.key),
                real.server.config.weight.to_string(),
                real.active_connections.to_string(),
                real.inactive_connections.to_string(),
                String::new(),
            ]);
        }
        if entry.real_servers.is_empty() {
            rows.push([
                "  no real server: refused".to_owned(),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
            ]);
        }
    }
    let width = |column: usize| rows.iter().map(|row| row.get(column).map_or(0, |cell| cell.chars().count())).max();
    let widths: Vec<usize> = (0..4).map(|column| width(column).unwrap_or(0)).collect();
    for row in &rows {
        let [place, weight, active, inactive, service] = row;
        let line = format!(
            "{place:<a$}  {weight:>b$}  {active:>c$}  {inactive:>d$}  {service}",
            a = widths.first().copied().unwrap_or(0),
            b = widths.get(1).copied().unwrap_or(0),
            c = widths.get(2).copied().unwrap_or(0),
            d = widths.get(3).copied().unwrap_or(0),
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    let real: usize = entries.iter().map(|entry| entry.real_servers.len()).sum();
    writeln!(out, "{} virtual servers, {real} real servers, {bound} addresses on kube-ipvs0", entries.len())?;
    out.flush()
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

fn entry_json(entry: &SnapshotEntry, names: &Names<'_>) -> Value {
    let server = &entry.virtual_server.server;
    json!({
        "key": server.key.to_string(),
        "scheduler": server.config.scheduler.to_string(),
        "persistentSeconds": server.config.persistence.as_ref().map(|persistence| persistence.timeout_secs),
        "service": names.service_of(&server.key),
        "connections": entry.virtual_server.stats.connections,
        "realServers": entry.real_servers.iter().map(|real| json!({
            "address": real.server.key.to_string(),
            "weight": real.server.config.weight.get(),
            "forwarding": forwarding(real.server.config.forwarding_method),
            "activeConnections": real.active_connections,
            "inactiveConnections": real.inactive_connections,
        })).collect::<Vec<_>>(),
    })
}
