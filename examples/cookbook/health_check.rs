//! A virtual server with health checks: a real server that fails gets no new connections until it answers again.
//!
//! `cargo run -p examples --example health_check -- 10.0.0.1:80 10.1.0.1:8080 10.1.0.2:8080`
//!
//! Needs IPVS and `CAP_NET_ADMIN`, and the virtual address on this host (`ip address add 10.0.0.1/32 dev lo`). It runs
//! until it is killed and leaves the virtual server in place: connections outlive the program, and the next start takes
//! over.
//!
//! A failed real server gets weight 0, which keeps its connections; deleting it would cut them.

use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use examples::Failure;
use ipvs::{Client, Error, RealServer, Scheduler, VirtualServer, VirtualServerKey, Weight};

const INTERVAL: Duration = Duration::from_secs(1);
/// Longest time for a real server to accept a connection.
const PATIENCE: Duration = Duration::from_secs(1);
/// Number of consecutive equal results that change the state.
const IN_A_ROW: u32 = 3;

struct Checked {
    address: SocketAddr,
    is_up: bool,
    /// Consecutive results that contradict the state.
    against: u32,
}

impl Checked {
    /// Records a result; returns whether the state changed.
    fn observe(&mut self, answered: bool) -> bool {
        self.against = if answered == self.is_up { 0 } else { self.against + 1 };
        let changed = self.against == IN_A_ROW;
        if changed {
            (self.is_up, self.against) = (answered, 0);
        }
        changed
    }

    fn real_server(&self) -> RealServer {
        RealServer::new(self.address).with_weight(if self.is_up { Weight::default() } else { Weight::DRAIN })
    }
}

fn main() -> ExitCode {
    examples::end(run())
}

fn run() -> Result<(), Failure> {
    let addresses = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<Vec<SocketAddr>, _>>()?;
    let [address, real_servers @ ..] = addresses.as_slice() else {
        return Err("usage: health_check ADDRESS:PORT ADDRESS:PORT…".into());
    };
    let key = VirtualServerKey::tcp(*address);
    let mut ipvs = Client::open()?;
    match ipvs.add_virtual_server(&VirtualServer::new(key, Scheduler::WeightedLeastConnection)) {
        Err(error) if !error.is_already_exists() => return Err(error.into()),
        _ => {}
    }
    // The first check decides for each; then three in a row.
    let first = check(real_servers);
    let states =
        real_servers.iter().zip(first).map(|(address, is_up)| Checked { address: *address, is_up, against: 0 });
    let mut servers: Vec<Checked> = states.collect();
    for server in &servers {
        set(&mut ipvs, &key, &server.real_server())?;
        println!("{} is {}", server.address, if server.is_up { "up" } else { "down" });
    }
    loop {
        thread::sleep(INTERVAL);
        for (server, answered) in servers.iter_mut().zip(check(real_servers)) {
            if server.observe(answered) {
                set(&mut ipvs, &key, &server.real_server())?;
                println!("{} is {}", server.address, if server.is_up { "up" } else { "down" });
            }
        }
    }
}

/// Changes a real server in place, or adds it.
fn set(ipvs: &mut Client, key: &VirtualServerKey, real: &RealServer) -> Result<(), Error> {
    match ipvs.update_real_server(key, real) {
        Err(error) if error.is_not_found() => ipvs.add_real_server(key, real),
        result => result,
    }
}

/// Checks all these addresses in parallel; returns for each whether it accepts connections.
fn check(servers: &[SocketAddr]) -> Vec<bool> {
    thread::scope(|scope| {
        let ask = |server| scope.spawn(move || TcpStream::connect_timeout(server, PATIENCE).is_ok());
        let asked: Vec<_> = servers.iter().map(ask).collect();
        asked.into_iter().map(|thread| thread.join().unwrap_or(false)).collect()
    })
}
