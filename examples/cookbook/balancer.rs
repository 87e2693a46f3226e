//! A balancer similar to keepalived: virtual servers from a file, health checks of real servers, and a sorry server.
//!
//! `cargo run -p examples --example balancer -- FILE [SORRY:PORT]`
//!
//! FILE is the output of `ipvsadm -S -n`. It is read again when it changes; an unreadable or invalid file changes
//! nothing. TCP real servers that refuse connections are removed, as keepalived does by default. If none is left, the
//! sorry server takes over. Only virtual servers that are, or were, in the file are changed.
//!
//! Needs IPVS and `CAP_NET_ADMIN`. It does not move addresses between hosts, which is VRRP's task.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use examples::Failure;
use ipvs::model::Protocol;
use ipvs::text::Entry;
use ipvs::{Client, RealServer, RealServerKey, Ruleset, SyncPolicy, VirtualServerKey};

const INTERVAL: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    examples::end(run())
}

fn run() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("usage: balancer FILE [SORRY:PORT]")?;
    let sorry: Option<SocketAddr> = arguments.next().map(|text| text.parse()).transpose()?;
    let mut ipvs = Client::open()?;
    let mut text = fs::read_to_string(&file)?;
    let mut wanted: Ruleset = text.parse()?;
    let mut owned = BTreeSet::new();
    loop {
        owned.extend(wanted.entries.iter().map(|entry| entry.virtual_server.key));
        let up = check(&wanted);
        balance(&mut ipvs, &owned, &wanted.entries, &up, sorry);
        thread::sleep(INTERVAL);
        match fs::read_to_string(&file) {
            Ok(now) if now == text => {}
            Ok(now) => {
                match now.parse() {
                    Ok(rules) => wanted = rules,
                    Err(error) => eprintln!("{file}: {error}; the earlier one counts"),
                }
                text = now;
            }
            Err(error) => eprintln!("{file}: {error}; the earlier one counts"),
        }
    }
}

/// Changes the kernel to match the file, without the real servers that are down.
fn balance(
    ipvs: &mut Client,
    owned: &BTreeSet<VirtualServerKey>,
    entries: &[Entry],
    up: &BTreeMap<RealServerKey, bool>,
    sorry: Option<SocketAddr>,
) {
    let mut now = Ruleset::new();
    for entry in entries {
        let is_up = |real: &&RealServer| !is_checked(entry) || up.get(&real.key).copied().unwrap_or(true);
        let mut alive: Vec<RealServer> = entry.real_servers.iter().filter(is_up).copied().collect();
        if alive.is_empty() {
            alive.extend(sorry.map(RealServer::new));
        }
        now.push(entry.virtual_server, alive);
    }
    match ipvs.sync(&now, &SyncPolicy::owning(|key| owned.contains(key))) {
        Ok(report) => {
            print!("{}", report.done);
            for failure in report.failures.iter().filter(|failure| !failure.is_consequence) {
                let why = failure.outcome.error().map_or_else(|| "not done".to_owned(), ToString::to_string);
                eprintln!("{}: {why}; tried again", failure.operation);
            }
            if let Some(error) = report.stopped {
                eprintln!("{error}; tried again");
            }
        }
        // The cause is a mistake in the file, such as a duplicate name, or a busy kernel: the next round tells which.
        Err(error) => eprintln!("nothing was changed: {error}"),
    }
}

/// UDP and SCTP real servers cannot be checked and count as up.
fn is_checked(entry: &Entry) -> bool {
    entry.virtual_server.key.protocol() == Some(Protocol::Tcp)
}

/// TCP real servers, and whether each accepts connections.
fn check(rules: &Ruleset) -> BTreeMap<RealServerKey, bool> {
    let tcp = rules.entries.iter().filter(|entry| is_checked(entry));
    let keys: BTreeSet<RealServerKey> = tcp.flat_map(|entry| &entry.real_servers).map(|real| real.key).collect();
    thread::scope(|scope| {
        let ask = |key: RealServerKey| {
            let address = SocketAddr::new(key.addr, key.port);
            (key, scope.spawn(move || TcpStream::connect_timeout(&address, PATIENCE).is_ok()))
        };
        let asked: Vec<_> = keys.into_iter().map(ask).collect();
        asked.into_iter().map(|(key, thread)| (key, thread.join().unwrap_or(false))).collect()
    })
}
