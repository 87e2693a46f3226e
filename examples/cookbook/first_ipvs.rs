//! A virtual server with one real server, and a list of all. docs/embed.md explains it.

use ipvs::{Client, RealServer, Scheduler, VirtualServer, VirtualServerKey};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut ipvs = Client::open()?; // needs CAP_NET_ADMIN and the module ip_vs
    let key = VirtualServerKey::tcp("10.0.0.1:80".parse()?);
    ipvs.add_virtual_server(&VirtualServer::new(key, Scheduler::RoundRobin))?;
    ipvs.add_real_server(&key, &RealServer::new("10.1.0.1:8080".parse()?))?;
    for entry in ipvs.snapshot()?.entries {
        println!("{}: {} real servers", entry.virtual_server.server.key, entry.real_servers.len());
    }
    Ok(())
}
