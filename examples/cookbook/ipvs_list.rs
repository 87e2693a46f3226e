//! Lists virtual and real servers, like `ipvsadm -Ln`.
//!
//! `cargo run -p examples --example ipvs_list` (as root)

use std::process::ExitCode;

use examples::Failure;
use ipvs::{Client, ForwardingMethod};

fn main() -> ExitCode {
    examples::end(run())
}

fn run() -> Result<(), Failure> {
    let mut ipvs = Client::open()?;
    println!("IP Virtual Server version {}", ipvs.info()?);
    let mut rows = Vec::new();
    for entry in ipvs.snapshot()?.entries {
        let server = entry.virtual_server.server;
        let mut flags = server.config.scheduler_flags.names(server.config.scheduler).join(",");
        if let Some(persistence) = server.config.persistence {
            flags = format!("persistent {} {flags}", persistence.timeout_secs);
        }
        rows.push(vec![server.key.to_string(), server.config.scheduler.to_string(), flags]);
        for real in entry.real_servers {
            let method = match real.server.config.forwarding_method {
                ForwardingMethod::Masquerade => "Masq",
                ForwardingMethod::Local => "Local",
                ForwardingMethod::Tunnel(_) => "Tunnel",
                ForwardingMethod::DirectRoute => "Route",
                _ => "Other",
            };
            rows.push(vec![
                format!("  -> {}", real.server.key),
                method.to_owned(),
                real.server.config.weight.to_string(),
                real.active_connections.to_string(),
                real.inactive_connections.to_string(),
            ]);
        }
    }
    examples::print(&["VIRTUAL SERVER", "SCHEDULER", "FLAGS / WEIGHT", "ACTIVE", "INACTIVE"], &rows);
    Ok(())
}
