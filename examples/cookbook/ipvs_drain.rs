//! Adds a real server to a virtual server, or drains and deletes it: what a server does before it shuts down.
//!
//! As `ExecStartPost=` and `ExecStop=` of systemd, or a pod's `preStop` hook:
//!
//! ```text
//! cargo run -p examples --example ipvs_drain -- add   "TCP 10.0.0.1:80" 10.1.0.1:8080
//! cargo run -p examples --example ipvs_drain -- drain "TCP 10.0.0.1:80" 10.1.0.1:8080
//! ```
//!
//! `add` creates the virtual server if necessary, and restores the weight of a draining real server. `drain` sets
//! weight 0, waits at most a minute until no connection is left, and deletes the real server. With persistence,
//! remembered clients still return: see `Weight::DRAIN`.
//!
//! Needs IPVS and `CAP_NET_ADMIN`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use examples::Failure;
use ipvs::{Client, RealServer, RealServerKey, Scheduler, VirtualServer, VirtualServerKey, Weight};

const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    examples::end(run())
}

fn run() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [action, virtual_server, real_server] = arguments.as_slice() else {
        return Err("usage: ipvs_drain add|drain \"TCP ADDRESS:PORT\" ADDRESS:PORT".into());
    };
    let key: VirtualServerKey = virtual_server.parse()?;
    let real: RealServerKey = real_server.parse()?;
    let mut ipvs = Client::open()?;
    match action.as_str() {
        "add" => add(&mut ipvs, &key, &RealServer::new(real_server.parse()?)),
        "drain" => drain(&mut ipvs, &key, &real),
        other => Err(format!("{other:?} is neither add nor drain").into()),
    }
}

fn add(ipvs: &mut Client, key: &VirtualServerKey, real: &RealServer) -> Result<(), Failure> {
    match ipvs.add_virtual_server(&VirtualServer::new(*key, Scheduler::RoundRobin)) {
        Err(error) if !error.is_already_exists() => return Err(error.into()),
        _ => {}
    }
    match ipvs.add_real_server(key, real) {
        // It exists, perhaps draining: restore its weight, which does not affect its connections.
        Err(error) if error.is_already_exists() => ipvs.update_real_server(key, real)?,
        result => result?,
    }
    println!("{} answers for {key}", real.key);
    Ok(())
}

fn drain(ipvs: &mut Client, key: &VirtualServerKey, real: &RealServerKey) -> Result<(), Failure> {
    let observed = ipvs.get_real_server(key, real)?;
    ipvs.update_real_server(key, &observed.server.with_weight(Weight::DRAIN))?;
    let start = Instant::now();
    loop {
        let observed = ipvs.get_real_server(key, real)?;
        let left = observed.active_connections + observed.inactive_connections;
        if left == 0 || start.elapsed() > PATIENCE {
            ipvs.delete_real_server(key, real)?;
            println!("{real} is gone; {left} connections were left");
            return Ok(());
        }
        println!("{real} drains: {left} connections left");
        std::thread::sleep(Duration::from_secs(1));
    }
}
